//! The text of a configuration file. Its reader belongs to a binary, which nobody can depend on, so its sources are
//! included here as they are.
#![no_main]
#![allow(dead_code, reason = "of the binary only the configuration is wanted")]

#[path = "../../crates/rialto/src"]
mod rialto {
    pub(crate) mod config;
    pub(crate) mod flags;
    pub(crate) mod sign_in;
}
#[path = "../../crates/rialto/src/config/tests/property.rs"]
mod property;

/// The flags name the demo server's eras, and the configuration has nothing to do with them.
mod demo {
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
    pub(crate) enum DemoEra {
        #[default]
        Both,
    }
}

// The sources call each other by these names.
use rialto::{config, flags, sign_in};

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::holds(data));
