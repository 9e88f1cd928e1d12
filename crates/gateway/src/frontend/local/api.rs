//! What a gateway tells of itself on its admin socket.
//!
//! | Path | Answer |
//! |---|---|
//! | `/v1/snapshot` | the state of everything, as JSON |
//! | `/v1/events` | server-sent events: `state` when something changed, `call` for each ended call |
//! | `/v1/tap/NAME` | a JSON line for each message between Rialto and that server |
//! | `/v1/attach/NAME` | a JSON line about that destination; the response lasts as long as the gateway |

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::LocalBody;
use super::feed_body::{FeedBody, Heartbeat, States};
use crate::active_config::ActiveConfig;
use crate::endpoint::Endpoint;
use crate::frontend::respond;
use crate::gateway::Gateway;
use crate::readers::Admitted;
use crate::status::{Detail, Facts};

const LINES: HeaderValue = HeaderValue::from_static("application/x-ndjson");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

/// What a reader wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Snapshot,
    Events,
    Tap(String),
    Attach(String),
}

impl Request {
    /// Returns the request that a path stands for. No path of a destination is one.
    pub(super) fn of(path: &str) -> Option<Self> {
        let mut segments = path.strip_prefix("/v1/")?.split('/');
        match (segments.next()?, segments.next(), segments.next()) {
            ("snapshot", None, None) => Some(Self::Snapshot),
            ("events", None, None) => Some(Self::Events),
            ("tap", Some(name), None) => Some(Self::Tap(name.to_owned())),
            ("attach", Some(name), None) => Some(Self::Attach(name.to_owned())),
            _ => None,
        }
    }
}

impl Gateway {
    /// Returns the state of everything, as JSON.
    pub(crate) fn snapshot(&self, detail: Detail) -> serde_json::Value {
        let about = self.about.get();
        let page = about.filter(|_| self.has_page());
        let page = page.and_then(|about| about.url.as_deref());
        self.status(detail).snapshot(&Facts {
            up: self.clock.now().elapsed(),
            url: about.and_then(|about| about.url.clone()),
            ui: page.map(|url| format!("{url}/ui/")),
            config: about.and_then(|about| about.config.clone()),
            readers: self.readers.counts(),
        })
    }
}

/// Why there is no stream.
#[derive(Debug)]
enum Problem {
    UnknownName(String),
    TooManyReaders,
}

pub(super) fn answer(
    gateway: &Arc<Gateway>,
    parts: &Parts,
    wanted: Request,
    connection: AbortHandle,
    closing: watch::Receiver<bool>,
) -> Response<LocalBody> {
    if parts.method != Method::GET {
        return refusal(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here", &[]);
    }
    let config = gateway.config();
    let feed = match wanted {
        Request::Snapshot => {
            let snapshot = gateway.snapshot(Detail::Sessions);
            let response = respond::json(StatusCode::OK, format!("{snapshot}\n"));
            return response.map(LocalBody::Answer);
        }
        Request::Attach(name) => named(&config, &name).map(|endpoint| {
            let first = Bytes::from(format!("{}\n", introduction(endpoint)));
            (LINES, FeedBody::new(Heartbeat::Line, closing).beginning(first))
        }),
        Request::Events => admit(gateway, connection).map(|place| {
            let reader = gateway.shared.recorder.subscribe(place);
            let feed = FeedBody::new(Heartbeat::Comment, closing).reading(reader);
            (EVENTS, feed.with_states(States::of(Arc::clone(gateway))))
        }),
        Request::Tap(name) => named(&config, &name).and_then(|endpoint| {
            let reader = endpoint.metrics.tap.subscribe(admit(gateway, connection)?);
            Ok((LINES, FeedBody::new(Heartbeat::Line, closing).reading(reader)))
        }),
    };
    match feed {
        Ok((content_type, feed)) => {
            let mut response = Response::new(LocalBody::Feed(Box::new(feed)));
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, content_type);
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        Err(Problem::UnknownName(name)) => {
            let names: Vec<&str> = config.destinations.keys().map(String::as_str).collect();
            let why = format!("there is no destination `{name}` here");
            refusal(StatusCode::NOT_FOUND, &why, &names)
        }
        Err(Problem::TooManyReaders) => {
            let why = "too many readers: end another `rialto top` or `rialto tap` first";
            refusal(StatusCode::SERVICE_UNAVAILABLE, why, &[])
        }
    }
}

fn named<'a>(config: &'a ActiveConfig, name: &str) -> Result<&'a Endpoint, Problem> {
    let endpoint = config.destinations.get(name);
    endpoint
        .map(|endpoint| &**endpoint)
        .ok_or_else(|| Problem::UnknownName(name.to_owned()))
}

fn admit(gateway: &Gateway, connection: AbortHandle) -> Result<Admitted, Problem> {
    gateway.readers.admit(connection).ok_or(Problem::TooManyReaders)
}

/// Returns what `rialto attach` must know of a destination.
fn introduction(endpoint: &Endpoint) -> serde_json::Value {
    let (variables, hands_over_directory) = endpoint.upstream.wants_of_attached();
    json!({
        "name": &*endpoint.name,
        "rialto": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "env": variables,
        "directory": hands_over_directory,
        "max_message_bytes": endpoint.max_message_bytes(),
    })
}

fn refusal(status: StatusCode, why: &str, names: &[&str]) -> Response<LocalBody> {
    let body = json!({ "error": why, "destinations": names });
    respond::json(status, format!("{body}\n")).map(LocalBody::Answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_destinations_are_none_of_the_socket() {
        assert_eq!(Request::of("/v1/snapshot"), Some(Request::Snapshot));
        assert_eq!(
            Request::of("/v1/tap/files"),
            Some(Request::Tap("files".to_owned()))
        );
        for path in ["/v1/mcp", "/v1/sse", "/v1/message", "/mcp/v1", "/v1", "/v1/tap"] {
            assert_eq!(Request::of(path), None, "{path}");
        }
    }
}
