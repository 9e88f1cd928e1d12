//! What the help of each command ends with. A line has at most 80 columns, so that no terminal
//! breaks it.

pub(super) const RIALTO: &str = "\
Examples:
  rialto serve --demo
      the built-in demo server, at http://127.0.0.1:3000/mcp
  rialto serve npx -y @scope/server
      one stdio server on HTTP; `rialto npx -y @scope/server` is the same
  rialto serve
      the servers of destinations.yml, each at /NAME/mcp
  rialto connect https://host/mcp
      a remote server for a host that starts programs; `rialto https://…` too
  rialto check
      does every server of destinations.yml work?
  rialto check https://host/mcp
      does that server work?
  rialto login https://host/mcp
      sign in at a remote server
  rialto --copy-self /shared/rialto
      copy this program, for an init container without a shell";

pub(super) const SERVE: &str = "\
Examples:
  rialto serve --demo
  rialto serve npx -y @modelcontextprotocol/server-everything
  rialto serve --port 8080 --env API_KEY --name search -- uvx my-search-server
  rialto serve --server files='npx -y @scope/files .' --server git='uvx mcp-git'
  rialto serve https://mcp.example.com/mcp --header 'X-Api-Key: ${API_KEY}'
  rialto serve --config destinations.yml --audit audit.jsonl

Variables without a flag: RIALTO_DRAIN_TIMEOUT (or RIALTO_DRAIN),
RIALTO_SECRETS_FILE, RIALTO_AUDIT_BODIES (or AUDIT_LOG_BODIES),
RIALTO_AUDIT_ON_FAILURE, RIALTO_AUDIT_CHAIN, RIALTO_LIMIT_…,
RIALTO_TRUSTED_PROXIES, RIALTO_METRICS, RIALTO_CLUSTER_URL,
RIALTO_CLUSTER_KEY_FILE, RIALTO_CLUSTER_LISTEN, RIALTO_CLUSTER_ADVERTISE,
RIALTO_CLUSTER_PREFIX, RIALTO_CLUSTER_NAME, RIALTO_OTLP_ENDPOINT (or
OTEL_EXPORTER_OTLP_ENDPOINT), RIALTO_OTLP_SAMPLE, RUST_LOG.
A flag beats a variable, a variable beats the file, the file beats the default.
The flags of supergateway and of both programs called mcp-proxy are understood.";

pub(super) const CONNECT: &str = "\
Examples:
  rialto connect https://mcp.example.com/mcp --print-config claude-desktop
  rialto connect https://mcp.example.com/mcp --bearer-env EXAMPLE_TOKEN
  rialto connect https://mcp.example.com/mcp --header 'X-Api-Key: ${API_KEY}'
  rialto connect https://mcp.example.com/mcp --client-id my-client \\
      --redirect-uri http://127.0.0.1:8765/callback
  URI=https://mcp.example.com/mcp BEARER_TOKEN=… rialto
  rialto connect npx -y @modelcontextprotocol/server-everything

stdout belongs to the protocol; logs go to stderr. The program ends when its
stdin does. A flag beats a variable, a variable beats the default.
The flags of mcp-remote are understood.";

pub(super) const CHECK: &str = "\
Examples:
  rialto check
  rialto check https://mcp.example.com/mcp
  rialto check --config ~/.cursor/mcp.json --json
  rialto check npx -y @modelcontextprotocol/server-everything";

pub(super) const AUDIT: &str = "\
Examples:
  rialto audit verify audit.jsonl
  rialto audit verify audit.jsonl.2 audit.jsonl.1 audit.jsonl";

pub(super) const TOKEN: &str = "\
Examples:
  rialto token --name alice
  rialto token --name ci | head -1          print only the token";

pub(super) const CLUSTER_KEY: &str = "\
Examples:
  (umask 077 && rialto cluster key > cluster.key)

Copy the file to every replica, or mount it there as a secret, and name it in
`cluster.key_file`. Replicas refuse a key file that other users can read.";

pub(super) const CLUSTER_STATUS: &str = "\
Examples:
  rialto cluster status
  rialto cluster status --config destinations.yml --json

Exit code 0: the engine can be used, and a replica has a lease. 1: not so.
2: the configuration has an error, or no `cluster`.";

pub(super) const DEMO: &str = "\
Examples:
  rialto demo-server
  rialto serve -- rialto demo-server --era legacy";

pub(super) const PS: &str = "\
Examples:
  rialto ps
  rialto ps --sessions
  rialto ps --json | jq '.gateways[].destinations[] | {name, state, sessions}'

Exit code 0: a gateway of this user runs. 1: none does.";

pub(super) const TOP: &str = "\
Examples:
  rialto top
  rialto top --sessions --interval 5s
  rialto top --count 2 > load.txt";

pub(super) const TAP: &str = "\
Examples:
  rialto tap files
  rialto tap files --count 10 | jq -c '[.direction, .message.method]'

Secrets are replaced as in the audit log, and long messages are cut.";

pub(super) const UI: &str = "\
Examples:
  rialto ui
  rialto ui files
  rialto ui --print

The address is printed in any case.";

pub(super) const TOOLS: &str = "\
Examples:
  rialto tools files
  rialto tools https://mcp.example.com/mcp
  rialto tools files --json | jq '.tools[].name'

A name is looked up at the gateways that run, then in the configuration.";

pub(super) const CALL: &str = "\
Examples:
  rialto call files read_file path=/etc/hostname
  rialto call search find query=rust limit=3 tags=a tags=b filter:='{\"x\":1}'
  rialto call https://mcp.example.com/mcp echo --json '{\"message\": \"hi\"}'
  rialto call files read_file path=x --raw | jq .content

Exit code 0: a result. 1: no answer, or an error of the protocol. 2: wrong
arguments or configuration. 4: the server does not start. 5: an error that
the tool reports. On a terminal the server may ask questions.";

pub(super) const ATTACH: &str = "\
Examples:
  rialto attach files
  rialto attach files --config ~/.config/rialto/destinations.yml

For the entry of a host. It uses the service that serves the file, and starts
it if none does. Projects (working directories) share no server process,
unless the destination has `shared: everywhere`.";

pub(super) const SERVICE: &str = "\
Examples:
  rialto service install
  rialto service install --print
  rialto service status
  rialto service logs --follow
  rialto service uninstall";

pub(super) const DOCTOR: &str = "\
Examples:
  rialto doctor
  rialto doctor cursor
  rialto doctor files --json | jq '.findings[] | [.subject, .what]'
  rialto doctor https://mcp.example.com/mcp --hold 0s

It observes, and changes nothing without --fix. Each finding has what was
observed, why it matters, and the line to paste. Exit code 0: all is well.
10: try again later. 11: a person must act. 12: there is no such name.";

pub(super) const COMPLETIONS: &str = "\
Examples:
  rialto completions bash > ~/.local/share/bash-completion/completions/rialto
  rialto completions zsh > ~/.zfunc/_rialto
  rialto completions fish > ~/.config/fish/completions/rialto.fish";

pub(super) const MAN: &str = "\
Examples:
  rialto man | man -l -
  rialto man serve | man -l -
  rialto man --dir /usr/local/share/man/man1";
