//! The result of a call, for people.

use gateway::escape;
use serde_json::Value;

use crate::terminal::text::size;

/// Returns the content of a result, as a person reads it. On a terminal no text of a server drives
/// it.
pub(super) fn text(result: &Value, is_terminal: bool) -> String {
    let mut lines: Vec<String> = Vec::new();
    let blocks = result["content"].as_array();
    for block in blocks.into_iter().flatten() {
        lines.push(self::block(block));
    }
    let structured = &result["structuredContent"];
    let has_text = blocks.is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "text"));
    if !structured.is_null() && !has_text {
        lines.push(format!("{structured:#}"));
    }
    if result["isError"] == true {
        lines.insert(0, "the tool reports an error:".to_owned());
    }
    if lines.is_empty() {
        lines.push("(no content)".to_owned());
    }
    let text = lines.join("\n") + "\n";
    match is_terminal {
        true => escape::lines(&text),
        false => text,
    }
}

fn block(block: &Value) -> String {
    let word = |value: &Value| escape::one_line(value.as_str().unwrap_or("?"), 300);
    match block["type"].as_str() {
        Some("text") => block["text"].as_str().unwrap_or_default().to_owned(),
        Some(kind @ ("image" | "audio")) => {
            let encoded = block["data"].as_str().unwrap_or_default().len() as u64;
            let kind = kind.to_owned();
            format!("[{kind} {}, {}]", word(&block["mimeType"]), size(encoded * 3 / 4))
        }
        Some("resource_link") => format!("{}: {}", word(&block["name"]), word(&block["uri"])),
        Some("resource") => {
            let resource = &block["resource"];
            match (resource["text"].as_str(), resource["blob"].as_str()) {
                (Some(text), _) => format!("{}:\n{text}", word(&resource["uri"])),
                (None, Some(blob)) => {
                    let bytes = blob.len() as u64 * 3 / 4;
                    format!("[{}, {}]", word(&resource["uri"]), size(bytes))
                }
                (None, None) => format!("[{}]", word(&resource["uri"])),
            }
        }
        Some(_) | None => block.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_of_content_is_shown() {
        let result = json!({ "content": [
            { "type": "text", "text": "one\ntwo" },
            { "type": "image", "mimeType": "image/png", "data": "AAAA" },
            { "type": "resource_link", "name": "x", "uri": "file:///x" },
            { "type": "resource", "resource": { "uri": "file:///y", "text": "inside" } },
            { "type": "new" }
        ], "structuredContent": { "a": 1 } });
        let expected =
            "one\ntwo\n[image image/png, 3 B]\nx: file:///x\nfile:///y:\ninside\n{\"type\":\"new\"}\n";
        assert_eq!(text(&result, false), expected);
        assert_eq!(text(&json!({}), false), "(no content)\n");
        let structured = json!({ "content": [], "structuredContent": { "a": 1 } });
        assert_eq!(text(&structured, false), "{\n  \"a\": 1\n}\n");
    }

    #[test]
    fn text_of_a_server_does_not_drive_a_terminal() {
        let result = json!({ "isError": true, "content": [{ "type": "text", "text": "a\u{1b}[2J\tb" }] });
        assert_eq!(
            text(&result, true),
            "the tool reports an error:\na\\u{1b}[2J\tb\n"
        );
        assert!(text(&result, false).contains('\u{1b}'), "a pipe gets it as it is");
    }
}
