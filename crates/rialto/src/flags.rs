//! The command line: which command, with which flags, exactly as they were typed.
//!
//! Nothing is judged here but the shape. What a value means, and which of flag, variable and file wins, is
//! decided in `config`; that is why values are texts here and why the variables stand in the help only.

pub(crate) mod account;
mod examples;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use gateway::settings::Secret;

use self::account::{ClientFlags, LoginFlags, LogoutFlags, StatusFlags};
use crate::config::Environment;
use crate::demo::DemoEra;

/// What Rialto was asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(crate) enum Invocation {
    /// Put MCP servers on HTTP, each at /NAME/mcp
    #[command(after_help = examples::SERVE)]
    Serve(ServeFlags),
    /// Use a remote MCP server from a host that starts programs: stdio in front, HTTP behind
    #[command(after_help = examples::CONNECT)]
    Connect(ConnectFlags),
    /// Look over a configuration: find, start and probe every destination
    #[command(after_help = examples::CHECK)]
    Check(CheckFlags),
    /// Look over audit logs
    #[command(subcommand)]
    Audit(AuditCommand),
    /// The built-in demo server, over stdio
    #[command(after_help = examples::DEMO)]
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
    #[command(after_help = examples::TOKEN)]
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
    /// How long a call may take whose client takes JSON only, such as 30s or 5m, or off [env: RIALTO_REQUEST_TIMEOUT, STDIO_REQUEST_TIMEOUT] [default: 30s]
    #[arg(long, alias = "timeout", value_name = "DURATION")]
    pub(crate) request_timeout: Option<String>,
    /// How long the server may be silent in a call whose client reads events, or off [env: RIALTO_STREAM_TIMEOUT] [default: 10m]
    #[arg(long, value_name = "DURATION")]
    pub(crate) stream_timeout: Option<String>,
    /// The largest message, either way [env: RIALTO_MAX_MESSAGE_BYTES] [default: 16MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_message_bytes: Option<String>,
    /// Who shares a child of `-- COMMAND` [env: RIALTO_PROCESS] [default: shared]
    #[arg(long, value_name = "shared|per_session|per_identity")]
    pub(crate) process: Option<String>,
    /// How long the server of `-- COMMAND` may take to start [env: RIALTO_START_TIMEOUT] [default: 5m]
    #[arg(long, value_name = "DURATION")]
    pub(crate) start_timeout: Option<String>,
    /// Sessions at once per destination [env: RIALTO_MAX_SESSIONS, MAX_STDIO_CONNECTIONS] [default: 1000]
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
    /// A header for every request, `${VAR}` filled in from the environment; may be repeated [env: RIALTO_HEADERS, one per line; BEARER_TOKEN for a bearer token]
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
    #[command(flatten)]
    pub(crate) client: ClientFlags,
    /// How the server is reached: auto tries Streamable HTTP, then HTTP+SSE [env: RIALTO_TRANSPORT] [default: auto]
    #[arg(long, value_name = "auto|streamable-http|sse")]
    pub(crate) transport: Option<String>,
    /// Which era the server is spoken to in [env: RIALTO_CONNECT_ERA] [default: auto]
    #[arg(long, value_name = "auto|legacy|modern")]
    pub(crate) era: Option<String>,
    /// Certificates to trust beside the system's, in PEM [env: RIALTO_CA_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<String>,
    /// How long a call may take, such as 30s or 5m, or off [env: RIALTO_TIMEOUT, MCP_TIMEOUT_MS] [default: 60s]
    #[arg(long, alias = "request-timeout", value_name = "DURATION")]
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
    /// Where `serve` would listen [env: RIALTO_LISTEN] [default: 127.0.0.1:3000]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// The hash of a bearer token, as for `serve`; may be repeated [env: RIALTO_TOKEN_HASH, comma-separated]
    #[arg(long, value_name = "[NAME=]HASH")]
    pub(crate) token_hash: Vec<String>,
    /// Allow an address that others can reach without asking who they are, as for `serve` [env: RIALTO_ALLOW_UNAUTHENTICATED]
    #[arg(long)]
    pub(crate) allow_unauthenticated: bool,
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
            listen: self.listen.clone(),
            token_hash: self.token_hash.clone(),
            allow_unauthenticated: self.allow_unauthenticated,
            ..ServeFlags::default()
        }
    }
}

/// `rialto audit`.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(crate) enum AuditCommand {
    /// Verify the hash chain of audit files (written with audit.chain)
    #[command(after_help = examples::AUDIT)]
    Verify(VerifyFlags),
}

/// `rialto audit verify`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct VerifyFlags {
    /// The files in the order they were written, the oldest first
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The variable that has the key of the chain (audit.chain_key)
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) key_env: Option<String>,
    /// The file that has the key of the chain
    #[arg(long, value_name = "FILE", conflicts_with = "key_env")]
    pub(crate) key_file: Option<PathBuf>,
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
    after_help = examples::RIALTO,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct CommandLine {
    #[command(subcommand)]
    invocation: Invocation,
}

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
mod tests;
