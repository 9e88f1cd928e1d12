//! The official SDKs that run in a process of their own: which script, which interpreter, and for how long.
//!
//! Judging what a script saw is left to others; here it is only brought to an end and its one line read.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testkit::interop::test_deps;

/// Longer than any script's own deadline, so that the script is the one to say what it waited for.
const DEADLINE: Duration = Duration::from_secs(240);

/// Which SDK plays, by the name its scripts know it by.
#[derive(Clone, Copy)]
pub(crate) enum Sdk {
    TypeScript1,
    TypeScript2,
    Python1,
    Python2,
}

/// How the client finds its era.
#[derive(Clone, Copy)]
pub(crate) enum Era {
    /// By `initialize`, without a look for anything newer.
    Legacy,
    /// The same over the transport of before, HTTP with SSE; only the 1.x lines are told so here.
    #[allow(
        dead_code,
        reason = "this file is part of two test programs, and one has no use for it"
    )]
    OldTransport,
    /// By asking `server/discover` first, which the 1.x lines cannot.
    Auto,
    /// By speaking 2026-07-28 and nothing else; only the 2.x line of TypeScript is told so here.
    Modern,
}

/// A client that plays scenarios of a script: endpoint and scenario in, observations out.
pub(crate) fn player(
    script: &'static str,
    sdk: Sdk,
    era: Era,
) -> impl FnOnce(&str, &str) -> Result<Value, String> {
    move |url, scenario| {
        let output = sdk.run(script, era, url, scenario)?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(format!("it ended with {}:\n{stderr}", output.status));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("it printed no JSON line: {error}"))
    }
}

impl Sdk {
    fn run(self, script: &str, era: Era, url: &str, scenario: &str) -> Result<Output, String> {
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
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop");
        let child = Command::new(interpreter)
            .arg(scripts.join(script))
            .args([name, era, url, scenario])
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
            // Nobody listens any more if the deadline has passed meanwhile.
            let _ = sender.send(child.wait_with_output().expect("a child can be waited for"));
        });
        output.recv_timeout(DEADLINE).map_err(|_| {
            let _ = kill_process(pid, Signal::KILL);
            format!("it did not end in {DEADLINE:?}")
        })
    }
}

fn python(environment: &str) -> PathBuf {
    test_deps().join(environment).join("bin").join("python")
}
