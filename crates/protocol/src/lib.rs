//! MCP without I/O.
