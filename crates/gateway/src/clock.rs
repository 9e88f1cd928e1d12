//! The one clock: monotonic time as the machines' [`Moment`]s.

use std::pin::Pin;
use std::time::{Instant, SystemTime};

use protocol::time::Moment;
use tokio::time::Sleep;

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

    /// Returns the time of day, for what another process reads. It may jump; a decision about this
    /// process alone takes [`Clock::now`].
    pub(crate) fn wall(self) -> SystemTime {
        SystemTime::now()
    }

    /// Returns a timer that rings when the moment is reached.
    pub(crate) fn sleep_until(self, moment: Moment) -> Sleep {
        tokio::time::sleep_until((self.start + moment.elapsed()).into())
    }

    /// Waits for the moment; for no moment, without end.
    pub(crate) async fn reach(self, moment: Option<Moment>) -> Moment {
        match moment {
            Some(moment) => {
                self.sleep_until(moment).await;
                self.now().max(moment)
            }
            None => std::future::pending().await,
        }
    }
}

/// One timer for a deadline that moves with every message. It is armed anew only for an earlier
/// moment: most deadlines move away before they are reached, and arming costs more than ringing
/// early once in a while.
#[derive(Debug)]
pub(crate) struct Alarm {
    clock: Clock,
    armed: Option<(Moment, Pin<Box<Sleep>>)>,
}

impl Alarm {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, armed: None }
    }

    /// Waits for the moment, or less; for no moment, without end.
    pub(crate) async fn ring(&mut self, moment: Option<Moment>) -> Moment {
        let Some(moment) = moment else {
            return std::future::pending().await;
        };
        let instant = (self.clock.start + moment.elapsed()).into();
        let sleep = match &mut self.armed {
            Some((armed, sleep)) => {
                if moment < *armed {
                    *armed = moment;
                    sleep.as_mut().reset(instant);
                }
                sleep
            }
            none => {
                &mut none
                    .insert((moment, Box::pin(tokio::time::sleep_until(instant))))
                    .1
            }
        };
        sleep.as_mut().await;
        self.armed = None;
        self.clock.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn an_alarm_rings_early_rather_than_late() {
        let clock = Clock::new();
        let (soon, late) = (
            clock.now().after(Duration::from_secs(1)),
            clock.now().after(Duration::from_secs(5)),
        );
        let began = tokio::time::Instant::now();
        let mut alarm = Alarm::new(clock);
        for moment in [late, soon, late] {
            let moved_away = tokio::time::timeout(Duration::ZERO, alarm.ring(Some(moment))).await;
            assert!(moved_away.is_err());
        }
        alarm.ring(Some(late)).await;
        assert_eq!(began.elapsed().as_secs(), 1);
        alarm.ring(Some(late)).await;
        assert!(began.elapsed().as_secs() >= 4);
        assert!(
            tokio::time::timeout(Duration::from_secs(9), alarm.ring(None))
                .await
                .is_err()
        );
    }
}
