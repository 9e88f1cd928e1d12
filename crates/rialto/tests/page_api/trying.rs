//! The endpoint by way of the page: as a client of either era, for the caller of the page.

use serde_json::{Value, json};
use testkit::client::raw_http::RawResponse;
use testkit::{LEGACY, MODERN, PATIENCE, Result, Rialto, wait_until};

use crate::fixture::{House, OWN, STUB, audited, json, send};

const CONTENT: [(&str, &str); 2] = [
    ("Content-Type", "application/json"),
    ("Accept", "application/json, text/event-stream"),
];

async fn post(rialto: &Rialto, more: &[(&str, &str)], message: &Value) -> Result<RawResponse> {
    let headers = [&OWN[..], &CONTENT[..], more].concat();
    send(
        rialto,
        "POST",
        "/ui/api/mcp/files",
        &headers,
        &message.to_string(),
    )
    .await
}

/// Returns the answer in a response, which is JSON or the last event of a stream.
fn answer(response: &RawResponse) -> Value {
    let text = response.body_text();
    match text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .next_back()
    {
        Some(last) => serde_json::from_str(last).expect("JSON"),
        None => json(response),
    }
}

#[tokio::test]
async fn page_is_a_client_of_the_legacy_era_and_of_the_modern_one() -> Result<()> {
    let rialto = Rialto::with_config(STUB).await?;
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}}});
    let opened = post(&rialto, &[], &hello).await?;
    assert_eq!(opened.status, 200, "{}", opened.body_text());
    let session = opened.header("mcp-session-id").expect("a session").to_owned();
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": "echo", "arguments": {"marker": "legacy"}}});
    let answered = post(&rialto, &[("Mcp-Session-Id", &session)], &call).await?;
    assert_eq!(answer(&answered)["result"]["content"][0]["text"], "legacy");
    let mut call = call;
    call["params"]["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "page", "version": "1"},
    });
    call["params"]["arguments"]["marker"] = "modern".into();
    let headers = [
        ("MCP-Protocol-Version", MODERN),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", "echo"),
    ];
    let answered = post(&rialto, &headers, &call).await?;
    assert_eq!(answered.status, 200, "{}", answered.body_text());
    assert_eq!(answer(&answered)["result"]["content"][0]["text"], "modern");
    let headers = [&OWN[..], &[("Mcp-Session-Id", session.as_str())]].concat();
    let ended = send(&rialto, "DELETE", "/ui/api/mcp/files", &headers, "").await?;
    assert_eq!(ended.status, 204);
    assert_eq!(ended.header("access-control-allow-origin"), None);
    Ok(())
}

#[tokio::test]
async fn admin_tries_a_tool_under_the_name_of_the_token() -> Result<()> {
    let house = House::start().await?;
    let cookie = house.cookie().await?;
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}}});
    let refused = post(&house.rialto, &[], &hello).await?;
    assert_eq!(refused.status, 401, "without the cookie");
    let opened = post(&house.rialto, &[("Cookie", &cookie)], &hello).await?;
    assert_eq!(opened.status, 200, "{}", opened.body_text());
    let line = wait_until("the call is recorded", PATIENCE, || {
        let mut lines = audited(&house.rialto).into_iter();
        lines.find(|line| line["mcp_method"] == "initialize" && line["outcome"] == "ok")
    })
    .await;
    assert_eq!(line["principal"], "root");
    Ok(())
}
