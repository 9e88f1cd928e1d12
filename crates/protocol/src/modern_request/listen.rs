//! `subscriptions/listen`: which notifications a modern client wants, and how they are sent.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::Value;

use super::OPENING;
use crate::backend_face::modern::ListenFilter;
use crate::client_face::{legacy, modern};
use crate::error_code;
use crate::exchange::{Ask, Call, CallKey, Client, Request, ServerInfo, SessionKey};
use crate::message::{Member, Message, quoted};
use crate::method::Method;
use crate::multiplexer::is_part;
use crate::object::Object;
use crate::task;
use crate::version::Era;

/// Resources one listen may name.
const MAX_RESOURCES: usize = 256;
/// Tasks one listen may name.
const MAX_TASKS: usize = 256;

/// What a listen wants done: an event for the client, calls for the server.
#[derive(Debug, Default)]
pub(super) struct ListenStep {
    pub(super) event: Option<Bytes>,
    pub(super) asks: Vec<Ask>,
}

impl ListenStep {
    fn event(event: Option<Bytes>) -> Self {
        let asks = Vec::new();
        Self { event, asks }
    }
}

/// What was asked for, and what of it is honoured.
///
/// [`Listening::begin`] is called once, with the server's declaration. After it,
/// [`Listening::handle_answer`] takes the answers to the calls of each step, and
/// [`Listening::handle_notice`] what the server sends.
#[derive(Debug)]
pub(super) struct Listening {
    lists: BTreeSet<Method>,
    /// What was asked for one by one: resources, then tasks.
    filters: Vec<ListenFilter>,
    /// Subscriptions that the server has not answered yet, by their call.
    awaited: BTreeSet<CallKey>,
    honoured: BTreeSet<ListenFilter>,
    acknowledged: bool,
    /// What is being found out about tasks, by the call that asks. `true`: it has changed again
    /// since.
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
        let filters: Vec<ListenFilter> = resources
            .map(ListenFilter::Resource)
            .chain(tasks.map(ListenFilter::Task))
            .collect();
        Self {
            lists: LISTS
                .into_iter()
                .filter(|(name, _)| wanted[*name] == true)
                .map(|(_, list)| list)
                .collect(),
            next_call: OPENING.0 + 2 + filters.len() as u64,
            filters,
            awaited: BTreeSet::new(),
            honoured: BTreeSet::new(),
            acknowledged: false,
            looking: BTreeMap::new(),
        }
    }

    /// Handles the server's declaration: what it can send is honoured, resources and tasks after it
    /// was asked for them. Returns the error for a client that wants tasks and did not declare
    /// them.
    pub(super) fn begin(
        &mut self,
        session: SessionKey,
        server_info: &ServerInfo,
        client: &Client,
        id: &[u8],
    ) -> Result<ListenStep, Message> {
        self.lists
            .retain(|list| server_info.changing_lists.contains(list));
        if server_info.tasks && self.asks_for_tasks() && !client.capabilities.takes_tasks() {
            return Err(undeclared());
        }
        self.filters.retain(|filter| match filter {
            ListenFilter::Resource(_) => server_info.subscriptions,
            ListenFilter::Task(_) => server_info.tasks,
        });
        let mut asks = Vec::new();
        for (at, filter) in self.filters.iter().enumerate() {
            let call = CallKey(OPENING.0 + 2 + at as u64);
            let (request, text) = match filter {
                ListenFilter::Resource(uri) => (
                    Request::Subscribe { uri: uri.clone() },
                    format!(
                        r#"{{"jsonrpc":"2.0","id":0,"method":"resources/subscribe","params":{{"uri":{}}}}}"#,
                        quoted(uri)
                    ),
                ),
                ListenFilter::Task(id) => (Request::Watch { task: id.clone() }, about_task(id)),
            };
            self.awaited.insert(call);
            asks.push(ask(session, call, request, text, legacy::ERA));
        }
        let event = self.acknowledge(id);
        Ok(ListenStep { event, asks })
    }

    /// Handles the server's answer to one of the calls. `granted` is whether it was a good one.
    pub(super) fn handle_answer(
        &mut self,
        session: SessionKey,
        call: CallKey,
        granted: bool,
        reply: Option<(&Message, Era)>,
        id: &[u8],
    ) -> ListenStep {
        if let Some((task, again)) = self.looking.remove(&call) {
            let event = reply.and_then(|(message, era)| task_event(message, era, id));
            let asks = again
                .then(|| self.request_task(session, task))
                .into_iter()
                .collect();
            return ListenStep { event, asks };
        }
        if !self.awaited.remove(&call) {
            return ListenStep::default();
        }
        let at = (call.0 - OPENING.0 - 2) as usize;
        if let (true, Some(filter)) = (granted, self.filters.get(at)) {
            self.honoured.insert(filter.clone());
        }
        ListenStep::event(self.acknowledge(id))
    }

    /// Handles a notification of the server. A legacy server only names a task that has changed.
    /// The client is to know everything, so the server is asked for it, for one change at a time.
    pub(super) fn handle_notice(&mut self, session: SessionKey, notice: &Message, id: &[u8]) -> ListenStep {
        if notice.method() != Method::TasksStatus {
            return ListenStep::event(self.wants(notice).then(|| tagged(notice, id)));
        }
        let Some(task) = task::announced(notice).filter(|task| self.honours_task(&task.id)) else {
            return ListenStep::default();
        };
        if let Some((_, again)) = self.looking.values_mut().find(|(id, _)| *id == task.id) {
            *again = true;
            return ListenStep::default();
        }
        let asks = vec![self.request_task(session, task.id)];
        ListenStep { event: None, asks }
    }

    /// Asks the server about a task.
    fn request_task(&mut self, session: SessionKey, id: String) -> Ask {
        let call = CallKey(self.next_call);
        self.next_call += 1;
        let text = about_task(&id);
        self.looking.insert(call, (id, false));
        ask(session, call, Request::Plain, text, modern::ERA)
    }

    /// Returns whether this listen is to be sent a notification.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "every other method is treated alike"
    )]
    fn wants(&self, message: &Message) -> bool {
        let wanted = match message.method() {
            Method::ResourcesUpdated => message.text(Member::Uri).is_some_and(|uri| {
                self.honoured
                    .iter()
                    .any(|honoured| matches!(honoured, ListenFilter::Resource(honoured) if is_part(&uri, honoured)))
            }),
            Method::Tasks => task::announced(message).is_some_and(|task| self.honours_task(&task.id)),
            list => self.lists.contains(&list),
        };
        self.acknowledged && wanted
    }

    fn honours_task(&self, id: &str) -> bool {
        self.acknowledged && self.honoured.contains(&ListenFilter::Task(id.to_owned()))
    }

    fn asks_for_tasks(&self) -> bool {
        self.filters
            .iter()
            .any(|filter| matches!(filter, ListenFilter::Task(_)))
    }

    /// Returns the first event of the stream, which names what will be sent, as soon as all of it
    /// is known.
    fn acknowledge(&mut self, id: &[u8]) -> Option<Bytes> {
        if self.acknowledged || !self.awaited.is_empty() {
            return None;
        }
        self.acknowledged = true;
        Some(self.acknowledgement(id))
    }

    fn acknowledgement(&self, id: &[u8]) -> Bytes {
        let mut filter = Object::default();
        for (name, list) in LISTS {
            if self.lists.contains(&list) {
                filter.set(name, "true");
            }
        }
        let (mut uris, mut tasks) = (Vec::new(), Vec::new());
        for filter in &self.honoured {
            match filter {
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

/// Returns the answer to a listen that Rialto ends.
pub(super) fn closing_result(id: &[u8]) -> Bytes {
    let id = String::from_utf8_lossy(id);
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}}}"#
    )
    .into()
}

/// Returns what a client is sent about a task that the server was asked about.
fn task_event(message: &Message, era: Era, id: &[u8]) -> Option<Bytes> {
    let body = modern::lower_reply(b"0", message, era, Method::TasksGet, None);
    let body = Object::parse(&body)?;
    let mut params = Object::parse(body.get("result")?.as_bytes())?;
    params.remove("resultType");
    let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/tasks","params":{params}}}"#);
    let notice = Message::scan(text.into()).ok()?;
    Some(tagged(&notice, id))
}

fn ask(session: SessionKey, call: CallKey, request: Request, text: String, era: Era) -> Ask {
    Ask::Call(Call {
        session,
        call,
        request,
        message: Message::own(text),
        era,
        mirrored: None,
        reads_events: true,
    })
}

/// Returns a request about a task, which is the same in both eras.
fn about_task(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"tasks/get","params":{{"taskId":{}}}}}"#,
        quoted(id)
    )
}

/// Returns the refusal for a client that listens for tasks without declaring them (tasks extension,
/// "Task Status Notifications").
fn undeclared() -> Message {
    Message::own(format!(
        r#"{{"jsonrpc":"2.0","id":0,"error":{{"code":{},"message":"the client must declare the extension for tasks","data":{{"requiredCapabilities":{{"extensions":{{"{}":{{}}}}}}}}}}}}"#,
        error_code::MISSING_CAPABILITY,
        task::EXTENSION
    ))
}
