//! The readers of a session: POSTs that wait for a response, and streams, also when a client
//! resumes one with `Last-Event-ID`.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::calls::Stage;
use super::replay::{Audience, EventId, EventLog, StreamKey};
use super::{Output, Session};
use crate::exchange::{CallKey, Failure};
use crate::message::Written;
use crate::time::Moment;
use crate::wire::sse;

/// How soon a client shall come back to a stream that broke off: what it missed is here already.
const COME_BACK: Duration = Duration::from_secs(1);

/// A reader is given about this much at once: what a slow connection has not sent yet stays in the log, where it is
/// counted and can be dropped.
const READ_AT_ONCE: usize = 64 << 10;

/// What can be read of a call's answer.
#[derive(Debug)]
pub enum Answer {
    /// Nothing yet.
    Waiting,
    /// All of it; `failure` decides the HTTP status.
    Complete {
        /// The JSON-RPC response.
        body: Written,
        /// Set if the server gave no answer.
        failure: Option<Failure>,
    },
    /// It comes as events: read the stream.
    Stream(Reader),
}

/// The right to read a stream. A newer reader of the same stream takes it away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    /// The stream that it reads.
    pub stream: StreamKey,
    generation: u32,
}

/// What reading a stream gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Events were written into the buffer, or there are none at the moment.
    Open,
    /// There will be no more.
    Ended,
}

/// Why a stream cannot be opened or resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamRefusal {
    /// That is no event id of this session, or its stream is long forgotten.
    UnknownEvent,
    /// Everything of that stream was read. An empty stream here would make clients come back for ever.
    Finished,
    /// As many streams as a session may have are open.
    TooMany,
}

/// A stream opened by GET: a cursor in the session's notices.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) cursor: u64,
    /// The one stream of the old transport: it cannot be resumed, so that its events have no ids.
    pub(super) sole: bool,
    pub(super) begun: bool,
    pub(super) generation: u32,
    pub(super) attended: bool,
    pub(super) since: Moment,
}

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
        self.open_listener(now, false)
    }

    /// Opens the one stream of the old transport, for everything that is said in this session.
    pub fn listen_to_all(&mut self, now: Moment) -> Result<Reader, StreamRefusal> {
        self.open_listener(now, true)
    }

    fn open_listener(&mut self, now: Moment, sole: bool) -> Result<Reader, StreamRefusal> {
        self.last_seen = now;
        self.stream_closed = false;
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
            sole,
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
        self.stream_closed = false;
        let EventId { stream, number } = EventId::parse(last).ok_or(StreamRefusal::UnknownEvent)?;
        if let Some(listener) = self.listeners.get_mut(&stream).filter(|listener| !listener.sole) {
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
            if listener.sole {
                return self.read_all(now, stream, out);
            }
            if listener.generation != reader.generation || self.ended {
                return Reading::Ended;
            }
            if !std::mem::replace(&mut listener.begun, true) && primes {
                write_priming(out, stream, listener.cursor);
            }
            mark_gap(out, &self.notices, listener.cursor);
            listener.cursor = copy_events(out, &mut self.notices, listener.cursor, stream, Ids::Written);
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
            write_priming(out, stream, open.cursor);
        }
        mark_gap(out, &open.log, open.cursor);
        open.cursor = copy_events(out, &mut open.log, open.cursor, stream, Ids::Written);
        if open.ended.is_some() && open.cursor == open.log.newest() {
            Reading::Ended
        } else {
            Reading::Open
        }
    }

    /// Reads the one stream of the old transport. Answers are on it too, so a reader that was too slow for them
    /// is not sent past the gap but home; and whoever is still owed an answer at the end gets it first.
    fn read_all(&mut self, now: Moment, stream: StreamKey, out: &mut BytesMut) -> Reading {
        let Some(listener) = self.listeners.get_mut(&stream) else {
            return Reading::Ended;
        };
        if self.notices.has_gap(listener.cursor) {
            return Reading::Ended;
        }
        listener.cursor = copy_events(out, &mut self.notices, listener.cursor, stream, Ids::Omitted);
        self.heard = self.heard.max(listener.cursor);
        self.last_seen = now;
        // A question that is still open stays in the log, which knows who was asked.
        let asked = self
            .questions
            .values()
            .filter(|put| put.call.is_none())
            .map(|put| put.number);
        self.notices
            .forget_through(asked.min().map_or(self.heard, |open| self.heard.min(open - 1)));
        let is_read = self
            .listeners
            .get(&stream)
            .is_none_or(|listener| listener.cursor == self.notices.newest());
        if self.ended && is_read {
            Reading::Ended
        } else {
            Reading::Open
        }
    }

    /// Says something on the stream that all is said on.
    pub fn announce(&mut self, now: Moment, data: &Bytes) {
        self.notice(now, data, Audience::All);
    }

    /// The connection that read this stream is gone.
    pub fn hang_up(&mut self, now: Moment, reader: Reader) {
        let stream = reader.stream;
        if let Some(listener) = self.listeners.get_mut(&stream) {
            if listener.generation == reader.generation {
                listener.attended = false;
                listener.since = now;
                self.last_seen = now;
                self.stream_closed = !self.listeners.values().any(|listener| listener.attended);
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

fn write_priming(out: &mut BytesMut, stream: StreamKey, number: u64) {
    let id = EventId { stream, number };
    sse::write_priming(out, &id.pieces(&mut [itoa::Buffer::new(); 2]), COME_BACK);
}

fn mark_gap(out: &mut BytesMut, log: &EventLog, cursor: u64) {
    if log.has_gap(cursor) {
        sse::write_comment(out, "events were lost here");
    }
}

/// Whether events are named, for whoever may come back for more.
#[derive(Clone, Copy)]
enum Ids {
    Written,
    Omitted,
}

/// Copies what is due from `cursor` on, up to [`READ_AT_ONCE`] but at least one event, and returns the new cursor.
fn copy_events(out: &mut BytesMut, log: &mut EventLog, mut cursor: u64, stream: StreamKey, ids: Ids) -> u64 {
    let (events, bytes) = log.after(cursor);
    out.reserve((bytes + events * sse::AROUND).min(READ_AT_ONCE));
    let mut copied = 0;
    while let Some((number, data)) = log.read(cursor, stream) {
        if copied > 0 && copied + data.len() > READ_AT_ONCE {
            return cursor;
        }
        copied += data.len();
        match ids {
            Ids::Written => {
                let id = EventId { stream, number };
                sse::write_message(out, Some(&id.pieces(&mut [itoa::Buffer::new(); 2])), data);
            }
            Ids::Omitted => sse::write_message(out, None, data),
        }
        cursor = number;
    }
    log.newest().max(cursor)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::{Accepts, Limits, Taken};
    use super::*;
    use crate::exchange::{Client, Principal, SessionKey, Tell};
    use crate::message::Message;
    use crate::version::{Era, Version};

    fn message(text: &str) -> Message {
        Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn session(limits: Limits) -> Session {
        let client = Arc::new(Client::declaring(Principal::anonymous(), None, None));
        Session::open_implicit(SessionKey(1), client, limits, Moment::START, Version::V2025_11_25).0
    }

    /// A call of the old transport, and its answer.
    fn answer(session: &mut Session, id: u32, text: &str) {
        let call = message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call"}}"#));
        let Ok(Taken::Call { call, .. }) = session.handle_message(Moment::START, call, Accepts::OneStream)
        else {
            panic!("a call is taken");
        };
        let reply = Tell::Reply {
            session: SessionKey(1),
            call,
            message: message(&format!(r#"{{"jsonrpc":"2.0","id":9,"result":"{text}"}}"#)),
            words: Era::Legacy,
        };
        session.handle_tell(Moment::START, reply);
    }

    fn read(session: &mut Session, reader: Reader) -> (String, Reading) {
        let mut out = BytesMut::new();
        let reading = session.read(Moment::START, reader, &mut out);
        (String::from_utf8(out.to_vec()).unwrap(), reading)
    }

    #[test]
    fn the_one_stream_has_answers_in_their_order_without_ids_and_forgets_what_was_read() {
        let mut session = session(Limits::default());
        let reader = session.listen_to_all(Moment::START).unwrap();
        answer(&mut session, 1, "a");
        answer(&mut session, 1, "b");
        let expected = ["a", "b"].map(|text| {
            format!("event: message\ndata: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"{text}\"}}\n\n")
        });
        assert_eq!(read(&mut session, reader), (expected.concat(), Reading::Open));
        assert_eq!(session.held_bytes(), 0);
    }

    #[test]
    fn a_reader_of_the_one_stream_that_lost_an_answer_is_sent_home() {
        let mut limits = Limits::default();
        limits.retention.events = 2;
        let mut session = session(limits);
        let reader = session.listen_to_all(Moment::START).unwrap();
        for id in 0..3 {
            answer(&mut session, id, "x");
        }
        assert_eq!(read(&mut session, reader), (String::new(), Reading::Ended));
    }

    #[test]
    fn the_one_stream_ends_after_its_last_answer_and_cannot_be_resumed() {
        let mut session = session(Limits::default());
        let reader = session.listen_to_all(Moment::START).unwrap();
        answer(&mut session, 1, "last");
        session.end();
        let (text, reading) = read(&mut session, reader);
        assert!(text.contains("last"));
        assert_eq!(reading, Reading::Ended);
        let later = Moment::START.after(Duration::from_secs(1));
        let event = format!("{}-0", reader.stream.0);
        assert_eq!(session.resume(later, &event), Err(StreamRefusal::UnknownEvent));
    }
}
