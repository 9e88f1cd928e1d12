//! The remote misbehaves: rows D of the fault catalogue, each in front of the real binary.
//!
//! Tests are named after their row. D16 (a name that resolves differently the second time) needs a
//! resolver of one's own and is left to the unit tests of the address policy; D6 and D18 are about
//! `connect`, and here only as far as `serve` has to do with them. What is always true as well: a
//! tool runs at most once, and each call has one ending.

mod answers;
mod credentials;
mod event_streams;
mod failures;
mod floods;
mod old_transport;
mod redirects;
mod sessions;
mod stage;
mod tls;
