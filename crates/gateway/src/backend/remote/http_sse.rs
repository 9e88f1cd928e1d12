//! The HTTP+SSE transport of 2024-11-05: one event stream for all messages of the server, and an
//! address for all messages to it.
//!
//! The stream is the session: when it ends, everything ends, and the next one begins with a new
//! handshake.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::delivery::{
    AttemptOutcome, Delivery, MessageInfo, PostRequest, RetryDecision, answered, idempotency, is_definite,
};
use protocol::exchange::{BackendError, Upstream, UpstreamFault};
use protocol::method::Method;
use protocol::wire::sse::{SseEvent, SseParser};
use url::Url;

use super::http_client::{Address, Response};
use super::remote_session::RemoteSession;
use super::server::{Content, content, error_body, error_in, text_of};

/// How long a server may take to send its `endpoint` event.
const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may take to respond to a message. One that it works on may take longer.
const POST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the next message waits for a server to take a request, so that both arrive in order.
const REQUEST_ORDER: Duration = Duration::from_secs(1);
/// The same for a notification.
const NOTE_ORDER: Duration = Duration::from_secs(5);
/// Before its `endpoint` event a server sends little.
const MAX_ENDPOINT: usize = 64 << 10;

/// An open stream.
#[derive(Debug)]
pub(super) struct EventStream {
    response: Response,
    parser: SseParser,
    endpoint: Arc<Address>,
}

/// Why there is no stream.
#[derive(Debug)]
pub(super) enum NotOpened {
    /// The server could not be reached, or is not well: there may be a stream later.
    Out(Arc<BackendError>),
    /// The server was reached and has no stream for us.
    Refused(Upstream),
}

impl NotOpened {
    fn out(what: impl Into<String>) -> Self {
        Self::Out(backend_error(what.into()))
    }

    fn refused(fault: UpstreamFault, what: impl Into<String>) -> Self {
        Self::Refused(Upstream::new(fault, what))
    }
}

/// Opens the stream and waits for the address.
pub(super) async fn open(session: &RemoteSession) -> Result<EventStream, NotOpened> {
    match tokio::time::timeout(ENDPOINT_TIMEOUT, reach(session)).await {
        Ok(reached) => reached,
        Err(_) => Err(NotOpened::out(format!(
            "the server did not say where to send messages within {ENDPOINT_TIMEOUT:?}"
        ))),
    }
}

fn backend_error(what: String) -> Arc<BackendError> {
    Arc::new(BackendError {
        what,
        ..BackendError::default()
    })
}

async fn reach(session: &RemoteSession) -> Result<EventStream, NotOpened> {
    let outbound = session.get(&session.negotiated(), None);
    let at = &session.server.spec().url;
    let mut response = session
        .server
        .send(&outbound)
        .await
        .map_err(|outcome| match outcome {
            AttemptOutcome::Unreachable { what } | AttemptOutcome::BrokenOff { what } => NotOpened::out(what),
            AttemptOutcome::NotSignedIn { what } => NotOpened::refused(UpstreamFault::Unauthorized, what),
            AttemptOutcome::Unsafe { what } => NotOpened::refused(UpstreamFault::Unsafe, what),
            AttemptOutcome::Invalid { what } => NotOpened::refused(UpstreamFault::Invalid, what),
            AttemptOutcome::Silent { .. } | AttemptOutcome::Status { .. } | AttemptOutcome::StreamEnded => {
                NotOpened::out("no answer")
            }
        })?;
    let status = response.status().as_u16();
    if !response.status().is_success() {
        let words = error_body(&mut response).await;
        let what = answered(status, text_of(&words, error_in(&words).as_deref()).as_deref());
        return Err(match status {
            401 | 403 => NotOpened::refused(UpstreamFault::Unauthorized, what),
            _ if is_definite(status) => NotOpened::refused(UpstreamFault::Refused, what),
            _ => NotOpened::out(what),
        });
    }
    if content(&response) != Content::Events {
        let what = format!("the server has no event stream at this address (HTTP status {status})");
        return Err(NotOpened::refused(UpstreamFault::Refused, what));
    }
    let mut parser = SseParser::new(session.max_message_bytes.max(MAX_ENDPOINT));
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => parser.push(&chunk),
            Ok(None) | Err(_) => return Err(NotOpened::out("the server ended its event stream at once")),
        }
        let invalid = |what: String| NotOpened::refused(UpstreamFault::Invalid, what);
        while let Some(event) = parser.next().map_err(|error| invalid(error.to_string()))? {
            if event.event.as_deref() == Some(b"endpoint".as_slice()) {
                let endpoint =
                    endpoint(at, &event).map_err(|what| NotOpened::refused(UpstreamFault::Unsafe, what))?;
                let endpoint = Address::new(endpoint)
                    .ok_or_else(|| invalid("the server's endpoint is no address".into()))?;
                return Ok(EventStream {
                    response,
                    parser,
                    endpoint: Arc::new(endpoint),
                });
            }
        }
    }
}

/// Returns where to write to. It must be at the server's own origin: Rialto's credentials go along.
fn endpoint(at: &Url, event: &SseEvent) -> Result<Url, String> {
    let text = std::str::from_utf8(&event.data).map_err(|_| "the endpoint is no text")?;
    let endpoint = at
        .join(text)
        .map_err(|_| "the server's endpoint is no address".to_owned())?;
    if endpoint.origin() != at.origin() {
        return Err(format!(
            "the server wants messages sent to another origin ({}), which is refused",
            endpoint.origin().ascii_serialization()
        ));
    }
    Ok(endpoint)
}

impl EventStream {
    /// Returns the server's next message; `None` when the stream has ended.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.parser.next() {
                Ok(Some(event)) if event.is_message() && !event.data.is_empty() => return Some(event.data),
                Ok(Some(_)) => continue,
                Ok(None) => {}
                Err(_) => return None,
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.parser.push(&chunk),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    pub(super) fn endpoint(&self) -> &Arc<Address> {
        &self.endpoint
    }
}

/// Returns after how long the next message may be sent though the server has not taken this one.
/// Nothing overtakes a handshake.
pub(super) fn overlaps_after(message_info: MessageInfo) -> Option<Duration> {
    match message_info {
        _ if is_handshake(message_info) => None,
        MessageInfo::Request { .. } => Some(REQUEST_ORDER),
        MessageInfo::Note { .. } => Some(NOTE_ORDER),
    }
}

/// Writes one message. `Err`: the stream's session is gone.
pub(super) async fn write(
    session: &RemoteSession,
    endpoint: &Arc<Address>,
    post: &PostRequest,
) -> Result<(), Arc<BackendError>> {
    let message_info = post.message_info;
    let mut delivery = Delivery::new(message_info, idempotency(message_info));
    loop {
        let outbound = session.post_to(endpoint, &post.line);
        let mut sending = std::pin::pin!(session.server.send(&outbound));
        let sent = loop {
            let sent = tokio::time::timeout(POST_TIMEOUT, sending.as_mut()).await;
            // A server may respond when it has answered, and may stop working on what is hung up
            // on.
            match message_info {
                MessageInfo::Request { id, .. } if sent.is_err() && !is_handshake(message_info) => {
                    if !session.instance.is_unanswered(id) {
                        return Ok(());
                    }
                }
                MessageInfo::Request { .. } | MessageInfo::Note { .. } => break sent,
            }
        };
        let outcome = match sent {
            Ok(Ok(response)) if response.status().is_success() => return Ok(()),
            Ok(Ok(response)) => AttemptOutcome::Status {
                status: response.status().as_u16(),
                retry_after: super::server::retry_after(&response),
                in_session: true,
                text: None,
            },
            Ok(Err(outcome)) => outcome,
            Err(_) => AttemptOutcome::Silent {
                setting: "start_timeout",
                limit: POST_TIMEOUT,
            },
        };
        match delivery.handle_outcome(outcome) {
            RetryDecision::Again { after } => tokio::time::sleep(after).await,
            RetryDecision::Return { backend_error } => return Err(backend_error),
            RetryDecision::SessionLost => {
                return Err(backend_error("the server has forgotten the session".into()));
            }
            RetryDecision::Resume { .. } => return Ok(()),
            RetryDecision::Fail(failure) => {
                match message_info {
                    MessageInfo::Request { id, .. } => session.instance.undelivered(id, failure),
                    MessageInfo::Note { method } => tracing::warn!(
                        destination = %session.instance.destination(),
                        ?method,
                        reason = failure.reason(),
                        "the server did not accept a message"
                    ),
                }
                return Ok(());
            }
        }
    }
}

/// Returns whether it is the first request to a server, before which there is no call.
fn is_handshake(message_info: MessageInfo) -> bool {
    matches!(
        message_info,
        MessageInfo::Request {
            method: Method::Initialize | Method::ServerDiscover,
            ..
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(data: &'static str) -> SseEvent {
        SseEvent {
            event: Some(Bytes::from_static(b"endpoint")),
            data: Bytes::from_static(data.as_bytes()),
            id: None,
            retry: None,
        }
    }

    #[test]
    fn an_endpoint_is_taken_only_at_the_servers_own_origin() {
        let at = Url::parse("https://old.example.com/base/sse").unwrap();
        for (data, whole) in [
            ("/message?s=1", "https://old.example.com/message?s=1"),
            ("message?s=1", "https://old.example.com/base/message?s=1"),
            ("https://old.example.com/m", "https://old.example.com/m"),
        ] {
            assert_eq!(endpoint(&at, &named(data)).unwrap().as_str(), whole);
        }
        for data in [
            "https://evil.example.com/m",
            "http://old.example.com/m",
            "https://old.example.com:8443/m",
            "//evil.example.com/m",
            "file:///etc/passwd",
        ] {
            assert!(endpoint(&at, &named(data)).is_err(), "{data}");
        }
    }
}
