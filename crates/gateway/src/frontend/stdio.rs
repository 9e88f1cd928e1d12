//! The stdio frontend: one client on a stream of lines, in front of one destination.
//!
//! What a line means is decided by [`protocol::client_face::stdio`]; here lines are read and
//! written, and what the machine wants is carried out ([`client`]). While too much waits nothing is
//! read, so that the client's own pipe fills: that is back-pressure on stdin. The
//! frontend ends when the client closes stdin, when stdout cannot be written, or at shutdown. Then
//! open calls are cancelled. All of that takes at most 1.5 s.

mod busy_poll;
mod client;
mod modern_requests;

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use protocol::client_face::stdio::{Counters, Limits};
use protocol::wire::line::LineFramer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::gateway::Gateway;
use crate::tasks;
use client::StdioClient;

/// How long answers are waited for after the end of stdin: a user that pipes a few lines in wants
/// to see their answers.
const LAST_ANSWERS: Duration = Duration::from_millis(750);
/// How long the last lines may take to be written.
const LAST_LINES: Duration = Duration::from_millis(200);
/// How long the cancellations to servers may take at the end.
const LEAVING: Duration = Duration::from_millis(500);
/// How long the answer to `server/discover` may take. The shortest timeout among clients is ten
/// seconds.
const PROBE: Duration = Duration::from_secs(8);
/// How much is kept for the next write; a larger buffer is given back.
const KEPT_BUFFER: usize = 256 << 10;

/// How much may wait in either direction.
#[derive(Debug, Clone)]
pub struct LineLimits {
    /// Messages of the client that have no answer yet.
    pub messages: usize,
    /// Their bytes, and the same again for what the client has not read.
    pub bytes: usize,
}

/// Why a client on stdio was disconnected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisconnectReason {
    /// The client has closed its end.
    InputEnded,
    /// The client does not read any more.
    OutputBroken,
    /// The gateway shuts down.
    Shutdown,
}

impl Gateway {
    /// Serves one client that writes lines to `input` and reads lines from `output`, in front of
    /// the first destination, until it goes or `shutdown` comes.
    pub async fn serve_stdio<R, W>(
        self: Arc<Self>,
        input: R,
        output: W,
        limits: &LineLimits,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> DisconnectReason
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let config = self.config();
        let root = config
            .root
            .as_ref()
            .or_else(|| config.destinations.values().next());
        let Some(destination) = root.cloned() else {
            return DisconnectReason::Shutdown;
        };
        destination.upstream.start();
        let maintenance = tasks::spawn("maintenance", {
            let gateway = Arc::clone(&self);
            async move { gateway.run_maintenance().await }
        });
        let line = destination.max_message_bytes();
        let limits = Limits {
            messages: limits.messages,
            bytes: limits.bytes,
            line,
            probe: PROBE,
        };
        let client = StdioClient::new(Arc::clone(&destination), self.clock, limits);
        // A task of its own: the runtime looks for news from outside each time before it goes on
        // with what is not one, which would be a system call more for each answer.
        let mut serving = tasks::Owned(tasks::spawn("client", {
            let client = Arc::clone(&client);
            async move { serve_lines(&client, input, output, line, shutdown).await }
        }));
        let _busy_poll = tasks::Owned(tasks::spawn("busy poll", {
            let client = Arc::clone(&client);
            async move { client.run_busy_poll().await }
        }));
        // The reason for an early end is in the log.
        let reason = (&mut serving.0).await.unwrap_or(DisconnectReason::Shutdown);
        let _ = tokio::time::timeout(LEAVING, self.stop_all()).await;
        maintenance.abort();
        report(client.counters());
        reason
    }
}

/// Logs how many messages of the client were dropped, malformed or delayed.
fn report(counters: Counters) {
    if counters != Counters::default() {
        let Counters {
            dropped,
            malformed,
            stalls,
        } = counters;
        tracing::info!(
            dropped,
            malformed,
            stalls,
            "some client messages were dropped, malformed or delayed"
        );
    }
}

async fn serve_lines(
    client: &Arc<StdioClient>,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
    max_line: usize,
    shutdown: impl Future<Output = ()>,
) -> DisconnectReason {
    let writing = write_lines(client, output);
    let watching = client.watch_time();
    tokio::pin!(writing, watching, shutdown);
    let mut reason = tokio::select! {
        () = read_lines(client, input, max_line) => DisconnectReason::InputEnded,
        () = &mut writing => DisconnectReason::OutputBroken,
        () = &mut shutdown => DisconnectReason::Shutdown,
        () = &mut watching => DisconnectReason::Shutdown,
    };
    if reason == DisconnectReason::InputEnded {
        tokio::select! {
            () = client.all_answered() => {}
            () = tokio::time::sleep(LAST_ANSWERS) => {}
            () = &mut writing => reason = DisconnectReason::OutputBroken,
            () = &mut shutdown => {}
        }
    }
    client.end();
    if reason != DisconnectReason::OutputBroken {
        let _ = tokio::time::timeout(LAST_LINES, writing).await;
    }
    reason
}

/// Reads until the client's end is closed.
async fn read_lines(client: &Arc<StdioClient>, mut input: impl AsyncRead + Unpin, max_line: usize) {
    let mut framer = LineFramer::new(max_line);
    loop {
        client.capacity().await;
        match input.read_buf(framer.spare()).await {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "stdin cannot be read");
                break;
            }
        }
        while let Some(frame) = framer.next() {
            client.capacity().await;
            client.take(frame);
        }
    }
    // The last line need not have an end.
    framer.spare().extend_from_slice(b"\n");
    while let Some(frame) = framer.next() {
        client.take(frame);
    }
}

/// Writes all outgoing lines at once, until the client has ended and nothing is left. Returns early
/// if the client does not read any more.
async fn write_lines(client: &StdioClient, mut output: impl AsyncWrite + Unpin) {
    let mut lines = BytesMut::new();
    loop {
        lines.clear();
        if lines.capacity() > KEPT_BUFFER {
            lines = BytesMut::new();
        }
        lines = match client.take_outgoing(lines).await {
            Some(lines) => lines,
            None => return,
        };
        let written = match output.write_all(&lines).await {
            Ok(()) => output.flush().await,
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            tracing::debug!(%error, "stdout cannot be written");
            return;
        }
    }
}
