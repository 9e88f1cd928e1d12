//! A connection that reads the server's response even after a write to it failed.
//!
//! A server that refuses a request by its head (413, 401) may answer and close while we still
//! write. Then a write fails, and a client that stops there never reads the answer that lies ready.
//! Here a write that fails for this reason waits, and reading ends the connection: with the answer,
//! or without one.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The connection around another.
#[derive(Debug)]
pub(super) struct ReadAfterWriteError<S> {
    inner: S,
    /// The server does not read any more.
    deaf: bool,
    /// The server has closed its side.
    silent: bool,
}

impl<S> ReadAfterWriteError<S> {
    pub(super) fn new(inner: S) -> Self {
        Self {
            inner,
            deaf: false,
            silent: false,
        }
    }

    /// Judges what a write came to.
    fn check_write<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(Err(error)) if is_refusal(&error) && !self.silent => {
                // The task that writes also reads, and is to do that now.
                if !std::mem::replace(&mut self.deaf, true) {
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            }
            other => other,
        }
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAfterWriteError<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.silent |= match &read {
            Poll::Ready(Ok(())) => buffer.filled().len() == before && buffer.remaining() > 0,
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        };
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadAfterWriteError<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.check_write(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.check_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.check_write(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    /// Returns a connection to a server that sends these bytes, or none, and closes while we write.
    async fn refused(words: &'static [u8]) -> ReadAfterWriteError<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut theirs, _) = listener.accept().await.unwrap();
        let mut ours = ReadAfterWriteError::new(ours);
        ours.write_all(b"POST").await.unwrap();
        theirs.readable().await.unwrap();
        theirs.write_all(words).await.unwrap();
        // Unread bytes make the kernel reset the connection.
        drop(theirs);
        ours
    }

    /// Writes until that leads nowhere.
    async fn write_on(ours: &mut ReadAfterWriteError<TcpStream>) -> Option<io::Error> {
        for _ in 0..1 << 20 {
            let writing = tokio::time::timeout(Duration::from_millis(200), ours.write_all(b"more"));
            match writing.await {
                Ok(Ok(())) => tokio::task::yield_now().await,
                Ok(Err(error)) => return Some(error),
                Err(_) => return None,
            }
        }
        panic!("writing never fails");
    }

    #[tokio::test]
    async fn response_before_the_end_is_read_though_writing_failed() {
        let mut ours = refused(b"413").await;
        assert!(write_on(&mut ours).await.is_none(), "it waits for what is read");
        let mut heard = [0; 3];
        ours.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"413");
    }

    #[tokio::test]
    async fn write_fails_when_nothing_more_can_be_read() {
        let mut ours = refused(b"").await;
        // An error or the end, as the kernel likes.
        let _ = ours.read(&mut [0; 8]).await;
        assert!(write_on(&mut ours).await.is_some());
    }
}
