//! One client on a stream of lines: which era it speaks, what is refused at once, and whose answer
//! a line is.
//!
//! The machine reads a client's lines and decides where each goes: to the one session of a legacy
//! client, or to a modern request of its own. Answers are gathered as lines for the client's
//! standard input. The machine bounds both directions. When too much waits,
//! [`LineClient::wants_lines`] is false and the caller stops reading: back-pressure on stdin. It
//! never judges what a server answers.
//!
//! A client's era is settled by its first request other than `server/discover`, which clients of
//! both eras send to probe (2026-07-28, stdio, "Backward Compatibility"). A handshake that fails
//! settles nothing.

mod modern_side;
mod opening;
mod outgoing;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::client_face::modern::Classified;
use crate::client_face::{legacy, modern};
use crate::error_code;
use crate::exchange::Failure;
use crate::message::{Kind, Member, Message, ScanError};
use crate::method::Method;
use crate::session::{Ending, OutgoingLine};
use crate::time::Moment;
use crate::wire::line::{EnvelopeSeeker, Frame, TooLong};
use modern_side::OpenModernRequest;
use opening::Opening;
use outgoing::OutgoingBuffer;

/// How much may wait, and how long a client may be left wondering.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Messages of the client that have no outcome yet.
    pub messages: usize,
    /// Their bytes; the same again may wait to be read by the client.
    pub bytes: usize,
    /// The longest line.
    pub line: usize,
    /// How long the server may take to answer a client that only wants to know which era is spoken.
    pub probe: Duration,
}

/// A modern request that is under way. Unique within its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModernRequestKey(pub u64);

/// What the machine wants done.
#[derive(Debug)]
pub enum Output {
    /// Open a session with this message: an `initialize`, or a first request without one. What the
    /// session sends is to be passed to [`LineClient::handle_session_line`].
    Open(Message),
    /// Give this message to the session.
    Take(Message),
    /// The session is not wanted any more.
    Close,
    /// Set out on a modern request.
    Start {
        /// The key under which it is answered.
        modern_request: ModernRequestKey,
        /// The request.
        message: Message,
        /// What it asks for.
        classified: Classified,
    },
    /// No client waits for this modern request any more.
    Abandon(ModernRequestKey),
}

/// Counts of events that the client did not receive an answer about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Notifications that were dropped because the client does not read.
    pub dropped: u64,
    /// Lines that were no messages.
    pub malformed: u64,
    /// How often no more lines were wanted.
    pub stalls: u64,
}

/// What is known about the client.
#[derive(Debug)]
enum ClientState {
    /// Nothing yet.
    Undecided,
    /// Its session is being opened.
    Opening(Box<Opening>),
    Legacy,
    Modern,
}

/// The client's messages that have no outcome yet.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    messages: usize,
    bytes: usize,
}

impl Load {
    fn add(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// The machine.
#[derive(Debug)]
pub struct LineClient {
    limits: Limits,
    state: ClientState,
    load: Load,
    modern_requests: BTreeMap<ModernRequestKey, OpenModernRequest>,
    next_modern_request: u64,
    outgoing: OutgoingBuffer,
    outputs: VecDeque<Output>,
    counters: Counters,
    stalled: bool,
    ended: bool,
}

impl LineClient {
    /// Returns a client that has sent nothing yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: ClientState::Undecided,
            load: Load::default(),
            modern_requests: BTreeMap::new(),
            next_modern_request: 1,
            outgoing: OutgoingBuffer::default(),
            outputs: VecDeque::new(),
            counters: Counters::default(),
            stalled: false,
            ended: false,
        }
    }

    /// Returns what is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns how often something was dropped or refused.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Requests that have no answer yet.
    pub fn open_requests(&self) -> usize {
        self.load.messages
    }

    /// Returns whether there is room for another line. While there is none, nothing is to be read.
    pub fn wants_lines(&mut self) -> bool {
        let full = self.load.messages >= self.limits.messages
            || self.load.bytes >= self.limits.bytes
            || self.outgoing.len() >= self.limits.bytes;
        if full && !std::mem::replace(&mut self.stalled, full) {
            self.counters.stalls += 1;
        }
        self.stalled = full;
        !full && !self.ended
    }

    /// Returns whether there is something for the client to read.
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Exchanges an empty buffer for everything that waits to be written. What was taken before is
    /// written now.
    pub fn take_outgoing(&mut self, empty: BytesMut) -> BytesMut {
        self.outgoing.take(empty)
    }

    // From the client.

    /// Takes one line. An over-long or malformed one is answered if its id can be read.
    pub fn handle_frame(&mut self, now: Moment, frame: Frame) {
        match frame {
            Frame::Line(line) => match Message::scan(apart(line.clone())) {
                Ok(message) => self.handle_message(now, message),
                Err(error) => self.refuse_line(&line, error),
            },
            Frame::TooLong(long) => self.refuse_long(&long),
        }
    }

    fn handle_message(&mut self, now: Moment, message: Message) {
        if self.ended {
            return;
        }
        match &self.state {
            ClientState::Undecided => self.classify(now, message),
            ClientState::Opening(_) => self.hold(message),
            ClientState::Legacy => self.take(message),
            ClientState::Modern => self.handle_modern(now, message),
        }
    }

    /// A message of a client of which nothing is known.
    fn classify(&mut self, now: Moment, message: Message) {
        let described = modern::is_modern(&message) || message.method() == Method::ServerDiscover;
        match message.kind() {
            Kind::Request if described => self.start_modern_request(now, message),
            Kind::Request => match legacy::lift(&message) {
                Ok(legacy::Classified::Ping) => self.answer_ping(&message),
                Ok(_) => self.open(message),
                Err(invalid) => self.reject(&message, invalid),
            },
            // A probe may be cancelled like any request. No other notification has a receiver yet.
            Kind::Notification => self.handle_cancellation(&message),
            Kind::Result | Kind::Error => {}
        }
    }

    /// A message for the session.
    fn take(&mut self, message: Message) {
        match (message.kind(), message.method()) {
            // A client with a session does not need it, and a legacy server may not know it.
            (Kind::Request, Method::ServerDiscover) => {
                self.refuse(
                    &message,
                    error_code::METHOD_NOT_FOUND,
                    "this conversation began with `initialize`",
                );
            }
            (Kind::Request, _) => {
                self.load.add(message.len());
                self.outputs.push_back(Output::Take(message));
            }
            (Kind::Notification | Kind::Result | Kind::Error, _) => {
                self.outputs.push_back(Output::Take(message));
            }
        }
    }

    fn answer_ping(&mut self, message: &Message) {
        let line = legacy::lower_done(message.raw(Member::Id).unwrap_or_default());
        self.outgoing.push(&line);
    }

    fn reject(&mut self, message: &Message, invalid: legacy::InvalidRequest) {
        self.refuse(message, invalid.code(), invalid.text());
    }

    fn refuse(&mut self, message: &Message, code: i32, text: &str) {
        let id = message.raw(Member::Id).filter(|_| message.has_valid_id());
        let line = legacy::error(id, code, text, None);
        self.outgoing.push(&line);
    }

    fn refuse_line(&mut self, line: &[u8], error: ScanError) {
        self.counters.malformed += 1;
        let mut seeker = EnvelopeSeeker::default();
        seeker.feed(line);
        let (id, method) = seeker.finish();
        self.send_malformed(id.filter(|_| method).as_deref(), error.code(), &error.to_string());
    }

    fn refuse_long(&mut self, long: &TooLong) {
        self.counters.malformed += 1;
        let text = format!(
            "the message has {} bytes, more than max_message_bytes ({}) allows",
            long.length, self.limits.line
        );
        match (&long.id, long.method) {
            (Some(id), true) => self.send_malformed(Some(id), error_code::INVALID_REQUEST, &text),
            // The answer to a server's question: the server waits for it.
            (Some(id), false) if matches!(self.state, ClientState::Legacy) => {
                let line = legacy::error(Some(id), error_code::INTERNAL_ERROR, &text, None);
                if let Ok(answer) = Message::scan(line) {
                    self.outputs.push_back(Output::Take(answer));
                }
            }
            // A notification, which has no answer.
            (None, true) => {}
            (Some(_) | None, false) => self.send_malformed(None, error_code::INVALID_REQUEST, &text),
        }
    }

    fn send_malformed(&mut self, id: Option<&[u8]>, code: i32, text: &str) {
        // Null is an id in the legacy era only.
        let line = match self.state {
            ClientState::Modern => modern::error(id, code, text, None),
            ClientState::Undecided | ClientState::Opening(_) | ClientState::Legacy => {
                legacy::error(id, code, text, None)
            }
        };
        self.outgoing.push(&line);
    }

    /// The client has closed its side: no request has a receiver any more.
    pub fn handle_end(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        for modern_request in std::mem::take(&mut self.modern_requests).into_keys() {
            self.outputs.push_back(Output::Abandon(modern_request));
        }
        match std::mem::replace(&mut self.state, ClientState::Undecided) {
            ClientState::Opening(_) | ClientState::Legacy => self.outputs.push_back(Output::Close),
            ClientState::Undecided | ClientState::Modern => {}
        }
        self.load = Load::default();
    }

    // From the session.

    /// Takes what the session sends.
    pub fn handle_session_line(&mut self, now: Moment, line: OutgoingLine) {
        if self.ended {
            return;
        }
        match line {
            OutgoingLine::Opened => self.settle_on_legacy(),
            OutgoingLine::Answer {
                line,
                ending,
                request_bytes,
            } => {
                if matches!(self.state, ClientState::Opening(_)) {
                    self.handle_open_refused(now, &line.into_bytes(), request_bytes);
                    return;
                }
                self.load.remove(request_bytes);
                // A client that has cancelled a request expects no answer (2025-03-26,
                // cancellation).
                if ending != Ending::Failed(Failure::Cancelled) {
                    self.outgoing.push_written(&line);
                }
            }
            OutgoingLine::Question(line) => self.outgoing.push(&line),
            OutgoingLine::Notice(line) => self.notify(&line),
        }
    }

    /// The session would not take a request, or answered it at once.
    pub fn handle_answered_at_once(&mut self, now: Moment, request_bytes: usize, line: &Bytes) {
        match self.state {
            _ if self.ended => {}
            // The request was to open the session: there will be no other answer by which its
            // client could go on.
            ClientState::Opening(_) => self.handle_open_refused(now, line, request_bytes),
            ClientState::Undecided | ClientState::Legacy | ClientState::Modern => {
                self.load.remove(request_bytes);
                self.outgoing.push(line);
            }
        }
    }

    /// Something that may be lost if the client does not read.
    fn notify(&mut self, line: &Bytes) {
        if self.outgoing.len() >= self.limits.bytes {
            self.counters.dropped += 1;
        } else {
            self.outgoing.push(line);
        }
    }
}

/// A line of its own: it is a part of the buffer it was read into, which one that waits would keep
/// alive as a whole. A large one nearly fills its buffer.
fn apart(line: Bytes) -> Bytes {
    const LARGE: usize = 1 << 20;
    if line.len() < LARGE {
        Bytes::copy_from_slice(&line)
    } else {
        line
    }
}

#[cfg(test)]
mod tests;
