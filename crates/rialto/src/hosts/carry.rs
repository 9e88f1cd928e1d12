//! A host's server as a destination: what can be carried over, and where secrets go.
//!
//! No value that may be a secret stays in the text of a destination. It becomes a reference: to the
//! secrets file, to a variable, or to what `rialto attach` is given by the host.

use std::path::{Path, PathBuf};

use super::entry::{Remote, Stdio, Transport};
use super::plain::Plain;
use super::reference::{Carry, Phrase, escaped};
use super::secret;
use crate::config::name;

/// What the destination is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Rialto gets all values from its own file.
    Import,
    /// The host goes on to set the entry's variables, for `rialto attach`.
    Attach,
}

/// Where literal secrets are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecretsTo {
    /// The secrets file, as `${secret:NAME}`.
    File,
    /// Nowhere: a variable stands for each.
    Variables,
}

/// A text of a destination, which may end with a literal secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    /// With references as `destinations.yml` has them.
    text: String,
    secret: Option<Hidden>,
}

/// A literal secret, and a name for it.
#[derive(Clone, PartialEq, Eq)]
struct Hidden {
    name: String,
    value: String,
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hidden").field(&self.name).finish()
    }
}

/// A server, ready to become a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Stdio {
        words: Vec<Word>,
        env: Vec<(String, Word)>,
        cwd: Option<String>,
    },
    Remote {
        url: Word,
        transport: Transport,
        headers: Vec<(String, Word)>,
        signs_in: bool,
    },
}

/// A destination as it is written, and what goes into the secrets file for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rendered {
    pub(crate) entry: Plain,
    pub(crate) secrets: Vec<SecretValue>,
}

/// One line of the secrets file, or a variable that must be set.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SecretValue {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl std::fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SecretValue").field(&self.name).finish()
    }
}

/// Returns a stdio server as a destination, or why it cannot be one.
pub(crate) fn stdio(found: &Stdio, carry: Carry<'_>, purpose: Purpose) -> Result<Target, String> {
    if found.is_sandboxed && purpose == Purpose::Attach {
        return Err("runs in a sandbox of the host, which it would leave".to_owned());
    }
    let mut words = Vec::new();
    let mut before: Option<&str> = None;
    for phrase in &found.words {
        let word = match phrase.literal() {
            Some(literal) => {
                let hidden = secret::in_argument(before, literal);
                let flag = before.replace(literal);
                match hidden {
                    Some((start, value)) => Word::hiding(start, hint(flag, literal), value),
                    None => Word::plain(escaped(literal)),
                }
            }
            None => {
                before = None;
                Word::plain(phrase.carried(carry)?)
            }
        };
        words.push(word);
    }
    let mut env = Vec::new();
    for (key, phrase) in &found.env {
        if !is_variable(key) {
            return Err(format!(
                "has the variable `{key}`, whose name no program can be given"
            ));
        }
        env.push((key.clone(), variable(key, phrase, carry, purpose)?));
    }
    Ok(Target::Stdio {
        words,
        env,
        cwd: directory(found.cwd.as_ref(), carry)?,
    })
}

/// Returns a remote server as a destination, or why it cannot be one.
pub(crate) fn remote(found: &Remote, carry: Carry<'_>) -> Result<Target, String> {
    let url = match found.url.literal() {
        Some(literal) if secret::is_secret("url", literal) => Word::hiding("", "URL".to_owned(), literal),
        Some(_) | None => Word::plain(found.url.carried(carry)?),
    };
    let header = |(name, phrase): &(String, Phrase)| {
        let word = match phrase.literal() {
            Some(literal) if secret::is_secret(name, literal) => Word::hiding("", upper(name), literal),
            Some(_) | None => Word::plain(phrase.carried(carry)?),
        };
        Ok::<_, String>((name.clone(), word))
    };
    Ok(Target::Remote {
        url,
        transport: found.transport,
        headers: found.headers.iter().map(header).collect::<Result<_, _>>()?,
        signs_in: found.signs_in,
    })
}

fn variable(key: &str, phrase: &Phrase, carry: Carry<'_>, purpose: Purpose) -> Result<Word, String> {
    // `attach` hands the entry's own value over. Without one the variable is empty.
    let handed_over = || Word::plain(format!("${{{key}:-}}"));
    match (phrase.literal(), purpose) {
        (Some(literal), _) if !secret::is_secret(key, literal) => Ok(Word::plain(escaped(literal))),
        (Some(literal), Purpose::Import) => Ok(Word::hiding("", key.to_owned(), literal)),
        (None, Purpose::Import) => phrase.carried(carry).map(Word::plain),
        (Some(_) | None, Purpose::Attach) => Ok(handed_over()),
    }
}

/// Returns the working directory: the entry's own, or the project's.
fn directory(cwd: Option<&Phrase>, carry: Carry<'_>) -> Result<Option<String>, String> {
    let project = || carry.project.map(|project| escaped(&project.to_string_lossy()));
    let Some(cwd) = cwd else {
        return Ok(project());
    };
    let text = cwd.carried(carry)?;
    if text.starts_with(['/', '$']) || Path::new(&text).is_absolute() {
        return Ok(Some(text));
    }
    let base: Option<PathBuf> = match text.strip_prefix('~') {
        Some(below) => carry.home.map(|home| home.join(below.trim_start_matches('/'))),
        None => carry.project.map(|project| project.join(&text)),
    };
    match base {
        Some(base) => Ok(Some(base.to_string_lossy().into_owned())),
        None => Err(format!(
            "has the working directory `{text}`, which is relative to the host's"
        )),
    }
}

impl Word {
    fn plain(text: String) -> Self {
        Self { text, secret: None }
    }

    fn hiding(start: &str, name: String, value: &str) -> Self {
        Self {
            text: escaped(start),
            secret: Some(Hidden {
                name,
                value: value.to_owned(),
            }),
        }
    }

    fn rendered(&self, destination: &str, to: SecretsTo, secrets: &mut Vec<SecretValue>) -> String {
        let Some(hidden) = &self.secret else {
            return self.text.clone();
        };
        let name = match to {
            SecretsTo::File => format!("{destination}.{}", hidden.name),
            SecretsTo::Variables => hidden.name.clone(),
        };
        // Two arguments of one server may suggest the same name.
        let is_other = |name: &str| {
            secrets
                .iter()
                .any(|known| known.name == name && known.value != hidden.value)
        };
        let mut free = name.clone();
        let mut number = 2;
        while is_other(&free) {
            free = format!("{name}_{number}");
            number += 1;
        }
        if !secrets.iter().any(|known| known.name == free) {
            secrets.push(SecretValue {
                name: free.clone(),
                value: hidden.value.clone(),
            });
        }
        match to {
            SecretsTo::File => format!("{}${{secret:{free}}}", self.text),
            SecretsTo::Variables => format!("{}${{{free}}}", self.text),
        }
    }
}

impl Target {
    /// Returns it under a name, with its secrets elsewhere.
    pub(crate) fn rendered(&self, destination: &str, purpose: Purpose, to: SecretsTo) -> Rendered {
        let mut secrets = Vec::new();
        let mut entry: Vec<(String, Plain)> = Vec::new();
        let mut put = |key: &str, value: Plain| entry.push((key.to_owned(), value));
        match self {
            Self::Stdio { words, env, cwd } => {
                let words: Vec<String> = words
                    .iter()
                    .map(|word| word.rendered(destination, to, &mut secrets))
                    .collect();
                put("command", Plain::texts(words));
                let env: Vec<(String, Plain)> = env
                    .iter()
                    .map(|(key, word)| {
                        (
                            key.clone(),
                            Plain::Text(word.rendered(destination, to, &mut secrets)),
                        )
                    })
                    .collect();
                if !env.is_empty() {
                    put("env", Plain::Map(env));
                }
                if let Some(cwd) = cwd {
                    put("cwd", Plain::Text(cwd.clone()));
                }
                if purpose == Purpose::Attach {
                    put("start", Plain::Text("lazy".to_owned()));
                    put("idle_stop", Plain::Text("10m".to_owned()));
                }
            }
            Self::Remote {
                url,
                transport,
                headers,
                signs_in,
            } => {
                let word = match transport {
                    Transport::Auto => None,
                    Transport::Http => Some("streamable_http"),
                    Transport::Sse => Some("sse"),
                };
                if let Some(word) = word {
                    put("type", Plain::Text(word.to_owned()));
                }
                put("url", Plain::Text(url.rendered(destination, to, &mut secrets)));
                let headers: Vec<(String, Plain)> = headers
                    .iter()
                    .map(|(name, word)| {
                        (
                            name.clone(),
                            Plain::Text(word.rendered(destination, to, &mut secrets)),
                        )
                    })
                    .collect();
                if !headers.is_empty() {
                    put("headers", Plain::Map(headers));
                }
                if *signs_in {
                    put("auth", Plain::Text("oauth".to_owned()));
                }
            }
        }
        Rendered {
            entry: Plain::Map(entry),
            secrets,
        }
    }

    /// Returns whether two mean the same server. The order of variables does not matter.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let key = |target: &Self| {
            let rendered = target.rendered("x", Purpose::Import, SecretsTo::File);
            let mut secrets: Vec<(String, String)> = rendered
                .secrets
                .into_iter()
                .map(|secret| (secret.name, secret.value))
                .collect();
            secrets.sort();
            (rendered.entry, secrets)
        };
        let ((one, one_secrets), (two, two_secrets)) = (key(self), key(other));
        one.same(&two) && one_secrets == two_secrets
    }
}

/// Returns a name for the secret in an argument: that of its flag or variable.
fn hint(before: Option<&str>, argument: &str) -> String {
    let own = argument.split_once(['=', ':']).map(|(name, _)| name);
    let flag = before.filter(|before| before.starts_with('-'));
    let name = own
        .filter(|name| !name.is_empty() && name.len() < 64 && !name.contains(['/', ' ']))
        .filter(|name| !argument[name.len()..].starts_with("://"))
        .or(flag)
        .unwrap_or("ARGUMENT");
    upper(name)
}

fn upper(name: &str) -> String {
    let name: String = name
        .trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    match name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        true => name,
        false => format!("VALUE_{name}"),
    }
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns a name for a destination from the host's name for a server.
pub(crate) fn destination_name(text: &str) -> String {
    name::sanitised(text).unwrap_or_else(|| "server".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tree;
    use crate::hosts::entry::{self, Entry};
    use crate::hosts::table::References;

    fn target(text: &str, purpose: Purpose, project: Option<&Path>) -> Result<Target, String> {
        let carry = Carry {
            project,
            home: Some(Path::new("/home/me")),
        };
        match entry::read(&tree::load(text).expect(text), References::Dollar) {
            Entry::Stdio(found) => stdio(&found, carry, purpose),
            Entry::Remote(found) => remote(&found, carry),
            other => panic!("{text}: {other:?}"),
        }
    }

    fn rendered(text: &str, purpose: Purpose, to: SecretsTo) -> (String, Vec<String>) {
        let rendered = target(text, purpose, None)
            .expect(text)
            .rendered("github", purpose, to);
        let secrets = rendered
            .secrets
            .iter()
            .map(|secret| format!("{}={}", secret.name, secret.value));
        (rendered.entry.to_json(), secrets.collect())
    }

    const GITHUB: &str = r#"{"command": "npx", "args": ["-y", "github", "--api-key=abc"],
        "env": {"GITHUB_TOKEN": "geheim", "LOG": "debug", "HOST": "${HOST}"}}"#;

    #[test]
    fn secrets_of_an_import_go_to_the_secrets_file_or_to_variables() {
        let (entry, secrets) = rendered(GITHUB, Purpose::Import, SecretsTo::File);
        assert_eq!(
            entry,
            r#"{"command": ["npx", "-y", "github", "--api-key=${secret:github.API_KEY}"],"env": {"GITHUB_TOKEN": "${secret:github.GITHUB_TOKEN}","LOG": "debug","HOST": "${HOST}"}}"#
        );
        assert_eq!(secrets, ["github.API_KEY=abc", "github.GITHUB_TOKEN=geheim"]);
        let (entry, secrets) = rendered(GITHUB, Purpose::Import, SecretsTo::Variables);
        assert!(entry.contains(r#""GITHUB_TOKEN": "${GITHUB_TOKEN}""#), "{entry}");
        assert!(entry.contains("--api-key=${API_KEY}"), "{entry}");
        assert_eq!(secrets.len(), 2);
    }

    #[test]
    fn variables_of_an_adopted_entry_stay_with_the_host() {
        let (entry, secrets) = rendered(GITHUB, Purpose::Attach, SecretsTo::File);
        assert_eq!(
            entry,
            r#"{"command": ["npx", "-y", "github", "--api-key=${secret:github.API_KEY}"],"env": {"GITHUB_TOKEN": "${GITHUB_TOKEN:-}","LOG": "debug","HOST": "${HOST:-}"},"start": "lazy","idle_stop": "10m"}"#
        );
        assert_eq!(secrets, ["github.API_KEY=abc"]);
    }

    #[test]
    fn what_only_the_host_knows_may_stand_in_a_variable_of_an_adopted_entry() {
        let text = r#"{"command": "x", "env": {"KEY": "${input:key}"}}"#;
        assert!(target(text, Purpose::Attach, None).is_ok());
        let reason = target(text, Purpose::Import, None).expect_err("asks");
        assert!(reason.contains("${input:key}"), "{reason}");
        let text = r#"{"command": "x", "args": ["${workspaceFolder}"]}"#;
        assert!(
            target(text, Purpose::Attach, None)
                .expect_err("a folder")
                .contains("workspaceFolder")
        );
        assert!(target(text, Purpose::Attach, Some(Path::new("/code/app"))).is_ok());
    }

    #[test]
    fn a_server_does_not_leave_its_sandbox() {
        let text = r#"{"command": "x", "sandboxEnabled": true}"#;
        assert!(
            target(text, Purpose::Attach, None)
                .expect_err("it stays")
                .contains("sandbox")
        );
        assert!(target(text, Purpose::Import, None).is_ok());
    }

    #[test]
    fn servers_of_a_project_start_in_its_directory() {
        let project = Some(Path::new("/code/app"));
        for (text, cwd) in [
            (r#"{"command": "x"}"#, "/code/app"),
            (r#"{"command": "x", "cwd": "inner"}"#, "/code/app/inner"),
            (r#"{"command": "x", "cwd": "/srv"}"#, "/srv"),
            (r#"{"command": "x", "cwd": "~/a"}"#, "/home/me/a"),
        ] {
            let Ok(Target::Stdio { cwd: found, .. }) = target(text, Purpose::Import, project) else {
                panic!("{text}");
            };
            assert_eq!(found.as_deref(), Some(cwd), "{text}");
        }
        let relative = target(r#"{"command": "x", "cwd": "inner"}"#, Purpose::Import, None);
        assert!(relative.expect_err("relative").contains("`inner`"));
    }

    #[test]
    fn remote_servers_keep_address_transport_and_headers() {
        let (entry, secrets) = rendered(
            r#"{"type": "sse", "url": "https://a/sse", "headers": {"Authorization": "Bearer geheim", "X-Org": "me"}, "oauth": {}}"#,
            Purpose::Import,
            SecretsTo::File,
        );
        assert_eq!(
            entry,
            r#"{"type": "sse","url": "https://a/sse","headers": {"Authorization": "${secret:github.AUTHORIZATION}","X-Org": "me"},"auth": "oauth"}"#
        );
        assert_eq!(secrets, ["github.AUTHORIZATION=Bearer geheim"]);
    }

    #[test]
    fn equal_servers_are_known_in_any_order_of_their_variables() {
        let one = target(
            r#"{"command": "x", "env": {"A": "1", "B_TOKEN": "s"}}"#,
            Purpose::Import,
            None,
        );
        let two = target(
            r#"{"command": "x", "env": {"B_TOKEN": "s", "A": "1"}}"#,
            Purpose::Import,
            None,
        );
        let other = target(
            r#"{"command": "x", "env": {"B_TOKEN": "t", "A": "1"}}"#,
            Purpose::Import,
            None,
        );
        let (one, two, other) = (one.expect("one"), two.expect("two"), other.expect("other"));
        assert!(one.same(&two) && !one.same(&other));
    }

    #[test]
    fn no_secret_is_shown_by_a_debugger() {
        let target = target(GITHUB, Purpose::Import, None).expect("carried");
        assert!(!format!("{target:?}").contains("geheim"));
        let rendered = target.rendered("a", Purpose::Import, SecretsTo::File);
        assert!(!format!("{rendered:?}").contains("geheim"));
    }
}
