//! The tools of a server, for people.

use gateway::escape;
use serde_json::Value;

use crate::terminal::text::{self, Style};

/// The longest text of a server that is shown in one line.
const LONGEST: usize = 2000;

/// Returns all tools: each with its arguments and its description.
pub(super) fn text(server: &Value, tools: &[Value], columns: usize, has_colour: bool) -> String {
    let info = &server["serverInfo"];
    let word = |value: &Value| escape::one_line(value.as_str().unwrap_or("?"), 100);
    let count = match tools.len() {
        0 => "no tools".to_owned(),
        1 => "1 tool".to_owned(),
        several => format!("{several} tools"),
    };
    let head = format!(
        "{} {}  {}  {count}",
        word(&info["name"]),
        word(&info["version"]),
        word(&server["protocolVersion"])
    );
    let mut lines = vec![Style::Dim.paint(&head, has_colour)];
    for tool in tools {
        let name = Style::Bold.paint(&word(&tool["name"]), has_colour);
        let line = format!("{name} {}", usage(tool));
        lines.push(line.trim_end().to_owned());
        let description = escape::one_line(tool["description"].as_str().unwrap_or_default(), LONGEST);
        let hints = hints(&tool["annotations"]);
        let described = match (description.is_empty(), hints.is_empty()) {
            (true, _) => hints,
            (false, true) => description,
            (false, false) => format!("{description} ({hints})"),
        };
        if !described.is_empty() {
            let wrapped = text::wrapped(&described, columns.saturating_sub(4).max(20));
            lines.extend(wrapped.iter().map(|line| format!("    {line}")));
        }
    }
    lines.join("\n") + "\n"
}

/// Returns the arguments of a tool: `path=string [depth=integer]`.
pub(super) fn usage(tool: &Value) -> String {
    let schema = &tool["inputSchema"];
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let properties = schema["properties"].as_object();
    let mut words: Vec<(bool, String)> = properties
        .into_iter()
        .flatten()
        .map(|(name, property)| {
            let is_required = required.contains(&name.as_str());
            let word = format!("{}={}", escape::one_line(name, 100), kind(property));
            (!is_required, word)
        })
        .collect();
    words.sort_by_key(|(is_optional, _)| *is_optional);
    let words: Vec<String> = words
        .into_iter()
        .map(|(is_optional, word)| match is_optional {
            true => format!("[{word}]"),
            false => word,
        })
        .collect();
    words.join(" ")
}

fn kind(property: &Value) -> String {
    if let Some(allowed) = property["enum"].as_array() {
        let words: Vec<String> = allowed
            .iter()
            .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            .collect();
        return escape::one_line(&words.join("|"), 100);
    }
    match &property["type"] {
        Value::String(kind) => escape::one_line(kind, 20),
        Value::Array(kinds) => {
            let kinds: Vec<&str> = kinds.iter().filter_map(Value::as_str).collect();
            escape::one_line(&kinds.join("|"), 60)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => "any".to_owned(),
    }
}

/// Returns the effects that a tool declares. They are the server's word.
fn hints(annotations: &Value) -> String {
    let mut hints = Vec::new();
    if annotations["readOnlyHint"] == true {
        hints.push("read-only");
    } else if annotations["destructiveHint"] == true {
        hints.push("destructive");
    }
    if annotations["idempotentHint"] == true {
        hints.push("idempotent");
    }
    hints.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_are_shown_with_arguments_and_effects_and_obey_no_terminal_command() {
        let server = json!({
            "protocolVersion": "2025-11-25", "serverInfo": { "name": "files", "version": "1.0" }
        });
        let tools = [
            json!({
                "name": "read", "description": "Reads a\nfile\u{1b}[2J",
                "annotations": { "readOnlyHint": true },
                "inputSchema": {
                    "required": ["path"],
                    "properties": {
                        "depth": { "type": "integer" }, "mode": { "enum": ["a", 1] },
                        "path": { "type": "string" }, "x": {}
                    }
                }
            }),
            json!({ "name": "ping", "inputSchema": {} }),
        ];
        let expected = "\
files 1.0  2025-11-25  2 tools
read path=string [depth=integer] [mode=a|1] [x=any]
    Reads a\\nfile\\u{1b}[2J
    (read-only)
ping
";
        assert_eq!(text(&server, &tools, 30, false), expected);
        let none = text(&server, &[], 80, false);
        assert_eq!(none, "files 1.0  2025-11-25  no tools\n");
    }
}
