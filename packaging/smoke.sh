#!/bin/sh
# What a build must do on a machine where the tests cannot run: `packaging/smoke.sh PROGRAM`.
# It needs a POSIX shell and curl, and uses the loopback interface only.
set -eu
home=$(mktemp -d)
# A copy has a path of its own, by which its processes are found.
program="$home/bin/rialto"
mkdir "$home/bin"
cp "$1" "$program"
gateway=
trap 'test -z "$gateway" || kill -9 "$gateway" 2>/dev/null || true; rm -rf "$home"' EXIT
export HOME="$home" XDG_RUNTIME_DIR="$home" RIALTO_STATE_DIR="$home/state"
step() { echo "smoke: $*"; }
fail() { echo "smoke: FAILED: $*" >&2; cat "$home/log" >&2 2>/dev/null || true; exit 1; }
# Runs a command until it succeeds, for at most twenty seconds.
wait_for() {
  tries=0
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    test "$tries" -lt 100 || return 1
    sleep 0.2
  done
}
# Processes of the demo server that belong to this program.
servers() { pgrep -f "$program demo-server" || true; }
no_server() { test -z "$(servers)"; }

step "prints its version"
"$program" --version | grep -q '^rialto ' || fail "no version"

step "serves, and a tool answers over HTTP"
"$program" serve --listen 127.0.0.1:0 -- "$program" demo-server 2> "$home/log" &
gateway=$!
wait_for grep -q 'http://127.0.0.1:' "$home/log" || fail "no address"
address=$(sed -n 's|.*\(http://127\.0\.0\.1:[0-9]*\).*|\1|p' "$home/log" | head -n 1)
wait_for curl --fail --silent "$address/ready" || fail "not ready"
"$program" call "$address/mcp" echo text=hello | grep -q hello || fail "no answer"

step "connects from stdio"
request='{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"smoke","version":"1"}}}'
echo "$request" | "$program" connect "$address/mcp" 2>/dev/null | grep -q serverInfo || fail "no handshake"

step "is found by its admin socket"
"$program" ps | grep -q "gateway $gateway" || fail "not found"

step "copies itself"
"$program" --copy-self "$home/copy" || fail "no copy"
"$home/copy" --version > /dev/null || fail "the copy does not run"

step "is killed, and leaves no server behind"
test -n "$(servers)" || fail "no server runs"
kill -9 "$gateway"
wait "$gateway" 2>/dev/null || true
wait_for no_server || fail "servers are left: $(servers)"
gateway=

step "ends on SIGTERM with its server"
"$program" serve --listen 127.0.0.1:0 -- "$program" demo-server 2> "$home/log" &
gateway=$!
wait_for grep -q 'http://127.0.0.1:' "$home/log" || fail "no address"
kill "$gateway"
wait "$gateway" || fail "exit code $?"
wait_for no_server || fail "servers are left: $(servers)"
gateway=
step "passed"
