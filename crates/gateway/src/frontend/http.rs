//! The HTTP frontend: finds the destination, authenticates the caller, dispatches the method. The
//! methods are in [`streamable`].

mod streamable;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use http_body::Body as _;
use hyper::body::Incoming;
use protocol::aggregate::ToolsMode;
use protocol::exchange::Principal;
use protocol::message::{Kind, Member, Message};
use protocol::method::Method as McpMethod;
use protocol::session::{self};
use protocol::time::Moment;
use tokio::task::AbortHandle;

use super::body::{Body, Counted};
use super::cors;
use super::head::Head;
use super::http_sse::OldPath;
use super::lingering::UnreadFlag;
use super::page;
use super::request_body::RequestBody;
use crate::active_config::ActiveConfig;
use crate::attachment::ATTACHED;
use crate::audit::SessionHash;
use crate::endpoint::{Endpoint, SessionUse};
use crate::frontend::respond;
use crate::gateway::Gateway;
use crate::guard::connections::ConnectionSlot;
use crate::guard::limits::{Account, Permit, Sharer};
use crate::guard::page::PageAccess;
use crate::guard::resource::EndpointPath;
use crate::guard::{Admission, AuthRequest, AuthTarget, Caller};
use crate::peer::Forwarded;
use crate::peer::forwarded::FORWARDED;
use crate::record::{Ending, Record, Subject};
use crate::reply::Refusal;
use crate::session_handle::SessionHandle;
use crate::settings::OpenPath;
use crate::status::Detail;

/// The connection of a request: its peer, its slot, and whether bytes are left unread.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    pub(crate) unread: UnreadFlag,
    pub(crate) slot: Arc<HttpConnectionSlot>,
}

/// The slot of a connection in the table, with the handle that aborts it.
pub(crate) type HttpConnectionSlot = ConnectionSlot<AbortHandle>;

/// How a request came here.
pub(super) trait RequestSource {
    /// Returns the address at the other end of the client's connection, which is never a replica.
    fn peer(&self) -> SocketAddr;

    /// Notes that the guard knows the caller.
    fn handle_authenticated(&self);

    /// Returns what is ended when the answer waits too long.
    fn abort_handle(&self) -> Option<&AbortHandle>;

    /// Returns what the replica vouches for that forwarded it; `None` for a client's own
    /// connection.
    fn forwarded(&self) -> Option<&Forwarded>;

    /// Returns the caller, if it is known without credentials.
    fn admitted(&self) -> Option<&Arc<Caller>>;
}

/// A request on a client's own connection.
struct FromClient<'a> {
    peer: SocketAddr,
    slot: &'a HttpConnectionSlot,
}

impl RequestSource for FromClient<'_> {
    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn handle_authenticated(&self) {
        self.slot.mark_authenticated();
    }

    fn abort_handle(&self) -> Option<&AbortHandle> {
        self.slot.handle()
    }

    fn forwarded(&self) -> Option<&Forwarded> {
        None
    }

    fn admitted(&self) -> Option<&Arc<Caller>> {
        None
    }
}

/// A request that came to the page for an endpoint.
struct FromPage<'a, S> {
    source: &'a S,
    caller: Arc<Caller>,
}

impl<S: RequestSource> RequestSource for FromPage<'_, S> {
    fn peer(&self) -> SocketAddr {
        self.source.peer()
    }

    fn handle_authenticated(&self) {
        self.source.handle_authenticated();
    }

    fn abort_handle(&self) -> Option<&AbortHandle> {
        self.source.abort_handle()
    }

    fn forwarded(&self) -> Option<&Forwarded> {
        None
    }

    fn admitted(&self) -> Option<&Arc<Caller>> {
        Some(&self.caller)
    }
}

/// Where a path leads.
enum Route {
    Health,
    Ready,
    Metrics,
    Mcp(Arc<Endpoint>, EndpointPath),
    /// Where to sign in for a destination.
    Metadata(Arc<Endpoint>, EndpointPath),
    /// `/sse` or `/message`: the old transport.
    OldTransport(Arc<Endpoint>, OldPath),
    /// `/sign-in/TICKET`: where a user signs in at a server.
    SignIn(String),
    /// `/ui`: the page, and what it asks.
    Page,
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
            Self::SignIn(_) => "GET",
            Self::Health | Self::Ready | Self::Metrics | Self::Metadata(..) | Self::Page | Self::Nowhere => {
                READING
            }
        }
    }
}

impl Gateway {
    /// Answers one request.
    ///
    /// `Parts` is large, so it is moved into this future once and borrowed below. This is no
    /// `async fn`, which would store its arguments twice.
    pub(crate) fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
        connection: Connection,
    ) -> impl Future<Output = Response<Body>> {
        let Connection { peer, unread, slot } = connection;
        let in_flight = slot.begin();
        let (mut parts, body) = request.into_parts();
        let mut body = RequestBody::Unread(body);
        async move {
            let config = self.config();
            let is_page = config.page != PageAccess::Off && page::has(parts.uri.path());
            let admitted = match is_page {
                true => config.origins.admit_page(&parts.uri, &parts.headers),
                false => config.origins.admit(&parts.uri, &parts.headers),
            };
            let origin = match admitted {
                Ok(origin) => origin,
                Err(refusal) => {
                    unread.set(body.is_left());
                    return match self.answer_probe(&config, &parts, peer, &refusal).await {
                        Some(answer) => answer,
                        None => self.reject(&refusal),
                    };
                }
            };
            // Only other replicas vouch for anything, on their own listener.
            parts.headers.remove(FORWARDED);
            // And only the admin socket tells where a server is to run.
            parts.headers.remove(ATTACHED);
            // No page of another origin reads the page.
            let origin = origin.filter(|_| !is_page);
            let source = FromClient { peer, slot: &slot };
            let mut response = self
                .route(&config, &mut parts, &mut body, &source, origin.is_some())
                .await;
            response.body_mut().keep(in_flight);
            unread.set(body.is_left());
            if self.has_left_socket() && parts.version < Version::HTTP_2 {
                // The client's next request goes to the next process.
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            if origin.is_some() || config.origins.names_origins() {
                cors::vary(&mut response);
            }
            if let Some(origin) = origin {
                cors::allow(&mut response, origin);
            }
            response
        }
    }

    /// Answers a health probe that was refused for its `Host`. Orchestrators and load balancers
    /// name an address, a service name or nothing there. They learn the status and no details, so
    /// that a rebound name learns no more.
    async fn answer_probe(
        &self,
        config: &ActiveConfig,
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
        match find(self, config, parts.uri.path()) {
            Route::Health => Some(respond::json(StatusCode::OK, HEALTHY)),
            Route::Ready => {
                let target = AuthTarget::Gateway(OpenPath::Ready);
                Some(
                    match self
                        .authenticate(config, parts, (peer, None), target, self.clock.now())
                        .await
                    {
                        Ok(_) => {
                            let is_ready = self.status(Detail::Sums).is_ready;
                            let status = readiness_status(is_ready);
                            respond::json(status, format!("{{\"ready\":{is_ready}}}\n"))
                        }
                        Err(refusal) => self.reject(&refusal),
                    },
                )
            }
            Route::Metrics
            | Route::Mcp(..)
            | Route::Metadata(..)
            | Route::OldTransport(..)
            | Route::SignIn(_)
            | Route::Page
            | Route::Nowhere => None,
        }
    }

    /// Refuses what is not for any destination.
    fn reject(&self, refusal: &Refusal) -> Response<Body> {
        self.reject_at(refusal, None)
    }

    fn reject_at(&self, refusal: &Refusal, path: Option<&str>) -> Response<Body> {
        self.listener_metrics.refused(refusal);
        tracing::debug!(
            status = refusal.status().as_u16(),
            reason = refusal.label(),
            path,
            "request refused"
        );
        refusal.respond(None)
    }

    pub(super) async fn route(
        self: &Arc<Self>,
        config: &ActiveConfig,
        parts: &mut Parts,
        body: &mut RequestBody,
        source: &impl RequestSource,
        cross_origin: bool,
    ) -> Response<Body> {
        let from = (source.peer(), source.admitted());
        let route = find(self, config, parts.uri.path());
        if matches!(route, Route::Page) {
            // Boxed, since it is rare.
            return Box::pin(self.answer_page(config, parts, body, source)).await;
        }
        // A preflight request has no credentials.
        if cross_origin && cors::is_preflight(&parts.method, &parts.headers) {
            return match route {
                Route::Nowhere => self.reject_at(&Refusal::UnknownPath, Some(parts.uri.path())),
                known => cors::preflight(&parts.headers, known.methods()),
            };
        }
        let is_reading = matches!(parts.method, Method::GET | Method::HEAD);
        match route {
            Route::Nowhere => self.reject_at(&Refusal::UnknownPath, Some(parts.uri.path())),
            Route::Health | Route::Ready | Route::Metrics | Route::Metadata(..) if !is_reading => {
                self.reject(&Refusal::WrongMethod { allow: READING })
            }
            Route::Health => respond::json(StatusCode::OK, HEALTHY),
            Route::Ready => {
                let target = AuthTarget::Gateway(OpenPath::Ready);
                match self
                    .authenticate(config, parts, from, target, self.clock.now())
                    .await
                {
                    Ok(caller) => {
                        let status = self.status(Detail::Sums);
                        let body = status.readiness(|name| caller.sees(name), caller.sees_everything());
                        respond::json(readiness_status(status.is_ready), body)
                    }
                    Err(refusal) => self.reject(&refusal),
                }
            }
            Route::Metrics => {
                let target = AuthTarget::Gateway(OpenPath::Metrics);
                match self
                    .authenticate(config, parts, from, target, self.clock.now())
                    .await
                {
                    Ok(caller) => respond::metrics(self.metrics_page(&caller)),
                    Err(refusal) => self.reject(&refusal),
                }
            }
            Route::Metadata(destination, endpoint_path) => {
                match config.guard.metadata(&destination.name, endpoint_path) {
                    Some(document) => respond::json(StatusCode::OK, document),
                    None => self.reject_at(&Refusal::UnknownPath, Some(parts.uri.path())),
                }
            }
            Route::SignIn(_) if parts.method != Method::GET => {
                self.reject(&Refusal::WrongMethod { allow: "GET" })
            }
            // Boxed, since it is rare.
            Route::SignIn(ticket) => match Box::pin(self.shared.sign_in_pages.open(&ticket)).await {
                Some(opened) => respond::sign_in(&opened),
                None => self.reject_at(&Refusal::UnknownPath, Some(parts.uri.path())),
            },
            Route::OldTransport(destination, path) => {
                match self
                    .admit(config, &destination, EndpointPath::Named, parts, source)
                    .await
                {
                    Ok(context) => {
                        let mut response = Box::pin(context.old_transport(path, parts, body)).await;
                        response
                            .body_mut()
                            .count(|| context.counted(source.abort_handle()));
                        response
                    }
                    Err(refused) => refused,
                }
            }
            // It was answered above.
            Route::Page => self.reject(&Refusal::UnknownPath),
            Route::Mcp(destination, endpoint_path) => {
                self.answer_mcp(config, (&destination, endpoint_path), parts, body, source)
                    .await
            }
        }
    }

    /// Answers a request for the page, or for an endpoint by way of the page.
    async fn answer_page(
        self: &Arc<Self>,
        config: &ActiveConfig,
        parts: &mut Parts,
        body: &mut RequestBody,
        source: &impl RequestSource,
    ) -> Response<Body> {
        if source.forwarded().is_some() {
            // A replica answers for itself alone.
            return self.reject(&Refusal::UnknownPath);
        }
        let origin = page::Origin {
            peer: source.peer(),
            admitted: source.admitted(),
            connection: source.abort_handle().cloned(),
        };
        match page::answer(self, config, parts, body, origin).await {
            page::Answer::Response(response) => {
                let status = response.status();
                if !status.is_client_error() && !status.is_server_error() {
                    source.handle_authenticated();
                }
                response
            }
            page::Answer::Endpoint(destination, caller) => {
                let by_page = FromPage { source, caller };
                let at = (&destination, EndpointPath::Named);
                let mut response = self.answer_mcp(config, at, parts, body, &by_page).await;
                let headers = response.headers_mut();
                let nosniff = header::HeaderValue::from_static("nosniff");
                headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
                response
            }
        }
    }

    /// Answers a request for the endpoint of a destination.
    async fn answer_mcp(
        &self,
        config: &ActiveConfig,
        (destination, endpoint_path): (&Arc<Endpoint>, EndpointPath),
        parts: &mut Parts,
        body: &mut RequestBody,
        source: &impl RequestSource,
    ) -> Response<Body> {
        let context = match self
            .admit(config, destination, endpoint_path, parts, source)
            .await
        {
            Ok(context) => context,
            Err(refused) => return refused,
        };
        let mut response = match parts.method {
            Method::POST => {
                // The URI would keep the connection's read buffer alive while the call
                // runs.
                parts.uri = Uri::default();
                // By far the largest future: boxed, so that other connections reserve no
                // memory for it.
                Box::pin(context.post(&mut parts.headers, body)).await
            }
            // Boxed, since it is rare.
            Method::GET | Method::DELETE if destination.placed_server().is_some() => {
                Box::pin(context.act_placed(&parts.method, &Head::of(&parts.headers))).await
            }
            Method::GET | Method::DELETE => {
                let head = Head::of(&parts.headers);
                let acted = match parts.method {
                    Method::DELETE => context.delete(&head),
                    _ => context.get(&head),
                };
                match acted {
                    Ok(response) => response,
                    // Boxed, since it is rare.
                    Err(refusal) if context.may_restore(&refusal) => {
                        Box::pin(context.act_located(&parts.method, &head)).await
                    }
                    Err(refusal) => context.refuse(parts.method.as_str(), &refusal.into()),
                }
            }
            Method::PUT
            | Method::PATCH
            | Method::HEAD
            | Method::OPTIONS
            | Method::TRACE
            | Method::CONNECT => self.reject(&Refusal::WrongMethod { allow: MCP_METHODS }),
            _ => self.reject(&Refusal::UnknownMethod),
        };
        // Streams count what they send as they send it.
        let sent = response.body().size_hint().exact().unwrap_or(0);
        response
            .body_mut()
            .count(|| context.counted(source.abort_handle()));
        destination.metrics.bytes_sent.fetch_add(sent, Relaxed);
        response
    }

    /// Authenticates a request. Unknown credentials are counted, and beyond the limit per minute
    /// their address gets 429 instead of 401.
    pub(super) async fn authenticate(
        &self,
        config: &ActiveConfig,
        parts: &Parts,
        (peer, admitted): (SocketAddr, Option<&Arc<Caller>>),
        target: AuthTarget<'_>,
        moment: Moment,
    ) -> Result<Arc<Caller>, Refusal> {
        if let Some(caller) = admitted {
            return Ok(Arc::clone(caller));
        }
        if let Some(anonymous) = config.guard.open_to(target) {
            return Ok(anonymous);
        }
        let headers = &parts.headers;
        let auth_request = AuthRequest {
            headers,
            query: parts.uri.query(),
            peer: peer.ip(),
            moment,
            now: SystemTime::now(),
        };
        let checked = match config.guard.admit(&auth_request, target) {
            Ok(Admission::Known(caller)) => return Ok(caller),
            // Boxed, since it is rare and large: otherwise every connection would reserve memory
            // for it.
            Ok(Admission::Unchecked(token)) => {
                Box::pin(config.guard.check(token, auth_request.now, target)).await
            }
            Err(refusal) => Err(refusal),
        };
        let refusal = match checked {
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

    /// Authenticates a request for a destination. Returns its context, or the response that refuses
    /// it.
    async fn admit<'v>(
        &'v self,
        config: &'v ActiveConfig,
        destination: &'v Arc<Endpoint>,
        endpoint_path: EndpointPath,
        parts: &Parts,
        source: &'v impl RequestSource,
    ) -> Result<RequestContext<'v>, Response<Body>> {
        let (began, peer) = (self.clock.now(), source.peer());
        let context = |caller, account| RequestContext {
            gateway: self,
            config,
            destination,
            endpoint_path,
            caller,
            account,
            began,
            peer,
            forwarded: source.forwarded(),
            tools: parts.uri.query().and_then(tools_mode),
        };
        let target = AuthTarget::Destination(&destination.name, endpoint_path);
        let from = (peer, source.admitted());
        match self.authenticate(config, parts, from, target, began).await {
            Ok(caller) => {
                // From now on it is counted.
                let account = self
                    .limiter
                    .account(began, &caller.principal, peer.ip(), &parts.headers);
                source.handle_authenticated();
                let context = context(caller, account);
                match source.forwarded() {
                    // Replicas with one configuration recognise the same caller.
                    Some(forwarded) if forwarded.principal != context.caller.principal.as_str() => {
                        Err(context.refuse(parts.method.as_str(), &Refusal::OtherCaller.into()))
                    }
                    Some(_) => Ok(context),
                    None => {
                        // Boxed, since most gateways have no fleet.
                        if context.counts_in_fleet()
                            && let Err(refusal) = Box::pin(context.count_request_in_fleet()).await
                        {
                            return Err(context.refuse(parts.method.as_str(), &refusal.into()));
                        }
                        Ok(context)
                    }
                }
            }
            Err(refusal) => Err(context(Arc::new(Caller::unauthenticated()), None)
                .refuse(parts.method.as_str(), &refusal.into())),
        }
    }
}

/// Returns how a query wants tools to be listed: `tools=all` or `tools=search`.
fn tools_mode(query: &str) -> Option<ToolsMode> {
    let mut values = query.split('&').filter_map(|pair| pair.strip_prefix("tools="));
    values.next_back().and_then(|value| match value {
        "all" => Some(ToolsMode::All),
        "search" => Some(ToolsMode::Search),
        _ => None,
    })
}

fn readiness_status(is_ready: bool) -> StatusCode {
    match is_ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn find(gateway: &Gateway, config: &ActiveConfig, path: &str) -> Route {
    // Many client configurations end a path with a slash.
    let path = path.strip_suffix('/').unwrap_or(path);
    if let Some(resource) = config.guard.described(path) {
        return match find_endpoint(resource, config.root.as_ref(), |name| {
            config.destinations.get(name).cloned()
        }) {
            Some((destination, endpoint_path)) => Route::Metadata(destination, endpoint_path),
            None => Route::Nowhere,
        };
    }
    // The clients of a destination that was removed may finish what is open there.
    let named = |name: &str| {
        let draining = || gateway.shared.draining.named(name).into_iter().next();
        config.destinations.get(name).cloned().or_else(draining)
    };
    if let Some((destination, endpoint_path)) = find_endpoint(path, config.root.as_ref(), named) {
        return Route::Mcp(destination, endpoint_path);
    }
    let old = |name: &str, path| named(name).map_or(Route::Nowhere, |found| Route::OldTransport(found, path));
    let mut segments = path.strip_prefix('/').unwrap_or_default().split('/');
    match (segments.next(), segments.next(), segments.next()) {
        (Some("ui"), ..) if config.page != PageAccess::Off => Route::Page,
        (Some("health"), None, None) => Route::Health,
        (Some("ready"), None, None) => Route::Ready,
        (Some("metrics"), None, None) if gateway.shows_metrics => Route::Metrics,
        // Where the only destination is addressed without its name.
        (Some("sse"), None, None) => of_root(config, OldPath::Stream),
        (Some("message"), None, None) => of_root(config, OldPath::Message),
        (Some(name), Some("sse"), None) => old(name, OldPath::Stream),
        (Some(name), Some("message"), None) => old(name, OldPath::Message),
        (Some("sign-in"), Some(ticket), None) if gateway.shared.sign_in_pages.has(ticket) => {
            Route::SignIn(ticket.to_owned())
        }
        _ => Route::Nowhere,
    }
}

fn of_root(config: &ActiveConfig, path: OldPath) -> Route {
    let root = config.root.as_ref();
    root.map_or(Route::Nowhere, |root| Route::OldTransport(Arc::clone(root), path))
}

/// Returns the destination whose endpoint this path is.
fn find_endpoint(
    path: &str,
    root: Option<&Arc<Endpoint>>,
    named: impl Fn(&str) -> Option<Arc<Endpoint>>,
) -> Option<(Arc<Endpoint>, EndpointPath)> {
    let mut segments = path.strip_prefix('/').unwrap_or_default().split('/');
    match (segments.next(), segments.next(), segments.next()) {
        (Some("mcp"), None, None) => Some((Arc::clone(root?), EndpointPath::Root)),
        (Some("mcp"), Some(name), None) => Some((named(name)?, EndpointPath::Alias)),
        (Some(name), Some("mcp"), None) => Some((named(name)?, EndpointPath::Named)),
        _ => None,
    }
}

/// One request for a destination.
pub(super) struct RequestContext<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) config: &'a ActiveConfig,
    pub(super) destination: &'a Arc<Endpoint>,
    pub(super) endpoint_path: EndpointPath,
    pub(super) caller: Arc<Caller>,
    pub(super) began: Moment,
    /// The address at the other end of the client's connection. It is never that of a replica.
    pub(super) peer: SocketAddr,
    /// What the replica vouches for that forwarded the request.
    pub(super) forwarded: Option<&'a Forwarded>,
    /// The account that it is counted on, where limits are about callers.
    pub(super) account: Option<Arc<Account>>,
    /// How its URL wants the tools of an aggregate to be listed.
    pub(super) tools: Option<ToolsMode>,
}

/// A refused request, as far as it was understood.
pub(super) struct RefusedRequest {
    pub(super) refusal: Refusal,
    pub(super) message: Option<Message>,
    /// How much was read of it, understood or not.
    pub(super) request_bytes: u64,
}

impl From<Refusal> for RefusedRequest {
    fn from(refusal: Refusal) -> Self {
        Self {
            refusal,
            message: None,
            request_bytes: 0,
        }
    }
}

impl RequestContext<'_> {
    /// Counts the request for the rate limits (429): of its caller, and of its session where it
    /// names one. Returns the session, if it was looked up.
    pub(super) fn count_request(&self, head: &Head<'_>) -> Result<Option<Arc<SessionHandle>>, Refusal> {
        let limiter = &self.gateway.limiter;
        if self.forwarded.is_none() {
            limiter.request(self.began, self.account.as_ref())?;
        }
        if limiter.counts_sessions_requests()
            && let Ok(Some(id)) = head.session_id()
            && let Some((_, handle)) =
                self.destination
                    .session_for(SessionUse::NewRequest, id, &self.caller.principal)
            && self.suits(&handle)
        {
            limiter.session_request(self.began, &handle.requests)?;
            return Ok(Some(handle));
        }
        Ok(None)
    }

    /// Returns whether the request, and a call that it makes, are counted in the whole fleet. The
    /// replica that its client reached has counted a request of a peer.
    pub(super) fn counts_in_fleet(&self) -> bool {
        self.gateway.limiter.is_in_fleet() && self.forwarded.is_none()
    }

    /// Counts the request against the minute that its caller has in the whole fleet.
    pub(super) async fn count_request_in_fleet(&self) -> Result<(), Refusal> {
        let limiter = &self.gateway.limiter;
        limiter.request_in_fleet(self.account.as_ref()).await
    }

    /// Takes a place for a call that all replicas count.
    pub(super) async fn call_in_fleet(&self, permit: Option<&mut Permit>) -> Result<(), Refusal> {
        let limiter = &self.gateway.limiter;
        match permit {
            Some(permit) => limiter.call_in_fleet(self.account.as_ref(), permit).await,
            None => Ok(()),
        }
    }

    /// Returns the places of a new session: here, and where replicas count together, in the fleet.
    pub(super) async fn session_permit(&self) -> Result<Permit, Refusal> {
        let limiter = &self.gateway.limiter;
        let mut permit = limiter.session(self.sharer().as_ref())?;
        if limiter.is_in_fleet() {
            let limit = self.destination.max_sessions();
            let destination = (&*self.destination.name, limit);
            let account = self.account.as_ref();
            let taken = limiter.session_in_fleet(account, destination, &mut permit).await;
            if taken == Err(Refusal::TooManySessions { limit }) {
                // One that is no longer used makes room, as where a single process is full.
                self.destination.end_one_session(&self.caller.principal)?;
                limiter
                    .session_in_fleet(account, destination, &mut permit)
                    .await?;
            } else {
                taken?;
            }
        }
        Ok(permit)
    }

    /// Returns how the answer's bytes are counted while they wait on this connection.
    fn counted(&self, connection: Option<&AbortHandle>) -> Option<Counted> {
        Some(Counted {
            buffered: Arc::clone(&self.gateway.shared.buffered),
            principal: self.principal(),
            connection: connection?.clone(),
        })
    }

    /// Returns whose share this request takes, and a session or a stream of it.
    pub(super) fn sharer(&self) -> Option<Sharer> {
        Sharer::of(self.account.as_ref(), &self.caller.principal)
    }

    /// Returns whose share of the calls in flight this request takes. The replica that its client
    /// reached has counted a request of a peer.
    pub(super) fn call_sharer(&self) -> Option<Sharer> {
        match self.forwarded {
            None => self.sharer(),
            Some(_) => None,
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.gateway.clock.now().since(self.began)
    }

    pub(super) fn principal(&self) -> Principal {
        self.caller.principal.clone()
    }

    pub(super) fn target(&self) -> AuthTarget<'_> {
        AuthTarget::Destination(&self.destination.name, self.endpoint_path)
    }

    /// Checks that the caller may send this message: by its scopes, and by the destination's policy
    /// for tools.
    pub(super) fn permit(&self, message: &Message) -> Result<(), Refusal> {
        // A server that drops such characters would run another method than the one that was
        // judged. The names that Rialto knows have none.
        let is_odd = |character: char| character.is_whitespace() || character.is_control();
        if message.method() == McpMethod::Other
            && message
                .method_name()
                .is_some_and(|method| method.contains(is_odd))
        {
            return Err(Refusal::OddMethod);
        }
        self.config.guard.permit(&self.caller, self.target(), message)?;
        if self.config.guard.judges_tools(&self.caller) {
            // A rule about a tool holds under every name that an aggregate gives it.
            for own in self.destination.called_tools(&self.caller.principal, message)? {
                self.config.guard.permit(&self.caller, self.target(), &own)?;
            }
        }
        self.destination.check_tool(message)
    }

    /// Refuses new requests while the gateway drains, unless they can still be answered. Messages that
    /// a call in flight may wait for are accepted.
    pub(super) fn check_open(&self, message: &Message) -> Result<(), Refusal> {
        match message.kind() {
            Kind::Request if self.gateway.refuses_requests() => Err(Refusal::Draining),
            Kind::Request | Kind::Notification | Kind::Result | Kind::Error => Ok(()),
        }
    }

    /// Refuses requests whose audit record could not be written.
    pub(super) fn check_recorded(&self) -> Result<(), Refusal> {
        if self.gateway.audit.refuses() {
            return Err(Refusal::AuditUnavailable);
        }
        Ok(())
    }

    /// Records the end of a session that was open in no process.
    pub(super) fn record_closing(&self, http_method: &'static str, status: u16, session: &SessionHash) {
        let principal = self.principal();
        let subject = Subject {
            destination: &self.destination.name,
            session: Some(*session),
            principal: principal.as_str(),
            composed: None,
            era: None,
            metrics: &*self.destination.metrics,
            observed: None,
        };
        let record = Record::of_closing(http_method, status, self.elapsed(), 0);
        self.destination.recorder().record(&subject, &record);
    }

    /// Refuses a request, and records that.
    pub(super) fn refuse(&self, http_method: &str, refused: &RefusedRequest) -> Response<Body> {
        let misdirected = RefusedRequest::from(Refusal::OwnerUnreached);
        let refused = match (&refused.refusal, self.forwarded) {
            // Only a replica that forwarded a request can forward it elsewhere.
            (Refusal::NotOwner, None) => &RefusedRequest {
                message: refused.message.clone(),
                request_bytes: refused.request_bytes,
                ..misdirected
            },
            _ => refused,
        };
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
            metrics: &*self.destination.metrics,
            observed: None,
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
            route: None,
        };
        self.destination.recorder().record(&subject, &record);
        response
    }
}

/// Converts a session's refusal to the frontend's.
pub(super) fn refuse_message(refusal: session::Rejection) -> Refusal {
    match refusal {
        session::Rejection::Invalid(invalid) => Refusal::InvalidRequest(invalid),
        session::Rejection::AlreadyOpen => Refusal::AlreadyOpen,
        session::Rejection::TooManyCalls => Refusal::TooManyCalls,
        session::Rejection::Ended => Refusal::UnknownSession,
    }
}
