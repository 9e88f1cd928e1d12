//! The systems that are measured: what each is called, how it is started, and when it can be used.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::handler::Era;
use crate::issuer::Issuer;
use crate::load::Target;
use crate::request::{self, ECHO, Front};
use crate::tls::Tls;

/// The system that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// The handler as its own HTTP server: the ceiling.
    Native,
    /// The stdio server without a bridge.
    Pipe,
    Rialto,
    Supergateway,
    NodeProxy,
    PythonProxy,
    /// Only what hosts start.
    McpRemote,
}

/// All of them, in the order of the table.
pub const ALL: [System; 7] = [
    System::Native,
    System::Pipe,
    System::Rialto,
    System::Supergateway,
    System::NodeProxy,
    System::PythonProxy,
    System::McpRemote,
];

/// What `--quick` measures.
pub const QUICK: [System; 2] = [System::Native, System::Rialto];

/// How a system is set up, where that differs from the usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    Plain,
    /// Limits raised for messages of 10 MB.
    LargeMessages,
    /// So many destinations instead of one (Rialto only).
    Destinations(usize),
    /// With an audit log in a file (Rialto only).
    Audit,
    /// With everything switched on: authentication, audit, metrics, limits, a policy (Rialto only).
    Everything(Credentials),
    /// In front of a server of the modern era (Rialto only).
    ModernServer,
    /// A destination and an aggregate of it and two others (Rialto only).
    Aggregate,
    /// An aggregate of so many members with so many tools each, which end when they are not used
    /// (Rialto only).
    Catalogue {
        members: usize,
        tools: usize,
    },
    /// A server that takes its time, and room for so many calls (Rialto only).
    Narrow {
        calls: usize,
    },
    /// In front of the native server instead of a child (Rialto only; the native server itself is
    /// as ever).
    Remote,
    /// One destination for small calls and one for large messages, with so many threads (Rialto
    /// only).
    Beside {
        threads: usize,
    },
    /// TLS, signed tokens and an audit log with bodies, with so many threads (Rialto only).
    Heavy {
        threads: usize,
    },
}

/// How callers authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credentials {
    /// A static token.
    Token,
    /// A token that an authorization server has signed.
    Jwt,
}

/// What a call takes at the server of [`Setup::Narrow`].
pub const NARROW_DELAY: Duration = Duration::from_millis(50);

/// Where the programs are.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The folder of `rialto`, `bench-echo` and `bench-native`.
    pub ours: PathBuf,
    /// The folder that the peers were installed into.
    pub peers: Option<PathBuf>,
    /// What stands in front of the program (valgrind).
    pub prefix: Vec<String>,
}

/// How long a system may take to its first answer.
const START_PATIENCE: Duration = Duration::from_secs(60);
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// A static token, and its line in Rialto's configuration.
const STATIC_TOKEN: (&str, &str) = (
    "bench-token",
    "sha256:7137e16f75a1d75b6fd65930672814806cdc1a0d6e0aa38611afc996a402258b",
);
/// The name of the tool `echo` in the aggregate.
const MEMBERS_ECHO: &str = "echo__echo";
/// More sessions than any row opens; the default is meant for people, not for load.
const MAX_SESSIONS: &str = "4000";

/// A system that runs.
#[derive(Debug)]
pub struct Running {
    pub target: Target,
    /// From just before its start to its first answer.
    pub first_answer: Duration,
    child: Child,
    /// The issuer of the tokens of its callers.
    pub issuer: Option<Issuer>,
    /// What it is in front of, if that is no child of its own. It is killed when this is dropped.
    _behind: Option<Child>,
    _files: TempDir,
}

impl System {
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Pipe => "bare pipe",
            Self::Rialto => "Rialto",
            Self::Supergateway => "supergateway 4.0.0",
            Self::NodeProxy => "mcp-proxy 6.7.19 (npm)",
            Self::PythonProxy => "mcp-proxy 0.13.0 (PyPI)",
            Self::McpRemote => "mcp-remote 0.15.1 (npm)",
        }
    }

    pub fn is_peer(self) -> bool {
        match self {
            Self::Native | Self::Pipe | Self::Rialto => false,
            Self::Supergateway | Self::NodeProxy | Self::PythonProxy | Self::McpRemote => true,
        }
    }

    /// Starts it and waits for its first answer.
    pub fn start(self, setup: Setup, programs: &Programs) -> anyhow::Result<Running> {
        let files = tempfile::tempdir().context("cannot make a folder for temporary files")?;
        let address = free_address()?;
        let behind = match (self, setup) {
            (Self::Rialto, Setup::Remote) => Some(native_behind(programs, files.path())?),
            _ => None,
        };
        let issuer = match setup {
            Setup::Everything(Credentials::Jwt) | Setup::Heavy { .. } => Some(Issuer::start()?),
            _ => None,
        };
        let tls = match setup {
            Setup::Heavy { .. } => Some(Tls::write_certificate(files.path())?),
            _ => None,
        };
        let token = match (setup, &issuer) {
            (Setup::Everything(Credentials::Token), _) => Some(STATIC_TOKEN.0.to_owned()),
            (Setup::Heavy { .. }, Some(issuer)) => Some(issuer.token(&format!("https://{address}/echo/mcp"))),
            (_, Some(issuer)) => Some(issuer.token(&format!("http://{address}/echo/mcp"))),
            (_, None) => None,
        };
        let (program, arguments) =
            self.command_line(setup, programs, address, files.path(), issuer.as_ref())?;
        let mut words = programs.prefix.clone();
        words.push(program.to_string_lossy().into_owned());
        words.extend(arguments);
        let (first, rest) = words.split_first().context("a command has a program")?;
        let log = files.path().join("stderr");
        let stderr = std::fs::File::create(&log).context("cannot keep its stderr")?;
        let mut command = Command::new(first);
        command
            .args(rest)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .kill_on_drop(true);
        let started = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("{first} does not start"))?;
        let paths = match setup {
            Setup::Destinations(count) => (1..=count).map(|number| format!("/d{number}/mcp")).collect(),
            Setup::Everything(_) | Setup::Narrow { .. } | Setup::Heavy { .. } => vec!["/echo/mcp".to_owned()],
            Setup::Beside { .. } => vec!["/small/mcp".to_owned(), "/large/mcp".to_owned()],
            Setup::Remote => vec!["/native/mcp".to_owned()],
            Setup::Aggregate | Setup::Catalogue { .. } => vec!["/all/mcp".to_owned()],
            Setup::Plain | Setup::LargeMessages | Setup::Audit | Setup::ModernServer => {
                vec!["/mcp".to_owned()]
            }
        };
        let front = Front {
            address,
            path: paths.first().map_or("/mcp", String::as_str),
            token: token.as_deref(),
        };
        let answered = match tls {
            // The first call waits for the rest.
            Some(_) => wait_for_listener(address, started, &mut child),
            None => wait_for_answer(front, started, &mut child),
        };
        let first_answer = match answered {
            Ok(time) => time,
            Err(error) => {
                let log_text = std::fs::read_to_string(&log).unwrap_or_default();
                let last = log_text.trim().lines().last().unwrap_or_default().to_owned();
                return Err(error.context(last));
            }
        };
        let pid = child.id().context("it has just answered")?;
        Ok(Running {
            target: Target {
                address,
                pid,
                paths,
                token,
                tool: match setup {
                    Setup::Aggregate => MEMBERS_ECHO,
                    _ => ECHO,
                },
                words: Era::Legacy,
                tls,
            },
            first_answer,
            child,
            issuer,
            _behind: behind,
            _files: files,
        })
    }

    fn command_line(
        self,
        setup: Setup,
        programs: &Programs,
        address: SocketAddr,
        files: &Path,
        issuer: Option<&Issuer>,
    ) -> anyhow::Result<(PathBuf, Vec<String>)> {
        let echo = programs.ours.join("bench-echo").to_string_lossy().into_owned();
        let port = address.port().to_string();
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match (self, setup) {
            (Self::Pipe | Self::McpRemote, _) => bail!("it is no HTTP server"),
            (Self::Native, Setup::Plain | Setup::LargeMessages | Setup::Remote) => {
                Ok((programs.ours.join("bench-native"), vec![port]))
            }
            (Self::Rialto, _) => {
                let listen = address.to_string();
                let mut all = words(&["serve", "--listen", &listen, "--max-sessions", MAX_SESSIONS]);
                match setup {
                    Setup::Plain | Setup::ModernServer => {}
                    Setup::LargeMessages => all.extend(words(&["--max-message-bytes", "16MiB"])),
                    Setup::Audit => {
                        let audit = files.join("audit.jsonl").to_string_lossy().into_owned();
                        all.extend(words(&["--audit", &audit]));
                    }
                    Setup::Destinations(_)
                    | Setup::Everything(_)
                    | Setup::Narrow { .. }
                    | Setup::Beside { .. }
                    | Setup::Heavy { .. }
                    | Setup::Aggregate
                    | Setup::Catalogue { .. } => {
                        let config = files.join("destinations.yml");
                        let text = configuration(setup, &echo, files, issuer);
                        std::fs::write(&config, text).context("cannot write a configuration")?;
                        all.extend(words(&["--config", &config.to_string_lossy()]));
                        return Ok((programs.ours.join("rialto"), all));
                    }
                    Setup::Remote => {
                        all.extend(words(&["--config", &remote_config(files).to_string_lossy()]));
                        return Ok((programs.ours.join("rialto"), all));
                    }
                }
                all.extend(words(&["--", &echo]));
                if setup == Setup::ModernServer {
                    all.extend(words(&["--modern"]));
                }
                Ok((programs.ours.join("rialto"), all))
            }
            (
                _,
                Setup::Destinations(_)
                | Setup::Audit
                | Setup::Everything(_)
                | Setup::ModernServer
                | Setup::Narrow { .. }
                | Setup::Remote
                | Setup::Beside { .. }
                | Setup::Heavy { .. }
                | Setup::Aggregate
                | Setup::Catalogue { .. },
            ) => {
                bail!("there is no such setting")
            }
            (Self::Supergateway, Setup::Plain | Setup::LargeMessages) => {
                let script = installed(programs, "peers-node/node_modules/supergateway/dist/index.js")?;
                let mut all = vec![script];
                all.extend(words(&["--stdio", &echo, "--outputTransport", "streamableHttp"]));
                all.extend(words(&["--stateful", "--logLevel", "none", "--port", &port]));
                Ok((PathBuf::from("node"), all))
            }
            (Self::NodeProxy, Setup::Plain | Setup::LargeMessages) => {
                let script = installed(
                    programs,
                    "peers-node/node_modules/mcp-proxy/dist/bin/mcp-proxy.mjs",
                )?;
                let mut all = vec![script];
                all.extend(words(&[
                    "--server",
                    "stream",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    &port,
                ]));
                if setup == Setup::LargeMessages {
                    all.extend(words(&["--maxBodySize", "0"]));
                }
                all.extend(words(&["--", &echo]));
                Ok((PathBuf::from("node"), all))
            }
            (Self::PythonProxy, Setup::Plain | Setup::LargeMessages) => {
                let program = installed(programs, "peers-python/bin/python")?;
                let all = words(&[
                    "-m",
                    "mcp_proxy",
                    "--log-level",
                    "WARNING",
                    "--port",
                    &port,
                    &echo,
                ]);
                Ok((PathBuf::from(program), all))
            }
        }
    }
}

/// The file of a set-up that flags do not describe.
fn configuration(setup: Setup, echo: &str, files: &Path, issuer: Option<&Issuer>) -> String {
    match setup {
        Setup::Plain | Setup::LargeMessages | Setup::Audit | Setup::Remote | Setup::ModernServer => {
            String::new()
        }
        Setup::Destinations(count) => {
            let entries = (1..=count).map(|number| format!("  d{number}:\n    command: ['{echo}']\n"));
            format!("destinations:\n{}", entries.collect::<String>())
        }
        Setup::Aggregate => format!(
            "destinations:\n  echo: {{ command: ['{echo}'] }}\n  second: {{ command: ['{echo}'] }}\n  \
             third: {{ command: ['{echo}', '--modern'] }}\n\
             aggregates:\n  all: {{ members: [echo, second, third] }}\n"
        ),
        Setup::Catalogue { members, tools } => {
            // The server has three tools of its own.
            let more = tools.saturating_sub(3);
            let one = |number| {
                format!(
                    "  m{number}: {{ command: ['{echo}', '--tools', '{more}'], start: lazy, idle_stop: 1s }}\n"
                )
            };
            let names: Vec<String> = (1..=members).map(|number| format!("m{number}")).collect();
            format!(
                "destinations:\n{}aggregates:\n  all: {{ members: [{}] }}\n",
                (1..=members).map(one).collect::<String>(),
                names.join(", ")
            )
        }
        // Limits that are counted and never reached.
        Setup::Everything(_) => format!(
            "audit: {audit}\nauth: {{ {auth} }}\nlimits: {{ requests_per_minute: 4000000000, session_requests_per_minute: 4000000000, \
             sessions_per_principal: 4000, calls_per_principal: 4000, connections_per_address: 4000 }}\n\
             destinations:\n  echo:\n    command: ['{echo}']\n    tools: {{ allow: [echo, 'read_*'], deny: ['delete_*'] }}\n",
            audit = files.join("audit.jsonl").display(),
            auth = match issuer {
                Some(issuer) => format!("jwt: {{ issuer: '{}' }}", issuer.url()),
                None => format!("tokens: [{{ name: bench, hash: '{}' }}]", STATIC_TOKEN.1),
            },
        ),
        Setup::Beside { threads } => format!(
            "threads: {threads}\nmax_message_bytes: 16MiB\ndestinations:\n  small:\n    command: ['{echo}']\n  \
             large:\n    command: ['{echo}']\n"
        ),
        Setup::Heavy { threads } => format!(
            "threads: {threads}\ntls: {{ cert: cert.pem, key: key.pem }}\n\
             audit: {{ sink: {audit}, bodies: true }}\nauth: {{ jwt: {{ issuer: '{issuer}' }} }}\n\
             destinations:\n  echo:\n    command: ['{echo}']\n",
            audit = files.join("audit.jsonl").display(),
            issuer = issuer.map_or_else(String::new, |issuer| issuer.url().to_string()),
        ),
        Setup::Narrow { calls } => format!(
            "limits: {{ calls: {calls} }}\ndestinations:\n  echo:\n    command: ['{echo}', '{delay}']\n",
            delay = NARROW_DELAY.as_millis(),
        ),
    }
}

fn remote_config(files: &Path) -> PathBuf {
    files.join("remote.yml")
}

/// Starts the native server behind Rialto, and writes the configuration with its address.
fn native_behind(programs: &Programs, files: &Path) -> anyhow::Result<Child> {
    let address = free_address()?;
    let mut child = Command::new(programs.ours.join("bench-native"))
        .arg(address.port().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("bench-native does not start")?;
    let front = Front {
        address,
        path: "/mcp",
        token: None,
    };
    wait_for_answer(front, Instant::now(), &mut child)?;
    let text =
        format!("destinations:\n  native:\n    type: streamable_http\n    url: http://{address}/mcp\n");
    std::fs::write(remote_config(files), text).context("cannot write a configuration")?;
    Ok(child)
}

pub(crate) fn installed(programs: &Programs, path: &str) -> anyhow::Result<String> {
    let found = programs.peers.as_ref().map(|folder| folder.join(path));
    match found.filter(|path| path.exists()) {
        Some(path) => Ok(path.to_string_lossy().into_owned()),
        None => bail!("not installed"),
    }
}

impl Running {
    /// Ends it as an operator would, and makes sure.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            // It may have ended on its own; then there is nothing to do.
            let _ = kill_process(pid, Signal::TERM);
        }
        if tokio::time::timeout(STOP_PATIENCE, self.child.wait())
            .await
            .is_err()
        {
            self.child.kill().await.context("cannot be ended")?;
        }
        Ok(())
    }
}

/// A port that is free now. Another program might take it first; then the start fails.
fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
    listener.local_addr().context("a listener has an address")
}

/// Asks until `initialize` is answered. It blocks: nothing else is going on, and a timer would be
/// too coarse.
fn wait_for_answer(front: Front<'_>, started: Instant, child: &mut Child) -> anyhow::Result<Duration> {
    let request = request::opening(front);
    let mut last_error = anyhow::anyhow!("never listened");
    while started.elapsed() < START_PATIENCE {
        match ask(front.address, &request) {
            Ok(()) => return Ok(started.elapsed()),
            Err(error) => last_error = error,
        }
        if let Ok(Some(status)) = child.try_wait() {
            bail!("ended with {status}");
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Err(last_error.context("no answer"))
}

/// Waits until connections are accepted.
fn wait_for_listener(address: SocketAddr, started: Instant, child: &mut Child) -> anyhow::Result<Duration> {
    while started.elapsed() < START_PATIENCE {
        if TcpStream::connect(address).is_ok() {
            return Ok(started.elapsed());
        }
        if let Ok(Some(status)) = child.try_wait() {
            bail!("ended with {status}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("never listened")
}

fn ask(address: SocketAddr, request: &[u8]) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(START_PATIENCE))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    // The answer may come as an event, after its head.
    while !answer.windows(15).any(|found| found == b"protocolVersion") {
        match stream.read(&mut piece)? {
            0 => bail!("closed without an answer"),
            read => answer.extend_from_slice(&piece[..read]),
        }
        if answer.len() >= 12 && &answer[9..12] != b"200" {
            bail!("HTTP {}", String::from_utf8_lossy(&answer[9..12]));
        }
    }
    Ok(())
}
