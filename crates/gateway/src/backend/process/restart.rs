//! Restart backoff of one child: when it may be started, and how long to wait after a failure.
//!
//! Pure: time is an argument, counted from any fixed beginning, and nothing here starts or stops
//! anything. The rule: one start and three restarts after 0.5, 1 and 2 s; the count is forgotten
//! after 60 s of health; after the third failed restart the child counts as failed, and a new
//! attempt is made at most every 30 s, and only for a request. A deliberate stop never shortens a
//! wait.

use std::time::Duration;

/// The waits before the restarts; there are as many restarts as waits.
const WAITS: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// This long ready, and earlier failures are forgotten.
const HEALTHY: Duration = Duration::from_secs(60);

/// How long a failed child is left alone before a request may start it again.
const COOL_DOWN: Duration = Duration::from_secs(30);

/// Where a child is in its life. Moments are durations since the caller's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildState {
    /// Not wanted, or not wanted yet.
    Stopped,
    /// Started, and not yet known to work.
    Starting,
    /// It works.
    Ready,
    /// It ended by itself; it will be started again at `until`.
    BackingOff { until: Duration },
    /// It ended too often; a request may start it again from `retry_at` on.
    Failed { retry_at: Duration },
}

/// What a request that needs the child gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartDecision {
    /// Start it now; the policy counts it as starting.
    Start,
    /// A start is under way: wait for its outcome.
    UnderWay,
    /// It is ready: go on.
    Ready,
    /// It will be started at `until`: wait for that.
    Wait { until: Duration },
    /// Refuse; a new attempt is possible from `retry_at` on.
    Unavailable { retry_at: Duration },
}

/// An event that cannot happen in this state. The state is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a child that is {state:?} cannot be reported as {event}")]
pub struct IllegalTransition {
    pub state: ChildState,
    pub event: &'static str,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Stopped,
    Starting,
    Ready {
        since: Duration,
    },
    /// Ended by itself. Whether this is backing off or failed follows from the number of failures.
    Down,
}

/// One child's restart policy.
#[derive(Debug, Clone)]
pub struct RestartPolicy {
    phase: Phase,
    /// Ends in a row without 60 s of health between them, at most one more than there are waits.
    failures: usize,
    /// No start before this moment. It outlives a deliberate stop.
    earliest: Duration,
    /// One failure is not counted once the child is ready: `server/discover` may have caused it.
    forgives_one: bool,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl RestartPolicy {
    /// Returns the policy of a child that no request has needed yet.
    pub fn new() -> Self {
        Self {
            phase: Phase::Stopped,
            failures: 0,
            earliest: Duration::ZERO,
            forgives_one: false,
        }
    }

    pub fn state(&self) -> ChildState {
        match self.phase {
            Phase::Stopped => ChildState::Stopped,
            Phase::Starting => ChildState::Starting,
            Phase::Ready { .. } => ChildState::Ready,
            Phase::Down if self.gave_up() => ChildState::Failed {
                retry_at: self.earliest,
            },
            Phase::Down => ChildState::BackingOff { until: self.earliest },
        }
    }

    /// Returns how often in a row the child has ended by itself.
    pub fn failures(&self) -> usize {
        self.failures
    }

    /// Returns when `handle_deadline` is to be called. A failed child has no deadline: it needs a
    /// request.
    pub fn next_deadline(&self) -> Option<Duration> {
        match self.state() {
            ChildState::BackingOff { until } => Some(until),
            ChildState::Stopped | ChildState::Starting | ChildState::Ready | ChildState::Failed { .. } => {
                None
            }
        }
    }

    /// A request needs the child.
    pub fn handle_ask(&mut self, now: Duration) -> StartDecision {
        match self.phase {
            Phase::Starting => StartDecision::UnderWay,
            Phase::Ready { .. } => StartDecision::Ready,
            Phase::Stopped | Phase::Down if self.earliest <= now => {
                self.phase = Phase::Starting;
                StartDecision::Start
            }
            Phase::Stopped | Phase::Down => {
                // A child that was stopped while it had to wait takes its waiting up again.
                self.phase = Phase::Down;
                if self.gave_up() {
                    StartDecision::Unavailable {
                        retry_at: self.earliest,
                    }
                } else {
                    StartDecision::Wait { until: self.earliest }
                }
            }
        }
    }

    /// Time has passed. True: start the child now; the policy counts it as starting.
    pub fn handle_deadline(&mut self, now: Duration) -> bool {
        let due = self.next_deadline().is_some_and(|until| until <= now);
        if due {
            self.phase = Phase::Starting;
        }
        due
    }

    /// The child has shown that it works.
    pub fn handle_ready(&mut self, now: Duration) -> Result<(), IllegalTransition> {
        match self.phase {
            Phase::Starting => {
                self.phase = Phase::Ready { since: now };
                if std::mem::take(&mut self.forgives_one) {
                    self.failures = self.failures.saturating_sub(1);
                }
                Ok(())
            }
            Phase::Stopped | Phase::Ready { .. } | Phase::Down => Err(self.illegal("ready")),
        }
    }

    /// The child could not be started, or ended without being asked to. The answer is the new
    /// state.
    pub fn handle_failure(&mut self, now: Duration) -> Result<ChildState, IllegalTransition> {
        match self.phase {
            Phase::Starting => {}
            Phase::Ready { since } => self.forget_if_healthy(since, now),
            Phase::Stopped | Phase::Down => return Err(self.illegal("failed")),
        }
        let wait = WAITS.get(self.failures).copied().unwrap_or(COOL_DOWN);
        self.failures = (self.failures + 1).min(WAITS.len() + 1);
        self.earliest = now.saturating_add(wait);
        self.phase = Phase::Down;
        Ok(self.state())
    }

    /// The child may have ended because of `server/discover`, and is sent `initialize` next time.
    /// The last failure is not counted once the child is ready.
    pub fn forgive_failure(&mut self) {
        self.forgives_one = true;
    }

    /// The child was stopped on purpose, or is no longer wanted. This is legal in every state.
    pub fn handle_stop(&mut self, now: Duration) {
        if let Phase::Ready { since } = self.phase {
            self.forget_if_healthy(since, now);
        }
        self.phase = Phase::Stopped;
    }

    fn forget_if_healthy(&mut self, since: Duration, now: Duration) {
        if now.saturating_sub(since) >= HEALTHY {
            self.failures = 0;
        }
    }

    fn gave_up(&self) -> bool {
        self.failures > WAITS.len()
    }

    fn illegal(&self, event: &'static str) -> IllegalTransition {
        IllegalTransition {
            state: self.state(),
            event,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Returns a policy whose child has failed for good at the moment returned.
    fn given_up() -> (RestartPolicy, Duration) {
        let mut policy = RestartPolicy::new();
        assert_eq!(policy.handle_ask(at(0)), StartDecision::Start);
        let mut now = at(0);
        for _ in 0..3 {
            policy.handle_failure(now).unwrap();
            now = policy.next_deadline().unwrap();
            assert!(policy.handle_deadline(now));
        }
        assert_eq!(
            policy.handle_failure(now),
            Ok(ChildState::Failed {
                retry_at: now + COOL_DOWN
            })
        );
        (policy, now)
    }

    #[test]
    fn a_child_that_exits_at_once_is_started_once_and_three_times_more() {
        let mut policy = RestartPolicy::new();
        assert_eq!(policy.handle_ask(at(0)), StartDecision::Start);
        assert_eq!(
            policy.handle_failure(at(0)),
            Ok(ChildState::BackingOff { until: at(500) })
        );
        assert!(policy.handle_deadline(at(500)));
        assert_eq!(
            policy.handle_failure(at(500)),
            Ok(ChildState::BackingOff { until: at(1500) })
        );
        assert!(policy.handle_deadline(at(1500)));
        assert_eq!(
            policy.handle_failure(at(1500)),
            Ok(ChildState::BackingOff { until: at(3500) })
        );
        assert!(policy.handle_deadline(at(3500)));
        assert_eq!(
            policy.handle_failure(at(3500)),
            Ok(ChildState::Failed { retry_at: at(33_500) })
        );
    }

    #[test]
    fn failed_child_is_tried_again_only_for_a_request_after_the_cool_down() {
        let (mut policy, now) = given_up();
        assert_eq!(policy.next_deadline(), None);
        assert!(!policy.handle_deadline(now + Duration::from_secs(3600)));
        let retry_at = now + COOL_DOWN;
        assert_eq!(
            policy.handle_ask(retry_at - at(1)),
            StartDecision::Unavailable { retry_at }
        );
        assert_eq!(policy.handle_ask(retry_at), StartDecision::Start);
        assert_eq!(
            policy.handle_failure(retry_at),
            Ok(ChildState::Failed {
                retry_at: retry_at + COOL_DOWN
            })
        );
    }

    #[test]
    fn a_minute_of_health_forgives_earlier_failures() {
        let (mut policy, now) = given_up();
        let retry = now + COOL_DOWN;
        assert_eq!(policy.handle_ask(retry), StartDecision::Start);
        policy.handle_ready(retry).unwrap();
        let end = retry + HEALTHY;
        assert_eq!(
            policy.handle_failure(end),
            Ok(ChildState::BackingOff {
                until: end + WAITS[0]
            })
        );
    }

    #[test]
    fn a_child_that_lives_less_than_a_minute_is_not_forgiven() {
        let mut policy = RestartPolicy::new();
        policy.handle_ask(at(0));
        policy.handle_failure(at(0)).unwrap();
        assert!(policy.handle_deadline(at(500)));
        policy.handle_ready(at(500)).unwrap();
        assert_eq!(
            policy.handle_failure(at(60_499)),
            Ok(ChildState::BackingOff { until: at(61_499) })
        );
    }

    #[test]
    fn a_stop_does_not_shorten_a_wait() {
        let mut policy = RestartPolicy::new();
        policy.handle_ask(at(0));
        policy.handle_failure(at(0)).unwrap();
        policy.handle_stop(at(1));
        assert_eq!(policy.state(), ChildState::Stopped);
        assert_eq!(policy.next_deadline(), None);
        assert_eq!(policy.handle_ask(at(2)), StartDecision::Wait { until: at(500) });
        assert_eq!(policy.state(), ChildState::BackingOff { until: at(500) });

        let (mut policy, now) = given_up();
        policy.handle_stop(now);
        assert_eq!(
            policy.handle_ask(now),
            StartDecision::Unavailable {
                retry_at: now + COOL_DOWN
            }
        );
    }

    #[test]
    fn a_stopped_child_starts_at_once_when_asked_for() {
        let mut policy = RestartPolicy::new();
        policy.handle_ask(at(0));
        policy.handle_ready(at(10)).unwrap();
        policy.handle_stop(at(20));
        assert_eq!(policy.handle_ask(at(21)), StartDecision::Start);
    }

    #[test]
    fn asking_twice_starts_once() {
        let mut policy = RestartPolicy::new();
        assert_eq!(policy.handle_ask(at(0)), StartDecision::Start);
        assert_eq!(policy.handle_ask(at(0)), StartDecision::UnderWay);
        policy.handle_ready(at(1)).unwrap();
        assert_eq!(policy.handle_ask(at(2)), StartDecision::Ready);
    }

    #[test]
    fn an_event_that_cannot_happen_is_rejected_and_changes_nothing() {
        let mut policy = RestartPolicy::new();
        assert!(policy.handle_ready(at(0)).is_err());
        assert!(policy.handle_failure(at(0)).is_err());
        assert_eq!(policy.state(), ChildState::Stopped);
        policy.handle_ask(at(0));
        policy.handle_failure(at(0)).unwrap();
        assert!(policy.handle_failure(at(0)).is_err());
        assert!(policy.handle_ready(at(0)).is_err());
        assert_eq!(policy.state(), ChildState::BackingOff { until: at(500) });
    }

    #[derive(Debug, Clone, Copy)]
    enum Event {
        Ask,
        Deadline,
        Ready,
        Failure,
        Stop,
    }

    fn event() -> impl Strategy<Value = (u64, Event)> {
        let gap = prop_oneof![4 => 0_u64..800, 2 => 800_u64..5_000, 1 => 5_000_u64..70_000];
        let event = prop_oneof![
            4 => Just(Event::Ask),
            4 => Just(Event::Deadline),
            3 => Just(Event::Ready),
            5 => Just(Event::Failure),
            1 => Just(Event::Stop),
        ];
        (gap, event)
    }

    fn is_legal(from: ChildState, to: ChildState) -> bool {
        match (from, to) {
            (ChildState::Stopped, ChildState::Ready) => false,
            (ChildState::Stopped, _) => true,
            (ChildState::Starting, _) => true,
            (ChildState::Ready, to) => to != ChildState::Starting,
            (ChildState::BackingOff { .. }, to) => {
                !matches!(to, ChildState::Ready | ChildState::Failed { .. })
            }
            (ChildState::Failed { .. }, to) => {
                !matches!(to, ChildState::Ready | ChildState::BackingOff { .. })
            }
        }
    }

    proptest! {
        /// In any 30 s there are at most 1 + 3 starts, and one more for each child that was stopped
        /// on purpose; a wait is always served in full; every step is a legal one.
        #[test]
        fn starts_in_any_window_never_exceed_the_law(events in prop::collection::vec(event(), 0..200)) {
            let mut policy = RestartPolicy::new();
            let mut now = Duration::ZERO;
            let mut starts = Vec::new();
            let mut stops = Vec::new();
            let mut no_start_before = Duration::ZERO;
            for (gap, event) in events {
                now += at(gap);
                let before = policy.state();
                let started = match event {
                    Event::Ask => policy.handle_ask(now) == StartDecision::Start,
                    Event::Deadline => policy.handle_deadline(now),
                    Event::Ready => {
                        prop_assert_eq!(policy.handle_ready(now).is_ok(), before == ChildState::Starting);
                        false
                    }
                    Event::Failure => {
                        let outcome = policy.handle_failure(now);
                        prop_assert_eq!(outcome.is_ok(), matches!(before, ChildState::Starting | ChildState::Ready));
                        match outcome {
                            Ok(ChildState::BackingOff { until }) => no_start_before = until,
                            Ok(ChildState::Failed { retry_at }) => no_start_before = retry_at,
                            Ok(ChildState::Stopped | ChildState::Starting | ChildState::Ready) => prop_assert!(false),
                            Err(_) => {}
                        }
                        false
                    }
                    Event::Stop => {
                        if matches!(before, ChildState::Starting | ChildState::Ready) {
                            stops.push(now);
                        }
                        policy.handle_stop(now);
                        false
                    }
                };
                prop_assert!(is_legal(before, policy.state()), "{:?} -> {:?}", before, policy.state());
                prop_assert_eq!(started, before != ChildState::Starting && policy.state() == ChildState::Starting);
                if started {
                    prop_assert!(now >= no_start_before);
                    starts.push(now);
                }
            }
            for from in &starts {
                let window = *from..(*from + COOL_DOWN);
                let started = starts.iter().filter(|moment| window.contains(*moment)).count();
                let stopped = stops.iter().filter(|moment| window.contains(*moment)).count();
                prop_assert!(started <= 1 + WAITS.len() + stopped, "{} starts from {:?}", started, from);
            }
        }
    }
}
