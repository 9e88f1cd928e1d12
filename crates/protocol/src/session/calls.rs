//! The calls of a session: undecided until something comes, then one JSON body or a stream.

use bytes::Bytes;

use super::replay::{Audience, EventLog, StreamKey};
use super::{Accepts, CallRecord, Ending, Output, Session};
use crate::exchange::{CallKey, Failure};
use crate::message::{Member, Message, Written};
use crate::method::Method;
use crate::time::Moment;

#[derive(Debug)]
pub(super) struct OpenCall {
    /// The client's message; `None` for a handshake that Rialto does by itself.
    pub(super) message: Option<Message>,
    pub(super) started: Moment,
    pub(super) accepts: Accepts,
    pub(super) stage: Stage,
    /// Someone waits for the answer.
    pub(super) attended: bool,
}

#[derive(Debug)]
pub(super) enum Stage {
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
pub(super) struct Stream {
    pub(super) log: EventLog,
    pub(super) cursor: u64,
    /// The priming event has been sent.
    pub(super) begun: bool,
    pub(super) generation: u32,
    pub(super) ended: Option<Moment>,
    pub(super) attended: bool,
}

impl Session {
    pub(super) fn begin(&mut self, now: Moment, message: Option<Message>, accepts: Accepts) -> CallKey {
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

    /// The newest open call with this id: clients may use one id many times. An `initialize` cannot be
    /// cancelled (2025-03-26, cancellation).
    pub(super) fn call_with_id(&self, id: &[u8]) -> Option<CallKey> {
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

    pub(super) fn id_of(&self, call: CallKey) -> Bytes {
        self.calls
            .get(&call)
            .and_then(|call| call.message.as_ref()?.raw_bytes(Member::Id))
            .unwrap_or(Bytes::from_static(b"null"))
    }

    pub(super) fn open_stream(&self, call: CallKey) -> Option<&Stream> {
        match self.calls.get(&call).map(|call| &call.stage) {
            Some(Stage::Stream(stream)) => Some(stream),
            Some(Stage::Undecided | Stage::Complete { .. }) | None => None,
        }
    }

    /// Puts something on a call's own stream, which begins with it if need be. Whoever resumes the stream finds it there, so it
    /// is to be in a buffer that may be kept.
    pub(super) fn relate(&mut self, now: Moment, call: CallKey, data: impl FnOnce() -> Bytes) -> bool {
        let Some(key) = self.upgrade(call) else {
            return false;
        };
        let Some(Stage::Stream(stream)) = self.calls.get_mut(&call).map(|call| &mut call.stage) else {
            return false;
        };
        let log = &mut stream.log;
        self.events_lost += log.push(now, data(), Audience::All, &self.limits.retention);
        self.outputs.push_back(Output::Wake(key));
        true
    }

    /// Turns a call's answer into a stream, if its client reads streams and is still there.
    pub(super) fn upgrade(&mut self, call: CallKey) -> Option<StreamKey> {
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

    pub(super) fn finish(&mut self, now: Moment, key: CallKey, ending: Ending, body: impl Into<Written>) {
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
    pub(super) fn forget_past(&mut self, now: Moment) {
        let keep = self.limits.retention;
        let mut bytes: usize = self.past.iter().map(|(_, stream)| stream.log.bytes()).sum();
        // They ended in this order, so that nothing behind one that may stay has to go.
        while let Some((at, (_, oldest))) = self
            .past
            .iter()
            .enumerate()
            .find(|(_, (_, stream))| !stream.attended)
        {
            let excess = self.past.len() > self.limits.ended_streams;
            let expired = oldest.ended.is_some_and(|ended| now.since(ended) > keep.age);
            if !(expired || excess || bytes > keep.bytes) {
                break;
            }
            bytes -= oldest.log.bytes();
            self.past.remove(at);
        }
    }
}
