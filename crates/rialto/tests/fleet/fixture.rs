//! What the tests of a fleet share: clients of single replicas, modern requests, and the load whose
//! history is checked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::fleet::{Fleet, LOST, NONE_READY};
use testkit::{Journal, LEGACY, McpClient, PATIENCE, Reply, Result, marked, poll_until, wait_until};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// How long a client waits before it repeats a request that was refused.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Reasons that are certain not to concern a call that ran.
const NOT_RUN: [&str; 4] = [
    "registry_unavailable",
    "owner_unreachable",
    "fleet_busy",
    "draining",
];

/// Returns a client of the destination `one` behind the balancer, with an open session.
pub(crate) async fn session(fleet: &Fleet) -> Result<McpClient> {
    session_with(fleet, json!({})).await
}

/// The same with these capabilities.
pub(crate) async fn session_with(fleet: &Fleet, capabilities: Value) -> Result<McpClient> {
    let client = McpClient::connect(&fleet.url_of("one")).await?;
    client.handshake(LEGACY, capabilities).await?;
    Ok(client)
}

/// Returns a client with a session that was opened at this replica.
pub(crate) async fn session_at(fleet: &Fleet, replica: usize) -> Result<McpClient> {
    let client = fleet.replica(replica).rialto().client_of("one").await?;
    client.handshake(LEGACY, json!({})).await?;
    Ok(client)
}

/// Returns the same client at another replica.
pub(crate) async fn moved(fleet: &Fleet, client: &McpClient, replica: usize) -> Result<McpClient> {
    let there = fleet.replica(replica).rialto().client_of("one").await?;
    there.set_session(client.session().as_deref());
    there.set_version(Some(LEGACY));
    Ok(there)
}

/// Returns the session id of a client.
pub(crate) fn id_of(client: &McpClient) -> String {
    client.session().expect("the client has a session")
}

/// Calls a tool with this marker until the answer is no refusal. Each refusal has to be 503 with a
/// pause and a reason: such a call did not run, so that its marker can be used again.
pub(crate) async fn call_until_served(
    client: &McpClient,
    tool: &str,
    marker: &str,
    deadline: Duration,
) -> Result<Reply> {
    let arguments = json!({"marker": marker});
    poll_until("the call is served", deadline, async || {
        let reply = client.call(1, tool, &arguments).await?;
        if reply.status != 503 {
            return Ok(Some(reply));
        }
        assert!(reply.header("retry-after").is_some(), "{reply:?}");
        assert!(reply.reason().is_some(), "{reply:?}");
        Ok(None)
    })
    .await
}

/// Calls `echo` until it is served, and checks the answer.
pub(crate) async fn echo_until_served(client: &McpClient, marker: &str) -> Result<()> {
    let reply = call_until_served(client, "echo", marker, PATIENCE).await?;
    reply.expect_status(200)?;
    assert_eq!(reply.text(), marker);
    Ok(())
}

/// Sends a request of the modern era; its last events or its body are the reply.
pub(crate) async fn modern(client: &McpClient, method: &str, name: &str, params: &Value) -> Result<Reply> {
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", method),
        ("mcp-name", name),
    ];
    let mut params = params.clone();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities":
            {"elicitation": {}, "sampling": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
    });
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let sent = client
        .send("POST", "/one/mcp", &headers, body.to_string())
        .await?;
    sent.reply().await
}

/// Returns the parameters of a retry with an answer to each question of an `input_required`.
pub(crate) fn answers_to(asked: &Value) -> Value {
    let result = &asked["result"];
    assert_eq!(result["resultType"], "input_required", "{asked}");
    let questions = result["inputRequests"].as_object().expect("there are questions");
    let answers = questions.keys().map(|key| {
        let answer = json!({"action": "accept", "content": {"answer": "yes"}});
        (key.clone(), answer)
    });
    let answers: serde_json::Map<String, Value> = answers.collect();
    json!({"requestState": result["requestState"], "inputResponses": answers})
}

/// Checks that an answer is the error for a call whose outcome is unknown, with the id of the call.
pub(crate) fn assert_owner_lost(answer: &Value, id: &Value) {
    assert_eq!(&answer["id"], id, "{answer}");
    assert_eq!(answer["error"]["data"]["reason"], "owner_lost", "{answer}");
    assert_eq!(answer["error"]["data"]["outcome"], "unknown", "{answer}");
}

/// Returns how many times each marker was executed, by all servers of all replicas.
pub(crate) fn executions(journal: &Journal) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for entry in journal.events("executed") {
        if let Some(marker) = entry["marker"].as_str() {
            *counts.entry(marker.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Checks that no marker was executed twice.
pub(crate) fn assert_none_ran_twice(journal: &Journal) {
    let twice: Vec<_> = executions(journal)
        .into_iter()
        .filter(|(_, count)| *count > 1)
        .collect();
    assert!(twice.is_empty(), "ran more than once: {twice:?}");
}

/// A task beside the test. It ends with this value.
pub(crate) struct Background<T>(JoinSet<T>);

/// Runs a future beside the test.
pub(crate) fn in_background<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> Background<T> {
    let mut tasks = JoinSet::new();
    tasks.spawn(future);
    Background(tasks)
}

impl<T: 'static> Background<T> {
    /// Waits for its end.
    pub(crate) async fn end(mut self) -> T {
        let ended = self.0.join_next().await.expect("there is one task");
        ended.expect("the task does not panic")
    }
}

/// A call that runs until the test releases it.
pub(crate) struct HeldCall {
    caller: McpClient,
    answer: Background<Result<Reply>>,
}

/// Has a replica drain while a call runs in this session, through another replica.
pub(crate) async fn drain_with_call(fleet: &Fleet, session: &McpClient, replica: usize) -> Result<HeldCall> {
    let caller = moved(fleet, session, (replica + 1) % fleet.size()).await?;
    let waiting = caller.clone();
    let answer = in_background(async move { waiting.call(r#""slow""#, "hold", marked("slow")).await });
    let journal = fleet.journal();
    wait_until("the call runs", PATIENCE, || {
        (journal.executions("slow") == 1).then_some(())
    })
    .await;
    fleet.replica(replica).rialto().sigterm();
    Ok(HeldCall { caller, answer })
}

impl HeldCall {
    /// Lets the call end, checks its answer, and returns its client.
    pub(crate) async fn release(self) -> Result<McpClient> {
        self.caller.call(2, "release", marked("release")).await?;
        assert_eq!(self.answer.end().await?.text(), "slow");
        Ok(self.caller)
    }
}

/// Returns a number from the environment, by which a run for the record is made longer.
pub(crate) fn number_from(variable: &str, default: usize) -> usize {
    let set = std::env::var_os(variable);
    let text = set.and_then(|text| text.into_string().ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// How a call ended, as far as a caller can see.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    Answered,
    /// Refused with this reason, and certain not to have run.
    Refused(String),
    /// An error with this reason; the tool may have run.
    Failed(String),
    /// The connection broke, at the client or at the balancer.
    Broken,
}

/// Sessions that call without a pause until they are stopped.
pub(crate) struct Load {
    running: JoinSet<Result<Vec<(String, Ending)>>>,
    clients: Vec<McpClient>,
    is_over: Arc<AtomicBool>,
    ended: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
}

impl Load {
    /// Opens sessions behind the balancer, and lets each call on.
    pub(crate) async fn start(fleet: &Fleet, sessions: usize) -> Result<Self> {
        let mut load = Self {
            running: JoinSet::new(),
            clients: Vec::new(),
            is_over: Arc::default(),
            ended: Arc::default(),
            answered: Arc::default(),
        };
        for _ in 0..sessions {
            load.clients.push(session(fleet).await?);
        }
        for (number, client) in load.clients.iter().cloned().enumerate() {
            let is_over = Arc::clone(&load.is_over);
            let (ended, answered) = (Arc::clone(&load.ended), Arc::clone(&load.answered));
            load.running.spawn(async move {
                let mut endings = Vec::new();
                let mut pause = tokio::time::interval(RETRY_PAUSE);
                pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
                for call in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let marker = format!("{number}/{call}");
                    let ending = one_call(&client, &marker).await?;
                    ended.fetch_add(1, Ordering::Relaxed);
                    if ending == Ending::Answered {
                        answered.fetch_add(1, Ordering::Relaxed);
                    } else {
                        pause.tick().await;
                    }
                    endings.push((marker, ending));
                }
                Ok(endings)
            });
        }
        Ok(load)
    }

    /// Returns how many calls have been answered so far.
    pub(crate) fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Returns how many calls have ended so far, answered or not.
    pub(crate) fn ended(&self) -> usize {
        self.ended.load(Ordering::Relaxed)
    }

    /// Waits until this many further calls have ended.
    pub(crate) async fn goes_on(&self, calls: usize) {
        let aim = self.ended() + calls;
        wait_until("further calls end", PATIENCE * 3, || {
            (self.ended() >= aim).then_some(())
        })
        .await;
    }

    /// Stops the calls, lets each session call once more, and checks the history: every session
    /// goes on, no call ran twice, an answered call ran once, a refused one did not run.
    pub(crate) async fn finish(mut self, fleet: &Fleet) -> Result<BTreeMap<Ending, usize>> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut endings = Vec::new();
        while let Some(done) = self.running.join_next().await {
            endings.extend(done.expect("a client ends")?);
        }
        for (number, client) in self.clients.iter().enumerate() {
            let marker = format!("{number}/after");
            let served = poll_until("the session goes on", PATIENCE * 3, async || {
                let marker = format!("{marker}/{}", self.ended.fetch_add(1, Ordering::Relaxed));
                let ending = one_call(client, &marker).await?;
                Result::Ok((ending == Ending::Answered).then_some(()))
            });
            served.await?;
        }
        let counts = executions(&fleet.journal());
        assert_none_ran_twice(&fleet.journal());
        let mut totals = BTreeMap::new();
        for (marker, ending) in endings {
            let runs = counts.get(&marker).copied().unwrap_or(0);
            match &ending {
                Ending::Answered => assert_eq!(runs, 1, "{marker}"),
                Ending::Refused(reason) => assert_eq!(runs, 0, "{marker}: {reason}"),
                Ending::Failed(_) | Ending::Broken => {}
            }
            *totals.entry(ending).or_default() += 1;
        }
        Ok(totals)
    }
}

/// Calls once with a marker that was never used. A session that is no longer known is a failure of
/// the test, and so is an answer to another call or without a reason.
async fn one_call(client: &McpClient, marker: &str) -> Result<Ending> {
    let arguments = json!({"marker": marker, "ms": 2});
    // The connection to the balancer may break with the replica.
    let Ok(reply) = client.call(1, "delay", arguments).await else {
        return Ok(Ending::Broken);
    };
    let text = reply.body_text();
    if text == LOST {
        return Ok(Ending::Broken);
    }
    if text == NONE_READY {
        return Ok(Ending::Refused("none_ready".to_owned()));
    }
    let has_answer = !text.is_empty() || reply.events.iter().any(|event| !event.data.is_empty());
    if !has_answer {
        // The stream had begun and ended without an answer.
        return Ok(Ending::Broken);
    }
    match (reply.status, reply.reason()) {
        (200, None) => {
            assert_eq!(reply.text(), marker, "an answer to another call");
            Ok(Ending::Answered)
        }
        (503, Some(reason)) if NOT_RUN.contains(&reason.as_str()) => Ok(Ending::Refused(reason)),
        (_, Some(reason)) => Ok(Ending::Failed(reason)),
        (status, None) => panic!("{marker}: {status} without a reason: {text}"),
    }
}
