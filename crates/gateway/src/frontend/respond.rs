//! HTTP responses: refusals, answers of servers, their failures, pages and streams. The text and
//! the status of refusals stand in one table ([`crate::reply`]).

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use protocol::exchange::Failure;
use protocol::message::Written;

use super::body::Body;
use crate::reply::{Refusal, Wording, failure_status};
use crate::sign_in_pages::Opened;
use crate::trace::Failed;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

impl Refusal {
    pub(crate) fn respond(&self, id: Option<&[u8]>) -> Response<Body> {
        let (status, wording, text) = self.row();
        let mut response = match wording {
            Wording::Rpc(_) => with_type(status, JSON, self.body(id)),
            Wording::Plain => with_type(status, TEXT, Bytes::from(text + "\n")),
        };
        let headers = response.headers_mut();
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        match self {
            Self::WrongMethod { allow } => {
                headers.insert(header::ALLOW, HeaderValue::from_static(allow));
            }
            Self::FinishedStream => {
                headers.insert(header::ALLOW, HeaderValue::from_static("POST, DELETE"));
            }
            Self::Unauthorized(challenge) | Self::Forbidden(challenge) => {
                headers.insert(header::WWW_AUTHENTICATE, challenge.header());
            }
            // The rest of the body is not read, so the connection cannot be used again.
            Self::BodyTooLarge { .. }
            | Self::AmbiguousLength
            | Self::BodyBroken
            | Self::BodySlow
            // Where the body is no message the peer may have lied about its length, and what
            // follows may be the rest of it: it must not be taken for a request.
            | Self::NotAMessage(_)
            | Self::Draining => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        if let Some(wait) = self.retry_after(status) {
            headers.insert(header::RETRY_AFTER, whole_seconds(wait));
        }
        response
    }
}

/// Rounded up: a client that retries too early is refused again.
fn whole_seconds(wait: Duration) -> HeaderValue {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    HeaderValue::from(seconds.max(1))
}

/// Returns a complete answer to a call; `headers` are those to begin with.
pub(crate) fn answer(headers: HeaderMap, body: impl Into<Written>) -> Response<Body> {
    let mut response = Response::new(Body::full(body.into()));
    *response.headers_mut() = headers;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// Returns the answer to a call that failed after it was accepted: `in_band` with HTTP 200,
/// otherwise with the failure's status. Either way the body is the JSON-RPC error.
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
        | Failure::HandshakeRefused
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
        | Failure::SessionEnded
        | Failure::OwnerLost => None,
    }
}

pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Returns what a browser is shown that has opened the page of a sign-in.
pub(crate) fn sign_in(opened: &Opened) -> Response<Body> {
    let (status, text, location) = match opened {
        Opened::Elsewhere(url) => (StatusCode::SEE_OTHER, String::new(), Some(url.as_str())),
        Opened::SignedIn => (
            StatusCode::OK,
            "Signed in. You can close this page.\n".to_owned(),
            None,
        ),
        Opened::Failed(why) => (
            StatusCode::BAD_GATEWAY,
            format!("Signing in has failed: {why}\n"),
            None,
        ),
    };
    let mut response = with_type(status, TEXT, Bytes::from(text));
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Some(location) = location.and_then(|url| HeaderValue::from_str(url).ok()) {
        headers.insert(header::LOCATION, location);
    }
    response
}

/// Returns the page of metrics, in the text format of OpenMetrics.
pub(crate) fn metrics(page: String) -> Response<Body> {
    const OPEN_METRICS: HeaderValue =
        HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    with_type(StatusCode::OK, OPEN_METRICS, Bytes::from(page))
}

pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    with_type(status, JSON, body.into())
}

/// Returns an event stream, with headers that keep proxies and browsers from buffering it.
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

fn with_type(status: StatusCode, content_type: HeaderValue, body: impl Into<Written>) -> Response<Body> {
    let mut response = Response::new(Body::full(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_remedy_and_limits_have_retry_after() {
        let response = Refusal::TooManySessions { limit: 10 }.respond(Some(b"7"));
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        let response = Refusal::WrongMethod {
            allow: "GET, POST, DELETE",
        }
        .respond(None);
        assert_eq!(
            (
                response.status().as_u16(),
                response.headers()[header::ALLOW].to_str().unwrap()
            ),
            (405, "GET, POST, DELETE")
        );
        assert_eq!(
            Refusal::Gone {
                destination: "a".into()
            }
            .respond(None)
            .status(),
            410
        );
        assert_eq!(
            Refusal::BodyTooLarge { limit: 1 }.respond(None).headers()[header::CONNECTION],
            "close"
        );
    }

    #[test]
    fn retry_after_is_rounded_up() {
        let failure = Failure::Unavailable {
            backend_error: Default::default(),
            retry_after: Duration::from_millis(28_100),
        };
        assert_eq!(
            failed(HeaderMap::new(), Bytes::new(), &failure, false).headers()[header::RETRY_AFTER],
            "29"
        );
    }
}
