//! The journey of one message to a remote server, until its answer is there or none will come.
//!
//! What is to be done when an attempt fails is the [`Delivery`]'s business; this file sends, reads, and hands over
//! each message of the server as it arrives.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use protocol::backend_face::WireId;
use protocol::delivery::{Delivery, Fate, Next, Parcel, Post, repeatable};
use protocol::exchange::{Failure, Trouble};
use protocol::message::{Kind, Message};
use protocol::method::Method;
use protocol::object::Object;
use protocol::tool_schema::without_invalid;
use protocol::version::Era;
use protocol::wire::sse::SseParser;

use super::link::{Agreed, Link, session_of};
use super::server::{Content, MAX_ERROR_BODY, Unread, body, broken_off, content, retry_after};
use super::wire::Response;
use crate::settings::{Retry, Transport};

/// How long a message that has no answer may take to be taken.
const NOTE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the end of a stream is waited for after its answer, so that the connection can be used again.
const CLOSING: Duration = Duration::from_millis(100);

/// How an exchange ended, as far as others must know.
#[derive(Debug)]
pub(super) struct End {
    pub(super) parcel: Parcel,
    pub(super) news: News,
}

#[derive(Debug)]
pub(super) enum News {
    /// The server has taken the message, or answered it.
    Delivered,
    /// There will be no answer, and whoever waited knows.
    Failed,
    /// Nobody could be reached; the message was not begun.
    Unreachable(Arc<Trouble>),
    /// The server has forgotten us; the message was not begun. `first` to notice?
    SessionLost { first: bool },
    /// The session was lost before the message left.
    Withheld,
    /// What is there does not speak Streamable HTTP; the message was not begun.
    NotStreamable { status: u16 },
}

/// What came of an answer.
enum Taken {
    Whole,
    Not(Fate),
    Failed(Failure),
    NotStreamable(u16),
}

/// Carries one message.
pub(super) async fn carry(link: Arc<Link>, post: Post) -> End {
    let Post { line, parcel, .. } = post;
    let news = Journey {
        delivery: Delivery::new(parcel, repeatable(parcel)),
        link,
        parcel,
        line,
    }
    .travel()
    .await;
    End { parcel, news }
}

struct Journey {
    link: Arc<Link>,
    line: Bytes,
    parcel: Parcel,
    delivery: Delivery,
}

impl Journey {
    async fn travel(mut self) -> News {
        let mut resumed: Option<Bytes> = None;
        loop {
            let agreed = self.link.agreed();
            let legacy = self.link.lane.era() == Era::Legacy;
            if legacy && agreed.is_lost() && resumed.is_none() && !self.is_handshake() {
                return News::Withheld;
            }
            let outbound = match &resumed {
                None => self.link.post(&self.line, &agreed),
                Some(last_event) => self.link.get(&agreed, Some(last_event)),
            };
            let sent = match self.patience() {
                Some(limit) => tokio::time::timeout(limit, self.link.server.send(outbound))
                    .await
                    .unwrap_or(Err(Fate::Silent { limit })),
                None => self.link.server.send(outbound).await,
            };
            let taken = match sent {
                Ok(response) => self.take(response, &agreed, resumed.is_some()).await,
                Err(fate) => Taken::Not(fate),
            };
            let next = match taken {
                Taken::Whole => return News::Delivered,
                Taken::Failed(failure) => Next::Fail(failure),
                Taken::NotStreamable(status) => return News::NotStreamable { status },
                Taken::Not(fate) => {
                    self.look_for_harm();
                    self.delivery.handle_fate(fate)
                }
            };
            match next {
                Next::Again { after } => tokio::time::sleep(after).await,
                Next::Resume { after, last_event } => {
                    tokio::time::sleep(after).await;
                    resumed = Some(last_event);
                }
                Next::Return { trouble } => return News::Unreachable(trouble),
                Next::SessionLost => {
                    let first = self.link.forget(&agreed);
                    return News::SessionLost { first };
                }
                Next::Fail(failure) => {
                    match self.parcel {
                        Parcel::Request { id, .. } => self.link.lane.undelivered(id, failure),
                        Parcel::Note { method } => tracing::warn!(
                            destination = %self.link.lane.destination(),
                            ?method,
                            reason = failure.reason(),
                            "the server did not take a message"
                        ),
                    }
                    return News::Failed;
                }
            }
        }
    }

    /// Whether the message may be sent again after it may have been carried out. Who configured the server may say
    /// so, and so may a tool of itself; it is asked only when it matters.
    fn look_for_harm(&mut self) {
        let harmless = match (self.link.server.spec().retry, self.parcel) {
            (Retry::Always, _) => true,
            (
                Retry::Safe,
                Parcel::Request {
                    method: Method::ToolsCall,
                    ..
                },
            ) => {
                let message = Message::scan(self.line.clone());
                message.is_ok_and(|message| self.link.lane.is_repeatable(&message))
            }
            (Retry::Safe, Parcel::Request { .. } | Parcel::Note { .. }) => false,
        };
        if harmless {
            self.delivery.handle_harmless();
        }
    }

    fn is_handshake(&self) -> bool {
        matches!(
            self.parcel,
            Parcel::Request {
                method: Method::Initialize,
                ..
            }
        )
    }

    /// How long the head of an answer is waited for. Whoever asked something sees to that himself.
    fn patience(&self) -> Option<Duration> {
        match self.parcel {
            Parcel::Note { .. } => Some(NOTE_TIMEOUT),
            Parcel::Request {
                method: Method::Initialize | Method::ServerDiscover,
                ..
            } => Some(self.link.lane.start_timeout()),
            Parcel::Request { .. } => None,
        }
    }

    async fn take(&mut self, response: Response, agreed: &Agreed, resuming: bool) -> Taken {
        let status = response.status();
        if !status.is_success() {
            return self.take_refusal(response, agreed, resuming).await;
        }
        let Parcel::Request { id, method } = self.parcel else {
            self.link.server.settle(Transport::StreamableHttp);
            return Taken::Whole;
        };
        match content(&response) {
            Content::Json if !resuming => {
                let session = session_of(&response);
                match body(response, self.link.max_message_bytes).await {
                    Ok(answer) => self.hand_over(answer, id, method, session),
                    Err(Unread::BrokenOff(what)) => Taken::Not(Fate::BrokenOff { what }),
                    Err(Unread::TooLarge(length)) => Taken::Failed(self.too_large(length)),
                }
            }
            Content::Events => self.follow(response, id, method).await,
            Content::Json | Content::Other if status == StatusCode::OK => Taken::Not(Fate::Nonsense {
                what: "the server answered with something that is no message".into(),
            }),
            Content::Json | Content::Other => Taken::Not(Fate::Status {
                status: status.as_u16(),
                retry_after: None,
                in_session: false,
            }),
        }
    }

    fn too_large(&self, length: u64) -> Failure {
        Failure::TooLarge {
            length,
            limit: self.link.max_message_bytes,
        }
    }

    /// Hands over the one message that is the answer.
    fn hand_over(
        &mut self,
        answer: Bytes,
        id: WireId,
        method: Method,
        session: Option<http::HeaderValue>,
    ) -> Taken {
        self.note(&answer, method, session);
        self.link.hear(self.offered(answer, method), Some(id));
        if self.link.lane.is_unanswered(id) {
            return Taken::Not(Fate::Nonsense {
                what: "the server answered another request, or none".into(),
            });
        }
        Taken::Whole
    }

    /// Hands over the messages of a stream as they come.
    async fn follow(&mut self, mut response: Response, id: WireId, method: Method) -> Taken {
        let session = session_of(&response);
        let mut parser = SseParser::new(self.link.max_message_bytes);
        let mut begun = false;
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => parser.push(&chunk),
                Ok(None) => return Taken::Not(Fate::StreamEnded),
                Err(what) => {
                    let what = broken_off(&what);
                    tracing::debug!(destination = %self.link.lane.destination(), %what, "event stream");
                    return Taken::Not(Fate::StreamEnded);
                }
            }
            loop {
                let event = match parser.next() {
                    Ok(Some(event)) => event,
                    Ok(None) => break,
                    Err(_) => {
                        let length = self.link.max_message_bytes as u64 + 1;
                        return Taken::Failed(self.too_large(length));
                    }
                };
                if !event.is_message() || event.data.is_empty() {
                    continue;
                }
                self.note(&event.data, method, session.clone());
                self.link.hear(self.offered(event.data, method), Some(id));
                if !self.link.lane.is_unanswered(id) {
                    // The server is about to end the stream; a connection that was read to its end is used again.
                    let _ = tokio::time::timeout(CLOSING, response.chunk()).await;
                    return Taken::Whole;
                }
            }
            let retry = parser.retry().map(Duration::from_millis);
            self.delivery.handle_event(parser.last_event_id(), retry);
            if !begun && parser.last_event_id().is_some() {
                begun = true;
                self.link.lane.begun(id);
            }
        }
    }

    /// What the link itself learns from a message that passes.
    fn note(&self, answer: &Bytes, method: Method, session: Option<http::HeaderValue>) {
        match method {
            Method::Initialize if kind_of(answer) == Some(Kind::Result) => {
                self.link.server.settle(Transport::StreamableHttp);
                self.link.agree(session, answer);
            }
            Method::ServerDiscover => self.link.server.settle(Transport::StreamableHttp),
            _ => {}
        }
    }

    /// The answer as it may be shown: a client over HTTP, which is what we are to the server, must not offer tools
    /// whose arguments could not be mirrored.
    fn offered(&self, answer: Bytes, method: Method) -> Bytes {
        if method != Method::ToolsList || self.link.lane.era() != Era::Modern {
            return answer;
        }
        let Some((offered, withheld)) = without_invalid(&answer) else {
            return answer;
        };
        for tool in withheld {
            tracing::warn!(
                destination = %self.link.lane.destination(),
                tool = %tool.name,
                error = %tool.error,
                "a tool is not offered"
            );
        }
        offered.into()
    }

    async fn take_refusal(&mut self, response: Response, agreed: &Agreed, resuming: bool) -> Taken {
        let status = response.status().as_u16();
        if resuming {
            return Taken::Not(Fate::Nonsense {
                what: format!(
                    "the server broke off its event stream and would not resume it (HTTP status {status})"
                ),
            });
        }
        let wait = retry_after(&response);
        let fate = Fate::Status {
            status,
            retry_after: wait,
            in_session: agreed.has_session(),
        };
        // These two say nothing about the message, whatever body they have.
        let about_session = status == 404 && agreed.has_session();
        if about_session || matches!(status, 401 | 403) {
            return Taken::Not(fate);
        }
        // No message is refused in this way: nobody takes messages here, whatever the body says.
        if status == 405 && self.is_opening() {
            return Taken::NotStreamable(status);
        }
        let words = body(response, MAX_ERROR_BODY).await.ok();
        let error = words.and_then(|words| error_in(&words));
        let Parcel::Request { id, method } = self.parcel else {
            return Taken::Not(fate);
        };
        self.look_for_harm();
        if matches!(status, 429 | 502..=504) && self.delivery.may_go_again() {
            return Taken::Not(fate);
        }
        match error {
            // An error body belongs to the request it answers, whatever id it names.
            Some(error) => self.hand_over(with_id(&error, id), id, method, None),
            None if self.is_opening() && matches!(status, 400 | 404 | 405) => Taken::NotStreamable(status),
            None => Taken::Not(fate),
        }
    }

    /// Whether this is the first thing said to a server of which the transport is not known yet.
    fn is_opening(&self) -> bool {
        self.link.server.transport() == Transport::Auto
    }
}

fn kind_of(answer: &Bytes) -> Option<Kind> {
    Message::scan(answer.clone()).ok().map(|message| message.kind())
}

/// The JSON-RPC error that a body holds, as its members.
fn error_in(body: &Bytes) -> Option<String> {
    let object = Object::parse(body)?;
    let error = object.get("error")?;
    let members = Object::parse(error.as_bytes())?;
    members.get("code")?.parse::<i64>().ok()?;
    Some(error.to_owned())
}

fn with_id(error: &str, id: WireId) -> Bytes {
    Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, id.0))
}
