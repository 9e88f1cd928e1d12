//! The modern requests of an endpoint: in flight, listening, or parked until their client comes
//! back.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use http::HeaderMap;
use parking_lot::MutexGuard;
use protocol::aggregate::{ListKind, ToolsMode};
use protocol::client_face::modern::{self, Classified};
use protocol::eviction::{self, HeldCall};
use protocol::exchange::{Client, Failure, Principal, SessionKey};
use protocol::message::Message;
use protocol::modern_request::WAITING_TIME;
use protocol::session::Accepts;
use protocol::time::Moment;
use protocol::version::{Era, Version};
use protocol::wire::header::MirroredParams;

use super::Endpoint;
use super::aggregate::ClientIntent;
use crate::conversation_handle::AskTarget;
use crate::guard::limits::Permit;
use crate::instance::Instance;
use crate::modern_request_handle::{FirstOutcome, ModernRequestHandle, RequestSpec};
use crate::reply::Refusal;
use crate::seal::RequestState;
use crate::seal::state::StateSeal;
use crate::settings::Show;
use crate::upstream::WantedFor;

/// No more calls can wait for their clients.
#[derive(Debug)]
pub(crate) struct NoRoomToWait;

/// How a modern request is started.
#[derive(Debug)]
pub(crate) struct CallOptions {
    pub(crate) classified: Classified,
    pub(crate) accepts: Accepts,
    /// The headers that mirror its arguments.
    pub(crate) mirrored: Option<MirroredParams>,
    /// Its place among the calls that may be in flight.
    pub(crate) permit: Option<Permit>,
    /// How its URL wants the tools of an aggregate to be listed.
    pub(crate) tools: Option<ToolsMode>,
}

/// What became of the call that a state names.
#[derive(Debug)]
pub(crate) enum ParkedCall {
    /// It waits for its client's answers to the questions of this round.
    Waiting(Arc<ModernRequestHandle>, u32),
    /// It waited in this other process, and ended with it, unless that is a replica that lives.
    Elsewhere(u64),
    /// The state is not ours, not for this caller, or too old.
    Unknown,
}

impl Endpoint {
    pub(super) fn request_spec(
        &self,
        key: SessionKey,
        client: Arc<Client>,
        message: Message,
        classified: Classified,
        accepts: Accepts,
    ) -> RequestSpec {
        RequestSpec {
            key,
            states: self.state_seal(&client.principal),
            client,
            message,
            classified,
            accepts,
            mirrored: None,
            permit: None,
        }
    }

    pub(super) fn start(&self, target: &AskTarget, spec: RequestSpec) -> Arc<ModernRequestHandle> {
        let (clock, recorder) = (self.shared.clock, Arc::clone(&self.shared.recorder));
        let metrics = Arc::clone(&self.metrics);
        let handle = ModernRequestHandle::start(
            spec,
            Arc::clone(&self.name),
            target.clone(),
            clock,
            recorder,
            metrics,
        );
        handle.count_events(&self.shared.buffered);
        handle
    }

    /// Starts a modern request. Returns `None` if this destination does not show itself to modern
    /// clients.
    pub(crate) async fn modern_request(
        &self,
        client: Client,
        headers: &HeaderMap,
        message: Message,
        options: CallOptions,
    ) -> Result<Option<Arc<ModernRequestHandle>>, Refusal> {
        self.check_open()?;
        let client = Arc::new(client);
        let key = self.new_session_key();
        let intent = ClientIntent {
            tools: options.tools,
            is_list: ListKind::of(message.method()).is_some(),
        };
        let target = self.target_for((key, WantedFor::Request), &client, headers, intent)?;
        if self.settings.show == Show::Native
            && let AskTarget::Instance(instance) = &*target
        {
            // The destination shows itself in the era of its server alone.
            let era = self.negotiated_era(instance, &client).await?;
            if era.is_some_and(|era| era != modern::ERA) {
                return Ok(None);
            }
            // Waiting may have taken long enough for a reload.
            self.check_open()?;
        }
        let CallOptions {
            classified,
            accepts,
            mirrored,
            permit,
            tools: _,
        } = options;
        let listening = classified == Classified::Listen;
        let mut spec = self.request_spec(key, client, message, classified, accepts);
        spec.mirrored = mirrored;
        spec.permit = permit;
        let handle = self.start(&target, spec);
        if listening && let Err(refusal) = self.register_listen(&handle) {
            handle.abandon();
            return Err(refusal);
        }
        Ok(Some(handle))
    }

    /// Adds a listen to those that are open, if need be in the place of one of a principal over its
    /// share.
    fn register_listen(&self, handle: &Arc<ModernRequestHandle>) -> Result<(), Refusal> {
        let limit = self.shared.limits.listens;
        let evicted = {
            let mut listens = self.listens.lock();
            listens.retain(|_, listen| listen.strong_count() > 0);
            let mut evicted = None;
            if listens.len() >= limit {
                let open: Vec<Arc<ModernRequestHandle>> =
                    listens.values().filter_map(Weak::upgrade).collect();
                let held = open.iter().map(|listen| (listen.key(), listen.principal()));
                let held: Vec<(SessionKey, &str)> = held.collect();
                let key = eviction::listen_to_end(handle.principal(), &held);
                let key = key.ok_or(Refusal::TooManyListens { limit })?;
                evicted = listens.remove(&key).and_then(|listen| listen.upgrade());
            }
            listens.insert(handle.key(), Arc::downgrade(handle));
            evicted
        };
        if let Some(evicted) = evicted {
            self.shared.limit_hits.count("listens");
            evicted.dismiss();
        }
        Ok(())
    }

    /// Waits until the server has answered the handshake. Returns the era that was agreed on, if
    /// one was.
    async fn negotiated_era(
        &self,
        instance: &Arc<Instance>,
        client: &Arc<Client>,
    ) -> Result<Option<Era>, Refusal> {
        if let Some(era) = instance.agreed_era() {
            return Ok(Some(era));
        }
        let spec = self.request_spec(
            self.new_session_key(),
            Arc::clone(client),
            discovery(),
            Classified::Discover,
            Accepts::Json,
        );
        let target = AskTarget::Instance(Arc::clone(instance));
        match self.start(&target, spec).answer().await {
            FirstOutcome::Complete {
                failure: Some(failure),
                ..
            } if failure != Failure::HandshakeRefused => Err(Refusal::Unreached(failure)),
            FirstOutcome::Complete { .. } | FirstOutcome::Ask { .. } | FirstOutcome::Stream => {
                Ok(instance.agreed_era())
            }
        }
    }

    /// Returns what a state is bound to.
    fn binding(&self, principal: &str) -> String {
        format!("{}/{principal}", self.name)
    }

    /// Returns what seals the server's own states for a caller, where callers or replicas differ.
    pub(crate) fn state_seal(&self, principal: &Principal) -> Option<StateSeal> {
        let has_peers = || self.fleet().is_some_and(|fleet| fleet.has_peers());
        // An aggregate names the member in a state, so that it must come back as it was.
        let is_aggregate = self.upstream.aggregate().is_some();
        (self.shared.tells_callers_apart || is_aggregate || has_peers())
            .then(|| StateSeal::new(Arc::clone(&self.shared.sealer), &self.binding(principal.as_str())))
    }

    /// Returns the other process whose server gave this state to this caller.
    pub(crate) fn process_of_state(&self, state: &str, principal: &Principal) -> Option<u64> {
        let bound_to = self.binding(principal.as_str());
        self.shared.sealer.other_process(state, &bound_to)
    }

    /// Parks a modern request whose server has asked a question. Returns the answer with the
    /// server's questions; `None` if there are none any more, so that the request is to be polled
    /// again.
    pub(crate) fn park(
        &self,
        handle: &Arc<ModernRequestHandle>,
        round: u32,
    ) -> Result<Option<bytes::Bytes>, NoRoomToWait> {
        let clock = self.shared.clock;
        let until = clock.now().after(WAITING_TIME);
        let request_state = RequestState {
            modern_request: handle.name,
            round,
            expires: clock.wall() + WAITING_TIME,
        };
        let state = self
            .shared
            .sealer
            .seal(request_state, &self.binding(handle.principal()))
            .ok_or(NoRoomToWait)?;
        // Another thread may have taken the place that was made.
        while !self.insert_parked(handle) {
            self.make_room_to_wait(handle)?;
        }
        Ok(handle.park(&state, until))
    }

    /// Adds a request to those that wait for their clients, if there is room. Returns whether it is
    /// there.
    fn insert_parked(&self, handle: &Arc<ModernRequestHandle>) -> bool {
        let limit = self.shared.limits.waiting_calls;
        let mut parked = self.parked_map();
        let has_room = parked.len() < limit || parked.contains_key(&handle.name);
        if has_room {
            parked.insert(handle.name, Arc::clone(handle));
        }
        has_room
    }

    fn parked_map(&self) -> MutexGuard<'_, HashMap<u128, Arc<ModernRequestHandle>>> {
        self.parked.lock()
    }

    /// Returns the modern requests that were parked and are not over. Those that are over are
    /// forgotten.
    fn waiting_requests(&self) -> Vec<Arc<ModernRequestHandle>> {
        let mut waiting: Vec<Arc<ModernRequestHandle>> = self.parked_map().values().cloned().collect();
        let over = waiting.extract_if(.., |handle| handle.is_over());
        let over: Vec<Arc<ModernRequestHandle>> = over.collect();
        if !over.is_empty() {
            let mut parked = self.parked_map();
            for handle in &over {
                parked.remove(&handle.name);
            }
        }
        waiting
    }

    /// Makes room for a call that waits for its client, if need be by giving up the oldest of a
    /// principal over its share.
    fn make_room_to_wait(&self, handle: &ModernRequestHandle) -> Result<(), NoRoomToWait> {
        let limit = self.shared.limits.waiting_calls;
        self.shared.limit_hits.count("waiting_calls");
        let waiting = self.waiting_requests();
        if waiting.len() < limit {
            return Ok(());
        }
        let held = waiting.iter().map(|waiting| HeldCall {
            key: waiting,
            principal: waiting.principal(),
            waits_until: waiting.waits_until(),
        });
        let held: Vec<HeldCall<'_, &Arc<ModernRequestHandle>>> = held.collect();
        let given_up = eviction::waiting_call_to_give_up(handle.principal(), &held).ok_or(NoRoomToWait)?;
        // If its client has come back meanwhile, the caller looks again.
        if given_up.abandon_if_parked() {
            self.parked_map().remove(&given_up.name);
        }
        Ok(())
    }

    /// Returns the parked modern request that a state names, and the round it is for: here, or
    /// where this destination's name led before a reload. A call in flight may wait for its client,
    /// which may answer after a reload.
    pub(crate) fn parked(&self, state: &str, principal: &Principal) -> ParkedCall {
        let sealer = &self.shared.sealer;
        let Some(opened) = sealer.open(state, &self.binding(principal.as_str())) else {
            return ParkedCall::Unknown;
        };
        let RequestState {
            modern_request,
            round,
            ..
        } = opened.request_state;
        if !opened.is_own {
            return match opened.request_state.is_current(self.shared.clock.wall()) {
                true => ParkedCall::Elsewhere(opened.process),
                false => ParkedCall::Unknown,
            };
        }
        let here = self.parked_here(modern_request, principal);
        let found = here.or_else(|| {
            let draining = self.draining_namesakes();
            let mut found = draining.iter();
            found.find_map(|namesake| namesake.parked_here(modern_request, principal))
        });
        found.map_or(ParkedCall::Unknown, |handle| ParkedCall::Waiting(handle, round))
    }

    /// Returns a parked modern request, unless its client comes too late for it. The time of day
    /// does not matter for a request of this process: it may jump.
    fn parked_here(&self, name: u128, principal: &Principal) -> Option<Arc<ModernRequestHandle>> {
        let handle = self.parked_map().get(&name).cloned()?;
        let now = self.shared.clock.now();
        let is_late = handle.waits_until().is_some_and(|until| until <= now);
        (handle.principal() == principal.as_str() && !is_late).then_some(handle)
    }

    /// Returns how many wait for their client, or were last seen to.
    pub(crate) fn parked_calls(&self) -> usize {
        self.waiting_requests().len()
    }

    /// Abandons calls whose clients did not come back in time.
    pub(super) fn forget_modern_requests(&self, now: Moment) {
        for handle in self.waiting_requests() {
            handle.tick(now);
        }
    }
}

/// Returns a `server/discover` of our own: answered from the server's answer to the handshake.
fn discovery() -> Message {
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"{}","io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#,
        Version::NEWEST_MODERN.as_str(),
    );
    Message::scan(bytes::Bytes::from(text)).expect("our own words are a message")
}
