//! Lines of the server: classification, answers and progress of calls.

use bytes::Bytes;

use super::state::Pending;
use super::tools::Page;
use super::{Multiplexer, Output};
use crate::backend_face::{Arrival, WireId, legacy, modern};
use crate::error_code;
use crate::exchange::{Failure, Request, SessionKey, Tell};
use crate::mcp_apps;
use crate::message::{Kind, Member, Message, ScanError};
use crate::method::Method;
use crate::time::Moment;
use crate::wire::line::{EnvelopeSeeker, Unfinished};

impl Multiplexer {
    /// The server has written something, be it only the beginning of a line.
    pub fn handle_activity(&mut self) {
        let next = self.ledger.upcoming_wire();
        self.ledger.liveness.handle_activity(next);
    }

    /// One line of the server's output.
    pub fn handle_line(&mut self, now: Moment, line: Bytes) {
        self.handle_message(now, line, None);
    }

    /// One message of the server. `origin` is the request in whose exchange it came, where requests
    /// have one.
    pub fn handle_message(&mut self, now: Moment, line: Bytes, origin: Option<WireId>) {
        self.handle_activity();
        // A line of JSON without `jsonrpc` is a log line, even if it has members such as `id`.
        let read = Message::scan(line.clone()).and_then(|message| match message.is_json_rpc() {
            true => Ok(message),
            false => Err(ScanError::NotJsonRpc),
        });
        let message = match read {
            Ok(message) => message,
            Err(error) => {
                self.ledger.counters.noise += 1;
                self.handle_unreadable(now, &line, error);
                self.ledger.outputs.push(Output::Noise { line, error });
                return;
            }
        };
        match self.link.face().recognise(&message) {
            // What is about one request does not come in the exchange of another.
            Arrival::Answer(id) | Arrival::Progress(id) | Arrival::Listening(id)
                if origin.is_some() && id != origin =>
            {
                self.ledger.counters.strays += 1;
            }
            Arrival::Answer(id) => self.handle_answer(now, id, message),
            Arrival::Progress(id) => self.handle_progress(now, id, &message),
            Arrival::Ping => {
                if let Some(id) = message
                    .raw(Member::Id)
                    .filter(|id| self.ledger.has_room(id.len()))
                {
                    legacy::write_empty_result(self.ledger.outgoing.end(), id);
                }
            }
            Arrival::Question => self.handle_question(now, message, origin),
            Arrival::Withdrawal => self.handle_withdrawal(now, message),
            Arrival::Log => self.handle_log(now, &message, origin),
            Arrival::ListChanged | Arrival::Updated | Arrival::Task if !self.is_listened_for(&message) => {
                self.ledger.counters.strays += 1
            }
            Arrival::ListChanged => {
                if message.method() == Method::ToolsListChanged {
                    self.tools.forget();
                }
                self.tell_all(&modern::unmarked(&message));
            }
            Arrival::Task => self.handle_task_notice(now, &modern::unmarked(&message)),
            Arrival::Updated => self.handle_updated(&modern::unmarked(&message)),
            Arrival::Listening(id) => self.handle_listening(now, id, &message),
            // What Rialto does not understand is for the only session, unless another principal has
            // used the link too.
            Arrival::Other => match self.attribution.sole_notified(&self.ledger) {
                Some(_) => self.tell_all(&modern::unmarked(&message)),
                None => self.ledger.counters.unattributed += 1,
            },
            Arrival::Forbidden => self.ledger.counters.strays += 1,
        }
    }

    /// A line that is no message may be meant as an answer. The call with its id fails at once.
    pub(super) fn handle_unreadable(&mut self, now: Moment, line: &[u8], error: ScanError) {
        // A line without `jsonrpc` is a log line, even if it has an `id`.
        if memchr::memmem::find(line, br#""jsonrpc""#).is_none() {
            return;
        }
        let mut seeker = EnvelopeSeeker::default();
        seeker.feed(line);
        if let (Some(id), false) = seeker.finish() {
            self.fail_answer(now, Some(&id), Failure::Invalid(error));
        }
    }

    /// A line beyond the limit goes on. Nothing else can come before it ends, so its bytes are no
    /// sign of life. Where it can name no request, or has no end, no one could ever be given an
    /// answer: the server is replaced.
    pub fn handle_unfinished(&mut self, line: Unfinished) {
        if !line.may_be_message {
            self.give_up_output("a line longer than max_message_bytes that is no message");
        } else if line.length > self.ledger.limits.endless() {
            self.give_up_output("a line without end");
        }
    }

    fn give_up_output(&mut self, why: &'static str) {
        self.ledger.counters.noise += 1;
        self.ledger.outputs.push(Output::Replace { why });
    }

    /// A line that was too long to be kept: `id` is its id, `request` is true if it was no answer.
    pub fn handle_too_long(&mut self, now: Moment, id: Option<&[u8]>, request: bool, length: u64) {
        self.handle_activity();
        if id.is_none() && !request {
            return self.give_up_output("a line longer than max_message_bytes that names no request");
        }
        if request {
            if let Some(id) = id.filter(|id| self.has_room_for_a_refusal(id)) {
                let limit = self.ledger.limits.max_message_bytes;
                let text = format!("the message is larger than max_message_bytes ({limit})");
                self.link
                    .refuse(id, error_code::INVALID_REQUEST, &text, &mut self.ledger);
            }
            self.ledger.counters.noise += 1;
            return;
        }
        let failure = Failure::TooLarge {
            length,
            limit: self.ledger.limits.max_message_bytes,
        };
        self.fail_answer(now, id, failure);
    }

    /// The server has answered the request with this raw id, but its answer cannot be used.
    pub(super) fn fail_answer(&mut self, now: Moment, id: Option<&[u8]>, failure: Failure) {
        let id = id
            .and_then(|id| std::str::from_utf8(id).ok())
            .and_then(|id| id.parse().ok())
            .map(WireId);
        match id {
            Some(id) => self.handle_undelivered(now, id, failure),
            None => self.ledger.counters.strays += 1,
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "only the list of tools is filtered"
    )]
    pub(super) fn handle_answer(&mut self, now: Moment, id: Option<WireId>, message: Message) {
        let Some(id) = id.filter(|id| self.ledger.pending(*id).is_some()) else {
            if let Some(id) = id {
                self.attribution.abandoned.handle_answer(id);
            }
            self.ledger.counters.strays += 1;
            return;
        };
        match self.ledger.take_internal(id) {
            Some(Pending::Handshake(era)) => return self.handle_handshake(now, era, message),
            Some(Pending::Listen) => return self.handle_listen_end(now, id, &message),
            Some(Pending::TaskPoll { of }) => return self.handle_task_poll(now, id, of, &message),
            Some(Pending::Background { task }) => {
                return self.tasks.handle_background(&task, &mut self.ledger, &self.link);
            }
            Some(Pending::Call(_) | Pending::Own { .. }) | None => {}
        }
        if let Some(call) = self.ledger.call(id)
            && !call.doing.is_working()
        {
            // An answer was given already; this is a second one.
            self.ledger.counters.strays += 1;
            return;
        }
        if self.begin_round(now, id, &message) || self.refresh_tools(now, id, &message) {
            return;
        }
        let message = if self.link.offers_tasks() {
            match self.take_task_answer(now, id, message) {
                Some(message) => message,
                None => return,
            }
        } else {
            message
        };
        let own = matches!(self.ledger.pending(id), Some(Pending::Own { .. }));
        if own {
            match self
                .tools
                .handle_page(id, &message, &mut self.ledger, &mut self.link)
            {
                Page::Other => {}
                Page::Next => {
                    self.ledger.remove(id);
                    return;
                }
                Page::Last => {
                    self.admit(now);
                    self.ledger.remove(id);
                    return;
                }
            }
        }
        // No client waits for the answer to a request of Rialto's own.
        let Some(call) = self.finish_call(now, id) else {
            return;
        };
        match (&call.request, message.kind()) {
            (Request::Subscribe { uri }, Kind::Result) => self.subscriptions.confirm(uri),
            (Request::Subscribe { uri }, _) => {
                self.subscriptions.unsubscribe(call.session, uri);
            }
            (Request::SetLevel { .. }, Kind::Error) => {
                self.subscriptions.forget_level(call.session);
            }
            (
                Request::Plain
                | Request::Unsubscribe { .. }
                | Request::SetLevel { .. }
                | Request::Watch { .. },
                _,
            ) => {}
        }
        if call.method() == Method::ToolsList {
            self.tools.note_list(&call, &message, &self.link);
        }
        let message = match call.method() {
            Method::ToolsList => self.shown_tools(call.session, message),
            _ => message,
        };
        if call.method() == Method::ToolsList {
            self.tools.count_shown(&call, &message);
        }
        self.ledger.tell(Tell::Reply {
            session: call.session,
            call: call.call,
            message,
            era: self.link.face().era(),
        });
    }

    /// Returns the list of tools as a session is to see it.
    fn shown_tools(&self, session: SessionKey, list: Message) -> Message {
        let list = self.tools.without_denied(&list).unwrap_or(list);
        let client = self.ledger.client(session);
        let shows_interfaces = client.is_none_or(|client| client.capabilities.shows_interfaces());
        let shown = match shows_interfaces || !self.link.face().declares_union() {
            true => None,
            false => mcp_apps::without_app_only_tools(&list),
        };
        shown.unwrap_or(list)
    }

    pub(super) fn handle_progress(&mut self, now: Moment, id: Option<WireId>, message: &Message) {
        let call = id.and_then(|id| self.ledger.call(id));
        let Some((id, call)) = id.zip(call) else {
            self.ledger.counters.strays += 1;
            return;
        };
        let Some(token) = &call.token else {
            self.ledger.counters.strays += 1;
            return;
        };
        let message = message.with_progress_token(token);
        let (session, call) = (call.session, call.call);
        self.ledger.note_activity(now, id);
        self.ledger.tell(Tell::Related {
            session,
            call,
            message,
        });
    }
}
