//! The entries of the ledger: calls that wait or are in flight, and questions without an answer.

use bytes::Bytes;

use super::call_timer::CallTimer;
use super::limits::Limits;
use super::rounds::Round;
use super::task_polling::TaskPolling;
use crate::backend_face::WireId;
use crate::exchange::{Call, CallKey, Request, SessionKey};
use crate::message::Message;
use crate::method::Method;
use crate::time::Moment;
use crate::version::Era;

#[derive(Debug)]
pub(super) struct PendingOpen {
    pub(super) session: SessionKey,
    pub(super) call: CallKey,
    pub(super) opening: Opening,
    pub(super) deadline: Moment,
}

/// What a session that waits for its opening has before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// Its client has just come.
    New,
    /// It goes on: after the handshake the server receives what the client has set.
    Restored,
}

/// What happened to a call before this attempt to send it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RetryHistory {
    /// How often the server refused it for want of a session.
    pub(super) forgotten: u32,
    /// Its server has refused it because of its headers: it waits for the list of tools, and is
    /// sent once more.
    pub(super) refreshed: bool,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) call: Call,
    pub(super) deadline: Moment,
    /// Which failure follows at the deadline: a slow start is not a slow call.
    pub(super) starting: bool,
    /// When the response becomes a stream, since the call takes long.
    pub(super) stream_at: Option<Moment>,
    /// Its client was asked something that must be answered first.
    pub(super) asked_first: bool,
    /// When it is refused if another principal still keeps it from its turn.
    pub(super) occupied_until: Option<Moment>,
    pub(super) past: RetryHistory,
}

#[derive(Debug)]
pub(super) enum Pending {
    /// A call of a client. Boxed, so that entries are small.
    Call(Box<InFlight>),
    /// The first message of an era.
    Handshake(Era),
    /// Rialto's own `subscriptions/listen` for all sessions.
    Listen,
    /// A request of Rialto's own whose answer is ignored.
    Own { until: Moment },
    /// A poll of a call's task; the call's own time limit holds for it.
    TaskPoll { of: WireId },
    /// A `tasks/result` of Rialto's own: the server can ask questions while it is open.
    Background { task: String },
}

impl Pending {
    /// Returns the call of a client, if it is one.
    pub(super) fn as_call(&self) -> Option<&InFlight> {
        match self {
            Self::Call(call) => Some(call),
            Self::Handshake(_)
            | Self::Listen
            | Self::Own { .. }
            | Self::TaskPoll { .. }
            | Self::Background { .. } => None,
        }
    }

    pub(super) fn as_call_mut(&mut self) -> Option<&mut InFlight> {
        match self {
            Self::Call(call) => Some(call),
            Self::Handshake(_)
            | Self::Listen
            | Self::Own { .. }
            | Self::TaskPoll { .. }
            | Self::Background { .. } => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) session: SessionKey,
    pub(super) call: CallKey,
    pub(super) request: Request,
    /// The client's message, for as long as it may be sent again in a further round.
    pub(super) message: Message,
    pub(super) era: Era,
    pub(super) doing: Doing,
    /// How often the server has asked by an answer.
    pub(super) rounds: u32,
    /// The server runs it only as a task, and its client does not know tasks: Rialto polls the
    /// task and answers the call.
    pub(super) hides_task: bool,
    pub(super) past: RetryHistory,
    /// The client's progress token, to be put back into progress notifications.
    pub(super) token: Option<Bytes>,
    pub(super) timer: CallTimer,
    pub(super) asking: Asking,
}

/// The questions of a call that its client has not answered. The call's clock stands still
/// meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asking {
    Nothing,
    /// At least one is open. The call is suspended at this moment, if the server asks nothing more
    /// by then.
    Open {
        questions: u32,
        suspend_at: Option<Moment>,
    },
    /// The call is not counted among its session's: it waits for a client that may never answer.
    Suspended {
        questions: u32,
    },
}

impl Asking {
    /// Returns how many questions are open.
    pub(super) const fn questions(self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Open { questions, .. } | Self::Suspended { questions } => questions,
        }
    }

    pub(super) const fn is_suspended(self) -> bool {
        matches!(self, Self::Suspended { .. })
    }

    /// Returns when the call is to be suspended.
    pub(super) const fn next_deadline(self) -> Option<Moment> {
        match self {
            Self::Open { suspend_at, .. } => suspend_at,
            Self::Nothing | Self::Suspended { .. } => None,
        }
    }

    /// Counts a question that is put to the client.
    pub(super) const fn open(&mut self) {
        match self {
            Self::Nothing => {
                *self = Self::Open {
                    questions: 1,
                    suspend_at: None,
                }
            }
            Self::Open { questions, .. } | Self::Suspended { questions } => *questions += 1,
        }
    }

    /// Counts a question that is answered or withdrawn. Returns whether it was the last.
    pub(super) const fn close(&mut self) -> bool {
        match self {
            Self::Nothing => false,
            Self::Open { questions, .. } | Self::Suspended { questions } => {
                *questions -= 1;
                *questions == 0
            }
        }
    }

    /// Has the call suspended at this moment. Returns whether it was not suspended already.
    pub(super) const fn suspend_at(&mut self, at: Moment) -> bool {
        match self {
            Self::Open { suspend_at, .. } => {
                *suspend_at = Some(at);
                true
            }
            Self::Nothing | Self::Suspended { .. } => false,
        }
    }

    pub(super) const fn suspend(&mut self) {
        *self = Self::Suspended {
            questions: self.questions(),
        };
    }

    /// Lets the call go on. Returns whether it was suspended.
    pub(super) const fn resume(&mut self) -> bool {
        let was_suspended = self.is_suspended();
        *self = match self.questions() {
            0 => Self::Nothing,
            questions => Self::Open {
                questions,
                suspend_at: None,
            },
        };
        was_suspended
    }
}

/// What a call is doing, which is what it waits for.
#[derive(Debug)]
pub(super) enum Doing {
    /// The server's answer.
    Working,
    /// The acknowledgement of a listen. The server was sent no request for this call.
    Listening,
    /// The client's answers, or the end of a pause. The server has answered `input_required`.
    Round(Round),
    /// The end of a task. The server has answered with the task.
    Polled(Box<TaskPolling>),
}

impl Doing {
    pub(super) const fn is_working(&self) -> bool {
        matches!(self, Self::Working)
    }

    pub(super) fn polling(&self) -> Option<&TaskPolling> {
        match self {
            Self::Polled(polling) => Some(polling),
            Self::Working | Self::Listening | Self::Round(_) => None,
        }
    }

    pub(super) fn polling_mut(&mut self) -> Option<&mut TaskPolling> {
        match self {
            Self::Polled(polling) => Some(polling),
            Self::Working | Self::Listening | Self::Round(_) => None,
        }
    }

    pub(super) fn round_mut(&mut self) -> Option<&mut Round> {
        match self {
            Self::Round(round) => Some(round),
            Self::Working | Self::Listening | Self::Polled(_) => None,
        }
    }
}

impl InFlight {
    pub(super) fn method(&self) -> Method {
        self.message.method()
    }

    /// Returns the call as its client made it. Its headers were checked when it was first sent.
    pub(super) fn into_call(self) -> Call {
        Call {
            session: self.session,
            call: self.call,
            request: self.request,
            message: self.message,
            era: self.era,
            mirrored: None,
            reads_events: self.timer.reads_events(),
        }
    }

    /// The server has sent something about this call: its time starts anew, unless a question has
    /// stopped it.
    pub(super) fn note_activity(&mut self, now: Moment, limits: &Limits) {
        if self.asking.questions() == 0 {
            self.timer.extend(now, limits);
        }
    }
}

#[derive(Debug)]
pub(super) struct OpenQuestion {
    pub(super) session: SessionKey,
    /// The call that carries it.
    pub(super) wire: Option<WireId>,
    pub(super) origin: QuestionOrigin,
    pub(super) method: Method,
    pub(super) asked: Moment,
    pub(super) deadline: Moment,
}

/// What caused a question, and receives its answer.
#[derive(Debug)]
pub(super) enum QuestionOrigin {
    /// The server, which gave it this raw id.
    Server(Bytes),
    /// A round of the call, in which it has this key.
    Round(String),
    /// The task of the call, which gave it this key.
    Task(String),
}
