//! D3 and D14: event streams that end early, come back, and use every liberty of the standard.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::Upstream;
use testkit::upstream::{Exchange, Gate, Step, calls, result};

use crate::stage::{Stage, assert_failed, chunk, echo};

#[tokio::test]
async fn streams_are_forwarded_event_by_event() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let second = Gate::default();
    let last = Gate::default();
    stage.upstream.once(
        calls("slow"),
        vec![
            Step::Execute,
            Step::OpenStream,
            Step::progress(1),
            Step::Wait(second.clone()),
            Step::progress(2),
            Step::Wait(last.clone()),
            Step::result("slowly"),
            Step::EndStream,
        ],
    );
    let mut events = client
        .open_call(1, "slow", json!({}), r#""mine""#)
        .await
        .expect("an answer")
        .events();
    // The upstream sends each only after the one before has arrived here.
    assert_eq!(events.message().await.expect("the first")["params"], progress(1));
    second.open();
    assert_eq!(events.message().await.expect("the second")["params"], progress(2));
    last.open();
    let answer = events.message().await.expect("the answer");
    assert_eq!(answer["result"]["content"][0]["text"], "slowly");
    assert_eq!(answer["id"], 1);
}

fn progress(number: u64) -> Value {
    json!({"progressToken": "mine", "progress": number})
}

#[tokio::test]
async fn streams_of_a_modern_call_are_forwarded_event_by_event() {
    let stage = Stage::modern().await;
    let gate = Gate::default();
    let answer = r#"{"jsonrpc":"2.0","id":{id},"result":{"resultType":"complete","content":[{"type":"text","text":"slowly"}]}}"#;
    stage.upstream.once(
        calls("slow"),
        vec![
            Step::Execute,
            Step::OpenStream,
            Step::progress(1),
            Step::Wait(gate.clone()),
            Step::Event(answer.to_owned()),
            Step::EndStream,
        ],
    );
    let client = stage.rialto.client_of("remote").await.expect("rialto listens");
    client.set_version(Some("2026-07-28"));
    let client = client
        .with_header("mcp-method", "tools/call")
        .with_header("mcp-name", "slow");
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                      "io.modelcontextprotocol/clientCapabilities": {}, "progressToken": "mine"});
    let mut events = client
        .open(1, "tools/call", json!({"name": "slow", "_meta": meta}))
        .await
        .expect("an answer")
        .events();
    assert_eq!(events.message().await.expect("the first")["params"], progress(1));
    gate.open();
    let answer = events.message().await.expect("the answer");
    assert_eq!(answer["result"]["content"][0]["text"], "slowly");
}

#[tokio::test]
async fn d3_a_primed_stream_that_closes_is_resumed_after_the_time_it_asked_for() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    stage.upstream.once(
        calls("long"),
        vec![
            Step::Execute,
            Step::OpenStream,
            Step::piece("id: stream-1\nretry: 200\ndata:\n\n"),
            Step::EndStream,
        ],
    );
    let answered = client.call(1, "long", json!({}));
    let resumed = async {
        let call = stage.upstream.wait_for("the call", calls("long")).await;
        // The id of the call is the bridge's own, and the answer on the resumed stream has to have
        // it.
        let answer = result("resumed").replace("{id}", &call.body["id"].to_string());
        stage.upstream.once(
            Exchange::is_resumption,
            vec![Step::OpenStream, Step::Event(answer), Step::EndStream],
        );
    };
    let (reply, ()) = tokio::join!(answered, resumed);
    assert_eq!(reply.expect("an answer").text(), "resumed");
    let call = stage.upstream.wait_for("the call", calls("long")).await;
    let resumption = stage.upstream.wait_for("it", Exchange::is_resumption).await;
    assert_eq!(resumption.header("last-event-id"), Some("stream-1"));
    assert_eq!(resumption.session(), call.session());
    assert!(resumption.at.duration_since(call.at) >= Duration::from_millis(200));
    assert_eq!(stage.upstream.executions("long"), 1);
}

#[tokio::test]
async fn d3_a_stream_that_breaks_after_an_event_id_is_resumed_where_it_broke() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    stage.upstream.once(
        calls("long"),
        vec![
            Step::Execute,
            Step::OpenStream,
            Step::piece("id: a\nretry: 10\ndata:\n\n"),
            Step::piece(
                "id: b\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":{token},\"progress\":1}}\n\n",
            ),
            Step::Reset,
        ],
    );
    let open = client.open_call(1, "long", json!({}), 5).await.expect("a stream");
    let mut events = open.events();
    assert_eq!(events.message().await.expect("progress")["params"]["progress"], 1);
    let call = stage.upstream.wait_for("the call", calls("long")).await;
    let answer = result("resumed").replace("{id}", &call.body["id"].to_string());
    stage.upstream.always(
        Exchange::is_resumption,
        vec![Step::OpenStream, Step::Event(answer), Step::EndStream],
    );
    let answer = events.message().await.expect("the answer");
    assert_eq!(answer["result"]["content"][0]["text"], "resumed");
    let resumptions = stage.upstream.seen(Exchange::is_resumption);
    let last = resumptions.last().expect("it was resumed");
    assert_eq!(last.header("last-event-id"), Some("b"));
    assert_eq!(stage.upstream.executions("long"), 1);
}

#[tokio::test]
async fn d3_a_stream_without_event_ids_that_closes_is_an_error() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let steps = vec![Step::Execute, Step::OpenStream, Step::EndStream];
    stage.upstream.once(calls("long"), steps);
    let reply = client.call(1, "long", json!({})).await.expect("an answer");
    assert_failed(&reply, &[502, 503]);
    assert_eq!(stage.upstream.seen(calls("long")).len(), 1);
    assert!(stage.upstream.seen(Exchange::is_resumption).is_empty());
}

#[tokio::test]
async fn d3_a_stream_that_never_brings_its_answer_is_given_up() {
    let upstream = Upstream::legacy().start().await.expect("an upstream");
    let keys = json!({"type": "streamable_http", "request_timeout": "2s", "stream_timeout": "2s"});
    let stage = Stage::configured(upstream, keys).await;
    let client = stage.session().await;
    let primed = vec![
        Step::OpenStream,
        Step::piece("id: again\nretry: 100\ndata:\n\n"),
        Step::EndStream,
    ];
    stage.upstream.once(calls("long"), primed.clone());
    stage.upstream.always(Exchange::is_resumption, primed);
    let reply = client.call(1, "long", json!({})).await.expect("an answer");
    assert_failed(&reply, &[502, 504]);
    assert_eq!(stage.upstream.seen(calls("long")).len(), 1);
}

#[tokio::test]
async fn d14_line_ends_byte_order_marks_comments_and_split_data_are_read_by_the_standard() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let text = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
    let whole = format!(
        r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"content":[{}]}}}}"#,
        text("read")
    );
    let split = format!(
        "data: {{\"jsonrpc\":\"2.0\",\ndata: \"id\":{{id}},\ndata:\"result\":{{\"content\":[{}]}}}}\n\n",
        text("read")
    );
    let oddities = [
        format!("data: {whole}\r\r"),
        format!("data: {whole}\r\n\r\n"),
        format!("\u{feff}data: {whole}\n\n"),
        format!(": a comment\n:\n\ndata: {whole}\n\n"),
        split,
        format!("id: a\0b\ndata: {whole}\n\n"),
        format!("retry: soon\nunknown: x\nevent: message\ndata:{whole}\n\n"),
        format!("data\n\nid\ndata: {whole}\n\n"),
    ];
    for (number, oddity) in oddities.iter().enumerate() {
        stage.upstream.once(
            calls("odd"),
            vec![
                Step::Execute,
                Step::OpenStream,
                Step::piece(oddity),
                Step::EndStream,
            ],
        );
        let reply = client.call(number, "odd", json!({})).await.expect("an answer");
        assert_eq!(reply.text(), "read", "{oddity:?}");
    }
}

#[tokio::test]
async fn d14_a_stream_cut_at_every_byte_is_read_alike() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let event = "id: 1\r\nevent: message\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":{id},\r\ndata: \"result\":{\"content\":[{\"type\":\"text\",\"text\":\"Grüße\"}]}}\r\n\r\n";
    // The id stays in one piece, for it is filled in piece by piece.
    let (before, after) = event.split_once("{id}").expect("it has a place for the id");
    let bytes = |text: &str| -> Vec<Step> { text.bytes().map(|byte| Step::Piece(vec![byte])).collect() };
    let mut steps = vec![Step::Execute, Step::OpenStream];
    steps.extend(bytes(before));
    steps.push(Step::piece("{id}"));
    steps.extend(bytes(after));
    steps.push(Step::EndStream);
    stage.upstream.once(calls("odd"), steps);
    let reply = client.call(1, "odd", json!({})).await.expect("an answer");
    assert_eq!(reply.text(), "Grüße");
}

#[tokio::test]
async fn d14_an_error_event_is_no_answer() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let steps = vec![
        Step::Execute,
        Step::OpenStream,
        Step::piece("event: error\ndata: something is wrong\n\n"),
        Step::EndStream,
    ];
    stage.upstream.once(calls("odd"), steps);
    let reply = client.call(1, "odd", json!({})).await.expect("an answer");
    assert_failed(&reply, &[502, 503]);
    assert_eq!(echo(&client, 2, "after").await, "after");
}

#[tokio::test]
async fn d14_empty_events_do_not_keep_a_call_alive_for_ever() {
    let upstream = Upstream::legacy().start().await.expect("an upstream");
    let keys = json!({"type": "streamable_http", "request_timeout": "1s", "stream_timeout": "1s"});
    let stage = Stage::configured(upstream, keys).await;
    let client = stage.session().await;
    let empty = b"3\r\n:\n\n\r\n".repeat(1000);
    stage.upstream.once(
        calls("odd"),
        vec![
            Step::Execute,
            Step::OpenStream,
            Step::Flood {
                piece: empty,
                bytes: u64::MAX,
            },
        ],
    );
    let reply = client.call(1, "odd", json!({})).await.expect("an answer");
    assert_failed(&reply, &[502, 504]);
    assert_eq!(echo(&client, 2, "after").await, "after");
}

#[tokio::test]
async fn d14_a_million_empty_events_are_only_so_many_bytes() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    assert_eq!(echo(&client, 1, "warm").await, "warm");
    let before = stage.rialto.memory().resident;
    let chunk = chunk(&b"data:\n\n".repeat(10_000));
    stage.upstream.once(
        calls("odd"),
        vec![
            Step::Execute,
            Step::OpenStream,
            Step::Flood {
                bytes: 100 * chunk.len() as u64,
                piece: chunk,
            },
            Step::result("after a million"),
            Step::EndStream,
        ],
    );
    let reply = client.call(2, "odd", json!({})).await.expect("an answer");
    assert_eq!(reply.text(), "after a million");
    let grown = stage.rialto.memory().peak.saturating_sub(before);
    assert!(grown < 32 << 10, "{grown} KiB");
}
