//! Limits in a fleet: bytes that wait for a slow reader count where they are, and limits of the whole
//! fleet go on by share while the engine is away.

use serde_json::json;
use testkit::client::raw_http;
use testkit::{FleetConfig, McpClient, PATIENCE, Result, poll_until, wait_until};

use super::fixture::{id_of, moved, session_at};

const MIB: usize = 1 << 20;
/// `buffered_bytes` below.
const BUDGET: usize = 16 * MIB;
/// The answer to each call that is not read.
const ANSWER: usize = 6 * MIB;
const READERS: usize = 12;

/// Returns a figure of the metrics, 0 where it is missing.
async fn figure(client: &McpClient, name: &str) -> Result<f64> {
    let page = client.metrics().await?;
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(value.and_then(|value| value.parse().ok()).unwrap_or(0.0))
}

#[tokio::test]
async fn answers_that_wait_at_their_owner_for_another_replica_stay_within_its_budget() -> Result<()> {
    let config = FleetConfig::of_stub("process: shared, max_sessions: 50")
        .replicas(2)
        .more("limits: { buffered_bytes: 16MiB }\nmax_message_bytes: 8MiB");
    let fleet = config.start().await?;
    let owner = session_at(&fleet, 0).await?;
    let neighbour = moved(&fleet, &session_at(&fleet, 0).await?, 1).await?;
    let before = fleet.replica(0).rialto().memory().peak;
    let journal = fleet.journal();
    let mut slow = Vec::new();
    for reader in 0..READERS {
        let session = id_of(&session_at(&fleet, 0).await?);
        let mut raw = fleet.replica(1).rialto().raw().await?;
        let marker = format!("slow-{reader}");
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "big", "arguments": {"bytes": ANSWER, "marker": marker}}});
        raw.write(raw_http::post("/one/mcp", Some(&session), call.to_string()))
            .await?;
        wait_until("the call runs", PATIENCE, || {
            (journal.executions(&marker) == 1).then_some(())
        })
        .await;
        neighbour.expect_echo(&format!("beside {reader}")).await?;
        slow.push(raw);
    }
    // Two answers fit, and the newest is spared.
    let closed = r#"rialto_limit_hits_total{limit="buffered_bytes"}"#;
    poll_until("the streams of slow readers are reset", PATIENCE, async || {
        let closed = figure(&owner, closed).await?;
        Result::Ok((closed >= (READERS - 3) as f64).then_some(()))
    })
    .await?;
    let held = figure(&owner, "rialto_buffered_bytes").await?;
    assert!(held <= (BUDGET + ANSWER) as f64, "{held}");
    let peak = fleet.replica(0).rialto().memory().peak;
    assert!(peak < before + (72 << 10), "{before} → {peak} KiB");
    // Neither the connection between the replicas nor another session was ended with them.
    neighbour.expect_echo("afterwards").await?;
    let mut newest = slow.pop().expect("there is one");
    assert!(newest.read_response().await?.body.len() > ANSWER);
    drop(slow);
    poll_until("nothing is counted any more", PATIENCE, async || {
        let held = figure(&owner, "rialto_buffered_bytes").await?;
        Result::Ok((held == 0.0).then_some(()))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn limits_that_a_replica_decides_by_its_share_are_counted() -> Result<()> {
    const COUNTER: &str = "rialto_cluster_limits_by_share_total";
    let config = FleetConfig::of_stub("process: shared").replicas(2);
    let fleet = config
        .more("limits: { requests_per_minute: 60000 }")
        .start()
        .await?;
    let clients = [session_at(&fleet, 0).await?, session_at(&fleet, 1).await?];
    for client in &clients {
        client.expect_echo("before").await?;
        assert!(client.metrics().await?.contains(&format!("\n{COUNTER} 0\n")));
    }
    fleet.replica(0).engine_link().cut();
    poll_until("the replica decides by its share", PATIENCE, async || {
        clients[0].expect_echo("cut off").await?;
        Result::Ok((figure(&clients[0], COUNTER).await? > 0.0).then_some(()))
    })
    .await?;
    assert_eq!(
        figure(&clients[1], COUNTER).await?,
        0.0,
        "the other one asks the engine"
    );
    fleet.replica(0).engine_link().mend();
    let rialto = fleet.replica(0).rialto();
    poll_until("the engine decides again", PATIENCE, async || {
        clients[0].expect_echo("mended").await?;
        let said = rialto.stderr().join("\n");
        assert!(said.contains("this replica admits its share"), "{said}");
        Result::Ok(
            said.contains("limits hold for the whole fleet again")
                .then_some(()),
        )
    })
    .await
}
