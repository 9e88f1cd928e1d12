//! Whether the one server of a destination may run in this process (`placement: one`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use protocol::time::Moment;

/// Until when the server may run here, by the clock of the gateway. The fleet sets it; the frontend
/// and the upstream read it for each request.
#[derive(Debug, Default)]
pub(crate) struct ServerLease {
    /// In microseconds; 0: it may not.
    until: AtomicU64,
}

impl ServerLease {
    pub(crate) fn set(&self, until: Duration) {
        let micros = u64::try_from(until.as_micros()).unwrap_or(0);
        self.until.store(micros, Ordering::Release);
    }

    /// Returns whether the server may run here. A process that was paused reads the clock before
    /// its timers ring.
    pub(crate) fn is_held(&self, now: Moment) -> bool {
        now.elapsed().as_micros() < u128::from(self.until.load(Ordering::Acquire))
    }
}
