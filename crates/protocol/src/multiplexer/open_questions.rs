//! Questions that were put to clients and have no answer yet.

use std::collections::BTreeMap;

use super::state::{OpenQuestion, QuestionOrigin};
use crate::exchange::{QuestionKey, SessionKey};
use crate::time::Moment;

/// The questions of one instance. `open` enters one and names it; `close` ends it, whether it was
/// answered, refused or withdrawn. It may outlive its call.
#[derive(Debug, Default)]
pub(super) struct OpenQuestions {
    open: BTreeMap<QuestionKey, OpenQuestion>,
    /// How many there have been.
    count: u64,
}

impl OpenQuestions {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &OpenQuestion> {
        self.open.values()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the key that the next question will have.
    pub(super) const fn upcoming(&self) -> QuestionKey {
        QuestionKey(self.count + 1)
    }

    pub(super) fn open(&mut self, question: OpenQuestion) -> QuestionKey {
        let key = self.upcoming();
        self.count += 1;
        self.open.insert(key, question);
        key
    }

    pub(super) fn close(&mut self, question: QuestionKey) -> Option<OpenQuestion> {
        self.open.remove(&question)
    }

    /// Ends all of them.
    pub(super) fn take(&mut self) -> BTreeMap<QuestionKey, OpenQuestion> {
        std::mem::take(&mut self.open)
    }

    pub(super) fn get(&self, question: QuestionKey) -> Option<&OpenQuestion> {
        self.open.get(&question)
    }

    /// Returns whether a question was put to this session.
    pub(super) fn is_of(&self, question: QuestionKey, session: SessionKey) -> bool {
        self.get(question).is_some_and(|open| open.session == session)
    }

    /// Returns the questions that pass.
    pub(super) fn find(&self, passes: impl Fn(&OpenQuestion) -> bool) -> Vec<QuestionKey> {
        let open = self.open.iter().filter(|(_, open)| passes(open));
        open.map(|(key, _)| *key).collect()
    }

    /// Returns whether a session has any to answer.
    pub(super) fn has_any(&self, session: SessionKey) -> bool {
        self.open.values().any(|open| open.session == session)
    }

    /// Returns the question to which the server gave this raw id.
    pub(super) fn with_server_id(&self, id: &[u8]) -> Option<QuestionKey> {
        let mut open = self.open.iter();
        open.find(|(_, open)| matches!(&open.origin, QuestionOrigin::Server(asked) if asked == id))
            .map(|(key, _)| *key)
    }

    /// Returns when the next question is late.
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.open.values().map(|open| open.deadline).min()
    }
}
