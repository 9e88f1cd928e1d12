//! Looks at a server as a host does: starts it twice, reads every line, closes its stdin, and kills
//! it.
//!
//! The first start is in the legacy era and ends with the end of stdin. The second one is in the
//! modern era and ends with SIGKILL, as with a host that crashes. Nothing is left running.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gateway::backend::process::{
    ChildProcess, Environment as Variables, LaunchError, LaunchOrder, Launcher, Running, StderrTail, stderr,
    wanted_but_withheld,
};
use gateway::platform::{self, ProcessSeen};
use gateway::tasks;
use protocol::version::Version;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::{sleep, timeout, timeout_at};

use crate::config::Environment;
use crate::config::connection::Connection;
use crate::doctor::judge::server::{EndSeen, Failure, FailureKind, ServerSeen, ToolSeen};
use crate::trying;

/// How long a server may run after its stdin has ended.
const END: Duration = Duration::from_secs(2);
/// How long processes may outlive a server that was killed.
const AFTERLIFE: Duration = Duration::from_secs(2);
/// How often they are looked at meanwhile.
const LOOK: Duration = Duration::from_millis(50);
/// How long the end of a server may take at last.
const GRACE: Duration = Duration::from_secs(1);
/// The longest line that is read.
const MAX_LINE: u64 = 32 << 20;
/// How many lines that are no messages are kept.
const NOISE: usize = 5;
/// How many pages of tools are read.
const PAGES: usize = 100;
const META: &str = "io.modelcontextprotocol/";

/// A stdio server, ready to be started.
#[derive(Debug, Clone)]
pub(crate) struct Startable {
    pub(crate) name: String,
    pub(crate) argv: Vec<String>,
    pub(crate) variables: Variables,
    pub(crate) cwd: Option<PathBuf>,
}

/// Looks at a stdio server.
pub(crate) async fn stdio(
    server: Startable,
    launcher: Launcher,
    limit: Duration,
    environment: BTreeMap<String, String>,
) -> ServerSeen {
    let mut seen = ServerSeen {
        name: server.name.clone(),
        ..ServerSeen::default()
    };
    let cold = first_start(&server, &launcher, limit, &mut seen).await;
    let is_running = cold.is_ok();
    seen.cold = Some(cold.map_err(|failure| withheld(failure, &server, &environment)));
    if is_running {
        second_start(&server, &launcher, limit, &mut seen).await;
    }
    seen
}

/// Looks at a remote server.
pub(crate) async fn remote(
    name: String,
    connection: Connection,
    limit: Duration,
    environment: &Environment,
) -> ServerSeen {
    let mut seen = ServerSeen {
        name,
        ..ServerSeen::default()
    };
    match trying::look_around(connection, limit, environment).await {
        Ok(shown) => {
            seen.cold = Some(Ok(shown.opened));
            seen.warm = Some(shown.listed);
            seen.eras
                .extend(shown.server["protocolVersion"].as_str().map(shown_text));
            match shown.tools {
                Ok(tools) => seen.tools = Some(tools.iter().map(ToolSeen::of).collect()),
                Err(why) => seen.list_failure = Some(why),
            }
        }
        Err(why) => {
            let lower = why.to_ascii_lowercase();
            let is_refused = ["sign-in", "sign in", "credentials", "401"]
                .iter()
                .any(|word| lower.contains(word));
            let is_away = ["reach", "refused", "timed out", "no answer"]
                .iter()
                .any(|word| lower.contains(word));
            let kind = match (is_refused, is_away) {
                (true, _) => FailureKind::SignIn,
                (false, true) => FailureKind::Unreachable,
                (false, false) => FailureKind::Start,
            };
            seen.cold = Some(Err(Failure {
                why: why.lines().next().unwrap_or_default().to_owned(),
                kind,
                ..Failure::default()
            }));
        }
    }
    seen
}

fn shown_text(text: &str) -> String {
    gateway::escape::one_line(text, 200)
}

fn withheld(mut failure: Failure, server: &Startable, environment: &BTreeMap<String, String>) -> Failure {
    let names = wanted_but_withheld(environment.keys(), &server.variables, &failure.stderr);
    failure.withheld = names.into_iter().map(str::to_owned).collect();
    failure
}

/// Makes the legacy handshake, lists the tools, and closes stdin.
async fn first_start(
    server: &Startable,
    launcher: &Launcher,
    limit: Duration,
    seen: &mut ServerSeen,
) -> Result<Duration, Failure> {
    let began = Instant::now();
    let mut talk = Talk::start(server, launcher).map_err(|error| Failure {
        kind: match &error {
            LaunchError::Program(_) => FailureKind::Program,
            LaunchError::WorkingDirectory { .. }
            | LaunchError::Shortage { .. }
            | LaunchError::Unrunnable { .. }
            | LaunchError::Start { .. } => FailureKind::Start,
        },
        why: error.to_string(),
        ..Failure::default()
    })?;
    let hello = json!({
        "protocolVersion": Version::NEWEST_LEGACY.as_str(),
        "capabilities": {},
        "clientInfo": { "name": "rialto-doctor", "version": env!("CARGO_PKG_VERSION") },
    });
    let answer = match talk.request("initialize", hello, limit).await {
        Ok(answer) => answer,
        Err(silence) => {
            seen.noise = std::mem::take(&mut talk.noise);
            return Err(talk.failure(silence).await);
        }
    };
    let cold = began.elapsed();
    if let Some(version) = answer["result"]["protocolVersion"].as_str() {
        seen.eras.push(format!("legacy ({})", shown_text(version)));
        let noted = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        // A server that has ended gives no list.
        let _ = talk.send(&noted).await;
        if !answer["result"]["capabilities"]["tools"].is_null() {
            list(&mut talk, &json!({}), limit, seen).await;
        }
    }
    let Talk {
        stdin,
        mut running,
        lines,
        noise,
        reader,
        ..
    } = talk;
    seen.noise = noise;
    drop(stdin);
    let reading = tasks::spawn("stdout of a server", drain(lines));
    seen.end = match timeout(END, running.exited()).await {
        Ok(_) => EndSeen::Exited,
        Err(_) => EndSeen::RanOn(END),
    };
    running.stop(GRACE).await;
    reading.abort();
    reader.abort();
    Ok(cold)
}

/// Asks in the modern era, and kills the server as a host that crashes would.
async fn second_start(server: &Startable, launcher: &Launcher, limit: Duration, seen: &mut ServerSeen) {
    let began = Instant::now();
    let Ok(mut talk) = Talk::start(server, launcher) else {
        return;
    };
    if let Ok(answer) = talk.request("server/discover", modern(json!({})), limit).await {
        seen.warm = Some(began.elapsed());
        let result = &answer["result"];
        let versions = result["supportedVersions"].as_array().into_iter().flatten();
        let newest = versions
            .filter_map(Value::as_str)
            .find(|version| *version == Version::NEWEST_MODERN.as_str());
        if newest.is_some() {
            seen.eras
                .push(format!("modern ({})", Version::NEWEST_MODERN.as_str()));
            if seen.tools.is_none() && !result["capabilities"]["tools"].is_null() {
                list(&mut talk, &modern(json!({})), limit, seen).await;
            }
        }
    }
    for line in std::mem::take(&mut talk.noise) {
        if seen.noise.len() < NOISE && !seen.noise.contains(&line) {
            seen.noise.push(line);
        }
    }
    let leader = talk.pid;
    let family = descendants(leader);
    let Talk {
        stdin,
        mut running,
        lines,
        reader,
        ..
    } = talk;
    if let Some(pid) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
        // It may have ended by itself.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    drop((stdin, lines));
    seen.orphans = survivors(leader, family).await;
    running.kill_now();
    running.stop(GRACE).await;
    reader.abort();
}

fn modern(mut params: Value) -> Value {
    params["_meta"][format!("{META}protocolVersion")] = Version::NEWEST_MODERN.as_str().into();
    params["_meta"][format!("{META}clientCapabilities")] = json!({});
    params["_meta"][format!("{META}clientInfo")] =
        json!({ "name": "rialto-doctor", "version": env!("CARGO_PKG_VERSION") });
    params
}

/// Lists the tools, page by page.
async fn list(talk: &mut Talk, first: &Value, limit: Duration, seen: &mut ServerSeen) {
    let mut tools = Vec::new();
    let mut params = first.clone();
    for _ in 0..PAGES {
        match talk.request("tools/list", params, limit).await {
            Ok(answer) if answer["error"].is_null() => {
                let page = answer["result"]["tools"].as_array().into_iter().flatten();
                tools.extend(page.map(ToolSeen::of));
                match &answer["result"]["nextCursor"] {
                    Value::Null => break,
                    cursor => {
                        params = first.clone();
                        params["cursor"] = cursor.clone();
                    }
                }
            }
            Ok(answer) => {
                let why = answer["error"]["message"].as_str().unwrap_or("an error");
                seen.list_failure = Some(shown_text(why));
                return;
            }
            Err(silence) => {
                seen.list_failure = Some(silence.text(limit));
                return;
            }
        }
    }
    seen.tools = Some(tools);
}

/// Reads what a server still writes, so that it does not wait for a reader.
async fn drain(mut lines: BufReader<Receiver>) {
    let mut buffer = [0; 4096];
    while lines.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

/// Returns the processes that a process has started, and those that these have, with the start of
/// each: a number may be used again.
fn descendants(leader: u32) -> Vec<ProcessSeen> {
    let all = platform::own_processes().unwrap_or_default();
    let mut family = vec![leader];
    let mut found: Vec<ProcessSeen> = Vec::new();
    loop {
        let more: Vec<ProcessSeen> = all
            .iter()
            .filter(|process| family.contains(&process.parent) && !family.contains(&process.pid))
            .cloned()
            .collect();
        if more.is_empty() {
            return found;
        }
        family.extend(more.iter().map(|process| process.pid));
        found.extend(more);
    }
}

/// Waits for the end of what a killed server had started. Returns what lives on.
async fn survivors(leader: u32, family: Vec<ProcessSeen>) -> Vec<String> {
    let deadline = Instant::now() + AFTERLIFE;
    loop {
        let alive: Vec<String> = platform::own_processes()
            .unwrap_or_default()
            .into_iter()
            .filter(|process| !process.is_dead && process.pid != leader)
            .filter(|process| {
                let is_known =
                    |known: &ProcessSeen| known.pid == process.pid && known.started == process.started;
                process.group == leader || family.iter().any(is_known)
            })
            .map(|process| {
                let program = process.words.first().map_or("?", String::as_str);
                let base = program.rsplit('/').next().unwrap_or(program);
                format!("{} ({})", shown_text(base), process.pid)
            })
            .collect();
        if alive.is_empty() || Instant::now() >= deadline {
            return alive;
        }
        sleep(LOOK).await;
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy)]
enum Silence {
    Ended,
    Late,
}

impl Silence {
    fn text(self, limit: Duration) -> String {
        match self {
            Self::Ended => "it ended".to_owned(),
            Self::Late => format!("no answer within {}", humantime::format_duration(limit)),
        }
    }
}

/// A conversation with a server that runs.
struct Talk {
    pid: u32,
    stdin: Sender,
    lines: BufReader<Receiver>,
    running: ChildProcess,
    stderr: StderrTail,
    reader: tokio::task::JoinHandle<()>,
    noise: Vec<String>,
    last_id: u64,
    limit: Duration,
}

impl Talk {
    fn start(server: &Startable, launcher: &Launcher) -> Result<Self, LaunchError> {
        let order = LaunchOrder {
            argv: server.argv.clone(),
            env: server.variables.clone(),
            cwd: server.cwd.clone(),
        };
        let Running {
            pid,
            stdin,
            stdout,
            stderr: pipe,
            child,
        } = launcher.launch(&order)?;
        let tail = StderrTail::new();
        let name = server.name.clone();
        let kept = tail.clone();
        let reader = tasks::spawn("stderr of a server", async move {
            stderr::drain(pipe, &name, pid, kept, || {}).await;
        });
        Ok(Self {
            pid,
            stdin,
            lines: BufReader::new(stdout),
            running: child,
            stderr: tail,
            reader,
            noise: Vec::new(),
            last_id: 0,
            limit: Duration::ZERO,
        })
    }

    async fn send(&mut self, message: &Value) -> std::io::Result<()> {
        self.stdin.write_all(format!("{message}\n").as_bytes()).await
    }

    /// Sends a request and waits for its answer. What the server asks meanwhile is refused.
    async fn request(&mut self, method: &str, params: Value, limit: Duration) -> Result<Value, Silence> {
        self.limit = limit;
        self.last_id += 1;
        let id = self.last_id;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let deadline = tokio::time::Instant::now() + limit;
        if self.send(&request).await.is_err() {
            return Err(Silence::Ended);
        }
        loop {
            let mut line = Vec::new();
            let mut bounded = (&mut self.lines).take(MAX_LINE);
            match timeout_at(deadline, bounded.read_until(b'\n', &mut line)).await {
                Err(_) => return Err(Silence::Late),
                Ok(Err(_) | Ok(0)) => return Err(Silence::Ended),
                Ok(Ok(_)) => {}
            }
            let message = serde_json::from_slice::<Value>(&line)
                .ok()
                .filter(Value::is_object);
            let Some(message) = message else {
                let text = String::from_utf8_lossy(&line);
                if !text.trim().is_empty() && self.noise.len() < NOISE {
                    self.noise.push(gateway::escape::one_line(text.trim(), 120));
                }
                continue;
            };
            match (message.get("method").is_some(), message.get("id")) {
                (true, Some(theirs)) => {
                    let error = json!({ "code": -32601, "message": "not offered" });
                    let answer = json!({ "jsonrpc": "2.0", "id": theirs, "error": error });
                    // A server that has ended is noticed at the next line.
                    let _ = self.send(&answer).await;
                }
                (false, Some(of)) if *of == id => return Ok(message),
                (true | false, _) => {}
            }
        }
    }

    /// Ends the server, and returns what is known of its failure.
    async fn failure(mut self, silence: Silence) -> Failure {
        let (why, kind) = match silence {
            Silence::Late => (
                format!("gave no answer within {}", humantime::format_duration(self.limit)),
                FailureKind::Late,
            ),
            Silence::Ended => {
                // Its stdout can end before it does.
                let why = match timeout(GRACE, self.running.exited()).await {
                    Ok(exit) => format!("ended before it answered ({exit})"),
                    Err(_) => "closed its stdout before it answered".to_owned(),
                };
                (why, FailureKind::Start)
            }
        };
        self.stderr.ended_within(GRACE).await;
        let stderr = self.stderr.telling_lines();
        drop((self.stdin, self.lines));
        self.running.stop(GRACE).await;
        self.reader.abort();
        Failure {
            why,
            kind,
            stderr,
            withheld: Vec::new(),
        }
    }
}
