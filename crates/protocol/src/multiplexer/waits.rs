//! What calls have waited for before they were sent: noted for those that waited, and for no other.
//!
//! An observer asks for the wait of a call that has ended. The log is bounded, so an old wait may be
//! forgotten: then the log knows that it does not know.

use std::collections::VecDeque;
use std::time::Duration;

use crate::exchange::{CallKey, SessionKey};
use crate::time::Moment;

/// Waits that are remembered.
const MOST: usize = 256;

/// The wait of one call, from when it came until it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wait {
    /// Until the server had answered its handshake.
    pub starting: Duration,
    /// For its turn.
    pub turn: Duration,
}

/// The log. `note_ready` and `note_sent` are called as calls are sent that waited; `of` is called
/// when one has ended.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// When the first call that waited for this link could be sent.
    ready: Option<Moment>,
    sent: VecDeque<Sent>,
    /// When the last call was sent whose wait is forgotten.
    forgotten: Option<Moment>,
}

#[derive(Debug)]
struct Sent {
    session: SessionKey,
    call: CallKey,
    at: Moment,
    /// When the server was ready, if the call waited for that.
    ready: Option<Moment>,
}

impl Waits {
    pub(super) fn note_ready(&mut self, now: Moment) {
        self.ready.get_or_insert(now);
    }

    pub(super) fn lose_link(&mut self) {
        self.ready = None;
    }

    pub(super) fn note_sent(&mut self, now: Moment, session: SessionKey, call: CallKey, was_starting: bool) {
        if self.sent.len() >= MOST
            && let Some(oldest) = self.sent.pop_front()
        {
            self.forgotten = Some(oldest.at);
        }
        self.sent.push_back(Sent {
            session,
            call,
            at: now,
            ready: self.ready.filter(|_| was_starting),
        });
    }

    /// Returns what a call has waited for that came then; `None` if that is forgotten.
    pub(super) fn of(&self, session: SessionKey, call: CallKey, came: Moment) -> Option<Wait> {
        let mut sent = self.sent.iter().rev();
        let found = sent.find(|sent| sent.session == session && sent.call == call);
        match found {
            Some(sent) => {
                let ready = sent.ready.unwrap_or(came);
                Some(Wait {
                    starting: ready.since(came),
                    turn: sent.at.since(ready.max(came)),
                })
            }
            // It was sent when it came, unless its wait may be among the forgotten ones.
            None => self.forgotten.is_none_or(|at| at < came).then(Wait::default),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::START.after(Duration::from_millis(milliseconds))
    }

    #[test]
    fn wait_is_for_the_start_and_then_for_the_turn() {
        let mut waits = Waits::default();
        let (session, call) = (SessionKey(1), CallKey(7));
        assert_eq!(
            waits.of(session, call, at(0)),
            Some(Wait::default()),
            "sent at once"
        );
        waits.note_ready(at(100));
        waits.note_sent(at(130), session, call, true);
        let wait = waits.of(session, call, at(10)).expect("it is known");
        assert_eq!((wait.starting.as_millis(), wait.turn.as_millis()), (90, 30));
        waits.note_sent(at(230), session, CallKey(8), false);
        let wait = waits.of(session, CallKey(8), at(200)).expect("it is known");
        assert_eq!((wait.starting.as_millis(), wait.turn.as_millis()), (0, 30));
    }

    #[test]
    fn forgotten_wait_is_not_taken_for_none() {
        let mut waits = Waits::default();
        for call in 0..=MOST as u64 {
            waits.note_sent(at(call), SessionKey(1), CallKey(call), false);
        }
        assert_eq!(waits.sent.len(), MOST);
        assert_eq!(waits.of(SessionKey(1), CallKey(0), at(0)), None);
        assert_eq!(
            waits.of(SessionKey(1), CallKey(999), at(500)),
            Some(Wait::default())
        );
    }
}
