//! 2026-07-28: no handshake, headers that mirror the body, questions inside results, notifications
//! by listening.

use serde_json::{Value, json};

use super::super::exchange::Exchange;
use super::super::wire::Wire;
use super::super::{STREAM_QUEUE, Shared};
use super::{answer_with, capabilities, execute, question_params, refuse, tool_result};
use crate::failure::Result;
use crate::revision::MODERN;

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

pub(super) async fn usual(shared: &Shared, mut wire: Wire, exchange: &Exchange) -> Result<Option<Wire>> {
    if exchange.http_method != "POST" {
        wire.respond(405, &[("allow".to_owned(), "POST".to_owned())], "")
            .await?;
        return Ok(Some(wire));
    }
    if exchange.body.get("id").is_none() {
        wire.respond(202, &[], "").await?;
        return Ok(Some(wire));
    }
    if let Some((code, message)) = invalid(exchange) {
        let mut error = json!({"code": code, "message": message});
        if code == -32022 {
            error["data"] =
                json!({"supported": [MODERN], "requested": exchange.body["params"]["protocolVersion"]});
        }
        let body = json!({"jsonrpc": "2.0", "id": exchange.body["id"], "error": error});
        return refuse(wire, 400, &body).await;
    }
    let result = match exchange.method() {
        "subscriptions/listen" => return listen(shared, wire, exchange).await,
        "server/discover" => json!({
            "supportedVersions": [MODERN],
            "capabilities": capabilities(),
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "upstream", "version": "1"}},
        }),
        "tools/list" => {
            let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
            json!({"tools": [tool("echo"), tool("ask")], "ttlMs": 0, "cacheScope": "private"})
        }
        "tools/call" => call(shared, exchange),
        method => {
            let error = json!({"code": -32601, "message": format!("no method {method}")});
            let body = json!({"jsonrpc": "2.0", "id": exchange.body["id"], "error": error});
            return refuse(wire, 404, &body).await;
        }
    };
    let mut result = result;
    if result.get("resultType").is_none() {
        result["resultType"] = "complete".into();
    }
    let answer = json!({"jsonrpc": "2.0", "id": exchange.body["id"], "result": result});
    answer_with(shared, wire, &[], &answer.to_string()).await
}

/// What is wrong with the headers and the envelope, if anything.
fn invalid(exchange: &Exchange) -> Option<(i64, String)> {
    let meta = &exchange.body["params"]["_meta"];
    let version = meta["io.modelcontextprotocol/protocolVersion"].as_str();
    if exchange.method() == "initialize" {
        return Some((-32022, "there is no handshake in this revision".to_owned()));
    }
    if version.is_none() || !meta["io.modelcontextprotocol/clientCapabilities"].is_object() {
        return Some((-32602, "the request does not describe itself".to_owned()));
    }
    let params = &exchange.body["params"];
    let name = match exchange.method() {
        "tools/call" | "prompts/get" => params["name"].as_str(),
        "resources/read" => params["uri"].as_str(),
        _ => None,
    };
    let mirrored = [
        ("mcp-protocol-version", version),
        ("mcp-method", Some(exchange.method())),
        ("mcp-name", name),
    ];
    for (header, wanted) in mirrored {
        let all: Vec<&str> = exchange
            .headers
            .iter()
            .filter(|(known, _)| known == header)
            .map(|(_, value)| value.as_str())
            .collect();
        if all != wanted.into_iter().collect::<Vec<_>>() {
            return Some((-32020, format!("{header} is {all:?}, the body says {wanted:?}")));
        }
    }
    (version != Some(MODERN)).then(|| (-32022, "not this revision".to_owned()))
}

fn call(shared: &Shared, exchange: &Exchange) -> Value {
    let params = &exchange.body["params"];
    if exchange.tool() != "ask" {
        execute(shared, exchange);
        return tool_result(params["arguments"]["text"].as_str().unwrap_or("done"));
    }
    match params["inputResponses"]["well"]["content"]["answer"].as_str() {
        Some(said) => {
            execute(shared, exchange);
            tool_result(&format!("You said {said}."))
        }
        None => json!({
            "resultType": "input_required",
            "inputRequests": {"well": {"method": "elicitation/create", "params": question_params(exchange)}},
            "requestState": "the first round",
        }),
    }
}

/// Sends everything that is pushed, under this subscription, until the peer is gone.
async fn listen(shared: &Shared, mut wire: Wire, exchange: &Exchange) -> Result<Option<Wire>> {
    let id = &exchange.body["id"];
    let params = json!({
        "_meta": {SUBSCRIPTION: id},
        "notifications": exchange.body["params"]["notifications"],
    });
    let acknowledged = json!({
        "jsonrpc": "2.0",
        "method": "notifications/subscriptions/acknowledged",
        "params": params,
    });
    wire.open_stream(&[]).await?;
    wire.event(&acknowledged.to_string()).await?;
    let (sender, mut pushed) = tokio::sync::mpsc::channel(STREAM_QUEUE);
    shared.state().streams.push((id.to_string(), sender));
    loop {
        let message = tokio::select! {
            message = pushed.recv() => message,
            () = wire.hung_up() => return Err(crate::Failure::new("the peer no longer listens")),
        };
        let Some(message) = message else { break };
        let mut message: Value = serde_json::from_str(&message)?;
        message["params"]["_meta"][SUBSCRIPTION] = id.clone();
        wire.event(&message.to_string()).await?;
    }
    wire.end_stream().await?;
    Ok(Some(wire))
}
