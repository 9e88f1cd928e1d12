//! One destination: from the map a file has for it to a `Destination` as used.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use gateway::settings::{
    BackendSpec, Capabilities, Destination, EraChoice, Glob, Inherits, Placement, ProcessSpec, Projects,
    Secret, Sharing, SharingRules, Show, Start, ToolPolicy, Transport,
};

use super::reader::{Fields, Given};
use super::tree::Value;
use super::{command_line, quantity, remote};

/// A first `npx` or `uvx` run downloads.
const START_TIMEOUT: Duration = Duration::from_secs(5 * 60);
const LINGER: Duration = Duration::from_secs(5 * 60);
const MAX_CHILDREN: usize = 10;
const MAX_SESSIONS: usize = 1000;
/// Base64 pictures and MCP App pages have several megabytes.
pub(super) const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The words of `process`.
pub(super) const SHARINGS: [(&str, Sharing); 3] = [
    ("shared", Sharing::Shared),
    ("per_session", Sharing::PerSession),
    ("per_identity", Sharing::PerIdentity),
];

/// Which program the file is for, and so how strictly it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// `destinations.yml`: the command may be a line, and an unknown key is an error.
    Ours,
    /// The `mcpServers` file of a desktop host: the command is a program, and other keys are the
    /// host's.
    Host,
}

/// The defaults of the whole configuration for every destination.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    pub(super) request_timeout: Duration,
    pub(super) stream_timeout: Duration,
    pub(super) max_message_bytes: usize,
    /// From a flag or variable, which beat the file.
    pub(super) max_sessions: Option<usize>,
    /// The same for stdio destinations alone (`MAX_STDIO_CONNECTIONS`).
    pub(super) max_stdio_sessions: Option<usize>,
}

/// How many sessions and instances a destination may have at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Caps {
    sessions: usize,
    children: usize,
}

/// Returns the caps of a destination, from the defaults and the file.
fn caps(
    is_stdio: bool,
    sharing: Sharing,
    defaults: &Defaults,
    (sessions, children): (Option<usize>, Option<usize>),
) -> Caps {
    let overruling = defaults
        .max_sessions
        .or(defaults.max_stdio_sessions.filter(|_| is_stdio));
    let sessions = overruling.or(sessions).unwrap_or(MAX_SESSIONS);
    let default_children = match (is_stdio, sharing) {
        // An instance of a remote server is no process here.
        (false, _) => sessions,
        // Where each session has a process, a number of sessions on the command line is one of
        // processes too.
        (true, Sharing::PerSession) => overruling.unwrap_or(0).max(MAX_CHILDREN),
        (true, Sharing::Shared | Sharing::PerIdentity) => MAX_CHILDREN,
    };
    Caps {
        sessions,
        children: children.unwrap_or(default_children),
    }
}

/// What kind of server a destination is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stdio,
    Remote(Transport),
}

/// Reads a destination; `None` when there is nothing to run, which has been reported then.
pub(super) fn read(
    name: &str,
    mut fields: Fields<'_, '_>,
    defaults: &Defaults,
    format: Format,
) -> Option<Destination> {
    let kind = kind(&mut fields, format)?;
    let sharing = fields
        .choice("process", &SHARINGS)
        .unwrap_or(default_sharing(kind));
    let backend = match kind {
        Kind::Stdio => stdio(&mut fields, format, sharing).map(BackendSpec::Process),
        Kind::Remote(transport) => remote::read(&mut fields, transport, sharing).map(BackendSpec::Remote),
    };
    let start_timeout = fields
        .parsed("start_timeout", quantity::some_time)
        .unwrap_or(START_TIMEOUT);
    let max_sessions = fields.parsed("max_sessions", quantity::count);
    let max_children = fields.parsed("max_children", quantity::count);
    let caps = caps(
        kind == Kind::Stdio,
        sharing,
        defaults,
        (max_sessions, max_children),
    );
    if let (Some(sessions), Sharing::PerSession, None) = (max_sessions, sharing, max_children)
        && sessions > caps.children
    {
        let (file, children) = (&fields.walk.file, caps.children);
        fields.walk.note(format!(
            "{file}: destination `{name}`: every session needs a process, and `max_children` allows {children}: write \
             `max_children: {sessions}` for {sessions} sessions at once"
        ));
    }
    let linger = fields.parsed("linger", quantity::duration).unwrap_or(LINGER);
    let capabilities = fields
        .choice(
            "capabilities",
            &[
                ("per_client", Capabilities::PerClient),
                ("union", Capabilities::Union),
            ],
        )
        .unwrap_or(default_capabilities(sharing));
    let era = fields
        .choice(
            "era",
            &[
                ("auto", EraChoice::Auto),
                ("legacy", EraChoice::Legacy),
                ("modern", EraChoice::Modern),
            ],
        )
        .unwrap_or(EraChoice::Auto);
    let show = fields
        .choice("show", &[("both", Show::Both), ("native", Show::Native)])
        .unwrap_or(Show::Both);
    let placement = fields
        .choice(
            "placement",
            &[("replica", Placement::Replica), ("one", Placement::One)],
        )
        .unwrap_or_default();
    let projects = fields
        .choice(
            "shared",
            &[("project", Projects::Apart), ("everywhere", Projects::Together)],
        )
        .unwrap_or(Projects::Apart);
    let roots = roots(&mut fields);
    let tools = tools(&mut fields);
    let request_timeout = fields.parsed("request_timeout", quantity::time_or_off);
    let stream_timeout = fields.parsed("stream_timeout", quantity::time_or_off);
    let max_message_bytes = fields.parsed("max_message_bytes", quantity::size);
    // An old server has old clients, and they know its paths.
    let legacy_sse =
        fields.parsed("legacy_sse", quantity::truth) == Some(true) || kind == Kind::Remote(Transport::Sse);
    let walk = fields.walk;
    match format {
        Format::Ours => fields.finish(),
        Format::Host => {
            let unknown = fields.into_unknown();
            if !unknown.is_empty() {
                walk.note(format!(
                    "{}: destination `{name}`: ignored what is for the desktop host: {}",
                    walk.file,
                    unknown.join(", ")
                ));
            }
        }
    }
    Some(Destination {
        name: name.to_owned(),
        backend: backend?,
        instances: SharingRules {
            capabilities,
            start_timeout,
            linger,
            projects,
            ..instances(sharing, caps)
        },
        request_timeout: request_timeout.unwrap_or(defaults.request_timeout),
        stream_timeout: stream_timeout.unwrap_or(defaults.stream_timeout),
        max_message_bytes: max_message_bytes.unwrap_or(defaults.max_message_bytes),
        max_sessions: caps.sessions,
        max_calls: None,
        era,
        show,
        roots,
        legacy_sse,
        placement,
        tools,
    })
}

/// Returns what is to run.
fn stdio(fields: &mut Fields<'_, '_>, format: Format, sharing: Sharing) -> Option<ProcessSpec> {
    let argv = argv(fields, format);
    for foreign in remote::KEYS {
        // The address itself was checked with the kind, and hosts write anything here.
        let given = fields.take(foreign);
        if let (Some(given), Format::Ours, false) = (given, format, foreign == "url") {
            let place = fields.place(given.line, foreign);
            fields
                .walk
                .fail(place, "goes with a `url`; a program is given `env`");
        }
    }
    let env = env(fields);
    let cwd = fields.given("cwd").and_then(|given| cwd(fields, given));
    let env_from_headers = env_from_headers(fields, sharing);
    let start = fields.choice("start", &[("eager", Start::Eager), ("lazy", Start::Lazy)]);
    let idle_stop = fields.parsed("idle_stop", quantity::some_time);
    let error_stderr = fields.parsed("error_stderr", quantity::truth) == Some(true);
    Some(ProcessSpec {
        argv: argv?,
        env,
        inherits: Inherits::AllowList,
        error_stderr,
        cwd,
        env_from_headers,
        start: start.unwrap_or(default_start(sharing)),
        idle_stop,
    })
}

/// Returns a destination that was given on the command line and has only defaults.
pub(super) fn plain(
    name: String,
    argv: Vec<String>,
    env: BTreeMap<String, Secret>,
    inherits: Inherits,
    sharing: Sharing,
    defaults: &Defaults,
) -> Destination {
    let backend = BackendSpec::Process(ProcessSpec {
        argv,
        env,
        inherits,
        error_stderr: false,
        cwd: None,
        env_from_headers: BTreeMap::new(),
        start: default_start(sharing),
        idle_stop: None,
    });
    in_front_of(backend, name, sharing, defaults)
}

/// Returns a destination with this backend and otherwise only defaults.
pub(super) fn in_front_of(
    backend: BackendSpec,
    name: String,
    sharing: Sharing,
    defaults: &Defaults,
) -> Destination {
    let is_stdio = matches!(backend, BackendSpec::Process(_));
    let caps = caps(is_stdio, sharing, defaults, (None, None));
    Destination {
        name,
        backend,
        instances: instances(sharing, caps),
        request_timeout: defaults.request_timeout,
        stream_timeout: defaults.stream_timeout,
        max_message_bytes: defaults.max_message_bytes,
        max_sessions: caps.sessions,
        max_calls: None,
        era: EraChoice::Auto,
        show: Show::Both,
        roots: Vec::new(),
        legacy_sse: false,
        placement: Placement::Replica,
        tools: ToolPolicy::default(),
    }
}

fn instances(sharing: Sharing, caps: Caps) -> SharingRules {
    SharingRules {
        sharing,
        capabilities: default_capabilities(sharing),
        start_timeout: START_TIMEOUT,
        max_children: caps.children,
        linger: LINGER,
        projects: Projects::Apart,
    }
}

/// A child costs memory, so it is shared; a session at a remote server costs nothing, and its own
/// is each client's.
fn default_sharing(kind: Kind) -> Sharing {
    match kind {
        Kind::Stdio => Sharing::Shared,
        Kind::Remote(_) => Sharing::PerSession,
    }
}

/// A child that all clients share is one process: it receives all capabilities that clients may
/// have.
fn default_capabilities(sharing: Sharing) -> Capabilities {
    match sharing {
        Sharing::Shared => Capabilities::Union,
        Sharing::PerSession | Sharing::PerIdentity => Capabilities::PerClient,
    }
}

/// Returns when a child starts by default: a shared one at once, for any first client; the others
/// with their client.
fn default_start(sharing: Sharing) -> Start {
    match sharing {
        Sharing::Shared => Start::Eager,
        Sharing::PerSession | Sharing::PerIdentity => Start::Lazy,
    }
}

/// Stdio or remote, by `type` or else by what is there.
fn kind(fields: &mut Fields<'_, '_>, format: Format) -> Option<Kind> {
    let words: &[(&str, Kind)] = match format {
        Format::Ours => &[
            ("stdio", Kind::Stdio),
            ("streamable_http", Kind::Remote(Transport::StreamableHttp)),
            ("sse", Kind::Remote(Transport::Sse)),
        ],
        Format::Host => &[
            ("stdio", Kind::Stdio),
            ("http", Kind::Remote(Transport::StreamableHttp)),
            ("sse", Kind::Remote(Transport::Sse)),
            ("streamable-http", Kind::Remote(Transport::StreamableHttp)),
            ("streamable_http", Kind::Remote(Transport::StreamableHttp)),
            ("streamableHttp", Kind::Remote(Transport::StreamableHttp)),
        ],
    };
    let typed = fields.has("type");
    let kind = fields.choice("type", words);
    let (command, url) = (fields.has("command"), fields.has("url"));
    // Wherever there is a command the walk goes on, so that all other problems are found as well.
    match (kind, command, url) {
        (_, true, true) => {
            fields.fail(
                "has both `command` and `url`: keep `command` for a program, or `url` for a remote server",
            );
            Some(Kind::Stdio)
        }
        (Some(Kind::Remote(_)), true, false) => {
            fields.fail("has a `command`, which goes with `type: stdio`: change the type or leave it out");
            Some(Kind::Stdio)
        }
        (Some(Kind::Stdio), false, true) => {
            fields.fail("`type: stdio` needs a `command`, not a `url`");
            None
        }
        // The wrong type has been reported already, and it is not known what was meant.
        (None, false, _) if typed => None,
        (Some(kind), _, _) => Some(kind),
        (None, true, false) | (None, false, false) => Some(Kind::Stdio),
        (None, false, true) => Some(Kind::Remote(Transport::Auto)),
    }
}

/// Program and arguments, from a line, a list, or a command with `args`.
fn argv(fields: &mut Fields<'_, '_>, format: Format) -> Option<Vec<String>> {
    let command = fields.take("command");
    let args = fields.take("args");
    let Some(command) = command else {
        if format == Format::Host || !fields.has_misspelt("command") {
            fields.fail("has nothing to run: write `command: PROGRAM ARGUMENTS`");
        }
        return None;
    };
    let place = fields.place(command.line, "command");
    let words: Option<Vec<Given>> = match (command.value, format) {
        (Value::Text(line), Format::Ours) => match command_line::split(&line) {
            // Filled in word by word, so that a value with spaces stays one argument.
            Ok(words) => words
                .into_iter()
                .map(|word| fields.filled(word, place.clone()))
                .collect(),
            Err(message) => {
                fields.walk.fail(place.clone(), message);
                None
            }
        },
        (value, _) => Some(fields.scalars(
            super::tree::Node {
                line: command.line,
                value,
            },
            "command",
        )),
    };
    let mut words = words?;
    if let Some(args) = args {
        match args.value {
            Value::List(_) => words.extend(fields.scalars(args, "args")),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::Map(_) => {
                let kind = args.value.kind();
                fields.walk.fail(
                    fields.place(args.line, "args"),
                    format!("must be a list, not {kind}: write [one, two]"),
                );
            }
        }
    }
    for word in &words {
        no_nul(fields, word);
    }
    if words.first().is_none_or(|program| program.text.trim().is_empty()) {
        fields
            .walk
            .fail(place, "the command is empty: write the program and its arguments");
        return None;
    }
    Some(words.into_iter().map(|word| word.text).collect())
}

/// URIs of directories.
fn roots(fields: &mut Fields<'_, '_>) -> Vec<String> {
    let Some(node) = fields.take("roots") else {
        return Vec::new();
    };
    let given = fields.scalars(node, "roots");
    let parsed = given.iter().filter_map(|root| {
        fields.walk.parse(root, |text| {
            // The specification allows no other scheme today (2025-11-25, roots).
            if text.starts_with("file://") {
                Ok(text.to_owned())
            } else {
                Err("write a URI such as file:///srv/project".to_owned())
            }
        })
    });
    parsed.collect()
}

/// `tools: { allow: […], deny: […] }`.
fn tools(fields: &mut Fields<'_, '_>) -> ToolPolicy {
    let Some(node) = fields.take("tools") else {
        return ToolPolicy::default();
    };
    match node.value {
        Value::Map(entries) => {
            let mut inner = fields.inner("tools.", node.line, entries);
            let policy = policy(&mut inner);
            inner.finish();
            policy
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
            let kind = node.value.kind();
            fields.walk.fail(
                fields.place(node.line, "tools"),
                format!("must be a map, not {kind}: write `allow: [read_*]` or `deny: [delete_*]` under it"),
            );
            ToolPolicy::default()
        }
    }
}

/// Reads `allow` and `deny`.
pub(super) fn policy(fields: &mut Fields<'_, '_>) -> ToolPolicy {
    ToolPolicy {
        allow: globs(fields, "allow"),
        deny: globs(fields, "deny"),
    }
}

fn globs(fields: &mut Fields<'_, '_>, key: &'static str) -> Vec<Glob> {
    let line = fields.line();
    let Some(given) = fields.list(key) else {
        return Vec::new();
    };
    if given.is_empty() {
        // "None of them" and "no restriction" look alike: the file must state which.
        fields.walk.fail(
            fields.place(line, key),
            "the list is empty: leave the key out, or write deny: [\"*\"] for no tool at all",
        );
    }
    let parsed = given.iter().filter_map(|given| fields.walk.parse(given, glob));
    parsed.collect()
}

pub(super) fn glob(text: &str) -> Result<Glob, String> {
    Glob::parse(text).ok_or_else(|| "matches no tool: write a name, or a pattern such as read_*".to_owned())
}

fn env(fields: &mut Fields<'_, '_>) -> BTreeMap<String, Secret> {
    let given = fields.named_values("env");
    for (name, value) in &given {
        if let Err(message) = quantity::variable_name(name) {
            fields.walk.fail(value.place.clone(), message);
        }
        no_nul(fields, value);
    }
    given
        .into_iter()
        .map(|(name, value)| (name, Secret::new(value.text)))
        .collect()
}

/// The operating system ends every argument and variable at a NUL.
fn no_nul(fields: &Fields<'_, '_>, given: &Given) {
    if given.text.contains('\0') {
        fields.walk.fail(
            given.place.clone(),
            "holds a NUL character, which no program can be given: remove it",
        );
    }
}

fn cwd(fields: &Fields<'_, '_>, given: Given) -> Option<PathBuf> {
    let directory = fields.walk.parse(&given, |text| {
        if text.is_empty() {
            Err("write a directory, or leave it out".to_owned())
        } else if text == "~" || text.starts_with("~/") {
            Err("there is no shell that would expand `~`: write ${HOME}".to_owned())
        } else {
            Ok(PathBuf::from(text))
        }
    })?;
    no_nul(fields, &given);
    Some(fields.walk.sources.base.join(directory))
}

fn env_from_headers(fields: &mut Fields<'_, '_>, sharing: Sharing) -> BTreeMap<String, String> {
    let given = fields.named_values("env_from_headers");
    match (sharing, given.values().next()) {
        (Sharing::Shared, Some(first)) => {
            // The place of the map itself, not of its first entry.
            let place = match &first.place {
                super::problem::Place::Field { line, .. } => fields.place(*line, "env_from_headers"),
                other => other.clone(),
            };
            fields.walk.fail(
                place,
                "one shared child cannot have the header values of each caller: write `process: per_identity` or `process: per_session`",
            );
        }
        (Sharing::Shared | Sharing::PerSession | Sharing::PerIdentity, _) => {}
    }
    let mut headers = BTreeMap::new();
    for (variable, header) in given {
        if let Err(message) = quantity::variable_name(&variable) {
            fields.walk.fail(header.place.clone(), message);
        }
        if decides_what_runs(&variable) {
            fields.walk.fail(
                header.place.clone(),
                format!("`{variable}` decides what a program loads or runs, so that no caller may set it: set it under `env`"),
            );
        }
        if let Some(header) = fields.walk.parse(&header, quantity::header_name) {
            headers.insert(variable, header);
        }
    }
    headers
}

/// Returns whether a variable is read by a loader, a shell or an interpreter: a caller that sets it
/// runs code of its own.
fn decides_what_runs(variable: &str) -> bool {
    const PREFIXES: [&str; 8] = [
        "LD_",
        "DYLD_",
        "PYTHON",
        "PERL5",
        "RUBY",
        "GIT_",
        "BASH_FUNC_",
        "NPM_CONFIG_",
    ];
    const NAMES: [&str; 27] = [
        "PATH",
        "NODE_OPTIONS",
        "NODE_PATH",
        "NODE_EXTRA_CA_CERTS",
        "ENV",
        "BASH_ENV",
        "SHELL",
        "SHELLOPTS",
        "BASHOPTS",
        "IFS",
        "HOME",
        "ZDOTDIR",
        "PERLLIB",
        "PERL_MB_OPT",
        "LUA_INIT",
        "LUA_PATH",
        "LUA_CPATH",
        "PHPRC",
        "PHP_INI_SCAN_DIR",
        "CLASSPATH",
        "JAVA_TOOL_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "_JAVA_OPTIONS",
        "DOTNET_STARTUP_HOOKS",
        "GCONV_PATH",
        "OPENSSL_CONF",
        "SSLKEYLOGFILE",
    ];
    // Windows and npm read names in any case.
    let variable = variable.to_ascii_uppercase();
    PREFIXES.iter().any(|prefix| variable.starts_with(prefix)) || NAMES.contains(&variable.as_str())
}

#[cfg(test)]
mod loader_tests {
    use super::decides_what_runs;

    #[test]
    fn variables_of_loaders_and_interpreters_are_not_for_callers() {
        for variable in [
            "LD_PRELOAD",
            "DYLD_INSERT_LIBRARIES",
            "PATH",
            "NODE_OPTIONS",
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "PERL5OPT",
            "PERL5LIB",
            "RUBYOPT",
            "RUBYLIB",
            "BASH_ENV",
            "ENV",
            "GIT_SSH_COMMAND",
            "JAVA_TOOL_OPTIONS",
            "npm_config_node_options",
        ] {
            assert!(decides_what_runs(variable), "{variable}");
        }
        for variable in [
            "GITHUB_TOKEN",
            "API_KEY",
            "ENVIRONMENT",
            "LDAP_TOKEN",
            "HTTP_TOKEN",
        ] {
            assert!(!decides_what_runs(variable), "{variable}");
        }
    }
}
