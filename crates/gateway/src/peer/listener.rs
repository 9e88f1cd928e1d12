//! The listener that other replicas reach: HTTP/2 over TLS with a certificate on both sides.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cluster::NodeId;
use cluster::key::{PeerIdentity, certifies};
use http::header::{self, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

use super::PeerLimits;
use super::exchange::BoxError;
use super::forwarded::{FORWARDED, Forwarded, ForwardedError, PeerAnswer, SENDER};
use crate::tasks;

/// How long accepting pauses when there are no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What answers requests that other replicas forward.
pub trait PeerHandler: Send + Sync + 'static {
    type Body: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static;

    /// Answers one request for a session of this replica. The future and the body are dropped when
    /// the client has gone, or the replica between. `stream` resets the response, and no other of
    /// the same connection.
    fn handle(
        &self,
        request: Request<Incoming>,
        forwarded: Forwarded,
        stream: AbortHandle,
    ) -> impl Future<Output = Result<Response<Self::Body>, NotOwner>> + Send;
}

/// This replica does not own the session of a request, which it has not processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotOwner {
    /// The epoch under which it knows the session, if it does.
    pub epoch: Option<u64>,
}

/// A socket that other replicas connect to.
#[derive(Debug)]
pub struct PeerListener {
    socket: TcpListener,
    identity: PeerIdentity,
    limits: PeerLimits,
}

impl PeerListener {
    /// Listens on an address (`cluster.listen`).
    pub async fn bind(
        address: SocketAddr,
        identity: &PeerIdentity,
        limits: PeerLimits,
    ) -> std::io::Result<Self> {
        Ok(Self {
            socket: TcpListener::bind(address).await?,
            identity: identity.clone(),
            limits,
        })
    }

    /// Listens on a socket that was bound before. It is in non-blocking mode.
    pub fn from_std(
        socket: std::net::TcpListener,
        identity: &PeerIdentity,
        limits: PeerLimits,
    ) -> std::io::Result<Self> {
        Ok(Self {
            socket: TcpListener::from_std(socket)?,
            identity: identity.clone(),
            limits,
        })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves requests until `closing` is set. Then it accepts no more, announces that to its
    /// peers, and returns when the requests in flight have ended. If it is dropped, they are too.
    pub async fn serve<H: PeerHandler>(self, handler: Arc<H>, mut closing: watch::Receiver<bool>) {
        let peers = u32::try_from(self.limits.peers).unwrap_or(u32::MAX);
        let server = Arc::new(Server {
            handler,
            tls: TlsAcceptor::from(self.identity.server()),
            limits: self.limits,
            slots: Arc::new(Semaphore::new(peers as usize)),
            failures: AtomicU64::new(0),
        });
        // Connections end with this future, as they have its sender.
        let (connections, _) = watch::channel(());
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                () = closed(&mut closing) => break,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection of a replica");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(slot) = Arc::clone(&server.slots).try_acquire_owned() else {
                tracing::warn!(%address, "too many connections of replicas; one was refused");
                continue;
            };
            let (server, closing, mut abandoned) =
                (Arc::clone(&server), closing.clone(), connections.subscribe());
            tasks::spawn("peer listener connection", async move {
                let _slot = slot;
                tokio::select! {
                    () = server.serve_connection(stream, address, closing) => {}
                    // No value is ever sent: this is the drop of the listener.
                    _ = abandoned.changed() => {}
                }
            });
        }
        drop(self.socket);
        let _all = server.slots.acquire_many(peers).await;
    }
}

/// Returns when the listener shall close, or its owner is gone.
async fn closed(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|is_closing| *is_closing).await;
}

/// What all connections of one listener share.
struct Server<H> {
    handler: Arc<H>,
    tls: TlsAcceptor,
    limits: PeerLimits,
    slots: Arc<Semaphore>,
    failures: AtomicU64,
}

type ResponseBody<B> = Either<B, Full<Bytes>>;

impl<H: PeerHandler> Server<H> {
    async fn serve_connection(
        self: &Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        mut closing: watch::Receiver<bool>,
    ) {
        let _ = stream.set_nodelay(true);
        let accepting = tokio::time::timeout(self.limits.connect_timeout, self.tls.accept(stream));
        let accepted = tokio::select! {
            accepted = accepting => accepted,
            () = closed(&mut closing) => return,
        };
        let stream = match accepted {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return self.note_failure(address, &error.to_string()),
            Err(_) => return self.note_failure(address, "the handshake took too long"),
        };
        let certificates = stream.get_ref().1.peer_certificates();
        let sender = Arc::new(Sender {
            certificate: certificates.and_then(|chain| chain.first()).cloned(),
            known: Mutex::default(),
        });
        let service = service_fn({
            let server = Arc::clone(self);
            move |request| {
                let (server, sender) = (Arc::clone(&server), Arc::clone(&sender));
                async move {
                    // The task may run before its start has returned, on another thread.
                    let stream = STREAM.with(|stream| stream.wait().clone());
                    Ok::<_, Infallible>(server.respond(request, &sender, stream).await)
                }
            }
        });
        let streams = u32::try_from(self.limits.streams).unwrap_or(u32::MAX);
        let connection = http2::Builder::new(Streams)
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams)
            .initial_stream_window_size(self.limits.stream_window)
            .initial_connection_window_size(self.limits.connection_window())
            .max_send_buf_size(self.limits.stream_window as usize)
            .max_header_list_size(self.limits.header_bytes)
            // A replica resets a stream for each client that disconnects, which is no attack.
            .max_pending_accept_reset_streams(self.limits.streams)
            .max_local_error_reset_streams(None)
            .keep_alive_interval(self.limits.ping_interval)
            .keep_alive_timeout(self.limits.ping_timeout)
            .serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = closed(&mut closing) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%address, %error, "connection of a replica ended");
        }
    }

    /// Reports a failed handshake. A port scanner decides how often this happens, so the log grows
    /// slower than that.
    fn note_failure(&self, address: SocketAddr, why: &str) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures.is_power_of_two() {
            tracing::warn!(
                %address,
                failures,
                why,
                "a connection to cluster.listen was refused: the sender has another cluster.key_file, or looks for an earlier run of this replica"
            );
        }
    }

    async fn respond(
        &self,
        mut request: Request<Incoming>,
        sender: &Sender,
        stream: AbortHandle,
    ) -> Response<ResponseBody<H::Body>> {
        let headers = request.headers_mut();
        if !headers.remove(SENDER).is_some_and(|named| sender.is(&named)) {
            let text = format!("the certificate is not the one of the replica that `{SENDER}` names");
            return refusal(StatusCode::FORBIDDEN, PeerAnswer::Refused, text);
        }
        let forwarded = match Forwarded::take_from(headers) {
            Ok(forwarded) => forwarded,
            Err(ForwardedError::Loop) => {
                let text = ForwardedError::Loop.to_string();
                return refusal(StatusCode::LOOP_DETECTED, PeerAnswer::Refused, text);
            }
            Err(error) => return refusal(StatusCode::BAD_REQUEST, PeerAnswer::Refused, error.to_string()),
        };
        name_host(&mut request);
        match self.handler.handle(request, forwarded, stream).await {
            Ok(mut response) => {
                // Only a listener's own answers have this header.
                response.headers_mut().remove(FORWARDED);
                response.map(Either::Left)
            }
            Err(NotOwner { epoch }) => {
                let text = "this replica does not own the session".to_owned();
                refusal(StatusCode::MISDIRECTED_REQUEST, PeerAnswer::NotOwner(epoch), text)
            }
        }
    }
}

/// The replica at the other end of a connection.
struct Sender {
    certificate: Option<CertificateDer<'static>>,
    /// The name that the certificate was found to be of. It is compared once, then remembered.
    known: Mutex<Option<HeaderValue>>,
}

impl Sender {
    /// Returns whether the certificate of the connection is the one of the run of a replica that is
    /// named so.
    fn is(&self, named: &HeaderValue) -> bool {
        let mut known = self.known.lock();
        if known.as_ref() == Some(named) {
            return true;
        }
        let node = named.to_str().ok().and_then(|named| named.parse::<NodeId>().ok());
        let is_certified = match (&self.certificate, node) {
            (Some(certificate), Some(node)) => certifies(certificate, &node),
            (Some(_) | None, _) => false,
        };
        if is_certified {
            *known = Some(named.clone());
        }
        is_certified
    }
}

fn refusal<B>(status: StatusCode, answer: PeerAnswer, text: String) -> Response<ResponseBody<B>> {
    let mut response = Response::new(Either::Right(Full::new(Bytes::from(text))));
    *response.status_mut() = status;
    response.headers_mut().insert(FORWARDED, answer.value());
    response
}

/// HTTP/2 names the host in the target, and the frontend reads it from the header.
fn name_host(request: &mut Request<Incoming>) {
    let authority = request.uri().authority();
    let host = authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(header::HOST, host);
    }
}

tokio::task_local! {
    /// What ends the task that answers the current stream.
    static STREAM: Arc<OnceLock<AbortHandle>>;
}

/// Runs the streams of a connection: a task answers each, and the stream is reset if it ends early.
#[derive(Debug, Clone, Copy)]
struct Streams;

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        let stream = Arc::new(OnceLock::new());
        let task = tasks::spawn("peer request", STREAM.scope(Arc::clone(&stream), future));
        // It is set once.
        let _ = stream.set(task.abort_handle());
    }
}
