//! The registry of sessions: which replica owns a session, under which epoch, and the record from
//! which another process can go on.
//!
//! A session is a record. The replica that owns the record serves the session. A record without a
//! living owner can be taken over, by compare-and-set on its epoch. Requests do not pass through
//! here: the registry is asked once per session and replica.
//!
//! | Part | Module |
//! |---|---|
//! | what is stored, and its format | [`record`] |
//! | the operations, and what each of them promises | [`registry`] |
//! | which claim wins: the comparisons of all engines | `rules` |
//! | one machine: a file that a restart finds again | [`mod@file`] |
//! | the secret that all replicas share, and certificates from it | [`key`] |
//! | a fleet: an engine that replicas share | [`mod@redis`] |
//! | the machine of one replica: what to do with a request for a session | [`ownership`] |
//! | the machine of one replica: what it admits of a limit that holds for the fleet | [`allowance`] |
//! | the machine of one replica: whether it runs the one server of a destination | [`singleton`] |
//! | the rules in memory, on a clock of the caller: for tests and simulations | [`memory`] |
//! | limits and names, for the engines that keep them in memory | `pools`, `names` |
#![warn(missing_docs, clippy::wildcard_enum_match_arm, clippy::indexing_slicing)]

pub mod allowance;
pub mod error;
pub mod file;
pub mod key;
pub mod memory;
mod names;
pub mod ownership;
mod pools;
pub mod record;
pub mod redis;
pub mod registry;
mod rules;
pub mod singleton;

pub use crate::redis::{RedisRegistry, RedisSettings};
pub use error::RegistryError;
pub use file::FileRegistry;
pub use key::{ClusterKey, KeyError, PeerIdentity};
pub use memory::MemoryRegistry;
pub use record::{Hello, Node, NodeId, NodeIdError, SessionRecord, State, WallTime};
pub use registry::{
    Change, Claim, Created, Located, NameLease, NodeStatus, Operation, Owner, Registry, Renewed, SlotDemand,
    SlotGrant, TakeOver, TokenDemand, TokenGrant, Touch, Updated,
};
