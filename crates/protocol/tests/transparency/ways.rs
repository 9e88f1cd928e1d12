//! The ways between client and server: none at all, a session, or modern requests, with a
//! multiplexer behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::aggregate::{
    Catalogue, Conversation, ConversationOutput, MemberSpec, NoCursors, Offer, Plan, PlanSpec, ToolsMode,
    View,
};
use protocol::backend_face::legacy::ClientHello;
use protocol::client_face::modern;
use protocol::exchange::{Ask, CallKey, Client, Principal, SessionKey, Tell};
use protocol::message::{Kind, Member, Message};
use protocol::modern_request::{self, ModernRequest};
use protocol::multiplexer::{self, Limits, Multiplexer};
use protocol::negotiation::EraPlan;
use protocol::session::{self, Accepted, Accepts, Reader, Session};
use protocol::time::Moment;
use protocol::version::Era;

use crate::scenario::{DISCOVERY, HELLO, INITIALIZED, WELCOME, Way};

fn message(text: &str) -> Message {
    Message::scan(Bytes::copy_from_slice(text.as_bytes())).expect("the scenario is written well")
}

/// The data of events.
fn events(bytes: &[u8]) -> impl Iterator<Item = Bytes> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let data: Vec<Bytes> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|data| !data.is_empty())
        .map(|data| Bytes::copy_from_slice(data.as_bytes()))
        .collect();
    data.into_iter()
}

/// Face to face.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    client: Vec<Bytes>,
    server: Vec<Bytes>,
}

impl Way for Direct {
    fn client_sends(&mut self, text: &str) {
        self.server.push(Bytes::copy_from_slice(text.as_bytes()));
    }

    fn server_sends(&mut self, text: &str) {
        self.client.push(Bytes::copy_from_slice(text.as_bytes()));
    }

    fn received_by_client(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.client)
    }

    fn received_by_server(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.server)
    }
}

/// The only member of the aggregate.
const MEMBER: &str = "m";
/// A state of the server's as the scenario writes it, and as the member of an aggregate shows it.
const STATES: [(&str, &str); 2] = [
    (
        r#""requestState":"the server's""#,
        r#""requestState":"m:the server's""#,
    ),
    (r#""requestState":"s\u0041""#, r#""requestState":"m:sA""#),
];
/// Requests that may bring such a state along.
const WITH_STATES: [&str; 3] = [
    r#""method":"tools/call""#,
    r#""method":"prompts/get""#,
    r#""method":"resources/read""#,
];

/// The server's end of either way through.
#[derive(Debug)]
struct Behind {
    backend: Multiplexer,
    now: Moment,
    between: Option<Between>,
}

/// An aggregate whose only member is the server.
#[derive(Debug)]
struct Between {
    view: Arc<View>,
    conversations: BTreeMap<SessionKey, Conversation>,
    tells: Vec<Tell>,
}

impl Between {
    /// What the member offers is known, as it is after its first reading.
    fn new(era: Era) -> Self {
        let plan = PlanSpec {
            name: "all".into(),
            version: "1".into(),
            members: vec![MemberSpec {
                name: MEMBER.into(),
                prefix: Some(String::new()),
                ..MemberSpec::default()
            }],
            ..PlanSpec::default()
        };
        let mut catalogue = Catalogue::new(Arc::new(Plan::new(plan).expect("one member can be served")));
        let declared = match era {
            Era::Legacy => WELCOME,
            Era::Modern => DISCOVERY,
        };
        let declared = message(&declared.replace("ID", "0"));
        let declared = String::from_utf8_lossy(declared.raw(Member::Result).unwrap_or_default()).into_owned();
        let list = r#"{"items":[],"ttl":0,"public":false,"withheld":null}"#;
        let offer = format!(
            r#"{{"format":1,"era":"{}","server":{declared},"tools":{list},"prompts":{list},"resources":{list},"resourceTemplates":{list}}}"#,
            era.as_str()
        );
        let offer = Offer::from_json(&offer).expect("an offer as it is stored");
        catalogue.handle_offer(Moment::START, MEMBER, Arc::new(offer));
        Self {
            view: Arc::clone(catalogue.view()),
            conversations: BTreeMap::new(),
            tells: Vec::new(),
        }
    }

    /// Carries out what a conversation orders.
    fn serve(&mut self, session: SessionKey, now: Moment, backend: &mut Multiplexer) {
        let Some(conversation) = self.conversations.get_mut(&session) else {
            return;
        };
        while let Some(output) = conversation.poll_output() {
            match output {
                ConversationOutput::Tell(tell) => self.tells.push(tell),
                ConversationOutput::Ask { ask, .. } => backend.handle_ask(now, ask),
                ConversationOutput::Read(_) | ConversationOutput::Routed(_) => {}
            }
        }
    }
}

impl Behind {
    fn new(era: Era) -> Self {
        // No call of the scenario is ever late.
        let forever = Duration::from_secs(1 << 30);
        let limits = Limits {
            request_timeout: forever,
            stream_timeout: forever,
            stream_after: forever,
            ..Limits::default()
        };
        let mut backend = Multiplexer::new(limits, ClientHello::Verbatim);
        backend.plan_eras(EraPlan::Only(era));
        backend.handle_link_up(Moment::START);
        Self {
            backend,
            now: Moment::START,
            between: None,
        }
    }

    fn in_an_aggregate(era: Era) -> Self {
        Self {
            between: Some(Between::new(era)),
            ..Self::new(era)
        }
    }

    fn ask(&mut self, ask: Ask) {
        let Some(between) = &mut self.between else {
            return self.backend.handle_ask(self.now, ask);
        };
        let session = ask.session();
        let view = &between.view;
        let conversation = between
            .conversations
            .entry(session)
            .or_insert_with(|| Conversation::new(Arc::clone(view), ToolsMode::All, Arc::new(NoCursors)));
        conversation.handle_ask(self.now, ask);
        between.serve(session, self.now, &mut self.backend);
    }

    /// Returns what there is for clients.
    fn tells(&mut self) -> Vec<Tell> {
        let mut tells = Vec::new();
        while let Some(output) = self.backend.poll_output() {
            let multiplexer::Output::Tell(tell) = output else {
                continue;
            };
            let Some(between) = &mut self.between else {
                tells.push(tell);
                continue;
            };
            let session = tell.session();
            if let Some(conversation) = between.conversations.get_mut(&session) {
                conversation.handle_tell(MEMBER, tell);
            }
            between.serve(session, self.now, &mut self.backend);
        }
        tells.extend(
            self.between
                .iter_mut()
                .flat_map(|between| std::mem::take(&mut between.tells)),
        );
        tells
    }

    /// Returns a client's message as it has to write it: a state names its member.
    fn as_shown(&self, text: &str) -> String {
        let is_marked = self.between.is_some() && WITH_STATES.iter().any(|method| text.contains(method));
        let states = STATES.iter().filter(|_| is_marked);
        states.fold(text.to_owned(), |text, (own, shown)| text.replace(own, shown))
    }

    /// Returns a message to the client as the server wrote it.
    fn as_written(&self, text: &Bytes) -> Bytes {
        if self.between.is_none() {
            return text.clone();
        }
        let text = String::from_utf8_lossy(text).into_owned();
        let written = STATES.iter();
        Bytes::from(written.fold(text, |text, (own, shown)| text.replace(shown, own)))
    }

    fn send(&mut self, text: &str) {
        self.backend
            .handle_line(self.now, Bytes::copy_from_slice(text.as_bytes()));
    }

    fn received(&mut self) -> Vec<Bytes> {
        let written = self.backend.take_outgoing(BytesMut::new());
        self.backend.handle_written();
        let lines = written[..]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        lines.map(Bytes::copy_from_slice).collect()
    }
}

/// A legacy client's way: a session that it reads every stream of.
#[derive(Debug)]
pub(crate) struct ThroughSession {
    behind: Behind,
    session: Option<Session>,
    waiting: Vec<CallKey>,
    reading: Vec<Reader>,
    client: Vec<Bytes>,
}

impl Default for ThroughSession {
    fn default() -> Self {
        Self::to(Behind::new(Era::Legacy))
    }
}

impl ThroughSession {
    fn to(behind: Behind) -> Self {
        Self {
            behind,
            session: None,
            waiting: Vec::new(),
            reading: Vec::new(),
            client: Vec::new(),
        }
    }

    /// A session of an aggregate, which has called its only member once: members are opened by the
    /// first call.
    pub(crate) fn in_an_aggregate() -> Self {
        let mut way = Self::to(Behind::in_an_aggregate(Era::Legacy));
        way.client_sends(HELLO);
        way.client_sends(INITIALIZED);
        assert_eq!(way.client.len(), 1, "Rialto answers the handshake");
        way.client_sends(r#"{"jsonrpc":"2.0","id":"first","method":"odd/method"}"#);
        way.answer_once(|id| WELCOME.replace("ID", id));
        let greeted = way.behind.received();
        let call = greeted.last().cloned().and_then(|line| Message::scan(line).ok());
        let call = call
            .and_then(|call| call.number(Member::Id))
            .expect("the call came last");
        way.server_sends(&format!(r#"{{"jsonrpc":"2.0","id":{call},"result":{{}}}}"#));
        assert_eq!(way.client.len(), 2, "{:?}", way.client);
        way.client.clear();
        way
    }

    /// Has the server answer the only request that it has received.
    fn answer_once(&mut self, answer: impl Fn(&str) -> String) {
        let received = self.behind.received().pop();
        let request = received.and_then(|line| Message::scan(line).ok());
        let id = request.and_then(|request| request.number(Member::Id));
        let id = id.expect("the server was sent a request").to_string();
        self.server_sends(&answer(&id));
    }

    fn run_until_idle(&mut self) {
        let now = self.behind.now;
        let Some(session) = &mut self.session else { return };
        loop {
            let mut quiet = true;
            for tell in self.behind.tells() {
                quiet = false;
                session.handle_tell(now, tell);
            }
            while let Some(output) = session.poll_output() {
                quiet = false;
                if let session::Output::Ask(ask) = output {
                    self.behind.ask(*ask);
                }
            }
            for call in std::mem::take(&mut self.waiting) {
                match session.poll_answer(call) {
                    session::Answer::Waiting => self.waiting.push(call),
                    session::Answer::Complete { body, .. } => self.client.push(body.into_bytes()),
                    session::Answer::Stream(reader) => self.reading.push(reader),
                }
            }
            for reader in std::mem::take(&mut self.reading) {
                let mut out = BytesMut::new();
                match session.read(now, reader, &mut out) {
                    session::Reading::Ended => session.handle_disconnect(now, reader),
                    _ => self.reading.push(reader),
                }
                self.client.extend(events(&out));
            }
            if quiet {
                return;
            }
        }
    }
}

impl Way for ThroughSession {
    fn client_sends(&mut self, text: &str) {
        let (now, message) = (self.behind.now, message(&self.behind.as_shown(text)));
        let taken = match &mut self.session {
            Some(session) => session
                .handle_message(now, message, Accepts::Both)
                .expect("a good message"),
            None => {
                let declared = message.raw_copy(Member::Capabilities);
                let client = Arc::new(Client::declaring(Principal::anonymous(), declared, None));
                let limits = session::Limits::default();
                let (session, call, ask) =
                    Session::open(SessionKey(1), client, limits, now, message, Accepts::Both);
                self.session = Some(session);
                Accepted::Call { call, ask }
            }
        };
        match taken {
            Accepted::Noted(ask) => ask.into_iter().for_each(|ask| self.behind.ask(ask)),
            Accepted::Call { call, ask } => {
                self.waiting.push(call);
                self.behind.ask(ask);
            }
            Accepted::Answered(body) => self.client.push(body),
        }
        self.run_until_idle();
        // As soon as it may, the client listens.
        if let Some(session) = &mut self.session
            && session.is_opened()
            && session.listening_streams() == 0
            && let Ok(reader) = session.listen(now)
        {
            self.reading.push(reader);
        }
        self.run_until_idle();
    }

    fn server_sends(&mut self, text: &str) {
        self.behind.send(text);
        self.run_until_idle();
    }

    fn received_by_client(&mut self) -> Vec<Bytes> {
        let received = std::mem::take(&mut self.client);
        received.iter().map(|text| self.behind.as_written(text)).collect()
    }

    fn received_by_server(&mut self) -> Vec<Bytes> {
        self.behind.received()
    }
}

/// A modern client's way: a modern request for each request.
#[derive(Debug)]
pub(crate) struct ThroughModernRequests {
    behind: Behind,
    modern_requests: BTreeMap<SessionKey, (String, ModernRequest)>,
    next_key: u64,
    client: Vec<Bytes>,
}

impl Default for ThroughModernRequests {
    fn default() -> Self {
        Self::to(Behind::new(Era::Modern))
    }
}

impl ThroughModernRequests {
    fn to(behind: Behind) -> Self {
        Self {
            behind,
            modern_requests: BTreeMap::new(),
            next_key: 1,
            client: Vec::new(),
        }
    }

    pub(crate) fn in_an_aggregate() -> Self {
        Self::to(Behind::in_an_aggregate(Era::Modern))
    }

    fn run_until_idle(&mut self) {
        let now = self.behind.now;
        loop {
            let mut asks: Vec<Ask> = Vec::new();
            let mut quiet = true;
            for tell in self.behind.tells() {
                quiet = false;
                if let Some((_, modern_request)) = self.modern_requests.get_mut(&tell.session()) {
                    modern_request.handle_tell(now, tell);
                }
            }
            for (_, modern_request) in self.modern_requests.values_mut() {
                while let Some(output) = modern_request.poll_output() {
                    quiet = false;
                    if let modern_request::Output::Ask(ask) = output {
                        asks.push(ask);
                    }
                }
                if modern_request.is_over() {
                    continue;
                }
                match modern_request.poll_answer(now) {
                    modern_request::Answer::Waiting => {}
                    modern_request::Answer::Complete { body, .. } => self.client.push(body),
                    modern_request::Answer::Ask { .. } => panic!("a modern server's question is an answer"),
                    modern_request::Answer::Stream => {
                        let mut out = BytesMut::new();
                        modern_request.read(now, &mut out);
                        self.client.extend(events(&out));
                    }
                }
            }
            for ask in asks {
                self.behind.ask(ask);
            }
            if quiet {
                return;
            }
        }
    }
}

impl Way for ThroughModernRequests {
    fn client_sends(&mut self, text: &str) {
        let message = message(&self.behind.as_shown(text));
        if message.kind() == Kind::Notification {
            let id = String::from_utf8_lossy(message.raw(Member::RequestId).unwrap_or_default()).into_owned();
            if let Some((_, modern_request)) = self.modern_requests.values_mut().find(|(own, _)| *own == id) {
                modern_request.handle_disconnect();
            }
            self.run_until_idle();
            return;
        }
        modern::check_envelope(&message).expect("the scenario is written well");
        let classified = modern::lift(&message).expect("the scenario is written well");
        let id = String::from_utf8_lossy(message.raw(Member::Id).unwrap_or_default()).into_owned();
        let key = SessionKey(self.next_key);
        self.next_key += 1;
        let client = Arc::new(modern::client(&message, Principal::anonymous()));
        let (modern_request, asks) =
            ModernRequest::new(key, client, self.behind.now, message, classified, Accepts::Both);
        self.modern_requests.insert(key, (id, modern_request));
        for ask in asks {
            self.behind.ask(ask);
        }
        self.run_until_idle();
        // The first request to a server is the discovery, in the bridge's own name.
        if !self.behind.backend.is_ready() {
            let asked = self
                .behind
                .received()
                .pop()
                .and_then(|line| Message::scan(line).ok());
            let id = asked
                .and_then(|asked| asked.number(Member::Id))
                .expect("the server is sent a discovery");
            self.behind.send(&DISCOVERY.replace("ID", &id.to_string()));
            self.run_until_idle();
        }
    }

    fn server_sends(&mut self, text: &str) {
        self.behind.send(text);
        self.run_until_idle();
    }

    fn received_by_client(&mut self) -> Vec<Bytes> {
        let received = std::mem::take(&mut self.client);
        received.iter().map(|text| self.behind.as_written(text)).collect()
    }

    fn received_by_server(&mut self) -> Vec<Bytes> {
        self.behind.received()
    }
}
