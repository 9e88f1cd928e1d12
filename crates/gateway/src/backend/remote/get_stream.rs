//! The GET stream of a legacy server: messages that belong to no request.

use std::sync::Arc;
use std::time::Duration;

use protocol::delivery::Backoff;
use protocol::wire::sse::SseParser;
use tokio::sync::oneshot;

use super::http_client::Response;
use super::remote_session::RemoteSession;
use super::server::{Content, content};

/// How the stream ended for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The server has no such stream.
    NotOffered,
    /// The server does not know the session any more. `first` to notice?
    SessionLost { first: bool },
}

/// Listens until the server has nothing to listen to. A stream that breaks off is taken up where it
/// stood. `opened` learns when the server has answered for the first time.
pub(super) async fn listen(session: Arc<RemoteSession>, opened: oneshot::Sender<()>) -> StreamEnd {
    let mut opened = Some(opened);
    let mut backoff = Backoff::default();
    let mut parser = SseParser::new(session.max_message_bytes);
    loop {
        let negotiated = session.negotiated();
        let last_event = parser.last_event_id().cloned();
        let retry = parser.retry();
        let outbound = session.get(&negotiated, last_event.as_ref());
        let mut pause = None;
        let answered = session.server.send(&outbound).await;
        if let Some(opened) = opened.take() {
            // The receiver is gone if opening took too long.
            let _ = opened.send(());
        }
        if let Ok(response) = answered {
            match response.status().as_u16() {
                404 if negotiated.has_session() => {
                    let first = session.forget(&negotiated);
                    return StreamEnd::SessionLost { first };
                }
                200..=299 if content(&response) == Content::Events => {
                    // Half an event of the broken stream must not be joined with the new one.
                    parser = SseParser::resuming(session.max_message_bytes, last_event, retry);
                    if read(&session, response, &mut parser).await {
                        backoff.handle_success();
                    }
                    pause = parser.retry().map(Duration::from_millis);
                }
                429 | 500..=599 => {}
                _ => return StreamEnd::NotOffered,
            }
        }
        let growing = backoff.handle_failure();
        tokio::time::sleep(pause.unwrap_or(growing).min(protocol::delivery::LONGEST_PAUSE)).await;
    }
}

/// Passes each message to the instance. Returns whether there was one.
async fn read(session: &RemoteSession, mut response: Response, parser: &mut SseParser) -> bool {
    let mut any = false;
    while let Ok(Some(chunk)) = response.chunk().await {
        parser.push(&chunk);
        loop {
            match parser.next() {
                Ok(Some(event)) => {
                    any = true;
                    if event.is_message() && !event.data.is_empty() {
                        session.receive(event.data, None);
                        session.instance.delivered().await;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(destination = %session.instance.destination(), %error, "event stream failed");
                    return any;
                }
            }
        }
    }
    any
}
