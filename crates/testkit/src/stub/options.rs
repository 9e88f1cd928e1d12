//! The stub's flags. Unknown ones are refused, so that a typing error in a test does not pass as
//! health.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::failure::{Failure, Result};

/// What this process is for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Role {
    Serve(Options),
    /// `--stubborn PIDFILE`: the grandchild of `--grandchild`.
    Stubborn(PathBuf),
    /// `--daemonise PIDFILE`: leaves its session, starts a stubborn process and ends.
    Daemonise(PathBuf),
    /// `--launch [--max-files N] [--user N] [--socket] PROGRAM ARG…`: becomes that program, in a new
    /// session. With `--socket` it passes its stdin on as systemd passes a socket.
    Launch(Launch),
    /// `--limit-processes PID N`: sets the limit of a process of the same user.
    LimitProcesses(u32, Option<u64>),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub(super) max_files: Option<u64>,
    pub(super) user: Option<u32>,
    pub(super) passes_socket: bool,
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
}

/// How strictly the handshake is taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// Calls are answered without a handshake too; unknown things are errors.
    #[default]
    Lenient,
    /// `--strict`: any request but `ping` before `initialize` and `notifications/initialized` is an
    /// error, and so is a second `initialize`.
    Strict,
    /// `--stateless`: no handshake is needed and nothing is an error.
    Stateless,
}

/// What a server may offer, and `--no-…` takes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Feature {
    Tools,
    Resources,
    Subscribe,
    Prompts,
    Logging,
    Completions,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) behaviour: Behaviour,
    /// `--slow-start MS`: reads nothing for this long.
    pub(super) slow_start: Option<Duration>,
    /// `--wait-for FILE`: reads nothing until this file exists.
    pub(super) wait_for: Option<PathBuf>,
    /// `--exit-on-discover`: exits with 1 at `server/discover`, as servers of early SDKs do.
    pub(super) exit_on_discover: bool,
    /// `--exit-at-once CODE`.
    pub(super) exit_at_once: Option<u8>,
    /// `--crash-after-start MS`: serves for this long, then exits with 101.
    pub(super) crash_after_start: Option<Duration>,
    /// `--healthy-after N`: the three faults above are for the first N starts in the journal only.
    pub(super) healthy_after: Option<usize>,
    /// `--ignore-term`: neither SIGTERM nor the end of stdin ends it.
    pub(super) ignore_term: bool,
    /// `--ignore-eof`: the end of stdin does not end it, SIGTERM does.
    pub(super) ignore_eof: bool,
    /// `--grandchild PIDFILE`.
    pub(super) grandchild: Option<PathBuf>,
    /// `--daemon PIDFILE`: a stubborn process that has left its group and lost its parent.
    pub(super) daemon: Option<PathBuf>,
    /// `--journal FILE`.
    pub(super) journal: Option<PathBuf>,
    /// `--version V`: the protocol version of every answer to `initialize`; the client's own
    /// otherwise.
    pub(super) version: Option<String>,
    /// `--no-tools`, `--no-resources`, `--no-subscribe`, `--no-prompts`, `--no-logging`,
    /// `--no-completions`.
    pub(super) without: BTreeSet<Feature>,
}

impl Options {
    pub(super) fn has(&self, feature: Feature) -> bool {
        !self.without.contains(&feature)
    }

    pub(super) fn forget_start_faults(&mut self) {
        self.slow_start = None;
        self.exit_at_once = None;
        self.crash_after_start = None;
    }
}

pub(super) fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Role> {
    let mut options = Options::default();
    while let Some(flag) = args.next() {
        let flag = flag.to_string_lossy().into_owned();
        match flag.as_str() {
            "--strict" => options.behaviour = Behaviour::Strict,
            "--stateless" => options.behaviour = Behaviour::Stateless,
            "--slow-start" => options.slow_start = Some(milliseconds(&flag, &mut args)?),
            "--wait-for" => options.wait_for = Some(value(&flag, &mut args)?.into()),
            "--exit-on-discover" => options.exit_on_discover = true,
            "--exit-at-once" => options.exit_at_once = Some(number(&flag, &mut args)?),
            "--crash-after-start" => options.crash_after_start = Some(milliseconds(&flag, &mut args)?),
            "--healthy-after" => options.healthy_after = Some(number(&flag, &mut args)?),
            "--ignore-term" => options.ignore_term = true,
            "--ignore-eof" => options.ignore_eof = true,
            "--grandchild" => options.grandchild = Some(value(&flag, &mut args)?.into()),
            "--daemon" => options.daemon = Some(value(&flag, &mut args)?.into()),
            "--journal" => options.journal = Some(value(&flag, &mut args)?.into()),
            "--version" => options.version = Some(value(&flag, &mut args)?.to_string_lossy().into_owned()),
            "--no-tools" => _ = options.without.insert(Feature::Tools),
            "--no-resources" => _ = options.without.insert(Feature::Resources),
            "--no-subscribe" => _ = options.without.insert(Feature::Subscribe),
            "--no-prompts" => _ = options.without.insert(Feature::Prompts),
            "--no-logging" => _ = options.without.insert(Feature::Logging),
            "--no-completions" => _ = options.without.insert(Feature::Completions),
            "--stubborn" => return Ok(Role::Stubborn(value(&flag, &mut args)?.into())),
            "--daemonise" => return Ok(Role::Daemonise(value(&flag, &mut args)?.into())),
            "--launch" => return launch(&mut args),
            "--limit-processes" => {
                let pid = number(&flag, &mut args)?;
                return Ok(Role::LimitProcesses(pid, number(&flag, &mut args).ok()));
            }
            _ => return Err(Failure::new(format!("unknown flag {flag}"))),
        }
    }
    if options.healthy_after.is_some() && options.journal.is_none() {
        return Err(Failure::new(
            "--healthy-after counts the starts in the journal: it needs --journal",
        ));
    }
    Ok(Role::Serve(options))
}

fn launch(args: &mut impl Iterator<Item = OsString>) -> Result<Role> {
    let mut program = value("--launch", args)?;
    let mut max_files = None;
    if program == "--max-files" {
        max_files = Some(number("--max-files", args)?);
        program = value("--launch", args)?;
    }
    let mut user = None;
    if program == "--user" {
        user = Some(number("--user", args)?);
        program = value("--launch", args)?;
    }
    let passes_socket = program == "--socket";
    if passes_socket {
        program = value("--launch", args)?;
    }
    Ok(Role::Launch(Launch {
        max_files,
        user,
        passes_socket,
        program,
        args: args.collect(),
    }))
}

fn value(flag: &str, args: &mut impl Iterator<Item = OsString>) -> Result<OsString> {
    args.next()
        .ok_or_else(|| Failure::new(format!("{flag} needs a value")))
}

fn number<N: std::str::FromStr>(flag: &str, args: &mut impl Iterator<Item = OsString>) -> Result<N> {
    let text = value(flag, args)?;
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Failure::new(format!("{flag} needs a number, not {}", text.to_string_lossy())))
}

fn milliseconds(flag: &str, args: &mut impl Iterator<Item = OsString>) -> Result<Duration> {
    number(flag, args).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Role> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn an_unknown_flag_is_refused() {
        assert_eq!(parsed("--strikt"), Err(Failure::new("unknown flag --strikt")));
    }

    #[test]
    fn a_flag_without_its_number_is_refused() {
        assert!(parsed("--slow-start").is_err());
        assert!(parsed("--slow-start soon").is_err());
    }

    #[test]
    fn flags_are_taken_together() {
        let Ok(Role::Serve(options)) = parsed("--strict --slow-start 20 --no-logging --journal j") else {
            panic!("flags refused");
        };
        assert_eq!(options.behaviour, Behaviour::Strict);
        assert_eq!(options.slow_start, Some(Duration::from_millis(20)));
        assert!(!options.has(Feature::Logging) && options.has(Feature::Tools));
    }

    #[test]
    fn everything_after_the_launched_program_is_its_own() {
        let Ok(Role::Launch(launch)) = parsed("--launch --max-files 64 rialto serve --strict") else {
            panic!("launch refused");
        };
        assert_eq!(
            (launch.max_files, launch.program.to_str()),
            (Some(64), Some("rialto"))
        );
        assert_eq!(launch.args, ["serve", "--strict"]);
    }
}
