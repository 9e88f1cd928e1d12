//! Builds and runs the tests of `protocol`.
//!
//! Hides cargo, and the limits of time and memory of a run: a mutant may loop or allocate for ever.
//! The limit of time counts what the processor works, so that a busy machine changes no result.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

use super::PACKAGE;

/// The test binaries in the order in which they run for a mutant: those that catch most in the
/// least time first.
const BINARIES: &[&str] = &[
    "conversations",
    LIBRARY,
    "properties",
    "transparency",
    "simulation",
];
/// The tests within the library.
const LIBRARY: &str = "protocol";
/// How many times the time without a mutant a test binary may take.
const SLOWER: f64 = 10.0;
/// The least limit, in seconds.
const LEAST_LIMIT: f64 = 10.0;
/// The address space of a test binary in KiB.
const MEMORY: &str = "4000000";
/// The signal that ends a process whose limit of time is reached.
const SIGXCPU: i32 = 24;

/// Fewer random cases than in a run of the tests: what they catch, more would catch too.
const FEWER_CASES: [(&str, &str); 2] = [("PROPTEST_CASES", "64"), ("RIALTO_SIMULATION_SEEDS", "300")];

/// How a run of tests ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Passed,
    Failed,
    TooLate,
}

impl Ended {
    fn of(status: ExitStatus) -> Self {
        match status.signal() {
            Some(SIGXCPU) => Self::TooLate,
            _ if status.success() => Self::Passed,
            _ => Self::Failed,
        }
    }
}

impl fmt::Display for Ended {
    /// Writes what became of the mutant.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Passed => "missed",
            Self::Failed => "caught",
            Self::TooLate => "timeout",
        })
    }
}

/// Runs cargo for the package, and returns what it reports.
pub fn cargo(copy: &Path, target: &Path, arguments: &[&str]) -> anyhow::Result<Vec<Value>> {
    let output = Command::new("cargo")
        .args(arguments)
        .args(["--quiet", "--package", PACKAGE, "--message-format=json"])
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_PROFILE_DEV_DEBUG", "none")
        // The tests run many times for one build. Overflows are still checked.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

/// Returns the errors of the compiler that name a place.
pub fn errors(messages: &[Value]) -> Vec<&Value> {
    messages
        .iter()
        .filter(|message| message["reason"] == "compiler-message")
        .map(|message| &message["message"])
        .filter(|message| message["level"] == "error")
        .filter(|message| message["spans"].as_array().is_some_and(|spans| !spans.is_empty()))
        .collect()
}

/// A test binary, and how long it may run.
pub struct Binary {
    name: &'static str,
    path: PathBuf,
    folder: PathBuf,
    /// In whole seconds.
    limit: u64,
}

impl Binary {
    /// Builds the tests, and runs each once without a mutant.
    pub fn build_all(copy: &Path, target: &Path) -> anyhow::Result<Vec<Self>> {
        let messages = cargo(copy, target, &["test", "--no-run"])?;
        let mut binaries = Vec::new();
        for name in BINARIES {
            let mut binary = Self {
                name,
                path: executable(&messages, name)?,
                folder: copy.join("crates/protocol"),
                limit: 3600,
            };
            let seconds = binary.seconds_without_a_mutant()?;
            println!("xtask: the tests `{name}` take {seconds:.1} s");
            binary.limit = (seconds * SLOWER).max(LEAST_LIMIT).ceil() as u64;
            binaries.push(binary);
        }
        Ok(binaries)
    }

    /// Builds the tests anew, after the source has changed.
    pub fn build(&mut self, copy: &Path, target: &Path) -> anyhow::Result<()> {
        let messages = match self.name {
            LIBRARY => cargo(copy, target, &["test", "--no-run", "--lib"])?,
            name => cargo(copy, target, &["test", "--no-run", "--test", name])?,
        };
        self.path = executable(&messages, self.name)?;
        Ok(())
    }

    /// Runs the tests; with this mutant, if it was built behind a switch.
    pub fn run(&self, mutant: Option<usize>) -> anyhow::Result<Ended> {
        let mut command = self.command(r#"exec "$@""#);
        if let Some(number) = mutant {
            command.env("MUTANT", number.to_string());
        }
        let status = command
            .stdout(Stdio::null())
            .status()
            .context("cannot run the tests")?;
        Ok(Ended::of(status))
    }

    /// Returns how long the processor works on the tests.
    fn seconds_without_a_mutant(&self) -> anyhow::Result<f64> {
        let output = self
            .command(r#""$@" > /dev/null && times"#)
            .output()
            .context("cannot run the tests")?;
        if !output.status.success() {
            bail!("the tests `{}` fail without a mutant", self.name);
        }
        children_seconds(&String::from_utf8_lossy(&output.stdout))
            .context("the shell's `times` cannot be read")
    }

    /// Returns the command that runs the tests, within the limits, as the last of this script.
    fn command(&self, script: &str) -> Command {
        let limits = r#"ulimit -v "$1" 2> /dev/null; ulimit -S -t "$2"; shift 2; "#;
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{limits}{script}"), "sh", MEMORY])
            .arg(self.limit.to_string())
            .arg(&self.path)
            .arg("--quiet")
            .current_dir(&self.folder)
            .envs(FEWER_CASES)
            .env("RUST_BACKTRACE", "0")
            // As many mutants as there are cores run at a time.
            .env("RUST_TEST_THREADS", "1")
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

/// Returns the binary of this name among what cargo has built.
fn executable(messages: &[Value], name: &str) -> anyhow::Result<PathBuf> {
    let built = messages.iter().find(|message| {
        message["target"]["name"] == name
            && message["profile"]["test"] == true
            && message["executable"].is_string()
    });
    let path = built.and_then(|message| message["executable"].as_str());
    let path = path.with_context(|| format!("the tests `{name}` were not built"))?;
    Ok(path.into())
}

/// Reads what `times` prints: a line about the shell and one about its children, such as
/// `0m1.25s 0m0.50s`.
fn children_seconds(times: &str) -> Option<f64> {
    let seconds = |text: &str| -> Option<f64> {
        let (minutes, seconds) = text.strip_suffix('s')?.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    let (user, system) = times.lines().nth(1)?.split_once(' ')?;
    Some(seconds(user)? + seconds(system)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_shell_count_its_children() {
        assert_eq!(
            children_seconds("0m0.00s 0m0.00s\n1m1.25s 0m0.50s\n"),
            Some(61.75)
        );
        assert_eq!(children_seconds("0m0.00s 0m0.00s\n"), None);
    }

    #[test]
    fn loop_is_ended_by_the_limit_of_time() {
        let binary = Binary {
            name: LIBRARY,
            path: "unused".into(),
            folder: std::env::temp_dir(),
            limit: 1,
        };
        let ended = |script| Ended::of(binary.command(script).status().unwrap());
        assert_eq!(ended("while :; do :; done"), Ended::TooLate);
        assert_eq!(ended("exit 101"), Ended::Failed);
        assert_eq!(ended("kill -ABRT $$"), Ended::Failed);
        assert_eq!(ended("exit 0"), Ended::Passed);
    }
}
