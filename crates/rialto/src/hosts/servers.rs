//! All entries of a host's file, each with its place.

use std::path::{Path, PathBuf};

use super::document::Document;
use super::edit::Step;
use super::entry::{self, Entry};
use super::table::{Host, Listing};
use crate::config::tree::{Node, Value};

/// An entry of a file.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) name: String,
    /// Where it is in the file.
    pub(crate) place: Vec<Step>,
    pub(crate) node: Node,
    /// The project it is for, if it is not for all.
    pub(crate) project: Option<PathBuf>,
    pub(crate) entry: Entry,
}

/// Returns the entries of a file. `project` is the directory whose file it is.
pub(crate) fn all(host: &Host, document: &Document, project: Option<&Path>) -> Vec<Server> {
    let mut servers = Vec::new();
    let root = &document.root;
    if let Some(keys) = existing_keys(host, root) {
        list(host, root, &keys, project, &mut servers);
    }
    // `~/.claude.json` has the servers that Claude Code starts in one project only.
    if let Some(Value::Map(projects)) = get(root, "projects").map(|node| &node.value) {
        for (directory, node) in projects {
            let Some(keys) = existing_keys(host, node) else {
                continue;
            };
            let mut inner = Vec::new();
            list(host, node, &keys, Some(Path::new(directory)), &mut inner);
            let above = [Step::Key("projects".into()), Step::Key(directory.clone())];
            for server in &mut inner {
                server.place.splice(0..0, above.iter().cloned());
            }
            servers.extend(inner);
        }
    }
    servers
}

/// Returns the path of keys under which a file has its servers.
pub(crate) fn keys_of(host: &Host, root: &Node) -> Vec<&'static str> {
    existing_keys(host, root).unwrap_or_else(|| host.keys.last().map_or(Vec::new(), |keys| keys.to_vec()))
}

/// Returns the keys of servers that a file has, although its host has others.
pub(crate) fn foreign_key(host: &Host, root: &Node) -> Option<&'static str> {
    const KEYS: [&str; 5] = ["mcpServers", "servers", "context_servers", "mcp_servers", "mcp"];
    let is_own = |key: &str| host.keys.iter().any(|keys| keys.first() == Some(&key));
    let has = |key: &str| {
        get(root, key).is_some_and(|node| match &node.value {
            Value::Map(entries) => entries.iter().any(|(_, node)| is_entry(node)),
            _ => false,
        })
    };
    KEYS.into_iter().find(|key| !is_own(key) && has(key))
}

fn existing_keys(host: &Host, root: &Node) -> Option<Vec<&'static str>> {
    let exists = |keys: &&&'static [&'static str]| {
        let found = keys.iter().try_fold(root, |node, key| get(node, key));
        // A server may have the name `servers`.
        found.is_some_and(|node| node.value != Value::Null && (keys.len() == 1 || !is_entry(node)))
    };
    host.keys.iter().find(exists).map(|keys| keys.to_vec())
}

fn is_entry(node: &Node) -> bool {
    ["command", "cmd", "url", "httpUrl", "serverUrl", "uri"]
        .iter()
        .any(|key| get(node, key).is_some_and(|node| !matches!(node.value, Value::Map(_))))
}

fn get<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    match &node.value {
        Value::Map(entries) => entries
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, node)| node),
        _ => None,
    }
}

fn list(host: &Host, root: &Node, keys: &[&str], project: Option<&Path>, servers: &mut Vec<Server>) {
    let Some(found) = keys.iter().try_fold(root, |node, key| get(node, key)) else {
        return;
    };
    let above: Vec<Step> = keys.iter().map(|key| Step::Key((*key).to_owned())).collect();
    let mut add = |name: &str, step: Step, node: &Node| {
        let mut place = above.clone();
        place.push(step);
        servers.push(Server {
            name: name.to_owned(),
            place,
            node: node.clone(),
            project: project.map(Path::to_owned),
            entry: entry::read(node, host.references),
        });
    };
    match (&found.value, host.listing) {
        (Value::Map(entries), Listing::ByName | Listing::Named) => {
            for (name, node) in entries {
                add(name, Step::Key(name.clone()), node);
            }
        }
        (Value::List(items), Listing::ByName | Listing::Named) => {
            for item in items {
                let name = match get(item, "name").map(|node| &node.value) {
                    Some(Value::Text(name)) => name.as_str(),
                    _ => continue,
                };
                add(name, Step::Named(name.to_owned()), item);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::document;
    use crate::hosts::table::{self, Format};

    fn found(host: &str, text: &str, format: Format) -> Vec<(String, String, Option<PathBuf>)> {
        let host = table::named(host).expect("a host");
        let document = document::read(text, format).expect(text);
        let servers = all(host, &document, None);
        servers
            .into_iter()
            .map(|server| (server.name, Step::path(&server.place), server.project))
            .collect()
    }

    #[test]
    fn projects_of_claude_code_are_read() {
        let text = r#"{ "numStartups": 3, "mcpServers": { "a": { "command": "x" } },
            "projects": { "/code/app": { "mcpServers": { "b": { "command": "y" } } }, "/code/other": {} } }"#;
        assert_eq!(
            found("claude-code", text, Format::Json),
            [
                ("a".into(), "mcpServers.a".into(), None),
                (
                    "b".into(),
                    "projects./code/app.mcpServers.b".into(),
                    Some("/code/app".into())
                ),
            ]
        );
    }

    #[test]
    fn opencode_has_its_servers_under_one_key_or_two() {
        for (text, place) in [
            (r#"{"mcp": {"a": {"command": ["x"]}}}"#, "mcp.a"),
            (
                r#"{"mcp": {"servers": {"a": {"command": ["x"]}}}}"#,
                "mcp.servers.a",
            ),
            (r#"{"mcp": {"servers": {"command": ["x"]}}}"#, "mcp.servers"),
        ] {
            let found = found("opencode", text, Format::Json);
            assert_eq!(found[0].1, place, "{text}");
            assert_eq!(found.len(), 1);
        }
    }

    #[test]
    fn lists_have_their_names_inside() {
        let text = "[[mcp_servers]]\nname = \"a\"\ncommand = \"x\"\n";
        assert_eq!(found("vibe", text, Format::Toml)[0].1, "mcp_servers[a]");
        let text = "mcpServers:\n  - name: b\n    command: x\n  - 5\n";
        assert_eq!(found("continue", text, Format::Yaml)[0].1, "mcpServers[b]");
    }

    #[test]
    fn servers_under_the_key_of_another_host_are_noticed() {
        let host = table::named("vscode").expect("a host");
        let document =
            document::read(r#"{"mcpServers": {"a": {"command": "x"}}}"#, Format::Json).expect("read");
        assert!(all(host, &document, None).is_empty());
        assert_eq!(foreign_key(host, &document.root), Some("mcpServers"));
        let zed = table::named("zed").expect("a host");
        let settings = document::read(r#"{"servers": {"a": {"name": "b"}}}"#, Format::Json).expect("read");
        assert_eq!(foreign_key(zed, &settings.root), None);
    }
}
