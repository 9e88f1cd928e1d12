//! The client of the official conformance suite's `auth/*` scenarios, with nothing between it and
//! [`oauth::SignIn`].
//!
//! The suite starts it with the server's address as its last argument and what a scenario gives in
//! the environment: `conformance client --command target/debug/examples/conformance_client --suite
//! auth`.

use oauth::{Browser, Grant, Identity, Secret, Settings, SignIn, SigningKey, StoreSettings};
use serde_json::{Value, json};
use testkit::authorization_server::browser::visit;

const METADATA: &str = "https://conformance-test.local/client-metadata.json";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = std::env::args().next_back().ok_or("no address")?;
    let scenario = std::env::var_os("MCP_CONFORMANCE_SCENARIO").unwrap_or_default();
    let context = std::env::var_os("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    let context: Value = serde_json::from_slice(context.as_encoded_bytes()).unwrap_or_default();
    let home = tempfile::tempdir()?;
    let store = StoreSettings {
        keyring: false,
        ..StoreSettings::at(home.path().join("sign-in"))
    };
    let text = |name: &str| context[name].as_str().map(str::to_owned);
    let mut browser = Browser::opened_by(|url| visit(url.as_str()).map(drop));
    browser.timeout = std::time::Duration::from_secs(5);
    let robot = scenario.to_string_lossy().contains("client-credentials");
    let settings = Settings {
        browser: Some(browser),
        identity: Identity {
            client_id: text("client_id"),
            client_secret: text("client_secret").map(Secret::new),
            client_key: text("private_key_pem").and_then(|pem| SigningKey::from_pem(&pem)),
            metadata_url: Some(METADATA.parse()?),
            issuer: None,
        },
        grant: if robot {
            Grant::ClientCredentials
        } else {
            Grant::AuthorizationCode
        },
        ..Settings::new(endpoint.parse()?, store)
    };
    let client = Client {
        sign_in: SignIn::new(settings),
        http: reqwest::Client::new(),
        endpoint,
    };
    let hello = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": { "name": "rialto", "version": "0" },
    });
    client.send(Some(1), "initialize", hello).await?;
    client.send(None, "notifications/initialized", json!({})).await?;
    client.send(Some(2), "tools/list", json!({})).await?;
    let call = json!({ "name": "test-tool", "arguments": {} });
    client.send(Some(3), "tools/call", call).await?;
    Ok(())
}

struct Client {
    sign_in: SignIn,
    http: reqwest::Client,
    endpoint: String,
}

impl Client {
    async fn send(
        &self,
        id: Option<u32>,
        method: &str,
        params: Value,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let mut message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        if let Some(id) = id {
            message["id"] = id.into();
        }
        for _ in 0..5 {
            let authorization = self.sign_in.authorization().await?;
            let mut request = self.http.post(&self.endpoint).body(message.to_string());
            request = request
                .header("content-type", "application/json")
                .header("accept", "application/json, text/event-stream")
                .header("mcp-protocol-version", "2025-11-25");
            if let Some(authorization) = &authorization {
                request = request.header("authorization", authorization.expose());
            }
            let response = request.send().await?;
            let status = response.status().as_u16();
            if !matches!(status, 401 | 403) {
                return Ok(());
            }
            let challenges = response.headers().get_all("www-authenticate").iter();
            let challenges: Vec<_> = challenges
                .filter_map(|value| value.to_str().ok().map(str::to_owned))
                .collect();
            self.sign_in
                .refused_using(authorization.as_ref(), status, &challenges)
                .await?;
        }
        Err("refused too often".into())
    }
}
