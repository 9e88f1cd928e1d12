//! Why there is no token, and what the user can do about it.
//!
//! The text of each error reaches a person through a JSON-RPC error or a terminal, so it ends in
//! what to do. No text carries a token, a code or a client's secret, and a peer's words only short
//! and escaped.

use crate::url_policy::{UrlError, printable};

/// Signing in has failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SignInError {
    /// The process has no browser to open.
    #[error("{resource} wants a sign-in; run: rialto login {resource}{scopes}")]
    LoginNeeded { resource: String, scopes: ScopeFlags },
    /// See [`Settings::asleep`](crate::Settings::asleep).
    #[error("{resource} requires a sign-in, which begins with the first request to it")]
    Asleep { resource: String },
    #[error("signing in needs {url}, which Rialto does not request: {error}")]
    Unreachable {
        url: String,
        #[source]
        error: UrlError,
    },
    #[error("{url} could not be requested: {why}")]
    Network { url: String, why: String },
    #[error("the response of {url} is larger than {limit} bytes")]
    TooLarge { url: String, limit: usize },
    /// Protected-resource metadata that speaks of another resource.
    #[error(
        "the metadata of {endpoint} is about another resource, {resource}; the server's operator must correct it"
    )]
    OtherResource { endpoint: String, resource: String },
    #[error("the authorization server of {resource} could not be found: {why}")]
    Discovery { resource: String, why: String },
    /// No metadata of an authorization server, and none where 2025-03-26 puts it.
    #[error(
        "{resource} wants a token and offers no sign-in: set BEARER_TOKEN or --header 'Authorization: Bearer …' (in a file: `headers`)"
    )]
    TokenNeeded { resource: String },
    /// A document that is not its issuer's own, or an issuer that the resource does not name.
    #[error(
        "the metadata {address} of an authorization server is refused: {why}. Nothing was sent there; the server's operator must correct it, unless this is an attack"
    )]
    Metadata { address: String, why: String },
    #[error(
        "the resource {resource} wants sign-ins at {found}, but the client {client} belongs to {known}. If {found} may have its secret, give --issuer {found}"
    )]
    OtherIssuer {
        resource: String,
        found: String,
        client: String,
        known: String,
    },
    #[error("{resource} wants sign-ins at {found}, but --issuer names {named}")]
    NotTheIssuer {
        resource: String,
        found: String,
        named: String,
    },
    #[error(
        "the token endpoint of {issuer} has moved to {host}, which has given this client no token yet; if that is right, sign in again: rialto login {resource}"
    )]
    MovedTokenEndpoint {
        issuer: String,
        host: String,
        resource: String,
    },
    #[error(
        "the authorization server {issuer} has people sign in at {authorization} and takes their codes at {token}, and does not sign its answers (RFC 9207); if both belong together, give --allow-split-authority"
    )]
    SplitAuthority {
        issuer: String,
        authorization: String,
        token: String,
    },
    #[error(
        "the authorization endpoint of {issuer} brings its own `{parameter}`, which is Rialto's to choose; the server's operator must correct it"
    )]
    AuthorizationParameters { issuer: String, parameter: String },
    #[error(
        "the authorization server {issuer} does not offer PKCE with S256, without which signing in is not safe; its operator must enable it"
    )]
    NoPkce { issuer: String },
    #[error(
        "the authorization server {issuer} takes no registration from programs; register a client there by hand (redirect URI http://127.0.0.1:PORT/callback) and give --client-id, --redirect-uri and, if it has one, --client-secret-env"
    )]
    NoRegistration { issuer: String },
    #[error(
        "the authorization server {issuer} refused to register a client: {why}; register one by hand and give --client-id"
    )]
    Registration { issuer: String, why: String },
    #[error(
        "the authorization server {issuer} takes none of the ways a client can prove itself here: {offered}"
    )]
    NoClientAuthentication { issuer: String, offered: String },
    #[error("the callback listener could not be opened at {address}: {why}; is the port in use?")]
    Listener { address: String, why: String },
    #[error("no sign-in within {seconds} s; try again, the link is printed on stderr")]
    SignInTimeout { seconds: u64 },
    /// The answer came from another server. Nothing of it is shown.
    #[error(
        "the answer to the sign-in did not come from the authorization server {issuer}; nothing of it was used"
    )]
    WrongIssuer { issuer: String },
    #[error("the authorization server refused: {code}{description}; try again, or ask the server's operator")]
    Denied { code: String, description: String },
    #[error("the answer to the sign-in could not be read: {0}")]
    Callback(&'static str),
    #[error("the authorization server {issuer} gave no token: {why}")]
    Token { issuer: String, why: String },
    #[error(
        "the token of {resource} could not be renewed: {why}; if that stays so, run: rialto login {resource}"
    )]
    Refresh { resource: String, why: String },
    #[error(
        "{resource} refuses the token that was just issued for it; check with its operator that your account may use it"
    )]
    StillRefused { resource: String },
    #[error(
        "{resource} keeps asking for more permissions ({scopes}) than the sign-in grants; ask its operator"
    )]
    ScopesNotGranted { resource: String, scopes: String },
    #[error("{resource} forbids this request; another sign-in does not help")]
    Forbidden { resource: String },
    /// A process that waited for another one's sign-in learns how that ended.
    #[error("signing in from another process failed: {why}")]
    Elsewhere { why: String },
    #[error("{issuer} did not revoke the token: {why}")]
    NotRevoked { issuer: String, why: String },
    #[error("the token store {path}: {why}")]
    Store { path: String, why: String },
    #[error("another rialto process has been signing in for {seconds} s; finish there or end it")]
    Busy { seconds: u64 },
    #[error("{0}")]
    Settings(String),
}

impl SignInError {
    pub(crate) fn unreachable(url: &str, error: UrlError) -> Self {
        Self::Unreachable {
            url: printable(url),
            error,
        }
    }
}

/// ` --scope …` for the command line of the message, or nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScopeFlags(pub(crate) Vec<String>);

impl std::fmt::Display for ScopeFlags {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for scope in &self.0 {
            // A server chose the scope, and a person pastes the line into a shell.
            write!(formatter, " --scope '{}'", scope.replace('\'', r"'\''"))?;
        }
        Ok(())
    }
}
