//! What a client over HTTP may offer of a server's tools (2026-07-28, tools, "x-mcp-header").
//!
//! A tool with an invalid annotation must not be offered, and must not cost the others. Only
//! clients on HTTP check this, so a proxy between a server on HTTP and a client on stdio must do
//! it.

use std::borrow::Cow;

use memchr::memmem;

use super::catalogue::read_tool;
use super::{ANNOTATION, HeaderKind, KnownTool, SchemaError, SchemaProblem, shown};
use crate::object::{Object, elements};

/// A tool that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withheld {
    /// The name of the tool.
    pub name: String,
    /// Why it may not be offered.
    pub error: SchemaError,
}

/// Returns the answer to a `tools/list` without the tools that may not be offered, and why each of
/// them. `None` if all may: the answer then passes as its server wrote it.
pub fn without_invalid(answer: &[u8]) -> Option<(String, Vec<Withheld>)> {
    // Nearly no list is annotated: look before reading it all. A key may be spelt with escapes.
    if memmem::find(answer, ANNOTATION.as_bytes()).is_none() && memmem::find(answer, b"\\u").is_none() {
        return None;
    }
    let mut envelope = Object::parse(answer)?;
    let raw = envelope.get("result")?.to_owned();
    let mut result = Object::parse(raw.as_bytes())?;
    let tools = result.get("tools")?.to_owned();
    let mut withheld = Vec::new();
    let mut offered = Vec::new();
    for tool in elements(&tools)? {
        match judged(tool) {
            Some(refused) => withheld.push(refused),
            None => offered.push(tool),
        }
    }
    if withheld.is_empty() {
        return None;
    }
    result.set("tools", format!("[{}]", offered.join(",")));
    envelope.set("result", result.to_string());
    Some((envelope.to_string(), withheld))
}

/// Why a tool may not be offered.
fn judged(raw: &str) -> Option<Withheld> {
    let (name, tool) = read_tool(raw)?;
    let error = fault_of(tool)?;
    Some(Withheld {
        name: Cow::into_owned(name),
        error,
    })
}

/// Servers that annotate a `number` are served all the same; clients are forbidden to offer such a
/// tool.
fn fault_of(tool: KnownTool) -> Option<SchemaError> {
    if tool.problem.is_some() {
        return tool.problem;
    }
    let mut entries = tool.headers.entries().iter();
    let number = entries.find(|entry| entry.kind == HeaderKind::Number)?;
    Some(SchemaError {
        problem: SchemaProblem::WrongType,
        at: shown(number.path.iter().map(String::as_str)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, property: &str) -> String {
        format!(r#"{{"name":"{name}","inputSchema":{{"type":"object","properties":{{"p":{property}}}}}}}"#)
    }

    fn answer(tools: &[String]) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","id":7,"result":{{"tools":[{}],"ttlMs":0}}}}"#,
            tools.join(",")
        )
    }

    #[test]
    fn invalid_tools_are_left_out_and_the_others_stay_to_the_byte() {
        let good = tool("good", r#"{ "type":"string", "x-mcp-header":"Region" }"#);
        let list = answer(&[
            tool("empty", r#"{"type":"string","x-mcp-header":""}"#),
            good.clone(),
            tool("number", r#"{"type":"number","x-mcp-header":"Score"}"#),
        ]);
        let (offered, withheld) = without_invalid(list.as_bytes()).unwrap();
        assert_eq!(offered, answer(&[good]));
        let names: Vec<&str> = withheld.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["empty", "number"]);
        assert_eq!(withheld[1].error.problem, SchemaProblem::WrongType);
        assert_eq!(withheld[1].error.at, "p");
    }

    #[test]
    fn list_of_offered_tools_is_not_changed() {
        for list in [
            answer(&[tool("plain", r#"{"type":"number"}"#)]),
            answer(&[tool("good", r#"{"type":"integer","x-mcp-header":"Count"}"#)]),
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"x-mcp-header"}}"#.to_owned(),
            r#"{"result":{"tools":"x-mcp-header"}}"#.to_owned(),
            "x-mcp-header".to_owned(),
        ] {
            assert_eq!(without_invalid(list.as_bytes()), None, "{list}");
        }
    }

    #[test]
    fn annotation_spelt_with_escapes_is_found() {
        let list = answer(&[tool("odd", r#"{"type":"object","x-mcp-\u0068eader":"Data"}"#)]);
        assert_eq!(without_invalid(list.as_bytes()).unwrap().1.len(), 1);
    }
}
