//! The events of a modern request that wait to be read. This era has no event ids: what is dropped
//! is lost.

use std::collections::VecDeque;

use bytes::Bytes;

/// Events that may wait for a client that reads slowly, and their bytes. Older ones go first; the
/// newest and the answer always stay.
const MAX_EVENTS: usize = 1024;
const MAX_EVENT_BYTES: usize = 4 << 20;

/// The events, oldest first.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    events: VecDeque<Bytes>,
    bytes: usize,
}

impl EventQueue {
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn push(&mut self, event: Bytes) {
        while self.events.len() >= MAX_EVENTS || self.bytes + event.len() > MAX_EVENT_BYTES {
            if self.pop().is_none() {
                break;
            }
        }
        self.bytes += event.len();
        self.events.push_back(event);
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let event = self.events.pop_front()?;
        self.bytes -= event.len();
        Some(event)
    }

    /// Drops the oldest events, at least so many bytes as far as there are any.
    pub(super) fn shed(&mut self, bytes: usize) {
        let limit = self.bytes.saturating_sub(bytes);
        while self.bytes > limit && self.pop().is_some() {}
    }
}
