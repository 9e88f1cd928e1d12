#![no_main]

#[path = "../../crates/protocol/tests/properties/lines.rs"]
mod lines;

libfuzzer_sys::fuzz_target!(|data: &[u8]| lines::holds(data));
