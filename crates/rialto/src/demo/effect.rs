//! What a tool causes besides its result. The era decides which clients receive it: each has its
//! own rules for subscriptions and log levels.
use protocol::method::LogLevel;
use serde_json::{Value, json};

#[derive(Debug)]
pub(super) enum Effect {
    Progress { done: u64, total: u64 },
    Log { level: LogLevel, text: String },
    ToolsChanged,
    ResourceUpdated(&'static str),
}

impl Effect {
    /// `notifications/progress` for the call that gave `token`.
    pub(super) fn progress(token: &Value, done: u64, total: u64) -> Value {
        json!({"progressToken": token, "progress": done, "total": total, "message": format!("step {done} of {total}")})
    }

    /// Returns the params of `notifications/message`.
    pub(super) fn log(level: LogLevel, text: &str) -> Value {
        json!({"level": level.as_str(), "logger": "demo", "data": text})
    }
}
