//! Rate limit: requests per minute, by arithmetic on one number.
//!
//! The generic cell rate algorithm: a caller's number is the moment up to which its allowance is
//! used. It has no timer, no queue and no memory of single requests. A minute's worth may come at
//! once; after that it fills up evenly. It does not know what is counted, or for which caller.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use protocol::time::Moment;

const MINUTE: Duration = Duration::from_secs(60);

/// So many a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    /// From one request to the next, if they come evenly, in nanoseconds.
    interval: u64,
}

/// What a caller has used of its allowance.
#[derive(Debug, Default)]
pub(crate) struct Allowance(AtomicU64);

impl Rate {
    /// At least one a minute.
    pub(crate) fn per_minute(requests: u32) -> Self {
        Self {
            interval: nanos(MINUTE) / u64::from(requests.max(1)),
        }
    }

    /// Given what was used, gives what is used after one more request, or how long that one has to
    /// wait.
    fn check(self, used: u64, now: u64) -> Result<u64, Duration> {
        let next = used.max(now) + self.interval;
        let allowed = now + nanos(MINUTE);
        if next <= allowed {
            Ok(next)
        } else {
            Err(Duration::from_nanos(next - allowed))
        }
    }

    /// Uses the allowance for one request, or returns how long it has to wait.
    pub(crate) fn admit(self, allowance: &Allowance, now: Moment) -> Result<(), Duration> {
        let now = nanos(now.elapsed());
        let mut wait = Duration::ZERO;
        let admitted = allowance.0.fetch_update(Relaxed, Relaxed, |used| {
            self.check(used, now).map_err(|longer| wait = longer).ok()
        });
        admitted.map(drop).map_err(|_| wait)
    }
}

impl Allowance {
    /// Returns whether nothing of it is used: its caller need not be remembered.
    pub(crate) fn is_whole(&self, now: Moment) -> bool {
        self.0.load(Relaxed) <= nanos(now.elapsed())
    }
}

/// Five centuries fit.
fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: f64) -> Moment {
        Moment::START.after(Duration::from_secs_f64(seconds))
    }

    #[test]
    fn a_minutes_worth_may_come_at_once_and_then_one_at_a_time() {
        let (rate, allowance) = (Rate::per_minute(60), Allowance::default());
        for _ in 0..60 {
            assert_eq!(rate.admit(&allowance, at(5.0)), Ok(()));
        }
        assert_eq!(rate.admit(&allowance, at(5.0)), Err(Duration::from_secs(1)));
        assert_eq!(rate.admit(&allowance, at(5.5)), Err(Duration::from_millis(500)));
        assert_eq!(rate.admit(&allowance, at(6.0)), Ok(()));
        assert!(rate.admit(&allowance, at(6.0)).is_err());
    }

    #[test]
    fn an_allowance_that_was_left_alone_is_whole_again() {
        let (rate, allowance) = (Rate::per_minute(2), Allowance::default());
        assert!(allowance.is_whole(at(0.0)));
        assert!(rate.admit(&allowance, at(1.0)).is_ok());
        assert!(!allowance.is_whole(at(30.0)));
        assert!(allowance.is_whole(at(31.0)));
    }

    #[test]
    fn request_that_waits_for_retry_after_is_admitted() {
        let (rate, allowance) = (Rate::per_minute(7), Allowance::default());
        let mut now = at(3.0);
        for _ in 0..100 {
            if let Err(wait) = rate.admit(&allowance, now) {
                now = now.after(wait);
                assert_eq!(rate.admit(&allowance, now), Ok(()));
            }
        }
    }

    proptest! {
        /// For any times, no minute has more than twice the allowance, and an hour no more than its
        /// share and one.
        #[test]
        fn no_window_has_more_than_its_share(rate in 1_u32..200, steps in proptest::collection::vec(0_u64..3_000, 1..400)) {
            let (limit, allowance) = (Rate::per_minute(rate), Allowance::default());
            let mut now = 0_u64;
            let mut admitted = Vec::new();
            for step in steps {
                now += step;
                if limit.admit(&allowance, Moment::START.after(Duration::from_millis(now))).is_ok() {
                    admitted.push(now);
                }
            }
            for (at, from) in admitted.iter().enumerate() {
                let within = admitted[at..].iter().filter(|moment| **moment - from < 60_000).count();
                prop_assert!(within as u64 <= 2 * u64::from(rate), "{within} in a minute");
            }
            let share = u64::from(rate) + now * u64::from(rate) / 60_000 + 1;
            prop_assert!(admitted.len() as u64 <= share);
        }
    }
}
