//! Roots that a legacy server asks for while no call is there that could carry the question.
//!
//! Servers like to ask right after the handshake. A modern client cannot be asked then: only an answer to one of its calls can
//! ask it. So the server is told what a client of this lane answered before, or what is configured; else the question waits for
//! the next call of a client that has roots, and is put to it before the call is sent. Nothing has run by then, so the
//! client's retry begins the call.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{Matter, Multiplexer, OpenQuestion, Pending, Waiting, legacy};
use crate::backend_face::WireId;
use crate::error_code;
use crate::exchange::{Call, Failure, Principal, SessionKey, Tell};
use crate::message::{Kind, Member, Message, quoted};
use crate::method::Method;
use crate::time::Moment;
use crate::version::Era;

/// What is known of roots, and who wants to know.
#[derive(Debug, Default)]
pub(super) struct Roots {
    /// The raw result for a server that nobody else answers.
    configured: Option<Bytes>,
    /// What a modern client last answered.
    answered: Option<(Principal, Bytes)>,
    asked: VecDeque<Asked>,
}

#[derive(Debug)]
struct Asked {
    /// The raw id that the server gave it.
    id: Bytes,
    message: Message,
    /// The only one it can be for; `None` if nobody was there, so that it is about no call at all.
    principal: Option<Principal>,
    until: Moment,
}

/// A question could be for several.
#[derive(Debug)]
pub(super) struct Several;

impl Roots {
    pub(super) fn open(&self) -> usize {
        self.asked.len()
    }

    /// The server has gone, and with it who would hear an answer.
    pub(super) fn lose_link(&mut self) {
        self.asked.clear();
    }
}

impl Multiplexer {
    /// Gives the roots for a server that asks when no client can be asked. None at all: there is nothing to answer with.
    pub fn offer_roots(&mut self, uris: &[String]) {
        let roots: Vec<String> = uris
            .iter()
            .map(|uri| format!(r#"{{"uri":{}}}"#, quoted(uri)))
            .collect();
        self.roots.configured =
            (!roots.is_empty()).then(|| Bytes::from(format!(r#"{{"roots":[{}]}}"#, roots.join(","))));
    }

    /// Deals with a question for roots that no call can carry. Gives whether it was such.
    pub(super) fn handle_roots_question(&mut self, now: Moment, id: &Bytes, message: &Message) -> bool {
        if message.method() != Method::RootsList || self.has_carrier() {
            return false;
        }
        if let Some(result) = self.known_roots() {
            let text = [br#"{"jsonrpc":"2.0","id":0,"result":"#, &result[..], b"}"].concat();
            if let Ok(answer) = Message::scan(text.into())
                && self.has_room(answer.len())
            {
                legacy::write_answer(self.outgoing.end(), &answer, id);
                return true;
            }
        }
        // It may be about a call of anyone who is there, be it one that rests: what cannot be told apart is not guessed.
        let Ok(principal) = self.sole_principal() else {
            return false;
        };
        if self.open_questions() >= self.limits.questions {
            let why = "too many requests to clients are open";
            self.refuse_unasked(id, error_code::METHOD_NOT_FOUND, why);
            return true;
        }
        let until = now.after(self.limits.request_timeout);
        self.roots.asked.push_back(Asked {
            id: id.clone(),
            message: message.clone(),
            principal,
            until,
        });
        self.wake_by(until);
        true
    }

    /// Whether the question can be put to somebody now: a legacy session always can be, a modern client in a call that
    /// may ask.
    fn has_carrier(&self) -> bool {
        let legacy = |session: &SessionKey| {
            self.attached
                .get(session)
                .is_some_and(|attached| attached.words == Era::Legacy)
        };
        match self.attribute(Method::RootsList) {
            Some((session, _)) if legacy(&session) => true,
            Some((_, wire)) => matches!(
                wire.and_then(|id| self.pending.get(&id)),
                Some(Pending::Call(call)) if call.method.may_ask()
            ),
            None => self.asking_sessions > 0 || self.attached.keys().any(legacy),
        }
    }

    /// Whoever everything the server says is for: one principal, or nobody. An error: it could be several.
    pub(super) fn sole_principal(&self) -> Result<Option<Principal>, Several> {
        let mut principals = self.attached.values().map(|attached| &attached.client.principal);
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

    /// What the server is told without anybody being asked. What one principal answered is not told while another is
    /// there.
    fn known_roots(&self) -> Option<Bytes> {
        let sole = self.sole_principal();
        let answered = self.roots.answered.as_ref().filter(|(principal, _)| match &sole {
            Ok(Some(sole)) => sole == principal,
            Ok(None) => true,
            Err(Several) => false,
        });
        answered
            .map(|(_, result)| result.clone())
            .or_else(|| self.roots.configured.clone())
    }

    /// Puts to a modern client what the server wants to know, before its call is sent. Gives whether there was something.
    pub(super) fn ask_roots_first(&mut self, now: Moment, call: &Call) -> bool {
        let able = call.words == Era::Modern
            && call.message.method().may_ask()
            && self
                .attached
                .get(&call.session)
                .is_some_and(|attached| attached.client.capabilities.can_answer(Method::RootsList));
        if !able {
            return false;
        }
        let asked = self.take_asked(call.session);
        let any = !asked.is_empty();
        for Asked { id, message, .. } in asked {
            self.put_question(now, call.session, None, super::Asker::Server(id), message);
        }
        any
    }

    /// The same for a call that waited for something else and has just been sent: it carries the question from now on.
    /// The server may well answer the call only when it has its roots.
    pub(super) fn ask_roots_with(&mut self, now: Moment, id: WireId) {
        if self.roots.asked.is_empty() {
            return;
        }
        let Some(Pending::Call(call)) = self.pending.get(&id) else {
            return;
        };
        let session = call.session;
        let able = call.words == Era::Modern
            && call.method.may_ask()
            && self
                .attached
                .get(&session)
                .is_some_and(|attached| attached.client.capabilities.can_answer(Method::RootsList));
        if able {
            for asked in self.take_asked(session) {
                self.put_question(
                    now,
                    session,
                    Some(id),
                    super::Asker::Server(asked.id),
                    asked.message,
                );
            }
        }
    }

    /// What may be for this session.
    fn take_asked(&mut self, session: SessionKey) -> VecDeque<Asked> {
        if self.roots.asked.is_empty() {
            return VecDeque::new();
        }
        let principal = self
            .attached
            .get(&session)
            .map(|attached| &attached.client.principal);
        let (taken, kept) = std::mem::take(&mut self.roots.asked)
            .into_iter()
            .partition(|asked| asked.principal.is_none() || asked.principal.as_ref() == principal);
        self.roots.asked = kept;
        taken
    }

    /// Whether a call still waits for what its client was asked first.
    pub(super) fn awaits_roots(&self, waiting: &Waiting) -> bool {
        waiting.asked_first
            && self
                .questions
                .values()
                .any(|open| open.session == waiting.call.session)
    }

    /// A client did not answer what it was asked first: it may not be there any more, and its call is not begun.
    pub(super) fn fail_asked(&mut self, session: SessionKey, why: &'static str) {
        let asked = |waiting: &Waiting| waiting.asked_first && waiting.call.session == session;
        while let Some(at) = self.waiting.iter().position(asked) {
            if let Some(Waiting { call, .. }) = self.waiting.remove(at) {
                self.tell(Tell::Failed {
                    session,
                    call: call.call,
                    failure: Failure::Unanswered { why },
                });
            }
        }
    }

    /// A client has answered. What it said of its roots is kept for the next time.
    pub(super) fn note_roots(&mut self, open: &OpenQuestion, message: &Message) {
        let Some(attached) = self.attached.get(&open.session) else {
            return;
        };
        if open.method == Method::RootsList
            && attached.words == Era::Modern
            && message.kind() == Kind::Result
            && let Some(result) = message.raw_copy(Member::Result)
        {
            self.roots.answered = Some((attached.client.principal.clone(), result));
        }
    }

    /// The server no longer wants to know. Gives whether it was one of these.
    pub(super) fn withdraw_roots(&mut self, id: &[u8]) -> bool {
        let before = self.roots.asked.len();
        self.roots.asked.retain(|asked| asked.id != id);
        self.roots.asked.len() < before
    }

    /// Refuses what no call came for.
    pub(super) fn expire_roots(&mut self, now: Moment) {
        while let Some(asked) = self.roots.asked.pop_front_if(|asked| asked.until <= now) {
            let why = "no client request is in progress";
            self.refuse_unasked(&asked.id, error_code::METHOD_NOT_FOUND, why);
        }
        if let Some(asked) = self.roots.asked.front() {
            self.wake_by(asked.until);
        }
    }
}
