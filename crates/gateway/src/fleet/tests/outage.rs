//! What replicas do while the engine is away.

use std::sync::atomic::AtomicBool;

use cluster::registry::{
    Change, Located, NameLease, NodeStatus, Renewed, SlotDemand, SlotGrant, TakeOver, TokenDemand,
    TokenGrant, Touch, Updated,
};

use super::*;

/// A registry that can be cut off.
#[derive(Debug, Clone, Default)]
pub(super) struct Outage {
    registry: MemoryRegistry,
    is_away: Arc<AtomicBool>,
}

impl Outage {
    fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Release);
    }

    fn pass<T: 'static>(&self, operation: Operation<T>) -> Operation<T> {
        match self.is_away.load(Ordering::Acquire) {
            true => Box::pin(async { Err(RegistryError::Unreachable("cut off".to_owned())) }),
            false => operation,
        }
    }
}

impl Registry for Outage {
    fn join(&self, node: &Node) -> Operation<()> {
        self.pass(self.registry.join(node))
    }
    fn renew(&self, node: &NodeId) -> Operation<Renewed> {
        self.pass(self.registry.renew(node))
    }
    fn leave(&self, node: &NodeId) -> Operation<()> {
        self.pass(self.registry.leave(node))
    }
    fn nodes(&self) -> Operation<Vec<NodeStatus>> {
        self.pass(self.registry.nodes())
    }
    fn create(&self, record: &SessionRecord, idle: Duration) -> Operation<Created> {
        self.pass(self.registry.create(record, idle))
    }
    fn look_up(&self, session: Uuid) -> Operation<Option<Located>> {
        self.pass(self.registry.look_up(session))
    }
    fn take_over(&self, session: Uuid, seen: u64, by: &NodeId, idle: Duration) -> Operation<TakeOver> {
        self.pass(self.registry.take_over(session, seen, by, idle))
    }
    fn update(&self, claim: &Claim, change: Change, idle: Duration) -> Operation<Updated> {
        self.pass(self.registry.update(claim, change, idle))
    }
    fn touch_many(&self, touches: Vec<Touch>) -> Operation<Vec<Updated>> {
        self.pass(self.registry.touch_many(touches))
    }
    fn release(&self, claim: &Claim) -> Operation<Updated> {
        self.pass(self.registry.release(claim))
    }
    fn remove(&self, claim: &Claim) -> Operation<Updated> {
        self.pass(self.registry.remove(claim))
    }
    fn lease_tokens(&self, bucket: &str, demand: TokenDemand) -> Operation<TokenGrant> {
        self.pass(self.registry.lease_tokens(bucket, demand))
    }
    fn lease_slots(&self, pool: &str, node: &NodeId, demand: SlotDemand) -> Operation<SlotGrant> {
        self.pass(self.registry.lease_slots(pool, node, demand))
    }
    fn hold(&self, name: &str, node: &NodeId, ttl: Duration) -> Operation<NodeId> {
        self.pass(self.registry.hold(name, node, ttl))
    }
    fn lease_name(&self, name: &str, node: &NodeId, has_it: bool) -> Operation<NameLease> {
        self.pass(self.registry.lease_name(name, node, has_it))
    }
    fn holder(&self, name: &str) -> Operation<Option<NodeId>> {
        self.pass(self.registry.holder(name))
    }
    fn let_go(&self, name: &str, node: &NodeId) -> Operation<()> {
        self.pass(self.registry.let_go(name, node))
    }
}

fn new_session(replica: &Replica) -> SessionRecord {
    let claim = replica.fleet.new_claim(Uuid::new_v4());
    new_record(&claim, "files", "ann", Hello::Implicit("2025-06-18".to_owned()))
}

#[tokio::test]
async fn session_opened_while_the_engine_is_away_is_local_and_its_record_follows() {
    let engine = Outage::default();
    let one = Replica::start(&engine, "one", Sharing::Replicas).await;
    let other = Replica::start(&engine, "other", Sharing::Replicas).await;
    let earlier = one.open().await.session;
    engine.set_away(true);
    let record = new_session(&one);
    let session = record.session;
    one.sessions.records.lock().insert(session, record.clone());
    one.fleet.open(record).await.unwrap();
    assert_eq!(one.fleet.route(session, ANN).await, SessionRoute::Here);
    let away = SessionRoute::Refused(Unavailable::Away);
    assert_eq!(other.fleet.route(earlier, ANN).await, away);
    engine.set_away(false);
    // A request for an unknown session makes the owner renew its lease at once.
    while engine.look_up(session).await.unwrap().is_none() {
        one.fleet.route(Uuid::new_v4(), ANN).await;
    }
    assert_eq!(other.fleet.route(session, ANN).await, there(&one, 1));
}

#[tokio::test]
async fn session_of_a_single_machine_is_not_opened_without_its_record() {
    let engine = Outage::default();
    let one = Replica::start(&engine, "one", Sharing::Alone).await;
    engine.set_away(true);
    let error = one.fleet.open(new_session(&one)).await.unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn session_whose_end_cannot_be_written_is_refused_until_it_can() {
    let engine = Outage::default();
    let one = Replica::start(&engine, "one", Sharing::Replicas).await;
    let claim = one.open().await;
    engine.set_away(true);
    one.fleet.close(&claim);
    let away = SessionRoute::Refused(Unavailable::Away);
    assert_eq!(one.fleet.route(claim.session, ANN).await, away);
}
