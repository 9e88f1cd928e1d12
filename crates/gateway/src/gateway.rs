//! The gateway: all destinations behind one door, from start to drain.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::RwLock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::audit::Audit;
use crate::backend::process::{Launcher, environment, resolve};
use crate::backend::remote;
use crate::buffered::Buffered;
use crate::clock::Clock;
use crate::endpoint::{CloseReason, Endpoint, SharedState};
use crate::frontend::client_stream::ClientStream;
use crate::frontend::header_timer::{HEADER_TIME, HeaderTimer};
use crate::frontend::http::{Connection, HttpConnectionSlot};
use crate::frontend::lingering::UnreadFlag;
use crate::frontend::write_timeout::WriteTimeout;
use crate::guard::connections::{ConnectionLimits, ConnectionTable, LimitReached};
use crate::guard::limits::Limiter;
use crate::guard::origin::OriginGuard;
use crate::line_sink::LineSink;
use crate::metrics::{DestinationMetrics, ListenerMetrics};
use crate::record::{RecordListener, Recorder};
use crate::reload::{self, ActiveConfig, ReloadError, StartupConfig};
use crate::settings::{self, AuditSink, BackendSpec, LimitSettings, RemoteSpec, Settings};
use crate::status::{DestinationStatus, Status};
use crate::tasks;
use crate::tls::{Tls, TlsError};
use crate::tls_listener;
use crate::trace::SpanSink;

pub(crate) const MAX_HEADERS: usize = 100;
/// The longest head of a request, and the unit in which bodies are read.
pub(crate) const READ_BUFFER: usize = 64 << 10;
/// How long connections may take to close once everything has been answered.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// How long an immediate end may take to write the last answers and records.
const LAST_ANSWERS: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_secs(1);

/// Why a gateway cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("destination `{destination}`: {why}")]
    Command { destination: String, why: String },
    #[error("the audit log `{file}` cannot be opened; choose another file with --audit")]
    Audit { file: String, source: std::io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
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

/// All destinations behind one door.
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
    limits: LimitSettings,
    launcher: Arc<Launcher>,
    draining: watch::Sender<bool>,
    /// There was a second signal.
    hurried: watch::Sender<bool>,
    connections: watch::Sender<usize>,
}

impl Gateway {
    /// Makes a gateway from settings. `listen` is the address that was really bound.
    pub fn new(
        settings: &Settings,
        listen: SocketAddr,
        launcher: Launcher,
        environment: BTreeMap<String, String>,
    ) -> Result<Arc<Self>, StartError> {
        let clock = Clock::new();
        let tls = settings.tls.as_ref().map(Tls::open).transpose()?.map(Arc::new);
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
            recorder: Arc::new(Recorder::new(
                Arc::clone(&audit),
                vec![Arc::clone(&listener_metrics) as Arc<dyn RecordListener>],
            )),
            environment: Arc::new(environment),
            session_numbers: Arc::default(),
            sealer: Arc::default(),
            eras: Arc::default(),
            tells_callers_apart: settings.auth.is_on(),
        };
        let unusable = reload::check_commands(settings, &shared.environment);
        let destinations = reload::build_destinations(settings, &shared, &BTreeMap::new(), &unusable)?;
        let broken: Vec<(String, String)> = destinations
            .iter()
            .filter_map(|(name, made)| Some((name.clone(), made.upstream.broken()?.to_owned())))
            .collect();
        if broken.len() == destinations.len() {
            return Err(StartError::NothingStarts(broken));
        }
        let root = settings
            .root_destination
            .as_ref()
            .and_then(|name| destinations.get(name))
            .cloned();
        let config = ActiveConfig {
            origins: OriginGuard::new(settings, listen),
            guard: reload::guard(settings, &destinations.keys().cloned().collect(), listen, clock),
            destinations,
            root,
            public_path: reload::public_path(settings),
            session_idle: settings.session_idle,
            drain: settings.drain,
        };
        Ok(Arc::new(Self {
            clock,
            audit,
            shared,
            listen,
            config: RwLock::new(Arc::new(config)),
            startup_config: StartupConfig::of(settings),
            reload_failed: AtomicBool::new(false),
            limiter: Limiter::new(settings.limits.clone()),
            listener_metrics,
            shows_metrics: settings.metrics,
            limits: settings.limits.clone(),
            launcher,
            tls,
            draining: watch::Sender::new(false),
            hurried: watch::Sender::new(false),
            connections: watch::Sender::new(0),
        }))
    }

    /// What holds at the moment. A request keeps to it, whatever is reloaded meanwhile.
    pub(crate) fn config(&self) -> Arc<ActiveConfig> {
        Arc::clone(&self.config.read())
    }

    pub(crate) fn set_config(&self, config: ActiveConfig) {
        *self.config.write() = Arc::new(config);
    }

    /// All destinations that still do something.
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

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Waits until the gateway drains.
    pub(crate) async fn drain_began(&self) {
        // The sender is here, so the channel is not closed.
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }

    /// Serves until `shutdown` comes, then drains: calls in flight may finish, new ones are refused, and all
    /// children are ended.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        for destination in self.config().destinations.values() {
            destination.upstream.start();
        }
        let (closing, _) = watch::channel(false);
        let maintenance = tasks::spawn("maintenance", {
            let gateway = Arc::clone(&self);
            async move {
                tokio::join!(gateway.run_maintenance(), gateway.follow_certificate());
            }
        });
        tasks::spawn("guard", {
            let gateway = Arc::clone(&self);
            async move { gateway.config().guard.prepare().await }
        });
        let acceptor = tasks::spawn("accept", {
            let gateway = Arc::clone(&self);
            let closing = closing.clone();
            async move { gateway.accept_loop(listener, closing).await }
        });
        shutdown.await;

        tracing::info!(calls = self.open_calls(), "draining");
        self.draining.send_replace(true);
        let mut hurried = self.hurried.subscribe();
        tokio::select! {
            () = self.calls_ended() => {}
            _ = hurried.wait_for(|hurried| *hurried) => {}
            () = tokio::time::sleep(self.config().drain) => {}
        }
        acceptor.abort();
        let _ = closing.send(true);
        self.stop_all().await;
        self.connections_closed(CLOSE_TIME).await;
        maintenance.abort();
        self.audit.flush(CLOSE_TIME);
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

    /// The second signal: nothing is waited for any more but that those who wait are told so.
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

    pub(crate) fn connection_count(&self) -> usize {
        *self.connections.borrow()
    }

    fn open_calls(&self) -> usize {
        self.all()
            .iter()
            .map(|destination| destination.upstream.open_calls())
            .sum()
    }

    /// Waits until no destination has an open call.
    async fn calls_ended(&self) {
        let busy = |destination: &Arc<Endpoint>| destination.upstream.open_calls() > 0;
        while let Some(destination) = self.all().into_iter().find(busy) {
            destination.calls_ended().await;
        }
    }

    /// Waits until all connections are closed, at most for `limit`.
    async fn connections_closed(&self, limit: Duration) {
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
            for destination in self.all() {
                destination.tick(now, session_idle);
            }
            self.limiter.tick(now);
        }
    }

    async fn accept_loop(self: Arc<Self>, listener: TcpListener, closing: watch::Sender<bool>) {
        let table = Arc::new(ConnectionTable::default());
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    self.listener_metrics
                        .connections_accepted
                        .fetch_add(1, Ordering::Relaxed);
                    let admitted = match table.admit(peer.ip(), self.connection_limits(peer.ip())) {
                        Ok(admitted) => admitted,
                        Err(LimitReached(limit)) => {
                            self.listener_metrics.limit_hit(limit);
                            self.reject_connection(&stream);
                            continue;
                        }
                    };
                    let (gateway, slot) = (Arc::clone(&self), Arc::clone(&admitted.slot));
                    let closing = closing.subscribe();
                    let connection = tasks::spawn("connection", async move {
                        gateway.connections.send_modify(|count| *count += 1);
                        let _counted = Counted(&gateway.connections);
                        Arc::clone(&gateway)
                            .serve_connection(stream, peer, slot, closing)
                            .await;
                    });
                    admitted.slot.can_be_ended_by(connection.abort_handle());
                    if let Some(evicted) = admitted.evicted {
                        self.listener_metrics.limit_hit(evicted.limit);
                        self.listener_metrics
                            .connections_evicted
                            .fetch_add(1, Ordering::Relaxed);
                        if let Some(connection) = evicted.handle {
                            connection.abort();
                        }
                        // It closes its socket now, so that there are never many more of them than places.
                        tokio::task::yield_now().await;
                    }
                }
                Err(error) => {
                    // Out of descriptors, most likely: trying again at once would only burn the processor.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Says that there is no room, in as few words as HTTP allows, and without waiting for anything. Over TLS nothing is
    /// said in the clear: whoever is not let in learns it from the closing.
    fn reject_connection(&self, stream: &TcpStream) {
        const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        if self.tls.is_none() {
            // The same for a peer whose first bytes cannot even be taken by the kernel.
            let _ = stream.try_write(FULL);
        }
    }

    /// How many connections there may be, and of this address.
    fn connection_limits(&self, peer: IpAddr) -> ConnectionLimits {
        ConnectionLimits {
            in_all: self.limits.connections,
            of_address: self.limits.connections_of(peer),
        }
    }

    async fn serve_connection(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        slot: Arc<HttpConnectionSlot>,
        mut closing: watch::Receiver<bool>,
    ) {
        // An answer must not wait for the client to acknowledge the previous one.
        let _ = stream.set_nodelay(true);
        let unread = UnreadFlag::default();
        let origin = Connection {
            peer,
            unread: unread.clone(),
            slot: Arc::clone(&slot),
        };
        if let Some(tls) = &self.tls {
            let gateway = Arc::clone(&self);
            let respond = move |request| Arc::clone(&gateway).respond(request, origin.clone());
            let reached = Box::pin(tls_listener::serve_tls(
                tls,
                stream,
                closing,
                (unread, &slot),
                respond,
            ))
            .await;
            return reached
                .into_iter()
                .for_each(|limit| self.listener_metrics.limit_hit(limit));
        }
        let service = service_fn({
            let gateway = Arc::clone(&self);
            move |request| {
                Arc::clone(&gateway)
                    .respond(request, origin.clone())
                    .map(Ok::<_, Infallible>)
            }
        });
        let header_timer = HeaderTimer::default();
        let connection = http1::Builder::new()
            .timer(header_timer.clone())
            .header_read_timeout(HEADER_TIME)
            .max_headers(MAX_HEADERS)
            .max_buf_size(READ_BUFFER)
            .serve_connection(
                TokioIo::new(ClientStream::new(stream, header_timer.clone(), unread)),
                service,
            );
        tokio::pin!(connection);
        let ended = match self.unless_closed(connection.as_mut(), &mut closing).await {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            if let Some(limit) = limit_of_http1(&error, &header_timer) {
                self.listener_metrics.limit_hit(limit);
            }
            tracing::debug!(%error, "connection ended");
        }
    }

    /// What a connection comes to; `None`, if all are to be closed before.
    ///
    /// Each message on a connection leads here, so the closing is only looked at when it could have come: it wakes whoever
    /// has looked once, and by then the gateway drains.
    async fn unless_closed<T>(
        &self,
        mut connection: Pin<&mut impl Future<Output = T>>,
        closing: &mut watch::Receiver<bool>,
    ) -> Option<T> {
        let mut closed = std::pin::pin!(closing.changed());
        let mut has_looked = false;
        std::future::poll_fn(|context| {
            if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                return Poll::Ready(Some(ended));
            }
            if has_looked && !self.is_draining() {
                return Poll::Pending;
            }
            has_looked = true;
            closed.as_mut().poll(context).map(|_| None)
        })
        .await
    }

    /// Returns the state of the gateway and of all its destinations.
    pub(crate) fn status(&self) -> Status {
        let config = self.config();
        let mut destinations: BTreeMap<String, DestinationStatus> = config
            .destinations
            .iter()
            .map(|(name, destination)| (name.clone(), destination.status(true)))
            .collect();
        let is_usable = destinations.values().any(|status| status.is_ready);
        for destination in self.shared.draining.all() {
            let draining = destination.status(false);
            match destinations.get_mut(&*destination.name) {
                Some(status) => status.add_draining(&draining),
                None => {
                    destinations.insert(destination.name.to_string(), draining);
                }
            }
        }
        Status {
            is_ready: is_usable && !self.is_draining(),
            destinations,
            limits: self.listener_metrics.limit_hits.all(),
            has_failed_reload: self.reload_failed.load(Ordering::Acquire),
        }
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

/// Returns the limit that ended a connection, if it was one. The end of an idle connection is none.
pub(crate) fn limit_of_http1(error: &hyper::Error, header_timer: &HeaderTimer) -> Option<&'static str> {
    if error.is_timeout() {
        (!header_timer.is_idle()).then_some("header_time")
    } else if error.is_parse_too_large() {
        Some("header_bytes")
    } else {
        WriteTimeout::is_behind(error).then_some("write_time")
    }
}

struct Counted<'a>(&'a watch::Sender<usize>);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

pub(crate) fn check_command(
    destination: &settings::Destination,
    parent: &BTreeMap<String, String>,
) -> Option<String> {
    let spec = match &destination.backend {
        BackendSpec::Process(spec) => spec,
        BackendSpec::Remote(spec) => return check_remote(spec),
    };
    let program = spec.argv.first().map(String::as_str).unwrap_or_default();
    let child = environment(parent.iter(), spec.inherits, &spec.env);
    resolve(program, spec.cwd.as_deref(), child.path())
        .err()
        .map(|error| error.to_string())
}

/// What can be known about a remote server before it is spoken to.
fn check_remote(spec: &RemoteSpec) -> Option<String> {
    let file = spec.ca_file.as_deref()?;
    remote::certificates(file).err()
}
