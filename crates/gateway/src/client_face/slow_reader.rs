//! A connection whose peer must take what it is sent: one that takes nothing at all for [`WRITE_TIME`] is closed.
//!
//! What waits for a peer that does not read costs memory, and a connection. A slow peer is fine, as long as it reads
//! something now and then. The clock runs only while something waits to be written, so streams on which nothing
//! happens may be open for ever.

use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::joined_write;

/// How long a peer may take nothing of what is written for it.
const WRITE_TIME: Duration = Duration::from_secs(60);

/// The connection around another.
#[derive(Debug)]
pub(crate) struct SlowReader<S> {
    inner: S,
    /// Runs while a write waits. Made when one waits for the first time, which most connections never see.
    patience: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

/// The peer took nothing for too long.
#[derive(Debug, thiserror::Error)]
#[error("the peer does not read")]
struct Behind;

impl<S> SlowReader<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self {
            inner,
            patience: None,
            waiting: false,
        }
    }

    /// Whether a connection was closed because its peer does not read.
    pub(crate) fn is_behind(error: &hyper::Error) -> bool {
        error
            .source()
            .and_then(|source| source.downcast_ref::<io::Error>())
            .and_then(io::Error::get_ref)
            .is_some_and(|inner| inner.is::<Behind>())
    }

    /// Judges what a write came to.
    fn judge<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = false;
            return written;
        }
        let patience = self
            .patience
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_TIME)));
        if !self.waiting {
            self.waiting = true;
            patience.as_mut().reset(Instant::now() + WRITE_TIME);
        }
        ready!(patience.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, Behind)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SlowReader<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SlowReader<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = joined_write::poll_write(&mut self.inner, context, slices);
        self.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.judge(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(context);
        self.judge(context, shut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test(start_paused = true)]
    async fn c07_a_peer_that_takes_nothing_is_left_after_its_time() {
        let (ours, theirs) = tokio::io::duplex(16);
        let mut connection = SlowReader::new(ours);
        let began = Instant::now();
        let error = connection.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), WRITE_TIME);
        drop(theirs);
    }

    #[tokio::test(start_paused = true)]
    async fn c07_a_peer_that_reads_a_byte_now_and_then_is_kept() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut connection = SlowReader::new(ours);
        let reading = async {
            for _ in 0..48 {
                tokio::time::sleep(WRITE_TIME / 2).await;
                theirs.read_u8().await.unwrap();
            }
            theirs
        };
        let (written, _theirs) = tokio::join!(connection.write_all(&[0; 64]), reading);
        written.unwrap();
    }
}
