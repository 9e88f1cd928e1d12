//! The gateway that the page shows: servers that work, one that fails, one that is slow to start.

use serde_json::{Value, json};
use testkit::revision::LEGACY;
use testkit::rialto::binary;
use testkit::{McpClient, PATIENCE, Result, Rialto, poll_until};

/// The words that the failing server writes before it ends.
pub(crate) const COMPLAINT: &str = "Error: BRAVE_API_KEY is not set";

/// Returns a configuration with the page, in front of servers of every kind.
pub(crate) fn configuration() -> String {
    let demo = format!("{} demo-server", binary("rialto").display());
    format!(
        "destinations:
  files: {{ command: '{demo}' }}
  old: {{ command: '{demo} --era legacy', process: per_session, start: lazy, max_sessions: 1500 }}
  search: {{ command: sh, args: [-c, 'echo \"{COMPLAINT}\" >&2; exit 3'] }}
  notes: {{ command: '{demo}', start: lazy }}
  later: {{ command: sh, args: [-c, 'sleep 3; exec {demo}'], start: lazy }}
  remote: {{ type: streamable_http, url: 'http://127.0.0.1:9/mcp' }}
  guarded: {{ command: '{demo}', tools: {{ deny: [touch] }} }}
aggregates:
  office: {{ members: [files, search] }}
"
    )
}

/// Starts it, and waits until one server is ready and one has failed for good.
pub(crate) async fn gateway() -> Result<Rialto> {
    let rialto = Rialto::with_config(&configuration()).await?;
    settled(&rialto).await?;
    Ok(rialto)
}

pub(crate) async fn settled(rialto: &Rialto) -> Result<()> {
    let client = rialto.client_of("files").await?;
    poll_until("the servers are ready or have failed", PATIENCE, async || {
        let reply = client.send("GET", "/ready", &[], "").await?.reply().await?;
        let ready: Value = serde_json::from_slice(&reply.body)?;
        let state = |name: &str| ready["destinations"][name]["state"].clone();
        let is_settled =
            state("files") == "ready" && state("search") == "failed" && state("guarded") == "ready";
        Ok::<_, testkit::Failure>(is_settled.then_some(()))
    })
    .await
}

/// Opens a session as a client of this name.
pub(crate) async fn client(rialto: &Rialto, destination: &str, name: &str) -> Result<McpClient> {
    let client = rialto.client_of(destination).await?;
    let info = json!({ "name": name, "version": "1.0" });
    let params = json!({ "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info });
    let reply = client.request(0, "initialize", params).await?;
    client.set_session(reply.header("mcp-session-id"));
    client.set_version(Some(LEGACY));
    client.notify("notifications/initialized", json!({})).await?;
    Ok(client)
}

/// Calls the tool `echo` this often.
pub(crate) async fn echo(client: &McpClient, times: u32) -> Result<()> {
    for number in 0..times {
        let text = json!({ "text": format!("number {number}") });
        let reply = client.call(number + 1, "echo", text).await?;
        assert_eq!(reply.status, 200, "{}", reply.body_text());
    }
    Ok(())
}
