//! Builds what is measured, installs the peers and hands over to `bench-load`.
//!
//! It refuses to measure a debug build, and writes the page only after a complete run.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::{test_deps, test_run};

const PAGE: &str = "docs/benchmarks.md";

pub fn run(repository: &Path, flags: &[String]) -> anyhow::Result<()> {
    let status = test_run::cargo(repository)
        .args(["build", "--release", "-p", "rialto", "-p", "rialto-bench"])
        .status()
        .context("cannot run cargo build")?;
    if !status.success() {
        bail!("the release build fails");
    }
    let mut command = Command::new(target_folder(repository)?.join("release").join("bench-load"));
    command.current_dir(repository).args(flags);
    let is_partial = |flag: &String| matches!(flag.as_str(), "--quick" | "--instructions" | "--order");
    if !flags.iter().any(is_partial) {
        let folder = repository.join(".test-deps");
        for trouble in test_deps::install_peers(repository, &folder)? {
            eprintln!("xtask: {trouble:#}");
        }
        command.arg("--peers").arg(folder);
    }
    if flags.is_empty() {
        command.arg("--write").arg(PAGE);
    }
    let status = command.status().context("bench-load does not run")?;
    if !status.success() {
        bail!("bench-load ended with {status}");
    }
    Ok(())
}

/// Where cargo builds to; a setting of the user's may have moved it.
fn target_folder(repository: &Path) -> anyhow::Result<std::path::PathBuf> {
    let output = test_run::cargo(repository)
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .output()
        .context("cannot run cargo metadata")?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata is no JSON")?;
    let folder = metadata["target_directory"].as_str();
    Ok(folder.context("cargo metadata names no target folder")?.into())
}
