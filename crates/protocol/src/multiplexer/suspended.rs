//! Suspended calls: their server has asked, and their client may answer soon, late or never.
//!
//! A server that asks is given calls one session at a time, so that its next question can be
//! attributed. A call that waits for its client must not keep the principal's other calls waiting.
//! After a moment without a further question it is *suspended*: other calls of the same principal
//! may go, and its answer, when it comes, waits for them. A server that asks something more because
//! of the suspended call then asks that principal in another of its calls; the answer still reaches
//! the right call, by the server's own id. A call of another principal does not go meanwhile, for
//! it could be asked what is not its own; it is refused after [`super::Limits::OCCUPIED_WAIT`].

use std::collections::VecDeque;

use crate::backend_face::WireId;
use crate::exchange::{QuestionKey, SessionKey};
use crate::message::Message;
use crate::time::Moment;

use super::ledger::Ledger;
use super::sessions::SessionEntry;
use super::undeclared::Undeclared;

/// The suspended calls of one link, and the answers for them.
#[derive(Debug, Default)]
pub(super) struct Suspended {
    /// How many calls are suspended.
    calls: usize,
    returning: VecDeque<Returning>,
}

/// An answer that waits until no other call can be confused with the one it resumes.
#[derive(Debug)]
pub(super) struct Returning {
    pub(super) session: SessionKey,
    pub(super) question: QuestionKey,
    pub(super) message: Message,
}

impl Suspended {
    /// Returns whether a call is suspended. Its server waits too, but may still send something
    /// because of it.
    pub(super) const fn is_any(&self) -> bool {
        self.calls > 0
    }

    /// The server has asked something because of this call: it is suspended if nothing more comes
    /// soon.
    pub(super) fn schedule(now: Moment, id: WireId, ledger: &mut Ledger) {
        let at = now.after(Undeclared::SIBLINGS);
        if let Some(call) = ledger.call_mut(id)
            && call.asking.suspend_at(at)
        {
            ledger.wake_by(at);
        }
    }

    /// Suspends a call whose time has come.
    pub(super) fn suspend(&mut self, id: WireId, ledger: &mut Ledger) {
        let Some(call) = ledger.call_mut(id) else {
            return;
        };
        call.asking.suspend();
        self.calls += 1;
        let (session, may_ask) = (call.session, call.method().may_ask());
        ledger.sessions.count_out(session, may_ask);
    }

    /// The call goes on.
    pub(super) fn resume(&mut self, id: WireId, ledger: &mut Ledger) {
        let Some(call) = ledger.call_mut(id) else {
            return;
        };
        if call.asking.resume() {
            self.calls -= 1;
            let (session, may_ask) = (call.session, call.method().may_ask());
            ledger.sessions.count_in(session, may_ask);
        }
    }

    fn iter(ledger: &Ledger) -> impl Iterator<Item = (SessionKey, WireId)> {
        ledger
            .calls()
            .filter(|(_, call)| call.asking.is_suspended())
            .map(|(id, call)| (call.session, id))
    }

    /// Returns whether a call of another principal is suspended, with which none of this session's
    /// must be confused.
    pub(super) fn has_other_principal(&self, session: SessionKey, ledger: &Ledger) -> bool {
        if !self.is_any() {
            return false;
        }
        let principal = |session| ledger.sessions.get(session).map(SessionEntry::principal);
        let own = principal(session);
        Self::iter(ledger).any(|(of, _)| of != session && principal(of) != own)
    }

    /// Returns the only session whose calls are suspended, and its newest one. What the server
    /// sends is about these if no other call can have caused it.
    pub(super) fn sole_session(ledger: &Ledger) -> Option<(SessionKey, Option<WireId>)> {
        let mut suspended = Self::iter(ledger);
        let (session, mut newest) = suspended.next()?;
        for (other, id) in suspended {
            if other != session {
                return None;
            }
            newest = id;
        }
        Some((session, Some(newest)))
    }

    /// Keeps an answer back while the call that it resumes could be confused with one that runs.
    /// Returns whether it does.
    pub(super) fn keep_back(
        &mut self,
        session: SessionKey,
        question: QuestionKey,
        message: &Message,
        ledger: &Ledger,
    ) -> bool {
        let wire = ledger.questions.get(question).and_then(|open| open.wire);
        let call = wire.and_then(|id| ledger.call(id));
        // Questions for calls of one session go to the same client.
        if !call.is_some_and(|call| call.asking.is_suspended()) || !ledger.sessions.others_ask(session) {
            return false;
        }
        // One answer for each open question, of which there is a limited number.
        if !self
            .returning
            .iter()
            .any(|returning| returning.question == question)
        {
            let message = message.clone();
            self.returning.push_back(Returning {
                session,
                question,
                message,
            });
        }
        true
    }

    /// Takes the answer to a question whose time is over, if there is one.
    pub(super) fn take_late(&mut self, question: QuestionKey) -> Option<Message> {
        let mut returning = self.returning.iter();
        let at = returning.position(|returning| returning.question == question)?;
        self.returning.remove(at).map(|returning| returning.message)
    }

    /// Takes the answers that have waited, oldest first.
    pub(super) fn take_answers(&mut self) -> VecDeque<Returning> {
        std::mem::take(&mut self.returning)
    }

    /// The link has ended, and with it the calls.
    pub(super) fn lose_link(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::{Bytes, BytesMut};

    use super::super::{Limits, Multiplexer, Output};
    use super::*;
    use crate::backend_face::legacy::ClientHello;
    use crate::exchange::{Ask, Call, CallKey, Client, Failure, Principal, Request, Tell};
    use crate::version::Era;

    /// A legacy server that has asked once, and modern clients.
    struct Scene {
        machine: Multiplexer,
        now: Moment,
    }

    impl Scene {
        /// The first client's call waits for the client's answer to this question.
        fn asked() -> (Self, QuestionKey) {
            let mut scene = Self {
                machine: Multiplexer::new(Limits::default(), ClientHello::Newest),
                now: Moment::START,
            };
            scene.machine.handle_link_up(scene.now);
            scene.call(1, "ann");
            scene.receive(r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}"#);
            assert_eq!(scene.calls_sent(), 1);
            let question = scene.ask(90).expect("the only call is asked");
            assert_eq!(question.0, SessionKey(1));
            (scene, question.1)
        }

        fn call(&mut self, session: u64, principal: &str) {
            self.call_in(Era::Modern, session, principal);
        }

        fn call_in(&mut self, era: Era, session: u64, principal: &str) {
            let session = SessionKey(session);
            let declared = Some(Bytes::from_static(br#"{"elicitation":{}}"#));
            let client = Arc::new(Client::declaring(Principal::named(principal), declared, None));
            let open = Ask::Open {
                session,
                call: CallKey(0),
                client,
                initialize: None,
                era,
                wants_notifications: false,
            };
            self.machine.handle_ask(self.now, open);
            let text = Bytes::from_static(
                br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x"}}"#,
            );
            let message = Message::scan(text).expect("a message");
            let call = Call {
                session,
                call: CallKey(1),
                request: Request::Plain,
                message,
                era,
                mirrored: None,
                reads_events: false,
            };
            self.machine.handle_ask(self.now, Ask::Call(call));
        }

        fn receive(&mut self, line: &str) {
            self.machine
                .handle_line(self.now, Bytes::copy_from_slice(line.as_bytes()));
        }

        /// The server asks. Returns the session that is asked, if any.
        fn ask(&mut self, id: u64) -> Option<(SessionKey, QuestionKey)> {
            while self.machine.poll_output().is_some() {}
            let params = r#"{"message":"?","requestedSchema":{"type":"object","properties":{}}}"#;
            self.receive(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"elicitation/create","params":{params}}}"#
            ));
            std::iter::from_fn(|| self.machine.poll_output()).find_map(|output| match output {
                Output::Tell(Tell::Question {
                    session, question, ..
                }) => Some((session, question)),
                Output::Tell(_)
                | Output::WantLink
                | Output::Replace { .. }
                | Output::Noise { .. }
                | Output::Shown(_) => None,
            })
        }

        fn answer(&mut self, session: u64, question: QuestionKey) {
            let text = Bytes::from_static(br#"{"jsonrpc":"2.0","id":0,"result":{"action":"decline"}}"#);
            let message = Message::scan(text).expect("a message");
            let answer = Ask::Answer {
                session: SessionKey(session),
                question,
                message,
            };
            self.machine.handle_ask(self.now, answer);
        }

        fn wait(&mut self) {
            self.now = self.now.after(Undeclared::SIBLINGS);
            self.machine.handle_deadline(self.now);
        }

        fn sent(&mut self) -> String {
            let sent = self.machine.take_outgoing(BytesMut::new());
            self.machine.handle_written();
            String::from_utf8(sent.to_vec()).expect("text")
        }

        fn calls_sent(&mut self) -> usize {
            self.sent().matches("tools/call").count()
        }
    }

    #[test]
    fn message_that_is_alone_need_not_wait_for_the_writer() {
        let mut scene = Scene {
            machine: Multiplexer::new(Limits::default(), ClientHello::Newest),
            now: Moment::START,
        };
        scene.machine.handle_link_up(scene.now);
        scene.call(1, "ann");
        let mut line = scene.machine.take_lone_line().expect("it is alone");
        let whole = line.clone();
        let mut written = line.split_to(10).to_vec();
        assert_eq!(scene.machine.take_lone_line(), None, "it is being written");
        scene.machine.handle_unwritten(line);
        written.extend_from_slice(scene.sent().as_bytes());
        assert_eq!(written, whole, "the writer does the rest");
        scene.receive(r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}"#);
        let line = scene.machine.take_lone_line().expect("it is alone");
        assert!(line.ends_with(b"}\n"), "{line:?}");
        scene.machine.handle_written();
        assert_eq!(scene.calls_sent(), 0, "it was alone");
        scene.call(2, "ann");
        assert_eq!(
            scene.machine.take_lone_line(),
            None,
            "two calls are under way, and may gather with others"
        );
        assert_eq!(
            scene
                .machine
                .take_outgoing(BytesMut::new())
                .iter()
                .filter(|byte| **byte == b'\n')
                .count(),
            1
        );
        scene.receive(r#"{"jsonrpc":"2.0","id":3,"result":{}}"#);
        scene.call(3, "ann");
        assert_eq!(
            scene.machine.take_lone_line(),
            None,
            "the writer is not done with the last one"
        );
    }

    #[test]
    fn request_that_is_alone_need_not_wait_to_be_seen_with_others() {
        let mut scene = Scene {
            machine: Multiplexer::new(Limits::default(), ClientHello::Newest),
            now: Moment::START,
        };
        scene.machine.set_carrier(crate::multiplexer::Carrier::Posts);
        scene.machine.handle_link_up(scene.now);
        scene.call_in(Era::Legacy, 1, "ann");
        assert_eq!(scene.machine.take_lone_post(), None, "it is a handshake");
        scene.sent();
        scene.receive(r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}"#);
        assert_eq!(
            scene.machine.take_lone_post(),
            None,
            "another message goes before it"
        );
        assert_eq!(scene.calls_sent(), 1);
        scene.call_in(Era::Legacy, 2, "ann");
        let post = scene.machine.take_lone_post().expect("it is alone");
        let line = String::from_utf8(post.line.to_vec()).expect("text");
        assert!(line.contains("tools/call") && line.ends_with('}'), "{line}");
        let message = Message::scan(post.line).expect("a message");
        assert_eq!(post.message_info, crate::delivery::MessageInfo::of(&message));
        assert_eq!(scene.sent(), "", "it is not there twice");
        scene.call_in(Era::Legacy, 3, "ann");
        scene.call_in(Era::Legacy, 4, "ann");
        assert_eq!(scene.machine.take_lone_post(), None, "two are in order");
        assert_eq!(scene.calls_sent(), 2);
    }

    #[test]
    fn call_whose_client_may_never_come_back_lets_others_go() {
        let (mut scene, _) = Scene::asked();
        assert_eq!(scene.machine.open_calls(), 1);
        scene.call(2, "ann");
        assert_eq!(scene.calls_sent(), 0, "a second question may be on its way");
        scene.wait();
        assert_eq!(scene.calls_sent(), 1);
        assert_eq!(
            scene.machine.open_calls(),
            1,
            "no session waits for the suspended call"
        );
        assert_eq!(scene.ask(91).map(|asked| asked.0), Some(SessionKey(2)));
    }

    #[test]
    fn questions_asked_together_are_the_same_calls() {
        let (mut scene, _) = Scene::asked();
        scene.call(2, "ann");
        assert_eq!(scene.ask(91).map(|asked| asked.0), Some(SessionKey(1)));
    }

    #[test]
    fn late_question_goes_to_the_suspended_call_if_no_other_call_runs() {
        let (mut scene, _) = Scene::asked();
        scene.wait();
        assert_eq!(scene.ask(91).map(|asked| asked.0), Some(SessionKey(1)));
    }

    #[test]
    fn calls_of_other_principals_wait_for_a_suspended_call() {
        let (mut scene, question) = Scene::asked();
        scene.call(2, "bob");
        scene.wait();
        assert_eq!(scene.calls_sent(), 0);
        scene.answer(1, question);
        assert!(scene.sent().contains("decline"));
        scene.receive(r#"{"jsonrpc":"2.0","id":2,"result":{"content":[]}}"#);
        assert_eq!(scene.calls_sent(), 1);
    }

    #[test]
    fn call_of_another_principal_is_refused_after_a_bounded_wait() {
        let (mut scene, _) = Scene::asked();
        scene.call(2, "bob");
        scene.now = scene.now.after(Limits::OCCUPIED_WAIT);
        scene.machine.handle_deadline(scene.now);
        let refused = std::iter::from_fn(|| scene.machine.poll_output()).any(|output| {
            matches!(
                output,
                Output::Tell(Tell::Failed {
                    session: SessionKey(2),
                    failure: Failure::Occupied,
                    ..
                })
            )
        });
        assert!(refused);
        assert_eq!(scene.calls_sent(), 0, "it never ran, so it may be sent again");
    }

    #[test]
    fn answer_waits_until_the_call_that_it_wakes_cannot_be_confused() {
        let (mut scene, question) = Scene::asked();
        scene.call(2, "ann");
        scene.wait();
        assert_eq!(scene.calls_sent(), 1);
        scene.answer(1, question);
        assert_eq!(scene.sent(), "", "the other call may still ask");
        scene.receive(r#"{"jsonrpc":"2.0","id":3,"result":{"content":[]}}"#);
        assert!(scene.sent().contains("decline"));
        assert_eq!(scene.ask(91).map(|asked| asked.0), Some(SessionKey(1)));
    }

    #[test]
    fn late_question_is_refused_if_calls_of_two_sessions_are_suspended() {
        let (mut scene, _) = Scene::asked();
        scene.call(2, "ann");
        scene.wait();
        assert_eq!(scene.ask(91).map(|asked| asked.0), Some(SessionKey(2)));
        scene.wait();
        assert_eq!(scene.ask(92), None);
        assert!(scene.sent().contains("cannot tell which of several sessions"));
    }

    #[test]
    fn answer_that_came_twice_or_whose_question_has_expired_is_given_once() {
        let (mut scene, question) = Scene::asked();
        let timeout = Limits::default().question_timeout;
        scene.now = scene.now.after(timeout - Undeclared::SIBLINGS * 3);
        scene.machine.handle_deadline(scene.now);
        scene.call(2, "ann");
        assert_eq!(scene.calls_sent(), 1);
        scene.answer(1, question);
        scene.answer(1, question);
        assert_eq!(scene.sent(), "", "the other call may still ask");
        scene.now = Moment::START.after(timeout);
        scene.machine.handle_deadline(scene.now);
        assert_eq!(
            scene.sent().matches("decline").count(),
            1,
            "it waited long enough"
        );
        scene.receive(r#"{"jsonrpc":"2.0","id":3,"result":{"content":[]}}"#);
        let counters = scene.machine.counters();
        assert_eq!((counters.strays, counters.questions_refused), (0, 0));
    }

    #[test]
    fn answer_of_another_session_is_not_given() {
        let (mut scene, question) = Scene::asked();
        scene.answer(2, question);
        assert_eq!(scene.sent(), "");
        assert_eq!(scene.machine.counters().strays, 1);
        scene.answer(1, question);
        assert!(scene.sent().contains("decline"));
    }
}
