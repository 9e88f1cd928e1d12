//! The scenarios, as the other clients' scripts play them; judging what was seen is left to the
//! test.
#![expect(
    deprecated,
    reason = "roots, sampling and logging are exactly what is tested here"
)]

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures_util::future::{join_all, try_join_all};
use rmcp::model::{ClientRequest, CustomRequest, Request};
use rmcp::service::{PeerRequestOptions, ServiceError};
use serde_json::{Value, json};
use testkit::interop::restarts;

use super::watched_http::Exchange;
use super::witness::{Era, Manner, Result, Witness, call_params};

const LONG: &str = "trigger-long-running-operation";
const DOCUMENT: &str = "demo://resource/dynamic/text/";
const UPDATED: &str = "notifications/resources/updated";

pub(crate) async fn play(era: Era, url: &str, scenario: &str) -> Result<Value> {
    let opened = |manner| Witness::open(era, url, manner);
    let plain = opened(Manner::default());
    match scenario {
        "connect" => connect(plain.await?).await,
        "discover" => discover(plain.await?).await,
        "listing" => listing(plain.await?).await,
        "call" => call(plain.await?).await,
        "structured" => structured(plain.await?).await,
        "tool_error" => tool_error(plain.await?).await,
        "progress" => progress(plain.await?).await,
        "cancellation" => cancellation(plain.await?).await,
        "subscriptions" => subscriptions(plain.await?).await,
        "list_changed" => list_changed(plain.await?).await,
        "tools_changed" => tools_changed(plain.await?).await,
        "logging" => logging(plain.await?).await,
        "large_message" => large_message(plain.await?).await,
        "fifty_at_once" => fifty_at_once(plain.await?).await,
        "prompts_and_completion" => prompts_and_completion(plain.await?).await,
        "resources_read" => resources_read(plain.await?).await,
        "terminate" => terminate(plain.await?, url).await,
        "renewed_session" => renewed_session(plain.await?, url).await,
        // The call ends while the client is away: everything it missed is replayed.
        "resume_after_the_end" => resumed(opened(breaking(1500)).await?, 1).await,
        // The client is back before the call ends: the rest comes live.
        "resume_before_the_end" => resumed(opened(breaking(50)).await?, 3).await,
        "two_elicitations" => {
            let asked = Asked::default();
            let answers = json!([
                {"action": "accept", "content": {"answer": "San Polo"}},
                {"action": "accept", "content": {"answer": "San Marco"}},
            ]);
            let manner = asked.answering(json!({"elicitation": {"form": {}}}), answers, |params| {
                params["message"].clone()
            });
            let text = opened(manner).await?.text("ask_twice", json!({})).await?;
            Ok(json!({"text": text, "asked": asked.all()}))
        }
        "elicitation" => {
            let asked = Asked::default();
            let answers = json!([
                {"action": "accept", "content": {"name": "Antonio da Ponte", "check": true, "integer": 7}},
                {"action": "decline"},
                {"action": "cancel"},
            ]);
            let manner = asked.answering(json!({"elicitation": {"form": {}}}), answers, |params| {
                params["requestedSchema"]["required"].clone()
            });
            let witness = opened(manner).await?;
            let mut texts = Vec::new();
            for _ in 0..3 {
                texts.push(witness.text("trigger-elicitation-request", json!({})).await?);
            }
            Ok(json!({"texts": texts, "asked": asked.all()}))
        }
        "sampling" => {
            let asked = Asked::default();
            let witness = opened(asked.sampler("An answer from the witness.")).await?;
            let arguments = json!({"prompt": "Who goes there?", "maxTokens": 50});
            let text = witness.text("trigger-sampling-request", arguments).await?;
            Ok(json!({"text": text, "asked": asked.all()}))
        }
        // Only a process per session can tell the two questions apart when they are asked at the
        // same time.
        "two_clients_sample_at_once" => {
            let texts = ["left", "right"].map(|name| async move {
                let manner = Asked::default().sampler(&format!("answer of {name}"));
                let witness = opened(manner).await?;
                witness
                    .text("trigger-sampling-request", json!({"prompt": name}))
                    .await
            });
            Ok(json!({"texts": try_join_all(texts).await?}))
        }
        "roots" => roots(era, url).await,
        restarts::SCENARIO => outlives_restarts(plain.await?).await,
        unknown => Err(format!("no scenario {unknown}").into()),
    }
}

/// What the server asked, as far as a scenario cares.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<Value>>>);

impl Asked {
    fn all(&self) -> Vec<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns one answer after the other, and notes a part of each question.
    fn answering(&self, capabilities: Value, answers: Value, part: fn(&Value) -> Value) -> Manner {
        let asked = Self(Arc::clone(&self.0));
        Manner {
            capabilities,
            answer: Box::new(move |params| {
                let mut asked = asked.0.lock().unwrap_or_else(PoisonError::into_inner);
                asked.push(part(params));
                answers[asked.len() - 1].clone()
            }),
            ..Manner::default()
        }
    }

    /// Declares sampling and gives one answer.
    fn sampler(&self, answer: &str) -> Manner {
        let content = json!({"type": "text", "text": answer});
        let answers = json!([
            {"role": "assistant", "model": "witness", "stopReason": "endTurn", "content": content},
        ]);
        self.answering(json!({"sampling": {}}), answers, |params| {
            params["messages"][0]["content"]["text"].clone()
        })
    }
}

fn breaking(milliseconds: u64) -> Manner {
    Manner {
        breaks_for: Some(Duration::from_millis(milliseconds)),
        ..Manner::default()
    }
}

async fn connect(witness: Witness) -> Result<Value> {
    let ping = rmcp::model::PingRequest::default();
    witness
        .client
        .send_request(ClientRequest::PingRequest(ping))
        .await?;
    let server = witness.client.peer_info().ok_or("the handshake is over")?;
    let server = serde_json::to_value(&*server)?;
    Ok(json!({
        "server": server["serverInfo"]["name"],
        "instructions": server["instructions"].as_str().is_some_and(|text| !text.is_empty()),
        "protocolVersion": server["protocolVersion"],
        "sessionId": witness.session_ids().first(),
    }))
}

async fn discover(witness: Witness) -> Result<Value> {
    let server = witness.client.peer_info().ok_or("the discovery is over")?;
    let server = serde_json::to_value(&*server)?;
    Ok(json!({
        "server": server["serverInfo"]["name"],
        "instructions": server["instructions"].as_str().is_some_and(|text| !text.is_empty()),
        "protocolVersion": server["protocolVersion"],
        "sessions": witness.session_ids().len(),
    }))
}

async fn listing(witness: Witness) -> Result<Value> {
    let client = &witness.client;
    Ok(json!({
        "tools": members(client.list_all_tools().await?, "name"),
        "prompts": members(client.list_all_prompts().await?, "name"),
        "resources": members(client.list_all_resources().await?, "uri"),
        "templates": members(client.list_all_resource_templates().await?, "uriTemplate"),
    }))
}

/// One member of each item, as it is on the wire.
fn members(items: Vec<impl serde::Serialize>, name: &str) -> Vec<Value> {
    items.into_iter().map(|item| json!(item)[name].clone()).collect()
}

async fn call(witness: Witness) -> Result<Value> {
    let message = "Grüße, 世界 \u{2028} \"quoted\" \\ \u{1F309}";
    Ok(json!({"text": witness.text("echo", json!({"message": message})).await?}))
}

async fn large_message(witness: Witness) -> Result<Value> {
    let message = "x".repeat(5_000_000);
    let text = witness.text("echo", json!({"message": message})).await?;
    Ok(json!({"length": text.len(), "same": text == format!("Echo: {message}")}))
}

async fn structured(witness: Witness) -> Result<Value> {
    let weather = witness
        .call("get-structured-content", json!({"location": "Chicago"}))
        .await?;
    let sum = witness.text("get-sum", json!({"a": 20, "b": 22})).await?;
    Ok(json!({"sum": sum, "structured": weather["structuredContent"]}))
}

async fn tool_error(witness: Witness) -> Result<Value> {
    let wrong = witness.call("get-sum", json!({"a": "one", "b": 2})).await?;
    let request = CustomRequest::new("no/such/method", None);
    let unknown_method = witness
        .client
        .send_request(ClientRequest::CustomRequest(request))
        .await;
    let prompt = serde_json::from_value(json!({"name": "no-such-prompt"}))?;
    let unknown_prompt = witness.client.get_prompt(prompt).await;
    Ok(json!({
        "isError": wrong["isError"],
        "unknownMethod": code(unknown_method),
        "unknownPrompt": code(unknown_prompt),
        "after": witness.text("echo", json!({"message": "still here"})).await?,
    }))
}

/// The code of the server's error, if it is one.
fn code<T>(outcome: std::result::Result<T, ServiceError>) -> Option<i32> {
    match outcome {
        Err(ServiceError::McpError(error)) => Some(error.code.0),
        Ok(_) | Err(_) => None,
    }
}

async fn progress(witness: Witness) -> Result<Value> {
    let text = witness.text(LONG, json!({"duration": 1, "steps": 5})).await?;
    // The client hands notifications to tasks of their own: the last may be noted after the answer
    // is.
    witness
        .receives(|seen| seen["params"]["progress"].as_f64() == Some(5.0))
        .await?;
    let steps = witness.heard("notifications/progress");
    let seen: Vec<Value> = steps
        .iter()
        .map(|step| json!([step["progress"], step["total"]]))
        .collect();
    Ok(json!({"text": text, "seen": seen}))
}

async fn cancellation(witness: Witness) -> Result<Value> {
    let params = call_params("count", json!({"steps": 1000, "delay_ms": 20}))?;
    let request = ClientRequest::CallToolRequest(Request::new(params));
    let options = PeerRequestOptions::no_options();
    let running = witness.client.send_cancellable_request(request, options).await?;
    witness
        .receives(|seen| seen["method"] == "notifications/progress")
        .await?;
    running.cancel(Some("enough".to_owned())).await?;
    // The notification has a connection of its own, so it may reach the server after the first
    // question.
    let mut cancelled_calls = json!(0);
    while cancelled_calls == 0 {
        let caller = witness.call("whoami", json!({})).await?;
        cancelled_calls = caller["structuredContent"]["cancelledCalls"].clone();
    }
    Ok(json!({"outcome": "cancelled", "cancelledCalls": cancelled_calls}))
}

async fn roots(era: Era, url: &str) -> Result<Value> {
    let known = Arc::new(Mutex::new(vec![json!({"uri": "file:///srv/one", "name": "One"})]));
    let asked = Arc::new(AtomicUsize::new(0));
    let (told, counted) = (Arc::clone(&known), Arc::clone(&asked));
    let manner = Manner {
        capabilities: json!({"roots": {"listChanged": true}}),
        answer: Box::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            json!({"roots": *told.lock().unwrap_or_else(PoisonError::into_inner)})
        }),
        ..Manner::default()
    };
    let witness = Witness::open(era, url, manner).await?;
    witness.listening().await?;
    let before = witness.text("get-roots-list", json!({})).await?;
    let second = json!({"uri": "file:///srv/two", "name": "Two"});
    known.lock().unwrap_or_else(PoisonError::into_inner).push(second);
    witness.client.notify_roots_list_changed().await?;
    witness
        .receives(|seen| contains_text(seen, "Roots updated: 2"))
        .await?;
    let after = witness.text("get-roots-list", json!({})).await?;
    Ok(json!({"before": before, "after": after, "asked": asked.load(Ordering::Relaxed)}))
}

/// Whether it is a log message with this text.
fn contains_text(seen: &Value, part: &str) -> bool {
    seen["method"] == "notifications/message" && seen["params"]["data"].to_string().contains(part)
}

async fn logging(witness: Witness) -> Result<Value> {
    witness.listening().await?;
    let level = async |level: &str| -> Result<()> {
        let params = serde_json::from_value(json!({"level": level}))?;
        Ok(witness.client.set_level(params).await?)
    };
    level("info").await?;
    subscribe(&witness, 1).await?;
    witness
        .receives(|seen| contains_text(seen, &format!("{DOCUMENT}1")))
        .await?;
    // The server logs each subscription as info. At this level the second must stay unheard, which
    // the third proves.
    level("error").await?;
    subscribe(&witness, 2).await?;
    level("debug").await?;
    subscribe(&witness, 3).await?;
    witness
        .receives(|seen| contains_text(seen, &format!("{DOCUMENT}3")))
        .await?;
    let logs = witness.heard("notifications/message");
    let subscriptions: Vec<Value> = logs
        .iter()
        .map(|log| json!([log["level"], log["data"]]))
        .collect();
    witness.text("toggle-simulated-logging", json!({})).await?;
    witness.receives(|seen| contains_text(seen, "evel")).await?;
    witness.text("toggle-simulated-logging", json!({})).await?;
    let simulated = witness.heard("notifications/message").len() - subscriptions.len();
    Ok(json!({"subscriptions": subscriptions, "simulated": simulated}))
}

async fn subscribe(witness: &Witness, document: u8) -> Result<()> {
    let params = serde_json::from_value(json!({"uri": format!("{DOCUMENT}{document}")}))?;
    Ok(witness.client.subscribe(params).await?)
}

async fn subscriptions(witness: Witness) -> Result<Value> {
    witness.listening().await?;
    let updates = || -> Vec<String> {
        let heard = witness.heard(UPDATED);
        heard
            .iter()
            .filter_map(|params| Some(params["uri"].as_str()?.to_owned()))
            .collect()
    };
    let updated = async |document: u8| {
        let uri = format!("{DOCUMENT}{document}");
        witness
            .receives(|seen| seen["method"] == UPDATED && seen["params"]["uri"] == uri)
            .await
    };
    // Each start of the simulation sends one round of updates at once.
    let round = async || -> Result<()> {
        witness.text("toggle-subscriber-updates", json!({})).await?;
        witness.text("toggle-subscriber-updates", json!({})).await?;
        Ok(())
    };
    subscribe(&witness, 1).await?;
    subscribe(&witness, 2).await?;
    round().await?;
    updated(1).await?;
    updated(2).await?;
    let mut first = updates();
    let params = serde_json::from_value(json!({"uri": format!("{DOCUMENT}1")}))?;
    witness.client.unsubscribe(params).await?;
    subscribe(&witness, 3).await?;
    round().await?;
    updated(3).await?;
    let mut second = updates().split_off(first.len());
    first.sort();
    second.sort();
    Ok(json!({"first": first, "second": second}))
}

async fn list_changed(witness: Witness) -> Result<Value> {
    witness.listening().await?;
    let before = witness.client.list_all_resources().await?.len();
    let arguments =
        json!({"name": "bridge.gz", "data": "data:text/plain,Rialto", "outputType": "resourceLink"});
    let result = witness.call("gzip-file-as-resource", arguments).await?;
    witness
        .receives(|seen| seen["method"] == "notifications/resources/list_changed")
        .await?;
    let after = witness.client.list_all_resources().await?.len();
    let uri = result["content"][0]["uri"].clone();
    let contents = read(&witness, &uri).await?;
    let has_blob = contents["blob"].as_str().is_some_and(|blob| !blob.is_empty());
    Ok(json!({"added": after - before, "uri": uri, "blob": has_blob}))
}

/// The first of a resource's contents.
async fn read(witness: &Witness, uri: &Value) -> Result<Value> {
    let params = serde_json::from_value(json!({"uri": uri}))?;
    let result = witness.client.read_resource(params).await?;
    Ok(json!(result)["contents"][0].clone())
}

async fn tools_changed(witness: Witness) -> Result<Value> {
    witness.listening().await?;
    let before = members(witness.client.list_all_tools().await?, "name");
    witness.text("toggle_tool", json!({})).await?;
    witness
        .receives(|seen| seen["method"] == "notifications/tools/list_changed")
        .await?;
    let mut added = members(witness.client.list_all_tools().await?, "name");
    added.retain(|name| !before.contains(name));
    Ok(json!({"added": added, "text": witness.text("extra", json!({})).await?}))
}

async fn fifty_at_once(witness: Witness) -> Result<Value> {
    let names: Vec<String> = (0..50).map(|index| format!("call {index}")).collect();
    let calls = names
        .iter()
        .map(|name| witness.text("echo", json!({"message": name})));
    let texts = try_join_all(calls).await?;
    let pairs = texts.iter().zip(&names);
    let wrong: Vec<_> = pairs
        .filter(|(text, name)| **text != format!("Echo: {name}"))
        .collect();
    Ok(json!({"answered": texts.len(), "wrong": wrong}))
}

/// The gateway is restarted, killed and restarted meanwhile: the client calls on until it has met four
/// servers.
async fn outlives_restarts(witness: Witness) -> Result<Value> {
    const SERVERS: usize = 4;
    witness.listening().await?;
    let servers = Mutex::new(BTreeSet::new());
    let met = || servers.lock().unwrap_or_else(PoisonError::into_inner).len();
    let callers = (0..restarts::CALLERS).map(|number| {
        let (witness, servers, met) = (&witness, &servers, &met);
        async move {
            let (mut answers, mut failures) = (0, Vec::new());
            for call in 0.. {
                if met() == SERVERS {
                    break;
                }
                match witness
                    .text("pid", json!({"marker": format!("{number}/{call}")}))
                    .await
                {
                    Ok(server) => {
                        answers += 1;
                        servers
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .insert(server);
                    }
                    Err(error) => failures.push(json!([met(), reason(&*error)])),
                }
            }
            (answers, failures)
        }
    });
    let (answers, failures): (Vec<u64>, Vec<Vec<Value>>) = join_all(callers).await.into_iter().unzip();
    Ok(json!({
        "servers": servers.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        "sessions": witness.session_ids(),
        "failures": failures.concat(),
        "answers": answers.iter().sum::<u64>(),
    }))
}

/// An error with all its causes.
fn reason(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

async fn prompts_and_completion(witness: Witness) -> Result<Value> {
    let client = &witness.client;
    let prompt = json!({"name": "args-prompt", "arguments": {"city": "Venice", "state": "Veneto"}});
    let prompt = client.get_prompt(serde_json::from_value(prompt)?).await?;
    let complete = async |argument: Value, context: Value| -> Result<Value> {
        let ask = json!({"ref": {"type": "ref/prompt", "name": "completable-prompt"}, "argument": argument,
            "context": context});
        let result = client.complete(serde_json::from_value(ask)?).await?;
        Ok(json!(result)["completion"]["values"].clone())
    };
    let departments = complete(json!({"name": "department", "value": "S"}), json!({})).await?;
    let sales = json!({"arguments": {"department": "Sales"}});
    let people = complete(json!({"name": "name", "value": ""}), sales).await?;
    Ok(json!({
        "prompt": json!(prompt)["messages"][0]["content"]["text"],
        "departments": departments,
        "people": people,
    }))
}

async fn resources_read(witness: Witness) -> Result<Value> {
    let text = read(&witness, &json!(format!("{DOCUMENT}17"))).await?;
    let blob = read(&witness, &json!("demo://resource/dynamic/blob/18")).await?;
    let encoded = blob["blob"].as_str().ok_or("a blob is text")?;
    let resources = members(witness.client.list_all_resources().await?, "uri");
    let document = read(&witness, &resources[0]).await?;
    let params = serde_json::from_value(json!({"uri": "demo://no/such/resource"}))?;
    let unknown = witness.client.read_resource(params).await;
    Ok(json!({
        "text": text["text"],
        "blob": String::from_utf8(BASE64_STANDARD.decode(encoded)?)?,
        "document": document["text"].as_str().map(str::len),
        "unknown": code(unknown),
    }))
}

async fn resumed(witness: Witness, seconds: u8) -> Result<Value> {
    let text = witness
        .text(LONG, json!({"duration": seconds, "steps": 5}))
        .await?;
    // As above.
    witness
        .receives(|seen| seen["params"]["progress"].as_f64() == Some(5.0))
        .await?;
    let steps = witness.heard("notifications/progress");
    let exchanges = witness.http.exchanges().borrow().clone();
    // Only accepted ones are noted.
    let resumes = exchanges.iter().filter(|exchange| **exchange == Exchange::Resume);
    Ok(json!({
        "text": text,
        "steps": steps.iter().map(|step| step["progress"].clone()).collect::<Vec<_>>(),
        "resumes": resumes.map(|_| 200).collect::<Vec<_>>(),
    }))
}

async fn terminate(mut witness: Witness, url: &str) -> Result<Value> {
    witness.text("echo", json!({"message": "before"})).await?;
    let ids = witness.session_ids();
    let id = ids.first().ok_or("the server named a session")?;
    witness.client.close().await?;
    let mut exchanges = witness.http.exchanges().subscribe();
    exchanges
        .wait_for(|seen| seen.contains(&Exchange::Delete))
        .await?;
    // The SDK would open a new session, so the late request is made by hand.
    let late = by_hand(reqwest::Method::POST, url, id);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    let refused = late
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await?;
    Ok(json!({"refused": refused.status().as_u16()}))
}

async fn renewed_session(witness: Witness, url: &str) -> Result<Value> {
    witness.text("echo", json!({"message": "before"})).await?;
    let ids = witness.session_ids();
    let id = ids.first().ok_or("the server named a session")?;
    let ended = by_hand(reqwest::Method::DELETE, url, id).send().await?;
    let after = witness.text("echo", json!({"message": "after"})).await?;
    Ok(json!({
        "deleted": ended.status().as_u16(),
        "after": after,
        "sessions": witness.session_ids().len(),
    }))
}

fn by_hand(method: reqwest::Method, url: &str, session_id: &str) -> reqwest::RequestBuilder {
    let http = reqwest::Client::builder().no_proxy().build();
    http.expect("a plain HTTP client can be made")
        .request(method, url)
        .header("accept", "application/json, text/event-stream")
        .header("mcp-session-id", session_id)
        .header("mcp-protocol-version", "2025-11-25")
}
