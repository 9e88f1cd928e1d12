//! A modern request from its line to its answer's.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use protocol::client_face::modern::{self, Meaning, Objection};
use protocol::client_face::stdio::ErrandKey;
use protocol::errand::Line;
use protocol::exchange::{Failure, Principal};
use protocol::message::{Member, Message};
use protocol::session::Accepts;

use super::Desk;
use crate::client_face::modern::{Retried, put, retried, unknown_state};
use crate::destination::Journey;
use crate::errand_port::{ErrandPort, Gathering};
use crate::reply::Refusal;

/// What to do about an errand next.
enum Next {
    Tell(Bytes),
    Answer { line: Bytes, failed: bool },
    Ask { round: u32 },
    Nothing,
}

/// Gives an errand up when the task that carries it is ended.
struct Carried(Arc<ErrandPort>);

impl Drop for Carried {
    fn drop(&mut self) {
        self.0.hang_up();
    }
}

impl Desk {
    pub(super) async fn run_errand(self: &Arc<Self>, errand: ErrandKey, message: Message, meaning: Meaning) {
        let id = message.raw_copy(Member::Id).unwrap_or_default();
        let port = match self.depart(message, meaning).await {
            Ok(port) => Carried(port),
            Err(refusal) => {
                let line = refusal.body(Some(&id));
                return self.with(|client, _| client.handle_failure(errand, &line));
            }
        };
        let mut gathering = Gathering::default();
        loop {
            match poll_fn(|context| poll(&port.0, &mut gathering, context)).await {
                Next::Tell(line) => self.with(|client, _| client.handle_event(errand, &line)),
                Next::Answer { line, failed: false } => {
                    return self.with(|client, _| client.handle_answer(errand, &line));
                }
                Next::Answer { line, failed: true } => {
                    return self.with(|client, _| client.handle_failure(errand, &line));
                }
                Next::Ask { round } => {
                    let line = put(&self.destination, &port.0, round, &id);
                    return self.with(|client, _| client.handle_answer(errand, &line));
                }
                Next::Nothing => {
                    let line = modern::lower_failure(&id, &Failure::SessionEnded);
                    return self.with(|client, _| client.handle_failure(errand, &line));
                }
            }
        }
    }

    /// Sets out, or goes on with a call that waited for its client.
    async fn depart(&self, message: Message, meaning: Meaning) -> Result<Arc<ErrandPort>, Refusal> {
        let principal = Principal::anonymous();
        let message = match retried(&self.destination, &principal, &message, meaning)? {
            Retried::Parked(port, round) => {
                port.retry(message, round, Accepts::Events, None)
                    .map_err(|_| Refusal::Modern(unknown_state()))?;
                return Ok(port);
            }
            Retried::New(message) => message,
        };
        let client = modern::client(&message, principal);
        let errand = self
            .destination
            .errand(
                client,
                &HeaderMap::new(),
                message,
                Journey {
                    meaning,
                    accepts: Accepts::Events,
                    mirrored: None,
                    permit: None,
                },
            )
            .await?;
        // A destination that shows only its own era answers as a server of that era would.
        errand.ok_or(Refusal::Modern(Objection::NoSuchMethod))
    }
}

fn poll(port: &ErrandPort, gathering: &mut Gathering, context: &mut Context<'_>) -> Poll<Next> {
    match port.poll_line(context.waker()) {
        Line::Waiting => Poll::Pending,
        Line::Event(line) => Poll::Ready(Next::Tell(line)),
        Line::Answer { body, failure } => Poll::Ready(Next::Answer {
            line: body,
            failed: failure.is_some(),
        }),
        Line::Ask { round } => gathering.poll(context).map(|()| Next::Ask { round }),
        Line::Over => Poll::Ready(Next::Nothing),
    }
}
