//! The stub server's journal: one JSON line for everything that really reached the child.
//!
//! Each entry is one `O_APPEND` write, so that several processes (a restarted child, several
//! instances) can share one file. The file is opened for each entry: an open journal would show
//! among the child's open files, which a test looks at.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Where the stub writes and a test reads.
#[derive(Debug, Clone)]
pub struct Journal {
    path: Option<PathBuf>,
}

impl Journal {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: Some(path.into()),
        }
    }

    /// Writes nothing and is always empty.
    pub fn none() -> Self {
        Self { path: None }
    }

    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Appends `{"event": …, "pid": …}` plus the members of `more`.
    pub(crate) fn write(&self, event: &str, more: Value) {
        let Some(path) = &self.path else { return };
        let mut entry = json!({"event": event, "pid": std::process::id()});
        if let (Value::Object(entry), Value::Object(more)) = (&mut entry, more) {
            entry.extend(more);
        }
        let line = format!("{entry}\n");
        // A journal that cannot be written shows as missing entries; the child must go on
        // regardless.
        let _ = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
    }

    /// All whole entries, oldest first; empty while there is no file.
    pub fn entries(&self) -> Vec<Value> {
        let Some(text) = self.path.as_ref().and_then(|path| fs::read_to_string(path).ok()) else {
            return Vec::new();
        };
        // An entry without its newline is still being written by another process.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// The entries of one kind.
    pub fn events(&self, event: &str) -> Vec<Value> {
        let mut entries = self.entries();
        entries.retain(|entry| entry["event"] == event);
        entries
    }

    /// The pid of every start, in order.
    pub fn starts(&self) -> Vec<u32> {
        self.events("start")
            .iter()
            .filter_map(|entry| entry["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()))
            .collect()
    }

    /// How many times the tool call with this marker was executed, by all processes together.
    pub fn executions(&self, marker: &str) -> usize {
        self.events("executed")
            .iter()
            .filter(|entry| entry["marker"] == marker)
            .count()
    }

    /// Whether the tool call with this marker was cancelled while it was waiting.
    pub fn was_cancelled(&self, marker: &str) -> bool {
        self.events("cancelled")
            .iter()
            .any(|entry| entry["marker"] == marker)
    }

    /// The lines received with this method, byte for byte as they came.
    pub fn received(&self, method: &str) -> Vec<String> {
        self.events("received")
            .iter()
            .filter(|entry| entry["method"] == method)
            .filter_map(|entry| entry["line"].as_str().map(str::to_owned))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_back_and_an_unfinished_one_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::at(dir.path().join("journal"));
        assert!(journal.entries().is_empty());
        journal.write("start", json!({}));
        journal.write("executed", json!({"marker": "a"}));
        journal.write("executed", json!({"marker": "a"}));
        let mut file = OpenOptions::new()
            .append(true)
            .open(journal.path().unwrap())
            .unwrap();
        file.write_all(b"{\"event\":\"executed\",\"marker\":\"a\"")
            .unwrap();
        assert_eq!(journal.starts(), [std::process::id()]);
        assert_eq!(journal.executions("a"), 2);
        assert_eq!(journal.executions("b"), 0);
    }
}
