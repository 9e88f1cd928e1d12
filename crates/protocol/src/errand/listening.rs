//! `subscriptions/listen`: what a modern client wants to hear, and how it is told.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::Value;

use super::{Errand, OPENING, Outcome};
use crate::backend_face::modern::ListenFilter;
use crate::client_face::{legacy, modern};
use crate::error_code;
use crate::exchange::{Ask, Call, CallKey, Request, Welcome};
use crate::message::{Member, Message, quoted};
use crate::method::Method;
use crate::multiplexer::is_part;
use crate::object::Object;
use crate::session::Accepts;
use crate::task;
use crate::version::Era;

/// Resources one listen may name.
const MAX_RESOURCES: usize = 256;
/// Tasks one listen may name.
const MAX_TASKS: usize = 256;

/// What was asked for, and what of it is honoured.
#[derive(Debug)]
pub(super) struct Listening {
    lists: BTreeSet<Method>,
    /// What was asked for one by one: resources, then tasks.
    wishes: Vec<ListenFilter>,
    /// Wishes that the server has not answered yet, by their call.
    awaited: BTreeSet<CallKey>,
    honoured: BTreeSet<ListenFilter>,
    acknowledged: bool,
    /// What is being found out about tasks, by the call that asks. `true`: it has changed again since.
    looking: BTreeMap<CallKey, (String, bool)>,
    next_call: u64,
}

const LISTS: [(&str, Method); 3] = [
    ("toolsListChanged", Method::ToolsListChanged),
    ("promptsListChanged", Method::PromptsListChanged),
    ("resourcesListChanged", Method::ResourcesListChanged),
];

impl Listening {
    pub(super) fn new(message: &Message) -> Self {
        let params: Value = message
            .raw(Member::Params)
            .and_then(|raw| serde_json::from_slice(raw).ok())
            .unwrap_or_default();
        let wanted = params.get("notifications").unwrap_or(&Value::Null);
        let named = |member: &str, limit: usize| {
            let named = wanted[member].as_array().into_iter().flatten();
            let named = named.filter_map(Value::as_str).take(limit).map(str::to_owned);
            named.collect::<Vec<String>>()
        };
        let resources = named("resourceSubscriptions", MAX_RESOURCES).into_iter();
        let tasks = named("taskIds", MAX_TASKS).into_iter();
        let wishes: Vec<ListenFilter> = resources
            .map(ListenFilter::Resource)
            .chain(tasks.map(ListenFilter::Task))
            .collect();
        Self {
            lists: LISTS
                .into_iter()
                .filter(|(name, _)| wanted[*name] == true)
                .map(|(_, list)| list)
                .collect(),
            next_call: OPENING.0 + 2 + wishes.len() as u64,
            wishes,
            awaited: BTreeSet::new(),
            honoured: BTreeSet::new(),
            acknowledged: false,
            looking: BTreeMap::new(),
        }
    }

    /// A notice as this listen's client is to hear it, if it is to.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "every other method is treated alike"
    )]
    pub(super) fn hear(&self, message: &Message, id: &[u8]) -> Option<Bytes> {
        let wanted = match message.method() {
            Method::ResourcesUpdated => {
                let uri = message.text(Member::Uri)?;
                self.honoured
                    .iter()
                    .any(|honoured| matches!(honoured, ListenFilter::Resource(honoured) if is_part(&uri, honoured)))
            }
            Method::Tasks => task::announced(message).is_some_and(|task| self.honours_task(&task.id)),
            list => self.lists.contains(&list),
        };
        (self.acknowledged && wanted).then(|| tagged(message, id))
    }

    fn honours_task(&self, id: &str) -> bool {
        self.acknowledged && self.honoured.contains(&ListenFilter::Task(id.to_owned()))
    }

    fn asks_for_tasks(&self) -> bool {
        self.wishes
            .iter()
            .any(|wish| matches!(wish, ListenFilter::Task(_)))
    }

    /// The first thing the client hears: what it will hear.
    fn acknowledgement(&self, id: &[u8]) -> Bytes {
        let mut filter = Object::default();
        for (name, list) in LISTS {
            if self.lists.contains(&list) {
                filter.set(name, "true");
            }
        }
        let (mut uris, mut tasks) = (Vec::new(), Vec::new());
        for wish in &self.honoured {
            match wish {
                ListenFilter::Resource(uri) => uris.push(quoted(uri)),
                ListenFilter::Task(id) => tasks.push(quoted(id)),
            }
        }
        for (name, named) in [("resourceSubscriptions", uris), ("taskIds", tasks)] {
            if !named.is_empty() {
                filter.set(name, format!("[{}]", named.join(",")));
            }
        }
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{}}},"notifications":{filter}}}}}"#,
            String::from_utf8_lossy(id),
        )
        .into()
    }
}

/// Marks a notice with the id of the listen that it is for.
fn tagged(message: &Message, id: &[u8]) -> Bytes {
    let mut params = message.object(Member::Params);
    let mut meta = message.object(Member::Meta);
    meta.set(
        "io.modelcontextprotocol/subscriptionId",
        String::from_utf8_lossy(id).into_owned(),
    );
    params.set("_meta", meta.to_string());
    let method = String::from_utf8_lossy(message.raw(Member::Method).unwrap_or_default());
    format!(r#"{{"jsonrpc":"2.0","method":{method},"params":{params}}}"#).into()
}

/// The last thing the client hears, if it is we who end the listen.
pub(super) fn farewell(id: &[u8]) -> Bytes {
    let id = String::from_utf8_lossy(id);
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}}}"#
    )
    .into()
}

impl Errand {
    /// The server is there: what it can send is honoured, resources after it was asked for them.
    pub(super) fn begin_listening(&mut self, welcome: &Welcome) {
        let session = self.session;
        let Some(listening) = &mut self.listening else {
            return;
        };
        listening
            .lists
            .retain(|list| welcome.changing_lists.contains(list));
        if welcome.tasks && listening.asks_for_tasks() && !self.client.capabilities.takes_tasks() {
            let (message, words) = (undeclared(), modern::ERA);
            return self.conclude(Outcome::Reply { message, words });
        }
        let resources = welcome.subscriptions;
        listening.wishes.retain(|wish| match wish {
            ListenFilter::Resource(_) => resources,
            ListenFilter::Task(_) => welcome.tasks,
        });
        for (at, wish) in listening.wishes.iter().enumerate() {
            let call = CallKey(OPENING.0 + 2 + at as u64);
            let (request, text) = match wish {
                ListenFilter::Resource(uri) => (
                    Request::Subscribe { uri: uri.clone() },
                    format!(
                        r#"{{"jsonrpc":"2.0","id":0,"method":"resources/subscribe","params":{{"uri":{}}}}}"#,
                        quoted(uri)
                    ),
                ),
                ListenFilter::Task(id) => (Request::Watch { task: id.clone() }, about_task(id)),
            };
            listening.awaited.insert(call);
            self.outputs.push_back(super::Output::Ask(Ask::Call(Call {
                session,
                call,
                request,
                message: Message::own(text),
                words: legacy::ERA,
                mirrored: None,
                reads_events: true,
            })));
        }
        self.accepts = Accepts::Events;
        self.acknowledge();
    }

    /// A subscription was answered.
    pub(super) fn handle_subscribed(&mut self, call: CallKey, granted: bool) {
        let Some(listening) = &mut self.listening else {
            return;
        };
        if !listening.awaited.remove(&call) {
            return;
        }
        let at = (call.0 - OPENING.0 - 2) as usize;
        if let (true, Some(wish)) = (granted, listening.wishes.get(at)) {
            listening.honoured.insert(wish.clone());
        }
        self.acknowledge();
    }

    fn acknowledge(&mut self) {
        let id = Bytes::copy_from_slice(self.id());
        let Some(listening) = &mut self.listening else {
            return;
        };
        if listening.acknowledged || !listening.awaited.is_empty() {
            return;
        }
        listening.acknowledged = true;
        let event = listening.acknowledgement(&id);
        self.streaming = true;
        self.push(event);
    }

    /// A legacy server says that a task has changed, and little more. The client is to be told everything, so the server
    /// is asked for it, for one change at a time.
    pub(super) fn look_after_task(&mut self, notice: &Message) {
        let Some(listening) = &mut self.listening else {
            return;
        };
        let Some(task) = task::announced(notice).filter(|task| listening.honours_task(&task.id)) else {
            return;
        };
        if let Some((_, again)) = listening.looking.values_mut().find(|(id, _)| *id == task.id) {
            *again = true;
            return;
        }
        self.ask_about(task.id);
    }

    fn ask_about(&mut self, id: String) {
        let Some(listening) = &mut self.listening else {
            return;
        };
        let call = CallKey(listening.next_call);
        listening.next_call += 1;
        let message = Message::own(about_task(&id));
        listening.looking.insert(call, (id, false));
        self.outputs.push_back(super::Output::Ask(Ask::Call(Call {
            session: self.session,
            call,
            request: Request::Plain,
            message,
            words: modern::ERA,
            mirrored: None,
            reads_events: true,
        })));
    }

    /// What was asked about a task is here, or will not come. Gives whether it was that.
    pub(super) fn handle_looked(&mut self, call: CallKey, reply: Option<(&Message, Era)>) -> bool {
        let id = Bytes::copy_from_slice(self.id());
        let Some((task, again)) = self
            .listening
            .as_mut()
            .and_then(|listening| listening.looking.remove(&call))
        else {
            return false;
        };
        let body =
            reply.map(|(message, words)| modern::lower_reply(b"0", message, words, Method::TasksGet, None));
        let result = body.as_deref().and_then(Object::parse);
        let result = result.as_ref().and_then(|body| body.get("result"));
        if let Some(mut params) = result.and_then(|raw| Object::parse(raw.as_bytes())) {
            params.remove("resultType");
            let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/tasks","params":{params}}}"#);
            if let Ok(notice) = Message::scan(text.into()) {
                let event = tagged(&notice, &id);
                self.push(event);
            }
        }
        if again {
            self.ask_about(task);
        }
        true
    }

    /// Ends a listen in the way its client understands: with a result.
    pub fn dismiss(&mut self) {
        if self.listening.is_some() {
            self.conclude(Outcome::Closed);
        }
    }
}

/// A request about a task, in the words that both eras have for it.
fn about_task(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"tasks/get","params":{{"taskId":{}}}}}"#,
        quoted(id)
    )
}

/// The refusal of a client that wants to hear of tasks and does not say that it knows them (tasks extension, "Task
/// Status Notifications").
fn undeclared() -> Message {
    Message::own(format!(
        r#"{{"jsonrpc":"2.0","id":0,"error":{{"code":{},"message":"the client must declare the extension for tasks","data":{{"requiredCapabilities":{{"extensions":{{"{}":{{}}}}}}}}}}}}"#,
        error_code::MISSING_CAPABILITY,
        task::EXTENSION
    ))
}
