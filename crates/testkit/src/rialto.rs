//! The real binary under test: started, watched, and gone with everything it started when the test
//! ends.
//!
//! Rialto runs in a session of its own, so that each of its descendants can be recognised even when
//! it was orphaned. When a test ends with one of them still alive, the test fails.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::McpClient;
use crate::client::raw_http::RawHttp;
use crate::failure::{Failure, Result};
use crate::journal::Journal;
use crate::patience::{look_until, wait_until};
use crate::processes::{self, Memory, Process};
use crate::revision::LEGACY;

mod launcher;
mod lines;

pub use launcher::{Ended, Launcher, binary};
use lines::Lines;

const EXECUTION_PATIENCE: Duration = Duration::from_secs(20);
/// How long each stage of the end may take when a test is over.
const SIGTERM_PATIENCE: Duration = Duration::from_secs(2);
const SECOND_SIGTERM_PATIENCE: Duration = Duration::from_secs(7);
const SURVIVOR_PATIENCE: Duration = Duration::from_secs(6);

/// A running `rialto`.
#[derive(Debug)]
pub struct Rialto {
    pid: u32,
    address: String,
    process: Mutex<Child>,
    /// Every process group seen below Rialto so far.
    groups: Mutex<BTreeSet<u32>>,
    stdout: Lines,
    stderr: Lines,
    dir: TempDir,
    survivor_patience: Duration,
}

impl Rialto {
    /// Returns a launcher for more than the two shortcuts below: flags, environment, limits.
    pub fn launcher() -> Launcher {
        Launcher::new()
    }

    /// `rialto serve … args`; `{stub}` and `{dir}` in them stand for the stub server and for a
    /// fresh directory.
    pub async fn serve(args: &[&str]) -> Result<Self> {
        Launcher::new().args(args).start().await
    }

    /// `rialto serve --config FILE`, with this text in the file and the same two stand-ins.
    pub async fn with_config(yaml: &str) -> Result<Self> {
        Launcher::new().config(yaml).start().await
    }

    /// `rialto serve -- testkit-server --journal {dir}/journal flags…`.
    pub async fn with_stub(flags: &[&str]) -> Result<Self> {
        Launcher::new().stub(flags).start().await
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The endpoint of `serve -- COMMAND`.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub fn url_of(&self, destination: &str) -> String {
        format!("http://{}/{destination}/mcp", self.address)
    }

    pub async fn client(&self) -> Result<McpClient> {
        McpClient::connect(&self.url()).await
    }

    pub async fn client_of(&self, destination: &str) -> Result<McpClient> {
        McpClient::connect(&self.url_of(destination)).await
    }

    /// A client whose session is open: newest legacy revision, no capabilities.
    pub async fn session(&self) -> Result<McpClient> {
        let client = self.client().await?;
        client.handshake(LEGACY, json!({})).await?;
        Ok(client)
    }

    /// The same at a named destination.
    pub async fn session_of(&self, destination: &str) -> Result<McpClient> {
        let client = self.client_of(destination).await?;
        client.handshake(LEGACY, json!({})).await?;
        Ok(client)
    }

    /// A connection of which the test writes every byte.
    pub async fn raw(&self) -> Result<RawHttp> {
        RawHttp::connect(&self.address).await
    }

    /// Stops reading its stdout and stderr until the test ends.
    pub fn stop_reading_its_output(&self) {
        self.stdout.stall();
        self.stderr.stall();
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The directory that `{dir}` stood for.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// `{dir}/journal`.
    pub fn journal(&self) -> Journal {
        Journal::at(self.dir.path().join("journal"))
    }

    /// Waits until the child has begun the tool call with this marker, and gives the journal's
    /// entry of it.
    pub async fn wait_for_execution(&self, marker: &str) -> Value {
        let journal = self.journal();
        let begun = |entry: &Value| entry["marker"] == marker;
        wait_until(
            &format!("the call {marker} is executed"),
            EXECUTION_PATIENCE,
            || journal.events("executed").into_iter().find(begun),
        )
        .await
    }

    pub fn sigterm(&self) {
        self.signal(Signal::TERM);
    }

    pub fn sigkill(&self) {
        self.signal(Signal::KILL);
    }

    /// Any signal, while Rialto runs.
    pub fn signal(&self, signal: Signal) {
        self.children();
        if self.exit_status().is_none() {
            processes::send_signal(self.pid, signal);
        }
    }

    /// `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process().try_wait().ok().flatten()
    }

    /// Waits for the end of Rialto itself.
    pub async fn wait(&self, deadline: Duration) -> ExitStatus {
        wait_until("rialto has exited", deadline, || self.exit_status()).await
    }

    /// Waits until nothing that Rialto started is alive.
    pub async fn wait_for_no_children(&self, deadline: Duration) {
        let what = "rialto has no children";
        wait_until(what, deadline, || self.children().is_empty().then_some(())).await;
    }

    /// # Panics
    /// When Rialto has exited.
    pub fn memory(&self) -> Memory {
        Memory::of(self.pid).expect("rialto runs, so that its memory can be read")
    }

    /// Sets how many processes its user may have from now on; `None`: as many as in the beginning.
    /// Only that user may change it.
    pub fn limit_processes(&self, most: Option<u64>) -> Result<()> {
        let owner = std::fs::metadata(self.dir())?;
        let beside = self.dir().join("testkit-server");
        let program = if beside.exists() {
            beside
        } else {
            binary("testkit-server")
        };
        let mut command = std::process::Command::new(program);
        if owner.uid() != rustix::process::getuid().as_raw() {
            command.uid(owner.uid()).gid(owner.gid());
        }
        let done = command
            .args(["--limit-processes", &self.pid.to_string()])
            .args(most.map(|most| most.to_string()))
            .output()?;
        if done.status.success() {
            return Ok(());
        }
        Err(Failure::new(String::from_utf8_lossy(&done.stderr)))
    }

    /// Every process alive that Rialto started, or that one of those started, orphans included.
    pub fn children(&self) -> Vec<Process> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let mut children = processes::family(self.pid, &groups);
        // The group of another process may have been inherited; only groups led from below are
        // Rialto's.
        let led = children
            .iter()
            .filter(|process| process.group == process.pid)
            .map(|process| process.group);
        groups.extend(led.collect::<Vec<_>>());
        children.retain(|process| !process.is_zombie());
        children
    }

    /// Dead children that Rialto has not waited for.
    pub fn zombies(&self) -> Vec<Process> {
        let mut children = processes::family(self.pid, &BTreeSet::new());
        children.retain(|process| process.is_zombie() && process.parent == self.pid);
        children
    }

    /// What it wrote to stderr so far, by line.
    pub fn stderr(&self) -> Vec<String> {
        self.stderr.all()
    }

    /// What it wrote to stdout so far, by line.
    pub fn stdout(&self) -> Vec<String> {
        self.stdout.all()
    }

    /// The lines of stderr that are JSON.
    pub fn logs(&self) -> Vec<Value> {
        self.stderr()
            .iter()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Waits for a log line, those of the past included.
    pub async fn wait_for_log(
        &self,
        what: &str,
        deadline: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        wait_until(what, deadline, || self.logs().into_iter().find(&wanted)).await
    }

    fn process(&self) -> MutexGuard<'_, Child> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends Rialto and looks for survivors; what is wrong, if anything.
    fn end(&self) -> Result<()> {
        let mut complaints = Vec::new();
        self.stdout.resume();
        self.stderr.resume();
        let ended = |patience| look_until(patience, || self.exit_status()).is_some();
        if self.exit_status().is_none() {
            self.sigterm();
            if !ended(SIGTERM_PATIENCE) {
                self.sigterm();
                if !ended(SECOND_SIGTERM_PATIENCE) {
                    complaints.push("rialto did not end after two SIGTERMs".to_owned());
                    self.sigkill();
                    ended(SIGTERM_PATIENCE);
                }
            }
        }
        let gone = look_until(self.survivor_patience, || {
            self.children().is_empty().then_some(())
        });
        if gone.is_none() {
            for survivor in self.children() {
                complaints.push(format!("rialto left {} ({}) behind", survivor.name, survivor.pid));
                survivor.signal(Signal::KILL);
            }
        }
        if complaints.is_empty() {
            Ok(())
        } else {
            Err(Failure::new(complaints.join("; ")))
        }
    }
}

impl Drop for Rialto {
    fn drop(&mut self) {
        let result = self.end();
        let failing = std::thread::panicking();
        if failing {
            lines::show(&format!("rialto's last words:\n{}", self.stderr.last(40)));
        }
        match result {
            Ok(()) => {}
            // A panic during a panic would abort the whole test run.
            Err(failure) if failing => lines::show(&failure.to_string()),
            Err(failure) => panic!("{failure}"),
        }
    }
}
