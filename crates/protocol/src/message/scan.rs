//! The one pass over a message's bytes.

mod members;

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use super::{Kind, Member, Message, Scanned, Span, Spans, string};
use crate::error_code;
use crate::method::Method;
use members::{Container, find, name};

/// Levels of nesting that a message may have: what lies deeper could overflow a server's stack.
pub const MAX_DEPTH: usize = 128;

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ScanError {
    /// Some bytes are no UTF-8.
    #[error("the message is not valid UTF-8")]
    NotUtf8,
    /// It is not well-formed JSON.
    #[error("the message is not valid JSON (at byte {at})")]
    NotJson {
        /// The first byte that is wrong.
        at: usize,
    },
    /// Objects and arrays are nested beyond [`MAX_DEPTH`].
    #[error("the message is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// It is an array.
    #[error("JSON-RPC batching is not supported")]
    Batch,
    /// It is JSON, but no object.
    #[error("the message is not a JSON object")]
    NotObject,
    /// A member that matters stands twice.
    #[error("the member `{0}` stands twice in the message")]
    Duplicate(&'static str),
    /// The members do not make up a JSON-RPC message.
    #[error("the message is no JSON-RPC request, notification or response")]
    NotJsonRpc,
    /// It has 4 GiB or more.
    #[error("the message is too large")]
    TooLarge,
}

impl ScanError {
    /// Returns the JSON-RPC error code for the sender of such bytes.
    pub const fn code(self) -> i32 {
        match self {
            Self::NotUtf8 | Self::NotJson { .. } | Self::TooDeep | Self::TooLarge => error_code::PARSE_ERROR,
            Self::Batch | Self::NotObject | Self::Duplicate(_) | Self::NotJsonRpc => {
                error_code::INVALID_REQUEST
            }
        }
    }
}

pub(super) fn scan(bytes: Bytes) -> Result<Message, ScanError> {
    if bytes.len() >= u32::MAX as usize {
        return Err(ScanError::TooLarge);
    }
    let mut scanner = Scanner {
        bytes: &bytes,
        at: 0,
        line_breaks: false,
        beyond_ascii: false,
        spans: Spans::default(),
    };
    let envelope = scanner.envelope();
    // Outside of strings JSON is ASCII, and most of it is inside too: then there is nothing more to
    // look at.
    if (scanner.beyond_ascii || envelope.is_err()) && std::str::from_utf8(&bytes).is_err() {
        return Err(ScanError::NotUtf8);
    }
    envelope?;
    let Scanner {
        line_breaks, spans, ..
    } = scanner;

    let has = |member: Member| !spans.get(member).is_absent();
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
        method(spans.get(Member::Method).of(&bytes)).ok_or(ScanError::NotJsonRpc)?
    } else {
        Method::Other
    };
    Ok(Message(Arc::new(Scanned {
        spans,
        kind,
        method,
        line_breaks,
        alone: false,
        bytes,
    })))
}

/// Returns the method of this name, which must be a string; it may be written with escapes.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "a method that is known has no escapes"
)]
fn method(raw: &[u8]) -> Option<Method> {
    let plain = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    match Method::parse(plain) {
        Method::Other if memchr::memchr(b'\\', plain).is_some() => {
            string(raw).map(|name| Method::parse(name.as_bytes()))
        }
        known => Some(known),
    }
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    line_breaks: bool,
    /// A string has bytes that are not ASCII.
    beyond_ascii: bool,
    spans: Spans,
}

impl<'a> Scanner<'a> {
    /// Reads the whole message.
    fn envelope(&mut self) -> Result<(), ScanError> {
        self.skip_space();
        match self.peek() {
            Some(b'{') => {
                self.object(Container::Envelope, 1)?;
                self.end()
            }
            Some(first) => {
                self.value(0)?;
                self.end()?;
                Err(match first {
                    b'[' => ScanError::Batch,
                    _ => ScanError::NotObject,
                })
            }
            None => Err(self.not_json()),
        }
    }

    fn not_json(&self) -> ScanError {
        ScanError::NotJson { at: self.at }
    }

    /// Returns what was not read yet.
    #[inline]
    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
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

    /// Reads an object whose members matter. It calls itself for `params` and `params._meta` only,
    /// so the stack is never deeper than three frames for any input.
    fn object(&mut self, container: Container, depth: usize) -> Result<(), ScanError> {
        self.expect(b'{')?;
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.skip_space();
            let member = self.member(container)?;
            self.skip_space();
            self.expect(b':')?;
            self.skip_space();
            let start = self.at;
            match member {
                Some(Member::Params) if self.peek() == Some(b'{') => {
                    self.object(Container::Params, depth + 1)?
                }
                Some(Member::Meta) if self.peek() == Some(b'{') => self.object(Container::Meta, depth + 1)?,
                Some(_) | None => self.value(depth)?,
            }
            if let Some(member) = member {
                if !self.spans.get(member).is_absent() {
                    return Err(ScanError::Duplicate(name(member)));
                }
                self.spans.set(member, Span::new(start, self.at));
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

    /// Reads a key, and gives the member it names. It may be written with escapes (`"\u0069d"`):
    /// servers read that as the plain key, so we do too.
    #[inline]
    fn member(&mut self, container: Container) -> Result<Option<Member>, ScanError> {
        let start = self.at;
        self.expect(b'"')?;
        let spelling = self.string()?;
        Ok(match spelling {
            Spelling::Plain => {
                let key = self.bytes.get(start + 1..self.at - 1);
                key.and_then(|key| find(container, key))
            }
            Spelling::Escaped => {
                let key = self.bytes.get(start..self.at).and_then(string);
                key.and_then(|key| find(container, key.as_bytes()))
            }
        })
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
        self.expect(b'"')?;
        self.string()?;
        self.skip_space();
        self.expect(b':')
    }

    fn word(&mut self, word: &[u8]) -> Result<(), ScanError> {
        if self.rest().starts_with(word) {
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

    /// Reads the rest of a string, its opening quote already taken.
    #[inline]
    fn string(&mut self) -> Result<Spelling, ScanError> {
        let mut spelling = Spelling::Plain;
        loop {
            self.pass_plain();
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(spelling);
                }
                Some(b'\\') => {
                    spelling = Spelling::Escaped;
                    self.escape()?;
                }
                // Control characters, line breaks among them, must be escaped.
                Some(_) | None => return Err(self.not_json()),
            }
        }
    }

    /// Passes over what needs no look in a string: everything up to the next quote, backslash or
    /// control character.
    #[inline]
    fn pass_plain(&mut self) {
        let mut words = 0;
        while let Some(eight) = self.rest().first_chunk() {
            let word = u64::from_le_bytes(*eight);
            let special = special_bytes(word);
            // What stands behind the first special byte is none of this string's.
            let before_special = (special & special.wrapping_neg()).wrapping_sub(1);
            self.beyond_ascii |= word & HIGH_BITS & before_special != 0;
            if special != 0 {
                self.at += (special.trailing_zeros() / 8) as usize;
                return;
            }
            self.at += 8;
            words += 1;
            // Most strings are short; for the others the engine is started.
            if words == 4 {
                self.pass_plain_blocks();
            }
        }
        while let Some(byte) = self.peek().filter(|&byte| !is_special(byte)) {
            self.beyond_ascii |= !byte.is_ascii();
            self.at += 1;
        }
    }

    /// The same for a long string, by searches that use vector instructions: for its end, then for
    /// control characters and for what is beyond ASCII while that part is still in the nearest
    /// cache.
    fn pass_plain_blocks(&mut self) {
        const BLOCK: usize = 8 << 10;
        for block in self.rest().chunks(BLOCK) {
            let end = memchr::memchr2(b'"', b'\\', block);
            let plain = end.and_then(|end| block.get(..end)).unwrap_or(block);
            let (least, all) = plain
                .iter()
                .fold((u8::MAX, 0), |(least, all), &byte| (byte.min(least), all | byte));
            if is_special(least) {
                // A control character: the scan byte by byte finds it and refuses the string.
                return;
            }
            self.beyond_ascii |= !all.is_ascii();
            self.at += plain.len();
            if end.is_some() {
                return;
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

/// How a string is written.
enum Spelling {
    /// As it is read.
    Plain,
    Escaped,
}

/// What ends the plain part of a string.
fn is_special(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\')
}

const LOW_BITS: u64 = u64::from_ne_bytes([0x01; 8]);
const HIGH_BITS: u64 = u64::from_ne_bytes([0x80; 8]);

/// The same for eight bytes at once: the lowest high bit that is set belongs to the first special
/// byte. (Subtracting borrows from the next byte only if this one was small enough, so that what is
/// wrong can only be above what is right.)
fn special_bytes(word: u64) -> u64 {
    let below = |word: u64, limit: u8| word.wrapping_sub(LOW_BITS * u64::from(limit)) & !word & HIGH_BITS;
    let is = |byte: u8| below(word ^ (LOW_BITS * u64::from(byte)), 1);
    below(word, 0x20) | is(b'"') | is(b'\\')
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
