//! The directory that outlives the process (`state_dir`): made for Rialto's user alone.
//!
//! Its content decides which session belongs to which caller, so another user of the machine must
//! not be able to put a file there.

use std::io::{Error, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};

/// By the group and by others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A directory that exists, that this process can change, and that other users cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir {
    path: PathBuf,
}

/// Why a directory cannot hold the state.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    #[error("state_dir `{}` is not a directory; name a directory, or a path that does not exist yet", .0.display())]
    NotADirectory(PathBuf),
    #[error(
        "other users can write to state_dir `{path}`: run `chmod go-w {path}`, or name a directory \
         inside it that does not exist yet",
        path = .0.display()
    )]
    WritableByOthers(PathBuf),
    #[error(
        "state_dir `{}` cannot be written: give it to the user that runs Rialto (`chown`), or \
         name another directory with --state-dir",
        path.display()
    )]
    NotWritable { path: PathBuf, source: Error },
    #[error("state_dir `{}` cannot be made; name another directory with --state-dir", path.display())]
    NotMade { path: PathBuf, source: Error },
}

impl StateDir {
    /// Opens the directory. Makes it, with mode 0700, if it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Self, StateDirError> {
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path);
        match made {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(source) => {
                let path = path.to_owned();
                return Err(StateDirError::NotMade { path, source });
            }
        }
        verify(path)?;
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// Checks what [`StateDir::open`] would find, and makes nothing.
    pub fn check(path: &Path) -> Result<(), StateDirError> {
        match std::fs::metadata(path) {
            Ok(_) => verify(path),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let exists = |above: &&Path| above.as_os_str().is_empty() || above.exists();
                let above = path.ancestors().skip(1).find(exists);
                let above = match above {
                    Some(above) if !above.as_os_str().is_empty() => above,
                    Some(_) | None => Path::new("."),
                };
                writable(above).map_err(|source| StateDirError::NotMade {
                    path: path.to_owned(),
                    source,
                })
            }
            Err(source) => Err(StateDirError::NotMade {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn verify(path: &Path) -> Result<(), StateDirError> {
    let unreachable = |source| StateDirError::NotWritable {
        path: path.to_owned(),
        source,
    };
    let metadata = std::fs::metadata(path).map_err(unreachable)?;
    if !metadata.is_dir() {
        return Err(StateDirError::NotADirectory(path.to_owned()));
    }
    if metadata.permissions().mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(StateDirError::WritableByOthers(path.to_owned()));
    }
    writable(path).map_err(unreachable)
}

/// Asks the kernel, which knows about owners, capabilities and file systems mounted read-only.
fn writable(directory: &Path) -> Result<(), Error> {
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    Ok(rustix::fs::accessat(CWD, directory, wanted, AtFlags::EACCESS)?)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn absent_directory_is_made_for_its_user_alone() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("var/rialto");
        StateDir::check(&path).unwrap();
        assert!(!path.exists(), "a check makes nothing");
        let opened = StateDir::open(&path).unwrap();
        assert_eq!((opened.path(), mode(&path)), (path.as_path(), 0o700));
        StateDir::check(&path).unwrap();
        StateDir::open(&path).unwrap();
    }

    #[test]
    fn directory_that_others_can_only_read_is_fine() {
        let base = tempfile::tempdir().unwrap();
        std::fs::set_permissions(base.path(), Permissions::from_mode(0o755)).unwrap();
        StateDir::open(base.path()).unwrap();
        assert_eq!(mode(base.path()), 0o755, "the operator's mode stays");
    }

    #[test]
    fn directory_that_others_can_write_is_refused_with_the_fix() {
        let base = tempfile::tempdir().unwrap();
        for open in [0o777, 0o770, 0o702] {
            std::fs::set_permissions(base.path(), Permissions::from_mode(open)).unwrap();
            for error in [
                StateDir::open(base.path()).unwrap_err(),
                StateDir::check(base.path()).unwrap_err(),
            ] {
                let fix = format!("chmod go-w {}", base.path().display());
                assert!(error.to_string().contains(&fix), "{error}");
            }
        }
    }

    #[test]
    fn file_in_the_place_of_the_directory_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = StateDir::open(&file).unwrap_err();
        assert!(matches!(error, StateDirError::NotADirectory(_)), "{error}");
        let error = StateDir::check(&file).unwrap_err();
        assert!(matches!(error, StateDirError::NotADirectory(_)), "{error}");
        for below in [
            StateDir::open(&file.join("x")).err(),
            StateDir::check(&file.join("x")).err(),
        ] {
            let error = below.unwrap();
            assert!(matches!(error, StateDirError::NotMade { .. }), "{error}");
        }
    }
}
