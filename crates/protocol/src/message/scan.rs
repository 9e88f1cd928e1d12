//! The one pass over a message's bytes.

use bytes::Bytes;
use thiserror::Error;

use super::{Kind, Member, Message, Span, string};
use crate::method::Method;

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

/// The objects whose members are looked at.
#[derive(Clone, Copy)]
enum Place {
    Envelope,
    Params,
    Meta,
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
            let key = self.key()?;
            let member = self.member(place, key);
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

    /// Reads a key and gives its place, quotes included.
    fn key(&mut self) -> Result<Span, ScanError> {
        let start = self.at;
        self.expect(b'"')?;
        self.string()?;
        Ok(Span::new(start, self.at))
    }

    /// A key may be written with escapes (`"\u0069d"`); servers read it as the plain key, so we do too.
    #[inline]
    fn member(&self, place: Place, key: Span) -> Option<Member> {
        let raw = key.of(self.bytes);
        let plain = raw.get(1..raw.len() - 1).unwrap_or_default();
        if memchr::memchr(b'\\', plain).is_some() {
            return find(place, string(raw)?.as_bytes());
        }
        find(place, plain)
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

    /// Reads the rest of a string, its opening quote already taken.
    fn string(&mut self) -> Result<(), ScanError> {
        loop {
            self.at += plain_prefix(&self.bytes[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
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
/// Whole blocks are judged at once, in a form that compilers turn into vector instructions.
#[inline]
fn plain_prefix(bytes: &[u8]) -> usize {
    const BLOCK: usize = 32;
    let special = |byte: u8| (byte < 0x20) | (byte == b'"') | (byte == b'\\');
    let mut at = 0;
    // Most strings are short: look at the first bytes one by one before starting the engine.
    while at < BLOCK / 2 {
        match bytes.get(at) {
            Some(&byte) if !special(byte) => at += 1,
            Some(_) | None => return at,
        }
    }
    let mut blocks = bytes[at..].chunks_exact(BLOCK);
    for block in blocks.by_ref() {
        if block.iter().fold(false, |any, &byte| any | special(byte)) {
            break;
        }
        at += BLOCK;
    }
    at + bytes[at..]
        .iter()
        .position(|&byte| special(byte))
        .unwrap_or(bytes.len() - at)
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

const MEMBERS: [(Place, &str, Member); Member::COUNT] = [
    (Place::Envelope, "jsonrpc", Member::JsonRpc),
    (Place::Envelope, "id", Member::Id),
    (Place::Envelope, "method", Member::Method),
    (Place::Envelope, "params", Member::Params),
    (Place::Envelope, "result", Member::Result),
    (Place::Envelope, "error", Member::Error),
    (Place::Params, "name", Member::Name),
    (Place::Params, "uri", Member::Uri),
    (Place::Params, "_meta", Member::Meta),
    (Place::Params, "progressToken", Member::ProgressToken),
    (Place::Params, "requestId", Member::RequestId),
    (Place::Params, "level", Member::Level),
    (Place::Params, "protocolVersion", Member::ProtocolVersion),
    (Place::Params, "capabilities", Member::Capabilities),
    (Place::Params, "clientInfo", Member::ClientInfo),
    (Place::Meta, "progressToken", Member::MetaProgressToken),
    (
        Place::Meta,
        "io.modelcontextprotocol/protocolVersion",
        Member::MetaProtocolVersion,
    ),
    (
        Place::Meta,
        "io.modelcontextprotocol/clientCapabilities",
        Member::MetaClientCapabilities,
    ),
    (
        Place::Meta,
        "io.modelcontextprotocol/clientInfo",
        Member::MetaClientInfo,
    ),
    (
        Place::Meta,
        "io.modelcontextprotocol/logLevel",
        Member::MetaLogLevel,
    ),
    (
        Place::Meta,
        "io.modelcontextprotocol/subscriptionId",
        Member::MetaSubscriptionId,
    ),
];

fn find(place: Place, key: &[u8]) -> Option<Member> {
    let range = match place {
        Place::Envelope => &MEMBERS[..6],
        Place::Params => &MEMBERS[6..15],
        Place::Meta => &MEMBERS[15..],
    };
    range
        .iter()
        .find(|(_, text, _)| text.as_bytes() == key)
        .map(|(_, _, member)| *member)
}

fn name(member: Member) -> &'static str {
    MEMBERS[member as usize].1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scan_text(text: impl AsRef<[u8]>) -> Result<Message, ScanError> {
        scan(Bytes::copy_from_slice(text.as_ref()))
    }

    #[test]
    fn every_member_is_listed_at_its_own_index() {
        for (index, (place, _, member)) in MEMBERS.iter().enumerate() {
            assert_eq!(index, *member as usize);
            let slice = match place {
                Place::Envelope => 0..6,
                Place::Params => 6..15,
                Place::Meta => 15..Member::COUNT,
            };
            assert!(slice.contains(&index));
        }
    }

    #[test]
    fn kinds_are_told_apart() {
        let kind = |text: &str| scan_text(text).map(|message| message.kind());
        assert_eq!(
            kind(r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#),
            Ok(Kind::Request)
        );
        assert_eq!(kind(r#"{"jsonrpc":"2.0","method":"x"}"#), Ok(Kind::Notification));
        assert_eq!(kind(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), Ok(Kind::Result));
        assert_eq!(kind(r#"{"jsonrpc":"2.0","id":1,"error":{}}"#), Ok(Kind::Error));
        assert_eq!(kind(r#"{"jsonrpc":"2.0","id":1}"#), Err(ScanError::NotJsonRpc));
        assert_eq!(
            kind(r#"{"id":1,"method":"x","result":1}"#),
            Err(ScanError::NotJsonRpc)
        );
        assert_eq!(kind(r#"{"id":1,"method":7}"#), Err(ScanError::NotJsonRpc));
        assert_eq!(kind("[]"), Err(ScanError::Batch));
        assert_eq!(kind("null"), Err(ScanError::NotObject));
    }

    #[test]
    fn broken_json_is_refused() {
        for text in [
            "",
            "{",
            r#"{"jsonrpc":"#,
            r#"{"id":01,"method":"x"}"#,
            r#"{"id":1,}"#,
            r#"{"a" 1}"#,
            r#"{"a":1 "b":2}"#,
            "{\"a\":\"\n\"}",
            "{\"a\":\"\u{0}\"}",
            r#"{"a":"\x"}"#,
            r#"{"a":"\u12g4"}"#,
            r#"{"a":tru}"#,
            r#"{"a":1}}"#,
            r#"{"a":[1,]}"#,
            r#"{"a":[}"#,
            r#"{"a":-}"#,
            r#"{"a":1.}"#,
            r#"{"a":1e}"#,
            "\u{feff}{}",
        ] {
            assert!(
                matches!(scan_text(text), Err(ScanError::NotJson { .. })),
                "{text:?}"
            );
        }
        assert_eq!(scan_text(b"{\"a\":\"\xff\xfe\"}").err(), Some(ScanError::NotUtf8));
    }

    #[test]
    fn doubled_members_are_refused_however_they_are_spelt() {
        for (text, member) in [
            (r#"{"id":1,"id":2,"method":"x"}"#, "id"),
            (r#"{"id":1,"method":"x","\u006dethod":"y"}"#, "method"),
            (
                r#"{"id":1,"method":"x","params":{"name":"a","name":"b"}}"#,
                "name",
            ),
            (
                r#"{"id":1,"method":"x","params":{"uri":"a","u\u0072i":"b"}}"#,
                "uri",
            ),
            (
                r#"{"id":1,"method":"x","params":{"_meta":{"progressToken":1,"progressToken":2}}}"#,
                "progressToken",
            ),
        ] {
            assert_eq!(
                scan_text(text).err(),
                Some(ScanError::Duplicate(member)),
                "{text}"
            );
        }
    }

    #[test]
    fn look_alike_keys_are_not_taken_for_the_real_ones() {
        let message =
            scan_text(r#"{"id":1,"method":"x","Method":"y","ID":3,"id\u0000":4,"params":{"Name":"n"}}"#)
                .unwrap();
        assert_eq!(message.raw(Member::Id), Some(&b"1"[..]));
        assert_eq!(message.raw(Member::Name), None);
    }

    #[test]
    fn nesting_is_limited_without_recursion() {
        let nested = |levels: usize| {
            format!(
                r#"{{"id":1,"method":"x","params":{}{}}}"#,
                "[".repeat(levels),
                "]".repeat(levels)
            )
        };
        assert!(scan_text(nested(MAX_DEPTH - 1)).is_ok());
        assert_eq!(scan_text(nested(MAX_DEPTH)).err(), Some(ScanError::TooDeep));
        assert_eq!(scan_text(nested(400_000)).err(), Some(ScanError::TooDeep));
        let objects = format!(
            r#"{{"id":1,"method":"x","params":{}1{}}}"#,
            r#"{"a":"#.repeat(200),
            "}".repeat(200)
        );
        assert_eq!(scan_text(objects).err(), Some(ScanError::TooDeep));
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            ".*".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(5, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
                prop::collection::btree_map("id|method|name|_meta|params|.{0,4}", inner, 0..6)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn agrees_with_serde_json_on_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let ours = !matches!(scan_text(&bytes), Err(ScanError::NotJson { .. } | ScanError::NotUtf8));
            let theirs = serde_json::from_slice::<&serde_json::value::RawValue>(&bytes).is_ok();
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn agrees_with_serde_json_on_nearly_valid_json(value in json(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut text = value.to_string().into_bytes();
            let at = at.index(text.len());
            text[at] = byte;
            let ours = !matches!(scan_text(&text), Err(ScanError::NotJson { .. } | ScanError::NotUtf8));
            let theirs = std::str::from_utf8(&text).is_ok()
                && serde_json::from_slice::<&serde_json::value::RawValue>(&text).is_ok();
            prop_assert_eq!(ours, theirs, "{}", String::from_utf8_lossy(&text));
        }

        #[test]
        fn finds_the_members_that_serde_json_finds(params in json(), id in any::<i64>(), result in json()) {
            let request = serde_json::json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
            let message = scan_text(request.to_string()).unwrap();
            let read = |member| message.raw(member).map(|raw| String::from_utf8(raw.to_vec()).unwrap());
            prop_assert_eq!(read(Member::Id), Some(request["id"].to_string()));
            prop_assert_eq!(read(Member::Name), request["params"].get("name").map(ToString::to_string));
            prop_assert_eq!(read(Member::Meta), request["params"].get("_meta").map(ToString::to_string));
            let response = serde_json::json!({"jsonrpc": "2.0", "id": id, "result": result});
            let spliced = scan_text(response.to_string()).unwrap().spliced(&[(Member::Id, b"\"x\"")]);
            let back = scan_text(&spliced).unwrap();
            // Compared as texts: reading a float may change its last digit.
            let text = response["result"].to_string();
            prop_assert_eq!(back.raw(Member::Result), Some(text.as_bytes()));
            prop_assert_eq!(back.raw(Member::Id), Some(&b"\"x\""[..]));
        }
    }
}
