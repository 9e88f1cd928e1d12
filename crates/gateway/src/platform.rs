//! What differs between operating systems, behind the same functions.
//!
//! `linux.rs` and `macos.rs` have the same names with the same meaning. No other file of the
//! product calls what one system alone has. What every Unix has stays where it is used.
//!
//! Where a system cannot do something, the result of the function shows it. The
//! design for Windows is in `docs/windows.md`.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(target_os = "macos")]
use macos as system;
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
compile_error!("Rialto is built for Linux and macOS; see docs/windows.md for what another system needs");

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

pub(crate) use system::{
    HeldProcess, INHERITED, adopt_orphans, all_processes, children, dead_since, descends_from_us,
    enlarge_pipe, environment_of, group_figures, is_gone, process_figures,
};
pub use system::{
    abstract_address, close_to_children, config_home, host_name, listens, own_processes, reopenable,
    state_home,
};

/// One look at this process. What the system does not show is `None`.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ProcessFigures {
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) virtual_bytes: Option<u64>,
    pub(crate) threads: Option<u64>,
    pub(crate) open_files: Option<u64>,
    pub(crate) max_files: Option<u64>,
    pub(crate) started_at: Option<f64>,
}

/// One look at the processes of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct GroupFigures {
    pub(crate) processes: usize,
    pub(crate) resident_bytes: u64,
}

/// A process of this user, as the system shows it to others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessSeen {
    pub pid: u32,
    pub parent: u32,
    pub group: u32,
    /// It has ended, and its parent has not waited for it.
    pub is_dead: bool,
    /// Differs between two processes that have one number after the other.
    pub started: u64,
    /// Program and arguments, as the process shows them now.
    pub words: Vec<String>,
    pub resident_bytes: u64,
}

/// Returns the program that this process runs, to start or copy it again. It stays the same program
/// where the system can show it under a name that an upgrade does not replace.
///
/// `started_as` is the first word of the command line. It is used where the system shows nothing,
/// as in a root directory without `/proc`.
pub fn own_program(started_as: Option<&OsStr>) -> Option<PathBuf> {
    system::own_program().or_else(|| named_program(started_as?))
}

/// Returns the file that a command line names by its path. A bare name is none: it was searched in
/// a `PATH` that may be another by now.
fn named_program(started_as: &OsStr) -> Option<PathBuf> {
    let path = Path::new(started_as);
    let has_directory = path.parent().is_some_and(|above| !above.as_os_str().is_empty());
    let absolute = std::path::absolute(path).ok()?;
    (has_directory && absolute.is_file()).then_some(absolute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_found() {
        let found = own_program(None).expect("the system shows it");
        let known = std::env::current_exe().expect("known");
        let same = |path: &Path| crate::FileStamp::of(path).expect("a file");
        assert_eq!(same(&found), same(&known));
    }

    #[test]
    fn command_line_names_a_program_only_by_its_path() {
        let known = std::env::current_exe().expect("known");
        assert_eq!(named_program(known.as_os_str()), Some(known.clone()));
        assert_eq!(named_program(OsStr::new("sh")), None);
        assert_eq!(named_program(OsStr::new("/no/such/program")), None);
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let seen = process_figures();
        assert!(seen.open_files.is_some_and(|files| files > 0));
        assert!(seen.max_files.is_some_and(|files| files > 0));
    }

    #[test]
    fn host_has_a_name() {
        assert!(host_name().is_some_and(|name| !name.trim().is_empty()));
    }
}
