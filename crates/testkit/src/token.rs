//! Tokens that `rialto token` makes, and their lines in the configuration.

use std::process::Command;

use crate::rialto::binary;

/// A token and the hash that the configuration has of it.
#[derive(Debug, Clone)]
pub struct Token {
    pub token: String,
    pub hash: String,
}

/// Makes a token by `rialto token --name NAME`.
///
/// # Panics
/// When the program does not print a token and its hash.
pub fn token(name: &str) -> Token {
    let output = Command::new(binary("rialto"))
        .args(["token", "--name", name])
        .output()
        .expect("rialto token runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let token = text.lines().next().expect("a token").to_owned();
    let hash = text
        .split('"')
        .find(|part| part.starts_with("sha256:"))
        .expect("a hash")
        .to_owned();
    Token { token, hash }
}

/// Returns the key `tokens` of the table `auth` with these tokens, each under its name.
pub fn tokens_key(tokens: &[(&str, &Token)]) -> String {
    let entry = |(name, token): &(&str, &Token)| {
        let hash = &token.hash;
        format!("    - {{ name: {name}, hash: \"{hash}\" }}\n")
    };
    format!("  tokens:\n{}", tokens.iter().map(entry).collect::<String>())
}
