//! The local service: how it is reached, and how it is started if it does not run.
//!
//! A lock lets one process start it, while others wait and then find it. The service does not
//! belong to the host: it is no child of the process that started it, it has none of the variables
//! of its entry, and it ends by itself when no host is connected any more.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use gateway::local_client::{self, Lines};
use gateway::platform;
use rustix::process::Pid;
use serde_json::Value;
use tokio::time::Instant;

use crate::admin_socket::{self, Directory};
use crate::config::Environment;
use crate::hosts::search_path;
use crate::{exit, fail, user_files};

/// The word that starts a program as no child of the caller.
pub(crate) const DETACHED: &str = "detached";

/// How long the service may take to serve.
const START: Duration = Duration::from_secs(15);
/// How long a service may take to read a destination that was just added to its file.
const RELOAD: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(20);
/// How long a service that ends may take from its last broken connection until its socket is gone.
const END: Duration = Duration::from_secs(1);
/// How long no host may be connected before the service ends.
const IDLE_EXIT: &str = "10m";
/// A log that has grown beyond this begins anew.
const MAX_LOG: u64 = 4 << 20;
/// How much of the log is read for the reason of a failure.
const LAST_LINES: usize = 5;

/// The variables that the service gets. Those of an entry are for its server alone, and are handed
/// over.
const KEPT: [&str; 22] = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "LANG",
    "TMPDIR",
    "TZ",
    "SSH_AUTH_SOCK",
    "DBUS_SESSION_BUS_ADDRESS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "RUST_LOG",
];
const KEPT_PREFIXES: [&str; 2] = ["LC_", "XDG_"];

/// A service that answered.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) pid: u64,
    /// The variables that the destination names.
    pub(super) variables: Vec<String>,
    /// The directory of the project counts.
    pub(super) wants_directory: bool,
    /// Lasts as long as the service.
    life: Lines,
}

impl Service {
    /// Returns what a gateway tells of a destination.
    async fn read(mut lines: Lines) -> Result<Self, Look> {
        let first = lines.next().await.ok().flatten().unwrap_or_default();
        let read: Value = serde_json::from_slice(&first).unwrap_or_default();
        if !lines.status.is_success() {
            let why = read["error"].as_str().unwrap_or("it does not answer");
            return Err(Look::Unknown(why.to_owned()));
        }
        let pid = read["pid"].as_u64().ok_or(Look::Absent)?;
        if read["rialto"] != env!("CARGO_PKG_VERSION") {
            tracing::warn!(
                service = %read["rialto"],
                "the local service is another version of Rialto: restart it when it suits"
            );
        }
        let variables = read["env"].as_array().into_iter().flatten();
        Ok(Self {
            pid,
            variables: variables
                .filter_map(|name| Some(name.as_str()?.to_owned()))
                .collect(),
            wants_directory: read["directory"] == true,
            life: lines,
        })
    }

    /// Returns the destination of a gateway that runs; `None` if it does not answer.
    pub(super) async fn at(socket: &Path, name: &str) -> Option<Self> {
        let lines = local_client::open(socket, &format!("/v1/attach/{name}"))
            .await
            .ok()?;
        Self::read(lines).await.ok()
    }

    /// Waits for the end of the service.
    pub(super) async fn ended(&mut self) {
        while let Ok(Some(_)) = self.life.next().await {}
    }
}

/// What came of a look for the service.
enum Look {
    Here(Box<Service>),
    /// It runs, and has no destination of this name.
    Unknown(String),
    /// Nothing listens.
    Absent,
    /// It has closed the connection without an answer.
    BrokenOff(String),
    /// There is something that must not be used.
    Unusable(String),
}

/// The service of one file.
#[derive(Debug)]
pub(super) struct Starter {
    name: String,
    file: PathBuf,
    directory: Directory,
    environment: Environment,
}

impl Starter {
    pub(super) fn new(name: &str, file: &Path, environment: &Environment) -> Self {
        Self {
            name: name.to_owned(),
            file: file.to_owned(),
            directory: Directory::of(environment),
            environment: environment.clone(),
        }
    }

    /// Returns the socket that the service of the file has.
    pub(super) fn socket(&self) -> PathBuf {
        self.directory.socket_of(&self.file)
    }

    /// Returns the service. It is started, if it does not run.
    pub(super) async fn reach(&self) -> Result<Service, String> {
        match self.look().await {
            Look::Here(service) => return Ok(*service),
            Look::Unknown(why) => return self.look_again(why).await,
            Look::Unusable(why) | Look::BrokenOff(why) => return Err(why),
            Look::Absent => {}
        }
        self.directory
            .open()
            .map_err(|error| format!("no place for its socket: {error}"))?;
        let name = format!("{}.start", admin_socket::key_of(&self.file));
        let directory = self.directory.clone();
        let locked = tokio::task::spawn_blocking(move || directory.lock(&name)).await;
        let _lock = locked
            .map_err(|error| error.to_string())?
            .map_err(|error| format!("no lock for its start: {error}"))?;
        // Another process may have started it meanwhile.
        match self.look().await {
            Look::Here(service) => return Ok(*service),
            Look::Unknown(why) => return self.look_again(why).await,
            Look::Unusable(why) | Look::BrokenOff(why) => return Err(why),
            Look::Absent => {}
        }
        let pid = self
            .spawn()
            .map_err(|error| format!("it cannot be started: {error}"))?;
        self.started(pid).await
    }

    /// Waits until the process that was started serves.
    async fn started(&self, pid: Option<Pid>) -> Result<Service, String> {
        let deadline = Instant::now() + START;
        while Instant::now() < deadline {
            match self.look().await {
                Look::Here(service) => return Ok(*service),
                Look::Unknown(why) | Look::Unusable(why) | Look::BrokenOff(why) => return Err(why),
                Look::Absent => {}
            }
            let has_ended = pid.is_some_and(|pid| rustix::process::test_kill_process(pid).is_err());
            if has_ended {
                return Err(format!("it ended at once: {}", self.last_words()));
            }
            tokio::time::sleep(LOOK).await;
        }
        Err(format!(
            "it does not serve after {START:?}: {}",
            self.last_words()
        ))
    }

    /// Waits until a service has read a destination that was just added to its file.
    async fn look_again(&self, mut why: String) -> Result<Service, String> {
        let deadline = Instant::now() + RELOAD;
        while Instant::now() < deadline {
            tokio::time::sleep(10 * LOOK).await;
            match self.look().await {
                Look::Here(service) => return Ok(*service),
                Look::Unknown(latest) => why = latest,
                Look::Unusable(why) | Look::BrokenOff(why) => return Err(why),
                Look::Absent => return Err("it ended".to_owned()),
            }
        }
        Err(why)
    }

    /// Looks for the service. One that is about to end breaks a connection off, and is gone a moment
    /// later.
    async fn look(&self) -> Look {
        let deadline = Instant::now() + END;
        loop {
            match self.look_once().await {
                Look::BrokenOff(why) if Instant::now() >= deadline => return Look::Unusable(why),
                Look::BrokenOff(_) => tokio::time::sleep(LOOK).await,
                look @ (Look::Here(_) | Look::Unknown(_) | Look::Absent | Look::Unusable(_)) => return look,
            }
        }
    }

    async fn look_once(&self) -> Look {
        let socket = self.socket();
        let path = format!("/v1/attach/{}", self.name);
        let lines = match local_client::open(&socket, &path).await {
            Ok(lines) => lines,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Look::Absent,
                    io::ErrorKind::ConnectionAborted => Look::BrokenOff(error.to_string()),
                    _ => Look::Unusable(error.to_string()),
                };
            }
        };
        match Service::read(lines).await {
            Ok(service) => Look::Here(Box::new(service)),
            Err(look) => look,
        }
    }

    /// Starts the service. Returns its process, if that is known.
    fn spawn(&self) -> io::Result<Option<Pid>> {
        let file = std::path::absolute(&self.file)?;
        let mut command = Command::new(own_program()?);
        command
            .arg0("rialto")
            .args([DETACHED, "serve", "--config"])
            .arg(file)
            .args(["--watch", "--listen", "off", "--keep-going"])
            .args(["--idle-exit", self.idle_exit()])
            .current_dir("/")
            .env_clear()
            .envs(
                self.environment
                    .all()
                    .into_iter()
                    .filter(|(name, _)| is_kept(name)),
            )
            .env("PATH", search_path::of_service(&self.environment))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(self.log().map_or_else(|_| Stdio::null(), Stdio::from));
        let said = command.output()?;
        let pid = String::from_utf8_lossy(&said.stdout).trim().parse().ok();
        Ok(pid.and_then(Pid::from_raw))
    }

    /// Returns how long no host may be connected before the service ends.
    fn idle_exit(&self) -> &str {
        self.environment.filled("RIALTO_IDLE_EXIT").unwrap_or(IDLE_EXIT)
    }

    fn log_file(&self) -> Option<PathBuf> {
        Some(user_files::state_dir(&self.environment)?.join("service.log"))
    }

    fn log(&self) -> io::Result<File> {
        let path = self.log_file().ok_or(io::ErrorKind::NotFound)?;
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let is_long = fs::metadata(&path).is_ok_and(|seen| seen.len() > MAX_LOG);
        OpenOptions::new()
            .create(true)
            .append(!is_long)
            .write(true)
            .truncate(is_long)
            .mode(0o600)
            .open(path)
    }

    /// Returns the end of the service's log.
    fn last_words(&self) -> String {
        let Some(path) = self.log_file() else {
            return "there is no log".to_owned();
        };
        let text = fs::read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().rev().take(LAST_LINES).collect();
        let lines: Vec<String> = lines
            .iter()
            .rev()
            .map(|line| gateway::escape::one_line(line, 300))
            .collect();
        format!("{} (in {})", lines.join(" / "), path.display())
    }
}

fn is_kept(name: &str) -> bool {
    KEPT.contains(&name) || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the path of this program, under its own name if that still leads to it.
fn own_program() -> io::Result<PathBuf> {
    let started_as = std::env::args_os().next();
    let program = platform::own_program(started_as.as_deref())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the path of this program is not known"))?;
    Ok(fs::read_link(&program)
        .ok()
        .filter(|named| named.exists())
        .unwrap_or(program))
}

/// Starts this program with other arguments, as no child of the caller: this process ends at once,
/// and the new one has a process group of its own. Prints its process on stdout.
pub(crate) fn detached(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let started = own_program().and_then(|program| {
        Command::new(program)
            .arg0("rialto")
            .args(arguments)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
    });
    match started {
        Ok(child) => {
            crate::looking::print(&format!("{}\n", child.id()));
            ExitCode::SUCCESS
        }
        Err(error) => fail(exit::FAILED, &format!("cannot start: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_gets_no_variable_of_an_entry() {
        for kept in ["HOME", "PATH", "LC_ALL", "XDG_RUNTIME_DIR", "https_proxy"] {
            assert!(is_kept(kept), "{kept}");
        }
        for dropped in [
            "GITHUB_TOKEN",
            "RIALTO_LISTEN",
            "AWS_SECRET_ACCESS_KEY",
            "LD_PRELOAD",
        ] {
            assert!(!is_kept(dropped), "{dropped}");
        }
    }
}
