//! The HTTP status of failures.

use http::StatusCode;
use protocol::exchange::Failure;
use protocol::method::Method;
use protocol::session::Accepts;

/// Returns the HTTP status of a failure.
pub(crate) fn failure_status(failure: &Failure) -> StatusCode {
    match failure {
        Failure::Timeout { .. } | Failure::StartTimeout { .. } => StatusCode::GATEWAY_TIMEOUT,
        Failure::Exited(_)
        | Failure::Unavailable { .. }
        | Failure::Retired
        | Failure::HandshakeRefused
        | Failure::Overloaded { .. }
        | Failure::Occupied => StatusCode::SERVICE_UNAVAILABLE,
        // Not 503: a request that may have run is not to be sent again.
        Failure::TooLarge { .. } | Failure::Invalid(_) | Failure::Upstream(_) | Failure::OwnerLost => {
            StatusCode::BAD_GATEWAY
        }
        // The client cancelled it and expects no answer any more.
        Failure::Cancelled => StatusCode::OK,
        // Answers like any other of the server's.
        Failure::Unsupported { .. } | Failure::Unanswered { .. } => StatusCode::OK,
        Failure::SessionEnded => StatusCode::NOT_FOUND,
    }
}

/// Returns the HTTP status of a failed request of the modern era. Its clients read the JSON-RPC
/// error of a call.
///
/// A failed `server/discover` of a client that reads events has HTTP 200 too. A client that looks
/// for the era takes the error for the answer of a legacy server, sends `initialize`, and shows its
/// error. Of a status it shows the number alone. A client that accepts JSON only gets the status,
/// which no client takes for the answer of a legacy server.
pub(crate) fn modern_failure_status(method: Method, accepts: Accepts, failure: &Failure) -> StatusCode {
    if method == Method::ServerDiscover && !accepts.reads_events() {
        failure_status(failure)
    } else {
        StatusCode::OK
    }
}
