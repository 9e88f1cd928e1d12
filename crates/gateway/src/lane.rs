//! A lane: one backend and the sessions that use it.
//!
//! The multiplexer decides; this file calls it where the data is. A client's connection calls [`Lane::ask`]
//! directly, a child's reader calls [`Lane::arrive`], and what the machine wants told goes straight to the
//! sessions. Only writing, reading and supervising the child are tasks ([`crate::backend_task`]).

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use protocol::backend_face::WireId;
use protocol::delivery::Bundle;
use protocol::exchange::{Ask, Failure, Principal, SessionKey, StrayOutput, Tell, Trouble};
use protocol::message::{Member, Message, ScanError};
use protocol::multiplexer::{Carrier, Counters, Multiplexer, Output};
use protocol::negotiation::{EraPlan, ShownEras};
use protocol::time::Moment;
use protocol::tool_schema::arguments_of;
use protocol::version::Era;
use protocol::wire::header::MirroredParams;
use protocol::wire::line::{Frame, LineFramer};
use protocol::wire::outbox::Outbox;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::backend_face::remote::Couriers;
use crate::clock::Clock;
use crate::driver::{Driver, Locked, Machine, Outputs};
use crate::errand_port::ErrandPort;
use crate::escape::OneLine;
use crate::metrics::Traffic;
#[cfg(debug_assertions)]
use crate::mishap;
use crate::server_eras::ServerEras;
use crate::session_port::SessionPort;

/// Lines of noise that are logged one by one, and which of the later ones.
const NOISE_LOGGED: u64 = 20;
const NOISE_SAMPLED: u64 = 1000;

/// How the backend of a lane is doing, for people and for `/ready`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Health {
    /// Nobody has needed it yet.
    Idle,
    Starting,
    /// The process runs, if it is one, and has not answered anything yet.
    Running {
        pid: Option<u32>,
    },
    /// It has answered its introduction.
    Ready {
        pid: Option<u32>,
    },
    BackingOff(Arc<Trouble>),
    Failed(Arc<Trouble>),
    Stopped,
}

/// How much waits in a lane, for metrics.
#[derive(Debug, Clone)]
pub(crate) struct Depths {
    pub(crate) era: Era,
    pub(crate) health: Health,
    pub(crate) open_calls: usize,
    pub(crate) waiting_calls: usize,
    pub(crate) open_questions: usize,
    pub(crate) outgoing_bytes: usize,
    pub(crate) counters: Counters,
}

/// One backend and its sessions.
pub(crate) struct Lane {
    destination: Arc<str>,
    clock: Clock,
    traffic: Arc<Traffic>,
    /// What its server shows of its eras is noted here.
    eras: Arc<ServerEras>,
    driver: Driver<Inner>,
    /// There is something to write.
    pub(crate) write: Notify,
    /// The supervisor has something to look at: a link is wanted, a deadline moved, the lane is to stop.
    pub(crate) look: Notify,
    stopping: AtomicBool,
}

struct Inner {
    destination: Arc<str>,
    multiplexer: Multiplexer,
    /// Rialto counts the keys up itself, so no peer can choose keys that collide.
    ports: FxHashMap<SessionKey, Port>,
    link_wanted: bool,
    inlet: Option<Inlet>,
    /// Why the child is to be replaced.
    replacement: Option<&'static str>,
    health: Health,
    deadline: Option<Moment>,
    /// Since when no session has used this lane.
    idle_since: Option<Moment>,
    /// The server has answered the handshake on this link.
    was_ready: bool,
    /// What the server wrote on stdout before it was ready that was no message.
    stray_output: StrayOutput,
    /// When the machine was last called. The time is told once for all that comes of one call.
    now: Moment,
    /// The process that the output being read is from; 0 if it is none.
    pid: u32,
    /// The ports that a panic may have taken calls from, with how these calls fail.
    lost: VecDeque<(Port, Failure)>,
    wake_writer: bool,
    wake_supervisor: bool,
}

/// The way to the server for what need not wait for the lane's own tasks.
enum Inlet {
    /// The child's stdin.
    Pipe(OwnedFd),
    /// Those who carry messages to a remote server.
    Couriers(Arc<Couriers>),
}

/// Whom a tell is for.
#[derive(Clone)]
enum Port {
    Session(Arc<SessionPort>),
    Errand(Arc<ErrandPort>),
}

impl Port {
    fn deliver(&self, now: Moment, tell: Tell) {
        match self {
            Self::Session(port) => port.deliver(now, tell),
            Self::Errand(port) => port.deliver(now, tell),
        }
    }

    /// Ends the calls that the instance may have forgotten.
    fn lose_instance(&self, now: Moment, failure: &Failure) {
        match self {
            Self::Session(port) => port.lose_instance(now, failure),
            Self::Errand(port) => port.lose_instance(failure),
        }
    }
}

/// What is to be done after the lock.
enum Order {
    Tell {
        port: Port,
        now: Moment,
        tell: Tell,
    },
    /// A panic may have lost calls that the port still waits for.
    LoseInstance {
        port: Port,
        now: Moment,
        failure: Failure,
    },
    LearnEras {
        now: Moment,
        shown: ShownEras,
    },
    WakeWriter,
    WakeSupervisor,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane")
            .field("destination", &self.destination)
            .finish_non_exhaustive()
    }
}

impl Lane {
    pub(crate) fn new(
        destination: Arc<str>,
        clock: Clock,
        traffic: Arc<Traffic>,
        eras: Arc<ServerEras>,
        multiplexer: Multiplexer,
    ) -> Self {
        Self {
            clock,
            traffic,
            eras,
            driver: Driver::new(Inner {
                destination: Arc::clone(&destination),
                multiplexer,
                ports: FxHashMap::default(),
                link_wanted: false,
                inlet: None,
                replacement: None,
                health: Health::Idle,
                deadline: None,
                idle_since: Some(clock.now()),
                was_ready: false,
                stray_output: StrayOutput::default(),
                now: clock.now(),
                pid: 0,
                lost: VecDeque::new(),
                wake_writer: false,
                wake_supervisor: false,
            }),
            destination,
            write: Notify::new(),
            look: Notify::new(),
            stopping: AtomicBool::new(false),
        }
    }

    pub(crate) fn destination(&self) -> &Arc<str> {
        &self.destination
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    fn lock(&self) -> Locked<'_, Inner> {
        self.driver.lock()
    }

    // From above.

    /// Makes a session known, so that tells can reach it.
    pub(crate) fn attach(&self, port: &Arc<SessionPort>) {
        self.admit(port.key(), Port::Session(Arc::clone(port)));
    }

    /// The same for an errand.
    pub(crate) fn attach_errand(&self, port: &Arc<ErrandPort>) {
        self.admit(port.key(), Port::Errand(Arc::clone(port)));
    }

    fn admit(&self, key: SessionKey, port: Port) {
        let mut inner = self.lock();
        inner.ports.insert(key, port);
        inner.idle_since = None;
    }

    /// Sets the eras that the server is introduced to in, as long as it was not introduced to.
    pub(crate) fn plan_eras(&self, plan: EraPlan) {
        self.lock().multiplexer.plan_eras(plan);
    }

    /// The old transport is older than the modern era: nothing else is tried there, unless it is configured.
    pub(crate) fn plan_for_old_transport(&self) {
        let mut inner = self.lock();
        if let EraPlan::First(_) = inner.multiplexer.eras_planned() {
            inner.multiplexer.plan_eras(EraPlan::Only(Era::Legacy));
        }
    }

    /// Returns whether a server that refuses `server/discover` is asked `initialize`.
    pub(crate) fn may_try_legacy(&self) -> bool {
        self.lock().multiplexer.eras_planned() != EraPlan::Only(Era::Modern)
    }

    /// Returns the era that was agreed on with the server, if one was on this link.
    pub(crate) fn agreed_era(&self) -> Option<Era> {
        let inner = self.lock();
        inner.multiplexer.is_ready().then(|| inner.multiplexer.era())
    }

    pub(crate) fn ask(&self, now: Moment, ask: Ask) {
        let closing = match &ask {
            Ask::Close { session } => Some(*session),
            _ => None,
        };
        self.act(now, |inner, orders| {
            #[cfg(debug_assertions)]
            let panics = match &ask {
                Ask::Call(call) => call.message.bytes().clone(),
                _ => Bytes::new(),
            };
            inner.multiplexer.handle_ask(now, ask);
            #[cfg(debug_assertions)]
            mishap::perhaps(mishap::Place::Instance, &panics);
            inner.send_through(&self.traffic);
            if let Some(session) = closing {
                // Its last tells still reach it.
                inner.poll_outputs(orders);
                inner.ports.remove(&session);
                if inner.ports.is_empty() {
                    inner.idle_since = Some(now);
                }
            }
        });
    }

    /// Calls the machine, and carries out what comes of it.
    fn act<T>(&self, now: Moment, act: impl FnOnce(&mut Inner, &mut Outputs<Order>) -> T) -> T {
        self.driver.act(
            |inner, orders| {
                inner.now = now;
                let acted = act(inner, orders);
                inner.note_changes();
                acted
            },
            |order| self.carry_out(order),
        )
    }

    /// Ends the backend. Sessions should have been ended before.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.look.notify_one();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    // What others want to know.

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

    /// Since when nobody has used this lane; `None` also while a task goes on that was begun here.
    pub(crate) fn idle_since(&self) -> Option<Moment> {
        let inner = self.lock();
        let pinned = inner.multiplexer.has_live_tasks(self.clock.now());
        inner.idle_since.filter(|_| !pinned)
    }

    /// Returns the sessions that use this instance; `None` while a request without a session, or a task, needs it.
    pub(crate) fn sessions(&self) -> Option<Vec<Arc<SessionPort>>> {
        let inner = self.lock();
        if inner.multiplexer.has_live_tasks(self.clock.now()) {
            return None;
        }
        let session = |port: &Port| match port {
            Port::Session(port) => Some(Arc::clone(port)),
            Port::Errand(_) => None,
        };
        inner.ports.values().map(session).collect()
    }

    /// Whether the headers of a call say what its arguments say, as far as its tool is known.
    pub(crate) fn judge_mirrored(&self, message: &Message, params: &MirroredParams) -> Result<(), String> {
        self.lock().multiplexer.judge_mirrored(message, params)
    }

    pub(crate) fn depths(&self) -> Depths {
        let inner = self.lock();
        Depths {
            era: inner.multiplexer.era(),
            health: inner.health.clone(),
            open_calls: inner.multiplexer.open_calls(),
            waiting_calls: inner.multiplexer.waiting_calls(),
            open_questions: inner.multiplexer.open_questions(),
            outgoing_bytes: inner.multiplexer.outgoing_bytes(),
            counters: inner.multiplexer.counters(),
        }
    }

    // From the tasks of the backend.

    pub(crate) fn set_health(&self, health: Health) {
        self.lock().health = health;
    }

    /// Whether somebody waits for a link; asking takes the wish away.
    pub(crate) fn take_link_wanted(&self) -> bool {
        std::mem::take(&mut self.lock().link_wanted)
    }

    /// Why the child is to be replaced, if it is; asking takes the wish away.
    pub(crate) fn take_replacement(&self) -> Option<&'static str> {
        self.lock().replacement.take()
    }

    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        let mut inner = self.lock();
        inner.deadline = inner.multiplexer.next_deadline();
        inner.deadline
    }

    pub(crate) fn link_up(&self, pid: Option<u32>) {
        // What was wished for the predecessor does not concern this child.
        self.take_replacement();
        {
            let mut inner = self.lock();
            inner.was_ready = false;
            inner.stray_output = StrayOutput::default();
        }
        self.with(|multiplexer, now| multiplexer.handle_link_up(now));
        self.set_health(Health::Running { pid });
    }

    /// Gives the child's stdin. As long as it is here the child does not see its end.
    pub(crate) fn lend_pipe(&self, pipe: OwnedFd) {
        self.lock().inlet = Some(Inlet::Pipe(pipe));
    }

    pub(crate) fn close_inlet(&self) {
        self.lock().inlet = None;
    }

    /// Returns whether the server may have ended because of `server/discover`.
    pub(crate) fn link_down(&self, trouble: &Arc<Trouble>) -> bool {
        self.with(|multiplexer, _| multiplexer.handle_link_down(trouble))
    }

    pub(crate) fn unavailable(&self, trouble: &Arc<Trouble>, retry_after: Duration) {
        self.with(|multiplexer, _| multiplexer.handle_unavailable(trouble, retry_after));
    }

    /// The server was reached and definitely refuses.
    pub(crate) fn refused(&self, failure: &Failure) {
        self.with(|multiplexer, _| multiplexer.handle_no_server(failure));
    }

    /// Nobody new waits for the server, and nobody any longer.
    pub(crate) fn retire(&self) {
        self.with(|multiplexer, _| multiplexer.handle_retired());
    }

    /// The child has written to stderr.
    pub(crate) fn note_stderr(&self) {
        self.with(|multiplexer, now| multiplexer.handle_stderr(now));
    }

    /// Returns what the server has written on stdout that was no message, unless it got ready all the same.
    pub(crate) fn stray_output(&self) -> Option<StrayOutput> {
        let stray = self.lock().stray_output.clone();
        (stray.lines > 0).then_some(stray)
    }

    /// Returns whether the server has not answered the handshake on this link, or has not before the link ended.
    pub(crate) fn is_starting(&self) -> bool {
        !self.lock().was_ready
    }

    /// Says what a server that is not ready yet does, for those who wait for it in vain.
    pub(crate) fn describe_start(&self, report: Arc<Trouble>) {
        self.lock().multiplexer.describe_start(report);
    }

    pub(crate) fn reach_deadline(&self, now: Moment) {
        self.with(|multiplexer, _| multiplexer.handle_deadline(now));
    }

    /// Takes every whole line that has been read. Returns how many there were; `None` when the server is to be
    /// replaced, so that nothing more of its output is of use.
    pub(crate) fn arrive(&self, framer: &mut LineFramer, pid: u32) -> Option<usize> {
        let mut lines = 0;
        let now = self.clock.now();
        let is_useless = self.act(now, |inner, orders| {
            if framer.unfinished().is_none() {
                inner.multiplexer.handle_sign_of_life();
            }
            while let Some(frame) = framer.next() {
                lines += 1;
                match frame {
                    Frame::Line(line) => inner.multiplexer.handle_line(now, line),
                    Frame::TooLong(long) => {
                        inner
                            .multiplexer
                            .handle_too_long(now, long.id.as_deref(), long.method, long.length);
                        tracing::warn!(destination = %self.destination, pid, length = long.length, "skipped a line longer than max_message_bytes");
                    }
                }
            }
            if let Some(line) = framer.unfinished() {
                inner.multiplexer.handle_unfinished(line);
            }
            inner.note_ready(Some(pid));
            inner.pid = pid;
            inner.poll_outputs(orders);
            inner.replacement.is_some()
        });
        (!is_useless).then_some(lines)
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

    /// The server wants to be told in headers what some arguments are.
    pub(crate) fn mirror_arguments(&self) {
        self.lock().multiplexer.mirror_arguments();
    }

    /// The headers that mirror a call's arguments, as far as its tool is known: names and values.
    pub(crate) fn mirrored_arguments(&self, message: &Message) -> Vec<(String, String)> {
        let inner = self.lock();
        let tool = message
            .text(Member::Name)
            .and_then(|name| inner.multiplexer.tool(&name));
        match (tool, arguments_of(message)) {
            (Some(tool), Ok(arguments)) => tool.headers.values_of_raw(arguments).unwrap_or_default(),
            (None, _) | (_, Err(_)) => Vec::new(),
        }
    }

    /// Whether a tool says of itself that calling it twice does no harm.
    pub(crate) fn is_repeatable(&self, message: &Message) -> bool {
        let inner = self.lock();
        let tool = message
            .text(Member::Name)
            .and_then(|name| inner.multiplexer.tool(&name));
        tool.is_some_and(|tool| tool.repeatable)
    }

    /// Takes one message of the server, and the request in whose exchange it came.
    pub(crate) fn hear(&self, message: Bytes, origin: Option<WireId>) {
        let now = self.clock.now();
        self.act(now, |inner, _| {
            inner.multiplexer.handle_message(now, message, origin);
            inner.note_ready(None);
        });
    }

    /// Takes what came in the exchange of a request, up to what answers it. Gives whether that has come.
    pub(crate) fn hear_answer(&self, id: WireId, messages: impl IntoIterator<Item = Bytes>) -> bool {
        let now = self.clock.now();
        self.act(now, |inner, _| {
            let mut messages = messages.into_iter();
            let mut answered = false;
            while !answered && let Some(message) = messages.next() {
                inner.multiplexer.handle_message(now, message, Some(id));
                answered = !inner.multiplexer.is_unanswered(id);
            }
            inner.note_ready(None);
            answered
        })
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

    pub(crate) fn outage(&self, trouble: Option<Arc<Trouble>>) {
        self.with(|multiplexer, _| multiplexer.handle_outage(trouble));
    }

    /// Exchanges an empty outbox for everything that waits to be written.
    pub(crate) fn take_outbox(&self, empty: Outbox) -> Outbox {
        let mut inner = self.lock();
        inner.multiplexer.handle_written();
        inner.multiplexer.take_outbox(empty)
    }

    /// The same for a server that is reached by POSTs: everything that waits, line by line.
    pub(crate) fn take_posts(&self) -> Bundle {
        let mut inner = self.lock();
        inner.multiplexer.handle_written();
        inner.multiplexer.take_posts()
    }

    /// The same, for who wants to see what waits. If nothing does, clients' calls are given to these couriers from
    /// now on, until something waits again that is to be seen.
    pub(crate) fn take_posts_or_lend(&self, couriers: &Arc<Couriers>) -> Option<Bundle> {
        let mut inner = self.lock();
        // Whoever asks has sent what it took before, also if nothing has come since.
        inner.multiplexer.handle_written();
        if inner.multiplexer.has_outgoing() {
            inner.inlet = None;
            return Some(inner.multiplexer.take_posts());
        }
        if inner.inlet.is_none() {
            inner.inlet = Some(Inlet::Couriers(Arc::clone(couriers)));
        }
        None
    }

    fn with<T>(&self, act: impl FnOnce(&mut Multiplexer, Moment) -> T) -> T {
        let now = self.clock.now();
        self.act(now, |inner, _| act(&mut inner.multiplexer, now))
    }

    fn carry_out(&self, order: Order) {
        match order {
            Order::Tell { port, now, tell } => port.deliver(now, tell),
            Order::LoseInstance { port, now, failure } => port.lose_instance(now, &failure),
            Order::LearnEras { now, shown } => {
                self.eras.learn(now, shown);
                if let Some(era) = self.agreed_era() {
                    tracing::info!(destination = %self.destination, era = era.as_str(), "the server has answered");
                }
            }
            Order::WakeWriter => self.write.notify_one(),
            Order::WakeSupervisor => self.look.notify_one(),
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

impl Inner {
    /// Spares a message that is alone the way by the lane's own tasks.
    fn send_through(&mut self, traffic: &Traffic) {
        match &self.inlet {
            None => {}
            Some(Inlet::Pipe(pipe)) => self.multiplexer.write_through(|line| {
                // A full or broken pipe is the writer's business.
                let written = rustix::io::write(pipe, line).unwrap_or(0);
                traffic
                    .server_bytes_sent
                    .fetch_add(written as u64, Ordering::Relaxed);
                written
            }),
            Some(Inlet::Couriers(couriers)) => {
                if let Some(post) = self.multiplexer.take_lone_post() {
                    couriers.carry(post);
                }
            }
        }
    }

    /// The server may have answered the handshake.
    fn note_ready(&mut self, pid: Option<u32>) {
        if matches!(self.health, Health::Running { .. }) && self.multiplexer.is_answered() {
            self.health = Health::Ready { pid };
            self.was_ready = true;
            self.stray_output = StrayOutput::default();
        }
    }

    /// Notes who is to be woken after a call of the machine.
    fn note_changes(&mut self) {
        self.wake_writer |= self.multiplexer.has_outgoing();
        // The supervisor sleeps until the deadline it last saw: it must hear of an earlier one.
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
        // A server that floods its stdout must not flood our log.
        let count = self.multiplexer.counters().noise;
        if count <= NOISE_LOGGED || count.is_multiple_of(NOISE_SAMPLED) {
            let (destination, pid) = (&*self.destination, self.pid);
            let line = String::from_utf8_lossy(line.get(..200).unwrap_or(line));
            tracing::warn!(destination, pid, count, %error, %line, "skipped a line that is no message");
        }
    }
}

impl Machine for Inner {
    type Output = Order;

    fn poll_output(&mut self) -> Option<Order> {
        let now = self.now;
        while let Some(output) = self.multiplexer.poll_output() {
            match output {
                Output::Tell(tell) => {
                    if let Some(port) = self.ports.get(&tell.session()) {
                        let port = port.clone();
                        return Some(Order::Tell { port, now, tell });
                    }
                }
                Output::Shown(shown) => return Some(Order::LearnEras { now, shown }),
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
        if let Some((port, failure)) = self.lost.pop_front() {
            return Some(Order::LoseInstance { port, now, failure });
        }
        if std::mem::take(&mut self.wake_writer) {
            return Some(Order::WakeWriter);
        }
        std::mem::take(&mut self.wake_supervisor).then_some(Order::WakeSupervisor)
    }

    /// A panic may leave the books half-written, so the instance is treated as one whose link has ended: every open call
    /// fails, and the server is replaced.
    fn handle_panic(&mut self) {
        tracing::error!(destination = %self.destination, "an instance panicked; its calls have failed and its server is replaced");
        let trouble = Arc::new(Trouble {
            what: "a mistake of the gateway; its log has the details".into(),
            ..Trouble::default()
        });
        self.multiplexer.handle_panic(&trouble);
        self.replacement = Some("a panic of the gateway");
        // A call that was in hand when the machine panicked is in no book any more, but its client knows it.
        let failure = Failure::Exited(trouble);
        let ports = self.ports.values();
        self.lost
            .extend(ports.map(|port| (port.clone(), failure.clone())));
        self.wake_supervisor = true;
    }
}
