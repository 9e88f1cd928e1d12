//! Standard input and output without a thread in between, where that is possible.
//!
//! tokio's own wait for each read and write in another thread, which costs two wake-ups a message.
//! A pipe can be opened anew by its name under `/proc`: the new opening has flags of its own, so
//! that no process that shares the old one is surprised by a pipe that does not block. A socket,
//! which is what Node.js hosts give their children, has no such second opening; it is used directly
//! if no other process has it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::Path;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

type Input = Box<dyn AsyncRead + Send + Unpin>;
type Output = Box<dyn AsyncWrite + Send + Unpin>;

const INPUT: &str = "/proc/self/fd/0";
const OUTPUT: &str = "/proc/self/fd/1";
const LOG: &str = "/proc/self/fd/2";

pub(crate) fn input() -> Input {
    let opened: Option<Input> = match kind(INPUT) {
        Kind::Pipe => pipe::OpenOptions::new()
            .open_receiver(INPUT)
            .ok()
            .map(|pipe| Box::new(pipe) as Input),
        Kind::Socket => socket(io::stdin().as_fd()).map(|socket| Box::new(socket) as Input),
        Kind::Other => None,
    };
    opened.unwrap_or_else(|| Box::new(tokio::io::stdin()))
}

pub(crate) fn output() -> Output {
    let opened: Option<Output> = match kind(OUTPUT) {
        Kind::Pipe => pipe::OpenOptions::new()
            .open_sender(OUTPUT)
            .ok()
            .map(|pipe| Box::new(pipe) as Output),
        // The log is written by a thread that relies on waiting.
        Kind::Socket if !same(OUTPUT, LOG) => {
            socket(io::stdout().as_fd()).map(|socket| Box::new(socket) as Output)
        }
        Kind::Socket | Kind::Other => None,
    };
    opened.unwrap_or_else(|| Box::new(tokio::io::stdout()))
}

enum Kind {
    Pipe,
    Socket,
    /// A file or a terminal.
    Other,
}

fn kind(path: &str) -> Kind {
    match fs::metadata(path).map(|metadata| metadata.file_type()) {
        Ok(kind) if kind.is_fifo() => Kind::Pipe,
        Ok(kind) if kind.is_socket() => Kind::Socket,
        Ok(_) | Err(_) => Kind::Other,
    }
}

fn same(one: impl AsRef<Path>, other: impl AsRef<Path>) -> bool {
    let identity = |path: &Path| {
        fs::metadata(path)
            .map(|metadata| (metadata.dev(), metadata.ino()))
            .ok()
    };
    identity(one.as_ref()) == identity(other.as_ref())
}

fn socket(descriptor: BorrowedFd<'_>) -> Option<UnixStream> {
    let stream = BlockingStream::from(descriptor.try_clone_to_owned().ok()?);
    // Something else than a local stream would fail here.
    stream.local_addr().ok()?;
    stream.set_nonblocking(true).ok()?;
    UnixStream::from_std(stream).ok()
}
