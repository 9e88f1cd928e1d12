//! Notes the version that `rialto --version` prints, and links the program by a linker script, if
//! `RIALTO_LINK_SCRIPT` names one.
//!
//! `RIALTO_BUILD` has the commit and its date. `cargo xtask package` sets it from git. Other builds
//! have none: if they looked at git, each commit would build the program anew.
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
const BUILD: &str = "RIALTO_BUILD";

fn main() {
    write(&format!("rerun-if-env-changed={SCRIPT}"));
    write("rerun-if-changed=build.rs");
    write(&format!("rerun-if-env-changed={BUILD}"));
    let build = env::var(BUILD).unwrap_or_else(|_| "not a package".to_owned());
    let version = env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    write(&format!("rustc-env=VERSION_AND_BUILD={version} ({build})"));
    if let Ok(script) = env::var(SCRIPT) {
        write(&format!("rerun-if-changed={script}"));
        write(&format!("rustc-link-arg-bins=-T{script}"));
    }
}

fn write(instruction: &str) {
    writeln!(std::io::stdout().lock(), "cargo::{instruction}").expect("cargo reads stdout");
}
