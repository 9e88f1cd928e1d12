//! What a session's client reads on streams that it opens by GET: everything that is not about one
//! of its calls.

use bytes::{Bytes, BytesMut};

use super::Limits;
use super::calls::ShedOrder;
use super::questions::Questions;
use super::readers::{ReadPosition, Reader, Reading, StreamRefusal};
use super::replay::{Audience, ByteSum, Claim, EventId, EventLog, Retention, StreamKey};
use crate::time::Moment;
use crate::vec_map::VecMap;

/// A stream opened by GET: a position in the log of notices.
#[derive(Debug)]
struct Listener {
    position: ReadPosition,
    /// The one stream of the old transport: it cannot be resumed, so that its events have no ids.
    sole: bool,
    /// When its last connection was closed.
    since: Moment,
}

/// The notices of a session, and the streams on which its client reads them.
///
/// [`Notices::push`] adds a notice. A client opens a stream with [`Notices::open`] or
/// [`Notices::resume`], calls [`Notices::read`] until there is no more, and leaves with
/// [`Notices::handle_disconnect`]. The session names each stream, since the streams of its calls
/// have keys of the same kind.
#[derive(Debug)]
pub(super) struct Notices {
    log: EventLog,
    listeners: VecMap<StreamKey, Listener>,
    /// The newest notice that any listener has read.
    read: u64,
}

impl Notices {
    pub(super) fn counted_in(sum: &ByteSum) -> Self {
        Self {
            log: EventLog::counted_in(sum),
            listeners: VecMap::default(),
            read: 0,
        }
    }

    /// Adds a notice. Returns how many old ones were dropped for it.
    pub(super) fn push(&mut self, now: Moment, data: Bytes, audience: Audience, keep: &Retention) -> u64 {
        self.log.push(now, data, audience, keep)
    }

    /// Returns the number of the newest notice.
    pub(super) fn newest(&self) -> u64 {
        self.log.newest()
    }

    /// Returns which stream has read a notice that was for one stream only.
    pub(super) fn claim(&self, number: u64) -> Claim {
        self.log.claim(number)
    }

    /// Takes a notice back that should be read by no client.
    pub(super) fn retract(&mut self, number: u64) {
        self.log.retract(number);
    }

    // Streams.

    pub(super) fn streams(&self) -> impl Iterator<Item = StreamKey> {
        self.listeners.keys().copied()
    }

    /// Returns the streams that are read, the oldest first. The newest is the one most likely to be
    /// alive.
    pub(super) fn connected_streams(&self) -> impl DoubleEndedIterator<Item = StreamKey> {
        let listeners = self.listeners.iter();
        listeners
            .filter(|(_, listener)| listener.position.connected)
            .map(|(key, _)| *key)
    }

    /// Returns whether a client reads any of the streams.
    pub(super) fn is_connected(&self) -> bool {
        self.connected_streams().next().is_some()
    }

    pub(super) fn has(&self, stream: StreamKey) -> bool {
        self.listeners.get(&stream).is_some()
    }

    pub(super) fn open(
        &mut self,
        now: Moment,
        stream: StreamKey,
        sole: bool,
        limits: &Limits,
    ) -> Result<Reader, StreamRefusal> {
        self.forget_listeners(now, limits);
        if self.connected_streams().count() >= limits.listeners {
            return Err(StreamRefusal::TooMany);
        }
        let position = ReadPosition::connected(self.read);
        let reader = position.reader(stream);
        let listener = Listener {
            position,
            sole,
            since: now,
        };
        self.listeners.insert(stream, listener);
        Ok(reader)
    }

    /// Goes on where a stream was left. Returns `None` if it is none of these.
    pub(super) fn resume(&mut self, event: EventId) -> Option<Result<Reader, StreamRefusal>> {
        let newest = self.newest();
        let listener = self.listeners.get_mut(&event.stream);
        let listener = listener.filter(|listener| !listener.sole)?;
        Some(if event.number > newest {
            Err(StreamRefusal::UnknownEvent)
        } else {
            Ok(listener.position.resume(event))
        })
    }

    /// Writes what is new on a stream into `out`. Returns `None` if it is none of these. After the
    /// end of the session only the one stream of the old transport is read on, because answers are
    /// on it too.
    pub(super) fn read(
        &mut self,
        reader: Reader,
        primes: bool,
        is_over: bool,
        questions: &Questions,
        out: &mut BytesMut,
    ) -> Option<Reading> {
        let Listener { position, sole, .. } = self.listeners.get_mut(&reader.stream)?;
        if *sole {
            // A reader that was too slow for an answer must not go on past the gap.
            if self.log.has_gap(position.cursor) {
                return Some(Reading::Ended);
            }
            position.read_without_ids(reader.stream, &mut self.log, out);
        } else if position.is_of(reader) && !is_over {
            position.read(reader.stream, &mut self.log, primes, out);
        } else {
            return Some(Reading::Ended);
        }
        let cursor = position.cursor;
        self.read = self.read.max(cursor);
        if *sole {
            // A question that is still open stays in the log, which knows which stream has it.
            let open = questions.oldest_notice();
            let unneeded = open.map_or(self.read, |open| self.read.min(open - 1));
            self.log.forget_through(unneeded);
        }
        Some(if is_over && cursor == self.newest() {
            Reading::Ended
        } else {
            Reading::Open
        })
    }

    /// The connection of this reader is gone. Returns whether it had the right to read.
    pub(super) fn handle_disconnect(&mut self, now: Moment, reader: Reader) -> bool {
        let listener = self.listeners.get_mut(&reader.stream);
        let Some(listener) = listener.filter(|listener| listener.position.is_of(reader)) else {
            return false;
        };
        listener.position.connected = false;
        listener.since = now;
        true
    }

    // Limits.

    /// Forgets what is too old.
    pub(super) fn forget_old(&mut self, now: Moment, limits: &Limits) {
        self.forget_listeners(now, limits);
        self.log.forget_old(now, &limits.retention);
    }

    pub(super) fn forget_listeners(&mut self, now: Moment, limits: &Limits) {
        let keep = limits.retention.age;
        let connected = self.connected_streams().count();
        let mut excess = (self.listeners.len() - connected).saturating_sub(limits.ended_streams);
        self.listeners.retain(|_, listener| {
            if !listener.position.connected && (now.since(listener.since) > keep || excess > 0) {
                excess = excess.saturating_sub(1);
                return false;
            }
            true
        });
    }

    /// Returns when the oldest kept notice came.
    pub(super) fn oldest_event(&self) -> Option<Moment> {
        self.log.oldest()
    }

    /// Returns whether the oldest notice may be dropped, and in which order. The newest one never
    /// is.
    pub(super) fn next_to_shed(&self) -> Option<ShedOrder> {
        ShedOrder::of(&self.log, true)
    }

    pub(super) fn drop_oldest(&mut self) -> u64 {
        self.log.drop_oldest()
    }
}
