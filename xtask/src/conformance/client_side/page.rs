//! The part about the client side of `docs/conformance.md`.
//!
//! Hides its layout. It refuses to contain anything that differs from one good run to the next.

use std::fmt::Write as _;

use super::scenario::{EXTENSION, SCENARIOS, Scenario};
use super::{Played, concerns};
use crate::conformance::document::in_words;
use crate::conformance::expected::Expected;

/// What this part of the page begins with.
pub const HEADING: &str = "\n## The client side: `rialto connect`\n";

const HEAD: &str = "
The suite's `client` command starts a server for each scenario and checks the requests that the
server receives. Here an official client is the host that starts `rialto connect` over stdio
(`tests/conformance/client`): the TypeScript SDK 1.x for revisions with a handshake, the TypeScript
client 2.x for 2026-07-28. Every HTTP request of the scenario comes from Rialto, authorization
included. A stand-in for a browser follows the page that Rialto opens.

Each field has the outcome of the scenario and the number of checks that passed. A dash means that
suite 0.2.0-alpha.12 does not have the scenario for that revision.

";

const REVISIONS: [&str; 5] = ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28", EXTENSION];

pub(super) fn render(played: &[Played], expected: &Expected) -> String {
    let mut text = format!("{HEADING}{HEAD}");
    let _ = writeln!(text, "| Scenario | {} |", REVISIONS.join(" | "));
    let _ = writeln!(text, "|---|{}", "---|".repeat(REVISIONS.len()));
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.left_out.is_none()) {
        let _ = write!(text, "| {} |", scenario.name);
        for revision in REVISIONS {
            let _ = write!(text, " {} |", field(played, scenario, revision));
        }
        text.push('\n');
    }
    shortfalls(&mut text, expected);
    text.push_str("\nScenarios that are not run, and why:\n\n| Scenario | Reason |\n|---|---|\n");
    for scenario in SCENARIOS {
        if let Some(reason) = scenario.left_out {
            let _ = writeln!(text, "| {} | {reason} |", scenario.name);
        }
    }
    text
}

fn field(played: &[Played], scenario: &Scenario, revision: &str) -> String {
    let found = played
        .iter()
        .find(|played| played.cell.scenario.name == scenario.name && played.cell.revision == revision);
    found.map_or_else(
        || "–".to_owned(),
        |Played { score, .. }| {
            format!(
                "{}, {}",
                in_words(score.outcome(scenario.name)),
                score.checks_passed()
            )
        },
    )
}

fn shortfalls(text: &mut String, expected: &Expected) {
    let failures: Vec<_> = expected
        .failures()
        .iter()
        .filter(|failure| concerns(failure))
        .collect();
    if failures.is_empty() {
        text.push_str("\nNo check fails or warns.\n");
        return;
    }
    text.push_str(
        "\nWhat does not pass, and why; the list is in `tests/conformance/expected-failures.txt` too, and may only shrink:\n\n\
         | Revision | Scenario | Check | Outcome | Reason |\n|---|---|---|---|---|\n",
    );
    for failure in failures {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            failure.revision,
            failure.scenario,
            failure.check,
            in_words(failure.outcome),
            failure.reason
        );
    }
}
