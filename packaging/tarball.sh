#!/bin/sh
# Makes the tarball of a program for a machine that `cargo xtask package` does not know, with the
# same content, but for the units of systemd: `packaging/tarball.sh PROGRAM TARGET`, into dist/.
set -eu
program=$1
target=$2
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name="rialto-$version-$target"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p dist "$folder/$name/completions" "$folder/$name/man/man1"
cp "$program" "$folder/$name/rialto"
cp README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$folder/$name/"
cargo xtask licences "$target" > "$folder/$name/LICENSE-THIRD-PARTY"
cd "$folder/$name"
chmod 755 rialto
./rialto completions bash > completions/rialto.bash
./rialto completions zsh > completions/_rialto
./rialto completions fish > completions/rialto.fish
./rialto man --dir man/man1
cd - > /dev/null
tar -czf "dist/$name.tar.gz" -C "$folder" "$name"
echo "dist/$name.tar.gz"
