//! One line of the log for each call and each refusal, at the level debug, whether records are
//! audited or not.

use protocol::message::{Member, Message};

use super::{Record, Subject};

/// Writes a line, if the log has that level.
pub(crate) fn write(subject: &Subject<'_>, record: &Record<'_>) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let method = record.message.and_then(Message::method_name);
    let tool = record.message.and_then(|message| message.text(Member::Name));
    tracing::debug!(
        destination = %subject.destination,
        session = subject.session.as_ref().map(|session| session.as_str()),
        principal = %subject.principal,
        http_method = %record.http_method,
        method = method.as_deref(),
        tool = tool.as_deref(),
        member = record.route.map(|route| &*route.member),
        status = record.status,
        outcome = %record.ending.outcome().as_str(),
        reason = record.ending.reason(),
        limit = record.ending.limit(),
        response_bytes = record.response_bytes,
        latency_ms = u64::try_from(record.latency.as_millis()).unwrap_or(u64::MAX),
        "call ended"
    );
}
