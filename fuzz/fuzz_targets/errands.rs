#![no_main]

#[path = "../../crates/protocol/tests/properties/errands.rs"]
mod errands;
#[path = "../../crates/protocol/tests/properties/far_side.rs"]
mod far_side;

libfuzzer_sys::fuzz_target!(|data: &[u8]| errands::holds(data));
