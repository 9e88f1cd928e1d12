//! Programs that a host starts: stdio in front, the native server over HTTP behind. What each is
//! called is in [`System`]; here is how it is started, and what of it is measured.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;
use tokio::process::Command;

use crate::load::{Outcome, Target, Until};
use crate::meter;
use crate::pipe::Pipe;
use crate::request::Call;
use crate::row::Effort;
use crate::sdk;
use crate::system::{Programs, Running, Setup, System, installed};

const PLAIN: Call = Call::Echo { padding: 0 };

/// What is measured of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// So many calls in flight over the one connection that there is.
    Calls(usize),
    /// One call after the other, by an official client.
    Sdk,
    /// From its start to the answer to `initialize`.
    Start,
    /// Memory after some calls.
    Idle,
}

/// Whether the system has a program that hosts can start.
pub fn is_possible(system: System) -> bool {
    match system {
        System::Rialto | System::McpRemote | System::PythonProxy => true,
        System::Native | System::Pipe | System::Supergateway | System::NodeProxy => false,
    }
}

/// Measures a program: for calls what [`crate::load::Outcome`] tells, else one number.
pub async fn measure(
    what: Measure,
    system: System,
    programs: &Programs,
    effort: Effort,
) -> anyhow::Result<Measured> {
    let native = System::Native.start(Setup::Plain, programs)?;
    let measured = measure_in_front(what, system, programs, &native, effort).await;
    native.stop().await?;
    measured
}

/// What came of it.
#[derive(Debug)]
pub enum Measured {
    Calls(Outcome),
    Number(f64),
}

/// Has Rialto make so many calls, whose cost the caller measures.
pub async fn calls(in_flight: usize, calls: u64, programs: &Programs) -> anyhow::Result<Outcome> {
    let plain = Programs {
        prefix: Vec::new(),
        ..programs.clone()
    };
    let native = System::Native.start(Setup::Plain, &plain)?;
    let (mut pipe, _, _files) = start(System::Rialto, programs, &native.target).await?;
    let outcome = pipe.closed_loop(in_flight, PLAIN, Until::Calls(calls)).await?;
    pipe.stop().await?;
    native.stop().await?;
    Ok(outcome)
}

async fn measure_in_front(
    what: Measure,
    system: System,
    programs: &Programs,
    native: &Running,
    effort: Effort,
) -> anyhow::Result<Measured> {
    match what {
        Measure::Calls(in_flight) => {
            let (mut pipe, _, _files) = start(system, programs, &native.target).await?;
            pipe.closed_loop(in_flight, PLAIN, Until::Passed(effort.time / 5))
                .await?;
            let outcome = pipe
                .closed_loop(in_flight, PLAIN, Until::Passed(effort.time))
                .await?;
            pipe.stop().await?;
            Ok(Measured::Calls(outcome))
        }
        Measure::Sdk => {
            let files = tempfile::tempdir().context("cannot make a folder for temporary files")?;
            let (program, arguments) = command_line(system, programs, &url_of(&native.target))?;
            let kept = kept_in(files.path());
            let median = sdk::over_stdio(programs, &program, &arguments, &kept, effort.time).await?;
            Ok(Measured::Number(median))
        }
        Measure::Start => {
            let starts = if system.is_peer() { 3 } else { 15 };
            let mut times = Vec::new();
            for _ in 0..starts {
                let (pipe, time, _files) = start(system, programs, &native.target).await?;
                times.push(time.as_secs_f64());
                pipe.stop().await?;
            }
            times.sort_by(f64::total_cmp);
            Ok(Measured::Number(times[times.len() / 2]))
        }
        Measure::Idle => {
            let (mut pipe, _, _files) = start(system, programs, &native.target).await?;
            pipe.closed_loop(1, PLAIN, Until::Passed(effort.time / 5)).await?;
            tokio::time::sleep(Duration::from_millis(300)).await;
            let memory = meter::proportional_memory(pipe.pid)?;
            pipe.stop().await?;
            Ok(Measured::Number(memory as f64))
        }
    }
}

/// Starts one and shakes hands; gives how long that took, too.
async fn start(
    system: System,
    programs: &Programs,
    behind: &Target,
) -> anyhow::Result<(Pipe, Duration, TempDir)> {
    let files = tempfile::tempdir().context("cannot make a folder for temporary files")?;
    let (program, arguments) = command_line(system, programs, &url_of(behind))?;
    let mut words = programs.prefix.clone();
    words.push(program.to_string_lossy().into_owned());
    words.extend(arguments);
    let (first, rest) = words.split_first().context("a command has a program")?;
    let mut command = Command::new(first);
    command
        .args(rest)
        .envs(kept_in(files.path()))
        .stderr(Stdio::from(log(files.path())?));
    let started = Instant::now();
    let pipe = Pipe::start(&mut command).await?;
    Ok((pipe, started.elapsed(), files))
}

fn url_of(target: &Target) -> String {
    format!("http://{}/mcp", target.address)
}

/// The directory for what a program keeps between its runs.
fn kept_in(files: &Path) -> [(&'static str, &Path); 2] {
    [("MCP_REMOTE_CONFIG_DIR", files), ("RIALTO_STATE_DIR", files)]
}

fn log(files: &Path) -> anyhow::Result<std::fs::File> {
    std::fs::File::create(files.join("stderr")).context("cannot keep its stderr")
}

fn command_line(system: System, programs: &Programs, url: &str) -> anyhow::Result<(PathBuf, Vec<String>)> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    match system {
        System::Rialto => Ok((programs.ours.join("rialto"), words(&["connect", url]))),
        System::McpRemote => {
            let script = installed(programs, "peers-node/node_modules/mcp-remote/dist/proxy.js")?;
            let all = words(&[&script, url, "--transport", "http-only", "--allow-http"]);
            Ok((PathBuf::from("node"), all))
        }
        System::PythonProxy => {
            let program = installed(programs, "peers-python/bin/python")?;
            let all = words(&["-m", "mcp_proxy", "--log-level", "WARNING"]);
            let transport = words(&["--transport", "streamablehttp", url]);
            Ok((PathBuf::from(program), [all, transport].concat()))
        }
        System::Native | System::Pipe | System::Supergateway | System::NodeProxy => {
            bail!("it is no program for hosts")
        }
    }
}
