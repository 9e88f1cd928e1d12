//! Changes of a host's file in place.
//!
//! Comments, order, unknown keys, indentation, line endings and a byte order mark stay: only the
//! part of the text that a change touches is another afterwards. Each result is read again and
//! compared with what was meant, so that a text that means something else is never written.

mod json;
mod lines;
mod toml;

pub(super) use lines::in_place;

use super::document;
use super::plain::Plain;
use super::table::Format;

/// A step of the way to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    /// The entry of a list whose `name` is this.
    Named(String),
}

impl Step {
    /// Returns a place as people read it.
    pub(crate) fn path(place: &[Self]) -> String {
        let mut path = String::new();
        for step in place {
            match step {
                Self::Key(key) if path.is_empty() => path.push_str(key),
                Self::Key(key) => {
                    path.push('.');
                    path.push_str(key);
                }
                Self::Named(name) => {
                    path.push('[');
                    path.push_str(name);
                    path.push(']');
                }
            }
        }
        path
    }
}

/// A value that becomes another: added without `before`, removed without `after`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) place: Vec<Step>,
    pub(crate) before: Option<Plain>,
    pub(crate) after: Option<Plain>,
}

impl Change {
    /// Returns the change that takes this one back.
    pub(crate) fn reversed(&self) -> Self {
        Self {
            place: self.place.clone(),
            before: self.after.clone(),
            after: self.before.clone(),
        }
    }
}

/// Why a text was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EditError {
    #[error("line {line}: {reason}")]
    Malformed { line: u64, reason: String },
    #[error("the key `{key}` stands twice (line {line}): remove one of them")]
    Repeated { key: String, line: u64 },
    #[error("`{0}` is no longer what it was")]
    Changed(String),
    #[error("`{0}` cannot be written there")]
    NoPlace(String),
    #[error("the result would not mean what was intended, so nothing is written")]
    Misread,
}

/// Returns the text with the changes.
pub(crate) fn apply(text: &str, format: Format, changes: &[Change]) -> Result<String, EditError> {
    let mut meant = checked(text, format)?;
    for change in changes {
        if value_at(&meant, &change.place) != change.before.as_ref() {
            return Err(EditError::Changed(Step::path(&change.place)));
        }
        set(&mut meant, &change.place, change.after.clone())
            .ok_or_else(|| EditError::NoPlace(Step::path(&change.place)))?;
    }
    // Together, since a file of an agent may have tens of megabytes. Where line ends are mixed, those
    // between two changes would become alike.
    let batch = match lines::are_mixed(text) {
        true => 1,
        false => changes.len().max(1),
    };
    let mut edited = text.to_owned();
    for changes in changes.chunks(batch) {
        edited = in_place(&edited, |plain| match format {
            Format::Json => json::apply(plain, changes),
            Format::Toml => toml::apply(plain, changes),
            Format::Yaml => None,
        })
        .ok_or_else(|| {
            let places: Vec<String> = changes.iter().map(|change| Step::path(&change.place)).collect();
            EditError::NoPlace(places.join("`, `"))
        })?;
    }
    match checked(&edited, format) {
        // In TOML a table without values need not be there.
        Ok(found) if found.without_empty().same(&meant.without_empty()) => Ok(edited),
        Ok(_) | Err(_) => Err(EditError::Misread),
    }
}

/// Returns whether a text is without doubt and has nothing at a place.
pub(crate) fn is_empty_at(text: &str, format: Format, place: &[Step]) -> bool {
    checked(text, format).is_ok_and(|root| value_at(&root, place).is_none())
}

/// Returns what a text means, if it is without doubt.
fn checked(text: &str, format: Format) -> Result<Plain, EditError> {
    let document = document::read(text, format).map_err(|malformed| EditError::Malformed {
        line: malformed.line,
        reason: malformed.reason,
    })?;
    if let Some(repeated) = document.repeated.into_iter().next() {
        return Err(EditError::Repeated {
            key: repeated.key,
            line: repeated.line,
        });
    }
    Ok(match Plain::of(&document.root) {
        Plain::Null => Plain::Map(Vec::new()),
        other => other,
    })
}

/// Returns a text of JSON with a key at its top renamed, unless it is missing or the new one is there.
pub(crate) fn with_key_renamed(text: &str, from: &str, to: &str) -> Option<String> {
    json::with_key_renamed(text, from, to)
}

/// Returns the value at a place.
pub(crate) fn value_at<'a>(root: &'a Plain, place: &[Step]) -> Option<&'a Plain> {
    place.iter().try_fold(root, |value, step| match (step, value) {
        (Step::Key(key), Plain::Map(entries)) => entries
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| value),
        (Step::Named(name), Plain::List(items)) => items.iter().find(|item| is_named(item, name)),
        _ => None,
    })
}

fn is_named(item: &Plain, name: &str) -> bool {
    match item {
        Plain::Map(entries) => entries
            .iter()
            .any(|(key, value)| key == "name" && *value == Plain::Text(name.to_owned())),
        _ => false,
    }
}

/// Sets or removes a value; makes the maps above it. `None` if something else is in the way.
fn set(root: &mut Plain, place: &[Step], value: Option<Plain>) -> Option<()> {
    let (last, above) = place.split_last()?;
    let mut at = root;
    for step in above {
        at = match (step, at) {
            (Step::Key(key), Plain::Map(entries)) => {
                let found = entries.iter().position(|(known, _)| known == key);
                let index = found.unwrap_or_else(|| {
                    entries.push((key.clone(), Plain::Map(Vec::new())));
                    entries.len() - 1
                });
                &mut entries.get_mut(index)?.1
            }
            (Step::Named(name), Plain::List(items)) => items.iter_mut().find(|item| is_named(item, name))?,
            _ => return None,
        };
    }
    // A list that is not there yet was made as a map above.
    if let (Step::Named(_), Plain::Map(entries)) = (last, &mut *at)
        && entries.is_empty()
    {
        *at = Plain::List(Vec::new());
    }
    match (last, at, value) {
        (Step::Key(key), Plain::Map(entries), Some(value)) => {
            match entries.iter_mut().find(|(known, _)| known == key) {
                Some((_, known)) => *known = value,
                None => entries.push((key.clone(), value)),
            }
        }
        (Step::Key(key), Plain::Map(entries), None) => entries.retain(|(known, _)| known != key),
        (Step::Named(name), Plain::List(items), Some(value)) => {
            match items.iter_mut().find(|item| is_named(item, name)) {
                Some(known) => *known = value,
                None => items.push(value),
            }
        }
        (Step::Named(name), Plain::List(items), None) => items.retain(|item| !is_named(item, name)),
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests;
