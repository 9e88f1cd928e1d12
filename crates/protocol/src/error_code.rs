//! JSON-RPC error codes that Rialto itself says.
//!
//! -32000…-32019 are legacy and -32020…-32099 belong to the specification, so Rialto's own conditions all
//! travel as [`INTERNAL_ERROR`] with a `data.reason`.

pub const PARSE_ERROR: i32 = -32700;
pub const INVALID_REQUEST: i32 = -32600;
pub const METHOD_NOT_FOUND: i32 = -32601;
pub const INVALID_PARAMS: i32 = -32602;
pub const INTERNAL_ERROR: i32 = -32603;

// Of the 2026-07-28 revision.
pub const HEADER_MISMATCH: i32 = -32020;
pub const MISSING_CAPABILITY: i32 = -32021;
pub const UNSUPPORTED_VERSION: i32 = -32022;
