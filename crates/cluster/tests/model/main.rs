//! Several replicas in virtual time: delays, lost answers, deaths, pauses, partitions, drains, and a
//! registry that loses everything. A judge of its own checks what every replica may rely on.
//!
//! A seed is a world. `RIALTO_MODEL_SEED` runs one and prints its history.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod engine;
mod judge;
mod world;

use engine::Mutation;
use world::{Options, World};

/// Worlds that each test runs.
const SEEDS: u64 = 300;

/// Runs one world and returns what was wrong in it.
fn run(seed: u64, options: Options) -> Vec<String> {
    let mut world = World::new(seed, options);
    world.run();
    world.violations()
}

/// Runs the one world that the environment names, with its history. Returns whether there is one.
fn replayed(options: Options) -> bool {
    let Some(seed) = std::env::var_os("RIALTO_MODEL_SEED") else {
        return false;
    };
    let seed = seed.to_str().and_then(|seed| seed.parse().ok()).unwrap();
    let violations = run(
        seed,
        Options {
            prints: true,
            ..options
        },
    );
    assert!(violations.is_empty(), "{violations:#?}");
    true
}

#[test]
fn ownership_holds_in_random_worlds() {
    if replayed(Options::default()) {
        return;
    }
    let mut served = 0;
    let mut taken = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Options::default());
        world.run();
        let violations = world.violations();
        assert!(violations.is_empty(), "RIALTO_MODEL_SEED={seed}: {violations:#?}");
        served += world.judge.served;
        taken += world.judge.taken;
    }
    // The worlds are worth something only if requests are served and sessions change their owners.
    assert!(
        served > 50 * SEEDS && taken > 2 * SEEDS,
        "{served} served, {taken} taken over"
    );
}

#[test]
fn directory_that_lost_everything_has_one_owner_again_in_the_end() {
    let options = Options {
        loses_everything: true,
        ..Options::default()
    };
    if replayed(options) {
        return;
    }
    for seed in 0..SEEDS {
        let violations = run(seed, options);
        assert!(violations.is_empty(), "RIALTO_MODEL_SEED={seed}: {violations:#?}");
    }
}

/// Runs worlds with a broken rule until the judge notices it.
fn is_noticed(mutation: Mutation, words: &str) {
    let options = Options {
        mutation,
        ..Options::default()
    };
    let mut seen = Vec::new();
    for seed in 0..SEEDS {
        seen = run(seed, options);
        if seen.iter().any(|violation| violation.contains(words)) {
            return;
        }
    }
    panic!("{SEEDS} worlds with {mutation:?}, and the judge noticed nothing of {words:?}: {seen:#?}");
}

#[test]
fn take_over_without_the_epoch_is_noticed() {
    is_noticed(Mutation::NoEpoch, "another epoch was seen");
}

#[test]
fn take_over_of_a_living_owner_is_noticed() {
    is_noticed(Mutation::NoLease, "its owner lives");
}

#[test]
fn take_over_that_keeps_the_epoch_is_noticed() {
    is_noticed(Mutation::SameEpoch, "two owners of one epoch");
}

#[test]
fn record_written_over_a_higher_epoch_is_noticed() {
    is_noticed(Mutation::WriteOver, "an epoch fell");
}

#[test]
fn lease_that_comes_back_is_noticed() {
    is_noticed(Mutation::RenewsEnded, "an ended lease was renewed");
}

#[test]
fn copy_that_is_not_dropped_is_noticed() {
    is_noticed(Mutation::KeepsCopy, "has a copy");
}

#[test]
fn request_sent_again_after_an_uncertain_end_is_noticed() {
    is_noticed(Mutation::SendsAgain, "ran twice");
}
