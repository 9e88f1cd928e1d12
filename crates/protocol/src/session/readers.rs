//! The readers of a session: POSTs that wait for a response, and streams, also when a client
//! resumes one with `Last-Event-ID`.

use std::time::Duration;

use bytes::BytesMut;

use super::replay::{EventId, EventLog, StreamKey};
use crate::exchange::Failure;
use crate::message::Written;
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

/// How far a stream was read, and which connection reads it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) cursor: u64,
    /// The priming event has been sent.
    pub(super) begun: bool,
    generation: u32,
    pub(super) attended: bool,
}

impl Place {
    /// Returns the place of a reader that begins after the event of this number.
    pub(super) const fn attended(cursor: u64) -> Self {
        Self {
            cursor,
            begun: false,
            generation: 0,
            attended: true,
        }
    }

    /// Returns the right to read, for the connection that has it.
    pub(super) const fn reader(&self, stream: StreamKey) -> Reader {
        Reader {
            stream,
            generation: self.generation,
        }
    }

    /// Returns whether no newer reader has taken the stream away.
    pub(super) const fn is_of(&self, reader: Reader) -> bool {
        self.generation == reader.generation
    }

    /// Goes on after an event, for another connection.
    pub(super) const fn resume(&mut self, after: EventId) -> Reader {
        self.cursor = after.number;
        self.generation += 1;
        self.attended = true;
        self.reader(after.stream)
    }

    /// Writes what is new into `out`, with ids and a mark where events were lost.
    pub(super) fn read(&mut self, stream: StreamKey, log: &mut EventLog, primes: bool, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.begun, true) && primes {
            let id = EventId {
                stream,
                number: self.cursor,
            };
            sse::write_priming(out, &id.pieces(&mut [itoa::Buffer::new(); 2]), COME_BACK);
        }
        if log.has_gap(self.cursor) {
            sse::write_comment(out, "events were lost here");
        }
        self.cursor = copy_events(out, log, self.cursor, stream, Ids::Written);
    }

    /// Writes what is new into `out` without ids, for a client that cannot come back.
    pub(super) fn read_without_ids(&mut self, stream: StreamKey, log: &mut EventLog, out: &mut BytesMut) {
        self.cursor = copy_events(out, log, self.cursor, stream, Ids::Omitted);
    }
}

/// Whether events have ids, so that a client can resume the stream.
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

    use bytes::Bytes;

    use super::super::{Accepted, Accepts, Limits, Session};
    use super::*;
    use crate::exchange::{Client, Principal, SessionKey, Tell};
    use crate::message::Message;
    use crate::time::Moment;
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
        let Ok(Accepted::Call { call, .. }) = session.handle_message(Moment::START, call, Accepts::OneStream)
        else {
            panic!("a call is taken");
        };
        let reply = Tell::Reply {
            session: SessionKey(1),
            call,
            message: message(&format!(r#"{{"jsonrpc":"2.0","id":9,"result":"{text}"}}"#)),
            era: Era::Legacy,
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
    fn a_reader_of_the_one_stream_that_lost_an_answer_is_closed() {
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
