//! Questions that need a capability which the modern client of their call did not declare.
//!
//! A shared legacy server receives the union of its clients' capabilities, so it may ask for more
//! than the client of a call declared. Servers that ask several things at once do so within
//! milliseconds. Therefore such a question is not refused at once. It is kept while the client has
//! another question of the same call to answer, and for [`Undeclared::SIBLINGS`] while no such
//! question has come. If one has come, the server is refused the kept questions after the client's
//! answer, and the call ends with the server's own answer. If none has come, the call ends with the
//! modern error for a missing capability, and the server is sent its cancellation.

use std::time::Duration;

use bytes::Bytes;

use super::ledger::Ledger;
use super::link::Link;
use crate::backend_face::WireId;
use crate::time::Moment;

/// The kept questions of one link, oldest first.
#[derive(Debug, Default)]
pub(super) struct Undeclared {
    kept: Vec<Kept>,
}

#[derive(Debug)]
struct Kept {
    call: WireId,
    /// The raw id that the server gave the question.
    id: Bytes,
    refusal: QuestionRefusal,
    /// What a client must declare to be asked this, as JSON.
    required: &'static str,
    /// When the call ends because of it. None while its client has a question to answer.
    until: Option<Moment>,
}

/// What a legacy server is sent about a question that no client was asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuestionRefusal {
    pub(super) code: i32,
    pub(super) why: &'static str,
}

impl Undeclared {
    /// How long after a question another one of the same call still counts as asked together with
    /// it.
    pub(super) const SIBLINGS: Duration = Duration::from_millis(250);

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Forgets the questions, since the server that asked them has ended.
    pub(super) fn lose_link(&mut self) {
        self.kept.clear();
    }

    /// Handles the server's withdrawal of a question. Returns whether it was a kept one.
    pub(super) fn handle_withdrawal(&mut self, id: &[u8]) -> bool {
        let before = self.kept.len();
        self.kept.retain(|kept| kept.id != id);
        self.kept.len() < before
    }

    /// Handles a question of the call that its client was asked.
    pub(super) fn handle_answerable(&mut self, call: WireId) {
        for kept in self.kept.iter_mut().filter(|kept| kept.call == call) {
            kept.until = None;
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.kept.iter().filter_map(|kept| kept.until).min()
    }

    /// Returns a call whose client was asked nothing in time.
    pub(super) fn due(&self, now: Moment) -> Option<WireId> {
        let due = |kept: &&Kept| kept.until.is_some_and(|until| until <= now);
        self.kept.iter().find(due).map(|kept| kept.call)
    }

    /// Keeps a question: while the client has another question of the same call to answer, or for a
    /// moment.
    pub(super) fn keep(
        &mut self,
        now: Moment,
        call: WireId,
        id: Bytes,
        refusal: QuestionRefusal,
        required: &'static str,
        ledger: &mut Ledger,
    ) {
        let open = ledger.call(call).map_or(0, |call| call.asking.questions());
        let until = (open == 0).then(|| now.after(Self::SIBLINGS));
        self.kept.push(Kept {
            call,
            id,
            refusal,
            required,
            until,
        });
        if let Some(until) = until {
            ledger.wake_by(until);
        }
    }

    /// Refuses the kept questions of a call. Returns what a client must declare to be asked them.
    pub(super) fn refuse(&mut self, call: WireId, ledger: &mut Ledger, link: &Link) -> Vec<&'static str> {
        let kept: Vec<Kept> = self.kept.extract_if(.., |kept| kept.call == call).collect();
        for Kept { id, refusal, .. } in &kept {
            link.refuse_unasked(id, refusal.code, refusal.why, ledger);
        }
        kept.into_iter().map(|kept| kept.required).collect()
    }
}
