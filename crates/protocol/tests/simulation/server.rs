//! A scripted server: what it plans when it reads a line, and what it writes when the time comes.
//!
//! It behaves badly in every way a server may, but for one: it sends nothing about a call that it
//! has answered. A cancelled call may stop, go on to its answer, or ask and log for ever without
//! one.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::time::Moment;
use protocol::version::Era;
use serde_json::Value;

use crate::dice::Dice;
use crate::eras::{Reaction, Speaks};
use crate::history::{Fact, ID, Kind};
use crate::tasks::{TaskBook, template};

/// What a server does at some moment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Act {
    Accept(u64),
    /// Acknowledges a listen.
    Listen(u64),
    Refuse(u64),
    /// Answers a request of the bridge itself, or one of a client that asks for no more than that.
    Acknowledge {
        wire: u64,
        post: Option<usize>,
    },
    Answer(u64),
    Progress(u64),
    Log(u64),
    Ask(u64),
    /// Something about a cancelled call that never stops.
    Ramble(u64),
    TooLong(u64),
    /// Something that no call caused.
    Wander,
    Withdraw(u64),
    /// The list of tools, for the bridge.
    Tools(u64),
    /// The second page of it.
    MoreTools(u64),
    /// Another list.
    Listed(u64, &'static str),
    /// A task in place of a result.
    Created {
        wire: u64,
        task: usize,
    },
    Describe {
        wire: u64,
        task: usize,
        post: Option<usize>,
    },
    Outcome {
        wire: u64,
        task: usize,
    },
    AskForTask {
        task: usize,
    },
    /// There is no such task.
    Unknown {
        wire: u64,
        post: Option<usize>,
    },
    Thaw,
    Crash,
}

/// What comes out of an act.
#[derive(Debug)]
pub(crate) enum Written {
    Line(String),
    TooLong(u64),
    Crash,
    Freeze(Duration),
    Hang,
}

#[derive(Debug)]
struct Work {
    post: usize,
    answers: u32,
    has_token: bool,
    may_ask: bool,
    cancelled: Option<Cancelled>,
}

/// What a server makes of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cancelled {
    Stops,
    GoesOn,
    /// It never answers, and talks about the call for ever.
    Rambles,
}

/// How long such a server goes on about a call.
const RAMBLING: Duration = Duration::from_secs(45);

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) backend: usize,
    pub(crate) epoch: u32,
    /// The era of its words. A server that speaks both settles on one.
    era: Era,
    speaks: Speaks,
    pub(crate) settled: Option<Era>,
    /// It has answered the handshake.
    known: bool,
    /// The listens that it has acknowledged.
    listens: Vec<u64>,
    /// What the other listens want.
    wanted: BTreeMap<u64, Value>,
    pub(crate) frozen: bool,
    /// It stays frozen until it is replaced.
    pub(crate) hung: bool,
    /// It has answered a handshake.
    opened: bool,
    /// No more mischief: answer what there is to answer.
    pub(crate) tame: bool,
    /// Every call of a client is answered at some time.
    pub(crate) answers_always: bool,
    /// It has prompts and completions, and tools that change.
    pub(crate) offers: bool,
    /// How many tools it has beside the one that stays.
    changing: usize,
    /// Its resources.
    pub(crate) uris: [&'static str; 3],
    work: BTreeMap<u64, Work>,
    /// Ids that its predecessors were given, and that it may answer all the same.
    inherited: Vec<u64>,
    next_question: u64,
    tasks: TaskBook,
}

pub(crate) const URIS: [&str; 3] = ["x:/a", "x:/b", "x:/a/part"];
/// Those of a member whose URIs clients see as they are, so that no other member has them.
pub(crate) const BARE_URIS: [&str; 3] = ["y:/a", "y:/b", "y:/a/part"];
/// Tools that a server has at times.
pub(crate) const MAX_TOOLS: usize = 3;

impl Server {
    pub(crate) fn new(
        backend: usize,
        epoch: u32,
        (speaks, settled): (Speaks, Option<Era>),
        tasks: Option<&'static str>,
        inherited: Vec<u64>,
    ) -> Self {
        let era = settled.unwrap_or(Era::Legacy);
        Self {
            tasks: TaskBook::new(era, tasks, format!("{backend}.{epoch}.")),
            backend,
            epoch,
            era,
            speaks,
            settled,
            known: false,
            listens: Vec::new(),
            wanted: BTreeMap::new(),
            frozen: false,
            hung: false,
            opened: false,
            tame: false,
            answers_always: false,
            offers: false,
            changing: 1,
            uris: URIS,
            work: BTreeMap::new(),
            inherited,
            next_question: 1,
        }
    }

    /// Reads a first message of an era. The one that it understands settles the era of its words.
    fn reaction(&mut self, era: Era) -> Reaction {
        let reaction = self.speaks.reaction(self.settled, era);
        if reaction == Reaction::Accept && self.settled.is_none() {
            self.settled = Some(era);
            self.era = era;
            self.tasks.settle(era);
        }
        reaction
    }

    /// Every id it knows of, for its successor.
    pub(crate) fn bequest(self) -> Vec<u64> {
        let mut ids = self.inherited;
        ids.extend(self.work.into_keys());
        ids
    }

    /// Reads a line and plans what to do about it.
    pub(crate) fn read(
        &mut self,
        dice: &mut Dice,
        line: &str,
        facts: &mut Vec<Fact>,
    ) -> Vec<(Duration, Act)> {
        let (backend, epoch) = (self.backend, self.epoch);
        let mut plan = Vec::new();
        let value: Value = serde_json::from_str(line).expect("the bridge writes JSON");
        let wire = value["id"].as_u64();
        // A member without time limits would be read for ever.
        let answers_lists = self.offers && self.answers_always;
        let loses = !self.tame && !answers_lists;
        if let Some(wire) = wire
            && let Some(steps) = self
                .tasks
                .read(dice, &value, (backend, epoch, wire), line, loses, facts)
        {
            return steps;
        }
        match (value["method"].as_str(), wire) {
            (Some("server/discover"), Some(wire)) if self.known => {
                plan.push((dice.millis(0, 300), Act::Accept(wire)));
            }
            (Some(method @ ("initialize" | "server/discover")), Some(wire)) => {
                let after = dice.millis(0, 1500);
                let era = if method == "initialize" {
                    Era::Legacy
                } else {
                    Era::Modern
                };
                match (self.reaction(era), dice.below(100)) {
                    (Reaction::Exit, _) => plan.push((after, Act::Crash)),
                    (Reaction::Refuse, _) => plan.push((after, Act::Refuse(wire))),
                    (Reaction::Accept, 0..3) if !self.tame => plan.push((after, Act::Refuse(wire))),
                    (Reaction::Accept, 3..6) if !self.tame => plan.push((after, Act::Crash)),
                    // Later than any client waits.
                    (Reaction::Accept, 6..8) if !self.tame => {
                        plan.push((dice.millis(13_000, 30_000), Act::Accept(wire)));
                    }
                    (Reaction::Accept, _) => plan.push((after, Act::Accept(wire))),
                }
            }
            (Some("notifications/cancelled"), _) => {
                let wire = value["params"]["requestId"].as_u64().unwrap_or_default();
                facts.push(Fact::CancelRead { backend, epoch, wire });
                self.listens.retain(|listen| *listen != wire);
                self.wanted.remove(&wire);
                if let Some(work) = self.work.get_mut(&wire) {
                    work.cancelled = Some(match dice.below(10) {
                        0..4 => Cancelled::Stops,
                        4..7 => Cancelled::GoesOn,
                        _ => Cancelled::Rambles,
                    });
                    plan.push((dice.millis(0, 9000), Act::Ramble(wire)));
                }
            }
            (Some("subscriptions/listen"), Some(wire)) => {
                let uris = value["params"]["notifications"]["resourceSubscriptions"].clone();
                match dice.below(10) {
                    0 if !self.tame => plan.push((dice.millis(0, 300), Act::Refuse(wire))),
                    1 if !self.tame => {}
                    _ => {
                        self.wanted.insert(wire, uris);
                        plan.push((dice.millis(0, 300), Act::Listen(wire)));
                    }
                }
            }
            (Some(_), Some(wire)) => match value["params"]["_meta"]["post"].as_u64() {
                Some(post) => {
                    let post = post as usize;
                    facts.push(Fact::Executed {
                        backend,
                        epoch,
                        wire,
                        post,
                        line: line.into(),
                    });
                    if let Some(nonce) = value["params"]["inputResponses"]["k"]["nonce"].as_u64() {
                        facts.push(Fact::InputRead { post, nonce });
                    }
                    let has_token = !value["params"]["_meta"]["progressToken"].is_null();
                    self.work.insert(
                        wire,
                        Work {
                            post,
                            answers: 0,
                            has_token,
                            may_ask: value["method"] == "tools/call",
                            cancelled: None,
                        },
                    );
                    self.plan_work(dice, wire, value["method"] == "tools/call", &mut plan);
                }
                None if self.offers && value["method"].as_str().is_some_and(is_list) => {
                    let method = value["method"].as_str().unwrap_or_default();
                    let list = LISTS.into_iter().find(|(name, _)| *name == method);
                    let (_, list) = list.unwrap_or_default();
                    if self.tame || self.answers_always || !dice.percent(5) {
                        plan.push((dice.millis(0, 200), Act::Listed(wire, list)));
                    }
                }
                None => {
                    if !dice.percent(10) {
                        plan.push((dice.millis(0, 300), Act::Acknowledge { wire, post: None }));
                    }
                }
            },
            (Some("notifications/initialized"), None) => {
                if dice.percent(30) {
                    plan.push((dice.millis(0, 50), Act::Ask(0)));
                }
            }
            (Some(_), None) => {}
            (None, Some(question)) => {
                let nonce = value["result"]["nonce"].as_u64();
                plan.extend(self.tasks.answered(question));
                facts.push(Fact::AnswerRead {
                    backend,
                    epoch,
                    question,
                    nonce,
                });
            }
            // The answer to its ping.
            (None, None) => {}
        }
        plan
    }

    fn plan_work(&mut self, dice: &mut Dice, wire: u64, may_ask: bool, plan: &mut Vec<(Duration, Act)>) {
        let slow = dice.percent(10);
        let span = if slow {
            dice.millis(2000, 9000)
        } else {
            dice.millis(0, 400)
        };
        let within = |dice: &mut Dice| span.mul_f64(dice.below(100) as f64 / 100.0);
        for _ in 0..dice.below(4) {
            let act = match dice.below(4) {
                0 | 1 => Act::Progress(wire),
                2 => Act::Log(wire),
                _ if may_ask && self.era == Era::Legacy => Act::Ask(wire),
                _ => Act::Log(wire),
            };
            let at = within(dice);
            plan.push((at, act));
            // Some ask several things at once.
            if matches!(act, Act::Ask(_)) && dice.percent(30) {
                plan.push((at + dice.millis(0, 5), act));
            }
        }
        match dice.below(100) {
            // Never.
            0..4 if !self.tame && !self.answers_always => {}
            4..7 if !self.tame => plan.push((within(dice), Act::Crash)),
            7..9 if !self.tame => plan.push((span, Act::TooLong(wire))),
            9..14 => {
                plan.push((span, Act::Answer(wire)));
                plan.push((span + dice.millis(0, 500), Act::Answer(wire)));
            }
            _ => plan.push((span, Act::Answer(wire))),
        }
    }

    /// What it declares beside tools and resources, if it offers more.
    fn offered(&self) -> &'static str {
        match (self.offers, self.era) {
            (false, _) => "",
            (true, Era::Legacy) => r#","prompts":{"listChanged":true},"completions":{},"logging":{}"#,
            (true, Era::Modern) => r#","prompts":{"listChanged":true},"completions":{}"#,
        }
    }

    fn tool(&self, number: usize) -> String {
        let backend = self.backend;
        format!(r#"{{"name":"x{number}","title":"{backend} x{number}"}}"#)
    }

    /// Returns the calls that it has not answered, by their id, and the requests that they are.
    pub(crate) fn working_on(&self) -> impl Iterator<Item = (u64, usize)> {
        let unanswered = self.work.iter().filter(|(_, work)| work.answers == 0);
        unanswered.map(|(wire, work)| (*wire, work.post))
    }

    /// Returns the post of a call that the server may still write about.
    fn post_of(&self, wire: u64) -> Option<usize> {
        let work = self.work.get(&wire)?;
        let stopped = work.cancelled == Some(Cancelled::Stops);
        (work.answers == 0 && !stopped).then_some(work.post)
    }

    /// A notice as it is written: a modern server writes one line for each listen.
    fn marked(&self, line: &str) -> String {
        match self.era {
            Era::Legacy => line.into(),
            Era::Modern => {
                let mark =
                    |listen| format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{listen},"#);
                let lines: Vec<String> = self
                    .listens
                    .iter()
                    .map(|listen| line.replace(r#""_meta":{"#, &mark(listen)))
                    .collect();
                lines.join("\n")
            }
        }
    }

    pub(crate) fn act(
        &mut self,
        now: Moment,
        dice: &mut Dice,
        act: Act,
        seq: &mut u64,
        attached: usize,
        facts: &mut Vec<Fact>,
    ) -> (Option<Written>, Vec<(Duration, Act)>) {
        let (backend, epoch) = (self.backend, self.epoch);
        let mut plan = Vec::new();
        let mut note_written = |facts: &mut Vec<Fact>, post: Option<usize>, kind: Kind, uri: Option<&str>| {
            *seq += 1;
            let uri = uri.map(str::to_owned);
            facts.push(Fact::ServerWrote {
                backend,
                seq: *seq,
                post,
                kind,
                uri,
                attached,
            });
            let post = post.map_or_else(|| "null".into(), |post| post.to_string());
            format!(r#""_meta":{{"seq":{seq},"of":{post}}}"#)
        };
        // The line that answers, and, if a client asked for it, that it was answered.
        let answer = |facts: &mut Vec<Fact>, wire: u64, post: Option<usize>, template: String| {
            let line = template.replace(ID, &wire.to_string());
            facts.extend(post.map(|post| Fact::Answered {
                backend,
                epoch,
                wire,
                post,
                template,
            }));
            line
        };
        self.opened |= matches!(act, Act::Accept(_));
        let line = match act {
            Act::Accept(wire) if self.era == Era::Modern => {
                self.known = true;
                format!(
                    r#"{{"jsonrpc":"2.0","id":{wire},"result":{{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{{"logging":{{}},"tools":{{"listChanged":true}},"resources":{{"subscribe":true}}{}{}}}}}}}"#,
                    self.offered(),
                    self.tasks.capability()
                )
            }
            Act::Listen(wire) => {
                let Some(uris) = self.wanted.remove(&wire) else {
                    return (None, plan);
                };
                self.listens.push(wire);
                let uris = if uris.is_null() {
                    "[]".into()
                } else {
                    uris.to_string()
                };
                format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{wire}}},"notifications":{{"toolsListChanged":true,"resourceSubscriptions":{uris}}}}}}}"#
                )
            }
            Act::Accept(wire) => format!(
                r#"{{"jsonrpc":"2.0","id":{wire},"result":{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{"listChanged":true}},"resources":{{"subscribe":true}}{}{}}},"serverInfo":{{"name":"s","version":"{epoch}"}}}}}}"#,
                self.offered(),
                self.tasks.capability()
            ),
            Act::Refuse(wire) => {
                format!(r#"{{"jsonrpc":"2.0","id":{wire},"error":{{"code":-32602,"message":"no"}}}}"#)
            }
            Act::Acknowledge { wire, post } => answer(facts, wire, post, template(r#""result":{}"#)),
            Act::Answer(wire) => {
                let Some(work) = self.work.get_mut(&wire) else {
                    return (None, plan);
                };
                if work
                    .cancelled
                    .is_some_and(|cancelled| cancelled != Cancelled::GoesOn)
                {
                    return (None, plan);
                }
                work.answers += 1;
                let asks = self.era == Era::Modern && work.may_ask && work.answers == 1 && dice.percent(25);
                let body = if asks {
                    let post = work.post;
                    facts.push(Fact::AskedByAnswer { post });
                    let meta = note_written(facts, Some(post), Kind::Question, None);
                    format!(
                        r#""result":{{"resultType":"input_required","inputRequests":{{"k":{{"method":"elicitation/create","params":{{"message":"?",{meta}}}}}}},"requestState":"s {post}"}}"#
                    )
                } else if dice.percent(15) {
                    format!(
                        r#""error":{{"code":-32000,"message":"no","data":{{"of":{}}}}}"#,
                        work.post
                    )
                } else {
                    format!(
                        r#""result":{{ "of":{}, "n":{}, "x":1.50 }}"#,
                        work.post,
                        dice.below(1000)
                    )
                };
                let template = format!(r#"{{"jsonrpc":"2.0","id":{ID},{body}}}"#);
                answer(facts, wire, Some(work.post), template)
            }
            Act::TooLong(wire) => {
                let Some(post) = self.post_of(wire) else {
                    return (None, plan);
                };
                if let Some(work) = self.work.get_mut(&wire) {
                    work.answers += 1;
                }
                facts.push(Fact::TooLong { post });
                return (Some(Written::TooLong(wire)), plan);
            }
            Act::Progress(wire) => {
                let Some(post) = self.post_of(wire) else {
                    return (None, plan);
                };
                if !self.work.get(&wire).is_some_and(|work| work.has_token) {
                    return (None, plan);
                }
                let meta = note_written(facts, Some(post), Kind::Progress, None);
                format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{wire},"progress":1,{meta}}}}}"#
                )
            }
            Act::Log(wire) => {
                let Some(post) = self.post_of(wire) else {
                    return (None, plan);
                };
                let meta = note_written(facts, Some(post), Kind::Log, None);
                log_line(dice, &meta)
            }
            Act::Ask(wire) => {
                let post = match wire {
                    0 => None,
                    wire => match self.post_of(wire) {
                        Some(post) => Some(post),
                        None => return (None, plan),
                    },
                };
                let question = self.next_question;
                self.next_question += 1;
                facts.push(Fact::Asked {
                    backend,
                    epoch,
                    question,
                    post,
                });
                if dice.percent(10) {
                    plan.push((dice.millis(0, 2000), Act::Withdraw(question)));
                }
                let meta = note_written(facts, post, Kind::Question, None);
                let of = post.map_or_else(|| "null".into(), |post| post.to_string());
                let method = match post {
                    Some(_) if dice.percent(30) => "sampling/createMessage",
                    Some(_) => "elicitation/create",
                    None => "roots/list",
                };
                format!(
                    r#"{{"jsonrpc":"2.0","id":{question},"method":"{method}","params":{{"message":"{seq} {of}",{meta}}}}}"#
                )
            }
            Act::Ramble(wire) => {
                let rambles = self
                    .work
                    .get(&wire)
                    .is_some_and(|work| work.cancelled == Some(Cancelled::Rambles));
                if !rambles || now.elapsed() > RAMBLING {
                    return (None, plan);
                }
                let may_ask =
                    self.era == Era::Legacy && self.work.get(&wire).is_some_and(|work| work.may_ask);
                let act = match dice.below(4) {
                    0 => Act::Progress(wire),
                    1 | 2 if may_ask => Act::Ask(wire),
                    _ => Act::Log(wire),
                };
                plan.push((Duration::ZERO, act));
                plan.push((dice.millis(200, 7000), Act::Ramble(wire)));
                return (None, plan);
            }
            Act::Tools(wire) if self.offers => {
                let more = match self.changing {
                    0 => String::new(),
                    changing => format!(",{}", self.tool(changing - 1)),
                };
                // All but one of them are on the second page.
                let cursor = if self.changing > 1 {
                    r#","nextCursor":"2""#
                } else {
                    ""
                };
                self.tasks.tools(wire, backend, &more, cursor)
            }
            Act::Tools(wire) => self.tasks.tools(wire, backend, "", ""),
            Act::MoreTools(wire) => {
                let tools: Vec<String> = (0..self.changing.saturating_sub(1))
                    .map(|number| self.tool(number))
                    .collect();
                listed(wire, "tools", &tools.join(","))
            }
            Act::Listed(wire, list) => {
                let items: Vec<String> = match list {
                    "prompts" => vec![format!(r#"{{"name":"p","title":"{backend} p"}}"#)],
                    "resources" => self
                        .uris
                        .into_iter()
                        .map(|uri| format!(r#"{{"uri":"{uri}","name":"r","title":"{backend} {uri}"}}"#))
                        .collect(),
                    _ => {
                        let template = self.uris[0].replace('a', "{n}");
                        vec![format!(
                            r#"{{"uriTemplate":"{template}","name":"r","title":"{backend} {template}"}}"#
                        )]
                    }
                };
                listed(wire, list, &items.join(","))
            }
            Act::Created { wire, task } => {
                let (post, body) = (self.tasks.post(task), self.tasks.created(task));
                let template = template(&body);
                answer(facts, wire, Some(post), template)
            }
            Act::Describe { wire, task, post } => {
                let question = if self.tasks.asks_now(task) {
                    let of = self.tasks.post(task);
                    let meta = note_written(facts, Some(of), Kind::Question, None);
                    Some(format!(
                        r#"{{"method":"elicitation/create","params":{{"message":"{seq} {of}",{meta}}}}}"#
                    ))
                } else {
                    None
                };
                if post.is_none() {
                    let post = self.tasks.post(task);
                    facts.push(Fact::Polled { post });
                }
                let template = template(&self.tasks.described(task, post, question));
                answer(facts, wire, post, template)
            }
            Act::Outcome { wire, task } => template(&self.tasks.outcome(task)).replace(ID, &wire.to_string()),
            Act::Unknown { wire, post } => {
                let of = post.map_or_else(|| "null".into(), |post| post.to_string());
                let template = template(&format!(
                    r#""error":{{"code":-32602,"message":"no such task","data":{{"of":{of}}}}}"#
                ));
                answer(facts, wire, post, template)
            }
            Act::AskForTask { task } => {
                let question = self.next_question;
                if !self.tasks.ask(task, question) {
                    return (None, plan);
                }
                self.next_question += 1;
                let (post, id) = (self.tasks.post(task), self.tasks.id(task));
                facts.push(Fact::Asked {
                    backend,
                    epoch,
                    question,
                    post: Some(post),
                });
                let meta = note_written(facts, Some(post), Kind::Question, None);
                let meta = meta.replace(
                    r#""_meta":{"#,
                    &format!(r#""_meta":{{"io.modelcontextprotocol/related-task":{{"taskId":"{id}"}},"#),
                );
                format!(
                    r#"{{"jsonrpc":"2.0","id":{question},"method":"elicitation/create","params":{{"message":"{seq} {post}",{meta}}}}}"#
                )
            }
            Act::Withdraw(question) => {
                facts.push(Fact::Withdrew {
                    backend,
                    epoch,
                    question,
                });
                format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{question}}}}}"#
                )
            }
            Act::Thaw => return (None, plan),
            Act::Crash => return (Some(Written::Crash), plan),
            Act::Wander => match dice.below(12) {
                0 => "Server listening on port 3000".into(),
                1 => r#"{"jsonrpc":"2.0","id":"stray","result":{}}"#.into(),
                2 => {
                    let unknown = 900_000 + dice.below(100) as u64;
                    let id = dice.pick(&self.inherited).copied().unwrap_or(unknown);
                    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"of":"none"}}}}"#)
                }
                3 => r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#.into(),
                4..8 if self.era == Era::Modern && self.listens.is_empty() => return (None, plan),
                4 | 5 => {
                    if self.offers {
                        self.changing = dice.below(MAX_TOOLS + 1);
                    }
                    let meta = note_written(facts, None, Kind::ListChanged, None);
                    self.marked(&format!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{{{meta}}}}}"#
                    ))
                }
                6 | 7 => {
                    let uri = self.uris[dice.below(self.uris.len())];
                    let meta = note_written(facts, None, Kind::Updated, Some(uri));
                    self.marked(&format!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}",{meta}}}}}"#
                    ))
                }
                8 => {
                    let meta = note_written(facts, None, Kind::Log, None);
                    log_line(dice, &meta)
                }
                9 if self.era == Era::Legacy => {
                    plan.push((Duration::ZERO, Act::Ask(0)));
                    return (None, plan);
                }
                10 if dice.percent(25) => return (Some(Written::Crash), plan),
                _ => {
                    if dice.percent(8) && self.opened && !self.answers_always && !self.tame {
                        facts.push(Fact::Hung { backend, epoch });
                        return (Some(Written::Hang), plan);
                    }
                    if dice.percent(40) {
                        return (Some(Written::Freeze(dice.millis(500, 8000))), plan);
                    }
                    return (None, plan);
                }
            },
        };
        (Some(Written::Line(line)), plan)
    }
}

/// The lists that a server answers beside that of its tools.
const LISTS: [(&str, &str); 3] = [
    ("prompts/list", "prompts"),
    ("resources/list", "resources"),
    ("resources/templates/list", "resourceTemplates"),
];

fn is_list(method: &str) -> bool {
    LISTS.iter().any(|(name, _)| *name == method)
}

fn listed(wire: u64, list: &str, items: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{wire},"result":{{"resultType":"complete","{list}":[{items}]}}}}"#)
}

fn log_line(dice: &mut Dice, meta: &str) -> String {
    let level = ["debug", "info", "error"][dice.below(3)];
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"{level}","data":"x",{meta}}}}}"#
    )
}
