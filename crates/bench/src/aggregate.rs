//! What an aggregate costs: a call through it against the same call to its member, and a list of
//! many members that is answered from the catalogue.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use memchr::memmem;

use crate::connection::Connection;
use crate::load;
use crate::meter;
use crate::request::Session;
use crate::row::Effort;
use crate::system::{Programs, Running, Setup, System};

/// Members of the aggregate with the large catalogue, and tools of each.
const MEMBERS: usize = 100;
const TOOLS: usize = 50;
/// The same in a short run.
const FEW_MEMBERS: usize = 10;
/// How long members may take to be read, and to end when no call has used them.
const PATIENCE: Duration = Duration::from_secs(60);
const LIST: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
/// Stands before each tool of a list, and nowhere else.
const MARK: &[u8] = b"\"inputSchema\"";

/// What a list of the catalogue costs.
#[derive(Debug)]
pub(crate) struct Listing {
    /// Milliseconds, the median.
    pub(crate) time: f64,
    /// Of the answer.
    pub(crate) bytes: f64,
    /// Microseconds.
    pub(crate) cpu: f64,
    /// Of the process, with the catalogue in it.
    pub(crate) memory: f64,
}

/// Lists the tools of all members, none of which runs.
pub(crate) async fn listing(programs: &Programs, effort: Effort) -> anyhow::Result<Listing> {
    let members = if effort.full { MEMBERS } else { FEW_MEMBERS };
    let setup = Setup::Catalogue {
        members,
        tools: TOOLS,
    };
    let running = System::Rialto.start(setup, programs)?;
    let measured = measure(&running, members * TOOLS, effort.time).await;
    running.stop().await?;
    measured
}

async fn measure(running: &Running, tools: usize, time: Duration) -> anyhow::Result<Listing> {
    let target = &running.target;
    let sessions = load::open_sessions(target, 1).await?;
    let session = sessions.first().context("a session was opened")?;
    let mut connection = target.connect().await?;
    let started = Instant::now();
    loop {
        let found = list(&mut connection, session).await?.tools;
        let running = children(target.pid);
        if found == tools && running == 0 {
            break;
        }
        if started.elapsed() > PATIENCE {
            bail!("{found} of {tools} tools are listed, and {running} children run");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (mut times, mut bytes) = (Vec::new(), 0);
    let cpu = meter::cpu(target.pid)?;
    let began = Instant::now();
    while began.elapsed() < time {
        let sent = Instant::now();
        bytes = list(&mut connection, session).await?.bytes;
        times.push(sent.elapsed().as_secs_f64() * 1e3);
    }
    let cpu = meter::cpu(target.pid)? - cpu;
    let left = children(target.pid);
    if left > 0 {
        bail!("a list has started {left} children");
    }
    times.sort_by(f64::total_cmp);
    Ok(Listing {
        time: times[times.len() / 2],
        bytes: bytes as f64,
        cpu: cpu.as_secs_f64() * 1e6 / times.len() as f64,
        memory: meter::proportional_memory(target.pid)? as f64,
    })
}

struct Answer {
    tools: usize,
    bytes: usize,
}

async fn list(connection: &mut Connection, session: &Session) -> anyhow::Result<Answer> {
    let mut request = Vec::new();
    session.post(&mut request, LIST);
    let answer = connection.exchange(&request).await?;
    // A list that is not known yet is an error, and comes again.
    if !matches!(answer.status, 200 | 503) {
        bail!("tools/list: HTTP {}", answer.status);
    }
    Ok(Answer {
        tools: memmem::find_iter(answer.body, MARK).count(),
        bytes: answer.body.len(),
    })
}

/// Returns how many servers a process has started, itself or through a process of its own.
fn children(of: u32) -> usize {
    let Ok(processes) = fs::read_dir("/proc") else {
        return 0;
    };
    let pids = processes
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| is_server(*pid) && descends(*pid, of)).count()
}

fn is_server(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim() == "bench-echo"
}

fn descends(mut pid: u32, from: u32) -> bool {
    // Init has no parent.
    while pid > 1 {
        if pid == from {
            return true;
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        pid = parent.and_then(|parent| parent.trim().parse().ok()).unwrap_or(0);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_descends_from_its_parent_and_is_no_server() {
        let own = std::process::id();
        assert!(descends(own, own) && descends(own, std::os::unix::process::parent_id()));
        assert!(!is_server(own));
        assert_eq!(children(own), 0);
    }
}
