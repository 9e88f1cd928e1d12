//! Decides when `connect` busy-polls instead of sleeping.
//!
//! A server on the same machine answers within a fraction of a millisecond. Most of such a call is
//! spent in putting this process to sleep and waking it, twice, which also costs more CPU than
//! staying awake for that long. Busy-polling took the median of a call from 1.7 to about 0.8 times
//! that of a direct call.
//!
//! It is bounded. Only a message that follows another within [`CLOSE`] starts it, it ends after
//! [`CLOSE`], and not more than [`FEW`] calls may be open. So a silent peer costs nothing, a server
//! that is further away than [`CLOSE`] never causes it, and each run of messages wastes at most one
//! [`CLOSE`]. The loop yields the processor in each turn.

use std::time::Duration;

use protocol::time::Moment;

/// Messages that have less than this between them are close together: a call and its answer on one
/// machine.
const CLOSE: Duration = Duration::from_micros(150);

/// More calls than this are many.
const FEW: usize = 2;

/// Whether to stay awake. Time is an argument.
#[derive(Debug)]
pub(super) struct BusyPoll {
    last: Option<Moment>,
    until: Moment,
}

impl BusyPoll {
    pub(super) fn new() -> Self {
        Self {
            last: None,
            until: Moment::START,
        }
    }

    /// A message has come, from either side, and now so many calls are under way. Returns whether
    /// to busy-poll for the next.
    #[must_use]
    pub(super) fn handle_message(&mut self, now: Moment, calls: usize) -> bool {
        let is_close = self.last.is_some_and(|last| now.since(last) < CLOSE);
        self.last = Some(now);
        let is_worth_it = is_close && calls <= FEW;
        if is_worth_it {
            self.until = now.after(CLOSE);
        }
        is_worth_it
    }

    /// Returns whether the busy poll has ended.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        self.until <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_are_far_apart_are_awaited_asleep() {
        let mut busy_poll = BusyPoll::new();
        let mut now = Moment::START;
        for _ in 0..3 {
            assert!(!busy_poll.handle_message(now, 1));
            assert!(busy_poll.is_over(now));
            now = now.after(CLOSE);
        }
    }

    #[test]
    fn after_two_that_are_close_the_third_is_awaited_awake_but_not_for_long() {
        let mut busy_poll = BusyPoll::new();
        let first = Moment::START;
        let second = first.after(CLOSE / 2);
        assert!(!busy_poll.handle_message(first, 1));
        assert!(busy_poll.handle_message(second, 0));
        assert!(!busy_poll.is_over(second.after(CLOSE / 2)));
        assert!(busy_poll.is_over(second.after(CLOSE)));
        let late = second.after(CLOSE * 2);
        assert!(!busy_poll.handle_message(late, 1));
        assert!(
            busy_poll.is_over(late),
            "it was in vain, and is not tried again at once"
        );
    }

    #[test]
    fn many_open_calls_end_the_busy_poll() {
        let mut busy_poll = BusyPoll::new();
        assert!(!busy_poll.handle_message(Moment::START, FEW + 1));
        assert!(!busy_poll.handle_message(Moment::START, FEW + 1));
        assert!(busy_poll.is_over(Moment::START));
        assert!(busy_poll.handle_message(Moment::START, FEW));
    }
}
