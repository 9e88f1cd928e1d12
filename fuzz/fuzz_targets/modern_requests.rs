#![no_main]

#[path = "../../crates/protocol/tests/properties/modern_requests.rs"]
mod modern_requests;
#[path = "../../crates/protocol/tests/properties/far_side.rs"]
mod far_side;

libfuzzer_sys::fuzz_target!(|data: &[u8]| modern_requests::holds(data));
