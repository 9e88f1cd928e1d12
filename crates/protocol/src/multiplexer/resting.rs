//! Calls that rest: their server has asked, and their modern client may come back with the answer or may not.
//!
//! A server that asks is given calls one at a time, so that its next question can be attributed. A modern client
//! says no goodbye when it loses interest, so a call that waits for one must not keep all others waiting. After a
//! moment without a further question it *rests*: others of the same principal may go, and its answer, when it
//! comes, waits for them. It refuses to let another principal go: a late question would be theirs.

use std::time::Duration;

use super::{Asker, Multiplexer, Pending};
use crate::backend_face::WireId;
use crate::exchange::{QuestionKey, SessionKey};
use crate::message::Message;
use crate::time::Moment;
use crate::version::Era;

/// How long after a question another one is still taken for its sibling. Those who ask several things at once
/// do so within milliseconds.
const SIBLINGS: Duration = Duration::from_millis(250);

/// An answer that waits until no other call can be confused with the one it wakes.
#[derive(Debug)]
pub(super) struct Returning {
    pub(super) session: SessionKey,
    question: QuestionKey,
    message: Message,
}

impl Multiplexer {
    /// The server has asked something because of this call.
    pub(super) fn begin_rest(&mut self, now: Moment, wire: Option<WireId>, asker: &Asker) {
        // A modern server has answered the call with its question; there is nothing to confuse.
        let Asker::Server(_) = asker else { return };
        if let Some(Pending::Call(call)) = wire.and_then(|id| self.pending.get_mut(&id))
            && call.words == Era::Modern
            && !call.resting
        {
            let at = now.after(SIBLINGS);
            call.rest_at = Some(at);
            self.wake_by(at);
        }
    }

    /// Puts to rest the calls whose time has come.
    pub(super) fn rest(&mut self, now: Moment, ids: Vec<WireId>) {
        if ids.is_empty() {
            return;
        }
        for id in ids {
            let Some(Pending::Call(call)) = self.pending.get_mut(&id) else { continue };
            call.rest_at = None;
            call.resting = true;
            let (session, may_ask) = (call.session, call.method.may_ask());
            self.count_out(session, may_ask);
        }
        self.admit(now);
    }

    /// The call goes on.
    pub(super) fn rouse(&mut self, id: WireId) {
        let Some(Pending::Call(call)) = self.pending.get_mut(&id) else { return };
        call.rest_at = None;
        if std::mem::replace(&mut call.resting, false) {
            let (session, may_ask) = (call.session, call.method.may_ask());
            self.count_in(session, may_ask);
        }
    }

    /// Whether a call rests that must not be confused with one of this session, because it is somebody else's.
    pub(super) fn strangers_rest(&self, session: SessionKey) -> bool {
        let principal = |session| self.attached.get(&session).map(|attached| &attached.client.principal);
        self.resting().any(|(of, _)| principal(of) != principal(session))
    }

    /// The resting call that a question must be about if no other call can have caused it.
    pub(super) fn only_resting(&self) -> Option<(SessionKey, Option<WireId>)> {
        let mut resting = self.resting();
        let (session, id) = resting.next()?;
        resting.next().is_none().then_some((session, Some(id)))
    }

    fn resting(&self) -> impl Iterator<Item = (SessionKey, WireId)> {
        self.pending.iter().filter_map(|(id, pending)| match pending {
            Pending::Call(call) if call.resting => Some((call.session, *id)),
            Pending::Call(_)
            | Pending::Cancelled { .. }
            | Pending::Handshake
            | Pending::Listen
            | Pending::Own { .. } => None,
        })
    }

    /// Keeps an answer back while the call that it wakes could be confused with one that runs.
    pub(super) fn must_wait(&mut self, session: SessionKey, question: QuestionKey, message: &Message) -> bool {
        let wire = self.questions.get(&question).and_then(|open| open.wire);
        let rests = matches!(wire.and_then(|id| self.pending.get(&id)), Some(Pending::Call(call)) if call.resting);
        if !rests || self.asking_sessions == 0 {
            return false;
        }
        // One answer for each open question, of which there is a limited number.
        if !self.returning.iter().any(|returning| returning.question == question) {
            let message = message.clone();
            self.returning.push_back(Returning { session, question, message });
        }
        true
    }

    /// Gives the server the answers that have waited, as far as the rules allow.
    pub(super) fn admit_answers(&mut self, now: Moment) {
        for returning in std::mem::take(&mut self.returning) {
            // One whose turn has not come is put back by this.
            self.answer(now, returning.session, returning.question, &returning.message);
        }
    }
}
