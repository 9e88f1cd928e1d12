//! Strays: processes that left the group of their child (`setsid`, a double fork) and live on
//! without it.
//!
//! Each child is started with a mark in its environment, which every process that it starts
//! inherits. An orphan among its descendants comes to Rialto, which is their subreaper
//! ([`platform::adopt_orphans`]); by the mark it is known whose it was. The warden, which is no
//! ancestor of theirs, finds the marked ones among all processes.
//!
//! A process that clears its environment as well is not found. It is left alone: what comes to
//! Rialto unmarked may be a browser that was opened for a person.
//!
//! A system without a subreaper finds nothing, see [`crate::platform`].

use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, WaitOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::warden::Warden;
use crate::platform::{self, HeldProcess};

/// The variable that carries the mark.
pub(super) const VARIABLE: &str = "__RIALTO_INSTANCE";

/// How long a dead child stays unwaited for before it counts as an orphan. Those that Rialto
/// started itself are waited for at once.
const UNCLAIMED: Duration = Duration::from_secs(1);

/// The marks of one Rialto. All begin with the same text, which no other Rialto uses.
#[derive(Debug)]
pub(super) struct Marks {
    prefix: String,
    next: AtomicU64,
}

impl Marks {
    pub(super) fn new() -> Self {
        let started = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64);
        Self {
            prefix: format!("{}-{started:x}.", std::process::id()),
            next: AtomicU64::new(1),
        }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn next(&self) -> Mark {
        Mark(format!(
            "{}{}.",
            self.prefix,
            self.next.fetch_add(1, Ordering::Relaxed)
        ))
    }
}

/// The value of [`VARIABLE`] for one child. It ends with a dot, so that none is the beginning of
/// another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark(String);

impl Mark {
    /// Returns the marked processes among the living children of this process that are not in
    /// `group`: the leader and those that stayed with it are signalled by their group.
    pub(super) fn adopted(&self, group: Pid) -> Vec<Stray> {
        let has_left = |pid: &Pid| rustix::process::getpgid(Some(*pid)).is_ok_and(|of| of != group);
        platform::children()
            .into_iter()
            .filter(has_left)
            .filter_map(|pid| Stray::marked(pid, &self.0))
            .collect()
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns every process of the machine whose mark begins like this.
pub(super) fn marked(prefix: &str) -> Vec<Stray> {
    platform::all_processes()
        .into_iter()
        .filter_map(|pid| Stray::marked(pid, prefix))
        .collect()
}

/// A process that left its group.
#[derive(Debug)]
pub(super) struct Stray(HeldProcess);

impl Stray {
    fn marked(pid: Pid, prefix: &str) -> Option<Self> {
        // Held first: what is read then is about this very process, or there is nothing to read.
        let held = HeldProcess::hold(pid)?;
        carries(&platform::environment_of(pid)?, prefix).then_some(Self(held))
    }

    /// A process that has gone is no error.
    pub(super) fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }
}

/// Returns whether an environment, as the system shows it, has a mark that begins like this.
fn carries(environment: &[u8], prefix: &str) -> bool {
    environment.split(|byte| *byte == 0).any(|variable| {
        variable
            .strip_prefix(VARIABLE.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"="))
            .is_some_and(|mark| mark.starts_with(prefix.as_bytes()))
    })
}

/// Waits for orphans that have come to this process and died, for as long as the handle lives.
///
/// Only processes that Rialto did not start are waited for, one by one: the status of a child of
/// ours belongs to its supervisor. Time distinguishes a child whose start is not known yet from an
/// orphan: its supervisor waits for it at once.
pub(super) async fn reap(warden: Weak<Warden>) {
    let Ok(mut exits) = signal(SignalKind::child()) else {
        return;
    };
    while exits.recv().await.is_some() {
        sleep(UNCLAIMED).await;
        let seen = dead(&warden);
        if seen.is_empty() {
            continue;
        }
        sleep(UNCLAIMED).await;
        let Some(warden) = warden.upgrade() else { return };
        for (pid, _) in dead_children(&warden).iter().filter(|dead| seen.contains(dead)) {
            let _ = rustix::process::waitpid(Some(*pid), WaitOptions::NOHANG);
        }
    }
}

fn dead(warden: &Weak<Warden>) -> Vec<(Pid, String)> {
    warden
        .upgrade()
        .map_or_else(Vec::new, |warden| dead_children(&warden))
}

/// Returns the dead children that Rialto did not start, and when they were started, by which a
/// number that is used again is noticed.
fn dead_children(warden: &Warden) -> Vec<(Pid, String)> {
    let dead = |pid: Pid| Some((pid, platform::dead_since(pid)?));
    platform::children()
        .into_iter()
        .filter(|pid| !warden.has_started(pid.as_raw_nonzero().get()))
        .filter_map(dead)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_only_as_the_value_of_its_variable() {
        let environment = b"PATH=/bin\0__RIALTO_INSTANCE=7-a.1.\0X=__RIALTO_INSTANCE=8-b.1.\0";
        assert!(carries(environment, "7-a."));
        assert!(carries(environment, "7-a.1."));
        assert!(!carries(environment, "7-a.11."));
        assert!(!carries(environment, "8-b."));
        assert!(!carries(b"", "7-a."));
    }

    #[test]
    fn no_mark_is_the_beginning_of_another() {
        let marks = Marks::new();
        let made: Vec<String> = (0..30).map(|_| marks.next().to_string()).collect();
        for one in &made {
            let alike = made.iter().filter(|other| other.starts_with(one.as_str()));
            assert_eq!(alike.count(), 1, "{one}");
            assert!(one.starts_with(marks.prefix()));
        }
    }
}
