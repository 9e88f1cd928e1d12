//! What there is to read of an errand: its events and its answer, for whoever is attached to it.

use bytes::{Bytes, BytesMut};

use super::{Ending, Errand, ErrandRecord, Outcome, Output, Stage, listening};
use crate::client_face::modern;
use crate::exchange::Failure;
use crate::message::{Kind, Member};
use crate::session::Accepts;
use crate::wire::sse;

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

impl Errand {
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

    pub(super) fn record(&mut self, ending: Ending, response: Bytes) {
        self.outputs.push_back(Output::Ended(ErrandRecord {
            message: self.message.clone(),
            started: self.started,
            ending,
            response,
            streamed: self.streaming,
        }));
    }
}
