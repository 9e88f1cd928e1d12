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
//! that may have asked, or nothing decided in time. Nothing is ever guessed between principals: a call that was cancelled,
//! timed out or lost its session is its principal's until the server answers it (see `abandoned.rs`), and what no call
//! can have caused is for one principal only if no other has used the link.
//! What a server says because of a task carries the task's id and is exact (see `tasks.rs`); roots that it asks for while no
//! call is there wait for the next one (see `roots.rs`).
//! A call that waits for its client's answer, which may never come, does not keep others of its principal from their turn
//! (see `resting.rs`).

mod abandoned;
mod arrivals;
mod attribution;
mod book;
mod calls;
mod deadlines;
mod endings;
mod held;
mod interests;
mod limits;
mod link;
mod lowering;
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

use bytes::{Buf as _, Bytes, BytesMut};

use crate::backend_face::legacy::{self, Introduction};
use crate::backend_face::modern;
use crate::backend_face::{self, Arrival, Face, Outgoing, WireId};
use crate::delivery::Known;
use crate::error_code;
use crate::exchange::{
    Ask, Call, CallKey, Client, Failure, Principal, QuestionKey, Request, SessionKey, Tell, Trouble, Upstream,
};
use crate::message::{Kind, Member, Message, ScanError};
use crate::method::{LogLevel, Method};
use crate::negotiation::{AfterRefusal, EraPlan, Negotiation, Refusal, ShownEras};
use crate::time::{Moment, earliest};
use crate::tool_policy::ToolPolicy;
use crate::tool_schema::TaskSupport;
use crate::version::Era;
use crate::wire::line::{EnvelopeSeeker, Unfinished};
use crate::wire::outbox::Outbox;
use abandoned::{Abandoned, Matter};
use book::{Asker, Attached, InFlight, Link, Load, OpenQuestion, Opener, Past, Pending, Users, Waiting};
use held::Held;
use interests::Interests;
pub(crate) use interests::is_part;
pub use limits::{Counters, Limits};
use lowering::Lowered;
pub use posts::Carrier;
use pursuit::Pursuit;
use resting::Returning;
use roots::Roots;
use rounds::Round;
use tasks::{Tasks, Watched};
use tools::Tools;
use vigil::{Owed, Vigil};

/// What the machine wants done.
#[derive(Debug)]
pub enum Output {
    Tell(Tell),
    /// Someone waits for the server: start it, or say that it cannot be had.
    WantLink,
    /// The server gives no sign of life, or nothing more that could be used: end it and start another.
    Replace {
        why: &'static str,
    },
    /// The server has shown which eras it speaks.
    Shown(ShownEras),
    /// The server wrote something that is no message. For the log.
    Noise {
        line: Bytes,
        error: ScanError,
    },
}

/// Why a question is refused that could be several sessions'.
const UNATTRIBUTABLE: &str =
    "cannot tell which of several sessions this request is for; set `process: per_session` for this server";

/// The same if it could be several principals'.
const UNATTRIBUTABLE_CALLER: &str =
    "cannot tell which of several callers this request is for; set `process: per_identity` for this server";

/// The longest message that is written without the writer: what a pipe takes whole or not at all (POSIX, `PIPE_BUF`).
const WRITTEN_THROUGH: usize = 4096;

/// The machine.
#[derive(Debug)]
pub struct Multiplexer {
    limits: Limits,
    carrier: Carrier,
    link: Link,
    /// Why a server that is reached by POSTs cannot be, until it is tried again.
    outage: Option<Arc<Trouble>>,
    /// What a server that is not ready yet does.
    start_report: Option<Arc<Trouble>>,
    /// Which of the server's tools its clients see.
    policy: Arc<ToolPolicy>,
    face: Face,
    negotiation: Negotiation,
    /// The server is introduced to as soon as it runs, and not when the first client comes.
    introduces_at_start: bool,
    /// A listen was refused or ended too often: this server is not asked again.
    listens_left: u32,
    /// A listen was lost: something may have been missed until the next one is acknowledged.
    missed: bool,
    /// A server answered the handshake on an earlier link.
    welcomed_before: bool,
    /// Nobody is to wait for the server any more.
    retired: bool,
    attached: BTreeMap<SessionKey, Attached>,
    /// Calls that no client waits for any more and that the server has not answered.
    abandoned: Abandoned,
    /// The principals that have used this link.
    users: Users,
    /// How many sessions have calls in flight, and calls in flight that may ask.
    busy_sessions: usize,
    asking_sessions: usize,
    openers: VecDeque<Opener>,
    waiting: VecDeque<Waiting>,
    /// How many calls rest.
    resting_calls: usize,
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
    /// The principal whose the instance is since then.
    owner: Option<Principal>,
    /// Who last told the server something about roots; a question for roots outside any call is theirs.
    last_notifier: Option<SessionKey>,
    next_wire: u64,
    next_question: u64,
    outgoing: Outbox,
    /// Lines among them whose sender need not read them again.
    known_lines: Vec<Known>,
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
            start_report: None,
            policy: Arc::default(),
            face: Face::new(Era::Legacy, introduction),
            negotiation: Negotiation::new(EraPlan::Only(Era::Legacy)),
            introduces_at_start: false,
            listens_left: wishes::LISTENS,
            missed: false,
            welcomed_before: false,
            retired: false,
            attached: BTreeMap::new(),
            abandoned: Abandoned::default(),
            users: Users::default(),
            busy_sessions: 0,
            asking_sessions: 0,
            openers: VecDeque::new(),
            waiting: VecDeque::new(),
            resting_calls: 0,
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
            owner: None,
            last_notifier: None,
            next_wire: 1,
            next_question: 1,
            outgoing: Outbox::default(),
            known_lines: Vec::new(),
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

    /// Sets the eras that the server is introduced to in. Ignored once the introduction has begun.
    pub fn plan_eras(&mut self, plan: EraPlan) {
        if self.face.welcome().is_none() && !self.negotiation.is_open() {
            self.negotiation.set_plan(plan);
            self.face.set_era(plan.first());
        }
    }

    /// Has the server introduced to as soon as it runs, and not when the first client comes.
    pub fn introduce_at_start(&mut self) {
        self.introduces_at_start = true;
    }

    /// Returns the eras that the server is introduced to in.
    pub fn eras_planned(&self) -> EraPlan {
        self.negotiation.plan()
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

    /// Calls that were accepted and have no answer yet. A modern client's call that rests has been answered, with a
    /// question.
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

    /// Returns whether a principal should use this instance. Once the server has asked something that carries no origin,
    /// principals no longer share it: each would have to wait for the other's answers. It stays with the principal that
    /// was asked, until that one has gone and left nothing behind.
    pub fn suits(&self, principal: &Principal) -> bool {
        !self.inquisitive
            || self.carrier == Carrier::Posts
            || self.owner.as_ref().is_none_or(|owner| owner == principal)
            || (self.attached.is_empty() && self.abandoned.is_empty())
    }

    pub fn is_ready(&self) -> bool {
        matches!(self.link, Link::Up) && self.face.welcome().is_some()
    }

    /// Returns whether the server has answered a first message on this link, with a welcome or a refusal.
    pub fn is_answered(&self) -> bool {
        matches!(self.link, Link::Up) && self.negotiation.is_answered()
    }

    /// Returns whether the server owes the answer to a first message.
    pub fn is_introducing(&self) -> bool {
        self.negotiation.is_open()
    }

    fn calls_in_flight(&self) -> usize {
        self.pending
            .values()
            .filter_map(Pending::as_call)
            .filter(|call| !call.resting || call.words == Era::Legacy)
            .count()
    }

    /// Calls and requests of our own that are still in the books.
    #[doc(hidden)]
    pub fn unsettled(&self) -> usize {
        let requests = self.pending.values().filter(|pending| {
            !matches!(
                pending,
                Pending::Handshake | Pending::Listen | Pending::Background { .. }
            )
        });
        requests.count()
    }

    /// Calls that were given up and that the server has not answered, and the principals who have such.
    #[doc(hidden)]
    pub fn abandoned(&self) -> (usize, usize) {
        self.abandoned.sizes()
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

    /// Hands everything that waits to be written to the writer, who gives back its empty outbox.
    pub fn take_outbox(&mut self, empty: Outbox) -> Outbox {
        self.known_lines.clear();
        self.being_written = self.outgoing.len();
        std::mem::replace(&mut self.outgoing, empty)
    }

    /// The same for a writer that wants it in one buffer.
    pub fn take_outgoing(&mut self, empty: BytesMut) -> BytesMut {
        self.take_outbox(Outbox::from(empty)).into_whole()
    }

    /// Has one small message written at once if nothing else is under way: there is nothing that it could gather with, and
    /// the writer would only come later. `write` says how much it has written; the writer does the rest.
    pub fn write_through(&mut self, write: impl FnOnce(&[u8]) -> usize) {
        let is_alone = self.pending.len() <= 1 && self.being_written == 0;
        let is_small = (1..=WRITTEN_THROUGH).contains(&self.outgoing.len());
        if !is_alone || !is_small {
            return;
        }
        let written = write(self.outgoing.chunk());
        match written == self.outgoing.len() {
            true => self.outgoing.clear(),
            false => self.outgoing.advance(written),
        }
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
                if self.face.confirm(Some(&message), self.outgoing.end())
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
        self.face.write_notice(self.outgoing.end(), message);
    }

    fn open(
        &mut self,
        now: Moment,
        session: SessionKey,
        call: CallKey,
        attached: Attached,
        introduction: Option<&Message>,
    ) {
        let principal = &attached.client.principal;
        self.users.add(principal);
        if self.inquisitive && self.attached.is_empty() {
            self.owner = Some(principal.clone());
        }
        self.face.offer(&attached.client, introduction);
        if attached.words == Era::Legacy {
            self.interests.attach(session);
            self.tell_level(now);
        }
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
            Link::Up => self.negotiate(now),
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
