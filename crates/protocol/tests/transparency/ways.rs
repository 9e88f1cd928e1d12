//! The ways between client and server: none at all, a session, or errands, with a multiplexer behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::backend_face::legacy::Introduction;
use protocol::client_face::modern;
use protocol::errand::{self, Errand};
use protocol::exchange::{Ask, CallKey, Client, Principal, SessionKey};
use protocol::message::{Kind, Member, Message};
use protocol::multiplexer::{self, Limits, Multiplexer};
use protocol::negotiation::EraPlan;
use protocol::session::{self, Accepts, Reader, Session, Taken};
use protocol::time::Moment;
use protocol::version::Era;

use crate::play::{DISCOVERY, Way};

fn message(text: &str) -> Message {
    Message::scan(Bytes::copy_from_slice(text.as_bytes())).expect("the play is written well")
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
    fn client_says(&mut self, text: &str) {
        self.server.push(Bytes::copy_from_slice(text.as_bytes()));
    }

    fn server_says(&mut self, text: &str) {
        self.client.push(Bytes::copy_from_slice(text.as_bytes()));
    }

    fn heard_by_client(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.client)
    }

    fn heard_by_server(&mut self) -> Vec<Bytes> {
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
        // No call of the play is ever late.
        let forever = Duration::from_secs(1 << 30);
        let limits = Limits {
            request_timeout: forever,
            stream_timeout: forever,
            patience: forever,
            ..Limits::default()
        };
        let mut backend = Multiplexer::new(limits, Introduction::Verbatim);
        backend.plan_eras(EraPlan::Only(era));
        backend.handle_link_up(Moment::START);
        Self {
            backend,
            now: Moment::START,
        }
    }

    fn says(&mut self, text: &str) {
        self.backend
            .handle_line(self.now, Bytes::copy_from_slice(text.as_bytes()));
    }

    fn hears(&mut self) -> Vec<Bytes> {
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
    fn settle(&mut self) {
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
                    session::Reading::Ended => session.hang_up(now, reader),
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
    fn client_says(&mut self, text: &str) {
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
                Taken::Call { call, ask }
            }
        };
        match taken {
            Taken::Noted(ask) => ask
                .into_iter()
                .for_each(|ask| self.behind.backend.handle_ask(now, ask)),
            Taken::Call { call, ask } => {
                self.waiting.push(call);
                self.behind.backend.handle_ask(now, ask);
            }
            Taken::Answered(body) => self.client.push(body),
        }
        self.settle();
        // As soon as it may, the client listens.
        if let Some(session) = &mut self.session
            && session.is_welcomed()
            && session.listening_streams() == 0
            && let Ok(reader) = session.listen(now)
        {
            self.reading.push(reader);
        }
        self.settle();
    }

    fn server_says(&mut self, text: &str) {
        self.behind.says(text);
        self.settle();
    }

    fn heard_by_client(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.client)
    }

    fn heard_by_server(&mut self) -> Vec<Bytes> {
        self.behind.hears()
    }
}

/// A modern client's way: an errand for each request.
#[derive(Debug)]
pub(crate) struct ThroughErrands {
    behind: Behind,
    errands: BTreeMap<SessionKey, (String, Errand)>,
    next_key: u64,
    client: Vec<Bytes>,
}

impl Default for ThroughErrands {
    fn default() -> Self {
        Self {
            behind: Behind::new(Era::Modern),
            errands: BTreeMap::new(),
            next_key: 1,
            client: Vec::new(),
        }
    }
}

impl ThroughErrands {
    fn settle(&mut self) {
        let now = self.behind.now;
        loop {
            let mut asks: Vec<Ask> = Vec::new();
            let mut quiet = true;
            while let Some(output) = self.behind.backend.poll_output() {
                quiet = false;
                if let multiplexer::Output::Tell(tell) = output
                    && let Some((_, errand)) = self.errands.get_mut(&tell.session())
                {
                    errand.handle_tell(now, tell);
                }
            }
            for (_, errand) in self.errands.values_mut() {
                while let Some(output) = errand.poll_output() {
                    quiet = false;
                    if let errand::Output::Ask(ask) = output {
                        asks.push(ask);
                    }
                }
                if errand.is_over() {
                    continue;
                }
                match errand.poll_answer() {
                    errand::Answer::Waiting => {}
                    errand::Answer::Complete { body, .. } => self.client.push(body),
                    errand::Answer::Ask { .. } => panic!("a modern server's question is an answer"),
                    errand::Answer::Stream => {
                        let mut out = BytesMut::new();
                        errand.read(&mut out);
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

impl Way for ThroughErrands {
    fn client_says(&mut self, text: &str) {
        let message = message(text);
        if message.kind() == Kind::Notification {
            let id = String::from_utf8_lossy(message.raw(Member::RequestId).unwrap_or_default()).into_owned();
            if let Some((_, errand)) = self.errands.values_mut().find(|(own, _)| *own == id) {
                errand.hang_up();
            }
            self.settle();
            return;
        }
        modern::check_envelope(&message).expect("the play is written well");
        let meaning = modern::lift(&message).expect("the play is written well");
        let id = String::from_utf8_lossy(message.raw(Member::Id).unwrap_or_default()).into_owned();
        let key = SessionKey(self.next_key);
        self.next_key += 1;
        let client = Arc::new(modern::client(&message, Principal::anonymous()));
        let (errand, asks) = Errand::new(key, client, self.behind.now, message, meaning, Accepts::Both);
        self.errands.insert(key, (id, errand));
        for ask in asks {
            self.behind.backend.handle_ask(self.behind.now, ask);
        }
        self.settle();
        // The first thing a server is asked is who it is, in the bridge's own name.
        if !self.behind.backend.is_ready() {
            let asked = self
                .behind
                .hears()
                .pop()
                .and_then(|line| Message::scan(line).ok());
            let id = asked
                .and_then(|asked| asked.number(Member::Id))
                .expect("the server is asked who it is");
            self.behind.says(&DISCOVERY.replace("ID", &id.to_string()));
            self.settle();
        }
    }

    fn server_says(&mut self, text: &str) {
        self.behind.says(text);
        self.settle();
    }

    fn heard_by_client(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.client)
    }

    fn heard_by_server(&mut self) -> Vec<Bytes> {
        self.behind.hears()
    }
}
