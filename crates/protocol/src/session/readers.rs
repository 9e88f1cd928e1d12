//! The readers of a session: POSTs that wait for a response, and streams, also when a client
//! resumes one with `Last-Event-ID`.

use std::time::Duration;

use bytes::BytesMut;

use super::replay::{EventId, EventLog, StreamKey};
use crate::exchange::Failure;
use crate::message::Written;
use crate::wire::sse;

/// The `retry` field: how soon a client shall resume a stream that broke off. What it missed is in
/// the log already.
const RESUME_AFTER: Duration = Duration::from_secs(1);

/// A reader is given about this much at once: what a slow connection has not sent yet stays in the
/// log, where it is counted and can be dropped.
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
    /// Everything of that stream was read. An empty stream would make clients resume it again and
    /// again.
    Finished,
    /// As many streams as a session may have are open.
    TooMany,
    /// The stream of a call went with the process that had the session.
    /// [`super::Session::resume_lost`] ends the call.
    Lost,
}

/// How far a stream was read, and which connection reads it.
#[derive(Debug)]
pub(super) struct ReadPosition {
    pub(super) cursor: u64,
    /// The end of its event ids, for a stream that its client may look for in another process.
    pub(super) token: Option<Box<str>>,
    /// The priming event has been sent.
    pub(super) begun: bool,
    generation: u32,
    /// A connection reads the stream.
    pub(super) connected: bool,
}

impl ReadPosition {
    /// Returns the position of a connected reader that begins after the event of this number.
    pub(super) const fn connected(cursor: u64) -> Self {
        Self {
            cursor,
            token: None,
            begun: false,
            generation: 0,
            connected: true,
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
        self.connected = true;
        self.reader(after.stream)
    }

    fn token(&self) -> &str {
        self.token.as_deref().unwrap_or_default()
    }

    /// Writes what is new into `out`, with ids and a mark where events were lost.
    pub(super) fn read(&mut self, stream: StreamKey, log: &mut EventLog, primes: bool, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.begun, true) && primes {
            let id = EventId {
                stream,
                number: self.cursor,
            };
            let mut buffers = [itoa::Buffer::new(); 2];
            sse::write_priming(out, &id.pieces(&mut buffers, self.token()), RESUME_AFTER);
        }
        if log.has_gap(self.cursor) {
            sse::write_comment(out, "events were lost here");
        }
        self.cursor = copy_events(out, log, self.cursor, stream, Ids::Written(self.token()));
    }

    /// Writes what is new into `out` without ids, for a client that cannot resume.
    pub(super) fn read_without_ids(&mut self, stream: StreamKey, log: &mut EventLog, out: &mut BytesMut) {
        self.cursor = copy_events(out, log, self.cursor, stream, Ids::Omitted);
    }
}

/// Whether events have ids, for a client that may resume the stream, and what stands at their end.
#[derive(Clone, Copy)]
enum Ids<'a> {
    Written(&'a str),
    Omitted,
}

/// Copies what is due from `cursor` on, up to [`READ_AT_ONCE`] but at least one event, and returns
/// the new cursor.
fn copy_events(
    out: &mut BytesMut,
    log: &mut EventLog,
    mut cursor: u64,
    stream: StreamKey,
    ids: Ids<'_>,
) -> u64 {
    let (events, bytes) = log.after(cursor);
    out.reserve((bytes + events * sse::AROUND).min(READ_AT_ONCE));
    let mut copied = 0;
    while let Some((number, data)) = log.read(cursor, stream) {
        if copied > 0 && copied + data.len() > READ_AT_ONCE {
            return cursor;
        }
        copied += data.len();
        match ids {
            Ids::Written(token) => {
                let id = EventId { stream, number };
                let mut buffers = [itoa::Buffer::new(); 2];
                sse::write_message(out, Some(&id.pieces(&mut buffers, token)), data);
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
    use crate::eviction::Usage;
    use crate::exchange::{CallKey, Client, Principal, SessionKey, Tell};
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

    #[test]
    fn reader_gets_a_large_event_alone_and_small_ones_together() {
        let mut session = session(Limits::default());
        let reader = session.listen_to_all(Moment::START).unwrap();
        let large = "x".repeat(READ_AT_ONCE + 1);
        for (id, text) in [
            (1, large.as_str()),
            (2, "small"),
            (3, "smaller"),
            (4, large.as_str()),
        ] {
            answer(&mut session, id, text);
        }
        let sizes: Vec<usize> = (0..4)
            .map(|_| read(&mut session, reader).0.matches("data: ").count())
            .collect();
        assert_eq!(sizes, [1, 2, 1, 0]);
    }

    fn call(session: &mut Session, id: u32) -> CallKey {
        let call = message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call"}}"#));
        match session.handle_message(Moment::START, call, Accepts::Both) {
            Ok(Accepted::Call { call, .. }) => call,
            other => panic!("a call is taken: {other:?}"),
        }
    }

    fn reply(session: &mut Session, call: CallKey) {
        let reply = Tell::Reply {
            session: SessionKey(1),
            call,
            message: message(r#"{"jsonrpc":"2.0","id":9,"result":{}}"#),
            era: Era::Legacy,
        };
        session.handle_tell(Moment::START, reply);
    }

    #[test]
    fn lost_instance_fails_open_calls_and_leaves_answers_alone() {
        let mut session = session(Limits::default());
        let (answered, open) = (call(&mut session, 1), call(&mut session, 2));
        reply(&mut session, answered);
        session.handle_lost_instance(Moment::START, &Failure::Retired);
        let failure_of = |answer| match answer {
            Answer::Complete { failure, .. } => failure,
            other @ (Answer::Waiting | Answer::Stream(_)) => panic!("not complete: {other:?}"),
        };
        assert_eq!(failure_of(session.poll_answer(answered)), None);
        assert_eq!(failure_of(session.poll_answer(open)), Some(Failure::Retired));
    }

    #[test]
    fn stream_whose_answer_was_not_read_is_waited_for() {
        let mut session = session(Limits::default());
        let call = call(&mut session, 1);
        session.handle_tell(
            Moment::START,
            Tell::Waiting {
                session: SessionKey(1),
                call,
            },
        );
        let Answer::Stream(reader) = session.poll_answer(call) else {
            panic!("a call that takes long is answered by a stream");
        };
        read(&mut session, reader);
        assert!(!session.has_unread_answers());
        reply(&mut session, call);
        assert!(session.has_unread_answers());
        assert_eq!(read(&mut session, reader).1, Reading::Ended);
        assert!(!session.has_unread_answers());
    }

    #[test]
    fn closed_stream_can_be_resumed_until_it_is_too_old_or_too_many_are_kept() {
        let limits = Limits {
            ended_streams: 2,
            ..Limits::default()
        };
        let age = limits.retention.age;
        let mut session = session(limits);
        session.announce(Moment::START, &Bytes::from_static(b"{}"));
        let mut closed = || {
            let reader = session.listen(Moment::START).unwrap();
            session.handle_disconnect(Moment::START, reader);
            format!("{}-0", reader.stream.0)
        };
        let [first, second, third] = [closed(), closed(), closed()];
        assert_eq!(
            session.resume(Moment::START, &first),
            Err(StreamRefusal::UnknownEvent)
        );
        assert_eq!(session.listening_streams(), 2);
        session.handle_tick(Moment::START.after(age));
        assert_eq!(session.listening_streams(), 2);
        let reader = session.resume(Moment::START.after(age), &second).unwrap();
        session.handle_tick(Moment::START.after(age + Duration::from_millis(1)));
        assert_eq!(session.listening_streams(), 1);
        assert_eq!(
            session.resume(Moment::START.after(age), &third),
            Err(StreamRefusal::UnknownEvent)
        );
        assert!(read(&mut session, reader).0.contains("data: {}"));
    }

    #[test]
    fn session_is_idle_when_no_call_and_no_stream_is_open() {
        let client = Arc::new(Client::declaring(Principal::anonymous(), None, None));
        let hello = message(
            r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#,
        );
        let (mut session, opening, _) = Session::open(
            SessionKey(1),
            client,
            Limits::default(),
            Moment::START,
            hello,
            Accepts::Both,
        );
        assert_eq!(session.usage(), Usage::Active);
        reply(&mut session, opening);
        session.poll_answer(opening);
        assert_eq!(session.usage(), Usage::Idle(Moment::START));
        let later = Moment::START.after(Duration::from_secs(1));
        let reader = session.listen(later).unwrap();
        assert_eq!(session.usage(), Usage::Active);
        session.handle_disconnect(later, reader);
        assert_eq!(session.usage(), Usage::StreamClosed(later));
        let call = call(&mut session, 1);
        assert_eq!((session.usage(), session.idle_since()), (Usage::Active, None));
        session.handle_tell(
            Moment::START,
            Tell::Waiting {
                session: SessionKey(1),
                call,
            },
        );
        let Answer::Stream(reader) = session.poll_answer(call) else {
            panic!("a call that takes long is answered by a stream");
        };
        reply(&mut session, call);
        assert_eq!(session.usage(), Usage::Active, "its stream is still read");
        session.handle_disconnect(later, reader);
        assert!(session.idle_since().is_some());
        assert_eq!(
            implicit().usage(),
            Usage::Active,
            "its opening is not answered yet"
        );
    }

    fn implicit() -> Session {
        session(Limits::default())
    }

    #[test]
    fn events_are_dropped_on_demand() {
        let mut session = session(Limits::default());
        let line = Bytes::from(vec![b'x'; 100]);
        assert_eq!(session.oldest_event(), None);
        let second = |second| Moment::START.after(Duration::from_secs(second));
        for at in 1..4 {
            session.announce(second(at), &line);
        }
        assert_eq!((session.kept_bytes(), session.held_bytes()), (300, 300));
        assert_eq!(session.oldest_event(), Some(second(1)));
        session.drop_events(101);
        assert_eq!((session.kept_bytes(), session.events_lost()), (100, 2));
        assert_eq!(session.oldest_event(), Some(second(3)));
        let call = call(&mut session, 1);
        let before = session.held_bytes();
        reply(&mut session, call);
        assert_eq!(session.kept_bytes(), 100);
        assert!(
            session.held_bytes() > before,
            "an answer is held until it is read"
        );
    }

    #[test]
    fn answer_that_no_connection_waits_for_is_dropped() {
        let mut session = session(Limits::default());
        let call = call(&mut session, 1);
        let open = session.open_calls();
        session.abandon(call);
        reply(&mut session, call);
        assert_eq!(session.open_calls(), open - 1);
    }

    #[test]
    fn ended_streams_are_forgotten_by_number_and_age() {
        let limits = Limits {
            ended_streams: 1,
            ..Limits::default()
        };
        let age = limits.retention.age;
        let mut session = session(limits);
        for id in 0..3 {
            let call = call(&mut session, id);
            session.handle_tell(
                Moment::START,
                Tell::Waiting {
                    session: SessionKey(1),
                    call,
                },
            );
            session.abandon(call);
            reply(&mut session, call);
            assert_eq!(session.past_streams(), 1);
        }
        session.handle_tick(Moment::START.after(age));
        assert_eq!(session.past_streams(), 1);
        session.handle_tick(Moment::START.after(age + Duration::from_secs(5)));
        assert_eq!(session.past_streams(), 0);
    }

    #[test]
    fn reader_gets_at_once_what_fits() {
        let mut session = session(Limits::default());
        let reader = session.listen(Moment::START).unwrap();
        read(&mut session, reader);
        let quarter = Bytes::from(vec![b'x'; READ_AT_ONCE / 4]);
        for _ in 0..9 {
            session.announce(Moment::START, &quarter);
        }
        let sizes: Vec<usize> = (0..3)
            .map(|_| read(&mut session, reader).0.matches("data: ").count())
            .collect();
        assert_eq!(sizes, [4, 4, 1]);
    }

    #[test]
    fn every_event_that_is_dropped_unread_is_counted() {
        let mut limits = Limits::default();
        limits.retention.events = 2;
        let mut session = session(limits);
        for _ in 0..5 {
            session.announce(Moment::START, &Bytes::from_static(b"{}"));
        }
        assert_eq!(session.events_lost(), 3, "about no call");
        let call = call(&mut session, 1);
        for _ in 0..6 {
            let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#;
            session.handle_tell(
                Moment::START,
                Tell::Related {
                    session: SessionKey(1),
                    call,
                    message: message(progress),
                },
            );
        }
        assert_eq!(session.events_lost(), 3 + 4, "about a call");
        reply(&mut session, call);
        assert_eq!(session.events_lost(), 3 + 4 + 1, "for its answer");
    }
}
