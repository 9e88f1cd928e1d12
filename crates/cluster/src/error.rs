//! Why an operation of the registry failed.

use thiserror::Error;

/// Why an operation of the registry failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RegistryError {
    /// The engine cannot be reached, or did not answer in time. The operation may have had its
    /// effect.
    #[error("the registry of sessions cannot be reached: {0}")]
    Unreachable(String),
    /// The engine answered that it will not do this. The operation had no effect.
    #[error("the registry of sessions refused the operation: {0}")]
    Refused(String),
    /// The engine or the disk has no room. The operation may have had its effect.
    #[error("the registry of sessions is full: {0}")]
    Full(String),
    /// The record is of another version of Rialto, and is left as it is.
    #[error(
        "the record has version {found}, and this Rialto reads version {known}: \
         run one version of Rialto, or let the sessions of the other end first"
    )]
    OtherVersion {
        /// The version of the record.
        found: u32,
        /// The version of this program.
        known: u32,
    },
    /// What is stored is no record.
    #[error("the record cannot be read: {0}")]
    Unreadable(String),
    /// The record is larger than any engine shall store.
    #[error("the record has {bytes} bytes, more than {limit}: the client's `initialize` is too long")]
    TooLarge {
        /// The size of the record.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },
}
