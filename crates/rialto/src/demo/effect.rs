//! What a tool causes besides its result. The era decides which clients receive it: each has its
//! own rules for subscriptions and log levels.
use serde::{Deserialize, Serialize};
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

    /// Returns the params of `notifications/message`.
    pub(super) fn log(level: Level, text: &str) -> Value {
        json!({"level": level, "logger": "demo", "data": text})
    }
}

/// The severities of RFC 5424, least severe first, so that `>=` means "at least as severe".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
    pub(super) fn named(name: &str) -> Option<Level> {
        serde_json::from_value(json!(name)).ok()
    }
}
