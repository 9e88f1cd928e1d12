//! The event log of a stream, which a client resumes with `Last-Event-ID` after a disconnect.
//!
//! A stream is a numbered log; a connection is only a reader with a cursor. Live reading, a slow
//! reader and a resumption by `Last-Event-ID` are the same thing. The log is bounded by count,
//! bytes and age: the oldest events go first, and a reader that was still due them finds a gap,
//! never a repetition.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;

use crate::time::Moment;

/// A stream of a session: a call's own, or one opened by GET. Unique within the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey(pub u64);

/// The name of an event on the wire: `{stream}-{number}`. It tells a resumption which stream it is
/// about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventId {
    /// The stream that the event is on.
    pub stream: StreamKey,
    /// Its number there.
    pub number: u64,
}

impl EventId {
    /// Parses an event id. Returns `None` for text that is no event id of Rialto.
    pub fn parse(text: &str) -> Option<Self> {
        let (stream, number) = text.split_once('-')?;
        let plain = |text: &str| {
            !text.is_empty() && text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !plain(stream) || !plain(number) {
            return None;
        }
        Some(Self {
            stream: StreamKey(stream.parse().ok()?),
            number: number.parse().ok()?,
        })
    }

    /// Returns the pieces of the text, with the numbers written into the buffers and `end` after
    /// them.
    pub(crate) fn pieces<'a>(
        self,
        [stream, number]: &'a mut [itoa::Buffer; 2],
        end: &'a str,
    ) -> [&'a str; 4] {
        [stream.format(self.stream.0), "-", number.format(self.number), end]
    }
}

impl std::fmt::Display for EventId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.stream.0, self.number)
    }
}

/// How much may be kept: so many events and so long in each log, so many bytes in all logs of a
/// session together.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Events in one log.
    pub events: usize,
    /// Bytes in all logs of a session.
    pub bytes: usize,
    /// How long an event is kept.
    pub age: Duration,
}

/// The bytes of all logs of one session. Each log adds what it keeps and subtracts what it drops,
/// also when the log itself is dropped, so that the sum cannot drift.
#[derive(Debug, Clone, Default)]
pub struct ByteSum(Arc<AtomicUsize>);

impl ByteSum {
    /// Returns the sum.
    pub fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Relaxed);
    }

    fn subtract(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Relaxed);
    }
}

/// Which streams may read an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Every stream of the session.
    All,
    /// One stream only: the first that reads it, if none was named.
    One(Option<StreamKey>),
    /// None any more: it was withdrawn before it was read.
    Retracted,
}

/// Which stream has read an event that was for one stream only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// No stream has read it yet.
    Unclaimed,
    /// This stream has read it.
    By(StreamKey),
    /// It was for every stream, or it is gone.
    Never,
}

#[derive(Debug)]
struct Event {
    data: Bytes,
    audience: Audience,
    at: Moment,
}

/// A numbered log. Numbers start at 1; 0 is the place before the first event.
#[derive(Debug, Default)]
pub struct EventLog {
    events: VecDeque<Event>,
    /// Events that were dropped: the number of the first kept one is this plus one.
    dropped: u64,
    bytes: usize,
    sum: ByteSum,
}

impl Drop for EventLog {
    fn drop(&mut self) {
        self.sum.subtract(self.bytes);
    }
}

impl EventLog {
    /// Returns an empty log that is counted in `sum`.
    pub fn counted_in(sum: &ByteSum) -> Self {
        Self {
            events: VecDeque::new(),
            dropped: 0,
            bytes: 0,
            sum: sum.clone(),
        }
    }

    /// Returns how many events are kept.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether no event is kept.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns when the oldest kept event came.
    pub fn oldest(&self) -> Option<Moment> {
        self.events.front().map(|event| event.at)
    }

    /// Returns the number of the newest event.
    pub fn newest(&self) -> u64 {
        self.dropped + self.events.len() as u64
    }

    /// Returns how many bytes are kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an event. Returns how many old ones were dropped for it. The newest event always stays.
    pub fn push(&mut self, now: Moment, data: Bytes, audience: Audience, keep: &Retention) -> u64 {
        self.bytes += data.len();
        self.sum.add(data.len());
        self.events.push_back(Event {
            data,
            audience,
            at: now,
        });
        let mut lost = 0;
        while self.events.len() > 1 && (self.events.len() > keep.events || self.bytes > keep.bytes) {
            lost += self.drop_oldest();
        }
        lost + self.forget_old(now, keep)
    }

    /// Drops events that are older than the limit. Returns how many.
    pub fn forget_old(&mut self, now: Moment, keep: &Retention) -> u64 {
        let mut lost = 0;
        while self.events.len() > 1
            && self
                .events
                .front()
                .is_some_and(|event| now.since(event.at) > keep.age)
        {
            lost += self.drop_oldest();
        }
        lost
    }

    /// Drops everything up to this number: it was read, and no reader may come back for it.
    pub fn forget_through(&mut self, number: u64) {
        while self.dropped < number && !self.events.is_empty() {
            self.drop_oldest();
        }
    }

    /// Drops the oldest event, even if it is the only one. Returns how many were dropped.
    pub fn drop_oldest(&mut self) -> u64 {
        let Some(event) = self.events.pop_front() else {
            return 0;
        };
        self.bytes -= event.data.len();
        self.sum.subtract(event.data.len());
        self.dropped += 1;
        1
    }

    /// Returns how many events stand behind `cursor`, for any reader, and how many bytes of data
    /// they have.
    pub fn after(&self, cursor: u64) -> (usize, usize) {
        let from = cursor.saturating_sub(self.dropped) as usize;
        let events = self.events.iter().skip(from);
        events.fold((0, 0), |(count, bytes), event| {
            (count + 1, bytes + event.data.len())
        })
    }

    /// Returns the next event after `cursor` that `reader` may see, with its number. Reading an
    /// event for one stream claims it.
    pub fn read(&mut self, cursor: u64, reader: StreamKey) -> Option<(u64, &Bytes)> {
        let from = cursor.saturating_sub(self.dropped) as usize;
        let dropped = self.dropped;
        self.events
            .iter_mut()
            .enumerate()
            .skip(from)
            .find_map(|(at, event)| {
                match event.audience {
                    Audience::All => {}
                    Audience::One(Some(stream)) if stream == reader => {}
                    Audience::One(None) => event.audience = Audience::One(Some(reader)),
                    Audience::One(Some(_)) | Audience::Retracted => return None,
                }
                Some((dropped + at as u64 + 1, &event.data))
            })
    }

    /// Returns which stream has claimed this event.
    pub fn claim(&self, number: u64) -> Claim {
        let event = number
            .checked_sub(self.dropped + 1)
            .and_then(|at| self.events.get(at as usize));
        match event.map(|event| event.audience) {
            Some(Audience::One(None)) => Claim::Unclaimed,
            Some(Audience::One(Some(stream))) => Claim::By(stream),
            Some(Audience::All | Audience::Retracted) | None => Claim::Never,
        }
    }

    /// Retracts an event, which then reaches no stream. Its number stays taken.
    pub fn retract(&mut self, number: u64) {
        if let Some(event) = number
            .checked_sub(self.dropped + 1)
            .and_then(|at| self.events.get_mut(at as usize))
        {
            event.audience = Audience::Retracted;
            let freed = std::mem::take(&mut event.data).len();
            self.bytes -= freed;
            self.sum.subtract(freed);
        }
    }

    /// Puts other data in the place of the newest event.
    pub fn replace_newest(&mut self, data: Bytes) {
        if let Some(event) = self.events.back_mut() {
            let (before, after) = (event.data.len(), data.len());
            event.data = data;
            self.bytes = self.bytes - before + after;
            self.sum.subtract(before);
            self.sum.add(after);
        }
    }

    /// Returns whether events after `cursor` are lost.
    pub fn has_gap(&self, cursor: u64) -> bool {
        cursor < self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Retention = Retention {
        events: 3,
        bytes: 100,
        age: Duration::from_secs(10),
    };
    const A: StreamKey = StreamKey(1);
    const B: StreamKey = StreamKey(2);

    fn push(log: &mut EventLog, text: &'static str, audience: Audience) -> u64 {
        log.push(
            Moment::START,
            Bytes::from_static(text.as_bytes()),
            audience,
            &KEEP,
        )
    }

    #[test]
    fn every_reader_sees_every_event_once_and_in_order() {
        let mut log = EventLog::default();
        push(&mut log, "a", Audience::All);
        push(&mut log, "b", Audience::All);
        for reader in [A, B] {
            assert_eq!(log.read(0, reader), Some((1, &Bytes::from_static(b"a"))));
            assert_eq!(log.read(1, reader), Some((2, &Bytes::from_static(b"b"))));
            assert_eq!(log.read(2, reader), None);
        }
    }

    #[test]
    fn an_event_for_one_stream_is_seen_by_the_first_reader_only_and_again_on_its_resumption() {
        let mut log = EventLog::default();
        push(&mut log, "question", Audience::One(None));
        push(&mut log, "b", Audience::All);
        assert_eq!(log.claim(1), Claim::Unclaimed);
        assert_eq!(log.read(0, B).map(|found| found.0), Some(1));
        assert_eq!(log.claim(1), Claim::By(B));
        assert_eq!(log.claim(2), Claim::Never);
        assert_eq!(log.read(0, A).map(|found| found.0), Some(2));
        assert_eq!(log.read(0, B).map(|found| found.0), Some(1));
    }

    #[test]
    fn a_retracted_event_is_never_read_and_leaves_no_gap() {
        let mut log = EventLog::default();
        push(&mut log, "question", Audience::One(None));
        push(&mut log, "bbb", Audience::All);
        log.retract(1);
        assert_eq!(log.read(0, A).map(|found| found.0), Some(2));
        assert!(!log.has_gap(0));
        assert_eq!((log.claim(1), log.bytes()), (Claim::Never, 3));
    }

    #[test]
    fn the_oldest_go_first_by_count_bytes_and_age_but_the_newest_stays() {
        let mut log = EventLog::default();
        for _ in 0..4 {
            push(&mut log, "x", Audience::All);
        }
        assert!(log.has_gap(0) && !log.has_gap(1));
        assert_eq!(log.read(0, A).map(|found| found.0), Some(2));
        log.push(Moment::START, Bytes::from(vec![b'x'; 200]), Audience::All, &KEEP);
        assert_eq!(log.read(0, A).map(|found| found.0), Some(5));
        let later = Moment::START.after(Duration::from_secs(11));
        log.push(later, Bytes::from_static(b"y"), Audience::All, &KEEP);
        assert_eq!((log.newest(), log.bytes()), (6, 1));
    }

    fn filled(texts: &[&'static str]) -> EventLog {
        let mut log = EventLog::default();
        for text in texts {
            push(&mut log, text, Audience::All);
        }
        log
    }

    #[test]
    fn exactly_as_much_as_the_limits_allow_is_kept() {
        let mut log = filled(&["a", "b", "c"]);
        assert_eq!((log.len(), log.bytes(), log.newest()), (3, 3, 3));
        assert_eq!(push(&mut log, "d", Audience::All), 1);
        assert_eq!((log.len(), log.newest()), (3, 4));

        let mut log = EventLog::default();
        for _ in 0..2 {
            log.push(Moment::START, Bytes::from(vec![b'x'; 50]), Audience::All, &KEEP);
        }
        assert_eq!((log.len(), log.bytes()), (2, 100));
        assert_eq!(push(&mut log, "y", Audience::All), 1);
        assert_eq!((log.len(), log.bytes()), (2, 51));
    }

    #[test]
    fn an_event_goes_when_it_is_older_than_may_be_kept_and_not_before() {
        let mut log = filled(&["a"]);
        let second = Moment::START.after(Duration::from_secs(1));
        log.push(second, Bytes::from_static(b"b"), Audience::All, &KEEP);
        assert_eq!(log.forget_old(Moment::START.after(KEEP.age), &KEEP), 0);
        assert_eq!(log.oldest(), Some(Moment::START));
        let later = Moment::START.after(KEEP.age + Duration::from_millis(1));
        assert_eq!(log.forget_old(later, &KEEP), 1);
        assert_eq!((log.oldest(), log.len()), (Some(second), 1));
        // The newest stays, however old it is.
        assert_eq!(log.forget_old(later.after(KEEP.age * 2), &KEEP), 0);
        assert!(!log.is_empty());
    }

    #[test]
    fn events_are_dropped_up_to_a_number() {
        let mut log = filled(&["a", "bb", "ccc"]);
        log.forget_through(0);
        assert_eq!(log.len(), 3);
        log.forget_through(2);
        assert_eq!((log.len(), log.bytes(), log.newest()), (1, 3, 3));
        assert!(log.has_gap(1) && !log.has_gap(2));
        log.forget_through(9);
        assert_eq!((log.is_empty(), log.newest(), log.drop_oldest()), (true, 3, 0));
    }

    #[test]
    fn events_behind_a_cursor_are_counted() {
        let mut log = filled(&["a", "bb", "ccc"]);
        assert_eq!(log.after(0), (3, 6));
        assert_eq!(log.after(1), (2, 5));
        assert_eq!(log.after(3), (0, 0));
        log.drop_oldest();
        assert_eq!(log.after(0), (2, 5));
        assert_eq!(log.after(2), (1, 3));
        assert_eq!(log.read(2, A), Some((3, &Bytes::from_static(b"ccc"))));
    }

    #[test]
    fn an_event_for_a_named_stream_is_for_no_other() {
        let mut log = EventLog::default();
        push(&mut log, "a", Audience::One(Some(B)));
        assert_eq!(log.claim(1), Claim::By(B));
        assert_eq!(log.read(0, A), None);
        assert_eq!(log.read(0, B).map(|found| found.0), Some(1));
        log.drop_oldest();
        assert_eq!((log.claim(1), log.claim(0)), (Claim::Never, Claim::Never));
        // What is gone cannot be taken back.
        log.retract(1);
        assert_eq!(log.bytes(), 0);
    }

    #[test]
    fn logs_that_are_counted_together_add_up_and_leave_nothing_behind() {
        let sum = ByteSum::default();
        let (mut one, mut other) = (EventLog::counted_in(&sum), EventLog::counted_in(&sum));
        push(&mut one, "aaa", Audience::All);
        push(&mut other, "bb", Audience::One(None));
        assert_eq!(sum.get(), 5);
        other.retract(1);
        assert_eq!(sum.get(), 3);
        one.drop_oldest();
        assert_eq!(sum.get(), 0);
        push(&mut one, "aaa", Audience::All);
        drop(one);
        assert_eq!(sum.get(), 0);
    }

    #[test]
    fn event_ids_round_trip_and_damaged_ones_are_refused() {
        let id = EventId {
            stream: StreamKey(12),
            number: 345,
        };
        assert_eq!(EventId::parse(&id.to_string()), Some(id));
        for text in [
            "",
            "-",
            "1-",
            "-1",
            "1-+2",
            "1-2-3",
            "a-1",
            "99999999999999999999-1",
            "1 -2",
        ] {
            assert_eq!(EventId::parse(text), None, "{text}");
        }
    }
}
