//! The exchange of one message with a remote server, until its answer has arrived or none will
//! come.
//!
//! [`Delivery`] decides what follows from a failed attempt. This file sends, reads, and hands over
//! each message of the server as it arrives.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use protocol::backend_face::WireId;
use protocol::delivery::{
    AttemptOutcome, Delivery, MessageInfo, PostRequest, RetryDecision, idempotency, names_lost_session,
};
use protocol::exchange::{BackendError, Failure, Upstream, UpstreamFault};
use protocol::message::{Kind, Message};
use protocol::method::Method;
use protocol::negotiation::era_of_first_message;
use protocol::object::Object;
use protocol::tool_schema::without_invalid;
use protocol::version::{Era, HeaderStyle, SessionStyle};
use protocol::wire::sse::SseParser;

use super::http_client::Response;
use super::remote_session::{Negotiated, RemoteSession, session_of};
use super::server::{
    BodyError, Content, body, broken_off, content, error_body, error_in, retry_after, text_of,
};
use crate::settings::{Retry, Transport};

/// How long the server may take to accept a message without an answer.
const NOTE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the end of a stream is waited for after its answer, so that the connection can be used
/// again.
const CLOSING: Duration = Duration::from_millis(100);

/// How an exchange ended, for the supervisor.
#[derive(Debug)]
pub(super) struct End {
    pub(super) message_info: MessageInfo,
    pub(super) news: News,
}

#[derive(Debug)]
pub(super) enum News {
    /// The server has accepted the message, or answered it.
    Delivered,
    /// There will be no answer, and the waiting call has failed.
    Failed,
    /// The server could not be reached; the message was not begun.
    Unreachable(Arc<BackendError>),
    /// The server has forgotten the session; the message was not begun. `first` is whether no other
    /// exchange has noticed before.
    SessionLost { first: bool },
    /// The session was lost before the message left.
    Withheld,
    /// The server does not speak Streamable HTTP; the message was not begun.
    NotStreamable { refused: StreamableRefusal },
}

/// The status with which Streamable HTTP was refused, and the text of the body.
#[derive(Debug, Clone)]
pub(super) struct StreamableRefusal {
    pub(super) status: u16,
    pub(super) text: Option<String>,
}

/// The result of one attempt.
enum AttemptResult {
    Whole,
    Not(AttemptOutcome),
    Failed(Failure),
    NotStreamable(StreamableRefusal),
}

/// Sends one message, with retries, and reads its answer.
pub(super) async fn send(session: &RemoteSession, post: PostRequest) -> End {
    let message_info = post.message_info;
    let mut exchange = Exchange {
        delivery: Delivery::new(message_info, idempotency(message_info)),
        session,
        line: post.line,
    };
    let news = exchange.run().await;
    End { message_info, news }
}

struct Exchange<'a> {
    session: &'a RemoteSession,
    line: Bytes,
    delivery: Delivery,
}

impl Exchange<'_> {
    fn message_info(&self) -> MessageInfo {
        self.delivery.message_info()
    }

    /// Returns the era of the message's words. Until an era is agreed on, first messages of both
    /// may be under way.
    fn era(&self) -> Era {
        let first_message = match self.message_info() {
            MessageInfo::Request { method, .. } => era_of_first_message(method),
            MessageInfo::Note { .. } => None,
        };
        first_message.unwrap_or_else(|| self.session.instance.era())
    }

    async fn run(&mut self) -> News {
        let mut resuming = false;
        loop {
            let negotiated = self.session.negotiated();
            let in_session = self.era().sessions() == SessionStyle::Handshake;
            if in_session && negotiated.is_lost() && !resuming && !self.is_handshake() {
                return News::Withheld;
            }
            let taken = self.attempt(&negotiated, resuming).await;
            let next = match taken {
                AttemptResult::Whole => return News::Delivered,
                AttemptResult::Failed(failure) => RetryDecision::Fail(failure),
                AttemptResult::NotStreamable(refused) => return News::NotStreamable { refused },
                AttemptResult::Not(outcome) => {
                    self.check_idempotency();
                    self.delivery.handle_outcome(outcome)
                }
            };
            let after = match next {
                RetryDecision::Again { after } => after,
                RetryDecision::Resume { after } => {
                    resuming = true;
                    after
                }
                RetryDecision::Return { backend_error } => return News::Unreachable(backend_error),
                RetryDecision::SessionLost => {
                    let first = self.session.forget(&negotiated);
                    return News::SessionLost { first };
                }
                RetryDecision::Fail(failure) => {
                    let failure = self.located(failure).await;
                    match self.message_info() {
                        MessageInfo::Request { id, .. } => self.session.instance.undelivered(id, failure),
                        MessageInfo::Note { method } => tracing::warn!(
                            destination = %self.session.instance.destination(),
                            ?method,
                            reason = failure.reason(),
                            "the server did not accept a message"
                        ),
                    }
                    return News::Failed;
                }
            };
            tokio::time::sleep(after).await;
        }
    }

    /// Sends it once, or resumes its stream. Futures that a plain call does not need are boxed here
    /// and below: each idle worker would keep memory for them.
    async fn attempt(&mut self, negotiated: &Negotiated, resuming: bool) -> AttemptResult {
        let mut outbound = match resuming {
            false => self.session.post(&self.line, negotiated, self.era()),
            true => self.session.get(negotiated, self.delivery.last_event()),
        };
        if self.is_first_message() {
            outbound.handshake_of = Some(Arc::clone(&self.session.instance));
        }
        let sent = match self.head_timeout() {
            Some(limit) => Box::pin(tokio::time::timeout(limit, self.session.server.send(&outbound)))
                .await
                .unwrap_or(Err(AttemptOutcome::Silent {
                    setting: "start_timeout",
                    limit,
                })),
            None => self.session.server.send(&outbound).await,
        };
        drop(outbound);
        match sent {
            Ok(mut response) => self.take(&mut response, negotiated, resuming).await,
            Err(outcome) => AttemptResult::Not(outcome),
        }
    }

    /// Whether the message may be sent again after it may have been carried out. The operator's
    /// `retry` setting or the tool's own annotation may allow it; both are consulted only when
    /// needed.
    fn check_idempotency(&mut self) {
        let harmless = match (self.session.server.spec().retry, self.message_info()) {
            (Retry::Always, _) => true,
            (
                Retry::Safe,
                MessageInfo::Request {
                    method: Method::ToolsCall,
                    ..
                },
            ) => {
                let message = Message::scan(self.line.clone());
                message.is_ok_and(|message| self.session.instance.is_repeatable(&message))
            }
            (Retry::Safe, MessageInfo::Request { .. } | MessageInfo::Note { .. }) => false,
        };
        if harmless {
            self.delivery.handle_idempotent();
        }
    }

    fn is_handshake(&self) -> bool {
        matches!(
            self.message_info(),
            MessageInfo::Request {
                method: Method::Initialize,
                ..
            }
        )
    }

    /// Returns how long the head of an answer is waited for. The multiplexer has a timeout for
    /// every other request.
    fn head_timeout(&self) -> Option<Duration> {
        match self.message_info() {
            MessageInfo::Note { .. } => Some(NOTE_TIMEOUT),
            MessageInfo::Request {
                method: Method::Initialize | Method::ServerDiscover,
                ..
            } => Some(self.session.instance.start_timeout()),
            MessageInfo::Request { .. } => None,
        }
    }

    async fn take(
        &mut self,
        response: &mut Response,
        negotiated: &Negotiated,
        resuming: bool,
    ) -> AttemptResult {
        let status = response.status();
        if !status.is_success() {
            return Box::pin(self.take_refusal(response, negotiated, resuming)).await;
        }
        let MessageInfo::Request { id, method } = self.message_info() else {
            self.session.server.learn_transport(Transport::StreamableHttp);
            return AttemptResult::Whole;
        };
        match content(response) {
            Content::Json if !resuming => {
                let session = session_of(response);
                match body(response, self.session.max_message_bytes).await {
                    Ok(answer) => self.hand_over(answer, id, method, session),
                    Err(BodyError::BrokenOff(what)) => AttemptResult::Not(AttemptOutcome::BrokenOff { what }),
                    Err(BodyError::TooLarge(length)) => AttemptResult::Failed(self.too_large(length)),
                }
            }
            Content::Events => Box::pin(self.follow(response, id, method)).await,
            Content::Json | Content::Other if status == StatusCode::OK => {
                AttemptResult::Not(AttemptOutcome::Invalid {
                    what: "the server answered with something that is no message".into(),
                })
            }
            Content::Json | Content::Other => AttemptResult::Not(AttemptOutcome::Status {
                status: status.as_u16(),
                retry_after: None,
                in_session: false,
                text: None,
            }),
        }
    }

    fn too_large(&self, length: u64) -> Failure {
        Failure::TooLarge {
            length,
            limit: self.session.max_message_bytes,
        }
    }

    /// Hands over the one message that is the answer.
    fn hand_over(
        &mut self,
        answer: Bytes,
        id: WireId,
        method: Method,
        session: Option<http::HeaderValue>,
    ) -> AttemptResult {
        self.note(&answer, method, session);
        let answer = self.offered(answer, method);
        if !self.session.instance.receive_answer(id, [answer]) {
            return AttemptResult::Not(AttemptOutcome::Invalid {
                what: "the server answered another request, or none".into(),
            });
        }
        AttemptResult::Whole
    }

    /// Hands over the messages of a stream as they come.
    async fn follow(&mut self, response: &mut Response, id: WireId, method: Method) -> AttemptResult {
        let session = session_of(response);
        let mut parser = SseParser::new(self.session.max_message_bytes);
        // A burst of progress fits.
        let mut messages = Vec::with_capacity(16);
        let mut begun = false;
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => parser.push(&chunk),
                Ok(None) => return AttemptResult::Not(AttemptOutcome::StreamEnded),
                Err(what) => {
                    let what = broken_off(&what);
                    tracing::debug!(destination = %self.session.instance.destination(), %what, "event stream failed");
                    return AttemptResult::Not(AttemptOutcome::StreamEnded);
                }
            }
            // What came together is handed over together.
            let whole = loop {
                match parser.next() {
                    Ok(Some(event)) if event.is_message() && !event.data.is_empty() => {
                        self.note(&event.data, method, session.clone());
                        messages.push(self.offered(event.data, method));
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break true,
                    Err(_) => break false,
                }
            };
            if !messages.is_empty() && self.session.instance.receive_answer(id, messages.drain(..)) {
                close(response).await;
                return AttemptResult::Whole;
            }
            self.session.instance.delivered().await;
            if !whole {
                let length = self.session.max_message_bytes as u64 + 1;
                return AttemptResult::Failed(self.too_large(length));
            }
            let retry = parser.retry().map(Duration::from_millis);
            self.delivery.handle_event(parser.last_event_id(), retry);
            if !begun && parser.last_event_id().is_some() {
                begun = true;
                self.session.instance.begun(id);
            }
        }
    }

    /// Notes the transport and the session that the answer to a first message shows.
    fn note(&self, answer: &Bytes, method: Method, session: Option<http::HeaderValue>) {
        match method {
            Method::Initialize if kind_of(answer) == Some(Kind::Result) => {
                self.session.server.learn_transport(Transport::StreamableHttp);
                self.session.agree(session, answer);
            }
            // A refusal shows nothing: any HTTP server may refuse a POST with a JSON-RPC error.
            Method::ServerDiscover if kind_of(answer) == Some(Kind::Result) => {
                self.session.server.learn_transport(Transport::StreamableHttp);
            }
            _ => {}
        }
    }

    /// Returns the answer as it may be shown: a client over HTTP, which is what we are to the
    /// server, must not offer tools whose arguments could not be mirrored.
    fn offered(&self, answer: Bytes, method: Method) -> Bytes {
        if method != Method::ToolsList || self.session.instance.era().post_headers() != HeaderStyle::Mirrored
        {
            return answer;
        }
        let Some((offered, withheld)) = without_invalid(&answer) else {
            return answer;
        };
        for tool in withheld {
            tracing::warn!(
                destination = %self.session.instance.destination(),
                tool = %tool.name,
                error = %tool.error,
                "a tool is not offered"
            );
        }
        offered.into()
    }

    async fn take_refusal(
        &mut self,
        response: &mut Response,
        negotiated: &Negotiated,
        resuming: bool,
    ) -> AttemptResult {
        let status = response.status().as_u16();
        if resuming {
            return AttemptResult::Not(AttemptOutcome::Invalid {
                what: format!(
                    "the server broke off its event stream and would not resume it (HTTP status {status})"
                ),
            });
        }
        let wait = retry_after(response);
        let words = error_body(response).await;
        let error = error_in(&words);
        let text = text_of(&words, error.as_deref());
        let outcome = AttemptOutcome::Status {
            status,
            retry_after: wait,
            in_session: negotiated.has_session(),
            text: text.clone(),
        };
        // These two statuses tell nothing about the message, with any body.
        if matches!(status, 401 | 403) {
            return AttemptResult::Not(outcome);
        }
        let refused = StreamableRefusal { status, text };
        // This status never refuses a single message: the address takes none, with any body.
        if status == 405 && self.is_opening() {
            return AttemptResult::NotStreamable(refused);
        }
        let MessageInfo::Request { id, method } = self.message_info() else {
            return AttemptResult::Not(outcome);
        };
        if status == 404 && negotiated.has_session() {
            // The session is unknown, unless the server answers this very request: then it may have
            // been carried out.
            let answer = error.filter(|error| answers(&words, id) && !names_lost_session(error));
            return match answer {
                Some(error) => self.hand_over(with_id(&error, id), id, method, None),
                None => AttemptResult::Not(outcome),
            };
        }
        self.check_idempotency();
        if matches!(status, 429 | 502..=504) && self.delivery.may_go_again() {
            return AttemptResult::Not(outcome);
        }
        match error {
            // An error body belongs to the request it answers, even if it names another id.
            Some(error) => self.hand_over(with_id(&error, id), id, method, None),
            None if self.is_opening() && matches!(status, 400 | 404 | 405) => {
                AttemptResult::NotStreamable(refused)
            }
            None => AttemptResult::Not(outcome),
        }
    }

    /// Names the address in the failure of a handshake, and another one beside it that has a
    /// server.
    async fn located(&self, failure: Failure) -> Failure {
        let Failure::Upstream(upstream) = &failure else {
            return failure;
        };
        // The answer to `server/discover` shows nothing about the address, if `initialize` follows.
        if !self.is_first_message() || (!self.is_handshake() && self.session.instance.falls_back()) {
            return failure;
        }
        let looks_wrong = match upstream.fault {
            UpstreamFault::Refused | UpstreamFault::Invalid => true,
            UpstreamFault::Unauthorized => false,
            UpstreamFault::Lost | UpstreamFault::Unsafe => return failure,
        };
        let what = Box::pin(self.session.server.located(&upstream.what, looks_wrong)).await;
        Failure::Upstream(Arc::new(Upstream::new(upstream.fault, what)))
    }

    /// Returns whether this is the first message to a server that is not known to speak Streamable
    /// HTTP. Its answer to `server/discover` alone shows nothing about its transport, if
    /// `initialize` follows.
    fn is_opening(&self) -> bool {
        let discovers = matches!(
            self.message_info(),
            MessageInfo::Request {
                method: Method::ServerDiscover,
                ..
            }
        );
        if discovers && self.session.instance.falls_back() {
            return false;
        }
        match self.session.server.transport() {
            Transport::Auto => true,
            // Another instance has learnt it meanwhile.
            Transport::Sse => self.is_first_message(),
            Transport::StreamableHttp => false,
        }
    }

    fn is_first_message(&self) -> bool {
        matches!(
            self.message_info(),
            MessageInfo::Request {
                method: Method::Initialize | Method::ServerDiscover,
                ..
            }
        )
    }
}

/// The server is about to end the stream, or has; a connection that was read to its end is used
/// again.
async fn close(response: &mut Response) {
    let over = poll_fn(|context| Poll::Ready(response.poll_chunk(context).is_ready())).await;
    if !over {
        let _ = Box::pin(tokio::time::timeout(CLOSING, response.chunk())).await;
    }
}

fn kind_of(answer: &Bytes) -> Option<Kind> {
    Message::scan(answer.clone()).ok().map(|message| message.kind())
}

/// Returns whether a body names this request as the one it answers.
fn answers(body: &Bytes, id: WireId) -> bool {
    let object = Object::parse(body);
    object.is_some_and(|object| {
        object
            .get("id")
            .is_some_and(|named| named.trim() == id.0.to_string())
    })
}

fn with_id(error: &str, id: WireId) -> Bytes {
    Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, id.0))
}
