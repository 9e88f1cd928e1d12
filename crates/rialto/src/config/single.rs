//! The one destination of `rialto serve -- COMMAND` and of `rialto serve --demo`.

use std::collections::BTreeMap;

use gateway::platform;
use gateway::settings::{Destination, Inherits, Secret, Sharing};

use super::destination::{self, Defaults, SHARINGS};
use super::environment::Environment;
use super::problem::Place;
use super::reader::{Given, Walk, one_of};
use super::{name, quantity};
use crate::flags::ServeFlags;

/// What the one destination runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Single {
    Command,
    Demo,
}

/// Builds it; `None` when something is wrong, which has been reported then.
pub(super) fn read(
    single: Single,
    flags: &ServeFlags,
    environment: &Environment,
    defaults: &Defaults,
    walk: &Walk<'_>,
) -> Option<Destination> {
    let argv = match single {
        Single::Command => flags.command.clone(),
        Single::Demo => demo_command(walk)?,
    };
    let name = match given(("--name", flags.name.as_deref()), "RIALTO_NAME", environment) {
        Some(given) => walk.parse(&given, |text| name::check(text).map(|()| text.to_owned()))?,
        None => match single {
            Single::Command => name::of_command(&argv),
            Single::Demo => "demo".to_owned(),
        },
    };
    let sharing = given(
        ("--process", flags.process.as_deref()),
        "RIALTO_PROCESS",
        environment,
    )
    .and_then(|given| walk.parse(&given, |text| one_of(text, &SHARINGS)))
    .unwrap_or(Sharing::Shared);
    let env = variables(flags, environment, walk);
    // The command was typed in a shell whose variables are meant for it.
    let inherits = match single {
        Single::Command => Inherits::Everything,
        Single::Demo => Inherits::AllowList,
    };
    let start_timeout = given(
        ("--start-timeout", flags.start_timeout.as_deref()),
        "RIALTO_START_TIMEOUT",
        environment,
    )
    .and_then(|given| walk.parse(&given, quantity::some_time));
    let mut destination = destination::plain(name, argv, env, inherits, sharing, defaults);
    if let Some(start_timeout) = start_timeout {
        destination.instances.start_timeout = start_timeout;
    }
    Some(destination)
}

/// In a file, flags for a single command would apply to no destination or to all; both would
/// surprise.
pub(super) fn refuse_with_file(flags: &ServeFlags, walk: &Walk<'_>) {
    for (flag, is_given, key) in [
        ("--name", flags.name.is_some(), "the name of the destination"),
        ("--process", flags.process.is_some(), "`process`"),
        ("--env", !flags.env.is_empty(), "`env`"),
        (
            "--start-timeout",
            flags.start_timeout.is_some(),
            "`start_timeout`",
        ),
    ] {
        if is_given {
            walk.fail(
                Place::Flag(flag),
                format!("is for `-- COMMAND` only: write {key} in {} instead", walk.file),
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
fn variables(flags: &ServeFlags, environment: &Environment, walk: &Walk<'_>) -> BTreeMap<String, Secret> {
    let from_variable = environment.filled("RIALTO_ENV").unwrap_or_default();
    let lines: Vec<(&str, Place)> = if flags.env.is_empty() {
        let lines = from_variable
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        lines.map(|line| (line, Place::Variable("RIALTO_ENV"))).collect()
    } else {
        flags
            .env
            .iter()
            .map(|line| (line.expose(), Place::Flag("--env")))
            .collect()
    };
    let mut variables = BTreeMap::new();
    for (line, place) in lines {
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (line, environment.get(line)),
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
