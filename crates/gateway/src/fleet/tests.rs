//! Replicas that share a registry in memory.

mod gateways;
mod outage;

use cluster::MemoryRegistry;
use cluster::record::Hello;
use cluster::registry::Owner;

use super::*;
use crate::session_store::new_record;

const IDLE: Duration = Duration::from_secs(1800);
const ANN: Wanted<'_> = Wanted {
    destination: "files",
    principal: "ann",
};
const BOB: Wanted<'_> = Wanted {
    destination: "files",
    principal: "bob",
};

/// A replica that runs. It dies when it is dropped.
struct Replica {
    fleet: Arc<Fleet>,
    _task: tasks::Owned<()>,
    sessions: Arc<Sessions>,
}

/// The sessions that a replica has open.
#[derive(Default)]
struct Sessions {
    records: Mutex<HashMap<Uuid, SessionRecord>>,
    dropped: watch::Sender<Vec<(Uuid, u64)>>,
}

impl LocalSessions for Sessions {
    fn record(&self, session: Uuid, epoch: u64) -> Option<SessionRecord> {
        let record = self.records.lock().get(&session).cloned();
        record.filter(|record| record.epoch == epoch)
    }

    fn drop_copy(&self, session: Uuid, epoch: u64) {
        self.records.lock().remove(&session);
        self.dropped.send_modify(|dropped| dropped.push((session, epoch)));
    }

    fn end_server(&self, _destination: &str) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::ready(()))
    }
}

impl Replica {
    async fn start(registry: &(impl Registry + Clone + 'static), name: &str, sharing: Sharing) -> Self {
        let registry: Arc<dyn Registry> = Arc::new(registry.clone());
        let store = SessionStore::new(Arc::clone(&registry), Arc::default(), IDLE);
        let node = Node {
            id: NodeId::generate(name).unwrap(),
            address: Some(format!("{name}:3001")),
            program: String::new(),
            is_draining: false,
        };
        let fleet = Fleet::new(registry, Arc::new(store), node, sharing, Clock::new());
        let sessions = Arc::new(Sessions::default());
        fleet.set_local_sessions(Arc::downgrade(&sessions) as _);
        let running = Arc::clone(&fleet);
        let task = tasks::Owned(tasks::spawn("fleet", async move { running.run().await }));
        fleet.begun().await;
        Self {
            fleet,
            _task: task,
            sessions,
        }
    }

    /// Opens a session of Ann's.
    async fn open(&self) -> Claim {
        let claim = self.fleet.new_claim(Uuid::new_v4());
        let hello = Hello::Implicit("2025-06-18".to_owned());
        let record = new_record(&claim, "files", "ann", hello);
        self.sessions.records.lock().insert(claim.session, record.clone());
        self.fleet.open(record).await.unwrap();
        claim
    }

    /// Restores a session that was taken over.
    fn restore(&self, session: Uuid) -> Claim {
        let record = self.fleet.take_record(session, ANN).expect("a record waits");
        let claim = record.claim().unwrap();
        self.sessions.records.lock().insert(session, *record);
        claim
    }
}

async fn replicas(registry: &MemoryRegistry) -> (Replica, Replica) {
    let one = Replica::start(registry, "one", Sharing::Replicas).await;
    let other = Replica::start(registry, "other", Sharing::Replicas).await;
    (one, other)
}

fn there(replica: &Replica, epoch: u64) -> SessionRoute {
    let node = replica.fleet.node().clone();
    SessionRoute::There { node, epoch }
}

#[tokio::test]
async fn session_is_served_by_its_owner_and_proxied_by_another_replica() {
    let registry = MemoryRegistry::new();
    let (one, other) = replicas(&registry).await;
    let session = one.open().await.session;
    assert_eq!(one.fleet.route(session, ANN).await, SessionRoute::Here);
    assert_eq!(other.fleet.route(session, ANN).await, there(&one, 1));
    assert_eq!(
        one.fleet.route_for_peer(session, 1, ANN).await,
        SessionRoute::Here
    );
    assert_eq!(
        other.fleet.route(Uuid::new_v4(), ANN).await,
        SessionRoute::Nowhere
    );
    for replica in [&one, &other] {
        assert_eq!(
            replica.fleet.route_for_peer(session, 1, BOB).await,
            SessionRoute::Nowhere
        );
    }
}

#[tokio::test]
async fn session_of_a_replica_that_left_is_taken_over_by_its_principal_alone() {
    let registry = MemoryRegistry::new();
    let (one, other) = replicas(&registry).await;
    let session = one.open().await.session;
    assert_eq!(other.fleet.route(session, ANN).await, there(&one, 1));
    registry.leave(&one.fleet.node().id).await.unwrap();
    let id = one.fleet.node().id.clone();
    let undelivered = Undelivered::NotSent(&id);
    let foreign = other.fleet.route_again(session, BOB, undelivered, 1).await;
    assert_eq!(foreign, SessionRoute::Nowhere);
    let located = registry.look_up(session).await.unwrap().unwrap();
    assert_eq!((located.record.epoch, located.owner), (1, Owner::Gone));
    let route = other.fleet.route_again(session, ANN, undelivered, 1).await;
    assert_eq!(route, SessionRoute::Here);
    assert!(other.fleet.take_record(session, BOB).is_none());
    let claim = other.restore(session);
    assert_eq!(claim.epoch, 2);
    assert!(other.fleet.holds(&claim));
    assert!(
        other.fleet.take_record(session, ANN).is_none(),
        "it is restored once"
    );
}

#[tokio::test]
async fn requests_at_once_take_a_session_over_once() {
    let registry = MemoryRegistry::new();
    let (one, other) = replicas(&registry).await;
    let session = one.open().await.session;
    registry.leave(&one.fleet.node().id).await.unwrap();
    let (first, second) = tokio::join!(other.fleet.route(session, ANN), other.fleet.route(session, ANN));
    assert_eq!((first, second), (SessionRoute::Here, SessionRoute::Here));
    assert_eq!(other.restore(session).epoch, 2);
}

#[tokio::test]
async fn owner_that_lost_its_session_drops_its_copy_at_the_next_touch() {
    let registry = MemoryRegistry::new();
    let (one, other) = replicas(&registry).await;
    let claim = one.open().await;
    registry.leave(&one.fleet.node().id).await.unwrap();
    assert_eq!(other.fleet.route(claim.session, ANN).await, SessionRoute::Here);
    let touch = cluster::Touch {
        claim: claim.clone(),
        at: cluster::WallTime::from_unix(0),
        idle: IDLE,
    };
    one.fleet.store().touch(vec![touch]);
    let mut dropped = one.sessions.dropped.subscribe();
    let dropped = dropped.wait_for(|dropped| !dropped.is_empty()).await.unwrap();
    assert_eq!(*dropped, [(claim.session, 1)]);
    assert!(!one.fleet.holds(&claim));
}

#[tokio::test]
async fn session_that_could_not_be_restored_is_taken_over_again() {
    let registry = MemoryRegistry::new();
    let (one, other) = replicas(&registry).await;
    let session = one.open().await.session;
    registry.leave(&one.fleet.node().id).await.unwrap();
    assert_eq!(other.fleet.route(session, ANN).await, SessionRoute::Here);
    let claim = other.restore(session);
    other.fleet.abandon(session, claim.epoch);
    assert_eq!(other.fleet.route(session, ANN).await, SessionRoute::Here);
    assert_eq!(other.restore(session).epoch, 3);
}

#[tokio::test]
async fn session_that_was_closed_is_known_nowhere() {
    let registry = MemoryRegistry::new();
    let (one, other) = replicas(&registry).await;
    let claim = one.open().await;
    one.fleet.close(&claim);
    // The request waits for the removal.
    assert_eq!(one.fleet.route(claim.session, ANN).await, SessionRoute::Nowhere);
    assert_eq!(other.fleet.route(claim.session, ANN).await, SessionRoute::Nowhere);
}

#[tokio::test]
async fn session_that_was_handed_over_goes_on_at_the_successor() {
    let registry = MemoryRegistry::new();
    let (one, other) = replicas(&registry).await;
    let claim = one.open().await;
    one.fleet.drain();
    one.fleet.hand_over(&claim);
    let refused = SessionRoute::Refused(Unavailable::Draining);
    assert_eq!(one.fleet.route(claim.session, ANN).await, refused);
    let successor = one.fleet.successor().await.unwrap();
    assert_eq!(successor.id, other.fleet.node().id);
    assert_eq!(
        other.fleet.route_for_peer(claim.session, 0, ANN).await,
        SessionRoute::Here
    );
    assert_eq!(other.restore(claim.session).epoch, 2);
    // Both drain by now: there is none.
    other.fleet.drain();
    assert_eq!(
        other
            .fleet
            .living(|node| node.id == one.fleet.node().id)
            .await
            .unwrap()
            .map(|node| node.is_draining),
        Some(true)
    );
    assert_eq!(other.fleet.successor().await, None);
}

#[tokio::test]
async fn replica_that_has_just_joined_is_found() {
    let registry = MemoryRegistry::new();
    let (one, _other) = replicas(&registry).await;
    assert_eq!(one.fleet.nodes().await.unwrap().len(), 2);
    let late = Replica::start(&registry, "late", Sharing::Replicas).await;
    let late = late.fleet.node();
    let found = one.fleet.living(|node| node.id == late.id).await;
    assert_eq!(found.unwrap().as_ref(), Some(late));
    let found = one.fleet.living(|node| node.id.name() == "missing").await;
    assert_eq!(found.unwrap(), None);
}

#[tokio::test]
async fn record_that_waits_for_its_request_is_handed_over_by_a_drain() {
    let registry = MemoryRegistry::new();
    let (one, other) = replicas(&registry).await;
    let session = one.open().await.session;
    registry.leave(&one.fleet.node().id).await.unwrap();
    assert_eq!(other.fleet.route(session, ANN).await, SessionRoute::Here);
    other.fleet.drain();
    other.fleet.close_all(IDLE).await;
    let located = registry.look_up(session).await.unwrap().unwrap();
    assert_eq!((located.record.epoch, located.record.owner), (2, None));
}

#[tokio::test]
async fn records_are_written_again_after_the_engine_came_back_empty() {
    let registry = MemoryRegistry::new();
    let (one, other) = replicas(&registry).await;
    let session = one.open().await.session;
    registry.clear();
    while registry.look_up(session).await.unwrap().is_none() {
        assert_ne!(other.fleet.route(session, ANN).await, SessionRoute::Nowhere);
        tokio::task::yield_now().await;
    }
    assert_eq!(one.fleet.route(session, ANN).await, SessionRoute::Here);
}
