//! Calls of an official client: what a bridge adds to a call depends on what the call costs without
//! it, and users have clients that cost more than the one of this benchmark.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::process::Command;

use crate::system::{Programs, installed};

const SCRIPT: &str = "tests/interop/node/round-trips.mjs";

/// The median of calls straight to a server, in microseconds.
pub async fn over_http(programs: &Programs, url: &str, time: Duration) -> anyhow::Result<f64> {
    run(script(programs, time)?.args(["http", url])).await
}

/// The median of calls to a program that the client starts, in microseconds.
pub async fn over_stdio(
    programs: &Programs,
    program: &Path,
    arguments: &[String],
    environment: &[(&str, &Path)],
    time: Duration,
) -> anyhow::Result<f64> {
    let mut command = script(programs, time)?;
    command.arg("stdio").arg(program).args(arguments);
    run(command.envs(environment.iter().copied())).await
}

fn script(programs: &Programs, time: Duration) -> anyhow::Result<Command> {
    installed(
        programs,
        "node/node_modules/@modelcontextprotocol/sdk/package.json",
    )?;
    let folder = programs.peers.as_deref().context("it is installed somewhere")?;
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new("node");
    command
        .arg(repository.join(SCRIPT))
        .arg(time.as_secs_f64().to_string())
        .env("RIALTO_TEST_DEPS", folder)
        .kill_on_drop(true);
    Ok(command)
}

async fn run(command: &mut Command) -> anyhow::Result<f64> {
    let output = command.output().await.context("node does not run")?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{}",
            stderr
                .lines()
                .find(|line| line.contains("rror"))
                .unwrap_or("node failed")
        );
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    stdout.trim().parse().context("the script printed no median")
}
