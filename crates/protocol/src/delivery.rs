//! Retry after a broken connection: what happens to a message that may not have reached a remote
//! server, which messages are idempotent, and the backoff between attempts.
//!
//! A request that may have been executed is sent again only if it is idempotent. A request that
//! provably was not begun (no connection, unknown session, refused credentials) may always be sent
//! again. A broken event stream with numbered events is resumed instead.
//!
//! The machine knows no socket: it takes the outcome of each attempt and returns what to do next.

mod post_batch;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::backend_face::WireId;
use crate::exchange::{BackendError, Failure, Upstream, UpstreamFault};
use crate::message::{Kind, Member, Message};
use crate::method::Method;
use crate::object::Object;

pub(crate) use post_batch::KnownLine;
pub use post_batch::{PostBatch, PostRequest};

/// How often a message is sent at most.
const ATTEMPTS: u32 = 4;
/// How often a stream that brings nothing new is resumed.
const RESUMPTIONS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause, even if a server asks for a longer one.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The pause before a stream is resumed, if the server names none.
const RESUME_PAUSE: Duration = Duration::from_secs(1);

/// Whether doing something twice does harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idempotency {
    /// A second time changes nothing.
    Yes,
    /// A second time may do harm.
    No,
}

/// What is being delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageInfo {
    /// A request.
    Request {
        /// The id that Rialto gave it.
        id: WireId,
        /// Its method.
        method: Method,
    },
    /// A notification, or the answer to a question of the server: nothing comes back.
    Note {
        /// Its method.
        method: Method,
    },
}

impl MessageInfo {
    /// Reads it from a line that Rialto wrote.
    pub fn of(message: &Message) -> Self {
        let method = message.method();
        match (message.kind(), message.number(Member::Id)) {
            (Kind::Request, Some(id)) => Self::Request {
                id: WireId(id),
                method,
            },
            _ => Self::Note { method },
        }
    }
}

/// What became of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// No connection was made: nothing was sent.
    Unreachable {
        /// The error text.
        what: String,
    },
    /// The connection broke off before an answer began.
    BrokenOff {
        /// The error text.
        what: String,
    },
    /// No answer began in time, which is the value of this setting.
    Silent {
        /// The setting that limits the wait.
        setting: &'static str,
        /// Its value.
        limit: Duration,
    },
    /// An answer that is no message.
    Status {
        /// The HTTP status.
        status: u16,
        /// What `Retry-After` asks for.
        retry_after: Option<Duration>,
        /// The request named a session.
        in_session: bool,
        /// The text of the body, short and escaped.
        text: Option<String>,
    },
    /// The event stream has ended, or broke off, without the answer.
    StreamEnded,
    /// Rialto is not signed in at the server and cannot sign in now: nothing was begun.
    NotSignedIn {
        /// The error text.
        what: String,
    },
    /// The way to the server is not safe, or leads elsewhere.
    Unsafe {
        /// The error text.
        what: String,
    },
    /// What came is not what the protocol allows.
    Invalid {
        /// The error text.
        what: String,
    },
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetryDecision {
    /// Send it once more.
    Again {
        /// After this pause.
        after: Duration,
    },
    /// Resume the stream after its last event.
    Resume {
        /// After this pause.
        after: Duration,
    },
    /// It was not begun, and the server cannot be reached: it may wait in the queue.
    Return {
        /// Why the server is out of reach.
        backend_error: Arc<BackendError>,
    },
    /// It was not begun: the server has forgotten the session.
    SessionLost,
    /// There will be no answer.
    Fail(Failure),
}

/// The delivery of one message: attempts, resumptions, and whether it may have run.
#[derive(Debug)]
pub struct Delivery {
    message_info: MessageInfo,
    idempotency: Idempotency,
    attempts: u32,
    resumptions: u32,
    /// The id of the last event.
    last_event: Option<Bytes>,
    retry: Option<Duration>,
    /// The request was sent at least once, so it may have run.
    begun: bool,
}

impl Delivery {
    /// Returns a delivery before its first attempt.
    pub fn new(message_info: MessageInfo, idempotency: Idempotency) -> Self {
        Self {
            message_info,
            idempotency,
            attempts: 1,
            resumptions: 0,
            last_event: None,
            retry: None,
            begun: false,
        }
    }

    /// Returns what is delivered.
    pub fn message_info(&self) -> MessageInfo {
        self.message_info
    }

    /// Returns whether it may be sent again although it may have run.
    pub fn may_go_again(&self) -> bool {
        self.idempotency == Idempotency::Yes && self.attempts < ATTEMPTS
    }

    /// The caller has found that the request is idempotent, although its method alone does not show
    /// it.
    pub fn handle_idempotent(&mut self) {
        self.idempotency = Idempotency::Yes;
    }

    /// Returns the id of the last event, if the stream can be resumed there.
    pub fn last_event(&self) -> Option<&Bytes> {
        self.last_event.as_ref()
    }

    /// Notes the id of the last event, and the delay that the server asked for.
    pub fn handle_event(&mut self, last_event: Option<&Bytes>, retry: Option<Duration>) {
        if last_event.is_some() && last_event != self.last_event.as_ref() {
            self.last_event = last_event.cloned();
            self.resumptions = 0;
        }
        self.retry = retry.or(self.retry);
    }

    /// One attempt has come to its end without the answer.
    pub fn handle_outcome(&mut self, outcome: AttemptOutcome) -> RetryDecision {
        match outcome {
            AttemptOutcome::Unreachable { what } if !self.begun || self.idempotency == Idempotency::Yes => {
                RetryDecision::Return {
                    backend_error: Arc::new(BackendError {
                        what,
                        ..BackendError::default()
                    }),
                }
            }
            AttemptOutcome::Unreachable { what } => lost(what),
            AttemptOutcome::BrokenOff { what } => {
                self.begun = true;
                self.again(None).unwrap_or_else(|| lost(what))
            }
            AttemptOutcome::Silent { setting, limit } => {
                RetryDecision::Fail(Failure::Timeout { setting, limit })
            }
            AttemptOutcome::Status {
                status: 404,
                in_session: true,
                ..
            } => RetryDecision::SessionLost,
            AttemptOutcome::Status {
                status,
                retry_after,
                text,
                ..
            } => self.handle_status(status, retry_after, text.as_deref()),
            AttemptOutcome::StreamEnded => self.handle_stream_end(),
            AttemptOutcome::NotSignedIn { what } => failed(UpstreamFault::Unauthorized, what),
            AttemptOutcome::Unsafe { what } => failed(UpstreamFault::Unsafe, what),
            AttemptOutcome::Invalid { what } => failed(UpstreamFault::Invalid, what),
        }
    }

    fn handle_status(
        &mut self,
        status: u16,
        retry_after: Option<Duration>,
        text: Option<&str>,
    ) -> RetryDecision {
        let what = answered(status, text);
        match status {
            401 | 403 => failed(UpstreamFault::Unauthorized, what),
            429 | 502 | 503 | 504 => {
                // A longer wait is left to the client, which learns of it at once.
                let is_short = retry_after.is_none_or(|wait| wait <= LONGEST_PAUSE);
                let again = is_short.then(|| self.again(retry_after)).flatten();
                again.unwrap_or_else(|| {
                    RetryDecision::Fail(Failure::Unavailable {
                        backend_error: Arc::new(BackendError {
                            what,
                            ..BackendError::default()
                        }),
                        retry_after: retry_after.unwrap_or(FIRST_PAUSE),
                    })
                })
            }
            200..=299 => failed(
                UpstreamFault::Invalid,
                format!("the server answered a request with HTTP status {status} and no message"),
            ),
            _ => failed(UpstreamFault::Refused, what),
        }
    }

    fn handle_stream_end(&mut self) -> RetryDecision {
        self.begun = true;
        let what = "the server ended its event stream without an answer";
        if self.last_event.is_some() {
            if self.resumptions >= RESUMPTIONS {
                return lost(what.to_owned());
            }
            let growing = RESUME_PAUSE * 2_u32.pow(self.resumptions);
            let after = self.retry.unwrap_or(growing).min(LONGEST_PAUSE);
            self.resumptions += 1;
            return RetryDecision::Resume { after };
        }
        self.again(None).unwrap_or_else(|| lost(what.to_owned()))
    }

    /// Returns the decision to send it again, if it is idempotent and has attempts left.
    fn again(&mut self, retry_after: Option<Duration>) -> Option<RetryDecision> {
        if !self.may_go_again() {
            return None;
        }
        let pause = FIRST_PAUSE * 2_u32.pow(self.attempts - 1);
        self.attempts += 1;
        Some(RetryDecision::Again {
            after: retry_after.unwrap_or(pause).min(LONGEST_PAUSE),
        })
    }
}

/// Returns the error text for an answer that is a status and no message.
pub fn answered(status: u16, text: Option<&str>) -> String {
    let what = match status {
        401 | 403 => format!("the server does not accept Rialto's credentials (HTTP status {status})"),
        _ => format!("the server answered with HTTP status {status}"),
    };
    match text {
        Some(text) => format!("{what}: {text}"),
        None => what,
    }
}

/// Returns whether a status is final: a later attempt would get the same.
pub fn is_definite(status: u16) -> bool {
    matches!(status, 300..=499) && !matches!(status, 408 | 425 | 429)
}

/// Returns whether a JSON-RPC error that came with 404 is about the session and not about the
/// request.
///
/// Servers that do not know a session put such an error beside the status, some with the id of the
/// request.
pub fn names_lost_session(error: &str) -> bool {
    let Some(members) = Object::parse(error.as_bytes()) else {
        return false;
    };
    let code = members.get("code").and_then(|code| code.parse::<i64>().ok());
    let message = members.get("message").unwrap_or_default().to_ascii_lowercase();
    code.is_some_and(|code| matches!(code, -32099..=-32000 | -32600)) && message.contains("session")
}

fn failed(fault: UpstreamFault, what: impl Into<String>) -> RetryDecision {
    RetryDecision::Fail(Failure::Upstream(Arc::new(Upstream::new(fault, what))))
}

fn lost(what: String) -> RetryDecision {
    failed(UpstreamFault::Lost, what)
}

/// Returns whether a message may be sent again after it may have run. Lists, reads and repeated
/// notifications do no harm. What a tool does, only the tool knows.
pub fn idempotency(message_info: MessageInfo) -> Idempotency {
    let method = match message_info {
        MessageInfo::Request { method, .. } | MessageInfo::Note { method } => method,
    };
    match method {
        Method::Initialize
        | Method::Ping
        | Method::ToolsList
        | Method::PromptsList
        | Method::PromptsGet
        | Method::ResourcesList
        | Method::ResourcesTemplatesList
        | Method::ResourcesRead
        | Method::ResourcesSubscribe
        | Method::ResourcesUnsubscribe
        | Method::LoggingSetLevel
        | Method::CompletionComplete
        | Method::ServerDiscover
        | Method::TasksGet
        | Method::TasksResult
        | Method::TasksList
        | Method::TasksCancel
        | Method::Initialized
        | Method::Cancelled
        | Method::RootsListChanged => Idempotency::Yes,
        // A broken listen is opened again by the multiplexer, if a session still wants it.
        Method::SubscriptionsListen
        | Method::ToolsCall
        | Method::TasksUpdate
        | Method::TasksStatus
        | Method::Tasks
        | Method::SamplingCreateMessage
        | Method::ElicitationCreate
        | Method::RootsList
        | Method::Progress
        | Method::LogMessage
        | Method::ToolsListChanged
        | Method::PromptsListChanged
        | Method::ResourcesListChanged
        | Method::ResourcesUpdated
        | Method::SubscriptionsAcknowledged
        | Method::Other => Idempotency::No,
    }
}

/// The backoff before a server that cannot be reached is tried again: half a second, doubling up to
/// half a minute.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The server could not be reached. Returns the pause before the next attempt.
    pub fn handle_failure(&mut self) -> Duration {
        let pause = FIRST_PAUSE * 2_u32.pow(self.failures.min(6));
        self.failures = self.failures.saturating_add(1);
        pause.min(LONGEST_PAUSE)
    }

    /// It has answered something.
    pub fn handle_success(&mut self) {
        self.failures = 0;
    }

    /// Returns how often the server could not be reached, one time after another.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Delivery {
        let message_info = MessageInfo::Request {
            id: WireId(1),
            method: Method::ToolsCall,
        };
        Delivery::new(message_info, idempotency(message_info))
    }

    fn list() -> Delivery {
        let message_info = MessageInfo::Request {
            id: WireId(1),
            method: Method::ToolsList,
        };
        Delivery::new(message_info, idempotency(message_info))
    }

    fn status(status: u16) -> AttemptOutcome {
        AttemptOutcome::Status {
            status,
            retry_after: None,
            in_session: true,
            text: None,
        }
    }

    fn reset() -> AttemptOutcome {
        AttemptOutcome::BrokenOff {
            what: "connection reset".into(),
        }
    }

    fn refused() -> AttemptOutcome {
        AttemptOutcome::Unreachable {
            what: "connection refused".into(),
        }
    }

    fn reason(next: RetryDecision) -> &'static str {
        let RetryDecision::Fail(failure) = next else {
            panic!("not failed: {next:?}");
        };
        failure.reason()
    }

    #[test]
    fn a_tool_call_that_may_have_been_carried_out_is_not_sent_again() {
        assert_eq!(reason(call().handle_outcome(reset())), "upstream_lost");
        assert_eq!(
            reason(call().handle_outcome(AttemptOutcome::StreamEnded)),
            "upstream_lost"
        );
        assert_eq!(reason(call().handle_outcome(status(503))), "upstream_unavailable");
        assert_eq!(
            reason(call().handle_outcome(AttemptOutcome::Silent {
                setting: "start_timeout",
                limit: Duration::from_secs(1)
            })),
            "timeout"
        );
    }

    #[test]
    fn a_message_that_was_not_begun_is_returned_for_any_method() {
        assert!(matches!(
            call().handle_outcome(refused()),
            RetryDecision::Return { .. }
        ));
        assert_eq!(call().handle_outcome(status(404)), RetryDecision::SessionLost);
    }

    #[test]
    fn a_list_is_asked_for_again_three_times_with_growing_pauses() {
        let mut delivery = list();
        for millis in [500, 1000, 2000] {
            assert_eq!(
                delivery.handle_outcome(reset()),
                RetryDecision::Again {
                    after: Duration::from_millis(millis)
                }
            );
        }
        assert_eq!(reason(delivery.handle_outcome(reset())), "upstream_lost");
    }

    #[test]
    fn retry_after_is_obeyed_up_to_a_limit() {
        let asked_to_wait = |seconds| {
            list().handle_outcome(AttemptOutcome::Status {
                status: 503,
                retry_after: Some(Duration::from_secs(seconds)),
                in_session: false,
                text: None,
            })
        };
        for seconds in [2, 30] {
            let after = Duration::from_secs(seconds);
            assert_eq!(asked_to_wait(seconds), RetryDecision::Again { after });
        }
        assert_eq!(reason(asked_to_wait(3600)), "upstream_unavailable");
    }

    #[test]
    fn a_numbered_stream_is_resumed_after_the_pause_its_server_named() {
        let mut delivery = call();
        delivery.handle_event(Some(&Bytes::from_static(b"7")), Some(Duration::from_millis(200)));
        assert_eq!(
            delivery.handle_outcome(AttemptOutcome::StreamEnded),
            RetryDecision::Resume {
                after: Duration::from_millis(200)
            }
        );
        assert_eq!(delivery.last_event(), Some(&Bytes::from_static(b"7")));
    }

    #[test]
    fn a_stream_that_brings_nothing_new_is_not_resumed_for_ever() {
        let mut delivery = call();
        delivery.handle_event(Some(&Bytes::from_static(b"7")), None);
        for _ in 0..RESUMPTIONS {
            assert!(matches!(
                delivery.handle_outcome(AttemptOutcome::StreamEnded),
                RetryDecision::Resume { .. }
            ));
            delivery.handle_event(Some(&Bytes::from_static(b"7")), None);
        }
        assert_eq!(
            reason(delivery.handle_outcome(AttemptOutcome::StreamEnded)),
            "upstream_lost"
        );
    }

    #[test]
    fn a_call_that_left_once_is_not_handed_back_when_the_server_goes_away_after_it() {
        let mut delivery = call();
        delivery.handle_event(Some(&Bytes::from_static(b"7")), None);
        assert!(matches!(
            delivery.handle_outcome(AttemptOutcome::StreamEnded),
            RetryDecision::Resume { .. }
        ));
        assert_eq!(reason(delivery.handle_outcome(refused())), "upstream_lost");
    }

    #[test]
    fn backoff_grows_from_half_a_second_to_half_a_minute() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u64> = (0..8)
            .map(|_| backoff.handle_failure().as_millis() as u64)
            .collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        backoff.handle_success();
        assert_eq!(backoff.handle_failure(), FIRST_PAUSE);
    }

    #[test]
    fn session_errors_differ_from_request_errors() {
        for (error, lost) in [
            (
                r#"{"code":-32600,"message":"no such session; initialize a new one"}"#,
                true,
            ),
            (r#"{"code":-32001,"message":"Session not found"}"#, true),
            (r#"{"code":-32001,"message":"Request timed out"}"#, false),
            (r#"{"code":-32602,"message":"no such session"}"#, false),
            (r#"{"code":-32601,"message":"Method not found"}"#, false),
            ("nonsense", false),
        ] {
            assert_eq!(names_lost_session(error), lost, "{error}");
        }
    }

    #[test]
    fn error_of_a_status_has_the_text_of_the_body() {
        let next = call().handle_outcome(AttemptOutcome::Status {
            status: 500,
            retry_after: None,
            in_session: true,
            text: Some("disk full".into()),
        });
        let RetryDecision::Fail(Failure::Upstream(upstream)) = next else {
            panic!("{next:?}");
        };
        assert_eq!(
            upstream.what,
            "the server answered with HTTP status 500: disk full"
        );
    }

    #[test]
    fn success_without_a_message_is_no_refusal() {
        let success = reason(call().handle_outcome(status(202)));
        let refusal = reason(call().handle_outcome(status(400)));
        assert_ne!(success, refusal);
        assert_eq!(reason(call().handle_outcome(status(200))), success);
        assert_eq!(reason(call().handle_outcome(status(299))), success);
        assert_eq!(reason(call().handle_outcome(status(300))), refusal);
        assert_eq!(reason(call().handle_outcome(status(500))), refusal);
    }

    #[test]
    fn failures_are_counted_until_the_server_answers() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.failures(), 0);
        backoff.handle_failure();
        backoff.handle_failure();
        assert_eq!(backoff.failures(), 2);
        backoff.handle_success();
        assert_eq!(backoff.failures(), 0);
    }

    #[test]
    fn call_of_an_idempotent_tool_is_sent_again() {
        let mut harmless = call();
        harmless.handle_idempotent();
        assert!(matches!(
            harmless.handle_outcome(reset()),
            RetryDecision::Again { .. }
        ));
    }

    #[test]
    fn status_is_final_unless_a_later_attempt_may_get_another() {
        for status in [300, 307, 400, 401, 404, 499] {
            assert!(is_definite(status), "{status}");
        }
        for status in [200, 299, 408, 425, 429, 500, 503] {
            assert!(!is_definite(status), "{status}");
        }
    }
}
