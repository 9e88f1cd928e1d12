//! The header read timeout: how long the head of a request may take.
//!
//! A connection waits for another head after every answer, and nearly all heads come long before
//! the timeout. A timer for each head would cost more than reading the head. So a connection has
//! one timer that keeps running. When it fires too early for the present head, it is set again.
//!
//! A head has [`HEADER_TIME`] from its first byte, the first head of a connection from the
//! beginning. Until the first byte of a later head the connection is idle (keep-alive), and has
//! [`IDLE_TIME`].

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// How long a client may take to send its request's headers.
pub(crate) const HEADER_TIME: Duration = Duration::from_secs(10);
/// How long a connection is kept without a request. Longer than the 60 s for which proxies keep
/// theirs by default, so that a proxy does not write into a connection that is just being closed.
pub(crate) const IDLE_TIME: Duration = Duration::from_secs(90);

/// The timer of one connection, as hyper uses it. A deadline must not be earlier than the last one;
/// those of one connection are not.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeaderTimer(Arc<TimerState>);

#[derive(Debug, Default)]
struct TimerState {
    /// Something was read since the present head is waited for.
    has_begun: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// `None` until something was waited for.
    running: Option<Pin<Box<tokio::time::Sleep>>>,
    /// How many heads were waited for.
    heads: u64,
    /// When the present head was first seen to have begun.
    begun: Option<Instant>,
}

impl HeaderTimer {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock()
    }

    /// Notes that bytes have come, of the head that is waited for if one is.
    pub(crate) fn note_bytes(&self) {
        self.0.has_begun.store(true, Relaxed);
    }

    /// Returns whether the connection waits for a head of which nothing has come, after an earlier
    /// one.
    pub(crate) fn is_idle(&self) -> bool {
        let waiting = self.lock();
        waiting.heads > 1 && waiting.begun.is_none()
    }
}

impl Timer for HeaderTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        let mut waiting = self.lock();
        waiting.heads += 1;
        waiting.begun = None;
        self.0.has_begun.store(false, Relaxed);
        let idle = match waiting.heads {
            0 | 1 => Duration::ZERO,
            _ => IDLE_TIME.saturating_sub(HEADER_TIME),
        };
        drop(waiting);
        Box::pin(Deadline {
            at: Instant::from(deadline) + idle,
            clock: self.clone(),
        })
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into()
    }
}

/// A deadline on the timer of its connection.
struct Deadline {
    at: Instant,
    clock: HeaderTimer,
}

impl Sleep for Deadline {}

impl Future for Deadline {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self.clock.lock();
        if self.clock.0.has_begun.load(Relaxed) && waiting.begun.is_none() {
            waiting.begun = Some(Instant::now());
        }
        let at = waiting
            .begun
            .map_or(self.at, |begun| self.at.min(begun + HEADER_TIME));
        let clock = waiting
            .running
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if at < clock.deadline() {
            clock.as_mut().reset(at);
        }
        while clock.as_mut().poll(context).is_ready() {
            if clock.deadline() >= at {
                return Poll::Ready(());
            }
            clock.as_mut().reset(at);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::super::client_stream::ClientStream;
    use super::super::lingering::UnreadFlag;
    use super::*;
    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn first_head_has_its_time_and_idle_connections_have_longer() {
        let clock = HeaderTimer::default();
        let began = Instant::now();
        clock.sleep(HEADER_TIME).await;
        assert_eq!(began.elapsed(), HEADER_TIME);
        assert!(
            !clock.is_idle(),
            "a connection that never sent a head is half-open"
        );
        let began = Instant::now();
        clock.sleep(HEADER_TIME).await;
        assert_eq!(began.elapsed(), IDLE_TIME);
        assert!(clock.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn later_head_has_its_time_from_its_first_byte() {
        let clock = HeaderTimer::default();
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut ours = ClientStream::new(ours, clock.clone(), UnreadFlag::default());
        drop(clock.sleep(HEADER_TIME));
        let mut second = clock.sleep(HEADER_TIME);
        assert!(second.as_mut().now_or_never().is_none());
        tokio::time::advance(50 * SECOND).await;
        theirs.write_all(b"P").await.unwrap();
        ours.read_u8().await.unwrap();
        let began = Instant::now();
        second.await;
        assert_eq!(began.elapsed(), HEADER_TIME);
        assert!(!clock.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn each_deadline_is_kept_though_the_clock_was_set_for_another() {
        let clock = HeaderTimer::default();
        let mut first = clock.sleep(HEADER_TIME);
        assert!(first.as_mut().now_or_never().is_none());
        tokio::time::advance(4 * SECOND).await;
        drop(first);
        // The clock still runs for the first.
        let began = Instant::now();
        clock.sleep(HEADER_TIME).await;
        assert_eq!(began.elapsed(), IDLE_TIME);
        // What nothing waits for in the meantime is no news.
        tokio::time::advance(100 * SECOND).await;
        let began = Instant::now();
        clock.sleep(HEADER_TIME).await;
        assert_eq!(began.elapsed(), IDLE_TIME);
    }
}
