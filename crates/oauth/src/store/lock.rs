//! The lock between processes, which the kernel frees when its holder dies.

use std::fs::File;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use tokio::time::Instant;

use super::directory::Directory;

/// Held from reading a record to writing it, over a whole sign-in.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

#[derive(Debug)]
pub(super) enum LockFailure {
    /// Another process has held it for longer than the timeout.
    Busy,
    System(std::io::Error),
}

/// How often a lock that another process holds is tried again.
///
/// A blocking call would return sooner, but keep a thread that cannot be cancelled. A process whose
/// stdin has closed must end, however long the sign-in of another one takes.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn acquire(
    directory: &Directory,
    name: &str,
    timeout: Duration,
) -> Result<Lock, LockFailure> {
    let file = directory.lockable(name).map_err(LockFailure::System)?;
    let deadline = Instant::now() + timeout;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Lock { _file: file }),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                tokio::time::sleep(PAUSE).await
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(LockFailure::Busy),
            Err(error) => return Err(LockFailure::System(error.into())),
        }
    }
}
