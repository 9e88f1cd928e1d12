#![no_main]

#[path = "../../crates/protocol/tests/properties/event_ids.rs"]
mod event_ids;

libfuzzer_sys::fuzz_target!(|data: &[u8]| event_ids::holds(data));
