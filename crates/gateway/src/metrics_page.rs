//! The page of metrics: what was counted, and what there is, at the moment of asking.
//!
//! Every family stands on the page even if it has no sample yet, so that a dashboard finds its name
//! on the first day. All of them are described in `docs/metrics.md`; a test compares the two.

mod family;

use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::text;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use self::family::{Family, Labels, Page, Value};
use crate::fleet::ProxyOutcome;
use crate::gateway::Gateway;
use crate::guard::Caller;
use crate::metrics::{DestinationMetrics, StreamKind, method_label};
use crate::platform;
use crate::status::{ClusterStatus, Depths, DestinationStatus, Detail, HealthKind, Status};

/// One destination as it is now.
struct DestinationView<'a> {
    name: &'a str,
    metrics: &'a DestinationMetrics,
    status: &'a DestinationStatus,
}

impl DestinationView<'_> {
    fn labels(&self, others: &[(&'static str, &str)]) -> Labels {
        let destination = [("destination", self.name.to_owned())];
        let others = others.iter().map(|(key, value)| (*key, (*value).to_owned()));
        destination.into_iter().chain(others).collect()
    }

    fn in_all_instances(&self, of: fn(&Depths) -> usize) -> usize {
        self.status.instances.iter().map(of).sum()
    }
}

/// Returns a family with one sample for each destination.
fn each(
    mut family: Family,
    views: &[DestinationView<'_>],
    value: impl Fn(&DestinationView<'_>) -> Value,
) -> Family {
    for view in views {
        family.samples.push((view.labels(&[]), value(view)));
    }
    family
}

/// Returns a counter of each destination.
fn count(
    views: &[DestinationView<'_>],
    name: &'static str,
    help: &'static str,
    of: fn(&DestinationView<'_>) -> u64,
) -> Family {
    each(Family::counter(name, help), views, |view| Value::Count(of(view)))
}

/// Returns the families of a fleet. A Rialto that is in none has no samples of them, but for zeros.
fn fleet(status: Option<&ClusterStatus>) -> Vec<Family> {
    let gauge = |name, help, of: fn(&ClusterStatus) -> Option<f64>| {
        Family::gauge(name, help).maybe(status.and_then(of))
    };
    let counter = |name, help, of: fn(&ClusterStatus) -> u64| {
        let family = Family::counter(name, help);
        match status {
            Some(status) => family.count(Vec::new(), of(status)),
            None => family,
        }
    };
    let mut proxied = Family::counter(
        "rialto_cluster_proxied_requests",
        "Requests sent to other replicas, by outcome",
    );
    for outcome in ProxyOutcome::ALL.map(ProxyOutcome::as_str) {
        let counted = status.and_then(|status| status.proxied.iter().find(|(name, _)| *name == outcome));
        let count = counted.map_or(0, |(_, count)| *count);
        proxied = proxied.count(vec![("outcome", outcome.to_owned())], count);
    }
    vec![
        gauge(
            "rialto_cluster_nodes",
            "Replicas with a lease, this one included",
            |status| status.peers.map(|peers| (peers + 1) as f64),
        ),
        gauge(
            "rialto_cluster_lease_seconds",
            "How long the lease of this replica lasts without a renewal",
            |status| Some(status.lease.as_secs_f64()),
        ),
        gauge(
            "rialto_cluster_engine_reachable",
            "1 if the engine has answered the last operation, else 0",
            |status| Some(f64::from(u8::from(status.is_engine_reachable))),
        ),
        counter(
            "rialto_cluster_engine_operations",
            "Operations of the engine",
            |status| status.engine_operations,
        ),
        counter(
            "rialto_cluster_engine_failures",
            "Operations of the engine that failed",
            |status| status.engine_failures,
        ),
        counter(
            "rialto_cluster_take_overs",
            "Sessions taken over from other replicas",
            |status| status.take_overs,
        ),
        counter(
            "rialto_cluster_sessions_handed_over",
            "Sessions handed over to other replicas",
            |status| status.handed_over,
        ),
        counter(
            "rialto_cluster_records_rewritten",
            "Records written again after the engine had lost them, or had been away",
            |status| status.records_rewritten,
        ),
        counter(
            "rialto_cluster_limits_by_share",
            "Times that the engine did not answer about a limit, and this replica's share decided",
            |status| status.limits_by_share,
        ),
        proxied,
    ]
}

impl Gateway {
    /// Returns the page, in the text format of OpenMetrics. A caller that may not see all
    /// destinations gets the families of those that it may see, and nothing about the rest of the
    /// gateway.
    pub(crate) fn metrics_page(&self, caller: &Caller) -> String {
        let (status, metrics) = (self.status(Detail::Sums), self.destination_metrics());
        let views: Vec<DestinationView<'_>> = status
            .destinations
            .iter()
            .filter(|(name, _)| caller.sees(name))
            .filter_map(|(name, status)| {
                let metrics = metrics.get(name)?;
                Some(DestinationView {
                    name,
                    metrics,
                    status,
                })
            })
            .collect();
        let mut families = calls(&views);
        if caller.sees_everything() {
            families.extend(self.listener(&status, &views));
        }
        families.extend(presence(&views));
        families.extend(children(&views));
        families.extend(bytes(&views));
        families.extend(losses(&views));
        if caller.sees_everything() {
            families.extend(fleet(status.cluster.as_ref()));
            families.extend(self.outlets());
            families.extend(process());
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Page(families)));
        let mut page = String::new();
        text::encode(&mut page, &registry).expect("writing to a String cannot fail");
        page
    }

    fn listener(&self, status: &Status, views: &[DestinationView<'_>]) -> Vec<Family> {
        let mut refusals = Family::counter("rialto_refusals", "Requests refused, by reason");
        for (reason, count) in self.listener_metrics.refusals.all() {
            refusals = refusals.count(vec![("reason", reason.to_owned())], count);
        }
        let mut hits = std::collections::BTreeMap::new();
        for hit in &status.limits {
            *hits.entry(hit.limit.to_owned()).or_insert(0) += hit.count;
        }
        for hit in views.iter().flat_map(|view| &view.status.limits) {
            *hits.entry(hit.limit.replace(' ', "_")).or_insert(0) += hit.count;
        }
        let mut limits = Family::counter("rialto_limit_hits", "How often a limit was reached, by limit");
        for (limit, count) in hits {
            limits = limits.count(vec![("limit", limit)], count);
        }
        vec![
            refusals,
            limits,
            Family::gauge("rialto_connections", "Connections that are open")
                .level(self.connection_count() as f64),
            Family::counter(
                "rialto_connections_accepted",
                "Connections accepted, those turned away included",
            )
            .count(
                Vec::new(),
                self.listener_metrics.connections_accepted.load(Relaxed),
            ),
            Family::counter(
                "rialto_connections_evicted",
                "Connections without a request in flight closed to make room for others",
            )
            .count(
                Vec::new(),
                self.listener_metrics.connections_evicted.load(Relaxed),
            ),
            Family::gauge(
                "rialto_requests_in_progress",
                "POST requests that hold a place of limits.calls",
            )
            .level(self.limiter.calls() as f64),
            Family::gauge(
                "rialto_buffered_bytes",
                "Bytes that wait to be read by clients: kept events, and answers that are not sent yet",
            )
            .level(self.shared.buffered.total() as f64),
            Family::gauge("rialto_callers", "Callers that limits remember")
                .level(self.limiter.callers() as f64),
        ]
    }

    fn outlets(&self) -> Vec<Family> {
        let log = self.listener_metrics.log.get();
        let spans = self.listener_metrics.spans.get();
        let mut build = Family::gauge("rialto_build_info", "Always 1; the version is a label");
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        build.samples.push((version, Value::Level(1.0)));
        vec![
            build,
            Family::counter(
                "rialto_audit_records_lost",
                "Audit records that could not be written",
            )
            .count(Vec::new(), self.audit.lost()),
            Family::counter("rialto_spans_exported", "Spans that the collector has taken")
                .count(Vec::new(), spans.map_or(0, |spans| spans.exported())),
            Family::counter(
                "rialto_spans_lost",
                "Spans that the collector did not take, or for which there was no room",
            )
            .count(Vec::new(), spans.map_or(0, |spans| spans.lost())),
            Family::counter("rialto_log_lines_lost", "Log lines that could not be written")
                .count(Vec::new(), log.map_or(0, crate::line_sink::LineSink::lost)),
        ]
    }
}

fn calls(views: &[DestinationView<'_>]) -> Vec<Family> {
    let mut calls = Family::counter(
        "rialto_calls",
        "Messages of clients that have come to their end, by method, era of the client and outcome",
    );
    let mut durations = Family::new(
        "rialto_call_duration_seconds",
        MetricType::Histogram,
        "From the arrival of a message to its end",
    );
    let mut failures = Family::counter(
        "rialto_failures",
        "Calls that got no answer from their server, by blame and reason",
    );
    for view in views {
        for (era, method, outcome, count) in view.metrics.calls() {
            let labels = view.labels(&[
                ("method", method_label(method)),
                ("era", era.as_str()),
                ("outcome", outcome.as_str()),
            ]);
            calls = calls.count(labels, count);
        }
        for (method, histogram) in protocol::method::Method::ALL.iter().zip(&view.metrics.latencies) {
            let (sum, buckets) = histogram.read();
            if buckets.iter().any(|(_, count)| *count > 0) {
                let labels = view.labels(&[("method", method_label(*method))]);
                durations
                    .samples
                    .push((labels, Value::Histogram { sum, buckets }));
            }
        }
        for ((blame, reason), count) in view.metrics.failures.all() {
            let labels = view.labels(&[("blame", blame.as_str()), ("reason", reason)]);
            failures = failures.count(labels, count);
        }
    }
    vec![calls, durations, failures]
}

/// Returns what there is at this moment, and what came and went.
fn presence(views: &[DestinationView<'_>]) -> Vec<Family> {
    let mut streams = Family::gauge("rialto_streams", "Event streams that are being sent, by kind");
    for view in views {
        for kind in StreamKind::ALL {
            let open = view.metrics.open_streams(kind);
            let labels = view.labels(&[("kind", kind.as_str())]);
            streams.samples.push((labels, Value::Level(open as f64)));
        }
    }
    let gauge = |name, help, of: fn(&DestinationView<'_>) -> usize| {
        each(Family::gauge(name, help), views, |view| {
            Value::Level(of(view) as f64)
        })
    };
    let mut members = Family::gauge(
        "rialto_aggregate_members",
        "Members of an aggregate: 1 for the state that each is in",
    );
    let mut withheld = Family::gauge(
        "rialto_aggregate_withheld",
        "What members of an aggregate offer and it does not show",
    );
    for (view, status) in views
        .iter()
        .filter_map(|view| Some((view, view.status.members.as_ref()?)))
    {
        for member in &status.members {
            let labels = view.labels(&[("member", &member.name), ("state", member.state.as_str())]);
            members.samples.push((labels, Value::Level(1.0)));
        }
        let count = Value::Level(status.withheld.len() as f64);
        withheld.samples.push((view.labels(&[]), count));
    }
    vec![
        members,
        withheld,
        gauge("rialto_sessions", "Sessions that are open", |view| {
            view.status.sessions
        }),
        count(views, "rialto_sessions_opened", "Sessions opened", |view| {
            view.metrics.sessions_opened.load(Relaxed)
        }),
        count(
            views,
            "rialto_sessions_restored",
            "Sessions of an earlier process that went on",
            |view| view.metrics.sessions_restored.load(Relaxed),
        ),
        count(
            views,
            "rialto_sessions_expired",
            "Sessions ended because they were idle",
            |view| view.metrics.sessions_expired.load(Relaxed),
        ),
        count(
            views,
            "rialto_sessions_evicted",
            "Idle sessions ended to make room for new ones",
            |view| view.metrics.sessions_evicted.load(Relaxed),
        ),
        streams,
        gauge("rialto_listens", "Modern listens that are open", |view| {
            view.status.listens
        }),
        gauge(
            "rialto_parked_calls",
            "Modern calls that wait for their client's answer",
            |view| view.status.parked,
        ),
        gauge(
            "rialto_calls_in_flight",
            "Calls accepted that have no answer yet",
            |view| view.in_all_instances(|instance| instance.open_calls),
        ),
        gauge(
            "rialto_calls_waiting",
            "Those of them that their server has not been given yet",
            |view| view.in_all_instances(|instance| instance.waiting_calls),
        ),
        gauge(
            "rialto_open_questions",
            "Questions of servers that have no answer yet",
            |view| view.in_all_instances(|instance| instance.open_questions),
        ),
        gauge(
            "rialto_queued_bytes",
            "Bytes that wait to be written to servers",
            |view| view.in_all_instances(|instance| instance.outgoing_bytes),
        ),
    ]
}

fn children(views: &[DestinationView<'_>]) -> Vec<Family> {
    let mut states = Family::gauge("rialto_children", "Server processes, by state");
    let mut eras = Family::gauge(
        "rialto_server_era",
        "Server processes, by the era used towards them",
    );
    let mut ends = Family::counter("rialto_child_ends", "Server processes that have ended, by how");
    for view in views {
        let count = |is: &dyn Fn(&Depths) -> bool| {
            Value::Level(
                view.status
                    .instances
                    .iter()
                    .filter(|instance| is(instance))
                    .count() as f64,
            )
        };
        for state in HealthKind::ALL {
            let value = count(&|instance| HealthKind::of(&instance.health) == state);
            let labels = view.labels(&[("state", state.as_str())]);
            states.samples.push((labels, value));
        }
        for era in protocol::version::Era::ALL {
            let value = count(&|instance| instance.era == era);
            eras.samples.push((view.labels(&[("era", era.as_str())]), value));
        }
        for (end, count) in view.metrics.child_ends.all() {
            ends = ends.count(view.labels(&[("how", end.as_str())]), count);
        }
    }
    vec![
        states,
        eras,
        count(views, "rialto_child_starts", "Server processes started", |view| {
            view.metrics.child_starts.load(Relaxed)
        }),
        count(
            views,
            "rialto_child_restarts",
            "Those of them that replaced one that had failed",
            |view| view.metrics.child_restarts.load(Relaxed),
        ),
        ends,
    ]
}

fn bytes(views: &[DestinationView<'_>]) -> Vec<Family> {
    vec![
        count(
            views,
            "rialto_received_bytes",
            "Bytes of bodies read from clients",
            |view| view.metrics.bytes_received.load(Relaxed),
        ),
        count(
            views,
            "rialto_sent_bytes",
            "Bytes of bodies and events given to clients",
            |view| view.metrics.bytes_sent.load(Relaxed),
        ),
        count(
            views,
            "rialto_server_received_bytes",
            "Bytes read from servers",
            |view| view.metrics.server_bytes_received.load(Relaxed),
        ),
        count(
            views,
            "rialto_server_sent_bytes",
            "Bytes written to servers",
            |view| view.metrics.server_bytes_sent.load(Relaxed),
        ),
    ]
}

/// Losses that no client received an error for.
fn losses(views: &[DestinationView<'_>]) -> Vec<Family> {
    vec![
        count(
            views,
            "rialto_noise_lines",
            "Lines of servers that were no messages",
            |view| view.status.counters.noise,
        ),
        count(
            views,
            "rialto_stray_messages",
            "Responses and progress of servers that match no call: late, repeated, or with an unknown id",
            |view| view.status.counters.strays,
        ),
        count(
            views,
            "rialto_unattributed_notifications",
            "Notifications of servers that could not be attributed to a session",
            |view| view.status.counters.unattributed,
        ),
        count(
            views,
            "rialto_questions_refused",
            "Questions of servers that could not be attributed or answered",
            |view| view.status.counters.questions_refused,
        ),
        count(
            views,
            "rialto_overloads",
            "Calls that ran into a limit of their instance",
            |view| view.status.counters.overloads,
        ),
        count(
            views,
            "rialto_timeouts",
            "Calls whose server was silent past the limit",
            |view| view.status.counters.timeouts,
        ),
        count(
            views,
            "rialto_events_lost",
            "Events dropped from a session's log before the client read them",
            |view| view.status.events_lost + view.metrics.events_lost.load(Relaxed),
        ),
    ]
}

fn process() -> Vec<Family> {
    let seen = platform::process_figures();
    let whole = |number: Option<u64>| number.map(|number| number as f64);
    let tasks = tokio::runtime::Handle::try_current()
        .ok()
        .map(|runtime| runtime.metrics().num_alive_tasks() as f64);
    let mut cpu = Family::counter("process_cpu_seconds", "Processor time used, user and system");
    if let Some(seconds) = seen.cpu_seconds {
        cpu.samples.push((Vec::new(), Value::Seconds(seconds)));
    }
    vec![
        Family::gauge("rialto_tasks", "Tasks of the runtime that are alive").maybe(tasks),
        cpu,
        Family::gauge("process_resident_memory_bytes", "Resident memory").maybe(whole(seen.resident_bytes)),
        Family::gauge("process_virtual_memory_bytes", "Virtual memory").maybe(whole(seen.virtual_bytes)),
        Family::gauge("process_threads", "Threads").maybe(whole(seen.threads)),
        Family::gauge("process_open_fds", "File descriptors that are open").maybe(whole(seen.open_files)),
        Family::gauge("process_max_fds", "File descriptors that may be open").maybe(whole(seen.max_files)),
        Family::gauge(
            "process_start_time_seconds",
            "When the process started, since the epoch",
        )
        .maybe(seen.started_at),
    ]
}
