//! Changes `crates/protocol` in small ways and checks whether its own tests notice.
//!
//! Hides cargo-mutants, the sampling and the reports. cargo-mutants lists the mutants. Most of them
//! are built together, each behind a switch, and tested by running that build ([`at_once`]). The
//! others are built one by one, which also shows which cannot be built. The quickest tests run
//! first, and the others only for mutants that those miss. `xtask/surviving-mutants.txt` lists the
//! mutants that are known to survive, each with the reason.

mod at_once;
mod switch;
mod test_binary;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};

use self::switch::Mutant;
use self::test_binary::Ended;

/// The tool's version, exact like every other pin.
const CARGO_MUTANTS: &str = "26.2.0";
const PACKAGE: &str = "rialto-protocol";
/// The share of the viable mutants that the tests must notice, in percent.
const WANTED: usize = 95;
/// The mutants that are known to survive.
const SURVIVING: &str = "xtask/surviving-mutants.txt";

/// What to run.
#[derive(Debug, PartialEq)]
pub struct Sample {
    /// How many mutants; all, if fewer exist.
    count: usize,
    /// Chooses them. The same seed and source choose the same mutants.
    seed: Option<u64>,
    /// Only mutants whose name contains one of these; all, if there are none.
    filters: Vec<String>,
}

impl Sample {
    pub fn parse(arguments: &[String]) -> anyhow::Result<Self> {
        let (mut count, mut seed, mut filters) = (None, None, Vec::new());
        let mut words = arguments.iter();
        while let Some(flag) = words.next() {
            let mut value = || words.next().with_context(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--sample" => count = Some(number(flag, value()?)?),
                "--seed" => seed = Some(number(flag, value()?)?),
                "--only" => filters.push(value()?.clone()),
                other => {
                    bail!("`mutants` does not know `{other}`: it takes --sample N, --seed S and --only TEXT")
                }
            }
        }
        let count = count.context("`mutants` needs --sample N")?;
        Ok(Self {
            count: usize::try_from(count).context("--sample is too large")?,
            seed,
            filters,
        })
    }
}

fn number(flag: &str, value: &str) -> anyhow::Result<u64> {
    value
        .parse()
        .with_context(|| format!("{flag} {value} is no number"))
}

pub fn run(repository: &Path, test_deps: &Path, sample: &Sample) -> anyhow::Result<()> {
    let survivors = Survivor::read(repository)?;
    let tool = install(repository, test_deps)?;
    let mut mutants = list(repository, &tool)?;
    let filters = &sample.filters;
    mutants.retain(|mutant| filters.is_empty() || filters.iter().any(|text| mutant.name.contains(text)));
    let all = mutants.len();
    let names = mutants.iter().map(|mutant| mutant.name.clone()).collect();
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
    let start = Instant::now();
    mutants.retain(|mutant| chosen.contains(&mutant.name));
    let report = at_once::test(repository, &output, &mutants)?;
    let seconds = start.elapsed().as_secs();
    let report = report.explained(repository, &survivors);
    println!("\n{report}");
    println!(
        "xtask: {seconds} s, {} s per mutant; --seed {seed}",
        seconds / chosen.len() as u64
    );
    report.verdict()
}

/// Returns all mutants.
fn list(repository: &Path, tool: &Path) -> anyhow::Result<Vec<Mutant>> {
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
    listed.iter().map(Mutant::read).collect()
}

fn mutants(repository: &Path, tool: &Path) -> Command {
    let mut command = Command::new(tool.join("cargo-mutants"));
    command.arg("mutants").current_dir(repository);
    command
}

/// Takes so many of the names, by a random order that depends on nothing but the seed, and sorts
/// them.
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

/// A mutant that is known to survive, as `SURVIVING` lists it.
#[derive(Debug, PartialEq)]
struct Survivor {
    /// The mutant's name without line and column.
    change: String,
    /// The line of code that it changes. It tells apart equal changes in one function.
    code: String,
    /// Whether the mutant changes nothing that a caller of `protocol` could observe.
    equivalent: bool,
    reason: String,
}

impl Survivor {
    fn read(repository: &Path) -> anyhow::Result<Vec<Self>> {
        let text = fs::read_to_string(repository.join(SURVIVING))
            .with_context(|| format!("cannot read {SURVIVING}"))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> anyhow::Result<Vec<Self>> {
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .collect();
        lines
            .chunks(3)
            .map(|entry| {
                let [change, code, reason] = entry else {
                    bail!(
                        "{SURVIVING}: an entry has three lines, but `{}` has fewer",
                        entry[0]
                    );
                };
                let code = code.strip_prefix("code: ");
                let (equivalent, reason) = match reason.split_once(": ") {
                    Some(("equivalent", reason)) => (true, reason),
                    Some(("untested", reason)) => (false, reason),
                    _ => bail!("{SURVIVING}: `{reason}` begins neither `equivalent: ` nor `untested: `"),
                };
                Ok(Self {
                    change: (*change).to_owned(),
                    code: code
                        .with_context(|| format!("{SURVIVING}: `{change}` has no line `code: `"))?
                        .to_owned(),
                    equivalent,
                    reason: reason.to_owned(),
                })
            })
            .collect()
    }
}

/// Returns the file of a mutant, given its name.
fn file_of(name: &str) -> &str {
    name.split(':').next().unwrap_or_default()
}

/// Splits a mutant's name into its name without the position, and the line that it changes.
fn located(name: &str) -> Option<(String, usize)> {
    let mut parts = name.splitn(4, ':');
    let (file, line, _column, change) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    Some((format!("{file}:{change}"), line.parse().ok()?))
}

/// A mutant that no test noticed, with the reason if one is listed.
#[derive(Debug, Clone)]
struct Missed {
    name: String,
    equivalent: bool,
    reason: Option<String>,
}

impl Missed {
    fn new(repository: &Path, name: String, survivors: &[Survivor]) -> Self {
        let survivor = located(&name).and_then(|(change, line)| {
            let text = fs::read_to_string(repository.join(file_of(&change))).ok()?;
            let code = text.lines().nth(line.checked_sub(1)?)?.trim();
            survivors
                .iter()
                .find(|survivor| survivor.change == change && survivor.code == code)
        });
        Self {
            name,
            equivalent: survivor.is_some_and(|survivor| survivor.equivalent),
            reason: survivor.map(|survivor| survivor.reason.clone()),
        }
    }
}

/// What became of the mutants.
#[derive(Debug, Default)]
struct Report<M> {
    caught: usize,
    /// The tests ran longer than they ever should, which is noticed too.
    timeouts: usize,
    unviable: usize,
    missed: Vec<M>,
}

impl Report<String> {
    /// Counts one mutant. `None`: it cannot be built.
    fn count(&mut self, became: Option<Ended>, name: &str) {
        match became {
            Some(Ended::Passed) => self.missed.push(name.to_owned()),
            Some(Ended::Failed) => self.caught += 1,
            Some(Ended::TooLate) => self.timeouts += 1,
            None => self.unviable += 1,
        }
    }

    /// Finds the reasons of those that were missed.
    fn explained(self, repository: &Path, survivors: &[Survivor]) -> Report<Missed> {
        let missed = self.missed.into_iter();
        Report {
            caught: self.caught,
            timeouts: self.timeouts,
            unviable: self.unviable,
            missed: missed
                .map(|name| Missed::new(repository, name, survivors))
                .collect(),
        }
    }
}

impl Report<Missed> {
    fn noticed(&self) -> usize {
        self.caught + self.timeouts
    }

    fn viable(&self) -> usize {
        self.noticed() + self.missed.len()
    }

    /// Fails if too few were noticed. Equivalent mutants count as missed, because the list of them
    /// is made by hand.
    fn verdict(&self) -> anyhow::Result<()> {
        if self.viable() == 0 {
            bail!("no mutant could be built");
        }
        if self.noticed() * 100 < self.viable() * WANTED {
            bail!("fewer than {WANTED} % of the viable mutants were caught");
        }
        Ok(())
    }
}

impl std::fmt::Display for Report<Missed> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let equivalent = self.missed.iter().filter(|missed| missed.equivalent).count();
        write!(
            out,
            "{} of {} viable mutants caught ({} %), {} of them by a timeout; {} missed, {} of them equivalent; {} unviable",
            self.noticed(),
            self.viable(),
            (self.noticed() * 100).checked_div(self.viable()).unwrap_or(0),
            self.timeouts,
            self.missed.len(),
            equivalent,
            self.unviable
        )?;
        for missed in &self.missed {
            let kind = if missed.equivalent { "equivalent" } else { "missed" };
            write!(out, "\n  {kind}: {}", missed.name)?;
            if let Some(reason) = &missed.reason {
                write!(out, "\n    {reason}")?;
            }
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
        let sample = parse("--sample 30 --seed 7 --only tasks --only tools").unwrap();
        assert_eq!((sample.count, sample.seed), (30, Some(7)));
        assert_eq!(sample.filters, ["tasks", "tools"]);
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
    fn verdict_counts_viable_mutants_only() {
        let missed = Missed {
            name: "x".to_owned(),
            equivalent: true,
            reason: Some("both are zero".to_owned()),
        };
        let report = |caught, timeouts, count: usize| Report {
            caught,
            timeouts,
            unviable: 50,
            missed: vec![missed.clone(); count],
        };
        assert!(report(18, 1, 1).verdict().is_ok());
        assert!(report(18, 0, 1).verdict().is_err());
        assert!(report(0, 0, 0).verdict().is_err());
        let shown = report(18, 1, 1).to_string();
        assert!(
            shown.starts_with("19 of 20 viable mutants caught (95 %), 1 of them by a timeout; 1 missed, 1 of them equivalent"),
            "{shown}"
        );
        assert!(shown.ends_with("equivalent: x\n    both are zero"), "{shown}");
    }

    #[test]
    fn timeout_is_noticed_and_what_cannot_be_built_is_not_viable() {
        let mut report = Report::default();
        for became in [
            Some(Ended::Failed),
            Some(Ended::TooLate),
            Some(Ended::Passed),
            None,
        ] {
            report.count(became, "a.rs:1:1: b");
        }
        let report = report.explained(Path::new("."), &[]);
        assert_eq!((report.noticed(), report.viable(), report.unviable), (2, 3, 1));
    }

    #[test]
    fn position_of_a_mutant_is_apart_from_its_change() {
        let name = "crates/a.rs:12:5: replace <impl A::B for C>::d -> bool with true";
        let change = "crates/a.rs: replace <impl A::B for C>::d -> bool with true";
        assert_eq!(located(name), Some((change.to_owned(), 12)));
        assert_eq!(located("crates/a.rs"), None);
    }

    #[test]
    fn survivor_has_a_change_its_code_and_a_reason() {
        let text = "# why\n\na.rs: replace < with <= in b\n  code: x < y\n  equivalent: never equal\n";
        let survivor = Survivor {
            change: "a.rs: replace < with <= in b".to_owned(),
            code: "x < y".to_owned(),
            equivalent: true,
            reason: "never equal".to_owned(),
        };
        assert_eq!(Survivor::parse(text).unwrap(), [survivor]);
        for wrong in [
            "a.rs: b\ncode: c",
            "a\nb\nequivalent: c",
            "a\ncode: b\nbecause: c",
        ] {
            assert!(Survivor::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn listed_survivors_are_in_the_code() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for survivor in Survivor::read(&repository).unwrap() {
            let text = fs::read_to_string(repository.join(file_of(&survivor.change))).unwrap();
            assert!(
                text.lines().any(|line| line.trim() == survivor.code),
                "{SURVIVING}: no line `{}` for `{}`",
                survivor.code,
                survivor.change
            );
        }
    }
}
