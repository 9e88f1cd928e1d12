//! `rialto doctor`, with the real binary in a home directory of its own: broken machines, each named
//! with its cure, and a healthy one, of which nothing is invented.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod command_line;
mod healthy;
mod home;
mod hosts;
mod machine;
mod network;
mod proxy;
mod servers;
mod sign_in;
