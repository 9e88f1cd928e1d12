//! Arguments that a modern client mirrors in headers, judged before any list of tools was asked
//! for.

use serde_json::json;
use testkit::client::raw_http;
use testkit::{Result, Rialto};

/// A legacy server with one tool, whose argument is mirrored.
const SERVER: &str = r#"
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"server/discover"'*) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"no"}}' ;;
    *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}' ;;
    *'"tools/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"x","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}]}}' ;;
    *'"tools/call"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[]}}' ;;
  esac
done
"#;

/// Calls the tool for region `a`, with the header `header` or without one, as the first thing that
/// ever happens.
async fn first_call(header: Option<&str>) -> Result<(u16, String)> {
    let rialto = Rialto::serve(&["--", "sh", "-c", SERVER]).await?;
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {
            "name": "x", "arguments": { "region": "a" },
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    });
    let mut headers = vec![
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "x"),
    ];
    headers.extend(header.map(|header| ("mcp-param-region", header)));
    let request = raw_http::request("POST", "/mcp", &headers, body.to_string());
    let response = rialto.raw().await?.exchange(request).await?;
    Ok((response.status, response.body_text()))
}

#[tokio::test]
async fn mirrored_argument_is_checked_before_any_client_has_listed_the_tools() -> Result<()> {
    let (status, body) = first_call(Some("b")).await?;
    assert_eq!(status, 400, "{body}");
    assert!(body.contains("-32020"), "{body}");
    Ok(())
}

#[tokio::test]
async fn a_mirrored_argument_that_agrees_passes() -> Result<()> {
    let (status, body) = first_call(Some("a")).await?;
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("\"resultType\":\"complete\""), "{body}");
    Ok(())
}

#[tokio::test]
async fn a_mirrored_argument_without_its_header_is_refused_even_then() -> Result<()> {
    let (status, body) = first_call(None).await?;
    assert_eq!(status, 400, "{body}");
    assert!(body.contains("Mcp-Param-Region is missing"), "{body}");
    Ok(())
}
