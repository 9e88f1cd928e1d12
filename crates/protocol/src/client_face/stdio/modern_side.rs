//! A modern client on a stream of lines: its requests are errands, and it cancels them by their ids.

use bytes::Bytes;

use super::{ErrandKey, Footing, LineClient, Output};
use crate::client_face::modern::{self, Meaning, Objection};
use crate::error_code;
use crate::message::{Kind, Member, Message};
use crate::method::Method;
use crate::time::Moment;

/// A modern request that is under way.
#[derive(Debug)]
pub(super) struct OpenErrand {
    /// The client's raw id.
    id: Bytes,
    bytes: usize,
    meaning: Meaning,
    /// When a client that only wants to know which era is spoken has waited long enough.
    deadline: Option<Moment>,
    /// The client has been told something about it.
    begun: bool,
}

impl LineClient {
    pub(super) fn handle_modern(&mut self, now: Moment, message: Message) {
        match (message.kind(), message.method()) {
            (Kind::Request, Method::Initialize) => {
                let requested = message.text(Member::ProtocolVersion).unwrap_or_default();
                self.refuse_modern(&message, &Objection::UnsupportedVersion(requested.into_owned()));
            }
            (Kind::Request, _) => self.set_out(now, message),
            (Kind::Notification, _) => self.handle_cancellation(&message),
            // This era's servers do not ask, so there is nothing that could be answered.
            (Kind::Result | Kind::Error, _) => {}
        }
    }

    /// Sets out on a request that describes itself, if it does so well.
    pub(super) fn set_out(&mut self, now: Moment, message: Message) {
        let judged = modern::check_envelope(&message)
            .and_then(|()| modern::check_version(&message))
            .and_then(|()| modern::lift(&message));
        let meaning = match judged {
            Ok(meaning) => meaning,
            Err(objection) => return self.refuse_modern(&message, &objection),
        };
        let deadline = match meaning {
            Meaning::Discover => Some(now.after(self.limits.probe)),
            Meaning::Listen | Meaning::Call { .. } => {
                self.footing = Footing::Modern;
                None
            }
        };
        let errand = ErrandKey(self.next_errand);
        self.next_errand += 1;
        let open = OpenErrand {
            id: message.raw_copy(Member::Id).unwrap_or_default(),
            bytes: message.len(),
            meaning,
            deadline,
            begun: false,
        };
        self.load.add(open.bytes);
        self.errands.insert(errand, open);
        self.outputs.push_back(Output::Depart {
            errand,
            message,
            meaning,
        });
    }

    fn refuse_modern(&mut self, message: &Message, objection: &Objection) {
        let id = message.raw(Member::Id).filter(|_| message.has_valid_id());
        self.outgoing.push(&objection.body(id));
    }

    /// The newest errand with the id is recalled: clients may use one id many times.
    pub(super) fn handle_cancellation(&mut self, message: &Message) {
        if message.method() != Method::Cancelled {
            return;
        }
        let Some(id) = message.raw(Member::RequestId) else {
            return;
        };
        let found = self
            .errands
            .iter()
            .rev()
            .find(|(_, open)| open.id == id)
            .map(|(errand, _)| *errand);
        if let Some(errand) = found {
            self.forget(errand);
            self.outputs.push_back(Output::Recall(errand));
        }
    }

    fn forget(&mut self, errand: ErrandKey) -> Option<OpenErrand> {
        let open = self.errands.remove(&errand)?;
        self.load.remove(open.bytes);
        Some(open)
    }

    // From the errands. What concerns one that was recalled is nobody's business.

    /// Something about an errand; more follows.
    pub fn handle_event(&mut self, errand: ErrandKey, line: &Bytes) {
        let Some(open) = self.errands.get_mut(&errand) else {
            return;
        };
        // A listen begins with its acknowledgement, which must not be lost.
        if !std::mem::replace(&mut open.begun, true) && open.meaning == Meaning::Listen {
            self.outgoing.push(line);
        } else {
            self.notify(line);
        }
    }

    /// An errand's final answer, or the one that asks for input.
    pub fn handle_answer(&mut self, errand: ErrandKey, line: &Bytes) {
        let Some(open) = self.forget(errand) else {
            return;
        };
        self.outgoing.push(line);
        if open.meaning == Meaning::Listen && modern::error_code_of(line).is_none() {
            // The specification wants both. The result comes first: some clients take a cancellation that comes
            // first for an end that was not intended.
            let farewell = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{}}}}}"#,
                String::from_utf8_lossy(&open.id)
            );
            self.outgoing.push(farewell.as_bytes());
        }
    }

    /// There is no answer to an errand. Whoever only wanted to know which era is spoken is sent to the handshake, which
    /// may wait for longer.
    pub fn handle_failure(&mut self, errand: ErrandKey, line: &Bytes) {
        match self.errands.get(&errand).map(|open| open.meaning) {
            Some(Meaning::Discover) => {
                self.dismiss_probe(errand);
            }
            Some(Meaning::Listen | Meaning::Call { .. }) | None => self.handle_answer(errand, line),
        }
    }

    /// The server is away: there is no need to let those wonder who only want to know which era is spoken.
    pub fn handle_absence(&mut self) {
        self.dismiss_probes(|_| true);
    }

    /// When [`Self::handle_deadline`] wants to be called.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.errands.values().filter_map(|open| open.deadline).min()
    }

    /// Ends what waits longer than it may.
    pub fn handle_deadline(&mut self, now: Moment) {
        self.dismiss_probes(|deadline| deadline <= now);
    }

    fn dismiss_probes(&mut self, which: impl Fn(Moment) -> bool) {
        let late: Vec<ErrandKey> = self
            .errands
            .iter()
            .filter(|(_, open)| open.deadline.is_some_and(&which))
            .map(|(errand, _)| *errand)
            .collect();
        for errand in late {
            if self.dismiss_probe(errand) {
                self.outputs.push_back(Output::Recall(errand));
            }
        }
    }

    fn dismiss_probe(&mut self, errand: ErrandKey) -> bool {
        let Some(open) = self.forget(errand) else {
            return false;
        };
        let text = "the server's era is not known yet; use `initialize`";
        let line = modern::error(Some(&open.id), error_code::METHOD_NOT_FOUND, text, None);
        self.outgoing.push(&line);
        true
    }
}
