//! Sessions that go on after the process, or the endpoint, that had them has ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cluster::record::{self, SessionRecord};
use cluster::registry::Claim;
use http::HeaderMap;
use protocol::aggregate::ToolsMode;
use protocol::exchange::{Client, Principal};
use protocol::message::{Member, Message};
use protocol::session::{Hello, Restored, Session};
use protocol::version::Version;
use uuid::Uuid;

use super::aggregate::ClientIntent;
use super::{Endpoint, SessionUse};
use crate::fleet::{Fleet, SessionRoute, Wanted};
use crate::guard::limits::Permit;
use crate::reply::Refusal;
use crate::session_handle::SessionHandle;
use crate::session_store::{self, RecordHandle};
use crate::upstream::WantedFor;

/// How often a session is looked for that was lost between its take-over and its restoration.
const MAX_ATTEMPTS: usize = 3;

impl Endpoint {
    /// Returns the sessions of this process among all, if sessions outlive this process.
    pub(crate) fn fleet(&self) -> Option<&Arc<Fleet>> {
        self.shared.fleet.as_ref()
    }

    /// Lets a session that was opened here outlive this process, where sessions do. The caller
    /// writes the returned record before it shows the session's id. `hello` returns what the client
    /// opened the session with.
    pub(crate) fn keep(
        &self,
        handle: &SessionHandle,
        hello: impl FnOnce() -> record::Hello,
    ) -> Option<SessionRecord> {
        let fleet = self.fleet()?;
        let claim = fleet.new_claim(Uuid::parse_str(handle.id()).ok()?);
        let record = session_store::new_record(&claim, &self.name, handle.principal(), hello());
        handle.keep(record_handle(fleet, claim, &record));
        Some(record)
    }

    /// Writes the record of a new session, where sessions have one. A session without its record is
    /// closed.
    pub(crate) async fn write_record(
        &self,
        handle: &Arc<SessionHandle>,
        record: Option<SessionRecord>,
    ) -> Result<(), Refusal> {
        let (Some(fleet), Some(record)) = (self.fleet(), record) else {
            return Ok(());
        };
        fleet.open(record).await.map_err(|error| {
            self.close(handle);
            unavailable(&error)
        })
    }

    /// Restores the session with this id, if it is this principal's. `permit` counts it among the
    /// sessions of its caller.
    ///
    /// Requests of one session take turns, so that one of them restores it and the others find it.
    /// `tools` is how the URL wants the tools of an aggregate to be listed.
    pub(crate) async fn restore(
        self: &Arc<Self>,
        id: Uuid,
        principal: &Principal,
        (headers, tools): (&HeaderMap, Option<ToolsMode>),
        permit: impl Future<Output = Result<Permit, Refusal>>,
    ) -> Result<Arc<SessionHandle>, Refusal> {
        let fleet = self.fleet().ok_or(Refusal::UnknownSession)?;
        let _lock = fleet.store().lock_restoration(id).await;
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
        let permit = permit.await?;
        let record = self.owned_record(fleet, id, principal).await?;
        let epoch = record.epoch;
        let intent = ClientIntent {
            tools,
            is_list: false,
        };
        let restored = self.open_restored(fleet, *record, principal, (headers, intent));
        let handle = restored.inspect_err(|_| fleet.abandon(id, epoch))?;
        handle.hold(permit);
        Ok(handle)
    }

    /// Ends a session that is open nowhere, if it is this principal's. Nothing is started for it.
    pub(crate) async fn end_recorded(&self, id: Uuid, principal: &Principal) -> Result<(), Refusal> {
        let fleet = self.fleet().ok_or(Refusal::UnknownSession)?;
        let _lock = fleet.store().lock_restoration(id).await;
        let record = self.owned_record(fleet, id, principal).await?;
        let claim = record.claim().ok_or(Refusal::UnknownSession)?;
        fleet.close(&claim);
        match fleet.store().written(&claim).await {
            true => Ok(()),
            false => Err(Refusal::RegistryUnavailable),
        }
    }

    /// Returns the record of a session that this process has taken over, or takes over now.
    async fn owned_record(
        &self,
        fleet: &Fleet,
        id: Uuid,
        principal: &Principal,
    ) -> Result<Box<SessionRecord>, Refusal> {
        let wanted = Wanted {
            destination: &self.name,
            principal: principal.as_str(),
        };
        for _ in 0..MAX_ATTEMPTS {
            if let Some(record) = fleet.take_record(id, wanted) {
                return Ok(record);
            }
            match fleet.route(id, wanted).await {
                // Its record waits, unless the session was lost again meanwhile.
                SessionRoute::Here => {}
                SessionRoute::Nowhere => return Err(Refusal::UnknownSession),
                SessionRoute::There { .. } | SessionRoute::NotOwner(_) | SessionRoute::Refused(_) => {
                    return Err(Refusal::RegistryUnavailable);
                }
            }
        }
        Err(Refusal::RegistryUnavailable)
    }

    fn open_restored(
        &self,
        fleet: &Arc<Fleet>,
        record: SessionRecord,
        principal: &Principal,
        (headers, intent): (&HeaderMap, ClientIntent),
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
        let client = Arc::new(Client::declaring(principal.clone(), declared, info));
        let key = self.new_session_key();
        let target = self.target_for((key, WantedFor::Session(key)), &client, headers, intent)?;
        let restored = Restored {
            hello,
            state: session_store::session_state(record.state.clone()),
            epoch: claim.epoch,
        };
        let (limits, now) = (self.session_limits(), self.shared.clock.now());
        let (session, ask) = Session::restore(key, client, limits, now, restored);
        let handle = self.new_handle(claim.session, session, &target, None);
        handle.keep(record_handle(fleet, claim.clone(), &record));
        self.present(&handle, &target, ask)?;
        // Another replica may have taken it over before it could be found here.
        if !fleet.holds(&claim) {
            self.drop_copy(claim.session, claim.epoch);
            return Err(Refusal::RegistryUnavailable);
        }
        self.metrics.sessions_restored.fetch_add(1, Ordering::Relaxed);
        tracing::info!(destination = %self.name, session = %handle.hash().as_str(), "session restored");
        Ok(handle)
    }
}

/// Returns the handle of a record. It keeps the whole record where an engine may lose it.
fn record_handle(fleet: &Fleet, claim: Claim, record: &SessionRecord) -> RecordHandle {
    let is_implicit = matches!(record.hello, record::Hello::Implicit(_));
    let kept = fleet.has_peers().then(|| record.clone());
    fleet.store().handle(claim, is_implicit, kept)
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
fn unavailable(error: &dyn std::error::Error) -> Refusal {
    tracing::warn!(%error, "the record of a session cannot be read or written");
    Refusal::RegistryUnavailable
}
