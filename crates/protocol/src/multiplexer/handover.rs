//! Sessions that leave an instance for another one of the same server, in the same process.
//! Sessions that come from another process or replica are in `restoration`.
//!
//! Once a legacy server has asked a question that carries no origin, principals no longer share its
//! instance ([`Multiplexer::suits`]). The sessions of other principals that are open on it leave,
//! each to an instance of its own principal. A session takes along its subscriptions, its log
//! level, and its calls that were not sent. It stays while the instance has something that no other
//! instance could give it: a call or question that is open, an opening that is not answered, or a
//! task of its principal.
//!
//! The new instance makes the handshake with its server, subscribes the session, sets its log
//! level, and has its client look again at every list that may differ.

use std::sync::Arc;

use super::Multiplexer;
use super::sessions::SessionEntry;
use crate::exchange::{Call, Client, SessionKey, SessionState};
use crate::time::Moment;
use crate::version::Era;

/// The client of a session that is to leave.
#[derive(Debug)]
pub struct LeavingClient {
    /// The client itself.
    pub client: Arc<Client>,
    era: Era,
}

/// What a session takes along to another instance.
#[derive(Debug)]
pub struct Handover {
    state: SessionState,
    /// Calls that were not sent to the server, oldest first.
    waiting: Vec<Call>,
}

impl Multiplexer {
    /// Returns whether the instance belongs to one principal, so that a session of another one may
    /// have to leave.
    pub fn is_owned(&self) -> bool {
        self.attribution.is_owned()
    }

    /// Returns the client of a session that is to leave: the instance is another principal's, and
    /// has nothing left for it.
    pub fn leaving_client(&self, session: SessionKey) -> Option<LeavingClient> {
        let entry = self.ledger.sessions.get(session)?;
        let principal = &entry.client.principal;
        let stays = self.suits(principal) || self.tasks.has_any_of(principal) || self.is_busy_with(session);
        (!stays).then(|| LeavingClient {
            client: Arc::clone(&entry.client),
            era: entry.era,
        })
    }

    /// Returns whether another principal's calls keep a call of this session from being sent.
    pub fn is_kept_waiting(&self, session: SessionKey) -> bool {
        let mut waiting = self.ledger.waiting.iter();
        waiting.any(|waiting| waiting.call.session == session)
    }

    /// Returns whether the session waits for its opening, or has a call or question that the server
    /// knows.
    fn is_busy_with(&self, session: SessionKey) -> bool {
        let (mut calls, mut pending_opens) = (self.ledger.calls(), self.ledger.pending_opens.iter());
        calls.any(|(_, call)| call.session == session)
            || pending_opens.any(|pending_open| pending_open.session == session)
            || self.ledger.questions.has_any(session)
    }

    /// Releases a session that is to leave. Returns what it takes along, or `None` if it is to
    /// stay.
    pub fn hand_over(&mut self, now: Moment, session: SessionKey) -> Option<Handover> {
        self.leaving_client(session)?;
        let waiting = self.ledger.waiting.take_of(session, |_| true);
        let handover = Handover {
            state: SessionState {
                log_level: self.subscriptions.level(session),
                subscriptions: self.subscriptions.subscriptions_of(session),
            },
            waiting: waiting.into_iter().map(|waiting| waiting.call).collect(),
        };
        self.close(now, session);
        Some(handover)
    }

    /// Attaches a session that another instance is about to hand over, so that its calls can follow
    /// at any time. The server gets its handshake if it had none.
    pub fn expect_session(&mut self, now: Moment, session: SessionKey, leaving: LeavingClient) {
        if self.ledger.sessions.contains(session) {
            return;
        }
        let entry = SessionEntry::new(leaving.client, leaving.era, true);
        self.attach(now, session, entry, None);
        self.link.expect_sessions();
        match self.is_ready() {
            true => self.sync_listen(),
            false => self.ensure_link(now),
        }
    }

    /// Takes over what the session has brought along. Returns whether the session is still there;
    /// if it has ended meanwhile, its calls are dropped.
    pub fn take_over(&mut self, now: Moment, session: SessionKey, handover: Handover) -> bool {
        let Handover { state, waiting } = handover;
        if !self.ledger.sessions.contains(session) {
            return false;
        }
        let is_ready = self.is_ready();
        self.take_state(now, session, state);
        if is_ready {
            // The lists may differ from those of the server that it came from.
            self.tell_lists_changed(&[session]);
        }
        self.sync_listen();
        for call in waiting {
            self.call(now, call);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};

    use super::super::{Limits, Output};
    use super::*;
    use crate::backend_face::legacy::ClientHello;
    use crate::exchange::{Ask, BackendError, CallKey, Principal, Request, Tell};
    use crate::message::Message;
    use crate::method::LogLevel;

    const ANN: SessionKey = SessionKey(1);
    const BOB: SessionKey = SessionKey(2);
    const INITIALIZE_RESULT: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"logging":{},"resources":{"subscribe":true},"tools":{"listChanged":true}},"serverInfo":{"name":"s","version":"1"}}}"#;

    fn client(principal: &str) -> Arc<Client> {
        let declared = Some(Bytes::from_static(br#"{"elicitation":{},"roots":{}}"#));
        Arc::new(Client::declaring(Principal::named(principal), declared, None))
    }

    /// Returns an instance before its handshake.
    fn instance() -> Multiplexer {
        Multiplexer::new(Limits::default(), ClientHello::Union)
    }

    /// Returns an instance that Ann and Bob share.
    fn shared() -> Multiplexer {
        shared_with(INITIALIZE_RESULT)
    }

    fn shared_with(server_info: &str) -> Multiplexer {
        let mut machine = instance();
        machine.handle_link_up(Moment::START);
        for (session, principal) in [(ANN, "ann"), (BOB, "bob")] {
            let open = Ask::Open {
                session,
                call: CallKey(0),
                client: client(principal),
                initialize: None,
                era: Era::Legacy,
                wants_notifications: true,
            };
            machine.handle_ask(Moment::START, open);
        }
        receive(&mut machine, server_info);
        machine
    }

    fn receive(machine: &mut Multiplexer, line: &str) {
        machine.handle_line(Moment::START, Bytes::copy_from_slice(line.as_bytes()));
    }

    fn call(machine: &mut Multiplexer, session: SessionKey, method: &str, request: Request) {
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{{"name":"{method}"}}}}"#);
        let call = Call {
            session,
            call: CallKey(1),
            request,
            message: Message::own(text),
            era: Era::Legacy,
            mirrored: None,
            reads_events: true,
        };
        machine.handle_ask(Moment::START, Ask::Call(call));
    }

    fn ask(machine: &mut Multiplexer) {
        receive(
            machine,
            r#"{"jsonrpc":"2.0","id":90,"method":"elicitation/create","params":{"message":"?"}}"#,
        );
    }

    fn sent(machine: &mut Multiplexer) -> String {
        let sent = machine.take_outgoing(BytesMut::new());
        machine.handle_written();
        String::from_utf8(sent.to_vec()).expect("text")
    }

    fn lists_changed_for(machine: &mut Multiplexer) -> Vec<SessionKey> {
        std::iter::from_fn(|| machine.poll_output())
            .filter_map(|output| match output {
                Output::Tell(Tell::Notice { session, .. }) => Some(session),
                Output::Tell(_)
                | Output::WantLink
                | Output::Replace { .. }
                | Output::Shown(_)
                | Output::Noise { .. } => None,
            })
            .collect()
    }

    /// Bob has a subscription, a log level and a call that waits for Ann's answer.
    fn occupied() -> Multiplexer {
        let mut machine = shared();
        let subscribe = Request::Subscribe { uri: "x:/a".into() };
        call(&mut machine, BOB, "resources/subscribe", subscribe);
        let level = LogLevel::Debug;
        call(&mut machine, BOB, "logging/setLevel", Request::SetLevel { level });
        for id in 2..=3 {
            receive(
                &mut machine,
                &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#),
            );
        }
        call(&mut machine, ANN, "tools/call", Request::Plain);
        ask(&mut machine);
        call(&mut machine, BOB, "tools/call", Request::Plain);
        sent(&mut machine);
        machine
    }

    #[test]
    fn session_takes_its_subscriptions_level_and_unsent_calls_to_a_new_instance() {
        let mut old = occupied();
        assert!(old.leaving_client(BOB).is_some() && old.is_kept_waiting(BOB));
        assert!(old.leaving_client(ANN).is_none(), "the server asked Ann");
        let mut new = instance();
        new.expect_session(Moment::START, BOB, old.leaving_client(BOB).expect("Bob leaves"));
        assert!(matches!(new.poll_output(), Some(Output::WantLink)));
        let handover = old.hand_over(Moment::START, BOB).expect("Bob leaves");
        let unsubscribed = sent(&mut old);
        assert!(unsubscribed.contains("resources/unsubscribe"), "{unsubscribed}");
        assert_eq!((old.sessions(), old.waiting_calls()), (1, 0));
        new.take_over(Moment::START, BOB, handover);
        new.handle_link_up(Moment::START);
        assert!(sent(&mut new).contains("initialize"));
        receive(&mut new, INITIALIZE_RESULT);
        let sent = sent(&mut new);
        for part in ["initialized", r#""level":"debug""#, "x:/a", "tools/call"] {
            assert!(sent.contains(part), "{part} in {sent}");
        }
        assert_eq!(lists_changed_for(&mut new), [BOB]);
    }

    #[test]
    fn session_takes_the_same_to_an_instance_that_runs() {
        let mut old = occupied();
        let mut new = instance();
        new.initialize_at_start();
        new.handle_link_up(Moment::START);
        receive(&mut new, INITIALIZE_RESULT);
        sent(&mut new);
        new.expect_session(Moment::START, BOB, old.leaving_client(BOB).expect("Bob leaves"));
        let handover = old.hand_over(Moment::START, BOB).expect("Bob leaves");
        new.take_over(Moment::START, BOB, handover);
        let sent = sent(&mut new);
        for part in [r#""level":"debug""#, "x:/a", "tools/call"] {
            assert!(sent.contains(part), "{part} in {sent}");
        }
        assert_eq!(lists_changed_for(&mut new), [BOB]);
        assert!(new.suits(&Principal::named("bob")));
    }

    #[test]
    fn session_stays_while_its_call_is_open() {
        let mut machine = shared();
        call(&mut machine, ANN, "tools/call", Request::Plain);
        call(&mut machine, BOB, "tools/list", Request::Plain);
        ask(&mut machine);
        assert!(machine.hand_over(Moment::START, BOB).is_none());
        receive(&mut machine, r#"{"jsonrpc":"2.0","id":3,"result":{"tools":[]}}"#);
        assert!(machine.hand_over(Moment::START, BOB).is_some());
    }

    #[test]
    fn session_stays_while_it_is_asked_outside_any_call() {
        let mut machine = shared();
        call(&mut machine, ANN, "tools/call", Request::Plain);
        ask(&mut machine);
        receive(&mut machine, r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
        let message = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
        let message = Message::own(message.to_owned());
        machine.handle_ask(
            Moment::START,
            Ask::Notice {
                session: BOB,
                message,
            },
        );
        assert!(machine.leaving_client(BOB).is_some());
        receive(&mut machine, r#"{"jsonrpc":"2.0","id":91,"method":"roots/list"}"#);
        assert!(machine.leaving_client(BOB).is_none(), "the server asked Bob");
    }

    #[test]
    fn session_stays_while_it_waits_for_its_opening() {
        let mut machine = shared();
        call(&mut machine, ANN, "tools/call", Request::Plain);
        ask(&mut machine);
        let backend_error = Arc::new(BackendError::default());
        machine.handle_link_down(&backend_error);
        let carl = SessionKey(3);
        let open = Ask::Open {
            session: carl,
            call: CallKey(0),
            client: client("carl"),
            initialize: None,
            era: Era::Legacy,
            wants_notifications: true,
        };
        machine.handle_ask(Moment::START, open);
        assert!(
            machine.leaving_client(carl).is_none(),
            "Carl waits for the answer"
        );
        machine.handle_link_up(Moment::START);
        let hello = sent(&mut machine);
        let id = hello
            .split(r#""id":"#)
            .nth(1)
            .and_then(|rest| rest.split(',').next());
        let result = INITIALIZE_RESULT.replace(r#""id":1"#, &format!(r#""id":{}"#, id.expect("an id")));
        receive(&mut machine, &result);
        assert!(machine.leaving_client(carl).is_some());
    }

    #[test]
    fn session_stays_where_its_principal_has_a_task() {
        let tasks = r#"{"tasks":{"requests":{"tools":{"call":{}}}},"#;
        let mut machine =
            shared_with(&INITIALIZE_RESULT.replace(r#"{"logging""#, &format!(r#"{tasks}"logging""#)));
        call(&mut machine, BOB, "tools/call", Request::Plain);
        receive(
            &mut machine,
            r#"{"jsonrpc":"2.0","id":2,"result":{"task":{"taskId":"t","status":"working","createdAt":"","lastUpdatedAt":"","ttl":1000}}}"#,
        );
        call(&mut machine, ANN, "tools/call", Request::Plain);
        ask(&mut machine);
        assert!(machine.leaving_client(BOB).is_none());
    }

    #[test]
    fn session_that_is_alone_stays() {
        let mut machine = shared();
        call(&mut machine, ANN, "tools/call", Request::Plain);
        ask(&mut machine);
        receive(&mut machine, r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
        assert!(machine.leaving_client(BOB).is_some());
        machine.handle_ask(Moment::START, Ask::Close { session: ANN });
        assert!(
            machine.leaving_client(BOB).is_none(),
            "no other principal is left"
        );
    }
}
