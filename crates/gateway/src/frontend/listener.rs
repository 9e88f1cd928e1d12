//! The listener: accepts connections, and serves the requests on them.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::client_stream::ClientStream;
use super::header_timer::{HEADER_TIME, HeaderTimer};
use super::http::{Connection, HttpConnectionSlot};
use super::lingering::UnreadFlag;
use super::tls_listener;
use super::write_timeout::WriteTimeout;
use crate::gateway::Gateway;
use crate::guard::connections::{ConnectionLimits, ConnectionTable, LimitReached};
use crate::tasks;

const MAX_HEADERS: usize = 100;
/// The longest head of a request, and the unit in which bodies are read.
pub(super) const READ_BUFFER: usize = 64 << 10;

/// Accepts connections for as long as it is polled. Those that are open end when `closing` is set.
pub(crate) async fn accept_loop(gateway: Arc<Gateway>, listener: TcpListener, closing: watch::Sender<bool>) {
    let table = Arc::new(ConnectionTable::default());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                gateway
                    .listener_metrics
                    .connections_accepted
                    .fetch_add(1, Ordering::Relaxed);
                let admitted = match table.admit(peer.ip(), connection_limits(&gateway, peer.ip())) {
                    Ok(admitted) => admitted,
                    Err(LimitReached(limit)) => {
                        gateway.listener_metrics.limit_hit(limit);
                        reject_connection(&gateway, &stream);
                        continue;
                    }
                };
                let thread = gateway.shared.threads.for_connection();
                let stream = match Accepted::new(stream, thread) {
                    Ok(stream) => stream,
                    Err(error) => {
                        tracing::warn!(%error, "cannot hand a connection to its thread");
                        continue;
                    }
                };
                let (serving, slot) = (Arc::clone(&gateway), Arc::clone(&admitted.slot));
                let closing = closing.subscribe();
                let connection = tasks::spawn_on(thread, "connection", async move {
                    // Another thread may be here before the handle is set, which the first answer
                    // may need.
                    while slot.handle().is_none() {
                        tokio::task::yield_now().await;
                    }
                    let _counted = serving.count_connection();
                    match stream.registered() {
                        Ok(stream) => serve_connection(&serving, stream, peer, slot, closing).await,
                        Err(error) => tracing::warn!(%error, "cannot serve a connection"),
                    }
                });
                admitted.slot.can_be_ended_by(connection.abort_handle());
                if let Some(evicted) = admitted.evicted {
                    gateway.listener_metrics.limit_hit(evicted.limit);
                    gateway
                        .listener_metrics
                        .connections_evicted
                        .fetch_add(1, Ordering::Relaxed);
                    if let Some(connection) = evicted.handle {
                        connection.abort();
                    }
                    // It closes its socket now, so that there are never many more of them than
                    // places.
                    tokio::task::yield_now().await;
                }
            }
            Err(error) => {
                // Out of descriptors, most likely: trying again at once would only burn the
                // processor.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// A connection on its way to the task that serves it. A socket is polled by the thread that serves
/// it, so it is registered there.
enum Accepted {
    Here(TcpStream),
    Elsewhere(std::net::TcpStream),
}

impl Accepted {
    fn new(stream: TcpStream, thread: Option<&Handle>) -> io::Result<Self> {
        match thread {
            Some(_) => stream.into_std().map(Self::Elsewhere),
            None => Ok(Self::Here(stream)),
        }
    }

    /// Returns the socket, registered with the current runtime.
    fn registered(self) -> io::Result<TcpStream> {
        match self {
            Self::Here(stream) => Ok(stream),
            Self::Elsewhere(stream) => TcpStream::from_std(stream),
        }
    }
}

/// Answers a connection beyond the limits with the shortest 503, without waiting for anything. Over
/// TLS nothing is written in the clear: the client only sees the connection close.
fn reject_connection(gateway: &Gateway, stream: &TcpStream) {
    const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    if gateway.tls.is_none() {
        // A client whose socket takes no bytes only sees the connection close, too.
        let _ = stream.try_write(FULL);
    }
}

/// Returns how many connections there may be, and of this address.
fn connection_limits(gateway: &Gateway, peer: IpAddr) -> ConnectionLimits {
    ConnectionLimits {
        in_all: gateway.limits.connections,
        of_address: gateway.limits.connections_of(peer),
    }
}

/// Serves one connection until it ends.
async fn serve_connection(
    gateway: &Arc<Gateway>,
    stream: TcpStream,
    peer: SocketAddr,
    slot: Arc<HttpConnectionSlot>,
    mut closing: watch::Receiver<bool>,
) {
    // An answer must not wait for the client to acknowledge the previous one.
    let _ = stream.set_nodelay(true);
    let unread = UnreadFlag::default();
    let origin = Connection {
        peer,
        unread: unread.clone(),
        slot: Arc::clone(&slot),
    };
    if let Some(tls) = &gateway.tls {
        let responding = Arc::clone(gateway);
        let respond = move |request| Arc::clone(&responding).respond(request, origin.clone());
        let reached = Box::pin(tls_listener::serve_tls(
            tls,
            stream,
            (closing, gateway.socket_left()),
            (unread, &slot),
            respond,
        ))
        .await;
        return reached
            .into_iter()
            .for_each(|limit| gateway.listener_metrics.limit_hit(limit));
    }
    let service = service_fn({
        let gateway = Arc::clone(gateway);
        move |request| {
            Arc::clone(&gateway)
                .respond(request, origin.clone())
                .map(Ok::<_, Infallible>)
        }
    });
    let header_timer = HeaderTimer::default();
    let stream = TokioIo::new(ClientStream::new(stream, header_timer.clone(), unread));
    let connection = http1_server(&header_timer).serve_connection(stream, service);
    tokio::pin!(connection);
    let ended = match unless_closed(gateway, connection.as_mut(), &mut closing).await {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        if let Some(limit) = limit_of_http1(&error, &header_timer) {
            gateway.listener_metrics.limit_hit(limit);
        }
        tracing::debug!(%error, "connection ended");
    }
}

/// Returns how a connection ended; `None`, if all are to be closed before.
///
/// Each message on a connection leads here, so `closing` is only polled when it may be set: it
/// wakes a task that has polled it once, and by then the gateway drains.
async fn unless_closed<T>(
    gateway: &Gateway,
    mut connection: Pin<&mut impl Future<Output = T>>,
    closing: &mut watch::Receiver<bool>,
) -> Option<T> {
    let mut closed = std::pin::pin!(closing.changed());
    let mut has_polled = false;
    std::future::poll_fn(|context| {
        if let Poll::Ready(ended) = connection.as_mut().poll(context) {
            return Poll::Ready(Some(ended));
        }
        if has_polled && !gateway.is_draining() {
            return Poll::Pending;
        }
        has_polled = true;
        closed.as_mut().poll(context).map(|_| None)
    })
    .await
}

/// Returns a server of HTTP/1 with the limits that hold for every client.
pub(super) fn http1_server(header_timer: &HeaderTimer) -> http1::Builder {
    let mut server = http1::Builder::new();
    server
        .timer(header_timer.clone())
        .header_read_timeout(HEADER_TIME)
        .max_headers(MAX_HEADERS)
        .max_buf_size(READ_BUFFER);
    server
}

/// Returns the limit that ended a connection, if it was one. The end of an idle connection is none.
pub(super) fn limit_of_http1(error: &hyper::Error, header_timer: &HeaderTimer) -> Option<&'static str> {
    if error.is_timeout() {
        (!header_timer.is_idle()).then_some("header_time")
    } else if error.is_parse_too_large() {
        Some("header_bytes")
    } else {
        WriteTimeout::is_reason_of(error).then_some("write_time")
    }
}
