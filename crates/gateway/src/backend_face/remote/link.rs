//! One instance's conversation with a remote server over Streamable HTTP: what was agreed, and what every request
//! carries because of it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use parking_lot::{Mutex, MutexGuard};
use protocol::backend_face::WireId;
use protocol::message::{Member, Message};
use protocol::object::Object;
use protocol::trace_context::TRACEPARENT;
use protocol::version::Era;

use super::mirror::mirrored;
use super::server::{LAST_EVENT_ID, Outbound, PROTOCOL_VERSION, SESSION_ID, Server};
use super::wire::{Address, Response};
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
    /// What the POST of a modern message carries whatever it is.
    plain: Arc<HeaderMap>,
    agreed: Mutex<Arc<Agreed>>,
    pub(super) max_message_bytes: usize,
}

/// What the handshake brought.
#[derive(Debug, Clone, Default)]
pub(super) struct Agreed {
    session: Option<HeaderValue>,
    version: Option<HeaderValue>,
    /// What the POST of a legacy message carries: the same for all of them.
    post: Arc<HeaderMap>,
    /// The server has forgotten the session, and there is no other one yet.
    lost: bool,
    /// Counts handshakes, so that a session is lost only once however many requests notice.
    epoch: u64,
}

impl Agreed {
    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Whether nothing but a handshake makes sense at the moment.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }
}

impl Link {
    pub(super) fn new(
        server: Arc<Server>,
        lane: Arc<Lane>,
        forwarded: HeaderMap,
        max_message_bytes: usize,
    ) -> Self {
        let plain = Arc::new(server.headers(&Method::POST, &[&forwarded]));
        let agreed = Agreed {
            post: Arc::clone(&plain),
            ..Agreed::default()
        };
        Self {
            server,
            lane,
            forwarded,
            plain,
            agreed: Mutex::new(Arc::new(agreed)),
            max_message_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Agreed>> {
        self.agreed.lock()
    }

    pub(super) fn agreed(&self) -> Arc<Agreed> {
        Arc::clone(&self.lock())
    }

    fn settle(&self, mut agreed: Agreed) -> Arc<Agreed> {
        let headers = [&in_session(&agreed), &self.forwarded];
        agreed.post = Arc::new(self.server.headers(&Method::POST, &headers));
        Arc::new(agreed)
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
        *agreed = self.settle(Agreed {
            session: session.filter(|id| is_visible(id.as_bytes())),
            version,
            lost: false,
            epoch: agreed.epoch + 1,
            ..Agreed::default()
        });
    }

    /// The server does not know the session any more that was agreed then. Gives whether this is news.
    pub(super) fn forget(&self, then: &Agreed) -> bool {
        let mut agreed = self.lock();
        let news = agreed.epoch == then.epoch && agreed.session.is_some();
        if news {
            *agreed = self.settle(Agreed {
                lost: true,
                epoch: agreed.epoch,
                ..Agreed::default()
            });
        }
        news
    }

    /// The POST of a message in the words of this era.
    pub(super) fn post(&self, line: &Bytes, agreed: &Agreed, era: Era) -> Outbound {
        let modern = era == Era::Modern;
        let mut headers = Arc::clone(if modern { &self.plain } else { &agreed.post });
        // Whatever has to be read in it is rare in the legacy era.
        if modern || trace::may_have_context(line) {
            let message = Message::scan(line.clone());
            if let Ok(message) = message {
                self.describe(&message, modern, Arc::make_mut(&mut headers));
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

    /// Says in headers what the message says, unless the client has said it.
    fn describe(&self, message: &Message, modern: bool, headers: &mut HeaderMap) {
        if modern {
            for (name, value) in mirrored(&self.lane, message) {
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

    /// The GET of a stream, after an event if there was one.
    pub(super) fn get(&self, agreed: &Agreed, last_event: Option<&Bytes>) -> Outbound {
        let mut headers = in_session(agreed);
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

    /// The end of a session.
    pub(super) fn delete(&self, agreed: &Agreed) -> Outbound {
        Outbound {
            method: Method::DELETE,
            ..self.get(agreed, None)
        }
    }

    /// The POST of a message to an address that the server has named.
    pub(super) fn post_to(&self, at: &Arc<Address>, line: &Bytes) -> Outbound {
        Outbound {
            method: Method::POST,
            at: Some(Arc::clone(at)),
            headers: Arc::clone(&self.plain),
            body: line.clone(),
            handshake_of: None,
        }
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
