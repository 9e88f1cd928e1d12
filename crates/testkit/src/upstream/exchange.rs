//! What reached the upstream: every request with every header, what was run, and which peers
//! disconnected.

use std::time::Instant;

use serde_json::Value;

/// One request as it was received.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// Counted from 0 in the order of arrival.
    pub number: usize,
    pub http_method: String,
    /// With the query.
    pub path: String,
    /// Names in lower case, in the order they came.
    pub headers: Vec<(String, String)>,
    /// The body as JSON; `null` when there is none or it is something else.
    pub body: Value,
    pub at: Instant,
}

impl Exchange {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The JSON-RPC method; empty for an answer and for a request without a body.
    pub fn method(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    /// The tool of a `tools/call`.
    pub fn tool(&self) -> &str {
        match self.method() {
            "tools/call" => self.body["params"]["name"].as_str().unwrap_or_default(),
            _ => "",
        }
    }

    pub fn session(&self) -> Option<&str> {
        self.header("mcp-session-id")
    }

    /// Returns whether the request is modern: it describes itself.
    pub fn is_modern(&self) -> bool {
        self.body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].is_string()
    }

    /// A resumption of a stream.
    pub fn is_resumption(&self) -> bool {
        self.http_method == "GET" && self.header("last-event-id").is_some()
    }

    /// Returns a text of a script with the values of this request for `{id}`, `{token}` and
    /// `{session}`.
    pub(super) fn filled_into(&self, text: &str) -> String {
        let token = &self.body["params"]["_meta"]["progressToken"];
        text.replace("{id}", &self.body["id"].to_string())
            .replace("{token}", &token.to_string())
            .replace("{session}", self.session().unwrap_or_default())
    }

    /// The same for bytes, which stay as they are if they are no text.
    pub(super) fn filled_into_bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        match String::from_utf8(bytes) {
            Ok(text) => self.filled_into(&text).into_bytes(),
            Err(other) => other.into_bytes(),
        }
    }
}

/// Matches the calls of this tool.
pub fn calls(tool: &'static str) -> impl Fn(&Exchange) -> bool + Send + Sync + 'static {
    move |seen| seen.tool() == tool
}

/// Matches the messages with this method.
pub fn method(method: &'static str) -> impl Fn(&Exchange) -> bool + Send + Sync + 'static {
    move |seen| seen.method() == method
}
