//! What a child writes on stderr and beside the protocol: which callers may see it, and that it
//! helps to mend a start.

use serde_json::{Value, json};
use testkit::token::{token, tokens_key};
use testkit::{LEGACY, McpClient, PATIENCE, Reply, Result, Rialto};

const PRIVATE: &str = "DEBUG args={customer: ALICE-PRIVATE}";

/// Two callers with a token each, and their configuration.
fn callers() -> (String, String, String) {
    let (alice, bob) = (token("alice"), token("bob"));
    let auth = format!("auth:\n{}", tokens_key(&[("alice", &alice), ("bob", &bob)]));
    (alice.token, bob.token, auth)
}

async fn session(rialto: &Rialto, destination: &str, token: Option<&str>) -> Result<McpClient> {
    let client = McpClient::connect(&rialto.url_of(destination)).await?;
    let client = match token {
        Some(token) => client.with_header("authorization", &format!("Bearer {token}")),
        None => client,
    };
    client.handshake(LEGACY, json!({})).await?;
    Ok(client)
}

fn data_of(reply: &Reply) -> Value {
    reply.answer()["error"]["data"].clone()
}

fn text_of(reply: &Reply) -> String {
    reply.answer()["error"]["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[tokio::test]
async fn stderr_of_a_shared_child_reaches_no_other_caller() -> Result<()> {
    let (alice, bob, auth) = callers();
    let rialto = Rialto::with_config(&format!(
        "{auth}destinations:
  shared: {{ command: '{{stub}} --journal {{dir}}/a' }}
  shown: {{ command: '{{stub}} --journal {{dir}}/b', error_stderr: true }}
  own: {{ command: '{{stub}} --journal {{dir}}/c', process: per_identity }}
  session: {{ command: '{{stub}} --journal {{dir}}/d', process: per_session }}
"
    ))
    .await?;
    for (destination, crasher, is_shown) in [
        ("shared", &bob, false),
        ("shown", &bob, true),
        ("own", &bob, false),
        ("own", &alice, true),
    ] {
        let of_alice = session(&rialto, destination, Some(&alice)).await?;
        let reply = of_alice.call(1, "stderr", json!({"text": PRIVATE})).await?;
        reply.expect_status(200)?;
        let crashing = session(&rialto, destination, Some(crasher)).await?;
        let reply = crashing.call(2, "exit", json!({"code": 3})).await?;
        let data = data_of(&reply);
        assert_eq!(data["reason"], "upstream_exited", "{reply:?}");
        assert_eq!(
            data["stderr"].to_string().contains("ALICE-PRIVATE"),
            is_shown,
            "{destination}: {data}"
        );
        assert!(
            is_shown || !reply.body_text().contains("ALICE-PRIVATE"),
            "{destination}"
        );
    }
    // One session is one caller.
    let own = session(&rialto, "session", Some(&alice)).await?;
    own.call(1, "stderr", json!({"text": PRIVATE}))
        .await?
        .expect_status(200)?;
    let data = data_of(&own.call(2, "exit", json!({"code": 3})).await?);
    assert!(data["stderr"].to_string().contains("ALICE-PRIVATE"), "{data}");
    // The operator has it in the log all the same.
    let is_it = |log: &Value| log["destination"] == "shared" && log["line"] == PRIVATE;
    rialto.wait_for_log("the log has the line", PATIENCE, is_it).await;
    Ok(())
}

#[tokio::test]
async fn stderr_of_a_child_that_does_not_start_is_hidden_from_distinct_callers() -> Result<()> {
    let (alice, _, auth) = callers();
    let failing = "command: [sh, -c, 'echo SECRET-OF-THE-SERVER >&2; echo NO-MESSAGE; exit 3']";
    for (auth, token, is_shown) in [(auth.as_str(), Some(&alice), false), ("", None, true)] {
        let rialto = Rialto::with_config(&format!("{auth}destinations:\n  d: {{ {failing} }}\n")).await?;
        let client = McpClient::connect(&rialto.url_of("d")).await?;
        let client = match token {
            Some(token) => client.with_header("authorization", &format!("Bearer {token}")),
            None => client,
        };
        let reply = client.initialize(LEGACY, json!({})).await?;
        let text = reply.body_text();
        assert!(text.contains("1 line on stdout was no message"), "{text}");
        for said in ["SECRET-OF-THE-SERVER", "NO-MESSAGE"] {
            assert_eq!(text.contains(said), is_shown, "{text}");
        }
        let ready = client.send("GET", "/ready", &[], "").await?.reply().await?;
        assert!(!ready.body_text().contains("SECRET-OF-THE-SERVER"), "{ready:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_error_of_a_node_program_survives_its_trace() -> Result<()> {
    let trace = "echo 'Error: no API key' >&2; i=0; while [ $i -lt 40 ]; do echo \"    at frame $i\" >&2; i=$((i+1)); done";
    let rialto = Rialto::with_config(&format!(
        "destinations:\n  d: {{ command: [sh, -c, '{}; exit 1'] }}\n",
        trace.replace('\'', "''")
    ))
    .await?;
    let reply = rialto.client_of("d").await?.initialize(LEGACY, json!({})).await?;
    let data = data_of(&reply);
    let lines = data["stderr"].as_array().expect("its stderr");
    assert_eq!(lines.first(), Some(&json!("Error: no API key")), "{data}");
    assert!(lines.len() >= 21, "{data}");
    Ok(())
}

#[tokio::test]
async fn lines_on_stdout_that_are_no_messages_are_reported_when_a_start_fails() -> Result<()> {
    let rialto = Rialto::with_config(
        "destinations:
  ended: { command: [sh, -c, 'printf \"Hello \\033[31mthere\\nsecond\\n\"; exit 3'] }
  hung: { command: [sh, -c, 'echo Listening on port 3000; read a; read b; sleep 60'], start_timeout: 500ms }
",
    )
    .await?;
    let reply = rialto
        .client_of("ended")
        .await?
        .initialize(LEGACY, json!({}))
        .await?;
    let text = text_of(&reply);
    assert!(
        text.contains(r"2 lines on stdout were no messages, the first: Hello \u{1b}[31mthere"),
        "{text}"
    );
    assert_eq!(data_of(&reply)["strayOutput"]["lines"], 2, "{reply:?}");
    let reply = rialto
        .client_of("hung")
        .await?
        .initialize(LEGACY, json!({}))
        .await?;
    let (text, data) = (text_of(&reply), data_of(&reply));
    assert_eq!(data["reason"], "start_timeout", "{reply:?}");
    assert!(text.contains("sh is still starting"), "{text}");
    assert!(
        text.contains("1 line on stdout was no message, the first: Listening on port 3000"),
        "{text}"
    );
    Ok(())
}

#[tokio::test]
async fn a_start_that_writes_to_stderr_is_waited_for() -> Result<()> {
    let slow = "i=0; while [ $i -lt 8 ]; do echo downloading >&2; sleep 0.5; i=$((i+1)); done; exec {stub} --journal {dir}/journal";
    let rialto = Rialto::with_config(&format!(
        "destinations:\n  d: {{ command: [sh, -c, '{slow}'], start_timeout: 3s }}\n"
    ))
    .await?;
    let client = session(&rialto, "d", None).await?;
    client.expect_echo("ready").await?;
    assert_eq!(rialto.journal().starts().len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_variable_that_is_set_here_and_was_not_passed_is_named() -> Result<()> {
    const ERROR: &str = "echo \"Error: BRAVE_API_KEY environment variable is required\" >&2; exit 1";
    let rialto = Rialto::launcher()
        .env("BRAVE_API_KEY", "hush")
        .config(&format!(
            "destinations:\n  d: {{ command: [sh, -c, '{ERROR}'] }}\n"
        ))
        .start()
        .await?;
    let reply = rialto.client_of("d").await?.initialize(LEGACY, json!({})).await?;
    let hint = "`BRAVE_API_KEY` is set here but not passed on: add it under `env`";
    assert!(text_of(&reply).contains(hint), "{reply:?}");
    assert_eq!(data_of(&reply)["hints"], json!([hint]));
    assert!(!reply.body_text().contains("hush"), "{reply:?}");
    let is_it = |log: &Value| log["hint"] == hint;
    rialto.wait_for_log("the log has the hint", PATIENCE, is_it).await;
    Ok(())
}
