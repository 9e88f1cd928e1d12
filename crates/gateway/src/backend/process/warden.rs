//! The warden: a small helper process that ends Rialto's children when Rialto can no longer do it.
//!
//! A SIGKILL or an abort gives Rialto no chance to clean up, and a stubborn child does not end on
//! its own. So one process, our own binary with a hidden argument, reads from a pipe that only
//! Rialto holds: `+ID` and `-ID` lines tell it which process groups are alive. When the pipe ends,
//! Rialto is gone, and the warden kills those groups, and every process with the mark of Rialto
//! (`=MARK`, see `strays.rs`), and ends too. It is in a group of its own, so that Ctrl-C does not
//! reach it.
//!
//! The parent-death signal of Linux is not used: it needs `unsafe`, follows the thread that forked,
//! and does not reach grandchildren.
//!
//! The handle never blocks: it changes a set and wakes a task, which tells the helper the
//! difference and starts it again if it dies. The set is as large as the number of living children.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use super::group::GroupId;
use super::stop::{Exit, in_background};
use super::strays::{self, Marks};
use crate::tasks;

/// The waits before a dead helper is started again: doubled each time, up to the longest.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A helper that lived this long was a good one; the wait starts anew.
const STABLE: Duration = Duration::from_secs(60);

/// More groups than any Rialto runs. The helper stops taking new ones there, rather than growing.
const MOST_GROUPS: usize = 65_536;

/// How long the helper looks after groups that it has killed.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// How to start the helper: program and arguments that lead to [`run`].
#[derive(Debug, Clone)]
pub struct WardenCommand {
    pub argv: Vec<OsString>,
}

/// The gateway's handle on the helper, and its list of living groups.
#[derive(Debug)]
pub struct Warden {
    command: Option<WardenCommand>,
    started: AtomicBool,
    groups: Mutex<Groups>,
    marks: Marks,
    changed: Arc<Notify>,
    /// The revision that was written to the living helper; 0 while there is none.
    written: watch::Sender<u64>,
}

#[derive(Debug, Clone, Default)]
struct Groups {
    alive: BTreeSet<GroupId>,
    /// Grows with every change.
    revision: u64,
}

impl Warden {
    /// Returns a warden whose helper is started, in the background, with the first registration.
    pub fn new(command: WardenCommand) -> Arc<Self> {
        Arc::new(Self::with(Some(command)))
    }

    /// Only the list, without a helper.
    pub fn none() -> Arc<Self> {
        Arc::new(Self::with(None))
    }

    fn with(command: Option<WardenCommand>) -> Self {
        Self {
            command,
            started: AtomicBool::new(false),
            groups: Mutex::default(),
            marks: Marks::new(),
            changed: Arc::new(Notify::new()),
            written: watch::Sender::new(0),
        }
    }

    /// This group must not outlive Rialto.
    pub fn register(self: &Arc<Self>, group: GroupId) {
        self.change(|alive| alive.insert(group));
        if let Some(command) = &self.command
            && !self.started.swap(true, Ordering::Relaxed)
        {
            // The task holds no strong reference: when the last handle goes, it ends, and so does
            // the helper.
            in_background(keep(
                command.clone(),
                Arc::downgrade(self),
                Arc::clone(&self.changed),
            ));
        }
    }

    /// This group is gone, and its id may soon belong to a stranger.
    pub fn release(&self, group: GroupId) {
        self.change(|alive| alive.remove(&group));
    }

    /// Waits until the helper knows all that was registered and released so far.
    pub(super) async fn informed(&self) {
        let revision = self.groups().revision;
        let mut written = self.written.subscribe();
        // The sender is a field of this very value, so it is not gone while we wait.
        let _ = written.wait_for(|written| *written >= revision).await;
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<GroupId>) -> bool) {
        let mut groups = self.groups();
        if change(&mut groups.alive) {
            groups.revision += 1;
            self.changed.notify_one();
        }
    }

    pub(super) fn kill_all(&self) {
        for group in &self.groups().alive {
            group.signal(Signal::KILL);
        }
    }

    pub(super) fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Returns whether this process is the leader of a living group.
    pub(super) fn has_started(&self, pid: i32) -> bool {
        GroupId::new(pid).is_some_and(|group| self.groups().alive.contains(&group))
    }

    pub(super) fn alive(&self) -> usize {
        self.groups().alive.len()
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        // No code that holds the lock can panic half-way through a change.
        self.groups.lock()
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

/// Why a helper is no longer watched.
enum Ended {
    /// The last handle is gone.
    Unneeded,
    Died(Exit),
}

/// Keeps one helper running for as long as the handle lives.
async fn keep(command: WardenCommand, warden: Weak<Warden>, changed: Arc<Notify>) {
    let mut wait = SHORTEST_WAIT;
    loop {
        let begun = Instant::now();
        let order = command.clone();
        match tasks::blocking(move || start(&order)).await {
            Ok(helper) => match tell(helper, &warden, &changed).await {
                Ended::Unneeded => return,
                Ended::Died(exit) => {
                    tracing::warn!(%exit, "the warden process ended, it will be started again")
                }
            },
            Err(error) => {
                tracing::warn!(%error, "the warden process could not be started, another try follows")
            }
        }
        if let Some(warden) = warden.upgrade() {
            warden.written.send_replace(0);
        }
        wait = if begun.elapsed() >= STABLE {
            SHORTEST_WAIT
        } else {
            (wait * 2).min(LONGEST_WAIT)
        };
        sleep(wait).await;
        if warden.strong_count() == 0 {
            return;
        }
    }
}

fn start(command: &WardenCommand) -> io::Result<Child> {
    let mut argv = command.argv.iter();
    let program = argv
        .next()
        .ok_or_else(|| io::Error::other("the warden's command is empty"))?;
    Command::new(program)
        .args(argv)
        .env_clear()
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// Tells a fresh helper all groups, and then every change, until one side ends.
async fn tell(mut helper: Child, warden: &Weak<Warden>, changed: &Notify) -> Ended {
    let mut pipe = helper.stdin.take().expect("stdin was asked to be a pipe");
    let mut written = BTreeSet::new();
    let mark = warden
        .upgrade()
        .map(|warden| format!("={}\n", warden.marks.prefix()));
    let mut first_line = mark.unwrap_or_default();
    loop {
        let Some(current) = warden.upgrade().map(|warden| warden.groups().clone()) else {
            drop(pipe);
            let _ = helper.wait().await;
            return Ended::Unneeded;
        };
        let lines = std::mem::take(&mut first_line) + &differences(&written, &current.alive);
        written = current.alive;
        let write = async {
            pipe.write_all(lines.as_bytes()).await?;
            if let Some(warden) = warden.upgrade() {
                warden.written.send_replace(current.revision);
            }
            changed.notified().await;
            io::Result::Ok(())
        };
        let written = tokio::select! {
            written = write => written,
            status = helper.wait() => return Ended::Died(exit_of(status)),
        };
        if written.is_err() {
            // It has closed its stdin, so it is of no use even if it still runs.
            let _ = helper.start_kill();
            return Ended::Died(exit_of(helper.wait().await));
        }
    }
}

fn exit_of(status: io::Result<std::process::ExitStatus>) -> Exit {
    status.map_or(
        Exit {
            code: None,
            signal: None,
        },
        Exit::from,
    )
}

fn differences(written: &BTreeSet<GroupId>, current: &BTreeSet<GroupId>) -> String {
    let mut lines = String::new();
    for gone in written.difference(current) {
        let _ = writeln!(lines, "-{gone}");
    }
    for new in current.difference(written) {
        let _ = writeln!(lines, "+{new}");
    }
    lines
}

/// The helper's whole life: reads its stdin to the end and then kills what is left.
pub fn run() {
    let left = listen(BufReader::new(io::stdin().lock()));
    if left.groups.is_empty() {
        // Those that left a group end before it is released: there is nothing to look for among all
        // processes.
        return;
    }
    // One signal is enough for a group. The further looks are for those that only just came into
    // being.
    let deadline = std::time::Instant::now() + LOOK_AFTER;
    loop {
        let strays = left.mark.as_deref().map_or_else(Vec::new, strays::marked);
        let groups = left.groups.iter().filter(|group| group.exists());
        let is_done = strays.is_empty() && groups.clone().next().is_none();
        if is_done || std::time::Instant::now() >= deadline {
            return;
        }
        for group in groups {
            group.signal(Signal::KILL);
        }
        for stray in strays {
            stray.signal(Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What was registered with the helper, up to the end of Rialto.
#[derive(Debug, Default, PartialEq, Eq)]
struct Registered {
    groups: BTreeSet<GroupId>,
    mark: Option<String>,
}

/// Follows the lines to their end; the answer is what is alive then. Lines that mean nothing are
/// skipped.
fn listen(mut input: impl BufRead) -> Registered {
    // Longer than any id or mark, so a line that is cut here was none.
    const LONGEST_LINE: u64 = 48;
    let mut left = Registered::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut input).take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) => return left,
            Ok(_) => {}
            // `read_until` goes on after an interruption by itself; anything else means that
            // nothing more will come.
            Err(_) => return left,
        }
        // A last line without its end may be half a number, which would be the group of another
        // program.
        let Some(text) = line
            .strip_suffix(b"\n")
            .and_then(|text| str::from_utf8(text).ok())
        else {
            continue;
        };
        if let Some(group) = text.strip_prefix('+').and_then(parse_group) {
            if left.groups.len() < MOST_GROUPS {
                left.groups.insert(group);
            }
        } else if let Some(group) = text.strip_prefix('-').and_then(parse_group) {
            left.groups.remove(&group);
        } else if let Some(mark) = text.strip_prefix('=').filter(|mark| !mark.is_empty()) {
            left.mark = Some(mark.to_owned());
        }
    }
}

fn parse_group(text: &str) -> Option<GroupId> {
    // `parse` alone would also take a sign.
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok().and_then(GroupId::new))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(id: i32) -> GroupId {
        GroupId::new(id).expect("a good id")
    }

    #[test]
    fn the_helper_remembers_what_was_registered_and_not_released() {
        let left = listen(&b"=7-a.\n+10\n+11\n-10\n+12\n"[..]);
        assert_eq!(left.groups, BTreeSet::from([group(11), group(12)]));
        assert_eq!(left.mark.as_deref(), Some("7-a."));
    }

    #[test]
    fn a_line_that_means_nothing_is_skipped() {
        let lines = format!(
            "+0\n+1\n+-5\n++7\nhello\n\n+{}\n+99999999999\n+20\n",
            "9".repeat(100)
        );
        assert_eq!(listen(lines.as_bytes()).groups, BTreeSet::from([group(20)]));
    }

    #[test]
    fn half_a_line_at_the_end_is_no_group() {
        assert_eq!(listen(&b"+20\n+12"[..]).groups, BTreeSet::from([group(20)]));
        assert_eq!(listen(&b"=7-a"[..]).mark, None);
    }

    #[test]
    fn only_differences_are_written() {
        let written = BTreeSet::from([group(10), group(11)]);
        let current = BTreeSet::from([group(11), group(12)]);
        assert_eq!(differences(&written, &current), "-10\n+12\n");
        assert_eq!(differences(&current, &current), "");
    }

    #[test]
    fn written_groups_are_the_groups_that_are_read() {
        let current: BTreeSet<_> = (2..500).map(group).collect();
        assert_eq!(
            listen(differences(&BTreeSet::new(), &current).as_bytes()).groups,
            current
        );
    }
}
