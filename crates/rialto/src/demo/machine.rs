//! The demo server without I/O: lines in, messages out, time as an argument. It decides the era of
//! a client; `legacy.rs` and `modern.rs` do the rest.
use std::collections::VecDeque;
use std::time::Duration;

use protocol::version::Era;
use serde_json::Value;

use super::DemoEra;
use super::legacy::Legacy;
use super::message::{self, Message, Refusal};
use super::modern::{self, Modern};
use super::tools::DemoState;

/// Messages in one batch: all their answers are held at once.
const MAX_BATCH: usize = 100;

#[derive(Debug)]
pub(super) struct Machine {
    spoken: Spoken,
    tokens: fn() -> String,
    state: DemoState,
    out: VecDeque<Value>,
}

/// What the handler of a message uses: the time, the state of the tools, and the queue of messages
/// to send.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) now: Duration,
    pub(super) state: &'a mut DemoState,
    pub(super) out: &'a mut VecDeque<Value>,
}

impl Scene<'_> {
    /// Queues the response to a request. `None`: it comes later, or is queued already.
    pub(super) fn respond(&mut self, id: Value, answer: Result<Option<Value>, Refusal>, era: Era) {
        match answer {
            Ok(Some(result)) => self.out.push_back(message::result(id, result)),
            Ok(None) => {}
            Err(refusal) => self.out.push_back(message::refusal(Some(id), &refusal, era)),
        }
    }
}

#[derive(Debug)]
enum Spoken {
    Undecided,
    Legacy(Legacy),
    Modern(Modern),
}

impl Machine {
    pub(super) fn new(era: DemoEra, tokens: fn() -> String) -> Machine {
        let spoken = match era {
            DemoEra::Legacy => Spoken::Legacy(Legacy::default()),
            DemoEra::Modern => Spoken::Modern(Modern::new(tokens)),
            DemoEra::Both => Spoken::Undecided,
        };
        Machine {
            spoken,
            tokens,
            state: DemoState::default(),
            out: VecDeque::new(),
        }
    }

    pub(super) fn poll_output(&mut self) -> Option<Value> {
        self.out.pop_front()
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        match &self.spoken {
            Spoken::Undecided => None,
            Spoken::Legacy(legacy) => legacy.next_deadline(),
            Spoken::Modern(modern) => modern.next_deadline(),
        }
    }

    pub(super) fn handle_deadline(&mut self, now: Duration) {
        let mut scene = Scene {
            now,
            state: &mut self.state,
            out: &mut self.out,
        };
        match &mut self.spoken {
            Spoken::Undecided => {}
            Spoken::Legacy(legacy) => legacy.handle_deadline(&mut scene),
            Spoken::Modern(modern) => modern.handle_deadline(&mut scene),
        }
    }

    /// The client has closed stdin: no request will come.
    pub(super) fn handle_end(&mut self) {
        match &mut self.spoken {
            Spoken::Undecided | Spoken::Legacy(_) => {}
            Spoken::Modern(modern) => self.out.extend(modern.handle_end()),
        }
    }

    pub(super) fn handle_line(&mut self, now: Duration, line: &[u8]) {
        if line.trim_ascii().is_empty() {
            return;
        }
        match serde_json::from_slice(line) {
            Ok(Value::Array(batch)) if self.accepts_batches() && (1..=MAX_BATCH).contains(&batch.len()) => {
                // JSON-RPC lets the answers of a batch come one by one, which is what a client that
                // also knows the later revisions reads best.
                for value in batch {
                    self.handle_value(now, value);
                }
            }
            Ok(value) => self.handle_value(now, value),
            Err(error) => self.refuse(None, &Refusal::NotJson(error.to_string())),
        }
    }

    pub(super) fn handle_overlong_line(&mut self, limit: usize) {
        self.refuse(
            None,
            &Refusal::NotJson(format!("a line of more than {limit} bytes")),
        );
    }

    fn handle_value(&mut self, now: Duration, value: Value) {
        match message::read(value) {
            Ok(message) => self.handle_message(now, message),
            Err((id, refusal)) => self.refuse(id, &refusal),
        }
    }

    fn handle_message(&mut self, now: Duration, message: Message) {
        let scene = &mut Scene {
            now,
            state: &mut self.state,
            out: &mut self.out,
        };
        match message {
            Message::Request(request) => match &mut self.spoken {
                Spoken::Legacy(legacy) => legacy.handle_request(scene, request),
                Spoken::Modern(modern) => modern.handle_request(scene, request),
                // A probe decides nothing: clients send it to find out, and may go on in either
                // era.
                Spoken::Undecided if request.method == "server/discover" => {
                    scene.out.push_back(modern::discover(request));
                }
                Spoken::Undecided if modern::is_spoken_in(&request.params) => {
                    let settled = modern::accepts(&request.params);
                    let mut modern = Modern::new(self.tokens);
                    modern.handle_request(scene, request);
                    // A refused envelope leaves the client free to fall back to `initialize`.
                    if settled {
                        self.spoken = Spoken::Modern(modern);
                    }
                }
                Spoken::Undecided => {
                    let mut legacy = Legacy::default();
                    legacy.handle_request(scene, request);
                    self.spoken = Spoken::Legacy(legacy);
                }
            },
            Message::Notification { method, params } => match &mut self.spoken {
                Spoken::Legacy(legacy) => legacy.handle_notification(scene, &method, &params),
                Spoken::Modern(modern) => modern.handle_notification(scene, &method, &params),
                Spoken::Undecided => {}
            },
            Message::Response { id, outcome } => match &mut self.spoken {
                Spoken::Legacy(legacy) => legacy.handle_response(scene, &id, outcome),
                Spoken::Modern(_) | Spoken::Undecided => {
                    tracing::warn!(rpc_id = %id, "a response without a request");
                }
            },
        }
    }

    fn accepts_batches(&self) -> bool {
        match &self.spoken {
            Spoken::Legacy(legacy) => legacy.accepts_batches(),
            Spoken::Modern(_) | Spoken::Undecided => false,
        }
    }

    fn refuse(&mut self, id: Option<Value>, refusal: &Refusal) {
        tracing::warn!(?refusal, "refused a malformed message");
        // No malformed message has a code that differs between the eras.
        self.out.push_back(message::refusal(id, refusal, Era::Modern));
    }
}
