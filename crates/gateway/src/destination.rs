//! A destination: one named server, its sessions and its lanes.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use protocol::backend_face::legacy::Introduction;
use protocol::capability;
use protocol::exchange::{CallKey, Client, Principal, SessionKey, Trouble};
use protocol::message::{Member, Message};
use protocol::multiplexer::{self, Multiplexer};
use protocol::session::{self, Accepts, Session};
use protocol::time::Moment;
use protocol::version::Version;
use uuid::Uuid;

use crate::audit::Audit;
use crate::backend_face::process::{Environment, LaunchOrder, Launcher, environment};
use crate::backend_task::ProcessLane;
use crate::clock::Clock;
use crate::lane::{Health, Lane};
use crate::reply::Refusal;
use crate::session_port::SessionPort;
use crate::settings::{self, BackendSpec, Capabilities, ProcessSpec, Secret, Sharing, Start};
use crate::tasks;

/// Sessions that nobody opened on purpose do not live long.
const IMPLICIT_IDLE: Duration = Duration::from_secs(60);
/// A session idle for this long may have to make room for a new one.
const EVICTABLE_IDLE: Duration = Duration::from_secs(60);

/// What a lane is for: clients with equal keys share one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum LaneKey {
    /// Started before anyone came; the first client adopts it.
    Unclaimed,
    Session(SessionKey),
    Clients {
        /// Of whom, where identities do not share.
        identity: Option<(Principal, BTreeMap<String, Secret>)>,
        /// Who can do what, where a server is told exactly that.
        capabilities: Option<capability::Capabilities>,
    },
}

/// What all destinations have in common.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    pub(crate) clock: Clock,
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) audit: Arc<Audit>,
    /// The environment of this process, from which children get an allow-listed part.
    pub(crate) environment: Arc<BTreeMap<String, String>>,
    pub(crate) session_idle: Duration,
    pub(crate) session_numbers: Arc<AtomicU64>,
}

/// One named server.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) name: Arc<str>,
    settings: settings::Destination,
    around: Surroundings,
    sessions: Mutex<HashMap<Uuid, Arc<SessionPort>>>,
    lanes: Mutex<BTreeMap<LaneKey, Arc<Lane>>>,
    /// Supervisors that have not come to their end: children in use and children being ended.
    supervisors: Arc<AtomicUsize>,
    /// Why nothing can be started here, if that is known beforehand.
    broken: Option<String>,
}

/// What a new session was opened for.
pub(crate) enum Opening {
    /// The client's own `initialize`.
    Introduction(Box<Message>, Accepts),
    /// Something else, from a client that never opened a session.
    Implicit(Version),
}

impl Destination {
    pub(crate) fn new(settings: settings::Destination, around: Surroundings, broken: Option<String>) -> Self {
        Self {
            name: settings.name.as_str().into(),
            settings,
            around,
            sessions: Mutex::default(),
            lanes: Mutex::default(),
            supervisors: Arc::default(),
            broken,
        }
    }

    pub(crate) fn max_message_bytes(&self) -> usize {
        self.settings.max_message_bytes
    }

    fn process(&self) -> &ProcessSpec {
        let BackendSpec::Process(spec) = &self.settings.backend;
        spec
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Uuid, Arc<SessionPort>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<LaneKey, Arc<Lane>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts what is to run before anyone comes.
    pub(crate) fn start(&self) {
        if self.broken.is_some() {
            return;
        }
        match (self.process().start, self.process().sharing) {
            (Start::Eager, Sharing::Shared | Sharing::PerIdentity | Sharing::PerSession) => {
                let lane = self.start_lane(&BTreeMap::new(), true);
                self.lanes().insert(LaneKey::Unclaimed, lane);
            }
            (Start::Lazy, _) => {}
        }
    }

    /// The session with this id, if it is this principal's.
    pub(crate) fn session(&self, id: Uuid, principal: &Principal) -> Option<Arc<SessionPort>> {
        self.sessions()
            .get(&id)
            .filter(|port| port.principal() == principal.as_str())
            .cloned()
    }

    pub(crate) fn session_count(&self) -> usize {
        self.sessions().len()
    }

    pub(crate) fn open_calls(&self) -> usize {
        self.lanes().values().map(|lane| lane.open_calls()).sum()
    }

    /// Supervisors that have not come to their end.
    pub(crate) fn supervisors(&self) -> usize {
        self.supervisors.load(Ordering::Acquire)
    }

    /// Why nothing can be started here.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// How each lane's backend is doing.
    pub(crate) fn health(&self) -> Vec<Health> {
        self.lanes().values().map(|lane| lane.health()).collect()
    }

    /// Opens a session: finds it a lane, presents the client there. The call is that of the client's own
    /// `initialize`, if it sent one.
    pub(crate) fn open(
        &self,
        principal: Principal,
        headers: &HeaderMap,
        opening: Opening,
    ) -> Result<(Arc<SessionPort>, Option<CallKey>), Refusal> {
        if self.broken.is_some() {
            return Err(Refusal::BrokenDestination);
        }
        self.make_room()?;
        let now = self.around.clock.now();
        let key = SessionKey(self.around.session_numbers.fetch_add(1, Ordering::Relaxed));
        let capabilities = match &opening {
            Opening::Introduction(message, _) => {
                capability::Capabilities::parse(message.raw(Member::Capabilities))
            }
            Opening::Implicit(_) => capability::Capabilities::default(),
        };
        let client = Arc::new(Client {
            principal,
            capabilities,
        });
        let lane = self.lane_for(key, &client, headers)?;
        let limits = session::Limits::default();
        let (session, call, ask) = match opening {
            Opening::Introduction(message, accepts) => {
                let (session, call, ask) = Session::open(key, client, limits, now, *message, accepts);
                (session, Some(call), ask)
            }
            Opening::Implicit(version) => {
                let (session, ask) = Session::open_implicit(key, client, limits, now, version);
                (session, None, ask)
            }
        };
        let id = Uuid::new_v4();
        let port = Arc::new(SessionPort::new(
            id.to_string(),
            Arc::clone(&self.name),
            session,
            Arc::clone(&lane),
            self.around.clock,
            Arc::clone(&self.around.audit),
        ));
        self.sessions().insert(id, Arc::clone(&port));
        lane.attach(&port);
        lane.ask(ask);
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
        if self.process().sharing == Sharing::PerSession {
            let key = LaneKey::Session(port.key());
            if let Some(lane) = self.lanes().remove(&key) {
                lane.stop();
            }
        }
        tracing::debug!(destination = %self.name, session = %port.hash().as_str(), "session closed");
    }

    /// Below the cap there is room. At the cap an idle session may have to go: implicit ones first.
    fn make_room(&self) -> Result<(), Refusal> {
        let limit = self.settings.max_sessions;
        let now = self.around.clock.now();
        let victim = {
            let sessions = self.sessions();
            if sessions.len() < limit {
                return Ok(());
            }
            sessions
                .values()
                .filter_map(|port| {
                    let since = port.idle_since()?;
                    let implicit = port.is_implicit();
                    (implicit || now.since(since) > EVICTABLE_IDLE)
                        .then(|| (!implicit, since, Arc::clone(port)))
                })
                .min_by_key(|(kept, since, _)| (*kept, *since))
                .map(|(_, _, port)| port)
        };
        match victim {
            Some(port) => {
                tracing::debug!(destination = %self.name, session = %port.hash().as_str(), "evicted to make room");
                self.close(&port);
                Ok(())
            }
            None => Err(Refusal::TooManySessions { limit }),
        }
    }

    fn lane_for(
        &self,
        session: SessionKey,
        client: &Client,
        headers: &HeaderMap,
    ) -> Result<Arc<Lane>, Refusal> {
        let spec = self.process();
        let from_headers: BTreeMap<String, Secret> = spec
            .env_from_headers
            .iter()
            .filter_map(|(variable, header)| {
                let value = headers.get(header)?.to_str().ok()?;
                Some((variable.clone(), Secret::new(value)))
            })
            .collect();
        let capabilities = match spec.capabilities {
            Capabilities::PerClient => Some(client.capabilities.clone()),
            Capabilities::Union => None,
        };
        let key = match spec.sharing {
            Sharing::PerSession => LaneKey::Session(session),
            Sharing::PerIdentity => LaneKey::Clients {
                identity: Some((client.principal.clone(), from_headers.clone())),
                capabilities,
            },
            Sharing::Shared => LaneKey::Clients {
                identity: None,
                capabilities,
            },
        };
        let mut lanes = self.lanes();
        if let Some(lane) = lanes.get(&key) {
            return Ok(Arc::clone(lane));
        }
        // A child that was started before anyone came has nobody's credentials in its environment.
        if from_headers.is_empty()
            && let Some(lane) = lanes.remove(&LaneKey::Unclaimed)
        {
            lanes.insert(key, Arc::clone(&lane));
            return Ok(lane);
        }
        let limit = match spec.sharing {
            Sharing::Shared => spec.max_children,
            Sharing::PerSession | Sharing::PerIdentity => self.settings.max_sessions,
        };
        if lanes.len() >= limit {
            let idle = lanes
                .iter()
                .filter_map(|(key, lane)| Some((lane.idle_since()?, key.clone())))
                .min()
                .map(|(_, key)| key)
                .ok_or(Refusal::TooManyChildren { limit })?;
            if let Some(lane) = lanes.remove(&idle) {
                lane.stop();
            }
        }
        // Children that are being ended still are processes; a storm of sessions must not pile them up.
        if self.supervisors() >= limit.saturating_mul(2).max(16) {
            return Err(Refusal::TooManyChildren { limit });
        }
        let lane = self.start_lane(&from_headers, false);
        lanes.insert(key, Arc::clone(&lane));
        Ok(lane)
    }

    /// Makes a lane and its supervisor.
    fn start_lane(&self, from_headers: &BTreeMap<String, Secret>, eager: bool) -> Arc<Lane> {
        let spec = self.process();
        let limits = multiplexer::Limits {
            request_timeout: self.settings.request_timeout,
            start_timeout: spec.start_timeout,
            max_message_bytes: self.settings.max_message_bytes,
            outgoing_bytes: multiplexer::Limits::default()
                .outgoing_bytes
                .max(2 * self.settings.max_message_bytes),
            ..multiplexer::Limits::default()
        };
        let introduction = match (spec.sharing, spec.capabilities) {
            (Sharing::PerSession, Capabilities::PerClient) => Introduction::Verbatim,
            (_, Capabilities::Union) => Introduction::Union,
            (Sharing::Shared | Sharing::PerIdentity, Capabilities::PerClient) => Introduction::Newest,
        };
        let lane = Arc::new(Lane::new(
            Arc::clone(&self.name),
            self.around.clock,
            Multiplexer::new(limits, introduction),
        ));
        let supervisor = ProcessLane {
            lane: Arc::clone(&lane),
            launcher: Arc::clone(&self.around.launcher),
            order: LaunchOrder {
                argv: spec.argv.clone(),
                env: self.child_environment(from_headers),
                cwd: spec.cwd.clone(),
            },
            max_message_bytes: self.settings.max_message_bytes,
            eager,
        };
        let count = Arc::clone(&self.supervisors);
        count.fetch_add(1, Ordering::AcqRel);
        tasks::spawn("lane", async move {
            supervisor.run().await;
            count.fetch_sub(1, Ordering::AcqRel);
        });
        lane
    }

    fn child_environment(&self, from_headers: &BTreeMap<String, Secret>) -> Environment {
        let spec = self.process();
        let mut child = environment(self.around.environment.iter(), &spec.env);
        for (name, value) in from_headers {
            child.set(name, value);
        }
        child
    }

    /// Expires what has been idle too long and lets sessions and lanes tidy up.
    pub(crate) fn tick(&self, now: Moment) {
        let ports: Vec<Arc<SessionPort>> = self.sessions().values().cloned().collect();
        for port in ports {
            port.tick(now);
            let limit = if port.is_implicit() {
                IMPLICIT_IDLE
            } else {
                self.around.session_idle
            };
            if port.idle_since().is_some_and(|since| now.since(since) > limit) {
                tracing::debug!(destination = %self.name, session = %port.hash().as_str(), "session expired");
                self.close(&port);
            }
        }
        let spec = self.process();
        let mut lanes = self.lanes();
        let keep = usize::from(spec.start == Start::Eager);
        let idle: Vec<LaneKey> = lanes
            .iter()
            .filter(|(_, lane)| {
                lane.idle_since()
                    .is_some_and(|since| now.since(since) > spec.linger)
            })
            .map(|(key, _)| key.clone())
            .collect();
        // An eager destination keeps one child, whoever it was last used by.
        let spare = lanes.len().saturating_sub(keep);
        for key in idle.into_iter().take(spare) {
            if let Some(lane) = lanes.remove(&key) {
                tracing::debug!(destination = %self.name, "child no longer used");
                lane.stop();
            }
        }
    }

    /// Ends every session and every child. Whoever still waits is told that the server is going (503), and
    /// not that the session is unknown (404), at which clients would open another one here.
    pub(crate) fn stop(&self) {
        let trouble = Arc::new(Trouble {
            what: "the gateway is shutting down".into(),
            ..Trouble::default()
        });
        let lanes: Vec<Arc<Lane>> = self.lanes().values().cloned().collect();
        for lane in lanes {
            lane.link_down(&trouble);
            lane.unavailable(&trouble, Duration::from_secs(1));
        }
        let ports: Vec<Arc<SessionPort>> = self.sessions().values().cloned().collect();
        for port in ports {
            self.close(&port);
        }
        for (_, lane) in std::mem::take(&mut *self.lanes()) {
            lane.stop();
        }
    }
}
