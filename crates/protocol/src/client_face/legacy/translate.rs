//! A modern server's words for a legacy client.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;

use crate::backend_face::modern::SERVER_INFO;
use crate::error_code;
use crate::exchange::Welcome;
use crate::message::{Member, Message, quoted};
use crate::method::Method;
use crate::object::{Object, elements};
use crate::version::Version;

/// A modern answer under a legacy client's id.
pub(super) fn reply(id: &[u8], message: &Message, method: Method) -> Bytes {
    if let Some(raw) = message.raw(Member::Error) {
        return respond(id, "error", &error(raw));
    }
    let Some(mut result) = message.raw(Member::Result).and_then(Object::parse) else {
        return message.spliced(&[(Member::Id, id)]);
    };
    for member in ["resultType", "ttlMs", "cacheScope"] {
        result.remove(member);
    }
    without_server_info(&mut result);
    match method {
        Method::ToolsCall => project_structured_content(&mut result),
        Method::ToolsList => project_output_schemas(&mut result),
        _ => {}
    }
    respond(id, "result", &result.to_string())
}

fn respond(id: &[u8], member: &str, raw: &str) -> Bytes {
    let head = format!(r#","{member}":"#);
    [
        br#"{"jsonrpc":"2.0","id":"#,
        id,
        head.as_bytes(),
        raw.as_bytes(),
        b"}",
    ]
    .concat()
    .into()
}

/// An `initialize` result made of what a modern server said of itself. Gives the revision that holds.
pub(super) fn welcome(id: &[u8], welcome: &Welcome, asked: Option<Version>) -> (Bytes, Version) {
    let version = match asked {
        Some(asked) if Version::LEGACY.contains(&asked) => asked,
        Some(_) | None => Version::NEWEST_LEGACY,
    };
    let found = welcome
        .message
        .raw(Member::Result)
        .and_then(Object::parse)
        .unwrap_or_default();
    let info = welcome
        .info
        .as_deref()
        .unwrap_or(r#"{"name":"server","version":"0"}"#);
    let capabilities = found.get("capabilities").unwrap_or("{}");
    let mut result = Object::default();
    result.set("protocolVersion", quoted(version.as_str()));
    result.set("capabilities", capabilities.to_owned());
    result.set("serverInfo", info.to_owned());
    if let Some(instructions) = found.get("instructions") {
        result.set("instructions", instructions.to_owned());
    }
    (respond(id, "result", &result.to_string()), version)
}

/// Errors that only the modern era knows, in words a legacy client does not misread.
fn error(raw: &[u8]) -> String {
    let Some(mut error) = Object::parse(raw) else {
        return String::from_utf8_lossy(raw).into_owned();
    };
    let code = error.get("code").and_then(|code| code.parse::<i32>().ok());
    let code = match code {
        // A missing client capability: the data names it.
        Some(-32021) => error_code::INVALID_PARAMS,
        Some(-32022 | -32020) => error_code::INTERNAL_ERROR,
        Some(_) | None => return error.to_string(),
    };
    error.set("code", code.to_string());
    error.to_string()
}

fn without_server_info(result: &mut Object<'_>) {
    let Some(raw) = result.get("_meta").map(str::to_owned) else {
        return;
    };
    let Some(mut meta) = Object::parse(raw.as_bytes()) else {
        return;
    };
    meta.remove(SERVER_INFO);
    if meta.is_empty() {
        result.remove("_meta");
    } else {
        result.set("_meta", meta.to_string());
    }
}

/// Structured content may be any JSON in the modern era; before it had to be an object.
fn project_structured_content(result: &mut Object<'_>) {
    let Some(raw) = result.get("structuredContent").map(str::to_owned) else {
        return;
    };
    if raw.starts_with('{') {
        return;
    }
    result.set("structuredContent", format!(r#"{{"result":{raw}}}"#));
    let blocks = result
        .get("content")
        .and_then(elements)
        .map(|blocks| blocks.len());
    if blocks.unwrap_or(0) == 0 {
        result.set(
            "content",
            format!(r#"[{{"type":"text","text":{}}}]"#, quoted(&raw)),
        );
    }
}

/// Output schemas follow the content they describe.
fn project_output_schemas(result: &mut Object<'_>) {
    let Some(raw) = result.get("tools").map(str::to_owned) else {
        return;
    };
    let Some(tools) = elements(&raw) else { return };
    let projected: Vec<Cow<'_, str>> = tools.into_iter().map(project_tool).collect();
    result.set("tools", format!("[{}]", projected.join(",")));
}

fn project_tool(raw: &str) -> Cow<'_, str> {
    let Some(mut tool) = Object::parse(raw.as_bytes()) else {
        return raw.into();
    };
    let Some(schema) = tool
        .get("outputSchema")
        .and_then(|raw| serde_json::from_str::<Value>(raw).ok())
    else {
        return raw.into();
    };
    if schema.get("type").and_then(Value::as_str) == Some("object") {
        return raw.into();
    }
    let mut inner = schema;
    rebase(&mut inner);
    let wrapped = serde_json::json!({
        "type": "object", "properties": { "result": inner }, "required": ["result"]
    });
    tool.set("outputSchema", wrapped.to_string());
    tool.to_string().into()
}

/// References within a schema that has moved one level down.
fn rebase(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            for (name, value) in members {
                match value {
                    Value::String(target) if name == "$ref" && target.starts_with('#') => {
                        *target = format!("#/properties/result{}", &target[1..]);
                    }
                    _ => rebase(value),
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(rebase),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::Era;

    fn message(text: &str) -> Message {
        Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn translated(method: Method, text: &str) -> String {
        String::from_utf8(reply(b"\"a\"", &message(text), method).to_vec()).unwrap()
    }

    #[test]
    fn what_only_the_modern_era_says_is_left_out_and_the_rest_stays_to_the_byte() {
        assert_eq!(
            translated(
                Method::PromptsList,
                r#"{"jsonrpc":"2.0","id":4,"result":{"resultType":"complete","prompts":[{"n": 1.0}],"ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{},"x":1}}}"#
            ),
            r#"{"jsonrpc":"2.0","id":"a","result":{"prompts":[{"n": 1.0}],"_meta":{"x":1}}}"#
        );
        assert_eq!(
            translated(
                Method::Ping,
                r#"{"jsonrpc":"2.0","id":4,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{}}}}"#
            ),
            r#"{"jsonrpc":"2.0","id":"a","result":{}}"#
        );
    }

    #[test]
    fn structured_content_becomes_an_object_and_is_told_in_text_too() {
        assert_eq!(
            translated(
                Method::ToolsCall,
                r#"{"jsonrpc":"2.0","id":4,"result":{"content":[],"structuredContent":[1, 2]}}"#
            ),
            r#"{"jsonrpc":"2.0","id":"a","result":{"content":[{"type":"text","text":"[1, 2]"}],"structuredContent":{"result":[1, 2]}}}"#
        );
        let listed = translated(
            Method::ToolsList,
            r##"{"jsonrpc":"2.0","id":4,"result":{"tools":[{"name":"t","outputSchema":{"type":"array","items":{"$ref":"#/$defs/x"},"$defs":{"x":{}}}},{"name":"u","outputSchema":{"type":"object"} }]}}"##,
        );
        assert!(
            listed.contains(r##""$ref":"#/properties/result/$defs/x""##),
            "{listed}"
        );
        assert!(
            listed.contains(r#"{"name":"u","outputSchema":{"type":"object"} }"#),
            "{listed}"
        );
    }

    #[test]
    fn modern_errors_are_reworded() {
        let text = translated(
            Method::ToolsCall,
            r#"{"jsonrpc":"2.0","id":4,"error":{"code":-32021,"message":"m","data":{"requiredCapabilities":{"roots":{}}}}}"#,
        );
        assert!(
            text.contains(r#""code":-32602"#) && text.contains("requiredCapabilities"),
            "{text}"
        );
    }

    #[test]
    fn a_discovery_becomes_a_welcome() {
        let discovered = Welcome {
            message: message(
                r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"instructions":"i","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}}}}"#,
            ),
            words: Era::Modern,
            version: None,
            changing_lists: vec![],
            logs: false,
            tasks: false,
            info: Some(r#"{"name":"s","version":"1"}"#.into()),
        };
        let (body, version) = welcome(b"1", &discovered, Some(Version::V2025_06_18));
        assert_eq!(version, Version::V2025_06_18);
        assert_eq!(
            &body[..],
            br#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"},"instructions":"i"}}"#
        );
    }
}
