//! A call on its way to the server: it is sent now, waits for its turn, or is refused at a limit.

use std::sync::Arc;

use bytes::Bytes;

use super::Multiplexer;
use super::call_timer::CallTimer;
use super::limits::Limits;
use super::lowering::Lowered;
use super::state::{Asking, Doing, InFlight, Pending, RetryHistory, Waiting};
use crate::backend_face::WireId;
use crate::error_code;
use crate::exchange::{Call, Failure, Request, SessionKey, Tell};
use crate::message::{Member, Message};
use crate::time::Moment;
use crate::tool_policy::ToolPolicy;
use crate::tool_schema::{KnownTool, TaskSupport};
use crate::version::{ChangeStyle, Era};
use crate::wire::header::MirroredParams;

impl Multiplexer {
    pub(super) fn call(&mut self, now: Moment, call: Call) {
        if !self.ledger.sessions.contains(call.session) {
            let Call { session, call, .. } = call;
            self.ledger.tell(Tell::Failed {
                session,
                call,
                failure: Failure::SessionEnded,
            });
            return;
        }
        let asked_first = self.ask_roots_first(now, &call);
        if !asked_first && self.is_ready() && self.may_go(&call) {
            self.send(now, call, RetryHistory::default());
            return;
        }
        if self.link.is_retired() {
            let Call { session, call, .. } = call;
            return self.ledger.tell(Tell::Failed {
                session,
                call,
                failure: Failure::Retired,
            });
        }
        if self.ledger.waiting.len() >= self.ledger.limits.waiting {
            self.ledger.overload(call.session, call.call, "waiting calls");
            return;
        }
        let starting = !self.is_ready();
        let deadline = now.after(if starting {
            self.ledger.limits.start_timeout
        } else if asked_first {
            let timeout = self.ledger.limits.call_timeout(call.reads_events);
            self.ledger.limits.question_timeout.saturating_add(timeout)
        } else {
            self.ledger.limits.call_timeout(call.reads_events)
        });
        let stream_at = now.after(self.ledger.limits.stream_after);
        let occupied = !starting
            && self.attribution.takes_turns(call.message.method())
            && self.attribution.is_occupied(call.session, &self.ledger);
        let occupied_until = occupied.then(|| now.after(Limits::OCCUPIED_WAIT));
        self.ledger.waiting.push(Waiting {
            call,
            deadline,
            starting,
            stream_at: Some(stream_at),
            asked_first,
            occupied_until,
            past: RetryHistory::default(),
        });
        self.ledger
            .wake_by(occupied_until.unwrap_or(deadline).min(deadline.min(stream_at)));
        if starting {
            self.ensure_link(now);
        } else {
            self.learn_tools(now);
        }
    }

    /// Returns whether a call can be sent now without making the server's next question ambiguous.
    pub(super) fn may_go(&self, call: &Call) -> bool {
        if self.tools.must_learn(call, &self.link) {
            return false;
        }
        // First come, first served. A call overtakes only calls that wait for another
        // principal's suspended call.
        !self.attribution.takes_turns(call.message.method())
            || (!self.ledger.sessions.others_ask(call.session)
                && !self
                    .attribution
                    .suspended
                    .has_other_principal(call.session, &self.ledger)
                && self.ledger.waiting.iter().all(|waiting| {
                    waiting.call.session == call.session
                        || self
                            .attribution
                            .suspended
                            .has_other_principal(waiting.call.session, &self.ledger)
                }))
    }

    /// Sends what has waited, in order, as far as the rules allow. A call that waits its turn holds
    /// up only those that have to take turns.
    pub(super) fn admit(&mut self, now: Moment) {
        if !self.is_ready() {
            return;
        }
        self.admit_answers(now);
        if self.ledger.waiting.is_empty() {
            return;
        }
        self.ledger.waits.note_ready(now);
        let mut in_turn = true;
        for mut waiting in self.ledger.waiting.take() {
            if self.awaits_roots(&waiting) || self.tools.is_awaited_by(&waiting, &self.link) {
                self.ledger.waiting.push(waiting);
                continue;
            }
            if self.attribution.takes_turns(waiting.call.message.method()) {
                let session = waiting.call.session;
                // A call that waits for another principal's suspended call delays no other.
                let kept = self
                    .attribution
                    .suspended
                    .has_other_principal(session, &self.ledger);
                if !kept {
                    in_turn &= !self.ledger.sessions.others_ask(session);
                }
                if kept || !in_turn {
                    if waiting.occupied_until.is_none() && self.attribution.is_occupied(session, &self.ledger)
                    {
                        let until = now.after(Limits::OCCUPIED_WAIT);
                        waiting.occupied_until = Some(until);
                        self.ledger.wake_by(until);
                    }
                    self.ledger.waiting.push(waiting);
                    continue;
                }
            }
            let (session, call) = (waiting.call.session, waiting.call.call);
            self.ledger.waits.note_sent(now, session, call, waiting.starting);
            self.send(now, waiting.call, waiting.past);
        }
        self.learn_tools(now);
    }

    pub(super) fn send(&mut self, now: Moment, call: Call, past: RetryHistory) {
        if self.tasks.answer_locally(&call, &mut self.ledger, &self.link) || self.refuse_mismatch(&call) {
            return;
        }
        let Call {
            session,
            call,
            request,
            message,
            era,
            mirrored: _,
            reads_events,
        } = call;
        if !self.ledger.has_room(message.len()) {
            self.check_reading(now, reads_events);
            return self
                .ledger
                .overload(session, call, "bytes waiting for the server");
        }
        if self.ledger.in_flight() >= self.ledger.limits.in_flight {
            return self.ledger.overload(session, call, "calls in flight");
        }
        // Small ones are bounded by their number.
        if message.len() > Limits::SMALL
            && self.ledger.bytes_in_flight() + message.len() > self.ledger.limits.in_flight_bytes
        {
            return self.ledger.overload(session, call, "bytes in flight");
        }
        self.link.confirm(None, &mut self.ledger);
        self.apply_level(now, session, &message, era);
        let id = self.ledger.upcoming_wire();
        let (extra, hides_task) = self.as_task(session, &message, era);
        let doing = match self.lower(session, &request, &message, era, id, &extra) {
            Lowered::Sent => Doing::Working,
            Lowered::Listened => Doing::Listening,
            Lowered::Done => return self.ledger.tell(Tell::Done { session, call }),
            Lowered::TooMuch(limit) => return self.ledger.overload(session, call, limit),
            Lowered::Unsupported(what) => {
                let failure = Failure::Unsupported { what };
                return self.ledger.tell(Tell::Failed {
                    session,
                    call,
                    failure,
                });
            }
            Lowered::NoSuchMethod(what) => {
                let call = Call {
                    session,
                    call,
                    request,
                    message,
                    era,
                    mirrored: None,
                    reads_events,
                };
                return self
                    .ledger
                    .reply_error(&call, error_code::METHOD_NOT_FOUND, what, None);
            }
        };
        self.ledger.next_wire();
        let method = message.method();
        self.ledger.sessions.count_in(session, method.may_ask());
        let is_for_listen = self.is_for_listen(session, &request);
        let timer = CallTimer::start(now, method, reads_events, is_for_listen, &self.ledger.limits);
        let wake_at = timer.next_deadline();
        self.ledger.enter(
            id,
            Pending::Call(Box::new(InFlight {
                session,
                call,
                request,
                token: message.raw_copy(Member::MetaProgressToken),
                message,
                era,
                doing,
                rounds: 0,
                hides_task,
                past,
                timer,
                asking: Asking::Nothing,
            })),
        );
        self.ledger.wake_by(wake_at);
        self.ask_roots_with(now, id);
        self.sync_listen();
    }

    /// Returns whether Rialto makes this call for a listen: of a modern client, or at a modern
    /// server.
    pub(super) fn is_for_listen(&self, session: SessionKey, request: &Request) -> bool {
        match request {
            Request::Subscribe { .. } | Request::Watch { .. } => {
                let client = self.ledger.sessions.get(session);
                let client = client.map(|entry| entry.era.changes());
                self.link.face().changes() == ChangeStyle::Listen || client == Some(ChangeStyle::Listen)
            }
            Request::Plain | Request::Unsubscribe { .. } | Request::SetLevel { .. } => false,
        }
    }

    /// Returns what is added to a call that the server is to run as a task, and whether the task is
    /// hidden from the client.
    fn as_task(
        &self,
        session: SessionKey,
        message: &Message,
        era: Era,
    ) -> (Vec<(&'static str, Bytes)>, bool) {
        let support = self.tools.task_support(message, era, &self.link);
        let declared = || {
            let client = self.ledger.client(session);
            client.is_some_and(|client| client.capabilities.takes_tasks())
        };
        let task = || vec![("task", Bytes::from_static(b"{}"))];
        match support {
            TaskSupport::Forbidden => (Vec::new(), false),
            TaskSupport::Optional | TaskSupport::Required if declared() => (task(), false),
            TaskSupport::Optional => (Vec::new(), false),
            TaskSupport::Required => (task(), true),
        }
    }

    // Tools.

    /// Sets the policy that removes tools from every list. The endpoint checks calls.
    pub fn show_tools(&mut self, policy: Arc<ToolPolicy>) {
        self.tools.set_policy(policy);
    }

    /// Returns the number of tools that clients are shown, if a client was given the whole list
    /// since the tools last changed.
    pub fn number_of_shown_tools(&self) -> Option<usize> {
        self.tools.shown()
    }

    /// Returns what is known of a tool.
    pub fn tool(&self, name: &str) -> Option<&KnownTool> {
        self.tools.find(name)
    }

    /// The transport mirrors arguments in headers: no tool is called before the list of tools was
    /// read.
    pub fn mirror_arguments(&mut self) {
        self.tools.mirror_arguments();
    }

    /// Checks that the headers of a call agree with its arguments, as far as its tool is known. The
    /// error is a text for users.
    pub fn check_mirrored(&self, message: &Message, params: &MirroredParams) -> Result<(), String> {
        self.tools.check_mirrored(message, params)
    }

    /// Answers a call whose headers do not agree with its arguments. Returns whether it did.
    fn refuse_mismatch(&mut self, call: &Call) -> bool {
        let Some(Err(text)) = call
            .mirrored
            .as_ref()
            .map(|params| self.tools.check_mirrored(&call.message, params))
        else {
            return false;
        };
        self.ledger
            .reply_error(call, error_code::HEADER_MISMATCH, &text, None);
        true
    }

    /// Begins to read the list of tools if a call waits for it.
    fn learn_tools(&mut self, now: Moment) {
        self.tools.learn(now, &mut self.ledger, &mut self.link);
    }

    /// A request of Rialto's own will not be answered. If it was for the list of tools, calls go on
    /// without it.
    pub(super) fn handle_unanswered(&mut self, now: Moment, id: WireId) {
        if self.tools.handle_unanswered(id) {
            self.admit(now);
        }
    }

    /// Sends a call once more whose headers the server has refused, after the list of tools was
    /// read anew. Returns whether the answer was such a refusal.
    pub(super) fn refresh_tools(&mut self, now: Moment, id: WireId, message: &Message) -> bool {
        let full = self.ledger.waiting.len() >= self.ledger.limits.waiting;
        let call = self.ledger.call(id);
        let refused = call.is_some_and(|call| self.tools.must_refresh(call, message));
        if full || !refused || !self.link.face().mirrors_arguments() {
            return false;
        }
        let Some(call) = self.finish_call(now, id) else {
            return true;
        };
        self.tools.forget();
        let deadline = call.timer.deadline();
        let past = RetryHistory {
            refreshed: true,
            ..call.past
        };
        self.ledger.waiting.push(Waiting {
            deadline,
            starting: false,
            stream_at: call.timer.stream_at(),
            asked_first: false,
            occupied_until: None,
            past,
            call: call.into_call(),
        });
        self.ledger.wake_by(deadline);
        self.learn_tools(now);
        true
    }
}
