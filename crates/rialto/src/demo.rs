//! `rialto demo-server`: a small MCP server over stdio with every feature once, in both eras. This
//! file holds only the pipes; [`machine`] decides the messages, and knows neither pipes nor clocks.
use std::future::pending;
use std::io;
use std::time::Duration;

use anyhow::Context as _;
use protocol::wire::line::{Frame, LineFramer};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use machine::Machine;

mod effect;
mod inquiry;
mod legacy;
mod lookup;
mod machine;
mod message;
mod modern;
mod prompts;
mod resources;
#[cfg(test)]
mod tests;
mod tools;

/// Tool calls in flight at once.
const MAX_CALLS: usize = 256;
/// A longer line is skipped.
const MAX_LINE_BYTES: usize = 8 * 1024 * 1024;
/// Messages waiting for a client that reads slowly; beyond it the server stops reading requests.
const MAX_QUEUED: usize = 64;
/// How long a client that has closed stdin may take to read the last answers.
const FAREWELL: Duration = Duration::from_secs(1);

/// Which revisions of the protocol the demo server speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DemoEra {
    /// Revisions with an `initialize` handshake: 2024-11-05 to 2025-11-25.
    Legacy,
    /// 2026-07-28.
    Modern,
    /// Whichever the client opens with.
    #[default]
    Both,
}

/// Serves stdin and stdout until either of them closes.
pub(crate) fn run(era: DemoEra) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let runtime = runtime.context("cannot start the demo server's runtime")?;
    let ended = runtime.block_on(serve(era, tokio::io::stdin(), tokio::io::stdout()));
    // A read of stdin may still be blocked in its thread, and must not hold up the exit.
    runtime.shutdown_background();
    match ended {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            tracing::info!("the client closed stdin; the demo server ends");
            Ok(())
        }
        ended => ended.context("the demo server lost its client"),
    }
}

async fn serve(
    era: DemoEra,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let (queue, messages) = mpsc::channel(MAX_QUEUED);
    let written = write(output, messages);
    tokio::pin!(written);
    tokio::select! {
        // Writing ends first only when it fails, since the queue is still open.
        ended = &mut written => return ended,
        ended = serve_stdio(Machine::new(era, random_token), Lines::new(input), queue) => ended?,
    }
    timeout(FAREWELL, written).await.unwrap_or(Ok(()))
}

/// Feeds the machine until the input ends, and closes the queue by leaving.
async fn serve_stdio(
    mut machine: Machine,
    mut lines: Lines<impl AsyncRead + Unpin>,
    queue: mpsc::Sender<Value>,
) -> io::Result<()> {
    let start = Instant::now();
    let mut open = true;
    loop {
        while let Some(message) = machine.poll_output() {
            if queue.send(message).await.is_err() {
                return Ok(());
            }
        }
        if !open {
            return Ok(());
        }
        let deadline = machine.next_deadline();
        let wake = async {
            match deadline {
                Some(deadline) => sleep_until(start + deadline).await,
                None => pending().await,
            }
        };
        tokio::select! {
            line = lines.next() => match line? {
                Some(Frame::Line(line)) => machine.handle_line(start.elapsed(), &line),
                Some(Frame::TooLong(_)) => machine.handle_overlong_line(MAX_LINE_BYTES),
                None => {
                    machine.handle_end();
                    open = false;
                }
            },
            () = wake => machine.handle_deadline(start.elapsed()),
        }
    }
}

/// Writes one line per message, each flushed, until the queue is closed and empty.
async fn write(mut output: impl AsyncWrite + Unpin, mut messages: mpsc::Receiver<Value>) -> io::Result<()> {
    while let Some(message) = messages.recv().await {
        let mut line = message.to_string();
        line.push('\n');
        output.write_all(line.as_bytes()).await?;
        output.flush().await?;
    }
    Ok(())
}

fn random_token() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// The lines of the input. What was read of a line stays in the framer, so a cancelled `next` loses
/// nothing.
#[derive(Debug)]
struct Lines<R> {
    input: R,
    framer: LineFramer,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(input: R) -> Lines<R> {
        Lines {
            input,
            framer: LineFramer::new(MAX_LINE_BYTES),
            ended: false,
        }
    }

    /// Returns the next line, or nothing at the end of the input.
    async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.framer.next() {
                return Ok(Some(frame));
            }
            if self.ended {
                return Ok(None);
            }
            if self.input.read_buf(self.framer.spare()).await? == 0 {
                // A last line needs no line feed of its own.
                self.framer.spare().extend_from_slice(b"\n");
                self.ended = true;
            }
        }
    }
}
