//! Aggregates under test, and clients of both eras.

use serde_json::{Value, json};
use testkit::client::{EventStream, Response};
use testkit::{Failure, Journal, LEGACY, MODERN, McpClient, PATIENCE, Result, Rialto, poll_until};

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// A legacy server on stdio that misbehaves on request.
pub(crate) const OLD: &str = "  old: { command: '{stub} --journal {dir}/journal-old' }\n";
/// Two servers of one kind.
pub(crate) const TWO: &str = "  a: { command: '{stub} --journal {dir}/journal-a' }\n  b: { command: '{stub} --journal {dir}/journal-b' }\n";
/// A modern server on stdio.
pub(crate) const NEW: &str = "  new: { command: ['{rialto}', demo-server, --era, modern] }\n";

/// Starts Rialto with these destinations, and an aggregate `all` of these members.
pub(crate) async fn aggregate(destinations: &str, members: &str) -> Result<Rialto> {
    with_config(&config(destinations, members)).await
}

pub(crate) fn config(destinations: &str, members: &str) -> String {
    format!("destinations:\n{destinations}aggregates:\n  all: {{ members: {members} }}\n")
}

pub(crate) async fn with_config(text: &str) -> Result<Rialto> {
    Rialto::with_config(&in_place(text)).await
}

pub(crate) fn in_place(text: &str) -> String {
    text.replace("{rialto}", env!("CARGO_BIN_EXE_rialto"))
}

/// Starts Rialto with a legacy and a modern member.
pub(crate) async fn mixed() -> Result<Rialto> {
    aggregate(&format!("{OLD}{NEW}"), "[old, new]").await
}

/// A legacy client that has shaken hands.
pub(crate) async fn legacy(rialto: &Rialto) -> Result<McpClient> {
    legacy_with(rialto, json!({})).await
}

pub(crate) async fn legacy_with(rialto: &Rialto, capabilities: Value) -> Result<McpClient> {
    let client = rialto.client_of("all").await?;
    client.handshake(LEGACY, capabilities).await?;
    Ok(client)
}

/// Returns the result of a legacy request.
pub(crate) async fn result(client: &McpClient, method: &str, params: Value) -> Result<Value> {
    let answer = client.request(7, method, params).await?.answer();
    assert!(answer.get("error").is_none(), "{method}: {answer}");
    Ok(answer["result"].clone())
}

/// Returns the answer to a modern request.
pub(crate) async fn modern(rialto: &Rialto, method: &str, params: Value) -> Result<Value> {
    let request = Modern {
        path: "/all/mcp",
        capabilities: json!({"elicitation": {}}),
        headers: &[],
    };
    Ok(request
        .open(rialto, method, params)
        .await?
        .reply()
        .await?
        .answer())
}

/// How a modern client asks.
pub(crate) struct Modern<'a> {
    pub(crate) path: &'a str,
    pub(crate) capabilities: Value,
    /// Beside those that mirror the body.
    pub(crate) headers: &'a [(&'a str, &'a str)],
}

impl Modern<'_> {
    /// Sends a request with the id 7.
    pub(crate) async fn open(&self, rialto: &Rialto, method: &str, mut params: Value) -> Result<Response> {
        let client = rialto.client_of("all").await?;
        let token = params["_meta"]["progressToken"].take();
        params["_meta"] = json!({VERSION: MODERN, CAPABILITIES: self.capabilities});
        if !token.is_null() {
            params["_meta"]["progressToken"] = token;
        }
        let name = ["name", "uri", "taskId"]
            .into_iter()
            .find_map(|key| params[key].as_str())
            .map(str::to_owned);
        let mut headers = vec![
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", MODERN),
            ("mcp-method", method),
        ];
        headers.extend(name.as_deref().map(|name| ("mcp-name", name)));
        headers.extend(self.headers);
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        client.send("POST", self.path, &headers, body.to_string()).await
    }
}

/// Returns what reached a member.
pub(crate) fn journal(rialto: &Rialto, member: &str) -> Journal {
    Journal::at(rialto.dir().join(format!("journal-{member}")))
}

/// Returns the names or URIs of a list.
pub(crate) fn keys(list: &Value, member: &str, key: &str) -> Vec<String> {
    let items = list[member].as_array().cloned().unwrap_or_default();
    items
        .iter()
        .filter_map(|item| item[key].as_str().map(str::to_owned))
        .collect()
}

pub(crate) async fn tools(client: &McpClient) -> Result<Vec<String>> {
    Ok(keys(
        &result(client, "tools/list", json!({})).await?,
        "tools",
        "name",
    ))
}

/// Waits until the tools that a client is shown are these.
pub(crate) async fn wait_for_tools(client: &McpClient, is_it: impl Fn(&[String]) -> bool) -> Vec<String> {
    let found = poll_until("the tools", PATIENCE, async || {
        let tools = tools(client).await?;
        Ok::<_, testkit::Failure>(is_it(&tools).then_some(tools))
    });
    found.await.expect("the client is answered")
}

/// Waits until the tools of both servers of [`TWO`] are shown, and returns all.
pub(crate) async fn wait_for_two(client: &McpClient) -> Vec<String> {
    wait_for_tools(client, |tools| {
        ["a__pid", "b__pid"]
            .iter()
            .all(|name| tools.iter().any(|tool| tool == name))
    })
    .await
}

/// Returns the next message with this method. Comments that keep a stream alive are no messages.
pub(crate) async fn next(stream: &mut EventStream, method: &str) -> Result<Value> {
    let awaited = async {
        loop {
            let message = stream.message().await?;
            if message["method"] == method {
                return Ok(message);
            }
        }
    };
    let late = |_| Failure::new(format!("no {method} in {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, awaited).await.map_err(late)?
}

/// Waits until any member of the aggregate is known, without a client of it.
pub(crate) async fn wait_until_known(rialto: &Rialto) -> Result<()> {
    poll_until("a member is known", PATIENCE, async || {
        let ready = ready(rialto).await?;
        Ok(ready["destinations"]["all"]["tools"].as_u64().map(drop))
    })
    .await
}

pub(crate) async fn ready(rialto: &Rialto) -> Result<Value> {
    let client = rialto.client_of("all").await?;
    Ok(client
        .send("GET", "/ready", &[], "")
        .await?
        .reply()
        .await?
        .answer())
}
