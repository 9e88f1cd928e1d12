//! The remote misbehaves while a host uses `rialto connect`: rows D, F11 and G14 of the fault
//! catalogue, on the real binary.
//!
//! Tests are named after their row. What holds for any front is tried at length in
//! `remote_faults.rs`; here it is shown that a host on stdio sees it as one line per request and
//! nothing else, that what waits is sent in its place, and how the program ends. D16 is in
//! `faults_network.rs`; D6 and D18 in `connect.rs` have a well-behaved server behind them, here a
//! scripted one.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use serde_json::{Value, json};
use testkit::upstream::{CertificateAuthority, Exchange, Flaw, Gate, Step, calls, method, result};
use testkit::{Host, Upstream, text_of};

/// Nothing here takes nearly as long; reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(30);
const HUNDRED_MEGABYTES: u64 = 100 << 20;
/// What may be held of a flood, in KiB.
const ROOM: u64 = 32 << 10;

struct Stage {
    host: Host,
    upstream: Upstream,
}

impl Stage {
    /// A legacy host that has shaken hands with a legacy server.
    async fn legacy() -> Self {
        Self::with(&[]).await
    }

    async fn with(flags: &[&str]) -> Self {
        let upstream = Upstream::legacy().start().await.unwrap();
        let stage = Self {
            host: connect(&upstream.url(), flags),
            upstream,
        };
        stage.host.shake_hands(json!({})).await.unwrap();
        stage
    }

    async fn modern() -> Self {
        let upstream = Upstream::modern().start().await.unwrap();
        Self {
            host: connect(&upstream.url(), &[]),
            upstream,
        }
    }

    async fn call(&self, id: u64, tool: &str) -> Value {
        self.host
            .ask(
                id,
                "tools/call",
                json!({"name": tool, "arguments": {"text": tool}}),
            )
            .unwrap();
        self.host.answer(id).await
    }

    async fn call_modern(&self, id: u64, tool: &str) -> Value {
        self.host
            .ask_modern(id, "tools/call", json!({"name": tool}), &json!({}))
            .unwrap();
        self.host.answer(id).await
    }

    /// The conversation goes on.
    async fn assert_well(&self) {
        let answer = self.call(9999, "echo").await;
        assert_eq!(text_of(&answer), "echo", "{answer}");
    }
}

fn connect(url: &str, flags: &[&str]) -> Host {
    let words: Vec<&str> = ["connect", url].iter().chain(flags).copied().collect();
    Host::start(&words, &[]).unwrap()
}

/// One error with the reason.
#[track_caller]
fn assert_failed(answer: &Value) {
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    assert!(answer["error"]["data"]["reason"].is_string(), "{answer}");
}

#[tokio::test]
async fn d1_a_reset_after_execution_is_an_error_and_the_tool_ran_once() {
    let stage = Stage::legacy().await;
    stage
        .upstream
        .once(calls("pay"), vec![Step::Execute, Step::Reset]);
    assert_failed(&stage.call(1, "pay").await);
    assert_eq!(stage.upstream.executions("pay"), 1);
    assert_eq!(stage.upstream.seen(calls("pay")).len(), 1);
    stage.assert_well().await;
}

#[tokio::test]
async fn d1_a_reset_after_execution_of_a_modern_call_is_an_error_and_the_tool_ran_once() {
    let stage = Stage::modern().await;
    stage
        .upstream
        .once(calls("pay"), vec![Step::Execute, Step::Reset]);
    assert_failed(&stage.call_modern(1, "pay").await);
    assert_eq!(stage.upstream.seen(calls("pay")).len(), 1);
    assert_eq!(text_of(&stage.call_modern(2, "echo").await), "done");
}

#[tokio::test]
async fn d1_every_message_is_repeated_under_retry_always() {
    let stage = Stage::with(&["--retry", "always"]).await;
    stage
        .upstream
        .once(calls("pay"), vec![Step::Execute, Step::Reset]);
    assert_eq!(text_of(&stage.call(1, "pay").await), "pay");
    assert_eq!(stage.upstream.executions("pay"), 2);
}

#[tokio::test]
async fn d1_a_reset_after_a_list_is_not_seen() {
    let stage = Stage::legacy().await;
    stage.upstream.once(method("tools/list"), vec![Step::Reset]);
    stage.host.ask(1, "tools/list", json!({})).unwrap();
    assert!(stage.host.answer(1).await["result"]["tools"].is_array());
    assert_eq!(stage.upstream.seen(method("tools/list")).len(), 2);
}

#[tokio::test]
async fn d3_a_primed_stream_that_closes_is_resumed_after_the_time_it_asked_for() {
    let stage = Stage::legacy().await;
    let steps = vec![
        Step::Execute,
        Step::OpenStream,
        Step::piece("id: stream-1\nretry: 200\ndata:\n\n"),
        Step::EndStream,
    ];
    stage.upstream.once(calls("long"), steps);
    let resumed = async {
        let call = stage.upstream.wait_for("the call", calls("long")).await;
        // The id of the call is the bridge's own, and the answer on the resumed stream has to have
        // it.
        let answer = result("resumed").replace("{id}", &call.body["id"].to_string());
        let steps = vec![Step::OpenStream, Step::Event(answer), Step::EndStream];
        stage.upstream.once(Exchange::is_resumption, steps);
        call
    };
    let (answer, call) = tokio::join!(stage.call(1, "long"), resumed);
    assert_eq!(text_of(&answer), "resumed");
    let resumption = stage.upstream.wait_for("it", Exchange::is_resumption).await;
    assert_eq!(resumption.header("last-event-id"), Some("stream-1"));
    assert!(resumption.at.duration_since(call.at) >= Duration::from_millis(200));
    assert_eq!(stage.upstream.executions("long"), 1);
}

#[tokio::test]
async fn d4_forgotten_session_is_opened_again_once_for_all_waiting_calls() {
    let stage = Stage::legacy().await;
    stage.upstream.forget_sessions();
    for id in 1..=8 {
        let call = json!({"name": "echo", "arguments": {"text": id.to_string()}});
        stage.host.ask(id, "tools/call", call).unwrap();
    }
    for id in 1..=8 {
        let answer = stage.host.answer(id).await;
        assert_eq!(text_of(&answer), id.to_string(), "{answer}");
    }
    assert_eq!(stage.upstream.seen(method("initialize")).len(), 2);
    assert_eq!(stage.upstream.executions("echo"), 8);
}

#[tokio::test]
async fn d5_calls_wait_for_a_server_that_restarts_and_go_in_their_order() {
    let Stage { host, upstream } = Stage::legacy().await;
    let address = upstream.address();
    drop(upstream);
    for id in 1..=5 {
        let call = json!({"name": "echo", "arguments": {"text": id.to_string()}});
        host.ask(id, "tools/call", call).unwrap();
    }
    let upstream = Upstream::restarted(address).await;
    for id in 1..=5 {
        assert_eq!(text_of(&host.answer(id).await), id.to_string());
    }
    // The new server refuses what still names a session of the old one; nothing of that runs.
    let opened = upstream.seen(method("initialize")).last().unwrap().number;
    let seen = upstream.seen(calls("echo")).into_iter();
    let served = seen.filter(|seen| seen.number > opened);
    let texts: Vec<Value> = served
        .map(|seen| seen.body["params"]["arguments"]["text"].clone())
        .collect();
    assert_eq!(texts, ["1", "2", "3", "4", "5"]);
    assert_eq!(upstream.executions("echo"), 5);
}

#[tokio::test]
async fn d6_a_server_that_is_not_up_at_the_start_is_waited_for() {
    let upstream = Upstream::legacy().start().await.unwrap();
    let (address, url) = (upstream.address(), upstream.url());
    drop(upstream);
    let host = connect(&url, &[]);
    host.ask_modern("probe", "server/discover", json!({}), &json!({}))
        .unwrap();
    assert_eq!(host.answer("probe").await["error"]["code"], -32601);
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}});
    host.ask(1, "initialize", params).unwrap();
    let _upstream = Upstream::restarted(address).await;
    assert_eq!(host.answer(1).await["result"]["protocolVersion"], "2025-11-25");
}

#[tokio::test]
async fn d7_an_overloaded_server_is_asked_again_for_what_is_safe() {
    for status in [429, 502, 503, 504] {
        let stage = Stage::legacy().await;
        stage
            .upstream
            .times(2, method("tools/list"), vec![Step::retry_after(status, 0)]);
        stage.host.ask(1, "tools/list", json!({})).unwrap();
        let answer = stage.host.answer(1).await;
        assert!(answer["result"]["tools"].is_array(), "{status}: {answer}");
        assert_eq!(stage.upstream.seen(method("tools/list")).len(), 3, "{status}");
    }
}

#[tokio::test]
async fn d7_a_tool_call_that_may_have_run_is_not_made_again() {
    for status in [429, 500, 502, 503, 504] {
        let stage = Stage::legacy().await;
        let steps = vec![Step::Execute, Step::retry_after(status, 0)];
        stage.upstream.always(calls("pay"), steps);
        assert_failed(&stage.call(1, "pay").await);
        assert_eq!(stage.upstream.executions("pay"), 1, "{status}");
    }
}

#[tokio::test]
async fn d8_silence_at_any_point_is_a_timeout_and_cancels_the_request() {
    let half_a_head = b"HTTP/1.1 200 OK\r\ncontent-ty".to_vec();
    for silence in [
        vec![Step::Execute, Step::Stall],
        vec![Step::Execute, Step::OpenStream, Step::Stall],
        vec![Step::Execute, Step::Raw(half_a_head), Step::Stall],
    ] {
        let stage = Stage::with(&["--request-timeout", "1s"]).await;
        stage.upstream.once(calls("sleep"), silence);
        assert_failed(&stage.call(1, "sleep").await);
        let call = stage.upstream.wait_for("the call", calls("sleep")).await;
        let cancelled = method("notifications/cancelled");
        let cancel = stage.upstream.wait_for("the cancellation", cancelled).await;
        assert_eq!(cancel.body["params"]["requestId"], call.body["id"]);
        stage.assert_well().await;
    }
}

#[tokio::test]
async fn d9_events_before_the_end_of_the_connection_are_used_and_the_rest_is_an_error() {
    let stage = Stage::legacy().await;
    let whole = vec![
        Step::Execute,
        Step::OpenStream,
        Step::result("in time"),
        Step::Close,
    ];
    stage.upstream.once(calls("whole"), whole);
    assert_eq!(text_of(&stage.call(1, "whole").await), "in time");
    let cut = Step::Raw(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{\"jsonrpc\""
            .to_vec(),
    );
    stage
        .upstream
        .once(calls("cut"), vec![Step::Execute, cut, Step::Close]);
    assert_failed(&stage.call(2, "cut").await);
    assert_eq!(stage.upstream.executions("cut"), 1);
}

#[tokio::test]
async fn d10_another_origin_gets_neither_the_token_nor_the_message() {
    for status in [301, 302, 307, 308] {
        let other = Upstream::legacy().start().await.unwrap();
        let stage = Stage::with(&["--header", "Authorization: Bearer hush"]).await;
        stage
            .upstream
            .once(calls("moved"), vec![Step::redirect(status, &other.url())]);
        assert_failed(&stage.call(1, "moved").await);
        assert!(other.exchanges().is_empty(), "{status}: {:?}", other.exchanges());
        stage.assert_well().await;
    }
}

#[tokio::test]
async fn d11_a_certificate_that_does_not_hold_is_refused_and_one_that_does_is_not() {
    let files = tempfile::tempdir().unwrap();
    for (flaw, good) in [
        (Flaw::Nothing, true),
        (Flaw::Expired, false),
        (Flaw::WrongName, false),
        (Flaw::SelfSigned, false),
    ] {
        let authority = CertificateAuthority::new();
        let file = files.path().join("ca.pem");
        std::fs::write(&file, authority.pem()).unwrap();
        let upstream = Upstream::legacy()
            .with_tls(&authority, flaw)
            .start()
            .await
            .unwrap();
        let flags = ["--ca-file", file.to_str().unwrap(), "--request-timeout", "3s"];
        let host = connect(&upstream.url(), &flags);
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}});
        host.ask(1, "initialize", params).unwrap();
        let answer = host.answer(1).await;
        if good {
            assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
        } else {
            assert_failed(&answer);
            assert!(
                answer.to_string().to_lowercase().contains("certificate"),
                "{flaw:?}: {answer}"
            );
            assert!(upstream.exchanges().is_empty(), "{flaw:?}");
        }
    }
}

#[tokio::test]
async fn d13_an_endless_event_line_and_endless_headers_are_cut_at_the_limit() {
    let piece = b"10000\r\n".iter().copied();
    let chunk: Vec<u8> = piece.chain([b'x'; 0x10000]).chain(*b"\r\n").collect();
    let line = vec![
        Step::Execute,
        Step::OpenStream,
        Step::piece("data: "),
        Step::Flood {
            piece: chunk,
            bytes: HUNDRED_MEGABYTES,
        },
    ];
    let headers = vec![
        Step::Execute,
        Step::Raw(b"HTTP/1.1 200 OK\r\n".to_vec()),
        Step::Flood {
            piece: b"x-ballast: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n".to_vec(),
            bytes: HUNDRED_MEGABYTES,
        },
    ];
    for flood in [line, headers] {
        let stage = Stage::with(&["--max-message-bytes", "1MiB"]).await;
        stage.assert_well().await;
        let before = stage.host.memory().resident;
        stage.upstream.once(calls("flood"), flood);
        let answer = stage.call(1, "flood").await;
        assert!(answer["error"].is_object(), "{answer}");
        let grown = stage.host.memory().peak.saturating_sub(before);
        assert!(grown <= ROOM, "it grew by {grown} KiB");
        stage.assert_well().await;
    }
}

#[tokio::test]
async fn d14_every_form_of_event_stream_is_read_by_the_standard() {
    for stream in [
        "data: {answer}\r\r",
        "\u{feff}: a comment\n\ndata: {answer}\n\n",
        "event: message\r\nid: \0\r\ndata: {answer}\r\n\r\n",
        "event: error\ndata: no\n\ndata: {answer}\n\n",
        "data: {first}\ndata: {rest}\n\n",
    ] {
        let stage = Stage::legacy().await;
        let answer = result("read");
        let (first, rest) = answer.split_at(answer.find(",").unwrap());
        let stream = stream
            .replace("{answer}", &answer)
            .replace("{first}", first)
            .replace("{rest}", rest);
        let steps = vec![
            Step::Execute,
            Step::OpenStream,
            Step::piece(&stream),
            Step::EndStream,
        ];
        stage.upstream.once(calls("odd"), steps);
        assert_eq!(text_of(&stage.call(1, "odd").await), "read", "{stream:?}");
    }
}

#[tokio::test]
async fn d15_wrong_answers_reach_no_call() {
    let stage = Stage::legacy().await;
    let web_page = Step::with_status(200, "text/html", "<html>welcome</html>");
    let other = r#"{"jsonrpc":"2.0","id":987654,"result":{"content":[]}}"#;
    for (number, wrong) in [
        web_page,
        Step::json(other),
        Step::json("[]"),
        Step::json("{\"jsonrpc\":"),
        Step::status(204),
    ]
    .into_iter()
    .enumerate()
    {
        stage.upstream.once(calls("odd"), vec![Step::Execute, wrong]);
        let answer = stage.call(number as u64 + 1, "odd").await;
        assert_failed(&answer);
    }
    let twice = format!("{}\n\ndata: {}", result("first"), result("second"));
    let steps = vec![
        Step::Execute,
        Step::OpenStream,
        Step::piece(&format!("data: {twice}\n\n")),
        Step::EndStream,
    ];
    stage.upstream.once(calls("twice"), steps);
    assert_eq!(text_of(&stage.call(100, "twice").await), "first");
    stage.assert_well().await;
    let answers = stage.host.lines().into_iter().filter(|line| line["id"] == 100);
    assert_eq!(answers.count(), 1);
}

#[tokio::test]
async fn d17_an_endpoint_at_another_origin_is_refused() {
    let other = Upstream::old_sse().start().await.unwrap();
    for endpoint in [
        format!("{}/message", other.origin()),
        format!("//{}/message", other.address()),
        "http://169.254.169.254/message".to_owned(),
    ] {
        let upstream = Upstream::old_sse().start().await.unwrap();
        let event = format!("event: endpoint\ndata: {endpoint}\n\n");
        let opens = |seen: &Exchange| seen.http_method == "GET";
        upstream.always(opens, vec![Step::OpenStream, Step::piece(&event), Step::Stall]);
        let flags = [
            "--transport",
            "sse",
            "--header",
            "Authorization: Bearer hush",
            "--request-timeout",
            "2s",
        ];
        let host = connect(&upstream.url(), &flags);
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}});
        host.ask(1, "initialize", params).unwrap();
        assert_failed(&host.answer(1).await);
        assert!(
            other.exchanges().is_empty(),
            "{endpoint}: {:?}",
            other.exchanges()
        );
    }
}

#[tokio::test]
async fn a_server_of_the_old_transport_is_found_by_itself() {
    let upstream = Upstream::old_sse().start().await.unwrap();
    let stage = Stage {
        host: connect(&upstream.url(), &[]),
        upstream,
    };
    stage.host.shake_hands(json!({})).await.unwrap();
    stage.assert_well().await;
}

#[tokio::test]
async fn f11_the_end_of_stdin_with_a_call_pending_ends_the_program_and_the_session() {
    let stage = Stage::legacy().await;
    let gate = Gate::default();
    stage
        .upstream
        .once(calls("long"), vec![Step::Execute, Step::Wait(gate.clone())]);
    let call = json!({"name": "long"});
    stage.host.ask(1, "tools/call", call).unwrap();
    stage.upstream.wait_for("the call", calls("long")).await;
    stage.host.close_stdin();
    assert_eq!(stage.host.wait(PATIENCE).await.code(), Some(0));
    let ended = |seen: &Exchange| seen.http_method == "DELETE";
    stage.upstream.wait_for("the end of the session", ended).await;
    assert_eq!(stage.upstream.open_sessions(), 0);
    gate.open();
}

#[tokio::test]
async fn f11_server_that_does_not_answer_the_delete_delays_no_shutdown() {
    let stage = Stage::legacy().await;
    let ended = |seen: &Exchange| seen.http_method == "DELETE";
    stage.upstream.always(ended, vec![Step::Stall]);
    stage.host.close_stdin();
    assert_eq!(stage.host.wait(PATIENCE).await.code(), Some(0));
    stage.upstream.wait_for("the end of the session", ended).await;
}

/// Everything a server can put into what people read, and what a terminal would do with it.
const HOSTILE: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\r\u{202e}\u{9b}31m";

#[tokio::test]
async fn g14_no_text_of_a_server_reaches_the_terminal_unescaped() {
    let stage = Stage::legacy().await;
    let page = Step::with_status(500, "text/plain", HOSTILE);
    stage.upstream.once(calls("odd"), vec![Step::Execute, page]);
    assert_failed(&stage.call(1, "odd").await);
    let tool = format!("{HOSTILE}{}", "x".repeat(100));
    stage
        .host
        .ask(2, "tools/call", json!({"name": tool, "arguments": {}}))
        .unwrap();
    stage.host.answer(2).await;
    stage.upstream.once(
        calls("gone"),
        vec![Step::Execute, Step::redirect(302, "http://a.example/\u{1b}[2J")],
    );
    assert!(stage.call(3, "gone").await["error"].is_object());
    stage.host.close_stdin();
    stage.host.wait(PATIENCE).await;
    for line in stage.host.stderr() {
        let wild = line
            .chars()
            .find(|letter| letter.is_control() || *letter == '\u{202e}');
        assert_eq!(wild, None, "{line:?}");
    }
    // Each of these is JSON, or the test would have failed on the way; and nothing else is there.
    assert!(stage.host.lines().iter().all(|line| line["jsonrpc"] == "2.0"));
}

#[tokio::test]
async fn g14_an_address_with_control_characters_is_refused_in_plain_words() {
    let host = connect("http://127.0.0.1:9/\u{1b}[2J", &["--request-timeout", "1s"]);
    host.close_stdin();
    host.wait(PATIENCE).await;
    assert!(host.lines().is_empty());
    for line in host.stderr() {
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
}

fn elsewhere(path: &'static str) -> impl Fn(&Exchange) -> bool + Send + Sync + 'static {
    move |seen| seen.path != path
}

/// The error that a host gets for its `initialize`, in words.
async fn refusal(host: &Host) -> String {
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}});
    host.ask(1, "initialize", params).unwrap();
    let answer = host.answer(1).await;
    assert_failed(&answer);
    answer["error"]["message"].as_str().unwrap().to_owned()
}

/// Far longer than a test waits: what ends before it has ended at once.
const LONG: [&str; 2] = ["--request-timeout", "10m"];

#[tokio::test]
async fn a_wrong_address_is_refused_at_once_and_the_right_one_beside_it_is_named() {
    for (upstream, path) in [(Upstream::legacy(), "/mcp"), (Upstream::old_sse(), "/sse")] {
        let upstream = upstream.start().await.unwrap();
        let page = Step::with_status(404, "text/plain", "no such\u{1b}[2J page\n");
        upstream.always(elsewhere(path), vec![page]);
        for (wrong, flags) in [
            ("/", &["--transport", "auto"]),
            ("/wrong", &["--transport", "streamable-http"]),
            ("/wrong", &["--transport", "sse"]),
        ] {
            let address = format!("{}{wrong}", upstream.origin());
            let host = connect(&address, &[&LONG[..], flags].concat());
            let message = refusal(&host).await;
            let right = format!("did you mean {}{path}?", upstream.origin());
            for words in [address.as_str(), "404", "no such\\u{1b}[2J page", &right] {
                assert!(
                    message.contains(words),
                    "{flags:?}: {words} is missing: {message}"
                );
            }
            assert!(!message.contains("start_timeout"), "{message}");
        }
        let credentials = upstream.seen(|seen| seen.header("authorization").is_some());
        assert!(credentials.is_empty());
    }
}

/// Most often another program listens at the address, or the server waits for something itself.
#[tokio::test]
async fn a_server_that_is_reached_and_never_answers_is_named_with_what_to_check() {
    let upstream = Upstream::legacy().start().await.unwrap();
    upstream.always(|_| true, vec![Step::Stall]);
    for flags in [&["--transport", "auto"], &["--transport", "streamable-http"]] {
        let host = connect(
            &upstream.url(),
            &[&["--request-timeout", "1s"][..], flags].concat(),
        );
        let message = refusal(&host).await;
        for words in [
            "1s",
            &upstream.url(),
            "accepted the connection",
            "no answer",
            "`--request-timeout`",
        ] {
            assert!(
                message.contains(words),
                "{flags:?}: {words} is missing: {message}"
            );
        }
    }
}

#[tokio::test]
async fn an_address_beside_the_wrong_one_is_tried_without_credentials() {
    let upstream = Upstream::legacy().start().await.unwrap();
    upstream.always(elsewhere("/mcp"), vec![Step::status(404)]);
    let wrong = format!("{}/other", upstream.origin());
    let flags = [&LONG[..], &["--header", "Authorization: Bearer hush"]].concat();
    let message = refusal(&connect(&wrong, &flags)).await;
    assert!(message.contains("/mcp?"), "{message}");
    let beside = upstream.seen(|seen| seen.path == "/mcp");
    assert!(!beside.is_empty());
    assert!(beside.iter().all(|seen| seen.header("authorization").is_none()));
}

#[tokio::test]
async fn an_address_that_is_no_mcp_server_is_refused_at_once() {
    for (step, words) in [
        (
            Step::with_status(200, "text/html", "<h1>Welcome</h1>"),
            "no message",
        ),
        (Step::with_status(410, "text/plain", "moved away"), "moved away"),
        (
            Step::with_status(403, "text/plain", "members only"),
            "members only",
        ),
        (
            Step::with_status(405, "text/plain", "only pages"),
            "HTTP status 405: only pages",
        ),
        (
            Step::with_status(400, "text/plain", "say please"),
            "HTTP status 400: say please",
        ),
    ] {
        let upstream = Upstream::legacy().start().await.unwrap();
        upstream.always(|_| true, vec![step.clone()]);
        let message = refusal(&connect(&upstream.url(), &LONG)).await;
        assert!(
            message.contains(words) && message.contains(&upstream.url()),
            "{step:?}: {message}"
        );
    }
}

#[tokio::test]
async fn when_the_wait_for_a_server_ends_the_error_names_the_cause() {
    let closed = Upstream::legacy().start().await.unwrap().url();
    for transport in ["auto", "sse"] {
        let host = connect(&closed, &["--transport", transport, "--request-timeout", "1s"]);
        let message = refusal(&host).await;
        assert!(message.contains("cannot reach the server"), "{message}");
    }
}

#[tokio::test]
async fn the_text_of_an_error_is_passed_on_cut_and_escaped() {
    let stage = Stage::legacy().await;
    let long = format!("disk\u{1b}[2J full {}", "x".repeat(5000));
    stage
        .upstream
        .once(calls("pay"), vec![Step::with_status(500, "text/plain", &long)]);
    let answer = stage.call(1, "pay").await;
    assert_failed(&answer);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("HTTP status 500: disk\\u{1b}[2J full xxx"),
        "{message}"
    );
    assert!(message.len() < 600, "{} bytes", message.len());
    stage.assert_well().await;
}

#[tokio::test]
async fn d4_a_404_with_an_error_for_this_request_ends_the_call_which_ran_once() {
    let stage = Stage::legacy().await;
    let error = r#"{"jsonrpc":"2.0","id":{id},"error":{"code":-32602,"message":"no such invoice"}}"#;
    stage.upstream.always(
        calls("pay"),
        vec![Step::Execute, Step::with_status(404, "application/json", error)],
    );
    let answer = stage.call(1, "pay").await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert_eq!(answer["error"]["message"], "no such invoice", "{answer}");
    assert_eq!(stage.upstream.executions("pay"), 1);
    assert_eq!(stage.upstream.seen(method("initialize")).len(), 1);
    stage.assert_well().await;
}

#[tokio::test]
async fn d4_a_404_whose_error_is_about_the_session_means_a_new_session() {
    for error in [
        r#"{"jsonrpc":"2.0","id":{id},"error":{"code":-32600,"message":"no such session; initialize a new one"}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#,
        r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}"#,
    ] {
        let stage = Stage::legacy().await;
        stage.upstream.once(
            calls("pay"),
            vec![Step::with_status(404, "application/json", error)],
        );
        let answer = stage.call(1, "pay").await;
        assert!(answer["result"].is_object(), "{answer}");
        assert_eq!(stage.upstream.seen(method("initialize")).len(), 2);
    }
}
