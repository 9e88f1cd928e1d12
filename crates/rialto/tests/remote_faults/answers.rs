//! D15: answers that are not the answer.

use serde_json::json;
use testkit::upstream::{Gate, Step, calls, method, result};
use testkit::{McpClient, Reply, Upstream};

use crate::stage::{Stage, assert_failed, echo};

#[tokio::test]
async fn d15_id_of_another_call_answers_no_call() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let in_a_stream = |stolen| vec![Step::OpenStream, Step::Event(stolen), Step::EndStream];
    let reply = theft(&stage, &client, &client, in_a_stream).await;
    assert_failed(&reply, &[502, 503]);
}

#[tokio::test]
async fn d15_id_of_another_sessions_call_answers_no_call() {
    let stage = Stage::legacy().await;
    let (victim, thief) = (stage.session().await, stage.session().await);
    let reply = theft(&stage, &victim, &thief, |stolen| vec![Step::json(&stolen)]).await;
    assert!(
        !reply.answer_text().contains("stolen") || reply.answer()["id"] == 2,
        "{reply:?}"
    );
}

/// While the victim's call waits, the thief's is answered with the victim's id. The victim gets
/// what is its own; gives what the thief got.
async fn theft(
    stage: &Stage,
    victim: &McpClient,
    thief: &McpClient,
    answering: impl FnOnce(String) -> Vec<Step>,
) -> Reply {
    let gate = Gate::default();
    stage.upstream.once(
        calls("victim"),
        vec![
            Step::Execute,
            Step::OpenStream,
            Step::Wait(gate.clone()),
            Step::result("mine"),
            Step::EndStream,
        ],
    );
    let robbed = victim.call(1, "victim", json!({}));
    let robbing = async {
        let waiting = stage.upstream.wait_for("the victim", calls("victim")).await;
        let stolen = result("stolen").replace("{id}", &waiting.body["id"].to_string());
        let mut steps = vec![Step::Execute];
        steps.extend(answering(stolen));
        stage.upstream.once(calls("thief"), steps);
        let reply = thief.call(2, "thief", json!({})).await.expect("an answer");
        gate.open();
        reply
    };
    let (robbed, reply) = tokio::join!(robbed, robbing);
    assert_eq!(robbed.expect("an answer").text(), "mine");
    reply
}

#[tokio::test]
async fn d15_of_two_answers_the_first_counts() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    stage.upstream.once(
        calls("twice"),
        vec![
            Step::Execute,
            Step::OpenStream,
            Step::result("first"),
            Step::result("second"),
            Step::EndStream,
        ],
    );
    let reply = client.call(1, "twice", json!({})).await.expect("an answer");
    assert_eq!(reply.text(), "first");
    assert_eq!(echo(&client, 2, "after").await, "after");
}

/// The server closes its connection while Rialto still writes: what it sent before is the answer
/// all the same.
#[tokio::test]
async fn d15_a_refusal_that_comes_before_all_was_sent_is_the_answer() {
    let upstream = Upstream::legacy().refusing_beyond(1 << 20).start().await;
    let configuration = json!({"type": "streamable_http", "max_message_bytes": "8MiB"});
    let stage = Stage::configured(upstream.expect("an upstream"), configuration).await;
    let client = stage.session().await;
    for id in 1..=6 {
        let text = "x".repeat(6 << 20);
        let reply = client
            .call(id, "echo", json!({"text": text}))
            .await
            .expect("an answer");
        assert_eq!(reply.answer()["error"]["message"], "too long", "{}", reply.status);
    }
    assert_eq!(echo(&client, 9, "after").await, "after");
}

#[tokio::test]
async fn d15_a_web_page_is_no_answer() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let page = Step::with_status(200, "text/html", "<h1>Please sign in</h1>");
    stage.upstream.once(calls("page"), vec![Step::Execute, page]);
    let reply = client.call(1, "page", json!({})).await.expect("an answer");
    assert_failed(&reply, &[502]);
    assert!(!reply.answer_text().contains("sign in"), "{reply:?}");
}

#[tokio::test]
async fn d15_no_content_an_array_and_broken_json_are_no_answers() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let nonsense = [
        Step::status(204),
        Step::status(202),
        Step::status(200),
        Step::json("[]"),
        Step::json(&format!("[{}]", result("in a list"))),
        Step::json("{\"jsonrpc\":"),
        Step::json("null"),
        Step::json("{}"),
        Step::json(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#),
        Step::json(r#"{"jsonrpc":"2.0","id":{id},"id":{id},"result":{}}"#),
    ];
    for (number, step) in nonsense.into_iter().enumerate() {
        let shown = format!("{step:?}");
        stage.upstream.once(calls("nonsense"), vec![Step::Execute, step]);
        let reply = client.call(number, "nonsense", json!({})).await;
        let reply = reply.expect("an answer");
        assert_eq!(reply.answer()["error"]["code"], -32603, "{shown}: {reply:?}");
        assert_failed(&reply, &[502, 503]);
    }
    assert_eq!(stage.upstream.executions("nonsense"), 10);
    assert_eq!(echo(&client, 99, "after").await, "after");
}

#[tokio::test]
async fn d15_a_handshake_answered_with_nonsense_is_an_error() {
    for step in [
        Step::with_status(200, "text/html", "<h1>Welcome</h1>"),
        Step::json("[]"),
        Step::status(204),
        Step::status(418),
    ] {
        let stage = Stage::legacy().await;
        stage.upstream.always(method("initialize"), vec![step.clone()]);
        stage
            .upstream
            .always(method("server/discover"), vec![step.clone()]);
        let client = stage.rialto.client_of("remote").await.expect("rialto listens");
        let reply = client.initialize("2025-11-25", json!({})).await;
        assert_failed(&reply.expect("an answer"), &[502, 503]);
        assert!(client.session().is_none(), "{step:?}");
    }
}

#[tokio::test]
async fn a_session_id_in_any_other_answer_than_the_handshakes_is_ignored() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let mut odd = Step::json(&result("odd"));
    if let Step::Respond { headers, .. } = &mut odd {
        headers.push(("mcp-session-id".to_owned(), "another-session".to_owned()));
    }
    stage.upstream.once(calls("odd"), vec![odd]);
    let reply = client.call(1, "odd", json!({})).await.expect("an answer");
    assert_eq!(reply.text(), "odd");
    assert_eq!(echo(&client, 2, "after").await, "after");
    let taken = stage
        .upstream
        .seen(|seen| seen.session() == Some("another-session"));
    assert!(taken.is_empty());
}
