//! What is written for package managers, forges and container engines is what they read.
//!
//! Each text goes through the parser, schema or linter of its reader. What only that reader itself
//! could show (an installation by Homebrew, a run of a workflow) is not tested here.

mod manifests;
mod texts;
mod workflows;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn repository() -> PathBuf {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    above.expect("xtask has a folder above it").to_owned()
}

/// Returns a folder of installed tools.
fn installed(environment: &str) -> PathBuf {
    let test_deps =
        std::env::var_os("RIALTO_TEST_DEPS").map_or_else(|| repository().join(".test-deps"), PathBuf::from);
    let folder = test_deps.join(environment);
    assert!(
        folder.join(".installed").exists(),
        "the environment {environment} is not installed; run `cargo xtask setup`"
    );
    folder
}

/// Returns a program of the Python tools.
fn tool(name: &str) -> Command {
    Command::new(installed("packages-python").join("bin").join(name))
}

fn run(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?} does not run: {error}"))
}

/// Runs a check that must find nothing.
fn passes(command: &mut Command) {
    let output = run(command);
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}\n{}{}",
        shown(&output.stdout),
        shown(&output.stderr)
    );
}

fn read(path: &str) -> String {
    let file = repository().join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
