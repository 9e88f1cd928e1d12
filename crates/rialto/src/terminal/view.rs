//! What `serve` shows on a terminal, as a machine without I/O: it takes what happened, and returns
//! what to write.
//!
//! Lines that stay scroll up. Below them is the region: the destinations, as long as one of them
//! starts. It is written anew whenever something changes, where the terminal allows that.
//! Names and texts of clients and servers come in escaped; nothing here is written that has not
//! been.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use super::text::{Style, column, column_right, cut, size, span, wrapped};

/// What the terminal can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) has_colour: bool,
    /// Lines that are written may be written over.
    pub(crate) may_rewrite: bool,
}

/// What the view is to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// A line for each call.
    pub(crate) calls: bool,
    /// What servers write on stderr, and notes.
    pub(crate) output: bool,
    /// The log lines of Rialto about its destinations as well.
    pub(crate) inside: bool,
}

/// The head of the view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Banner {
    pub(crate) version: String,
    /// `http://127.0.0.1:3000`
    pub(crate) address: String,
    pub(crate) destinations: Vec<Destination>,
    /// The address of the page, if there is one.
    pub(crate) page: Option<String>,
    /// The address of the only destination without its name.
    pub(crate) root: Option<String>,
    /// What clients need besides the address, such as an `Authorization` header.
    pub(crate) needs_token: bool,
}

/// One destination of the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) state: State,
}

/// What is known of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Its server starts, or is being reached.
    Starting {
        server: String,
    },
    /// Its server starts with its first client.
    Waiting,
    Ready {
        tools: Option<usize>,
        took: Duration,
    },
    /// Why, the most telling line first.
    Failed {
        lines: Vec<String>,
    },
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Happening {
    Began(Banner),
    /// A destination has been tried out.
    Settled {
        name: String,
        state: State,
    },
    /// A line that a server wrote on stderr.
    Output {
        destination: String,
        line: String,
    },
    Log(LogLine),
    Call(Call),
    /// Lines or calls were dropped, since the terminal is slow.
    Lost(u64),
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub(crate) level: Level,
    pub(crate) destination: Option<String>,
    pub(crate) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
}

/// A call that has ended, or a request that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// `None`: the request named no destination.
    pub(crate) destination: Option<String>,
    /// What tells its session from others.
    pub(crate) client: Option<String>,
    /// `tools/call`
    pub(crate) method: Option<String>,
    pub(crate) tool: Option<String>,
    pub(crate) end: End,
    pub(crate) latency: Duration,
    pub(crate) bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Ok,
    /// The server answered with an error, or gave no answer; the word of the outcome, and why.
    Failed {
        outcome: String,
        reason: Option<String>,
    },
    /// Rialto did not admit it.
    Refused {
        status: u64,
        reason: String,
        limit: Option<String>,
        /// Where the request went, if that is why it was refused.
        path: Option<String>,
    },
}

/// How many lines of a server are kept while it starts.
const KEPT_LINES: usize = 30;
/// How many lines explain why a server failed, and how many of them are its own.
const FAILURE_LINES: usize = 6;
const TELLING_LINES: usize = 3;
/// Refusals of one kind within this time are one line.
const REFUSALS_EVERY: Duration = Duration::from_secs(5);
/// Kinds of refusals that are counted apart, at most.
const REFUSAL_KINDS: usize = 64;
const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
const WIDEST_NAME: usize = 20;
const CLIENT_COLUMNS: usize = 14;
/// How much of a path is shown that a client should not have asked for.
const LONGEST_PATH: usize = 60;
/// A terminal with fewer columns does not show clients.
const NARROW: usize = 70;

/// What is on the terminal.
#[derive(Debug)]
pub(crate) struct View {
    look: Look,
    wanted: Wanted,
    banner: Banner,
    has_begun: bool,
    /// The destinations that are being tried out, with what their servers wrote so far.
    starting: BTreeMap<String, VecDeque<String>>,
    began: Duration,
    now: Duration,
    /// The head is written for good.
    is_settled: bool,
    refusals: BTreeMap<RefusalKind, Refusals>,
    /// How many lines of the terminal the region takes.
    region_lines: usize,
    out: String,
}

type RefusalKind = (Option<String>, String);

/// Refusals of one kind.
#[derive(Debug, Clone)]
struct Refusals {
    shown: Duration,
    since: u64,
    last: Call,
}

impl View {
    pub(crate) fn new(look: Look, wanted: Wanted) -> Self {
        Self {
            look,
            wanted,
            banner: Banner::default(),
            has_begun: false,
            starting: BTreeMap::new(),
            began: Duration::ZERO,
            now: Duration::ZERO,
            is_settled: true,
            refusals: BTreeMap::new(),
            region_lines: 0,
            out: String::new(),
        }
    }

    /// Returns whether time alone changes what is shown.
    pub(crate) fn is_moving(&self) -> bool {
        (self.look.may_rewrite && !self.is_settled)
            || self.refusals.values().any(|refusals| refusals.since > 0)
    }

    /// Takes what happened. `now` is the time since the program began, `clock` the time of day.
    pub(crate) fn handle(&mut self, happening: Happening, now: Duration, clock: &str, columns: usize) {
        self.now = now;
        match happening {
            Happening::Began(banner) => self.begin(banner, now, columns),
            Happening::Settled { name, state } => self.settle(&name, state, clock, columns),
            Happening::Output { destination, line } => self.output(destination, line, clock, columns),
            Happening::Log(line) => self.log(&line, clock, columns),
            Happening::Call(call) => self.call(call, now, clock, columns),
            Happening::Lost(count) => {
                let text = format!("{count} lines were dropped: the terminal is slow");
                self.line(clock, "", Style::Yellow, &text, columns);
            }
        }
    }

    /// Writes what is due by now.
    pub(crate) fn handle_time(&mut self, now: Duration, clock: &str, columns: usize) {
        self.now = now;
        let is_due = |refusals: &Refusals| refusals.since > 0 && now - refusals.shown >= REFUSALS_EVERY;
        let due: Vec<_> = self
            .refusals
            .iter()
            .filter(|(_, refusals)| is_due(refusals))
            .map(|(kind, refusals)| (kind.clone(), refusals.clone()))
            .collect();
        for (kind, refusals) in due {
            self.refused(&refusals.last, refusals.since, clock, columns);
            if let Some(counted) = self.refusals.get_mut(&kind) {
                counted.since = 0;
                counted.shown = now;
            }
        }
    }

    /// Returns what to write now, and the region below it.
    pub(crate) fn take_output(&mut self, columns: usize) -> String {
        let lines = std::mem::take(&mut self.out);
        if !self.look.may_rewrite {
            return lines;
        }
        let region = self.region(columns);
        let mut text = String::new();
        if self.region_lines > 0 {
            // Up to the first line of the region, and away with it.
            let _ = write!(text, "\x1b[{}A\r\x1b[J", self.region_lines);
        }
        text.push_str(&lines);
        self.region_lines = 0;
        for line in &region {
            self.region_lines += rows(line, columns);
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    /// Returns what is written at the end of the program.
    pub(crate) fn finish(&mut self, columns: usize) -> String {
        if !self.is_settled {
            self.is_settled = true;
            let head = self.head(columns).join("\n");
            let _ = writeln!(self.out, "{head}\n");
        }
        self.take_output(columns)
    }

    fn begin(&mut self, banner: Banner, now: Duration, columns: usize) {
        self.began = now;
        self.has_begun = true;
        self.starting = banner
            .destinations
            .iter()
            .filter(|destination| matches!(destination.state, State::Starting { .. }))
            .map(|destination| (destination.name.clone(), VecDeque::new()))
            .collect();
        let title = format!("rialto {}", banner.version);
        let title = Style::Bold.paint(&title, self.look.has_colour);
        let stop = Style::Dim.paint("Ctrl-C stops", self.look.has_colour);
        let address = banner.page.as_ref().unwrap_or(&banner.address);
        let _ = writeln!(self.out, "\n  {title}   {address}        {stop}\n");
        self.banner = banner;
        self.is_settled = false;
        if self.starting.is_empty() || !self.look.may_rewrite {
            self.write_head(columns);
        }
    }

    /// Writes the head so that it stays.
    fn write_head(&mut self, columns: usize) {
        self.is_settled = true;
        let head = self.head(columns).join("\n");
        let _ = writeln!(self.out, "{head}\n");
    }

    fn settle(&mut self, name: &str, state: State, clock: &str, columns: usize) {
        let kept = self.starting.remove(name).unwrap_or_default();
        let Some(destination) = self
            .banner
            .destinations
            .iter_mut()
            .find(|destination| destination.name == name)
        else {
            return;
        };
        destination.state = match state {
            State::Failed { mut lines } => {
                lines.extend(telling(&kept));
                State::Failed { lines }
            }
            other @ (State::Starting { .. } | State::Waiting | State::Ready { .. }) => other,
        };
        let destination = destination.clone();
        let was_settled = self.is_settled;
        if was_settled {
            // The head is above already, so a line tells.
            for (at, text) in self.status(&destination).into_iter().enumerate() {
                let name = if at == 0 { name } else { "" };
                self.line(clock, name, Style::Plain, &text, columns);
            }
        } else if self.starting.is_empty() {
            self.write_head(columns);
        }
        // What a server wrote is of interest below, unless it explains a failure above.
        if matches!(destination.state, State::Ready { .. }) && self.wanted.output {
            for line in kept {
                self.output_line(name, &line, clock, columns);
            }
        }
    }

    fn output(&mut self, destination: String, line: String, clock: &str, columns: usize) {
        if let Some(kept) = self.starting.get_mut(&destination)
            && !self.wanted.inside
        {
            if kept.len() == KEPT_LINES {
                kept.pop_front();
            }
            kept.push_back(line);
            return;
        }
        if self.wanted.output {
            self.output_line(&destination, &line, clock, columns);
        }
    }

    fn output_line(&mut self, destination: &str, line: &str, clock: &str, columns: usize) {
        self.line(clock, destination, Style::Dim, &format!("│ {line}"), columns);
    }

    fn log(&mut self, line: &LogLine, clock: &str, columns: usize) {
        let is_starting = line
            .destination
            .as_ref()
            .is_some_and(|destination| self.starting.contains_key(destination));
        // One summary takes the place of what is logged about a server that does not start.
        if is_starting && !self.wanted.inside {
            return;
        }
        let style = match line.level {
            Level::Error => Style::Red,
            Level::Warn => Style::Yellow,
            Level::Info => Style::Plain,
        };
        let destination = line.destination.as_deref().unwrap_or_default();
        self.line(clock, destination, style, &line.text, columns);
    }

    fn call(&mut self, call: Call, now: Duration, clock: &str, columns: usize) {
        if !self.wanted.calls {
            return;
        }
        if let End::Refused { reason, .. } = &call.end {
            let kind = (call.destination.clone(), reason.clone());
            match self.refusals.get_mut(&kind) {
                Some(refusals) if now - refusals.shown < REFUSALS_EVERY => {
                    refusals.since += 1;
                    refusals.last = call;
                    return;
                }
                Some(_) | None => {}
            }
            let earlier = self.refusals.remove(&kind).map_or(0, |refusals| refusals.since);
            self.refused(&call, earlier, clock, columns);
            if self.refusals.len() == REFUSAL_KINDS {
                self.refusals.pop_first();
            }
            let counted = Refusals {
                shown: now,
                since: 0,
                last: call,
            };
            self.refusals.insert(kind, counted);
            return;
        }
        let (word, style) = match &call.end {
            End::Ok => ("ok", Style::Green),
            End::Failed { outcome, .. } => (outcome.as_str(), Style::Red),
            End::Refused { .. } => ("refused", Style::Yellow),
        };
        let mut line = self.start_of_line(clock, call.destination.as_deref(), columns);
        let indent = line.chars().count();
        push_client(&mut line, call.client.as_deref(), columns);
        let shows_size = columns >= 90;
        let tail = 2 + 11 + 2 + 7 + if shows_size { 2 + 7 } else { 0 };
        let used = line.chars().count();
        let what = what(call.method.as_deref(), call.tool.as_deref());
        let room = columns.saturating_sub(used + tail + 1).max(8);
        line.push_str(&column(&what, room));
        let outcome = style.paint(&column(word, 11), self.look.has_colour);
        let _ = write!(line, "  {outcome}  {}", column_right(&span(call.latency), 7));
        if shows_size {
            let _ = write!(line, "  {}", column_right(&size(call.bytes), 7));
        }
        self.push(&line);
        if let End::Failed {
            reason: Some(reason), ..
        } = &call.end
            && reason != word
        {
            let room = columns.saturating_sub(indent + 1);
            let reason = cut(&format!("{reason}: see docs/troubleshooting.md"), room);
            let reason = Style::Dim.paint(&reason, self.look.has_colour);
            self.push(&format!("{}{reason}", " ".repeat(indent)));
        }
    }

    fn refused(&mut self, call: &Call, earlier: u64, clock: &str, columns: usize) {
        let End::Refused {
            status,
            reason,
            limit,
            path,
        } = &call.end
        else {
            return;
        };
        let mut text = format!("refused {status}: {}", reason.replace('_', " "));
        if let Some(path) = path {
            let _ = write!(text, " {}", cut(path, LONGEST_PATH));
        }
        if let Some(limit) = limit {
            let _ = write!(text, " ({limit})");
        }
        if earlier > 0 {
            let _ = write!(text, ", {} in all since the last line", earlier + 1);
        }
        let mut line = self.start_of_line(clock, call.destination.as_deref(), columns);
        push_client(&mut line, call.client.as_deref(), columns);
        self.push_wrapped(&line, Style::Yellow, &text, columns);
    }

    fn line(&mut self, clock: &str, destination: &str, style: Style, text: &str, columns: usize) {
        let line = self.start_of_line(clock, Some(destination), columns);
        self.push_wrapped(&line, style, text, columns);
    }

    /// Writes a text that is never cut: it goes on below its beginning.
    fn push_wrapped(&mut self, start: &str, style: Style, text: &str, columns: usize) {
        let indent = start.chars().count();
        let room = columns.saturating_sub(indent + 1).max(20);
        for (at, part) in wrapped(text, room).iter().enumerate() {
            let part = style.paint(part, self.look.has_colour);
            match at {
                0 => self.push(&format!("{start}{part}")),
                _ => self.push(&format!("{}{part}", " ".repeat(indent))),
            }
        }
    }

    fn start_of_line(&self, clock: &str, destination: Option<&str>, columns: usize) -> String {
        let name = destination.unwrap_or("–");
        let width = match self.banner.destinations.is_empty() {
            // A line that comes before the names are known.
            true => name.chars().count().clamp(4, WIDEST_NAME),
            false => self.name_columns(columns),
        };
        format!("{clock}  {}  ", column(name, width))
    }

    fn name_columns(&self, columns: usize) -> usize {
        let names = self.banner.destinations.iter();
        let longest = names.map(|destination| destination.name.chars().count()).max();
        longest.unwrap_or(0).clamp(4, WIDEST_NAME.min(columns / 5).max(4))
    }

    fn push(&mut self, line: &str) {
        self.out.push_str(line.trim_end());
        self.out.push('\n');
    }

    /// Returns the destinations and what to paste, as far as that is known.
    fn head(&self, columns: usize) -> Vec<String> {
        let mut lines = Vec::new();
        let urls = self
            .banner
            .destinations
            .iter()
            .map(|destination| destination.url.chars().count());
        let url_columns = urls.max().unwrap_or(0);
        let name_columns = self.name_columns(columns);
        for destination in &self.banner.destinations {
            let indent = " ".repeat(4 + name_columns + 3);
            let room = columns.saturating_sub(indent.len() + 1).max(20);
            let status = self.status(destination);
            // Why a server cannot be used, and what to do, is never cut.
            let mut status = match destination.state {
                State::Failed { .. } => status.iter().flat_map(|line| wrapped(line, room)).collect(),
                State::Starting { .. } | State::Waiting | State::Ready { .. } => status,
            }
            .into_iter();
            let (mark, style) = self.mark(&destination.state);
            let mark = style.paint(mark, self.look.has_colour);
            let name = Style::Bold.paint(&column(&destination.name, name_columns), self.look.has_colour);
            let first = status.next().unwrap_or_default();
            match destination.state {
                // Where it cannot be used, its address is of no use.
                State::Failed { .. } => lines.push(format!("  {mark} {name}   {first}")),
                State::Starting { .. } | State::Waiting | State::Ready { .. } => {
                    let url = column(&destination.url, url_columns);
                    let beside = columns.saturating_sub(indent.len() + url_columns + 3 + 1);
                    if beside >= first.chars().count().min(16) {
                        lines.push(format!("  {mark} {name}   {url}   {}", cut(&first, beside)));
                    } else {
                        // The address is to be copied, so it is never cut.
                        lines.push(format!("  {mark} {name}   {}", destination.url));
                        lines.push(format!("{indent}{}", cut(&first, room)));
                    }
                }
            }
            for line in status {
                lines.push(format!("{indent}{}", cut(&line, room)));
            }
        }
        lines.extend(self.to_paste());
        for line in &mut lines {
            line.truncate(line.trim_end().len());
        }
        lines
    }

    fn to_paste(&self) -> Vec<String> {
        let destinations = &self.banner.destinations;
        let is_usable = |destination: &&Destination| !matches!(destination.state, State::Failed { .. });
        let Some(first) = destinations.iter().find(is_usable) else {
            return Vec::new();
        };
        let mut lines = vec![String::new()];
        if let Some(root) = &self.banner.root {
            lines.push(format!("  {root} is the same as /{}/mcp", first.name));
        }
        let header = match self.banner.needs_token {
            true => " --header 'Authorization: Bearer TOKEN'",
            false => "",
        };
        for destination in destinations.iter().filter(is_usable) {
            lines.push(format!(
                "  claude mcp add --transport http {} {}{header}",
                destination.name, destination.url
            ));
        }
        let mut entry = serde_json::json!({ "type": "http", "url": first.url });
        if self.banner.needs_token {
            entry["headers"] = serde_json::json!({ "Authorization": "Bearer TOKEN" });
        }
        let snippet = serde_json::json!({ "mcpServers": { &first.name: entry } });
        lines.push(format!("  other clients: {snippet}"));
        lines
    }

    fn mark(&self, state: &State) -> (&'static str, Style) {
        match state {
            State::Starting { .. } => {
                let frame = (self.now.as_millis() / 100) as usize % SPINNER.len();
                let frame = if self.look.may_rewrite { frame } else { 0 };
                (SPINNER.get(frame).copied().unwrap_or("·"), Style::Yellow)
            }
            State::Waiting => ("·", Style::Dim),
            State::Ready { .. } => ("✔", Style::Green),
            State::Failed { .. } => ("✘", Style::Red),
        }
    }

    /// Returns the state of a destination, in one or more lines.
    fn status(&self, destination: &Destination) -> Vec<String> {
        match &destination.state {
            State::Starting { server } => {
                let kept = self.starting.get(&destination.name);
                let last = kept.and_then(VecDeque::back);
                let elapsed = self.now.saturating_sub(self.began);
                let mut text = match elapsed.as_secs() {
                    0 => format!("{server} starts"),
                    seconds => format!("{server}, {seconds} s"),
                };
                if let Some(last) = last {
                    let _ = write!(text, ": \"{}\"", last.trim());
                }
                vec![text]
            }
            State::Waiting => vec!["starts with its first client".to_owned()],
            State::Ready { tools, took } => {
                let tools = match tools {
                    Some(1) => "1 tool".to_owned(),
                    Some(tools) => format!("{tools} tools"),
                    None => "no tools".to_owned(),
                };
                vec![format!("{tools:<9}  {}", span(*took))]
            }
            State::Failed { lines } => lines.iter().take(FAILURE_LINES).cloned().collect(),
        }
    }

    /// Returns the lines below those that stay.
    fn region(&self, columns: usize) -> Vec<String> {
        match self.has_begun && !self.is_settled {
            true => self.head(columns),
            false => Vec::new(),
        }
    }
}

/// Appends the client, where the terminal is wide enough for one more column.
fn push_client(line: &mut String, client: Option<&str>, columns: usize) {
    if columns >= NARROW {
        line.push_str(&column(client.unwrap_or("–"), CLIENT_COLUMNS));
        line.push_str("  ");
    }
}

/// Returns the lines of a server that most likely tell why it failed: those about an error, or else
/// the last ones. A stack trace is often longer than what it is about.
fn telling(kept: &VecDeque<String>) -> Vec<String> {
    const WORDS: [&str; 6] = ["error", "exception", "fatal", "panic", "required", "cannot find"];
    let is_telling = |line: &&String| {
        let line = line.to_ascii_lowercase();
        WORDS.iter().any(|word| line.contains(word))
    };
    // A server that was started again has often written the same again.
    let mut different: Vec<&String> = Vec::new();
    for line in kept {
        if !different.contains(&line) {
            different.push(line);
        }
    }
    let found: Vec<&String> = different
        .iter()
        .copied()
        .filter(is_telling)
        .take(TELLING_LINES)
        .collect();
    let chosen = match found.is_empty() {
        true => different.split_off(different.len().saturating_sub(TELLING_LINES)),
        false => found,
    };
    chosen.into_iter().cloned().collect()
}

fn what(method: Option<&str>, tool: Option<&str>) -> String {
    match (method, tool) {
        (Some(method), Some(tool)) => format!("{method} {tool}"),
        (Some(method), None) => method.to_owned(),
        (None, _) => "request".to_owned(),
    }
}

/// Returns how many lines of a terminal a text takes, colours aside.
fn rows(line: &str, columns: usize) -> usize {
    let mut width: usize = 0;
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '\x1b' => {
                characters.by_ref().find(char::is_ascii_alphabetic);
            }
            _ => width += 1,
        }
    }
    width.max(1).div_ceil(columns.max(1))
}

#[cfg(test)]
mod tests;
