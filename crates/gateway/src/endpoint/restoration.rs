//! Sessions that go on after the process, or the endpoint, that had them has ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cluster::record::{self, SessionRecord};
use cluster::registry::Claim;
use http::HeaderMap;
use protocol::exchange::{Client, Principal};
use protocol::message::{Member, Message};
use protocol::session::{Hello, Restored, Session};
use protocol::version::Version;
use uuid::Uuid;

use super::{Endpoint, SessionUse};
use crate::guard::limits::Permit;
use crate::reply::Refusal;
use crate::session_handle::SessionHandle;
use crate::session_store::{self, SessionStore};

impl Endpoint {
    /// Returns the records of sessions, if sessions outlive this process.
    pub(crate) fn session_store(&self) -> Option<&Arc<SessionStore>> {
        self.shared.session_store.as_ref()
    }

    /// Lets a session that was opened here outlive this process, where sessions do. The caller
    /// writes its record with the returned claim.
    pub(crate) fn keep(&self, handle: &SessionHandle, hello: &record::Hello) -> Option<Claim> {
        let store = self.session_store()?;
        let claim = store.new_claim(Uuid::parse_str(handle.id()).ok()?);
        let is_implicit = matches!(hello, record::Hello::Implicit(_));
        handle.keep(store.handle(claim.clone(), is_implicit));
        Some(claim)
    }

    /// Restores the session with this id, if it is this principal's. `permit` counts it among the
    /// sessions of its caller.
    ///
    /// Requests of one session take turns, so that one of them restores it and the others find it.
    pub(crate) async fn restore(
        self: &Arc<Self>,
        id: Uuid,
        principal: &Principal,
        headers: &HeaderMap,
        permit: impl FnOnce() -> Result<Permit, Refusal>,
    ) -> Result<Arc<SessionHandle>, Refusal> {
        let store = self.session_store().ok_or(Refusal::UnknownSession)?;
        let _turn = store.turn(id).await;
        if let Some((found, handle)) = self.session_for(SessionUse::FollowUp, id, principal) {
            // While an endpoint drains after a reload, its sessions are not restored beside it.
            let is_here = Arc::ptr_eq(&found, self);
            return is_here.then_some(handle).ok_or(Refusal::UnknownSession);
        }
        self.check_open()?;
        // Headers are in no record: without them the server would run with another identity.
        if !self.upstream.has_credentials(headers) {
            return Err(Refusal::UnknownSession);
        }
        let permit = permit()?;
        let record = self.claim_record(store, id, principal).await?;
        let handle = self.enter_restored(store, *record, principal, headers)?;
        handle.hold(permit);
        Ok(handle)
    }

    /// Ends a session that is open nowhere, if it is this principal's. Nothing is started for it.
    pub(crate) async fn end_recorded(&self, id: Uuid, principal: &Principal) -> Result<(), Refusal> {
        let store = self.session_store().ok_or(Refusal::UnknownSession)?;
        let _turn = store.turn(id).await;
        let record = self.claim_record(store, id, principal).await?;
        let claim = record.claim().ok_or(Refusal::UnknownSession)?;
        let removed = store.remove(&claim).await;
        removed.map_err(|error| unavailable(&error))
    }

    async fn claim_record(
        &self,
        store: &SessionStore,
        id: Uuid,
        principal: &Principal,
    ) -> Result<Box<SessionRecord>, Refusal> {
        let suits = |record: &SessionRecord| {
            record.destination == *self.name && record.principal == principal.as_str()
        };
        match store.claim(id, suits).await {
            Ok(Some(record)) => Ok(record),
            Ok(None) => Err(Refusal::UnknownSession),
            Err(error) => Err(unavailable(&error)),
        }
    }

    fn enter_restored(
        &self,
        store: &Arc<SessionStore>,
        record: SessionRecord,
        principal: &Principal,
        headers: &HeaderMap,
    ) -> Result<Arc<SessionHandle>, Refusal> {
        let (Some(claim), Some(hello)) = (record.claim(), hello_of(&record)) else {
            tracing::error!(destination = %self.name, "the record of a session cannot be used");
            return Err(Refusal::UnknownSession);
        };
        self.make_room(principal)?;
        let (declared, info) = match &hello {
            Hello::Initialize(message) => (
                message.raw_copy(Member::Capabilities),
                message.raw_copy(Member::ClientInfo),
            ),
            Hello::Implicit(_) => (None, None),
        };
        let is_implicit = matches!(hello, Hello::Implicit(_));
        let client = Arc::new(Client::declaring(principal.clone(), declared, info));
        let key = self.new_session_key();
        let instance = self.instance_for(Some(key), &client, headers)?;
        let restored = Restored {
            hello,
            state: session_store::session_state(record.state),
            epoch: claim.epoch,
        };
        let (limits, now) = (self.session_limits(), self.shared.clock.now());
        let (session, ask) = Session::restore(key, client, limits, now, restored);
        let handle = self.new_handle(claim.session, session, &instance, None);
        handle.keep(store.handle(claim, is_implicit));
        self.present(&handle, &instance, ask)?;
        self.metrics.sessions_restored.fetch_add(1, Ordering::Relaxed);
        tracing::info!(destination = %self.name, session = %handle.hash().as_str(), "session restored");
        Ok(handle)
    }
}

fn hello_of(record: &SessionRecord) -> Option<Hello> {
    match &record.hello {
        record::Hello::Initialize(text) => {
            let message = Message::scan(Bytes::copy_from_slice(text.as_bytes())).ok()?;
            Some(Hello::Initialize(message))
        }
        record::Hello::Implicit(version) => Version::parse(version).map(Hello::Implicit),
    }
}

/// Reports once what clients are not shown.
pub(crate) fn unavailable(error: &dyn std::error::Error) -> Refusal {
    tracing::warn!(%error, "the record of a session cannot be read or written");
    Refusal::RegistryUnavailable
}
