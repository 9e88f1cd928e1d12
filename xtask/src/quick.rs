//! What to run before each commit: a few minutes on two cores, after a change that is not
//! everywhere.
//!
//! It installs nothing and needs nothing that was installed. It is no substitute for `cargo xtask
//! test`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};

use crate::test_run::{self, Summary, cargo};

/// Test files of the whole binary: one for each way in and out, without foreign programs.
const WHOLE_BINARY: &[&str] = &["connect", "crossing", "handshake", "old_sse", "policy", "streams"];

pub fn run(repository: &Path) -> anyhow::Result<()> {
    let started = Instant::now();
    for check in [
        &["fmt", "--all", "--check"][..],
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
        &["build", "--quiet", "--workspace", "--bins"],
    ] {
        println!("xtask: cargo {}", check.join(" "));
        let status = cargo(repository)
            .args(check)
            .status()
            .with_context(|| format!("cannot run cargo {}", check[0]))?;
        if !status.success() {
            bail!("cargo {} failed", check[0]);
        }
    }
    let mut summary = Summary::default();
    for mut tests in tests(repository) {
        test_run::add(&mut summary, &mut tests)?;
    }
    println!("\n{summary}\n{} s in all", started.elapsed().as_secs());
    summary.verdict()
}

/// Returns the runs of `cargo test`, the quickest answer first.
fn tests(repository: &Path) -> Vec<Command> {
    let test = |arguments: &[&str]| {
        let mut command = cargo(repository);
        command.args(["test", "--no-fail-fast"]).args(arguments);
        command
            .env("RIALTO_SIMULATION_SEEDS", "100")
            .env("PROPTEST_CASES", "64");
        command
    };
    let mut whole = vec!["--package", "rialto", "--test", "documents"];
    whole.extend(WHOLE_BINARY.iter().flat_map(|file| ["--test", file]));
    vec![
        test(&["--package", "xtask"]),
        test(&["--package", "rialto-protocol"]),
        test(&["--package", "rialto-gateway", "--lib"]),
        test(&whole),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_test_files_exist() {
        let folder = crate::repository().unwrap().join("crates/rialto/tests");
        for file in WHOLE_BINARY {
            let exists =
                folder.join(format!("{file}.rs")).is_file() || folder.join(file).join("main.rs").is_file();
            assert!(exists, "{file}");
        }
    }
}
