//! A destination as clients address it: its name, its sessions, its modern requests, its policy.
//! The server behind it is its [`Upstream`].

pub(crate) mod aggregate;
mod closing;
mod eviction;
mod modern_requests;
mod old_streams;
mod restoration;
mod task_owners;
#[cfg(test)]
mod tests;
mod upstreams;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use http::HeaderMap;
use parking_lot::{Mutex, MutexGuard};
use protocol::aggregate::ToolsMode;
use protocol::exchange::{Ask, BackendError, CallKey, Client, Failure, Principal, SessionKey};
use protocol::message::{Member, Message};
use protocol::session::{self, Accepts, Session};
use protocol::time::Moment;
use protocol::version::Version;
use rustc_hash::FxHashMap;
use uuid::Uuid;

use crate::backend::process::Launcher;
use crate::buffered::Buffered;
use crate::clock::Clock;
use crate::conversation_handle::AskTarget;
use crate::fleet::{Fleet, PlacedServer};
use crate::instance::Reservation;
use crate::metrics::{DestinationMetrics, LimitHits, StreamKind};
use crate::modern_request_handle::ModernRequestHandle;
use crate::offer_store::OfferStore;
use crate::record::Recorder;
use crate::reply::Refusal;
use crate::seal::Sealer;
use crate::server_eras::EraMemory;
use crate::session_handle::{LineListener, SessionHandle};
use crate::settings::{self, BackendSpec, LimitSettings};
use crate::sign_in_pages::SignInPages;
use crate::status::{DestinationStatus, Detail, LimitLevel, QuestionStatus};
use crate::threads::Threads;
use crate::upstream::{Upstream, UpstreamContext, WantedFor};
use aggregate::{Aggregate, ClientIntent};
use upstreams::Upstreams;

use closing::SessionEnd;
pub(crate) use closing::{CloseReason, Draining, SessionUse};
pub(crate) use modern_requests::{CallOptions, NoRoomToWait, ParkedCall};
pub(crate) use old_streams::{OldStream, OldStreamStep, OldStreams};

/// What all destinations have in common.
#[derive(Debug, Clone)]
pub(crate) struct SharedState {
    pub(crate) clock: Clock,
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) threads: Threads,
    pub(crate) recorder: Arc<Recorder>,
    /// The environment of this process, from which children get an allow-listed part.
    pub(crate) environment: Arc<BTreeMap<String, String>>,
    pub(crate) session_numbers: Arc<AtomicU64>,
    pub(crate) sealer: Arc<Sealer>,
    /// The sessions of this process among all, if sessions outlive this process.
    pub(crate) fleet: Option<Arc<Fleet>>,
    /// What waits to be read, in the whole gateway.
    pub(crate) buffered: Arc<Buffered>,
    pub(crate) limits: Arc<LimitSettings>,
    pub(crate) limit_hits: Arc<LimitHits>,
    pub(crate) draining: Arc<Draining>,
    /// What servers have shown of their eras, across reloads.
    pub(crate) eras: Arc<EraMemory>,
    /// What servers offered last, on disk.
    pub(crate) offers: Option<Arc<OfferStore>>,
    /// Where users sign in at servers.
    pub(crate) sign_in_pages: Arc<SignInPages>,
    /// There is authentication, so that what belongs to one caller must be kept from another.
    pub(crate) tells_callers_apart: bool,
}

/// What clients address by one name.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) name: Arc<str>,
    settings: Arc<settings::Destination>,
    shared: SharedState,
    /// Rialto draws the keys at random. A client may look for any key, but cannot add one, so no
    /// peer can choose keys that collide.
    sessions: Mutex<FxHashMap<Uuid, Arc<SessionHandle>>>,
    /// Why new clients are refused.
    close_reason: OnceLock<CloseReason>,
    /// Modern calls that wait for their client, by the name in their sealed state.
    parked: Mutex<HashMap<u128, Arc<ModernRequestHandle>>>,
    /// Modern listens that are open.
    listens: Mutex<HashMap<SessionKey, Weak<ModernRequestHandle>>>,
    /// Clients of the old transport.
    pub(crate) old_streams: OldStreams,
    pub(crate) metrics: Arc<DestinationMetrics>,
    /// Where its server is, if the whole fleet has one (`placement: one`).
    placed_server: Option<Arc<PlacedServer>>,
    /// The server behind it, or those of its members.
    pub(crate) upstream: Upstreams,
}

/// Where the asks of a client go, from the choice until the client is attached.
pub(crate) struct ReservedTarget {
    target: AskTarget,
    _reservation: Option<Reservation>,
}

impl std::ops::Deref for ReservedTarget {
    type Target = AskTarget;

    fn deref(&self) -> &AskTarget {
        &self.target
    }
}

/// What a new session was opened for.
pub(crate) enum SessionOpen {
    /// The client's own `initialize`.
    Initialize(Message, Accepts),
    /// Something else, from a client that never opened a session.
    Implicit(Version),
}

impl SharedState {
    fn of_upstreams(&self) -> UpstreamContext {
        UpstreamContext {
            clock: self.clock,
            launcher: Arc::clone(&self.launcher),
            threads: self.threads.clone(),
            environment: Arc::clone(&self.environment),
            eras: Arc::clone(&self.eras),
            tells_callers_apart: self.tells_callers_apart,
        }
    }
}

impl Endpoint {
    /// Makes an endpoint. `others` has those that it may have as members.
    pub(crate) fn new(
        settings: settings::Destination,
        shared: SharedState,
        broken: Option<String>,
        others: &BTreeMap<String, Arc<Self>>,
    ) -> Self {
        let settings = Arc::new(settings);
        let fleet = shared.fleet.as_ref().filter(|fleet| fleet.has_peers());
        let fleet = fleet.filter(|_| settings.placement == settings::Placement::One);
        let placed_server = fleet.map(|fleet| fleet.placed_server(&settings.name));
        let lease = placed_server.as_ref().map(|server| Arc::clone(server.lease()));
        let upstream = match &settings.backend {
            BackendSpec::Aggregate(spec) => {
                let plan = Arc::clone(&spec.plan);
                Upstreams::Members(Aggregate::new(&settings.name, plan, others, shared.clone()))
            }
            BackendSpec::Process(_) | BackendSpec::Remote(_) => {
                let context = shared.of_upstreams();
                Upstreams::One(Box::new(Upstream::new(
                    Arc::clone(&settings),
                    context,
                    broken,
                    lease,
                )))
            }
        };
        Self {
            name: Arc::clone(upstream.name()),
            settings,
            shared,
            sessions: Mutex::default(),
            close_reason: OnceLock::new(),
            parked: Mutex::default(),
            listens: Mutex::default(),
            old_streams: OldStreams::default(),
            metrics: Arc::clone(upstream.metrics()),
            placed_server,
            upstream,
        }
    }

    /// Returns an endpoint that requests can share.
    pub(crate) fn shared(made: Self) -> Arc<Self> {
        let endpoint = Arc::new(made);
        if let Some(aggregate) = endpoint.upstream.aggregate() {
            aggregate.set_owner(&endpoint);
        }
        endpoint
    }

    /// Counts on where another destination of this name stopped, so that no counter goes back at a
    /// reload.
    pub(crate) fn counting_on(mut self, predecessor: &Self) -> Self {
        self.upstream = self.upstream.counting_on(&predecessor.upstream);
        if self.upstream.aggregate().is_none() {
            self.metrics = Arc::clone(self.upstream.metrics());
        }
        self
    }

    /// Returns whether these settings ask for just this destination. One that could not start is
    /// worth another try. An aggregate is kept with other members too: see
    /// [`Aggregate::update`].
    pub(crate) fn is_as_wanted(&self, settings: &settings::Destination, shared: &SharedState) -> bool {
        let is_same_world = self.shared.tells_callers_apart == shared.tells_callers_apart;
        let is_same = match (&self.settings.backend, &settings.backend) {
            (BackendSpec::Aggregate(_), BackendSpec::Aggregate(_)) => {
                let wanted = settings::Destination {
                    backend: self.settings.backend.clone(),
                    max_message_bytes: self.settings.max_message_bytes,
                    ..settings.clone()
                };
                *self.settings == wanted
            }
            _ => *self.settings == *settings,
        };
        is_same && is_same_world && self.upstream.broken().is_none()
    }

    /// Returns where the asks of a client go: to an instance of the server, or to a conversation
    /// with the members.
    fn target_for(
        &self,
        (key, wanted_for): (SessionKey, WantedFor),
        client: &Client,
        headers: &HeaderMap,
        intent: ClientIntent,
    ) -> Result<ReservedTarget, Refusal> {
        if let Some(aggregate) = self.upstream.aggregate() {
            let conversation = aggregate.open_conversation((key, wanted_for), client, headers, intent)?;
            return Ok(ReservedTarget {
                target: AskTarget::Conversation(conversation),
                _reservation: None,
            });
        }
        let reservation = self.instance_for(wanted_for, client, headers)?;
        Ok(ReservedTarget {
            target: AskTarget::Instance(Arc::clone(&reservation)),
            _reservation: Some(reservation),
        })
    }

    /// Returns the instance for a client, if need be in the place of another one.
    fn instance_for(
        &self,
        wanted_for: WantedFor,
        client: &Client,
        headers: &HeaderMap,
    ) -> Result<Reservation, Refusal> {
        let make_room = |limit| self.free_instance(limit, &client.principal);
        // An aggregate has no instance of its own, and no caller asks it for one.
        let upstream = self.upstream.one().ok_or(Refusal::BrokenDestination)?;
        let found = upstream.instance_for(wanted_for, client, headers, make_room);
        // If the destination has come to its end meanwhile, the client learns why.
        found.map_err(|refusal| self.check_open().err().unwrap_or(refusal))
    }

    /// Returns the state of this destination; `is_configured` is false for one that drains after a
    /// reload.
    pub(crate) fn status(&self, is_configured: bool, detail: Detail) -> DestinationStatus {
        let now = self.shared.clock.now();
        let handles: Vec<Arc<SessionHandle>> = self.sessions().values().cloned().collect();
        let listens = {
            let listens = self.listens.lock();
            let open = listens.values().filter(|listen| listen.strong_count() > 0);
            open.count()
        };
        let parked = self.parked.lock().len();
        let upstream = self.upstream.status();
        let asked = upstream.instances.iter().flat_map(|instance| &instance.questions);
        let questions = asked.map(|(session, method, age)| {
            let handle = handles.iter().find(|handle| handle.key() == *session);
            QuestionStatus {
                method,
                age: *age,
                session: handle.map(|handle| handle.hash().to_string()),
            }
        });
        let tools = &self.settings.tools;
        let globs = |globs: &[settings::Glob]| globs.iter().map(ToString::to_string).collect();
        DestinationStatus {
            questions: questions.collect(),
            policy: (!tools.is_open()).then(|| (globs(&tools.allow), globs(&tools.deny))),
            is_configured,
            transport: upstream.transport,
            state: upstream.state,
            is_ready: is_configured && upstream.is_ready,
            resting: upstream.resting,
            backend_error: upstream.backend_error,
            sessions: handles.len(),
            restored: self
                .fleet()
                .map(|_| self.metrics.sessions_restored.load(Ordering::Relaxed)),
            parked,
            listens,
            children: upstream.children,
            tools: upstream.tools,
            instances: upstream.instances,
            counters: upstream.counters,
            events_lost: handles.iter().map(|handle| handle.events_lost()).sum(),
            limits: self.metrics.overloads.all(),
            members: upstream.members,
            levels: vec![
                LimitLevel {
                    limit: "max_sessions",
                    used: handles.len(),
                    most: self.settings.max_sessions,
                },
                LimitLevel {
                    limit: "max_children",
                    used: upstream.in_use,
                    most: self.settings.instances.max_children,
                },
            ],
            sharing: self.settings.instances.sharing,
            start: upstream.start,
            streams: StreamKind::ALL
                .map(|kind| (kind.as_str(), self.metrics.open_streams(kind)))
                .to_vec(),
            ended: self.metrics.calls().map(|(.., count)| count).sum(),
            failures: self.metrics.failures.all(),
            recent: self.metrics.recent(now),
            session_list: match detail {
                Detail::Sums => Vec::new(),
                Detail::Sessions => handles.iter().map(|handle| handle.status(now)).collect(),
            },
        }
    }

    /// Moves a session to an instance of its own principal if its instance is another principal's
    /// by now. It stays where that has something left for it, and where there is no room for
    /// another instance.
    pub(crate) fn unshare(&self, handle: &Arc<SessionHandle>) {
        if handle.uses_owned_instance() && self.check_open().is_ok() {
            handle.leave_instance(|client| self.upstream.own_instance(client));
        }
    }

    /// Returns where its server is, if the whole fleet has one.
    pub(crate) fn placed_server(&self) -> Option<&Arc<PlacedServer>> {
        self.placed_server.as_ref()
    }

    /// Returns whether its server may not run here, since the whole fleet has one.
    pub(crate) fn is_placed_elsewhere(&self) -> bool {
        let now = self.shared.clock.now();
        let server = self.placed_server.as_ref();
        server.is_some_and(|server| !server.lease().is_held(now))
    }

    /// Ends the server and everything that is open at it: from now on it may run on another
    /// replica. Sessions go on there; calls that are open may have run.
    pub(crate) fn leave_place(&self) {
        let instances = self.upstream.remove_instances();
        for instance in &instances {
            instance.lose(&Failure::OwnerLost);
        }
        self.dismiss_as(|_| true, SessionEnd::Lost);
        for instance in instances {
            instance.stop();
        }
    }

    /// Returns whether clients of the old transport are served.
    pub(crate) fn serves_old_transport(&self) -> bool {
        self.settings.legacy_sse
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.shared.recorder
    }

    pub(crate) fn max_sessions(&self) -> usize {
        self.settings.max_sessions
    }

    pub(crate) fn max_message_bytes(&self) -> usize {
        let members = self
            .upstream
            .aggregate()
            .and_then(|aggregate| aggregate.max_message_bytes());
        members.unwrap_or(self.settings.max_message_bytes)
    }

    fn sessions(&self) -> MutexGuard<'_, FxHashMap<Uuid, Arc<SessionHandle>>> {
        self.sessions.lock()
    }

    /// Returns the session with this id, if it is this principal's.
    pub(crate) fn session(&self, id: Uuid, principal: &Principal) -> Option<Arc<SessionHandle>> {
        self.sessions()
            .get(&id)
            .filter(|handle| handle.principal() == principal.as_str())
            .cloned()
    }

    /// Waits until no call is open.
    pub(crate) async fn calls_ended(&self) {
        let is_ended = || self.upstream.open_calls() == 0;
        self.metrics.idle.wait_until(is_ended).await;
    }

    /// Waits until no call is open or may be continued, and no client may come back for an answer.
    pub(crate) async fn clients_served(&self) {
        let is_served =
            || self.upstream.open_calls() == 0 && self.parked_calls() == 0 && !self.has_unread_answers();
        self.metrics.idle.wait_until(is_served).await;
    }

    /// Returns the call of a tool of an aggregate under the names that members have for it. Where
    /// no member is known to have it, nothing can be judged, and the call is refused.
    pub(crate) fn called_tools(
        &self,
        principal: &Principal,
        message: &Message,
    ) -> Result<Vec<Message>, Refusal> {
        let Some(aggregate) = self.upstream.aggregate() else {
            return Ok(Vec::new());
        };
        let called = aggregate.called_tools(principal, message);
        let called = called.map_err(|tool| Refusal::ToolDenied { tool })?;
        let calls = called.into_iter().filter_map(|own| {
            let name = protocol::message::quoted(&own);
            let text =
                format!(r#"{{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{{"name":{name}}}}}"#);
            Message::scan(text.into()).ok()
        });
        Ok(calls.collect())
    }

    /// Checks whether the policy lets a message through. By the body: headers were compared with
    /// it, or do not count.
    pub(crate) fn check_tool(&self, message: &Message) -> Result<(), Refusal> {
        let Some(tools) = self.upstream.tools() else {
            // What an aggregate shows is judged by the members' own names already.
            return Ok(());
        };
        tools
            .check(message)
            .map_err(|denied| Refusal::ToolDenied { tool: denied.name })
    }

    /// Opens a session: finds it an instance, presents the client there. The call is that of the
    /// client's own `initialize`, if it sent one.
    pub(crate) fn open(
        &self,
        principal: Principal,
        headers: &HeaderMap,
        opening: SessionOpen,
    ) -> Result<(Arc<SessionHandle>, Option<CallKey>), Refusal> {
        self.open_listing(principal, headers, opening, None)
    }

    /// The same for a client whose URL may choose how the tools of an aggregate are listed.
    pub(crate) fn open_listing(
        &self,
        principal: Principal,
        headers: &HeaderMap,
        opening: SessionOpen,
        tools: Option<ToolsMode>,
    ) -> Result<(Arc<SessionHandle>, Option<CallKey>), Refusal> {
        let limits = self.session_limits();
        self.open_for(principal, headers, opening, limits, (None, tools))
    }

    /// Returns the limits of a session here, unless its frontend has its own.
    pub(crate) fn session_limits(&self) -> session::Limits {
        let mut limits = session::Limits::default();
        limits.calls = self.settings.max_calls.unwrap_or(limits.calls);
        limits.retention.bytes = self.shared.limits.buffered_bytes_per_session;
        limits.listeners = self.shared.limits.streams_per_session;
        limits
    }

    /// The same, with limits of one's own.
    pub(crate) fn open_within(
        &self,
        principal: Principal,
        headers: &HeaderMap,
        opening: SessionOpen,
        limits: session::Limits,
    ) -> Result<(Arc<SessionHandle>, Option<CallKey>), Refusal> {
        self.open_for(principal, headers, opening, limits, (None, None))
    }

    /// The same for a client that reads lines: the listener receives all messages of the session.
    pub(crate) fn open_on_lines(
        &self,
        principal: Principal,
        headers: &HeaderMap,
        opening: SessionOpen,
        listener: Arc<dyn LineListener>,
    ) -> Result<(Arc<SessionHandle>, Option<CallKey>), Refusal> {
        let limits = self.session_limits();
        self.open_for(principal, headers, opening, limits, (Some(listener), None))
    }

    fn open_for(
        &self,
        principal: Principal,
        headers: &HeaderMap,
        opening: SessionOpen,
        limits: session::Limits,
        (listener, tools): (Option<Arc<dyn LineListener>>, Option<ToolsMode>),
    ) -> Result<(Arc<SessionHandle>, Option<CallKey>), Refusal> {
        self.check_open()?;
        self.make_room(&principal)?;
        let now = self.shared.clock.now();
        let key = self.new_session_key();
        let (declared, info) = match &opening {
            SessionOpen::Initialize(message, _) => (
                message.raw_copy(Member::Capabilities),
                message.raw_copy(Member::ClientInfo),
            ),
            SessionOpen::Implicit(_) => (None, None),
        };
        let client = Arc::new(Client::declaring(principal, declared, info));
        let intent = ClientIntent {
            tools,
            is_list: false,
        };
        let target = self.target_for((key, WantedFor::Session(key)), &client, headers, intent)?;
        let (session, call, ask) = match opening {
            SessionOpen::Initialize(message, accepts) => {
                let (session, call, ask) = Session::open(key, client, limits, now, message, accepts);
                (session, Some(call), ask)
            }
            SessionOpen::Implicit(version) => {
                let (session, ask) = Session::open_implicit(key, client, limits, now, version);
                (session, None, ask)
            }
        };
        let session = match listener {
            Some(_) => session.on_lines(),
            None => session,
        };
        let handle = self.new_handle(Uuid::new_v4(), session, &target, listener);
        self.present(&handle, &target, ask)?;
        self.metrics.sessions_opened.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(destination = %self.name, session = %handle.hash().as_str(), "session opened");
        Ok((handle, call))
    }

    fn new_handle(
        &self,
        id: Uuid,
        session: Session,
        target: &AskTarget,
        listener: Option<Arc<dyn LineListener>>,
    ) -> Arc<SessionHandle> {
        let handle = Arc::new(SessionHandle::new(
            id.to_string(),
            Arc::clone(&self.name),
            session,
            target.clone(),
            self.shared.clock,
            Arc::clone(&self.shared.recorder),
            listener,
        ));
        handle.count_events(&self.shared.buffered);
        handle
    }

    /// Presents the client of a session to its server, and adds the session to those that clients
    /// can address.
    fn present(&self, handle: &Arc<SessionHandle>, target: &AskTarget, ask: Ask) -> Result<(), Refusal> {
        // The instance knows the session before another thread can find it and end it.
        target.attach(handle.key(), Arc::<SessionHandle>::clone(handle));
        target.ask(self.shared.clock.now(), ask);
        let id = Uuid::parse_str(handle.id()).unwrap_or_default();
        let registered = self.register(id, handle);
        registered.inspect_err(|_| self.end(handle, SessionEnd::HandedOver))
    }

    fn new_session_key(&self) -> SessionKey {
        SessionKey(self.shared.session_numbers.fetch_add(1, Ordering::Relaxed))
    }

    /// Adds a session to those that clients can address, unless every place is taken or the
    /// destination has come to its end.
    fn register(&self, id: Uuid, handle: &Arc<SessionHandle>) -> Result<(), Refusal> {
        let principal = Principal::named(handle.principal());
        // Another thread may have taken the place that was made.
        while !self.insert_within_limit(id, handle) {
            self.make_room(&principal)?;
        }
        // `stop` ends the sessions that it finds. If it looked before this one was there, it has
        // set the reason before that.
        self.check_open()
            .inspect_err(|_| drop(self.sessions().remove(&id)))
    }

    fn insert_within_limit(&self, id: Uuid, handle: &Arc<SessionHandle>) -> bool {
        let mut sessions = self.sessions();
        let has_room = sessions.len() < self.settings.max_sessions;
        if has_room {
            sessions.insert(id, Arc::clone(handle));
        }
        has_room
    }

    /// Ends the session that logs call so. Returns whether there is one.
    pub(crate) fn close_named(&self, hash: &str) -> bool {
        let handles: Vec<Arc<SessionHandle>> = self.sessions().values().cloned().collect();
        let found = handles.iter().find(|handle| handle.hash().as_str() == hash);
        found.inspect(|handle| self.close(handle)).is_some()
    }

    /// Starts the server of this process anew, or all servers. Sessions stay. Returns how many
    /// there were. Those of an aggregate's members are theirs.
    pub(crate) fn restart(&self, pid: Option<u32>) -> usize {
        let instances = self.upstream.instances_by_key();
        let wanted = instances
            .iter()
            .filter(|(_, instance, _)| pid.is_none() || instance.health().pid() == pid);
        wanted.filter(|(_, instance, _)| instance.restart()).count()
    }

    /// Ends a session for good. Its child is ended too, if it was the session's own.
    pub(crate) fn close(&self, handle: &Arc<SessionHandle>) {
        self.close_as(handle, SessionEnd::Final);
    }

    fn close_as(&self, handle: &Arc<SessionHandle>, end: SessionEnd) {
        let id = Uuid::parse_str(handle.id()).unwrap_or_default();
        if self.sessions().remove(&id).is_some() {
            self.end(handle, end);
        }
    }

    /// Ends the copy of a session that another replica has by now. Returns whether it was here.
    pub(crate) fn drop_copy(&self, session: Uuid, epoch: u64) -> bool {
        let handle = self.copy(session, epoch);
        if let Some(handle) = &handle {
            self.close_as(handle, SessionEnd::Superseded);
        }
        handle.is_some()
    }

    /// Returns the session with this id, if it has this epoch.
    pub(crate) fn copy(&self, session: Uuid, epoch: u64) -> Option<Arc<SessionHandle>> {
        let handle = self.sessions().get(&session).cloned()?;
        let held = handle.kept().map(|record| record.claim().epoch);
        (held == Some(epoch)).then_some(handle)
    }

    /// Ends a session that no client can address any more.
    fn end(&self, handle: &SessionHandle, end: SessionEnd) {
        match end {
            SessionEnd::Final | SessionEnd::HandedOver => handle.end(),
            SessionEnd::Lost | SessionEnd::Superseded => handle.end_lost(),
        }
        if let (Some(fleet), Some(record)) = (self.fleet(), handle.kept()) {
            match end {
                SessionEnd::Final => fleet.close(record.claim()),
                SessionEnd::HandedOver | SessionEnd::Lost => fleet.hand_over(record.claim()),
                SessionEnd::Superseded => {}
            }
        }
        self.upstream.end_session(handle.key());
        tracing::debug!(destination = %self.name, session = %handle.hash().as_str(), "session closed");
    }

    /// Expires what has been idle too long and lets sessions and instances tidy up.
    pub(crate) fn tick(&self, now: Moment, session_idle: Duration) {
        let handles: Vec<Arc<SessionHandle>> = self.sessions().values().cloned().collect();
        if let Some(fleet) = self.fleet() {
            fleet.store().touch(
                handles
                    .iter()
                    .filter_map(|handle| handle.due_touch(now))
                    .collect(),
            );
        }
        for handle in handles {
            handle.tick(now);
            if handle.uses_owned_instance() && handle.keeps_waiting() {
                self.unshare(&handle);
            }
            if handle.is_expired(now, session_idle) {
                tracing::debug!(destination = %self.name, session = %handle.hash().as_str(), "session expired");
                self.metrics.sessions_expired.fetch_add(1, Ordering::Relaxed);
                self.close(&handle);
            }
        }
        self.forget_modern_requests(now);
        self.metrics.note_recent(now);
        self.metrics.idle.note_change();
        self.upstream.tick(now);
    }

    /// Ends what these principals hold open: sessions with their calls and streams, listens, calls
    /// that wait for their client, and children of their own. Returns the number of sessions.
    pub(crate) fn dismiss(&self, leaves: impl Fn(&str) -> bool) -> usize {
        self.dismiss_as(leaves, SessionEnd::Final)
    }

    fn dismiss_as(&self, leaves: impl Fn(&str) -> bool, end: SessionEnd) -> usize {
        let mut handles: Vec<Arc<SessionHandle>> = self.sessions().values().cloned().collect();
        handles.retain(|handle| leaves(handle.principal()));
        for handle in &handles {
            self.close_as(handle, end);
        }
        self.old_streams.end_of(&leaves);
        let listens: Vec<Arc<ModernRequestHandle>> = {
            let listens = self.listens.lock();
            listens.values().filter_map(Weak::upgrade).collect()
        };
        for handle in listens.iter().filter(|handle| leaves(handle.principal())) {
            handle.dismiss();
        }
        let parked: Vec<Arc<ModernRequestHandle>> = {
            let mut parked = self.parked.lock();
            let gone = parked.extract_if(|_, handle| leaves(handle.principal()));
            gone.map(|(_, handle)| handle).collect()
        };
        for handle in parked {
            handle.abandon();
        }
        self.upstream.dismiss(&leaves);
        handles.len()
    }

    /// Ends every session and every child. Requests that still wait are answered with 503 (the
    /// server is going) and not with 404 (unknown session), at which clients would open another
    /// session here.
    pub(crate) fn stop(&self, why: CloseReason) {
        self.stop_accepting(why);
        let backend_error = Arc::new(BackendError {
            what: why.words().into(),
            ..BackendError::default()
        });
        self.upstream.fail_calls(&backend_error);
        self.dismiss_as(|_| true, why.session_end());
        self.upstream.stop();
    }
}
