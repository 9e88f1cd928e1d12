//! Modern clients and a server of either era that write anything: real modern requests and a real
//! multiplexer in between.
//!
//! The input is a script, one act a line; the first byte is the act, the rest is the message. The
//! driver does what the frontend does: it checks an envelope, seals a state for a round and finds
//! the modern request that a state names. It demands that nothing panics, each line, answer and
//! event is one message, an answer has its request's id and comes once, a state is taken once,
//! every limit holds, and once all clients have gone nothing is left.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::backend_face::legacy::ClientHello;
use protocol::client_face::modern::{self, Classified};
use protocol::exchange::{Principal, SessionKey};
use protocol::message::{Kind, Member, Message};
use protocol::modern_request::{self, Answer, ModernRequest, Reading, WAITING_TIME};
use protocol::object::Object;
use protocol::session::Accepts;
use protocol::time::Moment;
use protocol::wire::sse::SseParser;

use super::far_side::{FarSide, acts, message};

const META: &str = r#""_meta":{"progressToken":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"roots":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#;

/// # Panics
/// If the machines break one of the promises above.
pub(crate) fn holds(data: &[u8]) {
    let mut scene = Scene {
        far: FarSide::new(ClientHello::Newest, 2),
        trips: Vec::new(),
    };
    for (act, rest) in acts(data) {
        scene.act(act, rest);
        scene.run_until_idle();
    }
    scene.close();
}

/// One modern request and the request that is attached to it, if one is.
struct Trip {
    modern_request: ModernRequest,
    id: Option<Bytes>,
    parser: SseParser,
    streaming: bool,
    /// The round that the client was last asked in.
    round: Option<u32>,
}

struct Scene {
    far: FarSide,
    trips: Vec<Trip>,
}

/// A request whose method and members of `params` were given, or anything at all.
fn sent(act: u8, rest: &[u8]) -> Option<Message> {
    if act == b'c' {
        return Message::scan(Bytes::copy_from_slice(rest)).ok();
    }
    let text = String::from_utf8_lossy(rest);
    let (method, params) = text.split_once(' ').unwrap_or((&text, ""));
    let comma = if params.is_empty() { "" } else { "," };
    let text =
        format!(r#"{{"jsonrpc":"2.0","id":"i","method":"{method}","params":{{{params}{comma}{META}}}}}"#);
    Message::scan(text.into()).ok()
}

impl Scene {
    fn act(&mut self, act: u8, rest: &[u8]) {
        match act {
            b'c' | b'C' | b'E' | b'J' => {
                if let Some(sent) = sent(act, rest) {
                    let accepts = match act {
                        b'E' => Accepts::Events,
                        b'J' => Accepts::Json,
                        _ => Accepts::Both,
                    };
                    self.post(&sent, accepts, rest.len() % 3 == 2);
                }
            }
            b'M' => self.far.backend.mirror_arguments(),
            b'h' | b'g' | b'D' => {
                let count = self.trips.len().max(1);
                let which = rest.first().map_or(0, |byte| usize::from(*byte)) % count;
                if let Some(trip) = self.trips.get_mut(which) {
                    match act {
                        b'h' => {
                            trip.modern_request.handle_disconnect();
                            if !trip.modern_request.is_parked() {
                                trip.id = None;
                            }
                        }
                        b'g' => {
                            trip.modern_request.abandon();
                            trip.id = None;
                        }
                        _ => trip.modern_request.end_listen(),
                    }
                }
            }
            _ => {
                self.far.act(act, rest);
            }
        }
    }

    /// Takes a request as the frontend does.
    fn post(&mut self, sent: &Message, accepts: Accepts, other: bool) {
        if sent.kind() != Kind::Request {
            return;
        }
        let judged = modern::check_envelope(sent)
            .and_then(|()| modern::check_version(sent))
            .and_then(|()| modern::lift(sent));
        let classified = match judged {
            Ok(classified) => classified,
            Err(invalid) => {
                let id = sent.raw(Member::Id).filter(|_| sent.has_valid_id());
                assert_eq!(message(&invalid.body(id)).kind(), Kind::Error);
                return;
            }
        };
        let id = sent.raw_copy(Member::Id);
        if let Some((at, round)) = self.sealed(sent, classified) {
            let trip = &mut self.trips[at];
            let asked = trip.round;
            if let Ok(asks) = trip
                .modern_request
                .retry(self.far.now, sent.clone(), round, accepts)
            {
                assert_eq!(asked, Some(round), "a state was taken that is not the last");
                assert_eq!(trip.id, None, "a request was attached while another was");
                trip.round = None;
                trip.id = id;
                trip.streaming = false;
                self.far.ask(asks);
            }
            return;
        }
        if self.trips.len() >= 12 {
            return;
        }
        let principal = Principal::named(if other { "bob" } else { "alice" });
        let client = Arc::new(modern::client(sent, principal));
        let key = SessionKey(self.trips.len() as u64);
        let (modern_request, asks) =
            ModernRequest::new(key, client, self.far.now, sent.clone(), classified, accepts);
        self.trips.push(Trip {
            modern_request,
            id,
            parser: SseParser::new(1 << 20),
            streaming: false,
            round: None,
        });
        self.far.ask(asks);
    }

    /// The modern request and the round that a state names: `TRIP.ROUND`.
    fn sealed(&self, sent: &Message, classified: Classified) -> Option<(usize, u32)> {
        if classified != (Classified::Call { retry: true }) {
            return None;
        }
        let params = sent.raw(Member::Params).and_then(Object::parse)?;
        let state = params.text("requestState")?;
        let (trip, round) = state.split_once('.')?;
        let (trip, round) = (trip.parse().ok()?, round.parse().ok()?);
        (trip < self.trips.len()).then_some((trip, round))
    }

    fn run_until_idle(&mut self) {
        while self.far.meets_a_deadline() {
            self.carry();
        }
        self.carry();
        // Cancellations, and the steps of tasks.
        let limits = &self.far.limits;
        self.far
            .assert_limits(400 * (limits.in_flight + limits.questions + 12));
    }

    fn carry(&mut self) {
        loop {
            let mut quiet = !self.far.carry(|now, tell| {
                let at = tell.session().0 as usize;
                let trip = self.trips.get_mut(at).expect("a modern request that is there");
                trip.modern_request.handle_tell(now, tell);
            });
            for trip in &mut self.trips {
                while let Some(output) = trip.modern_request.poll_output() {
                    quiet = false;
                    match output {
                        modern_request::Output::Ask(ask) => self.far.backend.handle_ask(self.far.now, ask),
                        modern_request::Output::Wake | modern_request::Output::Ended(_) => {}
                    }
                }
                trip.listen(self.far.now);
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
        for trip in &mut self.trips {
            trip.modern_request.end_listen();
        }
        self.run_until_idle();
        for minutes in 1..=10 {
            self.far.now = self.far.now.after(Duration::from_secs(60 * minutes));
            self.run_until_idle();
        }
        for trip in &mut self.trips {
            assert!(trip.id.is_none(), "a client still waits");
            trip.modern_request.abandon();
        }
        self.run_until_idle();
        self.far.assert_empty();
    }
}

impl Trip {
    /// Takes what there is for the request that is attached.
    fn listen(&mut self, now: Moment) {
        let Some(id) = self.id.clone() else { return };
        if !self.streaming {
            match self.modern_request.poll_answer(now) {
                Answer::Waiting => return,
                Answer::Complete { body, .. } => return self.answered(&id, &body),
                Answer::Ask { round } => return self.parked(&id, round),
                Answer::Stream => self.streaming = true,
            }
        }
        let mut out = BytesMut::new();
        let reading = self.modern_request.read(now, &mut out);
        self.parser.push(&out);
        let mut answers = 0;
        while let Some(event) = self.parser.next().expect("events of Rialto are small") {
            let event = message(&event.data);
            if matches!(event.kind(), Kind::Result | Kind::Error) {
                assert_eq!(event.raw(Member::Id), Some(&id[..]), "the id of another request");
                answers += 1;
            }
        }
        match reading {
            Reading::Open => assert_eq!(answers, 0, "an answer, and no end"),
            Reading::Ended => {
                assert!(answers <= 1, "answered {answers} times");
                self.id = None;
            }
            Reading::Ask { round } => {
                assert_eq!(answers, 0, "an answer, and a question");
                self.parked(&id, round);
            }
        }
    }

    fn parked(&mut self, id: &Bytes, round: u32) {
        let body = self
            .modern_request
            .park("sealed", Moment::START.after(WAITING_TIME))
            .expect("the questions are due");
        self.round = Some(round);
        self.answered(id, &body);
    }

    fn answered(&mut self, id: &Bytes, body: &[u8]) {
        let answer = message(body);
        assert_eq!(answer.raw(Member::Id), Some(&id[..]), "the id of another request");
        assert!(matches!(answer.kind(), Kind::Result | Kind::Error));
        self.id = None;
    }
}
