//! Roots that a server asks for while no call is there that could carry the question.
//!
//! Servers like to ask right after the handshake. A client that is asked by results cannot be asked
//! then: only an answer to one of its calls can ask it. So the server is sent what a client of this
//! instance answered before, or what is configured; else the question waits for the next call of a
//! client that has roots, and is put to it before the call is sent. Nothing has run by then, so the
//! client's retry begins the call.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::error_code;
use crate::exchange::Principal;
use crate::message::{Message, quoted};
use crate::time::Moment;

use super::ledger::Ledger;
use super::link::Link;

/// What is known of roots, and the questions for them that wait.
#[derive(Debug, Default)]
pub(super) struct Roots {
    /// The raw result for a server that no client answers.
    configured: Option<Bytes>,
    /// What a client that is asked by results last answered.
    answered: Option<(Principal, Bytes)>,
    asked: VecDeque<RootsQuestion>,
}

/// A question for roots that waits for a call.
#[derive(Debug)]
pub(super) struct RootsQuestion {
    /// The raw id that the server gave it.
    pub(super) id: Bytes,
    pub(super) message: Message,
    /// The only principal it can be for; `None` if no client was there, so that it is about no call
    /// at all.
    principal: Option<Principal>,
    until: Moment,
}

/// A question could be for several principals.
#[derive(Debug)]
pub(super) struct SeveralPrincipals;

impl Roots {
    /// Sets the roots for a server that asks when no client can be asked. None at all: there is
    /// nothing to answer with.
    pub(super) fn configure(&mut self, uris: &[String]) {
        let roots: Vec<String> = uris
            .iter()
            .map(|uri| format!(r#"{{"uri":{}}}"#, quoted(uri)))
            .collect();
        self.configured =
            (!roots.is_empty()).then(|| Bytes::from(format!(r#"{{"roots":[{}]}}"#, roots.join(","))));
    }

    /// Returns how many questions wait.
    pub(super) fn open(&self) -> usize {
        self.asked.len()
    }

    /// Returns the answer for a server that asks without a call. `sole` is the only principal that
    /// it can be for; what one principal answered is not sent while another is there.
    pub(super) fn known(&self, sole: &Result<Option<Principal>, SeveralPrincipals>) -> Option<Message> {
        let answered = self.answered.as_ref().filter(|(principal, _)| match sole {
            Ok(Some(sole)) => sole == principal,
            Ok(None) => true,
            Err(SeveralPrincipals) => false,
        });
        let result = answered.map(|(_, result)| result).or(self.configured.as_ref())?;
        let text = [br#"{"jsonrpc":"2.0","id":0,"result":"#, &result[..], b"}"].concat();
        Message::scan(text.into()).ok()
    }

    /// Keeps a question until a call comes that can carry it.
    pub(super) fn hold(
        &mut self,
        now: Moment,
        id: Bytes,
        message: Message,
        principal: Option<Principal>,
        ledger: &mut Ledger,
    ) {
        let until = now.after(ledger.limits.own_timeout());
        self.asked.push_back(RootsQuestion {
            id,
            message,
            principal,
            until,
        });
        ledger.wake_by(until);
    }

    /// Takes the questions that may be for this principal.
    pub(super) fn take_for(&mut self, principal: Option<&Principal>) -> VecDeque<RootsQuestion> {
        if self.asked.is_empty() {
            return VecDeque::new();
        }
        let (taken, kept) = std::mem::take(&mut self.asked)
            .into_iter()
            .partition(|asked| asked.principal.is_none() || asked.principal.as_ref() == principal);
        self.asked = kept;
        taken
    }

    /// Keeps the raw result of a client's answer for the next time.
    pub(super) fn note_answer(&mut self, principal: Principal, result: Bytes) {
        self.answered = Some((principal, result));
    }

    /// The server no longer wants to know. Returns whether it was one of these.
    pub(super) fn withdraw(&mut self, id: &[u8]) -> bool {
        let before = self.asked.len();
        self.asked.retain(|asked| asked.id != id);
        self.asked.len() < before
    }

    /// Refuses the questions that no call came for.
    pub(super) fn expire(&mut self, now: Moment, ledger: &mut Ledger, link: &Link) {
        while let Some(asked) = self.asked.pop_front_if(|asked| asked.until <= now) {
            let why = "no client request is in progress";
            link.refuse_unasked(&asked.id, error_code::METHOD_NOT_FOUND, why, ledger);
        }
        if let Some(asked) = self.asked.front() {
            ledger.wake_by(asked.until);
        }
    }

    /// The server has gone, and with it the reader of an answer.
    pub(super) fn lose_link(&mut self) {
        self.asked.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_of_a_principal_are_sent_only_where_no_other_can_be_meant() {
        let (ann, bob) = (Principal::named("ann"), Principal::named("bob"));
        let mut roots = Roots::default();
        roots.note_answer(ann.clone(), Bytes::from_static(br#"{"roots":[]}"#));
        let answers = |sole| roots.known(&sole).is_some();
        assert!(answers(Ok(Some(ann))));
        assert!(answers(Ok(None)), "no other principal has used the server");
        assert!(!answers(Ok(Some(bob))));
        assert!(!answers(Err(SeveralPrincipals)));
    }
}
