//! Forwards requests of this replica's clients to the replica that has what they need, and answers
//! with its response.
//!
//! [`RequestContext::locate`] is for requests of a legacy session,
//! [`RequestContext::forward_modern`] for modern requests, [`RequestContext::forward_to_successor`]
//! for what this replica no longer takes while it drains.
//!
//! Retry after a broken connection: only of a request that provably was not processed, after the
//! registry was asked again. If that is unknown, the client gets an error (`owner_lost`). A client
//! that disconnects drops the future or the body here, which resets the stream to the owner.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use cluster::NodeId;
use cluster::ownership;
use cluster::record::Node;
use http::header;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body::Body as _;
use protocol::exchange::Failure;
use protocol::message::{Kind, Member, Message};
use protocol::wire::sse;
use uuid::Uuid;

use super::body::Body;
use super::head::Head;
use super::http::RequestContext;
use crate::attachment::ATTACHED;
use crate::endpoint::{ParkedCall, SessionUse};
use crate::fleet::{Fleet, ProxyOutcome, SessionRoute, Undelivered, Wanted};
use crate::guard::limits::Permit;
use crate::peer::{self, Forwarded, Outcome, PeerBody, Proxied, Target};
use crate::reply::Refusal;
use crate::seal;
use crate::session_handle::SessionHandle;

/// How many replicas are tried for a request that may be opened on any of them.
const MAX_SUCCESSORS: usize = 3;

/// The longest event that is searched for the answer to a call.
const KEPT_EVENT: usize = 64 << 10;

/// A client's request, as it is forwarded.
pub(super) struct Outgoing<'a> {
    pub(super) method: &'a Method,
    /// The path and the query; `None` for the path of the endpoint, whose query is not read.
    pub(super) uri: Option<&'a Uri>,
    pub(super) headers: &'a HeaderMap,
    /// What a POST holds.
    pub(super) message: Option<&'a Message>,
    /// The call's place among those in flight. The response keeps it.
    pub(super) permit: &'a mut Option<Permit>,
}

/// What [`RequestContext::locate`] did for a session that was not open here.
pub(super) enum Located {
    /// The session was restored, and is open here now.
    Here(Arc<SessionHandle>),
    /// This replica owns the session's record, and the session was not opened: a DELETE needs only
    /// the record.
    Recorded,
    /// Another replica has answered the request.
    Answered(Response<Body>),
}

/// Whether a session that this replica owns is opened for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Restoring {
    Wanted,
    /// The request needs only the record: it is a DELETE.
    Needless,
}

/// What became of a request that was forwarded to one replica.
pub(super) enum ForwardOutcome {
    Answered(Response<Body>),
    /// The replica has not processed it.
    Undelivered,
    /// The replica does not have what it is for.
    NotOwner,
}

impl RequestContext<'_> {
    /// Finds the session of a request that is not open here: restores it, or lets its owner answer.
    pub(super) async fn locate(
        &self,
        head: &Head<'_>,
        restoring: Restoring,
        mut request: Outgoing<'_>,
    ) -> Result<Located, Refusal> {
        let id = head.session_id()?.ok_or(Refusal::MissingSession)?;
        let fleet = self.destination.fleet().ok_or(Refusal::UnknownSession)?;
        let wanted = Wanted {
            destination: &self.destination.name,
            principal: self.caller.principal.as_str(),
        };
        let mut route = match self.forwarded.map(|forwarded| forwarded.target) {
            Some(Target::Session { epoch }) => fleet.route_for_peer(id, epoch, wanted).await,
            // The sessions of a destination with one server are where the server is.
            Some(Target::Placed) => fleet.route_for_peer(id, 0, wanted).await,
            Some(Target::Node | Target::New) => SessionRoute::NotOwner(None),
            None => fleet.route(id, wanted).await,
        };
        let mut attempts = 0;
        loop {
            let (node, epoch) = match route {
                SessionRoute::Here if restoring == Restoring::Needless && !self.is_open(id) => {
                    return Ok(Located::Recorded);
                }
                SessionRoute::Here => {
                    return self.restored_session(id, head.headers()).await.map(Located::Here);
                }
                SessionRoute::There { .. } if self.destination.placed_server().is_some() => {
                    // Its owner had the server before, and is about to lose the session.
                    attempts += 1;
                    let undelivered = Undelivered::NotOwner;
                    route = fleet.route_again(id, wanted, undelivered, attempts).await;
                    continue;
                }
                SessionRoute::There { node, epoch } => (node, epoch),
                SessionRoute::Nowhere => return Err(Refusal::UnknownSession),
                SessionRoute::NotOwner(_) => return Err(Refusal::NotOwner),
                SessionRoute::Refused(ownership::Unavailable::Draining) => {
                    // The session was handed over and has no owner, so there is no epoch to compare
                    // (0). A successor takes it over.
                    let target = Target::Session { epoch: 0 };
                    return self
                        .forward_to_successor(target, request)
                        .await
                        .map(Located::Answered);
                }
                SessionRoute::Refused(refusal) => return Err(refused(refusal)),
            };
            attempts += 1;
            let target = Target::Session { epoch };
            route = match self.forward(fleet, &node, target, &mut request).await? {
                ForwardOutcome::Answered(response) => return Ok(Located::Answered(response)),
                ForwardOutcome::Undelivered => {
                    let undelivered = Undelivered::NotSent(&node.id);
                    fleet.route_again(id, wanted, undelivered, attempts).await
                }
                ForwardOutcome::NotOwner => {
                    fleet
                        .route_again(id, wanted, Undelivered::NotOwner, attempts)
                        .await
                }
            };
        }
    }

    fn is_open(&self, id: Uuid) -> bool {
        let found = self
            .destination
            .session_for(SessionUse::FollowUp, id, &self.caller.principal);
        found.is_some()
    }

    /// Returns whether a session that is open here suits a request. A peer may know of a later
    /// epoch: then this one is a copy of an earlier owner.
    pub(super) fn suits(&self, handle: &SessionHandle) -> bool {
        match self.forwarded.map(|forwarded| forwarded.target) {
            Some(Target::Session { epoch }) => {
                let claim = handle.kept().map(|record| record.claim().epoch);
                claim.is_none_or(|held| held >= epoch)
            }
            Some(Target::Node | Target::Placed | Target::New) | None => true,
        }
    }

    /// Lets another replica answer a request that would open something here, while this one drains.
    pub(super) async fn forward_to_successor(
        &self,
        target: Target,
        mut request: Outgoing<'_>,
    ) -> Result<Response<Body>, Refusal> {
        if self.forwarded.is_some() {
            return Err(Refusal::NotOwner);
        }
        let fleet = self.destination.fleet().ok_or(Refusal::Draining)?;
        for _ in 0..MAX_SUCCESSORS {
            let Some(node) = fleet.successor().await else {
                break;
            };
            if let ForwardOutcome::Answered(response) =
                self.forward(fleet, &node, target, &mut request).await?
            {
                return Ok(response);
            }
        }
        Err(Refusal::Draining)
    }

    /// Returns whether a modern request may have to be answered by another replica.
    pub(super) fn may_be_elsewhere(&self, message: &Message) -> bool {
        let names_state = || memchr::memmem::find(message.bytes(), b"requestState").is_some();
        let is_elsewhere = || message.method().names_a_task() || names_state();
        let may_forward = self.forwarded.is_none() || self.destination.placed_server().is_some();
        self.gateway.is_draining() || (may_forward && is_elsewhere())
    }

    /// Lets another replica answer a modern request: the one whose call waits for it, or, while
    /// this one drains, any. `None`: it is for this one.
    pub(super) async fn forward_modern(
        &self,
        request: Outgoing<'_>,
    ) -> Result<Option<Response<Body>>, Refusal> {
        let Some(message) = request.message.filter(|message| message.kind() == Kind::Request) else {
            return Ok(None);
        };
        let principal = &self.caller.principal;
        // The one server of the fleet is here: what an earlier one had ended with it.
        let is_placed = self.destination.placed_server().is_some();
        if message.method().names_a_task()
            && let Some(owner) = self.destination.other_task_owner(message, principal).await?
        {
            let lost = Refusal::CallUnreached(Failure::OwnerLost);
            if is_placed {
                return Err(lost);
            }
            let answered = self.forward_to_process(owner.process(), request, lost).await;
            return answered.map(Some);
        }
        let params = message.object(Member::Params);
        let state = params.text("requestState");
        if let Some(state) = state.as_ref().filter(|state| seal::is_ours(state)) {
            match self.destination.parked(state, &self.caller.principal) {
                ParkedCall::Waiting(..) => return Ok(None),
                ParkedCall::Elsewhere(_) if is_placed => return Ok(None),
                ParkedCall::Elsewhere(process) => {
                    let lost = Refusal::CallUnreached(Failure::OwnerLost);
                    let answered = self.forward_to_process(process, request, lost).await;
                    return answered.map(Some);
                }
                ParkedCall::Unknown => {}
            }
        }
        if is_placed {
            return Ok(None);
        }
        // The server of another replica gave it, and may keep what it stands for in memory.
        if let Some(state) = &state
            && let Some(process) = self.destination.process_of_state(state, &self.caller.principal)
            && self.is_living(process).await?
        {
            let answered = self
                .forward_to_process(process, request, Refusal::OwnerUnreached)
                .await;
            return answered.map(Some);
        }
        if !self.gateway.is_draining() {
            return Ok(None);
        }
        self.forward_to_successor(Target::New, request).await.map(Some)
    }

    /// Lets the replica answer whose process has what a request is about; `gone` if that has ended.
    pub(super) async fn forward_to_process(
        &self,
        process: u64,
        mut request: Outgoing<'_>,
        gone: Refusal,
    ) -> Result<Response<Body>, Refusal> {
        let Some(fleet) = self.destination.fleet() else {
            return Err(gone);
        };
        let owner = living(fleet, process).await?;
        let Some(owner) = owner.filter(|_| self.forwarded.is_none()) else {
            return Err(gone);
        };
        match self.forward(fleet, &owner, Target::Node, &mut request).await? {
            ForwardOutcome::Answered(response) => Ok(response),
            // What it is about is still there.
            ForwardOutcome::Undelivered | ForwardOutcome::NotOwner => Err(Refusal::OwnerUnreached),
        }
    }

    async fn is_living(&self, process: u64) -> Result<bool, Refusal> {
        match self.destination.fleet() {
            Some(fleet) => Ok(living(fleet, process).await?.is_some()),
            None => Ok(false),
        }
    }

    /// Forwards a request to one replica. What a replica forwarded is not forwarded again.
    pub(super) async fn forward(
        &self,
        fleet: &Fleet,
        node: &Node,
        target: Target,
        request: &mut Outgoing<'_>,
    ) -> Result<ForwardOutcome, Refusal> {
        if self.forwarded.is_some() {
            return Err(Refusal::NotOwner);
        }
        let (Some(peers), Some(address)) = (&self.gateway.peers, &node.address) else {
            return Ok(ForwardOutcome::Undelivered);
        };
        let forwarded = Forwarded {
            hops: 0,
            target,
            principal: self.caller.principal.as_str().to_owned(),
            client: Some(self.peer),
            deadline: None,
        };
        // A drain waits for calls, and not for streams that have no end.
        let proxied = request.message.map(|_| peers.count_proxied());
        let sending = peers
            .client()
            .send(&node.id, address, &forwarded, self.outgoing(request));
        let outcome = sending.await;
        fleet.count_proxied(match &outcome {
            Outcome::Answered(_) => ProxyOutcome::Answered,
            Outcome::NotOwner(_) => ProxyOutcome::NotOwner,
            Outcome::NotSent(_) => ProxyOutcome::NotSent,
            Outcome::Unknown(_) => ProxyOutcome::Unknown,
        });
        let response = match outcome {
            Outcome::Answered(response) => response,
            Outcome::NotOwner(_) => return Ok(ForwardOutcome::NotOwner),
            Outcome::NotSent(error) => {
                tracing::warn!(replica = %node.id, %error, "request was not sent to another replica");
                return Ok(ForwardOutcome::Undelivered);
            }
            Outcome::Unknown(error) => {
                log_lost(&node.id, &error);
                return Err(owner_lost(request.message));
            }
        };
        let (head, body) = response.into_parts();
        let is_stream = head
            .headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let awaited = request.message.filter(|_| is_stream).and_then(Awaited::of);
        let body = ForwardedBody {
            body,
            owner: node.id.clone(),
            awaited,
            is_ended: false,
            _permit: request.permit.take(),
            _proxied: proxied,
        };
        let mut response = Response::new(Body::forwarded(body));
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        Ok(ForwardOutcome::Answered(response))
    }

    fn outgoing(&self, request: &Outgoing<'_>) -> Request<peer::RequestBody> {
        let body = request
            .message
            .map_or_else(Bytes::new, |message| message.bytes().clone());
        // With room for what a replica adds. The length of a message that got a trace context is
        // another than the client's, and HTTP/2 needs none.
        let mut headers = HeaderMap::with_capacity(request.headers.len() + 2);
        for (name, value) in request.headers {
            // What `rialto attach` hands over is for a server on this machine.
            if name != header::CONTENT_LENGTH && name != ATTACHED {
                headers.append(name, value.clone());
            }
        }
        let mut outgoing = Request::new(peer::RequestBody::Whole(body));
        *outgoing.method_mut() = request.method.clone();
        *outgoing.uri_mut() = request.uri.cloned().unwrap_or_else(|| self.path());
        *outgoing.headers_mut() = headers;
        outgoing
    }

    /// Returns the path of a request for a destination's endpoint. Nothing reads its query.
    fn path(&self) -> Uri {
        let path = self.endpoint_path.path(&self.destination.name);
        Uri::try_from(path).unwrap_or_else(|_| Uri::from_static("/"))
    }
}

/// Returns the replica that has this number, if it lives.
async fn living(fleet: &Fleet, process: u64) -> Result<Option<Node>, Refusal> {
    let found = fleet.living(|node| node.id.process() == process).await;
    found.map_err(|error| {
        tracing::warn!(%error, "the replicas of the fleet cannot be read");
        Refusal::RegistryUnavailable
    })
}

/// Returns the error for a client whose request may have run, or not.
fn owner_lost(message: Option<&Message>) -> Refusal {
    match message.map(Message::kind) {
        Some(Kind::Request) => Refusal::CallUnreached(Failure::OwnerLost),
        Some(Kind::Notification | Kind::Result | Kind::Error) | None => {
            Refusal::Unreached(Failure::OwnerLost)
        }
    }
}

pub(super) fn refused(refusal: ownership::Unavailable) -> Refusal {
    match refusal {
        ownership::Unavailable::Away | ownership::Unavailable::Settling => Refusal::RegistryUnavailable,
        ownership::Unavailable::OwnerUnreached => Refusal::OwnerUnreached,
        ownership::Unavailable::Busy => Refusal::FleetBusy,
        ownership::Unavailable::Draining => Refusal::Draining,
    }
}

fn log_lost(owner: &NodeId, error: &dyn std::fmt::Display) {
    tracing::warn!(replica = %owner, %error, "connection to another replica broke; the outcome is unknown");
}

/// The call whose answer a forwarded stream shall bring. If the stream breaks off before that, the
/// client is sent an error in its place. It is shown whole events, so that none is dispatched that
/// broke off; one that is too long to be kept is shown as it comes.
#[derive(Debug)]
struct Awaited {
    id: Bytes,
    /// The last event, as far as it has come. Empty while a long one is shown.
    held: BytesMut,
    /// An event is shown as it comes.
    is_long: bool,
    /// The next byte begins a line.
    is_line_start: bool,
    is_answered: bool,
}

impl Awaited {
    fn of(message: &Message) -> Option<Self> {
        if message.kind() != Kind::Request {
            return None;
        }
        Some(Self {
            id: Bytes::copy_from_slice(message.raw(Member::Id)?),
            held: BytesMut::new(),
            is_long: false,
            is_line_start: true,
            is_answered: false,
        })
    }

    /// Reads on, and returns what the client may see by now. An event ends with an empty line.
    fn read(&mut self, data: Bytes) -> Bytes {
        let mut read = self.held.len();
        // Most events come whole, and pass without a copy.
        let text = match read {
            0 => data,
            _ => {
                self.held.extend_from_slice(&data);
                self.held.split().freeze()
            }
        };
        // Where the event begins that is not over yet.
        let mut begun = 0;
        while let Some(line) = memchr::memchr(b'\n', &text[read..]) {
            let ends_event = line == 0 && self.is_line_start;
            self.is_line_start = true;
            read += line + 1;
            if ends_event {
                // Long events are answers: nothing else that a server sends is so long.
                self.is_answered |= self.is_long || is_answer(&text[begun..read], &self.id);
                self.is_long = false;
                begun = read;
            }
        }
        self.is_line_start &= read == text.len();
        self.is_long |= text.len() - begun > KEPT_EVENT;
        if self.is_long {
            return text;
        }
        self.held.extend_from_slice(&text[begun..]);
        text.slice(..begun)
    }

    /// Returns what ends a stream that broke off: the answer that is missing. After a part of a long
    /// event nothing can follow: an empty line would have the client dispatch that part. A reader
    /// drops an event that is not over when its stream ends.
    fn conclude(&self) -> Bytes {
        if self.is_answered || self.is_long {
            return Bytes::new();
        }
        let mut out = BytesMut::new();
        let lost = Refusal::CallUnreached(Failure::OwnerLost);
        sse::write_message(&mut out, None, &lost.body(Some(&self.id)));
        out.freeze()
    }
}

/// Returns whether an event holds the answer to a call.
fn is_answer(event: &[u8], id: &[u8]) -> bool {
    let mut data = BytesMut::new();
    for line in event.split(|byte| *byte == b'\n') {
        if let Some(text) = line.strip_prefix(b"data:") {
            data.extend_from_slice(text);
        }
    }
    let Ok(message) = Message::scan(data.freeze()) else {
        return false;
    };
    match message.kind() {
        Kind::Result | Kind::Error => message.raw(Member::Id) == Some(id),
        Kind::Request | Kind::Notification => false,
    }
}

/// The response of another replica, as it comes.
#[derive(Debug)]
pub(super) struct ForwardedBody {
    body: PeerBody,
    owner: NodeId,
    /// The answer that a stream has not brought yet.
    awaited: Option<Awaited>,
    is_ended: bool,
    _permit: Option<Permit>,
    _proxied: Option<Proxied>,
}

impl ForwardedBody {
    pub(super) fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        while !self.is_ended {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    let shown = match &mut self.awaited {
                        Some(awaited) => awaited.read(data),
                        None => data,
                    };
                    if !shown.is_empty() {
                        return Poll::Ready(Some(shown));
                    }
                }
                Some(Err(error)) => {
                    self.is_ended = true;
                    log_lost(&self.owner, &error);
                    let missing = self.awaited.as_ref().map(Awaited::conclude);
                    return Poll::Ready(missing.filter(|missing| !missing.is_empty()));
                }
                None => self.is_ended = true,
            }
        }
        Poll::Ready(None)
    }

    pub(super) fn is_ended(&self) -> bool {
        self.is_ended || self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn awaited(id: &str) -> Awaited {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call"}}"#);
        Awaited::of(&Message::scan(Bytes::from(text)).unwrap()).unwrap()
    }

    #[test]
    fn request_without_an_answer_of_its_owner_is_no_503() {
        for refusal in [owner_lost(None), Refusal::Unreached(Failure::OwnerLost)] {
            assert_eq!(refusal.status(), http::StatusCode::BAD_GATEWAY);
            let body = String::from_utf8(refusal.body(None).to_vec()).unwrap();
            assert!(
                body.contains(r#""reason":"owner_lost","outcome":"unknown""#),
                "{body}"
            );
        }
    }

    fn read(call: &mut Awaited, text: &[u8]) -> Vec<u8> {
        call.read(Bytes::copy_from_slice(text)).to_vec()
    }

    #[test]
    fn stream_that_breaks_off_before_the_answer_ends_with_it() {
        let mut call = awaited("7");
        let progress = b"id: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n";
        assert_eq!(read(&mut call, progress), progress);
        let question = b"data: {\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"roots/list\"}\n\n";
        assert_eq!(read(&mut call, question), question);
        let text = String::from_utf8(call.conclude().to_vec()).unwrap();
        assert!(
            text.contains("data: {\"jsonrpc\":\"2.0\",\"id\":7,\"error\""),
            "{text}"
        );
        assert!(text.contains("\"reason\":\"owner_lost\"") && text.contains("\"outcome\":\"unknown\""));
        assert!(text.ends_with("\n\n"));
    }

    #[test]
    fn event_that_broke_off_is_not_shown() {
        let mut call = awaited("\"a\"");
        let shown = read(
            &mut call,
            b": comment\n\nid: 1\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"a\",\"res",
        );
        assert_eq!(shown, b": comment\n\n");
        let text = String::from_utf8(call.conclude().to_vec()).unwrap();
        assert!(text.starts_with("event: message\ndata: {"), "{text}");
    }

    #[test]
    fn long_event_that_broke_off_is_left_unfinished() {
        let mut call = awaited("7");
        let begin = [b"data: ", &vec![b'x'; KEPT_EVENT][..]].concat();
        assert_eq!(read(&mut call, &begin), begin, "it is shown as it comes");
        assert_eq!(read(&mut call, b"more"), b"more");
        assert!(
            call.conclude().is_empty(),
            "an empty line would have the client dispatch it"
        );
    }

    #[test]
    fn answer_that_came_in_pieces_is_shown_whole_and_not_repeated() {
        let mut call = awaited("7");
        let text = b": comment\n\nid: 1\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n";
        let shown: Vec<Vec<u8>> = text.iter().map(|byte| read(&mut call, &[*byte])).collect();
        assert_eq!(shown.iter().filter(|piece| !piece.is_empty()).count(), 2);
        assert_eq!(shown.concat(), text);
        assert!(call.conclude().is_empty());
        let mut other = awaited("8");
        let answer = b"data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n";
        assert_eq!(read(&mut other, answer), answer);
        assert!(!other.conclude().is_empty());
    }

    #[test]
    fn long_answer_is_recognised_without_being_kept() {
        let mut call = awaited("7");
        let mut shown = read(&mut call, b"data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"");
        assert!(shown.is_empty());
        for _ in 0..4 {
            shown.extend(read(&mut call, &vec![b'x'; KEPT_EVENT / 2 + 1]));
            assert!(call.held.len() <= KEPT_EVENT);
        }
        shown.extend(read(&mut call, b"\"}\n\n: after\n\n"));
        assert!(shown.ends_with(b"xx\"}\n\n: after\n\n"));
        assert!(call.is_answered && !call.is_long && call.conclude().is_empty());
    }
}
