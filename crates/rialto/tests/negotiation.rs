//! How Rialto learns which era a server speaks: from what the server answers, with clients of both
//! eras arriving meanwhile.

use serde_json::{Value, json};
use testkit::{LEGACY, MODERN, McpClient, PATIENCE, Result, Rialto, poll_until, wait_until};

/// A server that reads nothing until `{dir}/go` is there.
#[derive(Debug, Clone, Copy)]
enum Server {
    LegacyOnly,
    ModernOnly,
}

impl Server {
    fn command(self) -> String {
        match self {
            Self::LegacyOnly => "'{stub} --strict --wait-for {dir}/go'".to_owned(),
            Self::ModernOnly => format!(
                "[sh, -c, 'while [ ! -e {{dir}}/go ]; do sleep 0.01; done; exec {} demo-server --era modern']",
                env!("CARGO_BIN_EXE_rialto")
            ),
        }
    }

    async fn waiting(self, settings: &str) -> Result<Rialto> {
        let command = self.command();
        let yaml = format!("destinations:\n  d: {{ command: {command}, {settings} }}\n");
        Rialto::with_config(&yaml).await
    }

    fn echoes(self, reply: &str, word: &str) -> bool {
        match self {
            Self::LegacyOnly => reply == word,
            Self::ModernOnly => reply.contains(word),
        }
    }
}

fn echo(word: &str) -> Value {
    json!({"marker": word, "message": word, "text": word})
}

/// A legacy client, from its handshake to its first answer.
async fn legacy(rialto: &Rialto, word: &str) -> Result<String> {
    let client = rialto.client_of("d").await?.with_deadline(PATIENCE);
    client.handshake(LEGACY, json!({"roots": {}})).await?;
    Ok(client
        .call(1, "echo", echo(word))
        .await?
        .expect_status(200)?
        .text())
}

async fn modern_client(rialto: &Rialto, tool: &str) -> Result<McpClient> {
    let client = rialto
        .client_of("d")
        .await?
        .with_deadline(PATIENCE)
        .with_header("mcp-method", "tools/call")
        .with_header("mcp-name", tool);
    client.set_version(Some(MODERN));
    Ok(client)
}

/// A modern client's call.
async fn modern(rialto: &Rialto, word: &str) -> Result<String> {
    let client = modern_client(rialto, "echo").await?;
    let params = json!({"name": "echo", "arguments": echo(word), "_meta": {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {"sampling": {}},
    }});
    let reply = client.request(1, "tools/call", params).await?;
    Ok(reply.expect_status(200)?.text())
}

async fn readiness(rialto: &Rialto) -> Result<(u16, Value)> {
    let response = rialto
        .raw()
        .await?
        .exchange(testkit::client::raw_http::request("GET", "/ready", &[], ""))
        .await?;
    Ok((response.status, serde_json::from_str(&response.body_text())?))
}

/// Waits until as many sessions are open, and lets the server start then.
async fn start_when_clients_wait(rialto: &Rialto, sessions: u64) -> Result<()> {
    poll_until("enough sessions are open", PATIENCE, async || {
        let (_, ready) = readiness(rialto).await?;
        let open = ready["destinations"]["d"]["sessions"].as_u64() >= Some(sessions);
        Result::Ok(open.then_some(()))
    })
    .await?;
    std::fs::write(rialto.dir().join("go"), "")?;
    Ok(())
}

/// Clients of both eras come in this order while the server starts. Both are served, and so are the
/// next ones.
async fn both_eras_are_served(server: Server, settings: &str) -> Result<()> {
    let rialto = server.waiting(settings).await?;
    let (first, second, go) = tokio::join!(
        modern(&rialto, "first"),
        legacy(&rialto, "second"),
        start_when_clients_wait(&rialto, 1),
    );
    go?;
    let (first, second) = (first?, second?);
    assert!(server.echoes(&first, "first"), "{first}");
    assert!(server.echoes(&second, "second"), "{second}");
    for word in ["third", "fourth"] {
        let (by_modern, by_legacy) = (modern(&rialto, word).await?, legacy(&rialto, word).await?);
        assert!(server.echoes(&by_modern, word), "{by_modern}");
        assert!(server.echoes(&by_legacy, word), "{by_legacy}");
    }
    Ok(())
}

#[tokio::test]
async fn legacy_handshake_while_a_legacy_server_is_asked_for_its_era_changes_nothing() -> Result<()> {
    for settings in ["start: eager", "start: lazy", "capabilities: per_client"] {
        both_eras_are_served(Server::LegacyOnly, settings).await?;
    }
    Ok(())
}

#[tokio::test]
async fn legacy_handshake_while_a_modern_server_is_asked_for_its_era_changes_nothing() -> Result<()> {
    for settings in ["start: eager", "start: lazy", "capabilities: per_client"] {
        both_eras_are_served(Server::ModernOnly, settings).await?;
    }
    Ok(())
}

#[tokio::test]
async fn destination_is_ready_when_its_server_has_answered() -> Result<()> {
    for server in [Server::LegacyOnly, Server::ModernOnly] {
        let rialto = server.waiting("start: eager").await?;
        let (status, ready) = readiness(&rialto).await?;
        assert_eq!((status, &ready["ready"]), (503, &json!(false)), "{ready}");
        assert_eq!(ready["destinations"]["d"]["ready"], false, "{ready}");
        std::fs::write(rialto.dir().join("go"), "")?;
        let log = |log: &Value| log["message"] == "version negotiation succeeded";
        rialto
            .wait_for_log("version negotiation succeeded", PATIENCE, log)
            .await;
        let (status, ready) = readiness(&rialto).await?;
        assert_eq!(
            (status, &ready["destinations"]["d"]["state"]),
            (200, &json!("ready")),
            "{ready}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn lazy_destination_without_a_request_is_ready() -> Result<()> {
    let rialto = Server::LegacyOnly.waiting("start: lazy").await?;
    let (status, ready) = readiness(&rialto).await?;
    assert_eq!(
        (status, &ready["destinations"]["d"]["state"]),
        (200, &json!("idle")),
        "{ready}"
    );
    Ok(())
}

/// FAULTS H11: servers of early SDKs end at a method that they do not know, before `initialize`.
#[tokio::test]
async fn server_that_exits_on_discover_is_restarted_once_and_remembered() -> Result<()> {
    let yaml = "destinations:\n  d: { command: '{stub} --strict --exit-on-discover --journal {dir}/journal', capabilities: per_client }\n";
    let rialto = Rialto::with_config(yaml).await?;
    assert_eq!(modern(&rialto, "one").await?, "one");
    let journal = rialto.journal();
    assert_eq!(journal.starts().len(), 2);
    // Another kind of client needs another child, which is not asked what killed the first.
    assert_eq!(legacy(&rialto, "two").await?, "two");
    assert_eq!(journal.starts().len(), 3);
    assert_eq!(journal.received("server/discover").len(), 1);
    let (_, ready) = readiness(&rialto).await?;
    assert_eq!(ready["destinations"]["d"]["state"], "ready", "{ready}");
    Ok(())
}

#[tokio::test]
async fn shared_server_that_exits_on_discover_serves_both_eras() -> Result<()> {
    let yaml =
        "destinations:\n  d: { command: '{stub} --strict --exit-on-discover --journal {dir}/journal' }\n";
    let rialto = Rialto::with_config(yaml).await?;
    assert_eq!(modern(&rialto, "one").await?, "one");
    assert_eq!(legacy(&rialto, "two").await?, "two");
    assert_eq!(rialto.journal().starts().len(), 2);
    Ok(())
}

/// A session of its own is introduced in its client's words, and in the other era only if the
/// server refuses them.
#[tokio::test]
async fn session_with_a_child_of_its_own_falls_back_to_the_other_era() -> Result<()> {
    for server in [Server::LegacyOnly, Server::ModernOnly] {
        let rialto = server.waiting("process: per_session").await?;
        std::fs::write(rialto.dir().join("go"), "")?;
        for word in ["one", "two"] {
            let text = legacy(&rialto, word).await?;
            assert!(server.echoes(&text, word), "{text}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn configured_era_is_the_only_one_that_is_tried() -> Result<()> {
    let yaml = "destinations:\n  d: { command: '{stub} --strict --journal {dir}/journal', era: legacy }\n";
    let rialto = Rialto::with_config(yaml).await?;
    assert_eq!(modern(&rialto, "one").await?, "one");
    wait_until("introduced once", PATIENCE, || {
        (rialto.journal().received("initialize").len() == 1).then_some(())
    })
    .await;
    assert!(rialto.journal().received("server/discover").is_empty());
    Ok(())
}
