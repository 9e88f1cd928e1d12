//! A modern server's words for a legacy client.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;

use crate::backend_face::modern::SERVER_INFO;
use crate::client_face::respond;
use crate::error_code;
use crate::exchange::ServerInfo;
use crate::message::{Member, Message, quoted};
use crate::method::Method;
use crate::object::{Object, elements};
use crate::version::Version;

/// Returns a modern answer under a legacy client's id.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "every other method is treated alike"
)]
pub(super) fn reply(id: &[u8], message: &Message, method: Method) -> Bytes {
    if let Some(raw) = message.raw(Member::Error) {
        return respond(id, "error", &error(raw));
    }
    let Some(mut result) = message.raw(Member::Result).and_then(Object::parse) else {
        return message.spliced(&[(Member::Id, id)]);
    };
    // What the server asked by its answer was asked, and its task followed, before this
    // (2026-07-28, "ResultType").
    if result.get("resultType").is_some() && result.text("resultType").as_deref() != Some("complete") {
        let text = "the server answered with a result of an unknown kind";
        return super::error(Some(id), error_code::INTERNAL_ERROR, text, None);
    }
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

/// Returns an `initialize` result made of a modern server's discovery, and the revision that holds.
pub(super) fn initialize_result(
    id: &[u8],
    server_info: &ServerInfo,
    asked: Option<Version>,
) -> (Bytes, Version) {
    let version = match asked {
        Some(asked) if Version::LEGACY.contains(&asked) => asked,
        Some(_) | None => Version::NEWEST_LEGACY,
    };
    let found = server_info.message.object(Member::Result);
    let info = server_info
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

pub(super) fn project_tool(raw: &str) -> Cow<'_, str> {
    let Some(mut tool) = Object::parse(raw.as_bytes()) else {
        return raw.into();
    };
    let Some(schema) = tool
        .get("outputSchema")
        .and_then(|raw| serde_json::from_str::<Value>(raw).ok())
    else {
        return raw.into();
    };
    let mut inner = schema;
    let wrapped = match inner.get("type") {
        Some(Value::String(only)) if only == "object" => return raw.into(),
        // Objects stay as they are and all else is wrapped, so the schema must take either.
        None => either(&mut inner),
        Some(Value::Array(types)) if types.iter().any(|one| one == "object") => either(&mut inner),
        Some(_) => {
            rebase(&mut inner, "#/properties/result");
            serde_json::json!({ "type": "object", "properties": { "result": inner }, "required": ["result"] })
        }
    };
    tool.set("outputSchema", wrapped.to_string());
    tool.to_string().into()
}

/// Returns a schema for what an object or something else has become.
fn either(inner: &mut Value) -> Value {
    rebase(inner, "#/anyOf/0");
    let wrapped =
        serde_json::json!({ "properties": { "result": { "$ref": "#/anyOf/0" } }, "required": ["result"] });
    serde_json::json!({ "type": "object", "anyOf": [inner, wrapped] })
}

/// References within a schema that has moved to another place. One that has a name of its own is a
/// document of its own, and what is referred to by a name and not by its place is still found.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "only an object, an array and a string can hold a reference"
)]
fn rebase(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(members) if members.get("$id").is_some_and(Value::is_string) => {}
        Value::Object(members) => {
            for (name, value) in members {
                match value {
                    Value::String(target)
                        if name == "$ref" && (target == "#" || target.starts_with("#/")) =>
                    {
                        target.replace_range(..1, place);
                    }
                    _ => rebase(value, place),
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(|element| rebase(element, place)),
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
    fn modern_members_are_left_out_and_the_rest_stays_to_the_byte() {
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
    fn structured_content_becomes_an_object_and_is_repeated_as_text() {
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

    fn projected(schema: &str) -> Value {
        let list = format!(
            r#"{{"jsonrpc":"2.0","id":4,"result":{{"tools":[{{"name":"t","outputSchema":{schema}}}]}}}}"#
        );
        let listed: Value = serde_json::from_str(&translated(Method::ToolsList, &list)).unwrap();
        listed["result"]["tools"][0]["outputSchema"].clone()
    }

    #[test]
    fn a_schema_that_takes_objects_too_takes_them_as_they_are_and_all_else_wrapped() {
        for schema in [
            r##"{"anyOf":[{"$ref":"#/$defs/a"},{"type":"array"}],"$defs":{"a":{"type":"object"}}}"##,
            r##"{"type":["object","null"],"anyOf":[{"$ref":"#/$defs/a"}]}"##,
        ] {
            let projected = projected(schema);
            assert_eq!(projected["type"], "object");
            assert_eq!(projected["anyOf"][0]["anyOf"][0]["$ref"], "#/anyOf/0/$defs/a");
            assert_eq!(projected["anyOf"][1]["properties"]["result"]["$ref"], "#/anyOf/0");
        }
    }

    #[test]
    fn references_by_name_and_in_documents_of_their_own_stay() {
        for schema in [
            r##"{"type":"array","items":{"$ref":"#node"}}"##,
            r##"{"type":"array","$id":"https://x.example/s","items":{"$ref":"#/$defs/x"}}"##,
        ] {
            let inner: Value = serde_json::from_str(schema).unwrap();
            assert_eq!(projected(schema)["properties"]["result"], inner, "{schema}");
        }
        let whole = projected(r##"{"type":"array","items":{"$ref":"#"}}"##);
        assert_eq!(
            whole["properties"]["result"]["items"]["$ref"],
            "#/properties/result"
        );
    }

    #[test]
    fn a_result_of_an_unknown_kind_is_no_result() {
        let text = translated(
            Method::ToolsCall,
            r#"{"jsonrpc":"2.0","id":4,"result":{"resultType":"later","content":[]}}"#,
        );
        assert!(text.contains(r#""code":-32603"#), "{text}");
        let text = translated(
            Method::ToolsCall,
            r#"{"jsonrpc":"2.0","id":4,"result":{"content":[]}}"#,
        );
        assert_eq!(text, r#"{"jsonrpc":"2.0","id":"a","result":{"content":[]}}"#);
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
    fn a_discovery_becomes_an_initialize_result() {
        let discovered = ServerInfo {
            message: message(
                r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"instructions":"i","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}}}}"#,
            ),
            era: Era::Modern,
            version: None,
            changing_lists: vec![],
            logs: false,
            subscriptions: false,
            tasks: false,
            info: Some(r#"{"name":"s","version":"1"}"#.into()),
        };
        let (body, version) = initialize_result(b"1", &discovered, Some(Version::V2025_06_18));
        assert_eq!(version, Version::V2025_06_18);
        assert_eq!(
            &body[..],
            br#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"},"instructions":"i"}}"#
        );
    }
}
