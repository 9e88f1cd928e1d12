//! The results of one run of the suite, check by check.
//!
//! Hides how the suite writes its results. It refuses a status that it does not know, and a
//! scenario that was announced but left no result.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

/// How a check ended, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Failed,
    Warned,
    Passed,
    /// The suite only remarked something: the check did not apply to what it met.
    NotJudged,
}

impl Outcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Warned => "warned",
            Self::Passed => "passed",
            Self::NotJudged => "not-judged",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Failed, Self::Warned, Self::Passed, Self::NotJudged]
            .into_iter()
            .find(|outcome| outcome.as_str() == text)
    }

    fn from_status(status: &str) -> anyhow::Result<Self> {
        Ok(match status {
            "FAILURE" => Self::Failed,
            "WARNING" => Self::Warned,
            "SUCCESS" => Self::Passed,
            "INFO" | "SKIPPED" => Self::NotJudged,
            _ => bail!("the suite has a status `{status}` that is not known here"),
        })
    }
}

/// The checks of one scenario by their id; an id that came more than once has its worst outcome.
pub type Checks = BTreeMap<String, Outcome>;

#[derive(Debug, Default, PartialEq)]
pub struct Score {
    pub scenarios: BTreeMap<String, Checks>,
    /// Scenarios that the revision does not require; they are compared like the others, but counted
    /// apart.
    pub not_required: BTreeSet<String>,
    /// The suite's messages about checks that did not pass.
    pub remarks: BTreeMap<(String, String), String>,
}

/// How many of how many.
#[derive(Debug, PartialEq)]
pub struct Count {
    pub passed: usize,
    pub all: usize,
}

impl fmt::Display for Count {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} of {}", self.passed, self.all)
    }
}

impl Score {
    /// Reads what the suite printed and the results it saved.
    pub fn read(printed: &str, results: &Path) -> anyhow::Result<Self> {
        let (summary, not_required) = read_summary(printed)?;
        let mut score = Self {
            not_required,
            ..Self::default()
        };
        for entry in fs::read_dir(results).context("the suite saved no results")? {
            let folder = entry.context("cannot list the results")?;
            let name = folder.file_name().to_string_lossy().into_owned();
            let scenario = scenario_of(&name).with_context(|| format!("`{name}` is not a result's name"))?;
            let text = fs::read_to_string(folder.path().join("checks.json"))
                .with_context(|| format!("{scenario} has no checks"))?;
            score
                .add_checks(scenario, &text)
                .with_context(|| scenario.to_owned())?;
        }
        for (scenario, good) in summary {
            score.blame(&scenario, good)?;
        }
        ensure!(!score.scenarios.is_empty(), "the suite ran no scenario");
        Ok(score)
    }

    /// Reads the checks of a single scenario that the suite was content with, or not.
    pub fn of_scenario(scenario: &str, checks: &str, content: bool) -> anyhow::Result<Self> {
        let mut score = Self::default();
        score.add_checks(scenario, checks)?;
        score.blame(scenario, content)?;
        Ok(score)
    }

    /// The suite may find a scenario bad as a whole, without a check to blame.
    fn blame(&mut self, scenario: &str, good: bool) -> anyhow::Result<()> {
        let checks = self.scenarios.get_mut(scenario);
        let checks = checks.with_context(|| format!("{scenario} ran but left no result"))?;
        if !good && !checks.values().any(|outcome| *outcome == Outcome::Failed) {
            checks.insert("scenario".to_owned(), Outcome::Failed);
        }
        Ok(())
    }

    fn add_checks(&mut self, scenario: &str, text: &str) -> anyhow::Result<()> {
        let checks = self.scenarios.entry(scenario.to_owned()).or_default();
        let list: Vec<Value> = serde_json::from_str(text).context("its checks are no JSON array")?;
        for check in &list {
            let id = check["id"].as_str().context("a check has no id")?;
            let outcome = Outcome::from_status(check["status"].as_str().context("a check has no status")?)?;
            let known = checks.entry(id.to_owned()).or_insert(outcome);
            *known = outcome.min(*known);
            if let Some(message) = check["errorMessage"].as_str() {
                let key = (scenario.to_owned(), id.to_owned());
                self.remarks.entry(key).or_insert_with(|| message.to_owned());
            }
        }
        Ok(())
    }

    /// The worst of a scenario's checks; remarks count only if there is nothing else.
    pub fn outcome(&self, scenario: &str) -> Outcome {
        let checks = self.scenarios.get(scenario);
        let worst = checks.and_then(|checks| checks.values().min().copied());
        worst.unwrap_or(Outcome::NotJudged)
    }

    pub fn required(&self) -> Count {
        self.count(|scenario| !self.not_required.contains(scenario))
    }

    pub fn others(&self) -> Count {
        self.count(|scenario| self.not_required.contains(scenario))
    }

    fn count(&self, keep: impl Fn(&str) -> bool) -> Count {
        let kept: Vec<_> = self.scenarios.keys().filter(|scenario| keep(scenario)).collect();
        let passed = kept
            .iter()
            .filter(|scenario| self.outcome(scenario) == Outcome::Passed);
        Count {
            passed: passed.count(),
            all: kept.len(),
        }
    }

    pub fn checks_passed(&self) -> usize {
        let outcomes = self.scenarios.values().flat_map(BTreeMap::values);
        outcomes.filter(|outcome| **outcome == Outcome::Passed).count()
    }
}

impl fmt::Display for Score {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} scenarios", self.required())?;
        if !self.not_required.is_empty() {
            write!(out, ", {} not required", self.others())?;
        }
        write!(out, ", {} checks", self.checks_passed())
    }
}

/// `server-ping-2026-01-02T03-04-05-678Z` is the result of `ping`.
fn scenario_of(folder: &str) -> Option<&str> {
    const STAMP: usize = "-2026-01-02T03-04-05-678Z".len();
    let name = folder.strip_prefix("server-")?;
    let end = name.len().checked_sub(STAMP)?;
    name.get(..end).filter(|scenario| !scenario.is_empty())
}

type Summary = Vec<(String, bool)>;

/// The scenarios and whether each was good, then those that the revision does not require.
fn read_summary(printed: &str) -> anyhow::Result<(Summary, BTreeSet<String>)> {
    let (_, summary) = printed
        .split_once("=== SUMMARY ===")
        .context("the suite ended without a summary")?;
    let mut scenarios = Vec::new();
    let mut not_required = BTreeSet::new();
    for line in summary.lines() {
        let indented = line.starts_with(' ');
        let good = match line.trim_start().chars().next() {
            Some('✓') => true,
            Some('✗') => false,
            _ => continue,
        };
        let name = line
            .split_whitespace()
            .nth(1)
            .context("a summary line names no scenario")?;
        if indented {
            not_required.insert(name.to_owned());
        } else {
            scenarios.push((name.trim_end_matches(':').to_owned(), good));
        }
    }
    Ok((scenarios, not_required))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
=== Running scenario: ping ===
=== SUMMARY ===
✓ ping: 2 passed, 0 failed
✗ tools-list: 0 passed, 1 failed

Total: 2 passed, 1 failed

Not scored for 2025-11-25: 1 scenario(s) run, 0 failing. These do not affect conformance.
  ✓ ping (pending)
";

    #[test]
    fn summary_tells_good_from_bad_and_required_from_other_scenarios() {
        let (scenarios, not_required) = read_summary(PRINTED).expect("a summary");
        assert_eq!(
            scenarios,
            [("ping".to_owned(), true), ("tools-list".to_owned(), false)]
        );
        assert_eq!(not_required, BTreeSet::from(["ping".to_owned()]));
        assert!(read_summary("nothing").is_err());
    }

    #[test]
    fn result_folder_names_its_scenario() {
        assert_eq!(
            scenario_of("server-tools-list-2026-11-15T10-00-16-249Z"),
            Some("tools-list")
        );
        assert_eq!(scenario_of("tools-list"), None);
        assert_eq!(scenario_of("server-x"), None);
    }

    #[test]
    fn repeated_check_has_its_worst_outcome_and_remarks_alone_judge_nothing() {
        let mut score = Score::default();
        let twice =
            r#"[{"id":"a","status":"SUCCESS"},{"id":"a","status":"FAILURE"},{"id":"b","status":"INFO"}]"#;
        score.add_checks("twice", twice).expect("checks");
        score
            .add_checks("quiet", r#"[{"id":"b","status":"INFO"}]"#)
            .expect("checks");
        assert_eq!(score.outcome("twice"), Outcome::Failed);
        assert_eq!(score.outcome("quiet"), Outcome::NotJudged);
        assert_eq!(score.required(), Count { passed: 0, all: 2 });
        assert!(
            score
                .add_checks("odd", r#"[{"id":"b","status":"MAYBE"}]"#)
                .is_err()
        );
    }
}
