//! The one clock: monotonic time as the machines' [`Moment`]s.

use std::time::Instant;

use protocol::time::Moment;

/// A monotonic clock that counts from its own making. Copies tell the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    pub(crate) fn now(self) -> Moment {
        Moment::since_start(self.start.elapsed())
    }

    /// Comes back when the moment is reached; never, for no moment.
    pub(crate) async fn reach(self, moment: Option<Moment>) -> Moment {
        match moment {
            Some(moment) => {
                tokio::time::sleep_until((self.start + moment.elapsed()).into()).await;
                self.now().max(moment)
            }
            None => std::future::pending().await,
        }
    }
}
