//! The directory that outlives the process (`state_dir`): made for Rialto's user alone.
//!
//! Its content decides which session belongs to which caller, so another user of the machine must
//! not be able to put a file there.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use aws_lc_rs::rand;
use rustix::fs::{Access, AtFlags, CWD, OFlags};

/// By the group and by others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// To the group and to others, in any way.
const OPEN_TO_OTHERS: u32 = 0o077;
const KEY_FILE: &str = "key";
const KEY_BYTES: usize = 32;

/// A sealing key, never shown.
pub(crate) type Key = [u8; KEY_BYTES];

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
    #[error(
        "other users can read the sealing key `{path}`: run `chmod 600 {path}`, or delete it if one \
         of them may have read it, and Rialto makes another at its next start",
        path = .0.display()
    )]
    KeyReadable(PathBuf),
    #[error(
        "the sealing key `{}` must be a file of {KEY_BYTES} bytes; delete it, and Rialto makes \
         another at its next start",
        .0.display()
    )]
    KeyMalformed(PathBuf),
    #[error("the sealing key `{}` cannot be read or made", path.display())]
    Key { path: PathBuf, source: Error },
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
            Ok(_) => {
                verify(path)?;
                read_key(&path.join(KEY_FILE)).map(drop)
            }
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

    /// Returns the key that seals what clients carry over a restart. Makes it at the first start.
    pub(crate) fn key(&self) -> Result<Key, StateDirError> {
        let path = self.path.join(KEY_FILE);
        match read_key(&path)? {
            Some(key) => Ok(key),
            None => make_key(&self.path, &path).map_err(|source| StateDirError::Key { path, source }),
        }
    }
}

/// Returns the key of a file, if there is one.
fn read_key(path: &Path) -> Result<Option<Key>, StateDirError> {
    let failed = |source| StateDirError::Key {
        path: path.to_owned(),
        source,
    };
    // Neither a link nor a pipe in its place is followed or waited for.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(source)),
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(StateDirError::KeyMalformed(path.to_owned()));
    }
    if metadata.permissions().mode() & OPEN_TO_OTHERS != 0 {
        return Err(StateDirError::KeyReadable(path.to_owned()));
    }
    let mut bytes = Vec::with_capacity(KEY_BYTES + 1);
    file.take(KEY_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    let key = bytes.try_into();
    key.map(Some)
        .map_err(|_| StateDirError::KeyMalformed(path.to_owned()))
}

/// Writes a new key. A reader finds it whole or not at all, also after a loss of power.
fn make_key(directory: &Path, path: &Path) -> Result<Key, Error> {
    let mut key = Key::default();
    rand::fill(&mut key).map_err(|_| Error::other("the system has no randomness to give"))?;
    let draft = directory.join(format!("{KEY_FILE}.{}", uuid::Uuid::new_v4().simple()));
    let written = write_private(&draft, &key).and_then(|()| std::fs::rename(&draft, path));
    if let Err(error) = written {
        // If the draft cannot be removed either, the first error is the one to report.
        let _ = std::fs::remove_file(&draft);
        return Err(error);
    }
    File::open(directory)?.sync_all()?;
    Ok(key)
}

/// Writes a new file for Rialto's user alone.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
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
    fn key_is_made_once_for_its_user_alone() {
        let base = tempfile::tempdir().unwrap();
        let made = StateDir::open(base.path()).unwrap().key().unwrap();
        assert_ne!(made, Key::default());
        let file = base.path().join(KEY_FILE);
        assert_eq!(mode(&file), 0o600);
        assert_eq!(StateDir::open(base.path()).unwrap().key().unwrap(), made);
        StateDir::check(base.path()).unwrap();
        let left: Vec<_> = std::fs::read_dir(base.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "no draft is left: {left:?}");
    }

    #[test]
    fn key_that_others_can_read_or_of_another_size_is_refused_with_the_fix() {
        let base = tempfile::tempdir().unwrap();
        let opened = StateDir::open(base.path()).unwrap();
        opened.key().unwrap();
        let file = base.path().join(KEY_FILE);
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        let fix = format!("chmod 600 {}", file.display());
        for error in [
            opened.key().unwrap_err(),
            StateDir::check(base.path()).unwrap_err(),
        ] {
            assert!(error.to_string().contains(&fix), "{error}");
        }
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        for bytes in [0, KEY_BYTES - 1, KEY_BYTES + 1, 1 << 20] {
            std::fs::write(&file, vec![7; bytes]).unwrap();
            let error = opened.key().unwrap_err();
            assert!(matches!(error, StateDirError::KeyMalformed(_)), "{error}");
        }
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &file).unwrap();
        let error = opened.key().unwrap_err();
        assert!(matches!(error, StateDirError::Key { .. }), "{error}");
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
