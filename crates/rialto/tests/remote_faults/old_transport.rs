//! D17 and the old transport with two endpoints.

use serde_json::json;
use testkit::Upstream;
use testkit::upstream::{Exchange, Gate, Step, calls, method};

use crate::stage::{self, Stage, assert_failed, echo};

fn opens(seen: &Exchange) -> bool {
    seen.http_method == "GET"
}

async fn stage() -> Stage {
    let upstream = Upstream::old_sse().start().await.expect("an upstream");
    Stage::configured(upstream, json!({"type": "sse"})).await
}

#[tokio::test]
async fn clients_of_both_eras_use_a_server_of_the_old_transport() {
    let stage = stage().await;
    let client = stage.session().await;
    assert_eq!(echo(&client, 1, "legacy").await, "legacy");
    let params = json!({"name": "echo", "arguments": {"text": "modern"}});
    let reply = stage::ask_modern(&stage.rialto, 1, "tools/call", params).await;
    assert_eq!(reply.text(), "modern");
}

#[tokio::test]
async fn a_server_of_the_old_transport_asks_its_client() {
    let stage = stage().await;
    let client = stage.session().await;
    let mut events = client
        .open(
            7,
            "tools/call",
            json!({"name": "ask", "arguments": {"text": "Which?"}}),
        )
        .await
        .expect("an answer")
        .events();
    let question = events.message().await.expect("a question");
    let answer = json!({"action": "accept", "content": {"answer": "this"}});
    let taken = client.respond(&question["id"], answer).await;
    taken.expect("an answer").expect_status(202).expect("taken");
    let answer = events.message().await.expect("the answer");
    assert_eq!(answer["result"]["content"][0]["text"], "You said this.");
}

#[tokio::test]
async fn d17_an_endpoint_at_another_origin_is_refused() {
    let other = Upstream::old_sse().start().await.expect("an upstream");
    let upstream = Upstream::old_sse().start().await.expect("an upstream");
    let port = upstream.address().port();
    let elsewhere = [
        format!("{}/message", other.origin()),
        format!("//{}/message", other.address()),
        format!("http://localhost:{port}/message"),
        format!("https://127.0.0.1:{port}/message"),
        "http://169.254.169.254/message".to_owned(),
        "file:///etc/passwd".to_owned(),
    ];
    for endpoint in elsewhere {
        let upstream = Upstream::old_sse().start().await.expect("an upstream");
        let event = format!("event: endpoint\ndata: {endpoint}\n\n");
        upstream.always(opens, vec![Step::OpenStream, Step::piece(&event), Step::Stall]);
        let keys = json!({"type": "sse", "headers": {"Authorization": "Bearer hush"}, "start_timeout": "2s"});
        let stage = Stage::configured(upstream, keys).await;
        let client = stage.rialto.client_of("remote").await.expect("rialto listens");
        let reply = client.initialize(testkit::LEGACY, json!({})).await;
        assert_failed(&reply.expect("an answer"), &[502, 503, 504]);
        assert!(
            other.exchanges().is_empty(),
            "{endpoint}: {:?}",
            other.exchanges()
        );
    }
}

#[tokio::test]
async fn d17_an_absolute_endpoint_of_the_same_origin_is_used() {
    let upstream = Upstream::old_sse().start().await.expect("an upstream");
    let gate = testkit::upstream::Gate::default();
    let event = format!("event: endpoint\ndata: {}/elsewhere?x=1\n\n", upstream.origin());
    upstream.once(
        opens,
        vec![Step::OpenStream, Step::piece(&event), Step::Wait(gate)],
    );
    upstream.always(|seen| seen.path == "/elsewhere?x=1", vec![Step::status(202)]);
    let keys = json!({"type": "sse", "start_timeout": "2s", "request_timeout": "2s", "stream_timeout": "2s"});
    let stage = Stage::configured(upstream, keys).await;
    let client = stage.rialto.client_of("remote").await.expect("rialto listens");
    let opening = client.initialize(testkit::LEGACY, json!({}));
    let posted = stage
        .upstream
        .wait_for("a message there", |seen| seen.path == "/elsewhere?x=1");
    tokio::select! {
        seen = posted => assert_eq!(seen.method(), "initialize"),
        reply = opening => panic!("answered before anything was posted: {reply:?}"),
    }
}

#[tokio::test]
async fn a_stream_without_an_endpoint_is_given_up() {
    let upstream = Upstream::old_sse().start().await.expect("an upstream");
    upstream.always(opens, vec![Step::OpenStream, Step::Stall]);
    let keys = json!({"type": "sse", "start_timeout": "1s", "request_timeout": "1s", "stream_timeout": "1s"});
    let stage = Stage::configured(upstream, keys).await;
    let client = stage.rialto.client_of("remote").await.expect("rialto listens");
    let reply = client.initialize(testkit::LEGACY, json!({})).await;
    assert_failed(&reply.expect("an answer"), &[502, 503, 504]);
}

#[tokio::test]
async fn a_stream_that_breaks_fails_the_call_and_is_opened_again() {
    let stage = stage().await;
    let client = stage.session().await;
    assert_eq!(echo(&client, 1, "before").await, "before");
    // The message is taken, the stream ends before the answer.
    stage
        .upstream
        .once(calls("lost"), vec![Step::Execute, Step::status(202)]);
    let lost = client.call(2, "lost", json!({}));
    let breaks = async {
        stage.upstream.wait_for("the call", calls("lost")).await;
        stage.upstream.forget_sessions();
    };
    let (reply, ()) = tokio::join!(lost, breaks);
    assert_failed(&reply.expect("an answer"), &[502, 503]);
    assert_eq!(stage.upstream.executions("lost"), 1);
    let deadline = std::time::Duration::from_secs(30);
    let again = testkit::poll_until("the server comes back", deadline, async || {
        let reply = client.call(3, "echo", json!({"text": "after"})).await?;
        Ok::<_, testkit::Failure>((reply.outcome_status() == 200).then(|| reply.text()))
    });
    assert_eq!(again.await.expect("an answer"), "after");
}

#[tokio::test]
async fn the_old_paths_answer_for_an_old_destination() {
    let stage = stage().await;
    let url = format!("http://{}/remote/sse", stage.rialto.address());
    let client = testkit::McpClient::connect(&url).await.expect("rialto listens");
    let mut stream = client.get_stream(None).await.expect("a stream");
    let endpoint = stream.next().await.expect("an event").expect("one comes");
    assert_eq!(endpoint.event.as_deref(), Some("endpoint"));
    assert!(endpoint.data.starts_with("/remote/message"), "{endpoint:?}");
    let say = async |body: serde_json::Value| {
        let taken = client
            .send(
                "POST",
                &endpoint.data,
                &[("content-type", "application/json")],
                body.to_string(),
            )
            .await
            .expect("an answer");
        assert_eq!(taken.status, 202);
    };
    let hello = json!({"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}});
    say(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})).await;
    let welcome = stream.message().await.expect("a welcome");
    assert_eq!(welcome["result"]["protocolVersion"], "2024-11-05");
    say(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    let params = json!({"name": "echo", "arguments": {"text": "as before"}});
    say(json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})).await;
    let answer = stream.message().await.expect("an answer");
    assert_eq!(answer["id"], 2);
    assert_eq!(answer["result"]["content"][0]["text"], "as before");
}

/// Two clients come at once to a server that is not known to be an old one: both find out.
#[tokio::test]
async fn session_that_learns_late_of_a_legacy_server_is_served() {
    let upstream = Upstream::old_sse().start().await.expect("an upstream");
    let stage = Stage::configured(upstream, json!({})).await;
    let tries = |seen: &Exchange| seen.http_method == "POST" && seen.path == "/sse";
    let refused = Gate::default();
    stage
        .upstream
        .once(tries, vec![Step::Wait(refused.clone()), Step::AsUsual]);
    let late = stage.rialto.client_of("remote").await.expect("rialto listens");
    let handshake = gateway::tasks::spawn("handshake", {
        let late = late.clone();
        async move { late.handshake(testkit::LEGACY, json!({})).await }
    });
    stage.upstream.wait_for("its first word", tries).await;
    let other = stage.session().await;
    assert_eq!(echo(&other, 1, "first").await, "first");
    refused.open();
    handshake.await.expect("no panic here").expect("a handshake");
    assert_eq!(echo(&late, 1, "second").await, "second");
}

/// Some servers respond to a request when they have answered it by the stream, or never.
#[tokio::test]
async fn a_request_that_is_left_open_holds_up_no_other_message() {
    let upstream = Upstream::old_sse().start().await.expect("an upstream");
    let keys = json!({"type": "sse", "request_timeout": "10s", "stream_timeout": "10s"});
    let stage = Stage::configured(upstream, keys).await;
    let (client, other) = (stage.session().await, stage.session().await);
    stage
        .upstream
        .once(calls("held"), vec![Step::Execute, Step::Stall]);
    let answered = async {
        let call = stage.upstream.wait_for("the call", calls("held")).await;
        assert_eq!(echo(&other, 1, "beside").await, "beside");
        let result = json!({"content": [{"type": "text", "text": "by the stream"}]});
        let answer = json!({"jsonrpc": "2.0", "id": call.body["id"], "result": result});
        stage.upstream.push(&answer.to_string()).await;
    };
    let (reply, ()) = tokio::join!(client.call(1, "held", json!({})), answered);
    assert_eq!(reply.expect("an answer").text(), "by the stream");
    assert_eq!(echo(&client, 2, "after").await, "after");
    assert_eq!(stage.upstream.executions("held"), 1);
}

#[tokio::test]
async fn a_question_in_a_request_that_is_left_open_is_answered() {
    let upstream = Upstream::old_sse().start().await.expect("an upstream");
    let keys = json!({"type": "sse", "request_timeout": "10s", "stream_timeout": "10s"});
    let stage = Stage::configured(upstream, keys).await;
    let client = stage.session().await;
    stage
        .upstream
        .once(calls("asks"), vec![Step::Execute, Step::Stall]);
    let reply = client.open(1, "tools/call", json!({"name": "asks"}));
    let asks = async {
        let call = stage.upstream.wait_for("the call", calls("asks")).await;
        let params = json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}});
        let question = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params});
        stage.upstream.push(&question.to_string()).await;
        call
    };
    let (reply, call) = tokio::join!(reply, asks);
    let mut events = reply.expect("an answer").events();
    let question = events.message().await.expect("a question");
    let taken = client
        .respond(&question["id"], json!({"action": "decline"}))
        .await;
    taken.expect("an answer").expect_status(202).expect("taken");
    stage
        .upstream
        .wait_for("the client's answer", |seen| seen.body["id"] == "q")
        .await;
    let result = json!({"content": [{"type": "text", "text": "declined"}]});
    let answer = json!({"jsonrpc": "2.0", "id": call.body["id"], "result": result});
    stage.upstream.push(&answer.to_string()).await;
    let answer = events.message().await.expect("the answer");
    assert_eq!(answer["result"]["content"][0]["text"], "declined");
}

#[tokio::test]
async fn server_that_takes_no_request_is_a_timeout_and_receives_the_cancellation() {
    let upstream = Upstream::old_sse().start().await.expect("an upstream");
    let keys = json!({"type": "sse", "request_timeout": "10s", "stream_timeout": "2s"});
    let stage = Stage::configured(upstream, keys).await;
    let client = stage.session().await;
    stage.upstream.once(calls("sleep"), vec![Step::Stall]);
    let reply = client.call(1, "sleep", json!({})).await.expect("an answer");
    assert_failed(&reply, &[504]);
    let data = &reply.answer()["error"]["data"];
    assert_eq!(data["reason"], "timeout");
    assert_eq!(data["setting"], "stream_timeout");
    let call = stage.upstream.wait_for("the call", calls("sleep")).await;
    let cancel = stage
        .upstream
        .wait_for("the cancellation", method("notifications/cancelled"))
        .await;
    assert_eq!(cancel.body["params"]["requestId"], call.body["id"]);
    assert_eq!(echo(&client, 2, "after").await, "after");
}
