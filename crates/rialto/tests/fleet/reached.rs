//! What lives on one replica alone and is reached through any other.

use serde_json::{Value, json};
use testkit::{FleetConfig, McpClient, Result};

use super::fixture::{assert_none_ran_twice, executions};

#[tokio::test]
async fn client_of_the_old_transport_posts_through_any_replica() -> Result<()> {
    let fleet = FleetConfig::of_stub("legacy_sse: true").start().await?;
    let url = format!("http://{}/one/sse", fleet.address());
    let client = McpClient::connect(&url).await?;
    let mut stream = client.get_stream(None).await?;
    let endpoint = stream.next().await?.expect("the stream names its endpoint").data;
    let post = async |body: Value| {
        let headers = [("content-type", "application/json")];
        let sent = client.send("POST", &endpoint, &headers, body.to_string()).await?;
        Result::Ok(sent.reply().await?.status)
    };
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}
    }});
    assert_eq!(post(hello).await?, 202);
    assert_eq!(stream.message().await?["id"], 0);
    assert_eq!(
        post(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await?,
        202
    );
    for number in 1..7 {
        let params = json!({"name": "echo", "arguments": {"marker": format!("old-{number}")}});
        let call = json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params});
        assert_eq!(post(call).await?, 202);
        let answer = stream.message().await?;
        assert_eq!(answer["id"], number, "{answer}");
    }
    assert_eq!(executions(&fleet.journal()).len(), 6);
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}
