//! What holds for all destinations: each setting from the first of flag, variable, file and default
//! that gives it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gateway::settings::{
    AuditSettings, AuditSink, AuthSettings, ClusterSettings, LimitSettings, OnAuditFailure, PublicUrl,
    Secret, TlsSettings,
};

use super::TraceSettings;
use super::auth;
use super::cluster;
use super::destination::{Defaults, MAX_MESSAGE_BYTES};
use super::environment::Environment;
use super::interpolate::{Secrets, read_text};
use super::limits;
use super::problem::Place;
use super::quantity;
use super::reader::{Fields, Given, Walk, one_of};
use super::tree::{self, Value};
use crate::flags::ServeFlags;

const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 3000);
/// What stands for the address where there is no listener.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// A call is about as much work as a wake-up across threads, so more threads are slower at low load.
const THREADS: NonZeroUsize = NonZeroUsize::MIN;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const STREAM_TIMEOUT: Duration = Duration::from_secs(10 * 60);
const SESSION_IDLE: Duration = Duration::from_secs(60 * 60);
const DRAIN: Duration = Duration::from_secs(10);

/// The variable that older set-ups have, in bare seconds.
const OLDER_TIMEOUT: &str = "STDIO_REQUEST_TIMEOUT";

/// The settings that are not about one destination.
#[derive(Debug)]
pub(super) struct Globals {
    pub(super) listen: SocketAddr,
    /// `listen: off`: only the admin socket serves.
    pub(super) has_listener: bool,
    pub(super) admin_socket: bool,
    /// How long no client may have been connected before `serve` ends.
    pub(super) idle_exit: Option<Duration>,
    pub(super) threads: NonZeroUsize,
    pub(super) tls: Option<TlsSettings>,
    pub(super) session_idle: Duration,
    pub(super) drain: Duration,
    pub(super) state_dir: Option<PathBuf>,
    pub(super) cluster: Option<ClusterSettings>,
    pub(super) allowed_hosts: Vec<String>,
    pub(super) allowed_origins: Vec<String>,
    pub(super) public_url: Option<PublicUrl>,
    pub(super) auth: AuthSettings,
    pub(super) limits: LimitSettings,
    pub(super) metrics: bool,
    pub(super) ui: bool,
    pub(super) traces: Option<TraceSettings>,
    pub(super) audit: AuditSettings,
    pub(super) keep_going: bool,
    /// Whether each call is a line of the log; by default where a terminal shows it.
    pub(super) access_log: Option<bool>,
    pub(super) defaults: Defaults,
}

/// Reads the global keys out of the top of a file (an empty map when there is no file).
pub(super) fn read(flags: &ServeFlags, environment: &Environment, fields: &mut Fields<'_, '_>) -> Globals {
    // First, since every other value may name a secret.
    secrets(environment, fields);
    let walk = fields.walk;
    let mut layers = Layers { environment, fields };

    // A port alone means this machine, like an address without a host.
    let port = flags.port.as_deref();
    let listen_flag = match port {
        Some(_) => ("--port", port),
        None => ("--listen", flags.listen.as_deref()),
    };
    let listen = layers.first(listen_flag, &["RIALTO_LISTEN"], "listen");
    let listen = match flags.socket {
        Some(socket) => Some(passed(socket, listen, walk)),
        None => listen,
    };
    let threads = layers.first(
        ("--threads", flags.threads.as_deref()),
        &["RIALTO_THREADS"],
        "threads",
    );
    let request_timeout = layers.first(
        ("--request-timeout", flags.request_timeout.as_deref()),
        &["RIALTO_REQUEST_TIMEOUT", OLDER_TIMEOUT],
        "request_timeout",
    );
    let stream_timeout = layers.first(
        ("--stream-timeout", flags.stream_timeout.as_deref()),
        &["RIALTO_STREAM_TIMEOUT"],
        "stream_timeout",
    );
    let max_message_bytes = layers.first(
        ("--max-message-bytes", flags.max_message_bytes.as_deref()),
        &["RIALTO_MAX_MESSAGE_BYTES"],
        "max_message_bytes",
    );
    let session_idle = layers.first(
        ("--session-idle", flags.session_idle.as_deref()),
        &["RIALTO_SESSION_IDLE"],
        "session_idle",
    );
    let drain = layers.first(
        ("", None),
        &["RIALTO_DRAIN_TIMEOUT", "RIALTO_DRAIN"],
        "drain_timeout",
    );
    let state_dir = layers
        .first(
            ("--state-dir", flags.state_dir.as_deref()),
            &["RIALTO_STATE_DIR"],
            "state_dir",
        )
        .and_then(|given| {
            let relative_to = beside(&given.place, walk);
            walk.parse(&given, |text| match text {
                "" => Err("write the path of a directory".to_owned()),
                path => Ok(relative_to.join(path)),
            })
        });
    let max_sessions = layers.flag_or_variable(
        ("--max-sessions", flags.max_sessions.as_deref()),
        &["RIALTO_MAX_SESSIONS"],
    );
    let max_stdio_sessions = layers.variable(&["MAX_STDIO_CONNECTIONS"]);
    let allowed_hosts = layers.all(
        ("--allow-host", &flags.allow_host),
        &["RIALTO_ALLOWED_HOSTS", "RIALTO_ALLOW_HOST"],
        "allowed_hosts",
    );
    let allowed_origins = layers.all(
        ("--allow-origin", &flags.allow_origin),
        &["RIALTO_ALLOWED_ORIGINS", "RIALTO_ALLOW_ORIGIN"],
        "allowed_origins",
    );
    let tls = tls(flags, &mut layers);
    let public_url = layers
        .first(
            ("--public-url", flags.public_url.as_deref()),
            &["RIALTO_PUBLIC_URL"],
            "public_url",
        )
        .and_then(|given| walk.parse(&given, PublicUrl::parse));
    let auth = auth::read(flags, &mut layers);
    let limits = limits::read(&mut layers);
    let metrics = layers.first(("", None), &["RIALTO_METRICS"], "metrics");
    let access_log = layers.first(("", None), &["RIALTO_ACCESS_LOG"], "access_log");
    let admin_socket = layers.first(
        ("--admin-socket", flags.admin_socket.as_deref()),
        &["RIALTO_ADMIN_SOCKET"],
        "admin_socket",
    );
    let admin_socket = admin_socket
        .and_then(|given| walk.parse(&given, quantity::truth))
        .unwrap_or(true);
    let ui = layers.first(("--ui", flags.ui.as_deref()), &["RIALTO_UI"], "ui");
    let ui = ui
        .and_then(|given| walk.parse(&given, quantity::truth))
        .unwrap_or(true);
    let idle_exit = layers
        .flag_or_variable(("--idle-exit", flags.idle_exit.as_deref()), &["RIALTO_IDLE_EXIT"])
        .and_then(|given| walk.parse(&given, quantity::some_time));
    let traces = traces(&mut layers);
    let audit = audit(flags, &mut layers);
    let is_said = |flag: bool, variable: &'static str| {
        flag || layers
            .variable(&[variable])
            .and_then(|given| walk.parse(&given, quantity::truth))
            .unwrap_or(false)
    };
    let keep_going = is_said(flags.keep_going, "RIALTO_KEEP_GOING");
    let allow_unauthenticated = is_said(flags.allow_unauthenticated, "RIALTO_ALLOW_UNAUTHENTICATED");
    let listen_place = match &listen {
        Some(given) => given.place.clone(),
        None => Place::Flag("--listen"),
    };
    let has_listener = listen
        .as_ref()
        .is_none_or(|given| !matches!(given.text.trim(), "off" | "false"));
    if !has_listener && !admin_socket {
        walk.fail(
            listen_place.clone(),
            "no client could reach Rialto: `listen: off` needs the admin socket",
        );
    }
    let listen = listen
        .filter(|_| has_listener)
        .and_then(|given| walk.parse(&given, quantity::listen))
        .unwrap_or(match has_listener {
            true => LISTEN,
            false => NOWHERE,
        });
    let cluster = cluster::read(&mut layers, listen);
    auth::check_listen(
        walk,
        listen,
        &auth,
        allow_unauthenticated,
        (public_url.as_ref(), !allowed_hosts.is_empty()),
        listen_place,
    );

    let judged = |given: Option<Given>, parse: fn(&str) -> Result<Duration, String>, default| {
        given
            .and_then(|given| walk.parse(&given, parse))
            .unwrap_or(default)
    };
    let timeout_form = match &request_timeout {
        Some(given) if given.place == Place::Variable(OLDER_TIMEOUT) => quantity::seconds_or_duration,
        Some(_) | None => quantity::time_or_off,
    };
    Globals {
        listen,
        has_listener,
        admin_socket,
        idle_exit,
        threads: threads
            .and_then(|given| walk.parse(&given, quantity::threads))
            .unwrap_or(THREADS),
        tls,
        session_idle: judged(session_idle, quantity::some_time, SESSION_IDLE),
        drain: judged(drain, quantity::duration, DRAIN),
        state_dir,
        cluster,
        allowed_hosts: allowed_hosts
            .iter()
            .filter_map(|given| walk.parse(given, quantity::host))
            .collect(),
        allowed_origins: allowed_origins
            .iter()
            .filter_map(|given| walk.parse(given, quantity::origin))
            .collect(),
        public_url,
        auth,
        limits,
        metrics: metrics
            .and_then(|given| walk.parse(&given, quantity::truth))
            .unwrap_or(true),
        ui,
        traces,
        audit,
        keep_going,
        access_log: access_log.and_then(|given| walk.parse(&given, quantity::truth)),
        defaults: Defaults {
            request_timeout: judged(request_timeout, timeout_form, REQUEST_TIMEOUT),
            stream_timeout: judged(stream_timeout, quantity::time_or_off, STREAM_TIMEOUT),
            max_message_bytes: max_message_bytes
                .and_then(|given| walk.parse(&given, quantity::size))
                .unwrap_or(MAX_MESSAGE_BYTES),
            max_sessions: max_sessions.and_then(|given| walk.parse(&given, quantity::count)),
            max_stdio_sessions: max_stdio_sessions.and_then(|given| walk.parse(&given, quantity::count)),
        },
    }
}

/// The order of precedence, in one place.
pub(super) struct Layers<'f, 'w, 'a> {
    environment: &'f Environment,
    pub(super) fields: &'f mut Fields<'w, 'a>,
}

type Flag<'v> = (&'static str, Option<&'v str>);

impl Layers<'_, '_, '_> {
    fn first(&mut self, flag: Flag<'_>, variables: &[&'static str], key: &'static str) -> Option<Given> {
        // Taken even if it is overruled: the key is known either way.
        let field = self.fields.given(key);
        self.flag_or_variable(flag, variables).or(field)
    }

    fn flag_or_variable(&self, (flag, value): Flag<'_>, variables: &[&'static str]) -> Option<Given> {
        value
            .map(|value| as_written(value, Place::Flag(flag)))
            .or_else(|| self.variable(variables))
    }

    /// Returns the first of these variables that is not empty.
    pub(super) fn variable(&self, variables: &[&'static str]) -> Option<Given> {
        variables.iter().find_map(|name| {
            self.environment
                .filled(name)
                .map(|value| as_written(value, Place::Variable(name)))
        })
    }

    pub(super) fn all(
        &mut self,
        (flag, values): (&'static str, &[String]),
        variables: &[&'static str],
        key: &'static str,
    ) -> Vec<Given> {
        let field = self.fields.list(key).unwrap_or_default();
        match self.all_given((flag, values), variables) {
            given if given.is_empty() => field,
            given => given,
        }
    }

    /// Several values of a flag that may be repeated, or of a variable with commas.
    pub(super) fn all_given(
        &self,
        (flag, values): (&'static str, &[String]),
        variables: &[&'static str],
    ) -> Vec<Given> {
        if !values.is_empty() {
            return values
                .iter()
                .map(|value| as_written(value, Place::Flag(flag)))
                .collect();
        }
        self.variable(variables).map_or_else(Vec::new, |given| {
            given
                .text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(|item| as_written(item, given.place.clone()))
                .collect()
        })
    }
}

/// Returns a value of the command line or environment: a shell has interpolated it already.
fn as_written(value: &str, place: Place) -> Given {
    Given {
        text: value.to_owned(),
        written: value.to_owned(),
        place,
    }
}

/// Returns the address of the socket that systemd passed, in the place of the configured one.
fn passed(socket: SocketAddr, configured: Option<Given>, walk: &Walk<'_>) -> Given {
    let address = socket.to_string();
    if let Some(configured) = configured.filter(|configured| configured.text != address) {
        walk.note(format!(
            "systemd passed a socket for {address}, so `listen` ({}) is ignored",
            configured.written
        ));
    }
    as_written(&address, Place::Socket)
}

/// `tls: { cert: FILE, key: FILE }`. The files themselves are read when they are used.
fn tls(flags: &ServeFlags, layers: &mut Layers<'_, '_, '_>) -> Option<TlsSettings> {
    const BOTH: &str = "a certificate and its key go together: write `tls: { cert: FILE, key: FILE }`";
    let walk = layers.fields.walk;
    let (mut cert, mut key) = (None, None);
    if let Some(node) = layers.fields.take("tls") {
        match node.value {
            Value::Map(entries) => {
                let mut inner = layers.fields.inner("tls.", node.line, entries);
                cert = inner.given("cert");
                key = inner.given("key");
                inner.finish();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                walk.fail(layers.fields.place(node.line, "tls"), BOTH);
            }
        }
    }
    let cert = layers
        .flag_or_variable(("--tls-cert", flags.tls_cert.as_deref()), &["RIALTO_TLS_CERT"])
        .or(cert);
    let key = layers
        .flag_or_variable(("--tls-key", flags.tls_key.as_deref()), &["RIALTO_TLS_KEY"])
        .or(key);
    let path = |given: &Given| {
        walk.parse(given, |text| match text {
            "" => Err("write the path of a file".to_owned()),
            path => Ok(beside(&given.place, walk).join(path)),
        })
    };
    match (cert, key) {
        (Some(cert), Some(key)) => {
            let settings = TlsSettings {
                cert: path(&cert)?,
                key: path(&key)?,
            };
            note_if_readable(walk, "key", &settings.key);
            Some(settings)
        }
        (Some(given), None) | (None, Some(given)) => {
            walk.fail(given.place, BOTH);
            None
        }
        (None, None) => None,
    }
}

/// Returns what a relative path starts from: a path in a file is meant from where the file is.
pub(super) fn beside(place: &Place, walk: &Walk<'_>) -> PathBuf {
    match place {
        Place::Field { .. } => walk.sources.base.clone(),
        Place::Flag(_) | Place::Variable(_) | Place::Socket | Place::File { .. } => PathBuf::new(),
    }
}

/// `audit: off`, `audit: stdout`, `audit: FILE`, or a map of `sink` and how to write to it.
fn audit(flags: &ServeFlags, layers: &mut Layers<'_, '_, '_>) -> AuditSettings {
    let walk = layers.fields.walk;
    let (mut sink, mut bodies) = (None, None);
    let (mut on_failure, mut chain, mut chain_key) = (None, None, None);
    if let Some(node) = layers.fields.take("audit") {
        match node.value {
            Value::Map(entries) => {
                let mut inner = layers.fields.inner("audit.", node.line, entries);
                sink = inner.given("sink");
                bodies = inner.given("bodies");
                on_failure = inner.given("on_failure");
                chain = inner.given("chain");
                chain_key = inner.given("chain_key");
                inner.finish();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                sink = layers.fields.scalar(node, "audit");
            }
        }
    }
    let sink = layers
        .flag_or_variable(("--audit", flags.audit.as_deref()), &["RIALTO_AUDIT"])
        .or(sink)
        .and_then(|given| {
            let relative_to = beside(&given.place, walk);
            walk.parse(&given, |text| match text {
                "off" | "false" => Ok(AuditSink::Off),
                "stdout" => Ok(AuditSink::Stdout),
                "" | "true" | "on" | "stderr" => Err("write stdout, the path of a file, or off".to_owned()),
                path => Ok(AuditSink::File(relative_to.join(path))),
            })
        })
        .unwrap_or(AuditSink::Off);
    let bodies = layers
        .variable(&["RIALTO_AUDIT_BODIES", "AUDIT_LOG_BODIES"])
        .or(bodies)
        .and_then(|given| walk.parse(&given, quantity::truth))
        .unwrap_or(false);
    if bodies && sink == AuditSink::Off {
        walk.note(
            "bodies are wanted in the audit log, but the audit log is off: turn it on with --audit FILE",
        );
    }
    let on_failure = layers
        .variable(&["RIALTO_AUDIT_ON_FAILURE"])
        .or(on_failure)
        .and_then(|given| {
            let words = [
                ("count", OnAuditFailure::Count),
                ("refuse", OnAuditFailure::Refuse),
            ];
            walk.parse(&given, |text| one_of(text, &words))
        })
        .unwrap_or(OnAuditFailure::Count);
    let chain = layers
        .variable(&["RIALTO_AUDIT_CHAIN"])
        .or(chain)
        .and_then(|given| walk.parse(&given, quantity::truth))
        .unwrap_or(false);
    let chain_key = layers
        .variable(&["RIALTO_AUDIT_CHAIN_KEY"])
        .or(chain_key)
        .and_then(|given| match crate::audit::chain_key(&given.text) {
            Ok(key) => Some(key),
            // A secret is never quoted, however short.
            Err(message) => {
                walk.fail(given.place, message);
                None
            }
        });
    AuditSettings {
        sink,
        bodies,
        on_failure,
        chain: chain || chain_key.is_some(),
        chain_key,
    }
}

/// `otlp: { endpoint: URL, sample: SHARE }`, or the endpoint alone.
fn traces(layers: &mut Layers<'_, '_, '_>) -> Option<TraceSettings> {
    let walk = layers.fields.walk;
    let (mut endpoint, mut sample) = (None, None);
    if let Some(node) = layers.fields.take("otlp") {
        match node.value {
            Value::Map(entries) => {
                let mut inner = layers.fields.inner("otlp.", node.line, entries);
                endpoint = inner.given("endpoint");
                sample = inner.given("sample");
                inner.finish();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                endpoint = layers.fields.scalar(node, "otlp");
            }
        }
    }
    let sample = layers
        .variable(&["RIALTO_OTLP_SAMPLE"])
        .or(sample)
        .and_then(|given| walk.parse(&given, quantity::share));
    let endpoint = layers
        .variable(&["RIALTO_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"])
        .or(endpoint)
        .and_then(|given| walk.parse(&given, quantity::web_address))?;
    Some(TraceSettings {
        endpoint,
        sample: sample.unwrap_or(1.0),
    })
}

/// Notes that tokens cross a network in the clear: by an address that others can reach, without TLS
/// here or in front.
pub(super) fn note_clear_tokens(walk: &Walk<'_>, globals: &Globals) {
    let takes_tokens = !globals.auth.tokens.is_empty() || globals.auth.jwt.is_some();
    let is_encrypted = globals.tls.is_some()
        || globals
            .public_url
            .as_ref()
            .is_some_and(|url| url.origin().starts_with("https:"));
    if takes_tokens && !is_encrypted && !globals.listen.ip().is_loopback() {
        walk.note(format!(
            "tokens come to {} over plain HTTP, where others can read them: set `tls`, or `public_url: https://…` if a proxy in front encrypts",
            globals.listen
        ));
    }
}

/// Notes that other users of this machine can read a file that only the operator should.
fn note_if_readable(walk: &Walk<'_>, what: &str, path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o044 != 0 {
            let path = path.display();
            walk.note(format!(
                "the {what} {path} can be read by other users of this machine: `chmod 600 {path}`"
            ));
        }
    }
    #[cfg(not(unix))]
    let _ = (walk, what, path);
}

/// Reads the secrets file, if one is named.
fn secrets(environment: &Environment, fields: &mut Fields<'_, '_>) {
    let walk = fields.walk;
    let mut layers = Layers { environment, fields };
    let Some(given) = layers.first(("", None), &["RIALTO_SECRETS_FILE"], "secrets_file") else {
        return;
    };
    let path = beside(&given.place, walk).join(&given.text);
    walk.depends_on(path.clone());
    note_if_readable(walk, "secrets file", &path);
    let secrets = match read_text(&path) {
        Ok(text) => secrets_of(&text, &given, fields),
        Err(message) => {
            walk.fail(
                given.place.clone(),
                format!("the secrets file `{}` {message}", given.written),
            );
            Secrets::Unreadable
        }
    };
    walk.sources
        .secrets
        .set(secrets)
        .expect("the secrets file is read once, before anything else");
}

/// Returns the secrets of a file. No message quotes the file, not even the parser's.
fn secrets_of(text: &str, given: &Given, fields: &Fields<'_, '_>) -> Secrets {
    const FORM: &str = "must be a map: write one `NAME: value` per line";
    let walk = fields.walk;
    let place = |line| Place::File {
        file: given.written.clone(),
        line,
    };
    let entries = match tree::load(text) {
        Ok(tree::Node {
            value: Value::Map(entries),
            ..
        }) => entries,
        Ok(tree::Node {
            value: Value::Null, ..
        }) => Vec::new(),
        Ok(node) => {
            walk.fail(place(node.line), format!("the secrets file {FORM}"));
            return Secrets::Unreadable;
        }
        Err(malformed) => {
            walk.fail(
                place(malformed.line),
                "the secrets file is not valid YAML: write one `NAME: value` per line",
            );
            return Secrets::Unreadable;
        }
    };
    let mut secrets = BTreeMap::new();
    for (name, node) in entries {
        match node.value {
            Value::Text(text) | Value::Number(text) => {
                secrets.insert(name, Secret::new(text));
            }
            Value::Bool(flag) => {
                secrets.insert(name, Secret::new(flag.to_string()));
            }
            Value::Null | Value::List(_) | Value::Map(_) => {
                walk.fail(
                    place(node.line),
                    format!("the secret `{name}` must be a single text"),
                );
                // Named, so that its use is not reported as well.
                secrets.insert(name, Secret::new(""));
            }
        }
    }
    Secrets::Read(secrets)
}
