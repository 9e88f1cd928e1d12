//! The listener for the redirect of a sign-in: on 127.0.0.1, at one path, for one answer, until a
//! deadline.
//!
//! Any program and any web page on this machine can connect. So the Host must be Rialto's (DNS
//! rebinding), the state must be right, slow connections time out, few are accepted at a time, and
//! after the answer the port is closed.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::{Mutex, MutexGuard};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

use super::page::Page;
use super::{CallbackRequest, Code, Expected, classify};
use crate::error::SignInError;

/// Browsers open connections ahead of need, so more than one is accepted.
const CONNECTIONS: usize = 16;
/// For sending a request and for reading the page, each.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Where the answer is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At<'a> {
    AnyPort,
    /// The redirect URI of a client that is registered for it.
    RedirectUri(&'a Url),
}

pub(crate) struct Listener {
    socket: TcpListener,
    redirect_uri: Url,
}

impl Listener {
    /// Opens the listener, on 127.0.0.1 even if the redirect URI has `localhost`.
    pub(crate) async fn open(at: At<'_>) -> Result<Self, SignInError> {
        let port = match at {
            At::AnyPort => 0,
            At::RedirectUri(uri) => uri.port_or_known_default().unwrap_or(80),
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let failed = |error: std::io::Error| SignInError::Listener {
            address: address.to_string(),
            why: error.to_string(),
        };
        let socket = TcpListener::bind(address).await.map_err(failed)?;
        let redirect_uri = match at {
            At::RedirectUri(uri) => uri.clone(),
            At::AnyPort => {
                let port = socket.local_addr().map_err(failed)?.port();
                Url::parse(&format!("http://127.0.0.1:{port}/callback"))
                    .expect("an address and a path are a URL")
            }
        };
        Ok(Self { socket, redirect_uri })
    }

    pub(crate) fn redirect_uri(&self) -> &Url {
        &self.redirect_uri
    }

    /// Waits for the answer, sends a page, and closes the port.
    pub(crate) async fn answer(self, expected: &Expected, timeout: Duration) -> Result<Code, SignInError> {
        let handler = CallbackHandler {
            expected,
            host: authority(&self.redirect_uri),
            path: self.redirect_uri.path(),
            answer: Mutex::new(None),
            warned: AtomicBool::new(false),
        };
        let mut connections = FuturesUnordered::new();
        let deadline = tokio::time::sleep(timeout);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                () = &mut deadline => return Err(SignInError::SignInTimeout { seconds: timeout.as_secs() }),
                Some(()) = connections.next() => {
                    // Taken only when the connection has ended, so that the browser has read the
                    // page.
                    let answer = handler.answer().take();
                    if let Some(answer) = answer {
                        return answer;
                    }
                }
                // A connection that fails before it is accepted is its peer's failure alone.
                accepted = self.socket.accept(), if connections.len() < CONNECTIONS => {
                    if let Ok((stream, _)) = accepted {
                        connections.push(handler.serve(stream));
                    }
                }
            }
        }
    }
}

fn authority(uri: &Url) -> String {
    let host = uri.host_str().unwrap_or_default();
    uri.port()
        .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Answers each request to the listener, and keeps the one that counts.
struct CallbackHandler<'a> {
    expected: &'a Expected,
    host: String,
    path: &'a str,
    answer: Mutex<Option<Result<Code, SignInError>>>,
    warned: AtomicBool,
}

impl CallbackHandler<'_> {
    fn answer(&self) -> MutexGuard<'_, Option<Result<Code, SignInError>>> {
        self.answer.lock()
    }

    async fn serve(&self, stream: TcpStream) {
        let service = service_fn(|request: Request<Incoming>| {
            let response = self.respond(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(TIMEOUT)
            .keep_alive(false)
            .max_buf_size(16 * 1024)
            .serve_connection(TokioIo::new(stream), service);
        // How the connection ends does not matter: its answer is kept in the handler.
        let _ = tokio::time::timeout(2 * TIMEOUT, connection).await;
    }

    fn respond(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let host = request.headers().get_all(HOST).iter().collect::<Vec<_>>();
        let ours =
            matches!(host.as_slice(), [host] if host.as_bytes().eq_ignore_ascii_case(self.host.as_bytes()));
        if !ours {
            return page(
                StatusCode::FORBIDDEN,
                "Not here",
                "This address answers to one name only.",
            );
        }
        if request.uri().path() != self.path {
            return page(
                StatusCode::NOT_FOUND,
                "Nothing here",
                "Only the end of a sign-in is answered here.",
            );
        }
        if request.method() != Method::GET {
            return page(
                StatusCode::METHOD_NOT_ALLOWED,
                "Not like this",
                "Only GET is answered here.",
            );
        }
        if self.answer().is_some() {
            return page(
                StatusCode::GONE,
                "Already used",
                "This sign-in has been answered before.",
            );
        }
        match classify(request.uri().query().unwrap_or_default(), self.expected) {
            CallbackRequest::Unrelated => {
                if !self.warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!("an answer to the sign-in with a wrong or missing state was refused");
                }
                page(
                    StatusCode::BAD_REQUEST,
                    "Refused",
                    "This is not the answer to the sign-in that is under way.",
                )
            }
            CallbackRequest::Answer(answer) => {
                let response = match &answer {
                    Ok(_) => page(
                        StatusCode::OK,
                        "Signed in",
                        "You can close this window and go back.",
                    ),
                    Err(error) => page(StatusCode::BAD_REQUEST, "Not signed in", &error.to_string()),
                };
                *self.answer() = Some(answer);
                response
            }
        }
    }
}

fn page(status: StatusCode, title: &str, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(Page { title, text }.html()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        (
            CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        ),
        // The address of this page carries the code.
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
