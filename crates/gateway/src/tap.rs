//! The messages between Rialto and the server of a destination, live, for a reader of the admin
//! socket.
//!
//! A message is written as the audit log writes bodies: secrets are replaced, and what is long is
//! cut. It does not know clients; what a client sent is in the records of calls.

use std::time::SystemTime;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::readers::{Admitted, Feed, FeedReader};
use crate::{audit, escape};

/// How much of a message is shown.
const LONGEST: usize = 64 << 10;

/// The messages of one destination.
#[derive(Debug, Default)]
pub(crate) struct Tap(Feed);

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    FromServer,
}

impl Direction {
    const fn as_str(self) -> &'static str {
        match self {
            Self::ToServer => "to_server",
            Self::FromServer => "from_server",
        }
    }
}

impl Tap {
    pub(crate) fn is_read(&self) -> bool {
        self.0.is_read()
    }

    pub(crate) fn subscribe(&self, place: Admitted) -> FeedReader {
        self.0.subscribe(place)
    }

    /// Shows a message to the readers.
    pub(crate) fn note(&self, destination: &str, pid: Option<u32>, direction: Direction, message: &[u8]) {
        let message = message.strip_suffix(b"\n").unwrap_or(message);
        if message.is_empty() {
            return;
        }
        let line = json!({
            "ts": humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            "destination": destination,
            "pid": pid,
            "direction": direction.as_str(),
            "bytes": message.len(),
            "message": shown(message),
        });
        // What would drive a terminal is spelled out: the line is still the same JSON.
        let mut text = String::new();
        // Writing to a `String` cannot fail.
        let _ = escape::json_text(&mut text, &line.to_string());
        text.push('\n');
        self.0.publish(&Bytes::from(text));
    }

    /// Shows each of these lines.
    pub(crate) fn note_lines(&self, destination: &str, pid: Option<u32>, direction: Direction, lines: &[u8]) {
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            self.note(destination, pid, direction, line);
        }
    }
}

/// Returns a message without its secrets: as JSON, or as text if it was cut or is none.
fn shown(message: &[u8]) -> Value {
    let text = audit::redacted(message, LONGEST);
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_message_are_replaced_and_the_rest_stays_json() {
        let shown = shown(br#"{"params":{"arguments":{"api_key":"geheim","n":1.5}}}"#);
        assert_eq!(shown["params"]["arguments"]["n"], 1.5);
        assert!(!shown.to_string().contains("geheim"), "{shown}");
    }

    #[test]
    fn message_that_is_long_or_no_json_is_text() {
        assert_eq!(shown(b"hello"), "hello");
        let long = format!("[\"{}\"]", "x".repeat(2 * LONGEST));
        let text = shown(long.as_bytes());
        let text = text.as_str().expect("a text");
        assert!(text.len() < LONGEST + 100, "{}", text.len());
        assert!(text.ends_with(escape::TRUNCATED));
    }
}
