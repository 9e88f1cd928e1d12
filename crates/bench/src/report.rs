//! The table, the targets, and the page they go to. Ratios and processor time, no dates and no
//! machine.

use std::fmt::Write as _;

use crate::instructions::Count;
use crate::row::{Figure, Row};
use crate::runner::Results;
use crate::system::System;

/// The table of everything that was measured, as Markdown.
pub fn table(results: &Results, rows: &[Row], systems: &[System]) -> String {
    let mut out = String::from("| Work | figure |");
    for system in systems {
        let _ = write!(out, " {} |", system.name());
    }
    out.push_str("\n|---|---|");
    out.push_str(&"---|".repeat(systems.len()));
    out.push('\n');
    for row in rows {
        for (number, figure) in row.figures().iter().enumerate() {
            let title = if number == 0 { row.title() } else { "…" };
            let _ = write!(out, "| {title} | {} |", figure_name(*figure));
            for system in systems {
                let _ = write!(out, " {} |", cell(results, *row, number, *figure, *system));
            }
            out.push('\n');
        }
    }
    out
}

fn figure_name(figure: Figure) -> &'static str {
    match figure {
        Figure::Rate(name)
        | Figure::Cpu(name)
        | Figure::Time(name)
        | Figure::Bytes(name)
        | Figure::Factor(name)
        | Figure::Share(name)
        | Figure::Millis(name)
        | Figure::Count(name) => name,
    }
}

fn cell(results: &Results, row: Row, number: usize, figure: Figure, system: System) -> String {
    let value = match results.cells.get(&(row, system)) {
        Some(Ok(numbers)) => match numbers.get(number) {
            Some(value) => *value,
            None => return "–".to_owned(),
        },
        Some(Err(why)) if number == 0 => return brief(why),
        Some(Err(_)) | None => return "–".to_owned(),
    };
    let native = results.number(row, number, System::Native);
    let ratio = native.map(|native| value / native);
    match figure {
        Figure::Rate(_) | Figure::Time(_) => ratio.map_or_else(|| "–".to_owned(), times),
        Figure::Cpu(_) => match ratio.filter(|_| system != System::Native) {
            Some(ratio) => format!("{} ({})", micros(value), times(ratio)),
            None => micros(value),
        },
        Figure::Bytes(_) => bytes(value),
        Figure::Factor(_) => times(value),
        Figure::Share(_) => format!("{:.1} %", value * 100.0),
        Figure::Millis(_) => format!("{value:.1} ms"),
        Figure::Count(_) => format!("{value:.0}"),
    }
}

/// A reason must fit into a cell.
fn brief(why: &str) -> String {
    let line: String = why.replace(['|', '\n'], " ").chars().take(60).collect();
    line
}

fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 20.0 => format!("{ratio:.0} ×"),
        ratio if ratio >= 0.095 => format!("{ratio:.2} ×"),
        ratio => format!("{ratio:.4} ×"),
    }
}

fn micros(value: f64) -> String {
    match value {
        value if value >= 1000.0 => format!("{:.2} ms", value / 1000.0),
        value if value >= 10.0 => format!("{value:.0} µs"),
        value => format!("{value:.2} µs"),
    }
}

fn bytes(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.1} MB", value / 1e6),
        value => format!("{:.1} KiB", value / 1024.0),
    }
}

/// Whether less or more is wanted.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    AtLeast,
    AtMost,
}

struct Goal {
    text: &'static str,
    wanted: Wanted,
    must: f64,
    aim: f64,
    unit: &'static str,
    measured: Option<f64>,
}

/// The targets and whether they are met, as Markdown.
pub fn targets(results: &Results) -> String {
    let mut out = String::from("| Target | must reach | aim | measured | verdict |\n|---|---|---|---|---|\n");
    for goal in goals(results) {
        let sign = match goal.wanted {
            Wanted::AtLeast => "≥",
            Wanted::AtMost => "≤",
        };
        let reaches = |limit: f64, value: f64| match goal.wanted {
            Wanted::AtLeast => value >= limit,
            Wanted::AtMost => value <= limit,
        };
        let (measured, verdict) = match goal.measured {
            None => ("–".to_owned(), "not measured"),
            Some(value) => (
                format!("{value:.2} {}", goal.unit),
                match (reaches(goal.must, value), reaches(goal.aim, value)) {
                    (_, true) => "aim reached",
                    (true, false) => "met",
                    (false, false) => "**missed**",
                },
            ),
        };
        let _ = writeln!(
            out,
            "| {} | {sign} {} {unit} | {sign} {} {unit} | {measured} | {verdict} |",
            goal.text,
            goal.must,
            goal.aim,
            unit = goal.unit,
        );
    }
    out
}

fn goals(results: &Results) -> Vec<Goal> {
    use Wanted::{AtLeast, AtMost};
    let rialto = |row, figure| results.number(row, figure, System::Rialto);
    let against = |row, figure, other| {
        let other = results.number(row, figure, other)?;
        Some(rialto(row, figure)? / other)
    };
    let native = |row, figure| against(row, figure, System::Native);
    let own_ratio = |row, figure, base| Some(rialto(row, figure)? / rialto(row, base)?);
    let best_peer = |row| {
        let peers = [System::Supergateway, System::NodeProxy, System::PythonProxy];
        let rates = peers.into_iter().filter_map(|peer| results.number(row, 0, peer));
        Some(rialto(row, 0)? / rates.max_by(f64::total_cmp)?)
    };
    let goal = |text, wanted, (must, aim), unit, measured| Goal {
        text,
        wanted,
        must,
        aim,
        unit,
        measured,
    };
    vec![
        goal(
            "64 in flight: throughput against native",
            AtLeast,
            (0.55, 0.70),
            "×",
            native(Row::Flight64, 0),
        ),
        goal(
            "64 in flight: CPU per call against native",
            AtMost,
            (2.0, 1.5),
            "×",
            native(Row::Flight64, 1),
        ),
        goal(
            "64 in flight: throughput against the best peer here",
            AtLeast,
            (3.0, 4.0),
            "×",
            best_peer(Row::Flight64),
        ),
        goal(
            "64 in flight: throughput against supergateway",
            AtLeast,
            (30.0, 45.0),
            "×",
            against(Row::Flight64, 0, System::Supergateway),
        ),
        goal(
            "1 in flight: p50 against native",
            AtMost,
            (1.5, 1.25),
            "×",
            native(Row::Flight1, 0),
        ),
        goal(
            "10 KB: CPU against native",
            AtMost,
            (2.5, 1.5),
            "×",
            native(Row::Payload10K, 1),
        ),
        goal(
            "1 MB: CPU against native",
            AtMost,
            (2.0, 1.2),
            "×",
            native(Row::Payload1M, 1),
        ),
        goal(
            "1 MB: peak memory per call, against the message",
            AtMost,
            (4.0, 2.0),
            "×",
            rialto(Row::Payload1M, 2),
        ),
        goal(
            "10 MB: CPU against native",
            AtMost,
            (2.0, 1.2),
            "×",
            native(Row::Payload10M, 1),
        ),
        goal(
            "10 MB: peak memory per call, against the message",
            AtMost,
            (4.0, 2.0),
            "×",
            rialto(Row::Payload10M, 2),
        ),
        goal(
            "progress: CPU per call against native",
            AtMost,
            (2.5, 1.5),
            "×",
            native(Row::Progress, 1),
        ),
        goal(
            "session churn against the best peer here",
            AtLeast,
            (1.5, 2.0),
            "×",
            best_peer(Row::Churn),
        ),
        goal(
            "fan-out: delivered, in order",
            AtLeast,
            (100.0, 100.0),
            "%",
            rialto(Row::FanOut, 2).map(|share| share * 100.0),
        ),
        goal(
            "fan-out: CPU per delivery",
            AtMost,
            (2.0, 0.7),
            "µs",
            rialto(Row::FanOut, 1),
        ),
        goal(
            "start to first answer against native",
            AtMost,
            (3.0, 2.0),
            "×",
            native(Row::Start, 0),
        ),
        goal(
            "idle memory",
            AtMost,
            (12.0, 6.0),
            "MB",
            rialto(Row::Idle, 0).map(|bytes| bytes / 1e6),
        ),
        goal(
            "memory per idle session with an open stream",
            AtMost,
            (16.0, 8.0),
            "KiB",
            rialto(Row::IdleSession, 0).map(|bytes| bytes / 1024.0),
        ),
        goal(
            "`connect`, 1 in flight: p50 against a direct HTTP call",
            AtMost,
            (1.5, 1.25),
            "×",
            native(Row::ConnectFlight1, 0),
        ),
        goal(
            "`connect`, 1 in flight: p50 against a direct HTTP call, both by an official client",
            AtMost,
            (1.5, 1.25),
            "×",
            native(Row::ConnectSdk, 0),
        ),
        goal(
            "`connect`, 64 in flight: throughput against mcp-remote",
            AtLeast,
            (10.0, 20.0),
            "×",
            against(Row::ConnectFlight64, 0, System::McpRemote),
        ),
        goal(
            "`connect`: start to first answer against mcp-remote",
            AtMost,
            (0.05, 0.02),
            "×",
            against(Row::ConnectStart, 0, System::McpRemote),
        ),
        goal(
            "`connect`: idle memory",
            AtMost,
            (8.0, 6.0),
            "MB",
            rialto(Row::ConnectIdle, 0).map(|bytes| bytes / 1e6),
        ),
        goal(
            "audit log: CPU per call",
            AtMost,
            (1.15, 1.10),
            "×",
            rialto(Row::Audit, 0),
        ),
        goal(
            "everything switched on, static tokens: CPU per call",
            AtMost,
            (1.10, 1.05),
            "×",
            rialto(Row::Everything, 0),
        ),
        goal(
            "everything switched on, signed tokens: CPU per call",
            AtMost,
            (1.10, 1.05),
            "×",
            rialto(Row::Everything, 1),
        ),
        goal(
            "modern client at a legacy server: CPU per call",
            AtMost,
            (1.15, 1.05),
            "×",
            rialto(Row::Translation, 0),
        ),
        goal(
            "legacy client at a modern server: CPU per call",
            AtMost,
            (1.15, 1.05),
            "×",
            rialto(Row::Translation, 1),
        ),
        goal(
            "overload: calls done, of the peak",
            AtLeast,
            (90.0, 95.0),
            "%",
            rialto(Row::Overload, 0).map(|share| share * 100.0),
        ),
        goal(
            "overload: refusals, p99",
            AtMost,
            (50.0, 20.0),
            "ms",
            rialto(Row::Overload, 1),
        ),
        goal(
            "overload: memory growth after the first sixth",
            AtMost,
            (1.0, 0.5),
            "MB",
            rialto(Row::Overload, 2).map(|bytes| bytes / 1e6),
        ),
        goal(
            "overload: until all is normal again",
            AtMost,
            (5000.0, 500.0),
            "ms",
            rialto(Row::Overload, 3),
        ),
        goal(
            "two threads: p99 of small calls beside 10 MB messages, against one",
            AtMost,
            (0.5, 0.4),
            "×",
            own_ratio(Row::Threads, 1, 0),
        ),
        goal(
            "two threads: calls per second with TLS, signed tokens and audit of bodies, against one",
            AtLeast,
            (1.0, 1.3),
            "×",
            rialto(Row::Threads, 3),
        ),
        goal(
            "two threads: the same where each token is checked",
            AtLeast,
            (1.0, 1.5),
            "×",
            rialto(Row::Threads, 4),
        ),
        goal(
            "fleet: CPU per call at the owner of its session",
            AtMost,
            (1.05, 1.02),
            "×",
            rialto(Row::Fleet, 0),
        ),
        goal(
            "fleet: CPU per forwarded call, both replicas together",
            AtMost,
            (2.2, 2.0),
            "×",
            rialto(Row::Fleet, 1),
        ),
        goal(
            "fleet: CPU per session opened, used, deleted",
            AtMost,
            (2.0, 1.5),
            "×",
            rialto(Row::Fleet, 2),
        ),
        goal(
            "`state_dir`: CPU per call",
            AtMost,
            (1.05, 1.02),
            "×",
            rialto(Row::Fleet, 3),
        ),
        goal(
            "`state_dir`: CPU per session opened, used, deleted",
            AtMost,
            (2.0, 1.5),
            "×",
            rialto(Row::Fleet, 4),
        ),
        goal(
            "aggregate: CPU per call of a legacy client",
            AtMost,
            (1.2, 1.1),
            "×",
            rialto(Row::Aggregate, 0),
        ),
        goal(
            "aggregate: CPU per call of a modern client",
            AtMost,
            (1.2, 1.1),
            "×",
            rialto(Row::Aggregate, 1),
        ),
        goal(
            "aggregate: 5,000 tools listed while no child runs, p50",
            AtMost,
            (20.0, 5.0),
            "ms",
            rialto(Row::Catalogue, 0),
        ),
        goal(
            "ten open pages at 10,000 calls/s: what they add, of one processor",
            AtMost,
            (3.0, 1.0),
            "%",
            rialto(Row::Page, 1).map(|share| share * 100.0),
        ),
        goal(
            "5 sessions with 6 servers each: servers that run",
            AtMost,
            (6.0, 6.0),
            "",
            rialto(Row::Hosts, 3),
        ),
        goal(
            "5 sessions with 6 servers each: first answer through `attach`, against a start of the server",
            AtMost,
            (1.5, 1.0),
            "×",
            rialto(Row::Hosts, 7),
        ),
        goal(
            "10 → 1,000 sessions: CPU per call",
            AtMost,
            (1.3, 1.05),
            "×",
            rialto(Row::Sessions, 0),
        ),
        goal(
            "1 → 50 destinations, one in use: CPU per call",
            AtMost,
            (1.3, 1.05),
            "×",
            rialto(Row::Destinations, 0),
        ),
        goal(
            "remote: CPU per call against the call made directly",
            AtMost,
            (2.0, 1.5),
            "×",
            native(Row::Remote, 1),
        ),
        goal(
            "remote, 1 MB: CPU per call against the call made directly",
            AtMost,
            (2.0, 1.2),
            "×",
            native(Row::Remote1M, 1),
        ),
        goal(
            "remote, progress: CPU per call against the call made directly",
            AtMost,
            (2.0, 1.5),
            "×",
            native(Row::RemoteProgress, 1),
        ),
    ]
}

/// The instruction counts, as Markdown.
pub fn instructions(counts: &[Count]) -> String {
    let mut out = String::from("| Work | native | Rialto | ratio |\n|---|---|---|---|\n");
    for count in counts {
        let _ = writeln!(
            out,
            "| {} | {:.1} k | {:.1} k | {} |",
            count.work,
            count.native / 1000.0,
            count.rialto / 1000.0,
            times(count.rialto / count.native)
        );
    }
    out
}

/// The whole page.
pub fn page(results: &Results, rows: &[Row], systems: &[System], counts: Option<&[Count]>) -> String {
    let counts = match counts {
        Some(counts) => instructions(counts),
        None => "Not counted in this run: there was no valgrind.\n".to_owned(),
    };
    format!(
        "\
<!-- Written by `cargo xtask bench`. Edits are overwritten. -->

# Benchmarks

Use this page to compare the speed and memory of Rialto with a native server and with other bridges.

All systems serve the same minimal stdio echo server (`bench-echo`). They take turns in one run,
with the load generator (`bench-load`) on the same machine. Every measurement starts its system
anew, warms it up, and checks the id and the text of every response. Of several rounds the median
counts.

Times differ between machines, so the tables show **ratios inside one run**. A number with × is
relative to *native*, unless the row names another base. CPU is user + system time of the bridge
process alone, without the server behind it. Memory is counted likewise, without the children that
some peers start for every session.

- *native*: the echo handler as its own HTTP server on hyper. It is the ceiling for any bridge.
- *bare pipe*: the load written directly to the echo server's pipe, without HTTP and without a
  bridge. It is the other limit; its CPU is the echo server's own.
- *in front of native*: Rialto has the native server as a remote destination instead of a child, and
  *native* is the same call made directly. CPU is that of Rialto alone.
- *fleet*: two replicas and a Redis server (see [fleet.md](fleet.md)). A forwarded call reaches the
  replica that does not own its session; its CPU is that of both replicas. A session is opened, used
  and deleted at one replica. The base is a Rialto without `cluster` and `state_dir`.
- *aggregate*: three destinations as one endpoint, two legacy servers and a modern one. The base is
  the same call to the destination itself. In the row with 100 members each list is answered from
  the catalogue, after all children have ended (`start: lazy`, `idle_stop`).
- *open pages*: event streams of the [page](page.md), each read to its end by the load generator.
- *two threads*: Rialto with `threads: 2`, against `threads: 1`.
- Peers run as documented, with sessions, and with reduced logs. A cell with words has the reason
  why there is no number.

## Reproduce

```
cargo xtask bench                  # everything; writes this page
cargo xtask bench --quick          # Rialto and native only, under a minute, writes nothing
cargo xtask bench --only flight64  # one row
cargo xtask bench --instructions   # instructions per call, under valgrind
```

Rialto is a build of the profile `dist` with its defaults, with two exceptions: `--max-sessions` is above what the
rows open, and `--max-message-bytes` is raised in the row of 10 MB.

## Measured

{table}
## Targets

{targets}
The peer-relative targets count the peers of this table. Metrics, and the checks of Host and Origin,
are always on and part of every row.

## Instructions per call

The table has user-space instructions of the process under `valgrind --tool=callgrind`: the
difference between a long and a short run, divided by the difference in calls. They hardly depend on
the load of the machine.

{counts}",
        table = table(results, rows, systems),
        targets = targets(results),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_tell_ratios_and_processor_time_and_reasons() {
        let mut results = Results::default();
        let row = Row::Flight64;
        results
            .cells
            .insert((row, System::Native), Ok(vec![1000.0, 10.0]));
        results.cells.insert((row, System::Rialto), Ok(vec![600.0, 15.0]));
        results
            .cells
            .insert((row, System::Supergateway), Err("not installed".to_owned()));
        let systems = [System::Native, System::Rialto, System::Supergateway];
        let text = table(&results, &[row], &systems);
        assert!(text.contains("| 1.00 × | 0.60 × | not installed |"), "{text}");
        assert!(text.contains("| 10 µs | 15 µs (1.50 ×) | – |"), "{text}");
        let text = targets(&results);
        assert!(text.contains("| ≥ 0.55 × | ≥ 0.7 × | 0.60 × | met |"), "{text}");
        assert!(
            text.contains("| ≤ 2 × | ≤ 1.5 × | 1.50 × | aim reached |"),
            "{text}"
        );
    }

    #[test]
    fn page_shows_the_targets_of_threads_and_fleets() {
        let mut results = Results::default();
        let fleet = vec![0.99, 2.7, 1.73, 1.01, 1.5];
        results.cells.insert((Row::Fleet, System::Rialto), Ok(fleet));
        let threads = vec![5.0, 2.0, 3.0, 1.06, 1.61];
        results.cells.insert((Row::Threads, System::Rialto), Ok(threads));
        let systems = [System::Native, System::Rialto];
        let page = page(&results, &crate::row::ALL, &systems, None);
        for line in [
            "| fleet: CPU per call at the owner of its session | ≤ 1.05 × | ≤ 1.02 × | 0.99 × |",
            "both replicas together | ≤ 2.2 × | ≤ 2 × | 2.70 × | **missed** |",
            "| fleet: CPU per session opened, used, deleted | ≤ 2 × | ≤ 1.5 × | 1.73 × | met |",
            "| `state_dir`: CPU per call | ≤ 1.05 × | ≤ 1.02 × | 1.01 × | aim reached |",
            "| `state_dir`: CPU per session opened, used, deleted | ≤ 2 × | ≤ 1.5 × | 1.50 × |",
            "beside 10 MB messages, against one | ≤ 0.5 × | ≤ 0.4 × | 0.40 × | aim reached |",
            "audit of bodies, against one | ≥ 1 × | ≥ 1.3 × | 1.06 × | met |",
            "where each token is checked | ≥ 1 × | ≥ 1.5 × | 1.61 × | aim reached |",
            "| … | CPU per forwarded call, both replicas together, against one at its owner, × | – | 2.70 × |",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }
}
