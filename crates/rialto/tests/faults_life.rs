//! Life cycle, scarce resources and trust (rows E, F and G): how Rialto starts, ends and starves,
//! and what it never reveals.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::client::raw_http;
use testkit::processes::{Process, open_files, processor_ticks, threads};
use testkit::rialto::binary;
use testkit::{McpClient, PATIENCE, Reply, Result, Rialto, wait_until};
use tokio::task::JoinSet;

/// The process whose number is in this file.
fn process_in(pid_file: &Path) -> Process {
    let pid = std::fs::read_to_string(pid_file).expect("the grandchild has written its pid");
    Process::read(pid.trim().parse().expect("a pid is a number")).expect("the grandchild runs")
}

async fn wait_until_dead(process: &Process, deadline: Duration) {
    let what = format!("{} ({}) is gone", process.name, process.pid);
    wait_until(&what, deadline, || (!process.is_alive()).then_some(())).await;
}

/// The records of `--audit {dir}/audit`, each of which must be JSON.
fn audit(rialto: &Rialto) -> Vec<Value> {
    let text = std::fs::read_to_string(rialto.dir().join("audit")).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}")))
        .collect()
}

#[tokio::test]
async fn e03_without_files_calls_in_flight_finish_and_service_recovers() -> Result<()> {
    let rialto = Rialto::launcher()
        .max_files(64)
        .args(&["--process", "per_session", "--max-sessions", "100"])
        .stub(&[])
        .start()
        .await?;
    let client = rialto.session().await?;
    let mut in_flight = JoinSet::new();
    in_flight.spawn({
        let client = client.clone();
        async move {
            client
                .call(1, "delay", r#"{"ms":1500,"marker":"in flight"}"#)
                .await
        }
    });
    rialto.wait_for_execution("in flight").await;
    // An open connection of one's own, since there will be no new ones.
    let kept = rialto.client().await?;
    let mut connections = Vec::new();
    for _ in 0..100 {
        connections.push(rialto.raw().await?);
    }
    wait_until("all files are in use", PATIENCE, || {
        (open_files(rialto.pid()) >= 62).then_some(())
    })
    .await;
    let (ticks, since) = (processor_ticks(rialto.pid()), Instant::now());
    // A child needs pipes, which there are not.
    let reply = kept.initialize("2025-11-25", json!({})).await?;
    reply.expect_failed(503)?;
    for reply in in_flight.join_all().await {
        assert_eq!(reply?.text(), "in flight");
    }
    // In hundredths of a second, both: no spinning while there is nothing to do, only a few tries.
    let (used, passed) = (
        processor_ticks(rialto.pid()) - ticks,
        since.elapsed().as_millis() as u64 / 10,
    );
    assert!(used <= passed / 20 + 10, "{used} of {passed}");
    connections.clear();
    wait_until("the files are free again", PATIENCE, || {
        (open_files(rialto.pid()) < 40).then_some(())
    })
    .await;
    client.expect_echo("recovered").await?;
    rialto.session().await?.expect_echo("new children too").await?;
    wait_until("every ended child was reaped", PATIENCE, || {
        rialto.zombies().is_empty().then_some(())
    })
    .await;
    Ok(())
}

/// Exhausting the process table needs a user of its own, so the start itself is made to fail: the
/// program is there when Rialto looks, and cannot be run when it is needed.
#[tokio::test]
async fn e04_a_start_that_fails_is_refused_and_leaves_nothing() -> Result<()> {
    let launcher = Rialto::launcher().config(
        "destinations:\n  odd:\n    command: '{dir}/program --journal {dir}/journal'\n    process: per_session\n  fine:\n    command: '{stub}'\n",
    );
    let program = launcher.dir().join("program");
    std::os::unix::fs::symlink(binary("testkit-server"), &program)?;
    let rialto = launcher.start().await?;
    let first = rialto.session_of("odd").await?;
    first.expect_echo("at first").await?;
    let (children, files) = (rialto.children().len(), open_files(rialto.pid()));

    std::fs::remove_file(&program)?;
    std::fs::write(&program, "no program at all")?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    for _ in 0..3 {
        let client = rialto.client_of("odd").await?.accepting("application/json");
        let reply = client.initialize("2025-11-25", json!({})).await?;
        reply.expect_error(503, -32603)?;
        assert!(reply.header("retry-after").is_some(), "{reply:?}");
    }
    rialto.session_of("fine").await?.expect_echo("unaffected").await?;
    first.expect_echo("still there").await?;

    std::fs::remove_file(&program)?;
    std::os::unix::fs::symlink(binary("testkit-server"), &program)?;
    let again = rialto.session_of("odd").await?;
    again.expect_echo("recovered").await?;
    again.delete().await?.expect_status(204)?;
    wait_until("nothing of the failed starts remains", PATIENCE, || {
        // The destination that was fine has one child more than in the beginning, if it was lazy.
        (rialto.children().len() <= children + 1 && open_files(rialto.pid()) <= files + 8).then_some(())
    })
    .await;
    wait_until("every ended child was reaped", PATIENCE, || {
        rialto.zombies().is_empty().then_some(())
    })
    .await;
    assert!(
        rialto.stderr().iter().all(|line| !line.contains("panic")),
        "{:?}",
        rialto.stderr()
    );
    Ok(())
}

#[tokio::test]
async fn e07_a_stuck_reader_of_the_logs_holds_up_no_call() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--audit", "stdout"])
        .env("RUST_LOG", "debug")
        .stub(&[])
        .start()
        .await?;
    let client = rialto.session().await?;
    let before = rialto.memory().peak;
    rialto.stop_reading_its_output();
    let id = format!("\"{}\"", "i".repeat(3000));
    for _ in 0..2000 {
        let reply = client.call(&id, "echo", r#"{"marker":"m"}"#).await?;
        reply.expect_status(200)?;
    }
    let reply = client
        .call(1, "flood_stderr", r#"{"bytes":5000000,"marker":"drained"}"#)
        .await?;
    assert_eq!(reply.text(), "drained");
    client.expect_echo("unaffected").await?;
    assert!(
        rialto.memory().peak < before + (32 << 10),
        "{before} → {:?}",
        rialto.memory()
    );
    Ok(())
}

#[tokio::test]
async fn f01_calls_in_flight_are_answered_after_sigterm_and_new_ones_refused() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    // Opened before, for the listener may close to new connections.
    let other = rialto.session().await?;
    let call = client.call(1, "delay", r#"{"ms":1500,"marker":"answered"}"#);
    let during = async {
        rialto.wait_for_execution("answered").await;
        rialto.sigterm();
        rialto
            .wait_for_log("it drains", PATIENCE, |line| line["message"] == "draining")
            .await;
        let reply = other.call(1, "echo", r#"{"marker":"too late"}"#).await?;
        reply.expect_error(503, -32603)?;
        assert_eq!(reply.header("connection"), Some("close"), "{reply:?}");
        assert!(reply.header("retry-after").is_some(), "{reply:?}");
        Ok(())
    };
    let (answer, refused): (Result<Reply>, Result<()>) = tokio::join!(call, during);
    refused?;
    assert_eq!(answer?.text(), "answered");
    let status = rialto.wait(Duration::from_secs(10)).await;
    assert_eq!(status.code(), Some(0));
    rialto.wait_for_no_children(Duration::from_secs(1)).await;
    assert_eq!(rialto.journal().executions("too late"), 0);
    Ok(())
}

/// A stream that waits for nothing in particular does not hold up the end, and ends properly.
#[tokio::test]
async fn f01_open_streams_end_with_the_drain() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let mut stream = client.get_stream(None).await?;
    rialto.sigterm();
    while stream.next().await?.is_some() {}
    assert_eq!(rialto.wait(Duration::from_secs(5)).await.code(), Some(0));
    Ok(())
}

/// The drain has a limit: a call that never ends gets an answer all the same.
#[tokio::test]
async fn f01_a_call_that_never_ends_is_answered_at_the_end_of_the_drain() -> Result<()> {
    let rialto = Rialto::launcher()
        .env("RIALTO_DRAIN", "500ms")
        .stub(&[])
        .start()
        .await?;
    let client = rialto.session().await?;
    let call = client.call(1, "never", r#"{"marker":"never"}"#);
    let during = async {
        rialto.wait_for_execution("never").await;
        rialto.sigterm();
    };
    let (answer, ()) = tokio::join!(call, during);
    let answer = answer?;
    assert!(matches!(answer.outcome_status(), 404 | 503), "{answer:?}");
    assert!(answer.answer()["error"]["code"].is_i64(), "{answer:?}");
    assert_eq!(rialto.wait(Duration::from_secs(10)).await.code(), Some(0));
    Ok(())
}

#[tokio::test]
async fn f02_a_second_signal_ends_everything_at_once() -> Result<()> {
    for second in [Signal::TERM, Signal::INT] {
        let rialto = Rialto::with_stub(&["--ignore-term"]).await?;
        let client = rialto.session().await?;
        let call = client.call(1, "never", r#"{"marker":"pending"}"#);
        let during = async {
            let entry = rialto.wait_for_execution("pending").await;
            let child = entry["pid"]
                .as_u64()
                .and_then(|pid| Process::read(pid as u32))
                .expect("the child runs");
            rialto.sigterm();
            rialto
                .wait_for_log("it drains", PATIENCE, |line| line["message"] == "draining")
                .await;
            rialto.signal(second);
            rialto.wait(Duration::from_secs(3)).await;
            wait_until_dead(&child, Duration::from_secs(2)).await;
        };
        let (answer, ()) = tokio::join!(call, during);
        answer?.expect_failed(503)?;
    }
    Ok(())
}

#[tokio::test]
async fn f03_a_stubborn_tree_is_gone_after_sigterm() -> Result<()> {
    let rialto = Rialto::with_stub(&["--ignore-term", "--grandchild", "{dir}/grandchild"]).await?;
    let client = rialto.session().await?;
    client.expect_echo("works").await?;
    let grandchild = process_in(&rialto.dir().join("grandchild"));
    rialto.sigterm();
    let status = rialto.wait(Duration::from_secs(15)).await;
    assert_eq!(status.code(), Some(0));
    wait_until_dead(&grandchild, Duration::from_secs(2)).await;
    rialto.wait_for_no_children(Duration::from_secs(2)).await;
    assert!(
        !rialto.journal().events("term").is_empty(),
        "it was asked before it was killed"
    );
    Ok(())
}

/// The grandchild alone is stubborn and the child exits as it should: the group is ended all the
/// same.
#[tokio::test]
async fn f03_a_grandchild_does_not_outlive_its_session() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--process", "per_session"])
        .stub(&["--grandchild", "{dir}/grandchild"])
        .start()
        .await?;
    let client = rialto.session().await?;
    client.expect_echo("works").await?;
    let grandchild = process_in(&rialto.dir().join("grandchild"));
    client.delete().await?.expect_status(204)?;
    wait_until_dead(&grandchild, PATIENCE).await;
    Ok(())
}

#[tokio::test]
async fn f04_nothing_survives_a_killed_rialto() -> Result<()> {
    let rialto = Rialto::with_stub(&["--ignore-term", "--grandchild", "{dir}/grandchild"]).await?;
    let client = rialto.session().await?;
    let child = client
        .call(1, "pid", "{}")
        .await?
        .text()
        .parse()
        .ok()
        .and_then(Process::read);
    let grandchild = process_in(&rialto.dir().join("grandchild"));
    rialto.sigkill();
    rialto.wait(Duration::from_secs(3)).await;
    wait_until_dead(&child.expect("the child runs"), Duration::from_secs(3)).await;
    wait_until_dead(&grandchild, Duration::from_secs(3)).await;
    rialto.wait_for_no_children(Duration::from_secs(3)).await;
    Ok(())
}

#[tokio::test]
async fn f05_nothing_survives_an_abort() -> Result<()> {
    let rialto = Rialto::with_stub(&["--ignore-term", "--grandchild", "{dir}/grandchild"]).await?;
    let client = rialto.session().await?;
    client.expect_echo("works").await?;
    let grandchild = process_in(&rialto.dir().join("grandchild"));
    rialto.signal(Signal::ABORT);
    let status = rialto.wait(Duration::from_secs(5)).await;
    assert!(!status.success());
    wait_until_dead(&grandchild, Duration::from_secs(3)).await;
    rialto.wait_for_no_children(Duration::from_secs(3)).await;
    Ok(())
}

#[tokio::test]
async fn f08_errors_at_the_start_are_named() -> Result<()> {
    let occupied = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = occupied.local_addr()?.to_string();
    let ended = Rialto::launcher()
        .verb(&["serve", "--listen", &address])
        .stub(&[])
        .run(PATIENCE)
        .await?;
    assert_eq!(ended.code(), Some(3), "{}", ended.stderr_text());
    assert!(ended.stderr_text().contains(&address), "{}", ended.stderr_text());

    let ended = Rialto::launcher()
        .args(&["--config", "{dir}/missing.yml"])
        .run(PATIENCE)
        .await?;
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr_text());
    assert!(
        ended.stderr_text().contains("missing.yml"),
        "{}",
        ended.stderr_text()
    );

    let ended = Rialto::launcher()
        .args(&["--config", "{dir}"])
        .run(PATIENCE)
        .await?;
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr_text());

    let wrong = [
        (
            "destinations:\n  a:\n    command: '{stub}'\n    requst_timeout: 1s\n",
            2,
            "requst_timeout",
        ),
        (
            "request_timeout: soon\ndestinations:\n  a:\n    command: '{stub}'\n",
            2,
            "request_timeout",
        ),
        (
            "destinations:\n  a:\n    command: '{stub}'\n    env: { A: '${NOT_SET_ANYWHERE}' }\n",
            2,
            "NOT_SET_ANYWHERE",
        ),
        ("destinations: [\n", 2, "destinations.yml"),
        (
            "destinations:\n  a:\n    command: '{dir}/no-such-program'\n",
            4,
            "no-such-program",
        ),
        (
            "destinations:\n  a:\n    command: '{dir}/destinations.yml'\n",
            4,
            "destinations.yml",
        ),
    ];
    for (yaml, code, named) in wrong {
        let ended = Rialto::launcher().config(yaml).run(PATIENCE).await?;
        let said = ended.stderr_text();
        assert_eq!(ended.code(), Some(code), "{yaml}{said}");
        assert!(said.contains(named), "{yaml}{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    Ok(())
}

/// As root every file can be read and every port be had, so that permission is tried on a directory
/// that is none.
#[tokio::test]
async fn f08_an_audit_log_that_cannot_be_opened_is_named() -> Result<()> {
    let ended = Rialto::launcher()
        .args(&["--audit", "{dir}/no/such/directory/audit"])
        .stub(&[])
        .run(PATIENCE)
        .await?;
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr_text());
    assert!(ended.stderr_text().contains("audit"), "{}", ended.stderr_text());
    Ok(())
}

#[tokio::test]
async fn f09_sessions_from_before_a_restart_are_refused_cleanly() -> Result<()> {
    let before = Rialto::with_stub(&[]).await?;
    let client = before.session().await?;
    let mut stream = client
        .open_call(1, "progress", r#"{"n":2,"marker":"m"}"#, 1)
        .await?
        .events();
    stream.message().await?;
    let event = stream.last_event_id().expect("events have ids").to_owned();
    let session = client.session();
    drop(stream);
    drop(before);

    let after = Rialto::with_stub(&[]).await?;
    let client = after.client().await?;
    client.set_session(session.as_deref());
    client.set_version(Some("2025-11-25"));
    client
        .call(1, "echo", r#"{"marker":"stale"}"#)
        .await?
        .expect_error(404, -32600)?;
    client
        .notify("notifications/initialized", "{}")
        .await?
        .expect_status(404)?;
    assert_eq!(client.get(None).await?.status, 404);
    assert_eq!(client.get(Some(&event)).await?.status, 404);
    client.delete().await?.expect_status(404)?;
    // A new session does not take an old event for its own.
    client.set_session(None);
    client.set_version(None);
    client.handshake("2025-11-25", json!({})).await?;
    let resumed = client.get(Some(&event)).await?;
    assert!(
        matches!(resumed.status, 200 | 400 | 404 | 405),
        "{}",
        resumed.status
    );
    client.expect_echo("new").await?;
    assert_eq!(after.journal().executions("stale"), 0);
    Ok(())
}

#[tokio::test]
async fn f10_many_sessions_leave_nothing_behind() -> Result<()> {
    let rialto = Rialto::with_config(
        "destinations:\n  shared:\n    command: '{stub}'\n  own:\n    command: '{stub}'\n    process: per_session\n",
    )
    .await?;
    let clients = (rialto.client_of("shared").await?, rialto.client_of("own").await?);
    let round = async |client: &McpClient, count: usize| -> Result<()> {
        for _ in 0..count {
            client.set_session(None);
            client.set_version(None);
            client.handshake("2025-11-25", json!({})).await?;
            client.expect_echo("m").await?;
            client.delete().await?.expect_status(204)?;
        }
        Ok(())
    };
    // What is only set up once, such as threads and buffers, is there after the first ones.
    round(&clients.0, 300).await?;
    round(&clients.1, 20).await?;
    wait_until("the first children are gone", PATIENCE, || {
        (rialto.children().len() <= 2).then_some(())
    })
    .await;
    let (memory, files, workers) = (
        rialto.memory().resident,
        open_files(rialto.pid()),
        threads(rialto.pid()),
    );
    round(&clients.0, 1500).await?;
    round(&clients.1, 60).await?;
    wait_until("the later children are gone", PATIENCE, || {
        let settled = rialto.children().len() <= 2 && open_files(rialto.pid()) <= files;
        (settled && rialto.zombies().is_empty()).then_some(())
    })
    .await;
    wait_until("the threads are gone", PATIENCE, || {
        (threads(rialto.pid()) <= workers + 2).then_some(())
    })
    .await;
    let now = rialto.memory().resident;
    assert!(now < memory + memory / 20 + (2 << 10), "{memory} → {now} KiB");
    Ok(())
}

#[tokio::test]
async fn g01_foreign_hosts_and_origins_are_forbidden() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let session = client.session().unwrap_or_default();
    let port = rialto.address().rsplit(':').next().unwrap_or_default().to_owned();
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"marker":"foreign"}}}"#;
    let local = format!("localhost:{port}");
    let ask = async |host: &str, origin: Option<&str>, target: &str| -> Result<u16> {
        let mut raw = rialto.raw().await?;
        let mut headers = vec![
            ("Content-Type", "application/json"),
            ("Accept", testkit::client::ACCEPT),
            ("Mcp-Session-Id", session.as_str()),
        ];
        headers.extend(origin.map(|origin| ("Origin", origin)));
        let request = raw_http::request("POST", target, &headers, body);
        let request =
            String::from_utf8_lossy(&request).replacen("Host: 127.0.0.1", &format!("Host: {host}"), 1);
        Ok(raw.exchange(request).await?.status)
    };
    let foreign_hosts = [
        "evil.example",
        &format!("evil.example:{port}"),
        "localhost.",
        &format!("127.0.0.1.:{port}"),
        "localhost.evil.example",
        "evil@localhost",
        &format!("localhost:{port}@evil.example"),
        "[::ffff:10.0.0.1]",
        "[2001:db8::1]:80",
        "0.0.0.0",
        "10.0.0.1",
        "2130706433",
        "0x7f.1",
    ];
    for host in foreign_hosts {
        let status = ask(host, None, "/mcp").await?;
        assert!(matches!(status, 400 | 403), "{host}: {status}");
    }
    assert_eq!(ask("evil.example", None, "/mcp").await?, 403);
    let foreign_origins = [
        "https://evil.example",
        "http://evil.example",
        "null",
        "file://",
        "http://localhost.evil.example",
        "http://evil@localhost",
        "http://localhost@evil.example",
        "chrome-extension://abc",
        "",
        "http://127.0.0.1.evil.example",
        "http://localhost http://evil.example",
    ];
    for origin in foreign_origins {
        assert_eq!(ask(&local, Some(origin), "/mcp").await?, 403, "{origin}");
    }
    // The target may name a host as well, and then it is that one (RFC 9112, 3.2.2).
    let absolute = ask(&local, None, "http://evil.example/mcp").await?;
    assert!(matches!(absolute, 400 | 403 | 404), "{absolute}");
    assert_eq!(rialto.journal().executions("foreign"), 0);

    for (host, origin) in [
        (local.as_str(), None),
        ("127.0.0.1", None),
        ("[::1]", None),
        ("LOCALHOST", Some("http://localhost:8080")),
        (local.as_str(), Some("http://127.0.0.1")),
    ] {
        assert_eq!(ask(host, origin, "/mcp").await?, 200, "{host} {origin:?}");
    }
    // Probes name an address or a service, and learn nothing but the state; a page of another
    // origin learns nothing.
    for path in ["/health", "/ready"] {
        let probe =
            async |headers: &[(&str, &str)]| client.send("GET", path, headers, "").await?.reply().await;
        probe(&[("host", "evil.example")]).await?.expect_status(200)?;
        probe(&[("host", "evil.example"), ("origin", "https://evil.example")])
            .await?
            .expect_status(403)?;
    }
    Ok(())
}

#[tokio::test]
async fn g04_a_session_is_known_at_its_own_destination_only() -> Result<()> {
    let rialto = Rialto::with_config(
        "destinations:\n  a:\n    command: '{stub} --journal {dir}/a'\n  b:\n    command: '{stub} --journal {dir}/b'\n",
    )
    .await?;
    let (own, other) = (rialto.session_of("a").await?, rialto.client_of("b").await?);
    let mut stream = own
        .open_call(1, "progress", r#"{"n":2,"marker":"private"}"#, 1)
        .await?
        .events();
    stream.message().await?;
    let event = stream.last_event_id().expect("events have ids").to_owned();
    other.set_session(own.session().as_deref());
    other.set_version(Some("2025-11-25"));
    let stolen = other.call(1, "echo", r#"{"marker":"stolen"}"#).await?;
    stolen.expect_error(404, -32600)?;
    assert_eq!(other.get(None).await?.status, 404);
    assert_eq!(other.get(Some(&event)).await?.status, 404);
    other.cancel(1).await?.expect_status(404)?;
    other.respond(1, "{}").await?.expect_status(404)?;
    other.delete().await?.expect_status(404)?;
    // Nothing tells this from a session that never was.
    other.set_session(Some("6f9619ff-8b86-4d01-b42d-00cf4fc964ff"));
    let unknown = other.call(1, "echo", r#"{"marker":"stolen"}"#).await?;
    assert_eq!((unknown.status, unknown.body), (stolen.status, stolen.body));
    own.expect_echo("still mine").await?;
    assert_eq!(
        testkit::Journal::at(rialto.dir().join("b")).executions("stolen"),
        0
    );
    Ok(())
}

#[tokio::test]
async fn g12_secrets_appear_in_no_output() -> Result<()> {
    const SECRETS: [&str; 6] = [
        "s3cret-in-file",
        "s3cret-in-variable",
        "s3cret-bearer",
        "s3cret-key",
        "s3cret-argument",
        "s3cret-cookie",
    ];
    for level in ["info", "trace"] {
        let launcher = Rialto::launcher()
            .env("RUST_LOG", level)
            .env("SOME_TOKEN", SECRETS[1])
            .args(&["--audit", "{dir}/audit"])
            .config(
                "secrets_file: secrets.yml\nrequest_timeout: 1s\nstream_timeout: 1s\ndestinations:\n  d:\n    command: '{stub} --journal {dir}/journal'\n    env: { ONE: '${secret:one}', TWO: '${SOME_TOKEN}' }\n",
            );
        std::fs::write(
            launcher.dir().join("secrets.yml"),
            format!("one: {}\n", SECRETS[0]),
        )?;
        let rialto = launcher.start().await?;
        let client = rialto
            .client_of("d")
            .await?
            .with_header("authorization", &format!("Bearer {}", SECRETS[2]))
            .with_header("x-api-key", SECRETS[3])
            .with_header("cookie", &format!("session={}", SECRETS[5]));
        client.handshake("2025-11-25", json!({})).await?;
        let session = client.session().unwrap_or_default();
        let secret = json!({"marker": SECRETS[4], "password": SECRETS[4], "kind": "all"});
        for tool in ["echo", "garbage", "fail", "never", "exit"] {
            client.call(1, tool, &secret).await?;
        }
        assert_eq!(
            client.call(1, "env", r#"{"name":"ONE"}"#).await?.text(),
            SECRETS[0],
            "the child has it"
        );
        assert_eq!(
            client.call(1, "env", r#"{"name":"TWO"}"#).await?.text(),
            SECRETS[1]
        );
        client
            .post(format!(r#"{{"broken":"{}"#, SECRETS[4]))
            .await?
            .reply()
            .await?
            .expect_status(400)?;
        client.get(Some(&session)).await?;
        let ready = client.send("GET", "/ready", &[], "").await?.reply().await?;
        let command_lines: Vec<String> = rialto
            .children()
            .iter()
            .map(|child| child.pid)
            .chain([rialto.pid()])
            .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok())
            .collect();
        client.delete().await?.expect_status(204)?;
        rialto.sigterm();
        rialto.wait(Duration::from_secs(10)).await;
        let records = std::fs::read_to_string(rialto.dir().join("audit"))?;
        assert!(records.lines().count() >= 8, "{records}");
        let outputs = [
            rialto.stderr().join("\n"),
            rialto.stdout().join("\n"),
            records,
            command_lines.join("\n"),
            ready.body_text(),
        ];
        for output in &outputs {
            for secret in SECRETS.iter().chain([&session.as_str()]) {
                let line = output.lines().find(|line| line.contains(secret));
                assert!(line.is_none(), "at {level}: {secret} in {line:?}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn g13_nothing_that_is_logged_can_forge_a_record() -> Result<()> {
    const INJECTION: &str =
        "x\\r\\n{\\\"level\\\":\\\"ERROR\\\",\\\"message\\\":\\\"forged\\\"}\\u001b[31m\\u202e\\u0000\\u009b";
    let script = r#"printf 'noise\r{"level":"ERROR","message":"forged"}\033[31m\342\200\256\n' >&2; head -c 1000000 /dev/zero | tr '\0' 'y' >&2; echo >&2; exec "$0" --journal "$1""#;
    let rialto = Rialto::launcher()
        .env("RUST_LOG", "trace")
        .args(&[
            "--audit",
            "{dir}/audit",
            "--",
            "sh",
            "-c",
            script,
            "{stub}",
            "{dir}/journal",
        ])
        .start()
        .await?;
    let client = rialto.session().await?;
    // Twice in a message, it is still within the limit: what is refused before it was read may
    // break off.
    let long = "z".repeat(400_000);
    for name in [INJECTION, long.as_str()] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":"{name}","method":"tools/call","params":{{"name":"{name}"}}}}"#
        );
        client.post(body).await?.reply().await?;
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{name}"}}"#);
        client.post(body).await?.reply().await?;
        let body = format!(r#"{{"jsonrpc":"2.0","method":"notifications/{name}"}}"#);
        client.post(body).await?.reply().await?;
    }
    client
        .call(1, "garbage", r#"{"kind":"all","marker":"m"}"#)
        .await?
        .expect_status(200)?;
    for (header, value) in [
        ("user-agent", "a\u{9b}31m\u{202e}b"),
        ("x-forwarded-for", "\u{202e}"),
        ("host", "evil\u{202e}.example"),
    ] {
        let mut raw = rialto.raw().await?;
        let request = raw_http::request("POST", "/mcp\u{202e}", &[(header, value)], "{}");
        raw.write(request).await?;
        raw.finish_writing().await?;
        raw.read_to_end().await?;
    }
    client.delete().await?.expect_status(204)?;
    rialto.sigterm();
    rialto.wait(Duration::from_secs(10)).await;
    let records = audit(&rialto);
    assert!(records.len() >= 8, "{records:?}");
    let audit_text = std::fs::read_to_string(rialto.dir().join("audit"))?;
    let stderr = rialto.stderr();
    // All of it was logged, or this would prove nothing.
    assert!(
        stderr
            .iter()
            .any(|line| line.contains("noise") && line.contains("forged"))
    );
    assert!(stderr.iter().any(|line| line.contains("yyyy")));
    assert!(
        audit_text.contains("forged") && audit_text.contains("zzzz"),
        "{audit_text}"
    );
    for line in stderr.iter().map(String::as_str).chain(audit_text.lines()) {
        let record: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
        assert_ne!(record["message"], "forged");
        assert!(line.len() < 20 << 10, "{} bytes: {}…", line.len(), &line[..200]);
        let control = line
            .chars()
            .find(|c| c.is_control() || ('\u{202a}'..='\u{202e}').contains(c));
        assert_eq!(control, None, "{line:?}");
    }
    Ok(())
}

#[tokio::test]
async fn g16_every_call_leaves_exactly_one_record() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&[
            "--audit",
            "{dir}/audit",
            "--request-timeout",
            "400ms",
            "--stream-timeout",
            "400ms",
            "--max-sessions",
            "20",
        ])
        .stub(&[])
        .start()
        .await?;
    let mut expected: BTreeMap<String, &[&str]> = BTreeMap::new();
    let mut calls = JoinSet::new();
    let mut begin =
        |client: &McpClient, id: String, tool: &'static str, outcomes: &'static [&'static str]| {
            expected.insert(id.clone(), outcomes);
            let client = client.clone();
            calls.spawn(async move {
                let arguments = json!({"marker": id, "ms": 100, "code": 1, "bytes": 2 << 20, "n": 3});
                let reply = client
                    .open_call(format!("\"{id}\""), tool, arguments, 1)
                    .await?
                    .reply()
                    .await?;
                Ok::<u16, testkit::Failure>(reply.status)
            });
        };
    // A child that dies takes all calls of its time with it.
    const ANY: &[&str] = &["ok", "error", "crashed", "timeout", "unavailable", "too_large"];
    for round in 0..4 {
        let client = rialto.session().await?;
        for index in 0..50 {
            let id = |kind: &str| format!("{kind}-{round}-{index}");
            begin(&client, id("echo"), "echo", ANY);
            begin(&client, id("delay"), "delay", ANY);
            begin(&client, id("fail"), "fail", ANY);
            begin(&client, id("progress"), "progress", ANY);
            if index % 10 == 0 {
                begin(
                    &client,
                    id("never"),
                    "never",
                    &["crashed", "timeout", "unavailable"],
                );
                begin(&client, id("big"), "big", ANY);
            }
        }
        if round == 1 || round == 2 {
            begin(
                &client,
                format!("exit-{round}"),
                "exit",
                &["crashed", "unavailable", "timeout"],
            );
        }
    }
    let accepted = calls.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
    assert_eq!(accepted.len(), expected.len());
    // One that is cancelled, one whose client hangs up, and one of a session that ends.
    let client = rialto.session().await?;
    let mut raw = rialto.raw().await?;
    let body = r#"{"jsonrpc":"2.0","id":"gone","method":"tools/call","params":{"name":"delay","arguments":{"ms":50,"marker":"gone"}}}"#;
    raw.write(raw_http::post("/mcp", client.session().as_deref(), body))
        .await?;
    rialto.wait_for_execution("gone").await;
    raw.reset()?;
    expected.insert("gone".into(), &["ok", "disconnected"]);
    client
        .call(r#""last""#, "delay", r#"{"ms":100}"#)
        .await?
        .expect_status(200)?;
    expected.insert("last".into(), &["ok"]);
    let waiting = client.call(r#""ended""#, "never", r#"{"marker":"ended"}"#);
    let ending = async {
        rialto.wait_for_execution("ended").await;
        client.delete().await
    };
    let (_, deleted) = tokio::join!(waiting, ending);
    deleted?.expect_status(204)?;
    expected.insert("ended".into(), &["cancelled"]);

    rialto.sigterm();
    rialto.wait(Duration::from_secs(10)).await;
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for record in audit(&rialto) {
        if record["mcp_method"] == "tools/call" {
            let id = record["rpc_id"]
                .as_str()
                .unwrap_or_default()
                .trim_matches('"')
                .to_owned();
            found
                .entry(id)
                .or_default()
                .push(record["outcome"].as_str().unwrap_or_default().to_owned());
        }
    }
    for (id, outcomes) in &expected {
        let records = found.get(id).map(Vec::as_slice).unwrap_or_default();
        assert_eq!(records.len(), 1, "{id}: {records:?}");
        assert!(outcomes.contains(&records[0].as_str()), "{id}: {records:?}");
    }
    assert_eq!(found.len(), expected.len());
    Ok(())
}

#[tokio::test]
async fn an_audit_record_names_the_reason_of_a_refusal_and_of_a_failure() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--audit", "{dir}/audit", "--stream-timeout", "300ms"])
        .config(
            "destinations:\n  one:\n    command: '{stub} --journal {dir}/journal'\n    tools: { deny: [exit] }\n",
        )
        .start()
        .await?;
    let client = rialto.session_of("one").await?;
    client.call(r#""answered""#, "echo", "{}").await?;
    client.call(r#""denied""#, "exit", "{}").await?;
    client.call(r#""silent""#, "never", "{}").await?;
    rialto.sigterm();
    rialto.wait(Duration::from_secs(10)).await;
    let found: Vec<(Value, Value, Value)> = audit(&rialto)
        .into_iter()
        .filter(|record| record["mcp_method"] == "tools/call")
        .map(|mut record| {
            let mut taken = |key: &str| record[key].take();
            (taken("rpc_id"), taken("outcome"), taken("reason"))
        })
        .collect();
    let expected = [
        (json!("answered"), json!("ok"), Value::Null),
        (json!("denied"), json!("refused"), json!("tool_denied")),
        (json!("silent"), json!("timeout"), json!("timeout")),
    ];
    assert_eq!(found, expected);
    Ok(())
}
