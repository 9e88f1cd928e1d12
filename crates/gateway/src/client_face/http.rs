//! The HTTP door: which destination, which method, which session; the rest is the session's business.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use protocol::client_face::legacy::{self, Meaning};
use protocol::client_face::modern;
use protocol::exchange::{Failure, Principal};
use protocol::message::{Kind, Member, Message, Written};
use protocol::method::Method as McpMethod;
use protocol::session::{self, Accepts, StreamRefusal};
use protocol::time::Moment;
use protocol::version::Version;

use super::body::{Body, Events};
use super::http_sse::OldPath;
use super::intake;
use crate::audit::{AuditRecord, Outcome};
use crate::destination::{Destination, Opening};
use crate::gateway::Gateway;
use crate::guard::limits::{Account, Permit};
use crate::guard::resource::Door;
use crate::guard::{Caller, Knock, Room, cors};
use crate::mishap;
use crate::reload::Live;
use crate::reply::{self, LAST_EVENT_ID, Refusal, SESSION_ID};
use crate::session_port::{Answered, Audited, Reception, SessionPort};
use crate::settings::OpenPath;
use crate::trace::{self, Failed, OpenSpan};

/// Where a path leads.
enum Route {
    Health,
    Ready,
    Metrics,
    Mcp(Arc<Destination>, Door),
    /// Where to sign in for a destination.
    Metadata(Arc<Destination>, Door),
    /// `/sse` or `/message`: the old transport.
    OldTransport(Arc<Destination>, OldPath),
    Nowhere,
}

const MCP_METHODS: &str = "GET, POST, DELETE";
const READING: &str = "GET, HEAD";

impl Route {
    fn methods(&self) -> &'static str {
        match self {
            Self::Mcp(..) => MCP_METHODS,
            Self::OldTransport(_, path) => path.methods(),
            Self::Health | Self::Ready | Self::Metrics | Self::Metadata(..) | Self::Nowhere => READING,
        }
    }
}

impl Gateway {
    /// Answers one request.
    pub(crate) async fn respond(&self, request: Request<Incoming>, peer: SocketAddr) -> Response<Body> {
        let live = self.live();
        let origin = match live.origins.admit(request.uri(), request.headers()) {
            Ok(origin) => origin,
            Err(refusal) => return self.turn_away(&refusal),
        };
        let mut response = self.route(&live, request, peer, origin.is_some()).await;
        if origin.is_some() || live.origins.names_origins() {
            cors::vary(&mut response);
        }
        if let Some(origin) = origin {
            cors::allow(&mut response, origin);
        }
        response
    }

    /// Refuses what is not for any destination.
    fn turn_away(&self, refusal: &Refusal) -> Response<Body> {
        self.tally.refused(refusal);
        refusal.respond(None)
    }

    /// Who is knocking, if they may come in. Credentials that are nobody's are counted, and beyond so many in a minute
    /// their sender hears of that and of nothing else.
    async fn admit(
        &self,
        live: &Live,
        request: &Request<Incoming>,
        peer: SocketAddr,
        room: Room<'_>,
    ) -> Result<Caller, Refusal> {
        let headers = request.headers();
        let knock = Knock {
            headers,
            query: request.uri().query(),
            peer: peer.ip(),
            now: SystemTime::now(),
        };
        let refusal = match live.guard.admit(&knock, room).await {
            Ok(caller) => return Ok(caller),
            Err(refusal) => refusal,
        };
        if refusal.is_about_unknown_credentials() {
            self.limiter
                .refused_credentials(self.clock.now(), peer.ip(), headers)?;
        }
        Err(refusal)
    }

    async fn route(
        &self,
        live: &Live,
        request: Request<Incoming>,
        peer: SocketAddr,
        cross_origin: bool,
    ) -> Response<Body> {
        let route = find(self, live, request.uri().path());
        // A browser asks without credentials what it may send them with.
        if cross_origin && cors::is_preflight(request.method(), request.headers()) {
            return match route {
                Route::Nowhere => self.turn_away(&Refusal::UnknownPath),
                known => cors::preflight(request.headers(), known.methods()),
            };
        }
        let is_reading = matches!(*request.method(), Method::GET | Method::HEAD);
        match route {
            Route::Nowhere => self.turn_away(&Refusal::UnknownPath),
            Route::Health | Route::Ready | Route::Metrics | Route::Metadata(..) if !is_reading => {
                self.turn_away(&Refusal::WrongMethod { allow: READING })
            }
            Route::Health => reply::json(StatusCode::OK, "{\"status\":\"ok\"}\n"),
            Route::Ready => {
                let room = Room::Gateway(OpenPath::Ready);
                match self.admit(live, &request, peer, room).await {
                    Ok(_) => self.readiness(),
                    Err(refusal) => self.turn_away(&refusal),
                }
            }
            Route::Metrics => {
                let room = Room::Gateway(OpenPath::Metrics);
                match self.admit(live, &request, peer, room).await {
                    Ok(_) => reply::metrics(self.metrics_page()),
                    Err(refusal) => self.turn_away(&refusal),
                }
            }
            Route::Metadata(destination, door) => match live.guard.metadata(&destination.name, door) {
                Some(document) => reply::json(StatusCode::OK, document),
                None => self.turn_away(&Refusal::UnknownPath),
            },
            Route::OldTransport(destination, path) => {
                match self
                    .receive(live, &destination, Door::Named, &request, peer)
                    .await
                {
                    Ok(visit) => Box::pin(visit.old_transport(path, request)).await,
                    Err(refused) => refused,
                }
            }
            Route::Mcp(destination, door) => {
                let visit = match self.receive(live, &destination, door, &request, peer).await {
                    Ok(visit) => visit,
                    Err(refused) => return refused,
                };
                let response = match *request.method() {
                    // The largest future by far: a connection that only listens need not have room for it.
                    Method::POST => Box::pin(visit.post(request)).await,
                    Method::GET => visit.get(request.headers()),
                    Method::DELETE => visit.delete(request.headers()),
                    Method::PUT
                    | Method::PATCH
                    | Method::HEAD
                    | Method::OPTIONS
                    | Method::TRACE
                    | Method::CONNECT => self.turn_away(&Refusal::WrongMethod { allow: MCP_METHODS }),
                    _ => self.turn_away(&Refusal::UnknownMethod),
                };
                // Streams count what they send as they send it.
                let sent = response.body().size_hint().exact().unwrap_or(0);
                destination.traffic.bytes_sent.fetch_add(sent, Relaxed);
                response
            }
        }
    }

    /// Lets a request in at a destination, if it shows that it may; gives the refusal otherwise.
    async fn receive<'v>(
        &'v self,
        live: &'v Live,
        destination: &'v Arc<Destination>,
        door: Door,
        request: &Request<Incoming>,
        peer: SocketAddr,
    ) -> Result<Visit<'v>, Response<Body>> {
        let headers = request.headers();
        let began = self.clock.now();
        let visit = |caller, account| Visit {
            gateway: self,
            live,
            destination,
            door,
            caller,
            account,
            began,
        };
        let room = Room::Destination(&destination.name, door);
        match self.admit(live, request, peer, room).await {
            Ok(caller) => {
                // From now on it is counted.
                let account = self.limiter.account(began, &caller.principal, peer.ip(), headers);
                Ok(visit(caller, account))
            }
            Err(refusal) => {
                Err(visit(Caller::nobody(), None).refuse(request.method().as_str(), &refusal.into()))
            }
        }
    }
}

fn find(gateway: &Gateway, live: &Live, path: &str) -> Route {
    if let Some(resource) = live.guard.described(path) {
        return match find_door(live, resource) {
            Some((destination, door)) => Route::Metadata(destination, door),
            None => Route::Nowhere,
        };
    }
    if let Some((destination, door)) = find_door(live, path) {
        return Route::Mcp(destination, door);
    }
    let old = |name: &str, path| {
        let found = live.destinations.get(name).cloned();
        found.map_or(Route::Nowhere, |found| Route::OldTransport(found, path))
    };
    let mut segments = path.strip_prefix('/').unwrap_or_default().split('/');
    match (segments.next(), segments.next(), segments.next()) {
        (Some("health"), None, None) => Route::Health,
        (Some("ready"), None, None) => Route::Ready,
        (Some("metrics"), None, None) if gateway.shows_metrics => Route::Metrics,
        (Some(name), Some("sse"), None) => old(name, OldPath::Stream),
        (Some(name), Some("message"), None) => old(name, OldPath::Message),
        _ => Route::Nowhere,
    }
}

/// The destination whose endpoint this path is.
fn find_door(live: &Live, path: &str) -> Option<(Arc<Destination>, Door)> {
    let named = |name: &str| live.destinations.get(name).cloned();
    let mut segments = path.strip_prefix('/').unwrap_or_default().split('/');
    match (segments.next(), segments.next(), segments.next()) {
        (Some("mcp"), None, None) => Some((live.root.clone()?, Door::Root)),
        (Some("mcp"), Some(name), None) => Some((named(name)?, Door::Alias)),
        (Some(name), Some("mcp"), None) => Some((named(name)?, Door::Named)),
        _ => None,
    }
}

/// One request for a destination.
pub(super) struct Visit<'a> {
    pub(super) gateway: &'a Gateway,
    live: &'a Live,
    pub(super) destination: &'a Arc<Destination>,
    door: Door,
    pub(super) caller: Caller,
    pub(super) began: Moment,
    /// Who is counted with it, where limits are about callers.
    pub(super) account: Option<Arc<Account>>,
}

/// A refused request, as far as it was understood.
pub(super) struct Refused {
    pub(super) refusal: Refusal,
    pub(super) message: Option<Message>,
    /// How much was read of it, understood or not.
    pub(super) request_bytes: u64,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self {
            refusal,
            message: None,
            request_bytes: 0,
        }
    }
}

impl Visit<'_> {
    /// Counts the request against the minute of its caller, and of its session where it names one.
    pub(super) fn admit(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let limiter = &self.gateway.limiter;
        limiter.request(self.began, self.account.as_ref())?;
        if limiter.counts_sessions_requests()
            && let Ok(Some(id)) = intake::session_id(headers)
            && let Some(port) = self.destination.session(id, &self.principal())
        {
            limiter.session_request(self.began, &port.requests)?;
        }
        Ok(())
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.gateway.clock.now().since(self.began)
    }

    pub(super) fn principal(&self) -> Principal {
        self.caller.principal.clone()
    }

    pub(super) fn room(&self) -> Room<'_> {
        Room::Destination(&self.destination.name, self.door)
    }

    /// Whether the caller may say this: by its scopes, and by the destination's policy for tools.
    pub(super) fn permit(&self, message: &Message) -> Result<(), Refusal> {
        self.live.guard.permit(&self.caller, self.room(), message)?;
        self.destination.judge_tool(message)
    }

    /// Whether there is still time for a message. What a call in flight may wait for is taken to the end.
    pub(super) fn check_open(&self, message: &Message) -> Result<(), Refusal> {
        match message.kind() {
            Kind::Request if self.gateway.is_draining() => Err(Refusal::Draining),
            Kind::Request | Kind::Notification | Kind::Result | Kind::Error => Ok(()),
        }
    }

    /// Whether what is done could be recorded.
    pub(super) fn check_recorded(&self) -> Result<(), Refusal> {
        if self.gateway.audit.refuses() {
            return Err(Refusal::AuditUnavailable);
        }
        Ok(())
    }

    /// Refuses, and leaves a line in the audit log.
    pub(super) fn refuse(&self, http_method: &str, refused: &Refused) -> Response<Body> {
        let message = refused.message.as_ref();
        let id = message
            .filter(|message| message.has_valid_id())
            .and_then(|message| message.raw(Member::Id));
        let response = refused.refusal.respond(id);
        self.gateway.tally.refused(&refused.refusal);
        // The room that is left in the log is for calls that run.
        if self.gateway.audit.is_on() && refused.refusal != Refusal::AuditUnavailable {
            let method = message.and_then(Message::method_name);
            let tool = message.and_then(|message| message.text(Member::Name));
            self.gateway.audit.record(&AuditRecord {
                destination: &self.destination.name,
                session: None,
                principal: self.principal().as_str(),
                http_method,
                mcp_method: method.as_deref(),
                tool: tool.as_deref(),
                rpc_id: id,
                status_code: refused.refusal.status().as_u16(),
                outcome: Outcome::Refused,
                latency: self.elapsed(),
                request_bytes: refused.request_bytes,
                response_bytes: response.body().size_hint().lower(),
                request_body: None,
                response_body: None,
            });
        }
        response
    }

    async fn post(&self, request: Request<Incoming>) -> Response<Body> {
        let mut span = None;
        let taken = {
            // Pinned here: it is large, and would be moved from hand to hand.
            let taking = std::pin::pin!(self.take_post(request, &mut span));
            mishap::contained(taking).await
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
        request: Request<Incoming>,
        span: &mut Option<OpenSpan>,
    ) -> Result<Response<Body>, Refused> {
        let (parts, body) = request.into_parts();
        let headers = parts.headers;
        // Under overload most requests end here: nothing of them was read but their heads.
        self.admit(&headers)?;
        let permit = self.gateway.limiter.call(self.account.as_ref())?;
        intake::check_length(&headers)?;
        intake::check_content(&headers)?;
        let accepts = intake::accepts(&headers)?;
        self.check_recorded()?;
        let body = intake::read_body(body, self.destination.max_message_bytes()).await?;
        let request_bytes = body.len() as u64;
        mishap::perhaps(mishap::Place::Door, &body);
        self.destination
            .traffic
            .bytes_received
            .fetch_add(request_bytes, Relaxed);
        let message = Message::scan(body).map_err(|error| Refused {
            refusal: Refusal::NotAMessage(error),
            message: None,
            request_bytes,
        })?;
        let spans = self.gateway.tally.spans.get();
        let (message, begun) = trace::begin(spans, &self.destination.name, &headers, message);
        *span = begun;
        let refused = |refusal: Refusal| Refused {
            refusal,
            message: Some(message.clone()),
            request_bytes,
        };
        self.check_open(&message).map_err(refused)?;
        self.permit(&message).map_err(refused)?;
        // What a call of a session does not do is boxed, here and below: each call would carry the room for it.
        if modern::is_modern(&message) {
            let answering = super::modern::post(
                self.destination,
                &self.caller,
                &headers,
                message.clone(),
                accepts,
                (Some(permit), &self.gateway.limiter),
            );
            return Box::pin(answering).await.map_err(refused);
        }
        if intake::names_modern(&headers) {
            return match message.kind() {
                Kind::Notification => Ok(reply::empty(StatusCode::ACCEPTED)),
                Kind::Request | Kind::Result | Kind::Error => {
                    Err(refused(Refusal::Modern(undescribed(&message))))
                }
            };
        }
        // Judged with the message at hand, so that the refusal carries its id and the audit its method.
        let session = intake::session_id(&headers).map_err(refused)?;
        let version = intake::version(&headers).map_err(refused)?;
        let meaning = legacy::lift(&message).map_err(|objection| refused(Refusal::Objection(objection)))?;
        if let Some(id) = session {
            let Some(port) = self.destination.session(id, &self.principal()) else {
                return Err(refused(Refusal::UnknownSession));
            };
            let reception = port
                .take(message.clone(), accepts, Some(permit))
                .map_err(|refusal| refused(refuse_message(refusal)))?;
            return Ok(self.receive(&port, reception, &message, false).await);
        }
        match meaning {
            Meaning::Introduction | Meaning::Ping | Meaning::Request(_) => {
                let opening = self.open_or_doubt(&headers, version, &message, accepts, permit);
                Box::pin(opening).await.map_err(refused)
            }
            // Without a session there is nobody whom a notification could concern.
            Meaning::Ready | Meaning::Cancel(_) | Meaning::Notice => Ok(reply::empty(StatusCode::ACCEPTED)),
            Meaning::Answer(_) => Err(refused(Refusal::MissingSession)),
        }
    }

    /// Opens a session, in the other era if the server wants no legacy client.
    async fn open_or_doubt(
        &self,
        headers: &HeaderMap,
        version: Option<Version>,
        message: &Message,
        accepts: Accepts,
        permit: Permit,
    ) -> Result<Response<Body>, Refusal> {
        let mut response = self.open(headers, version, message, accepts, permit).await?;
        // Nothing was run yet: a server that will not have a legacy client may have a modern one.
        if response.extensions_mut().remove::<NotWelcomed>().is_some()
            && self.destination.doubt_legacy(headers).await
        {
            let permit = self.gateway.limiter.call(self.account.as_ref())?;
            response = self.open(headers, version, message, accepts, permit).await?;
        }
        Ok(response)
    }

    /// Opens a session for a message that comes without one, and answers it there.
    async fn open(
        &self,
        headers: &HeaderMap,
        version: Option<Version>,
        message: &Message,
        accepts: Accepts,
        permit: Permit,
    ) -> Result<Response<Body>, Refusal> {
        let place = self.gateway.limiter.session(self.account.as_ref())?;
        let opening = if message.method() == McpMethod::Initialize {
            Opening::Introduction(Box::new(message.clone()), accepts)
        } else {
            Opening::Implicit(version.unwrap_or(Version::ASSUMED))
        };
        let (port, call) = self.destination.open(self.principal(), headers, opening)?;
        port.hold(place);
        let (reception, _handshake) = match call {
            // A handshake is over when it is answered, here.
            Some(call) => (Reception::Call(call), Some(permit)),
            None => {
                let taken = port.take(message.clone(), accepts, Some(permit));
                let reception = taken.map_err(|refusal| {
                    self.destination.close(&port);
                    refuse_message(refusal)
                })?;
                (reception, None)
            }
        };
        Ok(self.receive(&port, reception, message, true).await)
    }

    /// Waits for what a message leads to. A session that was just opened ends again if its server does not
    /// welcome it.
    async fn receive(
        &self,
        port: &Arc<SessionPort>,
        reception: Reception,
        message: &Message,
        opened: bool,
    ) -> Response<Body> {
        let mut response = match reception {
            Reception::Noted => {
                port.write_record(&Audited {
                    message: Some(message),
                    http_method: "POST",
                    status: 202,
                    outcome: Outcome::Ok,
                    latency: self.elapsed(),
                    response: None,
                    response_bytes: 0,
                });
                return reply::empty(StatusCode::ACCEPTED);
            }
            Reception::Answered(body) => {
                let body = Written::from(body);
                port.write_record(&Audited {
                    message: Some(message),
                    http_method: "POST",
                    status: 200,
                    outcome: Outcome::Ok,
                    latency: self.elapsed(),
                    response: Some(&body),
                    response_bytes: body.len() as u64,
                });
                reply::answer(body, None)
            }
            Reception::Call(call) => {
                // In this era a disconnection is no cancellation, so only a handshake is given up.
                let armed = opened && message.method() == McpMethod::Initialize;
                let waiting = Newborn {
                    visit: self,
                    port,
                    armed,
                };
                let answered = port.answer(call).await;
                waiting.disarm();
                match answered {
                    Answered::Complete { body, failure } => {
                        let mut response = reply::answer(body, failure.as_ref());
                        let refused = match failure {
                            None => message.method() == McpMethod::Initialize && !port.is_welcomed(),
                            Some(failure) => failure == Failure::NotWelcomed,
                        };
                        if opened && refused {
                            response.extensions_mut().insert(NotWelcomed);
                        }
                        response
                    }
                    Answered::Stream(reader) => {
                        reply::events(Body::events(Events::answer(Arc::clone(port), reader)))
                    }
                }
            }
        };
        if opened {
            let streaming = response
                .headers()
                .get(header::CONTENT_TYPE)
                .is_some_and(|kind| kind == "text/event-stream");
            if port.is_welcomed() || streaming {
                if let Ok(id) = HeaderValue::from_str(port.id()) {
                    response.headers_mut().insert(SESSION_ID, id);
                }
            } else {
                self.destination.close(port);
            }
        }
        response
    }

    fn get(&self, headers: &HeaderMap) -> Response<Body> {
        self.open_stream(headers)
            .unwrap_or_else(|refusal| self.refuse("GET", &refusal.into()))
    }

    fn open_stream(&self, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
        self.admit(headers)?;
        intake::check_accepts_events(headers)?;
        let port = self.required_session(headers)?;
        intake::version(headers)?;
        if self.gateway.is_draining() {
            return Err(Refusal::Draining);
        }
        let permit = self.gateway.limiter.stream()?;
        let reader = match headers.get(LAST_EVENT_ID) {
            Some(last) => port.resume(last.to_str().unwrap_or_default()),
            None => port.listen(),
        };
        let reader = reader.map_err(|refusal| match refusal {
            StreamRefusal::UnknownEvent => Refusal::UnknownEvent,
            StreamRefusal::Finished => Refusal::FinishedStream,
            StreamRefusal::TooMany => Refusal::TooManyStreams,
        })?;
        let (clock, began) = (self.gateway.clock, self.began);
        let audited = Arc::clone(&port);
        let events =
            Events::notices(port, reader, permit).for_at_most(self.caller.time_left(SystemTime::now()));
        let events = events.on_close(move |sent| {
            audited.write_record(&Audited {
                message: None,
                http_method: "GET",
                status: 200,
                outcome: Outcome::Closed,
                latency: clock.now().since(began),
                response: None,
                response_bytes: sent,
            });
        });
        Ok(reply::events(Body::events(events)))
    }

    fn delete(&self, headers: &HeaderMap) -> Response<Body> {
        let found = self.admit(headers).and_then(|()| self.required_session(headers));
        match found {
            Ok(port) => {
                self.destination.close(&port);
                port.write_record(&Audited {
                    message: None,
                    http_method: "DELETE",
                    status: 204,
                    outcome: Outcome::Closed,
                    latency: self.elapsed(),
                    response: None,
                    response_bytes: 0,
                });
                reply::empty(StatusCode::NO_CONTENT)
            }
            Err(refusal) => self.refuse("DELETE", &refusal.into()),
        }
    }

    fn required_session(&self, headers: &HeaderMap) -> Result<Arc<SessionPort>, Refusal> {
        let id = intake::session_id(headers)?.ok_or(Refusal::MissingSession)?;
        self.destination
            .session(id, &self.principal())
            .ok_or(Refusal::UnknownSession)
    }
}

/// Marks an answer that only says that the server would not shake hands.
#[derive(Clone, Copy)]
struct NotWelcomed;

/// What is wrong with a request whose header is modern and whose body does not describe itself.
fn undescribed(message: &Message) -> modern::Objection {
    match (message.kind(), message.method()) {
        (Kind::Request, McpMethod::Initialize) => {
            modern::Objection::Header("MCP-Protocol-Version names a revision without `initialize`".to_owned())
        }
        (Kind::Request | Kind::Notification, _) => modern::Objection::Envelope(
            "`params._meta` must have `io.modelcontextprotocol/protocolVersion` and `io.modelcontextprotocol/clientCapabilities`",
        ),
        (Kind::Result | Kind::Error, _) => modern::Objection::NotJsonRpc,
    }
}

/// A session whose client has not seen its id yet: if the client hangs up now, nobody will ever use it.
struct Newborn<'a> {
    visit: &'a Visit<'a>,
    port: &'a Arc<SessionPort>,
    armed: bool,
}

impl Newborn<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Newborn<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.visit.destination.close(self.port);
        }
    }
}

/// A session's refusal as the door's.
pub(super) fn refuse_message(refusal: session::Refusal) -> Refusal {
    match refusal {
        session::Refusal::Objection(objection) => Refusal::Objection(objection),
        session::Refusal::AlreadyOpen => Refusal::AlreadyOpen,
        session::Refusal::TooManyCalls => Refusal::TooManyCalls,
        session::Refusal::Ended => Refusal::UnknownSession,
    }
}
