//! The matrix of eras: official clients in front of official servers, each pair played once.
//!
//! Three test programs share it. A program brings its servers and its road; what the clients play
//! and what they must have seen is here.

pub mod aggregate;
mod client;
pub mod judge;
pub mod remote;
mod stages;
pub mod through_serve;

pub use client::Client;
pub use stages::{Played, Stages};

/// What a judge must find, beside what is the same for every pair.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// The revision of the client.
    pub version: &'static str,
    /// The era in which the server was used.
    pub server_era: &'static str,
    /// The error of a call that was lost because the server ended.
    pub lost_call: &'static str,
}
