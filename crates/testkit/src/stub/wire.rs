//! JSON-RPC messages with every value left as raw JSON, so that ids and tokens are quoted byte for
//! byte.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The members of a JSON object, each as the sender wrote it.
#[derive(Debug, Clone, Default)]
pub(super) struct Members<'a>(BTreeMap<String, &'a RawValue>);

impl<'a> Members<'a> {
    /// `None` when `text` is no JSON object.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok().map(Self)
    }

    pub(super) fn raw(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|value| value.get())
    }

    /// The member as an object; empty when it is missing or something else.
    pub(super) fn object(&self, name: &str) -> Members<'a> {
        self.raw(name).and_then(Members::parse).unwrap_or_default()
    }

    /// A string's content, or any other value's JSON.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let raw = self.raw(name)?;
        Some(serde_json::from_str::<String>(raw).unwrap_or_else(|_| raw.to_owned()))
    }

    pub(super) fn number(&self, name: &str, default: u64) -> u64 {
        self.raw(name).and_then(|raw| raw.parse().ok()).unwrap_or(default)
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> bool {
        self.raw(name).map_or(default, |raw| raw == "true")
    }
}

pub(super) fn response(id: &str, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

pub(super) fn error(id: &str, code: i64, message: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{}}}"#,
        json!({"code": code, "message": message})
    )
}

pub(super) fn request(id: &str, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

pub(super) fn notification(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}

/// A tool result with one text.
pub(super) fn text_result(text: &str) -> String {
    format!(
        r#"{{"content":[{{"type":"text","text":{}}}]}}"#,
        Value::from(text)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_any_size_is_quoted_as_it_came() {
        let message = Members::parse(r#"{"id": 1000000000000000000000000000001, "x": "\u0041"}"#).unwrap();
        assert_eq!(message.raw("id"), Some("1000000000000000000000000000001"));
        assert_eq!(message.raw("x"), Some(r#""\u0041""#));
        assert_eq!(message.text("x").as_deref(), Some("A"));
    }

    #[test]
    fn other_values_than_objects_have_no_members() {
        assert!(Members::parse("[]").is_none());
        assert!(Members::parse("{").is_none());
    }
}
