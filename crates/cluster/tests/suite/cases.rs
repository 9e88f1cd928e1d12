//! What holds on every engine.

use std::sync::Arc;
use std::time::Duration;

use cluster::record::MAX_RECORD_BYTES;
use cluster::registry::LEASE;
use cluster::{
    Change, Claim, Created, Hello, Located, NameLease, Node, NodeId, Owner, Registry, RegistryError, Renewed,
    SessionRecord, SlotDemand, SlotGrant, State, TakeOver, TokenDemand, TokenGrant, Touch, Updated, WallTime,
};
use testkit::PATIENCE;
use uuid::Uuid;

use crate::engine::Engine;

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);
/// Short enough to be waited for.
const SHORT: Duration = Duration::from_millis(150);

pub(crate) fn node(name: &str) -> Node {
    Node {
        id: NodeId::generate(name).unwrap(),
        address: Some(format!("{name}.example:3001")),
        program: "0.1.0".to_owned(),
        is_draining: false,
    }
}

pub(crate) fn record(owner: &Node) -> SessionRecord {
    SessionRecord {
        session: Uuid::new_v4(),
        destination: "files".to_owned(),
        principal: "alice".to_owned(),
        owner: Some(owner.id.clone()),
        epoch: 1,
        hello: Hello::Initialize(r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#.to_owned()),
        state: State::default(),
        created: WallTime::from_unix(1_800_000_000),
        last_active: WallTime::from_unix(1_800_000_000),
    }
}

pub(crate) fn claim(record: &SessionRecord) -> Claim {
    record.claim().expect("the record has an owner")
}

/// Joins a node and creates a session of it.
pub(crate) async fn session_of(registry: &Arc<dyn Registry>, owner: &Node) -> SessionRecord {
    registry.join(owner).await.unwrap();
    let record = record(owner);
    assert_eq!(registry.create(&record, LONG).await.unwrap(), Created::Created);
    record
}

pub(crate) async fn found(registry: &Arc<dyn Registry>, session: Uuid) -> Located {
    registry
        .look_up(session)
        .await
        .unwrap()
        .expect("the session is known")
}

fn won(taken: TakeOver) -> SessionRecord {
    match taken {
        TakeOver::Won(record) => *record,
        TakeOver::Lost(_) | TakeOver::Unknown => panic!("{taken:?}"),
    }
}

fn lost(taken: TakeOver) -> Located {
    match taken {
        TakeOver::Lost(located) => *located,
        TakeOver::Won(_) | TakeOver::Unknown => panic!("{taken:?}"),
    }
}

pub(crate) async fn new_session_is_found_with_its_living_owner(engine: &mut impl Engine) {
    let (registry, a) = (engine.registry(), node("a"));
    let record = session_of(&registry, &a).await;
    let located = found(&registry, record.session).await;
    assert_eq!(located.record, record);
    assert_eq!(located.owner, Owner::Living(a));
}

pub(crate) async fn unknown_session_is_not_found(engine: &mut impl Engine) {
    let registry = engine.registry();
    assert_eq!(registry.look_up(Uuid::new_v4()).await.unwrap(), None);
}

pub(crate) async fn record_keeps_every_member(engine: &mut impl Engine) {
    let (registry, a) = (engine.registry(), node("a"));
    registry.join(&a).await.unwrap();
    let written = SessionRecord {
        destination: "größe \"1\"\n".to_owned(),
        principal: String::new(),
        owner: None,
        epoch: 1 << 40,
        hello: Hello::Implicit("2025-06-18".to_owned()),
        state: State {
            log_level: Some("debug".to_owned()),
            subscriptions: vec!["file:///ä".to_owned(), "\0".to_owned()],
        },
        last_active: WallTime::from_unix(1_800_000_060),
        ..record(&a)
    };
    let created = registry.create(&written, LONG).await.unwrap();
    assert_eq!(created, Created::Created);
    assert_eq!(found(&registry, written.session).await.record, written);
    let large = SessionRecord {
        hello: Hello::Initialize("ä\n".repeat(100_000)),
        ..record(&a)
    };
    assert_eq!(registry.create(&large, LONG).await.unwrap(), Created::Created);
    assert_eq!(found(&registry, large.session).await.record, large);
}

pub(crate) async fn record_written_twice_by_its_owner_stays(engine: &mut impl Engine) {
    let (registry, a) = (engine.registry(), node("a"));
    let record = session_of(&registry, &a).await;
    // The answer to the first may have been lost.
    assert_eq!(registry.create(&record, LONG).await.unwrap(), Created::Created);
    assert_eq!(found(&registry, record.session).await.record, record);
}

pub(crate) async fn record_of_another_owner_is_not_replaced(engine: &mut impl Engine) {
    let (registry, a, b) = (engine.registry(), node("a"), node("b"));
    let of_a = session_of(&registry, &a).await;
    registry.join(&b).await.unwrap();
    let of_b = SessionRecord {
        owner: Some(b.id.clone()),
        ..of_a.clone()
    };
    let Created::Exists(located) = registry.create(&of_b, LONG).await.unwrap() else {
        panic!("two owners of one epoch");
    };
    assert_eq!(located.record, of_a);
    assert_eq!(located.owner, Owner::Living(a));
    assert_eq!(found(&registry, of_a.session).await.record, of_a);
}

pub(crate) async fn record_of_a_lower_epoch_is_replaced(engine: &mut impl Engine) {
    // An engine that fell back to an earlier copy of its data has such a record.
    let (registry, a, b) = (engine.registry(), node("a"), node("b"));
    let of_a = session_of(&registry, &a).await;
    registry.join(&b).await.unwrap();
    let of_b = SessionRecord {
        owner: Some(b.id.clone()),
        epoch: 2,
        state: State {
            log_level: Some("error".to_owned()),
            subscriptions: Vec::new(),
        },
        ..of_a.clone()
    };
    assert_eq!(registry.create(&of_b, LONG).await.unwrap(), Created::Created);
    assert_eq!(found(&registry, of_a.session).await.record, of_b);
    let Created::Exists(located) = registry.create(&of_a, LONG).await.unwrap() else {
        panic!("an epoch fell");
    };
    assert_eq!(located.record, of_b);
}

pub(crate) async fn record_beyond_the_limit_is_refused(engine: &mut impl Engine) {
    let (registry, a) = (engine.registry(), node("a"));
    registry.join(&a).await.unwrap();
    let record = SessionRecord {
        hello: Hello::Initialize("x".repeat(MAX_RECORD_BYTES)),
        ..record(&a)
    };
    let error = registry.create(&record, LONG).await.unwrap_err();
    assert!(matches!(error, RegistryError::TooLarge { .. }), "{error}");
    assert_eq!(registry.look_up(record.session).await.unwrap(), None);
}

pub(crate) async fn session_of_a_living_owner_is_not_taken_over(engine: &mut impl Engine) {
    let (registry, a, b) = (engine.registry(), node("a"), node("b"));
    let record = session_of(&registry, &a).await;
    registry.join(&b).await.unwrap();
    let taken = registry.take_over(record.session, 1, &b.id, LONG).await.unwrap();
    let located = lost(taken);
    assert_eq!(located.owner, Owner::Living(a));
    assert_eq!(located.record, record);
    assert_eq!(found(&registry, record.session).await.record, record);
}

pub(crate) async fn session_of_a_dead_owner_is_taken_over_once(engine: &mut impl Engine) {
    let (a, b, c) = (node("a"), node("b"), node("c"));
    let record = session_of(&engine.registry(), &a).await;
    engine.end_leases().await;
    let registry = engine.registry();
    let located = found(&registry, record.session).await;
    assert_eq!(located.owner, Owner::Gone);
    assert_eq!(located.record, record);
    for survivor in [&b, &c] {
        registry.join(survivor).await.unwrap();
    }
    let taken = won(registry.take_over(record.session, 1, &b.id, LONG).await.unwrap());
    let expected = SessionRecord {
        owner: Some(b.id.clone()),
        epoch: 2,
        ..record.clone()
    };
    assert_eq!(taken, expected);
    let located = lost(registry.take_over(record.session, 1, &c.id, LONG).await.unwrap());
    assert_eq!(located.owner, Owner::Living(b));
    assert_eq!(located.record, expected);
}

pub(crate) async fn session_of_an_owner_that_left_is_taken_over(engine: &mut impl Engine) {
    let (registry, a, b) = (engine.registry(), node("a"), node("b"));
    let record = session_of(&registry, &a).await;
    registry.join(&b).await.unwrap();
    registry.leave(&a.id).await.unwrap();
    assert_eq!(found(&registry, record.session).await.owner, Owner::Gone);
    won(registry.take_over(record.session, 1, &b.id, LONG).await.unwrap());
}

pub(crate) async fn take_over_with_an_old_epoch_is_lost(engine: &mut impl Engine) {
    let (a, b) = (node("a"), node("b"));
    let record = session_of(&engine.registry(), &a).await;
    engine.end_leases().await;
    let registry = engine.registry();
    registry.join(&b).await.unwrap();
    won(registry.take_over(record.session, 1, &b.id, LONG).await.unwrap());
    registry.leave(&b.id).await.unwrap();
    // The owner is gone again, but the caller saw an epoch before that.
    let c = node("c");
    registry.join(&c).await.unwrap();
    for wrong in [0, 1, 3] {
        let taken = registry.take_over(record.session, wrong, &c.id, LONG).await;
        assert_eq!(lost(taken.unwrap()).record.epoch, 2, "seen {wrong}");
    }
}

pub(crate) async fn take_over_of_an_unknown_session_finds_nothing(engine: &mut impl Engine) {
    let (registry, a) = (engine.registry(), node("a"));
    registry.join(&a).await.unwrap();
    let taken = registry.take_over(Uuid::new_v4(), 1, &a.id, LONG).await.unwrap();
    assert_eq!(taken, TakeOver::Unknown);
}

pub(crate) async fn owner_takes_its_own_session_over_after_a_lost_answer(engine: &mut impl Engine) {
    let (a, b) = (node("a"), node("b"));
    let record = session_of(&engine.registry(), &a).await;
    engine.end_leases().await;
    let registry = engine.registry();
    registry.join(&b).await.unwrap();
    won(registry.take_over(record.session, 1, &b.id, LONG).await.unwrap());
    let located = lost(registry.take_over(record.session, 1, &b.id, LONG).await.unwrap());
    assert_eq!(located.record.owner.as_ref(), Some(&b.id));
    let again = won(registry.take_over(record.session, 2, &b.id, LONG).await.unwrap());
    assert_eq!(again.epoch, 3);
}

pub(crate) async fn superseded_owner_changes_nothing(engine: &mut impl Engine) {
    let (a, b) = (node("a"), node("b"));
    let record = session_of(&engine.registry(), &a).await;
    engine.end_leases().await;
    let registry = engine.registry();
    for survivor in [&a, &b] {
        registry.join(survivor).await.unwrap();
    }
    registry.leave(&a.id).await.unwrap();
    let taken = won(registry.take_over(record.session, 1, &b.id, LONG).await.unwrap());
    let late = claim(&record);
    let superseded = Updated::Superseded(2);
    let touch = Change::Touch(WallTime::from_unix(1));
    assert_eq!(registry.update(&late, touch, LONG).await.unwrap(), superseded);
    let state = Change::State(State::default());
    assert_eq!(registry.update(&late, state, LONG).await.unwrap(), superseded);
    assert_eq!(registry.release(&late).await.unwrap(), superseded);
    assert_eq!(registry.remove(&late).await.unwrap(), superseded);
    let Created::Exists(located) = registry.create(&record, LONG).await.unwrap() else {
        panic!("an epoch fell");
    };
    assert_eq!(located.record, taken);
    assert_eq!(found(&registry, record.session).await.record, taken);
}

pub(crate) async fn owner_of_the_same_epoch_elsewhere_is_superseded(engine: &mut impl Engine) {
    // After an engine lost a take-over, another replica may have been given the same epoch.
    let (registry, a, b) = (engine.registry(), node("a"), node("b"));
    let record = session_of(&registry, &a).await;
    let other = Claim {
        owner: b.id.clone(),
        ..claim(&record)
    };
    let touch = Change::Touch(WallTime::from_unix(1));
    assert_eq!(
        registry.update(&other, touch, LONG).await.unwrap(),
        Updated::Superseded(1)
    );
    assert_eq!(registry.remove(&other).await.unwrap(), Updated::Superseded(1));
    assert_eq!(found(&registry, record.session).await.record, record);
    // And one that holds a higher epoch than the engine knows writes its record again.
    let ahead = Claim {
        epoch: 2,
        ..claim(&record)
    };
    assert_eq!(registry.release(&ahead).await.unwrap(), Updated::Unknown);
    assert_eq!(registry.remove(&ahead).await.unwrap(), Updated::Unknown);
    assert_eq!(found(&registry, record.session).await.record, record);
}

pub(crate) async fn state_of_a_session_is_changed_by_its_owner(engine: &mut impl Engine) {
    let (a, b) = (node("a"), node("b"));
    let registry = engine.registry();
    let record = session_of(&registry, &a).await;
    let state = State {
        log_level: Some("warning".to_owned()),
        subscriptions: vec!["file:///1".to_owned(), "file:///2".to_owned()],
    };
    let change = Change::State(state.clone());
    assert_eq!(
        registry.update(&claim(&record), change, LONG).await.unwrap(),
        Updated::Done
    );
    let touch = Change::Touch(WallTime::from_unix(1_800_000_777));
    assert_eq!(
        registry.update(&claim(&record), touch, LONG).await.unwrap(),
        Updated::Done
    );
    let expected = SessionRecord {
        state,
        last_active: WallTime::from_unix(1_800_000_777),
        ..record.clone()
    };
    assert_eq!(found(&registry, record.session).await.record, expected);
    drop(registry);
    engine.end_leases().await;
    let registry = engine.registry();
    registry.join(&b).await.unwrap();
    let taken = won(registry.take_over(record.session, 1, &b.id, LONG).await.unwrap());
    assert_eq!(taken.state, expected.state, "the next owner goes on with it");
}

pub(crate) async fn many_sessions_are_touched_each_by_its_claim(engine: &mut impl Engine) {
    const MANY: u64 = 1200;
    let (registry, a, b) = (engine.registry(), node("a"), node("b"));
    let mine = session_of(&registry, &a).await;
    let other = session_of(&registry, &b).await;
    let stolen = Claim {
        owner: a.id.clone(),
        ..claim(&other)
    };
    let unknown = claim(&record(&a));
    let mut touches = Vec::new();
    let mut expected = Vec::new();
    for at in 0..MANY {
        let (claim, result) = match at % 3 {
            0 => (claim(&mine), Updated::Done),
            1 => (stolen.clone(), Updated::Superseded(1)),
            _ => (unknown.clone(), Updated::Unknown),
        };
        let at = WallTime::from_unix(at);
        touches.push(Touch {
            claim,
            at,
            idle: LONG,
        });
        expected.push(result);
    }
    assert_eq!(registry.touch_many(touches).await.unwrap(), expected);
    let touched = found(&registry, mine.session).await.record;
    assert_eq!(touched.last_active, WallTime::from_unix(MANY - 3));
    assert_eq!(found(&registry, other.session).await.record, other);
    assert_eq!(registry.touch_many(Vec::new()).await.unwrap(), []);
}

pub(crate) async fn released_session_is_taken_by_exactly_one(engine: &mut impl Engine) {
    let (registry, a) = (engine.registry(), node("a"));
    let record = session_of(&registry, &a).await;
    assert_eq!(registry.release(&claim(&record)).await.unwrap(), Updated::Done);
    let located = found(&registry, record.session).await;
    assert_eq!((located.record.owner, located.record.epoch), (None, 1));
    assert_eq!(located.owner, Owner::Gone, "its last owner still lives");
    let mut tries = Vec::new();
    for name in ["b", "c", "d", "e"] {
        let node = node(name);
        registry.join(&node).await.unwrap();
        let registry = Arc::clone(&registry);
        let session = record.session;
        tries.push(async move { registry.take_over(session, 1, &node.id, LONG).await.unwrap() });
    }
    let mut winners = 0;
    for taken in join_all(tries).await {
        winners += usize::from(matches!(taken, TakeOver::Won(_)));
    }
    assert_eq!(winners, 1);
    assert_eq!(found(&registry, record.session).await.record.epoch, 2);
}

pub(crate) async fn released_session_is_released_again_after_a_lost_answer(engine: &mut impl Engine) {
    let (registry, a, b) = (engine.registry(), node("a"), node("b"));
    let record = session_of(&registry, &a).await;
    for _ in 0..2 {
        assert_eq!(registry.release(&claim(&record)).await.unwrap(), Updated::Done);
    }
    // A session that was handed over is no longer changed, removed or written by its last owner.
    let touch = Change::Touch(WallTime::from_unix(1));
    assert_eq!(
        registry.update(&claim(&record), touch, LONG).await.unwrap(),
        Updated::Superseded(1)
    );
    assert_eq!(
        registry.remove(&claim(&record)).await.unwrap(),
        Updated::Superseded(1)
    );
    let created = registry.create(&record, LONG).await.unwrap();
    assert!(matches!(created, Created::Exists(_)), "{created:?}");
    registry.join(&b).await.unwrap();
    won(registry.take_over(record.session, 1, &b.id, LONG).await.unwrap());
    assert_eq!(
        registry.release(&claim(&record)).await.unwrap(),
        Updated::Superseded(2)
    );
}

pub(crate) async fn removed_session_is_gone_and_a_late_update_finds_nothing(engine: &mut impl Engine) {
    let (registry, a) = (engine.registry(), node("a"));
    let record = session_of(&registry, &a).await;
    assert_eq!(registry.remove(&claim(&record)).await.unwrap(), Updated::Done);
    assert_eq!(registry.look_up(record.session).await.unwrap(), None);
    assert_eq!(registry.remove(&claim(&record)).await.unwrap(), Updated::Unknown);
    assert_eq!(registry.release(&claim(&record)).await.unwrap(), Updated::Unknown);
    let touch = Change::Touch(WallTime::from_unix(1));
    assert_eq!(
        registry.update(&claim(&record), touch, LONG).await.unwrap(),
        Updated::Unknown
    );
    assert_eq!(registry.look_up(record.session).await.unwrap(), None);
}

pub(crate) async fn session_that_is_not_used_expires(engine: &mut impl Engine) {
    let (registry, a) = (engine.registry(), node("a"));
    let lasting = session_of(&registry, &a).await;
    let record = record(&a);
    registry.create(&record, SHORT).await.unwrap();
    testkit::poll_until("the record expires", PATIENCE, async || {
        engine.tick(SHORT / 10);
        let found = registry.look_up(record.session).await?;
        Ok::<_, RegistryError>(found.is_none().then_some(()))
    })
    .await
    .unwrap();
    let taken = registry.take_over(record.session, 1, &a.id, LONG).await.unwrap();
    assert_eq!(taken, TakeOver::Unknown);
    assert_eq!(registry.remove(&claim(&record)).await.unwrap(), Updated::Unknown);
    assert_eq!(registry.create(&record, LONG).await.unwrap(), Created::Created);
    found(&registry, lasting.session).await;
}

pub(crate) async fn session_that_is_touched_does_not_expire(engine: &mut impl Engine) {
    let (registry, a) = (engine.registry(), node("a"));
    registry.join(&a).await.unwrap();
    // Four records that would all expire together; three are kept by an operation each.
    let records: Vec<SessionRecord> = (0..4).map(|_| record(&a)).collect();
    for record in &records {
        registry.create(record, SHORT).await.unwrap();
    }
    let [touched, changed, batch, left] = records.as_slice() else {
        panic!("four records");
    };
    let at = WallTime::from_unix(1);
    let results = [
        registry.update(&claim(touched), Change::Touch(at), LONG).await,
        registry
            .update(&claim(changed), Change::State(State::default()), LONG)
            .await,
        registry
            .touch_many(vec![Touch {
                claim: claim(batch),
                at,
                idle: LONG,
            }])
            .await
            .map(|results| results[0]),
    ];
    assert!(
        results.iter().all(|result| *result == Ok(Updated::Done)),
        "{results:?}"
    );
    testkit::poll_until("the last record expires", PATIENCE, async || {
        engine.tick(SHORT / 10);
        let found = registry.look_up(left.session).await?;
        Ok::<_, RegistryError>(found.is_none().then_some(()))
    })
    .await
    .unwrap();
    for kept in [touched, changed, batch] {
        found(&registry, kept.session).await;
    }
}

pub(crate) async fn nodes_are_listed_while_their_lease_lasts(engine: &mut impl Engine) {
    let (a, b) = (node("a"), node("b"));
    let registry = engine.registry();
    assert_eq!(registry.nodes().await.unwrap(), []);
    for node in [&b, &a, &a] {
        registry.join(node).await.unwrap();
    }
    let nodes = registry.nodes().await.unwrap();
    let ids: Vec<&NodeId> = nodes.iter().map(|status| &status.node.id).collect();
    assert_eq!(ids, [&a.id, &b.id]);
    for (status, node) in nodes.iter().zip([&a, &b]) {
        assert_eq!(status.node, *node);
        assert!(status.lease <= LEASE && !status.lease.is_zero(), "{status:?}");
    }
    registry.leave(&a.id).await.unwrap();
    registry.leave(&a.id).await.unwrap();
    let nodes = registry.nodes().await.unwrap();
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    drop(registry);
    engine.end_leases().await;
    assert_eq!(engine.registry().nodes().await.unwrap(), []);
}

pub(crate) async fn lease_that_ended_is_not_renewed(engine: &mut impl Engine) {
    let a = node("a");
    let registry = engine.registry();
    assert_eq!(registry.renew(&a.id).await.unwrap(), Renewed::Unknown);
    let record = session_of(&registry, &a).await;
    assert_eq!(registry.renew(&a.id).await.unwrap(), Renewed::Renewed);
    drop(registry);
    engine.end_leases().await;
    let registry = engine.registry();
    assert_eq!(registry.renew(&a.id).await.unwrap(), Renewed::Unknown);
    assert_eq!(found(&registry, record.session).await.owner, Owner::Gone);
    // A replica that was paused, and whose session was not taken over meanwhile, goes on.
    registry.join(&a).await.unwrap();
    assert_eq!(registry.renew(&a.id).await.unwrap(), Renewed::Renewed);
    assert_eq!(registry.create(&record, LONG).await.unwrap(), Created::Created);
    assert_eq!(found(&registry, record.session).await.owner, Owner::Living(a));
}

pub(crate) async fn engine_that_lost_everything_gets_the_records_again(engine: &mut impl Engine) {
    let a = node("a");
    let record = session_of(&engine.registry(), &a).await;
    engine.lose_everything().await;
    let registry = engine.registry();
    assert_eq!(registry.look_up(record.session).await.unwrap(), None);
    assert_eq!(registry.renew(&a.id).await.unwrap(), Renewed::Unknown);
    registry.join(&a).await.unwrap();
    assert_eq!(registry.create(&record, LONG).await.unwrap(), Created::Created);
    let located = found(&registry, record.session).await;
    assert_eq!(located.record, record);
    assert_eq!(located.owner, Owner::Living(a));
}

pub(crate) async fn operations_may_run_at_once(engine: &mut impl Engine) {
    let (registry, a) = (engine.registry(), node("a"));
    registry.join(&a).await.unwrap();
    let records: Vec<SessionRecord> = (0..200).map(|_| record(&a)).collect();
    let creations: Vec<_> = records
        .iter()
        .map(|record| registry.create(record, LONG))
        .collect();
    for created in join_all(creations).await {
        assert_eq!(created.unwrap(), Created::Created);
    }
    let lookups = records.iter().map(|record| registry.look_up(record.session));
    for (located, record) in join_all(lookups.collect()).await.into_iter().zip(&records) {
        assert_eq!(located.unwrap().expect("the session is known").record, *record);
    }
}

/// Runs all at once and returns their results in order.
pub(crate) async fn name_has_one_holder_while_its_lease_lasts(engine: &mut impl Engine) {
    let registry = engine.registry();
    let [first, second] = ["first", "second"].map(node);
    for node in [&first, &second] {
        registry.join(node).await.unwrap();
    }
    assert_eq!(registry.holder("files").await.unwrap(), None);
    assert_eq!(registry.hold("files", &first.id, LONG).await.unwrap(), first.id);
    assert_eq!(registry.hold("files", &second.id, LONG).await.unwrap(), first.id);
    assert_eq!(registry.hold("other", &second.id, LONG).await.unwrap(), second.id);
    // A node that does not hold it cannot let it go.
    registry.let_go("files", &second.id).await.unwrap();
    assert_eq!(registry.holder("files").await.unwrap(), Some(first.id.clone()));
    registry.leave(&first.id).await.unwrap();
    assert_eq!(registry.holder("files").await.unwrap(), Some(first.id.clone()));
    assert_eq!(registry.hold("files", &second.id, LONG).await.unwrap(), second.id);
    registry.let_go("files", &second.id).await.unwrap();
    assert_eq!(registry.holder("files").await.unwrap(), None);
}

pub(crate) async fn name_that_expired_has_no_holder(engine: &mut impl Engine) {
    let registry = engine.registry();
    let first = node("first");
    registry.join(&first).await.unwrap();
    registry.hold("task", &first.id, SHORT).await.unwrap();
    testkit::poll_until("the name expires", PATIENCE, async || {
        engine.tick(SHORT / 10);
        let holder = registry.holder("task").await?;
        Ok::<_, RegistryError>(holder.is_none().then_some(()))
    })
    .await
    .unwrap();
}

async fn lease(registry: &Arc<dyn Registry>, name: &str, node: &Node) -> NameLease {
    registry.lease_name(name, &node.id, false).await.unwrap()
}

pub(crate) async fn leased_name_stays_with_one_node_until_its_lease_ends(engine: &mut impl Engine) {
    let registry = engine.registry();
    let [first, second] = ["first", "second"].map(node);
    let held = |node: &Node| NameLease::Held(node.id.clone());
    for node in [&first, &second] {
        registry.join(node).await.unwrap();
    }
    engine.grow_old().await;
    assert_eq!(lease(&registry, "files", &first).await, held(&first));
    assert_eq!(lease(&registry, "files", &second).await, held(&first));
    assert_eq!(lease(&registry, "other", &second).await, held(&second));
    // The end of the node's own lease changes nothing: its lease of the name is another one.
    registry.leave(&first.id).await.unwrap();
    assert_eq!(lease(&registry, "files", &second).await, held(&first));
    registry.let_go("files", &second.id).await.unwrap();
    assert_eq!(registry.holder("files").await.unwrap(), Some(first.id.clone()));
    registry.let_go("files", &first.id).await.unwrap();
    assert_eq!(lease(&registry, "files", &second).await, held(&second));
    drop(registry);
    engine.end_leases().await;
    let registry = engine.registry();
    assert_eq!(lease(&registry, "files", &first).await, held(&first));
}

pub(crate) async fn leased_name_returns_to_its_node_after_a_loss(engine: &mut impl Engine) {
    let registry = engine.registry();
    let [first, second] = ["first", "second"].map(node);
    registry.join(&first).await.unwrap();
    engine.grow_old().await;
    let held = NameLease::Held(first.id.clone());
    assert_eq!(lease(&registry, "files", &first).await, held);
    drop(registry);
    engine.lose_everything().await;
    let registry = engine.registry();
    registry.join(&second).await.unwrap();
    // A node that does not have it waits while an earlier lease may last.
    let asked = lease(&registry, "files", &second).await;
    let NameLease::Unsettled(left) = asked else {
        // The file of one process has no earlier leases.
        assert_eq!(asked, NameLease::Held(second.id));
        return;
    };
    assert!(left <= LEASE, "{left:?}");
    let again = registry.lease_name("files", &first.id, true).await.unwrap();
    assert_eq!(again, held);
    assert_eq!(lease(&registry, "files", &second).await, held);
}

async fn join_all<F: Future + Send + 'static>(futures: Vec<F>) -> Vec<F::Output>
where
    F::Output: Send,
{
    let mut set = tokio::task::JoinSet::new();
    for (at, future) in futures.into_iter().enumerate() {
        set.spawn(async move { (at, future.await) });
    }
    let mut results = set.join_all().await;
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

async fn tokens(registry: &Arc<dyn Registry>, bucket: &str, demand: (u32, u32, u32)) -> TokenGrant {
    let (per_minute, want, spent) = demand;
    let demand = TokenDemand {
        per_minute,
        want,
        spent,
    };
    registry.lease_tokens(bucket, demand).await.unwrap()
}

pub(crate) async fn bucket_holds_the_tokens_of_a_minute(engine: &mut impl Engine) {
    let registry = engine.registry();
    let first = tokens(&registry, "ann", (3, 2, 0)).await;
    assert_eq!((first.granted, first.left, first.wait), (2, 1, Duration::ZERO));
    let rest = tokens(&registry, "ann", (3, 5, 0)).await;
    assert_eq!((rest.granted, rest.left), (1, 0));
    // The next one comes after a third of a minute.
    assert!(rest.wait > Duration::ZERO && rest.wait <= Duration::from_secs(20));
    assert_eq!(tokens(&registry, "ann", (3, 1, 0)).await.granted, 0);
    assert_eq!(tokens(&registry, "bob", (3, 1, 0)).await.granted, 1);
}

pub(crate) async fn tokens_that_were_spent_are_taken_from_the_bucket(engine: &mut impl Engine) {
    let registry = engine.registry();
    assert_eq!(tokens(&registry, "ann", (4, 0, 3)).await.left, 1);
    let grant = tokens(&registry, "ann", (4, 1, 3)).await;
    assert_eq!((grant.granted, grant.left), (0, 0));
    // Two more than there were are owed.
    assert!(grant.wait > Duration::from_secs(30) && grant.wait <= Duration::from_secs(45));
}

pub(crate) async fn bucket_refills_by_the_clock_of_the_engine(engine: &mut impl Engine) {
    const PER_MINUTE: u32 = 60_000;
    let registry = engine.registry();
    assert_eq!(
        tokens(&registry, "ann", (PER_MINUTE, PER_MINUTE, 0))
            .await
            .granted,
        PER_MINUTE
    );
    testkit::poll_until("a token comes", PATIENCE, async || {
        engine.tick(Duration::from_millis(5));
        let grant = tokens(&registry, "ann", (PER_MINUTE, 1, 0)).await;
        Ok::<_, RegistryError>((grant.granted == 1).then_some(()))
    })
    .await
    .unwrap();
}

async fn slots(registry: &Arc<dyn Registry>, node: &Node, (held, want): (u32, u32)) -> SlotGrant {
    let demand = SlotDemand { limit: 5, held, want };
    registry.lease_slots("ann", &node.id, demand).await.unwrap()
}

/// Joins two nodes. Three of the five slots go to the first, two to the second.
async fn two_nodes(registry: &Arc<dyn Registry>) -> (Node, Node) {
    let (a, b) = (node("a"), node("b"));
    registry.join(&a).await.unwrap();
    registry.join(&b).await.unwrap();
    let of_a = slots(registry, &a, (0, 3)).await;
    assert_eq!((of_a.granted, of_a.before, of_a.free), (3, 0, 2));
    let of_b = slots(registry, &b, (0, 4)).await;
    assert_eq!((of_b.granted, of_b.before, of_b.free), (2, 0, 0));
    (a, b)
}

pub(crate) async fn places_of_all_nodes_are_at_most_the_limit(engine: &mut impl Engine) {
    let registry = engine.registry();
    let (a, b) = two_nodes(&registry).await;
    // After a lost answer the demand is repeated, and changes nothing.
    let again = slots(&registry, &a, (0, 3)).await;
    assert_eq!((again.granted, again.before, again.free), (3, 3, 0));
    assert_eq!(slots(&registry, &a, (3, 5)).await.granted, 3);
    let given_back = slots(&registry, &a, (1, 1)).await;
    assert_eq!(
        (given_back.granted, given_back.before, given_back.free),
        (1, 3, 2)
    );
    assert_eq!(slots(&registry, &b, (2, 9)).await.granted, 4);
}

pub(crate) async fn places_of_a_node_end_with_its_lease(engine: &mut impl Engine) {
    let registry = engine.registry();
    let (_, b) = two_nodes(&registry).await;
    drop(registry);
    engine.end_leases().await;
    let registry = engine.registry();
    registry.join(&b).await.unwrap();
    assert_eq!(slots(&registry, &b, (2, 5)).await.granted, 5);
}

pub(crate) async fn places_of_a_node_that_left_return(engine: &mut impl Engine) {
    let registry = engine.registry();
    let (a, b) = two_nodes(&registry).await;
    registry.leave(&a.id).await.unwrap();
    assert_eq!(slots(&registry, &b, (2, 5)).await.granted, 5);
}

pub(crate) async fn places_in_use_are_noted_again_after_a_loss(engine: &mut impl Engine) {
    let registry = engine.registry();
    let (a, b) = two_nodes(&registry).await;
    drop(registry);
    engine.lose_everything().await;
    let registry = engine.registry();
    for node in [&a, &b] {
        registry.join(node).await.unwrap();
    }
    assert_eq!(slots(&registry, &b, (2, 4)).await.granted, 4);
    let late = slots(&registry, &a, (3, 3)).await;
    assert_eq!((late.granted, late.before, late.free), (3, 0, 0));
    assert_eq!(slots(&registry, &b, (2, 4)).await.granted, 2);
}
