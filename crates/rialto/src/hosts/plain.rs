//! A value of a host's file without its place: what is compared, written and kept in the journal.

use std::fmt::Write as _;

use crate::config::tree::{Node, Value};

/// A value, with keys in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plain {
    Null,
    Bool(bool),
    /// A number, as it was written.
    Number(String),
    Text(String),
    List(Vec<Plain>),
    Map(Vec<(String, Plain)>),
}

impl Plain {
    /// Returns the value of a node.
    pub(crate) fn of(node: &Node) -> Self {
        match &node.value {
            Value::Null => Self::Null,
            Value::Bool(flag) => Self::Bool(*flag),
            Value::Number(text) => Self::Number(text.clone()),
            Value::Text(text) => Self::Text(text.clone()),
            Value::List(items) => Self::List(items.iter().map(Self::of).collect()),
            Value::Map(entries) => Self::Map(
                entries
                    .iter()
                    .map(|(key, node)| (key.clone(), Self::of(node)))
                    .collect(),
            ),
        }
    }

    /// Returns a list of texts.
    pub(crate) fn texts<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self::List(texts.into_iter().map(|text| Self::Text(text.into())).collect())
    }

    /// Returns whether two values mean the same: the order of keys does not matter.
    pub(crate) fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(one), Self::List(two)) => {
                one.len() == two.len() && one.iter().zip(two).all(|(one, two)| one.same(two))
            }
            (Self::Map(one), Self::Map(two)) => {
                let found = |key: &str| two.iter().find(|(known, _)| known == key);
                one.len() == two.len()
                    && one
                        .iter()
                        .all(|(key, value)| found(key).is_some_and(|(_, other)| value.same(other)))
            }
            (one, two) => one == two,
        }
    }

    /// Returns it without maps and lists that have nothing in them.
    pub(crate) fn without_empty(&self) -> Self {
        match self {
            Self::Map(entries) => Self::Map(
                entries
                    .iter()
                    .map(|(key, value)| (key.clone(), value.without_empty()))
                    .filter(|(_, value)| !value.is_empty())
                    .collect(),
            ),
            Self::List(items) => Self::List(items.iter().map(Self::without_empty).collect()),
            other => other.clone(),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Map(entries) => entries.is_empty(),
            Self::List(items) => items.is_empty(),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::Text(_) => false,
        }
    }

    /// Returns it as JSON on one line.
    pub(crate) fn to_json(&self) -> String {
        let mut text = String::new();
        self.write_json(&mut text, None);
        text
    }

    /// Returns it as JSON with an indent of two spaces.
    pub(crate) fn to_pretty_json(&self) -> String {
        let mut text = String::new();
        self.write_json(&mut text, Some(0));
        text
    }

    fn write_json(&self, text: &mut String, indent: Option<usize>) {
        match self {
            Self::Null => text.push_str("null"),
            Self::Bool(flag) => {
                let _ = write!(text, "{flag}");
            }
            Self::Number(number) => text.push_str(number),
            Self::Text(value) => text.push_str(&quoted(value)),
            // Lists of arguments are short.
            Self::List(items) => {
                text.push('[');
                for (index, item) in items.iter().enumerate() {
                    text.push_str(if index > 0 { ", " } else { "" });
                    item.write_json(text, indent);
                }
                text.push(']');
            }
            Self::Map(entries) if entries.is_empty() => text.push_str("{}"),
            Self::Map(entries) => {
                let inner = indent.map(|indent| indent + 2);
                text.push('{');
                for (index, (key, value)) in entries.iter().enumerate() {
                    text.push_str(if index > 0 { "," } else { "" });
                    line_break(text, inner);
                    let _ = write!(text, "{}: ", quoted(key));
                    value.write_json(text, inner);
                }
                line_break(text, indent);
                text.push('}');
            }
        }
    }

    /// Returns it as block YAML, without a line break at the end.
    pub(crate) fn to_yaml(&self, indent: usize) -> String {
        let mut lines = Vec::new();
        self.yaml_lines(indent, &mut lines);
        lines.join("\n")
    }

    fn yaml_lines(&self, indent: usize, lines: &mut Vec<String>) {
        let space = " ".repeat(indent);
        match self {
            Self::Map(entries) => {
                for (key, value) in entries {
                    match value {
                        Self::Map(inner) if !inner.is_empty() => {
                            lines.push(format!("{space}{}:", yaml_key(key)));
                            value.yaml_lines(indent + 2, lines);
                        }
                        Self::List(items) if items.iter().any(|item| matches!(item, Self::Map(_))) => {
                            lines.push(format!("{space}{}:", yaml_key(key)));
                            value.yaml_lines(indent + 2, lines);
                        }
                        value => lines.push(format!("{space}{}: {}", yaml_key(key), value.to_json())),
                    }
                }
            }
            Self::List(items) => {
                for item in items {
                    let mut inner = Vec::new();
                    item.yaml_lines(indent + 2, &mut inner);
                    for (index, line) in inner.iter().enumerate() {
                        match index {
                            0 => lines.push(format!("{space}- {}", line.trim_start())),
                            _ => lines.push(line.clone()),
                        }
                    }
                }
            }
            value => lines.push(format!("{space}{}", value.to_json())),
        }
    }
}

fn line_break(text: &mut String, indent: Option<usize>) {
    if let Some(indent) = indent {
        text.push('\n');
        text.extend(std::iter::repeat_n(' ', indent));
    }
}

/// Returns a text in double quotes, which JSON, TOML and YAML read alike.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            // What YAML counts as a line break, or no reader accepts bare.
            control if control.is_control() || matches!(control, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns a key as YAML has it; only plain words go without quotes.
pub(crate) fn yaml_key(key: &str) -> String {
    let is_plain = key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && !matches!(
            key.to_ascii_lowercase().as_str(),
            "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
        );
    match is_plain {
        true => key.to_owned(),
        false => quoted(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tree;

    fn sample() -> Plain {
        Plain::Map(vec![
            ("command".into(), Plain::Text("npx".into())),
            ("args".into(), Plain::texts(["-y", "a \"b\"\n\u{85}"])),
            (
                "more".into(),
                Plain::Map(vec![("n".into(), Plain::Number("1.10".into()))]),
            ),
            ("on".into(), Plain::Bool(true)),
            ("none".into(), Plain::Null),
            ("empty".into(), Plain::Map(Vec::new())),
        ])
    }

    #[test]
    fn what_is_written_is_read_again() {
        let value = sample();
        for text in [value.to_json(), value.to_pretty_json(), value.to_yaml(0)] {
            let node = tree::load(&text).expect(&text);
            assert_eq!(Plain::of(&node), value, "{text}");
        }
        assert!(serde_json::from_str::<serde_json::Value>(&value.to_pretty_json()).is_ok());
    }

    #[test]
    fn lists_of_maps_are_blocks_in_yaml() {
        let list = Plain::Map(vec![("servers".into(), Plain::List(vec![sample(), sample()]))]);
        let text = list.to_yaml(0);
        assert!(
            text.starts_with("servers:\n  - command: \"npx\"\n    args:"),
            "{text}"
        );
        assert_eq!(Plain::of(&tree::load(&text).expect(&text)), list);
    }

    #[test]
    fn order_of_keys_does_not_matter_for_the_meaning() {
        let one = Plain::Map(vec![("a".into(), Plain::Null), ("b".into(), Plain::Bool(true))]);
        let two = Plain::Map(vec![("b".into(), Plain::Bool(true)), ("a".into(), Plain::Null)]);
        assert!(one.same(&two) && one != two);
        assert!(!one.same(&Plain::Map(vec![("a".into(), Plain::Null)])));
    }

    proptest::proptest! {
        #[test]
        fn quoted_texts_are_the_same_in_json_yaml_and_toml(text in "\\PC*|[\\x00-\\x20\\u{85}\\u{2028}\"\\\\]*") {
            let quoted = quoted(&text);
            proptest::prop_assert_eq!(serde_json::from_str::<String>(&quoted).expect("JSON"), text.clone());
            let yaml = tree::load(&format!("a: {quoted}\n")).expect("YAML");
            proptest::prop_assert_eq!(Plain::of(&yaml), Plain::Map(vec![("a".into(), Plain::Text(text))]));
        }
    }
}
