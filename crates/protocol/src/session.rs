//! One legacy client: its open calls, its streams, and when its session expires.
//!
//! The machine takes a client's messages and returns asks. It takes tells and turns them into what
//! its client reads. If the response to a call comes first, it is the JSON body of the POST.
//! Anything else about the call turns the response into a stream. A stream is a log (see
//! [`replay`]), and a connection reads it.
//!
//! | Machine | State |
//! |---|---|
//! | `handshake` | the revision, and whether the server has answered the handshake |
//! | `calls` | open calls, their answers, and streams that outlive them |
//! | `notices` | what is about no call, and the streams opened by GET that read it |
//! | `questions` | requests of the server that the client has not answered |
//! | `restoration` | what the client has set, for a session that is to outlive its process |

mod calls;
mod handshake;
mod line_output;
mod notices;
mod questions;
mod readers;
pub mod replay;
mod restoration;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::client_face::legacy::{self, Classified, InvalidRequest};
use crate::eviction::Usage;
use crate::exchange::{Ask, Call, CallKey, Client, Failure, SessionKey, SessionState, Tell};
use crate::message::{Kind, Member, Message, Written};
use crate::time::{Moment, earliest};
use crate::version::Version;
use calls::{Calls, Completed, OpenCall};
use handshake::Handshake;
use line_output::OutputMode;
use notices::Notices;
use questions::Questions;
use replay::{Audience, ByteSum, EventId, Retention, StreamKey};
use restoration::{EventOrigin, KeptState};

/// How long a session may be idle that its client never opened.
pub const IMPLICIT_IDLE: Duration = Duration::from_secs(60);

pub use line_output::OutgoingLine;
pub use readers::{Answer, Reader, Reading, StreamRefusal};
pub use restoration::{Hello, Restored, TOKEN_MARK};

/// Answers that connections wait to read may exceed the budget of a session this many times: a
/// reader that is as fast as the server is not to lose an answer.
const AWAITED_FACTOR: usize = 4;

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
    /// How long a question waits for a connection that reads its stream.
    pub question_timeout: Duration,
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
            question_timeout: Duration::from_secs(5),
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
    /// Nothing on the POST itself: every message goes to the session's one stream (2024-11-05, HTTP
    /// with SSE).
    OneStream,
}

impl Accepts {
    /// Returns whether the client reads events. Such a client gets HTTP 200 and a JSON-RPC error
    /// for an accepted call that fails; a client that takes JSON only gets an HTTP status.
    ///
    /// The official Python clients 1.x end their session, with every call in flight, on a status of
    /// 500 or above.
    pub fn reads_events(self) -> bool {
        match self {
            Self::Json => false,
            Self::Events | Self::Both | Self::OneStream => true,
        }
    }
}

/// What became of a client's message.
#[derive(Debug)]
pub enum Accepted {
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
pub enum Rejection {
    /// The message is not valid.
    Invalid(InvalidRequest),
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
    /// An ask beside that of a message: a question that no client can answer is refused, or the
    /// handshake is repeated.
    Ask(Box<Ask>),
    /// Something for a client that reads lines.
    Line(OutgoingLine),
    /// A call has come to its end. For the audit.
    Ended(Box<CallRecord>),
    /// The client has set something that its server must receive again if the session is restored.
    StateChanged(Box<SessionState>),
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

/// The record of a call that has ended.
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
    /// The answer is part of a stream.
    pub streamed: bool,
}

/// One legacy client.
///
/// [`Session::handle_message`] takes what the client sends and [`Session::handle_tell`] what the
/// backend has for it; both may queue outputs, which the driver takes with
/// [`Session::poll_output`], before it sends the ask of a message. The connection of a POST calls
/// [`Session::poll_answer`] when it is woken, and [`Session::abandon`] if it ends before the
/// answer. The connection of a stream begins with [`Session::listen`] or [`Session::resume`] (or
/// with the [`Reader`] of an answer), calls [`Session::read`] when it is woken, and ends with
/// [`Session::handle_disconnect`]. [`Session::handle_tick`] is due about once a second. After
/// [`Session::end`] no message is accepted; open calls still get their answers.
#[derive(Debug)]
pub struct Session {
    key: SessionKey,
    client: Arc<Client>,
    limits: Limits,
    output_mode: OutputMode,
    handshake: Handshake,
    calls: Calls,
    notices: Notices,
    questions: Questions,
    /// The key of the next call or stream.
    next: u64,
    activity: Activity,
    outputs: VecDeque<Output>,
    events_lost: u64,
    /// `None`: the session ends with its process. Boxed, because most sessions do.
    kept_state: Option<Box<KeptState>>,
}

/// How the client uses its session.
#[derive(Debug)]
struct Activity {
    last_seen: Moment,
    /// The client closed its last GET stream and has sent nothing since. Official TypeScript
    /// clients end in this way.
    stream_closed: bool,
    ended: bool,
}

impl Activity {
    /// Notes that the client has sent something.
    const fn note_request(&mut self, now: Moment) {
        self.last_seen = now;
        self.stream_closed = false;
    }
}

impl Session {
    /// Returns a session for a client that has just sent `initialize`, and the ask that opens it.
    pub fn open(
        key: SessionKey,
        client: Arc<Client>,
        limits: Limits,
        now: Moment,
        initialize: Message,
        accepts: Accepts,
    ) -> (Self, CallKey, Ask) {
        let asked = initialize
            .text(Member::ProtocolVersion)
            .and_then(|text| Version::parse(&text));
        let mut session = Self::new(key, client, limits, now, asked, false);
        let call = session.begin(now, Some(initialize.clone()), accepts);
        let client = Arc::clone(&session.client);
        let ask = Ask::Open {
            session: key,
            call,
            client,
            initialize: Some(initialize),
            era: legacy::ERA,
            wants_notifications: true,
        };
        (session, call, ask)
    }

    /// Returns a session for a client that did not open one: Rialto does the handshake itself.
    pub fn open_implicit(
        key: SessionKey,
        client: Arc<Client>,
        limits: Limits,
        now: Moment,
        version: Version,
    ) -> (Self, Ask) {
        let mut session = Self::new(key, client, limits, now, Some(version), true);
        let ask = session.request_open(now);
        (session, ask)
    }

    /// Begins a handshake of Rialto's own.
    fn request_open(&mut self, now: Moment) -> Ask {
        let call = self.begin(now, None, Accepts::Json);
        if let Some(restore) = self.restoration(call) {
            return restore;
        }
        Ask::Open {
            session: self.key,
            call,
            client: Arc::clone(&self.client),
            initialize: None,
            era: legacy::ERA,
            wants_notifications: true,
        }
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
            output_mode: OutputMode::Streams,
            handshake: Handshake::new(asked, implicit),
            calls: Calls::counted_in(&kept),
            notices: Notices::counted_in(&kept),
            questions: Questions::default(),
            next: 1,
            activity: Activity {
                last_seen: now,
                stream_closed: false,
                ended: false,
            },
            outputs: VecDeque::new(),
            events_lost: 0,
            kept_state: None,
        }
    }

    fn begin(&mut self, now: Moment, message: Option<Message>, accepts: Accepts) -> CallKey {
        let call = CallKey(self.new_key());
        self.calls.begin(now, call, message, accepts);
        call
    }

    fn new_key(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
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
        self.handshake.version()
    }

    /// Returns whether Rialto opened it for a client that never sent `initialize`.
    pub fn is_implicit(&self) -> bool {
        self.handshake.is_implicit()
    }

    /// Returns whether the session is open: the server has answered the handshake.
    pub fn is_opened(&self) -> bool {
        self.handshake.is_opened()
    }

    /// Returns how many events were dropped before they were read.
    pub fn events_lost(&self) -> u64 {
        self.events_lost
    }

    /// Returns the number of questions that the client has not answered.
    #[doc(hidden)]
    pub fn open_questions(&self) -> usize {
        self.questions.len()
    }

    /// Returns how many calls have not ended, or have an answer that was not read yet.
    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// Returns the number of streams whose call has ended and that may still be resumed.
    #[doc(hidden)]
    pub fn past_streams(&self) -> usize {
        self.calls.past()
    }

    /// Returns the number of streams opened by GET, read or not.
    #[doc(hidden)]
    pub fn listening_streams(&self) -> usize {
        self.notices.streams().count()
    }

    /// Returns how many bytes of events are kept.
    pub fn kept_bytes(&self) -> usize {
        self.calls.kept_bytes()
    }

    /// Returns when the oldest kept event came.
    pub fn oldest_event(&self) -> Option<Moment> {
        earliest(self.calls.oldest_event(), self.notices.oldest_event())
    }

    /// Drops the oldest events, at least so many bytes as far as they may go.
    pub fn drop_events(&mut self, bytes: usize) {
        let limit = self.kept_bytes().saturating_sub(bytes);
        self.shed_to(limit);
        self.events_lost += self.calls.give_up_answers(limit);
    }

    /// Returns the number of bytes held for readers.
    #[doc(hidden)]
    pub fn held_bytes(&self) -> usize {
        self.kept_bytes() + self.calls.answer_bytes()
    }

    /// Returns whether a stream whose call has ended has events that were not read, so that its
    /// client may come back for them with `Last-Event-ID`.
    pub fn has_unread_answers(&self) -> bool {
        self.calls.has_unread()
    }

    /// Returns what is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns since when this session is idle; `None` while a call or a stream is open.
    pub fn idle_since(&self) -> Option<Moment> {
        let in_use = self.calls.is_in_use() || self.notices.is_connected();
        (!in_use).then_some(self.activity.last_seen)
    }

    /// Returns whether the session has been idle for longer than it may; `limit` is that of
    /// sessions that a client opened.
    pub fn is_expired(&self, now: Moment, limit: Duration) -> bool {
        let limit = if self.is_implicit() { IMPLICIT_IDLE } else { limit };
        self.idle_since().is_some_and(|since| now.since(since) > limit)
    }

    /// Returns how far the client still uses this session.
    pub fn usage(&self) -> Usage {
        match self.idle_since() {
            None => Usage::Active,
            Some(since) if self.is_implicit() => Usage::Implicit(since),
            Some(since) if self.activity.stream_closed => Usage::StreamClosed(since),
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
    ) -> Result<Accepted, Rejection> {
        if self.activity.ended {
            return Err(Rejection::Ended);
        }
        self.activity.note_request(now);
        let session = self.key;
        Ok(match legacy::lift(&message).map_err(Rejection::Invalid)? {
            Classified::Initialize => return Err(Rejection::AlreadyOpen),
            Classified::Ping => {
                let body = legacy::lower_done(message.raw(Member::Id).unwrap_or_default());
                match accepts {
                    Accepts::Json | Accepts::Events | Accepts::Both => Accepted::Answered(body),
                    Accepts::OneStream => {
                        self.notice(now, &body, Audience::All);
                        Accepted::Noted(None)
                    }
                }
            }
            Classified::Request(request) => {
                if self.calls.len() >= self.limits.calls {
                    return Err(Rejection::TooManyCalls);
                }
                if self.handshake.begin_again() {
                    let open = self.request_open(now);
                    self.outputs.push_back(Output::Ask(Box::new(open)));
                }
                let call = self.begin(now, Some(message.clone()), accepts);
                Accepted::Call {
                    call,
                    ask: Ask::Call(Call {
                        session,
                        call,
                        request,
                        message,
                        era: legacy::ERA,
                        mirrored: None,
                        reads_events: accepts.reads_events(),
                    }),
                }
            }
            Classified::Ready => Accepted::Noted(Some(Ask::Ready { session, message })),
            Classified::Cancel(id) => Accepted::Noted(self.calls.with_id(&id).map(|call| Ask::Cancel {
                session,
                call,
                message: Some(message),
            })),
            Classified::Answer(question) => Accepted::Noted(
                question
                    .filter(|question| self.questions.remove(*question).is_some())
                    .map(|question| Ask::Answer {
                        session,
                        question,
                        message,
                    }),
            ),
            Classified::Notice => Accepted::Noted(Some(Ask::Notice { session, message })),
        })
    }

    /// Returns whether the session has ended.
    pub const fn is_ended(&self) -> bool {
        self.activity.ended
    }

    /// Ends the session, and with it the streams that were opened by GET.
    pub fn end(&mut self) -> Option<Ask> {
        if std::mem::replace(&mut self.activity.ended, true) {
            return None;
        }
        let streams = self.notices.streams();
        self.outputs.extend(streams.map(Output::Wake));
        Some(Ask::Close { session: self.key })
    }

    // From the backend.

    /// Takes what the backend has for this session.
    pub fn handle_tell(&mut self, now: Moment, tell: Tell) {
        match tell {
            Tell::Opened {
                call, server_info, ..
            } => {
                let body = self.handshake.handle_server_info(&self.id_of(call), &server_info);
                if self.reads_lines() {
                    self.send_line(OutgoingLine::Opened);
                }
                self.finish(now, call, Ending::Result, body);
            }
            Tell::Reply {
                call, message, era, ..
            } => {
                let ending = match message.kind() {
                    Kind::Error => Ending::Error,
                    Kind::Result | Kind::Request | Kind::Notification => Ending::Result,
                };
                if let Some(open) = self.calls.get(call) {
                    if open.message().is_none() {
                        self.handshake.handle_refusal();
                    }
                    let body = legacy::lower_reply(open.id(), &message, era, open.method());
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
                if !self.reads_lines() && self.calls.upgrade(call).is_some() {
                    self.outputs.push_back(Output::Wake(StreamKey(call.0)));
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
            } => self.withdraw(now, question, message.as_ref()),
        }
    }

    fn id_of(&self, call: CallKey) -> Bytes {
        let message = self.calls.get(call).and_then(OpenCall::message);
        message
            .and_then(|message| message.raw_bytes(Member::Id))
            .unwrap_or(Bytes::from_static(b"null"))
    }

    /// Adds an event to a call's own stream. Returns whether there is one.
    fn relate(&mut self, now: Moment, call: CallKey, data: impl FnOnce() -> Bytes) -> bool {
        let lost = match self.output_mode {
            OutputMode::Streams => self.calls.push(now, call, data, &self.limits.retention),
            OutputMode::Lines => None,
        };
        let Some(lost) = lost else { return false };
        self.events_lost += lost;
        self.outputs.push_back(Output::Wake(StreamKey(call.0)));
        self.shed_to(self.limits.retention.bytes);
        true
    }

    /// Adds what is about no call. Returns its number.
    fn notice(&mut self, now: Moment, data: &Bytes, audience: Audience) -> u64 {
        if self.reads_lines() {
            self.send_line(OutgoingLine::Notice(data.clone()));
            return 0;
        }
        let data = Bytes::copy_from_slice(data);
        self.events_lost += self.notices.push(now, data, audience, &self.limits.retention);
        self.shed_to(self.limits.retention.bytes);
        self.outputs
            .extend(self.notices.connected_streams().map(Output::Wake));
        self.notices.newest()
    }

    fn finish(&mut self, now: Moment, key: CallKey, ending: Ending, body: impl Into<Written>) {
        let body = body.into();
        let Some(call) = self.calls.take(key) else {
            return;
        };
        self.activity.last_seen = self.activity.last_seen.max(now);
        // A handshake that Rialto does by itself has no client that waits for its answer.
        if let (OutputMode::Lines, Some(message)) = (self.output_mode, call.message()) {
            self.send_line(OutgoingLine::Answer {
                line: body.clone(),
                ending: ending.clone(),
                request_bytes: message.len(),
            });
        }
        if let Some(record) = call.record(key, &ending, &body) {
            self.outputs.push_back(Output::Ended(Box::new(record)));
        }
        // Before the answer is shown, so that what a client was confirmed can be written down
        // first.
        if let (Some(kept), Ending::Result, Some(message)) = (&mut self.kept_state, &ending, call.message())
            && let Some(state) = kept.handle_success(message)
        {
            self.outputs.push_back(Output::StateChanged(Box::new(state)));
        }
        if self.reads_lines() {
            return;
        }
        if call.accepts() == Accepts::OneStream {
            self.notice(now, &body.into_bytes(), Audience::All);
            return;
        }
        let failure = match ending {
            Ending::Failed(failure) => Some(failure),
            Ending::Result | Ending::Error => None,
        };
        match self.calls.complete(now, key, call, body, failure, &self.limits) {
            Completed::Streamed { lost } => {
                let limit = self.limits.retention.bytes;
                self.events_lost += lost;
                self.shed_to(limit);
                let given_up = self.calls.give_up_answers(AWAITED_FACTOR.saturating_mul(limit));
                self.events_lost += given_up;
            }
            Completed::Kept => {}
            Completed::Unwanted => return,
        }
        self.outputs.push_back(Output::Wake(StreamKey(key.0)));
    }

    /// Drops events until all logs together keep no more than `limit`, the oldest of the session
    /// first. The newest event of a log goes only after all older ones, and never while a
    /// connection waits to read it: it is that call's answer, or will be followed by it.
    fn shed_to(&mut self, limit: usize) {
        while self.kept_bytes() > limit {
            let lost = match (self.calls.next_to_shed(), self.notices.next_to_shed()) {
                (None, None) => return,
                (Some((order, target)), notices) if notices.is_none_or(|notices| order <= notices) => {
                    self.calls.drop_oldest(target)
                }
                (_, Some(_)) | (Some(_), None) => self.notices.drop_oldest(),
            };
            if lost == 0 {
                return;
            }
            self.events_lost += lost;
        }
    }

    /// The instance has lost its state. Ends the calls that are still open.
    pub fn handle_lost_instance(&mut self, now: Moment, failure: &Failure) {
        for call in self.calls.unanswered() {
            let (session, failure) = (self.key, failure.clone());
            let tell = Tell::Failed {
                session,
                call,
                failure,
            };
            self.handle_tell(now, tell);
        }
    }

    // From the connections.

    /// Returns what there is of a call's answer.
    pub fn poll_answer(&mut self, call: CallKey) -> Answer {
        self.calls.poll(call)
    }

    /// The connection that waited for a call's answer is gone. The call goes on: in this era a
    /// disconnection is not a cancellation.
    pub fn abandon(&mut self, call: CallKey) {
        self.calls.abandon(call);
    }

    /// Opens a stream for notices.
    pub fn listen(&mut self, now: Moment) -> Result<Reader, StreamRefusal> {
        self.open_stream(now, false)
    }

    /// Opens the one stream of the old transport, for everything that is sent in this session.
    pub fn listen_to_all(&mut self, now: Moment) -> Result<Reader, StreamRefusal> {
        self.open_stream(now, true)
    }

    fn open_stream(&mut self, now: Moment, sole: bool) -> Result<Reader, StreamRefusal> {
        self.activity.note_request(now);
        let stream = StreamKey(self.new_key());
        self.notices.open(now, stream, sole, &self.limits)
    }

    /// Goes on where a broken stream was left.
    pub fn resume(&mut self, now: Moment, last: &str) -> Result<Reader, StreamRefusal> {
        self.activity.note_request(now);
        let last = match self.event_origin(last) {
            EventOrigin::ThisProcess(last) => last,
            EventOrigin::LostCall => return Err(StreamRefusal::Lost),
            EventOrigin::LostNotices => return self.listen(now),
        };
        let event = EventId::parse(last).ok_or(StreamRefusal::UnknownEvent)?;
        let resumed = self.notices.resume(event);
        let reader = resumed.unwrap_or_else(|| self.calls.resume(event))?;
        self.outputs.push_back(Output::Wake(reader.stream));
        Ok(reader)
    }

    /// Writes what is new on a stream into `out` as events.
    pub fn read(&mut self, now: Moment, reader: Reader, out: &mut BytesMut) -> Reading {
        let (primes, is_over) = (self.version().primes_streams(), self.activity.ended);
        let notices = self.notices.read(reader, primes, is_over, &self.questions, out);
        let Some(reading) = notices else {
            return self.calls.read(reader, primes, out);
        };
        if reading == Reading::Open {
            self.activity.last_seen = now;
        }
        reading
    }

    /// Adds an event to the stream on which everything is sent.
    pub fn announce(&mut self, now: Moment, data: &Bytes) {
        self.notice(now, data, Audience::All);
    }

    /// The connection that read this stream is gone.
    pub fn handle_disconnect(&mut self, now: Moment, reader: Reader) {
        if !self.notices.has(reader.stream) {
            return self.calls.handle_disconnect(now, reader, &self.limits);
        }
        if self.notices.handle_disconnect(now, reader) {
            self.activity.last_seen = now;
            self.activity.stream_closed = !self.notices.is_connected();
        }
        self.notices.forget_listeners(now, &self.limits);
    }

    // From the clock. Housekeeping is cheap and never urgent, so it asks for no particular moment.

    /// Forgets what is too old. To be called about once a second.
    pub fn handle_tick(&mut self, now: Moment) {
        self.calls.forget_past(now, &self.limits);
        self.notices.forget_old(now, &self.limits);
        self.shed_to(self.limits.retention.bytes);
        self.give_up_questions(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Principal;

    #[test]
    fn session_that_its_client_never_opened_expires_after_a_minute() {
        let client = || Arc::new(Client::declaring(Principal::anonymous(), None, None));
        let (key, limits, version) = (SessionKey(1), Limits::default(), Version::NEWEST_LEGACY);
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}"#;
        let message = Message::own(text.to_owned());
        let (implicit, ask) = Session::open_implicit(key, client(), limits.clone(), Moment::START, version);
        let Ask::Open { call: opening, .. } = ask else {
            panic!("a session opens with a handshake");
        };
        let (opened, call, _) = Session::open(key, client(), limits, Moment::START, message, Accepts::Json);
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
        let idle = Usage::Idle(Moment::START);
        for (mut session, call, limit, usage) in [
            (implicit, opening, minute, Usage::Implicit(Moment::START)),
            (opened, call, hour, idle),
        ] {
            let later = Moment::START.after(limit + Duration::from_millis(1));
            assert!(!session.is_expired(later, hour), "its handshake is a call");
            session.handle_lost_instance(Moment::START, &Failure::SessionEnded);
            session.poll_answer(call);
            assert_eq!(session.usage(), usage);
            assert!(!session.is_expired(Moment::START.after(limit), hour));
            assert!(session.is_expired(later, hour));
            assert!(!session.is_ended());
            assert!(session.end().is_some());
            assert!(session.is_ended() && session.end().is_none());
        }
    }
}
