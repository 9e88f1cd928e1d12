//! W3C Trace Context in MCP: read from a header or from `params._meta`, and written into `_meta`
//! for the next hop.
//!
//! It makes no ids, which would take randomness, and it does not decide what is recorded. What it
//! cannot read it leaves as it is: a trace is never a reason to refuse a message.

use std::fmt;

use crate::message::{Member, Message, quoted};
use crate::object::Object;

/// The header, and the member of `_meta`, of a [`TraceParent`] (W3C Trace Context).
pub const TRACEPARENT: &str = "traceparent";
/// What travels with it, unread.
pub const COMPANIONS: [&str; 2] = ["tracestate", "baggage"];

/// A place in a trace: which trace, which span, and whether it is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The id of the trace.
    pub trace: u128,
    /// The id of the span.
    pub span: u64,
    /// The trace flags.
    pub flags: u8,
}

impl TraceParent {
    const SAMPLED: u8 = 1;

    /// Reads `00-<trace>-<span>-<flags>`. A later version may have more behind it (Trace Context,
    /// 3.2.4).
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version = hex(parts.next()?, 2)?;
        let trace = hex(parts.next()?, 32)?;
        let span = hex(parts.next()?, 16)?;
        let flags = hex(parts.next()?, 2)?;
        let is_whole = parts.next().is_none();
        if version == 0xff || (version == 0 && !is_whole) || trace == 0 || span == 0 {
            return None;
        }
        Some(Self {
            trace,
            span: u64::try_from(span).ok()?,
            flags: u8::try_from(flags).ok()?,
        })
    }

    /// Returns the one in a message's `_meta`.
    pub fn of(message: &Message) -> Option<Self> {
        let meta = Object::parse(message.raw(Member::Meta)?)?;
        Self::parse(&meta.text(TRACEPARENT)?)
    }

    /// Returns whether the trace is recorded.
    pub const fn is_sampled(self) -> bool {
        self.flags & Self::SAMPLED != 0
    }

    /// The same trace, one span further down.
    #[must_use]
    pub const fn child(self, span: u64) -> Self {
        Self { span, ..self }
    }

    /// Returns the first span of a trace.
    pub const fn root(trace: u128, span: u64, sampled: bool) -> Self {
        let flags = if sampled { Self::SAMPLED } else { 0 };
        Self { trace, span, flags }
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// Lower-case hexadecimal digits, exactly as many as there must be.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_plain = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (text.len() == digits && is_plain).then(|| u128::from_str_radix(text, 16).ok())?
}

/// Returns a request with a context in its `_meta`, in place of the one it may have had. Companions
/// are added where the message has none of its own. `None`: it has no place for one and stays as it
/// is.
pub fn with_context(
    message: &Message,
    context: TraceParent,
    companions: &[(&'static str, &str)],
) -> Option<Message> {
    let context = quoted(&context.to_string());
    if let Some(raw) = message.raw(Member::Meta) {
        let mut meta = Object::parse(raw)?;
        meta.remove(TRACEPARENT);
        meta.set(TRACEPARENT, context);
        for (name, value) in companions {
            if meta.get(name).is_none() {
                meta.set(name, quoted(value));
            }
        }
        let meta = meta.to_string();
        return Message::scan(message.spliced(&[(Member::Meta, meta.as_bytes())])).ok();
    }
    let mut meta = Object::default();
    meta.set(TRACEPARENT, context);
    for (name, value) in companions {
        meta.set(name, quoted(value));
    }
    let meta = meta.to_string();
    let edited = match message.raw(Member::Params) {
        Some(raw) => {
            let mut params = Object::parse(raw)?;
            params.set("_meta", meta);
            message.spliced(&[(Member::Params, params.to_string().as_bytes())])
        }
        None => {
            let mut whole = Object::parse(message.bytes())?;
            whole.set("params", format!(r#"{{"_meta":{meta}}}"#));
            whole.to_string().into()
        }
    };
    Message::scan(edited).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn message(text: &str) -> Message {
        Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn written(message: &Message) -> &str {
        std::str::from_utf8(message.bytes()).unwrap()
    }

    #[test]
    fn a_context_is_read_and_written_alike() {
        let context = TraceParent::parse(TEXT).unwrap();
        assert_eq!(context.to_string(), TEXT);
        assert!(context.is_sampled());
        assert_eq!(TraceParent::parse(&format!(" {TEXT} ")), Some(context));
        let later = "42-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more";
        assert!(!TraceParent::parse(later).unwrap().is_sampled());
    }

    #[test]
    fn invalid_trace_context_is_ignored() {
        for wrong in [
            "",
            "00",
            "00-0-0-00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b70-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceParent::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_context_finds_its_place_in_every_request() {
        let context = TraceParent::parse(TEXT).unwrap();
        let with = |text: &str| with_context(&message(text), context, &[("tracestate", "a=b")]);
        let expected = format!(r#"{{"traceparent":"{TEXT}","tracestate":"a=b"}}"#);
        assert_eq!(
            written(&with(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#).unwrap()),
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"_meta":{expected}}}}}"#)
        );
        assert_eq!(
            written(
                &with(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","n":1.50}}"#)
                    .unwrap()
            ),
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"x","n":1.50,"_meta":{expected}}}}}"#
            )
        );
        let before = r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"traceparent":"old","progressToken":7,"tracestate":"c=d"}}}"#;
        assert_eq!(
            written(&with(before).unwrap()),
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"_meta":{{"progressToken":7,"tracestate":"c=d","traceparent":"{TEXT}"}}}}}}"#
            )
        );
        assert!(with(r#"{"jsonrpc":"2.0","id":1,"method":"x","params":[1]}"#).is_none());
    }

    proptest! {
        #[test]
        fn every_context_comes_back(trace in 1_u128.., span in 1_u64.., flags: u8) {
            let context = TraceParent { trace, span, flags };
            prop_assert_eq!(TraceParent::parse(&context.to_string()), Some(context));
            let carried = with_context(&message(r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#), context, &[]).unwrap();
            prop_assert_eq!(TraceParent::of(&carried), Some(context));
        }
    }
}
