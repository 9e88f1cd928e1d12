//! A house with two tenants: tokens, their configuration, and clients that carry them.

use serde_json::{Value, json};
use testkit::token::{Token, token, tokens_key};
use testkit::{LEGACY, MODERN, McpClient, Reply, Result, Rialto};

pub(crate) const UNKNOWN_SESSION: &str = "3b241101-e2bb-4255-8caf-4136c566a962";

/// `alice` and `bob` at one destination.
pub(crate) struct Fixture {
    pub(crate) rialto: Rialto,
    pub(crate) alice: Token,
    pub(crate) bob: Token,
}

impl Fixture {
    /// `destination` is what stands behind `shared:` in the file.
    pub(crate) async fn with(destination: &str) -> Result<Self> {
        let (alice, bob) = (token("alice"), token("bob"));
        let tokens = tokens_key(&[("alice", &alice), ("bob", &bob)]);
        let config = format!(
            "audit: {{dir}}/audit.jsonl\nauth:\n{tokens}destinations:\n  shared: {destination}\n  other: {{ command: '{{stub}}' }}\n"
        );
        let rialto = Rialto::launcher()
            .config(&config)
            .env("RUST_LOG", "trace")
            .start()
            .await?;
        Ok(Self { rialto, alice, bob })
    }

    pub(crate) async fn with_stub() -> Result<Self> {
        Self::with("{ command: ['{stub}', --journal, '{dir}/journal'] }").await
    }

    pub(crate) async fn client(&self, token: &Token) -> Result<McpClient> {
        let client = self.rialto.client_of("shared").await?;
        Ok(client.with_header("authorization", &format!("Bearer {}", token.token)))
    }

    /// A client whose session is open.
    pub(crate) async fn session(&self, token: &Token, capabilities: Value) -> Result<McpClient> {
        let client = self.client(token).await?;
        client.handshake(LEGACY, capabilities).await?;
        Ok(client)
    }
}

/// A request of the modern era, with the headers that go with it.
pub(crate) async fn modern(
    client: &McpClient,
    id: u64,
    method: &str,
    mut params: Value,
    token: Option<&str>,
) -> Result<Reply> {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "sampling": {}, "roots": {}},
    });
    let name = params["name"].as_str().map(str::to_owned);
    let authorization = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", MODERN),
        ("mcp-method", method),
    ];
    headers.extend(name.as_deref().map(|name| ("mcp-name", name)));
    headers.extend(authorization.as_deref().map(|value| ("authorization", value)));
    let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    client
        .send("POST", "/shared/mcp", &headers, body.to_string())
        .await?
        .reply()
        .await
}

/// Everything of an answer that its reader can see, but for the date.
pub(crate) fn visible(reply: &Reply) -> (u16, Vec<(String, String)>, String) {
    let headers = reply
        .headers
        .iter()
        .filter(|(name, _)| name.as_str() != "date")
        .map(|(name, value)| (name.to_string(), format!("{value:?}")))
        .collect();
    (reply.status, headers, reply.body_text())
}
