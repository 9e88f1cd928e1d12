//! The one table of HTTP status, JSON-RPC code and text (400, 401, 413, 429, 503, …) for each
//! refusal and failure: a new one must choose its row.

mod challenge;
mod failure;
mod names;

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::HeaderName;
use protocol::client_face::legacy::{self, InvalidRequest};
use protocol::client_face::modern;
use protocol::error_code;
use protocol::exchange::Failure;
use protocol::message::ScanError;
use protocol::version::Version;

pub(crate) use challenge::{Challenge, ChallengeError};
pub(crate) use failure::{failure_status, modern_failure_status};

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What clients learn about a command that cannot be run. What was looked for, and where, is not
/// for them.
pub(crate) const CANNOT_RUN: &str = "its command cannot be run; the log has the details";

/// Why a request was not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    UnknownPath,
    /// The old SSE paths of a destination that speaks Streamable HTTP.
    Gone {
        destination: String,
    },
    WrongMethod {
        allow: &'static str,
    },
    UnknownMethod,
    /// The destination's command cannot be run; it was kept out of the way with `--keep-going`.
    BrokenDestination,
    /// There is no answer of the server: it could not be asked which era it speaks, or the replica
    /// that had the request is lost. The failure tells whether the request may have run.
    Unreached(Failure),
    /// The same for a call whose client reads the JSON-RPC error, with the status 200.
    CallUnreached(Failure),
    ForeignHost,
    ForeignOrigin,
    MissingHost,
    /// The request has no valid credential.
    Unauthorized(Box<Challenge>),
    /// The caller is known, and may not do this.
    Forbidden(Box<Challenge>),
    /// A static token that is good at other destinations only.
    TokenForElsewhere,
    /// The issuer of tokens cannot be asked for its keys.
    IssuerUnavailable,
    AmbiguousLength,
    WrongContentType,
    EncodedBody,
    NotAcceptable {
        wanted: &'static str,
    },
    BodyTooLarge {
        limit: usize,
    },
    BodyBroken,
    BodySlow,
    NotAMessage(ScanError),
    InvalidRequest(InvalidRequest),
    /// A request of the modern era that its revision refuses.
    Modern(modern::InvalidRequest),
    UnsupportedVersion,
    MissingSession,
    /// The same for a client of the old transport, whose session is in the query.
    MissingSessionQuery,
    DoubledSessionQuery,
    DoubledHeader(&'static str),
    /// A header that the server is given (`env_from_headers`, `forward_headers`) stands twice, or
    /// is no plain text.
    UnclearHeader(String),
    /// The name of the method has white space or control characters.
    OddMethod,
    MalformedSession,
    UnknownSession,
    AlreadyOpen,
    TooManyCalls,
    TooManySessions {
        limit: usize,
    },
    TooManyChildren {
        limit: usize,
    },
    TooManyStreams,
    TooManyStreamsOfCaller {
        limit: usize,
    },
    TooManyListens {
        limit: usize,
    },
    /// More requests in a minute than the caller or the session may send; `limit` names the
    /// setting.
    TooManyRequests {
        retry_after: Duration,
        limit: &'static str,
    },
    TooManyCallsInAll {
        limit: usize,
    },
    TooManyCallsOfCaller {
        limit: usize,
    },
    TooManySessionsInAll {
        limit: usize,
    },
    TooManySessionsOfCaller {
        limit: usize,
    },
    /// The destination's policy does not let this tool be called.
    ToolDenied {
        tool: String,
    },
    UnknownEvent,
    FinishedStream,
    Draining,
    /// The destination was removed or replaced while the request was on its way.
    Retired,
    /// The audit log cannot be written, and calls without a record are not wanted.
    AuditUnavailable,
    /// The records of sessions cannot be read or written.
    RegistryUnavailable,
    /// The replica that has the session lives, and cannot be reached from here.
    OwnerUnreached,
    /// Too many requests look for sessions of other replicas, or the owner changed too often.
    FleetBusy,
    /// Two replicas do not recognise the same caller in one request.
    OtherCaller,
    /// For another replica alone: the request is not for this one, and was not processed.
    NotOwner,
    /// A panic, which is a mistake of Rialto.
    Panicked,
}

/// Whether the answer has a JSON-RPC body.
pub(crate) enum Wording {
    /// A JSON-RPC error with this code.
    Rpc(i32),
    /// Plain text: a JSON-RPC error could be taken for an answer of the server's.
    Plain,
}

impl Refusal {
    pub(crate) fn status(&self) -> StatusCode {
        self.row().0
    }

    /// Returns the refusal in words.
    pub(crate) fn text(&self) -> String {
        self.row().2
    }

    /// Returns the row of the table: the status, the kind of body, and the text.
    pub(crate) fn row(&self) -> (StatusCode, Wording, String) {
        use StatusCode as S;
        use Wording::{Plain, Rpc};
        let invalid = Rpc(error_code::INVALID_REQUEST);
        match self {
            Self::UnknownPath => (S::NOT_FOUND, Plain, "no such path".into()),
            Self::Gone { destination } => (
                S::GONE,
                Plain,
                format!("this server speaks Streamable HTTP: use /{destination}/mcp (client type \"http\")"),
            ),
            Self::WrongMethod { allow } => (S::METHOD_NOT_ALLOWED, Plain, format!("allowed: {allow}")),
            Self::UnknownMethod => (S::NOT_IMPLEMENTED, Plain, "unknown HTTP method".into()),
            Self::BrokenDestination => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                format!("this destination cannot start: {CANNOT_RUN}"),
            ),
            Self::Unreached(failure) => (
                failure_status(failure),
                Rpc(error_code::INTERNAL_ERROR),
                legacy::describe_failure(failure).0,
            ),
            Self::CallUnreached(failure) => (
                S::OK,
                Rpc(error_code::INTERNAL_ERROR),
                legacy::describe_failure(failure).0,
            ),
            Self::ForeignHost => (
                S::FORBIDDEN,
                Plain,
                "the Host header names another host (allowed_hosts lists those that are accepted)".into(),
            ),
            Self::ForeignOrigin => (
                S::FORBIDDEN,
                Plain,
                "requests from this origin are not accepted (allowed_origins lists those that are)".into(),
            ),
            Self::MissingHost => (S::BAD_REQUEST, Plain, "exactly one Host header is needed".into()),
            Self::Unauthorized(challenge) => (S::UNAUTHORIZED, Plain, challenge.text()),
            Self::Forbidden(challenge) => (S::FORBIDDEN, Plain, challenge.text()),
            Self::TokenForElsewhere => (
                S::FORBIDDEN,
                Plain,
                "the token is not for this destination".into(),
            ),
            Self::IssuerUnavailable => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                "the token cannot be checked: its issuer does not answer".into(),
            ),
            Self::AmbiguousLength => (
                S::BAD_REQUEST,
                Plain,
                "the length of the body is ambiguous".into(),
            ),
            Self::WrongContentType => (
                S::UNSUPPORTED_MEDIA_TYPE,
                invalid,
                "Content-Type must be application/json (UTF-8)".into(),
            ),
            Self::EncodedBody => (
                S::UNSUPPORTED_MEDIA_TYPE,
                invalid,
                "encoded request bodies are not accepted".into(),
            ),
            Self::NotAcceptable { wanted } => {
                (S::NOT_ACCEPTABLE, invalid, format!("Accept must allow {wanted}"))
            }
            Self::BodyTooLarge { limit } => (
                S::PAYLOAD_TOO_LARGE,
                invalid,
                format!("the message is larger than max_message_bytes ({limit})"),
            ),
            Self::BodyBroken => (S::BAD_REQUEST, invalid, "the body could not be read".into()),
            Self::BodySlow => (
                S::REQUEST_TIMEOUT,
                invalid,
                "the body did not come in time".into(),
            ),
            Self::NotAMessage(error) => (S::BAD_REQUEST, Rpc(error.code()), error.to_string()),
            Self::Modern(invalid) => {
                let status = match invalid {
                    modern::InvalidRequest::NoSuchMethod => S::NOT_FOUND,
                    modern::InvalidRequest::NotJsonRpc
                    | modern::InvalidRequest::BadId
                    | modern::InvalidRequest::Envelope(_)
                    | modern::InvalidRequest::UnsupportedVersion(_)
                    | modern::InvalidRequest::BadParams(_)
                    | modern::InvalidRequest::MissingCapability(_)
                    | modern::InvalidRequest::Header(_) => S::BAD_REQUEST,
                };
                (status, Rpc(invalid.code()), String::new())
            }
            Self::InvalidRequest(invalid) => (S::BAD_REQUEST, Rpc(invalid.code()), invalid.text().into()),
            Self::UnsupportedVersion => (
                S::BAD_REQUEST,
                invalid,
                format!(
                    "unsupported MCP-Protocol-Version; supported: {}",
                    Version::LEGACY.map(Version::as_str).join(", ")
                ),
            ),
            Self::MissingSession => (
                S::BAD_REQUEST,
                invalid,
                "the Mcp-Session-Id header is missing".into(),
            ),
            Self::MissingSessionQuery => (
                S::BAD_REQUEST,
                invalid,
                "the query must have the sessionId that the `endpoint` event named".into(),
            ),
            Self::DoubledSessionQuery => (
                S::BAD_REQUEST,
                invalid,
                "the query has more than one sessionId".into(),
            ),
            Self::DoubledHeader(name) => (S::BAD_REQUEST, invalid, format!("the {name} header stands twice")),
            Self::UnclearHeader(name) => (
                S::BAD_REQUEST,
                invalid,
                format!("the {name} header must stand once, in visible ASCII characters"),
            ),
            Self::OddMethod => (
                S::BAD_REQUEST,
                invalid,
                "the method has white space or control characters".into(),
            ),
            Self::MalformedSession => (
                S::BAD_REQUEST,
                invalid,
                "the Mcp-Session-Id header is no UUID v4".into(),
            ),
            Self::UnknownSession => (
                S::NOT_FOUND,
                invalid,
                "no such session; initialize a new one".into(),
            ),
            Self::AlreadyOpen => (
                S::BAD_REQUEST,
                invalid,
                "the session is initialized already".into(),
            ),
            Self::TooManyCalls => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                "too many calls are open".into(),
            ),
            Self::TooManySessions { limit } => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                format!("all {limit} sessions of this destination are in use (max_sessions)"),
            ),
            Self::TooManyChildren { limit } => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                format!("all {limit} processes of this destination are in use (max_children)"),
            ),
            Self::TooManyStreams => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                "too many streams are open".into(),
            ),
            Self::TooManyStreamsOfCaller { limit } => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                format!("this caller has {limit} streams open already (limits.streams_per_principal)"),
            ),
            Self::TooManyListens { limit } => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                format!("all {limit} listens of this destination are open (limits.listens)"),
            ),
            Self::TooManyRequests { limit, .. } => (
                S::TOO_MANY_REQUESTS,
                Rpc(error_code::INTERNAL_ERROR),
                format!("too many requests in a minute (limits.{limit})"),
            ),
            Self::TooManyCallsInAll { limit } => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                format!("the gateway works on {limit} calls already (limits.calls)"),
            ),
            Self::TooManyCallsOfCaller { limit } => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                format!("this caller has {limit} calls open already (limits.calls_per_principal)"),
            ),
            Self::TooManySessionsInAll { limit } => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                format!("the gateway has {limit} sessions already (limits.sessions)"),
            ),
            Self::TooManySessionsOfCaller { limit } => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                format!("this caller has {limit} sessions already (limits.sessions_per_principal)"),
            ),
            // Answered as a server would that has no such tool: whether it exists is not for this
            // caller to know.
            Self::ToolDenied { tool } => (
                S::OK,
                Rpc(error_code::INVALID_PARAMS),
                format!("Unknown tool: {}", shortened(tool)),
            ),
            Self::UnknownEvent => (
                S::BAD_REQUEST,
                invalid,
                "Last-Event-ID names no event of this session that is still known".into(),
            ),
            Self::FinishedStream => (
                S::METHOD_NOT_ALLOWED,
                Plain,
                "everything of this stream was delivered".into(),
            ),
            Self::Panicked => (
                S::INTERNAL_SERVER_ERROR,
                Rpc(error_code::INTERNAL_ERROR),
                "internal error of the gateway; its log has the details".into(),
            ),
            Self::AuditUnavailable => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                "the audit log cannot be written (audit.on_failure)".into(),
            ),
            Self::RegistryUnavailable => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                "the records of sessions cannot be read or written (state_dir or cluster)".into(),
            ),
            Self::OwnerUnreached => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                "the replica that has this session cannot be reached".into(),
            ),
            Self::FleetBusy => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                "too many requests look for sessions of other replicas".into(),
            ),
            Self::OtherCaller => (
                S::FORBIDDEN,
                Plain,
                "replicas disagree about the caller: run all of them with one configuration".into(),
            ),
            Self::NotOwner => (
                S::MISDIRECTED_REQUEST,
                Plain,
                "this replica does not own the session".into(),
            ),
            Self::Retired => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                "the configuration of this destination has just changed".into(),
            ),
            Self::Draining => (
                S::SERVICE_UNAVAILABLE,
                Rpc(error_code::INTERNAL_ERROR),
                "the gateway is shutting down".into(),
            ),
        }
    }

    /// Returns whether the request had unknown credentials.
    pub(crate) fn is_about_unknown_credentials(&self) -> bool {
        matches!(self, Self::Unauthorized(challenge) if matches!(challenge.challenge_error, ChallengeError::UnknownToken(_)))
    }

    /// Returns when to retry, for refusals that are temporary.
    pub(crate) fn retry_after(&self, status: StatusCode) -> Option<Duration> {
        match self {
            Self::TooManyRequests { retry_after, .. } => Some(*retry_after),
            _ if status == StatusCode::SERVICE_UNAVAILABLE => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// Returns the refusal as a JSON-RPC error: its code, its text and its `data`.
    pub(crate) fn words(&self) -> (i32, String, Option<String>) {
        let (_, wording, text) = self.row();
        let code = match wording {
            Wording::Rpc(code) => code,
            Wording::Plain => error_code::INVALID_REQUEST,
        };
        let data = match self {
            // The client needs to know that the tool may have run.
            Self::Unreached(failure @ Failure::OwnerLost)
            | Self::CallUnreached(failure @ Failure::OwnerLost) => Some(legacy::describe_failure(failure).1),
            _ => self.reason().map(|reason| format!(r#""reason":"{reason}""#)),
        };
        (code, text, data)
    }

    /// Returns the refusal as a JSON-RPC message.
    pub(crate) fn body(&self, id: Option<&[u8]>) -> Bytes {
        match self {
            Self::Modern(invalid) => invalid.body(id),
            _ => {
                let (code, text, data) = self.words();
                legacy::error(id, code, &text, data.as_deref())
            }
        }
    }
}

/// As much of a peer's text as a refusal repeats.
fn shortened(text: &str) -> &str {
    let end = (0..=text.len().min(64))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or_default();
    &text[..end]
}
