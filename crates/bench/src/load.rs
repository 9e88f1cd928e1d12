//! The load: calls over HTTP, in a closed loop, at a fixed rate, or with a session of their own.
//!
//! Everything runs on one thread, so that the load takes at most one processor from what it
//! measures. Every answer is checked; one wrong answer ends the measurement.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::task::JoinSet;

use crate::connection::{Answer, Connection};
use crate::handler::Era;
use crate::meter;
use crate::request::{self, Call, Front, INITIALIZED, Session};
use crate::shallow::{Members, unquoted};
use crate::tls::Tls;

/// The server that is measured.
#[derive(Debug, Clone)]
pub struct Target {
    pub address: SocketAddr,
    pub pid: u32,
    /// One path per destination.
    pub paths: Vec<String>,
    /// The bearer token that is shown to it.
    pub token: Option<String>,
    /// The words of its clients.
    pub words: Era,
    /// The name of the tool `echo` there.
    pub tool: &'static str,
    /// Set where it is reached over TLS.
    pub tls: Option<Tls>,
}

impl Target {
    /// Opens a connection to it.
    pub async fn connect(&self) -> anyhow::Result<Connection> {
        match &self.tls {
            Some(tls) => Connection::open_tls(self.address, tls).await,
            None => Connection::open(self.address).await,
        }
    }

    fn front<'a>(&'a self, path: &'a str) -> Front<'a> {
        Front {
            address: self.address,
            path,
            token: self.token.as_deref(),
        }
    }

    /// Its front for a caller with another token.
    pub(crate) fn front_with<'a>(&self, path: &'a str, token: &'a str) -> Front<'a> {
        Front {
            address: self.address,
            path,
            token: Some(token),
        }
    }
}

/// When a loop is over.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    Passed(Duration),
    /// So many calls in all.
    Calls(u64),
}

/// What a measurement gave.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub calls: u64,
    pub elapsed: Duration,
    pub cpu: Duration,
    /// Nanoseconds, sorted.
    latencies: Vec<u32>,
}

impl Outcome {
    pub(crate) fn new(calls: u64, elapsed: Duration, cpu: Duration, mut latencies: Vec<u32>) -> Self {
        latencies.sort_unstable();
        Self {
            calls,
            elapsed,
            cpu,
            latencies,
        }
    }

    pub fn rate(&self) -> f64 {
        self.calls as f64 / self.elapsed.as_secs_f64()
    }

    /// Microseconds of processor time per call.
    pub fn cpu_per_call(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.calls.max(1) as f64
    }

    /// A latency in microseconds; `share` is 0.5 for the median.
    pub fn latency(&self, share: f64) -> f64 {
        let at = (self.latencies.len() as f64 * share) as usize;
        let found = self.latencies.get(at).or(self.latencies.last());
        found.map_or(f64::NAN, |nanos| f64::from(*nanos) / 1e3)
    }
}

/// Opens a session as a client does; a modern client has none to open.
pub async fn open_session(
    connection: &mut Connection,
    target: &Target,
    path: &str,
) -> anyhow::Result<Session> {
    match target.words {
        Era::Legacy => {
            let id = open_id(connection, target, path).await?;
            Ok(Session::new(target.front(path), &id).calling(target.tool))
        }
        Era::Modern => Ok(Session::modern(target.front(path), target.tool)),
    }
}

/// Opens a session of the legacy era. Returns its id.
pub(crate) async fn open_id(
    connection: &mut Connection,
    target: &Target,
    path: &str,
) -> anyhow::Result<String> {
    let front = target.front(path);
    let answer = connection.exchange(&request::opening(front)).await?;
    if answer.status != 200 {
        bail!("initialize: {}", refusal(&answer));
    }
    let id = answer.session.context("initialize: no session id came back")?;
    let session = Session::new(front, &id);
    let mut request = Vec::new();
    session.post(&mut request, INITIALIZED.as_bytes());
    let answer = connection.exchange(&request).await?;
    if !matches!(answer.status, 200 | 202) {
        bail!("initialized: HTTP {}", answer.status);
    }
    Ok(id)
}

/// Whether this is the right answer to a call.
pub(crate) fn check(answer: &Answer<'_>, call: Call, id: u64) -> anyhow::Result<()> {
    if answer.status != 200 {
        bail!("{}", refusal(answer));
    }
    request::check_answer(answer.body, call, id)
}

/// The status, and the words of a JSON-RPC error or of a plain text. Error pages are left out: they
/// tell more about the machine than about the refusal.
fn refusal(answer: &Answer<'_>) -> String {
    let error = Members::of(answer.body).find(b"error");
    let message = error
        .and_then(|error| Members::of(error).find(b"message"))
        .and_then(unquoted);
    let words = match message {
        Some(message) => message,
        None if answer.body.starts_with(b"<") => b"",
        None => answer.body,
    };
    let words: String = String::from_utf8_lossy(words).chars().take(120).collect();
    match words.trim() {
        "" => format!("HTTP {}", answer.status),
        words => format!("HTTP {}: {words}", answer.status),
    }
}

/// Opens so many sessions, spread over the target's destinations.
pub async fn open_sessions(target: &Target, count: usize) -> anyhow::Result<Rc<Vec<Session>>> {
    let mut connection = target.connect().await?;
    let mut sessions = Vec::with_capacity(count);
    for path in target.paths.iter().cycle().take(count) {
        sessions.push(open_session(&mut connection, target, path).await?);
    }
    Ok(Rc::new(sessions))
}

#[derive(Debug)]
struct LoadResult {
    latencies: Vec<u32>,
    finished: Instant,
}

/// Keeps so many calls in flight, each on a connection of its own.
pub async fn closed_loop(
    target: &Target,
    sessions: &Rc<Vec<Session>>,
    in_flight: usize,
    call: Call,
    until: Until,
) -> anyhow::Result<Outcome> {
    let mut connections = Vec::with_capacity(in_flight);
    for _ in 0..in_flight {
        connections.push(target.connect().await?);
    }
    let cpu = meter::cpu(target.pid)?;
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for (number, connection) in connections.into_iter().enumerate() {
        let sessions = Rc::clone(sessions);
        let work = match until {
            Until::Passed(time) => Stop::At(started + time),
            Until::Calls(calls) => Stop::After(calls / in_flight as u64),
        };
        workers.spawn_local(caller(connection, sessions, number, in_flight, call, work));
    }
    gather(target.pid, workers, started, cpu).await
}

#[derive(Clone, Copy)]
enum Stop {
    At(Instant),
    After(u64),
}

impl Stop {
    fn is_reached(self, now: Instant, done: u64) -> bool {
        match self {
            Self::At(end) => now >= end,
            Self::After(calls) => done >= calls,
        }
    }
}

async fn gather(
    pid: u32,
    mut workers: JoinSet<anyhow::Result<LoadResult>>,
    started: Instant,
    cpu: Duration,
) -> anyhow::Result<Outcome> {
    let (mut latencies, mut finished) = (Vec::new(), started);
    while let Some(result) = workers.join_next().await {
        let result = result.context("a worker of the load failed")??;
        latencies.extend(result.latencies);
        finished = finished.max(result.finished);
    }
    let cpu = meter::cpu(pid)? - cpu;
    Ok(Outcome::new(
        latencies.len() as u64,
        finished - started,
        cpu,
        latencies,
    ))
}

async fn caller(
    mut connection: Connection,
    sessions: Rc<Vec<Session>>,
    number: usize,
    stride: usize,
    call: Call,
    stop: Stop,
) -> anyhow::Result<LoadResult> {
    let (mut body, mut request) = (Vec::new(), Vec::new());
    let mut latencies = Vec::new();
    let mut now = Instant::now();
    let mut turn = number;
    while !stop.is_reached(now, latencies.len() as u64) {
        let id = (number as u64 + 1) * 100_000_000 + latencies.len() as u64;
        body.clear();
        let session = &sessions[turn % sessions.len()];
        session.write_call(&mut body, call, id);
        session.post(&mut request, &body);
        turn += stride;
        let sent = now;
        let answer = connection.exchange(&request).await?;
        check(&answer, call, id)?;
        now = Instant::now();
        latencies.push(nanos(now - sent));
    }
    Ok(LoadResult {
        latencies,
        finished: now,
    })
}

fn nanos(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}

/// Calls at a fixed rate, over so many connections in turn.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub call: Call,
    pub per_second: u32,
    pub connections: u32,
}

/// Sends calls at a fixed rate, whether or not the ones before have been answered.
pub async fn paced(
    target: &Target,
    sessions: &Rc<Vec<Session>>,
    pace: Pace,
    time: Duration,
) -> anyhow::Result<Outcome> {
    let mut connections = Vec::new();
    for _ in 0..pace.connections {
        connections.push(target.connect().await?);
    }
    let cpu = meter::cpu(target.pid)?;
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for (number, connection) in (0..pace.connections).zip(connections) {
        let sessions = Rc::clone(sessions);
        let first = started + Duration::from_secs(1) * number / pace.per_second;
        let every = Duration::from_secs(1) * pace.connections / pace.per_second;
        let due = Due {
            first,
            every,
            end: started + time,
        };
        workers.spawn_local(pacer(connection, sessions, number, pace.call, due));
    }
    gather(target.pid, workers, started, cpu).await
}

/// When the calls of one connection are due.
#[derive(Clone, Copy)]
struct Due {
    first: Instant,
    every: Duration,
    end: Instant,
}

async fn pacer(
    mut connection: Connection,
    sessions: Rc<Vec<Session>>,
    number: u32,
    call: Call,
    Due { first, every, end }: Due,
) -> anyhow::Result<LoadResult> {
    let (mut body, mut request) = (Vec::new(), Vec::new());
    let mut latencies = Vec::new();
    let mut due = first;
    let mut finished = Instant::now();
    while due < end {
        let id = (u64::from(number) + 1) * 100_000_000 + latencies.len() as u64;
        body.clear();
        let session = &sessions[number as usize % sessions.len()];
        session.write_call(&mut body, call, id);
        session.post(&mut request, &body);
        let late = finished > due;
        tokio::time::sleep_until(due.into()).await;
        // The timer's own lateness is not the target's; a call that had to wait for the one before
        // is.
        let sent = if late { due } else { Instant::now() };
        let answer = connection.exchange(&request).await?;
        check(&answer, call, id)?;
        finished = Instant::now();
        latencies.push(nanos(finished - sent));
        due += every;
    }
    Ok(LoadResult { latencies, finished })
}

/// Opens sessions, calls once in each and deletes them; so many at a time.
pub async fn churn(target: &Target, at_a_time: usize, until: Until) -> anyhow::Result<Outcome> {
    let mut connections = Vec::new();
    for _ in 0..at_a_time {
        connections.push(target.connect().await?);
    }
    let cpu = meter::cpu(target.pid)?;
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for (number, connection) in connections.into_iter().enumerate() {
        let stop = match until {
            Until::Passed(time) => Stop::At(started + time),
            Until::Calls(calls) => Stop::After(calls / at_a_time as u64),
        };
        workers.spawn_local(visitor(connection, target.clone(), number, stop));
    }
    gather(target.pid, workers, started, cpu).await
}

async fn visitor(
    mut connection: Connection,
    target: Target,
    number: usize,
    stop: Stop,
) -> anyhow::Result<LoadResult> {
    let call = Call::Echo { padding: 0 };
    let path = target.paths.first().context("a target has a path")?;
    let (mut body, mut request) = (Vec::new(), Vec::new());
    let mut latencies = Vec::new();
    let mut now = Instant::now();
    while !stop.is_reached(now, latencies.len() as u64) {
        let id = (number as u64 + 1) * 100_000_000 + latencies.len() as u64;
        let began = now;
        let session = open_session(&mut connection, &target, path).await?;
        body.clear();
        session.write_call(&mut body, call, id);
        session.post(&mut request, &body);
        let answer = connection.exchange(&request).await?;
        check(&answer, call, id)?;
        let answer = connection.exchange(&session.delete()).await?;
        if !matches!(answer.status, 200..=204) {
            bail!("DELETE: HTTP {}", answer.status);
        }
        now = Instant::now();
        latencies.push(nanos(now - began));
    }
    Ok(LoadResult {
        latencies,
        finished: now,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_shown_in_its_own_words_but_an_error_page_is_not() {
        let shown = |body: &[u8]| {
            refusal(&Answer {
                status: 503,
                session: None,
                body,
            })
        };
        assert_eq!(
            shown(br#"{"error":{"code":1,"message":"full"}}"#),
            "HTTP 503: full"
        );
        assert_eq!(shown(b"busy\n"), "HTTP 503: busy");
        assert_eq!(shown(b"<html>/home/me"), "HTTP 503");
    }

    #[test]
    fn an_outcome_gives_rates_and_shares() {
        let latencies = (1..=100).rev().map(|micros| micros * 1000).collect();
        let outcome = Outcome::new(100, Duration::from_secs(2), Duration::from_millis(1), latencies);
        assert_eq!(outcome.rate(), 50.0);
        assert_eq!(outcome.cpu_per_call(), 10.0);
        assert_eq!((outcome.latency(0.5), outcome.latency(0.99)), (51.0, 100.0));
    }
}
