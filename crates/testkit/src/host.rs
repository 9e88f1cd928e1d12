//! A host that starts a stdio server and talks to it in lines: what a desktop program does with
//! `rialto connect`.
//!
//! Every line that comes is kept, so that a test can ask for what it wants in any order. A line
//! that is no JSON fails the test that reads it: stdout belongs to the protocol.

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::failure::Result;
use crate::patience::{look_until, wait_until};
use crate::processes::{self, Memory};
use crate::revision::MODERN;
use crate::rialto::binary;

const PATIENCE: Duration = Duration::from_secs(30);

/// A program and the two ends of its pipes.
#[derive(Debug)]
pub struct Host {
    process: Mutex<Child>,
    pid: u32,
    stdin: Mutex<Option<ChildStdin>>,
    received: Arc<Mutex<ReceivedLines>>,
    errors: Arc<Mutex<Vec<String>>>,
}

#[derive(Debug, Default)]
struct ReceivedLines {
    lines: Vec<String>,
    /// Lines that a test has taken already.
    taken: Vec<bool>,
    ended: bool,
}

impl Host {
    /// `rialto args…` with only these variables beside the usual ones.
    pub fn start(args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        Self::start_in(&std::env::current_dir()?, args, env)
    }

    /// The same in this directory, as a host starts a server in its project.
    pub fn start_in(directory: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        let mut command = Command::new(binary("rialto"));
        command
            .args(args)
            .current_dir(directory)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let received = Arc::<Mutex<ReceivedLines>>::default();
        let errors = Arc::<Mutex<Vec<String>>>::default();
        if let Some(stdout) = process.stdout.take() {
            let received = Arc::clone(&received);
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
                    let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
                    received.lines.push(line);
                    received.taken.push(false);
                }
                received.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
            });
        }
        if let Some(stderr) = process.stderr.take() {
            let errors = Arc::clone(&errors);
            std::thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(std::io::Result::ok) {
                    errors.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                }
            });
        }
        Ok(Self {
            pid: process.id(),
            stdin: Mutex::new(process.stdin.take()),
            process: Mutex::new(process),
            received,
            errors,
        })
    }

    /// Writes one line. A program that does not read makes this wait.
    pub fn send(&self, message: &Value) -> Result<()> {
        self.say_line(&message.to_string())
    }

    pub fn say_line(&self, line: &str) -> Result<()> {
        let mut stdin = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stdin) = stdin.as_mut() {
            stdin.write_all(format!("{line}\n").as_bytes())?;
            stdin.flush()?;
        }
        Ok(())
    }

    /// A legacy request, or anything else that is written as it is.
    pub fn ask(&self, id: impl Into<Value>, method: &str, params: Value) -> Result<()> {
        let id: Value = id.into();
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    }

    /// A modern request of a client that can do this.
    pub fn ask_modern(
        &self,
        id: impl Into<Value>,
        method: &str,
        mut params: Value,
        can: &Value,
    ) -> Result<()> {
        let meta = &mut params["_meta"];
        if meta.is_null() {
            *meta = json!({});
        }
        meta["io.modelcontextprotocol/protocolVersion"] = MODERN.into();
        meta["io.modelcontextprotocol/clientCapabilities"] = can.clone();
        self.ask(id, method, params)
    }

    pub fn notify(&self, method: &str, params: Value) -> Result<()> {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
    }

    /// The legacy handshake; gives the server's result.
    pub async fn shake_hands(&self, capabilities: Value) -> Result<Value> {
        self.ask(
            "handshake",
            "initialize",
            json!({"protocolVersion": "2025-11-25", "capabilities": capabilities,
                "clientInfo": {"name": "testkit", "version": "1"}}),
        )?;
        let answer = self.answer("handshake").await;
        self.notify("notifications/initialized", json!({}))?;
        Ok(answer["result"].clone())
    }

    /// The first line not taken yet that is wanted; those before it stay for others.
    pub async fn receive(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_until(what, PATIENCE, || {
            let mut received = self.received();
            let found = received
                .lines
                .iter()
                .zip(&received.taken)
                .position(|(line, taken)| {
                    !taken && wanted(&serde_json::from_str(line).expect("stdout carries only JSON"))
                })?;
            received.taken[found] = true;
            serde_json::from_str(&received.lines[found]).ok()
        })
        .await
    }

    /// The response with this id.
    pub async fn answer(&self, id: impl Into<Value>) -> Value {
        let id: Value = id.into();
        self.receive(&format!("the answer to {id}"), |line| {
            line["id"] == id && line.get("method").is_none()
        })
        .await
    }

    /// The next request or notification of this method.
    pub async fn receive_method(&self, method: &str) -> Value {
        self.receive(method, |line| line["method"] == method).await
    }

    /// Everything it wrote so far.
    pub fn lines(&self) -> Vec<Value> {
        let received = self.received();
        let parsed = received
            .lines
            .iter()
            .map(|line| serde_json::from_str(line).expect("stdout carries only JSON"));
        parsed.collect()
    }

    pub fn stderr(&self) -> Vec<String> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The end of the program's stdin.
    pub fn close_stdin(&self) {
        self.stdin.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub fn signal(&self, signal: Signal) {
        processes::send_signal(self.pid, signal);
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// # Panics
    /// When the program has exited.
    pub fn memory(&self) -> Memory {
        Memory::of(self.pid).expect("it runs, so that its memory can be read")
    }

    /// `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .try_wait()
            .ok()
            .flatten()
    }

    /// Waits for the program's end and for all it wrote.
    pub async fn wait(&self, deadline: Duration) -> ExitStatus {
        let status = wait_until("it has exited", deadline, || self.exit_status()).await;
        wait_until("its output has ended", deadline, || {
            self.received().ended.then_some(())
        })
        .await;
        status
    }

    fn received(&self) -> MutexGuard<'_, ReceivedLines> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.close_stdin();
        let ended = look_until(Duration::from_secs(5), || self.exit_status());
        if ended.is_none() {
            let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = process.kill();
            let _ = process.wait();
            assert!(
                std::thread::panicking(),
                "the end of its stdin did not end the program"
            );
        }
    }
}
