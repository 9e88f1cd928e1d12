//! `rialto serve`: settings in, a gateway out, until a signal ends it.
//!
//! The thread of this command serves. With `threads` above one, others serve beside it, each with a
//! runtime of its own ([`Threads`]). The alternative is one runtime whose threads take tasks from
//! each other. It costs a fifth more processor time per call, since a call then moves between
//! threads at any step. `docs/performance.md` has the figures.

mod reload;
mod shown;
mod systemd;

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use gateway::backend::process::{Launcher, WardenCommand};
use gateway::line_sink::LineSink;
use gateway::settings::{BackendSpec, Destination, Settings, Start};
use gateway::trace::SpanSink;
use gateway::{About, Gateway, Listening, StartError, Threads, platform};
use tokio::net::{TcpSocket, UnixListener};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::admin_socket::{Bound, Directory};
use crate::config::{self, ConfigError, Environment, Loaded, LogFormat};
use crate::flags::ServeFlags;
use crate::hosts::overview::{Judge, OwnHosts};
use crate::terminal::Terminal;
use crate::{exit, fail, traces};
use reload::{Reloader, Watch};
use systemd::Notifier;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;
/// How long an immediate end may take to write its last lines.
const LAST_LINES: Duration = Duration::from_millis(300);

/// Serves until a signal ends it. `judge` finds what the page shows about the files of hosts.
pub(crate) fn run(flags: &ServeFlags, environment: &Environment, judge: Judge) -> ExitCode {
    let (passed, address) = match passed_socket(environment) {
        Ok(passed) => passed.unzip(),
        Err(error) => return fail(exit::CANNOT_LISTEN, &error.to_string()),
    };
    let flags = &ServeFlags {
        socket: address,
        ..flags.clone()
    };
    let logs = match config::log_settings(flags.log_format.as_deref(), flags.verbosity, environment) {
        Ok(logs) => logs,
        Err(error) => return fail(ConfigError::EXIT_CODE, &error.to_string()),
    };
    let Loaded {
        settings,
        traces,
        notes,
        access_log,
        admin_socket,
        idle_exit,
        files,
    } = match config::settings(flags, environment) {
        Ok(loaded) => loaded,
        Err(error) => return fail(ConfigError::EXIT_CODE, &error.to_string()),
    };
    let (telemetry, terminal) = match shown::start(logs.clone(), flags.verbosity, access_log, environment) {
        Ok(started) => started,
        Err(error) => return fail(exit::CONFIGURATION, &format!("{error:#}")),
    };
    close_to_children();
    for note in flags.notes.iter().chain(&notes) {
        tracing::warn!("{note}");
    }
    #[cfg(debug_assertions)]
    if environment.filled("TEST_PANICS").is_some() {
        gateway::fault_injection::enable();
    }
    let watched = match config::watch(flags, environment) {
        Ok(watch) => watch.then_some(files),
        Err(error) => return fail(ConfigError::EXIT_CODE, &error.to_string()),
    };
    let (spans, exporter) = match traces.as_ref().map(traces::start).transpose() {
        Ok(started) => started.unzip(),
        Err(error) => return fail(exit::FAILED, &format!("{error:#}")),
    };
    let started = Builder::new_current_thread()
        .enable_all()
        .build()
        .and_then(|runtime| Ok((Threads::start(&runtime, settings.threads)?, runtime)));
    let ((threads, others), runtime) = match started {
        Ok(started) => started,
        Err(error) => {
            return fail(
                exit::FAILED,
                &format!("cannot start the threads that serve: {error}"),
            );
        }
    };
    let outlets = Outlets {
        format: logs.format,
        log: telemetry.sink(),
        terminal,
        spans,
        admin: admin_socket.then(|| Directory::of(environment)),
        idle_exit,
        hosts: OwnHosts::of(environment, judge),
    };
    let serving = serve(&settings, flags, environment, (threads, outlets), watched, passed);
    let code = runtime.block_on(serving);
    // All that still runs has been asked to stop and was waited for.
    others.stop(LAST_LINES);
    runtime.shutdown_timeout(LAST_LINES);
    if let Some(exporter) = exporter {
        exporter.finish();
    }
    drop(telemetry);
    code
}

/// Closes the memory and the environment of this process to the servers that it starts.
pub(crate) fn close_to_children() {
    if let Err(error) = platform::close_to_children() {
        tracing::warn!(%error, "servers of the same user can read Rialto's environment and memory");
    }
}

/// Returns the launcher that leaves no process behind, also when this one is killed. It needs a
/// runtime.
pub(crate) fn launcher() -> Launcher {
    let launcher = match platform::own_program(std::env::args_os().next().as_deref()) {
        Some(program) => Launcher::new(WardenCommand {
            argv: vec![program.into(), "warden".into()],
        }),
        None => {
            tracing::warn!("the path of this program is not known: servers outlive Rialto if it is killed");
            Launcher::without_warden()
        }
    };
    launcher.adopting()
}

/// What Rialto writes to.
struct Outlets {
    format: LogFormat,
    /// The log, unless a terminal shows it.
    log: Option<LineSink>,
    terminal: Option<Terminal>,
    spans: Option<Arc<SpanSink>>,
    /// Where its admin socket is, if it has one.
    admin: Option<Directory>,
    /// How long no client may have been connected before it ends.
    idle_exit: Option<Duration>,
    /// The hosts of this user, for the page.
    hosts: OwnHosts,
}

async fn serve(
    settings: &Settings,
    flags: &ServeFlags,
    environment: &Environment,
    (threads, outlets): (Threads, Outlets),
    watched: Option<Vec<PathBuf>>,
    passed: Option<TcpListener>,
) -> ExitCode {
    let has_socket = settings.has_listener || passed.is_some();
    let (listening, address) = match has_socket.then(|| listen(settings.listen, passed)).transpose() {
        Ok(Some((listening, address))) => (Some(listening), address),
        Ok(None) => (None, settings.listen),
        Err(error) => return fail(exit::CANNOT_LISTEN, &cannot_listen(settings.listen, &error)),
    };
    let notifier = Notifier::of(environment);
    let has_others = settings.destinations.len() > 1;
    let gateway = match Gateway::start(settings, address, launcher(), environment.all(), threads).await {
        Ok(gateway) => gateway,
        Err(error) => return cannot_start(error, has_others),
    };
    if let Some(log) = outlets.log {
        gateway.show_log(log);
    }
    if let Some(spans) = outlets.spans {
        gateway.trace_to(spans);
    }
    let signals = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ]
    .map(signal);
    let [Ok(terminate), Ok(interrupt), Ok(hangup)] = signals else {
        return fail(exit::FAILED, "cannot catch signals");
    };
    let watch = match watched.map(Watch::new).transpose() {
        Ok(watch) => watch,
        Err(error) => return fail(exit::FAILED, &format!("cannot watch the configuration: {error}")),
    };
    let reloader = Reloader {
        flags,
        environment,
        gateway: Arc::clone(&gateway),
        hangup,
        watch,
        notifier: notifier.clone(),
    };
    let destinations = settings.destinations.len();
    let config = config::file(flags, environment);
    let admin = match outlets
        .admin
        .map(|directory| administrate(&directory, config.as_deref()))
    {
        Some(Ok(admin)) => Some(admin),
        // Only what has no other way in cannot do without.
        Some(Err(error)) if listening.is_none() => {
            return fail(
                exit::CANNOT_LISTEN,
                &format!("cannot open the admin socket: {error}"),
            );
        }
        Some(Err(error)) => {
            tracing::info!(%error, "no admin socket: `rialto ps` and `attach` do not find this gateway");
            None
        }
        None => None,
    };
    let (admin, bound) = admin.unzip();
    gateway.describe(About {
        url: listening
            .is_some()
            .then(|| format!("{}://{}", scheme(settings), reachable(address))),
        config: config.and_then(|path| std::path::absolute(path).ok()),
    });
    if listening.is_some() {
        gateway.show_set_up(Arc::new(outlets.hosts));
    }
    match &listening {
        Some(listening) => {
            let socket = match listening {
                Listening::Own(_) => "own",
                Listening::Inherited(_) => "systemd",
            };
            tracing::info!(listening = %address, socket, destinations, "listening");
        }
        None => tracing::info!(destinations, "serving on the admin socket alone"),
    }
    match (outlets.terminal, outlets.format) {
        (Some(terminal), _) => shown::begin(&terminal, &gateway, settings, address),
        _ if listening.is_none() => {}
        (None, LogFormat::Human) => {
            // If stderr is closed, the line is lost, and not needed.
            let _ = std::io::stderr()
                .lock()
                .write_all(greeting(settings, address, gateway.has_page()).as_bytes());
        }
        (None, LogFormat::Json) => {
            for destination in &settings.destinations {
                let url = format!("{}://{address}/{}/mcp", scheme(settings), destination.name);
                tracing::info!(destination = %destination.name, url, "serving");
            }
            if gateway.has_page() {
                let url = format!("{}://{}/ui/", scheme(settings), reachable(address));
                tracing::info!(url, "page");
            }
        }
    }
    let (first, shutdown) = oneshot::channel();
    let signals = Signals { terminate, interrupt };
    notifier.watch();
    notifier.ready(&serving_status(destinations));
    let unused = unused(&gateway, outlets.idle_exit);
    let serving = Arc::clone(&gateway).serve(listening, admin, async move {
        tokio::select! {
            _ = shutdown => {}
            () = unused => tracing::info!("ending: no client was connected for `--idle-exit`"),
        }
        notifier.stopping();
        // The next gateway may have its name.
        drop(bound);
    });
    tokio::pin!(serving);
    tokio::select! {
        () = &mut serving => {}
        never = reloader.run() => match never {},
        () = signals.twice(first) => {
            tracing::warn!("second signal: ending at once");
            gateway.kill().await;
            // What is ready is still written; what takes longer is cut off.
            let _ = tokio::time::timeout(LAST_LINES, serving).await;
        }
    }
    ExitCode::SUCCESS
}

/// Opens the admin socket.
fn administrate(directory: &Directory, config: Option<&Path>) -> std::io::Result<(UnixListener, Bound)> {
    let (listener, bound) = directory.bind(config)?;
    tracing::debug!(socket = %bound.path().display(), "admin socket");
    Ok((UnixListener::from_std(listener)?, bound))
}

/// Waits until no client was connected for so long; without a limit, without end.
async fn unused(gateway: &Arc<Gateway>, limit: Option<Duration>) {
    match limit {
        Some(limit) => gateway.unused_for(limit).await,
        None => std::future::pending().await,
    }
}

/// Returns the socket that systemd passed, with its address.
fn passed_socket(
    environment: &Environment,
) -> Result<Option<(TcpListener, SocketAddr)>, systemd::SocketError> {
    let Some(socket) = systemd::passed_socket(environment)? else {
        return Ok(None);
    };
    let address = socket.local_addr()?;
    Ok(Some((socket, address)))
}

/// Listens, on the socket that was passed or else on an own one. Returns the address that was bound.
fn listen(address: SocketAddr, passed: Option<TcpListener>) -> std::io::Result<(Listening, SocketAddr)> {
    Ok(match passed {
        Some(socket) => (
            Listening::Inherited(tokio::net::TcpListener::from_std(socket)?),
            address,
        ),
        None => {
            let listener = bind(address)?.listen(BACKLOG)?;
            let bound = listener.local_addr()?;
            (Listening::Own(listener), bound)
        }
    })
}

/// Returns the sentence that `systemctl status` shows.
fn serving_status(destinations: usize) -> String {
    match destinations {
        1 => "serving 1 destination".to_owned(),
        several => format!("serving {several} destinations"),
    }
}

/// Takes an address, as far as that is possible without listening.
pub(crate) fn bind(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // Connections of an earlier Rialto may still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Reports why there is no gateway, and returns the exit code for it. `has_others`: other
/// destinations may be able to start.
pub(crate) fn cannot_start(error: StartError, has_others: bool) -> ExitCode {
    match error {
        StartError::Audit { .. }
        | StartError::Tls(_)
        | StartError::StateDir(_)
        | StartError::Sessions(_)
        | StartError::Cluster(_) => fail(exit::CONFIGURATION, &format!("{:#}", anyhow::Error::from(error))),
        StartError::Command { .. } => {
            let hint = match has_others {
                true => "\n  to start the others without it: --keep-going",
                false => "",
            };
            fail(exit::NOTHING_STARTS, &format!("{error}{hint}"))
        }
        StartError::NothingStarts(_) => fail(exit::NOTHING_STARTS, &error.to_string()),
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    async fn once(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Passes the first signal on and comes back at the second.
    async fn twice(mut self, first: oneshot::Sender<()>) {
        self.once().await;
        let _ = first.send(());
        self.once().await;
    }
}

pub(crate) fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> String {
    let hint = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another program uses it: choose another port with --listen (:0 picks a free one)"
        }
        std::io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need privileges: choose another with --listen"
        }
        _ => "; choose another address with --listen",
    };
    format!("cannot listen on {address}: {error}{hint}")
}

fn scheme(settings: &Settings) -> &'static str {
    match settings.tls {
        Some(_) => "https",
        None => "http",
    }
}

/// Returns where this machine reaches the listener.
fn reachable(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("localhost:{}", address.port()),
        false => address.to_string(),
    }
}

/// Returns what a person sees first: where everything is, and what to paste into a client.
fn greeting(settings: &Settings, address: SocketAddr, has_page: bool) -> String {
    let host = reachable(address);
    let scheme = scheme(settings);
    let mut text = String::from("\n");
    for destination in &settings.destinations {
        let about = match &destination.backend {
            BackendSpec::Process(process) => {
                let state = match process.start {
                    Start::Eager => "starting",
                    Start::Lazy => "starts with its first client",
                };
                // The program alone: what follows it may hold a secret of the configuration.
                let program = process.argv.first().map(String::as_str).unwrap_or_default();
                format!("{state}: {program}")
            }
            BackendSpec::Remote(remote) => format!(
                "remote: {}{}",
                remote.url.origin().ascii_serialization(),
                remote.url.path()
            ),
            BackendSpec::Aggregate(aggregate) => {
                let members = aggregate.plan.members().iter();
                let names: Vec<&str> = members.map(|member| &**member.name()).collect();
                format!("all of {}", names.join(", "))
            }
        };
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "  {scheme}://{host}/{}/mcp   ({about})", destination.name);
    }
    if let Some(root) = &settings.root_destination {
        let _ = writeln!(text, "  {scheme}://{host}/mcp   (the same as /{root}/mcp)");
    }
    if has_page {
        let _ = writeln!(text, "  {scheme}://{host}/ui/   (what goes on, for browsers)");
    }
    // One URL for everything is the one to paste.
    let is_aggregate = |destination: &&Destination| matches!(destination.backend, BackendSpec::Aggregate(_));
    let aggregate = settings.destinations.iter().find(is_aggregate);
    if let Some(first) = aggregate.or(settings.destinations.first()) {
        let snippet = serde_json::json!({
            "mcpServers": { &first.name: { "type": "http", "url": format!("{scheme}://{host}/{}/mcp", first.name) } }
        });
        let _ = writeln!(text, "\n  For your client's configuration:\n  {snippet}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_has_every_url_and_something_to_paste() {
        let flags = ServeFlags {
            demo: true,
            ..ServeFlags::default()
        };
        let settings = config::settings(&flags, &Environment::default())
            .unwrap()
            .settings;
        let text = greeting(&settings, "127.0.0.1:4711".parse().unwrap(), true);
        for part in [
            "http://127.0.0.1:4711/demo/mcp",
            "http://127.0.0.1:4711/mcp",
            "http://127.0.0.1:4711/ui/",
            "mcpServers",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn g12_the_greeting_names_the_program_and_none_of_its_arguments() {
        let flags = ServeFlags {
            command: ["weather-server", "--key", "geheim"].map(str::to_owned).to_vec(),
            ..ServeFlags::default()
        };
        let settings = config::settings(&flags, &Environment::default())
            .unwrap()
            .settings;
        let text = greeting(&settings, "127.0.0.1:4711".parse().unwrap(), true);
        assert!(
            text.contains("weather-server") && !text.contains("geheim"),
            "{text}"
        );
    }

    #[test]
    fn an_address_in_use_comes_with_advice() {
        let error = std::io::Error::from(std::io::ErrorKind::AddrInUse);
        let text = cannot_listen("127.0.0.1:3000".parse().unwrap(), &error);
        assert!(
            text.contains("127.0.0.1:3000") && text.contains("--listen"),
            "{text}"
        );
    }
}
