//! Servers that are reached over HTTP: Streamable HTTP of both eras, and HTTP+SSE of 2024-11-05.
//!
//! Each instance has a [supervisor]; the instances of one server share its [`Server`], with its
//! connections and its sign-in. Nothing here decides about messages: `protocol::delivery` decides
//! what becomes of one that could not be delivered, and the multiplexer knows which call waits for
//! it.

mod authorization;
mod endpoint_hint;
mod exchange;
mod get_stream;
mod http_client;
mod http_sse;
mod mcp_headers;
mod remote_session;
mod sender_pool;
mod server;
mod supervisor;

pub(crate) use self::http_client::{certificates, is_loopback, tls_config};
pub(crate) use self::server::Server;
pub(crate) use self::supervisor::RemoteSupervisor;
