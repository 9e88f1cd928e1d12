//! D4 and the life of an upstream session: forgotten, begun anew, ended.

use serde_json::json;
use testkit::Upstream;
use testkit::upstream::{Exchange, Step, calls, method};

use crate::stage::{Stage, echo};

#[tokio::test]
async fn d4_forgotten_session_is_opened_again_once_for_all_waiting_calls() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    assert_eq!(echo(&client, 0, "before").await, "before");
    let handshakes = stage.upstream.seen(method("initialize")).len();
    let front = client.session();
    stage.upstream.forget_sessions();
    let mut waiting = tokio::task::JoinSet::new();
    for number in 1..=8 {
        let client = client.clone();
        waiting.spawn(async move { echo(&client, number, &format!("call {number}")).await });
    }
    let mut answers = waiting.join_all().await;
    answers.sort();
    let wanted: Vec<String> = (1..=8).map(|number| format!("call {number}")).collect();
    assert_eq!(answers, wanted);
    assert_eq!(
        stage.upstream.seen(method("initialize")).len(),
        handshakes + 1,
        "one new handshake for all"
    );
    assert_eq!(stage.upstream.executions("echo"), 9);
    assert_eq!(client.session(), front, "the client's own session stays");
    let repeated = stage.upstream.seen(method("initialize"));
    assert!(repeated.last().expect("one").session().is_none());
}

#[tokio::test]
async fn d4_new_session_receives_the_earlier_level_and_subscriptions() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let reply = client
        .request(1, "logging/setLevel", json!({"level": "error"}))
        .await;
    reply.expect("an answer").expect_status(200).expect("it is set");
    let reply = client
        .request(2, "resources/subscribe", json!({"uri": "memo://watched"}))
        .await;
    reply
        .expect("an answer")
        .expect_status(200)
        .expect("it is watched");
    stage.upstream.forget_sessions();
    assert_eq!(echo(&client, 3, "again").await, "again");
    let renewed = stage.upstream.seen(calls("echo"));
    let session = renewed.last().expect("the call").session().map(str::to_owned);
    for (told, member, value) in [
        ("logging/setLevel", "level", "error"),
        ("resources/subscribe", "uri", "memo://watched"),
    ] {
        let again = stage
            .upstream
            .wait_for(told, |seen| {
                seen.method() == told && seen.session() == session.as_deref()
            })
            .await;
        assert_eq!(again.body["params"][member], value);
    }
}

#[tokio::test]
async fn d4_the_stream_for_notices_comes_back_with_the_session() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let mut notices = client.get_stream(None).await.expect("a stream");
    stage.upstream.wait_for_streams(1).await;
    stage.upstream.forget_sessions();
    assert_eq!(echo(&client, 1, "again").await, "again");
    stage.upstream.wait_for_streams(1).await;
    let notice =
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"a marker"}}"#;
    stage.upstream.push(notice).await;
    loop {
        let heard = notices.message().await.expect("a notice");
        // Sessions receive list changes after an outage.
        if heard["method"] == "notifications/message" {
            assert_eq!(heard["params"]["data"], "a marker");
            break;
        }
        assert!(
            heard["method"]
                .as_str()
                .is_some_and(|method| method.ends_with("list_changed")),
            "{heard}"
        );
    }
}

#[tokio::test]
async fn d4_a_server_that_forgets_every_session_is_given_up_on() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    stage
        .upstream
        .always(method("tools/call"), vec![Step::status(404)]);
    let reply = client.call(1, "echo", json!({})).await.expect("an answer");
    crate::stage::assert_failed(&reply, &[502, 503]);
    let tried = stage.upstream.seen(method("tools/call")).len();
    assert!((1..=3).contains(&tried), "{tried}");
}

#[tokio::test]
async fn each_session_has_its_own_upstream_session_which_ends_with_it() {
    let stage = Stage::legacy().await;
    let (one, other) = (stage.session().await, stage.session().await);
    assert_eq!(echo(&one, 1, "one").await, "one");
    assert_eq!(echo(&other, 1, "other").await, "other");
    let session_of = |text: &'static str| {
        let wanted = move |seen: &Exchange| seen.body["params"]["arguments"]["text"] == text;
        stage.upstream.seen(wanted)[0].session().map(str::to_owned)
    };
    let (first, second) = (session_of("one"), session_of("other"));
    assert!(first.is_some() && second.is_some() && first != second);
    assert_ne!(
        first,
        one.session(),
        "the upstream's own id stays behind the bridge"
    );
    one.delete()
        .await
        .expect("an answer")
        .expect_status(204)
        .expect("gone");
    let deleted = stage
        .upstream
        .wait_for("the end of the session", |seen| seen.http_method == "DELETE")
        .await;
    assert_eq!(deleted.session(), first.as_deref());
    assert_eq!(echo(&other, 2, "still").await, "still");
}

#[tokio::test]
async fn sessions_are_ended_when_rialto_ends() {
    let Stage { rialto, upstream } = Stage::legacy().await;
    let client = crate::stage::session(&rialto).await;
    assert_eq!(echo(&client, 1, "hello").await, "hello");
    rialto.sigterm();
    let status = rialto.wait(std::time::Duration::from_secs(20)).await;
    assert!(status.success(), "{status}");
    assert_eq!(upstream.open_sessions(), 0);
}

#[tokio::test]
async fn a_server_without_sessions_and_without_a_stream_is_served_too() {
    let upstream = Upstream::legacy()
        .stateless()
        .without_get_stream()
        .start()
        .await
        .expect("an upstream");
    let stage = Stage::in_front_of(upstream).await;
    let client = stage.session().await;
    let _notices = client.get_stream(None).await.expect("a stream");
    assert_eq!(echo(&client, 1, "hello").await, "hello");
    assert!(stage.upstream.seen(|seen| seen.session().is_some()).is_empty());
    let version = |seen: &Exchange| seen.header("mcp-protocol-version") == Some("2025-11-25");
    assert!(version(&stage.upstream.seen(calls("echo"))[0]));
}

#[tokio::test]
async fn a_question_of_the_server_reaches_the_client_that_caused_it() {
    let stage = Stage::legacy().await;
    let (one, other) = (stage.session().await, stage.session().await);
    let ask = |client: testkit::McpClient, text: &'static str| async move {
        let params = json!({"name": "ask", "arguments": {"text": text}});
        let mut events = client
            .open(7, "tools/call", params)
            .await
            .expect("an answer")
            .events();
        let question = events.message().await.expect("a question");
        assert_eq!(question["params"]["message"], text);
        let answer = json!({"action": "accept", "content": {"answer": text}});
        let taken = client.respond(&question["id"], answer).await;
        taken.expect("an answer").expect_status(202).expect("taken");
        let answer = events.message().await.expect("the answer");
        assert_eq!(
            answer["result"]["content"][0]["text"],
            format!("You said {text}.")
        );
    };
    tokio::join!(ask(one, "left"), ask(other, "right"));
}

#[tokio::test]
async fn a_modern_client_answers_the_question_of_a_legacy_server() {
    let stage = Stage::legacy().await;
    question_in_rounds(&stage).await;
    assert_eq!(stage.upstream.seen(calls("ask")).len(), 1);
}

#[tokio::test]
async fn a_modern_client_answers_the_question_of_a_modern_server() {
    let stage = Stage::modern().await;
    question_in_rounds(&stage).await;
    assert_eq!(stage.upstream.seen(calls("ask")).len(), 2);
}

async fn question_in_rounds(stage: &Stage) {
    let ask = |id, more| crate::stage::ask_modern(&stage.rialto, id, "tools/call", more);
    let first = ask(1, json!({"name": "ask", "arguments": {"text": "Which?"}})).await;
    let result = &first.answer()["result"];
    assert_eq!(result["resultType"], "input_required", "{first:?}");
    let requests = result["inputRequests"].as_object().expect("questions");
    let key = requests.keys().next().expect("one").clone();
    let answers = json!({key: {"action": "accept", "content": {"answer": "this one"}}});
    let again = json!({
        "name": "ask",
        "arguments": {"text": "Which?"},
        "inputResponses": answers,
        "requestState": result["requestState"],
    });
    assert_eq!(ask(2, again).await.text(), "You said this one.");
    assert_eq!(stage.upstream.executions("ask"), 1);
}

#[tokio::test]
async fn a_legacy_client_answers_the_question_of_a_modern_server() {
    let stage = Stage::modern().await;
    let client = stage.session().await;
    let params = json!({"name": "ask", "arguments": {"text": "Which?"}});
    let mut events = client
        .open(7, "tools/call", params)
        .await
        .expect("an answer")
        .events();
    let question = events.message().await.expect("a question");
    let answer = json!({"action": "accept", "content": {"answer": "this one"}});
    let taken = client.respond(&question["id"], answer).await;
    taken.expect("an answer").expect_status(202).expect("taken");
    let answer = events.message().await.expect("the answer");
    assert_eq!(answer["result"]["content"][0]["text"], "You said this one.");
    assert_eq!(stage.upstream.executions("ask"), 1);
}

#[tokio::test]
async fn a_bare_url_is_tried_until_one_transport_answers() {
    for launcher in [Upstream::legacy(), Upstream::modern(), Upstream::old_sse()] {
        let upstream = launcher.start().await.expect("an upstream");
        let stage = Stage::configured(upstream, json!({})).await;
        let client = stage.session().await;
        assert_eq!(echo(&client, 1, "found").await, "found");
        let reply = crate::stage::ask_modern(
            &stage.rialto,
            2,
            "tools/call",
            json!({"name": "echo", "arguments": {"text": "too"}}),
        )
        .await;
        assert_eq!(reply.text(), "too");
    }
}
