//! What waits to be sent to a remote server: the lines that the multiplexer has written, one by
//! one, and what each is.
//!
//! A client's call that goes out in its own words was read when it came in; it is not read a second
//! time to learn what it is. Everything else is rare, and is read here.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::MessageInfo;
use crate::backend_face::WireId;
use crate::message::{Member, Message};
use crate::method::Method;

/// One line, which is sent by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostRequest {
    /// The message.
    pub line: Bytes,
    /// What kind of message it is.
    pub message_info: MessageInfo,
    /// The request that it takes back.
    pub cancels: Option<WireId>,
}

/// Where a line stands of which it is known what it is. Its end is after its line break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownLine {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) message_info: MessageInfo,
}

/// Everything that has gathered: an iterator over its lines, in the order in which they were
/// written.
#[derive(Debug, Clone, Default)]
pub struct PostBatch {
    lines: Bytes,
    known: VecDeque<KnownLine>,
    /// How much was given already.
    given: usize,
}

impl PostBatch {
    pub(crate) fn new(lines: BytesMut, known: Vec<KnownLine>) -> Self {
        Self {
            lines: lines.freeze(),
            known: known.into(),
            given: 0,
        }
    }

    /// Returns the next line, and what it is if that is known.
    fn next_line(&mut self) -> Option<(Bytes, Option<MessageInfo>)> {
        let start = self.given;
        let known = self.known.pop_front_if(|known| known.start == start);
        self.given = match known {
            Some(known) => known.end,
            None => start + memchr::memchr(b'\n', self.lines.get(start..)?)? + 1,
        };
        Some((
            self.lines.slice(start..self.given - 1),
            known.map(|known| known.message_info),
        ))
    }
}

impl Iterator for PostBatch {
    type Item = PostRequest;

    fn next(&mut self) -> Option<PostRequest> {
        loop {
            let (line, known) = self.next_line()?;
            if let Some(message_info) = known {
                return Some(PostRequest {
                    line,
                    message_info,
                    cancels: None,
                });
            }
            if let Ok(message) = Message::scan(line.clone()) {
                let cancelled = message.number(Member::RequestId).map(WireId);
                return Some(PostRequest {
                    line,
                    message_info: MessageInfo::of(&message),
                    cancels: cancelled.filter(|_| message.method() == Method::Cancelled),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo"}}"#;
    const NOTE: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    const CANCEL: &str = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#;

    fn request(id: u64, method: Method) -> MessageInfo {
        MessageInfo::Request {
            id: WireId(id),
            method,
        }
    }

    fn batch(lines: &[&str], known: Vec<KnownLine>) -> Vec<(String, MessageInfo, Option<WireId>)> {
        let text: String = lines.iter().flat_map(|line| [*line, "\n"]).collect();
        PostBatch::new(BytesMut::from(text.as_str()), known)
            .map(|post| {
                let line = String::from_utf8(post.line.to_vec()).expect("text");
                (line, post.message_info, post.cancels)
            })
            .collect()
    }

    #[test]
    fn every_line_comes_with_its_message_info() {
        let note = |method| MessageInfo::Note { method };
        assert_eq!(
            batch(&[NOTE, CALL, CANCEL], Vec::new()),
            [
                (NOTE.to_owned(), note(Method::Initialized), None),
                (CALL.to_owned(), request(7, Method::ToolsCall), None),
                (CANCEL.to_owned(), note(Method::Cancelled), Some(WireId(7))),
            ]
        );
    }

    #[test]
    fn known_lines_are_not_read_again() {
        let start = NOTE.len() + 1;
        let known = KnownLine {
            start,
            end: start + CALL.len() + 1,
            message_info: request(8, Method::Ping),
        };
        let given = batch(&[NOTE, CALL, CALL], vec![known]);
        let infos: Vec<_> = given.iter().map(|(_, message_info, _)| *message_info).collect();
        assert_eq!(
            infos,
            [
                MessageInfo::Note {
                    method: Method::Initialized
                },
                request(8, Method::Ping),
                request(7, Method::ToolsCall)
            ]
        );
        assert!(given.iter().skip(1).all(|(line, ..)| line == CALL));
    }
}
