//! The promises of a storm with several threads: clients of both eras on a shared child, on
//! children of their own and on a remote server, while the configuration is reloaded, children are
//! killed and the remote server forgets its sessions. Every call ends, every answer is its caller's
//! own, progress keeps its order, nothing runs twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::processes::send_signal;
use testkit::{Journal, LEGACY, MODERN, McpClient, Reply, Result, Rialto, Upstream, wait_until};
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(120);
/// Clients of each destination and era.
const CLIENTS: usize = 12;
const ROUNDS: usize = 12;
const DESTINATIONS: [&str; 3] = ["shared", "own", "remote"];
/// The steps of progress that each call of a child reports.
const STEPS: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientEra {
    Legacy,
    Modern,
}

/// Numbers that look random and are the same in every run with the same seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// The file, with a destination that is another one after each reload.
fn configuration(url: &str, reload: usize) -> String {
    let stub = "{stub} --journal {dir}/journal";
    format!(
        "destinations:\n  shared: {{ command: '{stub}-shared --strict', max_sessions: 200 }}\n  \
         own: {{ command: '{stub}-own --strict', process: per_session, max_children: {} }}\n  \
         remote: {{ url: '{url}', type: streamable_http }}\n  \
         changes: {{ command: '{stub}-changes', max_sessions: {} }}\n",
        2 * CLIENTS + 2,
        reload + 1,
    )
}

/// One client of one destination.
#[derive(Clone)]
struct Caller {
    destination: &'static str,
    era: ClientEra,
    client: McpClient,
}

impl Caller {
    async fn new(url: &str, destination: &'static str, era: ClientEra) -> Result<Self> {
        let client = McpClient::connect(url).await?.with_deadline(PATIENCE);
        let client = match era {
            ClientEra::Legacy => {
                client.handshake(LEGACY, json!({})).await?;
                client
            }
            ClientEra::Modern => client
                .with_header("mcp-protocol-version", MODERN)
                .with_header("mcp-method", "tools/call")
                .with_header("mcp-name", tool_of(destination)),
        };
        Ok(Self {
            destination,
            era,
            client,
        })
    }

    /// Calls a tool and returns whether it was answered. An answer must be the call's own.
    async fn call(&self, marker: &str, pause: u64) -> Result<bool> {
        let mut params = json!({
            "name": tool_of(self.destination),
            "arguments": {"marker": marker, "text": marker, "n": STEPS, "every_ms": pause},
            "_meta": {"progressToken": marker},
        });
        if self.era == ClientEra::Modern {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
        }
        // Every call of every client has the same id.
        let reply = self.client.request(1, "tools/call", params).await?;
        assert_eq!(reply.raw("id").as_deref(), Some("1"), "{marker}");
        check_progress(marker, &reply);
        match reply.status {
            200 if reply.answer().get("error").is_none() => {
                assert_eq!(reply.text(), marker);
                Ok(true)
            }
            200 | 503 => {
                let code = reply.error_code();
                assert_eq!(code, Some(-32603), "{marker}: {}", reply.answer_text());
                Ok(false)
            }
            status => panic!("{marker}: {status} {}", reply.answer_text()),
        }
    }
}

fn tool_of(destination: &str) -> &'static str {
    match destination {
        "remote" => "echo",
        _ => "progress",
    }
}

/// The messages before an answer are about its own call, in the order in which the server sent
/// them.
fn check_progress(marker: &str, reply: &Reply) {
    let mut last = 0;
    for message in reply.messages() {
        if message["method"] == "notifications/progress" {
            assert_eq!(message["params"]["progressToken"], marker, "{message}");
            let step = message["params"]["progress"].as_u64().unwrap_or_default();
            assert!(step > last, "{marker}: step {step} came after {last}");
            last = step;
        }
    }
}

fn count(markers: impl Iterator<Item = Value>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for marker in markers {
        *counts
            .entry(marker.as_str().unwrap_or_default().to_owned())
            .or_default() += 1;
    }
    counts
}

/// How many times each marker was executed, by all servers together.
fn executions(rialto: &Rialto, upstream: &Upstream) -> BTreeMap<String, usize> {
    let journal = |name: &str| Journal::at(rialto.dir().join(format!("journal-{name}"))).events("executed");
    let children = journal("shared").into_iter().chain(journal("own"));
    let children = children.map(|entry| entry["marker"].clone());
    let remote = upstream.executed();
    let remote = remote
        .into_iter()
        .map(|params| params["arguments"]["marker"].clone());
    count(children.chain(remote))
}

/// Waits until so many calls have ended.
async fn ended(finished: &AtomicUsize, calls: usize) {
    wait_until("enough calls have ended", PATIENCE, || {
        (finished.load(Ordering::Relaxed) >= calls).then_some(())
    })
    .await;
}

async fn storm(threads: &str, seed: u64) -> Result<()> {
    const CALLS: usize = DESTINATIONS.len() * 2 * CLIENTS * ROUNDS;
    const FAULTS: usize = 3;
    let upstream = Upstream::legacy().start().await?;
    let rialto = Rialto::launcher()
        .args(&["--threads", threads])
        .config(&configuration(&upstream.url(), 0))
        .start()
        .await?;
    let mut callers = Vec::new();
    for destination in DESTINATIONS {
        for number in 0..2 * CLIENTS {
            let era = [ClientEra::Legacy, ClientEra::Modern][number % 2];
            callers.push(Caller::new(&rialto.url_of(destination), destination, era).await?);
        }
    }
    let finished = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for (number, caller) in callers.iter().cloned().enumerate() {
        let finished = Arc::clone(&finished);
        tasks.spawn(async move {
            let mut dice = Dice(seed ^ (number as u64) << 20);
            let mut endings = Vec::new();
            for round in 0..ROUNDS {
                let marker = format!("{}/{number}/{round}", caller.destination);
                let is_answered = caller.call(&marker, dice.below(6)).await?;
                finished.fetch_add(1, Ordering::Relaxed);
                endings.push((marker, is_answered));
            }
            Result::Ok(endings)
        });
    }
    let mut dice = Dice(seed);
    let file = rialto.dir().join("destinations.yml");
    for fault in 0..FAULTS {
        let part = CALLS / (FAULTS + 1);
        ended(&finished, fault * part + dice.below(part as u64) as usize).await;
        // A reload, while calls run.
        let text = std::fs::read_to_string(&file)?;
        let before = format!("max_sessions: {} }}", fault + 1);
        let after = format!("max_sessions: {} }}", fault + 2);
        std::fs::write(&file, text.replace(&before, &after))?;
        rialto.signal(Signal::HUP);
        // Another child of the shared destination, and one of a session's own.
        let starts = Journal::at(rialto.dir().join("journal-shared")).starts();
        let own = Journal::at(rialto.dir().join("journal-own")).starts();
        let victims = [
            starts.last(),
            own.get(dice.below(own.len().max(1) as u64) as usize),
        ];
        for pid in victims.into_iter().flatten() {
            send_signal(*pid, Signal::KILL);
        }
        upstream.forget_sessions();
        wait_until("the shared child is started again", PATIENCE, || {
            let restarted = Journal::at(rialto.dir().join("journal-shared")).starts();
            (restarted.len() > starts.len()).then_some(())
        })
        .await;
    }
    let mut endings = Vec::new();
    for done in tasks.join_all().await {
        endings.extend(done?);
    }
    assert_eq!(endings.len(), CALLS, "seed {seed}: every call ends");
    let counts = executions(&rialto, &upstream);
    for (marker, is_answered) in &endings {
        let runs = counts.get(marker).copied().unwrap_or(0);
        match is_answered {
            true => assert_eq!(runs, 1, "seed {seed}: {marker}"),
            false => assert!(runs <= 1, "seed {seed}: {marker} ran {runs} times"),
        }
    }
    let answered = endings.iter().filter(|(_, is_answered)| *is_answered).count();
    assert!(
        answered > CALLS / 2,
        "seed {seed}: only {answered} of {CALLS} were answered"
    );
    // Each session goes on, at its own server.
    for (number, caller) in callers.iter().enumerate() {
        let marker = format!("{}/{number}/after", caller.destination);
        assert!(caller.call(&marker, 0).await?, "seed {seed}: {marker}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storm_with_two_threads_keeps_every_promise() -> Result<()> {
    storm("2", 0x7472_6561_6402).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storm_with_four_threads_keeps_every_promise() -> Result<()> {
    storm("4", 0x7472_6561_6404).await
}
