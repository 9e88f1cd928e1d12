//! Many sessions, one backend: whose answer is it, whose question, and who has to wait.
//!
//! The machine is fed asks from above and lines from below. It writes lines for the server into a buffer
//! ([`Multiplexer::take_outgoing`]) and says the rest as [`Output`]s. It never starts anything: when it needs a link
//! it says [`Output::WantLink`], and whoever holds the restart policy answers with `handle_link_*`.
//!
//! Law of attribution. Over stdio a server's question carries no origin. If exactly one session has calls in flight
//! that may ask, the question is that session's. Once a server has asked anything, such calls run for one
//! session at a time, so that the next question can be attributed. A question that comes while several sessions of
//! one principal have such calls is held until the calls of all but one of them have ended, and then is that one's
//! (see `held.rs`). What still cannot be attributed is refused: of several principals, as many questions as sessions
//! that may have asked, a call cancelled meanwhile, or nothing decided in time. Nothing is ever guessed.
//! What a server says because of a task carries the task's id and is exact (see `tasks.rs`); roots that it asks for while no
//! call is there wait for the next one (see `roots.rs`).
//! A call that waits for a modern client's answer, which may never come, does not keep others of its principal from
//! their turn (see `resting.rs`).

mod arrivals;
mod attribution;
mod deadlines;
mod held;
mod interests;
mod link;
mod posts;
mod pursuit;
mod resting;
mod roots;
mod rounds;
mod tasks;
mod tools;
mod vigil;
mod wishes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::backend_face::legacy::{self, Handshake, Introduction};
use crate::backend_face::modern;
use crate::backend_face::{self, Arrival, Face, Outgoing, WireId};
use crate::error_code;
use crate::exchange::{
    Ask, Call, CallKey, Client, Failure, QuestionKey, Request, SessionKey, Tell, Trouble, Upstream,
};
use crate::message::{Kind, Member, Message, ScanError};
use crate::method::{LogLevel, Method};
use crate::time::{Moment, earliest};
use crate::tool_policy::ToolPolicy;
use crate::tool_schema::TaskSupport;
use crate::version::Era;
use crate::wire::line::EnvelopeSeeker;
use held::Held;
use interests::Interests;
pub(crate) use interests::is_part;
pub use posts::Carrier;
use pursuit::Pursuit;
use resting::Returning;
use roots::Roots;
use rounds::Round;
use tasks::{Tasks, Watched};
use tools::Tools;
use vigil::Vigil;

/// How much and how long.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Silence after which a call has failed. Progress starts it anew, up to [`Limits::MAX_EXTENSIONS`] times.
    pub request_timeout: Duration,
    /// How long calls wait for a server that is getting ready.
    pub start_timeout: Duration,
    /// After this long whoever waits for an answer is told so.
    pub patience: Duration,
    /// How long a client may take to answer a server's question.
    pub question_timeout: Duration,
    pub max_message_bytes: usize,
    /// Calls the server may be working on.
    pub in_flight: usize,
    /// Bytes of the calls that the server may be working on: they are kept until it has answered.
    pub in_flight_bytes: usize,
    /// Calls that may wait for the server to get ready.
    pub waiting: usize,
    /// Questions of the server that may be open.
    pub questions: usize,
    /// Resources a session may be subscribed to.
    pub subscriptions: usize,
    /// Tasks that are remembered with their owner.
    pub tasks: usize,
    /// Bytes that may wait to be written to the server.
    pub outgoing_bytes: usize,
}

impl Limits {
    /// A call may last this many request timeouts, however much progress it reports.
    pub const MAX_EXTENSIONS: u32 = 10;

    /// A message of up to this many bytes is not counted by its bytes.
    const SMALL: usize = 4096;

    /// How long a server may take to stop working on a cancelled call. Until then its questions and log lines may
    /// be that call's. Most servers do not answer a cancelled call, so there is no better sign that it has stopped.
    pub const CANCEL_GRACE: Duration = Duration::from_secs(5);
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(30),
            start_timeout: Duration::from_secs(60),
            patience: Duration::from_secs(5),
            question_timeout: Duration::from_secs(600),
            max_message_bytes: 1 << 20,
            in_flight: 4096,
            in_flight_bytes: 64 << 20,
            waiting: 1024,
            questions: 256,
            subscriptions: 256,
            tasks: 1024,
            outgoing_bytes: 4 << 20,
        }
    }
}

/// What the machine wants done.
#[derive(Debug)]
pub enum Output {
    Tell(Tell),
    /// Someone waits for the server: start it, or say that it cannot be had.
    WantLink,
    /// The server owes an answer and gives no sign of life: end it and start another.
    Replace {
        why: &'static str,
    },
    /// The server wrote something that is no message. For the log.
    Noise {
        line: Bytes,
        error: ScanError,
    },
}

/// How often something happened that nobody was told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lines that were no messages.
    pub noise: u64,
    /// Answers and progress for nobody: late, doubled, or with an id that is not ours.
    pub strays: u64,
    /// Notifications that belong to nobody in particular.
    pub unattributed: u64,
    /// Questions refused because they could not be attributed or answered.
    pub questions_refused: u64,
    /// Calls that ran into a limit of ours.
    pub overloads: u64,
    pub timeouts: u64,
}

impl Counters {
    /// Counts what another has counted as well.
    pub const fn add(&mut self, other: &Self) {
        self.noise += other.noise;
        self.strays += other.strays;
        self.unattributed += other.unattributed;
        self.questions_refused += other.questions_refused;
        self.overloads += other.overloads;
        self.timeouts += other.timeouts;
    }
}

#[derive(Debug)]
enum Link {
    /// There is none; one has been asked for if anybody waits.
    Absent,
    Up,
    Unavailable,
}

#[derive(Debug)]
struct Attached {
    client: Arc<Client>,
    words: Era,
    /// Wants to know what is not about its calls.
    hears: bool,
    load: Load,
}

/// What the server may be working on for a session, cancelled calls included.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    in_flight: u32,
    /// Those of them that may ask something.
    asking: u32,
}

#[derive(Debug)]
struct Opener {
    session: SessionKey,
    call: CallKey,
    deadline: Moment,
}

/// What has become of a call before it is sent, or sent again.
#[derive(Debug, Clone, Copy, Default)]
struct Past {
    /// How often the server refused it for want of a session.
    forgotten: u32,
    /// Its server has refused it because of its headers: it waits for the list of tools, and is sent once more.
    refreshed: bool,
}

#[derive(Debug)]
struct Waiting {
    call: Call,
    deadline: Moment,
    /// What to say if it is reached: a slow start is not a slow call.
    starting: bool,
    /// When to tell the client that it takes long.
    patience: Option<Moment>,
    /// Its client was asked something that must be answered first.
    asked_first: bool,
    past: Past,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "almost all are calls, and a box would cost each of them"
)]
enum Pending {
    Call(InFlight),
    /// A call that was cancelled. Nobody waits for it, but until the server has stopped it may still ask or log
    /// something because of it, which must not be taken for another session's.
    Cancelled {
        session: SessionKey,
        may_ask: bool,
        until: Moment,
    },
    Handshake,
    /// Our own listening for what sessions want to hear (modern era).
    Listen,
    /// A request of our own; its answer interests nobody.
    Own {
        until: Moment,
    },
    /// A step in the pursuit of a call's task; the call's own time limit holds for it.
    Step {
        of: WireId,
    },
    /// Our waiting for the outcome of a task, so that its server can ask.
    Background {
        task: String,
    },
}

#[derive(Debug)]
struct InFlight {
    session: SessionKey,
    call: CallKey,
    method: Method,
    request: Request,
    /// What the client wrote, for as long as it may have to be said again in a further round.
    message: Message,
    words: Era,
    /// What the server wants to know before it goes on (modern era).
    round: Option<Round>,
    rounds: u32,
    /// What is done about the task that it was answered with.
    pursuit: Option<Box<Pursuit>>,
    /// The server does it only as a task, and its client knows nothing of such.
    drives: bool,
    past: Past,
    /// The client's progress token, to be put back into progress notifications.
    token: Option<Bytes>,
    deadline: Moment,
    /// The last moment that progress can move the deadline to.
    horizon: Moment,
    patience: Option<Moment>,
    /// Questions the client has not answered yet; the clock stands still meanwhile.
    open_questions: u32,
    /// When the call will rest, if the server asks nothing more by then.
    rest_at: Option<Moment>,
    /// Not counted among its session's calls: it waits for a client that may never come back.
    resting: bool,
}

#[derive(Debug)]
struct OpenQuestion {
    session: SessionKey,
    /// The call that carries it.
    wire: Option<WireId>,
    asker: Asker,
    method: Method,
    deadline: Moment,
}

/// Who waits for the answer to a question.
#[derive(Debug)]
enum Asker {
    /// The server, which gave it this raw id.
    Server(Bytes),
    /// A round of the call, in which it has this key.
    Round(String),
    /// The task of the call, which gave it this key.
    Task(String),
}

/// Why a question is refused that could be several sessions'.
const UNATTRIBUTABLE: &str =
    "cannot tell which of several sessions this request is for; set `process: per_session` for this server";

/// What became of a call that was to be written for the server.
enum Lowered {
    /// It is under way.
    Sent,
    /// It needs no server.
    Done,
    TooMuch(&'static str),
    /// The server is known not to do it.
    Unsupported(&'static str),
    /// The server has no such method.
    NoSuchMethod(&'static str),
}

/// The machine.
#[derive(Debug)]
pub struct Multiplexer {
    limits: Limits,
    carrier: Carrier,
    link: Link,
    /// Why a server that is reached by POSTs cannot be, until it is tried again.
    outage: Option<Arc<Trouble>>,
    /// How a legacy server is introduced to.
    introduction: Introduction,
    /// Which of the server's tools its clients see.
    policy: Arc<ToolPolicy>,
    face: Face,
    /// A listen was refused or ended too often: this server is not asked again.
    listens_left: u32,
    /// A listen was lost: something may have been missed until the next one is acknowledged.
    missed: bool,
    /// A server answered the handshake on an earlier link.
    welcomed_before: bool,
    attached: BTreeMap<SessionKey, Attached>,
    /// Sessions that have gone and whose cancelled calls the server may still be working on.
    departed: BTreeMap<SessionKey, Load>,
    /// How many sessions have calls in flight, and calls in flight that may ask.
    busy_sessions: usize,
    asking_sessions: usize,
    openers: VecDeque<Opener>,
    waiting: VecDeque<Waiting>,
    /// Answers to questions of calls that rest.
    returning: VecDeque<Returning>,
    pending: BTreeMap<WireId, Pending>,
    questions: BTreeMap<QuestionKey, OpenQuestion>,
    /// Questions of the server of which it is not known yet whose they are, oldest first.
    held: VecDeque<Held>,
    interests: Interests,
    tools: Tools,
    tasks: Tasks,
    roots: Roots,
    vigil: Vigil,
    /// The server has asked a question at some time: attribution needs one asking session at a time.
    inquisitive: bool,
    /// Who last told the server something about roots; a question for roots outside any call is theirs.
    last_notifier: Option<SessionKey>,
    next_wire: u64,
    next_question: u64,
    outgoing: BytesMut,
    /// Bytes taken by the writer that are not written yet.
    being_written: usize,
    outputs: VecDeque<Output>,
    wake_at: Option<Moment>,
    counters: Counters,
}

impl Multiplexer {
    pub fn new(limits: Limits, introduction: Introduction) -> Self {
        Self {
            limits,
            carrier: Carrier::default(),
            link: Link::Absent,
            outage: None,
            introduction,
            policy: Arc::default(),
            face: Face::Legacy(Handshake::new(introduction)),
            listens_left: wishes::LISTENS,
            missed: false,
            welcomed_before: false,
            attached: BTreeMap::new(),
            departed: BTreeMap::new(),
            busy_sessions: 0,
            asking_sessions: 0,
            openers: VecDeque::new(),
            waiting: VecDeque::new(),
            returning: VecDeque::new(),
            pending: BTreeMap::new(),
            questions: BTreeMap::new(),
            held: VecDeque::new(),
            interests: Interests::default(),
            tools: Tools::default(),
            tasks: Tasks::default(),
            roots: Roots::default(),
            vigil: Vigil::default(),
            inquisitive: false,
            last_notifier: None,
            next_wire: 1,
            next_question: 1,
            outgoing: BytesMut::new(),
            being_written: 0,
            outputs: VecDeque::new(),
            wake_at: None,
            counters: Counters::default(),
        }
    }

    /// Leaves tools out of every list that the server gives. Calls are judged before they come here.
    pub fn show_tools(&mut self, policy: Arc<ToolPolicy>) {
        self.policy = policy;
    }

    /// Chooses the era to speak. Only a link on which nothing was agreed can change it.
    pub fn speak(&mut self, now: Moment, era: Era) {
        if self.face.welcome().is_some() || self.face.era() == era {
            return;
        }
        self.pending
            .retain(|_, pending| !matches!(pending, Pending::Handshake));
        self.face = Face::new(era, self.introduction);
        if !self.openers.is_empty() {
            self.pursue(now);
        }
    }

    pub fn era(&self) -> Era {
        self.face.era()
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    // What the world wants to know.

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Sessions that use this backend.
    pub fn sessions(&self) -> usize {
        self.attached.len()
    }

    /// Calls that were accepted and have no answer yet. One that rests has been answered, with a question.
    pub fn open_calls(&self) -> usize {
        self.waiting.len() + self.openers.len() + self.calls_in_flight()
    }

    /// Those of them that the server has not been given yet.
    pub fn waiting_calls(&self) -> usize {
        self.waiting.len()
    }

    /// Questions of the server that have no answer yet.
    pub fn open_questions(&self) -> usize {
        self.questions.len() + self.held.len() + self.tasks.open_inputs() + self.roots.open()
    }

    pub fn is_ready(&self) -> bool {
        matches!(self.link, Link::Up) && self.face.welcome().is_some()
    }

    fn calls_in_flight(&self) -> usize {
        self.pending
            .values()
            .filter(|pending| matches!(pending, Pending::Call(call) if !call.resting))
            .count()
    }

    /// Calls, cancelled calls and requests of our own that are still in the books, and who left some behind.
    #[doc(hidden)]
    pub fn unsettled(&self) -> usize {
        let requests = self.pending.values().filter(|pending| {
            !matches!(
                pending,
                Pending::Handshake | Pending::Listen | Pending::Background { .. }
            )
        });
        requests.count() + self.departed.len()
    }

    /// Sessions that want to know what is not about their calls.
    #[doc(hidden)]
    pub fn listeners(&self) -> usize {
        self.hearing().count()
    }

    /// Our own listens.
    #[doc(hidden)]
    pub fn listens(&self) -> usize {
        self.pending
            .values()
            .filter(|pending| matches!(pending, Pending::Listen))
            .count()
    }

    /// Bytes that wait to be written or are being written.
    pub fn outgoing_bytes(&self) -> usize {
        self.outgoing.len() + self.being_written
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Hands everything that waits to be written to the writer, who gives back its empty buffer.
    pub fn take_outgoing(&mut self, empty: BytesMut) -> BytesMut {
        self.being_written = self.outgoing.len();
        std::mem::replace(&mut self.outgoing, empty)
    }

    /// The writer has written what it took.
    pub fn handle_written(&mut self) {
        self.being_written = 0;
    }

    pub fn next_deadline(&self) -> Option<Moment> {
        self.wake_at
    }

    fn tell(&mut self, tell: Tell) {
        self.outputs.push_back(Output::Tell(tell));
    }

    fn wake_by(&mut self, moment: Moment) {
        self.wake_at = earliest(self.wake_at, Some(moment));
    }

    fn next_wire(&mut self) -> WireId {
        let id = WireId(self.next_wire);
        self.next_wire += 1;
        id
    }

    // From above.

    pub fn handle_ask(&mut self, now: Moment, ask: Ask) {
        match ask {
            Ask::Open {
                session,
                call,
                client,
                introduction,
                words,
                hears,
            } => {
                let attached = Attached {
                    client,
                    words,
                    hears,
                    load: Load::default(),
                };
                self.open(now, session, call, attached, introduction.as_ref());
            }
            Ask::Ready { session, message } => {
                // Only the first to say so is heard by the server, so what it asks then is theirs.
                if self.face.confirm(Some(&message), &mut self.outgoing)
                    && self.attached.contains_key(&session)
                {
                    self.last_notifier = Some(session);
                }
            }
            Ask::Call(call) => self.call(now, call),
            Ask::Cancel {
                session,
                call,
                message,
            } => self.cancel(now, session, call, message.as_ref()),
            Ask::Answer {
                session,
                question,
                message,
            } => self.answer(now, session, question, &message),
            Ask::Unanswerable { session, question } => {
                if self
                    .questions
                    .get(&question)
                    .is_some_and(|open| open.session == session)
                {
                    self.refuse_question(
                        now,
                        question,
                        "the client has no stream open to receive requests on",
                    );
                }
            }
            Ask::Notice { session, message } => self.notice(session, &message),
            Ask::Close { session } => self.close(now, session),
        }
    }

    /// A notification of a client. It has no answer that could say it was refused, so what does not fit is lost.
    fn notice(&mut self, session: SessionKey, message: &Message) {
        if !self.is_ready() || !self.attached.contains_key(&session) {
            return;
        }
        if !self.has_room(message.len()) {
            self.counters.overloads += 1;
            return;
        }
        if message.method() == Method::RootsListChanged {
            self.last_notifier = Some(session);
        }
        self.face.write_notice(&mut self.outgoing, message);
    }

    fn open(
        &mut self,
        now: Moment,
        session: SessionKey,
        call: CallKey,
        attached: Attached,
        introduction: Option<&Message>,
    ) {
        self.face.offer(&attached.client, introduction);
        self.attached.insert(session, attached);
        if let (Link::Up, Some(welcome)) = (&self.link, self.face.welcome()) {
            let welcome = Arc::clone(welcome);
            self.tell(Tell::Welcome {
                session,
                call,
                welcome,
            });
            self.tune();
            return;
        }
        let deadline = now.after(self.limits.start_timeout);
        self.openers.push_back(Opener {
            session,
            call,
            deadline,
        });
        self.wake_by(deadline);
        self.pursue(now);
    }

    /// Someone waits: get a link, or shake hands on the one there is.
    fn pursue(&mut self, now: Moment) {
        match self.link {
            Link::Absent | Link::Unavailable => self.outputs.push_back(Output::WantLink),
            Link::Up => {
                let id = self.next_wire();
                if self.face.begin(id, &mut self.outgoing) {
                    self.pending.insert(id, Pending::Handshake);
                    if self.carrier == Carrier::Pipe {
                        let until = now.after(self.limits.start_timeout);
                        self.vigil
                            .begin_doubt(until, "no answer to the handshake within start_timeout");
                        self.wake_by(until);
                    }
                }
            }
        }
    }

    fn call(&mut self, now: Moment, call: Call) {
        if !self.attached.contains_key(&call.session) {
            let Call { session, call, .. } = call;
            self.tell(Tell::Failed {
                session,
                call,
                failure: Failure::SessionEnded,
            });
            return;
        }
        let asked_first = self.ask_roots_first(now, &call);
        if !asked_first && self.is_ready() && self.may_go(&call) {
            self.send(now, call, Past::default());
            return;
        }
        if self.waiting.len() >= self.limits.waiting {
            self.overload(call.session, call.call, "waiting calls");
            return;
        }
        let starting = !self.is_ready();
        let deadline = now.after(if starting {
            self.limits.start_timeout
        } else if asked_first {
            self.limits.question_timeout + self.limits.request_timeout
        } else {
            self.limits.request_timeout
        });
        let patience = now.after(self.limits.patience);
        self.waiting.push_back(Waiting {
            call,
            deadline,
            starting,
            patience: Some(patience),
            asked_first,
            past: Past::default(),
        });
        self.wake_by(deadline.min(patience));
        if starting {
            self.pursue(now);
        } else {
            self.learn(now);
        }
    }

    fn overload(&mut self, session: SessionKey, call: CallKey, limit: &'static str) {
        self.counters.overloads += 1;
        self.tell(Tell::Failed {
            session,
            call,
            failure: Failure::Overloaded { limit },
        });
    }

    /// Whether a call can be sent now without making the server's next question ambiguous.
    fn may_go(&self, call: &Call) -> bool {
        if self.must_learn(call) {
            return false;
        }
        if !self.inquisitive || !call.message.method().may_ask() {
            return true;
        }
        let own = self
            .attached
            .get(&call.session)
            .is_some_and(|attached| attached.load.asking > 0);
        let others = self.asking_sessions > usize::from(own);
        // First come, first served: nobody overtakes a call that waits its turn.
        !others
            && !self.strangers_rest(call.session, call.words)
            && self
                .waiting
                .iter()
                .all(|waiting| waiting.call.session == call.session)
    }

    /// Sends what has waited, in order, as far as the rules allow. A call that waits its turn holds up only those
    /// that have to take turns.
    fn admit(&mut self, now: Moment) {
        if !self.is_ready() {
            return;
        }
        if !self.returning.is_empty() {
            self.admit_answers(now);
        }
        if self.waiting.is_empty() {
            return;
        }
        let mut in_turn = true;
        for waiting in std::mem::take(&mut self.waiting) {
            if self.awaits_roots(&waiting) || self.awaits_tools(&waiting) {
                self.waiting.push_back(waiting);
                continue;
            }
            if self.inquisitive && waiting.call.message.method().may_ask() {
                let own = self
                    .attached
                    .get(&waiting.call.session)
                    .is_some_and(|attached| attached.load.asking > 0);
                in_turn &= self.asking_sessions <= usize::from(own)
                    && !self.strangers_rest(waiting.call.session, waiting.call.words);
                if !in_turn {
                    self.waiting.push_back(waiting);
                    continue;
                }
            }
            self.send(now, waiting.call, waiting.past);
        }
        self.learn(now);
    }

    /// Whether this much more may wait for the server to read it. One message always may.
    fn has_room(&self, length: usize) -> bool {
        let queued = self.outgoing.len() + self.being_written;
        queued == 0 || queued + length <= self.limits.outgoing_bytes
    }

    fn bytes_in_flight(&self) -> usize {
        let bytes = |pending: &Pending| match pending {
            Pending::Call(call) => call.message.len(),
            Pending::Cancelled { .. }
            | Pending::Handshake
            | Pending::Listen
            | Pending::Step { .. }
            | Pending::Background { .. }
            | Pending::Own { .. } => 0,
        };
        self.pending.values().map(bytes).sum()
    }

    fn send(&mut self, now: Moment, call: Call, past: Past) {
        if self.judge_task(&call) || self.refuse_mismatch(&call) {
            return;
        }
        let Call {
            session,
            call,
            request,
            message,
            words,
            mirrored: _,
        } = call;
        if !self.has_room(message.len()) {
            return self.overload(session, call, "bytes waiting for the server");
        }
        if self.pending.len() >= self.limits.in_flight {
            return self.overload(session, call, "calls in flight");
        }
        // Small ones are bounded by their number.
        if message.len() > Limits::SMALL
            && self.bytes_in_flight() + message.len() > self.limits.in_flight_bytes
        {
            return self.overload(session, call, "bytes in flight");
        }
        self.face.confirm(None, &mut self.outgoing);
        self.heed_level(now, session, &message, words);
        let id = WireId(self.next_wire);
        let (extra, drives) = self.as_task(session, &message, words);
        match self.lower(session, &request, &message, words, id, &extra) {
            Lowered::Sent => {}
            Lowered::Done => return self.tell(Tell::Done { session, call }),
            Lowered::TooMuch(limit) => return self.overload(session, call, limit),
            Lowered::Unsupported(what) => {
                let failure = Failure::Unsupported { what };
                return self.tell(Tell::Failed {
                    session,
                    call,
                    failure,
                });
            }
            Lowered::NoSuchMethod(what) => {
                let call = Call {
                    session,
                    call,
                    request,
                    message,
                    words,
                    mirrored: None,
                };
                return self.reply_error(&call, error_code::METHOD_NOT_FOUND, what, None);
            }
        }
        self.next_wire += 1;
        let method = message.method();
        self.count_in(session, method.may_ask());
        let deadline = self.first_deadline(now, method);
        let patience = now.after(self.limits.patience);
        self.pending.insert(
            id,
            Pending::Call(InFlight {
                session,
                call,
                method,
                request,
                token: message.raw_copy(Member::MetaProgressToken),
                message,
                words,
                round: None,
                rounds: 0,
                pursuit: None,
                drives,
                past,
                deadline,
                horizon: now.after(self.limits.request_timeout * Limits::MAX_EXTENSIONS),
                patience: Some(patience),
                open_questions: 0,
                rest_at: None,
                resting: false,
            }),
        );
        self.wake_by(deadline.min(patience));
        self.ask_roots_with(now, id);
        self.tune();
    }

    /// What is added to a call that a legacy server is to do as a task, and whether its client must not notice.
    fn as_task(
        &self,
        session: SessionKey,
        message: &Message,
        words: Era,
    ) -> (Vec<(&'static str, Bytes)>, bool) {
        let declared = self
            .attached
            .get(&session)
            .is_some_and(|attached| attached.client.capabilities.takes_tasks());
        let task = || vec![("task", Bytes::from_static(b"{}"))];
        match (self.task_support(message, words), declared) {
            (TaskSupport::Forbidden, _) | (TaskSupport::Optional, false) => (Vec::new(), false),
            (TaskSupport::Optional | TaskSupport::Required, true) => (task(), false),
            (TaskSupport::Required, false) => (task(), true),
        }
    }

    /// A modern call says itself which log lines it wants; a legacy server must be told before it begins.
    fn heed_level(&mut self, now: Moment, session: SessionKey, message: &Message, words: Era) {
        let wanted = match (words, message.raw(Member::MetaLogLevel)) {
            (Era::Modern, Some(_)) if !self.face.listens() => message.text(Member::MetaLogLevel),
            (Era::Modern | Era::Legacy, _) => None,
        };
        let Some(level) = wanted.and_then(|level| LogLevel::parse(&level)) else {
            return;
        };
        let logs = self.offers_logs();
        if let Some(level) = self.interests.request_level(session, level).filter(|_| logs) {
            let id = self.own_request(now);
            legacy::write_set_level(&mut self.outgoing, None, id, level);
        }
    }

    fn offers_logs(&self) -> bool {
        self.face.welcome().is_some_and(|welcome| welcome.logs)
    }

    /// Writes a call for the server, or does without it where the wish is one that we keep.
    fn lower(
        &mut self,
        session: SessionKey,
        request: &Request,
        message: &Message,
        words: Era,
        id: WireId,
        extra: &[(&'static str, Bytes)],
    ) -> Lowered {
        match request {
            Request::Plain => {}
            Request::Subscribe { uri } => {
                if self.interests.subscriptions(session) >= self.limits.subscriptions {
                    return Lowered::TooMuch("resource subscriptions");
                }
                if self.face.listens() && self.listens_left == 0 {
                    return Lowered::Unsupported(wishes::NO_UPDATES);
                }
                if self.interests.subscribe(session, uri) {
                    return Lowered::Done;
                }
                if self.face.listens() {
                    // The listen that follows asks for it; its acknowledgement is the answer.
                    return Lowered::Sent;
                }
            }
            Request::Unsubscribe { uri } => {
                if self.interests.unsubscribe(session, uri) || self.face.listens() {
                    self.tune();
                    return Lowered::Done;
                }
            }
            Request::Watch { task } => {
                return match self.watch_task(session, task) {
                    Watched::Unknown => Lowered::Unsupported(tasks::NO_TASK),
                    Watched::Granted => Lowered::Done,
                    Watched::Wanted if self.listens_left == 0 => Lowered::Unsupported(wishes::NO_UPDATES),
                    // As for a resource.
                    Watched::Wanted => Lowered::Sent,
                };
            }
            Request::SetLevel { .. } if self.face.listens() && !self.offers_logs() => {
                return Lowered::NoSuchMethod("the server has no log lines to choose from");
            }
            Request::SetLevel { level } => match self.interests.set_level(session, *level) {
                Some(level) if !self.face.listens() => {
                    legacy::write_set_level(&mut self.outgoing, Some(message), id, level);
                    return Lowered::Sent;
                }
                // A modern server is told with every call.
                Some(_) | None => return Lowered::Done,
            },
        }
        let Some(attached) = self.attached.get(&session) else {
            return Lowered::Done;
        };
        let line = Outgoing {
            message,
            words,
            id,
            client: &attached.client,
            level: self.interests.level(session),
            extra,
        };
        self.face.write_call(&mut self.outgoing, &line);
        Lowered::Sent
    }

    /// A call of this session is under way, and may be what the server's next question is about.
    fn count_in(&mut self, session: SessionKey, may_ask: bool) {
        if let Some(attached) = self.attached.get_mut(&session) {
            let load = &mut attached.load;
            load.in_flight += 1;
            self.busy_sessions += usize::from(load.in_flight == 1);
            if may_ask {
                load.asking += 1;
                self.asking_sessions += usize::from(load.asking == 1);
            }
        }
    }

    fn count_out(&mut self, session: SessionKey, may_ask: bool) {
        let attached = self.attached.get_mut(&session).map(|attached| &mut attached.load);
        if let Some(load) = attached.or_else(|| self.departed.get_mut(&session)) {
            load.in_flight -= 1;
            self.busy_sessions -= usize::from(load.in_flight == 0);
            if may_ask {
                load.asking -= 1;
                self.asking_sessions -= usize::from(load.asking == 0);
            }
            if load.in_flight == 0 {
                self.departed.remove(&session);
            }
        }
    }

    /// Takes a call out of the books because the server is done with it.
    fn settle(&mut self, now: Moment, id: WireId) -> Option<InFlight> {
        self.rouse(id);
        let (session, may_ask, call) = match self.pending.remove(&id)? {
            Pending::Call(call) => (call.session, call.method.may_ask(), Some(call)),
            Pending::Cancelled { session, may_ask, .. } => (session, may_ask, None),
            Pending::Handshake
            | Pending::Listen
            | Pending::Own { .. }
            | Pending::Step { .. }
            | Pending::Background { .. } => return None,
        };
        if let Some(call) = &call {
            self.detach_questions(id, call);
            self.drop_steps(call);
        }
        self.count_out(session, may_ask);
        self.resolve_held(now);
        self.admit(now);
        call
    }

    /// Tells the server that nobody wants a call's answer any more. It stays in the books until the server has
    /// answered all the same, or has had time to stop.
    fn release(
        &mut self,
        now: Moment,
        id: WireId,
        message: Option<&Message>,
        reason: &str,
    ) -> Option<InFlight> {
        self.rouse(id);
        let until = now.after(Limits::CANCEL_GRACE);
        self.abandon_task(now, id);
        let pending = self.pending.get_mut(&id)?;
        let Pending::Call(call) = pending else { return None };
        let task = call.pursuit.as_ref().map(|pursuit| pursuit.drives());
        if call.round.is_some() || task == Some(false) || (task.is_some() && self.face.listens()) {
            // The server has answered and keeps nothing: there is only the round to forget.
            self.withdraw_round(id);
            return self.settle(now, id);
        }
        let cancelled = Pending::Cancelled {
            session: call.session,
            may_ask: call.method.may_ask(),
            until,
        };
        let Pending::Call(call) = std::mem::replace(pending, cancelled) else {
            return None;
        };
        // The client's own words may be long; ours are not, so that a cancellation can always be sent.
        let words = message.filter(|message| self.has_room(message.len()));
        if task.is_none() {
            backend_face::write_cancel(&mut self.outgoing, words, id, reason);
        }
        self.drop_steps(&call);
        self.wake_by(until);
        self.detach_questions(id, &call);
        self.forsake(&call);
        if call.method.may_ask() {
            // What is held may be this call's, which will not be told from the others any more.
            self.refuse_held();
        }
        Some(call)
    }

    /// A call's questions are still the server's to have answered, but there is no call to keep alive.
    fn detach_questions(&mut self, id: WireId, call: &InFlight) {
        if call.open_questions > 0 {
            for question in self
                .questions
                .values_mut()
                .filter(|question| question.wire == Some(id))
            {
                question.wire = None;
            }
        }
    }

    /// A call ended without an answer of the server: what it was to bring about is not taken for granted.
    fn forsake(&mut self, call: &InFlight) {
        match &call.request {
            Request::Subscribe { uri } => {
                self.interests.unsubscribe(call.session, uri);
            }
            Request::SetLevel { .. } => self.interests.doubt_level(),
            Request::Plain | Request::Unsubscribe { .. } | Request::Watch { .. } => {}
        }
    }

    fn find_call(&self, session: SessionKey, call: CallKey) -> Option<WireId> {
        self.pending.iter().rev().find_map(|(id, pending)| match pending {
            Pending::Call(open) if open.session == session && open.call == call => Some(*id),
            Pending::Call(_)
            | Pending::Cancelled { .. }
            | Pending::Handshake
            | Pending::Listen
            | Pending::Own { .. }
            | Pending::Step { .. }
            | Pending::Background { .. } => None,
        })
    }

    fn cancel(&mut self, now: Moment, session: SessionKey, call: CallKey, message: Option<&Message>) {
        if let Some(at) = self
            .waiting
            .iter()
            .position(|w| w.call.session == session && w.call.call == call)
        {
            self.waiting.remove(at);
        } else if let Some(id) = self.find_call(session, call) {
            self.release(now, id, message, "the client cancelled the request");
        } else {
            return;
        }
        self.tell(Tell::Failed {
            session,
            call,
            failure: Failure::Cancelled,
        });
    }

    fn close(&mut self, now: Moment, session: SessionKey) {
        if !self.attached.contains_key(&session) {
            return;
        }
        let (gone, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.openers)
            .into_iter()
            .partition(|opener| opener.session == session);
        self.openers = kept;
        for Opener { call, .. } in gone {
            self.tell(Tell::Failed {
                session,
                call,
                failure: Failure::SessionEnded,
            });
        }
        let (gone, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| waiting.call.session == session);
        self.waiting = kept;
        for Waiting {
            call: Call { call, .. },
            ..
        } in gone
        {
            self.tell(Tell::Failed {
                session,
                call,
                failure: Failure::SessionEnded,
            });
        }
        let open: Vec<QuestionKey> = self
            .questions
            .iter()
            .filter(|(_, open)| open.session == session)
            .map(|(key, _)| *key)
            .collect();
        for question in open {
            self.refuse_question(now, question, "the client has gone");
        }
        let ids: Vec<WireId> = self
            .pending
            .iter()
            .filter(|(_, pending)| matches!(pending, Pending::Call(call) if call.session == session))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if let Some(call) = self.release(now, id, None, "the session ended") {
                self.tell(Tell::Failed {
                    session,
                    call: call.call,
                    failure: Failure::SessionEnded,
                });
            }
        }
        self.detach(session);
        let (orphans, level) = self.interests.forget(session);
        self.tasks.unwatch(session);
        self.tune();
        if self.is_ready() && !self.face.listens() {
            for uri in orphans {
                let id = self.own_request(now);
                legacy::write_subscription(&mut self.outgoing, Method::ResourcesUnsubscribe, id, &uri);
            }
            if let Some(level) = level {
                let id = self.own_request(now);
                legacy::write_set_level(&mut self.outgoing, None, id, level);
            }
        }
        self.admit(now);
    }

    fn detach(&mut self, session: SessionKey) {
        if let Some(attached) = self.attached.remove(&session)
            && attached.load.in_flight > 0
        {
            self.departed.insert(session, attached.load);
        }
        if self.last_notifier == Some(session) {
            self.last_notifier = None;
        }
    }

    fn own_request(&mut self, now: Moment) -> WireId {
        let id = self.next_wire();
        let until = now.after(self.limits.request_timeout);
        self.pending.insert(id, Pending::Own { until });
        self.wake_by(until);
        id
    }
}
