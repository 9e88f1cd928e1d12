//! The programs that start MCP servers from files of their own, and those files.
//!
//! What a host writes where is data (`table.rs`). Reading, merging and editing are pure and work on
//! texts; `found.rs` reads files, and `safe_file.rs` alone writes them.

pub(crate) mod adopt;
mod carry;
pub(crate) mod config_for;
mod destinations_text;
pub(crate) mod document;
pub(crate) mod edit;
pub(crate) mod entry;
pub(crate) mod found;
pub(crate) mod import;
pub(crate) mod install;
pub(crate) mod location;
mod merge;
pub(crate) mod overview;
mod own_command;
pub(crate) mod plain;
mod program;
pub(crate) mod reference;
pub(crate) mod safe_file;
pub(crate) mod search_path;
pub(crate) mod secret;
pub(crate) mod servers;
pub(crate) mod shape;
pub(crate) mod table;
