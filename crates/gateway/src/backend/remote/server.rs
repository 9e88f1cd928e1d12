//! The HTTP edge: one remote server, how it is addressed, and what a failed request means.
//!
//! Redirects are followed here and only within the server's own origin, so that neither a token nor
//! a body ever leaves it. Nothing is decompressed: no encoding is offered, and an answer that has
//! one is refused.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION, RETRY_AFTER, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use protocol::delivery::AttemptOutcome;
use protocol::exchange::BackendError;
use protocol::object::Object;

use super::http_client::{Address, HttpClient, HttpRequest, Response, SendError};
use super::{authorization, endpoint_hint};
use crate::escape;
use crate::instance::Instance;
use crate::settings::{RemoteSpec, SignIn, Transport};

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(crate) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const EVENT_STREAM: &str = "text/event-stream";
const JSON: &str = "application/json";
const ANY_ANSWER: &str = "application/json, text/event-stream";

const MAX_REDIRECTS: usize = 3;
/// What is read of an answer that is an error.
const MAX_ERROR_BODY: usize = 64 << 10;
/// How long it may take to come.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// What is passed on of its text.
const MAX_ERROR_TEXT: usize = 300;

/// One remote server, for all instances of a destination.
#[derive(Debug)]
pub(crate) struct Server {
    spec: RemoteSpec,
    /// `None`: the configured address is none that HTTP could name.
    address: Option<Arc<Address>>,
    /// What every request carries.
    headers: HeaderMap,
    http_client: HttpClient,
    /// Which transport it turned out to speak, where both were possible.
    learnt_transport: OnceLock<Transport>,
    /// An address beside the configured one that has a server, once that was looked for.
    hint: tokio::sync::OnceCell<Option<String>>,
}

/// What is asked of the server.
#[derive(Debug, Clone)]
pub(super) struct Outbound {
    pub(super) method: Method,
    /// Where, if it is not the server's own address.
    pub(super) at: Option<Arc<Address>>,
    pub(super) headers: Arc<HeaderMap>,
    pub(super) body: Bytes,
    /// The instance that a handshake is for: its waiting calls learn that the server was reached.
    pub(super) handshake_of: Option<Arc<Instance>>,
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
        let address = Address::new(spec.url.clone());
        let mut headers = HeaderMap::new();
        if let Some(address) = &address {
            headers.insert(HOST, address.host().clone());
        }
        let name = HeaderValue::from_static(concat!("rialto/", env!("CARGO_PKG_VERSION")));
        headers.insert(USER_AGENT, name);
        for (name, value) in &spec.headers {
            if let Ok(mut value) = HeaderValue::from_str(value.expose()) {
                value.set_sensitive(true);
                headers.insert(name.clone(), value);
            }
        }
        Self {
            http_client: HttpClient::new(&spec.url, spec.ca_file.as_deref(), spec.socket.as_deref()),
            spec,
            address: address.map(Arc::new),
            headers,
            learnt_transport: OnceLock::new(),
            hint: tokio::sync::OnceCell::new(),
        }
    }

    /// Returns the headers of a request with this method, with `more` of the caller's. The caller's
    /// cannot replace `content-type` and `accept`.
    pub(super) fn headers(&self, method: &Method, more: &[&HeaderMap]) -> HeaderMap {
        let mut headers = self.headers.clone();
        for (name, value) in more.iter().copied().flatten() {
            headers.insert(name.clone(), value.clone());
        }
        if *method == Method::POST {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
            headers.insert(ACCEPT, HeaderValue::from_static(ANY_ANSWER));
            // A copy has room for what it was copied from: without this place, and some air, each
            // would have to grow.
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
            headers.reserve(headers.len());
        } else {
            headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
        }
        headers
    }

    pub(crate) fn spec(&self) -> &RemoteSpec {
        &self.spec
    }

    /// Returns the configured transport, or what the server turned out to speak.
    pub(crate) fn transport(&self) -> Transport {
        match self.spec.transport {
            Transport::Auto => self.learnt_transport.get().copied().unwrap_or(Transport::Auto),
            known @ (Transport::StreamableHttp | Transport::Sse) => known,
        }
    }

    pub(super) fn learn_transport(&self, transport: Transport) {
        if self.transport() == Transport::Auto && self.learnt_transport.set(transport).is_ok() {
            tracing::info!(url = %self.shown(), ?transport, "learnt which transport the server speaks");
        }
    }

    /// Returns the address as it may be shown: without a query, which may hold a key.
    pub(crate) fn shown(&self) -> String {
        let mut url = self.spec.url.clone();
        url.set_query(None);
        url.set_fragment(None);
        url.to_string()
    }

    /// Returns a refusal with the address that it came from. Where that looks wrong, the text names
    /// one beside it that has a server; those are tried once.
    pub(super) async fn located(&self, what: &str, looks_wrong: bool) -> String {
        let whole = format!("{what} ({})", self.shown());
        if !looks_wrong {
            return whole;
        }
        match self.hint.get_or_init(|| endpoint_hint::find(self)).await {
            Some(address) => format!("{whole}; did you mean {address}?"),
            None => format!("{whole}; is the address right?"),
        }
    }

    /// Returns the description of a server that was reached and does not answer.
    fn no_answer_yet(&self) -> Arc<BackendError> {
        let address = self.shown();
        Arc::new(BackendError {
            what: format!("{address} accepted the connection and has sent no answer"),
            hints: vec![
                "check that the address is that of an MCP server, and that the server is not stuck; \
                 a server that needs longer gets more time with `start_timeout` (connect: `--request-timeout`)"
                    .to_owned(),
            ],
            ..BackendError::default()
        })
    }

    /// Sends a request, signed if the server wants that, and gives the head of the answer.
    pub(super) async fn send(&self, outbound: &Outbound) -> Result<Response, AttemptOutcome> {
        match &self.spec.sign_in {
            SignIn::OAuth(sign_in) => Box::pin(authorization::signed(self, sign_in, outbound)).await,
            SignIn::No => self.send_plain(outbound).await,
        }
    }

    /// Sends a request as it is.
    pub(super) async fn send_plain(&self, outbound: &Outbound) -> Result<Response, AttemptOutcome> {
        let at = outbound.at.as_ref().or(self.address.as_ref());
        let mut at = Cow::Borrowed(at.ok_or_else(|| AttemptOutcome::Unsafe {
            what: "the server's `url` is no address for HTTP".into(),
        })?);
        let mut redirects = 0;
        loop {
            // A redirect wants the same once more.
            let make = || {
                // There is a connection now.
                if let Some(instance) = &outbound.handshake_of {
                    instance.describe_start(self.no_answer_yet());
                }
                outbound.request()
            };
            let response = self.http_client.send(make, &at).await.map_err(outcome)?;
            if response.headers().contains_key(CONTENT_ENCODING) {
                return Err(AttemptOutcome::Invalid {
                    what: "the server sent a compressed answer, which it was not asked for".into(),
                });
            }
            if !is_redirect(response.status()) {
                return Ok(response);
            }
            if redirects == MAX_REDIRECTS {
                return Err(AttemptOutcome::Unsafe {
                    what: format!("the server redirects more than {MAX_REDIRECTS} times"),
                });
            }
            redirects += 1;
            at = Cow::Owned(followed(&at, &response)?);
        }
    }
}

impl Outbound {
    fn request(&self) -> HttpRequest {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = HeaderMap::clone(&self.headers);
        if let Some(length) = request.headers_mut().get_mut(CONTENT_LENGTH) {
            *length = self.body.len().into();
        }
        request
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Returns where a redirect leads, if it may be followed.
fn followed(from: &Address, response: &Response) -> Result<Arc<Address>, AttemptOutcome> {
    let from = from.url();
    if response.status() == StatusCode::SEE_OTHER {
        return Err(AttemptOutcome::Unsafe {
            what: "the server redirects a message to a page".into(),
        });
    }
    let to = response
        .headers()
        .get(LOCATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| from.join(value).ok())
        .ok_or_else(|| AttemptOutcome::Invalid {
            what: "the server redirects to nowhere".into(),
        })?;
    if to.origin() != from.origin() {
        return Err(AttemptOutcome::Unsafe {
            what: format!(
                "the server redirects to another origin ({}): if it has moved, change `url`",
                to.origin().ascii_serialization()
            ),
        });
    }
    Address::new(to)
        .map(Arc::new)
        .ok_or_else(|| AttemptOutcome::Invalid {
            what: "the server redirects to nowhere".into(),
        })
}

/// Returns what a request that got no answer means.
fn outcome(lost: SendError) -> AttemptOutcome {
    match lost {
        SendError::Unreachable(what) => AttemptOutcome::Unreachable {
            what: format!("cannot reach the server: {what}"),
        },
        SendError::Unsafe(what) => AttemptOutcome::Unsafe {
            what: format!("no secure connection to the server: {what}"),
        },
        SendError::BrokenOff(what) => AttemptOutcome::BrokenOff {
            what: broken_off(&what),
        },
    }
}

pub(super) fn broken_off(what: &str) -> String {
    format!("the connection to the server broke off: {what}")
}

/// Returns what kind of body an answer has, by its media type; parameters do not matter.
pub(super) fn content(response: &Response) -> Content {
    let media = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    // What nearly all write.
    if media == JSON {
        return Content::Json;
    }
    let media = media.split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case(JSON) {
        Content::Json
    } else if media.eq_ignore_ascii_case(EVENT_STREAM) {
        Content::Events
    } else {
        Content::Other
    }
}

/// Returns how long the server wants to be left alone.
pub(super) fn retry_after(response: &Response) -> Option<Duration> {
    let value = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

/// Reads the body of an answer that is an error, as far as it comes.
pub(super) async fn error_body(response: &mut Response) -> Bytes {
    let read = tokio::time::timeout(ERROR_BODY_TIMEOUT, body(response, MAX_ERROR_BODY)).await;
    read.map(Result::unwrap_or_default).unwrap_or_default()
}

/// Returns the JSON-RPC error that a body holds, as its members.
pub(super) fn error_in(body: &Bytes) -> Option<String> {
    let object = Object::parse(body)?;
    let error = object.get("error")?;
    let members = Object::parse(error.as_bytes())?;
    members.get("code")?.parse::<i64>().ok()?;
    Some(error.to_owned())
}

/// Returns the text of an error for people, cut and escaped: the message of a JSON-RPC error, or
/// the text as it stands.
pub(super) fn text_of(body: &[u8], error: Option<&str>) -> Option<String> {
    let message = error.and_then(|error| {
        let members = Object::parse(error.as_bytes())?;
        serde_json::from_str::<String>(members.get("message")?).ok()
    });
    let text = message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let text = text.trim();
    (!text.is_empty()).then(|| escape::one_line(text, MAX_ERROR_TEXT))
}

/// Why a body could not be read.
#[derive(Debug)]
pub(super) enum BodyError {
    BrokenOff(String),
    /// It has at least this many bytes.
    TooLarge(u64),
}

/// Reads a body that has at most this many bytes.
pub(super) async fn body(response: &mut Response, limit: usize) -> Result<Bytes, BodyError> {
    let length = response.length();
    if let Some(length) = length
        && length > limit as u64
    {
        return Err(BodyError::TooLarge(length));
    }
    let mut whole = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if whole.len() + chunk.len() > limit => {
                return Err(BodyError::TooLarge((whole.len() + chunk.len()) as u64));
            }
            // The usual answer comes in one piece, which need not be copied.
            Ok(Some(chunk)) if whole.is_empty() && Some(chunk.len() as u64) == length => return Ok(chunk),
            Ok(Some(chunk)) => {
                if whole.is_empty() {
                    // It is within the limit; growing would copy it again and again.
                    whole.reserve(
                        length
                            .and_then(|length| length.try_into().ok())
                            .unwrap_or(chunk.len()),
                    );
                }
                whole.extend_from_slice(&chunk);
                if Some(whole.len() as u64) == length {
                    return Ok(whole.freeze());
                }
            }
            Ok(None) => return Ok(whole.freeze()),
            Err(what) => return Err(BodyError::BrokenOff(broken_off(&what))),
        }
    }
}
