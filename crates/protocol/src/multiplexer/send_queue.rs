//! What waits to be sent to the server: its bytes, the lines whose content is known, and what the
//! writer has taken.
//!
//! Back-pressure: a server that does not read is sent no more than a limited number of bytes
//! ([`SendQueue::has_room`]); the callers refuse or delay everything else.

use bytes::{Bytes, BytesMut};

use crate::backend_face::WireId;
use crate::delivery::{KnownLine, MessageInfo, PostBatch, PostRequest};
use crate::method::Method;
use crate::wire::outbox::Outbox;

/// The longest message that is written without the writer: what a pipe takes whole or not at all
/// (POSIX, `PIPE_BUF`).
const WRITTEN_THROUGH: usize = 4096;

/// The bytes for the server.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    outbox: Outbox,
    /// Lines in the outbox whose sender need not read them again.
    known_lines: Vec<KnownLine>,
    /// Bytes that the writer has taken and not written yet.
    being_written: usize,
}

impl SendQueue {
    /// Returns the end of all that waits, to write more to it.
    pub(super) fn end(&mut self) -> &mut BytesMut {
        self.outbox.end()
    }

    pub(super) fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Returns how many bytes wait that the writer has not taken.
    pub(super) fn len(&self) -> usize {
        self.outbox.len()
    }

    /// Returns how many bytes wait or are being written.
    pub(super) fn queued(&self) -> usize {
        self.outbox.len() + self.being_written
    }

    /// Returns whether this much more may wait. One message always may.
    pub(super) fn has_room(&self, length: usize, limit: usize) -> bool {
        let queued = self.queued();
        queued == 0 || queued + length <= limit
    }

    /// Notes that the bytes from `start` to the end are a client's request in the client's own
    /// words.
    pub(super) fn note_line(&mut self, start: usize, id: WireId, method: Method) {
        self.known_lines.push(KnownLine {
            start,
            end: self.outbox.len(),
            message_info: MessageInfo::Request { id, method },
        });
    }

    /// Hands everything that waits to the writer, which gives back its empty outbox.
    pub(super) fn take(&mut self, empty: Outbox) -> Outbox {
        self.known_lines.clear();
        self.being_written = self.outbox.len();
        std::mem::replace(&mut self.outbox, empty)
    }

    /// Hands over everything that waits as lines that are sent one by one.
    pub(super) fn take_posts(&mut self) -> PostBatch {
        let known = std::mem::take(&mut self.known_lines);
        PostBatch::new(self.take(Outbox::default()).into_whole(), known)
    }

    /// Hands over what waits if it is one client's request and nothing else.
    pub(super) fn take_lone_post(&mut self) -> Option<PostRequest> {
        let lone = self
            .known_lines
            .pop_if(|known| known.start == 0 && known.end == self.outbox.len())?;
        let mut line = std::mem::take(&mut self.outbox).into_whole();
        // Without its line break.
        line.truncate(lone.end - 1);
        Some(PostRequest {
            line: line.freeze(),
            message_info: lone.message_info,
            cancels: None,
        })
    }

    /// Hands over one small message if the writer is idle. Nothing else is handed over before
    /// [`SendQueue::handle_written`] or [`SendQueue::put_back`].
    pub(super) fn take_lone_line(&mut self) -> Option<Bytes> {
        let is_small = (1..=WRITTEN_THROUGH).contains(&self.outbox.len());
        // A line that was put back goes before everything else, and the writer takes both.
        if self.being_written > 0 || !is_small || !self.outbox.is_gathered() {
            return None;
        }
        let line = self.outbox.split_end();
        self.being_written = line.len();
        Some(line)
    }

    /// Takes back the end of a message that was not written. It goes before everything else.
    pub(super) fn put_back(&mut self, rest: Bytes) {
        self.being_written = 0;
        self.outbox.put_back(rest);
    }

    /// The writer has written everything it took.
    pub(super) fn handle_written(&mut self) {
        self.being_written = 0;
    }

    /// The server has gone, and with it the reader of these bytes.
    pub(super) fn clear(&mut self) {
        self.outbox.clear();
        self.known_lines.clear();
        self.being_written = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(line: &[u8]) -> SendQueue {
        let mut queue = SendQueue::default();
        queue.end().extend_from_slice(line);
        queue
    }

    #[test]
    fn lone_line_waits_until_the_writer_has_written() {
        let mut queue = queue(b"first\n");
        queue.take(Outbox::default());
        queue.end().extend_from_slice(b"second\n");
        assert_eq!(queue.take_lone_line(), None, "the first line comes first");
        queue.handle_written();
        assert_eq!(queue.take_lone_line().as_deref(), Some(&b"second\n"[..]));
        queue.end().extend_from_slice(b"third\n");
        assert_eq!(queue.take_lone_line(), None, "the second line is being written");
        queue.put_back(Bytes::from_static(b"ond\n"));
        assert_eq!(
            queue.take_lone_line(),
            None,
            "the rest of the second line comes first"
        );
        let whole = queue.take(Outbox::default()).into_whole();
        assert_eq!(&whole[..], b"ond\nthird\n");
    }

    #[test]
    fn lone_line_is_no_longer_than_a_pipe_takes_at_once() {
        assert_eq!(queue(b"").take_lone_line(), None);
        let longest = vec![b'x'; WRITTEN_THROUGH];
        assert_eq!(queue(&longest).take_lone_line().as_deref(), Some(&longest[..]));
        assert_eq!(queue(&vec![b'x'; WRITTEN_THROUGH + 1]).take_lone_line(), None);
    }
}
