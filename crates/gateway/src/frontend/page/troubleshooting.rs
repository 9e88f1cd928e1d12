//! What a failure means and what to do about it, in the words of the documents.

use std::sync::OnceLock;

use serde_json::{Value, json};

const PAGE: &str = include_str!("../../../../../docs/troubleshooting.md");

/// One row of a table of the page: a reason, as a caller gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    status: String,
    reason: String,
    message: String,
    /// What to do.
    text: String,
}

impl Row {
    pub(super) fn entry(&self) -> Value {
        json!({ "status": self.status, "message": self.message, "text": self.text })
    }
}

/// Returns what the documents have about a reason.
pub(super) fn rows(reason: &str) -> Vec<&'static Row> {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    let rows = ROWS.get_or_init(|| PAGE.lines().filter_map(row).collect());
    rows.iter().filter(|row| row.reason == reason).collect()
}

/// Reads a row of the four columns status, reason, message and remedy.
fn row(line: &str) -> Option<Row> {
    let cells = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let cells: Vec<&str> = cells.split(" | ").map(str::trim).collect();
    let [status, reason, message, text] = cells[..] else {
        return None;
    };
    let reason = reason.strip_prefix('`')?.strip_suffix('`')?;
    Some(Row {
        status: plain(status),
        reason: reason.to_owned(),
        message: plain(message),
        text: plain(text),
    })
}

/// Returns a text without the signs of Markdown: links become their words.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['`', '[']) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let linked = from.strip_prefix('[').and_then(|inner| {
            let (words, after) = inner.split_once("](")?;
            let (_, after) = after.split_once(')')?;
            Some((words, after))
        });
        match linked {
            Some((words, after)) => {
                out.push_str(&words.replace('`', ""));
                rest = after;
            }
            None => {
                // A bracket that is no link stays; a backtick goes.
                if from.starts_with('[') {
                    out.push('[');
                }
                rest = from.get(1..).unwrap_or_default();
            }
        }
    }
    out.push_str(rest);
    out.replace("\\|", "|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_the_words_of_the_documents() {
        let rows = rows("upstream_unavailable");
        assert!(!rows.is_empty());
        assert!(
            rows.iter()
                .all(|row| row.text.len() > 20 && !row.text.contains('`')),
            "{rows:?}"
        );
        assert!(super::rows("no such reason").is_empty());
    }

    #[test]
    fn signs_of_markdown_are_left_out() {
        assert_eq!(plain("see [the `docs`](x.md#y) and `a`"), "see the docs and a");
        assert_eq!(plain("a list [1, 2]"), "a list [1, 2]");
    }
}
