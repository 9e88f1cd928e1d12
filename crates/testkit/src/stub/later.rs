//! Delayed lines: a thread that writes each line when it is due, unless it is cancelled.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::output::Output;

/// More than any test schedules; beyond it the stub is the one at fault.
const MOST_ENTRIES: usize = 100_000;

/// The call that a line belongs to, by which it can be cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    /// The raw id.
    pub(super) id: String,
    pub(super) marker: Option<String>,
}

#[derive(Debug)]
struct Entry {
    call: Option<Call>,
    line: String,
}

#[derive(Debug, Default)]
struct Schedule {
    /// Keyed by time, then by order of scheduling.
    entries: BTreeMap<(Instant, u64), Entry>,
    scheduled: u64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Later {
    shared: Arc<(Mutex<Schedule>, Condvar)>,
}

impl Later {
    pub(super) fn start(output: Output) -> Self {
        let later = Self::default();
        let mine = later.clone();
        std::thread::spawn(move || mine.run(output));
        later
    }

    /// Writes `line` after `delay`.
    pub(super) fn send(&self, delay: Duration, call: Option<Call>, line: String) {
        let mut schedule = self.schedule();
        assert!(schedule.entries.len() < MOST_ENTRIES, "too much is due later");
        let key = (Instant::now() + delay, schedule.scheduled);
        schedule.scheduled += 1;
        schedule.entries.insert(key, Entry { call, line });
        self.shared.1.notify_one();
    }

    /// Drops the delayed lines of the call with that raw id, and returns the call.
    pub(super) fn cancel(&self, id: &str) -> Option<Call> {
        let mut schedule = self.schedule();
        let mut cancelled = None;
        schedule.entries.retain(|_, entry| match &entry.call {
            Some(call) if call.id == id => {
                cancelled = entry.call.take();
                false
            }
            Some(_) | None => true,
        });
        cancelled
    }

    fn run(&self, output: Output) {
        let mut schedule = self.schedule();
        loop {
            let wait = match schedule.entries.first_entry() {
                Some(first) if first.key().0 <= Instant::now() => {
                    let entry = first.remove();
                    // Written with the schedule locked: once `cancel` has found it, nothing
                    // follows.
                    output.line(&entry.line);
                    continue;
                }
                Some(first) => first.key().0.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            let woken = self.shared.1.wait_timeout(schedule, wait);
            schedule = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
