//! The life of a started child up to its end: noticing the exit, stopping it, leaving nothing
//! behind.
//!
//! It hides signals, groups and reaping. Pipes prove nothing: only the process status shows that a
//! child has ended. However a `ChildProcess` is lost (a stop, a drop, a panic, a runtime that goes
//! away), its whole group ends and the child is waited for.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::process::Child;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::group::Group;

/// How long a child may take to end by itself after its stdin was closed, before SIGTERM.
pub const VOLUNTARY: Duration = Duration::from_millis(500);

/// How a child ended. Both are absent if the status is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        Self {
            code: status.code(),
            signal: status.signal(),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit status {code}"),
            (None, Some(signal)) => match signal_name(signal) {
                Some(name) => write!(f, "signal {signal} ({name})"),
                None => write!(f, "signal {signal}"),
            },
            (None, None) => f.write_str("unknown exit status"),
        }
    }
}

/// The signals that are known to end servers; their numbers are the same on every Unix we run on.
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        _ => return None,
    })
}

/// A child and its group, from the start to the end.
#[derive(Debug)]
pub struct ChildProcess {
    pid: u32,
    /// Present until `Drop` takes it.
    leader: Option<Child>,
    exit: Option<Exit>,
    /// Present until the group is gone or has been handed to `sweep`.
    group: Option<Group>,
    /// Ends what a crashed leader has left behind.
    sweep: Option<JoinHandle<()>>,
    leftover_grace: Duration,
    /// The right to large pipe buffers, given back when the child has gone.
    _room: Option<OwnedSemaphorePermit>,
}

impl ChildProcess {
    pub(super) fn new(
        pid: u32,
        leader: Child,
        group: Group,
        leftover_grace: Duration,
        room: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self {
            pid,
            leader: Some(leader),
            exit: None,
            group: Some(group),
            sweep: None,
            leftover_grace,
            _room: room,
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the child has ended by itself. Cancel safe, and may be called again.
    ///
    /// Processes that the child has left running are then ended in the background: SIGTERM, and
    /// SIGKILL after the launcher's leftover grace.
    pub async fn exited(&mut self) -> Exit {
        let exit = self.leader_ended().await;
        if let Some(leftover) = self.group.take().and_then(Group::without_leader) {
            let deadline = Instant::now() + self.leftover_grace;
            self.sweep = in_background(leftover.end(deadline, false));
        }
        exit
    }

    /// Stops the child and its whole group, within `grace`. The caller has dropped its stdin.
    ///
    /// A short while to end by itself, SIGTERM to the group, SIGKILL to the group when the grace is
    /// over. It returns when nothing is left. Dropping the future before that kills the group at
    /// once.
    pub async fn stop(mut self, grace: Duration) -> Exit {
        let deadline = Instant::now() + grace;
        let mut asked = false;
        if timeout(VOLUNTARY.min(grace), self.leader_ended()).await.is_err() {
            if let Some(group) = &self.group {
                group.terminate();
            }
            asked = true;
            if timeout_at(deadline, self.leader_ended()).await.is_err() {
                self.kill_now();
            }
        }
        let exit = self.leader_ended().await;
        if let Some(leftover) = self.group.take().and_then(Group::without_leader) {
            leftover.end(deadline, asked).await;
        }
        if let Some(sweep) = self.sweep.take() {
            // It was begun by `exited` and keeps its own deadline. It ends early only with the
            // runtime.
            let _ = sweep.await;
        }
        exit
    }

    /// Sends SIGKILL to the whole group. `exited` or `stop` then return the exit.
    pub fn kill_now(&mut self) {
        if let Some(group) = &self.group {
            group.kill();
        }
    }

    async fn leader_ended(&mut self) -> Exit {
        if let Some(exit) = self.exit {
            return exit;
        }
        let leader = self.leader.as_mut().expect("only drop takes the leader");
        let exit = match leader.wait().await {
            Ok(status) => Exit::from(status),
            Err(error) => {
                // Another part of the process has waited for it; its status is unknown.
                tracing::warn!(pid = self.pid, %error, "the exit status of a child is lost");
                Exit {
                    code: None,
                    signal: None,
                }
            }
        };
        self.exit = Some(exit);
        exit
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let Some(group) = self.group.take() else { return };
        group.kill();
        if self.exit.is_none()
            && let Some(mut leader) = self.leader.take()
        {
            in_background(async move {
                let _ = leader.wait().await;
                if let Some(leftover) = group.without_leader() {
                    leftover.end(Instant::now(), true).await;
                }
            });
        }
    }
}

/// Spawns a task that outlives the value that started it.
///
/// Without a runtime, or with one that is ending, the future is dropped, which kills the groups
/// that it holds. This goes through the handle because `tokio::spawn` would panic there, in the
/// middle of a drop.
pub(super) fn in_background(duty: impl Future<Output = ()> + Send + 'static) -> Option<JoinHandle<()>> {
    Handle::try_current().ok().map(|runtime| runtime.spawn(duty))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_reads_like_a_sentence() {
        assert_eq!(
            Exit {
                code: Some(3),
                signal: None
            }
            .to_string(),
            "exit status 3"
        );
        assert_eq!(
            Exit {
                code: None,
                signal: Some(9)
            }
            .to_string(),
            "signal 9 (SIGKILL)"
        );
        assert_eq!(
            Exit {
                code: None,
                signal: Some(64)
            }
            .to_string(),
            "signal 64"
        );
        assert_eq!(
            Exit {
                code: None,
                signal: None
            }
            .to_string(),
            "unknown exit status"
        );
    }
}
