//! What open pages cost: calls at a fixed rate with so many event streams of the page, against the
//! same calls with none.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail};
use memchr::memmem;
use tokio::task::JoinSet;

use crate::connection::Stream;
use crate::load::{self, Outcome, Pace, Target};
use crate::request::{Call, Session};
use crate::row::Effort;
use crate::system::{Programs, Setup, System};

const PAGES: usize = 10;
const PACE: Pace = Pace {
    call: Call::Echo { padding: 0 },
    per_second: 10_000,
    connections: 64,
};
/// A load that falls behind measures another rate.
const LEAST: f64 = 0.95;
const SESSIONS: usize = 16;
/// Turns without pages and with them; the median of each counts.
const TURNS: usize = 5;
/// A page is sent something four times a second, and the whole state every five seconds.
const SHORTEST: Duration = Duration::from_secs(1);
/// All turns together end within the time that a row has.
const LONGEST: Duration = Duration::from_secs(5);
/// Stands at the beginning of each event with ended calls, and nowhere else.
const MARK: &[u8] = b"event: calls\n";

/// What pages cost.
#[derive(Debug)]
pub(crate) struct Cost {
    /// Processor time with pages, against none.
    pub(crate) factor: f64,
    /// What the pages add, of one processor.
    pub(crate) share: f64,
}

/// Measures both in one process, in turns.
pub(crate) async fn measure(programs: &Programs, effort: Effort) -> anyhow::Result<Cost> {
    let running = System::Rialto.start(Setup::Plain, programs)?;
    let measured = compare(&running.target, effort.time.clamp(SHORTEST, LONGEST)).await;
    running.stop().await?;
    measured
}

async fn compare(target: &Target, time: Duration) -> anyhow::Result<Cost> {
    let sessions = load::open_sessions(target, SESSIONS).await?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for turn in 0..=TURNS {
        let alone = paced(target, &sessions, time).await?;
        let pages = Pages::open(target).await?;
        let watched = paced(target, &sessions, time).await;
        pages.close()?;
        // The first turn warms up.
        if turn > 0 {
            without.push(share(&alone));
            with.push(share(&watched?));
        } else {
            watched?;
        }
    }
    let (without, with) = (median(without), median(with));
    Ok(Cost {
        factor: with / without,
        share: with - without,
    })
}

async fn paced(target: &Target, sessions: &Rc<Vec<Session>>, time: Duration) -> anyhow::Result<Outcome> {
    let outcome = load::paced(target, sessions, PACE, time).await?;
    let wanted = f64::from(PACE.per_second);
    if outcome.rate() < wanted * LEAST {
        bail!("only {:.0} of {wanted} calls a second were made", outcome.rate());
    }
    Ok(outcome)
}

/// Returns how much of one processor was used.
fn share(outcome: &Outcome) -> f64 {
    outcome.cpu.as_secs_f64() / outcome.elapsed.as_secs_f64()
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Open event streams of the page, each with a reader.
#[derive(Debug)]
struct Pages {
    readers: JoinSet<anyhow::Result<()>>,
    /// Events with ended calls that each page was sent.
    events: Vec<Rc<Cell<u64>>>,
}

impl Pages {
    async fn open(target: &Target) -> anyhow::Result<Self> {
        let request = format!(
            "GET /ui/api/events HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n\r\n",
            target.address
        );
        let mut pages = Self {
            readers: JoinSet::new(),
            events: Vec::new(),
        };
        for _ in 0..PAGES {
            let connection = target.connect().await?;
            let stream = connection.open_stream(request.as_bytes()).await;
            let stream = stream.context("the page has no event stream")?;
            let events = Rc::new(Cell::new(0));
            pages.readers.spawn_local(read(stream, Rc::clone(&events)));
            pages.events.push(events);
        }
        Ok(pages)
    }

    /// Closes them. A page that was sent no calls has cost nothing, so that is an error.
    fn close(mut self) -> anyhow::Result<()> {
        if let Some(ended) = self.readers.try_join_next() {
            ended.context("a reader failed")??;
            bail!("an event stream of the page ended");
        }
        // Each begins with what was kept before it.
        let idle = self.events.iter().filter(|events| events.get() < 2).count();
        if idle > 0 {
            bail!("{idle} of {PAGES} pages were sent no calls");
        }
        Ok(())
    }
}

async fn read(mut stream: Stream, events: Rc<Cell<u64>>) -> anyhow::Result<()> {
    let mut pending = Vec::new();
    while stream.more(&mut pending).await? {
        // What is cut off may be the beginning of a mark.
        let Some(end) = memmem::rfind(&pending, b"\n\n") else {
            continue;
        };
        let found = memmem::find_iter(&pending[..end], MARK).count() as u64;
        events.set(events.get() + found);
        pending.drain(..end + 2);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_of_one_processor_and_the_middle_counts() {
        let outcome = Outcome::new(1, Duration::from_secs(2), Duration::from_millis(500), vec![1]);
        assert_eq!(share(&outcome), 0.25);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
