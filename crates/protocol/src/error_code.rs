//! JSON-RPC error codes that Rialto itself sends.
//!
//! -32000…-32019 are legacy and -32020…-32099 belong to the specification, so Rialto's own
//! conditions all travel as [`INTERNAL_ERROR`] with a `data.reason`.

/// The body is not JSON (JSON-RPC 2.0).
pub const PARSE_ERROR: i32 = -32700;
/// The message is no valid request (JSON-RPC 2.0).
pub const INVALID_REQUEST: i32 = -32600;
/// The method does not exist (JSON-RPC 2.0).
pub const METHOD_NOT_FOUND: i32 = -32601;
/// The params are not those of the method (JSON-RPC 2.0).
pub const INVALID_PARAMS: i32 = -32602;
/// Anything that has no code of its own (JSON-RPC 2.0).
pub const INTERNAL_ERROR: i32 = -32603;

// Of the 2026-07-28 revision.
/// A header and the body disagree (2026-07-28).
pub const HEADER_MISMATCH: i32 = -32020;
/// The client did not declare a capability that the request needs (2026-07-28).
pub const MISSING_CAPABILITY: i32 = -32021;
/// The revision is not supported (2026-07-28).
pub const UNSUPPORTED_VERSION: i32 = -32022;
