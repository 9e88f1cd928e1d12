//! What a replica of a fleet shows of it: `/ready`, `/metrics`, and the start that the page shows.

mod documents {
    #[expect(dead_code, reason = "this test follows no links")]
    pub(crate) mod markdown;
}

use std::os::unix::fs::PermissionsExt as _;

use documents::markdown;
use serde_json::{Value, json};
use testkit::redis::Redis;
use testkit::rialto::Launcher;
use testkit::{Failure, McpClient, PATIENCE, Result, Rialto, poll_until};

const PAGE: &str = include_str!("../../../docs/fleet.md");

fn new_key() -> Result<String> {
    let key = cluster::ClusterKey::generate().map_err(|error| Failure::new(error.to_string()))?;
    Ok(key.to_text())
}

/// A replica with this key, of the fleet that the page configures.
fn replica(redis: &Redis, key: &str, name: &str) -> Result<Launcher> {
    let config = quick_start()
        .replace("redis://127.0.0.1:6379", &redis.url())
        .replace("rialto demo-server", "'{stub}'");
    assert!(
        config.contains(&redis.url()) && config.contains("{stub}"),
        "{config}"
    );
    let launcher = Rialto::launcher()
        .config(&config)
        .env("RIALTO_CLUSTER_NAME", name);
    let file = launcher.dir().join("cluster.key");
    std::fs::write(&file, key)?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
    Ok(launcher)
}

/// The file that the page lets its reader write.
fn quick_start() -> String {
    let blocks = markdown::blocks(PAGE, "sh");
    let block = blocks
        .iter()
        .find(|block| block.contains("rialto cluster key > cluster.key"))
        .expect("the page shows a start");
    let (_, rest) = block
        .split_once("cat > destinations.yml <<'END'\n")
        .expect("a file is written");
    let (file, commands) = rest.split_once("END\n").expect("the file ends");
    assert_eq!(commands.matches("rialto serve --listen").count(), 3);
    assert_eq!(commands.matches("RIALTO_CLUSTER_NAME=").count(), 3);
    file.to_owned()
}

async fn get(client: &McpClient, path: &str) -> Result<Value> {
    Ok(client.send("GET", path, &[], "").await?.reply().await?.answer())
}

/// The value of a metric without labels, or with these.
fn sample(page: &str, name: &str) -> Option<f64> {
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line?.parse().ok()
}

#[tokio::test]
async fn three_replicas_of_the_page_answer_for_one_session_and_show_each_other() -> Result<()> {
    let redis = Redis::start()?;
    let key = new_key()?;
    let first = replica(&redis, &key, "replica-1")?.start().await?;
    let second = replica(&redis, &key, "replica-2")?.start().await?;
    let third = replica(&redis, &key, "replica-3")?.start().await?;
    let client = first.session_of("demo").await?;
    let session = client.session().expect("a session");
    let elsewhere = second.client_of("demo").await?;
    elsewhere.set_session(Some(&session));
    let reply = elsewhere.request(2, "tools/list", json!({})).await?.answer();
    assert!(reply["result"]["tools"].is_array(), "{reply}");

    for rialto in [&first, &second, &third] {
        let client = rialto.client_of("demo").await?;
        let cluster = poll_until("both peers are seen", PATIENCE, async || {
            let ready = get(&client, "/ready").await?;
            let cluster = ready["cluster"].clone();
            Result::Ok((cluster["peers"] == 2).then_some(cluster))
        })
        .await?;
        assert_eq!(cluster["engine"], "reachable", "{cluster}");
        let lease = cluster["lease_ms"].as_u64().unwrap_or_default();
        assert!(lease > 0 && lease <= 10_000, "{cluster}");
        let node = cluster["node"].as_str().unwrap_or_default();
        assert!(node.starts_with("replica-"), "{cluster}");
    }
    let page = elsewhere.metrics().await?;
    let answered = r#"rialto_cluster_proxied_requests_total{outcome="answered"}"#;
    assert!(
        sample(&page, answered).is_some_and(|count| count >= 1.0),
        "{page}"
    );
    assert_eq!(sample(&page, "rialto_cluster_nodes"), Some(3.0), "{page}");
    assert_eq!(sample(&page, "rialto_cluster_engine_reachable"), Some(1.0));
    assert!(sample(&page, "rialto_cluster_engine_operations_total").is_some_and(|count| count >= 2.0));
    assert!(sample(&page, "rialto_cluster_lease_seconds").is_some_and(|lease| lease > 0.0));
    Ok(())
}

#[tokio::test]
async fn engine_that_is_away_is_shown_and_its_replica_stays_ready() -> Result<()> {
    let mut redis = Redis::start()?;
    let rialto = replica(&redis, &new_key()?, "replica-1")?.start().await?;
    let client = rialto.session_of("demo").await?;
    redis.kill()?;
    let ready = poll_until("the engine is away", PATIENCE, async || {
        let ready = get(&client, "/ready").await?;
        Result::Ok((ready["cluster"]["engine"] == "away").then_some(ready))
    })
    .await?;
    assert_eq!(ready["ready"], true, "{ready}");
    client.expect_echo("still here").await?;
    let page = client.metrics().await?;
    assert_eq!(sample(&page, "rialto_cluster_engine_reachable"), Some(0.0));
    assert!(sample(&page, "rialto_cluster_engine_failures_total").is_some_and(|count| count >= 1.0));
    Ok(())
}

#[tokio::test]
async fn rialto_without_a_fleet_shows_none() -> Result<()> {
    let rialto = Rialto::with_config("destinations: { demo: { command: '{stub}' } }\n").await?;
    let client = rialto.session_of("demo").await?;
    let ready = get(&client, "/ready").await?;
    assert!(ready.get("cluster").is_none(), "{ready}");
    assert_eq!(sample(&client.metrics().await?, "rialto_cluster_nodes"), None);
    Ok(())
}
