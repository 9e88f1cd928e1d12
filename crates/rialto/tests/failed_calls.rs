//! A call that fails after it was accepted: how clients that read events and clients that take JSON
//! only learn of it.
//!
//! Official Python clients 1.x end their whole session, with every call in flight, on a status of
//! 500 or above.

use serde_json::json;
use testkit::client::McpClient;
use testkit::{Result, Rialto};

/// `Accept` values of clients that read no events: JSON alone, and the defaults of HTTP libraries.
const JSON_ONLY: [&str; 3] = ["application/json", "*/*", "application/json, text/plain, */*"];

async fn gateway() -> Result<Rialto> {
    Rialto::with_config(
        "request_timeout: 500ms\nstream_timeout: 500ms\nmax_message_bytes: 64KiB\ndestinations:\n  \
         up:\n    command: '{stub} --journal {dir}/up'\n  \
         down:\n    command: '{stub} --journal {dir}/down --exit-at-once 3'\n",
    )
    .await
}

/// One call for each way to fail, with the status and the reason of its failure.
async fn failing(client: &McpClient) -> Result<Vec<(testkit::client::Reply, u16, &'static str)>> {
    let mut failed = Vec::new();
    failed.push((
        client.call(1, "big", json!({"bytes": 1 << 20})).await?,
        502,
        "response_too_large",
    ));
    failed.push((client.call(1, "never", "{}").await?, 504, "timeout"));
    failed.push((client.call(1, "exit", "{}").await?, 503, "upstream_exited"));
    Ok(failed)
}

#[tokio::test]
async fn h04_a_client_that_reads_events_gets_200_and_the_reason_and_its_session_goes_on() -> Result<()> {
    let rialto = gateway().await?;
    let client = rialto.session_of("up").await?;
    for (reply, status, reason) in failing(&client).await? {
        reply.expect_failed(status)?;
        assert_eq!(reply.reason().as_deref(), Some(reason));
        assert_eq!(reply.error_code(), Some(-32603));
        assert_eq!(reply.raw("id").as_deref(), Some("1"));
        assert!(reply.header("retry-after").is_none(), "{reply:?}");
    }
    client.expect_echo("after").await?;
    let events = client.clone().accepting("text/event-stream");
    let reply = events.call(2, "exit", "{}").await?;
    reply.expect_failed(503)?;
    assert_eq!(reply.messages().len(), 1, "{reply:?}");
    Ok(())
}

#[tokio::test]
async fn h04_a_client_that_takes_json_only_gets_the_statuses() -> Result<()> {
    for accept in JSON_ONLY {
        let rialto = gateway().await?;
        let client = rialto.session_of("up").await?.accepting(accept);
        for (reply, status, reason) in failing(&client).await? {
            reply.expect_error(status, -32603)?;
            assert_eq!(reply.reason().as_deref(), Some(reason));
        }
        client.expect_echo("after").await?;
    }
    Ok(())
}

#[tokio::test]
async fn h04_a_failed_initialize_tells_the_reason_to_clients_that_read_events() -> Result<()> {
    let rialto = gateway().await?;
    let client = rialto.client_of("down").await?;
    let reply = client.initialize("2025-11-25", json!({})).await?;
    reply.expect_failed(503)?;
    assert!(reply.header("mcp-session-id").is_none(), "{reply:?}");
    let plain = rialto.client_of("down").await?.accepting("application/json");
    let reply = plain.initialize("2025-11-25", json!({})).await?;
    reply.expect_error(503, -32603)?;
    assert!(reply.header("retry-after").is_some(), "{reply:?}");
    Ok(())
}

#[tokio::test]
async fn h04_a_refusal_before_acceptance_is_a_status_for_every_client() -> Result<()> {
    let rialto = Rialto::with_config(
        "max_message_bytes: 64KiB\ndestinations:\n  \
         up:\n    command: '{stub}'\n    max_sessions: 1\n",
    )
    .await?;
    let client = rialto.session_of("up").await?;
    let long = client
        .call(1, "echo", json!({"marker": "x".repeat(70 << 10)}))
        .await?;
    long.expect_status(413)?;
    // Its session is busy, so it does not make room for another one.
    let _stream = client.get_stream(None).await?;
    let second = rialto.client_of("up").await?;
    let refused = second.initialize("2025-11-25", json!({})).await?;
    refused.expect_error(503, -32603)?;
    client.set_session(Some("6f1c1a0e-6a51-4c0e-8d0e-2f6c3f0f8a11"));
    client.call(2, "echo", "{}").await?.expect_status(404)?;
    Ok(())
}

/// The call of a client that takes JSON only is begun later and fails at `request_timeout`, so that
/// more than that has passed.
#[tokio::test]
async fn a_client_that_reads_events_gets_its_answer_after_more_than_request_timeout() -> Result<()> {
    for timeout in ["", "stream_timeout: off\n"] {
        let rialto = Rialto::with_config(&format!(
            "request_timeout: 200ms\n{timeout}destinations:\n  up:\n    command: '{{stub}} --journal {{dir}}/journal'\n",
        ))
        .await?;
        let client = rialto.session_of("up").await?;
        let plain = rialto.session_of("up").await?.accepting("application/json");
        let (held, released) = tokio::join!(client.call(1, "hold", json!({"marker": "long"})), async {
            rialto.wait_for_execution("long").await;
            let silent = plain.call(2, "never", "{}").await?;
            silent.expect_error(504, -32603)?;
            client.call(3, "release", "{}").await
        });
        released?.expect_status(200)?;
        assert_eq!(held?.expect_status(200)?.text(), "long");
    }
    Ok(())
}
