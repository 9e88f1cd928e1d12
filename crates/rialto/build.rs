//! Has the linker lay together what a start and plain calls run (`order.txt`).
//!
//! The kernel maps a program in steps of 64 KiB, so functions that lie scattered among those that never run cost as much
//! memory, and as many faults, as if all of it ran. A name that is not there any more does nothing, and a function that is
//! not named stays where it was: an old list makes a larger program in memory, never a wrong one.

#![expect(
    clippy::disallowed_methods,
    reason = "cargo tells build scripts everything in the environment"
)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::{env, fs};

const NAMES: &str = "order.txt";

fn main() {
    tell(&format!("rerun-if-changed={NAMES}"));
    tell("rerun-if-changed=build.rs");
    let is = |variable: &str, value: &str| env::var(variable).is_ok_and(|found| found == value);
    // mold reads no such script. Elsewhere than on Linux linkers have other ways, and nobody has measured there.
    let has_mold = env::var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(|flags| flags.contains("mold"));
    if !is("PROFILE", "release") || !is("CARGO_CFG_TARGET_OS", "linux") || has_mold {
        return;
    }
    let names = fs::read_to_string(NAMES).expect("the list is part of the package");
    let folder = env::var("OUT_DIR").expect("cargo says where to write");
    let script = Path::new(&folder).join("order.ld");
    fs::write(&script, linker_script(&names)).expect("cargo's folder can be written to");
    tell(&format!("rustc-link-arg-bins=-T{}", script.display()));
}

fn tell(cargo: &str) {
    writeln!(std::io::stdout().lock(), "cargo::{cargo}").expect("cargo listens");
}

/// A script that adds one section to what the linker does anyway (`INSERT`), instead of replacing it.
fn linker_script(names: &str) -> String {
    let mut script = String::from("SECTIONS\n{\n  .text.first :\n  {\n");
    for name in names.lines().filter(|line| !line.starts_with('#')) {
        // What the compiler takes for unlikely it puts into a section of another name; much of it runs at the start.
        let _ = writeln!(script, "    *(.text.{name} .text.unlikely.{name})");
    }
    script.push_str("  }\n}\nINSERT BEFORE .text;\n");
    script
}
