//! What a tool causes besides its result. Whether anybody hears of it is for the era to decide: each has its
//! own rules for subscriptions and log levels.
use serde_json::{Value, json};

#[derive(Debug)]
pub(super) enum Effect {
    Progress { done: u64, total: u64 },
    Log { level: Level, text: String },
    ToolsChanged,
    ResourceUpdated(&'static str),
}

impl Effect {
    /// `notifications/progress` for the call that gave `token`.
    pub(super) fn progress(token: &Value, done: u64, total: u64) -> Value {
        json!({"progressToken": token, "progress": done, "total": total, "message": format!("step {done} of {total}")})
    }

    /// The params of `notifications/message`.
    pub(super) fn log(level: Level, text: &str) -> Value {
        json!({"level": level.name(), "logger": "demo", "data": text})
    }
}

/// The severities of RFC 5424, least severe first, so that `>=` means "at least as severe".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

impl Level {
    pub(super) const ALL: [Level; 8] = [
        Level::Debug,
        Level::Info,
        Level::Notice,
        Level::Warning,
        Level::Error,
        Level::Critical,
        Level::Alert,
        Level::Emergency,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Notice => "notice",
            Level::Warning => "warning",
            Level::Error => "error",
            Level::Critical => "critical",
            Level::Alert => "alert",
            Level::Emergency => "emergency",
        }
    }

    pub(super) fn named(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == name)
    }
}
