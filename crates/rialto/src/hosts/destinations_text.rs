//! The texts of `destinations.yml` and its secrets file: new ones, and additions to those of a user.
//!
//! An addition is new lines only. Each result is read again: it must be what was there and the new
//! entries, or the user gets the lines to add by hand.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::carry::SecretValue;
use super::edit;
use super::merge::{Draft, Known};
use super::plain::{Plain, quoted, yaml_key};
use crate::config::jsonc;
use crate::config::tree;

/// The secrets file beside a file of destinations, unless that names another.
pub(crate) const SECRETS_FILE: &str = "secrets.yml";

/// What is known of a file of destinations before something is added.
#[derive(Debug, Clone)]
pub(crate) struct Present {
    pub(crate) destinations: BTreeMap<String, Plain>,
    /// The value of `secrets_file`.
    pub(crate) secrets_file: Option<String>,
}

/// Reads the destinations of a text.
pub(crate) fn present(text: &str) -> Result<Present, String> {
    let mut present = Present {
        destinations: BTreeMap::new(),
        secrets_file: None,
    };
    if text.trim().is_empty() {
        return Ok(present);
    }
    let node =
        tree::load(text).map_err(|malformed| format!("line {}: {}", malformed.line, malformed.reason))?;
    let entries = match Plain::of(&node) {
        Plain::Map(entries) => entries,
        Plain::Null => return Ok(present),
        _ => return Err("it is no map".to_owned()),
    };
    for (key, value) in entries {
        match (key.as_str(), value) {
            ("destinations", Plain::Map(found)) => present.destinations = found.into_iter().collect(),
            ("secrets_file", Plain::Text(path)) => present.secrets_file = Some(path),
            _ => {}
        }
    }
    Ok(present)
}

/// Reads a secrets file.
pub(crate) fn secrets(text: &str) -> Result<BTreeMap<String, String>, String> {
    if text.trim().is_empty() {
        return Ok(BTreeMap::new());
    }
    let node =
        tree::load(text).map_err(|malformed| format!("line {}: {}", malformed.line, malformed.reason))?;
    match Plain::of(&node) {
        Plain::Null => Ok(BTreeMap::new()),
        Plain::Map(entries) => Ok(entries
            .into_iter()
            .filter_map(|(key, value)| match value {
                Plain::Text(text) | Plain::Number(text) => Some((key, text)),
                Plain::Bool(flag) => Some((key, flag.to_string())),
                Plain::Null | Plain::List(_) | Plain::Map(_) => None,
            })
            .collect()),
        _ => Err("it is no map".to_owned()),
    }
}

/// Returns what a file has, for the choice of names.
pub(crate) fn known(destinations: &Present, secrets: BTreeMap<String, String>) -> Known {
    Known {
        destinations: destinations.destinations.clone(),
        secrets,
    }
}

/// Returns a new file of destinations.
pub(crate) fn fresh(drafts: &[&Draft], head: &str, secrets_file: Option<&str>) -> String {
    let mut text = String::new();
    for line in head.lines() {
        let _ = writeln!(text, "# {line}");
    }
    if let Some(file) = secrets_file {
        let _ = writeln!(text, "secrets_file: {}", quoted(file));
    }
    text.push_str("destinations:\n");
    for draft in drafts {
        text.push_str(&entry(draft, 2));
    }
    text
}

/// Returns the lines of a destination.
pub(crate) fn entry(draft: &Draft, indent: usize) -> String {
    let space = " ".repeat(indent);
    let mut text = String::new();
    for origin in &draft.origins {
        let _ = writeln!(text, "{space}# {origin}");
    }
    let _ = writeln!(text, "{space}{}:", yaml_key(&draft.name));
    let _ = writeln!(text, "{}", draft.rendered.entry.to_yaml(indent + 2));
    text
}

/// Returns a text with more destinations, or why they have to be added by hand.
pub(crate) fn extended(text: &str, drafts: &[&Draft], secrets_file: Option<&str>) -> Result<String, String> {
    const BY_HAND: &str = "its `destinations` are not written as a block, one key per line";
    let before =
        tree::load(text).map_err(|malformed| format!("line {}: {}", malformed.line, malformed.reason))?;
    if jsonc::is_json(text.trim_start_matches('\u{feff}')) {
        return Err("it is JSON, not YAML".to_owned());
    }
    let mut meant = Plain::of(&before);
    let Plain::Map(entries) = &mut meant else {
        return Err("it is no map".to_owned());
    };
    if let Some(file) = secrets_file {
        entries.push(("secrets_file".to_owned(), Plain::Text(file.to_owned())));
    }
    let known = entries.iter_mut().find(|(key, _)| key == "destinations");
    let Some((_, Plain::Map(known))) = known else {
        return Err(BY_HAND.to_owned());
    };
    for draft in drafts {
        known.push((draft.name.clone(), draft.rendered.entry.clone()));
    }
    let edited = edit::in_place(text, |plain| inserted(plain, drafts, secrets_file)).ok_or(BY_HAND)?;
    match tree::load(&edited) {
        Ok(node) if Plain::of(&node).same(&meant) => Ok(edited),
        Ok(_) | Err(_) => Err(BY_HAND.to_owned()),
    }
}

fn inserted(plain: &str, drafts: &[&Draft], secrets_file: Option<&str>) -> Option<String> {
    let lines: Vec<&str> = plain.split_inclusive('\n').collect();
    let head = lines.iter().position(|line| {
        line.strip_prefix("destinations:")
            .is_some_and(|rest| rest.trim_start().is_empty() || rest.trim_start().starts_with('#'))
    })?;
    let inner = lines.get(head + 1..)?;
    let is_inside = |line: &str| line.starts_with([' ', '\t']) && !line.trim().is_empty();
    let is_content = |line: &str| is_inside(line) && !line.trim_start().starts_with('#');
    let length = inner
        .iter()
        .take_while(|line| line.trim().is_empty() || line.starts_with([' ', '\t', '#']))
        .enumerate()
        .filter(|(_, line)| is_inside(line))
        .map(|(index, _)| index + 1)
        .last()?;
    let first = inner.iter().find(|line| is_content(line))?;
    let indent = first.len() - first.trim_start_matches(' ').len();
    let mut text: String = lines.get(..head)?.concat();
    if let Some(file) = secrets_file {
        let _ = writeln!(text, "secrets_file: {}", quoted(file));
    }
    text.push_str(lines.get(head)?);
    text.push_str(&inner.get(..length)?.concat());
    if !text.ends_with('\n') {
        text.push('\n');
    }
    for draft in drafts {
        text.push_str(&entry(draft, indent));
    }
    text.push_str(&inner.get(length..)?.concat());
    Some(text)
}

/// Returns a secrets file with more lines, or why they have to be added by hand.
pub(crate) fn with_secrets(text: &str, more: &[&SecretValue]) -> Result<String, String> {
    let before = secrets(text)?;
    if jsonc::is_json(text) {
        return Err("it is JSON, not YAML".to_owned());
    }
    let mut whole = text.to_owned();
    if whole.is_empty() {
        whole.push_str("# Secrets of destinations.yml. Keep this file out of version control.\n");
    } else if !whole.ends_with('\n') {
        whole.push('\n');
    }
    let mut meant = before.clone();
    for secret in more {
        if before.get(&secret.name) == Some(&secret.value) {
            continue;
        }
        let _ = writeln!(whole, "{}: {}", yaml_key(&secret.name), quoted(&secret.value));
        meant.insert(secret.name.clone(), secret.value.clone());
    }
    match secrets(&whole) {
        Ok(found) if found == meant => Ok(whole),
        Ok(_) | Err(_) => Err("it has other keys of these names, or no plain lines".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::carry::{Purpose, Rendered, SecretsTo};
    use crate::hosts::entry::{self as entries, Entry};
    use crate::hosts::merge::{self, Wanted};
    use crate::hosts::reference::Carry;
    use crate::hosts::table::References;

    fn draft(name: &str, text: &str) -> Draft {
        let Entry::Stdio(found) = entries::read(&tree::load(text).expect(text), References::Dollar) else {
            panic!("{text}");
        };
        let carry = Carry {
            project: None,
            home: None,
        };
        let target = crate::hosts::carry::stdio(&found, carry, Purpose::Attach).expect(text);
        let wanted = [Wanted {
            name: name.to_owned(),
            qualifier: "cursor".to_owned(),
            origin: "Cursor: ~/.cursor/mcp.json".to_owned(),
            target,
        }];
        let (mut drafts, _) = merge::all(&wanted, &Known::default(), Purpose::Attach, SecretsTo::File);
        drafts.remove(0)
    }

    const FILES: &str = r#"{"command": "npx", "args": ["-y", "files"], "env": {"LOG": "debug"}}"#;

    #[test]
    fn a_new_file_has_every_destination_with_its_origin() {
        let text = fresh(&[&draft("files", FILES)], "Made by a test.", None);
        assert_eq!(
            text,
            "# Made by a test.\ndestinations:\n  # Cursor: ~/.cursor/mcp.json\n  files:\n    command: [\"npx\", \"-y\", \"files\"]\n    env:\n      LOG: \"debug\"\n    start: \"lazy\"\n    idle_stop: \"10m\"\n"
        );
        assert_eq!(present(&text).expect("read").destinations.len(), 1);
    }

    #[test]
    fn destinations_are_added_to_a_block_and_nothing_else_changes() {
        for (before, expected) in [
            (
                "listen: 127.0.0.1:3000\ndestinations:\n    # mine\n    a:\n        command: x # yes\n\n# the end\naudit: off\n",
                "listen: 127.0.0.1:3000\ndestinations:\n    # mine\n    a:\n        command: x # yes\n    # Cursor: ~/.cursor/mcp.json\n    files:\n      command: [\"npx\", \"-y\", \"files\"]\n      env:\n        LOG: \"debug\"\n      start: \"lazy\"\n      idle_stop: \"10m\"\n\n# the end\naudit: off\n",
            ),
            (
                "destinations:\n  a: { command: x }",
                "destinations:\n  a: { command: x }\n  # Cursor: ~/.cursor/mcp.json\n  files:\n    command: [\"npx\", \"-y\", \"files\"]\n    env:\n      LOG: \"debug\"\n    start: \"lazy\"\n    idle_stop: \"10m\"\n",
            ),
        ] {
            assert_eq!(
                extended(before, &[&draft("files", FILES)], None).as_deref(),
                Ok(expected)
            );
        }
        let windows = "destinations:\r\n  a:\r\n    command: x\r\n";
        let after = extended(windows, &[&draft("files", FILES)], Some("secrets.yml")).expect("extended");
        assert!(
            after.starts_with("secrets_file: \"secrets.yml\"\r\ndestinations:\r\n  a:\r\n"),
            "{after:?}"
        );
        assert_eq!(after.matches('\n').count(), after.matches("\r\n").count());
    }

    #[test]
    fn files_that_no_line_can_be_added_to_are_left_alone() {
        for text in [
            "destinations: { a: { command: x } }\n",
            "{ \"destinations\": { \"a\": { \"command\": \"x\" } } }",
            "destinations:\n- x\n",
            "listen: 1\n",
            "a: [\n",
            "text: |\n  destinations:\n    a: b\n",
        ] {
            assert!(extended(text, &[&draft("files", FILES)], None).is_err(), "{text}");
        }
    }

    #[test]
    fn secrets_are_added_as_lines() {
        let secret = |name: &str, value: &str| SecretValue {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        let (one, two) = (secret("a.KEY", "x: \"y\" # z"), secret("b", "1.10"));
        let text = with_secrets("", &[&one, &two]).expect("written");
        assert_eq!(secrets(&text).expect("read")["a.KEY"], "x: \"y\" # z");
        assert_eq!(with_secrets(&text, &[&one]).as_deref(), Ok(text.as_str()));
        let other = secret("a.KEY", "other");
        assert!(with_secrets(&text, &[&other]).is_err());
        assert!(with_secrets("[1]", &[&one]).is_err());
    }

    #[test]
    fn rendered_entries_are_read_as_they_are_meant() {
        let draft = draft(
            "odd name!",
            r##"{"command": "x: y", "args": ["#", "a\nb", "true", "${V}"]}"##,
        );
        let text = fresh(&[&draft], "Made by a test.", None);
        let found = present(&text).expect("read").destinations;
        let Rendered { entry, .. } = &draft.rendered;
        assert!(found["odd-name"].same(entry), "{text}");
    }
}
