//! Eviction: which session or instance ends when a new one finds every place taken.
//!
//! Official TypeScript clients close without DELETE, so that most sessions at a cap belong to clients that are gone. The
//! order is: sessions that Rialto opened itself, sessions whose client closed its last stream, sessions that were idle
//! for a minute. A session with a call or a stream is ended only for another principal (see [`crate::shares`]).

use std::time::Duration;

use crate::time::Moment;

/// A session that never had a stream may belong to a client between two calls, so that it is ended only after this.
pub const EVICTABLE_IDLE: Duration = Duration::from_secs(60);

/// How far a client still uses its session, and since when it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// A call or a stream is open.
    Active,
    /// Unused, and opened by Rialto for a client that sends no session id.
    Implicit(Moment),
    /// The client closed its last stream and has sent nothing since.
    StreamClosed(Moment),
    /// No call and no stream is open. The client may come back at any moment.
    Idle(Moment),
}

/// How far an instance is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstanceUsage {
    /// A request without a session, or a task, needs it.
    Busy,
    /// No session uses it.
    Unused(Moment),
    /// These sessions use it.
    Sessions(Vec<Usage>),
}

/// The order of eviction: a smaller class goes first, and within a class the one unused for longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Unused,
    Implicit,
    StreamClosed,
    Idle,
}

type Priority = (Class, Moment);

impl Usage {
    /// `None` where the session must not be ended.
    fn priority(self, now: Moment) -> Option<Priority> {
        match self {
            Self::Active => None,
            Self::Implicit(since) => Some((Class::Implicit, since)),
            Self::StreamClosed(since) => Some((Class::StreamClosed, since)),
            Self::Idle(since) => (now.since(since) > EVICTABLE_IDLE).then_some((Class::Idle, since)),
        }
    }
}

impl InstanceUsage {
    /// An instance goes no earlier than the last of its sessions would.
    fn priority(&self, now: Moment) -> Option<Priority> {
        match self {
            Self::Busy => None,
            Self::Unused(since) => Some((Class::Unused, *since)),
            Self::Sessions(sessions) => {
                let mut last = None;
                for session in sessions {
                    last = last.max(Some(session.priority(now)?));
                }
                last
            }
        }
    }
}

/// Returns the session to end, if one may be ended.
pub fn session_to_evict<K>(now: Moment, sessions: impl IntoIterator<Item = (K, Usage)>) -> Option<K> {
    let evictable = sessions
        .into_iter()
        .filter_map(|(key, usage)| Some((key, usage.priority(now)?)));
    evictable
        .min_by_key(|(_, priority)| *priority)
        .map(|(key, _)| key)
}

/// Returns the session of a principal over its share that ends for another principal: the least used one, the first of
/// those with a call or a stream only if there is no other.
pub fn session_to_give_up<K>(sessions: impl IntoIterator<Item = (K, Usage)>) -> Option<K> {
    let rank = |usage: Usage| match usage {
        Usage::Implicit(since) => (Some(Class::Implicit), since),
        Usage::StreamClosed(since) => (Some(Class::StreamClosed), since),
        Usage::Idle(since) => (Some(Class::Idle), since),
        Usage::Active => (None, Moment::START),
    };
    let ranked = sessions.into_iter().map(|(key, usage)| (key, rank(usage)));
    ranked
        .min_by_key(|(_, (class, since))| (class.is_none(), *class, *since))
        .map(|(key, _)| key)
}

/// Returns the instance to end with all its sessions, if one may be ended.
pub fn instance_to_evict<K>(
    now: Moment,
    instances: impl IntoIterator<Item = (K, InstanceUsage)>,
) -> Option<K> {
    let evictable = instances
        .into_iter()
        .filter_map(|(key, usage)| Some((key, usage.priority(now)?)));
    evictable
        .min_by_key(|(_, priority)| *priority)
        .map(|(key, _)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::START.after(Duration::from_secs(seconds))
    }

    fn evicted(seconds: u64, sessions: &[(&'static str, Usage)]) -> Option<&'static str> {
        session_to_evict(at(seconds), sessions.iter().copied())
    }

    #[test]
    fn sessions_are_evicted_in_the_order_of_their_classes() {
        let mut sessions = vec![
            ("active", Usage::Active),
            ("idle", Usage::Idle(at(0))),
            ("closed", Usage::StreamClosed(at(90))),
            ("implicit", Usage::Implicit(at(99))),
        ];
        for expected in ["implicit", "closed", "idle"] {
            assert_eq!(evicted(100, &sessions), Some(expected));
            sessions.retain(|(name, _)| *name != expected);
        }
        assert_eq!(evicted(100, &sessions), None);
    }

    #[test]
    fn least_used_session_of_a_principal_over_its_share_is_given_up() {
        let mut sessions = vec![
            ("first active", Usage::Active),
            ("second active", Usage::Active),
            ("just idle", Usage::Idle(at(100))),
            ("closed", Usage::StreamClosed(at(90))),
        ];
        for expected in ["closed", "just idle", "first active"] {
            assert_eq!(session_to_give_up(sessions.iter().copied()), Some(expected));
            sessions.retain(|(name, _)| *name != expected);
        }
    }

    #[test]
    fn within_a_class_the_session_unused_for_longest_is_evicted() {
        for class in [Usage::Implicit, Usage::StreamClosed, Usage::Idle] {
            let sessions = [("later", class(at(7))), ("earlier", class(at(3)))];
            assert_eq!(evicted(100, &sessions), Some("earlier"));
        }
    }

    #[test]
    fn a_closed_stream_is_evicted_at_once_and_an_idle_session_after_a_minute() {
        assert_eq!(
            evicted(5, &[("closed", Usage::StreamClosed(at(5)))]),
            Some("closed")
        );
        assert_eq!(evicted(65, &[("idle", Usage::Idle(at(5)))]), None);
        assert_eq!(evicted(66, &[("idle", Usage::Idle(at(5)))]), Some("idle"));
    }

    #[test]
    fn an_instance_is_evicted_when_each_of_its_sessions_may_be() {
        let evicted = |instances: Vec<(&'static str, InstanceUsage)>| instance_to_evict(at(100), instances);
        let closed = Usage::StreamClosed(at(50));
        let sessions = |usages: &[Usage]| InstanceUsage::Sessions(usages.to_vec());
        assert_eq!(evicted(vec![("busy", InstanceUsage::Busy)]), None);
        assert_eq!(
            evicted(vec![("active", sessions(&[closed, Usage::Active]))]),
            None
        );
        assert_eq!(
            evicted(vec![("fresh", sessions(&[closed, Usage::Idle(at(99))]))]),
            None
        );
        assert_eq!(
            evicted(vec![
                ("idle", sessions(&[Usage::Implicit(at(0)), Usage::Idle(at(1))])),
                ("closed", sessions(&[closed, closed])),
            ]),
            Some("closed")
        );
        assert_eq!(
            evicted(vec![
                ("implicit", sessions(&[Usage::Implicit(at(0))])),
                ("unused", InstanceUsage::Unused(at(99))),
            ]),
            Some("unused")
        );
    }
}
