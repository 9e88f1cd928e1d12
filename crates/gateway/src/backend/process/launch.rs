//! Starts a child: no shell, its own process group, only the environment it is given, three pipes.
//!
//! It hides how pipes come to be and how large they are. It refuses to start what cannot be found,
//! with an error that names the remedy. A child that was half made is killed and waited for.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Once};
use std::time::Duration;

use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::process::Command;
use tokio::sync::Semaphore;

use super::environment::Environment;
use super::group::{Group, GroupId};
use super::resolve::{ResolveError, resolve};
use super::stop::{ChildProcess, in_background};
use super::strays::{VARIABLE, reap};
use super::warden::{Warden, WardenCommand};
use crate::platform;

/// How long the leftovers of a crashed child have to end after SIGTERM.
pub const LEFTOVER_GRACE: Duration = Duration::from_secs(5);

/// Children with large pipes at once. Linux allows an ordinary user 64 MiB of pipe buffers and
/// limits all further pipes of that user, in every program, to 8 KiB; two pipes of 1 MiB each for
/// the first sixteen children stay well below that.
const ROOMY_CHILDREN: usize = 16;

/// What to start.
#[derive(Debug, Clone)]
pub struct LaunchOrder {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The complete environment of the child.
    pub env: Environment,
    pub cwd: Option<PathBuf>,
}

/// A started child and our ends of its pipes.
#[derive(Debug)]
pub struct Running {
    pub pid: u32,
    pub stdin: Sender,
    pub stdout: Receiver,
    /// Must be drained (`stderr::drain`), or the child freezes when it is full.
    pub stderr: Receiver,
    pub child: ChildProcess,
}

/// Why a child was not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Program(#[from] ResolveError),
    #[error("the working directory {} is not a directory: create it or correct `cwd`", path.display())]
    WorkingDirectory { path: PathBuf },
    #[error("this machine has no processes, files or memory left to start `{program}`: {source}")]
    Shortage { program: String, source: io::Error },
    #[error(
        "`{program}` ({}) cannot be run by this system: if it is a script, check that its first line names an interpreter that exists",
        path.display()
    )]
    Unrunnable {
        program: String,
        path: PathBuf,
        source: io::Error,
    },
    #[error("`{program}` could not be started: {source}")]
    Start { program: String, source: io::Error },
}

impl LaunchError {
    /// Returns whether trying again later may help although nothing is changed.
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::Shortage { .. })
    }

    fn of_spawn(program: &str, path: &Path, source: io::Error) -> Self {
        use rustix::io::Errno;
        let program = program.to_owned();
        match Errno::from_io_error(&source) {
            Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => {
                Self::Shortage { program, source }
            }
            // The file itself was just seen, so "not found" is about the interpreter it asks for.
            Some(Errno::NOEXEC | Errno::NOENT) => Self::Unrunnable {
                program,
                path: path.to_path_buf(),
                source,
            },
            Some(_) | None => Self::Start { program, source },
        }
    }
}

/// Starts children and sees to it that none outlives Rialto. Cheap to clone; one is enough.
#[derive(Debug, Clone)]
pub struct Launcher {
    warden: Arc<Warden>,
    leftover_grace: Duration,
    room: Arc<Semaphore>,
    adopts: bool,
}

impl Launcher {
    /// Returns a launcher whose children are watched by a warden, which is started with the first
    /// child.
    pub fn new(warden: WardenCommand) -> Self {
        Self::with(Warden::new(warden))
    }

    /// Returns a launcher whose children may outlive Rialto if it is killed: for tests, and for
    /// commands that start a child for a moment only.
    pub fn without_warden() -> Self {
        Self::with(Warden::none())
    }

    fn with(warden: Arc<Warden>) -> Self {
        keep_inherited_files_to_ourselves();
        Self {
            warden,
            leftover_grace: LEFTOVER_GRACE,
            room: Arc::new(Semaphore::new(ROOMY_CHILDREN)),
            adopts: false,
        }
    }

    /// Also ends processes that leave the group of their child, where the system allows it: orphans
    /// among the descendants of this process become its children. Call it inside a runtime, which
    /// waits for them when they die.
    pub fn adopting(mut self) -> Self {
        match platform::adopt_orphans() {
            Ok(true) => {
                self.adopts = true;
                in_background(reap(Arc::downgrade(&self.warden)));
            }
            Ok(false) => {
                tracing::debug!("on this system processes that leave their group may outlive their server");
            }
            Err(error) => {
                tracing::warn!(%error, "processes that leave their group may outlive their server");
            }
        }
        self
    }

    /// Changes how long the leftovers of a crashed child have after SIGTERM.
    #[must_use]
    pub fn leftover_grace(mut self, grace: Duration) -> Self {
        self.leftover_grace = grace;
        self
    }

    /// Starts a child. It returns when the program runs or is known not to; call it inside a
    /// runtime.
    pub fn launch(&self, order: &LaunchOrder) -> Result<Running, LaunchError> {
        let program = order.argv.first().map_or("", String::as_str);
        let path = resolve(program, order.cwd.as_deref(), order.env.path())?;
        let mut command = Command::new(&path);
        // `arg0` stays as written, since programs with several names look at it.
        command.arg0(program).args(order.argv.iter().skip(1));
        command.env_clear().envs(order.env.iter()).process_group(0);
        let mark = self.adopts.then(|| self.warden.marks().next());
        if let Some(mark) = &mark {
            command.env(VARIABLE, mark.to_string());
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(cwd) = &order.cwd {
            if !cwd.is_dir() {
                return Err(LaunchError::WorkingDirectory { path: cwd.clone() });
            }
            command.current_dir(cwd);
        }
        let mut leader = command
            .spawn()
            .map_err(|error| LaunchError::of_spawn(program, &path, error))?;

        let pid = leader.id().expect("a child that was never waited for has an id");
        let id = i32::try_from(pid)
            .ok()
            .and_then(GroupId::new)
            .expect("a child is never process 0 or 1");
        let pipes = (leader.stdin.take(), leader.stdout.take(), leader.stderr.take());
        let room = Arc::clone(&self.room).try_acquire_owned().ok();
        let roomy = room.is_some();
        let group = Group::new(id, Some(Arc::clone(&self.warden)), mark);
        // From here on an early return drops the child, which kills it.
        let child = ChildProcess::new(pid, leader, group, self.leftover_grace, room);

        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            unreachable!("all three were asked to be pipes");
        };
        let convert = || -> io::Result<(Sender, Receiver, Receiver)> {
            Ok((
                Sender::from_owned_fd(stdin.into_owned_fd()?)?,
                Receiver::from_owned_fd(stdout.into_owned_fd()?)?,
                Receiver::from_owned_fd(stderr.into_owned_fd()?)?,
            ))
        };
        let (stdin, stdout, stderr) =
            convert().map_err(|error| LaunchError::of_spawn(program, &path, error))?;
        if roomy {
            platform::enlarge_pipe(&stdin);
            platform::enlarge_pipe(&stdout);
        }
        Ok(Running {
            pid,
            stdin,
            stdout,
            stderr,
            child,
        })
    }

    /// SIGKILL to every group that is not known to be gone: the answer to a second SIGTERM.
    pub fn kill_all(&self) {
        self.warden.kill_all();
    }

    /// Waits until the warden process knows of every child started so far. Nothing needs to wait
    /// for this in service; it never ends without a warden that can be started.
    pub async fn guarded(&self) {
        self.warden.informed().await;
    }

    /// Groups that are not known to be gone.
    pub fn alive(&self) -> usize {
        self.warden.alive()
    }
}

/// The program that started Rialto may have left files open in it (shells do), and every child
/// would inherit them. All that Rialto opens itself is closed on exec from the beginning.
fn keep_inherited_files_to_ourselves() {
    const FIRST_AFTER_STDERR: i32 = 3;
    static MARKED: Once = Once::new();
    MARKED.call_once(|| {
        close_fds::CloseFdsBuilder::new()
            .threadsafe(true)
            .cloexecfrom(FIRST_AFTER_STDERR);
    });
}
