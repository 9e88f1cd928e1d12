//! Connections to one remote server: which one a request takes, how it is driven, and when it is
//! used again.
//!
//! An HTTP/1 connection has no task of its own. The caller that waits for an answer drives it, in
//! the same poll that looks at the answer. A task would have to be woken for each request and would
//! have to wake the caller, which costs as much as the rest of an exchange. An idle connection lies
//! in the [`Pool`]; the next request notices what happened to it there before it writes a byte.
//! HTTP/2, where many share a connection, does have a task.
//!
//! Nothing is sent twice. A request that a connection hands back untouched takes another one; for
//! everything else the error leaves open whether the server has received it.

mod connector;
mod explanation;
mod pool;
mod read_after_write_error;

use std::future::poll_fn;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard};
use tokio::task::coop;
use tokio::time::Instant;
use url::Url;

use self::connector::{Connector, ServerStream};
pub(crate) use self::connector::{certificates, is_loopback, tls_config};
use self::pool::Pool;
use self::read_after_write_error::ReadAfterWriteError;
use crate::tasks;

/// How often a request may be handed back untouched before it fails: all idle connections may have
/// ended meanwhile, and then a few that were made for it.
const MAX_HANDED_BACK: usize = pool::MAX_IDLE + 4;

pub(super) type HttpRequest = Request<Full<Bytes>>;

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(super) enum SendError {
    /// No connection was made, so nothing was sent.
    Unreachable(String),
    /// No connection was made, because the server did not prove its identity.
    Unsafe(String),
    /// The request may have reached the server.
    BrokenOff(String),
}

/// An address at the server, in the forms that requests need.
#[derive(Debug)]
pub(super) struct Address {
    url: Url,
    whole: Uri,
    /// Path and query alone.
    path: Uri,
    host: HeaderValue,
}

impl Address {
    /// `None`: it is no address that HTTP could name.
    pub(super) fn new(url: Url) -> Option<Self> {
        let mut bare = url.clone();
        bare.set_fragment(None);
        let whole: Uri = bare.as_str().parse().ok()?;
        let path: Uri = whole.path_and_query()?.as_str().parse().ok()?;
        let name = bare.host_str()?;
        let host = match bare.port() {
            Some(port) => HeaderValue::try_from(format!("{name}:{port}")),
            None => HeaderValue::try_from(name),
        };
        Some(Self {
            url,
            whole,
            path,
            host: host.ok()?,
        })
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) fn host(&self) -> &HeaderValue {
        &self.host
    }
}

/// All connections to one origin.
#[derive(Debug)]
pub(super) struct HttpClient {
    connector: Connector,
    pool: Arc<Mutex<Pool<Box<Http1Connection>, Http2Sender>>>,
    /// The first request to connect learns whether one HTTP/2 connection serves all. The others
    /// wait for it, and fail with its error.
    first: tokio::sync::Mutex<Option<SendError>>,
    /// How often connecting failed.
    failures: AtomicU64,
}

/// A connection of HTTP/1 and the means to drive it.
#[derive(Debug)]
struct Http1Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// `None` when it has come to its end.
    connection: Option<http1::Connection<TokioIo<ReadAfterWriteError<ServerStream>>, Full<Bytes>>>,
}

type Http2Sender = http2::SendRequest<Full<Bytes>>;

/// The connection that a request is sent on.
enum PooledConnection {
    Own(Box<Http1Connection>),
    Shared(Http2Sender),
}

impl HttpClient {
    pub(super) fn new(origin: &Url, ca_file: Option<&Path>, socket: Option<&Path>) -> Self {
        Self {
            connector: Connector::new(origin, ca_file, socket),
            pool: Arc::default(),
            first: tokio::sync::Mutex::default(),
            failures: AtomicU64::new(0),
        }
    }

    fn pool(&self) -> MutexGuard<'_, Pool<Box<Http1Connection>, Http2Sender>> {
        self.pool.lock()
    }

    /// A connection broke off. The server may have gone, and with it the idle connections: a
    /// request on one of them would fail without a known outcome.
    fn doubt(&self, generation: u64) {
        self.pool().doubt(generation);
    }

    /// Sends a request and returns the head of the response. The request is built when there is a
    /// connection, and again if that one returns it, so that a waiting future holds none.
    pub(super) async fn send(
        &self,
        make: impl Fn() -> HttpRequest,
        at: &Address,
    ) -> Result<Response, SendError> {
        let mut handed_back = 0;
        loop {
            let (connection, generation) = self.connection().await?;
            let sent = match connection {
                PooledConnection::Own(mut http1_connection) => {
                    let mut answer = pin!(
                        http1_connection
                            .sender
                            .try_send_request(self.addressed(make(), at))
                    );
                    let mut http1_connection = Some(http1_connection);
                    poll_fn(|context| {
                        http1_connection
                            .as_mut()
                            .expect("it is there until the answer is")
                            .drive(context);
                        let response = ready!(answer.as_mut().poll(context))?;
                        let borrowed = http1_connection
                            .take()
                            .map(|http1_connection| BorrowedConnection {
                                http1_connection,
                                pool: Arc::clone(&self.pool),
                                generation,
                            });
                        Poll::Ready(Ok(Response::new(response, borrowed).given_back(context)))
                    })
                    .await
                }
                PooledConnection::Shared(mut sender) => {
                    Box::pin(sender.try_send_request(addressed_whole(make(), at)))
                        .await
                        .map(|response| Response::new(response, None))
                }
            };
            let mut error = match sent {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            handed_back += 1;
            match error.take_message() {
                Some(_) if handed_back <= MAX_HANDED_BACK => {}
                Some(_) => return Err(SendError::Unreachable(causes(error.error()))),
                None => {
                    self.doubt(generation);
                    let is_no_http = error.error().is_parse() && !self.connector.is_secure();
                    return Err(SendError::BrokenOff(match is_no_http {
                        true => explanation::of_no_http().to_owned(),
                        false => causes(error.error()),
                    }));
                }
            }
        }
    }

    /// Writes the address in the form that a connection of HTTP/1 wants.
    fn addressed(&self, mut request: HttpRequest, at: &Address) -> HttpRequest {
        match self.connector.through_proxy() {
            Some(authorization) => {
                *request.uri_mut() = at.whole.clone();
                if let Some(value) = authorization {
                    let name = http::header::PROXY_AUTHORIZATION;
                    request.headers_mut().insert(name, value.clone());
                }
            }
            None => *request.uri_mut() = at.path.clone(),
        }
        request
    }

    /// Returns an idle connection, or a new one. Connecting is boxed, since few requests need it.
    async fn connection(&self) -> Result<(PooledConnection, u64), SendError> {
        if let Some(found) = self.at_hand() {
            return Ok(found);
        }
        Box::pin(self.another()).await
    }

    async fn another(&self) -> Result<(PooledConnection, u64), SendError> {
        if !self.connector.may_be_shared() || self.pool().is_exclusive() {
            return self.connect().await;
        }
        let before = self.failures.load(Relaxed);
        let mut last = self.first.lock().await;
        if let Some(found) = self.at_hand() {
            return Ok(found);
        }
        // Otherwise each waiting task would repeat the attempt that has just failed.
        if self.failures.load(Relaxed) != before
            && let Some(lost) = &*last
        {
            return Err(lost.clone());
        }
        let connected = self.connect().await;
        if let Err(lost) = &connected {
            self.failures.fetch_add(1, Relaxed);
            *last = Some(lost.clone());
        }
        connected
    }

    /// Returns an idle connection. One that has ended meanwhile shows it on the next request: it
    /// reads before it writes, and hands back a request that it has not begun.
    fn at_hand(&self) -> Option<(PooledConnection, u64)> {
        let mut pool = self.pool();
        let generation = pool.generation();
        let now = Instant::now();
        if let Some(shared) = pool.shared(now) {
            match shared.is_closed() {
                true => pool.forget_shared(),
                false => return Some((PooledConnection::Shared(shared.clone()), generation)),
            }
        }
        Some((PooledConnection::Own(pool.take(now)?), generation))
    }

    async fn connect(&self) -> Result<(PooledConnection, u64), SendError> {
        let generation = self.pool().generation();
        let (stream, shared) = self.connector.connect().await?;
        if !shared {
            let (sender, connection) = http1::Builder::new()
                .handshake(TokioIo::new(ReadAfterWriteError::new(stream)))
                .await
                .map_err(|error| SendError::Unreachable(causes(&error)))?;
            self.pool().note_exclusive();
            let http1_connection = Http1Connection {
                sender,
                connection: Some(connection),
            };
            return Ok((PooledConnection::Own(Box::new(http1_connection)), generation));
        }
        let (sender, connection) = http2::Builder::new(Spawner)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| SendError::Unreachable(causes(&error)))?;
        tasks::spawn("http2 connection", async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of HTTP/2 has ended");
            }
        });
        let reap = self.pool().share(Instant::now(), generation, sender.clone());
        if reap {
            spawn_reaper(&self.pool);
        }
        Ok((PooledConnection::Shared(sender), generation))
    }
}

/// The same for HTTP/2, where the target holds what HTTP/1 puts into the `Host` header.
fn addressed_whole(mut request: HttpRequest, at: &Address) -> HttpRequest {
    *request.uri_mut() = at.whole.clone();
    if request.headers().get(HOST) == Some(&at.host) {
        request.headers_mut().remove(HOST);
    }
    request
}

/// Closes connections that were idle for too long, as long as there are any.
fn spawn_reaper(pool: &Arc<Mutex<Pool<Box<Http1Connection>, Http2Sender>>>) {
    let pool = Arc::downgrade(pool);
    tasks::spawn("idle connections", async move {
        while let Some(next) = Weak::upgrade(&pool).and_then(|pool| pool.lock().reap(Instant::now())) {
            tokio::time::sleep_until(next).await;
        }
    });
}

impl Http1Connection {
    /// Writes and reads as much as the socket allows.
    fn drive(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && Pin::new(connection).poll(context).is_ready()
        {
            // The drop of this connection wakes a caller that waits for an answer.
            self.connection = None;
        }
    }

    /// Returns whether a request may be given to it.
    fn is_free(&self) -> bool {
        self.connection.is_some() && self.sender.is_ready()
    }
}

/// A connection that is in use.
struct BorrowedConnection {
    http1_connection: Box<Http1Connection>,
    pool: Arc<Mutex<Pool<Box<Http1Connection>, Http2Sender>>>,
    generation: u64,
}

impl std::fmt::Debug for BorrowedConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lent").finish_non_exhaustive()
    }
}

impl BorrowedConnection {
    /// The answer was read to its end: the next request may have the connection, if it can still be
    /// used.
    fn give_back(mut self, context: &mut Context<'_>) {
        if !self.http1_connection.is_free() {
            self.http1_connection.drive(context);
        }
        if !self.http1_connection.is_free() {
            return;
        }
        let reap = self
            .pool
            .lock()
            .put(Instant::now(), self.generation, self.http1_connection);
        if reap {
            spawn_reaper(&self.pool);
        }
    }
}

/// The head of an answer, and its body as it comes.
#[derive(Debug)]
pub(super) struct Response {
    status: StatusCode,
    headers: HeaderMap,
    body: Incoming,
    /// How many bytes the body has, where that is known from the start.
    length: Option<u64>,
    borrowed: Option<BorrowedConnection>,
}

impl Response {
    fn new(response: http::Response<Incoming>, borrowed: Option<BorrowedConnection>) -> Self {
        let (head, body) = response.into_parts();
        Self {
            status: head.status,
            headers: head.headers,
            length: body.size_hint().exact(),
            body,
            borrowed,
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    pub(super) fn length(&self) -> Option<u64> {
        self.length
    }

    /// An answer without a body leaves its connection at once.
    fn given_back(mut self, context: &mut Context<'_>) -> Self {
        if self.body.is_end_stream() {
            self.give_back(context);
        }
        self
    }

    fn give_back(&mut self, context: &mut Context<'_>) {
        if let Some(borrowed) = self.borrowed.take() {
            borrowed.give_back(context);
        }
    }

    /// Returns the next piece of the body; `None` when it was the last.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, String> {
        poll_fn(|context| self.poll_chunk(context)).await
    }

    /// Returns the next piece of the body, if it is there already.
    pub(super) fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, String>> {
        // Thousands of pieces may lie in what was read at once, and no other task has a turn
        // between them.
        let turn = ready!(coop::poll_proceed(context));
        let mut driven = false;
        loop {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    turn.made_progress();
                    if self.body.is_end_stream() {
                        self.give_back(context);
                    }
                    return Poll::Ready(Ok(Some(data)));
                }
                Poll::Ready(None) => {
                    self.give_back(context);
                    return Poll::Ready(Ok(None));
                }
                Poll::Ready(Some(Err(error))) => {
                    if let Some(borrowed) = self.borrowed.take() {
                        borrowed.pool.lock().doubt(borrowed.generation);
                    }
                    return Poll::Ready(Err(causes(&error)));
                }
                Poll::Pending if driven => return Poll::Pending,
                Poll::Pending => {
                    let Some(borrowed) = &mut self.borrowed else {
                        return Poll::Pending;
                    };
                    borrowed.http1_connection.drive(context);
                    driven = true;
                }
            }
        }
    }
}

/// Returns the innermost cause, which is the most specific.
fn causes(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Spawns the tasks that hyper needs for HTTP/2.
#[derive(Debug, Clone, Copy)]
struct Spawner;

impl<F> hyper::rt::Executor<F> for Spawner
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        tasks::spawn("http2 stream", future);
    }
}

#[cfg(test)]
mod tests;
