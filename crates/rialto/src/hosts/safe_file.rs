//! Files of users, written so that none is ever half-written.
//!
//! A file is replaced by rename, after its draft is on disk. Mode and owner stay. What rename would
//! harm, such as a link, is refused with a reason.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::Access;

/// Why a file must not be written. Each is a clause whose subject is the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("is a link to {}, and would become a file of its own: edit that file, or replace the link", .0.display())]
    Link(PathBuf),
    #[error("has {0} names (hard links), which would become different files: keep one of them")]
    Names(u64),
    #[error("is no file")]
    NoFile,
    #[error("belongs to another user (number {0}): run this as that user")]
    OtherUser(u32),
    #[error("is read-only: allow it with chmod u+w")]
    ReadOnly,
    #[error("is in a directory that cannot be written to")]
    Directory,
    #[error("was changed meanwhile: run the command again")]
    Changed,
    #[error("is being written by another `rialto`: run the command again")]
    Busy,
    #[error("cannot be written: {0}")]
    Io(#[from] io::Error),
}

/// Returns what is known of a file that may be replaced; `None` if it does not exist.
pub(crate) fn inspect(path: &Path) -> Result<Option<Metadata>, Refusal> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if metadata.is_symlink() {
        return Err(Refusal::Link(fs::read_link(path)?));
    }
    if !metadata.is_file() {
        return Err(Refusal::NoFile);
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(Refusal::OtherUser(metadata.uid()));
    }
    if metadata.mode() & 0o200 == 0 {
        return Err(Refusal::ReadOnly);
    }
    if metadata.nlink() > 1 {
        return Err(Refusal::Names(metadata.nlink()));
    }
    let directory = parent(path);
    rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).map_err(|_| Refusal::Directory)?;
    Ok(Some(metadata))
}

/// Creates a file that does not exist, and the directories above it for this user alone.
pub(crate) fn create(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Refusal> {
    directory(parent(path))?;
    let draft = Draft::write(path, bytes, mode, None)?;
    // Unlike a rename, a link fails if the file is there by now.
    match fs::hard_link(&draft.path, path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(Refusal::Changed),
        Err(error) => return Err(error.into()),
    }
    drop(draft);
    Ok(sync_directory(parent(path))?)
}

/// Replaces a file that still has this content.
pub(crate) fn replace(path: &Path, expected: &[u8], bytes: &[u8]) -> Result<(), Refusal> {
    let metadata = inspect(path)?.ok_or(Refusal::Changed)?;
    let draft = Draft::write(path, bytes, metadata.mode() & 0o7777, Some(&metadata))?;
    // Between this look and the rename no other program is kept out: no system has a lock that
    // hosts obey.
    if fs::read(path)? != expected {
        return Err(Refusal::Changed);
    }
    fs::rename(&draft.path, path)?;
    Ok(sync_directory(parent(path))?)
}

/// Removes a file that still has this content.
pub(crate) fn remove(path: &Path, expected: &[u8]) -> Result<(), Refusal> {
    inspect(path)?.ok_or(Refusal::Changed)?;
    if fs::read(path)? != expected {
        return Err(Refusal::Changed);
    }
    fs::remove_file(path)?;
    Ok(sync_directory(parent(path))?)
}

/// Removes the draft that a killed run left beside a file, if there is one.
pub(crate) fn remove_draft(path: &Path) {
    // What cannot be removed is in no one's way: the next draft replaces it or reports the error.
    let _ = remove_left_draft(&draft_path(path));
}

/// Makes a directory, and those above it, for this user alone.
pub(crate) fn directory(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    sync_directory(parent(path))
}

/// Returns once a directory's entries are on disk.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

fn draft_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".rialto-draft");
    parent(path).join(name)
}

/// The new content of a file, beside it. It is removed unless it was renamed.
///
/// Its lock tells a draft that is being written from one that a killed run left. A file system
/// without locks has one writer at a time by the user's care alone.
struct Draft {
    path: PathBuf,
    file: File,
}

impl Draft {
    fn write(path: &Path, bytes: &[u8], mode: u32, like: Option<&Metadata>) -> Result<Self, Refusal> {
        let path = draft_path(path);
        remove_left_draft(&path)?;
        let created = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let file = match created {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(Refusal::Busy),
            created => created?,
        };
        let is_locked = !is_locked_by_another(&file);
        let mut draft = Self { path, file };
        // Before it was locked, another run may have taken it for one that was left.
        if !is_locked || !is_at(&draft.file, &draft.path) {
            return Err(Refusal::Busy);
        }
        if let Some(metadata) = like {
            let made = draft.file.metadata()?;
            if (made.uid(), made.gid()) != (metadata.uid(), metadata.gid()) {
                std::os::unix::fs::fchown(&draft.file, Some(metadata.uid()), Some(metadata.gid()))?;
            }
        }
        draft.file.write_all(bytes)?;
        draft.file.set_permissions(Permissions::from_mode(mode))?;
        draft.file.sync_all()?;
        Ok(draft)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After a rename, the draft of another run may be there.
        if is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes a draft that no living run writes.
fn remove_left_draft(path: &Path) -> Result<(), Refusal> {
    let left = match File::open(path) {
        Ok(left) => left,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if is_locked_by_another(&left) {
        return Err(Refusal::Busy);
    }
    if is_at(&left, path) {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Locks a file, unless another process or another part of this one has done so.
fn is_locked_by_another(file: &File) -> bool {
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Returns whether a path leads to this open file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(there)) => identity(open) == identity(there),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_leaves_no_draft() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mcp.json");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        fs::write(draft_path(&path), "left by a killed run").unwrap();
        replace(&path, b"old", b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_another_run_writes_is_refused_and_the_draft_of_that_run_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mcp.json");
        fs::write(&path, "old").unwrap();
        let other = Draft::write(&path, b"of the other run", 0o600, None).unwrap();
        assert!(matches!(replace(&path, b"old", b"new"), Err(Refusal::Busy)));
        remove_draft(&path);
        assert_eq!(fs::read(&other.path).unwrap(), b"of the other run");
        fs::rename(&other.path, &path).unwrap();
        let next = Draft::write(&path, b"of a third run", 0o600, None).unwrap();
        drop(other);
        assert!(next.path.exists(), "a run removes its own draft only");
    }

    #[test]
    fn a_file_that_changed_meanwhile_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mcp.json");
        fs::write(&path, "edited").unwrap();
        assert!(matches!(replace(&path, b"old", b"new"), Err(Refusal::Changed)));
        assert!(matches!(remove(&path, b"old"), Err(Refusal::Changed)));
        assert!(matches!(create(&path, b"new", 0o600), Err(Refusal::Changed)));
        assert_eq!(fs::read(&path).unwrap(), b"edited");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_new_file_and_its_directories_are_for_this_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/destinations.yml");
        create(&path, b"x", 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(
            fs::metadata(folder.path().join("a")).unwrap().mode() & 0o777,
            0o700
        );
        remove(&path, b"x").unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn files_that_a_rename_would_harm_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "x").unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        let error = inspect(&path("link")).unwrap_err().to_string();
        assert!(error.contains("a link to file"), "{error}");
        fs::write(path("read-only"), "x").unwrap();
        fs::set_permissions(path("read-only"), Permissions::from_mode(0o444)).unwrap();
        assert!(matches!(inspect(&path("read-only")), Err(Refusal::ReadOnly)));
        fs::write(path("one"), "x").unwrap();
        fs::hard_link(path("one"), path("two")).unwrap();
        assert!(matches!(inspect(&path("two")), Err(Refusal::Names(2))));
        assert!(matches!(inspect(folder.path()), Err(Refusal::NoFile)));
        assert!(inspect(&path("nothing")).unwrap().is_none());
    }
}
