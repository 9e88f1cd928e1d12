//! HTTP by hand over a bare connection: for requests that no client library would send.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::failure::{Failure, Result};

const DEADLINE: Duration = Duration::from_secs(60);
/// No answer to a malformed request is longer than this.
const LONGEST_ANSWER: usize = 256 << 20;

/// A connection on which every byte is the test's own.
#[derive(Debug)]
pub struct RawHttp {
    stream: TcpStream,
    /// What came and was not taken yet.
    pending: Vec<u8>,
    deadline: Duration,
}

/// An answer, parsed no further than needed to find its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawResponse {
    pub status: u16,
    /// Names in lower case, in the order they came.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl RawResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The bytes of a request to `127.0.0.1` with these headers and this body, and with nothing else
/// but the length.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut bytes = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n").into_bytes();
    for (name, value) in headers {
        bytes.extend(format!("{name}: {value}\r\n").into_bytes());
    }
    bytes.extend(format!("Content-Length: {}\r\n\r\n", body.len()).into_bytes());
    bytes.extend(body);
    bytes
}

/// The bytes of a POST as a client that obeys the specification sends it.
pub fn post(path: &str, session: Option<&str>, body: impl AsRef<[u8]>) -> Vec<u8> {
    let mut headers = vec![("Content-Type", "application/json"), ("Accept", super::ACCEPT)];
    headers.extend(session.map(|session| ("Mcp-Session-Id", session)));
    request("POST", path, &headers, body)
}

impl RawHttp {
    /// `address` is `host:port`.
    pub async fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            pending: Vec::new(),
            deadline: DEADLINE,
        })
    }

    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        let written = tokio::time::timeout(self.deadline, self.stream.write_all(bytes.as_ref())).await;
        Ok(written
            .map_err(|_| Failure::new(format!("the other side read nothing in {:?}", self.deadline)))??)
    }

    /// Writes and reads one answer.
    pub async fn exchange(&mut self, bytes: impl AsRef<[u8]>) -> Result<RawResponse> {
        self.write(bytes).await?;
        self.read_response().await
    }

    /// Closes the write side; reading goes on.
    pub async fn finish_writing(&mut self) -> Result<()> {
        Ok(self.stream.shutdown().await?)
    }

    /// Breaks the connection with a reset instead of a proper end.
    pub fn reset(self) -> Result<()> {
        Ok(self.stream.set_zero_linger()?)
    }

    /// Reads one answer; fails when the connection ends before it does.
    pub async fn read_response(&mut self) -> Result<RawResponse> {
        let (status, headers) = self.read_head().await?;
        let mut response = RawResponse {
            status,
            headers,
            body: Vec::new(),
        };
        let chunked = response
            .header("transfer-encoding")
            .is_some_and(|value| value.contains("chunked"));
        let length = response
            .header("content-length")
            .and_then(|value| value.parse().ok());
        response.body = if matches!(status, 204 | 304) {
            Vec::new()
        } else if chunked {
            self.read_chunks().await?
        } else if let Some(length) = length {
            self.take(length).await?
        } else {
            self.read_to_end().await?
        };
        Ok(response)
    }

    /// The head only: status and headers. The body, if any, is still to be read.
    pub async fn read_head(&mut self) -> Result<(u16, Vec<(String, String)>)> {
        let head = self.take_until(b"\r\n\r\n").await?;
        let text = String::from_utf8_lossy(&head);
        let mut lines = text.split("\r\n");
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| Failure::new(format!("no HTTP answer: {text:?}")))?;
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Ok((status, headers))
    }

    /// Everything until the other side closes; a reset counts as the end.
    pub async fn read_to_end(&mut self) -> Result<Vec<u8>> {
        loop {
            if !self.read_more().await? {
                return Ok(std::mem::take(&mut self.pending));
            }
        }
    }

    async fn read_chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.take_until(b"\r\n").await?;
            let size = String::from_utf8_lossy(&line);
            let size = size.split(';').next().unwrap_or("").trim().to_owned();
            let size = usize::from_str_radix(&size, 16)
                .map_err(|_| Failure::new(format!("no chunk size: {size:?}")))?;
            body.extend(self.take(size).await?);
            if !self.take_until(b"\r\n").await?.is_empty() {
                return Err(Failure::new(
                    "a chunk is longer than it says, or trailers follow the last one",
                ));
            }
            if size == 0 {
                return Ok(body);
            }
        }
    }

    /// The bytes before `end`, which is taken away too.
    async fn take_until(&mut self, end: &[u8]) -> Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            let found = self.pending[searched..]
                .windows(end.len())
                .position(|window| window == end);
            if let Some(at) = found {
                let mut taken: Vec<u8> = self.pending.drain(..searched + at + end.len()).collect();
                taken.truncate(searched + at);
                return Ok(taken);
            }
            searched = self.pending.len().saturating_sub(end.len() - 1);
            self.need_more().await?;
        }
    }

    async fn take(&mut self, count: usize) -> Result<Vec<u8>> {
        while self.pending.len() < count {
            self.need_more().await?;
        }
        Ok(self.pending.drain(..count).collect())
    }

    async fn need_more(&mut self) -> Result<()> {
        if self.read_more().await? {
            return Ok(());
        }
        let so_far = String::from_utf8_lossy(&self.pending).into_owned();
        Err(Failure::new(format!(
            "the connection ended in the middle of the answer: {so_far:?}"
        )))
    }

    /// Reads what there is; false at the end.
    async fn read_more(&mut self) -> Result<bool> {
        if self.pending.len() > LONGEST_ANSWER {
            return Err(Failure::new("an answer without end"));
        }
        let read = tokio::time::timeout(self.deadline, self.stream.read_buf(&mut self.pending)).await;
        match read.map_err(|_| Failure::new(format!("nothing came in {:?}", self.deadline)))? {
            Ok(count) => Ok(count > 0),
            // The other side may close with our bytes unread, which makes a reset of it.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
