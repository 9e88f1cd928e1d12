//! The instances of an upstream: which clients share one, and how it is started and looked after.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue};
use protocol::backend_face::legacy::ClientHello;
use protocol::capability;
use protocol::exchange::{BackendError, Client, Principal, SessionKey};
use protocol::multiplexer::{self, Counters, Multiplexer};
use protocol::negotiation::StartedFor;
use protocol::time::Moment;
use protocol::version::CapabilityStyle;

use super::{Backend, Upstream};
use crate::backend::process::supervisor::ProcessSupervisor;
use crate::backend::process::{Environment, LaunchOrder, environment};
use crate::backend::remote::RemoteSupervisor;
use crate::instance::{Instance, Reservation};
use crate::reply::Refusal;
use crate::settings::{BackendSpec, Capabilities, ProcessSpec, Secret, Sharing};
use crate::status::Health;
use crate::tasks;

/// The pause before a supervisor that panicked begins anew.
const AFTER_PANIC: Duration = Duration::from_millis(500);

/// What an instance is for: clients with equal keys share one. The era of the server is no part of it: clients of both
/// eras share an instance and are translated.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InstanceKey {
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

impl InstanceKey {
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

/// Every instance that has a supervisor, in use or being ended, and what those counted that are gone: a sum over these
/// never goes back.
#[derive(Debug, Default)]
pub(super) struct InstancePool {
    pub(super) instances: Vec<Arc<Instance>>,
    pub(super) retired: Counters,
}

impl InstancePool {
    fn retire(&mut self, instance: &Arc<Instance>, counters: &Counters) {
        self.retired.add(counters);
        self.instances.retain(|known| !Arc::ptr_eq(known, instance));
    }
}

/// Whoever looks after the server of an instance.
pub(super) enum Supervisor {
    Process(ProcessSupervisor),
    Remote(RemoteSupervisor),
}

impl Supervisor {
    async fn run(&self) {
        match self {
            Self::Process(supervisor) => supervisor.run().await,
            Self::Remote(supervisor) => supervisor.run().await,
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
    pub(super) fn key_before_clients(&self) -> InstanceKey {
        let rules = self.rules();
        match (rules.sharing, rules.capabilities) {
            (Sharing::Shared, Capabilities::Union) => InstanceKey::Clients {
                identity: None,
                capabilities: None,
            },
            (Sharing::Shared, Capabilities::PerClient) | (Sharing::PerSession | Sharing::PerIdentity, _) => {
                InstanceKey::Unclaimed
            }
        }
    }

    /// The instance for a client: of a session, or of a modern client that has none.
    ///
    /// An instance of its session, of its identity, or of everybody, as `process` says. Under `capabilities:
    /// per_client` a server that is told once what its clients can do (every legacy one) is shared only by clients
    /// with the same capabilities; where there is no room for another instance, the client joins the one that suits
    /// it best. `make_room` ends an instance where all that may run do.
    pub(crate) fn instance_for(
        &self,
        session: Option<SessionKey>,
        client: &Client,
        headers: &HeaderMap,
        make_room: impl Fn(usize) -> Result<(), Refusal>,
    ) -> Result<Reservation, Refusal> {
        let rules = self.rules();
        let from_headers = self.passed_on(headers)?;
        let (key, started_for) = match (rules.sharing, session) {
            (Sharing::PerSession, Some(session)) => (InstanceKey::Session(session), StartedFor::Session),
            // Without sessions the next smaller unit is who is calling.
            (Sharing::PerIdentity, _) | (Sharing::PerSession, None) => {
                let identity = Some((client.principal.clone(), from_headers.clone()));
                (self.key_of(identity, client), StartedFor::AnyClient)
            }
            (Sharing::Shared, _) => (self.key_of(None, client), StartedFor::AnyClient),
        };
        let (key, shared) = self.unshared_key(key, &client.principal);
        let limit = rules.max_children;
        loop {
            let known = self.instances().get(&key).map(Instance::reserve);
            if let Some(reserved) = known {
                return Ok(reserved);
            }
            let equivalent = self.equivalent(&key);
            let mut instances = self.instances();
            if let Some(instance) = instances.get(&key) {
                return Ok(instance.reserve());
            }
            if let Some(instance) = equivalent.and_then(|known| instances.remove(&known)) {
                let reserved = instance.reserve();
                instances.insert(key, instance);
                return Ok(reserved);
            }
            // A child that was started before anyone came has nobody's credentials in its environment.
            if from_headers.is_empty()
                && let Some(instance) = instances.remove(&InstanceKey::Unclaimed)
            {
                let reserved = instance.reserve();
                instances.insert(key, instance);
                drop(instances);
                reserved.plan_eras(self.era_plan(started_for));
                return Ok(reserved);
            }
            if instances.len() < limit {
                if self.has_too_many_supervisors() {
                    let joined = instead(&instances, shared.as_ref(), &key, client);
                    return joined.ok_or(Refusal::TooManyChildren { limit });
                }
                let (instance, supervisor) =
                    self.new_instance(&from_headers, started_for, Started::ForClient);
                let reserved = instance.reserve();
                instances.insert(key, Arc::clone(&instance));
                drop(instances);
                self.supervise(instance, supervisor);
                return Ok(reserved);
            }
            drop(instances);
            if let Err(refusal) = make_room(limit) {
                return instead(&self.instances(), shared.as_ref(), &key, client).ok_or(refusal);
            }
        }
    }

    /// Returns the key of an instance of the principal's own, and that of the shared one, if that one has asked another
    /// principal: neither is to wait for the other's answers. Where there is no room for another instance, the shared one
    /// is used all the same.
    fn unshared_key(&self, key: InstanceKey, principal: &Principal) -> (InstanceKey, Option<InstanceKey>) {
        let InstanceKey::Clients {
            identity: None,
            capabilities,
        } = &key
        else {
            return (key, None);
        };
        let shared = self.instances().get(&key).map(Arc::clone);
        if shared.is_none_or(|instance| instance.suits(principal)) {
            return (key, None);
        }
        let own = InstanceKey::Clients {
            identity: Some((principal.clone(), BTreeMap::new())),
            capabilities: capabilities.clone(),
        };
        (own, Some(key))
    }

    /// Returns the key of an instance that was started for clients of one kind, if `key` is for clients of every kind:
    /// its server has turned out to learn with each request what its client can do.
    fn equivalent(&self, key: &InstanceKey) -> Option<InstanceKey> {
        let InstanceKey::Clients {
            identity,
            capabilities: None,
        } = key
        else {
            return None;
        };
        let instances = self.instances().clone();
        let mut theirs = instances.into_iter().filter(|(key, _)| key.is_of(identity));
        let learns = |instance: &Instance| {
            let era = instance.agreed_era();
            era.is_some_and(|era| era.capabilities() == CapabilityStyle::PerRequest)
        };
        let found = theirs.find(|(_, instance)| learns(instance));
        found.map(|(key, _)| key)
    }

    /// Stops the instances that no client has used for long enough.
    pub(super) fn stop_idle_instances(&self, now: Moment) {
        let linger = self.rules().linger;
        let instances = self.instances_by_key();
        let total = instances.len();
        let is_idle = |instance: &Instance| {
            instance
                .idle_since()
                .is_some_and(|since| now.since(since) > linger)
        };
        let idle = instances.into_iter().filter_map(|(key, instance, unreserved)| {
            let unreserved = unreserved?;
            is_idle(&instance).then_some((key, instance, unreserved))
        });
        // An eager destination keeps one child, also if clients have left it.
        let spare = total.saturating_sub(usize::from(self.starts_eagerly()));
        for (key, instance, unreserved) in idle.take(spare) {
            if self.remove_unreserved(&key, &instance, unreserved) {
                tracing::debug!(destination = %self.name, "child no longer used");
                instance.stop();
            }
        }
    }

    /// Returns an instance of the client's principal alone, if there is one or room for one.
    pub(crate) fn own_instance(&self, client: &Client) -> Option<Reservation> {
        let identity = (client.principal.clone(), BTreeMap::new());
        let key = self.key_of(Some(identity), client);
        let limit = self.rules().max_children;
        let mut instances = self.instances();
        if let Some(instance) = instances.get(&key) {
            return Some(instance.reserve());
        }
        if instances.len() >= limit || self.has_too_many_supervisors() {
            return None;
        }
        let (instance, supervisor) =
            self.new_instance(&BTreeMap::new(), StartedFor::AnyClient, Started::ForClient);
        let reserved = instance.reserve();
        instances.insert(key, Arc::clone(&instance));
        drop(instances);
        self.supervise(instance, supervisor);
        Some(reserved)
    }

    /// Returns whether so many children are being ended that none may be started. A storm of sessions must not pile
    /// them up.
    fn has_too_many_supervisors(&self) -> bool {
        self.supervisors() >= self.rules().max_children.saturating_mul(2).max(16)
    }

    fn key_of(&self, identity: Option<Identity>, client: &Client) -> InstanceKey {
        let capabilities = match self.rules().capabilities {
            Capabilities::Union => None,
            Capabilities::PerClient if self.learns_capabilities_per_request() => None,
            Capabilities::PerClient => Some(client.capabilities.clone()),
        };
        InstanceKey::Clients {
            identity,
            capabilities,
        }
    }

    /// Makes an instance and its supervisor, which counts from now on and is to be run.
    pub(super) fn new_instance(
        &self,
        from_headers: &BTreeMap<String, Secret>,
        started_for: StartedFor,
        started: Started,
    ) -> (Arc<Instance>, Supervisor) {
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
        let client_hello = match (rules.sharing, rules.capabilities) {
            (Sharing::PerSession, Capabilities::PerClient) => ClientHello::Verbatim,
            (_, Capabilities::Union) => ClientHello::Union,
            (Sharing::Shared | Sharing::PerIdentity, Capabilities::PerClient) => ClientHello::Newest,
        };
        let mut multiplexer = Multiplexer::new(limits, client_hello);
        multiplexer.plan_eras(self.era_plan(started_for));
        if started == Started::BeforeClients && client_hello != ClientHello::Verbatim {
            multiplexer.initialize_at_start();
        }
        multiplexer.offer_roots(&self.settings.roots);
        multiplexer.show_tools(Arc::clone(&self.tools));
        let instance = Arc::new(Instance::new(
            Arc::clone(&self.name),
            self.context.clock,
            Arc::clone(&self.metrics),
            Arc::clone(&self.eras),
            multiplexer,
        ));
        let supervisor = match &self.backend {
            Backend::Process(spec) => Supervisor::Process(ProcessSupervisor {
                instance: Arc::clone(&instance),
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
            Backend::Remote(server) => Supervisor::Remote(RemoteSupervisor::new(
                Arc::clone(server),
                Arc::clone(&instance),
                forwarded(from_headers),
                self.settings.max_message_bytes,
            )),
        };
        self.supervisors.send_modify(|count| *count += 1);
        (instance, supervisor)
    }

    /// Runs the supervisor of a new instance until the instance is stopped.
    pub(super) fn supervise(&self, instance: Arc<Instance>, supervisor: Supervisor) {
        let (count, pool) = (Arc::clone(&self.supervisors), Arc::clone(&self.pool));
        pool.lock().instances.push(Arc::clone(&instance));
        tasks::spawn("instance", async move {
            while AssertUnwindSafe(supervisor.run()).catch_unwind().await.is_err() {
                tracing::error!(destination = %instance.destination(), "a supervisor panicked; restarting it");
                let backend_error = Arc::new(BackendError {
                    what: "internal error of the gateway; its log has the details".into(),
                    ..BackendError::default()
                });
                instance.set_health(Health::BackingOff(Arc::clone(&backend_error)));
                instance.link_down(&backend_error);
                // What goes wrong every time shall not do so all the time.
                tokio::time::sleep(AFTER_PANIC).await;
            }
            let counters = instance.depths().counters;
            let mut pool = pool.lock();
            pool.retire(&instance, &counters);
            drop(pool);
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

/// Returns the instance that a client shares where there is no room for one with its key.
fn instead(
    instances: &BTreeMap<InstanceKey, Arc<Instance>>,
    shared: Option<&InstanceKey>,
    key: &InstanceKey,
    client: &Client,
) -> Option<Reservation> {
    let shared = shared.and_then(|key| instances.get(key));
    let instance = shared.or_else(|| best_fit(instances, key, client))?;
    Some(instance.reserve())
}

/// Returns the instance that suits a client best, among those that it may share.
fn best_fit<'a>(
    instances: &'a BTreeMap<InstanceKey, Arc<Instance>>,
    key: &InstanceKey,
    client: &Client,
) -> Option<&'a Arc<Instance>> {
    let InstanceKey::Clients { identity, .. } = key else {
        return None;
    };
    let fitness = |key: &InstanceKey| match key {
        InstanceKey::Clients { capabilities, .. } => {
            let declared = capabilities.as_ref();
            (
                declared.is_none(),
                declared.map(|declared| declared.fitness(&client.capabilities)),
            )
        }
        InstanceKey::Unclaimed | InstanceKey::Session(_) => (false, None),
    };
    instances
        .iter()
        .filter(|(key, _)| key.is_of(identity))
        .max_by_key(|(key, _)| fitness(key))
        .map(|(_, instance)| instance)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[tokio::test]
    async fn instance_that_was_chosen_is_not_stopped_before_its_client_is_attached() {
        let settings = fixture::settings();
        let destination = fixture::destination(&settings);
        let upstream = &destination.upstream;
        let client = Client::declaring(Principal::anonymous(), None, None);
        let full = |limit| Err(Refusal::TooManyChildren { limit });
        let chosen = upstream.instance_for(None, &client, &HeaderMap::new(), full);
        let chosen = chosen.expect("there is room");
        let instance = Arc::clone(&chosen);
        let later = instance.clock().now().after(2 * upstream.rules().linger);
        upstream.tick(later);
        assert!(!instance.is_stopping(), "a client is about to be attached");
        drop(chosen);
        upstream.tick(later);
        assert!(instance.is_stopping(), "no client uses it");
    }

    #[tokio::test]
    async fn instance_that_was_chosen_after_it_was_seen_unused_is_not_removed() {
        let settings = fixture::settings();
        let destination = fixture::destination(&settings);
        let upstream = &destination.upstream;
        let client = Client::declaring(Principal::anonymous(), None, None);
        let full = |limit| Err(Refusal::TooManyChildren { limit });
        let choose = || upstream.instance_for(None, &client, &HeaderMap::new(), full);
        drop(choose().expect("there is room"));
        let instances = upstream.instances_by_key();
        let [(key, instance, Some(unreserved))] = &instances[..] else {
            panic!("one instance, which is not reserved");
        };
        drop(choose().expect("it is there"));
        assert!(!upstream.remove_unreserved(key, instance, *unreserved));
        let unreserved = instance.unreserved().expect("the client has left");
        assert!(upstream.remove_unreserved(key, instance, unreserved));
        assert!(
            !upstream.remove_unreserved(key, instance, unreserved),
            "it is gone"
        );
    }
}
