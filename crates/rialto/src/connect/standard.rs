//! Standard input and output without a thread in between, where that is possible.
//!
//! tokio's own wait for each read and write in another thread, which costs two wake-ups a message.
//! On Linux a pipe can be opened anew by a name: the new opening has flags of its own, so that no
//! process that shares the old one is surprised by a pipe that does not block. A socket,
//! which is what Node.js hosts give their children, has no such second opening; it is used directly
//! if no other process has it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as BlockingStream;

use gateway::platform;
use rustix::fs::FileType;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

type Input = Box<dyn AsyncRead + Send + Unpin>;
type Output = Box<dyn AsyncWrite + Send + Unpin>;

const INPUT: u8 = 0;
const OUTPUT: u8 = 1;

pub(crate) fn input() -> Input {
    let opened: Option<Input> = match kind(io::stdin().as_fd()) {
        Kind::Pipe => platform::reopenable(INPUT)
            .and_then(|path| pipe::OpenOptions::new().open_receiver(path).ok())
            .map(|pipe| Box::new(pipe) as Input),
        Kind::Socket => socket(io::stdin().as_fd()).map(|socket| Box::new(socket) as Input),
        Kind::Other => None,
    };
    opened.unwrap_or_else(|| Box::new(tokio::io::stdin()))
}

pub(crate) fn output() -> Output {
    let opened: Option<Output> = match kind(io::stdout().as_fd()) {
        Kind::Pipe => platform::reopenable(OUTPUT)
            .and_then(|path| pipe::OpenOptions::new().open_sender(path).ok())
            .map(|pipe| Box::new(pipe) as Output),
        // The log is written by a thread that relies on waiting.
        Kind::Socket if !same(io::stdout().as_fd(), io::stderr().as_fd()) => {
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

fn kind(stream: BorrowedFd<'_>) -> Kind {
    match rustix::fs::fstat(stream).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::Fifo) => Kind::Pipe,
        Ok(FileType::Socket) => Kind::Socket,
        Ok(_) | Err(_) => Kind::Other,
    }
}

fn same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let identity = |stream| {
        rustix::fs::fstat(stream)
            .map(|stat| (stat.st_dev, stat.st_ino))
            .ok()
    };
    identity(one) == identity(other)
}

fn socket(descriptor: BorrowedFd<'_>) -> Option<UnixStream> {
    let stream = BlockingStream::from(descriptor.try_clone_to_owned().ok()?);
    // Something else than a local stream would fail here.
    stream.local_addr().ok()?;
    stream.set_nonblocking(true).ok()?;
    UnixStream::from_std(stream).ok()
}
