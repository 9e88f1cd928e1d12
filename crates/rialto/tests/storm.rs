//! Many sessions with equal ids through one child, also while it is killed: every answer reaches
//! its own caller, nothing is unanswered, nothing runs twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use testkit::processes::send_signal;
use testkit::{Journal, LEGACY, McpClient, Result, Rialto, wait_until};
use tokio::task::JoinSet;

const SESSIONS: usize = 200;
const PATIENCE: Duration = Duration::from_secs(60);

/// Numbers that look random and are the same in every run with the same seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

async fn sessions(rialto: &Rialto) -> Result<Vec<McpClient>> {
    let mut tasks = JoinSet::new();
    for _ in 0..SESSIONS {
        let url = rialto.url();
        tasks.spawn(async move {
            let client = McpClient::connect(&url).await?;
            client.handshake(LEGACY, json!({})).await?;
            Result::Ok(client)
        });
    }
    let clients: Result<Vec<_>> = tasks.join_all().await.into_iter().collect();
    clients
}

async fn stormy() -> Result<Rialto> {
    Rialto::launcher()
        .args(&["--max-sessions", "200"])
        .stub(&["--strict"])
        .start()
        .await
}

/// How a call ended, as far as a caller can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Answered,
    Unavailable,
}

/// One call with id 1; the answer must be its own.
async fn call(client: &McpClient, marker: &str, delay: u64) -> Result<Ending> {
    let reply = client
        .call(1, "delay", json!({"ms": delay, "marker": marker}))
        .await?;
    assert_eq!(reply.raw("id").as_deref(), Some("1"), "{marker}");
    match reply.status {
        200 if reply.answer().get("error").is_none() => {
            assert_eq!(reply.text(), marker);
            Ok(Ending::Answered)
        }
        // A stream that had begun has the same in its last event.
        200 | 503 => {
            assert_eq!(
                reply.error_code(),
                Some(-32603),
                "{marker}: {}",
                reply.answer_text()
            );
            Ok(Ending::Unavailable)
        }
        status => panic!("{marker}: {status} {}", reply.answer_text()),
    }
}

/// How many times each marker was executed, by all children together.
fn executions(journal: &Journal) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for entry in journal.events("executed") {
        let marker = entry["marker"].as_str().unwrap_or_default().to_owned();
        *counts.entry(marker).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_sessions_with_equal_ids_get_their_own_answers() -> Result<()> {
    const ROUNDS: usize = 10;
    let rialto = stormy().await?;
    let mut tasks = JoinSet::new();
    for (number, client) in sessions(&rialto).await?.into_iter().enumerate() {
        tasks.spawn(async move {
            let mut dice = Dice(number as u64);
            for round in 0..ROUNDS {
                // Two at once within the session too, with the same id.
                let (one, two) = (format!("{number}/{round}/a"), format!("{number}/{round}/b"));
                let (delay, other) = (dice.below(30), dice.below(30));
                let (first, second) = tokio::join!(call(&client, &one, delay), call(&client, &two, other));
                assert_eq!((first?, second?), (Ending::Answered, Ending::Answered));
            }
            Result::Ok(())
        });
    }
    for done in tasks.join_all().await {
        done?;
    }
    let counts = executions(&rialto.journal());
    assert_eq!(counts.len(), SESSIONS * ROUNDS * 2);
    assert!(counts.values().all(|count| *count == 1));
    assert_eq!(rialto.journal().received("initialize").len(), 1);
    Ok(())
}

/// Three kills, since more restarts than that within a minute are refused by design.
async fn storm_with_kills(seed: u64) -> Result<()> {
    const ROUNDS: usize = 12;
    const CALLS: usize = SESSIONS * ROUNDS;
    let rialto = stormy().await?;
    let clients = sessions(&rialto).await?;
    let finished = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for (number, client) in clients.iter().cloned().enumerate() {
        let finished = Arc::clone(&finished);
        tasks.spawn(async move {
            let mut dice = Dice(seed ^ (number as u64) << 20);
            let mut endings = Vec::new();
            for round in 0..ROUNDS {
                let marker = format!("{number}/{round}");
                let ending = call(&client, &marker, dice.below(20)).await?;
                finished.fetch_add(1, Ordering::Relaxed);
                endings.push((marker, ending));
            }
            Result::Ok(endings)
        });
    }
    let mut dice = Dice(seed);
    for kill in 0..3 {
        // Somewhere in the first, the second and the third quarter of all calls.
        let quarter = CALLS / 4;
        let moment = kill * quarter + dice.below(quarter as u64) as usize;
        wait_until("enough calls have ended", PATIENCE, || {
            (finished.load(Ordering::Relaxed) >= moment).then_some(())
        })
        .await;
        let starts = kill + 1;
        let pid = wait_until("the child runs", PATIENCE, || {
            rialto.journal().starts().get(starts - 1).copied()
        })
        .await;
        send_signal(pid, Signal::KILL);
        wait_until("it is started again", PATIENCE, || {
            (rialto.journal().starts().len() > starts).then_some(())
        })
        .await;
    }

    let mut endings = Vec::new();
    for done in tasks.join_all().await {
        endings.extend(done?);
    }
    let counts = executions(&rialto.journal());
    assert_eq!(endings.len(), CALLS, "seed {seed}: every call ends");
    for (marker, ending) in &endings {
        let runs = counts.get(marker).copied().unwrap_or(0);
        match ending {
            Ending::Answered => assert_eq!(runs, 1, "seed {seed}: {marker}"),
            Ending::Unavailable => assert!(runs <= 1, "seed {seed}: {marker} ran {runs} times"),
        }
    }
    let answered = endings
        .iter()
        .filter(|(_, ending)| *ending == Ending::Answered)
        .count();
    assert!(
        answered > CALLS / 2,
        "seed {seed}: only {answered} of {CALLS} were answered"
    );
    assert!(
        answered < CALLS,
        "seed {seed}: no call was in the child when it was killed"
    );
    for (number, client) in clients.iter().enumerate() {
        let ending = call(client, &format!("{number}/after"), 0).await?;
        assert_eq!(
            ending,
            Ending::Answered,
            "seed {seed}: session {number} is still valid"
        );
    }
    assert_eq!(
        rialto.journal().received("initialize").len(),
        4,
        "one handshake for each child"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_sessions_outlive_a_child_that_is_killed_at_random() -> Result<()> {
    storm_with_kills(0x0a11_ce55).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_sessions_outlive_a_child_that_is_killed_at_other_moments() -> Result<()> {
    storm_with_kills(0x5eed_0002).await
}
