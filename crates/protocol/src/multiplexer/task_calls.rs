//! Calls and messages that are about tasks: which of them are answered here, polled for, or passed
//! on.

use bytes::Bytes;

use super::Multiplexer;
use super::state::QuestionOrigin;
use super::task_polling::{PollOutcome, TaskPolling};
use super::tasks::TaskClient;
use crate::backend_face::{WireId, modern};
use crate::error_code;
use crate::exchange::Tell;
use crate::message::{Kind, Member, Message};
use crate::method::Method;
use crate::object::Object;
use crate::task::{self, Status};
use crate::time::Moment;
use crate::version::TaskStyle;

impl Multiplexer {
    /// Returns whether tasks go on for which the server must be kept, though no session may be
    /// there.
    pub fn has_live_tasks(&self, now: Moment) -> bool {
        self.tasks.has_live(now)
    }

    /// Handles an answer that is about a task. Returns the message for the client, if there is one.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the answers to other methods pass as they are"
    )]
    pub(super) fn take_task_answer(&mut self, now: Moment, id: WireId, message: Message) -> Option<Message> {
        let Some(call) = self.ledger.call(id) else {
            return Some(message);
        };
        let (session, era, method, hides_task) = (call.session, call.era, call.method(), call.hides_task);
        let (ledger, link) = (&mut self.ledger, &self.link);
        let (server, client) = (link.face().tasks(), era.tasks());
        let is_lifted = (server, client) == (TaskStyle::Core, TaskStyle::Extension);
        match method {
            Method::ToolsCall => {
                let Some(task) = task::created(&message, server) else {
                    return Some(message);
                };
                if hides_task || (server, client) == (TaskStyle::Extension, TaskStyle::Core) {
                    TaskPolling::begin(now, id, &task, ledger, link);
                    return None;
                }
                self.tasks.remember(now, &task, session, era, ledger, link);
                Some(message)
            }
            Method::TasksGet => {
                let Some(task) = task::described(&message) else {
                    return Some(message);
                };
                self.tasks.note(now, &task, ledger, link);
                match task.status {
                    Status::Completed | Status::Failed if is_lifted => {
                        TaskPolling::begin_report(id, &task, message, ledger, link);
                        None
                    }
                    Status::InputRequired if is_lifted => {
                        Some(self.tasks.with_inputs(&task.id, &message, ledger, link))
                    }
                    Status::Working
                    | Status::InputRequired
                    | Status::Completed
                    | Status::Failed
                    | Status::Cancelled => Some(message),
                }
            }
            // With core tasks a server refuses to cancel what has ended; the extension only wants a
            // notice (tasks extension, "Task Cancellation"). That the task exists and is the
            // caller's was judged before.
            Method::TasksCancel if is_lifted && message.kind() == Kind::Error => {
                let error = message.raw(Member::Error).and_then(Object::parse);
                let code = error.as_ref().and_then(|error| error.get("code"));
                Some(if code == Some("-32602") {
                    Message::own(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#.into())
                } else {
                    message
                })
            }
            Method::TasksList => Some(self.tasks.own(session, &message, ledger)),
            _ => Some(message),
        }
    }

    /// The server has answered a step in the polling of a call's task.
    pub(super) fn handle_task_poll(&mut self, now: Moment, step: WireId, of: WireId, message: &Message) {
        let next = TaskPolling::handle_task_poll(now, step, of, message, &mut self.ledger, &self.link);
        match next {
            PollOutcome::Continue => {}
            PollOutcome::Conclude(message) => self.conclude_polling(now, of, message),
            PollOutcome::Ask(questions) => self.ask_for_task(now, of, questions),
        }
    }

    /// The task has come to its end, and the call with it.
    fn conclude_polling(&mut self, now: Moment, id: WireId, message: Message) {
        self.withdraw_round(id);
        if let Some(call) = self.finish_call(now, id) {
            self.ledger.tell(Tell::Reply {
                session: call.session,
                call: call.call,
                message,
                era: self.link.face().era(),
            });
        }
    }

    /// Puts a task's questions to the client of the call that is polled for.
    fn ask_for_task(&mut self, now: Moment, id: WireId, questions: Vec<(String, Message)>) {
        let Some(session) = self.ledger.call(id).map(|call| call.session) else {
            return;
        };
        for (key, question) in questions {
            if !self.may_be_asked(session, &question) {
                let why = "the server asked for what this client cannot do";
                return self.fail_round(now, Some(id), why);
            }
            let question = modern::with_elicitation_id(question, self.ledger.questions.upcoming().0);
            self.put_question(now, session, Some(id), QuestionOrigin::Task(key), question);
        }
    }

    /// The client has answered a question of the task that is polled for it.
    pub(super) fn handle_task_input(
        &mut self,
        now: Moment,
        wire: Option<WireId>,
        key: &str,
        message: &Message,
    ) {
        let Some(id) = wire else { return };
        match (message.kind(), message.raw(Member::Result)) {
            (Kind::Result, Some(raw)) => {
                TaskPolling::send_answer(id, key, raw, &mut self.ledger, &self.link);
            }
            _ => self.fail_round(now, wire, "the client did not answer what the server asked"),
        }
    }

    /// A server of core tasks asks because of a task. Returns whether the question names the task.
    pub(super) fn handle_task_question(&mut self, now: Moment, id: &Bytes, message: &Message) -> bool {
        let Some(task) = task::related(message).filter(|_| self.link.offers_tasks()) else {
            return false;
        };
        if let Some((session, wire)) = TaskPolling::driven(&task, &self.ledger) {
            self.ask_session(now, session, Some(wire), id.clone(), message.clone());
            return true;
        }
        let why = match self.tasks.client_of(&task, &self.ledger) {
            TaskClient::Session(session, wire) => {
                self.ask_session(now, session, wire, id.clone(), message.clone());
                return true;
            }
            TaskClient::Polls => {
                let full = self.open_questions() >= self.ledger.limits.questions;
                let (ledger, link) = (&mut self.ledger, &self.link);
                self.tasks.keep_input(now, &task, message, full, ledger, link);
                return true;
            }
            // It names its task, and that one is forgotten: it is no other client's.
            TaskClient::Unknown => "the task is not known here any more",
            TaskClient::Gone => "the task's client has gone",
        };
        self.link
            .refuse_unasked(id, error_code::METHOD_NOT_FOUND, why, &mut self.ledger);
        true
    }

    /// The server notifies of a task.
    pub(super) fn handle_task_notice(&mut self, now: Moment, message: &Message) {
        let Some(task) = task::announced(message) else {
            self.ledger.counters.strays += 1;
            return;
        };
        let (ledger, link) = (&mut self.ledger, &self.link);
        if let Some((_, wire)) = TaskPolling::driven(&task.id, ledger) {
            return TaskPolling::poll(now, wire, ledger, link);
        }
        self.tasks.note_notification(now, &task, ledger, link);
        let watchers = self.tasks.watchers(&task.id);
        ledger.counters.unattributed += u64::from(watchers.is_empty());
        for session in watchers {
            let message = message.clone();
            ledger.tell(Tell::Notice { session, message });
        }
    }

    /// Passes on a log line that names its task. Returns whether it does.
    pub(super) fn task_log(&mut self, now: Moment, message: &Message) -> bool {
        let Some(task) = task::related(message).filter(|_| self.link.offers_tasks()) else {
            return false;
        };
        let level = message.level();
        let message = message.clone();
        if let Some((session, wire)) = TaskPolling::driven(&task, &self.ledger) {
            self.ledger.note_activity(now, wire);
            if let Some(call) = self.ledger.call(wire).map(|call| call.call)
                && self.subscriptions.accepts_level(session, level)
            {
                self.ledger.tell(Tell::Related {
                    session,
                    call,
                    message,
                });
            }
            return true;
        }
        match self.tasks.session_of(&task, &self.ledger) {
            Some((session, _)) => {
                if self.subscriptions.accepts_level(session, level) {
                    self.ledger.tell(Tell::Notice { session, message });
                }
            }
            // A modern client has no stream that belongs to a task, and its request has ended.
            None => self.ledger.counters.unattributed += 1,
        }
        true
    }
}
