//! What outlives a restart of Rialto, and what a list from disk becomes.

use serde_json::json;
use testkit::{McpClient, PATIENCE, Result, Rialto, wait_until};

use crate::fixture::{config, keys, legacy, modern, next, tools, wait_for_tools, with_config};

/// A server whose tools are those in a file, and which ends at once if there is none.
const SERVER: &str = r#"
[ -e "$1" ] || exit 3
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"server/discover"'*) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"no"}}' ;;
    *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"s","version":"1"}}}' ;;
    *'"tools/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":'$(cat "$1")'}}' ;;
    *'"tools/call"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[]}}' ;;
  esac
done
"#;

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    fn offers(&self, names: &[&str]) -> Result<()> {
        let tool = |name: &&str| json!({"name": name, "inputSchema": {"type": "object"}});
        let tools: Vec<serde_json::Value> = names.iter().map(tool).collect();
        Ok(std::fs::write(
            self.0.path().join("tools"),
            json!(tools).to_string(),
        )?)
    }

    async fn start(&self) -> Result<Rialto> {
        let command = json!(["sh", "-c", SERVER, "sh", self.0.path().join("tools")]);
        let destinations = format!("  filed: {{ command: {command} }}\n  other: {{ command: '{{stub}}' }}\n");
        let text = format!(
            "state_dir: {}/state\n{}",
            self.0.path().display(),
            config(&destinations, "[filed, other]")
        );
        with_config(&text).await
    }

    async fn stored(&self) {
        let offers = self.0.path().join("state/offers");
        wait_until("both offers are stored", PATIENCE, || {
            let is_there = |name: &&str| offers.join(name).exists();
            ["filed.json", "other.json"].iter().all(is_there).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn list_from_disk_is_corrected_and_its_clients_are_notified() -> Result<()> {
    let home = Home::new()?;
    home.offers(&["before"])?;
    {
        let rialto = home.start().await?;
        let client = legacy(&rialto).await?;
        wait_for_tools(&client, |tools| tools.contains(&"filed__before".to_owned())).await;
        home.stored().await;
    }
    home.offers(&["after"])?;
    let rialto = home.start().await?;
    let client = legacy(&rialto).await?;
    let mut stream = client.get_stream(None).await?;
    if !tools(&client).await?.contains(&"filed__after".to_owned()) {
        next(&mut stream, "notifications/tools/list_changed").await?;
    }
    let now = tools(&client).await?;
    assert!(
        now.contains(&"filed__after".to_owned()) && !now.contains(&"filed__before".to_owned()),
        "{now:?}"
    );
    Ok(())
}

#[tokio::test]
async fn tools_of_a_member_that_cannot_start_stay_listed_and_a_call_gives_the_reason() -> Result<()> {
    let home = Home::new()?;
    home.offers(&["kept"])?;
    {
        let rialto = home.start().await?;
        let client = legacy(&rialto).await?;
        wait_for_tools(&client, |tools| tools.contains(&"filed__kept".to_owned())).await;
        home.stored().await;
    }
    std::fs::remove_file(home.0.path().join("tools"))?;
    let rialto = home.start().await?;
    let client = legacy(&rialto).await?;
    let names = tools(&client).await?;
    assert!(names.contains(&"filed__kept".to_owned()), "{names:?}");
    let answer = client.call(1, "filed__kept", json!({})).await?.answer();
    assert_eq!(
        answer["result"]["isError"], true,
        "the model reads the reason: {answer}"
    );
    let text = answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_default();
    assert!(text.contains("`filed`") && text.contains('3'), "{answer}");
    let listed = modern(&rialto, "tools/list", json!({})).await?;
    assert_eq!(keys(&listed["result"], "tools", "name"), names);
    let state = &listed["result"]["_meta"]["rialto/members"]["filed"];
    assert_eq!(state["state"], "down", "{listed}");
    assert!(state["since"].as_u64().is_some_and(|since| since > 0), "{listed}");
    Ok(())
}

#[tokio::test]
async fn session_of_an_aggregate_goes_on_after_a_restart_with_its_subscriptions() -> Result<()> {
    let home = Home::new()?;
    home.offers(&["x"])?;
    let (session, version) = {
        let rialto = home.start().await?;
        let client = legacy(&rialto).await?;
        wait_for_tools(&client, |tools| tools.contains(&"other__update".to_owned())).await;
        crate::fixture::result(
            &client,
            "resources/subscribe",
            json!({"uri": "other+testkit://one"}),
        )
        .await?;
        home.stored().await;
        let session = client.session();
        rialto.sigterm();
        rialto.wait(PATIENCE).await;
        (session, testkit::LEGACY)
    };
    let rialto = home.start().await?;
    let client: McpClient = rialto.client_of("all").await?;
    client.set_session(session.as_deref());
    client.set_version(Some(version));
    let mut stream = client.get_stream(None).await?;
    let called = client
        .call(1, "other__update", json!({"uri": "testkit://one"}))
        .await?;
    called.expect_status(200)?;
    let updated = next(&mut stream, "notifications/resources/updated").await?;
    assert_eq!(updated["params"]["uri"], "other+testkit://one", "{updated}");
    Ok(())
}
