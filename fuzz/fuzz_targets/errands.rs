#![no_main]

#[path = "../../crates/protocol/tests/properties/errands.rs"]
mod errands;

libfuzzer_sys::fuzz_target!(|data: &[u8]| errands::holds(data));
