//! A process group: the child and the processes that it has started. Signals go to the group.
//!
//! It hides how a group is signalled, watched and known to be gone, and it is a guard: a `Group`
//! that is dropped before it is known to be gone is killed. It refuses the ids 0 and 1, which
//! `kill` would read as "my own group" and "all processes".
//!
//! A process that leaves the group (`setsid`) is found by the mark of its child, see `strays.rs`,
//! where orphans come to this process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};
use tokio::time::{Instant, sleep, sleep_until};

use super::strays::{Mark, Stray};
use super::warden::Warden;
use crate::platform;

/// The first and the longest pause between two looks at a group that is ending.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(50);

/// How long a killed group may still be seen. It cannot do anything any more, but where no process
/// reaps orphans (a container whose first process does not wait) it stays in the process table.
const AFTER_KILL: Duration = Duration::from_millis(500);

/// The id of a process group of Rialto: never 0, never 1, never negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(i32);

impl GroupId {
    /// Returns the group that a child with this process id leads.
    pub fn new(id: i32) -> Option<Self> {
        (id > 1).then_some(Self(id))
    }

    fn pid(self) -> Pid {
        Pid::from_raw(self.0).expect("a group id is greater than one")
    }

    /// Sends a signal to every process of the group. A group that is gone is no error.
    pub(super) fn signal(self, signal: Signal) {
        match rustix::process::kill_process_group(self.pid(), signal) {
            Ok(()) => {}
            Err(error) if platform::is_gone(error) => {}
            Err(error) => {
                tracing::warn!(group = self.0, ?signal, %error, "a process group could not be signalled")
            }
        }
    }

    /// Returns whether any process is in the group, even a dead one that was not waited for.
    ///
    /// A group of which no process may be signalled (all have changed their user) is beyond us, and
    /// counts as gone.
    pub(super) fn exists(self) -> bool {
        rustix::process::test_kill_process_group(self.pid()).is_ok()
    }

    /// Waits for the dead of the group that are our children. There are such only where orphans
    /// come to us: when Rialto is the first process of a container.
    fn reap(self) {
        while let Ok(Some(_)) = rustix::process::waitpgid(self.pid(), WaitOptions::NOHANG) {}
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupId({})", self.0)
    }
}

/// A living group, registered with the warden for as long as this value lives.
#[derive(Debug)]
pub(super) struct Group {
    id: GroupId,
    warden: Option<Arc<Warden>>,
    /// The mark of processes that left the group; `None` where orphans do not come to this process.
    mark: Option<Mark>,
    gone: bool,
}

impl Group {
    pub(super) fn new(id: GroupId, warden: Option<Arc<Warden>>, mark: Option<Mark>) -> Self {
        if let Some(warden) = &warden {
            warden.register(id);
        }
        Self {
            id,
            warden,
            mark,
            gone: false,
        }
    }

    /// Asks every process of the group to end. A stopped process is woken, or it could not obey.
    pub(super) fn terminate(&self) {
        self.id.signal(Signal::TERM);
        self.id.signal(Signal::CONT);
        self.terminate_strays();
    }

    fn terminate_strays(&self) {
        for stray in self.strays() {
            stray.signal(Signal::TERM);
            stray.signal(Signal::CONT);
        }
    }

    pub(super) fn kill(&self) {
        self.id.signal(Signal::KILL);
        self.kill_strays();
    }

    /// Returns those that left the group and have lost their parent.
    fn strays(&self) -> Vec<Stray> {
        self.mark
            .as_ref()
            .map_or_else(Vec::new, |mark| mark.adopted(self.id.pid()))
    }

    fn kill_strays(&self) {
        for stray in self.strays() {
            stray.signal(Signal::KILL);
        }
    }

    /// The leader has ended and has been waited for: what is left is the rest of the group.
    pub(super) fn without_leader(self) -> Option<Leftover> {
        let leftover = Leftover(self);
        if leftover.is_present() {
            Some(leftover)
        } else {
            leftover.forget();
            None
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.gone {
            self.kill();
        }
        if let Some(warden) = &self.warden {
            warden.release(self.id);
        }
    }
}

/// What the leader of a group has left behind.
///
/// It exists only once the leader has been waited for, so that looking after the dead of the group
/// can never take the leader's status away from its supervisor.
#[derive(Debug)]
pub(super) struct Leftover(Group);

impl Leftover {
    /// Ends the group and those that left it: SIGTERM (unless it has been `asked` already), SIGKILL
    /// at the deadline.
    pub(super) async fn end(self, deadline: Instant, asked: bool) {
        if asked {
            // Orphans have this process as their parent only now.
            self.0.terminate_strays();
        } else {
            self.0.terminate();
        }
        if !self.gone_by(deadline).await {
            self.0.kill();
            if !self.killed_by(Instant::now() + AFTER_KILL).await {
                tracing::debug!(group = %self.0.id, "a killed process group still exists");
            }
        }
        self.forget();
    }

    /// Waits for the end of what was killed. Those that a stray has started come to us with its
    /// end.
    async fn killed_by(&self, deadline: Instant) -> bool {
        while Instant::now() < deadline {
            if self.gone_by(deadline.min(Instant::now() + LAST_LOOK)).await {
                return true;
            }
            self.0.kill_strays();
        }
        false
    }

    async fn gone_by(&self, deadline: Instant) -> bool {
        let mut pause = FIRST_LOOK;
        loop {
            if !self.is_present() {
                return true;
            }
            let now = Instant::now();
            if now >= deadline {
                return false;
            }
            if now + pause > deadline {
                sleep_until(deadline).await;
            } else {
                sleep(pause).await;
            }
            pause = (pause * 2).min(LAST_LOOK);
        }
    }

    fn is_present(&self) -> bool {
        self.0.id.reap();
        self.0.id.exists() || !self.0.strays().is_empty()
    }

    /// The group is gone: its id is no longer ours to signal.
    fn forget(mut self) {
        self.0.gone = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_address_more_than_one_group_are_refused() {
        for id in [i32::MIN, -5, -1, 0, 1] {
            assert_eq!(GroupId::new(id), None, "{id}");
        }
        assert!(GroupId::new(2).is_some());
    }
}
