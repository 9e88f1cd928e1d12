//! The link to the server: whether it is up, and how far its handshake is.
//!
//! The states, each with the facts that lead on:
//!
//! ```text
//! Absent ──up──▶ Up ──first message sent──▶ initializing ─answered─▶ ready
//!   ▲            │ down, out of reach            │ every era refused    │ forgotten by the server
//!   └────────────┴───────────────────────────────┴──────────────────────┘
//! OutOfReach   as Absent, with the reason: calls wait, and fail with it if they wait too long
//! Unavailable  the server cannot be started now: calls were refused, the next one asks for a start
//! ```
//!
//! The era of the handshake is decided by [`crate::negotiation`]; the [`Face`] writes its messages.

use std::sync::Arc;

use crate::backend_face::legacy::{self, ClientHello};
use crate::backend_face::{Face, WireId, write_cancel};
use crate::delivery::LONGEST_PAUSE;
use crate::error_code;
use crate::exchange::{BackendError, Client, Failure, ServerInfo};
use crate::message::Message;
use crate::negotiation::{AfterRefusal, EraPlan, HandshakeRefusal, Negotiation, ShownEras};
use crate::time::Moment;
use crate::version::Era;

use super::ledger::Ledger;
use super::limits::Limits;
use super::state::Pending;

/// How messages travel to the server and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Carrier {
    /// One stream each way: what the server sends carries no origin, and if it ends everything
    /// ends.
    #[default]
    Pipe,
    /// A POST for each message.
    Posts,
}

#[derive(Debug)]
enum LinkState {
    /// There is none; one has been asked for if a client waits.
    Absent,
    /// A remote server cannot be reached until it is tried again, for this reason.
    OutOfReach(Arc<BackendError>),
    Up,
}

/// The link.
#[derive(Debug)]
pub(super) struct Link {
    state: LinkState,
    carrier: Carrier,
    face: Face,
    negotiation: Negotiation,
    /// The error for clients whose wait for a starting server times out.
    start_report: Option<Arc<BackendError>>,
    /// The handshake is begun as soon as the server runs, and not when the first client comes.
    initializes_at_start: bool,
    /// A handshake has succeeded before: on an earlier link, in a session that the server forgot,
    /// or on another instance that sessions come from.
    opened_before: bool,
    /// The server is taken out of service: no call waits for it any more.
    retired: bool,
}

/// What follows from the answer to a first message.
#[derive(Debug)]
pub(super) enum HandshakeOutcome {
    /// The handshake succeeded. `again`: one did before, and its sessions may live on.
    Opened {
        server_info: Arc<ServerInfo>,
        shown: ShownEras,
        again: bool,
    },
    /// Another first message may be due.
    GoOn,
    /// Every era of the plan was refused.
    Refused {
        era: Era,
        refusal: HandshakeRefusal,
        shown: ShownEras,
    },
}

impl Link {
    pub(super) fn new(client_hello: ClientHello) -> Self {
        let plan = EraPlan::default();
        Self {
            state: LinkState::Absent,
            carrier: Carrier::default(),
            face: Face::new(plan.first(), client_hello),
            negotiation: Negotiation::new(plan),
            start_report: None,
            initializes_at_start: false,
            opened_before: false,
            retired: false,
        }
    }

    // Settings.

    /// Sets the eras that are tried in the handshake. Ignored once the handshake has begun.
    pub(super) fn plan_eras(&mut self, plan: EraPlan) {
        if self.face.server_info().is_none() && !self.negotiation.is_open() {
            self.negotiation.set_plan(plan);
            self.face.set_era(plan.first());
        }
    }

    pub(super) fn eras_planned(&self) -> EraPlan {
        self.negotiation.plan()
    }

    pub(super) fn initialize_at_start(&mut self) {
        self.initializes_at_start = true;
    }

    pub(super) fn initializes_at_start(&self) -> bool {
        self.initializes_at_start
    }

    /// Takes note that sessions come from another instance: after the next handshake their state is
    /// replayed.
    pub(super) fn expect_sessions(&mut self) {
        self.opened_before = true;
    }

    pub(super) fn describe_start(&mut self, report: Arc<BackendError>) {
        self.start_report = Some(report);
    }

    pub(super) const fn set_carrier(&mut self, carrier: Carrier) {
        self.carrier = carrier;
    }

    // What it is now.

    pub(super) const fn carrier(&self) -> Carrier {
        self.carrier
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up)
    }

    /// Returns whether the handshake has succeeded and the server can be sent calls.
    pub(super) fn is_ready(&self) -> bool {
        self.is_up() && self.face.server_info().is_some()
    }

    /// Returns whether the server has answered a first message on this link, with a result or a
    /// refusal.
    pub(super) fn is_answered(&self) -> bool {
        self.is_up() && self.negotiation.is_answered()
    }

    /// Returns whether the server owes the answer to a first message.
    pub(super) fn is_initializing(&self) -> bool {
        self.negotiation.is_open()
    }

    pub(super) const fn is_retired(&self) -> bool {
        self.retired
    }

    pub(super) const fn face(&self) -> &Face {
        &self.face
    }

    pub(super) const fn face_mut(&mut self) -> &mut Face {
        &mut self.face
    }

    pub(super) fn server_info(&self) -> Option<&Arc<ServerInfo>> {
        self.face.server_info()
    }

    pub(super) fn offers_tasks(&self) -> bool {
        self.server_info().is_some_and(|server_info| server_info.tasks)
    }

    pub(super) fn offers_logs(&self) -> bool {
        self.server_info().is_some_and(|server_info| server_info.logs)
    }

    /// Returns why calls have failed that waited for the server for too long.
    pub(super) fn wait_failure(&self, limits: &Limits) -> Failure {
        match &self.state {
            LinkState::OutOfReach(backend_error) => Failure::Unavailable {
                backend_error: Arc::clone(backend_error),
                retry_after: LONGEST_PAUSE,
            },
            LinkState::Absent | LinkState::Up => Failure::StartTimeout {
                limit: limits.start_timeout,
                backend_error: self.start_report.clone(),
            },
        }
    }

    // Facts about the server.

    pub(super) fn handle_up(&mut self) {
        self.state = LinkState::Up;
        self.start_report = None;
    }

    /// The server has ended. Returns whether it may have ended because of `server/discover`.
    pub(super) fn handle_down(&mut self) -> bool {
        let was_up = self.is_up();
        let ended_at_discover = self.negotiation.handle_link_end() && was_up;
        if !matches!(self.state, LinkState::OutOfReach(_)) {
            self.state = LinkState::Absent;
        }
        self.face.reset();
        ended_at_discover
    }

    /// The server cannot be reached at the moment. What it received stays valid.
    pub(super) fn handle_out_of_reach(&mut self, backend_error: Option<Arc<BackendError>>) {
        self.state = backend_error.map_or(LinkState::Absent, LinkState::OutOfReach);
    }

    /// The server could not be started, or was reached and definitely refuses.
    pub(super) fn handle_no_server(&mut self) {
        self.state = LinkState::Absent;
    }

    pub(super) fn retire(&mut self) {
        self.retired = true;
    }

    // Small messages to the server.

    /// Refuses a request of the server. There is always room for it: a request that came when there
    /// was none was not taken at all, and the number of those taken is limited.
    pub(super) fn refuse(&self, id: &[u8], code: i32, text: &str, ledger: &mut Ledger) {
        self.face.write_refusal(ledger.outgoing.end(), id, code, text);
        ledger.note_work();
    }

    /// Refuses a question that was put to no client.
    pub(super) fn refuse_unasked(&self, id: &[u8], code: i32, why: &str, ledger: &mut Ledger) {
        ledger.counters.questions_refused += 1;
        self.refuse(id, code, why, ledger);
    }

    /// Writes a client's answer to the server's question.
    pub(super) fn write_answer(&self, answer: &Message, id: &[u8], ledger: &mut Ledger) {
        if ledger.has_room(answer.len()) {
            legacy::write_answer(ledger.outgoing.end(), answer, id);
            ledger.note_work();
        } else {
            ledger.counters.overloads += 1;
            let why = "too many bytes wait to be read";
            self.refuse(id, error_code::INTERNAL_ERROR, why, ledger);
        }
    }

    /// No client waits for the answer to a request of Rialto's own any more. Over POSTs a task
    /// still carries it, and would for as long as the server likes.
    pub(super) fn call_off(&self, id: WireId, ledger: &mut Ledger) {
        let is_ours = matches!(
            ledger.pending(id),
            Some(Pending::Own { .. } | Pending::TaskPoll { .. })
        );
        if self.carrier == Carrier::Posts && is_ours {
            write_cancel(ledger.outgoing.end(), None, id, "no client waits for it any more");
        }
    }

    // The handshake.

    /// Keeps a client's `initialize` for the handshake, if it is the first.
    pub(super) fn offer(&mut self, client: &Client, initialize: Option<&Message>) {
        self.face.offer(client, initialize);
    }

    /// Sends the first messages that are due. Returns whether there were any.
    pub(super) fn negotiate(&mut self, now: Moment, ledger: &mut Ledger) -> bool {
        let mut sent = false;
        while let Some(era) = self.negotiation.due(now) {
            if !self.face.can_begin(era) {
                self.negotiation.handle_no_client();
                break;
            }
            let id = ledger.next_wire();
            self.face.begin(era, id, ledger.outgoing.end());
            ledger.enter(id, Pending::Handshake(era));
            self.negotiation.handle_sent(now, era);
            sent = true;
        }
        if let Some(at) = self.negotiation.next_deadline().filter(|at| *at > now) {
            ledger.wake_by(at);
        }
        sent
    }

    /// The server has answered the first message of an era.
    pub(super) fn handle_first_answer(&mut self, era: Era, message: Message) -> HandshakeOutcome {
        match self.face.handle_answer(era, message) {
            Ok(server_info) => HandshakeOutcome::Opened {
                server_info,
                shown: self.negotiation.handle_success(era),
                again: std::mem::replace(&mut self.opened_before, true),
            },
            Err(refusal) => self.handle_refusal(era, HandshakeRefusal::Answer(refusal)),
        }
    }

    /// The server has refused this era.
    pub(super) fn handle_refusal(&mut self, era: Era, refusal: HandshakeRefusal) -> HandshakeOutcome {
        match self.negotiation.handle_refusal(era, refusal) {
            AfterRefusal::GoOn => HandshakeOutcome::GoOn,
            AfterRefusal::GiveUp { era, refusal, shown } => HandshakeOutcome::Refused { era, refusal, shown },
        }
    }

    /// The first message of an era will have no answer. The face may send it once more.
    pub(super) fn forget_first_message(&mut self, era: Era) {
        self.face.abandon(era);
    }

    /// The first message of an era did not reach the server, or has no answer. Returns whether
    /// another one is still under way.
    pub(super) fn handle_unsent(&mut self, era: Era) -> bool {
        self.negotiation.handle_unsent(era);
        self.negotiation.is_open()
    }

    /// The server has forgotten its session: the handshake is made once more.
    pub(super) fn handle_session_lost(&mut self) {
        self.face.reset();
        self.negotiation.restart();
    }

    /// The next client sends its own `initialize`, since every session of the last one has gone.
    pub(super) fn forget_initialize(&mut self) {
        self.face.forget_initialize();
    }

    /// Sends `notifications/initialized` if the server still waits for it. Returns whether it was
    /// sent.
    pub(super) fn confirm(&mut self, notification: Option<&Message>, ledger: &mut Ledger) -> bool {
        self.face.confirm(notification, ledger.outgoing.end())
    }
}
