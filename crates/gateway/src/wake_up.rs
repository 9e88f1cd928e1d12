//! The task that wakes a machine at its deadline, for machines that no task of their own serves.
//!
//! A machine names its next deadline after each call. A task sleeps until the earliest one, and
//! calls the machine then. No task is started for a later deadline: the machine names it again.

use protocol::time::Moment;

/// The moment at which a task wakes a machine, if one sleeps for it.
#[derive(Debug, Default)]
pub(crate) struct WakeUp(Option<Moment>);

impl WakeUp {
    /// Takes the machine's next deadline. Returns it if a task is to be started for it.
    pub(crate) fn set(&mut self, deadline: Option<Moment>) -> Option<Moment> {
        let due = deadline?;
        if self.0.is_some_and(|set| set <= due) {
            return None;
        }
        self.0 = Some(due);
        Some(due)
    }

    /// Notes that the task is awake.
    pub(crate) fn done(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn task_is_started_for_the_earliest_deadline_only() {
        let at = |seconds| Some(Moment::since_start(Duration::from_secs(seconds)));
        let mut wake_up = WakeUp::default();
        assert_eq!(wake_up.set(None), None);
        assert_eq!(wake_up.set(at(5)), at(5));
        assert_eq!(wake_up.set(at(5)), None);
        assert_eq!(wake_up.set(at(7)), None);
        assert_eq!(wake_up.set(at(3)), at(3));
        wake_up.done();
        assert_eq!(wake_up.set(at(7)), at(7));
    }
}
