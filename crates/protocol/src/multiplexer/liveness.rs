//! Liveness ping: whether a silent server is still alive, or has to be replaced.
//!
//! Silence alone proves nothing: an idle server sends nothing, and one that works on a single long
//! call may answer no ping meanwhile. Only two servers are suspected: one that let a call's time
//! limit pass, and one that has not answered the handshake. Any output ends the suspicion, even
//! half a line. This machine neither writes nor kills.
//!
//! A server may work on one call at a time. So an older call within its time limit explains the
//! silence, if the server has written something since the overdue call was sent. A server that was
//! silent for the whole time of a call, and did not answer a ping either, hangs.
//!
//! A third one is suspected: one for which so much waits that a call found no room. Such a call is
//! refused at once and lets no time limit pass, so only this suspicion notices a server that hangs
//! then. Reading ends it as well, and older calls within their time limit excuse it.

use std::time::Duration;

use super::Limits;
use crate::backend_face::WireId;
use crate::time::{Moment, earliest};

#[derive(Debug, Default)]
pub(super) struct Liveness {
    expected: Option<ExpectedReply>,
    /// The first request that was sent after the server last wrote something, on stdout or stderr,
    /// or was last given an answer.
    silent_since: Option<WireId>,
    unread: Option<UnreadQueue>,
    /// The last moment that output on stderr can move the end of a start to.
    start_horizon: Option<Moment>,
}

/// What a silent server owes. Older debts sort first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owed {
    /// The answer to the handshake.
    Handshake,
    /// A sign that it still works on this call, or on anything sent after it.
    Call(WireId),
    /// That it reads what waits for it: a call found no room, which would have had this id.
    Reading(WireId),
}

impl Owed {
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Handshake => "no answer to the handshake within start_timeout",
            Self::Call(_) => "no sign of life, not even to a ping, after a call took too long",
            Self::Reading(_) => "it read and wrote nothing, while calls found no room in what waits for it",
        }
    }
}

#[derive(Debug)]
struct ExpectedReply {
    /// A server that is silent until then is given up, unless an older call excuses it.
    until: Moment,
    owed: Owed,
    /// The server was pinged, and has until then to answer.
    answer_by: Moment,
    /// A server that is silent until then hangs: a whole call passed without a sign of life.
    hung_at: Option<Moment>,
}

#[derive(Debug)]
struct UnreadQueue {
    /// A server that reads and writes nothing until then is given up, unless an older call excuses
    /// it.
    until: Moment,
    /// The first call that found no room.
    refused: WireId,
}

/// What a server owes whose time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// An older call may be the reason.
    MaybeBusy(Owed),
    Hung(Owed),
}

impl Liveness {
    /// The server has written something. `next` is the request that will be sent next.
    pub(super) fn handle_activity(&mut self, next: WireId) {
        self.expect_nothing();
        self.silent_since = Some(next);
    }

    /// The writer has written what it took: the server reads, or its pipe has room.
    pub(super) fn handle_written(&mut self) {
        self.unread = None;
    }

    /// A call found no room, which would have had the id `refused`. The server has until this
    /// moment to read or write anything at all, or less if another such call gives it less.
    pub(super) fn expect_reading_by(&mut self, until: Moment, refused: WireId) {
        let unread = self.unread.get_or_insert(UnreadQueue { until, refused });
        unread.until = unread.until.min(until);
    }

    /// The server has a reason to be silent on stdout: it was given an answer that it goes on with,
    /// or has written to stderr. Older calls excuse it from now on.
    pub(super) fn handle_work(&mut self, next: WireId) {
        self.silent_since = Some(next);
        if let Some(expected) = &mut self.expected {
            expected.hung_at = None;
        }
    }

    /// The server owes something; it has until `answer_by` to write anything at all, and at least
    /// the time of what it owes, `limit`. Returns whether no reply was expected before. If one was,
    /// the older debt decides, since a server may do one thing after the other; the server has been
    /// asked already and has only what is left of its time, or of the older debt's time.
    pub(super) fn expect_reply_by(&mut self, answer_by: Moment, owed: Owed, limit: Moment) -> bool {
        let is_new = self.expected.is_none();
        let expected = self.expected.get_or_insert(ExpectedReply {
            until: answer_by.max(limit),
            owed,
            answer_by,
            hung_at: None,
        });
        if owed < expected.owed {
            expected.owed = owed;
            expected.until = expected.until.max(limit);
        }
        let is_silent = |call| self.silent_since.is_none_or(|since| call >= since);
        if matches!(owed, Owed::Call(call) if is_silent(call)) {
            let hung_at = expected.answer_by.max(limit);
            expected.hung_at = earliest(expected.hung_at, Some(hung_at));
        }
        is_new
    }

    /// A server that is starting has written to stderr: it has not hung. Returns until when its
    /// start may take now.
    pub(super) fn extend_start(&mut self, now: Moment, limit: Duration) -> Moment {
        let longest = limit.saturating_mul(Limits::MAX_EXTENSIONS);
        let horizon = *self.start_horizon.get_or_insert(now.after(longest));
        let until = now.after(limit).min(horizon);
        if let Some(expected) = &mut self.expected
            && expected.owed == Owed::Handshake
        {
            expected.until = expected.until.max(until);
        }
        until
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        let expected = self.expected.as_ref();
        let reply = expected.and_then(|expected| earliest(Some(expected.until), expected.hung_at));
        let reading = self.unread.as_ref().map(|unread| unread.until);
        earliest(reply, reading)
    }

    /// Returns what the server owes if its time is over. The caller then postpones or ends the
    /// expectation.
    pub(super) fn due(&self, now: Moment) -> Option<Due> {
        if let Some(expected) = &self.expected {
            if expected.hung_at.is_some_and(|at| at <= now) {
                return Some(Due::Hung(expected.owed));
            }
            if expected.until <= now {
                return Some(Due::MaybeBusy(expected.owed));
            }
        }
        let unread = self.unread.as_ref().filter(|unread| unread.until <= now)?;
        Some(Due::MaybeBusy(Owed::Reading(unread.refused)))
    }

    pub(super) fn postpone(&mut self, owed: Owed, until: Moment) {
        match owed {
            Owed::Handshake | Owed::Call(_) => {
                if let Some(expected) = &mut self.expected {
                    expected.until = until;
                }
            }
            Owed::Reading(_) => {
                if let Some(unread) = &mut self.unread {
                    unread.until = until;
                }
            }
        }
    }

    pub(super) fn expect_nothing(&mut self) {
        self.expected = None;
        self.unread = None;
    }
}
