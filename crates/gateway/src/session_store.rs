//! The records of sessions that outlive this process.
//!
//! A record is written before the id of its session is shown, follows what the client sets, is
//! removed when the session ends, and is released when the gateway stops. A request for a session
//! that this process does not have looks for its record here ([`SessionStore::claim`]).
//!
//! Later changes are queued by session: a newer one takes the place of an older one, so that the
//! queue is bounded by the number of sessions. One task writes them ([`SessionStore::run`]).

mod queue;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use cluster::RegistryError;
use cluster::record::{self, Node, NodeId, SessionRecord, State, WallTime};
use cluster::registry::{Change, Claim, Created, Owner, Registry, TakeOver, Touch, Updated};
use parking_lot::Mutex;
use protocol::exchange::SessionState;
use protocol::method::LogLevel;
use protocol::session::IMPLICIT_IDLE;
use tokio::sync::watch;
use uuid::Uuid;

use crate::seal::Sealer;
use queue::{Ending, Queue, Write};

/// How often the use of a session is noted, at most.
const TOUCH_INTERVAL: Duration = Duration::from_secs(60);
/// How long the answer to a request that set something waits for its record.
const WRITE_PATIENCE: Duration = Duration::from_secs(2);
/// The pause after a write that failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often a take-over is tried again after another process was faster.
const MAX_ATTEMPTS: usize = 3;

/// The records of all sessions.
#[derive(Debug)]
pub(crate) struct SessionStore {
    registry: Arc<dyn Registry>,
    node: Node,
    /// Seals the tokens of event ids.
    sealer: Arc<Sealer>,
    /// How long a session may be idle, in milliseconds. A reload may change it.
    session_idle: AtomicU64,
    /// The sessions that a request restores at this moment. The sender is with that request.
    restoring: Mutex<HashMap<Uuid, watch::Receiver<()>>>,
    queue: Queue,
}

/// Why a session cannot be had from its record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Another process serves the session.
    #[error("the session is served by {0}")]
    Elsewhere(NodeId),
}

/// The record of one session that is open here.
#[derive(Debug)]
pub(crate) struct RecordHandle {
    store: Arc<SessionStore>,
    claim: Claim,
    is_implicit: bool,
    /// When its use was last noted, in seconds since the epoch of Unix.
    touched: AtomicU64,
}

impl SessionStore {
    pub(crate) fn new(registry: Arc<dyn Registry>, sealer: Arc<Sealer>, session_idle: Duration) -> Self {
        let id = NodeId::generate("local").expect("a plain name");
        let store = Self {
            registry,
            node: Node {
                id,
                address: None,
                program: env!("CARGO_PKG_VERSION").to_owned(),
            },
            sealer,
            session_idle: AtomicU64::new(0),
            restoring: Mutex::default(),
            queue: Queue::default(),
        };
        store.set_session_idle(session_idle);
        store
    }

    /// Takes over a setting that a reload may change.
    pub(crate) fn set_session_idle(&self, session_idle: Duration) {
        let idle = u64::try_from(session_idle.as_millis()).unwrap_or(u64::MAX);
        self.session_idle.store(idle, Ordering::Relaxed);
    }

    fn idle(&self, is_implicit: bool) -> Duration {
        match is_implicit {
            true => IMPLICIT_IDLE,
            false => Duration::from_millis(self.session_idle.load(Ordering::Relaxed)),
        }
    }

    /// Returns how long a record stays after the last note of its use. The session may have been
    /// used since then.
    fn lifetime(&self, is_implicit: bool) -> Duration {
        let idle = self.idle(is_implicit);
        idle.saturating_add(touch_interval(idle))
    }

    /// Returns the claim of a session that is opened here.
    pub(crate) fn new_claim(&self, session: Uuid) -> Claim {
        Claim {
            session,
            owner: self.node.id.clone(),
            epoch: 1,
        }
    }

    /// Returns the handle of a record.
    pub(crate) fn handle(self: &Arc<Self>, claim: Claim, is_implicit: bool) -> RecordHandle {
        RecordHandle {
            store: Arc::clone(self),
            claim,
            is_implicit,
            touched: AtomicU64::new(now().unix()),
        }
    }

    /// Writes the record of a new session. Its id must not be shown before.
    pub(crate) async fn create(
        &self,
        claim: &Claim,
        destination: &str,
        principal: &str,
        hello: record::Hello,
    ) -> Result<(), RegistryError> {
        let is_implicit = matches!(hello, record::Hello::Implicit(_));
        let record = SessionRecord {
            session: claim.session,
            destination: destination.to_owned(),
            principal: principal.to_owned(),
            owner: Some(claim.owner.clone()),
            epoch: claim.epoch,
            hello,
            state: State::default(),
            created: now(),
            last_active: now(),
        };
        match self.registry.create(&record, self.lifetime(is_implicit)).await? {
            Created::Created => Ok(()),
            // Ids are drawn at random, so this is no accident of Rialto's.
            Created::Exists(_) => Err(RegistryError::Refused("the session exists already".to_owned())),
        }
    }

    /// Makes this process the owner of a session, if `suits` accepts its record. Returns the record
    /// with its new epoch; `None` if there is no such session.
    pub(crate) async fn claim(
        &self,
        session: Uuid,
        suits: impl Fn(&SessionRecord) -> bool,
    ) -> Result<Option<Box<SessionRecord>>, ClaimError> {
        let Some(mut located) = self.registry.look_up(session).await? else {
            return Ok(None);
        };
        for _ in 0..MAX_ATTEMPTS {
            if !suits(&located.record) {
                return Ok(None);
            }
            match &located.owner {
                Owner::Living(node) if node.id != self.node.id => {
                    return Err(ClaimError::Elsewhere(node.id.clone()));
                }
                Owner::Living(_) | Owner::Gone => {}
            }
            let is_implicit = matches!(located.record.hello, record::Hello::Implicit(_));
            let (seen, idle) = (located.record.epoch, self.lifetime(is_implicit));
            let taken = self.registry.take_over(session, seen, &self.node.id, idle);
            match taken.await? {
                TakeOver::Won(record) => return Ok(Some(record)),
                TakeOver::Lost(now) => located = *now,
                TakeOver::Unknown => return Ok(None),
            }
        }
        Err(RegistryError::Unreachable("the session is taken over again and again".to_owned()).into())
    }

    /// Deletes the record of a session that is open nowhere.
    pub(crate) async fn remove(&self, claim: &Claim) -> Result<(), RegistryError> {
        self.registry.remove(claim).await.map(note_superseded)
    }

    /// Waits until no other request restores this session. The caller restores it while it keeps
    /// the returned value.
    pub(crate) async fn turn(&self, session: Uuid) -> Turn<'_> {
        loop {
            let mut other = {
                let mut restoring = self.restoring.lock();
                match restoring.get(&session) {
                    Some(other) => other.clone(),
                    None => {
                        let (sender, receiver) = watch::channel(());
                        restoring.insert(session, receiver);
                        return Turn {
                            store: self,
                            session,
                            _sender: sender,
                        };
                    }
                }
            };
            // It ends with an error, because the sender is dropped.
            let _ = other.changed().await;
        }
    }

    /// Notes that sessions were used, in one batch.
    pub(crate) fn touch(&self, touches: Vec<Touch>) {
        self.queue.touch(touches);
    }

    /// Writes what is queued, until the gateway ends.
    pub(crate) async fn run(&self) {
        if let Err(error) = self.registry.join(&self.node).await {
            tracing::warn!(%error, "the registry of sessions cannot be joined");
        }
        loop {
            self.queue.filled().await;
            if !self.write_queued().await {
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }

    /// Writes what is queued. Returns whether everything was written.
    async fn write_queued(&self) -> bool {
        let touches = self.queue.take_touches();
        if !touches.is_empty() {
            // A touch that is lost is made up for by the next one.
            if let Err(error) = self.registry.touch_many(touches).await {
                tracing::warn!(%error, "the use of sessions cannot be noted");
            }
        }
        while let Some((claim, write)) = self.queue.next() {
            match self.write(&claim, &write).await {
                Ok(()) => self.queue.handle_written(&claim, &write),
                Err(error @ (RegistryError::Unreachable(_) | RegistryError::Full(_))) => {
                    tracing::warn!(%error, "a record of a session cannot be written; trying again");
                    return false;
                }
                Err(error) => {
                    tracing::error!(%error, "a record of a session cannot be written");
                    self.queue.handle_written(&claim, &write);
                }
            }
        }
        true
    }

    async fn write(&self, claim: &Claim, write: &Write) -> Result<(), RegistryError> {
        if let Some((state, is_implicit)) = &write.state {
            let change = Change::State(state.clone());
            let updated = self.registry.update(claim, change, self.lifetime(*is_implicit));
            note_superseded(updated.await?);
        }
        match write.ending {
            None => Ok(()),
            Some(Ending::Removed) => self.registry.remove(claim).await.map(note_superseded),
            Some(Ending::Released) => self.registry.release(claim).await.map(note_superseded),
        }
    }

    /// Writes what is still queued and leaves the registry, at most for `limit`.
    pub(crate) async fn close(&self, limit: Duration) {
        let closing = async {
            self.queue.emptied(None).await;
            if let Err(error) = self.registry.leave(&self.node.id).await {
                tracing::warn!(%error, "the registry of sessions cannot be left");
            }
        };
        if tokio::time::timeout(limit, closing).await.is_err() {
            tracing::warn!("the records of some sessions were not written in time");
        }
    }
}

/// The right to restore a session, for one request at a time.
pub(crate) struct Turn<'a> {
    store: &'a SessionStore,
    session: Uuid,
    _sender: watch::Sender<()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.store.restoring.lock().remove(&self.session);
    }
}

impl RecordHandle {
    /// Queues what the client has set.
    pub(crate) fn set_state(&self, state: &SessionState) {
        let state = State {
            log_level: state.log_level.map(|level| level.as_str().to_owned()),
            subscriptions: state.subscriptions.clone(),
        };
        self.store.queue.set_state(&self.claim, state, self.is_implicit);
    }

    /// Waits until what was queued for this session is written, but not for long: the record
    /// follows later then.
    pub(crate) async fn written(&self) {
        let written = self.store.queue.emptied(Some(&self.claim));
        if tokio::time::timeout(WRITE_PATIENCE, written).await.is_err() {
            tracing::warn!("a client is answered before its session is written down");
        }
    }

    /// The session has ended: there will be no other life of it.
    pub(crate) fn remove(&self) {
        self.store.queue.end(&self.claim, Ending::Removed);
    }

    /// The session ends here and may go on in another process.
    pub(crate) fn release(&self) {
        self.store.queue.end(&self.claim, Ending::Released);
    }

    /// Returns the note of the session's use, if one is due. `idle` is how long the session has
    /// been idle.
    pub(crate) fn due_touch(&self, idle: Duration) -> Option<Touch> {
        let at = now().unix().saturating_sub(idle.as_secs());
        let touched = self.touched.load(Ordering::Relaxed);
        let interval = touch_interval(self.store.idle(self.is_implicit));
        if at.saturating_sub(touched) < interval.as_secs() {
            return None;
        }
        self.touched.store(at, Ordering::Relaxed);
        Some(Touch {
            claim: self.claim.clone(),
            at: WallTime::from_unix(at),
            idle: self.store.lifetime(self.is_implicit).saturating_sub(idle),
        })
    }

    /// Returns the end of the event ids of a call's stream. It names the call, for the process that
    /// has the session next.
    pub(crate) fn token(&self, id: &[u8], bound_to: &str) -> Option<Box<str>> {
        self.store.sealer.seal_call(id, bound_to)
    }

    /// Returns the id of the call that such a token names.
    pub(crate) fn call_of(&self, token: &str, bound_to: &str) -> Option<Vec<u8>> {
        self.store.sealer.open_call(token, bound_to)
    }
}

/// Returns what a client has set, as its session reads it.
pub(crate) fn session_state(state: State) -> SessionState {
    SessionState {
        log_level: state.log_level.as_deref().and_then(LogLevel::parse),
        subscriptions: state.subscriptions,
    }
}

/// A quarter of the idle time, so that a record does not expire long before or after its session.
fn touch_interval(idle: Duration) -> Duration {
    (idle / 4).min(TOUCH_INTERVAL)
}

/// Another process has the session by now: its record is that one's.
fn note_superseded(updated: Updated) {
    match updated {
        Updated::Done | Updated::Unknown => {}
        Updated::Superseded(epoch) => tracing::debug!(epoch, "a session has another owner by now"),
    }
}

fn now() -> WallTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    WallTime::from_unix(since.unwrap_or_default().as_secs())
}

#[cfg(test)]
mod tests {
    use cluster::MemoryRegistry;
    use cluster::registry::{Located, NodeStatus, Operation, Renewed};
    use futures_util::FutureExt as _;

    use super::*;

    const IDLE: Duration = Duration::from_secs(1800);

    fn store(registry: &Arc<impl Registry + 'static>) -> Arc<SessionStore> {
        let registry = Arc::clone(registry) as Arc<dyn Registry>;
        Arc::new(SessionStore::new(registry, Arc::default(), IDLE))
    }

    fn hello() -> record::Hello {
        record::Hello::Implicit("2025-06-18".to_owned())
    }

    async fn created(store: &Arc<SessionStore>) -> Claim {
        let claim = store.new_claim(Uuid::new_v4());
        store.create(&claim, "one", "ann", hello()).await.unwrap();
        claim
    }

    /// A registry that cannot be reached.
    #[derive(Debug)]
    struct Away;

    fn away<T>() -> Operation<T> {
        Box::pin(async { Err(RegistryError::Unreachable("away".to_owned())) })
    }

    impl Registry for Away {
        fn join(&self, _: &Node) -> Operation<()> {
            away()
        }
        fn renew(&self, _: &NodeId) -> Operation<Renewed> {
            away()
        }
        fn leave(&self, _: &NodeId) -> Operation<()> {
            away()
        }
        fn nodes(&self) -> Operation<Vec<NodeStatus>> {
            away()
        }
        fn create(&self, _: &SessionRecord, _: Duration) -> Operation<Created> {
            away()
        }
        fn look_up(&self, _: Uuid) -> Operation<Option<Located>> {
            away()
        }
        fn take_over(&self, _: Uuid, _: u64, _: &NodeId, _: Duration) -> Operation<TakeOver> {
            away()
        }
        fn update(&self, _: &Claim, _: Change, _: Duration) -> Operation<Updated> {
            away()
        }
        fn touch_many(&self, _: Vec<Touch>) -> Operation<Vec<Updated>> {
            away()
        }
        fn release(&self, _: &Claim) -> Operation<Updated> {
            away()
        }
        fn remove(&self, _: &Claim) -> Operation<Updated> {
            away()
        }
    }

    #[tokio::test]
    async fn session_of_a_process_that_ended_is_claimed_with_its_state_under_a_new_epoch() {
        let registry = Arc::new(MemoryRegistry::new());
        let (earlier, later) = (store(&registry), store(&registry));
        let claim = created(&earlier).await;
        let record = earlier.handle(claim.clone(), true);
        record.set_state(&SessionState {
            log_level: Some(LogLevel::Error),
            subscriptions: vec!["x:/a".to_owned()],
        });
        record.release();
        assert!(earlier.write_queued().await);
        let taken = later.claim(claim.session, |_| true).await.unwrap().unwrap();
        assert_eq!((taken.epoch, taken.owner), (2, Some(later.node.id.clone())));
        let state = session_state(taken.state);
        assert_eq!(
            (state.log_level, state.subscriptions.len()),
            (Some(LogLevel::Error), 1)
        );
    }

    #[tokio::test]
    async fn record_that_does_not_suit_stays_as_it_is() {
        let registry = Arc::new(MemoryRegistry::new());
        let (earlier, later) = (store(&registry), store(&registry));
        let claim = created(&earlier).await;
        let foreign = later
            .claim(claim.session, |record| record.principal == "bob")
            .await;
        assert!(foreign.unwrap().is_none());
        let located = registry.look_up(claim.session).await.unwrap().unwrap();
        assert_eq!(located.record.claim(), Some(claim));
    }

    #[tokio::test]
    async fn session_of_a_process_that_lives_is_not_claimed() {
        let registry = Arc::new(MemoryRegistry::new());
        let (earlier, later) = (store(&registry), store(&registry));
        registry.join(&earlier.node).await.unwrap();
        let claim = created(&earlier).await;
        let refused = later.claim(claim.session, |_| true).await;
        assert!(matches!(refused, Err(ClaimError::Elsewhere(_))), "{refused:?}");
        let own = earlier.claim(claim.session, |_| true).await.unwrap();
        assert_eq!(own.map(|record| record.epoch), Some(2));
    }

    #[tokio::test]
    async fn registry_that_is_away_is_an_error_and_what_is_queued_stays() {
        let store = store(&Arc::new(Away));
        let claim = store.new_claim(Uuid::new_v4());
        assert!(store.create(&claim, "one", "ann", hello()).await.is_err());
        assert!(store.claim(claim.session, |_| true).await.is_err());
        store.handle(claim.clone(), true).remove();
        assert!(!store.write_queued().await);
        assert_eq!(store.queue.next().map(|(claim, _)| claim), Some(claim));
    }

    #[tokio::test]
    async fn requests_of_one_session_take_turns() {
        let store = store(&Arc::new(MemoryRegistry::new()));
        let session = Uuid::new_v4();
        let first = store.turn(session).await;
        assert!(
            store.turn(Uuid::new_v4()).now_or_never().is_some(),
            "another session"
        );
        let mut second = Box::pin(store.turn(session));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.now_or_never().is_some());
        assert!(store.restoring.lock().is_empty());
    }

    #[test]
    fn use_of_a_session_is_noted_once_in_an_interval() {
        let store = store(&Arc::new(MemoryRegistry::new()));
        let record = store.handle(store.new_claim(Uuid::new_v4()), false);
        assert!(record.due_touch(Duration::ZERO).is_none(), "the record is new");
        record
            .touched
            .fetch_sub(TOUCH_INTERVAL.as_secs(), Ordering::Relaxed);
        assert!(
            record.due_touch(Duration::from_secs(30)).is_none(),
            "it was idle since"
        );
        let touch = record.due_touch(Duration::ZERO).expect("a minute is over");
        assert_eq!(touch.idle, IDLE + TOUCH_INTERVAL);
        assert!(record.due_touch(Duration::ZERO).is_none());
    }
}
