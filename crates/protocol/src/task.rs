//! Tasks in the form of both eras: the core feature of 2025-11-25 and the extension of 2026-07-28.
//!
//! A task is a call that goes on after it was answered. The legacy era has it nested under `task`,
//! with `ttl` and `pollInterval`, and gives its outcome by `tasks/result`; the modern one has it
//! flat, with `ttlMs` and `pollIntervalMs`, and the outcome stands in the answer to `tasks/get`.
//! This module reads and rewrites; the multiplexer decides which client may see a task and when it
//! is polled.

use std::time::Duration;

use serde_json::Value;

use crate::message::{Member, Message, quoted};
use crate::object::Object;
use crate::version::TaskStyle;

/// What the modern era calls tasks among the extensions.
pub const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// Where a legacy server names the task that a message is about.
const RELATED: &str = "io.modelcontextprotocol/related-task";

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The server works on it.
    Working,
    /// The server waits for answers of the client.
    InputRequired,
    /// It has a result.
    Completed,
    /// It has an error.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl Status {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "working" => Self::Working,
            "input_required" => Self::InputRequired,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            _ => return None,
        })
    }

    /// Nothing more will become of it.
    pub const fn is_end(self) -> bool {
        match self {
            Self::Working | Self::InputRequired => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }
}

/// A server's description of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its id.
    pub id: String,
    /// Its status.
    pub status: Status,
    /// For people.
    pub text: Option<String>,
    /// How often the server wants to be asked.
    pub poll: Option<Duration>,
    /// How long it keeps the task; `None` if it names no time, or for ever.
    pub ttl: Option<Duration>,
}

impl Task {
    fn read(object: &Object<'_>) -> Option<Self> {
        let span = |names: [&str; 2]| {
            let raw = names.into_iter().find_map(|name| object.get(name))?;
            raw.parse().ok().map(Duration::from_millis)
        };
        Some(Self {
            id: object.text("taskId")?,
            status: Status::parse(&object.text("status")?)?,
            text: object.text("statusMessage"),
            poll: span(["pollIntervalMs", "pollInterval"]),
            ttl: span(["ttlMs", "ttl"]),
        })
    }
}

/// Returns whether a server may work on calls of tools as tasks, from the result of its handshake
/// or discovery.
pub(crate) fn offered(result: &Value, style: TaskStyle) -> bool {
    match style {
        TaskStyle::Core => result
            .pointer("/capabilities/tasks/requests/tools/call")
            .is_some(),
        TaskStyle::Extension => result
            .pointer("/capabilities/extensions")
            .is_some_and(|extensions| extensions.get(EXTENSION).is_some()),
    }
}

/// Returns the task that an answer gives in place of a result; `None` for any other answer.
pub fn created(message: &Message, style: TaskStyle) -> Option<Task> {
    let raw = message.raw(Member::Result)?;
    // Most results are nothing of the kind: look before taking them apart.
    memchr::memmem::find(raw, b"taskId")?;
    let result = Object::parse(raw)?;
    match style {
        TaskStyle::Core => Task::read(&Object::parse(result.get("task")?.as_bytes())?),
        TaskStyle::Extension if result.text("resultType").as_deref() == Some("task") => Task::read(&result),
        TaskStyle::Extension => None,
    }
}

/// Returns the task that the answer to `tasks/get` describes.
pub fn described(message: &Message) -> Option<Task> {
    Task::read(&Object::parse(message.raw(Member::Result)?)?)
}

/// Returns the task that a notification is about, as it describes it.
pub fn announced(message: &Message) -> Option<Task> {
    Task::read(&Object::parse(message.raw(Member::Params)?)?)
}

/// Returns the task that a request names. The owner is looked up by it, so an ambiguous name is
/// none.
pub fn named(message: &Message) -> Option<String> {
    let params = Object::parse(message.raw(Member::Params)?)?;
    let alike = params
        .keys()
        .filter(|key| key.to_uppercase().to_lowercase() == "taskid");
    (alike.count() == 1).then(|| params.text("taskId"))?
}

/// Returns the task that a legacy server's request or notification names.
pub fn related(message: &Message) -> Option<String> {
    let meta = message.raw(Member::Meta)?;
    memchr::memmem::find(meta, b"related-task")?;
    Object::parse(Object::parse(meta)?.get(RELATED)?.as_bytes())?.text("taskId")
}

/// Returns a legacy result without the mark of the task that it is the outcome of.
pub fn unrelated(message: &Message) -> Message {
    let stripped = message
        .raw(Member::Result)
        .and_then(Object::parse)
        .and_then(|mut result| {
            let raw = result.get("_meta")?.to_owned();
            let mut meta = Object::parse(raw.as_bytes())?;
            meta.get(RELATED)?;
            meta.remove(RELATED);
            if meta.is_empty() {
                result.remove("_meta");
            } else {
                result.set("_meta", meta.to_string());
            }
            let result = result.to_string();
            Message::scan(message.spliced(&[(Member::Result, result.as_bytes())])).ok()
        });
    stripped.unwrap_or_else(|| message.clone())
}

/// Returns the answer to a legacy `tasks/get` with the outcome, which that era keeps apart, as the
/// modern one wants it. There a result with `isError` is a result; only a JSON-RPC error is a
/// failure.
pub fn with_outcome(described: &Message, outcome: &Message) -> Message {
    let (status, member) = match outcome.raw(Member::Error) {
        Some(_) => (r#""failed""#, ("error", Member::Error)),
        None => (r#""completed""#, ("result", Member::Result)),
    };
    let outcome = unrelated(outcome);
    let raw = outcome.raw(member.1).unwrap_or(b"{}");
    let raw = String::from_utf8_lossy(raw).into_owned();
    with_members(described, &[("status", status.to_owned()), (member.0, raw)])
}

/// Returns the answer to a legacy `tasks/get` with what the task wants to know. Without a question
/// there is nothing that the client could do but wait.
pub fn with_questions<'a>(
    described: &Message,
    questions: impl Iterator<Item = (&'a str, &'a Message)>,
) -> Message {
    let requests: Vec<String> = questions
        .map(|(key, question)| {
            let method = String::from_utf8_lossy(question.raw(Member::Method).unwrap_or_default());
            let params = String::from_utf8_lossy(question.raw(Member::Params).unwrap_or(b"{}"));
            format!(r#"{}:{{"method":{method},"params":{params}}}"#, quoted(key))
        })
        .collect();
    if requests.is_empty() {
        return with_members(described, &[("status", r#""working""#.to_owned())]);
    }
    let requests = format!("{{{}}}", requests.join(","));
    with_members(described, &[("inputRequests", requests)])
}

fn with_members(message: &Message, members: &[(&str, String)]) -> Message {
    let mut result = message.object(Member::Result);
    for (name, raw) in members {
        result.set(name, raw.clone());
    }
    let result = result.to_string();
    Message::scan(message.spliced(&[(Member::Result, result.as_bytes())])).unwrap_or_else(|_| message.clone())
}

/// Returns a legacy list of tasks with those left out that are none of the caller's.
pub fn filtered(message: &Message, mut keep: impl FnMut(&str) -> bool) -> Message {
    let filtered = message
        .raw(Member::Result)
        .and_then(Object::parse)
        .and_then(|mut result| {
            let raw = result.get("tasks")?.to_owned();
            let kept: Vec<&str> = crate::object::elements(&raw)?
                .into_iter()
                .filter(|raw| {
                    Object::parse(raw.as_bytes())
                        .and_then(|task| task.text("taskId"))
                        .is_some_and(|id| keep(&id))
                })
                .collect();
            result.set("tasks", format!("[{}]", kept.join(",")));
            let result = result.to_string();
            Message::scan(message.spliced(&[(Member::Result, result.as_bytes())])).ok()
        });
    // A result that is no list contains no task of any caller.
    filtered.unwrap_or_else(|| match message.raw(Member::Error) {
        Some(_) => message.clone(),
        None => Message::own(r#"{"jsonrpc":"2.0","id":0,"result":{"tasks":[]}}"#.into()),
    })
}

/// Renames the members of a legacy task as the modern era calls them.
pub(crate) fn renamed(task: &Object<'_>) -> Object<'static> {
    let mut renamed = Object::default();
    for (name, raw) in task.iter() {
        let name = match name {
            "ttl" => "ttlMs",
            "pollInterval" => "pollIntervalMs",
            other => other,
        };
        renamed.set(name, raw.to_owned());
    }
    // The modern era requires the member even if there is no limit.
    if renamed.get("ttlMs").is_none() {
        renamed.set("ttlMs", "null");
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        Message::own(text.into())
    }

    #[test]
    fn a_task_is_read_in_the_form_of_either_era() {
        let legacy = message(
            r#"{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"t","status":"working","ttl":60000,"pollInterval":500}}}"#,
        );
        let modern = message(
            r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":"t","status":"working","ttlMs":60000,"pollIntervalMs":500}}"#,
        );
        let task = created(&legacy, TaskStyle::Core).unwrap();
        assert_eq!(Some(&task), created(&modern, TaskStyle::Extension).as_ref());
        assert_eq!(task.poll, Some(Duration::from_millis(500)));
        assert_eq!(created(&legacy, TaskStyle::Extension), None);
        assert_eq!(created(&modern, TaskStyle::Core), None);
        let text = message(r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"text":"taskId"}]}}"#);
        assert_eq!(created(&text, TaskStyle::Core), None);
    }

    #[test]
    fn a_task_that_could_be_one_or_another_is_none() {
        let names = |params: &str| {
            named(&message(&format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{params}}}"#
            )))
        };
        assert_eq!(names(r#"{"taskId":"a"}"#).as_deref(), Some("a"));
        for params in [
            "{}",
            r#"{"taskId":"a","taskId":"b"}"#,
            r#"{"taskId":"a","TaskID":"b"}"#,
            r#"{"TaskId":"b"}"#,
            "{\"taskId\":\"a\",\"tas\u{212a}Id\":\"b\"}",
            "{\"taskId\":\"a\",\"ta\u{17f}kId\":\"b\"}",
        ] {
            assert_eq!(names(params), None, "{params}");
        }
    }

    #[test]
    fn the_outcome_decides_whether_a_task_has_failed() {
        let got = message(r#"{"jsonrpc":"2.0","id":1,"result":{"taskId":"t","status":"failed"}}"#);
        let result = message(
            r#"{"jsonrpc":"2.0","id":2,"result":{"content":[],"isError":true,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}}"#,
        );
        assert_eq!(
            &with_outcome(&got, &result).bytes()[..],
            br#"{"jsonrpc":"2.0","id":1,"result":{"taskId":"t","status":"completed","result":{"content":[],"isError":true}}}"#
        );
        let error = message(r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"m"}}"#);
        assert_eq!(
            &with_outcome(&got, &error).bytes()[..],
            br#"{"jsonrpc":"2.0","id":1,"result":{"taskId":"t","status":"failed","error":{"code":-32603,"message":"m"}}}"#
        );
    }

    #[test]
    fn a_task_list_keeps_only_tasks_known_to_be_the_callers() {
        let list = message(
            r#"{"jsonrpc":"2.0","id":1,"result":{"tasks":[{"taskId":"a"},{"taskId":"b"},7,{}],"nextCursor":"c"}}"#,
        );
        assert_eq!(
            &filtered(&list, |id| id == "b").bytes()[..],
            br#"{"jsonrpc":"2.0","id":1,"result":{"tasks":[{"taskId":"b"}],"nextCursor":"c"}}"#
        );
        let odd = message(r#"{"jsonrpc":"2.0","id":1,"result":[{"taskId":"a"}]}"#);
        assert!(String::from_utf8_lossy(filtered(&odd, |_| true).bytes()).contains(r#""tasks":[]"#));
    }
}
