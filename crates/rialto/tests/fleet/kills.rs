//! Replicas that are killed, paused and cut off at random while sessions call.
//!
//! The suite has some dozens of faults. `FLEET_FAULTS` and `FLEET_SESSIONS` set other numbers, for
//! the record: `FLEET_FAULTS=1000 FLEET_SESSIONS=200 cargo test -p rialto --test fleet kills`.
//! `FLEET_SEED` chooses other faults, and `FLEET_SUMMARY` names a file for how the calls ended.

use std::io::Write as _;

use testkit::{Fleet, FleetConfig, Result};

use super::fixture::{Ending, Load, number_from};

/// Reasons with which a call may end while replicas fail.
const REASONS: [&str; 10] = [
    "fleet_busy",
    "owner_lost",
    "owner_unreachable",
    "registry_unavailable",
    "none_ready",
    "draining",
    "session_ended",
    "upstream_exited",
    "upstream_unavailable",
    "overloaded",
];

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Pause,
    CutFromEngine,
    CutFromPeers,
}

async fn suffer(fleet: &mut Fleet, load: &Load, replica: usize, fault: Fault) -> Result<()> {
    match fault {
        Fault::Kill => {
            fleet.kill(replica).await?;
            fleet.up(replica).await?;
        }
        Fault::Pause => {
            fleet.pause(replica)?;
            load.goes_on(fleet.size()).await;
            fleet.resume(replica)?;
        }
        Fault::CutFromEngine => {
            fleet.replica(replica).engine_link().cut();
            load.goes_on(20).await;
            fleet.replica(replica).engine_link().mend();
        }
        Fault::CutFromPeers => {
            fleet.replica(replica).peer_link().cut();
            load.goes_on(20).await;
            fleet.replica(replica).peer_link().mend();
        }
    }
    Ok(())
}

/// Fails replicas at random, and checks the history.
async fn storm(seed: u64, faults: usize, sessions: usize, kinds: &[Fault]) -> Result<()> {
    let settings = format!("process: shared, max_sessions: {}", sessions * 4);
    let config = FleetConfig::of_stub(&settings).with_peer_links();
    let mut fleet = config.start().await?;
    let load = Load::start(&fleet, sessions).await?;
    let seed = seed ^ number_from("FLEET_SEED", 0) as u64;
    let mut dice = Dice(seed);
    for _ in 0..faults {
        let replica = usize::try_from(dice.below(fleet.size() as u64)).unwrap_or(0);
        let kind = usize::try_from(dice.below(kinds.len() as u64)).unwrap_or(0);
        let fault = kinds.get(kind).copied().unwrap_or(Fault::Kill);
        suffer(&mut fleet, &load, replica, fault).await?;
        load.goes_on(usize::try_from(dice.below(60)).unwrap_or(0)).await;
    }
    let answered = load.answered();
    let endings = load.finish(&fleet).await?;
    for ending in endings.keys() {
        match ending {
            Ending::Refused(reason) | Ending::Failed(reason) => {
                assert!(REASONS.contains(&reason.as_str()), "seed {seed}: {reason}");
            }
            Ending::Answered | Ending::Broken => {}
        }
    }
    assert!(answered > 0, "seed {seed}: no call was answered");
    let summary = format!("seed {seed}: {faults} faults, {sessions} sessions: {endings:?}\n");
    // For the record of a long run.
    if let Some(file) = std::env::var_os("FLEET_SUMMARY") {
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file)?
            .write_all(summary.as_bytes())?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_outlive_replicas_that_are_killed_at_random() -> Result<()> {
    let faults = number_from("FLEET_FAULTS", 24);
    storm(
        0x0a11_ce55,
        faults,
        number_from("FLEET_SESSIONS", 24),
        &[Fault::Kill],
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_outlive_pauses_and_partitions_at_random() -> Result<()> {
    let kinds = [
        Fault::Kill,
        Fault::Pause,
        Fault::CutFromEngine,
        Fault::CutFromPeers,
    ];
    let faults = number_from("FLEET_FAULTS", 24);
    storm(0x5eed_0003, faults, number_from("FLEET_SESSIONS", 24), &kinds).await
}
