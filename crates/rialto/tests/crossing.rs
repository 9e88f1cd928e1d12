//! What was asked of the crossing from HTTP to stdio, on the real binary with real children.
//!
//! Each test is one criterion, one guideline or one edge case of that document, as the design
//! decided it. How children are started, restarted and ended is in `supervision`; what comes on
//! streams is in `streams`.

use serde_json::{Value, json};
use testkit::client::EventStream;
use testkit::processes::Process;
use testkit::{LEGACY, McpClient, PATIENCE, RawHttp, Reply, Result, Rialto, marked, wait_until};

const UNKNOWN_SESSION: &str = "3b241101-e2bb-4255-8caf-4136c566a962";
const JSON_HEADERS: [(&str, &str); 2] = [
    ("content-type", "application/json"),
    ("accept", "application/json, text/event-stream"),
];

/// A client that has shaken hands.
async fn session(rialto: &Rialto) -> Result<McpClient> {
    let client = rialto.client().await?;
    client.handshake(LEGACY, json!({})).await?;
    Ok(client)
}

/// The process that answers this client.
async fn child_of(client: &McpClient) -> Result<Process> {
    let pid = client.call(1, "pid", "{}").await?.text();
    let pid = pid.parse().expect("the tool gives a number");
    Ok(Process::read(pid).expect("the child that has just answered is alive"))
}

fn is_uuid_v4(text: &str) -> bool {
    let bytes = text.as_bytes();
    let dashes = [8, 13, 18, 23];
    bytes.len() == 36
        && bytes.iter().enumerate().all(|(at, byte)| match byte {
            b'-' => dashes.contains(&at),
            byte => byte.is_ascii_hexdigit() && !dashes.contains(&at),
        })
        && bytes[14] == b'4'
        && matches!(bytes[19], b'8' | b'9' | b'a' | b'b')
}

/// A refusal with a JSON-RPC body that carries this id.
fn assert_refused(reply: &Reply, status: u16, code: i64, id: Value) {
    assert_eq!(reply.status, status, "{}", reply.body_text());
    let answer = reply.answer();
    assert_eq!(
        (&answer["error"]["code"], &answer["id"]),
        (&json!(code), &id),
        "{answer}"
    );
}

/// An accepted call failed, and its client received the error in band.
fn assert_failed(reply: &Reply, status: u16, id: Value) -> Result<()> {
    reply.expect_failed(status)?;
    let answer = reply.answer();
    assert_eq!(
        (&answer["error"]["code"], &answer["id"]),
        (&json!(-32603), &id),
        "{answer}"
    );
    Ok(())
}

// Sessions.

#[tokio::test]
async fn a_post_without_a_session_id_is_answered_and_gives_one() -> Result<()> {
    let rialto = Rialto::with_stub(&["--strict"]).await?;
    let client = rialto.client().await?;
    let reply = client.call(1, "echo", marked("first")).await?;
    assert_eq!(
        (
            reply.expect_status(200)?.text().as_str(),
            reply.raw("id").as_deref()
        ),
        ("first", Some("1"))
    );
    let id = reply.header("mcp-session-id").expect("a session id").to_owned();
    assert!(is_uuid_v4(&id), "{id}");

    client.set_session(Some(&id));
    let reply = client.call(2, "echo", marked("second")).await?;
    assert_eq!(reply.expect_status(200)?.text(), "second");
    assert_eq!(rialto.journal().starts().len(), 1);
    Ok(())
}

#[tokio::test]
async fn initialize_gives_a_session_id_and_the_servers_own_words() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let reply = rialto.client().await?.initialize(LEGACY, json!({})).await?;
    reply.expect_status(200)?;
    assert!(
        reply.header("mcp-session-id").is_some_and(is_uuid_v4),
        "{reply:?}"
    );
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let result = &reply.answer()["result"];
    assert_eq!(result["serverInfo"]["name"], "testkit-server");
    assert_eq!(result["instructions"], "Misbehaves on request.");
    assert_eq!(result["protocolVersion"], LEGACY);
    Ok(())
}

#[tokio::test]
async fn calls_with_a_session_id_reach_the_same_child() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (one, other) = (session(&rialto).await?, session(&rialto).await?);
    assert_ne!(one.session(), other.session());
    for expected in ["1", "2", "3"] {
        assert_eq!(one.call(1, "counter", "{}").await?.text(), expected);
    }
    assert_eq!(
        other.call(1, "counter", "{}").await?.text(),
        "4",
        "one child is shared"
    );
    Ok(())
}

#[tokio::test]
async fn an_unknown_session_id_gets_404_on_post_get_and_delete() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.client().await?;
    client.set_session(Some(UNKNOWN_SESSION));
    let reply = client.call(7, "echo", marked("never")).await?;
    assert_refused(&reply, 404, -32600, json!(7));
    assert_eq!(client.get(None).await?.status, 404);
    client.delete().await?.expect_status(404)?;
    assert_eq!(rialto.journal().executions("never"), 0);
    Ok(())
}

#[tokio::test]
async fn a_session_id_that_is_no_uuid_v4_gets_400_on_post_get_and_delete() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.client().await?;
    for malformed in ["nonsense", "c232ab00-9414-11ec-b3c8-9f6bdeced846", "{}", "1"] {
        client.set_session(Some(malformed));
        let reply = client.call(7, "echo", marked("never")).await?;
        assert_refused(&reply, 400, -32600, json!(7));
        assert_eq!(client.get(None).await?.status, 400, "{malformed}");
        client.delete().await?.expect_status(400)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_session_of_one_destination_is_unknown_at_another() -> Result<()> {
    let yaml = "destinations:\n  a: { command: '{stub}' }\n  b: { command: '{stub}' }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let (at_a, at_b) = (rialto.client_of("a").await?, rialto.client_of("b").await?);
    at_a.handshake(LEGACY, json!({})).await?;
    at_b.set_session(at_a.session().as_deref());
    at_b.call(1, "echo", marked("x")).await?.expect_status(404)?;
    at_a.call(1, "echo", marked("x")).await?.expect_status(200)?;
    Ok(())
}

#[tokio::test]
async fn delete_ends_the_session_for_post_get_and_delete() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (client, other) = (session(&rialto).await?, session(&rialto).await?);
    let mut stream = client.get_stream(None).await?;
    let reply = client.delete().await?;
    assert_eq!((reply.status, reply.body.len()), (204, 0));
    assert_eq!(
        stream.next_message().await?,
        None,
        "the stream ends with the session"
    );
    assert_refused(
        &client.call(7, "echo", marked("late")).await?,
        404,
        -32600,
        json!(7),
    );
    assert_eq!(client.get(None).await?.status, 404);
    client.delete().await?.expect_status(404)?;
    other.call(1, "echo", marked("x")).await?.expect_status(200)?;
    Ok(())
}

#[tokio::test]
async fn delete_without_a_session_id_gets_400() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    rialto.client().await?.delete().await?.expect_status(400)?;
    Ok(())
}

#[tokio::test]
async fn delete_ends_the_child_of_a_per_session_destination_and_no_other() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--process", "per_session"])
        .stub(&[])
        .start()
        .await?;
    let (client, other) = (session(&rialto).await?, session(&rialto).await?);
    let (child, others) = (child_of(&client).await?, child_of(&other).await?);
    assert_ne!(child.pid, others.pid);
    client.delete().await?.expect_status(204)?;
    wait_until("the child has gone", PATIENCE, || {
        (!child.is_alive()).then_some(())
    })
    .await;
    assert_eq!(child_of(&other).await?.pid, others.pid);
    Ok(())
}

#[tokio::test]
async fn delete_leaves_a_shared_child_to_the_others() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (client, other) = (session(&rialto).await?, session(&rialto).await?);
    let child = child_of(&client).await?;
    client.delete().await?.expect_status(204)?;
    assert_eq!(child_of(&other).await?.pid, child.pid);
    Ok(())
}

/// Ten sessions fill the destination; the eleventh is refused until one of them ends.
async fn expect_room_for_ten(rialto: &Rialto, setting: &str) -> Result<()> {
    let mut sessions = Vec::new();
    for _ in 0..10 {
        sessions.push(session(rialto).await?);
    }
    let late = rialto.client().await?;
    let reply = late.initialize(LEGACY, json!({})).await?;
    assert_refused(&reply, 503, -32603, json!(0));
    assert!(reply.body_text().contains(setting), "{}", reply.body_text());
    assert!(
        reply
            .header("retry-after")
            .is_some_and(|wait| wait.parse::<u32>().is_ok()),
        "{reply:?}"
    );
    let implicit = late.call(1, "echo", marked("refused")).await?;
    assert_refused(&implicit, 503, -32603, json!(1));
    // The metrics show that a limit refuses clients.
    let line = rialto.wait_for_log("the limit is logged", PATIENCE, |line| line["limit"] == setting);
    let line = line.await;
    assert_eq!(
        (&line["level"], &line["destination"]),
        (&json!("WARN"), &json!("d")),
        "{line}"
    );
    let ready = late.send("GET", "/ready", &[], "").await?.reply().await?.answer();
    assert_eq!(ready["limits"][setting]["hits"], 2, "{ready}");

    sessions[3].delete().await?.expect_status(204)?;
    late.handshake(LEGACY, json!({})).await?;
    assert_eq!(late.call(1, "echo", marked("in")).await?.text(), "in");
    assert_eq!(rialto.journal().executions("refused"), 0);
    Ok(())
}

#[tokio::test]
async fn the_eleventh_of_ten_sessions_gets_503_with_retry_after_until_one_is_ended() -> Result<()> {
    let launcher = Rialto::launcher().args(&["--max-sessions", "10", "--name", "d"]);
    expect_room_for_ten(&launcher.stub(&[]).start().await?, "max_sessions").await
}

#[tokio::test]
async fn the_eleventh_session_with_a_process_of_its_own_gets_503_by_default() -> Result<()> {
    let launcher = Rialto::launcher().args(&["--process", "per_session", "--name", "d"]);
    expect_room_for_ten(&launcher.stub(&[]).start().await?, "max_children").await
}

#[tokio::test]
async fn a_shared_destination_has_room_for_many_sessions_by_default() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let mut sessions = Vec::new();
    for _ in 0..50 {
        sessions.push(session(&rialto).await?);
    }
    let child = child_of(&sessions[0]).await?;
    assert_eq!(child_of(&sessions[49]).await?.pid, child.pid);
    Ok(())
}

/// Opens a session with a stream, as official TypeScript clients do.
async fn session_with_stream(rialto: &Rialto) -> Result<(McpClient, EventStream)> {
    let client = session(rialto).await?;
    let stream = client.get_stream(None).await?;
    Ok((client, stream))
}

/// Opens a session as soon as there is room, which Rialto makes when it has noticed that a stream
/// was closed.
async fn open_when_there_is_room(client: &McpClient) -> Result<()> {
    let reply = testkit::poll_until("there is room for a session", PATIENCE, async || {
        let reply = client.initialize(LEGACY, json!({})).await?;
        Result::Ok((reply.status != 503).then_some(reply))
    });
    reply.await?.expect_status(200).map(drop)
}

#[tokio::test]
async fn a_client_that_closed_its_stream_makes_room_and_one_that_reads_does_not() -> Result<()> {
    for flags in [
        ["--max-sessions", "3"].as_slice(),
        ["--process", "per_session", "--max-sessions", "3"].as_slice(),
    ] {
        let rialto = Rialto::launcher().args(flags).stub(&[]).start().await?;
        let (reading, _stream) = session_with_stream(&rialto).await?;
        let quiet = session(&rialto).await?;
        let (gone, closed) = session_with_stream(&rialto).await?;
        rialto
            .client()
            .await?
            .initialize(LEGACY, json!({}))
            .await?
            .expect_status(503)?;
        drop(closed);
        open_when_there_is_room(&rialto.client().await?).await?;
        assert_refused(
            &gone.call(1, "echo", marked("gone")).await?,
            404,
            -32600,
            json!(1),
        );
        for client in [reading, quiet] {
            assert_eq!(client.call(1, "echo", marked("here")).await?.text(), "here");
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_instance_whose_clients_closed_their_streams_makes_room_for_another() -> Result<()> {
    let yaml = "destinations:\n  d:\n    command: '{stub}'\n    process: per_identity\n    \
                env_from_headers: { TOKEN: X-Token }\n    max_children: 2\n";
    let rialto = Rialto::with_config(yaml).await?;
    let client = async |token: &str| -> Result<McpClient> {
        Ok(rialto.client_of("d").await?.with_header("x-token", token))
    };
    let open = async |token: &str| -> Result<(McpClient, EventStream)> {
        let client = client(token).await?;
        client.handshake(LEGACY, json!({})).await?;
        let stream = client.get_stream(None).await?;
        Ok((client, stream))
    };
    let (reading, _stream) = open("one").await?;
    let (gone, closed) = open("two").await?;
    let new = client("three").await?;
    new.initialize(LEGACY, json!({})).await?.expect_status(503)?;
    drop(closed);
    open_when_there_is_room(&new).await?;
    assert_refused(
        &gone.call(1, "echo", marked("gone")).await?,
        404,
        -32600,
        json!(1),
    );
    assert_eq!(reading.call(1, "echo", marked("here")).await?.text(), "here");
    Ok(())
}

#[tokio::test]
async fn max_stdio_connections_sets_the_cap() -> Result<()> {
    let rialto = Rialto::launcher()
        .env("MAX_STDIO_CONNECTIONS", "1")
        .stub(&[])
        .start()
        .await?;
    let _first = session(&rialto).await?;
    let reply = rialto.client().await?.initialize(LEGACY, json!({})).await?;
    reply.expect_status(503)?;
    assert!(
        reply.body_text().contains("max_sessions"),
        "{}",
        reply.body_text()
    );
    Ok(())
}

// Answers.

#[tokio::test]
async fn ids_come_back_byte_for_byte() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    for id in [
        "0",
        "-7",
        r#""""#,
        r#""a\u00e9\"b""#,
        "123456789012345678901234567890",
    ] {
        let reply = client.call(id, "echo", marked("m")).await?;
        assert_eq!(
            (reply.raw("id").as_deref(), reply.text().as_str()),
            (Some(id), "m")
        );
    }
    Ok(())
}

#[tokio::test]
async fn two_calls_in_flight_with_the_same_id_get_their_own_answers() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    let (slow, quick) = tokio::join!(
        client.call(1, "delay", json!({"ms": 150, "marker": "slow"})),
        client.call(1, "delay", json!({"ms": 50, "marker": "quick"})),
    );
    for (reply, marker) in [(slow?, "slow"), (quick?, "quick")] {
        assert_eq!(
            (reply.text().as_str(), reply.raw("id").as_deref()),
            (marker, Some("1"))
        );
        assert_eq!(rialto.journal().executions(marker), 1);
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_to_another_id_is_not_taken_for_this_one() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    for tool in ["unknown_id", "string_id", "twice"] {
        assert_eq!(client.call(1, tool, marked(tool)).await?.text(), tool);
        assert_eq!(client.call(1, "echo", marked("after")).await?.text(), "after");
    }
    Ok(())
}

#[tokio::test]
async fn an_error_of_the_server_rides_on_200() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    let reply = client
        .call(5, "fail", json!({"code": -32050, "message": "no seats"}))
        .await?;
    reply.expect_status(200)?;
    assert_eq!(
        reply.answer(),
        json!({"jsonrpc": "2.0", "id": 5, "error": {"code": -32050, "message": "no seats"}})
    );
    let reply = client.request(6, "no/such/method", "{}").await?;
    assert_eq!((reply.status, reply.error_code()), (200, Some(-32601)));
    Ok(())
}

#[tokio::test]
async fn notifications_and_responses_get_202_and_no_body() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    let noticed = client.notify("notifications/roots/list_changed", "{}").await?;
    let answered = client.respond(99, "{}").await?;
    let refused = client.respond_error(r#""unasked""#, -1, "no").await?;
    for reply in [noticed, answered, refused] {
        assert_eq!((reply.status, reply.body.len()), (202, 0));
    }
    wait_until("the child has the notification", PATIENCE, || {
        (rialto
            .journal()
            .received("notifications/roots/list_changed")
            .len()
            == 1)
            .then_some(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_batch_gets_400_and_is_not_run() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"marker":"batched"}}}"#;
    for batch in [format!("[{call}]"), format!("[{call},{call}]"), "[]".to_owned()] {
        let reply = client.post(batch).await?.reply().await?;
        reply.expect_status(400)?;
        assert_eq!(reply.error_code(), Some(-32600));
        assert!(
            reply.body_text().contains("JSON-RPC batching is not supported"),
            "{}",
            reply.body_text()
        );
    }
    client
        .call(1, "echo", marked("fence"))
        .await?
        .expect_status(200)?;
    assert_eq!(rialto.journal().executions("batched"), 0);
    Ok(())
}

#[tokio::test]
async fn malformed_lines_of_the_child_are_skipped_and_logged() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    for kind in [
        "text", "binary", "ansi", "array", "null", "empty", "crlf", "partial", "all",
    ] {
        let reply = client
            .call(1, "garbage", json!({"kind": kind, "marker": kind}))
            .await?;
        assert_eq!(reply.expect_status(200)?.text(), kind);
    }
    assert_eq!(rialto.journal().starts().len(), 1, "the child was not restarted");
    rialto
        .wait_for_log("the line is logged", PATIENCE, |log| {
            log.to_string().contains("Listening on stdio, have fun!")
        })
        .await;
    Ok(())
}

#[tokio::test]
async fn a_response_that_is_too_large_gets_502_naming_the_setting_and_the_session_goes_on() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--max-message-bytes", "64KiB"])
        .stub(&[])
        .start()
        .await?;
    let client = session(&rialto).await?;
    for tool in ["big", "big_id_last"] {
        let reply = client.call(9, tool, json!({"bytes": 3 << 20})).await?;
        assert_failed(&reply, 502, json!(9))?;
        assert!(
            reply.body_text().contains("max_message_bytes"),
            "{}",
            reply.body_text()
        );
        let reply = client.call(10, tool, json!({"bytes": 32 << 10})).await?;
        assert_eq!(reply.expect_status(200)?.text().len(), 32 << 10);
    }
    assert_eq!(rialto.journal().starts().len(), 1);
    Ok(())
}

#[tokio::test]
async fn sixteen_mebibytes_are_the_default_limit() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    client
        .call(1, "big", json!({"bytes": 16_000_000}))
        .await?
        .expect_status(200)?;
    client
        .call(1, "big", json!({"bytes": 16 << 20}))
        .await?
        .expect_failed(502)?;
    Ok(())
}

#[tokio::test]
async fn late_answer_gets_504_and_the_child_receives_a_cancellation() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--request-timeout", "300ms", "--stream-timeout", "300ms"])
        .stub(&[])
        .start()
        .await?;
    let client = session(&rialto).await?;
    let reply = client.call(4, "never", marked("forgotten")).await?;
    assert_failed(&reply, 504, json!(4))?;
    wait_until("the child is told", PATIENCE, || {
        rialto.journal().was_cancelled("forgotten").then_some(())
    })
    .await;
    assert_eq!(client.call(4, "echo", marked("next")).await?.text(), "next");
    assert_eq!(rialto.journal().starts().len(), 1);
    Ok(())
}

#[tokio::test]
async fn stdio_request_timeout_is_in_seconds() -> Result<()> {
    let rialto = Rialto::launcher()
        .env("STDIO_REQUEST_TIMEOUT", "1")
        .stub(&[])
        .start()
        .await?;
    let client = session(&rialto).await?.accepting("application/json");
    client.call(4, "never", "{}").await?.expect_error(504, -32603)?;
    Ok(())
}

#[tokio::test]
async fn progress_keeps_a_call_alive_beyond_the_timeout() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--request-timeout", "400ms", "--stream-timeout", "400ms"])
        .stub(&[])
        .start()
        .await?;
    let client = session(&rialto).await?;
    let arguments = json!({"n": 8, "every_ms": 150, "marker": "long"});
    let reply = client
        .open_call(1, "progress", arguments, 1)
        .await?
        .reply()
        .await?;
    assert_eq!((reply.text().as_str(), reply.messages().len()), ("long", 9));
    Ok(())
}

#[tokio::test]
async fn exit_of_the_child_during_a_call_gets_503_at_once_and_the_session_stays_valid() -> Result<()> {
    let rialto = Rialto::with_stub(&["--strict"]).await?;
    let client = session(&rialto).await?;
    let (exiting, waiting) = tokio::join!(
        async {
            wait_until("the other call is in the child", PATIENCE, || {
                (rialto.journal().executions("waiting") == 1).then_some(())
            })
            .await;
            client
                .call(1, "exit", json!({"code": 3, "marker": "exiting"}))
                .await
        },
        client.call(2, "never", marked("waiting")),
    );
    for (reply, id) in [(exiting?, 1), (waiting?, 2)] {
        assert_failed(&reply, 503, json!(id))?;
        assert!(
            reply.answer()["error"]["data"]
                .to_string()
                .contains("exit status 3"),
            "{}",
            reply.body_text()
        );
    }
    assert_eq!(
        client
            .call(3, "echo", marked("again"))
            .await?
            .expect_status(200)?
            .text(),
        "again"
    );
    let journal = rialto.journal();
    assert_eq!(journal.starts().len(), 2);
    for marker in ["exiting", "waiting", "again"] {
        assert_eq!(journal.executions(marker), 1, "{marker}");
    }
    Ok(())
}

#[tokio::test]
async fn exit_of_the_child_gets_503_with_retry_after_when_all_restarts_are_used() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    for life in ["first", "second", "third", "fourth"] {
        client.call(1, "exit", marked(life)).await?.expect_failed(503)?;
        assert_eq!(rialto.journal().executions(life), 1, "{life}");
    }
    for late in [client, rialto.client().await?] {
        let reply = late.call(2, "echo", marked("late")).await?;
        assert_failed(&reply, 503, json!(2))?;
        let wait = reply.answer()["error"]["data"]["retryAfterSeconds"].as_u64();
        assert!(wait.is_some_and(|wait| wait <= 30), "{reply:?}");
        let late = late.accepting("application/json");
        let reply = late.call(2, "echo", marked("late")).await?;
        assert_refused(&reply, 503, -32603, json!(2));
        let wait: u32 = reply
            .header("retry-after")
            .expect("Retry-After")
            .parse()
            .expect("seconds");
        assert!((1..=30).contains(&wait), "{wait}");
    }
    assert_eq!(
        (
            rialto.journal().starts().len(),
            rialto.journal().executions("late")
        ),
        (4, 0)
    );
    Ok(())
}

#[tokio::test]
async fn a_client_that_hangs_up_in_a_call_leaves_the_child_alone() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    let id = client.session().expect("a session");
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delay","arguments":{"ms":300,"marker":"left"}}}"#;
    let mut raw = RawHttp::connect(rialto.address()).await?;
    raw.write(format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nAccept: {}\r\nMcp-Session-Id: {id}\r\nContent-Length: {}\r\n\r\n{body}",
        rialto.address(),
        testkit::client::ACCEPT,
        body.len(),
    ))
    .await?;
    wait_until("the call is in the child", PATIENCE, || {
        (rialto.journal().executions("left") == 1).then_some(())
    })
    .await;
    raw.reset()?;
    // Begun before the abandoned call ends, and ended after it.
    let reply = client
        .call(1, "delay", json!({"ms": 400, "marker": "stayed"}))
        .await?;
    assert_eq!(reply.expect_status(200)?.text(), "stayed");
    assert!(
        rialto.journal().events("cancelled").is_empty(),
        "a disconnect is no cancel"
    );
    assert_eq!(rialto.journal().starts().len(), 1);
    Ok(())
}

// Notifications.

#[tokio::test]
async fn a_notification_is_not_in_the_post_but_on_the_get_stream() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    let mut stream = client.get_stream(None).await?;
    let reply = client.call(1, "notify", marked("heard")).await?;
    assert_eq!((reply.text().as_str(), reply.events.len()), ("heard", 0));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let message = stream.message().await?;
    assert_eq!(message["method"], "notifications/tools/list_changed");
    assert_eq!(message["params"]["_meta"]["marker"], "heard");
    Ok(())
}

#[tokio::test]
async fn notifications_wait_for_the_get_stream_to_open_and_keep_their_order() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    client
        .call(1, "notify", json!({"n": 20, "marker": "queued"}))
        .await?
        .expect_status(200)?;
    let mut stream = client.get_stream(None).await?;
    for n in 1..=20 {
        assert_eq!(stream.message().await?["params"]["_meta"]["n"], n);
    }
    client
        .call(2, "notify", marked("live"))
        .await?
        .expect_status(200)?;
    assert_eq!(stream.message().await?["params"]["_meta"]["marker"], "live");
    Ok(())
}

#[tokio::test]
async fn several_get_streams_of_one_session_all_receive() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    let mut streams = [
        client.get_stream(None).await?,
        client.get_stream(None).await?,
        client.get_stream(None).await?,
    ];
    client
        .call(1, "notify", json!({"n": 3, "marker": "all"}))
        .await?
        .expect_status(200)?;
    for stream in &mut streams {
        for n in 1..=3 {
            assert_eq!(stream.message().await?["params"]["_meta"]["n"], n);
        }
    }
    Ok(())
}

// Refusals of the frontend.

#[tokio::test]
async fn get_without_a_session_gets_400_and_with_a_wrong_accept_406() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    let id = client.session().expect("a session");
    let get =
        async |headers: &[(&str, &str)]| Result::Ok(client.send("GET", "/mcp", headers, "").await?.status);
    assert_eq!(get(&[("accept", "text/event-stream")]).await, Ok(400));
    assert_eq!(
        get(&[("accept", "application/json"), ("mcp-session-id", &id)]).await,
        Ok(406)
    );
    assert_eq!(get(&[("accept", "*/*"), ("mcp-session-id", &id)]).await, Ok(200));
    Ok(())
}

#[tokio::test]
async fn a_post_that_cannot_be_read_or_answered_is_refused_and_never_reaches_the_child() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--max-message-bytes", "64KiB"])
        .stub(&[])
        .start()
        .await?;
    let client = session(&rialto).await?;
    let id = client.session().expect("a session");
    let call = r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"echo","arguments":{"marker":"refused"}}}"#;
    let large = call.replace("refused", &"r".repeat(65 << 10));
    let (kind, accept) = (JSON_HEADERS[0], JSON_HEADERS[1]);
    let text = ("content-type", "text/plain");
    let html = ("accept", "text/html");
    let post = async |kind, accept, body: String| {
        client
            .send("POST", "/mcp", &[("mcp-session-id", &id), kind, accept], body)
            .await?
            .reply()
            .await
    };
    post(text, accept, call.to_owned()).await?.expect_status(415)?;
    post(kind, html, call.to_owned()).await?.expect_status(406)?;
    let reply = post(kind, accept, large).await?;
    assert!(
        reply
            .expect_status(413)?
            .body_text()
            .contains("max_message_bytes"),
        "{}",
        reply.body_text()
    );
    for broken in [
        "{\"jsonrpc\":",
        "",
        "hello",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\u{0}",
    ] {
        let reply = post(kind, accept, broken.to_owned()).await?;
        assert_eq!(
            (reply.status, reply.error_code()),
            (400, Some(-32700)),
            "{broken:?}"
        );
    }
    for wrong in [
        "7",
        "null",
        "{}",
        r#"{"id":1,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
    ] {
        let reply = post(kind, accept, wrong.to_owned()).await?;
        assert_eq!((reply.status, reply.error_code()), (400, Some(-32600)), "{wrong}");
    }
    client
        .call(1, "echo", marked("fence"))
        .await?
        .expect_status(200)?;
    assert_eq!(rialto.journal().executions("refused"), 0);
    assert_eq!(rialto.journal().events("executed").len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_foreign_host_or_origin_gets_403_on_every_path() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    for stranger in [
        ("host", "evil.example"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
    ] {
        for (method, path) in [
            ("POST", "/mcp"),
            ("GET", "/mcp"),
            ("DELETE", "/mcp"),
            ("GET", "/metrics"),
        ] {
            let headers = [JSON_HEADERS[0], JSON_HEADERS[1], stranger];
            let status = client.send(method, path, &headers, "{}").await?.status;
            assert_eq!(status, 403, "{method} {path} {stranger:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_origin_that_is_configured_may_call_from_a_browser() -> Result<()> {
    let app = "https://app.example.com";
    let rialto = Rialto::launcher()
        .args(&["--allow-origin", app])
        .stub(&[])
        .start()
        .await?;
    let client = rialto.client().await?;
    let asked = [
        ("origin", app),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "content-type,mcp-session-id"),
    ];
    let preflight = client.send("OPTIONS", "/mcp", &asked, "").await?;
    assert_eq!(
        (preflight.status, preflight.header("access-control-allow-origin")),
        (204, Some(app))
    );
    assert!(
        preflight
            .header("access-control-allow-methods")
            .is_some_and(|methods| methods.contains("DELETE"))
    );
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let answered = client
        .send(
            "POST",
            "/mcp",
            &[JSON_HEADERS[0], JSON_HEADERS[1], ("origin", app)],
            body,
        )
        .await?;
    assert_eq!(
        (answered.status, answered.header("access-control-allow-origin")),
        (200, Some(app))
    );
    let exposed = answered
        .header("access-control-expose-headers")
        .unwrap_or_default();
    assert!(exposed.to_lowercase().contains("mcp-session-id"), "{exposed}");
    Ok(())
}

// Paths.

#[tokio::test]
async fn the_old_sse_paths_get_410_with_a_body_that_points_to_mcp() -> Result<()> {
    let rialto = Rialto::with_config("destinations:\n  old-friend: { command: '{stub}' }\n").await?;
    let client = rialto.client_of("old-friend").await?;
    for (method, path) in [("GET", "/old-friend/sse"), ("POST", "/old-friend/message")] {
        let reply = client
            .send(method, path, &JSON_HEADERS, "{}")
            .await?
            .reply()
            .await?;
        assert!(
            reply.expect_status(410)?.body_text().contains("/old-friend/mcp"),
            "{}",
            reply.body_text()
        );
    }
    Ok(())
}

#[tokio::test]
async fn every_destination_answers_at_its_own_path_and_at_the_alias() -> Result<()> {
    let yaml = "destinations:\n  a: { command: '{stub}', env: { MARK: a } }\n  b: { command: '{stub}', env: { MARK: b } }\n";
    let rialto = Rialto::with_config(yaml).await?;
    for name in ["a", "b"] {
        let client = rialto.client_of(name).await?;
        client.handshake(LEGACY, json!({})).await?;
        assert_eq!(client.call(1, "env", json!({"name": "MARK"})).await?.text(), name);
        let alias = McpClient::connect(&format!("http://{}/mcp/{name}", rialto.address())).await?;
        alias.set_session(client.session().as_deref());
        assert_eq!(
            alias
                .call(1, "env", json!({"name": "MARK"}))
                .await?
                .expect_status(200)?
                .text(),
            name
        );
    }
    let bare = rialto.client().await?;
    bare.call(1, "echo", marked("x")).await?.expect_status(404)?;
    Ok(())
}

#[tokio::test]
async fn a_single_command_answers_at_mcp_and_under_its_name() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--name", "solo"])
        .stub(&[])
        .start()
        .await?;
    let client = session(&rialto).await?;
    let named = rialto.client_of("solo").await?;
    named.set_session(client.session().as_deref());
    assert_eq!(
        named
            .call(1, "echo", marked("same"))
            .await?
            .expect_status(200)?
            .text(),
        "same"
    );
    Ok(())
}

#[tokio::test]
async fn a_path_with_a_trailing_slash_is_as_without_it() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--name", "solo"])
        .stub(&[])
        .start()
        .await?;
    for path in ["/mcp/", "/solo/mcp/", "/mcp/solo/"] {
        let client = McpClient::connect(&format!("http://{}{path}", rialto.address())).await?;
        client.handshake(LEGACY, json!({})).await?;
        client.expect_echo(path).await?;
        client.delete().await?.expect_status(204)?;
    }
    let client = rialto.client().await?;
    for (path, status) in [
        ("/health/", 200),
        ("/ready/", 200),
        ("/metrics/", 200),
        ("/solo/sse/", 410),
        ("/solo/mcp//", 404),
        ("//", 404),
    ] {
        let found = client.send("GET", path, &[], "").await?.status;
        assert_eq!(found, status, "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn probes_are_answered_for_every_host_header() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    rialto.session().await?.expect_echo("the server is up").await?;
    for head in [
        "GET /health HTTP/1.1\r\nHost: 10.1.2.3:3000\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: rialto.default.svc\r\n\r\n",
        "GET /health/ HTTP/1.1\r\nHost: rialto.default.svc\r\n\r\n",
        "GET /health HTTP/1.0\r\n\r\n",
        "GET /ready HTTP/1.1\r\nHost: rialto.default.svc\r\n\r\n",
    ] {
        let response = rialto.raw().await?.exchange(head.as_bytes().to_vec()).await?;
        assert_eq!(response.status, 200, "{head}");
        if head.contains("/ready") {
            assert_eq!(
                response.body_text(),
                "{\"ready\":true}\n",
                "no details for a foreign host"
            );
        }
    }
    for head in [
        "GET /metrics HTTP/1.1\r\nHost: rialto.default.svc\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: evil.example\r\nOrigin: https://evil.example\r\n\r\n",
        "POST /health HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n",
    ] {
        let response = rialto.raw().await?.exchange(head.as_bytes().to_vec()).await?;
        assert_eq!(response.status, 403, "{head}");
    }
    Ok(())
}

#[tokio::test]
async fn other_paths_get_404_and_other_methods_405_with_allow() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--name", "solo"])
        .stub(&[])
        .start()
        .await?;
    let client = rialto.client().await?;
    for path in [
        "/",
        "/unknown/mcp",
        "/solo",
        "/solo/mcp/more",
        "/mcp/unknown",
        "/solo/other",
    ] {
        let status = client.send("POST", path, &JSON_HEADERS, "{}").await?.status;
        assert_eq!(status, 404, "{path}");
    }
    for (method, path) in [("PUT", "/mcp"), ("PATCH", "/solo/mcp"), ("POST", "/health")] {
        let response = client.send(method, path, &JSON_HEADERS, "{}").await?;
        assert_eq!(response.status, 405, "{method} {path}");
        assert!(
            response
                .header("allow")
                .is_some_and(|allow| allow.contains("GET")),
            "{method} {path}"
        );
    }
    Ok(())
}
