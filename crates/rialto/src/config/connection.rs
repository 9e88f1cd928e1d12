//! The configuration of `rialto connect`: one server, or the destinations of a file as one, and how
//! much may wait in front of it.

mod file;
mod headers;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gateway::LineLimits;
use gateway::attachment::ATTACHED;
use gateway::settings::{
    AuditSettings, AuditSink, AuthSettings, BackendSpec, Destination, EraChoice, Inherits, LimitSettings,
    OnAuditFailure, Outages, RemoteSpec, Retry, Secret, Settings, Sharing, SharingRules, SignIn, Start,
    Transport,
};
use http::HeaderName;
use http::header::AUTHORIZATION;
use url::Url;

use super::destination::{self, Defaults, MAX_MESSAGE_BYTES};
use super::environment::Environment;
use super::problem::{ConfigError, Place};
use super::reader::{Given, Walk, one_of};
use super::single::given;
use super::{name, quantity, remote, walk};
use crate::flags::{ConnectFlags, ServeFlags};

const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_QUEUE: usize = 10_000;
/// Longer than any program runs.
const NO_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// Beyond what any gateway lets through.
const LARGEST_MESSAGE: usize = 1 << 30;
/// How many bytes of a client's messages may wait, and of messages to it. Each message that waits
/// is held about twice: as it came, and as it goes out.
const QUEUE_BYTES: usize = 12 << 20;
/// A session, another one after a change of eras, and instances for a modern client whose requests
/// differ in what it can do.
const MAX_SESSIONS: usize = 8;

const ERAS: [(&str, EraChoice); 3] = [
    ("auto", EraChoice::Auto),
    ("legacy", EraChoice::Legacy),
    ("modern", EraChoice::Modern),
];

const TRANSPORTS: [(&str, Transport); 3] = [
    ("auto", Transport::Auto),
    ("streamable-http", Transport::StreamableHttp),
    ("sse", Transport::Sse),
];

/// Returns Rialto's word for a transport that files or other bridges call differently.
fn transport(text: &str) -> Result<Transport, String> {
    let own = match text {
        "streamable_http" | "streamablehttp" | "streamableHttp" | "http" | "http-only" => "streamable-http",
        "sse-only" => "sse",
        // The order makes no difference to a server that has one of them.
        "http-first" | "sse-first" => "auto",
        other => other,
    };
    one_of(own, &TRANSPORTS)
}

/// Whether to sign in.
const AUTHS: [(&str, bool); 2] = [("oauth", true), ("none", false)];

const RETRIES: [(&str, Retry); 2] = [("safe", Retry::Safe), ("always", Retry::Always)];

/// One server and one client.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(crate) settings: Settings,
    pub(crate) limits: LineLimits,
    /// What the server is called.
    pub(crate) name: String,
    /// What the user should know.
    pub(crate) notes: Vec<String>,
}

/// Reads the flags and the environment.
pub(crate) fn read(flags: &ConnectFlags, environment: &Environment) -> Result<Connection, ConfigError> {
    if let Some(path) = &flags.config {
        return file::read(path, flags, environment);
    }
    let walk = walk("", std::path::PathBuf::new(), environment);
    let connection = assemble(flags, environment, &walk);
    let (problems, notes) = walk.into_findings();
    match connection {
        Some(connection) if problems.is_empty() => Ok(Connection { notes, ..connection }),
        Some(_) | None => Err(ConfigError::Problems(problems)),
    }
}

/// Returns a connection to a destination of a gateway of this machine, through its admin socket.
/// `handed_over` is what `rialto attach` sends along.
pub(crate) fn through_gateway(name: &str, socket: &Path, handed_over: Option<Secret>) -> Connection {
    // The gateway knows the limits of the server.
    let defaults = Defaults {
        request_timeout: NO_TIMEOUT,
        stream_timeout: NO_TIMEOUT,
        max_message_bytes: LARGEST_MESSAGE,
        max_sessions: Some(MAX_SESSIONS),
        max_stdio_sessions: None,
    };
    let url = format!("http://localhost/{name}/mcp");
    let spec = RemoteSpec {
        url: url
            .parse()
            .expect("the name of a destination is a segment of a URL"),
        transport: Transport::StreamableHttp,
        headers: handed_over.into_iter().map(|value| (ATTACHED, value)).collect(),
        forward_headers: Vec::new(),
        ca_file: None,
        retry: Retry::Safe,
        outages: Outages::Wait,
        sign_in: SignIn::No,
        socket: Some(socket.to_owned()),
    };
    let spec = BackendSpec::Remote(spec);
    let destination = destination::in_front_of(spec, name.to_owned(), Sharing::PerSession, &defaults);
    let instances = SharingRules {
        start_timeout: TIMEOUT,
        ..destination.instances
    };
    in_front_of_one(Destination {
        instances,
        ..destination
    })
}

/// Returns a connection to a destination that this process runs itself, for its one client.
pub(crate) fn directly(destination: Destination) -> Connection {
    let mut destination = destination;
    if let BackendSpec::Process(spec) = &mut destination.backend {
        // No client is in front before the first message.
        spec.start = Start::Lazy;
    }
    in_front_of_one(destination)
}

fn in_front_of_one(destination: Destination) -> Connection {
    Connection {
        name: destination.name.clone(),
        limits: LineLimits {
            messages: MAX_QUEUE,
            bytes: QUEUE_BYTES,
        },
        settings: alone(Destination {
            max_calls: Some(MAX_QUEUE),
            ..destination
        }),
        notes: Vec::new(),
    }
}

fn assemble(flags: &ConnectFlags, environment: &Environment, walk: &Walk<'_>) -> Option<Connection> {
    let timeout = timeout(flags, environment, walk).unwrap_or(TIMEOUT);
    let defaults = Defaults {
        request_timeout: timeout,
        stream_timeout: timeout,
        max_message_bytes: number(
            ("--max-message-bytes", flags.max_message_bytes.as_deref()),
            &["RIALTO_MAX_MESSAGE_BYTES"],
            environment,
            walk,
            quantity::size,
        )
        .unwrap_or(MAX_MESSAGE_BYTES),
        max_sessions: Some(MAX_SESSIONS),
        max_stdio_sessions: None,
    };
    let max_queue = max_queue(flags, environment, walk);
    let era = given(("--era", flags.era.as_deref()), "RIALTO_ERA", environment)
        .and_then(|given| walk.parse(&given, |text| one_of(text, &ERAS)));
    let name = given(("--name", flags.name.as_deref()), "RIALTO_NAME", environment)
        .or_else(|| given(("--name", None), "MCP_NAME", environment))
        .map(|given| given.text);
    let destination = server(flags, environment, walk, &defaults)?;
    let destination = Destination {
        name: name.unwrap_or_else(|| destination.name.clone()),
        // A call waits for a server that is away as long as for one that is slow.
        instances: SharingRules {
            start_timeout: timeout,
            ..destination.instances
        },
        era: era.unwrap_or(EraChoice::Auto),
        max_calls: Some(max_queue),
        ..destination
    };
    Some(Connection {
        name: destination.name.clone(),
        limits: line_limits(max_queue),
        settings: alone(destination),
        notes: Vec::new(),
    })
}

/// Returns how many messages of the client may wait.
fn max_queue(flags: &ConnectFlags, environment: &Environment, walk: &Walk<'_>) -> usize {
    number(
        ("--max-queue", flags.max_queue.as_deref()),
        &["RIALTO_MAX_QUEUE", "MCP_MAX_QUEUE"],
        environment,
        walk,
        quantity::count,
    )
    .unwrap_or(MAX_QUEUE)
}

fn line_limits(messages: usize) -> LineLimits {
    LineLimits {
        messages,
        bytes: QUEUE_BYTES,
    }
}

/// Returns what stands behind.
fn server(
    flags: &ConnectFlags,
    environment: &Environment,
    walk: &Walk<'_>,
    defaults: &Defaults,
) -> Option<Destination> {
    if !flags.command.is_empty() {
        let name = name::of_command(&flags.command);
        return Some(destination::plain(
            name,
            flags.command.clone(),
            BTreeMap::new(),
            Inherits::Everything,
            Sharing::PerSession,
            defaults,
        ));
    }
    let url = address(flags, environment, walk)?;
    let transport = given(
        ("--transport", flags.transport.as_deref()),
        "RIALTO_TRANSPORT",
        environment,
    )
    .and_then(|given| walk.parse(&given, transport));
    let retry = given(("--retry", flags.retry.as_deref()), "RIALTO_RETRY", environment)
        .and_then(|given| walk.parse(&given, |text| one_of(text, &RETRIES)));
    let ca_file = given(
        ("--ca-file", flags.ca_file.as_deref()),
        "RIALTO_CA_FILE",
        environment,
    );
    let ca_file = ca_file.map(|given| PathBuf::from(given.text));
    let headers = headers::read(flags, environment, &url, walk);
    let sign_in = sign_in(flags, environment, &url, ca_file.as_ref(), &headers, walk);
    let name = name_of(&url);
    let spec = RemoteSpec {
        url,
        transport: transport.unwrap_or(Transport::Auto),
        headers,
        forward_headers: Vec::new(),
        ca_file,
        retry: retry.unwrap_or(Retry::Safe),
        outages: Outages::Wait,
        sign_in,
        socket: None,
    };
    let sharing = Sharing::PerSession;
    Some(destination::in_front_of(
        BackendSpec::Remote(spec),
        name,
        sharing,
        defaults,
    ))
}

/// Returns a remote server of the command line of `serve`. A gateway has no user in front, so only
/// flags give it credentials.
pub(super) fn behind_gateway(
    url: &str,
    flags: &ServeFlags,
    environment: &Environment,
    walk: &Walk<'_>,
    defaults: &Defaults,
) -> Option<Destination> {
    let url = walk.parse(
        &without_password(url.to_owned(), Place::Flag("URL")),
        remote::address,
    )?;
    let flags = &flags.source;
    let chosen = given(
        ("--transport", flags.transport.as_deref()),
        "RIALTO_TRANSPORT",
        environment,
    )
    .and_then(|given| walk.parse(&given, transport));
    let ca_file = given(
        ("--ca-file", flags.ca_file.as_deref()),
        "RIALTO_CA_FILE",
        environment,
    )
    .map(|given| PathBuf::from(given.text));
    let auth = given(("--auth", flags.auth.as_deref()), "RIALTO_AUTH", environment);
    let sign_in = match auth.and_then(|given| walk.parse(&given, |text| one_of(text, &AUTHS))) {
        Some(true) => remote::signed_in(&url, ca_file.as_ref(), environment).unwrap_or_else(|message| {
            walk.fail(Place::Flag("--auth"), message);
            SignIn::No
        }),
        Some(false) | None => SignIn::No,
    };
    let name = name_of(&url);
    let spec = RemoteSpec {
        headers: headers::of_flags(&flags.header, &url, walk),
        url,
        transport: chosen.unwrap_or(Transport::Auto),
        forward_headers: Vec::new(),
        ca_file,
        retry: Retry::Safe,
        outages: Outages::Refuse,
        sign_in,
        socket: None,
    };
    Some(destination::in_front_of(
        BackendSpec::Remote(spec),
        name,
        Sharing::PerSession,
        defaults,
    ))
}

/// Without credentials the user of the host signs in when the server asks for that.
fn sign_in(
    flags: &ConnectFlags,
    environment: &Environment,
    url: &Url,
    ca_file: Option<&PathBuf>,
    headers: &[(HeaderName, Secret)],
    walk: &Walk<'_>,
) -> SignIn {
    let said = given(("--auth", flags.auth.as_deref()), "RIALTO_AUTH", environment);
    let said = said.and_then(|given| walk.parse(&given, |text| one_of(text, &AUTHS)));
    let authorized = headers.iter().any(|(name, _)| *name == AUTHORIZATION);
    let told = crate::sign_in::is_told(&flags.client, environment);
    if !said.unwrap_or(told || !authorized) {
        return SignIn::No;
    }
    let settings = crate::sign_in::settings(url.clone(), environment).and_then(|mut settings| {
        crate::sign_in::apply(&flags.client, &mut settings, environment)?;
        Ok(settings)
    });
    match settings {
        Ok(mut settings) => {
            settings.http.ca_file = ca_file.cloned();
            settings.asleep = true;
            SignIn::OAuth(oauth::SignIn::new(settings))
        }
        Err(message) if told || said == Some(true) => {
            walk.fail(Place::Flag("--auth"), message);
            SignIn::No
        }
        // The user has not configured it, and the server may not ask for it.
        Err(message) => {
            walk.note(format!("signing in will not be possible: {message}"));
            SignIn::No
        }
    }
}

/// Returns where the server is.
fn address(flags: &ConnectFlags, environment: &Environment, walk: &Walk<'_>) -> Option<Url> {
    let Some(given) = given(("URL", flags.url.as_deref()), "URI", environment) else {
        walk.fail(
            Place::Flag("connect"),
            "there is no server to connect to: write rialto connect https://host/mcp, or set the variable URI",
        );
        return None;
    };
    walk.parse(&without_password(given.text, given.place), remote::address)
}

/// Returns an address as it may be shown: before an `@` it may hold a password.
fn without_password(text: String, place: Place) -> Given {
    let text = text.trim().to_owned();
    let written = match text.contains('@') {
        true => "https://…@…".to_owned(),
        false => text.clone(),
    };
    Given { text, written, place }
}

/// Returns a name for the server at an address, or why it is none.
pub(crate) fn name_of_address(text: &str) -> Result<String, String> {
    remote::address(text).map(|url| name_of(&url))
}

/// `linear` of `https://mcp.linear.app/mcp`, and `files` of `http://127.0.0.1:3000/files/mcp`.
fn name_of(url: &Url) -> String {
    let of_host = match url.host() {
        Some(url::Host::Domain(host)) => host
            .split('.')
            .find(|label| !matches!(*label, "mcp" | "api" | "www" | "localhost")),
        Some(url::Host::Ipv4(_) | url::Host::Ipv6(_)) | None => None,
    };
    let of_path = || {
        let mut segments = url.path().split('/');
        segments.find(|segment| !matches!(*segment, "" | "mcp" | "sse" | "v1"))
    };
    of_host
        .or_else(of_path)
        .and_then(name::sanitised)
        .unwrap_or_else(|| "remote".to_owned())
}

/// Settings for a gateway with one destination and no listener.
fn alone(destination: Destination) -> Settings {
    Settings {
        tls: None,
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        has_listener: false,
        threads: NonZeroUsize::MIN,
        request_timeout: destination.request_timeout,
        stream_timeout: destination.stream_timeout,
        max_message_bytes: destination.max_message_bytes,
        // The session lives for as long as the program does.
        session_idle: Duration::MAX,
        drain: Duration::ZERO,
        // There is one process, and no session outlives it.
        state_dir: None,
        offers_dir: None,
        cluster: None,
        allowed_hosts: Vec::new(),
        allowed_origins: Vec::new(),
        limits: LimitSettings::default(),
        metrics: false,
        ui: false,
        audit: AuditSettings {
            sink: AuditSink::Off,
            bodies: false,
            on_failure: OnAuditFailure::Count,
            chain: false,
            chain_key: None,
        },
        root_destination: None,
        keep_going: false,
        public_url: None,
        // There is one client, and it has started us.
        auth: AuthSettings::default(),
        destinations: vec![destination],
    }
}

/// `MCP_TIMEOUT_MS` is in milliseconds, and bare.
fn timeout(flags: &ConnectFlags, environment: &Environment, walk: &Walk<'_>) -> Option<Duration> {
    if let Some(given) = given(
        ("--request-timeout", flags.request_timeout.as_deref()),
        "RIALTO_REQUEST_TIMEOUT",
        environment,
    ) {
        return walk.parse(&given, quantity::time_or_off);
    }
    let text = environment.filled("MCP_TIMEOUT_MS")?;
    match quantity::count(text.trim()) {
        Ok(milliseconds) => Some(Duration::from_millis(milliseconds as u64)),
        Err(message) => {
            let message = format!("`{text}` is wrong: {message}");
            walk.fail(Place::Variable("MCP_TIMEOUT_MS"), message);
            None
        }
    }
}

/// Returns a value from a flag or the first variable that has one.
fn number(
    flag: (&'static str, Option<&str>),
    variables: &[&'static str],
    environment: &Environment,
    walk: &Walk<'_>,
    parse: impl Fn(&str) -> Result<usize, String>,
) -> Option<usize> {
    let found: Option<Given> = variables
        .iter()
        .find_map(|variable| given(flag, variable, environment));
    walk.parse(&found?, parse)
}

#[cfg(test)]
mod tests;
