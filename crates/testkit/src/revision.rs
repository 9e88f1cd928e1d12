//! The revisions of the specification that most tests use.

/// The newest revision with `initialize`.
pub const LEGACY: &str = "2025-11-25";
/// The revision without sessions.
pub const MODERN: &str = "2026-07-28";
