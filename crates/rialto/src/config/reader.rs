//! A walk over the tree of a file that always knows where it is.
//!
//! A `Fields` is one map: each known key is taken out of it with the kind of value it must have,
//! and what is left at the end is unknown and reported with a suggestion. Problems are collected,
//! never returned, so that one walk finds all of them; a value with a problem reads as if it had
//! not been given.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use super::interpolate::{self, Sources};
use super::problem::{Place, Problem, Section};
use super::tree::{Node, Value};

/// What a whole walk shares.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    /// The file as messages call it.
    pub(super) file: String,
    pub(super) sources: Sources<'a>,
    problems: RefCell<Vec<Problem>>,
    notes: RefCell<Vec<String>>,
    files: RefCell<Vec<PathBuf>>,
}

/// A value with its place, and problems to report about it.
#[derive(Clone)]
pub(super) struct Given {
    /// The value with everything filled in.
    pub(super) text: String,
    /// What was written, for messages; a value that was filled in is never shown.
    pub(super) written: String,
    pub(super) place: Place,
}

impl<'a> Walk<'a> {
    pub(super) fn new(file: impl Into<String>, sources: Sources<'a>) -> Self {
        Self {
            file: file.into(),
            sources,
            problems: RefCell::default(),
            notes: RefCell::default(),
            files: RefCell::default(),
        }
    }

    pub(super) fn fail(&self, place: Place, message: impl Into<String>) {
        self.problems.borrow_mut().push(Problem {
            place,
            message: message.into(),
        });
    }

    /// Returns what a step gives, and the problems that it found, which then do not count.
    pub(super) fn apart<T>(&self, step: impl FnOnce() -> T) -> (T, Vec<Problem>) {
        let before = self.problems.borrow().len();
        let given = step();
        (given, self.problems.borrow_mut().split_off(before))
    }

    /// Something the user should know, although it stops nothing.
    pub(super) fn note(&self, note: impl Into<String>) {
        self.notes.borrow_mut().push(note.into());
    }

    /// Another file was read, which the configuration depends on.
    pub(super) fn depends_on(&self, file: PathBuf) {
        self.files.borrow_mut().push(file);
    }

    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.files.borrow().clone()
    }

    /// Returns everything that was found wrong, in the order of the file, and everything noted.
    pub(super) fn into_findings(self) -> (Vec<Problem>, Vec<String>) {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| problem.place.line());
        (problems, self.notes.into_inner())
    }

    /// Returns a text with its references filled in.
    pub(super) fn fill(&self, written: String, place: &Place) -> Option<String> {
        match interpolate::fill(&written, &self.sources) {
            Ok(text) => Some(text),
            Err(message) => {
                self.fail(place.clone(), message);
                None
            }
        }
    }

    /// Parses a value. An error shows what was written.
    pub(super) fn parse<T>(&self, given: &Given, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        match parse(&given.text) {
            Ok(value) => Some(value),
            Err(message) => {
                self.fail(
                    given.place.clone(),
                    format!("`{}` is wrong: {message}", shortened(&given.written)),
                );
                None
            }
        }
    }
}

/// One map of the file.
#[derive(Debug)]
pub(super) struct Fields<'w, 'a> {
    pub(super) walk: &'w Walk<'a>,
    section: Option<Section>,
    /// The field this map is the value of, with a dot; empty at the top.
    prefix: String,
    line: u64,
    entries: Vec<(String, Node)>,
    known: Vec<&'static str>,
}

impl<'w, 'a> Fields<'w, 'a> {
    pub(super) fn new(
        walk: &'w Walk<'a>,
        section: Option<Section>,
        line: u64,
        entries: Vec<(String, Node)>,
    ) -> Self {
        Self {
            walk,
            section,
            prefix: String::new(),
            line,
            entries,
            known: Vec::new(),
        }
    }

    /// The same for a map inside of this one; `prefix` is its key and a dot.
    pub(super) fn inner(&self, prefix: impl Into<String>, line: u64, entries: Vec<(String, Node)>) -> Self {
        Self {
            walk: self.walk,
            section: self.section.clone(),
            prefix: prefix.into(),
            line,
            entries,
            known: Vec::new(),
        }
    }

    /// Returns the line where this map begins.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// Returns a field of this map as messages call it.
    pub(super) fn path_of(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// Returns the place of a field of this map.
    pub(super) fn place(&self, line: u64, field: &str) -> Place {
        let field = self.path_of(field);
        match (&self.section, field.is_empty()) {
            (None, true) => Place::File {
                file: self.walk.file.clone(),
                line,
            },
            (section, _) => Place::Field {
                file: self.walk.file.clone(),
                line,
                section: section.clone(),
                field,
            },
        }
    }

    /// A problem of this map as a whole.
    pub(super) fn fail(&self, message: impl Into<String>) {
        self.walk.fail(self.place(self.line, ""), message);
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.entries
            .iter()
            .any(|(name, node)| name == key && node.value != Value::Null)
    }

    /// Returns whether a key that is left over was probably meant to be this one. It is reported as
    /// unknown.
    pub(super) fn has_misspelt(&self, key: &'static str) -> bool {
        self.entries.iter().any(|(name, _)| meant(name, &[key]).is_some())
    }

    /// Takes a key out; one without a value counts as not written.
    pub(super) fn take(&mut self, key: &'static str) -> Option<Node> {
        self.known.push(key);
        let index = self.entries.iter().position(|(name, _)| name == key)?;
        let (_, node) = self.entries.remove(index);
        (node.value != Value::Null).then_some(node)
    }

    /// Returns a single value, filled in.
    pub(super) fn given(&mut self, key: &'static str) -> Option<Given> {
        let node = self.take(key)?;
        self.scalar(node, key)
    }

    /// Returns a single value, with its references replaced, parsed.
    pub(super) fn parsed<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let given = self.given(key)?;
        self.walk.parse(&given, parse)
    }

    /// One of a closed set of words.
    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        self.parsed(key, |text| one_of(text, words))
    }

    /// Several texts: a list, or one text alone.
    pub(super) fn list(&mut self, key: &'static str) -> Option<Vec<Given>> {
        let node = self.take(key)?;
        Some(self.scalars(node, key))
    }

    /// Returns the items of a list, or one value alone as a list of one.
    pub(super) fn scalars(&self, node: Node, field: &str) -> Vec<Given> {
        match node.value {
            Value::List(items) => items
                .into_iter()
                .enumerate()
                .filter_map(|(index, item)| self.scalar(item, &format!("{field}[{index}]")))
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::Map(_) => {
                self.scalar(node, field).into_iter().collect()
            }
        }
    }

    /// Returns a map of names to single values, such as `env`.
    pub(super) fn named_values(&mut self, key: &'static str) -> BTreeMap<String, Given> {
        let Some(node) = self.take(key) else {
            return BTreeMap::new();
        };
        match node.value {
            Value::Map(entries) => entries
                .into_iter()
                .filter_map(|(name, value)| {
                    let field = format!("{key}.{name}");
                    Some((name, self.scalar(value, &field)?))
                })
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                let kind = node.value.kind();
                let example = "NAME: value";
                self.walk.fail(
                    self.place(node.line, key),
                    format!("must be a map, not {kind}: write one `{example}` per line"),
                );
                BTreeMap::new()
            }
        }
    }

    /// Returns a single value of the tree, filled in.
    pub(super) fn scalar(&self, node: Node, field: &str) -> Option<Given> {
        let place = self.place(node.line, field);
        let written = match node.value {
            Value::Text(text) => text,
            Value::Number(text) => {
                return Some(Given {
                    text: text.clone(),
                    written: text,
                    place,
                });
            }
            Value::Bool(flag) => flag.to_string(),
            Value::Null => String::new(),
            Value::List(_) | Value::Map(_) => {
                self.walk.fail(
                    place,
                    format!("must be a single value, not {}", node.value.kind()),
                );
                return None;
            }
        };
        self.filled(written, place)
    }

    /// Returns a text with its references filled in.
    pub(super) fn filled(&self, written: String, place: Place) -> Option<Given> {
        let text = self.walk.fill(written.clone(), &place)?;
        Some(Given { text, written, place })
    }

    /// Returns what no one has taken, for formats that allow it.
    pub(super) fn into_unknown(self) -> Vec<String> {
        self.entries.into_iter().map(|(name, _)| name).collect()
    }

    /// Returns what no one has taken, for maps whose keys are names.
    pub(super) fn into_entries(self) -> Vec<(String, Node)> {
        self.entries
    }

    /// Ends the map: all remaining keys are unknown.
    pub(super) fn finish(self) {
        for (name, node) in &self.entries {
            let place = self.place(node.line, name);
            let message = match meant(name, &self.known) {
                Some(meant) => format!("this key is not known; did you mean `{}{meant}`?", self.prefix),
                None => format!("this key is not known; known here are {}", self.known.join(", ")),
            };
            self.walk.fail(place, message);
        }
    }
}

/// One of a closed set of words, or what to write.
pub(super) fn one_of<T: Copy>(text: &str, words: &[(&'static str, T)]) -> Result<T, String> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let known: Vec<&'static str> = words.iter().map(|(word, _)| *word).collect();
    let all = known.join(", ");
    Err(match meant(text, &known) {
        Some(meant) => format!("did you mean `{meant}`? Possible are {all}"),
        None => format!("write one of {all}"),
    })
}

/// Keys that other tools use for what has another name here.
const SYNONYMS: [(&str, &str); 14] = [
    ("timeout", "request_timeout"),
    ("environment", "env"),
    ("working_directory", "cwd"),
    ("workdir", "cwd"),
    ("dir", "cwd"),
    ("cmd", "command"),
    ("arguments", "args"),
    ("servers", "destinations"),
    ("mcp_servers", "destinations"),
    ("port", "listen"),
    ("host", "listen"),
    ("address", "listen"),
    ("secrets", "secrets_file"),
    ("http", "streamable_http"),
];

/// Returns which of these names a word was probably meant to be.
pub(super) fn meant_of<'n>(word: &str, names: &[&'n str]) -> Option<&'n str> {
    let nearest = names.iter().map(|name| (distance(word, name), *name));
    let near = nearest.filter(|(distance, name)| *distance <= 1 + name.len() / 5);
    near.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// Returns what a word was probably meant to be.
fn meant(word: &str, known: &[&'static str]) -> Option<&'static str> {
    let lowered = word.to_lowercase().replace(['-', ' '], "_");
    if let Some((_, meant)) = SYNONYMS
        .iter()
        .find(|(other, meant)| *other == lowered && known.contains(meant))
    {
        return Some(meant);
    }
    let bare = |text: &str| text.replace('_', "");
    known
        .iter()
        .map(|candidate| (distance(&bare(&lowered), &bare(candidate)), *candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 5)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns how many letters must be added, dropped, replaced or swapped with their neighbour.
fn distance(from: &str, to: &str) -> usize {
    // Far longer than any key: a long text is no typing error, and the table stays small.
    const LONGEST: usize = 64;
    let from: Vec<char> = from.chars().take(LONGEST).collect();
    let to: Vec<char> = to.chars().take(LONGEST).collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (i, &a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &b) in to.iter().enumerate() {
            let replaced = last[j] + usize::from(a != b);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a == to[j - 1] && from[i - 1] == b {
                least = least.min(before_last[j - 1] + 1);
            }
            row.push(least);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[to.len()]
}

/// Returns a value short enough for a message.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_recognised() {
        let known = [
            "command",
            "args",
            "env",
            "request_timeout",
            "start_timeout",
            "max_sessions",
        ];
        for (word, expected) in [
            ("comand", Some("command")),
            ("commnad", Some("command")),
            ("Command", Some("command")),
            ("requestTimeout", Some("request_timeout")),
            ("start-timeout", Some("start_timeout")),
            ("maxSessions", Some("max_sessions")),
            ("timeout", Some("request_timeout")),
            ("environment", Some("env")),
            ("banana", None),
        ] {
            assert_eq!(meant(word, &known), expected, "{word}");
        }
    }

    #[test]
    fn distance_counts_single_steps() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("abc", "acb"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn long_values_are_cut_in_messages() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(&"ä".repeat(100)).chars().count(), 61);
    }
}
