//! The fixture: real sessions and a real multiplexer, wired as the gateway wires them, with
//! mailboxes at both ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::backend_face::legacy::ClientHello;
use protocol::exchange::{BackendError, CallKey, Client, Principal, SessionKey, SessionState};
use protocol::message::{Member, Message};
use protocol::method::Method;
use protocol::multiplexer::{self, Multiplexer};
use protocol::negotiation::EraPlan;
use protocol::session::replay::StreamKey;
use protocol::session::{self, Accepted, Accepts, Answer, Hello, Reader, Reading, Restored, Session};
use protocol::time::Moment;
use protocol::version::{Era, Version};
use protocol::wire::line::Unfinished;
use serde_json::{Value, json};

use crate::modern_requests::Trip;

/// Something a client got.
#[derive(Debug, PartialEq)]
pub(crate) enum Received {
    /// A whole answer, not a stream.
    Json(Value),
    Event(String, Value),
    Priming(String),
    Comment(String),
    End,
    Refused(String),
}

impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(value) => write!(f, "{value}"),
            Self::Event(id, value) => write!(f, "event {id} {value}"),
            Self::Priming(id) => write!(f, "priming {id}"),
            Self::Comment(text) => write!(f, "comment {text}"),
            Self::End => write!(f, "end"),
            Self::Refused(why) => write!(f, "refused {why}"),
        }
    }
}

#[derive(Debug)]
enum Connection {
    Waiting(CallKey),
    Reading(Reader),
}

impl Connection {
    fn stream(&self) -> StreamKey {
        match self {
            Self::Waiting(call) => StreamKey(call.0),
            Self::Reading(reader) => reader.stream,
        }
    }
}

/// The settings of a client, before it sends anything.
#[derive(Debug, Clone)]
pub(crate) struct Character {
    pub(crate) version: String,
    pub(crate) principal: String,
    pub(crate) capabilities: Value,
    pub(crate) accepts: Accepts,
    pub(crate) implicit: bool,
    pub(crate) era: Era,
}

impl Default for Character {
    fn default() -> Self {
        Self {
            version: Version::NEWEST_LEGACY.as_str().into(),
            principal: "anonymous".into(),
            capabilities: json!({}),
            accepts: Accepts::Both,
            implicit: false,
            era: Era::Legacy,
        }
    }
}

/// What is written down of a session, so that it can go on after the gateway was restarted.
#[derive(Debug)]
struct Record {
    hello: Hello,
    state: SessionState,
    epoch: u64,
}

#[derive(Debug)]
struct Player {
    character: Character,
    session: Option<Session>,
    record: Option<Record>,
    connections: BTreeMap<String, Connection>,
}

#[derive(Debug)]
pub(crate) struct Fixture {
    plan: EraPlan,
    client_hello: ClientHello,
    pub(crate) now: Moment,
    pub(crate) backend: Multiplexer,
    pub(crate) session_limits: session::Limits,
    pub(crate) link_wanted: bool,
    pub(crate) replacement_wanted: Option<&'static str>,
    pub(crate) server_reads: bool,
    players: BTreeMap<String, Player>,
    keys: BTreeMap<SessionKey, String>,
    next_key: u64,
    /// What modern clients have under way, and the states they were given: which modern request,
    /// which round.
    pub(crate) trips: BTreeMap<SessionKey, Trip>,
    pub(crate) sealed: BTreeMap<String, (SessionKey, u32)>,
    pub(crate) server_mail: VecDeque<Value>,
    pub(crate) client_mail: BTreeMap<(String, String), VecDeque<Received>>,
}

impl Fixture {
    pub(crate) fn new(
        limits: multiplexer::Limits,
        session_limits: session::Limits,
        client_hello: ClientHello,
        era: Era,
    ) -> Self {
        let mut backend = Multiplexer::new(limits, client_hello);
        let plan = EraPlan::Only(era);
        backend.plan_eras(plan);
        assert_eq!(backend.era(), era, "the era that is tried first");
        Self {
            plan,
            client_hello,
            now: Moment::START,
            backend,
            session_limits,
            link_wanted: false,
            replacement_wanted: None,
            server_reads: true,
            players: BTreeMap::new(),
            keys: BTreeMap::new(),
            next_key: 1,
            trips: BTreeMap::new(),
            sealed: BTreeMap::new(),
            server_mail: VecDeque::new(),
            client_mail: BTreeMap::new(),
        }
    }

    pub(crate) fn enter(&mut self, name: &str, character: Character) {
        self.players.insert(
            name.into(),
            Player {
                character,
                session: None,
                record: None,
                connections: BTreeMap::new(),
            },
        );
    }

    fn player(&mut self, name: &str) -> &mut Player {
        self.players.entry(name.into()).or_insert_with(|| Player {
            character: Character::default(),
            session: None,
            record: None,
            connections: BTreeMap::new(),
        })
    }

    pub(crate) fn character(&mut self, name: &str) -> Character {
        self.player(name).character.clone()
    }

    pub(crate) fn new_key(&mut self) -> SessionKey {
        self.next_key += 1;
        SessionKey(self.next_key - 1)
    }

    pub(crate) fn receive(&mut self, name: &str, label: &str, received: Received) {
        self.client_mail
            .entry((name.into(), label.into()))
            .or_default()
            .push_back(received);
    }

    /// A client POSTs a message.
    pub(crate) fn post(&mut self, name: &str, label: &str, sent: &Value) -> Result<(), String> {
        if self.character(name).era == Era::Modern {
            return self.post_modern(name, label, sent);
        }
        self.restore(name);
        let message = Message::scan(Bytes::from(sent.to_string())).map_err(|error| error.to_string())?;
        let now = self.now;
        let limits = self.session_limits.clone();
        let key = SessionKey(self.next_key);
        let player = self.player(name);
        let accepts = player.character.accepts;
        let declared = Bytes::from(player.character.capabilities.to_string());
        let client = Arc::new(Client::declaring(
            Principal::named(&player.character.principal),
            Some(declared),
            message.raw_copy(Member::ClientInfo),
        ));
        let mut asks = Vec::new();
        let taken = match &mut player.session {
            None if message.method() == Method::Initialize => {
                let hello = Hello::Initialize(message.clone());
                let (mut session, call, ask) = Session::open(key, client, limits, now, message, accepts);
                session.keep_state();
                player.session = Some(session);
                player.record = Some(Record::of(hello));
                Ok(Accepted::Call { call, ask })
            }
            None if player.character.implicit => {
                let version = Version::parse(&player.character.version).unwrap_or(Version::ASSUMED);
                let (mut session, ask) = Session::open_implicit(key, client, limits, now, version);
                asks.push(ask);
                let taken = session.handle_message(now, message, accepts);
                player.session = Some(session);
                player.record = Some(Record::of(Hello::Implicit(version)));
                taken
            }
            None => return Err(format!("{name} has no session")),
            Some(session) => session.handle_message(now, message, accepts),
        };
        if let Some(session) = &player.session
            && session.key() == key
        {
            self.next_key += 1;
            self.keys.insert(key, name.into());
        }
        match taken {
            Ok(Accepted::Noted(ask)) => asks.extend(ask),
            Ok(Accepted::Call { call, ask }) => {
                asks.push(ask);
                self.player(name)
                    .connections
                    .insert(label.into(), Connection::Waiting(call));
            }
            Ok(Accepted::Answered(body)) => {
                let body = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
                self.receive(name, label, Received::Json(body));
            }
            Err(refusal) => self.receive(name, label, Received::Refused(format!("{refusal:?}"))),
        }
        // What the session wants done comes before what the message asks for.
        self.run_until_idle();
        for ask in asks {
            self.backend.handle_ask(now, ask);
        }
        self.poll(name, label);
        self.run_until_idle();
        Ok(())
    }

    /// The gateway ends at once and is started again: its connections break, its server has ended.
    pub(crate) fn restart_gateway(&mut self) {
        self.backend = Multiplexer::new(self.backend.limits().clone(), self.client_hello);
        self.backend.plan_eras(self.plan);
        self.link_wanted = false;
        self.keys.clear();
        for player in self.players.values_mut() {
            player.session = None;
            player.connections.clear();
        }
    }

    /// Restores the session of a client that comes for the first time since the restart.
    fn restore(&mut self, name: &str) {
        let (now, limits) = (self.now, self.session_limits.clone());
        let player = self.player(name);
        let (None, Some(record)) = (&player.session, &mut player.record) else {
            return;
        };
        record.epoch += 1;
        let (declared, info) = match &record.hello {
            Hello::Initialize(message) => (
                message.raw_copy(Member::Capabilities),
                message.raw_copy(Member::ClientInfo),
            ),
            Hello::Implicit(_) => (None, None),
        };
        let restored = Restored {
            hello: record.hello.clone(),
            state: record.state.clone(),
            epoch: record.epoch,
        };
        let principal = Principal::named(&player.character.principal);
        let client = Arc::new(Client::declaring(principal, declared, info));
        let key = self.new_key();
        let (session, ask) = Session::restore(key, client, limits, now, restored);
        self.player(name).session = Some(session);
        self.keys.insert(key, name.into());
        self.backend.handle_ask(now, ask);
        self.run_until_idle();
    }

    /// A client opens a stream by GET, perhaps going on after an event.
    pub(crate) fn get(&mut self, name: &str, label: &str, after: Option<&str>) -> Result<(), String> {
        self.restore(name);
        let now = self.now;
        let player = self.player(name);
        let session = player.session.as_mut().ok_or("no session")?;
        let opened = match after {
            Some(id) => session.resume(now, id),
            None => session.listen(now),
        };
        match opened {
            Ok(reader) => {
                player
                    .connections
                    .insert(label.into(), Connection::Reading(reader));
                self.poll(name, label);
            }
            Err(refusal) => self.receive(name, label, Received::Refused(format!("{refusal:?}"))),
        }
        self.run_until_idle();
        Ok(())
    }

    pub(crate) fn handle_disconnect(&mut self, name: &str, label: &str) -> Result<(), String> {
        if self.character(name).era == Era::Modern {
            return self.hang_up_modern(name, label);
        }
        let now = self.now;
        let player = self.player(name);
        let connection = player
            .connections
            .remove(label)
            .ok_or_else(|| format!("{name}.{label} is not connected"))?;
        let session = player.session.as_mut().ok_or("no session")?;
        match connection {
            Connection::Waiting(call) => session.abandon(call),
            Connection::Reading(reader) => session.handle_disconnect(now, reader),
        }
        self.run_until_idle();
        Ok(())
    }

    /// A client DELETEs its session.
    pub(crate) fn end(&mut self, name: &str) -> Result<(), String> {
        let player = self.player(name);
        player.record = None;
        let session = player.session.as_mut().ok_or("no session")?;
        let ask = session.end();
        if let Some(ask) = ask {
            self.backend.handle_ask(self.now, ask);
        }
        self.run_until_idle();
        Ok(())
    }

    pub(crate) fn server_sends(&mut self, line: &str) {
        self.backend
            .handle_line(self.now, Bytes::copy_from_slice(line.as_bytes()));
        self.run_until_idle();
    }

    pub(crate) fn server_sends_something(&mut self) {
        self.backend.handle_activity();
        self.run_until_idle();
    }

    pub(crate) fn server_writes_to_stderr(&mut self) {
        self.backend.handle_stderr(self.now);
        self.run_until_idle();
    }

    /// A line beyond the limit has come so far, and goes on.
    pub(crate) fn server_goes_on(&mut self, length: u64, may_be_message: bool) {
        self.backend.handle_unfinished(Unfinished {
            length,
            may_be_message,
        });
        self.run_until_idle();
    }

    pub(crate) fn server_sends_too_much(&mut self, id: Option<&str>, request: bool, length: u64) {
        self.backend
            .handle_too_long(self.now, id.map(str::as_bytes), request, length);
        self.run_until_idle();
    }

    pub(crate) fn link_up(&mut self) {
        self.link_wanted = false;
        self.backend.handle_link_up(self.now);
        self.run_until_idle();
    }

    pub(crate) fn link_down(&mut self, what: &str) {
        let backend_error = Arc::new(BackendError {
            what: what.into(),
            ..BackendError::default()
        });
        self.backend.handle_link_down(&backend_error);
        self.run_until_idle();
    }

    pub(crate) fn unavailable(&mut self, what: &str) {
        self.link_wanted = false;
        let backend_error = Arc::new(BackendError {
            what: what.into(),
            restarts: 3,
            ..BackendError::default()
        });
        self.backend
            .handle_unavailable(&backend_error, Duration::from_secs(30));
        self.run_until_idle();
    }

    pub(crate) fn retire(&mut self) {
        self.link_wanted = false;
        self.backend.handle_retired();
        self.run_until_idle();
    }

    /// Lets time pass; sessions are tidied every second, as in the gateway.
    pub(crate) fn pass(&mut self, span: Duration) {
        let target = self.now.after(span);
        while self.now < target {
            let second = self.now.after(Duration::from_secs(1)).min(target);
            self.now = match self.backend.next_deadline() {
                Some(at) if at > self.now && at < second => at,
                Some(_) | None => second,
            };
            let is_due = |backend: &Multiplexer| backend.next_deadline().is_some_and(|at| at <= self.now);
            // What is done at a deadline may itself be due at once, but not again and again.
            for _ in 0..2 {
                if is_due(&self.backend) {
                    self.backend.handle_deadline(self.now);
                }
            }
            assert!(!is_due(&self.backend), "what was due is done");
            for player in self.players.values_mut() {
                if let Some(session) = &mut player.session {
                    session.handle_tick(self.now);
                }
            }
            self.expire_modern_requests();
            self.run_until_idle();
        }
    }

    /// Carries out orders until there are none.
    pub(crate) fn run_until_idle(&mut self) {
        loop {
            let mut quiet = true;
            while let Some(output) = self.backend.poll_output() {
                quiet = false;
                match output {
                    multiplexer::Output::Tell(tell) => {
                        if let Some(trip) = self.trips.get_mut(&tell.session()) {
                            trip.modern_request.handle_tell(self.now, tell);
                            continue;
                        }
                        let session = self
                            .keys
                            .get(&tell.session())
                            .and_then(|name| self.players.get_mut(name))
                            .and_then(|player| player.session.as_mut());
                        if let Some(session) = session {
                            session.handle_tell(self.now, tell);
                        }
                    }
                    multiplexer::Output::WantLink => self.link_wanted = true,
                    multiplexer::Output::Replace { why } => self.replacement_wanted = Some(why),
                    multiplexer::Output::Shown(_) | multiplexer::Output::Noise { .. } => {}
                }
            }
            let mut woken = BTreeSet::new();
            let (mut asks, busy) = self.run_modern_requests();
            quiet &= !busy;
            for (name, player) in &mut self.players {
                let Some(session) = &mut player.session else {
                    continue;
                };
                while let Some(output) = session.poll_output() {
                    quiet = false;
                    match output {
                        session::Output::Wake(stream) => {
                            for (label, connection) in &player.connections {
                                if connection.stream() == stream {
                                    woken.insert((name.clone(), label.clone()));
                                }
                            }
                        }
                        session::Output::Ask(ask) => asks.push(*ask),
                        session::Output::StateChanged(state) => {
                            if let Some(record) = &mut player.record {
                                record.state = *state;
                            }
                        }
                        session::Output::Ended(_) | session::Output::Line(_) => {}
                    }
                }
            }
            for (name, label) in woken {
                self.poll(&name, &label);
            }
            for ask in asks {
                self.backend.handle_ask(self.now, ask);
            }
            if self.server_reads && self.backend.has_outgoing() {
                quiet = false;
                let written = self.backend.take_outgoing(BytesMut::new());
                self.backend.handle_written();
                let lines = String::from_utf8(written.to_vec()).expect("lines are text");
                for line in lines.lines() {
                    self.server_mail
                        .push_back(serde_json::from_str(line).expect("lines are JSON"));
                }
            }
            if quiet {
                return self.check_books();
            }
        }
    }

    /// Checks what holds whenever there is nothing to do.
    fn check_books(&self) {
        let waits = self.backend.outgoing_bytes() > 0;
        assert_eq!(waits, self.backend.has_outgoing(), "bytes that wait are counted");
        assert!(
            !waits || !self.server_reads,
            "a server that reads has read everything"
        );
        assert_eq!(self.backend.eras_planned(), self.plan, "the plan stays");
    }

    /// Looks whether there is something to read on a connection.
    fn poll(&mut self, name: &str, label: &str) {
        let now = self.now;
        let mut received = Vec::new();
        let player = self.player(name);
        let (Some(session), Some(connection)) = (&mut player.session, player.connections.get_mut(label))
        else {
            return;
        };
        if let Connection::Waiting(call) = *connection {
            match session.poll_answer(call) {
                Answer::Waiting => return,
                Answer::Complete { body, .. } => {
                    let body = body.into_bytes();
                    received.push(Received::Json(serde_json::from_slice(&body).unwrap_or_default()));
                    player.connections.remove(label);
                }
                Answer::Stream(reader) => *connection = Connection::Reading(reader),
            }
        }
        if let Some(Connection::Reading(reader)) = player.connections.get(label) {
            let mut out = BytesMut::new();
            let reading = session.read(now, *reader, &mut out);
            received.extend(events(&out));
            if reading == Reading::Ended {
                received.push(Received::End);
                session.handle_disconnect(now, *reader);
                player.connections.remove(label);
            }
        }
        // A session whose handshake failed is not kept.
        let refused = !session.is_opened()
            && !session.is_implicit()
            && player.record.as_ref().is_some_and(|record| record.epoch == 1)
            && received
                .iter()
                .any(|received| matches!(received, Received::Json(_)));
        if refused && let Some(session) = player.session.take() {
            player.record = None;
            let mut session = session;
            if let Some(ask) = session.end() {
                self.backend.handle_ask(now, ask);
            }
        }
        for received in received {
            self.receive(name, label, received);
        }
    }
}

impl Record {
    fn of(hello: Hello) -> Self {
        Self {
            hello,
            state: SessionState::default(),
            epoch: 1,
        }
    }
}

/// Reads the events of a stream's bytes.
pub(crate) fn events(bytes: &[u8]) -> Vec<Received> {
    let text = std::str::from_utf8(bytes).expect("events are text");
    let field = |block: &str, name: &str| {
        block
            .lines()
            .find_map(|line| line.strip_prefix(name).map(str::to_owned))
    };
    text.split("\n\n")
        .filter(|block| !block.is_empty())
        .map(|block| match (field(block, "id: "), field(block, "data: ")) {
            (Some(id), Some(data)) if data.is_empty() => Received::Priming(id),
            (Some(id), Some(data)) => Received::Event(id, serde_json::from_str(&data).expect("data is JSON")),
            (None, Some(data)) => {
                Received::Event(String::new(), serde_json::from_str(&data).expect("data is JSON"))
            }
            _ => Received::Comment(field(block, ": ").unwrap_or_else(|| block.into())),
        })
        .collect()
}

/// The id of a request as a label for its POST.
pub(crate) fn label_of(sent: &Value) -> String {
    sent.get("id")
        .map_or_else(|| "notification".into(), Value::to_string)
}

/// Whether this is a request, whose POST waits for an answer.
pub(crate) fn is_request(sent: &Value) -> bool {
    Message::scan(Bytes::from(sent.to_string()))
        .is_ok_and(|message| message.raw(Member::Id).is_some() && message.method_name().is_some())
}
