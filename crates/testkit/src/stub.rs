//! `testkit-server`: a stdio MCP server of the legacy era that behaves, and misbehaves on request.
//!
//! Flags choose how it starts and ends ([`options`]); tools choose what it does in a call
//! ([`tools`]). One thread reads, one thread writes what is due later; nothing else runs, so that
//! it starts in a millisecond. Ids and progress tokens are never parsed, only quoted. It refuses to
//! be clever: it writes all it receives to its journal first, and a test judges from there.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::IntoRawFd as _;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Resource, Rlimit};
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::journal::Journal;
use crate::patience::look_until;
use options::{Launch, Options, Role};
use server::{Reading, Server};

mod later;
mod options;
mod output;
mod server;
mod tools;
mod wire;

/// The longest line the stub reads; far above every limit that a test sets.
const LONGEST_LINE: u64 = 256 << 20;
/// A stubborn process ends by itself after this long, so that a broken test leaves nothing for
/// ever.
const LONGEST_LIFE: Duration = Duration::from_secs(600);

/// The whole program.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let done = match options::parse(args) {
        Ok(Role::Serve(options)) => serve(options),
        Ok(Role::Stubborn(pid_file)) => be_stubborn(&pid_file).map(|()| ExitCode::SUCCESS),
        Ok(Role::Daemonise(pid_file)) => daemonise(&pid_file).map(|()| ExitCode::SUCCESS),
        Ok(Role::Launch(launch)) => launch_in_new_session(&launch).map(|never| match never {}),
        Ok(Role::LimitProcesses(pid, most)) => {
            crate::processes::limit(pid, Resource::Nproc, most).map(|()| ExitCode::SUCCESS)
        }
        Err(failure) => Err(failure),
    };
    done.unwrap_or_else(|failure| {
        let _ = writeln!(std::io::stderr().lock(), "testkit-server: {failure}");
        ExitCode::from(2)
    })
}

fn serve(mut options: Options) -> Result<ExitCode> {
    let journal = options.journal.clone().map_or_else(Journal::none, Journal::at);
    let earlier_starts = journal.starts().len();
    if options.healthy_after.is_some_and(|limit| earlier_starts >= limit) {
        options.forget_start_faults();
    }
    journal.write("start", json!({"start": earlier_starts + 1}));
    if options.ignore_term {
        let told = journal.clone();
        ignore_sigterm(move || told.write("term", json!({})))?;
        end_at_last();
    }
    if let Some(pid_file) = &options.grandchild {
        start_grandchild(pid_file)?;
    }
    if let Some(pid_file) = &options.daemon {
        Command::new(std::env::current_exe()?)
            .arg("--daemonise")
            .arg(pid_file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
    }
    if let Some(code) = options.exit_at_once {
        return Ok(ExitCode::from(code));
    }
    if let Some(after) = options.crash_after_start {
        std::thread::spawn(move || {
            std::thread::sleep(after);
            std::process::exit(101);
        });
    }
    if let Some(delay) = options.slow_start {
        std::thread::sleep(delay);
    }
    if let Some(file) = &options.wait_for {
        look_until(LONGEST_LIFE, || file.exists().then_some(()));
    }
    let stay_at_eof = options.ignore_term || options.ignore_eof;
    read_lines(&mut Server::new(options, journal.clone()), &journal, stay_at_eof)
}

/// The reading loop. It alone touches fd 0, for a `dup2` under a blocked read would not close the
/// pipe.
fn read_lines(server: &mut Server, journal: &Journal, stay_at_eof: bool) -> Result<ExitCode> {
    let mut input = BufReader::with_capacity(64 << 10, std::io::stdin().lock());
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
            journal.write("eof", json!({}));
            if stay_at_eof {
                park();
            }
            return Ok(ExitCode::SUCCESS);
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        match server.handle_line(&line) {
            Reading::GoesOn => {}
            Reading::Stops => park(),
        }
    }
}

/// Lives on without doing anything, but not for ever.
fn park() -> ! {
    end_at_last();
    loop {
        std::thread::park();
    }
}

fn end_at_last() {
    std::thread::spawn(|| {
        std::thread::sleep(LONGEST_LIFE);
        std::process::exit(102);
    });
}

/// Takes SIGTERM and does nothing about it but calling `tell`.
fn ignore_sigterm(tell: impl Fn() + Send + 'static) -> Result<()> {
    // Tokio's is the one way to install a signal handler here without `unsafe`; it stays for good.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let mut terms = {
        let _context = runtime.enter();
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            while terms.recv().await.is_some() {
                tell();
            }
        });
    });
    Ok(())
}

/// A grandchild in the same process group that holds stdout and stderr open and ignores SIGTERM.
fn start_grandchild(pid_file: &Path) -> Result<()> {
    let _ = std::fs::remove_file(pid_file);
    let grandchild = Command::new(std::env::current_exe()?)
        .arg("--stubborn")
        .arg(pid_file)
        .stdin(Stdio::null())
        .spawn()?;
    // Dropping the handle neither waits nor kills: it is left to its fate on purpose.
    drop(grandchild);
    look_until(Duration::from_secs(10), || pid_file.exists().then_some(()))
        .ok_or_else(|| Failure::new("the grandchild did not start"))
}

/// The double fork of a daemon: its starter has a session of its own, and ends.
fn daemonise(pid_file: &Path) -> Result<()> {
    rustix::process::setsid().map_err(std::io::Error::from)?;
    start_grandchild(pid_file)
}

fn be_stubborn(pid_file: &Path) -> Result<()> {
    ignore_sigterm(|| {})?;
    // Written aside and renamed: a reader of the file sees the whole pid, and a process that
    // ignores SIGTERM.
    let aside = pid_file.with_extension("new");
    std::fs::write(&aside, std::process::id().to_string())?;
    std::fs::rename(&aside, pid_file)?;
    std::thread::sleep(LONGEST_LIFE);
    Ok(())
}

/// Passes stdin on as descriptor 3, as systemd passes a socket (sd_listen_fds(3)).
fn pass_socket(program: &mut Command) -> Result<()> {
    const FIRST: i32 = 3;
    // It is the lowest free one, and stays open in the program.
    let socket = rustix::io::dup(std::io::stdin()).map_err(std::io::Error::from)?;
    if socket.into_raw_fd() != FIRST {
        return Err(Failure::new("descriptor 3 is in use"));
    }
    program
        .stdin(Stdio::null())
        .env("LISTEN_PID", std::process::id().to_string());
    if std::env::var_os("LISTEN_FDS").is_none() {
        program.env("LISTEN_FDS", "1");
    }
    Ok(())
}

/// Becomes another program in a session of its own, whose number then marks all of its descendants.
fn launch_in_new_session(launch: &Launch) -> Result<Infallible> {
    rustix::process::setsid().map_err(std::io::Error::from)?;
    // Elsewhere a program that is left by a test that was killed ends by itself, or not at all.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(std::io::Error::from)?;
    if let Some(files) = launch.max_files {
        let limit = Rlimit {
            current: Some(files),
            maximum: Some(files),
        };
        rustix::process::setrlimit(Resource::Nofile, limit).map_err(std::io::Error::from)?;
    }
    let mut program = Command::new(&launch.program);
    if let Some(user) = launch.user {
        program.uid(user).gid(user);
    }
    if launch.passes_socket {
        pass_socket(&mut program)?;
    }
    let error = program.args(&launch.args).exec();
    Err(Failure::from(error).during(&format!("cannot run {}", launch.program.to_string_lossy())))
}
