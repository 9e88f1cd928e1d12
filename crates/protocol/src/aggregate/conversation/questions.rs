//! Questions of members, under keys and progress tokens that are unique over all of them.

use bytes::Bytes;

use crate::aggregate::plan::MemberName;
use crate::exchange::QuestionKey;
use crate::message::{Member, Message};
use crate::vec_map::VecMap;

#[derive(Debug)]
struct Open {
    member: MemberName,
    own: QuestionKey,
    /// The raw token under which the member expects progress.
    token: Option<Bytes>,
}

/// The questions that the client has not answered.
#[derive(Debug, Default)]
pub(super) struct Questions {
    open: VecMap<QuestionKey, Open>,
    asked: u64,
}

impl Questions {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Enters a question. Returns its key and the message for the client.
    pub(super) fn ask(
        &mut self,
        member: MemberName,
        own: QuestionKey,
        message: Message,
    ) -> (QuestionKey, Message) {
        self.asked += 1;
        let key = QuestionKey(self.asked);
        let token = message.raw_copy(Member::MetaProgressToken);
        let message = match token {
            Some(_) => message.with_replaced(Member::MetaProgressToken, key.0.to_string().as_bytes()),
            None => message,
        };
        self.open.insert(key, Open { member, own, token });
        (key, message)
    }

    /// Takes a question that is answered. Returns its member, and the member's own key.
    pub(super) fn take(&mut self, key: QuestionKey) -> Option<(MemberName, QuestionKey)> {
        self.open.remove(&key).map(|open| (open.member, open.own))
    }

    /// Takes a question that its member has withdrawn.
    pub(super) fn withdraw(&mut self, member: &str, own: QuestionKey) -> Option<QuestionKey> {
        let mut open = self.open.iter();
        let key = open.find_map(|(key, open)| (open.own == own && &*open.member == member).then_some(*key));
        drop(open);
        self.open.remove(&key?);
        key
    }

    /// Takes all questions of a member.
    pub(super) fn take_of(&mut self, member: &str) -> Vec<QuestionKey> {
        let open = self.open.iter();
        let of = open.filter(|(_, open)| &*open.member == member);
        let keys: Vec<QuestionKey> = of.map(|(key, _)| *key).collect();
        self.open.retain(|_, open| &*open.member != member);
        keys
    }

    /// Returns the member that wants this progress, and the notification under its own token.
    pub(super) fn progress(&self, message: &Message) -> Option<(MemberName, Message)> {
        let key = QuestionKey(message.number(Member::ProgressToken)?);
        let open = self.open.get(&key)?;
        let token = open.token.as_deref()?;
        Some((open.member.clone(), message.with_progress_token(token)))
    }
}
