//! Time as a value: the caller of a machine reads the clock.

use std::time::Duration;

/// A point on a monotonic clock, counted from the start of the process (or of a test).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(Duration);

impl Moment {
    /// The start of the process.
    pub const START: Self = Self(Duration::ZERO);

    /// Returns the moment this long after the start.
    pub const fn since_start(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// Returns how long after the start this moment is.
    pub const fn elapsed(self) -> Duration {
        self.0
    }

    /// Returns the moment this much later.
    #[must_use]
    pub const fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// Returns the time from `earlier` to this moment, or zero if it lies ahead.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Returns the earlier of two optional moments; `None` means never.
pub fn earliest(a: Option<Moment>, b: Option<Moment>) -> Option<Moment> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, None) | (None, one) => one,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn span_after_a_moment_is_the_time_since_it() {
        let later = Moment::START.after(SECOND);
        assert_eq!(later, Moment::since_start(SECOND));
        assert_eq!(later.elapsed(), SECOND);
        assert_eq!(later.since(Moment::START), SECOND);
        assert_eq!(Moment::START.since(later), Duration::ZERO);
    }

    #[test]
    fn never_is_later_than_any_moment() {
        let (first, second) = (Moment::since_start(SECOND), Moment::since_start(SECOND * 2));
        assert_eq!(earliest(Some(first), Some(second)), Some(first));
        assert_eq!(earliest(Some(second), Some(first)), Some(first));
        assert_eq!(earliest(Some(second), None), Some(second));
        assert_eq!(earliest(None, Some(second)), Some(second));
        assert_eq!(earliest(None, None), None);
    }
}
