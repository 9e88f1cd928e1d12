use super::*;
use crate::message::Written;

const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
const HELLO: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}"#;
const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
const NOW: Moment = Moment::START;

fn client() -> LineClient {
    LineClient::new(Limits {
        messages: 4,
        bytes: 4096,
        line: 2048,
        probe: Duration::from_secs(8),
    })
}

fn modern_line(id: &str, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{META}}}}}"#)
}

fn send(client: &mut LineClient, line: &str) {
    client.handle_frame(NOW, Frame::Line(Bytes::copy_from_slice(line.as_bytes())));
}

/// What the machine wants, in a word each.
fn wants(client: &mut LineClient) -> Vec<String> {
    std::iter::from_fn(|| client.poll_output())
        .map(|output| {
            let method = |message: Message| {
                message
                    .method_name()
                    .map_or("answer".into(), |name| name.into_owned())
            };
            match output {
                Output::Open(message) => format!("open {}", method(message)),
                Output::Take(message) => format!("take {}", method(message)),
                Output::Close => "close".to_owned(),
                Output::Start {
                    modern_request,
                    message,
                    ..
                } => format!("start {} {}", modern_request.0, method(message)),
                Output::Abandon(modern_request) => format!("abandon {}", modern_request.0),
            }
        })
        .collect()
}

/// Returns the lines that wait for the client.
fn read_lines(client: &mut LineClient) -> Vec<serde_json::Value> {
    let lines = client.take_outgoing(BytesMut::new());
    client.take_outgoing(BytesMut::new());
    lines
        .as_ref()
        .split(|byte: &u8| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("only JSON is written"))
        .collect()
}

fn answer(line: &'static str, ending: Ending, request: &str) -> OutgoingLine {
    OutgoingLine::Answer {
        line: Written::Whole(Bytes::from_static(line.as_bytes())),
        ending,
        request_bytes: request.len(),
    }
}

fn open_session(client: &mut LineClient) {
    client.handle_session_line(NOW, OutgoingLine::Opened);
    client.handle_session_line(
        NOW,
        answer(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#, Ending::Result, HELLO),
    );
}

#[test]
fn an_initialize_settles_on_the_legacy_era_and_later_messages_go_to_the_session() {
    let mut client = client();
    send(&mut client, HELLO);
    assert_eq!(wants(&mut client), ["open initialize"]);
    open_session(&mut client);
    send(
        &mut client,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    );
    send(&mut client, LIST);
    send(&mut client, r#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
    assert_eq!(
        wants(&mut client),
        ["take notifications/initialized", "take tools/list", "take answer"]
    );
    assert_eq!(read_lines(&mut client).len(), 1);
    assert_eq!(client.open_requests(), 1);
    send(&mut client, &modern_line("9", "server/discover"));
    let received = read_lines(&mut client);
    assert_eq!(
        (&received[0]["id"], &received[0]["error"]["code"]),
        (&9.into(), &(-32601).into())
    );
    assert!(wants(&mut client).is_empty());
}

#[test]
fn messages_before_the_session_opens_wait_but_a_ping_does_not() {
    let mut client = client();
    send(&mut client, HELLO);
    send(&mut client, LIST);
    send(&mut client, r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    assert_eq!(wants(&mut client), ["open initialize"]);
    assert_eq!(read_lines(&mut client)[0]["id"], "p");
    open_session(&mut client);
    assert_eq!(wants(&mut client), ["take tools/list"]);
    client.handle_session_line(
        NOW,
        answer(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, Ending::Result, LIST),
    );
    assert_eq!((client.open_requests(), client.load.bytes), (0, 0));
}

#[test]
fn opening_request_that_the_session_refuses_settles_nothing() {
    let mut client = client();
    send(&mut client, LIST);
    assert_eq!(wants(&mut client), ["open tools/list"]);
    let refusal = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no"}}"#);
    client.handle_answered_at_once(NOW, LIST.len(), &refusal);
    assert_eq!(read_lines(&mut client)[0]["error"]["message"], "no");
    send(&mut client, LIST);
    assert_eq!(wants(&mut client), ["close", "open tools/list"]);
}

#[test]
fn a_handshake_that_fails_settles_nothing() {
    let refusal = r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32000,"message":"no"}}"#;
    let mut client = client();
    send(&mut client, HELLO);
    client.handle_session_line(NOW, answer(refusal, Ending::Error, HELLO));
    assert_eq!(read_lines(&mut client)[0]["error"]["code"], -32000);
    assert_eq!(wants(&mut client), ["open initialize", "close"]);
    send(&mut client, &modern_line("1", "tools/list"));
    assert_eq!(wants(&mut client), ["start 1 tools/list"]);

    let mut client = self::client();
    send(&mut client, HELLO);
    client.handle_not_opened(NOW, -32603, "all in use", None);
    assert_eq!(read_lines(&mut client)[0]["id"], 0);
    send(&mut client, HELLO);
    assert_eq!(
        wants(&mut client),
        ["open initialize", "close", "open initialize"]
    );
}

#[test]
fn a_request_without_a_handshake_opens_a_session_by_itself() {
    let mut client = client();
    send(&mut client, r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    assert_eq!(read_lines(&mut client).len(), 1, "a ping opens nothing");
    send(&mut client, LIST);
    assert_eq!(wants(&mut client), ["open tools/list"]);
    client.handle_session_line(NOW, OutgoingLine::Opened);
    send(&mut client, LIST);
    assert_eq!(wants(&mut client), ["take tools/list"]);
}

#[test]
fn discovery_settles_nothing_and_another_modern_request_does() {
    let mut client = client();
    send(&mut client, &modern_line("\"d\"", "server/discover"));
    send(&mut client, HELLO);
    assert_eq!(wants(&mut client), ["start 1 server/discover", "open initialize"]);

    let mut client = self::client();
    send(&mut client, &modern_line("1", "tools/list"));
    send(&mut client, HELLO);
    let received = read_lines(&mut client);
    assert_eq!(received[0]["error"]["code"], -32022);
    assert_eq!(
        received[0]["error"]["data"]["supported"],
        serde_json::json!(["2026-07-28"])
    );
    send(&mut client, LIST);
    assert_eq!(
        read_lines(&mut client)[0]["error"]["code"],
        -32602,
        "it does not describe itself"
    );
    send(&mut client, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    assert_eq!(wants(&mut client), ["start 1 tools/list"]);
    assert!(read_lines(&mut client).is_empty());
}

#[test]
fn a_probe_is_answered_in_time_or_at_once_if_the_server_is_known_to_be_away() {
    let probe = modern_line("\"d\"", "server/discover");
    for away in [true, false] {
        let mut client = client();
        send(&mut client, &probe);
        let late = NOW.after(Duration::from_secs(8));
        assert_eq!(client.next_deadline(), Some(late));
        match away {
            true => client.handle_absence(),
            false => client.handle_deadline(late),
        }
        assert_eq!(
            wants(&mut client),
            ["start 1 server/discover", "abandon 1"],
            "{away}"
        );
        let received = read_lines(&mut client);
        assert_eq!(
            (&received[0]["id"], &received[0]["error"]["code"]),
            (&"d".into(), &(-32601).into())
        );
        client.handle_answer(ModernRequestKey(1), &Bytes::from_static(b"{}"));
        assert!(read_lines(&mut client).is_empty(), "a late answer is dropped");
        assert_eq!(client.next_deadline(), None);
    }
    let mut client = client();
    send(&mut client, &probe);
    client.handle_failure(ModernRequestKey(1), &Bytes::from_static(b"{}"));
    assert_eq!(read_lines(&mut client)[0]["error"]["code"], -32601);
}

#[test]
fn equal_ids_are_both_answered_and_a_cancellation_abandons_the_newest() {
    let mut client = client();
    for _ in 0..3 {
        send(&mut client, &modern_line("1", "tools/call"));
    }
    wants(&mut client);
    send(
        &mut client,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
    );
    assert_eq!(wants(&mut client), ["abandon 3"]);
    let line = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    for modern_request in [3, 2, 1] {
        client.handle_event(ModernRequestKey(modern_request), &line);
        client.handle_answer(ModernRequestKey(modern_request), &line);
    }
    assert_eq!(
        read_lines(&mut client).len(),
        4,
        "the one that was cancelled is silent"
    );
    assert_eq!((client.open_requests(), client.load.bytes), (0, 0));
}

#[test]
fn a_cancelled_call_of_a_session_gets_no_answer() {
    let mut client = client();
    send(&mut client, HELLO);
    open_session(&mut client);
    send(&mut client, LIST);
    read_lines(&mut client);
    client.handle_session_line(NOW, answer("{}", Ending::Failed(Failure::Cancelled), LIST));
    assert!(read_lines(&mut client).is_empty());
    assert_eq!(client.open_requests(), 0);
}

#[test]
fn a_listen_that_ends_is_answered_before_it_is_called_off() {
    let mut client = client();
    send(&mut client, &modern_line("\"l\"", "subscriptions/listen"));
    client.handle_answer(
        ModernRequestKey(1),
        &Bytes::from_static(br#"{"jsonrpc":"2.0","id":"l","result":{}}"#),
    );
    let received = read_lines(&mut client);
    assert_eq!(received[0]["id"], "l");
    assert_eq!(
        (&received[1]["method"], &received[1]["params"]["requestId"]),
        (&"notifications/cancelled".into(), &"l".into())
    );
    send(&mut client, &modern_line("\"m\"", "subscriptions/listen"));
    client.handle_answer(
        ModernRequestKey(2),
        &Bytes::from_static(br#"{"jsonrpc":"2.0","id":"m","error":{"code":-32603,"message":"x"}}"#),
    );
    assert_eq!(read_lines(&mut client).len(), 1);
}

#[test]
fn first_event_of_a_listen_is_never_lost_and_others_may_be() {
    let mut client = client();
    send(&mut client, &modern_line("\"l\"", "subscriptions/listen"));
    send(&mut client, &modern_line("2", "tools/list"));
    send(&mut client, &modern_line("3", "tools/list"));
    let large = Bytes::from(format!("{{{}}}", " ".repeat(5000)));
    client.handle_event(ModernRequestKey(2), &large);
    let line = Bytes::from_static(b"{}");
    client.handle_event(ModernRequestKey(3), &line);
    assert_eq!(client.counters().dropped, 1, "the client does not read");
    client.handle_event(ModernRequestKey(1), &line);
    assert_eq!(client.counters().dropped, 1, "it is the acknowledgement");
    client.handle_event(ModernRequestKey(1), &line);
    assert_eq!(client.counters().dropped, 2);
    assert_eq!(read_lines(&mut client).len(), 2);
}

#[test]
fn invalid_message_is_answered_with_its_id_where_it_has_one() {
    let mut client = client();
    for (line, code, id) in [
        ("nonsense", -32700, serde_json::Value::Null),
        (
            r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
            -32600,
            serde_json::Value::Null,
        ),
        (
            r#"{"jsonrpc":"2.0","id":7,"method":"a","method":"b"}"#,
            -32600,
            7.into(),
        ),
        (r#"{"jsonrpc":"1.0","id":8,"method":"a"}"#, -32600, 8.into()),
        // The id of an answer is not one of the client's own.
        (
            r#"{"jsonrpc":"2.0","id":7,"result":1,"result":2}"#,
            -32600,
            serde_json::Value::Null,
        ),
    ] {
        send(&mut client, line);
        let received = read_lines(&mut client);
        assert_eq!(
            (&received[0]["error"]["code"], &received[0]["id"]),
            (&code.into(), &id),
            "{line}"
        );
    }
    assert!(wants(&mut client).is_empty());
    assert_eq!(
        client.counters().malformed,
        4,
        "a message of another JSON-RPC is a message"
    );
}

#[test]
fn an_over_long_line_costs_only_its_own_request() {
    let long = |id: Option<&'static [u8]>, method| {
        Frame::TooLong(TooLong {
            id: id.map(Bytes::from_static),
            method,
            length: 9999,
        })
    };
    let mut client = client();
    send(&mut client, HELLO);
    open_session(&mut client);
    read_lines(&mut client);
    wants(&mut client);
    client.handle_frame(NOW, long(Some(b"4"), true));
    let received = read_lines(&mut client);
    assert_eq!(
        (&received[0]["id"], &received[0]["error"]["code"]),
        (&4.into(), &(-32600).into())
    );
    client.handle_frame(NOW, long(None, true));
    assert!(read_lines(&mut client).is_empty());
    client.handle_frame(NOW, long(Some(b"3"), false));
    assert_eq!(
        wants(&mut client),
        ["take answer"],
        "the server that asked gets an answer"
    );
    assert_eq!(client.counters().malformed, 3);
}

#[test]
fn lines_are_wanted_only_while_there_is_room() {
    let mut client = client();
    send(&mut client, HELLO);
    open_session(&mut client);
    for _ in 0..4 {
        assert!(client.wants_lines());
        send(&mut client, LIST);
    }
    assert!(!client.wants_lines());
    client.handle_session_line(NOW, answer("{}", Ending::Result, LIST));
    assert!(client.wants_lines());
    assert_eq!(client.counters().stalls, 1);

    let mut client = self::client();
    send(&mut client, HELLO);
    open_session(&mut client);
    let long = LIST.replace("tools/list", &"x".repeat(5000));
    send(&mut client, &long);
    assert!(!client.wants_lines(), "one large request is enough");
    client.handle_session_line(NOW, answer("{}", Ending::Result, &long));
    assert!(client.wants_lines());

    let mut client = self::client();
    send(&mut client, HELLO);
    open_session(&mut client);
    let large = Bytes::from(format!("{{{}}}", " ".repeat(5000)));
    client.handle_session_line(NOW, OutgoingLine::Notice(large.clone()));
    assert!(!client.wants_lines(), "the client does not read");
    client.handle_session_line(NOW, OutgoingLine::Notice(large.clone()));
    client.handle_session_line(NOW, OutgoingLine::Question(Bytes::from_static(b"{}")));
    assert_eq!(client.counters().dropped, 1);
    assert_eq!(
        read_lines(&mut client).len(),
        3,
        "an answer and a question are never dropped"
    );
    assert!(client.wants_lines());
}

#[test]
fn after_the_end_every_request_is_abandoned_and_nothing_more_is_sent() {
    let mut client = client();
    send(&mut client, &modern_line("1", "tools/call"));
    wants(&mut client);
    client.handle_end();
    client.handle_end();
    assert_eq!(wants(&mut client), ["abandon 1"]);
    assert!(!client.wants_lines());

    let mut client = self::client();
    send(&mut client, HELLO);
    open_session(&mut client);
    wants(&mut client);
    client.handle_end();
    client.handle_session_line(NOW, OutgoingLine::Notice(Bytes::from_static(b"{}")));
    assert_eq!(wants(&mut client), ["close"]);
    assert_eq!(
        read_lines(&mut client).len(),
        1,
        "what was there is still written"
    );
}

/// A client that sends anything, and a gateway that answers at any time.
mod anything {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Send(Phrase),
        /// Cancels the request that was sent this many requests ago.
        Cancel(usize),
        /// Ends one of the requests that are open.
        EndRequest(usize, Outcome),
        Absence,
        Deadline,
    }

    #[derive(Debug, Clone, Copy)]
    enum Phrase {
        Hello,
        List,
        Ping,
        Discover,
        ModernList,
        Listen,
        Note,
        Invalid,
    }

    #[derive(Debug, Clone, Copy)]
    enum Outcome {
        Good,
        Bad,
    }

    fn step() -> impl Strategy<Value = Step> {
        let phrase = prop::sample::select(vec![
            Phrase::Hello,
            Phrase::List,
            Phrase::Ping,
            Phrase::Discover,
            Phrase::ModernList,
            Phrase::Listen,
            Phrase::Note,
            Phrase::Invalid,
        ]);
        let outcome = prop::sample::select(vec![Outcome::Good, Outcome::Good, Outcome::Bad]);
        prop_oneof![
            5 => phrase.prop_map(Step::Send),
            1 => (0..4_usize).prop_map(Step::Cancel),
            5 => (0..8_usize, outcome).prop_map(|(at, outcome)| Step::EndRequest(at, outcome)),
            1 => Just(Step::Absence),
            1 => Just(Step::Deadline),
        ]
    }

    /// The gateway's side: the orders that it has not carried out.
    struct Harness {
        client: LineClient,
        orders: Vec<Output>,
        asked: Vec<u64>,
        cancelled: Vec<u64>,
        answered: Vec<u64>,
        next: u64,
    }

    impl Harness {
        fn send(&mut self, phrase: Phrase) {
            let id = self.next;
            let line = match phrase {
                Phrase::Hello => HELLO.replace(r#""id":0"#, &format!(r#""id":{id}"#)),
                Phrase::List => LIST.replace(r#""id":1"#, &format!(r#""id":{id}"#)),
                Phrase::Ping => format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#),
                Phrase::Discover => modern_line(&id.to_string(), "server/discover"),
                Phrase::ModernList => modern_line(&id.to_string(), "tools/list"),
                Phrase::Listen => modern_line(&id.to_string(), "subscriptions/listen"),
                Phrase::Note => {
                    return send(
                        &mut self.client,
                        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
                    );
                }
                Phrase::Invalid => return send(&mut self.client, "nonsense"),
            };
            self.next += 1;
            self.asked.push(id);
            send(&mut self.client, &line);
        }

        fn cancel(&mut self, ago: usize) {
            let Some(id) = self.asked.iter().rev().nth(ago).copied() else {
                return;
            };
            self.cancelled.push(id);
            send(
                &mut self.client,
                &format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
                ),
            );
        }

        fn end_request(&mut self, at: usize, outcome: Outcome) {
            if at >= self.orders.len() {
                return;
            }
            let line = |message: &Message| {
                let id = String::from_utf8_lossy(message.raw(Member::Id).unwrap_or(b"null")).into_owned();
                match outcome {
                    Outcome::Good => Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)),
                    Outcome::Bad => Bytes::from(format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32603,"message":"x"}}}}"#
                    )),
                }
            };
            let answer = |message: &Message, ending| OutgoingLine::Answer {
                line: Written::Whole(line(message)),
                ending,
                request_bytes: message.len(),
            };
            match (self.orders.remove(at), outcome) {
                (Output::Open(message), Outcome::Good) => {
                    self.client.handle_session_line(NOW, OutgoingLine::Opened);
                    self.client
                        .handle_session_line(NOW, answer(&message, Ending::Result));
                }
                (Output::Open(message), Outcome::Bad) => {
                    self.client.handle_session_line(
                        NOW,
                        answer(&message, Ending::Failed(Failure::HandshakeRefused)),
                    );
                }
                (Output::Take(message), _) if message.kind() == Kind::Request => {
                    self.client
                        .handle_session_line(NOW, answer(&message, Ending::Result));
                }
                (Output::Take(_) | Output::Close | Output::Abandon(_), _) => {}
                (
                    Output::Start {
                        modern_request,
                        message,
                        ..
                    },
                    Outcome::Good,
                ) => {
                    self.client.handle_answer(modern_request, &line(&message));
                }
                (
                    Output::Start {
                        modern_request,
                        message,
                        ..
                    },
                    Outcome::Bad,
                ) => {
                    self.client.handle_failure(modern_request, &line(&message));
                }
            }
        }

        /// Keeps the new orders, and forgets those of abandoned requests.
        fn look(&mut self) {
            while let Some(output) = self.client.poll_output() {
                if let Output::Abandon(abandoned) = &output {
                    self.orders.retain(
                        |order| !matches!(order, Output::Start { modern_request, .. } if modern_request == abandoned),
                    );
                }
                self.orders.push(output);
            }
            for line in read_lines(&mut self.client) {
                if line.get("method").is_none() {
                    self.answered.extend(line["id"].as_u64());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_request_is_answered_once_unless_it_was_cancelled(steps in prop::collection::vec(step(), 0..60)) {
            let mut harness = Harness {
                client: LineClient::new(Limits { messages: 1000, bytes: 1 << 20, line: 1 << 16, probe: Duration::from_secs(8) }),
                orders: Vec::new(),
                asked: Vec::new(),
                cancelled: Vec::new(),
                answered: Vec::new(),
                next: 1,
            };
            for step in steps {
                match step {
                    Step::Send(phrase) => harness.send(phrase),
                    Step::Cancel(ago) => harness.cancel(ago),
                    Step::EndRequest(at, outcome) => harness.end_request(at, outcome),
                    Step::Absence => harness.client.handle_absence(),
                    Step::Deadline => harness.client.handle_deadline(NOW.after(Duration::from_secs(9))),
                }
                harness.look();
            }
            while !harness.orders.is_empty() {
                harness.end_request(0, Outcome::Good);
                harness.look();
            }
            prop_assert_eq!((harness.client.load.messages, harness.client.load.bytes), (0, 0));
            for id in &harness.asked {
                let times = harness.answered.iter().filter(|answered| *answered == id).count();
                if harness.cancelled.contains(id) {
                    prop_assert!(times <= 1, "{} was answered {} times", id, times);
                } else {
                    prop_assert_eq!(times, 1, "{}", id);
                }
            }
        }
    }
}

#[test]
fn lines_wait_to_be_written_until_they_are_taken() {
    let mut client = client();
    assert!(!client.has_outgoing());
    send(&mut client, "no JSON");
    assert!(client.has_outgoing());
    read_lines(&mut client);
    assert!(!client.has_outgoing());
}

#[test]
fn line_that_waits_keeps_no_buffer_alive_that_is_much_larger() {
    let buffer = Bytes::from(vec![b' '; 2 << 20]);
    let is_shared = |line: Bytes| apart(line.clone()).as_ptr() == line.as_ptr();
    assert!(!is_shared(buffer.slice(..100)));
    assert!(!is_shared(buffer.slice(..(1 << 20) - 1)));
    assert!(is_shared(buffer.slice(..1 << 20)), "a large line is not copied");
}
