//! Two principals, one interactive server: nothing of one ever reaches the other.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::token::{Token, token, tokens_key};
use testkit::{LEGACY, MODERN, McpClient, Reply, Result, Rialto};

use super::fixture::{Fixture, UNKNOWN_SESSION, modern, visible};

fn asks() -> Value {
    json!({"elicitation": {}, "sampling": {}, "roots": {}})
}

/// What `thief` gets for every kind of use of a session.
async fn uses(thief: &McpClient, session: &str, event: &str) -> Result<Vec<Reply>> {
    thief.set_session(Some(session));
    thief.set_version(Some(LEGACY));
    let mut replies = vec![
        thief.call(7, "echo", json!({"marker": "stolen"})).await?,
        thief
            .request(7, "initialize", json!({"protocolVersion": "2025-11-25"}))
            .await?,
        thief.request(7, "ping", "{}").await?,
        thief.cancel(1).await?,
        thief
            .respond(1, json!({"action": "accept", "content": {"answer": "forged"}}))
            .await?,
        thief.respond_error(1, -1, "forged").await?,
        thief.notify("notifications/initialized", "{}").await?,
    ];
    for last in [None, Some(event), Some("nonsense")] {
        replies.push(thief.get(last).await?.reply().await?);
    }
    replies.push(thief.delete().await?);
    Ok(replies)
}

#[tokio::test]
async fn stolen_session_is_unknown_to_every_other_principal() -> Result<()> {
    let fixture = Fixture::with_stub().await?;
    let alice = fixture.session(&fixture.alice, asks()).await?;
    let session = alice.session().expect("a session");
    // A stream with an event id, and a question that waits for its answer.
    let mut asking = alice
        .open_call(1, "ask_elicit", json!({"marker": "which?"}), "\"p\"")
        .await?
        .events();
    let question = asking.message().await?;
    assert_eq!(question["method"], "elicitation/create");
    let event = asking.last_event_id().expect("an event id").to_owned();

    let bob = fixture.client(&fixture.bob).await?;
    let stolen = uses(&bob, &session, &event).await?;
    let invented = uses(&bob, UNKNOWN_SESSION, &event).await?;
    for (stolen, invented) in stolen.iter().zip(&invented) {
        assert_eq!(stolen.status, 404);
        assert_eq!(visible(stolen), visible(invented), "byte for byte");
    }
    // A caller without a token does not learn even that, and the same caller has no such session
    // elsewhere.
    let stranger = fixture.rialto.client_of("shared").await?;
    for reply in uses(&stranger, &session, &event).await? {
        assert_eq!(reply.status, 401);
    }
    let elsewhere = fixture
        .rialto
        .client_of("other")
        .await?
        .with_header("authorization", &format!("Bearer {}", fixture.alice.token));
    for reply in uses(&elsewhere, &session, &event).await? {
        assert_eq!(reply.status, 404);
    }

    // Alice has not noticed: her question is open, her answer is taken, her session lives.
    let answer = json!({"action": "accept", "content": {"answer": "mine"}});
    alice.respond(&question["id"], answer).await?.expect_status(202)?;
    let answered = asking.message().await?;
    assert!(answered["result"].to_string().contains("mine"), "{answered}");
    assert_eq!(
        alice.call(2, "echo", json!({"marker": "still"})).await?.text(),
        "still"
    );
    assert_eq!(fixture.rialto.journal().executions("stolen"), 0);
    let audit = fixture.rialto.dir().join("audit.jsonl");
    testkit::wait_until("the theft is in the audit log", Duration::from_secs(10), || {
        let records = std::fs::read_to_string(&audit).unwrap_or_default();
        let thefts = records
            .lines()
            .filter(|line| line.contains(r#""principal":"bob""#) && line.contains(r#""status_code":404"#));
        (thefts.count() == stolen.len() + invented.len()).then_some(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn own_event_ids_of_another_session_show_nothing_of_it() -> Result<()> {
    let fixture = Fixture::with_stub().await?;
    let (alice, bob) = (
        fixture.session(&fixture.alice, json!({})).await?,
        fixture.session(&fixture.bob, json!({})).await?,
    );
    let mut stream = alice
        .open_call(1, "progress", json!({"n": 3, "marker": "alices"}), "\"p\"")
        .await?
        .events();
    while stream.next_message().await?.is_some() {}
    let event = stream.last_event_id().expect("an event id").to_owned();
    let resumed = bob.get(Some(&event)).await?;
    assert_ne!(resumed.status, 200, "there is no such event in this session");
    let reply = resumed.reply().await?;
    assert!(!reply.body_text().contains("alices"));
    Ok(())
}

#[tokio::test]
async fn questions_progress_logs_and_updates_stay_with_their_principal() -> Result<()> {
    let fixture = Fixture::with_stub().await?;
    let (alice, bob) = (
        fixture.session(&fixture.alice, asks()).await?,
        fixture.session(&fixture.bob, asks()).await?,
    );
    let mut bobs_stream = bob.get_stream(None).await?;
    let mut alices_stream = alice.get_stream(None).await?;
    for (tool, reply) in [
        (
            "ask_elicit",
            json!({"action": "accept", "content": {"answer": "alice-secret"}}),
        ),
        (
            "ask_sample",
            json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "alice-secret"}}),
        ),
        ("ask_roots", json!({"roots": [{"uri": "file:///alice-secret"}]})),
    ] {
        let mut asking = alice
            .open_call(1, tool, json!({"marker": "alice-secret"}), "\"p\"")
            .await?
            .events();
        let question = asking.message().await?;
        // Bob calls while Alice is asked; all that Bob receives is Bob's own.
        let (called, answered) = tokio::join!(
            bob.call(5, "progress", json!({"n": 2, "marker": "bobs"})),
            alice.respond(&question["id"], reply)
        );
        answered?.expect_status(202)?;
        let heard = called?;
        assert!(
            !format!("{:?}{}", heard.events, heard.body_text()).contains("alice-secret"),
            "{heard:?}"
        );
        assert!(asking.message().await?.to_string().contains("alice-secret"));
    }
    alice
        .call(8, "log", json!({"level": "info", "marker": "alice-secret"}))
        .await?
        .expect_status(200)?;
    alice
        .request(9, "resources/subscribe", json!({"uri": "test://alice-secret"}))
        .await?;
    alice
        .call(10, "update", json!({"uri": "test://alice-secret"}))
        .await?;
    // A changed list is the fence behind which nothing of Alice's may have come to Bob. Bob has
    // another child since the server asked Alice, and got a changed list when the session moved
    // there.
    alice.call(11, "change_tools", "{}").await?.expect_status(200)?;
    bob.call(11, "change_tools", "{}").await?.expect_status(200)?;
    for (caller, stream, changes) in [("bob", &mut bobs_stream, 2), ("alice", &mut alices_stream, 1)] {
        let (mut heard, mut seen) = (Vec::new(), 0);
        while seen < changes {
            let message = stream.message().await?;
            if message["method"] == "notifications/tools/list_changed" {
                seen += 1;
            } else {
                heard.push(message);
            }
        }
        let is_alices = heard
            .iter()
            .any(|message| message.to_string().contains("alice-secret"));
        assert_eq!(is_alices, caller == "alice", "{caller} received {heard:?}");
    }
    Ok(())
}

/// Once the server has asked Alice, Bob does not wait for her: Bob gets a child of Bob's own.
#[tokio::test]
async fn a_caller_does_not_wait_for_the_answer_of_another() -> Result<()> {
    let fixture = Fixture::with_stub().await?;
    let alice = fixture.session(&fixture.alice, asks()).await?;
    let mut asking = alice
        .open_call(1, "ask_elicit", json!({"marker": "which"}), "null")
        .await?
        .events();
    let question = asking.message().await?;
    let bob = fixture.session(&fixture.bob, asks()).await?;
    bob.expect_echo("bobs").await?;
    let client = fixture.rialto.client_of("shared").await?;
    let call = json!({"name": "echo", "arguments": {"marker": "modern"}});
    let reply = modern(&client, 7, "tools/call", call, Some(&fixture.bob.token)).await?;
    assert!(reply.expect_status(200)?.body_text().contains("modern"));
    assert_eq!(fixture.rialto.journal().starts().len(), 2);
    fixture
        .session(&fixture.alice, asks())
        .await?
        .expect_echo("alices")
        .await?;
    assert_eq!(fixture.rialto.journal().starts().len(), 2, "Alice keeps hers");
    alice
        .respond(
            &question["id"],
            json!({"action": "accept", "content": {"answer": "mine"}}),
        )
        .await?
        .expect_status(202)?;
    assert!(asking.message().await?.to_string().contains("mine"));
    Ok(())
}

/// Bob's session was open before the server asked Alice. With Bob's next call it moves to another
/// child.
#[tokio::test]
async fn a_session_moves_to_a_child_of_its_own_once_the_server_has_asked_another() -> Result<()> {
    let fixture = Fixture::with_stub().await?;
    let alice = fixture.session(&fixture.alice, asks()).await?;
    let bob = fixture.session(&fixture.bob, asks()).await?;
    let shared = bob.call(1, "pid", "{}").await?.text();
    let mut bobs_stream = bob.get_stream(None).await?;
    bob.request(2, "resources/subscribe", json!({"uri": "test://bobs"}))
        .await?
        .expect_status(200)?;
    let mut asking = alice
        .open_call(1, "ask_elicit", json!({"marker": "which"}), "null")
        .await?
        .events();
    let question = asking.message().await?;
    bob.expect_echo("bobs").await?;
    assert_eq!(fixture.rialto.journal().starts().len(), 2);
    let own = bob.call(3, "pid", "{}").await?.text();
    assert_ne!(own, shared);
    // Bob's subscription has come along, and Bob's stream goes on.
    bob.call(4, "update", json!({"uri": "test://bobs"}))
        .await?
        .expect_status(200)?;
    loop {
        let message = bobs_stream.message().await?;
        if message["method"] == "notifications/resources/updated" {
            assert_eq!(message["params"]["uri"], "test://bobs");
            break;
        }
        let method = message["method"].as_str().unwrap_or_default();
        assert!(method.ends_with("/list_changed"), "{message}");
    }
    // Bob is asked there, while Alice still thinks.
    let mut bobs_call = bob
        .open_call(5, "ask_elicit", json!({"marker": "bobs"}), "null")
        .await?
        .events();
    let bobs_question = bobs_call.message().await?;
    for (client, question, call) in [
        (&bob, &bobs_question, &mut bobs_call),
        (&alice, &question, &mut asking),
    ] {
        client
            .respond(
                &question["id"],
                json!({"action": "accept", "content": {"answer": "mine"}}),
            )
            .await?
            .expect_status(202)?;
        assert!(call.message().await?.to_string().contains("mine"));
    }
    bob.delete().await?.expect_status(204)?;
    assert_eq!(alice.call(6, "pid", "{}").await?.text(), shared);
    Ok(())
}

/// Where there is no room for another child, the call waits a moment and is refused with the
/// setting that helps.
#[tokio::test]
async fn a_caller_that_must_wait_for_the_answer_of_another_is_refused() -> Result<()> {
    let fixture =
        Fixture::with("{ command: ['{stub}', --journal, '{dir}/journal'], max_children: 1 }").await?;
    let alice = fixture.session(&fixture.alice, asks()).await?;
    let mut asking = alice
        .open_call(1, "ask_elicit", json!({"marker": "which"}), "null")
        .await?
        .events();
    let question = asking.message().await?;
    let bob = fixture.session(&fixture.bob, asks()).await?;
    let reply = bob.call(1, "echo", json!({"marker": "bobs"})).await?;
    let error = reply.answer()["error"].clone();
    assert_eq!(error["data"]["reason"], "occupied", "{reply:?}");
    assert!(
        error["message"].to_string().contains("process: per_identity"),
        "{error}"
    );
    assert_eq!(fixture.rialto.journal().executions("bobs"), 0);
    alice
        .respond(&question["id"], json!({"action": "decline"}))
        .await?
        .expect_status(202)?;
    asking.message().await?;
    bob.expect_echo("bobs").await?;
    Ok(())
}

/// The tool has its effect before it asks, so every execution counts. There is one for every wrong
/// answer: from another caller, for other arguments, damaged, a second time, or after all is over.
#[tokio::test]
async fn tool_that_asks_twice_runs_once_for_every_answer() -> Result<()> {
    let fixture = Fixture::with_stub().await?;
    let client = fixture.rialto.client_of("shared").await?;
    let (alice, bob) = (fixture.alice.token.as_str(), fixture.bob.token.as_str());
    let ask = json!({"name": "ask_elicit", "arguments": {"marker": "effect", "twice": true}});
    let retry = |asked: &Value, answer: &str| {
        let questions = asked["inputRequests"].as_object().expect("questions");
        let answers: serde_json::Map<String, Value> = questions
            .keys()
            .map(|key| {
                let answer = json!({"action": "accept", "content": {"answer": answer}});
                (key.clone(), answer)
            })
            .collect();
        let mut params = ask.clone();
        params["requestState"] = asked["requestState"].clone();
        params["inputResponses"] = Value::Object(answers);
        params
    };
    let mut asked = modern(&client, 1, "tools/call", ask.clone(), Some(alice))
        .await?
        .answer()["result"]
        .clone();
    for round in ["first", "second"] {
        assert_eq!(asked["resultType"], "input_required", "{round}: {asked}");
        let right = retry(&asked, round);
        let mut changed = right.clone();
        changed["arguments"]["more"] = json!(true);
        let mut damaged = right.clone();
        let state = damaged["requestState"].as_str().expect("a state");
        damaged["requestState"] = json!(state.replace(&state[state.len() - 1..], "~"));
        for (wrong, caller) in [(right.clone(), bob), (changed, alice), (damaged, alice)] {
            let refused = modern(&client, 2, "tools/call", wrong, Some(caller)).await?;
            refused.expect_error(400, -32602)?;
        }
        let next = modern(&client, 3, "tools/call", right.clone(), Some(alice)).await?;
        let next = next.expect_status(200)?.answer()["result"].clone();
        let again = modern(&client, 4, "tools/call", right, Some(alice)).await?;
        again.expect_error(400, -32602)?;
        asked = next;
    }
    assert_eq!(asked["resultType"], "complete", "{asked}");
    assert!(asked.to_string().contains("second"), "{asked}");
    assert_eq!(fixture.rialto.journal().executions("effect"), 1);
    Ok(())
}

#[tokio::test]
async fn call_that_waits_for_its_client_is_hidden_from_other_callers() -> Result<()> {
    let fixture = Fixture::with_stub().await?;
    let client = fixture.rialto.client_of("shared").await?;
    let ask = json!({"name": "ask_elicit", "arguments": {"marker": "which?"}});
    let asked = modern(&client, 1, "tools/call", ask.clone(), Some(&fixture.alice.token)).await?;
    let result = asked.answer()["result"].clone();
    assert_eq!(result["resultType"], "input_required", "{result}");
    let state = result["requestState"].as_str().expect("a state").to_owned();
    let key = result["inputRequests"]
        .as_object()
        .and_then(|asked| asked.keys().next().cloned())
        .expect("a question");
    let retry = |state: &str, answer: &str| {
        let mut params = ask.clone();
        params["requestState"] = json!(state);
        params["inputResponses"] = json!({&key: {"action": "accept", "content": {"answer": answer}}});
        params
    };
    let by_bob = modern(
        &client,
        2,
        "tools/call",
        retry(&state, "forged"),
        Some(&fixture.bob.token),
    )
    .await?;
    by_bob.expect_error(400, -32602)?;
    let mut forged = state.clone();
    forged.pop();
    let invented = modern(
        &client,
        2,
        "tools/call",
        retry(&forged, "forged"),
        Some(&fixture.bob.token),
    )
    .await?;
    assert_eq!(visible(&by_bob), visible(&invented), "byte for byte");
    let unauthenticated = modern(&client, 2, "tools/call", retry(&state, "forged"), None).await?;
    assert_eq!(unauthenticated.status, 401);

    let by_alice = modern(
        &client,
        3,
        "tools/call",
        retry(&state, "mine"),
        Some(&fixture.alice.token),
    )
    .await?;
    let answer = by_alice.expect_status(200)?.answer();
    assert!(answer["result"].to_string().contains("mine"), "{answer}");
    assert_eq!(fixture.rialto.journal().executions("which?"), 1);
    let again = modern(
        &client,
        4,
        "tools/call",
        retry(&state, "mine"),
        Some(&fixture.alice.token),
    )
    .await?;
    again.expect_error(400, -32602)?;
    Ok(())
}

/// F4: one caller with a stream on each of its sessions took every session of a destination.
#[tokio::test]
async fn h07_a_caller_that_takes_every_session_makes_room_for_another() -> Result<()> {
    let fixture = Fixture::with("{ command: '{stub}', max_sessions: 6 }").await?;
    let mut greedy = Vec::new();
    for _ in 0..6 {
        let client = fixture.session(&fixture.alice, json!({})).await?;
        greedy.push((client.get_stream(None).await?, client));
    }
    // Her own next one finds no room: all of hers are in use.
    let refused = fixture
        .client(&fixture.alice)
        .await?
        .initialize(LEGACY, json!({}))
        .await?;
    assert_eq!(refused.status, 503, "{}", refused.body_text());
    let mut modest = Vec::new();
    for _ in 0..3 {
        let client = fixture.session(&fixture.bob, json!({})).await?;
        client.expect_echo("let in").await?;
        modest.push((client.get_stream(None).await?, client));
    }
    // Half is a fair share of two.
    let refused = fixture
        .client(&fixture.bob)
        .await?
        .initialize(LEGACY, json!({}))
        .await?;
    assert_eq!(refused.status, 503, "{}", refused.body_text());
    for (_, client) in greedy.iter().take(3).chain(&modest) {
        client.expect_echo("still there").await?;
    }
    Ok(())
}

/// F4: the same with children of their own.
#[tokio::test]
async fn h07_a_caller_that_takes_every_instance_makes_room_for_another() -> Result<()> {
    let fixture = Fixture::with("{ command: '{stub}', process: per_session, max_children: 4 }").await?;
    let mut greedy = Vec::new();
    for _ in 0..4 {
        let client = fixture.session(&fixture.alice, json!({})).await?;
        greedy.push((client.get_stream(None).await?, client));
    }
    let bob = fixture.session(&fixture.bob, json!({})).await?;
    bob.expect_echo("let in").await?;
    Ok(())
}

/// F4: a caller that asks for more than all others together leaves them their places.
#[tokio::test]
async fn h07_a_caller_that_takes_every_call_leaves_half_of_them_to_others() -> Result<()> {
    let (alice, bob) = (token("alice"), token("bob"));
    let tokens = tokens_key(&[("alice", &alice), ("bob", &bob)]);
    let config = format!(
        "limits: {{ calls: 4 }}\nauth:\n{tokens}destinations:\n  shared: {{ command: '{{stub}} --journal {{dir}}/journal' }}\n"
    );
    let rialto = Rialto::with_config(&config).await?;
    let session = async |token: &Token| {
        let client = rialto.client_of("shared").await?;
        let client = client.with_header("authorization", &format!("Bearer {}", token.token));
        client.handshake(LEGACY, json!({})).await?;
        Ok::<_, testkit::Failure>(client)
    };
    let (alice, bob) = (session(&alice).await?, session(&bob).await?);
    let mut held = tokio::task::JoinSet::new();
    for marker in ["first", "second"] {
        let alice = alice.clone();
        held.spawn(async move { alice.call(1, "never", json!({"marker": marker})).await });
        rialto.wait_for_execution(marker).await;
    }
    let refused = alice.call(2, "echo", json!({"marker": "third"})).await?;
    assert_eq!(refused.status, 503, "{}", refused.body_text());
    assert!(
        refused.body_text().contains("caller_calls_at_limit"),
        "{}",
        refused.body_text()
    );
    bob.expect_echo("let in").await?;
    Ok(())
}

/// F4: 256 listens of one caller kept all others from listening.
#[tokio::test]
async fn h07_a_caller_that_takes_every_listen_makes_room_for_another() -> Result<()> {
    let (alice, bob) = (token("alice"), token("bob"));
    let tokens = tokens_key(&[("alice", &alice), ("bob", &bob)]);
    let config = format!(
        "limits: {{ listens: 4 }}\nauth:\n{tokens}destinations:\n  shared: {{ command: '{{stub}}' }}\n"
    );
    let rialto = Rialto::with_config(&config).await?;
    let listen = async |token: &Token, id: u64| {
        let client = rialto.client_of("shared").await?;
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": {
            "notifications": {"toolsListChanged": true},
            "_meta": {"io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {}}}});
        let bearer = format!("Bearer {}", token.token);
        let headers = [
            ("authorization", bearer.as_str()),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", MODERN),
            ("mcp-method", "subscriptions/listen"),
        ];
        client
            .send("POST", "/shared/mcp", &headers, body.to_string())
            .await
    };
    let mut held = Vec::new();
    for id in 0..4 {
        let response = listen(&alice, id).await?;
        assert!(response.is_stream(), "{}", response.reply().await?.body_text());
        held.push(response.events());
    }
    let refused = listen(&alice, 9).await?.reply().await?;
    assert_eq!(refused.status, 503, "{}", refused.body_text());
    let response = listen(&bob, 1).await?;
    assert!(response.is_stream(), "{}", response.reply().await?.body_text());
    Ok(())
}
