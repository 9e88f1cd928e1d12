//! The text of a host's file as a tree, in any of the three languages.
//!
//! Reading is lenient: comments, trailing commas, a byte order mark, an empty file. Keys that stand
//! twice are reported, since nothing tells which one the host takes.

use toml_edit::{Item, TableLike};

use super::table::Format;
use crate::config::jsonc::{self, Repeated};
use crate::config::tree::{self, Malformed, Node, Value};

/// A file that was read.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    pub(crate) root: Node,
    /// Keys that stand twice in one map.
    pub(crate) repeated: Vec<Repeated>,
}

/// Reads a text. No error quotes it, since it may hold secrets.
pub(crate) fn read(text: &str, format: Format) -> Result<Document, Malformed> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        let root = Node {
            line: 1,
            value: Value::Null,
        };
        return Ok(Document {
            root,
            repeated: Vec::new(),
        });
    }
    let (root, repeated) = match format {
        Format::Json => jsonc::parse_with_repeats(text)?,
        Format::Toml => (from_toml(text)?, Vec::new()),
        Format::Yaml => (tree::load(text)?, Vec::new()),
    };
    Ok(Document { root, repeated })
}

fn from_toml(text: &str) -> Result<Node, Malformed> {
    let lines = Lines::of(text);
    let document = toml_edit::Document::parse(text).map_err(|error| Malformed {
        line: error.span().map_or(0, |span| lines.line(span.start)),
        reason: format!(
            "not valid TOML: {}",
            error.message().lines().next().unwrap_or_default()
        ),
    })?;
    Ok(Node {
        line: 1,
        value: table(document.as_table(), &lines),
    })
}

fn table(table: &dyn TableLike, lines: &Lines) -> Value {
    let entries = table.iter().map(|(key, item)| {
        let key_line = table.key(key).and_then(|key| key.span());
        let span = key_line.or_else(|| item.span());
        let node = Node {
            line: span.map_or(0, |span| lines.line(span.start)),
            value: value_of(item, lines),
        };
        (key.to_owned(), node)
    });
    Value::Map(entries.collect())
}

fn value_of(item: &Item, lines: &Lines) -> Value {
    match item {
        Item::None => Value::Null,
        Item::Value(found) => scalar(found, lines),
        Item::Table(inner) => table(inner, lines),
        Item::ArrayOfTables(tables) => Value::List(
            tables
                .iter()
                .map(|inner| Node {
                    line: inner.span().map_or(0, |span| lines.line(span.start)),
                    value: table(inner, lines),
                })
                .collect(),
        ),
    }
}

fn scalar(found: &toml_edit::Value, lines: &Lines) -> Value {
    use toml_edit::Value as Toml;
    match found {
        Toml::String(text) => Value::Text(text.value().clone()),
        Toml::Integer(number) => Value::Number(number.value().to_string()),
        Toml::Float(number) => Value::Number(number.value().to_string()),
        Toml::Boolean(flag) => Value::Bool(*flag.value()),
        Toml::Datetime(time) => Value::Text(time.value().to_string()),
        Toml::Array(items) => Value::List(
            items
                .iter()
                .map(|item| Node {
                    line: item.span().map_or(0, |span| lines.line(span.start)),
                    value: scalar(item, lines),
                })
                .collect(),
        ),
        Toml::InlineTable(inner) => table(inner, lines),
    }
}

/// The positions at which lines begin.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at + 1).collect())
    }

    fn line(&self, at: usize) -> u64 {
        self.0.partition_point(|start| *start <= at) as u64 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::plain::Plain;

    #[test]
    fn the_same_content_is_read_from_all_three_languages() {
        let json = "\u{feff}{ // c\n \"s\": { \"a\": { \"command\": \"x\", \"args\": [\"y\", 1,], \"on\": true } } }";
        let toml = "# c\n[s.a]\ncommand = \"x\"\nargs = [\"y\", 1]\non = true\n";
        let yaml = "# c\ns:\n  a:\n    command: x\n    args: [y, 1]\n    on: true\n";
        let read = |text, format| Plain::of(&read(text, format).expect("read").root);
        let expected = read(json, Format::Json);
        assert_eq!(read(toml, Format::Toml), expected);
        assert_eq!(read(yaml, Format::Yaml), expected);
    }

    #[test]
    fn tables_of_a_list_and_dotted_keys_are_read_with_their_lines() {
        let text =
            "x.y = 1\n\n[[mcp_servers]]\nname = \"a\"\n[[mcp_servers]]\nname = \"b\"\nenv = { K = \"v\" }\n";
        let Value::Map(entries) = read(text, Format::Toml).expect("read").root.value else {
            panic!("a map was expected");
        };
        let (_, servers) = entries
            .iter()
            .find(|(key, _)| key == "mcp_servers")
            .expect("servers");
        let Value::List(servers) = &servers.value else {
            panic!("a list was expected");
        };
        let lines: Vec<u64> = servers.iter().map(|node| node.line).collect();
        assert_eq!(lines, [3, 5]);
    }

    #[test]
    fn broken_files_are_refused_with_their_line_and_without_their_content() {
        for (text, format, line) in [
            ("{\n\"geheim\": }", Format::Json, 2),
            ("a = 1\ngeheim =\n", Format::Toml, 2),
            ("a = 1\nb = 2\na = 3\n", Format::Toml, 3),
            ("a: [geheim\n", Format::Yaml, 2),
        ] {
            let malformed = read(text, format).expect_err(text);
            assert!(malformed.line.abs_diff(line) <= 1, "{malformed:?}");
            assert!(!malformed.reason.contains("geheim"), "{}", malformed.reason);
        }
    }

    #[test]
    fn an_empty_file_has_nothing_in_it() {
        for format in [Format::Json, Format::Toml, Format::Yaml] {
            for text in ["", "\n", "\u{feff}"] {
                assert_eq!(read(text, format).expect("read").root.value, Value::Null);
            }
        }
    }

    #[test]
    fn keys_that_stand_twice_are_named() {
        let document = read("{ \"a\": 1, \"a\": 2 }", Format::Json).expect("read");
        assert_eq!(document.repeated[0].key, "a");
    }
}
