//! `rialto import`, `adopt`, `install`, `uninstall` and `config`: the files of hosts.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use gateway::settings::Secret;

use crate::hosts::table::{self, HOSTS, Host};

/// `rialto import`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ImportFlags {
    /// The hosts, such as cursor or claude-code; without one, all that have a file
    #[arg(value_name = "HOST", value_parser = host(), hide_possible_values = true)]
    pub(crate) hosts: Vec<&'static Host>,
    /// Write the destinations to this file, and literal secrets to secrets.yml beside it
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<String>,
    /// Read the files that the hosts have in the working directory, too
    #[arg(long)]
    pub(crate) project: bool,
}

/// Returns the reader of the name of a host.
pub(crate) fn host() -> impl TypedValueParser<Value = &'static Host> {
    let names = HOSTS.map(|host| PossibleValue::new(host.id).aliases(host.aliases));
    PossibleValuesParser::new(names).try_map(|name| table::named(&name).ok_or("there is no such host"))
}

pub(super) const IMPORT_EXAMPLES: &str = "\
Examples:
  rialto import
  rialto import cursor claude-desktop
  rialto import --output destinations.yml

Equal servers of several hosts become one destination. What cannot be carried
over is named, with the reason. No secret is printed.";

/// `rialto install`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct InstallFlags {
    /// The host, such as cursor or claude-code
    #[arg(value_name = "HOST", value_parser = host(), hide_possible_values = true)]
    pub(crate) host: &'static Host,
    /// A destination of your file, or the address of a remote server
    #[arg(value_name = "NAME|URL")]
    pub(crate) target: String,
    /// Call the entry this in the host [default: the destination, or a name from the address]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Have the host send this header to the address; may be repeated
    #[arg(long, value_name = "NAME: VALUE", value_parser = super::secret)]
    pub(crate) header: Vec<Secret>,
    /// Find the destination in this file [default: your own destinations.yml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,
    /// Write the file of the project in the working directory
    #[arg(long)]
    pub(crate) project: bool,
    /// Edit the file, although the host has a command of its own for this
    #[arg(long)]
    pub(crate) edit: bool,
}

/// `rialto uninstall`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct UninstallFlags {
    /// The host, such as cursor or claude-code
    #[arg(value_name = "HOST", value_parser = host(), hide_possible_values = true)]
    pub(crate) host: &'static Host,
    /// The entry
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Write the file of the project in the working directory
    #[arg(long)]
    pub(crate) project: bool,
    /// Edit the file, although the host has a command of its own for this
    #[arg(long)]
    pub(crate) edit: bool,
}

/// `rialto config`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct ConfigFlags {
    /// Print what to paste into this host
    #[arg(long = "for", value_name = "HOST", value_parser = host(), hide_possible_values = true)]
    pub(crate) host: &'static Host,
    /// Read the destinations from this file [env: RIALTO_CONFIG] [default: destinations.yml, or your own]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,
    /// Only these destinations
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

pub(super) const INSTALL_EXAMPLES: &str = "\
Examples:
  rialto install claude-code https://mcp.linear.app/mcp
  rialto install claude-desktop https://mcp.linear.app/mcp
  rialto install cursor files

A destination is started by `rialto attach`, and all hosts share it. A host
with a command of its own, such as `claude mcp add`, writes its file itself.";

pub(super) const UNINSTALL_EXAMPLES: &str = "\
Examples:
  rialto uninstall cursor files";

pub(super) const CONFIG_EXAMPLES: &str = "\
Examples:
  rialto config --for cursor
  rialto config --for claude-desktop --config /etc/rialto/destinations.yml files";

/// `rialto adopt`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct AdoptFlags {
    /// The hosts, such as cursor or claude-code; without one, all that have a file
    #[arg(value_name = "HOST", value_parser = host(), hide_possible_values = true)]
    pub(crate) hosts: Vec<&'static Host>,
    /// Show what would be written, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Write without asking
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Take every adoption back
    #[arg(long, conflicts_with_all = ["dry_run", "hosts", "project", "config"])]
    pub(crate) undo: bool,
    /// Restore files that were edited since, too; a copy of each is kept
    #[arg(long, requires = "undo")]
    pub(crate) force: bool,
    /// Adopt the files that the hosts have in the working directory, too
    #[arg(long)]
    pub(crate) project: bool,
    /// Write the destinations to this file [default: your own destinations.yml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,
}

pub(super) const ADOPT_EXAMPLES: &str = "\
Examples:
  rialto adopt --dry-run
  rialto adopt cursor claude-code
  rialto adopt --yes
  rialto adopt --undo

Each host then starts `rialto attach NAME`, and all hosts share one process of
each server. Comments and everything else in their files stay. --undo restores
every file byte for byte.";
