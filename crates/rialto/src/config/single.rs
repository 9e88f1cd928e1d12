//! The destinations of a command line: `serve -- COMMAND`, `serve URL`, `serve --server NAME=COMMAND`,
//! `serve --demo`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gateway::platform;
use gateway::settings::{BackendSpec, Destination, Inherits, Secret, Sharing};

use super::destination::{self, Defaults, SHARINGS};
use super::environment::Environment;
use super::problem::Place;
use super::reader::{Given, Walk, one_of};
use super::{connection, filled_command, interpolate, name, quantity};
use crate::flags::ServeFlags;

/// One server of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Single {
    Command,
    Remote(String),
    /// `NAME=COMMAND` or `NAME=URL`, as `--server` has it.
    Named(Secret),
    Demo,
}

/// Builds them, without those that something is wrong with, which has been reported then.
pub(super) fn read(
    servers: &[Single],
    flags: &ServeFlags,
    environment: &Environment,
    defaults: &Defaults,
    walk: &Walk<'_>,
) -> Vec<Destination> {
    let choice = given(
        ("--process", flags.process.as_deref()),
        "RIALTO_PROCESS",
        environment,
    );
    let start_timeout = given(
        ("--start-timeout", flags.start_timeout.as_deref()),
        "RIALTO_START_TIMEOUT",
        environment,
    );
    let common = Common {
        name: given(("--name", flags.name.as_deref()), "RIALTO_NAME", environment)
            .and_then(|given| walk.parse(&given, |text| name::check(text).map(|()| text.to_owned()))),
        sharing: choice.and_then(|given| walk.parse(&given, |text| one_of(text, &SHARINGS))),
        start_timeout: start_timeout.and_then(|given| walk.parse(&given, quantity::some_time)),
        env: variables(flags, environment, walk),
        cwd: flags.source.cwd.as_deref().map(PathBuf::from),
    };
    let is_remote = matches!(servers, [Single::Remote(_)]);
    let is_named = matches!(servers, [Single::Named(_), ..]);
    for (flag, is_given) in [
        ("--header", !flags.source.header.is_empty()),
        ("--auth", flags.source.auth.is_some()),
        ("--transport", flags.source.transport.is_some()),
        ("--ca-file", flags.source.ca_file.is_some()),
    ] {
        if is_given && !is_remote && !is_named {
            walk.fail(
                Place::Flag(flag),
                "is for a remote server: write its URL, or give a command its secrets with --env",
            );
        }
    }
    if is_named && flags.name.is_some() {
        walk.fail(Place::Flag("--name"), "is one more name: --server has its own");
    }
    let mut destinations: Vec<Destination> = Vec::new();
    for server in servers {
        let Some(destination) = read_one(server, flags, environment, defaults, &common, walk) else {
            continue;
        };
        if destinations.iter().any(|other| other.name == destination.name) {
            let message = format!("`{}` is the name of two servers: rename one", destination.name);
            walk.fail(Place::Flag("--server"), message);
        }
        destinations.push(destination);
    }
    destinations
}

/// What the flags give to each server.
struct Common {
    name: Option<String>,
    sharing: Option<Sharing>,
    start_timeout: Option<std::time::Duration>,
    env: BTreeMap<String, Secret>,
    cwd: Option<PathBuf>,
}

fn read_one(
    server: &Single,
    flags: &ServeFlags,
    environment: &Environment,
    defaults: &Defaults,
    common: &Common,
    walk: &Walk<'_>,
) -> Option<Destination> {
    let remote = |url: &str| connection::behind_gateway(url, flags, environment, walk, defaults);
    // A command was typed in a shell whose variables are meant for it.
    let (argv, inherits, default_name) = match server {
        Single::Remote(url) => {
            let destination = remote(url)?;
            let name = common.name.clone().unwrap_or(destination.name);
            let legacy_sse = flags.legacy_sse;
            return Some(Destination {
                name,
                legacy_sse,
                ..destination
            });
        }
        Single::Command => {
            let name = name::of_command(&flags.command);
            (flags.command.clone(), Inherits::Everything, name)
        }
        Single::Demo => (demo_command(walk)?, Inherits::AllowList, "demo".to_owned()),
        Single::Named(written) => {
            let (name, command) = named(written, walk)?;
            if super::is_web_address(&command) {
                let legacy_sse = flags.legacy_sse;
                return Some(Destination {
                    name,
                    legacy_sse,
                    ..remote(&command)?
                });
            }
            let argv = filled_command(&command, environment)
                .map_err(|message| walk.fail(Place::Flag("--server"), format!("`{name}`: {message}")))
                .ok()?;
            (argv, Inherits::Everything, name)
        }
    };
    let name = common.name.clone().unwrap_or(default_name);
    let sharing = common.sharing.unwrap_or(Sharing::Shared);
    let mut destination = destination::plain(name, argv, common.env.clone(), inherits, sharing, defaults);
    if let Some(start_timeout) = common.start_timeout {
        destination.instances.start_timeout = start_timeout;
    }
    if let BackendSpec::Process(process) = &mut destination.backend {
        process.cwd.clone_from(&common.cwd);
    }
    destination.legacy_sse = flags.legacy_sse;
    Some(destination)
}

/// Splits `NAME=COMMAND`. The command may hold a secret, so it is never shown.
fn named(written: &Secret, walk: &Walk<'_>) -> Option<(String, String)> {
    let place = || Place::Flag("--server");
    let Some((name, command)) = written.expose().split_once('=') else {
        walk.fail(
            place(),
            "write a name and a command: --server files='npx -y @modelcontextprotocol/server-filesystem .'",
        );
        return None;
    };
    if let Err(message) = name::check(name) {
        walk.fail(place(), message);
        return None;
    }
    Some((name.to_owned(), command.trim().to_owned()))
}

/// In a file, flags for a single command would apply to no destination or to all; both would
/// surprise.
pub(super) fn refuse_with_file(flags: &ServeFlags, walk: &Walk<'_>) {
    for (flag, is_given, key) in [
        ("--name", flags.name.is_some(), "the name of the destination"),
        ("--process", flags.process.is_some(), "`process`"),
        ("--env", !flags.env.is_empty(), "`env`"),
        ("--env-file", flags.source.env_file.is_some(), "`env`"),
        ("--cwd", flags.source.cwd.is_some(), "`cwd`"),
        ("--legacy-sse", flags.legacy_sse, "`legacy_sse: true`"),
        ("--header", !flags.source.header.is_empty(), "`headers`"),
        ("--auth", flags.source.auth.is_some(), "`auth`"),
        ("--transport", flags.source.transport.is_some(), "`type`"),
        ("--ca-file", flags.source.ca_file.is_some(), "`ca_file`"),
        (
            "--start-timeout",
            flags.start_timeout.is_some(),
            "`start_timeout`",
        ),
    ] {
        if is_given {
            walk.fail(
                Place::Flag(flag),
                format!(
                    "is for servers of the command line: write {key} in {} instead",
                    walk.file
                ),
            );
        }
    }
}

/// This very program, as the demo server.
fn demo_command(walk: &Walk<'_>) -> Option<Vec<String>> {
    let started_as = std::env::args_os().next();
    let program = std::env::current_exe()
        .ok()
        .or_else(|| platform::own_program(started_as.as_deref()))
        .and_then(|path| path.into_os_string().into_string().ok());
    match program {
        Some(program) => Some(vec![program, "demo-server".to_owned()]),
        None => {
            walk.fail(
                Place::Flag("--demo"),
                "the path of this program is not known: write `-- rialto demo-server` instead",
            );
            None
        }
    }
}

pub(super) fn given(
    (flag, value): (&'static str, Option<&str>),
    variable: &'static str,
    environment: &Environment,
) -> Option<Given> {
    let (text, place) = match (value, environment.filled(variable)) {
        (Some(value), _) => (value, Place::Flag(flag)),
        (None, Some(value)) => (value, Place::Variable(variable)),
        (None, None) => return None,
    };
    Some(Given {
        text: text.to_owned(),
        written: text.to_owned(),
        place,
    })
}

/// `--env NAME=VALUE`, or `--env NAME` to pass a variable on without showing it in a process list.
/// These beat the variables of `--env-file`.
fn variables(flags: &ServeFlags, environment: &Environment, walk: &Walk<'_>) -> BTreeMap<String, Secret> {
    let from_variable = environment.filled("RIALTO_ENV").unwrap_or_default();
    let mut lines = file_lines(flags, walk);
    if flags.env.is_empty() {
        let variable = from_variable.lines().map(str::trim);
        lines.extend(
            variable
                .filter(|line| !line.is_empty())
                .map(|line| (line.to_owned(), Place::Variable("RIALTO_ENV"))),
        );
    } else {
        let flag = flags.env.iter().map(|line| line.expose().to_owned());
        lines.extend(flag.map(|line| (line, Place::Flag("--env"))));
    }
    let mut variables = BTreeMap::new();
    for (line, place) in lines {
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (line.as_str(), environment.get(&line)),
        };
        // The value is never shown: it may be a secret.
        if let Err(message) = quantity::variable_name(name) {
            walk.fail(place, message);
        } else if value.is_some_and(|value| value.contains('\0')) {
            walk.fail(
                place,
                format!("the value of {name} holds a NUL character, which no program can be given"),
            );
        } else if let Some(value) = value {
            variables.insert(name.to_owned(), Secret::new(value));
        } else {
            walk.fail(
                place,
                format!("the variable {name} is not set: write {name}=VALUE, or set it"),
            );
        }
    }
    variables
}

/// Returns the lines of `--env-file`, each as `NAME=VALUE`.
fn file_lines(flags: &ServeFlags, walk: &Walk<'_>) -> Vec<(String, Place)> {
    let Some(file) = flags.source.env_file.as_deref() else {
        return Vec::new();
    };
    let place = || Place::File {
        file: file.to_owned(),
        line: 0,
    };
    let text = match interpolate::read_text(Path::new(file)) {
        Ok(text) => text,
        Err(message) => {
            walk.fail(place(), format!("the file of --env-file {message}"));
            return Vec::new();
        }
    };
    let mut lines = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let place = Place::File {
            file: file.to_owned(),
            line: number,
        };
        match line.split_once('=') {
            Some((name, value)) => {
                lines.push((format!("{}={}", name.trim_end(), unquoted(value.trim())), place));
            }
            None => walk.fail(place, "write NAME=VALUE, or a comment that begins with #"),
        }
    }
    lines
}

/// Returns a value without the quotes around it.
fn unquoted(value: &str) -> &str {
    let between = |quote| {
        value
            .strip_prefix(quote)
            .and_then(|rest| rest.strip_suffix(quote))
    };
    between('"').or_else(|| between('\'')).unwrap_or(value)
}
