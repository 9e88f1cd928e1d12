//! The tasks that clients know of: which principal each belongs to, which sessions watch it, and
//! what it asks.
//!
//! A task outlives the request that began it, and a client that knows its id may ask for it. So
//! every id is remembered with the principal it was given to, and is unknown to all others. An id
//! that was never seen here may belong to any caller: it is passed on only without authentication.
//! What a server of core tasks asks because of a task is marked with its id, which makes it exact;
//! a client of the extension finds it in `tasks/get` and answers by `tasks/update`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::backend_face::modern::ListenFilter;
use crate::backend_face::{TaskRequest, WireId};
use crate::client_face::modern::is_answer;
use crate::error_code;
use crate::exchange::{Call, Client, Principal, SessionKey, Tell};
use crate::message::{Member, Message};
use crate::method::Method;
use crate::object::Object;
use crate::task::{self, Status, Task};
use crate::time::{Moment, earliest};
use crate::version::{ChangeStyle, Era, QuestionStyle, TaskStyle};

use super::ledger::Ledger;
use super::link::Link;
use super::state::{InFlight, Pending};

/// How long a task is assumed to live if its server names no time.
const UNLIMITED: Duration = Duration::from_secs(3600);
pub(super) const NO_TASK: &str = "there is no such task";

/// The tasks that clients know of.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    known: BTreeMap<String, KnownTask>,
    /// How many there were; the age of each is its number.
    count: u64,
}

#[derive(Debug)]
struct KnownTask {
    number: u64,
    /// The client that began it, and its era.
    client: Arc<Client>,
    session: SessionKey,
    era: Era,
    /// Until when it may go on; `None` when it has ended.
    live_until: Option<Moment>,
    watchers: BTreeSet<SessionKey>,
    /// The server has agreed to notify of it, where it must be asked to.
    confirmed: bool,
    /// The server's questions, by the key that the client is given. Keys are never used twice.
    inputs: BTreeMap<String, Input>,
    next_key: u32,
    /// Our own `tasks/result`, which is where a server of core tasks asks.
    background: Option<WireId>,
}

#[derive(Debug)]
struct Input {
    /// The raw id that the server gave it.
    id: Bytes,
    message: Message,
    deadline: Moment,
}

/// What became of a session's subscription to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watched {
    /// There is no such task, for this caller.
    Unknown,
    /// The server notifies of it.
    Granted,
    /// The server notifies of it if it is asked to.
    Wanted,
}

/// Which client can be asked because of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskClient {
    /// The task is not known here.
    Unknown,
    /// Its client has gone.
    Gone,
    /// This session can be asked, in this call if there is one.
    Session(SessionKey, Option<WireId>),
    /// The client finds the question when it asks for its task.
    Polls,
}

impl Tasks {
    /// Returns how many questions wait for clients that poll.
    pub(super) fn open_inputs(&self) -> usize {
        self.known.values().map(|known| known.inputs.len()).sum()
    }

    /// Returns whether tasks go on for which the server must be kept, though no session may be
    /// there.
    pub(super) fn has_live(&self, now: Moment) -> bool {
        let live = |until: &Moment| *until > now;
        self.known
            .values()
            .any(|known| known.live_until.as_ref().is_some_and(live))
    }

    /// Returns the filters for everything that a session watches.
    pub(super) fn watched(&self) -> impl Iterator<Item = ListenFilter> {
        self.known
            .iter()
            .filter(|(_, known)| !known.watchers.is_empty())
            .map(|(id, _)| ListenFilter::Task(id.clone()))
    }

    /// Returns the sessions that watch a task.
    pub(super) fn watchers(&self, id: &str) -> BTreeSet<SessionKey> {
        self.known
            .get(id)
            .map(|known| known.watchers.clone())
            .unwrap_or_default()
    }

    /// The server has agreed to notify of a task, or will not.
    pub(super) fn confirm(&mut self, id: &str, confirmed: bool) {
        if let Some(known) = self.known.get_mut(id) {
            known.confirmed = confirmed;
            if !confirmed {
                known.watchers.clear();
            }
        }
    }

    /// Notes that a session wants to be notified of a task.
    pub(super) fn watch(&mut self, session: SessionKey, id: &str, ledger: &Ledger, link: &Link) -> Watched {
        if !link.offers_tasks() {
            return Watched::Unknown;
        }
        let principal = ledger.principal(session);
        let is_theirs = |known: &&mut KnownTask| Some(&known.client.principal) == principal;
        let Some(known) = self.known.get_mut(id).filter(is_theirs) else {
            return Watched::Unknown;
        };
        known.watchers.insert(session);
        match link.face().changes() {
            ChangeStyle::Listen if !known.confirmed => Watched::Wanted,
            ChangeStyle::Listen | ChangeStyle::Unasked => Watched::Granted,
        }
    }

    pub(super) fn unwatch(&mut self, session: SessionKey) {
        for known in self.known.values_mut() {
            known.watchers.remove(&session);
            known.confirmed &= !known.watchers.is_empty();
        }
    }

    /// The server has gone, and with it what it asked. Which principal a task belongs to is
    /// remembered: the server's successor may know it.
    pub(super) fn lose_link(&mut self) {
        for known in self.known.values_mut() {
            known.inputs.clear();
            known.background = None;
            known.confirmed = false;
            known.live_until = None;
        }
    }

    /// Returns whether a principal may ask for a task that was begun here.
    pub(super) fn has_any_of(&self, principal: &Principal) -> bool {
        let is_theirs = |known: &KnownTask| known.client.principal == *principal;
        self.known.values().any(is_theirs)
    }

    fn is_of(&self, id: &str, principal: &Principal) -> bool {
        match self.known.get(id) {
            Some(known) => known.client.principal == *principal,
            None => *principal == Principal::anonymous(),
        }
    }

    /// Returns a list of tasks without those that are none of this session's principal.
    pub(super) fn own(&self, session: SessionKey, message: &Message, ledger: &Ledger) -> Message {
        let principal = ledger.principal(session);
        task::filtered(message, |id| {
            principal.is_some_and(|principal| self.is_of(id, principal))
        })
    }

    /// Answers a request about a task that is not the caller's, or that needs no server. Returns
    /// whether it did.
    pub(super) fn answer_locally(&mut self, call: &Call, ledger: &mut Ledger, link: &Link) -> bool {
        let method = call.message.method();
        if !method.names_a_task() {
            return false;
        }
        let Some(client) = ledger.client(call.session).map(Arc::clone) else {
            return false;
        };
        let translated = call.era.tasks() == TaskStyle::Extension && link.face().tasks() == TaskStyle::Core;
        if translated && !link.offers_tasks() {
            let text = "the server has no tasks";
            ledger.reply_error(call, error_code::METHOD_NOT_FOUND, text, None);
            return true;
        }
        if translated && !client.capabilities.takes_tasks() {
            let data = format!(
                r#"{{"requiredCapabilities":{{"extensions":{{"{}":{{}}}}}}}}"#,
                task::EXTENSION
            );
            let text = "the client must declare the extension for tasks";
            ledger.reply_error(call, error_code::MISSING_CAPABILITY, text, Some(&data));
            return true;
        }
        let named = task::named(&call.message);
        let known = named
            .as_deref()
            .is_some_and(|id| self.is_of(id, &client.principal));
        if !known {
            ledger.reply_error(call, error_code::INVALID_PARAMS, NO_TASK, None);
            return true;
        }
        match named {
            Some(id) if translated && method == Method::TasksUpdate => {
                self.update(call, &id, ledger, link);
                true
            }
            Some(_) | None => false,
        }
    }

    /// Sends a server of core tasks the answers to its task's questions.
    fn update(&mut self, call: &Call, id: &str, ledger: &mut Ledger, link: &Link) {
        let params = call.message.raw(Member::Params).and_then(Object::parse);
        let responses = params.as_ref().and_then(|params| params.get("inputResponses"));
        let Some(responses) = responses.and_then(|raw| Object::parse(raw.as_bytes())) else {
            let text = "`params.inputResponses` must be an object";
            return ledger.reply_error(call, error_code::INVALID_PARAMS, text, None);
        };
        let mut known = self.known.get_mut(id);
        // Keys that were never asked about, or no longer, do not count.
        let answers: Vec<(&str, &str, Method)> = responses
            .iter()
            .filter_map(|(key, raw)| {
                let input = known.as_ref()?.inputs.get(key)?;
                Some((key, raw, input.message.method()))
            })
            .collect();
        if !answers.iter().all(|(_, raw, method)| is_answer(*method, raw)) {
            let text = "an answer does not fit its question";
            return ledger.reply_error(call, error_code::INVALID_PARAMS, text, None);
        }
        for (key, raw, _) in answers {
            let text = format!(r#"{{"jsonrpc":"2.0","id":0,"result":{raw}}}"#);
            if let (Ok(answer), Some(input)) = (
                Message::scan(text.into()),
                known.as_mut().and_then(|known| known.inputs.remove(key)),
            ) {
                link.write_answer(&answer, &input.id, ledger);
            }
        }
        ledger.tell(Tell::Reply {
            session: call.session,
            call: call.call,
            message: Message::own(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#.into()),
            era: link.face().era(),
        });
    }

    /// A client has been given a task.
    pub(super) fn remember(
        &mut self,
        now: Moment,
        task: &Task,
        session: SessionKey,
        era: Era,
        ledger: &mut Ledger,
        link: &Link,
    ) {
        let Some(client) = ledger.client(session).map(Arc::clone) else {
            return;
        };
        if let Some(known) = self.known.get(&task.id)
            && known.client.principal != client.principal
        {
            // A server that gives one id to two of them cannot take it away from the first.
            ledger.counters.strays += 1;
            return;
        }
        if self.known.len() >= ledger.limits.tasks && !self.known.contains_key(&task.id) {
            self.forget_one(now, ledger, link);
        }
        // An id that is given once more is another task's from now on.
        self.end(&task.id, ledger, link);
        self.count += 1;
        // A client that is notified unasked watches its task from the beginning.
        let watches = era.changes() == ChangeStyle::Unasked;
        let known = KnownTask {
            number: self.count,
            client,
            session,
            era,
            live_until: None,
            watchers: watches.then_some(session).into_iter().collect(),
            confirmed: false,
            inputs: BTreeMap::new(),
            next_key: 1,
            background: None,
        };
        self.known.insert(task.id.clone(), known);
        self.note(now, task, ledger, link);
    }

    /// Makes room: forgets one that has ended if there is such, else the oldest.
    fn forget_one(&mut self, now: Moment, ledger: &mut Ledger, link: &Link) {
        let live = |known: &KnownTask| known.live_until.is_some_and(|until| until > now);
        let oldest = self
            .known
            .iter()
            .min_by_key(|(_, known)| (live(known), known.number))
            .map(|(id, known)| (id.clone(), live(known)));
        if let Some((id, live)) = oldest {
            ledger.counters.overloads += u64::from(live);
            self.end(&id, ledger, link);
            self.known.remove(&id);
        }
    }

    /// A task has ended, or is forgotten: its questions are refused.
    fn end(&mut self, id: &str, ledger: &mut Ledger, link: &Link) {
        let Some(known) = self.known.get_mut(id) else {
            return;
        };
        known.live_until = None;
        if let Some(background) = known.background.take() {
            ledger.remove(background);
        }
        for input in std::mem::take(&mut known.inputs).into_values() {
            let why = "the task has ended";
            link.refuse_unasked(&input.id, error_code::INTERNAL_ERROR, why, ledger);
        }
    }

    /// Takes note of how far a task is.
    pub(super) fn note(&mut self, now: Moment, task: &Task, ledger: &mut Ledger, link: &Link) {
        if task.status.is_end() {
            self.end(&task.id, ledger, link);
        } else if let Some(known) = self.known.get_mut(&task.id) {
            known.live_until = Some(now.after(task.ttl.unwrap_or(UNLIMITED).min(UNLIMITED)));
        }
    }

    /// Takes note of a notification about a task.
    pub(super) fn note_notification(&mut self, now: Moment, task: &Task, ledger: &mut Ledger, link: &Link) {
        if task.status != Status::InputRequired {
            self.note(now, task, ledger, link);
        }
    }

    /// Returns the description of a core task for a client of the extension: the server's, with its
    /// questions.
    pub(super) fn with_inputs(
        &mut self,
        id: &str,
        described: &Message,
        ledger: &mut Ledger,
        link: &Link,
    ) -> Message {
        self.await_outcome(id, ledger, link);
        let inputs = self.known.get(id).map(|known| &known.inputs);
        let questions = inputs
            .into_iter()
            .flatten()
            .map(|(key, input)| (key.as_str(), &input.message));
        task::with_questions(described, questions)
    }

    /// Waits for the outcome of a task: a server of core tasks asks only a client that does.
    fn await_outcome(&mut self, id: &str, ledger: &mut Ledger, link: &Link) {
        let wire = ledger.next_wire();
        let Some(known) = self.known.get_mut(id) else {
            return;
        };
        if known.background.is_some() || known.era.tasks() == TaskStyle::Core {
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
        link.face().write_task(ledger.outgoing.end(), &request);
        let task = id.to_owned();
        ledger.enter(wire, Pending::Background { task });
    }

    /// The outcome that was waited for is here. The next client that asks is sent it.
    pub(super) fn handle_background(&mut self, id: &str, ledger: &mut Ledger, link: &Link) {
        self.handle_background_lost(id);
        self.end(id, ledger, link);
    }

    /// The outcome that was waited for will not come.
    pub(super) fn handle_background_lost(&mut self, id: &str) {
        if let Some(known) = self.known.get_mut(id) {
            known.background = None;
        }
    }

    /// Returns which client can be asked because of a task.
    pub(super) fn client_of(&self, task: &str, ledger: &Ledger) -> TaskClient {
        let Some(known) = self.known.get(task) else {
            return TaskClient::Unknown;
        };
        match known.era.questions() {
            QuestionStyle::Results => TaskClient::Polls,
            QuestionStyle::Requests => self
                .session_of(task, ledger)
                .map_or(TaskClient::Gone, |(session, wire)| {
                    TaskClient::Session(session, wire)
                }),
        }
    }

    /// Returns the session that what is about a task is for: one that waits for its outcome, or the
    /// one that began it.
    pub(super) fn session_of(&self, task: &str, ledger: &Ledger) -> Option<(SessionKey, Option<WireId>)> {
        let known = self.known.get(task)?;
        let waits = |(_, call): &(WireId, &InFlight)| {
            call.method() == Method::TasksResult && task::named(&call.message).as_deref() == Some(task)
        };
        let waiting = ledger.calls().find(waits);
        let waiting = waiting.map(|(id, call)| (call.session, Some(id)));
        waiting.or_else(|| {
            ledger
                .sessions
                .contains(known.session)
                .then_some((known.session, None))
        })
    }

    /// Keeps a question until the client asks for its task. `full`: too many questions are open.
    pub(super) fn keep_input(
        &mut self,
        now: Moment,
        task: &str,
        message: &Message,
        full: bool,
        ledger: &mut Ledger,
        link: &Link,
    ) {
        let (Some(known), Some(id)) = (self.known.get_mut(task), message.raw_copy(Member::Id)) else {
            return;
        };
        let can = &known.client.capabilities;
        if !message.method().is_input() || !can.can_answer(message.method()) {
            let why = "the client cannot answer this kind of request";
            link.refuse_unasked(&id, error_code::METHOD_NOT_FOUND, why, ledger);
        } else if !can.can_answer_in_kind(message) {
            let why = "the client did not declare that it can be asked in this way";
            link.refuse_unasked(&id, error_code::INVALID_PARAMS, why, ledger);
        } else if full {
            let why = "too many requests to clients are open";
            link.refuse_unasked(&id, error_code::METHOD_NOT_FOUND, why, ledger);
        } else {
            let key = format!("k{}", known.next_key);
            known.next_key += 1;
            let deadline = now.after(ledger.limits.question_timeout);
            let input = Input {
                id,
                message: message.clone(),
                deadline,
            };
            known.inputs.insert(key, input);
            ledger.wake_by(deadline);
        }
    }

    /// The server withdraws a task's question. Returns whether it was one of these.
    pub(super) fn withdraw_input(&mut self, id: &[u8]) -> bool {
        for known in self.known.values_mut() {
            let before = known.inputs.len();
            known.inputs.retain(|_, input| input.id != id);
            if known.inputs.len() < before {
                return true;
            }
        }
        false
    }

    /// Refuses the questions that no client has answered in time.
    pub(super) fn expire_inputs(&mut self, now: Moment, ledger: &mut Ledger, link: &Link) {
        let mut late = Vec::new();
        let mut next = None;
        for known in self.known.values_mut() {
            known.inputs.retain(|_, input| {
                if input.deadline <= now {
                    late.push(input.id.clone());
                    return false;
                }
                next = earliest(next, Some(input.deadline));
                true
            });
        }
        for id in late {
            let why = "the client did not answer in time";
            link.refuse_unasked(&id, error_code::INTERNAL_ERROR, why, ledger);
        }
        if let Some(at) = next {
            ledger.wake_by(at);
        }
    }
}
