//! Changes `crates/protocol` in small ways and looks whether its own tests notice.
//!
//! Hides cargo-mutants, the sampling and the reports. The tree is copied once, and each mutant is built in that
//! copy, one after another, so that only `protocol` and its tests are compiled again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};

/// The tool's version, exact like every other pin.
const CARGO_MUTANTS: &str = "26.2.0";
const PACKAGE: &str = "rialto-protocol";
/// The share of the viable mutants that the tests must notice, in percent.
const WANTED: usize = 95;

/// What to run.
#[derive(Debug, PartialEq)]
pub struct Sample {
    /// How many mutants; all, if fewer exist.
    count: usize,
    /// Chooses them. The same seed and source choose the same mutants.
    seed: Option<u64>,
    /// Only mutants whose name contains this.
    filter: Option<String>,
}

impl Sample {
    pub fn parse(arguments: &[String]) -> anyhow::Result<Self> {
        let (mut count, mut seed, mut filter) = (None, None, None);
        let mut words = arguments.iter();
        while let Some(flag) = words.next() {
            let mut value = || words.next().with_context(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--sample" => count = Some(number(flag, value()?)?),
                "--seed" => seed = Some(number(flag, value()?)?),
                "--only" => filter = Some(value()?.clone()),
                other => {
                    bail!("`mutants` does not know `{other}`: it takes --sample N, --seed S and --only TEXT")
                }
            }
        }
        let count = count.context("`mutants` needs --sample N")?;
        Ok(Self {
            count: usize::try_from(count).context("--sample is too large")?,
            seed,
            filter,
        })
    }
}

fn number(flag: &str, value: &str) -> anyhow::Result<u64> {
    value
        .parse()
        .with_context(|| format!("{flag} {value} is no number"))
}

pub fn run(repository: &Path, test_deps: &Path, sample: &Sample) -> anyhow::Result<()> {
    let tool = install(repository, test_deps)?;
    let mut names = list(repository, &tool)?;
    if let Some(filter) = &sample.filter {
        names.retain(|name| name.contains(filter));
    }
    let all = names.len();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = sample
        .seed
        .unwrap_or_else(|| now.map_or(0, |now| now.as_secs() % 1_000_000));
    let chosen = choose(names, sample.count, seed);
    if chosen.is_empty() {
        bail!("there is no such mutant");
    }
    println!(
        "xtask: {} of {all} mutants of {PACKAGE}; --seed {seed} chooses the same",
        chosen.len()
    );
    let output = test_deps.join("mutants");
    let mut command = mutants(repository, &tool);
    command
        .args([
            "--package",
            PACKAGE,
            "--no-shuffle",
            "--colors",
            "never",
            "--output",
        ])
        .arg(&output);
    for name in &chosen {
        command.arg("--re").arg(format!("^{}$", escaped(name)));
    }
    let status = command.status().context("cannot run cargo mutants")?;
    // 2 and 3 are mutants that were missed and that ran too long; anything else is no result at all.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        bail!("cargo mutants ended with {status}; see above");
    }
    let report = Report::read(&output.join("mutants.out"))?;
    println!("\n{report}");
    report.verdict()
}

/// Returns the names of all mutants.
fn list(repository: &Path, tool: &Path) -> anyhow::Result<Vec<String>> {
    let output = mutants(repository, tool)
        .args(["--package", PACKAGE, "--list", "--json"])
        .output()
        .context("cannot run cargo mutants")?;
    if !output.status.success() {
        bail!(
            "cargo mutants cannot list: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let listed: Vec<serde_json::Value> =
        serde_json::from_slice(&output.stdout).context("the list of mutants is no JSON")?;
    listed
        .iter()
        .map(|mutant| {
            mutant["name"]
                .as_str()
                .map(str::to_owned)
                .context("a mutant has no name")
        })
        .collect()
}

fn mutants(repository: &Path, tool: &Path) -> Command {
    let mut command = Command::new(tool.join("cargo-mutants"));
    command.arg("mutants").current_dir(repository);
    command
}

/// Takes so many of the names, by a random order that depends on nothing but the seed, and sorts them.
fn choose(mut names: Vec<String>, count: usize, seed: u64) -> Vec<String> {
    let mut state = seed;
    // SplitMix64: small, and good enough to draw lots.
    let mut random = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let count = count.min(names.len());
    for at in 0..count {
        let left = (names.len() - at) as u64;
        let other = at + (random() % left) as usize;
        names.swap(at, other);
    }
    names.truncate(count);
    names.sort();
    names
}

/// A regular expression that matches this text and no other.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        if c.is_ascii_punctuation() {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// What became of the mutants.
#[derive(Debug, Default)]
struct Report {
    caught: usize,
    /// The tests ran longer than they ever should, which is noticed too.
    timeouts: usize,
    unviable: usize,
    missed: Vec<String>,
}

impl Report {
    fn read(folder: &Path) -> anyhow::Result<Self> {
        let lines = |name: &str| -> anyhow::Result<Vec<String>> {
            let path = folder.join(name);
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        Ok(Self {
            caught: lines("caught.txt")?.len(),
            timeouts: lines("timeout.txt")?.len(),
            unviable: lines("unviable.txt")?.len(),
            missed: lines("missed.txt")?,
        })
    }

    fn viable(&self) -> usize {
        self.caught + self.timeouts + self.missed.len()
    }

    fn verdict(&self) -> anyhow::Result<()> {
        if self.viable() == 0 {
            bail!("no mutant could be built");
        }
        if (self.caught + self.timeouts) * 100 < self.viable() * WANTED {
            bail!("fewer than {WANTED} % of the viable mutants were caught");
        }
        Ok(())
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let noticed = self.caught + self.timeouts;
        write!(
            out,
            "{noticed} of {} viable mutants caught ({} %), {} of them by a timeout; {} missed, {} unviable",
            self.viable(),
            (noticed * 100).checked_div(self.viable()).unwrap_or(0),
            self.timeouts,
            self.missed.len(),
            self.unviable
        )?;
        for missed in &self.missed {
            write!(out, "\n  missed: {missed}")?;
        }
        Ok(())
    }
}

/// Installs cargo-mutants where the tests' other tools are, and returns the folder of its binary.
fn install(repository: &Path, test_deps: &Path) -> anyhow::Result<PathBuf> {
    let root = test_deps.join("cargo");
    let folder = root.join("bin");
    let installed = Command::new(folder.join("cargo-mutants"))
        .args(["mutants", "--version"])
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(CARGO_MUTANTS));
    if !installed {
        eprintln!("xtask: installing cargo-mutants {CARGO_MUTANTS}");
        let status = Command::new("cargo")
            .args(["install", "cargo-mutants", "--locked", "--quiet"])
            .args(["--version", CARGO_MUTANTS, "--root"])
            .arg(&root)
            .current_dir(repository)
            .status()
            .context("cannot run cargo install")?;
        if !status.success() {
            bail!("cargo-mutants {CARGO_MUTANTS} cannot be installed: check the network");
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<Sample> {
        Sample::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_say_how_many_and_which() {
        let sample = parse("--sample 30 --seed 7 --only tasks").unwrap();
        assert_eq!((sample.count, sample.seed), (30, Some(7)));
        assert_eq!(sample.filter.as_deref(), Some("tasks"));
        for wrong in ["", "--sample", "--sample x", "--seed 1", "--sample 1 7"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seed_alone_decides_the_sample() {
        let names = || (0..100).map(|at| format!("{at:03}")).collect::<Vec<_>>();
        let sample = choose(names(), 10, 1);
        assert_eq!(sample.len(), 10);
        assert_eq!(sample, choose(names(), 10, 1));
        assert_ne!(sample, choose(names(), 10, 2));
        assert_eq!(choose(names(), 1000, 3), names());
    }

    #[test]
    fn names_are_matched_as_they_stand() {
        assert_eq!(escaped("a.rs:1: -> b()"), r"a\.rs\:1\: \-\> b\(\)");
    }

    #[test]
    fn verdict_counts_viable_mutants_only() {
        let report = |caught, timeouts, missed: usize| Report {
            caught,
            timeouts,
            unviable: 50,
            missed: vec!["x".to_owned(); missed],
        };
        assert!(report(18, 1, 1).verdict().is_ok());
        assert!(report(18, 0, 1).verdict().is_err());
        assert!(report(0, 0, 0).verdict().is_err());
        let shown = report(18, 1, 1).to_string();
        assert!(
            shown.starts_with("19 of 20 viable mutants caught (95 %)"),
            "{shown}"
        );
    }
}
