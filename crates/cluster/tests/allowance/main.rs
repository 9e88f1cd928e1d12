//! Limits of a fleet in virtual time: one to eight replicas, random demand, deaths, and an engine
//! that is slow or away. A judge of its own counts what was admitted in all.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod engine;
mod random;
mod real;
mod slots;
mod tokens;
