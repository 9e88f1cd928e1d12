//! `rialto ps`, `top`, `tap`, `tools` and `call`: looking at what runs, and trying it.

use clap::Args;
use gateway::settings::Secret;

use super::secret;

/// `rialto ps`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct PsFlags {
    /// Show each session as well
    #[arg(short, long)]
    pub(crate) sessions: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `rialto top`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct TopFlags {
    /// Look this often
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    pub(crate) interval: String,
    /// End after this many looks
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Show each session as well
    #[arg(short, long)]
    pub(crate) sessions: bool,
}

/// `rialto tap`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct TapFlags {
    /// The destination
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Look at the gateway with this process, if several have the destination
    #[arg(long, value_name = "PID")]
    pub(crate) gateway: Option<u32>,
    /// End after this many messages
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

/// `rialto ui`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct UiFlags {
    /// The destination to show
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Open the page of the gateway with this process, if several run
    #[arg(long, value_name = "PID")]
    pub(crate) gateway: Option<u32>,
    /// Print the address, and open no browser
    #[arg(long)]
    pub(crate) print: bool,
}

/// Where the server of `rialto tools` and `rialto call` is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ServerFlags {
    /// A URL, or the name of a destination: of a gateway that runs, or else of the configuration
    #[arg(value_name = "URL|NAME")]
    pub(crate) server: String,
    /// Look for the name in this file [env: RIALTO_CONFIG] [default: destinations.yml, then that of the user]
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) config: Option<String>,
    /// Use the gateway with this process, if several have the destination
    #[arg(long, value_name = "PID", help_heading = "Server")]
    pub(crate) gateway: Option<u32>,
    /// Send this header to a URL, with `${VAR}` from the environment; may be repeated
    #[arg(long, value_name = "NAME: VALUE", value_parser = secret, help_heading = "Server")]
    pub(crate) header: Vec<Secret>,
    /// Give up after this time [default: 60s]
    #[arg(long, value_name = "DURATION", help_heading = "Server")]
    pub(crate) timeout: Option<String>,
}

/// `rialto tools`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ToolsFlags {
    #[command(flatten)]
    pub(crate) server: ServerFlags,
    /// Print the definitions as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `rialto call`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct CallFlags {
    #[command(flatten)]
    pub(crate) server: ServerFlags,
    /// The tool
    #[arg(value_name = "TOOL")]
    pub(crate) tool: String,
    /// Arguments: NAME=VALUE, typed by the schema of the tool; NAME:=JSON is taken as it is
    #[arg(value_name = "NAME=VALUE")]
    pub(crate) arguments: Vec<String>,
    /// All arguments, as one JSON object; `-` reads it from stdin
    #[arg(long, value_name = "OBJECT", conflicts_with = "arguments")]
    pub(crate) json: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) raw: bool,
}

/// `rialto attach`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct AttachFlags {
    /// The destination
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Use the service of this file [env: RIALTO_CONFIG] [default: that of the user]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,
}
