//! Finds the id in a line that is too long to keep, so that its call can fail.

use bytes::Bytes;
use memchr::memchr2;

/// The longest raw `id` that is remembered of an over-long line. Ids towards a child are the
/// bridge's own and far shorter.
const MAX_ID: usize = 256;

/// The longest way to write `method` as a key: six characters, each as `\u00XX`.
const MAX_KEY: usize = 36;

/// Finds the top-level `id` and `method` of a JSON object that is never held as a whole.
///
/// It is fed chunk by chunk, does not recurse, and keeps one key and one id, both bounded. It is no
/// validator: it is strict about the members of the outermost object, since a wrong id would end
/// another caller's call, and below them it only counts brackets and strings.
#[derive(Debug, Default)]
pub struct EnvelopeSeeker {
    position: Position,
    /// The last byte of the previous chunk was a backslash that escapes the first of the next.
    escaped: bool,
    /// Open brackets inside the current member's value.
    depth: u64,
    key: Key,
    member: Member,
    id: Id,
    method: bool,
}

/// Where in the line the seeker stands.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Position {
    #[default]
    BeforeObject,
    FirstKeyOrEnd,
    BeforeKey,
    InKey,
    BeforeColon,
    BeforeValue,
    InString,
    InScalar,
    InNested,
    InNestedString,
    AfterValue,
    AfterObject,
    /// This is no JSON object; nothing found in it counts.
    Broken,
}

/// Which member of the outermost object the seeker is in.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Member {
    Id,
    Method,
    #[default]
    Other,
}

/// What is known of the top-level `id`.
#[derive(Debug, Default)]
enum Id {
    #[default]
    Absent,
    Raw(Vec<u8>),
    /// Too long, of another type, or there twice.
    Unusable,
}

impl Id {
    /// Adds to the id while it is usable; past the bound it is given up, not cut.
    fn extend(&mut self, bytes: &[u8]) {
        match self {
            Self::Raw(raw) if raw.len() + bytes.len() <= MAX_ID => raw.extend_from_slice(bytes),
            Self::Raw(_) => *self = Self::Unusable,
            Self::Absent | Self::Unusable => {}
        }
    }
}

impl EnvelopeSeeker {
    /// Takes the next bytes of the line.
    pub fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some((&byte, after)) = rest.split_first() {
            rest = match self.position {
                Position::InKey | Position::InString | Position::InNestedString => self.string(rest),
                Position::InNested => self.nested(rest),
                // The byte that ends a scalar belongs to the object and is looked at again.
                Position::InScalar if matches!(byte, b',' | b'}' | b' ' | b'\t' | b'\n' | b'\r') => {
                    self.position = Position::AfterValue;
                    rest
                }
                Position::Broken => return,
                Position::BeforeObject
                | Position::FirstKeyOrEnd
                | Position::BeforeKey
                | Position::BeforeColon
                | Position::BeforeValue
                | Position::InScalar
                | Position::AfterValue
                | Position::AfterObject => {
                    self.step(byte);
                    after
                }
            };
        }
    }

    /// Returns whether the bytes so far can still be the beginning of a JSON object.
    pub fn may_be_message(&self) -> bool {
        self.position != Position::Broken
    }

    /// The line has ended: the raw `id`, and whether there was a `method`. A line that is no
    /// complete object has neither.
    pub fn finish(self) -> (Option<Bytes>, bool) {
        if self.position != Position::AfterObject {
            return (None, false);
        }
        match self.id {
            // The id is quoted in the error, so an id that is no JSON would make the error invalid.
            Id::Raw(raw) if serde_json::from_slice::<&serde_json::value::RawValue>(&raw).is_ok() => {
                (Some(Bytes::from(raw)), self.method)
            }
            Id::Absent | Id::Raw(_) | Id::Unusable => (None, self.method),
        }
    }

    /// One byte of the outermost object, outside strings and nested values.
    fn step(&mut self, byte: u8) {
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            return;
        }
        self.position = match (self.position, byte) {
            (Position::BeforeObject, b'{') => Position::FirstKeyOrEnd,
            (Position::FirstKeyOrEnd | Position::AfterValue, b'}') => Position::AfterObject,
            (Position::FirstKeyOrEnd | Position::BeforeKey, b'"') => {
                self.key = Key::default();
                Position::InKey
            }
            (Position::BeforeColon, b':') => Position::BeforeValue,
            (Position::BeforeValue, _) => self.begin_value(byte),
            (Position::InScalar, b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'+' | b'-' | b'.') => {
                self.capture(&[byte]);
                Position::InScalar
            }
            (Position::AfterValue, b',') => Position::BeforeKey,
            (_, _) => Position::Broken,
        };
    }

    fn begin_value(&mut self, byte: u8) -> Position {
        let (position, usable_as_id) = match byte {
            b'"' => (Position::InString, true),
            b'-' | b'0'..=b'9' => (Position::InScalar, true),
            b't' | b'f' | b'n' => (Position::InScalar, false),
            b'{' | b'[' => (Position::InNested, false),
            _ => return Position::Broken,
        };
        match self.member {
            Member::Id => {
                // Of two ids either could be the one the server meant, so neither is believed.
                self.id = match self.id {
                    Id::Absent if usable_as_id => Id::Raw(vec![byte]),
                    Id::Absent | Id::Raw(_) | Id::Unusable => Id::Unusable,
                };
            }
            Member::Method => self.method = true,
            Member::Other => {}
        }
        self.depth = u64::from(position == Position::InNested);
        position
    }

    fn capture(&mut self, bytes: &[u8]) {
        match self.member {
            Member::Id => self.id.extend(bytes),
            Member::Method | Member::Other => {}
        }
    }

    /// The inside of a string, up to its closing quote or the end of the chunk; gives what follows.
    fn string<'chunk>(&mut self, chunk: &'chunk [u8]) -> &'chunk [u8] {
        let mut from = usize::from(std::mem::take(&mut self.escaped));
        let quote = loop {
            let Some(offset) = memchr2(b'"', b'\\', chunk.get(from..).unwrap_or_default()) else {
                break None;
            };
            let at = from + offset;
            if chunk.get(at) == Some(&b'"') {
                break Some(at);
            }
            from = at + 2;
            if from > chunk.len() {
                self.escaped = true;
                break None;
            }
        };
        let (inside, rest) = chunk.split_at(quote.map_or(chunk.len(), |at| at + 1));
        match self.position {
            Position::InKey => {
                self.key.extend(inside);
                if quote.is_some() {
                    self.member = self.key.member();
                    self.position = Position::BeforeColon;
                }
            }
            Position::InString => {
                self.capture(inside);
                if quote.is_some() {
                    self.position = Position::AfterValue;
                }
            }
            Position::InNestedString => {
                if quote.is_some() {
                    self.position = Position::InNested;
                }
            }
            Position::BeforeObject
            | Position::FirstKeyOrEnd
            | Position::BeforeKey
            | Position::BeforeColon
            | Position::BeforeValue
            | Position::InScalar
            | Position::InNested
            | Position::AfterValue
            | Position::AfterObject
            | Position::Broken => self.position = Position::Broken,
        }
        rest
    }

    /// The inside of a nested value outside its strings; gives what follows the string's opening
    /// quote or the value's last bracket.
    fn nested<'chunk>(&mut self, chunk: &'chunk [u8]) -> &'chunk [u8] {
        for (at, byte) in chunk.iter().enumerate() {
            match byte {
                b'"' => self.position = Position::InNestedString,
                b'{' | b'[' => {
                    self.depth += 1;
                    continue;
                }
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth > 0 {
                        continue;
                    }
                    self.position = Position::AfterValue;
                }
                _ => continue,
            }
            return chunk.get(at + 1..).unwrap_or_default();
        }
        &[]
    }
}

/// The raw bytes of a key with its closing quote, as far as they can still spell a name that
/// matters.
#[derive(Debug)]
struct Key {
    raw: [u8; MAX_KEY + 1],
    /// May pass the array's length: then the key is none of Rialto's.
    length: usize,
}

impl Default for Key {
    fn default() -> Self {
        Self {
            raw: [0; MAX_KEY + 1],
            length: 0,
        }
    }
}

impl Key {
    fn extend(&mut self, bytes: &[u8]) {
        let end = self.length.saturating_add(bytes.len());
        if let Some(room) = self.raw.get_mut(self.length..end) {
            room.copy_from_slice(bytes);
        }
        self.length = end;
    }

    fn member(&self) -> Member {
        let Some(raw) = self
            .length
            .checked_sub(1)
            .and_then(|length| self.raw.get(..length))
        else {
            return Member::Other;
        };
        if spells(raw, b"id") {
            Member::Id
        } else if spells(raw, b"method") {
            Member::Method
        } else {
            Member::Other
        }
    }
}

/// Returns whether the raw inside of a JSON string means `name`, a word of ASCII letters. A letter
/// can be written as itself or as `\u00XX`; the other escapes mean no letter.
fn spells(raw: &[u8], name: &[u8]) -> bool {
    let mut rest = raw;
    for letter in name {
        rest = match rest {
            [b'\\', b'u', b'0', b'0', high, low, after @ ..] => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) if high * 16 + low == *letter => after,
                (_, _) => return false,
            },
            [byte, after @ ..] if byte == letter => after,
            _ => return false,
        };
    }
    rest.is_empty()
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests;
