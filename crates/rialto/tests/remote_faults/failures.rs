//! D1, D5 to D9: connections that break, servers that are away, overloaded or silent.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::client::raw_http;
use testkit::upstream::{Gate, Step, calls, method, result};
use testkit::{Rialto, Upstream, wait_until};

use crate::stage::{self, Stage, assert_failed, echo, raw_answer};

const LIVELINESS: Duration = Duration::from_secs(30);

#[tokio::test]
async fn d1_a_reset_after_execution_is_an_error_and_the_tool_ran_once() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    stage
        .upstream
        .once(calls("pay"), vec![Step::Execute, Step::Reset]);
    let reply = client.call(1, "pay", json!({})).await.expect("an answer");
    assert_failed(&reply, &[502, 503]);
    assert_eq!(stage.upstream.executions("pay"), 1);
    assert_eq!(stage.upstream.seen(calls("pay")).len(), 1);
    assert_eq!(echo(&client, 2, "after").await, "after");
}

#[tokio::test]
async fn d1_a_reset_after_execution_of_a_modern_call_is_an_error_and_the_tool_ran_once() {
    let stage = Stage::modern().await;
    stage
        .upstream
        .once(calls("pay"), vec![Step::Execute, Step::Reset]);
    let reply = stage::ask_modern(&stage.rialto, 1, "tools/call", json!({"name": "pay"})).await;
    assert_failed(&reply, &[200, 502, 503]);
    assert_eq!(stage.upstream.seen(calls("pay")).len(), 1);
    let reply = stage::ask_modern(&stage.rialto, 2, "tools/call", json!({"name": "echo"})).await;
    assert_eq!(reply.text(), "done");
}

#[tokio::test]
async fn d1_a_reset_in_the_middle_of_a_stream_ends_it_with_an_error() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let steps = vec![Step::Execute, Step::OpenStream, Step::progress(1), Step::Reset];
    stage.upstream.once(calls("pay"), steps);
    let reply = client.open_call(1, "pay", json!({}), 9).await.expect("an answer");
    let reply = reply.reply().await.expect("the stream ends by itself");
    assert_failed(&reply, &[502, 503]);
    assert_eq!(stage.upstream.seen(calls("pay")).len(), 1);
}

#[tokio::test]
async fn d5_a_server_that_restarts_is_used_again_by_the_same_session() {
    let upstream = Upstream::legacy().start().await.expect("an upstream");
    let address = upstream.address();
    let Stage { rialto, upstream } = Stage::in_front_of(upstream).await;
    let client = stage::session(&rialto).await;
    assert_eq!(echo(&client, 1, "before").await, "before");
    drop(upstream);
    let reply = client.call(2, "echo", json!({})).await.expect("an answer");
    assert_failed(&reply, &[502, 503, 504]);

    let upstream = Upstream::restarted(address).await;
    let came_back = testkit::poll_until("service resumes by itself", LIVELINESS, async || {
        let reply = client.call(3, "echo", json!({"text": "back"})).await?;
        if reply.outcome_status() == 200 {
            return Ok(Some(reply.text()));
        }
        assert_failed(&reply, &[502, 503, 504]);
        Ok::<_, testkit::Failure>(None)
    });
    assert_eq!(came_back.await.expect("an answer"), "back");
    assert_eq!(upstream.executions("echo"), 1);
}

#[tokio::test]
async fn d6_a_server_that_is_not_up_at_the_start_is_used_when_it_is() {
    let reserved = Upstream::legacy().start().await.expect("an upstream");
    let (address, url) = (reserved.address(), reserved.url());
    drop(reserved);
    let rialto = stage::start(&json!({"type": "streamable_http", "url": url})).await;
    let client = rialto.client_of("remote").await.expect("rialto listens");
    let reply = client
        .initialize(testkit::LEGACY, json!({}))
        .await
        .expect("an answer");
    assert_failed(&reply, &[503]);
    // No call waits for a server that is known to be away, and each receives when to retry.
    let reply = client
        .initialize(testkit::LEGACY, json!({}))
        .await
        .expect("an answer");
    assert_failed(&reply, &[503]);
    assert!(
        reply.answer()["error"]["data"]["retryAfterSeconds"].is_u64(),
        "{reply:?}"
    );

    let _upstream = Upstream::restarted(address).await;
    testkit::poll_until("it is found once it is there", LIVELINESS, async || {
        let opened = client.initialize(testkit::LEGACY, json!({})).await?;
        Ok::<_, testkit::Failure>((opened.outcome_status() == 200).then_some(()))
    })
    .await
    .expect("an answer");
    assert_eq!(echo(&client, 1, "up").await, "up");
}

#[tokio::test]
async fn d7_an_overloaded_server_is_asked_again_for_what_is_safe() {
    for status in [429, 502, 503, 504] {
        let stage = Stage::legacy().await;
        let client = stage.session().await;
        stage
            .upstream
            .times(2, method("tools/list"), vec![Step::retry_after(status, 0)]);
        let reply = client
            .request(1, "tools/list", json!({}))
            .await
            .expect("an answer");
        assert!(
            reply.answer()["result"]["tools"].is_array(),
            "{status}: {reply:?}"
        );
        assert_eq!(stage.upstream.seen(method("tools/list")).len(), 3, "{status}");
    }
}

#[tokio::test]
async fn d7_a_server_that_stays_overloaded_is_asked_at_most_three_times_more() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    stage
        .upstream
        .always(method("tools/list"), vec![Step::retry_after(503, 0)]);
    let reply = client
        .request(1, "tools/list", json!({}))
        .await
        .expect("an answer");
    assert_failed(&reply, &[502, 503]);
    let asked = stage.upstream.seen(method("tools/list")).len();
    assert!((2..=4).contains(&asked), "{asked}");
}

#[tokio::test]
async fn d7_retry_after_is_honoured() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    stage
        .upstream
        .once(method("tools/list"), vec![Step::retry_after(503, 1)]);
    let reply = client
        .request(1, "tools/list", json!({}))
        .await
        .expect("an answer");
    assert_eq!(reply.status, 200);
    let seen = stage.upstream.seen(method("tools/list"));
    assert!(seen[1].at.duration_since(seen[0].at) >= Duration::from_secs(1));
}

#[tokio::test]
async fn d7_a_wait_that_is_too_long_is_left_to_the_client() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    stage
        .upstream
        .always(method("tools/list"), vec![Step::retry_after(503, 3600)]);
    let reply = client
        .request(1, "tools/list", json!({}))
        .await
        .expect("an answer");
    assert_failed(&reply, &[502, 503]);
    assert_eq!(stage.upstream.seen(method("tools/list")).len(), 1);
}

#[tokio::test]
async fn d7_a_tool_call_that_may_have_run_is_not_made_again() {
    for status in [429, 500, 502, 503, 504] {
        let stage = Stage::legacy().await;
        let client = stage.session().await;
        let steps = vec![Step::Execute, Step::retry_after(status, 0)];
        stage.upstream.always(calls("pay"), steps);
        let reply = client.call(1, "pay", json!({})).await.expect("an answer");
        assert_failed(&reply, &[502, 503, 504]);
        assert_eq!(stage.upstream.executions("pay"), 1, "{status}");
    }
}

#[tokio::test]
async fn d8_silence_instead_of_a_head_is_a_timeout_and_cancels_the_request() {
    silence(vec![Step::Execute, Step::Stall]).await;
}

#[tokio::test]
async fn d8_silence_after_the_head_is_a_timeout_and_cancels_the_request() {
    silence(vec![Step::Execute, Step::OpenStream, Step::Stall]).await;
}

#[tokio::test]
async fn d8_silence_in_the_middle_of_the_head_is_a_timeout_and_cancels_the_request() {
    let half = b"HTTP/1.1 200 OK\r\ncontent-ty".to_vec();
    silence(vec![Step::Execute, Step::Raw(half), Step::Stall]).await;
}

#[tokio::test]
async fn d8_silence_in_the_middle_of_a_body_is_a_timeout_and_cancels_the_request() {
    let half = raw_answer(
        "content-type: application/json\r\ncontent-length: 500\r\n",
        "{\"jsonrpc\"",
    );
    silence(vec![Step::Execute, half, Step::Stall]).await;
}

async fn silence(steps: Vec<Step>) {
    let upstream = Upstream::legacy().start().await.expect("an upstream");
    let keys = json!({"type": "streamable_http", "request_timeout": "1s", "stream_timeout": "1s"});
    let stage = Stage::configured(upstream, keys).await;
    let client = stage.session().await;
    stage.upstream.once(calls("sleep"), steps);
    let reply = client.call(1, "sleep", json!({})).await.expect("an answer");
    assert_failed(&reply, &[504]);
    let call = stage.upstream.wait_for("the call", calls("sleep")).await;
    let cancel = stage
        .upstream
        .wait_for("the cancellation", method("notifications/cancelled"))
        .await;
    assert_eq!(cancel.body["params"]["requestId"], call.body["id"]);
    assert_eq!(stage.upstream.executions("sleep"), 1);
    assert_eq!(echo(&client, 2, "after").await, "after");
}

#[tokio::test]
async fn d8_a_modern_call_that_takes_too_long_is_hung_up_on() {
    let upstream = Upstream::modern().start().await.expect("an upstream");
    let keys = json!({"type": "streamable_http", "request_timeout": "1s", "stream_timeout": "1s"});
    let stage = Stage::configured(upstream, keys).await;
    stage
        .upstream
        .once(calls("sleep"), vec![Step::Execute, Step::Stall]);
    let reply = stage::ask_modern(&stage.rialto, 1, "tools/call", json!({"name": "sleep"})).await;
    assert_failed(&reply, &[200, 504]);
    let call = stage.upstream.wait_for("the call", calls("sleep")).await;
    stage.upstream.wait_for_hang_up(&call).await;
}

#[tokio::test]
async fn d8_a_handshake_that_is_never_answered_is_a_timeout() {
    let upstream = Upstream::legacy().start().await.expect("an upstream");
    upstream.always(method("initialize"), vec![Step::Stall]);
    upstream.always(method("server/discover"), vec![Step::Stall]);
    let keys = json!({"type": "streamable_http", "request_timeout": "1s", "stream_timeout": "1s", "start_timeout": "1s"});
    let stage = Stage::configured(upstream, keys).await;
    let client = stage.rialto.client_of("remote").await.expect("rialto listens");
    let reply = client
        .initialize(testkit::LEGACY, json!({}))
        .await
        .expect("an answer");
    assert_failed(&reply, &[504]);
}

#[tokio::test]
async fn d9_answer_before_the_end_of_the_connection_is_used() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    // Without a length the end of the connection is the end of the body.
    stage.upstream.once(
        calls("json"),
        vec![
            raw_answer(
                "content-type: application/json\r\nconnection: close\r\n",
                &result("whole"),
            ),
            Step::Close,
        ],
    );
    let reply = client.call(1, "json", json!({})).await.expect("an answer");
    assert_eq!(reply.text(), "whole");
    // A stream that ends without its last chunk, after its last event.
    stage.upstream.once(
        calls("events"),
        vec![Step::OpenStream, Step::Event(result("whole")), Step::Close],
    );
    let reply = client.call(2, "events", json!({})).await.expect("an answer");
    assert_eq!(reply.text(), "whole");
}

#[tokio::test]
async fn d9_an_answer_that_is_cut_off_is_an_error() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let half = raw_answer(
        "content-type: application/json\r\ncontent-length: 500\r\n",
        r#"{"jsonrpc":"2.0","id":1,"result":{"#,
    );
    stage
        .upstream
        .once(calls("cut"), vec![Step::Execute, half, Step::Close]);
    let reply = client.call(1, "cut", json!({})).await.expect("an answer");
    assert_failed(&reply, &[502, 503]);
    let steps = vec![
        Step::Execute,
        Step::OpenStream,
        Step::piece("data: {\"jsonrpc\":\"2.0\",\"id\":"),
        Step::Close,
    ];
    stage.upstream.once(calls("cut"), steps);
    let reply = client.call(2, "cut", json!({})).await.expect("an answer");
    assert_failed(&reply, &[502, 503]);
    assert_eq!(stage.upstream.executions("cut"), 2);
}

#[tokio::test]
async fn one_destination_in_trouble_does_not_touch_another() {
    let (healthy, stuck) = (Upstream::legacy().start().await, Upstream::legacy().start().await);
    let (healthy, stuck) = (healthy.expect("an upstream"), stuck.expect("an upstream"));
    stuck.always(|_| true, vec![Step::Stall]);
    let file = json!({"destinations": {
        "healthy": {"type": "streamable_http", "url": healthy.url()},
        "stuck": {"type": "streamable_http", "url": stuck.url()},
    }});
    let rialto = testkit::Rialto::with_config(&file.to_string())
        .await
        .expect("rialto starts");
    let waiting = rialto.client_of("stuck").await.expect("rialto listens");
    let hanging = waiting.initialize(testkit::LEGACY, json!({}));
    let served = async {
        wait_until("the stuck one is asked", LIVELINESS, || {
            (!stuck.exchanges().is_empty()).then_some(())
        })
        .await;
        let client = rialto.session_of("healthy").await.expect("a session");
        echo(&client, 1, "fine").await
    };
    tokio::select! {
        text = served => assert_eq!(text, "fine"),
        reply = hanging => panic!("the stuck one answered first: {reply:?}"),
    }
}

#[tokio::test]
async fn c3_a_legacy_client_that_hangs_up_does_not_end_the_call() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let gate = Gate::default();
    stage.upstream.once(
        calls("long"),
        vec![
            Step::Execute,
            Step::OpenStream,
            Step::Wait(gate.clone()),
            Step::result("late"),
            Step::EndStream,
        ],
    );
    let params = json!({"name": "long"});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let mut raw = stage.rialto.raw().await.expect("rialto listens");
    let session = client.session();
    raw.write(raw_http::post("/remote/mcp", session.as_deref(), body))
        .await
        .expect("sent");
    stage.upstream.wait_for("the call", calls("long")).await;
    raw.reset().expect("hung up");
    assert_eq!(echo(&client, 2, "still").await, "still");
    assert!(stage.upstream.seen(method("notifications/cancelled")).is_empty());
    gate.open();
    assert_eq!(echo(&client, 3, "after").await, "after");
    assert_eq!(stage.upstream.executions("long"), 1);
}

#[tokio::test]
async fn c4_a_modern_client_that_hangs_up_is_a_hang_up_for_the_server() {
    let stage = Stage::modern().await;
    stage
        .upstream
        .once(calls("long"), vec![Step::Execute, Step::Stall]);
    let meta = json!({"io.modelcontextprotocol/protocolVersion": testkit::MODERN,
                      "io.modelcontextprotocol/clientCapabilities": {}});
    let params = json!({"name": "long", "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let headers = [
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", testkit::MODERN),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", "long"),
    ];
    let mut raw = stage.rialto.raw().await.expect("rialto listens");
    raw.write(raw_http::request("POST", "/remote/mcp", &headers, body))
        .await
        .expect("sent");
    let call = stage.upstream.wait_for("the call", calls("long")).await;
    raw.reset().expect("hung up");
    stage.upstream.wait_for_hang_up(&call).await;
    // A modern server receives nothing else.
    assert!(stage.upstream.seen(method("notifications/cancelled")).is_empty());
}

#[tokio::test]
async fn f05_a_panic_on_the_way_costs_that_message() {
    let upstream = Upstream::legacy().start().await.expect("an upstream");
    let destination = json!({"type": "streamable_http", "url": upstream.url()});
    let rialto = Rialto::launcher()
        .env("TEST_PANICS", "1")
        .config(&json!({"destinations": {"remote": destination}}).to_string())
        .start()
        .await
        .expect("rialto starts");
    let client = stage::session(&rialto).await;
    let later = Gate::default();
    upstream.once(calls("slow"), vec![Step::Wait(later.clone()), Step::AsUsual]);
    let other = client.clone();
    let slow = gateway::tasks::spawn("slow call", async move { other.call(9, "slow", json!({})).await });
    upstream.wait_for("the other call", calls("slow")).await;
    for id in 1..=3 {
        let reply = client
            .call(id, "echo", json!({"text": "panic in the sender"}))
            .await;
        assert_failed(&reply.expect("an answer"), &[502]);
        assert_eq!(echo(&client, id, "goes on").await, "goes on");
    }
    let logged =
        |line: &Value| line["level"] == "ERROR" && line["message"] == "a message was lost in a panic";
    rialto.wait_for_log("it is logged", LIVELINESS, logged).await;
    later.open();
    let slow = slow.await.expect("no panic here").expect("an answer");
    assert_eq!(slow.status, 200, "{slow:?}");
}

#[tokio::test]
async fn more_calls_at_once_than_are_kept_in_readiness_are_answered_each_time() {
    const MANY: usize = 150;
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    for round in 0..2 {
        let all_are_here = Gate::default();
        let steps = vec![Step::Wait(all_are_here.clone()), Step::AsUsual];
        stage.upstream.times(MANY, calls("echo"), steps);
        let calling: Vec<_> = (0..MANY)
            .map(|id| {
                let client = client.clone();
                gateway::tasks::spawn("call", async move {
                    echo(&client, id as u64, &format!("call {id}")).await
                })
            })
            .collect();
        let arrived = || (stage.upstream.seen(calls("echo")).len() == MANY * (round + 1)).then_some(());
        wait_until("all calls have arrived", LIVELINESS, arrived).await;
        all_are_here.open();
        for (id, call) in calling.into_iter().enumerate() {
            assert_eq!(call.await.expect("no panic here"), format!("call {id}"));
        }
    }
}

/// Our own requests time out like calls of clients: no worker sends them for ever.
#[tokio::test]
async fn d8_a_question_of_ours_that_takes_too_long_is_hung_up_on() {
    let upstream = Upstream::modern().start().await.expect("an upstream");
    let keys = json!({"type": "streamable_http", "request_timeout": "1s", "stream_timeout": "1s"});
    let stage = Stage::configured(upstream, keys).await;
    stage.upstream.always(method("tools/list"), vec![Step::Stall]);
    let params = json!({"name": "echo", "arguments": {"text": "without the list"}});
    let reply = stage::ask_modern(&stage.rialto, 1, "tools/call", params).await;
    assert_eq!(reply.text(), "without the list");
    let list = stage
        .upstream
        .wait_for("our question", method("tools/list"))
        .await;
    stage.upstream.wait_for_hang_up(&list).await;
}

#[tokio::test]
async fn a_wrong_address_is_refused_at_once_and_the_right_one_beside_it_is_named() {
    for (kind, status) in [
        ("auto", 404),
        ("streamable_http", 404),
        ("sse", 404),
        ("auto", 405),
    ] {
        let upstream = Upstream::legacy().start().await.expect("an upstream");
        upstream.always(
            |seen| seen.path != "/mcp",
            vec![Step::with_status(status, "text/plain", "no such page")],
        );
        let mut destination = json!({"url": format!("{}/wrong", upstream.origin()), "start_timeout": "10m"});
        if kind != "auto" {
            destination["type"] = kind.into();
        }
        let rialto = crate::stage::start(&destination).await;
        let client = rialto.client_of("remote").await.expect("rialto listens");
        let refused = client
            .initialize("2025-11-25", json!({}))
            .await
            .expect("an answer");
        let text = refused.body_text();
        assert!(text.contains("upstream_refused"), "{kind}: {text}");
        for words in [
            format!("{}/wrong", upstream.origin()),
            status.to_string(),
            format!("did you mean {}/mcp?", upstream.origin()),
        ] {
            assert!(text.contains(&words), "{kind}: {words} is missing: {text}");
        }
    }
}
