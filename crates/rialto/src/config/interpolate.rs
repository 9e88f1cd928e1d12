//! `${…}` in values: variables, secrets and files, filled in once and never twice.
//!
//! What is filled in is not looked at again, so that a secret that happens to hold `${` stays as it
//! is. Errors name what is missing, never a value.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use gateway::settings::Secret;

use super::environment::Environment;

/// A text deeper nested than this is no honest default.
const DEEPEST: usize = 8;

/// A file larger than this is no value of a setting.
const LARGEST_FILE: u64 = 1 << 20;

/// Where the values come from.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    pub(super) environment: &'a Environment,
    /// Empty until a secrets file was named.
    pub(super) secrets: OnceCell<Secrets>,
    /// What a relative path of `${file:…}` is relative to: the directory of the configuration file.
    pub(super) base: PathBuf,
    /// Whether `$$` stands for one dollar. Files of desktop hosts do not know that rule.
    pub(super) doubled_dollar: bool,
}

/// What became of the secrets file.
#[derive(Debug)]
pub(super) enum Secrets {
    /// It could not be read, which was reported already.
    Unreadable,
    Read(BTreeMap<String, Secret>),
}

impl Sources<'_> {
    fn secret(&self, name: &str) -> Result<String, String> {
        match self.secrets.get() {
            None => Err(format!(
                "`${{secret:{name}}}` needs a secrets file: add `secrets_file: secrets.yml` at the top of the file"
            )),
            // One complaint about the file is enough.
            Some(Secrets::Unreadable) => Ok(String::new()),
            Some(Secrets::Read(secrets)) => match secrets.get(name) {
                Some(secret) => Ok(secret.expose().to_owned()),
                None => Err(format!(
                    "the secrets file has no `{name}`: add a line `{name}: …` to it"
                )),
            },
        }
    }

    fn file(&self, path: &str) -> Result<String, String> {
        let mut text =
            read_text(&self.base.join(path)).map_err(|error| format!("`${{file:{path}}}`: {error}"))?;
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        Ok(text)
    }
}

/// Returns a file as text, if it is one of a sensible size.
pub(super) fn read_text(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut bytes = Vec::new();
    let length = file
        .take(LARGEST_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if length as u64 > LARGEST_FILE {
        return Err("is larger than 1 MiB".to_owned());
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 text".to_owned())
}

/// Fills in every reference of a text, or returns what to mend.
pub(super) fn fill(text: &str, sources: &Sources<'_>) -> Result<String, String> {
    fill_at(text, sources, 0)
}

/// Returns the length of a brace group at the start of a text, both braces included; groups may be
/// nested.
pub(super) fn braces(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut previous = ' ';
    for (index, character) in text.char_indices() {
        match character {
            // Only a reference opens a group: a default may hold a lone brace.
            '{' if index == 0 || previous == '$' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(index + 1);
                }
            }
            _ => {}
        }
        previous = character;
    }
    None
}

fn fill_at(text: &str, sources: &Sources<'_>, depth: usize) -> Result<String, String> {
    if depth > DEEPEST {
        return Err("defaults are nested too deep".to_owned());
    }
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        let (before, after) = rest.split_at(dollar);
        filled.push_str(before);
        let after = &after[1..];
        if after.starts_with('{') {
            let length = braces(after).ok_or_else(|| {
                "`${` is not closed: add the missing }, or write $$ for a plain dollar".to_owned()
            })?;
            filled.push_str(&reference(&after[1..length - 1], sources, depth)?);
            rest = &after[length..];
        } else if after.starts_with('$') && sources.doubled_dollar {
            filled.push('$');
            rest = &after[1..];
        } else {
            // A lone dollar is one: passwords have them.
            filled.push('$');
            rest = after;
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Returns the value of what stands between the braces.
fn reference(inner: &str, sources: &Sources<'_>, depth: usize) -> Result<String, String> {
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    match name.split_once(':') {
        Some(("secret", name)) if default.is_none() => sources.secret(name),
        Some(("file", path)) if default.is_none() => sources.file(path),
        Some(("secret" | "file", _)) => Err(format!(
            "`${{{name}}}` takes no default: only variables do, as in ${{NAME:-default}}"
        )),
        // The way VS Code and Cursor write variables.
        Some(("env", name)) => variable(name, default, sources, depth),
        Some((kind, _)) => Err(format!(
            "`${{{kind}:…}}` is not known here: write ${{VAR}}, ${{VAR:-default}}, ${{secret:NAME}} or ${{file:PATH}}"
        )),
        None => variable(name, default, sources, depth),
    }
}

fn variable(
    name: &str,
    default: Option<&str>,
    sources: &Sources<'_>,
    depth: usize,
) -> Result<String, String> {
    let well_formed = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !well_formed {
        return Err(format!(
            "`{name}` is no name of a variable: write ${{VAR}}, or $$ for a plain dollar"
        ));
    }
    match (sources.environment.get(name).map(str::to_owned), default) {
        // As in a shell, `:-` also covers a variable that is set to nothing.
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (Some(_) | None, Some(default)) => fill_at(default, sources, depth + 1),
        (None, None) => Err(format!(
            "the variable {name} is not set: set it, or write ${{{name}:-default}}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(doubled_dollar: bool, check: impl FnOnce(&Sources<'_>) -> T) -> T {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("token"), "from file\r\n").expect("written");
        std::fs::write(directory.path().join("binary"), b"\xff").expect("written");
        let environment =
            Environment::from_iter([("HOME", "/home/me"), ("EMPTY", ""), ("TRICKY", "${HOME} $$")]);
        check(&Sources {
            environment: &environment,
            secrets: OnceCell::from(Secrets::Read(BTreeMap::from([(
                "key".to_owned(),
                Secret::new("s3cret"),
            )]))),
            base: directory.path().to_owned(),
            doubled_dollar,
        })
    }

    fn filled(text: &str) -> Result<String, String> {
        with(true, |sources| fill(text, sources))
    }

    #[test]
    fn references_are_filled_in_wherever_they_stand() {
        assert_eq!(filled("${HOME}"), Ok("/home/me".into()));
        assert_eq!(
            filled("a ${HOME}/b ${secret:key} ${file:token}"),
            Ok("a /home/me/b s3cret from file".into())
        );
        assert_eq!(filled("${env:HOME}"), Ok("/home/me".into()));
        assert_eq!(filled("plain"), Ok("plain".into()));
    }

    #[test]
    fn a_default_stands_in_for_what_is_unset_or_empty() {
        assert_eq!(filled("${NOPE:-x y}"), Ok("x y".into()));
        assert_eq!(filled("${NOPE:-}"), Ok("".into()));
        assert_eq!(filled("${EMPTY:-x}"), Ok("x".into()));
        assert_eq!(filled("${EMPTY}"), Ok("".into()));
        assert_eq!(filled("${NOPE:-${ALSO_NOPE:-${HOME}}}!"), Ok("/home/me!".into()));
        assert_eq!(filled("${NOPE:-{}"), Ok("{".into()));
        assert_eq!(filled("${NOPE:-http://x:-y}"), Ok("http://x:-y".into()));
    }

    #[test]
    fn dollars_that_are_no_reference_stay() {
        assert_eq!(filled("pa$word $5 $"), Ok("pa$word $5 $".into()));
        assert_eq!(filled("$${HOME} $$"), Ok("${HOME} $".into()));
        assert_eq!(
            with(false, |sources| fill("pa$$word", sources)),
            Ok("pa$$word".into())
        );
    }

    #[test]
    fn interpolated_text_is_not_interpolated_again() {
        assert_eq!(filled("${TRICKY}"), Ok("${HOME} $$".into()));
    }

    #[test]
    fn missing_variables_are_named() {
        assert!(
            filled("x ${NOPE}")
                .expect_err("unset")
                .contains("NOPE is not set")
        );
        assert!(filled("${secret:nope}").expect_err("no secret").contains("nope"));
        assert!(
            filled("${file:nope}")
                .expect_err("no file")
                .contains("${file:nope}")
        );
        assert!(filled("${file:binary}").expect_err("no text").contains("UTF-8"));
        assert!(
            filled("${input:token}")
                .expect_err("unknown kind")
                .contains("${VAR}")
        );
        assert!(filled("${HOME").expect_err("open").contains("not closed"));
        for bad in ["${}", "${ HOME }", "${1}", "${:-x}", "${secret:key:-x}"] {
            assert!(filled(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn defaults_cannot_be_nested_without_end() {
        let deep = format!("{}x{}", "${N:-".repeat(50), "}".repeat(50));
        assert!(filled(&deep).expect_err("deep").contains("too deep"));
    }

    #[test]
    fn a_file_without_end_is_not_read_to_its_end() {
        assert!(
            read_text(Path::new("/dev/zero"))
                .expect_err("endless")
                .contains("larger")
        );
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_filled_in_or_refused_without_a_panic(text in "[${}:a-zäH\\-]*") {
            let environment = Environment::default();
            let _ = fill(&text, &Sources {
                environment: &environment,
                secrets: OnceCell::new(),
                base: PathBuf::new(),
                doubled_dollar: true,
            });
        }
    }
}
