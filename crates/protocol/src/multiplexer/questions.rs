//! Questions of the server: which session each is put to, and how it is answered, refused or
//! withdrawn.

use std::time::Duration;

use bytes::Bytes;

use super::Multiplexer;
use super::abandoned::Matter;
use super::attribution::Resolution;
use super::link::Carrier;
use super::state::{OpenQuestion, QuestionOrigin};
use super::suspended::Suspended;
use super::unattributed::HeldQuestion;
use super::undeclared::QuestionRefusal;
use crate::backend_face::{WireId, legacy};
use crate::capability;
use crate::error_code;
use crate::exchange::{QuestionKey, SessionKey, Tell};
use crate::message::{Member, Message};
use crate::method::Method;
use crate::time::Moment;
use crate::version::QuestionStyle;

/// Why a question is refused that could be several sessions'.
const UNATTRIBUTABLE: &str =
    "cannot tell which of several sessions this request is for; set `process: per_session` for this server";

/// The same if it could be several principals'.
const UNATTRIBUTABLE_CALLER: &str =
    "cannot tell which of several callers this request is for; set `process: per_identity` for this server";

const NOTHING_IN_PROGRESS: &str = "no client request is in progress";

/// Room for the text of a refusal.
const REFUSAL_BYTES: usize = 256;

impl Multiplexer {
    /// Returns how many questions of the server have no answer yet.
    pub fn open_questions(&self) -> usize {
        self.ledger.questions.len()
            + self.attribution.unattributed.len()
            + self.undeclared.len()
            + self.tasks.open_inputs()
            + self.roots.open()
    }

    /// Returns the questions that were put to clients: to which session, by which method, and how
    /// long ago.
    pub fn question_list(&self, now: Moment) -> impl Iterator<Item = (SessionKey, &'static str, Duration)> {
        self.ledger.questions.iter().map(move |open| {
            let method = open.method.name().unwrap_or("other");
            (open.session, method, now.since(open.asked))
        })
    }

    // From the server.

    pub(super) fn handle_question(&mut self, now: Moment, message: Message, origin: Option<WireId>) {
        let Some(id) = message.raw_copy(Member::Id) else {
            return;
        };
        if !self.has_room_for_a_refusal(&id) || self.handle_task_question(now, &id, &message) {
            return;
        }
        // No client opened a session with this server, and a modern one could never be sent the
        // answer.
        if self.link.server_info().is_none() {
            return self.refuse_unasked(&id, error_code::METHOD_NOT_FOUND, NOTHING_IN_PROGRESS);
        }
        if let Some(origin) = origin {
            return match self.origin_of(origin) {
                Some((session, wire)) => self.ask_session(now, session, wire, id, message),
                None => self.refuse_unasked(&id, error_code::METHOD_NOT_FOUND, NOTHING_IN_PROGRESS),
            };
        }
        if self.handle_roots_question(now, &id, &message) {
            return;
        }
        let found = self.attribution.of_question(message.method(), &self.ledger);
        self.attribution.handle_question(found, &self.ledger);
        match found {
            Some((session, wire)) => self.ask_session(now, session, wire, id, message),
            // If one session alone may have asked and yet is not found, another principal may have:
            // none is held then.
            None if self.ledger.sessions.asking() > 0 => self.hold(now, id, message),
            None if !self.ledger.sessions.is_empty() || self.attribution.has_several_users() => {
                self.refuse_unattributable(&id);
            }
            None => self.refuse_unasked(&id, error_code::METHOD_NOT_FOUND, NOTHING_IN_PROGRESS),
        }
    }

    /// Returns whether a request of the server can be answered at all. A server that asks without
    /// reading gets no answers: they would pile up here.
    pub(super) fn has_room_for_a_refusal(&mut self, id: &[u8]) -> bool {
        let room = self.ledger.has_room(id.len() + REFUSAL_BYTES);
        self.ledger.counters.overloads += u64::from(!room);
        room
    }

    /// Puts a question to the session that it is for, unless its client cannot answer.
    pub(super) fn ask_session(
        &mut self,
        now: Moment,
        session: SessionKey,
        wire: Option<WireId>,
        id: Bytes,
        message: Message,
    ) {
        let entry = self.ledger.sessions.get(session);
        let unheard_of = entry.is_some_and(|entry| {
            entry.era.questions() == QuestionStyle::Results && !message.method().is_input()
        });
        let able = entry.map(|entry| &entry.client.capabilities);
        if unheard_of || able.is_some_and(|can| !can.can_answer(message.method())) {
            let refusal = QuestionRefusal {
                code: error_code::METHOD_NOT_FOUND,
                why: "the client cannot answer this kind of request",
            };
            self.handle_undeclared(now, wire, id, &message, refusal);
        } else if able.is_some_and(|can| !can.can_answer_in_kind(&message)) {
            let refusal = QuestionRefusal {
                code: error_code::INVALID_PARAMS,
                why: "the client did not declare that it can be asked in this way",
            };
            self.handle_undeclared(now, wire, id, &message, refusal);
        } else if self.open_questions() >= self.ledger.limits.questions {
            let why = "too many requests to clients are open";
            self.refuse_unasked(&id, error_code::METHOD_NOT_FOUND, why);
        } else {
            self.put_question(now, session, wire, QuestionOrigin::Server(id), message);
        }
    }

    pub(super) fn put_question(
        &mut self,
        now: Moment,
        session: SessionKey,
        wire: Option<WireId>,
        origin: QuestionOrigin,
        message: Message,
    ) {
        let timeout = self.ledger.limits.question_timeout;
        let deadline = now.after(timeout);
        let mut carrier = None;
        if let Some(id) = wire {
            carrier = self.ledger.open_question(deadline, id);
            self.undeclared.handle_answerable(id);
            // A server that asks by its answer has answered the call: there is nothing to confuse.
            if let QuestionOrigin::Server(_) = origin {
                Suspended::schedule(now, id, &mut self.ledger);
            }
        }
        let question = self.ledger.questions.open(OpenQuestion {
            session,
            wire,
            origin,
            method: message.method(),
            asked: now,
            deadline,
        });
        self.ledger.wake_by(deadline);
        self.ledger.tell(Tell::Question {
            session,
            call: carrier,
            question,
            message,
        });
    }

    pub(super) fn handle_withdrawal(&mut self, now: Moment, message: Message) {
        let Some(id) = message.raw(Member::RequestId) else {
            return;
        };
        if self.attribution.unattributed.withdraw(id)
            || self.undeclared.handle_withdrawal(id)
            || self.tasks.withdraw_input(id)
            || self.roots.withdraw(id)
        {
            return;
        }
        let Some(question) = self.ledger.questions.with_server_id(id) else {
            self.ledger.counters.strays += 1;
            return;
        };
        if let Some(open) = self.close_question(now, question) {
            self.ledger.tell(Tell::Withdrawn {
                session: open.session,
                question,
                message: Some(message),
            });
            self.refuse_unasked_siblings(open.wire);
        }
        self.admit_asked(now);
    }

    // From the client.

    pub(super) fn answer(
        &mut self,
        now: Moment,
        session: SessionKey,
        question: QuestionKey,
        message: &Message,
    ) {
        // Only the session that was asked may answer.
        if !self.ledger.questions.is_of(question, session) {
            self.ledger.counters.strays += 1;
            return;
        }
        let suspended = &mut self.attribution.suspended;
        if !suspended.keep_back(session, question, message, &self.ledger) {
            self.give_answer(now, question, message);
        }
    }

    /// Sends the server the answer to its question.
    fn give_answer(&mut self, now: Moment, question: QuestionKey, message: &Message) {
        let Some(open) = self.close_question(now, question) else {
            return;
        };
        self.note_roots(&open, message);
        let reworded = (open.method == Method::SamplingCreateMessage)
            .then(|| {
                self.link
                    .server_info()
                    .and_then(|server_info| server_info.version)
            })
            .flatten()
            .and_then(|version| legacy::sampled_for(version, message));
        let message = reworded.as_ref().unwrap_or(message);
        match open.origin {
            QuestionOrigin::Server(id) => self.link.write_answer(message, &id, &mut self.ledger),
            QuestionOrigin::Round(key) => self.handle_input(now, open.wire, &key, message),
            QuestionOrigin::Task(key) => self.handle_task_input(now, open.wire, &key, message),
        }
        self.refuse_unasked_siblings(open.wire);
        self.admit_asked(now);
    }

    /// Sends the server the waiting answers for suspended calls, as far as the rules allow.
    pub(super) fn admit_answers(&mut self, now: Moment) {
        for returning in self.attribution.suspended.take_answers() {
            // One whose turn has not come is put back by this.
            self.answer(now, returning.session, returning.question, &returning.message);
        }
    }

    /// Sends the calls that waited for an answer of their client, if that was the last.
    fn admit_asked(&mut self, now: Moment) {
        if self.ledger.waiting.iter().any(|waiting| waiting.asked_first) {
            self.admit(now);
        }
    }

    fn close_question(&mut self, now: Moment, question: QuestionKey) -> Option<OpenQuestion> {
        let open = self.ledger.questions.close(question)?;
        if let Some(id) = open.wire
            && self.ledger.close_question(now, id)
        {
            self.attribution.suspended.resume(id, &mut self.ledger);
        }
        Some(open)
    }

    /// Ends a question that its client did not answer in time, or gives the server the answer that
    /// waited for its turn.
    pub(super) fn expire_question(&mut self, now: Moment, question: QuestionKey) {
        if let Some(message) = self.attribution.suspended.take_late(question) {
            return self.give_answer(now, question, &message);
        }
        let session = self.ledger.questions.get(question).map(|open| open.session);
        self.refuse_question(now, question, "the client did not answer in time");
        if let Some(session) = session {
            self.ledger.tell(Tell::Withdrawn {
                session,
                question,
                message: None,
            });
        }
    }

    pub(super) fn refuse_question(&mut self, now: Moment, question: QuestionKey, why: &'static str) {
        self.ledger.counters.questions_refused += 1;
        let Some(open) = self.close_question(now, question) else {
            return;
        };
        self.fail_asked(open.session, why);
        match open.origin {
            QuestionOrigin::Server(id) => {
                self.link
                    .refuse(&id, error_code::INTERNAL_ERROR, why, &mut self.ledger);
            }
            QuestionOrigin::Round(_) | QuestionOrigin::Task(_) => self.fail_round(now, open.wire, why),
        }
        self.refuse_unasked_siblings(open.wire);
    }

    /// Refuses a question that was put to no client.
    pub(super) fn refuse_unasked(&mut self, id: &[u8], code: i32, why: &str) {
        self.link.refuse_unasked(id, code, why, &mut self.ledger);
    }

    // Questions that could be several sessions'.

    /// Refuses a question that could be several sessions' or several principals'.
    fn refuse_unattributable(&mut self, id: &[u8]) {
        let why = if self.attribution.has_several_users() {
            UNATTRIBUTABLE_CALLER
        } else {
            UNATTRIBUTABLE
        };
        self.refuse_unasked(id, error_code::METHOD_NOT_FOUND, why);
    }

    /// Holds a question that several sessions' calls may have caused, or refuses it if waiting
    /// would not help.
    fn hold(&mut self, now: Moment, id: Bytes, message: Message) {
        let full = self.open_questions() >= self.ledger.limits.questions;
        if full || !self.attribution.can_hold(&self.ledger) {
            return self.refuse_unattributable(&id);
        }
        if self.attribution.unattributed.len() + 1 >= self.ledger.sessions.asking() {
            // All of them may be waiting for an answer, and then none will ever end.
            self.refuse_held();
            return self.refuse_unattributable(&id);
        }
        let unattributed = &mut self.attribution.unattributed;
        unattributed.hold(now, id, message, &mut self.ledger);
    }

    /// A session's calls have ended: perhaps only one session is left that may have asked.
    pub(super) fn resolve_held(&mut self, now: Moment) {
        match self.attribution.resolution(&self.ledger) {
            Resolution::Wait => {}
            Resolution::Refuse => self.refuse_held(),
            Resolution::Attribute => {
                for HeldQuestion { id, message, .. } in self.attribution.unattributed.take() {
                    match self.attribution.of_question(message.method(), &self.ledger) {
                        Some((session, wire)) => self.ask_session(now, session, wire, id, message),
                        None => self.refuse_unattributable(&id),
                    }
                }
            }
        }
    }

    fn refuse_held(&mut self) {
        for HeldQuestion { id, .. } in self.attribution.unattributed.take() {
            self.refuse_unattributable(&id);
        }
    }

    /// Refuses what has been held for too long.
    pub(super) fn expire_held(&mut self, now: Moment) {
        while let Some(held) = self.attribution.unattributed.take_late(now) {
            self.refuse_unattributable(&held.id);
        }
        if let Some(at) = self.attribution.unattributed.next_deadline() {
            self.ledger.wake_by(at);
        }
    }

    // Questions that need a capability which the client of their call did not declare.

    /// Keeps a question that the client of its call cannot answer. Refuses it at once where the
    /// client's era has no error for it, and where too many questions are open.
    fn handle_undeclared(
        &mut self,
        now: Moment,
        call: Option<WireId>,
        id: Bytes,
        question: &Message,
        refusal: QuestionRefusal,
    ) {
        let carrier = call.filter(|id| {
            let call = self.ledger.call(*id);
            call.is_some_and(|call| call.era.questions() == QuestionStyle::Results)
        });
        let room = self.open_questions() < self.ledger.limits.questions;
        match (carrier, capability::required_for(question), room) {
            (Some(call), Some(required), true) => {
                self.undeclared
                    .keep(now, call, id, refusal, required, &mut self.ledger);
            }
            _ => self.refuse_unasked(&id, refusal.code, refusal.why),
        }
    }

    /// Refuses the kept questions of a call if its client has no question left to answer.
    fn refuse_unasked_siblings(&mut self, call: Option<WireId>) {
        if let Some(id) = call
            && let Some(call) = self.ledger.call(id)
            && call.asking.questions() == 0
        {
            self.undeclared.refuse(id, &mut self.ledger, &self.link);
        }
    }

    /// Ends the calls whose server asked for capabilities that the client did not declare, and for
    /// nothing else.
    pub(super) fn expire_undeclared(&mut self, now: Moment) {
        while let Some(call) = self.undeclared.due(now) {
            // Another call of this principal may have asked. Then this one can go on.
            let attribution = &self.attribution;
            let certain = self.link.carrier() == Carrier::Posts
                || (!attribution.suspended.is_any()
                    && attribution.abandoned.sole_owner(Matter::Question).is_none());
            let required = self.undeclared.refuse(call, &mut self.ledger, &self.link);
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
        let Some(call) = self.cancel_at_server(now, id, None, reason) else {
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
