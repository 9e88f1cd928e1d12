//! The HTTP door: which destination, who is calling, which method; the methods are in [`streamable`].

mod streamable;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body::Body as _;
use hyper::body::Incoming;
use protocol::exchange::Principal;
use protocol::message::{Kind, Member, Message};
use protocol::session::{self};
use protocol::time::Moment;
use tokio::task::AbortHandle;

use super::body::{Body, Counted};
use super::cors;
use super::head::Head;
use super::http_sse::OldPath;
use super::intake::Upload;
use super::lingering::Unread;
use crate::client_face::respond;
use crate::destination::{Destination, SessionUse};
use crate::gateway::Gateway;
use crate::guard::connections::Place;
use crate::guard::limits::{Account, Sharer};
use crate::guard::resource::Door;
use crate::guard::{Admission, Caller, Knock, Room};
use crate::record::{Ending, Record, Subject};
use crate::reload::Live;
use crate::reply::Refusal;
use crate::session_port::SessionPort;
use crate::settings::OpenPath;

/// The connection that a request came on, as far as the two have to do with each other.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    pub(crate) unread: Unread,
    pub(crate) place: Arc<ConnectionPlace>,
}

/// The place of a connection among all of them, with what ends it.
pub(crate) type ConnectionPlace = Place<AbortHandle>;

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
const HEALTHY: &str = "{\"status\":\"ok\"}\n";

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
    ///
    /// The head of a request is large: it stays where it is taken apart, and the others look at it there. (That is also why
    /// this is no `async fn`: each of those keeps what it is given twice.)
    pub(crate) fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
        connection: Connection,
    ) -> impl Future<Output = Response<Body>> {
        let Connection { peer, unread, place } = connection;
        let in_flight = place.begin();
        let (mut parts, body) = request.into_parts();
        let mut body = Upload::Unread(body);
        async move {
            let live = self.live();
            let origin = match live.origins.admit(&parts.uri, &parts.headers) {
                Ok(origin) => origin,
                Err(refusal) => {
                    unread.set(body.is_left());
                    return match self.answer_probe(&live, &parts, peer, &refusal).await {
                        Some(answer) => answer,
                        None => self.turn_away(&refusal),
                    };
                }
            };
            let mut response = self
                .route(&live, &mut parts, &mut body, (peer, &place), origin.is_some())
                .await;
            response.body_mut().keep(in_flight);
            unread.set(body.is_left());
            if origin.is_some() || live.origins.names_origins() {
                cors::vary(&mut response);
            }
            if let Some(origin) = origin {
                cors::allow(&mut response, origin);
            }
            response
        }
    }

    /// Answers a health probe that was refused for its `Host`. Orchestrators and load balancers name an address, a service
    /// name or nothing there. They learn the status and no details, so that a rebound name learns no more.
    async fn answer_probe(
        &self,
        live: &Live,
        parts: &Parts,
        peer: SocketAddr,
        refusal: &Refusal,
    ) -> Option<Response<Body>> {
        let is_about_host = match refusal {
            Refusal::ForeignHost => true,
            Refusal::MissingHost => !parts.headers.contains_key(header::HOST),
            _ => false,
        };
        let is_reading = matches!(parts.method, Method::GET | Method::HEAD);
        if !is_about_host || !is_reading || parts.headers.contains_key(header::ORIGIN) {
            return None;
        }
        match find(self, live, parts.uri.path()) {
            Route::Health => Some(respond::json(StatusCode::OK, HEALTHY)),
            Route::Ready => {
                let room = Room::Gateway(OpenPath::Ready);
                Some(
                    match self.recognise(live, parts, peer, room, self.clock.now()).await {
                        Ok(_) => {
                            let is_ready = self.status().is_ready;
                            let status = readiness_status(is_ready);
                            respond::json(status, format!("{{\"ready\":{is_ready}}}\n"))
                        }
                        Err(refusal) => self.turn_away(&refusal),
                    },
                )
            }
            Route::Metrics
            | Route::Mcp(..)
            | Route::Metadata(..)
            | Route::OldTransport(..)
            | Route::Nowhere => None,
        }
    }

    /// Refuses what is not for any destination.
    fn turn_away(&self, refusal: &Refusal) -> Response<Body> {
        self.tally.refused(refusal);
        tracing::debug!(
            status = refusal.status().as_u16(),
            reason = refusal.label(),
            "request refused"
        );
        refusal.respond(None)
    }

    async fn route(
        &self,
        live: &Live,
        parts: &mut Parts,
        body: &mut Upload,
        (peer, place): (SocketAddr, &ConnectionPlace),
        cross_origin: bool,
    ) -> Response<Body> {
        let route = find(self, live, parts.uri.path());
        // A browser asks without credentials what it may send them with.
        if cross_origin && cors::is_preflight(&parts.method, &parts.headers) {
            return match route {
                Route::Nowhere => self.turn_away(&Refusal::UnknownPath),
                known => cors::preflight(&parts.headers, known.methods()),
            };
        }
        let is_reading = matches!(parts.method, Method::GET | Method::HEAD);
        match route {
            Route::Nowhere => self.turn_away(&Refusal::UnknownPath),
            Route::Health | Route::Ready | Route::Metrics | Route::Metadata(..) if !is_reading => {
                self.turn_away(&Refusal::WrongMethod { allow: READING })
            }
            Route::Health => respond::json(StatusCode::OK, HEALTHY),
            Route::Ready => {
                let room = Room::Gateway(OpenPath::Ready);
                match self.recognise(live, parts, peer, room, self.clock.now()).await {
                    Ok(caller) => {
                        let status = self.status();
                        let body = status.readiness(|name| caller.sees(name), caller.sees_everything());
                        respond::json(readiness_status(status.is_ready), body)
                    }
                    Err(refusal) => self.turn_away(&refusal),
                }
            }
            Route::Metrics => {
                let room = Room::Gateway(OpenPath::Metrics);
                match self.recognise(live, parts, peer, room, self.clock.now()).await {
                    Ok(caller) => respond::metrics(self.metrics_page(&caller)),
                    Err(refusal) => self.turn_away(&refusal),
                }
            }
            Route::Metadata(destination, door) => match live.guard.metadata(&destination.name, door) {
                Some(document) => respond::json(StatusCode::OK, document),
                None => self.turn_away(&Refusal::UnknownPath),
            },
            Route::OldTransport(destination, path) => {
                match self.admit(live, &destination, Door::Named, parts, peer).await {
                    Ok(visit) => {
                        place.recognise();
                        let mut response = Box::pin(visit.old_transport(path, parts, body)).await;
                        response.body_mut().count(|| visit.counted(place));
                        response
                    }
                    Err(refused) => refused,
                }
            }
            Route::Mcp(destination, door) => {
                let visit = match self.admit(live, &destination, door, parts, peer).await {
                    Ok(visit) => visit,
                    Err(refused) => return refused,
                };
                place.recognise();
                let mut response = match parts.method {
                    Method::POST => {
                        // It would hold the buffer that its connection was read into, for as long as the call runs.
                        parts.uri = Uri::default();
                        // The largest future by far: a connection that only listens need not have room for it.
                        Box::pin(visit.post(&mut parts.headers, body)).await
                    }
                    Method::GET => visit.get(&Head::of(&parts.headers)),
                    Method::DELETE => visit.delete(&Head::of(&parts.headers)),
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
                response.body_mut().count(|| visit.counted(place));
                destination.traffic.bytes_sent.fetch_add(sent, Relaxed);
                response
            }
        }
    }

    /// Who is knocking, if they may come in. Credentials that are nobody's are counted, and beyond so many in a minute
    /// their sender hears of that and of nothing else.
    async fn recognise(
        &self,
        live: &Live,
        parts: &Parts,
        peer: SocketAddr,
        room: Room<'_>,
        moment: Moment,
    ) -> Result<Arc<Caller>, Refusal> {
        if let Some(anyone) = live.guard.open_to(room) {
            return Ok(anyone);
        }
        let headers = &parts.headers;
        let knock = Knock {
            headers,
            query: parts.uri.query(),
            peer: peer.ip(),
            moment,
            now: SystemTime::now(),
        };
        let judged = match live.guard.admit(&knock, room) {
            Ok(Admission::Known(caller)) => return Ok(caller),
            // Boxed, since it is rare and large: every connection would carry the room for it.
            Ok(Admission::Unchecked(token)) => Box::pin(live.guard.check(token, knock.now, room)).await,
            Err(refusal) => Err(refusal),
        };
        let refusal = match judged {
            Ok(caller) => return Ok(caller),
            Err(refusal) => refusal,
        };
        if refusal.is_about_unknown_credentials() {
            // A token may have waited for the keys of its issuer.
            self.limiter
                .refused_credentials(self.clock.now(), peer.ip(), headers)?;
        }
        Err(refusal)
    }

    /// Lets a request in at a destination, if it shows that it may; gives the refusal otherwise.
    async fn admit<'v>(
        &'v self,
        live: &'v Live,
        destination: &'v Arc<Destination>,
        door: Door,
        parts: &Parts,
        peer: SocketAddr,
    ) -> Result<Visit<'v>, Response<Body>> {
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
        match self.recognise(live, parts, peer, room, began).await {
            Ok(caller) => {
                // From now on it is counted.
                let account = self
                    .limiter
                    .account(began, &caller.principal, peer.ip(), &parts.headers);
                Ok(visit(caller, account))
            }
            Err(refusal) => {
                Err(visit(Arc::new(Caller::nobody()), None).refuse(parts.method.as_str(), &refusal.into()))
            }
        }
    }
}

fn readiness_status(is_ready: bool) -> StatusCode {
    match is_ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn find(gateway: &Gateway, live: &Live, path: &str) -> Route {
    // Many client configurations end a path with a slash.
    let path = path.strip_suffix('/').unwrap_or(path);
    if let Some(resource) = live.guard.described(path) {
        return match find_door(resource, live.root.as_ref(), |name| {
            live.destinations.get(name).cloned()
        }) {
            Some((destination, door)) => Route::Metadata(destination, door),
            None => Route::Nowhere,
        };
    }
    // The clients of a destination that was removed may finish what is open there.
    let named = |name: &str| {
        let draining = || gateway.around.draining.named(name).into_iter().next();
        live.destinations.get(name).cloned().or_else(draining)
    };
    if let Some((destination, door)) = find_door(path, live.root.as_ref(), named) {
        return Route::Mcp(destination, door);
    }
    let old = |name: &str, path| named(name).map_or(Route::Nowhere, |found| Route::OldTransport(found, path));
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
fn find_door(
    path: &str,
    root: Option<&Arc<Destination>>,
    named: impl Fn(&str) -> Option<Arc<Destination>>,
) -> Option<(Arc<Destination>, Door)> {
    let mut segments = path.strip_prefix('/').unwrap_or_default().split('/');
    match (segments.next(), segments.next(), segments.next()) {
        (Some("mcp"), None, None) => Some((Arc::clone(root?), Door::Root)),
        (Some("mcp"), Some(name), None) => Some((named(name)?, Door::Alias)),
        (Some(name), Some("mcp"), None) => Some((named(name)?, Door::Named)),
        _ => None,
    }
}

/// One request for a destination.
pub(super) struct Visit<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) live: &'a Live,
    pub(super) destination: &'a Arc<Destination>,
    door: Door,
    pub(super) caller: Arc<Caller>,
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
    /// Counts the request against the minute of its caller, and of its session where it names one. Gives the session, if it
    /// was looked up.
    pub(super) fn admit(&self, head: &Head<'_>) -> Result<Option<Arc<SessionPort>>, Refusal> {
        let limiter = &self.gateway.limiter;
        limiter.request(self.began, self.account.as_ref())?;
        if limiter.counts_sessions_requests()
            && let Ok(Some(id)) = head.session_id()
            && let Some((_, port)) =
                self.destination
                    .session_for(SessionUse::NewRequest, id, &self.caller.principal)
        {
            limiter.session_request(self.began, &port.requests)?;
            return Ok(Some(port));
        }
        Ok(None)
    }

    /// Returns how the answer's bytes are counted while they wait on this connection.
    fn counted(&self, place: &ConnectionPlace) -> Option<Counted> {
        Some(Counted {
            buffered: Arc::clone(&self.gateway.around.buffered),
            principal: self.principal(),
            connection: place.handle()?.clone(),
        })
    }

    /// Returns whose share this request takes, and a session or a stream of it.
    pub(super) fn sharer(&self) -> Option<Sharer> {
        Sharer::of(self.account.as_ref(), &self.caller.principal)
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
        // A server that drops such characters would run another method than the one that was judged.
        let is_odd = |character: char| character.is_whitespace() || character.is_control();
        if message
            .method_name()
            .is_some_and(|method| method.contains(is_odd))
        {
            return Err(Refusal::OddMethod);
        }
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

    /// Refuses a request, and records that.
    pub(super) fn refuse(&self, http_method: &str, refused: &Refused) -> Response<Body> {
        let message = refused.message.as_ref();
        let id = message
            .filter(|message| message.has_valid_id())
            .and_then(|message| message.raw(Member::Id));
        let response = refused.refusal.respond(id);
        let principal = self.principal();
        let subject = Subject {
            destination: &self.destination.name,
            session: None,
            principal: principal.as_str(),
            composed: None,
            era: None,
            metrics: &*self.destination.traffic,
        };
        let record = Record {
            http_method,
            message,
            status: refused.refusal.status().as_u16(),
            ending: Ending::Refused(refused.refusal.recorded()),
            latency: self.elapsed(),
            request_bytes: refused.request_bytes,
            response: None,
            response_bytes: response.body().size_hint().lower(),
        };
        self.destination.recorder().record(&subject, &record);
        response
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
