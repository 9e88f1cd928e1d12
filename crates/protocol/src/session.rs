//! One client: its open calls, its streams, and when it has been gone too long.
//!
//! The machine takes a client's messages and gives asks; it takes tells and turns them into what its
//! client reads. A call's answer is JSON if it is the first thing to come; as soon as something else about the
//! call comes first, the answer becomes a stream. Streams are logs (see [`replay`]); connections come and go.

mod readers;
pub mod replay;
mod spoken;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::client_face::legacy::{self, Meaning, Objection};
use crate::exchange::{Ask, Call, CallKey, Client, Failure, QuestionKey, SessionKey, Tell};
use crate::message::{Kind, Member, Message, Written};
use crate::method::Method;
use crate::time::Moment;
use crate::version::{Era, Version};
use replay::{Audience, Claim, EventLog, Retention, StreamKey};
use spoken::Hearing;

pub use spoken::Said;

/// How much a session may hold and for how long.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Events kept for readers that are slow or come back.
    pub retention: Retention,
    /// Calls that may be open at once.
    pub calls: usize,
    /// Streams opened by GET that may be read at once.
    pub listeners: usize,
    /// Finished or abandoned streams that are kept for a resumption.
    pub ended_streams: usize,
    /// How long a question waits for somewhere to be put.
    pub question_patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            retention: Retention {
                events: 8192,
                bytes: 4 << 20,
                age: Duration::from_secs(300),
            },
            calls: 1024,
            listeners: 64,
            ended_streams: 32,
            question_patience: Duration::from_secs(5),
        }
    }
}

/// What the client of a POST can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepts {
    Json,
    Events,
    Both,
    /// Nothing on the POST itself: whatever there is to say goes to the session's one stream (2024-11-05, HTTP
    /// with SSE).
    OneStream,
}

/// What became of a client's message.
#[derive(Debug)]
pub enum Taken {
    /// Nothing to wait for.
    Noted(Option<Ask>),
    /// The answer is to be read from this call.
    Call { call: CallKey, ask: Ask },
    /// The answer is here.
    Answered(Bytes),
}

/// Why a session does not take a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    Objection(Objection),
    /// A session is opened once.
    AlreadyOpen,
    TooManyCalls,
    Ended,
}

/// What the machine wants done.
#[derive(Debug)]
pub enum Output {
    /// There is something to read on this stream.
    Wake(StreamKey),
    /// Someone must be told that nobody will answer.
    Ask(Box<Ask>),
    /// Something for a client that reads lines.
    Said(Said),
    /// A call has come to its end. For the audit.
    Ended(Box<CallRecord>),
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// With the server's result.
    Result,
    /// With the server's JSON-RPC error.
    Error,
    Failed(Failure),
}

/// What there is to say about a call that has ended.
#[derive(Debug)]
pub struct CallRecord {
    pub call: CallKey,
    /// The client's message, for its method, id and name.
    pub message: Message,
    pub started: Moment,
    pub ending: Ending,
    pub response: Written,
    /// The answer went out as an event of a stream.
    pub streamed: bool,
}

/// What can be read of a call's answer.
#[derive(Debug)]
pub enum Answer {
    /// Nothing yet.
    Waiting,
    /// All of it; `failure` decides the HTTP status.
    Complete { body: Written, failure: Option<Failure> },
    /// It comes as events: read the stream.
    Stream(Reader),
}

/// The right to read a stream. A newer reader of the same stream takes it away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    pub stream: StreamKey,
    generation: u32,
}

/// What reading a stream gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Events were written into the buffer, or there are none at the moment.
    Open,
    /// There will be no more.
    Ended,
}

/// Why a stream cannot be opened or resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamRefusal {
    /// That is no event id of this session, or its stream is long forgotten.
    UnknownEvent,
    /// Everything of that stream was read. An empty stream here would make clients come back for ever.
    Finished,
    TooMany,
}

#[derive(Debug)]
struct OpenCall {
    /// The client's message; `None` for a handshake that Rialto does by itself.
    message: Option<Message>,
    started: Moment,
    accepts: Accepts,
    stage: Stage,
    /// Someone waits for the answer.
    attended: bool,
}

#[derive(Debug)]
enum Stage {
    /// Nothing has come yet.
    Undecided,
    /// The answer is ready to be taken.
    Complete {
        body: Written,
        failure: Option<Failure>,
    },
    Stream(Stream),
}

/// A call's stream.
#[derive(Debug, Default)]
struct Stream {
    log: EventLog,
    cursor: u64,
    /// The priming event has been sent.
    begun: bool,
    generation: u32,
    ended: Option<Moment>,
    attended: bool,
}

/// A stream opened by GET: a cursor in the session's notices.
#[derive(Debug)]
struct Listener {
    cursor: u64,
    /// The one stream of the old transport: it cannot be resumed, so that its events have no ids.
    sole: bool,
    begun: bool,
    generation: u32,
    attended: bool,
    since: Moment,
}

/// Where a question was put, and until when somebody has to have come for it.
#[derive(Debug)]
struct Put {
    /// The call on whose stream it is; `None` for the session's notices.
    call: Option<CallKey>,
    number: u64,
    /// `None` once it was given to a reader.
    deadline: Option<Moment>,
}

/// The machine.
#[derive(Debug)]
pub struct Session {
    key: SessionKey,
    client: Arc<Client>,
    limits: Limits,
    hearing: Hearing,
    /// The revision the client asked for, then the one that holds.
    version: Version,
    asked: Option<Version>,
    implicit: bool,
    welcomed: bool,
    ended: bool,
    /// Boxed, because a map keeps its room when it is empty, and a session is mostly idle.
    calls: BTreeMap<CallKey, Box<OpenCall>>,
    /// Streams whose call has ended, oldest first.
    past: VecDeque<(StreamKey, Stream)>,
    notices: EventLog,
    /// The newest notice that any listener has read.
    heard: u64,
    listeners: BTreeMap<StreamKey, Listener>,
    /// Questions that were put and not answered.
    questions: BTreeMap<QuestionKey, Put>,
    next: u64,
    last_seen: Moment,
    outputs: VecDeque<Output>,
    events_lost: u64,
}

impl Session {
    /// A session for a client that has just said `initialize`, and the ask that opens it.
    pub fn open(
        key: SessionKey,
        client: Arc<Client>,
        limits: Limits,
        now: Moment,
        introduction: Message,
        accepts: Accepts,
    ) -> (Self, CallKey, Ask) {
        let asked = introduction
            .text(Member::ProtocolVersion)
            .and_then(|text| Version::parse(&text));
        let mut session = Self::new(key, client, limits, now, asked, false);
        let call = session.begin(now, Some(introduction.clone()), accepts);
        let client = Arc::clone(&session.client);
        let ask = Ask::Open {
            session: key,
            call,
            client,
            introduction: Some(introduction),
            words: Era::Legacy,
            hears: true,
        };
        (session, call, ask)
    }

    /// A session for a client that did not open one: Rialto does the handshake itself.
    pub fn open_implicit(
        key: SessionKey,
        client: Arc<Client>,
        limits: Limits,
        now: Moment,
        version: Version,
    ) -> (Self, Ask) {
        let mut session = Self::new(key, client, limits, now, Some(version), true);
        let call = session.begin(now, None, Accepts::Json);
        let ask = Ask::Open {
            session: key,
            call,
            client: Arc::clone(&session.client),
            introduction: None,
            words: Era::Legacy,
            hears: true,
        };
        (session, ask)
    }

    fn new(
        key: SessionKey,
        client: Arc<Client>,
        limits: Limits,
        now: Moment,
        asked: Option<Version>,
        implicit: bool,
    ) -> Self {
        Self {
            key,
            client,
            limits,
            hearing: Hearing::Streams,
            version: asked.unwrap_or(Version::NEWEST_LEGACY),
            asked,
            implicit,
            welcomed: false,
            ended: false,
            calls: BTreeMap::new(),
            past: VecDeque::new(),
            notices: EventLog::default(),
            heard: 0,
            listeners: BTreeMap::new(),
            questions: BTreeMap::new(),
            next: 1,
            last_seen: now,
            outputs: VecDeque::new(),
            events_lost: 0,
        }
    }

    pub fn key(&self) -> SessionKey {
        self.key
    }

    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub fn is_implicit(&self) -> bool {
        self.implicit
    }

    /// The server has welcomed this client.
    pub fn is_welcomed(&self) -> bool {
        self.welcomed
    }

    pub fn events_lost(&self) -> u64 {
        self.events_lost
    }

    /// Questions that were put to the client and not answered.
    #[doc(hidden)]
    pub fn open_questions(&self) -> usize {
        self.questions.len()
    }

    /// Calls without an ending, or whose answer nobody has taken yet.
    #[doc(hidden)]
    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// Streams whose call has ended and that may still be resumed.
    #[doc(hidden)]
    pub fn past_streams(&self) -> usize {
        self.past.len()
    }

    /// Streams opened by GET, read or not.
    #[doc(hidden)]
    pub fn listening_streams(&self) -> usize {
        self.listeners.len()
    }

    /// Bytes held for readers.
    #[doc(hidden)]
    pub fn held_bytes(&self) -> usize {
        let calls = self.calls.values().map(|call| match &call.stage {
            Stage::Stream(stream) => stream.log.bytes(),
            Stage::Complete { body, .. } => body.len(),
            Stage::Undecided => 0,
        });
        let past = self.past.iter().map(|(_, stream)| stream.log.bytes());
        self.notices.bytes() + calls.chain(past).sum::<usize>()
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Since when nobody has needed this session; `None` while a call or a stream is open.
    pub fn idle_since(&self) -> Option<Moment> {
        let in_use = !self.calls.is_empty()
            || self.listeners.values().any(|listener| listener.attended)
            || self.past.iter().any(|(_, stream)| stream.attended);
        (!in_use).then_some(self.last_seen)
    }

    fn begin(&mut self, now: Moment, message: Option<Message>, accepts: Accepts) -> CallKey {
        let call = CallKey(self.next);
        self.next += 1;
        let attended = message.is_some();
        self.calls.insert(
            call,
            Box::new(OpenCall {
                message,
                started: now,
                accepts,
                stage: Stage::Undecided,
                attended,
            }),
        );
        call
    }

    // From the client.

    pub fn handle_message(
        &mut self,
        now: Moment,
        message: Message,
        accepts: Accepts,
    ) -> Result<Taken, Refusal> {
        if self.ended {
            return Err(Refusal::Ended);
        }
        self.last_seen = now;
        let session = self.key;
        Ok(match legacy::lift(&message).map_err(Refusal::Objection)? {
            Meaning::Introduction => return Err(Refusal::AlreadyOpen),
            Meaning::Ping => {
                let body = legacy::lower_done(message.raw(Member::Id).unwrap_or_default());
                match accepts {
                    Accepts::Json | Accepts::Events | Accepts::Both => Taken::Answered(body),
                    Accepts::OneStream => {
                        self.notice(now, &body, Audience::All);
                        Taken::Noted(None)
                    }
                }
            }
            Meaning::Request(request) => {
                if self.calls.len() >= self.limits.calls {
                    return Err(Refusal::TooManyCalls);
                }
                let call = self.begin(now, Some(message.clone()), accepts);
                Taken::Call {
                    call,
                    ask: Ask::Call(Call {
                        session,
                        call,
                        request,
                        message,
                        words: Era::Legacy,
                        mirrored: None,
                    }),
                }
            }
            Meaning::Ready => Taken::Noted(Some(Ask::Ready { session, message })),
            Meaning::Cancel(id) => Taken::Noted(self.call_with_id(&id).map(|call| Ask::Cancel {
                session,
                call,
                message: Some(message),
            })),
            Meaning::Answer(question) => Taken::Noted(
                question
                    .filter(|question| self.questions.remove(question).is_some())
                    .map(|question| Ask::Answer {
                        session,
                        question,
                        message,
                    }),
            ),
            Meaning::Notice => Taken::Noted(Some(Ask::Notice { session, message })),
        })
    }

    /// The newest open call with this id: clients may use one id many times. An `initialize` cannot be
    /// cancelled (2025-03-26, cancellation).
    fn call_with_id(&self, id: &[u8]) -> Option<CallKey> {
        self.calls
            .iter()
            .rev()
            .find(|(_, call)| {
                let open = matches!(call.stage, Stage::Undecided)
                    || matches!(&call.stage, Stage::Stream(stream) if stream.ended.is_none());
                open && call.message.as_ref().is_some_and(|message| {
                    message.raw(Member::Id) == Some(id) && message.method() != Method::Initialize
                })
            })
            .map(|(key, _)| *key)
    }

    /// The session is over: whoever reads its streams is sent home.
    pub fn end(&mut self) -> Option<Ask> {
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        for stream in self.listeners.keys() {
            self.outputs.push_back(Output::Wake(*stream));
        }
        Some(Ask::Close { session: self.key })
    }

    // From the backend.

    pub fn handle_tell(&mut self, now: Moment, tell: Tell) {
        match tell {
            Tell::Welcome { call, welcome, .. } => {
                let id = self.id_of(call);
                let (body, version) = legacy::lower_welcome(&id, &welcome, self.asked);
                self.version = version;
                self.welcomed = true;
                if self.reads_lines() {
                    self.say(Said::Welcome);
                }
                self.finish(now, call, Ending::Result, body);
            }
            Tell::Reply {
                call, message, words, ..
            } => {
                let ending = match message.kind() {
                    Kind::Error => Ending::Error,
                    Kind::Result | Kind::Request | Kind::Notification => Ending::Result,
                };
                if let Some(open) = self.calls.get(&call) {
                    let asked = open.message.as_ref();
                    let id = asked.and_then(|asked| asked.raw(Member::Id)).unwrap_or(b"null");
                    let method = asked.map_or(Method::Other, Message::method);
                    let body = legacy::lower_reply(id, &message, words, method);
                    self.finish(now, call, ending, body);
                }
            }
            Tell::Done { call, .. } => {
                let id = self.id_of(call);
                self.finish(now, call, Ending::Result, legacy::lower_done(&id));
            }
            Tell::Failed { call, failure, .. } => {
                let id = self.id_of(call);
                let body = legacy::lower_failure(&id, &failure);
                self.finish(now, call, Ending::Failed(failure), body);
            }
            Tell::Related { call, message, .. } => {
                if !self.relate(now, call, message.bytes()) {
                    self.notice(now, message.bytes(), Audience::All);
                }
            }
            Tell::Waiting { call, .. } => {
                if let Some(stream) = self.upgrade(call) {
                    self.outputs.push_back(Output::Wake(stream));
                }
            }
            Tell::Notice { message, .. } => {
                self.notice(now, message.bytes(), Audience::All);
            }
            Tell::Question {
                call,
                question,
                message,
                ..
            } => self.put_question(now, call, question, &message),
            Tell::Withdrawn {
                question, message, ..
            } => {
                if let Some(put) = self.questions.remove(&question) {
                    self.withdraw(now, &put, &legacy::lower_withdrawal(question, message.as_ref()));
                }
            }
        }
    }

    fn id_of(&self, call: CallKey) -> Bytes {
        self.calls
            .get(&call)
            .and_then(|call| call.message.as_ref()?.raw_bytes(Member::Id))
            .unwrap_or(Bytes::from_static(b"null"))
    }

    fn put_question(&mut self, now: Moment, call: Option<CallKey>, question: QuestionKey, message: &Message) {
        let data = legacy::lower_question(question, message);
        if self.reads_lines() {
            self.say_question(call, question, data);
            return;
        }
        let patience = now.after(self.limits.question_patience);
        if let Some(key) = call
            && self.relate(now, key, &data)
            && let Some(stream) = self.open_stream(key)
        {
            let put = Put {
                call,
                number: stream.log.newest(),
                deadline: (!stream.attended).then_some(patience),
            };
            self.questions.insert(question, put);
            return;
        }
        let listener = self.liveliest_listener();
        let number = self.notice(now, &data, Audience::One(listener));
        let put = Put {
            call: None,
            number,
            deadline: listener.is_none().then_some(patience),
        };
        self.questions.insert(question, put);
    }

    /// Tells whoever was given a question that it is withdrawn; if nobody was, it is taken back.
    fn withdraw(&mut self, now: Moment, put: &Put, data: &Bytes) {
        if self.reads_lines() {
            self.say(Said::Notice(data.clone()));
            return;
        }
        if let Some(call) = put.call {
            if !self.relate(now, call, data) {
                let listener = self.liveliest_listener();
                self.notice(now, data, Audience::One(listener));
            }
            return;
        }
        match self.notices.claim(put.number) {
            Claim::Unclaimed => self.notices.retract(put.number),
            Claim::By(stream) => {
                self.notice(now, data, Audience::One(Some(stream)));
            }
            Claim::Never => {}
        }
    }

    /// The stream opened last is the one most likely to be alive.
    fn liveliest_listener(&self) -> Option<StreamKey> {
        self.listeners
            .iter()
            .rev()
            .find(|(_, listener)| listener.attended)
            .map(|(key, _)| *key)
    }

    fn open_stream(&self, call: CallKey) -> Option<&Stream> {
        match self.calls.get(&call).map(|call| &call.stage) {
            Some(Stage::Stream(stream)) => Some(stream),
            Some(Stage::Undecided | Stage::Complete { .. }) | None => None,
        }
    }

    /// Puts something on a call's own stream, which begins with it if need be.
    fn relate(&mut self, now: Moment, call: CallKey, data: &Bytes) -> bool {
        let Some(key) = self.upgrade(call) else {
            return false;
        };
        let Some(Stage::Stream(stream)) = self.calls.get_mut(&call).map(|call| &mut call.stage) else {
            return false;
        };
        // Whoever resumes the stream finds it here; the bytes are copied out of the server's large buffer.
        let data = Bytes::copy_from_slice(data);
        self.events_lost += stream.log.push(now, data, Audience::All, &self.limits.retention);
        self.outputs.push_back(Output::Wake(key));
        true
    }

    /// Turns a call's answer into a stream, if its client reads streams and is still there.
    fn upgrade(&mut self, call: CallKey) -> Option<StreamKey> {
        if self.reads_lines() {
            return None;
        }
        let open = self.calls.get_mut(&call)?;
        match &open.stage {
            Stage::Stream(_) => Some(StreamKey(call.0)),
            Stage::Undecided if open.attended && matches!(open.accepts, Accepts::Events | Accepts::Both) => {
                open.stage = Stage::Stream(Stream {
                    attended: true,
                    ..Stream::default()
                });
                Some(StreamKey(call.0))
            }
            Stage::Undecided | Stage::Complete { .. } => None,
        }
    }

    fn notice(&mut self, now: Moment, data: &Bytes, audience: Audience) -> u64 {
        if self.reads_lines() {
            self.say(Said::Notice(data.clone()));
            return 0;
        }
        let data = Bytes::copy_from_slice(data);
        self.events_lost += self.notices.push(now, data, audience, &self.limits.retention);
        for (key, listener) in &self.listeners {
            if listener.attended {
                self.outputs.push_back(Output::Wake(*key));
            }
        }
        self.notices.newest()
    }

    fn finish(&mut self, now: Moment, key: CallKey, ending: Ending, body: impl Into<Written>) {
        let body = body.into();
        if self.reads_lines() {
            self.say_answer(now, key, ending, body);
            return;
        }
        let Some(mut call) = self.calls.remove(&key) else {
            return;
        };
        self.last_seen = self.last_seen.max(now);
        let stream = StreamKey(key.0);
        if matches!(call.stage, Stage::Undecided) && call.accepts == Accepts::Events && call.attended {
            call.stage = Stage::Stream(Stream {
                attended: true,
                ..Stream::default()
            });
        }
        let streamed = matches!(call.stage, Stage::Stream(_)) || call.accepts == Accepts::OneStream;
        if let Some(message) = &call.message {
            let record = CallRecord {
                call: key,
                message: message.clone(),
                started: call.started,
                ending: ending.clone(),
                response: body.clone(),
                streamed,
            };
            self.outputs.push_back(Output::Ended(Box::new(record)));
        }
        if call.accepts == Accepts::OneStream {
            self.notice(now, &body.into_bytes(), Audience::All);
            return;
        }
        match std::mem::replace(&mut call.stage, Stage::Undecided) {
            Stage::Stream(mut open) => {
                self.events_lost +=
                    open.log
                        .push(now, body.into_bytes(), Audience::All, &self.limits.retention);
                open.ended = Some(now);
                self.past.push_back((stream, open));
                self.forget_past(now);
                self.outputs.push_back(Output::Wake(stream));
            }
            Stage::Undecided | Stage::Complete { .. } if call.attended => {
                let failure = match ending {
                    Ending::Failed(failure) => Some(failure),
                    Ending::Result | Ending::Error => None,
                };
                call.stage = Stage::Complete { body, failure };
                self.calls.insert(key, call);
                self.outputs.push_back(Output::Wake(stream));
            }
            // Nobody waits any more, and no event id was given out to come back with.
            Stage::Undecided | Stage::Complete { .. } => {}
        }
    }

    /// Forgets streams that have ended, oldest first, beyond what may be kept.
    fn forget_past(&mut self, now: Moment) {
        let keep = self.limits.retention;
        let mut bytes: usize = self.past.iter().map(|(_, stream)| stream.log.bytes()).sum();
        let mut excess = self.past.len().saturating_sub(self.limits.ended_streams);
        self.past.retain(|(_, stream)| {
            let expired = stream.ended.is_some_and(|ended| now.since(ended) > keep.age);
            if !stream.attended && (expired || excess > 0 || bytes > keep.bytes) {
                excess = excess.saturating_sub(1);
                bytes -= stream.log.bytes();
                return false;
            }
            true
        });
    }

    // From the clock. Housekeeping is cheap and never urgent, so it asks for no particular moment.

    pub fn handle_tick(&mut self, now: Moment) {
        self.forget_past(now);
        self.forget_listeners(now);
        self.notices.forget_old(now, &self.limits.retention);
        self.give_up_questions(now);
    }

    /// Questions that nobody came for are answered by nobody.
    fn give_up_questions(&mut self, now: Moment) {
        let mut given_up = Vec::new();
        for (question, put) in &mut self.questions {
            let Some(deadline) = put.deadline else { continue };
            let heard = match put.call {
                Some(call) => match self.calls.get(&call).map(|call| &call.stage) {
                    Some(Stage::Stream(stream)) => stream.cursor >= put.number,
                    // The call has ended, and with it the interest in what it asked.
                    Some(Stage::Undecided | Stage::Complete { .. }) | None => false,
                },
                None => matches!(self.notices.claim(put.number), Claim::By(_)),
            };
            if heard {
                put.deadline = None;
            } else if deadline <= now {
                given_up.push(*question);
            }
        }
        for question in given_up {
            let Some(put) = self.questions.remove(&question) else {
                continue;
            };
            match put.call {
                Some(call) => {
                    if let Some(Stage::Stream(stream)) = self.calls.get_mut(&call).map(|call| &mut call.stage)
                    {
                        stream.log.retract(put.number);
                    }
                }
                None => self.notices.retract(put.number),
            }
            self.outputs.push_back(Output::Ask(Box::new(Ask::Unanswerable {
                session: self.key,
                question,
            })));
        }
    }
}
