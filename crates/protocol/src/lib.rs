//! MCP without I/O: no sockets, no tasks, no clock, no randomness.
//!
//! Everything Rialto decides about the protocol is decided here, by machines that take facts
//! (`handle_*`), give orders (`poll_output`) and ask to be woken (`next_deadline`). Time is a
//! value. `gateway` feeds the machines and carries out their orders.
#![warn(
    missing_docs,
    clippy::wildcard_enum_match_arm,
    clippy::indexing_slicing,
    clippy::disallowed_types
)]

pub mod aggregate;
pub mod backend_face;
pub mod buffer_budget;
pub mod capability;
pub mod client_face;
pub mod delivery;
pub mod error_code;
pub mod eviction;
pub mod exchange;
pub mod mcp_apps;
pub mod message;
pub mod method;
pub mod modern_request;
pub mod multiplexer;
pub mod negotiation;
pub mod object;
pub mod placement;
pub mod session;
pub mod shares;
pub mod task;
pub mod time;
pub mod tool_policy;
pub mod tool_schema;
pub mod trace_context;
pub mod vec_map;
pub mod version;
pub mod wire;
