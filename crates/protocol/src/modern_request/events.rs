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

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: usize, length: usize) -> EventQueue {
        let mut queue = EventQueue::default();
        for _ in 0..count {
            queue.push(Bytes::from(vec![b'x'; length]));
        }
        queue
    }

    fn number(mut queue: EventQueue) -> usize {
        std::iter::from_fn(|| queue.pop()).count()
    }

    #[test]
    fn exactly_as_much_as_the_limits_allow_is_kept() {
        let quarter = MAX_EVENT_BYTES / 4;
        assert_eq!(filled(4, quarter).bytes(), MAX_EVENT_BYTES);
        assert_eq!(filled(5, quarter).bytes(), MAX_EVENT_BYTES);
        assert_eq!(number(filled(MAX_EVENTS, 1)), MAX_EVENTS);
        assert_eq!(number(filled(MAX_EVENTS + 1, 1)), MAX_EVENTS);
        assert_eq!(number(filled(2, MAX_EVENT_BYTES + 1)), 1, "the newest stays");
    }

    #[test]
    fn oldest_events_are_shed() {
        let mut queue = filled(3, 100);
        queue.shed(0);
        assert_eq!(queue.bytes(), 300);
        queue.shed(100);
        assert_eq!(queue.bytes(), 200);
        queue.shed(101);
        assert_eq!((queue.bytes(), number(queue)), (0, 0));
    }
}
