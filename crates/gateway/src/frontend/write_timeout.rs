//! The write timeout: a client that reads less than [`LEAST_RATE`] on average loses its connection.
//!
//! Bytes that wait for a client that does not read cost memory, and a connection. The client has a
//! budget of [`WRITE_TIME`]: waiting uses it up, and every byte read gives some back. Time counts
//! only while bytes wait to be written, so silent streams stay open.

use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// How long a peer may take nothing of what is written for it.
const WRITE_TIME: Duration = Duration::from_secs(60);
/// Bytes in a second that a peer must take on average, beyond that time.
const LEAST_RATE: u32 = 1024;

/// The write timeout of one client.
#[derive(Debug)]
pub(crate) struct WriteTimeout {
    /// Runs while a write waits. Made when one waits for the first time, which most connections
    /// never see.
    clock: Option<Pin<Box<Sleep>>>,
    /// Since when a write waits, if one does.
    waiting: Option<Instant>,
    /// What is left of the peer's time, when nothing waits.
    budget: Duration,
}

/// The client read too little for too long.
#[derive(Debug, thiserror::Error)]
#[error("the client does not read")]
struct WriteTimedOut;

impl Default for WriteTimeout {
    fn default() -> Self {
        Self {
            clock: None,
            waiting: None,
            budget: WRITE_TIME,
        }
    }
}

impl WriteTimeout {
    /// Returns whether a connection was closed because its peer does not read.
    pub(crate) fn is_reason_of(error: &hyper::Error) -> bool {
        error
            .source()
            .and_then(|source| source.downcast_ref::<io::Error>())
            .and_then(io::Error::get_ref)
            .is_some_and(|inner| inner.is::<WriteTimedOut>())
    }

    /// Returns the outcome of a write, or an error once the peer has no time left. A flush or a
    /// shutdown that succeeds gives no time back: the peer took no byte.
    pub(super) fn check<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
        taken: impl FnOnce(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(result) = written {
            // Nearly always nothing has waited, and there is all the time.
            if self.waiting.is_some() || self.budget < WRITE_TIME {
                let waited = self.waiting.take().map(|since| since.elapsed());
                let taken = u32::try_from(result.as_ref().map_or(0, taken)).unwrap_or(u32::MAX);
                let earned = Duration::from_secs(1) * taken / LEAST_RATE;
                let left = self.budget.saturating_sub(waited.unwrap_or_default());
                self.budget = (left + earned).min(WRITE_TIME);
            }
            return Poll::Ready(result);
        }
        let until = *self.waiting.get_or_insert_with(Instant::now) + self.budget;
        let clock = self
            .clock
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if clock.deadline() != until {
            clock.as_mut().reset(until);
        }
        ready!(clock.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, WriteTimedOut)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::client_stream::ClientStream;
    use super::super::header_timer::HeaderTimer;
    use super::super::lingering::UnreadFlag;
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test(start_paused = true)]
    async fn c07_a_peer_that_takes_nothing_is_left_after_its_time() {
        let (ours, theirs) = tokio::io::duplex(16);
        let mut connection = ClientStream::new(ours, HeaderTimer::default(), UnreadFlag::default());
        let began = Instant::now();
        let error = connection.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), WRITE_TIME);
        drop(theirs);
    }

    /// Lets the peer read so many bytes, so often. Returns how long the connection was kept, or
    /// `None` if to the end.
    async fn kept_for(bytes: usize, pause: Duration) -> Option<Duration> {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let mut connection = ClientStream::new(ours, HeaderTimer::default(), UnreadFlag::default());
        let began = Instant::now();
        let reading = async {
            let mut piece = vec![0; bytes];
            loop {
                tokio::time::sleep(pause).await;
                if theirs.read_exact(&mut piece).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            written = connection.write_all(&[0; 300 << 10]) => written.err().map(|_| began.elapsed()),
            () = reading => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn h08_a_peer_that_reads_a_little_now_and_then_is_left() {
        let kept = kept_for(2048, Duration::from_secs(50))
            .await
            .expect("it is closed");
        assert!(kept < 2 * WRITE_TIME, "{kept:?}");
        let kept = kept_for(1, Duration::from_secs(1)).await.expect("it is closed");
        assert!(kept < 2 * WRITE_TIME, "{kept:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn c07_a_peer_that_reads_at_the_least_rate_is_kept() {
        assert_eq!(kept_for(1024, Duration::from_secs(1)).await, None);
        assert_eq!(kept_for(50 << 10, Duration::from_secs(45)).await, None);
    }
}
