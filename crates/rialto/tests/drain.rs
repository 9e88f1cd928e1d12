//! The end, wanted and unwanted (rows F1 and F5): a drain under load, and panics that stay where
//! they are.

use serde_json::{Value, json};
use testkit::{PATIENCE, Result, Rialto};
use tokio::task::JoinSet;

/// Every call that a server has begun is answered with its result; every other is refused, and was
/// not begun.
#[tokio::test]
async fn under_load_a_drain_loses_nothing_that_was_begun() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--max-sessions", "50"])
        .stub(&[])
        .start()
        .await?;
    let mut callers = JoinSet::new();
    for caller in 0..20 {
        let client = rialto.session().await?;
        callers.spawn(async move {
            let mut begun = Vec::new();
            for call in 0.. {
                let marker = format!("{caller}-{call}");
                let reply = client.call(1, "delay", json!({"ms": 5, "marker": marker})).await;
                match reply {
                    Ok(reply) if reply.status == 200 => {
                        assert_eq!(reply.text(), marker);
                        begun.push(marker);
                    }
                    Ok(reply) => {
                        reply.expect_error(503, -32603).expect("a refusal that says so");
                        return (begun, Some(marker));
                    }
                    // The listener was closed before the request could be sent.
                    Err(_) => return (begun, Some(marker)),
                }
            }
            unreachable!("numbers do not end")
        });
    }
    rialto.wait_for_execution("0-20").await;
    rialto.sigterm();
    let mut answered = 0;
    for (begun, refused) in callers.join_all().await {
        answered += begun.len();
        if let Some(refused) = refused {
            assert_eq!(rialto.journal().executions(&refused), 0, "{refused}");
        }
    }
    assert_eq!(rialto.wait(PATIENCE).await.code(), Some(0));
    assert_eq!(rialto.journal().events("executed").len(), answered);
    Ok(())
}

/// A call that waits for its client can still be answered: that is what the time is for.
#[tokio::test]
async fn a_question_is_answered_while_the_gateway_drains() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.client().await?;
    client.handshake("2025-06-18", json!({"elicitation": {}})).await?;
    let call = client
        .open_call(1, "ask_elicit", json!({"marker": "asked"}), 1)
        .await?;
    let mut stream = call.events();
    let question = stream.message().await?;
    rialto.sigterm();
    rialto
        .wait_for_log("it drains", PATIENCE, |line| line["message"] == "draining")
        .await;
    client
        .call(2, "echo", json!({"marker": "late"}))
        .await?
        .expect_status(503)?;
    let answer = json!({"action": "accept", "content": {}});
    client
        .respond(&question["id"], answer)
        .await?
        .expect_status(202)?;
    let answer = stream.message().await?;
    assert_eq!(answer["id"], 1, "{answer}");
    assert!(answer.get("result").is_some(), "{answer}");
    assert_eq!(rialto.wait(PATIENCE).await.code(), Some(0));
    Ok(())
}

/// Panics are arranged by words in a message, in builds for development only.
async fn panicking() -> Result<Rialto> {
    Rialto::launcher()
        .env("TEST_PANICS", "1")
        .args(&["--audit", "{dir}/audit"])
        .stub(&[])
        .start()
        .await
}

#[tokio::test]
async fn f05_a_panic_while_a_message_is_taken_costs_that_message() -> Result<()> {
    let rialto = panicking().await?;
    let client = rialto.session().await?;
    for _ in 0..5 {
        let reply = client
            .call(1, "echo", json!({"marker": "panic in the frontend"}))
            .await?;
        reply.expect_error(500, -32603)?;
        assert_eq!(reply.answer()["error"]["data"]["reason"], "internal_error");
        client.expect_echo("goes on").await?;
    }
    let logged = |line: &Value| line["level"] == "ERROR" && line["message"] == "a call ended in a panic";
    rialto.wait_for_log("it is logged", PATIENCE, logged).await;
    assert_eq!(rialto.journal().executions("panic in the frontend"), 0);
    rialto.sigterm();
    assert_eq!(rialto.wait(PATIENCE).await.code(), Some(0));
    let audit = std::fs::read_to_string(rialto.dir().join("audit"))?;
    assert_eq!(audit.matches("\"status_code\":500").count(), 5, "{audit}");
    Ok(())
}

/// The machine of an instance may be half-way when it panics: what it knew of waiting calls is not
/// relied on.
#[tokio::test]
async fn f05_a_panic_in_an_instance_ends_its_calls_and_replaces_its_server() -> Result<()> {
    let rialto = panicking().await?;
    let client = rialto.session().await?;
    let other = rialto.session().await?;
    let pending = async { other.call(2, "never", json!({"marker": "pending"})).await };
    let panicking = async {
        rialto.wait_for_execution("pending").await;
        client
            .call(1, "echo", json!({"marker": "panic in the instance"}))
            .await
    };
    let (pending, panicked) = tokio::join!(pending, panicking);
    assert_eq!(pending?.answer()["error"]["data"]["reason"], "upstream_exited");
    panicked?.expect_error(500, -32603)?;
    other.expect_echo("after").await?;
    client.expect_echo("after").await?;
    assert_eq!(rialto.journal().starts().len(), 2, "the server was replaced");
    Ok(())
}

#[tokio::test]
async fn f05_a_panic_beside_a_child_costs_what_it_worked_on() -> Result<()> {
    for words in ["panic in the reader", "panic in the supervisor"] {
        let rialto = panicking().await?;
        let client = rialto.session().await?;
        client.expect_echo("before").await?;
        let other = client.clone();
        let pending = async { other.call(2, "never", json!({"marker": "pending"})).await };
        let panicking = async {
            rialto.wait_for_execution("pending").await;
            client.call(1, "echo", json!({"marker": words})).await
        };
        let (pending, answered) = tokio::join!(pending, panicking);
        pending?.expect_failed(503)?;
        let answered = answered?;
        assert!(matches!(answered.outcome_status(), 200 | 503), "{answered:?}");
        // The same session, with a new child.
        client.expect_echo("after").await?;
        rialto.sigterm();
        assert_eq!(rialto.wait(PATIENCE).await.code(), Some(0));
        rialto.wait_for_no_children(PATIENCE).await;
    }
    Ok(())
}

/// Modern clients that wait to learn what their server speaks are answered too, and no other server
/// is started for them.
#[tokio::test]
async fn f01_clients_that_wait_for_a_server_to_start_do_not_start_another_at_the_end() -> Result<()> {
    let rialto = Rialto::launcher()
        .env("RIALTO_DRAIN_TIMEOUT", "100ms")
        .stub(&["--slow-start", "600000"])
        .start()
        .await?;
    let mut callers = JoinSet::new();
    for _ in 0..3 {
        let client = rialto.client().await?;
        callers.spawn(async move {
            let headers = [
                ("content-type", "application/json"),
                ("accept", "application/json, text/event-stream"),
                ("mcp-protocol-version", "2026-07-28"),
                ("mcp-method", "tools/list"),
            ];
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}});
            let sent = client.send("POST", "/mcp", &headers, list.to_string()).await?;
            sent.reply().await
        });
    }
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let page = rialto.client().await?;
    while !page.metrics().await?.contains("rialto_requests_in_progress 3.0") {
        assert!(tokio::time::Instant::now() < deadline, "all of them wait");
    }
    rialto.sigterm();
    for reply in callers.join_all().await {
        reply?.expect_error(200, -32603)?;
    }
    assert_eq!(rialto.wait(PATIENCE).await.code(), Some(0));
    assert_eq!(rialto.journal().starts().len(), 1);
    Ok(())
}
