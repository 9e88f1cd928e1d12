//! Whose task it is, and who hears what becomes of it.
//!
//! A task outlives the request that began it, and whoever knows its id may ask for it. So every id is remembered
//! with the principal it was given to, and is unknown to all others. An id that was never seen here may be anybody's: it
//! is passed on only where callers are not told apart at all. What a legacy server asks because of a task is marked
//! with it, which makes it exact; a modern client finds it in `tasks/get` and answers by `tasks/update`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Multiplexer, Pending, legacy};
use crate::backend_face::modern::Wish;
use crate::backend_face::{TaskRequest, WireId};
use crate::client_face::modern::is_answer;
use crate::error_code;
use crate::exchange::{Call, Client, Principal, SessionKey, Tell};
use crate::message::{Member, Message};
use crate::method::Method;
use crate::object::Object;
use crate::task::{self, Status, Task};
use crate::time::Moment;
use crate::version::Era;

/// How long a task is taken to go on of which its server does not say how long it keeps it.
const UNLIMITED: Duration = Duration::from_secs(3600);
pub(super) const NO_TASK: &str = "there is no such task";

/// The tasks that clients know of.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    known: BTreeMap<String, Known>,
    /// How many there were; the age of each is its number.
    count: u64,
}

#[derive(Debug)]
struct Known {
    number: u64,
    /// Who began it, and in which era's words.
    client: Arc<Client>,
    session: SessionKey,
    words: Era,
    /// Until when it may go on; `None` when it has ended.
    live_until: Option<Moment>,
    watchers: BTreeSet<SessionKey>,
    /// The server has agreed to tell of it (modern era).
    told: bool,
    /// What the server wants to know, by the key that the client is given. Keys are never used twice.
    inputs: BTreeMap<String, Input>,
    next_key: u32,
    /// Our own `tasks/result`, which is where a legacy server asks.
    background: Option<WireId>,
}

#[derive(Debug)]
struct Input {
    /// The raw id that the server gave it.
    id: Bytes,
    message: Message,
    deadline: Moment,
}

/// What became of the wish to hear of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watched {
    /// There is no such task, for this caller.
    Unknown,
    /// It will be told.
    Granted,
    /// It will be told if the server is asked for it.
    Wanted,
}

impl Tasks {
    pub(super) fn open_inputs(&self) -> usize {
        self.known.values().map(|known| known.inputs.len()).sum()
    }

    /// Everything that somebody wants to hear of.
    pub(super) fn wishes(&self) -> impl Iterator<Item = Wish> {
        self.known
            .iter()
            .filter(|(_, known)| !known.watchers.is_empty())
            .map(|(id, _)| Wish::Task(id.clone()))
    }

    /// The server has agreed to tell of a task, or will not.
    pub(super) fn confirm(&mut self, id: &str, told: bool) {
        if let Some(known) = self.known.get_mut(id) {
            known.told = told;
            if !told {
                known.watchers.clear();
            }
        }
    }

    pub(super) fn unwatch(&mut self, session: SessionKey) {
        for known in self.known.values_mut() {
            known.watchers.remove(&session);
            known.told &= !known.watchers.is_empty();
        }
    }

    /// The server has gone, and with it what it asked. Who a task belongs to is remembered: its successor may know it.
    pub(super) fn lose_link(&mut self) {
        for known in self.known.values_mut() {
            known.inputs.clear();
            known.background = None;
            known.told = false;
            known.live_until = None;
        }
    }

    fn is_of(&self, id: &str, principal: &Principal) -> bool {
        match self.known.get(id) {
            Some(known) => known.client.principal == *principal,
            None => *principal == Principal::anonymous(),
        }
    }
}

impl Multiplexer {
    /// Whether tasks go on for which the server must be kept, though nobody may be there.
    pub fn has_live_tasks(&self, now: Moment) -> bool {
        let live = |until: &Moment| *until > now;
        self.tasks
            .known
            .values()
            .any(|known| known.live_until.as_ref().is_some_and(live))
    }

    pub(super) fn offers_tasks(&self) -> bool {
        self.face.welcome().is_some_and(|welcome| welcome.tasks)
    }

    /// Answers a request about a task that is none of the caller's, or that needs no server. Gives whether it did.
    pub(super) fn judge_task(&mut self, call: &Call) -> bool {
        let method = call.message.method();
        if !method.names_a_task() {
            return false;
        }
        let Some(attached) = self.attached.get(&call.session) else {
            return false;
        };
        let client = Arc::clone(&attached.client);
        let translated = call.words == Era::Modern && !self.face.listens();
        if translated && !self.offers_tasks() {
            self.reply_error(
                call,
                error_code::METHOD_NOT_FOUND,
                "the server has no tasks",
                None,
            );
            return true;
        }
        if translated && !client.capabilities.takes_tasks() {
            let data = format!(
                r#"{{"requiredCapabilities":{{"extensions":{{"{}":{{}}}}}}}}"#,
                task::EXTENSION
            );
            let text = "the client must declare the extension for tasks";
            self.reply_error(call, error_code::MISSING_CAPABILITY, text, Some(&data));
            return true;
        }
        let named = task::named(&call.message);
        let known = named
            .as_deref()
            .is_some_and(|id| self.tasks.is_of(id, &client.principal));
        if !known {
            self.reply_error(call, error_code::INVALID_PARAMS, NO_TASK, None);
            return true;
        }
        match named {
            Some(id) if translated && method == Method::TasksUpdate => {
                self.update_task(call, &id);
                true
            }
            Some(_) | None => false,
        }
    }

    /// Gives a legacy server the answers to what its task wanted to know.
    fn update_task(&mut self, call: &Call, id: &str) {
        let params = call.message.raw(Member::Params).and_then(Object::parse);
        let responses = params.as_ref().and_then(|params| params.get("inputResponses"));
        let Some(responses) = responses.and_then(|raw| Object::parse(raw.as_bytes())) else {
            let text = "`params.inputResponses` must be an object";
            return self.reply_error(call, error_code::INVALID_PARAMS, text, None);
        };
        let inputs = self.tasks.known.get(id).map(|known| &known.inputs);
        // Keys that were never asked about, or no longer, are nobody's business.
        let answers: Vec<(&str, &str, Method)> = responses
            .iter()
            .filter_map(|(key, raw)| {
                let input = inputs.and_then(|inputs| inputs.get(key))?;
                Some((key, raw, input.message.method()))
            })
            .collect();
        if !answers.iter().all(|(_, raw, method)| is_answer(*method, raw)) {
            let text = "an answer does not fit its question";
            return self.reply_error(call, error_code::INVALID_PARAMS, text, None);
        }
        for (key, raw, _) in answers {
            let text = format!(r#"{{"jsonrpc":"2.0","id":0,"result":{raw}}}"#);
            let (Ok(answer), Some(input)) = (
                Message::scan(text.into()),
                self.tasks
                    .known
                    .get_mut(id)
                    .and_then(|known| known.inputs.remove(key)),
            ) else {
                continue;
            };
            if self.has_room(answer.len()) {
                legacy::write_answer(self.outgoing.end(), &answer, &input.id);
            } else {
                self.counters.overloads += 1;
                self.refuse(
                    &input.id,
                    error_code::INTERNAL_ERROR,
                    "too many bytes wait to be read",
                );
            }
        }
        self.tell(Tell::Reply {
            session: call.session,
            call: call.call,
            message: Message::own(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#.into()),
            words: Era::Legacy,
        });
    }

    /// A client has been given a task.
    pub(super) fn remember_task(&mut self, now: Moment, task: &Task, session: SessionKey, words: Era) {
        let Some(attached) = self.attached.get(&session) else {
            return;
        };
        let (client, hears) = (Arc::clone(&attached.client), attached.hears);
        if let Some(known) = self.tasks.known.get(&task.id)
            && known.client.principal != client.principal
        {
            // A server that gives one id to two of them cannot take it away from the first.
            self.counters.strays += 1;
            return;
        }
        if self.tasks.known.len() >= self.limits.tasks && !self.tasks.known.contains_key(&task.id) {
            self.forget_a_task(now);
        }
        // An id that is given once more is another task's from now on.
        self.end_task(&task.id);
        self.tasks.count += 1;
        let known = Known {
            number: self.tasks.count,
            client,
            session,
            words,
            live_until: None,
            watchers: (words == Era::Legacy && hears)
                .then_some(session)
                .into_iter()
                .collect(),
            told: false,
            inputs: BTreeMap::new(),
            next_key: 1,
            background: None,
        };
        self.tasks.known.insert(task.id.clone(), known);
        self.note_task(now, task);
    }

    /// Makes room: for one that has ended if there is such, else for the oldest.
    fn forget_a_task(&mut self, now: Moment) {
        let live = |known: &Known| known.live_until.is_some_and(|until| until > now);
        let oldest = self
            .tasks
            .known
            .iter()
            .min_by_key(|(_, known)| (live(known), known.number))
            .map(|(id, known)| (id.clone(), live(known)));
        if let Some((id, live)) = oldest {
            self.counters.overloads += u64::from(live);
            self.end_task(&id);
            self.tasks.known.remove(&id);
        }
    }

    /// A task has ended, or is not spoken of any more: nobody waits for its answers.
    fn end_task(&mut self, id: &str) {
        let Some(known) = self.tasks.known.get_mut(id) else {
            return;
        };
        known.live_until = None;
        let inputs = std::mem::take(&mut known.inputs);
        if let Some(background) = known.background.take() {
            self.pending.remove(&background);
        }
        for input in inputs.into_values() {
            self.refuse_unasked(&input.id, error_code::INTERNAL_ERROR, "the task has ended");
        }
    }

    /// Takes note of how far a task is.
    pub(super) fn note_task(&mut self, now: Moment, task: &Task) {
        let Some(known) = self.tasks.known.get_mut(&task.id) else {
            return;
        };
        if task.status.is_end() {
            self.end_task(&task.id);
        } else {
            known.live_until = Some(now.after(task.ttl.unwrap_or(UNLIMITED).min(UNLIMITED)));
        }
    }

    /// What a modern client is told of a legacy server's task, beside what the server said.
    pub(super) fn with_inputs(&mut self, id: &str, described: &Message) -> Message {
        self.sit_by(id);
        let inputs = self.tasks.known.get(id).map(|known| &known.inputs);
        let questions = inputs
            .into_iter()
            .flatten()
            .map(|(key, input)| (key.as_str(), &input.message));
        task::with_questions(described, questions)
    }

    /// A legacy server asks for a task only whoever waits for its outcome.
    fn sit_by(&mut self, id: &str) {
        let wire = self.next_wire();
        let Some(known) = self.tasks.known.get_mut(id) else {
            return;
        };
        if known.background.is_some() || known.words == Era::Legacy {
            return;
        }
        known.background = Some(wire);
        let request = TaskRequest {
            method: Method::TasksResult,
            id: wire,
            task: id,
            client: &known.client,
            answers: None,
        };
        self.face.write_task(self.outgoing.end(), &request);
        self.pending
            .insert(wire, Pending::Background { task: id.to_owned() });
    }

    /// The outcome that we waited for is here. Whoever asks next is told.
    pub(super) fn handle_background(&mut self, id: &str) {
        if let Some(known) = self.tasks.known.get_mut(id) {
            known.background = None;
        }
        self.end_task(id);
    }

    /// Our waiting for an outcome has come to nothing. Gives whether it was such.
    pub(super) fn lose_background(&mut self, id: WireId) -> bool {
        let Some(Pending::Background { task }) = self.pending.get(&id) else {
            return false;
        };
        if let Some(known) = self.tasks.known.get_mut(task) {
            known.background = None;
        }
        self.pending.remove(&id);
        true
    }

    /// A legacy server asks because of a task. Gives whether it says of which.
    pub(super) fn handle_task_question(&mut self, now: Moment, id: &Bytes, message: &Message) -> bool {
        let Some(task) = task::related(message).filter(|_| self.offers_tasks()) else {
            return false;
        };
        if let Some((session, wire)) = self.driven(&task) {
            self.ask_session(now, session, Some(wire), id.clone(), message.clone());
            return true;
        }
        let Some(known) = self.tasks.known.get(&task) else {
            // It says whose it is, and that one is forgotten: it is nobody else's.
            self.refuse_unasked(
                id,
                error_code::METHOD_NOT_FOUND,
                "the task is not known here any more",
            );
            return true;
        };
        match known.words {
            Era::Legacy => match self.carrier(&task) {
                Some((session, wire)) => self.ask_session(now, session, wire, id.clone(), message.clone()),
                None => self.refuse_unasked(id, error_code::METHOD_NOT_FOUND, "the task's client has gone"),
            },
            Era::Modern => self.keep_input(now, &task, id, message),
        }
        true
    }

    /// Keeps a question until the client looks after its task.
    fn keep_input(&mut self, now: Moment, task: &str, id: &Bytes, message: &Message) {
        let full = self.open_questions() >= self.limits.questions;
        let deadline = now.after(self.limits.question_timeout);
        let Some(known) = self.tasks.known.get_mut(task) else {
            return;
        };
        let can = &known.client.capabilities;
        if !message.method().is_input() || !can.can_answer(message.method()) {
            let why = "the client cannot answer this kind of request";
            self.refuse_unasked(id, error_code::METHOD_NOT_FOUND, why);
        } else if !can.can_answer_in_kind(message) {
            let why = "the client did not declare that it can be asked in this way";
            self.refuse_unasked(id, error_code::INVALID_PARAMS, why);
        } else if full {
            let why = "too many requests to clients are open";
            self.refuse_unasked(id, error_code::METHOD_NOT_FOUND, why);
        } else {
            let key = format!("k{}", known.next_key);
            known.next_key += 1;
            let input = Input {
                id: id.clone(),
                message: message.clone(),
                deadline,
            };
            known.inputs.insert(key, input);
            self.wake_by(deadline);
        }
    }

    /// A legacy session that a task's question can be put to: one that waits for its outcome, or who began it.
    fn carrier(&self, task: &str) -> Option<(SessionKey, Option<WireId>)> {
        let known = self.tasks.known.get(task)?;
        let waiting = self.pending.iter().find_map(|(id, pending)| match pending {
            Pending::Call(call)
                if call.method == Method::TasksResult
                    && task::named(&call.message).as_deref() == Some(task) =>
            {
                Some((call.session, Some(*id)))
            }
            Pending::Call(_)
            | Pending::Handshake
            | Pending::Listen
            | Pending::Own { .. }
            | Pending::Step { .. }
            | Pending::Background { .. } => None,
        });
        waiting.or_else(|| {
            self.attached
                .contains_key(&known.session)
                .then_some((known.session, None))
        })
    }

    /// The server no longer wants to know something for a task. Gives whether it was one of these.
    pub(super) fn withdraw_input(&mut self, id: &[u8]) -> bool {
        for known in self.tasks.known.values_mut() {
            let before = known.inputs.len();
            known.inputs.retain(|_, input| input.id != id);
            if known.inputs.len() < before {
                return true;
            }
        }
        false
    }

    /// Refuses what nobody has answered in time.
    pub(super) fn expire_inputs(&mut self, now: Moment) {
        let mut late = Vec::new();
        let mut next = None;
        for known in self.tasks.known.values_mut() {
            known.inputs.retain(|_, input| {
                if input.deadline <= now {
                    late.push(input.id.clone());
                    return false;
                }
                next = crate::time::earliest(next, Some(input.deadline));
                true
            });
        }
        for id in late {
            self.refuse_unasked(
                &id,
                error_code::INTERNAL_ERROR,
                "the client did not answer in time",
            );
        }
        if let Some(at) = next {
            self.wake_by(at);
        }
    }

    /// Notes that a session wants to hear of a task.
    pub(super) fn watch_task(&mut self, session: SessionKey, id: &str) -> Watched {
        let Some(attached) = self.attached.get(&session) else {
            return Watched::Unknown;
        };
        if !self.offers_tasks() || !self.tasks.is_of(id, &attached.client.principal) {
            return Watched::Unknown;
        }
        let Some(known) = self.tasks.known.get_mut(id) else {
            return Watched::Unknown;
        };
        known.watchers.insert(session);
        if self.face.listens() && !known.told {
            Watched::Wanted
        } else {
            Watched::Granted
        }
    }

    /// The server tells what became of a task.
    pub(super) fn handle_task_notice(&mut self, now: Moment, message: &Message) {
        let Some(task) = task::announced(message) else {
            self.counters.strays += 1;
            return;
        };
        if let Some((_, wire)) = self.driven(&task.id) {
            return self.poll_task(now, wire);
        }
        if task.status != Status::InputRequired {
            self.note_task(now, &task);
        }
        let watchers = self.tasks.known.get(&task.id).map(|known| known.watchers.clone());
        let watchers = watchers.unwrap_or_default();
        self.counters.unattributed += u64::from(watchers.is_empty());
        for session in watchers {
            self.tell(Tell::Notice {
                session,
                message: message.clone(),
            });
        }
    }

    /// Whom a log line is for that says which task it is about; `None` if it does not say.
    pub(super) fn task_log(&mut self, now: Moment, message: &Message) -> bool {
        let Some(task) = task::related(message).filter(|_| self.offers_tasks()) else {
            return false;
        };
        let level = message.level();
        let message = message.clone();
        if let Some((session, wire)) = self.driven(&task) {
            if let Some(Pending::Call(call)) = self.pending.get_mut(&wire) {
                call.note_sign_of_life(now, &self.limits);
                let call = call.call;
                if self.interests.hears(session, level) {
                    self.tell(Tell::Related {
                        session,
                        call,
                        message,
                    });
                }
            }
            return true;
        }
        match self.carrier(&task).map(|(session, _)| session) {
            // A modern client has no stream that belongs to a task.
            Some(session) if self.attached.get(&session).is_some_and(|attached| attached.hears) => {
                if self.interests.hears(session, level) {
                    self.tell(Tell::Notice { session, message });
                }
            }
            Some(_) | None => self.counters.unattributed += 1,
        }
        true
    }

    /// A list of tasks with those left out that are none of this session's principal.
    pub(super) fn own_tasks(&self, session: SessionKey, message: &Message) -> Message {
        let principal = self
            .attached
            .get(&session)
            .map(|attached| &attached.client.principal);
        task::filtered(message, |id| {
            principal.is_some_and(|principal| self.tasks.is_of(id, principal))
        })
    }
}
