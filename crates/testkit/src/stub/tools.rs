//! The stub's tools: each is one way to behave or to misbehave in a call.
//!
//! Every execution is journalled with its marker before anything else happens.

use std::time::Duration;

use serde_json::{Value, json};

use super::later::Call;
use super::options::Behaviour;
use super::server::{INVALID_PARAMS, MOST_WAITING, Reading, Server};
use super::wire::{self, Members};
use faults::Fault;
use holding::Holding;
use questions::Ask;

mod faults;
pub(super) mod holding;
mod questions;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    Echo,
    Mirror,
    Delay,
    Never,
    Progress,
    Notify,
    Log,
    Update,
    ChangeTools,
    Env,
    Fds,
    Parent,
    Pid,
    Whoami,
    Counter,
    Fail,
    Hold(Holding),
    Ask(Ask),
    Break(Fault),
}

impl Tool {
    pub(super) const ALL: &[(Tool, &str, &str)] = &[
        (Tool::Echo, "echo", "{marker}: the marker as text"),
        (
            Tool::Mirror,
            "mirror",
            "{…}: the arguments, byte for byte, as structuredContent",
        ),
        (
            Tool::Delay,
            "delay",
            "{ms, marker, stubborn}: echo after ms; a cancel silences it unless it is stubborn",
        ),
        (Tool::Never, "never", "{marker}: no answer, ever"),
        (
            Tool::Hold(Holding::Hold),
            "hold",
            "{marker, every_ms}: no answer before `release`; progress at that pace until then",
        ),
        (
            Tool::Hold(Holding::WaitHeld),
            "wait_held",
            "{held, marker}: echo as soon as the call with the marker `held` is held",
        ),
        (
            Tool::Hold(Holding::Release),
            "release",
            "{marker}: answers every held call, then echo",
        ),
        (
            Tool::Break(Fault::Twice),
            "twice",
            "{marker}: the same answer twice; the second says so",
        ),
        (
            Tool::Break(Fault::UnknownId),
            "unknown_id",
            "{marker, id?}: an answer to another id first",
        ),
        (
            Tool::Break(Fault::StringId),
            "string_id",
            "{marker}: an answer with the id as a string first",
        ),
        (
            Tool::Break(Fault::Garbage),
            "garbage",
            "{kind, marker}: text|binary|ansi|array|null|empty|crlf|partial|all first",
        ),
        (
            Tool::Break(Fault::Big),
            "big",
            "{bytes}: that much text, id first",
        ),
        (
            Tool::Break(Fault::BigIdLast),
            "big_id_last",
            "{bytes}: that much text, id last",
        ),
        (
            Tool::Break(Fault::Deep),
            "deep",
            "{levels}: arrays in arrays as structuredContent",
        ),
        (
            Tool::Break(Fault::Endless),
            "endless",
            "{megabytes, forever, text, marker}: a line of that length, or without end, that is no message, first",
        ),
        (
            Tool::Break(Fault::Exit),
            "exit",
            "{code}: exits without an answer",
        ),
        (
            Tool::Break(Fault::ExitHalf),
            "exit_half",
            "{marker, code}: exits after half of the answer",
        ),
        (
            Tool::Break(Fault::SignalSelf),
            "signal_self",
            "{sig, marker}: a signal by name or number; an answer if alive",
        ),
        (
            Tool::Progress,
            "progress",
            "{n, marker, every_ms}: n progress notifications, then the answer",
        ),
        (
            Tool::Notify,
            "notify",
            "{n, method, marker, after_ms}: n notifications, before or after the answer",
        ),
        (
            Tool::Break(Fault::Flood),
            "flood",
            "{n, bytes}: n log messages of that size, then the answer",
        ),
        (
            Tool::Break(Fault::FloodStderr),
            "flood_stderr",
            "{bytes, newline}: that much on stderr, then the answer",
        ),
        (
            Tool::Break(Fault::Stderr),
            "stderr",
            "{text, marker}: that line on stderr, then the answer",
        ),
        (
            Tool::Break(Fault::StopReading),
            "stop_reading",
            "{}: answers, and never reads again",
        ),
        (
            Tool::Break(Fault::CloseStdin),
            "close_stdin",
            "{}: closes stdin, answers, and lives on",
        ),
        (
            Tool::Break(Fault::CloseStdout),
            "close_stdout",
            "{}: answers, closes stdout, and reads on",
        ),
        (
            Tool::Ask(Ask::Elicitation),
            "ask_elicit",
            "{marker, polite, twice}: elicitation/create; the client's last answer as text",
        ),
        (
            Tool::Ask(Ask::Sampling),
            "ask_sample",
            "{marker, polite}: sampling/createMessage",
        ),
        (Tool::Ask(Ask::Roots), "ask_roots", "{marker, polite}: roots/list"),
        (Tool::Ask(Ask::Ping), "ask_ping", "{marker}: ping"),
        (
            Tool::Ask(Ask::OutsideAnyCall),
            "ask_after",
            "{ms, marker}: answers, and elicits outside any call",
        ),
        (
            Tool::Log,
            "log",
            "{level, text}: a log message if that level is wanted, then the answer",
        ),
        (
            Tool::Update,
            "update",
            "{uri}: notifications/resources/updated, then the answer",
        ),
        (
            Tool::ChangeTools,
            "change_tools",
            "{}: adds or removes the tool `extra`",
        ),
        (
            Tool::Env,
            "env",
            "{name}: that variable; all of them without a name",
        ),
        (Tool::Fds, "fds", "{}: the open files, as a JSON object"),
        (Tool::Pid, "pid", "{}: the process id"),
        (
            Tool::Parent,
            "parent",
            "{file}: that file of `/proc` about the parent, or why it cannot be read",
        ),
        (Tool::Whoami, "whoami", "{}: the params of initialize as received"),
        (Tool::Counter, "counter", "{}: counts the calls of this process"),
        (
            Tool::Fail,
            "fail",
            "{code, message}: a JSON-RPC error; a result with isError without a code",
        ),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(_, known, _)| *known == name)
            .map(|(tool, _, _)| *tool)
    }
}

/// One call of a tool.
#[derive(Debug)]
struct Invocation<'a> {
    id: &'a str,
    arguments: Members<'a>,
    raw_arguments: &'a str,
    marker: Option<String>,
    progress_token: Option<&'a str>,
}

impl Invocation<'_> {
    fn call(&self) -> Call {
        Call {
            id: self.id.to_owned(),
            marker: self.marker.clone(),
        }
    }

    fn marker(&self) -> &str {
        self.marker.as_deref().unwrap_or("")
    }

    /// The answer with this text, as a message.
    fn says(&self, text: &str) -> String {
        wire::response(self.id, &wire::text_result(text))
    }

    /// The answer of most tools: the marker.
    fn echo(&self) -> String {
        self.says(self.marker())
    }
}

impl Server {
    pub(super) fn call_tool(&mut self, id: &str, params: &Members<'_>) -> Reading {
        let name = params.text("name").unwrap_or_default();
        let arguments = params.object("arguments");
        let invocation = Invocation {
            id,
            marker: arguments.text("marker"),
            arguments,
            raw_arguments: params.raw("arguments").unwrap_or("{}"),
            progress_token: params.object("_meta").raw("progressToken"),
        };
        match Tool::named(&name) {
            Some(tool) => {
                self.journal.write(
                    "executed",
                    json!({"tool": name, "marker": invocation.marker, "id": id}),
                );
                self.run_tool(tool, &invocation)
            }
            None if (self.extra_tool && name == "extra")
                || self.options.behaviour == Behaviour::Stateless =>
            {
                self.output.line(&invocation.echo());
                Reading::GoesOn
            }
            None => {
                self.output
                    .line(&wire::error(id, INVALID_PARAMS, &format!("no tool {name}")));
                Reading::GoesOn
            }
        }
    }

    fn run_tool(&mut self, tool: Tool, call: &Invocation<'_>) -> Reading {
        match tool {
            Tool::Echo => self.output.line(&call.echo()),
            Tool::Mirror => self.output.line(&wire::response(
                call.id,
                &format!(r#"{{"content":[],"structuredContent":{}}}"#, call.raw_arguments),
            )),
            Tool::Delay => {
                let delay = Duration::from_millis(call.arguments.number("ms", 0));
                let cancellable = !call.arguments.flag("stubborn", false);
                self.later
                    .send(delay, cancellable.then(|| call.call()), call.echo());
            }
            Tool::Never => {
                assert!(
                    self.unanswered.len() < MOST_WAITING,
                    "too many calls without an answer"
                );
                self.unanswered.push(call.call());
            }
            Tool::Progress => self.progress(call),
            Tool::Notify => self.notify(call),
            Tool::Log => self.log(call),
            Tool::Update => self.update(call),
            Tool::ChangeTools => {
                self.extra_tool = !self.extra_tool;
                self.output
                    .line(&wire::notification("notifications/tools/list_changed", "{}"));
                self.output
                    .line(&call.says(if self.extra_tool { "added" } else { "removed" }));
            }
            Tool::Env => self
                .output
                .line(&call.says(&environment(call.arguments.text("name").as_deref()))),
            Tool::Fds => self.output.line(&call.says(&open_files())),
            Tool::Parent => {
                let file = call.arguments.text("file").unwrap_or_default();
                let parent = std::os::unix::process::parent_id();
                let text = match std::fs::read(format!("/proc/{parent}/{file}")) {
                    Ok(bytes) => String::from_utf8_lossy(&bytes).replace('\0', "\n"),
                    Err(error) => format!("cannot be read: {error}"),
                };
                self.output.line(&call.says(&text));
            }
            Tool::Pid => self.output.line(&call.says(&std::process::id().to_string())),
            Tool::Whoami => {
                self.output
                    .line(&call.says(self.initialize_params.as_deref().unwrap_or("null")));
            }
            Tool::Counter => {
                self.counter += 1;
                self.output.line(&call.says(&self.counter.to_string()));
            }
            Tool::Fail => self.fail(call),
            Tool::Hold(holding) => self.hold_calls(holding, call),
            Tool::Ask(question) => self.ask(question, call),
            Tool::Break(fault) => return self.misbehave(fault, call),
        }
        Reading::GoesOn
    }

    fn progress(&self, call: &Invocation<'_>) {
        let count = call.arguments.number("n", 1);
        let pause = Duration::from_millis(call.arguments.number("every_ms", 0));
        let mut lines = Vec::new();
        if let Some(token) = call.progress_token {
            let message = Value::from(call.marker());
            lines.extend((1..=count).map(|step| {
                let params = format!(
                    r#"{{"progressToken":{token},"progress":{step},"total":{count},"message":{message}}}"#
                );
                wire::notification("notifications/progress", &params)
            }));
        }
        lines.push(call.echo());
        if pause.is_zero() {
            lines.iter().for_each(|line| self.output.line(line));
        } else {
            let mut at = Duration::ZERO;
            for line in lines {
                at += pause;
                self.later.send(at, Some(call.call()), line);
            }
        }
    }

    fn notify(&self, call: &Invocation<'_>) {
        let method = call.arguments.text("method");
        let method = method.as_deref().unwrap_or("notifications/tools/list_changed");
        let notifications = (1..=call.arguments.number("n", 1)).map(|n| {
            wire::notification(
                method,
                &json!({"_meta": {"n": n, "marker": call.marker}}).to_string(),
            )
        });
        match call.arguments.raw("after_ms") {
            None => {
                notifications.for_each(|line| self.output.line(&line));
                self.output.line(&call.echo());
            }
            Some(_) => {
                self.output.line(&call.echo());
                let delay = Duration::from_millis(call.arguments.number("after_ms", 0));
                notifications.for_each(|line| self.later.send(delay, None, line));
            }
        }
    }

    fn log(&self, call: &Invocation<'_>) {
        let level = call.arguments.text("level").unwrap_or_else(|| "info".to_owned());
        let wanted = self.logs_at(&level);
        if wanted {
            let params = json!({"level": level, "logger": "testkit", "data": call.arguments.text("text")});
            self.output
                .line(&wire::notification("notifications/message", &params.to_string()));
        }
        self.output
            .line(&call.says(if wanted { "logged" } else { "below the level" }));
    }

    /// Sends the update with or without a subscription: the gateway must know which client wants
    /// it.
    fn update(&self, call: &Invocation<'_>) {
        let uri = call
            .arguments
            .text("uri")
            .unwrap_or_else(|| "testkit://one".to_owned());
        let params = json!({"uri": uri}).to_string();
        self.output
            .line(&wire::notification("notifications/resources/updated", &params));
        let state = if self.subscribed.contains(&uri) {
            "subscribed"
        } else {
            "not subscribed"
        };
        self.output.line(&call.says(state));
    }

    fn fail(&self, call: &Invocation<'_>) {
        let message = call
            .arguments
            .text("message")
            .unwrap_or_else(|| "as you wish".to_owned());
        let code = call.arguments.raw("code").and_then(|code| code.parse().ok());
        let answer = match code {
            Some(code) => wire::error(call.id, code, &message),
            None => {
                let content = json!([{"type": "text", "text": message}]);
                wire::response(call.id, &json!({"content": content, "isError": true}).to_string())
            }
        };
        self.output.line(&answer);
    }
}

/// One variable, `null` when it is not set; or all of them as a JSON object.
fn environment(name: Option<&str>) -> String {
    match name {
        Some(name) => {
            std::env::var_os(name).map_or("null".to_owned(), |value| value.to_string_lossy().into_owned())
        }
        None => {
            let all = std::env::vars_os().map(|(name, value)| {
                (
                    name.to_string_lossy().into_owned(),
                    value.to_string_lossy().into(),
                )
            });
            Value::Object(all.collect()).to_string()
        }
    }
}

/// `{"0": "pipe:[…]", …}`, without the descriptor that the listing itself needs.
fn open_files() -> String {
    let mut files = serde_json::Map::new();
    if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
        for entry in entries.flatten() {
            if let Ok(target) = std::fs::read_link(entry.path())
                && !target.ends_with("fd")
            {
                let number = entry.file_name().to_string_lossy().into_owned();
                files.insert(number, target.to_string_lossy().into());
            }
        }
    }
    Value::Object(files).to_string()
}
