//! What comes on streams: progress, logs, questions, changes; and how a broken stream goes on.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::client::EventStream;
use testkit::processes::send_signal;
use testkit::{LEGACY, McpClient, PATIENCE, Result, Rialto, marked, wait_until};

const OLDER: [&str; 3] = ["2025-06-18", "2025-03-26", "2024-11-05"];

async fn session(rialto: &Rialto, version: &str, capabilities: Value) -> Result<McpClient> {
    let client = rialto.client().await?;
    client.handshake(version, capabilities).await?;
    Ok(client)
}

/// Sends every session a notification, so that a test can tell what came before it from what did
/// not come.
async fn fence(client: &McpClient, marker: &str) -> Result<()> {
    client
        .call(1, "notify", marked(marker))
        .await?
        .expect_status(200)?;
    Ok(())
}

/// What comes on a stream before the fence.
async fn before_fence(stream: &mut EventStream, marker: &str) -> Result<Vec<Value>> {
    let mut messages = Vec::new();
    loop {
        let message = stream.message().await?;
        if message["params"]["_meta"]["marker"] == marker {
            return Ok(messages);
        }
        messages.push(message);
    }
}

fn methods(messages: &[Value]) -> Vec<&str> {
    messages
        .iter()
        .map(|message| message["method"].as_str().unwrap_or("answer"))
        .collect()
}

// The answer of a POST.

#[tokio::test]
async fn a_post_becomes_a_stream_when_progress_comes_first() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto, LEGACY, json!({})).await?;
    for token in [r#""my token""#, "7", "12345678901234567890123"] {
        let response = client
            .open_call(5, "progress", json!({"n": 3, "marker": "m"}), token)
            .await?;
        assert!(response.is_stream() && response.status == 200);
        let reply = response.reply().await?;
        let messages = reply.messages();
        assert_eq!(
            methods(&messages),
            ["notifications/progress"; 3]
                .into_iter()
                .chain(["answer"])
                .collect::<Vec<_>>()
        );
        for (step, message) in (1..).zip(&messages[..3]) {
            assert_eq!(message["params"]["progress"], step);
            assert_eq!(
                message["params"]["progressToken"],
                serde_json::from_str::<Value>(token)?
            );
        }
        assert_eq!(
            (reply.text().as_str(), reply.raw("id").as_deref()),
            ("m", Some("5"))
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_post_that_is_answered_first_is_json() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto, LEGACY, json!({})).await?;
    let response = client.open_call(5, "echo", marked("m"), 1).await?;
    assert_eq!(
        (response.is_stream(), response.header("content-type")),
        (false, Some("application/json"))
    );
    Ok(())
}

#[tokio::test]
async fn a_post_becomes_a_stream_after_five_seconds_of_waiting() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto, LEGACY, json!({})).await?;
    let arguments = json!({"name": "delay", "arguments": {"ms": 6000, "marker": "slow"}});
    let response = client.open(1, "tools/call", arguments).await?;
    assert!(response.is_stream());
    assert_eq!(response.reply().await?.text(), "slow");
    Ok(())
}

#[tokio::test]
async fn a_timeout_on_an_open_stream_is_an_error_in_the_stream() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--request-timeout", "600ms", "--stream-timeout", "600ms"])
        .stub(&[])
        .start()
        .await?;
    let client = session(&rialto, LEGACY, json!({})).await?;
    let arguments = json!({"n": 50, "every_ms": 100, "marker": "stuck"});
    let mut stream = client.open_call(9, "progress", arguments, 1).await?.events();
    assert_eq!(stream.message().await?["params"]["progress"], 1);
    let child = rialto.journal().starts()[0];
    send_signal(child, Signal::STOP);
    let mut last = Value::Null;
    while let Some(message) = stream.next_message().await? {
        last = message;
    }
    send_signal(child, Signal::CONT);
    assert_eq!(
        (&last["id"], &last["error"]["code"]),
        (&json!(9), &json!(-32603)),
        "{last}"
    );
    wait_until("the child is told", PATIENCE, || {
        rialto.journal().was_cancelled("stuck").then_some(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_client_that_reads_no_streams_gets_json_and_its_progress_on_get() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto, LEGACY, json!({})).await?;
    let id = client.session().expect("a session");
    let mut stream = client.get_stream(None).await?;
    let body = r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"progress","arguments":{"n":2,"marker":"m"},"_meta":{"progressToken":"t"}}}"#;
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json"),
        ("mcp-session-id", id.as_str()),
    ];
    let reply = client.send("POST", "/mcp", &headers, body).await?.reply().await?;
    assert_eq!((reply.text().as_str(), reply.events.len()), ("m", 0));
    for step in 1..=2 {
        let message = stream.message().await?;
        assert_eq!(
            (
                &message["params"]["progress"],
                &message["params"]["progressToken"]
            ),
            (&json!(step), &json!("t"))
        );
    }
    Ok(())
}

#[tokio::test]
async fn equal_progress_tokens_of_two_sessions_are_kept_apart() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (one, other) = (
        session(&rialto, LEGACY, json!({})).await?,
        session(&rialto, LEGACY, json!({})).await?,
    );
    let play = async |client: &McpClient, marker: &str| {
        let arguments = json!({"n": 10, "every_ms": 10, "marker": marker});
        client.open_call(1, "progress", arguments, 1).await?.reply().await
    };
    let (one, other) = tokio::join!(play(&one, "one"), play(&other, "other"));
    for (reply, marker) in [(one?, "one"), (other?, "other")] {
        let messages = reply.messages();
        assert_eq!((messages.len(), reply.text().as_str()), (11, marker));
        assert!(
            messages[..10]
                .iter()
                .all(|message| message["params"]["message"] == marker),
            "{messages:?}"
        );
    }
    Ok(())
}

// Priming and resuming.

#[tokio::test]
async fn streams_of_the_newest_revision_begin_with_a_priming_event_and_no_others_do() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    for version in [LEGACY, OLDER[0], OLDER[1], OLDER[2]] {
        let client = session(&rialto, version, json!({})).await?;
        let post = client
            .open_call(5, "progress", json!({"n": 1}), 1)
            .await?
            .reply()
            .await?;
        let mut stream = client.get_stream(None).await?;
        fence(&client, "here").await?;
        let first = stream.next().await?.expect("an event");
        for event in [&post.events[0], &first] {
            assert_eq!(event.data.is_empty(), version == LEGACY, "{version}: {event:?}");
            assert!(event.id.is_some(), "{version}: {event:?}");
        }
        client.delete().await?.expect_status(204)?;
    }
    Ok(())
}

#[tokio::test]
async fn event_ids_are_unique_within_a_session() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto, LEGACY, json!({})).await?;
    let mut ids = Vec::new();
    let mut streams = [client.get_stream(None).await?, client.get_stream(None).await?];
    for _ in 0..3 {
        let reply = client
            .open_call(5, "progress", json!({"n": 3}), 1)
            .await?
            .reply()
            .await?;
        ids.extend(reply.events.into_iter().map(|event| event.id));
    }
    client
        .call(1, "notify", json!({"n": 3}))
        .await?
        .expect_status(200)?;
    for stream in &mut streams {
        for _ in 0..4 {
            ids.push(stream.next().await?.expect("an event").id);
        }
    }
    let count = ids.len();
    assert!(ids.iter().all(Option::is_some), "{ids:?}");
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
    Ok(())
}

#[tokio::test]
async fn a_broken_get_stream_goes_on_after_the_last_event() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    for version in [LEGACY, OLDER[0]] {
        let client = session(&rialto, version, json!({})).await?;
        let mut stream = client.get_stream(None).await?;
        client
            .call(1, "notify", json!({"n": 2}))
            .await?
            .expect_status(200)?;
        for n in 1..=2 {
            assert_eq!(stream.message().await?["params"]["_meta"]["n"], n);
        }
        let last = stream.last_event_id().expect("an id").to_owned();
        drop(stream);
        client
            .call(1, "notify", json!({"n": 3, "marker": "missed"}))
            .await?
            .expect_status(200)?;
        let mut stream = client.get_stream(Some(&last)).await?;
        for n in 1..=3 {
            let message = stream.message().await?;
            assert_eq!(
                (
                    &message["params"]["_meta"]["n"],
                    &message["params"]["_meta"]["marker"]
                ),
                (&json!(n), &json!("missed"))
            );
        }
        fence(&client, "live again").await?;
        assert!(before_fence(&mut stream, "live again").await?.is_empty());
        client.delete().await?.expect_status(204)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_broken_post_stream_goes_on_while_its_call_still_runs() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto, LEGACY, json!({})).await?;
    let arguments = json!({"n": 20, "every_ms": 25, "marker": "resumed"});
    let mut stream = client.open_call(5, "progress", arguments, 1).await?.events();
    assert_eq!(stream.message().await?["params"]["progress"], 1);
    let last = stream.last_event_id().expect("an id").to_owned();
    drop(stream);
    let mut stream = client.get_stream(Some(&last)).await?;
    for step in 2..=20 {
        assert_eq!(stream.message().await?["params"]["progress"], step);
    }
    let answer = stream.message().await?;
    assert_eq!(
        (&answer["id"], &answer["result"]["content"][0]["text"]),
        (&json!(5), &json!("resumed"))
    );
    assert_eq!(stream.next_message().await?, None, "and then it ends");
    assert_eq!(rialto.journal().executions("resumed"), 1);
    assert!(rialto.journal().events("cancelled").is_empty());
    Ok(())
}

#[tokio::test]
async fn a_broken_post_stream_is_replayed_after_its_call_has_ended() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto, LEGACY, json!({})).await?;
    let arguments = json!({"n": 3, "every_ms": 20, "marker": "missed"});
    let mut stream = client.open_call(5, "progress", arguments, 1).await?.events();
    let primed = stream
        .next()
        .await?
        .and_then(|event| event.id)
        .expect("a priming event");
    drop(stream);
    // A call that is answered later than the lost one ended.
    client
        .call(6, "delay", json!({"ms": 150}))
        .await?
        .expect_status(200)?;
    let mut stream = client.get_stream(Some(&primed)).await?;
    for step in 1..=3 {
        assert_eq!(stream.message().await?["params"]["progress"], step);
    }
    assert_eq!(stream.message().await?["result"]["content"][0]["text"], "missed");
    assert_eq!(stream.next_message().await?, None);
    Ok(())
}

#[tokio::test]
async fn event_id_of_another_session_or_of_none_replays_nothing() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (owner, thief) = (
        session(&rialto, LEGACY, json!({})).await?,
        session(&rialto, LEGACY, json!({})).await?,
    );
    let reply = owner
        .open_call(5, "progress", json!({"n": 3, "marker": "private"}), 1)
        .await?
        .reply()
        .await?;
    let id = reply.events[0].id.clone().expect("an id");
    for stolen in [id.as_str(), "nonsense", "999-999", "-1", "18446744073709551616-1"] {
        let response = thief.get(Some(stolen)).await?;
        if response.status == 200 {
            let mut stream = response.events();
            fence(&thief, "fence").await?;
            let leaked = before_fence(&mut stream, "fence").await?;
            assert!(leaked.is_empty(), "{stolen}: {leaked:?}");
        } else {
            assert_eq!(response.status, 400, "{stolen}");
        }
    }
    Ok(())
}

// Questions to the client.

/// Which tool asks, what capability that needs, and an answer with a mark in it.
fn questions() -> [(&'static str, &'static str, Value, Value); 3] {
    [
        (
            "ask_elicit",
            "elicitation/create",
            json!({"elicitation": {}}),
            json!({"action": "accept", "content": {"answer": "seat 12A"}}),
        ),
        (
            "ask_sample",
            "sampling/createMessage",
            json!({"sampling": {}}),
            json!({"role": "assistant", "content": {"type": "text", "text": "seat 12A"}, "model": "m"}),
        ),
        (
            "ask_roots",
            "roots/list",
            json!({"roots": {}}),
            json!({"roots": [{"uri": "file:///seat 12A"}]}),
        ),
    ]
}

/// Calls a tool that asks, answers its question on the call's own stream, and gives the tool's
/// text.
async fn serve_stdio(
    client: &McpClient,
    tool: &str,
    marker: &str,
    method: &str,
    answer: &Value,
) -> Result<String> {
    let params = json!({"name": tool, "arguments": marked(marker)});
    let response = client.open(1, "tools/call", params).await?;
    assert!(response.is_stream(), "a question comes before the answer");
    let mut stream = response.events();
    let question = stream.message().await?;
    assert_eq!(question["method"], method, "{question}");
    client
        .respond(&question["id"], answer)
        .await?
        .expect_status(202)?;
    let answer = stream.message().await?;
    assert_eq!(answer["id"], 1, "{answer}");
    Ok(answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}

async fn questions_go_round(process: &str) -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--process", process])
        .stub(&["--strict"])
        .start()
        .await?;
    for (tool, method, capabilities, answer) in questions() {
        let client = session(&rialto, LEGACY, capabilities).await?;
        for marker in ["once", "twice"] {
            let text = serve_stdio(&client, tool, marker, method, &answer).await?;
            let heard: Value = serde_json::from_str(&text)?;
            assert_eq!(
                (&heard["marker"], &heard["result"]),
                (&json!(marker), &answer),
                "{text}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn elicitation_sampling_and_roots_go_round_with_a_shared_child() -> Result<()> {
    questions_go_round("shared").await
}

#[tokio::test]
async fn elicitation_sampling_and_roots_go_round_with_a_child_per_session() -> Result<()> {
    questions_go_round("per_session").await
}

#[tokio::test]
async fn a_refusal_of_the_client_reaches_the_server() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto, LEGACY, json!({"sampling": {}})).await?;
    let params = json!({"name": "ask_sample", "arguments": marked("m")});
    let mut stream = client.open(1, "tools/call", params).await?.events();
    let question = stream.message().await?;
    client
        .respond_error(&question["id"], -1, "user said no")
        .await?
        .expect_status(202)?;
    let text = stream.message().await?["result"]["content"][0]["text"].to_string();
    assert!(text.contains("user said no"), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_question_the_client_cannot_answer_is_refused_for_it() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto, LEGACY, json!({})).await?;
    for tool in ["ask_elicit", "ask_sample", "ask_roots"] {
        let text = client.call(1, tool, marked("m")).await?.text();
        let heard: Value = serde_json::from_str(&text)?;
        assert_eq!(heard["error"]["code"], -32601, "{text}");
    }
    Ok(())
}

#[tokio::test]
async fn a_servers_ping_is_answered() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto, LEGACY, json!({})).await?;
    let text = client.call(1, "ask_ping", marked("m")).await?.text();
    assert_eq!(
        serde_json::from_str::<Value>(&text)?,
        json!({"marker": "m", "result": {}})
    );
    Ok(())
}

#[tokio::test]
async fn sessions_that_are_asked_at_the_same_time_get_their_own_questions() -> Result<()> {
    const ROUNDS: usize = 5;
    let rialto = Rialto::with_stub(&["--strict"]).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let client = session(&rialto, LEGACY, json!({"elicitation": {}})).await?;
        tasks.spawn(async move { be_asked(&client, number, ROUNDS).await });
    }
    let mut answered = 0;
    for done in tasks.join_all().await {
        answered += done?;
    }
    assert!(answered >= 8 * (ROUNDS - 1), "only {answered} questions were put");
    Ok(())
}

/// Calls a tool that asks, several times, and gives how many questions came and were answered.
async fn be_asked(client: &McpClient, number: usize, rounds: usize) -> Result<usize> {
    let mut answered = 0;
    for round in 0..rounds {
        let marker = format!("{number}/{round}");
        let params = json!({"name": "ask_elicit", "arguments": marked(&marker)});
        let response = client.open(1, "tools/call", params).await?;
        if !response.is_stream() {
            // The first calls may overlap before it is known that this server asks: refused, never
            // guessed.
            let text = response.reply().await?.text();
            assert!(
                round == 0 && text.contains("per_session") && text.contains(&marker),
                "{text}"
            );
            continue;
        }
        let mut stream = response.events();
        let question = stream.message().await?;
        assert_eq!(question["params"]["message"], marker.as_str());
        let answer = json!({"action": "accept", "content": {"answer": marker}});
        client
            .respond(&question["id"], &answer)
            .await?
            .expect_status(202)?;
        let text = stream.message().await?["result"]["content"][0]["text"].to_string();
        assert_eq!(text.matches(&marker).count(), 2, "{text}");
        answered += 1;
    }
    Ok(answered)
}

#[tokio::test]
async fn a_question_outside_any_call_goes_to_one_stream_only() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--process", "per_session"])
        .stub(&[])
        .start()
        .await?;
    let client = session(&rialto, LEGACY, json!({"elicitation": {}})).await?;
    let mut streams = [client.get_stream(None).await?, client.get_stream(None).await?];
    client
        .call(1, "ask_after", marked("every listener"))
        .await?
        .expect_status(200)?;
    let journal = rialto.journal();
    // The fence is a call, and a question that comes during a call is that call's: it must not
    // stand before the question has arrived.
    let [first, second] = &mut streams;
    let mut heard = vec![
        tokio::select! { message = first.message() => message?, message = second.message() => message? },
    ];
    fence(&client, "fence").await?;
    for stream in &mut streams {
        heard.extend(before_fence(stream, "fence").await?);
    }
    assert_eq!(methods(&heard), ["elicitation/create"]);
    client
        .respond(&heard[0]["id"], json!({"action": "decline"}))
        .await?
        .expect_status(202)?;
    wait_until("the server has its answer", PATIENCE, || {
        (journal.events("answered").len() == 1).then_some(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_question_that_cannot_be_attributed_is_refused_naming_the_setting() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let able = json!({"elicitation": {}});
    let (one, _other) = (
        session(&rialto, LEGACY, able.clone()).await?,
        session(&rialto, LEGACY, able).await?,
    );
    one.call(1, "ask_after", marked("whose"))
        .await?
        .expect_status(200)?;
    let answered = wait_until("the server is answered", PATIENCE, || {
        rialto.journal().events("answered").pop()
    })
    .await;
    let line = answered["line"].as_str().unwrap_or_default();
    assert!(
        line.contains("error") && line.contains("process: per_session"),
        "{line}"
    );
    Ok(())
}

/// The client that is asked never answers, and another one is served all the same. Once the first
/// has closed its streams, its server receives an error instead of the answer.
#[tokio::test]
async fn a_client_that_was_asked_and_leaves_holds_up_no_other() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let able = json!({"elicitation": {}});
    let (asked, other) = (
        session(&rialto, LEGACY, able.clone()).await?,
        session(&rialto, LEGACY, able).await?,
    );
    let mut asking = asked
        .open_call(1, "ask_elicit", marked("which"), "null")
        .await?
        .events();
    assert_eq!(asking.message().await?["method"], "elicitation/create");
    other.expect_echo("meanwhile").await?;
    drop(asking);
    let answered = wait_until("the server is answered", PATIENCE, || {
        rialto.journal().events("answered").pop()
    })
    .await;
    let line = answered["line"].as_str().unwrap_or_default();
    assert!(line.contains("error") && line.contains("no stream"), "{line}");
    Ok(())
}

// Changes, updates, logs.

#[tokio::test]
async fn changed_list_is_announced_to_every_session() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (one, other) = (
        session(&rialto, LEGACY, json!({})).await?,
        session(&rialto, LEGACY, json!({})).await?,
    );
    let mut streams = [one.get_stream(None).await?, other.get_stream(None).await?];
    assert_eq!(one.call(1, "change_tools", "{}").await?.text(), "added");
    for stream in &mut streams {
        assert_eq!(
            stream.message().await?["method"],
            "notifications/tools/list_changed"
        );
    }
    let tools = other.request(1, "tools/list", "{}").await?.answer()["result"]["tools"].to_string();
    assert!(tools.contains(r#""extra""#), "{tools}");
    Ok(())
}

#[tokio::test]
async fn updates_of_a_resource_reach_its_subscribers_only() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let uri = json!({"uri": "testkit://one"});
    let (subscriber, former, stranger) = (
        session(&rialto, LEGACY, json!({})).await?,
        session(&rialto, LEGACY, json!({})).await?,
        session(&rialto, LEGACY, json!({})).await?,
    );
    let clients = [&subscriber, &former, &stranger];
    let mut streams = Vec::new();
    for client in clients {
        streams.push(client.get_stream(None).await?);
    }
    for client in [&subscriber, &former] {
        client
            .request(1, "resources/subscribe", &uri)
            .await?
            .expect_status(200)?;
    }
    former
        .request(1, "resources/unsubscribe", &uri)
        .await?
        .expect_status(200)?;
    assert_eq!(
        stranger.call(1, "update", &uri).await?.text(),
        "subscribed",
        "the child still is"
    );
    fence(&stranger, "fence").await?;
    for (stream, expected) in streams.iter_mut().zip([1, 0, 0]) {
        let messages = before_fence(stream, "fence").await?;
        assert_eq!(
            methods(&messages),
            vec!["notifications/resources/updated"; expected]
        );
    }
    let journal = rialto.journal();
    assert_eq!(
        journal.received("resources/subscribe").len(),
        1,
        "subscriptions are counted"
    );
    assert_eq!(journal.received("resources/unsubscribe").len(), 0);
    subscriber.delete().await?.expect_status(204)?;
    wait_until("the last one has gone", PATIENCE, || {
        (journal.received("resources/unsubscribe").len() == 1).then_some(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn each_session_gets_the_logs_of_its_own_level() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (verbose, terse) = (
        session(&rialto, LEGACY, json!({})).await?,
        session(&rialto, LEGACY, json!({})).await?,
    );
    verbose
        .request(1, "logging/setLevel", json!({"level": "debug"}))
        .await?
        .expect_status(200)?;
    terse
        .request(1, "logging/setLevel", json!({"level": "error"}))
        .await?
        .expect_status(200)?;
    let logs = async |client: &McpClient, level: &str| {
        let reply = client
            .call(1, "log", json!({"level": level, "text": "hear me"}))
            .await?;
        assert_eq!(
            reply.text(),
            "logged",
            "the server was told the most verbose level"
        );
        let logged = reply
            .messages()
            .iter()
            .filter(|message| message["method"] == "notifications/message")
            .count();
        Result::Ok(logged)
    };
    assert_eq!(
        (logs(&verbose, "debug").await?, logs(&verbose, "error").await?),
        (1, 1)
    );
    assert_eq!(
        (logs(&terse, "debug").await?, logs(&terse, "warning").await?),
        (0, 0)
    );
    assert_eq!(logs(&terse, "error").await?, 1);
    // Nor do the logs of one's calls come to the other.
    let mut stream = terse.get_stream(None).await?;
    fence(&verbose, "fence").await?;
    assert!(before_fence(&mut stream, "fence").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_level_that_one_session_chose_does_not_silence_later_ones() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let terse = session(&rialto, LEGACY, json!({})).await?;
    terse
        .request(1, "logging/setLevel", json!({"level": "error"}))
        .await?
        .expect_status(200)?;
    let newcomer = session(&rialto, LEGACY, json!({})).await?;
    for (client, heard) in [(&newcomer, 1), (&terse, 0)] {
        let reply = client
            .call(1, "log", json!({"level": "info", "text": "hear me"}))
            .await?;
        assert_eq!(reply.text(), "logged", "the server goes back to its default");
        let logs = reply
            .messages()
            .iter()
            .filter(|message| message["method"] == "notifications/message")
            .count();
        assert_eq!(logs, heard, "{reply:?}");
    }
    Ok(())
}

#[tokio::test]
async fn restarted_child_receives_subscriptions_again_and_sessions_receive_list_changes() -> Result<()> {
    let rialto = Rialto::with_stub(&["--strict"]).await?;
    let client = session(&rialto, LEGACY, json!({})).await?;
    let mut stream = client.get_stream(None).await?;
    client
        .request(1, "resources/subscribe", json!({"uri": "testkit://two"}))
        .await?
        .expect_status(200)?;
    client
        .request(1, "logging/setLevel", json!({"level": "notice"}))
        .await?
        .expect_status(200)?;
    send_signal(rialto.journal().starts()[0], Signal::KILL);
    let mut lists = Vec::new();
    for _ in 0..3 {
        lists.push(
            stream.message().await?["method"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        );
    }
    lists.sort();
    assert_eq!(
        lists,
        ["prompts", "resources", "tools"].map(|list| format!("notifications/{list}/list_changed"))
    );
    assert_eq!(
        client
            .call(1, "update", json!({"uri": "testkit://two"}))
            .await?
            .text(),
        "subscribed"
    );
    assert_eq!(stream.message().await?["params"]["uri"], "testkit://two");
    assert_eq!(
        client
            .call(1, "log", json!({"level": "info", "text": "t"}))
            .await?
            .text(),
        "below the level"
    );
    Ok(())
}

// Cancellation.

#[tokio::test]
async fn a_cancelled_call_is_cancelled_in_the_child_and_its_post_ends() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto, LEGACY, json!({})).await?;
    let (ended, ()) = tokio::join!(client.call(77, "never", marked("unwanted")), async {
        wait_until("the call is in the child", PATIENCE, || {
            (rialto.journal().executions("unwanted") == 1).then_some(())
        })
        .await;
        client
            .cancel(77)
            .await
            .and_then(|reply| reply.expect_status(202).map(|_| ()))
            .expect("cancelled");
    });
    ended?;
    wait_until("the child is told", PATIENCE, || {
        rialto.journal().was_cancelled("unwanted").then_some(())
    })
    .await;
    assert_eq!(client.call(77, "echo", marked("next")).await?.text(), "next");
    Ok(())
}

#[tokio::test]
async fn session_cannot_cancel_the_calls_of_another() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (one, other) = (
        session(&rialto, LEGACY, json!({})).await?,
        session(&rialto, LEGACY, json!({})).await?,
    );
    let (reply, ()) = tokio::join!(
        one.call(1, "delay", json!({"ms": 300, "marker": "mine"})),
        async {
            wait_until("the call is in the child", PATIENCE, || {
                (rialto.journal().executions("mine") == 1).then_some(())
            })
            .await;
            for id in ["1", "2", "\"1\""] {
                other
                    .cancel(id)
                    .await
                    .and_then(|reply| reply.expect_status(202).map(|_| ()))
                    .expect("accepted");
            }
        }
    );
    assert_eq!(reply?.text(), "mine");
    assert!(rialto.journal().events("cancelled").is_empty());
    Ok(())
}

#[tokio::test]
async fn delete_cancels_the_calls_in_flight_and_answers_them() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto, LEGACY, json!({})).await?;
    let (ended, ()) = tokio::join!(client.call(1, "never", marked("left behind")), async {
        wait_until("the call is in the child", PATIENCE, || {
            (rialto.journal().executions("left behind") == 1).then_some(())
        })
        .await;
        client
            .delete()
            .await
            .and_then(|reply| reply.expect_status(204).map(|_| ()))
            .expect("deleted");
    });
    ended?.expect_failed(404)?;
    wait_until("the child is told", PATIENCE, || {
        rialto.journal().was_cancelled("left behind").then_some(())
    })
    .await;
    Ok(())
}
