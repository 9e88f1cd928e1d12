//! The last lines that the servers of a destination wrote to stderr, for the page.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::audit;

/// How many lines of a process are shown, and how much of each.
const LINES: usize = 200;
const LONGEST: usize = 2048;
/// How many processes that have ended are remembered.
const ENDED: usize = 2;

/// The end of what one process wrote.
pub(crate) trait LastLines: std::fmt::Debug + Send + Sync {
    /// Returns so many last lines, oldest first, escaped.
    fn last_lines(&self, count: usize) -> Vec<String>;

    /// Returns whether nothing more comes.
    fn has_ended(&self) -> bool;
}

/// What the processes of a destination wrote: of all that run, and of the last ones that ended.
#[derive(Debug, Default)]
pub(crate) struct ServerOutput(Mutex<VecDeque<(u32, Arc<dyn LastLines>)>>);

/// What one process wrote.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutputOfProcess {
    pub(crate) pid: u32,
    pub(crate) is_running: bool,
    /// Oldest first; secrets are replaced.
    pub(crate) lines: Vec<String>,
}

impl ServerOutput {
    /// Adds a process that has started.
    pub(crate) fn add(&self, pid: u32, lines: Arc<dyn LastLines>) {
        let mut processes = self.0.lock();
        processes.push_back((pid, lines));
        let mut ended = processes.iter().filter(|(_, lines)| lines.has_ended()).count();
        processes.retain(|(_, lines)| {
            let is_forgotten = ended > ENDED && lines.has_ended();
            ended -= usize::from(is_forgotten);
            !is_forgotten
        });
    }

    /// Returns the last lines of each process, the newest process first.
    pub(crate) fn shown(&self) -> Vec<OutputOfProcess> {
        let processes: Vec<_> = self.0.lock().iter().rev().cloned().collect();
        let of_process = |(pid, output): (u32, Arc<dyn LastLines>)| {
            let lines = output.last_lines(LINES);
            OutputOfProcess {
                pid,
                is_running: !output.has_ended(),
                lines: lines
                    .iter()
                    .map(|line| audit::redacted(line.as_bytes(), LONGEST))
                    .collect(),
            }
        };
        processes.into_iter().map(of_process).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Lines(Vec<String>, bool);

    impl LastLines for Lines {
        fn last_lines(&self, count: usize) -> Vec<String> {
            self.0[self.0.len().saturating_sub(count)..].to_vec()
        }

        fn has_ended(&self) -> bool {
            self.1
        }
    }

    #[test]
    fn processes_that_run_are_kept_and_of_the_ended_the_last_ones() {
        let output = ServerOutput::default();
        output.add(1, Arc::new(Lines(vec!["first".to_owned()], false)));
        for pid in 2..10 {
            output.add(pid, Arc::new(Lines(Vec::new(), true)));
        }
        let pids: Vec<u32> = output.shown().iter().map(|process| process.pid).collect();
        assert_eq!(pids, [9, 8, 1]);
    }

    #[test]
    fn secrets_of_a_line_are_replaced() {
        let output = ServerOutput::default();
        let lines = vec!["api_key=geheim".to_owned(); LINES + 5];
        output.add(1, Arc::new(Lines(lines, false)));
        let shown = output.shown();
        assert_eq!(shown[0].lines.len(), LINES);
        assert!(
            shown[0].lines.iter().all(|line| line == "api_key=[redacted]"),
            "{shown:?}"
        );
    }
}
