//! The calls of a session: undecided until something comes, then one JSON body or a stream.

use bytes::Bytes;

use super::replay::{Audience, ByteSum, EventLog, StreamKey};
use super::{Accepts, CallRecord, Ending, Output, Session};
use crate::client_face::legacy;
use crate::exchange::{CallKey, Failure};
use crate::message::{Member, Message, Written};
use crate::method::Method;
use crate::time::Moment;

/// Answers that connections wait to read may exceed the budget of a session this many times: a reader that is as fast
/// as the server is not to lose an answer.
const AWAITED_FACTOR: usize = 4;

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
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) log: EventLog,
    pub(super) cursor: u64,
    /// The priming event has been sent.
    pub(super) begun: bool,
    pub(super) generation: u32,
    pub(super) ended: Option<Moment>,
    pub(super) attended: bool,
    /// The id of the request, while its answer may have to be given up.
    id: Option<Bytes>,
}

impl Stream {
    /// Returns the stream of a call whose client waits, counted in `sum`.
    fn attended(sum: &ByteSum) -> Self {
        Self {
            log: EventLog::counted_in(sum),
            cursor: 0,
            begun: false,
            generation: 0,
            ended: None,
            attended: true,
            id: None,
        }
    }

    /// Returns whether a connection reads this stream and has not been given all of it.
    pub(super) fn is_awaited(&self) -> bool {
        self.attended && self.cursor < self.log.newest()
    }
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
        self.shed_to(self.limits.retention.bytes);
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
                open.stage = Stage::Stream(Stream::attended(&self.kept));
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
            call.stage = Stage::Stream(Stream::attended(&self.kept));
        }
        if let Some(message) = &call.message {
            let record = CallRecord {
                call: key,
                message: message.clone(),
                started: call.started,
                ending: ending.clone(),
                response: body.clone(),
                in_band: call.accepts.reads_events(),
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
                open.id = call
                    .message
                    .as_ref()
                    .and_then(|message| message.raw_bytes(Member::Id));
                self.past.push_back((stream, open));
                self.forget_past(now);
                self.shed_to(self.limits.retention.bytes);
                self.give_up_answers(AWAITED_FACTOR.saturating_mul(self.limits.retention.bytes));
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
        // They ended in this order, so that nothing behind one that may stay has to go.
        while let Some((at, (_, oldest))) = self
            .past
            .iter()
            .enumerate()
            .find(|(_, (_, stream))| !stream.attended)
        {
            let excess = self.past.len() > self.limits.ended_streams;
            let expired = oldest.ended.is_some_and(|ended| now.since(ended) > keep.age);
            if !(expired || excess) {
                break;
            }
            self.past.remove(at);
        }
    }

    /// Drops events until all logs together keep no more than `limit`, the oldest of the session first. The newest
    /// event of a log goes only after all older ones, and never while a connection waits to read it: it is that call's
    /// answer, or will be followed by it.
    pub(super) fn shed_to(&mut self, limit: usize) {
        while self.kept.get() > limit {
            let lost = match self.log_to_shed() {
                Some(Shed::Notices) => self.notices.drop_oldest(),
                Some(Shed::Open(call)) => match self.calls.get_mut(&call).map(|call| &mut call.stage) {
                    Some(Stage::Stream(stream)) => stream.log.drop_oldest(),
                    Some(Stage::Undecided | Stage::Complete { .. }) | None => 0,
                },
                // Without its answer a stream is not worth coming back to: a client would try for ever.
                Some(Shed::Past(at)) if self.past.get(at).is_some_and(|(_, past)| past.log.len() == 1) => {
                    self.past.remove(at).map_or(0, |_| 1)
                }
                Some(Shed::Past(at)) => self
                    .past
                    .get_mut(at)
                    .map_or(0, |(_, past)| past.log.drop_oldest()),
                None => 0,
            };
            if lost == 0 {
                return;
            }
            self.events_lost += lost;
        }
    }

    /// Replaces answers that connections wait to read by an error, the oldest first, until all logs together keep no
    /// more than `limit`. The newest answer stays, so that one answer always passes.
    pub(super) fn give_up_answers(&mut self, limit: usize) {
        while self.kept.get() > limit {
            let is_awaited = |stream: &Stream| stream.is_awaited() && stream.id.is_some();
            let mut awaited = self.past.iter_mut().filter(|(_, stream)| is_awaited(stream));
            let (Some((_, oldest)), Some(_)) = (awaited.next(), awaited.next()) else {
                return;
            };
            let id = oldest.id.take().unwrap_or_default();
            let limit = "bytes waiting to be read";
            let error = legacy::lower_failure(&id, &Failure::Overloaded { limit });
            oldest.log.replace_newest(error);
            self.events_lost += 1;
        }
    }

    /// Returns when the oldest kept event came.
    pub fn oldest_event(&self) -> Option<Moment> {
        let open = self.calls.values().filter_map(|call| match &call.stage {
            Stage::Stream(stream) => stream.log.oldest(),
            Stage::Undecided | Stage::Complete { .. } => None,
        });
        let past = self.past.iter().filter_map(|(_, stream)| stream.log.oldest());
        open.chain(past).chain(self.notices.oldest()).min()
    }

    /// Returns the log whose oldest event goes next.
    fn log_to_shed(&self) -> Option<Shed> {
        let open = self.calls.iter().filter_map(|(key, call)| match &call.stage {
            Stage::Stream(stream) => Some((Shed::Open(*key), &stream.log, stream.is_awaited())),
            Stage::Undecided | Stage::Complete { .. } => None,
        });
        let past = self
            .past
            .iter()
            .enumerate()
            .map(|(at, (_, stream))| (Shed::Past(at), &stream.log, stream.is_awaited()));
        let notices = (Shed::Notices, &self.notices, true);
        open.chain(past)
            .chain([notices])
            .filter_map(|(shed, log, is_awaited)| {
                let is_last = log.len() == 1;
                let oldest = log.oldest().filter(|_| !(is_last && is_awaited))?;
                Some(((is_last, oldest), shed))
            })
            .min_by_key(|(order, _)| *order)
            .map(|(_, shed)| shed)
    }
}

/// A log of a session that loses an event.
enum Shed {
    Notices,
    Open(CallKey),
    /// The stream at this place among those that have ended.
    Past(usize),
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::{Limits, Reader, Taken};
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
            Ok(Taken::Call { call, .. }) => call,
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
            words: Era::Legacy,
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
            session.hang_up(Moment::START, reader);
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
}
