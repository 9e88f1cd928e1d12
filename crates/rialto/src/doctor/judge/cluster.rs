//! The engine of a fleet.

use std::time::Duration;

use crate::doctor::finding::{Cure, Finding, Group, Report, Weight};
use crate::terminal::text::span;

/// Leases are compared by the engine's clock, and records have times of ours.
const SKEW: Duration = Duration::from_secs(2);
/// A renewal that is slower endangers a lease.
const SLOW: Duration = Duration::from_millis(500);

/// What was observed of a cluster.
#[derive(Debug, Clone)]
pub(crate) struct ClusterSeen {
    /// Why the key of the replicas cannot be used.
    pub(crate) key_failure: Option<String>,
    pub(crate) engine: Result<EngineSeen, EngineFailure>,
}

/// An engine that can be used: every operation was tried.
#[derive(Debug, Clone, Default)]
pub(crate) struct EngineSeen {
    pub(crate) address: String,
    pub(crate) product: String,
    pub(crate) eviction: Option<String>,
    /// How far its clock is ahead of ours, in seconds.
    pub(crate) ahead: Option<f64>,
    /// How long a lease took that was taken, renewed and given back.
    pub(crate) lease: Option<Result<Duration, String>>,
    pub(crate) replicas: usize,
}

/// Why an engine cannot be used.
#[derive(Debug, Clone)]
pub(crate) struct EngineFailure {
    pub(crate) id: &'static str,
    /// What is wrong, and what helps, as the engine's client tells it.
    pub(crate) what: String,
    /// It may come back by itself.
    pub(crate) is_outage: bool,
    /// The line for the engine or for the configuration.
    pub(crate) cure: Cure,
}

/// Judges a cluster.
pub(crate) fn judge(seen: &ClusterSeen) -> Report {
    let mut report = Report::default();
    if let Some(why) = &seen.key_failure {
        report.find(Finding::new(
            (Group::Cluster, "key_file"),
            ("cluster_key", Weight::Act),
            why,
            "replicas prove with it that they belong together",
            Cure::Run(
                "(umask 077; rialto cluster key > cluster.key)    # the same file for all replicas".into(),
            ),
        ));
    }
    let engine = match &seen.engine {
        Ok(engine) => engine,
        Err(failure) => {
            report.find(Finding::new(
                (Group::Cluster, "engine"),
                (
                    failure.id,
                    if failure.is_outage {
                        Weight::Later
                    } else {
                        Weight::Act
                    },
                ),
                &failure.what,
                "without it no session can move to another replica, and none starts",
                failure.cure.clone(),
            ));
            return report;
        }
    };
    let at = (Group::Cluster, engine.address.as_str());
    let eviction = engine.eviction.as_deref().unwrap_or("not reported");
    report.fact(
        Group::Cluster,
        &engine.address,
        format!(
            "{}, eviction {eviction}, every command allowed, {} replicas",
            engine.product, engine.replicas
        ),
    );
    if let Some(ahead) = engine.ahead {
        let skew = Duration::from_secs_f64(ahead.abs());
        match skew > SKEW {
            true => report.find(Finding::new(
                at,
                ("engine_clock", Weight::Act),
                format!(
                    "has a clock that differs from that of this machine by {}",
                    span(skew)
                ),
                "leases end by the engine's clock, and records carry times of the replicas",
                Cure::Run("sudo timedatectl set-ntp true    # on both machines".into()),
            )),
            false => report.fact(Group::Cluster, &engine.address, "its clock agrees with this one"),
        }
    }
    match &engine.lease {
        None => {}
        Some(Err(why)) => report.find(Finding::new(
            at,
            ("lease_fails", Weight::Act),
            format!("did not take, renew and end a lease: {why}"),
            "a replica without a lease serves no session",
            Cure::Run("rialto cluster status".into()),
        )),
        Some(Ok(took)) if *took > SLOW => report.find(Finding::new(
            at,
            ("lease_slow", Weight::Later),
            format!("took {} to take, renew and end a lease", span(*took)),
            "a renewal that comes too late ends the lease, and other replicas take the sessions",
            Cure::Run("rialto cluster status".into()),
        )),
        Some(Ok(took)) => {
            let text = format!("a lease was taken, renewed and ended in {}", span(*took));
            report.fact(Group::Cluster, &engine.address, text);
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine() -> EngineSeen {
        EngineSeen {
            address: "127.0.0.1:6379".into(),
            product: "valkey 8.0.1".into(),
            eviction: Some("noeviction".into()),
            ahead: Some(-0.2),
            lease: Some(Ok(Duration::from_millis(2))),
            replicas: 2,
        }
    }

    fn ids(engine: Result<EngineSeen, EngineFailure>) -> Vec<(&'static str, Weight)> {
        let seen = ClusterSeen {
            key_failure: None,
            engine,
        };
        let found = judge(&seen).findings.into_iter();
        found.map(|finding| (finding.id, finding.weight)).collect()
    }

    #[test]
    fn good_engine_has_facts_only() {
        assert!(ids(Ok(engine())).is_empty());
    }

    #[test]
    fn clock_lease_and_outage_are_named() {
        let skewed = EngineSeen {
            ahead: Some(-7.5),
            ..engine()
        };
        assert_eq!(ids(Ok(skewed)), [("engine_clock", Weight::Act)]);
        let slow = EngineSeen {
            lease: Some(Ok(Duration::from_secs(1))),
            ..engine()
        };
        assert_eq!(ids(Ok(slow)), [("lease_slow", Weight::Later)]);
        let failing = EngineSeen {
            lease: Some(Err("NOPERM".into())),
            ..engine()
        };
        assert_eq!(ids(Ok(failing)), [("lease_fails", Weight::Act)]);
        let failure = |is_outage| EngineFailure {
            id: "engine_unreachable",
            what: "x".into(),
            is_outage,
            cure: Cure::Do("y".into()),
        };
        assert_eq!(ids(Err(failure(true))), [("engine_unreachable", Weight::Later)]);
        assert_eq!(ids(Err(failure(false))), [("engine_unreachable", Weight::Act)]);
    }
}
