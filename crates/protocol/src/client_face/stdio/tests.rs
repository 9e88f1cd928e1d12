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

fn modern_request(id: &str, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{META}}}}}"#)
}

fn say(client: &mut LineClient, line: &str) {
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
                Output::Depart { errand, message, .. } => format!("depart {} {}", errand.0, method(message)),
                Output::Recall(errand) => format!("recall {}", errand.0),
            }
        })
        .collect()
}

/// What the client hears.
fn hears(client: &mut LineClient) -> Vec<serde_json::Value> {
    let lines = client.take_outgoing(BytesMut::new());
    client.take_outgoing(BytesMut::new());
    lines
        .as_ref()
        .split(|byte: &u8| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("only JSON is written"))
        .collect()
}

fn answer(line: &'static str, ending: Ending, request: &str) -> Said {
    Said::Answer {
        line: Written::Whole(Bytes::from_static(line.as_bytes())),
        ending,
        request_bytes: request.len(),
    }
}

fn welcome(client: &mut LineClient) {
    client.handle_said(NOW, Said::Welcome);
    client.handle_said(
        NOW,
        answer(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#, Ending::Result, HELLO),
    );
}

#[test]
fn an_initialize_settles_on_the_legacy_era_and_later_messages_go_to_the_session() {
    let mut client = client();
    say(&mut client, HELLO);
    assert_eq!(wants(&mut client), ["open initialize"]);
    welcome(&mut client);
    say(
        &mut client,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    );
    say(&mut client, LIST);
    say(&mut client, r#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
    assert_eq!(
        wants(&mut client),
        ["take notifications/initialized", "take tools/list", "take answer"]
    );
    assert_eq!(hears(&mut client).len(), 1);
    assert_eq!(client.open_requests(), 1);
    say(&mut client, &modern_request("9", "server/discover"));
    let heard = hears(&mut client);
    assert_eq!(
        (&heard[0]["id"], &heard[0]["error"]["code"]),
        (&9.into(), &(-32601).into())
    );
    assert!(wants(&mut client).is_empty());
}

#[test]
fn what_comes_before_the_welcome_waits_for_it_but_a_ping_does_not() {
    let mut client = client();
    say(&mut client, HELLO);
    say(&mut client, LIST);
    say(&mut client, r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    assert_eq!(wants(&mut client), ["open initialize"]);
    assert_eq!(hears(&mut client)[0]["id"], "p");
    welcome(&mut client);
    assert_eq!(wants(&mut client), ["take tools/list"]);
    client.handle_said(
        NOW,
        answer(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, Ending::Result, LIST),
    );
    assert_eq!((client.open_requests(), client.load.bytes), (0, 0));
}

#[test]
fn opening_request_that_the_session_refuses_settles_nothing() {
    let mut client = client();
    say(&mut client, LIST);
    assert_eq!(wants(&mut client), ["open tools/list"]);
    let refusal = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no"}}"#);
    client.handle_settled(NOW, LIST.len(), &refusal);
    assert_eq!(hears(&mut client)[0]["error"]["message"], "no");
    say(&mut client, LIST);
    assert_eq!(wants(&mut client), ["close", "open tools/list"]);
}

#[test]
fn a_handshake_that_fails_settles_nothing() {
    let refusal = r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32000,"message":"no"}}"#;
    let mut client = client();
    say(&mut client, HELLO);
    client.handle_said(NOW, answer(refusal, Ending::Error, HELLO));
    assert_eq!(hears(&mut client)[0]["error"]["code"], -32000);
    assert_eq!(wants(&mut client), ["open initialize", "close"]);
    say(&mut client, &modern_request("1", "tools/list"));
    assert_eq!(wants(&mut client), ["depart 1 tools/list"]);

    let mut client = self::client();
    say(&mut client, HELLO);
    client.handle_not_opened(NOW, -32603, "all in use", None);
    assert_eq!(hears(&mut client)[0]["id"], 0);
    say(&mut client, HELLO);
    assert_eq!(
        wants(&mut client),
        ["open initialize", "close", "open initialize"]
    );
}

#[test]
fn a_request_without_a_handshake_opens_a_session_by_itself() {
    let mut client = client();
    say(&mut client, r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    assert_eq!(hears(&mut client).len(), 1, "a ping opens nothing");
    say(&mut client, LIST);
    assert_eq!(wants(&mut client), ["open tools/list"]);
    client.handle_said(NOW, Said::Welcome);
    say(&mut client, LIST);
    assert_eq!(wants(&mut client), ["take tools/list"]);
}

#[test]
fn discovery_settles_nothing_and_another_modern_request_does() {
    let mut client = client();
    say(&mut client, &modern_request("\"d\"", "server/discover"));
    say(&mut client, HELLO);
    assert_eq!(
        wants(&mut client),
        ["depart 1 server/discover", "open initialize"]
    );

    let mut client = self::client();
    say(&mut client, &modern_request("1", "tools/list"));
    say(&mut client, HELLO);
    let heard = hears(&mut client);
    assert_eq!(heard[0]["error"]["code"], -32022);
    assert_eq!(
        heard[0]["error"]["data"]["supported"],
        serde_json::json!(["2026-07-28"])
    );
    say(&mut client, LIST);
    assert_eq!(
        hears(&mut client)[0]["error"]["code"],
        -32602,
        "it does not describe itself"
    );
    say(&mut client, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    assert_eq!(wants(&mut client), ["depart 1 tools/list"]);
    assert!(hears(&mut client).is_empty());
}

#[test]
fn a_probe_is_answered_in_time_or_at_once_if_the_server_is_known_to_be_away() {
    let probe = modern_request("\"d\"", "server/discover");
    for away in [true, false] {
        let mut client = client();
        say(&mut client, &probe);
        let late = NOW.after(Duration::from_secs(8));
        assert_eq!(client.next_deadline(), Some(late));
        match away {
            true => client.handle_absence(),
            false => client.handle_deadline(late),
        }
        assert_eq!(
            wants(&mut client),
            ["depart 1 server/discover", "recall 1"],
            "{away}"
        );
        let heard = hears(&mut client);
        assert_eq!(
            (&heard[0]["id"], &heard[0]["error"]["code"]),
            (&"d".into(), &(-32601).into())
        );
        client.handle_answer(ErrandKey(1), &Bytes::from_static(b"{}"));
        assert!(
            hears(&mut client).is_empty(),
            "a late verdict is nobody's business"
        );
        assert_eq!(client.next_deadline(), None);
    }
    let mut client = client();
    say(&mut client, &probe);
    client.handle_failure(ErrandKey(1), &Bytes::from_static(b"{}"));
    assert_eq!(hears(&mut client)[0]["error"]["code"], -32601);
}

#[test]
fn equal_ids_are_both_answered_and_a_cancellation_recalls_the_newest() {
    let mut client = client();
    for _ in 0..3 {
        say(&mut client, &modern_request("1", "tools/call"));
    }
    wants(&mut client);
    say(
        &mut client,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
    );
    assert_eq!(wants(&mut client), ["recall 3"]);
    let line = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    for errand in [3, 2, 1] {
        client.handle_event(ErrandKey(errand), &line);
        client.handle_answer(ErrandKey(errand), &line);
    }
    assert_eq!(
        hears(&mut client).len(),
        4,
        "the one that was cancelled is silent"
    );
    assert_eq!((client.open_requests(), client.load.bytes), (0, 0));
}

#[test]
fn a_cancelled_call_of_a_session_gets_no_answer() {
    let mut client = client();
    say(&mut client, HELLO);
    welcome(&mut client);
    say(&mut client, LIST);
    hears(&mut client);
    client.handle_said(NOW, answer("{}", Ending::Failed(Failure::Cancelled), LIST));
    assert!(hears(&mut client).is_empty());
    assert_eq!(client.open_requests(), 0);
}

#[test]
fn a_listen_that_ends_is_answered_before_it_is_called_off() {
    let mut client = client();
    say(&mut client, &modern_request("\"l\"", "subscriptions/listen"));
    client.handle_answer(
        ErrandKey(1),
        &Bytes::from_static(br#"{"jsonrpc":"2.0","id":"l","result":{}}"#),
    );
    let heard = hears(&mut client);
    assert_eq!(heard[0]["id"], "l");
    assert_eq!(
        (&heard[1]["method"], &heard[1]["params"]["requestId"]),
        (&"notifications/cancelled".into(), &"l".into())
    );
    say(&mut client, &modern_request("\"m\"", "subscriptions/listen"));
    client.handle_answer(
        ErrandKey(2),
        &Bytes::from_static(br#"{"jsonrpc":"2.0","id":"m","error":{"code":-32603,"message":"x"}}"#),
    );
    assert_eq!(hears(&mut client).len(), 1);
}

#[test]
fn what_is_no_message_is_answered_with_its_id_where_there_is_one() {
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
        say(&mut client, line);
        let heard = hears(&mut client);
        assert_eq!(
            (&heard[0]["error"]["code"], &heard[0]["id"]),
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
    say(&mut client, HELLO);
    welcome(&mut client);
    hears(&mut client);
    wants(&mut client);
    client.handle_frame(NOW, long(Some(b"4"), true));
    let heard = hears(&mut client);
    assert_eq!(
        (&heard[0]["id"], &heard[0]["error"]["code"]),
        (&4.into(), &(-32600).into())
    );
    client.handle_frame(NOW, long(None, true));
    assert!(hears(&mut client).is_empty());
    client.handle_frame(NOW, long(Some(b"3"), false));
    assert_eq!(
        wants(&mut client),
        ["take answer"],
        "the server that asked is told"
    );
}

#[test]
fn lines_are_wanted_only_while_there_is_room() {
    let mut client = client();
    say(&mut client, HELLO);
    welcome(&mut client);
    for _ in 0..4 {
        assert!(client.wants_lines());
        say(&mut client, LIST);
    }
    assert!(!client.wants_lines());
    client.handle_said(NOW, answer("{}", Ending::Result, LIST));
    assert!(client.wants_lines());
    assert_eq!(client.counters().stalls, 1);

    let mut client = self::client();
    say(&mut client, HELLO);
    welcome(&mut client);
    let large = Bytes::from(format!("{{{}}}", " ".repeat(5000)));
    client.handle_said(NOW, Said::Notice(large.clone()));
    assert!(!client.wants_lines(), "the client does not read");
    client.handle_said(NOW, Said::Notice(large.clone()));
    client.handle_said(NOW, Said::Question(Bytes::from_static(b"{}")));
    assert_eq!(client.counters().dropped, 1);
    assert_eq!(
        hears(&mut client).len(),
        3,
        "an answer and a question are never dropped"
    );
    assert!(client.wants_lines());
}

#[test]
fn after_the_end_everything_is_called_off_and_nothing_more_is_said() {
    let mut client = client();
    say(&mut client, &modern_request("1", "tools/call"));
    wants(&mut client);
    client.handle_end();
    client.handle_end();
    assert_eq!(wants(&mut client), ["recall 1"]);
    assert!(!client.wants_lines());

    let mut client = self::client();
    say(&mut client, HELLO);
    welcome(&mut client);
    wants(&mut client);
    client.handle_end();
    client.handle_said(NOW, Said::Notice(Bytes::from_static(b"{}")));
    assert_eq!(wants(&mut client), ["close"]);
    assert_eq!(hears(&mut client).len(), 1, "what was there is still written");
}

/// A client that says anything, and a gateway that answers whenever it likes.
mod anything {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Say(Phrase),
        /// Cancels the request that was said this many requests ago.
        Cancel(usize),
        /// Settles one of the orders that are open.
        Settle(usize, Outcome),
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
        Nonsense,
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
            Phrase::Nonsense,
        ]);
        let outcome = prop::sample::select(vec![Outcome::Good, Outcome::Good, Outcome::Bad]);
        prop_oneof![
            5 => phrase.prop_map(Step::Say),
            1 => (0..4_usize).prop_map(Step::Cancel),
            5 => (0..8_usize, outcome).prop_map(|(at, outcome)| Step::Settle(at, outcome)),
            1 => Just(Step::Absence),
            1 => Just(Step::Deadline),
        ]
    }

    /// The gateway's side: what it was told to do and has not done.
    struct World {
        client: LineClient,
        orders: Vec<Output>,
        asked: Vec<u64>,
        cancelled: Vec<u64>,
        answered: Vec<u64>,
        next: u64,
    }

    impl World {
        fn say(&mut self, phrase: Phrase) {
            let id = self.next;
            let line = match phrase {
                Phrase::Hello => HELLO.replace(r#""id":0"#, &format!(r#""id":{id}"#)),
                Phrase::List => LIST.replace(r#""id":1"#, &format!(r#""id":{id}"#)),
                Phrase::Ping => format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#),
                Phrase::Discover => modern_request(&id.to_string(), "server/discover"),
                Phrase::ModernList => modern_request(&id.to_string(), "tools/list"),
                Phrase::Listen => modern_request(&id.to_string(), "subscriptions/listen"),
                Phrase::Note => {
                    return say(
                        &mut self.client,
                        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
                    );
                }
                Phrase::Nonsense => return say(&mut self.client, "nonsense"),
            };
            self.next += 1;
            self.asked.push(id);
            say(&mut self.client, &line);
        }

        fn cancel(&mut self, ago: usize) {
            let Some(id) = self.asked.iter().rev().nth(ago).copied() else {
                return;
            };
            self.cancelled.push(id);
            say(
                &mut self.client,
                &format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
                ),
            );
        }

        fn settle(&mut self, at: usize, outcome: Outcome) {
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
            let said = |message: &Message, ending| Said::Answer {
                line: Written::Whole(line(message)),
                ending,
                request_bytes: message.len(),
            };
            match (self.orders.remove(at), outcome) {
                (Output::Open(message), Outcome::Good) => {
                    self.client.handle_said(NOW, Said::Welcome);
                    self.client.handle_said(NOW, said(&message, Ending::Result));
                }
                (Output::Open(message), Outcome::Bad) => {
                    self.client
                        .handle_said(NOW, said(&message, Ending::Failed(Failure::NotWelcomed)));
                }
                (Output::Take(message), _) if message.kind() == Kind::Request => {
                    self.client.handle_said(NOW, said(&message, Ending::Result));
                }
                (Output::Take(_) | Output::Close | Output::Recall(_), _) => {}
                (Output::Depart { errand, message, .. }, Outcome::Good) => {
                    self.client.handle_answer(errand, &line(&message));
                }
                (Output::Depart { errand, message, .. }, Outcome::Bad) => {
                    self.client.handle_failure(errand, &line(&message));
                }
            }
        }

        /// Carries on what is said, and forgets what was recalled.
        fn look(&mut self) {
            while let Some(output) = self.client.poll_output() {
                if let Output::Recall(recalled) = &output {
                    self.orders.retain(
                        |order| !matches!(order, Output::Depart { errand, .. } if errand == recalled),
                    );
                }
                self.orders.push(output);
            }
            for line in hears(&mut self.client) {
                if line.get("method").is_none() {
                    self.answered.extend(line["id"].as_u64());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_request_is_answered_once_unless_it_was_cancelled(steps in prop::collection::vec(step(), 0..60)) {
            let mut world = World {
                client: LineClient::new(Limits { messages: 1000, bytes: 1 << 20, line: 1 << 16, probe: Duration::from_secs(8) }),
                orders: Vec::new(),
                asked: Vec::new(),
                cancelled: Vec::new(),
                answered: Vec::new(),
                next: 1,
            };
            for step in steps {
                match step {
                    Step::Say(phrase) => world.say(phrase),
                    Step::Cancel(ago) => world.cancel(ago),
                    Step::Settle(at, outcome) => world.settle(at, outcome),
                    Step::Absence => world.client.handle_absence(),
                    Step::Deadline => world.client.handle_deadline(NOW.after(Duration::from_secs(9))),
                }
                world.look();
            }
            while !world.orders.is_empty() {
                world.settle(0, Outcome::Good);
                world.look();
            }
            prop_assert_eq!((world.client.load.messages, world.client.load.bytes), (0, 0));
            for id in &world.asked {
                let times = world.answered.iter().filter(|answered| *answered == id).count();
                if world.cancelled.contains(id) {
                    prop_assert!(times <= 1, "{} was answered {} times", id, times);
                } else {
                    prop_assert_eq!(times, 1, "{}", id);
                }
            }
        }
    }
}
