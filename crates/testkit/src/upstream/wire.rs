//! HTTP/1.1 by hand on one connection of the upstream, so that nothing is impossible to get wrong.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::exchange::Exchange;
use crate::failure::{Failure, Result};

/// No test sends more.
const LONGEST_REQUEST: usize = 64 << 20;

/// The response to a body that is too long.
const TOO_LARGE: &[u8] = b"HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\nContent-Length: 72\r\nConnection: close\r\n\r\n\
    {\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":\"too long\"}}";

/// A connection, with or without TLS.
#[derive(Debug)]
pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// One connection and what was read of it too early.
#[derive(Debug)]
pub(super) struct Wire {
    socket: Socket,
    pending: Vec<u8>,
    longest_body: Option<usize>,
}

impl Wire {
    pub(super) fn new(socket: Socket, longest_body: Option<usize>) -> Self {
        Self {
            socket,
            pending: Vec::new(),
            longest_body,
        }
    }

    /// The next request; `None` when the peer has gone between two of them.
    pub(super) async fn request(&mut self) -> Result<Option<Exchange>> {
        let head_end = loop {
            if let Some(at) = find(&self.pending, b"\r\n\r\n") {
                break at;
            }
            if !self.read_more().await? {
                return match self.pending.is_empty() {
                    true => Ok(None),
                    false => Err(Failure::new("the request was cut off in its head")),
                };
            }
        };
        let head = String::from_utf8_lossy(&self.pending[..head_end]).into_owned();
        self.pending.drain(..head_end + 4);
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (http_method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let value_of = |wanted: &str| {
            headers
                .iter()
                .find(|(name, _)| name == wanted)
                .map(|(_, value)| value.as_str())
        };
        let body = match (value_of("transfer-encoding"), value_of("content-length")) {
            (Some(_), _) => self.chunked_body().await?,
            (None, Some(length)) => {
                let length = length
                    .parse()
                    .map_err(|_| Failure::new("a length that is no number"))?;
                if self.longest_body.is_some_and(|longest| length > longest) {
                    self.write(TOO_LARGE).await?;
                    return Ok(None);
                }
                self.take(length).await?
            }
            (None, None) => Vec::new(),
        };
        Ok(Some(Exchange {
            number: 0,
            http_method: http_method.to_owned(),
            path: path.to_owned(),
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            headers,
            at: Instant::now(),
        }))
    }

    async fn chunked_body(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line_end = loop {
                match find(&self.pending, b"\r\n") {
                    Some(at) => break at,
                    None if self.read_more().await? => {}
                    None => return Err(Failure::new("the request was cut off between two chunks")),
                }
            };
            let size = String::from_utf8_lossy(&self.pending[..line_end]).into_owned();
            let size = usize::from_str_radix(size.trim(), 16).map_err(|_| Failure::new("a bad chunk"))?;
            self.pending.drain(..line_end + 2);
            let mut chunk = self.take(size + 2).await?;
            chunk.truncate(size);
            body.extend(chunk);
            if size == 0 {
                return Ok(body);
            }
        }
    }

    async fn take(&mut self, length: usize) -> Result<Vec<u8>> {
        while self.pending.len() < length {
            if !self.read_more().await? {
                return Err(Failure::new("the request was cut off in its body"));
            }
        }
        Ok(self.pending.drain(..length).collect())
    }

    async fn read_more(&mut self) -> Result<bool> {
        if self.pending.len() > LONGEST_REQUEST {
            return Err(Failure::new("a request without end"));
        }
        Ok(self.socket.read_buf(&mut self.pending).await? > 0)
    }

    /// Returns when the peer is gone.
    pub(super) async fn hung_up(&mut self) {
        while let Ok(true) = self.read_more().await {}
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.socket.write_all(bytes).await?;
        Ok(self.socket.flush().await?)
    }

    pub(super) async fn respond(
        &mut self,
        status: u16,
        headers: &[(String, String)],
        body: &str,
    ) -> Result<()> {
        let mut text = format!("HTTP/1.1 {status} Scripted\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        // 204 has no body and may not have a length.
        if status != 204 {
            text.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        text.push_str("\r\n");
        text.push_str(body);
        self.write(text.as_bytes()).await
    }

    pub(super) async fn open_stream(&mut self, headers: &[(String, String)]) -> Result<()> {
        let mut text = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n".to_owned();
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("transfer-encoding: chunked\r\n\r\n");
        self.write(text.as_bytes()).await
    }

    pub(super) async fn chunk(&mut self, bytes: &[u8]) -> Result<()> {
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend(bytes);
        chunk.extend(b"\r\n");
        self.write(&chunk).await
    }

    pub(super) async fn event(&mut self, data: &str) -> Result<()> {
        self.chunk(format!("data: {data}\n\n").as_bytes()).await
    }

    pub(super) async fn end_stream(&mut self) -> Result<()> {
        self.write(b"0\r\n\r\n").await
    }

    pub(super) async fn close(mut self) {
        // A peer that is gone already needs no goodbye.
        let _ = self.socket.shutdown().await;
    }

    /// Drops the connection with a reset instead of a goodbye.
    pub(super) fn reset(self) -> Result<()> {
        Ok(self.socket.tcp().set_zero_linger()?)
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
