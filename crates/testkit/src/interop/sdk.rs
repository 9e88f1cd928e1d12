//! The official SDKs that run in a process of their own: which script, which interpreter, and for
//! how long.
//!
//! A script is run to its end and its one line is read. The judges are elsewhere.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::test_deps;
use crate::rialto::binary;

/// Longer than the deadline of any script, so that the script itself names what it waited for.
const DEADLINE: Duration = Duration::from_secs(240);

/// Which SDK plays, by the name its scripts know it by.
#[derive(Debug, Clone, Copy)]
pub enum Sdk {
    TypeScript1,
    TypeScript2,
    Python1,
    Python2,
}

/// How the client finds its era.
#[derive(Debug, Clone, Copy)]
pub enum Era {
    /// By `initialize`, without a look for anything newer.
    Legacy,
    /// The same over the transport of before, HTTP with SSE; only the 1.x lines are started so
    /// here.
    OldTransport,
    /// By asking `server/discover` first, which the 1.x lines cannot.
    Auto,
    /// By speaking 2026-07-28 and nothing else; only the 2.x line of TypeScript is started so here.
    Modern,
}

/// How the client reaches the endpoint.
#[derive(Debug, Clone, Copy)]
pub enum Road {
    /// By its own HTTP transport.
    Http,
    /// By its own stdio transport, and a `rialto connect` that it starts.
    Connect,
}

/// A client that plays scenarios of a script: endpoint and scenario in, observations out.
pub fn player(script: &'static str, sdk: Sdk, era: Era) -> impl FnOnce(&str, &str) -> Result<Value, String> {
    traveller(script, sdk, era, Road::Http)
}

/// The same by either road.
pub fn traveller(
    script: &'static str,
    sdk: Sdk,
    era: Era,
    road: Road,
) -> impl FnOnce(&str, &str) -> Result<Value, String> {
    move |url, scenario| observed(sdk.run(script, era, road, url, scenario)?)
}

/// A Python client of an environment of its own. Its script takes the client's name, endpoint and
/// scenario.
pub fn python_player(
    script: &'static str,
    environment: &'static str,
    client: &'static str,
) -> impl FnOnce(&str, &str) -> Result<Value, String> {
    move |url, scenario| {
        let mut command = Command::new(python(environment));
        command.arg(script_file(&format!("python/{script}.py")));
        observed(run_to_its_end(command.args([client, url, scenario]))?)
    }
}

/// The JSON line that a script printed, or how it failed.
fn observed(output: Output) -> Result<Value, String> {
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("it ended with {}:\n{stderr}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("it printed no JSON line: {error}"))
}

impl Sdk {
    fn run(self, script: &str, era: Era, road: Road, url: &str, scenario: &str) -> Result<Output, String> {
        let (name, interpreter, script) = match self {
            Sdk::TypeScript1 => ("typescript1", PathBuf::from("node"), format!("node/{script}.mjs")),
            Sdk::TypeScript2 => ("typescript2", PathBuf::from("node"), format!("node/{script}.mjs")),
            Sdk::Python1 => ("python1", python("python1"), format!("python/{script}.py")),
            Sdk::Python2 => ("python2", python("python2"), format!("python/{script}.py")),
        };
        let era = match era {
            Era::Legacy => "legacy",
            Era::OldTransport => "old",
            Era::Auto => "auto",
            Era::Modern => "modern",
        };
        let mut command = Command::new(interpreter);
        match road {
            Road::Http => {}
            Road::Connect => {
                command.env("RIALTO_CONNECT", binary("rialto"));
            }
        }
        command.arg(script_file(&script));
        run_to_its_end(command.args([name, era, url, scenario]))
    }
}

fn script_file(name: &str) -> PathBuf {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop");
    scripts.join(name)
}

fn run_to_its_end(command: &mut Command) -> Result<Output, String> {
    let child = command
        .env("RIALTO_TEST_DEPS", test_deps())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("it does not start: {error}"))?;
    let pid = Pid::from_child(&child);
    let (sender, output) = sync_channel(1);
    thread::spawn(move || {
        // The receiver is gone if the deadline has passed meanwhile.
        let _ = sender.send(child.wait_with_output().expect("a child can be waited for"));
    });
    output.recv_timeout(DEADLINE).map_err(|_| {
        let _ = kill_process(pid, Signal::KILL);
        format!("it did not end in {DEADLINE:?}")
    })
}

fn python(environment: &str) -> PathBuf {
    let folder = test_deps().join(environment);
    assert!(
        folder.join(".installed").exists(),
        "the environment {environment} is not installed; run `cargo xtask setup`"
    );
    folder.join("bin").join("python")
}
