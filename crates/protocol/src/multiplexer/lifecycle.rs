//! The server comes, goes, and comes again: what that means for the calls that wait and those that
//! are in flight.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::link::{Carrier, HandshakeOutcome};
use super::listen::Listen;
use super::liveness::{Liveness, Owed};
use super::state::{Opening, Pending, PendingOpen, Waiting};
use super::{Multiplexer, Output};
use crate::exchange::{BackendError, Failure, ServerInfo, SessionKey, Tell};
use crate::message::Message;
use crate::method::Method;
use crate::negotiation::HandshakeRefusal;
use crate::time::Moment;
use crate::version::Era;

impl Multiplexer {
    /// The server runs and can be written to.
    pub fn handle_link_up(&mut self, now: Moment) {
        self.link.handle_up();
        if let Some(server_info) = self.link.server_info().map(Arc::clone) {
            // It was only out of reach, and needs no further handshake.
            self.tell_opened(&server_info);
            self.sync_listen();
            self.admit(now);
            return;
        }
        // A new server gets its handshake at once if sessions of the old one live on.
        let awaited = !self.ledger.pending_opens.is_empty() || !self.ledger.sessions.is_empty();
        if self.link.initializes_at_start() || awaited {
            self.ensure_link(now);
        }
    }

    /// A client waits: asks for a link, or begins the handshake on the one there is.
    pub(super) fn ensure_link(&mut self, now: Moment) {
        if self.link.is_up() {
            self.negotiate(now);
        } else {
            self.ledger.outputs.push(Output::WantLink);
        }
    }

    /// The server has ended. Calls it was working on have failed; those that waited still wait.
    /// Returns whether the server may have ended because of `server/discover`: the next one is
    /// asked `initialize` first.
    pub fn handle_link_down(&mut self, backend_error: &Arc<BackendError>) -> bool {
        let ended_at_discover = self.link.handle_down();
        self.listen = Listen::default();
        self.ledger.liveness = Liveness::default();
        self.ledger.outgoing.clear();
        self.ledger.waits.lose_link();
        self.ledger.sessions.lose_link();
        self.attribution.lose_link(&self.ledger);
        self.undeclared.lose_link();
        self.subscriptions.forget_sent_level();
        self.tools.lose_link();
        self.tasks.lose_link();
        self.roots.lose_link();
        for (question, open) in self.ledger.questions.take() {
            self.ledger.tell(Tell::Withdrawn {
                session: open.session,
                question,
                message: None,
            });
        }
        for (_, pending) in self.ledger.take_pending() {
            if let Pending::Call(call) = pending {
                self.revoke_effects(&call);
                let failure = Failure::Exited(Arc::clone(backend_error));
                self.ledger.fail(call.session, call.call, failure);
            }
        }
        self.want_link();
        ended_at_discover
    }

    /// Asks for a link if a client waits for one.
    fn want_link(&mut self) {
        if !self.ledger.pending_opens.is_empty() || !self.ledger.waiting.is_empty() {
            self.ledger.outputs.push(Output::WantLink);
        }
    }

    /// The server has written to stderr. While it starts this shows progress, so calls wait longer
    /// for it, up to [`super::Limits::MAX_EXTENSIONS`] times as long.
    pub fn handle_stderr(&mut self, now: Moment) {
        if self.is_ready() {
            return self.ledger.note_work();
        }
        let until = self
            .ledger
            .liveness
            .extend_start(now, self.ledger.limits.start_timeout);
        for pending_open in &mut self.ledger.pending_opens {
            pending_open.deadline = pending_open.deadline.max(until);
        }
        self.ledger.waiting.extend_start(until);
    }

    /// Sets the error for clients whose wait for a starting server times out.
    pub fn describe_start(&mut self, report: Arc<BackendError>) {
        self.link.describe_start(report);
    }

    /// A panic has interrupted the machine, so that its ledger may be wrong. Ends every call it
    /// still knows of, and forgets the link; the caller ends the server.
    pub fn handle_panic(&mut self, backend_error: &Arc<BackendError>) {
        self.fail_waiting(&Failure::Exited(Arc::clone(backend_error)));
        self.handle_link_down(backend_error);
    }

    /// The server is not available: every waiting call fails with this reason.
    pub fn handle_unavailable(&mut self, backend_error: &Arc<BackendError>, retry_after: Duration) {
        self.link.handle_no_server();
        let failure = Failure::Unavailable {
            backend_error: Arc::clone(backend_error),
            retry_after,
        };
        self.fail_waiting(&failure);
    }

    /// The server was reached and definitely refuses: waiting calls fail with its reason. The next
    /// client tries again.
    pub fn handle_no_server(&mut self, failure: &Failure) {
        self.link.handle_no_server();
        self.fail_waiting(failure);
    }

    /// The server is taken out of service. Calls in flight may go on; calls that wait were not
    /// begun, and may as well begin elsewhere.
    pub fn handle_retired(&mut self) {
        self.link.retire();
        self.fail_waiting(&Failure::Retired);
    }

    /// The server cannot be reached at the moment. Calls that it works on may go on; all others
    /// wait, and fail with this error if they wait for too long.
    pub fn handle_outage(&mut self, backend_error: Option<Arc<BackendError>>) {
        self.link.handle_out_of_reach(backend_error);
        self.want_link();
    }

    /// The server has forgotten the session. There is one more handshake for all waiting calls;
    /// calls that the server works on may go on.
    pub fn handle_session_lost(&mut self, now: Moment) {
        self.link.handle_session_lost();
        self.ledger.forget_handshakes();
        self.ensure_link(now);
    }

    pub(super) fn fail_waiting(&mut self, failure: &Failure) {
        for PendingOpen { session, call, .. } in std::mem::take(&mut self.ledger.pending_opens) {
            self.ledger.fail(session, call, failure.clone());
        }
        for Waiting { call, .. } in self.ledger.waiting.take() {
            self.ledger.fail(call.session, call.call, failure.clone());
        }
    }

    /// Sends the first messages that are due (see [`crate::negotiation`]).
    pub(super) fn negotiate(&mut self, now: Moment) {
        if self.link.negotiate(now, &mut self.ledger) && self.link.carrier() == Carrier::Pipe {
            let until = now.after(self.ledger.limits.start_timeout);
            self.ledger
                .liveness
                .expect_reply_by(until, Owed::Handshake, until);
            self.ledger.wake_by(until);
        }
    }

    /// The server has answered the first message of an era.
    pub(super) fn handle_handshake(&mut self, now: Moment, era: Era, message: Message) {
        let outcome = self.link.handle_first_answer(era, message);
        self.handle_handshake_outcome(now, outcome);
    }

    /// The first message of an era has no answer that is a message.
    pub(super) fn handle_refused(&mut self, now: Moment, era: Era, refusal: HandshakeRefusal) {
        let outcome = self.link.handle_refusal(era, refusal);
        self.handle_handshake_outcome(now, outcome);
    }

    fn handle_handshake_outcome(&mut self, now: Moment, outcome: HandshakeOutcome) {
        match outcome {
            HandshakeOutcome::GoOn => self.negotiate(now),
            HandshakeOutcome::Opened {
                server_info,
                shown,
                again,
            } => {
                self.ledger.outputs.push(Output::Shown(shown));
                self.disown_handshakes(now);
                if again {
                    self.resume(now);
                }
                self.tell_opened(&server_info);
                self.sync_listen();
                self.admit(now);
            }
            HandshakeOutcome::Refused { era, refusal, shown } => {
                self.ledger.outputs.push(Output::Shown(shown));
                self.report_refusal(era, refusal);
            }
        }
    }

    fn tell_opened(&mut self, server_info: &Arc<ServerInfo>) {
        for PendingOpen { session, call, .. } in std::mem::take(&mut self.ledger.pending_opens) {
            let server_info = Arc::clone(server_info);
            self.ledger.tell(Tell::Opened {
                session,
                call,
                server_info,
            });
        }
    }

    /// Another first message may still be under way. Its answer decides nothing any more.
    fn disown_handshakes(&mut self, now: Moment) {
        let until = now.after(self.ledger.limits.own_timeout());
        let mut others = self.ledger.all_pending();
        if let Some((_, other)) = others.find(|(_, pending)| matches!(pending, Pending::Handshake(_))) {
            *other = Pending::Own { until };
            drop(others);
            self.ledger.wake_by(until);
        }
    }

    /// No era is left that could be tried: the clients that wait get the server's refusal.
    fn report_refusal(&mut self, era: Era, refusal: HandshakeRefusal) {
        match refusal {
            HandshakeRefusal::Answer(message) => {
                for PendingOpen { session, call, .. } in std::mem::take(&mut self.ledger.pending_opens) {
                    self.detach(session);
                    self.subscriptions.forget(session);
                    self.ledger.tell(Tell::Reply {
                        session,
                        call,
                        message: Message::clone(&message),
                        era,
                    });
                }
                self.fail_waiting(&Failure::HandshakeRefused);
            }
            HandshakeRefusal::Failure(failure) => self.fail_waiting(&failure),
        }
        if self.ledger.sessions.is_empty() {
            self.link.forget_initialize();
        }
    }

    /// Brings a restarted server to where its predecessor was, and tells clients to look again.
    fn resume(&mut self, now: Moment) {
        let pending_opens = self.ledger.pending_opens.iter();
        let new_sessions: BTreeSet<SessionKey> = pending_opens
            .filter(|pending_open| pending_open.opening == Opening::New)
            .map(|pending_open| pending_open.session)
            .collect();
        if self.ledger.sessions.len() == new_sessions.len() {
            return;
        }
        self.link.confirm(None, &mut self.ledger);
        let (resources, level) = self.subscriptions.replay();
        if let Some(level) = level {
            self.send_level(now, level);
        }
        for uri in resources {
            self.send_subscription(now, Method::ResourcesSubscribe, &uri);
        }
        let notified = self.ledger.sessions.notified();
        let sessions: Vec<SessionKey> = notified
            .filter(|session| !new_sessions.contains(session))
            .collect();
        self.tell_lists_changed(&sessions);
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};

    use super::super::Limits;
    use super::*;
    use crate::backend_face::legacy::ClientHello;
    use crate::exchange::{Ask, Call, CallKey, Client, Principal, Request};
    use crate::negotiation::{EraPlan, SILENCE};

    fn machine() -> Multiplexer {
        Multiplexer::new(Limits::default(), ClientHello::Newest)
    }

    fn open(machine: &mut Multiplexer, session: u64) {
        let open = Ask::Open {
            session: SessionKey(session),
            call: CallKey(0),
            client: Arc::new(Client::declaring(Principal::anonymous(), None, None)),
            initialize: None,
            era: Era::Legacy,
            wants_notifications: true,
        };
        machine.handle_ask(Moment::START, open);
    }

    fn wants_link(machine: &mut Multiplexer) -> bool {
        let outputs: Vec<Output> = std::iter::from_fn(|| machine.poll_output()).collect();
        outputs.iter().any(|output| matches!(output, Output::WantLink))
    }

    fn sent(machine: &mut Multiplexer) -> String {
        let sent = machine.take_outgoing(BytesMut::new());
        machine.handle_written();
        String::from_utf8(sent.to_vec()).expect("text")
    }

    #[test]
    fn next_client_wants_a_server_that_was_not_there() {
        let unavailable: fn(&mut Multiplexer) =
            |machine| machine.handle_unavailable(&Arc::default(), Duration::ZERO);
        let refuses: fn(&mut Multiplexer) = |machine| machine.handle_no_server(&Failure::Retired);
        for is_not_there in [unavailable, refuses] {
            let mut machine = machine();
            machine.handle_link_up(Moment::START);
            open(&mut machine, 1);
            assert!(!wants_link(&mut machine));
            is_not_there(&mut machine);
            open(&mut machine, 2);
            assert!(wants_link(&mut machine));
        }
    }

    #[test]
    fn client_that_waits_in_vain_gets_the_report_of_the_start() {
        let report = Arc::new(BackendError {
            what: "loading".into(),
            ..BackendError::default()
        });
        let mut machine = machine();
        open(&mut machine, 1);
        machine.describe_start(Arc::clone(&report));
        machine.handle_deadline(Moment::START.after(Limits::default().start_timeout));
        let reported = std::iter::from_fn(|| machine.poll_output()).any(|output| {
            matches!(
                output,
                Output::Tell(Tell::Failed {
                    failure: Failure::StartTimeout { backend_error: Some(found), .. },
                    ..
                }) if found.what == report.what
            )
        });
        assert!(reported);
    }

    #[test]
    fn call_that_waits_fails_after_a_panic() {
        let mut machine = machine();
        open(&mut machine, 1);
        machine.handle_panic(&Arc::new(BackendError::default()));
        let failed = std::iter::from_fn(|| machine.poll_output()).any(|output| {
            matches!(
                output,
                Output::Tell(Tell::Failed {
                    failure: Failure::Exited(_),
                    ..
                })
            )
        });
        assert!(failed);
    }

    /// Answers the handshake that was sent last, under its id.
    fn welcome(machine: &mut Multiplexer, id: u64) {
        let answer = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25","capabilities":{{"resources":{{"subscribe":true}}}},"serverInfo":{{"name":"s","version":"1"}}}}}}"#
        );
        machine.handle_line(Moment::START, Bytes::from(answer));
    }

    fn ask(machine: &mut Multiplexer, call: u64, request: Request, method: &str, params: &str) {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{call},"method":"{method}","params":{params}}}"#);
        let call = Ask::Call(Call {
            session: SessionKey(1),
            call: CallKey(call),
            request,
            message: Message::scan(Bytes::from(text)).expect("a message"),
            era: Era::Legacy,
            mirrored: None,
            reads_events: true,
        });
        machine.handle_ask(Moment::START, call);
    }

    #[test]
    fn server_is_in_use_during_calls_and_subscriptions_and_not_for_a_session_alone() {
        let mut machine = machine();
        machine.plan_eras(EraPlan::Only(Era::Legacy));
        machine.handle_link_up(Moment::START);
        assert!(!machine.is_in_use(Moment::START), "no client has come");
        open(&mut machine, 1);
        assert!(
            machine.is_in_use(Moment::START),
            "a client waits for the handshake"
        );
        welcome(&mut machine, 1);
        assert!(!machine.is_in_use(Moment::START), "the session has no call");
        let params = r#"{"name":"echo"}"#;
        ask(&mut machine, 1, Request::Plain, "tools/call", params);
        assert!(machine.is_in_use(Moment::START), "a call is in flight");
        machine.handle_line(
            Moment::START,
            Bytes::from_static(br#"{"jsonrpc":"2.0","id":2,"result":{"content":[]}}"#),
        );
        assert!(!machine.is_in_use(Moment::START), "the call is answered");
        let subscribe = Request::Subscribe { uri: "x://1".into() };
        ask(
            &mut machine,
            2,
            subscribe,
            "resources/subscribe",
            r#"{"uri":"x://1"}"#,
        );
        machine.handle_line(
            Moment::START,
            Bytes::from_static(br#"{"jsonrpc":"2.0","id":3,"result":{}}"#),
        );
        assert!(machine.is_in_use(Moment::START), "a client waits for updates");
    }

    #[test]
    fn server_that_was_ended_unused_is_wanted_by_the_next_call() {
        let mut machine = machine();
        machine.plan_eras(EraPlan::Only(Era::Legacy));
        machine.handle_link_up(Moment::START);
        open(&mut machine, 1);
        welcome(&mut machine, 1);
        sent(&mut machine);
        while machine.poll_output().is_some() {}
        machine.handle_link_down(&Arc::default());
        assert!(!wants_link(&mut machine), "no call waits");
        let params = r#"{"name":"echo"}"#;
        ask(&mut machine, 1, Request::Plain, "tools/call", params);
        assert!(wants_link(&mut machine), "a call waits");
        machine.handle_link_up(Moment::START);
        assert!(sent(&mut machine).contains("initialize"));
        welcome(&mut machine, 2);
        assert!(sent(&mut machine).contains("tools/call"));
    }

    #[test]
    fn silent_server_gets_the_first_message_of_the_other_era_in_time() {
        let mut machine = machine();
        machine.plan_eras(EraPlan::First(Era::Modern));
        machine.handle_link_up(Moment::START);
        open(&mut machine, 1);
        assert!(machine.is_initializing() && !machine.is_answered());
        assert!(sent(&mut machine).contains("server/discover"));
        assert_eq!(machine.next_deadline(), Some(Moment::START.after(SILENCE)));
        machine.handle_deadline(Moment::START.after(SILENCE));
        assert!(sent(&mut machine).contains("initialize"));
        let answer = r#"{"jsonrpc":"2.0","id":2,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}"#;
        machine.handle_line(
            Moment::START.after(SILENCE),
            Bytes::from_static(answer.as_bytes()),
        );
        assert!(machine.is_answered() && !machine.is_initializing());
    }

    #[test]
    fn server_that_is_out_of_reach_gets_the_first_message_of_the_other_era_later() {
        let mut machine = machine();
        machine.plan_eras(EraPlan::First(Era::Modern));
        machine.handle_link_up(Moment::START);
        open(&mut machine, 1);
        assert!(sent(&mut machine).contains("server/discover"));
        machine.handle_outage(None);
        machine.handle_deadline(Moment::START.after(SILENCE));
        assert_eq!(sent(&mut machine), "");
        machine.handle_link_up(Moment::START.after(SILENCE));
        assert!(sent(&mut machine).contains("initialize"));
    }
    fn answer(machine: &mut Multiplexer, line: &'static str) {
        machine.handle_line(Moment::START, Bytes::from_static(line.as_bytes()));
    }

    fn tells(machine: &mut Multiplexer) -> Vec<Tell> {
        let outputs = std::iter::from_fn(|| machine.poll_output());
        let tells = outputs.filter_map(|output| match output {
            Output::Tell(tell) => Some(tell),
            Output::Shown(_) | Output::WantLink | Output::Replace { .. } | Output::Noise { .. } => None,
        });
        tells.collect()
    }

    /// Returns a machine whose server has refused `server/discover` when no client was there, and
    /// then the `initialize` of the first one.
    fn refused_before_and_by_the_first_client() -> Multiplexer {
        let mut machine = machine();
        machine.plan_eras(EraPlan::First(Era::Modern));
        machine.initialize_at_start();
        machine.handle_link_up(Moment::START);
        assert!(sent(&mut machine).contains("server/discover"));
        answer(
            &mut machine,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"loading"}}"#,
        );
        assert_eq!(sent(&mut machine), "", "there is no client to introduce");
        open(&mut machine, 1);
        assert!(sent(&mut machine).contains("initialize"));
        answer(
            &mut machine,
            r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"gone"}}"#,
        );
        machine
    }

    #[test]
    fn refusal_of_an_era_to_no_client_turns_no_client_away() {
        let mut machine = refused_before_and_by_the_first_client();
        assert!(tells(&mut machine).is_empty(), "the client waits on");
        assert!(sent(&mut machine).contains("server/discover"));
        answer(
            &mut machine,
            r#"{"jsonrpc":"2.0","id":3,"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}}"#,
        );
        let tells = tells(&mut machine);
        assert!(matches!(&tells[..], [Tell::Opened { server_info, .. }] if server_info.era == Era::Modern));
    }

    #[test]
    fn client_that_both_eras_are_refused_to_gets_the_refusal_of_its_initialize() {
        let mut machine = refused_before_and_by_the_first_client();
        assert!(sent(&mut machine).contains("server/discover"));
        answer(
            &mut machine,
            r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32603,"message":"loading"}}"#,
        );
        let tells = tells(&mut machine);
        let [Tell::Reply { message, .. }] = &tells[..] else {
            panic!("one answer, not {tells:?}");
        };
        assert!(String::from_utf8_lossy(message.bytes()).contains("gone"));
        assert_eq!(sent(&mut machine), "", "no era is tried for ever");
    }
}
