//! Tools that break the rules of the line protocol, of the pipes or of the process.

use std::io::Write;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::Invocation;
use crate::stub::server::{Reading, Server};
use crate::stub::wire;

static CHUNK: [u8; 64 << 10] = [b'a'; 64 << 10];
/// Lines that are no messages, by the name of their kind.
const GARBAGE: &[(&str, &[u8])] = &[
    ("text", b"Listening on stdio, have fun!\n"),
    ("binary", b"\x00\x01\xff\xfe\x80{\"id\":\xc3\x28}\n"),
    ("ansi", b"\x1b[31mred\x1b[0m \x1b]0;title\x07\n"),
    ("array", b"[]\n"),
    ("null", b"null\n"),
    ("empty", b"\n\n   \n"),
    ("crlf", b"\r\n"),
];

/// One way to break the rules; `Tool::ALL` describes what each does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stub) enum Fault {
    Twice,
    UnknownId,
    StringId,
    Garbage,
    Big,
    BigIdLast,
    Deep,
    Endless,
    Exit,
    ExitHalf,
    SignalSelf,
    Flood,
    FloodStderr,
    Stderr,
    StopReading,
    CloseStdin,
    CloseStdout,
}

impl Server {
    pub(super) fn misbehave(&mut self, fault: Fault, call: &Invocation<'_>) -> Reading {
        match fault {
            Fault::Twice => {
                self.output.line(&call.echo());
                self.output.line(&call.says(&format!("{} again", call.marker())));
            }
            Fault::UnknownId => {
                let other = call.arguments.raw("id").unwrap_or("987654321");
                self.output
                    .line(&wire::response(other, &wire::text_result("for another call")));
                self.output.line(&call.echo());
            }
            Fault::StringId => {
                let as_string = Value::from(call.id).to_string();
                self.output.line(&wire::response(
                    &as_string,
                    &wire::text_result("wrong type of id"),
                ));
                self.output.line(&call.echo());
            }
            Fault::Garbage => self.garbage(call),
            Fault::Big => self.big(call, &format!(r#"{{"jsonrpc":"2.0","id":{},"#, call.id), "}"),
            Fault::BigIdLast => self.big(call, r#"{"jsonrpc":"2.0","#, &format!(r#","id":{}}}"#, call.id)),
            Fault::Deep => {
                let levels = call.arguments.number("levels", 100_000) as usize;
                let nested = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
                let result = format!(r#"{{"content":[],"structuredContent":{{"deep":{nested}}}}}"#);
                self.output.line(&wire::response(call.id, &result));
            }
            Fault::Endless => {
                let bytes = match call.arguments.flag("forever", false) {
                    true => u64::MAX,
                    false => call.arguments.number("megabytes", 100) << 20,
                };
                let is_text = call.arguments.flag("text", false);
                self.output.piecewise(|stdout| {
                    if !is_text {
                        stdout.write_all(
                            br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":""#,
                        )?;
                    }
                    fill(stdout, bytes)?;
                    stdout.write_all(b"\n")
                });
                self.output.line(&call.echo());
            }
            Fault::Exit => std::process::exit(call.arguments.number("code", 0) as i32),
            Fault::ExitHalf => {
                let answer = call.echo();
                self.output.bytes(&answer.as_bytes()[..answer.len() / 2]);
                std::process::exit(call.arguments.number("code", 0) as i32);
            }
            Fault::SignalSelf => self.signal_self(call),
            Fault::Flood => {
                let filler = "a".repeat(call.arguments.number("bytes", 1000) as usize);
                for n in 1..=call.arguments.number("n", 1000) {
                    let params = format!(r#"{{"level":"info","data":{{"n":{n},"filler":"{filler}"}}}}"#);
                    self.output
                        .line(&wire::notification("notifications/message", &params));
                }
                self.output.line(&call.echo());
            }
            Fault::FloodStderr => {
                flood_stderr(
                    call.arguments.number("bytes", 1 << 20),
                    call.arguments.flag("newline", true),
                );
                self.output.line(&call.echo());
            }
            Fault::Stderr => {
                let text = call.arguments.text("text").unwrap_or_default();
                let _ = writeln!(std::io::stderr().lock(), "{text}");
                self.output.line(&call.echo());
            }
            Fault::StopReading => {
                self.output.line(&call.echo());
                return Reading::Stops;
            }
            Fault::CloseStdin => {
                let text = match replace_by_nothing(rustix::stdio::dup2_stdin) {
                    Ok(()) => call.marker().to_owned(),
                    Err(error) => error.to_string(),
                };
                self.output.line(&call.says(&text));
                return Reading::Stops;
            }
            Fault::CloseStdout => {
                self.output.line(&call.echo());
                let _ = replace_by_nothing(rustix::stdio::dup2_stdout);
            }
        }
        Reading::GoesOn
    }

    fn garbage(&self, call: &Invocation<'_>) {
        let kind = call.arguments.text("kind").unwrap_or_else(|| "all".to_owned());
        for (name, bytes) in GARBAGE {
            if kind == *name || kind == "all" {
                self.output.bytes(bytes);
            }
        }
        let mut answer = call.echo();
        answer.push('\n');
        if kind == "partial" || kind == "all" {
            self.output.piecewise(|stdout| {
                for piece in answer.as_bytes().chunks(answer.len() / 3) {
                    stdout.write_all(piece)?;
                    stdout.flush()?;
                    // Long enough for the other side to read the piece alone; it may as well not.
                    std::thread::sleep(Duration::from_millis(2));
                }
                Ok(())
            });
        } else {
            self.output.bytes(answer.as_bytes());
        }
    }

    fn big(&self, call: &Invocation<'_>, before: &str, after: &str) {
        self.output.piecewise(|stdout| {
            stdout.write_all(before.as_bytes())?;
            stdout.write_all(br#""result":{"content":[{"type":"text","text":""#)?;
            fill(stdout, call.arguments.number("bytes", 2 << 20))?;
            stdout.write_all(br#""}]}"#)?;
            stdout.write_all(after.as_bytes())?;
            stdout.write_all(b"\n")
        });
    }

    fn signal_self(&self, call: &Invocation<'_>) {
        let name = call.arguments.text("sig").unwrap_or_else(|| "KILL".to_owned());
        let Some(signal) = signal_named(&name) else {
            self.output.line(&call.says(&format!("no signal {name}")));
            return;
        };
        let me = rustix::process::getpid();
        let _ = rustix::process::kill_process(me, signal);
        if signal == Signal::SEGV || signal == Signal::BUS {
            // Rust's own handler takes the first one for a stack overflow, looks, and steps aside.
            let _ = rustix::process::kill_process(me, signal);
        }
        self.output.line(&call.echo());
    }
}

fn fill(stdout: &mut dyn Write, bytes: u64) -> std::io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let now = left.min(CHUNK.len() as u64);
        stdout.write_all(&CHUNK[..now as usize])?;
        left -= now;
    }
    Ok(())
}

fn flood_stderr(bytes: u64, newline: bool) {
    let mut line = [b'e'; 1000];
    if newline {
        line[999] = b'\n';
    }
    let mut stderr = std::io::stderr().lock();
    let mut left = bytes;
    while left > 0 {
        let now = left.min(line.len() as u64);
        if stderr.write_all(&line[..now as usize]).is_err() {
            return;
        }
        left -= now;
    }
}

/// Puts `/dev/null` in the place of a standard stream, which closes the pipe that was there.
fn replace_by_nothing(replace: fn(std::fs::File) -> rustix::io::Result<()>) -> std::io::Result<()> {
    let nothing = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    replace(nothing).map_err(std::io::Error::from)
}

fn signal_named(name: &str) -> Option<Signal> {
    match name.trim_start_matches("SIG") {
        "HUP" => Some(Signal::HUP),
        "INT" => Some(Signal::INT),
        "QUIT" => Some(Signal::QUIT),
        "ABRT" => Some(Signal::ABORT),
        "KILL" => Some(Signal::KILL),
        "SEGV" => Some(Signal::SEGV),
        "TERM" => Some(Signal::TERM),
        "STOP" => Some(Signal::STOP),
        number => number.parse().ok().and_then(Signal::from_named_raw),
    }
}
