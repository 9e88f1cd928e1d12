//! Lines on their way to the client.

use bytes::{BufMut, BytesMut};
use memchr::memchr2;

use crate::message::Written;

/// What waits to be written, and what is being written.
#[derive(Debug, Default)]
pub(super) struct OutgoingBuffer {
    lines: BytesMut,
    /// Bytes that the writer has taken and not written yet.
    being_written: usize,
}

impl OutgoingBuffer {
    /// Returns everything that the client has not read yet, as far as that is known.
    pub(super) fn len(&self) -> usize {
        self.lines.len() + self.being_written
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn take(&mut self, empty: BytesMut) -> BytesMut {
        let taken = std::mem::replace(&mut self.lines, empty);
        self.being_written = taken.len();
        taken
    }

    pub(super) fn push(&mut self, line: &[u8]) {
        self.append(&[line]);
    }

    pub(super) fn push_written(&mut self, line: &Written) {
        match line {
            Written::Whole(line) => self.append(&[line]),
            Written::Cut { head, new, tail } => self.append(&[head, new, tail]),
        }
    }

    /// In valid JSON raw line breaks stand only between tokens. They become spaces, so that no peer
    /// can inject a second line.
    fn append(&mut self, pieces: &[&[u8]]) {
        self.lines
            .reserve(pieces.iter().map(|piece| piece.len()).sum::<usize>() + 1);
        for piece in pieces {
            let mut rest = *piece;
            while let Some(at) = memchr2(b'\n', b'\r', rest) {
                let (before, after) = rest.split_at(at);
                self.lines.put_slice(before);
                self.lines.put_u8(b' ');
                rest = after.get(1..).unwrap_or_default();
            }
            self.lines.put_slice(rest);
        }
        self.lines.put_u8(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_written_over_several_lines_goes_out_as_one() {
        let mut outgoing = OutgoingBuffer::default();
        outgoing.push(b"{\r\n \"a\": 1\n}");
        outgoing.push(b"{}");
        assert_eq!(&outgoing.take(BytesMut::new())[..], b"{   \"a\": 1 }\n{}\n");
        assert!(outgoing.is_empty());
        assert_eq!(outgoing.len(), 16, "it is not written yet");
        outgoing.take(BytesMut::new());
        assert_eq!(outgoing.len(), 0);
    }
}
