//! Starting the real binary: where it is, its flags and environment, and when it is ready.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::lines::Lines;
use super::{Rialto, SURVIVOR_PATIENCE};
use crate::failure::{Failure, Result};
use crate::journal::Journal;
use crate::patience::wait_until;

const START_DEADLINE: Duration = Duration::from_secs(30);
/// The variables of the test's own environment that Rialto may see; a developer's `RIALTO_…` must not.
const ENVIRONMENT: [&str; 6] = ["PATH", "HOME", "USER", "TMPDIR", "LANG", "LLVM_PROFILE_FILE"];

/// How many threads Rialto serves with in tests that do not set it themselves.
const THREADS: &str = "TESTKIT_THREADS";

/// A Rialto that has not started yet.
#[derive(Debug)]
pub struct Launcher {
    /// `rialto` itself unless another was named.
    program: Option<PathBuf>,
    before: Vec<String>,
    args: Vec<String>,
    config: Option<String>,
    env: Vec<(String, String)>,
    max_files: Option<u64>,
    user: Option<u32>,
    socket: Option<OwnedFd>,
    survivor_patience: Duration,
    dir: TempDir,
}

/// How a Rialto ended that was not meant to stay.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: Vec<String>,
    pub stderr: Vec<String>,
}

impl Ended {
    /// The exit code; `None` after a signal.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub fn stderr_text(&self) -> String {
        self.stderr.join("\n")
    }
}

impl Launcher {
    pub(super) fn new() -> Self {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--log-format", "json"];
        Self {
            program: None,
            before: serve.map(str::to_owned).to_vec(),
            args: Vec::new(),
            config: None,
            env: Vec::new(),
            max_files: None,
            user: None,
            socket: None,
            survivor_patience: SURVIVOR_PATIENCE,
            dir: tempfile::tempdir().expect("a temporary directory can be made"),
        }
    }

    /// Runs another program in Rialto's place.
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Another verb than `serve` with its flags: `["check"]`.
    #[must_use]
    pub fn verb(mut self, verb: &[&str]) -> Self {
        self.before = owned(verb);
        if verb.first() == Some(&"check") {
            // Tests run side by side, and beside other programs that listen on this machine.
            return self.env("RIALTO_LISTEN", "127.0.0.1:0");
        }
        self
    }

    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(owned(args));
        self
    }

    #[must_use]
    pub fn config(mut self, yaml: &str) -> Self {
        self.config = Some(yaml.to_owned());
        self
    }

    /// `-- testkit-server --journal {dir}/journal flags…`; nothing may follow it.
    #[must_use]
    pub fn stub(self, flags: &[&str]) -> Self {
        self.args(&["--", "{stub}", "--journal", "{dir}/journal"])
            .args(flags)
    }

    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Opens the admin socket, in `{dir}/rialto`.
    #[must_use]
    pub fn admin_socket(self) -> Self {
        let directory = self.dir.path().to_string_lossy().into_owned();
        self.env("RIALTO_ADMIN_SOCKET", "on")
            .env("XDG_RUNTIME_DIR", &directory)
    }

    /// As `ulimit -n` would.
    #[must_use]
    pub fn max_files(mut self, files: u64) -> Self {
        self.max_files = Some(files);
        self
    }

    /// Starts it as a user that has no other processes, so that the kernel's limits for users can
    /// be reached. Without root the tests run as such a user already: for root those limits do not
    /// hold.
    #[must_use]
    pub fn as_limited_user(mut self) -> Self {
        if rustix::process::getuid().is_root() {
            self.user = Some(1_000_000 + std::process::id());
        }
        self
    }

    /// Passes it a socket as systemd does: as descriptor 3, with `LISTEN_FDS` (1 unless the environment
    /// has it) and `LISTEN_PID`.
    #[must_use]
    pub fn socket(mut self, socket: impl Into<OwnedFd>) -> Self {
        self.socket = Some(socket.into());
        self
    }

    /// How long a child may outlive Rialto before the test fails.
    #[must_use]
    pub fn survivor_patience(mut self, patience: Duration) -> Self {
        self.survivor_patience = patience;
        self
    }

    /// What `{dir}` stands for: files can be put there before the start.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn journal(&self) -> Journal {
        Journal::at(self.dir.path().join("journal"))
    }

    /// Starts it and waits until it logs where it listens.
    pub async fn start(self) -> Result<Rialto> {
        let mut rialto = self.spawn()?;
        let started = wait_until("rialto listens", START_DEADLINE, || {
            let address = rialto.stderr.find(listening);
            address.map(Ok).or_else(|| rialto.exit_status().map(Err))
        });
        match started.await {
            Ok(address) => {
                rialto.address = address;
                Ok(rialto)
            }
            Err(status) => {
                let said = rialto.stderr.clone();
                drop(rialto);
                wait_until("its output has ended", START_DEADLINE, || {
                    said.ended().then_some(())
                })
                .await;
                let said = said.last(40);
                Err(Failure::new(format!(
                    "rialto ended instead of listening ({status}):\n{said}"
                )))
            }
        }
    }

    /// Starts it with a socket that listens already, where it does not log its address. Requests
    /// wait until it accepts them.
    pub fn start_on(self, listener: std::net::TcpListener) -> Result<Rialto> {
        let address = listener.local_addr()?.to_string();
        let mut rialto = self.socket(listener).spawn()?;
        rialto.address = address;
        Ok(rialto)
    }

    /// Runs it to its end, for verbs that end and for starts that must fail.
    pub async fn run(self, deadline: Duration) -> Result<Ended> {
        let rialto = self.spawn()?;
        let status = rialto.wait(deadline).await;
        let (stdout, stderr) = (rialto.stdout.clone(), rialto.stderr.clone());
        // First, for a survivor would hold the output open.
        drop(rialto);
        wait_until("its output has ended", deadline, || {
            (stdout.ended() && stderr.ended()).then_some(())
        })
        .await;
        Ok(Ended {
            status,
            stdout: stdout.all(),
            stderr: stderr.all(),
        })
    }

    /// From here on dropping the returned `Rialto` ends the process.
    fn spawn(mut self) -> Result<Rialto> {
        let mut args: Vec<OsString> = vec!["--launch".into()];
        if let Some(files) = self.max_files {
            args.extend(["--max-files".into(), files.to_string().into()]);
        }
        if let Some(user) = self.user {
            args.extend(["--user".into(), user.to_string().into()]);
            self.move_in(user)?;
        }
        let socket = self.socket.take();
        args.extend(socket.is_some().then(|| "--socket".into()));
        args.push(
            self.program
                .clone()
                .unwrap_or_else(|| self.of_this_build("rialto"))
                .into(),
        );
        args.extend(self.before.iter().map(|arg| self.filled_in(arg).into()));
        if let Some(yaml) = &self.config {
            let file = self.dir.path().join("destinations.yml");
            std::fs::write(&file, self.filled_in(yaml))?;
            args.extend(["--config".into(), file.into()]);
        }
        args.extend(self.args.iter().map(|arg| self.filled_in(arg).into()));
        let mut command = Command::new(binary("testkit-server"));
        command.args(args).current_dir(self.dir.path()).env_clear();
        command.envs(
            ENVIRONMENT
                .iter()
                .filter_map(|name| std::env::var_os(name).map(|value| (*name, value))),
        );
        if let Some(threads) = std::env::var_os(THREADS) {
            command.env("RIALTO_THREADS", threads);
        }
        // Tests that look through it set another value: a socket of the user would outlive a test
        // that kills Rialto.
        command.env("RIALTO_ADMIN_SOCKET", "off");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
            .stdin(socket.map_or_else(Stdio::null, Stdio::from))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = spawn_from_a_lasting_thread(command)?;
        Ok(Rialto {
            pid: process.id(),
            address: String::new(),
            stdout: process.stdout.take().map(Lines::collect).unwrap_or_default(),
            stderr: process.stderr.take().map(Lines::collect).unwrap_or_default(),
            process: Mutex::new(process),
            groups: Mutex::default(),
            dir: self.dir,
            survivor_patience: self.survivor_patience,
        })
    }

    /// Returns where another user finds a program of this workspace: beside the user's files, since
    /// those of the build may be out of reach.
    fn of_this_build(&self, name: &str) -> PathBuf {
        match self.user {
            Some(_) => self.dir.path().join(name),
            None => binary(name),
        }
    }

    /// Makes another user the owner of the directory and of the programs in it.
    fn move_in(&self, user: u32) -> Result<()> {
        std::os::unix::fs::chown(self.dir.path(), Some(user), Some(user))?;
        for name in ["rialto", "testkit-server"] {
            let (built, here) = (binary(name), self.dir.path().join(name));
            std::fs::hard_link(&built, &here).or_else(|_| std::fs::copy(&built, &here).map(drop))?;
        }
        Ok(())
    }

    fn filled_in(&self, text: &str) -> String {
        let stub = self.of_this_build("testkit-server");
        text.replace("{stub}", &stub.to_string_lossy())
            .replace("{dir}", &self.dir.path().to_string_lossy())
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// The address in the log line that announces it.
fn listening(line: &str) -> Option<String> {
    let log: Value = serde_json::from_str(line).ok()?;
    let address = log
        .get("listening")
        .or_else(|| log.get("fields")?.get("listening"))?;
    address.as_str().map(str::to_owned)
}

/// A program of this workspace, beside the running test.
///
/// # Panics
/// When it has not been built; Cargo does not build a dependency's programs for a test.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a running test knows where it is");
    // Integration tests are in `deps/`, doc tests and programs one level up.
    let found = test
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "no {name} beside {}: run `cargo build --workspace --bins` first",
            test.display()
        )
    })
}

type Job = (Command, SyncSender<std::io::Result<Child>>);

/// Rialto dies with the test process by its parent-death signal, which really follows the *thread* that
/// forked. A test's own thread may end earlier, so one thread forks for all.
fn spawn_from_a_lasting_thread(command: Command) -> Result<Child> {
    static JOBS: OnceLock<SyncSender<Job>> = OnceLock::new();
    let jobs = JOBS.get_or_init(|| {
        let (sender, receiver) = sync_channel::<Job>(64);
        std::thread::spawn(move || {
            for (mut command, done) in receiver {
                let _ = done.send(command.spawn());
            }
        });
        sender
    });
    let (done, spawned) = sync_channel(1);
    let gone = |_| Failure::new("the thread that starts processes has ended");
    jobs.send((command, done)).map_err(|_| gone(()))?;
    Ok(spawned.recv().map_err(|_| gone(()))??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_flat_or_among_fields() {
        let flat = r#"{"level":"INFO","listening":"127.0.0.1:4711"}"#;
        let nested = r#"{"level":"INFO","fields":{"message":"up","listening":"127.0.0.1:4711"}}"#;
        assert_eq!(listening(flat).as_deref(), Some("127.0.0.1:4711"));
        assert_eq!(listening(nested).as_deref(), Some("127.0.0.1:4711"));
        assert_eq!(listening("listening on 127.0.0.1:4711"), None);
        assert_eq!(listening(r#"{"fields":{}}"#), None);
    }
}
