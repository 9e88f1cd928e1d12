//! Rialto in front of one upstream, and what a failed call must look like.

use serde_json::{Value, json};
use testkit::upstream::Step;
use testkit::{LEGACY, MODERN, McpClient, Reply, Rialto, Upstream};

pub(crate) struct Stage {
    pub(crate) rialto: Rialto,
    pub(crate) upstream: Upstream,
}

impl Stage {
    /// A well-behaved upstream with a handshake.
    pub(crate) async fn legacy() -> Self {
        Self::in_front_of(Upstream::legacy().start().await.expect("an upstream")).await
    }

    pub(crate) async fn modern() -> Self {
        Self::in_front_of(Upstream::modern().start().await.expect("an upstream")).await
    }

    pub(crate) async fn in_front_of(upstream: Upstream) -> Self {
        Self::configured(upstream, json!({"type": "streamable_http"})).await
    }

    /// With these keys beside the URL.
    pub(crate) async fn configured(upstream: Upstream, mut destination: Value) -> Self {
        destination["url"] = upstream.url().into();
        let rialto = start(&destination).await;
        Self { rialto, upstream }
    }

    /// A legacy client whose session is open.
    pub(crate) async fn session(&self) -> McpClient {
        session(&self.rialto).await
    }
}

/// Rialto with this as its only destination, named `remote`.
pub(crate) async fn start(destination: &Value) -> Rialto {
    // JSON is YAML too.
    let file = json!({"destinations": {"remote": destination}}).to_string();
    Rialto::with_config(&file).await.expect("rialto starts")
}

pub(crate) async fn session(rialto: &Rialto) -> McpClient {
    let client = rialto.client_of("remote").await.expect("rialto listens");
    client
        .handshake(LEGACY, json!({"elicitation": {}}))
        .await
        .expect("a handshake");
    client
}

pub(crate) async fn echo(client: &McpClient, id: u64, text: &str) -> String {
    let reply = client.call(id, "echo", json!({"text": text})).await;
    reply.expect("an answer").text()
}

/// A modern request, with its `_meta` and headers.
pub(crate) async fn ask_modern(rialto: &Rialto, id: u64, method: &str, mut params: Value) -> Reply {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = MODERN.into();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({"elicitation": {"form": {}}});
    let client = rialto.client_of("remote").await.expect("rialto listens");
    client.set_version(Some(MODERN));
    let name = params["name"].as_str().map(str::to_owned);
    let mut client = client.with_header("mcp-method", method);
    if let Some(name) = name {
        client = client.with_header("mcp-name", &name);
    }
    client.request(id, method, params).await.expect("an answer")
}

/// The call has failed: with one of these statuses if nothing was sent before, else with an error
/// as the last event.
#[track_caller]
pub(crate) fn assert_failed(reply: &Reply, statuses: &[u16]) {
    let answer = reply.answer();
    assert_eq!(answer["error"]["code"], -32603, "{} {answer}", reply.status);
    assert!(answer["error"]["data"]["reason"].is_string(), "{answer}");
    assert!(
        statuses.contains(&reply.outcome_status()),
        "{} {answer}",
        reply.status
    );
}

/// The whole answer of a call in JSON, written by hand.
pub(crate) fn raw_answer(headers: &str, body: &str) -> Step {
    Step::Raw(format!("HTTP/1.1 200 OK\r\n{headers}\r\n{body}").into_bytes())
}

/// A chunk of a body without a content length.
pub(crate) fn chunk(content: &[u8]) -> Vec<u8> {
    let head = format!("{:x}\r\n", content.len());
    [head.as_bytes(), content, b"\r\n"].concat()
}
