//! Connections over TLS: HTTP/2 where the client wants it, HTTP/1.1 otherwise.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use http::header::{self, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::body::Body;
use super::client_stream::ClientStream;
use super::header_timer::{HEADER_TIME, HeaderTimer, IDLE_TIME};
use super::http::HttpConnectionSlot;
use super::lingering::UnreadFlag;
use super::listener::{READ_BUFFER, http1_server, limit_of_http1};
use super::write_timeout::WriteTimeout;
use crate::tasks;
use crate::tls::Tls;

/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// Streams that a peer may open and reset before they are accepted: more is an attack
/// (CVE-2023-44487).
const MAX_RESET_STREAMS: usize = 32;
/// A peer that is silent for this long gets a PING, and has as long to answer it.
const PING_TIME: Duration = Duration::from_secs(20);

/// Serves one connection until it ends. Returns the limit that ended it, if one did. When `left` ends,
/// an HTTP/2 connection takes no further requests.
pub(super) async fn serve_tls<Respond, Responding>(
    tls: &Tls,
    stream: TcpStream,
    (mut closing, left): (watch::Receiver<bool>, impl Future<Output = ()>),
    (unread, slot): (UnreadFlag, &HttpConnectionSlot),
    respond: Respond,
) -> Option<&'static str>
where
    Respond: Fn(Request<Incoming>) -> Responding + Clone + Send + 'static,
    Responding: Future<Output = Response<Body>> + Send + 'static,
{
    let accepted = tokio::select! {
        accepted = tls.accept(stream) => accepted,
        // A client that has not ended its handshake is not waited for.
        _ = closing.changed() => return None,
    };
    let stream = accepted?;
    let asked = Arc::new(AtomicBool::new(false));
    let asking = Arc::clone(&asked);
    let service = service_fn(move |mut request: Request<Incoming>| {
        asking.store(true, Ordering::Relaxed);
        name_host(&mut request);
        respond(request).map(Ok::<_, Infallible>)
    });
    let speaks_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let header_timer = HeaderTimer::default();
    let stream = TokioIo::new(ClientStream::new(stream, header_timer.clone(), unread));
    let ended = if speaks_http2 {
        let connection = http2::Builder::new(Tasks)
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(READ_BUFFER as u32)
            .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
            .keep_alive_interval(PING_TIME)
            .keep_alive_timeout(PING_TIME)
            .serve_connection(stream, service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            // Over HTTP/2 no other timeout ends a connection without a request, not even without a
            // preface.
            () = first_request_timeout(&asked) => return Some("header_time"),
            () = idle_timeout(slot) => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    // A peer that does not take its leave is not waited for.
                    () = tokio::time::sleep(HEADER_TIME) => return None,
                }
            }
            () = left => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            _ = closing.changed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        let behind = |error: &hyper::Error| WriteTimeout::is_reason_of(error).then_some("write_time");
        ended.map_err(|error| (behind(&error), error))
    } else {
        let connection = http1_server(&header_timer).serve_connection(stream, service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            _ = closing.changed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        ended.map_err(|error| (limit_of_http1(&error, &header_timer), error))
    };
    let (limit, error) = ended.err()?;
    tracing::debug!(%error, "connection ended");
    limit
}

/// Waits until a client has sent no request within the time that a head may take.
async fn first_request_timeout(asked: &AtomicBool) {
    tokio::time::sleep(HEADER_TIME).await;
    if asked.load(Ordering::Relaxed) {
        std::future::pending().await
    }
}

/// Waits until no request has been in flight for [`IDLE_TIME`], up to a third of it late. It costs
/// requests nothing: the connection is checked now and then, and is idle if it has not changed.
async fn idle_timeout(slot: &HttpConnectionSlot) {
    const LOOKS: u32 = 3;
    let (mut seen, mut unchanged) = (None, 0);
    while unchanged < LOOKS {
        tokio::time::sleep(IDLE_TIME / LOOKS).await;
        let idle_since = slot.idle_since();
        unchanged = if idle_since.is_some() && idle_since == seen {
            unchanged + 1
        } else {
            0
        };
        seen = idle_since;
    }
}

/// Copies the host to the `Host` header, where other code looks for it. HTTP/2 has it in the
/// target.
fn name_host(request: &mut Request<Incoming>) {
    if request.headers().contains_key(header::HOST) {
        return;
    }
    let host = request
        .uri()
        .authority()
        .and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(header::HOST, host);
    }
}

/// Runs the streams of an HTTP/2 connection.
#[derive(Clone, Copy)]
struct Tasks;

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        tasks::spawn("http2 stream", future);
    }
}
