//! macOS: what it has by public interfaces that need no `unsafe`.
//!
//! It has no subreaper, no descriptors of processes, and no public way to read the environment of
//! another one. So a process that leaves the group of its server (`setsid`) is not found here, and
//! may outlive it. Groups and the warden work as on Linux.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Signal};

use super::{GroupFigures, ProcessFigures, ProcessSeen};

/// Variables that children inherit on this system, beside those that they inherit everywhere. This
/// one is set by the system for every process, and frameworks look for it.
pub(crate) const INHERITED: &[&str] = &["__CF_USER_TEXT_ENCODING"];

/// Returns the program that this process runs. After an upgrade the path leads to the new program.
pub(super) fn own_program() -> Option<PathBuf> {
    std::env::current_exe().ok()
}

/// Returns the name of this machine.
pub fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    Some(name)
}

/// Returns where a user keeps state between runs, below the home directory.
pub fn state_home(home: &Path) -> PathBuf {
    home.join("Library/Application Support")
}

/// Returns where a user keeps configuration, below the home directory.
pub fn config_home(home: &Path) -> PathBuf {
    home.join("Library/Application Support")
}

/// Returns a name by which a pipe among the standard streams can be opened once more. There is
/// none: `/dev/fd` gives the same opening again, with the flags that other processes share.
pub fn reopenable(_standard_stream: u8) -> Option<PathBuf> {
    None
}

/// Returns the address of a socket in the abstract name space, which only Linux has.
pub fn abstract_address(_name: &str) -> io::Result<SocketAddr> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// Returns whether a socket listens. The system does not show it, and no service manager here
/// passes anything else.
pub fn listens(_socket: impl AsFd) -> io::Result<bool> {
    Ok(true)
}

/// Closes this process to its children. The system already refuses to trace or read a process
/// without a special right.
pub fn close_to_children() -> io::Result<()> {
    Ok(())
}

/// Makes orphans among the descendants of this process its children. Returns whether the system
/// can.
pub(crate) fn adopt_orphans() -> io::Result<bool> {
    Ok(false)
}

/// Returns whether this error of a signal to a group means that the group is gone. A group of which
/// only the dead are left may not be signalled.
pub(crate) fn is_gone(error: Errno) -> bool {
    error == Errno::SRCH || error == Errno::PERM
}

/// Enlarges the buffer of a pipe. The system does so by itself, up to 64 KiB.
pub(crate) fn enlarge_pipe(_pipe: &impl AsFd) {}

/// A process that cannot be mistaken for a successor: there is no such handle here.
#[derive(Debug)]
pub(crate) struct HeldProcess(Infallible);

impl HeldProcess {
    pub(crate) fn hold(_pid: Pid) -> Option<Self> {
        None
    }

    pub(crate) fn signal(&self, _signal: Signal) {
        match self.0 {}
    }
}

/// Returns the processes whose environment can be read: none.
pub(crate) fn all_processes() -> Vec<Pid> {
    Vec::new()
}

/// Returns nothing: the processes of a user are shown by private interfaces only.
pub fn own_processes() -> Option<Vec<ProcessSeen>> {
    None
}

/// Returns the children of this process that nothing else waits for: orphans do not come here.
pub(crate) fn children() -> Vec<Pid> {
    Vec::new()
}

/// Returns the environment of another process, which the system does not show.
pub(crate) fn environment_of(_pid: Pid) -> Option<Vec<u8>> {
    None
}

/// Returns whether this process has started another one, which the system does not show.
pub(crate) fn descends_from_us(_pid: Pid) -> bool {
    false
}

/// Returns when a dead child was started, which the system does not show.
pub(crate) fn dead_since(_pid: Pid) -> Option<String> {
    None
}

/// Returns figures of groups of processes: the interfaces for them are `unsafe`.
pub(crate) fn group_figures(_leaders: &[u32]) -> BTreeMap<u32, GroupFigures> {
    BTreeMap::new()
}

/// Returns figures of this process: its files. The others need interfaces that are `unsafe`.
pub(crate) fn process_figures() -> ProcessFigures {
    let files = fs::read_dir("/dev/fd").map(|files| files.count() as u64);
    ProcessFigures {
        // The list has itself open while it is read.
        open_files: files.ok().map(|count| count.saturating_sub(1)),
        max_files: rustix::process::getrlimit(Resource::Nofile).current,
        ..ProcessFigures::default()
    }
}
