//! Polling of tasks for a client that knows nothing of them, or that asks in one step where its
//! server takes two.
//!
//! A server may answer a call with a task, or do a tool only as one, while the client waits for a
//! result. The call then stays open: the task is polled at the pace that its server wants, its
//! questions are put to the client, and its outcome is the answer. The tool has run once. A client
//! of the extension that asks a server of core tasks about a task wants the outcome in the same
//! answer; fetching it is the second step.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::backend_face::{TaskRequest, WireId, modern, write_cancel};
use crate::error_code;
use crate::exchange::{SessionKey, Tell};
use crate::message::{Kind, Member, Message, quoted};
use crate::method::Method;
use crate::object::Object;
use crate::task::{self, Status, Task};
use crate::time::Moment;
use crate::version::TaskStyle;

use super::ledger::Ledger;
use super::link::Link;
use super::state::{Doing, Pending};

/// The interval between polls if the server names none, and the limits of what it may name.
const POLL: Duration = Duration::from_secs(1);
const POLL_LEAST: Duration = Duration::from_millis(100);
const POLL_MOST: Duration = Duration::from_secs(10);

/// Room for one poll: a server that does not read is not asked.
const POLL_BYTES: usize = 256;

/// The polling of one task on behalf of a call.
#[derive(Debug)]
pub(super) struct TaskPolling {
    task: String,
    goal: Goal,
    poll: Duration,
    /// When the task is polled next: again, if the last poll is still unanswered then.
    poll_at: Option<Moment>,
    /// Our own `tasks/get` and `tasks/result`, while they are unanswered.
    polling: Option<WireId>,
    outcome: Option<WireId>,
    /// The last status text of the server, and how often it was a new one.
    reported: Option<String>,
    steps: u64,
    /// The keys of the task's questions: each is put to the client once.
    asked: BTreeSet<String>,
}

#[derive(Debug)]
enum Goal {
    /// The call's answer.
    Outcome,
    /// The state of the task: the answer to `tasks/get`, to be completed.
    Report(Message),
}

/// What follows from the answer to a poll.
#[derive(Debug)]
pub(super) enum PollOutcome {
    Continue,
    /// The call is answered with this.
    Conclude(Message),
    /// The client is to be asked these questions, by key.
    Ask(Vec<(String, Message)>),
}

impl TaskPolling {
    fn new(task: &Task, goal: Goal) -> Box<Self> {
        Box::new(Self {
            task: task.id.clone(),
            goal,
            poll: task.poll.unwrap_or(POLL).clamp(POLL_LEAST, POLL_MOST),
            poll_at: None,
            polling: None,
            outcome: None,
            reported: None,
            steps: 0,
            asked: BTreeSet::new(),
        })
    }

    /// Returns when the task is polled next.
    pub(super) const fn next_deadline(&self) -> Option<Moment> {
        self.poll_at
    }

    /// Returns whether the task is polled to its end, for the call's answer.
    fn answers_call(&self) -> bool {
        matches!(self.goal, Goal::Outcome)
    }

    /// Begins to poll the task that a call was answered with.
    pub(super) fn begin(now: Moment, id: WireId, task: &Task, ledger: &mut Ledger, link: &Link) {
        let mut polling = Self::new(task, Goal::Outcome);
        let at = if task.status == Status::Working {
            now.after(polling.poll)
        } else {
            now
        };
        polling.poll_at = Some(at);
        let Some(call) = ledger.call_mut(id) else { return };
        call.doing = Doing::Polled(polling);
        let Some(deadline) = ledger.extend(now, id) else {
            return;
        };
        ledger.wake_by(deadline.min(at));
        Self::report_status(id, task, ledger, link);
        if at == now {
            Self::poll(now, id, ledger, link);
        }
    }

    /// Fetches the outcome of a task whose state a client has asked for.
    pub(super) fn begin_report(
        id: WireId,
        task: &Task,
        described: Message,
        ledger: &mut Ledger,
        link: &Link,
    ) {
        if let Some(call) = ledger.call_mut(id) {
            call.doing = Doing::Polled(Self::new(task, Goal::Report(described)));
        }
        Self::await_outcome(id, ledger, link);
    }

    /// Returns the call for which a task is polled to its end.
    pub(super) fn driven(task: &str, ledger: &Ledger) -> Option<(SessionKey, WireId)> {
        ledger.calls().find_map(|(id, call)| {
            let polling = call.doing.polling()?;
            (polling.answers_call() && polling.task == task).then_some((call.session, id))
        })
    }

    /// Sends a request about a call's task.
    fn send(
        of: WireId,
        method: Method,
        answers: Option<String>,
        ledger: &mut Ledger,
        link: &Link,
    ) -> Option<WireId> {
        let id = ledger.next_wire();
        let call = ledger.call(of)?;
        let (task, session) = (call.doing.polling()?.task.clone(), call.session);
        let request = TaskRequest {
            method,
            id,
            task: &task,
            client: &ledger.sessions.get(session)?.client,
            answers,
        };
        link.face().write_task(ledger.outgoing.end(), &request);
        ledger.enter(id, Pending::TaskPoll { of });
        Some(id)
    }

    fn of(id: WireId, ledger: &mut Ledger) -> Option<&mut Self> {
        ledger.call_mut(id)?.doing.polling_mut()
    }

    /// Asks how far a task is. A poll before that was not answered in time is given up.
    pub(super) fn poll(now: Moment, id: WireId, ledger: &mut Ledger, link: &Link) {
        let has_room = ledger.has_room(POLL_BYTES);
        let answer_by = now.after(ledger.limits.own_timeout());
        let Some(polling) = Self::of(id, ledger) else {
            return;
        };
        let unanswered = polling.polling.take();
        // Without room the call's own time goes on.
        let at = if has_room {
            answer_by
        } else {
            now.after(polling.poll)
        };
        polling.poll_at = Some(at);
        if let Some(unanswered) = unanswered {
            link.call_off(unanswered, ledger);
            ledger.remove(unanswered);
        }
        ledger.wake_by(at);
        if !has_room {
            return;
        }
        let step = Self::send(id, Method::TasksGet, None, ledger, link);
        if let Some(polling) = Self::of(id, ledger) {
            polling.polling = step;
        }
    }

    fn poll_later(now: Moment, id: WireId, task: &Task, ledger: &mut Ledger) {
        if let Some(polling) = Self::of(id, ledger) {
            if let Some(poll) = task.poll {
                polling.poll = poll.clamp(POLL_LEAST, POLL_MOST);
            }
            let at = now.after(polling.poll);
            polling.poll_at = Some(at);
            ledger.wake_by(at);
        }
    }

    fn await_outcome(id: WireId, ledger: &mut Ledger, link: &Link) {
        if Self::of(id, ledger).is_some_and(|polling| polling.outcome.is_none()) {
            let step = Self::send(id, Method::TasksResult, None, ledger, link);
            if let Some(polling) = Self::of(id, ledger) {
                polling.outcome = step;
            }
        }
    }

    /// The server has answered a poll for this call.
    pub(super) fn handle_task_poll(
        now: Moment,
        step: WireId,
        of: WireId,
        message: &Message,
        ledger: &mut Ledger,
        link: &Link,
    ) -> PollOutcome {
        let Some(polling) = Self::of(of, ledger) else {
            return PollOutcome::Continue;
        };
        if polling.polling.take_if(|polling| *polling == step).is_some() {
            polling.poll_at = None;
            return Self::handle_poll(now, of, message, ledger, link);
        }
        if polling.outcome.take_if(|outcome| *outcome == step).is_some() {
            return PollOutcome::Conclude(match &polling.goal {
                Goal::Outcome => task::unrelated(message),
                Goal::Report(described) => task::with_outcome(described, message),
            });
        }
        // That answers were taken needs no further word.
        PollOutcome::Continue
    }

    fn handle_poll(
        now: Moment,
        id: WireId,
        message: &Message,
        ledger: &mut Ledger,
        link: &Link,
    ) -> PollOutcome {
        let Some(task) = task::described(message) else {
            return PollOutcome::Conclude(if message.kind() == Kind::Error {
                message.clone()
            } else {
                own_error("the server does not say what became of its task")
            });
        };
        ledger.note_activity(now, id);
        Self::report_status(id, &task, ledger, link);
        match (task.status, link.face().tasks()) {
            (Status::Working, _) => Self::poll_later(now, id, &task, ledger),
            (Status::InputRequired, TaskStyle::Extension) => {
                Self::poll_later(now, id, &task, ledger);
                return PollOutcome::Ask(Self::new_questions(id, message, ledger));
            }
            // The server asks the client that waits for the outcome.
            (Status::InputRequired, TaskStyle::Core) => {
                Self::poll_later(now, id, &task, ledger);
                Self::await_outcome(id, ledger, link);
            }
            (Status::Completed | Status::Failed, TaskStyle::Extension) => {
                return PollOutcome::Conclude(inlined(message));
            }
            (Status::Completed | Status::Failed, TaskStyle::Core) => Self::await_outcome(id, ledger, link),
            (Status::Cancelled, _) => {
                return PollOutcome::Conclude(own_error("the server cancelled its task"));
            }
        }
        PollOutcome::Continue
    }

    /// Returns the questions of a task that were not put to the client yet.
    fn new_questions(id: WireId, message: &Message, ledger: &mut Ledger) -> Vec<(String, Message)> {
        let Some(polling) = Self::of(id, ledger) else {
            return Vec::new();
        };
        let questions = modern::task_questions(message).into_iter();
        questions
            .filter(|(key, _)| polling.asked.insert(key.clone()))
            .collect()
    }

    /// Sends a task the client's answer to one of its questions.
    pub(super) fn send_answer(id: WireId, key: &str, raw: &[u8], ledger: &mut Ledger, link: &Link) {
        let answers = format!("{{{}:{}}}", quoted(key), String::from_utf8_lossy(raw));
        Self::send(id, Method::TasksUpdate, Some(answers), ledger, link);
    }

    /// Sends the status text of a task as progress. A server of core tasks reports progress itself.
    fn report_status(id: WireId, task: &Task, ledger: &mut Ledger, link: &Link) {
        match link.face().tasks() {
            TaskStyle::Core => return,
            TaskStyle::Extension => {}
        }
        let Some(call) = ledger.call_mut(id) else { return };
        let (Some(token), Some(polling)) = (&call.token, call.doing.polling_mut()) else {
            return;
        };
        if task.text.is_none() || task.text == polling.reported {
            return;
        }
        polling.reported.clone_from(&task.text);
        polling.steps += 1;
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{},"progress":{},"message":{}}}}}"#,
            String::from_utf8_lossy(token),
            polling.steps,
            quoted(task.text.as_deref().unwrap_or_default())
        );
        let (session, call) = (call.session, call.call);
        if let Ok(message) = Message::scan(text.into()) {
            ledger.tell(Tell::Related {
                session,
                call,
                message,
            });
        }
    }

    /// No client waits for a call's task any more: cancels it in the server's era.
    pub(super) fn abandon(now: Moment, id: WireId, ledger: &mut Ledger, link: &Link) {
        let Some(polling) = Self::of(id, ledger) else {
            return;
        };
        let (answers_call, outcome) = (polling.answers_call(), polling.outcome);
        if answers_call && let Some(step) = Self::send(id, Method::TasksCancel, None, ledger, link) {
            ledger.enter_own(step, now.after(ledger.limits.own_timeout()));
        }
        if let Some(outcome) = outcome {
            let why = "no client waits for it any more";
            write_cancel(ledger.outgoing.end(), None, outcome, why);
        }
    }

    /// Drops the polls for a call that has ended.
    pub(super) fn drop_polls(&self, of: WireId, ledger: &mut Ledger, link: &Link) {
        for step in ledger.steps(of) {
            // The request for the outcome has been cancelled with the task.
            if self.outcome != Some(step) {
                link.call_off(step, ledger);
            }
            ledger.remove(step);
        }
    }

    /// A poll was provably not begun: the task is polled again in a while.
    pub(super) fn return_poll(now: Moment, step: WireId, of: WireId, ledger: &mut Ledger) {
        let Some(polling) = Self::of(of, ledger) else {
            return;
        };
        polling.polling.take_if(|polling| *polling == step);
        polling.outcome.take_if(|outcome| *outcome == step);
        let at = now.after(polling.poll);
        polling.poll_at = Some(at);
        ledger.wake_by(at);
    }
}

fn own_error(text: &str) -> Message {
    Message::own(format!(
        r#"{{"jsonrpc":"2.0","id":0,"error":{{"code":{},"message":{}}}}}"#,
        error_code::INTERNAL_ERROR,
        quoted(text)
    ))
}

/// Returns the outcome that stands in the state of a task, as an answer of its own.
fn inlined(message: &Message) -> Message {
    let described = message
        .raw(Member::Result)
        .and_then(Object::parse)
        .unwrap_or_default();
    let found = ["result", "error"]
        .into_iter()
        .find_map(|member| Some((member, described.get(member)?)));
    let outcome = found.and_then(|(member, raw)| {
        let text = format!(r#"{{"jsonrpc":"2.0","id":0,"{member}":{raw}}}"#);
        Message::scan(text.into()).ok()
    });
    outcome.unwrap_or_else(|| own_error("the server's task has ended without an outcome"))
}
