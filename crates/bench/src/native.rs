//! The handler as its own HTTP server, on hyper: the ceiling, since no bridge can do less.
//!
//! Sessions are ids in a map and streams are bounded queues; there is no policy, no validation and
//! no resumption.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::handler::{Era, Work, write_notice, write_progress};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
/// Pieces that a stream may be behind before it holds up the rest.
const STREAM_QUEUE: usize = 64;
/// How much is gathered before it is handed to the streams.
const PIECE: usize = 64 << 10;

#[derive(Default)]
struct Server {
    sessions: Mutex<HashMap<String, Vec<mpsc::Sender<Bytes>>>>,
}

/// Serves on loopback until it is killed.
pub fn run(port: u16) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
            let server = Arc::new(Server::default());
            loop {
                let (stream, _) = listener.accept().await?;
                spawn(Arc::clone(&server).serve_connection(stream));
            }
        })
}

#[expect(
    clippy::disallowed_methods,
    reason = "this server is no part of the gateway and has one kind of task"
)]
fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(future);
}

impl Server {
    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Vec<mpsc::Sender<Bytes>>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve_connection(self: Arc<Self>, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let service = service_fn(move |request| {
            let server = Arc::clone(&self);
            async move { Ok::<_, Infallible>(server.respond(request).await) }
        });
        // A connection that breaks is the client's affair.
        let _ = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        match *request.method() {
            Method::POST => self.post(request).await,
            Method::GET => self.listen(&request),
            Method::DELETE => {
                let known = session_of(&request).is_some_and(|id| self.sessions().remove(id).is_some());
                empty(if known {
                    StatusCode::NO_CONTENT
                } else {
                    StatusCode::NOT_FOUND
                })
            }
            _ => empty(StatusCode::METHOD_NOT_ALLOWED),
        }
    }

    async fn post(&self, request: Request<Incoming>) -> Response<Body> {
        let known = session_of(&request).map(|id| self.sessions().contains_key(id));
        let Some(body) = read(request.into_body()).await else {
            return empty(StatusCode::BAD_REQUEST);
        };
        let work = Work::of(&body);
        match (known, work) {
            (None, Work::Initialize { .. }) => {
                let id = uuid::Uuid::new_v4().to_string();
                let mut response = json(&work);
                if let Ok(value) = HeaderValue::from_str(&id) {
                    response.headers_mut().insert(SESSION, value);
                }
                self.sessions().insert(id, Vec::new());
                response
            }
            (None, _) => empty(StatusCode::BAD_REQUEST),
            (Some(false), _) => empty(StatusCode::NOT_FOUND),
            (Some(true), Work::Nothing) => empty(StatusCode::ACCEPTED),
            (
                Some(true),
                Work::Progress {
                    token: Some(token),
                    count,
                    ..
                },
            ) => progress(&work, token, count),
            (Some(true), Work::Notify { count, .. }) => {
                self.notify(count).await;
                json(&work)
            }
            (
                Some(true),
                Work::Initialize { .. }
                | Work::Discover { .. }
                | Work::List { .. }
                | Work::Ping { .. }
                | Work::Echo { .. }
                | Work::Progress { token: None, .. }
                | Work::Unknown { .. },
            ) => json(&work),
        }
    }

    fn listen(&self, request: &Request<Incoming>) -> Response<Body> {
        let Some(id) = session_of(request) else {
            return empty(StatusCode::BAD_REQUEST);
        };
        let (sender, receiver) = mpsc::channel(STREAM_QUEUE);
        match self.sessions().get_mut(id) {
            Some(streams) => streams.push(sender),
            None => return empty(StatusCode::NOT_FOUND),
        }
        let mut response = Response::new(Body::Stream(receiver));
        response.headers_mut().insert(CONTENT_TYPE, EVENTS);
        response
    }

    /// Writes the notices once and hands the same bytes to every stream.
    async fn notify(&self, count: u64) {
        let mut piece = Vec::with_capacity(PIECE);
        for notice in 1..=count {
            event(&mut piece, |out| write_notice(out, notice));
            if piece.len() + 256 > PIECE || notice == count {
                let bytes = Bytes::from(std::mem::replace(&mut piece, Vec::with_capacity(PIECE)));
                let streams: Vec<_> = self.sessions().values().flatten().cloned().collect();
                for stream in streams {
                    // A stream whose reader has gone takes nothing.
                    let _ = stream.send(bytes.clone()).await;
                }
            }
        }
    }
}

/// Reads a body; what comes in one piece is not copied, and the rest is copied once.
async fn read(mut body: Incoming) -> Option<Bytes> {
    let length = http_body::Body::size_hint(&body).exact()? as usize;
    let Some(first) = body.frame().await else {
        return Some(Bytes::new());
    };
    let first = first.ok()?.into_data().ok()?;
    if first.len() == length {
        return Some(first);
    }
    let mut whole = Vec::with_capacity(length);
    whole.extend_from_slice(&first);
    while let Some(frame) = body.frame().await {
        whole.extend_from_slice(&frame.ok()?.into_data().ok()?);
    }
    Some(whole.into())
}

fn session_of(request: &Request<Incoming>) -> Option<&str> {
    request.headers().get(SESSION)?.to_str().ok()
}

fn event(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(b"event: message\ndata: ");
    write(out);
    out.extend_from_slice(b"\n\n");
}

fn json(work: &Work<'_>) -> Response<Body> {
    let mut out = Vec::with_capacity(256);
    work.write_response(Era::Legacy, &mut out);
    let mut response = Response::new(Body::Full(Some(out.into())));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn progress(work: &Work<'_>, token: &[u8], count: u64) -> Response<Body> {
    let mut out = Vec::with_capacity(2048);
    for step in 1..=count {
        event(&mut out, |out| write_progress(out, token, step, count));
    }
    event(&mut out, |out| {
        work.write_response(Era::Legacy, out);
    });
    let mut response = Response::new(Body::Full(Some(out.into())));
    response.headers_mut().insert(CONTENT_TYPE, EVENTS);
    response
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Full(None));
    *response.status_mut() = status;
    response
}

enum Body {
    Full(Option<Bytes>),
    Stream(mpsc::Receiver<Bytes>),
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(receiver) => receiver
                .poll_recv(context)
                .map(|piece| piece.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
