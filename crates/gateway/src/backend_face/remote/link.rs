//! One lane's conversation with a remote server over Streamable HTTP: what was agreed, and what every request
//! carries because of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use protocol::backend_face::WireId;
use protocol::message::{Member, Message};
use protocol::object::Object;
use protocol::trace_context::TRACEPARENT;
use protocol::version::Era;
use reqwest::Response;

use super::mirror::mirrored;
use super::server::{LAST_EVENT_ID, Outbound, PROTOCOL_VERSION, SESSION_ID, Server};
use crate::lane::Lane;
use crate::trace;

/// Longer ids would not fit into the headers of other servers either.
const MAX_SESSION_ID: usize = 4096;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) server: Arc<Server>,
    pub(super) lane: Arc<Lane>,
    /// What this lane's client sent and the configuration passes on.
    forwarded: HeaderMap,
    agreed: Mutex<Agreed>,
    pub(super) max_message_bytes: usize,
}

/// What the handshake brought.
#[derive(Debug, Clone, Default)]
pub(super) struct Agreed {
    session: Option<HeaderValue>,
    version: Option<HeaderValue>,
    /// Counts handshakes, so that a session is lost only once however many requests notice.
    epoch: u64,
}

impl Agreed {
    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }
}

impl Link {
    pub(super) fn new(
        server: Arc<Server>,
        lane: Arc<Lane>,
        forwarded: HeaderMap,
        max_message_bytes: usize,
    ) -> Self {
        Self {
            server,
            lane,
            forwarded,
            agreed: Mutex::default(),
            max_message_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Agreed> {
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn agreed(&self) -> Agreed {
        self.lock().clone()
    }

    /// The server has accepted the handshake. Only such an answer gives a session: some servers put an id on
    /// a refusal.
    pub(super) fn agree(&self, session: Option<HeaderValue>, answer: &[u8]) {
        let version = Message::scan(Bytes::copy_from_slice(answer))
            .ok()
            .and_then(|message| {
                let result = message.raw(Member::Result).and_then(Object::parse)?;
                HeaderValue::from_str(&result.text("protocolVersion")?).ok()
            });
        let mut agreed = self.lock();
        agreed.session = session.filter(|id| is_visible(id.as_bytes()));
        agreed.version = version;
        agreed.epoch += 1;
    }

    /// The server does not know the session any more that was agreed then. Gives whether this is news.
    pub(super) fn forget(&self, then: &Agreed) -> bool {
        let mut agreed = self.lock();
        let news = agreed.epoch == then.epoch && agreed.session.is_some();
        if news {
            agreed.session = None;
            agreed.version = None;
        }
        news
    }

    /// The POST of a message.
    pub(super) fn post(&self, message: &Message, agreed: &Agreed) -> Outbound {
        let mut headers = match self.lane.era() {
            Era::Modern => mirrored(&self.lane, message),
            Era::Legacy => in_session(agreed),
        };
        if let Some(context) = trace::header_of(message) {
            headers.insert(TRACEPARENT, context);
        }
        Outbound {
            method: Method::POST,
            url: self.server.spec().url.clone(),
            headers: self.forwarded(headers),
            body: message.bytes().clone(),
        }
    }

    /// The GET of a stream, after an event if there was one.
    pub(super) fn get(&self, agreed: &Agreed, last_event: Option<&Bytes>) -> Outbound {
        let mut headers = in_session(agreed);
        if let Some(id) = last_event.and_then(|id| HeaderValue::from_bytes(id).ok()) {
            headers.insert(LAST_EVENT_ID, id);
        }
        Outbound {
            method: Method::GET,
            url: self.server.spec().url.clone(),
            headers: self.forwarded(headers),
            body: Bytes::new(),
        }
    }

    /// The end of a session.
    pub(super) fn delete(&self, agreed: &Agreed) -> Outbound {
        Outbound {
            method: Method::DELETE,
            ..self.get(agreed, None)
        }
    }

    /// Adds what is passed on of the client's own headers.
    pub(super) fn forwarded(&self, mut headers: HeaderMap) -> HeaderMap {
        for (name, value) in &self.forwarded {
            headers.insert(name.clone(), value.clone());
        }
        headers
    }

    pub(super) fn hear(&self, message: Bytes, origin: Option<WireId>) {
        self.lane.hear(message, origin);
    }
}

/// What a legacy request carries once the handshake is done.
fn in_session(agreed: &Agreed) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(session) = &agreed.session {
        headers.insert(SESSION_ID, session.clone());
    }
    if let Some(version) = &agreed.version {
        headers.insert(PROTOCOL_VERSION, version.clone());
    }
    headers
}

/// A session id is visible ASCII (2025-11-25, "Session management").
fn is_visible(id: &[u8]) -> bool {
    !id.is_empty() && id.len() <= MAX_SESSION_ID && id.iter().all(u8::is_ascii_graphic)
}

/// The session that an answer assigns.
pub(super) fn session_of(response: &Response) -> Option<HeaderValue> {
    response.headers().get(SESSION_ID).cloned()
}
