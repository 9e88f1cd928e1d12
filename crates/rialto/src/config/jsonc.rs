//! JSON with comments and trailing commas, as VS Code, Cursor and Zed write their files.
//!
//! Each value carries the line of its key. A number keeps the text it was written with. No error
//! quotes the file, which may hold secrets.

use std::cell::Cell;
use std::collections::HashSet;

use super::tree::{Malformed, Node, Value};

/// Far above any honest configuration, and far below what would exhaust the stack.
const MAX_DEPTH: usize = 128;

/// Returns whether a text is JSON rather than YAML. A YAML flow map begins with a brace too, but
/// its first key is seldom in quotes.
pub(crate) fn is_json(text: &str) -> bool {
    let text = text.trim_start();
    if text.starts_with("//") || text.starts_with("/*") {
        return true;
    }
    let Some(rest) = text.strip_prefix('{') else {
        return false;
    };
    rest.trim_start().starts_with(['"', '/', '}'])
}

/// A key that stands twice in one map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Repeated {
    pub(crate) key: String,
    /// The line of the second one.
    pub(crate) line: u64,
}

/// Reads a text that is one JSON value.
pub(super) fn parse(text: &str) -> Result<Node, Malformed> {
    parse_with_repeats(text).map(|(node, _)| node)
}

/// The same, with every key that stands twice. The last one counts.
pub(crate) fn parse_with_repeats(text: &str) -> Result<(Node, Vec<Repeated>), Malformed> {
    let mut parser = Parser {
        text,
        at: 0,
        depth: 0,
        counted: Cell::new((0, 1)),
        repeated: Vec::new(),
    };
    parser.skip()?;
    let line = parser.line();
    let value = parser.value()?;
    parser.skip()?;
    if parser.peek().is_some() {
        return Err(parser.expected("the end of the file after the last brace"));
    }
    Ok((Node { line, value }, parser.repeated))
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// A position before `at` and its line, so that no part of the text is counted twice.
    counted: Cell<(usize, u64)>,
    repeated: Vec<Repeated>,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn line(&self) -> u64 {
        let (from, line) = self.counted.get();
        let between = self.text.get(from..self.at).unwrap_or_default();
        let line = line + between.matches('\n').count() as u64;
        self.counted.set((self.at, line));
        line
    }

    fn malformed(&self, reason: &str) -> Malformed {
        Malformed {
            line: self.line(),
            reason: format!("not valid JSON: {reason}"),
        }
    }

    fn expected(&self, what: &str) -> Malformed {
        match self.peek() {
            None => self.malformed(&format!("the file ends where {what} should be")),
            Some(_) => self.malformed(&format!("expected {what}")),
        }
    }

    /// Skips white space and comments.
    fn skip(&mut self) -> Result<(), Malformed> {
        loop {
            let rest = self.rest();
            let space = rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
            if space > 0 {
                self.at += space;
            } else if rest.starts_with("//") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if rest.starts_with("/*") {
                match rest.find("*/") {
                    Some(end) => self.at += end + 2,
                    None => return Err(self.malformed("a comment is not closed: add the missing */")),
                }
            } else {
                return Ok(());
            }
        }
    }

    fn take(&mut self, character: char) -> bool {
        let found = self.rest().starts_with(character);
        if found {
            self.at += character.len_utf8();
        }
        found
    }

    fn value(&mut self) -> Result<Value, Malformed> {
        match self.peek() {
            Some('{') => self.nested(Self::map),
            Some('[') => self.nested(Self::list),
            Some('"') => self.string().map(Value::Text),
            Some(_) => self.word(),
            None => Err(self.expected("a value")),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Value, Malformed>) -> Result<Value, Malformed> {
        if self.depth == MAX_DEPTH {
            return Err(self.malformed("it is nested too deeply"));
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn map(&mut self) -> Result<Value, Malformed> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        let mut keys = HashSet::new();
        loop {
            self.skip()?;
            if self.take('}') {
                return Ok(Value::Map(entries));
            }
            let line = self.line();
            if self.peek() != Some('"') {
                return Err(self.expected("a key in double quotes, or }"));
            }
            let key = self.string()?;
            self.skip()?;
            if !self.take(':') {
                return Err(self.expected("a colon after the key"));
            }
            self.skip()?;
            let value = self.value()?;
            if !keys.insert(key.clone()) {
                // Hosts take the last of several.
                entries.retain(|(known, _)| *known != key);
                self.repeated.push(Repeated {
                    key: key.clone(),
                    line,
                });
            }
            entries.push((key, Node { line, value }));
            self.skip()?;
            if !self.take(',') && self.peek() != Some('}') {
                return Err(self.expected("a comma or }"));
            }
        }
    }

    fn list(&mut self) -> Result<Value, Malformed> {
        let mut items = Vec::new();
        loop {
            self.skip()?;
            if self.take(']') {
                return Ok(Value::List(items));
            }
            let line = self.line();
            let value = self.value()?;
            items.push(Node { line, value });
            self.skip()?;
            if !self.take(',') && self.peek() != Some(']') {
                return Err(self.expected("a comma or ]"));
            }
        }
    }

    fn string(&mut self) -> Result<String, Malformed> {
        let rest = self.rest();
        let mut escaped = false;
        let end = rest.char_indices().skip(1).find(|(_, character)| {
            let closes = *character == '"' && !escaped;
            escaped = *character == '\\' && !escaped;
            closes
        });
        let Some((end, _)) = end else {
            return Err(self.malformed("a text is not closed: add the missing \""));
        };
        let text = serde_json::from_str(&rest[..=end])
            .map_err(|_| self.malformed("a text has a line break, or a backslash that means nothing"))?;
        self.at += end + 1;
        Ok(text)
    }

    /// `true`, `false`, `null` or a number.
    fn word(&mut self) -> Result<Value, Malformed> {
        let rest = self.rest();
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c))
            .unwrap_or(rest.len());
        let word = &rest[..end];
        let value = match word {
            "null" => Value::Null,
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            _ if serde_json::from_str::<serde_json::Number>(word).is_ok() => Value::Number(word.to_owned()),
            _ => {
                return Err(
                    self.expected("a value: a text in double quotes, a number, true, false, null, [ or {")
                );
            }
        };
        self.at += end;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Value {
        parse(text).expect(text).value
    }

    #[test]
    fn comments_and_trailing_commas_are_read_over() {
        let text = "// first\n{\n  /* a\n     \"b\": 1 */\n  \"a\": [1, 2,], // \"c\": 3\n  \"url\": \"http://x/*y*/\",\n}\n// last";
        let Value::Map(entries) = parsed(text) else {
            panic!("a map was expected");
        };
        let found: Vec<(&str, u64)> = entries
            .iter()
            .map(|(key, node)| (key.as_str(), node.line))
            .collect();
        assert_eq!(found, [("a", 5), ("url", 6)]);
        assert_eq!(entries[1].1.value, Value::Text("http://x/*y*/".into()));
    }

    #[test]
    fn numbers_keep_the_text_they_were_written_with() {
        let Value::List(items) = parsed("[1.10, -4, 1e3, 123456789012345678901234567890]") else {
            panic!("a list was expected");
        };
        let texts: Vec<Value> = items.into_iter().map(|item| item.value).collect();
        let expected = ["1.10", "-4", "1e3", "123456789012345678901234567890"];
        assert_eq!(texts, expected.map(|text| Value::Number(text.into())));
    }

    #[test]
    fn the_last_of_several_equal_keys_counts() {
        let node = Node {
            line: 1,
            value: Value::Bool(true),
        };
        assert_eq!(
            parsed(r#"{"a": 1, "a": true}"#),
            Value::Map(vec![("a".into(), node)])
        );
    }

    #[test]
    fn equal_keys_are_named_with_their_lines() {
        let (_, repeated) =
            parse_with_repeats("{\n\"a\": {\"b\": 1},\n\"c\": {\"b\": 1,\n\"b\": 2}\n}").expect("read");
        let named: Vec<_> = repeated
            .iter()
            .map(|each| (each.key.as_str(), each.line))
            .collect();
        assert_eq!(named, [("b", 4)]);
    }

    #[test]
    fn invalid_json_is_refused_with_its_line() {
        for (text, line) in [
            ("{\n\"a\": }", 2),
            ("{\n\"a\" 1}", 2),
            ("{\n\"a\": 1\n\"b\": 2}", 3),
            ("{\n\"a\": [1 2]}", 2),
            ("{\"a\": tru}", 1),
            ("{\"a\": 01}", 1),
            ("{\"a\": \"x\ny\"}", 1),
            ("{\"a\": \"\\q\"}", 1),
            ("{\"a\": 1}\n}", 2),
            ("{\"a\": 1,,}", 1),
            ("{,}", 1),
            ("{\"a\": 1 /* x", 1),
            ("{", 1),
            ("{\"a", 1),
            ("", 1),
        ] {
            let malformed = parse(text).expect_err(text);
            assert_eq!(malformed.line, line, "{text}: {}", malformed.reason);
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "\\PC*") {
            let _ = parse(&text);
        }

        #[test]
        fn jsonc_reads_json_as_serde_does(keys in proptest::collection::btree_map("\\PC*", "\\PC*", 0..5)) {
            let text = serde_json::to_string_pretty(&keys).expect("a map of texts");
            let Value::Map(entries) = parsed(&text) else { panic!("a map was expected") };
            let read: std::collections::BTreeMap<String, String> = entries
                .into_iter()
                .map(|(key, node)| match node.value {
                    Value::Text(text) => (key, text),
                    other => panic!("a text was expected, not {}", other.kind()),
                })
                .collect();
            proptest::prop_assert_eq!(read, keys);
        }
    }
}
