//! What the suite is pointed at: `rialto serve` in front of the fixture, or the fixture's own HTTP,
//! or the one in front of the other.
//!
//! Hides starting, finding the address and stopping. It refuses to leave anything running.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{Cell, Era, Way};

const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(30);

const WARM_UP: &str = r#"{"jsonrpc":"2.0","id":1,"method":"METHOD","params":{"name":"NAME","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}}"#;
/// A tool of the fixture that needs no argument.
const TOOL: &str = "test_simple_text";

/// A running server. Dropping it kills it; `stop` asks it to leave and looks at how it does.
#[derive(Debug)]
pub struct Subject {
    child: Child,
    url: String,
    way: Way,
    drain: Option<JoinHandle<()>>,
    /// What it is in front of, if that is reached over HTTP; it is stopped last.
    behind: Option<Box<Subject>>,
}

/// The programs a subject is made of.
#[derive(Debug, Clone, Copy)]
pub struct Programs<'a> {
    pub rialto: &'a Path,
    /// Starts replicas with a balancer, and ends them when it is asked to.
    pub fleet: &'a Path,
    pub node: &'a Path,
    pub fixture: &'a Path,
}

impl Subject {
    pub fn start(cell: Cell, programs: Programs<'_>, folder: &Path) -> anyhow::Result<Self> {
        let Programs {
            rialto,
            fleet,
            node,
            fixture,
        } = programs;
        match cell.way {
            Way::Native => {
                let mut command = Command::new(node);
                let era = cell.native_era().as_str();
                command.arg(fixture).args(["--era", era, "--http", "0"]);
                Self::run(cell.way, command, folder, "subject.log")
            }
            Way::Shared | Way::PerSession => Self::run(
                cell.way,
                of_child(cell, cell.way, programs),
                folder,
                "subject.log",
            ),
            Way::Remote => {
                // Not what the native score is of, but the very server that is in front of the
                // suite otherwise.
                let mut command = Command::new(node);
                command
                    .arg(fixture)
                    .args(["--era", cell.era.as_str(), "--http", "0"]);
                let behind = Self::run(Way::Native, command, folder, "behind.log")?;
                Self::in_front_of(behind, cell, rialto, folder)
            }
            Way::Fleet => {
                let mut command = Command::new(fleet);
                without_settings(&mut command);
                let child = [node, fixture].map(|part| part.to_string_lossy().into_owned());
                command
                    .args(["fixture", "64"])
                    .args(child)
                    .args(["--era", cell.era.as_str()]);
                Self::run(cell.way, command, folder, "subject.log")
            }
            Way::Aggregate => {
                let mut command = Command::new(node);
                let remote = Era::Dual.as_str();
                command.arg(fixture).args(["--era", remote, "--http", "0"]);
                let behind = Self::run(Way::Native, command, folder, "behind.log")?;
                let config = aggregate(cell, programs, &behind.url);
                let mut subject = Self::with_config(&config, cell, rialto, folder)?;
                subject.url = subject.url_of_aggregate()?;
                subject.behind = Some(Box::new(behind));
                Ok(subject)
            }
            Way::Chain => {
                let command = of_child(cell, Way::Shared, programs);
                let behind = Self::run(Way::Shared, command, folder, "behind.log")?;
                Self::in_front_of(behind, cell, rialto, folder)
            }
        }
    }

    /// Rialto in front of something that is running already.
    fn in_front_of(behind: Self, cell: Cell, rialto: &Path, folder: &Path) -> anyhow::Result<Self> {
        let text = format!(
            "destinations:\n  fixture:\n    type: streamable_http\n    url: {}\n",
            behind.url
        );
        let mut subject = Self::with_config(&text, cell, rialto, folder)?;
        subject.behind = Some(Box::new(behind));
        Ok(subject)
    }

    fn with_config(text: &str, cell: Cell, rialto: &Path, folder: &Path) -> anyhow::Result<Self> {
        let config = folder.join("destinations.yml");
        std::fs::write(&config, text).context("cannot write a configuration")?;
        let mut command = bridge(rialto);
        command.arg("--config").arg(config).args(cell.suite.serve_flags);
        Self::run(cell.way, command, folder, "subject.log")
    }

    /// Returns the address of the aggregate. The log begins with that of a member.
    fn url_of_aggregate(&self) -> anyhow::Result<String> {
        let host = self.url.strip_prefix("http://").context("an http address")?;
        let (host, _) = host.split_once('/').context("an address with a path")?;
        Ok(format!("http://{host}/{AGGREGATE}/mcp"))
    }

    fn run(way: Way, mut command: Command, folder: &Path, log: &str) -> anyhow::Result<Self> {
        let log = folder.join(log);
        let log_file = File::create(&log).context("cannot create the subject's log")?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        let stderr = child.stderr.take().context("stderr was piped")?;
        let (found, url) = sync_channel(1);
        let mut subject = Self {
            child,
            url: String::new(),
            way,
            behind: None,
            drain: Some(thread::spawn(move || drain(stderr, log_file, &found))),
        };
        subject.url = url
            .recv_timeout(START)
            .with_context(|| format!("it named no address; see {}", log.display()))?;
        Ok(subject)
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Makes one call as a client that can be asked things. A legacy server receives at its start
    /// what its clients can do, so Rialto starts one for each kind of client; and the suite gives
    /// its first call as such a client 600 ms, in which a Node on a busy machine does not start.
    pub fn warm_up(&self) -> anyhow::Result<()> {
        let address = self.url.strip_prefix("http://").context("an http address")?;
        let (host, path) = address.split_once('/').context("an address with a path")?;
        // A list of an aggregate starts no server that was read before.
        let (method, name) = match self.way {
            Way::Aggregate => ("tools/call", format!("Mcp-Name: {TOOL}\r\n")),
            Way::Native | Way::Shared | Way::PerSession | Way::Remote | Way::Chain | Way::Fleet => {
                ("tools/list", String::new())
            }
        };
        let body = WARM_UP.replace("METHOD", method).replace("NAME", TOOL);
        let head = format!(
            "POST /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: {method}\r\n{name}Content-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(host).context("cannot connect")?;
        stream
            .set_read_timeout(Some(START))
            .context("cannot set a time limit")?;
        stream.write_all(head.as_bytes()).context("cannot write")?;
        stream.write_all(body.as_bytes()).context("cannot write")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).context("cannot read")?;
        ensure!(
            answer.starts_with(b"HTTP/1.1 200 "),
            "{}",
            String::from_utf8_lossy(&answer)
        );
        Ok(())
    }

    /// Ends the server; what comes back is a complaint about how it left.
    pub fn stop(mut self) -> anyhow::Result<Option<String>> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("a child has a pid")?, Signal::TERM).context("cannot signal the server")?;
        let Some(status) = wait(&mut self.child, STOP)? else {
            bail!("the server did not leave in {} s", STOP.as_secs());
        };
        if let Some(drain) = self.drain.take() {
            drain.join().ok().context("the log's reader panicked")?;
        }
        let complaint = match self.way {
            // Node dies of the signal, and nothing is asked of it.
            Way::Native => None,
            Way::Shared | Way::PerSession | Way::Remote | Way::Chain | Way::Fleet | Way::Aggregate => {
                (!status.success()).then(|| format!("rialto left with {status} when it was asked to end"))
            }
        };
        let behind = self.behind.take().map(|behind| behind.stop()).transpose()?;
        Ok(complaint.or(behind.flatten()))
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // Both fail only if it is gone already. Rialto's own children end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Rialto with the fixture as its child.
fn of_child(cell: Cell, way: Way, programs: Programs<'_>) -> Command {
    let mut command = bridge(programs.rialto);
    command
        .args(["--name", "fixture", "--process", way.as_str()])
        .args(cell.suite.serve_flags)
        .arg("--")
        .args([programs.node, programs.fixture])
        .args(["--era", cell.era.as_str()]);
    command
}

/// The name of the aggregate.
const AGGREGATE: &str = "fixture";

/// Returns the configuration of an aggregate of servers of all kinds. The one that the cell is about
/// has no prefix, so that it has the names that the suite knows.
fn aggregate(cell: Cell, programs: Programs<'_>, remote: &str) -> String {
    let child = |era: Era| {
        let command = [
            &*programs.node.to_string_lossy(),
            &*programs.fixture.to_string_lossy(),
            "--era",
            era.as_str(),
        ];
        format!("{{ command: {command:?} }}")
    };
    let members = [
        (Era::Legacy, "legacy", child(Era::Legacy)),
        (Era::Modern, "modern", child(Era::Modern)),
        (
            Era::Dual,
            "remote",
            format!("{{ type: streamable_http, url: {remote:?} }}"),
        ),
    ];
    let mut destinations = String::new();
    let mut listed = String::new();
    for (era, name, destination) in members {
        destinations.push_str(&format!("  {name}: {destination}\n"));
        let settings = if era == cell.era { "{ prefix: '' }" } else { "{}" };
        listed.push_str(&format!("      {name}: {settings}\n"));
    }
    format!("destinations:\n{destinations}aggregates:\n  {AGGREGATE}:\n    members:\n{listed}")
}

fn bridge(rialto: &Path) -> Command {
    let mut command = Command::new(rialto);
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    without_settings(&mut command);
    command
}

/// Settings in the developer's environment must not decide what is measured.
fn without_settings(command: &mut Command) {
    let settings = std::env::vars_os().filter(|(name, _)| is_setting(&name.to_string_lossy()));
    for (name, _) in settings {
        command.env_remove(name);
    }
}

/// Waits for a child, but not longer than `patience`.
pub fn wait(child: &mut Child, patience: Duration) -> anyhow::Result<Option<ExitStatus>> {
    let until = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child")? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        // The standard library can wait for ever or not at all, and this is not worth a dependency.
        thread::sleep(Duration::from_millis(20));
    }
}

/// Keeps the log and hands over the first address in it.
fn drain(stderr: ChildStderr, mut log: File, found: &SyncSender<String>) {
    for line in BufReader::new(stderr).split(b'\n') {
        let Ok(line) = line else { return };
        // A log that cannot be written is no reason to stop reading: the server would block.
        let _ = log.write_all(&line).and_then(|()| log.write_all(b"\n"));
        if let Some(url) = address_in(&String::from_utf8_lossy(&line)) {
            // Only the first is waited for; the channel is full or closed for the others.
            let _ = found.try_send(url);
        }
    }
}

fn address_in(line: &str) -> Option<String> {
    let word = line
        .split_whitespace()
        .find(|word| word.starts_with("http://127.0.0.1:"))?;
    word.ends_with("/mcp").then(|| word.to_owned())
}

/// The variables that Rialto reads.
pub fn is_setting(name: &str) -> bool {
    const OTHERS: [&str; 10] = [
        "URI",
        "BEARER_TOKEN",
        "MCP_NAME",
        "MCP_TIMEOUT_MS",
        "MCP_MAX_QUEUE",
        "XDG_STATE_HOME",
        "MAX_STDIO_CONNECTIONS",
        "AUDIT_LOG_BODIES",
        "STDIO_REQUEST_TIMEOUT",
        "RUST_LOG",
    ];
    name.starts_with("RIALTO_") || OTHERS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_found_in_what_either_server_says() {
        let native = address_in("http://127.0.0.1:3000/mcp (legacy)");
        assert_eq!(native.as_deref(), Some("http://127.0.0.1:3000/mcp"));
        let rialto = address_in("  http://127.0.0.1:3000/fixture/mcp   (starting: node)");
        assert_eq!(rialto.as_deref(), Some("http://127.0.0.1:3000/fixture/mcp"));
        assert_eq!(address_in("listening listening=127.0.0.1:3000"), None);
    }
}
