//! Gateways that share a registry in memory: what becomes of their sessions.

use bytes::Bytes;
use http::HeaderMap;
use protocol::exchange::{Failure, Principal};
use protocol::message::Message;
use protocol::session::Accepts;
use protocol::version::Version;

use super::*;
use crate::endpoint::{Endpoint, SessionOpen};
use crate::fixture;
use crate::gateway::Gateway;
use crate::guard::limits::Limiter;
use crate::session_handle::{Acceptance, Answered, SessionHandle};

/// A gateway whose fleet runs.
struct Running {
    gateway: Arc<Gateway>,
    endpoint: Arc<Endpoint>,
    fleet: Arc<Fleet>,
    _task: tasks::Owned<()>,
}

impl Running {
    async fn start(registry: &MemoryRegistry, name: &str) -> Self {
        let gateway = fixture::replica(&fixture::settings(), registry, name);
        let endpoint = gateway.config().destinations.values().next().cloned().unwrap();
        let fleet = Arc::clone(endpoint.fleet().unwrap());
        let running = Arc::clone(&fleet);
        let task = tasks::Owned(tasks::spawn("fleet", async move { running.run().await }));
        fleet.begun().await;
        Self {
            gateway,
            endpoint,
            fleet,
            _task: task,
        }
    }

    /// Opens a session and writes its record.
    async fn open(&self) -> (Uuid, Arc<SessionHandle>) {
        let opening = SessionOpen::Implicit(Version::ASSUMED);
        let opened = self
            .endpoint
            .open(Principal::anonymous(), &HeaderMap::new(), opening);
        let (handle, _) = opened.unwrap();
        let hello = || Hello::Implicit(Version::ASSUMED.as_str().to_owned());
        let record = self.endpoint.keep(&handle, hello);
        self.endpoint.write_record(&handle, record).await.unwrap();
        (handle.id().parse().unwrap(), handle)
    }

    async fn restore(&self, session: Uuid) -> Arc<SessionHandle> {
        let limiter = Limiter::new(fixture::settings().limits);
        let (principal, headers) = (Principal::anonymous(), HeaderMap::new());
        let permit = async { limiter.session(None) };
        let restored = self
            .endpoint
            .restore(session, &principal, (&headers, None), permit);
        restored.await.unwrap()
    }

    fn has(&self, session: Uuid) -> bool {
        self.endpoint.session(session, &Principal::anonymous()).is_some()
    }
}

#[tokio::test]
async fn copy_of_a_session_that_was_taken_over_ends_and_its_record_stays() {
    let registry = MemoryRegistry::new();
    let one = Running::start(&registry, "one").await;
    let other = Running::start(&registry, "other").await;
    let (session, handle) = one.open().await;
    registry.leave(&one.fleet.node().id).await.unwrap();
    let restored = other.restore(session).await;
    assert_eq!(restored.kept().map(|record| record.claim().epoch), Some(2));
    assert!(one.has(session), "it has not learnt of it");
    // The next use of the session shows it.
    let touch = cluster::Touch {
        claim: handle.kept().unwrap().claim().clone(),
        at: cluster::WallTime::from_unix(0),
        idle: IDLE,
    };
    one.fleet.store().touch(vec![touch]);
    one.endpoint.metrics.idle.wait_until(|| !one.has(session)).await;
    assert!(other.has(session));
    let located = registry.look_up(session).await.unwrap().unwrap();
    assert_eq!(located.record.owner, Some(other.fleet.node().id.clone()));
}

#[tokio::test]
async fn call_that_meets_a_copy_while_it_ends_is_lost_and_not_ended_by_its_client() {
    let registry = MemoryRegistry::new();
    let one = Running::start(&registry, "one").await;
    let (session, handle) = one.open().await;
    let text = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a"}}"#;
    let message = Message::scan(Bytes::from_static(text.as_bytes())).unwrap();
    let Ok(Acceptance::Call(call)) = handle.take(message, Accepts::Json, None) else {
        panic!("a call is taken");
    };
    assert!(one.endpoint.drop_copy(session, 1));
    let Answered::Complete { failure, .. } = handle.answer(call).await else {
        panic!("its client reads no events");
    };
    assert_eq!(failure, Some(Failure::OwnerLost));
}

#[tokio::test]
async fn records_of_open_sessions_are_written_again_with_what_their_clients_set() {
    let registry = MemoryRegistry::new();
    let one = Running::start(&registry, "one").await;
    let (session, handle) = one.open().await;
    let state = protocol::exchange::SessionState {
        log_level: Some(protocol::method::LogLevel::Error),
        subscriptions: Vec::new(),
    };
    handle.kept().unwrap().set_state(&state);
    handle.kept().unwrap().written().await;
    registry.clear();
    let wanted = Wanted {
        destination: "demo",
        principal: "ann",
    };
    let located = loop {
        // A request for an unknown session makes the replica renew its lease at once.
        one.fleet.route(Uuid::new_v4(), wanted).await;
        if let Some(located) = registry.look_up(session).await.unwrap() {
            break located;
        }
    };
    assert_eq!(located.record.state.log_level.as_deref(), Some("error"));
    assert!(one.has(session));
}

#[tokio::test]
async fn drain_hands_sessions_over_and_another_replica_goes_on() {
    let registry = MemoryRegistry::new();
    let one = Running::start(&registry, "one").await;
    let other = Running::start(&registry, "other").await;
    let (session, _) = one.open().await;
    // Its server is never reached, so that its handshake lasts until the end of the drain.
    one.gateway.drain().await;
    one.gateway.stop_all().await;
    assert!(!one.has(session));
    one.fleet.close_all(IDLE).await;
    let located = registry.look_up(session).await.unwrap().unwrap();
    assert_eq!((located.record.owner, located.record.epoch), (None, 1));
    assert_eq!(registry.nodes().await.unwrap().len(), 1);
    other.restore(session).await;
    assert!(other.has(session));
}
