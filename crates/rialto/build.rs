//! Links the program by a linker script, if `RIALTO_LINK_SCRIPT` names one.
//!
//! `cargo xtask bench` makes such a script for GNU ld from the functions that a start and plain
//! calls run, and sets the variable. Other builds need none, and other linkers would not read it.

#![expect(
    clippy::disallowed_methods,
    reason = "cargo passes everything to build scripts in the environment"
)]

use std::env;
use std::io::Write as _;

const SCRIPT: &str = "RIALTO_LINK_SCRIPT";

fn main() {
    write(&format!("rerun-if-env-changed={SCRIPT}"));
    write("rerun-if-changed=build.rs");
    if let Ok(script) = env::var(SCRIPT) {
        write(&format!("rerun-if-changed={script}"));
        write(&format!("rustc-link-arg-bins=-T{script}"));
    }
}

fn write(instruction: &str) {
    writeln!(std::io::stdout().lock(), "cargo::{instruction}").expect("cargo reads stdout");
}
