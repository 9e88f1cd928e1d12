//! Restless clients: what they do next, and what they read.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use protocol::capability::Capabilities;
use protocol::exchange::{Ask, CallKey, Client, Principal, SessionKey};
use protocol::session::replay::{EventId, StreamKey};
use protocol::session::{
    self, Accepted, Accepts, Answer, Hello, Reader, Reading, Session, StreamRefusal, TOKEN_MARK,
};
use protocol::version::{Era, Version};
use serde_json::Value;

use crate::aggregate::Target;
use crate::dice::Dice;
use crate::history::{Fact, Home, ID};
use crate::members::{Addressed, Params, Wanted};
use crate::run::{
    CallLimits, Event, Mutation, SimulatedSession, SimulationRun, message, meta, session_limits, value_of,
};
use crate::server::URIS;

/// Where a client sits: it opens one session after another.
#[derive(Debug)]
pub(crate) struct Seat {
    target: Target,
    principal: &'static str,
    version: Version,
    accepts: Accepts,
    implicit: bool,
    era: Era,
    pub(crate) session: Option<usize>,
    /// Questions it has read and not answered, with the numbers of their messages.
    questions: Vec<(u64, Option<u64>)>,
    tasks: bool,
    /// What it declares that it can be asked (modern era).
    declares: Declares,
}

/// The questions that a client declares it can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Declares {
    Everything,
    Forms,
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Post {
    id: String,
    token: Option<String>,
    pub(crate) to: Addressed,
    opening: bool,
    /// Its client has read the answer.
    ended: bool,
}

#[derive(Debug)]
enum Stage {
    Waiting(CallKey),
    Reading(Reader),
    Closed,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) session: usize,
    post: Option<usize>,
    stage: Stage,
    paused: bool,
    last: Option<EventId>,
    /// Its client has gone on from here on another connection.
    resumed: bool,
}

impl Connection {
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.stage, Stage::Closed)
    }
}

const IDS: [&str; 7] = ["1", "1", "\"1\"", "7", "9007199254740993", "\"\"", "-3"];

impl Seat {
    pub(crate) fn new(at: usize, dice: &mut Dice, backends: usize) -> Self {
        Self {
            target: Target::Backend(at % backends),
            principal: ["alice", "alice", "bob"][dice.below(3)],
            version: [Version::V2025_11_25, Version::V2025_06_18][dice.below(2)],
            accepts: [Accepts::Both, Accepts::Both, Accepts::Json, Accepts::Events][dice.below(4)],
            implicit: dice.percent(15),
            era: if dice.percent(30) {
                Era::Modern
            } else {
                Era::Legacy
            },
            session: None,
            questions: Vec::new(),
            tasks: dice.percent(60),
            declares: match dice.below(100) {
                0..15 => Declares::Nothing,
                15..40 => Declares::Forms,
                _ => Declares::Everything,
            },
        }
    }

    /// Returns whether it declares tasks (modern era).
    pub(crate) fn knows_tasks(&self) -> bool {
        self.tasks
    }

    /// What it declares that it can be asked (modern era).
    pub(crate) fn declares(&self) -> Declares {
        self.declares
    }

    /// Returns where it calls, its principal, and what it accepts.
    pub(crate) fn traits(&self) -> (Target, &'static str, Accepts) {
        (self.target, self.principal, self.accepts)
    }

    pub(crate) fn call_aggregate(&mut self) {
        self.target = Target::Aggregate;
    }

    fn client(&self) -> Arc<Client> {
        let declared = bytes::Bytes::from_static(Capabilities::ALL_JSON.as_bytes());
        Arc::new(Client::declaring(
            Principal::named(self.principal),
            Some(declared),
            None,
        ))
    }
}

impl SimulationRun {
    pub(crate) fn client_acts(&mut self, seat: usize) {
        if self.seats[seat].era == Era::Modern {
            return self.modern_client_acts(seat);
        }
        let Some(session) = self.seats[seat].session else {
            if self.dice.percent(60) {
                self.open_session(seat);
            }
            return;
        };
        if self.sessions[session].closed {
            self.seats[seat].session = None;
            return;
        }
        if !self.sessions[session].is_opened() && !self.seats[seat].implicit {
            // A client that is not welcomed yet can only lose patience.
            if self.dice.percent(2) {
                self.end_session(session);
            }
            return;
        }
        match self.dice.below(100) {
            0..40 => self.call(seat, session),
            40..46 => self.cancel(seat, session),
            46..54 => self.hang_up_something(session),
            54..62 => self.listen(session),
            62..72 => self.resume_something(session),
            72..86 => self.answer_something(seat, session),
            86..88 => self.answer_a_stranger(session),
            88..90 => self.send(
                session,
                r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#,
            ),
            90..93 => self.send(
                session,
                r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            ),
            93..97 => self.pause_something(session),
            97 => self.end_session(session),
            _ => {}
        }
    }

    fn open_session(&mut self, seat: usize) {
        let index = self.sessions.len();
        let key = SessionKey(index as u64);
        let one = &self.seats[seat];
        let (target, principal, accepts) = (one.target, one.principal, one.accepts);
        let (client, version, implicit) = (one.client(), one.version, one.implicit);
        let home = self.home_of(target);
        self.note(Fact::SessionOpened {
            session: index,
            home,
            principal,
        });
        self.seats[seat].session = Some(index);
        self.seats[seat].questions.clear();
        if implicit {
            let (machine, ask) = Session::open_implicit(key, client, session_limits(), self.now, version);
            let hello = Hello::Implicit(version);
            self.sessions
                .push(SimulatedSession::new(machine, target, &ask, hello));
            self.send_ask(target, ask);
            return self.call(seat, index);
        }
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{}","capabilities":{},"clientInfo":{{"name":"c","version":"1"}}}}}}"#,
            version.as_str(),
            Capabilities::ALL_JSON
        );
        let (machine, call, ask) =
            Session::open(key, client, session_limits(), self.now, message(&text), accepts);
        let hello = Hello::Initialize(message(&text));
        self.sessions
            .push(SimulatedSession::new(machine, target, &ask, hello));
        let to = self.addressed(target, None);
        let post = self.post((index, accepts, to), "0", None, "initialize", text, true);
        self.connect(index, post, call);
        self.send_ask(target, ask);
    }

    /// Returns the backends that a client there may receive something of.
    pub(crate) fn home_of(&self, target: Target) -> Home {
        match (target, &self.aggregate) {
            (Target::Backend(backend), _) => Home::Backend(backend),
            (Target::Aggregate, Some(aggregate)) => aggregate.home(),
            (Target::Aggregate, None) => Home::Members(Vec::new()),
        }
    }

    /// Returns the address of a request that goes there, and to this member of an aggregate.
    pub(crate) fn addressed(&self, target: Target, owner: Option<usize>) -> Addressed {
        match (target, &self.aggregate) {
            (Target::Aggregate, Some(aggregate)) => aggregate.addressed(owner),
            (Target::Aggregate, None) => Addressed::to_backend(0),
            (Target::Backend(backend), _) => Addressed::to_backend(backend),
        }
    }

    /// Returns whether the owner of a request speaks another era than its client, and how long it
    /// may be silent.
    pub(crate) fn terms(&self, to: &Addressed, era: Era, accepts: Accepts) -> (bool, Option<Duration>) {
        match to.owner.and_then(|owner| self.backends.get(owner)) {
            Some(backend) => (backend.era != Some(era), backend.call_limits.of_call(accepts)),
            None => (true, CallLimits::Usual.of_call(accepts)),
        }
    }

    fn post(
        &mut self,
        (session, accepts, to): (usize, Accepts, Addressed),
        id: &str,
        token: Option<String>,
        method: &'static str,
        template: String,
        opening: bool,
    ) -> usize {
        let post = self.posts.len();
        let (translated, limit) = self.terms(&to, Era::Legacy, accepts);
        let owner = to.owner;
        self.posts.push(Post {
            id: id.into(),
            token,
            to,
            opening,
            ended: false,
        });
        self.note(Fact::Posted {
            session,
            post,
            owner,
            id: id.into(),
            method,
            template,
            translated,
            retry_of: None,
            limit,
        });
        post
    }

    /// The same for a modern client, whose tokens its modern request knows.
    pub(crate) fn post_modern(
        &mut self,
        (session, accepts, to): (usize, Accepts, Addressed),
        id: &str,
        method: &'static str,
        template: String,
        retry_of: Option<usize>,
    ) {
        let post = self.posts.len();
        let (translated, limit) = self.terms(&to, Era::Modern, accepts);
        // A retry is answered in other words than the first request.
        let translated = translated || retry_of.is_some();
        let owner = to.owner;
        self.posts.push(Post {
            id: id.into(),
            token: None,
            to,
            opening: false,
            ended: false,
        });
        self.note(Fact::Posted {
            session,
            post,
            owner,
            id: id.into(),
            method,
            template,
            translated,
            retry_of,
            limit,
        });
    }

    /// A number for a connection that is not in the list.
    pub(crate) fn new_connection(&mut self) -> usize {
        self.next_connection += 1;
        crate::modern_requests::FIRST + self.next_connection
    }

    fn connect(&mut self, session: usize, post: usize, call: CallKey) {
        self.note(Fact::Numbered {
            session,
            post,
            call: call.0,
        });
        self.connections.push(Connection {
            session,
            post: Some(post),
            stage: Stage::Waiting(call),
            paused: false,
            last: None,
            resumed: false,
        });
    }

    fn call(&mut self, seat: usize, session: usize) {
        let post = self.posts.len();
        let id = IDS[self.dice.below(IDS.len())];
        let token = self.dice.percent(50).then(|| format!("\"t{post}\""));
        let target = self.sessions[session].target;
        let Some(Wanted { method, params, to }) = self.want(target) else {
            return;
        };
        let text = |params: &str, id: &str, token: Option<&str>| {
            let token = token.map_or_else(String::new, |token| format!(r#","progressToken": {token}"#));
            format!(
                r#"{{"jsonrpc":"2.0","id": {id} ,"method":"{method}","params":{{{params}"_meta":{{"post":{post}{token}}}}}}}"#
            )
        };
        let template = text(&params.read, ID, token.as_ref().map(|_| ID));
        let sent = message(&text(&params.sent, id, token.as_deref()));
        let accepts = self.seats[seat].accepts;
        match self.sessions[session]
            .machine
            .handle_message(self.now, sent, accepts)
        {
            Ok(Accepted::Call { call, ask }) => {
                self.serve(session);
                if let (Target::Aggregate, Some(owner)) = (target, to.owner) {
                    let call = call.0;
                    self.note(Fact::Owned { session, call, owner });
                }
                self.post((session, accepts, to), id, token, method, template, false);
                self.connect(session, post, call);
                self.sessions[session].last_call = Some(ask.clone());
                self.send_ask(target, ask);
            }
            Ok(Accepted::Noted(_) | Accepted::Answered(_)) => {
                let what = format!("{method} was not taken as a request");
                self.note(Fact::Wrong { what });
            }
            Err(session::Rejection::TooManyCalls) => {}
            Err(refusal) => {
                let what = format!("{method} was refused: {refusal:?}");
                self.note(Fact::Wrong { what });
            }
        }
    }

    /// Returns what a client wants next of what it calls.
    fn want(&mut self, target: Target) -> Option<Wanted> {
        let backend = match target {
            Target::Backend(backend) => backend,
            Target::Aggregate => return Some(self.aggregate.as_ref()?.want(&mut self.dice)),
        };
        let uri = URIS[self.dice.below(URIS.len())];
        let (method, params) = match self.dice.below(10) {
            0 => ("resources/subscribe", format!(r#""uri":"{uri}","#)),
            1 => ("resources/unsubscribe", format!(r#""uri":"{uri}","#)),
            2 => {
                let level = ["debug", "info", "error"][self.dice.below(3)];
                ("logging/setLevel", format!(r#""level":"{level}","#))
            }
            3 => ("tools/list", String::new()),
            _ => (
                "tools/call",
                r#""name":"t", "arguments":{"n":1.50e3,"é":"\u00e9"},"#.into(),
            ),
        };
        Some(Wanted {
            method,
            params: Params::same(params),
            to: Addressed::to_backend(backend),
        })
    }

    /// Sends a message that has no answer.
    fn send(&mut self, session: usize, text: &str) {
        let taken = self.sessions[session]
            .machine
            .handle_message(self.now, message(text), Accepts::Both);
        match taken {
            Ok(Accepted::Noted(Some(ask))) => self.send_ask(self.sessions[session].target, ask),
            Ok(Accepted::Noted(None)) => {}
            Ok(Accepted::Call { .. } | Accepted::Answered(_)) | Err(_) => {
                let what = format!("{text} was not just noted");
                self.note(Fact::Wrong { what });
            }
        }
    }

    /// Cancels something: of its own, of another client, or nothing at all. The id decides.
    fn cancel(&mut self, _seat: usize, session: usize) {
        let id = IDS[self.dice.below(IDS.len())];
        self.send(
            session,
            &format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
            ),
        );
    }

    fn some_connection(&mut self, wanted: impl Fn(&Connection) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..self.connections.len())
            .filter(|at| wanted(&self.connections[*at]))
            .collect();
        self.dice.pick(&found).copied()
    }

    fn hang_up_something(&mut self, session: usize) {
        let found = self.some_connection(|one| one.session == session && one.is_open());
        if let Some(at) = found
            && self.connections[at]
                .post
                .is_none_or(|post| !self.posts[post].opening)
        {
            self.handle_disconnect(at);
            self.serve(session);
        }
    }

    fn handle_disconnect(&mut self, at: usize) {
        let one = &mut self.connections[at];
        let machine = &mut self.sessions[one.session].machine;
        match std::mem::replace(&mut one.stage, Stage::Closed) {
            Stage::Waiting(call) => machine.abandon(call),
            Stage::Reading(reader) => machine.handle_disconnect(self.now, reader),
            Stage::Closed => return,
        }
        if let Some(post) = one.post {
            self.note(Fact::HungUp { post });
        }
    }

    /// The process that had these connections has ended.
    pub(crate) fn lose_connections(&mut self, session: usize) {
        for at in 0..self.connections.len() {
            let one = &mut self.connections[at];
            if one.session == session && one.is_open() {
                one.stage = Stage::Closed;
                if let Some(post) = one.post {
                    self.note(Fact::HungUp { post });
                }
            }
        }
        for seat in &mut self.seats {
            if seat.session == Some(session) {
                seat.questions.clear();
            }
        }
    }

    fn listen(&mut self, session: usize) {
        if let Ok(reader) = self.sessions[session].machine.listen(self.now) {
            let connection = self.read_on(session, None, reader);
            self.note(Fact::Listened { session, connection });
            self.poll(connection);
        }
        self.serve(session);
    }

    fn read_on(&mut self, session: usize, post: Option<usize>, reader: Reader) -> usize {
        self.connections.push(Connection {
            session,
            post,
            stage: Stage::Reading(reader),
            paused: false,
            last: None,
            resumed: false,
        });
        self.connections.len() - 1
    }

    /// Goes on after the last event of a stream, whether its connection broke or only seems to
    /// have.
    fn resume_something(&mut self, session: usize) {
        let Some(from) =
            self.some_connection(|one| one.session == session && one.last.is_some() && !one.resumed)
        else {
            return;
        };
        let Some(last) = self.connections[from].last else {
            return;
        };
        let post = self.connections[from].post;
        let is_lost = last.stream.0 < self.sessions[session].record.epoch << 32
            && self.sessions[session].record.epoch > 1;
        // A client does not come back for an answer that it has read, unless the stream may go on.
        if is_lost && post.is_some_and(|post| self.posts[post].ended) {
            return;
        }
        let text = match post {
            Some(_) => format!("{last}.call"),
            None => last.to_string(),
        };
        match self.sessions[session].machine.resume(self.now, &text) {
            Ok(reader) if is_lost => {
                // A stream of notices begins anew in another process.
                self.connections[from].resumed = true;
                let connection = self.read_on(session, None, reader);
                self.note(Fact::Listened { session, connection });
                self.poll(connection);
            }
            Err(StreamRefusal::Lost) => {
                self.connections[from].resumed = true;
                let id = post.map_or_else(String::new, |post| self.posts[post].id.clone());
                let machine = &mut self.sessions[session].machine;
                let reader = machine.resume_lost(self.now, id.as_bytes());
                let connection = self.read_on(session, post, reader);
                self.poll(connection);
            }
            Ok(reader) => {
                self.connections[from].resumed = true;
                let connection = self.read_on(session, post, reader);
                self.connections[connection].last = Some(last);
                let EventId {
                    stream: StreamKey(stream),
                    number,
                } = last;
                self.note(Fact::Resumed {
                    session,
                    connection,
                    post,
                    stream,
                    number,
                });
                self.poll(connection);
            }
            Err(why) => {
                let why = format!("{why:?}");
                self.note(Fact::ResumeRefused { session, post, why });
            }
        }
        self.serve(session);
    }

    fn answer_something(&mut self, seat: usize, session: usize) {
        let count = self.seats[seat].questions.len();
        if count == 0 {
            return;
        }
        let at = self.dice.below(count);
        let question = if self.dice.percent(90) {
            self.seats[seat].questions.swap_remove(at)
        } else {
            self.seats[seat].questions[at]
        };
        self.reply(session, question);
    }

    fn answer_a_stranger(&mut self, session: usize) {
        let question = self.dice.below(12) as u64;
        self.reply(session, (question, None));
    }

    fn reply(&mut self, session: usize, (question, seq): (u64, Option<u64>)) {
        let nonce = self.next_nonce;
        self.next_nonce += 1;
        self.note(Fact::Replied { session, nonce, seq });
        self.send(
            session,
            &format!(r#"{{"jsonrpc":"2.0","id":{question},"result":{{"nonce":{nonce}}}}}"#),
        );
    }

    fn pause_something(&mut self, session: usize) {
        let found = self.some_connection(|one| one.session == session && one.is_open());
        if let Some(at) = found {
            self.connections[at].paused = true;
            let after = self.dice.millis(500, 6000);
            self.plan(after, Event::Unpause(at));
        }
    }

    pub(crate) fn unpause(&mut self, at: usize) {
        if std::mem::take(&mut self.connections[at].paused) {
            self.poll(at);
            self.serve(self.connections[at].session);
        }
    }

    pub(crate) fn end_session(&mut self, session: usize) {
        if std::mem::replace(&mut self.sessions[session].closed, true) {
            return;
        }
        self.note(Fact::SessionClosed { session });
        if let Some(ask) = self.sessions[session].machine.end() {
            self.send_ask(self.sessions[session].target, ask);
        }
        self.serve(session);
    }

    /// Carries out what a session orders.
    pub(crate) fn serve(&mut self, session: usize) {
        while let Some(output) = self.sessions[session].machine.poll_output() {
            match output {
                session::Output::Wake(stream) => {
                    for at in 0..self.connections.len() {
                        let one = &self.connections[at];
                        let its = match one.stage {
                            Stage::Waiting(call) => call.0 == stream.0,
                            Stage::Reading(reader) => reader.stream == stream,
                            Stage::Closed => false,
                        };
                        if its && one.session == session {
                            self.poll(at);
                        }
                    }
                }
                session::Output::Ask(ask) => {
                    if matches!(*ask, Ask::Open { .. } | Ask::Restore { .. }) {
                        self.note(Fact::Reopened { session });
                    }
                    self.send_ask(self.sessions[session].target, *ask);
                }
                session::Output::StateChanged(state) => self.sessions[session].record.state = *state,
                session::Output::Ended(_) | session::Output::Line(_) => {}
            }
        }
        let members = match self.sessions[session].target {
            Target::Backend(_) => 1,
            Target::Aggregate => self.backends.len(),
        };
        let machine = &self.sessions[session].machine;
        let limits = session_limits();
        let streams = limits.calls + limits.listeners + 2 * limits.ended_streams;
        for (what, found, limit) in [
            ("calls of a session", machine.open_calls(), limits.calls + 1),
            (
                "listening streams",
                machine.listening_streams(),
                limits.listeners + limits.ended_streams,
            ),
            (
                "questions of a session",
                machine.open_questions(),
                crate::run::limits().questions * members,
            ),
            (
                "bytes held",
                machine.held_bytes(),
                // Beyond the budget only what connections wait to read: at most the newest message
                // of each.
                limits.retention.bytes + streams * crate::run::limits().max_message_bytes,
            ),
        ] {
            if found > limit {
                self.note(Fact::Exceeded { what, found, limit });
            }
        }
    }

    /// Reads what there is on a connection.
    fn poll(&mut self, at: usize) {
        let one = &mut self.connections[at];
        if one.paused {
            return;
        }
        let (session, post) = (one.session, one.post);
        let machine = &mut self.sessions[session].machine;
        if let Stage::Waiting(call) = one.stage {
            match machine.poll_answer(call) {
                Answer::Waiting => return,
                Answer::Complete { body, .. } => {
                    let body = body.into_bytes();
                    one.stage = Stage::Closed;
                    return self.ended(session, post, &body);
                }
                Answer::Stream(reader) => {
                    machine.set_stream_token(reader, |_| Some(".call".into()));
                    one.stage = Stage::Reading(reader);
                }
            }
        }
        let Stage::Reading(reader) = one.stage else { return };
        let mut out = BytesMut::new();
        let reading = machine.read(self.now, reader, &mut out);
        if reading == Reading::Ended {
            one.stage = Stage::Closed;
            machine.handle_disconnect(self.now, reader);
        }
        let text = String::from_utf8(out.to_vec()).expect("events are text");
        let mut blocks: Vec<&str> = text.split("\n\n").filter(|block| !block.is_empty()).collect();
        if self.mutation == Some(Mutation::RepeatAnEvent)
            && self.dice.percent(5)
            && let Some(last) = blocks.last().copied()
        {
            blocks.push(last);
        }
        for block in blocks {
            self.receive(at, session, post, block);
        }
    }

    fn receive(&mut self, at: usize, session: usize, post: Option<usize>, block: &str) {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        let plain = |id: &str| EventId::parse(id.split(TOKEN_MARK).next().unwrap_or_default());
        let Some(id) = field("id: ").and_then(plain) else {
            return self.note(Fact::GapRead {
                session,
                connection: at,
            });
        };
        self.connections[at].last = Some(id);
        let data = field("data: ").unwrap_or_default();
        if data.is_empty() {
            return;
        }
        let value = value_of(data.as_bytes());
        let of = meta(&value, "of").map(|of| of as usize);
        self.note(Fact::ClientRead {
            session,
            connection: at,
            stream: id.stream.0,
            number: id.number,
            seq: meta(&value, "seq"),
            post: of,
        });
        match (value["method"].as_str(), value["id"].as_u64()) {
            (None, _) => self.ended(session, post, data.as_bytes()),
            (Some("notifications/progress"), _) => {
                let token = of
                    .and_then(|of| self.posts.get(of))
                    .and_then(|post| post.token.clone());
                if token.as_deref() != Some(&value["params"]["progressToken"].to_string()) {
                    let what = format!("progress came with another token: {data}");
                    self.note(Fact::Wrong { what });
                }
            }
            (Some(_), Some(question)) => {
                let seq = meta(&value, "seq");
                if let Some(seat) = self.seats.iter_mut().find(|seat| seat.session == Some(session)) {
                    seat.questions.push((question, seq));
                }
                let named = value["params"]["_meta"]["rialto/member"].as_str();
                self.attribute(session, self.sessions[session].target, seq, named);
            }
            (Some(_), None) => {}
        }
    }

    fn ended(&mut self, session: usize, post: Option<usize>, body: &[u8]) {
        let value: Value = value_of(body);
        let mut reason = value["error"]["data"]["reason"].as_str().map(str::to_owned);
        if value["result"]["isError"] == true {
            // No server here sends this; it is how a call ends whose client would not answer.
            reason = Some("unanswered".into());
        }
        let Some(post) = post else {
            let what = "an answer on a GET stream".into();
            return self.note(Fact::Wrong { what });
        };
        self.posts[post].ended = true;
        let to = self.posts[post].to.clone();
        if to.target == Target::Aggregate {
            reason = reason.or_else(|| self.read_own_answer(&to, &value));
        }
        let body = Self::unmarked(&to, &String::from_utf8_lossy(body));
        self.note(Fact::Ended {
            session,
            post,
            body,
            reason,
        });
        if self.posts[post].opening && value.get("result").is_none() {
            self.end_session(session);
        }
    }
}
