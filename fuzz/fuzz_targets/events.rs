#![no_main]

#[path = "../../crates/protocol/tests/properties/events.rs"]
mod events;

libfuzzer_sys::fuzz_target!(|data: &[u8]| events::holds(data));
