//! Limits that hold for all replicas of a fleet together: the rate limit of a caller (429), its
//! calls and sessions at once, and the sessions of a destination (503).
//!
//! `cluster::allowance` decides; here its machines have a lock, a clock, requests that wait, and
//! tasks that ask the engine. Limits of one replica are in [`super::limits`], which calls this
//! module for the others. A machine belongs to the account of a caller, so that there are no more
//! of them than callers that `limits` remembers. Each destination has one more. Names of callers
//! are hashed: the engine stores none.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use aws_lc_rs::digest;
use cluster::allowance::{Admission, Answer, ENGINE_WAIT, Slots, Tokens, WaitId};
use cluster::{NodeId, Registry, RegistryError, SlotDemand, TokenDemand};
use parking_lot::Mutex;
use protocol::time::Moment;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::reply::Refusal;
use crate::settings::LimitSettings;
use crate::tasks;

/// How often the living replicas are counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);
/// Of a SHA-256 digest: enough that no two callers share a name.
const NAME_BYTES: usize = 16;

/// What all machines of this replica share.
#[derive(Debug)]
struct Shared {
    registry: Arc<dyn Registry>,
    node: NodeId,
    clock: Clock,
    /// The replicas that lived when they were counted last.
    nodes: AtomicU32,
    /// How often the engine did not answer about a limit, so that this replica's share decided.
    unanswered: AtomicU64,
    /// The last time it did not.
    is_by_share: AtomicBool,
    /// The engine had lost slots of this replica.
    is_lost: AtomicBool,
}

impl Shared {
    /// Notes whether the engine answered. The log has one line when it stops to, and one when it is
    /// back.
    fn note_answer(&self, error: Option<&RegistryError>) {
        let was_by_share = self.is_by_share.swap(error.is_some(), Relaxed);
        match error {
            Some(error) => {
                self.unanswered.fetch_add(1, Relaxed);
                if !was_by_share {
                    tracing::warn!(%error, "the engine does not answer: this replica admits its share of the limits of the fleet");
                }
            }
            None if was_by_share => tracing::info!("limits hold for the whole fleet again"),
            None => {}
        }
    }
}

/// The limits of a fleet, on one replica.
#[derive(Debug)]
pub(crate) struct FleetLimits {
    shared: Arc<Shared>,
    requests_per_minute: Option<u32>,
    calls: Option<usize>,
    sessions: Option<usize>,
    destinations: Mutex<HashMap<String, Arc<Pool>>>,
    /// When the replicas are counted next, in nanoseconds.
    next_count: AtomicU64,
}

/// What the fleet counts of one caller.
#[derive(Debug)]
pub(super) struct FleetAccount {
    requests: Option<Arc<Bucket>>,
    calls: Option<Arc<Pool>>,
    sessions: Option<Arc<Pool>>,
}

impl FleetAccount {
    pub(super) fn is_idle(&self, now: Moment) -> bool {
        let now = nanos(now.elapsed());
        let mut pools = self.pools();
        self.requests
            .as_ref()
            .is_none_or(|bucket| bucket.idle_from.load(Relaxed) <= now)
            && pools.all(|pool| pool.is_idle.load(Relaxed))
    }

    fn pools(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.calls.iter().chain(&self.sessions)
    }
}

/// Slots of a session or a call, each given back when this is dropped.
#[derive(Debug, Default)]
pub(super) struct FleetSlots {
    /// Held for its effect at the end.
    of_caller: Option<FleetSlot>,
    of_destination: Option<FleetSlot>,
}

/// A slot that all replicas count.
#[derive(Debug)]
struct FleetSlot(Arc<Pool>);

impl Drop for FleetSlot {
    fn drop(&mut self) {
        self.0.act(|machine, _, nodes| machine.handle_released(nodes));
    }
}

impl FleetLimits {
    pub(super) fn new(
        registry: Arc<dyn Registry>,
        node: NodeId,
        clock: Clock,
        settings: &LimitSettings,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                registry,
                node,
                clock,
                nodes: AtomicU32::new(1),
                unanswered: AtomicU64::new(0),
                is_by_share: AtomicBool::new(false),
                is_lost: AtomicBool::new(false),
            }),
            requests_per_minute: settings.requests_per_minute,
            calls: settings.calls_per_principal,
            sessions: settings.sessions_per_principal,
            destinations: Mutex::default(),
            next_count: AtomicU64::new(0),
        }
    }

    /// Returns how often the engine did not answer about a limit.
    pub(super) fn unanswered(&self) -> u64 {
        self.shared.unanswered.load(Relaxed)
    }

    /// Returns what the fleet counts of the caller with this name.
    pub(super) fn account(&self, name: &str) -> FleetAccount {
        let hash = hash(name);
        let pool = |kind: &str, limit: Option<usize>| {
            let limit = small(limit?);
            Some(Pool::new(&self.shared, format!("{kind}:{hash}"), limit))
        };
        FleetAccount {
            requests: self.requests_per_minute.map(|per_minute| {
                Arc::new(Bucket {
                    shared: Arc::clone(&self.shared),
                    name: format!("requests:{hash}"),
                    state: Mutex::new(BucketState {
                        machine: Tokens::new(per_minute),
                        waiting: HashMap::new(),
                    }),
                    idle_from: AtomicU64::new(0),
                })
            }),
            calls: pool("calls", self.calls),
            sessions: pool("sessions", self.sessions),
        }
    }

    /// Counts a request against its caller's minute.
    pub(super) async fn request(&self, account: &FleetAccount) -> Result<(), Refusal> {
        let Some(bucket) = &account.requests else {
            return Ok(());
        };
        bucket
            .take()
            .await
            .map_err(|retry_after| Refusal::TooManyRequests {
                retry_after,
                limit: "requests_per_minute",
            })
    }

    /// Takes a slot for a call.
    pub(super) async fn call(&self, account: &FleetAccount) -> Result<FleetSlots, Refusal> {
        let mut slots = FleetSlots::default();
        if let (Some(pool), Some(limit)) = (&account.calls, self.calls) {
            let slot = pool.take().await;
            slots.of_caller = Some(slot.ok_or(Refusal::TooManyCallsOfCaller { limit })?);
        }
        Ok(slots)
    }

    /// Takes slots for a session: of its caller, and of its destination.
    pub(super) async fn session(
        &self,
        account: Option<&FleetAccount>,
        (destination, limit): (&str, usize),
    ) -> Result<FleetSlots, Refusal> {
        let mut slots = FleetSlots::default();
        if let (Some(pool), Some(limit)) = (
            account.and_then(|account| account.sessions.as_ref()),
            self.sessions,
        ) {
            let slot = pool.take().await;
            slots.of_caller = Some(slot.ok_or(Refusal::TooManySessionsOfCaller { limit })?);
        }
        let slot = self.destination(destination, limit).take().await;
        slots.of_destination = Some(slot.ok_or(Refusal::TooManySessions { limit })?);
        Ok(slots)
    }

    /// Returns the pool of a destination. It stays when a reload changes the limit: the engine knows
    /// one number of slots of this replica.
    fn destination(&self, name: &str, limit: usize) -> Arc<Pool> {
        let limit = small(limit);
        let mut destinations = self.destinations.lock();
        if let Some(pool) = destinations.get(name).cloned() {
            drop(destinations);
            if pool.limit.swap(limit, Relaxed) != limit {
                pool.act(|machine, _, _| machine.set_limit(limit));
            }
            return pool;
        }
        let pool = Pool::new(&self.shared, format!("destination:{}", hash(name)), limit);
        destinations.insert(name.to_owned(), Arc::clone(&pool));
        pool
    }

    /// Returns unused slots to the engine, repeats the others, and counts the replicas. Called
    /// about once a second.
    pub(super) fn tick(&self, now: Moment, accounts: &[Arc<FleetAccount>]) {
        let is_lost = self.shared.is_lost.swap(false, Relaxed);
        let tick = |pool: &Arc<Pool>| {
            pool.act(|machine, now, _| {
                machine.handle_tick(now);
                if is_lost {
                    machine.handle_lost();
                }
            });
        };
        for account in accounts {
            account.pools().for_each(tick);
        }
        let destinations: Vec<Arc<Pool>> = self.destinations.lock().values().cloned().collect();
        destinations.iter().for_each(tick);
        let now = nanos(now.elapsed());
        if self.next_count.load(Relaxed) <= now {
            self.next_count.store(now + nanos(COUNT_INTERVAL), Relaxed);
            self.count_replicas();
        }
    }

    fn count_replicas(&self) {
        if Handle::try_current().is_err() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        tasks::spawn("count of replicas", async move {
            // An engine that does not answer leaves the number as it was.
            if let Ok(nodes) = shared.registry.nodes().await {
                shared.nodes.store(small(nodes.len().max(1)), Relaxed);
            }
        });
    }
}

/// The requests a minute of one caller.
#[derive(Debug)]
struct Bucket {
    shared: Arc<Shared>,
    name: String,
    state: Mutex<BucketState>,
    /// From when on the caller may be forgotten, in nanoseconds. Read under the lock of all
    /// callers, where no other lock is taken.
    idle_from: AtomicU64,
}

#[derive(Debug)]
struct BucketState {
    machine: Tokens,
    /// As many as the machine lets wait.
    waiting: HashMap<WaitId, oneshot::Sender<Admission>>,
}

impl Bucket {
    /// Uses one token, or returns how long the caller has to wait.
    async fn take(self: &Arc<Self>) -> Result<(), Duration> {
        let admission = match self.request() {
            Ok(admission) => admission,
            Err(decided) => {
                let late = || self.act(|state, now, nodes| state.machine.handle_late(now, nodes));
                decision(decided, late)
                    .await
                    .unwrap_or(Admission::Refused(ENGINE_WAIT))
            }
        };
        match admission {
            Admission::Admitted => Ok(()),
            Admission::Refused(wait) => Err(wait),
        }
    }

    fn request(self: &Arc<Self>) -> Result<Admission, oneshot::Receiver<Admission>> {
        self.act(
            |state, now, nodes| match state.machine.handle_request(now, nodes) {
                Answer::Now(admission) => Ok(admission),
                Answer::Later(id) => {
                    let (decide, decided) = oneshot::channel();
                    state.waiting.insert(id, decide);
                    Err(decided)
                }
            },
        )
    }

    /// Calls the machine, and carries out what it wants after its lock.
    fn act<T>(self: &Arc<Self>, act: impl FnOnce(&mut BucketState, Duration, u32) -> T) -> T {
        let (now, nodes) = (self.shared.clock.now().elapsed(), self.shared.nodes.load(Relaxed));
        let mut decided = Vec::new();
        let mut state = self.state.lock();
        let result = act(&mut state, now, nodes);
        while let Some((id, admission)) = state.machine.poll_decision() {
            decided.extend(state.waiting.remove(&id).map(|waits| (waits, admission)));
        }
        let demand = match Handle::try_current() {
            Ok(_) => state.machine.poll_demand(now, nodes),
            // The process ends.
            Err(_) => None,
        };
        let idle_from = state.machine.idle_from().map_or(u64::MAX, nanos);
        self.idle_from.store(idle_from, Relaxed);
        drop(state);
        for (waits, admission) in decided {
            // If its client has gone, the token is lost: it could not be used for long anyway.
            let _ = waits.send(admission);
        }
        if let Some(demand) = demand {
            self.send(demand);
        }
        result
    }

    fn send(self: &Arc<Self>, demand: TokenDemand) {
        let bucket = Arc::clone(self);
        tasks::spawn("limit", async move {
            let granted = bucket.shared.registry.lease_tokens(&bucket.name, demand).await;
            bucket.shared.note_answer(granted.as_ref().err());
            bucket.act(|state, now, nodes| match granted {
                Ok(grant) => state.machine.handle_granted(now, grant),
                Err(_) => state.machine.handle_away(now, nodes),
            });
        });
    }
}

/// The slots of one pool.
#[derive(Debug)]
struct Pool {
    shared: Arc<Shared>,
    name: String,
    limit: AtomicU32,
    state: Mutex<PoolState>,
    /// Whether this replica has nothing of it. Read under the lock of all callers.
    is_idle: AtomicBool,
}

#[derive(Debug)]
struct PoolState {
    machine: Slots,
    waiting: HashMap<WaitId, oneshot::Sender<Option<FleetSlot>>>,
}

impl Pool {
    fn new(shared: &Arc<Shared>, name: String, limit: u32) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            name,
            limit: AtomicU32::new(limit),
            state: Mutex::new(PoolState {
                machine: Slots::new(limit),
                waiting: HashMap::new(),
            }),
            is_idle: AtomicBool::new(true),
        })
    }

    /// Returns a slot, unless all are taken.
    async fn take(self: &Arc<Self>) -> Option<FleetSlot> {
        let answer = self.act_on(
            |state, now, nodes| match state.machine.handle_request(now, nodes) {
                Answer::Now(admission) => Ok(admission),
                Answer::Later(id) => {
                    let (decide, decided) = oneshot::channel();
                    state.waiting.insert(id, decide);
                    Err(decided)
                }
            },
        );
        match answer {
            Ok(Admission::Admitted) => Some(FleetSlot(Arc::clone(self))),
            Ok(Admission::Refused(_)) => None,
            Err(decided) => {
                let late = || self.act(|machine, now, nodes| machine.handle_late(now, nodes));
                decision(decided, late).await.flatten()
            }
        }
    }

    fn act(self: &Arc<Self>, act: impl FnOnce(&mut Slots, Duration, u32)) {
        self.act_on(|state, now, nodes| act(&mut state.machine, now, nodes));
    }

    /// Calls the machine, and carries out what it wants after its lock.
    fn act_on<T>(self: &Arc<Self>, act: impl FnOnce(&mut PoolState, Duration, u32) -> T) -> T {
        let (now, nodes) = (self.shared.clock.now().elapsed(), self.shared.nodes.load(Relaxed));
        let mut decided = Vec::new();
        let mut state = self.state.lock();
        let result = act(&mut state, now, nodes);
        while let Some((id, admission)) = state.machine.poll_decision() {
            // A slot whose request has gone is given back, by being dropped below.
            let slot = match admission {
                Admission::Admitted => Some(FleetSlot(Arc::clone(self))),
                Admission::Refused(_) => None,
            };
            decided.push((state.waiting.remove(&id), slot));
        }
        let demand = match Handle::try_current() {
            Ok(_) => state.machine.poll_demand(now, nodes),
            Err(_) => None,
        };
        self.is_idle.store(state.machine.is_idle(), Relaxed);
        drop(state);
        for (waits, slot) in decided {
            if let Some(waits) = waits {
                drop(waits.send(slot));
            }
        }
        if let Some(demand) = demand {
            self.send(demand);
        }
        result
    }

    fn send(self: &Arc<Self>, demand: SlotDemand) {
        let pool = Arc::clone(self);
        tasks::spawn("limit", async move {
            let shared = &pool.shared;
            let granted = shared
                .registry
                .lease_slots(&pool.name, &shared.node, demand)
                .await;
            shared.note_answer(granted.as_ref().err());
            pool.act(|machine, now, nodes| match granted {
                Ok(grant) => {
                    if machine.handle_granted(now, grant) {
                        shared.is_lost.store(true, Relaxed);
                    }
                }
                Err(_) => machine.handle_away(now, nodes),
            });
        });
    }
}

/// Waits for a decision. `late` reports each [`ENGINE_WAIT`] that is over: the machine then decides
/// by the share, unless the engine was asked a short time ago.
async fn decision<T>(mut decided: oneshot::Receiver<T>, late: impl Fn()) -> Option<T> {
    loop {
        match tokio::time::timeout(ENGINE_WAIT, &mut decided).await {
            Ok(decided) => return decided.ok(),
            Err(_) => late(),
        }
    }
}

fn hash(name: &str) -> String {
    let digest = digest::digest(&digest::SHA256, name.as_bytes());
    let mut text = String::with_capacity(2 * NAME_BYTES);
    for byte in digest.as_ref().iter().take(NAME_BYTES) {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use cluster::{MemoryRegistry, Node};
    use http::HeaderMap;
    use protocol::exchange::Principal;

    use super::super::limits::{Account, Limiter, Permit, Sharer};
    use super::*;

    /// Replicas that share a registry whose clock stands still: no bucket refills.
    async fn replicas<const N: usize>(settings: LimitSettings) -> [Limiter; N] {
        let registry = MemoryRegistry::new();
        let limiters = std::array::from_fn(|_| {
            let node = NodeId::generate("replica").unwrap();
            let limiter = Limiter::new(settings.clone());
            let shared: Arc<dyn Registry> = Arc::new(registry.clone());
            (limiter.with_fleet(shared, node.clone(), Clock::new()), node)
        });
        let mut joined = Vec::new();
        for (_, id) in &limiters {
            let node = Node {
                id: id.clone(),
                address: None,
                program: String::new(),
                is_draining: false,
            };
            joined.push(registry.join(&node).await);
        }
        assert!(joined.iter().all(Result::is_ok));
        limiters.map(|(limiter, _)| limiter)
    }

    fn account(limiter: &Limiter) -> Option<Arc<Account>> {
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        limiter.account(Moment::START, &Principal::named("ann"), peer, &HeaderMap::new())
    }

    async fn call(limiter: &Limiter) -> Result<Permit, Refusal> {
        let account = account(limiter);
        let sharer = Sharer::of(account.as_ref(), &Principal::named("ann"));
        let mut permit = limiter.call(sharer.as_ref())?;
        limiter.call_in_fleet(account.as_ref(), &mut permit).await?;
        Ok(permit)
    }

    async fn session(limiter: &Limiter, destination: &str) -> Result<Permit, Refusal> {
        let mut permit = limiter.session(None)?;
        limiter
            .session_in_fleet(None, (destination, 2), &mut permit)
            .await?;
        Ok(permit)
    }

    #[tokio::test]
    async fn replicas_admit_one_limit_of_requests_together() {
        let settings = LimitSettings {
            requests_per_minute: Some(120),
            ..LimitSettings::default()
        };
        let limiters = replicas::<3>(settings).await;
        let mut admitted = 0;
        for at in 0..360 {
            let limiter = &limiters[at % 3];
            let account = account(limiter);
            assert_eq!(
                limiter.request(Moment::START, account.as_ref()),
                Ok(()),
                "counted once"
            );
            match limiter.request_in_fleet(account.as_ref()).await {
                Ok(()) => admitted += 1,
                Err(refusal) => assert!(matches!(
                    refusal,
                    Refusal::TooManyRequests {
                        limit: "requests_per_minute",
                        ..
                    }
                )),
            }
        }
        assert!((108..=120).contains(&admitted), "{admitted} admitted");
    }

    #[tokio::test]
    async fn slot_that_a_call_gives_back_is_free_on_another_replica() {
        let settings = LimitSettings {
            calls_per_principal: Some(2),
            ..LimitSettings::default()
        };
        let [one, other] = replicas(settings).await;
        let (first, _second) = (call(&one).await.unwrap(), call(&one).await.unwrap());
        assert_eq!(
            call(&other).await.unwrap_err(),
            Refusal::TooManyCallsOfCaller { limit: 2 }
        );
        assert_eq!(other.calls(), 0, "a refused call holds nothing");
        drop(first);
        testkit::poll_until("the slot is free", testkit::PATIENCE, async || {
            Ok::<_, Refusal>(call(&other).await.ok())
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn sessions_of_a_destination_are_counted_over_all_replicas() {
        let [one, other] = replicas(LimitSettings::default()).await;
        let _held = (
            session(&one, "files").await.unwrap(),
            session(&other, "files").await.unwrap(),
        );
        for limiter in [&one, &other] {
            assert_eq!(
                session(limiter, "files").await.unwrap_err(),
                Refusal::TooManySessions { limit: 2 }
            );
        }
        assert!(session(&one, "mail").await.is_ok());
    }

    #[tokio::test]
    async fn limit_that_a_reload_changes_counts_what_is_open() {
        let [one, other] = replicas(LimitSettings::default()).await;
        let limited = async |limiter: &Limiter, limit: usize| {
            let mut permit = limiter.session(None)?;
            let taken = limiter
                .session_in_fleet(None, ("files", limit), &mut permit)
                .await;
            taken.map(|()| permit)
        };
        let mut held = Vec::new();
        for limit in [2, 2, 3] {
            held.push(limited(&one, limit).await.unwrap());
        }
        for limiter in [&one, &other] {
            let refused = limited(limiter, 3).await.unwrap_err();
            assert_eq!(refused, Refusal::TooManySessions { limit: 3 });
        }
        // A lower limit ends nothing, and admits nothing until enough has ended.
        held.truncate(2);
        assert!(limited(&one, 2).await.is_err());
        drop(held);
        testkit::poll_until("there is room", testkit::PATIENCE, async || {
            Ok::<_, Refusal>(limited(&one, 2).await.ok())
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn request_that_is_gone_keeps_no_place() {
        let settings = LimitSettings {
            calls_per_principal: Some(1),
            ..LimitSettings::default()
        };
        let [one, other] = replicas(settings).await;
        // The demand is under way when the request is dropped.
        let dropped = tokio::time::timeout(Duration::ZERO, call(&one)).await;
        drop(dropped);
        testkit::poll_until("the slot is free", testkit::PATIENCE, async || {
            Ok::<_, Refusal>(call(&other).await.ok())
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn caller_without_state_is_forgotten_when_its_slots_are_given_back() {
        let settings = LimitSettings {
            calls_per_principal: Some(100),
            requests_per_minute: Some(100),
            ..LimitSettings::default()
        };
        let [limiter] = replicas(settings).await;
        let account = account(&limiter);
        assert_eq!(limiter.request_in_fleet(account.as_ref()).await, Ok(()));
        drop((account, call(&limiter).await.unwrap()));
        limiter.tick(Moment::START);
        assert_eq!(limiter.callers(), 1);
        let later = Moment::START.after(Duration::from_secs(3600));
        testkit::poll_until("the caller is forgotten", testkit::PATIENCE, async || {
            limiter.tick(later);
            Ok::<_, Refusal>((limiter.callers() == 0).then_some(()))
        })
        .await
        .unwrap();
    }
}
