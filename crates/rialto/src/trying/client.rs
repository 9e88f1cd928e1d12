//! One MCP client within this process, on a gateway with one destination: the same gateway that
//! `rialto connect` runs, with a pipe in memory in the place of stdin and stdout.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use gateway::{DisconnectReason, Gateway, tasks};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::question;
use super::target::Found;
use crate::config::Environment;
use crate::exit;
use crate::serve::launcher;
use crate::terminal::text::Style;

/// The revision that this client speaks. The gateway translates it for servers of the other era.
const VERSION: &str = "2025-11-25";
/// What fits the pipe before a side waits.
const PIPE_BYTES: usize = 64 << 10;
/// How long the server may take to end.
const LEAVING: Duration = Duration::from_secs(2);

/// Why a try came to nothing.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) code: u8,
    pub(crate) text: String,
}

impl Problem {
    /// Something is wrong with the command line.
    pub(super) fn usage(text: impl Into<String>) -> Self {
        Self {
            code: exit::CONFIGURATION,
            text: text.into(),
        }
    }

    fn failed(text: impl Into<String>) -> Self {
        Self {
            code: exit::FAILED,
            text: text.into(),
        }
    }
}

/// The client.
#[derive(Debug)]
pub(super) struct Client {
    lines: BufReader<ReadHalf<DuplexStream>>,
    output: WriteHalf<DuplexStream>,
    timeout: Duration,
    last_id: u64,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<DisconnectReason>,
}

impl Client {
    /// Opens a session. Returns what the server declares as well.
    pub(super) async fn open(
        found: &Found,
        environment: &Environment,
        capabilities: Value,
    ) -> Result<(Self, Value), Problem> {
        let settings = &found.connection.settings;
        let gateway = Gateway::new(settings, settings.listen, launcher(), environment.all());
        let gateway = gateway.map_err(|error| Problem {
            code: exit::NOTHING_STARTS,
            text: format!("{:#}", anyhow::Error::from(error)),
        })?;
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let (input, output) = tokio::io::split(theirs);
        let (stop, stopped) = oneshot::channel();
        let limits = found.connection.limits.clone();
        let serving = tasks::spawn("server", async move {
            let stopped = async {
                // Either way the client has gone.
                let _ = stopped.await;
            };
            Arc::clone(&gateway)
                .serve_stdio(input, output, &limits, stopped)
                .await
        });
        let (lines, output) = tokio::io::split(ours);
        let mut client = Self {
            lines: BufReader::new(lines),
            output,
            timeout: found.timeout,
            last_id: 0,
            stop,
            serving,
        };
        let params = json!({
            "protocolVersion": VERSION,
            "capabilities": capabilities,
            "clientInfo": { "name": "rialto", "version": env!("CARGO_PKG_VERSION") },
        });
        let server = client.request("initialize", params).await?;
        client
            .send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))
            .await?;
        Ok((client, server))
    }

    /// Sends a request, and answers what the server asks meanwhile. Returns the result.
    pub(super) async fn request(&mut self, method: &str, params: Value) -> Result<Value, Problem> {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .await?;
        loop {
            let mut message = self.receive().await?;
            match (message["method"].as_str(), message.get("id")) {
                (Some(asked), Some(their_id)) => {
                    let answer = match question::answer(asked, &message["params"]).await {
                        Ok(result) => json!({ "jsonrpc": "2.0", "id": their_id, "result": result }),
                        Err(error) => json!({ "jsonrpc": "2.0", "id": their_id, "error": error }),
                    };
                    self.send(&answer).await?;
                }
                (Some(noted), None) => note(noted, &message["params"]),
                (None, Some(of)) if *of == id => {
                    return match message.get_mut("error") {
                        Some(error) => Err(Problem::failed(described(error))),
                        None => Ok(message["result"].take()),
                    };
                }
                (None, _) => {}
            }
        }
    }

    /// Ends the session, and the server if it runs in this process.
    pub(super) async fn close(self) {
        let Self {
            output,
            lines,
            stop,
            serving,
            ..
        } = self;
        // The gateway sees the end of its input.
        drop(lines.into_inner().unsplit(output));
        if tokio::time::timeout(LEAVING, serving).await.is_err() {
            drop(stop);
        }
    }

    async fn send(&mut self, message: &Value) -> Result<(), Problem> {
        let line = format!("{message}\n");
        let sent = self.output.write_all(line.as_bytes()).await;
        sent.map_err(|error| Problem::failed(format!("the connection ended: {error}")))
    }

    async fn receive(&mut self) -> Result<Value, Problem> {
        let mut line = Vec::new();
        let read = tokio::time::timeout(self.timeout, self.lines.read_until(b'\n', &mut line));
        let ended = |error: io::Error| Problem::failed(format!("the connection ended: {error}"));
        match read.await {
            Err(_) => Err(Problem::failed(format!(
                "no answer within {:?}: set another time with --timeout",
                self.timeout
            ))),
            Ok(Err(error)) => Err(ended(error)),
            Ok(Ok(0)) => Err(ended(io::ErrorKind::UnexpectedEof.into())),
            Ok(Ok(_)) => serde_json::from_slice(&line).map_err(|error| Problem::failed(error.to_string())),
        }
    }
}

/// Returns an error of the server for a person, with the last lines of its output.
fn described(error: &Value) -> String {
    let shown = |text: &str| gateway::escape::one_line(text, 1000);
    let mut text = match error["message"].as_str() {
        Some(message) => shown(message),
        None => "the server answered with an error".to_owned(),
    };
    for line in error["data"]["stderr"].as_array().into_iter().flatten() {
        if let Some(line) = line.as_str() {
            text.push_str("\n  stderr: ");
            text.push_str(&shown(line));
        }
    }
    text
}

/// Shows progress and log lines of the server to a person.
fn note(method: &str, params: &Value) {
    use std::io::{IsTerminal as _, Write as _};
    let mut stderr = io::stderr().lock();
    if !stderr.is_terminal() {
        return;
    }
    let text = match method {
        "notifications/progress" => match (params["progress"].as_f64(), params["total"].as_f64()) {
            (Some(progress), Some(total)) => format!("progress {progress}/{total}"),
            (Some(progress), None) => format!("progress {progress}"),
            (None, _) => return,
        },
        "notifications/message" => match &params["data"] {
            Value::String(text) => text.clone(),
            data => data.to_string(),
        },
        _ => return,
    };
    let text = gateway::escape::one_line(&text, 300);
    let _ = writeln!(stderr, "{}", Style::Dim.paint(&text, true));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_server_comes_with_its_last_lines() {
        let error = json!({ "message": "exited\u{7}", "data": { "stderr": ["Error: no key"] } });
        assert_eq!(described(&error), "exited\\u{7}\n  stderr: Error: no key");
        assert_eq!(described(&json!({})), "the server answered with an error");
    }
}
