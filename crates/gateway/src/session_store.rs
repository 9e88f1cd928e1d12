//! The records of sessions that outlive this process.
//!
//! A record follows what the client sets, is removed when the session ends, and is released when
//! the gateway stops. `Fleet` decides which sessions this process has, and writes new records.
//!
//! Later changes are queued by session: a newer one takes the place of an older one, so that the
//! queue is bounded by the number of sessions. One task writes them ([`SessionStore::run`]).

mod queue;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use cluster::RegistryError;
use cluster::record::{self, SessionRecord, State, WallTime};
use cluster::registry::{Change, Claim, Registry, Touch, Updated};
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

/// The records of all sessions.
#[derive(Debug)]
pub(crate) struct SessionStore {
    registry: Arc<dyn Registry>,
    /// Seals the tokens of event ids.
    sealer: Arc<Sealer>,
    /// How long a session may be idle, in milliseconds. A reload may change it.
    session_idle: AtomicU64,
    /// The sessions that a request restores at this moment. The sender is with that request.
    restoring: Mutex<HashMap<Uuid, watch::Receiver<()>>>,
    queue: Queue,
}

/// What the registry answered to a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecordFact {
    /// To a change of a record.
    Updated(Claim, Updated),
    /// The record was released: another process may go on with the session.
    Released(Claim),
    /// The record was removed, or is no longer this process's.
    Ended(Claim),
    /// It could not be yet, and is tried again.
    NotEnded(Claim),
}

/// The record of one session that is open here.
#[derive(Debug)]
pub(crate) struct RecordHandle {
    store: Arc<SessionStore>,
    claim: Claim,
    is_implicit: bool,
    /// The record as it was written last, where an engine may lose it.
    record: Option<Mutex<SessionRecord>>,
    /// When its use was last noted, in seconds since the epoch of Unix.
    touched: AtomicU64,
}

impl SessionStore {
    pub(crate) fn new(registry: Arc<dyn Registry>, sealer: Arc<Sealer>, session_idle: Duration) -> Self {
        let store = Self {
            registry,
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
    pub(crate) fn lifetime(&self, is_implicit: bool) -> Duration {
        let idle = self.idle(is_implicit);
        idle.saturating_add(touch_interval(idle))
    }

    /// Returns the handle of a record. `record` is kept where an engine may lose it.
    pub(crate) fn handle(
        self: &Arc<Self>,
        claim: Claim,
        is_implicit: bool,
        record: Option<SessionRecord>,
    ) -> RecordHandle {
        RecordHandle {
            store: Arc::clone(self),
            claim,
            is_implicit,
            record: record.map(Mutex::new),
            touched: AtomicU64::new(now().unix()),
        }
    }

    /// Has the record of a session removed that has ended.
    pub(crate) fn remove(&self, claim: &Claim) {
        self.queue.end(claim, Ending::Removed);
    }

    /// Has a session released that may go on in another process.
    pub(crate) fn release(&self, claim: &Claim) {
        self.queue.end(claim, Ending::Released);
    }

    /// Waits until what was queued for a session is written. Returns whether it was, within a short
    /// time.
    pub(crate) async fn written(&self, claim: &Claim) -> bool {
        let written = self.queue.emptied(Some(claim));
        tokio::time::timeout(WRITE_PATIENCE, written).await.is_ok()
    }

    /// Waits until no other request restores this session. The caller restores it while it keeps
    /// the returned value.
    pub(crate) async fn lock_restoration(&self, session: Uuid) -> RestoreLock<'_> {
        loop {
            let mut other = {
                let mut restoring = self.restoring.lock();
                match restoring.get(&session) {
                    Some(other) => other.clone(),
                    None => {
                        let (sender, receiver) = watch::channel(());
                        restoring.insert(session, receiver);
                        return RestoreLock {
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

    /// Writes what is queued, until the gateway ends. `report` gets what the registry answered.
    pub(crate) async fn run(&self, report: impl Fn(RecordFact)) {
        loop {
            self.queue.filled().await;
            if !self.write_queued(&report).await {
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }

    /// Writes what is queued. Returns whether everything was written.
    async fn write_queued(&self, report: &impl Fn(RecordFact)) -> bool {
        let touches = self.queue.take_touches();
        if !touches.is_empty() {
            let claims: Vec<Claim> = touches.iter().map(|touch| touch.claim.clone()).collect();
            match self.registry.touch_many(touches).await {
                Ok(touched) => {
                    for (claim, updated) in claims.into_iter().zip(touched) {
                        report(RecordFact::Updated(claim, updated));
                    }
                }
                // A touch that is lost is made up for by the next one.
                Err(error) => tracing::warn!(%error, "the use of sessions cannot be noted"),
            }
        }
        while let Some((claim, write)) = self.queue.next() {
            let written = self.write(&claim, &write, report).await;
            let is_to_be_repeated = matches!(
                written,
                Err(RegistryError::Unreachable(_) | RegistryError::Full(_))
            );
            if let Err(error) = &written {
                tracing::warn!(%error, "a record of a session cannot be written");
            }
            if !is_to_be_repeated {
                self.queue.handle_written(&claim, &write);
            }
            if write.ending.is_some() {
                report(match written {
                    Ok(Some(Updated::Done)) => RecordFact::Released(claim),
                    _ if is_to_be_repeated => RecordFact::NotEnded(claim),
                    _ => RecordFact::Ended(claim),
                });
            }
            if is_to_be_repeated {
                return false;
            }
        }
        true
    }

    /// Writes what is queued for one session. Returns the answer to a release, if it is one.
    async fn write(
        &self,
        claim: &Claim,
        write: &Write,
        report: &impl Fn(RecordFact),
    ) -> Result<Option<Updated>, RegistryError> {
        if let Some((state, is_implicit)) = &write.state {
            let change = Change::State(state.clone());
            let updating = self.registry.update(claim, change, self.lifetime(*is_implicit));
            report(RecordFact::Updated(claim.clone(), updating.await?));
        }
        // A record that has another owner by now is that one's.
        match write.ending {
            None => Ok(None),
            Some(Ending::Removed) => self.registry.remove(claim).await.map(|_| None),
            Some(Ending::Released) => self.registry.release(claim).await.map(Some),
        }
    }

    /// Waits until everything is written, at most for `limit`.
    pub(crate) async fn close(&self, limit: Duration) {
        let written = self.queue.emptied(None);
        if tokio::time::timeout(limit, written).await.is_err() {
            tracing::warn!("the records of some sessions were not written in time");
        }
    }
}

/// The right to restore a session, for one request at a time.
pub(crate) struct RestoreLock<'a> {
    store: &'a SessionStore,
    session: Uuid,
    _sender: watch::Sender<()>,
}

impl Drop for RestoreLock<'_> {
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
        if let Some(record) = &self.record {
            record.lock().state = state.clone();
        }
        self.store.queue.set_state(&self.claim, state, self.is_implicit);
    }

    /// Waits until what was queued for this session is written, but not for long: the record
    /// follows later then.
    pub(crate) async fn written(&self) {
        if !self.store.written(&self.claim).await {
            tracing::warn!("a client is answered before its session is written down");
        }
    }

    /// Returns which session this process serves, and under which epoch.
    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Returns the record as it was written last, where it is kept.
    pub(crate) fn record(&self) -> Option<SessionRecord> {
        Some(self.record.as_ref()?.lock().clone())
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

/// Returns the record of a session that is opened now.
pub(crate) fn new_record(
    claim: &Claim,
    destination: &str,
    principal: &str,
    hello: record::Hello,
) -> SessionRecord {
    SessionRecord {
        session: claim.session,
        destination: destination.to_owned(),
        principal: principal.to_owned(),
        owner: Some(claim.owner.clone()),
        epoch: claim.epoch,
        hello,
        state: State::default(),
        created: now(),
        last_active: now(),
    }
}

fn now() -> WallTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    WallTime::from_unix(since.unwrap_or_default().as_secs())
}

#[cfg(test)]
mod tests {
    use cluster::MemoryRegistry;
    use cluster::record::NodeId;
    use futures_util::FutureExt as _;

    use super::*;

    const IDLE: Duration = Duration::from_secs(1800);

    fn store(registry: &Arc<impl Registry + 'static>) -> Arc<SessionStore> {
        let registry = Arc::clone(registry) as Arc<dyn Registry>;
        Arc::new(SessionStore::new(registry, Arc::default(), IDLE))
    }

    fn new_claim() -> Claim {
        Claim {
            session: Uuid::new_v4(),
            owner: NodeId::generate("local").unwrap(),
            epoch: 1,
        }
    }

    async fn created(registry: &MemoryRegistry) -> Claim {
        let claim = new_claim();
        let record = new_record(
            &claim,
            "one",
            "ann",
            record::Hello::Implicit("2025-06-18".to_owned()),
        );
        registry.create(&record, IDLE).await.unwrap();
        claim
    }

    #[tokio::test]
    async fn queued_state_and_end_are_written_and_reported() {
        let registry = Arc::new(MemoryRegistry::new());
        let store = store(&registry);
        let claim = created(&registry).await;
        let record = store.handle(claim.clone(), true, None);
        record.set_state(&SessionState {
            log_level: Some(LogLevel::Error),
            subscriptions: vec!["x:/a".to_owned()],
        });
        store.release(&claim);
        let facts = Mutex::new(Vec::new());
        assert!(store.write_queued(&|fact| facts.lock().push(fact)).await);
        let expected = [
            RecordFact::Updated(claim.clone(), Updated::Done),
            RecordFact::Released(claim.clone()),
        ];
        assert_eq!(*facts.lock(), expected);
        let located = registry.look_up(claim.session).await.unwrap().unwrap();
        assert_eq!(located.record.owner, None);
        let state = session_state(located.record.state);
        assert_eq!(
            (state.log_level, state.subscriptions.len()),
            (Some(LogLevel::Error), 1)
        );
    }

    #[tokio::test]
    async fn session_that_another_replica_has_is_not_handed_over() {
        let registry = Arc::new(MemoryRegistry::new());
        let store = store(&registry);
        let claim = created(&registry).await;
        let other = NodeId::generate("other").unwrap();
        registry.take_over(claim.session, 1, &other, IDLE).await.unwrap();
        store.release(&claim);
        let facts = Mutex::new(Vec::new());
        assert!(store.write_queued(&|fact| facts.lock().push(fact)).await);
        assert_eq!(*facts.lock(), [RecordFact::Ended(claim)]);
    }

    #[tokio::test]
    async fn touch_of_a_session_with_another_owner_is_reported() {
        let registry = Arc::new(MemoryRegistry::new());
        let store = store(&registry);
        let claim = created(&registry).await;
        let other = NodeId::generate("other").unwrap();
        registry.take_over(claim.session, 1, &other, IDLE).await.unwrap();
        let touch = Touch {
            claim: claim.clone(),
            at: now(),
            idle: IDLE,
        };
        store.touch(vec![touch]);
        let facts = Mutex::new(Vec::new());
        assert!(store.write_queued(&|fact| facts.lock().push(fact)).await);
        assert_eq!(
            *facts.lock(),
            [RecordFact::Updated(claim, Updated::Superseded(2))]
        );
    }

    #[tokio::test]
    async fn requests_of_one_session_take_turns() {
        let store = store(&Arc::new(MemoryRegistry::new()));
        let session = Uuid::new_v4();
        let first = store.lock_restoration(session).await;
        assert!(
            store.lock_restoration(Uuid::new_v4()).now_or_never().is_some(),
            "another session"
        );
        let mut second = Box::pin(store.lock_restoration(session));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.now_or_never().is_some());
        assert!(store.restoring.lock().is_empty());
    }

    #[test]
    fn use_of_a_session_is_noted_once_in_an_interval() {
        let store = store(&Arc::new(MemoryRegistry::new()));
        let record = store.handle(new_claim(), false, None);
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
