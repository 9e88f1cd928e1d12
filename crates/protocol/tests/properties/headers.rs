//! Headers that mirror a body: any are judged, and those that a client takes from the body pass.

use bytes::Bytes;
use protocol::message::{Kind, Member, Message};
use protocol::tool_schema::{ToolHeaders, arguments_of};
use protocol::wire::header::{HeaderMismatch, METHOD, MirroredHeaders, NAME, VERSION, decode, encode};
use serde_json::json;

/// Lines of headers, an empty line, a body.
///
/// # Panics
/// If a value does not survive a header, or if headers taken from the body are refused.
pub(crate) fn holds(data: &[u8]) {
    value(data);
    let end = data
        .windows(2)
        .position(|pair| pair == b"\n\n")
        .unwrap_or(data.len());
    let pairs: Vec<(&[u8], &[u8])> = data[..end]
        .split(|byte| *byte == b'\n')
        .map(|line| match line.iter().position(|byte| *byte == b':') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &b""[..]),
        })
        .collect();
    for (_, given) in &pairs {
        value(given);
    }
    let body = data.get(end + 2..).unwrap_or_default();
    let Ok(message) = Message::scan(Bytes::copy_from_slice(body)) else {
        return;
    };
    let tool = tool();
    let headers = MirroredHeaders::read(pairs);
    let _ = headers.check_mismatch(&message);
    let _ = headers.check_presence(&message);
    if let Ok(arguments) = arguments_of(&message) {
        let _ = headers.check_params(&tool, arguments);
        honest_params(&tool, arguments);
    }
    if message.kind() == Kind::Request {
        honest_headers(&message);
    }
}

fn value(bytes: &[u8]) {
    if let Ok(text) = decode(bytes) {
        assert_eq!(decode(encode(&text).as_bytes()).as_deref(), Ok(&*text));
    }
    let text = String::from_utf8_lossy(bytes);
    let encoded = encode(&text);
    assert!(encoded.bytes().all(|byte| matches!(byte, 0x20..=0x7e | b'\t')));
    assert_eq!(decode(encoded.as_bytes()).as_deref(), Ok(&*text));
}

fn tool() -> ToolHeaders {
    ToolHeaders::read(&json!({"type": "object", "properties": {
        "region": { "type": "string", "x-mcp-header": "Region" },
        "n": { "type": "integer", "x-mcp-header": "N" },
        "a": { "type": "object", "properties": { "b": { "type": "boolean", "x-mcp-header": "Deep" } } },
    }}))
    .expect("the annotations are valid")
}

/// Whether a header without an encoded form can carry this text.
fn is_plain(text: &str) -> bool {
    text.trim_matches([' ', '\t']) == text && text.bytes().all(|byte| matches!(byte, 0x20..=0x7e | b'\t'))
}

fn honest_headers(message: &Message) {
    let method = message.method_name().expect("a request has a method");
    let version = message.text(Member::MetaProtocolVersion);
    let name = match &*method {
        "tools/call" | "prompts/get" => message.text(Member::Name),
        "resources/read" => message.text(Member::Uri),
        _ => None,
    };
    let name = name.map(|name| encode(&name).into_owned());
    let mut pairs: Vec<(&[u8], &[u8])> = Vec::new();
    if let Some(version) = version.as_deref().filter(|version| is_plain(version)) {
        pairs.push((VERSION.as_bytes(), version.as_bytes()));
    }
    if is_plain(&method) {
        pairs.push((METHOD.as_bytes(), method.as_bytes()));
    }
    if let Some(name) = &name {
        pairs.push((NAME.as_bytes(), name.as_bytes()));
    }
    assert_eq!(MirroredHeaders::read(pairs).check_mismatch(message), Ok(()));
}

fn honest_params(tool: &ToolHeaders, arguments: Option<&[u8]>) {
    // A text that is none, such as half a surrogate pair, cannot be mirrored.
    let broken = arguments.is_some_and(|raw| raw.windows(3).any(|at| at.eq_ignore_ascii_case(b"\\ud")));
    let Ok(values) = tool.values_of_raw(arguments) else {
        return;
    };
    let pairs = values
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let verdict: Result<(), HeaderMismatch> = MirroredHeaders::read(pairs).check_params(tool, arguments);
    assert!(broken || verdict.is_ok(), "{verdict:?}");
}
