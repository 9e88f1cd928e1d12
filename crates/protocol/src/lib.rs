//! MCP without I/O.

pub mod wire;
