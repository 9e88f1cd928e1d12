//! What the upstream does when no script overrides it.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::exchange::Exchange;
use super::wire::Wire;
use super::{STREAM_QUEUE, Shared};
use crate::failure::Result;

mod modern;
mod old_sse;

/// Which protocol it speaks, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Behaviour {
    protocol: Protocol,
    pub(super) sessions: bool,
    pub(super) get_stream: bool,
    pub(super) events: bool,
    /// Longer bodies are refused.
    pub(super) longest_body: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Legacy,
    Modern,
    /// Each request in the era that it is of.
    Dual,
    OldSse,
}

impl Behaviour {
    fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            sessions: true,
            get_stream: true,
            events: false,
            longest_body: None,
        }
    }

    pub(super) fn legacy() -> Self {
        Self::new(Protocol::Legacy)
    }

    pub(super) fn modern() -> Self {
        Self::new(Protocol::Modern)
    }

    pub(super) fn dual() -> Self {
        Self::new(Protocol::Dual)
    }

    pub(super) fn old_sse() -> Self {
        Self::new(Protocol::OldSse)
    }

    pub(super) fn path(self) -> &'static str {
        match self.protocol {
            Protocol::Legacy | Protocol::Modern | Protocol::Dual => "/mcp",
            Protocol::OldSse => "/sse",
        }
    }
}

pub(super) async fn usual(shared: &Arc<Shared>, wire: Wire, exchange: &Exchange) -> Result<Option<Wire>> {
    match shared.behaviour.protocol {
        Protocol::Legacy => legacy(shared, wire, exchange).await,
        Protocol::Modern => modern::usual(shared, wire, exchange).await,
        Protocol::Dual if exchange.is_modern() => modern::usual(shared, wire, exchange).await,
        Protocol::Dual => legacy(shared, wire, exchange).await,
        Protocol::OldSse => old_sse::usual(shared, wire, exchange).await,
    }
}

async fn legacy(shared: &Shared, mut wire: Wire, exchange: &Exchange) -> Result<Option<Wire>> {
    let request = exchange.body.get("id").is_some() && !exchange.method().is_empty();
    if exchange.http_method == "POST" && exchange.method() == "initialize" && !exchange.is_modern() {
        let session = shared.behaviour.sessions.then(|| mint(shared));
        let headers = session.map(|id| vec![("mcp-session-id".to_owned(), id)]);
        let answer = result(
            exchange,
            initialize_result(&exchange.body["params"]["protocolVersion"]),
        );
        return answer_with(shared, wire, &headers.unwrap_or_default(), &answer).await;
    }
    if shared.behaviour.sessions {
        let known = exchange.session().map(|id| shared.state().sessions.contains(id));
        let refusal = match known {
            None => Some((400, "Bad Request: Mcp-Session-Id header is required")),
            Some(false) => Some((404, "Session not found")),
            Some(true) => None,
        };
        if let Some((status, message)) = refusal {
            let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": message}});
            return refuse(wire, status, &error).await;
        }
    }
    match exchange.http_method.as_str() {
        "POST" if request => call(shared, wire, exchange).await,
        "POST" => {
            note_answer(shared, exchange);
            wire.respond(202, &[], "").await?;
            Ok(Some(wire))
        }
        "GET" if shared.behaviour.get_stream => {
            let session = exchange.session().unwrap_or_default().to_owned();
            wire.open_stream(&[]).await?;
            stream(shared, wire, &session).await
        }
        "DELETE" if shared.behaviour.sessions => {
            let session = exchange.session().unwrap_or_default().to_owned();
            forget(shared, &session);
            wire.respond(200, &[], "").await?;
            Ok(Some(wire))
        }
        _ => {
            wire.respond(405, &[("allow".to_owned(), "POST".to_owned())], "")
                .await?;
            Ok(Some(wire))
        }
    }
}

/// A request after the handshake.
async fn call(shared: &Shared, mut wire: Wire, exchange: &Exchange) -> Result<Option<Wire>> {
    if exchange.tool() != "ask" {
        let answer = answer(shared, exchange);
        return answer_with(shared, wire, &[], &answer).await;
    }
    execute(shared, exchange);
    wire.open_stream(&[]).await?;
    let (key, question) = question(shared, exchange);
    wire.event(&question).await?;
    let content = tokio::select! {
        answer = posted(shared, &key) => answer,
        () = wire.hung_up() => return Err(crate::Failure::new("the peer no longer waits for the answer")),
    };
    wire.event(&asked(exchange, &content)).await?;
    wire.end_stream().await?;
    Ok(Some(wire))
}

async fn answer_with(
    shared: &Shared,
    mut wire: Wire,
    headers: &[(String, String)],
    answer: &str,
) -> Result<Option<Wire>> {
    if shared.behaviour.events {
        wire.open_stream(headers).await?;
        wire.event(answer).await?;
        wire.end_stream().await?;
    } else {
        let mut headers = headers.to_vec();
        headers.push(("content-type".to_owned(), "application/json".to_owned()));
        wire.respond(200, &headers, answer).await?;
    }
    Ok(Some(wire))
}

async fn refuse(mut wire: Wire, status: u16, error: &Value) -> Result<Option<Wire>> {
    let headers = [("content-type".to_owned(), "application/json".to_owned())];
    wire.respond(status, &headers, &error.to_string()).await?;
    Ok(Some(wire))
}

/// Sends everything that is pushed until the peer or the session is gone.
async fn stream(shared: &Shared, mut wire: Wire, session: &str) -> Result<Option<Wire>> {
    let (sender, mut pushed) = mpsc::channel(STREAM_QUEUE);
    shared.state().streams.push((session.to_owned(), sender));
    loop {
        let message = tokio::select! {
            message = pushed.recv() => message,
            () = wire.hung_up() => return Err(crate::Failure::new("the peer no longer listens")),
        };
        match message {
            Some(message) => wire.event(&message).await?,
            None => break,
        }
    }
    wire.end_stream().await?;
    Ok(Some(wire))
}

fn mint(shared: &Shared) -> String {
    let mut state = shared.state();
    state.minted += 1;
    let id = format!("upstream-session-{}", state.minted);
    state.sessions.insert(id.clone());
    id
}

fn forget(shared: &Shared, session: &str) {
    let mut state = shared.state();
    state.sessions.remove(session);
    state.streams.retain(|(known, _)| known != session);
}

fn execute(shared: &Shared, exchange: &Exchange) {
    shared.state().executions.push(exchange.body["params"].clone());
}

/// What a request leads to, in the words of the legacy era.
fn answer(shared: &Shared, exchange: &Exchange) -> String {
    match exchange.method() {
        "tools/call" => {
            execute(shared, exchange);
            let text = exchange.body["params"]["arguments"]["text"].as_str();
            result(exchange, tool_result(text.unwrap_or("done")))
        }
        "tools/list" => {
            let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
            result(exchange, json!({"tools": [tool("echo"), tool("ask")]}))
        }
        "resources/list" => result(exchange, json!({"resources": []})),
        "resources/read" => {
            let uri = &exchange.body["params"]["uri"];
            result(
                exchange,
                json!({"contents": [{"uri": uri, "text": "a resource"}]}),
            )
        }
        "prompts/list" => result(exchange, json!({"prompts": []})),
        "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => {
            result(exchange, json!({}))
        }
        method => {
            let error = json!({"code": -32601, "message": format!("no method {method}")});
            json!({"jsonrpc": "2.0", "id": exchange.body["id"], "error": error}).to_string()
        }
    }
}

fn result(exchange: &Exchange, result: Value) -> String {
    json!({"jsonrpc": "2.0", "id": exchange.body["id"], "result": result}).to_string()
}

fn tool_result(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn capabilities() -> Value {
    json!({
        "tools": {"listChanged": true},
        "resources": {"subscribe": true, "listChanged": true},
        "prompts": {},
        "logging": {},
    })
}

fn initialize_result(version: &Value) -> Value {
    json!({
        "protocolVersion": version,
        "capabilities": capabilities(),
        "serverInfo": {"name": "upstream", "version": "1"},
    })
}

/// A question to the client, and the key under which its answer will be noted.
fn question(shared: &Shared, exchange: &Exchange) -> (String, String) {
    let id = {
        let mut state = shared.state();
        state.minted += 1;
        format!("question-{}", state.minted)
    };
    let params = question_params(exchange);
    let question = json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params});
    (json!(id).to_string(), question.to_string())
}

fn question_params(exchange: &Exchange) -> Value {
    let message = exchange.body["params"]["arguments"]["text"]
        .as_str()
        .unwrap_or("Well?");
    let schema = json!({"type": "object", "properties": {"answer": {"type": "string"}}});
    json!({"message": message, "requestedSchema": schema})
}

fn asked(exchange: &Exchange, answer: &Value) -> String {
    let said = answer["content"]["answer"].as_str().unwrap_or("nothing");
    result(exchange, tool_result(&format!("You said {said}.")))
}

fn note_answer(shared: &Shared, exchange: &Exchange) {
    if let (Some(id), Some(result)) = (exchange.body.get("id"), exchange.body.get("result")) {
        shared.state().answers.insert(id.to_string(), result.clone());
        shared.answered.notify_waiters();
    }
}

/// The answer that was posted to a question.
async fn posted(shared: &Shared, key: &str) -> Value {
    loop {
        let more = shared.answered.notified();
        tokio::pin!(more);
        // From here on no arrival is missed.
        more.as_mut().enable();
        if let Some(answer) = shared.state().answers.remove(key) {
            return answer;
        }
        more.await;
    }
}
