//! The handle of a conversation: one client of an aggregate, between its session or modern request
//! above and the instances of the members below.
//!
//! To the client it stands where an instance stands, so that frontends and sessions do not know it
//! ([`AskTarget`]). To each member's instance it is a user under the client's own key. Which member
//! an ask is for is decided by [`Conversation`] alone.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::HeaderMap;
use protocol::aggregate::{
    Conversation, ConversationOutput, CursorSeal, MemberName, Routed, ToolsMode, View,
};
use protocol::exchange::{Ask, BackendError, CallKey, Client, Failure, SessionKey, Tell, UpstreamFault};
use protocol::message::Message;
use protocol::method::Method;
use protocol::time::Moment;
use protocol::version::Era;
use protocol::wire::header::MirroredParams;
use rustc_hash::FxHashMap;

use crate::clock::Clock;
use crate::driver::{Driver, Locked, Machine, Outputs};
use crate::instance::{Instance, InstanceUser, Reservation};
use crate::metrics::DestinationMetrics;
use crate::tasks;
use crate::upstream::WantedFor;
use crate::wake_up::WakeUp;

/// Calls whose way is remembered for their records. A client has fewer calls open.
const MAX_ROUTES: usize = 4096;

/// The pause before a member that gave no instance is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// Where the asks of a session or of a modern request go.
#[derive(Debug, Clone)]
pub(crate) enum AskTarget {
    /// The server of a destination.
    Instance(Arc<Instance>),
    /// The members of an aggregate.
    Conversation(Arc<ConversationHandle>),
}

impl AskTarget {
    /// Makes a user known, so that tells can reach it.
    pub(crate) fn attach(&self, key: SessionKey, user: Arc<dyn InstanceUser>) {
        match self {
            Self::Instance(instance) => instance.attach(key, user),
            Self::Conversation(conversation) => conversation.attach(user),
        }
    }

    pub(crate) fn ask(&self, now: Moment, ask: Ask) {
        match self {
            Self::Instance(instance) => instance.ask(now, ask),
            Self::Conversation(conversation) => conversation.ask(now, ask),
        }
    }

    /// Checks that the headers of a call match its arguments, as far as its tool is known. A
    /// conversation checks each call that it takes.
    pub(crate) fn check_mirrored(&self, message: &Message, params: &MirroredParams) -> Result<(), String> {
        match self {
            Self::Instance(instance) => instance.check_mirrored(message, params),
            Self::Conversation(_) => Ok(()),
        }
    }

    /// Returns the era used towards the server, if there is one server.
    pub(crate) fn era(&self) -> Option<Era> {
        match self {
            Self::Instance(instance) => Some(instance.era()),
            Self::Conversation(_) => None,
        }
    }

    pub(crate) fn destination(&self) -> &Arc<str> {
        match self {
            Self::Instance(instance) => instance.destination(),
            Self::Conversation(conversation) => &conversation.destination,
        }
    }

    pub(crate) fn metrics(&self) -> &Arc<DestinationMetrics> {
        match self {
            Self::Instance(instance) => instance.metrics(),
            Self::Conversation(conversation) => &conversation.metrics,
        }
    }

    /// Returns where a call went, if several servers could have had it, and forgets that.
    pub(crate) fn take_route(&self, call: Option<CallKey>) -> Option<Routed> {
        match self {
            Self::Instance(_) => None,
            Self::Conversation(conversation) => conversation.take_route(call),
        }
    }
}

/// What the answer to a call shows of its member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Its server could not be reached.
    Missed,
    /// It has answered after that.
    Back,
}

/// The instances of the members, as one conversation is given them.
pub(crate) trait Members: Send + Sync {
    /// Returns an instance of a member for this client, with the server that it belongs to.
    fn instance_for(
        &self,
        member: &str,
        wanted_for: WantedFor,
        client: &Client,
        headers: &HeaderMap,
    ) -> Result<(Reservation, Arc<dyn MemberServer>), Failure>;

    /// Reads what a member offers: a client waits for it.
    fn read(&self, member: &str);

    /// Looks whether a member is there, since a client has seen this.
    fn look(&self, member: &str, seen: Presence);

    /// A list of a member has changed: its server has notified a client.
    fn handle_list_changed(&self, member: &str);

    /// Forgets a conversation that has ended.
    fn forget(&self, session: SessionKey);
}

/// The server of a member.
pub(crate) trait MemberServer: Send + Sync {
    /// Returns an instance of the client's principal alone, if there is one or room for one.
    fn own_instance(&self, client: &Client) -> Option<Reservation>;

    /// Ends the instance of a session that has left it, if it was the session's own.
    fn end_session(&self, session: SessionKey);
}

/// One client's conversation with the members of an aggregate.
pub(crate) struct ConversationHandle {
    this: Weak<Self>,
    key: SessionKey,
    /// What instances of members are needed for, as an instance of a plain destination would be.
    wanted_for: WantedFor,
    destination: Arc<str>,
    clock: Clock,
    metrics: Arc<DestinationMetrics>,
    members: Arc<dyn Members>,
    /// What of the client's headers the servers of members are given.
    headers: HeaderMap,
    /// The calls of all conversations that are open.
    open_calls: Arc<AtomicUsize>,
    is_moving: AtomicBool,
    driver: Driver<ConversationState>,
}

struct ConversationState {
    conversation: Conversation,
    /// The session or the modern request, until it has closed.
    user: Option<Arc<dyn InstanceUser>>,
    open: FxHashMap<MemberName, OpenMember>,
    /// The open calls of the client, and the member of each that has one.
    calls: FxHashMap<CallKey, Option<MemberName>>,
    routes: FxHashMap<CallKey, Routed>,
    open_calls: Arc<AtomicUsize>,
    now: Moment,
    wake_up: WakeUp,
    has_panicked: bool,
}

/// A member that the client uses.
#[derive(Clone)]
struct OpenMember {
    server: Arc<dyn MemberServer>,
    user: Arc<MemberUser>,
    first: Arc<Instance>,
    /// The instance that it has moved to since. It moves at most once.
    moved_to: Option<Arc<Instance>>,
}

impl OpenMember {
    fn instance(&self) -> &Arc<Instance> {
        self.moved_to.as_ref().unwrap_or(&self.first)
    }

    /// Ends the use of the instance.
    fn close(&self, now: Moment, ask: Ask) {
        let session = ask.session();
        self.instance().ask(now, ask);
        if self.moved_to.is_some() {
            self.first.forget_moved(session);
        }
        self.server.end_session(session);
    }
}

/// The conversation as one member's instance knows it.
struct MemberUser {
    conversation: Weak<ConversationHandle>,
    member: MemberName,
    /// The last call has failed for want of the server.
    is_doubted: AtomicBool,
}

impl InstanceUser for MemberUser {
    fn deliver(&self, now: Moment, tell: Tell) {
        let Some(conversation) = self.conversation.upgrade() else {
            return;
        };
        if let Tell::Notice { message, .. } = &tell
            && is_list_changed(message.method())
        {
            conversation.members.handle_list_changed(&self.member);
        }
        let seen = match &tell {
            Tell::Failed { failure, .. } if is_absence(failure) => {
                self.is_doubted.store(true, Ordering::Relaxed);
                Some(Presence::Missed)
            }
            Tell::Reply { .. } => {
                let is_doubted = self.is_doubted.load(Ordering::Relaxed);
                let is_back = is_doubted && self.is_doubted.swap(false, Ordering::Relaxed);
                is_back.then_some(Presence::Back)
            }
            Tell::Opened { .. }
            | Tell::Done { .. }
            | Tell::Failed { .. }
            | Tell::Related { .. }
            | Tell::Waiting { .. }
            | Tell::Notice { .. }
            | Tell::Question { .. }
            | Tell::Withdrawn { .. } => None,
        };
        if let Some(presence) = seen {
            conversation.members.look(&self.member, presence);
        }
        conversation.act(now, |machine| machine.handle_tell(&self.member, tell));
    }

    fn lose_instance(&self, now: Moment, failure: &Failure) {
        if let Some(conversation) = self.conversation.upgrade() {
            conversation.lose(now, &self.member, failure);
        }
    }
}

/// Returns whether a call has failed because its server cannot be reached.
fn is_absence(failure: &Failure) -> bool {
    match failure {
        Failure::Unavailable { .. } | Failure::StartTimeout { .. } => true,
        Failure::Upstream(upstream) => upstream.fault == UpstreamFault::Lost,
        Failure::Timeout { .. }
        | Failure::Exited(_)
        | Failure::Retired
        | Failure::HandshakeRefused
        | Failure::Overloaded { .. }
        | Failure::Occupied
        | Failure::TooLarge { .. }
        | Failure::Unsupported { .. }
        | Failure::Unanswered { .. }
        | Failure::Invalid(_)
        | Failure::Cancelled
        | Failure::SessionEnded
        | Failure::OwnerLost => false,
    }
}

fn is_list_changed(method: Method) -> bool {
    matches!(
        method,
        Method::ToolsListChanged | Method::PromptsListChanged | Method::ResourcesListChanged
    )
}

/// What is to be done after the lock.
enum ConversationOrder {
    Tell {
        user: Arc<dyn InstanceUser>,
        now: Moment,
        tell: Tell,
    },
    Ask {
        member: MemberName,
        now: Moment,
        ask: Ask,
    },
    Read(MemberName),
    /// The client has closed. Dropped without the lock, since this may be the last that holds its
    /// session.
    Forget {
        _gone: Option<Arc<dyn InstanceUser>>,
    },
    LoseInstance {
        user: Arc<dyn InstanceUser>,
        now: Moment,
    },
}

impl std::fmt::Debug for ConversationHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConversationHandle")
            .field("destination", &self.destination)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// What a conversation is made from.
pub(crate) struct ConversationSpec {
    pub(crate) key: SessionKey,
    pub(crate) wanted_for: WantedFor,
    pub(crate) destination: Arc<str>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<DestinationMetrics>,
    pub(crate) members: Arc<dyn Members>,
    pub(crate) headers: HeaderMap,
    pub(crate) open_calls: Arc<AtomicUsize>,
    pub(crate) view: Arc<View>,
    pub(crate) tools: ToolsMode,
    pub(crate) cursors: Arc<dyn CursorSeal>,
}

impl ConversationHandle {
    pub(crate) fn new(spec: ConversationSpec) -> Arc<Self> {
        let ConversationSpec {
            key,
            wanted_for,
            destination,
            clock,
            metrics,
            members,
            headers,
            open_calls,
            view,
            tools,
            cursors,
        } = spec;
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            key,
            wanted_for,
            destination,
            clock,
            metrics,
            members,
            headers,
            is_moving: AtomicBool::new(false),
            driver: Driver::new(ConversationState {
                conversation: Conversation::new(view, tools, cursors),
                user: None,
                open: FxHashMap::default(),
                calls: FxHashMap::default(),
                routes: FxHashMap::default(),
                open_calls: Arc::clone(&open_calls),
                now: clock.now(),
                wake_up: WakeUp::default(),
                has_panicked: false,
            }),
            open_calls,
        })
    }

    pub(crate) fn key(&self) -> SessionKey {
        self.key
    }

    fn lock(&self) -> Locked<'_, ConversationState> {
        self.driver.lock()
    }

    /// Makes the client known, so that tells can reach it.
    fn attach(&self, user: Arc<dyn InstanceUser>) {
        self.lock().user = Some(user);
    }

    fn act(&self, now: Moment, act: impl FnOnce(&mut Conversation)) {
        self.act_on(now, |state, _| act(&mut state.conversation));
    }

    /// Calls the machine, and carries out what comes of it.
    fn act_on(&self, now: Moment, act: impl FnOnce(&mut ConversationState, &mut Outputs<ConversationOrder>)) {
        let due = self.driver.act(
            |state, orders| {
                state.now = now;
                act(state, orders);
                state.poll_outputs(orders);
                state.wake_up.set(state.conversation.next_deadline())
            },
            |order| self.carry_out(order),
        );
        if let Some(due) = due {
            self.wake_at(due);
        }
        self.metrics.idle.note_change();
    }

    fn wake_at(&self, due: Moment) {
        let (this, clock) = (Weak::clone(&self.this), self.clock);
        tasks::spawn("conversation", async move {
            clock.sleep_until(due).await;
            if let Some(conversation) = this.upgrade() {
                let now = clock.now().max(due);
                conversation.act_on(now, |state, _| {
                    state.wake_up.done();
                    state.conversation.handle_deadline(now);
                });
            }
        });
    }

    fn ask(&self, now: Moment, ask: Ask) {
        let opened = match &ask {
            Ask::Open { call, .. } | Ask::Restore { call, .. } => Some(*call),
            Ask::Call(call) => {
                self.leave_ended_instances(now);
                Some(call.call)
            }
            Ask::Ready { .. }
            | Ask::Cancel { .. }
            | Ask::Answer { .. }
            | Ask::Unanswerable { .. }
            | Ask::Notice { .. }
            | Ask::Close { .. } => None,
        };
        let is_closing = matches!(ask, Ask::Close { .. });
        self.act_on(now, |state, orders| {
            if let Some(call) = opened {
                state.open_call(call);
            }
            state.conversation.handle_ask(now, ask);
            if is_closing {
                // Its last tells still reach the client.
                state.poll_outputs(orders);
                let _gone = state.close();
                orders.push(ConversationOrder::Forget { _gone });
            }
        });
    }

    /// Shows the client what members offer now.
    pub(crate) fn show(&self, now: Moment, view: Arc<View>) {
        self.act(now, |machine| machine.handle_view(now, view));
    }

    /// Fails what is open at a member: its instance has forgotten it, or is gone.
    fn lose(&self, now: Moment, member: &MemberName, failure: &Failure) {
        self.act(now, |machine| machine.handle_lost_member(member, failure));
    }

    /// The same after a pause, for a member that is to be opened again.
    fn lose_later(&self, member: MemberName, failure: Failure) {
        let (this, clock) = (Weak::clone(&self.this), self.clock);
        tasks::spawn("conversation", async move {
            tokio::time::sleep(PAUSE).await;
            if let Some(conversation) = this.upgrade() {
                conversation.lose(clock.now(), &member, &failure);
            }
        });
    }

    /// Fails every call.
    pub(crate) fn fail(&self, failure: &Failure) {
        let now = self.clock.now();
        let open: Vec<MemberName> = self.lock().open.keys().cloned().collect();
        for member in open {
            self.lose(now, &member, failure);
        }
    }

    /// Leaves the instances that a reload or an end has taken out of service, where no call of the
    /// client is open: the next call opens the member anew.
    pub(crate) fn leave_ended_instances(&self, now: Moment) {
        let left: Vec<(MemberName, OpenMember)> = {
            let mut state = self.lock();
            let is_left = |name: &MemberName, open: &OpenMember| {
                open.instance().is_leaving()
                    && !state.calls.values().any(|member| member.as_ref() == Some(name))
            };
            let open = state.open.iter().filter(|(name, open)| is_left(name, open));
            let names: Vec<MemberName> = open.map(|(name, _)| name.clone()).collect();
            let left = names.into_iter();
            left.filter_map(|name| state.open.remove_entry(&name)).collect()
        };
        for (name, open) in left {
            open.close(now, Ask::Close { session: self.key });
            self.lose(now, &name, &Failure::Retired);
        }
    }

    /// Returns whether an instance that the client uses is one principal's, so that the client may
    /// have to leave it.
    pub(crate) fn is_owned(&self) -> bool {
        self.lock().open.values().any(|open| open.instance().is_owned())
    }

    /// Returns whether a call of the client waits to be sent.
    pub(crate) fn keeps_waiting(&self) -> bool {
        let open: Vec<OpenMember> = self.lock().open.values().cloned().collect();
        open.iter().any(|open| open.instance().keeps_waiting(self.key))
    }

    /// Moves the client from instances that are another principal's to some of its own, unless it
    /// has something left where it is.
    pub(crate) fn leave_owned_instances(&self) {
        if self.is_moving.swap(true, Ordering::AcqRel) {
            return;
        }
        let open: Vec<(MemberName, OpenMember)> = {
            let state = self.lock();
            let owned = state.open.iter().filter(|(_, open)| open.instance().is_owned());
            owned.map(|(name, open)| (name.clone(), open.clone())).collect()
        };
        for (name, open) in open {
            let instance = open.instance();
            if open.moved_to.is_none()
                && let Some(leaving) = instance.leaving_client(self.key)
                && let Some(next) = open.server.own_instance(&leaving.client)
                && !Arc::ptr_eq(instance, &next)
                && instance.hand_over(self.key, Arc::clone(&open.user) as _, leaving, &next)
            {
                let still_open = self
                    .lock()
                    .open
                    .get_mut(&name)
                    .map(|open| open.moved_to = Some(Arc::clone(&next)));
                // It has left meanwhile, and did not know of the move.
                if still_open.is_none() {
                    instance.forget_moved(self.key);
                }
            }
        }
        self.is_moving.store(false, Ordering::Release);
    }

    fn take_route(&self, call: Option<CallKey>) -> Option<Routed> {
        let mut state = self.lock();
        match call {
            Some(call) => state.routes.remove(&call),
            // A modern request has one call.
            None => state.routes.values().next().cloned(),
        }
    }

    fn carry_out(&self, order: ConversationOrder) {
        match order {
            ConversationOrder::Tell { user, now, tell } => user.deliver(now, tell),
            ConversationOrder::Ask { member, now, ask } => self.ask_member(member, now, ask),
            ConversationOrder::Read(member) => self.members.read(&member),
            ConversationOrder::Forget { .. } => self.members.forget(self.key),
            ConversationOrder::LoseInstance { user, now } => {
                let backend_error = Arc::new(BackendError {
                    what: "internal error of the gateway; its log has the details".into(),
                    ..BackendError::default()
                });
                user.lose_instance(now, &Failure::Exited(backend_error));
            }
        }
    }

    fn ask_member(&self, member: MemberName, now: Moment, ask: Ask) {
        match &ask {
            Ask::Open { client, .. } | Ask::Restore { client, .. } => {
                let left = self.lock().open.remove(&member);
                if let Some(left) = left {
                    left.close(now, Ask::Close { session: self.key });
                }
                let found = self
                    .members
                    .instance_for(&member, self.wanted_for, client, &self.headers);
                let (instance, server) = match found {
                    Ok(found) => found,
                    // What the client is subscribed to opens the member again at once.
                    Err(failure) if matches!(ask, Ask::Restore { .. }) => {
                        return self.lose_later(member, failure);
                    }
                    Err(failure) => return self.lose(now, &member, &failure),
                };
                let user = Arc::new(MemberUser {
                    conversation: Weak::clone(&self.this),
                    member: member.clone(),
                    is_doubted: AtomicBool::new(false),
                });
                instance.attach(self.key, Arc::clone(&user) as _);
                let open = OpenMember {
                    server,
                    user,
                    first: Arc::clone(&instance),
                    moved_to: None,
                };
                self.lock().open.insert(member, open);
                instance.ask(now, ask);
            }
            Ask::Close { .. } => {
                let left = self.lock().open.remove(&member);
                if let Some(left) = left {
                    left.close(now, ask);
                }
            }
            Ask::Ready { .. }
            | Ask::Call(_)
            | Ask::Cancel { .. }
            | Ask::Answer { .. }
            | Ask::Unanswerable { .. }
            | Ask::Notice { .. } => {
                let open = self.lock().open.get(&member).cloned();
                if let Some(open) = open {
                    open.instance().ask(now, ask);
                }
            }
        }
    }
}

impl Drop for ConversationHandle {
    fn drop(&mut self) {
        let (left, open) = {
            let mut state = self.lock();
            (state.calls.len(), std::mem::take(&mut state.open))
        };
        self.open_calls.fetch_sub(left, Ordering::Relaxed);
        // A client that never closed.
        for open in open.into_values() {
            open.close(self.clock.now(), Ask::Close { session: self.key });
        }
    }
}

impl ConversationState {
    fn open_call(&mut self, call: CallKey) {
        if self.calls.insert(call, None).is_none() {
            self.open_calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn end_call(&mut self, call: CallKey) {
        if self.calls.remove(&call).is_some() {
            self.open_calls.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Forgets the client, which has closed. Returns it.
    fn close(&mut self) -> Option<Arc<dyn InstanceUser>> {
        let left = std::mem::take(&mut self.calls).len();
        self.open_calls.fetch_sub(left, Ordering::Relaxed);
        self.user.take()
    }
}

impl Machine for ConversationState {
    type Output = ConversationOrder;

    fn poll_output(&mut self) -> Option<ConversationOrder> {
        let now = self.now;
        if std::mem::take(&mut self.has_panicked)
            && let Some(user) = self.user.clone()
        {
            return Some(ConversationOrder::LoseInstance { user, now });
        }
        loop {
            return Some(match self.conversation.poll_output()? {
                ConversationOutput::Tell(tell) => {
                    if let Tell::Opened { call, .. }
                    | Tell::Reply { call, .. }
                    | Tell::Done { call, .. }
                    | Tell::Failed { call, .. } = &tell
                    {
                        self.end_call(*call);
                    }
                    match self.user.clone() {
                        Some(user) => ConversationOrder::Tell { user, now, tell },
                        None => continue,
                    }
                }
                ConversationOutput::Ask { member, ask } => ConversationOrder::Ask { member, now, ask },
                ConversationOutput::Read(member) => ConversationOrder::Read(member),
                ConversationOutput::Routed(routed) => {
                    if let Some(member) = self.calls.get_mut(&routed.call) {
                        *member = Some(routed.member.clone());
                    }
                    if self.routes.len() < MAX_ROUTES {
                        self.routes.insert(routed.call, routed);
                    }
                    continue;
                }
            });
        }
    }

    fn handle_panic(&mut self) {
        tracing::error!("a conversation panicked; its calls have failed");
        self.has_panicked = true;
    }
}
