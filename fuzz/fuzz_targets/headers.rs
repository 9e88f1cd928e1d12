#![no_main]

#[path = "../../crates/protocol/tests/properties/headers.rs"]
mod headers;

libfuzzer_sys::fuzz_target!(|data: &[u8]| headers::holds(data));
