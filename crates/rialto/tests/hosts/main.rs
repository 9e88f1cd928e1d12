//! The files of hosts, with the real binary in a home directory of its own: `import`, `install`,
//! `uninstall`, `config`, `adopt` and its undo.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod adopt;
mod bad_input;
mod golden;
mod home;
mod import;
mod install;
mod kills;
mod real;
mod works;
