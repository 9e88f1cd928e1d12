//! A scripted client and a scripted server, and what each of them receives.

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::message::{Kind, Member, Message};
use protocol::method::Method;

/// One act of the client or the server. Numbers choose among what is open at the time; nothing
/// open, nothing done.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Call { what: u8, values: u8, token: bool },
    Cancel(u8),
    Notice(u8),
    Reply { which: u8, good: bool },
    Answer { which: u8, values: u8, kind: u8 },
    Progress { which: u8, values: u8 },
    Log(u8),
    Ask(u8),
    Withdraw(u8),
    Tell(u8),
}

/// How messages get from one to the other.
pub(crate) trait Way {
    fn client_sends(&mut self, text: &str);
    fn server_sends(&mut self, text: &str);
    /// What the client and the server have got since the last time.
    fn received_by_client(&mut self) -> Vec<Bytes>;
    fn received_by_server(&mut self) -> Vec<Bytes>;
}

/// What both received, with ids and tokens in a form that can be compared.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Transcript {
    pub(crate) client: Vec<String>,
    pub(crate) server: Vec<String>,
}

/// What an era's client sends with every request, and which messages the era has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Behaviour {
    meta: &'static str,
    asks_by_requests: bool,
    /// The scenario begins with the handshake.
    greets: bool,
    calls: &'static [&'static str],
    /// What the server tells of its own accord.
    tells: &'static [&'static str],
}

pub(crate) const LEGACY: Behaviour = Behaviour {
    meta: "",
    asks_by_requests: true,
    greets: true,
    tells: &[
        "notifications/tools/list_changed",
        "notifications/resources/updated",
        "odd/notification",
    ],
    calls: &[
        "tools/call",
        "tools/list",
        "prompts/get",
        "resources/read",
        "completion/complete",
        "odd/method",
        "resources/subscribe",
        "resources/unsubscribe",
        "logging/setLevel",
    ],
};

pub(crate) const MODERN: Behaviour = Behaviour {
    meta: r#","io.modelcontextprotocol/protocolVersion":"2026-07-28", "io.modelcontextprotocol/clientCapabilities":{"elicitation":{}, "x":1.0},"io.modelcontextprotocol/logLevel":"debug""#,
    asks_by_requests: false,
    greets: false,
    tells: &[],
    calls: &[
        "tools/call",
        "tools/list",
        "prompts/get",
        "resources/read",
        "completion/complete",
        "odd/method",
        "server/discover",
    ],
};

/// Without what an aggregate answers itself: the handshake, lists and their changes, log levels.
pub(crate) const LEGACY_MEMBER: Behaviour = Behaviour {
    greets: false,
    tells: &["notifications/resources/updated", "odd/notification"],
    calls: &[
        "tools/call",
        "prompts/get",
        "resources/read",
        "completion/complete",
        "odd/method",
        "resources/subscribe",
        "resources/unsubscribe",
    ],
    ..LEGACY
};

/// The same without discovery and lists.
pub(crate) const MODERN_MEMBER: Behaviour = Behaviour {
    calls: &[
        "tools/call",
        "prompts/get",
        "resources/read",
        "completion/complete",
        "odd/method",
    ],
    ..MODERN
};

/// A legacy client's first words.
pub(crate) const HELLO: &str = r#"{"jsonrpc":"2.0", "id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25", "capabilities":{"elicitation":{},"roots":{ },"sampling":{}},"clientInfo":{"name":"c","version":"1"}}}"#;
/// And its second.
pub(crate) const INITIALIZED: &str = r#"{"jsonrpc":"2.0", "method":"notifications/initialized"}"#;
/// What a legacy server answers to the first.
pub(crate) const WELCOME: &str = r#"{"jsonrpc":"2.0","id":ID,"result":{"protocolVersion":"2025-11-25", "capabilities":{ },"serverInfo":{"name":"s","version":"1"} }}"#;

/// Values that a careless bridge would write in another way.
const WORDS: [&str; 6] = [
    "{}",
    r#"{"n": 1.50 , "m":1e3}"#,
    r#"[1 , {"é":"\u00e9","id":7}]"#,
    r#""line\nbreak \/ \"quoted\"""#,
    "12345678901234567890123",
    r#"{"jsonrpc":"1.0","method":"no","progressToken":1,"requestId":1}"#,
];

fn values(number: u8) -> &'static str {
    WORDS[usize::from(number) % WORDS.len()]
}

fn at<T>(list: &[T], number: u8) -> Option<usize> {
    (!list.is_empty()).then(|| usize::from(number) % list.len())
}

#[derive(Debug)]
struct Scenario<'a, W> {
    way: &'a mut W,
    behaviour: Behaviour,
    transcript: Transcript,
    /// The client's open requests, and the server's questions as the client knows them.
    calls: Vec<String>,
    questions: Vec<String>,
    cancelled: Vec<String>,
    /// The client's requests as the server knows them: id and token.
    work: Vec<(String, Option<String>)>,
    /// The server's own open questions.
    asked: Vec<u64>,
    names: [Names; 2],
    next: u64,
    level: usize,
}

/// Ids and tokens of one listener, numbered as they come.
#[derive(Debug, Default)]
struct Names(BTreeMap<Vec<u8>, usize>);

impl Names {
    fn of(&mut self, kind: &str, raw: &[u8]) -> Vec<u8> {
        let next = self.0.len();
        let number = *self.0.entry([kind.as_bytes(), raw].concat()).or_insert(next);
        format!("\"{kind}{number}\"").into_bytes()
    }
}

/// Performs a scenario and returns what was received.
pub(crate) fn perform(way: &mut impl Way, steps: &[Step], behaviour: Behaviour) -> Transcript {
    let mut scenario = Scenario {
        way,
        behaviour,
        transcript: Transcript::default(),
        calls: Vec::new(),
        questions: Vec::new(),
        cancelled: Vec::new(),
        work: Vec::new(),
        asked: Vec::new(),
        names: <[Names; 2]>::default(),
        next: 1,
        level: 0,
    };
    scenario.begin();
    for step in steps {
        scenario.act(step);
        scenario.listen();
    }
    scenario.transcript
}

impl<W: Way> Scenario<'_, W> {
    fn begin(&mut self) {
        if !self.behaviour.greets {
            return;
        }
        self.way.client_sends(HELLO);
        self.listen();
        let (id, _) = self.work.pop().expect("the server was greeted");
        self.way.server_sends(&WELCOME.replace("ID", &id));
        self.listen();
        self.way.client_sends(INITIALIZED);
        self.listen();
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Call {
                what,
                values: value,
                token,
            } => self.call(*what, values(*value), *token),
            Step::Cancel(which) => {
                if let Some(at) = at(&self.calls, *which) {
                    let id = self.calls.remove(at);
                    self.cancelled.push(id.clone());
                    self.way.client_sends(&format!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
                    ));
                }
            }
            Step::Notice(value) if self.behaviour.asks_by_requests => {
                let method = ["notifications/roots/list_changed", "odd/notification"][usize::from(value % 2)];
                let value = values(*value);
                self.way.client_sends(&format!(
                    r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"x": {value}}}}}"#
                ));
            }
            Step::Reply { which, good } => {
                if let Some(at) = at(&self.questions, *which) {
                    let id = self.questions.remove(at);
                    let body = if *good {
                        r#""result":{"action":"accept", "content":{"n":1.50}}"#
                    } else {
                        r#""error":{"code":-1,"message":"no", "data":{"x":1.0}}"#
                    };
                    self.way
                        .client_sends(&format!(r#"{{"jsonrpc":"2.0","id":{id}, {body}}}"#));
                }
            }
            Step::Answer {
                which,
                values: value,
                kind,
            } => self.answer(*which, values(*value), *kind),
            Step::Progress { which, values: value } => {
                let tokens: Vec<String> = self.work.iter().filter_map(|(_, token)| token.clone()).collect();
                if let Some(at) = at(&tokens, *which) {
                    let (token, number, value) = (&tokens[at], self.next, values(*value));
                    self.way.server_sends(&format!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"x":{value}, "progressToken":{token},"progress":{number}}}}}"#
                    ));
                }
            }
            // A modern server logs only for a request, and over stdio it is not known for which of
            // several.
            Step::Log(value) if self.behaviour.asks_by_requests || self.work.len() == 1 => {
                let value = values(*value);
                self.way.server_sends(&format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"error","data": {value}}}}}"#
                ));
            }
            Step::Ask(what) if self.behaviour.asks_by_requests => {
                let method = [
                    "elicitation/create",
                    "sampling/createMessage",
                    "roots/list",
                    "odd/question",
                ][usize::from(what % 4)];
                let (id, value) = (self.number(), values(*what));
                self.asked.push(id);
                self.way.server_sends(&format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"message": {value}}}}}"#
                ));
            }
            Step::Withdraw(which) => {
                if let Some(at) = at(&self.asked, *which) {
                    let id = self.asked.remove(at);
                    self.way.server_sends(&format!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{ "requestId":{id},"reason":"r"}}}}"#
                    ));
                }
            }
            Step::Tell(what) if self.behaviour.asks_by_requests => {
                let tells = self.behaviour.tells;
                let method = tells[usize::from(*what) % tells.len()];
                let value = values(*what);
                self.way.server_sends(&format!(
                    r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"uri":"x:/1","x":{value}}}}}"#
                ));
            }
            Step::Notice(_) | Step::Log(_) | Step::Ask(_) | Step::Tell(_) => {}
        }
    }

    fn call(&mut self, what: u8, value: &str, token: bool) {
        let method = self.behaviour.calls[usize::from(what) % self.behaviour.calls.len()];
        let number = self.number();
        let id = if number.is_multiple_of(2) {
            number.to_string()
        } else {
            format!("\"c{number}\"")
        };
        let own = match method {
            "resources/subscribe" | "resources/unsubscribe" => format!(r#""uri":"x:/{number}","#),
            "logging/setLevel" => {
                let levels = ["warning", "notice", "info", "debug"];
                let Some(level) = levels.get(self.level) else {
                    return;
                };
                self.level += 1;
                format!(r#""level":"{level}","#)
            }
            _ => r#""name":"t", "uri":"x:/y","requestState":"the server's","#.to_owned(),
        };
        let token = if token {
            format!(r#","progressToken":"t{number}""#)
        } else {
            String::new()
        };
        let meta = self.behaviour.meta;
        self.calls.push(id.clone());
        self.way.client_sends(&format!(
            r#"{{"jsonrpc":"2.0","id": {id} ,"method":"{method}","params":{{{own} "arguments": {value},"_meta":{{"x":{value}{token}{meta}}}}}, "z":{value}}}"#
        ));
    }

    fn answer(&mut self, which: u8, value: &str, kind: u8) {
        let Some(at) = at(&self.work, which) else { return };
        let (id, _) = self.work.remove(at);
        let body = match kind % 4 {
            0 => format!(r#""error":{{"code":-32002, "message":"m","data":{value}}}"#),
            1 => format!(
                r#""result":{{"resultType":"input_required","inputRequests":{{"k":{{"method":"roots/list"}}}},"requestState":"s\u0041", "x":{value}}}"#
            ),
            _ => format!(r#""result":{{"resultType":"complete", "structuredContent":{value}, "tools":[]}}"#),
        };
        self.way
            .server_sends(&format!(r#"{{"jsonrpc":"2.0","id": {id},{body}}}"#));
    }

    /// Lets both receive what waits for them, and remember how they may answer it.
    fn listen(&mut self) {
        loop {
            let (server, client) = (self.way.received_by_server(), self.way.received_by_client());
            if server.is_empty() && client.is_empty() {
                return;
            }
            for text in server {
                self.received_by_server(text);
            }
            for text in client {
                self.received_by_client(text);
            }
        }
    }

    fn received_by_server(&mut self, text: Bytes) {
        let message = Message::scan(text).expect("messages are messages");
        let raw = |member| {
            message
                .raw(member)
                .map(|raw| String::from_utf8_lossy(raw).into_owned())
        };
        match message.kind() {
            // Through the bridge it was asked once and for all.
            Kind::Request if message.method() == Method::ServerDiscover => {
                let id = raw(Member::Id).unwrap_or_default();
                return self.way.server_sends(&DISCOVERY.replace("ID", &id));
            }
            Kind::Request => self.work.push((
                raw(Member::Id).unwrap_or_default(),
                raw(Member::MetaProgressToken),
            )),
            Kind::Result | Kind::Error => {
                let id = message.number(Member::Id);
                self.asked.retain(|asked| Some(*asked) != id);
            }
            Kind::Notification => {
                if let Some(cancelled) = raw(Member::RequestId) {
                    self.work.retain(|(id, _)| *id != cancelled);
                }
            }
        }
        let spelled = spell(&mut self.names[0], &message, "c", "s");
        self.transcript.server.push(spelled);
    }

    fn received_by_client(&mut self, text: Bytes) {
        let message = Message::scan(text).expect("messages are messages");
        let raw = |member| {
            message
                .raw(member)
                .map(|raw| String::from_utf8_lossy(raw).into_owned())
        };
        match message.kind() {
            Kind::Request => self.questions.extend(raw(Member::Id)),
            Kind::Result | Kind::Error => {
                let id = raw(Member::Id).unwrap_or_default();
                // A client that cancels ignores the outcome.
                if self.cancelled.contains(&id) {
                    return;
                }
                self.calls.retain(|call| *call != id);
            }
            Kind::Notification => {
                if let Some(withdrawn) = raw(Member::RequestId) {
                    self.questions.retain(|id| *id != withdrawn);
                }
            }
        }
        let spelled = spell(&mut self.names[1], &message, "s", "c");
        self.transcript.client.push(spelled);
    }
}

/// The discovery of a modern server.
pub(crate) const DISCOVERY: &str = r#"{"jsonrpc":"2.0","id":ID,"result":{"resultType":"complete", "supportedVersions":["2026-07-28"],"capabilities":{"x":1.0}}}"#;

/// Returns a message as it is compared: `requester` sends requests to this listener, and `own` gets
/// the answers.
fn spell(names: &mut Names, message: &Message, requester: &str, own: &str) -> String {
    let side = match message.kind() {
        Kind::Request => requester,
        Kind::Result | Kind::Error => own,
        Kind::Notification => requester,
    };
    if message.method() == Method::Cancelled {
        // A modern client hangs up; the words are the bridge's then.
        let id = names.of(side, message.raw(Member::RequestId).unwrap_or_default());
        return format!("cancelled {}", String::from_utf8_lossy(&id));
    }
    let mut edits = Vec::new();
    for (member, kind) in [
        (Member::Id, side),
        (Member::MetaProgressToken, "token"),
        (Member::ProgressToken, "token"),
    ] {
        if let Some(raw) = message.raw(member) {
            edits.push((member, names.of(kind, raw)));
        }
    }
    let edits: Vec<(Member, &[u8])> = edits.iter().map(|(member, name)| (*member, &name[..])).collect();
    String::from_utf8_lossy(&message.spliced(&edits)).into_owned()
}
