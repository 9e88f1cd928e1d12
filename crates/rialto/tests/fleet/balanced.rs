//! Three replicas behind a balancer without affinity: a client notices nothing of it.

use serde_json::json;
use testkit::token::{token, tokens_key};
use testkit::{FleetConfig, McpClient, PATIENCE, Result, marked, wait_until};
use tokio::task::JoinSet;

use super::fixture::{
    answers_to, assert_none_ran_twice, executions, id_of, modern, moved, session, session_at, session_with,
};

#[tokio::test]
async fn every_replica_answers_for_every_session() -> Result<()> {
    let fleet = FleetConfig::of_stub("process: per_session").start().await?;
    for home in 0..3 {
        let client = session_at(&fleet, home).await?;
        assert_eq!(fleet.owner_of(&id_of(&client))?, Some(home));
        let pid = client.call(1, "pid", "{}").await?.text();
        for replica in 0..3 {
            let there = moved(&fleet, &client, replica).await?;
            there.expect_echo(&format!("{home}-{replica}")).await?;
            // The same server answers, so that its memory is the session's.
            assert_eq!(there.call(2, "pid", "{}").await?.text(), pid, "{home}, {replica}");
        }
        assert_eq!(fleet.owner_of(&id_of(&client))?, Some(home));
    }
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn sessions_with_equal_ids_get_their_own_answers() -> Result<()> {
    const SESSIONS: usize = 12;
    const CALLS: usize = 12;
    let fleet = FleetConfig::of_stub("process: shared").start().await?;
    let mut running = JoinSet::new();
    for number in 0..SESSIONS {
        let client = session(&fleet).await?;
        running.spawn(async move {
            for call in 0..CALLS {
                let (one, two) = (format!("{number}/{call}/a"), format!("{number}/{call}/b"));
                let (first, second) = tokio::join!(
                    client.call(1, "delay", marked(&one)),
                    client.call(1, "delay", marked(&two))
                );
                assert_eq!((first?.text(), second?.text()), (one, two));
            }
            Result::Ok(())
        });
    }
    while let Some(done) = running.join_next().await {
        done.expect("a client ends")?;
    }
    let counts = executions(&fleet.journal());
    assert_eq!(counts.len(), SESSIONS * CALLS * 2);
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn modern_calls_run_once_wherever_they_arrive() -> Result<()> {
    let fleet = FleetConfig::of_stub("process: shared").start().await?;
    let client = McpClient::connect(&fleet.url_of("one")).await?;
    for number in 0..9 {
        let marker = format!("modern-{number}");
        let params = json!({"name": "echo", "arguments": marked(&marker)});
        let reply = modern(&client, "tools/call", "echo", &params).await?;
        reply.expect_status(200)?;
        assert_eq!(reply.text(), marker);
    }
    assert_eq!(executions(&fleet.journal()).len(), 9);
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn notifications_reach_a_stream_that_another_replica_serves() -> Result<()> {
    let fleet = FleetConfig::of_stub("process: per_session").start().await?;
    for replica in 0..3 {
        let client = session_at(&fleet, 0).await?;
        let uri = json!({"uri": "testkit://one"});
        let subscribed = moved(&fleet, &client, (replica + 1) % 3).await?;
        subscribed.request(1, "resources/subscribe", &uri).await?;
        let listener = moved(&fleet, &client, replica).await?;
        let mut stream = listener.get_stream(None).await?;
        let caller = moved(&fleet, &client, (replica + 2) % 3).await?;
        caller.call(2, "update", &uri).await?.expect_status(200)?;
        let message = stream.message().await?;
        assert_eq!(message["method"], "notifications/resources/updated", "{message}");
        // A stream that breaks is resumed at another replica, without loss and repetition.
        let last = stream.last_event_id().map(str::to_owned);
        drop(stream);
        caller.call(3, "change_tools", "{}").await?;
        let mut stream = caller.get_stream(last.as_deref()).await?;
        let message = stream.message().await?;
        assert_eq!(message["method"], "notifications/tools/list_changed", "{message}");
    }
    Ok(())
}

#[tokio::test]
async fn stream_of_a_call_is_resumed_at_each_replica() -> Result<()> {
    let fleet = FleetConfig::of_stub("process: per_session").start().await?;
    let client = session_at(&fleet, 0).await?;
    let entry = moved(&fleet, &client, 1).await?;
    let arguments = r#"{"marker":"held","every_ms":20}"#;
    let mut stream = entry.open_call(r#""long""#, "hold", arguments, 1).await?.events();
    let mut steps = Vec::new();
    for replica in [2, 0, 1, 2] {
        let message = stream.message().await?;
        steps.push(message["params"]["progress"].as_u64().expect("progress"));
        let last = stream.last_event_id().expect("events have ids").to_owned();
        drop(stream);
        let there = moved(&fleet, &client, replica).await?;
        stream = there.get_stream(Some(&last)).await?;
    }
    moved(&fleet, &client, 1)
        .await?
        .call(9, "release", marked("release"))
        .await?;
    let answer = loop {
        let message = stream.message().await?;
        match message.get("id") {
            Some(_) => break message,
            None => steps.push(message["params"]["progress"].as_u64().expect("progress")),
        }
    };
    assert_eq!(answer["id"], "long", "{answer}");
    let expected: Vec<u64> = (1..=steps.len() as u64).collect();
    assert_eq!(steps, expected, "no event is lost or repeated");
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn questions_are_answered_at_other_replicas() -> Result<()> {
    let fleet = FleetConfig::of_stub("process: per_session").start().await?;
    let capabilities = json!({"elicitation": {}, "sampling": {}, "roots": {}});
    for (number, tool) in ["ask_elicit", "ask_sample", "ask_roots"].into_iter().enumerate() {
        let client = session_with(&fleet, capabilities.clone()).await?;
        let marker = format!("question-{number}");
        let mut stream = client.open_call(5, tool, marked(&marker), 1).await?.events();
        let question = stream.message().await?;
        let id = &question["id"];
        let answer = match tool {
            "ask_elicit" => json!({"action": "accept", "content": {"answer": "yes"}}),
            "ask_sample" => {
                json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "yes"}})
            }
            _ => json!({"roots": [{"uri": "file:///yes"}]}),
        };
        client.respond(id, answer).await?.expect_status(202)?;
        let answer = stream.message().await?;
        assert_eq!(answer["id"], 5, "{answer}");
        assert!(answer.to_string().contains("yes"), "{answer}");
        assert_eq!(fleet.journal().executions(&marker), 1);
    }
    Ok(())
}

#[tokio::test]
async fn call_is_cancelled_by_another_replica() -> Result<()> {
    let fleet = FleetConfig::of_stub("process: per_session").start().await?;
    let client = session_at(&fleet, 0).await?;
    let caller = moved(&fleet, &client, 1).await?;
    let arguments = r#"{"marker":"held","every_ms":20}"#;
    let mut stream = caller.open_call(3, "hold", arguments, 1).await?.events();
    stream.message().await?;
    moved(&fleet, &client, 2)
        .await?
        .cancel(3)
        .await?
        .expect_status(202)?;
    let journal = fleet.journal();
    wait_until("the server is notified", PATIENCE, || {
        journal.was_cancelled("held").then_some(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn client_that_disconnects_from_a_replica_does_not_end_its_call() -> Result<()> {
    let fleet = FleetConfig::of_stub("process: per_session").start().await?;
    let client = session_at(&fleet, 0).await?;
    let entry = moved(&fleet, &client, 1).await?;
    let arguments = r#"{"marker":"held","every_ms":20}"#;
    let mut stream = entry.open_call(3, "hold", arguments, 1).await?.events();
    stream.message().await?;
    let last = stream.last_event_id().expect("events have ids").to_owned();
    drop((stream, entry));
    let there = moved(&fleet, &client, 2).await?;
    there.call(4, "release", marked("release")).await?;
    let mut stream = there.get_stream(Some(&last)).await?;
    let answer = loop {
        let message = stream.message().await?;
        if message.get("id").is_some() {
            break message;
        }
    };
    assert_eq!(answer["id"], 3);
    assert!(!fleet.journal().was_cancelled("held"));
    Ok(())
}

#[tokio::test]
async fn deleted_session_is_unknown_at_every_replica() -> Result<()> {
    let fleet = FleetConfig::of_stub("process: per_session").start().await?;
    let client = session_at(&fleet, 0).await?;
    moved(&fleet, &client, 1).await?.expect_echo("before").await?;
    moved(&fleet, &client, 2)
        .await?
        .delete()
        .await?
        .expect_status(204)?;
    for replica in 0..3 {
        let there = moved(&fleet, &client, replica).await?;
        there.call(1, "echo", marked("after")).await?.expect_status(404)?;
        assert_eq!(there.get(None).await?.reply().await?.status, 404);
        there.delete().await?.expect_status(404)?;
    }
    assert_eq!(fleet.journal().executions("after"), 0);
    assert_eq!(fleet.epoch_of(&id_of(&client))?, None, "the record is gone");
    Ok(())
}

#[tokio::test]
async fn session_is_unknown_to_other_callers_at_every_replica() -> Result<()> {
    let (ann, bob) = (token("ann"), token("bob"));
    let auth = format!("auth:\n{}", tokens_key(&[("ann", &ann), ("bob", &bob)]));
    let fleet = FleetConfig::of_stub("process: per_session")
        .more(&auth)
        .start()
        .await?;
    let bearer = |token: &str| format!("Bearer {token}");
    let client = fleet.replica(0).rialto().client_of("one").await?;
    let client = client.with_header("authorization", &bearer(&ann.token));
    client.handshake(testkit::LEGACY, json!({})).await?;
    for replica in 0..3 {
        let foreign = moved(&fleet, &client, replica).await?;
        let foreign = foreign.with_header("authorization", &bearer(&bob.token));
        foreign.call(1, "echo", marked("bob")).await?.expect_status(404)?;
        assert_eq!(foreign.get(None).await?.reply().await?.status, 404);
        foreign.delete().await?.expect_status(404)?;
        let nameless = moved(&fleet, &client, replica).await?;
        nameless
            .call(1, "echo", marked("bob"))
            .await?
            .expect_status(401)?;
        let own = moved(&fleet, &client, replica).await?;
        let own = own.with_header("authorization", &bearer(&ann.token));
        own.expect_echo(&format!("ann-{replica}")).await?;
    }
    assert_eq!(fleet.journal().executions("bob"), 0);
    Ok(())
}

#[tokio::test]
async fn headers_of_trust_from_a_client_are_ignored() -> Result<()> {
    let fleet = FleetConfig::of_stub("process: per_session").start().await?;
    let client = session_at(&fleet, 0).await?;
    for replica in 0..3 {
        let there = moved(&fleet, &client, replica).await?;
        let there = there.with_header("rialto-forwarded", "anything");
        there.expect_echo(&format!("forged-{replica}")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn retry_with_a_request_state_reaches_the_call_that_waits() -> Result<()> {
    let fleet = FleetConfig::of_stub("process: shared").start().await?;
    for replica in 0..3 {
        let marker = format!("asks-{replica}");
        let call = json!({"name": "ask_elicit", "arguments": marked(&marker)});
        let asker = fleet.replica(0).rialto().client_of("one").await?;
        let asked = modern(&asker, "tools/call", "ask_elicit", &call).await?.answer();
        let mut retry = answers_to(&asked);
        retry["name"] = call["name"].clone();
        retry["arguments"] = call["arguments"].clone();
        let there = fleet.replica(replica).rialto().client_of("one").await?;
        let reply = modern(&there, "tools/call", "ask_elicit", &retry).await?;
        reply.expect_status(200)?;
        assert!(reply.answer()["error"].is_null(), "{}", reply.answer_text());
        assert_eq!(fleet.journal().executions(&marker), 1);
    }
    Ok(())
}
