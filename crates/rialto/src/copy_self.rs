//! `rialto --copy-self PATH`: this program, copied to a place from which another container runs it.
//!
//! An image without a shell has no `cp`. An init container copies Rialto into a volume this way, and
//! the image of the server, with its Node or Python, runs it from there.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use gateway::platform;

use crate::flags::CopySelfFlags;
use crate::{exit, fail};

/// Every user may run the copy: the other container may have another one.
const MODE: u32 = 0o755;

pub(crate) fn run(flags: &CopySelfFlags) -> ExitCode {
    let started_as = std::env::args_os().next();
    let copied = platform::own_program(started_as.as_deref())
        .context("the path of this program is not known: start it by its full path")
        .and_then(|program| copy(&program, &target(&flags.path)));
    match copied {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(exit::FAILED, &format!("{error:#}")),
    }
}

/// Returns the file to write: `rialto` in it, if the path is a directory.
fn target(path: &Path) -> PathBuf {
    match path.is_dir() {
        true => path.join("rialto"),
        false => path.to_owned(),
    }
}

/// Copies a program. A reader of the target finds the old file or the whole new one.
fn copy(program: &Path, target: &Path) -> anyhow::Result<()> {
    let mut name = target.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let draft = PathBuf::from(name);
    let copied = write(program, &draft).and_then(|()| fs::rename(&draft, target));
    if copied.is_err() {
        // If the draft cannot be removed either, the first error is the one to report.
        let _ = fs::remove_file(&draft);
    }
    copied.with_context(|| format!("cannot copy this program to {}", target.display()))
}

fn write(program: &Path, draft: &Path) -> io::Result<()> {
    let mut source = File::open(program)?;
    let mut copy = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(draft)?;
    io::copy(&mut source, &mut copy)?;
    // The mode of a new file is narrowed by the umask.
    copy.set_permissions(Permissions::from_mode(MODE))?;
    copy.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_is_whole_and_executable_and_leaves_no_draft() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, "the program").unwrap();
        let into = folder.path().join("volume");
        fs::create_dir(&into).unwrap();
        fs::write(into.join("rialto"), "an older one, and longer").unwrap();
        copy(&program, &target(&into)).unwrap();
        let copied = into.join("rialto");
        assert_eq!(fs::read(&copied).unwrap(), b"the program");
        assert_eq!(fs::metadata(&copied).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(fs::read_dir(&into).unwrap().count(), 1);
    }

    #[test]
    fn place_that_does_not_exist_is_named() {
        let program = std::env::current_exe().unwrap();
        let error = copy(&program, Path::new("/no/such/folder/rialto")).unwrap_err();
        assert!(error.to_string().contains("/no/such/folder/rialto"), "{error}");
    }
}
