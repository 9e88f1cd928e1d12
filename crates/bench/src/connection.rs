//! A raw HTTP/1.1 connection that is kept alive: as little of HTTP as the measured systems need.
//!
//! It hides heads, lengths and chunks. It knows no redirects, no compression and no pipelining.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::tls::{Tls, TlsStream};

const CHUNK: usize = 64 << 10;

/// One connection, with one request at a time.
#[derive(Debug)]
pub struct Connection {
    stream: Wire,
    input: Vec<u8>,
    /// How much of `input` holds bytes, and how much of that is used up.
    filled: usize,
    used: usize,
    /// The body of a chunked answer.
    body: Vec<u8>,
}

/// What the bytes go through.
#[derive(Debug)]
enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl Wire {
    async fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes).await,
            Self::Tls(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }

    async fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(into).await,
            Self::Tls(stream) => stream.read(into).await,
        }
    }
}

/// An answer, as far as it matters here.
#[derive(Debug)]
pub struct Answer<'a> {
    pub status: u16,
    pub session: Option<String>,
    pub body: &'a [u8],
}

struct Head {
    status: u16,
    session: Option<String>,
    length: Length,
}

#[derive(Clone, Copy)]
enum Length {
    Known(usize),
    Chunked,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self::over(Wire::Plain(connect(address).await?)))
    }

    pub async fn open_tls(address: SocketAddr, tls: &Tls) -> anyhow::Result<Self> {
        let stream = tls.connect(connect(address).await?).await?;
        Ok(Self::over(Wire::Tls(Box::new(stream))))
    }

    fn over(stream: Wire) -> Self {
        Self {
            stream,
            input: vec![0; CHUNK],
            filled: 0,
            used: 0,
            body: Vec::new(),
        }
    }

    /// Sends a request and reads the whole answer.
    pub async fn exchange(&mut self, request: &[u8]) -> anyhow::Result<Answer<'_>> {
        let head = self.begin(request).await?;
        let body = match head.length {
            Length::Known(length) => {
                while self.filled - self.used < length {
                    self.read(length - (self.filled - self.used)).await?;
                }
                let start = self.used;
                self.used += length;
                &self.input[start..self.used]
            }
            Length::Chunked => {
                self.body.clear();
                let mut chunks = Chunks::Size;
                loop {
                    self.used += chunks.decode(&self.input[self.used..self.filled], &mut self.body);
                    if chunks == Chunks::Done {
                        break;
                    }
                    self.read(CHUNK).await?;
                }
                &self.body[..]
            }
        };
        Ok(Answer {
            status: head.status,
            session: head.session,
            body,
        })
    }

    /// Sends a request that opens a stream, and waits for the head of the answer.
    pub async fn open_stream(mut self, request: &[u8]) -> anyhow::Result<Stream> {
        let head = self.begin(request).await?;
        match (head.status, head.length) {
            (200, Length::Chunked) => Ok(Stream {
                connection: self,
                chunks: Chunks::Size,
            }),
            (200, Length::Known(_)) => bail!("the GET stream is no stream"),
            (status, _) => bail!("HTTP {status}"),
        }
    }

    async fn begin(&mut self, request: &[u8]) -> anyhow::Result<Head> {
        self.input.copy_within(self.used..self.filled, 0);
        self.filled -= self.used;
        self.used = 0;
        self.stream.write_all(request).await.context("cannot send")?;
        loop {
            if let Some(end) = memmem::find(&self.input[..self.filled], b"\r\n\r\n") {
                self.used = end + 4;
                return parse_head(&self.input[..end]);
            }
            self.read(CHUNK).await?;
        }
    }

    async fn read(&mut self, wanted: usize) -> anyhow::Result<()> {
        if self.input.len() == self.filled {
            if self.used > 0 && self.used * 2 >= self.filled {
                self.input.copy_within(self.used..self.filled, 0);
                self.filled -= self.used;
                self.used = 0;
            } else {
                self.input.resize(self.filled + wanted.max(CHUNK), 0);
            }
        }
        match self.stream.read(&mut self.input[self.filled..]).await {
            Ok(0) => bail!("the connection was closed"),
            Ok(read) => self.filled += read,
            Err(error) => return Err(error).context("cannot read"),
        }
        Ok(())
    }
}

async fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(address).await.context("cannot connect")?;
    stream.set_nodelay(true).context("cannot set TCP_NODELAY")?;
    Ok(stream)
}

/// An open stream of events.
#[derive(Debug)]
pub struct Stream {
    connection: Connection,
    chunks: Chunks,
}

impl Stream {
    /// Appends the next bytes of the body. `false`: the stream has ended.
    pub async fn more(&mut self, out: &mut Vec<u8>) -> anyhow::Result<bool> {
        let before = out.len();
        loop {
            let connection = &mut self.connection;
            connection.used += self
                .chunks
                .decode(&connection.input[connection.used..connection.filled], out);
            if out.len() > before {
                return Ok(true);
            }
            if self.chunks == Chunks::Done {
                return Ok(false);
            }
            connection.read(CHUNK).await?;
        }
    }
}

fn parse_head(head: &[u8]) -> anyhow::Result<Head> {
    let mut lines = head.split(|byte| *byte == b'\n');
    let status = lines
        .next()
        .and_then(|line| std::str::from_utf8(line.get(9..12)?).ok()?.parse().ok())
        .context("not an HTTP answer")?;
    let (mut length, mut session) = (Length::Known(0), None);
    for line in lines {
        let Some(colon) = memchr::memchr(b':', line) else {
            continue;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            length = Length::Known(number.context("a strange Content-Length")?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            length = Length::Chunked;
        } else if name.eq_ignore_ascii_case(b"mcp-session-id") {
            session = Some(String::from_utf8_lossy(value).into_owned());
        }
    }
    Ok(Head {
        status,
        session,
        length,
    })
}

/// Where in a chunked body we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunks {
    Size,
    Data(usize),
    DataEnd,
    LastLine,
    Done,
}

impl Chunks {
    /// Takes what it can of `input`, appends the data to `out` and gives how much it took.
    fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> usize {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            match *self {
                Self::Size | Self::LastLine => {
                    let Some(end) = memmem::find(rest, b"\r\n") else {
                        return at;
                    };
                    at += end + 2;
                    if *self == Self::LastLine {
                        // Trailer fields, if there are any, end with an empty line.
                        *self = if end == 0 { Self::Done } else { Self::LastLine };
                        continue;
                    }
                    let digits = rest[..end].split(|byte| *byte == b';').next().unwrap_or_default();
                    let size = std::str::from_utf8(digits)
                        .ok()
                        .and_then(|text| usize::from_str_radix(text.trim(), 16).ok());
                    *self = match size {
                        Some(0) | None => Self::LastLine,
                        Some(size) => Self::Data(size),
                    };
                }
                Self::Data(left) => {
                    let taken = left.min(rest.len());
                    out.extend_from_slice(&rest[..taken]);
                    at += taken;
                    if taken < left {
                        *self = Self::Data(left - taken);
                        return at;
                    }
                    *self = Self::DataEnd;
                }
                Self::DataEnd => {
                    if rest.len() < 2 {
                        return at;
                    }
                    at += 2;
                    *self = Self::Size;
                }
                Self::Done => return at,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined_wherever_they_are_cut() {
        let wire = b"5\r\nhello\r\n7;x=1\r\n, world\r\n0\r\n\r\n";
        for cut in 0..=wire.len() {
            let (mut chunks, mut out) = (Chunks::Size, Vec::new());
            let used = chunks.decode(&wire[..cut], &mut out);
            let used = used + chunks.decode(&wire[used..], &mut out);
            assert_eq!(
                (&out[..], used),
                (&b"hello, world"[..], wire.len()),
                "cut at {cut}"
            );
            assert_eq!(chunks, Chunks::Done);
        }
    }

    #[test]
    fn a_head_gives_status_session_and_length() {
        let head =
            parse_head(b"HTTP/1.1 200 OK\r\nMCP-Session-Id: abc\r\ncontent-length: 17\r").expect("a head");
        assert_eq!((head.status, head.session.as_deref()), (200, Some("abc")));
        assert!(matches!(head.length, Length::Known(17)));
    }
}
