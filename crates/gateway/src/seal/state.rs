//! A server's own `requestState` on its way through a client and back.
//!
//! A modern server sees Rialto's credential only, and cannot know which caller brings its state
//! back. So with authentication the state is sealed for its caller: another caller cannot use it,
//! and no caller can read or change it. In a fleet the sealed state names the replica too, whose
//! server may be the only one that knows it.

use std::sync::Arc;

use bytes::Bytes;
use memchr::memmem;
use protocol::message::{Kind, Member, Message, quoted};
use protocol::object::Object;

use super::Sealer;

const KEY: &str = "requestState";

/// Seals the states of one server for one caller.
#[derive(Debug, Clone)]
pub(crate) struct StateSeal {
    sealer: Arc<Sealer>,
    bound_to: Arc<str>,
}

/// A state that was not made for this caller, or not by us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Foreign;

impl StateSeal {
    pub(crate) fn new(sealer: Arc<Sealer>, bound_to: &str) -> Self {
        Self {
            sealer,
            bound_to: bound_to.into(),
        }
    }

    /// Returns an answer with its state sealed; `None` if there is none in it. A state that cannot
    /// be sealed is left out: the client then calls anew, which is better than a state that any
    /// caller may use.
    pub(crate) fn seal_answer(&self, answer: &Message) -> Option<Message> {
        if answer.kind() != Kind::Result || memmem::find(answer.bytes(), KEY.as_bytes()).is_none() {
            return None;
        }
        let mut result = Object::parse(answer.raw(Member::Result)?)?;
        result.get(KEY)?;
        let sealed = result
            .text(KEY)
            .and_then(|state| self.sealer.wrap(&state, &self.bound_to));
        match sealed {
            Some(sealed) => result.set(KEY, quoted(&sealed)),
            None => result.remove(KEY),
        }
        rewritten(answer, Member::Result, &result)
    }

    /// Returns a request with its state as the server gave it.
    pub(crate) fn open_request(&self, request: &Message, state: &str) -> Result<Message, Foreign> {
        let original = self.sealer.unwrap(state, &self.bound_to).ok_or(Foreign)?;
        let params = request.raw(Member::Params).ok_or(Foreign)?;
        let mut params = Object::parse(params).ok_or(Foreign)?;
        params.set(KEY, quoted(&original));
        rewritten(request, Member::Params, &params).ok_or(Foreign)
    }
}

fn rewritten(message: &Message, member: Member, object: &Object<'_>) -> Option<Message> {
    let text: Bytes = message.spliced(&[(member, object.to_string().as_bytes())]);
    Message::scan(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn seals() -> [StateSeal; 2] {
        let sealer = Arc::<Sealer>::default();
        ["demo/alice", "demo/bob"].map(|bound_to| StateSeal::new(Arc::clone(&sealer), bound_to))
    }

    fn state_of(message: &Message, member: Member) -> String {
        Object::parse(message.raw(member).unwrap())
            .unwrap()
            .text(KEY)
            .unwrap()
    }

    const ANSWER: &str = r#"{"jsonrpc":"2.0","id":7,"result":{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}},"requestState":"s\u0041 \"quoted\""}}"#;

    fn retry(state: &str) -> Message {
        let state = quoted(state);
        message(&format!(
            r#"{{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{{"name":"x","requestState":{state},"inputResponses":{{}}}}}}"#
        ))
    }

    #[test]
    fn a_state_comes_back_to_its_server_as_it_was() {
        let [alice, _] = seals();
        let sealed = alice.seal_answer(&message(ANSWER)).unwrap();
        let state = state_of(&sealed, Member::Result);
        assert!(!state.contains("quoted"), "the client cannot read it");
        let opened = alice.open_request(&retry(&state), &state).unwrap();
        assert_eq!(state_of(&opened, Member::Params), "sA \"quoted\"");
        assert_eq!(opened.text(Member::Name).as_deref(), Some("x"));
    }

    #[test]
    fn state_of_another_caller_and_any_other_state_are_refused() {
        let [alice, bob] = seals();
        let sealed = alice.seal_answer(&message(ANSWER)).unwrap();
        let state = state_of(&sealed, Member::Result);
        assert_eq!(bob.open_request(&retry(&state), &state).err(), Some(Foreign));
        let cut = &state[..state.len() - 1];
        for forged in [
            "",
            "s\u{41}",
            cut,
            &state.replace("rialto2", "rialto1"),
            &format!("{state}A"),
        ] {
            assert_eq!(
                alice.open_request(&retry(forged), forged).err(),
                Some(Foreign),
                "{forged}"
            );
        }
    }

    #[test]
    fn answers_without_a_state_stay_as_they_are() {
        let [alice, _] = seals();
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[]}}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"requestState"}]}}"#,
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"requestState"}}"#,
        ] {
            assert!(alice.seal_answer(&message(text)).is_none(), "{text}");
        }
    }

    #[test]
    fn a_state_that_is_no_text_is_left_out() {
        let [alice, _] = seals();
        let odd =
            r#"{"jsonrpc":"2.0","id":7,"result":{"resultType":"input_required","requestState":{"a":1}}}"#;
        let answer = alice.seal_answer(&message(odd)).unwrap();
        assert!(
            Object::parse(answer.raw(Member::Result).unwrap())
                .unwrap()
                .get(KEY)
                .is_none()
        );
    }
}
