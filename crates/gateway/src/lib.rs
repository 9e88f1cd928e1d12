//! Everything of Rialto that touches the world: the listeners that clients reach, the children and
//! remote servers behind, and the tasks between them. Protocol decisions are not made here.
//!
//! Locks are `parking_lot`'s, which know no poisoning: after a panic the next holder uses the state
//! as it is. A machine that panicked is repaired where the panic is caught (`Instance::act`); the
//! other locks guard maps and counters, each changed in one step, which stay usable.

mod active_config;
pub mod attachment;
pub mod audit;
pub mod backend;
mod buffered;
mod clock;
mod conversation_handle;
mod driver;
mod ended_calls;
mod endpoint;
pub mod escape;
pub mod fault_injection;
mod file_stamp;
#[cfg(test)]
mod fixture;
mod fleet;
mod frontend;
mod gateway;
mod guard;
mod idle_watch;
mod instance;
mod joined_write;
pub mod line_sink;
pub mod local_client;
mod metrics;
mod metrics_page;
mod modern_request_handle;
mod offer_store;
pub mod outside;
mod page_cookie;
mod panics;
pub mod peer;
pub mod platform;
mod probe;
mod readers;
mod recent;
mod record;
mod reload;
mod replica;
mod reply;
mod seal;
mod serve;
mod server_eras;
mod server_lease;
mod server_output;
mod session_handle;
mod session_store;
pub mod settings;
mod shown_state;
mod sign_in_pages;
mod single_header;
mod state_dir;
mod status;
mod tap;
pub mod tasks;
mod threads;
pub mod tls;
pub mod trace;
mod upstream;
mod wake_up;

pub use active_config::ReloadError;
pub use file_stamp::FileStamp;
pub use frontend::stdio::{DisconnectReason, LineLimits};
pub use gateway::{About, Gateway, SetUp, StartError};
pub use guard::tokens;
pub use probe::{Presented, Probe};
pub use reload::Reloaded;
pub use serve::Listening;
pub use state_dir::{StateDir, StateDirError};
pub use threads::{OtherThreads, Threads};
