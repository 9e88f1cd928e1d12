//! A command written as one line, split into words like a shell would: quotes and backslashes
//! count, but nothing is expanded and no shell ever runs.
//!
//! What would need a shell (pipes, redirections, substitutions) is refused with a hint, because
//! passing it on as a plain argument would do something else than what was written. `${…}` belongs
//! to the configuration, not to a shell: it stays whole here, and is filled in after the split, so
//! that a value with spaces remains one argument.

/// Splits a line into words, or returns what to write instead.
pub(crate) fn split(line: &str) -> Result<Vec<String>, String> {
    let mut splitter = Splitter {
        rest: line,
        words: Vec::new(),
        word: None,
    };
    splitter.run()?;
    let words = splitter.words;
    match words.first() {
        None => Err("the command is empty: write the program and its arguments".to_owned()),
        Some(first) if is_assignment(first) => {
            let name = first.split('=').next().unwrap_or(first);
            Err(format!(
                "there is no shell that would set {name}: write it under `env`"
            ))
        }
        Some(_) => Ok(words),
    }
}

/// `NAME=value` in front of a program.
fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

struct Splitter<'a> {
    rest: &'a str,
    words: Vec<String>,
    /// The word being read; `Some("")` after an empty pair of quotes.
    word: Option<String>,
}

impl Splitter<'_> {
    fn run(&mut self) -> Result<(), String> {
        while let Some(character) = self.next() {
            match character {
                ' ' | '\t' | '\n' | '\r' => self.end_word(),
                '\'' => self.single_quoted()?,
                '"' => self.double_quoted()?,
                '\\' => match self.next() {
                    Some('\n') => {}
                    Some(escaped) => self.push_literal(escaped),
                    None => return Err("the line ends with a backslash: remove it or double it".to_owned()),
                },
                '$' => self.dollar()?,
                '`' => return Err(substitution("`…`")),
                '|' | '&' | ';' | '<' | '>' | '(' | ')' => return Err(self.operator(character)),
                '~' if self.word.is_none() && (self.rest.is_empty() || self.rest.starts_with(['/', ' '])) => {
                    return Err("there is no shell that would expand `~`: write ${HOME}".to_owned());
                }
                plain => self.push(plain),
            }
        }
        self.end_word();
        Ok(())
    }

    fn single_quoted(&mut self) -> Result<(), String> {
        let Some((quoted, rest)) = self.rest.split_once('\'') else {
            return Err("a single quote is not closed: add the missing '".to_owned());
        };
        self.word.get_or_insert_default().push_str(quoted);
        self.rest = rest;
        Ok(())
    }

    fn double_quoted(&mut self) -> Result<(), String> {
        self.word.get_or_insert_default();
        loop {
            match self.next() {
                Some('"') => return Ok(()),
                Some('\\') => match self.next() {
                    Some(escaped @ ('"' | '\\' | '$' | '`')) => self.push_literal(escaped),
                    Some('\n') => {}
                    Some(other) => {
                        self.push('\\');
                        self.push(other);
                    }
                    None => break,
                },
                Some('$') => self.dollar()?,
                Some('`') => return Err(substitution("`…`")),
                Some(plain) => self.push(plain),
                None => break,
            }
        }
        Err("a double quote is not closed: add the missing \"".to_owned())
    }

    /// Reads a dollar outside single quotes: the start of an interpolation, or something only a
    /// shell could do.
    fn dollar(&mut self) -> Result<(), String> {
        if self.rest.starts_with('$') {
            self.next();
            self.word.get_or_insert_default().push_str("$$");
        } else if self.rest.starts_with('{') {
            let length = super::interpolate::braces(self.rest)
                .ok_or_else(|| "`${` is not closed: add the missing }".to_owned())?;
            let (reference, rest) = self.rest.split_at(length);
            let word = self.word.get_or_insert_default();
            word.push('$');
            word.push_str(reference);
            self.rest = rest;
        } else if self.rest.starts_with('(') {
            return Err(substitution("$(…)"));
        } else if self
            .rest
            .starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        {
            let end = self
                .rest
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(self.rest.len());
            let name = &self.rest[..end];
            return Err(format!(
                "there is no shell that would expand ${name}: write ${{{name}}}, or $${name} for a plain dollar"
            ));
        } else {
            self.push('$');
        }
        Ok(())
    }

    fn operator(&self, operator: char) -> String {
        let whole = match self.rest.starts_with(operator) {
            true => format!("{operator}{operator}"),
            false => operator.to_string(),
        };
        format!(
            "the command runs without a shell, so `{whole}` means nothing: put it in quotes if it is part of an argument, \
             or write command: [sh, -c, \"…\"]"
        )
    }

    fn next(&mut self) -> Option<char> {
        let character = self.rest.chars().next()?;
        self.rest = &self.rest[character.len_utf8()..];
        Some(character)
    }

    fn push(&mut self, character: char) {
        self.word.get_or_insert_default().push(character);
    }

    /// An escaped character; a dollar stays one when the word is interpolated later.
    fn push_literal(&mut self, character: char) {
        self.push(character);
        if character == '$' {
            self.push('$');
        }
    }

    fn end_word(&mut self) {
        self.words.extend(self.word.take());
    }
}

fn substitution(what: &str) -> String {
    format!(
        "the command runs without a shell, so {what} cannot be filled in: write the value, or ${{VAR}} for a variable"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        split(line).expect(line)
    }

    #[test]
    fn words_are_separated_by_any_white_space() {
        assert_eq!(
            words("npx -y @upstash/context7-mcp"),
            ["npx", "-y", "@upstash/context7-mcp"]
        );
        assert_eq!(words("  a\t b\n c "), ["a", "b", "c"]);
        assert_eq!(words("a \\\n  b"), ["a", "b"]);
    }

    #[test]
    fn quotes_and_backslashes_join_words() {
        assert_eq!(words(r#"a 'b c' "d e" f\ g"#), ["a", "b c", "d e", "f g"]);
        assert_eq!(words(r#"a '' """#), ["a", "", ""]);
        assert_eq!(words(r#"a"b"'c'd"#), ["abcd"]);
        assert_eq!(words(r#"a "x\"y\\z\n" 'p\q'"#), ["a", r#"x"y\z\n"#, r"p\q"]);
    }

    #[test]
    fn an_interpolation_stays_whole_and_is_filled_in_later() {
        assert_eq!(
            words("a ${X:-b c} \"${Y}\" z${W}z"),
            ["a", "${X:-b c}", "${Y}", "z${W}z"]
        );
        assert_eq!(words("a ${X:-${Y:-b c}}"), ["a", "${X:-${Y:-b c}}"]);
        assert_eq!(words(r#"a \$X "\$Y" $$Z $"#), ["a", "$$X", "$$Y", "$$Z", "$"]);
    }

    #[test]
    fn command_that_needs_a_shell_is_refused_with_a_hint() {
        for (line, hint) in [
            ("a | b", "`|`"),
            ("a || b", "`||`"),
            ("a && b", "`&&`"),
            ("a > f", "`>`"),
            ("a >> f", "`>>`"),
            ("a < f", "`<`"),
            ("a; b", "`;`"),
            ("(a)", "`(`"),
            ("a http://x?p=1&q=2", "in quotes"),
            ("a $(b)", "$(…)"),
            ("a `b`", "`…`"),
            ("a \"`b`\"", "`…`"),
            ("a $HOME/x", "${HOME}"),
            ("~/bin/a", "${HOME}"),
            ("KEY=1 a", "under `env`"),
        ] {
            let error = split(line).expect_err(line);
            assert!(error.contains(hint), "{line}: {error}");
        }
        assert_eq!(
            words("a 'b | c' \"d && e\" f\\>g --x=1"),
            ["a", "b | c", "d && e", "f>g", "--x=1"]
        );
    }

    #[test]
    fn a_line_that_is_empty_or_not_closed_is_refused() {
        for line in ["", "   ", "a 'b", "a \"b", "a \\", "a ${b", "a \"\\"] {
            assert!(split(line).is_err(), "{line}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_split_or_refused_without_a_panic(line in "\\PC*") {
            let _ = split(&line);
        }

        #[test]
        fn a_quoted_word_comes_out_as_it_went_in(word in "[^'$]*") {
            proptest::prop_assert_eq!(words(&format!("a '{word}'")), ["a".to_owned(), word]);
        }
    }
}
