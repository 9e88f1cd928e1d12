//! Three replicas at a real engine. The machines have a clock of the test; the engine has its own,
//! which the test reads and never expects to stand anywhere.

use std::sync::Arc;
use std::time::Duration;

use cluster::allowance::{Admission, Answer, Slots, Tokens};
use cluster::{RedisRegistry, RedisSettings, Registry};
use testkit::redis::Redis;

use crate::engine::node;

const NODES: u32 = 3;

/// Returns the engine's clock, in seconds.
fn time(redis: &Redis) -> f64 {
    let time = redis.command(&["TIME"]).unwrap();
    let numbers: Vec<f64> = time.lines().filter_map(|line| line.trim().parse().ok()).collect();
    let [.., seconds, micros] = numbers[..] else {
        panic!("{time}");
    };
    seconds + micros / 1e6
}

async fn connect(redis: &Redis) -> Arc<dyn Registry> {
    let settings = RedisSettings {
        command_timeout: Duration::from_secs(20),
        ..RedisSettings::new(&redis.url())
    };
    Arc::new(RedisRegistry::connect(&settings).await.unwrap())
}

#[tokio::test]
async fn three_replicas_at_one_engine_admit_one_limit() {
    const LIMIT: u32 = 1200;
    let redis = Redis::start().unwrap();
    let registry = connect(&redis).await;
    let mut replicas = [Tokens::new(LIMIT), Tokens::new(LIMIT), Tokens::new(LIMIT)];
    let (mut now, mut admitted, mut asks) = (Duration::ZERO, 0_u32, 0_u32);
    let began = time(&redis);
    // Five times the limit at once, and every round trip is over before the next request.
    for request in 0..5 * LIMIT {
        now += Duration::from_micros(100);
        let replica = &mut replicas[request as usize % NODES as usize];
        let answer = replica.handle_request(now, NODES);
        while let Some(demand) = replica.poll_demand(now, NODES) {
            asks += 1;
            let grant = registry.lease_tokens("caller", demand).await.unwrap();
            replica.handle_granted(now, grant);
        }
        let admission = match answer {
            Answer::Now(admission) => admission,
            Answer::Later(id) => {
                let (decided, admission) = replica.poll_decision().unwrap();
                assert_eq!(decided, id);
                admission
            }
        };
        admitted += u32::from(admission == Admission::Admitted);
    }
    let minutes = (time(&redis) - began) / 60.0;
    let most = f64::from(LIMIT) * (1.0 + minutes) * 1.05;
    assert!(
        f64::from(admitted) <= most,
        "{admitted} admitted in {minutes} minutes"
    );
    assert!(admitted * 10 >= LIMIT * 9, "{admitted} admitted");
    assert!(asks < admitted, "{asks} asks for {admitted} requests");
}

#[tokio::test]
async fn places_of_a_replica_whose_lease_ended_return() {
    let redis = Redis::start().unwrap();
    let registry = connect(&redis).await;
    let (dying, living) = (node("dying"), node("living"));
    for node in [&dying, &living] {
        registry.join(node).await.unwrap();
    }
    let now = Duration::from_secs(1);
    let mut machine = Slots::new(4);
    for _ in 0..4 {
        machine.handle_request(now, 2);
    }
    let demand = machine.poll_demand(now, 2).unwrap();
    let grant = registry.lease_slots("caller", &dying.id, demand).await.unwrap();
    assert_eq!(grant.granted, 4);
    let mut machine = Slots::new(4);
    machine.handle_request(now, 2);
    let demand = machine.poll_demand(now, 2).unwrap();
    let refused = registry.lease_slots("caller", &living.id, demand).await.unwrap();
    assert_eq!((refused.granted, refused.free), (0, 0));
    redis
        .command(&["DEL", &format!("rialto:node:{}", dying.id)])
        .unwrap();
    let granted = registry.lease_slots("caller", &living.id, demand).await.unwrap();
    assert_eq!((granted.granted, granted.free), (1, 3));
}
