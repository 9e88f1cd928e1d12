//! Responses that are no refusals: answers of servers, their failures, pages and streams.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use protocol::exchange::Failure;
use protocol::message::Written;
use protocol::method::Method;

use super::whole_seconds;
use crate::client_face::body::Body;
use crate::trace::Failed;

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(super) const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

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

/// A complete answer to a call; `headers` are those to begin with.
pub(crate) fn answer(headers: HeaderMap, body: impl Into<Written>) -> Response<Body> {
    let mut response = Response::new(Body::full(body.into()));
    *response.headers_mut() = headers;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// The answer to a call that failed after it was accepted: `in_band` with HTTP 200, otherwise with the failure's status.
/// Either way the body is the JSON-RPC error.
pub(crate) fn failed(
    headers: HeaderMap,
    body: impl Into<Written>,
    failure: &Failure,
    in_band: bool,
) -> Response<Body> {
    let mut response = answer(headers, body);
    response.extensions_mut().insert(Failed(failure.reason()));
    if in_band {
        return response;
    }
    *response.status_mut() = failure_status(failure);
    if let Some(wait) = retry_after(failure) {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, whole_seconds(wait));
    }
    response
}

/// Returns after which time the same call may succeed, where that is known.
fn retry_after(failure: &Failure) -> Option<Duration> {
    match failure {
        Failure::Unavailable { retry_after, .. } => Some(*retry_after),
        Failure::Exited(_)
        | Failure::Retired
        | Failure::NotWelcomed
        | Failure::Overloaded { .. }
        | Failure::Occupied => Some(Duration::from_secs(1)),
        Failure::Timeout { .. }
        | Failure::StartTimeout { .. }
        | Failure::TooLarge { .. }
        | Failure::Unsupported { .. }
        | Failure::Unanswered { .. }
        | Failure::Invalid(_)
        | Failure::Upstream(_)
        | Failure::Cancelled
        | Failure::SessionEnded => None,
    }
}

pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// The page of metrics, in the text format of OpenMetrics.
pub(crate) fn metrics(page: String) -> Response<Body> {
    const OPEN_METRICS: HeaderValue =
        HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    with_type(StatusCode::OK, OPEN_METRICS, Bytes::from(page))
}

pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    with_type(status, JSON, body.into())
}

/// An event stream that proxies and browsers are told not to hold back.
pub(crate) fn events(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, no-transform"),
    );
    headers.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    response
}

pub(super) fn with_type(
    status: StatusCode,
    content_type: HeaderValue,
    body: impl Into<Written>,
) -> Response<Body> {
    let mut response = Response::new(Body::full(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
