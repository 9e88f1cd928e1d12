//! One line of the log for each call and each refusal, at the level debug, whether records are audited or not.

use std::time::Duration;

use protocol::message::{Member, Message};

use crate::audit::Outcome;

/// What a line says.
pub(crate) struct CallLine<'a> {
    pub(crate) destination: &'a str,
    /// The hash of the session, as audit records have it.
    pub(crate) session: Option<&'a str>,
    pub(crate) http_method: &'a str,
    pub(crate) message: Option<&'a Message>,
    pub(crate) status: u16,
    pub(crate) outcome: Outcome,
    /// Why it was refused, or why it failed.
    pub(crate) reason: Option<&'static str>,
    pub(crate) latency: Duration,
}

/// Writes a line, if the log has that level.
pub(crate) fn write(line: &CallLine<'_>) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let method = line.message.and_then(Message::method_name);
    let tool = line.message.and_then(|message| message.text(Member::Name));
    tracing::debug!(
        destination = %line.destination,
        session = line.session,
        http_method = %line.http_method,
        method = method.as_deref(),
        tool = tool.as_deref(),
        status = line.status,
        outcome = %line.outcome.as_str(),
        reason = line.reason,
        latency_ms = u64::try_from(line.latency.as_millis()).unwrap_or(u64::MAX),
        "call ended"
    );
}
