//! Queries and forms, percent-decoded.

use std::collections::HashMap;
use std::fmt::Write as _;

#[derive(Debug, Default)]
pub(super) struct Form(HashMap<String, String>);

impl Form {
    pub(super) fn parse(text: &str) -> Self {
        let mut form = Self::default();
        form.add(text);
        form
    }

    pub(super) fn add(&mut self, text: &str) {
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            self.0.insert(decode(name), decode(value));
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn owned(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_owned()
    }

    pub(super) fn all(&self) -> HashMap<String, String> {
        self.0.clone()
    }
}

pub(super) fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next().unwrap_or_default(), rest.next().unwrap_or_default()];
                let digits = std::str::from_utf8(&digits).unwrap_or_default();
                u8::from_str_radix(digits, 16).unwrap_or(b'?')
            }
            other => other,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn encode(pairs: &[(&str, String)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        let _ = write!(text, "{}{name}=", if text.is_empty() { "" } else { "&" });
        for byte in value.bytes() {
            let _ = if byte.is_ascii_alphanumeric() {
                write!(text, "{}", char::from(byte))
            } else {
                write!(text, "%{byte:02X}")
            };
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_values_are_decoded_again() {
        let text = encode(&[("a", "x y&=%\u{e4}".to_owned()), ("b", String::new())]);
        let form = Form::parse(&text);
        assert_eq!(
            (form.get("a"), form.get("b"), form.get("c")),
            (Some("x y&=%\u{e4}"), Some(""), None)
        );
    }
}
