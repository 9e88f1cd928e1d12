//! The rounds of an errand: questions go out with the end of one request, answers come back with another.

use bytes::Bytes;

use super::{Ending, Errand, Stage};
use crate::client_face::modern::{self, Meaning};
use crate::exchange::{Ask, QuestionKey};
use crate::message::{Member, Message};
use crate::object::Object;
use crate::session::Accepts;
use crate::time::Moment;

/// Why a retry is not taken. In each case nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryRefusal {
    /// Not this errand's request, or not its present round.
    Mismatch,
    /// An answer that does not fit its question.
    BadAnswer,
}

/// A question that the client has not answered.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) addressee: Addressee,
    pub(super) message: Message,
}

/// Whom the client's answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Addressee {
    /// The server, which waits for it.
    Server(QuestionKey),
    /// The errand itself, which then sends the call anew.
    Detour,
}

impl Errand {
    /// What the client is to call one more question.
    pub(super) fn new_key(&mut self) -> String {
        self.next_key += 1;
        format!("k{}", self.next_key - 1)
    }

    /// Only some requests can be answered by a question (2026-07-28, multi round-trip requests).
    pub(super) fn may_be_asked(&self) -> bool {
        matches!(self.meaning, Meaning::Call { .. }) && self.original.method().may_ask()
    }

    /// Gives the server's questions to the client. The attached request ends with them; the errand is parked.
    pub fn park(&mut self, state: &str) -> Bytes {
        let questions = self
            .asked
            .iter()
            .map(|(key, asked)| (key.as_str(), &asked.message));
        let body = modern::lower_input_required(self.id(), questions, state);
        self.given = true;
        self.stage = Stage::Parked;
        self.record(Ending::InputRequired, body.clone());
        self.streaming = false;
        body
    }

    /// The client comes back. The errand goes on under the new request.
    pub fn retry(
        &mut self,
        now: Moment,
        message: Message,
        round: u32,
        accepts: Accepts,
    ) -> Result<Vec<Ask>, RetryRefusal> {
        if !self.is_parked() || !self.given || round != self.round || !self.agrees(&message) {
            return Err(RetryRefusal::Mismatch);
        }
        let params = message.object(Member::Params);
        let raw = params.get("inputResponses").unwrap_or("{}").to_owned();
        let responses = Object::parse(raw.as_bytes()).ok_or(RetryRefusal::BadAnswer)?;
        let mut answers = Vec::new();
        for (key, raw) in responses.iter() {
            // Keys that were never asked about, or no longer, are nobody's business.
            let Some(asked) = self.asked.get(key) else {
                continue;
            };
            if !modern::is_answer(asked.message.method(), raw) {
                return Err(RetryRefusal::BadAnswer);
            }
            answers.push((key.to_owned(), asked.addressee, raw.to_owned()));
        }
        let mut asks = Vec::new();
        let mut visited = None;
        for (key, addressee, raw) in answers {
            let Addressee::Server(question) = addressee else {
                visited = Some(visited.unwrap_or(true) && modern::is_consent(&raw));
                self.asked.remove(&key);
                continue;
            };
            let Ok(answer) = Message::scan(Bytes::from(format!(
                r#"{{"jsonrpc":"2.0","id":0,"result":{raw}}}"#
            ))) else {
                return Err(RetryRefusal::BadAnswer);
            };
            self.asked.remove(&key);
            asks.push(Ask::Answer {
                session: self.session,
                question,
                message: answer,
            });
        }
        self.round += 1;
        self.given = false;
        self.stage = Stage::Running;
        self.level = modern::log_level(&message);
        self.message = message;
        self.started = now;
        self.accepts = accepts;
        if let Some(event) = self.kept.take().and_then(|kept| self.event(&kept))
            && self.stream()
        {
            self.push(event);
        }
        if let Some(visited) = visited {
            asks.extend(self.end_detour(visited));
        }
        Ok(asks)
    }

    /// Whether a retry asks for the same as the first request did.
    fn agrees(&self, message: &Message) -> bool {
        let subject = |message: &Message| {
            let params = message.object(Member::Params);
            let read = |name: &str| {
                params
                    .get(name)
                    .and_then(|raw| serde_json::from_str::<serde_json::Value>(raw).ok())
            };
            (message.method(), read("name"), read("uri"), read("arguments"))
        };
        subject(message) == subject(&self.original)
    }
}
