//! A host's own command that writes its file: preferred, since it knows more than the file shows.

use std::process::{Command, Stdio};

use super::entry::Transport;
use super::plain::Plain;
use super::table::Host;

/// What its words stand for.
#[derive(Debug, Clone)]
pub(crate) struct Filling<'a> {
    pub(crate) name: &'a str,
    /// The program and its arguments, of a stdio server.
    pub(crate) command: &'a [String],
    /// The address, of a remote server.
    pub(crate) url: &'a str,
    pub(crate) transport: Transport,
    pub(crate) headers: &'a [(String, String)],
    /// The whole entry.
    pub(crate) entry: &'a Plain,
}

/// Returns the words of the command, or `None` if it cannot express the entry.
pub(crate) fn words(template: &[&str], filling: &Filling<'_>) -> Option<Vec<String>> {
    if template.is_empty() {
        return None;
    }
    let takes = |word: &str| template.contains(&word);
    if !filling.headers.is_empty() && !takes("{headers}") && !takes("{json}") {
        return None;
    }
    let is_sse = filling.transport == Transport::Sse;
    if is_sse && !filling.url.is_empty() && !takes("{transport}") && !takes("{json}") {
        return None;
    }
    let mut words = Vec::new();
    for word in template {
        match *word {
            "{name}" => words.push(filling.name.to_owned()),
            "{url}" => words.push(filling.url.to_owned()),
            "{transport}" => words.push(if is_sse { "sse" } else { "http" }.to_owned()),
            "{command}" => words.extend(filling.command.iter().cloned()),
            "{headers}" => {
                for (name, value) in filling.headers {
                    words.extend(["--header".to_owned(), format!("{name}: {value}")]);
                }
            }
            "{json}" => words.push(with_name(filling.name, filling.entry).to_json()),
            word => words.push(word.to_owned()),
        }
    }
    Some(words)
}

fn with_name(name: &str, entry: &Plain) -> Plain {
    let mut entries = vec![("name".to_owned(), Plain::Text(name.to_owned()))];
    if let Plain::Map(more) = entry {
        entries.extend(more.iter().cloned());
    }
    Plain::Map(entries)
}

/// What became of a call of a host's own command.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    /// There is no such program.
    NotInstalled,
    /// It failed, with these words.
    Failed(String),
}

/// Runs the host's own command. It gets nothing to read, and its output is not shown.
pub(crate) fn run(host: &Host, words: &[String]) -> Outcome {
    let Some(own) = host.own else {
        return Outcome::NotInstalled;
    };
    let output = Command::new(own.program)
        .args(words)
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => Outcome::Done,
        Ok(output) => {
            let written = [output.stderr, output.stdout].concat();
            let text = String::from_utf8_lossy(&written);
            let line = text.lines().map(str::trim).find(|line| !line.is_empty());
            Outcome::Failed(line.unwrap_or("it failed without a word").to_owned())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Outcome::NotInstalled,
        Err(error) => Outcome::Failed(format!("it cannot be run: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::table;

    fn filling<'a>(command: &'a [String], entry: &'a Plain) -> Filling<'a> {
        Filling {
            name: "files",
            command,
            url: "",
            transport: Transport::Auto,
            headers: &[],
            entry,
        }
    }

    #[test]
    fn words_are_filled_in() {
        let command = ["rialto", "attach", "files"].map(str::to_owned);
        let entry = Plain::Map(vec![("command".into(), Plain::Text("rialto".into()))]);
        let add = |host: &str| table::named(host).and_then(|host| host.own).expect(host).add;
        let stdio = filling(&command, &entry);
        assert_eq!(
            words(add("claude-code"), &stdio).expect("words").join(" "),
            "mcp add --scope user files -- rialto attach files"
        );
        assert_eq!(
            words(add("vscode"), &stdio).expect("words"),
            ["--add-mcp", r#"{"name": "files","command": "rialto"}"#]
        );
        assert_eq!(words(&[], &stdio), None);
    }

    #[test]
    fn what_a_command_cannot_express_is_left_to_the_file() {
        let entry = Plain::Null;
        let headers = [("X-Key".to_owned(), "v".to_owned())];
        let remote = Filling {
            url: "https://a/mcp",
            headers: &headers,
            ..filling(&[], &entry)
        };
        let add = |host: &str| {
            table::named(host)
                .and_then(|host| host.own)
                .expect(host)
                .add_remote
        };
        assert_eq!(
            words(add("claude-code"), &remote).expect("words").join(" "),
            "mcp add --scope user --transport http files https://a/mcp --header X-Key: v"
        );
        assert_eq!(words(add("codex"), &remote), None);
        let sse = Filling {
            headers: &[],
            transport: Transport::Sse,
            ..remote
        };
        assert_eq!(words(add("codex"), &sse), None);
    }
}
