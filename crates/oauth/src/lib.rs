//! Signing in at remote MCP servers: discovery, PKCE, tokens, and where they are kept.
//!
//! A backend uses [`SignIn`]: for the value of `Authorization`, and for what to do when the server
//! refuses. Everything else is behind it. It knows nothing of MCP messages, and it is no
//! authorization server.
//!
//! | Part | Module |
//! |---|---|
//! | the order of requests from a challenge to an authorization server (RFC 9728, RFC 8414) | `discovery` |
//! | what the two kinds of metadata must contain | `resource_metadata`, `server_metadata` |
//! | whether a document is its issuer's own | `issuer` |
//! | reading `WWW-Authenticate` | `www_authenticate` |
//! | which client: registered by hand, metadata document, dynamic registration (RFC 7591) | `registration` |
//! | which scopes, and how often more of them | `scope` |
//! | PKCE and `state` of the page that opens (RFC 7636) | `sign_in::authorization_request` |
//! | `state` and `iss` of what the browser brings back (RFC 9207), and its listener | `callback` |
//! | the token requests, refresh and revocation (RFC 6749, RFC 7009) | `sign_in` |
//! | a client's secret, or its signature (RFC 7523) | `sign_in::client_authentication`, `signing` |
//! | tokens on disk or in the keyring, one sign-in for many processes | `store`, `sign_in` |
//! | what a server offers, without signing in | `inspection` |
//! | which URLs and addresses may be requested; size and time limits | `url_policy`, `http` |

mod browser;
mod callback;
mod discovery;
mod error;
mod http;
mod inspection;
mod issuer;
mod registration;
mod resource_metadata;
mod scope;
mod secret;
mod server_metadata;
mod settings;
mod sign_in;
mod signing;
mod store;
mod url_policy;
mod www_authenticate;

pub use browser::Browser;
pub use error::{ScopeFlags, SignInError};
pub use inspection::{Challenge, Inspection, inspect};
pub use registration::Identity;
pub use secret::{Authorization, Secret};
pub use settings::{Grant, Settings};
pub use sign_in::{LoginOutcome, LogoutOutcome, SignIn};
pub use signing::SigningKey;
pub use store::{StoreSettings, StoredToken, list};
pub use url_policy::UrlError;

pub use crate::http::HttpSettings;
