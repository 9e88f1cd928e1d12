//! Tasks that are pursued for a client that knows nothing of them, or asked about in two steps where it takes one.
//!
//! A modern server may answer the call of a legacy client with a task, and a legacy server may do a tool only as
//! one. Either way the client waits for a result: the call stays open, the task is asked about at the pace that its
//! server wants, what it wants to know is asked of the client, and its outcome is the answer. The tool has run once. A
//! modern client that asks a legacy server about a task wants the outcome in the same answer; that is the second step.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Asker, InFlight, Multiplexer, Pending};
use crate::backend_face::{self, TaskRequest, WireId, modern};
use crate::error_code;
use crate::exchange::{SessionKey, Tell};
use crate::message::{Kind, Member, Message, quoted};
use crate::method::Method;
use crate::object::Object;
use crate::task::{self, Status, Task};
use crate::time::Moment;
use crate::version::Era;

/// How often a server is asked that does not say how often, and how often at all.
const POLL: Duration = Duration::from_secs(1);
const POLL_LEAST: Duration = Duration::from_millis(100);
const POLL_MOST: Duration = Duration::from_secs(10);

/// What is done about a task on behalf of a call.
#[derive(Debug)]
pub(super) struct Pursuit {
    task: String,
    goal: Goal,
    poll: Duration,
    pub(super) poll_at: Option<Moment>,
    /// Our own `tasks/get` and `tasks/result`, while they are unanswered.
    polling: Option<WireId>,
    outcome: Option<WireId>,
    /// What the server last said for people, and how often it said something new.
    said: Option<String>,
    steps: u64,
    /// What the task wanted to know (modern era): a key is asked about once.
    asked: BTreeSet<String>,
}

#[derive(Debug)]
enum Goal {
    /// The call's answer.
    Outcome,
    /// What there is to know of the task: the answer to `tasks/get`, to be completed.
    Report(Message),
}

impl Pursuit {
    fn new(task: &Task, goal: Goal) -> Self {
        Self {
            task: task.id.clone(),
            goal,
            poll: task.poll.unwrap_or(POLL).clamp(POLL_LEAST, POLL_MOST),
            poll_at: None,
            polling: None,
            outcome: None,
            said: None,
            steps: 0,
            asked: BTreeSet::new(),
        }
    }

    pub(super) fn drives(&self) -> bool {
        matches!(self.goal, Goal::Outcome)
    }
}

impl Multiplexer {
    /// Looks at the answer to a call for what it says of tasks. Gives what the client is to be told, if it is.
    pub(super) fn take_task_answer(&mut self, now: Moment, id: WireId, message: Message) -> Option<Message> {
        let Some(Pending::Call(call)) = self.pending.get(&id) else {
            return Some(message);
        };
        if call.pursuit.is_some() {
            // The call was answered already, with the task.
            self.counters.strays += 1;
            return None;
        }
        let (session, words, method, drives) = (call.session, call.words, call.method, call.drives);
        let (here, there) = (self.face.listens(), words == Era::Modern);
        match method {
            Method::ToolsCall => {
                let Some(task) = task::created(&message, self.face.era()) else {
                    return Some(message);
                };
                if drives || (here && !there) {
                    self.begin_pursuit(now, id, &task);
                    return None;
                }
                self.remember_task(now, &task, session, words);
                Some(message)
            }
            Method::TasksGet => {
                let Some(task) = task::described(&message) else {
                    return Some(message);
                };
                match task.status {
                    Status::Completed | Status::Failed if there && !here => {
                        self.note_task(now, &task);
                        self.begin_report(id, &task, message);
                        None
                    }
                    Status::InputRequired if there && !here => {
                        self.note_task(now, &task);
                        Some(self.with_inputs(&task.id, &message))
                    }
                    Status::Working
                    | Status::InputRequired
                    | Status::Completed
                    | Status::Failed
                    | Status::Cancelled => {
                        self.note_task(now, &task);
                        Some(message)
                    }
                }
            }
            // The legacy era refuses to cancel what has ended; the modern one only wants to be told (tasks extension,
            // "Task Cancellation"). That the task exists and is the caller's was judged before.
            Method::TasksCancel if there && !here && message.kind() == Kind::Error => {
                let error = message.raw(Member::Error).and_then(Object::parse);
                let code = error.as_ref().and_then(|error| error.get("code"));
                Some(if code == Some("-32602") {
                    Message::own(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#.into())
                } else {
                    message
                })
            }
            Method::TasksList => Some(self.own_tasks(session, &message)),
            _ => Some(message),
        }
    }

    fn begin_pursuit(&mut self, now: Moment, id: WireId, task: &Task) {
        let Some(Pending::Call(call)) = self.pending.get_mut(&id) else {
            return;
        };
        let mut pursuit = Pursuit::new(task, Goal::Outcome);
        let at = if task.status == Status::Working {
            now.after(pursuit.poll)
        } else {
            now
        };
        pursuit.poll_at = Some(at);
        call.pursuit = Some(Box::new(pursuit));
        call.deadline = now
            .after(self.limits.call_timeout(call.reads_events))
            .min(call.horizon);
        let deadline = call.deadline;
        self.wake_by(deadline.min(at));
        self.say_status(id, task);
        if at == now {
            self.poll_task(now, id);
        }
    }

    fn begin_report(&mut self, id: WireId, task: &Task, described: Message) {
        if let Some(Pending::Call(call)) = self.pending.get_mut(&id) {
            let pursuit = Pursuit::new(task, Goal::Report(described));
            call.pursuit = Some(Box::new(pursuit));
        }
        let step = self.ask_task(id, Method::TasksResult, None);
        if let Some(pursuit) = self.pursuit(id) {
            pursuit.outcome = step;
        }
    }

    fn pursuit(&mut self, id: WireId) -> Option<&mut Pursuit> {
        match self.pending.get_mut(&id)? {
            Pending::Call(call) => call.pursuit.as_deref_mut(),
            Pending::Handshake
            | Pending::Listen
            | Pending::Own { .. }
            | Pending::Step { .. }
            | Pending::Background { .. } => None,
        }
    }

    /// The call for which a task is pursued to its end.
    pub(super) fn driven(&self, task: &str) -> Option<(SessionKey, WireId)> {
        self.pending.iter().find_map(|(id, pending)| match pending {
            Pending::Call(call) => {
                let pursuit = call.pursuit.as_ref()?;
                (pursuit.drives() && pursuit.task == task).then_some((call.session, *id))
            }
            Pending::Handshake
            | Pending::Listen
            | Pending::Own { .. }
            | Pending::Step { .. }
            | Pending::Background { .. } => None,
        })
    }

    /// Says something about a call's task to the server.
    fn ask_task(&mut self, of: WireId, method: Method, answers: Option<String>) -> Option<WireId> {
        let id = self.next_wire();
        let Some(Pending::Call(call)) = self.pending.get(&of) else {
            return None;
        };
        let client = &self.attached.get(&call.session)?.client;
        let request = TaskRequest {
            method,
            id,
            task: &call.pursuit.as_ref()?.task,
            client,
            answers,
        };
        self.face.write_task(self.outgoing.end(), &request);
        self.pending.insert(id, Pending::Step { of });
        Some(id)
    }

    /// Asks how far a task is.
    pub(super) fn poll_task(&mut self, now: Moment, id: WireId) {
        let room = self.has_room(256);
        let Some(pursuit) = self.pursuit(id).filter(|pursuit| pursuit.polling.is_none()) else {
            return;
        };
        if !room {
            // A server that does not read is not asked; the call's own time goes on.
            let at = now.after(pursuit.poll);
            pursuit.poll_at = Some(at);
            return self.wake_by(at);
        }
        pursuit.poll_at = None;
        let step = self.ask_task(id, Method::TasksGet, None);
        if let Some(pursuit) = self.pursuit(id) {
            pursuit.polling = step;
        }
    }

    /// The server has answered a step on the way.
    pub(super) fn handle_step(&mut self, now: Moment, step: WireId, of: WireId, message: &Message) {
        let Some(pursuit) = self.pursuit(of) else {
            return;
        };
        if pursuit.polling.take_if(|polling| *polling == step).is_some() {
            self.handle_poll(now, of, message);
        } else if pursuit.outcome.take_if(|outcome| *outcome == step).is_some() {
            let told = match &pursuit.goal {
                Goal::Outcome => task::unrelated(message),
                Goal::Report(described) => task::with_outcome(described, message),
            };
            self.conclude_pursuit(now, of, told);
        }
        // That answers were taken needs no further word.
    }

    fn handle_poll(&mut self, now: Moment, id: WireId, message: &Message) {
        let Some(task) = task::described(message) else {
            let told = if message.kind() == Kind::Error {
                message.clone()
            } else {
                own_error("the server does not say what became of its task")
            };
            return self.conclude_pursuit(now, id, told);
        };
        if let Some(Pending::Call(call)) = self.pending.get_mut(&id) {
            call.note_sign_of_life(now, &self.limits);
        }
        self.say_status(id, &task);
        let modern = self.face.listens();
        match task.status {
            Status::Working => self.poll_later(now, id, &task),
            Status::InputRequired if modern => {
                self.poll_later(now, id, &task);
                self.ask_for_task(now, id, message);
            }
            // It asks whoever waits for the outcome.
            Status::InputRequired => {
                self.poll_later(now, id, &task);
                self.await_outcome(id);
            }
            Status::Completed | Status::Failed if modern => {
                let told = inlined(message);
                self.conclude_pursuit(now, id, told);
            }
            Status::Completed | Status::Failed => self.await_outcome(id),
            Status::Cancelled => self.conclude_pursuit(now, id, own_error("the server cancelled its task")),
        }
    }

    fn poll_later(&mut self, now: Moment, id: WireId, task: &Task) {
        if let Some(pursuit) = self.pursuit(id) {
            if let Some(poll) = task.poll {
                pursuit.poll = poll.clamp(POLL_LEAST, POLL_MOST);
            }
            let at = now.after(pursuit.poll);
            pursuit.poll_at = Some(at);
            self.wake_by(at);
        }
    }

    fn await_outcome(&mut self, id: WireId) {
        if self.pursuit(id).is_some_and(|pursuit| pursuit.outcome.is_none()) {
            let step = self.ask_task(id, Method::TasksResult, None);
            if let Some(pursuit) = self.pursuit(id) {
                pursuit.outcome = step;
            }
        }
    }

    /// What a modern server says of its task is all the progress there is. A legacy one reports its own.
    fn say_status(&mut self, id: WireId, task: &Task) {
        if !self.face.listens() {
            return;
        }
        let Some(Pending::Call(call)) = self.pending.get_mut(&id) else {
            return;
        };
        let (Some(token), Some(pursuit)) = (&call.token, &mut call.pursuit) else {
            return;
        };
        if task.text.is_none() || task.text == pursuit.said {
            return;
        }
        pursuit.said.clone_from(&task.text);
        pursuit.steps += 1;
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{},"progress":{},"message":{}}}}}"#,
            String::from_utf8_lossy(token),
            pursuit.steps,
            quoted(task.text.as_deref().unwrap_or_default())
        );
        let (session, call) = (call.session, call.call);
        if let Ok(message) = Message::scan(text.into()) {
            self.tell(Tell::Related {
                session,
                call,
                message,
            });
        }
    }

    /// Puts to a legacy client what a modern server's task wants to know.
    fn ask_for_task(&mut self, now: Moment, id: WireId, message: &Message) {
        let Some(pursuit) = self.pursuit(id) else { return };
        let questions = modern::task_questions(message);
        let new: Vec<_> = questions
            .into_iter()
            .filter(|(key, _)| pursuit.asked.insert(key.clone()))
            .collect();
        let Some(Pending::Call(call)) = self.pending.get(&id) else {
            return;
        };
        let session = call.session;
        for (key, question) in new {
            let can = self
                .attached
                .get(&session)
                .map(|attached| &attached.client.capabilities);
            let able =
                can.is_some_and(|can| can.can_answer(question.method()) && can.can_answer_in_kind(&question));
            if !able || self.open_questions() >= self.limits.questions {
                let why = "the server asked for what this client cannot do";
                return self.fail_round(now, Some(id), why);
            }
            let question = modern::with_elicitation_id(question, self.next_question);
            self.put_question(now, session, Some(id), Asker::Task(key), question);
        }
    }

    /// The client has answered what a modern server's task wanted to know.
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
                let answers = format!("{{{}:{}}}", quoted(key), String::from_utf8_lossy(raw));
                self.ask_task(id, Method::TasksUpdate, Some(answers));
            }
            _ => self.fail_round(now, wire, "the client did not answer what the server asked"),
        }
    }

    /// The task has come to its end, and the call with it.
    fn conclude_pursuit(&mut self, now: Moment, id: WireId, message: Message) {
        self.withdraw_round(id);
        if let Some(call) = self.settle(now, id) {
            self.tell(Tell::Reply {
                session: call.session,
                call: call.call,
                message,
                words: self.face.era(),
            });
        }
    }

    /// Nobody waits for a call's task any more: the server is told in the way that it can be.
    pub(super) fn abandon_task(&mut self, now: Moment, id: WireId) {
        let Some(pursuit) = self.pursuit(id) else { return };
        let (drives, outcome) = (pursuit.drives(), pursuit.outcome);
        if drives && let Some(step) = self.ask_task(id, Method::TasksCancel, None) {
            let until = now.after(self.limits.request_timeout);
            self.pending.insert(step, Pending::Own { until });
            self.wake_by(until);
        }
        if let Some(outcome) = outcome {
            backend_face::write_cancel(self.outgoing.end(), None, outcome, "nobody waits for it any more");
        }
    }

    /// The steps on the way of a call that has ended lead nowhere.
    pub(super) fn drop_steps(&mut self, id: WireId, call: &InFlight) {
        let Some(pursuit) = &call.pursuit else { return };
        let is_step = |pending: &Pending| matches!(pending, Pending::Step { of } if *of == id);
        let steps: Vec<WireId> = self
            .pending
            .iter()
            .filter(|(_, pending)| is_step(pending))
            .map(|(step, _)| *step)
            .collect();
        for step in steps {
            // Who waits for the outcome has been called off with the task.
            if pursuit.outcome != Some(step) {
                self.call_off(step);
            }
            self.pending.remove(&step);
        }
    }

    /// The call that a request of ours is a step of, which fails if the step does; any other id stays what it is.
    pub(super) fn step_of(&mut self, id: WireId) -> WireId {
        match self.pending.get(&id) {
            Some(Pending::Step { of }) => {
                let of = *of;
                self.pending.remove(&id);
                of
            }
            Some(
                Pending::Call(_)
                | Pending::Handshake
                | Pending::Listen
                | Pending::Own { .. }
                | Pending::Background { .. },
            )
            | None => id,
        }
    }

    /// A step was provably not begun: the task is looked at again in a while.
    pub(super) fn return_step(&mut self, now: Moment, step: WireId, of: WireId) {
        self.pending.remove(&step);
        let Some(pursuit) = self.pursuit(of) else { return };
        pursuit.polling.take_if(|polling| *polling == step);
        pursuit.outcome.take_if(|outcome| *outcome == step);
        let at = now.after(pursuit.poll);
        pursuit.poll_at = Some(at);
        self.wake_by(at);
    }

    /// How long a call may take: that of a task's outcome as long as any other may with progress.
    pub(super) fn first_deadline(&self, now: Moment, method: Method, reads_events: bool) -> Moment {
        now.after(match method {
            Method::TasksResult => self.limits.longest_call(reads_events),
            _ => self.limits.call_timeout(reads_events),
        })
    }
}

fn own_error(text: &str) -> Message {
    Message::own(format!(
        r#"{{"jsonrpc":"2.0","id":0,"error":{{"code":{},"message":{}}}}}"#,
        error_code::INTERNAL_ERROR,
        quoted(text)
    ))
}

/// The outcome that stands in what a modern server says of its task, as an answer of its own.
fn inlined(message: &Message) -> Message {
    let described = message
        .raw(Member::Result)
        .and_then(Object::parse)
        .unwrap_or_default();
    let found = ["result", "error"]
        .into_iter()
        .find_map(|member| Some((member, described.get(member)?)));
    let told = found.and_then(|(member, raw)| {
        let text = format!(r#"{{"jsonrpc":"2.0","id":0,"{member}":{raw}}}"#);
        Message::scan(text.into()).ok()
    });
    told.unwrap_or_else(|| own_error("the server's task has ended without an outcome"))
}
