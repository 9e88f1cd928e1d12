//! Command lines as people type them, turned into those that Rialto defines.
//!
//! People bring the habits of a shell (no `--` before the command, the whole command in quotes) and
//! the flags of other bridges. What means the same here is rewritten, what makes no difference is
//! left out with a note, and for anything else the error is the line that was meant. Nothing is left
//! out that would let more callers or tools through than the line asked for.

mod other_bridges;

use std::ffi::OsString;
use std::path::Path;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::config::{self, Environment, is_web_address};

/// A command line that clap can read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Understood {
    pub(super) args: Vec<OsString>,
    /// What was left out, for the person that typed it.
    pub(super) notes: Vec<String>,
}

/// Programs that run a server which another word names.
const RUNNERS: [&str; 22] = [
    "npx", "bunx", "pnpx", "uvx", "uv", "npm", "pnpm", "yarn", "bun", "deno", "node", "tsx", "python",
    "python3", "pipx", "docker", "podman", "go", "java", "dotnet", "ruby", "php",
];

/// A flag and no command, so that an init container looks like others: `args: [--copy-self, /shared]`.
const COPY_SELF: &str = "--copy-self";

/// The commands whose lines differ between bridges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Serve,
    Check,
    Connect,
}

impl Verb {
    const ALL: [Self; 3] = [Self::Serve, Self::Check, Self::Connect];

    const fn name(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::Check => "check",
            Self::Connect => "connect",
        }
    }

    fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.name() == word)
    }
}

/// Rewrites a command line, the program's own name first. An error is the answer for the person
/// that typed it.
pub(super) fn understand(
    mut args: Vec<OsString>,
    defined: &Command,
    environment: &Environment,
) -> Result<Understood, String> {
    let first = args.get(1).map(|first| first.to_string_lossy().into_owned());
    let (verb, at) = match first.as_deref() {
        // So a host's configuration that only names the binary works.
        None if environment.filled("URI").is_some() => (Verb::Connect, 1),
        None => return Ok(unchanged(args)),
        Some(COPY_SELF) => {
            args.splice(1..2, ["copy-self".into()]);
            return Ok(unchanged(args));
        }
        Some("version") => {
            args.splice(1..2, ["--version".into()]);
            return Ok(unchanged(args));
        }
        Some("-h" | "--help" | "-V" | "--version" | "help") => return Ok(unchanged(args)),
        Some(first) => match Verb::of(first) {
            Some(verb) => (verb, 2),
            None if defined.find_subcommand(first).is_some() => return Ok(unchanged(args)),
            None => match meant_verb(first, args.get(1..).unwrap_or_default(), defined) {
                Some(verb) => (verb, 1),
                None => return Err(not_a_command(first, &args)),
            },
        },
    };
    let mut line = Line::new(verb, defined, environment);
    line.read(args.drain(at..).collect())?;
    let program = args.into_iter().next().unwrap_or_else(|| "rialto".into());
    line.finish(program)
}

fn unchanged(args: Vec<OsString>) -> Understood {
    Understood {
        args,
        notes: Vec::new(),
    }
}

/// Returns which command a line without one means: the argument decides.
fn meant_verb(first: &str, words: &[OsString], defined: &Command) -> Option<Verb> {
    if is_web_address(first) {
        return Some(Verb::Connect);
    }
    if !first.starts_with('-') {
        return is_program(first).then_some(Verb::Serve);
    }
    // A flag comes first. A URL after the flags is a server to connect to.
    let mut words = words.iter().map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) if word.starts_with("--") => (name.to_owned(), Some(value.to_owned())),
            Some(_) | None => (word.to_string(), None),
        };
        if other_bridges::is_of_a_client(&name) {
            return Some(Verb::Connect);
        }
        if other_bridges::is_of_a_server(&name) {
            return Some(Verb::Serve);
        }
        if !word.starts_with('-') {
            return Some(match is_web_address(&word) {
                true => Verb::Connect,
                false => Verb::Serve,
            });
        }
        let own = Verb::ALL
            .iter()
            .find_map(|verb| own_flag(defined, *verb, &name))
            .map(usize::from);
        let values = other_bridges::values(&name).or(own).unwrap_or(0);
        if value.is_none() {
            for _ in 0..values {
                words.next();
            }
        }
    }
    Some(Verb::Serve)
}

/// Returns whether a first word is a program rather than a mistyped command of Rialto.
fn is_program(word: &str) -> bool {
    const SCRIPTS: [&str; 6] = [".js", ".mjs", ".ts", ".py", ".sh", ".exe"];
    let program = word.split_whitespace().next().unwrap_or_default();
    RUNNERS.contains(&program)
        || word.contains(char::is_whitespace)
        || is_path(word)
        || SCRIPTS.iter().any(|extension| word.ends_with(extension))
}

fn is_path(word: &str) -> bool {
    word.starts_with('/') || word.starts_with("./") || word.starts_with("../")
}

fn not_a_command(first: &str, args: &[OsString]) -> String {
    if looks_like_an_address(first) {
        return format!("`{first}` has no scheme. Write:\n\n    rialto connect http://{first}");
    }
    let known = [
        "serve",
        "connect",
        "check",
        "login",
        "logout",
        "status",
        "token",
        "audit",
        "cluster",
        "ps",
        "top",
        "tap",
        "tools",
        "call",
        "attach",
        "service",
        "demo-server",
        "completions",
        "man",
    ];
    if let Some(near) = known.iter().find(|known| is_near(known, first)) {
        return format!("`{first}` is not a command of Rialto. Did you mean this?\n\n    rialto {near}");
    }
    let words: Vec<_> = args
        .iter()
        .skip(1)
        .map(|word| quoted(&word.to_string_lossy()))
        .collect();
    format!(
        "`{first}` is not a command of Rialto; `rialto --help` lists them. To serve a program of that name:\n\n    \
         rialto serve -- {}",
        words.join(" ")
    )
}

/// `localhost:3000/mcp`, `mcp.example.com/sse`.
fn looks_like_an_address(word: &str) -> bool {
    let host = word.split('/').next().unwrap_or_default();
    let (name, port) = host.split_once(':').unwrap_or((host, ""));
    let has_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = |name: &str| name == "localhost" || name.contains('.');
    is_name(name) && (has_port || word.ends_with("/mcp") || word.ends_with("/sse"))
}

/// Returns whether two words differ by one letter more, less or other, or by two swapped ones.
fn is_near(known: &str, typed: &str) -> bool {
    let (known, typed): (Vec<char>, Vec<char>) = (known.chars().collect(), typed.chars().collect());
    let start = known.iter().zip(&typed).take_while(|(a, b)| a == b).count();
    let rest = |word: &[char], from: usize| word.get(from..).unwrap_or_default().to_vec();
    rest(&known, start + 1) == rest(&typed, start + 1)
        || rest(&known, start) == rest(&typed, start + 1)
        || rest(&known, start + 1) == rest(&typed, start)
        || (known.len() == typed.len()
            && known.get(start) == typed.get(start + 1)
            && known.get(start + 1) == typed.get(start)
            && rest(&known, start + 2) == rest(&typed, start + 2))
}

/// Returns a word as a shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| {
        c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '=' | ',' | '+' | '%')
    };
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Returns whether a flag of Rialto's own takes a value; `None` if there is no such flag.
fn own_flag(defined: &Command, verb: Verb, name: &str) -> Option<bool> {
    let command = defined.find_subcommand(verb.name())?;
    let argument = command.get_arguments().find(|argument| {
        let long = name.strip_prefix("--");
        let short = name.strip_prefix('-').filter(|rest| rest.chars().count() == 1);
        argument.get_long().is_some_and(|own| long == Some(own))
            || long.is_some_and(|long| argument.get_all_aliases().unwrap_or_default().contains(&long))
            || argument
                .get_short()
                .is_some_and(|own| short == Some(own.to_string().as_str()))
    })?;
    Some(argument.get_action().takes_values())
}

/// A line on its way to what clap reads.
struct Line<'a> {
    verb: Verb,
    defined: &'a Command,
    environment: &'a Environment,
    /// The words that are still to be read, the next one last.
    words: Vec<OsString>,
    flags: Vec<OsString>,
    positional: Vec<OsString>,
    command: Vec<OsString>,
    host: Option<String>,
    port: Option<String>,
    callback: other_bridges::Callback,
    in_shell: bool,
    /// Whether HTTP+SSE was asked for, in the words of another bridge.
    old_clients: Option<bool>,
    notes: Vec<String>,
}

impl<'a> Line<'a> {
    fn new(verb: Verb, defined: &'a Command, environment: &'a Environment) -> Self {
        Self {
            verb,
            defined,
            environment,
            words: Vec::new(),
            flags: Vec::new(),
            positional: Vec::new(),
            command: Vec::new(),
            host: None,
            port: None,
            callback: other_bridges::Callback::default(),
            in_shell: false,
            old_clients: None,
            notes: Vec::new(),
        }
    }

    fn read(&mut self, words: Vec<OsString>) -> Result<(), String> {
        self.words = words;
        self.words.reverse();
        while let Some(word) = self.words.pop() {
            let Some(text) = word.to_str().map(str::to_owned) else {
                self.take_command(word);
                break;
            };
            if text == "--" {
                let rest = std::mem::take(&mut self.words);
                self.command.extend(rest.into_iter().rev());
                break;
            }
            if !text.starts_with('-') || text == "-" {
                if self.take_positional(&text) {
                    continue;
                }
                self.take_command(word);
                break;
            }
            self.flag(&text)?;
        }
        self.split_quoted_command()
    }

    /// Takes a word that is no flag, if it is not where a command begins.
    fn take_positional(&mut self, text: &str) -> bool {
        match self.verb {
            Verb::Serve | Verb::Check => {
                let is_server = is_web_address(text) && self.positional.is_empty();
                if is_server {
                    self.positional.push(text.into());
                }
                is_server
            }
            Verb::Connect if !self.positional.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => {
                self.callback.port = Some(text.to_owned());
                true
            }
            // Anything else is for clap to judge, but a program.
            Verb::Connect if self.positional.is_empty() && is_program(text) => false,
            Verb::Connect => {
                self.positional.push(text.into());
                true
            }
        }
    }

    /// All that follows belongs to the command.
    fn take_command(&mut self, program: OsString) {
        self.command.push(program);
        let rest = std::mem::take(&mut self.words);
        self.command.extend(rest.into_iter().rev());
    }

    fn flag(&mut self, text: &str) -> Result<(), String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) if text.starts_with("--") => (name, Some(value.to_owned())),
            Some(_) | None => (text, None),
        };
        let following = self.words.len();
        self.words.extend(value.clone().map(OsString::from));
        let is_taken = other_bridges::take(self, name)?;
        // A value that the flag did not need, as in `--stateless=true`, begins no command.
        self.words.truncate(following);
        if is_taken {
            return Ok(());
        }
        // Where a host is named, the port belongs to it.
        if self.verb == Verb::Serve && matches!(name, "--port" | "-p") {
            self.port = Some(match value {
                Some(value) => value,
                None => self.value(name)?,
            });
            return Ok(());
        }
        self.flags.push(text.into());
        if value.is_none() && own_flag(self.defined, self.verb, name) == Some(true) {
            self.flags.extend(self.words.pop());
        }
        Ok(())
    }

    /// Returns the value of a flag.
    fn value(&mut self, name: &str) -> Result<String, String> {
        let value = self.words.pop().and_then(|word| word.into_string().ok());
        value.ok_or_else(|| format!("{name} needs a value"))
    }

    fn set(&mut self, flag: &str) {
        if !self.flags.iter().any(|word| word == flag) {
            self.flags.push(flag.into());
        }
    }

    fn push(&mut self, flag: &str, value: impl Into<OsString>) {
        let mut word = OsString::from(format!("{flag}="));
        word.push(value.into());
        self.flags.push(word);
    }

    fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Takes the words of a command that is one word: `"npx -y @scope/server"`.
    fn split_quoted_command(&mut self) -> Result<(), String> {
        let [only] = self.command.as_slice() else {
            return Ok(());
        };
        let Some(text) = only.to_str().map(str::to_owned) else {
            return Ok(());
        };
        if text.trim().contains(char::is_whitespace) && !Path::new(&text).exists() {
            self.command = self.words_of(&text)?;
        }
        Ok(())
    }

    fn words_of(&self, line: &str) -> Result<Vec<OsString>, String> {
        let words = config::filled_command(line, self.environment).map_err(|error| {
            format!(
                "{error}\n\nTo have a shell run the line:\n\n    rialto {} -- sh -c {}",
                self.verb.name(),
                quoted(line)
            )
        })?;
        Ok(words.into_iter().map(OsString::from).collect())
    }

    fn finish(mut self, program: OsString) -> Result<Understood, String> {
        if self.in_shell && !self.command.is_empty() {
            let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
            self.command = ["sh".into(), "-c".into(), words.join(" ").into()].into();
        }
        if self.old_clients == Some(true) {
            self.set("--legacy-sse");
        }
        match (self.host.take(), self.port.take()) {
            (Some(host), port) => {
                let host = match host.contains(':') && !host.starts_with('[') {
                    true => format!("[{host}]"),
                    false => host,
                };
                self.push(
                    "--listen",
                    format!("{host}:{}", port.as_deref().unwrap_or("3000")),
                );
            }
            (None, Some(port)) => self.push("--port", port),
            (None, None) => {}
        }
        if let Some(address) = std::mem::take(&mut self.callback).redirect_uri() {
            self.push("--redirect-uri", address);
        }
        let mut args = vec![program, self.verb.name().into()];
        args.append(&mut self.flags);
        args.append(&mut self.positional);
        if !self.command.is_empty() {
            args.push("--".into());
            args.append(&mut self.command);
        }
        Ok(Understood {
            args,
            notes: self.notes,
        })
    }
}

/// Removes the advice to put an unknown flag behind `--`, where it would become a program.
pub(super) fn without_misleading_tips(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument {
        let is_help = |kind: &ContextKind, value: &ContextValue| {
            *kind == ContextKind::Suggested && format!("{value:?}").contains("as a value")
        };
        if error.context().any(|(kind, value)| is_help(&kind, value)) {
            error.remove(ContextKind::Suggested);
        }
    }
    error
}

#[cfg(test)]
mod tests;
