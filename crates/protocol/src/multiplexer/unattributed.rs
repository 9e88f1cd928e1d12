//! Questions that could be one of several sessions', kept until only one of those is left.
//!
//! A call that asks waits for the answer. So when the calls of the other sessions have ended, the
//! question is that of the session that remains; meanwhile no other call that may ask is begun.
//! This is a conclusion from how servers ought to behave: one that gives up waiting, ends its call
//! and does not withdraw its question would mislead Rialto, and so would one that asks because of a
//! cancelled call. Therefore it is drawn between sessions of one principal only.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::message::Message;
use crate::time::Moment;

use super::ledger::Ledger;

/// The questions, oldest first.
#[derive(Debug, Default)]
pub(super) struct Unattributed {
    held: VecDeque<HeldQuestion>,
}

/// A question that is held.
#[derive(Debug)]
pub(super) struct HeldQuestion {
    /// The raw id that the server gave it.
    pub(super) id: Bytes,
    pub(super) message: Message,
    until: Moment,
}

impl Unattributed {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Keeps a question. The call that asked it waits, and must outlive a refusal that may come.
    pub(super) fn hold(&mut self, now: Moment, id: Bytes, message: Message, ledger: &mut Ledger) {
        let until = now.after(ledger.limits.own_timeout());
        let deadline = until.after(ledger.limits.own_timeout());
        self.held.push_back(HeldQuestion { id, message, until });
        for call in ledger.calls_mut() {
            if call.method().may_ask() {
                call.timer.postpone(deadline);
            }
        }
        ledger.wake_by(until);
    }

    /// Takes all of them.
    pub(super) fn take(&mut self) -> VecDeque<HeldQuestion> {
        std::mem::take(&mut self.held)
    }

    /// The server no longer wants an answer. Returns whether it was one of these.
    pub(super) fn withdraw(&mut self, id: &[u8]) -> bool {
        let before = self.held.len();
        self.held.retain(|held| held.id != id);
        self.held.len() < before
    }

    /// Takes one that has been kept for too long.
    pub(super) fn take_late(&mut self, now: Moment) -> Option<HeldQuestion> {
        self.held.pop_front_if(|held| held.until <= now)
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.held.front().map(|held| held.until)
    }
}
