//! Rounds of input: questions are sent with the end of one HTTP request, and answers come with the
//! next one.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::response::Response;
use super::{Aim, Ending, ModernRequest, Stage};
use crate::client_face::modern;
use crate::exchange::{Ask, QuestionKey};
use crate::message::{Member, Message};
use crate::object::Object;
use crate::session::Accepts;
use crate::time::Moment;

/// Why a retry is not taken. In each case nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryRefusal {
    /// Another request than the first one, or not the present round.
    Mismatch,
    /// An answer that does not fit its question.
    BadAnswer,
}

/// How long a question waits for others that the server asks at the same time: on the wire they
/// come one by one, but the client should be asked all of them in one round.
const SIBLINGS: Duration = Duration::from_millis(20);

/// Where the client's answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Addressee {
    /// The server, which waits for it.
    Server(QuestionKey),
    /// This machine, which then sends the call anew.
    UrlElicitation,
}

/// The questions that the client has not answered, and the number of the round that gives them out.
///
/// `ask` and `withdraw` take what the server does. The questions are given out when the first of
/// them `is_due`, so that others can join it. `answer` takes the client's answers and begins the
/// next round.
#[derive(Debug, Default)]
pub(super) struct InputRounds {
    /// By the key that the client knows the question by.
    asked: BTreeMap<String, (Addressee, Message)>,
    /// When the questions are to be given out, if there are any.
    due: Moment,
    /// How many questions were asked, in all rounds.
    keys: u32,
    round: u32,
}

/// The client's answers to the questions of a round.
#[derive(Debug, Default)]
struct Answers {
    to_server: Vec<(QuestionKey, Message)>,
    /// Whether all URLs that were asked about have been visited, if any was.
    visited: Option<bool>,
}

impl InputRounds {
    pub(super) const fn round(&self) -> u32 {
        self.round
    }

    pub(super) fn is_open(&self) -> bool {
        !self.asked.is_empty()
    }

    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.next_deadline().is_some_and(|due| due <= now)
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.is_open().then_some(self.due)
    }

    pub(super) fn ask(&mut self, now: Moment, addressee: Addressee, message: Message) {
        if !self.is_open() {
            self.due = now.after(SIBLINGS);
        }
        self.keys += 1;
        let key = format!("k{}", self.keys);
        self.asked.insert(key, (addressee, message));
    }

    pub(super) fn withdraw(&mut self, question: QuestionKey) {
        let withdrawn = Addressee::Server(question);
        self.asked.retain(|_, (addressee, _)| *addressee != withdrawn);
    }

    /// Forgets all questions.
    pub(super) fn clear(&mut self) {
        self.asked.clear();
    }

    /// Takes all questions out.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (Addressee, Message)> + use<> {
        std::mem::take(&mut self.asked).into_values()
    }

    fn questions(&self) -> impl Iterator<Item = (&str, &Message)> {
        let asked = self.asked.iter();
        asked.map(|(key, (_, message))| (key.as_str(), message))
    }

    /// Takes the answers of a retry. If one does not fit its question, nothing has changed.
    fn answer(&mut self, now: Moment, responses: &Object) -> Result<Answers, RetryRefusal> {
        let mut answers = Answers::default();
        let mut answered = Vec::new();
        for (key, raw) in responses.iter() {
            // Keys that were never asked about, or no longer, are ignored.
            let Some((addressee, question)) = self.asked.get(key) else {
                continue;
            };
            if !modern::is_answer(question.method(), raw) {
                return Err(RetryRefusal::BadAnswer);
            }
            match *addressee {
                Addressee::Server(question) => {
                    let answer = format!(r#"{{"jsonrpc":"2.0","id":0,"result":{raw}}}"#);
                    let answer = Message::scan(answer.into()).map_err(|_| RetryRefusal::BadAnswer)?;
                    answers.to_server.push((question, answer));
                }
                Addressee::UrlElicitation => {
                    answers.visited = Some(answers.visited.unwrap_or(true) && modern::is_consent(raw));
                }
            }
            answered.push(key);
        }
        for key in answered {
            self.asked.remove(key);
        }
        self.round += 1;
        // Those that are left are asked again, together with what the server asks because of the
        // answers.
        self.due = now.after(SIBLINGS);
        Ok(answers)
    }
}

impl ModernRequest {
    /// Only some requests can be answered by a question (2026-07-28, multi round-trip requests).
    pub(super) fn may_be_asked(&self) -> bool {
        matches!(self.aim, Aim::Call) && self.original.method().may_ask()
    }

    /// Returns the server's questions for the client. The attached request ends with them, and the
    /// call waits for the client until `until`. Returns `None`, and changes nothing, if there is no
    /// question any more: the server may have answered or withdrawn it since the questions were
    /// due. The request is then polled again.
    pub fn park(&mut self, state: &str, until: Moment) -> Option<Bytes> {
        let is_running = matches!(self.stage, Stage::Running) && self.outcome.is_none();
        if !is_running || !self.rounds.is_open() {
            return None;
        }
        let body = modern::lower_input_required(self.response.id(), self.rounds.questions(), state);
        self.stage = Stage::Parked { newest: None, until };
        self.record(Ending::InputRequired, body.clone());
        Some(body)
    }

    /// Continues the call under the new request of its client.
    pub fn retry(
        &mut self,
        now: Moment,
        message: Message,
        round: u32,
        accepts: Accepts,
    ) -> Result<Vec<Ask>, RetryRefusal> {
        let Stage::Parked { newest, .. } = &mut self.stage else {
            return Err(RetryRefusal::Mismatch);
        };
        if round != self.rounds.round() || !agree(&message, &self.original) {
            return Err(RetryRefusal::Mismatch);
        }
        let params = message.object(Member::Params);
        let responses = params.get("inputResponses").unwrap_or("{}");
        let responses = Object::parse(responses.as_bytes()).ok_or(RetryRefusal::BadAnswer)?;
        let answers = self.rounds.answer(now, &responses)?;
        let newest = newest.take();
        self.stage = Stage::Running;
        self.response = Response::new(now, message, accepts);
        let newest = newest.and_then(|newest| self.response.event(&newest, self.rounds.round()));
        if let Some(event) = newest
            && self.response.stream()
        {
            self.push(event);
        }
        let session = self.session;
        let to_server = answers.to_server.into_iter();
        let mut asks: Vec<Ask> = to_server
            .map(|(question, message)| Ask::Answer {
                session,
                question,
                message,
            })
            .collect();
        if let Some(visited) = answers.visited {
            asks.extend(self.end_url_elicitation(visited));
        }
        Ok(asks)
    }
}

/// Returns whether a retry asks for the same as the first request did.
fn agree(retry: &Message, original: &Message) -> bool {
    let subject = |message: &Message| {
        let params = message.object(Member::Params);
        let read = |name: &str| {
            params
                .get(name)
                .and_then(|raw| serde_json::from_str::<serde_json::Value>(raw).ok())
        };
        (message.method(), read("name"), read("uri"), read("arguments"))
    };
    subject(retry) == subject(original)
}
