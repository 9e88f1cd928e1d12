//! Credentials change while Rialto runs: a revoked one is refused from then on, and its sessions
//! and streams end.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::issuer::now;
use testkit::token::{token, tokens_key};
use testkit::{Issuer, LEGACY, MODERN, McpClient, PATIENCE, Result, Rialto, wait_until};

use super::fixture::modern;

const DESTINATIONS: &str = "destinations:\n  shared:\n    command: ['{stub}', --journal, '{dir}/journal']\n    capabilities: per_client\n  own: { command: '{stub}', process: per_identity, linger: 1h }\n";

/// Starts with this under `auth`.
async fn start(auth: &str) -> Result<Rialto> {
    Rialto::launcher().config(&file(auth)).start().await
}

fn file(auth: &str) -> String {
    format!("public_url: https://mcp.example.com\nauth:\n{auth}{DESTINATIONS}")
}

/// Writes the file anew and reloads it. Returns the log lines about it.
async fn reload(rialto: &Rialto, auth: &str) -> Result<Value> {
    let dir = rialto.dir().to_string_lossy().into_owned();
    let stub = testkit::rialto::binary("testkit-server");
    let text = file(auth)
        .replace("{stub}", &stub.to_string_lossy())
        .replace("{dir}", &dir);
    std::fs::write(rialto.dir().join("destinations.yml"), text)?;
    let reports = || {
        let mut logs = rialto.logs();
        logs.retain(|line| line["message"] == "reloaded");
        logs
    };
    let before = reports().len();
    rialto.signal(Signal::HUP);
    Ok(wait_until("it is reloaded", PATIENCE, || reports().into_iter().nth(before)).await)
}

async fn client(rialto: &Rialto, destination: &str, token: &str) -> Result<McpClient> {
    let client = rialto.client_of(destination).await?;
    Ok(client.with_header("authorization", &format!("Bearer {token}")))
}

async fn session(rialto: &Rialto, destination: &str, token: &str) -> Result<McpClient> {
    let client = client(rialto, destination, token).await?;
    client.handshake(LEGACY, json!({"elicitation": {}})).await?;
    Ok(client)
}

async fn echo(client: &McpClient, marker: &str) -> Result<u16> {
    Ok(client.call(1, "echo", json!({"marker": marker})).await?.status)
}

#[tokio::test]
async fn a_token_that_is_taken_back_is_refused_and_what_it_held_open_ends() -> Result<()> {
    let (alice, bob, carol) = (token("alice"), token("bob"), token("carol"));
    let rialto = start(&tokens_key(&[("alice", &alice), ("bob", &bob)])).await?;
    let alices = session(&rialto, "shared", &alice.token).await?;
    let mut alices_stream = alices.get_stream(None).await?;
    let bobs = session(&rialto, "shared", &bob.token).await?;
    let mut bobs_stream = bobs.get_stream(None).await?;
    let bobs_own = session(&rialto, "own", &bob.token).await?;
    let child = bobs_own.call(1, "pid", "{}").await?.text();
    let child = testkit::processes::Process::read(child.parse().expect("a number")).expect("it runs");
    let mut in_flight = tokio::task::JoinSet::new();
    in_flight.spawn({
        let bobs = bobs.clone();
        async move { bobs.call(1, "never", r#"{"marker":"bobs"}"#).await }
    });
    rialto.wait_for_execution("bobs").await;
    // A listen of the modern era, and a call that waits for its client.
    let modern_client = rialto.client_of("shared").await?;
    let mut listening = open_listen(&rialto, &bob.token).await?;
    let ask = json!({"name": "ask_elicit", "arguments": {"marker": "which?"}});
    let asked = modern(&modern_client, 1, "tools/call", ask.clone(), Some(&bob.token)).await?;
    assert_eq!(
        asked.answer()["result"]["resultType"],
        "input_required",
        "{asked:?}"
    );

    let report = reload(&rialto, &tokens_key(&[("alice", &alice), ("carol", &carol)])).await?;
    assert_eq!(
        (&report["kept"], &report["sessions_ended"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(echo(&bobs, "too late").await?, 401);
    assert_eq!(bobs.get(None).await?.status, 401);
    assert_eq!(
        echo(&client(&rialto, "shared", &bob.token).await?, "too late").await?,
        401
    );
    while bobs_stream.next().await?.is_some() {}
    while listening.next().await?.is_some() {}
    for reply in in_flight.join_all().await {
        assert_eq!(reply?.outcome_status(), 404, "its session has ended");
    }
    wait_until("the child of Bob alone is gone", PATIENCE, || {
        (!child.is_alive()).then_some(())
    })
    .await;
    // Bob's session belongs to no caller now, not even to a new token with the same name.
    assert_eq!(rialto.journal().executions("too late"), 0);
    assert_eq!(
        echo(&session(&rialto, "shared", &carol.token).await?, "welcome").await?,
        200
    );

    // Alice has noticed nothing.
    assert_eq!(echo(&alices, "still here").await?, 200);
    alices.call(2, "change_tools", "{}").await?.expect_status(200)?;
    assert_eq!(
        alices_stream.message().await?["method"],
        "notifications/tools/list_changed"
    );
    Ok(())
}

/// A thief of the old one may be the reason for the new one. Before, all callers were one
/// principal, which may use all of the budget.
#[tokio::test]
async fn a_principal_has_its_share_of_the_byte_budget_as_soon_as_there_is_auth() -> Result<()> {
    let rialto = Rialto::with_config(&format!("limits: {{ buffered_bytes: 4MiB }}\n{DESTINATIONS}")).await?;
    let alice = token("alice");
    reload(&rialto, &tokens_key(&[("alice", &alice)])).await?;
    let hits = r#"rialto_limit_hits_total{limit="buffered_bytes_per_principal"}"#;
    // Three megabytes: less than the budget, more than half of it.
    for _ in 0..3 {
        let client = session(&rialto, "shared", &alice.token).await?;
        let id = client.session().expect("a session");
        let bearer = format!("Bearer {}", alice.token);
        let headers = [
            ("accept", "application/json"),
            ("content-type", "application/json"),
            ("mcp-session-id", id.as_str()),
            ("authorization", bearer.as_str()),
        ];
        let flood = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "flood", "arguments": {"n": 16, "bytes": 60_000}}});
        let reply = client
            .send("POST", "/shared/mcp", &headers, flood.to_string())
            .await?
            .reply()
            .await?;
        reply.expect_status(200)?;
    }
    let bearer = format!("Bearer {}", alice.token);
    let client = rialto.client_of("shared").await?;
    let page = client
        .send("GET", "/metrics", &[("authorization", &bearer)], "")
        .await?;
    let page = page.reply().await?.body_text();
    assert!(page.contains(hits), "{page}");
    Ok(())
}

#[tokio::test]
async fn a_token_that_is_exchanged_under_its_name_ends_what_the_old_one_opened() -> Result<()> {
    let (old, new) = (token("alice"), token("alice"));
    let rialto = start(&tokens_key(&[("alice", &old)])).await?;
    let before = session(&rialto, "shared", &old.token).await?;
    let id = before.session().expect("a session");
    let mut stream = before.get_stream(None).await?;
    let report = reload(&rialto, &tokens_key(&[("alice", &new)])).await?;
    assert_eq!(report["sessions_ended"], 1, "{report}");
    while stream.next().await?.is_some() {}
    assert_eq!(echo(&before, "x").await?, 401);
    let after = client(&rialto, "shared", &new.token).await?;
    after.set_session(Some(&id));
    after.set_version(Some(LEGACY));
    assert_eq!(echo(&after, "x").await?, 404);
    assert_eq!(
        echo(&session(&rialto, "shared", &new.token).await?, "x").await?,
        200
    );
    Ok(())
}

#[tokio::test]
async fn another_issuer_means_other_tokens_and_the_old_ones_hold_nothing() -> Result<()> {
    let (first, second) = (Issuer::start().await?, Issuer::start().await?);
    let jwt = |issuer: &Issuer| format!("  jwt: {{ issuer: '{}' }}\n", issuer.url());
    let issued = |issuer: &Issuer| {
        let audience = "https://mcp.example.com/shared/mcp";
        issuer.token("alice", audience, json!({"exp": now() + 600}))
    };
    let rialto = start(&jwt(&first)).await?;
    let before = session(&rialto, "shared", &issued(&first)).await?;
    let mut stream = before.get_stream(None).await?;
    assert_eq!(
        echo(&client(&rialto, "shared", &issued(&second)).await?, "x").await?,
        401
    );

    let report = reload(&rialto, &jwt(&second)).await?;
    assert_eq!(report["sessions_ended"], 1, "{report}");
    while stream.next().await?.is_some() {}
    assert_eq!(echo(&before, "x").await?, 401);
    assert_eq!(
        echo(&session(&rialto, "shared", &issued(&second)).await?, "x").await?,
        200
    );

    // The same again changes nothing.
    let stays = session(&rialto, "shared", &issued(&second)).await?;
    let report = reload(&rialto, &jwt(&second)).await?;
    assert_eq!(report["sessions_ended"], 0, "{report}");
    assert_eq!(echo(&stays, "x").await?, 200);
    Ok(())
}

/// `subscriptions/listen`, as far as its acknowledgement.
async fn open_listen(rialto: &Rialto, token: &str) -> Result<testkit::client::EventStream> {
    let client = rialto.client_of("shared").await?;
    let bearer = format!("Bearer {token}");
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", MODERN),
        ("mcp-method", "subscriptions/listen"),
        ("authorization", bearer.as_str()),
    ];
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": {
        "notifications": {"toolsListChanged": true},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    }});
    let response = client
        .send("POST", "/shared/mcp", &headers, body.to_string())
        .await?;
    assert_eq!(response.status, 200, "{response:?}");
    let mut stream = response.events();
    stream.message().await?;
    Ok(stream)
}
