//! An upstream: the server behind an endpoint. How it is started, shared, evicted and negotiated
//! with.

mod era;
mod instances;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use protocol::exchange::{BackendError, SessionKey};
use protocol::multiplexer::Counters;
use protocol::negotiation::StartedFor;
use protocol::placement;
use protocol::time::Moment;
use protocol::tool_policy::ToolPolicy;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::backend::process::Launcher;
use crate::backend::process::supervisor::STOP_GRACE;
use crate::backend::remote::Server;
use crate::clock::Clock;
use crate::instance::{Instance, Unreserved};
use crate::metrics::DestinationMetrics;
use crate::reply;
use crate::server_eras::{EraMemory, ServerEras};
use crate::server_lease::ServerLease;
use crate::settings::{
    self, BackendSpec, ProcessSpec, RemoteSpec, Sharing, SharingRules, SignIn, Start, Transport,
};
use crate::status::{Depths, Health, HealthKind, MembersStatus, Resting, Serves};
use crate::threads::Threads;
use instances::{InstancePool, Instances, Started};

pub(crate) use instances::{Credentials, InstanceKey, WantedFor};

/// What all upstreams have in common.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamContext {
    pub(crate) clock: Clock,
    pub(crate) launcher: Arc<Launcher>,
    /// Where instances run.
    pub(crate) threads: Threads,
    /// The environment of this process, from which children get an allow-listed part.
    pub(crate) environment: Arc<BTreeMap<String, String>>,
    /// What servers have shown of their eras, across reloads.
    pub(crate) eras: Arc<EraMemory>,
    /// There is authentication, so that what belongs to one caller must be kept from another.
    pub(crate) tells_callers_apart: bool,
}

/// One server, and the instances of it that run.
#[derive(Debug)]
pub(crate) struct Upstream {
    name: Arc<str>,
    settings: Arc<settings::Destination>,
    context: UpstreamContext,
    instances: Mutex<Instances>,
    /// No instance is started any more. Changed and read under the lock of the instances.
    is_stopped: AtomicBool,
    /// Supervisors that have not come to their end: children in use and children being ended.
    supervisors: Arc<watch::Sender<usize>>,
    /// Why nothing can be started here, if that is known beforehand.
    broken: Option<String>,
    /// What the server has shown of its eras.
    eras: Arc<ServerEras>,
    metrics: Arc<DestinationMetrics>,
    pool: Arc<Mutex<InstancePool>>,
    tools: Arc<ToolPolicy>,
    backend: Backend,
    /// Whether the server may run here, if the whole fleet has one.
    lease: Option<Arc<ServerLease>>,
}

/// What the instances are made of.
#[derive(Debug)]
enum Backend {
    Process(Box<ProcessSpec>),
    /// The server that all instances reach over HTTP.
    Remote {
        server: Arc<Server>,
        /// They share its connections, so they run on one thread, if there are several.
        thread: Option<Handle>,
    },
}

/// The state of an upstream at one moment.
#[derive(Debug)]
pub(crate) struct UpstreamStatus {
    pub(crate) transport: &'static str,
    pub(crate) state: HealthKind,
    pub(crate) is_ready: bool,
    /// Why no server process runs, though nothing is wrong.
    pub(crate) resting: Option<Resting>,
    /// What is wrong with the server, if something is.
    pub(crate) backend_error: Option<String>,
    /// Instances in use whose server runs.
    pub(crate) children: usize,
    /// Instances in use.
    pub(crate) in_use: usize,
    /// When a child is started; `None` for a remote server.
    pub(crate) start: Option<Start>,
    /// The number of tools that clients are shown, if a client has read the whole list.
    pub(crate) tools: Option<usize>,
    /// All instances, those that are being ended included.
    pub(crate) instances: Vec<Depths>,
    pub(crate) counters: Counters,
    /// The members, if it is an aggregate.
    pub(crate) members: Option<MembersStatus>,
}

impl Upstream {
    pub(crate) fn new(
        settings: Arc<settings::Destination>,
        context: UpstreamContext,
        broken: Option<String>,
        lease: Option<Arc<ServerLease>>,
    ) -> Self {
        let backend = match &settings.backend {
            BackendSpec::Process(spec) => Backend::Process(Box::new(spec.clone())),
            BackendSpec::Remote(spec) => Backend::Remote {
                server: Arc::new(Server::new(spec.clone())),
                thread: context.threads.for_instance().cloned(),
            },
            BackendSpec::Aggregate(_) => unreachable!("an aggregate has no server of its own"),
        };
        Self {
            name: settings.name.as_str().into(),
            tools: Arc::new(settings.tools.clone()),
            eras: context.eras.of(&settings.backend),
            settings,
            context,
            instances: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            supervisors: Arc::default(),
            broken,
            metrics: Arc::default(),
            pool: Arc::default(),
            backend,
            lease,
        }
    }

    /// Counts on where another upstream of this name stopped, so that no counter goes back at a
    /// reload.
    pub(crate) fn counting_on(mut self, predecessor: &Self) -> Self {
        self.metrics = Arc::clone(&predecessor.metrics);
        self.pool = Arc::clone(&predecessor.pool);
        self
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn metrics(&self) -> &Arc<DestinationMetrics> {
        &self.metrics
    }

    pub(crate) fn tools(&self) -> &Arc<ToolPolicy> {
        &self.tools
    }

    /// Allows sign-in to take visible steps, such as opening a browser: a client has a request for
    /// the server.
    pub(crate) fn wake(&self) {
        if let BackendSpec::Remote(RemoteSpec {
            sign_in: SignIn::OAuth(sign_in),
            ..
        }) = &self.settings.backend
        {
            sign_in.wake();
        }
    }

    /// Returns how the server is reached, for people.
    pub(crate) fn transport(&self) -> &'static str {
        match self.remote().map(|server| server.transport()) {
            None => "stdio",
            Some(Transport::Auto) => "http",
            Some(Transport::StreamableHttp) => "streamable_http",
            Some(Transport::Sse) => "sse",
        }
    }

    /// Returns the server itself, if it is reached over HTTP.
    fn remote(&self) -> Option<&Arc<Server>> {
        match &self.backend {
            Backend::Process(_) => None,
            Backend::Remote { server, .. } => Some(server),
        }
    }

    pub(crate) fn rules(&self) -> &SharingRules {
        &self.settings.instances
    }

    fn placement(&self) -> placement::Rules {
        placement::Rules {
            sharing: self.rules().sharing,
            capabilities: self.rules().capabilities,
        }
    }

    /// Returns the same for a client with these credentials. What `rialto attach` handed over is
    /// never another client's.
    fn placement_of(&self, credentials: &Credentials) -> placement::Rules {
        let rules = self.placement();
        match (rules.sharing, credentials.is_attached()) {
            (Sharing::Shared, true) => placement::Rules {
                sharing: Sharing::PerIdentity,
                ..rules
            },
            (Sharing::Shared, false) | (Sharing::PerSession | Sharing::PerIdentity, _) => rules,
        }
    }

    /// Returns whether the server may run here.
    fn may_run(&self) -> bool {
        let lease = self.lease.as_ref();
        lease.is_none_or(|lease| lease.is_held(self.context.clock.now()))
    }

    /// Returns how long a child may take to end: before another replica may start one.
    fn stop_grace(&self) -> Duration {
        match self.lease {
            Some(_) => cluster::singleton::END_TIME,
            None => STOP_GRACE,
        }
    }

    /// Returns whether the server is started before the first client comes. The one server of a
    /// fleet starts where the first request is.
    fn starts_eagerly(&self) -> bool {
        if self.lease.is_some() {
            return false;
        }
        match &self.settings.backend {
            BackendSpec::Process(spec) => spec.start == Start::Eager,
            BackendSpec::Remote(_) | BackendSpec::Aggregate(_) => false,
        }
    }

    fn instances(&self) -> MutexGuard<'_, Instances> {
        self.instances.lock()
    }

    /// Returns the instances at this moment: they are called without the lock of their map.
    fn instance_list(&self) -> Vec<Arc<Instance>> {
        let instances = self.instances();
        let instances = instances.iter();
        instances.map(|(_, instance)| Arc::clone(instance)).collect()
    }

    /// Starts an instance before the first client comes, where the settings ask for it.
    pub(crate) fn start(&self) {
        if self.broken.is_some() {
            return;
        }
        if self.starts_eagerly() {
            let plan = self.era_plan(StartedFor::AnyClient);
            let (instance, supervisor) =
                self.new_instance(&Credentials::default(), plan, Started::BeforeClients);
            let key = self.placement().key_before_clients();
            self.instances().insert(key, Arc::clone(&instance));
            self.supervise(instance, supervisor);
        }
    }

    pub(crate) fn open_calls(&self) -> usize {
        self.instance_list()
            .iter()
            .map(|instance| instance.open_calls())
            .sum()
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

    /// Returns why nothing can be started here.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Returns whether no client can be served now: every instance that was wanted is away.
    pub(crate) fn is_away(&self) -> bool {
        let health = self.health();
        !health.is_empty()
            && health
                .iter()
                .all(|health| matches!(health, Health::BackingOff(_) | Health::Failed(_)))
    }

    /// Returns whether clients can be served: the server has answered, or is not there because no
    /// client has asked for it. A server that is started before clients come is waited for.
    pub(crate) fn is_ready(&self) -> bool {
        let is_promised = self.starts_eagerly() && self.rules().sharing != Sharing::PerSession;
        let health = self.health();
        let is_fine = |health: &Health| match health {
            Health::Ready { .. } | Health::Asleep => true,
            Health::Idle | Health::Stopped | Health::Starting | Health::Running { .. } => !is_promised,
            Health::BackingOff(_) | Health::Failed(_) => false,
        };
        self.broken.is_none() && (health.is_empty() || health.iter().any(is_fine))
    }

    /// Returns how the backend of each instance is doing.
    pub(crate) fn health(&self) -> Vec<Health> {
        self.instance_list()
            .iter()
            .map(|instance| instance.health())
            .collect()
    }

    /// Returns the instances at this moment, by what they are for, each with whether a client is
    /// about to be attached.
    pub(crate) fn instances_by_key(&self) -> Vec<(InstanceKey, Arc<Instance>, Option<Unreserved>)> {
        let instances = self.instances();
        let instances = instances.iter();
        instances
            .map(|(key, instance)| (key.clone(), Arc::clone(instance), instance.unreserved()))
            .collect()
    }

    /// Takes an instance out, so that no new client finds it, unless it was chosen for a client
    /// since then. Returns whether it was taken out.
    pub(crate) fn remove_unreserved(
        &self,
        key: &InstanceKey,
        instance: &Arc<Instance>,
        then: Unreserved,
    ) -> bool {
        let mut instances = self.instances();
        let is_same = instances
            .get(key)
            .is_some_and(|known| Arc::ptr_eq(known, instance));
        let is_removed = is_same && instance.is_unreserved_since(then);
        if is_removed {
            instances.remove(key);
        }
        is_removed
    }

    /// Returns why no server process runs, though nothing is wrong.
    fn resting(&self, health: &[Health]) -> Option<Resting> {
        match &self.backend {
            Backend::Process(_) if self.broken.is_none() => Resting::of(health),
            Backend::Process(_) | Backend::Remote { .. } => None,
        }
    }

    /// Ends the children that no call has used for as long as the settings allow.
    fn stop_unused_children(&self, now: Moment) {
        let limit = match &self.backend {
            Backend::Process(spec) => spec.idle_stop,
            Backend::Remote { .. } => None,
        };
        let Some(limit) = limit else { return };
        for instance in self.instance_list() {
            if instance.sleep_if_unused(now, limit) {
                tracing::info!(destination = %self.name, "server stopped: no call used it");
            }
        }
    }

    /// Forgets what is too old, and stops instances that no client has used for long enough.
    pub(crate) fn tick(&self, now: Moment) {
        if self.remote().is_some() {
            self.eras.expire(now);
        }
        self.stop_idle_instances(now);
        self.stop_unused_children(now);
    }

    /// Ends the instance of a session that has ended, if it was the session's own.
    pub(crate) fn end_session(&self, session: SessionKey) {
        if self.rules().sharing == Sharing::PerSession {
            let instance = self.instances().remove(&InstanceKey::Session(session));
            if let Some(instance) = instance {
                instance.stop();
            }
        }
    }

    /// Ends the instances that these principals have to themselves.
    pub(crate) fn dismiss(&self, leaves: impl Fn(&str) -> bool) {
        let theirs = self.instances().remove_of(leaves);
        for instance in theirs {
            instance.stop();
        }
    }

    /// Refuses the calls that wait for an instance to take them. Those that run may finish.
    pub(crate) fn retire(&self) {
        for instance in self.instance_list() {
            instance.retire();
        }
    }

    /// Fails every call: no instance answers any more.
    pub(crate) fn fail_calls(&self, backend_error: &Arc<BackendError>) {
        for instance in self.instance_list() {
            instance.link_down(backend_error);
            instance.unavailable(backend_error, Duration::from_secs(1));
        }
    }

    /// Takes every instance out, so that no client finds one. The caller stops them.
    pub(crate) fn remove_instances(&self) -> Vec<Arc<Instance>> {
        self.instances().remove_all()
    }

    /// Stops every instance, and starts no other one.
    pub(crate) fn stop(&self) {
        let all = {
            let mut instances = self.instances();
            self.is_stopped.store(true, Relaxed);
            instances.remove_all()
        };
        for instance in all {
            instance.stop();
        }
    }

    /// Returns the state of the server and of its instances.
    pub(crate) fn status(&self) -> UpstreamStatus {
        let keyed = self.instances_by_key();
        let in_use: Vec<&Arc<Instance>> = keyed.iter().map(|(_, instance, _)| instance).collect();
        let health: Vec<Health> = in_use.iter().map(|instance| instance.health()).collect();
        let (instances, mut counters) = {
            let pool = self.pool.lock();
            (pool.instances.clone(), pool.retired)
        };
        let serves = |instance: &Arc<Instance>| {
            let known = keyed.iter().find(|(_, known, _)| Arc::ptr_eq(known, instance));
            known.map_or(Serves::Ending, |(key, ..)| instances::serves(key))
        };
        let instances: Vec<Depths> = instances
            .iter()
            .map(|instance| Depths {
                serves: serves(instance),
                ..instance.depths()
            })
            .collect();
        for instance in &instances {
            counters.add(&instance.counters);
        }
        let error = || health.iter().find_map(Health::error);
        let (state, backend_error) = match &self.broken {
            Some(_) => (HealthKind::Failed, Some(reply::CANNOT_RUN.to_owned())),
            None => (HealthKind::best(&health), error().map(|error| error.what.clone())),
        };
        UpstreamStatus {
            transport: self.transport(),
            state,
            is_ready: self.is_ready(),
            resting: self.resting(&health),
            backend_error,
            children: health.iter().filter(|health| health.is_up()).count(),
            in_use: in_use.len(),
            start: match &self.settings.backend {
                BackendSpec::Process(spec) => Some(spec.start),
                BackendSpec::Remote(_) | BackendSpec::Aggregate(_) => None,
            },
            tools: in_use.iter().find_map(|instance| instance.shown_tools()),
            instances,
            counters,
            members: None,
        }
    }
}
