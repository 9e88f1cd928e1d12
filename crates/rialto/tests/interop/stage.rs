//! The real binary, a real server behind it and a real client in front, each with a deadline.
//!
//! Hides processes, pipes and where the packages are. It refuses to leave anything running: Rialto is ended at the end
//! of each test, also of one that fails, and a child that outlives it fails the test.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longer than any script's own deadline, so that the script is the one to say what it waited for.
const CLIENT_DEADLINE: Duration = Duration::from_secs(60);
const START_DEADLINE: Duration = Duration::from_secs(60);
/// A child that ignores SIGTERM is killed after five seconds; Rialto must be gone soon after that.
const END_DEADLINE: Duration = Duration::from_secs(15);
/// How much of Rialto's log a failed test shows.
const LOG_LINES: usize = 200;

/// Which SDK plays the scenario.
#[derive(Clone, Copy)]
pub(crate) enum Client {
    TypeScript1,
    Python1,
}

/// A running `rialto serve` with server-everything behind it.
pub(crate) struct Rialto {
    pid: Pid,
    ended: Receiver<ExitStatus>,
    is_over: bool,
    url: String,
    log: Log,
    /// An argument that the server ignores and that no other process on this machine has.
    mark: String,
    /// Whether the server stays when its last session has ended.
    keeps_its_server: bool,
    _folder: TempDir,
}

impl Rialto {
    /// One shared server, started by its file.
    pub(crate) fn in_front_of_node() -> Self {
        let mark = new_mark();
        let arguments = [
            "--listen",
            "127.0.0.1:0",
            "--log-format",
            "json",
            "--max-sessions",
            "100",
            "--",
        ];
        let mut command = rialto_serve();
        command
            .args(arguments)
            .arg("node")
            .arg(server_file())
            .args(["stdio", &mark]);
        Self::start(command, mark, "/mcp", new_folder())
    }

    /// One shared server, started the way its documentation says. The package is found in the folder that Rialto is
    /// started in, so nothing is downloaded.
    pub(crate) fn in_front_of_npx() -> Self {
        let mark = new_mark();
        let arguments = ["--listen", "127.0.0.1:0", "--log-format", "json", "--"];
        let npx = [
            "npx",
            "-y",
            "--offline",
            "@modelcontextprotocol/server-everything",
            "stdio",
            &mark,
        ];
        let mut command = rialto_serve();
        command
            .args(arguments)
            .args(npx)
            .current_dir(test_deps().join("node"));
        Self::start(command, mark, "/mcp", new_folder())
    }

    /// One server for each session, from a file of destinations.
    pub(crate) fn with_a_process_per_session() -> Self {
        let mark = new_mark();
        let folder = new_folder();
        let file = folder.path().join("destinations.yml");
        // JSON is YAML too, and quotes whatever a path may contain.
        let destinations = json!({
            "listen": "127.0.0.1:0",
            "destinations": {
                "everything": {
                    "command": "node",
                    "args": [server_file(), "stdio", mark],
                    "process": "per_session",
                    "max_sessions": 100,
                },
            },
        });
        fs::write(&file, destinations.to_string()).expect("the test's folder is writable");
        let mut command = rialto_serve();
        command.args(["--log-format", "json", "--config"]).arg(&file);
        let mut rialto = Self::start(command, mark, "/everything/mcp", folder);
        rialto.keeps_its_server = false;
        rialto
    }

    fn start(mut command: Command, mark: String, path: &str, folder: TempDir) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary under test starts");
        let stderr = child.stderr.take().expect("stderr was piped");
        let pid = pid_of(&child);
        let log = Log::default();
        let (listening_sender, listening) = sync_channel(1);
        let log_writer = log.clone();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some(address) = listening_address(&line) {
                    // Only the first is waited for.
                    let _ = listening_sender.try_send(address);
                }
                log_writer.add(line);
            }
        });
        let (end_sender, ended) = sync_channel(1);
        thread::spawn(move || {
            // Nobody listens any more if the test has failed meanwhile.
            let _ = end_sender.send(child.wait().expect("a child can be waited for"));
        });
        let mut rialto = Self {
            pid,
            ended,
            is_over: false,
            url: String::new(),
            log,
            mark,
            keeps_its_server: true,
            _folder: folder,
        };
        match listening.recv_timeout(START_DEADLINE) {
            Ok(address) => rialto.url = format!("http://{address}{path}"),
            Err(_) => panic!("rialto did not say where it listens; its log:\n{}", rialto.log),
        }
        rialto
    }

    /// Lets the client play, judges what it saw, ends Rialto and looks for what it left behind.
    pub(crate) fn plays(mut self, client: Client, scenario: &str, judge: fn(&Value)) {
        let output = client.play(&self.url, scenario);
        let said = String::from_utf8_lossy(&output.stdout);
        let _ = writeln!(std::io::stderr(), "{scenario} saw: {}", said.trim());
        assert!(
            output.status.success(),
            "the client ended with {}:\n{}\nrialto's log:\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr),
            self.log
        );
        judge(&serde_json::from_str(&said).expect("the client prints one JSON line"));
        if self.keeps_its_server {
            // Otherwise finding nothing after the end would prove nothing.
            assert!(
                processes_with(&self.mark).len() > 1,
                "rialto and its server carry the mark"
            );
        }
        self.end();
    }

    fn end(&mut self) {
        kill_process(self.pid, Signal::TERM).expect("rialto is still there");
        let Ok(status) = self.ended.recv_timeout(END_DEADLINE) else {
            panic!("rialto did not end after SIGTERM; its log:\n{}", self.log);
        };
        self.is_over = true;
        assert!(
            status.success(),
            "rialto ended with {status}; its log:\n{}",
            self.log
        );
        let left = processes_with(&self.mark);
        assert!(left.is_empty(), "rialto left behind: {left:?}");
    }
}

impl Drop for Rialto {
    fn drop(&mut self) {
        if !self.is_over && self.ended.try_recv().is_err() {
            // The test has failed already; Rialto's children follow it by their parent-death signal.
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }
}

impl Client {
    fn play(self, url: &str, scenario: &str) -> Output {
        let scripts = repository().join("tests").join("interop");
        let mut command = match self {
            Client::TypeScript1 => {
                let mut command = Command::new("node");
                command.arg(scripts.join("node").join("client.mjs"));
                command
            }
            Client::Python1 => {
                let mut command = Command::new(test_deps().join("python1").join("bin").join("python"));
                command.arg(scripts.join("python").join("client.py"));
                command
            }
        };
        let child = command
            .args([url, scenario])
            .env("RIALTO_TEST_DEPS", test_deps())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let pid = pid_of(&child);
        let (sender, output) = sync_channel(1);
        thread::spawn(move || {
            let _ = sender.send(child.wait_with_output().expect("a child can be waited for"));
        });
        output.recv_timeout(CLIENT_DEADLINE).unwrap_or_else(|_| {
            let _ = kill_process(pid, Signal::KILL);
            panic!("the client did not end scenario {scenario} in {CLIENT_DEADLINE:?}");
        })
    }
}

/// The last lines that Rialto logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<VecDeque<String>>>);

impl Log {
    fn add(&self, line: String) {
        let mut lines = self.0.lock().expect("nobody panics with the log in hand");
        if lines.len() == LOG_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

impl std::fmt::Display for Log {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines = self.0.lock().expect("nobody panics with the log in hand");
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))
    }
}

/// The field `listening` of a JSON log line, at the top or among the event's fields.
fn listening_address(line: &str) -> Option<String> {
    let event: Value = serde_json::from_str(line).ok()?;
    let address = event
        .get("listening")
        .or_else(|| event.get("fields")?.get("listening"))?;
    Some(address.as_str()?.to_owned())
}

fn rialto_serve() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rialto"));
    command.arg("serve");
    command
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join("..")
}

/// Where `cargo xtask setup` put the packages.
fn test_deps() -> PathBuf {
    let folder =
        std::env::var_os("RIALTO_TEST_DEPS").map_or_else(|| repository().join(".test-deps"), PathBuf::from);
    assert!(
        folder.join("node").join(".installed").exists() && folder.join("python1").join(".installed").exists(),
        "the interop tests need packages that are not installed; run `cargo xtask setup`"
    );
    folder.canonicalize().expect("the folder is there")
}

fn server_file() -> PathBuf {
    test_deps().join("node/node_modules/@modelcontextprotocol/server-everything/dist/index.js")
}

fn new_folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

fn new_mark() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!(
        "rialto-interop-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// The command lines that contain the mark. A process that ends while it is looked at is none.
fn processes_with(mark: &str) -> Vec<String> {
    fs::read_dir("/proc")
        .expect("this test looks for processes in /proc")
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_str().is_some_and(is_number))
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(mark))
        .collect()
}

fn is_number(name: &str) -> bool {
    name.bytes().all(|digit| digit.is_ascii_digit())
}
