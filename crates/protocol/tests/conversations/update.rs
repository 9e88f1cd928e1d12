//! Writes a conversation anew from what was really received: `UPDATE_CONVERSATIONS=1 cargo test -p
//! rialto-protocol`.
//!
//! Lines that are sent stay as they are. An expected line that still holds stays as it is too;
//! another is replaced, keeping its `…` and its names where they fit, and one for which nothing
//! came is left out. What came unexpectedly is added before the next line that is sent, and what is
//! left is stated at the end. The difference is to be read before it is committed.

use serde_json::{Map, Value};

use crate::fixture::{Received, label_of};
use crate::modern_requests::SEAL;
use crate::pattern::{self, Names};
use crate::script::Script;

/// Returns the conversation as it went; the error is a line that could not be performed at all.
pub(crate) fn rewritten(text: &str) -> Result<String, String> {
    let mut script = Script::new();
    let mut lines: Vec<String> = Vec::new();
    for (number, whole) in text.lines().enumerate() {
        let line = whole.trim();
        if line.is_empty() || line.starts_with('#') {
            lines.push(whole.to_owned());
            continue;
        }
        if is_sent(line) {
            lines.extend(unexpected(&mut script));
        }
        match script.perform(line) {
            Ok(()) => lines.push(whole.to_owned()),
            Err(_) if script.replacement.is_some() => lines.extend(script.replacement.take()),
            Err(_) if !is_sent(line) => {}
            Err(why) => return Err(format!("line {}: {line}\n  {why}", number + 1)),
        }
    }
    lines.extend(unexpected(&mut script));
    lines.extend(script.unstated());
    Ok(lines.join("\n") + "\n")
}

/// Whether a line makes something happen; otherwise it states what has happened.
fn is_sent(line: &str) -> bool {
    let mut words = line.split(' ');
    match (words.next(), words.next()) {
        (
            Some(
                "server<" | "waiting" | "open" | "questions" | "abandoned" | "counted" | "suits" | "shown"
                | "listening",
            ),
            _,
        ) => false,
        (Some("client"), Some(name)) => !name.ends_with('<'),
        (Some("link" | "replacement"), Some("wanted")) => false,
        (Some("tool"), _) | (Some("tasks"), Some("go")) | (Some("no"), Some("task")) => false,
        _ => true,
    }
}

/// Takes everything that was received and not expected, as lines that expect it.
fn unexpected(script: &mut Script) -> Vec<String> {
    let Script { fixture, names, .. } = script;
    let Some(fixture) = fixture else { return Vec::new() };
    let mut lines: Vec<String> = Vec::new();
    for received in std::mem::take(&mut fixture.server_mail) {
        lines.push(format!("server< {}", message(&received, None, names)));
    }
    if fixture.replacement_wanted.take().is_some() {
        lines.push("replacement wanted".to_owned());
    }
    for ((name, label), mail) in std::mem::take(&mut fixture.client_mail) {
        for received in mail {
            lines.push(received_by_client(&name, &label, &received, None, names));
        }
    }
    lines
}

/// Returns the line that expects what a client received.
pub(crate) fn received_by_client(
    name: &str,
    label: &str,
    received: &Received,
    expected: Option<&Received>,
    names: &mut Names,
) -> String {
    let is_id = label == "null" || label.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit());
    let labelled = match is_id {
        true => format!("client {name}.#{label}<"),
        false => format!("client {name}.{label}<"),
    };
    match (received, expected) {
        (Received::Json(value), expected) => {
            let expected = match expected {
                Some(Received::Json(expected)) => Some(expected),
                _ => None,
            };
            let client = match label_of(value) == label {
                true => format!("client {name}<"),
                false => labelled,
            };
            format!("{client} {}", message(value, expected, names))
        }
        (Received::Event(id, value), expected) => {
            let (id, expected) = match expected {
                Some(Received::Event(expected_id, expected)) if expected_id == "…" => ("…", Some(expected)),
                Some(Received::Event(_, expected)) => (id.as_str(), Some(expected)),
                _ => (id.as_str(), None),
            };
            let space = if id.is_empty() { "" } else { " " };
            format!("{labelled} event {id}{space}{}", message(value, expected, names))
        }
        (Received::Comment(text), _) => format!("{labelled} comment \"{text}\""),
        (Received::Priming(_) | Received::End | Received::Refused(_), _) => format!("{labelled} {received}"),
    }
}

/// Returns a message as scripts write it, after the pattern that it was expected to match.
pub(crate) fn message(received: &Value, expected: Option<&Value>, names: &mut Names) -> String {
    let mut text = ["result", "error"]
        .into_iter()
        .find(|word| received.get(word).is_some())
        .or_else(|| received["method"].as_str())
        .unwrap_or("?")
        .to_owned();
    if let Some(id) = received.get("id") {
        text.push_str(" #");
        text.push_str(&id_text(
            id,
            expected.and_then(|expected| expected.get("id")),
            names,
        ));
    }
    for member in ["params", "result", "error"] {
        if let Some(value) = received.get(member) {
            let expected = expected.and_then(|expected| expected.get(member));
            text.push(' ');
            text.push_str(&json_text(&merged(expected, value, names)));
        }
    }
    text
}

fn id_text(id: &Value, expected: Option<&Value>, names: &mut Names) -> String {
    if let Some(Value::String(expected)) = expected {
        if expected == "…" {
            return expected.clone();
        }
        // A name that was free stands for the id from now on.
        if let Some(name) = expected.strip_prefix('$')
            && names.get(name).is_none_or(|known| known == id)
        {
            names.insert(name.to_owned(), id.clone());
            return name.to_owned();
        }
    }
    id.to_string()
}

/// Returns what was received, with what the pattern leaves open where it still fits.
fn merged(expected: Option<&Value>, received: &Value, names: &mut Names) -> Value {
    if let Some(expected) = expected
        && pattern::matches(expected, received, names)
    {
        return expected.clone();
    }
    match (expected, received) {
        (_, Value::String(text)) if text.starts_with(SEAL) => Value::from("<sealed>"),
        (expected, Value::Object(received)) => {
            let expected = expected.and_then(Value::as_object);
            let is_open = expected.is_some_and(|expected| expected.contains_key("…"));
            let mut members = Map::new();
            for (key, value) in received {
                let known = expected.and_then(|expected| expected.get(key));
                if known.is_some() || !is_open {
                    members.insert(key.clone(), merged(known, value, names));
                }
            }
            if is_open {
                members.insert("…".to_owned(), Value::from("…"));
            }
            Value::Object(members)
        }
        (expected, Value::Array(received)) => {
            let expected = expected
                .and_then(Value::as_array)
                .filter(|items| items.len() == received.len());
            let items = received.iter().enumerate();
            Value::Array(
                items
                    .map(|(at, item)| merged(expected.and_then(|items| items.get(at)), item, names))
                    .collect(),
            )
        }
        (_, plain) => plain.clone(),
    }
}

fn json_text(value: &Value) -> String {
    value
        .to_string()
        .replace("\"…\":\"…\"", "…")
        .replace("\"…\"", "…")
        .replace("\"io.modelcontextprotocol/", "\"mcp/")
}

#[test]
fn lines_that_no_longer_hold_are_written_anew() {
    let wrong = "# x.\nopened a\nclient a> tools/call #1 {\"name\":\"x\"}\nserver< tools/call #w {\"other\":…,…}\nserver> result #w {\"b\":2}\nclient a< result #1 {\"a\":1}\nopen 7\n";
    let right = "# x.\nopened a\nclient a> tools/call #1 {\"name\":\"x\"}\nserver< tools/call #w {…}\nserver> result #w {\"b\":2}\nclient a< result #1 {\"b\":2}\nopen 0\n";
    let rewritten = rewritten(wrong).unwrap();
    assert_eq!(rewritten, right);
    assert_eq!(crate::script::run(&rewritten), Ok(()));
}

#[test]
fn missing_lines_are_added_and_others_left_out() {
    let wrong = "# x.\nopened a\nclient a> tools/call #1 {\"name\":\"x\"}\nclient a< result #1 {}\ntime +1s\nlink wanted\n";
    let right = "# x.\nopened a\nclient a> tools/call #1 {\"name\":\"x\"}\nserver< tools/call #2 {\"name\":\"x\"}\ntime +1s\nopen 1\n";
    let rewritten = rewritten(wrong).unwrap();
    assert_eq!(rewritten, right);
    assert_eq!(crate::script::run(&rewritten), Ok(()));
}

#[test]
fn conversation_that_holds_stays_as_it_is() {
    let text = include_str!("progress_makes_a_stream.conv");
    assert_eq!(rewritten(text).as_deref(), Ok(text));
}
