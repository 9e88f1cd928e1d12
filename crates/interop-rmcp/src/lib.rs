//! The official Rust client as a witness; everything is in `tests/`.
//!
//! A crate of its own, so that nothing else in the workspace is built with rmcp beside it: another
//! MCP implementation may witness in tests, never carry the house.
