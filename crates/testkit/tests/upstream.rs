//! The upstream itself: what it does as usual, and that it follows its script.

use serde_json::{Value, json};
use testkit::client::raw_http;
use testkit::upstream::{Gate, Step};
use testkit::{LEGACY, McpClient, RawHttp, Upstream};

async fn session(upstream: &Upstream) -> McpClient {
    let client = McpClient::connect(&upstream.url()).await.expect("it listens");
    client
        .handshake(LEGACY, json!({"elicitation": {}}))
        .await
        .expect("a handshake");
    client
}

#[tokio::test]
async fn a_legacy_upstream_answers_asks_pushes_and_forgets() {
    let upstream = Upstream::legacy().start().await.expect("it starts");
    let client = session(&upstream).await;
    let reply = client
        .call(1, "echo", json!({"text": "hello"}))
        .await
        .expect("an answer");
    assert_eq!(reply.text(), "hello");

    let mut asking = client
        .open(2, "tools/call", json!({"name": "ask"}))
        .await
        .expect("a stream")
        .events();
    let question = asking.message().await.expect("a question");
    let answer = json!({"action": "accept", "content": {"answer": "yes"}});
    client.respond(&question["id"], answer).await.expect("taken");
    let answer = asking.message().await.expect("an answer");
    assert_eq!(answer["result"]["content"][0]["text"], "You said yes.");

    let mut stream = client.get_stream(None).await.expect("a stream");
    upstream.wait_for_streams(1).await;
    upstream
        .push(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#)
        .await;
    assert_eq!(
        stream.message().await.expect("a notice")["method"],
        "notifications/tools/list_changed"
    );

    assert_eq!(upstream.executions("echo"), 1);
    upstream.forget_sessions();
    client
        .call(3, "echo", json!({}))
        .await
        .expect("an answer")
        .expect_status(404)
        .expect("the session is forgotten");
}

#[tokio::test]
async fn a_modern_upstream_compares_headers_with_the_body() {
    let upstream = Upstream::modern().start().await.expect("it starts");
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                      "io.modelcontextprotocol/clientCapabilities": {}});
    let params = json!({"name": "echo", "arguments": {"text": "hello"}, "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    for (name, status) in [("echo", 200), ("other", 400)] {
        let headers = [
            ("Content-Type", "application/json"),
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Name", name),
        ];
        let mut raw = RawHttp::connect(&upstream.address().to_string())
            .await
            .expect("it listens");
        let response = raw
            .exchange(raw_http::request("POST", "/mcp", &headers, &body))
            .await
            .expect("an answer");
        assert_eq!(response.status, status, "{}", response.body_text());
    }
    assert_eq!(upstream.executions("echo"), 1);
}

#[tokio::test]
async fn a_script_is_followed_step_by_step_and_then_forgotten() {
    let upstream = Upstream::legacy().start().await.expect("it starts");
    let client = session(&upstream).await;
    let gate = Gate::default();
    upstream.once(
        |seen| seen.tool() == "slow",
        vec![
            Step::Execute,
            Step::OpenStream,
            Step::progress(1),
            Step::Wait(gate.clone()),
            Step::result("late"),
            Step::EndStream,
        ],
    );
    let mut stream = client
        .open_call(1, "slow", json!({}), 7)
        .await
        .expect("a stream")
        .events();
    let first = stream.message().await.expect("progress");
    assert_eq!(first["params"], json!({"progressToken": 7, "progress": 1}));
    gate.open();
    let last = stream.message().await.expect("an answer");
    assert_eq!(last["result"]["content"][0]["text"], "late");

    upstream.once(|seen| seen.tool() == "slow", vec![Step::Execute, Step::Reset]);
    client
        .call(2, "slow", json!({}))
        .await
        .expect_err("the connection is reset");
    assert_eq!(upstream.executions("slow"), 2);
    assert_eq!(
        client.call(3, "slow", json!({})).await.expect("an answer").text(),
        "done"
    );
}

#[tokio::test]
async fn the_old_transport_answers_on_its_stream() {
    let upstream = Upstream::old_sse().start().await.expect("it starts");
    let client = McpClient::connect(&upstream.url()).await.expect("it listens");
    let mut stream = client.get_stream(None).await.expect("a stream");
    let endpoint = stream.next().await.expect("an event").expect("one comes");
    assert_eq!(endpoint.event.as_deref(), Some("endpoint"));
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hi"}}}"#;
    let taken = client
        .send(
            "POST",
            &endpoint.data,
            &[("content-type", "application/json")],
            body,
        )
        .await
        .expect("an answer");
    assert_eq!(taken.status, 202);
    let answer: Value = stream.message().await.expect("an answer");
    assert_eq!(answer["result"]["content"][0]["text"], "hi");
}
