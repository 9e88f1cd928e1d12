//! One client: its open calls, its streams, and when it has been gone too long.
//!
//! The machine takes a client's messages and gives asks; it takes tells and turns them into what its
//! client reads. A call's answer is JSON if it is the first thing to come; as soon as something else about the
//! call comes first, the answer becomes a stream. Streams are logs (see [`replay`]); connections come and go.

mod calls;
mod questions;
mod readers;
pub mod replay;
mod spoken;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::client_face::legacy::{self, Meaning, Objection};
use crate::eviction::Usage;
use crate::exchange::{Ask, Call, CallKey, Client, Failure, QuestionKey, SessionKey, Tell};
use crate::message::{Kind, Member, Message, Written};
use crate::method::Method;
use crate::time::Moment;
use crate::vec_map::VecMap;
use crate::version::Version;
use calls::{OpenCall, Stage, Stream};
use questions::Put;
use readers::Listener;
use replay::{Audience, ByteSum, EventLog, Retention, StreamKey};
use spoken::Hearing;

pub use readers::{Answer, Reader, Reading, StreamRefusal};
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
    /// `application/json` only.
    Json,
    /// `text/event-stream` only.
    Events,
    /// Either.
    Both,
    /// Nothing on the POST itself: whatever there is to say goes to the session's one stream (2024-11-05, HTTP
    /// with SSE).
    OneStream,
}

impl Accepts {
    /// Returns whether the client reads events. Such a client gets HTTP 200 and a JSON-RPC error for an accepted call that
    /// fails; a client that takes JSON only gets an HTTP status.
    ///
    /// The official Python clients 1.x end their session, with every call in flight, on a status of 500 or above.
    pub fn reads_events(self) -> bool {
        match self {
            Self::Json => false,
            Self::Events | Self::Both | Self::OneStream => true,
        }
    }
}

/// What became of a client's message.
#[derive(Debug)]
pub enum Taken {
    /// Nothing to wait for.
    Noted(Option<Ask>),
    /// The answer is to be read from this call.
    Call {
        /// The key of the call.
        call: CallKey,
        /// What it asks for.
        ask: Ask,
    },
    /// The answer is here.
    Answered(Bytes),
}

/// Why a session does not take a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The message is not valid.
    Objection(Objection),
    /// A session is opened once.
    AlreadyOpen,
    /// As many calls as a session may have are open.
    TooManyCalls,
    /// The session has ended.
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
    /// Without an answer of the server.
    Failed(Failure),
}

/// What there is to say about a call that has ended.
#[derive(Debug)]
pub struct CallRecord {
    /// The key of the call.
    pub call: CallKey,
    /// The client's message, for its method, id and name.
    pub message: Message,
    /// When it came.
    pub started: Moment,
    /// How it ended.
    pub ending: Ending,
    /// What the client was sent.
    pub response: Written,
    /// A failure was sent as a JSON-RPC error with HTTP 200, and not as an HTTP status.
    pub in_band: bool,
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
    calls: VecMap<CallKey, Box<OpenCall>>,
    /// Streams whose call has ended, oldest first.
    past: VecDeque<(StreamKey, Stream)>,
    notices: EventLog,
    /// What all logs keep together.
    kept: ByteSum,
    /// The newest notice that any listener has read.
    heard: u64,
    listeners: VecMap<StreamKey, Listener>,
    /// Questions that were put and not answered.
    questions: VecMap<QuestionKey, Put>,
    next: u64,
    last_seen: Moment,
    /// The client closed its last GET stream and has sent nothing since. Official TypeScript clients end in this way.
    stream_closed: bool,
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
            words: legacy::ERA,
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
            words: legacy::ERA,
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
        let kept = ByteSum::default();
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
            calls: VecMap::default(),
            past: VecDeque::new(),
            notices: EventLog::counted_in(&kept),
            kept,
            heard: 0,
            listeners: VecMap::default(),
            questions: VecMap::default(),
            next: 1,
            last_seen: now,
            stream_closed: false,
            outputs: VecDeque::new(),
            events_lost: 0,
        }
    }

    /// Returns the key of this session.
    pub fn key(&self) -> SessionKey {
        self.key
    }

    /// Returns what is known of the client.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Returns the revision that was agreed on.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns whether Rialto opened it for a client that never sent `initialize`.
    pub fn is_implicit(&self) -> bool {
        self.implicit
    }

    /// The server has welcomed this client.
    pub fn is_welcomed(&self) -> bool {
        self.welcomed
    }

    /// Returns how many events were dropped before they were read.
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

    /// Returns how many bytes of events are kept.
    pub fn kept_bytes(&self) -> usize {
        self.kept.get()
    }

    /// Drops the oldest events, at least so many bytes as far as they may go.
    pub fn drop_events(&mut self, bytes: usize) {
        let limit = self.kept.get().saturating_sub(bytes);
        self.shed_to(limit);
        self.give_up_answers(limit);
    }

    /// Bytes held for readers.
    #[doc(hidden)]
    pub fn held_bytes(&self) -> usize {
        let calls = self.calls.values().map(|call| match &call.stage {
            Stage::Complete { body, .. } => body.len(),
            Stage::Undecided | Stage::Stream(_) => 0,
        });
        self.kept.get() + calls.sum::<usize>()
    }

    /// Returns whether a stream whose call has ended has events that were not read, so that its client may come back for them
    /// with `Last-Event-ID`.
    pub fn has_unread_answers(&self) -> bool {
        self.past
            .iter()
            .any(|(_, stream)| stream.cursor < stream.log.newest())
    }

    /// Returns what is to be done next.
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

    /// Returns how far the client still uses this session.
    pub fn usage(&self) -> Usage {
        match self.idle_since() {
            None => Usage::Active,
            Some(since) if self.implicit => Usage::Implicit(since),
            Some(since) if self.stream_closed => Usage::StreamClosed(since),
            Some(since) => Usage::Idle(since),
        }
    }

    // From the client.

    /// Takes a message that the client sent.
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
        self.stream_closed = false;
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
                        words: legacy::ERA,
                        mirrored: None,
                        reads_events: accepts.reads_events(),
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

    /// Takes what the backend has for this session.
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
                if !self.relate(now, call, || message.kept()) {
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

    fn notice(&mut self, now: Moment, data: &Bytes, audience: Audience) -> u64 {
        if self.reads_lines() {
            self.say(Said::Notice(data.clone()));
            return 0;
        }
        let data = Bytes::copy_from_slice(data);
        self.events_lost += self.notices.push(now, data, audience, &self.limits.retention);
        self.shed_to(self.limits.retention.bytes);
        for (key, listener) in self.listeners.iter() {
            if listener.attended {
                self.outputs.push_back(Output::Wake(*key));
            }
        }
        self.notices.newest()
    }

    /// The instance behind this session has lost its books. Ends the calls that are still open.
    pub fn handle_lost_instance(&mut self, now: Moment, failure: &Failure) {
        let is_open = |call: &OpenCall| !matches!(call.stage, Stage::Complete { .. });
        let open: Vec<CallKey> = self
            .calls
            .iter()
            .filter(|(_, call)| is_open(call))
            .map(|(key, _)| *key)
            .collect();
        for call in open {
            let failure = failure.clone();
            let session = self.key;
            self.handle_tell(
                now,
                Tell::Failed {
                    session,
                    call,
                    failure,
                },
            );
        }
    }

    // From the clock. Housekeeping is cheap and never urgent, so it asks for no particular moment.

    /// Forgets what is too old. To be called about once a second.
    pub fn handle_tick(&mut self, now: Moment) {
        self.forget_past(now);
        self.forget_listeners(now);
        self.notices.forget_old(now, &self.limits.retention);
        self.shed_to(self.limits.retention.bytes);
        self.give_up_questions(now);
    }
}
