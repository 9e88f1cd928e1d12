//! A Rialto that was installed: started, called over HTTP and over stdio, and stopped.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::package::tools;

/// How long a start, an answer or an end may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How long to pause between two looks.
pub const PAUSE: Duration = Duration::from_millis(20);

/// A call of a tool of the demo server. It needs no handshake.
const CALL: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":2,"b":40}}}"#;
/// What its answer has in it.
pub const ANSWER: &str = r#"{"sum":42}"#;

/// What is added to a command to serve the demo on a free port.
pub const SERVE_DEMO: [&str; 4] = ["serve", "--demo", "--listen", "127.0.0.1:0"];

/// A running `rialto serve`. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    log: PathBuf,
    /// `127.0.0.1:4711`.
    pub address: String,
}

/// Returns a command without the environment of this machine.
pub fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .env("LANG", "C.UTF-8");
    command
}

impl Server {
    /// Starts a command that serves, and waits until it names its address.
    pub fn start(command: &mut Command, log: PathBuf) -> anyhow::Result<Self> {
        let line = tools::line(command);
        let output = File::create(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("`{line}` does not run"))?;
        let mut server = Self {
            child,
            log,
            address: String::new(),
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = std::fs::read_to_string(&server.log)?;
            if let Some(address) = address(&text) {
                server.address = address;
                return Ok(server);
            }
            if let Some(status) = server.child.try_wait()? {
                bail!("`{line}` ended with {status}:\n{text}");
            }
            ensure!(Instant::now() < deadline, "`{line}` names no address:\n{text}");
            thread::sleep(PAUSE);
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn url(&self) -> String {
        format!("http://{}/demo/mcp", self.address)
    }

    /// Calls a tool over HTTP.
    pub fn answers(&self) -> anyhow::Result<()> {
        let mut stream = TcpStream::connect(&self.address).context("the address takes no connection")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "POST /demo/mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{CALL}",
            self.address,
            CALL.len()
        )?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        ensure!(
            response.starts_with("HTTP/1.1 200") && response.contains(ANSWER),
            "the call was answered by: {response}"
        );
        Ok(())
    }

    /// Returns the program that the process runs now.
    pub fn program(&self) -> anyhow::Result<PathBuf> {
        program_of(self.pid())
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(mut self) -> anyhow::Result<ExitStatus> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).context("the server cannot be stopped")?;
        wait(&mut self.child).with_context(|| std::fs::read_to_string(&self.log).unwrap_or_default())
    }

    /// Waits for an end that was caused elsewhere.
    pub fn wait(mut self) -> anyhow::Result<ExitStatus> {
        wait(&mut self.child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended, which is as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn program_of(pid: u32) -> anyhow::Result<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).context("the process has ended")
}

/// Returns the children of a process, whichever of its threads started them.
pub fn children(pid: u32) -> anyhow::Result<Vec<u32>> {
    let mut children = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("children"))?;
        children.extend(text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Ok(children)
}

/// Returns the number of the user that a process runs as.
pub fn user_of(pid: u32) -> anyhow::Result<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    user_in(&status).context("the process has no user")
}

/// Returns the number of the user that a `/proc/PID/status` names.
pub fn user_in(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Starts a command that speaks MCP over stdio, calls a tool and closes its input.
pub fn answers_over_stdio(command: &mut Command) -> anyhow::Result<()> {
    let line = tools::line(command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("`{line}` does not run"))?;
    let mut input = child.stdin.take().context("stdin is a pipe")?;
    let output = child.stdout.take().context("stdout is a pipe")?;
    writeln!(input, "{CALL}")?;
    let answer = thread::spawn(move || {
        let mut answer = String::new();
        BufReader::new(output).read_line(&mut answer).map(|_| answer)
    });
    let deadline = Instant::now() + PATIENCE;
    while !answer.is_finished() && Instant::now() < deadline {
        thread::sleep(PAUSE);
    }
    drop(input);
    let status = wait(&mut child)?;
    let answer = answer.join().ok().context("the reader of stdout ended")??;
    if !answer.contains(ANSWER) || !status.success() {
        let mut errors = String::new();
        child
            .stderr
            .take()
            .context("stderr is a pipe")?
            .read_to_string(&mut errors)?;
        bail!("`{line}` answered {answer:?} and ended with {status}:\n{errors}");
    }
    Ok(())
}

/// Waits for the end of a process.
pub fn wait(child: &mut Child) -> anyhow::Result<ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            bail!("the process did not end within {} s", PATIENCE.as_secs());
        }
        thread::sleep(PAUSE);
    }
}

/// Returns the address that a log names.
fn address(log: &str) -> Option<String> {
    const START: &str = "http://127.0.0.1:";
    let (_, rest) = log.split_once(START)?;
    let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
    // The line may not be there in full.
    (rest.len() > port.len() && !port.is_empty()).then(|| format!("127.0.0.1:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_read_when_its_line_is_complete() {
        assert_eq!(address("listening"), None);
        assert_eq!(address("at http://127.0.0.1:47"), None);
        let log = "x\nat http://127.0.0.1:4711/demo/mcp";
        assert_eq!(address(log).as_deref(), Some("127.0.0.1:4711"));
    }
}
