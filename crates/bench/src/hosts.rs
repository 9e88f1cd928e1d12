//! What sharing saves: five sessions of hosts with six servers each, once as hosts start them, and
//! once with `rialto attach` in the place of each server.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use crate::meter;
use crate::system::Programs;

const SESSIONS: usize = 5;
const SERVERS: [&str; 6] = ["one", "two", "three", "four", "five", "six"];
/// Starts that are timed. An odd number has a median.
const STARTS: usize = 15;
/// How long the service may take to end after its last host.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// A server that many people have, where it is installed.
const REAL: &str = "node/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
/// Marks the service of this measurement: it keeps variables with this beginning.
const MARK: &str = "XDG_RIALTO_BENCH";

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const LIST: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;

/// What was measured.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// Processes where each host starts each server, and their memory (PSS).
    pub(crate) processes_before: f64,
    pub(crate) memory_before: f64,
    /// Servers that run when all hosts are attached and none has sent a message.
    pub(crate) servers_at_first: f64,
    /// Servers that run when each session has listed the tools of each server, and their memory.
    pub(crate) servers_after: f64,
    pub(crate) server_memory_after: f64,
    /// Those of Rialto: the service, and `rialto attach` for each entry.
    pub(crate) own_processes: f64,
    pub(crate) own_memory: f64,
    /// The first answer through `rialto attach`, against that of a server that is started.
    pub(crate) first_answer: f64,
}

/// Measures, with a real server where the peers are installed.
pub(crate) fn measure(programs: &Programs) -> anyhow::Result<Sharing> {
    let stage = Stage::new(programs)?;
    let direct = greet(stage.sessions(|stage, _| Ok(stage.server.clone()))?)?;
    let processes_before = count(stage.servers());
    let memory_before = memory(&stage.servers());
    drop(direct);
    let start = median((0..STARTS).map(|_| stage.first_answer(&stage.server)))?;

    let attached = stage.sessions(|stage, name| stage.attach(name))?;
    // All processes of hosts, and the service.
    stage.wait_for("the service", || stage.own().len() > attached.len())?;
    let servers_at_first = count(stage.servers());
    let attached = greet(attached)?;
    let servers = stage.servers();
    let own = stage.own();
    let warm = stage.attach(SERVERS[0])?;
    let answer = median((0..STARTS).map(|_| stage.first_answer(&warm)))?;
    let sharing = Sharing {
        processes_before,
        memory_before,
        servers_at_first,
        servers_after: count(servers.clone()),
        server_memory_after: memory(&servers),
        own_processes: count(own.clone()),
        own_memory: memory(&own),
        first_answer: answer / start,
    };
    drop(attached);
    stage.wait_for("the end of the service", || stage.own().is_empty())?;
    Ok(sharing)
}

/// A home directory with six destinations, and one project.
struct Stage {
    folder: TempDir,
    rialto: PathBuf,
    /// The words that start a server.
    server: Vec<String>,
    mark: String,
}

/// A server, or what stands for it, as a host has it.
struct Host {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Host {
    fn drop(&mut self) {
        // What cannot be ended has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Stage {
    fn new(programs: &Programs) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for temporary files")?;
        let real = programs.peers.as_ref().map(|peers| peers.join(REAL));
        let server = match real.filter(|real| real.exists()) {
            Some(real) => vec!["node".to_owned(), real.to_string_lossy().into_owned()],
            None => vec![programs.ours.join("bench-echo").to_string_lossy().into_owned()],
        };
        let mut destinations = String::from("destinations:\n");
        for name in SERVERS {
            let words = serde_json::to_string(&server).context("words are JSON")?;
            destinations.push_str(&format!("  {name}: {{ command: {words}, start: lazy }}\n"));
        }
        for path in ["run", "project", ".config/rialto"] {
            fs::create_dir_all(folder.path().join(path)).context("cannot make a folder")?;
        }
        let runtime = folder.path().join("run");
        fs::set_permissions(runtime, fs::Permissions::from_mode(0o700)).context("cannot close a folder")?;
        fs::write(
            folder.path().join(".config/rialto/destinations.yml"),
            destinations,
        )
        .context("cannot write the destinations")?;
        Ok(Self {
            rialto: programs.ours.join("rialto"),
            server,
            mark: format!("{}", std::process::id()),
            folder,
        })
    }

    fn attach(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let rialto = self.rialto.to_str().context("a path is text")?;
        Ok([rialto, "attach", name].map(str::to_owned).to_vec())
    }

    fn start(&self, words: &[String]) -> anyhow::Result<Host> {
        let (program, args) = words.split_first().context("a program")?;
        let home = self.folder.path();
        let mut child = Command::new(program)
            .args(args)
            .current_dir(home.join("project"))
            .env("HOME", home)
            .env("XDG_RUNTIME_DIR", home.join("run"))
            .env(MARK, &self.mark)
            .env("RIALTO_IDLE_EXIT", "1s")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("{program} does not start"))?;
        let stdin = child.stdin.take().context("stdin is a pipe")?;
        let stdout = BufReader::new(child.stdout.take().context("stdout is a pipe")?);
        Ok(Host { child, stdin, stdout })
    }

    /// Starts what each session has in the place of each server.
    fn sessions(
        &self,
        words: impl Fn(&Self, &str) -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<Vec<Host>> {
        let mut hosts = Vec::new();
        for _ in 0..SESSIONS {
            for name in SERVERS {
                hosts.push(self.start(&words(self, name)?)?);
            }
        }
        Ok(hosts)
    }

    /// Returns how long the first answer takes after a start, in seconds.
    fn first_answer(&self, words: &[String]) -> anyhow::Result<f64> {
        let started = Instant::now();
        let mut host = self.start(words)?;
        host.ask(INITIALIZE)?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// The processes of this measurement: those in the project, and the service.
    fn processes(&self) -> Vec<u32> {
        let wanted = format!("{MARK}={}", self.mark);
        let wanted = wanted.as_bytes();
        let project = self.folder.path().join("project");
        let is_ours = |pid: &u32| {
            if fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|found| found == project) {
                return true;
            }
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == wanted)
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(is_ours).collect()
    }

    fn own(&self) -> Vec<u32> {
        let pids = self.processes().into_iter();
        pids.filter(|pid| runs(*pid, &self.rialto)).collect()
    }

    fn servers(&self) -> Vec<u32> {
        let pids = self.processes().into_iter();
        pids.filter(|pid| !runs(*pid, &self.rialto)).collect()
    }

    fn wait_for(&self, what: &str, mut is_so: impl FnMut() -> bool) -> anyhow::Result<()> {
        let began = Instant::now();
        while !is_so() {
            if began.elapsed() > PATIENCE {
                bail!("waited too long for {what}");
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Host {
    fn send(&mut self, message: &str) -> anyhow::Result<()> {
        writeln!(self.stdin, "{message}").context("a server does not read")
    }

    /// Sends a request, and waits for a response.
    fn ask(&mut self, request: &str) -> anyhow::Result<()> {
        self.send(request)?;
        let mut line = String::new();
        loop {
            line.clear();
            if self
                .stdout
                .read_line(&mut line)
                .context("a server cannot be read")?
                == 0
            {
                bail!("a server has ended");
            }
            // Servers may send notifications first.
            if line.contains("\"result\"") {
                return Ok(());
            }
        }
    }
}

fn greet(mut hosts: Vec<Host>) -> anyhow::Result<Vec<Host>> {
    for host in &mut hosts {
        host.ask(INITIALIZE)?;
        host.send(INITIALIZED)?;
        host.ask(LIST)?;
    }
    Ok(hosts)
}

fn runs(pid: u32, program: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|found| found == program)
}

fn count(processes: Vec<u32>) -> f64 {
    processes.len() as f64
}

/// Returns the memory of processes. One that has ended has none.
fn memory(processes: &[u32]) -> f64 {
    let of_each = processes
        .iter()
        .filter_map(|pid| meter::proportional_memory(*pid).ok());
    of_each.sum::<u64>() as f64
}

fn median(times: impl Iterator<Item = anyhow::Result<f64>>) -> anyhow::Result<f64> {
    let mut times: Vec<f64> = times.collect::<anyhow::Result<_>>()?;
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().context("there are times")
}
