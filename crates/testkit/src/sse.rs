//! A small reader of `text/event-stream`, written apart from the product's own.
//!
//! It differs from a browser's on purpose: an event with an empty `data` is reported too, for MCP's
//! priming events are of that kind, and each event has only the `id` that it carried itself.

use std::collections::VecDeque;

/// The longest line a test may be sent; a longer one is a failure of the test.
const LONGEST_LINE: usize = 256 << 20;

/// One block of fields, as it came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    pub id: Option<String>,
    pub event: Option<String>,
    pub data: String,
    pub retry: Option<u64>,
}

impl Event {
    /// The data as JSON; `null` when it is empty.
    ///
    /// # Panics
    /// When there is data that is not JSON.
    pub fn json(&self) -> serde_json::Value {
        if self.data.is_empty() {
            return serde_json::Value::Null;
        }
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error} in the event {self:?}"))
    }
}

/// Takes bytes in any pieces, gives events.
#[derive(Debug, Default)]
pub struct Reader {
    line: Vec<u8>,
    /// A CR ended the last line, so that a LF now belongs to it.
    after_cr: bool,
    begun: bool,
    event: Event,
    has_field: bool,
    has_data: bool,
    comments: usize,
    events: VecDeque<Event>,
}

impl Reader {
    pub fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let after_cr = std::mem::take(&mut self.after_cr);
            match byte {
                b'\n' if after_cr => {}
                b'\n' => self.end_line(),
                b'\r' => {
                    self.after_cr = true;
                    self.end_line();
                }
                other => {
                    assert!(self.line.len() < LONGEST_LINE, "an event-stream line without end");
                    self.line.push(other);
                }
            }
        }
    }

    pub fn pop(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// How many comment lines came so far.
    pub fn comments(&self) -> usize {
        self.comments
    }

    fn end_line(&mut self) {
        let bytes = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&bytes);
        let mut line = text.as_ref();
        if !std::mem::replace(&mut self.begun, true) {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        if line.is_empty() {
            return self.end_event();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => {
                self.comments += 1;
                return;
            }
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "id" if !value.contains('\0') => self.event.id = Some(value.to_owned()),
            "event" => self.event.event = Some(value.to_owned()),
            "retry" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.event.retry = value.parse().ok()
            }
            // The standard has unknown fields ignored.
            _ => return,
        }
        self.has_field = true;
    }

    fn end_event(&mut self) {
        let event = std::mem::take(&mut self.event);
        self.has_data = false;
        if std::mem::take(&mut self.has_field) {
            self.events.push_back(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] =
        b"\xef\xbb\xbf: hello\nid: 1\ndata:\n\nevent: message\rdata: a\rdata:  b\r\rretry: 200\r\n\r\n\
        unknown: x\n\ndata: {\"a\":1}\nid: x\0y\n\nid\ndata: unfinished";

    fn expected() -> Vec<Event> {
        let event = Event::default;
        vec![
            Event {
                id: Some("1".into()),
                ..event()
            },
            Event {
                event: Some("message".into()),
                data: "a\n b".into(),
                ..event()
            },
            Event {
                retry: Some(200),
                ..event()
            },
            Event {
                data: r#"{"a":1}"#.into(),
                ..event()
            },
        ]
    }

    fn drain(reader: &mut Reader) -> Vec<Event> {
        std::iter::from_fn(|| reader.pop()).collect()
    }

    #[test]
    fn line_ends_comments_priming_and_unfinished_events_are_read_by_the_standard() {
        let mut reader = Reader::default();
        reader.push(STREAM);
        assert_eq!(drain(&mut reader), expected());
        assert_eq!(reader.comments(), 1);
    }

    #[test]
    fn a_stream_cut_at_any_byte_gives_the_same_events() {
        for cut in 0..STREAM.len() {
            let mut reader = Reader::default();
            reader.push(&STREAM[..cut]);
            reader.push(&STREAM[cut..]);
            assert_eq!(drain(&mut reader), expected(), "cut at {cut}");
        }
    }

    #[test]
    fn data_is_read_as_json() {
        assert_eq!(expected()[3].json()["a"], 1);
        assert!(expected()[0].json().is_null());
    }
}
