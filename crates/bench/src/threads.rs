//! What a second thread is worth: small calls beside large messages, and calls that are more work.
//!
//! The load and the children share the two processors with Rialto. So large messages come at a rate
//! that leaves the machine idle time: otherwise the small calls would wait for a processor in any
//! case. Heavy calls fill both processors: there each line shows what the load itself took.

use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};

use crate::load::{self, Outcome, Pace, Target, Until};
use crate::meter;
use crate::request::{Call, Session};
use crate::row::Effort;
use crate::runner::print_line;
use crate::system::{Programs, Running, Setup, System};

const SMALL: Call = Call::Echo { padding: 0 };
/// Few enough that one thread has time for all of them.
const SMALL_CALLS: Pace = Pace {
    call: SMALL,
    per_second: 200,
    connections: 16,
};
/// Each keeps one thread busy for about a hundredth of a second, so that one thread is busy with
/// them for a quarter of the time.
const LARGE_MESSAGES: Pace = Pace {
    call: Call::Echo { padding: 10_000_000 },
    per_second: 20,
    connections: 2,
};
/// More than Rialto remembers, so that the signature of each is checked.
const MANY_TOKENS: usize = 8192;

/// What one thread gave, and two.
#[derive(Debug, Clone, Copy)]
pub struct Compared {
    pub one: f64,
    pub two: f64,
}

impl Compared {
    /// Two threads against one.
    pub fn gain(self) -> f64 {
        self.two / self.one
    }
}

/// How often the callers of heavy calls come with the same token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// Always, so that Rialto remembers that its signature is good.
    Remembered,
    /// So seldom that each signature is checked anew.
    Checked,
}

/// The time in which 99 of 100 small calls are answered while large messages flow, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Beside {
    /// The large messages flow through another destination of the same Rialto.
    pub one_thread: f64,
    pub two_threads: f64,
    /// They flow through another Rialto: what is left is the machine's, which all processes share.
    pub another_process: f64,
}

pub async fn beside_large_messages(programs: &Programs, effort: Effort) -> anyhow::Result<Beside> {
    let start = |threads| System::Rialto.start(Setup::Beside { threads }, programs);
    let mut same = [0.0; 2];
    for (threads, p99) in [1, 2].into_iter().zip(&mut same) {
        let running = start(threads)?;
        *p99 = beside(&running, &running, effort, &format!("{threads} threads")).await?;
        running.stop().await?;
    }
    let (running, other) = (start(1)?, start(1)?);
    let another_process = beside(&running, &other, effort, "two processes").await?;
    running.stop().await?;
    other.stop().await?;
    let [one_thread, two_threads] = same;
    Ok(Beside {
        one_thread,
        two_threads,
        another_process,
    })
}

/// Returns the 99th percentile of small calls at one Rialto, in milliseconds, while large messages
/// flow through `busy`.
async fn beside(running: &Running, busy: &Running, effort: Effort, what: &str) -> anyhow::Result<f64> {
    let (mut small, mut large) = (running.target.clone(), busy.target.clone());
    small.paths.truncate(1);
    large.paths.remove(0);
    let sessions = load::open_sessions(&small, 16).await?;
    load::closed_loop(&small, &sessions, 4, SMALL, Until::Passed(effort.time / 5)).await?;
    let time = 3 * effort.time;
    let flow = thread::spawn(move || flow(&large, time));
    let outcome = load::paced(&small, &sessions, SMALL_CALLS, time).await?;
    let large = flow.join().map_err(|_| anyhow!("the large messages stopped"))??;
    let p99 = outcome.latency(0.99) / 1e3;
    print_line(&format!(
        "  {what}: small calls p50 {:.2} ms, p99 {p99:.2} ms beside {:.1} large messages a second (p50 {:.1} ms); \
         the Rialto of the small calls uses {:.2} processors",
        outcome.latency(0.5) / 1e3,
        large.rate(),
        large.latency(0.5) / 1e3,
        outcome.cpu.as_secs_f64() / outcome.elapsed.as_secs_f64(),
    ));
    Ok(p99)
}

/// Sends large messages from a thread of their own: the small calls must not wait for them here.
fn flow(target: &Target, time: Duration) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let sessions = load::open_sessions(target, 1).await?;
        load::paced(target, &sessions, LARGE_MESSAGES, time).await
    })
}

/// Calls per second with TLS, signed tokens and an audit log with bodies.
pub async fn heavy_calls(programs: &Programs, effort: Effort, tokens: Tokens) -> anyhow::Result<Compared> {
    let mut measured = [0.0; 2];
    for (threads, rate) in [1, 2].into_iter().zip(&mut measured) {
        let running = System::Rialto.start(Setup::Heavy { threads }, programs)?;
        let target = &running.target;
        let sessions = sessions(&running, tokens).await?;
        load::closed_loop(target, &sessions, 64, SMALL, Until::Passed(effort.time / 5)).await?;
        let (own, began) = (meter::cpu(std::process::id())?, Instant::now());
        let outcome = load::closed_loop(target, &sessions, 64, SMALL, Until::Passed(effort.time)).await?;
        let (own, took) = (meter::cpu(std::process::id())? - own, began.elapsed());
        running.stop().await?;
        *rate = outcome.rate();
        print_line(&format!(
            "  {threads} threads: {:.0} calls/s with TLS, signed tokens ({tokens:?}) and bodies in the audit log; \
             Rialto uses {:.2} processors, {:.1} µs a call, the load {:.2}",
            *rate,
            outcome.cpu.as_secs_f64() / took.as_secs_f64(),
            outcome.cpu_per_call(),
            own.as_secs_f64() / took.as_secs_f64(),
        ));
    }
    let [one, two] = measured;
    Ok(Compared { one, two })
}

/// Opens sessions whose calls show the same token, or others each time.
async fn sessions(running: &Running, tokens: Tokens) -> anyhow::Result<Rc<Vec<Session>>> {
    const SESSIONS: usize = 16;
    let target = &running.target;
    let path = target.paths.first().context("a target has a path")?;
    match tokens {
        Tokens::Remembered => load::open_sessions(target, SESSIONS).await,
        Tokens::Checked => {
            let issuer = running.issuer.as_ref().context("heavy calls have an issuer")?;
            let audience = format!("https://{}{path}", target.address);
            let mut connection = target.connect().await?;
            let mut opened = Vec::new();
            for _ in 0..SESSIONS {
                opened.push(load::open_id(&mut connection, target, path).await?);
            }
            let shown = opened.iter().cycle().take(MANY_TOKENS).enumerate();
            let shown = shown.map(|(number, id)| {
                let token = issuer.numbered_token(&audience, number);
                Session::new(target.front_with(path, &token), id)
            });
            Ok(Rc::new(shown.collect()))
        }
    }
}
