//! The machines, peers and judge of the simulation; the input decides what the dice of a seed
//! would.
#![no_main]
#![allow(dead_code, reason = "the simulation can also be broken on purpose, which only its own tests do")]

#[path = "../../crates/protocol/tests/simulation/aggregate.rs"]
mod aggregate;
#[path = "../../crates/protocol/tests/simulation/check.rs"]
mod check;
#[path = "../../crates/protocol/tests/simulation/clients.rs"]
mod clients;
#[path = "../../crates/protocol/tests/simulation/dice.rs"]
mod dice;
#[path = "../../crates/protocol/tests/simulation/eras.rs"]
mod eras;
#[path = "../../crates/protocol/tests/simulation/members.rs"]
mod members;
#[path = "../../crates/protocol/tests/simulation/modern_requests.rs"]
mod modern_requests;
#[path = "../../crates/protocol/tests/simulation/history.rs"]
mod history;
#[path = "../../crates/protocol/tests/simulation/server.rs"]
mod server;
#[path = "../../crates/protocol/tests/simulation/tasks.rs"]
mod tasks;
#[path = "../../crates/protocol/tests/simulation/run.rs"]
mod run;

libfuzzer_sys::fuzz_target!(|data: &[u8]| run::holds(data));
