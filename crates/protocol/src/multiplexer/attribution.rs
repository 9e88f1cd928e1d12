//! Whose question it is, and who hears what is about no call in particular.

use bytes::Bytes;

use super::Multiplexer;
use super::abandoned::Matter;
use super::roots::Several;
use super::state::{Asker, InFlight, Load, OpenQuestion, Pending, SessionEntry, Users};
use super::undeclared::Refusal;
use crate::backend_face::{WireId, legacy};
use crate::error_code;
use crate::exchange::{Principal, QuestionKey, SessionKey, Tell};
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

impl Multiplexer {
    pub(super) fn answer(
        &mut self,
        now: Moment,
        session: SessionKey,
        question: QuestionKey,
        message: &Message,
    ) {
        // Only the session that was asked may answer.
        if self
            .ledger
            .questions
            .get(&question)
            .is_none_or(|open| open.session != session)
        {
            self.ledger.counters.strays += 1;
            return;
        }
        if !self.must_wait(session, question, message) {
            self.give_answer(now, question, message);
        }
    }

    /// Gives the server the answer to its question.
    pub(super) fn give_answer(&mut self, now: Moment, question: QuestionKey, message: &Message) {
        let Some(open) = self.close_question(now, question) else {
            return;
        };
        self.note_roots(&open, message);
        let reworded = (open.method == Method::SamplingCreateMessage)
            .then(|| self.link.welcome().and_then(|welcome| welcome.version))
            .flatten()
            .and_then(|version| legacy::sampled_for(version, message));
        let message = reworded.as_ref().unwrap_or(message);
        match open.asker {
            Asker::Server(id) => self.link.write_answer(message, &id, &mut self.ledger),
            Asker::Round(key) => self.handle_input(now, open.wire, &key, message),
            Asker::Task(key) => self.handle_task_input(now, open.wire, &key, message),
        }
        self.refuse_unasked_siblings(open.wire);
        self.admit_asked(now);
    }

    /// Sends the calls that waited for an answer of their client, if that was the last.
    fn admit_asked(&mut self, now: Moment) {
        if self.ledger.waiting.iter().any(|waiting| waiting.asked_first) {
            self.admit(now);
        }
    }

    pub(super) fn close_question(&mut self, now: Moment, question: QuestionKey) -> Option<OpenQuestion> {
        let open = self.ledger.questions.remove(&question)?;
        if let Some(Pending::Call(call)) = open.wire.and_then(|id| self.ledger.pending.get_mut(&id)) {
            call.open_questions -= 1;
            if call.open_questions == 0 {
                call.deadline = now.after(self.ledger.limits.call_timeout(call.reads_events));
                call.horizon = now.after(self.ledger.limits.longest_call(call.reads_events));
                let deadline = call.deadline;
                self.ledger.wake_by(deadline);
                if let Some(id) = open.wire {
                    self.rouse(id);
                }
            }
        }
        Some(open)
    }

    pub(super) fn refuse_question(&mut self, now: Moment, question: QuestionKey, why: &'static str) {
        self.ledger.counters.questions_refused += 1;
        let Some(open) = self.close_question(now, question) else {
            return;
        };
        self.fail_asked(open.session, why);
        match open.asker {
            Asker::Server(id) => self.refuse(&id, error_code::INTERNAL_ERROR, why),
            Asker::Round(_) | Asker::Task(_) => self.fail_round(now, open.wire, why),
        }
        self.refuse_unasked_siblings(open.wire);
    }

    /// Says no to a request of the server. There is always room for it: a request that came when there was none
    /// was not taken at all ([`Self::has_room_for_a_refusal`]), and the number of those taken is limited.
    pub(super) fn refuse(&mut self, id: &[u8], code: i32, text: &str) {
        self.link.refuse(id, code, text, &mut self.ledger);
    }

    /// A server that asks without reading what it is told gets no answers: they would pile up here.
    pub(super) fn has_room_for_a_refusal(&mut self, id: &[u8]) -> bool {
        const WORDS: usize = 256;
        let room = self.ledger.has_room(id.len() + WORDS);
        self.ledger.counters.overloads += u64::from(!room);
        room
    }

    pub(super) fn handle_question(&mut self, now: Moment, message: Message, origin: Option<WireId>) {
        let Some(id) = message.raw_copy(Member::Id) else {
            return;
        };
        if !self.has_room_for_a_refusal(&id) || self.handle_task_question(now, &id, &message) {
            return;
        }
        // No client was introduced to this server, and a modern one could never be sent the answer.
        if self.link.welcome().is_none() {
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
        let found = self.attribute(message.method());
        if !std::mem::replace(&mut self.inquisitive, true) {
            self.choose_owner(found.map(|(session, _)| session));
        }
        match found {
            Some((session, wire)) => self.ask_session(now, session, wire, id, message),
            None if self.asking_sessions > 1 => self.hold(now, id, message),
            None if self.ledger.attached.len() > 1 || matches!(self.users, Users::Several) => {
                self.refuse_unattributable(&id)
            }
            None => self.refuse_unasked(&id, error_code::METHOD_NOT_FOUND, NOTHING_IN_PROGRESS),
        }
    }

    /// The server has asked for the first time. The instance becomes the asked session's principal's, or that of a session
    /// that may have been meant.
    fn choose_owner(&mut self, asked: Option<SessionKey>) {
        let may_be_meant = || {
            self.ledger
                .attached
                .iter()
                .max_by_key(|(_, attached)| attached.load.asking > 0)
                .map(|(session, _)| *session)
        };
        let attached = asked
            .or_else(may_be_meant)
            .and_then(|session| self.ledger.attached.get(&session));
        self.owner = attached.map(|attached| attached.client.principal.clone());
    }

    /// Puts a question to the session whose it is, unless its client cannot answer.
    pub(super) fn ask_session(
        &mut self,
        now: Moment,
        session: SessionKey,
        wire: Option<WireId>,
        id: Bytes,
        message: Message,
    ) {
        let attached = self.ledger.attached.get(&session);
        let unheard_of = attached.is_some_and(|attached| {
            attached.words.questions() == QuestionStyle::Results && !message.method().is_input()
        });
        let able = attached.map(|attached| &attached.client.capabilities);
        if unheard_of || able.is_some_and(|can| !can.can_answer(message.method())) {
            let refusal = Refusal {
                code: error_code::METHOD_NOT_FOUND,
                why: "the client cannot answer this kind of request",
            };
            self.handle_undeclared(now, wire, id, &message, refusal);
        } else if able.is_some_and(|can| !can.can_answer_in_kind(&message)) {
            let refusal = Refusal {
                code: error_code::INVALID_PARAMS,
                why: "the client did not declare that it can be asked in this way",
            };
            self.handle_undeclared(now, wire, id, &message, refusal);
        } else if self.open_questions() >= self.ledger.limits.questions {
            let why = "too many requests to clients are open";
            self.refuse_unasked(&id, error_code::METHOD_NOT_FOUND, why);
        } else {
            self.put_question(now, session, wire, Asker::Server(id), message);
        }
    }

    /// Refuses a question that could be several sessions' or several principals'.
    pub(super) fn refuse_unattributable(&mut self, id: &[u8]) {
        let why = match self.users {
            Users::Several => UNATTRIBUTABLE_CALLER,
            Users::Nobody | Users::One(_) => UNATTRIBUTABLE,
        };
        self.refuse_unasked(id, error_code::METHOD_NOT_FOUND, why);
    }

    /// Refuses a question that was put to nobody.
    pub(super) fn refuse_unasked(&mut self, id: &[u8], code: i32, why: &str) {
        self.link.refuse_unasked(id, code, why, &mut self.ledger);
    }

    pub(super) fn put_question(
        &mut self,
        now: Moment,
        session: SessionKey,
        wire: Option<WireId>,
        asker: Asker,
        message: Message,
    ) {
        let question = QuestionKey(self.ledger.next_question);
        self.ledger.next_question += 1;
        let deadline = now.after(self.ledger.limits.question_timeout);
        let mut carrier = None;
        if let Some(Pending::Call(call)) = wire.and_then(|id| self.ledger.pending.get_mut(&id)) {
            call.open_questions += 1;
            // People think slowly, and the server is not to blame: it waits too.
            call.deadline = deadline.after(self.ledger.limits.call_timeout(call.reads_events));
            carrier = Some(call.call);
        }
        if let Some(id) = wire {
            self.undeclared.handle_answerable(id);
        }
        self.begin_rest(now, wire, &asker);
        self.ledger.questions.insert(
            question,
            OpenQuestion {
                session,
                wire,
                asker,
                method: message.method(),
                deadline,
            },
        );
        self.ledger.wake_by(deadline);
        self.ledger.tell(Tell::Question {
            session,
            call: carrier,
            question,
            message,
        });
    }

    /// Returns the session whose question it is, and which of its calls caused it.
    pub(super) fn attribute(&self, method: Method) -> Option<(SessionKey, Option<WireId>)> {
        let found = self.likely_asker(method)?;
        (!self.may_be_of_another_principal(found.0, Matter::Question)).then_some(found)
    }

    fn likely_asker(&self, method: Method) -> Option<(SessionKey, Option<WireId>)> {
        match self.asking_sessions {
            0 => {}
            1 => return self.newest(|call| call.method.may_ask() && !call.resting),
            _ => return None,
        }
        if self.any_rests() {
            return self.resting_session();
        }
        if self.abandoned.sole_owner(Matter::Question).is_some() {
            let session = self.abandoning_session(Matter::Question)?;
            return Some((
                session,
                self.newest(|call| call.session == session).and_then(|(_, id)| id),
            ));
        }
        // No call is there that may ask, so it may be about anything that was done on this link.
        if self.busy_sessions <= 1
            && let Some(found) = self.newest(|_| true)
            && self.is_only_user(found.0)
        {
            return Some(found);
        }
        if let Some(session) = self.sole_session().filter(|session| self.is_only_user(*session)) {
            return Some((session, None));
        }
        match method {
            Method::RootsList => self.last_notifier.map(|session| (session, None)),
            _ => None,
        }
    }

    fn newest(&self, wanted: impl Fn(&InFlight) -> bool) -> Option<(SessionKey, Option<WireId>)> {
        self.ledger.pending.iter().rev().find_map(|(id, pending)| {
            let call = pending.as_call()?;
            wanted(call).then_some((call.session, Some(*id)))
        })
    }

    /// Returns the session for what the server sends because of a call that was given up: the call's own, or else the
    /// only one that its principal has.
    fn abandoning_session(&self, matter: Matter) -> Option<SessionKey> {
        let own = self.abandoned.sole_session(matter);
        if let Some(session) = own.filter(|session| self.ledger.attached.contains_key(session)) {
            return Some(session);
        }
        let owner = self.abandoned.sole_owner(matter)?;
        let mut sessions = self
            .ledger
            .attached
            .iter()
            .filter(|(_, attached)| attached.client.principal == *owner);
        let first = sessions.next().map(|(session, _)| *session)?;
        sessions.next().is_none().then_some(first)
    }

    /// Returns whether a call of another principal than this session's may have caused it: one in flight, one that
    /// rests, or one that was given up.
    pub(super) fn may_be_of_another_principal(&self, session: SessionKey, matter: Matter) -> bool {
        let Some(attached) = self.ledger.attached.get(&session) else {
            return true;
        };
        let principal = &attached.client.principal;
        (!self.abandoned.is_empty() && self.abandoned.may_be_of_another(principal, matter))
            || self.strangers_rest(session)
            || self.strangers_work(session, matter)
    }

    /// Returns whether a call of another principal is in flight that may have caused it.
    pub(super) fn strangers_work(&self, session: SessionKey, matter: Matter) -> bool {
        let Some(attached) = self.ledger.attached.get(&session) else {
            return true;
        };
        let (sessions, own) = match matter {
            Matter::Question => (self.asking_sessions, attached.load.asking),
            Matter::Log => (self.busy_sessions, attached.load.in_flight),
        };
        let works = |load: &Load| match matter {
            Matter::Question => load.asking > 0,
            Matter::Log => load.in_flight > 0,
        };
        let is_strange =
            |other: &SessionEntry| works(&other.load) && other.client.principal != attached.client.principal;
        sessions > usize::from(own > 0) && self.ledger.attached.values().any(is_strange)
    }

    /// Returns whether every session that has used this link is of the same principal as this one.
    fn is_only_user(&self, session: SessionKey) -> bool {
        self.ledger
            .attached
            .get(&session)
            .is_some_and(|attached| self.users.is_only(&attached.client.principal))
    }

    /// Returns the only principal that everything the server sends is for, if any is there. An error: it could be several.
    pub(super) fn sole_principal(&self) -> Result<Option<Principal>, Several> {
        let mut principals = self
            .ledger
            .attached
            .values()
            .map(|attached| &attached.client.principal);
        let first = principals.next();
        if !principals.all(|principal| Some(principal) == first) {
            return Err(Several);
        }
        if self.abandoned.is_empty() {
            return Ok(first.cloned());
        }
        match self.abandoned.sole_owner(Matter::Question) {
            Some(owner) if first.is_none_or(|first| first == owner) => Ok(Some(owner.clone())),
            None if first.is_some_and(|first| !self.abandoned.may_be_of_another(first, Matter::Question)) => {
                Ok(first.cloned())
            }
            Some(_) | None => Err(Several),
        }
    }

    /// Returns the only session there is.
    fn sole_session(&self) -> Option<SessionKey> {
        let mut sessions = self.ledger.attached.keys();
        let first = sessions.next()?;
        sessions.next().is_none().then_some(*first)
    }

    /// Returns the only session that hears what is about no call, if no other principal has used the link.
    pub(super) fn sole_hearing(&self) -> Option<SessionKey> {
        let mut hearing = self.ledger.hearing();
        let first = hearing.next()?;
        (hearing.next().is_none() && self.is_only_user(first)).then_some(first)
    }

    pub(super) fn handle_withdrawal(&mut self, now: Moment, message: Message) {
        let Some(id) = message.raw(Member::RequestId) else {
            return;
        };
        if self.withdraw_held(id)
            || self.undeclared.handle_withdrawal(id)
            || self.tasks.withdraw_input(id)
            || self.roots.withdraw(id)
        {
            return;
        }
        let found = self
            .ledger
            .questions
            .iter()
            .find(|(_, open)| matches!(&open.asker, Asker::Server(asked) if asked == id))
            .map(|(key, _)| *key);
        let Some(question) = found else {
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

    /// A log line goes to the session whose call it is about. If that cannot be known it goes to everybody
    /// while nobody is calling and all are one principal, and otherwise to nobody.
    pub(super) fn handle_log(&mut self, now: Moment, message: &Message, origin: Option<WireId>) {
        if self.task_log(now, message) {
            return;
        }
        let level = message.level();
        let exact = origin.map(|origin| self.origin_of(origin));
        if exact == Some(None) {
            self.ledger.counters.unattributed += 1;
            return;
        }
        if let Some((session, wire)) = exact.flatten().or_else(|| self.attribute_log()) {
            if let Some(Pending::Call(call)) = wire.and_then(|id| self.ledger.pending.get_mut(&id)) {
                call.note_sign_of_life(now, &self.ledger.limits);
            }
            if self.subscriptions.hears(session, level) {
                let call = wire.and_then(|id| match self.ledger.pending.get(&id) {
                    Some(Pending::Call(call)) => Some(call.call),
                    Some(
                        Pending::Handshake(_)
                        | Pending::Listen
                        | Pending::Own { .. }
                        | Pending::Step { .. }
                        | Pending::Background { .. },
                    )
                    | None => None,
                });
                let message = message.clone();
                match call {
                    Some(call) => self.ledger.tell(Tell::Related {
                        session,
                        call,
                        message,
                    }),
                    None => self.ledger.tell(Tell::Notice { session, message }),
                }
            }
            return;
        }
        let quiet = self.busy_sessions == 0 && !self.any_rests();
        let one_principal = self
            .ledger
            .attached
            .keys()
            .next()
            .is_some_and(|first| self.is_only_user(*first));
        if !quiet || !one_principal {
            self.ledger.counters.unattributed += 1;
            return;
        }
        let sessions: Vec<SessionKey> = self.ledger.hearing().collect();
        for session in sessions {
            if self.subscriptions.hears(session, level) {
                self.ledger.tell(Tell::Notice {
                    session,
                    message: message.clone(),
                });
            }
        }
    }

    fn attribute_log(&self) -> Option<(SessionKey, Option<WireId>)> {
        let found = self.likely_logger()?;
        (!self.may_be_of_another_principal(found.0, Matter::Log)).then_some(found)
    }

    fn likely_logger(&self) -> Option<(SessionKey, Option<WireId>)> {
        match self.busy_sessions {
            0 => {}
            1 => {
                let (session, id) = self.newest(|call| !call.resting)?;
                let other = |call: &InFlight| !call.resting && call.session == session;
                let several = self
                    .ledger
                    .pending
                    .values()
                    .filter_map(Pending::as_call)
                    .filter(|call| other(call));
                return Some((session, id.filter(|_| several.take(2).count() == 1)));
            }
            _ => return None,
        }
        if self.any_rests() {
            return self.resting_session();
        }
        if !self.abandoned.is_empty() {
            return self
                .abandoning_session(Matter::Log)
                .map(|session| (session, None));
        }
        self.sole_hearing().map(|session| (session, None))
    }
}
