//! A modern client whose call waits for its answer while Rialto is restarted.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{Journal, McpClient, PATIENCE, Reply, Result, Rialto};

/// What stays the same from one Rialto to the next.
struct Machine {
    dir: TempDir,
}

impl Machine {
    fn new() -> Result<Self> {
        Ok(Self {
            dir: tempfile::tempdir()?,
        })
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn journal(&self) -> Journal {
        Journal::at(self.path().join("journal"))
    }

    /// Starts Rialto, with these lines in its configuration.
    async fn start(&self, settings: &str) -> Result<Rialto> {
        let journal = self.path().join("journal");
        let destination = format!("command: '{{stub}} --journal {}'", journal.display());
        let text = format!("drain_timeout: 0s\n{settings}destinations: {{ a: {{ {destination} }} }}\n");
        Rialto::with_config(&text).await
    }

    async fn start_with_state(&self) -> Result<Rialto> {
        let state = self.path().join("state");
        self.start(&format!("state_dir: {}\n", state.display())).await
    }
}

/// Sends a call that asks, with these further parameters.
async fn call(client: &McpClient, more: &Value) -> Result<Reply> {
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "ask_elicit"),
    ];
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    });
    let mut params = json!({"name": "ask_elicit", "arguments": {"marker": "asks"}, "_meta": meta});
    for (name, value) in more.as_object().into_iter().flatten() {
        params[name] = value.clone();
    }
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let sent = client.send("POST", "/a/mcp", &headers, call.to_string()).await?;
    sent.reply().await
}

/// Calls, and returns the parameters of the retry that has the client's answers.
async fn asked(rialto: &Rialto) -> Result<Value> {
    let asked = call(&rialto.client_of("a").await?, &json!({})).await?.answer();
    let result = &asked["result"];
    assert_eq!(result["resultType"], "input_required", "{asked}");
    let questions = result["inputRequests"].as_object().expect("questions");
    let answers = questions.keys().map(|key| {
        let answer = json!({"action": "accept", "content": {}});
        (key.clone(), answer)
    });
    let answers: serde_json::Map<String, Value> = answers.collect();
    Ok(json!({"requestState": result["requestState"], "inputResponses": answers}))
}

fn assert_unknown(reply: &Reply) -> Result<()> {
    reply.expect_error(400, -32602)?;
    assert!(
        reply.body_text().contains("unknown or has expired"),
        "{}",
        reply.body_text()
    );
    Ok(())
}

#[tokio::test]
async fn answer_to_a_call_of_an_earlier_process_learns_that_the_call_was_lost() -> Result<()> {
    for signal in [Signal::TERM, Signal::KILL] {
        let machine = Machine::new()?;
        let first = machine.start_with_state().await?;
        let retry = asked(&first).await?;
        first.signal(signal);
        first.wait(PATIENCE).await;
        first.wait_for_no_children(PATIENCE).await;

        let second = machine.start_with_state().await?;
        let client = second.client_of("a").await?;
        for _ in 0..2 {
            let reply = call(&client, &retry).await?;
            let answer = reply.expect_status(200)?.answer();
            assert_eq!(answer["id"], 7, "{answer}");
            let data = json!({"reason": "owner_lost", "outcome": "unknown"});
            assert_eq!(answer["error"]["data"], data, "{answer}");
        }
        let mut forged = retry.clone();
        let state = retry["requestState"].as_str().expect("a state");
        forged["requestState"] = json!(state.replace(&state[state.len() - 2..], "~~"));
        assert_unknown(&call(&client, &forged).await?)?;
        let executed = machine.journal().events("executed").len();
        assert_eq!(executed, 1, "no retry runs the tool again");

        let retry = asked(&second).await?;
        let reply = call(&client, &retry).await?;
        assert_eq!(reply.answer()["result"]["resultType"], "complete", "{reply:?}");
        assert_unknown(&call(&client, &retry).await?)?;
        assert_eq!(machine.journal().events("executed").len(), 2);
    }
    Ok(())
}

#[tokio::test]
async fn restored_sessions_and_lost_calls_are_counted() -> Result<()> {
    let machine = Machine::new()?;
    let first = machine.start_with_state().await?;
    let session = first.session_of("a").await?.session();
    let retry = asked(&first).await?;
    first.sigkill();
    first.wait(PATIENCE).await;
    let second = machine.start_with_state().await?;
    let client = second.client_of("a").await?;
    call(&client, &retry).await?.expect_status(200)?;
    client.set_session(session.as_deref());
    client.expect_echo("goes on").await?;
    let page = client.metrics().await?;
    for line in [
        r#"rialto_sessions_restored_total{destination="a"} 1"#,
        r#"reason="owner_lost"} 1"#,
    ] {
        assert!(page.contains(line), "{page}");
    }
    let ready = client
        .send("GET", "/ready", &[], "")
        .await?
        .reply()
        .await?
        .answer();
    assert_eq!(ready["destinations"]["a"]["restored"], 1, "{ready}");
    Ok(())
}

#[tokio::test]
async fn state_is_unknown_after_a_restart_without_a_directory() -> Result<()> {
    let machine = Machine::new()?;
    let first = machine.start("").await?;
    let retry = asked(&first).await?;
    first.sigkill();
    first.wait(PATIENCE).await;
    let second = machine.start("").await?;
    assert_unknown(&call(&second.client_of("a").await?, &retry).await?)?;
    assert_eq!(machine.journal().events("executed").len(), 1);
    Ok(())
}

#[tokio::test]
async fn deleted_key_makes_earlier_states_unknown() -> Result<()> {
    let machine = Machine::new()?;
    let first = machine.start_with_state().await?;
    let retry = asked(&first).await?;
    first.sigkill();
    first.wait(PATIENCE).await;
    std::fs::remove_file(machine.path().join("state/key"))?;
    let second = machine.start_with_state().await?;
    assert_unknown(&call(&second.client_of("a").await?, &retry).await?)?;
    Ok(())
}
