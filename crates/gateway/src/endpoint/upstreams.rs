//! What is behind an endpoint: one server, or the servers of the members of an aggregate.
//!
//! The rest of the endpoint does not tell the two apart. An aggregate has no instance of its own:
//! its members are endpoints themselves, which start, share and end theirs.

use std::sync::Arc;

use http::HeaderMap;
use protocol::exchange::{BackendError, Client, Failure, SessionKey};
use protocol::multiplexer::Counters;
use protocol::time::Moment;
use protocol::tool_policy::ToolPolicy;

use super::aggregate::Aggregate;
use crate::instance::{Instance, Reservation, Unreserved};
use crate::metrics::DestinationMetrics;
use crate::upstream::{InstanceKey, Upstream, UpstreamStatus};

/// One server, or those of the members.
#[derive(Debug)]
pub(crate) enum Upstreams {
    One(Box<Upstream>),
    Members(Arc<Aggregate>),
}

impl Upstreams {
    /// Returns the aggregate, if it is one.
    pub(crate) fn aggregate(&self) -> Option<&Arc<Aggregate>> {
        match self {
            Self::One(_) => None,
            Self::Members(aggregate) => Some(aggregate),
        }
    }

    /// Returns the one server.
    pub(crate) fn one(&self) -> Option<&Upstream> {
        match self {
            Self::One(upstream) => Some(upstream),
            Self::Members(_) => None,
        }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Self::One(upstream) => upstream.name(),
            Self::Members(aggregate) => aggregate.name(),
        }
    }

    pub(super) fn metrics(&self) -> &Arc<DestinationMetrics> {
        match self {
            Self::One(upstream) => upstream.metrics(),
            Self::Members(aggregate) => aggregate.metrics(),
        }
    }

    /// Counts on where those of an endpoint of the same name stopped.
    pub(super) fn counting_on(self, predecessor: &Self) -> Self {
        match (self, predecessor) {
            (Self::One(upstream), Self::One(predecessor)) => {
                Self::One(Box::new(upstream.counting_on(predecessor)))
            }
            (other, _) => other,
        }
    }

    /// Returns the policy of the one server. That of a member is part of what an aggregate shows.
    pub(super) fn tools(&self) -> Option<&Arc<ToolPolicy>> {
        self.one().map(Upstream::tools)
    }

    /// Allows sign-in to take visible steps: a client has a request for the server. Members are
    /// woken by the calls that reach them.
    pub(crate) fn wake(&self) {
        if let Self::One(upstream) = self {
            upstream.wake();
        }
    }

    pub(crate) fn start(&self) {
        match self {
            Self::One(upstream) => upstream.start(),
            Self::Members(aggregate) => aggregate.start(),
        }
    }

    pub(crate) fn open_calls(&self) -> usize {
        match self {
            Self::One(upstream) => upstream.open_calls(),
            Self::Members(aggregate) => aggregate.open_calls(),
        }
    }

    /// Waits until every supervisor has ended. Those of members are waited for there.
    pub(crate) async fn supervisors_ended(&self) {
        if let Self::One(upstream) = self {
            upstream.supervisors_ended().await;
        }
    }

    /// Returns why nothing can be started here.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.one().and_then(Upstream::broken)
    }

    /// Returns whether no client can be served now. An aggregate answers from its catalogue.
    pub(crate) fn is_away(&self) -> bool {
        self.one().is_some_and(Upstream::is_away)
    }

    /// Returns whether the server is known to ask by its results. The states that members keep are
    /// sealed in any case.
    pub(crate) fn asks_by_results(&self) -> bool {
        self.one().is_some_and(Upstream::asks_by_results)
    }

    pub(super) fn has_credentials(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::One(upstream) => upstream.has_credentials(headers),
            Self::Members(aggregate) => aggregate.has_credentials(headers),
        }
    }

    pub(super) fn own_instance(&self, client: &Client) -> Option<Reservation> {
        self.one()?.own_instance(client)
    }

    pub(super) fn instances_by_key(&self) -> Vec<(InstanceKey, Arc<Instance>, Option<Unreserved>)> {
        self.one().map(Upstream::instances_by_key).unwrap_or_default()
    }

    pub(super) fn remove_unreserved(
        &self,
        key: &InstanceKey,
        instance: &Arc<Instance>,
        then: Unreserved,
    ) -> bool {
        self.one()
            .is_some_and(|upstream| upstream.remove_unreserved(key, instance, then))
    }

    pub(super) fn remove_instances(&self) -> Vec<Arc<Instance>> {
        self.one().map(Upstream::remove_instances).unwrap_or_default()
    }

    pub(super) fn tick(&self, now: Moment) {
        match self {
            Self::One(upstream) => upstream.tick(now),
            Self::Members(aggregate) => aggregate.tick(now),
        }
    }

    /// Ends what a session that has ended had to itself.
    pub(super) fn end_session(&self, session: SessionKey) {
        if let Self::One(upstream) = self {
            upstream.end_session(session);
        }
    }

    pub(super) fn dismiss(&self, leaves: impl Fn(&str) -> bool) {
        match self {
            Self::One(upstream) => upstream.dismiss(leaves),
            Self::Members(aggregate) => aggregate.dismiss(leaves),
        }
    }

    pub(super) fn retire(&self) {
        if let Self::One(upstream) = self {
            upstream.retire();
        }
    }

    pub(super) fn fail_calls(&self, backend_error: &Arc<BackendError>) {
        match self {
            Self::One(upstream) => upstream.fail_calls(backend_error),
            Self::Members(aggregate) => aggregate.fail_calls(&Failure::Unavailable {
                backend_error: Arc::clone(backend_error),
                retry_after: std::time::Duration::from_secs(1),
            }),
        }
    }

    pub(super) fn stop(&self) {
        match self {
            Self::One(upstream) => upstream.stop(),
            Self::Members(aggregate) => aggregate.stop(),
        }
    }

    /// Returns the variables that `rialto attach` hands over, and whether the directory counts. A
    /// member of an aggregate is given neither.
    pub(crate) fn wants_of_attached(&self) -> (Vec<&str>, bool) {
        match self {
            Self::One(upstream) => upstream.wants_of_attached(),
            Self::Members(_) => (Vec::new(), false),
        }
    }

    pub(super) fn status(&self) -> UpstreamStatus {
        match self {
            Self::One(upstream) => upstream.status(),
            Self::Members(aggregate) => {
                let summary = aggregate.summary();
                UpstreamStatus {
                    transport: "aggregate",
                    state: summary.state,
                    is_ready: summary.is_ready,
                    resting: None,
                    backend_error: summary.error,
                    children: 0,
                    in_use: 0,
                    start: None,
                    tools: summary.tools,
                    instances: Vec::new(),
                    counters: Counters::default(),
                    members: Some(summary.members),
                }
            }
        }
    }
}
