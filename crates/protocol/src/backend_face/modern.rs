//! A modern server (2026-07-28): no handshake, every request describes itself, and the server asks
//! by answering `input_required`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use serde_json::Value;

use super::{Arrival, OutgoingRequest, TaskRequest, WireId, write_line};
use crate::exchange::{Client, ServerInfo};
use crate::message::{Kind, Member, Message, quoted};
use crate::method::{LogLevel, Method};
use crate::object::{Object, may_have};
use crate::task;
use crate::version::{Era, Version};

/// The members of `_meta` that describe one hop, which every hop replaces.
pub const ENVELOPE: [&str; 4] = [
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/logLevel",
];
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
pub(crate) const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// Sorts a message of the server.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "every other method is treated alike"
)]
pub(super) fn recognise(message: &Message) -> Arrival {
    match message.kind() {
        Kind::Result | Kind::Error => Arrival::Answer(message.number(Member::Id).map(WireId)),
        // The revision forbids requests from servers, and we must not answer one.
        Kind::Request => Arrival::Forbidden,
        Kind::Notification => match message.method() {
            Method::Progress => Arrival::Progress(message.number(Member::ProgressToken).map(WireId)),
            Method::LogMessage => Arrival::Log,
            Method::ToolsListChanged | Method::PromptsListChanged | Method::ResourcesListChanged => {
                Arrival::ListChanged
            }
            Method::ResourcesUpdated => Arrival::Updated,
            Method::Tasks => Arrival::Task,
            Method::SubscriptionsAcknowledged => {
                Arrival::Listening(message.number(Member::MetaSubscriptionId).map(WireId))
            }
            // A server may also end a listen in this way, but the result follows.
            Method::Cancelled => Arrival::Forbidden,
            _ => Arrival::Other,
        },
    }
}

/// What is known of one server.
#[derive(Debug, Default)]
pub struct Discovery {
    stage: Stage,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Unsent,
    Asked,
    Known(Arc<ServerInfo>),
}

/// One entry of the filter of a `subscriptions/listen`, beside lists that change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ListenFilter {
    /// A resource, by its URI.
    Resource(String),
    /// A task, by its id.
    Task(String),
}

impl ListenFilter {
    fn name(&self) -> &str {
        match self {
            Self::Resource(name) | Self::Task(name) => name,
        }
    }

    const fn is_task(&self) -> bool {
        matches!(self, Self::Task(_))
    }
}

impl Discovery {
    /// Returns the answer to `server/discover`, once there is one.
    pub fn server_info(&self) -> Option<&Arc<ServerInfo>> {
        match &self.stage {
            Stage::Known(server_info) => Some(server_info),
            Stage::Unsent | Stage::Asked => None,
        }
    }

    pub(super) fn can_begin(&self) -> bool {
        matches!(self.stage, Stage::Unsent)
    }

    pub(super) fn begin(&mut self, id: WireId, out: &mut BytesMut) -> bool {
        if !matches!(self.stage, Stage::Unsent) {
            return false;
        }
        write_discover(out, id);
        self.stage = Stage::Asked;
        true
    }

    pub(super) fn handle_answer(&mut self, message: Message) -> Result<Arc<ServerInfo>, Message> {
        let result: Value = message
            .raw(Member::Result)
            .and_then(|raw| serde_json::from_slice(raw).ok())
            .unwrap_or_default();
        let speaks = result
            .get("supportedVersions")
            .and_then(Value::as_array)
            .is_some_and(|versions| {
                versions
                    .iter()
                    .any(|version| version == Version::NEWEST_MODERN.as_str())
            });
        if !speaks {
            self.stage = Stage::Unsent;
            return Err(message);
        }
        let server_info = Arc::new(read_server_info(message));
        self.stage = Stage::Known(Arc::clone(&server_info));
        Ok(server_info)
    }

    pub(super) fn reset(&mut self) {
        self.stage = Stage::Unsent;
    }

    /// Returns whether a call may be given a task, so that it is worth declaring that we can deal
    /// with one.
    pub(super) fn takes_tasks(&self) -> bool {
        self.server_info().is_some_and(|server_info| server_info.tasks)
    }
}

/// Returns what a server declared about itself in its discovery.
pub(super) fn read_server_info(message: Message) -> ServerInfo {
    let result: Value = message
        .raw(Member::Result)
        .and_then(|raw| serde_json::from_slice(raw).ok())
        .unwrap_or_default();
    let info = message
        .raw(Member::Result)
        .and_then(Object::parse)
        .and_then(|result| {
            Object::parse(result.get("_meta")?.as_bytes())?
                .get(SERVER_INFO)
                .map(Into::into)
        });
    ServerInfo {
        era: Era::Modern,
        info,
        version: None,
        changing_lists: super::legacy::changing_lists(&result),
        logs: result.pointer("/capabilities/logging").is_some(),
        subscriptions: super::legacy::offers_subscriptions(&result),
        tasks: task::offered(&result, Era::Modern.tasks()),
        message,
    }
}

/// Asks the server to send what the filter names, and changes of the lists that it declares as
/// changing.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "a list that may change is one of these three"
)]
pub(super) fn write_listen(
    out: &mut BytesMut,
    id: WireId,
    server_info: &ServerInfo,
    filters: &BTreeSet<ListenFilter>,
) {
    let mut filter = String::new();
    for list in &server_info.changing_lists {
        let name = match list {
            Method::ToolsListChanged => "toolsListChanged",
            Method::PromptsListChanged => "promptsListChanged",
            _ => "resourcesListChanged",
        };
        // Writing to a `String` cannot fail.
        let _ = write!(filter, r#""{name}":true,"#);
    }
    let named = |tasks: bool| {
        let chosen = filters.iter().filter(|filter| filter.is_task() == tasks);
        chosen
            .map(|filter| quoted(filter.name()))
            .collect::<Vec<_>>()
            .join(",")
    };
    let (uris, tasks) = (named(false), named(true));
    if server_info.subscriptions && !uris.is_empty() {
        let _ = write!(filter, r#""resourceSubscriptions":[{uris}],"#);
    }
    if !tasks.is_empty() {
        let _ = write!(filter, r#""taskIds":[{tasks}],"#);
    }
    let meta = envelope(None, None, !tasks.is_empty());
    write_line(
        out,
        &[
            br#"{"jsonrpc":"2.0","id":"#,
            id.decimal(&mut itoa::Buffer::new()),
            br#","method":"subscriptions/listen","params":{"notifications":{"#,
            filter.trim_end_matches(',').as_bytes(),
            br#"},"_meta":"#,
            meta.as_bytes(),
            b"}}",
        ],
    );
}

/// Returns the filters that an acknowledgement names.
pub(crate) fn acknowledged(message: &Message) -> BTreeSet<ListenFilter> {
    let params: Value = message
        .raw(Member::Params)
        .and_then(|raw| serde_json::from_slice(raw).ok())
        .unwrap_or_default();
    let named = |member: &str| {
        let named = params.pointer(&format!("/notifications/{member}"));
        let named = named.and_then(Value::as_array).into_iter().flatten();
        named
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let uris = named("resourceSubscriptions")
        .into_iter()
        .map(ListenFilter::Resource);
    uris.chain(named("taskIds").into_iter().map(ListenFilter::Task))
        .collect()
}

/// Asks the server what it is.
pub(super) fn write_discover(out: &mut BytesMut, id: WireId) {
    let meta = envelope(None, None, false);
    write_line(
        out,
        &[
            br#"{"jsonrpc":"2.0","id":"#,
            id.decimal(&mut itoa::Buffer::new()),
            br#","method":"server/discover","params":{"_meta":"#,
            meta.as_bytes(),
            b"}}",
        ],
    );
}

/// Asks about a task.
pub(super) fn write_task(out: &mut BytesMut, request: &TaskRequest<'_>) {
    let mut params = Object::default();
    params.set("taskId", quoted(request.task));
    if let Some(answers) = &request.answers {
        params.set("inputResponses", answers.clone());
    }
    params.set("_meta", envelope(Some(request.client), None, true));
    let method = quoted(request.method.name().unwrap_or_default());
    write_request(out, request.id, method.as_bytes(), &params);
}

/// Asks for a page of the list of tools.
pub(super) fn write_tools_list(out: &mut BytesMut, id: WireId, client: &Client, cursor: Option<&str>) {
    let mut params = Object::default();
    if let Some(cursor) = cursor {
        params.set("cursor", cursor.to_owned());
    }
    params.set("_meta", envelope(Some(client), None, false));
    write_request(out, id, br#""tools/list""#, &params);
}

fn write_request(out: &mut BytesMut, id: WireId, method: &[u8], params: &Object<'_>) {
    write_line(
        out,
        &[
            br#"{"jsonrpc":"2.0","id":"#,
            id.decimal(&mut itoa::Buffer::new()),
            br#","method":"#,
            method,
            br#","params":"#,
            params.to_string().as_bytes(),
            b"}",
        ],
    );
}

/// Returns the `_meta` that makes a request describe itself. Without a client it is Rialto that
/// speaks. `tasks`: we can deal with a task, whether the client can or not.
fn envelope(client: Option<&Client>, level: Option<LogLevel>, tasks: bool) -> String {
    let declared = client.map_or(&b"{}"[..], |client| &client.declared);
    let declared = capabilities_for_modern(declared, tasks);
    let own = format!(r#"{{"name":"rialto","version":"{}"}}"#, env!("CARGO_PKG_VERSION"));
    let info = client
        .and_then(|client| client.info.as_ref())
        .and_then(|info| std::str::from_utf8(info).ok())
        .unwrap_or(&own);
    let mut meta = format!(
        r#"{{"{}":"{}","{}":{info},"{}":{declared}"#,
        ENVELOPE[0],
        Version::NEWEST_MODERN.as_str(),
        ENVELOPE[1],
        ENVELOPE[2],
    );
    if let Some(level) = level {
        let _ = write!(meta, r#","{}":"{}""#, ENVELOPE[3], level.as_str());
    }
    meta.push('}');
    meta
}

/// Returns a legacy client's capabilities in modern form: bare elicitation means forms; changed
/// roots and core tasks do not exist.
fn capabilities_for_modern(declared: &[u8], tasks: bool) -> Cow<'_, str> {
    if !tasks && declared.starts_with(b"{") && !may_have(declared, &["elicitation", "roots", "tasks"]) {
        return String::from_utf8_lossy(declared);
    }
    let mut capabilities = Object::parse(declared).unwrap_or_default();
    if capabilities
        .get("elicitation")
        .is_some_and(|raw| Object::parse(raw.as_bytes()).is_some_and(|o| o.is_empty()))
    {
        capabilities.set("elicitation", r#"{"form":{}}"#);
    }
    if capabilities.get("roots").is_some() {
        capabilities.set("roots", "{}");
    }
    capabilities.remove("tasks");
    if tasks {
        let raw = capabilities.get("extensions").unwrap_or("{}").to_owned();
        let mut extensions = Object::parse(raw.as_bytes()).unwrap_or_default();
        extensions.set(task::EXTENSION, "{}");
        capabilities.set("extensions", extensions.to_string());
    }
    capabilities.to_string().into()
}

/// Writes a legacy client's request, or a further round of any request, so that it describes
/// itself. `tasks`: its server may answer with a task.
pub(super) fn write_translated(out: &mut BytesMut, line: &OutgoingRequest<'_>, tasks: bool) {
    let tasks = tasks && line.message.method() == Method::ToolsCall;
    if let Some(members) = plain_members(line) {
        let stamp = envelope(Some(line.client), line.level, tasks);
        let comma: &[u8] = if members.is_empty() { b"" } else { b"," };
        return write_line(
            out,
            &[
                br#"{"jsonrpc":"2.0","id":"#,
                line.id.decimal(&mut itoa::Buffer::new()),
                br#","method":"#,
                line.message.raw(Member::Method).unwrap_or_default(),
                br#","params":{"#,
                members,
                comma,
                br#""_meta":"#,
                stamp.as_bytes(),
                b"}}",
            ],
        );
    }
    let mut params = line.message.object(Member::Params);
    let mut meta = line.message.object(Member::Meta);
    let stamp = envelope(Some(line.client), line.level, tasks);
    let stamp = Object::parse(stamp.as_bytes()).unwrap_or_default();
    for (name, value) in stamp.iter() {
        meta.set(name, value.to_owned());
    }
    if meta.get("progressToken").is_some() {
        meta.set("progressToken", line.id.0.to_string());
    }
    params.set("_meta", meta.to_string());
    // A legacy client's `task` asks for something this era does otherwise, and only if it was
    // declared.
    params.remove("task");
    for (name, value) in line.extra {
        params.set(name, String::from_utf8_lossy(value).into_owned());
    }
    let method = line.message.raw(Member::Method).unwrap_or_default();
    write_request(out, line.id, method, &params);
}

/// Returns the members of a legacy client's params, if they only lack an envelope. `None`: they
/// must be taken apart.
fn plain_members<'a>(line: &OutgoingRequest<'a>) -> Option<&'a [u8]> {
    if !line.extra.is_empty() || line.message.raw(Member::Meta).is_some() {
        return None;
    }
    let params = line.message.raw(Member::Params)?;
    let members = params.strip_prefix(b"{")?.strip_suffix(b"}")?.trim_ascii();
    (!may_have(params, &["task", "_meta"])).then_some(members)
}

/// Returns a notification without the id of the listen that it came by: the multiplexer decides
/// which sessions receive it.
pub(crate) fn unmarked(message: &Message) -> Message {
    if message.raw(Member::MetaSubscriptionId).is_none() {
        return message.clone();
    }
    let mut meta = message.object(Member::Meta);
    meta.remove(SUBSCRIPTION_ID);
    let mut params = message.object(Member::Params);
    if meta.is_empty() {
        params.remove("_meta");
    } else {
        params.set("_meta", meta.to_string());
    }
    let text = message.spliced(&[(Member::Params, params.to_string().as_bytes())]);
    Message::scan(text).unwrap_or_else(|_| message.clone())
}

/// What a server wants to know before it can go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputRequired {
    /// Key → the request, as a message in legacy words.
    pub questions: BTreeMap<String, Bytes>,
    /// To be given back byte for byte.
    pub state: Option<Bytes>,
}

/// Returns a question in legacy form: there a URL elicitation has an id, which the server did not
/// give it.
pub(crate) fn with_elicitation_id(question: Message, number: u64) -> Message {
    let mut params = question.object(Member::Params);
    let needed = question.method() == Method::ElicitationCreate
        && params.text("mode").as_deref() == Some("url")
        && params.get("elicitationId").is_none();
    if !needed {
        return question;
    }
    params.set("elicitationId", format!(r#""rialto-{number}""#));
    let text = question.spliced(&[(Member::Params, params.to_string().as_bytes())]);
    Message::scan(text).unwrap_or(question)
}

/// Returns the questions in a result, by their keys; `None` if one is none.
fn questions_in(result: &Object<'_>) -> Option<BTreeMap<String, Bytes>> {
    let requests = result
        .get("inputRequests")
        .map(|raw| Object::parse(raw.as_bytes()).unwrap_or_default());
    let mut questions = BTreeMap::new();
    for (key, raw) in requests.iter().flat_map(Object::iter) {
        let request = Object::parse(raw.as_bytes())?;
        let method = request.get("method")?;
        let params = request.get("params").unwrap_or("{}");
        let question = format!(r#"{{"jsonrpc":"2.0","id":0,"method":{method},"params":{params}}}"#);
        questions.insert(key.to_owned(), Bytes::from(question));
    }
    Some(questions)
}

/// Returns what a task wants to know, from the answer to `tasks/get`, as messages in legacy words.
pub(crate) fn task_questions(message: &Message) -> Vec<(String, Message)> {
    let result = message.object(Member::Result);
    let questions = questions_in(&result).unwrap_or_default();
    questions
        .into_iter()
        .filter_map(|(key, text)| Some((key, Message::scan(text).ok()?)))
        .collect()
}

/// Reads a result that asks for input; `None` for any other result.
pub fn input_required(message: &Message) -> Option<InputRequired> {
    let result = message.raw(Member::Result)?;
    // Most results are nothing of the kind: look before taking them apart.
    memchr::memmem::find(result, b"input_required")?;
    let result = Object::parse(result)?;
    if result.text("resultType").as_deref() != Some("input_required") {
        return None;
    }
    let questions = questions_in(&result)?;
    let state = result
        .get("requestState")
        .map(|raw| Bytes::copy_from_slice(raw.as_bytes()));
    (!questions.is_empty() || state.is_some()).then_some(InputRequired { questions, state })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Principal;

    fn message(text: &str) -> Message {
        Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn client() -> Client {
        let declared = Bytes::from_static(
            br#"{"elicitation":{},"roots":{"listChanged":true},"tasks":{},"x":{"y":1.0}}"#,
        );
        Client {
            principal: Principal::anonymous(),
            capabilities: crate::capability::Capabilities::parse(Some(&declared)),
            declared,
            info: Some(Bytes::from_static(br#"{"name":"c","version":"1"}"#)),
        }
    }

    #[test]
    fn a_legacy_request_is_made_to_describe_itself() {
        let call = message(
            r#"{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"t","arguments":{"n":1.50},"task":{},"_meta":{"progressToken":"p","trace":1}}}"#,
        );
        let mut out = BytesMut::new();
        let client = client();
        let line = OutgoingRequest {
            message: &call,
            era: Era::Legacy,
            id: WireId(7),
            client: &client,
            level: Some(LogLevel::Info),
            extra: &[],
        };
        write_translated(&mut out, &line, false);
        assert_eq!(
            std::str::from_utf8(&out).unwrap(),
            concat!(
                r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t","arguments":{"n":1.50},"#,
                r#""_meta":{"progressToken":7,"trace":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
                r#""io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"#,
                r#""io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}},"roots":{},"x":{"y":1.0}},"#,
                r#""io.modelcontextprotocol/logLevel":"info"}}}"#,
                "\n"
            )
        );
    }

    #[test]
    fn input_required_is_read_and_other_results_are_not() {
        let plain =
            message(r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","text":"input_required"}}"#);
        assert_eq!(input_required(&plain), None);
        let asking = message(
            r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}},"requestState":"s\u0041"}}"#,
        );
        let required = input_required(&asking).unwrap();
        assert_eq!(required.state.as_deref(), Some(&br#""s\u0041""#[..]));
        assert_eq!(
            &required.questions["k"][..],
            br#"{"jsonrpc":"2.0","id":0,"method":"roots/list","params":{}}"#
        );
    }

    #[test]
    fn notices_lose_the_mark_of_the_listen() {
        let notice = message(
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":4},"uri":"a:b"}}"#,
        );
        assert_eq!(
            &unmarked(&notice).bytes()[..],
            br#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}"#
        );
    }
}
