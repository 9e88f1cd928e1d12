//! The frontend of the old transport (2024-11-05, HTTP with SSE), for clients that know no newer
//! one.
//!
//! `GET /{d}/sse` opens a client's one stream, whose first event names where to post; `POST
//! /{d}/message` takes the client's messages and answers 202; all messages to the client are events
//! of the stream. The session is the same as that of `/{d}/mcp`, with [`Accepts::OneStream`]: only
//! where answers go differs. When the stream ends the session ends, since it cannot be resumed.

mod stream;

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode, Uri};
use protocol::client_face::legacy::{self, Classified};
use protocol::client_face::modern;
use protocol::exchange::{CallKey, Principal};
use protocol::message::{Kind, Member, Message};
use protocol::method::Method as McpMethod;
use protocol::session::Accepts;
use protocol::version::Version;
use uuid::Uuid;

use super::body::Body;
use super::forwarding::Outgoing;
use super::head::Head;
use super::http::{RefusedRequest, RequestContext, refuse_message};
use super::placed::Needs;
use super::request_body::RequestBody;
use crate::endpoint::{Endpoint, OldStream, SessionOpen, SessionUse};
use crate::frontend::respond;
use crate::guard::limits::Permit;
use crate::panics;
use crate::peer::Target;
use crate::record::{Ending, Record};
use crate::reply::Refusal;
use crate::session_handle::{Acceptance, Answered, SessionHandle};
use crate::tasks;
pub(crate) use stream::OldEvents;

/// What a session holds for a reader that falls behind: never less than so many of the largest
/// messages.
const HELD_MESSAGES: usize = 2;

/// The two paths of the old transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OldPath {
    /// `/{d}/sse`.
    Stream,
    /// `/{d}/message`.
    Message,
}

impl OldPath {
    pub(super) const fn methods(self) -> &'static str {
        match self {
            Self::Stream => "GET",
            Self::Message => "POST",
        }
    }
}

impl RequestContext<'_> {
    pub(super) async fn old_transport(
        &self,
        path: OldPath,
        parts: &Parts,
        body: &mut RequestBody,
    ) -> Response<Body> {
        if !self.destination.serves_old_transport() {
            let destination = self.destination.name.to_string();
            return Refusal::Gone { destination }.respond(None);
        }
        match (path, &parts.method) {
            (OldPath::Stream, &Method::GET) => self
                .open_old_stream(parts)
                .await
                .unwrap_or_else(|refusal| self.refuse("GET", &refusal.into())),
            (OldPath::Message, &Method::POST) => panics::contained(self.take_old_message(parts, body))
                .await
                .unwrap_or_else(|refused| self.refuse("POST", &refused)),
            (path, _) => Refusal::WrongMethod {
                allow: path.methods(),
            }
            .respond(None),
        }
    }

    async fn open_old_stream(&self, parts: &Parts) -> Result<Response<Body>, Refusal> {
        let head = Head::of(&parts.headers);
        self.count_request(&head)?;
        head.check_accepts_events()?;
        let mut permit = None;
        let request = Outgoing {
            method: &Method::GET,
            uri: Some(&parts.uri),
            headers: &parts.headers,
            message: None,
            permit: &mut permit,
        };
        if self.destination.placed_server().is_some() {
            if let Some(response) = self.forward_placed(Needs::Anything, request).await? {
                return Ok(response);
            }
        } else if self.gateway.is_draining() && self.gateway.peers.is_some() {
            return self.forward_to_successor(Target::New, request).await;
        }
        if self.gateway.is_draining() {
            return Err(Refusal::Draining);
        }
        let destination = self.destination;
        destination.check_open()?;
        // Here a stream is a session.
        let limiter = &self.gateway.limiter;
        let sharer = self.sharer();
        let places = [limiter.stream(sharer.as_ref())?, self.session_permit().await?];
        let stream =
            destination
                .old_streams
                .open(self.principal(), self.began, destination.max_sessions())?;
        let events = OldEvents::new(Arc::clone(destination), stream, self.gateway.clock, places)
            .behind_path(&self.config.public_path)
            .on_replica(self.process())
            .for_at_most(self.caller.time_left(SystemTime::now()));
        Ok(respond::events(Body::old(events)))
    }

    async fn take_old_message(
        &self,
        parts: &Parts,
        body: &mut RequestBody,
    ) -> Result<Response<Body>, RefusedRequest> {
        let head = Head::of(&parts.headers);
        // Under overload most requests end here: nothing of them was read but their heads.
        self.count_request(&head)?;
        let mut place = self.gateway.limiter.call(self.call_sharer().as_ref())?;
        if self.counts_in_fleet() {
            Box::pin(self.call_in_fleet(Some(&mut place))).await?;
        }
        head.check_length()?;
        head.check_content()?;
        self.check_recorded()?;
        let id = stream_id(&parts.uri)?;
        let principal = self.principal();
        let found = self
            .destination
            .candidates(SessionUse::FollowUp)
            .find_map(|destination| {
                let stream = destination.old_streams.find(id, &principal)?;
                Some((destination, stream))
            });
        let Some((destination, stream)) = found else {
            return match self.replica_of_stream(&parts.uri) {
                Some(process) => Box::pin(self.forward_old_message(process, parts, body, place)).await,
                None => Err(Refusal::UnknownSession.into()),
            };
        };
        if destination.is_placed_elsewhere() {
            // Its stream ends with the server.
            return Err(Refusal::UnknownSession.into());
        }
        if let Some(handle) = stream.handle() {
            // Its session is named in the query, where the usual look at the headers does not see
            // it.
            let limiter = &self.gateway.limiter;
            limiter.session_request(self.began, &handle.requests)?;
        }
        let (message, request_bytes) = self.read_message(body).await?;
        let is_for_draining = message.kind() == Kind::Request && !destination.is_present();
        let accepted = match is_for_draining {
            true => Err(Refusal::UnknownSession),
            false => self.receive_from_stream(&stream, &parts.headers, &message, place),
        };
        let Err(refusal) = accepted else {
            return Ok(respond::empty(StatusCode::ACCEPTED));
        };
        let refused = RefusedRequest {
            refusal,
            message: Some(message),
            request_bytes,
        };
        // Some clients of this transport do not look at the status of a POST: a request that has an
        // id is answered where they do look.
        let was_sent = refused
            .message
            .as_ref()
            .filter(|message| message.has_valid_id())
            .and_then(|message| message.raw(Member::Id))
            .is_some_and(|id| stream.send(&refused.refusal.body(Some(id))));
        if !was_sent {
            return Err(refused);
        }
        // For the record; the client reads it on its stream.
        let _ = self.refuse("POST", &refused);
        Ok(respond::empty(StatusCode::ACCEPTED))
    }

    /// Reads the whole body. Returns the message that it is, and its size in bytes.
    async fn read_message(&self, body: &mut RequestBody) -> Result<(Message, u64), RefusedRequest> {
        let body = body.read(self.destination.max_message_bytes()).await?;
        let request_bytes = body.len() as u64;
        match Message::scan(body) {
            Ok(message) => Ok((message, request_bytes)),
            Err(error) => Err(RefusedRequest {
                refusal: Refusal::NotAMessage(error),
                message: None,
                request_bytes,
            }),
        }
    }

    /// Returns the number of this replica, if there are others.
    fn process(&self) -> Option<u64> {
        let fleet = self.destination.fleet().filter(|_| self.gateway.peers.is_some());
        fleet.map(|fleet| fleet.node().id.process())
    }

    /// Returns the other replica whose stream a message is for.
    fn replica_of_stream(&self, uri: &Uri) -> Option<u64> {
        let own = self.process()?;
        replica(uri).filter(|process| *process != own && self.forwarded.is_none())
    }

    /// Lets the replica take a message that has the client's stream.
    async fn forward_old_message(
        &self,
        process: u64,
        parts: &Parts,
        body: &mut RequestBody,
        place: Permit,
    ) -> Result<Response<Body>, RefusedRequest> {
        let (message, request_bytes) = self.read_message(body).await?;
        let request = Outgoing {
            method: &Method::POST,
            uri: Some(&parts.uri),
            headers: &parts.headers,
            message: Some(&message),
            permit: &mut Some(place),
        };
        // A stream ends with its replica, and the session with it.
        let forwarding = self.forward_to_process(process, request, Refusal::UnknownSession);
        forwarding.await.map_err(|refusal| RefusedRequest {
            refusal,
            message: Some(message.clone()),
            request_bytes,
        })
    }

    /// Takes a client's message. The first one opens the session.
    fn receive_from_stream(
        &self,
        stream: &Arc<OldStream>,
        headers: &HeaderMap,
        message: &Message,
        place: Permit,
    ) -> Result<(), Refusal> {
        self.permit(message)?;
        self.check_open(message)?;
        // This transport is older than the modern era, for every server. Clients of both eras ask
        // this first and fall back to `initialize` by the error, so it must not open a session.
        if message.kind() == Kind::Request && message.method() == McpMethod::ServerDiscover {
            return Err(Refusal::Modern(modern::InvalidRequest::NoSuchMethod));
        }
        let classified = legacy::lift(message).map_err(Refusal::InvalidRequest)?;
        let handle = match (stream.handle(), classified) {
            (Some(handle), _) => handle,
            (None, Classified::Initialize) => {
                let pending = PendingInitialize {
                    destination: Arc::clone(self.destination),
                    stream: Arc::clone(stream),
                    principal: self.principal(),
                    headers: headers.clone(),
                    message: message.clone(),
                };
                let (handle, call) = pending.open()?;
                tasks::spawn("http_sse initialize", pending.conclude(handle, call));
                return Ok(());
            }
            // A client that came back to a stream it had lost may think that it is still in its
            // session.
            (None, Classified::Ping | Classified::Request(_)) => {
                let opening = SessionOpen::Implicit(Version::ASSUMED);
                let (handle, _) = open(self.destination, stream, self.principal(), headers, opening)?;
                stream.begin_reading(&handle);
                handle
            }
            // Without a session it concerns no client.
            (
                None,
                Classified::Ready | Classified::Cancel(_) | Classified::Notice | Classified::Answer(_),
            ) => {
                return Ok(());
            }
        };
        if message.kind() == Kind::Request {
            self.destination.unshare(&handle);
        }
        match handle
            .take(message.clone(), Accepts::OneStream, Some(place))
            .map_err(refuse_message)?
        {
            Acceptance::Noted => {
                let status = StatusCode::ACCEPTED.as_u16();
                let elapsed = self.elapsed();
                handle.record(&Record::of_message(message, status, Ending::Done, elapsed, None));
            }
            // Recorded when it ends.
            Acceptance::Call(_) => {}
            Acceptance::Answered(body) => handle.send(&body),
        }
        Ok(())
    }
}

/// Opens a session for a stream.
fn open(
    destination: &Arc<Endpoint>,
    stream: &OldStream,
    principal: Principal,
    headers: &HeaderMap,
    opening: SessionOpen,
) -> Result<(Arc<SessionHandle>, Option<CallKey>), Refusal> {
    let mut limits = destination.session_limits();
    let largest = HELD_MESSAGES * destination.max_message_bytes();
    limits.retention.bytes = limits.retention.bytes.max(largest);
    let (handle, call) = destination.open_within(principal, headers, opening, limits)?;
    if stream.attach(&handle) {
        return Ok((handle, call));
    }
    destination.close(&handle);
    Err(Refusal::UnknownSession)
}

/// A client's `initialize`, until the server has answered it. Its POST is answered at once: clients
/// of this transport soon give up a POST, and a first start may take a minute.
struct PendingInitialize {
    destination: Arc<Endpoint>,
    stream: Arc<OldStream>,
    principal: Principal,
    headers: HeaderMap,
    message: Message,
}

impl PendingInitialize {
    fn open(&self) -> Result<(Arc<SessionHandle>, CallKey), Refusal> {
        // The answer is waited for here, since it decides whether there is a session at all.
        let opening = SessionOpen::Initialize(self.message.clone(), Accepts::Json);
        let principal = self.principal.clone();
        let (handle, call) = open(&self.destination, &self.stream, principal, &self.headers, opening)?;
        Ok((handle, call.expect("`initialize` is a call")))
    }

    async fn conclude(self, handle: Arc<SessionHandle>, call: CallKey) {
        let answer = answer_of(&handle, call).await;
        self.stream.send(&answer);
        if handle.is_opened() {
            self.stream.begin_reading(&handle);
            return;
        }
        self.stream.detach();
        self.destination.close(&handle);
        // The end of the destination has passed over a stream that was about to have a session.
        if self.destination.check_open().is_err() {
            self.stream.end();
        }
    }
}

/// Returns the answer to `initialize`.
async fn answer_of(handle: &Arc<SessionHandle>, call: CallKey) -> Bytes {
    match handle.answer(call).await {
        Answered::Complete { body, .. } => body.into_bytes(),
        Answered::Stream(_) => unreachable!("what only accepts JSON does not become a stream"),
    }
}

/// Returns the replica that the `endpoint` event named.
fn replica(uri: &Uri) -> Option<u64> {
    let mut pairs = uri.query()?.split('&');
    let digits = pairs.find_map(|pair| pair.strip_prefix("replica="))?;
    let is_number = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_number.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// Returns which stream a POST belongs to.
fn stream_id(uri: &Uri) -> Result<Uuid, Refusal> {
    let mut ids = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.strip_prefix("sessionId="));
    match (ids.next(), ids.next()) {
        (None, _) => Err(Refusal::MissingSessionQuery),
        // What is no id of ours is unknown, like every other id that we did not give out.
        (Some(id), None) => Uuid::try_parse(id).map_err(|_| Refusal::UnknownSession),
        (Some(_), Some(_)) => Err(Refusal::DoubledSessionQuery),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_of_a_stream_is_read_from_the_query() {
        let of = |query: &str| replica(&format!("/d/message?{query}").parse().unwrap());
        assert_eq!(of("sessionId=1&replica=00000000000000ff"), Some(255));
        for other in [
            "sessionId=1",
            "replica=",
            "replica=ff",
            "replica=+0000000000000ff",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn the_session_is_read_from_the_query_and_only_once() {
        let id = Uuid::new_v4();
        let of = |query: &str| stream_id(&format!("/d/message{query}").parse().unwrap());
        assert_eq!(of(&format!("?sessionId={id}")), Ok(id));
        assert_eq!(of(&format!("?a=1&sessionId={id}&b")), Ok(id));
        assert_eq!(of(""), Err(Refusal::MissingSessionQuery));
        assert_eq!(of("?session=1"), Err(Refusal::MissingSessionQuery));
        assert_eq!(of("?sessionId="), Err(Refusal::UnknownSession));
        assert_eq!(of("?sessionId=../../x"), Err(Refusal::UnknownSession));
        assert_eq!(
            of(&format!("?sessionId={id}&sessionId={id}")),
            Err(Refusal::DoubledSessionQuery)
        );
    }
}
