//! Spans: that they reach a collector, that they hang together, and that servers receive the trace
//! context.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::collector::Collector;
use testkit::{Result, Rialto};

const CONTEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const OTHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

async fn traced(collector: &Collector) -> Result<Rialto> {
    Rialto::launcher()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint())
        .stub(&[])
        .start()
        .await
}

/// What the server was given as `_meta` with the call of this marker.
fn meta_of(rialto: &Rialto, marker: &str) -> Value {
    let heard = rialto.journal().received("tools/call");
    let line = heard.iter().find(|line| line.contains(marker));
    let line = line.unwrap_or_else(|| panic!("{marker} in {heard:?}"));
    let message: Value = serde_json::from_str(line).expect("the server is given JSON");
    message["params"]["_meta"].clone()
}

fn call(marker: &str, meta: Option<Value>) -> String {
    let mut params = json!({"name": "echo", "arguments": {"marker": marker}});
    if let Some(meta) = meta {
        params["_meta"] = meta;
    }
    json!({"jsonrpc": "2.0", "id": "call-1", "method": "tools/call", "params": params}).to_string()
}

#[tokio::test]
async fn a_span_of_a_call_reaches_the_collector_and_the_server_continues_the_trace() -> Result<()> {
    let collector = Collector::start().await?;
    let rialto = traced(&collector).await?;
    let client = rialto
        .session()
        .await?
        .with_header("traceparent", CONTEXT)
        .with_header("tracestate", "vendor=1");
    client
        .post(call("in-header", None))
        .await?
        .reply()
        .await?
        .expect_status(200)?;
    let span = collector.wait_for("tools/call echo").await;
    assert_eq!(span.trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(span.parent_span_id, "00f067aa0ba902b7");
    assert_eq!(span.kind, 2, "a server's span");
    for (key, value) in [
        ("mcp.method.name", "tools/call"),
        ("mcp.protocol.era", "legacy"),
        ("gen_ai.tool.name", "echo"),
        ("jsonrpc.request.id", "call-1"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(
            span.attributes.get(key).map(String::as_str),
            Some(value),
            "{span:?}"
        );
    }
    let session = client.session().expect("it has one");
    assert!(
        !format!("{span:?}").contains(&session),
        "a session's id is a secret"
    );
    let meta = meta_of(&rialto, "in-header");
    assert_eq!(
        meta["traceparent"],
        format!("00-{}-{}-01", span.trace_id, span.span_id)
    );
    assert_eq!(meta["tracestate"], "vendor=1");
    Ok(())
}

#[tokio::test]
async fn the_context_of_the_body_counts_and_what_is_not_sampled_is_only_passed_on() -> Result<()> {
    let collector = Collector::start().await?;
    let rialto = traced(&collector).await?;
    let client = rialto.session().await?.with_header("traceparent", CONTEXT);
    let quiet = call("quiet", Some(json!({"traceparent": UNSAMPLED})));
    client.post(quiet).await?.reply().await?.expect_status(200)?;
    let loud = call("loud", Some(json!({"traceparent": OTHER, "mine": 1})));
    client.post(loud).await?.reply().await?.expect_status(200)?;
    let span = collector.wait_for("tools/call echo").await;
    assert_eq!(span.trace_id, "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(meta_of(&rialto, "loud")["mine"], 1);
    let passed_on = meta_of(&rialto, "quiet")["traceparent"].to_string();
    assert!(
        passed_on.contains("0af7651916cd43dd8448eb211c80319c") && passed_on.ends_with("-00\""),
        "{passed_on}"
    );
    let calls = collector
        .spans()
        .into_iter()
        .filter(|span| span.name == "tools/call echo");
    assert_eq!(calls.count(), 1);
    Ok(())
}

#[tokio::test]
async fn failures_and_refusals_are_errors_and_a_stream_ends_its_span() -> Result<()> {
    let collector = Collector::start().await?;
    let rialto = traced(&collector).await?;
    let client = rialto.session().await?;
    client
        .call(1, "exit", json!({"code": 3}))
        .await?
        .expect_failed(503)?;
    let span = collector.wait_for("tools/call exit").await;
    assert_eq!(
        (span.status, span.attributes["error.type"].as_str()),
        (2, "upstream_exited")
    );
    assert_eq!(span.parent_span_id, "", "it begins a trace");
    let progress = json!({"n": 3, "marker": "p", "every_ms": 1});
    let reply = client
        .open_call(2, "progress", progress, 1)
        .await?
        .reply()
        .await?;
    assert!(!reply.events.is_empty());
    let span = collector.wait_for("tools/call progress").await;
    assert_eq!(span.status, 0, "{span:?}");
    Ok(())
}

#[tokio::test]
async fn without_a_collector_a_header_is_passed_on_and_a_body_stays_as_it_is() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?.with_header("traceparent", CONTEXT);
    client
        .post(call("from-header", None))
        .await?
        .reply()
        .await?
        .expect_status(200)?;
    assert_eq!(meta_of(&rialto, "from-header"), json!({"traceparent": CONTEXT}));
    let own = call("from-body", Some(json!({"traceparent": OTHER})));
    client.post(own).await?.reply().await?.expect_status(200)?;
    assert_eq!(meta_of(&rialto, "from-body"), json!({"traceparent": OTHER}));
    let page = client.metrics().await?;
    assert!(page.contains("rialto_spans_lost_total 0"), "{page}");
    Ok(())
}

#[tokio::test]
async fn a_collector_that_is_away_costs_spans_and_nothing_else() -> Result<()> {
    // A port without a listener: it was free a moment ago, and loopback refuses at once.
    let gone = Collector::start().await?.endpoint();
    let rialto = Rialto::launcher()
        .env("RIALTO_OTLP_ENDPOINT", &gone)
        .stub(&[])
        .start()
        .await?;
    let client = rialto.session().await?;
    for number in 0..20 {
        let marker = format!("m{number}");
        assert_eq!(
            client.call(1, "echo", json!({"marker": marker})).await?.text(),
            marker
        );
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let page = client.metrics().await?;
        let lost = page
            .lines()
            .find_map(|line| line.strip_prefix("rialto_spans_lost_total ")?.parse::<u64>().ok());
        if lost >= Some(21) {
            return Ok(());
        }
        assert!(tokio::time::Instant::now() < deadline, "{page}");
    }
}
