//! Ask and Tell: the messages between clients and backends, the same for every era.
//!
//! A client face translates its client's message to an [`Ask`] ("lifts" it). The multiplexer passes
//! the ask to a backend face, which translates it to a message for its server ("lowers" it).
//! [`Tell`]s go the other way. Neither face needs to know the other's era.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::capability::Capabilities;
use crate::message::{Member, Message, ScanError};
use crate::method::{LogLevel, Method};
use crate::object::Object;
use crate::version::{Era, Version};
use crate::wire::header::MirroredParams;

/// The key of a user of an instance: a session, or a modern request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub u64);

/// The key of a client's request. Unique within its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallKey(pub u64);

/// The key of a server's request to a client. Unique within its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuestionKey(pub u64);

/// The authenticated caller. Nothing of one principal ever reaches another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// Returns the principal of all callers, where none is authenticated.
    pub fn anonymous() -> Self {
        Self(ANONYMOUS.into())
    }

    /// Returns the principal of this name.
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is the principal of callers that are not authenticated.
    pub fn is_anonymous(&self) -> bool {
        &*self.0 == ANONYMOUS
    }
}

const ANONYMOUS: &str = "anonymous";

/// A client: its principal and its capabilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// The authenticated caller.
    pub principal: Principal,
    /// What it declared that it can do.
    pub capabilities: Capabilities,
    /// The same as its client declared it: raw JSON, for servers that receive it with every
    /// request.
    pub declared: Bytes,
    /// The client's `clientInfo`, raw JSON, if it sent one.
    pub info: Option<Bytes>,
}

impl Client {
    /// Returns a client as it declares itself: raw capabilities and raw name, as far as it gave
    /// them.
    pub fn declaring(principal: Principal, declared: Option<Bytes>, info: Option<Bytes>) -> Self {
        Self {
            principal,
            capabilities: Capabilities::parse(declared.as_deref()),
            declared: declared.unwrap_or(Bytes::from_static(b"{}")),
            // A server would refuse a `clientInfo` that is no object, and with it every client that
            // shares the handshake.
            info: info.filter(|info| info.starts_with(b"{")),
        }
    }
}

/// What a client has set in its session since the handshake. A server that takes the place of
/// another receives it again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionState {
    /// The level of `logging/setLevel`, if the client chose one.
    pub log_level: Option<LogLevel>,
    /// The resources that it is subscribed to.
    pub subscriptions: Vec<String>,
}

/// What a client wants.
#[derive(Debug, Clone)]
pub enum Ask {
    /// A client opens a session. `initialize` is its own message, if it wrote one. Answered by
    /// [`Tell::Opened`], or like any call by [`Tell::Reply`] (the server's refusal) or
    /// [`Tell::Failed`].
    Open {
        /// The session concerned.
        session: SessionKey,
        /// The call concerned.
        call: CallKey,
        /// What is known of the client.
        client: Arc<Client>,
        /// Its `initialize`.
        initialize: Option<Message>,
        /// The era that the client speaks.
        era: Era,
        /// The client listens for what is not about its calls: changed lists, updated resources.
        wants_notifications: bool,
    },
    /// A session goes on that another process, or an earlier life of this one, has opened. Answered
    /// as [`Ask::Open`] is; the answer reaches no client. The server receives the handshake if it
    /// had none, then what the client has set; the client is notified to look again at every list.
    Restore {
        /// The session concerned.
        session: SessionKey,
        /// The call concerned.
        call: CallKey,
        /// What is known of the client.
        client: Arc<Client>,
        /// Its `initialize`, if it wrote one.
        initialize: Option<Message>,
        /// The era that the client speaks.
        era: Era,
        /// What it has set.
        state: SessionState,
    },
    /// The client has sent `notifications/initialized`.
    Ready {
        /// The session concerned.
        session: SessionKey,
        /// The message as its sender wrote it.
        message: Message,
    },
    /// A request for the server.
    Call(Call),
    /// The client no longer wants an answer. `message` is its own notification, where it wrote one.
    Cancel {
        /// The session concerned.
        session: SessionKey,
        /// The call concerned.
        call: CallKey,
        /// The message as its sender wrote it.
        message: Option<Message>,
    },
    /// The client's answer to a [`Tell::Question`].
    Answer {
        /// The session concerned.
        session: SessionKey,
        /// The question concerned.
        question: QuestionKey,
        /// The message as its sender wrote it.
        message: Message,
    },
    /// No client can be asked the question.
    Unanswerable {
        /// The session concerned.
        session: SessionKey,
        /// The question concerned.
        question: QuestionKey,
    },
    /// Any other notification of the client, such as changed roots.
    Notice {
        /// The session concerned.
        session: SessionKey,
        /// The message as its sender wrote it.
        message: Message,
    },
    /// The client has gone: everything it still waits for is cancelled.
    Close {
        /// The session concerned.
        session: SessionKey,
    },
}

impl Ask {
    /// Returns the session that asks.
    pub const fn session(&self) -> SessionKey {
        match self {
            Self::Open { session, .. }
            | Self::Restore { session, .. }
            | Self::Ready { session, .. }
            | Self::Call(Call { session, .. })
            | Self::Cancel { session, .. }
            | Self::Answer { session, .. }
            | Self::Unanswerable { session, .. }
            | Self::Notice { session, .. }
            | Self::Close { session } => *session,
        }
    }
}

/// One request for the server.
#[derive(Debug, Clone)]
pub struct Call {
    /// The session that it comes from.
    pub session: SessionKey,
    /// The key under which it is answered.
    pub call: CallKey,
    /// What it asks for.
    pub request: Request,
    /// The message as its sender wrote it.
    pub message: Message,
    /// The era of the message. A backend of the same era gets it as it is.
    pub era: Era,
    /// The headers that mirror its arguments, over a transport that has them. They are checked as
    /// soon as the tool is known.
    pub mirrored: Option<MirroredParams>,
    /// The client reads events while it waits, so that it may wait longer than one that gets
    /// nothing but the answer.
    pub reads_events: bool,
}

/// What kind of request it is, as far as sharing a backend makes a difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A request that Rialto only passes on.
    Plain,
    /// To receive the updates of a resource.
    Subscribe {
        /// The resource.
        uri: String,
    },
    /// To receive them no longer.
    Unsubscribe {
        /// The resource.
        uri: String,
    },
    /// To receive log lines of this level and above.
    SetLevel {
        /// The least severe level.
        level: LogLevel,
    },
    /// To receive the status of a task.
    Watch {
        /// The id of the task.
        task: String,
    },
}

/// What a server has for a client.
#[derive(Debug, Clone)]
pub enum Tell {
    /// The server is ready for the client.
    Opened {
        /// The session concerned.
        session: SessionKey,
        /// The call concerned.
        call: CallKey,
        /// What the server declared about itself.
        server_info: Arc<ServerInfo>,
    },
    /// The server's own answer to a call, result or error.
    Reply {
        /// The session concerned.
        session: SessionKey,
        /// The call concerned.
        call: CallKey,
        /// The message as its sender wrote it.
        message: Message,
        /// The era of the message.
        era: Era,
    },
    /// The request was fulfilled by Rialto itself and has an empty result.
    Done {
        /// The session concerned.
        session: SessionKey,
        /// The call concerned.
        call: CallKey,
    },
    /// There will be no answer from the server.
    Failed {
        /// The session concerned.
        session: SessionKey,
        /// The call concerned.
        call: CallKey,
        /// Why there is none.
        failure: Failure,
    },
    /// Progress of a call, or a log line of it.
    Related {
        /// The session concerned.
        session: SessionKey,
        /// The call concerned.
        call: CallKey,
        /// The message as its sender wrote it.
        message: Message,
    },
    /// The call takes long: its response should become a stream, which keep-alive comments hold
    /// open.
    Waiting {
        /// The session concerned.
        session: SessionKey,
        /// The call concerned.
        call: CallKey,
    },
    /// Something for the session as a whole: lists that changed, resources, log lines.
    Notice {
        /// The session concerned.
        session: SessionKey,
        /// The message as its sender wrote it.
        message: Message,
    },
    /// The server asks; `call` is what it is working on, if that is known.
    Question {
        /// The session concerned.
        session: SessionKey,
        /// The call concerned.
        call: Option<CallKey>,
        /// The question concerned.
        question: QuestionKey,
        /// The message as its sender wrote it.
        message: Message,
    },
    /// The server no longer wants an answer.
    Withdrawn {
        /// The session concerned.
        session: SessionKey,
        /// The question concerned.
        question: QuestionKey,
        /// The message as its sender wrote it.
        message: Option<Message>,
    },
}

impl Tell {
    /// Returns the session that it is for.
    pub const fn session(&self) -> SessionKey {
        match self {
            Self::Opened { session, .. }
            | Self::Reply { session, .. }
            | Self::Done { session, .. }
            | Self::Failed { session, .. }
            | Self::Related { session, .. }
            | Self::Waiting { session, .. }
            | Self::Notice { session, .. }
            | Self::Question { session, .. }
            | Self::Withdrawn { session, .. } => *session,
        }
    }
}

/// What a server declared in its handshake or discovery.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// The server's response to the handshake or the discovery, byte for byte.
    pub message: Message,
    /// The era of that response.
    pub era: Era,
    /// The revision a legacy server chose, if Rialto knows it.
    pub version: Option<Version>,
    /// The lists that the server declares as changing.
    pub changing_lists: Vec<Method>,
    /// The server accepts a log level.
    pub logs: bool,
    /// The server sends updates of resources to clients that subscribe.
    pub subscriptions: bool,
    /// The server may work on calls of tools as tasks.
    pub tasks: bool,
    /// What the server calls itself: raw JSON, read once for all answers that are to name it.
    pub info: Option<Arc<str>>,
}

impl ServerInfo {
    /// Returns whether the server has declared that it has this method.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a capability declares every other method"
    )]
    pub fn declares(&self, method: Method) -> bool {
        match method {
            Method::TasksGet | Method::TasksResult | Method::TasksUpdate | Method::TasksCancel => self.tasks,
            method => {
                let result = self.message.object(Member::Result);
                let declared = result.get("capabilities").unwrap_or("{}");
                let declared = Object::parse(declared.as_bytes()).unwrap_or_default();
                method
                    .server_capability()
                    .is_some_and(|capability| declared.get(capability).is_some())
            }
        }
    }
}

/// Why a call gets no answer from its server. [`Failure::reason`] names it for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The server was silent past the limit, which is the value of this setting.
    Timeout {
        /// The setting that limits the wait.
        setting: &'static str,
        /// The value of the limit.
        limit: Duration,
    },
    /// The server did not get ready in time.
    StartTimeout {
        /// The value of the limit.
        limit: Duration,
        /// What the server does meanwhile, if it is known.
        backend_error: Option<Arc<BackendError>>,
    },
    /// The server ended during the call.
    Exited(Arc<BackendError>),
    /// The server is not available now.
    Unavailable {
        /// Why the server is unavailable.
        backend_error: Arc<BackendError>,
        /// When to try again.
        retry_after: Duration,
    },
    /// The server is taken out of service, and was not given the call.
    Retired,
    /// The server refused the handshake.
    HandshakeRefused,
    /// A limit of Rialto was reached.
    Overloaded {
        /// The value of the limit.
        limit: &'static str,
    },
    /// The server waits for another client's answer, and its next question could not be attributed.
    Occupied,
    /// The answer was larger than messages may be.
    TooLarge {
        /// The length of the answer, in bytes.
        length: u64,
        /// The value of the limit.
        limit: usize,
    },
    /// The server does not support it.
    Unsupported {
        /// What is not supported.
        what: &'static str,
    },
    /// The server asked something that its client cannot or would not answer.
    Unanswered {
        /// Why the question was not answered.
        why: &'static str,
    },
    /// The answer was no message.
    Invalid(ScanError),
    /// The exchange with a remote server failed.
    Upstream(Arc<Upstream>),
    /// The client asked for the call to stop.
    Cancelled,
    /// The session ended during the call.
    SessionEnded,
    /// The process that had the call has ended. Its server may have executed it.
    OwnerLost,
}

/// What is known about a server that ended or would not start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BackendError {
    /// The error text: "exit status 3", "cannot start: no such file".
    pub what: String,
    /// The last lines it wrote on stderr.
    pub stderr: Vec<String>,
    /// How often it was restarted.
    pub restarts: u32,
    /// What it wrote on stdout, while it started, that was no message.
    pub stray_output: Option<StrayOutput>,
    /// What an operator may do about it.
    pub hints: Vec<String>,
}

/// Lines on stdout that were no messages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StrayOutput {
    /// How many there were.
    pub lines: u64,
    /// The first of them, safe to print and cut. `None` where the caller may not see it.
    pub first: Option<String>,
}

/// What went wrong between Rialto and a remote server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// What kind of failure it was.
    pub fault: UpstreamFault,
    /// The error text, without secrets.
    pub what: String,
}

/// The kind of a failed exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamFault {
    /// The connection broke after the request was sent. The server may have executed it.
    Lost,
    /// The answer was no MCP message.
    Invalid,
    /// The server refused the request by an HTTP status alone.
    Refused,
    /// The server does not accept Rialto's credentials.
    Unauthorized,
    /// The connection is not safe: no valid certificate, or a redirect to another origin.
    Unsafe,
}

impl Upstream {
    /// Returns a failure with its explanation.
    pub fn new(fault: UpstreamFault, what: impl Into<String>) -> Self {
        Self {
            fault,
            what: what.into(),
        }
    }

    /// Returns a connection that broke off after the request had left.
    pub fn lost(what: impl Into<String>) -> Self {
        Self::new(UpstreamFault::Lost, what)
    }
}

/// The side that caused a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blame {
    /// The client sent what cannot be served.
    Client,
    /// The server failed.
    Backend,
    /// Rialto itself reached a limit or a decision.
    Bridge,
}

impl Blame {
    /// Returns the word for the audit log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Backend => "backend",
            Self::Bridge => "bridge",
        }
    }
}

impl Failure {
    /// Returns the value of `data.reason`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Timeout { .. } => "timeout",
            Self::StartTimeout { .. } => "start_timeout",
            Self::Exited(_) => "upstream_exited",
            Self::Unavailable { .. } => "upstream_unavailable",
            Self::Retired => "reloaded",
            Self::HandshakeRefused => "handshake_refused",
            Self::Overloaded { .. } => "overloaded",
            Self::Occupied => "occupied",
            Self::TooLarge { .. } => "response_too_large",
            Self::Unsupported { .. } => "unsupported",
            Self::Unanswered { .. } => "unanswered",
            Self::Invalid(_) => "invalid_response",
            Self::Upstream(upstream) => match upstream.fault {
                UpstreamFault::Lost => "upstream_lost",
                UpstreamFault::Invalid => "upstream_invalid_response",
                UpstreamFault::Refused => "upstream_refused",
                UpstreamFault::Unauthorized => "upstream_unauthorized",
                UpstreamFault::Unsafe => "upstream_unsafe",
            },
            Self::Cancelled => "cancelled",
            Self::SessionEnded => "session_ended",
            Self::OwnerLost => "owner_lost",
        }
    }

    /// Returns the side that caused it.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Timeout { .. }
            | Self::StartTimeout { .. }
            | Self::Exited(_)
            | Self::Unavailable { .. }
            | Self::HandshakeRefused
            | Self::TooLarge { .. }
            | Self::Upstream(_)
            | Self::Invalid(_) => Blame::Backend,
            Self::Retired | Self::Overloaded { .. } | Self::Occupied | Self::OwnerLost => Blame::Bridge,
            Self::Unsupported { .. } | Self::Unanswered { .. } | Self::Cancelled | Self::SessionEnded => {
                Blame::Client
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_anonymous_principal_is_anonymous() {
        assert!(Principal::anonymous().is_anonymous());
        assert!(!Principal::named("ann").is_anonymous());
        assert_eq!(Principal::named("ann").as_str(), "ann");
    }
}
