//! One Rialto with `state_dir` that is restarted under a client which goes on calling.
//!
//! The socket outlives Rialto, as systemd does it, so that no connection is refused. A client calls
//! `pid`, with several calls at once, until it has met each server; it notes each call that failed
//! and how many servers it had met by then.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::thread::{self, JoinHandle};

use rustix::process::Signal;
use serde_json::Value;

use super::fixture::wait_for;
use crate::failure::Result;
use crate::journal::Journal;
use crate::patience::{PATIENCE, wait_until};
use crate::rialto::Rialto;

/// The scenario that clients play.
pub const SCENARIO: &str = "outlives_restarts";

/// How Rialto ends, one time after the other.
const ENDS: [Signal; 3] = [Signal::TERM, Signal::KILL, Signal::TERM];
/// How many calls the client makes at once; its scripts have the same number.
pub const CALLERS: usize = 4;
/// How many further calls run before Rialto is ended again.
const CALLS: usize = 40;

type Script = JoinHandle<std::result::Result<Value, String>>;

/// What a restart cost a client.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Cost {
    /// The failed calls, each with its reason.
    pub failures: Vec<String>,
    /// How many transports the client opened anew, with its session.
    pub transports: usize,
}

/// What all restarts cost a client.
#[derive(Debug)]
pub struct Costs {
    pub answers: u64,
    pub of_restarts: Cost,
    pub of_kills: Cost,
}

/// Lets a client call on while Rialto is restarted, killed and restarted. Checks that it keeps its
/// session and that no call ran twice.
///
/// # Panics
/// When a check fails, or when the client ends early.
pub fn outlive(
    player: impl FnOnce(&str, &str) -> std::result::Result<Value, String> + Send + 'static,
) -> Costs {
    let costs = wait_for(run(player)).expect("Rialto is started again");
    #[expect(
        clippy::print_stdout,
        reason = "the figures are for a run that shows the output"
    )]
    {
        println!("{costs:?}");
    }
    costs
}

async fn run(
    player: impl FnOnce(&str, &str) -> std::result::Result<Value, String> + Send + 'static,
) -> Result<Costs> {
    let base = tempfile::tempdir()?;
    let socket = TcpListener::bind("127.0.0.1:0")?;
    let journal = Journal::at(base.path().join("journal"));
    let mut rialto = start(&socket, base.path()).await?;
    let url = rialto.url_of("one");
    let script: Script = thread::spawn(move || player(&url, SCENARIO));
    for signal in ENDS {
        let before = journal.events("executed").len();
        wait_until("the client calls on, or has ended", PATIENCE * 2, || {
            let calls_on = journal.events("executed").len() >= before + CALLS;
            (calls_on || script.is_finished()).then_some(())
        })
        .await;
        assert!(!script.is_finished(), "the client gave up: {:?}", script.join());
        rialto.signal(signal);
        rialto.wait(PATIENCE).await;
        rialto.wait_for_no_children(PATIENCE).await;
        rialto = start(&socket, base.path()).await?;
    }
    let seen = script.join().expect("the player does not panic");
    let seen = seen.unwrap_or_else(|why| panic!("the client gave up: {why}"));
    Ok(judge(&seen, &journal))
}

async fn start(socket: &TcpListener, base: &Path) -> Result<Rialto> {
    let base = base.display();
    let config = format!(
        "state_dir: {base}/state\ndestinations:\n  one: {{ command: '{{stub}} --journal {base}/journal' }}\n"
    );
    let launcher = Rialto::launcher().socket(socket.try_clone()?);
    launcher.config(&config).start().await
}

fn judge(seen: &Value, journal: &Journal) -> Costs {
    let count = |name: &str| seen[name].as_array().map_or(0, Vec::len);
    assert_eq!(count("servers"), ENDS.len() + 1, "{seen}");
    assert_eq!(
        count("sessions"),
        1,
        "the client keeps its session and sends no second initialize: {seen}"
    );
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    for entry in journal.events("executed") {
        let marker = entry["marker"].as_str().unwrap_or_default();
        *runs.entry(marker.to_owned()).or_default() += 1;
    }
    runs.retain(|_, count| *count > 1);
    assert!(runs.is_empty(), "ran more than once: {runs:?}");
    let mut costs = Costs {
        answers: seen["answers"].as_u64().unwrap_or_default(),
        of_restarts: Cost::default(),
        of_kills: Cost::default(),
    };
    let noted = |name: &str| seen[name].as_array().cloned().unwrap_or_default();
    for failure in noted("failures") {
        let cost = cost_of(&mut costs, &failure[0]);
        cost.failures.push(failure[1].to_string());
    }
    for met in noted("transports") {
        cost_of(&mut costs, &met).transports += 1;
    }
    costs
}

/// Returns the cost of the end that came after the client had met this many servers.
fn cost_of<'a>(costs: &'a mut Costs, met: &Value) -> &'a mut Cost {
    let met = met.as_u64().and_then(|met| usize::try_from(met).ok());
    let end = met.and_then(|met| ENDS.get(met.checked_sub(1)?));
    if end == Some(&Signal::KILL) {
        &mut costs.of_kills
    } else {
        &mut costs.of_restarts
    }
}
