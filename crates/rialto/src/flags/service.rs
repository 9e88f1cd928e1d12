//! `rialto service`: `serve` as a service of the user.

use clap::{Args, Subcommand, ValueEnum};

use super::examples;

/// `rialto service`.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Write the unit, and start the service now and at each login
    #[command(after_help = examples::SERVICE)]
    Install(ServiceFlags),
    /// Stop the service, and remove the unit
    #[command(after_help = examples::SERVICE)]
    Uninstall(ManagerFlags),
    /// Show whether the service is installed, and what it serves
    #[command(after_help = examples::SERVICE)]
    Status(ServiceStatusFlags),
    /// Show the log of the service
    #[command(after_help = examples::SERVICE)]
    Logs(LogsFlags),
}

/// What starts services of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Manager {
    Systemd,
    Launchd,
}

/// `rialto service install`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ServiceFlags {
    /// Serve this file [default: that of the user]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,
    /// Print the unit, and change nothing
    #[arg(long)]
    pub(crate) print: bool,
    #[command(flatten)]
    pub(crate) manager: ManagerFlags,
}

/// Which manager.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ManagerFlags {
    /// Use this service manager [default: that of this system]
    #[arg(long, value_enum)]
    pub(crate) manager: Option<Manager>,
}

/// `rialto service status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ServiceStatusFlags {
    /// Look for the service of this file [default: that of the user]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,
    #[command(flatten)]
    pub(crate) manager: ManagerFlags,
}

/// `rialto service logs`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct LogsFlags {
    /// Show this many lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub(crate) lines: usize,
    /// Go on as lines come
    #[arg(short, long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) manager: ManagerFlags,
}
