//! Entries as a host writes them.

use super::edit::Step;
use super::entry::Transport;
use super::plain::Plain;
use super::table::{CommandShape, Fixed, Format, Host, Listing, RemoteShape};

/// A remote server, as an entry shall have it.
#[derive(Debug, Clone)]
pub(crate) struct Address<'a> {
    pub(crate) url: &'a str,
    pub(crate) transport: Transport,
    pub(crate) headers: &'a [(String, String)],
}

/// Returns the entry of a server that the host starts.
pub(crate) fn stdio(host: &Host, name: &str, words: &[String], env: &[(String, String)]) -> Plain {
    let shape = host.stdio;
    let mut entry = named(host, name);
    entry.extend(
        shape
            .kind
            .map(|(key, word)| (key.to_owned(), Plain::Text(word.to_owned()))),
    );
    // Zed wants to know first where an entry is from.
    entry.extend(
        shape
            .more
            .iter()
            .filter(|(key, _)| *key == "source")
            .map(|more| fixed(more, name)),
    );
    match shape.command {
        CommandShape::List => entry.push(("command".to_owned(), Plain::texts(words.iter().cloned()))),
        CommandShape::Program(key) => {
            let program = words.first().cloned().unwrap_or_default();
            entry.push((key.to_owned(), Plain::Text(program)));
            let arguments = words.iter().skip(1).cloned();
            entry.push(("args".to_owned(), Plain::texts(arguments)));
        }
    }
    if !env.is_empty() {
        entry.push((shape.env.to_owned(), texts_by_name(env)));
    }
    entry.extend(
        shape
            .more
            .iter()
            .filter(|(key, _)| *key != "source")
            .map(|more| fixed(more, name)),
    );
    Plain::Map(entry)
}

/// Returns the entry of a remote server, or `None` where the host's file takes none.
pub(crate) fn remote(host: &Host, name: &str, address: &Address<'_>) -> Option<Plain> {
    let shape: RemoteShape = host.remote?;
    let mut entry = named(host, name);
    entry.extend(
        shape
            .more
            .iter()
            .filter(|(key, _)| *key == "source")
            .map(|more| fixed(more, name)),
    );
    let (url, kind) = match address.transport {
        Transport::Sse => (shape.sse_url, shape.kind.map(|(key, _, word)| (key, word))),
        Transport::Auto | Transport::Http => (shape.url, shape.kind.map(|(key, word, _)| (key, word))),
    };
    entry.extend(kind.map(|(key, word)| (key.to_owned(), Plain::Text(word.to_owned()))));
    entry.push((url.to_owned(), Plain::Text(address.url.to_owned())));
    if let Some((first, inner)) = shape
        .headers
        .split_first()
        .filter(|_| !address.headers.is_empty())
    {
        let mut value = texts_by_name(address.headers);
        for key in inner.iter().rev() {
            value = Plain::Map(vec![((*key).to_owned(), value)]);
        }
        entry.push(((*first).to_owned(), value));
    }
    entry.extend(
        shape
            .more
            .iter()
            .filter(|(key, _)| *key != "source")
            .map(|more| fixed(more, name)),
    );
    Some(Plain::Map(entry))
}

/// Returns the last step to the entry of this name.
pub(crate) fn step(host: &Host, name: &str) -> Step {
    match host.listing {
        Listing::ByName => Step::Key(name.to_owned()),
        Listing::Named => Step::Named(name.to_owned()),
    }
}

/// Returns the lines to paste into a host's file, under its first usual key.
pub(crate) fn pasted(host: &Host, entries: &[(String, Plain)]) -> String {
    let keys = host.keys.last().copied().unwrap_or_default();
    match host.format {
        Format::Json => format!("{}\n", under(keys, listed(host, entries)).to_pretty_json()),
        Format::Yaml => format!("{}\n", under(keys, listed(host, entries)).to_yaml(0)),
        Format::Toml => entries
            .iter()
            .map(|(name, entry)| toml_table(host, keys, name, entry))
            .collect::<Vec<_>>()
            .join("\n"),
    }
}

fn under(keys: &[&str], value: Plain) -> Plain {
    keys.iter()
        .rev()
        .fold(value, |value, key| Plain::Map(vec![((*key).to_owned(), value)]))
}

fn listed(host: &Host, entries: &[(String, Plain)]) -> Plain {
    match host.listing {
        Listing::ByName => Plain::Map(entries.to_vec()),
        Listing::Named => Plain::List(entries.iter().map(|(_, entry)| entry.clone()).collect()),
    }
}

fn toml_table(host: &Host, keys: &[&str], name: &str, entry: &Plain) -> String {
    let place: Vec<Step> = keys
        .iter()
        .map(|key| Step::Key((*key).to_owned()))
        .chain([step(host, name)])
        .collect();
    let change = super::edit::Change {
        place,
        before: None,
        after: Some(entry.clone()),
    };
    let text = super::edit::apply("", Format::Toml, &[change]).unwrap_or_default();
    text.trim_start().to_owned()
}

/// Entries of a list have their name inside.
fn named(host: &Host, name: &str) -> Vec<(String, Plain)> {
    match host.listing {
        Listing::Named => vec![("name".to_owned(), Plain::Text(name.to_owned()))],
        Listing::ByName => Vec::new(),
    }
}

fn fixed((key, value): &(&'static str, Fixed), name: &str) -> (String, Plain) {
    let value = match value {
        Fixed::Bool(flag) => Plain::Bool(*flag),
        Fixed::Number(number) => Plain::Number((*number).to_owned()),
        Fixed::Text(text) => Plain::Text((*text).to_owned()),
        Fixed::One(text) => Plain::texts([*text]),
        Fixed::Name => Plain::Text(name.to_owned()),
    };
    ((*key).to_owned(), value)
}

fn texts_by_name(values: &[(String, String)]) -> Plain {
    Plain::Map(
        values
            .iter()
            .map(|(name, value)| (name.clone(), Plain::Text(value.clone())))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::table::{self, HOSTS};
    use crate::hosts::{document, entry, servers};

    fn words() -> Vec<String> {
        ["npx", "-y", "@scope/server"].map(str::to_owned).to_vec()
    }

    fn env() -> Vec<(String, String)> {
        vec![("LOG".to_owned(), "debug".to_owned())]
    }

    #[test]
    fn each_host_reads_back_what_is_written_for_it() {
        for host in HOSTS {
            let entry = stdio(host, "everything", &words(), &env());
            let text = pasted(host, &[("everything".to_owned(), entry)]);
            let document =
                document::read(&text, host.format).unwrap_or_else(|error| panic!("{text}: {error:?}"));
            let found = servers::all(host, &document, None);
            let [server] = found.as_slice() else {
                panic!("{}: {found:?}", host.id);
            };
            assert_eq!(server.name, "everything", "{}", host.id);
            let entry::Entry::Stdio(found) = &server.entry else {
                panic!("{}: {:?}", host.id, server.entry);
            };
            let literal: Vec<_> = found.words.iter().filter_map(|word| word.literal()).collect();
            assert_eq!(literal, words(), "{}", host.id);
            assert_eq!(found.env[0].1.literal(), Some("debug"), "{}", host.id);
        }
    }

    #[test]
    fn each_host_reads_back_remote_servers_of_both_transports() {
        let headers = [("Authorization".to_owned(), "Bearer x".to_owned())];
        for host in HOSTS {
            for transport in [Transport::Http, Transport::Sse] {
                let address = Address {
                    url: "https://mcp.example.com/mcp",
                    transport,
                    headers: &headers,
                };
                let Some(entry) = remote(host, "example", &address) else {
                    assert_eq!(host.id, "claude-desktop");
                    continue;
                };
                let text = pasted(host, &[("example".to_owned(), entry)]);
                let document = document::read(&text, host.format).expect(&text);
                let found = servers::all(host, &document, None);
                let entry::Entry::Remote(found) = &found[0].entry else {
                    panic!("{}: {found:?}", host.id);
                };
                assert_eq!(found.url.literal(), Some("https://mcp.example.com/mcp"));
                assert_eq!(found.headers.len(), 1, "{}: {text}", host.id);
            }
        }
    }

    #[test]
    fn entries_have_the_form_of_their_host() {
        let entry = |id: &str| {
            let host = table::named(id).expect(id);
            pasted(host, &[("a".to_owned(), stdio(host, "a", &words(), &env()))])
        };
        assert_eq!(
            entry("opencode"),
            "{\n  \"mcp\": {\n    \"a\": {\n      \"type\": \"local\",\n      \"command\": [\"npx\", \"-y\", \"@scope/server\"],\n      \"environment\": {\n        \"LOG\": \"debug\"\n      },\n      \"enabled\": true\n    }\n  }\n}\n"
        );
        assert_eq!(
            entry("codex"),
            "[mcp_servers.a]\ncommand = \"npx\"\nargs = [\"-y\", \"@scope/server\"]\nenv = { LOG = \"debug\" }\n"
        );
        assert_eq!(
            entry("goose"),
            "extensions:\n  a:\n    type: \"stdio\"\n    cmd: \"npx\"\n    args: [\"-y\", \"@scope/server\"]\n    envs:\n      LOG: \"debug\"\n    name: \"a\"\n    enabled: true\n    timeout: 300\n"
        );
        assert!(entry("zed").contains("\"source\": \"custom\""));
        assert!(entry("vibe").starts_with("[[mcp_servers]]\nname = \"a\"\ntransport = \"stdio\"\n"));
    }
}
