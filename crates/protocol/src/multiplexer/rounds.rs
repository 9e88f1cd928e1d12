//! Rounds: a modern server asks by answering `input_required`, a legacy client is asked by requests.
//!
//! The server keeps nothing. What it must be given back, and what the client answered so far, is kept here with
//! the call; when everything has been answered the call is said again, under a new id.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::{Asker, Multiplexer, Pending};
use crate::backend_face::modern::{self, InputRequired};
use crate::backend_face::{Outgoing, WireId};
use crate::exchange::{Failure, Tell};
use crate::message::{Kind, Member, Message, quoted};
use crate::method::Method;
use crate::time::Moment;
use crate::version::Era;

/// How often a server may ask in one call.
const MAX_ROUNDS: u32 = 16;
/// How long to wait before saying a call again of which the server only said "not yet".
const PAUSE: Duration = Duration::from_millis(250);

/// What a server wants to know, and what the client has answered so far.
#[derive(Debug)]
pub(super) struct Round {
    state: Option<Bytes>,
    /// Raw results by key; `None` while the client thinks.
    answers: BTreeMap<String, Option<Bytes>>,
    /// When to go on, if there is nothing to ask.
    pub(super) resume_at: Option<Moment>,
}

impl Multiplexer {
    /// Begins a round if the server asks for input and the client must be asked by requests. A client of the
    /// server's own era gets the answer as it is.
    pub(super) fn begin_round(&mut self, now: Moment, id: WireId, message: &Message) -> bool {
        let Some(Pending::Call(call)) = self.pending.get_mut(&id) else {
            return false;
        };
        if call.round.is_some() {
            // An answer was given already; this is a second one.
            self.counters.strays += 1;
            return true;
        }
        if call.words != Era::Legacy {
            return false;
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
        let resume_at = questions.is_empty().then(|| now.after(PAUSE));
        call.round = Some(Round {
            state,
            answers: questions.keys().map(|key| (key.clone(), None)).collect(),
            resume_at,
        });
        if let Some(at) = resume_at {
            self.wake_by(at);
        }
        let capabilities = self
            .attached
            .get(&session)
            .map(|attached| attached.client.capabilities.clone());
        for (key, question) in questions {
            let Ok(question) = Message::scan(question) else {
                self.fail_round(now, Some(id), "the server asked something that is no request");
                return true;
            };
            let able = capabilities
                .as_ref()
                .is_some_and(|can| can.can_answer(question.method()) && can.can_answer_in_kind(&question));
            if !able || self.open_questions() >= self.limits.questions {
                self.fail_round(now, Some(id), "the server asked for what this client cannot do");
                return true;
            }
            let question = modern::with_elicitation_id(question, self.next_question);
            self.put_question(now, session, Some(id), Asker::Round(key), question);
        }
        true
    }

    /// The client has answered one of a round's questions.
    pub(super) fn handle_input(&mut self, now: Moment, wire: Option<WireId>, key: &str, message: &Message) {
        let Some((id, Pending::Call(call))) = wire.and_then(|id| Some((id, self.pending.get_mut(&id)?)))
        else {
            return;
        };
        let Some(round) = &mut call.round else { return };
        match (message.kind(), message.raw_copy(Member::Result)) {
            (Kind::Result, Some(result)) => {
                round.answers.insert(key.to_owned(), Some(result));
                if round.answers.values().all(Option::is_some) {
                    self.next_round(now, id);
                }
            }
            _ => self.fail_round(now, wire, "the client did not answer what the server asked"),
        }
    }

    /// Says a call again, with what was answered.
    pub(super) fn next_round(&mut self, now: Moment, id: WireId) {
        let Some(Pending::Call(mut call)) = self.pending.remove(&id) else {
            return;
        };
        let Some(round) = call.round.take() else { return };
        let mut extra = Vec::new();
        if !round.answers.is_empty() {
            let answers: Vec<String> = round
                .answers
                .iter()
                .map(|(key, raw)| {
                    format!(
                        "{}:{}",
                        quoted(key),
                        String::from_utf8_lossy(raw.as_deref().unwrap_or(b"null"))
                    )
                })
                .collect();
            extra.push((
                "inputResponses",
                Bytes::from(format!("{{{}}}", answers.join(","))),
            ));
        }
        if let Some(state) = round.state {
            extra.push(("requestState", state));
        }
        let id = self.next_wire();
        let Some(attached) = self.attached.get(&call.session) else {
            return;
        };
        let line = Outgoing {
            message: &call.message,
            words: call.words,
            id,
            client: &attached.client,
            level: self.interests.level(call.session),
            extra: &extra,
        };
        self.face.write_call(&mut self.outgoing, &line);
        call.deadline = now.after(self.limits.call_timeout(call.reads_events));
        call.horizon = now.after(self.limits.longest_call(call.reads_events));
        let deadline = call.deadline;
        self.pending.insert(id, Pending::Call(call));
        self.wake_by(deadline);
    }

    /// The client cannot or will not answer: the call ends in a way that its client understands.
    pub(super) fn fail_round(&mut self, now: Moment, wire: Option<WireId>, why: &'static str) {
        let Some(id) = wire else { return };
        self.abandon_task(now, id);
        self.withdraw_round(id);
        let Some(settled) = self.settle(now, id) else {
            return;
        };
        let (session, call) = (settled.session, settled.call);
        if settled.method == Method::ToolsCall {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":0,"result":{{"content":[{{"type":"text","text":{}}}],"isError":true}}}}"#,
                quoted(why)
            );
            let message = Message::own(text);
            self.tell(Tell::Reply {
                session,
                call,
                message,
                words: Era::Legacy,
            });
        } else {
            self.tell(Tell::Failed {
                session,
                call,
                failure: Failure::Unanswered { why },
            });
        }
    }

    /// Nobody wants the answers to a round's questions any more. What a server asked by a request it still waits for.
    pub(super) fn withdraw_round(&mut self, id: WireId) {
        let open: Vec<_> = self
            .questions
            .iter()
            .filter(|(_, open)| open.wire == Some(id) && !matches!(open.asker, Asker::Server(_)))
            .map(|(key, open)| (*key, open.session))
            .collect();
        for (question, session) in open {
            self.questions.remove(&question);
            self.tell(Tell::Withdrawn {
                session,
                question,
                message: None,
            });
        }
    }
}
