//! Liveness ping: whether a silent server is still alive, or has to be replaced.
//!
//! Silence alone is no sign of death: an idle server has nothing to say, and one that works on a single long
//! call may answer no ping meanwhile. There is doubt only about a server that let a call's time pass, or that was
//! introduced to and has not answered. Any output ends the doubt, even half a line. The vigil neither
//! writes nor kills.

use std::time::Duration;

use super::Limits;
use crate::backend_face::WireId;
use crate::time::Moment;

#[derive(Debug, Default)]
pub(super) struct Vigil {
    doubt: Option<Doubt>,
    /// The last moment that output on stderr can move the end of a start to.
    start_horizon: Option<Moment>,
}

/// What a silent server owes. Older debts sort first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owed {
    /// The answer to the handshake.
    Welcome,
    /// A sign that it still works on this call, or on anything sent after it.
    Call(WireId),
}

impl Owed {
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Welcome => "no answer to the handshake within start_timeout",
            Self::Call(_) => "no sign of life, not even to a ping, after a call took too long",
        }
    }
}

#[derive(Debug)]
struct Doubt {
    /// A server that is silent until then is given up.
    until: Moment,
    owed: Owed,
}

impl Vigil {
    pub(super) fn handle_sign_of_life(&mut self) {
        self.doubt = None;
    }

    /// The server owes something; it has until then to write anything at all. Returns whether there was no doubt
    /// before. If there was, the older debt decides, since a server may do one thing after the other; the server
    /// has been asked already and has only what is left of its time, or of the older debt's time `limit`.
    pub(super) fn begin_doubt(&mut self, until: Moment, owed: Owed, limit: Moment) -> bool {
        match &mut self.doubt {
            None => {
                self.doubt = Some(Doubt { until, owed });
                true
            }
            Some(doubt) => {
                if owed < doubt.owed {
                    doubt.owed = owed;
                    doubt.until = doubt.until.max(limit);
                }
                false
            }
        }
    }

    /// A server that is starting has written to stderr: it has not hung. Returns until when its start may take now.
    pub(super) fn extend_start(&mut self, now: Moment, limit: Duration) -> Moment {
        let longest = limit.saturating_mul(Limits::MAX_EXTENSIONS);
        let horizon = *self.start_horizon.get_or_insert(now.after(longest));
        let until = now.after(limit).min(horizon);
        if let Some(doubt) = &mut self.doubt
            && doubt.owed == Owed::Welcome
        {
            doubt.until = doubt.until.max(until);
        }
        until
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.doubt.as_ref().map(|doubt| doubt.until)
    }

    /// Returns what the server owes if its time is over. The caller then postpones or ends the doubt.
    pub(super) fn due(&self, now: Moment) -> Option<Owed> {
        self.doubt
            .as_ref()
            .filter(|doubt| doubt.until <= now)
            .map(|doubt| doubt.owed)
    }

    pub(super) fn postpone(&mut self, until: Moment) {
        if let Some(doubt) = &mut self.doubt {
            doubt.until = until;
        }
    }

    pub(super) fn end_doubt(&mut self) {
        self.doubt = None;
    }
}
