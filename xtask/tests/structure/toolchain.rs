//! The compiler is the pinned one, so that a lint or a format is the same on every machine.

use std::process::Command;

use crate::source;

/// Returns the text in quotes behind a key of a manifest.
fn value<'a>(manifest: &'a str, key: &str) -> &'a str {
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))
        .unwrap_or_else(|| panic!("there is no {key}"));
    line.trim_end_matches('"')
}

#[test]
fn compiler_is_the_pinned_one() {
    let read =
        |file: &str| std::fs::read_to_string(source::repository().join(file)).expect("the file can be read");
    let (toolchain, workspace) = (read("rust-toolchain.toml"), read("Cargo.toml"));
    let (pinned, least) = (value(&toolchain, "channel"), value(&workspace, "rust-version"));
    assert_eq!(
        pinned.rsplit_once('.').map(|(minor, _)| minor),
        Some(least),
        "`channel` of rust-toolchain.toml and `rust-version` of Cargo.toml are raised together"
    );
    let output = Command::new("rustc")
        .arg("--version")
        .output()
        .expect("rustc runs");
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        version.split_whitespace().nth(1),
        Some(pinned),
        "rust-toolchain.toml pins another compiler. `rustup toolchain install {pinned}` installs it; \
         without rustup, build with rustc {pinned}"
    );
}
