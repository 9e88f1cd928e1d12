//! Questions of the server on their way to the client: where each was put, and when nobody will come for it.

use bytes::Bytes;

use super::calls::{OpenCall, Stage};
use super::replay::{Audience, Claim, StreamKey};
use super::{Output, Said, Session};
use crate::client_face::legacy;
use crate::exchange::{Ask, CallKey, QuestionKey};
use crate::message::Message;
use crate::time::Moment;

/// Where a question was put, and until when somebody has to have come for it.
#[derive(Debug)]
pub(super) struct Put {
    /// The call on whose stream it is; `None` for the session's notices.
    pub(super) call: Option<CallKey>,
    pub(super) number: u64,
    /// `None` once it was given to a reader.
    pub(super) deadline: Option<Moment>,
}

impl Session {
    pub(super) fn put_question(
        &mut self,
        now: Moment,
        call: Option<CallKey>,
        question: QuestionKey,
        message: &Message,
    ) {
        let data = legacy::lower_question(question, message);
        if self.reads_lines() {
            self.say_question(call, question, data);
            return;
        }
        let patience = now.after(self.limits.question_patience);
        if let Some(key) = call
            && self.relate(now, key, || data.clone())
            && let Some(stream) = self.open_stream(key)
        {
            let put = Put {
                call,
                number: stream.log.newest(),
                deadline: (!stream.attended).then_some(patience),
            };
            self.questions.insert(question, put);
            return;
        }
        let listener = self.liveliest_listener();
        let number = self.notice(now, &data, Audience::One(listener));
        let put = Put {
            call: None,
            number,
            deadline: listener.is_none().then_some(patience),
        };
        self.questions.insert(question, put);
    }

    /// Tells whoever was given a question that it is withdrawn; if nobody was, it is taken back.
    pub(super) fn withdraw(&mut self, now: Moment, put: &Put, data: &Bytes) {
        if self.reads_lines() {
            self.say(Said::Notice(data.clone()));
            return;
        }
        if let Some(call) = put.call {
            if !self.relate(now, call, || data.clone()) {
                let listener = self.liveliest_listener();
                self.notice(now, data, Audience::One(listener));
            }
            return;
        }
        match self.notices.claim(put.number) {
            Claim::Unclaimed => self.notices.retract(put.number),
            Claim::By(stream) => {
                self.notice(now, data, Audience::One(Some(stream)));
            }
            Claim::Never => {}
        }
    }

    /// The stream opened last is the one most likely to be alive.
    fn liveliest_listener(&self) -> Option<StreamKey> {
        self.listeners
            .iter()
            .rev()
            .find(|(_, listener)| listener.attended)
            .map(|(key, _)| *key)
    }

    /// Returns whether a client reads any stream of this session.
    fn is_attended(&self) -> bool {
        let waits = |call: &OpenCall| match &call.stage {
            Stage::Undecided | Stage::Complete { .. } => call.attended,
            Stage::Stream(stream) => stream.attended,
        };
        self.calls.values().any(|call| waits(call))
            || self.listeners.values().any(|listener| listener.attended)
    }

    /// Gives up the questions that no client came for, or whose client has closed its last stream and stays away.
    pub(super) fn give_up_questions(&mut self, now: Moment) {
        if self.questions.is_empty() || self.reads_lines() {
            return;
        }
        let mut given_up = Vec::new();
        let attended = self.is_attended();
        let patience = now.after(self.limits.question_patience);
        for (question, put) in self.questions.iter_mut() {
            let Some(deadline) = put.deadline else {
                put.deadline = (!attended).then_some(patience);
                continue;
            };
            let heard = match put.call {
                Some(call) => match self.calls.get(&call).map(|call| &call.stage) {
                    Some(Stage::Stream(stream)) => stream.cursor >= put.number,
                    // The call has ended, and with it the interest in what it asked.
                    Some(Stage::Undecided | Stage::Complete { .. }) | None => false,
                },
                None => matches!(self.notices.claim(put.number), Claim::By(_)),
            };
            if heard && attended {
                put.deadline = None;
            } else if deadline <= now {
                given_up.push(*question);
            }
        }
        for question in given_up {
            let Some(put) = self.questions.remove(&question) else {
                continue;
            };
            match put.call {
                Some(call) => {
                    if let Some(Stage::Stream(stream)) = self.calls.get_mut(&call).map(|call| &mut call.stage)
                    {
                        stream.log.retract(put.number);
                    }
                }
                None => self.notices.retract(put.number),
            }
            self.outputs.push_back(Output::Ask(Box::new(Ask::Unanswerable {
                session: self.key,
                question,
            })));
        }
    }
}
