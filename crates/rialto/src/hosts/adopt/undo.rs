//! Taking an adoption back.
//!
//! A file that is as the adoption left it becomes what it was, byte for byte. A file that was
//! edited since keeps the edit: only the changed values are put back, if they still stand there.

use std::fs;
use std::path::{Path, PathBuf};

use super::journal::{Journal, JournalError, Record, Written};
use crate::hosts::edit::{self, Change};
use crate::hosts::safe_file::{self, Refusal};
use crate::hosts::table::Format;

/// What is to be done with one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is as it was before.
    Nothing,
    /// It is as the adoption left it.
    Restore,
    /// It was edited since; with this text the adoption is taken back and the edit stays.
    PutBack(String),
    /// It was edited since, where the adoption wrote.
    Edited,
}

/// What became of one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Restored,
    Removed,
    PutBack,
    /// It was edited, and is as it was before now; the edited one is kept there.
    Forced(PathBuf),
    /// It was edited, and was left alone.
    LeftAlone,
    Failed(String),
}

/// Decides about a file with this content.
pub(super) fn verdict(current: Option<&[u8]>, file: &Written) -> Verdict {
    if current == file.before.as_deref() {
        return Verdict::Nothing;
    }
    if current == Some(file.after.as_slice()) {
        return Verdict::Restore;
    }
    let text = current.and_then(|bytes| std::str::from_utf8(bytes).ok());
    let (Some(text), Some((format, changes))) = (text, &file.edit) else {
        return Verdict::Edited;
    };
    let reversed: Vec<Change> = changes.iter().rev().map(Change::reversed).collect();
    match edit::apply(text, *format, &reversed) {
        Ok(text) => Verdict::PutBack(text),
        // An earlier run did it already.
        Err(_) if is_undone(text, *format, changes) => Verdict::Nothing,
        Err(_) => Verdict::Edited,
    }
}

/// Returns whether the values of all changes stand as they were before.
fn is_undone(text: &str, format: Format, changes: &[Change]) -> bool {
    let unchanged: Vec<Change> = changes
        .iter()
        .map(|change| Change {
            after: change.before.clone(),
            ..change.clone()
        })
        .collect();
    edit::apply(text, format, &unchanged).is_ok_and(|same| same == text)
}

/// Takes one record back, its last file first. Returns what became of each file that was not as
/// before already.
pub(super) fn take_back(
    journal: &Journal,
    record: &Record,
    is_forced: bool,
) -> Result<Vec<(PathBuf, Outcome)>, JournalError> {
    let mut outcomes = Vec::new();
    for file in record.files.iter().rev() {
        safe_file::remove_draft(&file.path);
        let outcome = match one(journal, file, is_forced)? {
            Some(Ok(outcome)) => outcome,
            Some(Err(refusal)) => Outcome::Failed(refusal.to_string()),
            None => continue,
        };
        outcomes.push((file.path.clone(), outcome));
    }
    let is_whole = |(_, outcome): &(PathBuf, Outcome)| match outcome {
        Outcome::Restored | Outcome::Removed | Outcome::PutBack | Outcome::Forced(_) => true,
        Outcome::LeftAlone | Outcome::Failed(_) => false,
    };
    if outcomes.iter().all(is_whole) {
        journal.finish(record)?;
    }
    Ok(outcomes)
}

fn one(
    journal: &Journal,
    file: &Written,
    is_forced: bool,
) -> Result<Option<Result<Outcome, Refusal>>, JournalError> {
    let current = match fs::read(&file.path) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Ok(Some(Err(error.into()))),
    };
    Ok(Some(match (verdict(current.as_deref(), file), current) {
        (Verdict::Nothing, _) => return Ok(None),
        (Verdict::Restore, _) => restore(file, &file.after),
        (Verdict::PutBack(text), Some(current)) => {
            safe_file::replace(&file.path, &current, text.as_bytes()).map(|()| Outcome::PutBack)
        }
        (Verdict::Edited | Verdict::PutBack(_), _) if !is_forced => Ok(Outcome::LeftAlone),
        (Verdict::Edited, Some(current)) => {
            let kept = journal.keep(&file.path, &current)?;
            restore(file, &current).map(|_| Outcome::Forced(kept))
        }
        // The user removed it.
        (Verdict::Edited | Verdict::PutBack(_), None) => create(&file.path, file.before.as_deref()),
    }))
}

fn restore(file: &Written, current: &[u8]) -> Result<Outcome, Refusal> {
    match &file.before {
        Some(before) => safe_file::replace(&file.path, current, before).map(|()| Outcome::Restored),
        None => safe_file::remove(&file.path, current).map(|()| Outcome::Removed),
    }
}

fn create(path: &Path, before: Option<&[u8]>) -> Result<Outcome, Refusal> {
    match before {
        Some(before) => safe_file::create(path, before, 0o600).map(|()| Outcome::Restored),
        None => Ok(Outcome::Removed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::edit::Step;
    use crate::hosts::plain::Plain;

    const BEFORE: &str = "{\n  \"mcpServers\": { \"a\": { \"command\": \"npx\" } }\n}\n";

    fn written() -> Written {
        let change = Change {
            place: ["mcpServers", "a", "command"]
                .map(|key| Step::Key(key.into()))
                .to_vec(),
            before: Some(Plain::Text("npx".into())),
            after: Some(Plain::Text("rialto".into())),
        };
        Written {
            path: "/home/me/mcp.json".into(),
            before: Some(BEFORE.into()),
            after: BEFORE.replace("npx", "rialto").into(),
            edit: Some((Format::Json, vec![change])),
        }
    }

    fn of(text: &str) -> Verdict {
        verdict(Some(text.as_bytes()), &written())
    }

    #[test]
    fn files_are_restored_put_back_or_left_alone() {
        assert_eq!(of(BEFORE), Verdict::Nothing);
        assert_eq!(of(&BEFORE.replace("npx", "rialto")), Verdict::Restore);
        let edited = "{\n  // mine\n  \"numStartups\": 5,\n  \"mcpServers\": { \"a\": { \"command\": \"rialto\" } }\n}\n";
        assert_eq!(of(edited), Verdict::PutBack(edited.replace("rialto", "npx")));
        assert_eq!(of(&edited.replace("rialto", "npx")), Verdict::Nothing);
        assert_eq!(of(&edited.replace("rialto", "uvx")), Verdict::Edited);
        assert_eq!(of("{ broken"), Verdict::Edited);
        assert_eq!(verdict(None, &written()), Verdict::Edited);
    }

    #[test]
    fn a_file_without_changes_of_its_own_is_restored_or_left_alone() {
        let file = Written {
            before: None,
            edit: None,
            ..written()
        };
        assert_eq!(verdict(None, &file), Verdict::Nothing);
        assert_eq!(verdict(Some(&file.after), &file), Verdict::Restore);
        assert_eq!(verdict(Some(b"edited"), &file), Verdict::Edited);
    }
}
