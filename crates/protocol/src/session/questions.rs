//! Questions of the server to the client: on which stream each was sent, and until when a
//! connection has to read it.

use super::line_output::OutgoingLine;
use super::replay::{Audience, Claim};
use super::{Output, Session};
use crate::client_face::legacy;
use crate::exchange::{Ask, CallKey, QuestionKey};
use crate::message::Message;
use crate::time::Moment;
use crate::vec_map::VecMap;

/// Where a question was sent, and until when a connection has to read it.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentQuestion {
    /// The call on whose stream it is; `None` for the session's notices.
    call: Option<CallKey>,
    number: u64,
    /// `None` once it was given to a reader.
    deadline: Option<Moment>,
}

/// The questions that the client has not answered.
///
/// `insert` enters a question that was sent. `remove` ends one that was answered or withdrawn, and
/// `expire` ends those that no connection reads.
#[derive(Debug, Default)]
pub(super) struct Questions {
    put: VecMap<QuestionKey, SentQuestion>,
}

impl Questions {
    pub(super) fn len(&self) -> usize {
        self.put.len()
    }

    fn insert(&mut self, question: QuestionKey, put: SentQuestion) {
        self.put.insert(question, put);
    }

    pub(super) fn remove(&mut self, question: QuestionKey) -> Option<SentQuestion> {
        self.put.remove(&question)
    }

    /// Returns the number of the oldest question among the session's notices.
    pub(super) fn oldest_notice(&self) -> Option<u64> {
        let notices = self.put.values().filter(|put| put.call.is_none());
        notices.map(|put| put.number).min()
    }

    /// Ends the questions that no client has read by their deadline. While the client reads no
    /// stream at all, each question that was read has a deadline too, `until`.
    fn expire(
        &mut self,
        now: Moment,
        until: Moment,
        is_connected: bool,
        is_read: impl Fn(&SentQuestion) -> bool,
    ) -> Vec<(QuestionKey, SentQuestion)> {
        let mut expired = Vec::new();
        self.put.retain(|question, put| {
            match put.deadline {
                None => put.deadline = (!is_connected).then_some(until),
                Some(_) if is_connected && is_read(put) => put.deadline = None,
                Some(deadline) if deadline <= now => {
                    expired.push((*question, *put));
                    return false;
                }
                Some(_) => {}
            }
            true
        });
        expired
    }
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
        let mut put = SentQuestion {
            call,
            number: 0,
            deadline: None,
        };
        if self.reads_lines() {
            // It is on its way: there is no stream that a client would have to read.
            self.questions.insert(question, put);
            return self.send_line(OutgoingLine::Question(data));
        }
        let until = now.after(self.limits.question_timeout);
        if let Some(key) = call
            && self.relate(now, key, || data.clone())
            && let Some(stream) = self.calls.stream(key)
        {
            put.number = stream.newest();
            put.deadline = (!stream.is_connected()).then_some(until);
        } else {
            let listener = self.notices.connected_streams().next_back();
            put.call = None;
            put.number = self.notice(now, &data, Audience::One(listener));
            put.deadline = listener.is_none().then_some(until);
        }
        self.questions.insert(question, put);
    }

    /// Withdraws a question from the client that has read it. If none has, it is taken back.
    pub(super) fn withdraw(&mut self, now: Moment, question: QuestionKey, message: Option<&Message>) {
        let Some(put) = self.questions.remove(question) else {
            return;
        };
        let data = legacy::lower_withdrawal(question, message);
        let listener = match put.call {
            _ if self.reads_lines() => None,
            Some(call) if self.relate(now, call, || data.clone()) => return,
            Some(_) => self.notices.connected_streams().next_back(),
            None => match self.notices.claim(put.number) {
                Claim::Unclaimed => return self.notices.retract(put.number),
                Claim::By(stream) => Some(stream),
                Claim::Never => return,
            },
        };
        self.notice(now, &data, Audience::One(listener));
    }

    /// Abandons questions that no connection has read in time, also if the client has closed its
    /// last stream.
    pub(super) fn give_up_questions(&mut self, now: Moment) {
        if self.questions.len() == 0 || self.reads_lines() {
            return;
        }
        let until = now.after(self.limits.question_timeout);
        let is_connected = self.calls.is_connected() || self.notices.is_connected();
        let (calls, notices) = (&self.calls, &self.notices);
        let expired = self
            .questions
            .expire(now, until, is_connected, |put| match put.call {
                // If the call has ended, so has the interest in what it asked.
                Some(call) => calls
                    .stream(call)
                    .is_some_and(|stream| stream.is_read(put.number)),
                None => matches!(notices.claim(put.number), Claim::By(_)),
            });
        for (question, put) in expired {
            match put.call {
                Some(call) => self.calls.retract(call, put.number),
                None => self.notices.retract(put.number),
            }
            self.outputs.push_back(Output::Ask(Box::new(Ask::Unanswerable {
                session: self.key,
                question,
            })));
        }
    }
}
