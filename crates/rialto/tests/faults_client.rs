//! The client misbehaves (rows C): only its own calls fail, and no other client notices.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::client::{EventStream, raw_http};
use testkit::processes::open_files;
use testkit::{McpClient, PATIENCE, RawHttp, Result, Rialto, poll_until, wait_until};
use tokio::task::JoinSet;

/// All messages until the stream ends.
async fn rest_of(stream: &mut EventStream) -> Result<Vec<Value>> {
    let mut messages = Vec::new();
    while let Some(message) = stream.next_message().await? {
        messages.push(message);
    }
    Ok(messages)
}

fn call_body(id: &str, tool: &str, arguments: &Value) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}"#
    )
}

#[tokio::test]
async fn c01_two_calls_with_one_id_get_an_answer_each() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    for (first, second) in [(400, 50), (50, 400), (100, 100)] {
        let markers = (format!("first-{first}"), format!("second-{second}"));
        let one = client.call(1, "delay", json!({"ms": first, "marker": markers.0}));
        let two = async {
            rialto.wait_for_execution(&markers.0).await;
            client
                .call(1, "delay", json!({"ms": second, "marker": markers.1}))
                .await
        };
        let (one, two) = tokio::join!(one, two);
        let (one, two) = (one?, two?);
        assert_eq!((one.text(), two.text()), markers);
        assert_eq!(
            (one.raw("id").as_deref(), two.raw("id").as_deref()),
            (Some("1"), Some("1"))
        );
    }
    Ok(())
}

#[tokio::test]
async fn c02_the_same_ids_in_many_sessions_stay_apart() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--max-sessions", "300"])
        .stub(&[])
        .start()
        .await?;
    let mut sessions = Vec::new();
    for _ in 0..200 {
        sessions.push(rialto.session().await?);
    }
    let ids: BTreeSet<_> = sessions.iter().map(McpClient::session).collect();
    assert_eq!(ids.len(), 200);
    let mut calls = JoinSet::new();
    for (index, session) in sessions.iter().enumerate() {
        let session = session.clone();
        calls.spawn(async move {
            // The answers come back in the opposite order.
            let arguments = json!({"ms": 300 - index, "marker": format!("session-{index}")});
            let reply = session.open_call(1, "delay", arguments, 1).await?.reply().await?;
            Ok::<_, testkit::Failure>((index, reply))
        });
    }
    for outcome in calls.join_all().await {
        let (index, reply) = outcome?;
        assert_eq!(reply.text(), format!("session-{index}"));
        assert_eq!(reply.raw("id").as_deref(), Some("1"));
    }
    assert_eq!(rialto.journal().starts().len(), 1);
    Ok(())
}

#[tokio::test]
async fn c03_a_client_that_hangs_up_cancels_nothing_and_can_come_back_for_the_result() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (client, neighbour) = (rialto.session().await?, rialto.session().await?);
    // A reset while nothing has come yet: the call runs on, and no other client is disturbed.
    let mut raw = rialto.raw().await?;
    let body = call_body("1", "delay", &json!({"ms": 200, "marker": "abandoned"}));
    raw.write(raw_http::post("/mcp", client.session().as_deref(), body))
        .await?;
    rialto.wait_for_execution("abandoned").await;
    raw.reset()?;
    neighbour.expect_echo("undisturbed").await?;
    assert_eq!(
        client
            .call(1, "delay", r#"{"ms":400,"marker":"next"}"#)
            .await?
            .text(),
        "next"
    );

    // With a stream under way the rest of it can be had later.
    let arguments = r#"{"n":5,"every_ms":60,"marker":"resumed"}"#;
    let mut stream = client
        .open_call(7, "progress", arguments, r#""token""#)
        .await?
        .events();
    let first = stream.message().await?;
    assert_eq!(first["params"]["progress"], 1);
    let last_event = stream.last_event_id().expect("events have ids").to_owned();
    drop(stream);
    let mut resumed = client.get_stream(Some(&last_event)).await?;
    let mut messages = Vec::new();
    loop {
        let message = resumed.message().await?;
        let ended = message["id"] == 7;
        messages.push(message);
        if ended {
            break;
        }
    }
    let progress: Vec<_> = messages
        .iter()
        .filter_map(|message| message["params"]["progress"].as_u64())
        .collect();
    assert_eq!(
        progress,
        [2, 3, 4, 5],
        "nothing is missing and nothing comes twice"
    );
    assert_eq!(
        messages
            .last()
            .map(|answer| &answer["result"]["content"][0]["text"]),
        Some(&json!("resumed"))
    );
    assert!(rialto.journal().events("cancelled").is_empty());
    assert_eq!(rialto.journal().executions("resumed"), 1);
    assert_eq!(rialto.journal().executions("abandoned"), 1);
    Ok(())
}

#[tokio::test]
async fn c05_a_request_that_breaks_off_never_reaches_the_child() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let session = client.session();
    let body = call_body("1", "echo", &json!({"marker": "broken-off"}));
    let whole = raw_http::post("/mcp", session.as_deref(), &body);
    let head = whole.len() - body.len();
    let cuts = [
        1,
        10,
        head / 2,
        head - 4,
        head - 2,
        head - 1,
        head,
        head + 1,
        head + body.len() / 2,
        whole.len() - 1,
    ];
    for cut in cuts {
        for reset in [true, false] {
            let mut raw = rialto.raw().await?;
            raw.write(&whole[..cut]).await?;
            if reset {
                raw.reset()?;
            } else {
                raw.finish_writing().await?;
                let said = raw.read_to_end().await?;
                assert!(
                    said.is_empty() || said.starts_with(b"HTTP/1.1 4"),
                    "cut at {cut}: {said:?}"
                );
            }
        }
    }
    // The same in chunks: the last one is missing, or only its end.
    let chunked = String::from_utf8_lossy(&whole[..head]).replace(
        &format!("Content-Length: {}", body.len()),
        "Transfer-Encoding: chunked",
    );
    for tail in [
        format!("{:x}\r\n{body}\r\n", body.len()),
        format!("{:x}\r\n{body}\r\n0\r\n", body.len()),
    ] {
        let mut raw = rialto.raw().await?;
        raw.write(format!("{chunked}{tail}")).await?;
        raw.finish_writing().await?;
        let said = raw.read_to_end().await?;
        assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 4"), "{said:?}");
    }
    client.expect_echo("whole").await?;
    assert_eq!(rialto.journal().executions("broken-off"), 0);
    assert_eq!(rialto.journal().received("tools/call").len(), 1);
    Ok(())
}

#[tokio::test]
async fn c07_clients_that_do_not_read_cost_bounded_memory_and_delay_no_other() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--max-sessions", "100"])
        .stub(&[])
        .start()
        .await?;
    let neighbour = rialto.session().await?;
    let before = rialto.memory().peak;
    let mut slow = Vec::new();
    for index in 0..24 {
        let client = rialto.session().await?;
        let mut raw = rialto.raw().await?;
        let marker = format!("slow-{index}");
        let body = call_body("1", "big", &json!({"bytes": 1_000_000, "marker": marker}));
        raw.write(raw_http::post("/mcp", client.session().as_deref(), body))
            .await?;
        rialto.wait_for_execution(&marker).await;
        neighbour.expect_echo("at once").await?;
        slow.push(raw);
    }
    // 24 answers of one message each: what the limits add up to, and some slack.
    let peak = rialto.memory().peak;
    assert!(peak < before + (40 << 10), "{before} → {peak}");
    // A client that reads after all gets everything.
    if let Some(mut raw) = slow.pop() {
        assert!(raw.read_response().await?.body.len() > 1_000_000);
    }
    let files = open_files(rialto.pid());
    let held = slow.len();
    for raw in slow {
        raw.reset()?;
    }
    wait_until("the connections are closed", PATIENCE, || {
        (open_files(rialto.pid()) + held <= files).then_some(())
    })
    .await;
    neighbour.expect_echo("afterwards").await?;
    Ok(())
}

/// F9: eleven KiB sent held 467 MiB of answers that were not read.
#[tokio::test]
async fn h08_answers_that_are_not_read_stay_within_the_budget() -> Result<()> {
    const MIB: usize = 1 << 20;
    let rialto = Rialto::with_config(
        "limits: { buffered_bytes: 16MiB }\nmax_message_bytes: 8MiB\ndestinations:\n  stub: { command: '{stub} --journal {dir}/journal', max_sessions: 100 }\n",
    )
    .await?;
    let neighbour = rialto.session_of("stub").await?;
    let before = rialto.memory().peak;
    let mut slow = Vec::new();
    for index in 0..24 {
        let client = rialto.session_of("stub").await?;
        let mut raw = rialto.raw().await?;
        let marker = format!("slow-{index}");
        let body = call_body("1", "big", &json!({"bytes": 6 * MIB, "marker": marker}));
        raw.write(raw_http::post("/stub/mcp", client.session().as_deref(), body))
            .await?;
        rialto.wait_for_execution(&marker).await;
        neighbour.expect_echo("at once").await?;
        slow.push(raw);
    }
    let hits = |page: &str| {
        page.lines()
            .find_map(|line| line.strip_prefix(r#"rialto_limit_hits_total{limit="buffered_bytes"} "#))
            .and_then(|count| count.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let deadline = tokio::time::Instant::now() + PATIENCE;
    // Two answers of six fit, and the newest is spared: the others were closed.
    while hits(&neighbour.metrics().await?) < 20 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{}",
            neighbour.metrics().await?
        );
    }
    let page = neighbour.metrics().await?;
    let held = page
        .lines()
        .find_map(|line| line.strip_prefix("rialto_buffered_bytes "))
        .and_then(|bytes| bytes.parse::<f64>().ok())
        .expect("the bytes are shown");
    assert!(held <= (22 * MIB) as f64, "{held}");
    let peak = rialto.memory().peak;
    assert!(peak < before + (72 << 10), "{before} → {peak}");
    // The newest is read to its end.
    let mut newest = slow.pop().expect("there is one");
    assert!(newest.read_response().await?.body.len() > 6 * MIB);
    Ok(())
}

/// F9: 68 KiB sent held 401 MiB of event logs.
#[tokio::test]
async fn h08_events_of_many_sessions_share_one_budget() -> Result<()> {
    let rialto = Rialto::with_config(
        "limits: { buffered_bytes: 2MiB }\ndestinations:\n  stub: { command: '{stub}', max_sessions: 100 }\n",
    )
    .await?;
    let mut clients = Vec::new();
    for _ in 0..12 {
        let client = rialto.session_of("stub").await?;
        // Without a stream the log lines of the call are kept for one that may come.
        let accept = [
            ("accept", "application/json"),
            ("content-type", "application/json"),
        ];
        let body = call_body("1", "flood", &json!({"n": 16, "bytes": 60_000}));
        let session = client.session().expect("a session");
        let headers = [accept[0], accept[1], ("mcp-session-id", session.as_str())];
        let reply = client
            .send("POST", "/stub/mcp", &headers, body)
            .await?
            .reply()
            .await?;
        reply.expect_status(200)?;
        clients.push(client);
    }
    let page = clients[0].metrics().await?;
    let value = |name: &str| {
        page.lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|value| value.trim().parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    let held = value("rialto_buffered_bytes");
    assert!(held > 1e6 && held <= (2 << 20) as f64, "{held}\n{page}");
    assert!(
        value(r#"rialto_limit_hits_total{limit="buffered_bytes"}"#) > 0.0,
        "{page}"
    );
    // The newest events are there for a stream that comes; the log and `/ready` name the key.
    let last = clients.last().expect("a client");
    let mut stream = last.get_stream(None).await?;
    assert_eq!(stream.message().await?["method"], "notifications/message");
    let ready = last.send("GET", "/ready", &[], "").await?.reply().await?;
    assert!(
        ready.answer()["limits"]["buffered_bytes"]["hits"].as_u64() > Some(0),
        "{}",
        ready.body_text()
    );
    let said = rialto.stderr().join("\n");
    assert!(said.contains("limits.buffered_bytes"), "{said}");
    Ok(())
}

#[tokio::test]
async fn c08_half_open_connections_are_closed_and_real_clients_are_served_meanwhile() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let session = client.session();
    let files = open_files(rialto.pid());
    let body = call_body("1", "echo", &json!({"marker": "half"}));
    let whole = raw_http::post("/mcp", session.as_deref(), &body);
    let head = whole.len() - body.len();
    let mut half_open: Vec<RawHttp> = Vec::new();
    for index in 0..200 {
        let mut raw = rialto.raw().await?.with_deadline(Duration::from_secs(40));
        // Nothing at all, part of the headers, all but the last line end, and part of the body.
        let cut = [0, 30, head - 2, head + 10][index % 4];
        raw.write(&whole[..cut]).await?;
        half_open.push(raw);
    }
    client.expect_echo("at once").await?;
    rialto.session().await?.expect_echo("a new one too").await?;
    let start = Instant::now();
    for mut raw in half_open {
        let said = raw.read_to_end().await?;
        assert!(
            said.is_empty() || said.starts_with(b"HTTP/1.1 4"),
            "{}",
            String::from_utf8_lossy(&said)
        );
    }
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "they were held for {:?}",
        start.elapsed()
    );
    wait_until("their files are closed", PATIENCE, || {
        (open_files(rialto.pid()) <= files + 4).then_some(())
    })
    .await;
    assert_eq!(rialto.journal().executions("half"), 0);
    Ok(())
}

#[tokio::test]
async fn c09_streams_have_a_cap_and_cost_little() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--max-sessions", "200"])
        .stub(&[])
        .start()
        .await?;
    let client = rialto.session().await?;
    let before = rialto.memory().resident;
    let (mut streams, mut refused) = (Vec::new(), 0);
    for _ in 0..200 {
        let response = client.get(None).await?;
        match response.status {
            200 => streams.push(response.events()),
            409 | 429 | 503 => {
                refused += 1;
                response.reply().await?;
            }
            status => panic!("{status}"),
        }
    }
    assert!(
        refused > 0 && !streams.is_empty(),
        "{} open, {refused} refused",
        streams.len()
    );
    let grown = rialto.memory().resident.saturating_sub(before);
    assert!(
        grown < 32 * 200 + (4 << 10),
        "{grown} KiB for {} streams",
        streams.len()
    );
    // Another session is not affected, nor the calls of this one.
    let other = rialto.session().await?;
    let mut others = other.get_stream(None).await?;
    client.expect_echo("still").await?;
    other.call(1, "change_tools", "{}").await?.expect_status(200)?;
    assert_eq!(
        others.message().await?["method"],
        "notifications/tools/list_changed"
    );

    // A client that closes one may have another.
    streams.clear();
    poll_until("closed streams no longer count", PATIENCE, async || {
        Result::Ok((client.get(None).await?.status == 200).then_some(()))
    })
    .await?;
    let mut many = Vec::new();
    for _ in 0..100 {
        let session = rialto.session().await?;
        many.push(session.get_stream(None).await?);
    }
    client.expect_echo("after all").await?;
    Ok(())
}

#[tokio::test]
async fn c10_an_event_id_of_another_session_gives_nothing() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (owner, thief) = (rialto.session().await?, rialto.session().await?);
    let mut listening = owner.get_stream(None).await?;
    let mut stream = owner
        .open_call(1, "progress", r#"{"n":3,"marker":"private"}"#, 1)
        .await?
        .events();
    stream.message().await?;
    let post_event = stream.last_event_id().expect("events have ids").to_owned();
    rest_of(&mut stream).await?;
    owner
        .call(
            1,
            "notify",
            r#"{"method":"notifications/tools/list_changed","marker":"private"}"#,
        )
        .await?
        .expect_status(200)?;
    listening.message().await?;
    let get_event = listening.last_event_id().expect("events have ids").to_owned();
    owner
        .call(
            1,
            "notify",
            r#"{"method":"notifications/tools/list_changed","marker":"secret"}"#,
        )
        .await?
        .expect_status(200)?;

    for event in [post_event, get_event] {
        let response = thief.get(Some(&event)).await?;
        match response.status {
            400 | 404 | 405 => {
                let reply = response.reply().await?;
                assert!(!reply.body_text().contains("private"), "{reply:?}");
            }
            200 => {
                // From now on, then: the first thing to come is this.
                let mut stream = response.events();
                thief
                    .call(
                        1,
                        "notify",
                        r#"{"method":"notifications/prompts/list_changed","marker":"own"}"#,
                    )
                    .await?
                    .expect_status(200)?;
                let message = stream.message().await?;
                assert!(!message.to_string().contains("private"), "{message}");
            }
            status => panic!("{status}"),
        }
    }
    Ok(())
}

#[tokio::test]
async fn c11_damaged_event_ids_do_no_harm() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let mut stream = client
        .open_call(1, "progress", r#"{"n":2,"marker":"m"}"#, 1)
        .await?
        .events();
    stream.message().await?;
    let real = stream.last_event_id().expect("events have ids").to_owned();
    rest_of(&mut stream).await?;
    let finished = stream.last_event_id().expect("events have ids").to_owned();
    let long = "9".repeat(4000);
    let mut ids: Vec<String> = [
        "garbage",
        "",
        "0",
        "-1",
        "18446744073709551616",
        "1-1-1",
        "../../x",
        "__proto__",
        "%00",
        &long,
    ]
    .map(str::to_owned)
    .to_vec();
    ids.extend([
        format!("{real}0"),
        format!("{real}999999"),
        format!(" {real}"),
        real[..real.len() - 1].to_owned(),
        real.to_uppercase() + "x",
    ]);
    for id in &ids {
        let response = client.get(Some(id)).await?;
        assert!(
            matches!(response.status, 200 | 400 | 404 | 405 | 431),
            "{id}: {}",
            response.status
        );
    }
    // A stream that was read to its end must not look like one that is still to come: clients would
    // ask for ever.
    let response = client.get(Some(&finished)).await?;
    assert_eq!(response.status, 405);
    assert!(response.header("allow").is_some());
    let mut replayed = client.get_stream(Some(&real)).await?;
    let answer = rest_of(&mut replayed).await?.pop();
    assert_eq!(
        answer.map(|answer| answer["result"]["content"][0]["text"].clone()),
        Some(json!("m"))
    );
    client.expect_echo("goes on").await?;
    Ok(())
}

#[tokio::test]
async fn c12_after_two_resumptions_each_message_comes_on_one_stream() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let mut stream = client
        .open_call(9, "progress", r#"{"n":4,"every_ms":200,"marker":"once"}"#, 1)
        .await?
        .events();
    stream.message().await?;
    let last_event = stream.last_event_id().expect("events have ids").to_owned();
    drop(stream);
    let mut one = client.get_stream(Some(&last_event)).await?;
    let mut two = client.get_stream(Some(&last_event)).await?;
    let (one, two) = tokio::join!(rest_of(&mut one), rest_of(&mut two));
    let messages: Vec<Value> = [one?, two?].concat();
    let answers = messages.iter().filter(|message| message["id"] == 9).count();
    assert_eq!(answers, 1, "{messages:?}");
    let mut progress: Vec<_> = messages
        .iter()
        .filter_map(|message| message["params"]["progress"].as_u64())
        .collect();
    progress.sort_unstable();
    assert_eq!(progress, [2, 3, 4]);
    Ok(())
}

#[tokio::test]
async fn c13_second_initialize_is_refused_and_not_sent_to_the_child() -> Result<()> {
    let rialto = Rialto::with_stub(&["--strict"]).await?;
    let client = rialto.session().await?;
    let session = client.session();
    for _ in 0..3 {
        let reply = client.initialize("2025-11-25", json!({})).await?;
        assert!(matches!(reply.status, 200 | 400), "{reply:?}");
        client.set_session(session.as_deref());
    }
    client
        .notify("notifications/initialized", "{}")
        .await?
        .expect_status(202)?;
    client.expect_echo("goes on").await?;
    // A second session of the same instance is answered from the stored result.
    rialto.session().await?.expect_echo("another").await?;
    assert_eq!(rialto.journal().received("initialize").len(), 1);
    assert_eq!(rialto.journal().received("notifications/initialized").len(), 1);
    Ok(())
}

#[tokio::test]
async fn c14_calls_out_of_order_get_an_answer() -> Result<()> {
    let rialto = Rialto::with_stub(&["--strict"]).await?;
    // Before `notifications/initialized`: the handshake is Rialto's business, so it may as well
    // work.
    let hasty = rialto.client().await?;
    hasty
        .initialize("2025-11-25", json!({}))
        .await?
        .expect_status(200)?;
    let reply = hasty.call(1, "echo", r#"{"marker":"hasty"}"#).await?;
    match reply.status {
        200 => assert_eq!(reply.text(), "hasty"),
        status => assert_eq!(status, 400, "{reply:?}"),
    }

    let client = rialto.session().await?;
    let waiting = client.call(1, "never", r#"{"marker":"ended"}"#);
    let ending = async {
        rialto.wait_for_execution("ended").await;
        client.delete().await
    };
    let (answer, deleted) = tokio::join!(waiting, ending);
    deleted?.expect_status(204)?;
    let answer = answer?;
    assert!(answer.answer()["error"]["code"].is_i64(), "{answer:?}");
    let journal = rialto.journal();
    wait_until("the child is told", PATIENCE, || {
        journal.was_cancelled("ended").then_some(())
    })
    .await;
    client
        .call(1, "echo", r#"{"marker":"after"}"#)
        .await?
        .expect_error(404, -32600)?;
    assert_eq!(client.get(None).await?.status, 404);
    client.delete().await?.expect_status(404)?;
    client
        .notify("notifications/initialized", "{}")
        .await?
        .expect_status(404)?;
    assert_eq!(journal.executions("after"), 0);
    Ok(())
}

/// A stream under way ends with an answer too: it never just stops.
#[tokio::test]
async fn c14_delete_during_a_stream_ends_it_with_an_answer() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let mut listening = client.get_stream(None).await?;
    let mut stream = client
        .open_call(3, "progress", r#"{"n":100,"every_ms":100,"marker":"cut"}"#, 1)
        .await?
        .events();
    stream.message().await?;
    client.delete().await?.expect_status(204)?;
    let last = rest_of(&mut stream).await?.pop().unwrap_or_default();
    assert_eq!(last["id"], 3, "{last}");
    assert!(last["error"]["code"].is_i64(), "{last}");
    rest_of(&mut listening).await?;
    Ok(())
}

#[tokio::test]
async fn c15_abandoned_sessions_are_capped_and_expire() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--max-sessions", "20"])
        .env("RIALTO_SESSION_IDLE", "3s")
        .stub(&[])
        .start()
        .await?;
    let client = rialto.client().await?;
    // Refused ones leave nothing behind, so that there is room for twenty afterwards.
    for _ in 0..100 {
        let reply = client.request("null", "initialize", "{}").await?;
        reply.expect_status(400)?;
        assert_eq!(reply.header("mcp-session-id"), None, "{reply:?}");
        client.set_version(Some("1999-01-01"));
        let reply = client
            .request(
                0,
                "initialize",
                json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}),
            )
            .await?;
        reply.expect_status(400)?;
        client.set_version(None);
    }
    let mut sessions = BTreeSet::new();
    for _ in 0..20 {
        let reply = client.initialize("2025-11-25", json!({})).await?;
        reply.expect_status(200)?;
        sessions.insert(client.session());
        client.set_session(None);
        client.set_version(None);
    }
    assert_eq!(sessions.len(), 20);
    let before = rialto.memory();
    let mut refused = 0;
    for _ in 0..1000 {
        let reply = client.initialize("2025-11-25", json!({})).await?;
        client.set_session(None);
        client.set_version(None);
        if reply.status == 503 {
            refused += 1;
            assert!(reply.header("retry-after").is_some(), "{reply:?}");
            assert_eq!(reply.answer()["error"]["data"]["reason"], "sessions_at_limit");
        }
    }
    assert!(refused >= 900, "only {refused} were refused");
    assert!(
        rialto.memory().resident < before.resident + (8 << 10),
        "{before:?} → {:?}",
        rialto.memory()
    );
    poll_until("idle sessions end", PATIENCE, async || {
        let reply = client.initialize("2025-11-25", json!({})).await?;
        Result::Ok((reply.status == 200).then_some(()))
    })
    .await?;
    client.expect_echo("room again").await?;
    Ok(())
}

/// A client that disconnects before the answer to `initialize` never learns the id of its session,
/// so there must be none.
#[tokio::test]
async fn c15_a_client_that_hangs_up_before_its_welcome_leaves_no_session() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--max-sessions", "30"])
        .stub(&["--slow-start", "1500"])
        .start()
        .await?;
    let body = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#;
    let mut hasty = Vec::new();
    for _ in 0..20 {
        let mut raw = rialto.raw().await?;
        raw.write(raw_http::post("/mcp", None, body)).await?;
        hasty.push(raw);
    }
    let client = rialto.client().await?;
    wait_for_sessions(&client, 20).await?;
    for raw in hasty {
        raw.reset()?;
    }
    wait_for_sessions(&client, 0).await?;
    client.handshake("2025-11-25", json!({})).await?;
    client.expect_echo("patient").await?;
    Ok(())
}

/// Asks `/ready` until the destination has that many sessions.
async fn wait_for_sessions(client: &McpClient, count: u64) -> Result<()> {
    let what = format!("{count} sessions are open");
    poll_until(&what, PATIENCE, async || {
        let ready: Value = serde_json::from_str(
            &client
                .send("GET", "/ready", &[], "")
                .await?
                .reply()
                .await?
                .body_text(),
        )?;
        let sessions = ready["destinations"]["testkit-server"]["sessions"].as_u64();
        Ok((sessions == Some(count)).then_some(()))
    })
    .await
}

/// Sessions that Rialto opened by itself make room, those that a client opened do not.
#[tokio::test]
async fn c15_calls_without_a_session_make_room_for_each_other() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--max-sessions", "5"])
        .stub(&["--strict"])
        .start()
        .await?;
    let real = rialto.session().await?;
    let stray = rialto.client().await?;
    for index in 0..50 {
        let marker = format!("stray-{index}");
        let reply = stray.call(1, "echo", json!({"marker": marker})).await?;
        reply.expect_status(200)?;
        assert_eq!(reply.text(), marker);
    }
    real.expect_echo("still there").await?;
    assert_eq!(rialto.journal().received("initialize").len(), 1);
    assert_eq!(rialto.journal().starts().len(), 1);
    Ok(())
}
