//! Which connections lie ready: the last that was used first, so that the others can grow old.
//!
//! Time is an argument. It refuses to keep more than a limit, anything from before a doubt, and
//! anything that has lain too long.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Common servers close a connection after five idle seconds. A request that meets the closing
/// would be lost without a known outcome; so ours are closed before.
const IDLE: Duration = Duration::from_secs(4);
/// The largest number of idle connections. More are left only after a burst, which opens new ones
/// quickly again.
pub(super) const MAX_IDLE: usize = 256;

/// The connections that are kept: those that carry one request at a time, and the one that carries
/// all.
#[derive(Debug)]
pub(super) struct Pool<T, S> {
    idle: VecDeque<(Instant, T)>,
    shared: Option<(Instant, S)>,
    /// Counts doubts, so that connections are doubted only once however many requests notice.
    generation: u64,
    /// The server does not share connections.
    exclusive: bool,
    reaping: bool,
}

impl<T, S> Default for Pool<T, S> {
    fn default() -> Self {
        Self {
            idle: VecDeque::new(),
            shared: None,
            generation: 0,
            exclusive: false,
            reaping: false,
        }
    }
}

impl<T, S> Pool<T, S> {
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    pub(super) fn note_exclusive(&mut self) {
        self.exclusive = true;
    }

    /// Returns the connection that was put back last, unless even that has lain too long.
    pub(super) fn take(&mut self, now: Instant) -> Option<T> {
        let (since, connection) = self.idle.pop_back()?;
        if now.saturating_duration_since(since) < IDLE {
            return Some(connection);
        }
        self.idle.clear();
        None
    }

    /// Keeps a connection that was taken or made in that generation. Returns whether a reaper must
    /// be started, which closes it in time.
    #[must_use]
    pub(super) fn put(&mut self, now: Instant, generation: u64, connection: T) -> bool {
        if generation != self.generation || self.idle.len() >= MAX_IDLE {
            return false;
        }
        self.idle.push_back((now, connection));
        !std::mem::replace(&mut self.reaping, true)
    }

    /// Returns the connection that all use, which is thereby in use.
    pub(super) fn shared(&mut self, now: Instant) -> Option<&S> {
        self.shared
            .take_if(|(since, _)| now.saturating_duration_since(*since) >= IDLE);
        let (since, shared) = self.shared.as_mut()?;
        *since = now;
        Some(shared)
    }

    /// The same as [`Self::put`] for the connection that all use.
    #[must_use]
    pub(super) fn share(&mut self, now: Instant, generation: u64, shared: S) -> bool {
        self.exclusive = false;
        if generation != self.generation {
            return false;
        }
        self.shared = Some((now, shared));
        !std::mem::replace(&mut self.reaping, true)
    }

    pub(super) fn forget_shared(&mut self) {
        self.shared = None;
    }

    /// Drops all idle connections and, when they come back, those in use; once for each generation.
    pub(super) fn doubt(&mut self, generation: u64) {
        if generation == self.generation {
            self.generation += 1;
            self.idle.clear();
            self.shared = None;
        }
    }

    /// Closes connections that were idle for too long. Returns when to look again; `None`: none is
    /// left, and the reaper ends.
    pub(super) fn reap(&mut self, now: Instant) -> Option<Instant> {
        while self
            .idle
            .pop_front_if(|(since, _)| now.saturating_duration_since(*since) >= IDLE)
            .is_some()
        {}
        self.shared
            .take_if(|(since, _)| now.saturating_duration_since(*since) >= IDLE);
        let oldest = self.idle.front().map(|(since, _)| *since);
        let shared = self.shared.as_ref().map(|(since, _)| *since);
        let next = oldest.into_iter().chain(shared).min();
        self.reaping = next.is_some();
        next.map(|since| since + IDLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type NumberPool = Pool<u32, &'static str>;

    fn pool_of(now: Instant, connections: &[u32]) -> NumberPool {
        let mut pool = NumberPool::default();
        for connection in connections {
            let _ = pool.put(now, 0, *connection);
        }
        pool
    }

    #[test]
    fn the_connection_that_was_used_last_is_used_first() {
        let now = Instant::now();
        let mut pool = pool_of(now, &[1, 2]);
        assert_eq!(
            (pool.take(now), pool.take(now), pool.take(now)),
            (Some(2), Some(1), None)
        );
    }

    #[test]
    fn connections_that_were_idle_too_long_are_not_used() {
        let now = Instant::now();
        let mut pool = pool_of(now, &[1, 2]);
        let _ = pool.share(now, 0, "all");
        assert_eq!(pool.shared(now + IDLE), None);
        assert_eq!(pool.take(now + IDLE), None);
        assert_eq!(pool.reap(now + IDLE), None);
    }

    #[test]
    fn reaper_runs_as_long_as_there_are_idle_connections() {
        let now = Instant::now();
        let later = now + IDLE / 2;
        let mut pool = NumberPool::default();
        assert!(pool.put(now, 0, 1));
        assert!(!pool.put(later, 0, 2));
        assert_eq!(pool.reap(now), Some(now + IDLE));
        assert_eq!(pool.reap(now + IDLE), Some(later + IDLE));
        assert_eq!(pool.reap(later + IDLE), None);
        assert!(pool.put(later + IDLE, 0, 3));
    }

    #[test]
    fn after_a_doubt_nothing_from_before_it_is_used() {
        let now = Instant::now();
        let mut pool = pool_of(now, &[1]);
        let _ = pool.share(now, 0, "all");
        pool.doubt(0);
        assert_eq!((pool.take(now), pool.shared(now)), (None, None));
        assert!(!pool.put(now, 0, 2));
        assert!(!pool.share(now, 0, "all"));
        assert_eq!((pool.take(now), pool.shared(now)), (None, None));
        // A second doubt about the same generation changes nothing.
        let _ = pool.put(now, 1, 3);
        pool.doubt(0);
        assert_eq!(pool.take(now), Some(3));
    }

    #[test]
    fn no_more_than_the_limit_lie_ready() {
        let now = Instant::now();
        let many: Vec<_> = (0..=MAX_IDLE as u32).collect();
        let mut pool = pool_of(now, &many);
        assert_eq!(pool.take(now), Some(MAX_IDLE as u32 - 1));
    }
}
