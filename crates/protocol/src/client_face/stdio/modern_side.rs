//! A modern client on a stream of lines: each request is a machine of its own, and is cancelled by
//! its id.

use bytes::Bytes;

use super::{ClientState, LineClient, ModernRequestKey, Output};
use crate::client_face::modern::{self, Classified, InvalidRequest};
use crate::error_code;
use crate::message::{Kind, Member, Message};
use crate::method::Method;
use crate::time::Moment;

/// A modern request that is under way.
#[derive(Debug)]
pub(super) struct OpenModernRequest {
    /// The client's raw id.
    id: Bytes,
    bytes: usize,
    classified: Classified,
    /// When a client that only probes the era has waited long enough.
    deadline: Option<Moment>,
    /// The client has received something about it.
    begun: bool,
}

impl LineClient {
    pub(super) fn handle_modern(&mut self, now: Moment, message: Message) {
        match (message.kind(), message.method()) {
            (Kind::Request, Method::Initialize) => {
                let requested = message.text(Member::ProtocolVersion).unwrap_or_default();
                self.refuse_modern(
                    &message,
                    &InvalidRequest::UnsupportedVersion(requested.into_owned()),
                );
            }
            (Kind::Request, _) => self.start_modern_request(now, message),
            (Kind::Notification, _) => self.handle_cancellation(&message),
            // This era's servers do not ask, so there is nothing that could be answered.
            (Kind::Result | Kind::Error, _) => {}
        }
    }

    /// Starts a modern request if its envelope is valid, else refuses it.
    pub(super) fn start_modern_request(&mut self, now: Moment, message: Message) {
        let judged = modern::check_envelope(&message)
            .and_then(|()| modern::check_version(&message))
            .and_then(|()| modern::lift(&message));
        let classified = match judged {
            Ok(classified) => classified,
            Err(invalid) => return self.refuse_modern(&message, &invalid),
        };
        let deadline = match classified {
            Classified::Discover => Some(now.after(self.limits.probe)),
            Classified::Listen | Classified::Call { .. } => {
                self.state = ClientState::Modern;
                None
            }
        };
        let modern_request = ModernRequestKey(self.next_modern_request);
        self.next_modern_request += 1;
        let open = OpenModernRequest {
            id: message.raw_copy(Member::Id).unwrap_or_default(),
            bytes: message.len(),
            classified,
            deadline,
            begun: false,
        };
        self.load.add(open.bytes);
        self.modern_requests.insert(modern_request, open);
        self.outputs.push_back(Output::Start {
            modern_request,
            message,
            classified,
        });
    }

    fn refuse_modern(&mut self, message: &Message, invalid: &InvalidRequest) {
        let id = message.raw(Member::Id).filter(|_| message.has_valid_id());
        self.outgoing.push(&invalid.body(id));
    }

    /// Abandons the newest modern request with the id: clients may use one id many times.
    pub(super) fn handle_cancellation(&mut self, message: &Message) {
        if message.method() != Method::Cancelled {
            return;
        }
        let Some(id) = message.raw(Member::RequestId) else {
            return;
        };
        let found = self
            .modern_requests
            .iter()
            .rev()
            .find(|(_, open)| open.id == id)
            .map(|(modern_request, _)| *modern_request);
        if let Some(modern_request) = found {
            self.forget(modern_request);
            self.outputs.push_back(Output::Abandon(modern_request));
        }
    }

    fn forget(&mut self, modern_request: ModernRequestKey) -> Option<OpenModernRequest> {
        let open = self.modern_requests.remove(&modern_request)?;
        self.load.remove(open.bytes);
        Some(open)
    }

    // From the modern requests. Output of an abandoned one is dropped.

    /// Something about a modern request; more follows.
    pub fn handle_event(&mut self, modern_request: ModernRequestKey, line: &Bytes) {
        let Some(open) = self.modern_requests.get_mut(&modern_request) else {
            return;
        };
        // A listen begins with its acknowledgement, which must not be lost.
        if !std::mem::replace(&mut open.begun, true) && open.classified == Classified::Listen {
            self.outgoing.push(line);
        } else {
            self.notify(line);
        }
    }

    /// A modern request's final answer, or the one that asks for input.
    pub fn handle_answer(&mut self, modern_request: ModernRequestKey, line: &Bytes) {
        let Some(open) = self.forget(modern_request) else {
            return;
        };
        self.outgoing.push(line);
        if open.classified == Classified::Listen && modern::error_code_of(line).is_none() {
            // The specification wants both. The result comes first: some clients take a
            // cancellation that comes first for an end that was not intended.
            let cancellation = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{}}}}}"#,
                String::from_utf8_lossy(&open.id)
            );
            self.outgoing.push(cancellation.as_bytes());
        }
    }

    /// A modern request has failed. A client that only probes for the era is sent to `initialize`,
    /// which may wait longer.
    pub fn handle_failure(&mut self, modern_request: ModernRequestKey, line: &Bytes) {
        match self
            .modern_requests
            .get(&modern_request)
            .map(|open| open.classified)
        {
            Some(Classified::Discover) => {
                self.dismiss_probe(modern_request);
            }
            Some(Classified::Listen | Classified::Call { .. }) | None => {
                self.handle_answer(modern_request, line)
            }
        }
    }

    /// The server is away: answers the probes for the era at once.
    pub fn handle_absence(&mut self) {
        self.dismiss_probes(|_| true);
    }

    /// Returns when [`Self::handle_deadline`] wants to be called.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.modern_requests
            .values()
            .filter_map(|open| open.deadline)
            .min()
    }

    /// Ends what waits longer than it may.
    pub fn handle_deadline(&mut self, now: Moment) {
        self.dismiss_probes(|deadline| deadline <= now);
    }

    fn dismiss_probes(&mut self, which: impl Fn(Moment) -> bool) {
        let late: Vec<ModernRequestKey> = self
            .modern_requests
            .iter()
            .filter(|(_, open)| open.deadline.is_some_and(&which))
            .map(|(modern_request, _)| *modern_request)
            .collect();
        for modern_request in late {
            if self.dismiss_probe(modern_request) {
                self.outputs.push_back(Output::Abandon(modern_request));
            }
        }
    }

    fn dismiss_probe(&mut self, modern_request: ModernRequestKey) -> bool {
        let Some(open) = self.forget(modern_request) else {
            return false;
        };
        let text = "the server's era is not known yet; use `initialize`";
        let line = modern::error(Some(&open.id), error_code::METHOD_NOT_FOUND, text, None);
        self.outgoing.push(&line);
        true
    }
}
