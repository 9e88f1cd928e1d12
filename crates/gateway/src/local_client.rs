//! Clients of the admin socket of a gateway on this machine.
//!
//! A socket counts only if it belongs to the user of this process, is closed to all others, and the
//! kernel names that user, or root, at its other end.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::process::Pid;
use tokio::net::UnixStream;

use crate::platform;
use crate::tasks::{self, Owned};

/// How long a gateway may take to begin an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest answer that is no stream.
const MAX_ANSWER: usize = 64 << 20;
/// The longest line of a stream.
const MAX_LINE: usize = 16 << 20;

/// Returns an error for a socket that belongs to another user, or that others can open.
pub fn check_socket(path: &Path) -> io::Result<()> {
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    let shown = path.display();
    let seen = std::fs::symlink_metadata(path)?;
    let own = rustix::process::geteuid().as_raw();
    if !seen.file_type().is_socket() {
        return refuse(format!("{shown} is no socket"));
    }
    if seen.uid() != own {
        let owner = seen.uid();
        return refuse(format!("{shown} belongs to user {owner}, and this is user {own}"));
    }
    let mode = seen.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return refuse(format!("{shown} has mode {mode:04o}, so that others can open it"));
    }
    Ok(())
}

/// Checks that the process at the other end belongs to the user of this one, or to root.
pub(crate) fn check_peer(stream: &UnixStream) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    let own = rustix::process::geteuid().as_raw();
    if is_trusted(peer, own) {
        return Ok(());
    }
    let why = format!("the process at the other end belongs to user {peer}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Checks that the process at the other end may use this gateway: it belongs to this user, or to
/// root, and is no server that the gateway has started. A server may not use what its callers use.
pub(crate) fn check_client(stream: &UnixStream) -> io::Result<()> {
    check_peer(stream)?;
    // A process of another namespace of processes has the number 0 here. Servers have none there.
    let peer = stream.peer_cred()?.pid().and_then(Pid::from_raw);
    match peer.is_some_and(platform::descends_from_us) {
        true => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the process at the other end is a server of this gateway",
        )),
        false => Ok(()),
    }
}

/// Returns whether a process of this user may be at the other end: the user itself, or root.
fn is_trusted(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

/// Connects to a gateway.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    check_socket(path)?;
    let stream = UnixStream::connect(path).await?;
    check_peer(&stream)?;
    Ok(stream)
}

/// A response whose body is read line by line.
#[derive(Debug)]
pub struct Lines {
    pub status: StatusCode,
    body: Incoming,
    read: BytesMut,
    /// Drives the connection for as long as this lives.
    _connection: Owned<()>,
}

/// Asks for a path. The answer is read as it comes.
pub async fn open(socket: &Path, path: &str) -> io::Result<Lines> {
    match tokio::time::timeout(PATIENCE, open_now(socket, path)).await {
        Ok(opened) => opened,
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no answer within {PATIENCE:?}"),
        )),
    }
}

async fn open_now(socket: &Path, path: &str) -> io::Result<Lines> {
    let stream = connect(socket).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let connection = Owned(tasks::spawn("local client", async move {
        // What it ends with, the body tells too.
        let _ = connection.await;
    }));
    let request = Request::get(path)
        .header(HOST, "localhost")
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let response = sender.send_request(request).await.map_err(broken_off)?;
    Ok(Lines {
        status: response.status(),
        body: response.into_body(),
        read: BytesMut::new(),
        _connection: connection,
    })
}

/// Returns an error of a connection. One that the gateway has closed without an answer is
/// `ConnectionAborted`: the gateway ends, or does not admit this process.
fn broken_off(error: hyper::Error) -> io::Error {
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<io::Error>());
    let is_lost = cause.is_some_and(|cause| {
        matches!(
            cause.kind(),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
        )
    });
    match is_lost || error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        true => io::Error::new(io::ErrorKind::ConnectionAborted, error),
        false => io::Error::other(error),
    }
}

/// Asks for a path, and reads the whole answer.
pub async fn get(socket: &Path, path: &str) -> io::Result<(StatusCode, Bytes)> {
    let mut lines = open(socket, path).await?;
    let whole = async {
        while lines.read_more(MAX_ANSWER).await? {}
        Ok::<_, io::Error>(lines.read.split().freeze())
    };
    match tokio::time::timeout(PATIENCE, whole).await {
        Ok(read) => Ok((lines.status, read?)),
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
    }
}

impl Lines {
    /// Returns the next line without its end; `None` at the end of the response.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.read) {
                let line = self.read.split_to(at + 1).freeze();
                return Ok(Some(line.slice(..at)));
            }
            if !self.read_more(MAX_LINE).await? {
                return Ok(None);
            }
        }
    }

    /// Reads more of the body. Returns whether there was more.
    async fn read_more(&mut self, limit: usize) -> io::Result<bool> {
        let Some(frame) = self.body.frame().await else {
            return Ok(false);
        };
        if let Ok(data) = frame.map_err(io::Error::other)?.into_data() {
            if self.read.len() + data.len() > limit {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the answer is too long",
                ));
            }
            self.read.extend_from_slice(&data);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn processes_of_other_users_are_not_trusted() {
        assert!(is_trusted(1000, 1000) && is_trusted(0, 1000) && is_trusted(0, 0));
        assert!(!is_trusted(1001, 1000) && !is_trusted(1000, 0));
    }

    #[test]
    fn socket_that_others_can_open_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x.sock");
        let _listener = UnixListener::bind(&path).expect("bound");
        for (mode, is_good) in [(0o600, true), (0o660, false), (0o666, false), (0o604, false)] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
            assert_eq!(check_socket(&path).is_ok(), is_good, "{mode:o}");
        }
    }

    #[test]
    fn file_or_link_in_the_place_of_a_socket_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, link) = (directory.path().join("x.sock"), directory.path().join("y.sock"));
        std::fs::write(&path, "").expect("written");
        let error = check_socket(&path).expect_err("no socket");
        assert!(error.to_string().contains("is no socket"), "{error}");
        std::fs::remove_file(&path).expect("removed");
        let _listener = UnixListener::bind(&path).expect("bound");
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        assert!(check_socket(&link).is_err());
    }
}
