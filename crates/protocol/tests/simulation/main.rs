//! Deterministic simulation of the core: random clients, servers, crashes and delays, one seed
//! each.
//!
//! `RIALTO_SIMULATION_SEEDS=n` runs n seeds instead of 1,000, from 0 or from
//! `RIALTO_SIMULATION_FIRST`; `RIALTO_SIMULATION_SEED=s` runs one and prints its history. `cargo
//! xtask simulate` sets all three. Some clients and some servers are of the modern era, in every
//! combination. Every fourth run has an aggregate of up to four members, which clients of both eras
//! call beside the members themselves. The judge in `simulation/check.rs` knows nothing of the
//! machines: it reads what happened at the edges.
#![expect(
    clippy::disallowed_methods,
    reason = "a test takes its seeds from outside, and uses every core"
)]

mod aggregate;
mod check;
mod clients;
#[path = "../properties/corpus.rs"]
mod corpus;
mod dice;
mod eras;
mod history;
mod members;
mod modern_requests;
mod run;
mod server;
mod tasks;

use std::collections::BTreeMap;
use std::io::Write as _;

use history::Fact;
use proptest::test_runner::FileFailurePersistence;
use run::{Mutation, SimulationRun};

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn the_promises_hold_for_random_seeds() {
    if let Some(seed) = from_environment("RIALTO_SIMULATION_SEED") {
        let history = SimulationRun::new(seed, None).run();
        let wrongs = check::check(&history);
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", history.print()).expect("stdout is there");
        assert!(wrongs.is_empty(), "seed {seed}:\n{}", wrongs.join("\n"));
        return;
    }
    let first = from_environment("RIALTO_SIMULATION_FIRST").unwrap_or(0);
    let seeds = from_environment("RIALTO_SIMULATION_SEEDS").unwrap_or(1000);
    let threads = std::thread::available_parallelism()
        .map_or(1, |count| count.get() as u64)
        .min(4);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                scope.spawn(move || {
                    (first + worker..first + seeds)
                        .step_by(threads as usize)
                        .filter_map(|seed| {
                            // A machine that panics is a finding like any other, and must name its
                            // seed.
                            let wrongs = std::panic::catch_unwind(|| {
                                check::check(&SimulationRun::new(seed, None).run())
                            })
                            .unwrap_or_else(|_| vec!["a machine panicked".into()]);
                            (!wrongs.is_empty()).then(|| format!("seed {seed}: {}", wrongs.join("; ")))
                        })
                        .take(5)
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("a worker does not panic"))
            .collect()
    });
    assert!(
        failures.is_empty(),
        "replay with RIALTO_SIMULATION_SEED=n:\n{}",
        failures.join("\n")
    );
}

/// The first seed whose history the judge finds fault with.
fn caught(mutation: Mutation, within: u64) -> (u64, Vec<String>) {
    (0..within)
        .map(|seed| {
            (
                seed,
                check::check(&SimulationRun::new(seed, Some(mutation)).run()),
            )
        })
        .find(|(_, wrongs)| !wrongs.is_empty())
        .unwrap_or_else(|| panic!("{mutation:?} went unnoticed in {within} seeds"))
}

fn is_caught_as(mutation: Mutation, words: &[&str]) {
    is_caught_within(mutation, words, 30);
}

fn is_caught_within(mutation: Mutation, words: &[&str], seeds: u64) {
    let (seed, wrongs) = caught(mutation, seeds);
    assert!(
        wrongs
            .iter()
            .any(|wrong| words.iter().any(|word| wrong.contains(word))),
        "{mutation:?}, seed {seed}: {wrongs:?}"
    );
}

#[test]
fn a_dropped_answer_is_noticed() {
    is_caught_as(Mutation::DropAnAnswer, &["never ended"]);
}

#[test]
fn two_swapped_answers_are_noticed() {
    is_caught_as(Mutation::SwapTwoAnswers, &["its server wrote"]);
}

#[test]
fn a_forgotten_cancellation_is_noticed() {
    is_caught_as(
        Mutation::ForgetACancel,
        &["without a cancellation for its server"],
    );
}

#[test]
fn a_call_sent_twice_is_noticed() {
    is_caught_as(Mutation::ReplayACall, &["was executed 2 times"]);
}

#[test]
fn a_message_to_another_principal_is_noticed() {
    is_caught_as(
        Mutation::TellAStranger,
        &["read what was caused by session", "read another backend"],
    );
}

#[test]
fn a_question_to_another_principal_is_noticed() {
    is_caught_as(Mutation::AskAStranger, &["read what principal"]);
}

#[test]
fn a_repeated_event_is_noticed() {
    is_caught_as(Mutation::RepeatAnEvent, &["read event"]);
}

#[test]
fn a_lost_answer_to_a_server_is_noticed() {
    is_caught_as(Mutation::LoseAnAnswer, &["was never answered"]);
}

#[test]
fn a_task_shown_to_another_principal_is_noticed() {
    is_caught_within(
        Mutation::ShowATask,
        &["was shown a task of another", "its server wrote"],
        300,
    );
}

#[test]
fn a_listen_that_receives_what_it_did_not_request_is_noticed() {
    is_caught_within(Mutation::TellAListen, &["a listen"], 100);
}

#[test]
fn an_era_concluded_from_silence_is_noticed() {
    is_caught_within(Mutation::JudgeSilence, &["was not served"], 300);
}

#[test]
fn an_era_concluded_from_a_translated_answer_is_noticed() {
    is_caught_within(Mutation::JudgeATranslation, &["was not served"], 300);
}

#[test]
fn a_call_that_never_times_out_is_noticed() {
    is_caught_within(Mutation::NeverTimeOut, &["never ended", "too late"], 100);
}

#[test]
fn calls_repeated_after_a_restart_of_the_gateway_are_noticed() {
    is_caught_as(Mutation::RepeatCallsAfterRestart, &["was executed 2 times"]);
}

#[test]
fn a_call_to_another_member_is_noticed() {
    is_caught_as(Mutation::CallAnother, &["was given call"]);
}

#[test]
fn a_cancellation_of_every_member_is_noticed() {
    is_caught_within(Mutation::CancelEverywhere, &["was asked to cancel call"], 300);
}

#[test]
fn an_answer_to_another_member_is_noticed() {
    is_caught_within(
        Mutation::AnswerAnother,
        &["was never answered", "was given the answer to"],
        300,
    );
}

#[test]
fn a_name_that_depends_on_other_members_is_noticed() {
    is_caught_as(Mutation::NumberNames, &["was shown as"]);
}

#[test]
fn a_log_line_that_extends_every_call_is_noticed() {
    is_caught_within(Mutation::RestartEveryClock, &["too late"], 1000);
}

proptest::proptest! {
    // Always the same tapes, so that what fails belongs to the commit that made it fail; the fuzz
    // target looks further.
    #![proptest_config(proptest::test_runner::Config {
        cases: 64,
        rng_seed: proptest::test_runner::RngSeed::Fixed(2026),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..proptest::test_runner::Config::default()
    })]

    #[test]
    fn the_promises_hold_for_random_tapes(tape in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
        run::holds(&tape);
    }
}

#[test]
fn the_promises_hold_for_the_corpus() {
    corpus::each("conversation", run::holds);
}

#[test]
fn a_tape_decides_what_happens() {
    let history = |tape: &[u8]| SimulationRun::on_tape(tape).run().print();
    assert_eq!(history(&[0; 40]), history(&[0; 40]));
    assert_ne!(history(&[0; 40]), history(&[1; 40]));
}

#[test]
fn a_seed_gives_the_same_history_twice() {
    assert_eq!(
        SimulationRun::new(7, None).run().print(),
        SimulationRun::new(7, None).run().print()
    );
}

/// Promises about things that never happen are easily kept.
#[test]
fn the_simulation_reaches_every_corner() {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..150 {
        for (_, fact) in SimulationRun::new(seed, None).run().facts {
            let word = match fact {
                Fact::Ended {
                    reason: Some(reason), ..
                } => reason,
                Fact::Ended { .. } => "answered".into(),
                Fact::AnswerRead { nonce: Some(_), .. } => "question answered".into(),
                Fact::AnswerRead { nonce: None, .. } => "question refused".into(),
                Fact::ResumeRefused { why, .. } => format!("resume refused: {why}"),
                Fact::Resumed { post: Some(_), .. } => "POST stream resumed".into(),
                Fact::Resumed { post: None, .. } => "GET stream resumed".into(),
                Fact::ServerWrote { kind, .. } => format!("server wrote {kind:?}"),
                Fact::GapRead { .. } => "gap".into(),
                Fact::SessionOpened { principal, .. } => format!("session of {principal}"),
                Fact::LinkDown { .. } => "crash".into(),
                Fact::CancelRead { .. } => "cancel read".into(),
                Fact::Reloaded { members } => format!("reload with {} members", members.len()),
                Fact::Withdrew { .. } => "withdrawal".into(),
                Fact::ClientRead {
                    seq: Some(_),
                    post: Some(_),
                    ..
                } => "read about a call".into(),
                Fact::ClientRead {
                    seq: Some(_),
                    post: None,
                    ..
                } => "read a notice".into(),
                other => format!("{other:?}").split(' ').next().unwrap_or_default().into(),
            };
            *seen.entry(word).or_default() += 1;
        }
    }
    let corners = [
        "session of alice",
        "session of bob",
        "answered",
        "timeout",
        "start_timeout",
        "upstream_exited",
        "upstream_unavailable",
        "overloaded",
        "response_too_large",
        "cancelled",
        "session_ended",
        "question answered",
        "question refused",
        "input_required",
        "listen closed",
        "no such task",
        "acknowledged",
        "AskedByAnswer",
        "InputRead",
        "unanswered",
        "incapable",
        "occupied",
        "withdrawal",
        "POST stream resumed",
        "GET stream resumed",
        "resume refused: Finished",
        "resume refused: UnknownEvent",
        "gap",
        "crash",
        "GatewayRestarted",
        "owner_lost",
        "Hung",
        "cancel read",
        "read about a call",
        "read a notice",
        "server wrote Updated",
        "listed",
        "unknown name",
        "member away",
        "reloaded",
        "GivenCall",
        "GivenCancel",
        "Routed",
        "Attributed",
        "reload with 1 members",
        "reload with 4 members",
    ];
    if from_environment("RIALTO_SIMULATION_COUNTS").is_some() {
        writeln!(std::io::stdout().lock(), "{seen:#?}").expect("stdout is there");
    }
    for corner in corners {
        assert!(
            seen.contains_key(corner),
            "no seed reached: {corner}; only {seen:#?}"
        );
    }
}
