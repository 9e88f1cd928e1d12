//! Bytes to messages and back: how a message is cut out of a stream of bytes, and laid into one.
//!
//! This module hides line ends, chunk borders and event fields, and it keeps every buffer within
//! the limit it was given. It refuses to look at what a message means; it reads no socket and no
//! pipe, so the caller brings the bytes and takes the frames.

pub mod header;
pub mod line;
pub mod outbox;
#[cfg(test)]
mod pieces;
pub mod sse;
