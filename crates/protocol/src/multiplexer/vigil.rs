//! Whether a server that says nothing still lives.
//!
//! Silence alone is no sign of death: an idle server has nothing to say. There is doubt only about one that owes
//! an answer, and whatever it writes dispels it, be it half a line. The vigil neither writes nor kills.

use std::time::Duration;

use crate::time::Moment;

#[derive(Debug, Default)]
pub(super) struct Vigil {
    /// When the server last wrote anything on this link.
    heard: Option<Moment>,
    doubt: Option<Doubt>,
}

#[derive(Debug)]
struct Doubt {
    /// A server that is silent until then is given up.
    until: Moment,
    why: &'static str,
}

impl Vigil {
    pub(super) fn handle_sign_of_life(&mut self, now: Moment) {
        self.heard = Some(now);
        self.doubt = None;
    }

    /// The server owes us something; it has until then to write anything at all.
    pub(super) fn begin_doubt(&mut self, until: Moment, why: &'static str) {
        self.doubt.get_or_insert(Doubt { until, why });
    }

    /// Whether nothing was heard for this long and nobody doubts the server yet.
    pub(super) fn is_unnoticed_silence(&self, now: Moment, span: Duration) -> bool {
        self.doubt.is_none() && self.heard.is_none_or(|heard| now.since(heard) >= span)
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.doubt.as_ref().map(|doubt| doubt.until)
    }

    /// Why the server is to be given up, if it is. It is said once.
    pub(super) fn handle_deadline(&mut self, now: Moment) -> Option<&'static str> {
        self.doubt
            .take_if(|doubt| doubt.until <= now)
            .map(|doubt| doubt.why)
    }
}
