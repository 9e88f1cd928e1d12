//! What is protected: the smallest MCP server of 2025-11-25, without sessions and with one tool.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::{Answer, json_answer, plain};

pub(super) fn answer(body: &str) -> Answer {
    // A GET asks for a stream, which is not offered.
    if body.is_empty() {
        return plain(StatusCode::METHOD_NOT_ALLOWED);
    }
    let message: Value = serde_json::from_str(body).unwrap_or_default();
    let Some(id) = message.get("id") else {
        return plain(StatusCode::ACCEPTED);
    };
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": "2025-11-25",
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "protected", "version": "1" },
        }),
        Some("tools/list") => json!({ "tools": [{ "name": "whoami", "inputSchema": { "type": "object" } }] }),
        Some("ping") => json!({}),
        Some("tools/call") => json!({ "content": [{ "type": "text", "text": "a caller" }] }),
        _ => {
            let error = json!({ "code": -32601, "message": "Method not found" });
            return json_answer(
                StatusCode::OK,
                &json!({ "jsonrpc": "2.0", "id": id, "error": error }),
            );
        }
    };
    json_answer(
        StatusCode::OK,
        &json!({ "jsonrpc": "2.0", "id": id, "result": result }),
    )
}
