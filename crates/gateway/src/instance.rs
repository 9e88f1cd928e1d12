//! An instance: one backend and the sessions that use it.
//!
//! The multiplexer decides; this file calls it where the data is. A client's connection calls
//! [`Instance::ask`] directly, a child's reader calls [`Instance::arrive`], and each `Tell` of the
//! machine goes straight to its session. Only writing, reading and supervising the child are tasks
//! ([`crate::backend::process::supervisor`]).

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use protocol::backend_face::WireId;
use protocol::delivery::{PostBatch, PostRequest};
use protocol::exchange::{Ask, BackendError, CallKey, Failure, Principal, SessionKey, StrayOutput, Tell};
use protocol::message::{Member, Message, ScanError};
use protocol::modern_request::MAIN_CALL;
use protocol::multiplexer::{Carrier, LeavingClient, Multiplexer, Output, Wait};
use protocol::negotiation::{EraPlan, ShownEras};
use protocol::time::Moment;
use protocol::tool_schema::arguments_of;
use protocol::version::Era;
use protocol::wire::header::MirroredParams;
use protocol::wire::line::{Frame, LineFramer};
use protocol::wire::outbox::Outbox;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, oneshot};

use crate::clock::Clock;
use crate::driver::{Driver, Locked, Machine, Outputs};
use crate::escape::OneLine;
#[cfg(debug_assertions)]
use crate::fault_injection;
use crate::metrics::DestinationMetrics;
use crate::server_eras::ServerEras;
use crate::status::{Depths, Health, Serves};
use crate::tap::Direction;

/// The first stray lines are logged one by one, and of the later ones each thousandth.
const NOISE_LOGGED: u64 = 20;
const NOISE_SAMPLED: u64 = 1000;

/// When a client that met a stopped instance should try again: it finds another one.
const STOPPED_FOR: Duration = Duration::from_secs(1);

/// One backend and its sessions.
pub(crate) struct Instance {
    destination: Arc<str>,
    clock: Clock,
    metrics: Arc<DestinationMetrics>,
    /// What its server shows of its eras is noted here.
    eras: Arc<ServerEras>,
    driver: Driver<InstanceState>,
    /// There is something to write.
    pub(crate) outgoing_ready: Notify,
    /// The supervisor has something to look at: a link is wanted, a deadline moved, the instance is
    /// to stop.
    pub(crate) supervisor_wake: Notify,
    stopping: AtomicBool,
    /// No further client is to use it: a reload has replaced its destination.
    retired: AtomicBool,
    /// The server has asked a question, so from now on the instance serves one principal, its
    /// owner.
    owned: AtomicBool,
    /// How often the instance was chosen for a client.
    reservations: AtomicU64,
    /// How many of these clients have been attached since, or do not need it after all.
    ended_reservations: AtomicU64,
}

/// An instance that was chosen for a client. Until this is dropped the instance is not stopped as
/// unused, so the caller keeps it until the client is attached.
#[derive(Debug)]
pub(crate) struct Reservation(Arc<Instance>);

impl std::ops::Deref for Reservation {
    type Target = Arc<Instance>;

    fn deref(&self) -> &Arc<Instance> {
        &self.0
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.ended_reservations.fetch_add(1, Ordering::Release);
    }
}

/// A moment at which no client was about to be attached to an instance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unreserved {
    reservations: u64,
}

struct InstanceState {
    destination: Arc<str>,
    multiplexer: Multiplexer,
    /// Rialto counts the keys up itself, so no peer can choose keys that collide.
    users: FxHashMap<SessionKey, Arc<dyn InstanceUser>>,
    /// Sessions that have moved to another instance: asks that still arrive here are passed on.
    moved: FxHashMap<SessionKey, Arc<Instance>>,
    link_wanted: bool,
    inlet: Option<Inlet>,
    /// Bytes at the beginning of what waits to be written whose line readers have seen.
    shown_rest: usize,
    /// A message is being passed from the machine to the inlet: no other may overtake it.
    is_sending: bool,
    /// Counts the beginnings and ends of links. The rest of a half-written line belongs to its own
    /// link.
    link: u64,
    /// Why the child is to be replaced.
    replacement: Option<&'static str>,
    /// An operator wants the server started anew.
    restart_wanted: bool,
    health: Health,
    deadline: Option<Moment>,
    /// Since when no session has used this instance.
    idle_since: Option<Moment>,
    /// When a client last asked something.
    last_asked: Moment,
    /// When the present link began, or the last one that there was.
    link_began: Option<Moment>,
    /// Links that have begun.
    links: u64,
    /// The child is being ended, or was, because no call used it. Its output counts no more.
    is_asleep: bool,
    /// The server has answered the handshake on this link.
    was_ready: bool,
    /// When it did.
    ready_at: Option<Moment>,
    /// What the server wrote on stdout before it was ready that was no message.
    stray_output: StrayOutput,
    /// When the machine was last called. The clock is read once for all that comes of one call.
    now: Moment,
    /// The process that the output being read is from; 0 if it is none.
    pid: u32,
    /// Why no call can be served any more: the supervisor has ended.
    over: Option<Arc<BackendError>>,
    /// The users whose calls a panic may have lost, with how these calls fail.
    lost: VecDeque<(Arc<dyn InstanceUser>, Failure)>,
    wake_writer: bool,
    wake_supervisor: bool,
}

/// A user of an instance: a session or a modern request.
pub(crate) trait InstanceUser: Send + Sync {
    fn deliver(&self, now: Moment, tell: Tell);

    /// Ends the calls that the instance may have forgotten.
    fn lose_instance(&self, now: Moment, failure: &Failure);
}

/// A pipe to a server that reads lines.
pub(crate) trait ByteInlet: Send + Sync {
    /// Writes as much as can be written at once. Returns how much that was.
    fn write(&self, bytes: &[u8]) -> usize;
}

/// The senders of messages to a server that reads them one by one.
pub(crate) trait MessageInlet: Send + Sync {
    fn send(self: Arc<Self>, post: PostRequest);
}

/// A direct way to the server, lent by the backend: a message that is alone need not wait for the
/// backend's tasks.
enum Inlet {
    Bytes(Arc<dyn ByteInlet>),
    Messages(Arc<dyn MessageInlet>),
}

/// What to do after an ask.
enum Asked {
    /// A user that has left is dropped without the lock: this may be the last that holds its
    /// session.
    Done {
        _gone: Option<Arc<dyn InstanceUser>>,
    },
    PassOn(Arc<Instance>, Ask),
}

/// What is to be done after the lock.
enum InstanceOrder {
    Tell {
        user: Arc<dyn InstanceUser>,
        now: Moment,
        tell: Tell,
    },
    /// A panic may have lost calls that the user still waits for.
    LoseInstance {
        user: Arc<dyn InstanceUser>,
        now: Moment,
        failure: Failure,
    },
    LearnEras {
        now: Moment,
        shown: ShownEras,
    },
    /// A line to write at once. Until [`InstanceState::note_written`] the writer task gets nothing.
    Write {
        inlet: Arc<dyn ByteInlet>,
        line: Bytes,
        link: u64,
    },
    /// The same for a message.
    Send {
        inlet: Arc<dyn MessageInlet>,
        post: PostRequest,
    },
    /// All orders before this one were carried out.
    Delivered(oneshot::Sender<()>),
    WakeWriter,
    WakeSupervisor,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance")
            .field("destination", &self.destination)
            .finish_non_exhaustive()
    }
}

impl Instance {
    pub(crate) fn new(
        destination: Arc<str>,
        clock: Clock,
        metrics: Arc<DestinationMetrics>,
        eras: Arc<ServerEras>,
        multiplexer: Multiplexer,
    ) -> Self {
        Self {
            clock,
            metrics,
            eras,
            driver: Driver::new(InstanceState {
                destination: Arc::clone(&destination),
                multiplexer,
                users: FxHashMap::default(),
                moved: FxHashMap::default(),
                link_wanted: false,
                inlet: None,
                shown_rest: 0,
                is_sending: false,
                link: 0,
                replacement: None,
                restart_wanted: false,
                health: Health::Idle,
                deadline: None,
                idle_since: Some(clock.now()),
                last_asked: clock.now(),
                link_began: None,
                links: 0,
                is_asleep: false,
                was_ready: false,
                ready_at: None,
                stray_output: StrayOutput::default(),
                now: clock.now(),
                pid: 0,
                over: None,
                lost: VecDeque::new(),
                wake_writer: false,
                wake_supervisor: false,
            }),
            destination,
            outgoing_ready: Notify::new(),
            supervisor_wake: Notify::new(),
            stopping: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            owned: AtomicBool::new(false),
            reservations: AtomicU64::new(0),
            ended_reservations: AtomicU64::new(0),
        }
    }

    /// Reserves the instance for a client. The caller holds the lock under which instances are
    /// chosen and removed.
    pub(crate) fn reserve(self: &Arc<Self>) -> Reservation {
        self.reservations.fetch_add(1, Ordering::Relaxed);
        Reservation(Arc::clone(self))
    }

    /// Returns the present moment, unless a client is about to be attached. What is read of the
    /// instance afterwards holds as long as [`Instance::is_unreserved_since`] does. The caller
    /// holds the same lock as for `reserve`.
    pub(crate) fn unreserved(&self) -> Option<Unreserved> {
        let reservations = self.reservations.load(Ordering::Relaxed);
        let ended = self.ended_reservations.load(Ordering::Acquire);
        (ended == reservations).then_some(Unreserved { reservations })
    }

    /// Returns whether the instance was chosen for no client since then. The caller holds the same
    /// lock as for `reserve`.
    pub(crate) fn is_unreserved_since(&self, then: Unreserved) -> bool {
        self.reservations.load(Ordering::Relaxed) == then.reservations
    }

    pub(crate) fn destination(&self) -> &Arc<str> {
        &self.destination
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn metrics(&self) -> &Arc<DestinationMetrics> {
        &self.metrics
    }

    fn lock(&self) -> Locked<'_, InstanceState> {
        self.driver.lock()
    }

    // From sessions and modern requests.

    /// Makes a user known, so that tells can reach it.
    pub(crate) fn attach(&self, key: SessionKey, user: Arc<dyn InstanceUser>) {
        let mut state = self.lock();
        state.users.insert(key, user);
        state.idle_since = None;
    }

    /// Sets the eras that are tried in the handshake. Ignored once the handshake has begun.
    pub(crate) fn plan_eras(&self, plan: EraPlan) {
        self.lock().multiplexer.plan_eras(plan);
    }

    /// Keeps to the eras that the old transport knows.
    pub(crate) fn plan_for_old_transport(&self) {
        let mut state = self.lock();
        let plan = state.multiplexer.eras_planned().over_old_transport();
        state.multiplexer.plan_eras(plan);
    }

    /// Returns whether a server that refuses `server/discover` is sent `initialize`.
    pub(crate) fn falls_back(&self) -> bool {
        self.lock().multiplexer.eras_planned().falls_back()
    }

    /// Returns the era that was agreed on with the server, if one was on this link.
    pub(crate) fn agreed_era(&self) -> Option<Era> {
        let state = self.lock();
        state.multiplexer.is_ready().then(|| state.multiplexer.era())
    }

    pub(crate) fn ask(&self, now: Moment, ask: Ask) {
        let session = ask.session();
        let is_closing = matches!(ask, Ask::Close { .. });
        let asked = self.act(now, |state, orders| {
            if let Some(next) = state.moved.get(&session) {
                return Asked::PassOn(Arc::clone(next), ask);
            }
            #[cfg(debug_assertions)]
            let panics = match &ask {
                Ask::Call(call) => call.message.bytes().clone(),
                _ => Bytes::new(),
            };
            state.last_asked = now;
            state.multiplexer.handle_ask(now, ask);
            #[cfg(debug_assertions)]
            fault_injection::maybe_panic(fault_injection::Site::Instance, &panics);
            state.send_through(orders);
            if !is_closing {
                return Asked::Done { _gone: None };
            }
            // Its last tells still reach it.
            state.poll_outputs(orders);
            let _gone = state.forget_user(session);
            Asked::Done { _gone }
        });
        match asked {
            Asked::Done { .. } => {}
            Asked::PassOn(next, ask) => next.ask(now, ask),
        }
    }

    /// Returns whether the instance is one principal's, so that sessions of others may have to
    /// leave it.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned.load(Ordering::Relaxed)
    }

    /// Returns the client of a session that is to leave this instance.
    pub(crate) fn leaving_client(&self, session: SessionKey) -> Option<LeavingClient> {
        self.lock().multiplexer.leaving_client(session)
    }

    /// Returns whether a call of this session waits to be sent.
    pub(crate) fn keeps_waiting(&self, session: SessionKey) -> bool {
        self.lock().multiplexer.is_kept_waiting(session)
    }

    /// Hands a session over to another instance of the same server, in this process. (Between
    /// replicas, `Fleet::hand_over` does.) The session stays if something
    /// has come up that it must stay for. Returns whether it has moved.
    pub(crate) fn hand_over(
        &self,
        session: SessionKey,
        user: Arc<dyn InstanceUser>,
        leaving: LeavingClient,
        next: &Arc<Self>,
    ) -> bool {
        let now = self.clock.now();
        // The other instance knows the session before this one passes anything on.
        next.attach(session, Arc::clone(&user));
        next.with(|multiplexer, now| multiplexer.expect_session(now, session, leaving));
        let (handover, _gone) = self.act(now, |state, orders| {
            let handover = state.multiplexer.hand_over(now, session);
            if handover.is_none() {
                return (None, None);
            }
            state.poll_outputs(orders);
            state.moved.insert(session, Arc::clone(next));
            (handover, state.forget_user(session))
        });
        let has_moved = handover.is_some();
        match handover {
            Some(handover) => {
                let is_there = next.with(|multiplexer, now| multiplexer.take_over(now, session, handover));
                if !is_there {
                    user.lose_instance(now, &Failure::SessionEnded);
                }
            }
            None => next.ask(now, Ask::Close { session }),
        }
        has_moved
    }

    /// Forgets a session that has moved to another instance and has ended.
    pub(crate) fn forget_moved(&self, session: SessionKey) {
        self.lock().moved.remove(&session);
    }

    /// Calls the machine, and carries out what comes of it.
    fn act<T>(
        &self,
        now: Moment,
        act: impl FnOnce(&mut InstanceState, &mut Outputs<InstanceOrder>) -> T,
    ) -> T {
        let acted = self.driver.act(
            |state, orders| {
                state.now = now;
                let acted = act(state, orders);
                state.refuse_if_over();
                state.note_changes();
                if state.multiplexer.is_owned() {
                    self.owned.store(true, Ordering::Relaxed);
                }
                acted
            },
            |order| self.carry_out(order),
        );
        self.metrics.idle.note_change();
        acted
    }

    /// Ends the backend. Sessions should have been ended before.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.supervisor_wake.notify_one();
    }

    /// Fails every open call of its users: what became of it is not known.
    pub(crate) fn lose(&self, failure: &Failure) {
        let now = self.clock.now();
        let users: Vec<Arc<dyn InstanceUser>> = self.lock().users.values().cloned().collect();
        for user in users {
            user.lose_instance(now, failure);
        }
    }

    /// Returns whether its clients should use another instance as soon as they can.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_stopping() || self.retired.load(Ordering::Acquire)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    // State, for status and eviction.

    pub(crate) fn health(&self) -> Health {
        self.lock().health.clone()
    }

    pub(crate) fn open_calls(&self) -> usize {
        self.lock().multiplexer.open_calls()
    }

    /// Returns whether a principal should use this instance.
    pub(crate) fn suits(&self, principal: &Principal) -> bool {
        self.lock().multiplexer.suits(principal)
    }

    /// Returns since when no session has used this instance; `None` also while a task goes on that
    /// was begun here.
    pub(crate) fn idle_since(&self) -> Option<Moment> {
        let state = self.lock();
        let pinned = state.multiplexer.has_live_tasks(self.clock.now());
        state.idle_since.filter(|_| !pinned)
    }

    /// Ends the link to a child that no call has used for `limit`, up to now. The supervisor ends
    /// the child, and the next call has another one started. Returns whether it has ended.
    pub(crate) fn sleep_if_unused(&self, now: Moment, limit: Duration) -> bool {
        self.act(now, |state, _| {
            if state.multiplexer.is_in_use(now) {
                state.last_asked = now;
            }
            let is_unused = state.health.is_up() && now.since(state.last_asked) >= limit;
            if is_unused {
                // Under one lock with the look: a call that comes after it wants a new link.
                state.is_asleep = true;
                state.health = Health::Asleep;
                state.close_inlet();
                state.multiplexer.handle_link_down(&Arc::default());
                state.wake_supervisor = true;
            }
            is_unused
        })
    }

    /// Returns whether the child is to be ended, or was, because no call used it.
    pub(crate) fn is_asleep(&self) -> bool {
        self.lock().is_asleep
    }

    /// Returns the keys of those that use this instance; `None` while a task needs it.
    pub(crate) fn users(&self) -> Option<Vec<SessionKey>> {
        let state = self.lock();
        let is_pinned = state.multiplexer.has_live_tasks(self.clock.now());
        (!is_pinned).then(|| state.users.keys().copied().collect())
    }

    /// Checks that the headers of a call match its arguments, as far as its tool is known.
    pub(crate) fn check_mirrored(&self, message: &Message, params: &MirroredParams) -> Result<(), String> {
        self.lock().multiplexer.check_mirrored(message, params)
    }

    /// Returns what a call has waited for that came then, if it is known.
    pub(crate) fn wait_of(&self, session: SessionKey, call: CallKey, came: Moment) -> Option<Wait> {
        self.lock().multiplexer.wait_of(session, call, came)
    }

    /// Returns the same for a modern request, whose client comes with it. What it waited for a
    /// start is not known.
    pub(crate) fn wait_of_request(&self, session: SessionKey, came: Moment) -> Option<Wait> {
        let state = self.lock();
        let was_ready = state.ready_at.is_some_and(|ready| ready <= came);
        was_ready.then(|| state.multiplexer.wait_of(session, MAIN_CALL, came))?
    }

    /// Returns the number of tools that clients are shown, if it is known.
    pub(crate) fn shown_tools(&self) -> Option<usize> {
        self.lock().multiplexer.number_of_shown_tools()
    }

    pub(crate) fn depths(&self) -> Depths {
        let state = self.lock();
        let now = self.clock.now();
        Depths {
            era: state.multiplexer.era(),
            agreed: state.multiplexer.is_ready().then(|| state.multiplexer.era()),
            age: state.link_began.map(|began| now.since(began)),
            restarts: state.links.saturating_sub(1),
            users: state.users.len(),
            last_asked: now.since(state.last_asked),
            serves: Serves::default(),
            health: state.health.clone(),
            open_calls: state.multiplexer.open_calls(),
            waiting_calls: state.multiplexer.waiting_calls(),
            open_questions: state.multiplexer.open_questions(),
            questions: state.multiplexer.question_list(now).collect(),
            outgoing_bytes: state.multiplexer.outgoing_bytes(),
            counters: state.multiplexer.counters(),
        }
    }

    // From the tasks of the backend.

    pub(crate) fn set_health(&self, health: Health) {
        self.lock().health = health;
    }

    /// Returns whether a call waits for a link, and resets that.
    pub(crate) fn take_link_wanted(&self) -> bool {
        std::mem::take(&mut self.lock().link_wanted)
    }

    /// Returns why the child is to be replaced, if it is, and resets that.
    pub(crate) fn take_replacement(&self) -> Option<&'static str> {
        self.lock().replacement.take()
    }

    /// Ends the link to the server, so that another one begins at once. Sessions stay; calls in
    /// flight fail. Returns whether there was something to restart.
    pub(crate) fn restart(&self) -> bool {
        let mut state = self.lock();
        match state.health {
            Health::Idle | Health::Asleep | Health::Stopped => return false,
            // It is new.
            Health::Starting => return true,
            Health::Running { .. } | Health::Ready { .. } | Health::BackingOff(_) | Health::Failed(_) => {}
        }
        state.restart_wanted = true;
        if state.health.pid().is_some() {
            state.replacement = Some("restarted by its operator");
        }
        self.supervisor_wake.notify_one();
        true
    }

    /// Returns whether an operator wants the server started anew, and resets that.
    pub(crate) fn take_restart(&self) -> bool {
        std::mem::take(&mut self.lock().restart_wanted)
    }

    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        let mut state = self.lock();
        state.deadline = state.multiplexer.next_deadline();
        state.deadline
    }

    pub(crate) fn link_up(&self, pid: Option<u32>) {
        let now = self.clock.now();
        self.act(now, |state, _| {
            // A replacement that was wanted for the predecessor does not concern this child.
            state.replacement = None;
            state.restart_wanted = false;
            // A client that came while this child was being started wanted this one.
            state.link_wanted = false;
            state.is_asleep = false;
            state.link_began = Some(now);
            state.links += 1;
            state.shown_rest = 0;
            state.link += 1;
            state.was_ready = false;
            state.ready_at = None;
            state.stray_output = StrayOutput::default();
            // Set under the same lock: the server may answer as soon as the handshake is written.
            state.health = Health::Running { pid };
            state.multiplexer.handle_link_up(now);
        });
    }

    /// Lends the child's stdin. As long as it is here the child does not see its end.
    pub(crate) fn lend_pipe(&self, pipe: Arc<dyn ByteInlet>) {
        self.lock().inlet = Some(Inlet::Bytes(pipe));
    }

    pub(crate) fn close_inlet(&self) {
        self.lock().close_inlet();
    }

    /// Returns whether the server may have ended because of `server/discover`.
    pub(crate) fn link_down(&self, backend_error: &Arc<BackendError>) -> bool {
        self.act(self.clock.now(), |state, _| {
            state.link += 1;
            state.multiplexer.handle_link_down(backend_error)
        })
    }

    pub(crate) fn unavailable(&self, backend_error: &Arc<BackendError>, retry_after: Duration) {
        self.with(|multiplexer, _| multiplexer.handle_unavailable(backend_error, retry_after));
    }

    /// The server was reached and definitely refuses.
    pub(crate) fn refused(&self, failure: &Failure) {
        self.with(|multiplexer, _| multiplexer.handle_no_server(failure));
    }

    /// The supervisor has ended. A client that was given this instance before is refused: nothing
    /// would start the server, and no deadline would be noticed.
    pub(crate) fn end_supervision(&self) {
        let over = Arc::new(BackendError {
            what: "stopped".into(),
            ..BackendError::default()
        });
        self.act(self.clock.now(), |state, _| state.over = Some(over));
    }

    /// Refuses the calls that wait for the server, and new ones.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.with(|multiplexer, _| multiplexer.handle_retired());
    }

    /// The child has written to stderr.
    pub(crate) fn note_stderr(&self) {
        self.with(|multiplexer, now| multiplexer.handle_stderr(now));
    }

    /// Returns what the server has written on stdout that was no message, unless it got ready all
    /// the same.
    pub(crate) fn stray_output(&self) -> Option<StrayOutput> {
        let stray = self.lock().stray_output.clone();
        (stray.lines > 0).then_some(stray)
    }

    /// Returns whether the server has not answered the handshake on this link, or has not before
    /// the link ended.
    pub(crate) fn is_starting(&self) -> bool {
        !self.lock().was_ready
    }

    /// Sets the error for calls whose wait for a starting server times out.
    pub(crate) fn describe_start(&self, report: Arc<BackendError>) {
        self.lock().multiplexer.describe_start(report);
    }

    pub(crate) fn reach_deadline(&self, now: Moment) {
        self.with(|multiplexer, _| multiplexer.handle_deadline(now));
    }

    /// Takes every whole line that has been read. Returns how many there were; `None` when the
    /// server is to be replaced, so that nothing more of its output is of use.
    pub(crate) fn arrive(&self, framer: &mut LineFramer, pid: u32) -> Option<usize> {
        let mut lines = 0;
        let now = self.clock.now();
        let is_tapped = self.metrics.tap.is_read();
        let mut tapped = Vec::new();
        let is_useless = self.act(now, |state, orders| {
            if state.is_asleep {
                return true;
            }
            if framer.unfinished().is_none() {
                state.multiplexer.handle_activity();
            }
            while let Some(frame) = framer.next() {
                lines += 1;
                match frame {
                    Frame::Line(line) => {
                        if is_tapped {
                            tapped.push(line.clone());
                        }
                        state.multiplexer.handle_line(now, line);
                    }
                    Frame::TooLong(long) => {
                        state
                            .multiplexer
                            .handle_too_long(now, long.id.as_deref(), long.method, long.length);
                        tracing::warn!(destination = %self.destination, pid, length = long.length, "skipped a line longer than max_message_bytes");
                    }
                }
            }
            if let Some(line) = framer.unfinished() {
                state.multiplexer.handle_unfinished(line);
            }
            state.note_ready(Some(pid));
            state.pid = pid;
            state.poll_outputs(orders);
            state.replacement.is_some()
        });
        for line in tapped {
            self.show(Some(pid), Direction::FromServer, &line);
        }
        (!is_useless).then_some(lines)
    }

    /// Shows messages to the readers that want them.
    fn show(&self, pid: Option<u32>, direction: Direction, lines: &[u8]) {
        self.metrics
            .tap
            .note_lines(&self.destination, pid, direction, lines);
    }

    /// Returns the process of the server, for readers of its messages.
    fn pid(&self) -> Option<u32> {
        self.lock().health.pid()
    }

    /// Waits until what was read so far has been delivered, if another thread does that. A task
    /// that reads from the server calls it before it reads more: the orders that wait have no limit
    /// of their own.
    pub(crate) async fn delivered(&self) {
        if !self.driver.is_draining() {
            return;
        }
        let (sender, delivered) = oneshot::channel();
        self.act(self.clock.now(), |_, orders| {
            orders.push(InstanceOrder::Delivered(sender));
        });
        // The order is carried out or dropped; either way there is nothing left to wait for.
        let _ = delivered.await;
    }

    // From the tasks of a remote backend, whose messages have exchanges of their own.

    pub(crate) fn era(&self) -> Era {
        self.lock().multiplexer.era()
    }

    pub(crate) fn start_timeout(&self) -> Duration {
        self.lock().multiplexer.limits().start_timeout
    }

    pub(crate) fn set_carrier(&self, carrier: Carrier) {
        self.lock().multiplexer.set_carrier(carrier);
    }

    /// Arguments that the tools of the server name are mirrored in headers.
    pub(crate) fn mirror_arguments(&self) {
        self.lock().multiplexer.mirror_arguments();
    }

    /// Returns the headers that mirror a call's arguments, as far as its tool is known: names and
    /// values.
    pub(crate) fn mirrored_arguments(&self, message: &Message) -> Vec<(String, String)> {
        let state = self.lock();
        let tool = message
            .text(Member::Name)
            .and_then(|name| state.multiplexer.tool(&name));
        match (tool, arguments_of(message)) {
            (Some(tool), Ok(arguments)) => tool.headers.values_of_raw(arguments).unwrap_or_default(),
            (None, _) | (_, Err(_)) => Vec::new(),
        }
    }

    /// Returns whether a tool is annotated as idempotent or read-only.
    pub(crate) fn is_repeatable(&self, message: &Message) -> bool {
        let state = self.lock();
        let tool = message
            .text(Member::Name)
            .and_then(|name| state.multiplexer.tool(&name));
        tool.is_some_and(|tool| tool.repeatable)
    }

    /// Takes one message of the server, and the request in whose exchange it came.
    pub(crate) fn receive(&self, message: Bytes, origin: Option<WireId>) {
        let now = self.clock.now();
        if self.metrics.tap.is_read() {
            self.show(None, Direction::FromServer, &message);
        }
        self.act(now, |state, _| {
            state.multiplexer.handle_message(now, message, origin);
            state.note_ready(None);
        });
    }

    /// Takes the messages of a request's exchange, up to its answer. Returns whether the answer has
    /// come.
    pub(crate) fn receive_answer(&self, id: WireId, messages: impl IntoIterator<Item = Bytes>) -> bool {
        let now = self.clock.now();
        let is_tapped = self.metrics.tap.is_read();
        let mut tapped = Vec::new();
        let has_answered = self.act(now, |state, _| {
            let mut messages = messages.into_iter();
            let mut answered = false;
            while !answered && let Some(message) = messages.next() {
                if is_tapped {
                    tapped.push(message.clone());
                }
                state.multiplexer.handle_message(now, message, Some(id));
                answered = !state.multiplexer.is_unanswered(id);
            }
            state.note_ready(None);
            answered
        });
        for message in tapped {
            self.show(None, Direction::FromServer, &message);
        }
        has_answered
    }

    /// Returns whether this request has no answer yet.
    pub(crate) fn is_unanswered(&self, id: WireId) -> bool {
        self.lock().multiplexer.is_unanswered(id)
    }

    /// The server has begun to answer this request with a stream that can be resumed.
    pub(crate) fn begun(&self, id: WireId) {
        self.with(|multiplexer, _| multiplexer.handle_begun(id));
    }

    pub(crate) fn undelivered(&self, id: WireId, failure: Failure) {
        self.with(|multiplexer, now| multiplexer.handle_undelivered(now, id, failure));
    }

    pub(crate) fn returned(&self, id: WireId) {
        self.with(|multiplexer, now| multiplexer.handle_returned(now, id));
    }

    pub(crate) fn forgotten(&self, id: WireId) {
        self.with(|multiplexer, now| multiplexer.handle_forgotten(now, id));
    }

    pub(crate) fn session_lost(&self) {
        self.with(|multiplexer, now| multiplexer.handle_session_lost(now));
    }

    pub(crate) fn outage(&self, backend_error: Option<Arc<BackendError>>) {
        self.with(|multiplexer, _| multiplexer.handle_outage(backend_error));
    }

    /// Exchanges an empty outbox for everything that waits to be written.
    pub(crate) fn take_outbox(&self, empty: Outbox) -> Outbox {
        let mut state = self.lock();
        if state.is_sending {
            return empty;
        }
        state.multiplexer.handle_written();
        let outbox = state.multiplexer.take_outbox(empty);
        let shown = std::mem::take(&mut state.shown_rest);
        drop(state);
        if self.metrics.tap.is_read() {
            let lines = outbox.copied();
            let lines = lines.get(shown..).unwrap_or_default();
            self.show(self.pid(), Direction::ToServer, lines);
        }
        outbox
    }

    /// The same for a server that is reached by POSTs: everything that waits, line by line.
    pub(crate) fn take_posts(&self) -> PostBatch {
        let mut state = self.lock();
        if state.is_sending {
            return PostBatch::default();
        }
        state.multiplexer.handle_written();
        let posts = state.multiplexer.take_posts();
        drop(state);
        self.show_posts(&posts);
        posts
    }

    fn show_posts(&self, posts: &PostBatch) {
        if self.metrics.tap.is_read() {
            for post in posts.clone() {
                self.show(None, Direction::ToServer, &post.line);
            }
        }
    }

    /// The same for the supervisor. If nothing is queued, clients' calls go to this inlet directly
    /// from now on, until a message is queued that the supervisor must order.
    pub(crate) fn take_posts_or_lend(&self, inlet: &Arc<impl MessageInlet + 'static>) -> Option<PostBatch> {
        let mut state = self.lock();
        if state.is_sending {
            return None;
        }
        // The caller has sent what it took before, even if nothing has come since.
        state.multiplexer.handle_written();
        if state.multiplexer.has_outgoing() {
            state.inlet = None;
            let posts = state.multiplexer.take_posts();
            drop(state);
            self.show_posts(&posts);
            return Some(posts);
        }
        if state.inlet.is_none() {
            state.inlet = Some(Inlet::Messages(Arc::clone(inlet) as Arc<dyn MessageInlet>));
        }
        None
    }

    fn with<T>(&self, act: impl FnOnce(&mut Multiplexer, Moment) -> T) -> T {
        let now = self.clock.now();
        self.act(now, |state, _| act(&mut state.multiplexer, now))
    }

    fn carry_out(&self, order: InstanceOrder) {
        match order {
            InstanceOrder::Tell { user, now, tell } => user.deliver(now, tell),
            InstanceOrder::LoseInstance { user, now, failure } => user.lose_instance(now, &failure),
            InstanceOrder::Write {
                inlet,
                mut line,
                link,
            } => {
                if self.metrics.tap.is_read() {
                    self.show(self.pid(), Direction::ToServer, &line);
                }
                let written = inlet.write(&line);
                let sent = &self.metrics.server_bytes_sent;
                sent.fetch_add(written as u64, Ordering::Relaxed);
                line.advance(written);
                self.note_sent(|state| state.note_written(link, line));
            }
            InstanceOrder::Send { inlet, post } => {
                if self.metrics.tap.is_read() {
                    self.show(None, Direction::ToServer, &post.line);
                }
                inlet.send(post);
                self.note_sent(|_| {});
            }
            InstanceOrder::LearnEras { now, shown } => {
                self.eras.learn(now, shown);
                if let Some(era) = self.agreed_era() {
                    tracing::info!(destination = %self.destination, era = era.as_str(), "version negotiation succeeded");
                }
            }
            // The task that waits for it may have been aborted.
            InstanceOrder::Delivered(delivered) => drop(delivered.send(())),
            InstanceOrder::WakeWriter => self.outgoing_ready.notify_one(),
            InstanceOrder::WakeSupervisor => self.supervisor_wake.notify_one(),
        }
    }

    /// A message was passed to the inlet: the backend's tasks may send the next ones.
    fn note_sent(&self, note: impl FnOnce(&mut InstanceState)) {
        let has_outgoing = {
            let mut state = self.lock();
            state.is_sending = false;
            note(&mut state);
            state.multiplexer.has_outgoing()
        };
        if has_outgoing {
            self.outgoing_ready.notify_one();
        }
    }
}

/// Returns the beginning of a line, safe to print.
fn one_line(line: &[u8]) -> String {
    const LONGEST: usize = 200;
    let text = String::from_utf8_lossy(line.get(..LONGEST).unwrap_or(line));
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = OneLine::new(&mut out, LONGEST).write_str(&text);
    out
}

impl InstanceState {
    /// Returns the user that has left.
    fn forget_user(&mut self, session: SessionKey) -> Option<Arc<dyn InstanceUser>> {
        let gone = self.users.remove(&session);
        if self.users.is_empty() {
            self.idle_since = Some(self.now);
        }
        gone
    }

    /// Passes a message that is alone to the inlet directly.
    fn send_through(&mut self, orders: &mut Outputs<InstanceOrder>) {
        if self.is_sending {
            return;
        }
        let link = self.link;
        let order = match &self.inlet {
            None => None,
            Some(Inlet::Bytes(inlet)) => self.multiplexer.take_lone_line().map(|line| {
                let inlet = Arc::clone(inlet);
                InstanceOrder::Write { inlet, line, link }
            }),
            Some(Inlet::Messages(inlet)) => self.multiplexer.take_lone_post().map(|post| {
                let inlet = Arc::clone(inlet);
                InstanceOrder::Send { inlet, post }
            }),
        };
        self.is_sending = order.is_some();
        orders.extend(order);
    }

    /// A line was written except for this rest, which the writer task writes.
    fn note_written(&mut self, link: u64, rest: Bytes) {
        if link != self.link {
            return;
        }
        match rest.is_empty() {
            true => self.multiplexer.handle_written(),
            false => {
                self.shown_rest = rest.len();
                self.multiplexer.handle_unwritten(rest);
            }
        }
    }

    fn refuse_if_over(&mut self) {
        if let Some(over) = &self.over {
            self.multiplexer.handle_unavailable(over, STOPPED_FOR);
        }
    }

    fn close_inlet(&mut self) {
        self.inlet = None;
        self.link += 1;
    }

    /// The server may have answered the handshake.
    fn note_ready(&mut self, pid: Option<u32>) {
        if matches!(self.health, Health::Running { .. }) && self.multiplexer.is_answered() {
            self.health = Health::Ready { pid };
            self.was_ready = true;
            self.ready_at = Some(self.now);
            self.stray_output = StrayOutput::default();
        }
    }

    /// Notes which tasks are to be woken after a call of the machine.
    fn note_changes(&mut self) {
        self.wake_writer |= self.multiplexer.has_outgoing();
        // The supervisor sleeps until the deadline it last saw: it must learn of an earlier one.
        if let Some(next) = self.multiplexer.next_deadline()
            && self.deadline.is_none_or(|known| next < known)
        {
            self.deadline = Some(next);
            self.wake_supervisor = true;
        }
    }

    fn note_noise(&mut self, line: &Bytes, error: ScanError) {
        if !self.was_ready {
            self.stray_output.lines += 1;
            self.stray_output.first.get_or_insert_with(|| one_line(line));
        }
        // A server that floods its stdout must not flood the log.
        let count = self.multiplexer.counters().noise;
        if count <= NOISE_LOGGED || count.is_multiple_of(NOISE_SAMPLED) {
            let (destination, pid) = (&*self.destination, self.pid);
            let line = String::from_utf8_lossy(line.get(..200).unwrap_or(line));
            tracing::warn!(destination, pid, count, %error, %line, "skipped a line that is no message");
        }
    }
}

impl Machine for InstanceState {
    type Output = InstanceOrder;

    fn poll_output(&mut self) -> Option<InstanceOrder> {
        let now = self.now;
        while let Some(output) = self.multiplexer.poll_output() {
            match output {
                Output::Tell(tell) => {
                    if let Some(user) = self.users.get(&tell.session()) {
                        let user = Arc::clone(user);
                        return Some(InstanceOrder::Tell { user, now, tell });
                    }
                }
                Output::Shown(shown) => return Some(InstanceOrder::LearnEras { now, shown }),
                Output::WantLink => {
                    self.link_wanted = true;
                    self.wake_supervisor = true;
                }
                Output::Replace { why } => {
                    self.replacement = Some(why);
                    self.wake_supervisor = true;
                }
                Output::Noise { line, error } => self.note_noise(&line, error),
            }
        }
        if let Some((user, failure)) = self.lost.pop_front() {
            return Some(InstanceOrder::LoseInstance { user, now, failure });
        }
        if std::mem::take(&mut self.wake_writer) {
            return Some(InstanceOrder::WakeWriter);
        }
        std::mem::take(&mut self.wake_supervisor).then_some(InstanceOrder::WakeSupervisor)
    }

    /// A panic may leave the ledger half-written, so the instance is treated as one whose link has
    /// ended: every open call fails, and the server is replaced.
    fn handle_panic(&mut self) {
        tracing::error!(destination = %self.destination, "an instance panicked; its calls have failed and its server is replaced");
        let backend_error = Arc::new(BackendError {
            what: "internal error of the gateway; its log has the details".into(),
            ..BackendError::default()
        });
        self.multiplexer.handle_panic(&backend_error);
        self.replacement = Some("a panic of the gateway");
        // A call that was being handled is not in the ledger any more, but its client still waits.
        let failure = Failure::Exited(backend_error);
        let users = self.users.values();
        self.lost
            .extend(users.map(|user| (Arc::clone(user), failure.clone())));
        self.link += 1;
        self.wake_supervisor = true;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, OnceLock, Weak};
    use std::task::{Context, Wake, Waker};

    use futures_util::FutureExt as _;
    use parking_lot::Mutex;
    use protocol::backend_face::legacy::ClientHello;
    use protocol::exchange::{Call, CallKey, Client, Request};
    use protocol::multiplexer;
    use protocol::session::{self, Session};
    use protocol::version::Version;

    use super::*;

    const WELCOME: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}"#;

    struct Silent;

    impl InstanceUser for Silent {
        fn deliver(&self, _: Moment, _: Tell) {}

        fn lose_instance(&self, _: Moment, _: &Failure) {}
    }

    /// A pipe that takes only the first ten bytes of a line, and does something meanwhile.
    struct NarrowPipe {
        instance: OnceLock<Weak<Instance>>,
        written: Mutex<Vec<u8>>,
        meanwhile: fn(&Instance),
    }

    impl ByteInlet for NarrowPipe {
        fn write(&self, bytes: &[u8]) -> usize {
            let instance = self
                .instance
                .get()
                .and_then(Weak::upgrade)
                .expect("the instance is there");
            (self.meanwhile)(&instance);
            self.written.lock().extend(&bytes[..10]);
            10
        }
    }

    fn call(number: u64) -> Ask {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{{"name":"t{number}"}}}}"#
        );
        Ask::Call(Call {
            session: SessionKey(1),
            call: CallKey(number),
            request: Request::Plain,
            message: Message::scan(Bytes::from(text)).expect("a message"),
            era: Era::Legacy,
            mirrored: None,
            reads_events: true,
        })
    }

    fn outgoing(instance: &Instance) -> String {
        let taken = instance.take_outbox(Outbox::default()).into_whole();
        String::from_utf8(taken.to_vec()).expect("text")
    }

    /// Returns an instance whose server has welcomed a session, with nothing to write.
    fn welcomed(meanwhile: fn(&Instance)) -> (Arc<Instance>, Arc<NarrowPipe>) {
        let clock = Clock::new();
        let mut multiplexer = Multiplexer::new(multiplexer::Limits::default(), ClientHello::Newest);
        multiplexer.plan_eras(EraPlan::Only(Era::Legacy));
        let instance = Arc::new(Instance::new(
            "demo".into(),
            clock,
            Arc::default(),
            Arc::default(),
            multiplexer,
        ));
        instance.link_up(None);
        let client = Arc::new(Client::declaring(Principal::anonymous(), None, None));
        let limits = session::Limits::default();
        let version = Version::NEWEST_LEGACY;
        let (_, open) = Session::open_implicit(SessionKey(1), client, limits, clock.now(), version);
        instance.attach(SessionKey(1), Arc::new(Silent));
        instance.ask(clock.now(), open);
        assert!(outgoing(&instance).contains("initialize"));
        instance.receive(Bytes::from_static(WELCOME.as_bytes()), None);
        outgoing(&instance);
        assert_eq!(outgoing(&instance), "");
        let pipe = Arc::new(NarrowPipe {
            instance: OnceLock::from(Arc::downgrade(&instance)),
            written: Mutex::default(),
            meanwhile,
        });
        instance.lend_pipe(Arc::<NarrowPipe>::clone(&pipe));
        let _ = instance.outgoing_ready.notified().now_or_never();
        (instance, pipe)
    }

    #[test]
    fn writer_does_not_overtake_a_line_that_is_being_written() {
        let (instance, pipe) = welcomed(|instance| {
            instance.ask(instance.clock().now(), call(2));
            assert_eq!(outgoing(instance), "", "the first call is being written");
        });
        instance.ask(instance.clock().now(), call(1));
        assert!(
            instance.outgoing_ready.notified().now_or_never().is_some(),
            "the writer is woken"
        );
        let mut written = pipe.written.lock().clone();
        written.extend(outgoing(&instance).into_bytes());
        let text = String::from_utf8(written).expect("text");
        assert!(text.ends_with('\n'), "{text}");
        let messages = text
            .lines()
            .map(|line| Message::scan(Bytes::from(line.to_owned())));
        let messages: Vec<Message> = messages.collect::<Result<_, _>>().expect("whole messages");
        let tools: Vec<_> = messages
            .iter()
            .filter_map(|message| message.text(Member::Name))
            .collect();
        assert_eq!(tools, ["t1", "t2"]);
    }

    #[test]
    fn link_that_is_up_is_no_longer_wanted() {
        let clock = Clock::new();
        let instance = Arc::new(Instance::new(
            "demo".into(),
            clock,
            Arc::default(),
            Arc::default(),
            Multiplexer::new(multiplexer::Limits::default(), ClientHello::Newest),
        ));
        let client = Arc::new(Client::declaring(Principal::anonymous(), None, None));
        let limits = session::Limits::default();
        let version = Version::NEWEST_LEGACY;
        let (_, open) = Session::open_implicit(SessionKey(1), client, limits, clock.now(), version);
        instance.attach(SessionKey(1), Arc::new(Silent));
        // Its child is being started already, as a child that starts with the gateway is.
        instance.ask(clock.now(), open);
        assert!(instance.lock().link_wanted);
        instance.link_up(Some(7));
        assert!(
            !instance.take_link_wanted(),
            "the child that is ended next is not started again"
        );
    }

    /// A server that answers the handshake while the task that started it is still busy.
    struct QuickServer(Weak<Instance>);

    impl Wake for QuickServer {
        fn wake(self: Arc<Self>) {
            let instance = self.0.upgrade().expect("the instance is there");
            let text = outgoing(&instance);
            assert!(text.contains("initialize"), "{text}");
            instance.receive(Bytes::from_static(WELCOME.as_bytes()), None);
        }
    }

    #[test]
    fn server_that_answers_before_its_start_was_noted_is_ready() {
        let mut multiplexer = Multiplexer::new(multiplexer::Limits::default(), ClientHello::Union);
        multiplexer.plan_eras(EraPlan::Only(Era::Legacy));
        multiplexer.initialize_at_start();
        let instance = Arc::new(Instance::new(
            "demo".into(),
            Clock::new(),
            Arc::default(),
            Arc::default(),
            multiplexer,
        ));
        let writer = Waker::from(Arc::new(QuickServer(Arc::downgrade(&instance))));
        let mut ready = std::pin::pin!(instance.outgoing_ready.notified());
        let waiting = ready.as_mut().poll(&mut Context::from_waker(&writer));
        assert!(waiting.is_pending());
        instance.link_up(None);
        assert!(
            matches!(instance.health(), Health::Ready { .. }),
            "{:?}",
            instance.health()
        );
    }

    /// A user whose first tell takes until the test goes on.
    struct Slow {
        is_used: AtomicBool,
        begun: Barrier,
        ended: Barrier,
    }

    impl InstanceUser for Slow {
        fn deliver(&self, _: Moment, _: Tell) {
            if !self.is_used.swap(true, Ordering::Relaxed) {
                self.begun.wait();
                self.ended.wait();
            }
        }

        fn lose_instance(&self, _: Moment, _: &Failure) {}
    }

    #[tokio::test]
    async fn reader_waits_until_another_thread_has_delivered() {
        let (instance, _) = welcomed(|_| {});
        assert!(
            instance.delivered().now_or_never().is_some(),
            "no thread delivers"
        );
        let slow = Arc::new(Slow {
            is_used: AtomicBool::new(false),
            begun: Barrier::new(2),
            ended: Barrier::new(2),
        });
        instance.attach(SessionKey(1), Arc::<Slow>::clone(&slow));
        instance.ask(instance.clock().now(), call(1));
        let delivering = std::thread::spawn({
            let instance = Arc::clone(&instance);
            move || instance.link_down(&Arc::default())
        });
        slow.begun.wait();
        let mut delivered = std::pin::pin!(instance.delivered());
        assert!(delivered.as_mut().now_or_never().is_none());
        slow.ended.wait();
        delivered.await;
        delivering.join().expect("the thread does not panic");
    }

    /// Notes the calls that failed.
    #[derive(Default)]
    struct Failures(Mutex<Vec<CallKey>>);

    impl InstanceUser for Failures {
        fn deliver(&self, _: Moment, tell: Tell) {
            if let Tell::Failed { call, .. } = tell {
                self.0.lock().push(call);
            }
        }

        fn lose_instance(&self, _: Moment, _: &Failure) {}
    }

    #[test]
    fn client_that_comes_when_the_supervisor_has_ended_is_refused() {
        let (instance, _) = welcomed(|_| {});
        instance.link_down(&Arc::default());
        instance.end_supervision();
        let now = instance.clock().now();
        let client = Arc::new(Client::declaring(Principal::anonymous(), None, None));
        let limits = session::Limits::default();
        let version = Version::NEWEST_LEGACY;
        let (_, open) = Session::open_implicit(SessionKey(1), client, limits, now, version);
        let failures = Arc::new(Failures::default());
        instance.attach(SessionKey(1), Arc::<Failures>::clone(&failures));
        instance.ask(now, open);
        instance.ask(now, call(7));
        assert_eq!(failures.0.lock().last(), Some(&CallKey(7)));
        assert_eq!(instance.open_calls(), 0);
    }

    #[test]
    fn rest_of_a_line_is_of_no_use_to_the_next_link() {
        let (instance, _) = welcomed(|instance| {
            instance.link_down(&Arc::default());
        });
        instance.ask(instance.clock().now(), call(1));
        assert_eq!(outgoing(&instance), "");
    }
}
