//! The client side of the official suite: its `client` command starts a server for each scenario
//! and runs an official SDK client against it, which reaches it over stdio through `rialto
//! connect`.
//!
//! Hides which cells there are, how the suite is configured, and how its results are compared.
//! It refuses to leave a scenario out silently: each of the suite's is played, or has a reason in
//! [`scenario::SCENARIOS`].

mod page;
mod scenario;

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};

use super::expected::{Expected, Failure};
use super::score::{Outcome, Score};
use super::subject::{is_setting, wait};
use super::{Places, Report, WORKERS, binaries, suite};
use scenario::{EXTENSION, SCENARIOS, Scenario};

pub use page::HEADING;

/// The suite's version, and its folder under `.test-deps`.
const VERSION: &str = "0.2.0-alpha.12";
const FOLDER: &str = "conformance-0.2";

/// What stands in an entry of the list of expected failures in the place of an era, and of a way
/// through `serve`.
const ERA: &str = "client";
const WAY: &str = "connect";

/// The suite ends a client after the first; the second is for the suite itself.
const CLIENT_TIMEOUT: &str = "60000";
const PATIENCE: Duration = Duration::from_secs(120);

/// The suite splits this at spaces and hands the parts to a shell, which finds the paths in the
/// environment.
const HOST: &str = "\"$CONFORMANCE_NODE\" \"$CONFORMANCE_HOST\"";

/// One scenario at one revision.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    scenario: &'static Scenario,
    revision: &'static str,
}

impl fmt::Display for Cell {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "conformance::connect::{}::{}",
            self.revision, self.scenario.name
        )
    }
}

/// What a cell came to.
#[derive(Debug)]
struct Played {
    cell: Cell,
    score: Score,
    complaints: Vec<String>,
}

pub fn matches(filters: &[String]) -> bool {
    cells(filters).next().is_some()
}

/// Whether an entry of the list of expected failures is about this side.
pub fn concerns(failure: &Failure) -> bool {
    failure.way == WAY
}

#[cfg(test)]
pub fn is_known(failure: &Failure) -> bool {
    cells(&[]).any(|cell| covers(failure, cell))
}

/// Plays the cells that the filters keep, prints one line for each, and adds them to the report.
pub fn run(
    places: &Places<'_>,
    node: &Path,
    expected: &Expected,
    filters: &[String],
    report: &mut Report,
) -> anyhow::Result<()> {
    let cells: Vec<Cell> = cells(filters).collect();
    if cells.is_empty() {
        return Ok(());
    }
    println!(
        "\nrunning the conformance suite for clients, {} cells",
        cells.len()
    );
    let differences = scenario::differences(&list(places, node)?);
    ensure!(
        differences.is_empty(),
        "the suite's scenarios for clients are not those known here: {}",
        differences.join("; ")
    );
    let next = AtomicUsize::new(0);
    let finished = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(&cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let played = play(places, node, cell).map(|score| Played {
                        cell,
                        complaints: judge(cell, &score, expected),
                        score,
                    });
                    announce(cell, &played);
                    finished.lock().expect("no worker panics").push((cell, played));
                }
            });
        }
    });
    let mut finished = finished.into_inner().expect("no worker panics");
    finished.sort_by_key(|(cell, _)| cells.iter().position(|known| known == cell));

    let mut good = Vec::new();
    for (cell, played) in finished {
        match played {
            Ok(played) if played.complaints.is_empty() => good.push(played),
            Ok(_) => report.failures.push(cell.to_string()),
            Err(error) => report.failures.push(format!("{cell}: {error:#}")),
        }
    }
    report.passed += good.len();
    if good.len() == self::cells(&[]).count() {
        report.connect_page = Some(page::render(&good, expected));
    }
    Ok(())
}

fn cells(filters: &[String]) -> impl Iterator<Item = Cell> {
    let played = SCENARIOS.iter().filter(|scenario| scenario.left_out.is_none());
    let all = played.flat_map(|scenario| {
        let revisions = scenario.revisions.iter();
        revisions.map(move |revision| Cell { scenario, revision })
    });
    all.filter(|cell| {
        let name = cell.to_string();
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
    })
}

fn program(places: &Places<'_>) -> PathBuf {
    places.test_deps.join(FOLDER).join(suite::PROGRAM)
}

fn list(places: &Places<'_>, node: &Path) -> anyhow::Result<String> {
    let listed = Command::new(node)
        .arg(program(places))
        .args(["list", "--client"])
        .output()
        .context("the conformance suite does not run")?;
    String::from_utf8(listed.stdout).context("the suite's list is no text")
}

fn play(places: &Places<'_>, node: &Path, cell: Cell) -> anyhow::Result<Score> {
    let folder = places
        .results()?
        .join(cell.to_string().replace("::", "-").replace('/', "-"));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let log = folder.join("suite.log");
    let printed = File::create(&log).context("cannot create the suite's log")?;
    let results = folder.join("results");

    let mut command = Command::new(node);
    // Settings in the developer's environment must not decide what is measured.
    let settings = std::env::vars_os().filter(|(name, _)| is_setting(&name.to_string_lossy()));
    for (name, _) in settings {
        command.env_remove(name);
    }
    command
        .arg(program(places))
        .args(["client", "--command", HOST, "--scenario", cell.scenario.name])
        .args(["--timeout", CLIENT_TIMEOUT])
        .arg("--output-dir")
        .arg(&results);
    if cell.revision != EXTENSION {
        command.args(["--spec-version", cell.revision]);
    }
    let files = places.repository.join("tests/conformance/client");
    let quoted = |path: &Path| format!("'{}'", path.display());
    let browser = format!("{} {}", quoted(node), quoted(&files.join("browser.mjs")));
    let mut child = command
        .env("CONFORMANCE_NODE", node)
        .env("CONFORMANCE_HOST", files.join("host.mjs"))
        .env("CONFORMANCE_RIALTO", binaries()?.join("rialto"))
        .env("RIALTO_TEST_DEPS", places.test_deps)
        // No user is asked, nothing is kept beyond the cell, and the machine's own tokens are not
        // touched.
        .env("RIALTO_BROWSER", browser)
        .env("RIALTO_STATE_DIR", folder.join("state"))
        .env("RIALTO_KEYRING", "off")
        .stdin(Stdio::null())
        .stderr(printed.try_clone().context("cannot share the suite's log")?)
        .stdout(printed)
        .spawn()
        .context("the conformance suite does not run")?;
    let Some(status) = wait(&mut child, PATIENCE)? else {
        child.kill().context("cannot end the suite")?;
        child.wait().context("cannot wait for the suite")?;
        anyhow::bail!("the suite did not end; see {}", log.display());
    };
    let saved = saved_checks(&results).with_context(|| format!("see {}", log.display()))?;
    Score::of_scenario(cell.scenario.name, &saved, status.success())
}

/// The suite saves the checks of `auth/x` in `auth/x-<time>/checks.json`.
fn saved_checks(folder: &Path) -> anyhow::Result<String> {
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let checks = folder.join("checks.json");
        if checks.exists() {
            return fs::read_to_string(&checks).context("cannot read the checks");
        }
        for entry in fs::read_dir(&folder).context("the suite saved no results")? {
            let entry = entry.context("cannot list the results")?;
            if entry.path().is_dir() {
                folders.push(entry.path());
            }
        }
    }
    anyhow::bail!("the suite saved no checks")
}

fn covers(failure: &Failure, cell: Cell) -> bool {
    concerns(failure)
        && failure.era == ERA
        && failure.suite == VERSION
        && failure.revision == cell.revision
        && failure.scenario == cell.scenario.name
}

/// Every check that did not pass must be on the list, and no check on the list may pass.
fn judge(cell: Cell, score: &Score, expected: &Expected) -> Vec<String> {
    let checks = score.scenarios.values().flatten();
    let short: Vec<(&String, Outcome)> = checks
        .filter(|(_, outcome)| matches!(outcome, Outcome::Failed | Outcome::Warned))
        .map(|(check, outcome)| (check, *outcome))
        .collect();
    let here: Vec<&Failure> = expected
        .failures()
        .iter()
        .filter(|failure| covers(failure, cell))
        .collect();
    let is = |failure: &Failure, check: &str, outcome| failure.check == check && failure.outcome == outcome;
    let mut complaints = Vec::new();
    for (check, outcome) in &short {
        if !here.iter().any(|failure| is(failure, check, *outcome)) {
            let key = (cell.scenario.name.to_owned(), (*check).clone());
            let remark = score.remarks.get(&key).map_or("", String::as_str);
            complaints.push(format!("{check}: {}: {remark}", outcome.as_str()));
        }
    }
    for failure in here {
        if !short.iter().any(|(check, outcome)| is(failure, check, *outcome)) {
            complaints.push(format!(
                "{} is expected to be `{}`, but is not: take it off the list",
                failure.check,
                failure.outcome.as_str()
            ));
        }
    }
    if score.checks_passed() == 0 {
        complaints.push("nothing in it passed".to_owned());
    }
    complaints
}

fn announce(cell: Cell, played: &anyhow::Result<Played>) {
    use std::fmt::Write as _;

    // One write keeps the lines of two workers apart.
    let mut lines = String::new();
    match played {
        Ok(Played {
            score, complaints, ..
        }) => {
            let verdict = if complaints.is_empty() { "ok" } else { "FAILED" };
            let _ = writeln!(
                lines,
                "test {cell} ... {verdict} ({} checks)",
                score.checks_passed()
            );
            for complaint in complaints {
                let _ = writeln!(lines, "  {complaint}");
            }
        }
        Err(error) => {
            let _ = writeln!(lines, "test {cell} ... FAILED\n  {error:#}");
        }
    }
    print!("{lines}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell() -> Cell {
        cells(&["2025-11-25::tools_call".to_owned()])
            .next()
            .expect("a cell")
    }

    fn score(status: &str, succeeded: bool) -> Score {
        let checks = format!(
            r#"[{{"id":"a","status":"{status}","errorMessage":"because"}},{{"id":"b","status":"SUCCESS"}}]"#
        );
        Score::of_scenario("tools_call", &checks, succeeded).expect("a score")
    }

    fn list(outcome: &str) -> Expected {
        let line = format!("{VERSION} 2025-11-25 client connect tools_call a {outcome} -- reason");
        Expected::parse(&line).expect("an entry")
    }

    #[test]
    fn cells_are_found_by_any_part_of_their_names() {
        assert_eq!(cell().to_string(), "conformance::connect::2025-11-25::tools_call");
        assert!(matches(&["connect".to_owned()]));
        assert!(!matches(&["legacy::shared".to_owned()]));
        assert!(cells(&[]).all(|cell| cell.scenario.left_out.is_none()));
    }

    #[test]
    fn check_that_does_not_pass_is_a_complaint_unless_it_is_listed() {
        let none = Expected::default();
        assert_eq!(judge(cell(), &score("SUCCESS", true), &none), [] as [String; 0]);
        assert_eq!(
            judge(cell(), &score("FAILURE", false), &none),
            ["a: failed: because"]
        );
        assert_eq!(
            judge(cell(), &score("WARNING", true), &none),
            ["a: warned: because"]
        );
        let listed = judge(cell(), &score("FAILURE", false), &list("failed"));
        assert_eq!(listed, [] as [String; 0]);
        assert_eq!(judge(cell(), &score("SUCCESS", true), &list("failed")).len(), 1);
    }

    #[test]
    fn suite_that_is_not_content_is_a_complaint_even_without_a_check_to_blame() {
        let judged = judge(cell(), &score("SUCCESS", false), &Expected::default());
        assert_eq!(judged, ["scenario: failed: "]);
    }
}
