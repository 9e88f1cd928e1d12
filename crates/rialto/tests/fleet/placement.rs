//! A destination with one server in the whole fleet (`placement: one`).

use std::time::Duration;

use serde_json::{Value, json};
use testkit::processes::Process;
use testkit::{Fleet, FleetConfig, McpClient, PATIENCE, Result, marked, poll_until, wait_until};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::fixture::{
    Ending, Load, answers_to, assert_none_ran_twice, assert_owner_lost, drain_with_call, echo_until_served,
    id_of, in_background, modern, moved, session_at,
};

/// Longer than a lease and everything that follows its end.
const MOVED: Duration = Duration::from_secs(60);
/// Longer than `drain_timeout` below.
const DRAIN: Duration = Duration::from_secs(40);

/// Starts three replicas whose engine is not new.
async fn three(settings: &str) -> Result<Fleet> {
    let config = FleetConfig::of_stub(&format!("placement: one{settings}"));
    let fleet = config.more("drain_timeout: 30s").start().await?;
    grow_old(&fleet)?;
    Ok(fleet)
}

/// Makes the directory older than any lease.
fn grow_old(fleet: &Fleet) -> Result<()> {
    fleet.engine().command(&["SET", "rialto:since", "0"])?;
    Ok(())
}

/// Returns the replica that has the server, as the engine has it.
fn holder(fleet: &Fleet) -> Result<Option<usize>> {
    let holder = fleet.engine().command(&["GET", "rialto:held:server:one"])?;
    let name = holder.split('/').next().unwrap_or_default();
    Ok(name
        .strip_prefix("replica-")
        .and_then(|number| number.parse().ok()))
}

fn is_running(pid: u32) -> bool {
    Process::read(pid).is_some_and(|process| process.is_alive())
}

/// Counts once, and returns the count.
async fn count(client: &McpClient) -> Result<u64> {
    let reply = poll_until("the call is served", MOVED, async || {
        let reply = client.call(1, "counter", "{}").await?;
        Result::Ok((reply.status != 503).then_some(reply))
    })
    .await?;
    Ok(reply
        .text()
        .parse()
        .unwrap_or_else(|_| panic!("a count: {reply:?}")))
}

/// Counts once by a request of the modern era.
async fn count_modern(fleet: &Fleet, replica: usize) -> Result<u64> {
    let client = fleet.replica(replica).rialto().client_of("one").await?;
    let params = json!({"name": "counter", "arguments": {}});
    let reply = poll_until("the call is served", MOVED, async || {
        let reply = modern(&client, "tools/call", "counter", &params).await?;
        Result::Ok((reply.status != 503).then_some(reply))
    })
    .await?;
    Ok(reply
        .text()
        .parse()
        .unwrap_or_else(|_| panic!("a count: {reply:?}")))
}

/// Checks that all servers but the last have ended.
fn assert_one_runs(fleet: &Fleet, starts: usize) {
    let pids = fleet.journal().starts();
    assert_eq!(pids.len(), starts, "{pids:?}");
    let running: Vec<u32> = pids.iter().copied().filter(|pid| is_running(*pid)).collect();
    assert_eq!(running, pids[starts - 1..], "of {pids:?}");
}

#[tokio::test]
async fn one_server_counts_the_calls_of_all_replicas() -> Result<()> {
    let fleet = three("").await?;
    assert!(fleet.journal().starts().is_empty());
    let mut counted = Vec::new();
    for replica in [0, 1, 2, 0, 1, 2] {
        let client = session_at(&fleet, replica).await?;
        counted.push(count(&client).await?);
        counted.push(count_modern(&fleet, replica).await?);
        let there = moved(&fleet, &client, (replica + 1) % 3).await?;
        counted.push(count(&there).await?);
        assert_eq!(fleet.owner_of(&id_of(&client))?, holder(&fleet)?);
    }
    assert_eq!(counted, (1..=18).collect::<Vec<u64>>());
    assert_one_runs(&fleet, 1);
    Ok(())
}

#[tokio::test]
async fn streams_deletes_questions_and_the_old_transport_reach_the_one_server() -> Result<()> {
    let fleet = three(", legacy_sse: true").await?;
    let client = session_at(&fleet, 0).await?;
    assert_eq!(count(&client).await?, 1);
    assert_eq!(holder(&fleet)?, Some(0));
    let there = moved(&fleet, &client, 1).await?;
    let mut stream = there.get_stream(None).await?;
    there.call(5, "notify", marked("noted")).await?;
    drop(stream.next().await?);
    let deleted = moved(&fleet, &client, 2).await?.delete().await?;
    deleted.expect_status(204)?;
    assert_eq!(there.call(6, "echo", marked("gone")).await?.status, 404);
    // A call that waits for its client waits where the server is.
    let call = json!({"name": "ask_elicit", "arguments": marked("asks")});
    let asker = fleet.replica(1).rialto().client_of("one").await?;
    let asked = modern(&asker, "tools/call", "ask_elicit", &call).await?.answer();
    let mut retry = answers_to(&asked);
    retry["name"] = call["name"].clone();
    retry["arguments"] = call["arguments"].clone();
    let answerer = fleet.replica(2).rialto().client_of("one").await?;
    let answer = modern(&answerer, "tools/call", "ask_elicit", &retry)
        .await?
        .answer();
    assert!(answer["error"].is_null(), "{answer}");
    for replica in 0..3 {
        assert_eq!(old_count(&fleet, replica).await?, replica as u64 + 2);
    }
    assert_one_runs(&fleet, 1);
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

async fn old_client(fleet: &Fleet, replica: usize) -> Result<McpClient> {
    let url = fleet.replica(replica).rialto().url_of("one");
    McpClient::connect(&url.replace("/mcp", "/sse")).await
}

/// Counts once through a stream of the old transport at one replica, and posts at another.
async fn old_count(fleet: &Fleet, replica: usize) -> Result<u64> {
    let client = old_client(fleet, replica).await?;
    let mut stream = client.get_stream(None).await?;
    let endpoint = stream.next().await?.expect("the stream names its endpoint").data;
    let there = old_client(fleet, (replica + 1) % 3).await?;
    let post = async |body: Value| {
        let headers = [("content-type", "application/json")];
        let sent = there.send("POST", &endpoint, &headers, body.to_string()).await?;
        Result::Ok(sent.reply().await?.status)
    };
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}
    }});
    assert_eq!(post(hello).await?, 202);
    assert_eq!(stream.message().await?["id"], 0);
    let params = json!({"name": "counter", "arguments": {}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    assert_eq!(post(call).await?, 202);
    let answer = stream.message().await?;
    let text = answer["result"]["content"][0]["text"].as_str();
    Ok(text
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("{answer}")))
}

#[tokio::test]
async fn holder_that_is_killed_loses_the_server_to_one_other() -> Result<()> {
    let mut fleet = three("").await?;
    let clients = [session_at(&fleet, 0).await?, session_at(&fleet, 1).await?];
    for (client, expected) in clients.iter().zip(1..) {
        assert_eq!(count(client).await?, expected);
    }
    assert_eq!(holder(&fleet)?, Some(0));
    let caller = moved(&fleet, &clients[1], 2).await?;
    let call = in_background(async move { caller.call(r#""lost""#, "hold", marked("held")).await });
    let journal = fleet.journal();
    wait_until("the call runs", PATIENCE, || {
        (journal.executions("held") == 1).then_some(())
    })
    .await;
    fleet.kill(0).await?;
    assert_owner_lost(&call.end().await?.answer(), &json!("lost"));
    let mut counted = Vec::new();
    for (client, replica) in clients.iter().zip([1, 2]) {
        let there = moved(&fleet, client, replica).await?;
        counted.push(count(&there).await?);
    }
    assert_eq!(counted, [1, 2], "one new server has both sessions");
    let heir = holder(&fleet)?;
    assert!(heir == Some(1) || heir == Some(2), "{heir:?}");
    for client in &clients {
        assert_eq!(fleet.owner_of(&id_of(client))?, heir);
    }
    assert_one_runs(&fleet, 2);
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn holder_that_drains_hands_the_server_over_after_its_calls() -> Result<()> {
    let mut fleet = three("").await?;
    let (idle, busy) = (session_at(&fleet, 0).await?, session_at(&fleet, 1).await?);
    assert_eq!(count(&idle).await?, 1);
    let call = drain_with_call(&fleet, &busy, 0).await?;
    let id = id_of(&idle);
    wait_until("the session has no owner", PATIENCE, || {
        fleet.owner_of(&id).ok().filter(Option::is_none)
    })
    .await;
    assert_eq!(holder(&fleet)?, Some(0), "a call runs");
    // A request for another session waits until the server has moved.
    let other = moved(&fleet, &idle, 2).await?;
    let moving = in_background(async move { other.call(9, "counter", json!({})).await });
    let caller = call.release().await?;
    assert_eq!(moving.end().await?.text(), "1", "a new server");
    let status = fleet.terminate(0, DRAIN).await?;
    assert!(status.success(), "{status}");
    assert_eq!(count(&caller).await?, 2);
    assert_eq!(count_modern(&fleet, 1).await?, 3);
    assert_one_runs(&fleet, 2);
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_update_loses_no_session_of_the_one_server() -> Result<()> {
    const SESSIONS: usize = 12;
    let mut fleet = three(", max_sessions: 200").await?;
    let load = Load::start(&fleet, SESSIONS).await?;
    load.goes_on(SESSIONS * 2).await;
    for replica in 0..3 {
        fleet.take_out(replica)?;
        load.goes_on(SESSIONS).await;
        let status = fleet.terminate(replica, DRAIN).await?;
        assert!(status.success(), "{status}");
        load.goes_on(SESSIONS).await;
        fleet.up(replica).await?;
        load.goes_on(SESSIONS).await;
    }
    let endings = load.finish(&fleet).await?;
    // A call may be refused, certain not to have run, while the server moves.
    let is_fine = |ending: &Ending| matches!(ending, Ending::Answered | Ending::Refused(_));
    let lost: Vec<_> = endings.iter().filter(|(ending, _)| !is_fine(ending)).collect();
    assert!(lost.is_empty(), "calls were lost: {lost:?}");
    Ok(())
}

#[tokio::test]
async fn holder_that_is_paused_ends_its_server_when_it_goes_on() -> Result<()> {
    let mut fleet = three("").await?;
    let client = session_at(&fleet, 0).await?;
    assert_eq!(count(&client).await?, 1);
    assert_eq!(holder(&fleet)?, Some(0));
    let first = fleet.journal().starts();
    fleet.pause(0)?;
    let there = moved(&fleet, &client, 1).await?;
    // The first request may be sent before the pause is noticed.
    let served = poll_until("another replica has the server", MOVED, async || {
        let reply = there.call(1, "counter", "{}").await?;
        Result::Ok((reply.status == 200 && reply.reason().is_none()).then(|| reply.text()))
    })
    .await?;
    assert_eq!(served, "1");
    let heir = holder(&fleet)?;
    assert_eq!(heir, Some(1));
    fleet.resume(0)?;
    wait_until("the old server ends", PATIENCE, || {
        (!is_running(first[0])).then_some(())
    })
    .await;
    // It asks the other replica from now on.
    assert_eq!(count(&client).await?, 2);
    assert_eq!(count_modern(&fleet, 0).await?, 3);
    assert_eq!(holder(&fleet)?, heir);
    assert_one_runs(&fleet, 2);
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn holder_that_is_cut_off_from_the_engine_ends_its_server_first() -> Result<()> {
    let fleet = three("").await?;
    let client = session_at(&fleet, 0).await?;
    assert_eq!(count(&client).await?, 1);
    let first = fleet.journal().starts();
    fleet.replica(0).engine_link().cut();
    // It serves while its lease lasts for certain.
    assert_eq!(count(&client).await?, 2);
    let there = moved(&fleet, &client, 1).await?;
    // Whichever call finds the second server first finds the first one ended.
    let served = poll_until("another replica has the server", MOVED, async || {
        let reply = there.call(1, "counter", "{}").await?;
        let is_moved = fleet.journal().starts().len() == 2;
        assert!(!is_moved || !is_running(first[0]), "two servers run");
        Result::Ok((is_moved && reply.status == 200).then(|| reply.text()))
    })
    .await?;
    assert_eq!(served, "1");
    let refused = client.call(3, "counter", "{}").await?;
    refused.expect_status(503)?;
    assert_eq!(refused.reason().as_deref(), Some("registry_unavailable"));
    fleet.replica(0).engine_link().mend();
    assert_eq!(count(&client).await?, 2);
    assert_one_runs(&fleet, 2);
    Ok(())
}

#[tokio::test]
async fn engine_that_restarts_empty_starts_no_second_server() -> Result<()> {
    let mut fleet = three("").await?;
    let client = session_at(&fleet, 0).await?;
    assert_eq!(count(&client).await?, 1);
    fleet.engine_mut().kill()?;
    fleet.engine_mut().restart()?;
    // Another replica finds no holder in the engine, and starts nothing.
    assert_eq!(count_modern(&fleet, 1).await?, 2);
    assert_eq!(count(&client).await?, 3);
    echo_until_served(&moved(&fleet, &client, 2).await?, "after").await?;
    assert_eq!(holder(&fleet)?, Some(0));
    assert_one_runs(&fleet, 1);
    Ok(())
}

#[tokio::test]
async fn what_a_host_hands_over_at_one_replica_is_not_for_the_server_at_another() -> Result<()> {
    let settings = "placement: one, env: { KEY: 'of the file' }";
    let config = FleetConfig::of_stub(settings).replicas(2);
    let mut fleet = config.start().await?;
    grow_old(&fleet)?;
    count(&session_at(&fleet, 0).await?).await?;
    assert_eq!(holder(&fleet)?, Some(0));
    let runtime = tempfile::tempdir()?;
    let sockets = [
        ("RIALTO_ADMIN_SOCKET", "on".to_owned()),
        ("XDG_RUNTIME_DIR", runtime.path().to_string_lossy().into_owned()),
    ];
    fleet.kill(1).await?;
    fleet.set_env(1, &sockets)?;
    fleet.up(1).await?;
    let socket = wait_until("the admin socket is there", PATIENCE, || {
        let entries = std::fs::read_dir(runtime.path().join("rialto")).ok()?;
        let mut paths = entries.flatten().map(|entry| entry.path());
        paths.find(|path| path.extension().is_some_and(|extension| extension == "sock"))
    })
    .await;
    let body = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
        "name": "env", "arguments": { "name": "KEY" },
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    } })
    .to_string();
    // {"directory":"/tmp","env":{"KEY":"evil"}}
    let handed_over = "eyJkaXJlY3RvcnkiOiIvdG1wIiwiZW52Ijp7IktFWSI6ImV2aWwifX0";
    let head = format!(
        "POST /one/mcp HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nrialto-attached: {handed_over}\r\n\
         content-type: application/json\r\naccept: application/json\r\nmcp-protocol-version: 2026-07-28\r\n\
         mcp-method: tools/call\r\nmcp-name: env\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    assert!(answer.contains("of the file"), "{answer}");
    assert_eq!(fleet.journal().starts().len(), 1, "no server of its own");
    Ok(())
}
