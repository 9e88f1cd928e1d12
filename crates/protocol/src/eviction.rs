//! Eviction: which session, instance, listen or waiting call ends when a new one finds every place
//! taken, and which instances end because no client uses them.
//!
//! Official TypeScript clients close without DELETE, so that most sessions at a cap belong to
//! clients that are gone. The order is: sessions that Rialto opened itself, sessions whose client
//! closed its last stream, sessions that were idle for a minute. A session with a call or a stream
//! is ended only for another principal (see [`crate::shares`]).

use std::time::Duration;

use crate::shares::Shares;
use crate::time::Moment;

/// A session that never had a stream may belong to a client between two calls, so that it is ended
/// only after this.
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

/// A session, and the principal that holds it.
#[derive(Debug, Clone, Copy)]
pub struct HeldSession<'a, K> {
    /// Newer sessions have larger keys.
    pub key: K,
    /// The principal of its client.
    pub principal: &'a str,
    /// How far its client uses it.
    pub usage: Usage,
}

/// Returns the session that ends for one of `newcomer`: one that is no longer used, else one of a
/// principal over its share. `None`: the newcomer is refused.
pub fn session_to_end<K: Ord + Copy>(
    now: Moment,
    newcomer: &str,
    sessions: &[HeldSession<'_, K>],
) -> Option<K> {
    let mut sessions: Vec<&HeldSession<'_, K>> = sessions.iter().collect();
    // Of sessions in use the newest goes first.
    sessions.sort_by_key(|session| std::cmp::Reverse(session.key));
    let shares: Shares<'_> = sessions.iter().map(|session| session.principal).collect();
    let unused = sessions
        .iter()
        .filter(|session| shares.may_take_unused(newcomer, session.principal));
    session_to_evict(now, unused.map(|session| (session.key, session.usage))).or_else(|| {
        let principal = shares.over_share(newcomer)?;
        let theirs = sessions.iter().filter(|session| session.principal == principal);
        session_to_give_up(theirs.map(|session| (session.key, session.usage)))
    })
}

/// An instance, and the principal that has it to itself.
#[derive(Debug, Clone)]
pub struct HeldInstance<'a, K> {
    /// What the caller knows it by.
    pub key: K,
    /// `None` where principals share it.
    pub owner: Option<&'a str>,
    /// How far it is used; `None` where it must not end.
    pub usage: Option<InstanceUsage>,
}

/// Returns the instance that ends, with its sessions, for one of `newcomer`: one that is no longer
/// used, else the last of a principal over its share. `None`: the newcomer is refused.
pub fn instance_to_end<K: Copy>(now: Moment, newcomer: &str, instances: &[HeldInstance<'_, K>]) -> Option<K> {
    let shares: Shares<'_> = instances.iter().filter_map(|instance| instance.owner).collect();
    let unused = instances.iter().filter(|instance| {
        let owner = instance.owner;
        owner.is_none_or(|owner| shares.may_take_unused(newcomer, owner))
    });
    let usages = unused.filter_map(|instance| Some((instance.key, instance.usage.clone()?)));
    instance_to_evict(now, usages).or_else(|| {
        let principal = shares.over_share(newcomer)?;
        let mut theirs = instances.iter().rev().filter(|instance| instance.usage.is_some());
        let last = theirs.find(|instance| instance.owner == Some(principal))?;
        Some(last.key)
    })
}

/// Returns the instances that end because no client has used them for longer than `linger`. Each
/// comes with the time since which it is unused, if it is. So many instances are `kept` in any
/// case.
pub fn instances_to_stop<K>(
    now: Moment,
    linger: Duration,
    kept: usize,
    instances: Vec<(K, Option<Moment>)>,
) -> Vec<K> {
    let spare = instances.len().saturating_sub(kept);
    let is_old = |since: Option<Moment>| since.is_some_and(|since| now.since(since) > linger);
    let unused = instances.into_iter().filter(|(_, since)| is_old(*since));
    unused.take(spare).map(|(key, _)| key).collect()
}

/// Returns the listen that ends for one of `newcomer`: the newest of a principal over its share.
/// Newer listens have larger keys.
pub fn listen_to_end<K: Ord + Copy>(newcomer: &str, listens: &[(K, &str)]) -> Option<K> {
    let shares: Shares<'_> = listens.iter().map(|(_, principal)| *principal).collect();
    let over = shares.over_share(newcomer)?;
    let theirs = listens.iter().filter(|(_, principal)| *principal == over);
    theirs.map(|(key, _)| *key).max()
}

/// A modern call that waits for its client, or did and may again.
#[derive(Debug, Clone, Copy)]
pub struct HeldCall<'a, K> {
    /// What the caller knows it by.
    pub key: K,
    /// The principal of its client.
    pub principal: &'a str,
    /// Until when it waits; `None` while its client is back.
    pub waits_until: Option<Moment>,
}

/// Returns the waiting call that is given up for one of `newcomer`: the oldest of a principal over
/// its share, one whose client is back only if there is no other.
pub fn waiting_call_to_give_up<K: Copy>(newcomer: &str, calls: &[HeldCall<'_, K>]) -> Option<K> {
    let shares: Shares<'_> = calls.iter().map(|call| call.principal).collect();
    let over = shares.over_share(newcomer)?;
    let theirs = calls.iter().filter(|call| call.principal == over);
    let oldest = theirs.min_by_key(|call| (call.waits_until.is_none(), call.waits_until))?;
    Some(oldest.key)
}

/// Returns the stream of the old transport that ends for a new one: of those whose clients have
/// sent nothing for a minute the oldest. Each comes with the time at which it was opened.
pub fn silent_stream_to_end<K>(now: Moment, streams: impl IntoIterator<Item = (K, Moment)>) -> Option<K> {
    let evictable = streams
        .into_iter()
        .filter(|(_, opened)| now.since(*opened) > EVICTABLE_IDLE);
    evictable.min_by_key(|(_, opened)| *opened).map(|(key, _)| key)
}

/// Returns the session to end, if one may be ended.
fn session_to_evict<K>(now: Moment, sessions: impl IntoIterator<Item = (K, Usage)>) -> Option<K> {
    let evictable = sessions
        .into_iter()
        .filter_map(|(key, usage)| Some((key, usage.priority(now)?)));
    evictable
        .min_by_key(|(_, priority)| *priority)
        .map(|(key, _)| key)
}

/// Returns the session of a principal over its share that ends for another principal: the least
/// used one, the first of those with a call or a stream only if there is no other.
fn session_to_give_up<K>(sessions: impl IntoIterator<Item = (K, Usage)>) -> Option<K> {
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
fn instance_to_evict<K>(now: Moment, instances: impl IntoIterator<Item = (K, InstanceUsage)>) -> Option<K> {
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
    fn unused_session_ends_before_one_of_a_principal_over_its_share() {
        let held = |key, principal, usage| HeldSession {
            key,
            principal,
            usage,
        };
        let (active, closed) = (Usage::Active, Usage::StreamClosed(at(50)));
        let sessions = [
            held(1, "alice", active),
            held(2, "alice", active),
            held(3, "alice", active),
            held(4, "bob", closed),
        ];
        let end = |newcomer, sessions: &[HeldSession<'_, i32>]| session_to_end(at(100), newcomer, sessions);
        assert_eq!(end("carol", &sessions), Some(4));
        assert_eq!(end("alice", &sessions), None, "the only session of bob is left");
        assert_eq!(
            end("carol", &sessions[..3]),
            Some(3),
            "the newest of those in use"
        );
        assert_eq!(end("alice", &sessions[..3]), None);
        assert_eq!(end("carol", &[]), None);
    }

    #[test]
    fn unused_instance_ends_before_the_last_one_of_a_principal_over_its_share() {
        let held = |key, owner, usage| HeldInstance { key, owner, usage };
        let (busy, unused) = (Some(InstanceUsage::Busy), Some(InstanceUsage::Unused(at(50))));
        let instances = [
            held(1, Some("alice"), busy.clone()),
            held(2, Some("alice"), busy),
            held(3, Some("alice"), None),
            held(4, None, unused.clone()),
            held(5, Some("bob"), unused),
        ];
        let end =
            |newcomer, instances: &[HeldInstance<'_, i32>]| instance_to_end(at(100), newcomer, instances);
        assert_eq!(end("carol", &instances), Some(4));
        assert_eq!(end("carol", &instances[4..]), Some(5));
        assert_eq!(end("carol", &instances[..3]), Some(2), "the third must not end");
        assert_eq!(end("alice", &instances[..3]), None);
        let bobs = [instances[0].clone(), instances[1].clone(), instances[4].clone()];
        assert_eq!(end("alice", &bobs), None, "alice holds more than bob already");
    }

    #[test]
    fn instances_without_clients_stop_after_a_while_but_for_those_that_are_kept() {
        let stop = |kept, since: &[Option<u64>]| {
            let instances = since.iter().enumerate();
            let instances = instances.map(|(key, since)| (key, since.map(at))).collect();
            instances_to_stop(at(100), Duration::from_secs(30), kept, instances)
        };
        assert_eq!(stop(0, &[Some(10), None, Some(70), Some(69)]), [0, 3]);
        assert_eq!(stop(1, &[Some(10), Some(20)]), [0]);
        assert_eq!(stop(1, &[Some(10), None]), [0]);
        assert!(stop(1, &[Some(10)]).is_empty() && stop(1, &[]).is_empty());
    }

    #[test]
    fn newest_listen_of_a_principal_over_its_share_ends() {
        let listens = [(1, "alice"), (5, "alice"), (3, "alice"), (4, "bob")];
        assert_eq!(listen_to_end("carol", &listens), Some(5));
        assert_eq!(listen_to_end("bob", &listens), Some(5));
        assert_eq!(listen_to_end("alice", &listens), None);
    }

    #[test]
    fn oldest_waiting_call_of_a_principal_over_its_share_is_given_up() {
        let held = |key, principal, until: Option<u64>| HeldCall {
            key,
            principal,
            waits_until: until.map(at),
        };
        let calls = [
            held(1, "alice", None),
            held(2, "alice", Some(9)),
            held(3, "alice", Some(7)),
            held(4, "bob", Some(1)),
        ];
        assert_eq!(waiting_call_to_give_up("carol", &calls), Some(3));
        assert_eq!(waiting_call_to_give_up("alice", &calls), None);
        let back = [held(1, "alice", None), held(2, "alice", None)];
        assert_eq!(waiting_call_to_give_up("carol", &back), Some(1));
    }

    #[test]
    fn oldest_silent_stream_ends_after_a_minute() {
        let streams = |seconds: &[u64]| {
            let streams = seconds.iter().map(|opened| (*opened, at(*opened)));
            silent_stream_to_end(at(100), streams)
        };
        assert_eq!(streams(&[39, 20, 30]), Some(20));
        assert_eq!(streams(&[40, 99]), None);
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
