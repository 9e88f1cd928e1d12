//! What an adoption wrote, kept so that it can be taken back byte for byte.
//!
//! A record is complete on disk before the first file of a host is touched: copies of every file
//! before and after, and the changes. A record appears by rename, so that a killed run leaves a
//! whole one or none.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::tree;
use crate::hosts::edit::{Change, Step};
use crate::hosts::plain::Plain;
use crate::hosts::safe_file;
use crate::hosts::table::Format;

const RECORD: &str = "record.json";
const LOCK: &str = "lock";
const KEPT: &str = "kept";
const DRAFT: &str = "draft";
const VERSION: u32 = 1;

/// The directory of all records.
#[derive(Debug)]
pub(super) struct Journal {
    directory: PathBuf,
    /// Held while the journal is open.
    _lock: File,
}

/// One file of a record, with its content before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) path: PathBuf,
    pub(super) before: Option<Vec<u8>>,
    pub(super) after: Vec<u8>,
    /// The language and the changes, where a change can be taken back alone.
    pub(super) edit: Option<(Format, Vec<Change>)>,
}

/// One adoption.
#[derive(Debug)]
pub(super) struct Record {
    directory: PathBuf,
    pub(super) files: Vec<Written>,
}

/// Why there is no journal.
#[derive(Debug, thiserror::Error)]
pub(super) enum JournalError {
    #[error("another `rialto adopt` is at work: wait until it has ended")]
    Busy,
    #[error("other users can write to {path}: run chmod go-w {path}", path = .0.display())]
    Open(PathBuf),
    #[error("{} belongs to user {owner}: run this as that user", path.display())]
    OtherUser { path: PathBuf, owner: u32 },
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{}: this record cannot be read ({reason}); its copies are in that directory", path.display())]
    Unreadable { path: PathBuf, reason: String },
}

#[derive(Serialize, Deserialize)]
struct RecordText {
    version: u32,
    files: Vec<FileText>,
}

#[derive(Serialize, Deserialize)]
struct FileText {
    path: String,
    existed: bool,
    format: Option<String>,
    changes: Vec<ChangeText>,
}

#[derive(Serialize, Deserialize)]
struct ChangeText {
    place: Vec<StepText>,
    before: Option<String>,
    after: Option<String>,
}

#[derive(Serialize, Deserialize)]
enum StepText {
    Key(String),
    Named(String),
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |error| JournalError::Io { path, error }
}

impl Journal {
    /// Opens the journal, and keeps every other adoption out until it is dropped.
    pub(super) fn open(state_dir: &Path) -> Result<Self, JournalError> {
        let directory = state_dir.join("adopt");
        safe_file::directory(&directory).map_err(at(&directory))?;
        check_private(&directory)?;
        let path = directory.join(LOCK);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(at(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(JournalError::Busy),
            Err(fs::TryLockError::Error(error)) => return Err(at(&path)(error)),
        }
        // A killed run left it before it was a record.
        let draft = directory.join(DRAFT);
        if draft.exists() {
            fs::remove_dir_all(&draft).map_err(at(&draft))?;
        }
        Ok(Self {
            directory,
            _lock: lock,
        })
    }

    /// Writes a record of what is about to be written.
    pub(super) fn begin(&self, files: &[Written]) -> Result<(), JournalError> {
        let draft = self.directory.join(DRAFT);
        safe_file::directory(&draft).map_err(at(&draft))?;
        for (index, file) in files.iter().enumerate() {
            if let Some(before) = &file.before {
                copy(&draft.join(format!("{index}.before")), before)?;
            }
            copy(&draft.join(format!("{index}.after")), &file.after)?;
        }
        let text = RecordText {
            version: VERSION,
            files: files.iter().map(FileText::of).collect(),
        };
        let text = serde_json::to_vec_pretty(&text).map_err(|error| JournalError::Unreadable {
            path: draft.clone(),
            reason: error.to_string(),
        })?;
        copy(&draft.join(RECORD), &text)?;
        safe_file::sync_directory(&draft).map_err(at(&draft))?;
        let next = self.numbers()?.last().map_or(1, |last| last + 1);
        let record = self.directory.join(format!("{next:04}"));
        fs::rename(&draft, &record).map_err(at(&record))?;
        safe_file::sync_directory(&self.directory).map_err(at(&self.directory))
    }

    /// Returns the records that were not taken back, the newest first.
    pub(super) fn records(&self) -> Result<Vec<Record>, JournalError> {
        let numbers = self.numbers()?;
        let records = numbers.iter().rev();
        records
            .map(|number| Record::read(&self.directory.join(format!("{number:04}"))))
            .collect()
    }

    /// Removes a record that was taken back. Its files are as they were before it.
    pub(super) fn finish(&self, record: &Record) -> Result<(), JournalError> {
        // A rename first: a half-removed directory must not be read as a record.
        let gone = self.directory.join(DRAFT);
        fs::rename(&record.directory, &gone).map_err(at(&record.directory))?;
        fs::remove_dir_all(&gone).map_err(at(&gone))
    }

    /// Keeps a copy of a file that is about to be overwritten. Returns where it is.
    pub(super) fn keep(&self, path: &Path, bytes: &[u8]) -> Result<PathBuf, JournalError> {
        let directory = self.directory.join(KEPT);
        safe_file::directory(&directory).map_err(at(&directory))?;
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let free = (1..)
            .map(|number| directory.join(format!("{number:04}-{name}")))
            .find(|path| !path.exists());
        let kept = free.unwrap_or(directory);
        copy(&kept, bytes)?;
        Ok(kept)
    }

    fn numbers(&self) -> Result<Vec<u32>, JournalError> {
        let entries = fs::read_dir(&self.directory).map_err(at(&self.directory))?;
        let mut numbers: Vec<u32> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// Checks that no other user can put a record there: an undo writes what a record has into any file
/// of this user.
fn check_private(directory: &Path) -> Result<(), JournalError> {
    let seen = fs::metadata(directory).map_err(at(directory))?;
    let path = directory.to_owned();
    if seen.uid() != rustix::process::geteuid().as_raw() {
        let owner = seen.uid();
        return Err(JournalError::OtherUser { path, owner });
    }
    match seen.mode() & 0o022 {
        0 => Ok(()),
        _ => Err(JournalError::Open(path)),
    }
}

fn copy(path: &Path, bytes: &[u8]) -> Result<(), JournalError> {
    let written = File::options()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
    written.map_err(at(path))
}

impl Record {
    fn read(directory: &Path) -> Result<Self, JournalError> {
        let unreadable = |reason: String| JournalError::Unreadable {
            path: directory.to_owned(),
            reason,
        };
        let text = fs::read(directory.join(RECORD)).map_err(|error| unreadable(error.to_string()))?;
        let text: RecordText =
            serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
        if text.version != VERSION {
            return Err(unreadable(format!(
                "version {}, made by a newer Rialto",
                text.version
            )));
        }
        let mut files = Vec::new();
        for (index, file) in text.files.into_iter().enumerate() {
            let part = |ending: &str| fs::read(directory.join(format!("{index}.{ending}")));
            let before = match file.existed {
                true => Some(part("before").map_err(|error| unreadable(error.to_string()))?),
                false => None,
            };
            files.push(Written {
                before,
                after: part("after").map_err(|error| unreadable(error.to_string()))?,
                edit: file.edit().map_err(unreadable)?,
                path: file.path.into(),
            });
        }
        Ok(Self {
            directory: directory.to_owned(),
            files,
        })
    }
}

impl FileText {
    fn of(file: &Written) -> Self {
        let (format, changes) = match &file.edit {
            Some((format, changes)) => (Some(*format), changes.as_slice()),
            None => (None, [].as_slice()),
        };
        Self {
            path: file.path.to_string_lossy().into_owned(),
            existed: file.before.is_some(),
            format: format.map(|format| word(format).to_owned()),
            changes: changes.iter().map(ChangeText::of).collect(),
        }
    }

    fn edit(&self) -> Result<Option<(Format, Vec<Change>)>, String> {
        let Some(written) = &self.format else {
            return Ok(None);
        };
        let format = [Format::Json, Format::Toml, Format::Yaml]
            .into_iter()
            .find(|format| word(*format) == written)
            .ok_or("a format that is not known")?;
        let changes: Result<Vec<Change>, String> = self.changes.iter().map(ChangeText::change).collect();
        Ok(Some((format, changes?)))
    }
}

const fn word(format: Format) -> &'static str {
    match format {
        Format::Json => "json",
        Format::Toml => "toml",
        Format::Yaml => "yaml",
    }
}

impl ChangeText {
    fn of(change: &Change) -> Self {
        Self {
            place: change
                .place
                .iter()
                .map(|step| match step {
                    Step::Key(key) => StepText::Key(key.clone()),
                    Step::Named(name) => StepText::Named(name.clone()),
                })
                .collect(),
            before: change.before.as_ref().map(Plain::to_json),
            after: change.after.as_ref().map(Plain::to_json),
        }
    }

    fn change(&self) -> Result<Change, String> {
        let plain = |text: &Option<String>| {
            let node = text.as_deref().map(tree::load).transpose();
            node.map(|node| node.as_ref().map(Plain::of))
                .map_err(|malformed| malformed.reason)
        };
        Ok(Change {
            place: self
                .place
                .iter()
                .map(|step| match step {
                    StepText::Key(key) => Step::Key(key.clone()),
                    StepText::Named(name) => Step::Named(name.clone()),
                })
                .collect(),
            before: plain(&self.before)?,
            after: plain(&self.after)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(path: &str, before: Option<&str>) -> Written {
        Written {
            path: path.into(),
            before: before.map(|text| text.as_bytes().to_vec()),
            after: b"after".to_vec(),
            edit: Some((
                Format::Json,
                vec![Change {
                    place: vec![Step::Key("mcpServers".into()), Step::Named("a".into())],
                    before: Some(Plain::Text("npx: \"x\"".into())),
                    after: Some(Plain::texts(["attach", "a"])),
                }],
            )),
        }
    }

    #[test]
    fn records_are_read_as_they_were_written_the_newest_first() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        let first = [
            written("/home/me/a.json", Some("before")),
            written("/home/me/new", None),
        ];
        let second = [written("/home/me/b.json", Some("b"))];
        journal.begin(&first).unwrap();
        journal.begin(&second).unwrap();
        let records = journal.records().unwrap();
        assert_eq!(records[0].files, second);
        assert_eq!(records[1].files, first);
        journal.finish(&records[0]).unwrap();
        assert_eq!(journal.records().unwrap().len(), 1);
    }

    #[test]
    fn two_adoptions_at_once_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        assert!(matches!(Journal::open(folder.path()), Err(JournalError::Busy)));
        drop(journal);
        assert!(Journal::open(folder.path()).is_ok());
    }

    #[test]
    fn a_record_that_a_killed_run_did_not_finish_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let draft = folder.path().join("adopt/draft");
        fs::create_dir_all(&draft).unwrap();
        fs::write(draft.join("0.before"), "x").unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        assert!(journal.records().unwrap().is_empty());
        assert!(!draft.exists());
    }

    #[test]
    fn journal_that_others_can_write_to_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("adopt");
        fs::create_dir(&directory).unwrap();
        for (mode, is_good) in [(0o700, true), (0o755, true), (0o775, false), (0o777, false)] {
            fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Journal::open(folder.path()).is_ok(), is_good, "{mode:o}");
        }
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Journal::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("chmod go-w"), "{error}");
    }

    #[test]
    fn copies_are_for_this_user_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        journal
            .begin(&[written("/home/me/a.json", Some("secret"))])
            .unwrap();
        let kept = journal.keep(Path::new("/home/me/a.json"), b"edited").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder.path().join("adopt")), 0o700);
        assert_eq!(mode(&folder.path().join("adopt/0001/0.before")), 0o600);
        assert_eq!(mode(&kept), 0o600);
        assert_eq!(fs::read(kept).unwrap(), b"edited");
    }
}
