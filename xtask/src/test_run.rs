//! Builds the workspace, runs its tests, and prints the results at the end.
//!
//! Hides how `cargo test` reports. It refuses to call a run good in which a test was ignored or in
//! which no test ran at all.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::conformance::Report;

/// The results of the test binaries, added up.
#[derive(Debug, Default, PartialEq)]
pub struct Summary {
    binaries: usize,
    passed: usize,
    ignored: usize,
    /// Cells of the conformance suite among the tests that passed.
    conformance_passed: usize,
    failures: Vec<String>,
    /// Whether a run of cargo failed; it also does if a test binary crashed and printed nothing.
    cargo_failed: bool,
    elapsed: Duration,
}

pub fn build(repository: &Path) -> anyhow::Result<()> {
    // Tests of one package run binaries of another, which `cargo test` alone would not build first.
    let status = cargo(repository)
        .args(["build", "--workspace", "--bins"])
        .status()
        .context("cannot run cargo build")?;
    if !status.success() {
        bail!("the workspace does not build");
    }
    Ok(())
}

pub fn run(repository: &Path, test_deps: &Path, filters: &[String]) -> anyhow::Result<Summary> {
    let mut summary = Summary::default();
    let mut tests = cargo(repository);
    tests
        .args(["test", "--workspace", "--no-fail-fast", "--"])
        .args(filters)
        .env("RIALTO_TEST_DEPS", test_deps);
    add(&mut summary, &mut tests)?;
    Ok(summary)
}

/// Runs `cargo test` as given, shows what it prints and adds it to the summary.
pub fn add(summary: &mut Summary, tests: &mut Command) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut child = tests
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo test")?;
    let stdout = child.stdout.take().context("stdout was piped")?;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("cannot read what cargo test says")?;
        let mut terminal = std::io::stdout().lock();
        terminal
            .write_all(&line)
            .and_then(|()| terminal.write_all(b"\n"))
            .context("stdout")?;
        summary.add_line(&String::from_utf8_lossy(&line));
    }
    let status = child.wait().context("cannot wait for cargo test")?;
    summary.cargo_failed |= !status.success();
    summary.elapsed += started.elapsed();
    Ok(())
}

pub fn cargo(repository: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(repository);
    command
}

impl Summary {
    fn add_line(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.binaries += 1;
            self.passed += count(counts, "passed");
            self.ignored += count(counts, "ignored");
        } else if let Some(test) = line.strip_prefix("test ") {
            let name = test.split(" ... ").next().unwrap_or(test);
            if test.ends_with(" ... FAILED") {
                self.failures.push(name.to_owned());
            }
        }
    }

    /// Counts cells of the conformance suite as the tests they are.
    pub fn add_conformance(&mut self, report: Report) {
        let Report {
            passed,
            failures,
            elapsed,
            ..
        } = report;
        self.elapsed += elapsed;
        self.passed += passed;
        self.conformance_passed += passed;
        self.failures.extend(failures);
    }

    /// An error unless every test ran and passed.
    pub fn verdict(&self) -> anyhow::Result<()> {
        if !self.failures.is_empty() {
            bail!("{} tests failed", self.failures.len());
        }
        if self.cargo_failed {
            bail!("cargo test failed without naming a test; see above");
        }
        if self.ignored > 0 {
            bail!("{} tests were ignored; no test is skipped here", self.ignored);
        }
        if self.passed == 0 {
            bail!("no test ran; does the filter match one?");
        }
        Ok(())
    }
}

/// The number in front of a word in `ok. 3 passed; 0 failed; 1 ignored; …`.
fn count(counts: &str, word: &str) -> usize {
    counts
        .split([';', '.'])
        .filter_map(|part| part.trim().strip_suffix(word))
        .find_map(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} passed, {} failed, {} ignored, in {} test binaries and {} s",
            self.passed,
            self.failures.len(),
            self.ignored,
            self.binaries,
            self.elapsed.as_secs()
        )?;
        if self.conformance_passed > 0 {
            write!(
                out,
                "; {} of those passed are conformance cells",
                self.conformance_passed
            )?;
        }
        for failure in &self.failures {
            write!(out, "\n  failed: {failure}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary_of(lines: &[&str]) -> Summary {
        let mut summary = Summary::default();
        for line in lines {
            summary.add_line(line);
        }
        summary
    }

    #[test]
    fn counts_of_several_binaries_are_added() {
        let summary = summary_of(&[
            "test a ... ok",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.00s",
            "test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ]);
        assert_eq!((summary.passed, summary.binaries), (7, 2));
        assert!(summary.verdict().is_ok());
    }

    #[test]
    fn failed_test_is_named_and_fails_the_run() {
        let summary = summary_of(&[
            "test it::holds ... FAILED",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ]);
        assert_eq!(summary.failures, ["it::holds"]);
        assert!(summary.verdict().is_err());
    }

    #[test]
    fn failed_conformance_cell_fails_the_run() {
        let mut summary = summary_of(&[]);
        summary.add_conformance(Report {
            passed: 2,
            ..Report::default()
        });
        assert!(summary.verdict().is_ok());
        summary.add_conformance(Report {
            failures: vec!["conformance::document".to_owned()],
            ..Report::default()
        });
        assert!(summary.verdict().is_err());
    }

    #[test]
    fn ignored_test_and_an_empty_run_fail_the_run() {
        let ignored = ["test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out"];
        assert!(summary_of(&ignored).verdict().is_err());
        assert!(summary_of(&[]).verdict().is_err());
    }
}
