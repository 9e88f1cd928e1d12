//! MCP Apps: the extension for user interfaces (`io.modelcontextprotocol/ui`, SEP-1865).
//!
//! A server that knows of a client with this extension gives its tools a user interface, and may
//! offer tools that only the interface calls. A client without the extension does not know that
//! those are not meant for its model. Where the server has the union of what clients can do, such a
//! client gets the list without them. Everything else passes as it is.

use crate::message::Message;
use crate::object::Object;
use crate::tool_policy::retain_tools;

/// The name of the extension.
pub const EXTENSION: &str = "io.modelcontextprotocol/ui";

/// Returns an answer to `tools/list` without the tools that are hidden from models, or `None` if
/// there are none.
pub fn without_app_only_tools(answer: &Message) -> Option<Message> {
    memchr::memmem::find(answer.bytes(), b"\"visibility\"")?;
    retain_tools(answer, |tool| !is_app_only(tool))
}

/// Returns whether a tool declares that models do not see it. Without a declaration they do.
pub(crate) fn is_app_only(tool: &str) -> bool {
    let visibility = || {
        let tool = Object::parse(tool.as_bytes())?;
        let meta = Object::parse(tool.get("_meta")?.as_bytes())?;
        let ui = Object::parse(meta.get("ui")?.as_bytes())?;
        serde_json::from_str::<Vec<String>>(ui.get("visibility")?).ok()
    };
    visibility().is_some_and(|visible| !visible.iter().any(|to| to == "model"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(tools: &str) -> Message {
        Message::own(format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{tools}]}}}}"#
        ))
    }

    fn tool(name: &str, ui: &str) -> String {
        format!(r#"{{"name":"{name}","_meta":{{"ui":{ui}}}}}"#)
    }

    #[test]
    fn tools_that_only_an_app_calls_are_left_out() {
        let shown = tool(
            "shown",
            r#"{"resourceUri":"ui://a","visibility":["model","app"]}"#,
        );
        let hidden = tool("hidden", r#"{"visibility":["app"]}"#);
        let plain = r#"{"name":"plain"}"#;
        let answer =
            without_app_only_tools(&list(&format!("{shown},{hidden},{plain}"))).expect("another list");
        assert_eq!(answer.bytes(), list(&format!("{shown},{plain}")).bytes());
    }

    #[test]
    fn list_without_such_tools_stays_as_it_is() {
        let unreadable = tool("unreadable", r#"{"visibility":"app"}"#);
        let shown = tool("shown", r#"{"visibility":["model"]}"#);
        assert!(without_app_only_tools(&list(&format!("{unreadable},{shown}"))).is_none());
    }
}
