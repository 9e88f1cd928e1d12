//! Tools by which a client keeps one call in flight while it makes others, without a clock.

use std::time::Duration;

use super::Invocation;
use crate::stub::later::Call;
use crate::stub::server::{MOST_WAITING, Server};
use crate::stub::wire;

/// Progress of a held call goes on for at most this many steps.
const MOST_STEPS: u64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stub) enum Holding {
    Hold,
    WaitHeld,
    Release,
}

/// The calls that `release` answers, and the calls of `wait_held` whose call is not held yet.
#[derive(Debug, Default)]
pub(in crate::stub) struct HeldCalls {
    held: Vec<Call>,
    /// Each with the marker that it waits for.
    waiting: Vec<(String, Call)>,
}

impl HeldCalls {
    fn is_held(&self, marker: &str) -> bool {
        self.held
            .iter()
            .any(|call| call.marker.as_deref() == Some(marker))
    }

    /// Forgets the call with that raw id and returns it.
    pub(in crate::stub) fn cancel(&mut self, id: &str) -> Option<Call> {
        self.waiting.retain(|(_, call)| call.id != id);
        let at = self.held.iter().position(|call| call.id == id)?;
        Some(self.held.swap_remove(at))
    }
}

impl Server {
    pub(super) fn hold_calls(&mut self, holding: Holding, call: &Invocation<'_>) {
        match holding {
            Holding::Hold => self.hold(call),
            Holding::WaitHeld => {
                let awaited = call.arguments.text("held").unwrap_or_default();
                if self.held.is_held(&awaited) {
                    self.output.line(&call.echo());
                } else {
                    assert!(self.held.waiting.len() < MOST_WAITING, "too many calls wait");
                    self.held.waiting.push((awaited, call.call()));
                }
            }
            Holding::Release => {
                for held in std::mem::take(&mut self.held.held) {
                    self.later.cancel(&held.id);
                    self.output.line(&echo_of(&held));
                }
                self.output.line(&call.echo());
            }
        }
    }

    fn hold(&mut self, call: &Invocation<'_>) {
        assert!(self.held.held.len() < MOST_WAITING, "too many calls are held");
        self.held.held.push(call.call());
        let pace = Duration::from_millis(call.arguments.number("every_ms", 0));
        if let Some(token) = call.progress_token
            && !pace.is_zero()
        {
            let mut at = Duration::ZERO;
            for step in 1..=MOST_STEPS {
                at += pace;
                let params = format!(r#"{{"progressToken":{token},"progress":{step}}}"#);
                let line = wire::notification("notifications/progress", &params);
                self.later.send(at, Some(call.call()), line);
            }
        }
        let waiting = std::mem::take(&mut self.held.waiting);
        let (answered, still_waiting) = waiting
            .into_iter()
            .partition(|(awaited, _)| self.held.is_held(awaited));
        self.held.waiting = still_waiting;
        let answered: Vec<(String, Call)> = answered;
        for (_, call) in answered {
            self.output.line(&echo_of(&call));
        }
    }
}

fn echo_of(call: &Call) -> String {
    wire::response(&call.id, &wire::text_result(call.marker.as_deref().unwrap_or("")))
}
