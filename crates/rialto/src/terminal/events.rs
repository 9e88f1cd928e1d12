//! Log events as happenings of the view.
//!
//! The events are those of the log. Calls come as the line that `gateway` logs at the end of each,
//! so that a call costs nothing more when no terminal shows it.

use std::fmt::{self, Write as _};
use std::time::Duration;

use gateway::Gateway;
use gateway::escape::{self, MAX_VALUE_BYTES};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::view::{self, Call, End, Happening, LogLine};
use super::{Terminal, Wanted};

/// How the log tells of a line on a server's stdout that is no message. It often tells why a server
/// does not start.
const SKIPPED: &str = "skipped a line that is no message";

/// Shows log events on a terminal.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) terminal: Terminal,
    pub(crate) wanted: Wanted,
}

impl<S: Subscriber> Layer<S> for Events {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = *event.metadata().level();
        if let Some(happening) = happening(level, fields, self.wanted) {
            self.terminal.show(happening);
        }
    }
}

/// The fields of an event that mean something here, and all others as text.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    destination: Option<String>,
    session: Option<String>,
    principal: Option<String>,
    method: Option<String>,
    tool: Option<String>,
    outcome: Option<String>,
    reason: Option<String>,
    limit: Option<String>,
    path: Option<String>,
    line: Option<String>,
    status: u64,
    latency: u64,
    bytes: u64,
    rest: String,
}

impl Fields {
    fn text(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            "destination" => self.destination = Some(value),
            "session" => self.session = Some(value),
            "principal" => self.principal = Some(value),
            "method" => self.method = Some(value),
            "tool" => self.tool = Some(value),
            "outcome" => self.outcome = Some(value),
            "reason" => self.reason = Some(value),
            "limit" => self.limit = Some(value),
            "path" => self.path = Some(value),
            "line" => self.line = Some(value),
            name => {
                let _ = write!(self.rest, " {name}={value}");
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = escape::one_line(&format!("{value:?}"), MAX_VALUE_BYTES);
        self.text(field, text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, escape::one_line(value, MAX_VALUE_BYTES));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "status" => self.status = value,
            "latency_ms" => self.latency = value,
            "response_bytes" => self.bytes = value,
            _ => self.text(field, value.to_string()),
        }
    }
}

/// Returns what an event is for a person, if it is for one.
fn happening(level: Level, fields: Fields, wanted: Wanted) -> Option<Happening> {
    match (fields.message.as_str(), &fields.line) {
        ("call ended", None) => call(fields).map(Happening::Call),
        ("request refused", None) => {
            let end = refusal(&fields);
            Some(Happening::Call(Call {
                destination: None,
                client: None,
                method: None,
                tool: None,
                end,
                latency: Duration::ZERO,
                bytes: 0,
            }))
        }
        ("stderr", Some(line)) => Some(Happening::Output {
            line: line.clone(),
            destination: fields.destination?,
        }),
        (SKIPPED, Some(line)) => Some(Happening::Output {
            line: format!("stdout: {line}"),
            destination: fields.destination?,
        }),
        (_, _) => log(level, fields, wanted).map(Happening::Log),
    }
}

fn call(fields: Fields) -> Option<Call> {
    // Rialto asks each server for its tools at start.
    if fields.principal.as_deref() == Some(Gateway::OWN_PRINCIPAL) {
        return None;
    }
    let end = match fields.outcome.as_deref() {
        Some("ok") => End::Ok,
        Some("refused") => refusal(&fields),
        // A stream or a session has ended, and no call.
        Some("closed") | None => return None,
        Some(outcome) => End::Failed {
            outcome: outcome.to_owned(),
            reason: fields.reason.clone(),
        },
    };
    let is_request = fields
        .method
        .as_deref()
        .is_some_and(|method| !method.starts_with("notifications/"));
    if !is_request && !matches!(end, End::Refused { .. }) {
        return None;
    }
    Some(Call {
        destination: fields.destination,
        // Enough of the hash of a session to tell two of them apart.
        client: fields.session.map(|session| session.chars().take(6).collect()),
        method: fields.method,
        tool: fields.tool,
        end,
        latency: Duration::from_millis(fields.latency),
        bytes: fields.bytes,
    })
}

fn refusal(fields: &Fields) -> End {
    End::Refused {
        status: fields.status,
        reason: fields.reason.clone().unwrap_or_else(|| "refused".to_owned()),
        limit: fields.limit.clone(),
        path: fields.path.clone(),
    }
}

fn log(level: Level, mut fields: Fields, wanted: Wanted) -> Option<LogLine> {
    let level = match level {
        Level::ERROR => view::Level::Error,
        Level::WARN => view::Level::Warn,
        Level::INFO => view::Level::Info,
        _ if wanted.inside => view::Level::Info,
        _ => return None,
    };
    // What belongs to calls alone stays with other lines as it is.
    for (name, value) in [
        ("session", fields.session.take()),
        ("reason", fields.reason.take()),
        ("limit", fields.limit.take()),
        ("path", fields.path.take()),
        ("method", fields.method.take()),
        ("tool", fields.tool.take()),
        ("outcome", fields.outcome.take()),
    ] {
        if let Some(value) = value {
            let _ = write!(fields.rest, " {name}={value}");
        }
    }
    if fields.status > 0 {
        let _ = write!(fields.rest, " status={}", fields.status);
    }
    Some(LogLine {
        level,
        destination: fields.destination,
        text: format!("{}{}", fields.message, fields.rest),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Wanted = Wanted {
        calls: true,
        output: true,
        inside: false,
    };

    fn fields(message: &str) -> Fields {
        Fields {
            message: message.to_owned(),
            destination: Some("files".to_owned()),
            ..Fields::default()
        }
    }

    fn ended(method: &str, outcome: &str) -> Fields {
        Fields {
            method: Some(method.to_owned()),
            outcome: Some(outcome.to_owned()),
            session: Some("0123456789ab".to_owned()),
            status: 200,
            latency: 3,
            bytes: 7,
            ..fields("call ended")
        }
    }

    #[test]
    fn ended_call_is_a_call_and_a_notification_none() {
        let call = happening(Level::DEBUG, ended("tools/call", "ok"), WANTED);
        let Some(Happening::Call(call)) = call else {
            panic!("{call:?}");
        };
        assert_eq!(
            (call.client.as_deref(), call.bytes, call.end),
            (Some("012345"), 7, End::Ok)
        );
        for (method, outcome) in [("notifications/initialized", "ok"), ("tools/call", "closed")] {
            assert_eq!(happening(Level::DEBUG, ended(method, outcome), WANTED), None);
        }
        let own = Fields {
            principal: Some(Gateway::OWN_PRINCIPAL.to_owned()),
            ..ended("tools/list", "ok")
        };
        assert_eq!(happening(Level::DEBUG, own, WANTED), None);
    }

    #[test]
    fn refusal_keeps_its_reason_and_limit() {
        let refused = Fields {
            reason: Some("sessions_at_limit".to_owned()),
            limit: Some("max_sessions".to_owned()),
            status: 503,
            ..ended("notifications/x", "refused")
        };
        let Some(Happening::Call(call)) = happening(Level::DEBUG, refused, WANTED) else {
            panic!("a refusal is shown");
        };
        let expected = End::Refused {
            status: 503,
            reason: "sessions_at_limit".to_owned(),
            limit: Some("max_sessions".to_owned()),
            path: None,
        };
        assert_eq!(call.end, expected);
    }

    #[test]
    fn output_of_a_server_is_apart_from_the_log() {
        let output = Fields {
            line: Some("ready".to_owned()),
            ..fields("stderr")
        };
        let expected = Happening::Output {
            destination: "files".to_owned(),
            line: "ready".to_owned(),
        };
        assert_eq!(happening(Level::WARN, output, WANTED), Some(expected));
    }

    #[test]
    fn line_on_stdout_that_is_no_message_is_output_of_its_server() {
        let stray = Fields {
            line: Some("Server ready!".to_owned()),
            ..fields(SKIPPED)
        };
        let expected = Happening::Output {
            destination: "files".to_owned(),
            line: "stdout: Server ready!".to_owned(),
        };
        assert_eq!(happening(Level::WARN, stray, WANTED), Some(expected));
    }

    #[test]
    fn refusal_of_an_unknown_path_names_it() {
        let refused = Fields {
            message: "request refused".to_owned(),
            reason: Some("unknown_path".to_owned()),
            path: Some("/flies/mcp".to_owned()),
            status: 404,
            ..Fields::default()
        };
        let Some(Happening::Call(call)) = happening(Level::DEBUG, refused, WANTED) else {
            panic!("a refusal is shown");
        };
        let End::Refused { path, .. } = call.end else {
            panic!("{:?}", call.end);
        };
        assert_eq!(path.as_deref(), Some("/flies/mcp"));
    }

    #[test]
    fn inside_matters_are_shown_when_they_are_asked_for() {
        let event = || Fields {
            reason: Some("why".to_owned()),
            rest: " pid=7".to_owned(),
            ..fields("started")
        };
        assert_eq!(happening(Level::DEBUG, event(), WANTED), None);
        let inside = Wanted {
            inside: true,
            ..WANTED
        };
        let Some(Happening::Log(line)) = happening(Level::DEBUG, event(), inside) else {
            panic!("it is shown");
        };
        assert_eq!(line.text, "started pid=7 reason=why");
    }
}
