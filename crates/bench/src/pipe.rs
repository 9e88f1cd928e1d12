//! The load over a pipe: straight to the stdio server, with no bridge in between, which is the
//! other limit; and to programs that have a remote server behind them.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, bail};
use memchr::{memchr, memmem};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::handler::Era;
use crate::load::{Outcome, Until};
use crate::meter;
use crate::request::{self, Call};

/// A server on its pipes.
#[derive(Debug)]
pub struct Pipe {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    pub pid: u32,
}

impl Pipe {
    /// Starts the server and shakes hands.
    pub async fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("it does not start")?;
        let stdin = child.stdin.take().context("stdin is piped")?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let pid = child.id().context("it has just started")?;
        let mut pipe = Self {
            child,
            stdin,
            stdout,
            pid,
        };
        let opening = format!("{}\n", request::initialize());
        pipe.stdin.write_all(opening.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\n") {
            if pipe.stdout.read_buf(&mut answer).await? == 0 {
                bail!("the server closed its pipe");
            }
        }
        if memmem::find(&answer, b"protocolVersion").is_none() {
            bail!("no welcome: {}", String::from_utf8_lossy(&answer));
        }
        let confirmation = format!("{}\n", request::INITIALIZED);
        pipe.stdin.write_all(confirmation.as_bytes()).await?;
        Ok(pipe)
    }

    pub async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.stdin);
        self.child.wait().await.context("it cannot be waited for")?;
        Ok(())
    }

    /// Keeps so many calls in flight until it is over.
    pub async fn closed_loop(
        &mut self,
        in_flight: usize,
        call: Call,
        until: Until,
    ) -> anyhow::Result<Outcome> {
        let cpu = meter::cpu(self.pid)?;
        let started = Instant::now();
        let mut load = Load {
            call,
            until,
            started,
            begun: 0,
            sent: vec![started; in_flight],
            rounds: vec![0; in_flight],
            open: 0,
            latencies: Vec::new(),
            finished: started,
            out: Vec::new(),
        };
        for slot in 0..in_flight {
            load.send(slot, started);
        }
        let mut input = vec![0; 256 << 10];
        let (mut filled, mut searched, mut written) = (0, 0, 0);
        // Reading goes on while writing waits: the server does the same, and neither may wait for
        // the other.
        while load.open > 0 {
            if filled == input.len() {
                input.resize(filled * 2, 0);
            }
            tokio::select! {
                biased;
                count = self.stdin.write(&load.out[written..]), if written < load.out.len() => {
                    written += count.context("cannot write to the pipe")?;
                    if written == load.out.len() {
                        load.out.clear();
                        written = 0;
                    }
                }
                count = self.stdout.read(&mut input[filled..]) => {
                    match count.context("cannot read from the pipe")? {
                        0 => bail!("the server closed its pipe"),
                        count => filled += count,
                    }
                    let mut start = 0;
                    let now = Instant::now();
                    // The progress messages of a call come before its answer and are checked with
                    // it.
                    while let Some(found) = memchr(b'\n', &input[searched..filled]) {
                        let end = searched + found;
                        searched = end + 1;
                        if load.take(&input[start..end], now)? {
                            start = searched;
                        }
                    }
                    input.copy_within(start..filled, 0);
                    filled -= start;
                    searched = filled;
                }
            }
        }
        let cpu = meter::cpu(self.pid)? - cpu;
        Ok(Outcome::new(
            load.latencies.len() as u64,
            load.finished - started,
            cpu,
            load.latencies,
        ))
    }
}

struct Load {
    call: Call,
    until: Until,
    started: Instant,
    /// How many calls were sent.
    begun: u64,
    /// Per slot: when its call was sent, and how many it has had.
    sent: Vec<Instant>,
    rounds: Vec<u64>,
    open: usize,
    latencies: Vec<u32>,
    finished: Instant,
    out: Vec<u8>,
}

impl Load {
    fn send(&mut self, slot: usize, now: Instant) {
        self.sent[slot] = now;
        self.rounds[slot] += 1;
        self.begun += 1;
        let id = self.rounds[slot] * self.sent.len() as u64 + slot as u64;
        request::write_call(&mut self.out, Era::Legacy, self.call, id);
        self.out.push(b'\n');
        self.open += 1;
    }

    /// Takes a line, together with the notifications before it. `false`: it was no answer yet.
    fn take(&mut self, text: &[u8], now: Instant) -> anyhow::Result<bool> {
        let last = text.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        if memmem::find(last, b"\"method\":").is_some() {
            return Ok(false);
        }
        let Some(id) = memmem::find(last, b"\"id\":").and_then(|at| last.get(at + 5..)) else {
            return Ok(false);
        };
        let digits = id.iter().take_while(|byte| byte.is_ascii_digit());
        let id = digits.fold(0_u64, |id, digit| id * 10 + u64::from(digit - b'0'));
        let slot = (id % self.sent.len() as u64) as usize;
        if id / self.sent.len() as u64 != self.rounds[slot] {
            bail!("an answer that no call waits for: {id}");
        }
        request::check_answer(text, self.call, id)?;
        self.open -= 1;
        self.latencies
            .push(u32::try_from((now - self.sent[slot]).as_nanos()).unwrap_or(u32::MAX));
        self.finished = now;
        let go_on = match self.until {
            Until::Passed(time) => now - self.started < time,
            Until::Calls(calls) => self.begun < calls,
        };
        if go_on {
            self.send(slot, now);
        }
        Ok(true)
    }
}
