//! One process at a time: a lock that the kernel frees when its holder dies.

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
    /// Someone else has it, and for long.
    Busy,
    System(std::io::Error),
}

/// How often a lock that another process holds is tried again.
///
/// A blocking call would wake up sooner, but sit on a thread that cannot be called back: a process whose stdin has closed must end,
/// however long another one's sign-in takes.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn acquire(
    directory: &Directory,
    name: &str,
    patience: Duration,
) -> Result<Lock, LockFailure> {
    let file = directory.lockable(name).map_err(LockFailure::System)?;
    let deadline = Instant::now() + patience;
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
