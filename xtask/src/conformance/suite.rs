//! Runs the suite's `server` command once.
//!
//! Hides its command line and its clock. It refuses to wait for ever: a suite that does not end is
//! ended.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use super::score::Score;
use super::subject::wait;

/// The suite's program in the folder it was installed into.
pub const PROGRAM: &str = "node_modules/@modelcontextprotocol/conformance/dist/index.js";

/// A good run takes seconds; each scenario has a limit of half a minute of its own.
const PATIENCE: Duration = Duration::from_secs(300);

pub fn run(
    node: &Path,
    program: &Path,
    selection: &[&str],
    url: &str,
    folder: &Path,
) -> anyhow::Result<Score> {
    let results = folder.join("results");
    let log = folder.join("suite.log");
    let printed = File::create(&log).context("cannot create the suite's log")?;
    let mut child = Command::new(node)
        .arg(program)
        .args(["server", "--url", url])
        .args(selection)
        .arg("--output-dir")
        .arg(&results)
        .stdin(Stdio::null())
        .stderr(printed.try_clone().context("cannot share the suite's log")?)
        .stdout(printed)
        .spawn()
        .context("the conformance suite does not run")?;
    // Its exit status shows only whether a scenario failed; the results show more.
    if wait(&mut child, PATIENCE)?.is_none() {
        child.kill().context("cannot end the suite")?;
        child.wait().context("cannot wait for the suite")?;
        bail!(
            "the suite did not end in {} s; see {}",
            PATIENCE.as_secs(),
            log.display()
        );
    }
    let text = fs::read_to_string(&log).context("cannot read the suite's log")?;
    Score::read(&text, &results).with_context(|| format!("see {}", log.display()))
}
