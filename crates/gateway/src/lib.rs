//! Everything of Rialto that touches the world: the doors clients come in by, the children and remote
//! servers behind, and the tasks between them. Protocol decisions are not made here.
//!
//! Locks are `parking_lot`'s, which know no poisoning: after a panic the next holder uses the state as it is.
//! A machine that panicked is repaired where the panic is caught (`Lane::act`); the other locks guard maps and
//! counters, each changed in one step, which stay usable.

pub mod audit;
pub mod backend_face;
mod backend_task;
mod buffered;
mod client_face;
mod clock;
mod destination;
mod driver;
mod errand_port;
pub mod escape;
mod file_stamp;
mod gateway;
mod guard;
mod idle_watch;
mod joined_write;
mod lane;
pub mod line_sink;
mod metrics;
mod metrics_page;
pub mod mishap;
mod probe;
mod record;
mod reload;
mod reply;
mod seal;
mod server_eras;
mod session_port;
pub mod settings;
mod single_header;
mod status;
pub mod tasks;
pub mod tls;
mod tls_door;
pub mod trace;
mod upstream;

pub use client_face::stdio::{LineLimits, Parting};
pub use file_stamp::FileStamp;
pub use gateway::{Gateway, StartError};
pub use guard::tokens;
pub use probe::{Presented, Probe};
pub use reload::{ReloadError, Reloaded};
