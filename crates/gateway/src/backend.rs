//! The servers behind Rialto. Each kind of backend hides here how it is reached: `process` starts and
//! ends children on this machine, `remote` speaks HTTP. What is said to a backend is decided elsewhere; nothing here reads a
//! message.

pub mod process;
pub(crate) mod remote;
