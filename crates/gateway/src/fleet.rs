//! Which sessions this process serves, and which replica serves the others: drives [`Ownership`]
//! over a registry.
//!
//! With `state_dir` the registry is a file and there are no peers; with `cluster` replicas share
//! it. A request for a session that is open here does not come here. For any other,
//! [`Fleet::route`] returns the [`SessionRoute`] that serves the request: this process, another
//! replica, or none.
//!
//! A caller calls the machine under its lock. Its outputs are carried out after the lock, in order.
//! Operations of the registry run in tasks of their own, so a request that is given up leaves no
//! operation half-way. Each ends with its answer or as [`Away`].

mod metrics;
mod placed_server;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use cluster::RegistryError;
use cluster::ownership::{Away, Binding, Decision, Limits, Output, Ownership, RequestId, Unavailable};
use cluster::record::{self, Node, NodeId, SessionRecord};
use cluster::registry::{Claim, Created, Operation, Registry, Renewed, TakeOver};
use parking_lot::Mutex;
use protocol::time::Moment;
use tokio::sync::{Notify, oneshot, watch};
use uuid::Uuid;

pub(crate) use self::metrics::ProxyOutcome;
pub(crate) use self::placed_server::{PlacedServer, ServerRoute};

use self::metrics::FleetMetrics;
use crate::clock::Clock;
use crate::driver::{Driver, Machine};
use crate::session_store::{RecordFact, SessionStore};
use crate::status::ClusterStatus;
use crate::tasks;

/// Beyond the time limit of every engine: a registry that never answers is away.
const OPERATION_LIMIT: Duration = Duration::from_secs(10);
/// How many records wait at most for a request that restores their session.
const MAX_WAITING_RECORDS: usize = 1024;
/// How long the list of living replicas is used.
const NODES_FRESH: Duration = Duration::from_secs(1);

/// What a request wants: a session of this destination and principal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) destination: &'a str,
    pub(crate) principal: &'a str,
}

impl Wanted<'_> {
    fn binding(self) -> Binding {
        Binding::new(self.destination, self.principal)
    }

    fn fits(self, record: &SessionRecord) -> bool {
        record.destination == self.destination && record.principal == self.principal
    }
}

/// Where a request for a session is served. [`ServerRoute`] is where the one server of a
/// destination runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionRoute {
    /// Here. A session that is not in the map is restored ([`Fleet::take_record`]).
    Here,
    /// On another replica.
    There { node: Node, epoch: u64 },
    /// There is no such session for this principal at this destination.
    Nowhere,
    /// For a request of a peer: not here. The peer asks the registry again. The epoch is meant for
    /// a replica that knows a later one; nothing sets it yet.
    NotOwner(Option<u64>),
    /// It cannot be decided now.
    Refused(Unavailable),
}

impl From<Decision> for SessionRoute {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Serve(_) => Self::Here,
            Decision::Proxy { node, epoch } => Self::There { node, epoch },
            Decision::NotOwner => Self::NotOwner(None),
            Decision::Unknown => Self::Nowhere,
            Decision::Refuse(refusal) => Self::Refused(refusal),
        }
    }
}

/// Why a request did not reach the owner that [`Fleet::route`] named.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Undelivered<'a> {
    /// The owner could not be reached. Nothing was sent.
    NotSent(&'a NodeId),
    /// It no longer has the session.
    NotOwner,
}

/// Whether sessions survive in a file of this machine, or in an engine that replicas share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// `state_dir`: one process, and a file. A session whose record cannot be written is not
    /// opened.
    Alone,
    /// `cluster`: replicas, and an engine. While the engine is away, sessions are opened here, and
    /// their records are written later.
    Replicas,
}

/// The sessions that are open in this process, as the layer above has them.
pub(crate) trait LocalSessions: Send + Sync {
    /// Returns the record of an open session, if it has this epoch and its record is kept.
    fn record(&self, session: Uuid, epoch: u64) -> Option<SessionRecord>;

    /// Ends the copy of a session that another replica has by now. Its record is not this
    /// process's.
    fn drop_copy(&self, session: Uuid, epoch: u64);

    /// Ends the one server of a destination at once, and what is open at it. The future ends when
    /// the server has.
    fn end_server(&self, destination: &str) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The sessions of this process among those of all. See the [module](self).
pub(crate) struct Fleet {
    /// Itself, for the tasks that it starts.
    me: Weak<Self>,
    registry: Arc<dyn Registry>,
    store: Arc<SessionStore>,
    node: Node,
    sharing: Sharing,
    clock: Clock,
    driver: Driver<Ownership>,
    is_draining: AtomicBool,
    last_request: AtomicU64,
    answers: Mutex<HashMap<RequestId, oneshot::Sender<Decision>>>,
    waiting_records: Mutex<WaitingRecords>,
    local_sessions: OnceLock<Weak<dyn LocalSessions>>,
    /// The next deadline of the machine may have changed.
    deadline_moved: Notify,
    /// Whether the first join has ended, in whichever way.
    has_begun: watch::Sender<bool>,
    nodes: Mutex<Option<(Moment, Arc<[Node]>)>>,
    next_successor: AtomicUsize,
    metrics: FleetMetrics,
    /// The list of replicas is being read for a status.
    is_reading_nodes: AtomicBool,
    /// The destinations with one server in the fleet, by name.
    placed: Mutex<HashMap<String, Arc<PlacedServer>>>,
}

/// Records of sessions that were taken over and are not restored yet, oldest first.
#[derive(Default)]
struct WaitingRecords {
    records: HashMap<Uuid, Box<SessionRecord>>,
    order: VecDeque<Uuid>,
}

impl WaitingRecords {
    /// Adds a record. Returns the one that lost its place.
    fn insert(&mut self, record: Box<SessionRecord>) -> Option<Box<SessionRecord>> {
        let session = record.session;
        if self.records.insert(session, record).is_none() {
            self.order.push_back(session);
        }
        match self.order.len() > MAX_WAITING_RECORDS {
            true => self.order.front().copied().and_then(|oldest| self.remove(oldest)),
            false => None,
        }
    }

    fn remove(&mut self, session: Uuid) -> Option<Box<SessionRecord>> {
        let record = self.records.remove(&session)?;
        self.order.retain(|waiting| *waiting != session);
        Some(record)
    }
}

impl Machine for Ownership {
    type Output = Output;

    fn poll_output(&mut self) -> Option<Output> {
        Self::poll_output(self)
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Fleet {
    /// Returns the fleet as this replica sees it. It joins when [`Self::run`] is called.
    pub(crate) fn new(
        registry: Arc<dyn Registry>,
        store: Arc<SessionStore>,
        node: Node,
        sharing: Sharing,
        clock: Clock,
    ) -> Arc<Self> {
        let machine = Ownership::new(node.id.clone(), Limits::default(), clock.now().elapsed());
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            registry,
            store,
            node,
            sharing,
            clock,
            driver: Driver::new(machine),
            is_draining: AtomicBool::new(false),
            last_request: AtomicU64::new(0),
            answers: Mutex::default(),
            waiting_records: Mutex::default(),
            local_sessions: OnceLock::new(),
            deadline_moved: Notify::new(),
            has_begun: watch::Sender::new(false),
            nodes: Mutex::default(),
            next_successor: AtomicUsize::new(0),
            metrics: FleetMetrics::default(),
            is_reading_nodes: AtomicBool::new(false),
            placed: Mutex::default(),
        })
    }

    /// Names the layer that has the open sessions.
    pub(crate) fn set_local_sessions(&self, sessions: Weak<dyn LocalSessions>) {
        // The gateway calls this once, when it is built.
        let _ = self.local_sessions.set(sessions);
    }

    /// Returns this replica.
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the queue of what is written into records.
    pub(crate) fn store(&self) -> &Arc<SessionStore> {
        &self.store
    }

    /// Returns whether other replicas may serve the sessions of this one.
    pub(crate) fn has_peers(&self) -> bool {
        self.sharing == Sharing::Replicas
    }

    /// Joins, renews the lease, and writes what is queued, until the future is dropped.
    pub(crate) async fn run(&self) {
        tokio::join!(
            self.keep_deadlines(),
            self.store.run(|fact| self.handle_record(fact))
        );
    }

    async fn keep_deadlines(&self) {
        loop {
            self.act(Ownership::handle_timeout);
            let own = self.driver.lock().next_deadline().map(Moment::since_start);
            let placed = self.placed_servers();
            let placed = placed.iter().filter_map(|server| server.handle_timeout());
            let deadline = placed.chain(own).min();
            tokio::select! {
                _ = self.clock.reach(deadline) => {}
                () = self.deadline_moved.notified() => {}
            }
        }
    }

    /// Returns the one server of a destination, as this replica knows it.
    pub(crate) fn placed_server(&self, destination: &str) -> Arc<PlacedServer> {
        let mut placed = self.placed.lock();
        let server = placed.entry(destination.to_owned()).or_insert_with(|| {
            let me = Weak::clone(&self.me);
            PlacedServer::new(me, self.node.id.clone(), destination)
        });
        Arc::clone(server)
    }

    fn placed_servers(&self) -> Vec<Arc<PlacedServer>> {
        self.placed.lock().values().cloned().collect()
    }

    /// Waits until this replica has joined, or has failed to.
    pub(crate) async fn begun(&self) {
        // The sender is here, so the channel is not closed.
        let _ = self.has_begun.subscribe().wait_for(|begun| *begun).await;
    }

    /// Decides about a request of a client for a session that is not in the map.
    pub(crate) async fn route(&self, session: Uuid, wanted: Wanted<'_>) -> SessionRoute {
        self.ask(|machine, request| machine.handle_request(request, session, wanted.binding()))
            .await
    }

    /// Decides about a request of a peer.
    pub(crate) async fn route_for_peer(&self, session: Uuid, epoch: u64, wanted: Wanted<'_>) -> SessionRoute {
        self.ask(|machine, request| {
            machine.handle_peer_request(request, session, epoch, wanted.binding());
        })
        .await
    }

    /// Decides again about a request that did not run where it was sent, after so many attempts.
    pub(crate) async fn route_again(
        &self,
        session: Uuid,
        wanted: Wanted<'_>,
        undelivered: Undelivered<'_>,
        attempts: u32,
    ) -> SessionRoute {
        let binding = wanted.binding();
        self.ask(|machine, request| match undelivered {
            Undelivered::NotSent(node) => machine.handle_not_sent(request, session, binding, node, attempts),
            Undelivered::NotOwner => machine.handle_not_owner(request, session, binding, attempts),
        })
        .await
    }

    async fn ask(&self, act: impl FnOnce(&mut Ownership, RequestId)) -> SessionRoute {
        let request = self.last_request.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = oneshot::channel();
        self.answers.lock().insert(request, sender);
        self.act(|machine, _| act(machine, request));
        let decision = receiver.await;
        decision.unwrap_or(Decision::Refuse(Unavailable::Away)).into()
    }

    /// Takes the record of a session that was taken over for such a request. The caller restores
    /// the session, or calls [`Self::abandon`].
    pub(crate) fn take_record(&self, session: Uuid, wanted: Wanted<'_>) -> Option<Box<SessionRecord>> {
        let mut waiting = self.waiting_records.lock();
        let fits = waiting
            .records
            .get(&session)
            .is_some_and(|record| wanted.fits(record));
        fits.then(|| waiting.remove(session)).flatten()
    }

    /// Takes back a session that could not be restored. The next request takes it over again.
    pub(crate) fn abandon(&self, session: Uuid, epoch: u64) {
        self.act(|machine, _| machine.handle_not_restored(session, epoch));
    }

    /// Returns whether this replica has the session, under this epoch.
    pub(crate) fn holds(&self, claim: &Claim) -> bool {
        self.driver.lock().held(claim.session) == Some(claim.epoch)
    }

    /// Returns the claim of a session that is opened here.
    pub(crate) fn new_claim(&self, session: Uuid) -> Claim {
        self.claim(session, 1)
    }

    fn claim(&self, session: Uuid, epoch: u64) -> Claim {
        Claim {
            session,
            owner: self.node.id.clone(),
            epoch,
        }
    }

    /// Writes the record of a new session. Its id must not be shown before. While the engine of a
    /// fleet is away, the session is open here alone, and its record follows.
    pub(crate) async fn open(&self, record: SessionRecord) -> Result<(), RegistryError> {
        let began = self.clock.now().elapsed();
        let is_implicit = matches!(record.hello, record::Hello::Implicit(_));
        let lifetime = self.store.lifetime(is_implicit);
        let created = within_limit(self.registry.create(&record, lifetime)).await;
        self.metrics.operated(&created);
        let written = match created {
            Ok(Created::Created) => Ok(()),
            // Ids are drawn at random, so this is no accident of Rialto's.
            Ok(Created::Exists(_)) => {
                return Err(RegistryError::Refused("the session exists already".to_owned()));
            }
            Err(error @ (RegistryError::Unreachable(_) | RegistryError::Full(_))) if self.has_peers() => {
                tracing::warn!(%error, "a session is opened without its record, which follows");
                Err(Away)
            }
            Err(error) => return Err(error),
        };
        let binding = Binding::new(&record.destination, &record.principal);
        let (session, epoch) = (record.session, record.epoch);
        self.act(|machine, _| machine.handle_opened(session, epoch, binding, began, written));
        Ok(())
    }

    /// Removes the record of a session that has ended.
    pub(crate) fn close(&self, claim: &Claim) {
        self.act(|machine, _| machine.handle_closed(claim.session, claim.epoch));
    }

    /// Hands a session over whose copy has ended here.
    pub(crate) fn hand_over(&self, claim: &Claim) {
        self.act(|machine, _| machine.handle_hand_over(claim.session, claim.epoch));
    }

    /// Takes no session over from now on, shows it to the other replicas, and hands over what was
    /// taken over and waits for its request.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        self.act(|machine, _| machine.handle_drain());
        for server in self.placed_servers() {
            server.drain();
        }
        let waiting = std::mem::take(&mut *self.waiting_records.lock());
        for claim in waiting.records.values().filter_map(|record| record.claim()) {
            self.hand_over(&claim);
        }
        if self.has_peers() {
            let joining = self.registry.join(&self.described());
            tasks::spawn("registry", async move {
                if let Err(error) = within_limit(joining).await {
                    tracing::warn!(%error, "the registry does not show that this replica drains");
                }
            });
        }
    }

    /// Writes what is still queued and leaves the registry, at most for `limit`. The servers have
    /// ended.
    pub(crate) async fn close_all(&self, limit: Duration) {
        let names = self.placed_servers().into_iter().map(|server| server.name());
        let letting_go = names.map(|name| self.registry.let_go(&name, &self.node.id));
        // A name that is not let go is free when its lease ends.
        let _ = tokio::time::timeout(limit, futures_util::future::join_all(letting_go)).await;
        self.store.close(limit).await;
        let leaving = tokio::time::timeout(limit, self.registry.leave(&self.node.id)).await;
        let error = match leaving {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it does not answer".to_owned(),
        };
        tracing::warn!(error, "the registry of sessions cannot be left");
    }

    /// Returns a replica whose lease lasts. One that is not in the list is looked for in the
    /// registry: it may have joined since the list was read, and what it has is not lost.
    pub(crate) async fn living(
        &self,
        is_wanted: impl Fn(&Node) -> bool,
    ) -> Result<Option<Node>, RegistryError> {
        let find = |nodes: &[Node]| nodes.iter().find(|node| is_wanted(node)).cloned();
        match find(&self.nodes().await?) {
            Some(node) => Ok(Some(node)),
            None => Ok(find(&self.read_nodes().await?)),
        }
    }

    /// Makes this replica the holder of a name, unless another one holds it that lives. Names stand
    /// for what only one replica has, such as a task (`endpoint/task_owners.rs`).
    pub(crate) async fn hold(&self, name: &str, ttl: Duration) -> Result<NodeId, RegistryError> {
        within_limit(self.registry.hold(name, &self.node.id, ttl)).await
    }

    /// Returns the replica that holds a name. It may have ended.
    pub(crate) async fn holder(&self, name: &str) -> Result<Option<NodeId>, RegistryError> {
        within_limit(self.registry.holder(name)).await
    }

    /// Returns a replica that takes what this one no longer takes. One may have joined since the
    /// list was read.
    pub(crate) async fn successor(&self) -> Option<Node> {
        match self.successor_among(&self.nodes().await.ok()?) {
            Some(node) => Some(node),
            None => self.successor_among(&self.read_nodes().await.ok()?),
        }
    }

    fn successor_among(&self, nodes: &[Node]) -> Option<Node> {
        let may_take = |node: &&Node| node.id != self.node.id && !node.is_draining && node.address.is_some();
        let candidates: Vec<&Node> = nodes.iter().filter(may_take).collect();
        let turn = self.next_successor.fetch_add(1, Ordering::Relaxed);
        let chosen = turn.checked_rem(candidates.len())?;
        candidates.get(chosen).copied().cloned()
    }

    /// Returns the replicas whose lease lasts, as they were about a second ago.
    pub(crate) async fn nodes(&self) -> Result<Arc<[Node]>, RegistryError> {
        let now = self.clock.now();
        if let Some((at, nodes)) = &*self.nodes.lock()
            && now.since(*at) < NODES_FRESH
        {
            return Ok(Arc::clone(nodes));
        }
        self.read_nodes().await
    }

    async fn read_nodes(&self) -> Result<Arc<[Node]>, RegistryError> {
        let now = self.clock.now();
        let living = within_limit(self.registry.nodes()).await;
        self.metrics.operated(&living);
        let nodes: Arc<[Node]> = living?.into_iter().map(|status| status.node).collect();
        *self.nodes.lock() = Some((now, Arc::clone(&nodes)));
        Ok(nodes)
    }

    /// Counts a request that was forwarded to another replica.
    pub(crate) fn count_proxied(&self, outcome: ProxyOutcome) {
        self.metrics.proxied(outcome);
    }

    /// Returns the fleet as this replica knows it, without waiting. The list of replicas is read
    /// for the next question.
    pub(crate) fn status(&self) -> ClusterStatus {
        let (is_fresh, peers) = match &*self.nodes.lock() {
            Some((at, nodes)) => {
                let is_peer = |node: &&Node| node.id != self.node.id && node.address.is_some();
                let peers = nodes.iter().filter(is_peer).count();
                (self.clock.now().since(*at) < NODES_FRESH, Some(peers))
            }
            None => (false, None),
        };
        if !is_fresh && !self.is_reading_nodes.swap(true, Ordering::AcqRel) {
            let me = Weak::clone(&self.me);
            tasks::spawn("registry", async move {
                if let Some(fleet) = me.upgrade() {
                    // A failure is counted, and shown by the next status.
                    drop(fleet.nodes().await);
                    fleet.is_reading_nodes.store(false, Ordering::Release);
                }
            });
        }
        let now = self.clock.now().elapsed();
        self.metrics.status(self.node.id.as_str(), peers, now)
    }

    /// Returns this replica as the others see it.
    fn described(&self) -> Node {
        Node {
            is_draining: self.is_draining.load(Ordering::Acquire),
            ..self.node.clone()
        }
    }

    /// Takes what the registry answered to a write of the queue.
    fn handle_record(&self, fact: RecordFact) {
        self.act(|machine, _| match fact {
            RecordFact::Updated(claim, updated) => {
                machine.handle_updated(claim.session, claim.epoch, updated);
            }
            RecordFact::Released(claim) => {
                // Counted here: a release that is repeated, or is for a later owner's session, is
                // none.
                if machine.is_ending(claim.session, claim.epoch) {
                    self.metrics.handed_over.fetch_add(1, Ordering::Relaxed);
                }
                machine.handle_ended(claim.session, claim.epoch, Ok(()));
            }
            RecordFact::Ended(claim) => machine.handle_ended(claim.session, claim.epoch, Ok(())),
            RecordFact::NotEnded(claim) => machine.handle_ended(claim.session, claim.epoch, Err(Away)),
        });
    }

    /// Calls the machine, and carries out what comes of it.
    fn act<T>(&self, act: impl FnOnce(&mut Ownership, Duration) -> T) -> T {
        let now = self.clock.now().elapsed();
        let (acted, has_moved) = self.driver.act(
            |machine, _| {
                let before = machine.next_deadline();
                let acted = act(machine, now);
                (acted, machine.next_deadline() != before)
            },
            |output| self.carry_out(output),
        );
        if has_moved {
            self.deadline_moved.notify_one();
        }
        acted
    }

    fn carry_out(&self, output: Output) {
        match output {
            Output::Join => {
                let joining = self.registry.join(&self.described());
                self.operate(joining, |fleet, joined| {
                    if joined.is_ok() {
                        fleet.metrics.renewed(fleet.clock.now().elapsed());
                    }
                    fleet.act(|machine, now| machine.handle_joined(joined, now));
                    fleet.has_begun.send_replace(true);
                });
            }
            Output::Renew => self.operate(self.registry.renew(&self.node.id), |fleet, renewed| {
                if matches!(renewed, Ok(Renewed::Renewed)) {
                    fleet.metrics.renewed(fleet.clock.now().elapsed());
                }
                fleet.act(|machine, now| machine.handle_renewed(renewed, now));
            }),
            Output::LookUp(session) => self.operate(self.registry.look_up(session), move |fleet, located| {
                fleet.act(|machine, now| machine.handle_located(session, located, now));
            }),
            Output::TakeOver {
                session,
                seen,
                is_implicit,
            } => {
                let lifetime = self.store.lifetime(is_implicit);
                let taking = self.registry.take_over(session, seen, &self.node.id, lifetime);
                self.operate(taking, move |fleet, taken| {
                    if matches!(taken, Ok(TakeOver::Won(_))) {
                        fleet.metrics.take_overs.fetch_add(1, Ordering::Relaxed);
                    }
                    fleet.act(|machine, now| machine.handle_take_over(session, taken, now));
                });
            }
            Output::Write { session, epoch } => self.write_again(session, epoch),
            Output::Release { session, epoch } => {
                self.store.release(&self.claim(session, epoch));
            }
            Output::Remove { session, epoch } => self.store.remove(&self.claim(session, epoch)),
            Output::Restore(record) => {
                let displaced = self.waiting_records.lock().insert(record);
                if let Some(record) = displaced {
                    self.abandon(record.session, record.epoch);
                }
            }
            Output::Drop { session, epoch } => {
                tracing::info!(epoch, "a session has another owner by now; its copy here ends");
                let waiting = &self.waiting_records;
                drop(waiting.lock().remove(session));
                if let Some(sessions) = self.sessions() {
                    sessions.drop_copy(session, epoch);
                }
            }
            Output::Answer { request, decision } => {
                let sender = self.answers.lock().remove(&request);
                // A request that was given up needs no answer.
                drop(sender.map(|sender| sender.send(decision)));
            }
        }
    }

    fn sessions(&self) -> Option<Arc<dyn LocalSessions>> {
        self.local_sessions.get().and_then(Weak::upgrade)
    }

    /// Writes the record of an open session after the engine lost it.
    fn write_again(&self, session: Uuid, epoch: u64) {
        let waiting = self.waiting_records.lock().records.get(&session).cloned();
        let record = match waiting.filter(|record| record.epoch == epoch) {
            Some(record) => Some(*record),
            None => self
                .sessions()
                .and_then(|sessions| sessions.record(session, epoch)),
        };
        let Some(record) = record else {
            // The session has ended meanwhile, or a file that loses nothing has its record.
            return self.act(|machine, _| machine.handle_written(session, epoch, Ok(Created::Created)));
        };
        let is_implicit = matches!(record.hello, record::Hello::Implicit(_));
        let writing = self.registry.create(&record, self.store.lifetime(is_implicit));
        self.operate(writing, move |fleet, written| {
            if matches!(written, Ok(Created::Created)) {
                fleet.metrics.records_rewritten.fetch_add(1, Ordering::Relaxed);
            }
            fleet.act(|machine, _| machine.handle_written(session, epoch, written));
        });
    }

    /// Runs an operation of the registry in a task, and reports its end.
    fn operate<T: Send + 'static>(
        &self,
        operation: Operation<T>,
        report: impl FnOnce(&Self, Result<T, Away>) + Send + 'static,
    ) {
        let me = Weak::clone(&self.me);
        tasks::spawn("registry", async move {
            let ended = within_limit(operation).await;
            let fleet = me.upgrade();
            if let Some(fleet) = &fleet {
                fleet.metrics.operated(&ended);
            }
            let ended = ended.map_err(|error| {
                tracing::warn!(%error, "the registry of sessions does not answer");
                Away
            });
            if let Some(fleet) = fleet {
                report(&fleet, ended);
            }
        });
    }
}

/// Ends an operation whose registry never answers.
async fn within_limit<T>(operation: Operation<T>) -> Result<T, RegistryError> {
    let ended = tokio::time::timeout(OPERATION_LIMIT, operation).await;
    ended.unwrap_or_else(|_| Err(RegistryError::Unreachable("it does not answer".to_owned())))
}
