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
use serde_json::Value;

use crate::aggregate::Target;
use crate::clients::Declares;
use crate::history::{Fact, ID};
use crate::members::{Addressed, Params, Wanted};
use crate::run::{Event, SimulationRun, message, meta, value_of};
use crate::server::URIS;
use crate::tasks::TaskUse;

/// Modern requests are sessions to a backend. In the history their numbers distinguish them from
/// those of clients.
pub(crate) const FIRST: usize = 1_000_000;

/// The state that Rialto gives the clients of a legacy server that asks.
const SEALED: &str = "sealed";
/// The number of the one call of a modern request, in its session.
const MAIN_CALL: u64 = 1;

/// How long a modern request waits for its client.
const PARKED_FOR: Duration = Duration::from_secs(20);

/// How long a question waits for others that the server asks at the same time.
const SIBLINGS: Duration = Duration::from_millis(20);

/// One modern request and its client's end of it.
#[derive(Debug)]
pub(crate) struct ModernCall {
    seat: usize,
    pub(crate) to: Addressed,
    /// Its first request, for those that come back to it.
    method: &'static str,
    params: Params,
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
    /// What it was asked, with the numbers of the messages.
    keys: Vec<(String, Option<u64>)>,
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
        params: &Params,
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
        let text = |params: &str, id: &str, token: Option<&str>| {
            let token = token.map_or_else(String::new, |token| format!(r#","progressToken": {token}"#));
            format!(
                r#"{{"jsonrpc":"2.0","id": {id} ,"method":"{method}","params":{{{params}"_meta":{{"post":{post}{token},"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{capabilities}}}}}}}"#,
            )
        };
        let template = text(&params.read, ID, token.as_ref().map(|_| ID));
        let sent = text(&params.sent, &id, token.as_deref());
        (sent, id, token, template)
    }

    fn start_one(&mut self, seat: usize) {
        let wanted = match (self.seats[seat].traits().0, &self.aggregate) {
            (Target::Backend(backend), _) => Wanted {
                method: ["tools/call", "tools/call", "tools/call", "tools/list"][self.dice.below(4)],
                params: Params::same(r#""name":"t", "arguments":{"n":1.50e3},"#),
                to: Addressed::to_backend(backend),
            },
            (Target::Aggregate, Some(aggregate)) => aggregate.want_modern(&mut self.dice),
            (Target::Aggregate, None) => return,
        };
        let classified = Classified::Call { retry: false };
        self.start_for(seat, wanted, classified, None);
    }

    /// Sends a request. Returns its modern request and its id.
    pub(crate) fn start_for(
        &mut self,
        seat: usize,
        wanted: Wanted,
        classified: Classified,
        look: Option<TaskUse>,
    ) -> (usize, String) {
        let Wanted { method, params, to } = wanted;
        let (target, principal, accepts) = self.seats[seat].traits();
        let index = self.modern_calls.len();
        let post = self.posts.len();
        let (sent, id, token, template) = self.modern_text(method, post, &params, seat);
        let session = FIRST + index;
        let home = self.home_of(target);
        self.note(Fact::SessionOpened {
            session,
            home,
            principal,
        });
        if let (Target::Aggregate, Some(owner)) = (target, to.owner) {
            self.note(Fact::Owned {
                session,
                call: MAIN_CALL,
                owner,
            });
        }
        self.post_modern((session, accepts, to.clone()), &id, method, template, None);
        let sent = message(&sent);
        let client = Arc::new(modern::client(&sent, Principal::named(principal)));
        let key = protocol::exchange::SessionKey(session as u64);
        let (modern_request, asks) = ModernRequest::new(key, client, self.now, sent, classified, accepts);
        let connection = self.new_connection();
        self.modern_calls.push(ModernCall {
            seat,
            to,
            method,
            params,
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
            self.send_ask(target, ask);
        }
        (index, id)
    }

    /// Returns where a modern request goes, to which backend, and its principal.
    pub(crate) fn trip_home(&self, at: usize) -> (Target, usize, &'static str) {
        let ModernCall { to, seat, .. } = &self.modern_calls[at];
        let principal = self.seats[*seat].traits().1;
        (to.target, to.owner.unwrap_or_default(), principal)
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
        let ModernCall { method, params, .. } = &self.modern_calls[at];
        let (method, params) = (*method, params.and(r#""inputResponses":{},"#));
        let (sent, _, _, _) = self.modern_text(method, post, &params, seat);
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
        for (key, seq) in self.modern_calls[at].keys.clone() {
            if self.dice.percent(85) {
                let nonce = self.next_nonce;
                self.next_nonce += 1;
                answers.push((key, nonce, seq));
            }
        }
        let responses: Vec<String> = answers
            .iter()
            .map(|(key, nonce, _)| {
                let sampled = r#""role":"assistant","content":{},"model":"m""#;
                format!(r#""{key}":{{"action":"accept","roots":[],{sampled},"nonce":{nonce}}}"#)
            })
            .collect();
        let ModernCall { method, params, .. } = &self.modern_calls[at];
        let changed_params = params.changed().filter(|_| changed);
        let changed = changed_params.is_some();
        let params = changed_params.as_ref().unwrap_or(params);
        let params = params.and(&format!(r#""inputResponses":{{{}}},"#, responses.join(",")));
        let own_method = *method;
        let method = match (other, own_method) {
            (false, method) => method,
            (true, "prompts/get") => "tools/call",
            (true, _) => "prompts/get",
        };
        let seat = self.modern_calls[at].seat;
        let (sent, id, token, template) = self.modern_text(method, post, &params, seat);
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
                let (root, to) = (self.modern_calls[at].root, self.modern_calls[at].to.clone());
                let target = to.target;
                // The questions that are left wait anew, for those that the answers lead to.
                if answers.len() < self.modern_calls[at].keys.len() {
                    self.modern_calls[at].asked_at.get_or_insert(now);
                }
                for (_, nonce, seq) in answers {
                    self.note(Fact::Replied {
                        session: FIRST + at,
                        nonce,
                        seq,
                    });
                }
                let state = (FIRST + at, accepts, to);
                self.post_modern(state, &id, own_method, template, Some(root));
                let connection = self.new_connection();
                let modern_call = &mut self.modern_calls[at];
                modern_call.state = ModernCallState::Waiting;
                modern_call.post = post;
                modern_call.token = token;
                modern_call.connection = connection;
                modern_call.events = 0;
                modern_call.keys.clear();
                for ask in asks {
                    self.send_ask(target, ask);
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
                modern_request::Output::Ask(ask) => self.send_ask(self.modern_calls[at].to.target, ask),
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
            let asked = self.modern_calls[at].modern_request.park(SEALED, until);
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
        let to = self.modern_calls[at].to.clone();
        if to.target == Target::Aggregate {
            reason = reason.or_else(|| self.read_own_answer(&to, &value));
            if value["result"]["isError"] == true {
                // No server here sends this; it is how the call of a tool ends whose member is away.
                reason = Some("member away".into());
            }
        }
        let task_asks = look.is_some() && value["result"]["inputRequests"].is_object();
        if task_asks {
            for question in value["result"]["inputRequests"].as_object().into_iter().flatten() {
                let (seq, post) = sent_by(question.1);
                self.note_received(at, seq, post);
                self.attribute(FIRST + at, to.target, seq, member_of(question.1).as_deref());
            }
        }
        // The state of a modern server's own questions is another.
        if asks && value["result"]["requestState"] == SEALED {
            reason = Some("input_required".into());
            let questions = value["result"]["inputRequests"]
                .as_object()
                .cloned()
                .unwrap_or_default();
            let keys = questions.iter();
            self.modern_calls[at].keys = keys
                .map(|(key, question)| (key.clone(), sent_by(question).0))
                .collect();
            for question in questions.values() {
                let (seq, post) = sent_by(question);
                self.note_received(at, seq, post);
                if question["method"] == "elicitation/create" {
                    self.attribute(FIRST + at, to.target, seq, member_of(question).as_deref());
                }
            }
        }
        let post = self.modern_calls[at].post;
        let body = Self::unmarked(&to, &String::from_utf8_lossy(body));
        self.note(Fact::Ended {
            session: FIRST + at,
            post,
            body,
            reason,
        });
    }
}

// Listens: clients must receive what they asked for, marked as theirs, after an acknowledgement.

/// The number of the first call of a listen, in its session.
const FIRST_RESOURCE: u64 = 2;

/// What a client listens for.
#[derive(Debug)]
pub(crate) struct Listen {
    id: Value,
    lists: bool,
    uris: Vec<String>,
    acknowledged: bool,
}

impl SimulationRun {
    pub(crate) fn modern_client_listens(&mut self, seat: usize) {
        let lists = self.dice.percent(60);
        let own: Vec<usize> = (0..URIS.len()).filter(|_| self.dice.percent(40)).collect();
        let (target, ..) = self.seats[seat].traits();
        let (to, owners, uris) = match (target, &self.aggregate) {
            (Target::Aggregate, Some(aggregate)) => {
                let mut owners = Vec::new();
                let mut shown = Vec::new();
                for at in own {
                    let owner = self.dice.pick(&aggregate.shown).copied().unwrap_or_default();
                    owners.push(owner);
                    shown.push(aggregate.shown_uri(owner, aggregate.uris(owner)[at]));
                }
                (aggregate.addressed(None), owners, shown)
            }
            (Target::Aggregate, None) => return,
            (Target::Backend(backend), _) => {
                let uris = own.into_iter().map(|at| URIS[at].to_owned()).collect();
                (Addressed::to_backend(backend), Vec::new(), uris)
            }
        };
        let named: Vec<String> = uris.iter().map(|uri| format!(r#""{uri}""#)).collect();
        let params = Params::same(format!(
            r#""name":"t", "notifications":{{"toolsListChanged":{lists},"resourceSubscriptions":[{}]}},"#,
            named.join(",")
        ));
        let wanted = Wanted {
            method: "subscriptions/listen",
            params,
            to,
        };
        let (at, id) = self.start_for(seat, wanted, Classified::Listen, None);
        // Its resources are asked for one by one, in their order.
        for (place, owner) in owners.into_iter().enumerate() {
            self.note(Fact::Owned {
                session: FIRST + at,
                call: FIRST_RESOURCE + place as u64,
                owner,
            });
        }
        self.modern_calls[at].listen = Some(Listen {
            id: serde_json::from_str(&id).unwrap_or_default(),
            lists,
            uris,
            acknowledged: false,
        });
    }

    /// Ends every listen, as a gateway does that is shut down.
    pub(crate) fn dismiss_listens(&mut self) {
        for at in 0..self.modern_calls.len() {
            if self.modern_calls[at].listen.is_some() {
                self.modern_calls[at].dismiss();
                self.serve_modern_request(at);
            }
        }
    }

    /// Judges an event of a listen.
    pub(crate) fn listen_received(&mut self, at: usize, value: &Value) {
        let Some(listen) = &mut self.modern_calls[at].listen else {
            return;
        };
        let params = &value["params"];
        let mark = &params["_meta"]["io.modelcontextprotocol/subscriptionId"];
        let asked_for = match value["method"].as_str() {
            Some("notifications/subscriptions/acknowledged") => {
                !std::mem::replace(&mut listen.acknowledged, true)
            }
            Some("notifications/tools/list_changed") => listen.acknowledged && listen.lists,
            Some("notifications/resources/updated") => {
                let uri = params["uri"].as_str().unwrap_or_default();
                listen.acknowledged && listen.uris.iter().any(|asked| uri.starts_with(asked.as_str()))
            }
            _ => false,
        };
        if !asked_for || *mark != listen.id {
            let what = format!("a listen {:?} received {value}", listen.id);
            self.note(Fact::Wrong { what });
        }
    }
}

/// Returns the name of the member whose title stands before the text of a question.
fn member_of(question: &Value) -> Option<String> {
    let text = question["params"]["message"].as_str()?;
    let (title, _) = text.strip_prefix('[')?.split_once("] ")?;
    Some(title.replace('M', "m"))
}

/// Reads the number of a question from its text, for clients that get it without `_meta`.
fn sent_by(question: &Value) -> (Option<u64>, Option<usize>) {
    let text = question["params"]["message"].as_str().unwrap_or_default();
    let text = text.split_once("] ").map_or(text, |(_, text)| text);
    let mut words = text.split(' ').map(|word| word.parse::<u64>().ok());
    (
        words.next().flatten(),
        words.next().flatten().map(|post| post as usize),
    )
}
