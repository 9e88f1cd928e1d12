//! Requests between two replicas over real sockets: streams, back-pressure, cancellation, limits,
//! certificates, and what is known after each way to break.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod certificates;
mod fake_peer;
mod limits;
mod outcomes;
mod relay;
mod replica;
mod streams;
