//! Taking an adoption back.
//!
//! A file that is as the adoption left it becomes what it was, byte for byte. A file that was
//! edited since keeps the edit: only the changed values are put back, if they still stand there.
//! Each entry of a host is put back or left for itself.

use std::fs;
use std::path::{Path, PathBuf};

use super::journal::{Journal, JournalError, Record, Written};
use crate::hosts::edit::{self, Change, Step};
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
    /// The same, but these entries were edited themselves, and stay.
    PutBackExcept(String, Vec<String>),
    /// It was edited since, where the adoption wrote.
    Edited,
}

/// What became of one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Restored,
    Removed,
    PutBack,
    /// Its other entries are put back; these were edited.
    PutBackExcept(Vec<String>),
    /// It was edited, and is as it was before now; the edited one is kept there.
    Forced(PathBuf),
    /// It was edited, and was left alone.
    LeftAlone,
    /// It stays, since a file that was left alone may need it.
    Needed,
    Failed(String),
}

impl Outcome {
    /// Returns whether nothing of the adoption is left in the file.
    pub(super) const fn is_taken_back(&self) -> bool {
        match self {
            Self::Restored | Self::Removed | Self::PutBack | Self::Forced(_) => true,
            Self::PutBackExcept(_) | Self::LeftAlone | Self::Needed | Self::Failed(_) => false,
        }
    }
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
        Err(_) => entry_by_entry(text, *format, changes),
    }
}

/// Decides about each entry for itself: the user may have edited or removed some.
fn entry_by_entry(text: &str, format: Format, changes: &[Change]) -> Verdict {
    let mut put_back = text.to_owned();
    let mut edited = Vec::new();
    for of_entry in changes.chunk_by(|one, next| entry_of(one) == entry_of(next)) {
        let reversed: Vec<Change> = of_entry.iter().rev().map(Change::reversed).collect();
        let entry = of_entry.first().map(entry_of).unwrap_or_default();
        match edit::apply(&put_back, format, &reversed) {
            Ok(text) => put_back = text,
            Err(_) if is_undone(&put_back, format, of_entry) => {}
            // The user removed it, and what starts through Rialto with it.
            Err(_) if edit::is_empty_at(&put_back, format, entry) => {}
            Err(_) => edited.push(Step::path(entry)),
        }
    }
    match (put_back == text, edited.is_empty()) {
        (true, true) => Verdict::Nothing,
        (false, true) => Verdict::PutBack(put_back),
        (false, false) => Verdict::PutBackExcept(put_back, edited),
        (true, false) => Verdict::Edited,
    }
}

/// Returns the place of the entry that a change is in.
fn entry_of(change: &Change) -> &[Step] {
    change.place.split_last().map_or(&[], |(_, above)| above)
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
///
/// A file that is left alone may still start Rialto, with the user's destinations and secrets. So
/// from then on those stay, in older records as well: `is_needed` tells.
pub(super) fn take_back(
    journal: &Journal,
    record: &Record,
    is_forced: bool,
    is_needed: &mut bool,
) -> Result<Vec<(PathBuf, Outcome)>, JournalError> {
    let mut outcomes = Vec::new();
    for file in record.files.iter().rev() {
        safe_file::remove_draft(&file.path);
        if *is_needed && file.edit.is_none() && file.path.exists() {
            outcomes.push((file.path.clone(), Outcome::Needed));
            continue;
        }
        let outcome = match one(journal, file, is_forced)? {
            Some(Ok(outcome)) => outcome,
            Some(Err(refusal)) => Outcome::Failed(refusal.to_string()),
            None => continue,
        };
        *is_needed |= !outcome.is_taken_back() && file.path.exists();
        outcomes.push((file.path.clone(), outcome));
    }
    if outcomes.iter().all(|(_, outcome)| outcome.is_taken_back()) {
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
        (Verdict::PutBackExcept(text, edited), Some(current)) if !is_forced => {
            safe_file::replace(&file.path, &current, text.as_bytes()).map(|()| Outcome::PutBackExcept(edited))
        }
        (Verdict::Edited | Verdict::PutBack(_) | Verdict::PutBackExcept(..), _) if !is_forced => {
            Ok(Outcome::LeftAlone)
        }
        (Verdict::Edited | Verdict::PutBackExcept(..), Some(current)) => {
            let kept = journal.keep(&file.path, &current)?;
            restore(file, &current).map(|_| Outcome::Forced(kept))
        }
        // The user removed it.
        (Verdict::Edited | Verdict::PutBack(_) | Verdict::PutBackExcept(..), None) => {
            create(&file.path, file.before.as_deref())
        }
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
    fn each_entry_is_put_back_for_itself() {
        let text = |a: &str, b: &str| {
            format!(
                "{{\n  // mine\n  \"mcpServers\": {{\n{a}    \"b\": {{ \"command\": \"{b}\" }}\n  }}\n}}\n"
            )
        };
        let entry = |a: &str| format!("    \"a\": {{ \"command\": \"{a}\" }},\n");
        let change = |name: &str| Change {
            place: ["mcpServers", name, "command"]
                .map(|key| Step::Key(key.into()))
                .to_vec(),
            ..written().edit.expect("changes").1[0].clone()
        };
        let file = Written {
            before: Some(text(&entry("npx"), "npx").into()),
            after: text(&entry("rialto"), "rialto").into(),
            edit: Some((Format::Json, vec![change("a"), change("b")])),
            ..written()
        };
        let of = |text: &str| verdict(Some(text.as_bytes()), &file);
        assert_eq!(of(&text("", "rialto")), Verdict::PutBack(text("", "npx")));
        assert_eq!(of(&text("", "npx")), Verdict::Nothing);
        assert_eq!(of(&text("", "uvx")), Verdict::Edited);
        assert_eq!(
            of(&text(&entry("uvx"), "rialto")),
            Verdict::PutBackExcept(text(&entry("uvx"), "npx"), vec!["mcpServers.a".to_owned()])
        );
        assert_eq!(of(&text(&entry("uvx"), "npx")), Verdict::Edited);
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
