//! Restless clients of the modern era: every request is a modern request, and some come back to
//! those that are parked.

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
use crate::run::{Event, SimulationRun, message, meta, value_of};
use crate::tasks::TaskUse;

/// Modern requests are sessions to a backend. In the history their numbers distinguish them from
/// those of clients.
pub(crate) const FIRST: usize = 1_000_000;

/// How long a modern request waits for its client.
const PARKED_FOR: Duration = Duration::from_secs(20);

/// How long a question waits for others that the server asks at the same time.
const SIBLINGS: Duration = Duration::from_millis(20);

/// One modern request and its client's end of it.
#[derive(Debug)]
pub(crate) struct ModernCall {
    seat: usize,
    pub(crate) backend: usize,
    modern_request: ModernRequest,
    /// The first request, and the one that is attached or was last.
    root: usize,
    post: usize,
    token: Option<String>,
    state: ModernCallState,
    /// When the first question came that its client was not given yet.
    asked_at: Option<Moment>,
    /// The last round that it was parked in.
    round: Option<u32>,
    connection: usize,
    events: u64,
    keys: Vec<String>,
    pub(crate) listen: Option<Listen>,
    look: Option<TaskUse>,
    pub(crate) tells: VecDeque<Tell>,
    pub(crate) tells_at: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ModernCallState {
    Waiting,
    Reading,
    Parked { round: u32, until: Moment },
    Gone,
}

impl ModernCall {
    pub(crate) fn dismiss(&mut self) {
        self.modern_request.end_listen();
    }
}

impl SimulationRun {
    pub(crate) fn modern_client_acts(&mut self, seat: usize) {
        let own = |modern_call: &ModernCall| modern_call.seat == seat;
        match self.dice.below(100) {
            0..40 => self.start_one(seat),
            40..45 => self.modern_client_listens(seat),
            45..53 => {
                let attached = self.some_modern_call(|modern_call| {
                    own(modern_call)
                        && matches!(
                            modern_call.state,
                            ModernCallState::Waiting | ModernCallState::Reading
                        )
                });
                if let Some(at) = attached {
                    let modern_call = &mut self.modern_calls[at];
                    modern_call.state = ModernCallState::Gone;
                    modern_call.modern_request.handle_disconnect();
                    let post = modern_call.post;
                    self.note(Fact::HungUp { post });
                    self.serve_modern_request(at);
                }
            }
            53..80 => {
                let parked = self.some_modern_call(|modern_call| {
                    own(modern_call) && matches!(modern_call.state, ModernCallState::Parked { .. })
                });
                if let Some(at) = parked {
                    self.come_back(at);
                }
            }
            80..83 => {
                let past =
                    self.some_modern_call(|modern_call| own(modern_call) && modern_call.round.is_some());
                if let Some(at) = past {
                    self.come_too_late(at);
                }
            }
            83..95 => self.look_after_a_task(seat),
            _ => {}
        }
    }

    /// The process that had all modern requests has ended.
    pub(crate) fn lose_modern_calls(&mut self) {
        for at in 0..self.modern_calls.len() {
            let modern_call = &mut self.modern_calls[at];
            let was_open = modern_call.state != ModernCallState::Gone;
            modern_call.state = ModernCallState::Gone;
            modern_call.listen = None;
            modern_call.look = None;
            modern_call.round = None;
            modern_call.tells.clear();
            let post = modern_call.post;
            if was_open {
                self.note(Fact::HungUp { post });
            }
        }
    }

    fn some_modern_call(&mut self, wanted: impl Fn(&ModernCall) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..self.modern_calls.len())
            .filter(|at| wanted(&self.modern_calls[*at]))
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
        look: Option<TaskUse>,
    ) -> (usize, String) {
        let (backend, principal, accepts) = self.seats[seat].traits();
        let index = self.modern_calls.len();
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
        self.modern_calls.push(ModernCall {
            seat,
            backend,
            modern_request,
            root: post,
            post,
            token,
            state: ModernCallState::Waiting,
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
        let modern_call = &self.modern_calls[at];
        (modern_call.backend, self.seats[modern_call.seat].traits().1)
    }

    /// Comes back to a round that was answered, given up or has ended: nothing may come of it.
    fn come_too_late(&mut self, at: usize) {
        let modern_call = &self.modern_calls[at];
        let (Some(round), seat) = (modern_call.round, modern_call.seat) else {
            return;
        };
        if matches!(modern_call.state, ModernCallState::Parked { round: open, .. } if open == round) {
            return;
        }
        let post = self.posts.len();
        let extra = r#""arguments":{"n":1.50e3},"inputResponses":{},"#;
        let (sent, _, _, _) = self.modern_text("tools/call", post, extra, seat);
        let accepts = self.seats[seat].traits().2;
        let now = self.now;
        if self.modern_calls[at]
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
        let ModernCallState::Parked { round, .. } = self.modern_calls[at].state else {
            return;
        };
        let stale = round > 0 && self.dice.percent(10);
        let other = self.dice.percent(5);
        let changed = self.dice.percent(5);
        let post = self.posts.len();
        let mut answers = Vec::new();
        for key in self.modern_calls[at].keys.clone() {
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
        let seat = self.modern_calls[at].seat;
        let (sent, id, token, template) = self.modern_text(method, post, &extra, seat);
        let accepts = self.seats[seat].traits().2;
        let (stale, other) = (stale, other || changed);
        let asked = if stale { round - 1 } else { round };
        let now = self.now;
        let taken = self.modern_calls[at]
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
                let (root, backend) = (self.modern_calls[at].root, self.modern_calls[at].backend);
                // The questions that are left wait anew, for those that the answers lead to.
                if answers.len() < self.modern_calls[at].keys.len() {
                    self.modern_calls[at].asked_at.get_or_insert(now);
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
                let modern_call = &mut self.modern_calls[at];
                modern_call.state = ModernCallState::Waiting;
                modern_call.post = post;
                modern_call.token = token;
                modern_call.connection = connection;
                modern_call.events = 0;
                modern_call.keys.clear();
                for ask in asks {
                    self.send_ask(backend, ask);
                }
            }
        }
        self.serve_modern_request(at);
    }

    pub(crate) fn expire_modern_requests(&mut self) {
        for at in 0..self.modern_calls.len() {
            if let ModernCallState::Parked { until, .. } = self.modern_calls[at].state
                && until <= self.now
            {
                self.modern_calls[at].state = ModernCallState::Gone;
                self.modern_calls[at].modern_request.handle_tick(self.now);
                self.serve_modern_request(at);
            }
        }
    }

    pub(crate) fn tell_modern_request(&mut self, at: usize) {
        if let Some(tell) = self.modern_calls[at].tells.pop_front() {
            let now = self.now;
            let modern_call = &mut self.modern_calls[at];
            if matches!(tell, Tell::Question { .. }) {
                modern_call.asked_at.get_or_insert(now);
            }
            modern_call.modern_request.handle_tell(now, tell);
            self.serve_modern_request(at);
        }
    }

    pub(crate) fn serve_modern_request(&mut self, at: usize) {
        self.poll_modern_request(at);
        while let Some(output) = self.modern_calls[at].modern_request.poll_output() {
            match output {
                modern_request::Output::Wake => self.poll_modern_request(at),
                modern_request::Output::Ask(ask) => self.send_ask(self.modern_calls[at].backend, ask),
                modern_request::Output::Ended(_) => {}
            }
        }
    }

    fn poll_modern_request(&mut self, at: usize) {
        let modern_call = &mut self.modern_calls[at];
        let mut asked = None;
        if modern_call.state == ModernCallState::Waiting {
            match modern_call.modern_request.poll_answer(self.now) {
                Answer::Waiting => {}
                Answer::Complete { body, .. } => {
                    modern_call.state = ModernCallState::Gone;
                    return self.modern_request_ended(at, &body);
                }
                Answer::Ask { round } => asked = Some(round),
                Answer::Stream => modern_call.state = ModernCallState::Reading,
            }
        }
        let modern_call = &mut self.modern_calls[at];
        if modern_call.state == ModernCallState::Reading {
            let mut out = BytesMut::new();
            let reading = modern_call.modern_request.read(self.now, &mut out);
            match reading {
                Reading::Open => {}
                Reading::Ended => modern_call.state = ModernCallState::Gone,
                Reading::Ask { round } => asked = Some(round),
            }
            let text = String::from_utf8(out.to_vec()).expect("events are text");
            for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
                self.modern_request_received(at, data);
            }
        }
        let modern_call = &self.modern_calls[at];
        // Without a connection the answer is not polled again: nothing would come of the deadline.
        let is_read = matches!(
            modern_call.state,
            ModernCallState::Waiting | ModernCallState::Reading
        );
        if let Some(due) = modern_call.modern_request.next_deadline()
            && is_read
            && asked.is_none()
        {
            self.plan_at(due, Event::Questions(at));
        }
        if let Some(round) = asked {
            let asked_at = self.modern_calls[at].asked_at.take();
            if asked_at.is_some_and(|at| self.now.since(at) < SIBLINGS) {
                self.note(Fact::Wrong {
                    what: "a question did not wait for those asked with it".into(),
                });
            }
            let until = self.now.after(PARKED_FOR);
            let asked = self.modern_calls[at].modern_request.park("sealed", until);
            let body = asked.expect("the questions are due");
            self.modern_calls[at].state = ModernCallState::Parked { round, until };
            self.modern_calls[at].round = Some(round);
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
        if self.modern_calls[at].listen.is_some() {
            return self.listen_received(at, &value);
        }
        let token = value["params"]["progressToken"].to_string();
        if value["method"] == "notifications/progress"
            && self.modern_calls[at].token.as_deref() != Some(&token)
        {
            self.note(Fact::Wrong {
                what: format!("progress came with another token: {data}"),
            });
        }
    }

    fn note_received(&mut self, at: usize, seq: Option<u64>, post: Option<usize>) {
        let modern_call = &mut self.modern_calls[at];
        modern_call.events += 1;
        let (connection, number) = (modern_call.connection, modern_call.events);
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
        let look = self.modern_calls[at].look;
        reason = reason.or(self.note_task(at, look, &value));
        if value["error"]["code"] == -32021 && look.is_none() {
            reason = Some("incapable".into());
        }
        if self.modern_calls[at].listen.is_some() {
            reason = reason.or(Some("listen closed".into()));
        }
        let task_asks = look.is_some() && value["result"]["inputRequests"].is_object();
        if task_asks {
            for question in value["result"]["inputRequests"].as_object().into_iter().flatten() {
                let (seq, post) = sent_by(question.1);
                self.note_received(at, seq, post);
            }
        }
        if asks && self.backends[self.modern_calls[at].backend].era == Some(Era::Legacy) {
            reason = Some("input_required".into());
            let questions = value["result"]["inputRequests"]
                .as_object()
                .cloned()
                .unwrap_or_default();
            self.modern_calls[at].keys = questions.keys().cloned().collect();
            for question in questions.values() {
                let (seq, post) = sent_by(question);
                self.note_received(at, seq, post);
            }
        }
        let post = self.modern_calls[at].post;
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
