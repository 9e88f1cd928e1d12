//! The HTTP status of failures.

use http::StatusCode;
use protocol::exchange::Failure;
use protocol::method::Method;

/// The HTTP status of a failure.
pub(crate) fn failure_status(failure: &Failure) -> StatusCode {
    match failure {
        Failure::Timeout { .. } | Failure::StartTimeout { .. } => StatusCode::GATEWAY_TIMEOUT,
        Failure::Exited(_)
        | Failure::Unavailable { .. }
        | Failure::Retired
        | Failure::NotWelcomed
        | Failure::Overloaded { .. }
        | Failure::Occupied => StatusCode::SERVICE_UNAVAILABLE,
        Failure::TooLarge { .. } | Failure::Invalid(_) | Failure::Upstream(_) => StatusCode::BAD_GATEWAY,
        // The client said so itself and expects no answer any more.
        Failure::Cancelled => StatusCode::OK,
        // Answers like any other of the server's.
        Failure::Unsupported { .. } | Failure::Unanswered { .. } => StatusCode::OK,
        Failure::SessionEnded => StatusCode::NOT_FOUND,
    }
}

/// The HTTP status of a failed request of the modern era. Its clients read the JSON-RPC error of a call; only a failed
/// `server/discover` has a status, because a JSON-RPC error could be taken for the answer of a legacy server.
pub(crate) fn modern_failure_status(method: Method, failure: &Failure) -> StatusCode {
    if method == Method::ServerDiscover {
        failure_status(failure)
    } else {
        StatusCode::OK
    }
}
