//! What a child writes to stderr: always read, logged with care, the end of it kept for error
//! reports.
//!
//! It hides how lines are cut, escaped and rationed. It refuses to let a child freeze on a full
//! pipe, to let one flood the log or draw on a terminal, and to hold more than a fixed amount of
//! text.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use crate::escape;
use crate::server_output::LastLines;
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

/// A line is cut here, before and after escaping.
const LONGEST_LINE: usize = 4096;

/// Lines logged in a second; the rest of that second is counted.
const LINES_PER_SECOND: u64 = 100;
const SECOND: Duration = Duration::from_secs(1);

/// How much of the end is kept.
const TAIL_BYTES: usize = 64 * 1024;

/// How many of the last lines an error shows, how many further up that speak of an error, and how
/// much of each.
const LAST_LINES: usize = 20;
const ERROR_LINES: usize = 5;
const LONGEST_SHOWN: usize = 1000;

/// How much is read at once.
const READ_BYTES: usize = 16 * 1024;

/// The last lines of a child's stderr. Clones share the same lines.
#[derive(Debug, Clone)]
pub struct StderrTail {
    lines: Arc<Mutex<Tail>>,
    /// Becomes true when the pipe has ended.
    ended: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Tail {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Default for StderrTail {
    fn default() -> Self {
        Self::new()
    }
}

impl StderrTail {
    pub fn new() -> Self {
        Self {
            lines: Arc::default(),
            ended: watch::Sender::new(false),
        }
    }

    /// At most `count` last lines, oldest first, escaped and cut as in the log.
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        let tail = self.lines.lock();
        let skipped = tail.lines.len().saturating_sub(count);
        tail.lines.iter().skip(skipped).cloned().collect()
    }

    /// Returns the lines that most likely tell what went wrong, oldest first: the last ones, and
    /// before them those further up that speak of an error. A stack trace is often longer than what
    /// it is about.
    pub fn telling_lines(&self) -> Vec<String> {
        let tail = self.lines.lock();
        let last = tail.lines.len().saturating_sub(LAST_LINES);
        let mut lines: Vec<&String> = tail
            .lines
            .iter()
            .take(last)
            .rev()
            .filter(|line| speaks_of_an_error(line))
            .take(ERROR_LINES)
            .collect();
        lines.reverse();
        lines.extend(tail.lines.iter().skip(last));
        lines
            .into_iter()
            .map(|line| escape::cut(line, LONGEST_SHOWN).to_owned())
            .collect()
    }

    /// Waits until the pipe has ended and all of it is here, or for `limit`. The exit of a child is
    /// often known a little before its last words are.
    pub async fn ended_within(&self, limit: Duration) {
        let mut ended = self.ended.subscribe();
        let _ = timeout(limit, ended.wait_for(|ended| *ended)).await;
    }

    fn push(&self, line: &str) {
        let mut tail = self.lines.lock();
        tail.bytes += line.len() + 1;
        tail.lines.push_back(line.to_owned());
        while tail.bytes > TAIL_BYTES {
            let Some(oldest) = tail.lines.pop_front() else {
                break;
            };
            tail.bytes -= oldest.len() + 1;
        }
    }
}

impl LastLines for StderrTail {
    fn last_lines(&self, count: usize) -> Vec<String> {
        Self::last_lines(self, count)
    }

    fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }
}

/// Reads a child's stderr to its end. The caller runs this as a task of its own.
///
/// The end comes when no process holds the pipe any more. A process that left the child's group may
/// hold it for long, so a caller that is done with the child drops the future. `note` is called
/// whenever something has come.
pub async fn drain(mut pipe: Receiver, destination: &str, pid: u32, tail: StderrTail, note: impl Fn()) {
    let mut lines = Lines::new(Instant::now());
    let mut buffer = vec![0; READ_BYTES];
    let mut log = |report: Report<'_>| match report {
        Report::Line { text, logged } => {
            tail.push(text);
            if logged {
                tracing::warn!(destination, pid, line = text, "stderr");
            }
        }
        Report::Suppressed(count) => {
            tracing::warn!(destination, pid, suppressed = count, "stderr lines suppressed");
        }
    };
    loop {
        let read = match lines.next_deadline() {
            Some(deadline) => match timeout_at(deadline, pipe.read(&mut buffer)).await {
                Ok(read) => read,
                Err(_) => {
                    lines.handle_deadline(Instant::now(), &mut log);
                    continue;
                }
            },
            None => pipe.read(&mut buffer).await,
        };
        match read {
            Ok(count @ 1..) => {
                lines.handle_bytes(Instant::now(), &buffer[..count], &mut log);
                note();
            }
            Ok(0) => break,
            Err(error) => {
                tracing::warn!(destination, pid, %error, "stderr of the server cannot be read");
                break;
            }
        }
    }
    lines.handle_end(Instant::now(), &mut log);
    tail.ended.send_replace(true);
}

fn speaks_of_an_error(line: &str) -> bool {
    const WORDS: [&str; 6] = ["error", "exception", "fatal", "panic", "required", "cannot find"];
    let line = line.to_ascii_lowercase();
    WORDS.iter().any(|word| line.contains(word))
}

/// What the lines amount to.
enum Report<'a> {
    /// A line, escaped and cut; `logged`: whether the ration allows it in the log.
    Line { text: &'a str, logged: bool },
    /// So many lines were not logged.
    Suppressed(u64),
}

/// Cuts bytes into lines and rations them. Time is an argument.
struct Lines {
    /// The line being read, at most `LONGEST_LINE` long.
    line: Vec<u8>,
    /// The line was too long and has been reported: skip the rest of it.
    skipping: bool,
    second_began: Instant,
    logged: u64,
    suppressed: u64,
    text: String,
}

impl Lines {
    fn new(now: Instant) -> Self {
        Self {
            line: Vec::new(),
            skipping: false,
            second_began: now,
            logged: 0,
            suppressed: 0,
            text: String::new(),
        }
    }

    /// Returns when suppressed lines are to be reported even if nothing more comes.
    fn next_deadline(&self) -> Option<Instant> {
        (self.suppressed > 0).then(|| self.second_began + SECOND)
    }

    fn handle_deadline(&mut self, now: Instant, report: &mut impl FnMut(Report<'_>)) {
        if now.duration_since(self.second_began) >= SECOND {
            if self.suppressed > 0 {
                report(Report::Suppressed(self.suppressed));
            }
            self.second_began = now;
            self.logged = 0;
            self.suppressed = 0;
        }
    }

    fn handle_bytes(&mut self, now: Instant, mut bytes: &[u8], report: &mut impl FnMut(Report<'_>)) {
        self.handle_deadline(now, report);
        while !bytes.is_empty() {
            let newline = memchr::memchr(b'\n', bytes);
            let (part, rest) = match newline {
                Some(at) => (&bytes[..at], &bytes[at + 1..]),
                None => (bytes, &bytes[bytes.len()..]),
            };
            bytes = rest;
            if !self.skipping {
                let room = LONGEST_LINE - self.line.len();
                self.line.extend_from_slice(&part[..part.len().min(room)]);
                if part.len() > room {
                    // Report it now: a line without end would otherwise never be seen.
                    self.finish(true, report);
                    self.skipping = true;
                } else if newline.is_some() {
                    self.finish(false, report);
                }
            }
            if newline.is_some() {
                self.skipping = false;
            }
        }
    }

    fn handle_end(&mut self, now: Instant, report: &mut impl FnMut(Report<'_>)) {
        self.handle_deadline(now, report);
        if !self.line.is_empty() {
            self.finish(false, report);
        }
        if self.suppressed > 0 {
            report(Report::Suppressed(self.suppressed));
            self.suppressed = 0;
        }
    }

    fn finish(&mut self, cut: bool, report: &mut impl FnMut(Report<'_>)) {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        if line.is_empty() {
            self.line.clear();
            return;
        }
        self.text.clear();
        let cut = escape_into(&mut self.text, line) || cut;
        if cut {
            self.text.push_str(" [cut]");
        }
        let logged = self.logged < LINES_PER_SECOND;
        if logged {
            self.logged += 1;
        } else {
            self.suppressed += 1;
        }
        report(Report::Line {
            text: &self.text,
            logged,
        });
        self.line.clear();
    }
}

/// Appends the line with everything escaped that could act on a terminal or begin a new record:
/// control characters, and those that change the direction or the look of the text around them.
/// True: it was cut.
fn escape_into(text: &mut String, line: &[u8]) -> bool {
    for chunk in line.utf8_chunks() {
        for character in chunk.valid().chars() {
            if text.len() >= LONGEST_LINE {
                return true;
            }
            if acts(character) {
                let _ = write!(text, "{}", character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            if text.len() >= LONGEST_LINE {
                return true;
            }
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    false
}

fn acts(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{061c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All lines, with a mark for those that the ration kept out of the log, and the summaries.
    fn feed(lines: &mut Lines, now: Instant, bytes: &[u8]) -> Vec<String> {
        let mut seen = Vec::new();
        lines.handle_bytes(now, bytes, &mut note(&mut seen));
        seen
    }

    fn note(seen: &mut Vec<String>) -> impl FnMut(Report<'_>) {
        |report| {
            seen.push(match report {
                Report::Line { text, logged: true } => text.to_owned(),
                Report::Line { text, logged: false } => format!("({text})"),
                Report::Suppressed(count) => format!("{count} suppressed"),
            });
        }
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        let now = Instant::now();
        let mut lines = Lines::new(now);
        assert_eq!(feed(&mut lines, now, b"hel"), [""; 0]);
        assert_eq!(feed(&mut lines, now, b"lo\r\n\n\nwor"), ["hello"]);
        let mut seen = Vec::new();
        lines.handle_end(now, &mut note(&mut seen));
        assert_eq!(seen, ["wor"]);
    }

    #[test]
    fn terminal_controls_are_escaped() {
        let now = Instant::now();
        let seen = feed(
            &mut Lines::new(now),
            now,
            "\u{1b}[2Ja\u{202e}b\tc\rd é\n".as_bytes(),
        );
        assert_eq!(seen, [r"\u{1b}[2Ja\u{202e}b\tc\rd é"]);
        assert_eq!(feed(&mut Lines::new(now), now, b"\xff\xfe!\n"), [r"\xff\xfe!"]);
    }

    #[test]
    fn an_endless_line_is_reported_once_and_held_in_bounds() {
        let now = Instant::now();
        let mut lines = Lines::new(now);
        let mut seen = Vec::new();
        for _ in 0..1000 {
            seen.extend(feed(&mut lines, now, &[b'x'; 10_000]));
            assert!(lines.line.capacity() <= 2 * LONGEST_LINE);
        }
        seen.extend(feed(&mut lines, now, b"tail\nnext\n"));
        assert_eq!(
            seen,
            [format!("{} [cut]", "x".repeat(LONGEST_LINE)), "next".to_owned()]
        );
    }

    #[test]
    fn a_line_that_grows_by_escaping_is_cut_too() {
        let now = Instant::now();
        let seen = feed(&mut Lines::new(now), now, &[&[0x1b; 4000][..], b"\n"].concat());
        assert!(
            seen[0].len() < LONGEST_LINE + 20 && seen[0].ends_with(" [cut]"),
            "{}",
            seen[0].len()
        );
    }

    #[test]
    fn a_flood_is_rationed_and_its_rest_counted() {
        let now = Instant::now();
        let mut lines = Lines::new(now);
        let seen = feed(&mut lines, now, "y\n".repeat(250).as_bytes());
        assert_eq!(seen.iter().filter(|line| *line == "y").count(), 100);
        assert_eq!(seen.iter().filter(|line| *line == "(y)").count(), 150);
        assert_eq!(lines.next_deadline(), Some(now + SECOND));
        assert_eq!(feed(&mut lines, now + SECOND, b"z\n"), ["150 suppressed", "z"]);
        assert_eq!(lines.next_deadline(), None);
    }

    #[test]
    fn the_line_that_names_the_error_survives_a_long_trace() {
        let tail = StderrTail::new();
        tail.push("starting");
        tail.push("Error: API_KEY is required");
        for number in 0..30 {
            tail.push(&format!("    at frame {number}"));
        }
        let lines = tail.telling_lines();
        assert_eq!(lines.len(), 1 + LAST_LINES);
        assert_eq!(lines[0], "Error: API_KEY is required");
        assert_eq!(lines[20], "    at frame 29");
    }

    #[test]
    fn the_tail_keeps_the_end_within_its_bounds() {
        let tail = StderrTail::new();
        for number in 0..10_000 {
            tail.push(&format!("line {number:05}"));
        }
        assert_eq!(tail.last_lines(2), ["line 09998", "line 09999"]);
        let kept = tail.last_lines(usize::MAX);
        assert_eq!(kept.len(), TAIL_BYTES / "line 00000\n".len());
    }

    proptest! {
        #[test]
        fn the_way_the_bytes_are_split_changes_nothing(
            bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..300),
            cut in 0_usize..300,
        ) {
            let now = Instant::now();
            let cut = cut.min(bytes.len());
            let whole = feed(&mut Lines::new(now), now, &bytes);
            let mut lines = Lines::new(now);
            let mut parts = feed(&mut lines, now, &bytes[..cut]);
            parts.extend(feed(&mut lines, now, &bytes[cut..]));
            prop_assert_eq!(&whole, &parts);
            prop_assert!(whole.iter().all(|line| !line.chars().any(acts)));
        }
    }
}
