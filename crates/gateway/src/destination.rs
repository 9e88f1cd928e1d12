//! A destination: one named server, its sessions and its lanes.

mod closing;
mod era;
mod errands;
mod eviction;
mod lanes;
mod old_streams;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use http::HeaderMap;
use parking_lot::{Mutex, MutexGuard};
use protocol::exchange::{CallKey, Client, Principal, SessionKey, Trouble};
use protocol::message::{Member, Message};
use protocol::session::{self, Accepts, Session};
use protocol::time::Moment;
use protocol::tool_policy::ToolPolicy;
use protocol::version::{Era, Version};
use rustc_hash::FxHashMap;
use tokio::sync::watch;
use uuid::Uuid;

use crate::backend_face::process::Launcher;
use crate::backend_face::remote::Server;
use crate::buffered::Buffered;
use crate::clock::Clock;
use crate::errand_port::ErrandPort;
use crate::lane::Lane;
use crate::metrics::{LimitHits, Traffic};
use crate::record::Recorder;
use crate::reply::{self, Refusal};
use crate::seal::Sealer;
use crate::server_eras::{EraMemory, ServerEras};
use crate::session_port::{LineListener, SessionPort};
use crate::settings::{
    self, BackendSpec, LaneRules, LimitSettings, ProcessSpec, RemoteSpec, Sharing, SignIn, Start, Transport,
};
use crate::status::{Depths, DestinationStatus, Health, State};
use lanes::{LaneKey, LaneRoll, Started};

pub(crate) use closing::{Closing, Draining, SessionUse};
pub(crate) use errands::Journey;
pub(crate) use old_streams::{Next, OldStream, OldStreams};

/// Sessions that nobody opened on purpose do not live long.
const IMPLICIT_IDLE: Duration = Duration::from_secs(60);

/// What all destinations have in common.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    pub(crate) clock: Clock,
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) recorder: Arc<Recorder>,
    /// The environment of this process, from which children get an allow-listed part.
    pub(crate) environment: Arc<BTreeMap<String, String>>,
    pub(crate) session_numbers: Arc<AtomicU64>,
    pub(crate) sealer: Arc<Sealer>,
    /// What waits to be read, in the whole gateway.
    pub(crate) buffered: Arc<Buffered>,
    pub(crate) limits: Arc<LimitSettings>,
    pub(crate) limit_hits: Arc<LimitHits>,
    pub(crate) draining: Arc<Draining>,
    /// What servers have shown of their eras, across reloads.
    pub(crate) eras: Arc<EraMemory>,
    /// There is authentication, so that what belongs to one caller must be kept from another.
    pub(crate) tells_callers_apart: bool,
}

/// One named server.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) name: Arc<str>,
    settings: settings::Destination,
    around: Surroundings,
    /// Rialto draws the keys at random. A client may look for any key, but cannot add one, so no peer can choose keys that
    /// collide.
    sessions: Mutex<FxHashMap<Uuid, Arc<SessionPort>>>,
    lanes: Mutex<BTreeMap<LaneKey, Arc<Lane>>>,
    /// Supervisors that have not come to their end: children in use and children being ended.
    supervisors: Arc<watch::Sender<usize>>,
    /// Why new clients are refused.
    closing: OnceLock<Closing>,
    /// Why nothing can be started here, if that is known beforehand.
    broken: Option<String>,
    /// What the server has shown of its eras.
    eras: Arc<ServerEras>,
    /// Modern calls that wait for their client, by the name in their sealed state.
    parked: Mutex<HashMap<u128, Arc<ErrandPort>>>,
    /// Modern listens that are open.
    listens: Mutex<HashMap<SessionKey, Weak<ErrandPort>>>,
    /// Clients of the old transport.
    pub(crate) old_streams: OldStreams,
    pub(crate) traffic: Arc<Traffic>,
    roll: Arc<Mutex<LaneRoll>>,
    tools: Arc<ToolPolicy>,
    backend: Backend,
}

/// What the lanes are made of.
#[derive(Debug)]
enum Backend {
    Process(Box<ProcessSpec>),
    /// The server that all lanes reach over HTTP.
    Remote(Arc<Server>),
}

/// What a new session was opened for.
pub(crate) enum Opening {
    /// The client's own `initialize`.
    Introduction(Message, Accepts),
    /// Something else, from a client that never opened a session.
    Implicit(Version),
}

impl Destination {
    pub(crate) fn new(settings: settings::Destination, around: Surroundings, broken: Option<String>) -> Self {
        let backend = match &settings.backend {
            BackendSpec::Process(spec) => Backend::Process(Box::new(spec.clone())),
            BackendSpec::Remote(spec) => Backend::Remote(Arc::new(Server::new(spec.clone()))),
        };
        let eras = around.eras.of(&settings.backend);
        Self {
            name: settings.name.as_str().into(),
            tools: Arc::new(settings.tools.clone()),
            settings,
            around,
            sessions: Mutex::default(),
            lanes: Mutex::default(),
            supervisors: Arc::default(),
            closing: OnceLock::new(),
            broken,
            eras,
            parked: Mutex::default(),
            listens: Mutex::default(),
            old_streams: OldStreams::default(),
            traffic: Arc::default(),
            roll: Arc::default(),
            backend,
        }
    }

    /// Counts on where another destination of this name stopped, so that no counter goes back at a reload.
    pub(crate) fn counting_on(mut self, predecessor: &Self) -> Self {
        self.traffic = Arc::clone(&predecessor.traffic);
        self.roll = Arc::clone(&predecessor.roll);
        self
    }

    /// Whether these settings ask for just this destination. One that could not start is worth another try.
    pub(crate) fn is_as_wanted(&self, settings: &settings::Destination, around: &Surroundings) -> bool {
        let is_same_world = self.around.tells_callers_apart == around.tells_callers_apart;
        self.settings == *settings && is_same_world && self.broken.is_none()
    }

    /// Whether clients of the old transport are served.
    pub(crate) fn serves_old_transport(&self) -> bool {
        self.settings.legacy_sse
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.around.recorder
    }

    pub(crate) fn max_sessions(&self) -> usize {
        self.settings.max_sessions
    }

    /// Somebody really wants something of the server: signing in may do what lasts and is seen.
    pub(crate) fn wake(&self) {
        if let BackendSpec::Remote(RemoteSpec {
            sign_in: SignIn::OAuth(sign_in),
            ..
        }) = &self.settings.backend
        {
            sign_in.wake();
        }
    }

    pub(crate) fn max_message_bytes(&self) -> usize {
        self.settings.max_message_bytes
    }

    /// How the server is reached, for people.
    pub(crate) fn transport(&self) -> &'static str {
        match self.remote().map(|server| server.transport()) {
            None => "stdio",
            Some(Transport::Auto) => "http",
            Some(Transport::StreamableHttp) => "streamable_http",
            Some(Transport::Sse) => "sse",
        }
    }

    /// The server itself, if it is reached over HTTP.
    fn remote(&self) -> Option<&Arc<Server>> {
        match &self.backend {
            Backend::Process(_) => None,
            Backend::Remote(server) => Some(server),
        }
    }

    fn rules(&self) -> &LaneRules {
        &self.settings.lanes
    }

    /// Whether there is a server before anybody asks for one.
    fn starts_eagerly(&self) -> bool {
        match &self.settings.backend {
            BackendSpec::Process(spec) => spec.start == Start::Eager,
            BackendSpec::Remote(_) => false,
        }
    }

    fn sessions(&self) -> MutexGuard<'_, FxHashMap<Uuid, Arc<SessionPort>>> {
        self.sessions.lock()
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<LaneKey, Arc<Lane>>> {
        self.lanes.lock()
    }

    /// The lanes at this moment: they are called without the lock of their map.
    fn lane_list(&self) -> Vec<Arc<Lane>> {
        self.lanes().values().cloned().collect()
    }

    /// Starts what is to run before anyone comes.
    pub(crate) fn start(&self) {
        if self.broken.is_some() {
            return;
        }
        if self.starts_eagerly() {
            let (lane, supervisor) = self.new_lane(&BTreeMap::new(), Era::Modern, Started::BeforeClients);
            self.lanes().insert(self.key_before_clients(), Arc::clone(&lane));
            self.supervise(lane, supervisor);
        }
    }

    /// The session with this id, if it is this principal's.
    pub(crate) fn session(&self, id: Uuid, principal: &Principal) -> Option<Arc<SessionPort>> {
        self.sessions()
            .get(&id)
            .filter(|port| port.principal() == principal.as_str())
            .cloned()
    }

    pub(crate) fn open_calls(&self) -> usize {
        self.lane_list().iter().map(|lane| lane.open_calls()).sum()
    }

    /// Supervisors that have not come to their end.
    pub(crate) fn supervisors(&self) -> usize {
        *self.supervisors.borrow()
    }

    /// Waits until every supervisor has ended.
    pub(crate) async fn supervisors_ended(&self) {
        // The sender is here, so the channel is not closed.
        let _ = self.supervisors.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Waits until no call is open.
    pub(crate) async fn calls_ended(&self) {
        self.traffic.idle.wait_until(|| self.open_calls() == 0).await;
    }

    /// Waits until no call is open or may be continued, and no client may come back for an answer.
    pub(crate) async fn clients_served(&self) {
        let is_served = || self.open_calls() == 0 && self.parked_calls() == 0 && !self.has_unread_answers();
        self.traffic.idle.wait_until(is_served).await;
    }

    /// Why nothing can be started here.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Whether the policy lets a message through. By the body: what headers say of it was compared with it, or does
    /// not count.
    pub(crate) fn judge_tool(&self, message: &Message) -> Result<(), Refusal> {
        self.tools
            .judge(message)
            .map_err(|denied| Refusal::ToolDenied { tool: denied.name })
    }

    /// Returns the state of this destination; `is_configured` is false for one that drains after a reload.
    pub(crate) fn status(&self, is_configured: bool) -> DestinationStatus {
        let ports: Vec<Arc<SessionPort>> = self.sessions().values().cloned().collect();
        let in_use = self.lane_list();
        let health: Vec<Health> = in_use.iter().map(|lane| lane.health()).collect();
        let (instances, mut counters) = {
            let roll = self.roll.lock();
            (roll.lanes.clone(), roll.retired)
        };
        let instances: Vec<Depths> = instances.iter().map(|lane| lane.depths()).collect();
        for instance in &instances {
            counters.add(&instance.counters);
        }
        let is_running = |health: &&Health| matches!(health, Health::Running { .. } | Health::Ready { .. });
        let trouble_of = |health: &Health| match health {
            Health::BackingOff(trouble) | Health::Failed(trouble) => Some(trouble.what.clone()),
            Health::Idle
            | Health::Starting
            | Health::Running { .. }
            | Health::Ready { .. }
            | Health::Stopped => None,
        };
        let (state, trouble) = match &self.broken {
            Some(_) => (State::Failed, Some(reply::CANNOT_RUN.to_owned())),
            None => (State::best(&health), health.iter().find_map(trouble_of)),
        };
        let listens = {
            let listens = self.listens.lock();
            let open = listens.values().filter(|listen| listen.strong_count() > 0);
            open.count()
        };
        DestinationStatus {
            is_configured,
            transport: self.transport(),
            state,
            is_ready: is_configured && self.is_ready(),
            trouble,
            sessions: ports.len(),
            parked: self.parked.lock().len(),
            listens,
            children: health.iter().filter(is_running).count(),
            tools: in_use.iter().find_map(|lane| lane.shown_tools()),
            instances,
            counters,
            events_lost: ports.iter().map(|port| port.events_lost()).sum(),
            limits: self.traffic.overloads.all(),
        }
    }

    /// Nobody can be served at the moment: every backend that was wanted is away.
    pub(crate) fn is_away(&self) -> bool {
        let health = self.health();
        !health.is_empty()
            && health
                .iter()
                .all(|health| matches!(health, Health::BackingOff(_) | Health::Failed(_)))
    }

    /// Returns whether clients can be served: the server has answered, or is not there because no client has asked for
    /// it. A server that is started before clients come is waited for.
    pub(crate) fn is_ready(&self) -> bool {
        let is_promised = self.starts_eagerly() && self.rules().sharing != Sharing::PerSession;
        let health = self.health();
        let is_fine = |health: &Health| match health {
            Health::Ready { .. } => true,
            Health::Idle | Health::Stopped | Health::Starting | Health::Running { .. } => !is_promised,
            Health::BackingOff(_) | Health::Failed(_) => false,
        };
        self.broken.is_none() && (health.is_empty() || health.iter().any(is_fine))
    }

    /// How each lane's backend is doing.
    pub(crate) fn health(&self) -> Vec<Health> {
        self.lane_list().iter().map(|lane| lane.health()).collect()
    }

    /// Opens a session: finds it a lane, presents the client there. The call is that of the client's own
    /// `initialize`, if it sent one.
    pub(crate) fn open(
        &self,
        principal: Principal,
        headers: &HeaderMap,
        opening: Opening,
    ) -> Result<(Arc<SessionPort>, Option<CallKey>), Refusal> {
        let limits = self.session_limits();
        self.open_for(principal, headers, opening, limits, None)
    }

    /// What a session here may hold, unless its door has needs of its own.
    pub(crate) fn session_limits(&self) -> session::Limits {
        let mut limits = session::Limits::default();
        limits.calls = self.settings.max_calls.unwrap_or(limits.calls);
        limits.retention.bytes = self.around.limits.buffered_bytes_per_session;
        limits.listeners = self.around.limits.streams_per_session;
        limits
    }

    /// The same, with limits of one's own.
    pub(crate) fn open_within(
        &self,
        principal: Principal,
        headers: &HeaderMap,
        opening: Opening,
        limits: session::Limits,
    ) -> Result<(Arc<SessionPort>, Option<CallKey>), Refusal> {
        self.open_for(principal, headers, opening, limits, None)
    }

    /// The same for a client that reads lines: the listener is given everything that the session says.
    pub(crate) fn open_on_lines(
        &self,
        principal: Principal,
        headers: &HeaderMap,
        opening: Opening,
        listener: Arc<dyn LineListener>,
    ) -> Result<(Arc<SessionPort>, Option<CallKey>), Refusal> {
        let limits = self.session_limits();
        self.open_for(principal, headers, opening, limits, Some(listener))
    }

    fn open_for(
        &self,
        principal: Principal,
        headers: &HeaderMap,
        opening: Opening,
        limits: session::Limits,
        listener: Option<Arc<dyn LineListener>>,
    ) -> Result<(Arc<SessionPort>, Option<CallKey>), Refusal> {
        self.check_open()?;
        self.make_room(&principal)?;
        let now = self.around.clock.now();
        let key = SessionKey(self.around.session_numbers.fetch_add(1, Ordering::Relaxed));
        let (declared, info) = match &opening {
            Opening::Introduction(message, _) => (
                message.raw_copy(Member::Capabilities),
                message.raw_copy(Member::ClientInfo),
            ),
            Opening::Implicit(_) => (None, None),
        };
        let client = Arc::new(Client::declaring(principal, declared, info));
        let lane = self.lane_for(Some(key), &client, headers)?;
        let (session, call, ask) = match opening {
            Opening::Introduction(message, accepts) => {
                let (session, call, ask) = Session::open(key, client, limits, now, message, accepts);
                (session, Some(call), ask)
            }
            Opening::Implicit(version) => {
                let (session, ask) = Session::open_implicit(key, client, limits, now, version);
                (session, None, ask)
            }
        };
        let session = match listener {
            Some(_) => session.on_lines(),
            None => session,
        };
        let id = Uuid::new_v4();
        let port = Arc::new(SessionPort::new(
            id.to_string(),
            Arc::clone(&self.name),
            session,
            Arc::clone(&lane),
            self.around.clock,
            Arc::clone(&self.around.recorder),
            listener,
        ));
        port.count_events(&self.around.buffered);
        self.traffic.sessions_opened.fetch_add(1, Ordering::Relaxed);
        self.sessions().insert(id, Arc::clone(&port));
        lane.attach(key, Arc::<SessionPort>::clone(&port));
        lane.ask(now, ask);
        tracing::debug!(destination = %self.name, session = %port.hash().as_str(), "session opened");
        Ok((port, call))
    }

    /// Ends a session. Its child is ended too, if it was the session's own.
    pub(crate) fn close(&self, port: &Arc<SessionPort>) {
        let id = Uuid::parse_str(port.id()).unwrap_or_default();
        if self.sessions().remove(&id).is_none() {
            return;
        }
        port.end();
        if self.rules().sharing == Sharing::PerSession {
            let key = LaneKey::Session(port.key());
            if let Some(lane) = self.lanes().remove(&key) {
                lane.stop();
            }
        }
        tracing::debug!(destination = %self.name, session = %port.hash().as_str(), "session closed");
    }

    /// Expires what has been idle too long and lets sessions and lanes tidy up.
    pub(crate) fn tick(&self, now: Moment, session_idle: Duration) {
        let ports: Vec<Arc<SessionPort>> = self.sessions().values().cloned().collect();
        for port in ports {
            port.tick(now);
            if port.instance().is_owned() && port.instance().keeps_waiting(port.key()) {
                self.unshare(&port);
            }
            let limit = if port.is_implicit() {
                IMPLICIT_IDLE
            } else {
                session_idle
            };
            if port.idle_since().is_some_and(|since| now.since(since) > limit) {
                tracing::debug!(destination = %self.name, session = %port.hash().as_str(), "session expired");
                self.traffic.sessions_expired.fetch_add(1, Ordering::Relaxed);
                self.close(&port);
            }
        }
        self.forget_errands(now);
        self.traffic.idle.note_change();
        if self.remote().is_some() {
            self.eras.expire(now);
        }
        self.stop_idle_lanes(now);
    }

    /// Ends what these principals hold open: sessions with their calls and streams, listens, calls that wait for their
    /// client, and children of their own. Gives the number of sessions.
    pub(crate) fn dismiss(&self, leaves: impl Fn(&str) -> bool) -> usize {
        let mut ports: Vec<Arc<SessionPort>> = self.sessions().values().cloned().collect();
        ports.retain(|port| leaves(port.principal()));
        for port in &ports {
            self.close(port);
        }
        self.old_streams.end_of(&leaves);
        let listens: Vec<Arc<ErrandPort>> = {
            let listens = self.listens.lock();
            listens.values().filter_map(Weak::upgrade).collect()
        };
        for port in listens.iter().filter(|port| leaves(port.principal())) {
            port.dismiss();
        }
        let parked: Vec<Arc<ErrandPort>> = {
            let mut parked = self.parked.lock();
            let gone = parked.extract_if(|_, port| leaves(port.principal()));
            gone.map(|(_, port)| port).collect()
        };
        for port in parked {
            port.give_up();
        }
        let is_theirs = |key: &LaneKey| match key {
            LaneKey::Clients {
                identity: Some((principal, _)),
                ..
            } => leaves(principal.as_str()),
            LaneKey::Clients { identity: None, .. } | LaneKey::Session(_) | LaneKey::Unclaimed => false,
        };
        let mut lanes = self.lanes();
        lanes.retain(|key, lane| {
            let goes = is_theirs(key);
            if goes {
                lane.stop();
            }
            !goes
        });
        ports.len()
    }

    /// Ends every session and every child. Whoever still waits is told that the server is going (503), and
    /// not that the session is unknown (404), at which clients would open another one here.
    pub(crate) fn stop(&self, why: Closing) {
        self.close_door(why);
        let trouble = Arc::new(Trouble {
            what: why.words().into(),
            ..Trouble::default()
        });
        for lane in self.lane_list() {
            lane.link_down(&trouble);
            lane.unavailable(&trouble, Duration::from_secs(1));
        }
        self.dismiss(|_| true);
        for (_, lane) in std::mem::take(&mut *self.lanes()) {
            lane.stop();
        }
    }
}
