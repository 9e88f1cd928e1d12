//! The table for people, in `docs/conformance.md`.
//!
//! Hides its layout. It refuses to contain anything that differs from one good run to the next: no
//! times, no paths, no addresses.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::client_side::concerns;
use super::expected::Expected;
use super::score::{Outcome, Score};
use super::{Cell, Measured, SUITES, Way};

const HEAD: &str = "\
# Conformance

<!-- Written by `cargo xtask conformance`; `cargo xtask test` fails if it is not what it measures. -->

Use this page to see which checks of the official suite, `@modelcontextprotocol/conformance`, pass
through `rialto serve`. The server is the stdio server in `tests/conformance/server`, in both
process modes.

- *Native* is the same server without a bridge, over the HTTP of the official TypeScript SDK,
  measured in the same run. It is the score to reach.
- *Era* is what the server speaks. `legacy` knows only revisions up to 2025-11-25, `modern` only
  2026-07-28, and `dual` uses the era of the client's first message.
- Where the server lacks the era of the revision, Rialto translates. *Native* is then the same
  server with both eras: without a bridge, nothing would pass.
- *Remote* is Rialto in front of the same server's own HTTP. *Chain* is Rialto in front of another
  Rialto that has the server as a child. Both run for the newest revision of each era.
- *Fleet* is three replicas behind a round-robin balancer without affinity, each with a shared
  server of its own, for the newest revisions.
- *Aggregate* is three such servers as one endpoint: a legacy child, a modern child, and a remote
  server of both eras. The server of the row has no prefix, so that the suite knows its names; the
  row `dual` is the remote one. The other two are listed beside it.

Each field has the number of scenarios that passed. The number after a plus sign is for scenarios
that the suite runs although the revision does not require them. Then comes the number of checks
that passed. The suite has no scenarios for 2024-11-05, and 0.1.16 has none for 2025-03-26. The
native server fails those scenarios of 2026-07-28 that test the tasks extension, which it does not
have.

";

pub(super) fn render(measured: &[Measured], expected: &Expected) -> String {
    let mut text = HEAD.to_owned();
    totals(&mut text, measured);
    shortfalls(&mut text, expected);
    scenarios(&mut text, measured);
    text
}

fn totals(text: &mut String, measured: &[Measured]) {
    text.push_str(
        "| Suite | Revision | Era | Native | Rialto, `shared` | Rialto, `per_session` | Rialto, remote | Rialto, chain | Rialto, fleet | Rialto, aggregate |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in measured.chunk_by(|one, other| same_row(one.cell, other.cell)) {
        let Some(Measured { cell, .. }) = row.first() else {
            continue;
        };
        let _ = write!(
            text,
            "| {} | {} | {} |",
            cell.suite.version,
            cell.revision.date,
            cell.era.as_str()
        );
        for way in Way::ALL {
            let found = row.iter().find(|measured| measured.cell.way == *way);
            let total = found.map_or_else(|| "–".to_owned(), |measured| total(&measured.score));
            let _ = write!(text, " {total} |");
        }
        text.push('\n');
    }
}

fn same_row(one: Cell, other: Cell) -> bool {
    (one.suite, one.revision, one.era) == (other.suite, other.revision, other.era)
}

fn total(score: &Score) -> String {
    let mut text = score.required().to_string();
    if !score.not_required.is_empty() {
        let _ = write!(text, " + {}", score.others());
    }
    let _ = write!(text, ", {} checks", score.checks_passed());
    text
}

fn shortfalls(text: &mut String, expected: &Expected) {
    text.push_str("\n## What does not pass, and why\n\n");
    let mut failures = expected
        .failures()
        .iter()
        .filter(|failure| !concerns(failure))
        .peekable();
    if failures.peek().is_none() {
        text.push_str("Every check that passes natively passes through Rialto.\n");
        return;
    }
    text.push_str(
        "Every other check that passes natively passes through Rialto. The list is\n\
         `tests/conformance/expected-failures.txt`; it may only shrink.\n\n\
         | Suite | Revision | Era | Process | Scenario | Check | Outcome | Reason |\n|---|---|---|---|---|---|---|---|\n",
    );
    for failure in failures {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            failure.suite,
            failure.revision,
            all_or(&failure.era),
            all_or(&failure.way),
            failure.scenario,
            failure.check,
            in_words(failure.outcome),
            failure.reason
        );
    }
}

fn all_or(field: &str) -> &str {
    if field == "*" { "all" } else { field }
}

pub(super) fn in_words(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Failed => "failed",
        Outcome::Warned => "warned",
        Outcome::Passed => "passed",
        Outcome::NotJudged => "not judged",
    }
}

fn scenarios(text: &mut String, measured: &[Measured]) {
    text.push_str(
        "\n## Scenario by scenario\n\n\
         A scenario is *not judged* where the suite found nothing to judge in it, and *warned* where a recommendation\n\
         is not followed. An asterisk marks those that the revision does not require.\n",
    );
    for suite in SUITES {
        for revision in suite.revisions {
            let cells: Vec<&Measured> = measured
                .iter()
                .filter(|measured| (measured.cell.suite, measured.cell.revision) == (suite, revision))
                .collect();
            let _ = write!(
                text,
                "\n### {}, suite {}\n\n| Scenario |",
                revision.date, suite.version
            );
            for Measured { cell, .. } in &cells {
                let _ = write!(text, " {}, {} |", cell.era.as_str(), cell.way.as_str());
            }
            let _ = writeln!(text, "\n|---|{}", "---|".repeat(cells.len()));
            let names: BTreeSet<&String> = cells
                .iter()
                .flat_map(|cell| cell.score.scenarios.keys())
                .collect();
            for name in names {
                let optional = cells.iter().any(|cell| cell.score.not_required.contains(name));
                let _ = write!(text, "| {name}{} |", if optional { " \\*" } else { "" });
                for Measured { score, .. } in &cells {
                    let _ = write!(text, " {} |", in_words(score.outcome(name)));
                }
                text.push('\n');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_row_per_suite_revision_and_era() {
        let suite = &SUITES[0];
        let measured: Vec<Measured> = suite
            .eras
            .iter()
            .flat_map(|&era| Way::ALL.iter().map(move |&way| (era, way)))
            .map(|(era, way)| Measured {
                cell: Cell {
                    suite,
                    revision: &suite.revisions[0],
                    era,
                    way,
                },
                score: Score::default(),
                complaints: Vec::new(),
            })
            .collect();
        let text = render(&measured, &Expected::default());
        let row = format!(
            "| 0.2.0-alpha.12 | 2026-07-28 | dual |{}",
            " 0 of 0, 0 checks |".repeat(Way::ALL.len())
        );
        assert!(text.contains(&row), "{text}");
        assert!(text.contains("Every check that passes natively passes through Rialto."));
    }
}
