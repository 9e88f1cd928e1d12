//! An aggregate as an endpoint serves it: its members, what is known of them, and the
//! conversations of its clients.
//!
//! What members offer is read in the background ([`reader`]), kept in memory and on disk, and made
//! into views ([`catalogue`]), from which lists are answered. A member's server starts when a call
//! needs it. A reload exchanges the members and keeps the conversations.

mod catalogue;
mod clients;
mod reader;
mod readings;
mod states;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use http::HeaderMap;
use parking_lot::{Mutex, RwLock};
use protocol::aggregate::{MemberName, MemberState, Offer, Plan, View};
use protocol::exchange::{Client, Failure, Principal, SessionKey};
use protocol::time::Moment;
use tokio::sync::Notify;

use super::{Endpoint, SharedState};
use crate::conversation_handle::{ConversationHandle, MemberServer};
use crate::instance::Reservation;
use crate::metrics::DestinationMetrics;
use crate::settings::{BackendSpec, Sharing, SignIn, Start};
use crate::upstream::Credentials;
use catalogue::CatalogueHandle;
pub(super) use clients::ClientIntent;
use clients::failure_of;
use reader::ReaderHandle;
use states::runs;
pub(crate) use states::withheld;

/// How long after a failed reading the next one begins by itself.
const RETRY: Duration = Duration::from_secs(30);
/// How long after a failed reading clients cause no other one.
const READ_PAUSE: Duration = Duration::from_secs(2);
/// Callers whose catalogues are kept while they have no conversation.
const MAX_CATALOGUES: usize = 1000;

/// A caller, where members have an instance for each caller. Servers see its credentials.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Caller {
    principal: Principal,
    credentials: BTreeMap<MemberName, Credentials>,
}

/// Whose catalogue, or whose reading, it is; `None` for that of all callers.
type Scope = Option<Arc<Caller>>;

/// The members of an aggregate, and the plan that was made of them.
#[derive(Debug)]
struct Members {
    plan: Arc<Plan>,
    endpoints: BTreeMap<MemberName, Arc<Endpoint>>,
    /// Those whose servers are given headers of the caller.
    given_headers: Vec<(MemberName, Arc<Endpoint>)>,
    /// Whether any member has a server for each caller.
    has_callers: bool,
}

impl Members {
    fn endpoint(&self, member: &str) -> Option<&Arc<Endpoint>> {
        self.endpoints.get(member)
    }

    fn shared(&self) -> impl Iterator<Item = (&MemberName, &Arc<Endpoint>)> {
        let members = self
            .plan
            .members()
            .iter()
            .filter(|member| !member.is_per_caller());
        members.filter_map(|member| Some((member.name(), self.endpoints.get(member.name())?)))
    }
}

/// What is known of a member that all callers share.
#[derive(Debug, Clone, Default)]
struct Known {
    offer: Option<Arc<Offer>>,
    state: MemberState,
    since: u64,
    /// Where its user can sign in.
    sign_in: Option<Arc<str>>,
    /// Which change this is: threads may tell catalogues of two changes in either order.
    version: u64,
}

/// What is known of all members that callers share, and how all members are.
#[derive(Debug, Default)]
struct KnownMembers {
    by_name: BTreeMap<MemberName, Known>,
    changes: u64,
}

impl KnownMembers {
    /// Changes what is known of a member. Returns what is known then.
    fn change(&mut self, member: &MemberName, change: impl FnOnce(&mut Known)) -> Known {
        self.changes += 1;
        let known = self.by_name.entry(member.clone()).or_default();
        known.version = self.changes;
        change(known);
        known.clone()
    }

    fn get(&self, member: &str) -> Option<&Known> {
        self.by_name.get(member)
    }
}

/// The reading of one member.
#[derive(Default)]
struct Reading {
    reader: Option<Arc<ReaderHandle>>,
    /// The reader has given an offer.
    is_read: bool,
    /// Something has changed while the reader was busy.
    again: bool,
    /// When the last reading began.
    begun_at: Option<Moment>,
    /// A task waits to begin the next one.
    is_planned: bool,
    failed_at: Option<Moment>,
    /// Why it has failed last.
    why: Option<String>,
    needs_sign_in: bool,
    /// When the last offer came.
    read_at: Option<Moment>,
}

/// Several members behind one endpoint.
pub(crate) struct Aggregate {
    this: Weak<Self>,
    name: Arc<str>,
    shared: SharedState,
    metrics: Arc<DestinationMetrics>,
    members: RwLock<Arc<Members>>,
    /// The endpoint that it is behind, once that is there.
    owner: OnceLock<Weak<Endpoint>>,
    /// The calls of all conversations that are open.
    open_calls: Arc<AtomicUsize>,
    known: Mutex<KnownMembers>,
    catalogues: Mutex<BTreeMap<Scope, Arc<CatalogueHandle>>>,
    readings: Mutex<BTreeMap<(Scope, MemberName), Reading>>,
    /// What was last reported as not shown.
    withheld: Mutex<Vec<String>>,
    /// When a client has last caused a look at all members.
    looked_at: Mutex<Option<Moment>>,
    /// A reading has ended.
    progress: Notify,
    is_stopped: AtomicBool,
}

impl std::fmt::Debug for Aggregate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aggregate")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Aggregate {
    pub(super) fn new(
        name: &str,
        plan: Arc<Plan>,
        endpoints: &BTreeMap<String, Arc<Endpoint>>,
        shared: SharedState,
    ) -> Arc<Self> {
        let aggregate = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            name: name.into(),
            shared,
            metrics: Arc::default(),
            members: RwLock::new(Arc::new(members_of(plan, endpoints))),
            owner: OnceLock::new(),
            open_calls: Arc::default(),
            known: Mutex::default(),
            catalogues: Mutex::default(),
            readings: Mutex::default(),
            withheld: Mutex::default(),
            looked_at: Mutex::default(),
            progress: Notify::new(),
            is_stopped: AtomicBool::new(false),
        });
        aggregate.load();
        aggregate
    }

    /// Names the endpoint that it is behind.
    pub(super) fn set_owner(&self, endpoint: &Arc<Endpoint>) {
        // It has one endpoint.
        let _ = self.owner.set(Arc::downgrade(endpoint));
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn metrics(&self) -> &Arc<DestinationMetrics> {
        &self.metrics
    }

    fn members(&self) -> Arc<Members> {
        Arc::clone(&self.members.read())
    }

    pub(crate) fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.members().plan)
    }

    pub(super) fn open_calls(&self) -> usize {
        self.open_calls.load(Ordering::Relaxed)
    }

    /// Returns the largest message of any member.
    pub(super) fn max_message_bytes(&self) -> Option<usize> {
        let members = self.members();
        members
            .endpoints
            .values()
            .map(|endpoint| endpoint.max_message_bytes())
            .max()
    }

    /// Returns what all callers see.
    pub(crate) fn view(&self) -> Arc<View> {
        self.catalogue(&None).view()
    }

    /// Reads the offers on disk of members of which nothing is known.
    fn load(&self) {
        let Some(store) = &self.shared.offers else { return };
        let members = self.members();
        for (name, endpoint) in members.shared() {
            if self.known_offer(name).is_some() {
                continue;
            }
            // It reads a file, so that no lock is held meanwhile.
            let Some(stored) = store.load(name, &endpoint.settings.backend) else {
                continue;
            };
            let mut known = self.known.lock();
            known.change(name, |known| {
                known.offer.get_or_insert(stored);
            });
        }
    }

    /// Begins to read members, except for those whose servers start with a call: nothing starts them
    /// until a client needs one of their calls, or needs to know what they offer.
    pub(super) fn start(&self) {
        let members = self.members();
        self.note_sign_ins(&members);
        self.note_states();
        for (name, endpoint) in members.shared() {
            if !is_lazy(endpoint) {
                self.read(&None, name);
            }
        }
    }

    /// Notes where users sign in at members.
    fn note_sign_ins(&self, members: &Members) {
        if self.shared.tells_callers_apart {
            return;
        }
        let mut pages = Vec::new();
        for (name, endpoint) in &members.endpoints {
            if let BackendSpec::Remote(remote) = &endpoint.settings.backend
                && let SignIn::OAuth(sign_in) = &remote.sign_in
            {
                pages.push((name.clone(), self.shared.sign_in_pages.address(name, sign_in)));
            }
        }
        let known = {
            let mut known = self.known.lock();
            for (name, page) in pages {
                known.change(&name, |known| known.sign_in = page);
            }
            known.by_name.clone()
        };
        for catalogue in self.catalogues() {
            catalogue.learn(&known);
        }
    }

    /// Takes another plan with other members. Conversations stay; their clients are notified of
    /// what has changed.
    pub(crate) fn update(&self, plan: Arc<Plan>, endpoints: &BTreeMap<String, Arc<Endpoint>>) {
        let before = self.members();
        let members = Arc::new(members_of(plan, endpoints));
        let is_same = |name: &MemberName, endpoint: &Arc<Endpoint>| {
            members
                .endpoint(name)
                .is_some_and(|now| Arc::ptr_eq(now, endpoint))
        };
        let gone: Vec<MemberName> = before
            .endpoints
            .iter()
            .filter(|(name, endpoint)| !is_same(name, endpoint))
            .map(|(name, _)| name.clone())
            .collect();
        let is_unchanged = gone.is_empty() && before.plan == members.plan;
        *self.members.write() = Arc::clone(&members);
        if is_unchanged {
            return;
        }
        // What another server offered is not known of its successor.
        let same_server = |name: &MemberName| {
            let backend =
                |members: &Members| members.endpoint(name).map(|found| found.settings.backend.clone());
            backend(&before) == backend(&members)
        };
        self.known.lock().by_name.retain(|name, _| {
            members.plan.member(name).is_some() && (!gone.contains(name) || same_server(name))
        });
        self.end_readings(|_, name| gone.contains(name));
        self.load();
        let catalogues: Vec<(Scope, Arc<CatalogueHandle>)> = {
            let catalogues = self.catalogues.lock();
            catalogues
                .iter()
                .map(|(scope, catalogue)| (scope.clone(), Arc::clone(catalogue)))
                .collect()
        };
        for (_, catalogue) in catalogues {
            catalogue.replan(&members.plan);
            // What came to be known before the catalogue had the member, it has not learned.
            let known = self.known.lock().by_name.clone();
            catalogue.learn(&known);
            if !gone.is_empty() {
                catalogue.leave_ended_instances();
            }
        }
        self.start();
    }

    fn catalogue(&self, scope: &Scope) -> Arc<CatalogueHandle> {
        self.catalogue_for(scope.clone(), &HeaderMap::new())
    }

    fn catalogue_for(&self, scope: Scope, headers: &HeaderMap) -> Arc<CatalogueHandle> {
        let plan = self.plan();
        let mut unused = Vec::new();
        let catalogue = {
            let mut catalogues = self.catalogues.lock();
            if let Some(found) = catalogues.get(&scope) {
                return Arc::clone(found);
            }
            if catalogues.len() >= MAX_CATALOGUES {
                // Those that nothing holds are used by no conversation.
                let is_unused = |scope: &Scope, catalogue: &mut Arc<CatalogueHandle>| {
                    scope.is_some() && Arc::strong_count(catalogue) == 1
                };
                unused.extend(catalogues.extract_if(.., is_unused).map(|(scope, _)| scope));
            }
            self.add_catalogue(&mut catalogues, (scope, headers.clone()), plan)
        };
        if !unused.is_empty() {
            self.end_readings(|scope, _| unused.contains(scope));
        }
        // What comes to be known from here on, the catalogue is given as the others are.
        let known = self.known.lock().by_name.clone();
        catalogue.learn(&known);
        catalogue
    }

    fn add_catalogue(
        &self,
        catalogues: &mut BTreeMap<Scope, Arc<CatalogueHandle>>,
        (scope, headers): (Scope, HeaderMap),
        plan: Arc<Plan>,
    ) -> Arc<CatalogueHandle> {
        let aggregate = Weak::clone(&self.this);
        let catalogue = CatalogueHandle::new(aggregate, scope.clone(), headers, self.shared.clock, plan);
        catalogues.insert(scope, Arc::clone(&catalogue));
        catalogue
    }

    fn catalogues(&self) -> Vec<Arc<CatalogueHandle>> {
        self.catalogues.lock().values().cloned().collect()
    }

    fn conversations(&self) -> Vec<Arc<ConversationHandle>> {
        let catalogues = self.catalogues();
        catalogues
            .iter()
            .flat_map(|catalogue| catalogue.conversations())
            .collect()
    }

    /// Reports what a view does not show, once.
    fn report_withheld(&self, view: &View) {
        let now = withheld(view);
        let before = std::mem::replace(&mut *self.withheld.lock(), now.clone());
        for text in now.iter().filter(|text| !before.contains(text)) {
            tracing::error!(destination = %self.name, what = %text, "clients are not shown a part of what members offer");
        }
    }

    // Time and the end.

    pub(super) fn tick(&self, now: Moment) {
        self.note_states();
        for conversation in self.conversations() {
            conversation.leave_ended_instances(now);
        }
        let members = self.members();
        for (name, _) in members.shared() {
            let is_due = {
                let readings = self.readings.lock();
                let reading = readings.get(&(None, name.clone()));
                reading.is_some_and(|reading| {
                    reading.reader.is_none() && reading.failed_at.is_some_and(|at| now.since(at) >= RETRY)
                })
            };
            if is_due {
                self.read(&None, name);
            }
        }
    }

    /// Forgets the catalogues of these callers.
    pub(super) fn dismiss(&self, leaves: impl Fn(&str) -> bool) {
        let is_left = |scope: &Scope| {
            let principal = scope.as_ref().map(|caller| caller.principal.as_str());
            principal.is_some_and(&leaves)
        };
        self.catalogues.lock().retain(|scope, _| !is_left(scope));
        self.end_readings(|scope, _| is_left(scope));
    }

    /// Ends and forgets these readings.
    fn end_readings(&self, is_over: impl Fn(&Scope, &MemberName) -> bool) {
        let ended: Vec<Reading> = {
            let mut readings = self.readings.lock();
            let ended = readings.extract_if(.., |(scope, name), _| is_over(scope, name));
            ended.map(|(_, reading)| reading).collect()
        };
        for reader in ended.into_iter().filter_map(|reading| reading.reader) {
            reader.close();
        }
    }

    pub(super) fn fail_calls(&self, failure: &Failure) {
        for conversation in self.conversations() {
            conversation.fail(failure);
        }
    }

    /// Ends every reading, and begins no other one.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        let readings = std::mem::take(&mut *self.readings.lock());
        for reader in readings.into_values().filter_map(|reading| reading.reader) {
            reader.close();
        }
    }
}

impl MemberServer for Endpoint {
    fn own_instance(&self, client: &Client) -> Option<Reservation> {
        self.check_open().ok()?;
        self.upstream.own_instance(client)
    }

    fn end_session(&self, session: SessionKey) {
        self.upstream.end_session(session);
    }
}

fn members_of(plan: Arc<Plan>, endpoints: &BTreeMap<String, Arc<Endpoint>>) -> Members {
    let found = plan.members().iter().filter_map(|member| {
        let endpoint = endpoints.get(&**member.name())?;
        Some((member.name().clone(), Arc::clone(endpoint)))
    });
    let endpoints: BTreeMap<MemberName, Arc<Endpoint>> = found.collect();
    let is_given = |endpoint: &Endpoint| {
        let upstream = endpoint.upstream.one();
        upstream.is_some_and(|upstream| !upstream.wanted_headers().is_empty())
    };
    let given = endpoints.iter().filter(|(_, endpoint)| is_given(endpoint));
    Members {
        given_headers: given
            .map(|(name, endpoint)| (name.clone(), Arc::clone(endpoint)))
            .collect(),
        has_callers: plan.members().iter().any(|member| member.is_per_caller()),
        plan,
        endpoints,
    }
}

/// Returns whether the server starts with the first call, and ends when it is not used.
fn is_lazy(endpoint: &Endpoint) -> bool {
    match &endpoint.settings.backend {
        BackendSpec::Process(process) => process.start == Start::Lazy,
        BackendSpec::Remote(_) | BackendSpec::Aggregate(_) => false,
    }
}

fn is_remote(endpoint: &Endpoint) -> bool {
    match &endpoint.settings.backend {
        BackendSpec::Remote(_) => true,
        BackendSpec::Process(_) | BackendSpec::Aggregate(_) => false,
    }
}

/// Returns whether a reader joins the instance that clients use.
fn shares_instances(endpoint: &Endpoint) -> bool {
    endpoint.settings.instances.sharing != Sharing::PerSession
}

/// Returns whether a reader can stay with the server, to learn of changes: it costs nothing, keeps
/// no process from ending, and is no other caller to a server that asks.
fn may_stay(endpoint: &Endpoint, tells_callers_apart: bool) -> bool {
    match &endpoint.settings.backend {
        BackendSpec::Process(process) => {
            process.start == Start::Eager
                && process.idle_stop.is_none()
                && endpoint.settings.instances.sharing == Sharing::Shared
                && !tells_callers_apart
        }
        BackendSpec::Remote(_) => !shares_instances(endpoint) || !tells_callers_apart,
        BackendSpec::Aggregate(_) => false,
    }
}
