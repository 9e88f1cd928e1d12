//! Tasks: how a server works on them, and what modern clients do with those they were given, or
//! others were.
//!
//! A task is begun by a call and ends by itself, after a few looks at it and perhaps a question.
//! The client that began it may look, answer and cancel; a client of another principal tries the
//! same and must learn nothing.

use std::time::Duration;

use protocol::client_face::modern::Classified;
use protocol::version::Era;
use serde_json::Value;

use crate::aggregate::Target;
use crate::dice::Dice;
use crate::history::{Fact, ID};
use crate::members::{Addressed, Params, Wanted, name_of, of_name};
use crate::modern_requests::FIRST;
use crate::run::SimulationRun;
use crate::server::Act;

/// Returns what the tool of a server declares about tasks, if the server has such.
pub(crate) fn support(dice: &mut Dice) -> Option<&'static str> {
    dice.percent(40)
        .then(|| ["forbidden", "optional", "required"][dice.below(3)])
}

/// A server's tasks.
#[derive(Debug)]
pub(crate) struct TaskBook {
    era: Era,
    support: Option<&'static str>,
    prefix: String,
    tasks: Vec<TaskWork>,
}

#[derive(Debug)]
struct TaskWork {
    post: usize,
    wire: u64,
    /// Looks at it until it has ended.
    looks: usize,
    /// It asks, and has not been answered.
    asks: bool,
    /// The line that asks, as soon as it was written (modern era).
    asked: Option<String>,
    question: Option<u64>,
    ended: Option<&'static str>,
    fails: bool,
    /// Requests that wait for the outcome.
    waiting: Vec<u64>,
}

impl TaskBook {
    pub(crate) fn new(era: Era, support: Option<&'static str>, prefix: String) -> Self {
        Self {
            era,
            support,
            prefix,
            tasks: Vec::new(),
        }
    }

    /// Its server has settled on an era, before the first task.
    pub(crate) fn settle(&mut self, era: Era) {
        self.era = era;
    }

    /// What is added to the capabilities.
    pub(crate) fn capability(&self) -> &'static str {
        match (self.support, self.era) {
            (None, _) => "",
            (Some(_), Era::Legacy) => r#","tasks":{"requests":{"tools":{"call":{}}}}"#,
            (Some(_), Era::Modern) => r#","extensions":{"io.modelcontextprotocol/tasks":{}}"#,
        }
    }

    /// Reads a request that has to do with tasks; `None` if it is another. `loses`: some of the
    /// bridge's own are lost.
    pub(crate) fn read(
        &mut self,
        dice: &mut Dice,
        value: &Value,
        state: (usize, u32, u64),
        line: &str,
        loses: bool,
        facts: &mut Vec<Fact>,
    ) -> Option<Vec<(Duration, Act)>> {
        let (backend, epoch, wire) = state;
        let post = value["params"]["_meta"]["post"]
            .as_u64()
            .map(|post| post as usize);
        let method = value["method"].as_str()?;
        let soon = dice.millis(0, 200);
        if method == "tools/list" && post.is_none() {
            // One that is lost is done without.
            let page = match value["params"]["cursor"].is_null() {
                true => Act::Tools(wire),
                false => Act::MoreTools(wire),
            };
            return Some(match loses && dice.percent(5) {
                true => vec![],
                false => vec![(soon, page)],
            });
        }
        if let Some(post) = post.filter(|_| method.starts_with("tasks/") || method == "tools/call") {
            if method == "tools/call" && !self.is_task(dice, value) {
                return None;
            }
            facts.push(Fact::Executed {
                backend,
                epoch,
                wire,
                post,
                line: line.into(),
            });
            if method == "tools/call" {
                self.tasks.push(TaskWork {
                    post,
                    wire,
                    looks: dice.below(3),
                    asks: dice.percent(40),
                    asked: None,
                    question: None,
                    ended: None,
                    fails: dice.percent(20),
                    waiting: Vec::new(),
                });
                let task = self.tasks.len() - 1;
                return Some(vec![(soon, Act::Created { wire, task })]);
            }
        }
        if !method.starts_with("tasks/") {
            return None;
        }
        let named = value["params"]["taskId"]
            .as_str()
            .and_then(|id| id.strip_prefix(&self.prefix));
        let named = named.and_then(|number| number.parse::<usize>().ok());
        let Some(task) = named.filter(|task| *task < self.tasks.len()) else {
            return Some(vec![(soon, Act::Unknown { wire, post })]);
        };
        let work = &mut self.tasks[task];
        Some(match method {
            // One of the bridge's own that is lost is asked again.
            "tasks/get" if post.is_none() && loses && dice.percent(10) => vec![],
            "tasks/get" => vec![(soon, Act::Describe { wire, task, post })],
            "tasks/result" if work.ended.is_some() => vec![(soon, Act::Outcome { wire, task })],
            "tasks/result" => {
                work.waiting.push(wire);
                if work.asks && work.question.is_none() {
                    vec![(soon, Act::AskForTask { task })]
                } else {
                    vec![]
                }
            }
            "tasks/cancel" => {
                let wire_of_call = work.wire;
                work.ended.get_or_insert("cancelled");
                facts.push(Fact::CancelRead {
                    backend,
                    epoch,
                    wire: wire_of_call,
                });
                let mut plan = vec![(soon, Act::Acknowledge { wire, post })];
                plan.extend(self.release(task));
                plan
            }
            _ => {
                if let Some(nonce) = value["params"]["inputResponses"]["k"]["nonce"].as_u64() {
                    facts.push(Fact::InputRead {
                        post: work.post,
                        nonce,
                    });
                    work.asks = false;
                }
                vec![(soon, Act::Acknowledge { wire, post })]
            }
        })
    }

    /// A legacy client requests a task, a modern one declares that it knows tasks.
    fn is_task(&self, dice: &mut Dice, value: &Value) -> bool {
        let meta = &value["params"]["_meta"];
        match self.era {
            Era::Legacy => value["params"].get("task").is_some(),
            Era::Modern => {
                let capabilities = &meta["io.modelcontextprotocol/clientCapabilities"];
                !capabilities["extensions"]["io.modelcontextprotocol/tasks"].is_null() && dice.percent(60)
            }
        }
    }

    /// Sends the outcome to the request that waits for it.
    fn release(&mut self, task: usize) -> Vec<(Duration, Act)> {
        let waiting = std::mem::take(&mut self.tasks[task].waiting);
        waiting
            .into_iter()
            .map(|wire| (Duration::ZERO, Act::Outcome { wire, task }))
            .collect()
    }

    /// The question with this id was answered, if it is one of a task.
    pub(crate) fn answered(&mut self, question: u64) -> Vec<(Duration, Act)> {
        let Some(task) = self.tasks.iter().position(|task| task.question == Some(question)) else {
            return vec![];
        };
        let work = &mut self.tasks[task];
        work.asks = false;
        if work.waiting.is_empty() {
            return vec![];
        }
        work.ended.get_or_insert("completed");
        self.release(task)
    }

    /// The list of tools of this backend, with more of them and perhaps a cursor.
    pub(crate) fn tools(&self, wire: u64, backend: usize, more: &str, cursor: &str) -> String {
        let support = self.support.unwrap_or("forbidden");
        format!(
            r#"{{"jsonrpc":"2.0","id":{wire},"result":{{"resultType":"complete","tools":[{{"name":"t","title":"{backend} t","execution":{{"taskSupport":"{support}"}}}}{more}]{cursor}}}}}"#
        )
    }

    /// The post that began a task.
    pub(crate) fn post(&self, task: usize) -> usize {
        self.tasks[task].post
    }

    pub(crate) fn id(&self, task: usize) -> String {
        format!("{}{task}", self.prefix)
    }

    /// The server asks for a task, if it still wants to.
    pub(crate) fn ask(&mut self, task: usize, question: u64) -> bool {
        let work = &mut self.tasks[task];
        let asks = work.asks && work.question.is_none() && work.ended.is_none();
        if asks {
            work.question = Some(question);
        }
        asks
    }

    /// What a call is answered with that began a task.
    pub(crate) fn created(&self, task: usize) -> String {
        let (id, post) = (self.id(task), self.tasks[task].post);
        match self.era {
            Era::Legacy => format!(
                r#""result":{{"task":{{"taskId":"{id}","status":"working","createdAt":"c","lastUpdatedAt":"u","ttl":60000,"pollInterval":800,"of":{post}}}}}"#
            ),
            Era::Modern => format!(
                r#""result":{{"resultType":"task","taskId":"{id}","status":"working","createdAt":"c","lastUpdatedAt":"u","ttlMs":60000,"pollIntervalMs":800,"of":{post}}}"#
            ),
        }
    }

    /// Whether the answer to a look will ask for the first time (modern era).
    pub(crate) fn asks_now(&self, task: usize) -> bool {
        let work = &self.tasks[task];
        self.era == Era::Modern && work.asks && work.asked.is_none() && work.ended.is_none()
    }

    /// Returns the description of a task. `question` is what it wants to know, if it asks now.
    pub(crate) fn described(&mut self, task: usize, post: Option<usize>, question: Option<String>) -> String {
        let id = self.id(task);
        let era = self.era;
        let work = &mut self.tasks[task];
        work.asked = work.asked.take().or(question);
        let status = match work.ended {
            Some(status) => status,
            None if work.asks => "input_required",
            None if work.looks > 0 => {
                work.looks -= 1;
                "working"
            }
            None => *work.ended.insert(if work.fails { "failed" } else { "completed" }),
        };
        let of = post.unwrap_or(work.post);
        let (ttl, poll) = match era {
            Era::Legacy => ("ttl", "pollInterval"),
            Era::Modern => ("ttlMs", "pollIntervalMs"),
        };
        let more = match (era, status) {
            (Era::Modern, "input_required") => format!(
                r#","inputRequests":{{"k":{}}}"#,
                work.asked.as_deref().unwrap_or("{}")
            ),
            (Era::Modern, "completed") => format!(r#","result":{{"of":{},"n":1}}"#, work.post),
            (Era::Modern, "failed") => {
                format!(
                    r#","error":{{"code":-32000,"message":"no","data":{{"of":{}}}}}"#,
                    work.post
                )
            }
            _ => String::new(),
        };
        format!(
            r#""result":{{"resultType":"complete","taskId":"{id}","status":"{status}","createdAt":"c","lastUpdatedAt":"u","{ttl}":60000,"{poll}":800,"of":{of}{more}}}"#
        )
    }

    /// Returns the outcome of a task, which the legacy era keeps apart.
    pub(crate) fn outcome(&self, task: usize) -> String {
        let work = &self.tasks[task];
        if work.fails || work.ended == Some("cancelled") {
            format!(
                r#""error":{{"code":-32000,"message":"no","data":{{"of":{}}}}}"#,
                work.post
            )
        } else {
            format!(
                r#""result":{{"of":{},"n":2,"_meta":{{"io.modelcontextprotocol/related-task":{{"taskId":"{}"}}}}}}"#,
                work.post,
                self.id(task)
            )
        }
    }
}

/// A task that a client was given.
#[derive(Debug)]
pub(crate) struct ClientTask {
    id: String,
    target: Target,
    owner: usize,
    principal: &'static str,
    keys: Vec<String>,
}

/// What a client does about a task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskUse {
    given: usize,
    foreign: bool,
    method: &'static str,
}

impl SimulationRun {
    /// A client requests a task of its own, or of another client.
    pub(crate) fn look_after_a_task(&mut self, seat: usize) {
        let (target, principal, _) = self.seats[seat].traits();
        let here: Vec<usize> = (0..self.given.len())
            .filter(|at| self.given[*at].target == target)
            .collect();
        let Some(at) = self.dice.pick(&here).copied() else {
            return;
        };
        let method = ["tasks/get", "tasks/get", "tasks/update", "tasks/cancel"][self.dice.below(4)];
        let nonce = self.next_nonce;
        self.next_nonce += 1;
        let given = &self.given[at];
        let foreign = given.principal != principal;
        let responses: Vec<String> = given
            .keys
            .iter()
            .map(|key| format!(r#""{key}":{{"action":"accept","nonce":{nonce}}}"#))
            .collect();
        let params = |id: &str| match method {
            "tasks/update" => format!(
                r#""name":"t", "taskId":"{id}","inputResponses":{{{}}},"#,
                responses.join(",")
            ),
            _ => format!(r#""name":"t", "taskId":"{id}","#),
        };
        let mark = format!("{}:", name_of(given.owner));
        let own = match target {
            Target::Backend(_) => &given.id,
            Target::Aggregate => given.id.strip_prefix(&mark).unwrap_or("another member's"),
        };
        let (sent, read) = (params(&given.id), params(own));
        let to = match (target, &self.aggregate) {
            (Target::Aggregate, Some(aggregate)) => aggregate.addressed(Some(given.owner)),
            (_, _) => Addressed::to_backend(given.owner),
        };
        if method == "tasks/update" && !foreign {
            let session = FIRST + self.modern_calls.len();
            let seq = None;
            self.note(Fact::Replied { session, nonce, seq });
        }
        let look = TaskUse {
            given: at,
            foreign,
            method,
        };
        let wanted = Wanted {
            method,
            params: Params { sent, read },
            to,
        };
        self.start_for(seat, wanted, Classified::Call { retry: false }, Some(look));
    }

    /// Takes note of the tasks in an answer. Returns why it is no answer of a server, if it is
    /// none.
    pub(crate) fn note_task(&mut self, at: usize, look: Option<TaskUse>, value: &Value) -> Option<String> {
        let result = &value["result"];
        let (target, owner, principal) = self.trip_home(at);
        if result["resultType"] == "task"
            && let Some(id) = result["taskId"].as_str()
        {
            let owner = match (target, id.split_once(':')) {
                (Target::Aggregate, Some((member, _))) => of_name(member),
                (_, _) => owner,
            };
            self.given.push(ClientTask {
                id: id.into(),
                target,
                owner,
                principal,
                keys: Vec::new(),
            });
        }
        let look = look?;
        if look.foreign && !result.is_null() {
            self.note(Fact::Wrong {
                what: format!("{principal} was shown a task of another: {value}"),
            });
        }
        if let Some(questions) = result["inputRequests"].as_object() {
            self.given[look.given].keys = questions.keys().cloned().collect();
        }
        if value["error"]["message"] == "there is no such task" {
            return Some("no such task".into());
        }
        if value["error"]["code"] == -32021 {
            return Some("tasks undeclared".into());
        }
        let acknowledged = look.method != "tasks/get" && !result.is_null();
        acknowledged.then(|| "acknowledged".into())
    }
}

/// The text of an answer, with [`ID`] for its id.
pub(crate) fn template(body: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{ID},{body}}}"#)
}
