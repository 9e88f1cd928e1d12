//! Streamable HTTP: POST takes a message, GET opens or resumes a stream, DELETE ends the session.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use cluster::record;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, Response, StatusCode};
use protocol::client_face::legacy::{self, Classified};
use protocol::client_face::{self, modern};
use protocol::message::{Kind, Member, Message, Written};
use protocol::method::Method as McpMethod;
use protocol::session::{Accepts, Rejection, StreamRefusal};
use protocol::version::{SessionStyle, Version};
use uuid::Uuid;

use super::{RefusedRequest, RequestContext, refuse_message};
use crate::audit::SessionHash;
use crate::endpoint::{Endpoint, SessionOpen, SessionUse};
use crate::fault_injection;
use crate::frontend::body::{Body, Events};
use crate::frontend::forwarding::{Located, Outgoing, Restoring};
use crate::frontend::head::{Head, Revision};
use crate::frontend::request_body::RequestBody;
use crate::frontend::respond;
use crate::guard::limits::Permit;
use crate::panics;
use crate::peer::Target;
use crate::record::{Ending, Record};
use crate::reply::{LAST_EVENT_ID, Refusal, SESSION_ID};
use crate::session_handle::{Acceptance, Answered, SessionHandle};
use crate::trace::{self, Failed, OpenSpan};

impl RequestContext<'_> {
    pub(super) async fn post(&self, headers: &mut HeaderMap, body: &mut RequestBody) -> Response<Body> {
        let mut span = None;
        let taken = {
            // Pinned here, since it is large and would be moved several times.
            let taking = std::pin::pin!(self.take_post(headers, body, &mut span));
            panics::contained(taking).await
        };
        let mut response = match taken {
            Ok(response) => response,
            Err(refused) => {
                let mut response = self.refuse("POST", &refused);
                response.extensions_mut().insert(Failed(refused.refusal.label()));
                response
            }
        };
        if let Some(mut span) = span {
            let failed = response.extensions().get::<Failed>();
            span.answered(response.status().as_u16(), failed.map(|failed| failed.0));
            response.body_mut().carry(span);
        }
        response
    }

    async fn take_post(
        &self,
        headers: &mut HeaderMap,
        body: &mut RequestBody,
        span: &mut Option<Box<OpenSpan>>,
    ) -> Result<Response<Body>, RefusedRequest> {
        let head = Head::of(headers);
        // Under overload most requests are refused here, before their bodies are read.
        let looked_up = self.count_request(&head)?;
        let mut permit = Some(self.gateway.limiter.call(self.call_sharer().as_ref())?);
        if self.counts_in_fleet() {
            Box::pin(self.call_in_fleet(permit.as_mut())).await?;
        }
        head.check_length()?;
        head.check_content()?;
        let accepts = head.accepts()?;
        self.check_recorded()?;
        let body = body.read(self.destination.max_message_bytes()).await?;
        let request_bytes = body.len() as u64;
        fault_injection::maybe_panic(fault_injection::Site::Frontend, &body);
        self.destination
            .metrics
            .bytes_received
            .fetch_add(request_bytes, Relaxed);
        let message = Message::scan(body).map_err(|error| RefusedRequest {
            refusal: Refusal::NotAMessage(error),
            message: None,
            request_bytes,
        })?;
        let spans = self.gateway.listener_metrics.spans.get();
        let (message, begun) = trace::begin(
            spans,
            &self.destination.name,
            (head.headers(), head.is_traced),
            message,
        );
        *span = begun;
        let refused = |refusal: Refusal| RefusedRequest {
            refusal,
            message: Some(message.clone()),
            request_bytes,
        };
        self.check_open(&message).map_err(refused)?;
        self.permit(&message).map_err(refused)?;
        if self.destination.placed_server().is_some() {
            let needs = self.needs(&head, Some(&message));
            let request = posted_to_peer(head.headers(), &message, &mut permit);
            let forwarding = self.forward_placed(needs, request);
            if let Some(response) = Box::pin(forwarding).await.map_err(refused)? {
                return Ok(response);
            }
        }
        // Rare futures are boxed here and below: otherwise each call would reserve memory for them.
        if client_face::era_of(&message).sessions() == SessionStyle::None {
            if self.gateway.peers.is_some() && self.may_be_elsewhere(&message) {
                let request = posted_to_peer(head.headers(), &message, &mut permit);
                if let Some(response) = Box::pin(self.forward_modern(request)).await.map_err(refused)? {
                    return Ok(response);
                }
            }
            let answering = super::super::modern::post(
                self.destination,
                &self.caller,
                headers,
                message.clone(),
                (accepts, self.tools),
                (permit, || self.gateway.limiter.stream(self.sharer().as_ref())),
            );
            return Box::pin(answering).await.map_err(refused);
        }
        let revision = head.revision();
        if revision == Ok(Revision::Modern) {
            return match message.kind() {
                Kind::Notification => Ok(respond::empty(StatusCode::ACCEPTED)),
                Kind::Request | Kind::Result | Kind::Error => {
                    Err(refused(Refusal::Modern(undescribed(&message))))
                }
            };
        }
        // Checked after the scan, so that the refusal has the request's id and the audit record its
        // method.
        let version = revision.and_then(Revision::legacy).map_err(refused)?;
        let classified =
            legacy::lift(&message).map_err(|invalid| refused(Refusal::InvalidRequest(invalid)))?;
        let session = match looked_up {
            Some(handle) => Some(handle),
            None => match self.session_of(&head, &message) {
                Err(unknown) if self.may_restore(&unknown) => {
                    let request = posted_to_peer(head.headers(), &message, &mut permit);
                    let locating = self.locate(&head, Restoring::Wanted, request);
                    match Box::pin(locating).await.map_err(refused)? {
                        Located::Here(handle) => Some(handle),
                        Located::Recorded => return Err(refused(Refusal::UnknownSession)),
                        Located::Answered(response) => return Ok(response),
                    }
                }
                found => found.map_err(refused)?,
            },
        };
        if let Some(handle) = session {
            if message.kind() == Kind::Request {
                self.destination.unshare(&handle);
            }
            let (handle, acceptance) = match handle.take(message.clone(), accepts, permit.take()) {
                Ok(acceptance) => (handle, acceptance),
                // It was handed over between the look-up and now.
                Err(Rejection::Ended) if self.may_restore(&Refusal::UnknownSession) => {
                    let taking = self.take_again(&head, &message, accepts);
                    match Box::pin(taking).await.map_err(refused)? {
                        Taken::Here(handle, acceptance) => (handle, acceptance),
                        Taken::Answered(response) => return Ok(response),
                    }
                }
                Err(rejection) => return Err(refused(refuse_message(rejection))),
            };
            empty(headers);
            let posted = Posted {
                message: &message,
                accepts,
                opened: false,
            };
            let response = self.receive(&handle, acceptance, posted, headers).await;
            if sets_state(message.method())
                && let Some(record) = handle.kept()
            {
                // What a client was confirmed survives the process.
                Box::pin(record.written()).await;
            }
            return Ok(response);
        }
        match classified {
            Classified::Initialize | Classified::Ping | Classified::Request(_) => {
                if self.gateway.is_draining() {
                    let request = posted_to_peer(headers, &message, &mut permit);
                    let forwarding = self.forward_to_successor(Target::New, request);
                    return Box::pin(forwarding).await.map_err(refused);
                }
                let opening = self.open(headers, version, &message, accepts, permit);
                Box::pin(opening).await.map_err(refused)
            }
            // Without a session a notification concerns no client.
            Classified::Ready | Classified::Cancel(_) | Classified::Notice => {
                Ok(respond::empty(StatusCode::ACCEPTED))
            }
            Classified::Answer(_) => Err(refused(Refusal::MissingSession)),
        }
    }

    /// Opens a session for a message that comes without one, and answers it there.
    async fn open(
        &self,
        headers: &HeaderMap,
        version: Option<Version>,
        message: &Message,
        accepts: Accepts,
        permit: Option<Permit>,
    ) -> Result<Response<Body>, Refusal> {
        let place = self.session_permit().await?;
        let version = version.unwrap_or(Version::ASSUMED);
        let opening = if message.method() == McpMethod::Initialize {
            SessionOpen::Initialize(message.clone(), accepts)
        } else {
            SessionOpen::Implicit(version)
        };
        let (handle, call) = self
            .destination
            .open_listing(self.principal(), headers, opening, self.tools)?;
        handle.hold(place);
        let record = self.destination.keep(&handle, || hello_of(message, version));
        let (acceptance, _handshake) = match call {
            // A handshake is over when it is answered, here.
            Some(call) => (Acceptance::Call(call), permit),
            None => {
                // Before the call runs: its answer could not be taken back.
                self.destination.write_record(&handle, record.clone()).await?;
                let taken = handle.take(message.clone(), accepts, permit);
                let acceptance = taken.map_err(|refusal| {
                    self.destination.close(&handle);
                    refuse_message(refusal)
                })?;
                (acceptance, None)
            }
        };
        let posted = Posted {
            message,
            accepts,
            opened: true,
        };
        let response = self
            .receive(&handle, acceptance, posted, &mut HeaderMap::new())
            .await;
        if call.is_some()
            && response.headers().contains_key(SESSION_ID)
            && let Err(refusal) = self.destination.write_record(&handle, record).await
        {
            // The handshake itself has been recorded, so that this is no further refusal for the
            // audit.
            return Ok(refusal.respond(message.raw(Member::Id)));
        }
        Ok(response)
    }

    /// Waits for the response to a message. `spare_headers` is an empty map for its headers. A
    /// session that was just opened is closed again if the handshake fails.
    async fn receive(
        &self,
        handle: &Arc<SessionHandle>,
        acceptance: Acceptance,
        posted: Posted<'_>,
        spare_headers: &mut HeaderMap,
    ) -> Response<Body> {
        let Posted {
            message,
            accepts,
            opened,
        } = posted;
        let mut response = match acceptance {
            Acceptance::Noted => {
                let elapsed = self.elapsed();
                handle.record(&Record::of_message(message, 202, Ending::Done, elapsed, None));
                return respond::empty(StatusCode::ACCEPTED);
            }
            Acceptance::Answered(body) => {
                let body = Written::from(body);
                let elapsed = self.elapsed();
                handle.record(&Record::of_message(
                    message,
                    200,
                    Ending::Done,
                    elapsed,
                    Some(&body),
                ));
                respond::answer(std::mem::take(spare_headers), body)
            }
            Acceptance::Call(call) => {
                // In the legacy era a disconnect does not cancel a call, so only a handshake is
                // abandoned.
                let armed = opened && message.method() == McpMethod::Initialize;
                let waiting = UnacknowledgedSession {
                    context: self,
                    handle,
                    armed,
                };
                let answered = handle.answer(call).await;
                waiting.disarm();
                match answered {
                    Answered::Complete { body, failure } => {
                        let headers = std::mem::take(spare_headers);
                        match failure {
                            None => respond::answer(headers, body),
                            Some(failure) => {
                                // Without a body only the status shows that the call failed.
                                let in_band = accepts.reads_events() && !body.is_empty();
                                respond::failed(headers, body, &failure, in_band)
                            }
                        }
                    }
                    Answered::Stream(reader) => {
                        respond::events(Body::events(Events::answer(Arc::clone(handle), reader)))
                    }
                }
            }
        };
        if opened {
            let streaming = response
                .headers()
                .get(header::CONTENT_TYPE)
                .is_some_and(|kind| kind == "text/event-stream");
            if handle.is_opened() || streaming {
                if let Ok(id) = HeaderValue::from_str(handle.id()) {
                    response.headers_mut().insert(SESSION_ID, id);
                }
            } else {
                self.destination.close(handle);
            }
        }
        response
    }

    /// Opens or resumes a stream.
    pub(super) fn get(&self, head: &Head<'_>) -> Result<Response<Body>, Refusal> {
        self.count_request(head)?;
        self.open_stream(head)
    }

    /// Finds the session of a GET or DELETE that was refused for it, and acts once more, here or
    /// where it is.
    pub(super) async fn act_located(&self, http_method: &Method, head: &Head<'_>) -> Response<Body> {
        let restoring = match *http_method {
            Method::DELETE => Restoring::Needless,
            _ => Restoring::Wanted,
        };
        let request = Outgoing {
            method: http_method,
            uri: None,
            headers: head.headers(),
            message: None,
            permit: &mut None,
        };
        let acted = match self.locate(head, restoring, request).await {
            Ok(Located::Answered(response)) => return response,
            Ok(Located::Recorded) => self.delete_recorded(head).await,
            Ok(Located::Here(_)) if *http_method == Method::DELETE => self.delete_open(head),
            Ok(Located::Here(_)) => self.open_stream(head),
            Err(refusal) => Err(refusal),
        };
        acted.unwrap_or_else(|refusal| self.refuse(http_method.as_str(), &refusal.into()))
    }

    /// Acts at a destination with one server in the fleet: here, or where the server is.
    pub(super) async fn act_placed(&self, http_method: &Method, head: &Head<'_>) -> Response<Body> {
        let forwarded = match self.count_request(head) {
            Ok(_) => self.forward_placed_head(http_method, head).await,
            Err(refusal) => Err(refusal),
        };
        let acted = match forwarded {
            Ok(Some(response)) => return response,
            Ok(None) if *http_method == Method::DELETE => self.delete_open(head),
            Ok(None) => self.open_stream(head),
            Err(refusal) => Err(refusal),
        };
        match acted {
            Ok(response) => response,
            Err(refusal) if self.may_restore(&refusal) => self.act_located(http_method, head).await,
            Err(refusal) => self.refuse(http_method.as_str(), &refusal.into()),
        }
    }

    /// Offers a message once more to a session that was handed over before it took it.
    async fn take_again(
        &self,
        head: &Head<'_>,
        message: &Message,
        accepts: Accepts,
    ) -> Result<Taken, Refusal> {
        let mut permit = Some(self.gateway.limiter.call(self.call_sharer().as_ref())?);
        if self.counts_in_fleet() {
            self.call_in_fleet(permit.as_mut()).await?;
        }
        let request = posted_to_peer(head.headers(), message, &mut permit);
        let handle = match self.locate(head, Restoring::Wanted, request).await? {
            Located::Here(handle) => handle,
            Located::Recorded => return Err(Refusal::UnknownSession),
            Located::Answered(response) => return Ok(Taken::Answered(response)),
        };
        let taken = handle.take(message.clone(), accepts, permit);
        let acceptance = taken.map_err(refuse_message)?;
        Ok(Taken::Here(handle, acceptance))
    }

    /// Returns whether a session may be restored for a request that was refused.
    pub(super) fn may_restore(&self, refusal: &Refusal) -> bool {
        *refusal == Refusal::UnknownSession && self.destination.fleet().is_some()
    }

    /// Restores a session that is this replica's.
    pub(in crate::frontend) async fn restored_session(
        &self,
        id: Uuid,
        headers: &HeaderMap,
    ) -> Result<Arc<SessionHandle>, Refusal> {
        if self.gateway.refuses_requests() {
            return Err(Refusal::Draining);
        }
        let permit = self.session_permit();
        let principal = &self.caller.principal;
        let headers = (headers, self.tools);
        self.destination.restore(id, principal, headers, permit).await
    }

    fn open_stream(&self, head: &Head<'_>) -> Result<Response<Body>, Refusal> {
        head.check_accepts_events()?;
        let (_, handle) = self.required_session(head)?;
        head.revision()?.legacy()?;
        if self.gateway.refuses_requests() {
            return Err(Refusal::Draining);
        }
        let permit = self.gateway.limiter.stream(self.sharer().as_ref())?;
        let reader = match head.headers().get(LAST_EVENT_ID) {
            Some(last) => handle.resume(last.to_str().unwrap_or_default()),
            None => handle.listen(),
        };
        let reader = reader.map_err(|refusal| match refusal {
            StreamRefusal::UnknownEvent | StreamRefusal::Lost => Refusal::UnknownEvent,
            StreamRefusal::Finished => Refusal::FinishedStream,
            StreamRefusal::TooMany => Refusal::TooManyStreams,
        })?;
        let (clock, began) = (self.gateway.clock, self.began);
        let recorded = Arc::clone(&handle);
        let events =
            Events::notices(handle, reader, permit).for_at_most(self.caller.time_left(SystemTime::now()));
        let events = events.on_close(move |sent| {
            let latency = clock.now().since(began);
            recorded.record(&Record::of_closing("GET", 200, latency, sent));
        });
        Ok(respond::events(Body::events(events)))
    }

    pub(super) fn delete(&self, head: &Head<'_>) -> Result<Response<Body>, Refusal> {
        self.count_request(head)?;
        self.delete_open(head)
    }

    fn delete_open(&self, head: &Head<'_>) -> Result<Response<Body>, Refusal> {
        let (destination, handle) = self.required_session(head)?;
        destination.close(&handle);
        handle.record(&Record::of_closing("DELETE", 204, self.elapsed(), 0));
        Ok(respond::empty(StatusCode::NO_CONTENT))
    }

    /// Ends a session that is open in no process.
    async fn delete_recorded(&self, head: &Head<'_>) -> Result<Response<Body>, Refusal> {
        let id = head.session_id()?.ok_or(Refusal::MissingSession)?;
        self.destination.end_recorded(id, &self.caller.principal).await?;
        self.record_closing("DELETE", 204, &SessionHash::of(&id.to_string()));
        Ok(respond::empty(StatusCode::NO_CONTENT))
    }

    /// Returns the session of a message. Answers and notifications also reach a session that drains
    /// after a reload; for a new request that one is gone.
    fn session_of(&self, head: &Head<'_>, message: &Message) -> Result<Option<Arc<SessionHandle>>, Refusal> {
        let Some(id) = head.session_id()? else {
            return Ok(None);
        };
        let wanted = match message.kind() {
            Kind::Request => SessionUse::NewRequest,
            Kind::Notification | Kind::Result | Kind::Error => SessionUse::FollowUp,
        };
        let found = self.destination.session_for(wanted, id, &self.caller.principal);
        found
            .filter(|(_, handle)| self.suits(handle))
            .map(|(_, handle)| Some(handle))
            .ok_or(Refusal::UnknownSession)
    }

    /// Returns the session that a GET or DELETE names, and the destination that has it.
    fn required_session(&self, head: &Head<'_>) -> Result<(Arc<Endpoint>, Arc<SessionHandle>), Refusal> {
        let id = head.session_id()?.ok_or(Refusal::MissingSession)?;
        self.destination
            .session_for(SessionUse::FollowUp, id, &self.caller.principal)
            .filter(|(_, handle)| self.suits(handle))
            .ok_or(Refusal::UnknownSession)
    }
}

/// Returns what a client opened its session with, for the record of the session.
fn hello_of(message: &Message, assumed: Version) -> record::Hello {
    if message.method() == McpMethod::Initialize {
        record::Hello::Initialize(String::from_utf8_lossy(message.bytes()).into_owned())
    } else {
        record::Hello::Implicit(assumed.as_str().to_owned())
    }
}

/// Returns whether a request sets something that the record of its session has.
fn sets_state(method: McpMethod) -> bool {
    matches!(
        method,
        McpMethod::LoggingSetLevel | McpMethod::ResourcesSubscribe | McpMethod::ResourcesUnsubscribe
    )
}

/// What became of a message that was given to its session once more.
enum Taken {
    Here(Arc<SessionHandle>, Acceptance),
    /// Another replica has answered.
    Answered(Response<Body>),
}

/// Returns a POST as it is sent to another replica.
fn posted_to_peer<'a>(
    headers: &'a HeaderMap,
    message: &'a Message,
    permit: &'a mut Option<Permit>,
) -> Outgoing<'a> {
    Outgoing {
        method: &Method::POST,
        uri: None,
        headers,
        message: Some(message),
        permit,
    }
}

/// A message that a session has accepted.
struct Posted<'a> {
    message: &'a Message,
    accepts: Accepts,
    /// The session was opened for this message.
    opened: bool,
}

/// Returns what is wrong with a request whose header is modern and whose body does not describe
/// itself.
fn undescribed(message: &Message) -> modern::InvalidRequest {
    match (message.kind(), message.method()) {
        (Kind::Request, McpMethod::Initialize) => modern::InvalidRequest::Header(
            "MCP-Protocol-Version names a revision without `initialize`".to_owned(),
        ),
        (Kind::Request | Kind::Notification, _) => modern::InvalidRequest::Envelope(
            "`params._meta` must have `io.modelcontextprotocol/protocolVersion` and `io.modelcontextprotocol/clientCapabilities`",
        ),
        (Kind::Result | Kind::Error, _) => modern::InvalidRequest::NotJsonRpc,
    }
}

/// A session whose client has not seen its id yet: if the client disconnects now, the session will
/// never be used.
struct UnacknowledgedSession<'a> {
    context: &'a RequestContext<'a>,
    handle: &'a Arc<SessionHandle>,
    armed: bool,
}

impl UnacknowledgedSession<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for UnacknowledgedSession<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.context.destination.close(self.handle);
        }
    }
}

/// A map of headers with room for more than these is not kept while a call runs.
const KEPT_HEADERS: usize = 24;

/// Drops the headers of a request: they would hold the buffer that their connection was read into,
/// for as long as the call runs. The room that they took is kept for those of the answer; from
/// there the connection takes it for its next request, so that it is not allocated anew for every
/// call.
fn empty(headers: &mut HeaderMap) {
    if headers.len().max(headers.capacity()) > KEPT_HEADERS {
        *headers = HeaderMap::new();
    }
    headers.clear();
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderName;

    #[test]
    fn headers_of_a_request_are_emptied_and_keep_little_capacity() {
        let emptied = |mut headers: HeaderMap| {
            empty(&mut headers);
            headers
        };
        let named = |count: usize| -> HeaderMap {
            let name = |number| format!("x-{number}").parse::<HeaderName>().unwrap();
            (0..count)
                .map(|number| (name(number), HeaderValue::from_static("secret")))
                .collect()
        };
        let usual = emptied(named(9));
        assert!(usual.is_empty() && usual.capacity() >= 9);
        let many = emptied(named(KEPT_HEADERS + 1));
        assert!(many.is_empty() && many.capacity() == 0);
        let repeated = [const { HeaderName::from_static("x") }; KEPT_HEADERS + 1];
        let repeated = repeated.map(|name| (name, HeaderValue::from_static("secret")));
        assert_eq!(emptied(repeated.into_iter().collect()).capacity(), 0);
    }
}
