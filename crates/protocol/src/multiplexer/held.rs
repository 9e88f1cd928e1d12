//! Questions that could be one of several sessions', kept until only one of those is left.
//!
//! A call that asks waits for the answer. So when the calls of the other sessions have ended, the question is that of
//! the one who remains; meanwhile no other call that may ask is begun. This is a conclusion from how servers ought to
//! behave: one that gives up waiting, ends its call and does not withdraw its question would mislead us, and so would one
//! that asks because of a cancelled call. Therefore it is drawn between sessions of one principal only.

use bytes::Bytes;

use super::Multiplexer;
use super::abandoned::Matter;
use super::state::Pending;
use crate::message::Message;
use crate::time::Moment;

#[derive(Debug)]
pub(super) struct Held {
    /// The raw id that the server gave it.
    id: Bytes,
    message: Message,
    until: Moment,
}

impl Multiplexer {
    /// Keeps a question that several sessions' calls may have caused, or refuses it if waiting would not help.
    pub(super) fn hold(&mut self, now: Moment, id: Bytes, message: Message) {
        let mut asking = self
            .ledger
            .attached
            .iter()
            .filter(|(_, attached)| attached.load.asking > 0);
        let first = asking.next().map(|(session, _)| *session);
        let strangers =
            first.is_none_or(|session| self.may_be_of_another_principal(session, Matter::Question));
        let full = self.open_questions() >= self.ledger.limits.questions;
        if full || strangers {
            return self.refuse_unattributable(&id);
        }
        let until = now.after(self.ledger.limits.own_timeout());
        self.held.push_back(Held { id, message, until });
        if self.held.len() >= self.asking_sessions {
            // All of them may be waiting for an answer, and then none will ever end.
            return self.refuse_held();
        }
        // Whichever call asked is waiting for us. It must outlive the refusal that may come.
        let deadline = until.after(self.ledger.limits.own_timeout());
        for pending in self.ledger.pending.values_mut() {
            if let Pending::Call(call) = pending
                && call.method.may_ask()
            {
                call.deadline = call.deadline.max(deadline);
            }
        }
        self.ledger.wake_by(until);
    }

    /// A session's calls have been answered: perhaps only one is left that may have asked.
    pub(super) fn resolve_held(&mut self, now: Moment) {
        if self.held.is_empty() {
            return;
        }
        match self.asking_sessions {
            0 if self.abandoned.is_empty() => self.refuse_held(),
            0 | 1 => {
                for Held { id, message, .. } in std::mem::take(&mut self.held) {
                    match self.attribute(message.method()) {
                        Some((session, wire)) => self.ask_session(now, session, wire, id, message),
                        None => self.refuse_unattributable(&id),
                    }
                }
            }
            several => {
                if self.held.len() >= several {
                    self.refuse_held();
                }
            }
        }
    }

    /// It will not be known whose they are.
    pub(super) fn refuse_held(&mut self) {
        for Held { id, .. } in std::mem::take(&mut self.held) {
            self.refuse_unattributable(&id);
        }
    }

    /// The server no longer wants an answer. Gives whether it was one of these.
    pub(super) fn withdraw_held(&mut self, id: &[u8]) -> bool {
        let before = self.held.len();
        self.held.retain(|held| held.id != id);
        self.held.len() < before
    }

    /// Refuses what has been kept for too long.
    pub(super) fn expire_held(&mut self, now: Moment) {
        while let Some(held) = self.held.pop_front_if(|held| held.until <= now) {
            self.refuse_unattributable(&held.id);
        }
        if let Some(held) = self.held.front() {
            self.ledger.wake_by(held.until);
        }
    }
}
