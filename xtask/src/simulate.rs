//! Runs the simulation over any number of seeds.
//!
//! Hides how the test binary is built and gets its seeds. It refuses to call a run good whose
//! output it does not understand.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, bail};

use crate::test_run::cargo;

/// Seeds that one process runs: few enough to see the run move, enough to forget its start.
const PORTION: u64 = 2000;
/// A process of the harness has this many threads at most.
const THREADS: usize = 4;
const TEST: &str = "the_promises_hold_for_random_seeds";

/// What to run.
#[derive(Debug, PartialEq)]
pub enum Seeds {
    /// So many, from the first.
    Many { first: u64, count: u64 },
    /// One, with its history printed.
    One(u64),
}

impl Seeds {
    pub fn parse(arguments: &[String]) -> anyhow::Result<Self> {
        let (mut count, mut first, mut seed) = (None, None, None);
        let mut words = arguments.iter();
        while let Some(flag) = words.next() {
            let slot = match flag.as_str() {
                "--seeds" => &mut count,
                "--first" => &mut first,
                "--seed" => &mut seed,
                other => {
                    bail!("`simulate` does not know `{other}`: it takes --seeds N, --first N and --seed S")
                }
            };
            let value = words.next().with_context(|| format!("{flag} needs a number"))?;
            *slot = Some(
                value
                    .parse()
                    .with_context(|| format!("{flag} {value} is no number"))?,
            );
        }
        match (seed, count, first) {
            (Some(seed), None, None) => Ok(Self::One(seed)),
            (Some(_), _, _) => bail!("--seed goes alone: it replays one seed"),
            (None, _, _) => Ok(Self::Many {
                first: first.unwrap_or(0),
                count: count.unwrap_or(1000),
            }),
        }
    }
}

pub fn run(repository: &Path, seeds: &Seeds) -> anyhow::Result<()> {
    let binary = build(repository)?;
    match seeds {
        Seeds::One(seed) => replay(&binary, *seed),
        Seeds::Many { first, count } => {
            let started = Instant::now();
            let violations = run_many(&binary, *first, *count)?;
            println!(
                "{count} seeds from {first}, {} violations, {} s",
                violations.len(),
                started.elapsed().as_secs()
            );
            for violation in &violations {
                println!("  {violation}");
            }
            if let Some(seed) = violations.first().and_then(|violation| seed_of(violation)) {
                bail!("promises were broken; `cargo xtask simulate --seed {seed}` replays the first");
            }
            if !violations.is_empty() {
                bail!("a run of the simulation failed");
            }
            Ok(())
        }
    }
}

/// Runs the simulation of a fleet.
pub fn run_fleet(repository: &Path, flags: &[String]) -> anyhow::Result<()> {
    let status = cargo(repository)
        .args(["run", "--release", "--quiet", "--package", "rialto-cluster"])
        .args(["--example", "simulate_fleet", "--"])
        .args(flags)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("the simulation of a fleet failed");
    }
    Ok(())
}

/// Builds the simulation with its own profile, which checks sums for overflow, and gives its
/// binary.
fn build(repository: &Path) -> anyhow::Result<PathBuf> {
    let output = cargo(repository)
        .args([
            "test",
            "--profile",
            "simulation",
            "--package",
            "rialto-protocol",
            "--test",
            "simulation",
        ])
        .args(["--no-run", "--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo test")?;
    if !output.status.success() {
        bail!("the simulation does not build");
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|said| said["target"]["name"] == "simulation")
        .find_map(|said| said["executable"].as_str().map(PathBuf::from))
        .context("cargo does not say where the simulation's binary is")
}

fn harness(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    command.args(["--exact", TEST, "--nocapture"]);
    for name in ["SEED", "SEEDS", "FIRST"] {
        command.env_remove(format!("RIALTO_SIMULATION_{name}"));
    }
    command
}

fn replay(binary: &Path, seed: u64) -> anyhow::Result<()> {
    let status = harness(binary)
        .env("RIALTO_SIMULATION_SEED", seed.to_string())
        .status()
        .context("cannot run the simulation")?;
    if !status.success() {
        bail!("seed {seed} breaks a promise; its history is above");
    }
    Ok(())
}

/// Portions of the seeds, as many processes at once as there is room for; gives a line for each
/// violation.
fn run_many(binary: &Path, first: u64, count: u64) -> anyhow::Result<Vec<String>> {
    let waiting: VecDeque<(u64, u64)> = portions(first, count);
    let all = waiting.len();
    let waiting = Mutex::new(waiting);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let results: Vec<anyhow::Result<Vec<String>>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores.div_ceil(THREADS))
            .map(|_| {
                scope.spawn(|| {
                    let mut found = Vec::new();
                    loop {
                        let (next, left) = {
                            let mut waiting = waiting.lock().expect("no worker panics");
                            (waiting.pop_front(), waiting.len())
                        };
                        let Some((first, count)) = next else {
                            return Ok(found);
                        };
                        eprintln!(
                            "xtask: seeds {first} to {} ({} of {all})",
                            first + count - 1,
                            all - left
                        );
                        found.extend(run_portion(binary, first, count)?);
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker does not panic"))
            .collect()
    });
    let mut violations = Vec::new();
    for result in results {
        violations.extend(result?);
    }
    Ok(violations)
}

fn portions(first: u64, count: u64) -> VecDeque<(u64, u64)> {
    (0..count.div_ceil(PORTION))
        .map(|at| (first + at * PORTION, PORTION.min(count - at * PORTION)))
        .collect()
}

fn run_portion(binary: &Path, first: u64, count: u64) -> anyhow::Result<Vec<String>> {
    let output = harness(binary)
        .env("RIALTO_SIMULATION_FIRST", first.to_string())
        .env("RIALTO_SIMULATION_SEEDS", count.to_string())
        .output()
        .context("cannot run the simulation")?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    if output.status.success() {
        // A test that was renamed would pass without having run.
        if !said.contains("1 passed") {
            bail!("the simulation ran nothing:\n{said}");
        }
        return Ok(Vec::new());
    }
    let violations = violations(&said);
    if violations.is_empty() {
        bail!("the simulation failed without naming a seed:\n{said}");
    }
    Ok(violations)
}

/// The lines `seed 7: what went wrong`.
fn violations(said: &str) -> Vec<String> {
    said.lines()
        .filter(|line| seed_of(line).is_some())
        .map(str::to_owned)
        .collect()
}

fn seed_of(line: &str) -> Option<u64> {
    line.strip_prefix("seed ")?.split_once(": ")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<Seeds> {
        Seeds::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_say_which_seeds() {
        assert_eq!(
            parse("").unwrap(),
            Seeds::Many {
                first: 0,
                count: 1000
            }
        );
        assert_eq!(
            parse("--first 5 --seeds 7").unwrap(),
            Seeds::Many { first: 5, count: 7 }
        );
        assert_eq!(parse("--seed 9").unwrap(), Seeds::One(9));
        for wrong in ["--seeds", "--seeds x", "--seed 1 --seeds 2", "7"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn portions_cover_every_seed_once() {
        assert_eq!(portions(10, 4500), [(10, 2000), (2010, 2000), (4010, 500)]);
        assert_eq!(portions(0, 0), []);
    }

    #[test]
    fn violations_are_read_from_what_the_harness_says() {
        let said = "thread 'x' panicked at y:\nreplay with RIALTO_SIMULATION_SEED=n:\nseed 7: call 3 never ended\nseed x: no\n";
        assert_eq!(violations(said), ["seed 7: call 3 never ended"]);
        assert_eq!(seed_of("seed 7: call 3 never ended"), Some(7));
    }
}
