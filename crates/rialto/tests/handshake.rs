//! The handshake lives with the child, not with the HTTP request, and which clients share a child.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::processes::send_signal;
use testkit::{Journal, LEGACY, McpClient, PATIENCE, Result, Rialto, wait_until};

const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// One request of every kind that a client sends.
fn requests() -> [(&'static str, Value); 11] {
    [
        ("ping", json!({})),
        ("tools/list", json!({})),
        (
            "tools/call",
            json!({"name": "echo", "arguments": {"marker": "m"}}),
        ),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({"uri": "testkit://one"})),
        ("resources/subscribe", json!({"uri": "testkit://one"})),
        ("prompts/list", json!({})),
        ("prompts/get", json!({"name": "greet"})),
        ("logging/setLevel", json!({"level": "warning"})),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": "w"}}),
        ),
    ]
}

async fn session(rialto: &Rialto, capabilities: Value) -> Result<McpClient> {
    let client = rialto.client().await?;
    client.handshake(LEGACY, capabilities).await?;
    Ok(client)
}

/// Sends one request of every kind; each must be answered with a result.
async fn use_everything(client: &McpClient) -> Result<()> {
    for (method, params) in requests() {
        let reply = client.request(1, method, params).await?;
        let answer = reply.expect_status(200)?.answer();
        assert!(answer.get("result").is_some(), "{method}: {answer}");
    }
    Ok(())
}

async fn pid_of(client: &McpClient) -> Result<String> {
    Ok(client.call(1, "pid", "{}").await?.expect_status(200)?.text())
}

/// Returns what the child of this client received in `initialize`.
async fn introduction(client: &McpClient) -> Result<Value> {
    Ok(serde_json::from_str(
        &client.call(1, "whoami", "{}").await?.text(),
    )?)
}

fn handshakes(journal: &Journal) -> (usize, usize) {
    (
        journal.received("initialize").len(),
        journal.received("notifications/initialized").len(),
    )
}

// One child, many sessions.

#[tokio::test]
async fn a_strict_server_works_through_every_request_of_several_sessions() -> Result<()> {
    let rialto = Rialto::with_stub(&["--strict"]).await?;
    let sessions = [
        session(&rialto, json!({})).await?,
        session(&rialto, json!({})).await?,
        session(&rialto, json!({})).await?,
    ];
    for _ in 0..2 {
        for client in &sessions {
            use_everything(client).await?;
        }
    }
    assert_eq!(handshakes(&rialto.journal()), (1, 1));
    Ok(())
}

#[tokio::test]
async fn a_strict_server_works_for_clients_that_never_shake_hands() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--max-sessions", "50"])
        .stub(&["--strict"])
        .start()
        .await?;
    let client = rialto.client().await?;
    for _ in 0..2 {
        use_everything(&client).await?;
    }
    assert_eq!(client.session(), None);
    assert_eq!(handshakes(&rialto.journal()), (1, 1));
    Ok(())
}

#[tokio::test]
async fn a_strict_server_works_for_all_its_sessions_after_a_crash() -> Result<()> {
    let rialto = Rialto::with_stub(&["--strict"]).await?;
    let opened = [
        session(&rialto, json!({})).await?,
        session(&rialto, json!({})).await?,
    ];
    let implicit = rialto.client().await?;
    let reply = implicit.call(1, "echo", json!({"marker": "m"})).await?;
    implicit.set_session(reply.header("mcp-session-id"));
    send_signal(rialto.journal().starts()[0], Signal::KILL);
    wait_until("the child is restarted", PATIENCE, || {
        (rialto.journal().starts().len() == 2).then_some(())
    })
    .await;
    for client in opened.iter().chain([&implicit]) {
        use_everything(client).await?;
    }
    assert_eq!(handshakes(&rialto.journal()), (2, 2), "each child had its own");
    Ok(())
}

#[tokio::test]
async fn a_stateless_server_works_for_sessions_without_sessions_and_after_a_crash() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--max-sessions", "50"])
        .stub(&["--stateless"])
        .start()
        .await?;
    let (opened, implicit) = (session(&rialto, json!({})).await?, rialto.client().await?);
    use_everything(&opened).await?;
    use_everything(&implicit).await?;
    send_signal(rialto.journal().starts()[0], Signal::KILL);
    wait_until("the child is restarted", PATIENCE, || {
        (rialto.journal().starts().len() == 2).then_some(())
    })
    .await;
    use_everything(&opened).await?;
    use_everything(&implicit).await?;
    Ok(())
}

#[tokio::test]
async fn later_sessions_are_answered_from_the_stored_handshake() -> Result<()> {
    let rialto = Rialto::with_stub(&["--strict"]).await?;
    let mut results = Vec::new();
    for _ in 0..5 {
        results.push(
            rialto
                .client()
                .await?
                .handshake(LEGACY, json!({}))
                .await?
                .answer()["result"]
                .clone(),
        );
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{results:?}");
    assert_eq!(handshakes(&rialto.journal()), (1, 1));
    Ok(())
}

#[tokio::test]
async fn many_first_clients_at_once_make_one_handshake() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--max-sessions", "20"])
        .stub(&["--strict", "--slow-start", "300"])
        .start()
        .await?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let client = rialto.client().await?;
        tasks.spawn(async move {
            client.handshake(LEGACY, json!({})).await?;
            pid_of(&client).await
        });
    }
    let mut pids = Vec::new();
    while let Some(pid) = tasks.join_next().await {
        pids.push(pid.expect("no panic")?);
    }
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
    assert_eq!(handshakes(&rialto.journal()), (1, 1));
    Ok(())
}

#[tokio::test]
async fn a_second_initialize_in_a_session_gets_400_and_the_child_sees_nothing() -> Result<()> {
    let rialto = Rialto::with_stub(&["--strict"]).await?;
    let client = session(&rialto, json!({})).await?;
    let params =
        json!({"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}});
    client
        .request(3, "initialize", params)
        .await?
        .expect_status(400)?;
    use_everything(&client).await?;
    assert_eq!(handshakes(&rialto.journal()), (1, 1));
    Ok(())
}

// Versions.

#[tokio::test]
async fn every_older_revision_is_spoken_back_to_the_client_that_asked_for_it() -> Result<()> {
    for version in VERSIONS {
        let rialto = Rialto::with_stub(&["--strict"]).await?;
        let client = rialto.client().await?;
        let reply = client.handshake(version, json!({})).await?;
        assert_eq!(reply.answer()["result"]["protocolVersion"], version);
        use_everything(&client).await?;
    }
    Ok(())
}

#[tokio::test]
async fn clients_of_different_revisions_share_one_child() -> Result<()> {
    let rialto = Rialto::with_stub(&["--strict"]).await?;
    for version in VERSIONS {
        let client = rialto.client().await?;
        let reply = client.handshake(version, json!({})).await?;
        assert_eq!(reply.answer()["result"]["protocolVersion"], version);
        use_everything(&client).await?;
    }
    assert_eq!(
        (rialto.journal().starts().len(), handshakes(&rialto.journal())),
        (1, (1, 1))
    );
    Ok(())
}

#[tokio::test]
async fn an_unknown_revision_is_answered_with_one_that_is_known() -> Result<()> {
    for asked in ["1999-01-01", "2026-07-28", "2099-01-01"] {
        let rialto = Rialto::with_stub(&["--strict", "--version", "2025-11-25"]).await?;
        let client = rialto.client().await?;
        let reply = client.handshake(asked, json!({})).await?;
        assert_eq!(
            reply.answer()["result"]["protocolVersion"],
            LEGACY,
            "asked for {asked}"
        );
        use_everything(&client).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_version_header_that_is_not_supported_gets_400_and_none_is_fine() -> Result<()> {
    let rialto = Rialto::with_stub(&["--strict"]).await?;
    let client = session(&rialto, json!({})).await?;
    client.set_version(Some("1999-01-01"));
    client.request(1, "tools/list", "{}").await?.expect_status(400)?;
    client.set_version(None);
    client.request(1, "tools/list", "{}").await?.expect_status(200)?;
    Ok(())
}

// Instances.

#[tokio::test]
async fn clients_with_different_capabilities_get_children_with_those_capabilities() -> Result<()> {
    let yaml = "destinations:\n  d: { command: '{stub} --strict --journal {dir}/journal', capabilities: per_client }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let session = async |capabilities: Value| {
        let client = rialto.client_of("d").await?;
        client.handshake(LEGACY, capabilities).await?;
        Ok::<_, testkit::Failure>(client)
    };
    let able = json!({"elicitation": {}, "sampling": {}, "roots": {"listChanged": true}});
    let (plain, asked) = (session(json!({})).await?, session(able.clone()).await?);
    let (plain_again, asked_again) = (session(json!({})).await?, session(able.clone()).await?);
    assert_ne!(pid_of(&plain).await?, pid_of(&asked).await?);
    assert_eq!(pid_of(&plain).await?, pid_of(&plain_again).await?);
    assert_eq!(pid_of(&asked).await?, pid_of(&asked_again).await?);
    assert_eq!(introduction(&plain).await?["capabilities"], json!({}));
    assert_eq!(introduction(&asked).await?["capabilities"], able);
    let text = plain.call(1, "ask_elicit", json!({"polite": true})).await?.text();
    assert_eq!(
        text, "the client cannot do that",
        "the server takes its own way out"
    );
    assert_eq!(handshakes(&rialto.journal()), (2, 2));
    Ok(())
}

#[tokio::test]
async fn client_that_finds_no_room_joins_the_child_that_suits_it_best() -> Result<()> {
    let yaml = "destinations:\n  d: { command: '{stub} --journal {dir}/journal', capabilities: per_client, max_children: 2 }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let pid = async |capabilities: Value| {
        let client = rialto.client_of("d").await?;
        client.handshake(LEGACY, capabilities).await?;
        pid_of(&client).await
    };
    let plain = pid(json!({})).await?;
    let samples = pid(json!({"sampling": {}, "roots": {}})).await?;
    assert_ne!(plain, samples);
    assert_eq!(pid(json!({"sampling": {}})).await?, samples, "it was told more");
    assert_eq!(
        pid(json!({"elicitation": {}})).await?,
        plain,
        "neither fits, and this one asks less"
    );
    assert_eq!(rialto.journal().starts().len(), 2);
    Ok(())
}

/// Rialto in front of the stub with these flags, at default settings, and a journal.
async fn by_default(flags: &str) -> Result<Rialto> {
    let yaml = format!("destinations:\n  d: {{ command: '{{stub}} {flags} --journal {{dir}}/journal' }}\n");
    Rialto::with_config(&yaml).await
}

#[tokio::test]
async fn clients_of_every_kind_share_one_child_by_default() -> Result<()> {
    let rialto = by_default("--strict").await?;
    let mut pids = Vec::new();
    for capabilities in [
        json!({}),
        json!({"sampling": {}}),
        json!({"roots": {"listChanged": true}}),
        json!({"elicitation": {"url": {}}}),
        json!({"sampling": {"tools": {}}, "elicitation": {}}),
        json!({"tasks": {}}),
    ] {
        let client = rialto.client_of("d").await?;
        client.handshake(LEGACY, capabilities).await?;
        pids.push(pid_of(&client).await?);
    }
    let modern = rialto
        .client_of("d")
        .await?
        .with_header("mcp-method", "tools/call")
        .with_header("mcp-name", "pid");
    modern.set_version(Some("2026-07-28"));
    let described = json!({"name": "pid", "arguments": {}, "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"sampling": {}},
    }});
    let reply = modern.request(1, "tools/call", described).await?;
    pids.push(reply.expect_status(200)?.text());
    pids.dedup();
    assert_eq!(pids.len(), 1, "{pids:?}");
    assert_eq!(rialto.journal().starts().len(), 1);
    assert_eq!(handshakes(&rialto.journal()), (1, 1));
    Ok(())
}

/// FAULTS H6: a client that invents capabilities.
#[tokio::test]
async fn invented_names_start_no_child() -> Result<()> {
    for capabilities in ["union", "per_client"] {
        let yaml = format!(
            "destinations:\n  d: {{ command: '{{stub}} --journal {{dir}}/journal', capabilities: {capabilities}, max_sessions: 100 }}\n"
        );
        let rialto = Rialto::with_config(&yaml).await?;
        for number in 0..31 {
            let client = rialto.client_of("d").await?;
            let invented =
                json!({"extensions": {format!("com.example/{number}"): {}}, "experimental": {"n": number}});
            client.initialize(LEGACY, invented).await?.expect_status(200)?;
        }
        assert_eq!(rialto.journal().starts().len(), 1, "{capabilities}");
    }
    Ok(())
}

#[tokio::test]
async fn union_destination_has_one_child_with_all_capabilities() -> Result<()> {
    let yaml = "destinations:\n  d: { command: '{stub} --strict', capabilities: union }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let (plain, able) = (rialto.client_of("d").await?, rialto.client_of("d").await?);
    plain.handshake(LEGACY, json!({})).await?;
    able.handshake(LEGACY, json!({"elicitation": {}})).await?;
    assert_eq!(pid_of(&plain).await?, pid_of(&able).await?);
    let told = introduction(&plain).await?["capabilities"].clone();
    for capability in ["elicitation", "sampling", "roots"] {
        assert!(told.get(capability).is_some(), "{told}");
    }
    assert_eq!(
        told["extensions"]["io.modelcontextprotocol/ui"]["mimeTypes"],
        json!(["text/html;profile=mcp-app"])
    );
    // Rialto refuses what this caller cannot do.
    let refused = plain.call(1, "ask_elicit", json!({"marker": "m"})).await?.text();
    assert!(refused.contains("error"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn per_session_gives_every_session_its_own_child_and_handshake() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--process", "per_session"])
        .stub(&["--strict"])
        .start()
        .await?;
    let sessions = [
        session(&rialto, json!({})).await?,
        session(&rialto, json!({})).await?,
        session(&rialto, json!({})).await?,
    ];
    let mut pids = Vec::new();
    for client in &sessions {
        use_everything(client).await?;
        pids.push(pid_of(client).await?);
    }
    pids.sort();
    pids.dedup();
    assert_eq!((pids.len(), handshakes(&rialto.journal())), (3, (3, 3)));
    Ok(())
}

#[tokio::test]
async fn per_session_children_that_crash_come_back_for_their_own_session() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--process", "per_session"])
        .stub(&["--strict"])
        .start()
        .await?;
    let (one, other) = (
        session(&rialto, json!({})).await?,
        session(&rialto, json!({})).await?,
    );
    let untouched = pid_of(&other).await?;
    let before = pid_of(&one).await?;
    one.call(1, "exit", "{}").await?.expect_failed(503)?;
    use_everything(&one).await?;
    assert_ne!(pid_of(&one).await?, before);
    assert_eq!(pid_of(&other).await?, untouched);
    Ok(())
}

const PER_IDENTITY: &str = "destinations:
  d:
    command: '{stub} --strict'
    process: per_identity
    env_from_headers: { GITHUB_TOKEN: X-GitHub-Token }
";

/// Only other replicas may send it, on a listener of their own; a Rialto in no fleet has none.
#[tokio::test]
async fn header_of_replicas_is_removed_from_what_clients_send() -> Result<()> {
    let config = PER_IDENTITY.replace("X-GitHub-Token", "Rialto-Forwarded");
    let rialto = Rialto::with_config(&config).await?;
    let client = rialto.client_of("d").await?;
    let client = client.with_header("Rialto-Forwarded", "1; from=a; hops=1");
    client.handshake(LEGACY, json!({})).await?;
    let env = client.call(1, "env", json!({"name": "GITHUB_TOKEN"})).await?;
    assert!(!env.text().contains("from=a"), "{env:?}");
    Ok(())
}

#[tokio::test]
async fn per_identity_gives_each_header_value_its_own_child_with_that_value() -> Result<()> {
    let rialto = Rialto::with_config(PER_IDENTITY).await?;
    let open = async |token: &str| {
        let client = rialto.client_of("d").await?.with_header("X-GitHub-Token", token);
        client.handshake(LEGACY, json!({})).await?;
        Result::Ok(client)
    };
    let (ann, bob, ann_again) = (
        open("token-of-ann").await?,
        open("token-of-bob").await?,
        open("token-of-ann").await?,
    );
    for (client, token) in [
        (&ann, "token-of-ann"),
        (&bob, "token-of-bob"),
        (&ann_again, "token-of-ann"),
    ] {
        assert_eq!(
            client
                .call(1, "env", json!({"name": "GITHUB_TOKEN"}))
                .await?
                .text(),
            token
        );
        use_everything(client).await?;
    }
    assert_ne!(pid_of(&ann).await?, pid_of(&bob).await?);
    assert_eq!(pid_of(&ann).await?, pid_of(&ann_again).await?);
    let said = rialto.stderr().join("\n");
    assert!(
        !said.contains("token-of-ann") && !said.contains("token-of-bob"),
        "no secret is ever written"
    );
    Ok(())
}

/// F16: of two values the first counted, and one that could not be read was silently none.
#[tokio::test]
async fn a_header_for_a_variable_that_is_unclear_is_refused() -> Result<()> {
    let rialto = Rialto::with_config(PER_IDENTITY).await?;
    let client = rialto.client_of("d").await?;
    let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}});
    for unclear in [&["one", "two"][..], &["caf\u{e9}"]] {
        let mut headers = vec![
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
        ];
        headers.extend(unclear.iter().map(|value| ("X-GitHub-Token", *value)));
        let reply = client
            .send("POST", "/d/mcp", &headers, body.to_string())
            .await?
            .reply()
            .await?;
        assert_eq!(reply.status, 400, "{unclear:?}: {}", reply.body_text());
        assert!(
            reply.body_text().contains("X-GitHub-Token"),
            "{}",
            reply.body_text()
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_header_values_of_a_session_are_those_it_was_opened_with_also_after_a_crash() -> Result<()> {
    let rialto = Rialto::with_config(&PER_IDENTITY.replace("per_identity", "per_session")).await?;
    let client = rialto.client_of("d").await?.with_header("X-GitHub-Token", "mine");
    client.handshake(LEGACY, json!({})).await?;
    client.call(1, "exit", "{}").await?.expect_failed(503)?;
    assert_eq!(
        client
            .call(1, "env", json!({"name": "GITHUB_TOKEN"}))
            .await?
            .text(),
        "mine"
    );
    Ok(())
}
