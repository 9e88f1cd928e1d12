//! Many sessions, one server: which answer is for which call, which client a question is for, and
//! which calls wait.
//!
//! [`Multiplexer`] takes [`Ask`]s of clients ([`Multiplexer::handle_ask`]), lines of the server
//! ([`Multiplexer::handle_line`]) and facts about the link (`handle_link_up` and others). It queues
//! lines for the server (`take_outbox`, `take_posts`) and gives [`Output`]s
//! ([`Multiplexer::poll_output`]). It starts nothing: when it needs a link it gives
//! [`Output::WantLink`], and its driver answers with `handle_link_*`. After every call the driver
//! takes the outputs and the outbox, and calls [`Multiplexer::handle_deadline`] at
//! [`Multiplexer::next_deadline`].
//!
//! # The machines
//!
//! Each owns its state; no other code changes it. They are lent the `Ledger` and the `Link` as
//! arguments, and return what the coordinator has to do. The coordinator is `impl Multiplexer`, in
//! files without state of their own.
//!
//! | Machine | State |
//! |---|---|
//! | `ledger` | sessions, calls that wait or are in flight, open questions, limits, ids (id mapping), what is to be sent and reported |
//! | `link` | whether the server can be reached, and how far its handshake is; it owns the face and the negotiation |
//! | `listen`, `subscriptions` | what the server is asked to notify of; which session wants which resources and log level |
//! | `tasks`, `task_polling` | which principal has which task; one task that is polled on behalf of a call |
//! | `rounds`, `roots` | questions that came by an answer; questions for roots that no call carries |
//! | `tools` | what is known of tools, and the reading of their list |
//! | `liveness` | whether a silent server still works |
//! | `attribution` with `abandoned`, `suspended`, `unattributed` | which session a question without origin is for |
//!
//! | Coordinator | What it decides |
//! |---|---|
//! | `calls`, `lowering`, `completion` | the way of a call: whether it may go, how it is written, how it ends |
//! | `incoming`, `changes`, `questions`, `task_calls` | lines of the server: answers, notifications, questions, tasks |
//! | `handover`, `restoration` | sessions that come from another instance, or from an earlier process |
//! | `lifecycle`, `http_exchanges`, `deadlines` | the link comes and goes; requests that have HTTP exchanges of their own; what took too long |
//!
//! # The rule of attribution
//!
//! Over stdio a server's question carries no origin. If exactly one session has calls in flight
//! that may ask, the question is that session's. Once a server has asked anything, such calls run
//! for one session at a time, so that the next question can be attributed. A question that comes
//! while several sessions of one principal have such calls is held until the calls of all but one
//! of them have ended, and then is that one's (`unattributed.rs`). What still cannot be attributed
//! is refused: of several principals, as many questions as sessions that may have asked, or nothing
//! decided in time. Nothing is ever guessed between principals: a call that was cancelled, timed
//! out or lost its session is its principal's until the server answers it (`abandoned.rs`), and
//! what no call can have caused is for one principal only if no other has used the link. A message
//! about a task carries the task's id and is exact (`tasks.rs`); roots that the server asks for
//! while no call is there wait for the next one (`roots.rs`). A call that waits for its client's
//! answer, which may never come, does not keep others of its principal from their turn
//! (`suspended.rs`).

mod abandoned;
mod attribution;
mod call_timer;
mod calls;
mod changes;
mod completion;
mod deadlines;
mod deferred;
mod handover;
mod http_exchanges;
mod incoming;
mod ledger;
mod lifecycle;
mod limits;
mod link;
mod listen;
mod liveness;
mod lowering;
mod open_questions;
mod outputs;
mod questions;
mod restoration;
mod roots;
mod rounds;
mod send_queue;
mod sessions;
mod state;
mod subscriptions;
mod suspended;
mod task_calls;
mod task_polling;
mod tasks;
mod tools;
mod unattributed;
mod undeclared;
mod waiting;
mod waits;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::backend_face::legacy::ClientHello;
use crate::exchange::{Ask, CallKey, Principal, SessionKey, Tell};
use crate::message::Message;
use crate::method::Method;
use crate::negotiation::EraPlan;
use crate::time::Moment;
use crate::version::{Era, LogLevelStyle, QuestionStyle};
use crate::wire::outbox::Outbox;
use attribution::Attribution;
pub use handover::{Handover, LeavingClient};
use ledger::Ledger;
pub use limits::{Counters, Limits};
pub use link::Carrier;
use link::Link;
use listen::Listen;
pub use outputs::Output;
use roots::Roots;
use sessions::SessionEntry;
use state::{Opening, Pending, PendingOpen};
use subscriptions::Subscriptions;
pub(crate) use subscriptions::is_part;
use tasks::Tasks;
use tools::Tools;
use undeclared::Undeclared;
pub use waits::Wait;

/// The machine of one instance: many sessions, one server.
#[derive(Debug)]
pub struct Multiplexer {
    ledger: Ledger,
    link: Link,
    attribution: Attribution,
    undeclared: Undeclared,
    subscriptions: Subscriptions,
    listen: Listen,
    tools: Tools,
    tasks: Tasks,
    roots: Roots,
}

impl Multiplexer {
    /// Returns a multiplexer whose server was not reached yet.
    pub fn new(limits: Limits, client_hello: ClientHello) -> Self {
        Self {
            ledger: Ledger::new(limits),
            link: Link::new(client_hello),
            attribution: Attribution::default(),
            undeclared: Undeclared::default(),
            subscriptions: Subscriptions::default(),
            listen: Listen::default(),
            tools: Tools::default(),
            tasks: Tasks::default(),
            roots: Roots::default(),
        }
    }

    /// Sets the eras that are tried in the handshake. Ignored once the handshake has begun.
    pub fn plan_eras(&mut self, plan: EraPlan) {
        self.link.plan_eras(plan);
    }

    /// Begins the handshake as soon as the server runs, and not when the first client comes.
    pub fn initialize_at_start(&mut self) {
        self.link.initialize_at_start();
    }

    /// Returns the eras that are tried in the handshake.
    pub fn eras_planned(&self) -> EraPlan {
        self.link.eras_planned()
    }

    /// Returns the era used towards the server.
    pub fn era(&self) -> Era {
        self.link.face().era()
    }

    /// Returns the limits it was made with.
    pub fn limits(&self) -> &Limits {
        &self.ledger.limits
    }

    // State, for status, sharing and tests.

    /// Returns how often each limit was reached, and what was dropped.
    pub fn counters(&self) -> Counters {
        self.ledger.counters
    }

    /// Returns the number of sessions that use this backend.
    pub fn sessions(&self) -> usize {
        self.ledger.sessions.len()
    }

    /// Returns the number of accepted calls without an answer. A modern client's call that is
    /// suspended is not counted: its request was answered with a question.
    pub fn open_calls(&self) -> usize {
        self.ledger.waiting.len() + self.ledger.pending_opens.len() + self.calls_in_flight()
    }

    /// Returns how many of them the server was not sent yet.
    pub fn waiting_calls(&self) -> usize {
        self.ledger.waiting.len()
    }

    /// Returns what a call has waited for that came then; `None` if that is not known any more.
    pub fn wait_of(&self, session: SessionKey, call: CallKey, came: Moment) -> Option<Wait> {
        self.ledger.waits.of(session, call, came)
    }

    /// Returns whether a principal should use this instance. Once the server has asked something
    /// that carries no origin, principals no longer share it: each would have to wait for the
    /// other's answers. It stays with the principal that was asked, until that one has gone and
    /// left nothing behind.
    pub fn suits(&self, principal: &Principal) -> bool {
        self.attribution.suits(principal, &self.ledger, &self.link)
    }

    /// Returns whether the server has answered the handshake or discovery.
    pub fn is_ready(&self) -> bool {
        self.link.is_ready()
    }

    /// Returns whether the server has answered a first message on this link, with a result or a
    /// refusal.
    pub fn is_answered(&self) -> bool {
        self.link.is_answered()
    }

    /// Returns whether the server is needed now: by a call, a question, a task, a subscription, or
    /// a client that waits for the handshake. A session alone does not need it.
    pub fn is_in_use(&self, now: Moment) -> bool {
        self.open_calls() > 0
            || self.ledger.calls().next().is_some()
            || self.is_initializing()
            || !self.ledger.questions.is_empty()
            || !self.subscriptions.uris().is_empty()
            || self.has_live_tasks(now)
    }

    /// Returns whether the server owes the answer to a first message.
    pub fn is_initializing(&self) -> bool {
        self.link.is_initializing()
    }

    fn calls_in_flight(&self) -> usize {
        let calls = self.ledger.calls().map(|(_, call)| call);
        calls
            .filter(|call| !call.asking.is_suspended() || call.era.questions() == QuestionStyle::Requests)
            .count()
    }

    /// Returns the number of calls and of Rialto's own requests that the server has not answered.
    #[doc(hidden)]
    pub fn unanswered_requests(&self) -> usize {
        self.ledger.count(|pending| match pending {
            Pending::Call(_) | Pending::Own { .. } | Pending::TaskPoll { .. } => true,
            Pending::Handshake(_) | Pending::Listen | Pending::Background { .. } => false,
        })
    }

    /// Calls that were abandoned and that the server has not answered, and the number of their
    /// principals.
    #[doc(hidden)]
    pub fn abandoned(&self) -> (usize, usize) {
        self.attribution.abandoned.sizes()
    }

    /// Returns the number of sessions that receive notifications about no call.
    #[doc(hidden)]
    pub fn listeners(&self) -> usize {
        self.ledger.sessions.notified().count()
    }

    /// Returns the number of Rialto's own listens.
    #[doc(hidden)]
    pub fn listens(&self) -> usize {
        self.ledger.count(|pending| matches!(pending, Pending::Listen))
    }

    /// Returns how many bytes wait to be written or are being written.
    pub fn outgoing_bytes(&self) -> usize {
        self.ledger.outgoing.queued()
    }

    /// Returns what is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.ledger.outputs.pop()
    }

    /// Returns whether bytes wait to be written.
    pub fn has_outgoing(&self) -> bool {
        self.ledger.outgoing.len() > 0
    }

    /// Exchanges the queued lines for the writer's empty outbox.
    pub fn take_outbox(&mut self, empty: Outbox) -> Outbox {
        self.ledger.outgoing.take(empty)
    }

    /// The same for a writer that wants it in one buffer.
    pub fn take_outgoing(&mut self, empty: BytesMut) -> BytesMut {
        self.take_outbox(Outbox::from(empty)).into_whole()
    }

    /// Hands over one small message to be written at once if nothing else is under way: there is
    /// nothing that it could gather with, and the writer would only come later. Nothing is to be
    /// handed to the writer before [`Multiplexer::handle_written`] or
    /// [`Multiplexer::handle_unwritten`].
    pub fn take_lone_line(&mut self) -> Option<Bytes> {
        let is_alone = self.ledger.in_flight() <= 1;
        is_alone.then(|| self.ledger.outgoing.take_lone_line())?
    }

    /// Takes back the end of a message that was not written. The writer writes it before everything
    /// else.
    pub fn handle_unwritten(&mut self, rest: Bytes) {
        self.ledger.outgoing.put_back(rest);
    }

    /// The writer has written what it took.
    pub fn handle_written(&mut self) {
        self.ledger.outgoing.handle_written();
        self.ledger.liveness.handle_written();
    }

    /// Returns when `handle_deadline` is to be called.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.ledger.outputs.next_deadline()
    }

    // From clients.

    /// Takes what a client wants.
    pub fn handle_ask(&mut self, now: Moment, ask: Ask) {
        match ask {
            Ask::Open {
                session,
                call,
                client,
                initialize,
                era,
                wants_notifications,
            } => {
                let entry = SessionEntry::new(client, era, wants_notifications);
                self.open(now, session, call, entry, initialize.as_ref());
            }
            Ask::Restore {
                session,
                call,
                client,
                initialize,
                era,
                state,
            } => {
                let entry = SessionEntry::new(client, era, true);
                self.restore(now, session, call, entry, initialize.as_ref(), state);
            }
            Ask::Ready { session, message } => {
                // Only the first notification is passed on, so a question that follows is for its
                // session.
                if self.link.confirm(Some(&message), &mut self.ledger)
                    && self.ledger.sessions.contains(session)
                {
                    self.attribution.handle_roots_notice(session);
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
                if self.ledger.questions.is_of(question, session) {
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

    /// A notification of a client. It has no response that could report a refusal, so it is dropped
    /// at a limit.
    fn notice(&mut self, session: SessionKey, message: &Message) {
        if !self.is_ready() || !self.ledger.sessions.contains(session) {
            return;
        }
        if !self.ledger.has_room(message.len()) {
            self.ledger.counters.overloads += 1;
            return;
        }
        if message.method() == Method::RootsListChanged {
            self.attribution.handle_roots_notice(session);
        }
        self.link
            .face_mut()
            .write_notice(self.ledger.outgoing.end(), message);
    }

    fn open(
        &mut self,
        now: Moment,
        session: SessionKey,
        call: CallKey,
        entry: SessionEntry,
        initialize: Option<&Message>,
    ) {
        self.attach(now, session, entry, initialize);
        if self.tell_opened_at_once(session, call) {
            self.sync_listen();
        } else {
            self.wait_for_opening(now, session, call, Opening::New);
        }
    }

    /// Reports the opening of a session whose server is ready. Returns whether it is.
    fn tell_opened_at_once(&mut self, session: SessionKey, call: CallKey) -> bool {
        let Some(server_info) = self.link.server_info().filter(|_| self.link.is_up()) else {
            return false;
        };
        let server_info = Arc::clone(server_info);
        self.ledger.tell(Tell::Opened {
            session,
            call,
            server_info,
        });
        true
    }

    fn wait_for_opening(&mut self, now: Moment, session: SessionKey, call: CallKey, opening: Opening) {
        let deadline = now.after(self.ledger.limits.start_timeout);
        self.ledger.pending_opens.push_back(PendingOpen {
            session,
            call,
            opening,
            deadline,
        });
        self.ledger.wake_by(deadline);
        self.ensure_link(now);
    }

    fn attach(
        &mut self,
        now: Moment,
        session: SessionKey,
        entry: SessionEntry,
        initialize: Option<&Message>,
    ) {
        self.attribution
            .handle_session(&entry.client.principal, &self.ledger);
        self.link.offer(&entry.client, initialize);
        if entry.era.log_levels() == LogLevelStyle::PerSession {
            self.subscriptions.attach(session);
            self.tell_level(now);
        }
        self.ledger.sessions.insert(session, entry);
    }
}
