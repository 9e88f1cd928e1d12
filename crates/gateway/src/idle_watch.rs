//! Wakes the tasks that wait for the calls of a destination to end: the shutdown and the retirement
//! after a reload.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The changes of one destination, for tasks that wait until it is idle.
#[derive(Debug, Default)]
pub(crate) struct IdleWatch {
    waiting: AtomicUsize,
    changed: Notify,
}

impl IdleWatch {
    /// Wakes the waiting tasks, if there are any. Must be called after the lock is released under
    /// which the state changed.
    pub(crate) fn note_change(&self) {
        if self.waiting.load(Ordering::Acquire) > 0 {
            self.changed.notify_waiters();
        }
    }

    /// Waits until `is_idle` returns true, which it finds out under the locks of the state.
    ///
    /// No change is missed: either `is_idle` takes the lock later and sees it, or the change comes
    /// later and finds this task counted. A dropped future is not counted any more.
    pub(crate) async fn wait_until(&self, is_idle: impl Fn() -> bool) {
        let _counted = Counted::new(&self.waiting);
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if is_idle() {
                return;
            }
            changed.await;
        }
    }
}

struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_waiting_task_sees_each_change_until_the_state_is_idle() {
        let (watch, calls) = (IdleWatch::default(), AtomicUsize::new(2));
        let mut idle = pin!(watch.wait_until(|| calls.load(Ordering::Acquire) == 0));
        assert!(idle.as_mut().now_or_never().is_none());
        for left in [1, 0] {
            assert!(idle.as_mut().now_or_never().is_none());
            calls.store(left, Ordering::Release);
            watch.note_change();
        }
        idle.await;
        assert_eq!(watch.waiting.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn an_idle_state_is_not_waited_for_and_a_dropped_task_is_not_counted() {
        let watch = IdleWatch::default();
        watch.wait_until(|| true).await;
        assert!(watch.wait_until(|| false).now_or_never().is_none());
        assert_eq!(watch.waiting.load(Ordering::Acquire), 0);
    }
}
