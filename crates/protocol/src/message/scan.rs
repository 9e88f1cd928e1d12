//! The one pass over a message's bytes.

mod members;

use bytes::Bytes;
use thiserror::Error;

use super::{Kind, Member, Message, Span, string};
use crate::method::Method;
use members::{Place, find, name};

/// Levels of nesting that a message may have: what lies deeper could overflow a server's stack.
pub const MAX_DEPTH: usize = 128;

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ScanError {
    #[error("the message is not valid UTF-8")]
    NotUtf8,
    #[error("the message is not valid JSON (at byte {at})")]
    NotJson { at: usize },
    #[error("the message is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("JSON-RPC batching is not supported")]
    Batch,
    #[error("the message is not a JSON object")]
    NotObject,
    #[error("the member `{0}` stands twice in the message")]
    Duplicate(&'static str),
    #[error("the message is no JSON-RPC request, notification or response")]
    NotJsonRpc,
    #[error("the message is too large")]
    TooLarge,
}

pub(super) fn scan(bytes: Bytes) -> Result<Message, ScanError> {
    if bytes.len() >= u32::MAX as usize {
        return Err(ScanError::TooLarge);
    }
    if std::str::from_utf8(&bytes).is_err() {
        return Err(ScanError::NotUtf8);
    }
    let mut scanner = Scanner {
        bytes: &bytes,
        at: 0,
        line_breaks: false,
        spans: [Span::default(); Member::COUNT],
    };
    scanner.skip_space();
    match scanner.peek() {
        Some(b'{') => scanner.object(Place::Envelope, 1)?,
        Some(_) => {
            let array = scanner.peek() == Some(b'[');
            scanner.value(0)?;
            scanner.end()?;
            return Err(if array {
                ScanError::Batch
            } else {
                ScanError::NotObject
            });
        }
        None => return Err(scanner.not_json()),
    }
    scanner.end()?;
    let Scanner {
        line_breaks, spans, ..
    } = scanner;

    let has = |member: Member| !spans[member as usize].is_absent();
    let kind = match (
        has(Member::Method),
        has(Member::Id),
        has(Member::Result),
        has(Member::Error),
    ) {
        (true, true, false, false) => Kind::Request,
        (true, false, false, false) => Kind::Notification,
        (false, true, true, false) => Kind::Result,
        (false, _, false, true) => Kind::Error,
        _ => return Err(ScanError::NotJsonRpc),
    };
    let method = if has(Member::Method) {
        let name = string(spans[Member::Method as usize].of(&bytes)).ok_or(ScanError::NotJsonRpc)?;
        Method::parse(&name)
    } else {
        Method::Other
    };
    Ok(Message {
        spans,
        kind,
        method,
        line_breaks,
        bytes,
    })
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    line_breaks: bool,
    spans: [Span; Member::COUNT],
}

impl Scanner<'_> {
    fn not_json(&self) -> ScanError {
        ScanError::NotJson { at: self.at }
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    fn skip_space(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' => {}
                b'\n' | b'\r' => self.line_breaks = true,
                _ => return,
            }
            self.at += 1;
        }
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Result<(), ScanError> {
        if self.peek() != Some(byte) {
            return Err(self.not_json());
        }
        self.at += 1;
        Ok(())
    }

    fn end(&mut self) -> Result<(), ScanError> {
        self.skip_space();
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(self.not_json())
        }
    }

    /// Reads an object whose members matter. It calls itself for `params` and `params._meta` only, so the
    /// stack is never deeper than three frames whatever the sender wrote.
    fn object(&mut self, place: Place, depth: usize) -> Result<(), ScanError> {
        self.expect(b'{')?;
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.skip_space();
            let (key, escaped) = self.key()?;
            let member = self.member(place, key, escaped);
            self.skip_space();
            self.expect(b':')?;
            self.skip_space();
            let start = self.at;
            match member {
                Some(Member::Params) if self.peek() == Some(b'{') => self.object(Place::Params, depth + 1)?,
                Some(Member::Meta) if self.peek() == Some(b'{') => self.object(Place::Meta, depth + 1)?,
                Some(_) | None => self.value(depth)?,
            }
            if let Some(member) = member {
                let span = &mut self.spans[member as usize];
                if !span.is_absent() {
                    return Err(ScanError::Duplicate(name(member)));
                }
                *span = Span::new(start, self.at);
            }
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(_) | None => return Err(self.not_json()),
            }
        }
    }

    /// Reads a key and gives its place, quotes included, and whether it is written with escapes.
    fn key(&mut self) -> Result<(Span, bool), ScanError> {
        let start = self.at;
        self.expect(b'"')?;
        let escaped = self.string()?;
        Ok((Span::new(start, self.at), escaped))
    }

    /// A key may be written with escapes (`"\u0069d"`); servers read it as the plain key, so we do too.
    #[inline]
    fn member(&self, place: Place, key: Span, escaped: bool) -> Option<Member> {
        let raw = key.of(self.bytes);
        if escaped {
            return find(place, string(raw)?.as_bytes());
        }
        find(place, raw.get(1..raw.len() - 1).unwrap_or_default())
    }

    /// Reads past any value, without recursion: which containers are open is kept in one bit each.
    fn value(&mut self, depth: usize) -> Result<(), ScanError> {
        let mut open = Open {
            bits: 0,
            depth: 0,
            limit: MAX_DEPTH.saturating_sub(depth),
        };
        loop {
            // A value is due here.
            self.skip_space();
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    self.string()?;
                }
                Some(b'{') => {
                    self.at += 1;
                    open.push(true)?;
                    self.skip_space();
                    if self.peek() == Some(b'}') {
                        self.at += 1;
                        open.pop();
                    } else {
                        self.colon_after_key()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    self.at += 1;
                    open.push(false)?;
                    self.skip_space();
                    if self.peek() == Some(b']') {
                        self.at += 1;
                        open.pop();
                    } else {
                        continue;
                    }
                }
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(_) | None => return Err(self.not_json()),
            }
            // A value has ended: close what closes here, or go on to the next one.
            loop {
                let Some(in_object) = open.top() else {
                    return Ok(());
                };
                self.skip_space();
                match (self.peek(), in_object) {
                    (Some(b','), true) => {
                        self.at += 1;
                        self.skip_space();
                        self.colon_after_key()?;
                        break;
                    }
                    (Some(b','), false) => {
                        self.at += 1;
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        self.at += 1;
                        open.pop();
                    }
                    _ => return Err(self.not_json()),
                }
            }
        }
    }

    fn colon_after_key(&mut self) -> Result<(), ScanError> {
        self.key()?;
        self.skip_space();
        self.expect(b':')
    }

    fn word(&mut self, word: &[u8]) -> Result<(), ScanError> {
        if self.bytes[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(())
        } else {
            Err(self.not_json())
        }
    }

    fn digits(&mut self) -> Result<(), ScanError> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start {
            Err(self.not_json())
        } else {
            Ok(())
        }
    }

    fn number(&mut self) -> Result<(), ScanError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// Reads the rest of a string, its opening quote already taken. Gives whether there are escapes in it.
    fn string(&mut self) -> Result<bool, ScanError> {
        let mut escaped = false;
        loop {
            self.at += plain_prefix(&self.bytes[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                // Control characters, line breaks among them, must be escaped.
                Some(_) | None => return Err(self.not_json()),
            }
        }
    }

    fn escape(&mut self) -> Result<(), ScanError> {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') => {
                let hex = self.bytes.get(self.at + 2..self.at + 6);
                if !hex.is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) {
                    return Err(self.not_json());
                }
                self.at += 6;
            }
            Some(_) | None => return Err(self.not_json()),
        }
        Ok(())
    }
}

/// How many bytes of a string can be passed over without a look: no quote, backslash or control character.
#[inline]
fn plain_prefix(bytes: &[u8]) -> usize {
    /// Most strings end within so many words, before the engines for long ones would have started.
    const WORDS: usize = 4;
    let (words, _) = bytes.as_chunks::<WORD>();
    let mut at = 0;
    for word in words.iter().take(WORDS) {
        let special = specials(u64::from_le_bytes(*word));
        if special != 0 {
            return at + special.trailing_zeros() as usize / 8;
        }
        at += WORD;
    }
    if words.len() > WORDS {
        return at + long_prefix(&bytes[at..]);
    }
    at + bytes[at..]
        .iter()
        .position(|&byte| is_control(byte) || matches!(byte, b'"' | b'\\'))
        .unwrap_or(bytes.len() - at)
}

const WORD: usize = size_of::<u64>();

/// Marks the quotes, backslashes and control characters among eight bytes with their highest bits. A mark may be wrong
/// above another one, since a subtraction can borrow from there; the lowest is always right.
#[inline]
fn specials(word: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; WORD]);
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word;
    let quotes = zeros(word ^ (ONES * b'"' as u64));
    let backslashes = zeros(word ^ (ONES * b'\\' as u64));
    let controls = word.wrapping_sub(ONES * FIRST_PLAIN as u64) & !word;
    (quotes | backslashes | controls) & (ONES * 0x80)
}

/// The same for what is known to be long.
fn long_prefix(bytes: &[u8]) -> usize {
    /// What is searched for ends is searched for control characters while it is still in the nearest cache.
    const BLOCK: usize = 8 << 10;
    let mut at = 0;
    for block in bytes.chunks(BLOCK) {
        let end = memchr::memchr2(b'"', b'\\', block);
        let plain = &block[..end.unwrap_or(block.len())];
        // The smallest byte of all is found in a loop that compilers turn into vector instructions.
        if is_control(plain.iter().fold(u8::MAX, |least, &byte| least.min(byte))) {
            return at + plain.iter().take_while(|&&byte| !is_control(byte)).count();
        }
        at += plain.len();
        if end.is_some() {
            break;
        }
    }
    at
}

/// The first character that is no control character.
const FIRST_PLAIN: u8 = 0x20;

const fn is_control(byte: u8) -> bool {
    byte < FIRST_PLAIN
}

/// The stack of open containers, one bit each: set for an object.
struct Open {
    bits: u128,
    depth: usize,
    limit: usize,
}

impl Open {
    fn push(&mut self, object: bool) -> Result<(), ScanError> {
        if self.depth >= self.limit {
            return Err(ScanError::TooDeep);
        }
        self.bits = (self.bits << 1) | u128::from(object);
        self.depth += 1;
        Ok(())
    }

    fn pop(&mut self) {
        self.bits >>= 1;
        self.depth -= 1;
    }

    fn top(&self) -> Option<bool> {
        (self.depth > 0).then_some(self.bits & 1 == 1)
    }
}

#[cfg(test)]
mod tests;
