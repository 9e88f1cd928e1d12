//! One entry of a host's file: what it starts or reaches, in the words of any host.
//!
//! The reader knows no host. Every spelling of a key is understood everywhere, because people copy
//! entries from one host to another. What cannot be used has a reason.

use super::edit::{Change, Step};
use super::plain::Plain;
use super::reference::Phrase;
use super::table::References;
use crate::config::tree::{Node, Value};

/// The keys that hosts have for the address of a remote server, with what each tells of it.
pub(crate) const URL_KEYS: [(&str, Transport); 6] = [
    ("url", Transport::Auto),
    ("serverUrl", Transport::Auto),
    ("httpUrl", Transport::Http),
    ("uri", Transport::Auto),
    ("baseUrl", Transport::Auto),
    ("endpoint", Transport::Auto),
];

/// Keys that are read, or that hold for the host's own view of a server. Others are named.
const KNOWN: [&str; 30] = [
    "command",
    "cmd",
    "args",
    "env",
    "environment",
    "envs",
    "env_vars",
    "cwd",
    "workingDirectory",
    "type",
    "transport",
    "url",
    "serverUrl",
    "httpUrl",
    "uri",
    "baseUrl",
    "endpoint",
    "headers",
    "http_headers",
    "httpHeaders",
    "requestOptions",
    "env_http_headers",
    "bearer_token_env_var",
    "bearerTokenEnvVar",
    "disabled",
    "enabled",
    "name",
    "description",
    "source",
    "oauth",
];

/// How a remote server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Its file does not tell.
    Auto,
    Http,
    Sse,
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Stdio(Stdio),
    Remote(Remote),
    /// It starts Rialto already.
    Rialto {
        is_attached: bool,
    },
    /// It cannot be used, for this reason: a clause whose subject is the entry.
    Unusable(String),
}

/// A server that the host starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stdio {
    /// Program and arguments.
    pub(crate) words: Vec<Phrase>,
    pub(crate) env: Vec<(String, Phrase)>,
    pub(crate) cwd: Option<Phrase>,
    pub(crate) form: CommandForm,
    /// Whether the host runs it in a sandbox of its own.
    pub(crate) is_sandboxed: bool,
    /// Keys that have no counterpart in Rialto.
    pub(crate) left_out: Vec<String>,
}

/// A server that the host reaches by HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) url: Phrase,
    pub(crate) transport: Transport,
    pub(crate) headers: Vec<(String, Phrase)>,
    /// Whether the entry has settings for signing in.
    pub(crate) signs_in: bool,
    pub(crate) left_out: Vec<String>,
}

/// How the command is written, so that it can be replaced in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommandForm {
    /// A program under this key, and `args`.
    Program(&'static str),
    /// One list under this key.
    List(&'static str),
    /// A map `command` with `path` and `args`.
    Nested,
}

/// Reads an entry.
pub(crate) fn read(node: &Node, style: References) -> Entry {
    let Value::Map(fields) = &node.value else {
        return Entry::Unusable(format!("must be a map, not {}", node.value.kind()));
    };
    let fields = Fields(fields);
    if fields.is_disabled() {
        return Entry::Unusable("is switched off there".to_owned());
    }
    match fields.entry(style) {
        Ok(entry) => entry,
        Err(reason) => Entry::Unusable(reason),
    }
}

/// Returns the changes that make the entry at `place` start other words.
pub(crate) fn point_at(place: &[Step], entry: &Node, form: &CommandForm, words: &[String]) -> Vec<Change> {
    let at = |keys: &[&str]| {
        let keys = keys.iter().map(|key| Step::Key((*key).to_owned()));
        place.iter().cloned().chain(keys).collect::<Vec<_>>()
    };
    let change = |keys: &[&str], after: Plain| {
        let mut node = Some(entry);
        for key in keys {
            node = node.and_then(|node| match &node.value {
                Value::Map(entries) => entries
                    .iter()
                    .find(|(known, _)| known == key)
                    .map(|(_, node)| node),
                _ => None,
            });
        }
        Change {
            place: at(keys),
            before: node.map(Plain::of),
            after: Some(after),
        }
    };
    let (program, arguments) = match words.split_first() {
        Some((program, arguments)) => (program.clone(), arguments),
        None => (String::new(), words),
    };
    let arguments = Plain::texts(arguments.iter().cloned());
    match form {
        CommandForm::List(key) => vec![change(&[key], Plain::texts(words.iter().cloned()))],
        CommandForm::Program(key) => vec![change(&[key], Plain::Text(program)), change(&["args"], arguments)],
        CommandForm::Nested => vec![
            change(&["command", "path"], Plain::Text(program)),
            change(&["command", "args"], arguments),
        ],
    }
}

struct Fields<'a>(&'a [(String, Node)]);

impl<'a> Fields<'a> {
    fn get(&self, key: &str) -> Option<&'a Node> {
        let found = self.0.iter().find(|(known, _)| known == key);
        found
            .map(|(_, node)| node)
            .filter(|node| node.value != Value::Null)
    }

    fn text(&self, key: &str) -> Option<String> {
        self.get(key).and_then(scalar)
    }

    fn is_disabled(&self) -> bool {
        let word = |key: &str| self.text(key).map(|text| text.to_ascii_lowercase());
        word("disabled").as_deref() == Some("true") || word("enabled").as_deref() == Some("false")
    }

    fn entry(&self, style: References) -> Result<Entry, String> {
        let kind = match (self.text("type"), self.text("transport")) {
            (Some(word), _) | (None, Some(word)) => Some(kind_of(&word)?),
            (None, None) => None,
        };
        let url = URL_KEYS.iter().find(|(key, _)| self.get(key).is_some());
        let command = ["command", "cmd"].into_iter().find(|key| self.get(key).is_some());
        match (kind, command, url) {
            (Some(Kind::Stdio) | None, Some(key), _) => self.stdio(key, style),
            (Some(Kind::Remote(transport)), _, Some((key, _))) => self.remote(key, transport, style),
            (None, None, Some((key, transport))) => {
                // In the file of Gemini CLI both may stand, and `httpUrl` counts.
                let (key, transport) = match self.get("httpUrl") {
                    Some(_) => ("httpUrl", Transport::Http),
                    None => (*key, *transport),
                };
                self.remote(key, transport, style)
            }
            (Some(Kind::Stdio), None, _) => Err("has no `command`".to_owned()),
            (Some(Kind::Remote(_)), _, None) => Err("has no address (`url`)".to_owned()),
            (None, None, None) => Err("has neither a `command` nor a `url`".to_owned()),
        }
    }

    fn stdio(&self, key: &'static str, style: References) -> Result<Entry, String> {
        if self.get("envFile").is_some() {
            return Err(
                "has an `envFile`, which only the host reads: write its variables under `env`".to_owned(),
            );
        }
        let command = self.get(key).ok_or("has no `command`")?;
        let (mut words, form) = match &command.value {
            Value::List(_) => (texts(command, key)?, CommandForm::List(key)),
            Value::Map(inner) => {
                let inner = Fields(inner);
                let path = inner.text("path").ok_or("has a `command` without a `path`")?;
                let mut words = vec![path];
                if let Some(args) = inner.get("args") {
                    words.extend(texts(args, "args")?);
                }
                (words, CommandForm::Nested)
            }
            _ => {
                let program = scalar(command).ok_or_else(|| format!("has a `{key}` that is no text"))?;
                (vec![program], CommandForm::Program(key))
            }
        };
        if form != CommandForm::Nested
            && let Some(args) = self.get("args")
        {
            words.extend(texts(args, "args")?);
        }
        if words.first().is_none_or(|program| program.trim().is_empty()) {
            return Err("has an empty `command`".to_owned());
        }
        if let Some(is_attached) = starts_rialto(&words) {
            return Ok(Entry::Rialto { is_attached });
        }
        let mut env = Vec::new();
        for key in ["env", "environment", "envs"] {
            env.extend(self.named(key, style)?);
        }
        // Codex passes these on from its own environment.
        if let Some(names) = self.get("env_vars") {
            for name in texts(names, "env_vars")? {
                let own = Phrase::parse(&format!("${{{name}}}"), References::Dollar);
                env.push((name, own));
            }
        }
        let cwd = self.text("cwd").or_else(|| self.text("workingDirectory"));
        Ok(Entry::Stdio(Stdio {
            words: words.iter().map(|word| Phrase::parse(word, style)).collect(),
            env,
            cwd: cwd
                .filter(|cwd| !cwd.is_empty())
                .map(|cwd| Phrase::parse(&cwd, style)),
            form,
            is_sandboxed: self.text("sandboxEnabled").as_deref() == Some("true")
                || matches!(self.get("sandbox").map(|node| &node.value), Some(Value::Map(_))),
            left_out: self.left_out(),
        }))
    }

    fn remote(&self, key: &str, transport: Transport, style: References) -> Result<Entry, String> {
        let url = self.text(key).ok_or("has an address that is no text")?;
        let mut headers = Vec::new();
        for key in ["headers", "http_headers", "httpHeaders"] {
            headers.extend(self.named(key, style)?);
        }
        if let Some(Node {
            value: Value::Map(options),
            ..
        }) = self.get("requestOptions")
        {
            headers.extend(Fields(options).named("headers", style)?);
        }
        let variable = |name: &str| format!("${{{name}}}");
        for (header, name) in self.named("env_http_headers", References::None)? {
            let name = name.literal().unwrap_or_default();
            headers.push((header, Phrase::parse(&variable(name), References::Dollar)));
        }
        let bearer = self
            .text("bearer_token_env_var")
            .or_else(|| self.text("bearerTokenEnvVar"));
        if let Some(name) = bearer {
            let value = format!("Bearer {}", variable(&name));
            headers.push((
                "Authorization".to_owned(),
                Phrase::parse(&value, References::Dollar),
            ));
        }
        let is_map = |key: &str| matches!(self.get(key).map(|node| &node.value), Some(Value::Map(_)));
        Ok(Entry::Remote(Remote {
            url: Phrase::parse(&url, style),
            transport,
            headers,
            signs_in: is_map("oauth") || is_map("auth") || self.text("auth").as_deref() == Some("oauth"),
            left_out: self.left_out(),
        }))
    }

    /// Returns a map of names to texts.
    fn named(&self, key: &str, style: References) -> Result<Vec<(String, Phrase)>, String> {
        let Some(node) = self.get(key) else {
            return Ok(Vec::new());
        };
        let Value::Map(entries) = &node.value else {
            return Err(format!("has `{key}` that is no map"));
        };
        let value = |(name, node): &(String, Node)| {
            let text = scalar(node).ok_or_else(|| format!("has `{key}.{name}` that is no text"))?;
            Ok((name.clone(), Phrase::parse(&text, style)))
        };
        entries.iter().map(value).collect()
    }

    fn left_out(&self) -> Vec<String> {
        let keys = self.0.iter().map(|(key, _)| key.as_str());
        keys.filter(|key| !KNOWN.contains(key))
            .map(str::to_owned)
            .collect()
    }
}

enum Kind {
    Stdio,
    Remote(Transport),
}

/// Returns what a host's word for a kind means.
fn kind_of(word: &str) -> Result<Kind, String> {
    match word.to_ascii_lowercase().replace(['-', '_'], "").as_str() {
        "stdio" | "local" => Ok(Kind::Stdio),
        "http" | "streamablehttp" => Ok(Kind::Remote(Transport::Http)),
        "remote" | "url" => Ok(Kind::Remote(Transport::Auto)),
        "sse" => Ok(Kind::Remote(Transport::Sse)),
        "builtin" | "platform" | "frontend" | "inlinepython" => {
            Err(format!("is built into the host (`{word}`)"))
        }
        _ => Err(format!("has the kind `{word}`, which Rialto does not know")),
    }
}

/// Returns whether a command is Rialto in front of a server, and if so, whether it is `attach`.
fn starts_rialto(words: &[String]) -> Option<bool> {
    let (program, arguments) = words.split_first()?;
    let file = program.rsplit(['/', '\\']).next().unwrap_or(program);
    match arguments.first().map(String::as_str) {
        Some("attach") if file.starts_with("rialto") => Some(true),
        Some("connect") if file.starts_with("rialto") => Some(false),
        Some(_) | None => None,
    }
}

fn scalar(node: &Node) -> Option<String> {
    match &node.value {
        Value::Text(text) | Value::Number(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::List(_) | Value::Map(_) => None,
    }
}

fn texts(node: &Node, key: &str) -> Result<Vec<String>, String> {
    let Value::List(items) = &node.value else {
        return Err(format!("has `{key}` that is no list"));
    };
    let text =
        |item: &Node| scalar(item).ok_or_else(|| format!("has `{key}` with something that is no text"));
    items.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tree;

    fn entry(text: &str) -> Entry {
        read(&tree::load(text).expect(text), References::Dollar)
    }

    fn stdio(text: &str) -> Stdio {
        match entry(text) {
            Entry::Stdio(stdio) => stdio,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn remote(text: &str) -> Remote {
        match entry(text) {
            Entry::Remote(remote) => remote,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn phrase(text: &str) -> Phrase {
        Phrase::parse(text, References::Dollar)
    }

    #[test]
    fn every_way_to_write_a_command_is_understood() {
        for text in [
            r#"{"command": "npx", "args": ["-y", "x"], "env": {"K": "v"}}"#,
            r#"{"type": "stdio", "command": "npx", "args": ["-y", "x"], "env": {"K": "v"}}"#,
            r#"{"type": "local", "command": ["npx", "-y", "x"], "environment": {"K": "v"}}"#,
            r#"{"type": "stdio", "cmd": "npx", "args": ["-y", "x"], "envs": {"K": "v"}}"#,
            r#"{"source": "custom", "command": {"path": "npx", "args": ["-y", "x"]}, "env": {"K": "v"}}"#,
            r#"{"transport": "stdio", "command": "npx", "args": ["-y", "x"], "env": {"K": "v"}}"#,
        ] {
            let found = stdio(text);
            assert_eq!(found.words, ["npx", "-y", "x"].map(phrase), "{text}");
            assert_eq!(found.env, [("K".to_owned(), phrase("v"))], "{text}");
            assert!(found.left_out.is_empty(), "{text}: {:?}", found.left_out);
        }
    }

    #[test]
    fn every_way_to_write_an_address_is_understood() {
        for (text, transport) in [
            (r#"{"url": "https://a/mcp"}"#, Transport::Auto),
            (r#"{"type": "http", "url": "https://a/mcp"}"#, Transport::Http),
            (
                r#"{"type": "streamableHttp", "url": "https://a/mcp"}"#,
                Transport::Http,
            ),
            (r#"{"type": "sse", "url": "https://a/mcp"}"#, Transport::Sse),
            (r#"{"type": "remote", "url": "https://a/mcp"}"#, Transport::Auto),
            (r#"{"serverUrl": "https://a/mcp"}"#, Transport::Auto),
            (
                r#"{"url": "https://old", "httpUrl": "https://a/mcp"}"#,
                Transport::Http,
            ),
            (
                r#"{"type": "streamable_http", "uri": "https://a/mcp"}"#,
                Transport::Http,
            ),
            (r#"{"transport": "sse", "url": "https://a/mcp"}"#, Transport::Sse),
        ] {
            let found = remote(text);
            assert_eq!(
                (found.url, found.transport),
                (phrase("https://a/mcp"), transport),
                "{text}"
            );
        }
    }

    #[test]
    fn headers_come_from_every_place() {
        for text in [
            r#"{"url": "https://a", "headers": {"Authorization": "Bearer ${T}"}}"#,
            r#"{"url": "https://a", "http_headers": {"Authorization": "Bearer ${T}"}}"#,
            r#"{"url": "https://a", "bearer_token_env_var": "T"}"#,
            r#"{"url": "https://a", "requestOptions": {"headers": {"Authorization": "Bearer ${T}"}}}"#,
        ] {
            let headers = remote(text).headers;
            assert_eq!(
                headers,
                [("Authorization".to_owned(), phrase("Bearer ${T}"))],
                "{text}"
            );
        }
        let found =
            remote(r#"{"url": "https://a", "env_http_headers": {"X-Key": "KEY"}, "oauth": {"scopes": []}}"#);
        assert_eq!(found.headers, [("X-Key".to_owned(), phrase("${KEY}"))]);
        assert!(found.signs_in);
    }

    #[test]
    fn entries_that_cannot_be_used_tell_why() {
        for (text, part) in [
            ("[]", "must be a map, not a list"),
            (r#"{"command": "x", "disabled": true}"#, "switched off"),
            (r#"{"command": "x", "enabled": false}"#, "switched off"),
            ("{}", "neither a `command` nor a `url`"),
            (r#"{"type": "ws", "url": "wss://a"}"#, "`ws`"),
            (
                r#"{"type": "builtin", "name": "developer"}"#,
                "built into the host",
            ),
            (r#"{"type": "http"}"#, "no address"),
            (r#"{"type": "stdio", "url": "https://a"}"#, "no `command`"),
            (r#"{"command": ""}"#, "empty `command`"),
            (r#"{"command": "x", "args": "y"}"#, "`args` that is no list"),
            (r#"{"command": "x", "env": {"K": {}}}"#, "`env.K`"),
            (r#"{"command": "x", "envFile": ".env"}"#, "envFile"),
        ] {
            let Entry::Unusable(reason) = entry(text) else {
                panic!("{text} is used");
            };
            assert!(reason.contains(part), "{text}: {reason}");
        }
    }

    #[test]
    fn entries_of_rialto_are_known() {
        for (text, is_attached) in [
            (r#"{"command": "rialto", "args": ["attach", "a"]}"#, true),
            (r#"{"command": ["/opt/bin/rialto", "attach", "a"]}"#, true),
            (
                r#"{"command": "C:\\x\\rialto.exe", "args": ["connect", "https://a"]}"#,
                false,
            ),
        ] {
            assert_eq!(entry(text), Entry::Rialto { is_attached }, "{text}");
        }
    }

    #[test]
    fn servers_in_a_sandbox_of_the_host_are_known() {
        for (text, expected) in [
            (r#"{"command": "x", "sandboxEnabled": true}"#, true),
            (r#"{"command": "x", "sandbox": {"network": {}}}"#, true),
            (r#"{"command": "x", "sandboxEnabled": false}"#, false),
        ] {
            assert_eq!(stdio(text).is_sandboxed, expected, "{text}");
        }
    }

    #[test]
    fn keys_without_a_counterpart_are_named() {
        let found = stdio(r#"{"command": "x", "timeout": 5, "autoApprove": []}"#);
        assert_eq!(found.left_out, ["timeout", "autoApprove"]);
    }

    #[test]
    fn only_the_command_of_an_entry_changes() {
        let words = ["rialto".to_owned(), "attach".to_owned(), "a".to_owned()];
        for (text, places) in [
            (r#"{"command": "x", "args": ["y"]}"#, vec!["s.command", "s.args"]),
            (r#"{"command": ["x", "y"]}"#, vec!["s.command"]),
            (r#"{"cmd": "x"}"#, vec!["s.cmd", "s.args"]),
            (
                r#"{"command": {"path": "x"}}"#,
                vec!["s.command.path", "s.command.args"],
            ),
        ] {
            let node = tree::load(text).expect(text);
            let place = [Step::Key("s".into())];
            let changes = point_at(&place, &node, &stdio(text).form, &words);
            let changed: Vec<String> = changes.iter().map(|change| Step::path(&change.place)).collect();
            assert_eq!(changed, places, "{text}");
        }
    }
}
