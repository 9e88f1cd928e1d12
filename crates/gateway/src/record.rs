//! The one place where the end of a call, a refused request or a closed stream is recorded.
//!
//! The code that ends one describes it once, as a [`Record`] about a [`Subject`].
//! [`Recorder::record`] passes it to each [`RecordListener`]: the metrics, the log (at the level
//! debug) and the audit log.

mod call_log;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use bytes::Bytes;
use protocol::aggregate::Routed;
use protocol::exchange::{Failure, UpstreamFault};
use protocol::message::{Member, Message, Written};
use protocol::multiplexer::Wait;
use protocol::version::Era;

use crate::audit::{self, Audit, AuditRecord, Outcome, RecordSubject, SessionHash};
use crate::ended_calls::{EndedCalls, PagePlace};
use crate::readers::{Admitted, Feed, FeedReader};

/// Takes every record.
pub(crate) trait RecordListener: std::fmt::Debug + Send + Sync {
    fn handle_record(&self, subject: &Subject<'_>, record: &Record<'_>);
}

/// The caller and the destination that a record is about.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) destination: &'a str,
    pub(crate) session: Option<SessionHash>,
    pub(crate) principal: &'a str,
    /// The three above as audit records write them, where many records share them.
    pub(crate) composed: Option<&'a str>,
    /// The era that the client speaks, where it is known.
    pub(crate) era: Option<Era>,
    /// The destination's own listener.
    pub(crate) metrics: &'a dyn RecordListener,
    /// Knows what only pages show.
    pub(crate) observed: Option<&'a dyn Observed>,
}

/// Knows what is not in a record, since only a page that is open shows it.
pub(crate) trait Observed {
    /// Returns what the client calls itself, in one line.
    fn client_name(&self) -> Option<String>;

    /// Returns what the time of the call went to.
    fn steps(&self) -> Steps {
        Steps::default()
    }
}

impl Subject<'_> {
    fn whose(&self) -> RecordSubject<'_> {
        match self.composed {
            Some(composed) => RecordSubject::Composed(composed),
            None => RecordSubject::Fields {
                destination: self.destination,
                session: self.session,
                principal: self.principal,
            },
        }
    }
}

/// Returns the beginning that all audit records about a session share.
pub(crate) fn compose(destination: &str, session: SessionHash, principal: &str) -> Box<str> {
    let whose = RecordSubject::Fields {
        destination,
        session: Some(session),
        principal,
    };
    whose.composed().into_boxed_str()
}

/// How a call, a request, a stream or a session ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ending<'a> {
    /// The message was answered with a result, or accepted where no answer is due.
    Done,
    /// The server answered with an error.
    Error,
    /// The server gave no answer.
    Failed(&'a Failure),
    /// Rialto did not admit the request.
    Refused(RefusalRecord),
    /// A stream or a session ended without a fault.
    Closed,
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RefusalRecord {
    pub(crate) reason: &'static str,
    /// The limit that was reached, if it was one.
    pub(crate) limit: Option<&'static str>,
    /// Records cannot be written, this one neither.
    pub(crate) lacks_audit: bool,
}

impl Ending<'_> {
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Self::Done => Outcome::Ok,
            Self::Error => Outcome::Error,
            Self::Failed(failure) => outcome_of(failure),
            Self::Refused(_) => Outcome::Refused,
            Self::Closed => Outcome::Closed,
        }
    }

    /// Returns whether it is what an operator looks for first.
    fn has_failed(self) -> bool {
        match self {
            Self::Error | Self::Failed(_) | Self::Refused(_) => true,
            Self::Done | Self::Closed => false,
        }
    }

    /// Returns the limit for which Rialto refused the request, if it was one.
    fn limit(self) -> Option<&'static str> {
        match self {
            Self::Refused(refused) => refused.limit,
            Self::Failed(_) | Self::Done | Self::Error | Self::Closed => None,
        }
    }

    /// Returns why Rialto refused the request or gave up the call, as `data.reason` of the answer
    /// has it.
    pub(crate) fn reason(self) -> Option<&'static str> {
        match self {
            Self::Failed(failure) => Some(failure.reason()),
            Self::Refused(refused) => Some(refused.reason),
            Self::Done | Self::Error | Self::Closed => None,
        }
    }
}

/// One call, request, stream or session that has ended.
pub(crate) struct Record<'a> {
    pub(crate) http_method: &'a str,
    pub(crate) message: Option<&'a Message>,
    pub(crate) status: u16,
    pub(crate) ending: Ending<'a>,
    pub(crate) latency: Duration,
    pub(crate) request_bytes: u64,
    pub(crate) response: Option<&'a Written>,
    pub(crate) response_bytes: u64,
    /// The member of an aggregate that had the call, and what it calls what was called.
    pub(crate) route: Option<&'a Routed>,
}

impl Steps {
    /// Returns the steps of a call that has taken so long. Whether part of the answer came before
    /// its end is not known of a stream.
    pub(crate) fn of(latency: Duration, wait: Wait, streamed: bool) -> Self {
        let server = latency.saturating_sub(wait.starting).saturating_sub(wait.turn);
        Self {
            waited: Some(wait.turn),
            starting: Some(wait.starting),
            server: (!streamed).then_some(server),
            streaming: (!streamed).then_some(Duration::ZERO),
        }
    }
}

/// What the time of a call went to. `None` is what was not observed; all together are its latency.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Steps {
    /// It waited for its turn.
    pub(crate) waited: Option<Duration>,
    /// It waited for its server to start.
    pub(crate) starting: Option<Duration>,
    /// The server worked on it, and had not begun to answer.
    pub(crate) server: Option<Duration>,
    /// From the first event of the answer to the last.
    pub(crate) streaming: Option<Duration>,
}

impl<'a> Record<'a> {
    /// Returns the record of a message that came by POST.
    pub(crate) fn of_message(
        message: &'a Message,
        status: u16,
        ending: Ending<'a>,
        latency: Duration,
        response: Option<&'a Written>,
    ) -> Self {
        Self {
            http_method: "POST",
            message: Some(message),
            status,
            ending,
            latency,
            request_bytes: message.len() as u64,
            response,
            response_bytes: response.map_or(0, |response| response.len() as u64),
            route: None,
        }
    }

    /// Returns the record with the member of an aggregate that had the call.
    pub(crate) fn routed(self, route: Option<&'a Routed>) -> Self {
        Self { route, ..self }
    }

    /// Returns the record of a stream or a session that was closed.
    pub(crate) fn of_closing(http_method: &'a str, status: u16, latency: Duration, sent: u64) -> Self {
        Self {
            http_method,
            message: None,
            status,
            ending: Ending::Closed,
            latency,
            request_bytes: 0,
            response: None,
            response_bytes: sent,
            route: None,
        }
    }
}

/// Passes records to their listeners.
#[derive(Debug)]
pub(crate) struct Recorder {
    audit: Arc<Audit>,
    others: Vec<Arc<dyn RecordListener>>,
    /// Records, as lines of the audit log in server-sent events, for readers that want them.
    events: Feed,
    /// The same for pages.
    ended_calls: Arc<EndedCalls>,
    /// There may be a reader of either.
    is_watched: AtomicBool,
}

impl Recorder {
    pub(crate) fn new(
        audit: Arc<Audit>,
        others: Vec<Arc<dyn RecordListener>>,
        ended_calls: Arc<EndedCalls>,
    ) -> Self {
        Self {
            audit,
            others,
            events: Feed::default(),
            ended_calls,
            is_watched: AtomicBool::new(false),
        }
    }

    /// Returns a reader of ended calls, as events.
    pub(crate) fn subscribe(&self, place: Admitted) -> FeedReader {
        let reader = self.events.subscribe(place);
        self.is_watched.store(true, SeqCst);
        reader
    }

    /// Returns ended calls for pages, which are noted for as long as the place lives.
    pub(crate) fn open_page(&self) -> (Arc<EndedCalls>, PagePlace) {
        let place = self.ended_calls.open_page();
        self.is_watched.store(true, SeqCst);
        (Arc::clone(&self.ended_calls), place)
    }

    /// Returns whether ended calls are read, so that what only readers want pays.
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Relaxed)
    }

    /// Returns whether records are audited, so that composing a subject beforehand pays.
    pub(crate) fn is_audited(&self) -> bool {
        self.audit.is_on()
    }

    pub(crate) fn record(&self, subject: &Subject<'_>, record: &Record<'_>) {
        subject.metrics.handle_record(subject, record);
        for listener in &self.others {
            listener.handle_record(subject, record);
        }
        call_log::write(subject, record);
        if self.is_watched() {
            self.show(subject, record);
        }
        self.audit.handle_record(subject, record);
    }

    /// Shows a record to the readers that there are.
    #[cold]
    fn show(&self, subject: &Subject<'_>, record: &Record<'_>) {
        if self.events.is_read() {
            let line = audit_record(subject, record, false, audit::line_of);
            self.events
                .publish(&Bytes::from(format!("event: call\ndata: {line}\n\n")));
        }
        if self.ended_calls.is_read() {
            let has_failed = record.ending.has_failed();
            self.ended_calls.note(has_failed, || {
                page_line(subject, record, self.audit.wants_bodies())
            });
        }
        if !self.events.is_read() && !self.ended_calls.is_read() {
            self.is_watched.store(false, SeqCst);
            // A reader that came meanwhile is not to wait for the next one.
            if self.events.is_read() || self.ended_calls.is_read() {
                self.is_watched.store(true, SeqCst);
            }
        }
    }
}

impl RecordListener for Audit {
    fn handle_record(&self, subject: &Subject<'_>, record: &Record<'_>) {
        let lacks_audit = match record.ending {
            Ending::Refused(refused) => refused.lacks_audit,
            Ending::Done | Ending::Error | Ending::Failed(_) | Ending::Closed => false,
        };
        // The room that is left in the audit log is for calls that run.
        if !self.is_on() || lacks_audit {
            return;
        }
        audit_record(subject, record, self.wants_bodies(), |record| self.record(record));
    }
}

/// Returns a record as pages show it: the line of the audit log, with what only they show.
fn page_line(subject: &Subject<'_>, record: &Record<'_>, wants_bodies: bool) -> String {
    let mut line = audit_record(subject, record, wants_bodies, audit::line_with_bodies);
    // The last brace makes room.
    line.pop();
    let milliseconds = |span: Option<Duration>| match span {
        // Cut as the latency is.
        Some(span) => format!("{}.{:03}", span.as_millis(), span.subsec_micros() % 1000),
        None => "null".to_owned(),
    };
    let client = subject.observed.and_then(Observed::client_name);
    let client = client.map_or(serde_json::Value::Null, serde_json::Value::String);
    let steps = subject.observed.map(Observed::steps).unwrap_or_default();
    line.push_str(&format!(
        r#","client":{client},"waited_ms":{},"starting_ms":{},"server_ms":{},"streaming_ms":{}}}"#,
        milliseconds(steps.waited),
        milliseconds(steps.starting),
        milliseconds(steps.server),
        milliseconds(steps.streaming),
    ));
    line
}

/// Composes the one description of an ended call that the audit log and readers of events share.
fn audit_record<T>(
    subject: &Subject<'_>,
    record: &Record<'_>,
    wants_bodies: bool,
    then: impl FnOnce(&AuditRecord<'_>) -> T,
) -> T {
    let is_refused = matches!(record.ending, Ending::Refused(_));
    let message = record.message;
    let bodies = wants_bodies && !is_refused;
    let response_body = record.response.filter(|_| bodies);
    let response_body = response_body.map(|body| body.beginning(Audit::BODY_BYTES));
    let id = message.filter(|message| !is_refused || message.has_valid_id());
    then(&AuditRecord {
        whose: subject.whose(),
        http_method: record.http_method,
        mcp_method: message.and_then(Message::method_name).as_deref(),
        tool: message.and_then(|message| message.text(Member::Name)).as_deref(),
        member: record.route.map(|route| &*route.member),
        own_name: record.route.map(|route| route.own.as_str()),
        rpc_id: id.and_then(|message| message.raw(Member::Id)),
        status_code: record.status,
        outcome: record.ending.outcome(),
        reason: record.ending.reason(),
        latency: record.latency,
        request_bytes: record.request_bytes,
        response_bytes: record.response_bytes,
        request_body: message.filter(|_| bodies).map(|message| &message.bytes()[..]),
        response_body: response_body.as_deref(),
    })
}

fn outcome_of(failure: &Failure) -> Outcome {
    match failure {
        Failure::Timeout { .. } | Failure::StartTimeout { .. } => Outcome::Timeout,
        Failure::Exited(_) | Failure::OwnerLost => Outcome::Crashed,
        Failure::Unavailable { .. } | Failure::HandshakeRefused => Outcome::Unavailable,
        Failure::Retired | Failure::Overloaded { .. } | Failure::Occupied | Failure::Unsupported { .. } => {
            Outcome::Refused
        }
        Failure::Unanswered { .. } => Outcome::Error,
        Failure::TooLarge { .. } => Outcome::TooLarge,
        Failure::Invalid(_) => Outcome::Invalid,
        Failure::Upstream(upstream) => match upstream.fault {
            UpstreamFault::Lost => Outcome::Crashed,
            UpstreamFault::Invalid => Outcome::Invalid,
            UpstreamFault::Refused | UpstreamFault::Unauthorized | UpstreamFault::Unsafe => {
                Outcome::Unavailable
            }
        },
        Failure::Cancelled | Failure::SessionEnded => Outcome::Cancelled,
    }
}
