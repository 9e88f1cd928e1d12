//! The official conformance suite, run against `rialto serve` and against the same server without a
//! bridge; and, by `client_side`, through `rialto connect`.
//!
//! Hides which cells there are and how they are judged. It refuses to excuse: a check that the
//! native server passes must pass through Rialto, or stand in
//! `tests/conformance/expected-failures.txt` with a reason, and an excuse that is no longer needed
//! fails the run as well.

mod client_side;
mod document;
mod expected;
mod score;
mod subject;
mod suite;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::test_deps;
use expected::Expected;
use score::Score;
use subject::{Programs, Subject};

const DOCUMENT: &str = "docs/conformance.md";
pub const EXAMPLE: &str = "conformance::0.2.0-alpha.12::2025-11-25::legacy::shared";
const EXPECTED: &str = "tests/conformance/expected-failures.txt";

/// The first revision without a handshake; dates compare as text.
const MODERN: &str = "2026-07-28";

/// The suite waits far more than it computes, so two at a time is faster even on two cores.
const WORKERS: usize = 2;

/// One published version of the suite.
#[derive(Debug, PartialEq)]
struct Suite {
    version: &'static str,
    /// Its folder under `.test-deps`.
    folder: &'static str,
    revisions: &'static [Revision],
    /// The servers it is run against.
    eras: &'static [Era],
    /// Additional arguments of `rialto serve`.
    serve_flags: &'static [&'static str],
}

/// A revision of the specification, and what makes this suite test it.
#[derive(Debug, PartialEq)]
struct Revision {
    date: &'static str,
    selection: &'static [&'static str],
    /// What is tried between the suite and the fixture.
    ways: &'static [Way],
}

const SUITES: &[Suite] = &[
    Suite {
        version: "0.2.0-alpha.12",
        folder: "conformance-0.2",
        revisions: &[
            Revision {
                date: "2026-07-28",
                selection: &["--requirements", "2026-07-28"],
                ways: Way::ALL,
            },
            Revision {
                date: "2025-11-25",
                selection: &["--requirements", "2025-11-25"],
                ways: Way::ALL,
            },
            Revision {
                date: "2025-06-18",
                selection: &["--spec-version", "2025-06-18", "--suite", "all"],
                ways: Way::OF_CHILDREN,
            },
            Revision {
                date: "2025-03-26",
                selection: &["--spec-version", "2025-03-26", "--suite", "all"],
                ways: Way::OF_CHILDREN,
            },
        ],
        eras: &[Era::Legacy, Era::Modern, Era::Dual],
        serve_flags: &[],
    },
    Suite {
        version: "0.1.16",
        folder: "conformance-0.1",
        revisions: &[
            Revision {
                date: "2025-11-25",
                selection: &["--spec-version", "2025-11-25", "--suite", "all"],
                ways: Way::OF_CHILDREN_AND_FLEETS,
            },
            Revision {
                date: "2025-06-18",
                selection: &["--spec-version", "2025-06-18", "--suite", "all"],
                ways: Way::OF_CHILDREN,
            },
        ],
        eras: &[Era::Legacy, Era::Dual],
        // This version ends none of its sessions, and has more scenarios than sessions are allowed
        // by default.
        serve_flags: &["--max-sessions", "64"],
    },
];

/// What the fixture server speaks.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Era {
    Legacy,
    Modern,
    Dual,
}

impl Era {
    fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
            Self::Dual => "dual",
        }
    }
}

/// What stands between the suite and the fixture.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    /// Nothing: the fixture's own HTTP. It is the ceiling that the others are compared with.
    Native,
    Shared,
    PerSession,
    /// Rialto in front of the fixture's own HTTP.
    Remote,
    /// Rialto in front of another Rialto, which has the fixture as a child.
    Chain,
    /// Three replicas behind a round-robin balancer, each with the fixture as a shared child.
    Fleet,
    /// An aggregate of three fixtures: a legacy child, a modern child, and one of both eras that is
    /// reached over HTTP. The one of the cell's era is shown under its own names.
    Aggregate,
}

impl Way {
    const OF_CHILDREN: &'static [Self] = &[Self::Native, Self::Shared, Self::PerSession];
    const OF_CHILDREN_AND_FLEETS: &'static [Self] =
        &[Self::Native, Self::Shared, Self::PerSession, Self::Fleet];
    const ALL: &'static [Self] = &[
        Self::Native,
        Self::Shared,
        Self::PerSession,
        Self::Remote,
        Self::Chain,
        Self::Fleet,
        Self::Aggregate,
    ];

    fn replicas(self) -> usize {
        match self {
            Self::Native | Self::Shared | Self::PerSession | Self::Remote | Self::Chain | Self::Aggregate => {
                1
            }
            Self::Fleet => 3,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Shared => "shared",
            Self::PerSession => "per_session",
            Self::Remote => "remote",
            Self::Chain => "chain",
            Self::Fleet => "fleet",
            Self::Aggregate => "aggregate",
        }
    }
}

/// One run of the suite.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    suite: &'static Suite,
    revision: &'static Revision,
    era: Era,
    way: Way,
}

impl Cell {
    /// What the fixture speaks when the suite talks to it without a bridge. A server that lacks the
    /// suite's era fails everything by itself; what a bridge is to reach is the score of the same
    /// server with both eras.
    fn native_era(&self) -> Era {
        if self.crosses() { Era::Dual } else { self.era }
    }

    /// Whether the server lacks the era of the suite's requests.
    fn crosses(&self) -> bool {
        match self.era {
            Era::Legacy => self.revision.date >= MODERN,
            Era::Modern => self.revision.date < MODERN,
            Era::Dual => false,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "conformance::{}::{}::{}::{}",
            self.suite.version,
            self.revision.date,
            self.era.as_str(),
            self.way.as_str()
        )
    }
}

/// What a cell came to.
#[derive(Debug)]
struct Measured {
    cell: Cell,
    score: Score,
    /// Why the cell is not good; empty if it is.
    complaints: Vec<String>,
}

/// How the whole run went, for the closing summary.
#[derive(Debug, Default)]
pub struct Report {
    pub passed: usize,
    pub failures: Vec<String>,
    pub elapsed: Duration,
    /// Each part of the page, if every cell of it ran and was good.
    pub serve_page: Option<String>,
    pub connect_page: Option<String>,
}

/// Where things are on this machine.
pub struct Places<'a> {
    pub repository: &'a Path,
    pub test_deps: &'a Path,
}

impl Places<'_> {
    /// Where logs and the suite's own results go; cargo's target folder, which git ignores.
    fn results(&self) -> anyhow::Result<PathBuf> {
        Ok(binaries()?.join("conformance"))
    }
}

/// Whether any cell would run.
pub fn matches(filters: &[String]) -> bool {
    groups(filters).next().is_some() || client_side::matches(filters)
}

/// Runs the cells that the filters keep, and prints one line for each.
pub fn run(places: &Places<'_>, filters: &[String]) -> anyhow::Result<Report> {
    let started = Instant::now();
    let expected = Expected::read(&places.repository.join(EXPECTED))?;
    let node = test_deps::modern_node(places.test_deps)?;
    let groups: Vec<_> = groups(filters).collect();
    let ways_of = |&(suite, revision, era): &Group| ways(filters, suite, revision, era).count();
    let cells: usize = groups.iter().map(ways_of).sum();
    println!("\nrunning the conformance suite, {cells} cells");
    let next = AtomicUsize::new(0);
    let finished = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(&(suite, revision, era)) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let index = Cell {
                        suite,
                        revision,
                        era,
                        way: Way::Native,
                    };
                    let outcome = measure_group(places, &node, &expected, filters, index);
                    announce(index, &outcome);
                    finished.lock().expect("no worker panics").push((index, outcome));
                }
            });
        }
    });
    let mut finished = finished.into_inner().expect("no worker panics");
    finished.sort_by_key(|(cell, _)| {
        groups
            .iter()
            .position(|group| *group == (cell.suite, cell.revision, cell.era))
    });

    let mut report = Report {
        elapsed: started.elapsed(),
        ..Report::default()
    };
    let mut measured = Vec::new();
    for (cell, outcome) in finished {
        match outcome {
            Ok(cells) => measured.extend(cells),
            Err(error) => report.failures.push(format!("{cell}: {error:#}")),
        }
    }
    for cell in &measured {
        if cell.complaints.is_empty() {
            report.passed += 1;
        } else {
            report.failures.push(cell.cell.to_string());
        }
    }
    let all: usize = self::groups(&[])
        .map(|(_, revision, _)| revision.ways.len())
        .sum();
    if cells == all && report.failures.is_empty() {
        report.serve_page = Some(document::render(&measured, &expected));
    }
    client_side::run(places, &node, &expected, filters, &mut report)?;
    report.elapsed = started.elapsed();
    Ok(report)
}

/// The page with the parts that were measured in place of those that it has; `None` if none was.
fn renewed(committed: &str, report: &Report) -> Option<String> {
    if report.serve_page.is_none() && report.connect_page.is_none() {
        return None;
    }
    let at = committed.find(client_side::HEADING).unwrap_or(committed.len());
    let (serve, connect) = committed.split_at(at);
    let serve = report.serve_page.as_deref().unwrap_or(serve);
    let connect = report.connect_page.as_deref().unwrap_or(connect);
    Some(format!("{serve}{connect}"))
}

/// Compares what was measured with the committed page; a difference is a failure like any other.
pub fn check_document(places: &Places<'_>, report: &mut Report) {
    let name = "conformance::document";
    let committed = fs::read_to_string(places.repository.join(DOCUMENT)).unwrap_or_default();
    let Some(measured) = renewed(&committed, report) else {
        return;
    };
    if committed == measured {
        println!("test {name} ... ok");
        report.passed += 1;
    } else {
        println!(
            "test {name} ... FAILED\n  {DOCUMENT} is not what was measured; `cargo xtask conformance` writes it"
        );
        report.failures.push(name.to_owned());
    }
}

/// Writes the parts of the page of which no cell failed or was left out.
pub fn write_document(places: &Places<'_>, report: &Report) -> anyhow::Result<()> {
    let path = places.repository.join(DOCUMENT);
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let Some(measured) = renewed(&committed, report) else {
        println!(
            "{DOCUMENT} is left as it is: a part of it is written only if all its cells ran and none failed"
        );
        return Ok(());
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(&path, measured).with_context(|| format!("cannot write {DOCUMENT}"))
}

type Group = (&'static Suite, &'static Revision, Era);

/// The groups of which a filter keeps a cell.
fn groups(filters: &[String]) -> impl Iterator<Item = Group> {
    let all = SUITES.iter().flat_map(|suite| {
        let revisions = suite.revisions.iter();
        revisions.flat_map(move |revision| suite.eras.iter().map(move |&era| (suite, revision, era)))
    });
    all.filter(|&(suite, revision, era)| {
        let mut names = revision.ways.iter().map(|&way| {
            Cell {
                suite,
                revision,
                era,
                way,
            }
            .to_string()
        });
        filters.is_empty() || names.any(|name| filters.iter().any(|filter| name.contains(filter.as_str())))
    })
}

/// The ways that the filters keep. The native run stays with any of them, for they are compared with it.
fn ways<'a>(
    filters: &'a [String],
    suite: &'static Suite,
    revision: &'static Revision,
    era: Era,
) -> impl Iterator<Item = Way> + 'a {
    revision.ways.iter().copied().filter(move |&way| {
        let cell = Cell {
            suite,
            revision,
            era,
            way,
        };
        let name = cell.to_string();
        way == Way::Native
            || filters.is_empty()
            || filters.iter().any(|filter| name.contains(filter.as_str()))
    })
}

fn measure_group(
    places: &Places<'_>,
    node: &Path,
    expected: &Expected,
    filters: &[String],
    native: Cell,
) -> anyhow::Result<Vec<Measured>> {
    let mut measured: Vec<Measured> = Vec::new();
    for way in ways(filters, native.suite, native.revision, native.era) {
        let cell = Cell { way, ..native };
        let (score, exit) = measure(places, node, cell).with_context(|| cell.to_string())?;
        let ceiling = measured.first().map(|native| &native.score);
        let mut complaints = expected.judge(cell, &score, ceiling);
        complaints.extend(exit);
        measured.push(Measured {
            cell,
            score,
            complaints,
        });
    }
    Ok(measured)
}

/// Runs one cell; the second value is a complaint about how the subject ended.
fn measure(places: &Places<'_>, node: &Path, cell: Cell) -> anyhow::Result<(Score, Option<String>)> {
    let folder = places.results()?.join(cell.to_string().replace("::", "-"));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let fixture = places.test_deps.join("conformance-server/server.mjs");
    let rialto = binaries()?.join("rialto");
    let fleet = binaries()?.join("testkit-fleet");
    let programs = Programs {
        rialto: &rialto,
        fleet: &fleet,
        node,
        fixture: &fixture,
    };
    let subject = Subject::start(cell, programs, &folder)?;
    if cell.era == Era::Legacy && cell.crosses() {
        // Each replica starts servers of its own, and the balancer goes round.
        for _ in 0..cell.way.replicas() {
            subject.warm_up().context("it does not answer")?;
        }
    }
    let program = places.test_deps.join(cell.suite.folder).join(suite::PROGRAM);
    let score = suite::run(node, &program, cell.revision.selection, subject.url(), &folder);
    let exit = subject.stop()?;
    Ok((score?, exit))
}

fn announce(group: Cell, outcome: &anyhow::Result<Vec<Measured>>) {
    use std::fmt::Write as _;

    // One write for all of them keeps the lines of two workers apart.
    let mut lines = String::new();
    match outcome {
        Ok(cells) => {
            for Measured {
                cell,
                score,
                complaints,
            } in cells
            {
                let verdict = if complaints.is_empty() { "ok" } else { "FAILED" };
                let _ = writeln!(lines, "test {cell} ... {verdict} ({score})");
                for complaint in complaints {
                    let _ = writeln!(lines, "  {complaint}");
                }
            }
        }
        Err(error) => {
            let _ = writeln!(lines, "test {group} ... FAILED\n  {error:#}");
        }
    }
    print!("{lines}");
}

/// Where cargo put this program and, beside it, `rialto`.
fn binaries() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where xtask itself is")?;
    own.parent()
        .map(Path::to_path_buf)
        .context("xtask is in no folder")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_keeps_a_cell_together_with_its_native_run() {
        assert_eq!(groups(&[]).count(), 16);
        assert_eq!(
            groups(&["0.1.16::2025-06-18::dual::shared".to_owned()]).count(),
            1
        );
        let kept = |filter: &str| {
            let (filters, suite) = ([filter.to_owned()], &SUITES[0]);
            let ways = ways(&filters, suite, &suite.revisions[0], Era::Dual);
            ways.collect::<Vec<_>>()
        };
        assert_eq!(kept("dual::fleet"), [Way::Native, Way::Fleet]);
        assert_eq!(kept("2026-07-28::dual"), Way::ALL);
        assert!(matches(&["2025-03-26".to_owned()]));
        assert!(!matches(&["interop".to_owned()]));
    }

    #[test]
    fn part_that_was_not_measured_stays_on_the_page() {
        let committed = format!("serve{}connect", client_side::HEADING);
        let mut report = Report::default();
        assert_eq!(renewed(&committed, &report), None);
        report.connect_page = Some(format!("{}new", client_side::HEADING));
        let renewed = renewed(&committed, &report).expect("a page");
        assert_eq!(renewed, format!("serve{}new", client_side::HEADING));
    }

    #[test]
    fn server_of_the_other_era_is_compared_with_one_of_both() {
        let native = |revision: &str, era| {
            let suite = &SUITES[0];
            let revision = suite
                .revisions
                .iter()
                .find(|known| known.date == revision)
                .expect("a revision");
            let way = Way::Native;
            Cell {
                suite,
                revision,
                era,
                way,
            }
            .native_era()
        };
        assert_eq!(native("2026-07-28", Era::Legacy), Era::Dual);
        assert_eq!(native("2025-06-18", Era::Modern), Era::Dual);
        assert_eq!(native("2026-07-28", Era::Modern), Era::Modern);
        assert_eq!(native("2025-11-25", Era::Legacy), Era::Legacy);
    }

    #[test]
    fn expected_failures_name_cells_that_exist() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent");
        let expected = Expected::read(&repository.join(EXPECTED)).expect("the list reads");
        let cells: Vec<Cell> = groups(&[])
            .flat_map(|(suite, revision, era)| {
                revision.ways.iter().map(move |&way| Cell {
                    suite,
                    revision,
                    era,
                    way,
                })
            })
            .collect();
        for failure in expected.failures() {
            assert!(
                cells.iter().any(|cell| failure.covers(*cell)) || client_side::is_known(failure),
                "{failure:?} covers no cell"
            );
        }
    }
}
