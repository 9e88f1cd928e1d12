//! A legacy server: one handshake, then messages that carry nothing but ids.
//!
//! The handshake belongs to the link and not to a client's request. Rialto sends the first client's
//! `initialize`, or one of its own where all clients share the server ([`ClientHello`]). The
//! server's result is kept for later clients, and the `initialize` for a restarted server.

use std::sync::Arc;

use bytes::BytesMut;
use serde_json::Value;

use super::modern::ENVELOPE;
use super::{Arrival, OutgoingRequest, TaskRequest, WireId, write_line};
use crate::capability::Capabilities;
use crate::error_code::INTERNAL_ERROR;
use crate::exchange::{Client, ServerInfo};
use crate::message::{Kind, Member, Message, quoted};
use crate::method::{LogLevel, Method};
use crate::object::{Object, elements, may_have};
use crate::task;
use crate::version::{Era, Version};

/// Sorts a message of the server.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "every other method is treated alike"
)]
pub fn recognise(message: &Message) -> Arrival {
    match message.kind() {
        Kind::Result | Kind::Error => Arrival::Answer(message.number(Member::Id).map(WireId)),
        Kind::Request if message.method() == Method::Ping => Arrival::Ping,
        Kind::Request => Arrival::Question,
        Kind::Notification => match message.method() {
            Method::Progress => Arrival::Progress(message.number(Member::ProgressToken).map(WireId)),
            Method::Cancelled => Arrival::Withdrawal,
            Method::LogMessage => Arrival::Log,
            Method::ToolsListChanged | Method::PromptsListChanged | Method::ResourcesListChanged => {
                Arrival::ListChanged
            }
            Method::ResourcesUpdated => Arrival::Updated,
            Method::TasksStatus => Arrival::Task,
            _ => Arrival::Other,
        },
    }
}

/// Which `initialize` a legacy server receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientHello {
    /// The first client's own `initialize`, to the byte: the server has one client only.
    Verbatim,
    /// The first client's `initialize` with the newest revision that Rialto knows, since clients of
    /// any revision may follow.
    Newest,
    /// Rialto's own `initialize`, with every capability that it can carry: the server has clients
    /// of every kind, and the handshake may come before the first of them.
    Union,
}

/// The state of the handshake with one server.
#[derive(Debug)]
pub struct Handshake {
    style: ClientHello,
    /// The first client's `initialize`, kept for a restarted server.
    initialize: Option<Message>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Nothing was sent on this link yet.
    Unsent,
    Sent,
    /// The server has answered; `initialized` goes out with the first thing that needs it.
    Answered {
        server_info: Arc<ServerInfo>,
        initialized: bool,
    },
}

impl Handshake {
    /// Returns a handshake that was not begun.
    pub fn new(style: ClientHello) -> Self {
        Self {
            style,
            initialize: match style {
                ClientHello::Verbatim | ClientHello::Newest => None,
                ClientHello::Union => Some(own_initialize()),
            },
            stage: Stage::Unsent,
        }
    }

    /// Takes a client's `initialize` if none is held yet. Where the server receives the union of
    /// capabilities, Rialto writes its own.
    pub fn offer(&mut self, client: &Client, initialize: Option<&Message>) {
        if self.initialize.is_none() {
            self.initialize = Some(initialize.cloned().unwrap_or_else(|| initialize_for(client)));
        }
    }

    /// Returns whether the server is sent the union of all capabilities.
    pub fn declares_union(&self) -> bool {
        self.style == ClientHello::Union
    }

    /// Returns the answer to `initialize`, once there is one.
    pub fn server_info(&self) -> Option<&Arc<ServerInfo>> {
        match &self.stage {
            Stage::Answered { server_info, .. } => Some(server_info),
            Stage::Unsent | Stage::Sent => None,
        }
    }

    /// Returns whether there is an `initialize` and it was not sent.
    pub fn can_begin(&self) -> bool {
        matches!(self.stage, Stage::Unsent) && self.initialize.is_some()
    }

    /// Writes `initialize` if there is one and it was not sent.
    pub fn begin(&mut self, id: WireId, out: &mut BytesMut) -> bool {
        let (Stage::Unsent, Some(initialize)) = (&self.stage, &self.initialize) else {
            return false;
        };
        let newest = quoted(Version::NEWEST_LEGACY.as_str());
        let mut buffer = itoa::Buffer::new();
        let decimal = id.decimal(&mut buffer);
        let mut edits: Vec<(Member, &[u8])> = vec![(Member::Id, decimal)];
        match self.style {
            ClientHello::Verbatim => {}
            ClientHello::Newest => edits.push((Member::ProtocolVersion, newest.as_bytes())),
            // Written by Rialto itself.
            ClientHello::Union => {}
        }
        initialize.splice(out, &edits);
        write_line(out, &[]);
        self.stage = Stage::Sent;
        true
    }

    /// Takes the server's answer. After an error another client may try.
    pub fn handle_answer(&mut self, message: Message) -> Result<Arc<ServerInfo>, Message> {
        if message.kind() != Kind::Result {
            self.stage = Stage::Unsent;
            return Err(message);
        }
        let server_info = Arc::new(read_server_info(message));
        self.stage = Stage::Answered {
            server_info: Arc::clone(&server_info),
            initialized: false,
        };
        Ok(server_info)
    }

    /// Writes `notifications/initialized` unless it was written: the client's own if there is one,
    /// else Rialto's, because a strict server refuses calls before it. Returns whether it was
    /// written now.
    pub fn confirm(&mut self, notification: Option<&Message>, out: &mut BytesMut) -> bool {
        let Stage::Answered { initialized, .. } = &mut self.stage else {
            return false;
        };
        if std::mem::replace(initialized, true) {
            return false;
        }
        match notification {
            Some(message) => {
                message.splice(out, &[]);
                write_line(out, &[]);
            }
            None => write_line(
                out,
                &[br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#],
            ),
        }
        true
    }

    /// No client of the handshake is left: the next client may send its own `initialize`.
    pub fn forget_initialize(&mut self) {
        match self.style {
            ClientHello::Verbatim | ClientHello::Newest => self.initialize = None,
            ClientHello::Union => {}
        }
    }

    /// The link is gone: the next one starts with the same `initialize`.
    pub fn reset(&mut self) {
        self.stage = Stage::Unsent;
    }
}

/// Returns the `initialize` for a client that sent none: one without a session, or of the modern
/// era.
fn initialize_for(client: &Client) -> Message {
    let own = format!(r#"{{"name":"rialto","version":"{}"}}"#, env!("CARGO_PKG_VERSION"));
    let info = client
        .info
        .as_deref()
        .and_then(|raw| std::str::from_utf8(raw).ok())
        .unwrap_or(&own);
    let mut capabilities = Object::parse(&client.declared).unwrap_or_default();
    if capabilities.get("roots").is_some() {
        // Rialto's own `initialize` does not promise notifications about changed roots.
        capabilities.set("roots", "{}");
    }
    Message::own(format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{}","capabilities":{capabilities},"clientInfo":{info}}}}}"#,
        Version::NEWEST_LEGACY.as_str(),
    ))
}

/// Returns Rialto's own `initialize`, for a server that all clients share.
fn own_initialize() -> Message {
    Message::own(format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{}","capabilities":{},"clientInfo":{{"name":"rialto","version":"{}"}}}}}}"#,
        Version::NEWEST_LEGACY.as_str(),
        Capabilities::ALL_JSON,
        env!("CARGO_PKG_VERSION"),
    ))
}

pub(super) fn read_server_info(message: Message) -> ServerInfo {
    let result: Value = message
        .raw(Member::Result)
        .and_then(|raw| serde_json::from_slice(raw).ok())
        .unwrap_or_default();
    let version = result
        .get("protocolVersion")
        .and_then(Value::as_str)
        .and_then(Version::parse);
    let info = message
        .raw(Member::Result)
        .and_then(Object::parse)
        .and_then(|result| result.get("serverInfo").map(Into::into));
    ServerInfo {
        message,
        info,
        era: Era::Legacy,
        version,
        changing_lists: changing_lists(&result),
        logs: result.pointer("/capabilities/logging").is_some(),
        subscriptions: offers_subscriptions(&result),
        tasks: task::offered(&result, Era::Legacy.tasks()),
    }
}

/// Returns whether a server sends updates of resources, from the result of its handshake or
/// discovery.
pub(super) fn offers_subscriptions(result: &Value) -> bool {
    result.pointer("/capabilities/resources/subscribe") == Some(&Value::Bool(true))
}

/// Returns the lists that a server declares as changing, in either era.
pub(super) fn changing_lists(result: &Value) -> Vec<Method> {
    let changes =
        |list: &str| result.pointer(&format!("/capabilities/{list}/listChanged")) == Some(&Value::Bool(true));
    [
        ("tools", Method::ToolsListChanged),
        ("prompts", Method::PromptsListChanged),
        ("resources", Method::ResourcesListChanged),
    ]
    .into_iter()
    .filter(|(list, _)| changes(list))
    .map(|(_, method)| method)
    .collect()
}

/// Writes a modern client's request without what describes its hop.
pub(super) fn write_translated(out: &mut BytesMut, line: &OutgoingRequest<'_>) {
    let mut buffer = itoa::Buffer::new();
    let id = line.id.decimal(&mut buffer);
    let method = line.message.raw(Member::Method).unwrap_or_default();
    if let Some((before, after)) = plain_params(line) {
        return write_line(
            out,
            &[
                br#"{"jsonrpc":"2.0","id":"#,
                id,
                br#","method":"#,
                method,
                br#","params":"#,
                before,
                after,
                b"}",
            ],
        );
    }
    let mut params = line.message.object(Member::Params);
    let mut meta = line.message.object(Member::Meta);
    meta.retain(|name| !ENVELOPE.contains(&name));
    if meta.get("progressToken").is_some() {
        meta.set("progressToken", line.id.0.to_string());
    }
    if meta.is_empty() {
        params.remove("_meta");
    } else {
        params.set("_meta", meta.to_string());
    }
    // A server that never asked by an answer would not know these.
    params.remove("inputResponses");
    params.remove("requestState");
    // A modern client does not choose whether a call becomes a task.
    params.remove("task");
    for (name, value) in line.extra {
        params.set(name, String::from_utf8_lossy(value).into_owned());
    }
    write_line(
        out,
        &[
            br#"{"jsonrpc":"2.0","id":"#,
            id,
            br#","method":"#,
            method,
            br#","params":"#,
            params.to_string().as_bytes(),
            b"}",
        ],
    );
}

/// Returns the params of a request that has nothing to translate but an envelope around it: the
/// pieces before and after `_meta`, which is left out where it stands. `None`: they must be taken
/// apart.
fn plain_params<'a>(line: &OutgoingRequest<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let params = line.message.raw(Member::Params)?;
    if !line.extra.is_empty() || may_have(params, &["inputResponses", "requestState", "task"]) {
        return None;
    }
    let meta = Object::parse(line.message.raw(Member::Meta)?)?;
    if !meta.keys().all(|name| ENVELOPE.contains(&name)) {
        return None;
    }
    let (before, after) = line.message.around(Member::Params, Member::Meta)?;
    let before = before
        .trim_ascii_end()
        .strip_suffix(b":")?
        .trim_ascii_end()
        .strip_suffix(br#""_meta""#)?
        .trim_ascii_end();
    // One of the commas around it goes with it.
    let after = after.trim_ascii_start();
    match before.strip_suffix(b",") {
        Some(before) => Some((before, after)),
        None => Some((before, after.strip_prefix(b",").unwrap_or(after))),
    }
}

/// Writes `logging/setLevel` under Rialto's id, with the level that all sessions of the instance
/// need.
pub fn write_set_level(out: &mut BytesMut, message: Option<&Message>, id: WireId, level: LogLevel) {
    let level = quoted(level.as_str());
    let mut buffer = itoa::Buffer::new();
    let id = id.decimal(&mut buffer);
    match message {
        Some(message) => {
            message.splice(
                out,
                &[
                    (Member::Id, id),
                    (Member::MetaProgressToken, id),
                    (Member::Level, level.as_bytes()),
                ],
            );
            write_line(out, &[]);
        }
        None => write_line(
            out,
            &[
                br#"{"jsonrpc":"2.0","id":"#,
                id,
                br#","method":"logging/setLevel","params":{"level":"#,
                level.as_bytes(),
                b"}}",
            ],
        ),
    }
}

/// Writes `resources/subscribe` or `resources/unsubscribe` as Rialto writes it.
pub fn write_subscription(out: &mut BytesMut, method: Method, id: WireId, uri: &str) {
    let uri = quoted(uri);
    write_line(
        out,
        &[
            br#"{"jsonrpc":"2.0","id":"#,
            id.decimal(&mut itoa::Buffer::new()),
            br#","method":""#,
            method.name().unwrap_or_default().as_bytes(),
            br#"","params":{"uri":"#,
            uri.as_bytes(),
            b"}}",
        ],
    );
}

/// Asks about a task.
pub(super) fn write_task(out: &mut BytesMut, request: &TaskRequest<'_>) {
    write_line(
        out,
        &[
            br#"{"jsonrpc":"2.0","id":"#,
            request.id.decimal(&mut itoa::Buffer::new()),
            br#","method":""#,
            request.method.name().unwrap_or_default().as_bytes(),
            br#"","params":{"taskId":"#,
            quoted(request.task).as_bytes(),
            b"}}",
        ],
    );
}

/// Asks for a page of the list of tools.
pub(super) fn write_tools_list(out: &mut BytesMut, id: WireId, cursor: Option<&str>) {
    let params = cursor.map_or_else(|| "{}".to_owned(), |cursor| format!(r#"{{"cursor":{cursor}}}"#));
    write_line(
        out,
        &[
            br#"{"jsonrpc":"2.0","id":"#,
            id.decimal(&mut itoa::Buffer::new()),
            br#","method":"tools/list","params":"#,
            params.as_bytes(),
            b"}",
        ],
    );
}

/// Asks the server whether it is there.
pub fn write_ping(out: &mut BytesMut, id: WireId) {
    write_line(
        out,
        &[
            br#"{"jsonrpc":"2.0","id":"#,
            id.decimal(&mut itoa::Buffer::new()),
            br#","method":"ping"}"#,
        ],
    );
}

/// Returns what a client has sampled, for a server of a revision that takes a single block of
/// content and no list of them (before 2025-11-25); `None` if it is to stay as it is. What does not
/// fit into one block is an error.
pub(crate) fn sampled_for(version: Version, message: &Message) -> Option<Message> {
    if version >= Version::V2025_11_25 {
        return None;
    }
    let mut result = Object::parse(message.raw(Member::Result)?)?;
    let raw = result.get("content")?.to_owned();
    let text = match elements(&raw)?[..] {
        [only] => {
            result.set("content", only.to_owned());
            format!(r#"{{"jsonrpc":"2.0","id":0,"result":{result}}}"#)
        }
        _ => format!(
            r#"{{"jsonrpc":"2.0","id":0,"error":{{"code":{INTERNAL_ERROR},"message":"the client answered with several blocks of content, which this revision has no words for"}}}}"#
        ),
    };
    Message::scan(text.into()).ok()
}

/// Writes a client's answer under the id of the server's question.
pub fn write_answer(out: &mut BytesMut, message: &Message, question: &[u8]) {
    message.splice(out, &[(Member::Id, question)]);
    write_line(out, &[]);
}

/// Answers a server's request with an empty result.
pub fn write_empty_result(out: &mut BytesMut, question: &[u8]) {
    write_line(
        out,
        &[br#"{"jsonrpc":"2.0","id":"#, question, br#","result":{}}"#],
    );
}

/// Refuses a server's request.
pub fn write_refusal(out: &mut BytesMut, question: &[u8], code: i32, text: &str) {
    write_line(
        out,
        &[
            br#"{"jsonrpc":"2.0","id":"#,
            question,
            br#","error":{"code":"#,
            code.to_string().as_bytes(),
            br#","message":"#,
            quoted(text).as_bytes(),
            b"}}",
        ],
    );
}

/// Returns a list-changed notification as Rialto writes it, for clients of a restarted server.
pub fn list_changed(list: Method) -> Message {
    Message::own(format!(
        r#"{{"jsonrpc":"2.0","method":"{}"}}"#,
        list.name().unwrap_or_default()
    ))
}

/// Returns an updated-resource notification as Rialto writes it, for clients that may have missed
/// one.
pub fn updated(uri: &str) -> Message {
    Message::own(format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":{}}}}}"#,
        quoted(uri)
    ))
}
