//! Linux: `/proc`, descriptors of processes, a subreaper, large pipes, abstract sockets.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal};

use super::{GroupFigures, ProcessFigures, ProcessSeen};

/// Variables that children inherit on this system, beside those that they inherit everywhere.
pub(crate) const INHERITED: &[&str] = &["XDG_RUNTIME_DIR"];

/// The buffer of a child's stdin and stdout: a large message then costs few wake-ups.
const PIPE_BYTES: usize = 1 << 20;

/// No environment is read beyond this.
const LONGEST_ENVIRONMENT: u64 = 1 << 20;

/// No command line is read beyond this.
const LONGEST_COMMAND: u64 = 64 << 10;

/// No line of parents is followed beyond this.
const DEEPEST_DESCENT: usize = 1024;

/// The unit of processor time in `/proc`: `USER_HZ`, which is 100 on every architecture that we
/// build for.
const TICKS_PER_SECOND: f64 = 100.0;

/// The kernel's own link to the program: it leads to the same file after an upgrade has replaced
/// it.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Returns the program that this process runs.
pub(super) fn own_program() -> Option<PathBuf> {
    let path = Path::new(OWN_PROGRAM);
    path.exists().then(|| path.to_owned())
}

/// Returns the name of this machine.
pub fn host_name() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/hostname").ok()
}

/// Returns where a user keeps state between runs, below the home directory.
pub fn state_home(home: &Path) -> PathBuf {
    home.join(".local/state")
}

/// Returns where a user keeps configuration, below the home directory.
pub fn config_home(home: &Path) -> PathBuf {
    home.join(".config")
}

/// Returns a name by which a pipe among the standard streams can be opened once more. The second
/// opening has flags of its own.
pub fn reopenable(standard_stream: u8) -> Option<PathBuf> {
    Some(PathBuf::from(format!("/proc/self/fd/{standard_stream}")))
}

/// Returns the address of a socket in the abstract name space, which systemd writes as `@name`.
pub fn abstract_address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// Returns whether a socket listens, rather than being one connection.
pub fn listens(socket: impl AsFd) -> io::Result<bool> {
    Ok(rustix::net::sockopt::socket_acceptconn(socket)?)
}

/// Closes this process to its children: its memory, environment and files in `/proc`, and tracing.
/// What is executed later is not affected.
pub fn close_to_children() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(
        DumpableBehavior::NotDumpable,
    )?)
}

/// Makes orphans among the descendants of this process its children. Returns whether the system
/// can.
pub(crate) fn adopt_orphans() -> io::Result<bool> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(true)
}

/// Returns whether this error of a signal to a group means that the group is gone.
pub(crate) fn is_gone(error: Errno) -> bool {
    error == Errno::SRCH
}

/// Enlarges the buffer of a pipe. That is a kindness of the system, so a refusal is no error.
pub(crate) fn enlarge_pipe(pipe: &impl AsFd) {
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
}

/// A process that is held by a descriptor, so that a signal reaches it and never a successor.
#[derive(Debug)]
pub(crate) struct HeldProcess(OwnedFd);

impl HeldProcess {
    /// Returns nothing if there is no such process.
    pub(crate) fn hold(pid: Pid) -> Option<Self> {
        rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .ok()
            .map(Self)
    }

    /// A process that has gone is no error.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = rustix::process::pidfd_send_signal(&self.0, signal);
    }
}

/// Returns every process of the machine that this one can see.
pub(crate) fn all_processes() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// Returns the processes of this user; `None` where the system does not show them.
pub fn own_processes() -> Option<Vec<ProcessSeen>> {
    let own = rustix::process::geteuid().as_raw();
    fs::metadata("/proc/self").ok()?;
    let is_own = |pid: &Pid| fs::metadata(format!("/proc/{pid}")).is_ok_and(|seen| seen.uid() == own);
    Some(
        all_processes()
            .into_iter()
            .filter(is_own)
            .filter_map(seen)
            .collect(),
    )
}

/// Returns what the kernel shows of a process that is still there.
fn seen(pid: Pid) -> Option<ProcessSeen> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    let mut command = Vec::new();
    let file = fs::File::open(format!("/proc/{pid}/cmdline")).ok()?;
    file.take(LONGEST_COMMAND).read_to_end(&mut command).ok()?;
    let words = command.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let status = read("status").unwrap_or_default();
    Some(ProcessSeen {
        words: words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect(),
        resident_bytes: parse_figures("", &status, "", "")
            .resident_bytes
            .unwrap_or_default(),
        ..of_stat(pid, &read("stat")?)?
    })
}

/// Returns what the `stat` of a process tells.
fn of_stat(pid: Pid, stat: &str) -> Option<ProcessSeen> {
    // The name of the program stands in brackets and may hold anything.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(ProcessSeen {
        pid: u32::try_from(pid.as_raw_nonzero().get()).ok()?,
        parent: u32::try_from(number(1)?).ok()?,
        group: u32::try_from(number(2)?).ok()?,
        is_dead: matches!(fields.first(), Some(&"Z" | &"X")),
        started: number(19)?,
        ..ProcessSeen::default()
    })
}

/// Returns the children of this process, the dead included.
pub(crate) fn children() -> Vec<Pid> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let listed = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).ok();
    let lists: Vec<String> = threads.flatten().filter_map(listed).collect();
    lists
        .iter()
        .flat_map(|list| list.split_ascii_whitespace())
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}

/// Returns the environment that a process was started with: `NAME=value`, each ended by a zero
/// byte.
pub(crate) fn environment_of(pid: Pid) -> Option<Vec<u8>> {
    let mut environment = Vec::new();
    let file = fs::File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(LONGEST_ENVIRONMENT)
        .read_to_end(&mut environment)
        .ok()?;
    Some(environment)
}

/// Returns whether this process has started another one, or a process that did. An orphan counts,
/// since this process adopts it; so does a process that is gone, since its parent is not known.
pub(crate) fn descends_from_us(mut pid: Pid) -> bool {
    let own = rustix::process::getpid();
    for _ in 0..DEEPEST_DESCENT {
        match parent_of(pid) {
            Some(parent) if parent == own => return true,
            Some(parent) if parent.is_init() => return false,
            Some(parent) => pid = parent,
            // The first process of a namespace has no parent in it.
            None => return fs::metadata(format!("/proc/{pid}")).is_err(),
        }
    }
    true
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let parent = stat.rsplit(')').next()?.split_ascii_whitespace().nth(1)?;
    Pid::from_raw(parent.parse().ok()?)
}

/// Returns when a process was started, if it is dead and was not waited for.
pub(crate) fn dead_since(pid: Pid) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_ascii_whitespace();
    let is_dead = fields.next()? == "Z";
    let started = fields.nth(18)?.to_owned();
    is_dead.then_some(started)
}

/// Returns figures of this process.
pub(crate) fn process_figures() -> ProcessFigures {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let files = fs::read_dir("/proc/self/fd").map(|files| files.count() as u64);
    let seen = parse_figures(
        &read("/proc/self/stat"),
        &read("/proc/self/status"),
        &read("/proc/self/limits"),
        &read("/proc/stat"),
    );
    ProcessFigures {
        // The list has itself open while it is read.
        open_files: files.ok().map(|count| count.saturating_sub(1)),
        ..seen
    }
}

/// Returns figures of these groups of processes, by their leaders. One look at the whole machine
/// serves all of them.
pub(crate) fn group_figures(leaders: &[u32]) -> BTreeMap<u32, GroupFigures> {
    let mut groups: BTreeMap<u32, GroupFigures> = BTreeMap::new();
    if leaders.is_empty() {
        return groups;
    }
    for pid in all_processes() {
        let pid = pid.as_raw_nonzero();
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let Some(group) = group_of(&read("stat")).filter(|group| leaders.contains(group)) else {
            continue;
        };
        let figures = groups.entry(group).or_default();
        figures.processes += 1;
        let resident = parse_figures("", &read("status"), "", "").resident_bytes;
        figures.resident_bytes += resident.unwrap_or_default();
    }
    groups
}

/// Returns the group of a process that is not dead, from its `stat`.
fn group_of(stat: &str) -> Option<u32> {
    let mut fields = stat.rsplit(')').next()?.split_ascii_whitespace();
    let is_dead = fields.next()? == "Z";
    let group = fields.nth(1)?.parse().ok()?;
    (!is_dead).then_some(group)
}

fn parse_figures(stat: &str, status: &str, limits: &str, system: &str) -> ProcessFigures {
    // The name of the program stands in brackets and may hold anything; the numbers follow the last
    // of them.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    let boot = system
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let max_files = limits.lines().find_map(|line| {
        let soft = line.strip_prefix("Max open files")?.split_whitespace().next()?;
        soft.parse().ok()
    });
    ProcessFigures {
        cpu_seconds: ticks(11)
            .zip(ticks(12))
            .map(|(user, system)| (user + system) / TICKS_PER_SECOND),
        resident_bytes: number("VmRSS:").map(|kib| kib * 1024),
        virtual_bytes: number("VmSize:").map(|kib| kib * 1024),
        threads: number("Threads:"),
        open_files: None,
        max_files,
        started_at: ticks(19)
            .zip(boot)
            .map(|(ticks, boot)| boot + ticks / TICKS_PER_SECOND),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_understood() {
        let stat = "7 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 1000 9 9";
        let status = "Name:\tx\nVmSize:\t  20 kB\nVmRSS:\t 10 kB\nThreads:\t3\n";
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024      4096      files\n";
        let seen = parse_figures(stat, status, limits, "cpu 1\nbtime 1700000000\n");
        let expected = ProcessFigures {
            cpu_seconds: Some(2.0),
            resident_bytes: Some(10 << 10),
            virtual_bytes: Some(20 << 10),
            threads: Some(3),
            open_files: None,
            max_files: Some(1024),
            started_at: Some(1_700_000_010.0),
        };
        assert_eq!(seen, expected);
    }

    #[test]
    fn group_of_a_living_process_is_found() {
        assert_eq!(group_of("7 (a) b) S 1 42 3"), Some(42));
        assert_eq!(group_of("7 (a) Z 1 42 3"), None);
        assert_eq!(group_of(""), None);
        let own = rustix::process::getpgrp().as_raw_nonzero().get();
        let own = u32::try_from(own).expect("a pid");
        let seen = group_figures(&[own]);
        assert!(
            seen[&own].processes > 0 && seen[&own].resident_bytes > 0,
            "{seen:?}"
        );
    }

    #[test]
    fn this_process_is_among_those_of_its_user() {
        let seen = own_processes().expect("the kernel shows them");
        let own = seen
            .iter()
            .find(|process| process.pid == std::process::id())
            .expect("this process");
        assert!(
            own.resident_bytes > 0 && !own.words.is_empty() && !own.is_dead,
            "{own:?}"
        );
        let pid = Pid::from_raw(7).expect("a pid");
        let stat = "7 (a) b (c)) Z 1 42 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 1000 9 9";
        let dead = of_stat(pid, stat).expect("read");
        assert_eq!((dead.parent, dead.group, dead.started), (1, 42, 1000));
        assert!(dead.is_dead);
    }

    #[test]
    fn missing_values_are_left_out() {
        assert_eq!(parse_figures("", "", "", ""), ProcessFigures::default());
    }

    #[test]
    fn kernel_has_the_figures_of_this_process() {
        let seen = process_figures();
        assert!(seen.resident_bytes.is_some_and(|bytes| bytes > 0));
        assert!(seen.cpu_seconds.is_some() && seen.started_at.is_some());
    }
}
