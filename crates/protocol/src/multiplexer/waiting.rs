//! Calls that wait for their turn, for the server, or for an answer of their client.

use std::collections::VecDeque;

use super::state::Waiting;
use crate::exchange::{CallKey, SessionKey};
use crate::time::Moment;

/// The calls that wait, in the order in which they are sent. The coordinator takes all of them out
/// to look at each, and puts back those that wait on.
#[derive(Debug, Default)]
pub(super) struct WaitingCalls {
    calls: VecDeque<Waiting>,
}

impl WaitingCalls {
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.calls.iter()
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.calls.push_back(waiting);
    }

    /// Puts a call back that was sent and not begun: before the calls of other sessions, and among
    /// those of its own session in the order in which they were made.
    pub(super) fn put_back(&mut self, returned: Waiting) {
        let (session, call) = (returned.call.session, returned.call.call);
        let earlier = |waiting: &Waiting| waiting.call.session == session && waiting.call.call < call;
        let at = self.calls.iter().rposition(earlier).map_or(0, |at| at + 1);
        self.calls.insert(at, returned);
    }

    /// Takes all of them.
    pub(super) fn take(&mut self) -> VecDeque<Waiting> {
        std::mem::take(&mut self.calls)
    }

    /// Takes those of a session that pass.
    pub(super) fn take_of(
        &mut self,
        session: SessionKey,
        passes: impl Fn(&Waiting) -> bool,
    ) -> VecDeque<Waiting> {
        let of_session = |waiting: &Waiting| waiting.call.session == session && passes(waiting);
        let (taken, kept) = self.take().into_iter().partition(of_session);
        self.calls = kept;
        taken
    }

    /// Removes a call. Returns whether it was there.
    pub(super) fn remove(&mut self, session: SessionKey, call: CallKey) -> bool {
        let is_it = |waiting: &Waiting| waiting.call.session == session && waiting.call.call == call;
        let at = self.calls.iter().position(is_it);
        at.is_some_and(|at| self.calls.remove(at).is_some())
    }

    /// Has the calls that wait for the server's start wait until this moment at least.
    pub(super) fn extend_start(&mut self, until: Moment) {
        for waiting in self.calls.iter_mut().filter(|waiting| waiting.starting) {
            waiting.deadline = waiting.deadline.max(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::RetryHistory;
    use super::*;
    use crate::exchange::{Call, Request};
    use crate::message::Message;
    use crate::version::Era;

    fn waiting(session: u64, call: u64) -> Waiting {
        Waiting {
            call: Call {
                session: SessionKey(session),
                call: CallKey(call),
                request: Request::Plain,
                message: Message::own(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#.into()),
                era: Era::Legacy,
                mirrored: None,
                reads_events: false,
            },
            deadline: Moment::START,
            starting: false,
            stream_at: None,
            asked_first: false,
            occupied_until: None,
            past: RetryHistory::default(),
        }
    }

    fn order(calls: &WaitingCalls) -> Vec<(u64, u64)> {
        let key = |waiting: &Waiting| (waiting.call.session.0, waiting.call.call.0);
        calls.iter().map(key).collect()
    }

    #[test]
    fn returned_call_goes_first_but_after_earlier_ones_of_its_session() {
        let mut calls = WaitingCalls::default();
        for (session, call) in [(2, 1), (1, 1), (1, 4), (3, 9)] {
            calls.push(waiting(session, call));
        }
        calls.put_back(waiting(1, 3));
        assert_eq!(order(&calls), [(2, 1), (1, 1), (1, 3), (1, 4), (3, 9)]);
        calls.put_back(waiting(4, 5));
        assert_eq!(order(&calls)[0], (4, 5));
        calls.put_back(waiting(3, 9));
        assert_eq!(order(&calls)[0], (3, 9), "not behind a call that is not earlier");
    }

    #[test]
    fn call_is_removed_by_its_session_and_its_key() {
        let mut calls = WaitingCalls::default();
        for (session, call) in [(1, 1), (2, 1), (2, 2)] {
            calls.push(waiting(session, call));
        }
        assert!(calls.remove(SessionKey(2), CallKey(2)));
        assert!(!calls.remove(SessionKey(1), CallKey(2)));
        assert_eq!(order(&calls), [(1, 1), (2, 1)]);
    }
}
