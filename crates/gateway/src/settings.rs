//! Configuration "as used": complete, checked, with every default filled in.
//!
//! `crates/rialto` reads flags, environment and files and produces these values; no other
//! code meets a configuration that could be invalid.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use url::Url;

mod auth;
mod cluster;
mod limits;

pub use auth::{
    AuthSettings, IssuerUrl, JwtSettings, KeysUrl, Network, OpenPath, ProxySettings, PublicUrl, Scope,
    ScopedUse, SignatureAlgorithm, StaticToken, TokenHash, TokenName,
};
pub use cluster::{ClusterSettings, Placement};
pub use limits::LimitSettings;
pub use protocol::aggregate::{
    AggregateLimits, Annotations, MemberSpec, Plan, PlanError, PlanSpec, ToolRules, ToolsMode, WhenDown,
};
pub use protocol::negotiation::EraChoice;
pub use protocol::placement::{DeclaredCapabilities as Capabilities, Sharing};
pub use protocol::tool_policy::{Glob, ToolPolicy};

/// A text that must never be shown: it prints as `[redacted]`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Everything `rialto serve` needs to know.
#[derive(Debug, Clone)]
pub struct Settings {
    pub listen: SocketAddr,
    /// Without a listener only the admin socket serves.
    pub has_listener: bool,
    /// The threads that serve. The program starts them; the gateway only names a change at a
    /// reload.
    pub threads: NonZeroUsize,
    /// Plain HTTP without it.
    pub tls: Option<TlsSettings>,
    /// Silence after which the call of a client that takes JSON only gets 504. Progress resets it,
    /// up to ten times the value.
    pub request_timeout: Duration,
    /// The same for a client that reads events.
    pub stream_timeout: Duration,
    /// The largest request body that is read; the largest of the destinations' own limits.
    pub max_message_bytes: usize,
    /// How long a session may be idle before it ends.
    pub session_idle: Duration,
    /// How long calls in flight may take to finish after SIGTERM.
    pub drain: Duration,
    /// Holds what a restart must find again. Without it nothing is written.
    pub state_dir: Option<PathBuf>,
    /// Where the catalogues of aggregates are kept. Several processes may share it.
    pub offers_dir: Option<PathBuf>,
    /// The fleet that this replica belongs to.
    pub cluster: Option<ClusterSettings>,
    /// Host names (without port) that requests may name besides loopback ones and the listen
    /// address.
    pub allowed_hosts: Vec<String>,
    /// Origins (`https://app.example.com`) that browsers may call from, besides loopback ones.
    pub allowed_origins: Vec<String>,
    /// What clients call this gateway; by default the address listened on.
    pub public_url: Option<PublicUrl>,
    pub auth: AuthSettings,
    pub limits: LimitSettings,
    /// Whether `/metrics` answers.
    pub metrics: bool,
    /// Whether there is a page at `/ui/`, where there may be one.
    pub ui: bool,
    pub audit: AuditSettings,
    pub destinations: Vec<Destination>,
    /// The destination that also answers at the bare `/mcp` (the one of `rialto serve -- COMMAND`).
    pub root_destination: Option<String>,
    /// A destination whose command cannot be found does not stop the others from starting.
    pub keep_going: bool,
}

/// The files of the certificate, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// The certificate and those that lead to its issuer.
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Where audit records go and what they carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSettings {
    pub sink: AuditSink,
    /// `AUDIT_LOG_BODIES`: request and response bodies, redacted and cut.
    pub bodies: bool,
    pub on_failure: OnAuditFailure,
    /// Every record carries a number and a hash over all records before it.
    pub chain: bool,
    /// The hash is an HMAC with this key.
    pub chain_key: Option<Secret>,
}

/// What becomes of calls whose records cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnAuditFailure {
    /// They go on; lost records are counted.
    Count,
    /// New ones are refused until records can be written again.
    Refuse,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditSink {
    Off,
    Stdout,
    File(PathBuf),
}

/// One named server behind Rialto.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// A URL segment: `[a-z0-9][a-z0-9._-]{0,62}`.
    pub name: String,
    pub backend: BackendSpec,
    pub instances: SharingRules,
    pub request_timeout: Duration,
    pub stream_timeout: Duration,
    pub max_message_bytes: usize,
    /// Sessions at once; the next one gets 503.
    pub max_sessions: usize,
    /// Calls of one client at once, waiting or in flight; by default enough for any client.
    pub max_calls: Option<usize>,
    /// Which era is used towards a server.
    pub era: EraChoice,
    pub show: Show,
    /// The roots that a legacy server receives when it asks and no client can be asked.
    pub roots: Vec<String>,
    /// Clients of the old transport (HTTP with SSE) are served at `/{name}/sse` and
    /// `/{name}/message`.
    pub legacy_sse: bool,
    /// Where in a fleet its instances run.
    pub placement: Placement,
    /// Which of its tools clients may see and call.
    pub tools: ToolPolicy,
}

/// Which eras a destination shows to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// Both: what the server lacks is translated.
    Both,
    /// Only what the server itself speaks, so that clients of both eras fall back to it.
    Native,
}

/// How the clients of a destination share its links: children, or sessions at a remote server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharingRules {
    pub sharing: Sharing,
    pub capabilities: Capabilities,
    /// How long a server may take to answer the handshake (a first `npx` run downloads).
    pub start_timeout: Duration,
    /// Instances at once: children, or sessions at a remote server.
    pub max_children: usize,
    /// How long an instance stays after its last session, unless the start is eager.
    pub linger: Duration,
    /// Whether the projects of one user share instances (`rialto attach`).
    pub projects: Projects,
}

/// Whether clients that come through `rialto attach` from several projects share an instance. With
/// other variables they never do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projects {
    /// Each directory has its own.
    Apart,
    /// They share, as clients over HTTP do.
    Together,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendSpec {
    Process(ProcessSpec),
    Remote(RemoteSpec),
    /// No server of its own: those of other destinations.
    Aggregate(AggregateSpec),
}

/// Several destinations behind one endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregateSpec {
    /// Its members are other destinations of the same settings.
    pub plan: Arc<Plan>,
}

/// A stdio server: what to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSpec {
    /// Program and arguments; never run through a shell.
    pub argv: Vec<String>,
    /// Added to what is inherited.
    pub env: BTreeMap<String, Secret>,
    pub inherits: Inherits,
    /// Its stderr is shown in errors to every caller, also where several callers share it.
    pub error_stderr: bool,
    pub cwd: Option<PathBuf>,
    /// Environment variable ← name of the HTTP header that the session was opened with.
    pub env_from_headers: BTreeMap<String, String>,
    pub start: Start,
    /// How long no call may have used the child before it is ended, until the next call. It runs on
    /// without.
    pub idle_stop: Option<Duration>,
}

/// Which of Rialto's own variables a child gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inherits {
    /// A short list: Rialto's environment may hold keys of the gateway and of other servers.
    AllowList,
    /// All but those that configure Rialto: the command was given in the shell that the variables
    /// are from.
    Everything,
}

/// A server that is reached over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteSpec {
    pub url: Url,
    pub transport: Transport,
    /// Sent with every request.
    pub headers: Vec<(HeaderName, Secret)>,
    /// What clients send that is passed on. Nothing else of theirs is.
    pub forward_headers: Vec<HeaderName>,
    /// Trusted beside the system's own certificates.
    pub ca_file: Option<PathBuf>,
    pub retry: Retry,
    pub outages: Outages,
    pub sign_in: SignIn,
    /// The admin socket through which the server is reached, instead of the host of the URL.
    pub socket: Option<PathBuf>,
}

/// Which of the two HTTP transports a remote server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Streamable HTTP is tried, then HTTP+SSE.
    Auto,
    StreamableHttp,
    /// HTTP+SSE of 2024-11-05.
    Sse,
}

/// What is sent again after it may have been carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Only what does no harm if it is done twice.
    Safe,
    /// Everything.
    Always,
}

/// What becomes of calls while the server cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outages {
    /// They are refused at once. The caller receives when to try again.
    Refuse,
    /// They wait, as long as calls may wait for a server to get ready.
    Wait,
}

/// How Rialto makes itself known to a remote server, beside the configured headers.
#[derive(Debug, Clone)]
pub enum SignIn {
    No,
    /// By OAuth. The sign-in decides which user is asked, if any.
    OAuth(oauth::SignIn),
}

/// What is signed in at is the address, which is compared beside it; the rest is the same for a
/// whole process.
impl PartialEq for SignIn {
    fn eq(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl Eq for SignIn {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Eager,
    Lazy,
}
