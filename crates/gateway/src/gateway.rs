//! The gateway: all destinations, and what they share, from start to drain.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cluster::file::{FileRegistry, OpenError};
use cluster::record::{Node, NodeId, SessionRecord};
use cluster::registry::Registry;
use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use protocol::time::Moment;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::active_config::{self, ActiveConfig, ReloadError, StartupConfig};
use crate::audit::Audit;
use crate::backend::process::Launcher;
use crate::buffered::Buffered;
use crate::clock::Clock;
use crate::ended_calls::EndedCalls;
use crate::endpoint::{CloseReason, Endpoint, SharedState};
use crate::fleet::{Fleet, LocalSessions, Sharing};
use crate::guard::limits::Limiter;
use crate::guard::origin::OriginGuard;
use crate::guard::page::PageAccess;
use crate::line_sink::LineSink;
use crate::metrics::{DestinationMetrics, ListenerMetrics};
use crate::offer_store::OfferStore;
use crate::peer::Peers;
use crate::readers::Readers;
use crate::record::{RecordListener, Recorder};
use crate::replica::{ClusterError, Replica};
use crate::seal::Sealer;
use crate::session_store::SessionStore;
use crate::settings::{AuditSink, LimitSettings, Settings};
use crate::shown_state::ShownState;
use crate::sign_in_pages::SignInPages;
use crate::state_dir::{StateDir, StateDirError};
use crate::status::{ClusterStatus, DestinationStatus, Detail, LimitLevel, Status};
use crate::tasks;
use crate::threads::Threads;
use crate::tls::{Tls, TlsError};
use crate::trace::SpanSink;

/// How long an immediate end may take to write the last answers and records.
const LAST_ANSWERS: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_secs(1);
/// How often a replica that drains looks for sessions that it can hand over.
const HAND_OVER_INTERVAL: Duration = Duration::from_millis(50);
/// How long a replica that drains accepts connections at least: a balancer may not have noticed.
const BALANCER_TIME: Duration = Duration::from_secs(1);

/// Why a gateway cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("destination `{destination}`: {why}")]
    Command { destination: String, why: String },
    #[error("the audit log `{file}` cannot be opened; choose another file with --audit")]
    Audit { file: String, source: std::io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    #[error(transparent)]
    Sessions(#[from] OpenError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Each destination, and why it cannot start.
    #[error("no destination could start")]
    NothingStarts(Vec<(String, String)>),
}

impl From<ReloadError> for StartError {
    fn from(error: ReloadError) -> Self {
        match error {
            ReloadError::Command { destination, why } => Self::Command { destination, why },
            ReloadError::Tls(error) => Self::Tls(error),
            ReloadError::Draining => unreachable!("what is being made does not end yet"),
        }
    }
}

/// All destinations, and what they share. Listeners stand above it ([`crate::frontend`]).
#[derive(Debug)]
pub struct Gateway {
    pub(crate) clock: Clock,
    pub(crate) audit: Arc<Audit>,
    /// The address that was really bound.
    pub(crate) listen: SocketAddr,
    config: RwLock<Arc<ActiveConfig>>,
    pub(crate) startup_config: StartupConfig,
    pub(crate) shared: SharedState,
    pub(crate) tls: Option<Arc<Tls>>,
    /// The last reload changed nothing, because something was wrong with it.
    pub(crate) reload_failed: AtomicBool,
    pub(crate) limiter: Limiter,
    pub(crate) listener_metrics: Arc<ListenerMetrics>,
    pub(crate) shows_metrics: bool,
    pub(crate) limits: LimitSettings,
    launcher: Arc<Launcher>,
    draining: watch::Sender<bool>,
    /// Another process accepts the connections from now on.
    has_left_socket: AtomicBool,
    /// There was a second signal.
    hurried: watch::Sender<bool>,
    connections: watch::Sender<usize>,
    /// The way to the other replicas, with `cluster`.
    pub(crate) peers: Option<Arc<Peers>>,
    /// Readers of events and messages, on the admin socket.
    pub(crate) readers: Arc<Readers>,
    pub(crate) about: OnceLock<About>,
    /// The state as pages are shown it.
    pub(crate) shown_state: ShownState,
    /// What servers have shown of themselves to the page, with when.
    pub(crate) presented: Mutex<BTreeMap<String, (Moment, serde_json::Value)>>,
    /// Looks at the programs of this machine that use MCP servers.
    pub(crate) set_up: OnceLock<Arc<dyn SetUp>>,
}

/// Looks at the programs of this machine that use MCP servers. The layer above knows them.
pub trait SetUp: std::fmt::Debug + Send + Sync {
    /// Returns which there are, and where they lead, as JSON for the page. It reads files.
    fn look(&self) -> serde_json::Value;

    /// Returns what to paste into each program for a destination, as JSON for the page.
    fn snippets(&self, needs_token: bool) -> serde_json::Value;
}

/// What a gateway tells of itself, beside its state.
#[derive(Debug, Clone)]
pub struct About {
    /// Where clients reach it, if it has a listener.
    pub url: Option<String>,
    /// The file that describes its destinations, if there is one.
    pub config: Option<PathBuf>,
}

impl Gateway {
    /// Makes a gateway that serves with these threads, as a replica of its fleet if the settings
    /// name one.
    pub async fn start(
        settings: &Settings,
        listen: SocketAddr,
        launcher: Launcher,
        environment: BTreeMap<String, String>,
        threads: Threads,
    ) -> Result<Arc<Self>, StartError> {
        let replica = match &settings.cluster {
            Some(cluster) => Some(Replica::connect(cluster).await?),
            None => None,
        };
        Self::build(settings, listen, launcher, environment, replica, threads)
    }

    /// Makes a gateway that is in no fleet. `listen` is the address that was really bound.
    pub fn new(
        settings: &Settings,
        listen: SocketAddr,
        launcher: Launcher,
        environment: BTreeMap<String, String>,
    ) -> Result<Arc<Self>, StartError> {
        Self::build(settings, listen, launcher, environment, None, Threads::default())
    }

    /// Makes a gateway, as this replica if there is one.
    pub(crate) fn build(
        settings: &Settings,
        listen: SocketAddr,
        launcher: Launcher,
        environment: BTreeMap<String, String>,
        replica: Option<Replica>,
        threads: Threads,
    ) -> Result<Arc<Self>, StartError> {
        let clock = Clock::new();
        let tls = settings.tls.as_ref().map(Tls::open).transpose()?.map(Arc::new);
        let state_dir = settings.state_dir.as_deref().map(StateDir::open).transpose()?;
        let offers = OfferStore::of(settings)?;
        let sealer = Arc::new(match (&replica, &state_dir) {
            (Some(replica), _) => Sealer::of_replica(replica.key.sealing_key(), replica.node.id.process()),
            (None, Some(state_dir)) => Sealer::with_key(state_dir.key()?),
            (None, None) => Sealer::default(),
        });
        let fleet = match (&replica, &state_dir) {
            (Some(replica), _) => Some((
                Arc::clone(&replica.registry),
                replica.node.clone(),
                Sharing::Replicas,
            )),
            (None, Some(state_dir)) => Some((open_registry(state_dir)?, local_node(), Sharing::Alone)),
            (None, None) => None,
        };
        let audit = Audit::open(&settings.audit).map_err(|source| StartError::Audit {
            file: match &settings.audit.sink {
                AuditSink::File(path) => path.display().to_string(),
                AuditSink::Stdout => "stdout".to_owned(),
                AuditSink::Off => "off".to_owned(),
            },
            source,
        })?;
        let audit = Arc::new(audit);
        let launcher = Arc::new(launcher);
        let listener_metrics = Arc::new(ListenerMetrics::default());
        let buffers = settings.limits.buffers(settings.auth.is_on());
        let shared = SharedState {
            buffered: Buffered::new(buffers, clock, Arc::clone(&listener_metrics.limit_hits)),
            limits: Arc::new(settings.limits.clone()),
            limit_hits: Arc::clone(&listener_metrics.limit_hits),
            draining: Arc::default(),
            clock,
            launcher: Arc::clone(&launcher),
            threads,
            recorder: Arc::new(Recorder::new(
                Arc::clone(&audit),
                vec![Arc::clone(&listener_metrics) as Arc<dyn RecordListener>],
                Arc::new(EndedCalls::new(clock, settings.limits.ended_calls_bytes)),
            )),
            environment: Arc::new(environment),
            session_numbers: Arc::default(),
            fleet: fleet.map(|(registry, node, sharing)| {
                let (sealer, idle) = (Arc::clone(&sealer), settings.session_idle);
                let store = Arc::new(SessionStore::new(Arc::clone(&registry), sealer, idle));
                Fleet::new(registry, store, node, sharing, clock)
            }),
            sealer,
            eras: Arc::default(),
            offers: offers.map(Arc::new),
            sign_in_pages: Arc::new(SignInPages::new(origin_of_pages(settings, listen))),
            tells_callers_apart: settings.auth.is_on(),
        };
        let unusable = active_config::check_commands(settings, &shared.environment);
        let destinations = active_config::build_destinations(settings, &shared, &BTreeMap::new(), &unusable)?;
        let broken: Vec<(String, String)> = destinations
            .iter()
            .filter_map(|(name, made)| Some((name.clone(), made.upstream.broken()?.to_owned())))
            .collect();
        let servers = destinations
            .values()
            .filter(|made| made.upstream.aggregate().is_none());
        if broken.len() == servers.count() {
            return Err(StartError::NothingStarts(broken));
        }
        let root = settings
            .root_destination
            .as_ref()
            .and_then(|name| destinations.get(name))
            .cloned();
        let config = ActiveConfig {
            origins: OriginGuard::new(settings, listen),
            guard: active_config::guard(settings, &destinations.keys().cloned().collect(), listen, clock),
            page: PageAccess::of(settings, listen),
            destinations,
            root,
            public_path: active_config::public_path(settings),
            session_idle: settings.session_idle,
            drain: settings.drain,
        };
        let limiter = Limiter::new(settings.limits.clone());
        let limiter = match &replica {
            Some(replica) => {
                limiter.with_fleet(Arc::clone(&replica.registry), replica.node.id.clone(), clock)
            }
            None => limiter,
        };
        let gateway = Arc::new(Self {
            clock,
            audit,
            shared,
            listen,
            config: RwLock::new(Arc::new(config)),
            startup_config: StartupConfig::of(settings),
            reload_failed: AtomicBool::new(false),
            limiter,
            listener_metrics,
            shows_metrics: settings.metrics,
            limits: settings.limits.clone(),
            launcher,
            tls,
            draining: watch::Sender::new(false),
            has_left_socket: AtomicBool::new(false),
            hurried: watch::Sender::new(false),
            connections: watch::Sender::new(0),
            peers: replica.map(|replica| replica.peers),
            readers: Arc::default(),
            about: OnceLock::new(),
            shown_state: ShownState::default(),
            presented: Mutex::default(),
            set_up: OnceLock::new(),
        });
        if let Some(fleet) = &gateway.shared.fleet {
            let sessions = Arc::downgrade(&gateway);
            fleet.set_local_sessions(sessions);
        }
        Ok(gateway)
    }

    /// Returns the active configuration. A request keeps to it during a reload.
    pub(crate) fn config(&self) -> Arc<ActiveConfig> {
        Arc::clone(&self.config.read())
    }

    pub(crate) fn set_config(&self, config: ActiveConfig) {
        *self.config.write() = Arc::new(config);
    }

    /// Returns all destinations that still do something.
    fn all(&self) -> Vec<Arc<Endpoint>> {
        let config = self.config();
        let mut all: Vec<Arc<Endpoint>> = config.destinations.values().cloned().collect();
        all.extend(self.shared.draining.all());
        all
    }

    /// TLS handshakes that failed.
    pub fn failed_handshakes(&self) -> u64 {
        self.tls.as_deref().map_or(0, Tls::failures)
    }

    /// Names the sink of the log, so that metrics show what it lost.
    pub fn show_log(&self, sink: LineSink) {
        // Only the first is shown: there is one log.
        let _ = self.listener_metrics.log.set(sink);
    }

    /// Names the sink of spans: from now on every request makes one.
    pub fn trace_to(&self, sink: Arc<SpanSink>) {
        let _ = self.listener_metrics.spans.set(sink);
    }

    /// Sets what it tells of itself.
    pub fn describe(&self, about: About) {
        // Only the first holds: it is set when the gateway begins to serve.
        let _ = self.about.set(about);
    }

    /// Lets the page show the programs of this machine.
    pub fn show_set_up(&self, set_up: Arc<dyn SetUp>) {
        // Only the first holds: it is set when the gateway begins to serve.
        let _ = self.set_up.set(set_up);
    }

    /// Returns whether there is a page for browsers.
    pub fn has_page(&self) -> bool {
        self.config().page != PageAccess::Off
    }

    /// Waits until no client was connected for so long, and no call is open.
    pub async fn unused_for(&self, limit: Duration) {
        let mut connections = self.connections.subscribe();
        loop {
            // The sender is this gateway's own.
            let _ = connections.wait_for(|count| *count == 0).await;
            self.calls_ended().await;
            let came = tokio::time::timeout(limit, connections.changed()).await;
            if came.is_err() && self.open_calls() == 0 {
                return;
            }
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Leaves the socket to the next process. Connections that are open here have one more request
    /// answered, and close.
    pub(crate) fn leave_socket(&self) {
        self.has_left_socket.store(true, Ordering::Release);
    }

    /// Returns whether each response closes its connection.
    pub(crate) fn has_left_socket(&self) -> bool {
        self.has_left_socket.load(Ordering::Acquire)
    }

    /// Returns whether a request is refused because the gateway drains. It is not where another
    /// replica may answer, nor where each connection has one more request at most: refused, it
    /// would fail, although its client can go on.
    pub(crate) fn refuses_requests(&self) -> bool {
        self.is_draining() && self.peers.is_none() && !self.has_left_socket()
    }

    /// Waits until the gateway drains and has left its socket. Never returns if it keeps that.
    pub(crate) async fn socket_left(&self) {
        self.drain_began().await;
        if !self.has_left_socket() {
            std::future::pending().await
        }
    }

    /// Waits until the gateway drains.
    pub(crate) async fn drain_began(&self) {
        // The sender is here, so the channel is not closed.
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }

    /// Drains: new calls are refused, and those in flight may finish, until the configured time is
    /// over or [`Gateway::kill`] was called. A replica hands its sessions over meanwhile. Returns
    /// when that time is over.
    pub(crate) async fn drain(&self) -> Instant {
        tracing::info!(calls = self.open_calls(), "draining");
        self.draining.send_replace(true);
        let now = Instant::now();
        let deadline = now + self.config().drain;
        if let Some(fleet) = self.shared.fleet.as_ref().filter(|fleet| fleet.has_peers()) {
            fleet.drain();
            // A balancer that asks `/ready` sends no more requests after that.
            let noticed = deadline.min(now + BALANCER_TIME);
            self.finish(tokio::time::sleep_until(noticed), deadline).await;
        }
        self.finish_calls(deadline).await;
        deadline
    }

    /// Lets the calls in flight finish until the deadline.
    pub(crate) async fn finish_calls(&self, deadline: Instant) {
        self.finish(self.calls_ended(), deadline).await;
    }

    /// Waits for one part of the drain, at most until the deadline or a second signal. A replica
    /// hands sessions over meanwhile.
    async fn finish(&self, finished: impl Future<Output = ()>, deadline: Instant) {
        self.hand_over_served();
        let mut hurried = self.hurried.subscribe();
        tokio::select! {
            () = finished => {}
            () = self.hand_over() => {}
            _ = hurried.wait_for(|hurried| *hurried) => {}
            () = tokio::time::sleep_until(deadline) => {}
        }
    }

    /// Ends every session and every child, and waits for the children to be gone.
    pub(crate) async fn stop_all(&self) {
        let all = self.all();
        for destination in &all {
            destination.stop(CloseReason::Shutdown);
        }
        // Every supervisor ends its child within its own grace period.
        let ended = join_all(
            all.iter()
                .map(|destination| destination.upstream.supervisors_ended()),
        );
        let _ = tokio::time::timeout(crate::backend::process::supervisor::STOP_GRACE * 2, ended).await;
    }

    /// Handles the second signal: only the errors of open calls are still written.
    /// [`Gateway::serve`] comes to its end soon after.
    pub async fn kill(&self) {
        for destination in self.all() {
            destination.stop(CloseReason::Shutdown);
        }
        self.launcher.kill_all();
        self.connections_closed(LAST_ANSWERS).await;
        self.hurried.send_replace(true);
        self.audit.flush(LAST_ANSWERS);
    }

    /// Counts a connection for as long as the returned value lives.
    pub(crate) fn count_connection(&self) -> CountedConnection<'_> {
        self.connections.send_modify(|count| *count += 1);
        CountedConnection(&self.connections)
    }

    pub(crate) fn connection_count(&self) -> usize {
        *self.connections.borrow()
    }

    fn open_calls(&self) -> usize {
        self.all()
            .iter()
            .map(|destination| destination.upstream.open_calls())
            .sum()
    }

    /// Hands each session over as soon as it can go on at another replica. Does not end before the
    /// drain does.
    async fn hand_over(&self) {
        if self.peers.is_none() {
            return std::future::pending().await;
        }
        let mut tick = tokio::time::interval(HAND_OVER_INTERVAL);
        loop {
            tick.tick().await;
            self.hand_over_served();
        }
    }

    /// Hands over the sessions that need nothing more here, where another replica may have them.
    fn hand_over_served(&self) {
        if self.peers.is_none() {
            return;
        }
        let all = self.all();
        let handed_over: usize = all.iter().map(|endpoint| endpoint.hand_over_served()).sum();
        if handed_over > 0 {
            tracing::info!(sessions = handed_over, "sessions handed over");
        }
        for endpoint in all.iter().filter(|endpoint| endpoint.is_served()) {
            if let Some(server) = endpoint.placed_server() {
                server.handle_served();
            }
        }
    }

    /// Waits until no destination has an open call. Requests that were forwarded to another replica
    /// are waited for later ([`Peers::proxied_ended`]), when no further ones come.
    async fn calls_ended(&self) {
        let busy = |destination: &Arc<Endpoint>| destination.upstream.open_calls() > 0;
        while let Some(destination) = self.all().into_iter().find(busy) {
            destination.calls_ended().await;
        }
    }

    /// Waits until all connections are closed, at most for `limit`.
    pub(crate) async fn connections_closed(&self, limit: Duration) {
        let mut connections = self.connections.subscribe();
        let closed = connections.wait_for(|count| *count == 0);
        let _ = tokio::time::timeout(limit, closed).await;
    }

    /// Looks after the files of the certificate, beside the threads that serve.
    pub(crate) async fn follow_certificate(&self) {
        let Some(tls) = &self.tls else { return };
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let tls = Arc::clone(tls);
            tasks::blocking(move || tls.tick()).await;
        }
    }

    pub(crate) async fn run_maintenance(&self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let now = self.clock.now();
            let session_idle = self.config().session_idle;
            if let Some(fleet) = &self.shared.fleet {
                fleet.store().set_session_idle(session_idle);
            }
            for destination in self.all() {
                destination.tick(now, session_idle);
            }
            self.limiter.tick(now);
        }
    }

    /// Returns the state of the gateway and of all its destinations.
    pub(crate) fn status(&self, detail: Detail) -> Status {
        let config = self.config();
        let mut destinations: BTreeMap<String, DestinationStatus> = config
            .destinations
            .iter()
            .map(|(name, destination)| (name.clone(), destination.status(true, detail)))
            .collect();
        let is_usable = destinations.values().any(|status| status.is_ready);
        for destination in self.shared.draining.all() {
            let draining = destination.status(false, detail);
            match destinations.get_mut(&*destination.name) {
                Some(status) => status.add_draining(draining),
                None => {
                    destinations.insert(destination.name.to_string(), draining);
                }
            }
        }
        Status {
            is_ready: is_usable && !self.is_draining(),
            destinations,
            limits: self.listener_metrics.limit_hits.all(),
            levels: self.limit_levels(),
            is_draining: self.is_draining(),
            has_failed_reload: self.reload_failed.load(Ordering::Acquire),
            cluster: self
                .shared
                .fleet
                .as_ref()
                .filter(|fleet| fleet.has_peers())
                .map(|fleet| ClusterStatus {
                    limits_by_share: self.limiter.unanswered_in_fleet(),
                    ..fleet.status()
                }),
        }
    }

    /// Returns how much of the limits of the whole gateway is used.
    fn limit_levels(&self) -> Vec<LimitLevel> {
        let levels = [
            ("connections", self.connection_count(), self.limits.connections),
            ("calls", self.limiter.calls(), self.limits.calls),
            (
                "buffered_bytes",
                self.shared.buffered.total(),
                self.limits.buffered_bytes,
            ),
        ];
        levels
            .map(|(limit, used, most)| LimitLevel { limit, used, most })
            .to_vec()
    }

    /// Returns what has passed through each destination, by name, those that drain included.
    pub(crate) fn destination_metrics(&self) -> BTreeMap<String, Arc<DestinationMetrics>> {
        let all = self.all();
        let pairs = all.iter().map(|destination| {
            let metrics = Arc::clone(&destination.metrics);
            (destination.name.to_string(), metrics)
        });
        pairs.collect()
    }
}

impl LocalSessions for Gateway {
    fn record(&self, session: Uuid, epoch: u64) -> Option<SessionRecord> {
        let handle = self
            .all()
            .iter()
            .find_map(|destination| destination.copy(session, epoch))?;
        handle.kept()?.record()
    }

    fn drop_copy(&self, session: Uuid, epoch: u64) {
        for destination in self.all() {
            if destination.drop_copy(session, epoch) {
                return;
            }
        }
    }

    fn end_server(&self, destination: &str) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut placed = self.all();
        placed.retain(|endpoint| &*endpoint.name == destination && endpoint.placed_server().is_some());
        for endpoint in &placed {
            endpoint.leave_place();
        }
        Box::pin(async move {
            for endpoint in placed {
                endpoint.upstream.supervisors_ended().await;
            }
        })
    }
}

/// Returns where this gateway is reached, if its users may sign in at servers on pages of its own:
/// from this machine alone, by any caller.
fn origin_of_pages(settings: &Settings, listen: SocketAddr) -> Option<String> {
    let is_local = listen.ip().is_loopback() && listen.port() != 0;
    let is_behind_another = settings.public_url.is_some() || !settings.allowed_hosts.is_empty();
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let may_have = is_local && !is_behind_another && !settings.auth.is_on() && settings.cluster.is_none();
    may_have.then(|| format!("{scheme}://{listen}"))
}

/// Returns the one replica of a machine whose sessions survive in a file.
fn local_node() -> Node {
    Node {
        id: NodeId::generate("local").expect("a plain name"),
        address: None,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        is_draining: false,
    }
}

/// Opens the records of sessions.
fn open_registry(state_dir: &StateDir) -> Result<Arc<dyn Registry>, StartError> {
    Ok(Arc::new(FileRegistry::open(state_dir.path())?))
}

/// A connection that is open.
pub(crate) struct CountedConnection<'a>(&'a watch::Sender<usize>);

impl Drop for CountedConnection<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::fixture;

    #[tokio::test(start_paused = true)]
    async fn short_connection_begins_the_time_without_clients_anew() {
        const LIMIT: Duration = Duration::from_secs(60);
        let gateway = fixture::gateway(&fixture::settings());
        let began = Instant::now();
        let first = gateway.count_connection();
        let clients = async {
            tokio::time::sleep(LIMIT).await;
            drop(first);
            tokio::time::sleep(LIMIT / 2).await;
            drop(gateway.count_connection());
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = clients => {}
            () = gateway.unused_for(LIMIT) => {}
        }
        assert_eq!(began.elapsed(), LIMIT + LIMIT / 2 + LIMIT);
    }
}
