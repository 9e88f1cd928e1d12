//! A directory that only its owner can look into, and files that are replaced as a whole.
//!
//! Everything goes through the opened directory, so nothing can be exchanged for a link in between;
//! no link is followed at the last step.

use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

#[derive(Debug)]
pub(super) struct Directory(File);

const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);
/// To others, in any way.
const VISIBLE: Mode = Mode::RWXG.union(Mode::RWXO);
/// By others.
const WRITABLE: Mode = Mode::WGRP.union(Mode::WOTH);

impl Directory {
    /// Returns the directory, made if need be.
    pub(super) fn make(path: &Path) -> Result<Self> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)?;
        Self::open(path)?.ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Returns the directory, if there is one. Others must not be able to write into it.
    pub(super) fn open(path: &Path) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(opened) => File::from(opened),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                return Err(Error::other(
                    "it is a link or a file; it must be a directory of your own",
                ));
            }
            Err(error) => return Err(error.into()),
        };
        judge(&opened, WRITABLE, FileType::Directory)?;
        Ok(Some(Self(opened)))
    }

    /// Returns a whole file, if there is one. A file above the limit is an error: the part that
    /// fits means something else.
    pub(super) fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(&self.0, name, flags, Mode::empty()) {
            Ok(opened) => File::from(opened),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(rustix::io::Errno::LOOP) => {
                return Err(Error::other(format!("{name} is a link, which is not followed")));
            }
            Err(error) => return Err(error.into()),
        };
        judge(&file, VISIBLE, FileType::RegularFile)
            .map_err(|error| Error::other(format!("{name}: {error}")))?;
        let mut text = Vec::new();
        file.take(limit.saturating_add(1)).read_to_end(&mut text)?;
        if text.len() as u64 > limit {
            return Err(Error::new(
                ErrorKind::InvalidData,
                format!("{name} has more than {limit} bytes; delete it and sign in again"),
            ));
        }
        Ok(Some(text))
    }

    /// Puts a file in the place of another: a reader sees the old one or the new one, also if the
    /// power fails.
    pub(super) fn replace(&self, name: &str, text: &[u8]) -> Result<()> {
        let draft = format!("{name}.{}", uuid::Uuid::new_v4().simple());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.0, draft.as_str(), flags, PRIVATE)?);
        let written = file.write_all(text).and_then(|()| file.sync_all());
        let moved = written.and_then(|()| Ok(rustix::fs::renameat(&self.0, draft.as_str(), &self.0, name)?));
        if moved.is_err() {
            // What is left of the draft is of no use; if it cannot be removed either, the first
            // error tells more.
            let _ = rustix::fs::unlinkat(&self.0, draft.as_str(), AtFlags::empty());
        }
        moved?;
        self.0.sync_all()
    }

    pub(super) fn remove(&self, name: &str) -> Result<bool> {
        match rustix::fs::unlinkat(&self.0, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a file to lock, made if need be. It stays: if it were removed, two processes could
    /// each lock one of the same name.
    pub(super) fn lockable(&self, name: &str) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.0, name, flags, PRIVATE)?);
        judge(&file, VISIBLE, FileType::RegularFile)?;
        Ok(file)
    }

    pub(super) fn names(&self, ending: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for item in rustix::fs::Dir::read_from(&self.0)? {
            let item = item?;
            if let Ok(name) = item.file_name().to_str()
                && name.ends_with(ending)
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }
}

/// Is it what it should be, ours, and closed to others?
fn judge(file: &File, forbidden: Mode, kind: FileType) -> Result<()> {
    let stat = rustix::fs::fstat(file)?;
    if FileType::from_raw_mode(stat.st_mode) != kind {
        return Err(Error::other("it is not what it should be"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Error::other("it belongs to another user"));
    }
    if Mode::from_raw_mode(stat.st_mode).intersects(forbidden) {
        return Err(Error::other(match kind {
            FileType::Directory => "others can write there (chmod 700 it)",
            _ => "others can read it (remove it or chmod 600 it)",
        }));
    }
    Ok(())
}
