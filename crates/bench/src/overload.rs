//! More calls than can be done: an open loop at ten times the peak, and how the rest is refused.
//!
//! What can be done is bounded by a server that takes its time and by the places for calls, not by
//! the processor: the load has to share the machine with what it measures.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::task::JoinSet;

use crate::connection::Connection;
use crate::load::{self, Target, Until};
use crate::meter;
use crate::request::{Call, Session};

/// Places for calls at the gateway that is overloaded.
pub const PLACES: usize = 64;
const TIMES: f64 = 10.0;
const CONNECTIONS: u32 = 256;
/// So many calls in a row that are all done mean that it is over.
const NORMAL: u32 = 20;
const CALL: Call = Call::Echo { padding: 0 };

/// What an overload gave.
#[derive(Debug)]
pub struct Overload {
    /// Calls done per second, against the most that can be done.
    pub goodput: f64,
    /// The time in which 99 of 100 refusals came, in milliseconds.
    pub refusal: f64,
    /// What memory grew by after the first sixth, in bytes.
    pub growth: f64,
    /// Until calls were done as usual, in milliseconds.
    pub recovery: f64,
}

/// Overloads for so long.
pub async fn run(target: &Target, calm: Duration, storm: Duration) -> anyhow::Result<Overload> {
    let sessions = load::open_sessions(target, 16).await?;
    load::closed_loop(target, &sessions, PLACES, CALL, Until::Passed(calm / 4)).await?;
    let peak = load::closed_loop(target, &sessions, PLACES, CALL, Until::Passed(calm))
        .await?
        .rate();
    let every = Duration::from_secs_f64(f64::from(CONNECTIONS) / (peak * TIMES));
    let started = Instant::now();
    let end = started + storm;
    let mut callers = JoinSet::new();
    for number in 0..CONNECTIONS {
        let connection = Connection::open(target.address).await?;
        let first = started + every * number / CONNECTIONS;
        callers.spawn_local(caller(
            connection,
            Rc::clone(&sessions),
            number,
            first,
            every,
            end,
        ));
    }
    tokio::time::sleep_until((started + storm / 6).into()).await;
    let early = meter::resident_memory(target.pid)?;
    tokio::time::sleep_until(end.into()).await;
    let late = meter::resident_memory(target.pid)?;
    let stopped = Instant::now();
    let (mut done, mut refusals) = (0, Vec::new());
    while let Some(counts) = callers.join_next().await {
        let counts = counts.context("a caller failed")??;
        done += counts.done;
        refusals.extend(counts.refusals);
    }
    let recovery = recover(target, &sessions, stopped).await?;
    if refusals.is_empty() {
        bail!("nothing was refused: it was no overload");
    }
    refusals.sort_unstable();
    let slow = refusals
        .get(refusals.len() * 99 / 100)
        .copied()
        .unwrap_or_default();
    Ok(Overload {
        goodput: done as f64 / storm.as_secs_f64() / peak,
        refusal: slow.as_secs_f64() * 1e3,
        growth: late.saturating_sub(early) as f64,
        recovery: recovery.as_secs_f64() * 1e3,
    })
}

#[derive(Debug, Default)]
struct CallCounts {
    done: u64,
    refusals: Vec<Duration>,
}

/// One connection of the open loop: its next call is due whether or not the one before was
/// answered.
async fn caller(
    mut connection: Connection,
    sessions: Rc<Vec<Session>>,
    number: u32,
    first: Instant,
    every: Duration,
    end: Instant,
) -> anyhow::Result<CallCounts> {
    let mut counts = CallCounts::default();
    let (mut body, mut request) = (Vec::new(), Vec::new());
    let mut due = first;
    let mut serial = 0;
    while due < end {
        tokio::time::sleep_until(due.into()).await;
        let id = (u64::from(number) + 1) * 100_000_000 + serial;
        serial += 1;
        body.clear();
        let session = &sessions[number as usize % sessions.len()];
        session.write_call(&mut body, CALL, id);
        session.post(&mut request, &body);
        let sent = Instant::now();
        if sent >= end {
            break;
        }
        let answer = connection.exchange(&request).await?;
        match answer.status {
            503 => counts.refusals.push(sent.elapsed()),
            _ => {
                load::check(&answer, CALL, id)?;
                // What is done after the storm is no goodput of it.
                counts.done += u64::from(Instant::now() <= end);
            }
        }
        due += every;
    }
    Ok(counts)
}

async fn recover(target: &Target, sessions: &Rc<Vec<Session>>, stopped: Instant) -> anyhow::Result<Duration> {
    let mut connection = Connection::open(target.address).await?;
    let (mut body, mut request) = (Vec::new(), Vec::new());
    let (mut in_a_row, mut id, mut since) = (0, 1, stopped);
    while in_a_row < NORMAL {
        body.clear();
        sessions[0].write_call(&mut body, CALL, id);
        sessions[0].post(&mut request, &body);
        let answer = connection.exchange(&request).await?;
        id += 1;
        if answer.status == 200 {
            in_a_row += 1;
        } else {
            (in_a_row, since) = (0, Instant::now());
        }
    }
    Ok(since - stopped)
}
