//! Ended calls for the pages that are open: a ring of lines, bounded in bytes.
//!
//! It is filled while a page is open, and what it has stays for the next page. A page reads it at
//! its own pace, with a cursor. So a slow page misses lines, and holds up nothing. Of very many
//! calls only some are listed, and failures before others. The rest is counted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::time::Moment;

use crate::clock::Clock;

/// The time in which so many calls are listed, and as many failures besides.
const WINDOW: Duration = Duration::from_millis(250);
const LISTED: usize = 50;
/// What a line takes beside its bytes.
const OVERHEAD: usize = 64;

/// The ring, and how many pages read it.
#[derive(Debug)]
pub(crate) struct EndedCalls {
    clock: Clock,
    most_bytes: usize,
    pages: AtomicUsize,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<Bytes>,
    bytes: usize,
    /// The number of the first line; lines are counted from the start.
    first: u64,
    /// Calls that have ended while it was filled, listed or not.
    ended: u64,
    /// Since when it has been filled without a gap.
    since: Option<Moment>,
    window: Window,
}

/// How many calls were listed in the present window.
#[derive(Debug, Default)]
struct Window {
    began: Option<Moment>,
    listed: usize,
    failed: usize,
}

/// How far a page has read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    line: u64,
    ended: u64,
}

/// What a page has not read yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) lines: Vec<Bytes>,
    /// Calls that have ended and are not among the lines.
    pub(crate) skipped: u64,
    /// How long the ring has been filled without a gap.
    pub(crate) since: Duration,
}

/// The place of a page that reads. While there is one, the ring is filled.
#[derive(Debug)]
pub(crate) struct PagePlace(Arc<EndedCalls>);

impl Drop for PagePlace {
    fn drop(&mut self) {
        if self.0.pages.fetch_sub(1, Relaxed) == 1 {
            self.0.ring.lock().since = None;
        }
    }
}

impl EndedCalls {
    pub(crate) fn new(clock: Clock, most_bytes: usize) -> Self {
        Self {
            clock,
            most_bytes,
            pages: AtomicUsize::new(0),
            ring: Mutex::default(),
        }
    }

    /// Returns whether a page is open.
    pub(crate) fn is_read(&self) -> bool {
        self.pages.load(Relaxed) > 0
    }

    /// Fills the ring for as long as the returned place lives.
    pub(crate) fn open_page(self: &Arc<Self>) -> PagePlace {
        let mut ring = self.ring.lock();
        ring.since.get_or_insert_with(|| self.clock.now());
        self.pages.fetch_add(1, Relaxed);
        drop(ring);
        PagePlace(Arc::clone(self))
    }

    /// Counts an ended call. Its line is composed if there is room for it now.
    pub(crate) fn note(&self, has_failed: bool, line: impl FnOnce() -> String) {
        let now = self.clock.now();
        {
            let mut ring = self.ring.lock();
            ring.ended += 1;
            if !ring.window.admits(now, has_failed) {
                return;
            }
        }
        let line = Bytes::from(line());
        let mut ring = self.ring.lock();
        ring.bytes += line.len() + OVERHEAD;
        ring.lines.push_back(line);
        while ring.bytes > self.most_bytes
            && let Some(oldest) = ring.lines.pop_front()
        {
            ring.bytes -= oldest.len() + OVERHEAD;
            ring.first += 1;
        }
    }

    /// Returns what a page has not read, and moves its cursor. `None`: there is nothing new.
    pub(crate) fn read(&self, cursor: &mut Cursor) -> Option<Unread> {
        let ring = self.ring.lock();
        let end = ring.first + ring.lines.len() as u64;
        if cursor.ended == ring.ended && cursor.line == end {
            return None;
        }
        let from = cursor.line.max(ring.first) - ring.first;
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let lines: Vec<Bytes> = ring.lines.iter().skip(from).cloned().collect();
        let skipped = (ring.ended - cursor.ended).saturating_sub(lines.len() as u64);
        *cursor = Cursor {
            line: end,
            ended: ring.ended,
        };
        Some(Unread {
            lines,
            skipped,
            since: self.since(&ring),
        })
    }

    /// Returns all that the ring has, for a page that was just opened.
    pub(crate) fn replay(&self, cursor: &mut Cursor) -> Unread {
        let ring = self.ring.lock();
        *cursor = Cursor {
            line: ring.first + ring.lines.len() as u64,
            ended: ring.ended,
        };
        Unread {
            lines: ring.lines.iter().cloned().collect(),
            skipped: 0,
            since: self.since(&ring),
        }
    }

    fn since(&self, ring: &Ring) -> Duration {
        let now = self.clock.now();
        ring.since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

impl Window {
    fn admits(&mut self, now: Moment, has_failed: bool) -> bool {
        if self.began.is_none_or(|began| now.since(began) >= WINDOW) {
            *self = Self {
                began: Some(now),
                ..Self::default()
            };
        }
        if self.listed < LISTED {
            self.listed += 1;
            return true;
        }
        let has_room = has_failed && self.failed < LISTED;
        self.failed += usize::from(has_room);
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(most_bytes: usize) -> Arc<EndedCalls> {
        Arc::new(EndedCalls::new(Clock::new(), most_bytes))
    }

    fn texts(unread: &Unread) -> Vec<&str> {
        let texts = unread.lines.iter().map(|line| std::str::from_utf8(line));
        texts.map(|text| text.expect("lines are text")).collect()
    }

    #[test]
    fn page_reads_each_line_once_and_a_new_page_all_that_is_kept() {
        let calls = ring(1 << 20);
        assert!(!calls.is_read());
        let place = calls.open_page();
        assert!(calls.is_read());
        let mut cursor = Cursor::default();
        calls.note(false, || "a".to_owned());
        calls.note(false, || "b".to_owned());
        let unread = calls.read(&mut cursor).expect("two calls");
        assert_eq!((texts(&unread), unread.skipped), (vec!["a", "b"], 0));
        assert_eq!(calls.read(&mut cursor), None);
        let replayed = calls.replay(&mut Cursor::default());
        assert_eq!(texts(&replayed), ["a", "b"]);
        drop(place);
        assert!(!calls.is_read());
    }

    #[test]
    fn ring_keeps_within_its_bytes_and_a_slow_page_learns_what_it_missed() {
        let calls = ring(10 * (OVERHEAD + 3));
        let _place = calls.open_page();
        let mut cursor = Cursor::default();
        for number in 0..30 {
            calls.note(false, || format!("{number:03}"));
        }
        assert!(calls.ring.lock().bytes <= calls.most_bytes);
        let unread = calls.read(&mut cursor).expect("many calls");
        assert_eq!((unread.lines.len(), unread.skipped), (10, 20));
        assert_eq!(texts(&unread)[9], "029");
    }

    #[test]
    fn of_many_calls_some_are_listed_and_failures_before_others() {
        let calls = ring(1 << 20);
        let _place = calls.open_page();
        let mut window = Window::default();
        let now = calls.clock.now();
        let listed = (0..1000).filter(|_| window.admits(now, false)).count();
        assert_eq!(listed, LISTED);
        let failed = (0..1000).filter(|_| window.admits(now, true)).count();
        assert_eq!(failed, LISTED);
        assert!(window.admits(now.after(WINDOW), false), "the next window");
    }
}
