//! What a second thread is worth: small calls beside large messages, and calls that are more work.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow};

use crate::load::{self, Target, Until};
use crate::request::Call;
use crate::row::Effort;
use crate::runner::print_line;
use crate::system::{Programs, Setup, System};

const SMALL: Call = Call::Echo { padding: 0 };
const LARGE: Call = Call::Echo { padding: 10_000_000 };
/// Small calls a second: few enough that one thread has time for all of them.
const PER_SECOND: u32 = 200;

/// What one thread gave, and two.
#[derive(Debug, Clone, Copy)]
pub struct Compared {
    pub one: f64,
    pub two: f64,
}

/// The time in which 99 of 100 small calls are answered while large messages flow through another
/// destination, in milliseconds.
pub async fn beside_large_messages(programs: &Programs, effort: Effort) -> anyhow::Result<Compared> {
    let mut measured = [0.0; 2];
    for (threads, p99) in [1, 2].into_iter().zip(&mut measured) {
        let running = System::Rialto.start(Setup::Beside { threads }, programs)?;
        let (mut small, mut large) = (running.target.clone(), running.target.clone());
        small.paths.truncate(1);
        large.paths.remove(0);
        let sessions = load::open_sessions(&small, 16).await?;
        load::closed_loop(&small, &sessions, 4, SMALL, Until::Passed(effort.time / 5)).await?;
        let time = 3 * effort.time;
        let flow = thread::spawn(move || flow(&large, time));
        let outcome = load::paced(&small, &sessions, PER_SECOND, time).await?;
        let messages = flow.join().map_err(|_| anyhow!("the large messages stopped"))??;
        running.stop().await?;
        *p99 = outcome.latency(0.99) / 1e3;
        print_line(&format!(
            "  {threads} threads: small calls p50 {:.2} ms, p99 {:.2} ms beside {messages:.1} large messages a second",
            outcome.latency(0.5) / 1e3,
            *p99,
        ));
    }
    let [one, two] = measured;
    Ok(Compared { one, two })
}

/// Sends large messages, one after the other, from a thread of their own: the small calls must not
/// wait for them here.
fn flow(target: &Target, time: Duration) -> anyhow::Result<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let sessions = load::open_sessions(target, 1).await?;
        let outcome = load::closed_loop(target, &sessions, 1, LARGE, Until::Passed(time)).await?;
        Ok(outcome.rate())
    })
}

/// Calls per second with TLS, signed tokens and an audit log with bodies.
pub async fn heavy_calls(programs: &Programs, effort: Effort) -> anyhow::Result<Compared> {
    let mut measured = [0.0; 2];
    for (threads, rate) in [1, 2].into_iter().zip(&mut measured) {
        let running = System::Rialto.start(Setup::Heavy { threads }, programs)?;
        let target = &running.target;
        let sessions = load::open_sessions(target, 16).await?;
        load::closed_loop(target, &sessions, 64, SMALL, Until::Passed(effort.time / 5)).await?;
        let outcome = load::closed_loop(target, &sessions, 64, SMALL, Until::Passed(effort.time)).await?;
        running.stop().await?;
        *rate = outcome.rate();
        print_line(&format!(
            "  {threads} threads: {:.0} calls/s with TLS, signed tokens and bodies in the audit log, {:.1} µs of processor each",
            *rate,
            outcome.cpu_per_call(),
        ));
    }
    let [one, two] = measured;
    Ok(Compared { one, two })
}
