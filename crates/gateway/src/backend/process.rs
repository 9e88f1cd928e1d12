//! Children on this machine: how they are found, started, listened to, restarted and ended.
//!
//! It hides programs, pipes, signals, groups and the warden. It refuses to read or write messages:
//! the task that owns a child does that, through the pipes it is handed.
//!
//! # Use
//!
//! ```no_run
//! # use std::{collections::BTreeMap, time::Duration};
//! # use gateway::backend::process::*;
//! # use gateway::settings::Inherits;
//! # async fn instance() -> Result<(), LaunchError> {
//! // Once, in the binary: the hidden argument leads to `warden::run()`.
//! let launcher = Launcher::new(WardenCommand { argv: vec!["/usr/bin/rialto".into(), "warden".into()] });
//!
//! // For each start, inside a runtime.
//! let order = LaunchOrder {
//!     argv: vec!["npx".into(), "-y".into(), "some-server".into()],
//!     env: environment(std::env::vars_os(), Inherits::AllowList, &BTreeMap::new()),
//!     cwd: None,
//! };
//! let Running { pid, stdin, stdout, stderr, mut child } = launcher.launch(&order)?;
//! let tail = StderrTail::new();
//! let drain = stderr::drain(stderr, "some-server", pid, tail.clone(), || {}); // a task of its own
//!
//! // `stdin.try_write`, `stdin.writable()`, `stdout.try_read`, `stdout.readable()`; and beside them:
//! let exit = child.exited().await; // a crash; leftovers of its group end in the background
//! tail.ended_within(Duration::from_millis(100)).await;
//! let last_words = tail.telling_lines();
//!
//! // Or on purpose:
//! drop(stdin);
//! let exit = child.stop(Duration::from_secs(5)).await; // nothing is left; dropping the future kills at once
//! # Ok(()) }
//! ```
//!
//! - `Launcher::launch` registers the child's group with the warden; it is released when the group
//!   is gone. `Launcher::kill_all` is the answer to a second SIGTERM.
//! - stdin and stdout are separate from `ChildProcess`, so they can be dropped or moved on their
//!   own. The end of stdout does not mean that the child has ended: ask `exited`.
//! - A `ChildProcess` that is dropped is killed with its group, and waited for in the background.
//! - `RestartPolicy` decides about starts; it is pure, and knows nothing of the rest.

mod environment;
mod group;
mod launch;
mod resolve;
mod restart;
pub mod stderr;
mod stop;
mod strays;
pub(crate) mod supervisor;
pub mod warden;

pub use environment::{Environment, environment, is_allowed, wanted_but_withheld};
pub use group::GroupId;
pub use launch::{LEFTOVER_GRACE, LaunchError, LaunchOrder, Launcher, Running};
pub use resolve::{ResolveError, resolve};
pub use restart::{ChildState, IllegalTransition, RestartPolicy, StartDecision};
pub use stderr::StderrTail;
pub use stop::{ChildProcess, Exit, VOLUNTARY};
pub use warden::{Warden, WardenCommand};
