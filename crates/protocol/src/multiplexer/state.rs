//! What is written down: sessions, calls on their way and in flight, and questions without an answer.

use std::sync::Arc;

use bytes::Bytes;

use super::limits::Limits;
use super::rounds::Round;
use super::task_polling::TaskPolling;
use crate::backend_face::WireId;
use crate::exchange::{Call, CallKey, Client, Principal, Request, SessionKey};
use crate::message::Message;
use crate::method::Method;
use crate::time::Moment;
use crate::version::Era;

#[derive(Debug)]
pub(super) struct SessionEntry {
    pub(super) client: Arc<Client>,
    pub(super) words: Era,
    /// Wants to know what is not about its calls.
    pub(super) hears: bool,
    pub(super) load: Load,
}

/// What the server is working on for a session.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    pub(super) in_flight: u32,
    /// Those of them that may ask something.
    pub(super) asking: u32,
}

/// The principals that have used a link. What the server sends outside any call may be about what any of them did.
#[derive(Debug, Default)]
pub(super) enum Users {
    #[default]
    Nobody,
    One(Principal),
    Several,
}

impl Users {
    pub(super) fn add(&mut self, principal: &Principal) {
        match self {
            Self::Nobody => *self = Self::One(principal.clone()),
            Self::One(only) if only == principal => {}
            Self::One(_) => *self = Self::Several,
            Self::Several => {}
        }
    }

    pub(super) fn is_only(&self, principal: &Principal) -> bool {
        matches!(self, Self::One(only) if only == principal)
    }
}

#[derive(Debug)]
pub(super) struct PendingOpen {
    pub(super) session: SessionKey,
    pub(super) call: CallKey,
    pub(super) deadline: Moment,
}

/// What has become of a call before it is sent, or sent again.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Past {
    /// How often the server refused it for want of a session.
    pub(super) forgotten: u32,
    /// Its server has refused it because of its headers: it waits for the list of tools, and is sent once more.
    pub(super) refreshed: bool,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) call: Call,
    pub(super) deadline: Moment,
    /// What to say if it is reached: a slow start is not a slow call.
    pub(super) starting: bool,
    /// When to tell the client that it takes long.
    pub(super) patience: Option<Moment>,
    /// Its client was asked something that must be answered first.
    pub(super) asked_first: bool,
    /// When it is refused if another principal still keeps it from its turn.
    pub(super) occupied_until: Option<Moment>,
    pub(super) past: Past,
}

#[derive(Debug)]
pub(super) enum Pending {
    /// Boxed: it is looked up and put away more often than it is made.
    Call(Box<InFlight>),
    /// The first message of an era.
    Handshake(Era),
    /// Our own listening for what sessions want to hear (modern era).
    Listen,
    /// A request of our own; its answer interests nobody.
    Own { until: Moment },
    /// A step in the pursuit of a call's task; the call's own time limit holds for it.
    Step { of: WireId },
    /// Our waiting for the outcome of a task, so that its server can ask.
    Background { task: String },
}

impl Pending {
    /// The call that somebody waits for, if it is one.
    pub(super) fn as_call(&self) -> Option<&InFlight> {
        match self {
            Self::Call(call) => Some(call),
            Self::Handshake(_)
            | Self::Listen
            | Self::Own { .. }
            | Self::Step { .. }
            | Self::Background { .. } => None,
        }
    }

    pub(super) fn as_call_mut(&mut self) -> Option<&mut InFlight> {
        match self {
            Self::Call(call) => Some(call),
            Self::Handshake(_)
            | Self::Listen
            | Self::Own { .. }
            | Self::Step { .. }
            | Self::Background { .. } => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) session: SessionKey,
    pub(super) call: CallKey,
    pub(super) method: Method,
    pub(super) request: Request,
    /// What the client wrote, for as long as it may have to be said again in a further round.
    pub(super) message: Message,
    pub(super) words: Era,
    /// The client reads events while it waits: this decides which time limit holds.
    pub(super) reads_events: bool,
    pub(super) doing: Doing,
    /// How often the server has asked by an answer.
    pub(super) rounds: u32,
    /// The server does it only as a task, and its client knows nothing of such.
    pub(super) drives: bool,
    pub(super) past: Past,
    /// The client's progress token, to be put back into progress notifications.
    pub(super) token: Option<Bytes>,
    pub(super) deadline: Moment,
    /// The last moment that progress can move the deadline to.
    pub(super) horizon: Moment,
    pub(super) patience: Option<Moment>,
    /// Questions the client has not answered yet; the clock stands still meanwhile.
    pub(super) open_questions: u32,
    /// When the call will rest, if the server asks nothing more by then.
    pub(super) rest_at: Option<Moment>,
    /// Not counted among its session's calls: it waits for a client that may never answer.
    pub(super) resting: bool,
}

/// Who has the next step to take in a call.
#[derive(Debug)]
pub(super) enum Doing {
    /// The server: it has not answered.
    Working,
    /// The client, or a pause: the server has answered `input_required`.
    Round(Round),
    /// The task that the server has answered with.
    Polled(Box<TaskPolling>),
}

impl Doing {
    pub(super) const fn is_working(&self) -> bool {
        matches!(self, Self::Working)
    }

    pub(super) fn polling(&self) -> Option<&TaskPolling> {
        match self {
            Self::Polled(polling) => Some(polling),
            Self::Working | Self::Round(_) => None,
        }
    }

    pub(super) fn polling_mut(&mut self) -> Option<&mut TaskPolling> {
        match self {
            Self::Polled(polling) => Some(polling),
            Self::Working | Self::Round(_) => None,
        }
    }

    pub(super) fn round_mut(&mut self) -> Option<&mut Round> {
        match self {
            Self::Round(round) => Some(round),
            Self::Working | Self::Polled(_) => None,
        }
    }
}

impl InFlight {
    /// Returns the call as its client made it. Its headers were checked when it was first sent.
    pub(super) fn into_call(self) -> Call {
        Call {
            session: self.session,
            call: self.call,
            request: self.request,
            message: self.message,
            words: self.words,
            mirrored: None,
            reads_events: self.reads_events,
        }
    }

    /// The server has sent something about this call: its time starts anew, unless a question has stopped it.
    pub(super) fn note_sign_of_life(&mut self, now: Moment, limits: &Limits) {
        if self.open_questions == 0 {
            self.deadline = now
                .after(limits.call_timeout(self.reads_events))
                .min(self.horizon);
        }
    }
}

#[derive(Debug)]
pub(super) struct OpenQuestion {
    pub(super) session: SessionKey,
    /// The call that carries it.
    pub(super) wire: Option<WireId>,
    pub(super) asker: Asker,
    pub(super) method: Method,
    pub(super) deadline: Moment,
}

/// Who waits for the answer to a question.
#[derive(Debug)]
pub(super) enum Asker {
    /// The server, which gave it this raw id.
    Server(Bytes),
    /// A round of the call, in which it has this key.
    Round(String),
    /// The task of the call, which gave it this key.
    Task(String),
}
