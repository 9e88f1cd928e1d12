//! Development only: servers and clients that behave, and that misbehave on request.
//!
//! Nothing here depends on the product's code, so that a mistake there cannot hide behind the same
//! mistake here. Everything that waits has a deadline and names what it waited for.

pub mod authorization_server;
pub mod client;
pub mod collector;
pub mod eras;
pub mod failure;
pub mod fleet;
pub mod host;
pub mod interop;
pub mod issuer;
pub mod journal;
pub mod patience;
pub mod processes;
pub mod redis;
pub mod revision;
pub mod rialto;
pub mod sandbox;
pub mod sse;
pub mod stub;
pub mod token;
pub mod upstream;

pub use client::raw_http::RawHttp;
pub use client::{McpClient, Reply, marked, text_of};
pub use failure::{Failure, Result};
pub use fleet::{Fleet, FleetConfig};
pub use host::Host;
pub use issuer::Issuer;
pub use journal::Journal;
pub use patience::{PATIENCE, poll_until, wait_until};
pub use revision::{LEGACY, MODERN};
pub use rialto::Rialto;
pub use sandbox::Sandbox;
pub use sse::Event;
pub use upstream::Upstream;
