//! The command line: which command, with which flags, exactly as they were typed.
//!
//! Nothing is judged here but the shape. What a value means, and which of flag, variable and file wins, is
//! decided in `config`; that is why values are texts here and why the variables stand in the help only.

pub(crate) mod account;
mod examples;
mod habits;
pub(crate) mod hosts;
pub(crate) mod looking;
pub(crate) mod service;
pub(crate) mod source;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use gateway::settings::Secret;

use self::account::{ClientFlags, LoginFlags, LogoutFlags, StatusFlags};
use self::hosts::{AdoptFlags, ConfigFlags, ImportFlags, InstallFlags, UninstallFlags};
use self::source::{SourceFlags, VerbosityFlags};
use crate::config::Environment;
use crate::demo::DemoEra;
use crate::hosts::table::Host;

/// What Rialto was asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
#[expect(
    clippy::large_enum_variant,
    reason = "a process has one value of it, for a moment"
)]
pub(crate) enum Invocation {
    /// Put MCP servers on HTTP, each at /NAME/mcp
    #[command(after_help = examples::SERVE)]
    Serve(ServeFlags),
    /// Use a remote MCP server from a host that starts programs: stdio to the host, HTTP to the server
    #[command(after_help = examples::CONNECT)]
    Connect(ConnectFlags),
    /// Check a configuration: find, start and probe every destination
    #[command(after_help = examples::CHECK)]
    Check(CheckFlags),
    /// Check audit logs
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Run the built-in demo server over stdio
    #[command(after_help = examples::DEMO)]
    DemoServer(DemoServerFlags),
    /// Sign in at a remote server and store the token for `serve` and `connect`
    #[command(after_help = account::LOGIN_EXAMPLES)]
    Login(LoginFlags),
    /// Delete the stored token of a remote server and revoke it
    #[command(after_help = account::LOGOUT_EXAMPLES)]
    Logout(LogoutFlags),
    /// List the servers where Rialto is signed in, and for how long
    #[command(after_help = account::STATUS_EXAMPLES)]
    Status(StatusFlags),
    /// Create a bearer token: the token for a client, its hash for the configuration
    #[command(after_help = examples::TOKEN)]
    Token(TokenFlags),
    /// Manage a fleet of replicas
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Print the servers of your hosts as a file of destinations
    #[command(after_help = hosts::IMPORT_EXAMPLES)]
    Import(ImportFlags),
    /// Serve the stdio servers of your hosts once for all of them, with undo
    #[command(after_help = hosts::ADOPT_EXAMPLES)]
    Adopt(AdoptFlags),
    /// Add a destination or a remote server to a host
    #[command(after_help = hosts::INSTALL_EXAMPLES)]
    Install(InstallFlags),
    /// Remove an entry from a host
    #[command(after_help = hosts::UNINSTALL_EXAMPLES)]
    Uninstall(UninstallFlags),
    /// Print what to paste into a host for the destinations of a gateway
    #[command(after_help = hosts::CONFIG_EXAMPLES)]
    Config(ConfigFlags),
    /// Show what runs now: gateways, destinations, instances, sessions
    #[command(after_help = examples::PS)]
    Ps(looking::PsFlags),
    /// Show what runs, live
    #[command(after_help = examples::TOP)]
    Top(looking::TopFlags),
    /// Show the messages between Rialto and a server, live, as JSON lines
    #[command(after_help = examples::TAP)]
    Tap(looking::TapFlags),
    /// Open the page of a gateway in the browser
    #[command(after_help = examples::UI)]
    Ui(looking::UiFlags),
    /// List the tools of a server
    #[command(after_help = examples::TOOLS)]
    Tools(looking::ToolsFlags),
    /// Call a tool of a server
    #[command(after_help = examples::CALL)]
    Call(looking::CallFlags),
    /// Use a server of the local service from a host that starts programs, instead of the server itself
    #[command(after_help = examples::ATTACH)]
    Attach(looking::AttachFlags),
    /// Keep `serve` running as a service of this user
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Find out why a server does not work from your host, and what helps
    #[command(after_help = examples::DOCTOR)]
    Doctor(DoctorFlags),
    /// Print the completions of a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsFlags),
    /// Print a page of the manual, or write all pages
    #[command(after_help = examples::MAN)]
    Man(ManFlags),
    /// Copies this program; typed as `rialto --copy-self PATH`.
    #[command(hide = true)]
    CopySelf(CopySelfFlags),
    /// Stays behind to end the children of a Rialto that was killed.
    #[command(hide = true)]
    Warden(WardenFlags),
}

/// `rialto serve`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct ServeFlags {
    /// Read the destinations from this file: YAML, or the mcpServers JSON of a desktop host [env: RIALTO_CONFIG] [default: destinations.yml]
    #[arg(long, value_name = "FILE", help_heading = "What to serve")]
    pub(crate) config: Option<String>,
    /// Serve the built-in demo server [env: RIALTO_DEMO]
    #[arg(long, help_heading = "What to serve")]
    pub(crate) demo: bool,
    /// Serve all destinations together too, as one endpoint at /NAME/mcp [env: RIALTO_AGGREGATE]
    #[arg(long, value_name = "NAME", help_heading = "What to serve")]
    pub(crate) aggregate: Option<String>,
    /// Start the other destinations when the command of one is not found [env: RIALTO_KEEP_GOING]
    #[arg(long, help_heading = "What to serve")]
    pub(crate) keep_going: bool,
    /// Reload the configuration when its file changes, as SIGHUP does [env: RIALTO_WATCH]
    #[arg(long, help_heading = "What to serve")]
    pub(crate) watch: bool,
    /// Keep in this directory what a restart must find again [env: RIALTO_STATE_DIR]
    #[arg(long, value_name = "DIR", help_heading = "What to serve")]
    pub(crate) state_dir: Option<String>,
    #[command(flatten)]
    pub(crate) source: SourceFlags,
    /// Name the one server of the command line [env: RIALTO_NAME] [default: from the command or URL]
    #[arg(long, value_name = "NAME", help_heading = SOURCE)]
    pub(crate) name: Option<String>,
    /// Set a variable for the commands, or pass on Rialto's own if there is no value; may be repeated [env: RIALTO_ENV, one per line]
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = secret, help_heading = SOURCE)]
    pub(crate) env: Vec<Secret>,
    /// Choose which sessions share a server process [env: RIALTO_PROCESS] [default: shared]
    #[arg(long, value_name = "shared|per_session|per_identity", help_heading = SOURCE)]
    pub(crate) process: Option<String>,
    /// Wait for this long until a server is ready [env: RIALTO_START_TIMEOUT] [default: 5m]
    #[arg(long, value_name = "DURATION", help_heading = SOURCE)]
    pub(crate) start_timeout: Option<String>,
    /// Answer old clients too: HTTP+SSE at /sse and /NAME/sse
    #[arg(long, help_heading = SOURCE)]
    pub(crate) legacy_sse: bool,
    /// Listen on this address; port 0 picks a free port, off listens nowhere [env: RIALTO_LISTEN] [default: 127.0.0.1:3000]
    #[arg(long, value_name = "ADDR", help_heading = "Network")]
    pub(crate) listen: Option<String>,
    /// Listen on this port of 127.0.0.1
    #[arg(
        short,
        long,
        value_name = "PORT",
        conflicts_with = "listen",
        help_heading = "Network"
    )]
    pub(crate) port: Option<String>,
    /// Let `rialto ps`, `attach` and other commands of this user reach the gateway [env: RIALTO_ADMIN_SOCKET] [default: on]
    #[arg(long, value_name = "on|off", help_heading = "Network")]
    pub(crate) admin_socket: Option<String>,
    /// Show what goes on to browsers of this machine, at /ui/ [env: RIALTO_UI] [default: on]
    #[arg(long, value_name = "on|off", help_heading = "Network")]
    pub(crate) ui: Option<String>,
    /// End when no client was connected for this long [env: RIALTO_IDLE_EXIT]
    #[arg(long, value_name = "DURATION", help_heading = "Network")]
    pub(crate) idle_exit: Option<String>,
    /// The address of the socket that systemd passed; it beats every `listen`.
    #[arg(skip)]
    pub(crate) socket: Option<SocketAddr>,
    /// Listen with TLS, with this certificate in PEM [env: RIALTO_TLS_CERT]
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    pub(crate) tls_cert: Option<String>,
    /// Use this private key, in PEM, for the certificate [env: RIALTO_TLS_KEY]
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    pub(crate) tls_key: Option<String>,
    /// Set the URL that clients use for this gateway behind a proxy [env: RIALTO_PUBLIC_URL] [default: the address listened on]
    #[arg(long, value_name = "URL", help_heading = "Network")]
    pub(crate) public_url: Option<String>,
    /// Serve with this many threads; auto uses one per core [env: RIALTO_THREADS] [default: 1]
    #[arg(long, value_name = "N|auto", help_heading = "Network")]
    pub(crate) threads: Option<String>,
    /// Accept the bearer token with this hash, from `rialto token`; may be repeated [env: RIALTO_TOKEN_HASH, comma-separated]
    #[arg(long, value_name = "[NAME=]HASH", help_heading = "Callers")]
    pub(crate) token_hash: Vec<String>,
    /// Accept this Host header, in addition to loopback names; may be repeated [env: RIALTO_ALLOWED_HOSTS, comma-separated]
    #[arg(long, value_name = "HOST", help_heading = "Callers")]
    pub(crate) allow_host: Vec<String>,
    /// Accept browser requests from this origin; may be repeated [env: RIALTO_ALLOWED_ORIGINS, comma-separated]
    #[arg(long, value_name = "ORIGIN", help_heading = "Callers")]
    pub(crate) allow_origin: Vec<String>,
    /// Allow an address that other machines can reach without authentication [env: RIALTO_ALLOW_UNAUTHENTICATED]
    #[arg(long, help_heading = "Callers")]
    pub(crate) allow_unauthenticated: bool,
    /// Fail a call of a JSON-only client when the server is silent for this long, such as 30s or 5m; off sets no limit [env: RIALTO_REQUEST_TIMEOUT, STDIO_REQUEST_TIMEOUT] [default: 30s]
    #[arg(long, alias = "timeout", value_name = "DURATION", help_heading = "Limits")]
    pub(crate) request_timeout: Option<String>,
    /// Fail a call of a client that reads events when the server is silent for this long; off sets no limit [env: RIALTO_STREAM_TIMEOUT] [default: 10m]
    #[arg(long, value_name = "DURATION", help_heading = "Limits")]
    pub(crate) stream_timeout: Option<String>,
    /// End a session that was idle for this long [env: RIALTO_SESSION_IDLE] [default: 1h]
    #[arg(long, value_name = "DURATION", help_heading = "Limits")]
    pub(crate) session_idle: Option<String>,
    /// Refuse messages larger than this, in both directions [env: RIALTO_MAX_MESSAGE_BYTES] [default: 16MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) max_message_bytes: Option<String>,
    /// Allow this many sessions at once per destination [env: RIALTO_MAX_SESSIONS, MAX_STDIO_CONNECTIONS] [default: 1000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(crate) max_sessions: Option<String>,
    /// Write audit records to a file or to stdout, or switch them off [env: RIALTO_AUDIT] [default: off]
    #[arg(long, value_name = "FILE|stdout|off", help_heading = "Logs")]
    pub(crate) audit: Option<String>,
    /// Set the format of log lines on stderr; RUST_LOG selects which lines [env: RIALTO_LOG_FORMAT] [default: human]
    #[arg(long, value_name = "human|json", help_heading = "Logs")]
    pub(crate) log_format: Option<String>,
    #[command(flatten)]
    pub(crate) verbosity: VerbosityFlags,
    /// What the command line of another bridge asked for and does not get.
    #[arg(skip)]
    pub(crate) notes: Vec<String>,
    /// Run this stdio server; `--` may be left out
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// The heading of the flags for servers that no file describes.
const SOURCE: &str = "Servers without a file";

/// `rialto connect`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ConnectFlags {
    /// The remote server's http or https URL [env: URI]
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Serve the destinations of this file as one server, instead of a remote one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "command", "header", "header_file", "bearer_env", "auth", "transport", "era", "ca_file", "retry"])]
    pub(crate) config: Option<String>,
    /// Serve this aggregate of the file, or all its destinations under this name [default: the file's only aggregate, or all destinations]
    #[arg(long, value_name = "NAME", requires = "config")]
    pub(crate) aggregate: Option<String>,
    /// Send this header with every request, with `${VAR}` from the environment; may be repeated [env: RIALTO_HEADERS, one per line; BEARER_TOKEN for a bearer token]
    #[arg(long, value_name = "NAME: VALUE", value_parser = secret, help_heading = "Server")]
    pub(crate) header: Vec<Secret>,
    /// Read such headers from a file, one per line, so that no process list shows them [env: RIALTO_HEADER_FILE]
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) header_file: Option<String>,
    /// Read the bearer token from this variable [env: RIALTO_BEARER_ENV] [default: BEARER_TOKEN]
    #[arg(long, value_name = "VARIABLE", help_heading = "Server")]
    pub(crate) bearer_env: Option<String>,
    /// Sign in with a browser when the server requires it [env: RIALTO_AUTH] [default: oauth, or none with an Authorization header]
    #[arg(long, value_name = "oauth|none", help_heading = "Signing in")]
    pub(crate) auth: Option<String>,
    #[command(flatten)]
    pub(crate) client: ClientFlags,
    /// Choose the transport to the server; auto tries Streamable HTTP, then HTTP+SSE [env: RIALTO_TRANSPORT] [default: auto]
    #[arg(long, value_name = "auto|streamable-http|sse", help_heading = "Server")]
    pub(crate) transport: Option<String>,
    /// Choose the era used towards the server; auto negotiates it [env: RIALTO_ERA] [default: auto]
    #[arg(long, value_name = "auto|legacy|modern", help_heading = "Server")]
    pub(crate) era: Option<String>,
    /// Trust these certificates, in PEM, in addition to the system's [env: RIALTO_CA_FILE]
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) ca_file: Option<String>,
    /// Fail a call after this time, such as 30s or 5m; off sets no limit [env: RIALTO_REQUEST_TIMEOUT, MCP_TIMEOUT_MS] [default: 60s]
    #[arg(long, alias = "timeout", value_name = "DURATION", help_heading = "Limits")]
    pub(crate) request_timeout: Option<String>,
    /// Stop reading stdin while this many requests wait for a response [env: RIALTO_MAX_QUEUE, MCP_MAX_QUEUE] [default: 10000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(crate) max_queue: Option<String>,
    /// Refuse messages larger than this, in both directions [env: RIALTO_MAX_MESSAGE_BYTES] [default: 16MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) max_message_bytes: Option<String>,
    /// Choose which calls are retried after a broken connection; safe retries only what does no harm twice [env: RIALTO_RETRY] [default: safe]
    #[arg(long, value_name = "safe|always", help_heading = "Limits")]
    pub(crate) retry: Option<String>,
    /// Name the server in logs and in --print-config [env: RIALTO_NAME, MCP_NAME] [default: from the address]
    #[arg(long, value_name = "NAME", help_heading = "Host")]
    pub(crate) name: Option<String>,
    /// Set the format of log lines on stderr; RUST_LOG selects which lines [env: RIALTO_LOG_FORMAT] [default: human]
    #[arg(long, value_name = "human|json", help_heading = "Logs")]
    pub(crate) log_format: Option<String>,
    #[command(flatten)]
    pub(crate) verbosity: VerbosityFlags,
    /// What the command line of another bridge asked for and does not get.
    #[arg(skip)]
    pub(crate) notes: Vec<String>,
    /// Print the entry for the file of a host, such as claude-desktop, cursor or vscode, and exit
    #[arg(long, value_name = "HOST", value_parser = hosts::host(), hide_possible_values = true, help_heading = "Host")]
    pub(crate) print_config: Option<&'static Host>,
    /// Run this stdio server instead of a remote one, for a host of another era
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "url")]
    pub(crate) command: Vec<String>,
}

/// `rialto check`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct CheckFlags {
    /// Read the destinations from this file: YAML, or the mcpServers JSON of a desktop host [env: RIALTO_CONFIG] [default: destinations.yml]
    #[arg(long, value_name = "FILE", help_heading = "What to check")]
    pub(crate) config: Option<String>,
    /// Check the built-in demo server [env: RIALTO_DEMO]
    #[arg(long, help_heading = "What to check")]
    pub(crate) demo: bool,
    #[command(flatten)]
    pub(crate) source: SourceFlags,
    /// Set a variable for the commands, or pass on Rialto's own if there is no value; may be repeated [env: RIALTO_ENV, one per line]
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = secret, help_heading = SOURCE)]
    pub(crate) env: Vec<Secret>,
    /// Wait for this long until a server is ready, as for `serve` [env: RIALTO_START_TIMEOUT] [default: 5m]
    #[arg(long, value_name = "DURATION", help_heading = SOURCE)]
    pub(crate) start_timeout: Option<String>,
    /// Check this listen address, as for `serve` [env: RIALTO_LISTEN] [default: 127.0.0.1:3000]
    #[arg(long, value_name = "ADDR", help_heading = "As for serve")]
    pub(crate) listen: Option<String>,
    /// Accept the bearer token with this hash, as for `serve`; may be repeated [env: RIALTO_TOKEN_HASH, comma-separated]
    #[arg(long, value_name = "[NAME=]HASH", help_heading = "As for serve")]
    pub(crate) token_hash: Vec<String>,
    /// Check this directory, as for `serve` [env: RIALTO_STATE_DIR]
    #[arg(long, value_name = "DIR", help_heading = "As for serve")]
    pub(crate) state_dir: Option<String>,
    /// Allow an address that other machines can reach without authentication, as for `serve` [env: RIALTO_ALLOW_UNAUTHENTICATED]
    #[arg(long, help_heading = "As for serve")]
    pub(crate) allow_unauthenticated: bool,
    /// Print one JSON object instead of a table
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) verbosity: VerbosityFlags,
    /// What the command line of another bridge asked for and does not get.
    #[arg(skip)]
    pub(crate) notes: Vec<String>,
    /// Check this stdio server; `--` may be left out
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

impl CheckFlags {
    /// The same configuration, as `serve` would read it.
    pub(crate) fn as_serve(&self) -> ServeFlags {
        ServeFlags {
            config: self.config.clone(),
            demo: self.demo,
            source: self.source.clone(),
            env: self.env.clone(),
            start_timeout: self.start_timeout.clone(),
            command: self.command.clone(),
            listen: self.listen.clone(),
            token_hash: self.token_hash.clone(),
            state_dir: self.state_dir.clone(),
            allow_unauthenticated: self.allow_unauthenticated,
            ..ServeFlags::default()
        }
    }
}

/// `rialto doctor`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct DoctorFlags {
    /// A destination or an entry of a host, a host such as cursor, or a URL; without one, everything
    #[arg(value_name = "NAME|HOST|URL")]
    pub(crate) subject: Option<String>,
    /// Look at the destinations of this file [env: RIALTO_CONFIG] [default: destinations.yml, then that of the user]
    #[arg(long, value_name = "FILE", help_heading = "What to look at")]
    pub(crate) config: Option<String>,
    /// Start no server
    #[arg(long, help_heading = "What to look at")]
    pub(crate) no_start: bool,
    /// Start and ask the servers of the files that hosts have in the working directory, too
    #[arg(long, help_heading = "What to look at")]
    pub(crate) project: bool,
    /// Send this header to the URL, or to `public_url`, with `${VAR}` from the environment; may be repeated
    #[arg(long, value_name = "NAME: VALUE", value_parser = secret, help_heading = "What to look at")]
    pub(crate) header: Vec<Secret>,
    /// Trust these certificates too, in PEM, for the URL and for `public_url`
    #[arg(long, value_name = "FILE", help_heading = "What to look at")]
    pub(crate) ca_file: Option<String>,
    /// Wait for this long until a server answers
    #[arg(long, value_name = "DURATION", default_value = "60s", help_heading = "Limits")]
    pub(crate) timeout: String,
    /// Hold an event stream for this long, to see whether a proxy cuts it; 0s holds none
    #[arg(long, value_name = "DURATION", default_value = "70s", help_heading = "Limits")]
    pub(crate) hold: String,
    /// Cure what can be cured safely: modes of files with secrets, the key of servers in a host's file
    #[arg(long, help_heading = "Output")]
    pub(crate) fix: bool,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
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
    /// The audit files, the oldest first
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Read the key of the chain (audit.chain_key) from this variable
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) key_env: Option<String>,
    /// Read the key of the chain from this file
    #[arg(long, value_name = "FILE", conflicts_with = "key_env")]
    pub(crate) key_file: Option<PathBuf>,
}

/// `rialto demo-server`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct DemoServerFlags {
    /// Choose the revisions of the protocol: legacy has initialize, modern is 2026-07-28
    #[arg(long, value_enum, default_value_t = DemoEra::Both)]
    pub(crate) era: DemoEra,
}

/// `rialto token`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct TokenFlags {
    /// Name the bearer of the token, in the audit log for instance
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) name: String,
}

/// `rialto cluster`.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Create a cluster key, the secret that all replicas share, and print it
    #[command(after_help = examples::CLUSTER_KEY)]
    Key(ClusterKeyFlags),
    /// Show the replicas of a fleet, their leases, and the engine that they share
    #[command(after_help = examples::CLUSTER_STATUS)]
    Status(ClusterStatusFlags),
}

/// `rialto cluster key`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct ClusterKeyFlags {}

/// `rialto cluster status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ClusterStatusFlags {
    /// Read `cluster` from this file [env: RIALTO_CONFIG] [default: destinations.yml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `rialto completions`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct CompletionsFlags {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// `rialto man`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct ManFlags {
    /// The command whose page is printed; without it, that of rialto itself
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    pub(crate) command: Vec<String>,
    /// Write all pages to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// `rialto --copy-self`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct CopySelfFlags {
    /// The file to write, or the directory to write it into
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
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
    version = env!("VERSION_AND_BUILD"),
    about = "Any MCP client, any MCP server: one native binary in between",
    after_help = examples::RIALTO,
    subcommand_required = true,
    max_term_width = 100,
    arg_required_else_help = true
)]
struct CommandLine {
    #[command(subcommand)]
    invocation: Invocation,
}

/// Returns the commands that people see, without those that only programs call: completions and
/// the manual are made from them.
pub(crate) fn shown() -> clap::Command {
    let whole = CommandLine::command();
    let shown: Vec<_> = whole
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .cloned()
        .collect();
    clap::Command::new("rialto")
        .version(env!("VERSION_AND_BUILD"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .after_help(examples::RIALTO)
        .subcommand_required(true)
        .subcommands(shown)
}

/// Why there is no invocation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    /// A wrong command line, or a request for help or the version.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
}

impl UsageError {
    /// Prints the message to stderr, or help to stdout. Returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let Self::CommandLine(error) = self;
        // If the stream is closed, no process reads it, and the error does not matter.
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
    let defined = CommandLine::command();
    let habits::Understood { args, notes } =
        habits::understand(args.into_iter().collect(), &defined, environment)
            .map_err(|answer| clap::Error::raw(ErrorKind::InvalidValue, format!("{answer}\n")))?;
    let mut parsed = CommandLine::try_parse_from(args)
        .map_err(habits::without_misleading_tips)?
        .invocation;
    if let Invocation::Serve(ServeFlags {
        command, notes: kept, ..
    })
    | Invocation::Check(CheckFlags {
        command, notes: kept, ..
    })
    | Invocation::Connect(ConnectFlags {
        command, notes: kept, ..
    }) = &mut parsed
    {
        *kept = notes;
        if command.first().is_some_and(|program| program.trim().is_empty()) {
            let message = "the command after -- is empty: write the program and its arguments\n";
            return Err(clap::Error::raw(ErrorKind::InvalidValue, message).into());
        }
    }
    Ok(parsed)
}

/// Flags may be shown when something is debugged, and `--env` holds keys.
fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text))
}

#[cfg(test)]
mod tests;
