//! The instances of an upstream: which clients share one, and how it is started and supervised.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::MutexGuard;
use protocol::backend_face::legacy::ClientHello;
use protocol::eviction;
use protocol::exchange::{BackendError, Client, SessionKey};
use protocol::multiplexer::{self, Counters, Multiplexer};
use protocol::negotiation::{EraPlan, StartedFor};
use protocol::placement::{self, Placement, Room, Wanted};
use protocol::time::Moment;
use protocol::version::CapabilityStyle;

use super::{Backend, Upstream};
use crate::attachment::{ATTACHED, Attachment};
use crate::backend::process::supervisor::ProcessSupervisor;
use crate::backend::process::{Environment, LaunchOrder, environment};
use crate::backend::remote::RemoteSupervisor;
use crate::instance::{Instance, Reservation};
use crate::reply::Refusal;
use crate::settings::{BackendSpec, Capabilities, ProcessSpec, Projects, Secret, Sharing};
use crate::status::{Health, Serves};
use crate::{page_cookie, tasks};

/// The pause before a supervisor that panicked begins anew.
const AFTER_PANIC: Duration = Duration::from_millis(500);

/// What of a client's headers its server is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Credentials {
    /// By the names that they are given under.
    given: BTreeMap<String, Secret>,
    /// What `rialto attach` handed over.
    attachment: Option<Attachment>,
}

impl Credentials {
    pub(super) fn is_attached(&self) -> bool {
        self.attachment.is_some()
    }
}

pub(crate) type InstanceKey = placement::InstanceKey<Credentials>;
pub(super) type Instances = placement::Instances<Credentials, Arc<Instance>>;

/// What needs an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WantedFor {
    /// A client with a session.
    Session(SessionKey),
    /// A modern client, which has none.
    Request,
    /// Reading what the server offers, for clients of either era.
    Reading(SessionKey),
}

impl WantedFor {
    /// Returns the session that has an instance to itself, where sessions do.
    fn session(self) -> Option<SessionKey> {
        match self {
            Self::Session(key) | Self::Reading(key) => Some(key),
            Self::Request => None,
        }
    }

    /// Returns which clients an instance with this key would be started for.
    fn started_for(self, wanted: &Wanted<Credentials>) -> StartedFor {
        match self {
            Self::Session(_) | Self::Request => wanted.started_for(),
            Self::Reading(_) => StartedFor::AnyClient,
        }
    }
}

/// When an instance is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Started {
    /// It starts, and makes the handshake, before any client comes.
    BeforeClients,
    /// A client waits for it.
    ForClient,
}

/// Every instance that has a supervisor, in use or being ended, and what those counted that are
/// gone: a sum over these never goes back.
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

/// Returns which clients an instance with this key serves.
pub(super) fn serves(key: &InstanceKey) -> Serves {
    match key {
        InstanceKey::Unclaimed => Serves::Unclaimed,
        InstanceKey::Session(_) => Serves::OneSession,
        InstanceKey::Clients { identity: None, .. } => Serves::All,
        InstanceKey::Clients {
            identity: Some((principal, credentials)),
            ..
        } => Serves::Some {
            caller: principal.as_str().to_owned(),
            directory: credentials
                .attachment
                .as_ref()
                .and_then(|attachment| attachment.directory.clone()),
        },
    }
}

/// The supervisor of an instance.
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
    /// Returns what of a client's headers its server is given: by the name it is given under. A
    /// header that stands twice, or that cannot be read, is refused: another value would stand in
    /// its place.
    pub(crate) fn passed_on(&self, headers: &HeaderMap) -> Result<Credentials, Refusal> {
        let given = |name: &str, header: &str| {
            let mut values = headers.get_all(header).iter();
            let value = values.next()?;
            let read = match (value.to_str(), values.next()) {
                (Ok(value), None) => Ok((name.to_owned(), Secret::new(page_cookie::without(header, value)))),
                (Ok(_), Some(_)) | (Err(_), _) => Err(Refusal::UnclearHeader(header.to_owned())),
            };
            Some(read)
        };
        Ok(match &self.settings.backend {
            BackendSpec::Process(spec) => Credentials {
                given: spec
                    .env_from_headers
                    .iter()
                    .filter_map(|(variable, header)| given(variable, header))
                    .collect::<Result<_, _>>()?,
                attachment: self.attachment(spec, headers)?,
            },
            BackendSpec::Remote(spec) => Credentials {
                given: spec
                    .forward_headers
                    .iter()
                    .filter_map(|header| given(header.as_str(), header.as_str()))
                    .collect::<Result<_, _>>()?,
                attachment: None,
            },
            BackendSpec::Aggregate(_) => Credentials::default(),
        })
    }

    /// Returns what counts of the things that `rialto attach` handed over: variables that the
    /// destination names, and the directory, unless projects share.
    fn attachment(&self, spec: &ProcessSpec, headers: &HeaderMap) -> Result<Option<Attachment>, Refusal> {
        let attached =
            Attachment::of(headers).map_err(|_| Refusal::UnclearHeader(ATTACHED.as_str().to_owned()))?;
        let Some(mut attached) = attached else {
            return Ok(None);
        };
        attached.env.retain(|name, _| spec.env.contains_key(name));
        if self.rules().projects == Projects::Together {
            attached.directory = None;
        }
        Ok((attached != Attachment::default()).then_some(attached))
    }

    /// Returns the variables that `rialto attach` hands over, and whether the directory counts.
    pub(crate) fn wants_of_attached(&self) -> (Vec<&str>, bool) {
        match &self.settings.backend {
            BackendSpec::Process(spec) => (
                spec.env.keys().map(String::as_str).collect(),
                self.rules().projects == Projects::Apart,
            ),
            BackendSpec::Remote(_) | BackendSpec::Aggregate(_) => (Vec::new(), false),
        }
    }

    /// Returns the names of the headers whose values the server is given.
    pub(crate) fn wanted_headers(&self) -> Vec<&str> {
        match &self.settings.backend {
            BackendSpec::Process(spec) => spec.env_from_headers.values().map(String::as_str).collect(),
            BackendSpec::Remote(spec) => spec.forward_headers.iter().map(HeaderName::as_str).collect(),
            BackendSpec::Aggregate(_) => Vec::new(),
        }
    }

    /// Returns whether a request has every header that the server is given.
    pub(crate) fn has_credentials(&self, headers: &HeaderMap) -> bool {
        match &self.settings.backend {
            BackendSpec::Process(spec) => {
                let mut wanted = spec.env_from_headers.values();
                wanted.all(|header| headers.contains_key(header.as_str()))
            }
            BackendSpec::Remote(spec) => {
                let mut wanted = spec.forward_headers.iter();
                wanted.all(|header| headers.contains_key(header.as_str()))
            }
            BackendSpec::Aggregate(_) => true,
        }
    }

    /// Returns the instance for a client.
    ///
    /// Which clients share one is decided by [`protocol::placement`]. Where there is no room for
    /// another instance, the client joins the one that suits it best. `make_room` ends an instance
    /// where all that may run do.
    pub(crate) fn instance_for(
        &self,
        wanted_for: WantedFor,
        client: &Client,
        headers: &HeaderMap,
        make_room: impl Fn(usize) -> Result<(), Refusal>,
    ) -> Result<Reservation, Refusal> {
        let credentials = self.passed_on(headers)?;
        let learns = self.learns_capabilities_per_request();
        let mut wanted =
            self.placement_of(&credentials)
                .wanted(wanted_for.session(), client, credentials.clone(), learns);
        if let Some(found) = self.find(wanted.key()) {
            if !wanted.is_for_all() || found.suits(&client.principal) {
                return Ok(found);
            }
            wanted = wanted.unshared(&client.principal);
        }
        let limit = self.rules().max_children;
        let plan = self.era_plan(wanted_for.started_for(&wanted));
        loop {
            if let Some(found) = self.find(wanted.key()) {
                return Ok(found);
            }
            let equivalent = self.equivalent(&wanted);
            let mut instances = self.instances();
            if self.is_stopped.load(Relaxed) {
                return Err(Refusal::Retired);
            }
            if !self.may_run() {
                return Err(Refusal::NotOwner);
            }
            match instances.place(&wanted, equivalent.as_ref(), self.room()) {
                Placement::Found(instance) => return Ok(instance.reserve()),
                Placement::Claimed(instance) => {
                    let reserved = instance.reserve();
                    drop(instances);
                    reserved.plan_eras(plan);
                    return Ok(reserved);
                }
                Placement::Start => return Ok(self.start_instance(instances, &wanted, plan, &credentials)),
                Placement::TooManyEnding => {
                    let joined = instances.instead(&wanted).map(Instance::reserve);
                    return joined.ok_or(Refusal::TooManyChildren { limit });
                }
                Placement::Full => {}
            }
            drop(instances);
            if let Err(refusal) = make_room(limit) {
                let joined = self.instances().instead(&wanted).map(Instance::reserve);
                return joined.ok_or(refusal);
            }
        }
    }

    fn find(&self, key: &InstanceKey) -> Option<Reservation> {
        self.instances().get(key).map(Instance::reserve)
    }

    fn room(&self) -> Room {
        Room {
            limit: self.rules().max_children,
            running: self.supervisors(),
        }
    }

    /// Starts an instance and reserves it for the client that needs it.
    fn start_instance(
        &self,
        mut instances: MutexGuard<'_, Instances>,
        wanted: &Wanted<Credentials>,
        plan: EraPlan,
        credentials: &Credentials,
    ) -> Reservation {
        let (instance, supervisor) = self.new_instance(credentials, plan, Started::ForClient);
        let reserved = instance.reserve();
        instances.insert(wanted.key().clone(), Arc::clone(&instance));
        drop(instances);
        self.supervise(instance, supervisor);
        reserved
    }

    /// Returns the key of an instance that serves as well as the wanted one, since its server has
    /// turned out to learn with each request what its client can do.
    fn equivalent(&self, wanted: &Wanted<Credentials>) -> Option<InstanceKey> {
        let others = {
            let instances = self.instances();
            let others = instances.iter().filter(|(key, _)| wanted.may_take_over(key));
            let others = others.map(|(key, instance)| (key.clone(), Arc::clone(instance)));
            others.collect::<Vec<_>>()
        };
        let learns = |instance: &Instance| {
            let era = instance.agreed_era();
            era.is_some_and(|era| era.capabilities() == CapabilityStyle::PerRequest)
        };
        let found = others.into_iter().find(|(_, instance)| learns(instance));
        found.map(|(key, _)| key)
    }

    /// Stops the instances that no client has used for long enough.
    pub(super) fn stop_idle_instances(&self, now: Moment) {
        // An eager destination keeps one child, also if clients have left it.
        let kept = usize::from(self.starts_eagerly());
        let instances = self
            .instances_by_key()
            .into_iter()
            .map(|(key, instance, unreserved)| {
                let idle_since = unreserved.and_then(|_| instance.idle_since());
                ((key, instance, unreserved), idle_since)
            });
        let stopped = eviction::instances_to_stop(now, self.rules().linger, kept, instances.collect());
        for (key, instance, unreserved) in stopped {
            if unreserved.is_some_and(|then| self.remove_unreserved(&key, &instance, then)) {
                tracing::debug!(destination = %self.name, "unused server stopped");
                instance.stop();
            }
        }
    }

    /// Returns an instance of the client's principal alone, if there is one or room for one.
    pub(crate) fn own_instance(&self, client: &Client) -> Option<Reservation> {
        let learns = self.learns_capabilities_per_request();
        let wanted = self.placement().wanted_alone(client, learns);
        let plan = self.era_plan(wanted.started_for());
        let mut instances = self.instances();
        if self.is_stopped.load(Relaxed) || !self.may_run() {
            return None;
        }
        match instances.place(&wanted, None, self.room()) {
            Placement::Found(instance) | Placement::Claimed(instance) => Some(instance.reserve()),
            Placement::Start => Some(self.start_instance(instances, &wanted, plan, &Credentials::default())),
            Placement::TooManyEnding | Placement::Full => None,
        }
    }

    /// Makes an instance and its supervisor, which counts from now on and is to be run.
    pub(super) fn new_instance(
        &self,
        from_headers: &Credentials,
        plan: EraPlan,
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
        multiplexer.plan_eras(plan);
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
                    cwd: spec.cwd.clone().or_else(|| {
                        let attachment = from_headers.attachment.as_ref()?;
                        attachment.directory.clone()
                    }),
                }),
                max_message_bytes: self.settings.max_message_bytes,
                eager: started == Started::BeforeClients,
                stop_grace: self.stop_grace(),
                shows_output: self.shows_output(spec),
                environment: Arc::clone(&self.context.environment),
            }),
            Backend::Remote { server, .. } => Supervisor::Remote(RemoteSupervisor::new(
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
        let thread = match &self.backend {
            Backend::Process(_) => self.context.threads.for_instance(),
            Backend::Remote { thread, .. } => thread.as_ref(),
        };
        tasks::spawn_on(thread, "instance", async move {
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
            instance.end_supervision();
            let counters = instance.depths().counters;
            let mut pool = pool.lock();
            pool.retire(&instance, &counters);
            drop(pool);
            count.send_modify(|count| *count -= 1);
        });
    }

    /// Returns whether callers may see what a child writes on stderr. It may be about another
    /// caller where several authenticated ones share the child.
    fn shows_output(&self, spec: &ProcessSpec) -> bool {
        let has_one_caller = match self.rules().sharing {
            Sharing::PerSession | Sharing::PerIdentity => true,
            Sharing::Shared => !self.context.tells_callers_apart,
        };
        has_one_caller || spec.error_stderr
    }

    fn child_environment(&self, spec: &ProcessSpec, from_headers: &Credentials) -> Environment {
        let mut child = environment(self.context.environment.iter(), spec.inherits, &spec.env);
        let attached = from_headers.attachment.iter();
        let attached = attached.flat_map(|attachment| &attachment.env);
        for (name, value) in from_headers.given.iter().chain(attached) {
            child.set(name, value);
        }
        child
    }
}

/// Returns how much may wait to be written to a server: eight of the largest messages, or two where
/// they are very large.
fn outgoing_bytes(least: usize, max_message_bytes: usize) -> usize {
    const LARGE: usize = 32 << 20;
    let eight = max_message_bytes.saturating_mul(8).min(LARGE);
    eight.max(least).max(max_message_bytes.saturating_mul(2))
}

/// Returns the client's headers that are forwarded to a remote server.
fn forwarded(from_headers: &Credentials) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in &from_headers.given {
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
    use protocol::exchange::Principal;

    use super::*;
    use crate::fixture;

    #[tokio::test]
    async fn instance_that_was_chosen_is_not_stopped_before_its_client_is_attached() {
        let settings = fixture::settings();
        let destination = fixture::destination(&settings);
        let upstream = destination.upstream.one().expect("one server");
        let client = Client::declaring(Principal::anonymous(), None, None);
        let full = |limit| Err(Refusal::TooManyChildren { limit });
        let chosen = upstream.instance_for(WantedFor::Request, &client, &HeaderMap::new(), full);
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
    async fn upstream_that_was_stopped_starts_no_instance() {
        let settings = fixture::settings();
        let destination = fixture::destination(&settings);
        let upstream = destination.upstream.one().expect("one server");
        let client = Client::declaring(Principal::anonymous(), None, None);
        let full = |limit| Err(Refusal::TooManyChildren { limit });
        upstream.stop();
        let refused = upstream.instance_for(WantedFor::Request, &client, &HeaderMap::new(), full);
        assert_eq!(refused.err(), Some(Refusal::Retired));
        assert!(upstream.own_instance(&client).is_none());
        assert_eq!(upstream.supervisors(), 0);
    }

    #[tokio::test]
    async fn instance_that_was_chosen_after_it_was_seen_unused_is_not_removed() {
        let settings = fixture::settings();
        let destination = fixture::destination(&settings);
        let upstream = destination.upstream.one().expect("one server");
        let client = Client::declaring(Principal::anonymous(), None, None);
        let full = |limit| Err(Refusal::TooManyChildren { limit });
        let choose = || upstream.instance_for(WantedFor::Request, &client, &HeaderMap::new(), full);
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
