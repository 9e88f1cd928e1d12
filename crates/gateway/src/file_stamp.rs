//! What a file is like, to notice that it has changed.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Enough of a file to notice that it was replaced or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    size: u64,
}

impl FileStamp {
    /// `None` if there is no such file, or it cannot be looked at.
    pub fn of(file: &Path) -> Option<Self> {
        let found = std::fs::metadata(file).ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
            modified: (found.mtime(), found.mtime_nsec()),
            size: found.size(),
        })
    }
}
