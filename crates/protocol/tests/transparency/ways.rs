//! The ways between client and server: none at all, a session, or modern requests, with a
//! multiplexer behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::backend_face::legacy::ClientHello;
use protocol::client_face::modern;
use protocol::exchange::{Ask, CallKey, Client, Principal, SessionKey};
use protocol::message::{Kind, Member, Message};
use protocol::modern_request::{self, ModernRequest};
use protocol::multiplexer::{self, Limits, Multiplexer};
use protocol::negotiation::EraPlan;
use protocol::session::{self, Accepted, Accepts, Reader, Session};
use protocol::time::Moment;
use protocol::version::Era;

use crate::scenario::{DISCOVERY, Way};

fn message(text: &str) -> Message {
    Message::scan(Bytes::copy_from_slice(text.as_bytes())).expect("the scenario is written well")
}

/// The data of events.
fn events(bytes: &[u8]) -> impl Iterator<Item = Bytes> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let data: Vec<Bytes> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|data| !data.is_empty())
        .map(|data| Bytes::copy_from_slice(data.as_bytes()))
        .collect();
    data.into_iter()
}

/// Face to face.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    client: Vec<Bytes>,
    server: Vec<Bytes>,
}

impl Way for Direct {
    fn client_sends(&mut self, text: &str) {
        self.server.push(Bytes::copy_from_slice(text.as_bytes()));
    }

    fn server_sends(&mut self, text: &str) {
        self.client.push(Bytes::copy_from_slice(text.as_bytes()));
    }

    fn received_by_client(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.client)
    }

    fn received_by_server(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.server)
    }
}

/// The server's end of either way through.
#[derive(Debug)]
struct Behind {
    backend: Multiplexer,
    now: Moment,
}

impl Behind {
    fn new(era: Era) -> Self {
        // No call of the scenario is ever late.
        let forever = Duration::from_secs(1 << 30);
        let limits = Limits {
            request_timeout: forever,
            stream_timeout: forever,
            stream_after: forever,
            ..Limits::default()
        };
        let mut backend = Multiplexer::new(limits, ClientHello::Verbatim);
        backend.plan_eras(EraPlan::Only(era));
        backend.handle_link_up(Moment::START);
        Self {
            backend,
            now: Moment::START,
        }
    }

    fn send(&mut self, text: &str) {
        self.backend
            .handle_line(self.now, Bytes::copy_from_slice(text.as_bytes()));
    }

    fn received(&mut self) -> Vec<Bytes> {
        let written = self.backend.take_outgoing(BytesMut::new());
        self.backend.handle_written();
        let lines = written[..]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        lines.map(Bytes::copy_from_slice).collect()
    }
}

/// A legacy client's way: a session that it reads every stream of.
#[derive(Debug)]
pub(crate) struct ThroughSession {
    behind: Behind,
    session: Option<Session>,
    waiting: Vec<CallKey>,
    reading: Vec<Reader>,
    client: Vec<Bytes>,
}

impl Default for ThroughSession {
    fn default() -> Self {
        Self {
            behind: Behind::new(Era::Legacy),
            session: None,
            waiting: Vec::new(),
            reading: Vec::new(),
            client: Vec::new(),
        }
    }
}

impl ThroughSession {
    fn run_until_idle(&mut self) {
        let now = self.behind.now;
        let Some(session) = &mut self.session else { return };
        loop {
            let mut quiet = true;
            while let Some(output) = self.behind.backend.poll_output() {
                quiet = false;
                if let multiplexer::Output::Tell(tell) = output {
                    session.handle_tell(now, tell);
                }
            }
            while let Some(output) = session.poll_output() {
                quiet = false;
                if let session::Output::Ask(ask) = output {
                    self.behind.backend.handle_ask(now, *ask);
                }
            }
            for call in std::mem::take(&mut self.waiting) {
                match session.poll_answer(call) {
                    session::Answer::Waiting => self.waiting.push(call),
                    session::Answer::Complete { body, .. } => self.client.push(body.into_bytes()),
                    session::Answer::Stream(reader) => self.reading.push(reader),
                }
            }
            for reader in std::mem::take(&mut self.reading) {
                let mut out = BytesMut::new();
                match session.read(now, reader, &mut out) {
                    session::Reading::Ended => session.handle_disconnect(now, reader),
                    _ => self.reading.push(reader),
                }
                self.client.extend(events(&out));
            }
            if quiet {
                return;
            }
        }
    }
}

impl Way for ThroughSession {
    fn client_sends(&mut self, text: &str) {
        let (now, message) = (self.behind.now, message(text));
        let taken = match &mut self.session {
            Some(session) => session
                .handle_message(now, message, Accepts::Both)
                .expect("a good message"),
            None => {
                let declared = message.raw_copy(Member::Capabilities);
                let client = Arc::new(Client::declaring(Principal::anonymous(), declared, None));
                let limits = session::Limits::default();
                let (session, call, ask) =
                    Session::open(SessionKey(1), client, limits, now, message, Accepts::Both);
                self.session = Some(session);
                Accepted::Call { call, ask }
            }
        };
        match taken {
            Accepted::Noted(ask) => ask
                .into_iter()
                .for_each(|ask| self.behind.backend.handle_ask(now, ask)),
            Accepted::Call { call, ask } => {
                self.waiting.push(call);
                self.behind.backend.handle_ask(now, ask);
            }
            Accepted::Answered(body) => self.client.push(body),
        }
        self.run_until_idle();
        // As soon as it may, the client listens.
        if let Some(session) = &mut self.session
            && session.is_opened()
            && session.listening_streams() == 0
            && let Ok(reader) = session.listen(now)
        {
            self.reading.push(reader);
        }
        self.run_until_idle();
    }

    fn server_sends(&mut self, text: &str) {
        self.behind.send(text);
        self.run_until_idle();
    }

    fn received_by_client(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.client)
    }

    fn received_by_server(&mut self) -> Vec<Bytes> {
        self.behind.received()
    }
}

/// A modern client's way: a modern request for each request.
#[derive(Debug)]
pub(crate) struct ThroughModernRequests {
    behind: Behind,
    modern_requests: BTreeMap<SessionKey, (String, ModernRequest)>,
    next_key: u64,
    client: Vec<Bytes>,
}

impl Default for ThroughModernRequests {
    fn default() -> Self {
        Self {
            behind: Behind::new(Era::Modern),
            modern_requests: BTreeMap::new(),
            next_key: 1,
            client: Vec::new(),
        }
    }
}

impl ThroughModernRequests {
    fn run_until_idle(&mut self) {
        let now = self.behind.now;
        loop {
            let mut asks: Vec<Ask> = Vec::new();
            let mut quiet = true;
            while let Some(output) = self.behind.backend.poll_output() {
                quiet = false;
                if let multiplexer::Output::Tell(tell) = output
                    && let Some((_, modern_request)) = self.modern_requests.get_mut(&tell.session())
                {
                    modern_request.handle_tell(now, tell);
                }
            }
            for (_, modern_request) in self.modern_requests.values_mut() {
                while let Some(output) = modern_request.poll_output() {
                    quiet = false;
                    if let modern_request::Output::Ask(ask) = output {
                        asks.push(ask);
                    }
                }
                if modern_request.is_over() {
                    continue;
                }
                match modern_request.poll_answer(now) {
                    modern_request::Answer::Waiting => {}
                    modern_request::Answer::Complete { body, .. } => self.client.push(body),
                    modern_request::Answer::Ask { .. } => panic!("a modern server's question is an answer"),
                    modern_request::Answer::Stream => {
                        let mut out = BytesMut::new();
                        modern_request.read(now, &mut out);
                        self.client.extend(events(&out));
                    }
                }
            }
            for ask in asks {
                self.behind.backend.handle_ask(now, ask);
            }
            if quiet {
                return;
            }
        }
    }
}

impl Way for ThroughModernRequests {
    fn client_sends(&mut self, text: &str) {
        let message = message(text);
        if message.kind() == Kind::Notification {
            let id = String::from_utf8_lossy(message.raw(Member::RequestId).unwrap_or_default()).into_owned();
            if let Some((_, modern_request)) = self.modern_requests.values_mut().find(|(own, _)| *own == id) {
                modern_request.handle_disconnect();
            }
            self.run_until_idle();
            return;
        }
        modern::check_envelope(&message).expect("the scenario is written well");
        let classified = modern::lift(&message).expect("the scenario is written well");
        let id = String::from_utf8_lossy(message.raw(Member::Id).unwrap_or_default()).into_owned();
        let key = SessionKey(self.next_key);
        self.next_key += 1;
        let client = Arc::new(modern::client(&message, Principal::anonymous()));
        let (modern_request, asks) =
            ModernRequest::new(key, client, self.behind.now, message, classified, Accepts::Both);
        self.modern_requests.insert(key, (id, modern_request));
        for ask in asks {
            self.behind.backend.handle_ask(self.behind.now, ask);
        }
        self.run_until_idle();
        // The first request to a server is the discovery, in the bridge's own name.
        if !self.behind.backend.is_ready() {
            let asked = self
                .behind
                .received()
                .pop()
                .and_then(|line| Message::scan(line).ok());
            let id = asked
                .and_then(|asked| asked.number(Member::Id))
                .expect("the server is sent a discovery");
            self.behind.send(&DISCOVERY.replace("ID", &id.to_string()));
            self.run_until_idle();
        }
    }

    fn server_sends(&mut self, text: &str) {
        self.behind.send(text);
        self.run_until_idle();
    }

    fn received_by_client(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.client)
    }

    fn received_by_server(&mut self) -> Vec<Bytes> {
        self.behind.received()
    }
}
