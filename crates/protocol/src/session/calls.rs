//! The calls of a session: undecided until something comes, then one JSON body or a stream.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::readers::{Answer, ReadPosition, Reader, Reading, StreamRefusal};
use super::replay::{Audience, ByteSum, EventId, EventLog, Retention, StreamKey};
use super::{Accepts, CallRecord, Ending, Limits};
use crate::client_face::legacy;
use crate::exchange::{CallKey, Failure};
use crate::message::{Member, Message, Written};
use crate::method::Method;
use crate::time::Moment;
use crate::vec_map::VecMap;

#[derive(Debug)]
pub(super) struct OpenCall {
    /// The client's message; `None` for a handshake that Rialto does by itself.
    message: Option<Message>,
    started: Moment,
    accepts: Accepts,
    stage: Stage,
    /// A connection waits for the answer.
    connected: bool,
}

#[derive(Debug)]
enum Stage {
    /// Nothing has come yet.
    Undecided,
    /// The answer is ready to be taken.
    Complete {
        body: Written,
        failure: Option<Failure>,
    },
    Stream(CallStream),
}

/// A call's stream.
#[derive(Debug)]
pub(super) struct CallStream {
    log: EventLog,
    position: ReadPosition,
    ended: Option<Moment>,
    /// The id of the request, while its answer may have to be given up.
    id: Option<Bytes>,
}

impl OpenCall {
    pub(super) const fn message(&self) -> Option<&Message> {
        self.message.as_ref()
    }

    pub(super) const fn accepts(&self) -> Accepts {
        self.accepts
    }

    /// Returns the id of the request, as its client wrote it.
    pub(super) fn id(&self) -> &[u8] {
        let message = self.message.as_ref();
        message
            .and_then(|message| message.raw(Member::Id))
            .unwrap_or(b"null")
    }

    pub(super) fn method(&self) -> Method {
        self.message.as_ref().map_or(Method::Other, Message::method)
    }

    /// Returns what there is to record of the call's end, if it is a client's.
    pub(super) fn record(&self, call: CallKey, ending: &Ending, response: &Written) -> Option<CallRecord> {
        Some(CallRecord {
            call,
            message: self.message.clone()?,
            started: self.started,
            ending: ending.clone(),
            response: response.clone(),
            in_band: self.accepts.reads_events(),
            streamed: matches!(self.stage, Stage::Stream(_)),
        })
    }

    fn is_unanswered(&self) -> bool {
        match &self.stage {
            Stage::Undecided => true,
            Stage::Complete { .. } => false,
            Stage::Stream(stream) => stream.ended.is_none(),
        }
    }

    fn stream(&self) -> Option<&CallStream> {
        match &self.stage {
            Stage::Stream(stream) => Some(stream),
            Stage::Undecided | Stage::Complete { .. } => None,
        }
    }

    fn stream_mut(&mut self) -> Option<&mut CallStream> {
        match &mut self.stage {
            Stage::Stream(stream) => Some(stream),
            Stage::Undecided | Stage::Complete { .. } => None,
        }
    }
}

impl CallStream {
    /// Returns the stream of a call whose client waits, counted in `sum`.
    fn connected(sum: &ByteSum) -> Self {
        Self {
            log: EventLog::counted_in(sum),
            position: ReadPosition::connected(0),
            ended: None,
            id: None,
        }
    }

    pub(super) const fn is_connected(&self) -> bool {
        self.position.connected
    }

    /// Returns the number of the newest event.
    pub(super) fn newest(&self) -> u64 {
        self.log.newest()
    }

    /// Returns whether a reader was given the event of this number.
    pub(super) const fn is_read(&self, number: u64) -> bool {
        self.position.cursor >= number
    }

    /// Returns whether a connection reads this stream and has not been given all of it.
    fn is_awaited(&self) -> bool {
        self.position.connected && !self.is_read(self.newest())
    }
}

/// What became of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Completed {
    /// It is the last event of the call's stream, for which this many events were dropped.
    Streamed { lost: u64 },
    /// It waits to be taken.
    Kept,
    /// No connection waits any more, and no event id was given out to come back with.
    Unwanted,
}

/// The calls of a session and their streams.
///
/// [`Calls::begin`] enters a call. [`Calls::push`] and [`Calls::complete`] take what comes about
/// it. [`Calls::poll`] and [`Calls::abandon`] are for the connection that waits for the answer;
/// `resume`, `read` and `handle_disconnect` are for readers of its stream, also after the call has
/// ended. `next_to_shed` and `drop_oldest` keep the session within its byte budget.
#[derive(Debug)]
pub(super) struct Calls {
    /// Boxed, because a map keeps its room when it is empty, and a session is mostly idle.
    open: VecMap<CallKey, Box<OpenCall>>,
    /// Streams whose call has ended, oldest first.
    past: VecDeque<(StreamKey, CallStream)>,
    /// What all logs of the session keep together.
    kept: ByteSum,
}

impl Calls {
    pub(super) fn counted_in(sum: &ByteSum) -> Self {
        Self {
            open: VecMap::default(),
            past: VecDeque::new(),
            kept: sum.clone(),
        }
    }

    pub(super) fn begin(&mut self, now: Moment, call: CallKey, message: Option<Message>, accepts: Accepts) {
        let connected = message.is_some();
        self.open.insert(
            call,
            Box::new(OpenCall {
                message,
                started: now,
                accepts,
                stage: Stage::Undecided,
                connected,
            }),
        );
    }

    /// Returns how many calls have no end, or an answer that was not taken yet.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns how many streams of ended calls may still be resumed.
    pub(super) fn past(&self) -> usize {
        self.past.len()
    }

    /// Returns how many bytes all logs of the session keep.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept.get()
    }

    /// Returns how many bytes the answers have that wait to be taken.
    pub(super) fn answer_bytes(&self) -> usize {
        let answers = self.open.values().map(|call| match &call.stage {
            Stage::Complete { body, .. } => body.len(),
            Stage::Undecided | Stage::Stream(_) => 0,
        });
        answers.sum()
    }

    pub(super) fn get(&self, call: CallKey) -> Option<&OpenCall> {
        self.open.get(&call).map(|call| &**call)
    }

    /// Returns the stream of a call that has not ended.
    pub(super) fn stream(&self, call: CallKey) -> Option<&CallStream> {
        self.get(call)?.stream()
    }

    /// Returns the newest open call with this id: clients may use one id many times. An
    /// `initialize` cannot be cancelled (2025-03-26, cancellation).
    pub(super) fn with_id(&self, id: &[u8]) -> Option<CallKey> {
        let mut newest_first = self.open.iter().rev();
        newest_first
            .find(|(_, call)| {
                call.is_unanswered()
                    && call.message.as_ref().is_some_and(|message| {
                        message.raw(Member::Id) == Some(id) && message.method() != Method::Initialize
                    })
            })
            .map(|(key, _)| *key)
    }

    /// Returns the calls whose answer has not come.
    pub(super) fn unanswered(&self) -> Vec<CallKey> {
        let open = self.open.iter();
        open.filter(|(_, call)| call.is_unanswered())
            .map(|(key, _)| *key)
            .collect()
    }

    /// Returns whether a client waits for an answer or reads the stream of an open call.
    pub(super) fn is_connected(&self) -> bool {
        self.open.values().any(|call| match &call.stage {
            Stage::Undecided | Stage::Complete { .. } => call.connected,
            Stage::Stream(stream) => stream.is_connected(),
        })
    }

    /// Returns whether a call is open, or a client reads the stream of one that has ended.
    pub(super) fn is_in_use(&self) -> bool {
        !self.open.is_empty() || self.past.iter().any(|(_, stream)| stream.is_connected())
    }

    /// Returns whether the stream of an ended call has events that were not read.
    pub(super) fn has_unread(&self) -> bool {
        let mut past = self.past.iter();
        past.any(|(_, stream)| !stream.is_read(stream.newest()))
    }

    // From the backend.

    /// Turns a call's answer into a stream, if its client reads streams and is still there.
    pub(super) fn upgrade(&mut self, call: CallKey) -> Option<&mut CallStream> {
        let open = self.open.get_mut(&call)?;
        let can_stream = open.connected && matches!(open.accepts, Accepts::Events | Accepts::Both);
        if can_stream && matches!(open.stage, Stage::Undecided) {
            open.stage = Stage::Stream(CallStream::connected(&self.kept));
        }
        open.stream_mut()
    }

    /// Adds an event to a call's own stream, which begins with it if need be. A client that resumes
    /// the stream finds it there, so it is to be in a buffer that may be kept. Returns how many
    /// events were dropped for it, or `None` if there is no such stream.
    pub(super) fn push(
        &mut self,
        now: Moment,
        call: CallKey,
        data: impl FnOnce() -> Bytes,
        keep: &Retention,
    ) -> Option<u64> {
        let stream = self.upgrade(call)?;
        Some(stream.log.push(now, data(), Audience::All, keep))
    }

    /// Takes a call out that gets its answer, for [`Calls::complete`]. One that has an answer keeps it.
    pub(super) fn take(&mut self, call: CallKey) -> Option<Box<OpenCall>> {
        self.open.get(&call).filter(|open| open.is_unanswered())?;
        self.open.remove(&call)
    }

    /// Keeps the answer of a call that was taken out, for the connection that waits for it or reads
    /// its stream.
    pub(super) fn complete(
        &mut self,
        now: Moment,
        key: CallKey,
        mut call: Box<OpenCall>,
        body: Written,
        failure: Option<Failure>,
        limits: &Limits,
    ) -> Completed {
        let is_stream = call.accepts == Accepts::Events && call.connected;
        match call.stage {
            Stage::Undecided if is_stream => call.stage = Stage::Stream(CallStream::connected(&self.kept)),
            Stage::Undecided | Stage::Complete { .. } if call.connected => {
                call.stage = Stage::Complete { body, failure };
                self.open.insert(key, call);
                return Completed::Kept;
            }
            Stage::Undecided | Stage::Complete { .. } => return Completed::Unwanted,
            Stage::Stream(_) => {}
        }
        let id = call
            .message
            .as_ref()
            .and_then(|message| message.raw_bytes(Member::Id));
        let Stage::Stream(mut stream) = call.stage else {
            return Completed::Unwanted;
        };
        let keep = &limits.retention;
        let lost = stream.log.push(now, body.into_bytes(), Audience::All, keep);
        stream.ended = Some(now);
        stream.id = id;
        self.past.push_back((StreamKey(key.0), stream));
        self.forget_past(now, limits);
        Completed::Streamed { lost }
    }

    /// Takes an event back that should be read by no client.
    pub(super) fn retract(&mut self, call: CallKey, number: u64) {
        if let Some(stream) = self.open.get_mut(&call).and_then(|call| call.stream_mut()) {
            stream.log.retract(number);
        }
    }

    // From the readers.

    pub(super) fn poll(&mut self, key: CallKey) -> Answer {
        let stream = StreamKey(key.0);
        let Some(call) = self.open.get(&key) else {
            // The call may have ended as a stream before its reader came to look.
            return match self.past.iter().find(|(past, _)| *past == stream) {
                Some((_, past)) => Answer::Stream(past.position.reader(stream)),
                None => Answer::Complete {
                    body: Written::Whole(Bytes::new()),
                    failure: Some(Failure::SessionEnded),
                },
            };
        };
        match &call.stage {
            Stage::Undecided => Answer::Waiting,
            Stage::Stream(open) => Answer::Stream(open.position.reader(stream)),
            Stage::Complete { .. } => match self.open.remove(&key).map(|call| call.stage) {
                Some(Stage::Complete { body, failure }) => Answer::Complete { body, failure },
                Some(Stage::Undecided | Stage::Stream(_)) | None => Answer::Waiting,
            },
        }
    }

    pub(super) fn abandon(&mut self, key: CallKey) {
        let Some(call) = self.open.get_mut(&key) else {
            // It may have ended as a stream before a connection began to read it.
            if let Some(past) = self.find_stream(StreamKey(key.0)) {
                past.position.connected = false;
            }
            return;
        };
        call.connected = false;
        match &mut call.stage {
            Stage::Undecided => {}
            Stage::Stream(stream) => stream.position.connected = false,
            Stage::Complete { .. } => {
                self.open.remove(&key);
            }
        }
    }

    /// Ends the event ids of a stream with a token, unless they have one: `token` makes it from the
    /// id of the request.
    pub(super) fn set_token(&mut self, stream: StreamKey, token: impl FnOnce(&[u8]) -> Option<Box<str>>) {
        let id = |call: &OpenCall| call.message.as_ref()?.raw_bytes(Member::Id);
        let id = match self.past.iter().find(|(key, _)| *key == stream) {
            Some((_, past)) => past.id.clone(),
            None => self.get(CallKey(stream.0)).and_then(id),
        };
        if let Some(id) = id
            && let Some(open) = self.find_stream(stream)
            && open.position.token.is_none()
        {
            open.position.token = token(&id);
        }
    }

    /// Opens a stream that has the answer of a call and nothing else.
    pub(super) fn open_ended(
        &mut self,
        now: Moment,
        stream: StreamKey,
        answer: Bytes,
        limits: &Limits,
    ) -> Reader {
        let mut ended = CallStream::connected(&self.kept);
        ended.log.push(now, answer, Audience::All, &limits.retention);
        ended.ended = Some(now);
        // The event itself is the beginning: the client has been primed before.
        ended.position.begun = true;
        let reader = ended.position.reader(stream);
        self.past.push_back((stream, ended));
        self.forget_past(now, limits);
        reader
    }

    /// Returns a stream, whether its call has ended or not.
    fn find_stream(&mut self, stream: StreamKey) -> Option<&mut CallStream> {
        match self.past.iter_mut().find(|(key, _)| *key == stream) {
            Some((_, past)) => Some(past),
            None => self.open.get_mut(&CallKey(stream.0))?.stream_mut(),
        }
    }

    pub(super) fn resume(&mut self, event: EventId) -> Result<Reader, StreamRefusal> {
        let EventId { stream, number } = event;
        let open = self.find_stream(stream).ok_or(StreamRefusal::UnknownEvent)?;
        if number > open.newest() {
            return Err(StreamRefusal::UnknownEvent);
        }
        if open.ended.is_some() && number == open.newest() {
            return Err(StreamRefusal::Finished);
        }
        open.position.begun = true;
        Ok(open.position.resume(event))
    }

    pub(super) fn read(&mut self, reader: Reader, primes: bool, out: &mut BytesMut) -> Reading {
        let Some(open) = self
            .find_stream(reader.stream)
            .filter(|open| open.position.is_of(reader))
        else {
            return Reading::Ended;
        };
        open.position.read(reader.stream, &mut open.log, primes, out);
        if open.ended.is_some() && open.position.cursor == open.newest() {
            Reading::Ended
        } else {
            Reading::Open
        }
    }

    pub(super) fn handle_disconnect(&mut self, now: Moment, reader: Reader, limits: &Limits) {
        if let Some(open) = self
            .find_stream(reader.stream)
            .filter(|open| open.position.is_of(reader))
        {
            open.position.connected = false;
        }
        self.forget_past(now, limits);
    }

    // Limits.

    /// Forgets streams that have ended, oldest first, beyond what may be kept.
    pub(super) fn forget_past(&mut self, now: Moment, limits: &Limits) {
        // They ended in this order, so that nothing behind one that may stay has to go.
        while let Some((at, (_, oldest))) = self
            .past
            .iter()
            .enumerate()
            .find(|(_, (_, stream))| !stream.is_connected())
        {
            let excess = self.past.len() > limits.ended_streams;
            let expired = oldest
                .ended
                .is_some_and(|ended| now.since(ended) > limits.retention.age);
            if !(expired || excess) {
                break;
            }
            self.past.remove(at);
        }
    }

    /// Replaces answers that connections wait to read by an error, the oldest first, until all logs
    /// of the session together keep no more than `limit`. The newest answer stays, so that one
    /// answer always passes. Returns how many were replaced.
    pub(super) fn give_up_answers(&mut self, limit: usize) -> u64 {
        let mut lost = 0;
        while self.kept.get() > limit {
            let is_awaited = |stream: &CallStream| stream.is_awaited() && stream.id.is_some();
            let mut awaited = self.past.iter_mut().filter(|(_, stream)| is_awaited(stream));
            let (Some((_, oldest)), Some(_)) = (awaited.next(), awaited.next()) else {
                break;
            };
            let id = oldest.id.take().unwrap_or_default();
            let limit = "bytes waiting to be read";
            let error = legacy::lower_failure(&id, &Failure::Overloaded { limit });
            oldest.log.replace_newest(error);
            lost += 1;
        }
        lost
    }

    /// Returns when the oldest kept event came.
    pub(super) fn oldest_event(&self) -> Option<Moment> {
        let open = self.open.values().filter_map(|call| call.stream());
        let past = self.past.iter().map(|(_, stream)| stream);
        open.chain(past).filter_map(|stream| stream.log.oldest()).min()
    }

    /// Returns the stream whose oldest event goes next.
    pub(super) fn next_to_shed(&self) -> Option<(ShedOrder, DropTarget)> {
        let open = self
            .open
            .iter()
            .filter_map(|(key, call)| Some((DropTarget::Open(*key), call.stream()?)));
        let past = self.past.iter().enumerate();
        let past = past.map(|(at, (_, stream))| (DropTarget::Past(at), stream));
        open.chain(past)
            .filter_map(|(target, stream)| Some((ShedOrder::of(&stream.log, stream.is_awaited())?, target)))
            .min_by_key(|(order, _)| *order)
    }

    /// Drops the oldest event of a stream. Returns how many were dropped.
    pub(super) fn drop_oldest(&mut self, target: DropTarget) -> u64 {
        let stream = match target {
            DropTarget::Open(call) => self.open.get_mut(&call).and_then(|call| call.stream_mut()),
            // A stream without its answer would be resumed without end.
            DropTarget::Past(at) if self.past.get(at).is_some_and(|(_, past)| past.log.len() == 1) => {
                return self.past.remove(at).map_or(0, |_| 1);
            }
            DropTarget::Past(at) => self.past.get_mut(at).map(|(_, past)| past),
        };
        stream.map_or(0, |stream| stream.log.drop_oldest())
    }
}

/// A stream of a call that loses an event.
pub(super) enum DropTarget {
    Open(CallKey),
    /// The stream at this index among those that have ended.
    Past(usize),
}

/// The order in which logs lose their oldest event. The newest event of a log goes only after all
/// older ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ShedOrder {
    is_last: bool,
    oldest: Moment,
}

impl ShedOrder {
    /// Returns `None` for a log that may lose nothing: its newest event stays while it is awaited.
    pub(super) fn of(log: &EventLog, is_awaited: bool) -> Option<Self> {
        let is_last = log.len() == 1;
        let oldest = log.oldest().filter(|_| !(is_last && is_awaited))?;
        Some(Self { is_last, oldest })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::{Accepted, Session};
    use super::*;
    use crate::exchange::{Client, Principal, SessionKey, Tell};
    use crate::version::{Era, Version};

    const UNIT: usize = 16 << 10;

    fn message(text: &str) -> Message {
        Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn session() -> Session {
        let client = Arc::new(Client::declaring(Principal::anonymous(), None, None));
        let mut limits = Limits::default();
        limits.retention.bytes = 4 * UNIT;
        Session::open_implicit(SessionKey(1), client, limits, Moment::START, Version::V2025_11_25).0
    }

    fn call(session: &mut Session, id: u32) -> CallKey {
        let call = message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call"}}"#));
        match session.handle_message(Moment::START, call, Accepts::Both) {
            Ok(Accepted::Call { call, .. }) => call,
            other => panic!("a call is taken: {other:?}"),
        }
    }

    /// The server sends a log line of this many bytes about a call.
    fn relate(session: &mut Session, now: Moment, call: CallKey, bytes: usize) {
        let line = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"data":"{}"}}}}"#,
            "x".repeat(bytes)
        );
        let message = message(&line);
        session.handle_tell(
            now,
            Tell::Related {
                session: SessionKey(1),
                call,
                message,
            },
        );
    }

    fn answer(session: &mut Session, now: Moment, call: CallKey, bytes: usize) {
        let result = format!(r#"{{"jsonrpc":"2.0","id":9,"result":"{}"}}"#, "r".repeat(bytes));
        let reply = Tell::Reply {
            session: SessionKey(1),
            call,
            message: message(&result),
            era: Era::Legacy,
        };
        session.handle_tell(now, reply);
    }

    fn text(session: &mut Session, reader: Reader) -> String {
        let mut out = bytes::BytesMut::new();
        while {
            let before = out.len();
            session.read(Moment::START, reader, &mut out);
            out.len() > before
        } {}
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn abandoned_streaming_calls_of_a_session_share_one_byte_budget() {
        let mut session = session();
        for id in 0..60 {
            let call = call(&mut session, id);
            for _ in 0..4 {
                relate(&mut session, Moment::START, call, UNIT);
            }
            session.abandon(call);
        }
        assert!(session.held_bytes() <= 4 * UNIT, "{} bytes", session.held_bytes());
        assert!(session.events_lost() > 200);
    }

    #[test]
    fn events_that_are_dropped_for_the_budget_are_the_oldest_of_all_streams() {
        let mut session = session();
        let at = |second| Moment::START.after(Duration::from_secs(second));
        let (first, second) = (call(&mut session, 1), call(&mut session, 2));
        relate(&mut session, at(0), first, UNIT);
        relate(&mut session, at(1), second, UNIT);
        relate(&mut session, at(2), first, UNIT);
        relate(&mut session, at(3), second, 2 * UNIT);
        let reader =
            |session: &mut Session, call: CallKey| session.resume(at(3), &format!("{}-0", call.0)).unwrap();
        let (of_first, of_second) = (reader(&mut session, first), reader(&mut session, second));
        let (of_first, of_second) = (text(&mut session, of_first), text(&mut session, of_second));
        assert!(
            of_first.starts_with(": events were lost here"),
            "{}",
            &of_first[..80]
        );
        assert_eq!(of_first.matches("data: {").count(), 1);
        assert_eq!(
            of_second.matches("data: {").count(),
            1,
            "it was the second oldest"
        );
    }

    #[test]
    fn answer_that_a_connection_waits_for_is_kept_beyond_the_budget() {
        let mut session = session();
        let calls: Vec<CallKey> = (0..3).map(|id| call(&mut session, id)).collect();
        for call in &calls {
            relate(&mut session, Moment::START, *call, 10);
            answer(&mut session, Moment::START, *call, 3 * UNIT);
        }
        for call in calls {
            let super::super::Answer::Stream(reader) = session.poll_answer(call) else {
                panic!("the answer is a stream");
            };
            let text = text(&mut session, reader);
            assert!(text.contains(r#""result":"rrr"#), "{}", &text[..100]);
            session.handle_disconnect(Moment::START, reader);
        }
        answer_is_forgotten(&mut session);
    }

    #[test]
    fn answers_for_slow_readers_are_given_up_for_an_error_when_they_exceed_the_budget_four_times() {
        let mut session = session();
        let calls: Vec<CallKey> = (0..10).map(|id| call(&mut session, id)).collect();
        for call in &calls {
            relate(&mut session, Moment::START, *call, 10);
            answer(&mut session, Moment::START, *call, 3 * UNIT);
            let held = session.held_bytes();
            assert!(held <= 17 * UNIT, "{held} bytes are held for one session");
        }
        let answers: Vec<bool> = calls
            .into_iter()
            .enumerate()
            .map(|(id, call)| {
                let super::super::Answer::Stream(reader) = session.poll_answer(call) else {
                    panic!("the answer is a stream");
                };
                let text = text(&mut session, reader);
                let is_error = text.contains(&format!(r#""id":{id},"error":"#));
                assert!(
                    is_error != text.contains(r#""result":"rrr"#),
                    "every call has one answer: {}",
                    &text[..100]
                );
                !is_error
            })
            .collect();
        assert_eq!(answers, [[false; 5], [true; 5]].concat());
    }

    #[test]
    fn an_answer_larger_than_the_budget_reaches_the_reader_that_waits_for_it() {
        let mut session = session();
        let call = call(&mut session, 1);
        relate(&mut session, Moment::START, call, 10);
        answer(&mut session, Moment::START, call, 20 * UNIT);
        session.drop_events(20 * UNIT);
        let super::super::Answer::Stream(reader) = session.poll_answer(call) else {
            panic!("the answer is a stream");
        };
        assert!(text(&mut session, reader).contains(r#""result":"rrr"#));
    }

    /// What no connection waits for any more has to fit.
    fn answer_is_forgotten(session: &mut Session) {
        session.handle_tick(Moment::START);
        assert!(session.held_bytes() <= 4 * UNIT, "{}", session.held_bytes());
    }

    #[test]
    fn stream_that_lost_its_answer_to_the_budget_is_unknown_and_not_empty_for_ever() {
        let mut session = session();
        let first = call(&mut session, 1);
        relate(&mut session, Moment::START, first, 10);
        answer(&mut session, Moment::START, first, 3 * UNIT);
        session.abandon(first);
        let second = call(&mut session, 2);
        relate(&mut session, Moment::START, second, 10);
        answer(&mut session, Moment::START, second, 3 * UNIT);
        let resumed = session.resume(Moment::START, &format!("{}-0", first.0));
        assert_eq!(resumed, Err(super::super::StreamRefusal::UnknownEvent));
    }

    #[test]
    fn answers_that_are_given_up_on_demand_are_counted() {
        let mut session = session();
        let calls: Vec<CallKey> = (0..3).map(|id| call(&mut session, id)).collect();
        for call in &calls {
            relate(&mut session, Moment::START, *call, 10);
            answer(&mut session, Moment::START, *call, UNIT);
        }
        session.drop_events(0);
        let before = session.events_lost();
        session.drop_events(session.kept_bytes());
        // One line about each call, and all answers but the newest.
        assert_eq!(session.events_lost() - before, 3 + 2);
    }

    #[test]
    fn oldest_event_goes_first_whether_or_not_it_is_about_a_call() {
        let mut session = session();
        let at = |second| Moment::START.after(Duration::from_secs(second));
        let call = call(&mut session, 1);
        let notice = Bytes::from_static(b"{}");
        session.announce(at(0), &notice);
        relate(&mut session, at(1), call, 10);
        session.announce(at(2), &notice);
        relate(&mut session, at(3), call, 10);
        for second in 0..2 {
            assert_eq!(session.oldest_event(), Some(at(second)));
            session.drop_events(1);
        }
        assert_eq!(session.oldest_event(), Some(at(2)));
    }
}
