//! References in the values of hosts, and the same in `destinations.yml`.
//!
//! Each host has its own way to write "the variable X". What only the host knows, such as the
//! folder that is open in an editor, has no counterpart and is named.

use std::path::Path;

use super::table::References;

/// A value, cut at its references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Phrase(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Variable {
        name: String,
        default: Option<String>,
    },
    /// The content of a file.
    File(String),
    /// The directory of the project.
    Workspace,
    Home,
    /// A question to the user, by its id.
    Input(String),
    /// Something else between braces, as it was written.
    Other(String),
}

/// Where a value is carried to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carry<'a> {
    /// The project of the file, if it is one of a project.
    pub(crate) project: Option<&'a Path>,
    pub(crate) home: Option<&'a Path>,
}

impl Phrase {
    /// Cuts a text at its references.
    pub(crate) fn parse(text: &str, style: References) -> Self {
        match style {
            References::None => Self(vec![Piece::Literal(text.to_owned())]),
            References::Dollar => Self(dollars(text, false)),
            References::BareDollar => Self(dollars(text, true)),
            References::Braces => Self(braces(text)),
        }
    }

    /// Returns the text, if there is no reference in it.
    pub(crate) fn literal(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Piece::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns it as `destinations.yml` has it, or why that is not possible.
    pub(crate) fn carried(&self, carry: Carry<'_>) -> Result<String, String> {
        let mut text = String::new();
        for piece in &self.0 {
            text.push_str(&piece.carried(carry)?);
        }
        Ok(text)
    }
}

impl Piece {
    fn carried(&self, carry: Carry<'_>) -> Result<String, String> {
        let directory = |path: Option<&Path>| path.map(|path| escaped(&path.to_string_lossy()));
        match self {
            Self::Literal(text) => Ok(escaped(text)),
            Self::Variable { name, default } => Ok(match default {
                Some(default) => format!("${{{name}:-{}}}", escaped(default)),
                None => format!("${{{name}}}"),
            }),
            Self::File(path) => {
                let path = match (path.strip_prefix("~/"), carry.home) {
                    (Some(below), Some(home)) => home.join(below).to_string_lossy().into_owned(),
                    (Some(_), None) | (None, _) => path.clone(),
                };
                match Path::new(&path).is_absolute() {
                    true => Ok(format!("${{file:{path}}}")),
                    false => Err(format!(
                        "reads the file {path}, which is relative to the host's file"
                    )),
                }
            }
            Self::Workspace => directory(carry.project).ok_or_else(|| only_the_host("${workspaceFolder}")),
            Self::Home => directory(carry.home).ok_or_else(|| only_the_host("${userHome}")),
            Self::Input(id) => Err(format!("asks for a value when it starts (`${{input:{id}}}`)")),
            Self::Other(written) => Err(only_the_host(written)),
        }
    }
}

fn only_the_host(written: &str) -> String {
    format!("uses `{written}`, which only the host can fill in")
}

/// Returns a text in which nothing is a reference any more.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('$', "$$")
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Collects pieces, and joins texts that stand side by side.
#[derive(Default)]
struct Pieces(Vec<Piece>);

impl Pieces {
    fn literal(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Literal(before)) => before.push_str(text),
            Some(_) | None => self.0.push(Piece::Literal(text.to_owned())),
        }
    }
}

fn dollars(text: &str, is_bare: bool) -> Vec<Piece> {
    let mut pieces = Pieces::default();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        pieces.literal(before);
        let after = &from[1..];
        let bare = after
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(after.len());
        if let Some(inner) = after.strip_prefix('{')
            && let Some(end) = inner.find('}')
        {
            let is_expression = inner.starts_with('{');
            let end = match is_expression {
                true => inner.find("}}").map_or(end, |end| end + 1),
                false => end,
            };
            let written = &from[..end + 3];
            pieces.0.push(match is_expression {
                true => Piece::Other(written.to_owned()),
                false => reference(&inner[..end], written),
            });
            rest = &from[end + 3..];
        } else if is_bare && is_variable(&after[..bare]) {
            pieces.0.push(Piece::Variable {
                name: after[..bare].to_owned(),
                default: None,
            });
            rest = &after[bare..];
        } else {
            pieces.literal("$");
            rest = after;
        }
    }
    pieces.literal(rest);
    pieces.0
}

/// Returns what stands between `${` and `}`.
fn reference(inner: &str, written: &str) -> Piece {
    let inner = inner.strip_prefix("env:").unwrap_or(inner);
    if let Some(id) = inner.strip_prefix("input:") {
        return Piece::Input(id.to_owned());
    }
    match inner {
        "workspaceFolder" | "workspaceRoot" => return Piece::Workspace,
        "userHome" => return Piece::Home,
        "pathSeparator" | "/" => return Piece::Literal(std::path::MAIN_SEPARATOR.to_string()),
        _ => {}
    }
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default.to_owned())),
        None => (inner, None),
    };
    match is_variable(name) {
        true => Piece::Variable {
            name: name.to_owned(),
            default,
        },
        false => Piece::Other(written.to_owned()),
    }
}

fn braces(text: &str) -> Vec<Piece> {
    let mut pieces = Pieces::default();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        pieces.literal(before);
        let found = from.find('}').and_then(|end| {
            let inner = &from[1..end];
            let piece = match inner.split_once(':') {
                Some(("env", name)) if is_variable(name) => Piece::Variable {
                    name: name.to_owned(),
                    // The host fills in nothing for a variable that is not set.
                    default: Some(String::new()),
                },
                Some(("file", path)) => Piece::File(path.to_owned()),
                Some(_) | None => return None,
            };
            Some((piece, end))
        });
        match found {
            Some((piece, end)) => {
                pieces.0.push(piece);
                rest = &from[end + 1..];
            }
            None => {
                pieces.literal("{");
                rest = &from[1..];
            }
        }
    }
    pieces.literal(rest);
    pieces.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(text: &str, style: References) -> Result<String, String> {
        Phrase::parse(text, style).carried(Carry {
            project: Some(Path::new("/code/app")),
            home: Some(Path::new("/home/me")),
        })
    }

    #[test]
    fn references_become_those_of_destinations() {
        for (style, written, expected) in [
            (References::Dollar, "${API_KEY}", "${API_KEY}"),
            (References::Dollar, "a ${env:API_KEY} b", "a ${API_KEY} b"),
            (References::Dollar, "${PORT:-80}", "${PORT:-80}"),
            (References::Dollar, "${workspaceFolder}/x", "/code/app/x"),
            (References::Dollar, "${userHome}${/}x", "/home/me/x"),
            (References::Dollar, "pa$$ $HOME ${", "pa$$$$ $$HOME $${"),
            (References::BareDollar, "$HOME/x ${Y}", "${HOME}/x ${Y}"),
            (References::BareDollar, "5$ $5", "5$$ $$5"),
            (References::None, "${API_KEY}", "$${API_KEY}"),
            (References::Braces, "Bearer {env:TOKEN}", "Bearer ${TOKEN:-}"),
            (References::Braces, "{file:~/.token}", "${file:/home/me/.token}"),
            (References::Braces, "{\"a\": 1} {x}", "{\"a\": 1} {x}"),
        ] {
            assert_eq!(carried(written, style), Ok(expected.to_owned()), "{written}");
        }
    }

    #[test]
    fn references_that_only_the_host_knows_are_named() {
        for (style, written, part) in [
            (References::Dollar, "${input:key}", "${input:key}"),
            (References::Dollar, "${command:pick}", "`${command:pick}`"),
            (References::Dollar, "${{ secrets.KEY }}", "`${{ secrets.KEY }}`"),
            (References::Braces, "{file:token.txt}", "token.txt"),
        ] {
            assert!(
                carried(written, style).expect_err(written).contains(part),
                "{written}"
            );
        }
        let nowhere = Carry {
            project: None,
            home: None,
        };
        let phrase = Phrase::parse("${workspaceFolder}", References::Dollar);
        assert!(
            phrase
                .carried(nowhere)
                .expect_err("no project")
                .contains("workspaceFolder")
        );
    }

    #[test]
    fn texts_without_references_are_literal() {
        assert_eq!(Phrase::parse("a$b", References::Dollar).literal(), Some("a$b"));
        assert_eq!(Phrase::parse("", References::Dollar).literal(), Some(""));
        assert_eq!(Phrase::parse("${A}", References::Dollar).literal(), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_cut_without_a_panic(text in "[${}:a-zA-Z{env:} ]*|\\PC*") {
            for style in [References::None, References::Dollar, References::BareDollar, References::Braces] {
                let _ = carried(&text, style);
            }
        }
    }
}
