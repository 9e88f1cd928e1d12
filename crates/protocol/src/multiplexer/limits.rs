//! Limits on calls, bytes and times of one instance, and counters of what was dropped.

use std::time::Duration;

use crate::exchange::Failure;
use crate::method::Method;

/// How much and how long.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Silence after which a call has failed whose client gets nothing but the answer. Progress and
    /// log lines of the call start it anew, up to [`Limits::MAX_EXTENSIONS`] times.
    pub request_timeout: Duration,
    /// The same for a call whose client reads events.
    pub stream_timeout: Duration,
    /// How long calls wait for a server that is getting ready.
    pub start_timeout: Duration,
    /// After this time the response to a call becomes a stream.
    pub stream_after: Duration,
    /// How long a client may take to answer a server's question.
    pub question_timeout: Duration,
    /// Bytes of one message.
    pub max_message_bytes: usize,
    /// Calls the server may be working on.
    pub in_flight: usize,
    /// Bytes of the calls that the server may be working on: they are kept until it has answered.
    pub in_flight_bytes: usize,
    /// Calls that may wait for the server to get ready.
    pub waiting: usize,
    /// Questions of the server that may be open.
    pub questions: usize,
    /// Resources a session may be subscribed to.
    pub subscriptions: usize,
    /// Tasks that are remembered with their owner.
    pub tasks: usize,
    /// Calls that may be kept which no client waits for any more and the server has not answered,
    /// and as many principals whose older ones were forgotten.
    pub abandoned: usize,
    /// Bytes that may wait to be written to the server.
    pub outgoing_bytes: usize,
}

impl Limits {
    /// A call may last this many times its time limit, however much progress it reports.
    pub const MAX_EXTENSIONS: u32 = 10;

    /// The longest that a request of Rialto's own may go unanswered, and that a question is held,
    /// however long calls may take.
    const LONGEST_OWN: Duration = Duration::from_secs(60);

    /// The longest that a server may take to answer a ping of Rialto.
    const LONGEST_PING: Duration = Duration::from_secs(30);

    /// A line that is too long to be kept and goes on beyond this many bytes is taken for one
    /// without end.
    const ENDLESS: u64 = 256 << 20;

    /// Returns the silence after which a call has failed.
    pub(super) fn call_timeout(&self, reads_events: bool) -> Duration {
        if reads_events {
            self.stream_timeout
        } else {
            self.request_timeout
        }
    }

    /// Returns how long the first answer to a call may take. That to a request for a task's outcome
    /// may take as long as any other call with progress. `is_for_listen`: Rialto makes it for a
    /// listen.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "only the outcome of a task takes as long as the task"
    )]
    pub(super) fn first_timeout(&self, method: Method, reads_events: bool, is_for_listen: bool) -> Duration {
        match method {
            _ if is_for_listen => self.call_timeout(reads_events).min(self.own_timeout()),
            Method::TasksResult => self.longest_call(reads_events),
            _ => self.call_timeout(reads_events),
        }
    }

    /// Returns how long a call may last, however much progress it reports.
    pub(super) fn longest_call(&self, reads_events: bool) -> Duration {
        self.call_timeout(reads_events)
            .saturating_mul(Self::MAX_EXTENSIONS)
    }

    /// Returns why a call has failed whose server was silent for too long.
    pub(super) fn timeout_failure(&self, reads_events: bool) -> Failure {
        Failure::Timeout {
            setting: if reads_events {
                "stream_timeout"
            } else {
                "request_timeout"
            },
            limit: self.call_timeout(reads_events),
        }
    }

    /// Returns why a call has failed that took a request of Rialto's own to answer.
    pub(super) fn own_failure(&self) -> Failure {
        Failure::Timeout {
            setting: "request_timeout",
            limit: self.own_timeout(),
        }
    }

    /// Returns how long a request of Rialto's own waits for its answer, and how long a question is
    /// held that no session can be asked yet.
    pub(super) fn own_timeout(&self) -> Duration {
        self.request_timeout.min(Self::LONGEST_OWN)
    }

    /// Returns how long a server that let a call time out may take to show that it lives.
    pub(super) fn ping_timeout(&self) -> Duration {
        self.request_timeout.min(Self::LONGEST_PING)
    }

    /// Returns how long a line may be whose end is still waited for.
    pub(super) fn endless(&self) -> u64 {
        (self.max_message_bytes as u64)
            .saturating_mul(4)
            .max(Self::ENDLESS)
    }

    /// How long a call waits for its turn while the server works for another principal, or waits
    /// for that one's answer.
    pub const OCCUPIED_WAIT: Duration = Duration::from_secs(5);

    /// A message of up to this many bytes is not counted by its bytes.
    pub(super) const SMALL: usize = 4096;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(30),
            stream_timeout: Duration::from_secs(600),
            start_timeout: Duration::from_secs(60),
            stream_after: Duration::from_secs(5),
            question_timeout: Duration::from_secs(600),
            max_message_bytes: 1 << 20,
            in_flight: 4096,
            in_flight_bytes: 64 << 20,
            waiting: 1024,
            questions: 256,
            subscriptions: 256,
            tasks: 1024,
            abandoned: 256,
            outgoing_bytes: 4 << 20,
        }
    }
}

/// Counts of what was dropped without an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lines that were no messages.
    pub noise: u64,
    /// Answers and progress of no open call: late, doubled, or with an id that is not ours.
    pub strays: u64,
    /// Notifications that could not be attributed to a session.
    pub unattributed: u64,
    /// Questions refused because they could not be attributed or answered.
    pub questions_refused: u64,
    /// Calls that ran into a limit of Rialto.
    pub overloads: u64,
    /// Calls that the server did not answer in time.
    pub timeouts: u64,
}

impl Counters {
    /// Counts what another has counted as well.
    pub const fn add(&mut self, other: &Self) {
        self.noise += other.noise;
        self.strays += other.strays;
        self.unattributed += other.unattributed;
        self.questions_refused += other.questions_refused;
        self.overloads += other.overloads;
        self.timeouts += other.timeouts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_two_instances_add_up() {
        let first = Counters {
            noise: 1,
            strays: 2,
            unattributed: 3,
            questions_refused: 4,
            overloads: 5,
            timeouts: 6,
        };
        let mut sum = first;
        sum.add(&first);
        sum.add(&first);
        let expected = Counters {
            noise: 3,
            strays: 6,
            unattributed: 9,
            questions_refused: 12,
            overloads: 15,
            timeouts: 18,
        };
        assert_eq!(sum, expected);
    }

    #[test]
    fn time_of_a_call_depends_on_its_client_and_method() {
        let limits = Limits {
            request_timeout: Duration::from_secs(90),
            stream_timeout: Duration::from_secs(200),
            ..Limits::default()
        };
        let first =
            |method, reads_events, is_for_listen| limits.first_timeout(method, reads_events, is_for_listen);
        assert_eq!(first(Method::ToolsCall, false, false), Duration::from_secs(90));
        assert_eq!(first(Method::ToolsCall, true, false), Duration::from_secs(200));
        assert_eq!(first(Method::TasksResult, true, false), Duration::from_secs(2000));
        assert_eq!(first(Method::TasksResult, true, true), Duration::from_secs(60));
        assert_eq!(limits.ping_timeout(), Duration::from_secs(30));
        assert_eq!(limits.endless(), 256 << 20);
        let large = Limits {
            max_message_bytes: 1 << 30,
            ..limits
        };
        assert_eq!(large.endless(), 4 << 30);
    }
}
