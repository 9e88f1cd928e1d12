//! `rialto login`, `rialto logout`, `rialto status`: the accounts at remote servers.

use clap::Args;
use gateway::settings::Secret;

use super::secret;

/// The heading of the flags for a client and its authorization server.
const SIGNING_IN: &str = "Signing in";

/// `rialto login`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct LoginFlags {
    /// The remote server's MCP endpoint
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) client: ClientFlags,
    /// Trust these certificates, in PEM, in addition to the system's
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    pub(crate) ca_file: Option<String>,
}

/// The OAuth client and its authorization server, for `login` and `connect`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ClientFlags {
    /// Request this scope in addition to what the server requires; may be repeated [env:
    /// RIALTO_SCOPE, separated by spaces]
    #[arg(long, value_name = "SCOPE", help_heading = SIGNING_IN)]
    pub(crate) scope: Vec<String>,
    /// Use this client, which was registered at the authorization server by hand [env:
    /// RIALTO_CLIENT_ID]
    #[arg(long, value_name = "ID", help_heading = SIGNING_IN)]
    pub(crate) client_id: Option<String>,
    /// Read that client's secret from this variable [env: RIALTO_CLIENT_SECRET_ENV] [default:
    /// RIALTO_CLIENT_SECRET]
    #[arg(long, value_name = "NAME", help_heading = SIGNING_IN)]
    pub(crate) client_secret_env: Option<String>,
    /// Sign with that client's private key, in PEM, instead of a secret; implies `--grant
    /// client-credentials` [env: RIALTO_CLIENT_KEY_FILE]
    #[arg(long, value_name = "FILE", conflicts_with = "client_secret_env", help_heading = SIGNING_IN)]
    pub(crate) client_key_file: Option<String>,
    /// Use the client-id metadata document at this address [env: RIALTO_CLIENT_METADATA_URL]
    #[arg(long, value_name = "URL", help_heading = SIGNING_IN)]
    pub(crate) client_metadata_url: Option<String>,
    /// Sign in only at this authorization server [env: RIALTO_ISSUER] [default: the server's
    /// choice; a secret or key stays with the first]
    #[arg(long, value_name = "URL", help_heading = SIGNING_IN)]
    pub(crate) issuer: Option<String>,
    /// Redirect the browser to this address, if the client was registered for a fixed one [env:
    /// RIALTO_REDIRECT_URI] [default: a free port on 127.0.0.1]
    #[arg(long, value_name = "URL", help_heading = SIGNING_IN)]
    pub(crate) redirect_uri: Option<String>,
    /// Sign in as a person with a browser, or as the client itself with its secret or key [env:
    /// RIALTO_GRANT] [default: person]
    #[arg(long, value_name = "person|client-credentials", help_heading = SIGNING_IN)]
    pub(crate) grant: Option<String>,
    /// Allow authorization and token endpoints at different hosts, also without RFC 9207 [env:
    /// RIALTO_ALLOW_SPLIT_AUTHORITY]
    #[arg(long, help_heading = SIGNING_IN)]
    pub(crate) allow_split_authority: bool,
    /// Allow an authorization server at a private address, as in a company's network [env:
    /// RIALTO_ALLOW_PRIVATE_ADDRESSES]
    #[arg(long, help_heading = SIGNING_IN)]
    pub(crate) allow_private_addresses: bool,
    /// A client in the words of mcp-remote: a JSON object with `client_id` and `client_secret`, or
    /// `@FILE`.
    #[arg(long, value_name = "JSON|@FILE", value_parser = secret, hide = true, conflicts_with = "client_id", help_heading = SIGNING_IN)]
    pub(crate) static_oauth_client_info: Option<Secret>,
}

/// `rialto logout`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct LogoutFlags {
    /// The remote server's MCP endpoint, as it was given to `login`
    #[arg(value_name = "URL")]
    pub(crate) url: String,
}

/// `rialto status`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct StatusFlags {}

pub(super) const LOGIN_EXAMPLES: &str = "\
Examples:
  rialto login https://mcp.example.com/mcp
  rialto login https://mcp.example.com/mcp --scope files:read
  rialto login https://mcp.example.com/mcp --client-id my-client \\
      --redirect-uri http://127.0.0.1:8765/callback
  ROBOT=… rialto login https://mcp.example.com/mcp --client-id robot \\
      --grant client-credentials --client-secret-env ROBOT
  rialto login https://mcp.example.com/mcp --client-id robot \\
      --grant client-credentials --client-key-file robot.pem

Variables without a flag: RIALTO_BROWSER (the command that opens a page),
RIALTO_STATE_DIR (the directory of stored tokens), RIALTO_KEYRING (off: store
them in a file only), RUST_LOG.";

pub(super) const LOGOUT_EXAMPLES: &str = "\
Examples:
  rialto logout https://mcp.example.com/mcp";

pub(super) const STATUS_EXAMPLES: &str = "\
Examples:
  rialto status";
