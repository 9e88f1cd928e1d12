//! The text of a configuration file.
#![no_main]

#[path = "../../crates/rialto/src/config/tests/property.rs"]
mod property;

// The property calls them by these names.
use rialto::{config, flags};

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::holds(data));
