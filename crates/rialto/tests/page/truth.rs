//! Whether the page tells what is.

use std::net::TcpListener;

use serde_json::{Value, json};
use testkit::{McpClient, Result, Rialto};
use tokio::task::JoinSet;

use crate::browser::{Script, play};
use crate::fixture::{client, configuration, echo, gateway, settled};

/// Returns the sum of all samples of a metric of one destination.
fn sum(metrics: &str, name: &str, destination: &str) -> u64 {
    let label = format!("destination=\"{destination}\"");
    let samples = metrics
        .lines()
        .filter(|line| line.starts_with(name) && line.contains(&label));
    let values = samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum::<f64>().round() as u64
}

async fn messages(client: &McpClient) -> Result<u64> {
    Ok(sum(&client.metrics().await?, "rialto_calls_total{", "files"))
}

#[tokio::test]
async fn figures_equal_the_metrics_while_clients_call() -> Result<()> {
    let rialto = gateway().await?;
    let watcher = rialto.client_of("files").await?;
    let mut callers = JoinSet::new();
    let mut sessions = Vec::new();
    for number in 0..3 {
        let caller = client(&rialto, "files", &format!("caller {number}")).await?;
        sessions.push(caller.clone());
        callers.spawn(async move { echo(&caller, 150).await });
    }
    let mut script = Script::start("figures", rialto.address(), &json!({ "name": "files" }))?;
    assert_eq!(script.next().await?, json!({ "open": true }));
    for _ in 0..5 {
        let before = messages(&watcher).await?;
        script.tell(&json!({ "messages": before }))?;
        let shown = script.next().await?;
        let after = messages(&watcher).await?;
        let seen = shown["messages"].as_u64().unwrap_or_default();
        assert!(before <= seen && seen <= after, "{before} <= {seen} <= {after}");
        assert_eq!(shown["sessions"], 3, "{shown}");
    }
    while let Some(ended) = callers.join_next().await {
        ended.expect("the caller does not panic")?;
    }
    // A failure that is counted by its reason: the server does not know the tool in time.
    let metrics = watcher.metrics().await?;
    let last = sum(&metrics, "rialto_calls_total{", "files");
    script.tell(&json!({ "messages": last }))?;
    let shown = script.next().await?;
    assert_eq!(shown["messages"], last, "{shown}");
    assert_eq!(
        shown["in_flight"],
        sum(&metrics, "rialto_calls_in_flight{", "files")
    );
    assert_eq!(shown["sessions"], sum(&metrics, "rialto_sessions{", "files"));
    assert_eq!(shown["parked"], sum(&metrics, "rialto_parked_calls{", "files"));
    script.tell(&Value::Null)?;
    assert_eq!(script.end().await?["faults"], json!([]));
    Ok(())
}

/// A call through an aggregate is one call, and so is one to its member.
#[tokio::test]
async fn overview_counts_each_call_once() -> Result<()> {
    let rialto = gateway().await?;
    echo(&client(&rialto, "files", "Direct").await?, 3).await?;
    let through = client(&rialto, "office", "Through").await?;
    for number in 1..=2 {
        let text = json!({ "text": "by way of the aggregate" });
        let reply = through.call(number, "files__echo", text).await?;
        assert_eq!(reply.status, 200, "{}", reply.body_text());
    }
    let seen = play("totals", rialto.address(), &json!({ "calls": 5 })).await?;
    assert_eq!(seen["failures"], "0");
    Ok(())
}

#[tokio::test]
async fn page_survives_a_restart_and_says_so() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let start = |listener: &TcpListener| -> Result<Rialto> {
        Rialto::launcher()
            .config(&configuration())
            .start_on(listener.try_clone()?)
    };
    let first = start(&listener)?;
    settled(&first).await?;
    let mut script = Script::start("restart", first.address(), &json!({}))?;
    let before = script.next().await?;
    assert!(
        before["headline"]
            .as_str()
            .is_some_and(|text| text.contains("search")),
        "{before}"
    );
    drop(first);
    let lost = script.next().await?;
    assert!(
        lost["lost"]
            .as_str()
            .is_some_and(|text| text.contains("Rialto does not answer")),
        "{lost}"
    );
    assert!(
        lost["still"].as_u64().is_some_and(|cards| cards > 5),
        "the last figures stay: {lost}"
    );
    let second = start(&listener)?;
    let seen = script.end().await?;
    assert_eq!(seen["faults"], json!([]));
    let notice = seen["notice"].as_str().unwrap_or_default();
    assert!(notice.contains(&format!("process {}", second.pid())), "{notice}");
    Ok(())
}

#[tokio::test]
async fn thousand_sessions_stay_few_elements() -> Result<()> {
    const SESSIONS: usize = 1000;
    let rialto = gateway().await?;
    let mut opened = JoinSet::new();
    for part in 0..10 {
        let address = rialto.url_of("files");
        opened.spawn(async move {
            for number in 0..SESSIONS / 10 {
                let client = McpClient::connect(&address).await?;
                let info = json!({ "name": format!("client {part}-{number}"), "version": "1" });
                let params =
                    json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
                client.request(0, "initialize", params).await?;
            }
            Result::<()>::Ok(())
        });
    }
    while let Some(ended) = opened.join_next().await {
        ended.expect("the client does not panic")?;
    }
    let seen = play("many_sessions", rialto.address(), &json!({ "sessions": "1,000" })).await?;
    assert_eq!(seen["sessions"], SESSIONS);
    assert_eq!(seen["pages"], 20);
    assert_eq!(seen["found"], 1);
    assert!(seen["nodes"].as_u64().is_some_and(|nodes| nodes < 3000), "{seen}");
    Ok(())
}

#[tokio::test]
async fn ten_thousand_calls_stay_few_elements() -> Result<()> {
    let rialto = gateway().await?;
    let options = json!({ "name": "files", "calls": 12_000 });
    let seen = play("many_calls", rialto.address(), &options).await?;
    assert!(
        seen["listed"]
            .as_str()
            .is_some_and(|text| text.starts_with("10,000 calls listed")),
        "{seen}"
    );
    assert!(
        seen["filtered"]
            .as_str()
            .is_some_and(|text| text.starts_with("100 calls listed")),
        "{seen}"
    );
    assert_eq!(seen["exported"], 10_000);
    assert_eq!(seen["newest"], 11_999);
    for screen in ["calls", "overview"] {
        assert!(
            seen["nodes"][screen].as_u64().is_some_and(|nodes| nodes < 3000),
            "{seen}"
        );
    }
    Ok(())
}
