//! Questions that need a capability which the modern client of their call did not declare.
//!
//! A shared legacy server is told the union of what clients can do, so it may ask for more than the client of a call
//! declared. Servers that ask several things at once do so within milliseconds. Therefore such a question is not refused
//! at once. It is kept while the client has another question of the same call to answer, and for
//! [`Undeclared::SIBLINGS`] while no such question has come. If one has come, the server is refused the kept questions
//! after the client's answer, and the call ends with the server's own answer. If none has come, the call ends with the
//! modern error for a missing capability, and the server is told to cancel it.

use std::time::Duration;

use bytes::Bytes;

use super::Multiplexer;
use super::abandoned::Matter;
use super::link::Carrier;
use crate::backend_face::WireId;
use crate::message::Message;
use crate::time::Moment;
use crate::version::QuestionStyle;
use crate::{capability, error_code};

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
    refusal: Refusal,
    /// What a client must declare to be asked this, as JSON.
    required: &'static str,
    /// When the call ends because of it. None while its client has a question to answer.
    until: Option<Moment>,
}

/// What a legacy server is told about a question that was put to no client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    pub(super) code: i32,
    pub(super) why: &'static str,
}

impl Undeclared {
    /// How long after a question another one of the same call still counts as asked together with it.
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

    fn next_deadline(&self) -> Option<Moment> {
        self.kept.iter().filter_map(|kept| kept.until).min()
    }

    /// Returns a call whose client was asked nothing in time.
    fn due(&self, now: Moment) -> Option<WireId> {
        let due = |kept: &&Kept| kept.until.is_some_and(|until| until <= now);
        self.kept.iter().find(due).map(|kept| kept.call)
    }

    fn take_of(&mut self, call: WireId) -> Vec<Kept> {
        self.kept.extract_if(.., |kept| kept.call == call).collect()
    }
}

impl Multiplexer {
    /// Keeps a question that the modern client of its call cannot answer. Refuses it at once where the client is a legacy
    /// one, since that era has no error for it, and where too many questions are open.
    pub(super) fn handle_undeclared(
        &mut self,
        now: Moment,
        call: Option<WireId>,
        id: Bytes,
        question: &Message,
        refusal: Refusal,
    ) {
        let open = call.and_then(|id| {
            let call = self.ledger.call(id)?;
            (call.words.questions() == QuestionStyle::Results).then_some((id, call.open_questions))
        });
        let room = self.open_questions() < self.ledger.limits.questions;
        let (Some((call, open)), Some(required), true) = (open, capability::required_for(question), room)
        else {
            return self.refuse_unasked(&id, refusal.code, refusal.why);
        };
        let until = (open == 0).then(|| now.after(Undeclared::SIBLINGS));
        self.undeclared.kept.push(Kept {
            call,
            id,
            refusal,
            required,
            until,
        });
        if let Some(until) = until {
            self.ledger.wake_by(until);
        }
    }

    /// Refuses the kept questions of a call if its client has no question left to answer.
    pub(super) fn refuse_unasked_siblings(&mut self, call: Option<WireId>) {
        if let Some(id) = call
            && let Some(call) = self.ledger.call(id)
            && call.open_questions == 0
        {
            self.refuse_undeclared(id);
        }
    }

    /// Refuses the kept questions of a call. Returns what a client must declare to be asked them.
    pub(super) fn refuse_undeclared(&mut self, call: WireId) -> Vec<&'static str> {
        let kept = self.undeclared.take_of(call);
        for Kept { id, refusal, .. } in &kept {
            self.refuse_unasked(id, refusal.code, refusal.why);
        }
        kept.into_iter().map(|kept| kept.required).collect()
    }

    /// Ends the calls whose server asked for capabilities that the client did not declare, and for nothing else.
    pub(super) fn expire_undeclared(&mut self, now: Moment) {
        while let Some(call) = self.undeclared.due(now) {
            // Another call of this principal may have asked. Then this one can go on.
            let certain = self.link.carrier() == Carrier::Posts
                || (!self.any_rests() && self.abandoned.sole_owner(Matter::Question).is_none());
            let required = self.refuse_undeclared(call);
            if certain {
                self.fail_undeclared(now, call, required);
            }
        }
        if let Some(at) = self.undeclared.next_deadline() {
            self.ledger.wake_by(at);
        }
    }

    fn fail_undeclared(&mut self, now: Moment, id: WireId, required: Vec<&'static str>) {
        let reason = "the client lacks a capability that the server asked for";
        let Some(call) = self.release(now, id, None, reason) else {
            return;
        };
        let call = call.into_call();
        let text = "the server asked for a capability that the client did not declare";
        let required = capability::join_required(required);
        let data = format!(r#"{{"requiredCapabilities":{required}}}"#);
        self.ledger
            .reply_error(&call, error_code::MISSING_CAPABILITY, text, Some(&data));
    }
}
