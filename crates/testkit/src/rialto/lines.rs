//! The output of a process, collected by line while it runs.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The oldest lines go first when there are more, so that a flood cannot fill the memory of the
/// test.
const MOST_LINES: usize = 200_000;
const LONGEST_LINE: u64 = 1 << 20;
const STALL_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Default)]
pub(super) struct Lines {
    kept: Arc<Mutex<VecDeque<String>>>,
    ended: Arc<AtomicBool>,
    stalled: Arc<AtomicBool>,
}

impl Lines {
    /// Reads on a thread of its own until the end, so that the writer never waits for the test.
    pub(super) fn collect(source: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let mine = lines.clone();
        std::thread::spawn(move || {
            let mut source = BufReader::new(source);
            let mut line = Vec::new();
            while let Ok(1..) = source.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
                while mine.stalled.load(Ordering::Acquire) {
                    std::thread::park_timeout(STALL_PAUSE);
                }
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                line.clear();
                let mut kept = mine.kept();
                if kept.len() == MOST_LINES {
                    kept.pop_front();
                }
                kept.push_back(text);
            }
            mine.ended.store(true, Ordering::Release);
        });
        lines
    }

    /// Lets the pipe fill up.
    pub(super) fn stall(&self) {
        self.stalled.store(true, Ordering::Release);
    }

    pub(super) fn resume(&self) {
        self.stalled.store(false, Ordering::Release);
    }

    /// Whether the writers have all closed it.
    pub(super) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.kept().iter().cloned().collect()
    }

    pub(super) fn last(&self, count: usize) -> String {
        let kept = self.kept();
        let skipped = kept.len().saturating_sub(count);
        kept.iter()
            .skip(skipped)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// The first line in which `look` finds something.
    pub(super) fn find<T>(&self, look: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.kept().iter().find_map(|line| look(line))
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Prints for the reader of a failing test's output.
pub(super) fn show(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
