//! The list of expected failures, and the judgement of a run by it.
//!
//! Hides what counts as falling short. It refuses an entry without a reason, and an entry that is
//! not needed: the list may only shrink.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

use super::score::{Outcome, Score};
use super::{Cell, Way};

/// Stands for every era, or for both ways through Rialto.
const ANY: &str = "*";

/// One check that is known not to pass.
#[derive(Debug, PartialEq)]
pub struct Failure {
    pub suite: String,
    pub revision: String,
    pub era: String,
    pub way: String,
    pub scenario: String,
    pub check: String,
    pub outcome: Outcome,
    pub reason: String,
}

impl Failure {
    fn parse(line: &str) -> anyhow::Result<Self> {
        let (entry, reason) = line
            .split_once(" -- ")
            .context("no reason is given after ` -- `")?;
        let fields: Vec<&str> = entry.split_whitespace().collect();
        let [suite, revision, era, way, scenario, check, outcome] = fields[..] else {
            anyhow::bail!("an entry has seven fields, this one {}", fields.len());
        };
        ensure!(!reason.trim().is_empty(), "the reason is empty");
        let outcome = Outcome::parse(outcome).with_context(|| format!("`{outcome}` is no outcome"))?;
        ensure!(outcome != Outcome::Passed, "what passes needs no entry");
        Ok(Self {
            suite: suite.to_owned(),
            revision: revision.to_owned(),
            era: era.to_owned(),
            way: way.to_owned(),
            scenario: scenario.to_owned(),
            check: check.to_owned(),
            outcome,
            reason: reason.trim().to_owned(),
        })
    }

    pub fn covers(&self, cell: Cell) -> bool {
        let way = match cell.way {
            Way::Native => self.way == cell.way.as_str(),
            Way::Shared | Way::PerSession | Way::Remote | Way::Chain | Way::Fleet | Way::Aggregate => {
                self.way == ANY || self.way == cell.way.as_str()
            }
        };
        way && self.suite == cell.suite.version
            && self.revision == cell.revision.date
            && (self.era == ANY || self.era == cell.era.as_str())
    }
}

#[derive(Debug, Default)]
pub struct Expected(Vec<Failure>);

impl Expected {
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut failures = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            if !line.trim().is_empty() && !line.starts_with('#') {
                failures.push(Failure::parse(line).with_context(|| format!("line {number}"))?);
            }
        }
        Ok(Self(failures))
    }

    pub fn failures(&self) -> &[Failure] {
        &self.0
    }

    /// What is wrong with a score, given the native one to reach (none for the native score
    /// itself).
    pub fn judge(&self, cell: Cell, score: &Score, ceiling: Option<&Score>) -> Vec<String> {
        let mut complaints = Vec::new();
        if let Some(ceiling) = ceiling
            && !score.scenarios.keys().eq(ceiling.scenarios.keys())
        {
            complaints.push("its scenarios are not those of the native run".to_owned());
        }
        let found = shortfalls(score, ceiling);
        let here: Vec<&Failure> = self.0.iter().filter(|failure| failure.covers(cell)).collect();
        for shortfall in &found {
            if !here.iter().any(|failure| shortfall.is(failure)) {
                complaints.push(shortfall.to_string());
            }
        }
        for failure in here {
            if !found.iter().any(|shortfall| shortfall.is(failure)) {
                complaints.push(format!(
                    "{} / {} is expected to be `{}`, but is not: take it off the list",
                    failure.scenario,
                    failure.check,
                    failure.outcome.as_str()
                ));
            }
        }
        complaints
    }
}

/// A check that did worse than it should.
#[derive(Debug, PartialEq)]
struct Shortfall<'a> {
    scenario: &'a str,
    check: &'a str,
    outcome: Outcome,
    native: Option<Outcome>,
    remark: Option<&'a str>,
}

impl Shortfall<'_> {
    fn is(&self, failure: &Failure) -> bool {
        self.scenario == failure.scenario && self.check == failure.check && self.outcome == failure.outcome
    }
}

impl std::fmt::Display for Shortfall<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{} / {}: {}",
            self.scenario,
            self.check,
            self.outcome.as_str()
        )?;
        if let Some(native) = self.native {
            write!(out, ", natively {}", native.as_str())?;
        }
        if let Some(remark) = self.remark {
            write!(out, ": {remark}")?;
        }
        Ok(())
    }
}

/// Every failure of what is required; and, beside a ceiling, everything that passes there and not
/// here, and every new warning.
fn shortfalls<'a>(score: &'a Score, ceiling: Option<&'a Score>) -> Vec<Shortfall<'a>> {
    let native = |scenario: &str, check: &str| {
        let checks = ceiling.and_then(|ceiling| ceiling.scenarios.get(scenario));
        checks.and_then(|checks| checks.get(check).copied())
    };
    let here = score.scenarios.iter().flat_map(|(scenario, checks)| {
        checks
            .iter()
            .map(move |(check, outcome)| (scenario, check, *outcome))
    });
    let absent = ceiling.into_iter().flat_map(|ceiling| {
        ceiling.scenarios.iter().flat_map(|(scenario, checks)| {
            let there = score.scenarios.get(scenario);
            let missing = checks
                .keys()
                .filter(move |check| there.is_none_or(|there| !there.contains_key(*check)));
            missing.map(move |check| (scenario, check, Outcome::NotJudged))
        })
    });
    here.chain(absent)
        .filter_map(|(scenario, check, outcome)| {
            let native = native(scenario, check);
            let short = match outcome {
                // The server need not do what the revision does not require, and then no bridge
                // can.
                Outcome::Failed => {
                    let required = !score.not_required.contains(scenario);
                    required || (ceiling.is_some() && native != Some(Outcome::Failed))
                }
                Outcome::Warned => ceiling.is_some() && native != Some(Outcome::Warned),
                Outcome::NotJudged => native == Some(Outcome::Passed),
                Outcome::Passed => false,
            };
            let remark = score.remarks.get(&(scenario.clone(), check.clone()));
            short.then_some(Shortfall {
                scenario,
                check,
                outcome,
                native,
                remark: remark.map(String::as_str),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Era, SUITES};
    use super::*;

    fn cell(way: Way) -> Cell {
        Cell {
            suite: &SUITES[0],
            revision: &SUITES[0].revisions[1],
            era: Era::Legacy,
            way,
        }
    }

    fn score(checks: &[(&str, Outcome)]) -> Score {
        let mut score = Score::default();
        let checks = checks
            .iter()
            .map(|(id, outcome)| ((*id).to_owned(), *outcome))
            .collect();
        score.scenarios.insert("ping".to_owned(), checks);
        score
    }

    fn list(outcome: &str) -> Expected {
        let line = format!("0.2.0-alpha.12 2025-11-25 * * ping a {outcome} -- because");
        Expected::parse(&line).expect("an entry")
    }

    #[test]
    fn check_that_passes_natively_must_pass_or_be_listed() {
        let ceiling = score(&[("a", Outcome::Passed)]);
        for outcome in [Outcome::Failed, Outcome::Warned, Outcome::NotJudged] {
            let bridged = score(&[("a", outcome)]);
            let judged = Expected::default().judge(cell(Way::Shared), &bridged, Some(&ceiling));
            assert_eq!(judged.len(), 1, "{outcome:?}");
            let excused = list(outcome.as_str()).judge(cell(Way::Shared), &bridged, Some(&ceiling));
            assert_eq!(excused, [] as [String; 0]);
        }
        let absent = score(&[]);
        let judged = Expected::default().judge(cell(Way::Shared), &absent, Some(&ceiling));
        assert_eq!(judged.len(), 1);
    }

    #[test]
    fn expected_failure_that_passes_or_fails_otherwise_fails_the_run() {
        let ceiling = score(&[("a", Outcome::Passed)]);
        let judged = list("not-judged").judge(cell(Way::Shared), &ceiling, Some(&ceiling));
        assert_eq!(judged.len(), 1);
        let bridged = score(&[("a", Outcome::Failed)]);
        let judged = list("not-judged").judge(cell(Way::Shared), &bridged, Some(&ceiling));
        assert_eq!(judged.len(), 2);
    }

    #[test]
    fn failure_of_the_native_server_is_not_excused_for_either() {
        let failing = score(&[("a", Outcome::Failed)]);
        let native = list("failed").judge(cell(Way::Native), &failing, None);
        assert_eq!(native.len(), 1, "`*` speaks of the ways through Rialto only");
        let bridged = Expected::default().judge(cell(Way::Shared), &failing, Some(&failing));
        assert_eq!(bridged.len(), 1);
    }

    #[test]
    fn what_is_not_required_may_fail_where_the_native_server_fails_too() {
        let mut failing = score(&[("a", Outcome::Failed)]);
        failing.not_required.insert("ping".to_owned());
        let none = [] as [String; 0];
        assert_eq!(Expected::default().judge(cell(Way::Native), &failing, None), none);
        let judged = Expected::default().judge(cell(Way::Shared), &failing, Some(&failing));
        assert_eq!(judged, none);
        let ceiling = score(&[("a", Outcome::Passed)]);
        let judged = Expected::default().judge(cell(Way::Shared), &failing, Some(&ceiling));
        assert_eq!(judged.len(), 1);
    }

    #[test]
    fn scenario_that_did_not_run_is_a_complaint() {
        let ceiling = score(&[]);
        let judged = Expected::default().judge(cell(Way::Shared), &Score::default(), Some(&ceiling));
        assert_eq!(judged.len(), 1);
    }

    #[test]
    fn entry_needs_seven_fields_and_a_reason() {
        assert!(
            Expected::parse("# a comment\n\n")
                .expect("nothing")
                .failures()
                .is_empty()
        );
        assert!(Expected::parse("0.1.16 2025-11-25 * * ping a failed").is_err());
        assert!(Expected::parse("0.1.16 2025-11-25 * * ping failed -- because").is_err());
        assert!(Expected::parse("0.1.16 2025-11-25 * * ping a passed -- because").is_err());
    }
}
