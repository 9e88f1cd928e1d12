//! What a refusal is called: in its `data`, in the counters, and by the limit that was reached.

use super::Refusal;
use crate::record::RefusalRecord;

impl Refusal {
    /// Returns the reason in `data`, for refusals that are about limits.
    pub(super) fn reason(&self) -> Option<&'static str> {
        match self {
            Self::TooManyCalls => Some("calls_at_limit"),
            Self::TooManySessions { .. } => Some("sessions_at_limit"),
            Self::TooManyChildren { .. } => Some("children_at_limit"),
            Self::TooManyStreams => Some("streams_at_limit"),
            Self::TooManyStreamsOfCaller { .. } => Some("caller_streams_at_limit"),
            Self::TooManyListens { .. } => Some("listens_at_limit"),
            Self::TooManyRequests { .. } => Some("rate_limited"),
            Self::TooManyCallsInAll { .. } => Some("gateway_calls_at_limit"),
            Self::TooManyCallsOfCaller { .. } => Some("caller_calls_at_limit"),
            Self::TooManySessionsInAll { .. } => Some("gateway_sessions_at_limit"),
            Self::TooManySessionsOfCaller { .. } => Some("caller_sessions_at_limit"),
            Self::ToolDenied { .. } => Some("tool_denied"),
            Self::Draining => Some("draining"),
            Self::Retired => Some("reloaded"),
            Self::AuditUnavailable => Some("audit_unavailable"),
            Self::RegistryUnavailable => Some("registry_unavailable"),
            Self::OwnerUnreached => Some("owner_unreachable"),
            Self::FleetBusy => Some("fleet_busy"),
            Self::Panicked => Some("internal_error"),
            Self::BrokenDestination => Some("cannot_start"),
            Self::IssuerUnavailable => Some("issuer_unavailable"),
            Self::Unreached(failure) | Self::CallUnreached(failure) => Some(failure.reason()),
            _ => None,
        }
    }

    /// Returns what metrics call it: every refusal has a word, also those that clients get no
    /// reason for.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::UnknownPath => "unknown_path",
            Self::Gone { .. } => "old_transport",
            Self::WrongMethod { .. } => "wrong_method",
            Self::UnknownMethod => "unknown_method",
            Self::BrokenDestination => "cannot_start",
            Self::ForeignHost => "foreign_host",
            Self::ForeignOrigin => "foreign_origin",
            Self::MissingHost => "missing_host",
            Self::AmbiguousLength => "ambiguous_length",
            Self::WrongContentType => "wrong_content_type",
            Self::EncodedBody => "encoded_body",
            Self::NotAcceptable { .. } => "not_acceptable",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::BodyBroken => "body_broken",
            Self::BodySlow => "body_slow",
            Self::NotAMessage(_) => "not_a_message",
            Self::InvalidRequest(_) => "bad_request",
            Self::Modern(_) => "bad_modern_request",
            Self::UnsupportedVersion => "unsupported_version",
            Self::MissingSession => "missing_session",
            Self::DoubledHeader(_) => "doubled_header",
            Self::UnclearHeader(_) => "unclear_header",
            Self::OddMethod => "odd_method",
            Self::MalformedSession => "malformed_session",
            Self::UnknownSession => "unknown_session",
            Self::AlreadyOpen => "already_open",
            Self::TooManyCalls => "calls_at_limit",
            Self::TooManySessions { .. } => "sessions_at_limit",
            Self::TooManyChildren { .. } => "children_at_limit",
            Self::TooManyStreams => "streams_at_limit",
            Self::TooManyStreamsOfCaller { .. } => "caller_streams_at_limit",
            Self::TooManyListens { .. } => "listens_at_limit",
            Self::TooManyRequests { .. } => "rate_limited",
            Self::TooManyCallsInAll { .. } => "gateway_calls_at_limit",
            Self::TooManyCallsOfCaller { .. } => "caller_calls_at_limit",
            Self::TooManySessionsInAll { .. } => "gateway_sessions_at_limit",
            Self::TooManySessionsOfCaller { .. } => "caller_sessions_at_limit",
            Self::ToolDenied { .. } => "tool_denied",
            Self::Unauthorized(_) => "unauthorized",
            Self::Forbidden(_) => "forbidden",
            Self::TokenForElsewhere => "token_for_elsewhere",
            Self::IssuerUnavailable => "issuer_unavailable",
            Self::UnknownEvent => "unknown_event",
            Self::Unreached(failure) | Self::CallUnreached(failure) => failure.reason(),
            Self::FinishedStream => "finished_stream",
            Self::Draining => "draining",
            Self::MissingSessionQuery => "missing_session",
            Self::DoubledSessionQuery => "doubled_session",
            Self::Retired => "reloaded",
            Self::AuditUnavailable => "audit_unavailable",
            Self::RegistryUnavailable => "registry_unavailable",
            Self::OwnerUnreached => "owner_unreachable",
            Self::FleetBusy => "fleet_busy",
            Self::OtherCaller => "other_caller",
            Self::NotOwner => "not_owner",
            Self::Panicked => "internal_error",
        }
    }

    /// Returns what its record holds.
    pub(crate) fn recorded(&self) -> RefusalRecord {
        RefusalRecord {
            reason: self.label(),
            limit: self.limit(),
            lacks_audit: *self == Self::AuditUnavailable,
        }
    }

    /// Returns the limit that was reached, if it is about one.
    pub(crate) fn limit(&self) -> Option<&'static str> {
        match self {
            Self::BodyTooLarge { .. } => Some("max_message_bytes"),
            Self::BodySlow => Some("body_time"),
            Self::TooManyCalls => Some("session_calls"),
            Self::TooManySessions { .. } => Some("max_sessions"),
            Self::TooManyChildren { .. } => Some("max_children"),
            Self::TooManyStreams => Some("streams"),
            Self::TooManyStreamsOfCaller { .. } => Some("streams_per_principal"),
            Self::TooManyListens { .. } => Some("listens"),
            Self::TooManyRequests { limit, .. } => Some(limit),
            Self::TooManyCallsInAll { .. } => Some("calls"),
            Self::TooManyCallsOfCaller { .. } => Some("calls_per_principal"),
            Self::TooManySessionsInAll { .. } => Some("sessions"),
            Self::TooManySessionsOfCaller { .. } => Some("sessions_per_principal"),
            _ => None,
        }
    }
}
