//! A client's socket, with the limits that hold for every client.
//!
//! Three parts watch one socket. The header timer ([`HeaderTimer`]) learns when bytes come, the
//! write timeout ([`WriteTimeout`]) how fast the client reads, and [`Lingering`] delays the end
//! while the client still sends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::header_timer::HeaderTimer;
use super::lingering::{Lingering, UnreadFlag};
use super::write_timeout::WriteTimeout;
use crate::joined_write;

#[derive(Debug)]
pub(crate) struct ClientStream<S> {
    socket: S,
    header_timer: HeaderTimer,
    write_timeout: WriteTimeout,
    lingering: Lingering,
}

impl<S> ClientStream<S> {
    pub(crate) fn new(socket: S, header_timer: HeaderTimer, unread: UnreadFlag) -> Self {
        Self {
            socket,
            header_timer,
            write_timeout: WriteTimeout::default(),
            lingering: Lingering::new(unread),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.header_timer.note_bytes();
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.write_timeout.check(context, written, |taken| *taken)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = joined_write::poll_write(&mut self.socket, context, slices);
        self.write_timeout.check(context, written, |taken| *taken)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(context);
        self.write_timeout.check(context, flushed, |()| 0)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.lingering.has_begun() {
            let shut = Pin::new(&mut this.socket).poll_shutdown(context);
            ready!(this.write_timeout.check(context, shut, |()| 0))?;
            if !this.lingering.is_wanted() {
                return Poll::Ready(Ok(()));
            }
        }
        this.lingering.poll(&mut this.socket, context).map(Ok)
    }
}
