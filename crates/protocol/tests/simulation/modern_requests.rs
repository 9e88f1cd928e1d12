//! Restless clients of the modern era: every request is a modern request, and some come back to those that are parked.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use protocol::capability::Capabilities;
use protocol::client_face::modern::{self, Classified};
use protocol::exchange::{Principal, Tell};
use protocol::modern_request::{self, Answer, ModernRequest, Reading};
use protocol::time::Moment;
use protocol::version::Era;
use serde_json::Value;

use crate::clients::Declares;
use crate::history::{Fact, ID};
use crate::listens::Listen;
use crate::tasks::Look;
use crate::world::{Event, World, message, meta, value_of};

/// Modern requests are sessions to a backend. In the history their numbers distinguish them from those of clients.
pub(crate) const FIRST: usize = 1_000_000;

/// How long a modern request waits for its client.
const PARKED_FOR: Duration = Duration::from_secs(20);

/// How long a question waits for others that the server asks at the same time.
const SIBLINGS: Duration = Duration::from_millis(20);

/// One modern request and its client's end of it.
#[derive(Debug)]
pub(crate) struct Trip {
    seat: usize,
    pub(crate) backend: usize,
    modern_request: ModernRequest,
    /// The first request, and the one that is attached or was last.
    root: usize,
    post: usize,
    token: Option<String>,
    state: TripState,
    /// When the first question came that its client was not given yet.
    asked_at: Option<Moment>,
    /// The last round that it was parked in.
    round: Option<u32>,
    connection: usize,
    events: u64,
    keys: Vec<String>,
    pub(crate) listen: Option<Listen>,
    look: Option<Look>,
    pub(crate) tells: VecDeque<Tell>,
    pub(crate) tells_at: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TripState {
    Waiting,
    Reading,
    Parked { round: u32, until: Moment },
    Gone,
}

impl Trip {
    pub(crate) fn dismiss(&mut self) {
        self.modern_request.end_listen();
    }
}

impl World {
    pub(crate) fn modern_client_acts(&mut self, seat: usize) {
        let own = |trip: &Trip| trip.seat == seat;
        match self.dice.below(100) {
            0..40 => self.start_one(seat),
            40..45 => self.modern_client_listens(seat),
            45..53 => {
                let attached = self.some_trip(|trip| {
                    own(trip) && matches!(trip.state, TripState::Waiting | TripState::Reading)
                });
                if let Some(at) = attached {
                    let trip = &mut self.trips[at];
                    trip.state = TripState::Gone;
                    trip.modern_request.handle_disconnect();
                    let post = trip.post;
                    self.note(Fact::HungUp { post });
                    self.serve_modern_request(at);
                }
            }
            53..80 => {
                let parked =
                    self.some_trip(|trip| own(trip) && matches!(trip.state, TripState::Parked { .. }));
                if let Some(at) = parked {
                    self.come_back(at);
                }
            }
            80..83 => {
                let past = self.some_trip(|trip| own(trip) && trip.round.is_some());
                if let Some(at) = past {
                    self.come_too_late(at);
                }
            }
            83..95 => self.look_after_a_task(seat),
            _ => {}
        }
    }

    fn some_trip(&mut self, wanted: impl Fn(&Trip) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..self.trips.len())
            .filter(|at| wanted(&self.trips[*at]))
            .collect();
        self.dice.pick(&found).copied()
    }

    fn modern_text(
        &mut self,
        method: &str,
        post: usize,
        extra: &str,
        seat: usize,
    ) -> (String, String, Option<String>, String) {
        let mut capabilities = Capabilities::ALL_JSON.trim_end_matches('}').to_owned();
        // The last member had a brace of its own, and the one in it.
        capabilities.push_str("}}");
        if self.seats[seat].knows_tasks() {
            capabilities.push_str(r#","extensions":{"io.modelcontextprotocol/tasks":{}}"#);
        }
        capabilities.push('}');
        match self.seats[seat].declares() {
            Declares::Everything => {}
            Declares::Forms => capabilities = r#"{"elicitation":{}}"#.into(),
            Declares::Nothing => capabilities = "{}".into(),
        }
        let id = ["1", "\"1\"", "7", "\"\""][self.dice.below(4)].to_owned();
        let token = self.dice.percent(50).then(|| format!("\"t{post}\""));
        let text = |id: &str, token: Option<&str>| {
            let token = token.map_or_else(String::new, |token| format!(r#","progressToken": {token}"#));
            format!(
                r#"{{"jsonrpc":"2.0","id": {id} ,"method":"{method}","params":{{"name":"t", {extra}"_meta":{{"post":{post}{token},"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{capabilities}}}}}}}"#,
            )
        };
        let template = text(ID, token.as_ref().map(|_| ID));
        let sent = text(&id, token.as_deref());
        (sent, id, token, template)
    }

    fn start_one(&mut self, seat: usize) {
        let method = ["tools/call", "tools/call", "tools/call", "tools/list"][self.dice.below(4)];
        let classified = Classified::Call { retry: false };
        self.start_for(seat, method, r#""arguments":{"n":1.50e3},"#, classified, None);
    }

    /// Sends a request. Returns its modern request and its id.
    pub(crate) fn start_for(
        &mut self,
        seat: usize,
        method: &'static str,
        extra: &str,
        classified: Classified,
        look: Option<Look>,
    ) -> (usize, String) {
        let (backend, principal, accepts) = self.seats[seat].traits();
        let index = self.trips.len();
        let post = self.posts.len();
        let (sent, id, token, template) = self.modern_text(method, post, extra, seat);
        let session = FIRST + index;
        self.note(Fact::SessionOpened {
            session,
            backend,
            principal,
        });
        let translated = self.backends[backend].era != Some(Era::Modern);
        let limit = self.backends[backend].call_limits.of_call(accepts);
        self.post_modern((session, limit), &id, method, template, translated, None);
        let sent = message(&sent);
        let client = Arc::new(modern::client(&sent, Principal::named(principal)));
        let key = protocol::exchange::SessionKey(session as u64);
        let (modern_request, asks) = ModernRequest::new(key, client, self.now, sent, classified, accepts);
        let connection = self.new_connection();
        self.trips.push(Trip {
            seat,
            backend,
            modern_request,
            root: post,
            post,
            token,
            state: TripState::Waiting,
            asked_at: None,
            connection,
            events: 0,
            keys: Vec::new(),
            listen: None,
            look,
            round: None,
            tells: VecDeque::new(),
            tells_at: Moment::START,
        });
        for ask in asks {
            self.send_ask(backend, ask);
        }
        (index, id)
    }

    /// Returns the backend of a modern request, and its principal.
    pub(crate) fn trip_home(&self, at: usize) -> (usize, &'static str) {
        let trip = &self.trips[at];
        (trip.backend, self.seats[trip.seat].traits().1)
    }

    /// Comes back to a round that was answered, given up or has ended: nothing may come of it.
    fn come_too_late(&mut self, at: usize) {
        let trip = &self.trips[at];
        let (Some(round), seat) = (trip.round, trip.seat) else {
            return;
        };
        if matches!(trip.state, TripState::Parked { round: open, .. } if open == round) {
            return;
        }
        let post = self.posts.len();
        let extra = r#""arguments":{"n":1.50e3},"inputResponses":{},"#;
        let (sent, _, _, _) = self.modern_text("tools/call", post, extra, seat);
        let accepts = self.seats[seat].traits().2;
        let now = self.now;
        if self.trips[at]
            .modern_request
            .retry(now, message(&sent), round, accepts)
            .is_ok()
        {
            self.note(Fact::Wrong {
                what: format!("a retry of round {round} was taken twice, or too late"),
            });
        }
    }

    /// Comes back with answers: to all questions, to some, or with a round that is over.
    fn come_back(&mut self, at: usize) {
        let TripState::Parked { round, .. } = self.trips[at].state else {
            return;
        };
        let stale = round > 0 && self.dice.percent(10);
        let other = self.dice.percent(5);
        let changed = self.dice.percent(5);
        let post = self.posts.len();
        let mut answers = Vec::new();
        for key in self.trips[at].keys.clone() {
            if self.dice.percent(85) {
                let nonce = self.next_nonce;
                self.next_nonce += 1;
                answers.push((key, nonce));
            }
        }
        let responses: Vec<String> = answers
            .iter()
            .map(|(key, nonce)| {
                let sampled = r#""role":"assistant","content":{},"model":"m""#;
                format!(r#""{key}":{{"action":"accept","roots":[],{sampled},"nonce":{nonce}}}"#)
            })
            .collect();
        let arguments = if changed { r#"{"n":2}"# } else { r#"{"n":1.50e3}"# };
        let extra = format!(
            r#""arguments":{arguments},"inputResponses":{{{}}},"#,
            responses.join(",")
        );
        let method = if other { "prompts/get" } else { "tools/call" };
        let seat = self.trips[at].seat;
        let (sent, id, token, template) = self.modern_text(method, post, &extra, seat);
        let accepts = self.seats[seat].traits().2;
        let (stale, other) = (stale, other || changed);
        let asked = if stale { round - 1 } else { round };
        let now = self.now;
        let taken = self.trips[at]
            .modern_request
            .retry(now, message(&sent), asked, accepts);
        match taken {
            Err(_) if stale || other => {}
            Ok(_) if stale || other => self.note(Fact::Wrong {
                what: "a retry was taken that does not fit".into(),
            }),
            Err(refusal) => self.note(Fact::Wrong {
                what: format!("a retry was refused: {refusal:?}"),
            }),
            Ok(asks) => {
                let (root, backend) = (self.trips[at].root, self.trips[at].backend);
                // The questions that are left wait anew, for those that the answers lead to.
                if answers.len() < self.trips[at].keys.len() {
                    self.trips[at].asked_at.get_or_insert(now);
                }
                for (_, nonce) in answers {
                    self.note(Fact::Replied {
                        session: FIRST + at,
                        nonce,
                    });
                }
                let limit = self.backends[backend].call_limits.of_call(accepts);
                let state = (FIRST + at, limit);
                self.post_modern(state, &id, "tools/call", template, true, Some(root));
                let connection = self.new_connection();
                let trip = &mut self.trips[at];
                trip.state = TripState::Waiting;
                trip.post = post;
                trip.token = token;
                trip.connection = connection;
                trip.events = 0;
                trip.keys.clear();
                for ask in asks {
                    self.send_ask(backend, ask);
                }
            }
        }
        self.serve_modern_request(at);
    }

    pub(crate) fn expire_modern_requests(&mut self) {
        for at in 0..self.trips.len() {
            if let TripState::Parked { until, .. } = self.trips[at].state
                && until <= self.now
            {
                self.trips[at].state = TripState::Gone;
                self.trips[at].modern_request.handle_tick(self.now);
                self.serve_modern_request(at);
            }
        }
    }

    pub(crate) fn tell_modern_request(&mut self, at: usize) {
        if let Some(tell) = self.trips[at].tells.pop_front() {
            let now = self.now;
            let trip = &mut self.trips[at];
            if matches!(tell, Tell::Question { .. }) {
                trip.asked_at.get_or_insert(now);
            }
            trip.modern_request.handle_tell(now, tell);
            self.serve_modern_request(at);
        }
    }

    pub(crate) fn serve_modern_request(&mut self, at: usize) {
        self.poll_modern_request(at);
        while let Some(output) = self.trips[at].modern_request.poll_output() {
            match output {
                modern_request::Output::Wake => self.poll_modern_request(at),
                modern_request::Output::Ask(ask) => self.send_ask(self.trips[at].backend, ask),
                modern_request::Output::Ended(_) => {}
            }
        }
    }

    fn poll_modern_request(&mut self, at: usize) {
        let trip = &mut self.trips[at];
        let mut asked = None;
        if trip.state == TripState::Waiting {
            match trip.modern_request.poll_answer(self.now) {
                Answer::Waiting => {}
                Answer::Complete { body, .. } => {
                    trip.state = TripState::Gone;
                    return self.modern_request_ended(at, &body);
                }
                Answer::Ask { round } => asked = Some(round),
                Answer::Stream => trip.state = TripState::Reading,
            }
        }
        let trip = &mut self.trips[at];
        if trip.state == TripState::Reading {
            let mut out = BytesMut::new();
            let reading = trip.modern_request.read(self.now, &mut out);
            match reading {
                Reading::Open => {}
                Reading::Ended => trip.state = TripState::Gone,
                Reading::Ask { round } => asked = Some(round),
            }
            let text = String::from_utf8(out.to_vec()).expect("events are text");
            for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
                self.modern_request_received(at, data);
            }
        }
        if let Some(due) = self.trips[at]
            .modern_request
            .next_deadline()
            .filter(|_| asked.is_none())
        {
            self.plan_at(due, Event::Questions(at));
        }
        if let Some(round) = asked {
            let asked_at = self.trips[at].asked_at.take();
            if asked_at.is_some_and(|at| self.now.since(at) < SIBLINGS) {
                self.note(Fact::Wrong {
                    what: "a question did not wait for those asked with it".into(),
                });
            }
            let until = self.now.after(PARKED_FOR);
            let body = self.trips[at].modern_request.park("sealed", until);
            self.trips[at].state = TripState::Parked { round, until };
            self.trips[at].round = Some(round);
            self.modern_request_ended(at, &body);
        }
    }

    fn modern_request_received(&mut self, at: usize, data: &str) {
        let value = value_of(data.as_bytes());
        if value.get("method").is_none() {
            return self.modern_request_ended(at, data.as_bytes());
        }
        let post = meta(&value, "of").map(|of| of as usize);
        self.note_received(at, meta(&value, "seq"), post);
        if self.trips[at].listen.is_some() {
            return self.listen_received(at, &value);
        }
        let token = value["params"]["progressToken"].to_string();
        if value["method"] == "notifications/progress" && self.trips[at].token.as_deref() != Some(&token) {
            self.note(Fact::Wrong {
                what: format!("progress came with another token: {data}"),
            });
        }
    }

    fn note_received(&mut self, at: usize, seq: Option<u64>, post: Option<usize>) {
        let trip = &mut self.trips[at];
        trip.events += 1;
        let (connection, number) = (trip.connection, trip.events);
        self.note(Fact::ClientRead {
            session: FIRST + at,
            connection,
            stream: 0,
            number,
            seq,
            post,
        });
    }

    fn modern_request_ended(&mut self, at: usize, body: &[u8]) {
        let value = value_of(body);
        let asks = value["result"]["resultType"] == "input_required";
        let mut reason = value["error"]["data"]["reason"].as_str().map(str::to_owned);
        let look = self.trips[at].look;
        reason = reason.or(self.note_task(at, look, &value));
        if value["error"]["code"] == -32021 && look.is_none() {
            reason = Some("incapable".into());
        }
        if self.trips[at].listen.is_some() {
            reason = reason.or(Some("listen closed".into()));
        }
        let task_asks = look.is_some() && value["result"]["inputRequests"].is_object();
        if task_asks {
            for question in value["result"]["inputRequests"].as_object().into_iter().flatten() {
                let (seq, post) = sent_by(question.1);
                self.note_received(at, seq, post);
            }
        }
        if asks && self.backends[self.trips[at].backend].era == Some(Era::Legacy) {
            reason = Some("input_required".into());
            let questions = value["result"]["inputRequests"]
                .as_object()
                .cloned()
                .unwrap_or_default();
            self.trips[at].keys = questions.keys().cloned().collect();
            for question in questions.values() {
                let (seq, post) = sent_by(question);
                self.note_received(at, seq, post);
            }
        }
        let post = self.trips[at].post;
        let body = String::from_utf8_lossy(body).into_owned();
        self.note(Fact::Ended {
            session: FIRST + at,
            post,
            body,
            reason,
        });
    }
}

/// Reads the number of a question from its text, for clients that get it without `_meta`.
fn sent_by(question: &Value) -> (Option<u64>, Option<usize>) {
    let text = question["params"]["message"].as_str().unwrap_or_default();
    let mut words = text.split(' ').map(|word| word.parse::<u64>().ok());
    (
        words.next().flatten(),
        words.next().flatten().map(|post| post as usize),
    )
}
