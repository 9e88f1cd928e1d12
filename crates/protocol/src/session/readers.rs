//! Whoever reads a session: the POST that waits for its answer, the streams, and those who come back.

use bytes::{Bytes, BytesMut};

use super::replay::{EventId, EventLog, StreamKey};
use super::{Answer, Listener, Output, Reader, Reading, Session, Stage, StreamRefusal};
use crate::exchange::{CallKey, Failure};
use crate::message::Written;
use crate::time::Moment;
use crate::wire::sse;

impl Session {
    /// What there is of a call's answer.
    pub fn poll_answer(&mut self, key: CallKey) -> Answer {
        let Some(call) = self.calls.get_mut(&key) else {
            // The call may have ended as a stream before its reader came to look.
            let stream = StreamKey(key.0);
            return match self.past.iter().find(|(past, _)| *past == stream) {
                Some((_, past)) => Answer::Stream(Reader {
                    stream,
                    generation: past.generation,
                }),
                None => Answer::Complete {
                    body: Written::Whole(Bytes::new()),
                    failure: Some(Failure::SessionEnded),
                },
            };
        };
        match &call.stage {
            Stage::Undecided => Answer::Waiting,
            Stage::Stream(stream) => Answer::Stream(Reader {
                stream: StreamKey(key.0),
                generation: stream.generation,
            }),
            Stage::Complete { .. } => match self.calls.remove(&key).map(|call| call.stage) {
                Some(Stage::Complete { body, failure }) => Answer::Complete { body, failure },
                Some(Stage::Undecided | Stage::Stream(_)) | None => Answer::Waiting,
            },
        }
    }

    /// Whoever waited for a call's answer has hung up. The call goes on: in this era a disconnection is
    /// not a cancellation.
    pub fn abandon(&mut self, key: CallKey) {
        let Some(call) = self.calls.get_mut(&key) else {
            // It may have ended as a stream that nobody began to read.
            let stream = StreamKey(key.0);
            if let Some((_, past)) = self.past.iter_mut().find(|(past, _)| *past == stream) {
                past.attended = false;
            }
            return;
        };
        call.attended = false;
        match &mut call.stage {
            Stage::Undecided => {}
            Stage::Stream(stream) => stream.attended = false,
            Stage::Complete { .. } => {
                self.calls.remove(&key);
            }
        }
    }

    /// Opens a stream for notices.
    pub fn listen(&mut self, now: Moment) -> Result<Reader, StreamRefusal> {
        self.last_seen = now;
        self.forget_listeners(now);
        if self
            .listeners
            .values()
            .filter(|listener| listener.attended)
            .count()
            >= self.limits.listeners
        {
            return Err(StreamRefusal::TooMany);
        }
        let stream = StreamKey(self.next);
        self.next += 1;
        let listener = Listener {
            cursor: self.heard,
            begun: false,
            generation: 0,
            attended: true,
            since: now,
        };
        self.listeners.insert(stream, listener);
        Ok(Reader {
            stream,
            generation: 0,
        })
    }

    /// Goes on where a broken stream was left.
    pub fn resume(&mut self, now: Moment, last: &str) -> Result<Reader, StreamRefusal> {
        self.last_seen = now;
        let EventId { stream, number } = EventId::parse(last).ok_or(StreamRefusal::UnknownEvent)?;
        if let Some(listener) = self.listeners.get_mut(&stream) {
            if number > self.notices.newest() {
                return Err(StreamRefusal::UnknownEvent);
            }
            listener.cursor = number;
            listener.generation += 1;
            listener.attended = true;
            let generation = listener.generation;
            self.outputs.push_back(Output::Wake(stream));
            return Ok(Reader { stream, generation });
        }
        let past = self
            .past
            .iter_mut()
            .find(|(key, _)| *key == stream)
            .map(|(_, past)| past);
        let open = match past {
            Some(past) => past,
            None => match self.calls.get_mut(&CallKey(stream.0)).map(|call| &mut call.stage) {
                Some(Stage::Stream(open)) => open,
                Some(Stage::Undecided | Stage::Complete { .. }) | None => {
                    return Err(StreamRefusal::UnknownEvent);
                }
            },
        };
        if number > open.log.newest() {
            return Err(StreamRefusal::UnknownEvent);
        }
        if open.ended.is_some() && number == open.log.newest() {
            return Err(StreamRefusal::Finished);
        }
        open.cursor = number;
        open.generation += 1;
        open.attended = true;
        open.begun = true;
        let generation = open.generation;
        self.outputs.push_back(Output::Wake(stream));
        Ok(Reader { stream, generation })
    }

    /// Writes what is new on a stream into `out` as events.
    pub fn read(&mut self, now: Moment, reader: Reader, out: &mut BytesMut) -> Reading {
        let stream = reader.stream;
        let primes = self.version.primes_streams();
        if let Some(listener) = self.listeners.get_mut(&stream) {
            if listener.generation != reader.generation || self.ended {
                return Reading::Ended;
            }
            if !std::mem::replace(&mut listener.begun, true) && primes {
                sse::write_priming(
                    out,
                    &EventId {
                        stream,
                        number: listener.cursor,
                    },
                );
            }
            mark_gap(out, &self.notices, listener.cursor);
            listener.cursor = copy_events(out, &mut self.notices, listener.cursor, stream);
            self.heard = self.heard.max(listener.cursor);
            self.last_seen = now;
            return Reading::Open;
        }
        let open = match self
            .past
            .iter_mut()
            .find(|(key, _)| *key == stream)
            .map(|(_, past)| past)
        {
            Some(past) => past,
            None => match self.calls.get_mut(&CallKey(stream.0)).map(|call| &mut call.stage) {
                Some(Stage::Stream(open)) => open,
                Some(Stage::Undecided | Stage::Complete { .. }) | None => return Reading::Ended,
            },
        };
        if open.generation != reader.generation {
            return Reading::Ended;
        }
        if !std::mem::replace(&mut open.begun, true) && primes {
            sse::write_priming(
                out,
                &EventId {
                    stream,
                    number: open.cursor,
                },
            );
        }
        mark_gap(out, &open.log, open.cursor);
        open.cursor = copy_events(out, &mut open.log, open.cursor, stream);
        if open.ended.is_some() {
            Reading::Ended
        } else {
            Reading::Open
        }
    }

    /// The connection that read this stream is gone.
    pub fn hang_up(&mut self, now: Moment, reader: Reader) {
        let stream = reader.stream;
        if let Some(listener) = self.listeners.get_mut(&stream) {
            if listener.generation == reader.generation {
                listener.attended = false;
                listener.since = now;
                self.last_seen = now;
            }
            self.forget_listeners(now);
            return;
        }
        if let Some((_, past)) = self.past.iter_mut().find(|(key, _)| *key == stream) {
            if past.generation == reader.generation {
                past.attended = false;
            }
            self.forget_past(now);
        } else if let Some(Stage::Stream(open)) =
            self.calls.get_mut(&CallKey(stream.0)).map(|call| &mut call.stage)
            && open.generation == reader.generation
        {
            open.attended = false;
        }
    }

    pub(super) fn forget_listeners(&mut self, now: Moment) {
        let keep = self.limits.retention.age;
        let mut excess = self
            .listeners
            .values()
            .filter(|listener| !listener.attended)
            .count()
            .saturating_sub(self.limits.ended_streams);
        self.listeners.retain(|_, listener| {
            if !listener.attended && (now.since(listener.since) > keep || excess > 0) {
                excess = excess.saturating_sub(1);
                return false;
            }
            true
        });
    }
}

fn mark_gap(out: &mut BytesMut, log: &EventLog, cursor: u64) {
    if log.has_gap(cursor) {
        sse::write_comment(out, "events were lost here");
    }
}

/// Copies what is due from `cursor` on and gives the new cursor.
fn copy_events(out: &mut BytesMut, log: &mut EventLog, mut cursor: u64, stream: StreamKey) -> u64 {
    while let Some((number, data)) = log.read(cursor, stream) {
        sse::write_message(out, Some(&EventId { stream, number }), data);
        cursor = number;
    }
    log.newest().max(cursor)
}
