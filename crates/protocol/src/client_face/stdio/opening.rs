//! Opening the one session of a legacy client.

use std::collections::VecDeque;

use super::{ClientState, LineClient, Output};
use crate::client_face::legacy;
use crate::error_code;
use crate::message::{Kind, Member, Message};
use crate::method::Method;
use crate::time::Moment;

/// A session that was requested, and whose handshake the server has not answered.
#[derive(Debug)]
pub(super) struct Opening {
    /// The message that it is opened with.
    first: Message,
    /// Messages that the client sent meanwhile.
    waiting: VecDeque<Message>,
}

impl LineClient {
    pub(super) fn open(&mut self, first: Message) {
        self.load.add(first.len());
        self.outputs.push_back(Output::Open(first.clone()));
        self.state = ClientState::Opening(Box::new(Opening {
            first,
            waiting: VecDeque::new(),
        }));
    }

    /// Holds a message that comes before the handshake is answered. If the handshake fails, the
    /// client may begin anew.
    pub(super) fn hold(&mut self, message: Message) {
        match (message.kind(), message.method()) {
            (Kind::Request, Method::Ping) => self.answer_ping(&message),
            (Kind::Request, Method::Initialize) => self.refuse(
                &message,
                error_code::INVALID_REQUEST,
                "the session is being initialized already",
            ),
            (Kind::Request | Kind::Notification | Kind::Result | Kind::Error, _) => {
                if let ClientState::Opening(opening) = &mut self.state {
                    self.load.add(message.len());
                    opening.waiting.push_back(message);
                }
            }
        }
    }

    pub(super) fn settle_on_legacy(&mut self) {
        let state = std::mem::replace(&mut self.state, ClientState::Legacy);
        if let ClientState::Opening(opening) = state {
            for message in opening.waiting {
                self.load.remove(message.len());
                self.take(message);
            }
        }
    }

    /// The opening message was answered, but the session was not opened.
    pub(super) fn handle_open_refused(&mut self, now: Moment, line: &[u8], request_bytes: usize) {
        self.load.remove(request_bytes);
        self.outgoing.push(line);
        self.fail_opening(now);
    }

    /// There is no session to be had.
    pub fn handle_not_opened(&mut self, now: Moment, code: i32, text: &str, data: Option<&str>) {
        let ClientState::Opening(opening) = &self.state else {
            return;
        };
        let line = legacy::error(opening.first.raw(Member::Id), code, text, data);
        self.load.remove(opening.first.len());
        self.outgoing.push(&line);
        self.fail_opening(now);
    }

    /// The client may begin again, and its waiting messages are handled again.
    fn fail_opening(&mut self, now: Moment) {
        self.outputs.push_back(Output::Close);
        let state = std::mem::replace(&mut self.state, ClientState::Undecided);
        if let ClientState::Opening(opening) = state {
            for message in opening.waiting {
                self.load.remove(message.len());
                self.handle_message(now, message);
            }
        }
    }
}
