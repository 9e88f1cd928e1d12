//! Readers of what happens, and the feeds that they read: ended calls, and messages of a server.
//!
//! Without a reader a feed costs one comparison. A reader has a bounded queue. One that is so slow
//! that its queue is full loses its connection, and is counted: nothing waits for it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

/// Readers at once, of all feeds.
const MAX_READERS: usize = 32;
/// What may wait for one reader.
const MAX_LINES: usize = 4096;
const MAX_BYTES: usize = 4 << 20;

/// How many readers there are in the whole gateway.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    open: AtomicUsize,
    dropped: AtomicU64,
}

impl Readers {
    /// Returns how many there are, and how many were dropped because they were slow.
    pub(crate) fn counts(&self) -> (usize, u64) {
        (self.open.load(Relaxed), self.dropped.load(Relaxed))
    }

    /// Admits a reader; `None` if there are as many as there may be.
    pub(crate) fn admit(self: &Arc<Self>, connection: AbortHandle) -> Option<Admitted> {
        let taken = self
            .open
            .fetch_update(Relaxed, Relaxed, |open| (open < MAX_READERS).then_some(open + 1));
        taken.ok().map(|_| Admitted {
            readers: Arc::clone(self),
            connection,
        })
    }
}

/// The place of one reader.
#[derive(Debug)]
pub(crate) struct Admitted {
    readers: Arc<Readers>,
    /// What is ended if the reader is slow.
    connection: AbortHandle,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.readers.open.fetch_sub(1, Relaxed);
    }
}

/// Lines, for the readers that there are at the time.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    is_read: AtomicBool,
    queues: Mutex<Vec<Weak<Queue>>>,
}

/// The lines that wait for one reader.
#[derive(Debug)]
struct Queue {
    place: Admitted,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Bytes>,
    bytes: usize,
    waker: Option<Waker>,
    is_lost: bool,
}

impl Feed {
    /// Returns whether there may be a reader, so that composing a line pays.
    pub(crate) fn is_read(&self) -> bool {
        self.is_read.load(Relaxed)
    }

    /// Queues a line for all readers.
    pub(crate) fn publish(&self, line: &Bytes) {
        let queues: Vec<Arc<Queue>> = {
            let mut queues = self.queues.lock();
            queues.retain(|queue| queue.strong_count() > 0);
            self.is_read.store(!queues.is_empty(), Relaxed);
            queues.iter().filter_map(Weak::upgrade).collect()
        };
        for queue in queues {
            queue.push(line);
        }
    }

    /// Returns a reader of all lines from now on.
    pub(crate) fn subscribe(&self, place: Admitted) -> FeedReader {
        let queue = Arc::new(Queue {
            place,
            waiting: Mutex::default(),
        });
        let mut queues = self.queues.lock();
        queues.push(Arc::downgrade(&queue));
        self.is_read.store(true, Relaxed);
        drop(queues);
        FeedReader(queue)
    }
}

impl Queue {
    fn push(&self, line: &Bytes) {
        let waker = {
            let mut waiting = self.waiting.lock();
            if waiting.is_lost {
                return;
            }
            let is_full = waiting.lines.len() >= MAX_LINES || waiting.bytes + line.len() > MAX_BYTES;
            if is_full {
                *waiting = Waiting {
                    waker: waiting.waker.take(),
                    is_lost: true,
                    ..Waiting::default()
                };
                self.place.readers.dropped.fetch_add(1, Relaxed);
                // It may be writing what no peer reads, where no waker reaches it.
                self.place.connection.abort();
            } else {
                waiting.bytes += line.len();
                waiting.lines.push_back(line.clone());
            }
            waiting.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// One reader of a feed, for as long as this lives.
#[derive(Debug)]
pub(crate) struct FeedReader(Arc<Queue>);

impl FeedReader {
    /// Returns the next line; `None` when the reader was too slow.
    pub(crate) fn poll_line(&self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut waiting = self.0.waiting.lock();
        if let Some(line) = waiting.lines.pop_front() {
            waiting.bytes -= line.len();
            return Poll::Ready(Some(line));
        }
        if waiting.is_lost {
            return Poll::Ready(None);
        }
        waiting.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(reader: &FeedReader) -> Poll<Option<Bytes>> {
        reader.poll_line(&mut Context::from_waker(Waker::noop()))
    }

    fn connection() -> AbortHandle {
        crate::tasks::spawn("test connection", std::future::pending::<()>()).abort_handle()
    }

    #[tokio::test]
    async fn feed_without_a_reader_is_not_read() {
        let (feed, readers) = (Feed::default(), Arc::<Readers>::default());
        assert!(!feed.is_read());
        let place = readers.admit(connection()).expect("there is room");
        let reader = feed.subscribe(place);
        assert!(feed.is_read());
        feed.publish(&Bytes::from_static(b"one"));
        assert_eq!(next(&reader), Poll::Ready(Some(Bytes::from_static(b"one"))));
        assert_eq!(next(&reader), Poll::Pending);
        drop(reader);
        feed.publish(&Bytes::from_static(b"two"));
        assert!(!feed.is_read());
        assert_eq!(readers.counts(), (0, 0));
    }

    #[tokio::test]
    async fn slow_reader_is_dropped_and_counted_and_the_others_go_on() {
        let (feed, readers) = (Feed::default(), Arc::<Readers>::default());
        let slow = feed.subscribe(readers.admit(connection()).expect("there is room"));
        let quick = feed.subscribe(readers.admit(connection()).expect("there is room"));
        let line = Bytes::from(vec![b'x'; 1 << 20]);
        for _ in 0..5 {
            feed.publish(&line);
            assert!(matches!(next(&quick), Poll::Ready(Some(_))));
        }
        assert_eq!(next(&slow), Poll::Ready(None));
        assert_eq!(readers.counts(), (2, 1));
    }

    #[tokio::test]
    async fn readers_have_a_limit() {
        let readers = Arc::<Readers>::default();
        let connection = connection();
        let admitted: Vec<_> = (0..MAX_READERS)
            .map(|_| readers.admit(connection.clone()).expect("there is room"))
            .collect();
        assert!(readers.admit(connection.clone()).is_none());
        drop(admitted);
        assert!(readers.admit(connection).is_some());
    }
}
