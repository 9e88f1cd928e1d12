//! The stub's protocol: handshake, lists, subscriptions, cancels; calls of tools go to `tools`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::later::{Call, Later};
use super::options::{Behaviour, Feature, Options};
use super::output::Output;
use super::tools::Tool;
use super::tools::holding::HeldCalls;
use super::wire::{self, Members};
use crate::journal::Journal;

/// The longest line that is journalled whole.
const LONGEST_JOURNALLED: usize = 64 << 10;
/// More than any test leaves waiting; beyond it the stub is the one at fault.
pub(super) const MOST_WAITING: usize = 100_000;
const LEVELS: [&str; 8] = [
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
];

pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const INVALID_PARAMS: i64 = -32602;
const INVALID_REQUEST: i64 = -32600;
const PARSE_ERROR: i64 = -32700;

/// Whether the reading loop goes on after a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    GoesOn,
    Stops,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handshake {
    Missing,
    Answered,
    Complete,
}

/// A question to the client that has no answer yet.
#[derive(Debug)]
pub(super) struct Question {
    /// The call that waits for the answer; none for a question outside any call.
    pub(super) call: Option<Call>,
    pub(super) marker: Option<String>,
    /// What is asked once more when this is answered: its method and params.
    pub(super) again: Option<(&'static str, String)>,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) options: Options,
    pub(super) journal: Journal,
    pub(super) output: Output,
    pub(super) later: Later,
    handshake: Handshake,
    /// The params of the last `initialize`, as received.
    pub(super) initialize_params: Option<String>,
    /// Calls that will never be answered, for the sake of their cancels.
    pub(super) unanswered: Vec<Call>,
    /// Calls of `hold`, and those that wait for one.
    pub(super) held: HeldCalls,
    /// Questions by our own raw id.
    pub(super) questions: BTreeMap<String, Question>,
    pub(super) questions_asked: u64,
    pub(super) counter: u64,
    pub(super) subscribed: BTreeSet<String>,
    /// Whether `change_tools` has added the tool `extra`.
    pub(super) extra_tool: bool,
    /// The index in `LEVELS` from which log messages are sent.
    level: usize,
}

impl Server {
    pub(super) fn new(options: Options, journal: Journal) -> Self {
        Self {
            options,
            journal,
            output: Output,
            later: Later::start(Output),
            handshake: Handshake::Missing,
            initialize_params: None,
            unanswered: Vec::new(),
            held: HeldCalls::default(),
            questions: BTreeMap::new(),
            questions_asked: 0,
            counter: 0,
            subscribed: BTreeSet::new(),
            extra_tool: false,
            level: 0,
        }
    }

    pub(super) fn handle_line(&mut self, line: &[u8]) -> Reading {
        let text = String::from_utf8_lossy(line);
        let message = Members::parse(&text);
        self.journal_received(line, &text, message.as_ref());
        let Some(message) = message else {
            if !text.trim().is_empty() {
                self.output.line(&wire::error(
                    "null",
                    PARSE_ERROR,
                    "one JSON object a line, please",
                ));
            }
            return Reading::GoesOn;
        };
        match (message.text("method"), message.raw("id")) {
            (Some(method), Some(id)) => {
                if method == "server/discover" && self.options.exit_on_discover {
                    std::process::exit(1);
                }
                if method == "initialize" {
                    self.initialize_params = message.raw("params").map(str::to_owned);
                }
                self.handle_request(id, &method, &message.object("params"))
            }
            (Some(method), None) => {
                self.handle_notification(&method, &message.object("params"));
                Reading::GoesOn
            }
            (None, Some(id)) => {
                self.handle_answer(id, &message, &text);
                Reading::GoesOn
            }
            (None, None) => Reading::GoesOn,
        }
    }

    fn journal_received(&self, line: &[u8], text: &str, message: Option<&Members<'_>>) {
        let kept = text
            .char_indices()
            .take_while(|(at, _)| *at < LONGEST_JOURNALLED)
            .last();
        let kept = kept.map_or(0, |(at, last)| at + last.len_utf8());
        let mut entry = json!({
            "method": message.and_then(|message| message.text("method")),
            "id": message.and_then(|message| message.raw("id")),
            "line": &text[..kept],
            "bytes": line.len(),
        });
        if kept < text.len() {
            entry["cut"] = Value::Bool(true);
        }
        if std::str::from_utf8(line).is_err() {
            entry["utf8"] = Value::Bool(false);
        }
        self.journal.write("received", entry);
    }

    fn handle_request(&mut self, id: &str, method: &str, params: &Members<'_>) -> Reading {
        let refused = match self.options.behaviour {
            Behaviour::Lenient | Behaviour::Stateless => false,
            Behaviour::Strict if method == "initialize" => self.handshake != Handshake::Missing,
            Behaviour::Strict => method != "ping" && self.handshake != Handshake::Complete,
        };
        if refused {
            let message = format!("method '{method}' is invalid during session initialization");
            self.output.line(&wire::error(id, INVALID_REQUEST, &message));
            return Reading::GoesOn;
        }
        if method == "tools/call" && self.options.has(Feature::Tools) {
            return self.call_tool(id, params);
        }
        let answer = match self.answer(method, params) {
            Ok(result) => wire::response(id, &result),
            Err(_) if self.options.behaviour == Behaviour::Stateless => wire::response(id, "{}"),
            Err((code, message)) => wire::error(id, code, &message),
        };
        self.output.line(&answer);
        Reading::GoesOn
    }

    /// The result of everything but tool calls, as JSON.
    fn answer(&mut self, method: &str, params: &Members<'_>) -> Result<String, (i64, String)> {
        let missing = match method {
            "tools/list" | "tools/call" => Some(Feature::Tools),
            "resources/list" | "resources/templates/list" | "resources/read" => Some(Feature::Resources),
            "resources/subscribe" | "resources/unsubscribe" => Some(Feature::Subscribe),
            "prompts/list" | "prompts/get" => Some(Feature::Prompts),
            "logging/setLevel" => Some(Feature::Logging),
            "completion/complete" => Some(Feature::Completions),
            _ => None,
        };
        let unknown = || (METHOD_NOT_FOUND, format!("no method {method}"));
        if missing.is_some_and(|feature| !self.options.has(feature)) {
            return Err(unknown());
        }
        let wanted = |name: &str| {
            params
                .text(name)
                .ok_or((INVALID_PARAMS, format!("{name} is missing")))
        };
        let result = match method {
            "initialize" => self.initialize(params),
            "ping" => json!({}),
            "tools/list" => self.tools(),
            "resources/list" => {
                let resource = |name| json!({"uri": format!("testkit://{name}"), "name": name});
                json!({"resources": [resource("one"), resource("two")]})
            }
            "resources/templates/list" => json!({"resourceTemplates": [
                {"uriTemplate": "testkit://{name}", "name": "any", "mimeType": "text/plain"}
            ]}),
            "resources/read" => {
                let uri = wanted("uri")?;
                let text = format!("the text of {uri}");
                json!({"contents": [{"uri": uri, "mimeType": "text/plain", "text": text}]})
            }
            "resources/subscribe" => {
                self.subscribed.insert(wanted("uri")?);
                json!({})
            }
            "resources/unsubscribe" => {
                self.subscribed.remove(&wanted("uri")?);
                json!({})
            }
            "prompts/list" => json!({"prompts": [{"name": "greet", "arguments": [{"name": "who"}]}]}),
            "prompts/get" => {
                let who = params
                    .object("arguments")
                    .text("who")
                    .unwrap_or_else(|| "world".to_owned());
                let content = json!({"type": "text", "text": format!("Greet {who}.")});
                json!({"messages": [{"role": "user", "content": content}]})
            }
            "logging/setLevel" => {
                let level = wanted("level")?;
                let index = LEVELS.iter().position(|known| *known == level);
                self.level = index.ok_or((INVALID_PARAMS, format!("no level {level}")))?;
                json!({})
            }
            "completion/complete" => {
                let typed = params.object("argument").text("value").unwrap_or_default();
                json!({"completion": {"values": [format!("{typed}-completed")], "total": 1, "hasMore": false}})
            }
            _ => return Err(unknown()),
        };
        Ok(result.to_string())
    }

    fn initialize(&mut self, params: &Members<'_>) -> Value {
        self.handshake = Handshake::Answered;
        let asked = params.text("protocolVersion");
        let version = self
            .options
            .version
            .clone()
            .or(asked)
            .unwrap_or_else(|| "2025-11-25".to_owned());
        let has = |feature| self.options.has(feature);
        let mut capabilities = json!({});
        if has(Feature::Tools) {
            capabilities["tools"] = json!({"listChanged": true});
        }
        if has(Feature::Resources) {
            capabilities["resources"] = json!({"subscribe": has(Feature::Subscribe), "listChanged": true});
        }
        if has(Feature::Prompts) {
            capabilities["prompts"] = json!({"listChanged": true});
        }
        if has(Feature::Logging) {
            capabilities["logging"] = json!({});
        }
        if has(Feature::Completions) {
            capabilities["completions"] = json!({});
        }
        json!({
            "protocolVersion": version,
            "capabilities": capabilities,
            "serverInfo": {"name": "testkit-server", "version": env!("CARGO_PKG_VERSION")},
            "instructions": "Misbehaves on request.",
        })
    }

    fn tools(&self) -> Value {
        let mut tools: Vec<Value> = Tool::ALL
            .iter()
            .map(|(_, name, description)| {
                json!({"name": name, "description": description, "inputSchema": {"type": "object"}})
            })
            .collect();
        if self.extra_tool {
            let description = "only here after change_tools";
            tools.push(
                json!({"name": "extra", "description": description, "inputSchema": {"type": "object"}}),
            );
        }
        json!({"tools": tools})
    }

    fn handle_notification(&mut self, method: &str, params: &Members<'_>) {
        match method {
            "notifications/initialized" if self.handshake == Handshake::Answered => {
                self.handshake = Handshake::Complete;
            }
            "notifications/cancelled" => self.cancel(params.raw("requestId").unwrap_or("null")),
            // Everything else is in the journal already, and a notification needs no answer.
            _ => {}
        }
    }

    /// Stays silent about the cancelled call from now on.
    fn cancel(&mut self, id: &str) {
        let mut cancelled = self.later.cancel(id);
        cancelled = self.held.cancel(id).or(cancelled);
        self.unanswered.retain(|call| {
            let hit = call.id == id;
            if hit {
                cancelled = Some(call.clone());
            }
            !hit
        });
        self.questions.retain(|_, question| {
            let hit = question.call.as_ref().is_some_and(|call| call.id == id);
            if hit {
                cancelled = question.call.take();
            }
            !hit
        });
        let pending = cancelled.is_some();
        let marker = cancelled.and_then(|call| call.marker);
        self.journal.write(
            "cancelled",
            json!({"request": id, "pending": pending, "marker": marker}),
        );
    }

    /// The client has answered one of our questions.
    fn handle_answer(&mut self, id: &str, message: &Members<'_>, line: &str) {
        let Some(question) = self.questions.remove(id) else {
            self.journal.write("stray", json!({"line": line}));
            return;
        };
        self.journal
            .write("answered", json!({"marker": question.marker, "line": line}));
        if let Some((method, params)) = question.again {
            self.questions_asked += 1;
            let id = self.questions_asked.to_string();
            self.output.line(&wire::request(&id, method, &params));
            let question = Question {
                again: None,
                ..question
            };
            self.questions.insert(id, question);
            return;
        }
        let Some(call) = question.call else { return };
        let (kind, answer) = match (message.raw("result"), message.raw("error")) {
            (Some(result), _) => ("result", result),
            (None, Some(error)) => ("error", error),
            (None, None) => ("nothing", "null"),
        };
        let text = format!(r#"{{"marker":{},"{kind}":{answer}}}"#, json!(question.marker));
        self.output
            .line(&wire::response(&call.id, &wire::text_result(&text)));
    }

    /// Whether a log message of that level is wanted; one of an unknown level always is.
    pub(super) fn logs_at(&self, level: &str) -> bool {
        LEVELS
            .iter()
            .position(|known| *known == level)
            .is_none_or(|index| index >= self.level)
    }

    /// Returns whether the client declared this capability in `initialize`.
    pub(super) fn client_can(&self, capability: &str) -> bool {
        let params = self
            .initialize_params
            .as_deref()
            .and_then(Members::parse)
            .unwrap_or_default();
        params.object("capabilities").raw(capability).is_some()
    }
}
