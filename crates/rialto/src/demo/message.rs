//! JSON-RPC as the demo server needs it: one value in becomes a request, a notification or a
//! response, and refusals get their codes here and nowhere else. Knows nothing of what MCP methods
//! mean.
use protocol::error_code;
use protocol::version::{Era, Version};
use serde_json::{Map, Value, json};

pub(super) type Object = Map<String, Value>;

#[derive(Debug)]
pub(super) enum Message {
    Request(Request),
    Notification {
        method: String,
        params: Object,
    },
    Response {
        id: Value,
        outcome: Result<Value, Value>,
    },
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: Value,
    pub(super) method: String,
    pub(super) params: Object,
}

/// Why a request gets an error instead of a result.
#[derive(Debug, PartialEq)]
pub(super) enum Refusal {
    NotJson(String),
    InvalidRequest(String),
    UnknownMethod(String),
    InvalidParams(String),
    UnknownResource(String),
    MissingCapability(Value),
    UnsupportedVersion { requested: Value },
    Busy(&'static str),
}

impl Refusal {
    fn code(&self, era: Era) -> i32 {
        match (self, era) {
            (Refusal::NotJson(_), _) => error_code::PARSE_ERROR,
            (Refusal::InvalidRequest(_), _) => error_code::INVALID_REQUEST,
            (Refusal::UnknownMethod(_), _) => error_code::METHOD_NOT_FOUND,
            (Refusal::InvalidParams(_), _) => error_code::INVALID_PARAMS,
            // 2026-07-28 retired the code of the older revisions.
            (Refusal::UnknownResource(_), Era::Legacy) => -32002,
            (Refusal::UnknownResource(_), Era::Modern) => error_code::INVALID_PARAMS,
            (Refusal::MissingCapability(_), _) => error_code::MISSING_CAPABILITY,
            (Refusal::UnsupportedVersion { .. }, _) => error_code::UNSUPPORTED_VERSION,
            (Refusal::Busy(_), _) => error_code::INTERNAL_ERROR,
        }
    }

    fn error(&self, era: Era) -> Value {
        let (message, data) = match self {
            Refusal::NotJson(why) => (format!("Parse error: {why}"), None),
            Refusal::InvalidRequest(why) => (format!("Invalid request: {why}"), None),
            Refusal::UnknownMethod(method) => (format!("Method not found: {method}"), None),
            Refusal::InvalidParams(why) => (format!("Invalid params: {why}"), None),
            Refusal::UnknownResource(uri) => {
                (format!("Resource not found: {uri}"), Some(json!({"uri": uri})))
            }
            Refusal::MissingCapability(required) => (
                "The client did not declare a capability this call needs".to_owned(),
                Some(json!({"requiredCapabilities": required})),
            ),
            Refusal::UnsupportedVersion { requested } => {
                let supported = [Version::NEWEST_MODERN.as_str()];
                let data = json!({"supported": supported, "requested": requested});
                ("Unsupported protocol version".to_owned(), Some(data))
            }
            Refusal::Busy(what) => (format!("Too many {what} at once"), None),
        };
        let mut error = json!({"code": self.code(era), "message": message});
        if let Some(data) = data {
            error["data"] = data;
        }
        error
    }
}

/// Reads one message. A refusal comes with the request's id where one could be read.
pub(super) fn read(value: Value) -> Result<Message, (Option<Value>, Refusal)> {
    let invalid = |id: Option<Value>, why: &str| (id, Refusal::InvalidRequest(why.to_owned()));
    let Value::Object(mut fields) = value else {
        return Err(invalid(None, "a message is one JSON object"));
    };
    let id = fields.remove("id");
    if id
        .as_ref()
        .is_some_and(|id| !(id.is_string() || id.is_i64() || id.is_u64()))
    {
        return Err(invalid(None, "an id is a string or an integer"));
    }
    // A client takes an error with its own id for an answer to its request of that id, so the id
    // goes back only to what looks like a request: the id of a malformed response is one of ours.
    let answerable = id.clone().filter(|_| fields.contains_key("method"));
    if fields.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(invalid(answerable, "\"jsonrpc\" must be \"2.0\""));
    }
    match (fields.remove("method"), id) {
        (Some(Value::String(method)), id) => {
            let params = match fields.remove("params") {
                None => Object::new(),
                Some(Value::Object(params)) => params,
                Some(_) => return Err((id, Refusal::InvalidParams("params must be an object".to_owned()))),
            };
            Ok(match id {
                Some(id) => Message::Request(Request { id, method, params }),
                None => Message::Notification { method, params },
            })
        }
        (Some(_), id) => Err(invalid(id, "a method is a string")),
        (None, Some(id)) => match (fields.remove("result"), fields.remove("error")) {
            (Some(result), None) => Ok(Message::Response {
                id,
                outcome: Ok(result),
            }),
            (None, Some(error)) => Ok(Message::Response {
                id,
                outcome: Err(error),
            }),
            (Some(_), Some(_)) | (None, None) => Err(invalid(None, "neither a request nor a response")),
        },
        (None, None) => Err(invalid(None, "neither a method nor an id")),
    }
}

pub(super) fn result(id: Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

/// Returns an error answer. Without a readable id the member is left out: some clients reject
/// `"id": null`.
pub(super) fn refusal(id: Option<Value>, refusal: &Refusal, era: Era) -> Value {
    let mut answer = json!({"jsonrpc": "2.0", "error": refusal.error(era)});
    if let Some(id) = id {
        answer["id"] = id;
    }
    answer
}

pub(super) fn request(id: u64, method: &str, params: Option<Value>) -> Value {
    let mut request = json!({"jsonrpc": "2.0", "id": id, "method": method});
    if let Some(params) = params {
        request["params"] = params;
    }
    request
}

pub(super) fn notification(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

/// Returns the progress token of a request, if it carries a valid one.
pub(super) fn progress_token(params: &Object) -> Result<Option<Value>, Refusal> {
    match params.get("_meta").and_then(|meta| meta.get("progressToken")) {
        None => Ok(None),
        Some(token) if token.is_string() || token.is_i64() || token.is_u64() => Ok(Some(token.clone())),
        Some(_) => Err(Refusal::InvalidParams(
            "progressToken must be a string or an integer".to_owned(),
        )),
    }
}

/// Returns a required string member of `params`.
pub(super) fn text<'a>(params: &'a Object, name: &str) -> Result<&'a str, Refusal> {
    let missing = || Refusal::InvalidParams(format!("{name} must be a string"));
    params.get(name).and_then(Value::as_str).ok_or_else(missing)
}
