//! The engine in memory, on a clock that the caller sets: for tests, models and simulations.
//!
//! [`MemoryEngine`] holds the rules without I/O, with time as an argument. [`MemoryRegistry`] puts
//! it behind [`Registry`], with a clock that stands still until the test advances it. Nothing here
//! outlives the process, so no product code serves from it.

use std::collections::{BTreeMap, HashMap};
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use uuid::Uuid;

use crate::names::Names;
use crate::pools::Pools;
use crate::record::{Node, NodeId, SessionRecord};
use crate::registry::{
    Change, Claim, Created, LEASE, Located, NameLease, NodeStatus, Operation, Owner, Registry, Renewed,
    SlotDemand, SlotGrant, TakeOver, TokenDemand, TokenGrant, Touch, Updated,
};
use crate::rules::{self, Standing};

/// Nodes with leases and sessions with records. `now` is the engine's clock: the time since its
/// start.
#[derive(Debug, Default)]
pub struct MemoryEngine {
    nodes: BTreeMap<NodeId, Lease>,
    sessions: HashMap<Uuid, Entry>,
    pools: Pools,
    names: Names,
    /// When the first node joined.
    since: Option<Duration>,
}

#[derive(Debug)]
struct Lease {
    node: Node,
    ends: Duration,
}

#[derive(Debug)]
struct Entry {
    record: SessionRecord,
    expires: Duration,
}

impl MemoryEngine {
    /// Adds a node, with a full lease.
    pub fn join(&mut self, now: Duration, node: &Node) {
        self.since.get_or_insert(now);
        let lease = Lease {
            node: node.clone(),
            ends: now + LEASE,
        };
        self.nodes.insert(node.id.clone(), lease);
    }

    /// Extends a lease that lasts.
    pub fn renew(&mut self, now: Duration, node: &NodeId) -> Renewed {
        match self.nodes.get_mut(node).filter(|lease| lease.ends > now) {
            Some(lease) => {
                lease.ends = now + LEASE;
                Renewed::Renewed
            }
            None => Renewed::Unknown,
        }
    }

    /// Ends a lease at once.
    pub fn leave(&mut self, node: &NodeId) {
        self.nodes.remove(node);
    }

    /// Returns the nodes whose lease lasts.
    #[must_use]
    pub fn nodes(&self, now: Duration) -> Vec<NodeStatus> {
        let living = self.nodes.values().filter(|lease| lease.ends > now);
        living
            .map(|lease| NodeStatus {
                node: lease.node.clone(),
                lease: lease.ends - now,
            })
            .collect()
    }

    /// Stores a record, unless a better claim is there.
    pub fn create(&mut self, now: Duration, record: &SessionRecord, idle: Duration) -> Created {
        let stored = self.stored(now, record.session);
        if !rules::may_replace(stored, record)
            && let Some(stored) = stored
        {
            return Created::Exists(Box::new(self.locate(now, stored)));
        }
        let entry = Entry {
            record: record.clone(),
            expires: now + idle,
        };
        self.sessions.insert(record.session, entry);
        Created::Created
    }

    /// Returns a record and whether its owner lives.
    #[must_use]
    pub fn look_up(&self, now: Duration, session: Uuid) -> Option<Located> {
        let stored = self.stored(now, session)?;
        Some(self.locate(now, stored))
    }

    /// Makes a node the owner of a session whose owner is gone.
    pub fn take_over(
        &mut self,
        now: Duration,
        session: Uuid,
        seen: u64,
        by: &NodeId,
        idle: Duration,
    ) -> TakeOver {
        let Some(stored) = self.stored(now, session) else {
            return TakeOver::Unknown;
        };
        let lives = stored.owner.as_ref().is_some_and(|owner| self.lives(now, owner));
        if !rules::may_take_over(stored, seen, by, lives) {
            return TakeOver::Lost(Box::new(self.locate(now, stored)));
        }
        match self.sessions.get_mut(&session) {
            Some(entry) => {
                entry.record.owner = Some(by.clone());
                entry.record.epoch += 1;
                entry.expires = now + idle;
                TakeOver::Won(Box::new(entry.record.clone()))
            }
            None => TakeOver::Unknown,
        }
    }

    /// Changes the record of a session that the caller owns.
    pub fn update(&mut self, now: Duration, claim: &Claim, change: Change, idle: Duration) -> Updated {
        self.held(now, claim, |entry| {
            match change {
                Change::Touch(at) => entry.record.last_active = at,
                Change::State(state) => entry.record.state = state,
            }
            entry.expires = now + idle;
        })
    }

    /// Hands a session over. The repetition after a lost answer is done as well.
    pub fn release(&mut self, now: Duration, claim: &Claim) -> Updated {
        if rules::standing(self.stored(now, claim.session), claim) == Standing::Released {
            return Updated::Done;
        }
        self.held(now, claim, |entry| entry.record.owner = None)
    }

    /// Deletes a record.
    pub fn remove(&mut self, now: Duration, claim: &Claim) -> Updated {
        let removed = self.held(now, claim, |_| ());
        if removed == Updated::Done {
            self.sessions.remove(&claim.session);
        }
        removed
    }

    /// Takes tokens of a bucket.
    pub fn lease_tokens(&mut self, now: Duration, bucket: &str, demand: TokenDemand) -> TokenGrant {
        self.pools.take_tokens(micros(now), bucket, demand)
    }

    /// Makes a node the holder of a name, unless a living node holds it.
    pub fn hold(&mut self, now: Duration, name: &str, node: &NodeId, ttl: Duration) -> NodeId {
        let nodes = &self.nodes;
        let lives = |node: &NodeId| nodes.get(node).is_some_and(|lease| lease.ends > now);
        self.names.hold(micros(now), name, node, micros(now + ttl), lives)
    }

    /// Leases a name to a node, unless another node has it.
    pub fn lease_name(&mut self, now: Duration, name: &str, node: &NodeId, has_it: bool) -> NameLease {
        let settled = *self.since.get_or_insert(now) + LEASE;
        if !has_it && now < settled && self.holder(now, name).is_none() {
            return NameLease::Unsettled(settled - now);
        }
        let holder = self.names.lease(micros(now), name, node, micros(now + LEASE));
        NameLease::Held(holder)
    }

    /// Returns the node that holds a name.
    #[must_use]
    pub fn holder(&self, now: Duration, name: &str) -> Option<NodeId> {
        self.names.holder(micros(now), name)
    }

    /// Lets a name go.
    pub fn let_go(&mut self, name: &str, node: &NodeId) {
        self.names.let_go(name, node);
    }

    /// Sets how many slots of a pool a node has.
    pub fn lease_slots(&mut self, now: Duration, pool: &str, node: &NodeId, demand: SlotDemand) -> SlotGrant {
        let nodes = &self.nodes;
        let lives = |node: &NodeId| nodes.get(node).is_some_and(|lease| lease.ends > now);
        self.pools.set_slots(pool, node, lives, demand)
    }

    /// Drops what has expired by now, and leases that have ended.
    pub fn expire(&mut self, now: Duration) {
        self.pools.expire(micros(now));
        self.names.expire(micros(now));
        self.sessions.retain(|_, entry| entry.expires > now);
        self.nodes.retain(|_, lease| lease.ends > now);
    }

    /// Returns the number of records, those that have expired since the last [`Self::expire`]
    /// included.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    fn stored(&self, now: Duration, session: Uuid) -> Option<&SessionRecord> {
        let entry = self.sessions.get(&session)?;
        (entry.expires > now).then_some(&entry.record)
    }

    fn lives(&self, now: Duration, node: &NodeId) -> bool {
        self.nodes.get(node).is_some_and(|lease| lease.ends > now)
    }

    fn locate(&self, now: Duration, record: &SessionRecord) -> Located {
        let lease = record.owner.as_ref().and_then(|owner| self.nodes.get(owner));
        let owner = match lease.filter(|lease| lease.ends > now) {
            Some(lease) => Owner::Living(lease.node.clone()),
            None => Owner::Gone,
        };
        Located {
            record: record.clone(),
            owner,
        }
    }

    /// Changes the entry of a claim that holds.
    fn held(&mut self, now: Duration, claim: &Claim, change: impl FnOnce(&mut Entry)) -> Updated {
        match rules::standing(self.stored(now, claim.session), claim) {
            Standing::Holds => match self.sessions.get_mut(&claim.session) {
                Some(entry) => {
                    change(entry);
                    Updated::Done
                }
                None => Updated::Unknown,
            },
            Standing::Released => Updated::Superseded(claim.epoch),
            Standing::Superseded(epoch) => Updated::Superseded(epoch),
            Standing::Unknown => Updated::Unknown,
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 4)
}

/// A [`MemoryEngine`] as a [`Registry`]. Clones share it, as replicas share an engine.
#[derive(Debug, Clone, Default)]
pub struct MemoryRegistry {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    engine: MemoryEngine,
    now: Duration,
}

impl MemoryRegistry {
    /// Returns an empty engine whose clock stands at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Advances the engine's clock.
    pub fn advance(&self, by: Duration) {
        let mut shared = self.shared.lock();
        shared.now += by;
        let now = shared.now;
        shared.engine.expire(now);
    }

    /// Forgets everything, as an engine that was restarted without its data.
    pub fn clear(&self) {
        self.shared.lock().engine = MemoryEngine::default();
    }

    /// Acts when the operation is polled, as an engine acts when the command reaches it.
    fn act<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut MemoryEngine, Duration) -> T + Send + 'static,
    ) -> Operation<T> {
        let registry = self.clone();
        Box::pin(async move {
            let mut shared = registry.shared.lock();
            let now = shared.now;
            Ok(act(&mut shared.engine, now))
        })
    }
}

impl Registry for MemoryRegistry {
    fn join(&self, node: &Node) -> Operation<()> {
        let node = node.clone();
        self.act(move |engine, now| engine.join(now, &node))
    }

    fn renew(&self, node: &NodeId) -> Operation<Renewed> {
        let node = node.clone();
        self.act(move |engine, now| engine.renew(now, &node))
    }

    fn leave(&self, node: &NodeId) -> Operation<()> {
        let node = node.clone();
        self.act(move |engine, _| engine.leave(&node))
    }

    fn nodes(&self) -> Operation<Vec<NodeStatus>> {
        self.act(|engine, now| engine.nodes(now))
    }

    fn create(&self, record: &SessionRecord, idle: Duration) -> Operation<Created> {
        // A record that no engine would store is refused here too.
        if let Err(error) = record.encode() {
            return Box::pin(ready(Err(error)));
        }
        let record = record.clone();
        self.act(move |engine, now| engine.create(now, &record, idle))
    }

    fn look_up(&self, session: Uuid) -> Operation<Option<Located>> {
        self.act(move |engine, now| engine.look_up(now, session))
    }

    fn take_over(&self, session: Uuid, seen: u64, by: &NodeId, idle: Duration) -> Operation<TakeOver> {
        let by = by.clone();
        self.act(move |engine, now| engine.take_over(now, session, seen, &by, idle))
    }

    fn update(&self, claim: &Claim, change: Change, idle: Duration) -> Operation<Updated> {
        let claim = claim.clone();
        self.act(move |engine, now| engine.update(now, &claim, change, idle))
    }

    fn touch_many(&self, touches: Vec<Touch>) -> Operation<Vec<Updated>> {
        self.act(move |engine, now| {
            let touched = touches
                .iter()
                .map(|touch| engine.update(now, &touch.claim, Change::Touch(touch.at), touch.idle));
            touched.collect()
        })
    }

    fn release(&self, claim: &Claim) -> Operation<Updated> {
        let claim = claim.clone();
        self.act(move |engine, now| engine.release(now, &claim))
    }

    fn remove(&self, claim: &Claim) -> Operation<Updated> {
        let claim = claim.clone();
        self.act(move |engine, now| engine.remove(now, &claim))
    }

    fn lease_tokens(&self, bucket: &str, demand: TokenDemand) -> Operation<TokenGrant> {
        let bucket = bucket.to_owned();
        self.act(move |engine, now| engine.lease_tokens(now, &bucket, demand))
    }

    fn lease_slots(&self, pool: &str, node: &NodeId, demand: SlotDemand) -> Operation<SlotGrant> {
        let (pool, node) = (pool.to_owned(), node.clone());
        self.act(move |engine, now| engine.lease_slots(now, &pool, &node, demand))
    }

    fn hold(&self, name: &str, node: &NodeId, ttl: Duration) -> Operation<NodeId> {
        let (name, node) = (name.to_owned(), node.clone());
        self.act(move |engine, now| engine.hold(now, &name, &node, ttl))
    }

    fn lease_name(&self, name: &str, node: &NodeId, has_it: bool) -> Operation<NameLease> {
        let (name, node) = (name.to_owned(), node.clone());
        self.act(move |engine, now| engine.lease_name(now, &name, &node, has_it))
    }

    fn holder(&self, name: &str) -> Operation<Option<NodeId>> {
        let name = name.to_owned();
        self.act(move |engine, now| engine.holder(now, &name))
    }

    fn let_go(&self, name: &str, node: &NodeId) -> Operation<()> {
        let (name, node) = (name.to_owned(), node.clone());
        self.act(move |engine, _| engine.let_go(&name, &node))
    }
}
