//! One run: real machines, scripted servers, random clients, one clock, and an agenda of what comes
//! next.
//!
//! Asks and tells travel with small delays, as they do between the gateway's tasks, but never
//! overtake their own kind. The `mutation` breaks the wiring on purpose, to show that the checker
//! would notice a machine that did so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::backend_face::legacy::ClientHello;
use protocol::exchange::{Ask, BackendError, CallKey, Failure, QuestionKey, SessionKey, SessionState, Tell};
use protocol::message::{Kind, Message};
use protocol::multiplexer::{self, Multiplexer};
use protocol::negotiation;
use protocol::session::replay::Retention;
use protocol::session::{self, Accepts, Hello, Restored, Session};
use protocol::time::{Moment, earliest};
use protocol::version::Era;
use serde_json::Value;

use crate::aggregate::{Aggregate, READERS, Target};
use crate::clients::{Connection, Post, Seat};
use crate::dice::Dice;
use crate::eras::{LastClient, Speaks};
use crate::history::{Fact, History};
use crate::modern_requests::{self, ModernCall};
use crate::server::{Act, Server, Written};
use crate::tasks::{self, ClientTask};

/// A way to break the wiring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    DropAnAnswer,
    SwapTwoAnswers,
    ForgetACancel,
    ReplayACall,
    TellAStranger,
    AskAStranger,
    RepeatAnEvent,
    LoseAnAnswer,
    ShowATask,
    TellAListen,
    /// After a silence it is concluded that a server is of the legacy era.
    JudgeSilence,
    /// The translated answer to a modern client is taken for the server's own.
    JudgeATranslation,
    /// Calls have no time limit, though they ought to.
    NeverTimeOut,
    /// A log line starts the time of every call anew, not only that of its own.
    RestartEveryClock,
    /// After a restart of the gateway the last call of each session is sent again.
    RepeatCallsAfterRestart,
    /// A call goes to another member than the one that owns its name.
    CallAnother,
    /// Every member is asked to cancel a call.
    CancelEverywhere,
    /// The answer to a question goes to another member than the one that asked.
    AnswerAnother,
    /// Names get a number as soon as an aggregate has a second member.
    NumberNames,
}

/// Which time limits the calls of a backend have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallLimits {
    /// The same for every client.
    Usual,
    /// A longer one for clients that read events.
    LongStreams,
    /// None: such a server answers every call at some time.
    Off,
}

impl CallLimits {
    fn thrown(dice: &mut Dice) -> Self {
        match dice.below(10) {
            0..7 => Self::Usual,
            7 | 8 => Self::LongStreams,
            _ => Self::Off,
        }
    }

    fn limits(self) -> multiplexer::Limits {
        let usual = limits();
        match self {
            Self::Usual => usual,
            Self::LongStreams => multiplexer::Limits {
                stream_timeout: LONG_STREAM,
                ..usual
            },
            Self::Off => multiplexer::Limits {
                request_timeout: OFF,
                stream_timeout: OFF,
                ..usual
            },
        }
    }

    /// Returns how long a server may be silent in a call, if that is limited.
    pub(crate) fn of_call(self, accepts: Accepts) -> Option<Duration> {
        let limits = self.limits();
        let limit = match accepts.reads_events() {
            true => limits.stream_timeout,
            false => limits.request_timeout,
        };
        (limit < OFF).then_some(limit)
    }
}

#[derive(Debug)]
pub(crate) enum Event {
    Seat(usize),
    Server(usize, u32, Act),
    Start(usize),
    Ask(usize),
    Tell(usize),
    TellModernRequest(usize),
    /// The questions for the client of a modern request are due.
    Questions(usize),
    Unpause(usize),
    ConversationAsk(SessionKey),
    ConversationTell(SessionKey),
    ReaderTell(usize),
    /// A member gave no instance for a client that needs one.
    LoseMember(SessionKey, usize),
    Reload,
    /// The gateway ends at once, with its servers, and is started again.
    RestartGateway,
    Tick,
}

/// What a run has beside plain destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    Plain,
    /// An aggregate of up to four members.
    Aggregate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackendState {
    Stopped,
    Starting,
    Up,
    Unavailable,
}

#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) machine: Multiplexer,
    client_hello: ClientHello,
    /// Its server is started before clients come.
    is_eager: bool,
    pub(crate) speaks: Speaks,
    pub(crate) call_limits: CallLimits,
    /// The era of its words, as soon as that is known.
    pub(crate) era: Option<Era>,
    /// It reads nothing for longer than any client waits.
    slow: bool,
    /// For the mutations that conclude an era.
    pub(crate) verdict: Option<Era>,
    /// What its tool declares about tasks, if it has such.
    tasks: Option<&'static str>,
    /// It is a member of an aggregate, and offers prompts, and tools that change.
    is_member: bool,
    state: BackendState,
    server: Option<Server>,
    epoch: u32,
    inherited: Vec<u64>,
    failures: usize,
    up_since: Moment,
    retry_at: Moment,
    /// Lines in the pipe of a server that does not read.
    pipe: Vec<String>,
    asks: VecDeque<Ask>,
    asks_at: Moment,
    /// For the mutation that swaps answers.
    held: Option<Tell>,
}

#[derive(Debug)]
pub(crate) struct SimulatedSession {
    pub(crate) machine: Session,
    pub(crate) target: Target,
    pub(crate) closed: bool,
    /// What is written down of it.
    pub(crate) record: SessionRecord,
    /// For the mutation that repeats calls.
    pub(crate) last_call: Option<Ask>,
    /// The call that its handshake is.
    opening: CallKey,
    tells: VecDeque<Tell>,
    tells_at: Moment,
}

#[derive(Debug)]
pub(crate) struct SimulationRun {
    pub(crate) now: Moment,
    pub(crate) dice: Dice,
    pub(crate) history: History,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) backends: Vec<Backend>,
    pub(crate) aggregate: Option<Aggregate>,
    pub(crate) seats: Vec<Seat>,
    pub(crate) sessions: Vec<SimulatedSession>,
    pub(crate) posts: Vec<Post>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) draining: bool,
    pub(crate) next_nonce: u64,
    pub(crate) modern_calls: Vec<ModernCall>,
    /// Tasks that clients were given.
    pub(crate) given: Vec<ClientTask>,
    pub(crate) next_connection: usize,
    /// Clients that come when all is calm.
    pub(crate) last_clients: BTreeMap<SessionKey, LastClient>,
    /// Questions of backends that clients were asked and have not answered.
    asked: BTreeSet<(usize, SessionKey, QuestionKey)>,
    agenda: BTreeMap<(Moment, u64), Event>,
    next_entry: u64,
    server_seq: u64,
}

pub(crate) const LONG_STREAM: Duration = Duration::from_secs(30);
/// As the configuration has it.
const OFF: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// After this long no client starts anything new.
const ACTIVE: Duration = Duration::from_secs(20);
/// And after this long everything must have come to its end.
const QUIET: Duration = Duration::from_secs(300);
/// And after this long nothing is left of clients that have gone.
const FAREWELL: Duration = Duration::from_secs(180);
/// The most steps of one stretch of a run; far more than any needs.
const MAX_STEPS: u32 = 5_000_000;
const RESTART: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

pub(crate) fn limits() -> multiplexer::Limits {
    multiplexer::Limits {
        request_timeout: Duration::from_secs(8),
        stream_timeout: Duration::from_secs(8),
        start_timeout: Duration::from_secs(12),
        stream_after: Duration::from_secs(2),
        question_timeout: Duration::from_secs(15),
        max_message_bytes: 4096,
        in_flight: 24,
        in_flight_bytes: 8000,
        waiting: 12,
        questions: 6,
        subscriptions: 2,
        tasks: 4,
        abandoned: 3,
        outgoing_bytes: 2000,
    }
}

pub(crate) fn session_limits() -> session::Limits {
    session::Limits {
        retention: Retention {
            events: 12,
            bytes: 4000,
            age: Duration::from_secs(60),
        },
        calls: 8,
        listeners: 3,
        ended_streams: 4,
        question_timeout: Duration::from_secs(3),
    }
}

impl SimulationRun {
    /// In every third run the gateway is restarted, and every fourth has an aggregate.
    pub(crate) fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let setting = match seed % 4 {
            1 => Setting::Aggregate,
            _ => Setting::Plain,
        };
        let mut run = Self::with_dice(Dice::new(seed), mutation, setting);
        if seed % 3 == 2 {
            let after = Duration::from_millis(2_000 + seed * 677 % 16_000);
            run.plan(after, Event::RestartGateway);
        }
        run
    }

    /// Returns a run in which these bytes decide what happens, and a fixed seed once they are used
    /// up.
    pub(crate) fn on_tape(tape: &[u8]) -> Self {
        Self::with_dice(Dice::on_tape(tape), None, Setting::Plain)
    }

    /// The same with an aggregate.
    pub(crate) fn on_tape_with_an_aggregate(tape: &[u8]) -> Self {
        Self::with_dice(Dice::on_tape(tape), None, Setting::Aggregate)
    }

    fn with_dice(mut dice: Dice, mutation: Option<Mutation>, setting: Setting) -> Self {
        let most = match setting {
            Setting::Plain => 2,
            Setting::Aggregate => 4,
        };
        let mut backends = (0..1 + dice.below(most))
            .map(|_| Backend::new(&mut dice, mutation))
            .collect::<Vec<_>>();
        let mut seats = (0..2 + dice.below(4))
            .map(|at| Seat::new(at, &mut dice, backends.len()))
            .collect::<Vec<_>>();
        let aggregate = match setting {
            Setting::Plain => None,
            Setting::Aggregate => Some(Aggregate::new(&mut dice, backends.len())),
        };
        if aggregate.is_some() {
            // The others call members as the destinations that they are.
            let callers = seats.iter_mut().filter(|_| dice.percent(75));
            callers.for_each(|seat| seat.call_aggregate());
            backends.iter_mut().for_each(|backend| backend.is_member = true);
        }
        let mut run = Self {
            now: Moment::START,
            dice,
            history: History::default(),
            mutation,
            backends,
            aggregate,
            seats,
            sessions: Vec::new(),
            posts: Vec::new(),
            connections: Vec::new(),
            draining: false,
            next_nonce: 1,
            modern_calls: Vec::new(),
            given: Vec::new(),
            next_connection: 0,
            last_clients: BTreeMap::new(),
            asked: BTreeSet::new(),
            agenda: BTreeMap::new(),
            next_entry: 0,
            server_seq: 0,
        };
        for seat in 0..run.seats.len() {
            let after = run.dice.millis(0, 500);
            run.plan(after, Event::Seat(seat));
        }
        for backend in 0..run.backends.len() {
            if run.backends[backend].state == BackendState::Starting {
                run.plan(Duration::ZERO, Event::Start(backend));
            }
        }
        run.plan(Duration::from_secs(1), Event::Tick);
        if let Some(aggregate) = &run.aggregate {
            let members = aggregate.shown.clone();
            run.note(Fact::Reloaded { members });
            run.start_readers();
            if run.dice.percent(60) {
                let after = run.dice.millis(500, 10_000);
                run.plan(after, Event::Reload);
            }
        }
        run
    }

    pub(crate) fn note(&mut self, fact: Fact) {
        self.history.note(self.now, fact);
    }

    pub(crate) fn plan(&mut self, after: Duration, event: Event) {
        self.plan_at(self.now.after(after), event);
    }

    pub(crate) fn plan_at(&mut self, at: Moment, event: Event) {
        self.next_entry += 1;
        self.agenda.insert((at, self.next_entry), event);
    }

    pub(crate) fn run(mut self) -> History {
        self.run_until(Moment::START.after(ACTIVE));
        self.draining = true;
        for backend in 0..self.backends.len() {
            if let Some(server) = &mut self.backends[backend].server {
                server.tame = true;
            }
            self.thaw(backend);
        }
        for connection in 0..self.connections.len() {
            self.unpause(connection);
        }
        self.dismiss_listens();
        self.run_until(Moment::START.after(QUIET));
        self.serve_last_clients();
        self.look_for_leftovers();
        self.look_for_leftovers_of_conversations();
        for session in 0..self.sessions.len() {
            self.end_session(session);
        }
        self.stop_readers();
        self.run_until(self.now.after(FAREWELL));
        self.look_for_left_conversations();
        for backend in 0..self.backends.len() {
            let machine = &self.backends[backend].machine;
            let left = [
                ("sessions", machine.sessions()),
                ("calls of no session", machine.open_calls()),
                ("questions of no session", machine.open_questions()),
                ("unanswered requests of no session", machine.unanswered_requests()),
                ("listens for no session", machine.listens()),
            ];
            self.leave(left);
        }
        self.history
    }

    fn look_for_leftovers(&mut self) {
        for backend in 0..self.backends.len() {
            let machine = &self.backends[backend].machine;
            let left = [
                ("open calls", machine.open_calls()),
                ("waiting calls", machine.waiting_calls()),
                ("open questions", machine.open_questions()),
                ("unanswered requests", machine.unanswered_requests()),
            ];
            self.leave(left);
        }
        for session in 0..self.sessions.len() {
            let machine = &self.sessions[session].machine;
            if self.sessions[session].closed {
                continue;
            }
            let left = [
                ("calls in a session", machine.open_calls()),
                ("questions in a session", machine.open_questions()),
                ("ended streams in a session", machine.past_streams()),
                ("attended streams in an idle session", {
                    let reading = self
                        .connections
                        .iter()
                        .any(|one| one.session == session && one.is_open());
                    usize::from(!reading && machine.idle_since().is_none())
                }),
            ];
            self.leave(left);
        }
    }

    pub(crate) fn leave<const N: usize>(&mut self, left: [(&'static str, usize); N]) {
        for (what, found) in left {
            if found > 0 {
                self.note(Fact::Left { what, found });
            }
        }
    }

    pub(crate) fn run_until(&mut self, end: Moment) {
        let mut steps = 0;
        loop {
            // An event that plans itself for the same moment would never end.
            steps += 1;
            assert!(steps < MAX_STEPS, "time stands still at {:?}", self.now);
            let deadline = self
                .backends
                .iter()
                .fold(self.aggregate_deadline(), |next, backend| {
                    earliest(next, backend.machine.next_deadline())
                });
            let planned = self.agenda.keys().next().map(|(at, _)| *at);
            let Some(at) = earliest(deadline, planned).filter(|at| *at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(at);
            for backend in 0..self.backends.len() {
                let machine = &mut self.backends[backend].machine;
                if machine.next_deadline().is_some_and(|at| at <= self.now) {
                    machine.handle_deadline(self.now);
                    self.pump(backend);
                }
            }
            self.handle_aggregate_deadline();
            if planned.is_some_and(|at| at <= self.now)
                && let Some((_, event)) = self.agenda.pop_first()
            {
                self.happen(event);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Seat(seat) => {
                if !self.draining {
                    self.client_acts(seat);
                    let after = self.dice.millis(20, 700);
                    self.plan(after, Event::Seat(seat));
                }
            }
            Event::Server(backend, epoch, act) => self.server_acts(backend, epoch, act),
            Event::Start(backend) => self.start(backend),
            Event::Ask(backend) => {
                self.read_ask(backend);
            }
            Event::Tell(session) => {
                if let Some(tell) = self.sessions[session].tells.pop_front() {
                    if let Tell::Notice { message, .. } = &tell
                        && let Some(seq) = meta(&value_of(message.bytes()), "seq")
                    {
                        self.note(Fact::Delivered { session, seq });
                    }
                    self.sessions[session].machine.handle_tell(self.now, tell);
                    self.serve(session);
                }
            }
            Event::TellModernRequest(at) => self.tell_modern_request(at),
            Event::Questions(at) => self.serve_modern_request(at),
            Event::Unpause(connection) => self.unpause(connection),
            Event::ConversationAsk(session) => self.conversation_reads_ask(session),
            Event::ConversationTell(session) => self.conversation_reads_tell(session),
            Event::ReaderTell(backend) => self.reader_reads_tell(backend),
            Event::LoseMember(session, backend) => self.lose_member_again(session, backend),
            Event::Reload => self.reload(),
            Event::RestartGateway => self.restart_gateway(),
            Event::Tick => {
                self.expire_modern_requests();
                self.tick_aggregate();
                for session in 0..self.sessions.len() {
                    if !self.sessions[session].closed {
                        self.sessions[session].machine.handle_tick(self.now);
                        self.serve(session);
                    }
                }
                // Once nothing new begins, tidying up less often changes nothing but the time it
                // takes.
                let seconds = if self.draining { 5 } else { 1 };
                self.plan(Duration::from_secs(seconds), Event::Tick);
            }
        }
    }

    // Between the machines.

    /// How long something takes from one task of the gateway to another.
    pub(crate) fn delay(&mut self) -> Duration {
        if self.dice.percent(50) {
            self.dice.millis(0, 20)
        } else {
            Duration::ZERO
        }
    }

    pub(crate) fn send_ask(&mut self, target: Target, ask: Ask) {
        let backend = match target {
            Target::Backend(backend) => backend,
            Target::Aggregate => return self.ask_aggregate(ask),
        };
        let delay = self.delay();
        let at = self.now.after(delay).max(self.backends[backend].asks_at);
        self.backends[backend].asks_at = at;
        self.backends[backend].asks.push_back(ask);
        self.plan_at(at, Event::Ask(backend));
    }

    /// Hands a backend what is asked next. Returns whether there was something.
    fn read_ask(&mut self, backend: usize) -> bool {
        let Some(ask) = self.backends[backend].asks.pop_front() else {
            return false;
        };
        if let Ask::Answer {
            session, question, ..
        }
        | Ask::Unanswerable { session, question } = &ask
        {
            self.asked.remove(&(backend, *session, *question));
        }
        self.backends[backend].machine.handle_ask(self.now, ask);
        self.pump(backend);
        true
    }

    /// A session leaves a backend, after everything that was asked of it before.
    pub(crate) fn close_at(&mut self, backend: usize, session: SessionKey) {
        while self.read_ask(backend) {}
        self.backends[backend]
            .machine
            .handle_ask(self.now, Ask::Close { session });
        self.pump(backend);
        self.asked.retain(|(at, of, _)| *at != backend || *of != session);
    }

    /// Returns whether a session is a client of the aggregate.
    fn calls_aggregate(&self, session: SessionKey) -> bool {
        let number = session.0 as usize;
        let target = match number.checked_sub(modern_requests::FIRST) {
            None => self.sessions.get(number).map(|held| held.target),
            Some(at) => {
                let last = self.last_clients.get(&session).map(|last| last.target);
                last.or(self.modern_calls.get(at).map(|call| call.to.target))
            }
        };
        target == Some(Target::Aggregate)
    }

    fn send_tell(&mut self, backend: usize, tell: Tell) {
        if tell.session().0 as usize >= READERS {
            return self.tell_reader(backend, tell);
        }
        match self.calls_aggregate(tell.session()) {
            true => self.tell_conversation(backend, tell),
            false => self.deliver(tell),
        }
    }

    /// Hands a tell to the machine of its client.
    pub(crate) fn deliver(&mut self, tell: Tell) {
        if self.is_for_last_client(&tell) {
            return;
        }
        let session = tell.session().0 as usize;
        let delay = self.delay();
        if let Some(modern_call) = session
            .checked_sub(modern_requests::FIRST)
            .and_then(|at| self.modern_calls.get_mut(at))
        {
            let at = self.now.after(delay).max(modern_call.tells_at);
            modern_call.tells_at = at;
            modern_call.tells.push_back(tell);
            return self.plan_at(at, Event::TellModernRequest(session - modern_requests::FIRST));
        }
        let Some(held) = self.sessions.get_mut(session) else {
            return;
        };
        let at = self.now.after(delay).max(held.tells_at);
        held.tells_at = at;
        held.tells.push_back(tell);
        self.plan_at(at, Event::Tell(session));
    }

    /// Keeps in mind which questions clients have to answer.
    fn note_question(&mut self, backend: usize, tell: &Tell) {
        match tell {
            Tell::Question {
                session, question, ..
            } => {
                self.asked.insert((backend, *session, *question));
            }
            Tell::Withdrawn {
                session, question, ..
            } => {
                self.asked.remove(&(backend, *session, *question));
            }
            _ => {}
        }
    }

    /// Carries out what a multiplexer orders.
    fn pump(&mut self, backend: usize) {
        while let Some(output) = self.backends[backend].machine.poll_output() {
            match output {
                multiplexer::Output::Tell(tell) => {
                    self.note_question(backend, &tell);
                    let incapable = |message: &Message| value_of(message.bytes())["error"]["code"] == -32021;
                    if let Tell::Reply {
                        session,
                        call,
                        message,
                        ..
                    } = &tell
                        && incapable(message)
                    {
                        let mut asked = self.asked.iter();
                        if asked.any(|(at, of, _)| *at == backend && of == session) {
                            self.note(Fact::Wrong {
                                what: "a call was ended that its client was asked about".into(),
                            });
                        }
                        let (session, call) = (session.0 as usize, call.0);
                        self.note(Fact::GivenUp {
                            session,
                            backend: Some(backend),
                            call,
                            timed_out: false,
                        });
                    }
                    if let Tell::Reply {
                        session,
                        call,
                        message,
                        ..
                    } = &tell
                        && self.is_refusal(*session, *call, message)
                    {
                        let session = session.0 as usize;
                        self.note(Fact::Refused { session });
                    }
                    if let Tell::Failed {
                        session,
                        call,
                        failure,
                    } = &tell
                    {
                        let (session, call) = (session.0 as usize, call.0);
                        self.note(Fact::GivenUp {
                            session,
                            backend: Some(backend),
                            call,
                            timed_out: matches!(failure, Failure::Timeout { .. }),
                        });
                    }
                    for tell in self.mutate_tell(backend, tell) {
                        self.send_tell(backend, tell);
                    }
                }
                multiplexer::Output::WantLink => self.want_link(backend),
                multiplexer::Output::Replace { .. } => self.crash(backend),
                multiplexer::Output::Shown(shown) => self.judge_shown(backend, shown),
                multiplexer::Output::Noise { .. } => {}
            }
        }
        self.write(backend);
        let machine = &self.backends[backend].machine;
        let limits = limits();
        // A few messages of ours may always be sent: cancellations, and the answer to one more
        // message.
        let own_bytes = 130 * (limits.in_flight + limits.questions) + limits.max_message_bytes;
        // A server that hangs reads nothing, and members are read again and again.
        let readers = self.aggregate.as_ref().map_or(0, Aggregate::lines_of_readers);
        let own_bytes = own_bytes + 400 * readers;
        for (what, found, limit) in [
            (
                "outgoing bytes",
                machine.outgoing_bytes(),
                limits.outgoing_bytes + own_bytes,
            ),
            ("waiting calls", machine.waiting_calls(), limits.waiting),
            ("open questions", machine.open_questions(), limits.questions),
            (
                "unanswered requests",
                machine.unanswered_requests(),
                3 * limits.in_flight,
            ),
            ("abandoned calls", machine.abandoned().0, limits.abandoned),
            (
                "principals with abandoned calls",
                machine.abandoned().1,
                2 * limits.abandoned,
            ),
        ] {
            if found > limit {
                self.note(Fact::Exceeded { what, found, limit });
            }
        }
    }

    /// Returns whether it is the server's refusal of a session's handshake.
    fn is_refusal(&self, session: SessionKey, call: CallKey, message: &Message) -> bool {
        let held = self.sessions.get(session.0 as usize);
        message.kind() == Kind::Error && held.is_some_and(|held| held.opening == call)
    }

    fn write(&mut self, backend: usize) {
        let one = &mut self.backends[backend];
        // A writer that waits for a server which does not read takes nothing more.
        if !one.machine.has_outgoing() || !one.pipe.is_empty() || one.server.is_none() {
            return;
        }
        let taken = one.machine.take_outgoing(BytesMut::new());
        let text = String::from_utf8(taken.to_vec()).expect("lines are text");
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if one.server.as_ref().is_some_and(|server| server.frozen) {
            one.pipe = lines;
            return;
        }
        one.machine.handle_written();
        self.server_reads(backend, lines);
    }

    fn server_reads(&mut self, backend: usize, lines: Vec<String>) {
        for line in lines {
            for line in self.mutate_line(backend, line) {
                let mut facts = Vec::new();
                let Some(server) = &mut self.backends[backend].server else {
                    return;
                };
                let epoch = server.epoch;
                let plan = server.read(&mut self.dice, &line, &mut facts);
                let settled = server.settled;
                self.backends[backend].era = settled.or(self.backends[backend].era);
                for fact in facts {
                    self.note(fact);
                }
                for (after, act) in plan {
                    self.plan(after, Event::Server(backend, epoch, act));
                }
            }
        }
    }

    // The server's side.

    fn server_acts(&mut self, backend: usize, epoch: u32, act: Act) {
        let attached = self.backends[backend].machine.listeners();
        let draining = self.draining;
        let Some(server) = self.backends[backend]
            .server
            .as_mut()
            .filter(|server| server.epoch == epoch)
        else {
            return;
        };
        if server.hung {
            return;
        }
        if matches!(act, Act::Thaw) {
            return self.thaw(backend);
        }
        if server.frozen {
            // Everything it meant to do is done when it moves again.
            return self.plan(Duration::from_millis(500), Event::Server(backend, epoch, act));
        }
        if matches!(act, Act::Wander) {
            if draining {
                return;
            }
            let after = self.dice.millis(100, 2500);
            self.plan(after, Event::Server(backend, epoch, Act::Wander));
        }
        let mut facts = Vec::new();
        let Some(server) = &mut self.backends[backend].server else {
            return;
        };
        let (written, plan) = server.act(
            self.now,
            &mut self.dice,
            act,
            &mut self.server_seq,
            attached,
            &mut facts,
        );
        for fact in facts {
            self.note(fact);
        }
        for (after, act) in plan {
            self.plan(after, Event::Server(backend, epoch, act));
        }
        match written {
            Some(Written::Line(line)) => {
                for line in line.lines() {
                    if self.is_lost_to_a_verdict(backend, line) {
                        continue;
                    }
                    let line = Bytes::copy_from_slice(line.as_bytes());
                    self.backends[backend].machine.handle_line(self.now, line);
                }
                self.restart_clocks(backend, &line);
                self.pump(backend);
            }
            Some(Written::TooLong(wire)) => {
                self.backends[backend].machine.handle_too_long(
                    self.now,
                    Some(wire.to_string().as_bytes()),
                    false,
                    9999,
                );
                self.pump(backend);
            }
            Some(Written::Crash) => self.crash(backend),
            Some(Written::Hang) => {
                if let Some(server) = &mut self.backends[backend].server {
                    server.frozen = true;
                    server.hung = true;
                }
            }
            Some(Written::Freeze(span)) => {
                if let Some(server) = &mut self.backends[backend].server {
                    server.frozen = true;
                    self.plan(span, Event::Server(backend, epoch, Act::Thaw));
                }
            }
            None => {}
        }
    }

    fn thaw(&mut self, backend: usize) {
        let one = &mut self.backends[backend];
        let Some(server) = &mut one.server else { return };
        if server.hung {
            return;
        }
        server.frozen = false;
        let is_silent = !one.machine.is_ready() && self.now.since(one.up_since) >= negotiation::SILENCE;
        if is_silent && self.mutation == Some(Mutation::JudgeSilence) {
            one.verdict = Some(Era::Legacy);
        }
        let lines = std::mem::take(&mut one.pipe);
        if !lines.is_empty() {
            one.machine.handle_written();
            self.server_reads(backend, lines);
        }
        let one = &mut self.backends[backend];
        if one.machine.has_outgoing() {
            let taken = one.machine.take_outgoing(BytesMut::new());
            one.machine.handle_written();
            let text = String::from_utf8(taken.to_vec()).expect("lines are text");
            self.server_reads(backend, text.lines().map(str::to_owned).collect());
        }
        self.pump(backend);
    }

    fn crash(&mut self, backend: usize) {
        let one = &mut self.backends[backend];
        let Some(server) = one.server.take() else { return };
        one.inherited = server.bequest();
        one.pipe.clear();
        let epoch = one.epoch;
        let healthy = self.now.since(one.up_since) > Duration::from_secs(10);
        if healthy {
            one.failures = 0;
        }
        one.machine.handle_link_down(&backend_error());
        self.note(Fact::LinkDown { backend, epoch });
        self.restart(backend);
        self.pump(backend);
    }

    /// The law: three tries after 0.5, 1 and 2 seconds, then nothing until a later request.
    fn restart(&mut self, backend: usize) {
        let one = &mut self.backends[backend];
        match RESTART.get(one.failures) {
            Some(wait) => {
                one.failures += 1;
                one.state = BackendState::Starting;
                self.plan(*wait, Event::Start(backend));
            }
            None => {
                one.state = BackendState::Unavailable;
                one.retry_at = self.now.after(Duration::from_secs(5));
                one.machine
                    .handle_unavailable(&backend_error(), Duration::from_secs(5));
            }
        }
    }

    fn want_link(&mut self, backend: usize) {
        let one = &mut self.backends[backend];
        match one.state {
            BackendState::Starting | BackendState::Up => {}
            BackendState::Unavailable if self.now < one.retry_at => {
                one.machine
                    .handle_unavailable(&backend_error(), Duration::from_secs(5));
            }
            BackendState::Stopped | BackendState::Unavailable => {
                one.state = BackendState::Starting;
                one.failures = 0;
                let after = self.dice.millis(0, 800);
                self.plan(after, Event::Start(backend));
            }
        }
    }

    fn start(&mut self, backend: usize) {
        if self.backends[backend].state != BackendState::Starting {
            return;
        }
        if !self.draining && self.dice.percent(20) {
            self.restart(backend);
            return self.pump(backend);
        }
        let tame = self.draining;
        let one = &mut self.backends[backend];
        one.epoch += 1;
        let epoch = one.epoch;
        one.state = BackendState::Up;
        one.up_since = self.now;
        let mut server = Server::new(
            backend,
            epoch,
            (one.speaks, one.era),
            one.tasks,
            std::mem::take(&mut one.inherited),
        );
        server.offers = one.is_member;
        if let Some(aggregate) = &self.aggregate {
            server.uris = aggregate.uris(backend);
        }
        server.tame = tame;
        server.answers_always = one.call_limits == CallLimits::Off;
        server.frozen = one.slow && !tame;
        let is_slow = server.frozen;
        one.server = Some(server);
        one.machine.handle_link_up(self.now);
        self.note(Fact::LinkUp { backend, epoch });
        if is_slow {
            let after = self.dice.millis(8_500, 11_500);
            self.plan(after, Event::Server(backend, epoch, Act::Thaw));
        }
        let after = self.dice.millis(100, 2000);
        self.plan(after, Event::Server(backend, epoch, Act::Wander));
        self.pump(backend);
    }

    // The gateway itself.

    /// Everything in the memory of the gateway is lost, and its servers end. Sessions go on from their
    /// records; clients find their connections broken.
    fn restart_gateway(&mut self) {
        self.note(Fact::GatewayRestarted);
        self.asked.clear();
        self.given.clear();
        for backend in 0..self.backends.len() {
            let one = &mut self.backends[backend];
            let epoch = one.epoch;
            let was_up = one.server.take().is_some();
            // The next server has a pipe of its own, and knows no id of this gateway.
            one.inherited.clear();
            one.pipe.clear();
            one.asks.clear();
            one.held = None;
            one.failures = 0;
            one.machine = one.new_machine();
            one.state = match one.is_eager {
                true => BackendState::Starting,
                false => BackendState::Stopped,
            };
            let is_eager = one.is_eager;
            if was_up {
                self.note(Fact::LinkDown { backend, epoch });
            }
            if is_eager {
                self.plan(Duration::ZERO, Event::Start(backend));
            }
        }
        self.lose_modern_calls();
        self.restart_aggregate();
        for session in 0..self.sessions.len() {
            self.lose_connections(session);
            if self.sessions[session].closed {
                continue;
            }
            if !self.sessions[session].is_opened() && !self.sessions[session].machine.is_implicit() {
                // Its id was not shown, so there is no record.
                self.sessions[session].closed = true;
                self.note(Fact::SessionClosed { session });
                continue;
            }
            let ask = self.sessions[session].restore(SessionKey(session as u64), self.now);
            self.note(Fact::Reopened { session });
            let target = self.sessions[session].target;
            self.send_ask(target, ask);
            if self.mutation == Some(Mutation::RepeatCallsAfterRestart)
                && let Some(call) = self.sessions[session].last_call.take()
            {
                self.send_ask(target, call);
            }
        }
    }

    // Breaking things on purpose.

    fn mutate_tell(&mut self, backend: usize, tell: Tell) -> Vec<Tell> {
        let Some(mutation) = self.mutation else {
            return vec![tell];
        };
        match (mutation, tell) {
            (
                Mutation::JudgeATranslation,
                Tell::Opened {
                    session,
                    call,
                    server_info,
                },
            ) => {
                if session.0 as usize >= modern_requests::FIRST && server_info.era == Era::Legacy {
                    self.backends[backend].verdict = Some(Era::Modern);
                }
                vec![Tell::Opened {
                    session,
                    call,
                    server_info,
                }]
            }
            (Mutation::DropAnAnswer, Tell::Reply { .. }) if self.dice.percent(10) => vec![],
            (
                Mutation::SwapTwoAnswers,
                Tell::Reply {
                    session,
                    call,
                    message,
                    era,
                },
            ) => match self.backends[backend].held.take() {
                Some(Tell::Reply {
                    session: first,
                    call: first_call,
                    message: first_message,
                    ..
                }) => vec![
                    Tell::Reply {
                        session: first,
                        call: first_call,
                        message,
                        era,
                    },
                    Tell::Reply {
                        session,
                        call,
                        message: first_message,
                        era,
                    },
                ],
                _ => {
                    self.backends[backend].held = Some(Tell::Reply {
                        session,
                        call,
                        message,
                        era,
                    });
                    vec![]
                }
            },
            (
                Mutation::TellAStranger,
                Tell::Related {
                    session,
                    call,
                    message,
                },
            ) => {
                if self.sessions.is_empty() {
                    return vec![Tell::Related {
                        session,
                        call,
                        message,
                    }];
                }
                let stranger = SessionKey(self.dice.below(self.sessions.len()) as u64);
                if stranger == session || self.dice.percent(70) {
                    return vec![Tell::Related {
                        session,
                        call,
                        message,
                    }];
                }
                vec![Tell::Notice {
                    session: stranger,
                    message,
                }]
            }
            (
                Mutation::AskAStranger,
                Tell::Question {
                    session,
                    call,
                    question,
                    message,
                },
            ) => {
                let asked = self.principal_of(session.0 as usize);
                let strangers: Vec<usize> = (0..self.sessions.len())
                    .filter(|at| {
                        self.sessions[*at].target == Target::Backend(backend)
                            && self.principal_of(*at) != asked
                    })
                    .collect();
                let stranger = self.dice.pick(&strangers).copied();
                vec![Tell::Question {
                    session: stranger.map_or(session, |at| SessionKey(at as u64)),
                    call: call.filter(|_| stranger.is_none()),
                    question,
                    message,
                }]
            }
            (
                Mutation::ShowATask,
                Tell::Reply {
                    session,
                    call,
                    message,
                    era,
                },
            ) => {
                let refused = value_of(message.bytes())["error"]["message"] == "there is no such task";
                let message = if refused {
                    crate::run::message(r#"{"jsonrpc":"2.0","id":0,"result":{"taskId":"t"}}"#)
                } else {
                    message
                };
                vec![Tell::Reply {
                    session,
                    call,
                    message,
                    era,
                }]
            }
            // A listen that is notified before it was acknowledged, or of what it never asked for.
            (Mutation::TellAListen, Tell::Done { session, call }) => {
                let list =
                    r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:/z"}}"#;
                let related = Tell::Related {
                    session,
                    call,
                    message: message(list),
                };
                vec![Tell::Done { session, call }, related]
            }
            (_, tell) => vec![tell],
        }
    }

    /// For the mutation that starts the time of every call anew: a log line comes with progress of
    /// all of them.
    fn restart_clocks(&mut self, backend: usize, line: &str) {
        let one = &mut self.backends[backend];
        let is_log = line.contains(r#""notifications/message""#);
        if self.mutation != Some(Mutation::RestartEveryClock) || !is_log {
            return;
        }
        for (wire, post) in one.server.iter().flat_map(Server::working_on) {
            let progress = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{wire},"progress":1,"_meta":{{"of":{post}}}}}}}"#
            );
            one.machine.handle_line(self.now, Bytes::from(progress));
        }
    }

    fn principal_of(&self, wanted: usize) -> Option<&'static str> {
        self.history.facts.iter().find_map(|(_, fact)| match fact {
            Fact::SessionOpened {
                session, principal, ..
            } if *session == wanted => Some(*principal),
            _ => None,
        })
    }

    fn mutate_line(&mut self, backend: usize, line: String) -> Vec<String> {
        if self.is_lost_to_a_verdict(backend, &line) {
            return vec![];
        }
        match self.mutation {
            Some(Mutation::ForgetACancel)
                if line.contains("notifications/cancelled") && self.dice.percent(30) =>
            {
                vec![]
            }
            Some(Mutation::ReplayACall) if line.contains("tools/call") && self.dice.percent(5) => {
                vec![line.clone(), line]
            }
            Some(Mutation::LoseAnAnswer) if !line.contains(r#""method""#) && self.dice.percent(30) => {
                vec![]
            }
            _ => vec![line],
        }
    }
}

impl Backend {
    pub(crate) fn state(&self) -> BackendState {
        self.state
    }

    /// Returns a machine as this one was in the beginning.
    fn new_machine(&self) -> Multiplexer {
        let mut machine = Multiplexer::new(self.machine.limits().clone(), self.client_hello);
        machine.plan_eras(self.machine.eras_planned());
        if self.is_eager {
            machine.initialize_at_start();
        }
        machine
    }

    fn new(dice: &mut Dice, mutation: Option<Mutation>) -> Self {
        let client_hello = [ClientHello::Newest, ClientHello::Union][dice.below(2)];
        let speaks = Speaks::thrown(dice);
        let call_limits = CallLimits::thrown(dice);
        let limits = match mutation {
            Some(Mutation::NeverTimeOut) => CallLimits::Off.limits(),
            _ => call_limits.limits(),
        };
        let mut machine = Multiplexer::new(limits, client_hello);
        machine.plan_eras(speaks.plan(dice));
        let is_eager = dice.percent(30);
        if is_eager {
            machine.initialize_at_start();
        }
        Self {
            machine,
            client_hello,
            is_eager,
            speaks,
            call_limits,
            era: speaks.only(),
            slow: dice.percent(10),
            verdict: None,
            tasks: tasks::support(dice),
            is_member: false,
            state: if is_eager {
                BackendState::Starting
            } else {
                BackendState::Stopped
            },
            server: None,
            epoch: 0,
            inherited: Vec::new(),
            failures: 0,
            up_since: Moment::START,
            retry_at: Moment::START,
            pipe: Vec::new(),
            asks: VecDeque::new(),
            asks_at: Moment::START,
            held: None,
        }
    }
}

/// What is written down of a session.
#[derive(Debug)]
pub(crate) struct SessionRecord {
    hello: Hello,
    pub(crate) state: SessionState,
    pub(crate) epoch: u64,
}

impl SimulatedSession {
    /// The session goes on in another process. Returns what presents it to its server.
    fn restore(&mut self, key: SessionKey, now: Moment) -> Ask {
        self.record.epoch += 1;
        let restored = Restored {
            hello: self.record.hello.clone(),
            state: self.record.state.clone(),
            epoch: self.record.epoch,
        };
        let client = Arc::clone(self.machine.client());
        let (machine, ask) = Session::restore(key, client, session_limits(), now, restored);
        self.machine = machine;
        self.tells.clear();
        if let Ask::Restore { call, .. } = &ask {
            self.opening = *call;
        }
        ask
    }

    /// Returns whether its client takes it for opened.
    pub(crate) fn is_opened(&self) -> bool {
        self.record.epoch > 1 || self.machine.is_opened()
    }

    /// `open` is what opens it, and `hello` the client's handshake.
    pub(crate) fn new(mut machine: Session, target: Target, open: &Ask, hello: Hello) -> Self {
        let Ask::Open { call: opening, .. } = open else {
            panic!("a session begins with its opening");
        };
        machine.keep_state();
        Self {
            machine,
            target,
            closed: false,
            record: SessionRecord {
                hello,
                state: SessionState::default(),
                epoch: 1,
            },
            last_call: None,
            opening: *opening,
            tells: VecDeque::new(),
            tells_at: Moment::START,
        }
    }
}

fn backend_error() -> Arc<BackendError> {
    Arc::new(BackendError {
        what: "exit status 3".into(),
        ..BackendError::default()
    })
}

pub(crate) fn value_of(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_default()
}

/// Returns a number that a server's message carries in `_meta`.
pub(crate) fn meta(value: &Value, key: &str) -> Option<u64> {
    value["params"]["_meta"][key].as_u64()
}

pub(crate) fn message(text: &str) -> Message {
    Message::scan(Bytes::copy_from_slice(text.as_bytes())).expect("clients write messages")
}

/// The property that a fuzzer and `cargo test` share: every promise is kept for any bytes.
///
/// # Panics
/// If the judge finds fault with a history that these bytes lead to.
pub(crate) fn holds(tape: &[u8]) {
    for run in [
        SimulationRun::on_tape(tape),
        SimulationRun::on_tape_with_an_aggregate(tape),
    ] {
        let wrongs = crate::check::check(&run.run());
        assert!(wrongs.is_empty(), "{}", wrongs.join("\n"));
    }
}
