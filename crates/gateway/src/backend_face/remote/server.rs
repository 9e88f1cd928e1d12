//! The HTTP edge: one remote server, how it is addressed, and what a failed request means.
//!
//! Redirects are followed here and only within the server's own origin, so that neither a token nor a body ever
//! leaves it. Nothing is decompressed: no encoding is offered, and an answer that has one is refused.

use std::error::Error as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use protocol::delivery::Fate;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Request, Response};
use url::Url;

use super::signature;
use crate::settings::{RemoteSpec, Transport};

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(crate) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const EVENT_STREAM: &str = "text/event-stream";
const JSON: &str = "application/json";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Common servers close a connection after five idle seconds. A request that meets the closing would be lost, and
/// nobody could say whether it was carried out; so ours are closed before.
const POOL_IDLE: Duration = Duration::from_secs(4);
const MAX_REDIRECTS: usize = 3;
/// What is read of an answer that is an error.
pub(super) const MAX_ERROR_BODY: usize = 64 << 10;

/// One remote server, for all lanes of a destination.
#[derive(Debug)]
pub(crate) struct Server {
    spec: RemoteSpec,
    headers: HeaderMap,
    pool: Mutex<Pool>,
    /// Which transport it turned out to speak, where both were possible.
    settled: OnceLock<Transport>,
}

/// The connections that are kept.
#[derive(Debug, Default)]
struct Pool {
    client: Option<Result<Client, String>>,
    /// Counts clients, so that one is doubted only once however many requests notice.
    generation: u64,
}

/// What is asked of the server.
#[derive(Debug, Clone)]
pub(super) struct Outbound {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// What kind of body an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Json,
    Events,
    Other,
}

impl Server {
    pub(crate) fn new(spec: RemoteSpec) -> Self {
        let mut headers = HeaderMap::new();
        for (name, value) in &spec.headers {
            if let Ok(mut value) = HeaderValue::from_str(value.expose()) {
                value.set_sensitive(true);
                headers.insert(name.clone(), value);
            }
        }
        Self {
            spec,
            headers,
            pool: Mutex::default(),
            settled: OnceLock::new(),
        }
    }

    pub(crate) fn spec(&self) -> &RemoteSpec {
        &self.spec
    }

    /// The configured transport, or what the server turned out to speak.
    pub(crate) fn transport(&self) -> Transport {
        match self.spec.transport {
            Transport::Auto => self.settled.get().copied().unwrap_or(Transport::Auto),
            known @ (Transport::StreamableHttp | Transport::Sse) => known,
        }
    }

    pub(super) fn settle(&self, transport: Transport) {
        if self.transport() == Transport::Auto && self.settled.set(transport).is_ok() {
            tracing::info!(url = %self.shown(), ?transport, "learnt which transport the server speaks");
        }
    }

    /// The address as it may be shown: without a query, which may hold a key.
    pub(crate) fn shown(&self) -> String {
        let mut url = self.spec.url.clone();
        url.set_query(None);
        url.set_fragment(None);
        url.to_string()
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client is made when it is first needed: reading the system's certificates takes a while.
    fn client(&self) -> Result<(Client, u64), Fate> {
        let mut pool = self.pool();
        let generation = pool.generation;
        match pool.client.get_or_insert_with(|| build(&self.spec)) {
            Ok(client) => Ok((client.clone(), generation)),
            Err(what) => Err(Fate::Unsafe { what: what.clone() }),
        }
    }

    /// The same, noticed in the middle of an answer.
    pub(super) fn doubt(&self) {
        let generation = self.pool().generation;
        self.doubt_connections(generation);
    }

    /// A connection broke off. The server may have gone, and with it the others that wait to be used: whoever took one
    /// of them would be told that nobody knows what became of its request.
    fn doubt_connections(&self, generation: u64) {
        let mut pool = self.pool();
        if pool.generation == generation {
            pool.generation += 1;
            pool.client = None;
        }
    }

    /// Sends a request, signed if the server wants that, and gives the head of the answer.
    pub(super) async fn send(&self, outbound: Outbound) -> Result<Response, Fate> {
        signature::signed(self, outbound).await
    }

    /// Sends a request as it is.
    pub(super) async fn send_plain(&self, outbound: Outbound) -> Result<Response, Fate> {
        let (client, generation) = self.client()?;
        let mut url = outbound.url;
        for _ in 0..=MAX_REDIRECTS {
            let mut request = Request::new(outbound.method.clone(), url.clone());
            let headers = request.headers_mut();
            // One map, written once: a builder would copy each of them into its own.
            headers.clone_from(&self.headers);
            for (name, value) in &outbound.headers {
                headers.insert(name.clone(), value.clone());
            }
            if outbound.method == Method::POST {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
                headers.insert(
                    ACCEPT,
                    HeaderValue::from_static("application/json, text/event-stream"),
                );
                *request.body_mut() = Some(outbound.body.clone().into());
            } else {
                headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
            }
            let response = client.execute(request).await.map_err(|error| {
                let fate = fate(&error);
                if matches!(fate, Fate::BrokenOff { .. }) {
                    self.doubt_connections(generation);
                }
                fate
            })?;
            if response.headers().contains_key(CONTENT_ENCODING) {
                return Err(Fate::Nonsense {
                    what: "the server sent a compressed answer, which it was not asked for".into(),
                });
            }
            if !is_redirect(response.status()) {
                return Ok(response);
            }
            url = followed(&url, &response)?;
        }
        Err(Fate::Unsafe {
            what: format!("the server redirects more than {MAX_REDIRECTS} times"),
        })
    }
}

fn build(spec: &RemoteSpec) -> Result<Client, String> {
    let mut builder = Client::builder()
        .user_agent(concat!("rialto/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(POOL_IDLE)
        .tcp_nodelay(true)
        // Whether something is sent again is decided by the delivery, which knows what it is.
        .retry(reqwest::retry::never());
    if is_loopback(&spec.url) {
        builder = builder.no_proxy();
    }
    if let Some(file) = &spec.ca_file {
        builder = builder.tls_certs_merge(certificates(file)?);
    }
    builder
        .build()
        .map_err(|error| format!("cannot make an HTTP client: {}", causes(&error)))
}

/// The certificates of a file in PEM form.
pub(crate) fn certificates(file: &Path) -> Result<Vec<Certificate>, String> {
    let shown = file.display();
    let text = std::fs::read(file).map_err(|error| format!("cannot read `ca_file` {shown}: {error}"))?;
    let found = Certificate::from_pem_bundle(&text)
        .map_err(|error| format!("`ca_file` {shown} holds no certificates: {}", causes(&error)))?;
    if found.is_empty() {
        return Err(format!("`ca_file` {shown} holds no certificates"));
    }
    Ok(found)
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Where a redirect leads, if it may be followed.
fn followed(from: &Url, response: &Response) -> Result<Url, Fate> {
    if response.status() == StatusCode::SEE_OTHER {
        return Err(Fate::Unsafe {
            what: "the server redirects a message to a page".into(),
        });
    }
    let to = response
        .headers()
        .get(LOCATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| from.join(value).ok())
        .ok_or_else(|| Fate::Nonsense {
            what: "the server redirects to nowhere".into(),
        })?;
    if to.origin() != from.origin() {
        return Err(Fate::Unsafe {
            what: format!(
                "the server redirects to another origin ({}): if it has moved, change `url`",
                to.origin().ascii_serialization()
            ),
        });
    }
    Ok(to)
}

/// What a request that got no answer means.
pub(super) fn fate(error: &reqwest::Error) -> Fate {
    let what = causes(error);
    if !error.is_connect() {
        return Fate::BrokenOff {
            what: format!("the connection to the server broke off: {what}"),
        };
    }
    if is_about_tls(error) {
        return Fate::Unsafe {
            what: format!("no secure connection to the server: {what}"),
        };
    }
    Fate::Unreachable {
        what: format!("cannot reach the server: {what}"),
    }
}

fn is_about_tls(error: &reqwest::Error) -> bool {
    let mut source = error.source();
    while let Some(cause) = source {
        if cause.is::<rustls::Error>() {
            return true;
        }
        // An I/O error hides what it was made of from `source`.
        if let Some(inner) = cause
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref)
            && inner.is::<rustls::Error>()
        {
            return true;
        }
        source = cause.source();
    }
    false
}

/// The deepest reason, which is the one that helps. The others name the address, which may hold a key.
fn causes(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    if std::ptr::eq(
        std::ptr::from_ref(cause).cast::<()>(),
        std::ptr::from_ref(error).cast::<()>(),
    ) {
        return "the request failed".into();
    }
    cause.to_string()
}

/// What kind of body an answer has, by its media type; parameters do not matter.
pub(super) fn content(response: &Response) -> Content {
    let media = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case(JSON) {
        Content::Json
    } else if media.eq_ignore_ascii_case(EVENT_STREAM) {
        Content::Events
    } else {
        Content::Other
    }
}

/// How long the server wants to be left alone.
pub(super) fn retry_after(response: &Response) -> Option<Duration> {
    let value = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

/// Why a body could not be read.
#[derive(Debug)]
pub(super) enum Unread {
    BrokenOff(String),
    /// It has at least this many bytes.
    TooLarge(u64),
}

/// Reads a body that has at most this many bytes.
pub(super) async fn body(mut response: Response, limit: usize) -> Result<Bytes, Unread> {
    if let Some(length) = response.content_length()
        && length > limit as u64
    {
        return Err(Unread::TooLarge(length));
    }
    let mut whole = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if whole.len() + chunk.len() > limit => {
                return Err(Unread::TooLarge((whole.len() + chunk.len()) as u64));
            }
            // The usual answer comes in one piece, which need not be copied.
            Ok(Some(chunk)) if whole.is_empty() && Some(chunk.len() as u64) == response.content_length() => {
                return Ok(chunk);
            }
            Ok(Some(chunk)) => whole.extend_from_slice(&chunk),
            Ok(None) => return Ok(whole.freeze()),
            Err(error) => {
                return Err(Unread::BrokenOff(format!(
                    "the connection to the server broke off: {}",
                    causes(&error)
                )));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_known_in_every_form() {
        for (text, loopback) in [
            ("http://localhost:1/mcp", true),
            ("http://127.0.0.1/mcp", true),
            ("http://[::1]:8/mcp", true),
            ("https://mcp.example.com/mcp", false),
            ("http://10.0.0.1/mcp", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(text).unwrap()), loopback, "{text}");
        }
    }
}
