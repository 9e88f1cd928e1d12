//! Notifications to many streams: how many arrive, whether in order, and what each costs.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use memchr::memmem;
use tokio::task::JoinSet;

use crate::connection::{Connection, Stream};
use crate::load::{Target, check, open_sessions};
use crate::meter;
use crate::request::{Call, Session};

/// After so long without a delivery nothing more is expected.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(5);

/// How many of what.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub notices: usize,
    pub sessions: usize,
    pub streams_per_session: usize,
}

/// What a fan-out gave.
#[derive(Debug, Clone, Copy)]
pub struct Delivery {
    pub wanted: u64,
    pub delivered: u64,
    pub elapsed: Duration,
    pub cpu: Duration,
}

#[derive(Debug)]
struct Count {
    delivered: Cell<u64>,
    last: Cell<Instant>,
    disorder: Cell<u64>,
}

/// Opens the streams of so many sessions.
pub async fn open_streams(
    target: &Target,
    sessions: &[Session],
    per_session: usize,
) -> anyhow::Result<Vec<Stream>> {
    let mut streams = Vec::new();
    for session in sessions {
        for number in 0..per_session {
            let connection = Connection::open(target.address).await?;
            let stream = connection
                .open_stream(&session.listen())
                .await
                .map_err(|error| anyhow::anyhow!("stream {} of a session: {error:#}", number + 1))?;
            streams.push(stream);
        }
    }
    Ok(streams)
}

/// Has the server notify all sessions, and counts what comes.
pub async fn run(target: &Target, plan: Plan) -> anyhow::Result<Delivery> {
    let sessions = open_sessions(target, plan.sessions).await?;
    let streams = open_streams(target, &sessions, plan.streams_per_session).await?;
    let wanted = (streams.len() * plan.notices) as u64;
    let cpu = meter::cpu(target.pid)?;
    let started = Instant::now();
    let count = Rc::new(Count {
        delivered: Cell::new(0),
        last: Cell::new(started),
        disorder: Cell::new(0),
    });
    let mut readers = JoinSet::new();
    for stream in streams {
        readers.spawn_local(read(stream, Rc::clone(&count)));
    }
    let call = Call::Notify { count: plan.notices };
    let (mut body, mut request) = (Vec::new(), Vec::new());
    let session = sessions.first().context("there is a session")?;
    session.write_call(&mut body, call, 7);
    session.post(&mut request, &body);
    let mut connection = Connection::open(target.address).await?;
    let answer = connection.exchange(&request).await?;
    check(&answer, call, 7)?;
    while count.delivered.get() < wanted && count.last.get().elapsed() < PATIENCE {
        tokio::time::sleep(LOOK).await;
    }
    let cpu = meter::cpu(target.pid)? - cpu;
    if count.disorder.get() > 0 {
        bail!("{} notifications came out of order", count.disorder.get());
    }
    if count.delivered.get() == 0 {
        bail!("none reached the GET streams");
    }
    Ok(Delivery {
        wanted,
        delivered: count.delivered.get(),
        elapsed: count.last.get() - started,
        cpu,
    })
}

async fn read(mut stream: Stream, count: Rc<Count>) -> anyhow::Result<()> {
    let finder = memmem::Finder::new(b"\"notice\":");
    let mut pending = Vec::new();
    let mut newest = 0;
    while stream.more(&mut pending).await? {
        // Only whole events are looked at; the rest waits for its end.
        let Some(end) = memmem::rfind(&pending, b"\n") else {
            continue;
        };
        let mut found = 0;
        for at in finder.find_iter(&pending[..end]) {
            let digits = pending[at + 9..end]
                .iter()
                .take_while(|byte| byte.is_ascii_digit());
            let number = digits.fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
            if number <= newest {
                count.disorder.set(count.disorder.get() + 1);
            }
            newest = number;
            found += 1;
        }
        pending.drain(..=end);
        if found > 0 {
            count.delivered.set(count.delivered.get() + found);
            count.last.set(Instant::now());
        }
    }
    Ok(())
}
