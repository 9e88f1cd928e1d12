//! Which sessions a replica serves, and to which replica it forwards requests for the others: a
//! machine without I/O.
//!
//! # Contract
//!
//! The driver reports facts with `handle_*`, carries out what [`Ownership::poll_output`] returns,
//! in that order, and calls [`Ownership::handle_timeout`] at [`Ownership::next_deadline`]. Time is
//! the replica's own monotonic clock, as an argument.
//!
//! - Every request that [`Ownership::handle_request`] takes gets exactly one [`Output::Answer`].
//! - Every [`Output`] that asks the registry is answered by the `handle_*` function of its name,
//!   also when the registry did not answer: then with [`Away`].
//! - The machine never guesses from silence. A peer that does not answer makes it ask the registry
//!   again; the registry alone ends a lease.
//! - A request gets a session only if it names the session's destination and principal. Any other
//!   is answered [`Decision::Unknown`], and never takes a session over.
//! - The driver ends its copy of a session first, then calls [`Ownership::handle_closed`] or
//!   [`Ownership::handle_hand_over`]. Requests that come before the record has followed wait for
//!   it.
//! - A replica that cannot reach the registry goes on serving what it has. When it reaches the
//!   registry again and its lease had ended, it writes every record again. A session with another
//!   owner by then is dropped: the higher epoch wins.
//!
//! # A session that is not found
//!
//! A registry that lost its data finds no session either, so "not found" is no proof that a session
//! does not exist. Until that is proved, its requests wait:
//!
//! 1. The session is `missing`, and a renewal of the lease begins at once. Those that were missing
//!    before it began are `confirming`.
//! 2. If the registry still knows the lease, it has lost nothing: the answer is
//!    [`Decision::Unknown`].
//! 3. If it does not, it may have lost records too. For [`SETTLING`] owners write theirs again, and
//!    such requests are refused ([`Unavailable::Settling`]).

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::record::{Hello, Node, NodeId, SessionRecord};
use crate::registry::{Created, LEASE, Located, Owner, RENEWAL, Renewed, TakeOver, Updated};

/// The registry gave no usable answer: it cannot be reached, or it failed
/// ([`RegistryError`](crate::RegistryError)). The operation may have had its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Away;

/// How long after a loss of the registry a session that is not found may be written again by its
/// owner: a fleet with a million sessions needs some tens of seconds.
pub const SETTLING: Duration = Duration::from_secs(60);

/// A request that waits for a decision, as its driver numbers it.
pub type RequestId = u64;

/// What a session is bound to. A request that names another destination or comes from another
/// principal does not get the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The destination that the session belongs to.
    pub destination: Arc<str>,
    /// The principal that opened it.
    pub principal: Arc<str>,
}

impl Binding {
    /// Returns the binding of these two.
    #[must_use]
    pub fn new(destination: &str, principal: &str) -> Self {
        Self {
            destination: destination.into(),
            principal: principal.into(),
        }
    }

    fn fits(&self, record: &SessionRecord) -> bool {
        *self.destination == *record.destination && *self.principal == *record.principal
    }
}

/// How much a replica keeps.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Sessions of other replicas whose owner is remembered.
    pub routes: usize,
    /// Sessions that are looked up or taken over at once.
    pub lookups: usize,
    /// Requests that wait for one of those.
    pub waiting: usize,
    /// Records that are written again at once, after the registry lost them. A thousand replicas do
    /// so together, and what waits longer than the time limit is done in vain.
    pub rewrites: usize,
    /// How often one request asks the registry before it is refused.
    pub attempts: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            routes: 100_000,
            lookups: 1024,
            waiting: 8192,
            rewrites: 8,
            attempts: 4,
        }
    }
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// This replica has the session, under this epoch.
    Serve(u64),
    /// Another replica has it, and the request is forwarded to it.
    Proxy {
        /// The owner.
        node: Node,
        /// The epoch that the registry named, for the owner to compare.
        epoch: u64,
    },
    /// For a request of a peer: this replica does not have the session, and the peer asks the
    /// registry again. Nothing is proxied twice.
    NotOwner,
    /// There is no such session.
    Unknown,
    /// It cannot be decided now; the client may try again.
    Refuse(Unavailable),
}

/// Why a request is refused for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// The registry does not answer.
    Away,
    /// The registry came back empty, and owners are still writing their records again.
    Settling,
    /// The owner lives and cannot be reached from here.
    OwnerUnreached,
    /// This replica is ending and takes no session over.
    Draining,
    /// Too many requests wait, or the owner changed too often.
    Busy,
}

impl Decision {
    /// Returns what a peer is answered in place of a decision that is for this replica's own
    /// clients.
    fn towards(self, origin: Origin) -> Self {
        match (origin, self) {
            (Origin::Peer, Self::Proxy { .. } | Self::Refuse(Unavailable::Draining)) => Self::NotOwner,
            (Origin::Peer | Origin::Client, decision) => decision,
        }
    }
}

/// What the driver does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Join the registry, then [`Ownership::handle_joined`].
    Join,
    /// Renew the lease, then [`Ownership::handle_renewed`].
    Renew,
    /// Look a session up, then [`Ownership::handle_located`].
    LookUp(Uuid),
    /// Take a session over, then [`Ownership::handle_take_over`].
    TakeOver {
        /// The session.
        session: Uuid,
        /// The epoch that was seen.
        seen: u64,
        /// Whether the session began without `initialize`: such a one expires earlier.
        is_implicit: bool,
    },
    /// Write the record of a session again, then [`Ownership::handle_written`].
    Write {
        /// The session.
        session: Uuid,
        /// The epoch of the record.
        epoch: u64,
    },
    /// Hand a session over, then [`Ownership::handle_ended`].
    Release {
        /// The session.
        session: Uuid,
        /// The epoch that this replica had.
        epoch: u64,
    },
    /// Remove the record of a session, then [`Ownership::handle_ended`].
    Remove {
        /// The session.
        session: Uuid,
        /// The epoch that this replica had.
        epoch: u64,
    },
    /// Go on with a session from its record, before the requests that follow.
    Restore(Box<SessionRecord>),
    /// End this replica's copy of a session: another replica has it.
    Drop {
        /// The session.
        session: Uuid,
        /// The epoch that this replica had.
        epoch: u64,
    },
    /// Carry a request on.
    Answer {
        /// The request.
        request: RequestId,
        /// How.
        decision: Decision,
    },
}

/// Whether the registry has this replica's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Membership {
    /// It is being joined, or could not be joined yet.
    Outside,
    /// It has it since it was `joined`, and the last join or renewal began at `since`.
    Member { joined: Duration, since: Duration },
}

/// Where a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Client,
    Peer,
}

/// A session of this replica.
#[derive(Debug)]
struct Held {
    epoch: u64,
    binding: Binding,
}

/// A session whose copy has ended here, while the registry is asked to follow.
#[derive(Debug)]
struct Ending {
    epoch: u64,
    /// What waits for a write of the record that is under way.
    after_write: Option<Output>,
}

/// A request that waits for the registry.
#[derive(Debug)]
struct Waiting {
    request: RequestId,
    origin: Origin,
    binding: Binding,
}

/// A session that is being looked for.
#[derive(Debug, Default)]
struct Search {
    waiting: Vec<Waiting>,
    attempts: u32,
    /// The owner that could not be reached. If it lives, the request is refused.
    unreached: Option<NodeId>,
    /// When the take-over began that is under way.
    began: Duration,
}

impl Held {
    fn decide(&self, binding: &Binding) -> Decision {
        match self.binding == *binding {
            true => Decision::Serve(self.epoch),
            false => Decision::Unknown,
        }
    }
}

impl Waiting {
    fn client(request: RequestId, binding: Binding) -> Self {
        Self {
            request,
            origin: Origin::Client,
            binding,
        }
    }
}

#[derive(Debug)]
struct Route {
    owner: NodeId,
    epoch: u64,
}

/// The sessions of one replica. See the [module](self) for its contract.
#[derive(Debug)]
pub struct Ownership {
    node: NodeId,
    limits: Limits,
    membership: Membership,
    /// Whether a join or renewal is under way, and since when.
    under_way: Option<Duration>,
    /// When the next join or renewal begins.
    next: Duration,
    /// Until when a session that is not found may still be written again by its owner. See the
    /// [module](self) for this and the next two.
    settles: Duration,
    /// Sessions that were not found. They are unknown only if the registry still has this replica's
    /// lease: one that came back empty finds no session either.
    missing: Vec<Uuid>,
    /// Those of them that were not found before the renewal under way began.
    confirming: Vec<Uuid>,
    is_draining: bool,
    /// The sessions of this replica. The driver bounds their number.
    held: HashMap<Uuid, Held>,
    /// Sessions that ended here. The driver reports the end of each, so that none stays.
    ending: HashMap<Uuid, Ending>,
    searches: HashMap<Uuid, Search>,
    waiting: usize,
    routes: HashMap<Uuid, Route>,
    /// The routes in the order in which they were learnt: the oldest goes first.
    learnt: VecDeque<Uuid>,
    nodes: HashMap<NodeId, Node>,
    /// Records to be written again, and those under way.
    unwritten: BTreeSet<Uuid>,
    writing: HashSet<Uuid>,
    /// How many may be under way: one after a write without an answer, and one more with each
    /// answer.
    window: usize,
    outputs: VecDeque<Output>,
}

impl Ownership {
    /// Returns the machine of a replica that has not joined yet. Joining is its first output.
    #[must_use]
    pub fn new(node: NodeId, limits: Limits, now: Duration) -> Self {
        let mut machine = Self {
            node,
            limits,
            membership: Membership::Outside,
            under_way: None,
            next: now,
            settles: Duration::ZERO,
            missing: Vec::new(),
            confirming: Vec::new(),
            is_draining: false,
            held: HashMap::new(),
            ending: HashMap::new(),
            searches: HashMap::new(),
            waiting: 0,
            routes: HashMap::new(),
            learnt: VecDeque::new(),
            nodes: HashMap::new(),
            unwritten: BTreeSet::new(),
            writing: HashSet::new(),
            window: 1,
            outputs: VecDeque::new(),
        };
        machine.handle_timeout(now);
        machine
    }

    /// Returns the next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns when [`Self::handle_timeout`] is to be called. A join or renewal under way ends
    /// first.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.under_way.is_none().then_some(self.next)
    }

    /// Begins a renewal, or a join, if its time has come.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.under_way.is_some() || now < self.next {
            return;
        }
        self.under_way = Some(now);
        match self.membership {
            Membership::Outside => self.outputs.push_back(Output::Join),
            Membership::Member { .. } => {
                self.confirming.append(&mut self.missing);
                self.outputs.push_back(Output::Renew);
            }
        }
    }

    /// Returns whether the lease lasts for certain, by this replica's clock: the engine began to
    /// count after the operation began.
    #[must_use]
    pub fn lease_lasts(&self, now: Duration) -> bool {
        match self.membership {
            Membership::Outside => false,
            Membership::Member { since, .. } => now < since + LEASE,
        }
    }

    /// Returns the epoch of a session that this replica has.
    #[must_use]
    pub fn held(&self, session: Uuid) -> Option<u64> {
        self.held.get(&session).map(|held| held.epoch)
    }

    /// Returns whether a session ended here under this epoch, and the registry has not followed yet.
    #[must_use]
    pub fn is_ending(&self, session: Uuid, epoch: u64) -> bool {
        self.ending
            .get(&session)
            .is_some_and(|ending| ending.epoch == epoch)
    }

    /// Returns the sessions of this replica.
    pub fn sessions(&self) -> impl Iterator<Item = (Uuid, u64)> + '_ {
        self.held.iter().map(|(session, held)| (*session, held.epoch))
    }

    /// Returns how many owners of foreign sessions are remembered.
    #[must_use]
    pub fn routes(&self) -> usize {
        self.routes.len()
    }

    /// Takes the answer to [`Output::Join`].
    pub fn handle_joined(&mut self, joined: Result<(), Away>, now: Duration) {
        let Some(since) = self.under_way.take() else {
            return;
        };
        self.next = now.max(since + RENEWAL);
        // What was not found before this replica was a member is not known to be missing.
        let missing = std::mem::take(&mut self.missing);
        self.settle_all(missing, &Decision::Refuse(Unavailable::Settling));
        if joined.is_ok() {
            self.membership = Membership::Member { joined: now, since };
            // While there was no lease, another replica may have taken any of them over.
            self.unwritten = self.held.keys().copied().collect();
            self.writing.clear();
            self.write_again();
        }
    }

    /// Takes the answer to [`Output::Renew`].
    pub fn handle_renewed(&mut self, renewed: Result<Renewed, Away>, now: Duration) {
        let Some(since) = self.under_way.take() else {
            return;
        };
        self.next = match self.missing.is_empty() {
            true => now.max(since + RENEWAL),
            false => now,
        };
        let confirming = std::mem::take(&mut self.confirming);
        match renewed {
            Ok(Renewed::Renewed) => {
                if let Membership::Member { since: last, .. } = &mut self.membership {
                    *last = since;
                }
                let decision = match now < self.settles {
                    true => Decision::Refuse(Unavailable::Settling),
                    false => Decision::Unknown,
                };
                self.settle_all(confirming, &decision);
                self.write_again();
            }
            Ok(Renewed::Unknown) => {
                // The lease had ended, or the registry lost it; perhaps it lost the records too.
                // Until the other owners have written theirs again, a session that is not found may
                // have one.
                self.membership = Membership::Outside;
                self.settles = now + SETTLING;
                self.next = now;
                self.settle_all(confirming, &Decision::Refuse(Unavailable::Settling));
            }
            Err(Away) => self.settle_all(confirming, &Decision::Refuse(Unavailable::Away)),
        }
        self.handle_timeout(now);
    }

    /// Takes a session that this replica opened. Writing its record began at `began`, and was
    /// answered or not.
    pub fn handle_opened(
        &mut self,
        session: Uuid,
        epoch: u64,
        binding: Binding,
        began: Duration,
        written: Result<(), Away>,
    ) {
        self.held.insert(session, Held { epoch, binding });
        if written.is_err() || !self.was_member(began) {
            self.unwritten.insert(session);
        }
        if written.is_ok() {
            self.write_again();
        }
    }

    /// Takes the end of a session for good: its record is removed.
    pub fn handle_closed(&mut self, session: Uuid, epoch: u64) {
        self.end(session, epoch, Output::Remove { session, epoch });
    }

    /// Takes the end of a session's copy. Another replica may go on with the session.
    pub fn handle_hand_over(&mut self, session: Uuid, epoch: u64) {
        self.end(session, epoch, Output::Release { session, epoch });
    }

    /// Takes a session that could not be restored from its record. The registry still names this
    /// replica, so the next request for the session takes it over again.
    pub fn handle_not_restored(&mut self, session: Uuid, epoch: u64) {
        if self.held(session) == Some(epoch) {
            self.held.remove(&session);
        }
    }

    /// Takes the answer to [`Output::Release`] or [`Output::Remove`]. The driver may go on trying
    /// after [`Away`]: the registry names this replica until then, or until its lease ends.
    pub fn handle_ended(&mut self, session: Uuid, epoch: u64, ended: Result<(), Away>) {
        if self
            .ending
            .get(&session)
            .is_none_or(|ending| ending.epoch != epoch)
        {
            return;
        }
        self.ending.remove(&session);
        match ended {
            Ok(()) if self.searches.contains_key(&session) => self.outputs.push_back(Output::LookUp(session)),
            Ok(()) => {}
            Err(Away) => self.settle(session, &Decision::Refuse(Unavailable::Away)),
        }
    }

    /// Decides about a request of a client.
    pub fn handle_request(&mut self, request: RequestId, session: Uuid, binding: Binding) {
        if let Some(held) = self.held.get(&session) {
            let decision = held.decide(&binding);
            self.answer(request, decision);
        } else if let Some((node, epoch)) = self.route(session) {
            // The owner compares the binding.
            self.answer(request, Decision::Proxy { node, epoch });
        } else {
            self.search(session, Waiting::client(request, binding), 0, None);
        }
    }

    /// Decides about a request that a peer sent here, because the registry named this replica and
    /// `epoch`.
    pub fn handle_peer_request(&mut self, request: RequestId, session: Uuid, epoch: u64, binding: Binding) {
        match self.held.get(&session) {
            Some(held) if held.epoch >= epoch => {
                let decision = held.decide(&binding);
                self.answer(request, decision);
            }
            Some(_) | None => {
                // An earlier epoch than the registry's is a copy of an earlier owner. Without a
                // copy the answer to this replica's own take-over was lost, or the peer's route is
                // old.
                self.drop_copy(session);
                let origin = Origin::Peer;
                let waiting = Waiting {
                    request,
                    origin,
                    binding,
                };
                self.search(session, waiting, 0, None);
            }
        }
    }

    /// Takes back a request that its owner refused, because it no longer has the session.
    pub fn handle_not_owner(&mut self, request: RequestId, session: Uuid, binding: Binding, attempts: u32) {
        self.forget_route(session);
        self.search(session, Waiting::client(request, binding), attempts, None);
    }

    /// Takes back a request that was not sent, because its owner could not be reached.
    pub fn handle_not_sent(
        &mut self,
        request: RequestId,
        session: Uuid,
        binding: Binding,
        node: &NodeId,
        attempts: u32,
    ) {
        self.handle_silent_peer(node);
        let waiting = Waiting::client(request, binding);
        self.search(session, waiting, attempts, Some(node.clone()));
    }

    /// Forgets where the sessions of a peer are that does not answer. The registry is asked again;
    /// it alone knows whether the lease has ended.
    pub fn handle_silent_peer(&mut self, node: &NodeId) {
        self.routes.retain(|_, route| route.owner != *node);
        self.nodes.remove(node);
        let routes = &self.routes;
        self.learnt.retain(|session| routes.contains_key(session));
    }

    /// Takes the answer to [`Output::LookUp`].
    pub fn handle_located(&mut self, session: Uuid, located: Result<Option<Located>, Away>, now: Duration) {
        match located {
            Err(Away) => self.settle(session, &Decision::Refuse(Unavailable::Away)),
            Ok(None) => self.not_found(session, now),
            Ok(Some(located)) => self.found(session, located, now),
        }
    }

    /// Takes the answer to [`Output::TakeOver`].
    pub fn handle_take_over(&mut self, session: Uuid, taken: Result<TakeOver, Away>, now: Duration) {
        match taken {
            // If the answer was lost, the next request finds this replica as the owner.
            Err(Away) => self.settle(session, &Decision::Refuse(Unavailable::Away)),
            Ok(TakeOver::Unknown) => self.not_found(session, now),
            Ok(TakeOver::Lost(located)) => self.found(session, *located, now),
            Ok(TakeOver::Won(record)) => {
                let epoch = record.epoch;
                // A request with another binding may have come since the look-up.
                self.answer_unsuited(&record);
                let binding = Binding::new(&record.destination, &record.principal);
                let began = self
                    .searches
                    .get(&session)
                    .map_or(Duration::ZERO, |search| search.began);
                self.held.insert(session, Held { epoch, binding });
                self.outputs.push_back(Output::Restore(record));
                self.settle(session, &Decision::Serve(epoch));
                if !self.was_member(began) {
                    self.unwritten.insert(session);
                    self.write_again();
                }
            }
        }
    }

    /// Takes the answer to [`Output::Write`].
    pub fn handle_written(&mut self, session: Uuid, epoch: u64, written: Result<Created, Away>) {
        self.writing.remove(&session);
        if let Some(ending) = self.ending.get_mut(&session) {
            self.outputs.extend(ending.after_write.take());
        }
        let is_there = written.is_ok();
        if self.held(session) == Some(epoch) {
            match written {
                Ok(Created::Created) => {}
                Ok(Created::Exists(located)) => {
                    self.drop_copy(session);
                    self.learn(&located);
                }
                Err(Away) => drop(self.unwritten.insert(session)),
            }
        }
        // A registry that is away is asked again after the next renewal.
        if is_there {
            self.window = (self.window + 1).min(self.limits.rewrites);
            self.write_again();
        } else {
            self.window = 1;
        }
    }

    /// Takes the result of a touch, a change of state or a removal, under the epoch that it had.
    pub fn handle_updated(&mut self, session: Uuid, epoch: u64, updated: Updated) {
        if self.held(session) != Some(epoch) {
            return;
        }
        match updated {
            Updated::Done => {}
            Updated::Superseded(_) => self.drop_copy(session),
            Updated::Unknown => {
                self.unwritten.insert(session);
                self.write_again();
            }
        }
    }

    /// Takes no further session over. The lease is renewed until the driver leaves the registry.
    pub fn handle_drain(&mut self) {
        self.is_draining = true;
    }

    /// Returns whether an operation that began then was done under the lease that lasts now. One
    /// that began before the join may have been done without a lease: its session had no living
    /// owner, and another replica may have taken it over since. Such a record is written again,
    /// which shows it.
    fn was_member(&self, began: Duration) -> bool {
        matches!(self.membership, Membership::Member { joined, .. } if began >= joined)
    }

    fn answer(&mut self, request: RequestId, decision: Decision) {
        self.outputs.push_back(Output::Answer { request, decision });
    }

    /// Ends a session here and has the registry follow.
    fn end(&mut self, session: Uuid, epoch: u64, output: Output) {
        if self.held(session).is_some_and(|held| held != epoch) {
            // A later copy is here. The registry compares the epoch of the earlier one.
            return self.outputs.push_back(output);
        }
        self.held.remove(&session);
        // A record that is written after its removal would stay.
        let (after_write, output) = match self.writing.contains(&session) {
            true => (Some(output), None),
            false => (None, Some(output)),
        };
        self.ending.insert(session, Ending { epoch, after_write });
        self.outputs.extend(output);
    }

    /// Has a request wait for the registry.
    fn search(&mut self, session: Uuid, waiting: Waiting, attempts: u32, unreached: Option<NodeId>) {
        let is_new = !self.searches.contains_key(&session);
        let is_full =
            self.waiting >= self.limits.waiting || (is_new && self.searches.len() >= self.limits.lookups);
        if is_full || attempts >= self.limits.attempts {
            return self.answer(waiting.request, Decision::Refuse(Unavailable::Busy));
        }
        self.waiting += 1;
        let search = self.searches.entry(session).or_default();
        search.waiting.push(waiting);
        search.attempts = search.attempts.max(attempts);
        if unreached.is_some() {
            search.unreached = unreached;
        }
        // The record of a session that ended here follows first.
        if is_new && !self.ending.contains_key(&session) {
            self.outputs.push_back(Output::LookUp(session));
        }
    }

    /// Answers the waiting requests whose binding does not fit the record. A search without
    /// requests is over.
    fn answer_unsuited(&mut self, record: &SessionRecord) {
        let Some(search) = self.searches.get_mut(&record.session) else {
            return;
        };
        let unsuited: Vec<Waiting> = search
            .waiting
            .extract_if(.., |waiting| !waiting.binding.fits(record))
            .collect();
        if search.waiting.is_empty() {
            self.searches.remove(&record.session);
        }
        self.waiting -= unsuited.len();
        for waiting in unsuited {
            self.answer(waiting.request, Decision::Unknown);
        }
    }

    /// Goes on with a search whose session was found.
    fn found(&mut self, session: Uuid, located: Located, now: Duration) {
        self.answer_unsuited(&located.record);
        let Some(search) = self.searches.get_mut(&session) else {
            return;
        };
        search.attempts += 1;
        search.began = now;
        let seen = located.record.epoch;
        match &located.owner {
            // The registry has this replica as the owner and the replica has no copy: the answer to
            // its take-over was lost. Another take-over gives it a fresh epoch.
            Owner::Living(node) if node.id != self.node => {
                if search.unreached.as_ref() == Some(&node.id) {
                    return self.settle(session, &Decision::Refuse(Unavailable::OwnerUnreached));
                }
                let decision = Decision::Proxy {
                    node: node.clone(),
                    epoch: seen,
                };
                self.learn(&located);
                self.settle(session, &decision);
            }
            Owner::Living(_) | Owner::Gone if self.is_draining => {
                self.settle(session, &Decision::Refuse(Unavailable::Draining));
            }
            Owner::Living(_) | Owner::Gone if search.attempts > self.limits.attempts => {
                self.settle(session, &Decision::Refuse(Unavailable::Busy));
            }
            Owner::Living(_) | Owner::Gone => {
                let is_implicit = matches!(located.record.hello, Hello::Implicit(_));
                self.outputs.push_back(Output::TakeOver {
                    session,
                    seen,
                    is_implicit,
                });
            }
        }
    }

    /// Goes on with a search whose session was not found: a renewal tells whether the registry lost
    /// it.
    fn not_found(&mut self, session: Uuid, now: Duration) {
        if now < self.settles || self.membership == Membership::Outside {
            return self.settle(session, &Decision::Refuse(Unavailable::Settling));
        }
        self.missing.push(session);
        self.next = now;
        self.handle_timeout(now);
    }

    fn settle_all(&mut self, sessions: Vec<Uuid>, decision: &Decision) {
        for session in sessions {
            self.settle(session, decision);
        }
    }

    /// Ends a search.
    fn settle(&mut self, session: Uuid, decision: &Decision) {
        let Some(search) = self.searches.remove(&session) else {
            return;
        };
        self.waiting -= search.waiting.len();
        for waiting in search.waiting {
            self.answer(waiting.request, decision.clone().towards(waiting.origin));
        }
    }

    fn drop_copy(&mut self, session: Uuid) {
        if let Some(Held { epoch, .. }) = self.held.remove(&session) {
            self.outputs.push_back(Output::Drop { session, epoch });
        }
    }

    fn route(&self, session: Uuid) -> Option<(Node, u64)> {
        let route = self.routes.get(&session)?;
        let node = self.nodes.get(&route.owner)?;
        Some((node.clone(), route.epoch))
    }

    fn learn(&mut self, located: &Located) {
        let Owner::Living(node) = &located.owner else {
            return;
        };
        if node.id == self.node || self.limits.routes == 0 {
            return;
        }
        let session = located.record.session;
        let route = Route {
            owner: node.id.clone(),
            epoch: located.record.epoch,
        };
        self.nodes.insert(node.id.clone(), node.clone());
        if self.routes.insert(session, route).is_none() {
            self.learnt.push_back(session);
        }
        while self.routes.len() > self.limits.routes {
            match self.learnt.pop_front() {
                Some(oldest) => drop(self.routes.remove(&oldest)),
                None => break,
            }
        }
    }

    fn forget_route(&mut self, session: Uuid) {
        if self.routes.remove(&session).is_some() {
            self.learnt.retain(|learnt| *learnt != session);
        }
    }

    /// Writes records again, a few at a time: after a fail-over every replica does so at once.
    fn write_again(&mut self) {
        if self.membership == Membership::Outside {
            return;
        }
        while self.writing.len() < self.window {
            let Some(session) = self.unwritten.pop_first() else {
                break;
            };
            if let Some(epoch) = self.held(session)
                && self.writing.insert(session)
            {
                self.outputs.push_back(Output::Write { session, epoch });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{State, WallTime};

    const NOW: Duration = Duration::from_secs(1000);

    fn node(name: &str) -> Node {
        Node {
            id: NodeId::new(name, Uuid::from_u128(1)).unwrap(),
            address: None,
            program: String::new(),
            is_draining: false,
        }
    }

    /// The binding of every record here.
    fn binding() -> Binding {
        Binding::new("files", "ann")
    }

    fn session(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn record(number: u128, owner: &Node, epoch: u64) -> SessionRecord {
        SessionRecord {
            session: session(number),
            destination: "files".to_owned(),
            principal: "ann".to_owned(),
            owner: Some(owner.id.clone()),
            epoch,
            hello: Hello::Implicit(String::new()),
            state: State::default(),
            created: WallTime::from_unix(0),
            last_active: WallTime::from_unix(0),
        }
    }

    fn living(number: u128, owner: &Node, epoch: u64) -> Located {
        Located {
            record: record(number, owner, epoch),
            owner: Owner::Living(owner.clone()),
        }
    }

    fn gone(number: u128, owner: &Node, epoch: u64) -> Located {
        Located {
            owner: Owner::Gone,
            ..living(number, owner, epoch)
        }
    }

    fn outputs(machine: &mut Ownership) -> Vec<Output> {
        std::iter::from_fn(|| machine.poll_output()).collect()
    }

    fn answer(request: RequestId, decision: Decision) -> Output {
        Output::Answer { request, decision }
    }

    fn refused(request: RequestId, refusal: Unavailable) -> Output {
        answer(request, Decision::Refuse(refusal))
    }

    /// Returns the machine of a replica that has joined.
    fn joined_with(limits: Limits) -> Ownership {
        let mut machine = Ownership::new(node("me").id, limits, NOW);
        assert_eq!(outputs(&mut machine), [Output::Join]);
        machine.handle_joined(Ok(()), NOW);
        assert!(outputs(&mut machine).is_empty());
        machine
    }

    fn joined() -> Ownership {
        joined_with(Limits::default())
    }

    #[test]
    fn own_session_is_served_without_the_registry() {
        let mut machine = joined();
        machine.handle_opened(session(1), 1, binding(), NOW, Ok(()));
        machine.handle_request(7, session(1), binding());
        assert_eq!(outputs(&mut machine), [answer(7, Decision::Serve(1))]);
        machine.handle_closed(session(1), 1);
        machine.handle_request(8, session(1), binding());
        let remove = Output::Remove {
            session: session(1),
            epoch: 1,
        };
        assert_eq!(outputs(&mut machine), [remove]);
        // The record goes before a request looks for it.
        machine.handle_ended(session(1), 1, Ok(()));
        assert_eq!(outputs(&mut machine), [Output::LookUp(session(1))]);
    }

    #[test]
    fn foreign_session_is_looked_up_once_and_remembered() {
        let (mut machine, b) = (joined(), node("b"));
        machine.handle_request(1, session(1), binding());
        machine.handle_request(2, session(1), binding());
        assert_eq!(outputs(&mut machine), [Output::LookUp(session(1))]);
        machine.handle_located(session(1), Ok(Some(living(1, &b, 4))), NOW);
        let proxy = Decision::Proxy { node: b, epoch: 4 };
        let both = [answer(1, proxy.clone()), answer(2, proxy.clone())];
        assert_eq!(outputs(&mut machine), both);
        machine.handle_request(3, session(1), binding());
        assert_eq!(outputs(&mut machine), [answer(3, proxy)]);
    }

    #[test]
    fn session_of_a_dead_owner_is_taken_over_and_restored_before_its_requests() {
        let (mut machine, b) = (joined(), node("b"));
        machine.handle_request(1, session(1), binding());
        machine.handle_located(session(1), Ok(Some(gone(1, &b, 4))), NOW);
        let taking = Output::TakeOver {
            session: session(1),
            seen: 4,
            is_implicit: true,
        };
        assert_eq!(outputs(&mut machine), [Output::LookUp(session(1)), taking]);
        let taken = record(1, &node("me"), 5);
        let won = TakeOver::Won(Box::new(taken.clone()));
        machine.handle_take_over(session(1), Ok(won), NOW);
        let restored = Output::Restore(Box::new(taken));
        assert_eq!(outputs(&mut machine), [restored, answer(1, Decision::Serve(5))]);
        assert_eq!(machine.held(session(1)), Some(5));
    }

    #[test]
    fn replica_that_lost_the_take_over_proxies_to_the_winner() {
        let (mut machine, b, c) = (joined(), node("b"), node("c"));
        machine.handle_request(1, session(1), binding());
        machine.handle_located(session(1), Ok(Some(gone(1, &b, 4))), NOW);
        outputs(&mut machine);
        let lost = TakeOver::Lost(Box::new(living(1, &c, 5)));
        machine.handle_take_over(session(1), Ok(lost), NOW);
        let proxy = Decision::Proxy { node: c, epoch: 5 };
        assert_eq!(outputs(&mut machine), [answer(1, proxy)]);
    }

    #[test]
    fn take_over_that_is_always_lost_to_a_dead_owner_ends() {
        let (mut machine, b) = (joined(), node("b"));
        machine.handle_request(1, session(1), binding());
        machine.handle_located(session(1), Ok(Some(gone(1, &b, 1))), NOW);
        for epoch in 2.. {
            let last = outputs(&mut machine).pop();
            if last == Some(refused(1, Unavailable::Busy)) {
                return;
            }
            assert!(epoch < 20, "{last:?}");
            let lost = TakeOver::Lost(Box::new(gone(1, &b, epoch)));
            machine.handle_take_over(session(1), Ok(lost), NOW);
        }
    }

    #[test]
    fn registry_that_is_away_refuses_foreign_sessions_alone() {
        let mut machine = joined();
        machine.handle_opened(session(1), 1, binding(), NOW, Ok(()));
        machine.handle_request(1, session(2), binding());
        machine.handle_located(session(2), Err(Away), NOW);
        machine.handle_request(2, session(1), binding());
        let expected = [
            Output::LookUp(session(2)),
            refused(1, Unavailable::Away),
            answer(2, Decision::Serve(1)),
        ];
        assert_eq!(outputs(&mut machine), expected);
    }

    #[test]
    fn lost_lease_is_joined_again_and_every_record_written() {
        let mut machine = joined();
        machine.handle_opened(session(1), 3, binding(), NOW, Ok(()));
        machine.handle_timeout(NOW + RENEWAL);
        assert_eq!(outputs(&mut machine), [Output::Renew]);
        let now = NOW + RENEWAL;
        machine.handle_renewed(Ok(Renewed::Unknown), now);
        assert_eq!(outputs(&mut machine), [Output::Join]);
        machine.handle_joined(Ok(()), now);
        let write = Output::Write {
            session: session(1),
            epoch: 3,
        };
        assert_eq!(outputs(&mut machine), std::slice::from_ref(&write));
        // A session that is not found may still be written again by its owner.
        machine.handle_request(1, session(2), binding());
        machine.handle_located(session(2), Ok(None), now);
        assert_eq!(
            outputs(&mut machine).last(),
            Some(&refused(1, Unavailable::Settling))
        );
        // A write without an answer is repeated after the next renewal.
        machine.handle_written(session(1), 3, Err(Away));
        assert!(outputs(&mut machine).is_empty());
        machine.handle_timeout(now + RENEWAL);
        machine.handle_renewed(Ok(Renewed::Renewed), now + RENEWAL);
        assert_eq!(outputs(&mut machine), [Output::Renew, write]);
        // Another owner has it by now: the copy goes, and the route is known.
        let exists = Created::Exists(Box::new(living(1, &node("b"), 4)));
        machine.handle_written(session(1), 3, Ok(exists));
        let dropped = Output::Drop {
            session: session(1),
            epoch: 3,
        };
        assert_eq!(outputs(&mut machine), [dropped]);
        assert_eq!((machine.held(session(1)), machine.routes()), (None, 1));
    }

    #[test]
    fn session_is_unknown_only_if_a_later_renewal_finds_the_lease() {
        let mut machine = joined();
        machine.handle_timeout(NOW + RENEWAL);
        machine.handle_request(1, session(1), binding());
        assert_eq!(outputs(&mut machine), [Output::Renew, Output::LookUp(session(1))]);
        let now = NOW + RENEWAL;
        machine.handle_located(session(1), Ok(None), now);
        // The renewal under way may have been answered before the loss, so another one decides.
        machine.handle_renewed(Ok(Renewed::Renewed), now);
        assert_eq!(outputs(&mut machine), [Output::Renew]);
        machine.handle_renewed(Ok(Renewed::Renewed), now);
        assert_eq!(outputs(&mut machine), [answer(1, Decision::Unknown)]);
        for (request, renewed, refusal) in [
            (2, Err(Away), Unavailable::Away),
            (3, Ok(Renewed::Unknown), Unavailable::Settling),
        ] {
            machine.handle_request(request, session(1), binding());
            machine.handle_located(session(1), Ok(None), now);
            assert_eq!(outputs(&mut machine), [Output::LookUp(session(1)), Output::Renew]);
            machine.handle_renewed(renewed, now);
            assert_eq!(outputs(&mut machine).first(), Some(&refused(request, refusal)));
        }
    }

    #[test]
    fn session_taken_over_without_a_lease_is_written_again() {
        let (mut machine, b) = (joined(), node("b"));
        machine.handle_request(1, session(1), binding());
        machine.handle_timeout(NOW + RENEWAL);
        let now = NOW + RENEWAL;
        machine.handle_located(session(1), Ok(Some(gone(1, &b, 4))), now);
        // The registry did the take-over after the lease had ended and before the join.
        machine.handle_renewed(Ok(Renewed::Unknown), now);
        let later = now + Duration::from_millis(1);
        machine.handle_joined(Ok(()), later);
        outputs(&mut machine);
        let won = TakeOver::Won(Box::new(record(1, &node("me"), 5)));
        machine.handle_take_over(session(1), Ok(won), later);
        let write = Output::Write {
            session: session(1),
            epoch: 5,
        };
        assert_eq!(outputs(&mut machine).last(), Some(&write));
        machine.handle_written(session(1), 5, Ok(Created::Created));
        // A session that was opened meanwhile is no different.
        machine.handle_opened(session(2), 1, binding(), now, Ok(()));
        machine.handle_opened(session(3), 1, binding(), later, Ok(()));
        let write = Output::Write {
            session: session(2),
            epoch: 1,
        };
        assert_eq!(outputs(&mut machine), [write]);
    }

    #[test]
    fn records_are_written_again_a_few_at_a_time() {
        let limits = Limits {
            rewrites: 2,
            ..Limits::default()
        };
        let mut machine = joined_with(limits);
        for number in 1..=5 {
            machine.handle_opened(session(number), 1, binding(), NOW, Ok(()));
        }
        machine.handle_timeout(NOW + RENEWAL);
        machine.handle_renewed(Ok(Renewed::Unknown), NOW + RENEWAL);
        outputs(&mut machine);
        machine.handle_joined(Ok(()), NOW + RENEWAL);
        let (mut written, mut most) = (0, 0);
        let mut under_way: VecDeque<Output> = outputs(&mut machine).into();
        while let Some(output) = under_way.pop_front() {
            assert!(under_way.len() < 2);
            most = most.max(under_way.len() + 1);
            let Output::Write { session, epoch } = output else {
                panic!("{output:?}");
            };
            written += 1;
            machine.handle_written(session, epoch, Ok(Created::Created));
            under_way.extend(outputs(&mut machine));
        }
        assert_eq!((written, most), (5, 2));
    }

    #[test]
    fn superseded_copy_is_dropped_and_an_unknown_one_written_again() {
        let mut machine = joined();
        machine.handle_opened(session(1), 1, binding(), NOW, Ok(()));
        machine.handle_opened(session(2), 1, binding(), NOW, Ok(()));
        machine.handle_updated(session(1), 1, Updated::Superseded(2));
        machine.handle_updated(session(2), 1, Updated::Unknown);
        // A result for an epoch that is no longer held has no effect.
        machine.handle_updated(session(2), 9, Updated::Superseded(10));
        let expected = [
            Output::Drop {
                session: session(1),
                epoch: 1,
            },
            Output::Write {
                session: session(2),
                epoch: 1,
            },
        ];
        assert_eq!(outputs(&mut machine), expected);
    }

    #[test]
    fn peer_with_a_later_epoch_ends_an_old_copy() {
        let mut machine = joined();
        machine.handle_opened(session(1), 3, binding(), NOW, Ok(()));
        machine.handle_peer_request(1, session(1), 2, binding());
        machine.handle_peer_request(2, session(1), 4, binding());
        machine.handle_located(session(1), Ok(Some(living(1, &node("c"), 4))), NOW);
        let expected = [
            answer(1, Decision::Serve(3)),
            Output::Drop {
                session: session(1),
                epoch: 3,
            },
            Output::LookUp(session(1)),
            // Nothing is proxied twice.
            answer(2, Decision::NotOwner),
        ];
        assert_eq!(outputs(&mut machine), expected);
    }

    #[test]
    fn owner_without_a_copy_takes_its_session_over_again() {
        let mut machine = joined();
        machine.handle_peer_request(1, session(1), 4, binding());
        machine.handle_located(session(1), Ok(Some(living(1, &node("me"), 4))), NOW);
        let taking = Output::TakeOver {
            session: session(1),
            seen: 4,
            is_implicit: true,
        };
        assert_eq!(outputs(&mut machine), [Output::LookUp(session(1)), taking]);
    }

    #[test]
    fn living_owner_that_cannot_be_reached_is_never_taken_over() {
        let (mut machine, b) = (joined(), node("b"));
        machine.handle_request(1, session(1), binding());
        machine.handle_located(session(1), Ok(Some(living(1, &b, 4))), NOW);
        outputs(&mut machine);
        machine.handle_not_sent(1, session(1), binding(), &b.id, 1);
        machine.handle_located(session(1), Ok(Some(living(1, &b, 4))), NOW);
        let expected = [
            Output::LookUp(session(1)),
            refused(1, Unavailable::OwnerUnreached),
        ];
        assert_eq!(outputs(&mut machine), expected);
        // Once its lease has ended it is.
        machine.handle_not_sent(2, session(1), binding(), &b.id, 1);
        machine.handle_located(session(1), Ok(Some(gone(1, &b, 4))), NOW);
        let last = outputs(&mut machine).pop();
        assert!(matches!(last, Some(Output::TakeOver { seen: 4, .. })), "{last:?}");
    }

    #[test]
    fn what_waits_and_what_is_remembered_is_bounded() {
        let limits = Limits {
            routes: 2,
            lookups: 2,
            waiting: 3,
            attempts: 2,
            ..Limits::default()
        };
        let (mut machine, b) = (joined_with(limits), node("b"));
        for (request, number) in [(1, 1), (2, 2), (3, 3), (4, 1), (5, 1)] {
            machine.handle_request(request, session(number), binding());
        }
        let expected = [
            Output::LookUp(session(1)),
            Output::LookUp(session(2)),
            refused(3, Unavailable::Busy),
            refused(5, Unavailable::Busy),
        ];
        assert_eq!(outputs(&mut machine), expected);
        for number in [1, 2, 3] {
            machine.handle_request(10, session(number), binding());
            machine.handle_located(session(number), Ok(Some(living(number, &b, 1))), NOW);
        }
        assert_eq!(machine.routes(), 2);
        machine.handle_silent_peer(&b.id);
        assert_eq!(machine.routes(), 0);
        outputs(&mut machine);
        machine.handle_not_owner(20, session(1), binding(), 2);
        assert_eq!(outputs(&mut machine), [refused(20, Unavailable::Busy)]);
    }

    #[test]
    fn draining_replica_hands_over_and_takes_nothing() {
        let (mut machine, b) = (joined(), node("b"));
        machine.handle_opened(session(1), 2, binding(), NOW, Ok(()));
        machine.handle_drain();
        machine.handle_hand_over(session(1), 2);
        machine.handle_request(9, session(1), binding());
        let released = Output::Release {
            session: session(1),
            epoch: 2,
        };
        assert_eq!(outputs(&mut machine), [released]);
        machine.handle_ended(session(1), 2, Err(Away));
        assert_eq!(outputs(&mut machine), [refused(9, Unavailable::Away)]);
        for (request, is_peer) in [(1, false), (2, true)] {
            match is_peer {
                true => machine.handle_peer_request(request, session(2), 1, binding()),
                false => machine.handle_request(request, session(2), binding()),
            }
            machine.handle_located(session(2), Ok(Some(gone(2, &b, 1))), NOW);
        }
        let look_up = Output::LookUp(session(2));
        let expected = [
            look_up.clone(),
            refused(1, Unavailable::Draining),
            look_up,
            answer(2, Decision::NotOwner),
        ];
        assert_eq!(outputs(&mut machine), expected);
    }

    #[test]
    fn lease_lasts_by_the_clock_of_the_replica_from_when_the_renewal_began() {
        let mut machine = joined();
        assert!(machine.lease_lasts(NOW + LEASE - Duration::from_millis(1)));
        assert!(!machine.lease_lasts(NOW + LEASE));
        assert_eq!(machine.next_deadline(), Some(NOW + RENEWAL));
        machine.handle_timeout(NOW + RENEWAL);
        assert_eq!(machine.next_deadline(), None, "a renewal is under way");
        let late = NOW + RENEWAL + Duration::from_secs(2);
        machine.handle_renewed(Ok(Renewed::Renewed), late);
        assert!(!machine.lease_lasts(NOW + RENEWAL + LEASE));
        assert_eq!(machine.next_deadline(), Some(NOW + RENEWAL + RENEWAL));
    }

    #[test]
    fn request_with_another_binding_gets_no_session_and_takes_none_over() {
        let (mut machine, b) = (joined(), node("b"));
        let others = [Binding::new("files", "bob"), Binding::new("mail", "ann")];
        for (request, other) in (1..).zip(&others) {
            machine.handle_request(request, session(1), other.clone());
        }
        machine.handle_located(session(1), Ok(Some(gone(1, &b, 4))), NOW);
        let look_up = Output::LookUp(session(1));
        let unknown = |request| answer(request, Decision::Unknown);
        assert_eq!(outputs(&mut machine), [look_up, unknown(1), unknown(2)]);
        // One that comes during a take-over for another principal does not get it either.
        machine.handle_request(3, session(1), binding());
        machine.handle_located(session(1), Ok(Some(gone(1, &b, 4))), NOW);
        machine.handle_request(4, session(1), others[0].clone());
        outputs(&mut machine);
        let won = TakeOver::Won(Box::new(record(1, &node("me"), 5)));
        machine.handle_take_over(session(1), Ok(won), NOW);
        let answers = outputs(&mut machine);
        assert_eq!(answers.first(), Some(&unknown(4)));
        assert_eq!(answers.last(), Some(&answer(3, Decision::Serve(5))));
        // Nor does it get a session that is here, as a client or from a peer.
        machine.handle_request(5, session(1), others[0].clone());
        machine.handle_peer_request(6, session(1), 5, others[1].clone());
        assert_eq!(outputs(&mut machine), [unknown(5), unknown(6)]);
    }

    #[test]
    fn session_that_ends_while_its_record_is_written_again_is_removed_after_that() {
        let mut machine = joined();
        machine.handle_opened(session(1), 1, binding(), NOW, Ok(()));
        machine.handle_updated(session(1), 1, Updated::Unknown);
        let write = Output::Write {
            session: session(1),
            epoch: 1,
        };
        assert_eq!(outputs(&mut machine), [write]);
        machine.handle_closed(session(1), 1);
        assert_eq!(outputs(&mut machine), []);
        machine.handle_written(session(1), 1, Ok(Created::Created));
        let remove = Output::Remove {
            session: session(1),
            epoch: 1,
        };
        assert_eq!(outputs(&mut machine), [remove]);
    }

    #[test]
    fn end_of_an_earlier_copy_leaves_the_later_one() {
        let mut machine = joined();
        machine.handle_opened(session(1), 2, binding(), NOW, Ok(()));
        machine.handle_hand_over(session(1), 1);
        let release = Output::Release {
            session: session(1),
            epoch: 1,
        };
        assert_eq!(outputs(&mut machine), [release]);
        machine.handle_ended(session(1), 1, Ok(()));
        assert_eq!(machine.held(session(1)), Some(2));
        machine.handle_not_restored(session(1), 2);
        assert_eq!(machine.held(session(1)), None);
    }
}
