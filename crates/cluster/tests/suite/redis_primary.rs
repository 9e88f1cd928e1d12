//! Engines whose primary moves: behind Sentinels, and in a cluster.

use std::sync::Arc;

use cluster::redis::{ConnectError, RedisRegistry};
use cluster::{Created, Registry, RegistryError, Renewed};
use testkit::redis::{Redis, RedisCluster, Sentinel};
use testkit::{PATIENCE, poll_until};
use tokio::task::JoinSet;

use crate::cases::{LONG, found, node, record, session_of};
use crate::redis_faults::{other_program, refused, settings};

/// Waits until a copy has as many keys as its primary.
async fn wait_for_copy(primary: &Redis, copy: &Redis) {
    let wanted = primary.command(&["DBSIZE"]).unwrap();
    poll_until("the copy has every key", PATIENCE, async || {
        Ok::<_, testkit::Failure>((copy.command(&["DBSIZE"])? == wanted).then_some(()))
    })
    .await
    .unwrap();
}

/// Waits until the registry answers after its primary moved, and checks that it kept a session.
async fn assert_goes_on(registry: &RedisRegistry, stored: &cluster::SessionRecord) {
    let owner = stored.owner.clone().unwrap();
    let renewed = poll_until("the new primary answers", PATIENCE * 3, async || {
        match registry.renew(&owner).await {
            Ok(renewed) => Ok(Some(renewed)),
            Err(RegistryError::Unreachable(_)) => Ok(None),
            Err(other) => Err(other),
        }
    })
    .await
    .unwrap();
    // The fail-over may have taken longer than a lease.
    assert!(matches!(renewed, Renewed::Renewed | Renewed::Unknown));
    let shared: Arc<dyn Registry> = Arc::new(registry.clone());
    assert_eq!(found(&shared, stored.session).await.record, *stored);
    let later = record(&node("later"));
    assert_eq!(registry.create(&later, LONG).await.unwrap(), Created::Created);
}

#[tokio::test]
async fn primary_that_died_is_replaced_by_the_one_that_the_sentinel_names() {
    let mut primary = Redis::start().unwrap();
    let of_primary = format!("127.0.0.1 {}", primary.port());
    let copy = Redis::start_with(&["--replicaof", &of_primary]).unwrap();
    let sentinel = Sentinel::start(&primary, "").unwrap();
    // The one that never answers delays nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let others = format!("127.0.0.1:1,{},127.0.0.1:", silent.local_addr().unwrap());
    let url = sentinel.url().replace("127.0.0.1:", &others);
    let registry = RedisRegistry::connect(&settings(&url)).await.unwrap();
    let shared: Arc<dyn Registry> = Arc::new(registry.clone());
    let stored = session_of(&shared, &node("a")).await;
    wait_for_copy(&primary, &copy).await;
    sentinel.wait_for_copy(&copy).unwrap();
    primary.kill().unwrap();
    assert_goes_on(&registry, &stored).await;
    assert!(
        copy.command(&["INFO", "replication"])
            .unwrap()
            .contains("role:master")
    );
}

#[tokio::test]
async fn slot_of_a_cluster_is_followed_to_the_copy_that_replaces_its_node() {
    let mut cluster = RedisCluster::start(3).unwrap();
    let primary = cluster.primary_of("{rialto}").unwrap();
    let copy = cluster.add_copy(primary).unwrap();
    let registry = RedisRegistry::connect(&settings(&cluster.url(&[0, 1, 2])))
        .await
        .unwrap();
    let shared: Arc<dyn Registry> = Arc::new(registry.clone());
    let stored = session_of(&shared, &node("a")).await;
    wait_for_copy(cluster.node(primary), cluster.node(copy)).await;
    // First as an operator moves it, then as a machine dies.
    let moved = cluster.node(copy).command(&["CLUSTER", "FAILOVER"]).unwrap();
    assert_eq!(moved, "+OK");
    poll_until("the copy is the primary", PATIENCE, async || {
        Ok::<_, testkit::Failure>((cluster.primary_of("{rialto}")? == copy).then_some(()))
    })
    .await
    .unwrap();
    assert_goes_on(&registry, &stored).await;
    wait_for_copy(cluster.node(copy), cluster.node(primary)).await;
    cluster.kill(copy).unwrap();
    assert_goes_on(&registry, &stored).await;
    assert_eq!(cluster.primary_of("{rialto}").unwrap(), primary);
}

#[tokio::test]
async fn every_key_of_a_cluster_has_one_slot() {
    let cluster = RedisCluster::start(3).unwrap();
    let registry = RedisRegistry::connect(&settings(&cluster.url(&[0])))
        .await
        .unwrap();
    let shared: Arc<dyn Registry> = Arc::new(registry);
    for _ in 0..20 {
        session_of(&shared, &node("a")).await;
    }
    let primary = cluster.primary_of("{rialto}").unwrap();
    for number in 0..3 {
        let size = cluster.node(number).command(&["DBSIZE"]).unwrap();
        assert_eq!(size == ":0", number != primary, "{number}: {size}");
    }
}

#[tokio::test]
async fn url_and_engine_have_to_agree_about_cluster_mode() {
    let node = Redis::start_with(&["--cluster-enabled", "yes", "--cluster-port", "PORT"]).unwrap();
    let (error, text) = refused(&node.url()).await;
    assert!(matches!(error, ConnectError::ClusterMode { .. }), "{text}");
    assert!(text.contains("redis+cluster://"), "{text}");
    // It has no slots yet.
    let (error, text) = refused(&node.url().replace("redis://", "redis+cluster://")).await;
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{text}");
    assert!(text.contains("Hash slot not served"), "{text}");
    let single = Redis::start().unwrap();
    let (error, text) = refused(&single.url().replace("redis://", "redis+cluster://")).await;
    assert!(matches!(error, ConnectError::NoCluster { .. }), "{text}");
    assert!(text.contains("use redis://"), "{text}");
}

#[tokio::test]
async fn faults_of_sentinels_are_named_with_their_fix() {
    let primary = Redis::start().unwrap();
    let open = Sentinel::start(&primary, "").unwrap();
    let (error, text) = refused(&open.url().replace("/mine", "/other")).await;
    assert!(matches!(error, ConnectError::UnknownPrimary { .. }), "{text}");
    assert!(text.contains("sentinel monitor"), "{text}");

    let closed = Sentinel::start(&primary, "requirepass secret").unwrap();
    for url in [
        closed.url(),
        format!("{}?sentinel_password=secret-not", closed.url()),
    ] {
        let (error, text) = refused(&url).await;
        assert!(
            matches!(error, ConnectError::SentinelCredentials { .. }),
            "{text}"
        );
        assert!(text.contains("?sentinel_password="), "{text}");
    }
    let url = format!("{}?sentinel_password=secret", closed.url());
    RedisRegistry::connect(&settings(&url)).await.unwrap();

    // The answer of one Sentinel tells more than that another does not listen.
    let both = closed.url().replace("127.0.0.1:", "127.0.0.1:1,127.0.0.1:");
    let (error, text) = refused(&both).await;
    assert!(
        matches!(error, ConnectError::SentinelCredentials { .. }),
        "{text}"
    );
    let (error, text) = refused("redis+sentinel://:secret@127.0.0.1:1/mine").await;
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{text}");

    let mut tasks = JoinSet::new();
    let other = other_program(&mut tasks, Some(b"-ERR what\r\n")).await;
    let url = format!("{}/mine", other.replace("redis://", "redis+sentinel://"));
    let (error, text) = refused(&url).await;
    assert!(matches!(error, ConnectError::OtherProgram { .. }), "{text}");
}

#[tokio::test]
async fn engine_behind_a_sentinel_has_credentials_of_its_own() {
    let primary = Redis::start_with(&["--requirepass", "secret"]).unwrap();
    let sentinel = Sentinel::start(&primary, "sentinel auth-pass mine secret").unwrap();
    let (error, text) = refused(&sentinel.url()).await;
    assert!(matches!(error, ConnectError::Credentials { .. }), "{text}");
    let url = sentinel.url().replace("://", "://:secret@");
    RedisRegistry::connect(&settings(&url)).await.unwrap();
}
