//! The clock that the head of a request runs against.
//!
//! A connection waits for another head after every answer, and nearly all heads come long before their time is up. To
//! set a clock for each, and to stop it again, would cost more than to read the head; so a connection has one clock that
//! runs on. When it strikes, it is set again if what is waited for now has not had its time.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use tokio::time::Instant;

/// The clock of one connection, as hyper asks for it. What it is asked for must not come before what it was asked for
/// last; the heads of one connection do not.
#[derive(Debug, Default)]
pub(crate) struct HeadClock {
    /// `None` until something was waited for.
    running: Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>,
}

impl Timer for HeadClock {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Deadline {
            at: deadline.into(),
            clock: Arc::clone(&self.running),
        })
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into()
    }
}

/// A time that comes, told by the clock of its connection.
struct Deadline {
    at: Instant,
    clock: Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>,
}

impl Sleep for Deadline {}

impl Future for Deadline {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut running = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let clock = running.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(self.at)));
        while clock.as_mut().poll(context).is_ready() {
            if clock.deadline() >= self.at {
                return Poll::Ready(());
            }
            clock.as_mut().reset(self.at);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_deadline_is_kept_though_the_clock_was_set_for_another() {
        let clock = HeadClock::default();
        let began = Instant::now();
        let second = Duration::from_secs(1);
        let mut first = clock.sleep(10 * second);
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        tokio::time::advance(4 * second).await;
        drop(first);
        // The clock still runs for the first.
        clock.sleep(10 * second).await;
        assert_eq!(began.elapsed().as_secs(), 14);
        // It has struck, and goes on.
        clock.sleep(3 * second).await;
        assert_eq!(began.elapsed().as_secs(), 17);
        // What nobody waits for in the meantime is no news.
        tokio::time::advance(100 * second).await;
        clock.sleep(second).await;
        assert_eq!(began.elapsed().as_secs(), 118);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_has_passed_is_over_at_once() {
        let clock = HeadClock::default();
        let mut over = clock.sleep_until(clock.now());
        assert!(futures_util::poll!(over.as_mut()).is_ready());
    }
}
