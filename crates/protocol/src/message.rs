//! A JSON-RPC message as its sender wrote it, and where its few interesting members are.
//!
//! [`Message::scan`] reads the bytes once. It checks that they are one JSON object in UTF-8 with no
//! more than [`MAX_DEPTH`] levels and no doubled member among those that Rialto or a policy looks
//! at, and notes the place of each such member. Nothing is converted: ids, numbers, params and
//! results stay the sender's bytes, and a message goes out again as those bytes with a few of them
//! replaced ([`Message::splice`]). Id rewriting is such a splice: the id of a request or response
//! is replaced, the rest is not.

mod scan;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::method::{LogLevel, Method};
use crate::object::Object;
use crate::wire::outbox::Outbox;

pub use scan::{MAX_DEPTH, ScanError};

/// What a JSON-RPC message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A request: it has a method and an id.
    Request,
    /// A notification: it has a method and no id.
    Notification,
    /// A response that carries `result`.
    Result,
    /// A response that carries `error`.
    Error,
}

/// A member that the scan notes, named by where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Member {
    /// `jsonrpc`
    JsonRpc,
    /// `id`
    Id,
    /// `method`
    Method,
    /// `params`
    Params,
    /// `result`
    Result,
    /// `error`
    Error,
    // Members of `params`.
    /// `params.name`
    Name,
    /// `params.uri`
    Uri,
    /// `params._meta`
    Meta,
    /// `params.progressToken`
    ProgressToken,
    /// `params.requestId`
    RequestId,
    /// `params.level`
    Level,
    /// `params.protocolVersion`
    ProtocolVersion,
    /// `params.capabilities`
    Capabilities,
    /// `params.clientInfo`
    ClientInfo,
    // Members of `params._meta`.
    /// `progressToken`
    MetaProgressToken,
    /// `io.modelcontextprotocol/protocolVersion`
    MetaProtocolVersion,
    /// `io.modelcontextprotocol/clientCapabilities`
    MetaClientCapabilities,
    /// `io.modelcontextprotocol/clientInfo`
    MetaClientInfo,
    /// `io.modelcontextprotocol/logLevel`
    MetaLogLevel,
    /// `io.modelcontextprotocol/subscriptionId`
    MetaSubscriptionId,
}

impl Member {
    const COUNT: usize = Self::MetaSubscriptionId as usize + 1;
}

/// Where something stands in a message: a range of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn new(start: usize, end: usize) -> Self {
        // Messages are bounded far below 4 GiB; `Message::scan` refuses larger ones.
        Self {
            start: start as u32,
            end: end as u32,
        }
    }

    const fn is_absent(self) -> bool {
        self.start == self.end
    }

    fn of(self, bytes: &[u8]) -> &[u8] {
        bytes
            .get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }
}

/// Where each member of a message stands.
#[derive(Debug, Clone, Copy, Default)]
struct Spans([Span; Member::COUNT]);

impl Spans {
    #[inline]
    fn get(&self, member: Member) -> Span {
        self.0.get(member as usize).copied().unwrap_or_default()
    }

    #[inline]
    fn set(&mut self, member: Member, span: Span) {
        if let Some(place) = self.0.get_mut(member as usize) {
            *place = span;
        }
    }
}

/// One scanned message. Cheap to clone and to hand on: what is known of it stands in one place.
#[derive(Debug, Clone)]
pub struct Message(Arc<Scanned>);

#[derive(Debug)]
struct Scanned {
    bytes: Bytes,
    spans: Spans,
    kind: Kind,
    method: Method,
    line_breaks: bool,
    /// The bytes have a buffer of their own.
    alone: bool,
}

impl Message {
    /// Reads the envelope of a message. The bytes are kept, not copied.
    pub fn scan(bytes: Bytes) -> Result<Self, ScanError> {
        scan::scan(bytes)
    }

    /// Returns a message that Rialto wrote itself.
    ///
    /// # Panics
    ///
    /// If the text is no message, which is a mistake in this crate and never caused by
    /// input.
    pub(crate) fn own(text: String) -> Self {
        Self::scan(Bytes::from(text)).expect("Rialto writes well-formed messages")
    }

    /// Returns what kind of message it is.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Returns the method; [`Method::Other`] for responses too.
    pub fn method(&self) -> Method {
        self.0.method
    }

    /// Returns the method's name as text.
    pub fn method_name(&self) -> Option<Cow<'_, str>> {
        let known = self.0.method.name().map(Cow::Borrowed);
        known.or_else(|| self.text(Member::Method))
    }

    /// Returns the message as it was received.
    pub fn bytes(&self) -> &Bytes {
        &self.0.bytes
    }

    /// Returns the bytes for code that keeps them for long: not as part of a large read buffer.
    pub fn kept(&self) -> Bytes {
        match self.0.alone {
            true => self.0.bytes.clone(),
            false => Bytes::copy_from_slice(&self.0.bytes),
        }
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        self.0.bytes.len()
    }

    /// Returns whether it has no bytes, which no scanned message has.
    pub fn is_empty(&self) -> bool {
        self.0.bytes.is_empty()
    }

    /// Returns a member's raw JSON, as the sender wrote it.
    pub fn raw(&self, member: Member) -> Option<&[u8]> {
        let span = self.0.spans.get(member);
        (!span.is_absent()).then(|| span.of(&self.0.bytes))
    }

    /// Returns a member taken apart; without members if it is absent, or anything but an object.
    pub fn object(&self, member: Member) -> Object<'_> {
        self.raw(member).and_then(Object::parse).unwrap_or_default()
    }

    /// Returns a member's raw JSON, sharing the message's buffer.
    pub fn raw_bytes(&self, member: Member) -> Option<Bytes> {
        let span = self.0.spans.get(member);
        (!span.is_absent()).then(|| self.0.bytes.slice(span.start as usize..span.end as usize))
    }

    /// The same, in a buffer of its own: for what outlives the message.
    pub fn raw_copy(&self, member: Member) -> Option<Bytes> {
        self.raw(member).map(Bytes::copy_from_slice)
    }

    /// Returns what stands in one member before and after another that is part of it.
    pub(crate) fn around(&self, whole: Member, part: Member) -> Option<(&[u8], &[u8])> {
        let (whole, part) = (self.0.spans.get(whole), self.0.spans.get(part));
        // The range of a member that is absent ends before it begins.
        let before = self.0.bytes.get(whole.start as usize..part.start as usize)?;
        let after = self.0.bytes.get(part.end as usize..whole.end as usize)?;
        Some((before, after))
    }

    /// Returns a member that is a JSON string, decoded.
    pub fn text(&self, member: Member) -> Option<Cow<'_, str>> {
        string(self.raw(member)?)
    }

    /// Returns a member that is a plain unsigned integer.
    pub fn number(&self, member: Member) -> Option<u64> {
        std::str::from_utf8(self.raw(member)?).ok()?.parse().ok()
    }

    /// Returns the severity of a log line or of `logging/setLevel`.
    pub fn level(&self) -> Option<LogLevel> {
        LogLevel::parse(&self.text(Member::Level)?)
    }

    /// Returns whether `jsonrpc` is `"2.0"`, as the specification demands.
    pub fn is_json_rpc(&self) -> bool {
        self.raw(Member::JsonRpc) == Some(b"\"2.0\"")
    }

    /// Returns whether the id is what MCP allows for a request: a string or an integer.
    pub fn has_valid_id(&self) -> bool {
        self.raw(Member::Id).is_some_and(is_valid_id)
    }

    /// Appends the message to `out` on a single line, with each given member's raw JSON replaced.
    ///
    /// Members that the message does not have are left out of it. In valid JSON raw line breaks
    /// stand only between tokens, so turning them into spaces loses nothing, and no peer can inject
    /// a second line into a line protocol.
    pub fn splice(&self, out: &mut BytesMut, edits: &[(Member, &[u8])]) {
        // With room for the line break that most lines get.
        out.reserve(self.spliced_length(edits) + 1);
        self.append_spliced(out, edits);
    }

    fn append_spliced(&self, out: &mut BytesMut, edits: &[(Member, &[u8])]) {
        let start = out.len();
        self.parts(edits, |part| match part {
            Part::Kept(span) => out.put_slice(span.of(&self.0.bytes)),
            Part::New(new) => out.put_slice(new),
        });
        if self.0.line_breaks {
            for byte in out.iter_mut().skip(start) {
                if matches!(*byte, b'\n' | b'\r') {
                    *byte = b' ';
                }
            }
        }
    }

    /// The same to an outbox, where what is large and stays as it is need not be copied.
    pub(crate) fn splice_to(&self, out: &mut Outbox, edits: &[(Member, &[u8])]) {
        // A message that is copied in any case is copied into room that is reserved once.
        if self.0.line_breaks || Outbox::copies(self.0.bytes.len()) {
            return self.splice(out.end(), edits);
        }
        self.parts(edits, |part| match part {
            Part::Kept(span) => out.share(self.0.bytes.slice(span.start as usize..span.end as usize)),
            Part::New(new) => out.end().put_slice(new),
        });
    }

    /// Returns how long the message is with these members replaced.
    fn spliced_length(&self, edits: &[(Member, &[u8])]) -> usize {
        let spans = edits.iter().map(|(member, new)| (self.0.spans.get(*member), new));
        spans
            .filter(|(span, _)| !span.is_absent())
            .fold(self.0.bytes.len(), |length, (span, new)| {
                length.saturating_sub((span.end - span.start) as usize) + new.len()
            })
    }

    /// What the message consists of when these members are replaced, in order.
    fn parts<'a>(&self, edits: &[(Member, &'a [u8])], mut put: impl FnMut(Part<'a>)) {
        let mut from = 0;
        loop {
            let next = edits
                .iter()
                .map(|(member, new)| (self.0.spans.get(*member), *new))
                .filter(|(span, _)| !span.is_absent() && span.start as usize >= from)
                .min_by_key(|(span, _)| span.start);
            let Some((span, new)) = next else { break };
            put(Part::Kept(Span::new(from, span.start as usize)));
            put(Part::New(new));
            from = span.end as usize;
        }
        put(Part::Kept(Span::new(from, self.0.bytes.len())));
    }

    /// Returns the message with another id, a large one without being copied.
    pub fn with_id(&self, id: &[u8]) -> Written {
        let span = self.0.spans.get(Member::Id);
        if self.0.bytes.len() < Written::LARGE || self.0.line_breaks || span.is_absent() {
            return Written::Whole(self.spliced(&[(Member::Id, id)]));
        }
        Written::Cut {
            head: self.0.bytes.slice(..span.start as usize),
            new: Bytes::copy_from_slice(id),
            tail: self.0.bytes.slice(span.end as usize..),
        }
    }

    /// Returns the message with another progress token.
    pub(crate) fn with_progress_token(&self, token: &[u8]) -> Self {
        self.with_replaced(Member::ProgressToken, token)
    }

    /// Returns the message with another raw value of a member that has no members of its own. It is
    /// not read again: what stands behind the value has moved with it, and what it is part of has
    /// grown.
    pub(crate) fn with_replaced(&self, member: Member, raw: &[u8]) -> Self {
        let old = self.0.spans.get(member);
        let end = old.start as usize + raw.len();
        let moved = |place: u32| match place >= old.end {
            true => place as usize - old.end as usize + end,
            false => place as usize,
        };
        let mut spans = self.0.spans;
        if !old.is_absent() {
            for span in spans.0.iter_mut().filter(|span| !span.is_absent()) {
                *span = Span::new(moved(span.start), moved(span.end));
            }
        }
        Self(Arc::new(Scanned {
            bytes: self.spliced(&[(member, raw)]),
            spans,
            line_breaks: false,
            alone: true,
            ..*self.0
        }))
    }

    /// Returns the spliced message in a buffer of its own.
    pub fn spliced(&self, edits: &[(Member, &[u8])]) -> Bytes {
        // Of exact capacity: `freeze` then needs no extra allocation to remember it.
        let mut out = BytesMut::with_capacity(self.spliced_length(edits));
        self.append_spliced(&mut out, edits);
        out.freeze()
    }
}

/// Part of a message in which members were replaced.
enum Part<'a> {
    Kept(Span),
    New(&'a [u8]),
}

/// A message on its way out: in one piece, or, if it is large, in the pieces around what was
/// replaced, which then are not copied.
#[derive(Debug, Clone)]
pub enum Written {
    /// In one piece.
    Whole(Bytes),
    /// In three pieces.
    Cut {
        /// What stands before the replaced member.
        head: Bytes,
        /// The replacement.
        new: Bytes,
        /// What stands behind it.
        tail: Bytes,
    },
}

impl Written {
    /// Below this, one copy is cheaper than three pieces.
    const LARGE: usize = 32 << 10;

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Cut { head, new, tail } => head.len() + new.len() + tail.len(),
        }
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns at most this much of its beginning, copied only if it is not in one piece.
    pub fn beginning(&self, length: usize) -> Bytes {
        match self {
            Self::Whole(bytes) => bytes.slice(..bytes.len().min(length)),
            Self::Cut { head, new, tail } => {
                let pieces = [head, new, tail].into_iter().flatten();
                pieces.copied().take(length).collect()
            }
        }
    }

    /// Returns the message in one piece, copied if it was not.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Cut { head, new, tail } => [head, new, tail].concat().into(),
        }
    }
}

impl From<Bytes> for Written {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(bytes)
    }
}

/// Decodes a raw JSON string.
pub(crate) fn string(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    // Most are names of a few bytes, for which a search in large steps takes longer to begin than
    // to end.
    if !inner.contains(&b'\\') {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice::<String>(raw).ok().map(Cow::Owned)
}

/// Quotes a text as JSON.
pub fn quoted(text: &str) -> String {
    // Names of members and the like have nothing to escape.
    match needs_escapes(text) {
        false => ["\"", text, "\""].concat(),
        true => serde_json::Value::from(text).to_string(),
    }
}

/// Returns whether a text cannot stand between quotes as it is.
pub(crate) fn needs_escapes(text: &str) -> bool {
    text.bytes().any(|byte| matches!(byte, 0..=0x1f | b'"' | b'\\'))
}

fn is_valid_id(raw: &[u8]) -> bool {
    match raw {
        [b'"', ..] => true,
        [b'-', digits @ ..] | digits => digits.iter().all(u8::is_ascii_digit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    #[test]
    fn a_message_with_another_token_is_read_back_equal() {
        for text in [
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1,"_meta":{"a":1}}}"#,
            r#"{"params":{"uri":"u","_meta":{},"progressToken" : "long token" } ,"method":"notifications/progress","jsonrpc":"2.0"}"#,
            "{\"jsonrpc\":\"2.0\",\n\"method\":\"notifications/progress\",\"params\":{\"progressToken\":7\n}}",
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}"#,
        ] {
            for token in ["1", "\"a token\"", "1234567890"] {
                let replaced = message(text).with_progress_token(token.as_bytes());
                let read = Message::scan(replaced.bytes().clone()).unwrap();
                let read = format!("{read:?}").replace("alone: false", "alone: true");
                assert_eq!(format!("{replaced:?}"), read, "{text}");
            }
        }
    }

    #[test]
    fn copied_message_leaves_room_for_its_line_break() {
        let padding = "x".repeat(10_000);
        let text = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":"{padding}"}}"#);
        let mut out = Outbox::default();
        message(&text).splice_to(&mut out, &[(Member::Id, b"12")]);
        assert_eq!(out.len(), text.len() + 1);
        assert!(out.end().capacity() > text.len() + 1);
    }

    #[test]
    fn kept_bytes_do_not_keep_the_read_buffer_alive() {
        let text = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7}}"#;
        let read = message(text);
        assert_eq!(read.kept(), read.bytes());
        assert_ne!(read.kept().as_ptr(), read.bytes().as_ptr());
        let written = read.with_progress_token(b"8");
        assert_eq!(
            written.kept().as_ptr(),
            written.bytes().as_ptr(),
            "it has a buffer of its own already"
        );
    }

    #[test]
    fn id_and_progress_token_are_replaced_and_all_else_stays() {
        let call = message(
            r#"{"params":{"_meta":{"progressToken": "p" ,"x":1},"name":"t","n":1.50e3},"method":"tools\/call","id": 7 ,"jsonrpc":"2.0"}"#,
        );
        assert_eq!(call.method(), Method::ToolsCall);
        assert_eq!(call.text(Member::Name).as_deref(), Some("t"));
        let spliced = call.spliced(&[(Member::Id, b"41"), (Member::MetaProgressToken, b"41")]);
        assert_eq!(
            std::str::from_utf8(&spliced).unwrap(),
            r#"{"params":{"_meta":{"progressToken": 41 ,"x":1},"name":"t","n":1.50e3},"method":"tools\/call","id": 41 ,"jsonrpc":"2.0"}"#,
        );
    }

    #[test]
    fn a_large_message_gets_its_id_without_being_copied() {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":4,"result":"{}"}}"#,
            "x".repeat(Written::LARGE)
        );
        let large = message(&text);
        let written = large.with_id(b"\"abc\"");
        assert!(
            matches!(&written, Written::Cut { tail, .. } if tail.as_ptr() == large.bytes()[23..].as_ptr())
        );
        assert_eq!(written.len(), text.len() + 4);
        assert_eq!(written.into_bytes(), large.spliced(&[(Member::Id, b"\"abc\"")]));
    }

    #[test]
    fn raw_line_breaks_become_spaces() {
        let call = message("{\"jsonrpc\":\"2.0\",\n\"id\":1,\r\n\"method\":\"ping\"}\n");
        assert_eq!(
            &call.spliced(&[])[..],
            b"{\"jsonrpc\":\"2.0\", \"id\":1,  \"method\":\"ping\"} "
        );
    }

    #[test]
    fn ids_of_any_size_keep_their_bytes() {
        for id in [
            "0",
            "-1",
            "9007199254740993",
            "1000000000000000000000000000000",
            "\"1\"",
            "\"\"",
            "\"ü\\u0041\"",
        ] {
            let call = message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
            assert_eq!(call.raw(Member::Id), Some(id.as_bytes()));
            assert!(call.has_valid_id(), "{id}");
        }
        for id in ["null", "1.5", "true", "{}", "[]", "1e3"] {
            let call = message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
            assert!(!call.has_valid_id(), "{id}");
        }
    }

    #[test]
    fn large_message_gets_its_id_without_being_copied() {
        for length in [10, Written::LARGE * 2] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "x".repeat(length));
            let message = Message::scan(Bytes::from(text.clone())).unwrap();
            let written = message.with_id(b"\"seven\"");
            let edits: [(Member, &[u8]); 3] = [
                (Member::Id, b"\"seven\""),
                (Member::Result, b"{}"),
                (Member::Params, b"absent"),
            ];
            assert_eq!(
                message.spliced_length(&edits),
                message.spliced(&edits).len(),
                "it gets the room that it needs"
            );
            assert_eq!(matches!(written, Written::Cut { .. }), length > Written::LARGE);
            let expected = text.replace(r#""id":1"#, r#""id":"seven""#);
            assert_eq!((written.len(), written.is_empty()), (expected.len(), false));
            assert_eq!(written.beginning(30), &expected.as_bytes()[..30]);
            assert_eq!(written.beginning(expected.len() * 2), expected.as_bytes());
            assert_eq!(written.into_bytes(), expected.as_bytes());
        }
        assert!(Written::Whole(Bytes::new()).is_empty());
        // A message that spans lines is copied, since the breaks must go.
        let text = format!(
            "{{\"jsonrpc\":\"2.0\",\n\"id\":1,\"result\":\"{}\"}}",
            "x".repeat(Written::LARGE)
        );
        let written = Message::scan(Bytes::from(text)).unwrap().with_id(b"2");
        assert!(matches!(&written, Written::Whole(bytes) if !bytes.contains(&b'\n')));
    }

    #[test]
    fn parts_around_a_member_need_both() {
        let message = Message::scan(Bytes::from_static(
            br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","a":1}}"#,
        ))
        .unwrap();
        let (before, after) = message.around(Member::Params, Member::Name).unwrap();
        assert_eq!((before, after), (&br#"{"name":"#[..], &br#","a":1}"#[..]));
        assert_eq!(message.around(Member::Params, Member::Uri), None);
        assert_eq!(message.around(Member::Result, Member::Name), None);
    }
}
