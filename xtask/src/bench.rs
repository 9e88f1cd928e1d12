//! Builds what is measured, installs the peers and hands over to `bench-load`.
//!
//! It measures the profile `dist`, as packages are built, and writes the page only after a complete
//! run.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::{test_deps, test_run};

const PAGE: &str = "docs/benchmarks.md";
/// Read by `crates/rialto/build.rs`.
const LINK_SCRIPT: &str = "RIALTO_LINK_SCRIPT";

pub fn run(repository: &Path, flags: &[String]) -> anyhow::Result<()> {
    build(repository, None)?;
    let folder = target_folder(repository)?.join("dist");
    let load = folder.join("bench-load");
    if flags.is_empty() {
        // Idle memory is nearly all code: what runs is laid together, as in a package.
        let script = folder.join("order.ld");
        let mut order = Command::new(&load);
        match run_load(order.current_dir(repository).arg("--order").arg(&script)) {
            Ok(()) => build(repository, Some(&script))?,
            Err(error) => eprintln!("xtask: linked without an order of functions: {error:#}"),
        }
    }
    let mut command = Command::new(load);
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
    run_load(&mut command)
}

fn run_load(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().context("bench-load does not run")?;
    if !status.success() {
        bail!("bench-load ended with {status}");
    }
    Ok(())
}

/// Builds the profile `dist`, linked by a script of `bench-load --order` if there is one.
fn build(repository: &Path, script: Option<&Path>) -> anyhow::Result<()> {
    let mut command = test_run::cargo(repository);
    command.args(["build", "--profile", "dist", "-p", "rialto", "-p", "rialto-bench"]);
    command.env_remove(LINK_SCRIPT);
    if let Some(script) = script {
        command.env(LINK_SCRIPT, script);
    }
    let status = command.status().context("cannot run cargo build")?;
    if !status.success() {
        bail!("the build of the profile `dist` fails");
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
