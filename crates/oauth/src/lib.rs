//! Signing in at remote MCP servers: discovery, PKCE, tokens, and where they are kept.
//!
//! [`SignIn`] is what a backend asks: what to send in `Authorization`, and what to do when the server refuses. Everything else is
//! behind it. It knows nothing of MCP messages, and it is no authorization server.
//!
//! rmcp's `auth` module carries what it does right; the rest is here, because rmcp cannot or does not do it:
//!
//! | Duty | By | Why not rmcp |
//! |---|---|---|
//! | finding the documents, in all forms and their order | rmcp | |
//! | comparing the issuer with the document's address and the resource's words | `issuer` | leaves it out for some addresses |
//! | tokens and secrets go only where they came from | `store`, `sign_in` | keeps no endpoints |
//! | the fall-back of 2025-03-26 | rmcp | |
//! | metadata of another resource ends the discovery | `edge` | looks further, and ends at the fall-back |
//! | PKCE S256, state, `resource`, the three token exchanges, rotation | rmcp | |
//! | no word of PKCE: refuse | `discovery` | warns and goes on |
//! | https, addresses, size, time | `guard`, `edge` | filters its own HTTP client only, and lets http pass |
//! | which client: by hand, document, registration | `registration` | registers public clients only, forgets the method |
//! | which scopes | `scope` | adds up everything it has ever seen |
//! | state and `iss` of the answer, of refusals too | `callback` | reads answers with a code only |
//! | giving tokens back | `sign_in` | does not |
//! | the door the browser comes back to, the browser | `callback::listener`, `browser` | has none |
//! | keeping tokens, one sign-in for many processes | `store`, `sign_in` | a trait only; keeps no client secret |
//! | silence | `discovery`, `sign_in` | logs codes and identity tokens at debug level |

mod browser;
mod callback;
mod discovery;
mod error;
mod http;
mod issuer;
mod registration;
mod scope;
mod secret;
mod settings;
mod sign_in;
mod signing;
mod store;
mod url_policy;

pub use crate::http::HttpSettings;
pub use browser::Browser;
pub use error::{ScopeFlags, SignInError};
pub use registration::Identity;
pub use secret::{Authorization, Secret};
pub use settings::{Grant, Settings};
pub use sign_in::{LoginOutcome, LogoutOutcome, SignIn};
pub use signing::SigningKey;
pub use store::{StoreSettings, StoredToken, list};
pub use url_policy::UrlError;
