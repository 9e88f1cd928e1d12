//! The command line: which command, with which flags, exactly as they were typed.
//!
//! Nothing is judged here but the shape. What a value means, and which of flag, variable and file wins, is
//! decided in `config`; that is why values are texts here and why the variables stand in the help only.

pub(crate) mod account;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use gateway::settings::Secret;

use self::account::{LoginFlags, LogoutFlags, StatusFlags};
use crate::config::Environment;
use crate::demo::DemoEra;

/// What Rialto was asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(crate) enum Invocation {
    /// Put MCP servers on HTTP, each at /NAME/mcp
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeFlags),
    /// Use a remote MCP server from a host that starts programs: stdio in front, HTTP behind
    #[command(after_help = CONNECT_EXAMPLES)]
    Connect(ConnectFlags),
    /// Look over a configuration: find, start and probe every destination
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckFlags),
    /// Look over audit logs
    #[command(subcommand)]
    Audit(AuditCommand),
    /// The built-in demo server, over stdio
    #[command(after_help = DEMO_EXAMPLES)]
    DemoServer(DemoServerFlags),
    /// Sign in at a remote server, for `serve` and `connect`
    #[command(after_help = account::LOGIN_EXAMPLES)]
    Login(LoginFlags),
    /// Forget what a sign-in gave
    #[command(after_help = account::LOGOUT_EXAMPLES)]
    Logout(LogoutFlags),
    /// Where Rialto is signed in, and for how long
    #[command(after_help = account::STATUS_EXAMPLES)]
    Status(StatusFlags),
    /// Make a bearer token: the token for a client, its hash for the configuration
    #[command(after_help = TOKEN_EXAMPLES)]
    Token(TokenFlags),
    /// Stays behind to end the children of a Rialto that was killed.
    #[command(hide = true)]
    Warden(WardenFlags),
}

/// `rialto serve`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ServeFlags {
    /// The destinations: YAML, or the mcpServers JSON of a desktop host [env: RIALTO_CONFIG] [default: destinations.yml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,
    /// Where to listen; port 0 picks a free one [env: RIALTO_LISTEN] [default: 127.0.0.1:3000]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Serve the built-in demo server [env: RIALTO_DEMO]
    #[arg(long)]
    pub(crate) demo: bool,
    /// Start the other destinations when the command of one cannot be found [env: RIALTO_KEEP_GOING]
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Name of the destination of `-- COMMAND` [env: RIALTO_NAME] [default: from the command]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Where audit records go: a file, stdout or off [env: RIALTO_AUDIT] [default: off]
    #[arg(long, value_name = "FILE|stdout|off")]
    pub(crate) audit: Option<String>,
    /// A certificate in PEM: the listener then speaks TLS [env: RIALTO_TLS_CERT]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<String>,
    /// The certificate's private key in PEM [env: RIALTO_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<String>,
    /// Read the configuration again when its file changes, as SIGHUP does [env: RIALTO_WATCH]
    #[arg(long)]
    pub(crate) watch: bool,
    /// How log lines look on stderr; RUST_LOG says which [env: RIALTO_LOG_FORMAT] [default: human]
    #[arg(long, value_name = "human|json")]
    pub(crate) log_format: Option<String>,
    /// How long a call may take, such as 30s or 5m [env: RIALTO_REQUEST_TIMEOUT, STDIO_REQUEST_TIMEOUT] [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub(crate) request_timeout: Option<String>,
    /// The largest message, either way [env: RIALTO_MAX_MESSAGE_BYTES] [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_message_bytes: Option<String>,
    /// Who shares a child of `-- COMMAND` [env: RIALTO_PROCESS] [default: shared]
    #[arg(long, value_name = "shared|per_session|per_identity")]
    pub(crate) process: Option<String>,
    /// Sessions at once per destination [env: RIALTO_MAX_SESSIONS, MAX_STDIO_CONNECTIONS] [default: 10]
    #[arg(long, value_name = "N")]
    pub(crate) max_sessions: Option<String>,
    /// A host name that requests may name, besides loopback ones; may be repeated [env: RIALTO_ALLOWED_HOSTS, comma-separated]
    #[arg(long, value_name = "HOST")]
    pub(crate) allow_host: Vec<String>,
    /// An origin that browsers may call from; may be repeated [env: RIALTO_ALLOWED_ORIGINS, comma-separated]
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) allow_origin: Vec<String>,
    /// What clients call this gateway, if something stands in front of it [env: RIALTO_PUBLIC_URL] [default: the address listened on]
    #[arg(long, value_name = "URL")]
    pub(crate) public_url: Option<String>,
    /// The hash of a bearer token that `rialto token` made; may be repeated [env: RIALTO_TOKEN_HASH, comma-separated]
    #[arg(long, value_name = "[NAME=]HASH")]
    pub(crate) token_hash: Vec<String>,
    /// Listen on an address that others can reach without asking who they are [env: RIALTO_ALLOW_UNAUTHENTICATED]
    #[arg(long)]
    pub(crate) allow_unauthenticated: bool,
    /// A variable for `-- COMMAND`; without a value it is passed on as it is; may be repeated [env: RIALTO_ENV, one per line]
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = secret)]
    pub(crate) env: Vec<Secret>,
    /// One stdio server to run, instead of a file
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// `rialto connect`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ConnectFlags {
    /// The server's address, an http or https URL [env: URI]
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A header for every request; may be repeated [env: RIALTO_HEADERS, one per line; BEARER_TOKEN for a bearer token]
    #[arg(long, value_name = "NAME: VALUE", value_parser = secret)]
    pub(crate) header: Vec<Secret>,
    /// A file with such headers, one per line, which no process list shows [env: RIALTO_HEADER_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) header_file: Option<String>,
    /// The variable that holds the bearer token [env: RIALTO_BEARER_ENV] [default: BEARER_TOKEN]
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) bearer_env: Option<String>,
    /// Sign in with a browser when the server asks for that [env: RIALTO_AUTH] [default: oauth, or none with an Authorization header]
    #[arg(long, value_name = "oauth|none")]
    pub(crate) auth: Option<String>,
    /// How the server is reached: auto tries Streamable HTTP, then HTTP+SSE [env: RIALTO_TRANSPORT] [default: auto]
    #[arg(long, value_name = "auto|streamable-http|sse")]
    pub(crate) transport: Option<String>,
    /// Which era the server is spoken to in [env: RIALTO_CONNECT_ERA] [default: auto]
    #[arg(long, value_name = "auto|legacy|modern")]
    pub(crate) era: Option<String>,
    /// Certificates to trust beside the system's, in PEM [env: RIALTO_CA_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<String>,
    /// How long a call may take, such as 30s or 5m [env: RIALTO_TIMEOUT, MCP_TIMEOUT_MS] [default: 60s]
    #[arg(long, value_name = "DURATION")]
    pub(crate) timeout: Option<String>,
    /// Messages that may wait; beyond it nothing is read from stdin [env: RIALTO_MAX_QUEUE, MCP_MAX_QUEUE] [default: 10000]
    #[arg(long, value_name = "N")]
    pub(crate) max_queue: Option<String>,
    /// The largest message, either way [env: RIALTO_MAX_MESSAGE_BYTES] [default: 16MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_message_bytes: Option<String>,
    /// What is sent again after a failure: safe is what does no harm if it is done twice [env: RIALTO_RETRY] [default: safe]
    #[arg(long, value_name = "safe|always")]
    pub(crate) retry: Option<String>,
    /// What the server is called in logs and by --print-config [env: MCP_NAME] [default: from the address]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// How log lines look on stderr; RUST_LOG says which [env: RIALTO_LOG_FORMAT] [default: human]
    #[arg(long, value_name = "human|json")]
    pub(crate) log_format: Option<String>,
    /// Print what to paste into a host's configuration, and exit
    #[arg(long, value_name = "HOST", value_enum)]
    pub(crate) print_config: Option<Host>,
    /// A stdio server to run instead: any client can then use it, of whatever era
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "url")]
    pub(crate) command: Vec<String>,
}

/// A program that starts MCP servers, and has a file that says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Host {
    ClaudeDesktop,
    ClaudeCode,
    Cursor,
    Vscode,
}

/// `rialto check`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct CheckFlags {
    /// The destinations: YAML, or the mcpServers JSON of a desktop host [env: RIALTO_CONFIG] [default: destinations.yml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,
    /// Check the built-in demo server [env: RIALTO_DEMO]
    #[arg(long)]
    pub(crate) demo: bool,
    /// A variable for `-- COMMAND`; without a value it is passed on as it is; may be repeated [env: RIALTO_ENV, one per line]
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = secret)]
    pub(crate) env: Vec<Secret>,
    /// One stdio server to check, instead of a file
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

impl CheckFlags {
    /// The same configuration, as `serve` would read it.
    pub(crate) fn as_serve(&self) -> ServeFlags {
        ServeFlags {
            config: self.config.clone(),
            demo: self.demo,
            env: self.env.clone(),
            command: self.command.clone(),
            // Nothing is listened on.
            allow_unauthenticated: true,
            ..ServeFlags::default()
        }
    }
}

/// `rialto audit`.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(crate) enum AuditCommand {
    /// Verify the hash chain of audit files (written with audit.chain)
    #[command(after_help = AUDIT_EXAMPLES)]
    Verify(VerifyFlags),
}

/// `rialto audit verify`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct VerifyFlags {
    /// The files in the order they were written, the oldest first
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

/// `rialto demo-server`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct DemoServerFlags {
    /// Which revisions of the protocol it speaks
    #[arg(long, env = "RIALTO_ERA", value_enum, default_value_t = DemoEra::Both)]
    pub(crate) era: DemoEra,
}

/// `rialto token`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct TokenFlags {
    /// What its bearer is called, in the audit log for instance
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) name: String,
}

/// `rialto warden`, which only Rialto itself calls.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct WardenFlags {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Debug, Parser)]
#[command(
    name = "rialto",
    version,
    about = "Any MCP client, any MCP server: one native binary in between",
    after_help = EXAMPLES,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct CommandLine {
    #[command(subcommand)]
    invocation: Invocation,
}

const EXAMPLES: &str = "\
Examples:
  rialto serve --demo                       the built-in demo server at http://127.0.0.1:3000/mcp
  rialto serve -- npx -y @scope/server      one stdio server on HTTP; `rialto -- npx …` is the same
  rialto serve --config destinations.yml    several servers, each at /NAME/mcp
  rialto connect https://host/mcp           a remote server for a host that starts programs; `rialto https://…` is the same
  rialto check                              is everything in destinations.yml well?
  rialto login https://host/mcp             sign in at a remote server";

const SERVE_EXAMPLES: &str = "\
Examples:
  rialto serve --demo
  rialto serve -- npx -y @modelcontextprotocol/server-everything
  rialto serve --listen :8080 --env API_KEY --name search -- uvx my-search-server
  rialto serve --config destinations.yml --audit audit.jsonl

Variables without a flag: RIALTO_SESSION_IDLE, RIALTO_DRAIN_TIMEOUT (or RIALTO_DRAIN), RIALTO_SECRETS_FILE,
RIALTO_AUDIT_BODIES (or AUDIT_LOG_BODIES), RIALTO_AUDIT_ON_FAILURE, RIALTO_AUDIT_CHAIN,
RIALTO_LIMIT_…, RIALTO_TRUSTED_PROXIES, RIALTO_METRICS,
RIALTO_OTLP_ENDPOINT (or OTEL_EXPORTER_OTLP_ENDPOINT), RIALTO_OTLP_SAMPLE, RUST_LOG.
A flag beats a variable, a variable beats the file, the file beats the default.";

const CONNECT_EXAMPLES: &str = "\
Examples:
  rialto connect https://mcp.example.com/mcp --print-config claude-desktop
  rialto connect https://mcp.example.com/mcp --bearer-env EXAMPLE_TOKEN
  rialto connect https://mcp.example.com/mcp --header 'X-Api-Key: …' --timeout 5m
  URI=https://mcp.example.com/mcp BEARER_TOKEN=… rialto
  rialto connect -- npx -y @modelcontextprotocol/server-everything

stdout belongs to the protocol; logs go to stderr. The program ends when its stdin does.
A flag beats a variable, a variable beats the default.";

const CHECK_EXAMPLES: &str = "\
Examples:
  rialto check
  rialto check --config ~/.cursor/mcp.json
  rialto check -- npx -y @modelcontextprotocol/server-everything";

const AUDIT_EXAMPLES: &str = "\
Examples:
  rialto audit verify audit.jsonl
  rialto audit verify audit.jsonl.2 audit.jsonl.1 audit.jsonl";
const TOKEN_EXAMPLES: &str = "\
Examples:
  rialto token --name alice
  rialto token --name ci | head -1          only the token";

const DEMO_EXAMPLES: &str = "\
Examples:
  rialto demo-server
  rialto serve -- rialto demo-server --era legacy";

/// Why there is no invocation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    /// A wrong command line, or a wish for help or the version.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
}

impl UsageError {
    /// Tells the user, on the stream that fits, and gives the code to exit with.
    pub(crate) fn report(&self) -> ExitCode {
        let Self::CommandLine(error) = self;
        // Help goes to stdout and everything else to stderr; if that is closed, no one listens.
        let _ = error.print();
        ExitCode::from(self.exit_code())
    }

    /// 2 for bad usage, 0 for help and version.
    pub(crate) fn exit_code(&self) -> u8 {
        let Self::CommandLine(error) = self;
        u8::try_from(error.exit_code()).unwrap_or(2)
    }
}

/// Reads a command line, the program's own name first.
pub(crate) fn parse(
    args: impl IntoIterator<Item = OsString>,
    environment: &Environment,
) -> Result<Invocation, UsageError> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    match args.get(1).map(|first| first.to_string_lossy().into_owned()) {
        // So a host's configuration that only names the binary works.
        None if environment.filled("URI").is_some() => args.push("connect".into()),
        Some(first) if is_web_address(&first) => args.insert(1, "connect".into()),
        // The argument decides when there is no verb: a command, or a flag of `serve`.
        Some(first) if first.starts_with('-') && !is_about_rialto(&first) => args.insert(1, "serve".into()),
        Some(_) | None => {}
    }
    let mut parsed = CommandLine::try_parse_from(args)?.invocation;
    if let Invocation::Serve(ServeFlags { command, .. })
    | Invocation::Check(CheckFlags { command, .. })
    | Invocation::Connect(ConnectFlags { command, .. }) = &mut parsed
        && command.first().is_some_and(|program| program.trim().is_empty())
    {
        let message = "the command after -- is empty: write the program and its arguments\n";
        return Err(clap::Error::raw(clap::error::ErrorKind::InvalidValue, message).into());
    }
    Ok(parsed)
}

/// Flags may be shown when something is debugged, and `--env` holds keys.
fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text))
}

fn is_web_address(argument: &str) -> bool {
    let lowered = argument.to_ascii_lowercase();
    lowered.starts_with("https://") || lowered.starts_with("http://")
}

fn is_about_rialto(argument: &str) -> bool {
    matches!(argument, "-h" | "--help" | "-V" | "--version")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str]) -> Result<Invocation, UsageError> {
        parse_with(line, &Environment::default())
    }

    fn parse_with(line: &[&str], environment: &Environment) -> Result<Invocation, UsageError> {
        let args = std::iter::once("rialto")
            .chain(line.iter().copied())
            .map(OsString::from);
        parse(args, environment)
    }

    fn serve(line: &[&str]) -> ServeFlags {
        match parsed(line).expect("parses") {
            Invocation::Serve(flags) => flags,
            other => panic!("not serve: {other:?}"),
        }
    }

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        use clap::CommandFactory as _;
        CommandLine::command().debug_assert();
    }

    #[test]
    fn serve_takes_all_its_flags() {
        let flags = serve(&[
            "serve",
            "--config",
            "d.yml",
            "--listen",
            ":0",
            "--demo",
            "--keep-going",
            "--name",
            "n",
            "--audit",
            "off",
            "--tls-cert",
            "c.pem",
            "--tls-key",
            "k.pem",
            "--watch",
            "--log-format",
            "json",
            "--request-timeout",
            "5s",
            "--max-message-bytes",
            "1MiB",
            "--process",
            "per_session",
            "--max-sessions",
            "3",
            "--allow-host",
            "a",
            "--allow-host",
            "b",
            "--allow-origin",
            "https://c",
            "--public-url",
            "https://d",
            "--token-hash",
            "e=sha256:f",
            "--allow-unauthenticated",
            "--env",
            "K=V=W",
            "--env",
            "L",
            "--",
            "npx",
            "-y",
            "--listen",
            "x",
        ]);
        let expected = ServeFlags {
            config: Some("d.yml".into()),
            listen: Some(":0".into()),
            demo: true,
            keep_going: true,
            name: Some("n".into()),
            audit: Some("off".into()),
            tls_cert: Some("c.pem".into()),
            tls_key: Some("k.pem".into()),
            watch: true,
            log_format: Some("json".into()),
            request_timeout: Some("5s".into()),
            max_message_bytes: Some("1MiB".into()),
            process: Some("per_session".into()),
            max_sessions: Some("3".into()),
            allow_host: vec!["a".into(), "b".into()],
            allow_origin: vec!["https://c".into()],
            public_url: Some("https://d".into()),
            token_hash: vec!["e=sha256:f".into()],
            allow_unauthenticated: true,
            env: vec![Secret::new("K=V=W"), Secret::new("L")],
            command: ["npx", "-y", "--listen", "x"].map(String::from).to_vec(),
        };
        assert_eq!(flags, expected);
        assert!(
            !format!("{flags:?}").contains("V=W"),
            "the value of --env is never shown"
        );
    }

    #[test]
    fn a_command_without_a_verb_is_served() {
        assert_eq!(serve(&["--", "cat", "-u"]).command, ["cat", "-u"]);
        assert!(serve(&["--demo"]).demo);
        assert_eq!(
            serve(&["--listen", ":0", "--", "cat"]).listen.as_deref(),
            Some(":0")
        );
    }

    #[test]
    fn check_and_demo_server_are_known() {
        match parsed(&["check", "--config", "x", "--env", "A=1"]).expect("parses") {
            Invocation::Check(flags) => {
                let serve = flags.as_serve();
                assert_eq!(serve.config.as_deref(), Some("x"));
                assert_eq!(serve.env, [Secret::new("A=1")]);
            }
            other => panic!("not check: {other:?}"),
        }
        for (word, era) in [
            ("legacy", DemoEra::Legacy),
            ("modern", DemoEra::Modern),
            ("both", DemoEra::Both),
        ] {
            let invocation = parsed(&["demo-server", "--era", word]).expect("parses");
            assert_eq!(invocation, Invocation::DemoServer(DemoServerFlags { era }));
        }
        match parsed(&["warden", "--fd", "3", "-x"]).expect("parses") {
            Invocation::Warden(flags) => assert_eq!(flags.arguments, ["--fd", "3", "-x"]),
            other => panic!("not warden: {other:?}"),
        }
    }

    fn connect(line: &[&str], environment: &Environment) -> ConnectFlags {
        match parse_with(line, environment).expect("parses") {
            Invocation::Connect(flags) => flags,
            other => panic!("not connect: {other:?}"),
        }
    }

    #[test]
    fn connect_is_meant_by_its_name_by_a_url_and_by_the_variable_uri() {
        let none = Environment::default();
        let with_uri = Environment::from_iter([("URI", "https://example.com/mcp")]);
        for line in [
            &["connect", "https://example.com/mcp"][..],
            &["https://example.com/mcp"],
        ] {
            assert_eq!(
                connect(line, &none).url.as_deref(),
                Some("https://example.com/mcp")
            );
        }
        assert_eq!(
            connect(&["HTTP://example.com", "--era", "modern"], &none)
                .era
                .as_deref(),
            Some("modern")
        );
        assert_eq!(connect(&[], &with_uri), ConnectFlags::default());
        assert_eq!(
            connect(&["connect", "--", "cat", "-u"], &none).command,
            ["cat", "-u"]
        );
        assert!(matches!(
            parse_with(&["serve"], &with_uri),
            Ok(Invocation::Serve(_))
        ));
        let flags = connect(
            &[
                "connect",
                "https://a",
                "--header",
                "A: geheim",
                "--print-config",
                "claude-desktop",
            ],
            &none,
        );
        assert_eq!(flags.print_config, Some(Host::ClaudeDesktop));
        assert!(
            !format!("{flags:?}").contains("geheim"),
            "the value of --header is never shown"
        );
    }

    #[test]
    fn bad_usage_exits_with_2_and_help_with_0() {
        for line in [
            &[][..],
            &["serv"],
            &["serve", "--nope"],
            &["serve", "cat"],
            &["serve", "--", ""],
            &["connect", "https://a", "--", "cat"],
            &["connect", "https://a", "--print-config", "emacs"],
            &["--nope"],
        ] {
            assert_eq!(parsed(line).expect_err("bad usage").exit_code(), 2, "{line:?}");
        }
        for line in [
            &["--help"][..],
            &["-h"],
            &["--version"],
            &["serve", "--help"],
            &["check", "-h"],
        ] {
            assert_eq!(parsed(line).expect_err("help").exit_code(), 0, "{line:?}");
        }
    }

    #[test]
    fn the_help_of_every_command_has_an_example_and_names_every_variable() {
        for verb in [
            "serve",
            "connect",
            "check",
            "demo-server",
            "login",
            "logout",
            "status",
            "token",
        ] {
            let help = parsed(&[verb, "--help"]).expect_err("help").to_string();
            assert!(help.contains("Examples:"), "{verb}");
        }
        let serve = parsed(&["serve", "--help"]).expect_err("help").to_string();
        for variable in [
            "RIALTO_CONFIG",
            "RIALTO_LISTEN",
            "RIALTO_DEMO",
            "RIALTO_KEEP_GOING",
            "RIALTO_NAME",
            "RIALTO_AUDIT",
            "RIALTO_LOG_FORMAT",
            "RIALTO_REQUEST_TIMEOUT",
            "RIALTO_MAX_MESSAGE_BYTES",
            "RIALTO_PROCESS",
            "RIALTO_MAX_SESSIONS",
            "RIALTO_ALLOWED_HOSTS",
            "RIALTO_ALLOWED_ORIGINS",
            "RIALTO_PUBLIC_URL",
            "RIALTO_TOKEN_HASH",
            "RIALTO_ALLOW_UNAUTHENTICATED",
            "RIALTO_ENV",
            "RIALTO_SESSION_IDLE",
            "RIALTO_DRAIN",
            "RIALTO_DRAIN_TIMEOUT",
            "RIALTO_TLS_CERT",
            "RIALTO_TLS_KEY",
            "RIALTO_WATCH",
            "RIALTO_AUDIT_ON_FAILURE",
            "RIALTO_AUDIT_CHAIN",
            "RIALTO_SECRETS_FILE",
            "RIALTO_AUDIT_BODIES",
            "RUST_LOG",
            "MAX_STDIO_CONNECTIONS",
            "AUDIT_LOG_BODIES",
            "STDIO_REQUEST_TIMEOUT",
        ] {
            assert!(serve.contains(variable), "{variable}");
        }
        let whole = parsed(&["--help"]).expect_err("help").to_string();
        assert!(!whole.contains("warden"), "the warden is nobody's business");
    }
}
