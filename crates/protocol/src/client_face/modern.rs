//! A modern client (2026-07-28): every request describes itself, nothing is remembered between two
//! of them, and the server's questions come as an answer that asks for input.

mod translate;

use bytes::Bytes;
use serde_json::Value;

use crate::error_code;
use crate::exchange::{Client, Failure, Principal, ServerInfo};
use crate::message::{Member, Message, quoted};
use crate::method::{LogLevel, Method};
use crate::object::{Object, may_have};
use crate::version::{Era, Version};

use super::legacy;

/// The era of these clients.
pub const ERA: Era = Era::Modern;

/// Why a request is refused before it is sent to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InvalidRequest {
    /// `jsonrpc` is not `"2.0"`.
    NotJsonRpc,
    /// The id is no string and no integer.
    BadId,
    /// The members of `_meta` that every request must have.
    Envelope(&'static str),
    /// The request is in a revision that is not served.
    UnsupportedVersion(String),
    /// The revision has no such method, or not any more.
    NoSuchMethod,
    /// The params lack what the method needs.
    BadParams(&'static str),
    /// The client did not declare what the method needs.
    MissingCapability(&'static str),
    /// A header differs from the body.
    Header(String),
}

impl InvalidRequest {
    /// Returns the JSON-RPC error code.
    pub const fn code(&self) -> i32 {
        match self {
            Self::NotJsonRpc | Self::BadId => error_code::INVALID_REQUEST,
            Self::Envelope(_) | Self::BadParams(_) => error_code::INVALID_PARAMS,
            Self::UnsupportedVersion(_) => error_code::UNSUPPORTED_VERSION,
            Self::NoSuchMethod => error_code::METHOD_NOT_FOUND,
            Self::MissingCapability(_) => error_code::MISSING_CAPABILITY,
            Self::Header(_) => error_code::HEADER_MISMATCH,
        }
    }

    /// Returns the body of the refusal. Where no id could be read there is none: null would be no
    /// id of this era.
    pub fn body(&self, id: Option<&[u8]>) -> Bytes {
        let (text, data) = match self {
            Self::NotJsonRpc => ("the member `jsonrpc` must be \"2.0\"".to_owned(), None),
            Self::BadId => (
                "the id of a request must be a string or an integer".to_owned(),
                None,
            ),
            Self::Envelope(text) | Self::BadParams(text) => ((*text).to_owned(), None),
            Self::UnsupportedVersion(requested) => (
                "unsupported protocol version".to_owned(),
                Some(format!(
                    r#""supported":["{}"],"requested":{}"#,
                    Version::NEWEST_MODERN.as_str(),
                    quoted(requested)
                )),
            ),
            Self::NoSuchMethod => ("method not found".to_owned(), None),
            Self::MissingCapability(capability) => (
                format!("the client must declare the capability `{capability}` for this"),
                Some(format!(r#""requiredCapabilities":{{"{capability}":{{}}}}"#)),
            ),
            Self::Header(text) => (text.clone(), None),
        };
        error(id, self.code(), &text, data.as_deref())
    }
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Classified {
    /// `server/discover`
    Discover,
    /// `subscriptions/listen`
    Listen,
    /// A request for the server; `retry` if it answers an earlier question.
    Call {
        /// It carries answers to the questions of an earlier round.
        retry: bool,
    },
}

/// Returns whether a message describes itself, which makes it modern.
pub fn is_modern(message: &Message) -> bool {
    message.raw(Member::MetaProtocolVersion).is_some()
}

/// Judges what describes a request; header checks come between this and [`lift`].
pub fn check_envelope(message: &Message) -> Result<(), InvalidRequest> {
    if !message.is_json_rpc() {
        return Err(InvalidRequest::NotJsonRpc);
    }
    if !message.has_valid_id() {
        return Err(InvalidRequest::BadId);
    }
    if message.text(Member::MetaProtocolVersion).is_none() {
        return Err(InvalidRequest::Envelope(
            "`_meta[\"io.modelcontextprotocol/protocolVersion\"]` must be a string",
        ));
    }
    if message
        .raw(Member::MetaClientCapabilities)
        .is_none_or(|raw| !raw.starts_with(b"{"))
    {
        return Err(InvalidRequest::Envelope(
            "`_meta[\"io.modelcontextprotocol/clientCapabilities\"]` must be an object",
        ));
    }
    if message.raw(Member::MetaLogLevel).is_some() && log_level(message).is_none() {
        return Err(InvalidRequest::Envelope(
            "`_meta[\"io.modelcontextprotocol/logLevel\"]` must be a log level",
        ));
    }
    Ok(())
}

/// Returns whether the request speaks a revision that is spoken here.
pub fn check_version(message: &Message) -> Result<(), InvalidRequest> {
    let version = message.text(Member::MetaProtocolVersion).unwrap_or_default();
    if version == Version::NEWEST_MODERN.as_str() {
        Ok(())
    } else {
        Err(InvalidRequest::UnsupportedVersion(version.into_owned()))
    }
}

/// Reads what a request asks for.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "every other method is treated alike"
)]
pub fn lift(message: &Message) -> Result<Classified, InvalidRequest> {
    Ok(match message.method() {
        Method::ServerDiscover => Classified::Discover,
        Method::SubscriptionsListen => Classified::Listen,
        // Gone with this revision, however a server behind may still know them.
        Method::Initialize
        | Method::Ping
        | Method::LoggingSetLevel
        | Method::ResourcesSubscribe
        | Method::ResourcesUnsubscribe
        | Method::TasksResult
        | Method::TasksList => return Err(InvalidRequest::NoSuchMethod),
        Method::ToolsCall | Method::PromptsGet | Method::ResourcesRead => {
            let params = message
                .raw(Member::Params)
                .filter(|raw| may_have(raw, &["inputResponses", "requestState"]))
                .and_then(Object::parse)
                .unwrap_or_default();
            if params
                .get("inputResponses")
                .is_some_and(|raw| !raw.starts_with('{'))
            {
                return Err(InvalidRequest::BadParams(
                    "`params.inputResponses` must be an object",
                ));
            }
            if params
                .get("requestState")
                .is_some_and(|raw| !raw.starts_with('"'))
            {
                return Err(InvalidRequest::BadParams(
                    "`params.requestState` must be a string",
                ));
            }
            Classified::Call {
                retry: params.get("requestState").is_some(),
            }
        }
        _ => Classified::Call { retry: false },
    })
}

/// Returns the level of log lines that the request asks for.
pub fn log_level(message: &Message) -> Option<LogLevel> {
    LogLevel::parse(&message.text(Member::MetaLogLevel)?)
}

/// Returns the client that a request describes.
pub fn client(message: &Message, principal: Principal) -> Client {
    Client::declaring(
        principal,
        message.raw_copy(Member::MetaClientCapabilities),
        message.raw_copy(Member::MetaClientInfo),
    )
}

/// Returns the server's answer under the client's id.
pub fn lower_reply(id: &[u8], message: &Message, era: Era, method: Method, server: Option<&str>) -> Bytes {
    match era {
        Era::Modern => message.spliced(&[(Member::Id, id)]),
        Era::Legacy => translate::reply(id, message, method, server),
    }
}

/// Returns a tool of a legacy server as a modern client sees it.
pub(super) fn reword_tool(raw: &str) -> std::borrow::Cow<'_, str> {
    translate::reword_tool(raw)
}

/// Returns the URLs that a legacy server wants visited before it is called again, as questions;
/// `None` for any other answer.
pub fn urls_first(message: &Message, era: Era) -> Option<Vec<Message>> {
    match era {
        Era::Legacy => translate::urls_first(message.raw(Member::Error)?),
        Era::Modern => None,
    }
}

/// Returns the server's description of itself, as a result of `server/discover`.
pub fn lower_server_info(id: &[u8], server_info: &ServerInfo) -> Bytes {
    match server_info.era {
        Era::Modern => server_info.message.spliced(&[(Member::Id, id)]),
        Era::Legacy => translate::discovery(id, server_info),
    }
}

/// Returns a failure as a JSON-RPC error.
pub fn lower_failure(id: &[u8], failure: &Failure) -> Bytes {
    legacy::lower_failure(id, failure)
}

/// Returns an answer that asks for input.
pub fn lower_input_required<'a>(
    id: &[u8],
    questions: impl Iterator<Item = (&'a str, &'a Message)>,
    state: &str,
) -> Bytes {
    let requests: Vec<String> = questions
        .map(|(key, message)| {
            let method = String::from_utf8_lossy(message.raw(Member::Method).unwrap_or_default());
            let mut params = message.object(Member::Params);
            without_legacy_asking(&mut params);
            if params.is_empty() {
                format!(r#"{}:{{"method":{method}}}"#, quoted(key))
            } else {
                format!(r#"{}:{{"method":{method},"params":{params}}}"#, quoted(key))
            }
        })
        .collect();
    let text = format!(
        r#","result":{{"resultType":"input_required","inputRequests":{{{}}},"requestState":{}}}}}"#,
        requests.join(","),
        quoted(state),
    );
    [br#"{"jsonrpc":"2.0","id":"#, id, text.as_bytes()]
        .concat()
        .into()
}

/// Removes from a question what belongs to the other era's way of asking.
fn without_legacy_asking(params: &mut Object<'_>) {
    for member in ["_meta", "elicitationId", "task"] {
        params.remove(member);
    }
}

/// Returns whether a client's answer to a question has the shape the question wants.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "every other method is treated alike"
)]
pub fn is_answer(method: Method, raw: &str) -> bool {
    let Ok(answer) = serde_json::from_str::<Value>(raw) else {
        return false;
    };
    match method {
        Method::ElicitationCreate => {
            matches!(
                answer.get("action").and_then(Value::as_str),
                Some("accept" | "decline" | "cancel")
            )
        }
        Method::SamplingCreateMessage => {
            answer.get("role").is_some() && answer.get("content").is_some() && answer.get("model").is_some()
        }
        Method::RootsList => answer.get("roots").is_some_and(Value::is_array),
        _ => answer.is_object(),
    }
}

/// Returns whether the answer to an elicitation is yes.
pub fn is_consent(raw: &str) -> bool {
    Object::parse(raw.as_bytes())
        .and_then(|answer| answer.text("action"))
        .as_deref()
        == Some("accept")
}

/// Returns a JSON-RPC error object.
pub fn error(id: Option<&[u8]>, code: i32, text: &str, data: Option<&str>) -> Bytes {
    match id {
        Some(_) => legacy::error(id, code, text, data),
        None => {
            let data = data
                .map(|data| format!(r#","data":{{{data}}}"#))
                .unwrap_or_default();
            format!(
                r#"{{"jsonrpc":"2.0","error":{{"code":{code},"message":{}{data}}}}}"#,
                quoted(text)
            )
            .into()
        }
    }
}

/// Returns the code of an error response; `None` for a result.
pub fn error_code_of(body: &[u8]) -> Option<i32> {
    // Results are by far the most; their bodies are not taken apart.
    memchr::memmem::find(body, b"\"error\"")?;
    let envelope = Object::parse(body)?;
    let error = Object::parse(envelope.get("error")?.as_bytes())?;
    error.get("code")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_has_the_shape_that_its_question_wants() {
        let fitting = [
            (Method::ElicitationCreate, r#"{"action":"accept","content":{}}"#),
            (Method::ElicitationCreate, r#"{"action":"cancel"}"#),
            (
                Method::SamplingCreateMessage,
                r#"{"role":"assistant","content":{"type":"text","text":""},"model":"m"}"#,
            ),
            (Method::RootsList, r#"{"roots":[]}"#),
        ];
        for (method, answer) in fitting {
            assert!(is_answer(method, answer), "{answer}");
            for (other, _) in fitting.iter().filter(|(other, _)| *other != method) {
                assert!(!is_answer(*other, answer), "{other:?} {answer}");
            }
        }
        for (method, answer) in [
            (Method::ElicitationCreate, r#"{"action":"perhaps"}"#),
            (
                Method::SamplingCreateMessage,
                r#"{"role":"assistant","content":{}}"#,
            ),
            (
                Method::SamplingCreateMessage,
                r#"{"role":"assistant","model":"m"}"#,
            ),
            (Method::SamplingCreateMessage, r#"{"content":{},"model":"m"}"#),
            (Method::RootsList, r#"{"roots":{}}"#),
            (Method::RootsList, "[]"),
            (Method::RootsList, "{"),
        ] {
            assert!(!is_answer(method, answer), "{method:?} {answer}");
        }
    }
}
