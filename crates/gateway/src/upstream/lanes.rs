//! The instances of an upstream: which clients share one, and how it is started and looked after.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue};
use protocol::backend_face::legacy::Introduction;
use protocol::capability;
use protocol::exchange::{Client, Principal, SessionKey, Trouble};
use protocol::multiplexer::{self, Counters, Multiplexer};
use protocol::time::Moment;
use protocol::version::Era;

use super::{Backend, Upstream};
use crate::backend_face::process::{Environment, LaunchOrder, environment};
use crate::backend_face::remote::RemoteLane;
use crate::backend_task::ProcessLane;
use crate::lane::Lane;
use crate::reply::Refusal;
use crate::settings::{BackendSpec, Capabilities, ProcessSpec, Secret, Sharing};
use crate::status::Health;
use crate::tasks;

/// The era that a server is introduced to in where it may be either.
const PREFERRED: Era = Era::Modern;

/// The pause before a supervisor that panicked begins anew.
const AFTER_PANIC: Duration = Duration::from_millis(500);

/// What a lane is for: clients with equal keys share one. The era of the server is no part of it: clients of both
/// eras share an instance and are translated.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LaneKey {
    /// Started before any client came, without credentials and capabilities: the first client that needs a new
    /// instance takes it over.
    Unclaimed,
    Session(SessionKey),
    Clients {
        /// Of whom, where identities do not share.
        identity: Option<Identity>,
        /// What the server was told that its clients can do, where it is told exactly that.
        capabilities: Option<capability::Capabilities>,
    },
}

/// A principal, with what its headers pass on to the server.
pub(crate) type Identity = (Principal, BTreeMap<String, Secret>);

impl LaneKey {
    fn is_of(&self, wanted: &Option<Identity>) -> bool {
        match self {
            Self::Clients { identity, .. } => identity == wanted,
            Self::Unclaimed | Self::Session(_) => false,
        }
    }
}

/// When an instance is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Started {
    /// It runs, and is introduced to, before any client comes.
    BeforeClients,
    /// A client waits for it.
    ForClient,
}

/// Every lane that has a supervisor, in use or being ended, and what those counted that are gone: a sum over these
/// never goes back.
#[derive(Debug, Default)]
pub(super) struct LaneRoll {
    pub(super) lanes: Vec<Arc<Lane>>,
    pub(super) retired: Counters,
}

impl LaneRoll {
    fn retire(&mut self, lane: &Arc<Lane>, counters: &Counters) {
        self.retired.add(counters);
        self.lanes.retain(|known| !Arc::ptr_eq(known, lane));
    }
}

/// Whoever looks after the server of a lane.
pub(super) enum Supervisor {
    Process(ProcessLane),
    Remote(RemoteLane),
}

impl Supervisor {
    async fn run(&self) {
        match self {
            Self::Process(lane) => lane.run().await,
            Self::Remote(lane) => lane.run().await,
        }
    }
}

impl Upstream {
    /// What of a client's headers its server is given: by the name it is given under. A header that stands twice, or that
    /// cannot be read, is refused: another value would stand in its place.
    pub(super) fn passed_on(&self, headers: &HeaderMap) -> Result<BTreeMap<String, Secret>, Refusal> {
        let given = |name: &str, header: &str| {
            let mut values = headers.get_all(header).iter();
            let value = values.next()?;
            let read = match (value.to_str(), values.next()) {
                (Ok(value), None) => Ok((name.to_owned(), Secret::new(value))),
                (Ok(_), Some(_)) | (Err(_), _) => Err(Refusal::UnclearHeader(header.to_owned())),
            };
            Some(read)
        };
        match &self.settings.backend {
            BackendSpec::Process(spec) => spec
                .env_from_headers
                .iter()
                .filter_map(|(variable, header)| given(variable, header))
                .collect(),
            BackendSpec::Remote(spec) => spec
                .forward_headers
                .iter()
                .filter_map(|header| given(header.as_str(), header.as_str()))
                .collect(),
        }
    }

    /// The key of the instance that is started before any client comes.
    pub(super) fn key_before_clients(&self) -> LaneKey {
        let rules = self.rules();
        match (rules.sharing, rules.capabilities) {
            (Sharing::Shared, Capabilities::Union) => LaneKey::Clients {
                identity: None,
                capabilities: None,
            },
            (Sharing::Shared, Capabilities::PerClient) | (Sharing::PerSession | Sharing::PerIdentity, _) => {
                LaneKey::Unclaimed
            }
        }
    }

    /// The instance for a client: of a session, or of a modern client that has none.
    ///
    /// An instance of its session, of its identity, or of everybody, as `process` says. Under `capabilities:
    /// per_client` a server that is told once what its clients can do (every legacy one) is shared only by clients
    /// with the same capabilities; where there is no room for another instance, the client joins the one that suits
    /// it best. `make_room` ends an instance where all that may run do.
    pub(crate) fn lane_for(
        &self,
        session: Option<SessionKey>,
        client: &Client,
        headers: &HeaderMap,
        make_room: impl Fn(usize) -> Result<(), Refusal>,
    ) -> Result<Arc<Lane>, Refusal> {
        let rules = self.rules();
        let from_headers = self.passed_on(headers)?;
        let (key, preferred) = match (rules.sharing, session) {
            // It is introduced in that client's own words.
            (Sharing::PerSession, Some(session)) => (LaneKey::Session(session), Era::Legacy),
            // Without sessions the next smaller unit is who is calling.
            (Sharing::PerIdentity, _) | (Sharing::PerSession, None) => {
                let identity = Some((client.principal.clone(), from_headers.clone()));
                (self.key_of(identity, client), PREFERRED)
            }
            (Sharing::Shared, _) => (self.key_of(None, client), PREFERRED),
        };
        let (key, shared) = self.unshared_key(key, &client.principal);
        let limit = rules.max_children;
        loop {
            let known = self.lanes().get(&key).map(Arc::clone);
            if let Some(lane) = known {
                return Ok(lane);
            }
            let equivalent = self.equivalent(&key);
            let mut lanes = self.lanes();
            if let Some(lane) = lanes.get(&key) {
                return Ok(Arc::clone(lane));
            }
            if let Some(lane) = equivalent.and_then(|known| lanes.remove(&known)) {
                lanes.insert(key, Arc::clone(&lane));
                return Ok(lane);
            }
            // A child that was started before anyone came has nobody's credentials in its environment.
            if from_headers.is_empty()
                && let Some(lane) = lanes.remove(&LaneKey::Unclaimed)
            {
                lanes.insert(key, Arc::clone(&lane));
                drop(lanes);
                lane.plan_eras(self.era_plan(preferred));
                return Ok(lane);
            }
            if lanes.len() < limit {
                if self.has_too_many_supervisors() {
                    let joined = shared.or_else(|| best_fit(&lanes, &key, client));
                    return joined.ok_or(Refusal::TooManyChildren { limit });
                }
                let (lane, supervisor) = self.new_lane(&from_headers, preferred, Started::ForClient);
                lanes.insert(key, Arc::clone(&lane));
                drop(lanes);
                self.supervise(Arc::clone(&lane), supervisor);
                return Ok(lane);
            }
            drop(lanes);
            if let Err(refusal) = make_room(limit) {
                return shared
                    .or_else(|| best_fit(&self.lanes(), &key, client))
                    .ok_or(refusal);
            }
        }
    }

    /// Returns the key of an instance of the principal's own, and the shared instance, if that one has asked another
    /// principal: neither is to wait for the other's answers. Where there is no room for another instance, the shared one
    /// is used all the same.
    fn unshared_key(&self, key: LaneKey, principal: &Principal) -> (LaneKey, Option<Arc<Lane>>) {
        let LaneKey::Clients {
            identity: None,
            capabilities,
        } = &key
        else {
            return (key, None);
        };
        let shared = self.lanes().get(&key).map(Arc::clone);
        let Some(shared) = shared.filter(|lane| !lane.suits(principal)) else {
            return (key, None);
        };
        let own = LaneKey::Clients {
            identity: Some((principal.clone(), BTreeMap::new())),
            capabilities: capabilities.clone(),
        };
        (own, Some(shared))
    }

    /// Returns the key of an instance that was started before its server was known to be modern, for clients of one kind,
    /// if `key` is for clients of every kind: a modern server is told with every request what its client can do.
    fn equivalent(&self, key: &LaneKey) -> Option<LaneKey> {
        let LaneKey::Clients {
            identity,
            capabilities: None,
        } = key
        else {
            return None;
        };
        let lanes = self.lanes().clone();
        let mut theirs = lanes.into_iter().filter(|(key, _)| key.is_of(identity));
        let found = theirs.find(|(_, lane)| lane.agreed_era() == Some(Era::Modern));
        found.map(|(key, _)| key)
    }

    /// Stops the instances that no client has used for long enough.
    pub(super) fn stop_idle_lanes(&self, now: Moment) {
        let linger = self.rules().linger;
        let lanes = self.lanes().clone();
        let total = lanes.len();
        let is_idle = |lane: &Lane| lane.idle_since().is_some_and(|since| now.since(since) > linger);
        let idle = lanes.into_iter().filter(|(_, lane)| is_idle(lane));
        // An eager destination keeps one child, also if clients have left it.
        let spare = total.saturating_sub(usize::from(self.starts_eagerly()));
        for (key, lane) in idle.take(spare) {
            self.lanes().remove(&key);
            tracing::debug!(destination = %self.name, "child no longer used");
            lane.stop();
        }
    }

    /// Returns an instance of the client's principal alone, if there is one or room for one.
    pub(crate) fn own_instance(&self, client: &Client) -> Option<Arc<Lane>> {
        let identity = (client.principal.clone(), BTreeMap::new());
        let key = self.key_of(Some(identity), client);
        let limit = self.rules().max_children;
        let mut lanes = self.lanes();
        if let Some(lane) = lanes.get(&key) {
            return Some(Arc::clone(lane));
        }
        if lanes.len() >= limit || self.has_too_many_supervisors() {
            return None;
        }
        let (lane, supervisor) = self.new_lane(&BTreeMap::new(), PREFERRED, Started::ForClient);
        lanes.insert(key, Arc::clone(&lane));
        drop(lanes);
        self.supervise(Arc::clone(&lane), supervisor);
        Some(lane)
    }

    /// Returns whether so many children are being ended that none may be started. A storm of sessions must not pile
    /// them up.
    fn has_too_many_supervisors(&self) -> bool {
        self.supervisors() >= self.rules().max_children.saturating_mul(2).max(16)
    }

    fn key_of(&self, identity: Option<Identity>, client: &Client) -> LaneKey {
        let capabilities = match self.rules().capabilities {
            Capabilities::Union => None,
            // A modern server is told with every request.
            Capabilities::PerClient if self.is_known_modern() => None,
            Capabilities::PerClient => Some(client.capabilities.clone()),
        };
        LaneKey::Clients {
            identity,
            capabilities,
        }
    }

    /// Makes an instance and its supervisor, which counts from now on and is to be run. Its server is introduced to in
    /// `preferred`, unless something speaks against that.
    pub(super) fn new_lane(
        &self,
        from_headers: &BTreeMap<String, Secret>,
        preferred: Era,
        started: Started,
    ) -> (Arc<Lane>, Supervisor) {
        let rules = self.rules();
        let usual = multiplexer::Limits::default();
        let limits = multiplexer::Limits {
            in_flight: self.settings.max_calls.unwrap_or(usual.in_flight),
            waiting: self.settings.max_calls.unwrap_or(usual.waiting),
            request_timeout: self.settings.request_timeout,
            stream_timeout: self.settings.stream_timeout,
            start_timeout: rules.start_timeout,
            max_message_bytes: self.settings.max_message_bytes,
            outgoing_bytes: outgoing_bytes(usual.outgoing_bytes, self.settings.max_message_bytes),
            in_flight_bytes: usual.in_flight_bytes.max(4 * self.settings.max_message_bytes),
            ..usual
        };
        let introduction = match (rules.sharing, rules.capabilities) {
            (Sharing::PerSession, Capabilities::PerClient) => Introduction::Verbatim,
            (_, Capabilities::Union) => Introduction::Union,
            (Sharing::Shared | Sharing::PerIdentity, Capabilities::PerClient) => Introduction::Newest,
        };
        let mut multiplexer = Multiplexer::new(limits, introduction);
        multiplexer.plan_eras(self.era_plan(preferred));
        if started == Started::BeforeClients && introduction != Introduction::Verbatim {
            multiplexer.introduce_at_start();
        }
        multiplexer.offer_roots(&self.settings.roots);
        multiplexer.show_tools(Arc::clone(&self.tools));
        let lane = Arc::new(Lane::new(
            Arc::clone(&self.name),
            self.context.clock,
            Arc::clone(&self.traffic),
            Arc::clone(&self.eras),
            multiplexer,
        ));
        let supervisor = match &self.backend {
            Backend::Process(spec) => Supervisor::Process(ProcessLane {
                lane: Arc::clone(&lane),
                launcher: Arc::clone(&self.context.launcher),
                order: Arc::new(LaunchOrder {
                    argv: spec.argv.clone(),
                    env: self.child_environment(spec, from_headers),
                    cwd: spec.cwd.clone(),
                }),
                max_message_bytes: self.settings.max_message_bytes,
                eager: started == Started::BeforeClients,
                shows_output: self.shows_output(spec),
                environment: Arc::clone(&self.context.environment),
            }),
            Backend::Remote(server) => Supervisor::Remote(RemoteLane::new(
                Arc::clone(server),
                Arc::clone(&lane),
                forwarded(from_headers),
                self.settings.max_message_bytes,
            )),
        };
        self.supervisors.send_modify(|count| *count += 1);
        (lane, supervisor)
    }

    /// Runs the supervisor of a new instance until the instance is stopped.
    pub(super) fn supervise(&self, lane: Arc<Lane>, supervisor: Supervisor) {
        let (count, roll) = (Arc::clone(&self.supervisors), Arc::clone(&self.roll));
        roll.lock().lanes.push(Arc::clone(&lane));
        tasks::spawn("lane", async move {
            while AssertUnwindSafe(supervisor.run()).catch_unwind().await.is_err() {
                tracing::error!(destination = %lane.destination(), "a supervisor panicked; restarting it");
                let trouble = Arc::new(Trouble {
                    what: "internal error of the gateway; its log has the details".into(),
                    ..Trouble::default()
                });
                lane.set_health(Health::BackingOff(Arc::clone(&trouble)));
                lane.link_down(&trouble);
                // What goes wrong every time shall not do so all the time.
                tokio::time::sleep(AFTER_PANIC).await;
            }
            let counters = lane.depths().counters;
            let mut roll = roll.lock();
            roll.retire(&lane, &counters);
            drop(roll);
            count.send_modify(|count| *count -= 1);
        });
    }

    /// Returns whether callers may see what a child writes on stderr. It may be about another caller where several
    /// share the child and are told apart.
    fn shows_output(&self, spec: &ProcessSpec) -> bool {
        let has_one_caller = match self.rules().sharing {
            Sharing::PerSession | Sharing::PerIdentity => true,
            Sharing::Shared => !self.context.tells_callers_apart,
        };
        has_one_caller || spec.error_stderr
    }

    fn child_environment(&self, spec: &ProcessSpec, from_headers: &BTreeMap<String, Secret>) -> Environment {
        let mut child = environment(self.context.environment.iter(), spec.inherits, &spec.env);
        for (name, value) in from_headers {
            child.set(name, value);
        }
        child
    }
}

/// Returns how much may wait to be written to a server: eight of the largest messages, or two where they are very large.
fn outgoing_bytes(least: usize, max_message_bytes: usize) -> usize {
    const LARGE: usize = 32 << 20;
    let eight = max_message_bytes.saturating_mul(8).min(LARGE);
    eight.max(least).max(max_message_bytes.saturating_mul(2))
}

/// Returns the instance that suits a client best, among those that it may share.
fn best_fit(lanes: &BTreeMap<LaneKey, Arc<Lane>>, key: &LaneKey, client: &Client) -> Option<Arc<Lane>> {
    let LaneKey::Clients { identity, .. } = key else {
        return None;
    };
    let fitness = |key: &LaneKey| match key {
        LaneKey::Clients { capabilities, .. } => {
            let told = capabilities.as_ref();
            (
                told.is_none(),
                told.map(|told| told.fitness(&client.capabilities)),
            )
        }
        LaneKey::Unclaimed | LaneKey::Session(_) => (false, None),
    };
    lanes
        .iter()
        .filter(|(key, _)| key.is_of(identity))
        .max_by_key(|(key, _)| fitness(key))
        .map(|(_, lane)| Arc::clone(lane))
}

/// The headers that a remote server is passed on.
fn forwarded(from_headers: &BTreeMap<String, Secret>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in from_headers {
        if let (Ok(name), Ok(mut value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_str(value.expose()),
        ) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    }
    headers
}
