#![no_main]

#[path = "../../crates/protocol/tests/properties/envelope.rs"]
mod envelope;

libfuzzer_sys::fuzz_target!(|data: &[u8]| envelope::holds(data));
