//! A whole file: which format it is in, its global keys, and its destinations.

use std::collections::BTreeMap;

use gateway::settings::Destination;

use super::aggregate::{self, Surroundings};
use super::destination::{self, Defaults, Format};
use super::environment::Environment;
use super::globals::{self, Globals};
use super::problem::{Place, Section};
use super::reader::{Fields, Walk};
use super::tree::{self, Node, Value};
use super::{name, quantity};
use crate::flags::ServeFlags;
use crate::hosts::entry::URL_KEYS;

/// Settings and destinations of a file, as far as they could be read.
pub(super) fn read(
    text: &str,
    flags: &ServeFlags,
    environment: &Environment,
    walk: &mut Walk<'_>,
) -> Option<(Globals, Vec<Destination>)> {
    let whole = |line| Place::File {
        file: walk.file.clone(),
        line,
    };
    let entries = match tree::load(text) {
        Ok(Node {
            value: Value::Map(entries),
            ..
        }) => entries,
        Ok(Node {
            value: Value::Null, ..
        }) => {
            walk.fail(whole(0), NO_DESTINATION);
            return None;
        }
        Ok(node) => {
            walk.fail(
                whole(node.line),
                format!(
                    "must be a map, not {}: write `destinations:` and a name under it",
                    node.value.kind()
                ),
            );
            return None;
        }
        Err(malformed) => {
            walk.fail(whole(malformed.line), malformed.reason);
            return None;
        }
    };
    match host_key(&entries) {
        None => Some(ours(flags, environment, walk, entries)),
        Some(key) => {
            walk.sources.doubled_dollar = false;
            Some(of_host(key, flags, environment, walk, entries))
        }
    }
}

const NO_DESTINATION: &str = "there is no destination: write `destinations:`, under it a name, and under that `command: PROGRAM ARGUMENTS`";

/// Returns the key that makes it a file of a desktop host: `mcpServers`, or `servers` as VS Code
/// has it.
fn host_key(entries: &[(String, Node)]) -> Option<&'static str> {
    let is_map = |key: &str| {
        entries
            .iter()
            .any(|(name, node)| name == key && matches!(node.value, Value::Map(_)))
    };
    if is_map("destinations") {
        None
    } else if is_map("mcpServers") {
        Some("mcpServers")
    } else if is_map("servers") {
        Some("servers")
    } else {
        None
    }
}

fn ours(
    flags: &ServeFlags,
    environment: &Environment,
    walk: &Walk<'_>,
    entries: Vec<(String, Node)>,
) -> (Globals, Vec<Destination>) {
    let mut fields = Fields::new(walk, None, 0, entries);
    let globals = globals::read(flags, environment, &mut fields);
    let mut destinations = Vec::new();
    match fields.take("destinations") {
        Some(Node {
            value: Value::Map(entries),
            ..
        }) if !entries.is_empty() => {
            for (name, node) in entries {
                if let Err(message) = name::check(&name) {
                    walk.fail(destination_place(walk, &name, node.line), message);
                }
                destinations.extend(entry(walk, &name, node, &globals.defaults, Format::Ours));
            }
        }
        Some(Node {
            value: Value::Map(_),
            line,
        }) => walk.fail(fields.place(line, "destinations"), NO_DESTINATION),
        Some(node) => walk.fail(
            fields.place(node.line, "destinations"),
            format!(
                "must be a map of names, not {}: write `NAME:` and under it `command: …`",
                node.value.kind()
            ),
        ),
        None => walk.fail(fields.place(0, ""), NO_DESTINATION),
    }
    let surroundings = Surroundings {
        globals: &globals,
        destinations: &destinations,
    };
    let aggregates = aggregate::read(&mut fields, &surroundings);
    destinations.extend(aggregates);
    fields.finish();
    (globals, destinations)
}

fn of_host(
    key: &'static str,
    flags: &ServeFlags,
    environment: &Environment,
    walk: &Walk<'_>,
    entries: Vec<(String, Node)>,
) -> (Globals, Vec<Destination>) {
    let mut fields = Fields::new(walk, None, 0, entries);
    let globals = globals::read(flags, environment, &mut fields);
    let servers = match fields.take(key) {
        Some(Node {
            value: Value::Map(servers),
            ..
        }) => servers,
        Some(_) | None => Vec::new(),
    };
    let mut destinations = Vec::new();
    let mut left_out = Vec::new();
    let mut taken = BTreeMap::new();
    for (original, node) in servers {
        if is_disabled(&node) {
            walk.note(format!(
                "{}: destination `{original}` is disabled there and left out",
                walk.file
            ));
            continue;
        }
        let (destination, problems) =
            walk.apart(|| entry_of_host(walk, original, node, &globals.defaults, &mut taken));
        if problems.is_empty() {
            destinations.extend(destination);
        } else {
            left_out.extend(problems);
        }
    }
    // The host starts its other servers too when one of them cannot be started.
    if !destinations.is_empty() {
        for problem in left_out {
            walk.note(format!("left out: {problem}"));
        }
    } else if left_out.is_empty() {
        walk.fail(
            fields.place(0, key),
            "there is no server in it: add one with a `command`",
        );
    } else {
        for problem in left_out {
            walk.fail(problem.place, problem.message);
        }
    }
    // Other keys belong to the host, and there can be a great deal of them.
    (globals, destinations)
}

/// One server of a host's file, under a name that can be part of a URL. `taken` has the names so
/// far, and whose they are.
fn entry_of_host(
    walk: &Walk<'_>,
    original: String,
    mut node: Node,
    defaults: &Defaults,
    taken: &mut BTreeMap<String, String>,
) -> Option<Destination> {
    let place = destination_place(walk, &original, node.line);
    let name = match name::check(&original) {
        Ok(()) => original.clone(),
        Err(message) => match name::sanitised(&original) {
            Some(name) => {
                walk.note(format!(
                    "{}: destination `{original}` is served as `{name}`",
                    walk.file
                ));
                name
            }
            None => {
                walk.fail(place, message);
                return None;
            }
        },
    };
    if let Some(other) = taken.get(&name) {
        walk.fail(
            place,
            format!("would be served as `{name}`, and so would `{other}`: rename one of them"),
        );
        return None;
    }
    taken.insert(name.clone(), original);
    if let Value::Map(entries) = &mut node.value {
        rename_url(entries);
    }
    entry(walk, &name, node, defaults, Format::Host)
}

/// Reads the other names that hosts have for `url`, such as `serverUrl` of Windsurf.
fn rename_url(entries: &mut [(String, Node)]) {
    if entries.iter().any(|(key, _)| key == "url") {
        return;
    }
    let is_url = |key: &str| URL_KEYS.iter().any(|(known, _)| *known == key);
    if let Some((key, _)) = entries.iter_mut().find(|(key, _)| is_url(key)) {
        *key = "url".to_owned();
    }
}

fn entry(
    walk: &Walk<'_>,
    name: &str,
    node: Node,
    defaults: &Defaults,
    format: Format,
) -> Option<Destination> {
    match node.value {
        Value::Map(entries) => {
            let section = Section::Destination(name.to_owned());
            let fields = Fields::new(walk, Some(section), node.line, entries);
            destination::read(name, fields, defaults, format)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
            let kind = node.value.kind();
            walk.fail(
                destination_place(walk, name, node.line),
                format!("must be a map, not {kind}: write `command: PROGRAM ARGUMENTS` under it"),
            );
            None
        }
    }
}

/// Hosts keep servers that are switched off in the file.
fn is_disabled(node: &Node) -> bool {
    let Value::Map(entries) = &node.value else {
        return false;
    };
    entries
        .iter()
        .any(|(key, node)| match (key.as_str(), &node.value) {
            ("disabled", Value::Bool(disabled)) => *disabled,
            ("enabled", Value::Bool(enabled)) => !*enabled,
            ("disabled", Value::Text(text)) => quantity::truth(text) == Ok(true),
            (_, _) => false,
        })
}

fn destination_place(walk: &Walk<'_>, name: &str, line: u64) -> Place {
    Place::Field {
        file: walk.file.clone(),
        line,
        section: Some(Section::Destination(name.to_owned())),
        field: String::new(),
    }
}
