//! Which values are secrets: decided by the name beside them and by what they look like.
//!
//! In doubt a value is a secret. What looks like a path, a number, a plain word or an address
//! without credentials is none, unless its name is that of a secret.

use super::plain::Plain;

/// A shorter text is hidden nowhere: it would be found in many words.
const SHORTEST: usize = 4;

/// Parts of names that secrets have.
const NAMES: [&str; 17] = [
    "key",
    "token",
    "secret",
    "passw",
    "passphrase",
    "pwd",
    "credential",
    "auth",
    "bearer",
    "cookie",
    "session",
    "dsn",
    "signature",
    "private",
    "cert",
    "connection_string",
    "webhook",
];

/// How well-known tokens begin.
const TOKENS: [&str; 16] = [
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "sk-",
    "pk-",
    "rk_",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "AIza",
    "eyJ",
    "npm_",
    "hf_",
];

/// Returns whether the value of a variable or header is a secret.
pub(crate) fn is_secret(name: &str, value: &str) -> bool {
    if value.trim().is_empty() {
        return false;
    }
    (has_secret_name(name) && !is_switch(value)) || looks_secret(value)
}

/// Returns the part of an argument that is a secret, if one is: what stands before it, and it.
///
/// `before` is the argument before it, which may be the name of a flag.
pub(crate) fn in_argument<'a>(before: Option<&str>, argument: &'a str) -> Option<(&'a str, &'a str)> {
    if argument.trim().is_empty() {
        return None;
    }
    if let Some(flag) = before.filter(|flag| flag.starts_with('-') && !flag.contains('=')) {
        let name = flag.trim_start_matches('-');
        let is_assignment = matches!(name, "e" | "env" | "H" | "header");
        if !is_assignment && !argument.starts_with('-') && has_secret_name(name) && !is_switch(argument) {
            return Some(("", argument));
        }
    }
    // `--flag=value`, `NAME=value`, `Header: value`.
    let cut = argument.find('=').map(|at| at + 1).or_else(|| {
        let at = argument.find(':')?;
        let name = &argument[..at];
        let is_header = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        (is_header && !argument[at..].starts_with("://")).then_some(at + 1)
    });
    if let Some(at) = cut {
        let (name, value) = argument.split_at(at);
        let trimmed = value.trim_start();
        let name_end = at + (value.len() - trimmed.len());
        let bare = name.trim_start_matches('-').trim_end_matches(['=', ':']);
        let is_name = bare.len() < 64 && !bare.contains(['/', ' ', '?']);
        if is_name && is_secret(bare, trimmed) {
            return Some(argument.split_at(name_end));
        }
    }
    looks_secret(argument).then_some(("", argument))
}

/// Collects every text of a file that may be a secret, under any key.
pub(crate) fn collect(value: &Plain, found: &mut Vec<String>) {
    match value {
        Plain::Map(entries) => {
            for (key, value) in entries {
                match value {
                    Plain::Text(text) if is_secret(key, text) => add(text, found),
                    other => collect(other, found),
                }
            }
        }
        Plain::List(items) => {
            let mut before = None;
            for item in items {
                match item {
                    Plain::Text(text) => {
                        if let Some((_, hidden)) = in_argument(before, text) {
                            add(hidden, found);
                        }
                        before = Some(text.as_str());
                    }
                    other => collect(other, found),
                }
            }
        }
        Plain::Null | Plain::Bool(_) | Plain::Number(_) | Plain::Text(_) => {}
    }
}

fn add(text: &str, found: &mut Vec<String>) {
    if text.len() >= SHORTEST && !found.iter().any(|known| known == text) {
        found.push(text.to_owned());
    }
}

fn has_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    // `KEYBOARD_LAYOUT`, `AUTHOR`: words that only begin like one.
    let is_word = |part: &str| {
        name.split('_').any(|word| match part {
            "key" => matches!(word, "key" | "keys" | "apikey" | "apikeys") || word.ends_with("apikey"),
            "auth" => matches!(word, "auth" | "oauth" | "authorization"),
            part => word.contains(part),
        }) || (part.contains('_') && name.contains(part))
    };
    let is_location = ["_file", "_path", "_dir", "_url", "_uri", "_host", "_port"]
        .iter()
        .any(|end| name.ends_with(end));
    !is_location && NAMES.iter().any(|part| is_word(part))
}

/// Returns whether a value only switches something.
fn is_switch(value: &str) -> bool {
    matches!(
        value.to_ascii_lowercase().as_str(),
        "true" | "false" | "yes" | "no" | "on" | "off" | "none" | "0" | "1"
    )
}

/// Returns whether a value looks like a secret, under any name.
fn looks_secret(value: &str) -> bool {
    let value = value.trim();
    let bare = value
        .strip_prefix("Bearer ")
        .or_else(|| value.strip_prefix("Basic "))
        .unwrap_or(value);
    let begins_like_one = TOKENS
        .iter()
        .any(|start| bare.starts_with(start) && bare.len() >= start.len() + 8);
    begins_like_one || bare.len() < value.len() || has_credentials(value) || is_random(bare)
}

/// `scheme://user:password@host`.
fn has_credentials(value: &str) -> bool {
    let Some((_, rest)) = value.split_once("://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let has_password = authority
        .split_once('@')
        .is_some_and(|(user, _)| user.contains(':'));
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let has_key = query.split('&').any(|pair| {
        pair.split_once('=')
            .is_some_and(|(name, value)| has_secret_name(name) && !value.is_empty())
    });
    has_password || has_key
}

/// Returns whether a text is long, in one piece, and of letters and digits mixed.
fn is_random(value: &str) -> bool {
    const SHORTEST: usize = 24;
    let is_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '=' | '_');
    value.len() >= SHORTEST
        && value.chars().all(is_token)
        && value.chars().any(|c| c.is_ascii_digit())
        && value.chars().any(|c| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_name_or_by_look() {
        for (name, value) in [
            ("GITHUB_TOKEN", "x"),
            ("API-KEY", "1234"),
            ("apikey", "abc"),
            ("DB_PASSWORD", "p"),
            ("DATABASE_URL", "postgres://me:secret@db/x"),
            ("URL", "https://x.example.com/mcp?api_key=abc"),
            ("OTHER", "ghp_0123456789abcdef"),
            ("OTHER", "Bearer abc"),
            ("Authorization", "abc"),
            ("X", "0123456789abcdef0123456789abcdef"),
        ] {
            assert!(is_secret(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("LOG_LEVEL", "debug"),
            ("HOME", "/home/me"),
            ("KEYBOARD", "de"),
            ("AUTHOR", "me"),
            ("KEY_FILE", "/etc/key.pem"),
            ("DATABASE_URL", "postgres://db/x"),
            ("USE_AUTH", "true"),
            ("TOKEN", ""),
            ("PACKAGE", "@modelcontextprotocol/server-everything"),
        ] {
            assert!(!is_secret(name, value), "{name}={value}");
        }
    }

    #[test]
    fn secrets_are_collected_from_every_part_of_a_file() {
        let text = r#"{"apiKey": "one1", "s": {"a": {"args": ["--token", "two2", "-y"], "env": {"K_TOKEN": "three3"},
            "headers": {"Authorization": "Bearer four4"}, "password": "abc", "level": "debug"}}}"#;
        let mut found = Vec::new();
        collect(
            &Plain::of(&crate::config::tree::load(text).expect("read")),
            &mut found,
        );
        assert_eq!(found, ["one1", "two2", "three3", "Bearer four4"]);
    }

    #[test]
    fn secrets_in_arguments_are_cut_out() {
        for (before, argument, expected) in [
            (Some("--api-key"), "abc", Some(("", "abc"))),
            (None, "--api-key=abc", Some(("--api-key=", "abc"))),
            (Some("-e"), "API_KEY=abc", Some(("API_KEY=", "abc"))),
            (
                Some("--header"),
                "Authorization: Bearer x",
                Some(("Authorization: ", "Bearer x")),
            ),
            (None, "postgres://me:pw@db/x", Some(("", "postgres://me:pw@db/x"))),
            (None, "ghp_0123456789abcdef", Some(("", "ghp_0123456789abcdef"))),
            (None, "-y", None),
            (Some("-e"), "API_KEY", None),
            (Some("--token"), "--verbose", None),
            (None, "@scope/server@1.2.3", None),
            (None, "/home/me/projects", None),
            (None, "https://mcp.example.com/mcp", None),
            (None, "--level=debug", None),
            (None, "ghcr.io/github/github-mcp-server", None),
        ] {
            assert_eq!(in_argument(before, argument), expected, "{argument}");
        }
    }
}
