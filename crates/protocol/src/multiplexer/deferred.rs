//! Questions that are not put to a client as they come: those of a round, and those for roots that
//! no call carries.

use std::collections::VecDeque;

use bytes::Bytes;

use super::Multiplexer;
use super::roots::RootsQuestion;
use super::rounds::{MAX_ROUNDS, Round};
use super::state::{Doing, OpenQuestion, Pending, QuestionOrigin, Waiting};
use super::task_polling::TaskPolling;
use crate::backend_face::modern::{self, InputRequired};
use crate::backend_face::{OutgoingRequest, WireId};
use crate::error_code;
use crate::exchange::{Call, Failure, SessionKey, Tell};
use crate::message::{Kind, Member, Message, quoted};
use crate::method::Method;
use crate::time::Moment;
use crate::version::{Era, QuestionStyle};

impl Multiplexer {
    // Rounds.

    /// Begins a round if the server asks by its answer and the client must be asked by requests. A
    /// client that is asked in the server's own way gets the answer as it is.
    pub(super) fn begin_round(&mut self, now: Moment, id: WireId, message: &Message) -> bool {
        match self.link.face().questions() {
            QuestionStyle::Requests => return false,
            QuestionStyle::Results => {}
        }
        let Some(call) = self.ledger.call_mut(id) else {
            return false;
        };
        match call.era.questions() {
            QuestionStyle::Results => return false,
            QuestionStyle::Requests => {}
        }
        let Some(InputRequired { questions, state }) = modern::input_required(message) else {
            return false;
        };
        call.rounds += 1;
        if call.rounds > MAX_ROUNDS {
            self.fail_round(now, Some(id), "the server asked too many times");
            return true;
        }
        let session = call.session;
        let round = Round::new(now, state, questions.keys());
        let resume_at = round.next_deadline();
        call.doing = Doing::Round(round);
        if let Some(at) = resume_at {
            self.ledger.wake_by(at);
        }
        for (key, question) in questions {
            let Ok(question) = Message::scan(question) else {
                self.fail_round(now, Some(id), "the server asked something that is no request");
                return true;
            };
            if !self.may_be_asked(session, &question) {
                self.fail_round(now, Some(id), "the server asked for what this client cannot do");
                return true;
            }
            let question = modern::with_elicitation_id(question, self.ledger.questions.upcoming().0);
            self.put_question(now, session, Some(id), QuestionOrigin::Round(key), question);
        }
        true
    }

    /// Returns whether a client can answer this question, and no limit forbids to ask it.
    pub(super) fn may_be_asked(&self, session: SessionKey, question: &Message) -> bool {
        let is_able = self.ledger.client(session).is_some_and(|client| {
            let can = &client.capabilities;
            can.can_answer(question.method()) && can.can_answer_in_kind(question)
        });
        is_able && self.open_questions() < self.ledger.limits.questions
    }

    /// The client has answered one of a round's questions.
    pub(super) fn handle_input(&mut self, now: Moment, wire: Option<WireId>, key: &str, message: &Message) {
        let Some(id) = wire else { return };
        let call = self.ledger.call_mut(id);
        let Some(round) = call.and_then(|call| call.doing.round_mut()) else {
            return;
        };
        match (message.kind(), message.raw_copy(Member::Result)) {
            (Kind::Result, Some(result)) => {
                if round.answer(key, result) {
                    self.next_round(now, id);
                }
            }
            _ => self.fail_round(now, wire, "the client did not answer what the server asked"),
        }
    }

    /// Sends a call again, with what was answered.
    pub(super) fn next_round(&mut self, now: Moment, id: WireId) {
        let Some(mut call) = self.ledger.take_call(id) else {
            return;
        };
        let Doing::Round(round) = std::mem::replace(&mut call.doing, Doing::Working) else {
            return;
        };
        let extra = round.into_params();
        let id = self.ledger.next_wire();
        let Some(entry) = self.ledger.sessions.get(call.session) else {
            return;
        };
        let line = OutgoingRequest {
            message: &call.message,
            era: call.era,
            id,
            client: &entry.client,
            level: self.subscriptions.level(call.session),
            extra: &extra,
        };
        self.link.face().write_call(self.ledger.outgoing.outbox(), &line);
        call.timer.restart(now, &self.ledger.limits);
        let deadline = call.timer.deadline();
        self.ledger.enter(id, Pending::Call(call));
        self.ledger.wake_by(deadline);
    }

    /// The client cannot or will not answer: the call ends in a way that its client understands.
    pub(super) fn fail_round(&mut self, now: Moment, wire: Option<WireId>, why: &'static str) {
        let Some(id) = wire else { return };
        TaskPolling::abandon(now, id, &mut self.ledger, &self.link);
        self.withdraw_round(id);
        let Some(ended) = self.finish_call(now, id) else {
            return;
        };
        let (session, call) = (ended.session, ended.call);
        if ended.method() == Method::ToolsCall {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":0,"result":{{"content":[{{"type":"text","text":{}}}],"isError":true}}}}"#,
                quoted(why)
            );
            self.ledger.tell(Tell::Reply {
                session,
                call,
                message: Message::own(text),
                era: ended.era,
            });
        } else {
            self.ledger.fail(session, call, Failure::Unanswered { why });
        }
    }

    /// Withdraws the questions of a round or a polled task. What a server asked by a request it
    /// still waits for.
    pub(super) fn withdraw_round(&mut self, id: WireId) {
        let of_round =
            |open: &OpenQuestion| open.wire == Some(id) && !matches!(open.origin, QuestionOrigin::Server(_));
        for question in self.ledger.questions.find(of_round) {
            if let Some(OpenQuestion { session, .. }) = self.ledger.questions.close(question) {
                self.ledger.tell(Tell::Withdrawn {
                    session,
                    question,
                    message: None,
                });
            }
        }
    }

    // Roots.

    /// Sets the roots for a server that asks when no client can be asked. None at all: there is
    /// nothing to answer with.
    pub fn offer_roots(&mut self, uris: &[String]) {
        self.roots.configure(uris);
    }

    /// Handles a question for roots that no call can carry. Returns whether it was such.
    pub(super) fn handle_roots_question(&mut self, now: Moment, id: &Bytes, message: &Message) -> bool {
        if message.method() != Method::RootsList || self.has_carrier() {
            return false;
        }
        let sole = self.attribution.sole_principal(&self.ledger);
        let known = self.roots.known(&sole);
        if let Some(answer) = known.filter(|answer| self.ledger.has_room(answer.len())) {
            self.link.write_answer(&answer, id, &mut self.ledger);
            return true;
        }
        // It may be about a call of any client that is there, even one that is suspended: an
        // ambiguous question is not guessed.
        let Ok(principal) = sole else {
            return false;
        };
        if self.open_questions() >= self.ledger.limits.questions {
            let why = "too many requests to clients are open";
            self.refuse_unasked(id, error_code::METHOD_NOT_FOUND, why);
            return true;
        }
        let (id, message) = (id.clone(), message.clone());
        self.roots.hold(now, id, message, principal, &mut self.ledger);
        true
    }

    /// Returns whether the question can be put to a client now: one that is asked by requests
    /// always can be, another in a call that may ask.
    fn has_carrier(&self) -> bool {
        let is_asked_by_requests = |session: SessionKey| {
            let entry = self.ledger.sessions.get(session);
            entry.is_some_and(|entry| entry.era.questions() == QuestionStyle::Requests)
        };
        match self.attribution.of_question(Method::RootsList, &self.ledger) {
            Some((session, _)) if is_asked_by_requests(session) => true,
            Some((_, wire)) => wire
                .and_then(|id| self.ledger.call(id))
                .is_some_and(|call| call.method().may_ask()),
            None => {
                let mut sessions = self.ledger.sessions.iter();
                self.ledger.sessions.asking() > 0
                    || sessions.any(|(session, _)| is_asked_by_requests(session))
            }
        }
    }

    /// Returns whether a client that is asked by results can be asked for roots because of this
    /// call.
    fn can_carry_roots(&self, session: SessionKey, method: Method, era: Era) -> bool {
        era.questions() == QuestionStyle::Results
            && method.may_ask()
            && self
                .ledger
                .client(session)
                .is_some_and(|client| client.capabilities.can_answer(Method::RootsList))
    }

    fn take_roots_questions(&mut self, session: SessionKey) -> VecDeque<RootsQuestion> {
        self.roots.take_for(self.ledger.principal(session))
    }

    /// Puts the questions for roots that wait to a client, before its call is sent. Returns whether
    /// there were any.
    pub(super) fn ask_roots_first(&mut self, now: Moment, call: &Call) -> bool {
        if self.roots.open() == 0 || !self.can_carry_roots(call.session, call.message.method(), call.era) {
            return false;
        }
        let asked = self.take_roots_questions(call.session);
        let any = !asked.is_empty();
        for RootsQuestion { id, message, .. } in asked {
            self.put_question(now, call.session, None, QuestionOrigin::Server(id), message);
        }
        any
    }

    /// The same for a call that waited for something else and has just been sent: it carries the
    /// questions from now on. The server may well answer the call only when it has its roots.
    pub(super) fn ask_roots_with(&mut self, now: Moment, id: WireId) {
        if self.roots.open() == 0 {
            return;
        }
        let Some(call) = self.ledger.call(id) else {
            return;
        };
        let session = call.session;
        if self.can_carry_roots(session, call.method(), call.era) {
            for asked in self.take_roots_questions(session) {
                self.put_question(
                    now,
                    session,
                    Some(id),
                    QuestionOrigin::Server(asked.id),
                    asked.message,
                );
            }
        }
    }

    /// Returns whether a call still waits for what its client was asked first.
    pub(super) fn awaits_roots(&self, waiting: &Waiting) -> bool {
        waiting.asked_first && self.ledger.questions.has_any(waiting.call.session)
    }

    /// A client did not answer what it was asked first: it may not be there any more, and its call
    /// is not begun.
    pub(super) fn fail_asked(&mut self, session: SessionKey, why: &'static str) {
        let asked = self
            .ledger
            .waiting
            .take_of(session, |waiting| waiting.asked_first);
        for Waiting { call, .. } in asked {
            self.ledger.fail(session, call.call, Failure::Unanswered { why });
        }
    }

    /// Keeps what a client answered of its roots for the next time, unless it can be asked at any
    /// time.
    pub(super) fn note_roots(&mut self, open: &OpenQuestion, message: &Message) {
        let Some(entry) = self.ledger.sessions.get(open.session) else {
            return;
        };
        if open.method == Method::RootsList
            && entry.era.questions() == QuestionStyle::Results
            && message.kind() == Kind::Result
            && let Some(result) = message.raw_copy(Member::Result)
        {
            self.roots.note_answer(entry.client.principal.clone(), result);
        }
    }
}
