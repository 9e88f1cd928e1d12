//! The admin socket: a Unix socket for the user that runs this gateway, and for no other.
//!
//! It serves what the listener serves, and beside it what the gateway does ([`api`]). Its peers
//! need no credentials: the kernel names the user of each, and only the gateway's own user and root
//! are admitted, and no server that the gateway has started. A request may carry what `rialto
//! attach` hands over ([`crate::attachment`]), which no other way in accepts.

mod api;
mod feed_body;

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

use super::body::Body;
use super::client_stream::ClientStream;
use super::header_timer::HeaderTimer;
use super::http::RequestSource;
use super::lingering::UnreadFlag;
use super::listener::http1_server;
use super::request_body::RequestBody;
use crate::buffered::Piece;
use crate::gateway::Gateway;
use crate::guard::Caller;
use crate::peer::Forwarded;
use crate::peer::forwarded::FORWARDED;
use crate::{local_client, tasks};
use feed_body::FeedBody;

/// Connections at once. Each `rialto attach` has a few.
const MAX_CONNECTIONS: usize = 1024;
/// How long the last answer of a connection may take when all are closed.
const CLOSE_TIME: Duration = Duration::from_millis(500);

/// A request on the admin socket.
struct FromLocal {
    caller: Arc<Caller>,
    connection: AbortHandle,
}

impl RequestSource for FromLocal {
    fn peer(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
    }

    fn handle_authenticated(&self) {}

    fn abort_handle(&self) -> Option<&AbortHandle> {
        Some(&self.connection)
    }

    fn forwarded(&self) -> Option<&Forwarded> {
        None
    }

    fn admitted(&self) -> Option<&Arc<Caller>> {
        Some(&self.caller)
    }
}

/// Accepts connections for as long as it is polled. Those that are open end when `closing` is set.
pub(crate) async fn accept_local(
    gateway: Arc<Gateway>,
    listener: UnixListener,
    closing: watch::Sender<bool>,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: trying again at once would only burn the
                // processor.
                tracing::warn!(%error, "cannot accept a connection to the admin socket");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if let Err(error) = local_client::check_client(&stream) {
            tracing::warn!(%error, "refused a connection to the admin socket");
            continue;
        }
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            gateway.listener_metrics.limit_hit("connections");
            continue;
        };
        let handle = Arc::<OnceLock<AbortHandle>>::default();
        let connection = tasks::spawn("local connection", {
            let (gateway, handle, closing) = (Arc::clone(&gateway), Arc::clone(&handle), closing.subscribe());
            async move {
                let _place = place;
                let _counted = gateway.count_connection();
                // The task may run before its start has returned, on another thread.
                let handle = handle.wait().clone();
                serve_connection(&gateway, stream, handle, closing).await;
            }
        });
        // It is set once.
        let _ = handle.set(connection.abort_handle());
    }
}

async fn serve_connection(
    gateway: &Arc<Gateway>,
    stream: UnixStream,
    handle: AbortHandle,
    mut closing: watch::Receiver<bool>,
) {
    let unread = UnreadFlag::default();
    let service = service_fn({
        let (gateway, unread, closing) = (Arc::clone(gateway), unread.clone(), closing.clone());
        move |request| {
            let (gateway, unread, closing) = (Arc::clone(&gateway), unread.clone(), closing.clone());
            let handle = handle.clone();
            async move {
                let response = respond(&gateway, request, handle, &unread, closing).await;
                Ok::<_, Infallible>(response)
            }
        }
    });
    let header_timer = HeaderTimer::default();
    let stream = TokioIo::new(ClientStream::new(stream, header_timer.clone(), unread));
    let connection = http1_server(&header_timer).serve_connection(stream, service);
    tokio::pin!(connection);
    let closed = async {
        // If the sender is gone, so is the gateway.
        let _ = closing.wait_for(|closing| *closing).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closed => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(CLOSE_TIME, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection to the admin socket ended");
    }
}

async fn respond(
    gateway: &Arc<Gateway>,
    request: Request<Incoming>,
    connection: AbortHandle,
    unread: &UnreadFlag,
    closing: watch::Receiver<bool>,
) -> Response<LocalBody> {
    let (mut parts, body) = request.into_parts();
    let mut body = RequestBody::Unread(body);
    let response = match api::Request::of(parts.uri.path()) {
        Some(wanted) => api::answer(gateway, &parts, wanted, connection, closing),
        None => {
            // Only other replicas vouch for anything, on their own listener.
            parts.headers.remove(FORWARDED);
            let config = gateway.config();
            let source = FromLocal {
                caller: config.guard.local(),
                connection,
            };
            let routed = gateway.route(&config, &mut parts, &mut body, &source, false);
            Box::pin(routed).await.map(LocalBody::Answer)
        }
    };
    unread.set(body.is_left());
    response
}

/// The body of a response on the admin socket.
pub(crate) enum LocalBody {
    Answer(Body),
    Feed(Box<FeedBody>),
}

impl http_body::Body for LocalBody {
    type Data = Piece;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Infallible>>> {
        match self.get_mut() {
            Self::Answer(body) => Pin::new(body).poll_frame(context),
            Self::Feed(feed) => feed
                .poll_chunk(context)
                .map(|chunk| chunk.map(|bytes| Ok(Frame::data(Piece::new(bytes, None))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Answer(body) => body.is_end_stream(),
            Self::Feed(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Answer(body) => body.size_hint(),
            Self::Feed(_) => SizeHint::default(),
        }
    }
}
