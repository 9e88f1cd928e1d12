//! Flags that several commands share: the servers of a command line, and how much is logged.

use clap::{ArgAction, Args};
use gateway::settings::Secret;

use super::{SOURCE, secret};

/// The servers that `serve` and `check` take from the command line, and what they are given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct SourceFlags {
    /// Use this remote server
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Use this server: a command in quotes, or a URL; may be repeated
    #[arg(long, value_name = "NAME=COMMAND", value_parser = secret, help_heading = SOURCE)]
    pub(crate) server: Vec<Secret>,
    /// Read variables for the commands from this file, one NAME=VALUE per line
    #[arg(long, value_name = "FILE", help_heading = SOURCE)]
    pub(crate) env_file: Option<String>,
    /// Start the commands in this directory
    #[arg(long, value_name = "DIR", help_heading = SOURCE)]
    pub(crate) cwd: Option<String>,
    /// Send this header to the remote server, with `${VAR}` from the environment; may be repeated
    #[arg(long, value_name = "NAME: VALUE", value_parser = secret, help_heading = SOURCE)]
    pub(crate) header: Vec<Secret>,
    /// Use the token that `rialto login` stored for the remote server [default: none]
    #[arg(long, value_name = "oauth|none", help_heading = SOURCE)]
    pub(crate) auth: Option<String>,
    /// Choose the transport to the remote server [default: auto]
    #[arg(long, value_name = "auto|streamable-http|sse", help_heading = SOURCE)]
    pub(crate) transport: Option<String>,
    /// Trust these certificates of the remote server, in PEM, in addition to the system's
    #[arg(long, value_name = "FILE", help_heading = SOURCE)]
    pub(crate) ca_file: Option<String>,
}

/// How much is logged. `RUST_LOG` selects lines in detail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub(crate) struct VerbosityFlags {
    /// Log more: -v every call, -vv everything
    #[arg(short, long, action = ArgAction::Count, help_heading = "Logs", conflicts_with = "quiet")]
    pub(crate) verbose: u8,
    /// Log warnings and errors only
    #[arg(short, long, help_heading = "Logs")]
    pub(crate) quiet: bool,
}

impl VerbosityFlags {
    /// Returns the log directives that the flags stand for.
    pub(crate) const fn directives(self) -> Option<&'static str> {
        match (self.quiet, self.verbose) {
            (true, _) => Some("warn"),
            (false, 0) => None,
            // The libraries below log each frame at the level debug.
            (false, 1) => Some("info,rialto=debug,gateway=debug,protocol=debug,oauth=debug,cluster=debug"),
            (false, _) => Some("trace"),
        }
    }
}
