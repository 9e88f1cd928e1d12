//! The time limits of one call in flight. Every sign that the server works on the call begins its
//! time anew, up to a horizon that progress cannot move.

use super::limits::Limits;
use crate::exchange::Failure;
use crate::method::Method;
use crate::time::{Moment, earliest};

/// The timer. `start` begins it with the call; `extend`, `restart` and `wait_for_client` move the
/// deadline by what happens to the call. The coordinator asks `is_late` and `take_stream_at` at
/// `next_deadline`.
#[derive(Debug)]
pub(super) struct CallTimer {
    /// The client reads events while it waits: this decides which time limit holds.
    reads_events: bool,
    deadline: Moment,
    /// The last moment that progress can move the deadline to.
    horizon: Moment,
    /// When to report that the call takes long, until that was done.
    stream_at: Option<Moment>,
}

impl CallTimer {
    /// Returns the timer of a call that is sent now. `is_for_listen`: Rialto makes it for a listen.
    pub(super) fn start(
        now: Moment,
        method: Method,
        reads_events: bool,
        is_for_listen: bool,
        limits: &Limits,
    ) -> Self {
        let deadline = now.after(limits.first_timeout(method, reads_events, is_for_listen));
        let horizon = match is_for_listen {
            true => deadline,
            false => now.after(limits.longest_call(reads_events)),
        };
        Self {
            reads_events,
            deadline,
            horizon,
            stream_at: Some(now.after(limits.stream_after)),
        }
    }

    pub(super) const fn reads_events(&self) -> bool {
        self.reads_events
    }

    pub(super) const fn deadline(&self) -> Moment {
        self.deadline
    }

    /// Returns when to report that the call takes long, unless that was done.
    pub(super) const fn stream_at(&self) -> Option<Moment> {
        self.stream_at
    }

    pub(super) fn next_deadline(&self) -> Moment {
        earliest(Some(self.deadline), self.stream_at).unwrap_or(self.deadline)
    }

    pub(super) fn is_late(&self, now: Moment) -> bool {
        self.deadline <= now
    }

    /// Returns once whether the response becomes a stream now, since the call takes long.
    pub(super) fn take_stream_at(&mut self, now: Moment) -> bool {
        self.stream_at.take_if(|at| *at <= now).is_some()
    }

    /// Lets the response become a stream at once. Returns whether it was none yet.
    pub(super) const fn clear_stream_at(&mut self) -> bool {
        self.stream_at.take().is_some()
    }

    /// The server works on the call: its time begins anew, up to the horizon.
    pub(super) fn extend(&mut self, now: Moment, limits: &Limits) {
        self.deadline = now
            .after(limits.call_timeout(self.reads_events))
            .min(self.horizon);
    }

    /// The call is sent again, or goes on after a question: all of its time begins anew.
    pub(super) fn restart(&mut self, now: Moment, limits: &Limits) {
        self.deadline = now.after(limits.call_timeout(self.reads_events));
        self.horizon = now.after(limits.longest_call(self.reads_events));
    }

    /// The client has until this moment to answer a question. People think slowly, and the server
    /// is not to blame: it waits too.
    pub(super) fn wait_for_client(&mut self, until: Moment, limits: &Limits) {
        self.deadline = until.after(limits.call_timeout(self.reads_events));
    }

    /// Lets the call live until this moment at least.
    pub(super) fn postpone(&mut self, until: Moment) {
        self.deadline = self.deadline.max(until);
    }

    /// Returns why the call fails at its deadline.
    pub(super) fn failure(&self, limits: &Limits) -> Failure {
        limits.timeout_failure(self.reads_events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(reads_events: bool) -> CallTimer {
        let limits = Limits::default();
        CallTimer::start(Moment::START, Method::ToolsCall, reads_events, false, &limits)
    }

    #[test]
    fn response_becomes_a_stream_once() {
        let mut timer = start(true);
        let at = timer.stream_at().expect("it will be reported");
        assert!(timer.clear_stream_at(), "earlier than by time");
        assert!(!timer.clear_stream_at());
        assert!(!timer.take_stream_at(at));
        assert_eq!(timer.next_deadline(), timer.deadline());
        let mut timer = start(true);
        assert!(timer.take_stream_at(at) && !timer.take_stream_at(at));
        assert!(!timer.clear_stream_at());
    }

    #[test]
    fn timer_knows_whether_its_client_reads_events() {
        assert!(start(true).reads_events());
        assert!(!start(false).reads_events());
    }
}
