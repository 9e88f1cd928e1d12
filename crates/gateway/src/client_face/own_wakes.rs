//! Wakes that a connection causes itself, while it is polled.
//!
//! hyper hands a body over through a channel, and whoever takes a piece out of it wakes the one who put it there. That is
//! the connection: the same task, in the same poll, and after the last piece there is nothing more to put. Each request
//! would have its whole connection polled once more for nothing. So a connection is polled with a waker that
//! counts what comes meanwhile, and whoever took the last piece takes its wake back.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// It is being polled at the moment.
const POLLED: usize = 1;
/// One wake since that began.
const WAKE: usize = 2;

/// The waker of one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnWakes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    task: AtomicWaker,
    state: AtomicUsize,
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.fetch_add(WAKE, Ordering::AcqRel) & POLLED == 0 {
            self.task.wake();
        }
    }
}

impl OwnWakes {
    /// What the connection is to be woken by.
    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    /// Polls the connection, with its own waker in place of the task's.
    pub(crate) fn poll<F: Future>(
        &self,
        connection: Pin<&mut F>,
        own: &Waker,
        context: &Context<'_>,
    ) -> Poll<F::Output> {
        self.0.task.register(context.waker());
        self.0.state.store(POLLED, Ordering::Release);
        let polled = connection.poll(&mut Context::from_waker(own));
        let woken = self.0.state.swap(0, Ordering::AcqRel) >= WAKE;
        if woken && polled.is_pending() {
            context.waker().wake_by_ref();
        }
        polled
    }

    /// To be compared with later.
    pub(crate) fn mark(&self) -> usize {
        self.0.state.load(Ordering::Acquire)
    }

    /// Takes back one wake that has come since, if the connection is being polled: another, of somebody who meant it, stays.
    pub(crate) fn take_back(&self, mark: usize) {
        let now = self.mark();
        if now & POLLED != 0 && now >= mark + WAKE {
            self.0.state.fetch_sub(WAKE, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often the task is woken for a connection that does this while it is polled.
    fn woken(during: impl Fn(&OwnWakes, &Waker), after: impl Fn(&Waker)) -> usize {
        let (wakes, count) = (OwnWakes::default(), Arc::new(Count::default()));
        let (own, task) = (wakes.waker(), Waker::from(Arc::clone(&count)));
        let connection = std::pin::pin!(poll_fn(|context| {
            during(&wakes, context.waker());
            Poll::<()>::Pending
        }));
        assert!(
            wakes
                .poll(connection, &own, &Context::from_waker(&task))
                .is_pending()
        );
        after(&own);
        count.0.load(Ordering::Relaxed)
    }

    #[test]
    fn a_wake_counts_unless_it_was_taken_back() {
        let nothing = |_: &Waker| {};
        assert_eq!(woken(|_, _| {}, nothing), 0);
        assert_eq!(woken(|_, waker| waker.wake_by_ref(), nothing), 1);
        let taken_back = |wakes: &OwnWakes, waker: &Waker| {
            let mark = wakes.mark();
            waker.wake_by_ref();
            wakes.take_back(mark);
        };
        assert_eq!(woken(taken_back, nothing), 0);
        // What came before, or besides, was meant.
        let before = |wakes: &OwnWakes, waker: &Waker| {
            waker.wake_by_ref();
            taken_back(wakes, waker);
        };
        assert_eq!(woken(before, nothing), 1);
        let besides = |wakes: &OwnWakes, waker: &Waker| {
            let mark = wakes.mark();
            waker.wake_by_ref();
            waker.wake_by_ref();
            wakes.take_back(mark);
        };
        assert_eq!(woken(besides, nothing), 1);
        assert_eq!(woken(|wakes, _| wakes.take_back(wakes.mark()), nothing), 0);
    }

    #[test]
    fn whoever_wakes_it_between_two_polls_wakes_the_task() {
        assert_eq!(woken(|_, _| {}, Waker::wake_by_ref), 1);
        assert_eq!(woken(|wakes, _| wakes.take_back(0), Waker::wake_by_ref), 1);
    }
}
