//! One modern request, from its arrival to its final answer, over as many rounds as that takes.
//!
//! A modern client keeps no session and nothing may depend on one. But a legacy server that asks in
//! the middle of a call must be held until the answer comes, in another request: meanwhile the call
//! is *parked*. The client carries a sealed state that names the [`ModernRequest`], which stays
//! here.
//!
//! To a backend a [`ModernRequest`] looks like a session of its own with a single call. That makes
//! every question of the server attributable to the very call that caused it.
//!
//! | Machine | State |
//! |---|---|
//! | `response` | the request that is attached, and how its response is sent |
//! | `events` | events that wait for a client that reads slowly |
//! | `input_rounds` | the questions that the client has not answered, and the number of the round |
//! | `listen` | for a listen: what the client asked for, and what of it is honoured |

mod events;
mod input_rounds;
mod listen;
mod response;
mod url_elicitation;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::client_face::modern::{self, Classified};
use crate::error_code;
use crate::exchange::{Ask, Call, CallKey, Client, Failure, Request, ServerInfo, SessionKey, Tell};
use crate::message::{Kind, Message};
use crate::method::Method;
use crate::session::Accepts;
use crate::time::Moment;
use crate::version::Era;
use events::EventQueue;
use input_rounds::{Addressee, InputRounds};
use listen::{ListenStep, Listening};
use response::Response;

pub use input_rounds::RetryRefusal;
pub use response::{Answer, Line, Reading};

/// How long a call waits for its client to come back with answers.
pub const WAITING_TIME: Duration = Duration::from_secs(600);
/// A modern request has one call, and one for opening its session.
const OPENING: CallKey = CallKey(0);
/// The key of the call that is the request itself.
pub const MAIN_CALL: CallKey = CallKey(1);

/// What the machine wants done.
#[derive(Debug)]
pub enum Output {
    /// There is something to read.
    Wake,
    /// Something for the backend.
    Ask(Ask),
    /// One request of the client has its answer. For the audit.
    Ended(ModernRequestRecord),
}

/// How one HTTP request ended.
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

/// The record of an answered request.
#[derive(Debug)]
pub struct ModernRequestRecord {
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

/// What the client's request is for.
#[derive(Debug)]
enum Aim {
    Discover,
    Call,
    Listen(Listening),
}

#[derive(Debug)]
enum Stage {
    /// A request is attached and waits.
    Running,
    /// No request is attached; the client has a question to answer.
    Parked {
        /// The newest progress or log line that came meanwhile.
        newest: Option<Message>,
        /// It waits for its client no longer than this.
        until: Moment,
    },
    /// The final answer is here and was given out, or no client wants it.
    Over,
}

/// One modern request.
///
/// [`Self::new`] returns the first asks. [`Self::handle_tell`] takes what the backend has for it,
/// and the driver takes the outputs that follow with [`Self::poll_output`]. The connection calls
/// [`Self::poll_answer`] when it is woken, or [`Self::poll_line`] if its client reads lines; once
/// the answer is a stream it calls [`Self::read`]. It does so at [`Self::next_deadline`] too, when
/// the server's questions are due. If these give a question, the driver seals a state and calls
/// [`Self::park`]: the request is answered, and [`Self::retry`] attaches the next one.
/// [`Self::handle_disconnect`] and [`Self::abandon`] end it early.
#[derive(Debug)]
pub struct ModernRequest {
    session: SessionKey,
    client: Arc<Client>,
    aim: Aim,
    /// The first request: what a retry must agree with.
    original: Message,
    /// The call as it was last sent.
    call: CallKey,
    response: Response,
    events: EventQueue,
    rounds: InputRounds,
    /// What the server has declared about itself.
    server: Option<Arc<ServerInfo>>,
    stage: Stage,
    /// The end of the whole modern request, from when it is known until it is given out.
    outcome: Option<Outcome>,
    outputs: VecDeque<Output>,
}

#[derive(Debug)]
enum Outcome {
    Discovered(Arc<ServerInfo>),
    Reply {
        message: Message,
        era: Era,
    },
    Failed(Failure),
    /// A listen that came to its end.
    Closed,
}

impl ModernRequest {
    /// Returns the machine for a request, and the asks for the backend in their order. A listen is
    /// answered by a stream, so its client has to accept events.
    pub fn new(
        session: SessionKey,
        client: Arc<Client>,
        now: Moment,
        message: Message,
        classified: Classified,
        accepts: Accepts,
    ) -> (Self, Vec<Ask>) {
        let aim = match classified {
            Classified::Discover => Aim::Discover,
            Classified::Call { .. } => Aim::Call,
            Classified::Listen => Aim::Listen(Listening::new(&message)),
        };
        let mut asks = vec![Ask::Open {
            session,
            call: OPENING,
            client: Arc::clone(&client),
            initialize: None,
            era: modern::ERA,
            wants_notifications: matches!(aim, Aim::Listen(_)),
        }];
        let modern_request = Self {
            session,
            client,
            aim,
            original: message.clone(),
            call: MAIN_CALL,
            response: Response::new(now, message, accepts),
            events: EventQueue::default(),
            rounds: InputRounds::default(),
            server: None,
            stage: Stage::Running,
            outcome: None,
            outputs: VecDeque::new(),
        };
        if matches!(modern_request.aim, Aim::Call) {
            asks.push(modern_request.send_call());
        }
        (modern_request, asks)
    }

    /// Returns the call, for the backend.
    fn send_call(&self) -> Ask {
        self.call_with(self.response.request().clone())
    }

    /// Returns the call with another message.
    fn call_with(&self, message: Message) -> Ask {
        Ask::Call(Call {
            session: self.session,
            call: self.call,
            request: Request::Plain,
            message,
            era: modern::ERA,
            mirrored: None,
            reads_events: self.response.accepts().reads_events(),
        })
    }

    /// Returns the client whose request this is.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Returns the key under which the backend knows it.
    pub fn session(&self) -> SessionKey {
        self.session
    }

    /// Returns whether it waits for the client to come back with answers.
    pub fn is_parked(&self) -> bool {
        matches!(self.stage, Stage::Parked { .. })
    }

    /// Returns until when it waits for its client, if it does.
    pub fn waits_until(&self) -> Option<Moment> {
        match self.stage {
            Stage::Parked { until, .. } => Some(until),
            Stage::Running | Stage::Over => None,
        }
    }

    /// Ends the request if its client did not come back in time.
    pub fn handle_tick(&mut self, now: Moment) {
        if self.waits_until().is_some_and(|until| until <= now) {
            self.abandon();
        }
    }

    /// Returns the HTTP status of the final answer, unless it is a failure or was sent as an event.
    pub fn answer_status(&self) -> u16 {
        self.response.status()
    }

    /// Returns whether nothing more will come of it.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Returns what is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn wake(&mut self) {
        self.outputs.push_back(Output::Wake);
    }

    // From the backend.

    /// Takes what the backend has for this request.
    pub fn handle_tell(&mut self, now: Moment, tell: Tell) {
        match tell {
            Tell::Opened { server_info, .. } => {
                self.server = Some(Arc::clone(&server_info));
                match &mut self.aim {
                    Aim::Discover => self.conclude(Outcome::Discovered(server_info)),
                    Aim::Listen(listening) => {
                        match listening.begin(self.session, &server_info, &self.client, self.response.id()) {
                            Ok(step) => self.follow(step),
                            Err(refusal) => {
                                let (message, era) = (refusal, modern::ERA);
                                self.conclude(Outcome::Reply { message, era });
                            }
                        }
                    }
                    Aim::Call => {}
                }
            }
            Tell::Reply {
                call, message, era, ..
            } => match (&mut self.aim, call) {
                // The handshake was refused, so there is nothing to listen to.
                (Aim::Listen(_), OPENING) => self.conclude(Outcome::Reply { message, era }),
                (Aim::Listen(_), _) => {
                    let granted = message.kind() == Kind::Result;
                    self.handle_listen_answer(call, granted, Some((&message, era)));
                }
                // The handshake was refused; the call that waited for it gets an answer of its own.
                (Aim::Call, OPENING) => {}
                (Aim::Call | Aim::Discover, _) => {
                    if !self.begin_url_elicitation(now, &message, era) {
                        self.conclude(Outcome::Reply { message, era });
                    }
                }
            },
            Tell::Done { call, .. } => self.handle_listen_answer(call, true, None),
            Tell::Failed { call, failure, .. } => match (&self.aim, call) {
                (Aim::Call, OPENING) => {}
                (Aim::Listen(_), OPENING) | (Aim::Call | Aim::Discover, _) => {
                    self.conclude(Outcome::Failed(failure));
                }
                (Aim::Listen(_), _) => self.handle_listen_answer(call, false, None),
            },
            Tell::Related { message, .. } => self.relate(message),
            Tell::Waiting { .. } => {
                if matches!(self.stage, Stage::Running) && self.response.stream() {
                    self.wake();
                }
            }
            Tell::Notice { message, .. } => {
                if let Aim::Listen(listening) = &mut self.aim {
                    let step = listening.handle_notice(self.session, &message, self.response.id());
                    self.follow(step);
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
                self.rounds.ask(now, Addressee::Server(question), message);
                self.wake();
            }
            Tell::Withdrawn { question, .. } => self.rounds.withdraw(question),
        }
    }

    /// Takes progress and log lines of the call.
    fn relate(&mut self, message: Message) {
        match &mut self.stage {
            Stage::Running => {
                if let Some(event) = self.response.event(&message, self.rounds.round())
                    && self.response.stream()
                {
                    self.push(event);
                }
            }
            // While no client reads, only the newest is of interest.
            Stage::Parked { newest, .. } => {
                if self.response.wants(&message) {
                    *newest = Some(message);
                }
            }
            Stage::Over => {}
        }
    }

    fn handle_listen_answer(&mut self, call: CallKey, granted: bool, reply: Option<(&Message, Era)>) {
        if let Aim::Listen(listening) = &mut self.aim {
            let step = listening.handle_answer(self.session, call, granted, reply, self.response.id());
            self.follow(step);
        }
    }

    /// Carries out the step of a listen: its event and its asks.
    fn follow(&mut self, step: ListenStep) {
        if let Some(event) = step.event {
            self.response.stream();
            self.push(event);
        }
        self.outputs.extend(step.asks.into_iter().map(Output::Ask));
    }

    fn push(&mut self, event: Bytes) {
        self.events.push(event);
        self.wake();
    }

    /// Returns how many bytes of events wait to be read.
    pub fn kept_bytes(&self) -> usize {
        self.events.bytes()
    }

    /// Drops the oldest events, at least so many bytes as far as there are any.
    pub fn drop_events(&mut self, bytes: usize) {
        self.events.shed(bytes);
    }

    fn conclude(&mut self, outcome: Outcome) {
        if self.outcome.is_none() && !self.is_over() {
            self.outcome = Some(outcome);
            self.rounds.clear();
            self.close();
            self.wake();
        }
    }

    /// Closes the user at the backend: its call is cancelled or has ended.
    fn close(&mut self) {
        let session = self.session;
        self.outputs.push_back(Output::Ask(Ask::Close { session }));
    }

    /// Ends a listen in the way its client understands: with a result.
    pub fn end_listen(&mut self) {
        if matches!(self.aim, Aim::Listen(_)) {
            self.conclude(Outcome::Closed);
        }
    }

    /// The instance has lost its state. Ends the modern request if it is still open.
    pub fn handle_lost_instance(&mut self, failure: &Failure) {
        self.conclude(Outcome::Failed(failure.clone()));
    }

    /// The client's connection is gone. In this era that cancels, unless the modern request is
    /// parked.
    pub fn handle_disconnect(&mut self) {
        if matches!(self.stage, Stage::Running) {
            self.abandon();
        }
    }

    /// Ends the modern request without an answer: the client has gone, or has not come back in
    /// time.
    pub fn abandon(&mut self) {
        if matches!(self.stage, Stage::Over) {
            return;
        }
        self.cancel_questions();
        let is_open = self.outcome.is_none();
        match (&self.stage, &self.aim) {
            // It has come to its end, though its client did not wait for it.
            (Stage::Running, _) if !is_open => {
                self.finish();
            }
            (Stage::Running, Aim::Call) => {
                self.record(Ending::Failed(Failure::Cancelled), Bytes::new());
            }
            (Stage::Running | Stage::Parked { .. } | Stage::Over, _) => {}
        }
        self.stage = Stage::Over;
        self.outcome = None;
        if is_open {
            self.close();
        }
        self.wake();
    }

    /// Ends the request with a failure instead of the questions that its client was to be asked.
    /// Returns the answer to the attached request.
    pub fn fail(&mut self, failure: Failure) -> Bytes {
        if matches!(self.stage, Stage::Over) {
            return modern::lower_failure(self.response.id(), &failure);
        }
        self.cancel_questions();
        if self.outcome.is_none() {
            self.outcome = Some(Outcome::Failed(failure));
            self.close();
        }
        let (body, _) = self.finish();
        body
    }

    /// Calls off the questions of the server that no client will answer.
    fn cancel_questions(&mut self) {
        for (addressee, message) in self.rounds.take() {
            // An elicitation can be called off in its own words; the rest is refused by the
            // backend.
            if let Addressee::Server(question) = addressee
                && message.method() == Method::ElicitationCreate
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
    }
}

/// Returns the HTTP status of an answered request, by its JSON-RPC error code. A server's -32601
/// means a missing method only where the server has not declared it; from a tool it is an error
/// like any other (2026-07-28, Streamable HTTP).
fn status_of(body: &[u8], is_declared: impl FnOnce() -> bool) -> u16 {
    match modern::error_code_of(body) {
        Some(error_code::METHOD_NOT_FOUND) if !is_declared() => 404,
        Some(
            error_code::HEADER_MISMATCH | error_code::MISSING_CAPABILITY | error_code::UNSUPPORTED_VERSION,
        ) => 400,
        Some(_) | None => 200,
    }
}
