//! A legacy server's words for a modern client.

use std::borrow::Cow;

use bytes::Bytes;

use crate::backend_face::modern::SERVER_INFO;
use crate::client_face::respond;
use crate::error_code;
use crate::exchange::ServerInfo;
use crate::message::{Member, Message};
use crate::method::Method;
use crate::object::{Object, elements};
use crate::task;
use crate::tool_schema::{ANNOTATION, strip_invalid};
use crate::version::Version;

/// Returns a legacy answer under a modern client's id.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "every other method is treated alike"
)]
pub(super) fn reply(id: &[u8], message: &Message, method: Method, server: Option<&str>) -> Bytes {
    if let Some(raw) = message.raw(Member::Error) {
        return respond(id, "error", &error(raw));
    }
    let raw = message.raw(Member::Result).unwrap_or_default();
    let Some(mut result) = Object::parse(raw) else {
        return super::error(
            Some(id),
            error_code::INTERNAL_ERROR,
            "the server's result is not an object",
            None,
        );
    };
    match method {
        Method::ToolsCall if is_task(&result) => return created(id, &result, server),
        Method::TasksGet => result = detailed(&result),
        // Both are only acknowledged.
        Method::TasksCancel | Method::TasksUpdate => result = Object::default(),
        _ => {}
    }
    result.set("resultType", r#""complete""#);
    if is_cacheable(method) {
        // A legacy server does not declare how long its answers are valid.
        result.set("ttlMs", "0");
        result.set("cacheScope", r#""private""#);
    }
    if let Some(server) = server {
        stamp(&mut result, server);
    }
    if method == Method::ToolsList {
        reword_tools(&mut result);
    }
    respond(id, "result", &result.to_string())
}

fn is_task(result: &Object<'_>) -> bool {
    let task = result.get("task").and_then(|raw| Object::parse(raw.as_bytes()));
    task.is_some_and(|task| task.get("taskId").is_some())
}

/// Returns a task in place of a result: flat, where the legacy era has it nested.
fn created(id: &[u8], result: &Object<'_>, server: Option<&str>) -> Bytes {
    let raw = result.get("task").unwrap_or("{}");
    let task = Object::parse(raw.as_bytes()).unwrap_or_default();
    let mut flat = Object::default();
    flat.set("resultType", r#""task""#);
    for (name, raw) in task::renamed(&task).iter() {
        flat.set(name, raw.to_owned());
    }
    if let Some(meta) = result.get("_meta") {
        flat.set("_meta", meta.to_owned());
    }
    if let Some(server) = server {
        stamp(&mut flat, server);
    }
    respond(id, "result", &flat.to_string())
}

/// Returns a task with everything there is to know of it.
fn detailed(result: &Object<'_>) -> Object<'static> {
    let mut task = task::renamed(result);
    if let Some(questions) = task.get("inputRequests").map(str::to_owned) {
        task.set("inputRequests", in_modern_words(&questions));
    }
    task
}

/// Questions without what belongs to the legacy era's way of asking.
fn in_modern_words(questions: &str) -> String {
    let questions = Object::parse(questions.as_bytes()).unwrap_or_default();
    let mut reworded = Object::default();
    for (key, raw) in questions.iter() {
        let mut question = Object::parse(raw.as_bytes()).unwrap_or_default();
        let params = question.get("params").unwrap_or("{}").to_owned();
        let mut params = Object::parse(params.as_bytes()).unwrap_or_default();
        super::without_legacy_asking(&mut params);
        if params.is_empty() {
            question.remove("params");
        } else {
            question.set("params", params.to_string());
        }
        reworded.set(key, question.to_string());
    }
    reworded.to_string()
}

fn is_cacheable(method: Method) -> bool {
    matches!(
        method,
        Method::ServerDiscover
            | Method::ToolsList
            | Method::PromptsList
            | Method::ResourcesList
            | Method::ResourcesTemplatesList
            | Method::ResourcesRead
    )
}

fn stamp(result: &mut Object<'_>, server: &str) {
    let stamped = match result.get("_meta") {
        None => [r#"{""#, SERVER_INFO, r#"":"#, server, "}"].concat(),
        Some(raw) => {
            let mut meta = Object::parse(raw.as_bytes()).unwrap_or_default();
            meta.set(SERVER_INFO, server);
            meta.to_string()
        }
    };
    result.set("_meta", stamped);
}

/// Tools as a modern client may read them. `execution` speaks of tasks as the legacy era had them;
/// and a client that comes by HTTP would have to drop a whole tool for one invalid `x-mcp-header`,
/// which a legacy server never meant.
fn reword_tools(result: &mut Object<'_>) {
    let Some(raw) = result.get("tools").map(str::to_owned) else {
        return;
    };
    let Some(tools) = elements(&raw) else { return };
    let kept: Vec<String> = tools
        .into_iter()
        .map(|raw| reword_tool(raw).into_owned())
        .collect();
    result.set("tools", format!("[{}]", kept.join(",")));
}

/// Returns one tool as a modern client may read it.
pub(super) fn reword_tool(raw: &str) -> Cow<'_, str> {
    match without_invalid_headers(raw) {
        Cow::Borrowed(raw) => without_task_support(raw),
        Cow::Owned(raw) => without_task_support(&raw).into_owned().into(),
    }
}

fn without_task_support(raw: &str) -> Cow<'_, str> {
    match Object::parse(raw.as_bytes()) {
        Some(mut tool) if tool.get("execution").is_some() => {
            tool.remove("execution");
            tool.to_string().into()
        }
        Some(_) | None => raw.into(),
    }
}

fn without_invalid_headers(raw: &str) -> Cow<'_, str> {
    // Nearly no tool is annotated: look before reading it all. A key may be spelt with escapes.
    if memchr::memmem::find(raw.as_bytes(), ANNOTATION.as_bytes()).is_none() && !raw.contains("\\u") {
        return raw.into();
    }
    serde_json::from_str(raw)
        .ok()
        .and_then(|tool| strip_invalid(&tool))
        .map_or(raw.into(), |tool| tool.to_string().into())
}

/// Returns a discovery made of a legacy server's `initialize` result.
pub(super) fn discovery(id: &[u8], server_info: &ServerInfo) -> Bytes {
    let found = server_info.message.object(Member::Result);
    let raw = found.get("capabilities").unwrap_or("{}");
    let mut capabilities = Object::parse(raw.as_bytes()).unwrap_or_default();
    capabilities.remove("tasks");
    if server_info.tasks {
        let raw = capabilities.get("extensions").unwrap_or("{}").to_owned();
        let mut extensions = Object::parse(raw.as_bytes()).unwrap_or_default();
        extensions.set(task::EXTENSION, "{}");
        capabilities.set("extensions", extensions.to_string());
    }
    let mut result = Object::default();
    result.set("resultType", r#""complete""#);
    result.set(
        "supportedVersions",
        format!(r#"["{}"]"#, Version::NEWEST_MODERN.as_str()),
    );
    result.set("capabilities", capabilities.to_string());
    if let Some(instructions) = found.get("instructions") {
        result.set("instructions", instructions.to_owned());
    }
    result.set("ttlMs", "0");
    result.set("cacheScope", r#""private""#);
    if let Some(server) = &server_info.info {
        stamp(&mut result, server);
    }
    respond(id, "result", &result.to_string())
}

/// "URL elicitation required" of 2025-11-25. Without URLs it is an error like others.
pub(super) fn urls_first(error: &[u8]) -> Option<Vec<Message>> {
    let error = Object::parse(error).filter(|error| error.get("code") == Some("-32042"))?;
    let data = Object::parse(error.get("data")?.as_bytes())?;
    let wanted = elements(data.get("elicitations")?)?;
    let questions: Option<Vec<Message>> = wanted
        .into_iter()
        .map(|raw| {
            let mut params = Object::parse(raw.as_bytes())?;
            params.text("url")?;
            params.set("mode", r#""url""#);
            let text =
                format!(r#"{{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{params}}}"#);
            Message::scan(text.into()).ok()
        })
        .collect();
    questions.filter(|questions| !questions.is_empty())
}

/// Codes of the legacy era that a modern client would misread.
fn error(raw: &[u8]) -> String {
    let Some(mut error) = Object::parse(raw) else {
        return String::from_utf8_lossy(raw).into_owned();
    };
    match error.get("code").and_then(|code| code.parse::<i32>().ok()) {
        // "Resource not found" had a code of its own.
        Some(-32002) => error.set("code", error_code::INVALID_PARAMS.to_string()),
        Some(code @ -32099..=-32020) => {
            error.set("code", error_code::INTERNAL_ERROR.to_string());
            let data = error.get("data").unwrap_or("null").to_owned();
            error.set(
                "data",
                format!(r#"{{"upstreamCode":{code},"upstreamData":{data}}}"#),
            );
        }
        Some(_) | None => {}
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn translated(method: Method, text: &str) -> String {
        String::from_utf8(reply(b"1", &message(text), method, Some(r#"{"name":"s"}"#)).to_vec()).unwrap()
    }

    #[test]
    fn results_are_marked_complete_and_name_their_server() {
        assert_eq!(
            translated(
                Method::ToolsCall,
                r#"{"jsonrpc":"2.0","id":4,"result":{"content":[1.0],"resultType":"odd"}}"#
            ),
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[1.0],"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}}"#
        );
        let listed = translated(
            Method::ToolsList,
            r#"{"jsonrpc":"2.0","id":4,"result":{"tools":[{"name":"a","execution":{"taskSupport":"optional"}},{"name" : "b"}]}}"#,
        );
        assert!(
            listed.contains(r#""tools":[{"name":"a"},{"name" : "b"}]"#),
            "{listed}"
        );
        assert!(listed.contains(r#""ttlMs":0,"cacheScope":"private""#), "{listed}");
    }

    #[test]
    fn an_annotation_that_no_client_could_use_is_left_out_and_its_tool_stays() {
        let listed = translated(
            Method::ToolsList,
            r#"{"jsonrpc":"2.0","id":4,"result":{"tools":[{"name":"a","inputSchema":{"properties":{"p":{"type":"array","x-mcp-header":"P"},"q":{"type":"string","x-mcp-header":"Q"}}}}]}}"#,
        );
        assert!(!listed.contains(r#""x-mcp-header":"P""#), "{listed}");
        assert!(listed.contains(r#""x-mcp-header":"Q""#), "{listed}");
    }

    #[test]
    fn errors_of_the_legacy_era_are_not_misread() {
        assert!(
            translated(
                Method::ResourcesRead,
                r#"{"jsonrpc":"2.0","id":4,"error":{"code":-32002,"message":"m"}}"#
            )
            .contains("-32602")
        );
        let stray = translated(
            Method::ToolsCall,
            r#"{"jsonrpc":"2.0","id":4,"error":{"code":-32022,"message":"m"}}"#,
        );
        assert!(
            stray.contains(r#""code":-32603"#) && stray.contains(r#""upstreamCode":-32022"#),
            "{stray}"
        );
        assert!(translated(Method::ToolsCall, r#"{"jsonrpc":"2.0","id":4,"result":[1]}"#).contains("-32603"));
    }
}
