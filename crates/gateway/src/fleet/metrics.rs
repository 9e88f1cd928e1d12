//! What a replica counts about its fleet.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use cluster::RegistryError;
use cluster::registry::LEASE;

use crate::status::ClusterStatus;

/// What became of a request that was sent to another replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyOutcome {
    /// It was answered.
    Answered,
    /// The other replica does not own the session.
    NotOwner,
    /// It was not sent, or provably not processed.
    NotSent,
    /// The connection broke after it was sent.
    Unknown,
}

impl ProxyOutcome {
    pub(crate) const ALL: [Self; 4] = [Self::Answered, Self::NotOwner, Self::NotSent, Self::Unknown];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::NotOwner => "not_owner",
            Self::NotSent => "not_sent",
            Self::Unknown => "unknown",
        }
    }
}

/// The counters of one replica.
#[derive(Debug, Default)]
pub(super) struct FleetMetrics {
    pub(super) take_overs: AtomicU64,
    pub(super) handed_over: AtomicU64,
    pub(super) records_rewritten: AtomicU64,
    operations: AtomicU64,
    failures: AtomicU64,
    /// The last operation had no answer.
    is_away: AtomicBool,
    /// When the lease was renewed last: milliseconds since the start, and one. 0: never.
    renewed: AtomicU64,
    proxied: [AtomicU64; ProxyOutcome::ALL.len()],
}

impl FleetMetrics {
    /// Counts an operation of the engine.
    pub(super) fn operated<T>(&self, ended: &Result<T, RegistryError>) {
        self.operations.fetch_add(1, Relaxed);
        let is_away = match ended {
            Ok(_) => false,
            Err(error) => {
                self.failures.fetch_add(1, Relaxed);
                matches!(error, RegistryError::Unreachable(_) | RegistryError::Full(_))
            }
        };
        self.is_away.store(is_away, Relaxed);
    }

    /// Notes that the lease begins anew.
    pub(super) fn renewed(&self, now: Duration) {
        self.renewed.store(millis(now).saturating_add(1), Relaxed);
    }

    /// Counts a request that was sent to another replica.
    pub(super) fn proxied(&self, outcome: ProxyOutcome) {
        let all = ProxyOutcome::ALL.iter().zip(&self.proxied);
        for (_, count) in all.filter(|(one, _)| **one == outcome) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Returns what was counted, for the replica with this id.
    pub(super) fn status(&self, node: &str, peers: Option<usize>, now: Duration) -> ClusterStatus {
        let lease = match self.renewed.load(Relaxed).checked_sub(1) {
            Some(renewed) => LEASE.saturating_sub(now.saturating_sub(Duration::from_millis(renewed))),
            None => Duration::ZERO,
        };
        let proxied = ProxyOutcome::ALL.iter().zip(&self.proxied);
        ClusterStatus {
            node: node.to_owned(),
            lease,
            is_engine_reachable: !self.is_away.load(Relaxed),
            peers,
            take_overs: self.take_overs.load(Relaxed),
            handed_over: self.handed_over.load(Relaxed),
            records_rewritten: self.records_rewritten.load(Relaxed),
            engine_operations: self.operations.load(Relaxed),
            engine_failures: self.failures.load(Relaxed),
            limits_by_share: 0,
            proxied: proxied
                .map(|(outcome, count)| (outcome.as_str(), count.load(Relaxed)))
                .collect(),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_runs_out_without_a_renewal() {
        let metrics = FleetMetrics::default();
        let at = |seconds| metrics.status("a", None, Duration::from_secs(seconds)).lease;
        assert_eq!(at(0), Duration::ZERO);
        metrics.renewed(Duration::from_secs(3));
        assert_eq!(at(3), LEASE);
        assert_eq!(at(7), LEASE - Duration::from_secs(4));
        assert_eq!(at(60), Duration::ZERO);
    }

    #[test]
    fn engine_is_away_until_it_answers_and_a_refusal_is_an_answer() {
        let metrics = FleetMetrics::default();
        let status = || metrics.status("a", Some(2), Duration::ZERO);
        assert!(status().is_engine_reachable);
        metrics.operated::<()>(&Err(RegistryError::Unreachable("gone".to_owned())));
        assert!(!status().is_engine_reachable);
        metrics.operated::<()>(&Err(RegistryError::Refused("no".to_owned())));
        assert!(status().is_engine_reachable);
        metrics.operated(&Ok(()));
        assert_eq!((status().engine_operations, status().engine_failures), (3, 2));
    }

    #[test]
    fn proxied_requests_are_counted_by_outcome() {
        let metrics = FleetMetrics::default();
        metrics.proxied(ProxyOutcome::NotSent);
        metrics.proxied(ProxyOutcome::NotSent);
        metrics.proxied(ProxyOutcome::Answered);
        let counted = metrics.status("a", None, Duration::ZERO).proxied;
        let expected = [("answered", 1), ("not_owner", 0), ("not_sent", 2), ("unknown", 0)];
        assert_eq!(counted, expected);
    }
}
