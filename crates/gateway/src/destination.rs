//! A destination as clients address it: its name, its sessions, its modern requests, its policy. The server behind it
//! is its [`Upstream`].

mod closing;
mod errands;
mod eviction;
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
use protocol::version::Version;
use rustc_hash::FxHashMap;
use uuid::Uuid;

use crate::backend_face::process::Launcher;
use crate::buffered::Buffered;
use crate::clock::Clock;
use crate::errand_port::ErrandPort;
use crate::lane::Lane;
use crate::metrics::{LimitHits, Traffic};
use crate::record::Recorder;
use crate::reply::Refusal;
use crate::seal::Sealer;
use crate::server_eras::EraMemory;
use crate::session_port::{LineListener, SessionPort};
use crate::settings::{self, LimitSettings};
use crate::status::DestinationStatus;
use crate::upstream::{Upstream, UpstreamContext};

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

/// What clients address by one name.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) name: Arc<str>,
    settings: Arc<settings::Destination>,
    around: Surroundings,
    /// Rialto draws the keys at random. A client may look for any key, but cannot add one, so no peer can choose keys that
    /// collide.
    sessions: Mutex<FxHashMap<Uuid, Arc<SessionPort>>>,
    /// Why new clients are refused.
    closing: OnceLock<Closing>,
    /// Modern calls that wait for their client, by the name in their sealed state.
    parked: Mutex<HashMap<u128, Arc<ErrandPort>>>,
    /// Modern listens that are open.
    listens: Mutex<HashMap<SessionKey, Weak<ErrandPort>>>,
    /// Clients of the old transport.
    pub(crate) old_streams: OldStreams,
    pub(crate) traffic: Arc<Traffic>,
    /// The server behind it.
    pub(crate) upstream: Upstream,
}

/// What a new session was opened for.
pub(crate) enum Opening {
    /// The client's own `initialize`.
    Introduction(Message, Accepts),
    /// Something else, from a client that never opened a session.
    Implicit(Version),
}

impl Surroundings {
    fn of_upstreams(&self) -> UpstreamContext {
        UpstreamContext {
            clock: self.clock,
            launcher: Arc::clone(&self.launcher),
            environment: Arc::clone(&self.environment),
            eras: Arc::clone(&self.eras),
            tells_callers_apart: self.tells_callers_apart,
        }
    }
}

impl Destination {
    pub(crate) fn new(settings: settings::Destination, around: Surroundings, broken: Option<String>) -> Self {
        let settings = Arc::new(settings);
        let upstream = Upstream::new(Arc::clone(&settings), around.of_upstreams(), broken);
        Self {
            name: Arc::clone(upstream.name()),
            settings,
            around,
            sessions: Mutex::default(),
            closing: OnceLock::new(),
            parked: Mutex::default(),
            listens: Mutex::default(),
            old_streams: OldStreams::default(),
            traffic: Arc::clone(upstream.traffic()),
            upstream,
        }
    }

    /// Counts on where another destination of this name stopped, so that no counter goes back at a reload.
    pub(crate) fn counting_on(mut self, predecessor: &Self) -> Self {
        self.upstream = self.upstream.counting_on(&predecessor.upstream);
        self.traffic = Arc::clone(self.upstream.traffic());
        self
    }

    /// Returns whether these settings ask for just this destination. One that could not start is worth another try.
    pub(crate) fn is_as_wanted(&self, settings: &settings::Destination, around: &Surroundings) -> bool {
        let is_same_world = self.around.tells_callers_apart == around.tells_callers_apart;
        *self.settings == *settings && is_same_world && self.upstream.broken().is_none()
    }

    /// Returns the instance for a client, if need be in the place of another one.
    fn lane_for(
        &self,
        session: Option<SessionKey>,
        client: &Client,
        headers: &HeaderMap,
    ) -> Result<Arc<Lane>, Refusal> {
        let make_room = |limit| self.free_instance(limit, &client.principal);
        self.upstream.lane_for(session, client, headers, make_room)
    }

    /// Returns the state of this destination; `is_configured` is false for one that drains after a reload.
    pub(crate) fn status(&self, is_configured: bool) -> DestinationStatus {
        let ports: Vec<Arc<SessionPort>> = self.sessions().values().cloned().collect();
        let listens = {
            let listens = self.listens.lock();
            let open = listens.values().filter(|listen| listen.strong_count() > 0);
            open.count()
        };
        let upstream = self.upstream.status();
        DestinationStatus {
            is_configured,
            transport: upstream.transport,
            state: upstream.state,
            is_ready: is_configured && upstream.is_ready,
            trouble: upstream.trouble,
            sessions: ports.len(),
            parked: self.parked.lock().len(),
            listens,
            children: upstream.children,
            tools: upstream.tools,
            instances: upstream.instances,
            counters: upstream.counters,
            events_lost: ports.iter().map(|port| port.events_lost()).sum(),
            limits: self.traffic.overloads.all(),
        }
    }

    /// Moves a session to an instance of its own principal if its instance is another principal's by now. It stays where
    /// that has something left for it, and where there is no room for another instance.
    pub(crate) fn unshare(&self, port: &Arc<SessionPort>) {
        if port.instance().is_owned() && self.check_open().is_ok() {
            port.leave_instance(|client| self.upstream.own_instance(client));
        }
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

    pub(crate) fn max_message_bytes(&self) -> usize {
        self.settings.max_message_bytes
    }

    fn sessions(&self) -> MutexGuard<'_, FxHashMap<Uuid, Arc<SessionPort>>> {
        self.sessions.lock()
    }

    /// The session with this id, if it is this principal's.
    pub(crate) fn session(&self, id: Uuid, principal: &Principal) -> Option<Arc<SessionPort>> {
        self.sessions()
            .get(&id)
            .filter(|port| port.principal() == principal.as_str())
            .cloned()
    }

    /// Waits until no call is open.
    pub(crate) async fn calls_ended(&self) {
        let is_ended = || self.upstream.open_calls() == 0;
        self.traffic.idle.wait_until(is_ended).await;
    }

    /// Waits until no call is open or may be continued, and no client may come back for an answer.
    pub(crate) async fn clients_served(&self) {
        let is_served =
            || self.upstream.open_calls() == 0 && self.parked_calls() == 0 && !self.has_unread_answers();
        self.traffic.idle.wait_until(is_served).await;
    }

    /// Whether the policy lets a message through. By the body: what headers say of it was compared with it, or does
    /// not count.
    pub(crate) fn judge_tool(&self, message: &Message) -> Result<(), Refusal> {
        self.upstream
            .tools()
            .judge(message)
            .map_err(|denied| Refusal::ToolDenied { tool: denied.name })
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
        self.upstream.end_session(port.key());
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
        self.upstream.tick(now);
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
        self.upstream.dismiss(&leaves);
        ports.len()
    }

    /// Ends every session and every child. Requests that still wait are answered with 503 (the server is
    /// going) and not with 404 (unknown session), at which clients would open another session here.
    pub(crate) fn stop(&self, why: Closing) {
        self.close_door(why);
        let trouble = Arc::new(Trouble {
            what: why.words().into(),
            ..Trouble::default()
        });
        self.upstream.fail_calls(&trouble);
        self.dismiss(|_| true);
        self.upstream.stop();
    }
}
