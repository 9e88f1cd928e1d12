//! One modern request, from its arrival to its final answer, over as many rounds as that takes.
//!
//! A modern client keeps no session and nothing may depend on one. But a legacy server that asks in the middle
//! of a call must be held until the answer comes, in another request: meanwhile the errand is *parked*. The
//! client carries a sealed state that names the errand; the errand itself is here.
//!
//! To a backend an errand looks like a session of its own with a single call. That makes every question of the
//! server attributable to the very call that caused it.

mod detour;
mod listening;
mod reading;
mod rounds;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::client_face::modern::{self, Meaning};
use crate::error_code;
use crate::exchange::{Ask, Call, CallKey, Client, Failure, Request, SessionKey, Tell, Welcome};
use crate::message::{Kind, Member, Message};
use crate::method::{LogLevel, Method};
use crate::session::Accepts;
use crate::time::Moment;
use crate::version::Era;
use listening::Listening;
use rounds::{Addressee, Asked};

pub use reading::{Answer, Line, Reading};
pub use rounds::RetryRefusal;

/// Events that may wait for a client that reads slowly, and their bytes. Older ones go first; the newest and the answer
/// always stay.
const MAX_EVENTS: usize = 1024;
const MAX_EVENT_BYTES: usize = 4 << 20;
/// An errand has one call, and one for its opening.
const OPENING: CallKey = CallKey(0);
const ERRAND: CallKey = CallKey(1);

/// What the machine wants done.
#[derive(Debug)]
pub enum Output {
    /// There is something to read.
    Wake,
    /// Something for the backend.
    Ask(Ask),
    /// One request of the client has its answer. For the audit.
    Ended(ErrandRecord),
}

/// How a request of an errand ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// With a result.
    Result,
    /// With a JSON-RPC error of the server.
    Error,
    /// With a question to the client.
    InputRequired,
    /// Without an answer of the server.
    Failed(Failure),
}

/// What there is to say about an answered request.
#[derive(Debug)]
pub struct ErrandRecord {
    /// The request.
    pub message: Message,
    /// When it came.
    pub started: Moment,
    /// How it ended.
    pub ending: Ending,
    /// What the client was sent.
    pub response: Bytes,
    /// The answer was sent as an event.
    pub streamed: bool,
    /// The media types that the client of the request accepts.
    pub accepts: Accepts,
    /// The HTTP status of an answer that is no failure.
    pub status: u16,
}

#[derive(Debug)]
enum Stage {
    /// A request is attached and waits.
    Running,
    /// No request is attached; the client has a question to answer.
    Parked,
    /// The final answer is here and was given out, or nobody wants it.
    Over,
}

/// The machine.
#[derive(Debug)]
pub struct Errand {
    session: SessionKey,
    client: Arc<Client>,
    meaning: Meaning,
    /// The request that is attached, or was last.
    message: Message,
    /// The first request: what a retry must agree with.
    original: Message,
    started: Moment,
    accepts: Accepts,
    stage: Stage,
    streaming: bool,
    events: VecDeque<Bytes>,
    event_bytes: usize,
    /// The newest progress or log line that came while no request was attached.
    kept: Option<Message>,
    /// The end of the whole errand, as soon as it is known.
    outcome: Option<Outcome>,
    asked: BTreeMap<String, Asked>,
    next_key: u32,
    /// How often the call was sent anew.
    detours: u64,
    round: u32,
    /// The questions of the present round have been given out.
    given: bool,
    /// What the server has said of itself.
    server: Option<Arc<Welcome>>,
    /// The HTTP status of the final answer, if it is sent as JSON.
    answer_status: u16,
    level: Option<LogLevel>,
    listening: Option<Listening>,
    closed: bool,
    outputs: VecDeque<Output>,
    events_lost: u64,
}

#[derive(Debug)]
enum Outcome {
    Welcome(Arc<Welcome>),
    Reply {
        message: Message,
        words: Era,
    },
    Failed(Failure),
    /// A listen that came to its end.
    Closed,
}

impl Errand {
    /// Sets out on a request. The asks are to be put to the backend in this order.
    pub fn new(
        session: SessionKey,
        client: Arc<Client>,
        now: Moment,
        message: Message,
        meaning: Meaning,
        accepts: Accepts,
    ) -> (Self, Vec<Ask>) {
        let listening = (meaning == Meaning::Listen).then(|| Listening::new(&message));
        let mut asks = vec![Ask::Open {
            session,
            call: OPENING,
            client: Arc::clone(&client),
            introduction: None,
            words: modern::ERA,
            hears: listening.is_some(),
        }];
        if matches!(meaning, Meaning::Call { .. }) {
            asks.push(Ask::Call(Call {
                session,
                call: ERRAND,
                request: Request::Plain,
                message: message.clone(),
                words: modern::ERA,
                mirrored: None,
                reads_events: accepts.reads_events(),
            }));
        }
        let errand = Self {
            session,
            client,
            meaning,
            level: modern::log_level(&message),
            original: message.clone(),
            message,
            started: now,
            accepts,
            stage: Stage::Running,
            streaming: false,
            events: VecDeque::new(),
            event_bytes: 0,
            kept: None,
            outcome: None,
            asked: BTreeMap::new(),
            next_key: 1,
            detours: 0,
            round: 0,
            given: false,
            server: None,
            answer_status: 200,
            listening,
            closed: false,
            outputs: VecDeque::new(),
            events_lost: 0,
        };
        (errand, asks)
    }

    /// Returns the client whose request this is.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Returns the key under which the backend knows it.
    pub fn session(&self) -> SessionKey {
        self.session
    }

    /// Waiting for the client to come back with answers.
    pub fn is_parked(&self) -> bool {
        matches!(self.stage, Stage::Parked)
    }

    /// The HTTP status of the final answer, unless it is a failure or was sent as an event.
    pub fn answer_status(&self) -> u16 {
        self.answer_status
    }

    /// Nothing more will come of it.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Returns what is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn id(&self) -> &[u8] {
        self.message.raw(Member::Id).unwrap_or(b"null")
    }

    fn wake(&mut self) {
        self.outputs.push_back(Output::Wake);
    }

    // From the backend.

    /// Takes what the backend has for this request.
    pub fn handle_tell(&mut self, _now: Moment, tell: Tell) {
        match tell {
            Tell::Welcome { welcome, .. } => {
                self.server = Some(Arc::clone(&welcome));
                match self.meaning {
                    Meaning::Discover => self.conclude(Outcome::Welcome(welcome)),
                    Meaning::Listen => self.begin_listening(&welcome),
                    Meaning::Call { .. } => {}
                }
            }
            Tell::Reply {
                call, message, words, ..
            } => match (call, self.meaning) {
                // The handshake was refused, so there is nothing to listen to.
                (OPENING, Meaning::Listen) => self.conclude(Outcome::Reply { message, words }),
                (_, Meaning::Listen) => {
                    if !self.handle_looked(call, Some((&message, words))) {
                        self.handle_subscribed(call, message.kind() == Kind::Result);
                    }
                }
                // The handshake was refused; what waited for it is told so by itself.
                (OPENING, Meaning::Call { .. }) => {}
                (OPENING, Meaning::Discover) | (_, Meaning::Call { .. } | Meaning::Discover) => {
                    if !self.begin_detour(&message, words) {
                        self.conclude(Outcome::Reply { message, words });
                    }
                }
            },
            Tell::Done { call, .. } => self.handle_subscribed(call, true),
            Tell::Failed { call, failure, .. } => match (call, self.meaning) {
                (OPENING, Meaning::Call { .. }) => {}
                (OPENING, Meaning::Discover | Meaning::Listen)
                | (_, Meaning::Call { .. } | Meaning::Discover) => {
                    self.conclude(Outcome::Failed(failure));
                }
                (_, Meaning::Listen) => {
                    if !self.handle_looked(call, None) {
                        self.handle_subscribed(call, false);
                    }
                }
            },
            Tell::Related { message, .. } => self.relate(&message),
            Tell::Waiting { .. } => {
                if self.stream() {
                    self.wake();
                }
            }
            Tell::Notice { message, .. } if message.method() == Method::TasksStatus => {
                self.look_after_task(&message);
            }
            Tell::Notice { message, .. } => {
                let event = self
                    .listening
                    .as_ref()
                    .and_then(|listening| listening.hear(&message, self.id()));
                if let Some(event) = event {
                    self.push(event);
                }
            }
            Tell::Question { question, .. } if !self.may_be_asked() => {
                self.outputs.push_back(Output::Ask(Ask::Unanswerable {
                    session: self.session,
                    question,
                }));
            }
            Tell::Question {
                question, message, ..
            } => {
                let key = self.new_key();
                let addressee = Addressee::Server(question);
                self.asked.insert(key, Asked { addressee, message });
                self.wake();
            }
            Tell::Withdrawn { question, .. } => {
                let withdrawn = Addressee::Server(question);
                self.asked.retain(|_, asked| asked.addressee != withdrawn);
            }
        }
    }

    /// Progress and log lines of the call.
    fn relate(&mut self, message: &Message) {
        match self.stage {
            Stage::Running => {
                if let Some(event) = self.event(message)
                    && self.stream()
                {
                    self.push(event);
                }
            }
            // While nobody reads, only the newest is of interest.
            Stage::Parked if self.wants(message) => self.kept = Some(message.clone()),
            Stage::Parked | Stage::Over => {}
        }
    }

    /// A log line is only for a request that asked for such.
    fn wants(&self, message: &Message) -> bool {
        message.method() != Method::LogMessage
            || self
                .level
                .is_some_and(|wanted| message.level().is_none_or(|level| level >= wanted))
    }

    /// What is related to the call as the attached request is to hear it: a retry has a log level and a progress token
    /// of its own, or none.
    fn event(&self, message: &Message) -> Option<Bytes> {
        if !self.wants(message) {
            return None;
        }
        if self.round == 0 || message.method() != Method::Progress {
            return Some(Bytes::copy_from_slice(message.bytes()));
        }
        let token = self.message.raw(Member::MetaProgressToken)?;
        Some(message.spliced(&[(Member::ProgressToken, token)]))
    }

    fn push(&mut self, event: Bytes) {
        while self.events.len() >= MAX_EVENTS || self.event_bytes + event.len() > MAX_EVENT_BYTES {
            if self.next_event().is_none() {
                break;
            }
            self.events_lost += 1;
        }
        self.event_bytes += event.len();
        self.events.push_back(event);
        self.wake();
    }

    /// Returns how many bytes of events wait to be read.
    pub fn kept_bytes(&self) -> usize {
        self.event_bytes
    }

    /// Drops the oldest events, at least so many bytes as far as there are any.
    pub fn drop_events(&mut self, bytes: usize) {
        let limit = self.event_bytes.saturating_sub(bytes);
        while self.event_bytes > limit && self.next_event().is_some() {
            self.events_lost += 1;
        }
    }

    fn next_event(&mut self) -> Option<Bytes> {
        let event = self.events.pop_front()?;
        self.event_bytes -= event.len();
        Some(event)
    }

    /// Turns the attached request's answer into a stream, if its client reads streams.
    fn stream(&mut self) -> bool {
        if matches!(self.stage, Stage::Running) && self.accepts != Accepts::Json {
            self.streaming = true;
        }
        self.streaming
    }

    fn conclude(&mut self, outcome: Outcome) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
            self.asked.clear();
            self.close();
            self.wake();
        }
    }

    /// The backend has nothing more to do with this errand.
    fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.outputs.push_back(Output::Ask(Ask::Close {
                session: self.session,
            }));
        }
    }

    /// The instance behind this errand has lost its books. Ends the errand if it is still open.
    pub fn handle_lost_instance(&mut self, failure: &Failure) {
        if !matches!(self.stage, Stage::Over) {
            self.conclude(Outcome::Failed(failure.clone()));
        }
    }

    /// The client's connection is gone. In this era that cancels, unless the errand is parked.
    pub fn hang_up(&mut self) {
        if matches!(self.stage, Stage::Running) {
            self.give_up();
        }
    }

    /// Ends the errand without an answer: the client has gone, or has not come back in time.
    pub fn give_up(&mut self) {
        if matches!(self.stage, Stage::Over) {
            return;
        }
        for (_, asked) in std::mem::take(&mut self.asked) {
            // An elicitation can be called off in its own words; the rest is refused by the backend.
            if let Addressee::Server(question) = asked.addressee
                && asked.message.method() == Method::ElicitationCreate
            {
                let message = Message::own(r#"{"jsonrpc":"2.0","id":0,"result":{"action":"cancel"}}"#.into());
                let answer = Ask::Answer {
                    session: self.session,
                    question,
                    message,
                };
                self.outputs.push_back(Output::Ask(answer));
            }
        }
        match self.stage {
            // It has come to its end, though nobody has waited to hear of it.
            Stage::Running if self.outcome.is_some() => {
                self.finish();
            }
            Stage::Running if matches!(self.meaning, Meaning::Call { .. }) => {
                self.record(Ending::Failed(Failure::Cancelled), Bytes::new());
            }
            Stage::Running | Stage::Parked | Stage::Over => {}
        }
        self.stage = Stage::Over;
        self.close();
        self.wake();
    }
}

/// The HTTP status of an answered request, by its JSON-RPC error code. A server's -32601 means a missing method only where
/// the server has not declared it; from a tool it is an error like any other (2026-07-28, Streamable HTTP).
fn status_of(body: &[u8], is_declared: impl FnOnce() -> bool) -> u16 {
    match modern::error_code_of(body) {
        Some(error_code::METHOD_NOT_FOUND) if !is_declared() => 404,
        Some(
            error_code::HEADER_MISMATCH | error_code::MISSING_CAPABILITY | error_code::UNSUPPORTED_VERSION,
        ) => 400,
        Some(_) | None => 200,
    }
}
