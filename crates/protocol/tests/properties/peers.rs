//! Two peers that write anything: real sessions and a real multiplexer between raw messages from
//! both sides.
//!
//! The simulation has honest servers; here no peer is honest. The input is a script, one act a
//! line; the first byte is the act, the second the session, and the rest is the message. The driver
//! demands what must hold even so: nothing panics, each line to the server and each answer and
//! event to a client is one message, an answer has its caller's id, a call ends once, every limit
//! holds, and once all clients have gone nothing is left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::backend_face::legacy::ClientHello;
use protocol::exchange::{Ask, CallKey, Client, Principal, SessionKey};
use protocol::message::{Kind, Member, Message};
use protocol::method::Method;
use protocol::session::replay::{Retention, StreamKey};
use protocol::session::{self, Accepted, Accepts, Answer, Reader, Reading, Session};
use protocol::time::Moment;
use protocol::version::Version;
use protocol::wire::line::EnvelopeSeeker;
use protocol::wire::sse::SseParser;

use super::far_side::{FarSide, acts, message};

const INITIALIZE: &[u8] = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{},"sampling":{},"roots":{}},"clientInfo":{"name":"c","version":"1"}}}"#;

/// # Panics
/// If the machines break one of the promises above.
pub(crate) fn holds(data: &[u8]) {
    let mut scene = Scene::new(if data.len().is_multiple_of(2) {
        ClientHello::Newest
    } else {
        ClientHello::Union
    });
    for (act, rest) in acts(data) {
        scene.act(act, rest);
        scene.run_until_idle();
    }
    scene.close();
}

struct Guest {
    machine: Session,
    /// The calls that a connection waits for, with the raw id that the answer must carry.
    waiting: BTreeMap<CallKey, Option<Bytes>>,
    readers: BTreeMap<StreamKey, (Reader, SseParser)>,
    begun: usize,
    ended: usize,
}

struct Scene {
    far: FarSide,
    guests: Vec<Guest>,
}

fn session_limits() -> session::Limits {
    session::Limits {
        retention: Retention {
            events: 6,
            bytes: 2000,
            age: Duration::from_secs(60),
        },
        calls: 5,
        listeners: 2,
        ended_streams: 2,
        question_timeout: Duration::from_secs(3),
    }
}

impl Scene {
    fn new(client_hello: ClientHello) -> Self {
        Self {
            far: FarSide::new(client_hello, 4),
            guests: Vec::new(),
        }
    }

    fn act(&mut self, act: u8, rest: &[u8]) {
        match act {
            b'o' => self.open(rest),
            b'l' => {
                let mut seeker = EnvelopeSeeker::default();
                seeker.feed(rest);
                let (id, method) = seeker.finish();
                self.far
                    .backend
                    .handle_too_long(self.far.now, id.as_deref(), method, 9999);
            }
            _ => {
                if !self.far.act(act, rest) {
                    self.guest_acts(act, rest);
                }
            }
        }
    }

    fn open(&mut self, rest: &[u8]) {
        if self.guests.len() >= 4 {
            return;
        }
        let key = SessionKey(self.guests.len() as u64);
        let initialize = Message::scan(Bytes::copy_from_slice(rest))
            .ok()
            .filter(|sent| sent.method() == Method::Initialize && sent.has_valid_id() && sent.is_json_rpc())
            .unwrap_or_else(|| message(INITIALIZE));
        let client = Arc::new(Client::declaring(
            Principal::named(if rest.len() % 3 == 2 { "bob" } else { "alice" }),
            initialize.raw_copy(Member::Capabilities),
            initialize.raw_copy(Member::ClientInfo),
        ));
        let mut waiting = BTreeMap::new();
        let (machine, ask) = if rest.first() == Some(&b'i') {
            Session::open_implicit(key, client, session_limits(), self.far.now, Version::V2025_06_18)
        } else {
            let accepts = if rest.first() == Some(&b'j') {
                Accepts::Json
            } else {
                Accepts::Both
            };
            let id = initialize.raw_copy(Member::Id);
            let (machine, call, ask) =
                Session::open(key, client, session_limits(), self.far.now, initialize, accepts);
            waiting.insert(call, id);
            (machine, ask)
        };
        self.guests.push(Guest {
            machine,
            begun: 1,
            waiting,
            readers: BTreeMap::new(),
            ended: 0,
        });
        self.far.ask([ask]);
    }

    fn guest_acts(&mut self, act: u8, rest: &[u8]) {
        let Some((which, rest)) = rest.split_first() else {
            return;
        };
        let count = self.guests.len();
        let Some(guest) = self.guests.get_mut(usize::from(*which) % count.max(1)) else {
            return;
        };
        match act {
            b'c' => {
                let ask = guest.send(self.far.now, rest, Accepts::Both);
                self.far.ask(ask);
            }
            b'j' => {
                let ask = guest.send(self.far.now, rest, Accepts::Json);
                self.far.ask(ask);
            }
            b'r' => {
                let reader = guest.machine.listen(self.far.now);
                guest.attach(self.far.now, reader.ok());
            }
            b'R' => {
                let reader = guest.machine.resume(self.far.now, &String::from_utf8_lossy(rest));
                guest.attach(self.far.now, reader.ok());
            }
            b'h' => {
                if let Some((_, (reader, _))) = guest.readers.pop_first() {
                    guest.machine.handle_disconnect(self.far.now, reader);
                }
            }
            b'a' => {
                if let Some((call, _)) = guest.waiting.pop_last() {
                    guest.machine.abandon(call);
                }
            }
            b'e' => {
                let ask = guest.machine.end();
                self.far.ask(ask);
            }
            _ => {}
        }
    }

    /// Everything the machines order, until they order nothing more.
    fn run_until_idle(&mut self) {
        while self.far.meets_a_deadline() {
            self.carry();
        }
        for guest in &mut self.guests {
            guest.machine.handle_tick(self.far.now);
        }
        self.carry();
        // Cancellations.
        let limits = &self.far.limits;
        self.far
            .assert_limits(130 * (limits.in_flight + limits.questions));
        assert!(
            self.far.backend.unanswered_requests() <= 3 * limits.in_flight,
            "unanswered requests"
        );
        for guest in &mut self.guests {
            let limits = session_limits();
            // A stream that is being read is kept until it was read to its end, which has happened
            // by now.
            guest.machine.handle_tick(self.far.now);
            assert!(guest.machine.open_calls() <= limits.calls + 1, "open calls");
            assert!(
                guest.machine.past_streams() <= limits.ended_streams,
                "ended streams"
            );
        }
    }

    fn carry(&mut self) {
        loop {
            let mut quiet = !self.far.carry(|now, tell| {
                let at = tell.session().0 as usize;
                let guest = self.guests.get_mut(at).expect("a session that is there");
                guest.machine.handle_tell(now, tell);
            });
            for at in 0..self.guests.len() {
                while let Some(output) = self.guests[at].machine.poll_output() {
                    quiet = false;
                    match output {
                        session::Output::Wake(_)
                        | session::Output::Line(_)
                        | session::Output::StateChanged(_) => {}
                        session::Output::Ask(ask) => self.far.backend.handle_ask(self.far.now, *ask),
                        session::Output::Ended(record) => {
                            self.guests[at].ended += 1;
                            message(&record.response.clone().into_bytes());
                        }
                    }
                }
                self.guests[at].listen(self.far.now);
            }
            if quiet {
                return;
            }
        }
    }

    /// Ends all clients, and checks that nothing is left.
    fn close(mut self) {
        self.far.goes_down();
        self.run_until_idle();
        self.far.is_unavailable();
        self.run_until_idle();
        for minutes in 1..=10 {
            self.far.now = self.far.now.after(Duration::from_secs(60 * minutes));
            self.run_until_idle();
        }
        self.far.assert_quiet();
        for at in 0..self.guests.len() {
            let guest = &self.guests[at];
            assert!(guest.waiting.is_empty(), "a caller still waits");
            assert!(
                guest.ended <= guest.begun,
                "{} calls ended {} times",
                guest.begun,
                guest.ended
            );
            let ask = self.guests[at].machine.end();
            self.far.ask(ask);
            self.run_until_idle();
        }
        self.far.assert_empty();
    }
}

impl Guest {
    fn send(&mut self, now: Moment, text: &[u8], accepts: Accepts) -> Option<Ask> {
        let sent = Message::scan(Bytes::copy_from_slice(text)).ok()?;
        let id = sent.raw_copy(Member::Id);
        match self.machine.handle_message(now, sent, accepts) {
            Ok(Accepted::Noted(ask)) => ask,
            Ok(Accepted::Call { call, ask }) => {
                self.begun += 1;
                self.waiting.insert(call, id);
                Some(ask)
            }
            Ok(Accepted::Answered(body)) => {
                assert_eq!(message(&body).raw_copy(Member::Id), id);
                None
            }
            Err(_) => None,
        }
    }

    fn attach(&mut self, now: Moment, reader: Option<Reader>) {
        if let Some(reader) = reader {
            // A client that resumes a stream that is being read takes it over; the older reader
            // finds it ended.
            let older = self
                .readers
                .insert(reader.stream, (reader, SseParser::new(1 << 20)));
            if let Some((older, _)) = older {
                self.machine.handle_disconnect(now, older);
            }
        }
    }

    /// Takes every answer there is and reads every stream.
    fn listen(&mut self, now: Moment) {
        let waiting = std::mem::take(&mut self.waiting);
        for (call, id) in waiting {
            match self.machine.poll_answer(call) {
                Answer::Waiting => {
                    self.waiting.insert(call, id);
                }
                Answer::Complete { body, .. } => {
                    let answer = message(&body.into_bytes());
                    assert_eq!(answer.raw_copy(Member::Id), id, "the id of another request");
                    assert!(matches!(answer.kind(), Kind::Result | Kind::Error));
                }
                Answer::Stream(reader) => self.attach(now, Some(reader)),
            }
        }
        let machine = &mut self.machine;
        self.readers.retain(|_, (reader, parser)| {
            let mut out = BytesMut::new();
            let reading = machine.read(now, *reader, &mut out);
            parser.push(&out);
            while let Some(event) = parser.next().expect("events of Rialto are small") {
                // A priming event has no data. A server's message passes as it is, also without
                // `jsonrpc`.
                if !event.data.is_empty() {
                    message(&event.data);
                }
            }
            // A connection goes once its stream has ended.
            if reading == Reading::Ended {
                machine.handle_disconnect(now, *reader);
            }
            reading == Reading::Open
        });
    }
}
