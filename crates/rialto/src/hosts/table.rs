//! What is known of each host: where its files are, and how it writes an entry.
//!
//! This is data. A new host is one constant of about ten lines in `table/editors.rs` or
//! `table/terminals.rs`, its line in [`HOSTS`], a row in `docs/hosts.md` and its golden files.

mod editors;
mod terminals;

/// A program that starts MCP servers from a list in its own file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Host {
    /// What it is called on the command line.
    pub(crate) id: &'static str,
    /// What it is called elsewhere.
    pub(crate) title: &'static str,
    /// Other names that the command line understands.
    pub(crate) aliases: &'static [&'static str],
    pub(crate) user: UserFiles,
    /// Files of a project, relative to its directory; the first that exists counts.
    pub(crate) project: &'static [&'static str],
    pub(crate) format: Format,
    /// Paths of keys to the servers; the first that exists counts, else the last is made.
    pub(crate) keys: &'static [&'static [&'static str]],
    pub(crate) listing: Listing,
    pub(crate) stdio: StdioShape,
    /// `None` where the file takes stdio servers only.
    pub(crate) remote: Option<RemoteShape>,
    pub(crate) references: References,
    /// Whether it is started from a desktop, with a `PATH` that is not the shell's.
    pub(crate) is_gui: bool,
    pub(crate) own: Option<OwnCommand>,
}

/// Two are equal if they have the same name: the table has each once.
impl PartialEq for Host {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Host {}

/// The files of a user; the first that exists counts, else the first is made.
///
/// `~` is the home directory. `${VAR:-DIR}` is the directory that a variable names, or another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UserFiles {
    pub(crate) linux: &'static [&'static str],
    pub(crate) macos: &'static [&'static str],
    pub(crate) windows: &'static [&'static str],
}

impl UserFiles {
    /// The same files on every system.
    pub(crate) const fn everywhere(files: &'static [&'static str]) -> Self {
        Self {
            linux: files,
            macos: files,
            windows: files,
        }
    }
}

/// The language of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// JSON, with comments and trailing commas where they stand.
    Json,
    Toml,
    /// Read, but never written: the lines to paste are printed.
    Yaml,
}

/// How servers are listed under their key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listing {
    /// A map by name.
    ByName,
    /// A list; each entry has a `name`.
    Named,
}

/// How a host writes references to variables and files in its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum References {
    /// It passes texts on as they are.
    None,
    /// `${VAR}`, `${VAR:-default}`, `${env:VAR}`.
    Dollar,
    /// The same, and `$VAR`.
    BareDollar,
    /// `{env:VAR}` and `{file:PATH}`.
    Braces,
}

/// The entry of a stdio server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StdioShape {
    /// The key and word of its kind.
    pub(crate) kind: Option<(&'static str, &'static str)>,
    pub(crate) command: CommandShape,
    /// The key of its variables.
    pub(crate) env: &'static str,
    /// What else the host wants in it.
    pub(crate) more: &'static [(&'static str, Fixed)],
}

/// How program and arguments are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandShape {
    /// A program under this key, and a list `args`.
    Program(&'static str),
    /// One list `command`.
    List,
}

/// The entry of a remote server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemoteShape {
    /// The key of its kind, the word for Streamable HTTP and the word for HTTP+SSE.
    pub(crate) kind: Option<(&'static str, &'static str, &'static str)>,
    pub(crate) url: &'static str,
    /// The key of the address of an HTTP+SSE server, where it is another.
    pub(crate) sse_url: &'static str,
    /// The path of keys to the headers.
    pub(crate) headers: &'static [&'static str],
    pub(crate) more: &'static [(&'static str, Fixed)],
}

/// A value that is the same in every entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fixed {
    Bool(bool),
    Number(&'static str),
    Text(&'static str),
    /// A list of one text.
    One(&'static str),
    /// The name of the entry.
    Name,
}

/// The host's own commands that write its file. In their words, `{name}`, `{url}` and `{transport}`
/// (`http` or `sse`) are filled in; `{command}` and `{headers}` stand for several words, and
/// `{json}` for the whole entry with its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnCommand {
    pub(crate) program: &'static str,
    pub(crate) add: &'static [&'static str],
    pub(crate) add_remote: &'static [&'static str],
    /// Empty where there is none.
    pub(crate) remove: &'static [&'static str],
}

/// All hosts, in the order in which they are shown.
pub(crate) const HOSTS: [&Host; 31] = [
    &editors::CLAUDE_DESKTOP,
    &terminals::CLAUDE_CODE,
    &editors::CURSOR,
    &editors::VSCODE,
    &editors::VSCODE_INSIDERS,
    &terminals::COPILOT,
    &terminals::CODEX,
    &terminals::GEMINI,
    &editors::WINDSURF,
    &editors::ANTIGRAVITY,
    &editors::ZED,
    &terminals::OPENCODE,
    &terminals::KILO,
    &terminals::GOOSE,
    &editors::CLINE,
    &terminals::CLINE_CLI,
    &editors::KIRO,
    &terminals::KIMI,
    &terminals::GROK,
    &terminals::MASTRA,
    &terminals::PI,
    &terminals::FX,
    &terminals::MCPORTER,
    &editors::LM_STUDIO,
    &editors::ROO,
    &editors::TRAE,
    &editors::CONTINUE,
    &terminals::AMP,
    &terminals::FACTORY,
    &editors::QODER,
    &terminals::VIBE,
];

/// Returns the host of this name or alias; case and `_` for `-` do not matter.
pub(crate) fn named(text: &str) -> Option<&'static Host> {
    let wanted = text.to_ascii_lowercase().replace(['_', ' '], "-");
    HOSTS
        .into_iter()
        .find(|host| host.id == wanted || host.aliases.contains(&wanted.as_str()))
}

/// What most hosts do: `mcpServers` in JSON, by name, with `command`, `args` and `env`, or `url` and
/// `headers`.
const USUAL: Host = Host {
    id: "",
    title: "",
    aliases: &[],
    user: UserFiles::everywhere(&[]),
    project: &[],
    format: Format::Json,
    keys: &[&["mcpServers"]],
    listing: Listing::ByName,
    stdio: USUAL_STDIO,
    remote: Some(USUAL_REMOTE),
    references: References::Dollar,
    is_gui: false,
    own: None,
};

const USUAL_STDIO: StdioShape = StdioShape {
    kind: None,
    command: CommandShape::Program("command"),
    env: "env",
    more: &[],
};

const TYPED_STDIO: StdioShape = StdioShape {
    kind: Some(("type", "stdio")),
    ..USUAL_STDIO
};

const USUAL_REMOTE: RemoteShape = RemoteShape {
    kind: None,
    url: "url",
    sse_url: "url",
    headers: &["headers"],
    more: &[],
};

const TYPED_REMOTE: RemoteShape = RemoteShape {
    kind: Some(("type", "http", "sse")),
    ..USUAL_REMOTE
};

const SERVER_URL: RemoteShape = RemoteShape {
    url: "serverUrl",
    sse_url: "serverUrl",
    ..USUAL_REMOTE
};

/// OpenCode and what is made from it: `type: local` with the whole command in one list.
const LOCAL_STDIO: StdioShape = StdioShape {
    kind: Some(("type", "local")),
    command: CommandShape::List,
    env: "environment",
    more: &[("enabled", Fixed::Bool(true))],
};

const LOCAL_REMOTE: RemoteShape = RemoteShape {
    kind: Some(("type", "remote", "remote")),
    more: &[("enabled", Fixed::Bool(true))],
    ..USUAL_REMOTE
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_name_and_alias_belongs_to_one_host() {
        let mut seen = BTreeSet::new();
        for host in HOSTS {
            for name in host.aliases.iter().chain([&host.id]) {
                assert!(seen.insert(*name), "{name}");
                assert_eq!(named(name).map(|found| found.id), Some(host.id));
            }
        }
        assert_eq!(
            named("Claude_Desktop").map(|host| host.id),
            Some("claude-desktop")
        );
        assert!(named("emacs").is_none());
    }

    #[test]
    fn each_host_has_files_keys_and_a_title() {
        for host in HOSTS {
            for files in [host.user.linux, host.user.macos, host.user.windows] {
                assert!(!files.is_empty(), "{}", host.id);
                let rooted = files.iter().all(|file| file.starts_with(['~', '$']));
                assert!(rooted, "{}: {files:?}", host.id);
            }
            assert!(!host.title.is_empty() && !host.keys.is_empty(), "{}", host.id);
            assert!(
                host.project.iter().all(|file| !file.starts_with(['/', '~', '$'])),
                "{}",
                host.id
            );
        }
    }
}
