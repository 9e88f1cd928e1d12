//! Spans: one for each request of a client, from its arrival to the last byte of its answer.
//!
//! A span that has ended is put into a bounded queue; the exporter at the other end sends it on. It
//! never waits: what does not fit is lost and counted. Without a sink nothing is made at all, and a
//! context is only passed on.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use http::{HeaderMap, HeaderValue};
use memchr::memmem::Finder;
use protocol::message::{Kind, Member, Message};
use protocol::method::Method;
use protocol::trace_context::{self, TRACEPARENT, TraceParent};
use tokio::sync::mpsc;

use crate::audit::SessionHash;
use crate::reply::SESSION_ID;

/// Longer names and ids are cut.
const LONGEST_VALUE: usize = 256;

/// A span that has ended.
#[derive(Debug, Clone)]
pub struct Span {
    pub context: TraceParent,
    /// The span that this one is part of, at the client.
    pub parent: Option<u64>,
    pub name: String,
    pub began: SystemTime,
    pub ended: SystemTime,
    pub attributes: Vec<(&'static str, String)>,
    pub status_code: u16,
    /// Why it failed, if it did.
    pub error: Option<&'static str>,
}

/// Where ended spans go.
#[derive(Debug)]
pub struct SpanSink {
    sender: mpsc::Sender<Span>,
    /// What share of the traces that begin here is recorded: so many of 2³².
    share: u64,
    lost: AtomicU64,
    exported: AtomicU64,
}

impl SpanSink {
    /// Returns a sink that holds so many spans, and where they can be taken from. `share` is
    /// between 0 and 1.
    pub fn bounded(capacity: usize, share: f64) -> (Arc<Self>, mpsc::Receiver<Span>) {
        let (sender, receiver) = mpsc::channel(capacity);
        let sink = Self {
            sender,
            share: (share.clamp(0.0, 1.0) * (1_u64 << 32) as f64) as u64,
            lost: AtomicU64::new(0),
            exported: AtomicU64::new(0),
        };
        (Arc::new(sink), receiver)
    }

    fn put(&self, span: Span) {
        if self.sender.try_send(span).is_err() {
            self.count_lost(1);
        }
    }

    pub fn count_lost(&self, spans: u64) {
        self.lost.fetch_add(spans, Relaxed);
    }

    pub fn count_exported(&self, spans: u64) {
        self.exported.fetch_add(spans, Relaxed);
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    pub(crate) fn exported(&self) -> u64 {
        self.exported.load(Relaxed)
    }

    /// Decided by the trace's own bits, so that other samplers decide alike.
    fn samples(&self, trace: u128) -> bool {
        (trace as u64 & u64::from(u32::MAX)) < self.share
    }
}

/// A span that has not ended. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct OpenSpan {
    sink: Arc<SpanSink>,
    span: Option<Span>,
}

impl OpenSpan {
    pub(crate) fn answered(&mut self, status: u16, error: Option<&'static str>) {
        if let Some(span) = &mut self.span {
            span.status_code = status;
            span.error = error;
        }
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(mut span) = self.span.take() {
            span.ended = SystemTime::now();
            self.sink.put(span);
        }
    }
}

/// The reason of a failed call, for the span of its request. It is an extension of the response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failed(pub(crate) &'static str);

/// Reads the trace context of a request; `is_traced` if its headers have one. Returns the message
/// to pass on, and the span that begins where there is a sink.
pub(crate) fn begin(
    sink: Option<&Arc<SpanSink>>,
    destination: &str,
    (headers, is_traced): (&HeaderMap, bool),
    message: Message,
) -> (Message, Option<Box<OpenSpan>>) {
    if message.kind() != Kind::Request || (sink.is_none() && !is_traced) {
        return (message, None);
    }
    let in_body = TraceParent::of(&message);
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let in_header = header(TRACEPARENT).and_then(TraceParent::parse);
    // Companions of a header that does not count are not passed on either.
    let companions: Vec<(&'static str, &str)> = match (in_body, in_header) {
        (None, Some(_)) => trace_context::COMPANIONS
            .into_iter()
            .filter_map(|name| Some((name, header(name)?)))
            .collect(),
        (Some(_), _) | (None, None) => Vec::new(),
    };
    let parent = in_body.or(in_header);
    let Some(sink) = sink else {
        return match (in_body, in_header) {
            (None, Some(context)) => (carry(message, context, &companions), None),
            (Some(_), _) | (None, None) => (message, None),
        };
    };
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    // An id of zero is none.
    let own = low.max(1);
    let context = match parent {
        Some(parent) => parent.child(own),
        None => {
            let trace = (u128::from(high) << 64) | u128::from(uuid::Uuid::new_v4().as_u64_pair().0);
            TraceParent::root(trace, own, sink.samples(trace))
        }
    };
    let span = context.is_sampled().then(|| {
        Box::new(OpenSpan {
            sink: Arc::clone(sink),
            span: Some(describe(context, parent, destination, headers, &message)),
        })
    });
    (carry(message, context, &companions), span)
}

fn carry(message: Message, context: TraceParent, companions: &[(&'static str, &str)]) -> Message {
    trace_context::with_context(&message, context, companions).unwrap_or(message)
}

/// Returns the context of a message's body as a header, for servers that are reached over HTTP and
/// look there.
pub(crate) fn header_of(message: &Message) -> Option<HeaderValue> {
    // Most messages have none, and then nothing is taken apart.
    may_have_context(message.raw(Member::Meta)?).then_some(())?;
    HeaderValue::from_str(&TraceParent::of(message)?.to_string()).ok()
}

/// Returns whether a message, or a part of one, can have a context at all.
pub(crate) fn may_have_context(bytes: &[u8]) -> bool {
    static NAME: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(TRACEPARENT));
    NAME.find(bytes).is_some()
}

fn describe(
    context: TraceParent,
    parent: Option<TraceParent>,
    destination: &str,
    headers: &HeaderMap,
    message: &Message,
) -> Span {
    let method = message.method().name().unwrap_or("other");
    let target = match message.method() {
        Method::ToolsCall | Method::PromptsGet => message.text(Member::Name).map(|name| cut(&name)),
        _ => None,
    };
    let era = protocol::client_face::era_of(message);
    let id = message.raw(Member::Id).unwrap_or_default();
    let mut attributes = vec![
        ("mcp.method.name", method.to_owned()),
        ("mcp.protocol.era", era.as_str().to_owned()),
        ("rialto.destination", destination.to_owned()),
        (
            "jsonrpc.request.id",
            cut(String::from_utf8_lossy(id).trim_matches('"')),
        ),
    ];
    if let Some(id) = headers.get(SESSION_ID).and_then(|id| id.to_str().ok()) {
        attributes.push(("mcp.session.hash", SessionHash::of(id).to_string()));
    }
    let name = match &target {
        Some(target) => format!("{method} {target}"),
        None => method.to_owned(),
    };
    match (message.method(), target) {
        (Method::ToolsCall, Some(tool)) => attributes.push(("gen_ai.tool.name", tool)),
        (Method::PromptsGet, Some(prompt)) => attributes.push(("gen_ai.prompt.name", prompt)),
        _ => {}
    }
    let now = SystemTime::now();
    Span {
        context,
        parent: parent.map(|parent| parent.span),
        name,
        began: now,
        ended: now,
        attributes,
        status_code: 0,
        error: None,
    }
}

fn cut(text: &str) -> String {
    let end = (0..=text.len().min(LONGEST_VALUE))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or_default();
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const CONTEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const OTHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const SILENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    fn call(meta: &str) -> Message {
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{{"name":"echo"{meta}}}}}"#);
        Message::scan(Bytes::from(text)).unwrap()
    }

    fn headers(context: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, context.parse().unwrap());
        headers.insert("tracestate", "a=b".parse().unwrap());
        headers
    }

    fn parsed(text: &str) -> TraceParent {
        TraceParent::parse(text).unwrap()
    }

    #[test]
    fn without_a_sink_a_header_is_passed_on_and_nothing_else_changes() {
        let (carried, span) = begin(None, "d", (&headers(CONTEXT), true), call(""));
        assert_eq!(TraceParent::of(&carried), Some(parsed(CONTEXT)));
        assert!(String::from_utf8_lossy(carried.bytes()).contains(r#""tracestate":"a=b""#));
        assert!(span.is_none());
        let own = call(&format!(r#","_meta":{{"traceparent":"{OTHER}"}}"#));
        let (carried, _) = begin(None, "d", (&headers(CONTEXT), true), own.clone());
        assert_eq!(carried.bytes(), own.bytes());
        let (carried, _) = begin(None, "d", (&headers("nonsense"), true), call(""));
        assert_eq!(carried.bytes(), call("").bytes());
    }

    #[test]
    fn a_span_stands_between_the_client_and_the_server() {
        let (sink, mut spans) = SpanSink::bounded(4, 1.0);
        let own = call(&format!(r#","_meta":{{"traceparent":"{OTHER}"}}"#));
        let (carried, span) = begin(Some(&sink), "d", (&headers(CONTEXT), true), own);
        let mut span = span.unwrap();
        span.answered(504, Some("timeout"));
        drop(span);
        let span = spans.try_recv().unwrap();
        assert_eq!(
            span.parent,
            Some(parsed(OTHER).span),
            "the body counts, not the header"
        );
        assert_eq!(span.context.trace, parsed(OTHER).trace);
        assert_eq!(TraceParent::of(&carried), Some(span.context));
        assert_eq!((span.name.as_str(), span.status_code), ("tools/call echo", 504));
        assert_eq!(span.error, Some("timeout"));
        assert!(span.attributes.contains(&("gen_ai.tool.name", "echo".into())));
        assert!(span.attributes.contains(&("jsonrpc.request.id", "x".into())));
    }

    #[test]
    fn a_context_that_is_not_sampled_is_passed_on_and_not_recorded() {
        let (sink, mut spans) = SpanSink::bounded(4, 1.0);
        let (carried, span) = begin(Some(&sink), "d", (&headers(SILENT), true), call(""));
        assert!(span.is_none());
        let context = TraceParent::of(&carried).unwrap();
        assert_eq!(
            (context.trace, context.is_sampled()),
            (parsed(SILENT).trace, false)
        );
        assert!(spans.try_recv().is_err());
    }

    #[test]
    fn a_request_without_a_context_begins_a_trace_that_is_recorded_by_its_share() {
        for (share, recorded) in [(1.0, true), (0.0, false)] {
            let (sink, _spans) = SpanSink::bounded(4, share);
            let (carried, span) = begin(Some(&sink), "d", (&HeaderMap::new(), false), call(""));
            assert_eq!(span.is_some(), recorded);
            assert_eq!(TraceParent::of(&carried).unwrap().is_sampled(), recorded);
        }
    }

    #[test]
    fn context_in_the_body_is_also_sent_in_a_header() {
        let own = call(&format!(r#","_meta":{{"traceparent":"{OTHER}"}}"#));
        assert_eq!(header_of(&own).unwrap(), OTHER);
        assert_eq!(header_of(&call("")), None);
        assert_eq!(header_of(&call(r#","_meta":{"traceparent":"evil\r\n"}"#)), None);
    }

    #[test]
    fn spans_beyond_the_capacity_are_lost_and_counted() {
        let (sink, _spans) = SpanSink::bounded(1, 1.0);
        for _ in 0..3 {
            drop(begin(Some(&sink), "d", (&HeaderMap::new(), false), call("")));
        }
        assert_eq!(sink.lost(), 2);
    }
}
