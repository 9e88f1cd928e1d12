//! One snapshot of the gateway's state. `/ready`, `/metrics`, `rialto check` and what the admin
//! socket shows are made from it.
//!
//! It is computed when it is asked for. A call costs nothing for it.

mod snapshot;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use protocol::aggregate::{MemberName, MemberState};
use protocol::exchange::{BackendError, Blame, SessionKey};
use protocol::multiplexer::Counters;
use protocol::version::Era;

use crate::recent::Figures;
use crate::settings::{Sharing, Start};

pub(crate) use snapshot::Facts;

/// How much a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Sums of each destination, and its instances.
    Sums,
    /// Each session as well.
    Sessions,
}

/// The state of the whole gateway at one moment.
#[derive(Debug)]
pub(crate) struct Status {
    /// One of the destinations can serve clients, and the gateway is not draining.
    pub(crate) is_ready: bool,
    /// By name, those that a reload has removed and that still drain included.
    pub(crate) destinations: BTreeMap<String, DestinationStatus>,
    /// The limits of the whole gateway that were reached.
    pub(crate) limits: Vec<LimitHit>,
    /// How much of the limits of the whole gateway is used.
    pub(crate) levels: Vec<LimitLevel>,
    pub(crate) is_draining: bool,
    pub(crate) has_failed_reload: bool,
    /// The fleet that this replica belongs to.
    pub(crate) cluster: Option<ClusterStatus>,
}

/// The fleet, as one replica knows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClusterStatus {
    /// The id of this replica.
    pub(crate) node: String,
    /// How long its lease lasts without a renewal.
    pub(crate) lease: Duration,
    /// The engine has answered the last operation.
    pub(crate) is_engine_reachable: bool,
    /// How many other replicas had a lease when they were counted last.
    pub(crate) peers: Option<usize>,
    pub(crate) take_overs: u64,
    pub(crate) handed_over: u64,
    pub(crate) records_rewritten: u64,
    pub(crate) engine_operations: u64,
    pub(crate) engine_failures: u64,
    /// How often the engine did not answer about a limit, so that this replica's share decided.
    pub(crate) limits_by_share: u64,
    /// Requests that were sent to other replicas, by outcome.
    pub(crate) proxied: Vec<(&'static str, u64)>,
}

impl ClusterStatus {
    /// Returns the fleet's entry in `/ready`.
    fn entry(&self) -> serde_json::Value {
        let lease = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        serde_json::json!({
            "node": self.node,
            "lease_ms": lease,
            "engine": if self.is_engine_reachable { "reachable" } else { "away" },
            "peers": self.peers,
        })
    }
}

/// The state of one destination.
#[derive(Debug)]
pub(crate) struct DestinationStatus {
    /// The configuration has it; otherwise a reload has removed it.
    pub(crate) is_configured: bool,
    pub(crate) transport: &'static str,
    pub(crate) state: HealthKind,
    pub(crate) is_ready: bool,
    /// Why no server process runs, though nothing is wrong.
    pub(crate) resting: Option<Resting>,
    /// What is wrong with its server, if something is.
    pub(crate) backend_error: Option<String>,
    /// Sessions, those of draining predecessors included.
    pub(crate) sessions: usize,
    /// Sessions of an earlier process that went on here; `None` where sessions end with their
    /// process.
    pub(crate) restored: Option<u64>,
    /// Modern calls that wait for their client.
    pub(crate) parked: usize,
    /// Modern listens that are open.
    pub(crate) listens: usize,
    /// Instances in use whose server runs.
    pub(crate) children: usize,
    /// The number of tools that clients are shown, if a client has read the whole list.
    pub(crate) tools: Option<usize>,
    /// All instances, those that are being ended included.
    pub(crate) instances: Vec<Depths>,
    pub(crate) counters: Counters,
    /// Events that open sessions dropped unread; those of ended sessions are counted with the
    /// traffic.
    pub(crate) events_lost: u64,
    /// The limits of its instances that calls ran into.
    pub(crate) limits: Vec<LimitHit>,
    /// The members of an aggregate, and what it does not show of theirs.
    pub(crate) members: Option<MembersStatus>,
    pub(crate) levels: Vec<LimitLevel>,
    /// Which clients share an instance.
    pub(crate) sharing: Sharing,
    /// When a child is started; `None` for a remote server.
    pub(crate) start: Option<Start>,
    /// Event streams that are being sent, by the kinds of [`crate::metrics::StreamKind`].
    pub(crate) streams: Vec<(&'static str, usize)>,
    /// Messages of clients that have come to their end.
    pub(crate) ended: u64,
    /// Calls that got no answer from the server, by blame and reason.
    pub(crate) failures: Vec<((Blame, &'static str), u64)>,
    /// What happened lately.
    pub(crate) recent: Figures,
    /// The sessions, if the snapshot holds them.
    pub(crate) session_list: Vec<SessionStatus>,
    /// Questions that clients have not answered.
    pub(crate) questions: Vec<QuestionStatus>,
    /// The names of tools that clients may use, and may not, as configured. `None`: all.
    pub(crate) policy: Option<(Vec<String>, Vec<String>)>,
}

/// One question without an answer.
#[derive(Debug)]
pub(crate) struct QuestionStatus {
    pub(crate) method: &'static str,
    pub(crate) age: Duration,
    /// What logs call the session that it was put to; `None` for a modern request.
    pub(crate) session: Option<String>,
}

/// The state of an aggregate's members.
#[derive(Debug, Clone, Default)]
pub(crate) struct MembersStatus {
    /// In the order of the configuration.
    pub(crate) members: Vec<MemberStatus>,
    /// What is not shown though a member offers it, with the reasons.
    pub(crate) withheld: Vec<String>,
}

/// The state of one member.
#[derive(Debug, Clone)]
pub(crate) struct MemberStatus {
    pub(crate) name: MemberName,
    pub(crate) state: MemberState,
    /// Since when, in seconds of Unix time.
    pub(crate) since: u64,
}

impl MembersStatus {
    fn entry(&self) -> serde_json::Value {
        let entry = |member: &MemberStatus| {
            let state = serde_json::json!({ "state": member.state.as_str(), "since": member.since });
            (member.name.to_string(), state)
        };
        self.members
            .iter()
            .map(entry)
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

/// One session.
#[derive(Debug)]
pub(crate) struct SessionStatus {
    /// What logs call it.
    pub(crate) hash: String,
    pub(crate) client: Option<ClientName>,
    pub(crate) caller: String,
    /// The revision that its client speaks.
    pub(crate) version: &'static str,
    pub(crate) era: Era,
    /// Rialto opened it for a client that sends no session id.
    pub(crate) is_implicit: bool,
    pub(crate) age: Duration,
    /// How long it has been idle; `None` while a call or a stream is open.
    pub(crate) idle: Option<Duration>,
    pub(crate) calls: usize,
    /// Streams opened by GET.
    pub(crate) streams: usize,
    /// Bytes of events that are kept for its client.
    pub(crate) queued_bytes: usize,
    /// The process that serves it, if it is one and runs.
    pub(crate) server: Option<u32>,
}

/// What a client calls itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientName {
    pub(crate) name: String,
    pub(crate) version: Option<String>,
}

impl std::fmt::Display for ClientName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.version {
            Some(version) => write!(f, "{} {version}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl ClientName {
    /// The longest name that is shown.
    const LONGEST: usize = 100;

    /// Returns the name in a `clientInfo`, raw JSON, if it has one.
    pub(crate) fn of(info: &[u8]) -> Option<Self> {
        let info: serde_json::Value = serde_json::from_slice(info).ok()?;
        let text = |key: &str| {
            let text = info.get(key)?.as_str()?;
            Some(crate::escape::one_line(text, Self::LONGEST))
        };
        Some(Self {
            name: text("name")?,
            version: text("version"),
        })
    }
}

/// Which clients an instance serves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Serves {
    /// It is being ended.
    #[default]
    Ending,
    /// It was started before any client came.
    Unclaimed,
    All,
    OneSession,
    /// The clients of one caller, and in one project if they have one.
    Some {
        caller: String,
        directory: Option<PathBuf>,
    },
}

/// How much of a limit is used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitLevel {
    pub(crate) limit: &'static str,
    pub(crate) used: usize,
    pub(crate) most: usize,
}

/// What the server of an instance does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Health {
    /// No client has needed it yet.
    Idle,
    Starting,
    /// The process runs, if it is one, and has not answered anything yet.
    Running {
        pid: Option<u32>,
    },
    /// It has answered the handshake.
    Ready {
        pid: Option<u32>,
    },
    BackingOff(Arc<BackendError>),
    Failed(Arc<BackendError>),
    /// No call used it for a while (`idle_stop`). The next one starts it again.
    Asleep,
    Stopped,
}

impl Health {
    /// Returns the process that serves, if it is one and runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Running { pid } | Self::Ready { pid } => *pid,
            Self::Idle
            | Self::Starting
            | Self::BackingOff(_)
            | Self::Failed(_)
            | Self::Asleep
            | Self::Stopped => None,
        }
    }

    /// Returns whether the server runs: a process that was started, or a session.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self, Self::Running { .. } | Self::Ready { .. })
    }

    /// Returns why the server does not run.
    pub(crate) fn error(&self) -> Option<&BackendError> {
        match self {
            Self::BackingOff(error) | Self::Failed(error) => Some(error),
            Self::Idle
            | Self::Starting
            | Self::Running { .. }
            | Self::Ready { .. }
            | Self::Asleep
            | Self::Stopped => None,
        }
    }
}

/// Why no server process runs at a destination that is all right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resting {
    NotStarted,
    StoppedIdle,
}

impl Resting {
    /// Returns why all of these instances rest; `None` if one of them does not.
    pub(crate) fn of(health: &[Health]) -> Option<Self> {
        let rests = |health: &Health| matches!(health, Health::Idle | Health::Stopped | Health::Asleep);
        if !health.iter().all(rests) {
            return None;
        }
        match health.contains(&Health::Asleep) {
            true => Some(Self::StoppedIdle),
            false => Some(Self::NotStarted),
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::NotStarted => "not started (starts at first call)",
            Self::StoppedIdle => "stopped after being idle (starts at next call)",
        }
    }
}

/// The state of one instance: what its server does, and how much waits there.
#[derive(Debug, Clone)]
pub(crate) struct Depths {
    /// The era that is used towards the server, or tried first.
    pub(crate) era: Era,
    /// The era, if the server has answered on this link.
    pub(crate) agreed: Option<Era>,
    pub(crate) health: Health,
    /// How long ago its link began, or the last one that there was.
    pub(crate) age: Option<Duration>,
    /// How often the server was started again, after `idle_stop` too.
    pub(crate) restarts: u64,
    /// Sessions and modern requests that use it.
    pub(crate) users: usize,
    /// How long ago a client asked something of it.
    pub(crate) last_asked: Duration,
    pub(crate) serves: Serves,
    pub(crate) open_calls: usize,
    pub(crate) waiting_calls: usize,
    pub(crate) open_questions: usize,
    /// Each of them: to which session, by which method, and for how long.
    pub(crate) questions: Vec<(SessionKey, &'static str, Duration)>,
    pub(crate) outgoing_bytes: usize,
    pub(crate) counters: Counters,
}

/// How often a limit was reached, and how long ago for the last time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitHit {
    pub(crate) limit: &'static str,
    pub(crate) count: u64,
    pub(crate) ago: Duration,
}

/// The kind of a [`Health`], from the worst to the best: of an instance, or of the best instance of
/// a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HealthKind {
    Failed,
    Stopped,
    Idle,
    BackingOff,
    Starting,
    Running,
    Ready,
}

impl HealthKind {
    /// In the order in which the page of metrics has them.
    pub(crate) const ALL: [Self; 7] = [
        Self::Idle,
        Self::Starting,
        Self::Running,
        Self::Ready,
        Self::BackingOff,
        Self::Failed,
        Self::Stopped,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::Idle => "idle",
            Self::BackingOff => "backing_off",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Ready => "ready",
        }
    }

    pub(crate) fn of(health: &Health) -> Self {
        match health {
            Health::Idle | Health::Asleep => Self::Idle,
            Health::Starting => Self::Starting,
            Health::Running { .. } => Self::Running,
            Health::Ready { .. } => Self::Ready,
            Health::BackingOff(_) => Self::BackingOff,
            Health::Failed(_) => Self::Failed,
            Health::Stopped => Self::Stopped,
        }
    }

    /// Returns the best state of these: one instance that works is enough. An instance that was
    /// stopped is started again when a client asks.
    pub(crate) fn best(health: &[Health]) -> Self {
        match health.iter().map(Self::of).max() {
            None | Some(Self::Stopped) => Self::Idle,
            Some(best) => best,
        }
    }
}

impl DestinationStatus {
    /// Adds what a destination of the same name still has to finish. Its traffic and its instances
    /// are counted with those of its successor already.
    pub(crate) fn add_draining(&mut self, draining: Self) {
        self.session_list.extend(draining.session_list);
        self.questions.extend(draining.questions);
        self.sessions += draining.sessions;
        self.parked += draining.parked;
        self.listens += draining.listens;
        self.events_lost += draining.events_lost;
    }

    /// Returns the destination's entry in `/ready`.
    fn entry(&self) -> serde_json::Value {
        let mut entry = serde_json::json!({
            "state": self.state.as_str(),
            "ready": self.is_ready,
            "sessions": self.sessions,
            "children": self.children,
        });
        if let Some(restored) = self.restored {
            entry["restored"] = restored.into();
        }
        if let Some(tools) = self.tools {
            entry["tools"] = tools.into();
        }
        if !self.limits.is_empty() {
            entry["limits"] = limits(&self.limits);
        }
        if let Some(resting) = self.resting {
            entry["server"] = resting.as_str().into();
        }
        if let Some(members) = &self.members {
            entry["members"] = members.entry();
            if !members.withheld.is_empty() {
                entry["withheld"] = members.withheld.clone().into();
            }
        }
        if let Some(backend_error) = &self.backend_error {
            entry["error"] = backend_error.as_str().into();
        }
        entry
    }
}

impl Status {
    /// Returns the answer to `/ready` for a caller that may see these destinations, or all of them
    /// and what concerns the whole gateway.
    pub(crate) fn readiness(&self, sees: impl Fn(&str) -> bool, sees_everything: bool) -> String {
        let shown = self
            .destinations
            .iter()
            .filter(|(name, status)| status.is_configured && sees(name));
        let destinations: serde_json::Map<_, _> = shown
            .map(|(name, status)| (name.clone(), status.entry()))
            .collect();
        let mut body = serde_json::json!({ "ready": self.is_ready, "destinations": destinations });
        if sees_everything && !self.limits.is_empty() {
            body["limits"] = limits(&self.limits);
        }
        if let Some(cluster) = self.cluster.as_ref().filter(|_| sees_everything) {
            body["cluster"] = cluster.entry();
        }
        if self.has_failed_reload {
            body["configuration"] =
                "the last reload failed and changed nothing; the log has the details".into();
        }
        format!("{body}\n")
    }
}

/// Returns how often each limit was reached, and how long ago for the last time.
fn limits(hits: &[LimitHit]) -> serde_json::Value {
    let entry = |hit: &LimitHit| {
        let ago = hit.ago.as_secs();
        let entry = serde_json::json!({ "hits": hit.count, "last_seconds_ago": ago });
        (hit.limit.replace(' ', "_"), entry)
    };
    hits.iter().map(entry).collect::<serde_json::Map<_, _>>().into()
}
