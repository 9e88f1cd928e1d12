//! The configuration, from "as written" to "as used".
//!
//! The only reader of configuration files and of the environment. It knows the order of precedence
//! (flag, variable, file, default) and collects everything that is wrong before it gives up. It
//! does not look for programs on the path and starts nothing.

mod aggregate;
mod auth;
mod cluster;
mod command_line;
pub(crate) mod connection;
mod destination;
mod destinations_file;
mod environment;
mod globals;
mod interpolate;
pub(crate) mod jsonc;
mod limits;
pub(crate) mod name;
mod problem;
mod quantity;
mod reader;
pub(crate) mod remote;
mod single;
#[cfg(test)]
mod tests;
pub(crate) mod tree;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gateway::settings::{Destination, Settings};

pub(crate) use command_line::split as command;
pub use environment::Environment;
pub use problem::{ConfigError, Place, Problem, Section};
pub(crate) use quantity::{some_time, truth};

use crate::flags::ServeFlags;
use crate::flags::source::VerbosityFlags;
use globals::Globals;
use interpolate::Sources;
use reader::{Fields, Walk};
use single::Single;

/// What is looked for in the working directory when no file is named.
const USUAL_FILES: [&str; 2] = ["destinations.yml", "destinations.yaml"];

/// Complete settings, and what the user should know about how they came to be.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub settings: Settings,
    /// Where spans go, if anywhere.
    pub(crate) traces: Option<TraceSettings>,
    pub notes: Vec<String>,
    /// Whether each call is a line of the log, if that was chosen.
    pub(crate) access_log: Option<bool>,
    /// Whether commands of this user reach the gateway through its admin socket.
    pub(crate) admin_socket: bool,
    /// How long no client may have been connected before `serve` ends.
    pub(crate) idle_exit: Option<Duration>,
    /// The files that were read.
    pub(crate) files: Vec<PathBuf>,
}

/// Where spans go and which of them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TraceSettings {
    pub(crate) endpoint: String,
    /// What share of the traces that begin here is recorded.
    pub(crate) sample: f64,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Human,
    Json,
}

/// How to log; needed before there are settings, since reading those may already be worth a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub(crate) format: LogFormat,
    /// The value of `RUST_LOG`.
    pub(crate) filter: Option<String>,
    /// Whether a terminal may be written to in colour.
    pub(crate) colour: bool,
}

/// Reads the sources that the flags and the environment name.
pub(crate) fn settings(flags: &ServeFlags, environment: &Environment) -> Result<Loaded, ConfigError> {
    settings_in(Path::new(""), flags, environment)
}

/// Returns how to log, from `--log-format`, `--verbose`, `--quiet` and the environment.
pub(crate) fn log_settings(
    format: Option<&str>,
    verbosity: VerbosityFlags,
    environment: &Environment,
) -> Result<LogSettings, ConfigError> {
    const WORDS: [(&str, LogFormat); 2] = [("human", LogFormat::Human), ("json", LogFormat::Json)];
    let given = match (format, environment.filled("RIALTO_LOG_FORMAT")) {
        (Some(text), _) => Some((text, Place::Flag("--log-format"))),
        (None, Some(text)) => Some((text, Place::Variable("RIALTO_LOG_FORMAT"))),
        (None, None) => None,
    };
    let format = match given {
        None => LogFormat::Human,
        Some((text, place)) => reader::one_of(text, &WORDS).map_err(|message| {
            ConfigError::Problems(vec![Problem {
                place,
                message: format!("`{text}` is wrong: {message}"),
            }])
        })?,
    };
    Ok(LogSettings {
        format,
        ..LogSettings::human(
            verbosity.directives().or_else(|| environment.filled("RUST_LOG")),
            environment,
        )
    })
}

impl LogSettings {
    /// Lines for people, unless a flag chooses JSON.
    pub(crate) fn human(filter: Option<&str>, environment: &Environment) -> Self {
        Self {
            format: LogFormat::Human,
            filter: filter.map(str::to_owned),
            // https://no-color.org
            colour: environment.filled("NO_COLOR").is_none() && environment.get("TERM") != Some("dumb"),
        }
    }
}

/// Returns a text in which the references of `destinations.yml` are filled in.
pub(crate) fn filled(text: &str, environment: &Environment) -> Result<String, String> {
    interpolate::fill(text, &sources(PathBuf::new(), environment))
}

/// Returns the words of a command that was written as one line, with `${VAR}` filled in.
pub(crate) fn filled_command(line: &str, environment: &Environment) -> Result<Vec<String>, String> {
    let sources = sources(PathBuf::new(), environment);
    let words = command_line::split(line)?;
    words
        .iter()
        .map(|word| interpolate::fill(word, &sources))
        .collect()
}

/// Returns whether the files of the configuration are watched, by `--watch` or the environment.
pub(crate) fn watch(flags: &ServeFlags, environment: &Environment) -> Result<bool, ConfigError> {
    if flags.watch {
        return Ok(true);
    }
    let given = environment.filled("RIALTO_WATCH").map(quantity::truth);
    given.unwrap_or(Ok(false)).map_err(|message| {
        let place = Place::Variable("RIALTO_WATCH");
        ConfigError::Problems(vec![Problem { place, message }])
    })
}

/// Returns the file that describes what is served, if one does.
pub(crate) fn file(flags: &ServeFlags, environment: &Environment) -> Option<PathBuf> {
    match what_to_serve(Path::new(""), flags, environment) {
        Ok(WhatToServe::File { path, .. }) => Some(path),
        Ok(WhatToServe::CommandLine(_)) | Err(_) => None,
    }
}

/// The same, with a working directory to look for the usual file in.
fn settings_in(
    directory: &Path,
    flags: &ServeFlags,
    environment: &Environment,
) -> Result<Loaded, ConfigError> {
    match what_to_serve(directory, flags, environment)? {
        WhatToServe::CommandLine(servers) => {
            let walk = walk("", PathBuf::new(), environment);
            let globals = globals::read(flags, environment, &mut Fields::new(&walk, None, 0, Vec::new()));
            let destinations = single::read(&servers, flags, environment, &globals.defaults, &walk);
            let root = match destinations.as_slice() {
                [only] => Some(only.name.clone()),
                _ => None,
            };
            let read = with_aggregate((globals, destinations), flags, environment, &walk);
            complete(walk, Some(read), root)
        }
        WhatToServe::File { label, path } => {
            let base = path.parent().map(Path::to_owned).unwrap_or_default();
            match interpolate::read_text(&path) {
                Ok(text) => {
                    let mut loaded = from_text(&label, &text, base, flags, environment)?;
                    loaded.files.insert(0, path);
                    Ok(loaded)
                }
                Err(message) => {
                    let place = Place::File { file: label, line: 0 };
                    Err(ConfigError::Problems(vec![Problem {
                        place,
                        message: format!("the file {message}"),
                    }]))
                }
            }
        }
    }
}

/// Settings from the text of a file; relative paths in it start at `base`.
pub fn from_text(
    label: &str,
    text: &str,
    base: PathBuf,
    flags: &ServeFlags,
    environment: &Environment,
) -> Result<Loaded, ConfigError> {
    let mut walk = walk(label, base, environment);
    single::refuse_with_file(flags, &walk);
    let read = destinations_file::read(text, flags, environment, &mut walk);
    let read = read.map(|read| with_aggregate(read, flags, environment, &walk));
    complete(walk, read, None)
}

/// Adds the aggregate of every destination, if the flag or its variable asks for one.
fn with_aggregate(
    (globals, mut destinations): (Globals, Vec<Destination>),
    flags: &ServeFlags,
    environment: &Environment,
    walk: &Walk<'_>,
) -> (Globals, Vec<Destination>) {
    let flag = ("--aggregate", flags.aggregate.as_deref());
    if let Some(given) = single::given(flag, "RIALTO_AGGREGATE", environment) {
        let surroundings = aggregate::Surroundings {
            globals: &globals,
            destinations: &destinations,
        };
        let made = aggregate::of_everything(&given, walk, &surroundings);
        destinations.extend(made);
    }
    (globals, destinations)
}

fn walk<'e>(label: &str, base: PathBuf, environment: &'e Environment) -> Walk<'e> {
    Walk::new(label, sources(base, environment))
}

fn sources(base: PathBuf, environment: &Environment) -> Sources<'_> {
    Sources {
        environment,
        secrets: OnceCell::new(),
        base,
        doubled_dollar: true,
    }
}

enum WhatToServe {
    CommandLine(Vec<Single>),
    File { label: String, path: PathBuf },
}

/// A flag beats a variable, and a variable beats the file that happens to lie there.
fn what_to_serve(
    directory: &Path,
    flags: &ServeFlags,
    environment: &Environment,
) -> Result<WhatToServe, ConfigError> {
    let file = |label: &str| WhatToServe::File {
        label: label.to_owned(),
        path: directory.join(label),
    };
    let command_line = |single| WhatToServe::CommandLine(vec![single]);
    let mut given: Vec<(&'static str, WhatToServe)> = Vec::new();
    if !flags.command.is_empty() {
        given.push(("a command", command_line(Single::Command)));
    }
    if let Some(url) = &flags.source.url {
        given.push(("a URL", command_line(Single::Remote(url.clone()))));
    }
    if flags.demo {
        given.push(("--demo", command_line(Single::Demo)));
    }
    if !flags.source.server.is_empty() {
        let servers = flags.source.server.iter().cloned().map(Single::Named);
        given.push(("--server", WhatToServe::CommandLine(servers.collect())));
    }
    if let Some(path) = &flags.config {
        given.push(("--config", file(path)));
    }
    match (given.pop(), given.pop()) {
        (Some((flag, _)), Some((other, _))) => Err(one_too_many(flag, other)),
        (Some((_, what)), None) => Ok(what),
        (None, _) => {
            let demo = match environment.filled("RIALTO_DEMO").map(quantity::truth) {
                Some(Err(message)) => {
                    let place = Place::Variable("RIALTO_DEMO");
                    return Err(ConfigError::Problems(vec![Problem { place, message }]));
                }
                Some(Ok(demo)) => demo,
                None => false,
            };
            match (demo, environment.filled("RIALTO_CONFIG")) {
                (true, _) => Ok(WhatToServe::CommandLine(vec![Single::Demo])),
                (false, Some(path)) => Ok(file(path)),
                (false, None) => {
                    let usual = USUAL_FILES.iter().find(|name| directory.join(name).exists());
                    usual.map(|name| file(name)).ok_or(ConfigError::NothingToServe)
                }
            }
        }
    }
}

/// Returns whether a text is an address of a remote server.
pub(crate) fn is_web_address(text: &str) -> bool {
    let scheme = text
        .split_once("://")
        .map(|(scheme, _)| scheme.to_ascii_lowercase());
    matches!(scheme.as_deref(), Some("http" | "https"))
}

fn one_too_many(flag: &'static str, other: &str) -> ConfigError {
    let message = format!("does not go together with {other}: keep one of them");
    ConfigError::Problems(vec![Problem {
        place: Place::Flag(flag),
        message,
    }])
}

/// Puts everything together, if nothing is wrong.
fn complete(
    walk: Walk<'_>,
    read: Option<(Globals, Vec<Destination>)>,
    root_destination: Option<String>,
) -> Result<Loaded, ConfigError> {
    if let Some((globals, destinations)) = &read {
        auth::check_destinations(&walk, &globals.auth, destinations);
        globals::note_clear_tokens(&walk, globals);
    }
    let files = walk.files();
    let (problems, notes) = walk.into_findings();
    match read {
        Some((globals, destinations)) if problems.is_empty() => {
            let largest = destinations
                .iter()
                .map(|destination| destination.max_message_bytes)
                .max();
            let settings = Settings {
                listen: globals.listen,
                has_listener: globals.has_listener,
                threads: globals.threads,
                tls: globals.tls,
                request_timeout: globals.defaults.request_timeout,
                stream_timeout: globals.defaults.stream_timeout,
                max_message_bytes: largest.unwrap_or(globals.defaults.max_message_bytes),
                session_idle: globals.session_idle,
                drain: globals.drain,
                offers_dir: globals
                    .state_dir
                    .as_ref()
                    .map(|directory| directory.join("offers")),
                state_dir: globals.state_dir,
                cluster: globals.cluster,
                allowed_hosts: globals.allowed_hosts,
                allowed_origins: globals.allowed_origins,
                public_url: globals.public_url,
                auth: globals.auth,
                limits: globals.limits,
                metrics: globals.metrics,
                ui: globals.ui,
                audit: globals.audit,
                destinations,
                root_destination,
                keep_going: globals.keep_going,
            };
            Ok(Loaded {
                settings,
                traces: globals.traces,
                access_log: globals.access_log,
                admin_socket: globals.admin_socket,
                idle_exit: globals.idle_exit,
                notes,
                files,
            })
        }
        Some(_) | None => Err(ConfigError::Problems(problems)),
    }
}
