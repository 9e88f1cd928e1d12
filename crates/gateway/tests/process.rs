//! Real children: started, stopped, crashed and orphaned, with and without a warden.
//!
//! Every wait is for an event or polls with a deadline; nothing sleeps for a fixed time.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::task::Poll;
use std::time::Duration;

use gateway::backend::process::{
    ChildProcess, Environment, Exit, LaunchError, LaunchOrder, Launcher, Running, StderrTail, environment,
    stderr,
};
use gateway::settings::{Inherits, Secret};
use rustix::process::{Pid, Signal, kill_process};
use testkit::processes::Process;
use testkit::{PATIENCE, wait_until};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::Receiver;

/// Starts a grandchild that ignores SIGTERM and tells its process id; it holds stdout open.
const STUBBORN_GRANDCHILD: &str = "(trap '' TERM; exec sleep 1000) & echo $!;";

fn launcher() -> Launcher {
    Launcher::without_warden().leftover_grace(Duration::from_millis(200))
}

fn order(argv: &[&str]) -> LaunchOrder {
    let env = environment(
        [("PATH", "/usr/local/bin:/usr/bin:/bin")],
        Inherits::AllowList,
        &BTreeMap::new(),
    );
    LaunchOrder {
        argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
        env,
        cwd: None,
    }
}

fn shell(script: &str) -> LaunchOrder {
    order(&["/bin/sh", "-c", script])
}

async fn first_line(stdout: &mut Receiver) -> String {
    let mut line = String::new();
    let read = async {
        tokio::io::BufReader::with_capacity(1, stdout)
            .read_line(&mut line)
            .await
            .expect("stdout is readable")
    };
    tokio::time::timeout(PATIENCE, read)
        .await
        .expect("the child says something");
    line.trim_end().to_owned()
}

async fn process_id(stdout: &mut Receiver) -> u32 {
    first_line(stdout).await.parse().expect("a process id")
}

/// The state letter of a process, if there is one.
fn state(pid: u32) -> Option<char> {
    Process::read(pid).map(|process| process.state)
}

/// A dead grandchild may wait a little for the process that adopts orphans here; it does not run
/// any more.
fn runs(pid: u32) -> bool {
    Process::read(pid).is_some_and(|process| !process.is_zombie())
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_until(what, PATIENCE, || condition().then_some(())).await;
}

async fn stop(child: ChildProcess, grace: Duration) -> Exit {
    tokio::time::timeout(PATIENCE, child.stop(grace))
        .await
        .expect("a stop ends")
}

async fn exited(child: &mut ChildProcess) -> Exit {
    tokio::time::timeout(PATIENCE, child.exited())
        .await
        .expect("the child ends")
}

#[tokio::test]
async fn a_stubborn_child_and_grandchild_are_gone_after_stop() {
    let launcher = launcher();
    let script = "trap '' TERM; sleep 1000 & echo $!; while :; do wait; done";
    let Running {
        pid,
        stdin,
        mut stdout,
        child,
        ..
    } = launcher.launch(&shell(script)).unwrap();
    let grandchild = process_id(&mut stdout).await;
    assert!(runs(grandchild));
    drop(stdin);
    let exit = stop(child, Duration::from_millis(700)).await;
    assert_eq!(exit.to_string(), "signal 9 (SIGKILL)");
    assert!(!runs(grandchild));
    assert_eq!(state(pid), None, "the child was not waited for");
    assert_eq!(launcher.alive(), 0);
}

#[tokio::test]
async fn a_child_that_ends_with_its_stdin_is_not_signalled() {
    let Running { stdin, child, .. } = launcher()
        .launch(&shell("trap 'exit 9' TERM; read line; exit 4"))
        .unwrap();
    drop(stdin);
    assert_eq!(
        stop(child, PATIENCE).await,
        Exit {
            code: Some(4),
            signal: None
        }
    );
}

#[tokio::test]
async fn a_child_that_ignores_the_end_of_stdin_ends_on_sigterm() {
    let Running {
        stdin,
        mut stdout,
        child,
        ..
    } = launcher().launch(&shell("echo ready; exec sleep 1000")).unwrap();
    first_line(&mut stdout).await;
    drop(stdin);
    assert_eq!(stop(child, PATIENCE).await.to_string(), "signal 15 (SIGTERM)");
}

#[tokio::test]
async fn a_polite_child_does_not_leave_its_stubborn_grandchild() {
    let launcher = launcher();
    let script = format!("{STUBBORN_GRANDCHILD} read line; exit 0");
    let Running {
        stdin,
        mut stdout,
        child,
        ..
    } = launcher.launch(&shell(&script)).unwrap();
    let grandchild = process_id(&mut stdout).await;
    drop(stdin);
    let exit = stop(child, Duration::from_millis(300)).await;
    assert_eq!(
        exit,
        Exit {
            code: Some(0),
            signal: None
        }
    );
    assert!(!runs(grandchild));
    assert_eq!(launcher.alive(), 0);
}

#[tokio::test]
async fn a_frozen_child_can_be_stopped() {
    let Running {
        pid,
        stdin,
        mut stdout,
        child,
        ..
    } = launcher()
        .launch(&shell("echo ready; kill -STOP $$; exec sleep 1000"))
        .unwrap();
    first_line(&mut stdout).await;
    until("the child is frozen", || state(pid) == Some('T')).await;
    drop(stdin);
    assert_eq!(
        stop(child, Duration::from_secs(10)).await.to_string(),
        "signal 15 (SIGTERM)"
    );
}

#[tokio::test]
async fn the_exit_code_and_the_signal_are_reported() {
    let Running { pid, mut child, .. } = launcher().launch(&shell("exit 3")).unwrap();
    assert_eq!(exited(&mut child).await.to_string(), "exit status 3");
    assert_eq!(
        exited(&mut child).await.to_string(),
        "exit status 3",
        "it may be asked again"
    );
    assert_eq!(state(pid), None, "the child was not waited for");
    assert_eq!(stop(child, Duration::ZERO).await.code, Some(3));

    let Running { mut child, .. } = launcher().launch(&shell("kill -SEGV $$")).unwrap();
    assert_eq!(exited(&mut child).await.to_string(), "signal 11 (SIGSEGV)");
}

#[tokio::test]
async fn a_crash_leaves_no_grandchild_and_is_noticed_though_the_grandchild_holds_the_pipes() {
    let launcher = launcher();
    let script = format!("{STUBBORN_GRANDCHILD} kill -KILL $$");
    let Running {
        mut stdout,
        mut child,
        ..
    } = launcher.launch(&shell(&script)).unwrap();
    let grandchild = process_id(&mut stdout).await;
    assert_eq!(exited(&mut child).await.signal, Some(9));
    until("the grandchild is gone", || !runs(grandchild)).await;
    until("the group is released", || launcher.alive() == 0).await;
}

#[tokio::test]
async fn a_closed_stdout_is_not_an_exit() {
    let Running {
        stdin,
        mut stdout,
        mut child,
        ..
    } = launcher().launch(&shell("exec >&-; read line; exit 5")).unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, stdout.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    {
        let mut exit = pin!(child.exited());
        std::future::poll_fn(|context| {
            assert!(exit.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    }
    drop(stdin);
    assert_eq!(exited(&mut child).await.code, Some(5));
}

#[tokio::test]
async fn a_dropped_child_is_killed_with_its_group_and_waited_for() {
    let launcher = launcher();
    let script = format!("{STUBBORN_GRANDCHILD} trap '' TERM; while :; do wait; done");
    let Running {
        pid,
        mut stdout,
        child,
        ..
    } = launcher.launch(&shell(&script)).unwrap();
    let grandchild = process_id(&mut stdout).await;
    drop(child);
    until("the grandchild is gone", || !runs(grandchild)).await;
    until("the child was waited for", || state(pid).is_none()).await;
    until("the group is released", || launcher.alive() == 0).await;
}

#[tokio::test]
async fn giving_up_on_a_stop_kills_at_once() {
    let launcher = launcher();
    let script = format!("{STUBBORN_GRANDCHILD} trap '' TERM; while :; do wait; done");
    let Running {
        pid,
        mut stdout,
        child,
        ..
    } = launcher.launch(&shell(&script)).unwrap();
    let grandchild = process_id(&mut stdout).await;
    let impatient = tokio::time::timeout(Duration::from_millis(10), child.stop(Duration::from_secs(3600)));
    assert!(impatient.await.is_err());
    until("both are gone", || !runs(grandchild) && state(pid).is_none()).await;
}

#[tokio::test]
async fn kill_all_ends_every_child_at_once() {
    let launcher = launcher();
    let script = "trap '' TERM; echo ready; while :; do sleep 1000; done";
    let mut children = Vec::new();
    for _ in 0..3 {
        let Running {
            mut stdout,
            child,
            stdin,
            ..
        } = launcher.launch(&shell(script)).unwrap();
        first_line(&mut stdout).await;
        children.push((child, stdin));
    }
    assert_eq!(launcher.alive(), 3);
    launcher.kill_all();
    for (mut child, _stdin) in children {
        assert_eq!(exited(&mut child).await.signal, Some(9));
    }
    until("all groups are released", || launcher.alive() == 0).await;
}

#[test]
fn a_runtime_that_goes_away_takes_the_children_with_it() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let script = format!("{STUBBORN_GRANDCHILD} trap '' TERM; while :; do wait; done");
    let (grandchild, child) = runtime.block_on(async {
        let Running {
            mut stdout,
            mut child,
            stdin,
            ..
        } = launcher().launch(&shell(&script)).unwrap();
        let grandchild = process_id(&mut stdout).await;
        let pid = child.pid();
        tokio::runtime::Handle::current().spawn(async move {
            let _stdin = stdin;
            child.exited().await
        });
        (grandchild, pid)
    });
    drop(runtime);
    let rest = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    rest.block_on(until("nothing runs any more", || {
        !runs(grandchild) && !runs(child)
    }));
}

#[tokio::test]
async fn the_environment_is_the_allowed_and_the_configured_one_and_nothing_else() {
    let parent = [("PATH", "/usr/bin:/bin"), ("LANG", "C"), ("RIALTO_TOKEN", "hush")];
    let configured = BTreeMap::from([("API_KEY".to_owned(), Secret::new("k1"))]);
    let order = LaunchOrder {
        env: environment(parent, Inherits::AllowList, &configured),
        ..order(&["env"])
    };
    let Running {
        mut stdout,
        mut child,
        ..
    } = launcher().launch(&order).unwrap();
    let mut text = String::new();
    tokio::time::timeout(PATIENCE, stdout.read_to_string(&mut text))
        .await
        .unwrap()
        .unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["API_KEY=k1", "LANG=C", "PATH=/usr/bin:/bin"]);
    assert_eq!(exited(&mut child).await.code, Some(0));
}

#[tokio::test]
async fn a_child_has_three_open_files_even_beside_others() {
    let launcher = launcher();
    let sibling = launcher.launch(&order(&["cat"])).unwrap();
    let Running {
        pid,
        mut stdin,
        mut stdout,
        child,
        ..
    } = launcher.launch(&order(&["cat"])).unwrap();
    // An echo shows that the program has finished loading.
    stdin.write_all(b"hello\n").await.unwrap();
    assert_eq!(first_line(&mut stdout).await, "hello");
    let mut open: Vec<_> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    open.sort_unstable();
    assert_eq!(open, ["0", "1", "2"]);
    // The end of stdin arrives although the sibling is alive: no other process holds it.
    drop(stdin);
    assert_eq!(stop(child, PATIENCE).await.code, Some(0));
    drop(sibling);
}

#[tokio::test]
async fn a_child_runs_in_its_working_directory() {
    let home = tempfile::tempdir().unwrap();
    let order = LaunchOrder {
        cwd: Some(home.path().to_path_buf()),
        ..shell("pwd -P")
    };
    // The child is killed when its handle goes, so the handle is kept.
    let Running {
        mut stdout,
        child: _child,
        ..
    } = launcher().launch(&order).unwrap();
    assert_eq!(
        Path::new(&first_line(&mut stdout).await),
        home.path().canonicalize().unwrap()
    );
}

#[tokio::test]
async fn failed_start_reports_the_reason() {
    let launcher = launcher();
    let error = launcher.launch(&order(&["no-such-program"])).unwrap_err();
    assert!(matches!(error, LaunchError::Program(_)), "{error}");
    assert!(error.to_string().contains("no-such-program"), "{error}");

    let order_elsewhere = LaunchOrder {
        cwd: Some("/no/such/place".into()),
        ..shell("true")
    };
    let error = launcher.launch(&order_elsewhere).unwrap_err();
    assert!(matches!(error, LaunchError::WorkingDirectory { .. }), "{error}");

    let home = tempfile::tempdir().unwrap();
    let script = home.path().join("server");
    // Another process writes it: a file open for writing here could slip into a child of a parallel
    // test and be "busy" when it is run.
    let write = "echo '#!/no/such/interpreter' > server; chmod 755 server";
    let wrote = Command::new("/bin/sh")
        .args(["-c", write])
        .current_dir(home.path())
        .status()
        .unwrap();
    assert!(wrote.success());
    let error = launcher.launch(&order(&[script.to_str().unwrap()])).unwrap_err();
    assert!(matches!(error, LaunchError::Unrunnable { .. }), "{error}");

    let none = LaunchOrder {
        argv: Vec::new(),
        env: Environment::empty(),
        cwd: None,
    };
    assert!(launcher.launch(&none).is_err());
    assert_eq!(launcher.alive(), 0);
}

#[tokio::test]
async fn a_flood_on_stderr_does_not_freeze_the_child_and_its_end_is_kept() {
    let script = "head -c 8000000 /dev/zero | tr '\\0' x >&2; echo >&2; \
                  i=0; while [ $i -lt 500 ]; do echo line $i >&2; i=$((i+1)); done; echo last words >&2; exit 7";
    let Running {
        pid,
        stderr,
        mut child,
        ..
    } = launcher().launch(&shell(script)).unwrap();
    let tail = StderrTail::new();
    let (exit, ()) = tokio::time::timeout(PATIENCE, async {
        tokio::join!(
            child.exited(),
            stderr::drain(stderr, "flood", pid, tail.clone(), || {})
        )
    })
    .await
    .expect("the child is not frozen");
    assert_eq!(exit.code, Some(7));
    tail.ended_within(Duration::ZERO).await;
    assert_eq!(tail.last_lines(2), ["line 499", "last words"]);
    let kept: usize = tail.last_lines(usize::MAX).iter().map(String::len).sum();
    assert!(kept <= 64 * 1024);
}

// The warden. `gateway-test-process` plays the bridge, and its warden.

/// The bridge as a process; it does not outlive the test.
struct Bridge {
    process: std::process::Child,
    stdin: Option<std::process::ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    child: u32,
    grandchild: u32,
}

impl Bridge {
    fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_gateway-test-process"))
            .arg("bridge")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = process.stdin.take();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut bridge = Self {
            process,
            stdin,
            lines,
            child: 0,
            grandchild: 0,
        };
        let said = bridge.receive();
        let (child, grandchild) = said.split_once(' ').unwrap();
        bridge.child = child.parse().unwrap();
        bridge.grandchild = grandchild.parse().unwrap();
        bridge
    }

    fn receive(&mut self) -> String {
        self.lines.next().expect("the bridge writes a line").unwrap()
    }

    fn wait_until_guarded(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(self.receive(), "guarded");
    }

    /// The process id of the bridge's warden, once it is the program it should be.
    fn warden(&self) -> Option<u32> {
        let parent = self.process.id().to_string();
        fs::read_dir("/proc").unwrap().find_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let mut fields = stat.rsplit_once(") ")?.1.split(' ');
            let (state, its_parent) = (fields.next()?, fields.next()?);
            let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            (its_parent == parent && state != "Z" && command.split('\0').nth(1) == Some("warden"))
                .then_some(pid)
        })
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn no_child_outlives_a_killed_bridge() {
    let mut bridge = Bridge::start();
    bridge.wait_until_guarded();
    let warden = bridge.warden().expect("a warden runs");
    assert!(runs(bridge.child) && runs(bridge.grandchild));
    bridge.kill();
    until("child and grandchild are gone", || {
        !runs(bridge.child) && !runs(bridge.grandchild)
    })
    .await;
    until("the warden is gone", || !runs(warden)).await;
}

#[tokio::test]
async fn the_warden_holds_nothing_but_its_pipe() {
    let mut bridge = Bridge::start();
    bridge.wait_until_guarded();
    let warden = bridge.warden().expect("a warden runs");
    let mut held: Vec<_> = fs::read_dir(format!("/proc/{warden}/fd"))
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let target = fs::read_link(entry.path())
                .unwrap()
                .to_string_lossy()
                .into_owned();
            (entry.file_name().into_string().unwrap(), target)
        })
        .collect();
    held.sort();
    let held: Vec<_> = held
        .iter()
        .map(|(fd, target)| (fd.as_str(), target.split(':').next().unwrap()))
        .collect();
    assert_eq!(held, [("0", "pipe"), ("1", "/dev/null"), ("2", "/dev/null")]);
    assert_eq!(fs::read(format!("/proc/{warden}/environ")).unwrap(), b"");
}

#[tokio::test]
async fn a_killed_warden_is_replaced_and_knows_everything_again() {
    let mut bridge = Bridge::start();
    bridge.wait_until_guarded();
    let first = bridge.warden().expect("a warden runs");
    kill_process(Pid::from_raw(first.cast_signed()).unwrap(), Signal::KILL).unwrap();
    until("another warden runs", || {
        bridge.warden().is_some_and(|pid| pid != first)
    })
    .await;
    assert!(runs(bridge.child), "the death of a warden harms no child");
    bridge.wait_until_guarded();
    bridge.kill();
    until("child and grandchild are gone", || {
        !runs(bridge.child) && !runs(bridge.grandchild)
    })
    .await;
}

#[tokio::test]
async fn a_warden_ends_with_its_bridge_when_nothing_is_left_to_do() {
    let mut bridge = Bridge::start();
    bridge.wait_until_guarded();
    let warden = bridge.warden().expect("a warden runs");
    // The end of its stdin lets the bridge leave in good order.
    bridge.stdin = None;
    assert!(bridge.process.wait().unwrap().success());
    until("everything is gone", || {
        !runs(bridge.child) && !runs(bridge.grandchild) && !runs(warden)
    })
    .await;
}
