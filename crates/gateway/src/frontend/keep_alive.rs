//! Keep-alive comments on a silent event stream, and the end of a stream that may last a limited
//! time.
//!
//! It knows nothing of what is sent; a stream asks it when it is polled.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::wire::sse;
use tokio::time::{Instant, Sleep};

/// The keep-alive interval: silence after which a comment is sent, so that no proxy takes the
/// stream for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The time of one stream.
#[derive(Debug, Default)]
pub(super) struct KeepAlive {
    /// Runs while nothing is sent. There is none before a stream was first silent: most answers
    /// never are.
    timer: Option<Pin<Box<Sleep>>>,
    /// When the reader has to authenticate again.
    term: Option<Pin<Box<Sleep>>>,
}

impl KeepAlive {
    /// For a stream that ends after this time, if any.
    pub(super) fn at_most(time: Option<Duration>) -> Self {
        Self {
            timer: None,
            term: time.map(|time| Box::pin(tokio::time::sleep(time))),
        }
    }

    /// True once, when the stream has lasted as long as it may.
    pub(super) fn is_up(&mut self, context: &mut Context<'_>) -> bool {
        let is_up = |term: &mut Pin<Box<Sleep>>| term.as_mut().poll(context).is_ready();
        self.term.take_if(is_up).is_some()
    }

    /// Notes that something was sent: the interval begins anew.
    pub(super) fn note_sent(&mut self) {
        self.timer = None;
    }

    /// Returns the keep-alive comment for a silent stream, when it is time for one.
    pub(super) fn poll_keep_alive(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(KEEP_ALIVE)));
        timer.as_mut().poll(context).map(|()| {
            timer.as_mut().reset(Instant::now() + KEEP_ALIVE);
            let mut comment = BytesMut::new();
            sse::write_comment(&mut comment, "keep-alive");
            comment.freeze()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt as _;

    use super::*;

    async fn silent_for(time: &mut KeepAlive, lasting: Duration) -> Option<Bytes> {
        tokio::time::advance(lasting).await;
        poll_fn(|context| time.poll_keep_alive(context)).now_or_never()
    }

    #[tokio::test(start_paused = true)]
    async fn each_quarter_of_a_minute_of_silence_is_broken_by_a_comment() {
        let mut time = KeepAlive::default();
        assert_eq!(silent_for(&mut time, Duration::ZERO).await, None);
        for _ in 0..2 {
            assert_eq!(silent_for(&mut time, Duration::from_secs(14)).await, None);
            let comment = silent_for(&mut time, Duration::from_secs(2)).await;
            assert_eq!(comment.as_deref(), Some(&b": keep-alive\n\n"[..]));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_speaks_is_not_silent() {
        let mut time = KeepAlive::default();
        assert_eq!(silent_for(&mut time, Duration::ZERO).await, None);
        assert_eq!(silent_for(&mut time, Duration::from_secs(14)).await, None);
        time.note_sent();
        assert_eq!(silent_for(&mut time, Duration::from_secs(14)).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_is_up_once_and_no_term_never() {
        let mut time = KeepAlive::at_most(Some(Duration::from_secs(60)));
        let mut endless = KeepAlive::at_most(None);
        let is_up = async |time: &mut KeepAlive| poll_fn(|context| Poll::Ready(time.is_up(context))).await;
        assert!(!is_up(&mut time).await);
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(is_up(&mut time).await);
        assert!(!is_up(&mut time).await);
        assert!(!is_up(&mut endless).await);
    }
}
