//! A modern request from its line to its answer's.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use protocol::client_face::modern::{self, Classified, InvalidRequest};
use protocol::client_face::stdio::ModernRequestKey;
use protocol::exchange::{Failure, Principal};
use protocol::message::{Member, Message};
use protocol::modern_request::Line;
use protocol::session::Accepts;

use super::StdioClient;
use crate::endpoint::CallOptions;
use crate::frontend::modern::{Retried, answer_input_required, retried, unknown_state};
use crate::modern_request_handle::{ModernRequestHandle, QuestionDebounce};
use crate::reply::Refusal;

/// The next step of a modern request.
enum Next {
    Tell(Bytes),
    Answer { line: Bytes, failed: bool },
    Ask { round: u32 },
    Nothing,
}

/// Disconnects a modern request when its task is ended.
struct DisconnectOnDrop(Arc<ModernRequestHandle>);

impl Drop for DisconnectOnDrop {
    fn drop(&mut self) {
        self.0.handle_disconnect();
    }
}

impl StdioClient {
    pub(super) async fn run_modern_request(
        self: &Arc<Self>,
        modern_request: ModernRequestKey,
        message: Message,
        classified: Classified,
    ) {
        let id = message.raw_copy(Member::Id).unwrap_or_default();
        let handle = match self.start_request(message, classified).await {
            Ok(handle) => DisconnectOnDrop(handle),
            Err(refusal) => {
                let line = refusal.body(Some(&id));
                return self.with(|client, _| client.handle_failure(modern_request, &line));
            }
        };
        let mut debounce = QuestionDebounce::default();
        loop {
            match poll_fn(|context| poll(&handle.0, &mut debounce, context)).await {
                Next::Tell(line) => self.with(|client, _| client.handle_event(modern_request, &line)),
                Next::Answer { line, failed: false } => {
                    return self.with(|client, _| client.handle_answer(modern_request, &line));
                }
                Next::Answer { line, failed: true } => {
                    return self.with(|client, _| client.handle_failure(modern_request, &line));
                }
                Next::Ask { round } => {
                    if let Some(line) = answer_input_required(&self.destination, &handle.0, round) {
                        return self.with(|client, _| client.handle_answer(modern_request, &line));
                    }
                }
                Next::Nothing => {
                    let line = modern::lower_failure(&id, &Failure::SessionEnded);
                    return self.with(|client, _| client.handle_failure(modern_request, &line));
                }
            }
        }
    }

    /// Sets out, or goes on with a call that waited for its client.
    async fn start_request(
        &self,
        message: Message,
        classified: Classified,
    ) -> Result<Arc<ModernRequestHandle>, Refusal> {
        let principal = Principal::anonymous();
        let message = match retried(&self.destination, &principal, &message, classified)? {
            Retried::Parked(handle, round) => {
                handle
                    .retry(message, round, Accepts::Events, None)
                    .map_err(|_| Refusal::Modern(unknown_state()))?;
                return Ok(handle);
            }
            Retried::New(message) => message,
        };
        let client = modern::client(&message, principal);
        let modern_request = self
            .destination
            .modern_request(
                client,
                &HeaderMap::new(),
                message,
                CallOptions {
                    classified,
                    accepts: Accepts::Events,
                    mirrored: None,
                    permit: None,
                    tools: None,
                },
            )
            .await?;
        // A destination that shows only its own era answers as a server of that era would.
        modern_request.ok_or(Refusal::Modern(InvalidRequest::NoSuchMethod))
    }
}

fn poll(
    handle: &ModernRequestHandle,
    debounce: &mut QuestionDebounce,
    context: &mut Context<'_>,
) -> Poll<Next> {
    match handle.poll_line(debounce, context) {
        Line::Waiting => Poll::Pending,
        Line::Event(line) => Poll::Ready(Next::Tell(line)),
        Line::Answer { body, failure } => Poll::Ready(Next::Answer {
            line: body,
            failed: failure.is_some(),
        }),
        Line::Ask { round } => Poll::Ready(Next::Ask { round }),
        Line::Over => Poll::Ready(Next::Nothing),
    }
}
