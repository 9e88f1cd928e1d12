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

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::client_face::modern::{self, Meaning};
use crate::error_code;
use crate::exchange::{Ask, Call, CallKey, Client, Failure, QuestionKey, Request, SessionKey, Tell};
use crate::message::{Kind, Member, Message};
use crate::method::{LogLevel, Method};
use crate::object::Object;
use crate::session::Accepts;
use crate::time::Moment;
use crate::version::Era;
use crate::wire::sse;
use listening::Listening;

/// Events that may wait for a client that reads slowly. Older ones go first; the answer always stays.
const MAX_EVENTS: usize = 1024;
/// An errand has one call, and one for its opening.
const OPENING: CallKey = CallKey(0);
const ERRAND: CallKey = CallKey(1);

/// What the machine wants done.
#[derive(Debug)]
pub enum Output {
    /// There is something to read.
    Wake,
    Ask(Ask),
    /// One request of the client has its answer. For the audit.
    Ended(ErrandRecord),
}

/// How a request of an errand ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Result,
    Error,
    /// With a question to the client.
    InputRequired,
    Failed(Failure),
}

/// What there is to say about an answered request.
#[derive(Debug)]
pub struct ErrandRecord {
    pub message: Message,
    pub started: Moment,
    pub ending: Ending,
    pub response: Bytes,
    pub streamed: bool,
}

/// What can be read of the answer to the request that is attached.
#[derive(Debug)]
pub enum Answer {
    Waiting,
    /// All of it; `failure` or the body's error code decide the HTTP status.
    Complete {
        body: Bytes,
        failure: Option<Failure>,
    },
    /// The server asks: seal a state for this round and give it to [`Errand::park`].
    Ask {
        round: u32,
    },
    /// It comes as events: read them.
    Stream,
}

/// What reading gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    Open,
    Ended,
    /// The stream ends with a question: seal a state for this round and give it to [`Errand::park`], then read on.
    Ask {
        round: u32,
    },
}

/// What there is for a client that reads lines.
#[derive(Debug)]
pub enum Line {
    Waiting,
    /// Something about the request; more follows.
    Event(Bytes),
    /// The final answer.
    Answer {
        body: Bytes,
        failure: Option<Failure>,
    },
    /// The server asks: seal a state for this round and give it to [`Errand::park`].
    Ask {
        round: u32,
    },
    /// The errand was given up; nothing will be said.
    Over,
}

/// Why a retry is not taken. In each case nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryRefusal {
    /// Not this errand's request, or not its present round.
    Mismatch,
    /// An answer that does not fit its question.
    BadAnswer,
}

#[derive(Debug)]
struct Asked {
    addressee: Addressee,
    message: Message,
}

/// Whom the client's answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Addressee {
    /// The server, which waits for it.
    Server(QuestionKey),
    /// The errand itself, which then sends the call anew.
    Detour,
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
    server: Option<String>,
    level: Option<LogLevel>,
    listening: Option<Listening>,
    closed: bool,
    outputs: VecDeque<Output>,
    events_lost: u64,
}

#[derive(Debug)]
enum Outcome {
    Welcome(Arc<crate::exchange::Welcome>),
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
            words: Era::Modern,
            hears: listening.is_some(),
        }];
        if matches!(meaning, Meaning::Call { .. }) {
            asks.push(Ask::Call(Call {
                session,
                call: ERRAND,
                request: Request::Plain,
                message: message.clone(),
                words: Era::Modern,
                mirrored: None,
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
            kept: None,
            outcome: None,
            asked: BTreeMap::new(),
            next_key: 1,
            detours: 0,
            round: 0,
            given: false,
            server: None,
            listening,
            closed: false,
            outputs: VecDeque::new(),
            events_lost: 0,
        };
        (errand, asks)
    }

    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    pub fn session(&self) -> SessionKey {
        self.session
    }

    /// Waiting for the client to come back with answers.
    pub fn is_parked(&self) -> bool {
        matches!(self.stage, Stage::Parked)
    }

    /// Nothing more will come of it.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

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

    pub fn handle_tell(&mut self, _now: Moment, tell: Tell) {
        match tell {
            Tell::Welcome { welcome, .. } => {
                self.server = modern::server_info(&welcome);
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

    /// What the client is to call one more question.
    fn new_key(&mut self) -> String {
        self.next_key += 1;
        format!("k{}", self.next_key - 1)
    }

    /// Only some requests can be answered by a question (2026-07-28, multi round-trip requests).
    fn may_be_asked(&self) -> bool {
        matches!(self.meaning, Meaning::Call { .. }) && self.original.method().may_ask()
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
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
            self.events_lost += 1;
        }
        self.events.push_back(event);
        self.wake();
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

    // From whoever reads.

    /// What there is of the answer to the attached request.
    pub fn poll_answer(&mut self) -> Answer {
        if self.streaming {
            return Answer::Stream;
        }
        if self.outcome.is_some() {
            if self.accepts == Accepts::Events {
                self.streaming = true;
                return Answer::Stream;
            }
            let (body, failure) = self.finish();
            return Answer::Complete { body, failure };
        }
        if !self.asked.is_empty() {
            if self.accepts == Accepts::Events {
                self.streaming = true;
                return Answer::Stream;
            }
            return Answer::Ask { round: self.round };
        }
        Answer::Waiting
    }

    /// Writes what is new into `out` as events. This era has no event ids: what is lost is lost.
    pub fn read(&mut self, out: &mut BytesMut) -> Reading {
        while let Some(event) = self.events.pop_front() {
            sse::write_message(out, None, &event);
        }
        if matches!(self.stage, Stage::Over) {
            return Reading::Ended;
        }
        if self.outcome.is_some() {
            let (body, _) = self.finish();
            sse::write_message(out, None, &body);
            return Reading::Ended;
        }
        if !self.asked.is_empty() {
            return Reading::Ask { round: self.round };
        }
        Reading::Open
    }

    /// The next thing to tell a client that reads lines. Its requests accept events.
    pub fn poll_line(&mut self) -> Line {
        if let Some(event) = self.events.pop_front() {
            return Line::Event(event);
        }
        if matches!(self.stage, Stage::Over) {
            return Line::Over;
        }
        if self.outcome.is_some() {
            let (body, failure) = self.finish();
            return Line::Answer { body, failure };
        }
        if !self.asked.is_empty() {
            return Line::Ask { round: self.round };
        }
        Line::Waiting
    }

    /// The final answer, for the request that is attached.
    fn finish(&mut self) -> (Bytes, Option<Failure>) {
        self.stage = Stage::Over;
        let id = self
            .message
            .raw_bytes(Member::Id)
            .unwrap_or(Bytes::from_static(b"null"));
        let (body, ending) = match self.outcome.take() {
            Some(Outcome::Welcome(welcome)) => (modern::lower_welcome(&id, &welcome), Ending::Result),
            Some(Outcome::Reply { message, words }) => {
                let ending = if message.kind() == Kind::Error {
                    Ending::Error
                } else {
                    Ending::Result
                };
                let method = self.original.method();
                (
                    modern::lower_reply(&id, &message, words, method, self.server.as_deref()),
                    ending,
                )
            }
            Some(Outcome::Closed) => (listening::farewell(&id), Ending::Result),
            Some(Outcome::Failed(failure)) => (modern::lower_failure(&id, &failure), Ending::Failed(failure)),
            None => (
                modern::lower_failure(&id, &Failure::SessionEnded),
                Ending::Failed(Failure::SessionEnded),
            ),
        };
        self.record(ending.clone(), body.clone());
        let failure = match ending {
            Ending::Failed(failure) => Some(failure),
            Ending::Result | Ending::Error | Ending::InputRequired => None,
        };
        (body, failure)
    }

    fn record(&mut self, ending: Ending, response: Bytes) {
        self.outputs.push_back(Output::Ended(ErrandRecord {
            message: self.message.clone(),
            started: self.started,
            ending,
            response,
            streamed: self.streaming,
        }));
    }

    /// Gives the server's questions to the client. The attached request ends with them; the errand is parked.
    pub fn park(&mut self, state: &str) -> Bytes {
        let questions = self
            .asked
            .iter()
            .map(|(key, asked)| (key.as_str(), &asked.message));
        let body = modern::lower_input_required(self.id(), questions, state);
        self.given = true;
        self.stage = Stage::Parked;
        self.record(Ending::InputRequired, body.clone());
        self.streaming = false;
        body
    }

    /// The client comes back. The errand goes on under the new request.
    pub fn retry(
        &mut self,
        now: Moment,
        message: Message,
        round: u32,
        accepts: Accepts,
    ) -> Result<Vec<Ask>, RetryRefusal> {
        if !self.is_parked() || !self.given || round != self.round || !self.agrees(&message) {
            return Err(RetryRefusal::Mismatch);
        }
        let params = message
            .raw(Member::Params)
            .and_then(Object::parse)
            .unwrap_or_default();
        let raw = params.get("inputResponses").unwrap_or("{}").to_owned();
        let responses = Object::parse(raw.as_bytes()).ok_or(RetryRefusal::BadAnswer)?;
        let mut answers = Vec::new();
        for (key, raw) in responses.iter() {
            // Keys that were never asked about, or no longer, are nobody's business.
            let Some(asked) = self.asked.get(key) else {
                continue;
            };
            if !modern::is_answer(asked.message.method(), raw) {
                return Err(RetryRefusal::BadAnswer);
            }
            answers.push((key.to_owned(), asked.addressee, raw.to_owned()));
        }
        let mut asks = Vec::new();
        let mut visited = None;
        for (key, addressee, raw) in answers {
            let Addressee::Server(question) = addressee else {
                visited = Some(visited.unwrap_or(true) && modern::is_consent(&raw));
                self.asked.remove(&key);
                continue;
            };
            let Ok(answer) = Message::scan(Bytes::from(format!(
                r#"{{"jsonrpc":"2.0","id":0,"result":{raw}}}"#
            ))) else {
                return Err(RetryRefusal::BadAnswer);
            };
            self.asked.remove(&key);
            asks.push(Ask::Answer {
                session: self.session,
                question,
                message: answer,
            });
        }
        self.round += 1;
        self.given = false;
        self.stage = Stage::Running;
        self.level = modern::log_level(&message);
        self.message = message;
        self.started = now;
        self.accepts = accepts;
        if let Some(event) = self.kept.take().and_then(|kept| self.event(&kept))
            && self.stream()
        {
            self.push(event);
        }
        if let Some(visited) = visited {
            asks.extend(self.end_detour(visited));
        }
        Ok(asks)
    }

    /// Whether a retry asks for the same as the first request did.
    fn agrees(&self, message: &Message) -> bool {
        let subject = |message: &Message| {
            let params = message
                .raw(Member::Params)
                .and_then(Object::parse)
                .unwrap_or_default();
            let read = |name: &str| {
                params
                    .get(name)
                    .and_then(|raw| serde_json::from_str::<serde_json::Value>(raw).ok())
            };
            (message.method(), read("name"), read("uri"), read("arguments"))
        };
        subject(message) == subject(&self.original)
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
        if self.outcome.is_none()
            && matches!(self.meaning, Meaning::Call { .. })
            && matches!(self.stage, Stage::Running)
        {
            self.record(Ending::Failed(Failure::Cancelled), Bytes::new());
        }
        self.stage = Stage::Over;
        self.close();
        self.wake();
    }
}

/// The HTTP status of an answered request, by its JSON-RPC error code.
pub fn status_of(body: &[u8]) -> u16 {
    match modern::error_code_of(body) {
        Some(error_code::METHOD_NOT_FOUND) => 404,
        Some(
            error_code::HEADER_MISMATCH | error_code::MISSING_CAPABILITY | error_code::UNSUPPORTED_VERSION,
        ) => 400,
        Some(_) | None => 200,
    }
}
