//! What is left when something has ended: nothing. No child, no zombie, no open file, no memory.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::client::raw_http;
use testkit::processes::{Process, open_files, threads};
use testkit::{LEGACY, McpClient, PATIENCE, Result, Rialto, wait_until};

/// How much Rialto may have grown, in KiB, when everything it grew for is gone.
const GROWTH: u64 = 8 << 10;

async fn session(rialto: &Rialto) -> Result<McpClient> {
    let client = rialto.client().await?;
    client.handshake(LEGACY, json!({})).await?;
    Ok(client)
}

/// The servers that are alive; Rialto has processes of its own besides.
fn servers(rialto: &Rialto) -> Vec<Process> {
    let mut children = rialto.children();
    children.retain(|process| process.name == "testkit-server");
    children
}

async fn wait_for_no_servers(rialto: &Rialto) {
    wait_until("no server is left", PATIENCE, || {
        servers(rialto).is_empty().then_some(())
    })
    .await;
    wait_until("no zombie is left", PATIENCE, || {
        rialto.zombies().is_empty().then_some(())
    })
    .await;
}

/// Waits until Rialto has as many open files as before; connections are closed when the peer is
/// seen to have gone.
async fn wait_for_files(rialto: &Rialto, most: usize) {
    wait_until("open files are closed", PATIENCE, || {
        (open_files(rialto.pid()) <= most).then_some(())
    })
    .await;
}

/// Rialto in front of servers that each have a child of their own and do not mean to end.
async fn stubborn(process: &str) -> Result<Rialto> {
    let flags = ["--ignore-term", "--grandchild", "{dir}/grandchild"];
    Rialto::launcher()
        .args(&["--process", process])
        .stub(&flags)
        .start()
        .await
}

#[tokio::test]
async fn sigterm_leaves_nothing_of_shared_and_per_session_children() -> Result<()> {
    for (process, count) in [("shared", 2), ("per_session", 6)] {
        let rialto = stubborn(process).await?;
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(session(&rialto).await?);
        }
        assert_eq!(
            servers(&rialto).len(),
            count,
            "{process}: each server and its own child"
        );
        rialto.sigterm();
        assert!(rialto.wait(PATIENCE).await.success());
        assert_eq!(rialto.children(), [], "{process}");
    }
    Ok(())
}

#[tokio::test]
async fn sigterm_in_a_call_that_never_ends_leaves_nothing() -> Result<()> {
    let rialto = Rialto::launcher()
        .env("RIALTO_DRAIN", "500ms")
        .stub(&[])
        .start()
        .await?;
    let client = session(&rialto).await?;
    let (reply, status) = tokio::join!(client.call(1, "never", json!({"marker": "m"})), async {
        wait_until("the call is in the child", PATIENCE, || {
            (rialto.journal().executions("m") == 1).then_some(())
        })
        .await;
        rialto.sigterm();
        rialto.wait(PATIENCE).await
    });
    assert_eq!(reply?.outcome_status(), 503, "the waiting call fails");
    assert!(status.success());
    assert_eq!(rialto.children(), []);
    Ok(())
}

#[tokio::test]
async fn a_second_sigterm_ends_everything_at_once() -> Result<()> {
    let rialto = stubborn("shared").await?;
    let client = session(&rialto).await?;
    let (reply, took) = tokio::join!(client.call(1, "never", json!({"marker": "m"})), async {
        wait_until("the call is in the child", PATIENCE, || {
            (rialto.journal().executions("m") == 1).then_some(())
        })
        .await;
        rialto.sigterm();
        rialto
            .wait_for_log("it drains", PATIENCE, |log| log["message"] == "draining")
            .await;
        let began = Instant::now();
        rialto.sigterm();
        rialto.wait(PATIENCE).await;
        began.elapsed()
    });
    assert!(took < Duration::from_millis(1_500), "{took:?}");
    assert_eq!(servers(&rialto), []);
    // The helper that guards against a SIGKILL looks around for a second before it ends too.
    rialto.wait_for_no_children(Duration::from_secs(3)).await;
    assert_eq!(reply?.outcome_status(), 503, "the waiting call fails");
    Ok(())
}

#[tokio::test]
async fn sigkill_of_rialto_leaves_nothing_of_stubborn_children_either() -> Result<()> {
    for process in ["shared", "per_session"] {
        let rialto = stubborn(process).await?;
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(session(&rialto).await?);
        }
        assert!(servers(&rialto).len() >= 2);
        rialto.sigkill();
        rialto.wait(PATIENCE).await;
        rialto.wait_for_no_children(Duration::from_secs(3)).await;
    }
    Ok(())
}

#[tokio::test]
async fn crash_loops_leave_no_child_no_zombie_and_no_open_file() -> Result<()> {
    let rialto = Rialto::with_config(
        "destinations:\n  one: { command: '{stub} --exit-at-once 1', start: lazy }\n  \
         two: { command: '{stub} --exit-at-once 1', start: lazy }\n",
    )
    .await?;
    let (one, two) = (rialto.client_of("one").await?, rialto.client_of("two").await?);
    // A refusal shows that Rialto has accepted the connection.
    two.delete().await?.expect_status(400)?;
    // The first crash loop opens what every start of a server needs and what stays open.
    one.call(1, "echo", "{}").await?.expect_failed(503)?;
    wait_for_no_servers(&rialto).await;
    let before = open_files(rialto.pid());
    two.call(1, "echo", "{}").await?.expect_failed(503)?;
    rialto
        .wait_for_log("all restarts of the second are used", PATIENCE, |log| {
            log["destination"] == "two" && log["message"] == "gave up restarting; the next call tries again"
        })
        .await;
    wait_for_no_servers(&rialto).await;
    wait_for_files(&rialto, before).await;
    Ok(())
}

#[tokio::test]
async fn crash_loops_of_many_sessions_leave_no_child_no_zombie_and_no_open_file() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--process", "per_session", "--max-sessions", "20"])
        .stub(&["--grandchild", "{dir}/grandchild"])
        .start()
        .await?;
    let probe = session(&rialto).await?;
    probe.delete().await?.expect_status(204)?;
    wait_for_no_servers(&rialto).await;
    let before = open_files(rialto.pid());
    let mut clients = Vec::new();
    for _ in 0..10 {
        let client = session(&rialto).await?;
        client
            .call(1, "exit", json!({"code": 1}))
            .await?
            .expect_failed(503)?;
        clients.push(client);
    }
    for client in &clients {
        client.delete().await?.expect_status(204)?;
    }
    drop(clients);
    wait_for_no_servers(&rialto).await;
    wait_for_files(&rialto, before).await;
    Ok(())
}

/// Opens, uses and ends sessions one after the other, on one connection.
async fn cycles(rialto: &Rialto, count: usize) -> Result<()> {
    let client = rialto.client().await?;
    for _ in 0..count {
        client.set_session(None);
        client.handshake(LEGACY, json!({})).await?;
        client
            .call(1, "echo", json!({"marker": "m"}))
            .await?
            .expect_status(200)?;
        client.delete().await?.expect_status(204)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_thousand_sessions_of_a_shared_child_leave_no_file_no_thread_and_no_memory() -> Result<()> {
    let rialto = Rialto::launcher().args(&["--", "{stub}"]).start().await?;
    cycles(&rialto, 300).await?;
    let (files, memory, running) = (open_files(rialto.pid()), rialto.memory(), threads(rialto.pid()));
    cycles(&rialto, 1_000).await?;
    wait_for_files(&rialto, files).await;
    let grown = rialto.memory().resident.saturating_sub(memory.resident);
    assert!(grown < GROWTH, "grown by {grown} KiB");
    assert!(threads(rialto.pid()) <= running);
    assert_eq!((servers(&rialto).len(), rialto.zombies().len()), (1, 0));
    Ok(())
}

#[tokio::test]
async fn a_hundred_per_session_children_leave_no_child_no_zombie_no_file_and_no_memory() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--process", "per_session", "--", "{stub}"])
        .start()
        .await?;
    cycles(&rialto, 30).await?;
    wait_for_no_servers(&rialto).await;
    let (files, memory, running) = (open_files(rialto.pid()), rialto.memory(), threads(rialto.pid()));
    cycles(&rialto, 100).await?;
    wait_for_no_servers(&rialto).await;
    wait_for_files(&rialto, files).await;
    let grown = rialto.memory().resident.saturating_sub(memory.resident);
    assert!(grown < GROWTH, "grown by {grown} KiB");
    assert!(threads(rialto.pid()) <= running);
    Ok(())
}

#[tokio::test]
async fn refused_sessions_leave_nothing_behind() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--process", "per_session", "--max-sessions", "1"])
        .stub(&[])
        .start()
        .await?;
    let _only = session(&rialto).await?;
    let client = rialto.client().await?;
    for _ in 0..50 {
        client.initialize(LEGACY, json!({})).await?.expect_status(503)?;
    }
    assert_eq!(rialto.journal().starts().len(), 1);
    assert_eq!(servers(&rialto).len(), 1);
    Ok(())
}

#[tokio::test]
async fn streams_that_are_left_leave_no_open_file() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = session(&rialto).await?;
    let before = open_files(rialto.pid());
    for _ in 0..100 {
        drop(client.get_stream(None).await?);
    }
    wait_for_files(&rialto, before).await;
    client
        .call(1, "echo", json!({"marker": "m"}))
        .await?
        .expect_status(200)?;
    Ok(())
}

/// The era of a server is probed with the caller's credentials, on a child of its own. No other
/// code knows that child, so it must end with the probe, however the probe ends.
#[tokio::test]
async fn client_that_hangs_up_while_its_server_starts_leaves_no_child_with_its_credentials() -> Result<()> {
    let rialto = Rialto::with_config(
        "destinations:\n  one:\n    command: '{stub} --slow-start 600000'\n    start: lazy\n    linger: 100ms\n    process: per_identity\n    \
         env_from_headers: { TOKEN: X-Token }\n",
    )
    .await?;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "passer-by", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {}}}});
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/list"),
        ("x-token", "geheim"),
    ];
    let mut raw = rialto.raw().await?;
    raw.write(raw_http::request("POST", "/one/mcp", &headers, body.to_string()))
        .await?;
    wait_until("the server is started", PATIENCE, || {
        (!servers(&rialto).is_empty()).then_some(())
    })
    .await;
    raw.reset()?;
    wait_for_no_servers(&rialto).await;
    Ok(())
}

/// Rialto in front of servers that have a daemon each: it left their group and session, lost its
/// parent, and ignores SIGTERM.
async fn with_daemons(process: &str) -> Result<Rialto> {
    Rialto::launcher()
        .args(&["--process", process])
        .stub(&["--daemon", "{dir}/daemon"])
        .start()
        .await
}

fn daemon_of(rialto: &Rialto) -> Process {
    let pid = std::fs::read_to_string(rialto.dir().join("daemon")).expect("the daemon has started");
    Process::read(pid.parse().expect("a number")).expect("the daemon runs")
}

async fn wait_for_its_end(daemon: &Process) {
    wait_until("the daemon is gone, and no zombie of it", PATIENCE, || {
        let now = Process::read(daemon.pid);
        now.is_none_or(|now| now.started != daemon.started).then_some(())
    })
    .await;
}

#[tokio::test]
async fn h12_a_daemon_ends_with_the_child_that_started_it() -> Result<()> {
    let rialto = with_daemons("per_session").await?;
    let client = session(&rialto).await?;
    let daemon = daemon_of(&rialto);
    assert_eq!(daemon.parent, rialto.pid(), "orphans come to Rialto");
    client.delete().await?.expect_status(204)?;
    wait_for_its_end(&daemon).await;
    wait_for_no_servers(&rialto).await;
    Ok(())
}

#[tokio::test]
async fn h12_a_daemon_ends_when_its_child_crashes() -> Result<()> {
    let rialto = with_daemons("shared").await?;
    let client = session(&rialto).await?;
    let daemon = daemon_of(&rialto);
    let reply = client.call(1, "exit", json!({"code": 3})).await?;
    assert_eq!(
        reply.answer()["error"]["data"]["reason"],
        "upstream_exited",
        "{reply:?}"
    );
    wait_for_its_end(&daemon).await;
    client
        .expect_echo("a new child, with a daemon of its own")
        .await?;
    assert_ne!(daemon_of(&rialto).pid, daemon.pid);
    Ok(())
}

#[tokio::test]
async fn h12_a_daemon_ends_with_rialto_however_that_ends() -> Result<()> {
    for signal in [Rialto::sigterm, Rialto::sigkill] {
        let rialto = with_daemons("shared").await?;
        session(&rialto).await?.expect_echo("served").await?;
        let daemon = daemon_of(&rialto);
        signal(&rialto);
        rialto.wait(PATIENCE).await;
        wait_for_its_end(&daemon).await;
        rialto.wait_for_no_children(Duration::from_secs(3)).await;
    }
    Ok(())
}

#[tokio::test]
async fn h12_a_child_cannot_read_rialto() -> Result<()> {
    let rialto = Rialto::launcher()
        .env("OTHER_SECRET", "of-the-gateway")
        .as_limited_user()
        .config("destinations:\n  d: { command: '{stub}' }\n")
        .start()
        .await?;
    let client = rialto.session_of("d").await?;
    let name = client.call(1, "parent", r#"{"file":"comm"}"#).await?.text();
    assert_eq!(name.trim(), "rialto", "the parent is rialto");
    for file in ["environ", "maps", "fd/0"] {
        let seen = client.call(1, "parent", json!({"file": file})).await?.text();
        assert!(seen.contains("Permission denied"), "{file}: {seen}");
    }
    // What Rialto reads about itself it can still read.
    let metrics = client.metrics().await?;
    for name in [
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_max_fds",
    ] {
        assert!(metrics.contains(&format!("\n{name} ")), "{name}: {metrics}");
    }
    Ok(())
}
