//! The tasks of a child process: one that supervises it, one that reads it, one that writes to it.
//!
//! They decide nothing about the protocol. The restart policy decides when to start; the
//! multiplexer decides the rest, through the [`Instance`].

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Buf as _;
use protocol::exchange::{BackendError, StrayOutput};
use protocol::time::Moment;
use protocol::wire::line::LineFramer;
use protocol::wire::outbox::Outbox;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::Notify;

use crate::backend::process::{
    ChildState, Exit, LaunchError, LaunchOrder, Launcher, RestartPolicy, Running, StartDecision, StderrTail,
    stderr, wanted_but_withheld,
};
use crate::fault_injection;
use crate::instance::{ByteInlet, Instance};
use crate::metrics::ChildEnd;
use crate::reply::CANNOT_RUN;
use crate::status::Health;
use crate::tasks;

/// From the beginning of a stop to SIGKILL.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(5);
/// How long a server may live on after it has closed a pipe that it cannot do without.
const PIPE_GRACE: Duration = Duration::from_secs(1);
/// How long Rialto waits for the last output of a server that has exited.
const FINAL_OUTPUT: Duration = Duration::from_millis(50);
/// A buffer that grew beyond this for one large message is not kept.
const KEPT_BUFFER: usize = 256 << 10;
/// After so many bytes the reader yields to the tasks that send them to clients: large answers
/// would pile up as fast as a server can write them.
const HANDED_ON: usize = 512 << 10;
/// Pieces that are written with one system call: a large message has three.
const PIECES: usize = 8;

/// What the supervisor needs to know.
#[derive(Debug)]
pub(crate) struct ProcessSupervisor {
    pub(crate) instance: Arc<Instance>,
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) order: Arc<LaunchOrder>,
    pub(crate) max_message_bytes: usize,
    /// Start before the first request.
    pub(crate) eager: bool,
    /// How long the child may take to end, before it is killed.
    pub(crate) stop_grace: Duration,
    /// Callers may see what the child writes.
    pub(crate) shows_output: bool,
    /// The environment of this process.
    pub(crate) environment: Arc<BTreeMap<String, String>>,
}

/// How a run of the child ended.
enum RunEnd {
    ByItself(Exit),
    /// It showed no activity, or its output could not be used.
    Replaced(&'static str),
    /// No call used it (`idle_stop`).
    Unused,
    Stopped,
}

/// Why the supervision of a child ends.
enum EndCause {
    Exited(Exit),
    PipesClosed,
    /// Its output could not be used, it showed no activity, or an operator restarts it.
    Replaced(&'static str),
    Unused,
    StopWanted,
}

impl ProcessSupervisor {
    /// Supervises the child until the instance is stopped.
    pub(crate) async fn run(&self) {
        let mut policy = RestartPolicy::new();
        let mut backend_error = Arc::new(BackendError::default());
        let mut wanted = self.eager;
        while self.wait_until_start(&mut policy, &backend_error, wanted).await {
            wanted = false;
            self.instance.set_health(Health::Starting);
            let destination = self.instance.destination();
            match self.launch().await {
                Ok(running) => {
                    let pid = running.pid;
                    tracing::info!(%destination, pid, "started");
                    self.instance.metrics().child_starts.fetch_add(1, Relaxed);
                    if policy.failures() > 0 {
                        self.instance.metrics().child_restarts.fetch_add(1, Relaxed);
                    }
                    let tail = StderrTail::new();
                    let what = match self.supervise(running, &mut policy, tail.clone()).await {
                        RunEnd::Stopped => {
                            self.instance.metrics().child_ended(ChildEnd::Stopped);
                            break;
                        }
                        RunEnd::Unused => {
                            self.instance.metrics().child_ended(ChildEnd::Stopped);
                            policy.handle_stop(self.instance.clock().now().elapsed());
                            continue;
                        }
                        RunEnd::ByItself(exit) => {
                            self.instance.metrics().child_ended(ChildEnd::ByItself);
                            tracing::warn!(%destination, pid, exit = %exit, "server exited");
                            exit.to_string()
                        }
                        RunEnd::Replaced(why) => {
                            self.instance.metrics().child_ended(ChildEnd::Replaced);
                            replaced(why)
                        }
                    };
                    tail.ended_within(FINAL_OUTPUT).await;
                    backend_error = Arc::new(self.backend_error(what, &tail, &policy));
                    if self.instance.is_starting() {
                        for hint in self.hints(&tail.telling_lines()) {
                            tracing::warn!(%destination, hint, "server did not start");
                        }
                    }
                }
                Err(error) => {
                    self.instance.metrics().child_ended(ChildEnd::NotStarted);
                    backend_error =
                        Arc::new(self.backend_error(launch_error_text(&error), &StderrTail::new(), &policy));
                    tracing::error!(%destination, %error, "cannot start");
                }
            }
            let ended_at_discover = self.instance.link_down(&backend_error);
            if self.instance.take_restart() {
                // Its operator has ended it, and wants another one at once.
                policy = RestartPolicy::new();
                wanted = true;
                continue;
            }
            self.note_failure(&mut policy, &backend_error);
            if ended_at_discover {
                policy.forgive_failure();
                let destination = self.instance.destination();
                tracing::info!(%destination, "server exited at `server/discover`; `initialize` is sent first from now on");
            }
        }
        self.instance.set_health(Health::Stopped);
        let backend_error = Arc::new(BackendError {
            what: "stopped".into(),
            ..BackendError::default()
        });
        self.instance.link_down(&backend_error);
        self.instance.unavailable(&backend_error, Duration::from_secs(1));
    }

    /// Starts the child. The `fork` of a large process takes milliseconds, and programs may lie on
    /// slow disks, so that it is not done by the thread that serves.
    async fn launch(&self) -> Result<Running, LaunchError> {
        let (launcher, order) = (Arc::clone(&self.launcher), Arc::clone(&self.order));
        tasks::blocking(move || launcher.launch(&order)).await
    }

    /// Returns the error that callers receive about a child that ended or did not start.
    fn backend_error(&self, what: String, tail: &StderrTail, policy: &RestartPolicy) -> BackendError {
        let stderr = tail.telling_lines();
        // What was ready once had what it needed.
        let hints = match self.instance.is_starting() {
            true => self.hints(&stderr),
            false => Vec::new(),
        };
        let shown = self.shows_output;
        BackendError {
            what,
            stderr: if shown { stderr } else { Vec::new() },
            restarts: u32::try_from(policy.failures()).unwrap_or(u32::MAX),
            stray_output: self.instance.stray_output().map(|stray| StrayOutput {
                lines: stray.lines,
                first: stray.first.filter(|_| shown),
            }),
            hints: if shown { hints } else { Vec::new() },
        }
    }

    /// Returns what an operator may do about a server that does not start.
    fn hints(&self, stderr: &[String]) -> Vec<String> {
        wanted_but_withheld(self.environment.keys(), &self.order.env, stderr)
            .into_iter()
            .map(|name| format!("`{name}` is set here but not passed on: add it under `env`"))
            .collect()
    }

    /// Returns what a child that is not ready yet does.
    fn start_report(&self, since: Moment, tail: &StderrTail, policy: &RestartPolicy) -> BackendError {
        let program = self.order.argv.first().map_or("", String::as_str);
        let program = program.rsplit('/').next().unwrap_or(program);
        let took = self.instance.clock().now().since(since).as_secs();
        self.backend_error(format!("{program} is still starting, {took} s"), tail, policy)
    }

    fn note_failure(&self, policy: &mut RestartPolicy, backend_error: &Arc<BackendError>) {
        let now = self.instance.clock().now().elapsed();
        let destination = self.instance.destination();
        match policy.handle_failure(now) {
            Ok(ChildState::BackingOff { until }) => {
                let wait_ms = until.saturating_sub(now).as_millis() as u64;
                tracing::warn!(%destination, wait_ms, attempt = policy.failures(), "restarting the server after a backoff");
                self.instance
                    .set_health(Health::BackingOff(Arc::clone(backend_error)));
            }
            Ok(ChildState::Failed { retry_at }) => {
                tracing::error!(%destination, "gave up restarting; the next call tries again");
                self.instance
                    .set_health(Health::Failed(Arc::clone(backend_error)));
                self.instance
                    .unavailable(backend_error, retry_at.saturating_sub(now));
            }
            Ok(ChildState::Stopped | ChildState::Starting | ChildState::Ready) => {}
            Err(error) => tracing::error!(%destination, %error, "restart refused by the backoff policy"),
        }
    }

    /// Waits until the child is to be started. `false`: the instance is to stop instead.
    async fn wait_until_start(
        &self,
        policy: &mut RestartPolicy,
        backend_error: &Arc<BackendError>,
        mut wanted: bool,
    ) -> bool {
        let clock = self.instance.clock();
        loop {
            if self.instance.is_stopping() {
                return false;
            }
            if self.instance.take_restart() {
                // It may work now: what went wrong before does not count.
                *policy = RestartPolicy::new();
                wanted = true;
            }
            if wanted || self.instance.take_link_wanted() {
                wanted = false;
                let now = clock.now().elapsed();
                match policy.handle_ask(now) {
                    StartDecision::Start => return true,
                    StartDecision::Unavailable { retry_at } => {
                        self.instance
                            .unavailable(backend_error, retry_at.saturating_sub(now));
                    }
                    StartDecision::UnderWay | StartDecision::Ready | StartDecision::Wait { .. } => {}
                }
            }
            let restart = policy.next_deadline().map(protocol::time::Moment::since_start);
            let call_deadline = self.instance.next_deadline();
            tokio::select! {
                () = self.instance.supervisor_wake.notified() => {}
                now = clock.reach(restart) => {
                    if policy.handle_deadline(now.elapsed()) {
                        return !self.instance.is_stopping();
                    }
                }
                now = clock.reach(call_deadline) => self.instance.reach_deadline(now),
            }
        }
    }

    /// Supervises a running child until it ends or is stopped.
    async fn supervise(&self, running: Running, policy: &mut RestartPolicy, tail: StderrTail) -> RunEnd {
        let Running {
            pid,
            stdin,
            stdout,
            stderr,
            mut child,
        } = running;
        let destination = Arc::clone(self.instance.destination());
        let drain = tasks::spawn("stderr", {
            let destination = Arc::clone(&destination);
            let (tail, instance) = (tail.clone(), Arc::clone(&self.instance));
            async move {
                let note = || instance.note_stderr();
                stderr::drain(stderr, &destination, pid, tail, note).await;
            }
        });
        let first_line = Arc::new(Notify::new());
        let broken = Arc::new(Notify::new());
        // Without it everything goes by the writer.
        let pipe = stdin.as_fd().try_clone_to_owned().ok();
        let inlet = Inlet::open(&self.instance, pipe);
        self.instance.metrics().output.add(pid, Arc::new(tail.clone()));
        self.instance.link_up(Some(pid));
        // From here on, so that nothing is read before its link is up.
        // Owned, so that no second writer ever takes what is meant for the next child.
        let mut reader = tasks::Owned(tasks::spawn(
            "reader",
            read(
                stdout,
                Arc::clone(&self.instance),
                self.max_message_bytes,
                pid,
                Arc::clone(&first_line),
                Broken(Arc::clone(&broken)),
            ),
        ));
        let mut writer = tasks::Owned(tasks::spawn(
            "writer",
            write(stdin, Arc::clone(&self.instance), Broken(Arc::clone(&broken))),
        ));

        let clock = self.instance.clock();
        let since = clock.now();
        let mut silent = true;
        let how = loop {
            fault_injection::maybe_panic(fault_injection::Site::Supervisor, &[]);
            if self.instance.is_stopping() {
                break EndCause::StopWanted;
            }
            if self.instance.is_asleep() {
                break EndCause::Unused;
            }
            if let Some(why) = self.instance.take_replacement() {
                break EndCause::Replaced(why);
            }
            let deadline = self.instance.next_deadline();
            tokio::select! {
                exit = child.exited() => break EndCause::Exited(exit),
                () = first_line.notified(), if silent => {
                    silent = false;
                    if let Err(error) = policy.handle_ready(clock.now().elapsed()) {
                        tracing::error!(%destination, %error, "restart refused by the backoff policy");
                    }
                }
                () = self.instance.supervisor_wake.notified() => {}
                () = broken.notified() => {
                    // A server that closed its pipe usually is about to exit; give its status a
                    // chance.
                    break match tokio::time::timeout(PIPE_GRACE, child.exited()).await {
                        Ok(exit) => EndCause::Exited(exit),
                        Err(_) => EndCause::PipesClosed,
                    };
                }
                now = clock.reach(deadline) => {
                    if self.instance.is_starting() {
                        let report = self.start_report(since, &tail, policy);
                        self.instance.describe_start(Arc::new(report));
                    }
                    self.instance.reach_deadline(now);
                }
            }
        };
        // Dropping both closes the child's stdin.
        drop(inlet);
        writer.0.abort();
        let _ = (&mut writer.0).await;
        let ended = match how {
            EndCause::Exited(exit) => {
                // What the server wrote before it ended still counts, but a grandchild that holds
                // the pipe is not waited for.
                let _ = tokio::time::timeout(FINAL_OUTPUT, &mut reader.0).await;
                match self.instance.is_asleep() {
                    true => RunEnd::Unused,
                    false => RunEnd::ByItself(exit),
                }
            }
            EndCause::PipesClosed => {
                tracing::warn!(%destination, pid, "server closed its pipes without exiting; replaced");
                reader.0.abort();
                RunEnd::ByItself(child.stop(PIPE_GRACE).await)
            }
            EndCause::Replaced(why) => {
                tracing::warn!(%destination, pid, why, "server replaced");
                reader.0.abort();
                // Callers need not wait until it has gone.
                let backend_error = Arc::new(self.backend_error(replaced(why), &tail, policy));
                self.instance
                    .set_health(Health::BackingOff(Arc::clone(&backend_error)));
                self.instance.link_down(&backend_error);
                child.stop(PIPE_GRACE).await;
                RunEnd::Replaced(why)
            }
            EndCause::Unused => {
                reader.0.abort();
                let exit = child.stop(self.stop_grace).await;
                tracing::info!(%destination, pid, exit = %exit, "stopped");
                RunEnd::Unused
            }
            EndCause::StopWanted => {
                let exit = child.stop(self.stop_grace).await;
                reader.0.abort();
                tracing::info!(%destination, pid, exit = %exit, "stopped");
                RunEnd::Stopped
            }
        };
        tasks::spawn("stderr-end", async move {
            let _ = tokio::time::timeout(PIPE_GRACE, drain).await;
        });
        ended
    }
}

fn replaced(why: &str) -> String {
    format!("replaced: {why}")
}

/// Returns why a child was not started, as clients may read it. Paths of this machine are for the
/// log.
fn launch_error_text(error: &LaunchError) -> String {
    match error {
        LaunchError::Program(_) => CANNOT_RUN.into(),
        LaunchError::WorkingDirectory { .. } => {
            "its working directory is not a directory: create it or correct `cwd`".into()
        }
        LaunchError::Shortage { source, .. } => {
            format!("this machine has no processes, files or memory left to start it: {source}")
        }
        LaunchError::Unrunnable { .. } => {
            "it cannot be run by this system: if it is a script, check that its first line names an interpreter that exists".into()
        }
        LaunchError::Start { source, .. } => format!("it could not be started: {source}"),
    }
}

/// Reads the child's stdout until it ends.
async fn read(
    mut stdout: pipe::Receiver,
    instance: Arc<Instance>,
    max_message_bytes: usize,
    pid: u32,
    first_line: Arc<Notify>,
    _broken: Broken,
) {
    let mut framer = LineFramer::new(max_message_bytes);
    let mut has_sent = false;
    let mut handed_on = 0;
    loop {
        // Not `try_read_buf`: after a short read this one waits at once instead of asking the
        // kernel again.
        match stdout.read_buf(framer.spare()).await {
            Ok(0) => break,
            Ok(count) => {
                #[cfg(debug_assertions)]
                if fault_injection::maybe_panic(fault_injection::Site::Reader, framer.spare()) {
                    instance.supervisor_wake.notify_one();
                }
                instance
                    .metrics()
                    .server_bytes_received
                    .fetch_add(count as u64, Relaxed);
                let Some(lines) = instance.arrive(&mut framer, pid) else {
                    // The supervisor ends the child. Until then its output stays in the pipe, so
                    // that a line without end costs neither memory nor time.
                    return std::future::pending().await;
                };
                instance.delivered().await;
                if lines > 0 && !has_sent {
                    has_sent = true;
                    first_line.notify_one();
                }
                handed_on += count;
                if lines > 0 && handed_on >= HANDED_ON {
                    handed_on = 0;
                    tokio::task::yield_now().await;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
}

/// The stdin of a child.
struct Stdin(OwnedFd);

impl ByteInlet for Stdin {
    fn write(&self, bytes: &[u8]) -> usize {
        // The writer task deals with a full or broken pipe.
        rustix::io::write(&self.0, bytes).unwrap_or(0)
    }
}

/// The instance has the child's stdin for as long as this lives.
struct Inlet<'a>(&'a Instance);

impl<'a> Inlet<'a> {
    fn open(instance: &'a Instance, pipe: Option<OwnedFd>) -> Self {
        if let Some(pipe) = pipe {
            instance.lend_pipe(Arc::new(Stdin(pipe)));
        }
        Self(instance)
    }
}

impl Drop for Inlet<'_> {
    fn drop(&mut self) {
        self.0.close_inlet();
    }
}

/// Notifies the supervisor when the task that used a pipe has ended, for any reason.
struct Broken(Arc<Notify>);

impl Drop for Broken {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Writes what the instance has for the child, everything that has gathered at once.
async fn write(mut stdin: pipe::Sender, instance: Arc<Instance>, _broken: Broken) {
    let mut outbox = Outbox::default();
    loop {
        outbox.shrink(KEPT_BUFFER);
        outbox = instance.take_outbox(outbox);
        if outbox.is_empty() {
            instance.outgoing_ready.notified().await;
            continue;
        }
        instance
            .metrics()
            .server_bytes_sent
            .fetch_add(outbox.len() as u64, Relaxed);
        while !outbox.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES];
            let written = match outbox.chunks_vectored(&mut slices) {
                // Not `try_write`: after a short write this one waits at once instead of asking the
                // kernel again.
                1 => stdin.write(outbox.chunk()).await,
                count => stdin.write_vectored(&slices[..count]).await,
            };
            match written {
                Ok(0) => return,
                Ok(written) => outbox.advance(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The child has closed its stdin: it can read nothing any more.
                Err(_) => return,
            }
        }
    }
}
