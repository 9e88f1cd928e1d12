//! The events and the answer of a modern request, for the HTTP request that is attached to it.

use bytes::{Bytes, BytesMut};

use super::{Ending, ModernRequest, ModernRequestRecord, Outcome, Output, Stage, listen, status_of};
use crate::client_face::modern;
use crate::exchange::Failure;
use crate::message::{Kind, Member, Message};
use crate::method::{LogLevel, Method};
use crate::session::Accepts;
use crate::time::Moment;
use crate::wire::sse;

/// What can be read of the answer to the request that is attached.
#[derive(Debug)]
pub enum Answer {
    /// There is none yet.
    Waiting,
    /// All of it; `failure` or the body's error code decide the HTTP status.
    Complete {
        /// The JSON-RPC response.
        body: Bytes,
        /// Set if the server gave no answer.
        failure: Option<Failure>,
    },
    /// The server asks: seal a state for this round and give it to [`ModernRequest::park`].
    Ask {
        /// The number of the round.
        round: u32,
    },
    /// It comes as events: read them.
    Stream,
}

/// What reading gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// More may follow.
    Open,
    /// Everything was read.
    Ended,
    /// The stream ends with a question: seal a state for this round and give it to
    /// [`ModernRequest::park`], then read on.
    Ask {
        /// The number of the round.
        round: u32,
    },
}

/// What there is for a client that reads lines.
#[derive(Debug)]
pub enum Line {
    /// There is nothing yet.
    Waiting,
    /// Something about the request; more follows.
    Event(Bytes),
    /// The final answer.
    Answer {
        /// The JSON-RPC response.
        body: Bytes,
        /// Set if the server gave no answer.
        failure: Option<Failure>,
    },
    /// The server asks: seal a state for this round and give it to [`ModernRequest::park`].
    Ask {
        /// The number of the round.
        round: u32,
    },
    /// The modern request was abandoned; nothing will be sent.
    Over,
}

/// The request that is attached, or was last, and how it is answered: as one body, or as a stream
/// from the moment at which [`Response::stream`] was called.
#[derive(Debug)]
pub(super) struct Response {
    request: Message,
    started: Moment,
    accepts: Accepts,
    /// The log lines that the client wants.
    level: Option<LogLevel>,
    streaming: bool,
    /// The HTTP status of the final answer, if it is sent as JSON.
    status: u16,
}

impl Response {
    pub(super) fn new(now: Moment, request: Message, accepts: Accepts) -> Self {
        Self {
            level: modern::log_level(&request),
            request,
            started: now,
            accepts,
            streaming: false,
            status: 200,
        }
    }

    pub(super) const fn request(&self) -> &Message {
        &self.request
    }

    pub(super) fn id(&self) -> &[u8] {
        self.request.raw(Member::Id).unwrap_or(b"null")
    }

    pub(super) const fn accepts(&self) -> Accepts {
        self.accepts
    }

    pub(super) const fn status(&self) -> u16 {
        self.status
    }

    /// Makes the response a stream, if its client reads streams. Returns whether it is one.
    pub(super) fn stream(&mut self) -> bool {
        self.streaming |= self.accepts != Accepts::Json;
        self.streaming
    }

    /// Returns whether the response is a stream, or has to be one because the client reads nothing
    /// else.
    fn must_stream(&mut self) -> bool {
        self.streaming |= self.accepts == Accepts::Events;
        self.streaming
    }

    /// Returns whether the request asked for a message: for a log line it must have named a level.
    pub(super) fn wants(&self, message: &Message) -> bool {
        message.method() != Method::LogMessage
            || self
                .level
                .is_some_and(|wanted| message.level().is_none_or(|level| level >= wanted))
    }

    /// Returns what is related to the call as the request wants it. A retry has a log level and a
    /// progress token of its own, or none.
    pub(super) fn event(&self, message: &Message, round: u32) -> Option<Bytes> {
        if !self.wants(message) {
            return None;
        }
        if round == 0 || message.method() != Method::Progress {
            return Some(Bytes::copy_from_slice(message.bytes()));
        }
        let token = self.request.raw(Member::MetaProgressToken)?;
        Some(message.spliced(&[(Member::ProgressToken, token)]))
    }
}

impl ModernRequest {
    /// Returns what there is of the answer to the attached request.
    pub fn poll_answer(&mut self, now: Moment) -> Answer {
        if self.response.streaming {
            return Answer::Stream;
        }
        if self.outcome.is_none() && !self.rounds.is_open() {
            if !self.is_over() {
                return Answer::Waiting;
            }
            // It was abandoned while its client waited.
            let failure = Failure::SessionEnded;
            return Answer::Complete {
                body: modern::lower_failure(self.response.id(), &failure),
                failure: Some(failure),
            };
        }
        if self.response.must_stream() {
            return Answer::Stream;
        }
        if self.outcome.is_some() {
            let (body, failure) = self.finish();
            return Answer::Complete { body, failure };
        }
        if self.rounds.is_due(now) {
            let round = self.rounds.round();
            return Answer::Ask { round };
        }
        Answer::Waiting
    }

    /// Returns when the answer is to be polled though nothing has come: the server's questions are
    /// given out then.
    pub fn next_deadline(&self) -> Option<Moment> {
        let is_waiting = matches!(self.stage, Stage::Running) && self.outcome.is_none();
        self.rounds.next_deadline().filter(|_| is_waiting)
    }

    /// Writes what is new into `out` as events.
    pub fn read(&mut self, now: Moment, out: &mut BytesMut) -> Reading {
        loop {
            match self.poll_line(now) {
                Line::Waiting => return Reading::Open,
                Line::Event(event) => sse::write_message(out, None, &event),
                Line::Answer { body, .. } => {
                    sse::write_message(out, None, &body);
                    return Reading::Ended;
                }
                Line::Ask { round } => return Reading::Ask { round },
                Line::Over => return Reading::Ended,
            }
        }
    }

    /// Returns the next thing for a client that reads lines. Its requests accept events.
    pub fn poll_line(&mut self, now: Moment) -> Line {
        if let Some(event) = self.events.pop() {
            return Line::Event(event);
        }
        if self.is_over() {
            return Line::Over;
        }
        if self.outcome.is_some() {
            let (body, failure) = self.finish();
            return Line::Answer { body, failure };
        }
        if self.rounds.is_due(now) {
            let round = self.rounds.round();
            return Line::Ask { round };
        }
        Line::Waiting
    }

    /// Returns the final answer, for the request that is attached.
    pub(super) fn finish(&mut self) -> (Bytes, Option<Failure>) {
        self.stage = Stage::Over;
        let id = self.response.id();
        let (body, ending) = match self.outcome.take() {
            Some(Outcome::Discovered(server_info)) => {
                (modern::lower_server_info(id, &server_info), Ending::Result)
            }
            Some(Outcome::Reply { message, era }) => {
                let ending = if message.kind() == Kind::Error {
                    Ending::Error
                } else {
                    Ending::Result
                };
                let method = self.original.method();
                let info = self.server.as_ref().and_then(|server| server.info.as_deref());
                let body = modern::lower_reply(id, &message, era, method, info);
                if ending == Ending::Error && !self.response.streaming {
                    let server = self.server.as_ref();
                    self.response.status =
                        status_of(&body, || server.is_some_and(|server| server.declares(method)));
                }
                (body, ending)
            }
            Some(Outcome::Closed) => (listen::closing_result(id), Ending::Result),
            Some(Outcome::Failed(failure)) => (modern::lower_failure(id, &failure), Ending::Failed(failure)),
            None => (
                modern::lower_failure(id, &Failure::SessionEnded),
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

    pub(super) fn record(&mut self, ending: Ending, response: Bytes) {
        let Response {
            request,
            started,
            accepts,
            streaming,
            status,
            ..
        } = &self.response;
        self.outputs.push_back(Output::Ended(ModernRequestRecord {
            message: request.clone(),
            started: *started,
            ending,
            response,
            streamed: *streaming,
            accepts: *accepts,
            status: *status,
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::WAITING_TIME;
    use super::*;
    use crate::client_face::modern::Classified;
    use crate::exchange::{Ask, CallKey, Client, Principal, QuestionKey, SessionKey, Tell};
    use crate::version::Era;

    const SESSION: SessionKey = SessionKey(1);
    const RESULT: &str = r#"{"jsonrpc":"2.0","id":3,"result":{"content":[]}}"#;

    fn modern_request() -> ModernRequest {
        let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
        let client = Arc::new(Client::declaring(Principal::anonymous(), None, None));
        let classified = Classified::Call { retry: false };
        let call = Message::own(call.into());
        ModernRequest::new(SESSION, client, Moment::START, call, classified, Accepts::Both).0
    }

    fn report_progress(modern_request: &mut ModernRequest, text: &str) {
        let message = Message::own(format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":1,"progress":1,"message":"{text}"}}}}"#
        ));
        let tell = Tell::Related {
            session: SESSION,
            call: CallKey(1),
            message,
        };
        modern_request.handle_tell(Moment::START, tell);
    }

    #[test]
    fn events_for_a_slow_reader_are_bounded_by_their_bytes() {
        let mut modern_request = modern_request();
        let long = "x".repeat(1 << 20);
        for _ in 0..20 {
            report_progress(&mut modern_request, &long);
        }
        report_progress(&mut modern_request, "newest");
        let mut out = BytesMut::new();
        assert_eq!(modern_request.read(Moment::START, &mut out), Reading::Open);
        assert!(out.len() < 5 << 20, "{} bytes were kept", out.len());
        assert!(memchr::memmem::find(&out, b"newest").is_some());
        // Events that were read make room again.
        report_progress(&mut modern_request, &long);
        report_progress(&mut modern_request, &long);
        out.clear();
        modern_request.read(Moment::START, &mut out);
        assert!(out.len() > 2 << 20);
    }

    #[test]
    fn events_that_wait_are_counted_and_dropped_on_demand() {
        let mut modern_request = modern_request();
        assert_eq!(modern_request.kept_bytes(), 0);
        report_progress(&mut modern_request, "first");
        let one = modern_request.kept_bytes();
        assert!(one > 100, "{one}");
        report_progress(&mut modern_request, "later");
        assert_eq!(modern_request.kept_bytes(), 2 * one);
        modern_request.drop_events(1);
        assert_eq!(modern_request.kept_bytes(), one);
        let mut out = BytesMut::new();
        modern_request.read(Moment::START, &mut out);
        assert!(memchr::memmem::find(&out, b"first").is_none());
        assert!(memchr::memmem::find(&out, b"later").is_some());
        assert_eq!(modern_request.kept_bytes(), 0);
    }

    #[test]
    fn parked_call_is_given_up_when_its_client_does_not_come_back_in_time() {
        let mut modern_request = modern_request();
        let until = Moment::START.after(WAITING_TIME);
        assert_eq!(modern_request.waits_until(), None);
        modern_request.handle_tick(until);
        assert!(!modern_request.is_over(), "its client is there");
        modern_request.handle_tell(Moment::START, question(1));
        assert!(modern_request.park("state", until).is_some());
        assert_eq!(modern_request.waits_until(), Some(until));
        modern_request.handle_tick(Moment::START);
        assert!(modern_request.is_parked());
        modern_request.handle_tick(until);
        assert!(modern_request.is_over());
    }

    #[test]
    fn failure_instead_of_a_question_is_recorded_once_and_answers_the_server() {
        let mut modern_request = modern_request();
        let question = r#"{"jsonrpc":"2.0","id":9,"method":"elicitation/create","params":{"message":"?"}}"#;
        let question = Tell::Question {
            session: SESSION,
            call: Some(CallKey(1)),
            question: QuestionKey(5),
            message: Message::own(question.into()),
        };
        modern_request.handle_tell(Moment::START, question);
        let failure = Failure::Overloaded {
            limit: "waiting calls",
        };
        let body = modern_request.fail(failure.clone());
        assert!(memchr::memmem::find(&body, br#""id":7"#).is_some());
        modern_request.fail(failure.clone());
        modern_request.handle_disconnect();
        let outputs: Vec<Output> = std::iter::from_fn(|| modern_request.poll_output()).collect();
        let recorded = outputs.iter().filter_map(|output| match output {
            Output::Ended(record) => Some((&record.ending, &record.response)),
            Output::Wake | Output::Ask(_) => None,
        });
        let recorded: Vec<_> = recorded.collect();
        assert_eq!(recorded, [(&Ending::Failed(failure), &body)]);
        let is_cancelled = |output: &Output| {
            matches!(
                output,
                Output::Ask(Ask::Answer {
                    question: QuestionKey(5),
                    ..
                })
            )
        };
        assert_eq!(outputs.iter().filter(|output| is_cancelled(output)).count(), 1);
        let is_closed = |output: &Output| matches!(output, Output::Ask(Ask::Close { .. }));
        assert_eq!(outputs.iter().filter(|output| is_closed(output)).count(), 1);
    }

    fn question(number: u64) -> Tell {
        Tell::Question {
            session: SESSION,
            call: Some(CallKey(1)),
            question: QuestionKey(number),
            message: Message::own(r#"{"jsonrpc":"2.0","id":3,"method":"elicitation/create"}"#.into()),
        }
    }

    #[test]
    fn question_that_was_answered_or_withdrawn_before_it_was_parked_is_not_asked() {
        let due = Moment::START.after(Duration::from_millis(20));
        let until = Moment::START.after(WAITING_TIME);
        let withdrawn = Tell::Withdrawn {
            session: SESSION,
            question: QuestionKey(1),
            message: None,
        };
        for meanwhile in [reply(RESULT), withdrawn] {
            let is_reply = matches!(meanwhile, Tell::Reply { .. });
            let mut modern_request = modern_request();
            modern_request.handle_tell(Moment::START, question(1));
            let answer = modern_request.poll_answer(due);
            assert!(matches!(answer, Answer::Ask { round: 0 }));
            modern_request.handle_tell(due, meanwhile);
            assert_eq!(modern_request.park("state", until), None);
            let answer = modern_request.poll_answer(due);
            let is_complete = matches!(answer, Answer::Complete { failure: None, .. });
            assert_eq!(is_complete, is_reply, "{answer:?}");
        }
    }

    #[test]
    fn client_that_waits_for_an_abandoned_request_gets_an_answer() {
        let mut modern_request = modern_request();
        modern_request.abandon();
        assert!(matches!(
            modern_request.poll_answer(Moment::START),
            Answer::Complete {
                failure: Some(Failure::SessionEnded),
                ..
            }
        ));
    }

    #[test]
    fn questions_that_a_server_asks_at_once_are_given_out_together() {
        let mut modern_request = modern_request();
        let at = |millis| Moment::START.after(Duration::from_millis(millis));
        for (number, millis) in [(1, 0), (2, 15)] {
            modern_request.handle_tell(at(millis), question(number));
            assert!(matches!(modern_request.poll_answer(at(19)), Answer::Waiting));
        }
        assert_eq!(modern_request.next_deadline(), Some(at(20)));
        assert!(matches!(
            modern_request.poll_answer(at(20)),
            Answer::Ask { round: 0 }
        ));
        let asked = modern_request.park("s", at(100)).expect("there are questions");
        let asked = String::from_utf8(asked.to_vec()).unwrap();
        assert!(asked.contains(r#""k1""#) && asked.contains(r#""k2""#), "{asked}");
        assert_eq!(modern_request.next_deadline(), None);
    }

    #[test]
    fn an_answer_after_a_disconnect_is_recorded() {
        let mut modern_request = modern_request();
        modern_request.handle_tell(Moment::START, reply(RESULT));
        modern_request.handle_disconnect();
        modern_request.handle_disconnect();
        let recorded = std::iter::from_fn(|| modern_request.poll_output())
            .filter(|output| matches!(output, Output::Ended(record) if record.ending == Ending::Result));
        assert_eq!(recorded.count(), 1);
    }

    fn reply(text: &str) -> Tell {
        Tell::Reply {
            session: SESSION,
            call: CallKey(1),
            message: Message::own(text.into()),
            era: Era::Modern,
        }
    }

    #[test]
    fn modern_request_is_over_when_its_answer_was_taken() {
        let mut modern_request = modern_request();
        assert!(!modern_request.is_over());
        modern_request.handle_tell(Moment::START, reply(RESULT));
        assert!(!modern_request.is_over());
        assert!(matches!(
            modern_request.poll_answer(Moment::START),
            Answer::Complete { .. }
        ));
        assert!(modern_request.is_over() && !modern_request.is_parked());
        assert_eq!(modern_request.answer_status(), 200);
    }

    #[test]
    fn method_that_the_server_lacks_is_not_found_unless_the_answer_is_an_event() {
        let missing = r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"?"}}"#;
        let mut answered = modern_request();
        answered.handle_tell(Moment::START, reply(missing));
        assert!(matches!(
            answered.poll_answer(Moment::START),
            Answer::Complete { .. }
        ));
        assert_eq!(answered.answer_status(), 404);
        let mut streamed = modern_request();
        report_progress(&mut streamed, "half");
        assert!(matches!(streamed.poll_answer(Moment::START), Answer::Stream));
        streamed.handle_tell(Moment::START, reply(missing));
        assert_eq!(streamed.read(Moment::START, &mut BytesMut::new()), Reading::Ended);
        assert_eq!(streamed.answer_status(), 200);
    }

    #[test]
    fn first_answer_counts() {
        let mut modern_request = modern_request();
        for text in ["first", "second"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":3,"result":{{"text":"{text}"}}}}"#);
            modern_request.handle_tell(Moment::START, reply(&text));
        }
        let Answer::Complete { body, .. } = modern_request.poll_answer(Moment::START) else {
            panic!("it is answered");
        };
        assert!(memchr::memmem::find(&body, b"first").is_some());
    }
}
