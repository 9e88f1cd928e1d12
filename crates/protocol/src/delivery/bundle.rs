//! What waits to be sent to a remote server: the lines that the multiplexer has written, one by one, and what each is.
//!
//! A client's call that goes out in its own words was read when it came in; it is not read a second time to learn
//! what it is. Everything else is rare, and is read here.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::Parcel;
use crate::backend_face::WireId;
use crate::message::{Member, Message};
use crate::method::Method;

/// One line, which is sent by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Post {
    /// The message.
    pub line: Bytes,
    /// What kind of message it is.
    pub parcel: Parcel,
    /// The request that it takes back.
    pub cancels: Option<WireId>,
}

/// Where a line stands of which it is known what it is. Its end is after its line break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) parcel: Parcel,
}

/// Everything that has gathered: an iterator over its lines, in the order in which they were written.
#[derive(Debug, Default)]
pub struct Bundle {
    lines: Bytes,
    known: VecDeque<Known>,
    /// How much was given already.
    given: usize,
}

impl Bundle {
    pub(crate) fn new(lines: BytesMut, known: Vec<Known>) -> Self {
        Self {
            lines: lines.freeze(),
            known: known.into(),
            given: 0,
        }
    }

    /// The next line, and what it is if that is known.
    fn next_line(&mut self) -> Option<(Bytes, Option<Parcel>)> {
        let start = self.given;
        let known = self.known.pop_front_if(|known| known.start == start);
        self.given = match known {
            Some(known) => known.end,
            None => start + memchr::memchr(b'\n', self.lines.get(start..)?)? + 1,
        };
        Some((
            self.lines.slice(start..self.given - 1),
            known.map(|known| known.parcel),
        ))
    }
}

impl Iterator for Bundle {
    type Item = Post;

    fn next(&mut self) -> Option<Post> {
        loop {
            let (line, known) = self.next_line()?;
            if let Some(parcel) = known {
                return Some(Post {
                    line,
                    parcel,
                    cancels: None,
                });
            }
            if let Ok(message) = Message::scan(line.clone()) {
                let cancelled = message.number(Member::RequestId).map(WireId);
                return Some(Post {
                    line,
                    parcel: Parcel::of(&message),
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

    fn request(id: u64, method: Method) -> Parcel {
        Parcel::Request {
            id: WireId(id),
            method,
        }
    }

    fn bundle(lines: &[&str], known: Vec<Known>) -> Vec<(String, Parcel, Option<WireId>)> {
        let text: String = lines.iter().flat_map(|line| [*line, "\n"]).collect();
        Bundle::new(BytesMut::from(text.as_str()), known)
            .map(|post| {
                let line = String::from_utf8(post.line.to_vec()).expect("text");
                (line, post.parcel, post.cancels)
            })
            .collect()
    }

    #[test]
    fn every_line_is_given_with_what_it_is() {
        let note = |method| Parcel::Note { method };
        assert_eq!(
            bundle(&[NOTE, CALL, CANCEL], Vec::new()),
            [
                (NOTE.to_owned(), note(Method::Initialized), None),
                (CALL.to_owned(), request(7, Method::ToolsCall), None),
                (CANCEL.to_owned(), note(Method::Cancelled), Some(WireId(7))),
            ]
        );
    }

    #[test]
    fn what_is_known_is_not_read_again() {
        let start = NOTE.len() + 1;
        let known = Known {
            start,
            end: start + CALL.len() + 1,
            parcel: request(8, Method::Ping),
        };
        let given = bundle(&[NOTE, CALL, CALL], vec![known]);
        let parcels: Vec<_> = given.iter().map(|(_, parcel, _)| *parcel).collect();
        assert_eq!(
            parcels,
            [
                Parcel::Note {
                    method: Method::Initialized
                },
                request(8, Method::Ping),
                request(7, Method::ToolsCall)
            ]
        );
        assert!(given.iter().skip(1).all(|(line, ..)| line == CALL));
    }
}
