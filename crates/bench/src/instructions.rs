//! Instructions per call, counted by valgrind: the one figure that does not move with the machine's
//! mood.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::connect;
use crate::fleet::Fleet;
use crate::load::{self, Outcome, Until};
use crate::request::Call;
use crate::runner::print_line;
use crate::system::{Programs, Setup, System};

/// What was counted for one kind of work.
#[derive(Debug, Clone)]
pub struct Count {
    pub work: &'static str,
    pub native: f64,
    pub rialto: f64,
}

#[derive(Clone, Copy)]
enum Work {
    Calls {
        sessions: usize,
        in_flight: usize,
        call: Call,
    },
    Churn,
    /// The plain calls, at a replica of a fleet that owns their sessions.
    Fleet,
    /// Over stdio, in front of the native server; for native the same calls made directly.
    Connect {
        in_flight: usize,
    },
}

const PLAIN: Call = Call::Echo { padding: 0 };
const WORKS: [(&str, Work, Setup); 13] = [
    (
        "64 in flight, 16 sessions",
        Work::Calls {
            sessions: 16,
            in_flight: 64,
            call: PLAIN,
        },
        Setup::Plain,
    ),
    (
        "… with an audit log",
        Work::Calls {
            sessions: 16,
            in_flight: 64,
            call: PLAIN,
        },
        Setup::Audit,
    ),
    (
        "… at the owner of its session, in a fleet",
        Work::Fleet,
        Setup::Plain,
    ),
    (
        "… through an aggregate of three",
        Work::Calls {
            sessions: 16,
            in_flight: 64,
            call: PLAIN,
        },
        Setup::Aggregate,
    ),
    (
        "1 in flight",
        Work::Calls {
            sessions: 1,
            in_flight: 1,
            call: PLAIN,
        },
        Setup::Plain,
    ),
    (
        "10 KB payload, 16 in flight",
        Work::Calls {
            sessions: 4,
            in_flight: 16,
            call: Call::Echo { padding: 10_000 },
        },
        Setup::Plain,
    ),
    (
        "10 progress messages, 16 in flight",
        Work::Calls {
            sessions: 4,
            in_flight: 16,
            call: Call::Progress { count: 10 },
        },
        Setup::Plain,
    ),
    ("session opened, used, deleted", Work::Churn, Setup::Plain),
    (
        "64 in flight, 16 sessions, in front of native",
        Work::Calls {
            sessions: 16,
            in_flight: 64,
            call: PLAIN,
        },
        Setup::Remote,
    ),
    (
        "10 KB payload, 16 in flight, in front of native",
        Work::Calls {
            sessions: 4,
            in_flight: 16,
            call: Call::Echo { padding: 10_000 },
        },
        Setup::Remote,
    ),
    (
        "10 progress messages, 16 in flight, in front of native",
        Work::Calls {
            sessions: 4,
            in_flight: 16,
            call: Call::Progress { count: 10 },
        },
        Setup::Remote,
    ),
    (
        "stdio in front of native: 1 in flight",
        Work::Connect { in_flight: 1 },
        Setup::Plain,
    ),
    (
        "stdio in front of native: 64 in flight",
        Work::Connect { in_flight: 64 },
        Setup::Plain,
    ),
];

/// The short and the long run; both can be divided by every number in flight.
const SHORT: u64 = 640;
const LONG: u64 = 3840;
/// How many functions are shown.
const SHOWN: usize = 20;

/// Whether there is a valgrind to count with.
pub fn is_possible() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

pub(crate) fn require_valgrind() -> anyhow::Result<()> {
    if !is_possible() {
        bail!(
            "counting instructions needs valgrind, which does not run here: install the package `valgrind`"
        );
    }
    Ok(())
}

/// The programs as they are, with callgrind in front of the one that is looked at.
pub(crate) fn under_valgrind(programs: &Programs, file: &Path, flags: &[&str]) -> Programs {
    let mut prefix = vec![
        "valgrind".to_owned(),
        "--tool=callgrind".to_owned(),
        format!("--callgrind-out-file={}", file.display()),
    ];
    prefix.extend(flags.iter().map(|flag| (*flag).to_owned()));
    Programs {
        prefix,
        ..programs.clone()
    }
}

/// Counts every kind of work, for native and for Rialto.
///
/// `only`: kinds whose names hold this, instead of all.
pub async fn count(programs: &Programs, only: Option<&str>) -> anyhow::Result<Vec<Count>> {
    require_valgrind()?;
    let folder = tempfile::tempdir().context("cannot make a folder for temporary files")?;
    let mut counts = Vec::new();
    for (name, work, setup) in WORKS {
        if only.is_some_and(|word| !name.contains(word)) {
            continue;
        }
        let native = per_call(System::Native, work, Setup::Plain, programs, folder.path()).await?;
        let rialto = per_call(System::Rialto, work, setup, programs, folder.path()).await?;
        print_line(&format!(
            "{name}: native {native:.0}, Rialto {rialto:.0} instructions per call"
        ));
        if counts.is_empty() || only.is_some() {
            print_line(&top_functions(&folder.path().join("callgrind"))?);
        }
        counts.push(Count {
            work: name,
            native,
            rialto,
        });
    }
    Ok(counts)
}

async fn per_call(
    system: System,
    work: Work,
    setup: Setup,
    programs: &Programs,
    folder: &Path,
) -> anyhow::Result<f64> {
    let short = one_run(system, work, setup, programs, folder, SHORT).await?;
    let long = one_run(system, work, setup, programs, folder, LONG).await?;
    Ok((long - short) as f64 / (LONG - SHORT) as f64)
}

async fn one_run(
    system: System,
    work: Work,
    setup: Setup,
    programs: &Programs,
    folder: &Path,
    calls: u64,
) -> anyhow::Result<i64> {
    let file = folder.join("callgrind");
    let under_valgrind = under_valgrind(programs, &file, &[]);
    let until = Until::Calls(calls);
    let outcome = match (work, system) {
        (Work::Connect { in_flight }, System::Rialto) => {
            connect::calls(in_flight, calls, &under_valgrind).await?
        }
        (Work::Fleet, System::Rialto) => {
            let fleet = Fleet::start(programs)?;
            let replica = fleet.replica("owner", &under_valgrind);
            over_http(system, work, setup, &replica, until).await?
        }
        (work, system) => over_http(system, work, setup, &under_valgrind, until).await?,
    };
    if outcome.calls != calls {
        bail!("{} of {calls} calls were made", outcome.calls);
    }
    let text = std::fs::read_to_string(&file).context("callgrind wrote nothing")?;
    let line = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    line.and_then(|line| line.trim().parse().ok())
        .context("callgrind wrote no total")
}

async fn over_http(
    system: System,
    work: Work,
    setup: Setup,
    programs: &Programs,
    until: Until,
) -> anyhow::Result<Outcome> {
    let running = system.start(setup, programs)?;
    let outcome = match work {
        Work::Calls {
            sessions,
            in_flight,
            call,
        } => {
            let sessions = load::open_sessions(&running.target, sessions).await?;
            load::closed_loop(&running.target, &sessions, in_flight, call, until).await?
        }
        Work::Fleet => {
            let sessions = load::open_sessions(&running.target, 16).await?;
            load::closed_loop(&running.target, &sessions, 64, PLAIN, until).await?
        }
        Work::Connect { in_flight } => {
            let sessions = load::open_sessions(&running.target, 1).await?;
            load::closed_loop(&running.target, &sessions, in_flight, PLAIN, until).await?
        }
        Work::Churn => load::churn(&running.target, 8, until).await?,
    };
    running.stop().await?;
    Ok(outcome)
}

/// Where the instructions go, as `callgrind_annotate` tells it.
fn top_functions(file: &Path) -> anyhow::Result<String> {
    let annotated = |inclusive: &str| {
        // Without `--auto=no` it adds whole source files.
        let output = Command::new("callgrind_annotate")
            .args(["--auto=no", inclusive])
            .arg(file)
            .output()
            .context("callgrind_annotate does not run; it comes with valgrind")?;
        anyhow::Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let ours = |function: &str| function.contains("gateway::") || function.contains("protocol::");
    Ok(format!(
        "where Rialto's instructions go, each function's own:\n{}… the house's functions with what they call:\n{}",
        shares(&annotated("--inclusive=no")?, |_| true, |sum, part| sum + part),
        // A part that is listed apart is already in the whole.
        shares(&annotated("--inclusive=yes")?, ours, f64::max)
    ))
}

/// Joins the lines of one function, whichever files its inlined parts come from.
fn shares(annotated: &str, wanted: impl Fn(&str) -> bool, join: impl Fn(f64, f64) -> f64) -> String {
    let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
    for line in annotated.lines() {
        // ` 5,431,226 ( 3.29%)  file:function [object]`
        let Some((count, place)) = line.split_once("%)") else {
            continue;
        };
        let share = count
            .rsplit('(')
            .next()
            .and_then(|share| share.trim().parse::<f64>().ok());
        let function = place.split(" [").next().and_then(|place| place.split_once(':'));
        if let (Some(share), Some((_, function))) = (share, function)
            && wanted(function)
        {
            let known = shares.entry(function).or_default();
            *known = join(*known, share);
        }
    }
    let mut sorted: Vec<_> = shares.into_iter().collect();
    sorted.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let mut out = String::new();
    for (function, share) in sorted.into_iter().take(SHOWN) {
        let _ = writeln!(out, "{share:6.2} %  {function}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_function_are_added_up() {
        let text = "1,000 ( 3.25%)  a.rs:one::two [x]\n 500 (1.50%)  b.rs:one::two\n9 (4.00%)  c.c:malloc [libc]\n100 (100.0%) PROGRAM TOTALS";
        let shares = shares(text, |_| true, |sum, part| sum + part);
        let lines: Vec<_> = shares.lines().collect();
        assert_eq!(lines, ["  4.75 %  one::two", "  4.00 %  malloc"]);
    }
}
