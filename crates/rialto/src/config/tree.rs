//! A configuration file as a tree of plain values, each with the line it stands on.
//!
//! This hides which parsers are used: YAML and JSON come out the same. A number keeps the text it
//! was written with, because `VERSION: 1.10` in an `env` map must not reach a child as `1.1`.
//! Nothing here knows any key, and no error text quotes the file, which may hold secrets.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Budget, Options, Spanned};

use super::jsonc;

/// A value and the line it begins on, or that of its key (0 where the parser does not tell).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) line: u64,
    pub(crate) value: Value,
}

/// The kinds of value a file can hold.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    /// A number, as it was written.
    Number(String),
    Text(String),
    List(Vec<Node>),
    /// In the order of the file; no key occurs twice.
    Map(Vec<(String, Node)>),
}

impl Value {
    /// Returns what to call this kind of value in a message.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }
}

/// Why a text is no tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) line: u64,
    pub(crate) reason: String,
}

/// Reads a text as JSON or as YAML, whichever it is.
pub(crate) fn load(text: &str) -> Result<Node, Malformed> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match jsonc::is_json(text) {
        true => jsonc::parse(text),
        false => from_yaml(text),
    }
}

fn from_yaml(text: &str) -> Result<Node, Malformed> {
    match serde_saphyr::from_str_with_options::<Spanned<Bare>>(text, options()) {
        Ok(spanned) => Ok(spanned.into_node(text)),
        Err(error) => {
            let bare = error.without_snippet();
            let line = bare.location().map_or(0, |location| location.line());
            Err(Malformed {
                line,
                reason: format!("not valid YAML: {}", plain_words(bare)),
            })
        }
    }
}

/// Returns the parser's complaint, without words about how its library is used.
fn plain_words(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key `{key}` occurs twice: remove one of them")
        }
        Error::DuplicateMappingKey { key: None, .. } => "a key occurs twice: remove one of them".to_owned(),
        Error::BinaryNotUtf8 { .. } => "a !!binary value holds no text".to_owned(),
        Error::MultipleDocuments { .. } => {
            "there is more than one document: remove the `---` lines".to_owned()
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => "an alias contains itself".to_owned(),
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => "its aliases repeat too much".to_owned(),
        other => other.to_string(),
    }
}

/// Limits far above any honest configuration, and far below what would hurt.
fn options() -> Options {
    let mut budget = Budget::default();
    budget.max_events = 200_000;
    budget.max_nodes = 100_000;
    budget.max_depth = 32;
    let mut options = Options::default();
    options.budget = Some(budget);
    options.alias_limits.max_total_replayed_events = 100_000;
    // `off`, `no` and `y` are words here, as in YAML 1.2: `audit: off` must not arrive as `false`,
    // and `COUNTRY: no` must not arrive as `false` in a child.
    options.strict_booleans = true;
    options.with_snippet = false;
    options
}

/// A value as the YAML parser gives it, before lines and numbers are settled.
enum Bare {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Spanned<Bare>>),
    Map(Vec<(Spanned<String>, Spanned<Bare>)>),
}

trait IntoNode {
    fn into_node(self, source: &str) -> Node;
}

impl IntoNode for Spanned<Bare> {
    fn into_node(self, source: &str) -> Node {
        let line = self.referenced.line();
        let value = match self.value {
            Bare::Null => Value::Null,
            Bare::Bool(flag) => Value::Bool(flag),
            Bare::Number(parsed) => {
                let span = self.defined.span();
                let written = span
                    .byte_offset()
                    .zip(span.byte_len())
                    .and_then(|(offset, length)| {
                        let start = usize::try_from(offset).ok()?;
                        let end = start.checked_add(usize::try_from(length).ok()?)?;
                        source.get(start..end)
                    });
                // Only a text that begins like a number is believed to be the one that was written;
                // a tag (`!!int 5`) may be part of the span.
                match written.map(str::trim) {
                    Some(written)
                        if written.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
                            && !written.contains(char::is_whitespace) =>
                    {
                        Value::Number(written.to_owned())
                    }
                    Some(_) | None => Value::Number(parsed),
                }
            }
            Bare::Text(text) => Value::Text(text),
            Bare::List(items) => Value::List(items.into_iter().map(|item| item.into_node(source)).collect()),
            Bare::Map(entries) => {
                let entry = |(key, value): (Spanned<String>, Spanned<Bare>)| {
                    let mut node = value.into_node(source);
                    // A map or list may begin below its key, but the key is what a reader looks
                    // for.
                    if key.referenced.line() != 0 {
                        node.line = key.referenced.line();
                    }
                    (key.value, node)
                };
                Value::Map(entries.into_iter().map(entry).collect())
            }
        };
        Node { line, value }
    }
}

impl<'de> Deserialize<'de> for Bare {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BareVisitor)
    }
}

struct BareVisitor;

impl<'de> Visitor<'de> for BareVisitor {
    type Value = Bare;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, true or false, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<Bare, E> {
        Ok(Bare::Null)
    }

    fn visit_none<E>(self) -> Result<Bare, E> {
        Ok(Bare::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Bare, D::Error> {
        Bare::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Bare, E> {
        Ok(Bare::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Bare, E> {
        Ok(Bare::Number(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Bare, E> {
        Ok(Bare::Number(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Bare, E> {
        Ok(Bare::Number(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Bare, E> {
        Ok(Bare::Number(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Bare, E> {
        Ok(Bare::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Bare, E> {
        Ok(Bare::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Bare, E> {
        Ok(Bare::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Bare, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Bare::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Bare, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Bare::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str, key: &str) -> Node {
        match load(text).expect("loads").value {
            Value::Map(entries) => {
                entries
                    .into_iter()
                    .find(|(name, _)| name == key)
                    .expect("the key is there")
                    .1
            }
            other => panic!("a map was expected, not {}", other.kind()),
        }
    }

    #[test]
    fn values_carry_the_line_they_stand_on() {
        let text = "a: 1\n\nb:\n  - x\n  - y\nc: z\n";
        assert_eq!(entry(text, "a").line, 1);
        assert_eq!(entry(text, "b").line, 3);
        assert_eq!(entry(text, "c").line, 6);
    }

    #[test]
    fn numbers_keep_the_text_they_were_written_with() {
        for written in [
            "1.10",
            "007",
            "8080",
            "0x1F",
            "1e3",
            "-4",
            "123456789012345678901234567890",
        ] {
            let found = entry(&format!("a: {written}\nb: 2\n"), "a").value;
            match found {
                Value::Number(text) | Value::Text(text) => assert_eq!(text, written),
                other => panic!("{written} became {}", other.kind()),
            }
        }
    }

    #[test]
    fn numbers_after_text_of_several_bytes_are_still_found() {
        assert_eq!(
            entry("ä: \"ü€\"\nb: 1.10\n", "b").value,
            Value::Number("1.10".into())
        );
    }

    #[test]
    fn words_of_old_yaml_are_not_booleans() {
        for word in ["off", "no", "yes", "on", "y"] {
            assert_eq!(
                entry(&format!("a: {word}\n"), "a").value,
                Value::Text(word.into())
            );
        }
        assert_eq!(entry("a: true\n", "a").value, Value::Bool(true));
    }

    #[test]
    fn a_key_that_occurs_twice_is_an_error_with_its_line() {
        let malformed = load("a: 1\nb: 2\na: 3\n").expect_err("doubled");
        assert_eq!(malformed.line, 3);
        assert!(
            malformed.reason.contains("`a` occurs twice"),
            "{}",
            malformed.reason
        );
        assert!(!malformed.reason.contains("Options"), "{}", malformed.reason);
    }

    #[test]
    fn json_with_tabs_and_escapes_is_read() {
        let text = "{\n\t\"a\": \"\\ud83d\\ude00 \\/\",\n\t\"b\": [1, true, null]\n}";
        assert_eq!(entry(text, "a").value, Value::Text("😀 /".into()));
    }

    #[test]
    fn a_yaml_flow_map_is_read_although_it_begins_like_json() {
        assert_eq!(entry("{a: b}", "a").value, Value::Text("b".into()));
    }

    #[test]
    fn broken_json_is_complained_about_as_json() {
        let malformed = load("{\n \"a\": [1,\n").expect_err("broken");
        assert!(
            malformed.reason.starts_with("not valid JSON"),
            "{}",
            malformed.reason
        );
    }

    #[test]
    fn an_alias_bomb_and_a_deep_nest_are_refused() {
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
        for level in 1..9 {
            let previous = level - 1;
            let aliases = vec![format!("*a{previous}"); 9].join(",");
            bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        assert!(load(&bomb).is_err());
        assert!(load(&"[".repeat(10_000)).is_err());
        assert!(load(&"{\"a\":".repeat(10_000)).is_err());
    }
}
