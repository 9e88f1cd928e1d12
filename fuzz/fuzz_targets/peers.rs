#![no_main]

#[path = "../../crates/protocol/tests/properties/far_side.rs"]
mod far_side;
#[path = "../../crates/protocol/tests/properties/peers.rs"]
mod peers;

libfuzzer_sys::fuzz_target!(|data: &[u8]| peers::holds(data));
