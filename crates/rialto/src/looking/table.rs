//! Snapshots as a table: for `ps` once, for `top` again and again.
//!
//! A value that was not observed is shown as a dash. Names come from servers and clients, so each
//! is escaped.

use std::fmt::Write as _;
use std::time::Duration;

use gateway::escape;
use serde_json::Value;

use crate::admin_socket::Running;
use crate::terminal::text::{self, Style};

/// A column: what stands above it, and where it is filled up.
type Column = (&'static str, Filled);

/// Where a cell is filled up with blanks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    /// After a word.
    After,
    /// Before a number.
    Before,
}

const COLUMNS: [Column; 11] = [
    ("NAME", Filled::After),
    ("STATE", Filled::After),
    ("ERA", Filled::After),
    ("PROCESS", Filled::After),
    ("SESSIONS", Filled::Before),
    ("CALLS", Filled::Before),
    ("CALLS/S", Filled::Before),
    ("WAITING", Filled::Before),
    ("P50", Filled::Before),
    ("P99", Filled::Before),
    ("FAILED", Filled::Before),
];
/// The columns that go first where a terminal is narrow.
const EXPENDABLE: [&str; 3] = ["PROCESS", "WAITING", "ERA"];
/// The longest cell.
const CELL: usize = 40;
const DASH: &str = "–";

/// How it is drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) columns: usize,
    pub(crate) sessions: bool,
    pub(crate) has_colour: bool,
}

/// The state of all gateways.
#[derive(Debug)]
pub(crate) struct Table<'a> {
    gateways: Vec<&'a Value>,
    /// Calls in a second since the look before, by process and name.
    rates: Vec<((u64, String), f64)>,
}

impl<'a> Table<'a> {
    pub(crate) fn of(running: &'a [Running]) -> Self {
        Self {
            gateways: running.iter().map(|gateway| &gateway.snapshot).collect(),
            rates: Vec::new(),
        }
    }

    /// Adds how many calls ended in a second, since an earlier look.
    pub(crate) fn since(mut self, earlier: &[Running], span: Duration) -> Self {
        let ended = |snapshot: &Value| -> Vec<((u64, String), u64)> {
            let pid = snapshot["pid"].as_u64().unwrap_or_default();
            let destinations = snapshot["destinations"].as_array();
            destinations
                .into_iter()
                .flatten()
                .filter_map(|destination| {
                    let name = destination["name"].as_str()?.to_owned();
                    Some(((pid, name), destination["calls"]["ended"].as_u64()?))
                })
                .collect()
        };
        let before: Vec<_> = earlier
            .iter()
            .flat_map(|gateway| ended(&gateway.snapshot))
            .collect();
        for (key, now) in self.gateways.iter().flat_map(|snapshot| ended(snapshot)) {
            if let Some((_, before)) = before.iter().find(|(known, _)| *known == key) {
                let ended = now.saturating_sub(*before) as f64;
                self.rates.push((key, ended / span.as_secs_f64().max(0.001)));
            }
        }
        self
    }

    pub(crate) fn text(&self, shape: Shape) -> String {
        let mut lines = Vec::new();
        for (at, snapshot) in self.gateways.iter().enumerate() {
            if at > 0 {
                lines.push((String::new(), Style::Plain));
            }
            self.gateway(snapshot, shape, &mut lines);
        }
        let mut text = String::new();
        for (line, style) in lines {
            let line = text::cut(line.trim_end(), shape.columns);
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{}", style.paint(&line, shape.has_colour));
        }
        text
    }

    fn gateway(&self, snapshot: &Value, shape: Shape, lines: &mut Vec<(String, Style)>) {
        let mut head = vec![
            format!("gateway {}", snapshot["pid"]),
            format!("rialto {}", word(&snapshot["rialto"])),
            format!("up {}", age(&snapshot["up_ms"])),
        ];
        head.extend(bytes(&snapshot["memory_bytes"]));
        head.extend(known(&snapshot["url"]));
        head.extend(known(&snapshot["config"]));
        if snapshot["draining"] == true {
            head.push("draining".to_owned());
        }
        if snapshot["last_reload_failed"] == true {
            head.push("last reload failed".to_owned());
        }
        lines.push((head.join("  "), Style::Bold));
        let pid = snapshot["pid"].as_u64().unwrap_or_default();
        let destinations: Vec<&Value> = snapshot["destinations"]
            .as_array()
            .map(|all| all.iter().collect())
            .unwrap_or_default();
        let cells: Vec<Vec<String>> = destinations
            .iter()
            .map(|destination| row(destination, self.rate(pid, destination)))
            .collect();
        let layout = Layout::of(&cells, !self.rates.is_empty(), shape.columns);
        let heads = COLUMNS.map(|(head, _)| head.to_owned());
        lines.push((layout.line(&heads), Style::Dim));
        for (destination, cells) in destinations.iter().zip(&cells) {
            let style = match destination["state"].as_str() {
                Some("failed" | "backing_off") => Style::Red,
                Some("starting" | "running") => Style::Yellow,
                _ => Style::Plain,
            };
            lines.push((layout.line(cells), style));
            details(destination, shape, lines);
        }
    }

    fn rate(&self, pid: u64, destination: &Value) -> String {
        let name = destination["name"].as_str().unwrap_or_default();
        let found = self
            .rates
            .iter()
            .find(|((of, named), _)| *of == pid && named == name);
        found.map_or(DASH.to_owned(), |(_, rate)| match *rate < 10.0 {
            true => format!("{rate:.1}"),
            false => format!("{rate:.0}"),
        })
    }
}

fn row(destination: &Value, rate: String) -> Vec<String> {
    let state = match (destination["resting"].as_str(), destination["configured"] == true) {
        (_, false) => "draining".to_owned(),
        (Some(resting), true) => resting.split(" (").next().unwrap_or(resting).to_owned(),
        (None, true) => word(&destination["state"]).replace('_', " "),
    };
    let failed: u64 = destination["failures"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|failure| failure["count"].as_u64())
        .sum();
    let calls = &destination["calls"];
    let recent = &destination["recent"];
    vec![
        word(&destination["name"]),
        state,
        word(&destination["era"]),
        word(&destination["process"]),
        number(&destination["sessions"]),
        number(&calls["in_flight"]),
        rate,
        number(&calls["waiting"]),
        latency(&recent["p50_ms"]),
        latency(&recent["p99_ms"]),
        failed.to_string(),
    ]
}

/// Adds the lines below a destination: what is wrong, its instances, its sessions.
fn details(destination: &Value, shape: Shape, lines: &mut Vec<(String, Style)>) {
    if let Some(error) = destination["error"].as_str() {
        let error = escape::one_line(error, 200);
        lines.push((format!("  {error}"), Style::Red));
    }
    for failure in destination["failures"].as_array().into_iter().flatten() {
        let recent = failure["recent"].as_u64().unwrap_or_default();
        if recent > 0 {
            let line = format!(
                "  {recent} {} in the last {}",
                word(&failure["reason"]),
                age(&destination["recent"]["span_ms"])
            );
            lines.push((line, Style::Yellow));
        }
    }
    for instance in destination["instances"].as_array().into_iter().flatten() {
        // The line of the destination tells the rest.
        if instance["pid"].is_null() {
            continue;
        }
        let mut parts = vec![format!("pid {}", instance["pid"]), age(&instance["age_ms"])];
        let processes = instance["processes"].as_u64().unwrap_or(1);
        parts.extend(bytes(&instance["memory_bytes"]).map(|memory| match processes {
            0 | 1 => memory,
            several => format!("{memory} ({several} processes)"),
        }));
        match instance["restarts"].as_u64() {
            Some(0) | None => {}
            Some(1) => parts.push("started again once".to_owned()),
            Some(restarts) => parts.push(format!("started again {restarts} times")),
        }
        parts.extend(known(&instance["directory"]));
        parts.extend(match instance["serves"].as_str() {
            Some("ending") => Some("ending".to_owned()),
            Some("session") => Some("one session".to_owned()),
            _ => None,
        });
        lines.push((format!("  {}", parts.join("  ")), Style::Dim));
    }
    if !shape.sessions {
        return;
    }
    for session in destination["session_list"].as_array().into_iter().flatten() {
        let client = &session["client"];
        let client = match (client["name"].as_str(), client["version"].as_str()) {
            (Some(name), Some(version)) => format!("{name} {version}"),
            (Some(name), None) => name.to_owned(),
            (None, _) => "a client without a name".to_owned(),
        };
        let mut parts = vec![
            format!("session {}", word(&session["session"])),
            escape::one_line(&client, CELL),
            word(&session["version"]),
            word(&session["caller"]),
            match session["idle_ms"].is_null() {
                true => "in use".to_owned(),
                false => format!("idle {}", age(&session["idle_ms"])),
            },
        ];
        parts.extend(some(&session["calls"], "call"));
        parts.extend(some(&session["streams"], "stream"));
        if session["queued_bytes"].as_u64().unwrap_or_default() > 0 {
            parts.extend(bytes(&session["queued_bytes"]).map(|queued| format!("{queued} kept")));
        }
        lines.push((format!("  {}", parts.join("  ")), Style::Dim));
    }
    let listens = destination["listens"].as_u64().unwrap_or_default();
    let parked = destination["parked"].as_u64().unwrap_or_default();
    if listens + parked > 0 {
        let line = format!("  modern clients have no session: {listens} listens, {parked} parked calls");
        lines.push((line, Style::Dim));
    }
}

/// Which columns are shown, and how wide.
struct Layout(Vec<(usize, usize)>);

impl Layout {
    /// Returns a layout that fits so many columns of a terminal, as far as columns may go.
    fn of(rows: &[Vec<String>], has_rates: bool, most: usize) -> Self {
        let width = |at: usize, head: &str| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            let widest = cells.map(|cell| cell.chars().count()).max();
            widest.unwrap_or_default().max(head.chars().count())
        };
        let shown = |(head, _): &Column| has_rates || *head != "CALLS/S";
        let mut columns: Vec<(usize, usize)> = COLUMNS
            .iter()
            .enumerate()
            .filter(|(_, column)| shown(column))
            .map(|(at, (head, _))| (at, width(at, head)))
            .collect();
        for expendable in EXPENDABLE {
            let whole: usize = columns.iter().map(|(_, width)| width + 2).sum();
            if whole <= most.saturating_add(2) {
                break;
            }
            columns.retain(|(at, _)| COLUMNS.get(*at).is_none_or(|(head, _)| *head != expendable));
        }
        Self(columns)
    }

    fn line(&self, cells: &[String]) -> String {
        let shown = self.0.iter().filter_map(|(at, width)| {
            let (cell, (_, filled)) = (cells.get(*at)?, COLUMNS.get(*at)?);
            Some(match filled {
                Filled::After => text::column(cell, *width),
                Filled::Before => text::column_right(cell, *width),
            })
        });
        shown.collect::<Vec<_>>().join("  ")
    }
}

fn word(value: &Value) -> String {
    match value.as_str() {
        Some(text) => escape::one_line(text, CELL),
        None => DASH.to_owned(),
    }
}

fn known(value: &Value) -> Option<String> {
    value.as_str().map(|text| escape::one_line(text, 200))
}

fn number(value: &Value) -> String {
    value
        .as_u64()
        .map_or(DASH.to_owned(), |number| number.to_string())
}

fn some(value: &Value, what: &str) -> Option<String> {
    match value.as_u64()? {
        0 => None,
        1 => Some(format!("1 {what}")),
        several => Some(format!("{several} {what}s")),
    }
}

fn age(value: &Value) -> String {
    let Some(milliseconds) = value.as_u64() else {
        return DASH.to_owned();
    };
    match milliseconds / 3_600_000 {
        0..3 => text::span(Duration::from_millis(milliseconds)),
        hours @ 3..72 => format!("{hours} h"),
        hours => format!("{} d", hours / 24),
    }
}

fn latency(value: &Value) -> String {
    match value.as_f64() {
        None => DASH.to_owned(),
        Some(milliseconds) if milliseconds < 10.0 => format!("{milliseconds:.1} ms"),
        Some(milliseconds) => text::span(Duration::from_secs_f64(milliseconds / 1000.0)),
    }
}

fn bytes(value: &Value) -> Option<String> {
    value.as_u64().map(text::size)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn running() -> Vec<Running> {
        let instance = json!({
            "pid": 4713, "age_ms": 200_000, "memory_bytes": 52_000_000, "processes": 2, "restarts": 1,
            "serves": "caller", "directory": "/home/u/project"
        });
        let session = json!({
            "session": "3f0c8e5a6a53", "client": { "name": "claude\u{1b}[2J", "version": "2.1" },
            "version": "2025-11-25", "caller": "anonymous", "idle_ms": 3000, "calls": 0, "streams": 1,
            "queued_bytes": 0
        });
        let snapshot = json!({
            "pid": 4711, "rialto": "0.1.0", "up_ms": 190_000, "memory_bytes": 12_000_000,
            "url": "http://127.0.0.1:3000", "config": null,
            "destinations": [
                {
                    "name": "files", "configured": true, "state": "ready", "resting": null, "era": "legacy",
                    "process": "shared", "sessions": 2, "error": null,
                    "calls": { "in_flight": 1, "waiting": 0, "ended": 120 },
                    "recent": { "span_ms": 190_000, "p50_ms": 3.12, "p99_ms": 12.5 },
                    "failures": [{ "reason": "timeout", "count": 3, "recent": 2 }],
                    "instances": [instance], "session_list": [session], "listens": 0, "parked": 0
                },
                {
                    "name": "search", "configured": true, "state": "idle",
                    "resting": "not started (starts at first call)", "era": null, "process": "shared",
                    "sessions": 0, "calls": { "in_flight": 0, "waiting": 0, "ended": 0 },
                    "recent": { "p50_ms": null, "p99_ms": null }, "failures": [], "instances": []
                }
            ]
        });
        vec![Running {
            socket: "/run/x.sock".into(),
            snapshot,
        }]
    }

    const SHAPE: Shape = Shape {
        columns: 120,
        sessions: true,
        has_colour: false,
    };

    #[test]
    fn table_shows_what_was_observed_and_a_dash_for_the_rest() {
        let running = running();
        let text = Table::of(&running).text(SHAPE);
        let expected = "\
gateway 4711  rialto 0.1.0  up 3 min  12 MB  http://127.0.0.1:3000
NAME    STATE        ERA     PROCESS  SESSIONS  CALLS  WAITING     P50    P99  FAILED
files   ready        legacy  shared          2      1        0  3.1 ms  12 ms       3
  2 timeout in the last 3 min
  pid 4713  3 min  52 MB (2 processes)  started again once  /home/u/project
  session 3f0c8e5a6a53  claude\\u{1b}[2J 2.1  2025-11-25  anonymous  idle 3.0 s  1 stream
search  not started  –       shared          0      0        0       –      –       0
";
        assert_eq!(text, expected);
    }

    #[test]
    fn lines_fit_the_terminal_and_sessions_are_for_those_that_want_them() {
        let running = running();
        let shape = Shape {
            columns: 40,
            sessions: false,
            ..SHAPE
        };
        let text = Table::of(&running).text(shape);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(!text.contains("session "), "{text}");
    }

    #[test]
    fn rate_is_what_ended_between_two_looks() {
        let (before, mut now) = (running(), running());
        now[0].snapshot["destinations"][0]["calls"]["ended"] = 150.into();
        let text = Table::of(&now).since(&before, Duration::from_secs(2)).text(SHAPE);
        let line = text
            .lines()
            .find(|line| line.starts_with("files"))
            .expect("a line");
        assert!(line.contains("  15  "), "{line:?}");
        assert!(text.contains("CALLS/S"), "{text}");
    }

    #[test]
    fn columns_that_matter_less_go_where_the_terminal_is_narrow() {
        let (before, now) = (running(), running());
        let narrow = Shape { columns: 80, ..SHAPE };
        let text = Table::of(&now)
            .since(&before, Duration::from_secs(2))
            .text(narrow);
        let head = text.lines().find(|line| line.starts_with("NAME"));
        assert_eq!(
            head,
            Some("NAME    STATE        ERA     SESSIONS  CALLS  CALLS/S     P50    P99  FAILED")
        );
    }
}
