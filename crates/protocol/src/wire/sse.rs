//! Server-sent events: a writer for MCP's own, and a parser for all that the WHATWG standard
//! allows.
//!
//! The writer hides the field syntax and makes sure that no value can begin a new field or event.
//! The parser hides line ends, chunk borders, comments and the joining of `data` lines, and holds
//! at most one event. Neither knows what an event means, and neither keeps time: reconnecting is
//! for the caller, with the id and the delay the parser remembers.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use memchr::memchr2;

/// What stands around the data of an event, at most, if it is named as we name them.
pub(crate) const AROUND: usize = 96;

/// The type of the events that carry a JSON-RPC message.
pub const MESSAGE: &str = "message";

/// Writes a JSON-RPC message as an event of type `message`. The id is given in pieces.
pub fn write_message(out: &mut BytesMut, id: Option<&[&str]>, json: &[u8]) {
    write_event(out, id, Some(MESSAGE), json);
}

/// Writes one event whose data is JSON (or a URL, for `endpoint`).
///
/// Raw line breaks in the data become spaces. In valid JSON they occur only between tokens, so
/// nothing is lost, and the event keeps a single `data` line, which also the readers understand
/// that take no second one.
pub fn write_event(out: &mut BytesMut, id: Option<&[&str]>, event: Option<&str>, data: &[u8]) {
    out.reserve(data.len() + AROUND);
    if let Some(id) = id {
        write_field(out, "id: ", id);
    }
    match event {
        Some(MESSAGE) => out.put_slice(b"event: message\n"),
        Some(event) => write_field(out, "event: ", &[event]),
        None => {}
    }
    out.put_slice(b"data: ");
    let mut rest = data;
    while let Some(at) = memchr2(b'\r', b'\n', rest) {
        let (before, from) = rest.split_at(at);
        out.put_slice(before);
        out.put_u8(b' ');
        rest = from.get(1..).unwrap_or_default();
    }
    out.put_slice(rest);
    out.put_slice(b"\n\n");
}

/// Writes the event that only hands out an id, so that a stream can be resumed before its first
/// message.
///
/// Its data is there but empty (2025-11-25, Streamable HTTP, "Sending Messages to the Server"):
/// without a `data` field a standard reader would not dispatch it. It also has the delay before a
/// reconnect: when a stream breaks it is too late to send it.
pub fn write_priming(out: &mut BytesMut, id: &[&str], retry: Duration) {
    let retry = u64::try_from(retry.as_millis()).unwrap_or(u64::MAX);
    write_field(out, "id: ", id);
    write_field(out, "retry: ", &[itoa::Buffer::new().format(retry)]);
    out.put_slice(b"data: \n\n");
}

/// Writes a comment, which readers skip: it keeps a quiet connection alive.
pub fn write_comment(out: &mut BytesMut, text: &str) {
    write_field(out, ": ", &[text]);
    out.put_slice(b"\n");
}

/// Writes one field. The characters that would end it, or make a reader ignore the id, are left
/// out.
fn write_field(out: &mut BytesMut, name: &str, value: &[&str]) {
    let ends = |byte| matches!(byte, b'\r' | b'\n' | 0);
    out.put_slice(name.as_bytes());
    for piece in value {
        // What Rialto itself writes has no such character.
        if piece.bytes().any(ends) {
            for rest in piece.as_bytes().split(|&byte| ends(byte)) {
                out.put_slice(rest);
            }
        } else {
            out.put_slice(piece.as_bytes());
        }
    }
    out.put_slice(b"\n");
}

/// What a reserve of the parser may stay for good; a larger buffer is given back after its event.
const KEEP: usize = 128 * 1024;

/// The longest id that is remembered. No server takes a longer header, so a longer id could not be
/// used.
const MAX_ID: usize = 4096;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// One dispatched event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    /// The type as written; `None` when there is none, which the standard reads as `message`.
    pub event: Option<Bytes>,
    /// The `data` lines, joined by line feeds. A single line is a slice of the parser's buffer. A
    /// priming event has an empty one.
    pub data: Bytes,
    /// The last event id as of this event: its own, or else the one that an earlier event left.
    pub id: Option<Bytes>,
    /// The reconnection delay in milliseconds, if this event set one.
    pub retry: Option<u64>,
}

impl SseEvent {
    /// Returns whether the event is of the type that carries messages. Any other type, `error`
    /// included, is not for the protocol.
    pub fn is_message(&self) -> bool {
        self.event.as_ref().is_none_or(|event| event == MESSAGE)
    }
}

/// Why a stream cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// One line, or the data of one event, exceeds the limit.
    #[error("an event of the stream is larger than {limit} bytes")]
    TooLarge {
        /// The limit that was exceeded.
        limit: usize,
    },
}

/// Reads an event stream as its bytes arrive, per the WHATWG standard, "Server-sent events",
/// section 9.2.6.
///
/// The caller gives each chunk to [`push`](Self::push), then calls [`next`](Self::next) until it
/// gives `None`. An event without `data` is not dispatched, but its id and delay count: they show
/// in [`last_event_id`](Self::last_event_id) and [`retry`](Self::retry). So a million empty events
/// are not a million signs of life. An event that the stream's end cuts off is not dispatched, and
/// its id does not count.
#[derive(Debug)]
pub struct SseParser {
    max_event: usize,
    buffer: BytesMut,
    /// How many bytes at the front of the buffer are known to hold no line end.
    searched: usize,
    /// The buffer has, or had, an allocation worth giving back.
    oversized: bool,
    /// The place for a byte order mark has been passed.
    begun: bool,
    /// The last line ended in a carriage return, so that a line feed right after it is part of that
    /// end.
    after_carriage_return: bool,
    too_large: bool,
    pending: Pending,
    /// The id as read. It counts only when its event is complete.
    id: Option<Bytes>,
    last_event_id: Option<Bytes>,
    retry: Option<u64>,
}

/// The fields of the event being read.
#[derive(Debug, Default)]
struct Pending {
    event: Option<Bytes>,
    data: Data,
    retry: Option<u64>,
}

/// What a line is about.
#[derive(Debug, Clone, Copy)]
enum Field {
    Data,
    Event,
    Id,
    Retry,
    /// A comment has an empty name; the standard ignores it like every unknown field.
    Unknown,
}

impl Field {
    fn of(name: &[u8]) -> Self {
        match name {
            b"data" => Self::Data,
            b"event" => Self::Event,
            b"id" => Self::Id,
            b"retry" => Self::Retry,
            _ => Self::Unknown,
        }
    }
}

#[derive(Debug, Default)]
enum Data {
    #[default]
    Absent,
    One(Bytes),
    Joined(BytesMut),
}

impl Data {
    fn length(&self) -> usize {
        match self {
            Self::Absent => 0,
            Self::One(line) => line.len(),
            Self::Joined(lines) => lines.len(),
        }
    }
}

impl SseParser {
    /// Returns a parser for events of up to `max_event` bytes of data.
    pub fn new(max_event: usize) -> Self {
        Self {
            max_event,
            buffer: BytesMut::new(),
            searched: 0,
            oversized: false,
            begun: false,
            after_carriage_return: false,
            too_large: false,
            pending: Pending::default(),
            id: None,
            last_event_id: None,
            retry: None,
        }
    }

    /// Returns a parser for a stream that takes up another one, which stood at this event.
    pub fn resuming(max_event: usize, last_event_id: Option<Bytes>, retry: Option<u64>) -> Self {
        Self {
            id: last_event_id.clone(),
            last_event_id,
            retry,
            ..Self::new(max_event)
        }
    }

    /// Takes the next bytes of the stream. After an error they are dropped.
    pub fn push(&mut self, chunk: &[u8]) {
        if self.too_large {
            return;
        }
        if self.oversized && self.buffer.len() <= KEEP {
            // The large event has gone; what is left of its allocation goes too.
            self.buffer = BytesMut::from(&*self.buffer);
            self.oversized = false;
        }
        self.buffer.extend_from_slice(chunk);
        self.oversized |= self.buffer.capacity() > KEEP;
    }

    /// Returns the next event among the bytes pushed so far; `None` when more must come first.
    /// After an error there is only that error: behind an event of unknown length no other can be
    /// trusted.
    #[expect(
        clippy::should_implement_trait,
        reason = "after None comes more as soon as more is pushed, which adapters of Iterator do not expect"
    )]
    pub fn next(&mut self) -> Result<Option<SseEvent>, SseError> {
        if self.too_large {
            return Err(SseError::TooLarge {
                limit: self.max_event,
            });
        }
        while let Some(line) = self.next_line()? {
            if !line.is_empty() {
                self.handle_field(line)?;
            } else if let Some(event) = self.dispatch() {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Returns the id to resume from: that of the last complete event which had one, dispatched or
    /// not. `None` as well when a server took its id back by an empty one.
    pub fn last_event_id(&self) -> Option<&Bytes> {
        self.last_event_id.as_ref()
    }

    /// Returns the last reconnection delay the server named, in milliseconds.
    pub fn retry(&self) -> Option<u64> {
        self.retry
    }

    fn next_line(&mut self) -> Result<Option<Bytes>, SseError> {
        if !self.begun {
            if self.buffer.starts_with(BYTE_ORDER_MARK) {
                self.buffer.advance(BYTE_ORDER_MARK.len());
            } else if BYTE_ORDER_MARK.starts_with(&self.buffer) {
                return Ok(None);
            }
            self.begun = true;
        }
        if self.after_carriage_return
            && let Some(first) = self.buffer.first()
        {
            self.after_carriage_return = false;
            if *first == b'\n' {
                self.buffer.advance(1);
            }
        }
        let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
        let Some(offset) = memchr2(b'\r', b'\n', unsearched) else {
            self.searched = self.buffer.len();
            self.check_line(self.searched)?;
            return Ok(None);
        };
        let end = self.searched + offset;
        self.check_line(end)?;
        let line = self.buffer.split_to(end).freeze();
        self.after_carriage_return = self.buffer.first() == Some(&b'\r');
        self.buffer.advance(1);
        self.searched = 0;
        Ok(Some(line))
    }

    fn handle_field(&mut self, mut line: Bytes) -> Result<(), SseError> {
        let colon = memchr::memchr(b':', &line);
        let name = Field::of(line.get(..colon.unwrap_or(line.len())).unwrap_or_default());
        line.advance(colon.map_or(line.len(), |at| at + 1));
        if line.first() == Some(&b' ') {
            line.advance(1);
        }
        let value = line;
        match name {
            Field::Data => self.add_data(value)?,
            Field::Event => {
                self.pending.event = match value.as_ref() {
                    b"" => None,
                    b"message" => Some(Bytes::from_static(MESSAGE.as_bytes())),
                    other => Some(Bytes::copy_from_slice(other)),
                };
            }
            Field::Id if value.contains(&0) => {}
            // Copied, since the id outlives its event and must not keep the whole buffer alive.
            Field::Id if value.is_empty() || value.len() > MAX_ID => self.id = None,
            Field::Id => self.id = Some(Bytes::copy_from_slice(&value)),
            Field::Retry => {
                if let Some(delay) = milliseconds(&value) {
                    self.retry = Some(delay);
                    self.pending.retry = Some(delay);
                }
            }
            Field::Unknown => {}
        }
        Ok(())
    }

    fn add_data(&mut self, line: Bytes) -> Result<(), SseError> {
        let separator = match self.pending.data {
            Data::Absent => 0,
            Data::One(_) | Data::Joined(_) => 1,
        };
        if self.pending.data.length() + separator + line.len() > self.max_event {
            return Err(self.refuse());
        }
        self.pending.data = match std::mem::take(&mut self.pending.data) {
            Data::Absent => Data::One(line),
            Data::One(first) => Data::Joined(join(BytesMut::from(&*first), &line)),
            Data::Joined(lines) => Data::Joined(join(lines, &line)),
        };
        Ok(())
    }

    fn dispatch(&mut self) -> Option<SseEvent> {
        self.last_event_id.clone_from(&self.id);
        let Pending { event, data, retry } = std::mem::take(&mut self.pending);
        let data = match data {
            Data::Absent => return None,
            Data::One(line) => line,
            Data::Joined(lines) => lines.freeze(),
        };
        Some(SseEvent {
            event,
            data,
            id: self.last_event_id.clone(),
            retry,
        })
    }

    /// A line may be as long as the longest data with its field name; of no other field is so much
    /// wanted.
    fn check_line(&mut self, length: usize) -> Result<(), SseError> {
        if length > self.max_event.saturating_add(b"data: ".len()) {
            Err(self.refuse())
        } else {
            Ok(())
        }
    }

    fn refuse(&mut self) -> SseError {
        self.too_large = true;
        self.buffer = BytesMut::new();
        self.searched = 0;
        self.pending = Pending::default();
        SseError::TooLarge {
            limit: self.max_event,
        }
    }
}

fn join(mut lines: BytesMut, line: &[u8]) -> BytesMut {
    lines.put_u8(b'\n');
    lines.put_slice(line);
    lines
}

/// Returns the value of a `retry` field: ASCII digits only. A number past `u64` is ignored.
fn milliseconds(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0_u64, |sum, digit| match digit {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
