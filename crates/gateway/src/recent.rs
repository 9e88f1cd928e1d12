//! The last five minutes of a destination, from copies of counters that only grow.
//!
//! A call counts nothing more for this: maintenance copies the counters now and then, and a reader
//! subtracts the copy that is five minutes old from what they are now.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::exchange::Blame;
use protocol::time::Moment;

/// How far a reader looks back.
pub(crate) const WINDOW: Duration = Duration::from_secs(5 * 60);
/// The time between two copies: so much longer than [`WINDOW`] a reader may look back.
const INTERVAL: Duration = Duration::from_secs(15);
/// Copies that are kept.
const COPIES: usize = 22;

/// Counters at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Calls in each bucket of latencies.
    pub(crate) buckets: Vec<u64>,
    pub(crate) failures: BTreeMap<(Blame, &'static str), u64>,
}

impl Counted {
    /// Returns what was counted since an earlier moment.
    fn since(&self, earlier: &Self) -> Self {
        let before = earlier.buckets.iter().copied().chain(std::iter::repeat(0));
        let buckets = self.buckets.iter().zip(before);
        let failures = self.failures.iter().map(|(key, count)| {
            let before = earlier.failures.get(key).copied().unwrap_or_default();
            (*key, count.saturating_sub(before))
        });
        Self {
            buckets: buckets.map(|(now, before)| now.saturating_sub(before)).collect(),
            failures: failures.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

/// What was counted lately, and over which time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) span: Duration,
    pub(crate) counted: Counted,
}

/// The copies of one destination.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<VecDeque<(Moment, Counted)>>);

impl Recent {
    /// Copies the counters, if the last copy is old enough.
    pub(crate) fn note(&self, now: Moment, counted: impl FnOnce() -> Counted) {
        let is_due = {
            let copies = self.0.lock();
            copies.back().is_none_or(|(at, _)| now.since(*at) >= INTERVAL)
        };
        if is_due {
            // Counters have locks of their own.
            let counted = counted();
            let mut copies = self.0.lock();
            copies.push_back((now, counted));
            while copies.len() > COPIES {
                copies.pop_front();
            }
        }
    }

    /// Returns what was counted in the last five minutes, or since the start of the process.
    pub(crate) fn window(&self, now: Moment, counted: &Counted) -> Window {
        let copies = self.0.lock();
        let is_old = |copy: &&(Moment, Counted)| now.since(copy.0) >= WINDOW;
        let base = copies.iter().rev().find(is_old);
        let (span, counted) = match base {
            Some((at, before)) => (now.since(*at), counted.since(before)),
            None => (now.since(Moment::START), counted.clone()),
        };
        Window { span, counted }
    }
}

/// The figures of a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) span: Duration,
    pub(crate) calls: u64,
    pub(crate) p50: Option<Duration>,
    pub(crate) p99: Option<Duration>,
    pub(crate) failures: BTreeMap<(Blame, &'static str), u64>,
}

impl Window {
    /// Returns the figures; `bounds` are the upper bounds of the buckets.
    pub(crate) fn figures(self, bounds: &[Duration]) -> Figures {
        Figures {
            span: self.span,
            calls: self.calls(),
            p50: self.quantile(0.5, bounds),
            p99: self.quantile(0.99, bounds),
            failures: self.counted.failures,
        }
    }

    fn calls(&self) -> u64 {
        self.counted.buckets.iter().sum()
    }

    /// Returns the latency that this share of the calls does not exceed, within its bucket; `None`
    /// without calls. `bounds` are the upper bounds of the buckets; what is above all of them has
    /// the last bound.
    fn quantile(&self, share: f64, bounds: &[Duration]) -> Option<Duration> {
        let calls = self.calls();
        if calls == 0 {
            return None;
        }
        let wanted = (share * calls as f64).max(1.0);
        let mut before = 0.0;
        let mut lower = Duration::ZERO;
        for (at, count) in self.counted.buckets.iter().enumerate() {
            let Some(upper) = bounds.get(at) else {
                return Some(lower);
            };
            let count = *count as f64;
            if before + count >= wanted {
                let part = ((wanted - before) / count).clamp(0.0, 1.0);
                return Some(lower + upper.saturating_sub(lower).mul_f64(part));
            }
            before += count;
            lower = *upper;
        }
        Some(lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];

    fn at(seconds: u64) -> Moment {
        Moment::since_start(Duration::from_secs(seconds))
    }

    fn counted(buckets: [u64; 3]) -> Counted {
        Counted {
            buckets: buckets.to_vec(),
            ..Counted::default()
        }
    }

    #[test]
    fn window_begins_with_the_process_and_then_moves() {
        let recent = Recent::default();
        let young = recent.window(at(7), &counted([3, 0, 0]));
        assert_eq!((young.span, young.calls()), (Duration::from_secs(7), 3));
        for second in 0..1000 {
            recent.note(at(second), || counted([second, 0, 0]));
        }
        let window = recent.window(at(1000), &counted([1000, 0, 0]));
        assert_eq!(window.calls(), window.span.as_secs());
        assert!(
            window.span >= WINDOW && window.span < WINDOW + INTERVAL,
            "{window:?}"
        );
        assert!(recent.0.lock().len() <= COPIES);
    }

    #[test]
    fn failures_of_the_window_alone_are_in_it() {
        let recent = Recent::default();
        let failed = |timeouts, exits| Counted {
            buckets: Vec::new(),
            failures: [
                ((Blame::Backend, "timeout"), timeouts),
                ((Blame::Backend, "exited"), exits),
            ]
            .into(),
        };
        recent.note(at(0), || failed(2, 1));
        let window = recent.window(at(301), &failed(5, 1));
        let left: Vec<_> = window.counted.failures.into_iter().collect();
        assert_eq!(left, [((Blame::Backend, "timeout"), 3)]);
    }

    #[test]
    fn quantiles_lie_within_the_bucket_of_their_call() {
        let of = |buckets, share| {
            let window = Window {
                counted: counted(buckets),
                ..Window::default()
            };
            window.quantile(share, &BOUNDS)
        };
        assert_eq!(of([0, 0, 0], 0.5), None);
        assert_eq!(of([2, 0, 0], 0.5), Some(Duration::from_millis(5)));
        assert_eq!(of([90, 10, 0], 0.99), Some(Duration::from_millis(91)));
        assert_eq!(of([0, 0, 4], 0.5), Some(Duration::from_millis(100)), "at least");
    }
}
