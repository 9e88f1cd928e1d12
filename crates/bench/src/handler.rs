//! The minimal MCP server that everything is measured with: what a message asks for, and the words
//! of the answer.
//!
//! It hides the JSON, in the words of either era. It knows no transport: [`crate::echo`] speaks it
//! over stdio, [`crate::native`] over HTTP. No state, no model, no validation, so that what is
//! measured is the way there and back.

use std::io::Write as _;

use crate::shallow::{Members, number, unquoted};

/// Whose words are spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Era {
    /// Sessions that begin with `initialize`.
    #[default]
    Legacy,
    /// Requests that describe themselves (2026-07-28).
    Modern,
}

/// The revision of [`Era::Modern`].
pub const MODERN_VERSION: &str = "2026-07-28";

/// What a message asks for. Slices are raw JSON of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work<'a> {
    /// A notification or a response.
    Nothing,
    Initialize {
        id: &'a [u8],
        version: &'a [u8],
    },
    Discover {
        id: &'a [u8],
    },
    List {
        id: &'a [u8],
    },
    Ping {
        id: &'a [u8],
    },
    /// `echo`: the text comes back.
    Echo {
        id: &'a [u8],
        text: &'a [u8],
    },
    /// `progress`: so many progress messages, then the text.
    Progress {
        id: &'a [u8],
        text: &'a [u8],
        token: Option<&'a [u8]>,
        count: u64,
    },
    /// `notify`: so many notifications for all sessions, then the text.
    Notify {
        id: &'a [u8],
        text: &'a [u8],
        count: u64,
    },
    Unknown {
        id: &'a [u8],
    },
}

/// The server's information in both eras.
const CAPABILITIES: &str = r#""capabilities":{"tools":{"listChanged":true}}"#;
const INFO: &str = r#"serverInfo":{"name":"bench-echo","version":"1"}"#;
/// How long an answer of the modern era stays good.
const CACHED: &str = r#""ttlMs":60000,"cacheScope":"public""#;
/// The members that every result of the modern era has.
const COMPLETE: &str = r#""resultType":"complete","#;
const TOOLS: &str = r#""tools":[{"name":"echo","description":"The text comes back","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}},{"name":"progress","description":"Reports progress","inputSchema":{"type":"object","properties":{"text":{"type":"string"},"count":{"type":"integer"}}}},{"name":"notify","description":"Tells everybody","inputSchema":{"type":"object","properties":{"text":{"type":"string"},"count":{"type":"integer"}}}}]"#;

impl<'a> Work<'a> {
    /// Reads a message.
    pub fn of(message: &'a [u8]) -> Self {
        let (mut id, mut method, mut params) = (None, None, &b"{}"[..]);
        for (key, value) in Members::of(message) {
            match key {
                b"id" => id = Some(value),
                b"method" => method = unquoted(value),
                b"params" => params = value,
                _ => {}
            }
        }
        let (Some(id), Some(method)) = (id, method) else {
            return Self::Nothing;
        };
        match method {
            b"tools/call" => Self::call(id, params),
            b"initialize" => Self::Initialize {
                id,
                version: Members::of(params)
                    .find(b"protocolVersion")
                    .unwrap_or(b"\"2025-06-18\""),
            },
            b"server/discover" => Self::Discover { id },
            b"tools/list" => Self::List { id },
            b"ping" => Self::Ping { id },
            _ => Self::Unknown { id },
        }
    }

    fn call(id: &'a [u8], params: &'a [u8]) -> Self {
        let (mut name, mut arguments, mut meta) = (&b""[..], &b"{}"[..], None);
        for (key, value) in Members::of(params) {
            match key {
                b"name" => name = unquoted(value).unwrap_or_default(),
                b"arguments" => arguments = value,
                b"_meta" => meta = Some(value),
                _ => {}
            }
        }
        let (mut text, mut count) = (&b"\"\""[..], 0);
        for (key, value) in Members::of(arguments) {
            match key {
                b"text" => text = value,
                b"count" => count = number(value).unwrap_or(0),
                _ => {}
            }
        }
        match name {
            b"echo" => Self::Echo { id, text },
            b"progress" => Self::Progress {
                id,
                text,
                token: meta.and_then(|meta| Members::of(meta).find(b"progressToken")),
                count,
            },
            b"notify" => Self::Notify { id, text, count },
            _ => Self::Unknown { id },
        }
    }

    /// Appends the answer to a list of this server with so many tools more. `false`: it is no list.
    pub fn write_long_list(&self, era: Era, tools: usize, out: &mut Vec<u8>) -> bool {
        let Self::List { id } = *self else {
            return false;
        };
        begin_result(out, id, era);
        out.extend_from_slice(TOOLS.strip_suffix(']').unwrap_or(TOOLS).as_bytes());
        for number in 0..tools {
            write(
                out,
                format_args!(
                    r#",{{"name":"tool_{number}","description":"Does the work of number {number}, with a sentence that is as long as usual","inputSchema":{{"type":"object","properties":{{"path":{{"type":"string","description":"Where it is done"}},"count":{{"type":"integer","description":"How often it is done"}}}},"required":["path"]}}}}"#
                ),
            );
        }
        match era {
            Era::Legacy => out.extend_from_slice(b"]}}"),
            Era::Modern => write(out, format_args!("],{CACHED}}}}}")),
        }
        true
    }

    /// Appends the response, without a line end. `false`: there is none to give.
    pub fn write_response(&self, era: Era, out: &mut Vec<u8>) -> bool {
        match (*self, era) {
            (Self::Nothing, _) => return false,
            (Self::Initialize { id, version }, Era::Legacy) => {
                begin_result(out, id, era);
                out.extend_from_slice(b"\"protocolVersion\":");
                out.extend_from_slice(version);
                write(out, format_args!(",{CAPABILITIES},\"{INFO}}}}}"));
            }
            (Self::Initialize { id, .. }, Era::Modern) => {
                begin(out, id);
                write(
                    out,
                    format_args!(
                        "\"error\":{{\"code\":-32022,\"message\":\"unsupported protocol version\",\"data\":{{\"supported\":[\"{MODERN_VERSION}\"]}}}}}}"
                    ),
                );
            }
            (Self::Discover { id }, Era::Modern) => {
                begin_result(out, id, era);
                write(
                    out,
                    format_args!(
                        "\"supportedVersions\":[\"{MODERN_VERSION}\"],{CAPABILITIES},{CACHED},\"_meta\":{{\"io.modelcontextprotocol/{INFO}}}}}}}"
                    ),
                );
            }
            (Self::List { id }, _) => {
                begin_result(out, id, era);
                out.extend_from_slice(TOOLS.as_bytes());
                match era {
                    Era::Legacy => out.extend_from_slice(b"}}"),
                    Era::Modern => write(out, format_args!(",{CACHED}}}}}")),
                }
            }
            (Self::Ping { id }, _) => {
                begin(out, id);
                out.extend_from_slice(b"\"result\":{}}");
            }
            (
                Self::Echo { id, text } | Self::Progress { id, text, .. } | Self::Notify { id, text, .. },
                _,
            ) => {
                out.reserve(text.len() + 128);
                begin_result(out, id, era);
                out.extend_from_slice(b"\"content\":[{\"type\":\"text\",\"text\":");
                out.extend_from_slice(text);
                out.extend_from_slice(b"}]}}");
            }
            (Self::Unknown { id }, _) | (Self::Discover { id }, Era::Legacy) => {
                begin(out, id);
                out.extend_from_slice(b"\"error\":{\"code\":-32601,\"message\":\"no such thing here\"}}");
            }
        }
        true
    }
}

/// Appends one progress message.
pub fn write_progress(out: &mut Vec<u8>, token: &[u8], step: u64, steps: u64) {
    out.extend_from_slice(
        b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":",
    );
    out.extend_from_slice(token);
    write(out, format_args!(",\"progress\":{step},\"total\":{steps}}}}}"));
}

/// Appends one notification for all sessions; its number shows whether all come, and in order.
pub fn write_notice(out: &mut Vec<u8>, notice: u64) {
    write(
        out,
        format_args!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\",\"params\":{{\"_meta\":{{\"notice\":{notice}}}}}}}"
        ),
    );
}

fn begin_result(out: &mut Vec<u8>, id: &[u8], era: Era) {
    begin(out, id);
    out.extend_from_slice(b"\"result\":{");
    if era == Era::Modern {
        out.extend_from_slice(COMPLETE.as_bytes());
    }
}

fn begin(out: &mut Vec<u8>, id: &[u8]) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(id);
    out.push(b',');
}

fn write(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a `Vec` cannot fail.
    let _ = out.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response_in(era: Era, message: &str) -> String {
        let mut out = Vec::new();
        Work::of(message.as_bytes()).write_response(era, &mut out);
        String::from_utf8(out).expect("text")
    }

    fn response(message: &str) -> String {
        response_in(Era::Legacy, message)
    }

    #[test]
    fn each_era_is_answered_in_its_own_words() {
        let of = |era, method: &str| response_in(era, &format!(r#"{{"id":1,"method":"{method}"}}"#));
        assert!(of(Era::Legacy, "initialize").contains(r#""result":{"protocolVersion":"#));
        assert!(of(Era::Legacy, "server/discover").contains("-32601"));
        assert!(of(Era::Modern, "initialize").contains("-32022"));
        assert!(of(Era::Modern, "server/discover").contains(r#""supportedVersions":["2026-07-28"]"#));
        assert!(of(Era::Modern, "tools/list").contains(r#""result":{"resultType":"complete","tools":["#));
        assert!(of(Era::Legacy, "tools/list").ends_with("}]}}"));
    }

    #[test]
    fn a_long_list_has_so_many_tools_more() {
        for era in [Era::Legacy, Era::Modern] {
            let mut out = Vec::new();
            assert!(Work::of(br#"{"id":1,"method":"tools/list"}"#).write_long_list(era, 47, &mut out));
            let text = String::from_utf8(out).expect("text");
            assert_eq!(text.matches("inputSchema").count(), 50, "{text}");
            assert_eq!(text.matches('{').count(), text.matches('}').count(), "{text}");
        }
    }

    #[test]
    fn a_call_is_echoed_whatever_the_order_of_its_members() {
        let wanted = r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"a\"b"}]}}"#;
        assert_eq!(
            response(
                r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":"a\"b"}}}"#
            ),
            wanted
        );
        assert_eq!(
            response(
                r#"{"method":"tools/call","params":{"arguments":{"text":"a\"b"},"_meta":{"id":1},"name":"echo"},"jsonrpc":"2.0","id":7}"#
            ),
            wanted
        );
    }

    #[test]
    fn progress_is_asked_for_with_a_token() {
        let message = br#"{"id":"x","method":"tools/call","params":{"name":"progress","_meta":{"progressToken":3},"arguments":{"count":10,"text":"t"}}}"#;
        assert_eq!(
            Work::of(message),
            Work::Progress {
                id: b"\"x\"",
                text: b"\"t\"",
                token: Some(b"3"),
                count: 10
            }
        );
    }

    #[test]
    fn a_notification_asks_for_nothing() {
        assert_eq!(
            Work::of(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
            Work::Nothing
        );
    }
}
