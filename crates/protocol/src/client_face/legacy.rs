//! A legacy client: requests, notifications and answers on a session it opened with `initialize`.

mod translate;

use std::fmt::Write as _;

use bytes::{BufMut, Bytes, BytesMut};

use crate::error_code;
use crate::exchange::{BackendError, Failure, QuestionKey, Request, ServerInfo};
use crate::message::{Kind, Member, Message, Written, quoted};
use crate::method::Method;
use crate::version::{Era, Version};

/// The era of these clients.
pub const ERA: Era = Era::Legacy;

/// What a client's message means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Classified {
    /// `initialize`.
    Initialize,
    /// `ping`, which Rialto answers.
    Ping,
    /// A request for the server.
    Request(Request),
    /// `notifications/initialized`.
    Ready,
    /// The client cancels its request with this raw id.
    Cancel(Bytes),
    /// An answer; `None` if its id is none of Rialto's.
    Answer(Option<QuestionKey>),
    /// Any other notification.
    Notice,
}

/// Why a message of a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidRequest {
    /// `jsonrpc` is not `"2.0"`.
    NotJsonRpc,
    /// The id is no string and no integer.
    BadId,
    /// The params lack what the method needs.
    BadParams(&'static str),
}

impl InvalidRequest {
    /// Returns the JSON-RPC error code.
    pub const fn code(self) -> i32 {
        match self {
            Self::NotJsonRpc | Self::BadId => error_code::INVALID_REQUEST,
            Self::BadParams(_) => error_code::INVALID_PARAMS,
        }
    }

    /// Returns the error message.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotJsonRpc => "the member `jsonrpc` must be \"2.0\"",
            Self::BadId => "the id of a request must be a string or an integer",
            Self::BadParams(text) => text,
        }
    }
}

/// Reads what a client means.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "every other method is treated alike"
)]
pub fn lift(message: &Message) -> Result<Classified, InvalidRequest> {
    if !message.is_json_rpc() {
        return Err(InvalidRequest::NotJsonRpc);
    }
    Ok(match message.kind() {
        Kind::Request => {
            if !message.has_valid_id() {
                return Err(InvalidRequest::BadId);
            }
            match message.method() {
                Method::Initialize => Classified::Initialize,
                Method::Ping => Classified::Ping,
                Method::ResourcesSubscribe => Classified::Request(Request::Subscribe { uri: uri(message)? }),
                Method::ResourcesUnsubscribe => {
                    Classified::Request(Request::Unsubscribe { uri: uri(message)? })
                }
                Method::LoggingSetLevel => Classified::Request(Request::SetLevel {
                    level: message
                        .level()
                        .ok_or(InvalidRequest::BadParams("`params.level` must be a log level"))?,
                }),
                _ => Classified::Request(Request::Plain),
            }
        }
        Kind::Notification => match message.method() {
            Method::Initialized => Classified::Ready,
            Method::Cancelled => match message.raw_bytes(Member::RequestId) {
                Some(id) => Classified::Cancel(id),
                None => return Err(InvalidRequest::BadParams("`params.requestId` is missing")),
            },
            _ => Classified::Notice,
        },
        Kind::Result | Kind::Error => Classified::Answer(message.number(Member::Id).map(QuestionKey)),
    })
}

fn uri(message: &Message) -> Result<String, InvalidRequest> {
    message
        .text(Member::Uri)
        .map(Into::into)
        .ok_or(InvalidRequest::BadParams("`params.uri` must be a string"))
}

/// Returns the server's answer under the client's id.
pub fn lower_reply(id: &[u8], message: &Message, era: Era, method: Method) -> Written {
    match era {
        Era::Legacy => message.with_id(id),
        Era::Modern => translate::reply(id, message, method).into(),
    }
}

/// Returns a tool of a modern server as a legacy client sees it.
pub(super) fn project_tool(raw: &str) -> std::borrow::Cow<'_, str> {
    translate::project_tool(raw)
}

/// Returns an empty result.
pub fn lower_done(id: &[u8]) -> Bytes {
    [br#"{"jsonrpc":"2.0","id":"#, id, br#","result":{}}"#]
        .concat()
        .into()
}

/// Returns the `initialize` result under the client's id, and the revision that holds for the
/// session. That is the older of the client's and the server's, since another client may have
/// opened the link.
pub fn lower_server_info(id: &[u8], server_info: &ServerInfo, asked: Option<Version>) -> (Bytes, Version) {
    if server_info.era == Era::Modern {
        return translate::initialize_result(id, server_info, asked);
    }
    let spoken = server_info.version.unwrap_or(Version::ASSUMED);
    match asked {
        Some(asked) if asked < spoken => {
            let result = server_info.message.raw(Member::Result).unwrap_or_default();
            let body = match reword_version(result, asked) {
                Some(result) => [br#"{"jsonrpc":"2.0","id":"#, id, br#","result":"#, &result, b"}"]
                    .concat()
                    .into(),
                None => server_info.message.spliced(&[(Member::Id, id)]),
            };
            (body, asked)
        }
        Some(_) | None => (server_info.message.spliced(&[(Member::Id, id)]), spoken),
    }
}

/// Replaces the value of the top-level `protocolVersion` of a raw object, leaving all else to the
/// byte.
fn reword_version(result: &[u8], version: Version) -> Option<Vec<u8>> {
    #[derive(serde::Deserialize)]
    struct Found<'a> {
        #[serde(borrow, rename = "protocolVersion")]
        version: &'a serde_json::value::RawValue,
    }
    let text = std::str::from_utf8(result).ok()?;
    let found: Found<'_> = serde_json::from_str(text).ok()?;
    // The raw value borrows from `text`, so its place in it is where the replacement goes.
    let start = found.version.get().as_ptr() as usize - text.as_ptr() as usize;
    let end = start + found.version.get().len();
    let mut out = Vec::with_capacity(result.len());
    out.extend_from_slice(result.get(..start)?);
    out.extend_from_slice(quoted(version.as_str()).as_bytes());
    out.extend_from_slice(result.get(end..)?);
    Some(out)
}

/// Returns a server's question as a request with an id of Rialto.
pub fn lower_question(question: QuestionKey, message: &Message) -> Bytes {
    message.spliced(&[(Member::Id, question.0.to_string().as_bytes())])
}

/// Tells a client that its answer is no longer wanted.
pub fn lower_withdrawal(question: QuestionKey, message: Option<&Message>) -> Bytes {
    match message {
        Some(message) => message.spliced(&[(Member::RequestId, question.0.to_string().as_bytes())]),
        None => format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{},"reason":"the server no longer waits for the answer"}}}}"#,
            question.0
        )
        .into(),
    }
}

/// Returns a failure as a JSON-RPC error, with `data` that helps.
pub fn lower_failure(id: &[u8], failure: &Failure) -> Bytes {
    let (text, data) = describe_failure(failure);
    let code = match failure {
        Failure::SessionEnded => error_code::INVALID_REQUEST,
        Failure::Unsupported { .. } => error_code::INVALID_PARAMS,
        Failure::Timeout { .. }
        | Failure::StartTimeout { .. }
        | Failure::Exited(_)
        | Failure::Unavailable { .. }
        | Failure::Retired
        | Failure::HandshakeRefused
        | Failure::Overloaded { .. }
        | Failure::Occupied
        | Failure::TooLarge { .. }
        | Failure::Unanswered { .. }
        | Failure::Invalid(_)
        | Failure::Upstream(_)
        | Failure::Cancelled
        | Failure::OwnerLost => error_code::INTERNAL_ERROR,
    };
    error(Some(id), code, &text, Some(&data))
}

/// Returns a failure in words, and the members of `data` about it.
pub fn describe_failure(failure: &Failure) -> (String, String) {
    let mut data = format!(r#""reason":"{}""#, failure.reason());
    let text = match failure {
        Failure::Timeout { setting, limit } => {
            let _ = write!(data, r#","setting":"{setting}""#);
            format!("the server did not answer within {limit:?} ({setting})")
        }
        Failure::StartTimeout { limit, backend_error } => {
            data.push_str(r#","setting":"start_timeout""#);
            let mut text = format!("the server was not ready within {limit:?} (start_timeout)");
            if let Some(backend_error) = backend_error {
                describe(&mut data, backend_error);
                let _ = write!(text, ": {}", backend_error.what);
                if let Some(line) = backend_error.stderr.last() {
                    let _ = write!(text, "; its last line on stderr: {line}");
                }
                explain(&mut text, backend_error);
            }
            text
        }
        Failure::Exited(backend_error) => {
            describe(&mut data, backend_error);
            let mut text = format!(
                "the server ended while it worked on the request ({})",
                backend_error.what
            );
            explain(&mut text, backend_error);
            text
        }
        Failure::Unavailable {
            backend_error,
            retry_after,
        } => {
            describe(&mut data, backend_error);
            // Writing to a `String` cannot fail.
            let _ = write!(data, r#","retryAfterSeconds":{}"#, retry_after.as_secs().max(1));
            let mut text = format!("the server is not available ({})", backend_error.what);
            explain(&mut text, backend_error);
            text
        }
        Failure::Retired => "the configuration of this destination has just changed".to_owned(),
        Failure::HandshakeRefused => "the server refused the handshake".to_owned(),
        Failure::Overloaded { limit } => {
            let _ = write!(data, r#","limit":{}"#, quoted(limit));
            format!("too many {limit}")
        }
        Failure::Occupied => {
            data.push_str(r#","setting":"process""#);
            "the server is busy with another caller, whose questions could not be told from yours; \
             try again, or set `process: per_identity` for this server"
                .to_owned()
        }
        Failure::TooLarge { length, limit } => {
            let _ = write!(
                data,
                r#","setting":"max_message_bytes","limit":{limit},"length":{length}"#
            );
            format!("the answer has {length} bytes, more than max_message_bytes ({limit}) allows")
        }
        Failure::Unsupported { what } => (*what).to_owned(),
        Failure::Unanswered { why } => (*why).to_owned(),
        Failure::Invalid(error) => format!("the server's answer cannot be read: {error}"),
        Failure::Upstream(upstream) => upstream.what.clone(),
        Failure::Cancelled => "the request was cancelled".to_owned(),
        Failure::SessionEnded => "the session has ended".to_owned(),
        Failure::OwnerLost => {
            data.push_str(r#","outcome":"unknown""#);
            "the gateway was restarted while the request was open; the server may have run it".to_owned()
        }
    };
    (text, data)
}

fn describe(data: &mut String, backend_error: &BackendError) {
    let _ = write!(
        data,
        r#","detail":{},"restarts":{}"#,
        quoted(&backend_error.what),
        backend_error.restarts
    );
    if !backend_error.stderr.is_empty() {
        let lines: Vec<String> = backend_error.stderr.iter().map(|line| quoted(line)).collect();
        let _ = write!(data, r#","stderr":[{}]"#, lines.join(","));
    }
    if let Some(stray) = &backend_error.stray_output {
        let _ = write!(data, r#","strayOutput":{{"lines":{}"#, stray.lines);
        if let Some(first) = &stray.first {
            let _ = write!(data, r#","first":{}"#, quoted(first));
        }
        data.push('}');
    }
    if !backend_error.hints.is_empty() {
        let hints: Vec<String> = backend_error.hints.iter().map(|hint| quoted(hint)).collect();
        let _ = write!(data, r#","hints":[{}]"#, hints.join(","));
    }
}

/// Adds to a failure's text what a person needs to mend it. Many hosts show nothing but the text.
fn explain(text: &mut String, backend_error: &BackendError) {
    if let Some(stray) = &backend_error.stray_output {
        let (lines, were) = match stray.lines {
            1 => ("line", "was no message"),
            _ => ("lines", "were no messages"),
        };
        let _ = write!(text, "; {} {lines} on stdout {were}", stray.lines);
        if let Some(first) = &stray.first {
            let _ = write!(text, ", the first: {first}");
        }
    }
    for hint in &backend_error.hints {
        let _ = write!(text, "; {hint}");
    }
}

/// Returns a JSON-RPC error object. Where no id could be read it is null, as JSON-RPC has it for
/// the legacy era.
pub fn error(id: Option<&[u8]>, code: i32, text: &str, data: Option<&str>) -> Bytes {
    let mut out = BytesMut::with_capacity(96 + text.len());
    out.put_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.put_slice(id.unwrap_or(b"null"));
    out.put_slice(br#","error":{"code":"#);
    out.put_slice(code.to_string().as_bytes());
    out.put_slice(br#","message":"#);
    out.put_slice(quoted(text).as_bytes());
    if let Some(data) = data {
        out.put_slice(br#","data":{"#);
        out.put_slice(data.as_bytes());
        out.put_u8(b'}');
    }
    out.put_slice(b"}}");
    out.freeze()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::exchange::StrayOutput;
    use crate::message::ScanError;

    fn message(text: &str) -> Message {
        Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    #[test]
    fn failures_are_valid_json_that_names_the_reason() {
        let backend_error = Arc::new(BackendError {
            what: "exit \"3\"".into(),
            stderr: vec!["a\n\"b\"".into()],
            restarts: 2,
            stray_output: Some(StrayOutput {
                lines: 3,
                first: Some("hello \"you\"".into()),
            }),
            hints: vec!["set `A`".into()],
        });
        for failure in [
            Failure::Timeout {
                setting: "request_timeout",
                limit: Duration::from_secs(30),
            },
            Failure::StartTimeout {
                limit: Duration::from_secs(60),
                backend_error: None,
            },
            Failure::StartTimeout {
                limit: Duration::from_secs(60),
                backend_error: Some(Arc::clone(&backend_error)),
            },
            Failure::Exited(Arc::clone(&backend_error)),
            Failure::Unavailable {
                backend_error,
                retry_after: Duration::from_secs(30),
            },
            Failure::Overloaded {
                limit: "calls in flight",
            },
            Failure::Occupied,
            Failure::TooLarge { length: 10, limit: 5 },
            Failure::Invalid(ScanError::TooDeep),
            Failure::Cancelled,
            Failure::SessionEnded,
        ] {
            let body = lower_failure(b"\"x\"", &failure);
            let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(value["id"], "x");
            assert_eq!(value["error"]["data"]["reason"], failure.reason());
        }
    }

    #[test]
    fn text_of_a_failure_has_what_a_person_needs_to_mend_it() {
        let explained = |lines, first: Option<&str>| {
            let backend_error = BackendError {
                what: "exit status 3".into(),
                stray_output: Some(StrayOutput {
                    lines,
                    first: first.map(str::to_owned),
                }),
                hints: vec!["set `A`".into()],
                ..BackendError::default()
            };
            let body = lower_failure(b"1", &Failure::Exited(Arc::new(backend_error)));
            let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
            value["error"]["message"].as_str().unwrap_or_default().to_owned()
        };
        let ended = "the server ended while it worked on the request (exit status 3)";
        assert_eq!(
            explained(1, Some("hello")),
            format!("{ended}; 1 line on stdout was no message, the first: hello; set `A`")
        );
        assert_eq!(
            explained(2, None),
            format!("{ended}; 2 lines on stdout were no messages; set `A`")
        );
    }

    #[test]
    fn an_initialize_result_gets_an_older_clients_version_and_nothing_else_changes() {
        let server_info = ServerInfo {
            message: message(
                r#"{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"x":{"protocolVersion":"keep"}}, "protocolVersion" : "2025-11-25","n":1.0}}"#,
            ),
            era: Era::Legacy,
            version: Some(Version::V2025_11_25),
            changing_lists: vec![],
            logs: false,
            subscriptions: false,
            tasks: false,
            info: None,
        };
        let (body, version) = lower_server_info(b"7", &server_info, Some(Version::V2025_03_26));
        assert_eq!(version, Version::V2025_03_26);
        assert_eq!(
            &body[..],
            br#"{"jsonrpc":"2.0","id":7,"result":{"capabilities":{"x":{"protocolVersion":"keep"}}, "protocolVersion" : "2025-03-26","n":1.0}}"#
        );
        let (body, version) = lower_server_info(b"7", &server_info, Some(Version::V2025_11_25));
        assert_eq!(version, Version::V2025_11_25);
        assert!(body.ends_with(br#""protocolVersion" : "2025-11-25","n":1.0}}"#));
        let text = r#"{"result":{"protocolVersion":"2025-11-25"},"id":1,"jsonrpc":"2.0"}"#;
        let server_info = ServerInfo {
            message: message(text),
            ..server_info
        };
        let (body, _) = lower_server_info(b"1", &server_info, Some(Version::V2025_11_25));
        assert_eq!(body, text.as_bytes(), "it passes byte for byte");
    }

    #[test]
    fn messages_are_classified() {
        let classified = |text: &str| lift(&message(text));
        assert_eq!(
            classified(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#),
            Ok(Classified::Ping)
        );
        assert_eq!(
            classified(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#),
            Ok(Classified::Request(Request::Plain))
        );
        assert_eq!(
            classified(r#"{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"a:\/b"}}"#),
            Ok(Classified::Request(Request::Subscribe { uri: "a:/b".into() }))
        );
        assert!(matches!(
            classified(r#"{"jsonrpc":"2.0","id":1,"method":"resources/subscribe"}"#),
            Err(InvalidRequest::BadParams(_))
        ));
        assert_eq!(
            classified(r#"{"jsonrpc":"1.0","id":1,"method":"x"}"#),
            Err(InvalidRequest::NotJsonRpc)
        );
        assert_eq!(
            classified(r#"{"jsonrpc":"2.0","id":1.5,"method":"x"}"#),
            Err(InvalidRequest::BadId)
        );
        assert_eq!(
            classified(r#"{"jsonrpc":"2.0","id":9,"result":{}}"#),
            Ok(Classified::Answer(Some(QuestionKey(9))))
        );
        assert_eq!(
            classified(r#"{"jsonrpc":"2.0","id":"9","result":{}}"#),
            Ok(Classified::Answer(None))
        );
    }
}
