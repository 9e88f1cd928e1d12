//! A client's messages ↔ Ask / Tell: one file per era. A face translates only foreign words.

pub mod legacy;
pub mod modern;
pub mod own_answers;
pub mod stdio;

use bytes::Bytes;

use crate::message::Message;
use crate::version::Era;

/// Returns the era of a client's message: only those of the modern era describe themselves.
pub fn era_of(message: &Message) -> Era {
    match modern::is_modern(message) {
        true => modern::ERA,
        false => legacy::ERA,
    }
}

/// Returns a response with a `result` or an `error` that is written already.
fn respond(id: &[u8], member: &str, raw: &str) -> Bytes {
    let head = format!(r#","{member}":"#);
    [
        br#"{"jsonrpc":"2.0","id":"#,
        id,
        head.as_bytes(),
        raw.as_bytes(),
        b"}",
    ]
    .concat()
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_modern_if_it_describes_itself() {
        let era = |params: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{params}}}"#);
            era_of(&Message::own(text))
        };
        assert_eq!(era("{}"), Era::Legacy);
        let described = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        assert_eq!(era(described), Era::Modern);
    }
}
