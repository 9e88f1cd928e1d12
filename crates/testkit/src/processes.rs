//! Processes as `/proc` shows them. Where there is no `/proc`, none is found.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::process::{Pid, Resource, Signal};

use crate::failure::{Failure, Result};

/// One process at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub group: u32,
    pub session: u32,
    /// `R`, `S`, `D`, `T`, `Z`, …
    pub state: char,
    pub name: String,
    /// In clock ticks since boot; with the pid it identifies the process.
    pub started: u64,
}

impl Process {
    /// `None` when there is no such process (any more).
    pub fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(pid, &stat)
    }

    // The name is in brackets and may itself contain brackets and blanks, so the last one counts.
    fn parse(pid: u32, stat: &str) -> Option<Self> {
        let (head, tail) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = tail.split_whitespace().collect();
        let number = |index: usize| fields.get(index).and_then(|field| field.parse().ok());
        Some(Self {
            pid,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            state: fields.first()?.chars().next()?,
            name,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Whether this very process still runs; a zombie does not.
    pub fn is_alive(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.started == self.started && !now.is_zombie())
    }

    /// Sends a signal, unless the pid belongs to another process by now.
    pub fn signal(&self, signal: Signal) {
        if self.is_alive() {
            send_signal(self.pid, signal);
        }
    }
}

/// Every process there is.
pub fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
        .filter_map(Process::read)
        .collect()
}

/// What descends from `root` or belongs to one of `groups` or to the session of `root`; without
/// `root` itself.
///
/// The session finds orphans: they keep it when their parent dies.
pub(crate) fn family(root: u32, groups: &BTreeSet<u32>) -> Vec<Process> {
    let everything = all();
    let mut members: BTreeSet<u32> = BTreeSet::from([root]);
    loop {
        let before = members.len();
        for process in &everything {
            let related = members.contains(&process.parent)
                || groups.contains(&process.group)
                || process.session == root;
            if related {
                members.insert(process.pid);
            }
        }
        if members.len() == before {
            break;
        }
    }
    members.remove(&root);
    everything
        .into_iter()
        .filter(|process| members.contains(&process.pid))
        .collect()
}

/// Memory of one process, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// `VmRSS`.
    pub resident: u64,
    /// `VmHWM`, the most it ever was.
    pub peak: u64,
    /// `Pss`: shared pages are counted in proportion.
    pub proportional: u64,
    /// `VmData`: memory that it may write to and does not share, used or not.
    pub data: u64,
}

impl Memory {
    pub fn of(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let resident = kibibytes(&status, "VmRSS:")?;
        Some(Self {
            resident,
            peak: kibibytes(&status, "VmHWM:").unwrap_or(resident),
            proportional: kibibytes(&rollup, "Pss:").unwrap_or(resident),
            data: kibibytes(&status, "VmData:")?,
        })
    }
}

fn kibibytes(text: &str, label: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(label))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Processor time used so far, in clock ticks of 10 ms.
pub fn processor_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map_or(Vec::new(), |(_, tail)| tail.split_whitespace().collect());
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    number(11).unwrap_or(0) + number(12).unwrap_or(0)
}

/// Sets a limit of a process that we started and that runs; `None` is what it was in the beginning.
#[cfg(target_os = "linux")]
pub fn limit(pid: u32, resource: Resource, current: Option<u64>) -> Result<()> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // It has inherited ours.
    let ours = rustix::process::getrlimit(resource);
    let wanted = rustix::process::Rlimit {
        current: current.or(ours.current),
        maximum: ours.maximum,
    };
    rustix::process::prlimit(process, resource, wanted)
        .map_err(|error| Failure::from(std::io::Error::from(error)).during("limiting a process"))?;
    Ok(())
}

/// Only Linux can limit another process.
#[cfg(not(target_os = "linux"))]
pub fn limit(_pid: u32, _resource: Resource, _current: Option<u64>) -> Result<()> {
    Err(Failure::new("this system limits no other process"))
}

/// How many files a process has open.
pub fn open_files(pid: u32) -> usize {
    fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd")).map_or(0, Iterator::count)
}

/// The numbers of the open files that a child of this process would inherit (no close-on-exec).
///
/// The test runner may have left some open besides 0, 1 and 2; a test of what a child inherits has
/// to know them.
pub fn inheritable_files(pid: u32) -> BTreeSet<u32> {
    const O_CLOEXEC: u32 = 0o2_000_000;
    let flags = |number: u32| {
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
        let line = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        u32::from_str_radix(line.trim(), 8).ok()
    };
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return BTreeSet::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
        .filter(|number| flags(*number).is_some_and(|flags| flags & O_CLOEXEC == 0))
        .collect()
}

/// How many threads a process has.
pub fn threads(pid: u32) -> usize {
    fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")).map_or(0, Iterator::count)
}

/// Sends a signal to a process that the caller knows to be its own; one that has gone is no error.
pub fn send_signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_is_read_whole() {
        let stat = "7 (a) b (c)) S 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0";
        let process = Process::parse(7, stat).unwrap();
        assert_eq!((process.name.as_str(), process.state), ("a) b (c)", 'S'));
        assert_eq!(
            (process.parent, process.group, process.session, process.started),
            (1, 2, 3, 4711)
        );
    }

    #[test]
    fn this_very_process_is_alive_and_has_memory() {
        let me = Process::read(std::process::id()).unwrap();
        assert!(me.is_alive() && !me.is_zombie());
        assert!(Memory::of(me.pid).unwrap().resident > 0);
        assert!(open_files(me.pid) >= 3 && threads(me.pid) >= 1);
        assert!(all().iter().any(|process| process.pid == me.pid));
    }

    #[test]
    fn a_child_belongs_to_the_family_until_it_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = |pid| {
            family(std::process::id(), &BTreeSet::new())
                .iter()
                .any(|process| process.pid == pid)
        };
        assert!(found(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!found(child.id()));
    }
}
