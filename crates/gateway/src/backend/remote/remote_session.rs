//! One instance's conversation with a remote server over Streamable HTTP: what was agreed, and what
//! every request carries because of it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use parking_lot::{Mutex, MutexGuard};
use protocol::backend_face::WireId;
use protocol::message::{Member, Message};
use protocol::object::Object;
use protocol::trace_context::TRACEPARENT;
use protocol::version::{Era, HeaderStyle};

use super::http_client::{Address, Response};
use super::mcp_headers::mirrored;
use super::server::{LAST_EVENT_ID, Outbound, PROTOCOL_VERSION, SESSION_ID, Server};
use crate::instance::Instance;
use crate::trace;

/// Longer ids would not fit into the headers of other servers either.
const MAX_SESSION_ID: usize = 4096;

#[derive(Debug)]
pub(super) struct RemoteSession {
    pub(super) server: Arc<Server>,
    pub(super) instance: Arc<Instance>,
    /// What this instance's client sent and the configuration passes on.
    forwarded: HeaderMap,
    /// The headers of the POST of every modern message.
    plain: Arc<HeaderMap>,
    negotiated: Mutex<Arc<Negotiated>>,
    pub(super) max_message_bytes: usize,
}

/// What the handshake brought.
#[derive(Debug, Clone, Default)]
pub(super) struct Negotiated {
    session: Option<HeaderValue>,
    version: Option<HeaderValue>,
    /// What the POST of a legacy message carries: the same for all of them.
    post: Arc<HeaderMap>,
    /// The server has forgotten the session, and there is no other one yet.
    lost: bool,
    /// Counts handshakes, so that a session is lost only once however many requests notice.
    epoch: u64,
}

impl Negotiated {
    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Returns whether nothing but a handshake makes sense at the moment.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }
}

impl RemoteSession {
    pub(super) fn new(
        server: Arc<Server>,
        instance: Arc<Instance>,
        forwarded: HeaderMap,
        max_message_bytes: usize,
    ) -> Self {
        let plain = Arc::new(server.headers(&Method::POST, &[&forwarded]));
        let negotiated = Negotiated {
            post: Arc::clone(&plain),
            ..Negotiated::default()
        };
        Self {
            server,
            instance,
            forwarded,
            plain,
            negotiated: Mutex::new(Arc::new(negotiated)),
            max_message_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Negotiated>> {
        self.negotiated.lock()
    }

    pub(super) fn negotiated(&self) -> Arc<Negotiated> {
        Arc::clone(&self.lock())
    }

    fn with_headers(&self, mut negotiated: Negotiated) -> Arc<Negotiated> {
        let headers = [&in_session(&negotiated), &self.forwarded];
        negotiated.post = Arc::new(self.server.headers(&Method::POST, &headers));
        Arc::new(negotiated)
    }

    /// The server has accepted the handshake. Only such an answer gives a session: some servers put
    /// an id on a refusal.
    pub(super) fn agree(&self, session: Option<HeaderValue>, answer: &[u8]) {
        let version = Message::scan(Bytes::copy_from_slice(answer))
            .ok()
            .and_then(|message| {
                let result = message.raw(Member::Result).and_then(Object::parse)?;
                HeaderValue::from_str(&result.text("protocolVersion")?).ok()
            });
        let mut negotiated = self.lock();
        *negotiated = self.with_headers(Negotiated {
            session: session.filter(|id| is_visible(id.as_bytes())),
            version,
            lost: false,
            epoch: negotiated.epoch + 1,
            ..Negotiated::default()
        });
    }

    /// Notes that the server no longer knows the session of `then`. Returns whether this is new.
    pub(super) fn forget(&self, then: &Negotiated) -> bool {
        let mut negotiated = self.lock();
        let news = negotiated.epoch == then.epoch && negotiated.session.is_some();
        if news {
            *negotiated = self.with_headers(Negotiated {
                lost: true,
                epoch: negotiated.epoch,
                ..Negotiated::default()
            });
        }
        news
    }

    /// Returns the POST of a message of this era.
    pub(super) fn post(&self, line: &Bytes, negotiated: &Negotiated, era: Era) -> Outbound {
        let style = era.post_headers();
        let (mut headers, is_read) = match style {
            // A message with a trace context is rare.
            HeaderStyle::Session => (Arc::clone(&negotiated.post), trace::may_have_context(line)),
            HeaderStyle::Mirrored => (Arc::clone(&self.plain), true),
        };
        if is_read {
            let message = Message::scan(line.clone());
            if let Ok(message) = message {
                self.describe(&message, style, Arc::make_mut(&mut headers));
            }
        }
        Outbound {
            method: Method::POST,
            at: None,
            headers,
            body: line.clone(),
            handshake_of: None,
        }
    }

    /// Adds the headers that describe the message, unless the client's own are forwarded.
    fn describe(&self, message: &Message, style: HeaderStyle, headers: &mut HeaderMap) {
        if style == HeaderStyle::Mirrored {
            for (name, value) in mirrored(&self.instance, message) {
                if let Some(name) = name
                    && !self.forwarded.contains_key(&name)
                {
                    headers.insert(name, value);
                }
            }
        }
        if let Some(context) = trace::header_of(message)
            && !self.forwarded.contains_key(TRACEPARENT)
        {
            headers.insert(TRACEPARENT, context);
        }
    }

    /// Returns the GET of a stream, after an event if there was one.
    pub(super) fn get(&self, negotiated: &Negotiated, last_event: Option<&Bytes>) -> Outbound {
        let mut headers = in_session(negotiated);
        if let Some(id) = last_event.and_then(|id| HeaderValue::from_bytes(id).ok()) {
            headers.insert(LAST_EVENT_ID, id);
        }
        Outbound {
            method: Method::GET,
            at: None,
            headers: Arc::new(self.server.headers(&Method::GET, &[&headers, &self.forwarded])),
            body: Bytes::new(),
            handshake_of: None,
        }
    }

    /// Returns the DELETE that ends a session.
    pub(super) fn delete(&self, negotiated: &Negotiated) -> Outbound {
        Outbound {
            method: Method::DELETE,
            ..self.get(negotiated, None)
        }
    }

    /// Returns the POST of a message to an address that the server has named.
    pub(super) fn post_to(&self, at: &Arc<Address>, line: &Bytes) -> Outbound {
        Outbound {
            method: Method::POST,
            at: Some(Arc::clone(at)),
            headers: Arc::clone(&self.plain),
            body: line.clone(),
            handshake_of: None,
        }
    }

    pub(super) fn receive(&self, message: Bytes, origin: Option<WireId>) {
        self.instance.receive(message, origin);
    }
}

/// Returns what a legacy request carries once the handshake is done.
fn in_session(negotiated: &Negotiated) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(session) = &negotiated.session {
        headers.insert(SESSION_ID, session.clone());
    }
    if let Some(version) = &negotiated.version {
        headers.insert(PROTOCOL_VERSION, version.clone());
    }
    headers
}

/// A session id is visible ASCII (2025-11-25, "Session management").
fn is_visible(id: &[u8]) -> bool {
    !id.is_empty() && id.len() <= MAX_SESSION_ID && id.iter().all(u8::is_ascii_graphic)
}

/// Returns the session that an answer assigns.
pub(super) fn session_of(response: &Response) -> Option<HeaderValue> {
    response.headers().get(SESSION_ID).cloned()
}
