//! The snapshot as JSON: what `rialto ps`, `rialto top` and other readers of the admin socket get.
//!
//! The form is described in `docs/looking.md`. Members are added, and none changes its meaning
//! without another number in `snapshot`. A value that was not observed is `null`; every time is an
//! age in milliseconds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{
    Depths, DestinationStatus, HealthKind, LimitHit, LimitLevel, QuestionStatus, Serves, SessionStatus,
    Status,
};
use crate::platform::{self, GroupFigures};
use crate::settings::{Sharing, Start};

/// The number of the form.
const FORM: u32 = 1;

/// What a snapshot tells of the gateway itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    pub(crate) up: Duration,
    /// Where clients reach it, if it has a listener.
    pub(crate) url: Option<String>,
    /// The address of its page, if it has one.
    pub(crate) ui: Option<String>,
    /// The file that describes its destinations.
    pub(crate) config: Option<PathBuf>,
    /// Readers of events and messages, and how many were dropped because they were slow.
    pub(crate) readers: (usize, u64),
}

impl Status {
    /// Returns the snapshot. It looks at the processes of the machine, once.
    pub(crate) fn snapshot(&self, facts: &Facts) -> Value {
        let instances = self.destinations.values().flat_map(|status| &status.instances);
        let leaders: Vec<u32> = instances.filter_map(|instance| instance.health.pid()).collect();
        let groups = platform::group_figures(&leaders);
        let destinations: Vec<Value> = self
            .destinations
            .iter()
            .map(|(name, status)| status.snapshot(name, &groups))
            .collect();
        let (readers, dropped) = facts.readers;
        json!({
            "snapshot": FORM,
            "rialto": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "taken_at": humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            "up_ms": milliseconds(facts.up),
            "url": facts.url,
            "ui": facts.ui,
            "config": facts.config.as_ref().map(|path| path.to_string_lossy()),
            "ready": self.is_ready,
            "draining": self.is_draining,
            "last_reload_failed": self.has_failed_reload,
            "memory_bytes": platform::process_figures().resident_bytes,
            "limits": limits(&self.levels, &self.limits),
            "readers": { "open": readers, "dropped": dropped },
            "cluster": self.cluster.as_ref().map(super::ClusterStatus::entry),
            "destinations": destinations,
        })
    }
}

impl Status {
    /// Returns a text that is another one whenever something has changed that readers of events
    /// receive.
    pub(crate) fn outline(&self) -> String {
        let destination = |status: &DestinationStatus| {
            let sum = |of: fn(&Depths) -> usize| status.instances.iter().map(of).sum::<usize>();
            let instances: Vec<_> = status
                .instances
                .iter()
                .map(|one| (HealthKind::of(&one.health), one.health.pid(), one.restarts))
                .collect();
            format!(
                "{:?}",
                (
                    (
                        status.is_configured,
                        status.state,
                        status.is_ready,
                        status.resting
                    ),
                    (&status.backend_error, status.tools, status.sessions),
                    (status.parked, status.listens, &status.streams),
                    sum(|instance| instance.open_calls),
                    sum(|instance| instance.waiting_calls),
                    sum(|instance| instance.open_questions),
                    instances,
                )
            )
        };
        let destinations = self
            .destinations
            .iter()
            .map(|(name, status)| (name, destination(status)));
        let destinations: BTreeMap<&String, String> = destinations.collect();
        format!(
            "{:?}",
            (
                self.is_ready,
                self.is_draining,
                self.has_failed_reload,
                destinations
            )
        )
    }
}

impl DestinationStatus {
    fn snapshot(&self, name: &str, groups: &BTreeMap<u32, GroupFigures>) -> Value {
        let sum = |of: fn(&Depths) -> usize| self.instances.iter().map(of).sum::<usize>();
        let streams: serde_json::Map<String, Value> = self
            .streams
            .iter()
            .map(|(kind, open)| ((*kind).to_owned(), (*open).into()))
            .collect();
        let era = self.instances.iter().find_map(|instance| instance.agreed);
        json!({
            "name": name,
            "configured": self.is_configured,
            "transport": self.transport,
            "state": self.state.as_str(),
            "ready": self.is_ready,
            "resting": self.resting.map(super::Resting::as_str),
            "error": self.backend_error,
            "process": match self.sharing {
                Sharing::Shared => "shared",
                Sharing::PerSession => "per_session",
                Sharing::PerIdentity => "per_identity",
            },
            "start": self.start.map(|start| match start {
                Start::Eager => "eager",
                Start::Lazy => "lazy",
            }),
            "era": era.map(|era| era.as_str()),
            "tools": self.tools,
            "tools_known": match self.tools {
                Some(_) => "listed",
                None => "not asked yet",
            },
            "withheld": self.members.as_ref().map(|members| &members.withheld),
            "policy": self.policy.as_ref().map(|(allow, deny)| json!({ "allow": allow, "deny": deny })),
            "sessions": self.sessions,
            "sessions_restored": self.restored,
            "parked": self.parked,
            "listens": self.listens,
            "streams": streams,
            "calls": {
                "in_flight": sum(|instance| instance.open_calls),
                "waiting": sum(|instance| instance.waiting_calls),
                "ended": self.ended,
            },
            "open_questions": sum(|instance| instance.open_questions),
            "question_list": self.questions.iter().map(QuestionStatus::snapshot).collect::<Vec<_>>(),
            "queued_bytes": sum(|instance| instance.outgoing_bytes),
            "recent": self.recent(),
            "failures": self.failures(),
            "limits": limits(&self.levels, &self.limits),
            "members": self.members.as_ref().map(super::MembersStatus::entry),
            "instances": self.instances.iter().map(|one| one.snapshot(groups)).collect::<Vec<_>>(),
            "session_list": self.session_list.iter().map(SessionStatus::snapshot).collect::<Vec<_>>(),
        })
    }

    fn recent(&self) -> Value {
        let recent = &self.recent;
        // The bounds of the buckets are not as fine as this.
        let rounded = |latency: Duration| (latency.as_secs_f64() * 1e5).round() / 100.0;
        json!({
            "span_ms": milliseconds(recent.span),
            "calls": recent.calls,
            "p50_ms": recent.p50.map(rounded),
            "p99_ms": recent.p99.map(rounded),
        })
    }

    fn failures(&self) -> Vec<Value> {
        let entry = |(key, count): &((protocol::exchange::Blame, &'static str), u64)| {
            let (blame, reason) = *key;
            let recent = self.recent.failures.get(key).copied();
            json!({
                "reason": reason,
                "blame": blame.as_str(),
                "count": count,
                "recent": recent.unwrap_or_default(),
            })
        };
        self.failures.iter().map(entry).collect()
    }
}

impl Depths {
    fn snapshot(&self, groups: &BTreeMap<u32, GroupFigures>) -> Value {
        let pid = self.health.pid();
        let group = pid.and_then(|pid| groups.get(&pid));
        let (serves, caller, directory) = match &self.serves {
            Serves::Ending => ("ending", None, None),
            Serves::Unclaimed => ("unclaimed", None, None),
            Serves::All => ("all", None, None),
            Serves::OneSession => ("session", None, None),
            Serves::Some { caller, directory } => ("caller", Some(caller), directory.as_ref()),
        };
        json!({
            "state": HealthKind::of(&self.health).as_str(),
            "error": self.health.error().map(|error| &error.what),
            "era": self.agreed.map(|era| era.as_str()),
            "serves": serves,
            "caller": caller,
            "directory": directory.map(|path| path.to_string_lossy()),
            "pid": pid,
            "age_ms": self.health.is_up().then(|| self.age.map(milliseconds)),
            "memory_bytes": group.map(|group| group.resident_bytes),
            "processes": group.map(|group| group.processes),
            "restarts": self.restarts,
            "users": self.users,
            "last_asked_ms": milliseconds(self.last_asked),
            "calls": { "in_flight": self.open_calls, "waiting": self.waiting_calls },
            "open_questions": self.open_questions,
            "queued_bytes": self.outgoing_bytes,
        })
    }
}

impl QuestionStatus {
    fn snapshot(&self) -> Value {
        json!({
            "method": self.method,
            "age_ms": milliseconds(self.age),
            "session": self.session,
        })
    }
}

impl SessionStatus {
    fn snapshot(&self) -> Value {
        json!({
            "session": self.hash,
            "client": self.client.as_ref().map(|client| json!({
                "name": client.name,
                "version": client.version,
            })),
            "caller": self.caller,
            "era": self.era.as_str(),
            "version": self.version,
            "implicit": self.is_implicit,
            "age_ms": milliseconds(self.age),
            "idle_ms": self.idle.map(milliseconds),
            "calls": self.calls,
            "streams": self.streams,
            "queued_bytes": self.queued_bytes,
            "server_pid": self.server,
        })
    }
}

/// Returns each limit whose use is known or that was reached.
fn limits(levels: &[LimitLevel], hits: &[LimitHit]) -> Value {
    let mut entries: serde_json::Map<String, Value> = levels
        .iter()
        .map(|level| {
            let entry = json!({ "used": level.used, "most": level.most, "hits": 0, "last_hit_ms": null });
            (level.limit.to_owned(), entry)
        })
        .collect();
    for hit in hits {
        let entry = entries
            .entry(hit.limit.replace(' ', "_"))
            .or_insert_with(|| json!({ "used": null, "most": null }));
        entry["hits"] = hit.count.into();
        entry["last_hit_ms"] = milliseconds(hit.ago).into();
    }
    entries.into()
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
