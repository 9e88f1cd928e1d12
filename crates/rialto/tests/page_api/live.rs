//! The events of the page: how often they come, and what they hold.

use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::client::EventStream;
use testkit::{PATIENCE, Result, Rialto, poll_until};

use crate::fixture::{STUB, act, events, get, json, state};

/// Returns the next event of this kind.
async fn next(stream: &mut EventStream, kind: &str) -> Result<Value> {
    loop {
        let event = stream.next().await?.expect("the stream goes on");
        if event.event.as_deref() == Some(kind) {
            return Ok(event.json());
        }
    }
}

/// Returns the next list of calls that is not empty.
async fn next_calls(stream: &mut EventStream) -> Result<Value> {
    loop {
        let calls = next(stream, "calls").await?;
        if calls["calls"].as_array().is_some_and(|calls| !calls.is_empty()) {
            return Ok(calls);
        }
    }
}

#[tokio::test]
async fn page_gets_the_state_and_each_ended_call() -> Result<()> {
    let rialto = Rialto::with_config(STUB).await?;
    let client = rialto.session_of("files").await?;
    client.expect_echo("before").await?;
    let mut stream = events(&rialto).await?;
    let first = next(&mut stream, "state").await?;
    assert_eq!(first["destinations"][0]["name"], "files");
    assert_eq!(first["destinations"][0]["session_list"], serde_json::json!([]));
    let replay = next(&mut stream, "calls").await?;
    assert_eq!(
        (&replay["replay"], &replay["calls"]),
        (&true.into(), &serde_json::json!([]))
    );
    client.expect_echo("seen").await?;
    let calls = next_calls(&mut stream).await?;
    let call = &calls["calls"][0];
    assert_eq!(call["tool"], "echo");
    assert_eq!(call["outcome"], "ok");
    assert_eq!(call["destination"], "files");
    assert!(
        call["client"]
            .as_str()
            .is_some_and(|name| name.starts_with("testkit")),
        "{call}"
    );
    assert_eq!(call.get("request_body"), None, "bodies are for `audit.bodies`");
    // A page that comes later is shown what the first one has.
    let mut second = events(&rialto).await?;
    let replay = next(&mut second, "calls").await?;
    assert_eq!(replay["calls"], calls["calls"]);
    Ok(())
}

#[tokio::test]
async fn events_are_coalesced_and_skipped_calls_are_counted() -> Result<()> {
    let rialto = Rialto::with_config(STUB).await?;
    let client = rialto.session_of("files").await?;
    let mut stream = events(&rialto).await?;
    next(&mut stream, "calls").await?;
    let began = Instant::now();
    for number in 0..400 {
        client.expect_echo(&number.to_string()).await?;
    }
    client
        .call(9, "no_such_tool", serde_json::json!({ "marker": "last" }))
        .await?;
    let (mut events, mut listed, mut skipped) = (0_u32, 0, 0);
    let mut has_failure = false;
    while listed + skipped < 401 {
        let calls = next(&mut stream, "calls").await?;
        events += 1;
        let list = calls["calls"].as_array().expect("a list");
        listed += list.len() as u64;
        has_failure |= list.iter().any(|call| call["tool"] == "no_such_tool");
        skipped += calls["skipped"].as_u64().expect("a number");
    }
    assert_eq!(listed + skipped, 401);
    assert!(has_failure);
    // One look each quarter of a second, and one that was due.
    let looks = began.elapsed().as_millis() / 250 + 2;
    assert!(u128::from(events) <= looks, "{events} events in {looks} looks");
    Ok(())
}

#[tokio::test]
async fn ring_keeps_within_the_configured_bytes() -> Result<()> {
    let config = format!("limits: {{ ended_calls_bytes: 4KiB }}\n{STUB}");
    let rialto = Rialto::with_config(&config).await?;
    assert_eq!(state(&rialto).await?["page"]["calls_kept_bytes"], 4096);
    let client = rialto.session_of("files").await?;
    let mut stream = events(&rialto).await?;
    next(&mut stream, "calls").await?;
    for number in 0..40 {
        client.expect_echo(&number.to_string()).await?;
    }
    next_calls(&mut stream).await?;
    let mut second = events(&rialto).await?;
    let replay = next(&mut second, "calls").await?;
    let kept = replay["calls"].to_string().len();
    assert!(kept <= 4096, "{kept}");
    assert!(replay["calls"].as_array().is_some_and(|calls| !calls.is_empty()));
    Ok(())
}

#[tokio::test]
async fn pages_count_with_the_readers_of_the_admin_socket() -> Result<()> {
    let rialto = Rialto::with_config(STUB).await?;
    let mut pages = Vec::new();
    for _ in 0..32 {
        let mut stream = events(&rialto).await?;
        next(&mut stream, "state").await?;
        pages.push(stream);
    }
    assert_eq!(state(&rialto).await?["readers"]["open"], 32);
    let refused = get(&rialto, "/ui/api/events").await?;
    assert_eq!(
        (refused.status, &json(&refused)["reason"]),
        (503, &"too_many_readers".into())
    );
    pages.truncate(10);
    let client = rialto.session_of("files").await?;
    client.expect_echo("for all").await?;
    for page in &mut pages {
        let calls = next_calls(page).await?;
        let tools = calls["calls"].to_string();
        assert!(
            tools.contains("\"echo\"") || tools.contains("initialize"),
            "{tools}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn page_is_told_that_the_gateway_ends() -> Result<()> {
    let rialto = Rialto::with_config(STUB).await?;
    let mut stream = events(&rialto).await?;
    next(&mut stream, "state").await?;
    rialto.sigterm();
    let mut last = Value::Null;
    while let Some(event) = stream.next().await? {
        if event.event.as_deref() == Some("state") {
            last = event.json();
        }
    }
    assert_eq!(last["draining"], true, "{last}");
    rialto.wait(Duration::from_secs(20)).await;
    Ok(())
}

#[tokio::test]
async fn bodies_of_calls_are_shown_where_they_are_audited() -> Result<()> {
    let config = format!("audit: {{ sink: {{dir}}/audit.jsonl, bodies: true }}\n{STUB}");
    let rialto = Rialto::with_config(&config).await?;
    assert_eq!(state(&rialto).await?["page"]["audit_bodies"], true);
    let client = rialto.session_of("files").await?;
    let mut stream = events(&rialto).await?;
    next(&mut stream, "calls").await?;
    client
        .call(
            1,
            "echo",
            serde_json::json!({ "marker": "visible", "api_key": "geheim" }),
        )
        .await?;
    let calls = next_calls(&mut stream).await?;
    let call = &calls["calls"][0];
    let body = call["request_body"].as_str().expect("a body");
    assert!(body.contains("visible") && !body.contains("geheim"), "{call}");
    assert!(
        call["response_body"]
            .as_str()
            .is_some_and(|body| body.contains("visible")),
        "{call}"
    );
    Ok(())
}

/// A call that came while its server started waited for that, and for nothing else.
#[tokio::test]
async fn bar_of_a_call_tells_what_it_waited_for() -> Result<()> {
    let config = "destinations:\n  files: { command: [sh, -c, \
                  'while [ -e {dir}/gate ]; do sleep 0.02; done; exec {stub}'] }\n";
    let rialto = Rialto::with_config(config).await?;
    let client = rialto.session_of("files").await?;
    let mut stream = events(&rialto).await?;
    next(&mut stream, "calls").await?;
    client.expect_echo("at once").await?;
    let calls = next_calls(&mut stream).await?;
    let call = &calls["calls"][0];
    assert_eq!(
        (&call["waited_ms"], &call["starting_ms"]),
        (&0.0.into(), &0.0.into()),
        "{call}"
    );
    assert_eq!(call["server_ms"], call["latency_ms"], "{call}");
    let gate = rialto.dir().join("gate");
    std::fs::write(&gate, "").expect("written");
    let done = act(&rialto, "/ui/api/destination/files/restart", "{}").await?;
    assert_eq!(done.status, 200);
    let calls_of = |state: &Value| state["destinations"][0]["calls"]["waiting"].clone();
    poll_until("the old server is gone", PATIENCE, async || {
        let word = state(&rialto).await?["destinations"][0]["state"].clone();
        Ok::<_, testkit::Failure>((word != "ready").then_some(()))
    })
    .await?;
    let waiting = async {
        poll_until("the call waits", PATIENCE, async || {
            let waiting = calls_of(&state(&rialto).await?);
            Ok::<_, testkit::Failure>((waiting == 1).then_some(()))
        })
        .await?;
        std::fs::remove_file(&gate).expect("it was there");
        Ok::<_, testkit::Failure>(())
    };
    let (called, waited) = tokio::join!(client.expect_echo("after the start"), waiting);
    called?;
    waited?;
    let calls = next_calls(&mut stream).await?;
    let call = &calls["calls"][0];
    let of = |step: &str| call[step].as_f64().unwrap_or_else(|| panic!("no {step}: {call}"));
    assert!(of("starting_ms") > 0.0, "{call}");
    let sum = of("waited_ms") + of("starting_ms") + of("server_ms") + of("streaming_ms");
    assert!((sum - of("latency_ms")).abs() < 0.01, "{call}");
    Ok(())
}
