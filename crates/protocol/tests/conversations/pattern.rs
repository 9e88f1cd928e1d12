//! Messages as scripts write them, and how received messages are compared with them.
//!
//! `tools/call #7 {"name":"x"}` is a request, without `#7` a notification, `result #7 {…}` and
//! `error #7 {…}` are answers. `…` stands for any value, or for any further members of an object.
//! `#name` and `"$name"` stand for a value that is remembered when it is received for the first
//! time and must be the same from then on. `"<sealed>"` stands for a state of ours: any when
//! received, the last one received when sent. A name that begins with `mcp/` begins with
//! `io.modelcontextprotocol/`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A state of ours.
const SEALED: &str = "<sealed>";

pub(crate) type Names = BTreeMap<String, Value>;

/// Reads a message as scripts write it.
pub(crate) fn message(text: &str) -> Result<Value, String> {
    let text = text.trim();
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let rest = rest.trim();
    let (id, rest) = match rest.strip_prefix('#') {
        Some(after) => {
            let (id, rest) = after.split_once(' ').unwrap_or((after, ""));
            (Some(read_id(id)), rest.trim())
        }
        None => (None, rest),
    };
    let body = match rest {
        "" => None,
        rest => Some(value(rest)?),
    };
    let mut message = Map::new();
    message.insert("jsonrpc".into(), json!("2.0"));
    if let Some(id) = id {
        message.insert("id".into(), id);
    }
    match word {
        "result" | "error" => {
            message.insert(word.into(), body.ok_or("an answer has a value")?);
        }
        method => {
            message.insert("method".into(), json!(method));
            if let Some(body) = body {
                message.insert("params".into(), body);
            }
        }
    }
    Ok(Value::Object(message))
}

fn read_id(text: &str) -> Value {
    match text {
        "…" => json!("…"),
        name if name.starts_with(|first: char| first.is_ascii_lowercase()) && name != "null" => {
            json!(format!("${name}"))
        }
        raw => serde_json::from_str(raw).unwrap_or_else(|_| json!(raw)),
    }
}

/// Reads JSON with `…` in it.
fn value(text: &str) -> Result<Value, String> {
    let text = text.replace("\"mcp/", "\"io.modelcontextprotocol/");
    let mut out = String::new();
    let mut containers = Vec::new();
    let mut quoted = false;
    let mut escaped = false;
    let mut before = ' ';
    for character in text.chars() {
        if quoted {
            quoted = escaped || character != '"';
            escaped = !escaped && character == '\\';
            out.push(character);
            continue;
        }
        match character {
            '{' | '[' => containers.push(character),
            '}' | ']' => {
                containers.pop();
            }
            '"' => quoted = true,
            _ => {}
        }
        if character == '…' {
            let member = containers.last() == Some(&'{') && matches!(before, '{' | ',');
            out.push_str(if member { r#""…":"…""# } else { r#""…""# });
        } else {
            out.push(character);
        }
        if !character.is_whitespace() {
            before = character;
        }
    }
    serde_json::from_str(&out).map_err(|error| format!("{out} is no JSON: {error}"))
}

/// Returns whether a received value matches the pattern; new names are remembered.
pub(crate) fn matches(pattern: &Value, received: &Value, names: &mut Names) -> bool {
    match (pattern, received) {
        (Value::String(text), received) if text == "…" => !received.is_null(),
        (Value::String(text), Value::String(received)) if text == SEALED => {
            names.insert(SEALED.into(), json!(received));
            received.starts_with(crate::modern_requests::SEAL)
        }
        (Value::String(text), received) if text.starts_with('$') => {
            let name = text.trim_start_matches('$');
            match names.get(name) {
                Some(known) => known == received,
                None => {
                    names.insert(name.into(), received.clone());
                    true
                }
            }
        }
        (Value::Object(pattern), Value::Object(received)) => {
            let open = pattern.contains_key("…");
            pattern.iter().filter(|(key, _)| *key != "…").all(|(key, value)| {
                received
                    .get(key)
                    .is_some_and(|received| matches(value, received, names))
            }) && (open || received.keys().all(|key| pattern.contains_key(key)))
        }
        (Value::Array(pattern), Value::Array(received)) => {
            pattern.len() == received.len()
                && pattern
                    .iter()
                    .zip(received)
                    .all(|(pattern, received)| matches(pattern, received, names))
        }
        (pattern, received) => pattern == received,
    }
}

/// Returns a message to send, with remembered names filled in.
pub(crate) fn filled(sent: &Value, names: &Names) -> Result<Value, String> {
    Ok(match sent {
        Value::String(text) if text.starts_with('$') || text == SEALED => names
            .get(text.trim_start_matches('$'))
            .cloned()
            .ok_or_else(|| format!("{text} was never received"))?,
        Value::Object(members) => Value::Object(
            members
                .iter()
                .map(|(key, value)| Ok((key.clone(), filled(value, names)?)))
                .collect::<Result<_, String>>()?,
        ),
        Value::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| filled(item, names))
                .collect::<Result<_, _>>()?,
        ),
        plain => plain.clone(),
    })
}
