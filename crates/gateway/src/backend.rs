//! The servers behind Rialto. Each kind of backend hides here how it is reached: `process` starts
//! and ends children on this machine, `remote` speaks HTTP. The multiplexer decides which messages
//! a backend receives; nothing here reads one.

pub mod process;
pub(crate) mod remote;
