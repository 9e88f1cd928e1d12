//! The audit log under strain: rotation, a disk that is full, a chain that was tampered with, and
//! ten thousand calls with crashes and kills (rows E6 and G16).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::rialto::binary;
use testkit::{McpClient, Result, Rialto, wait_until};
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(30);

fn chained() -> testkit::rialto::Launcher {
    Rialto::launcher()
        .env("RIALTO_AUDIT_CHAIN", "true")
        .args(&["--audit", "{dir}/audit"])
}

fn verify(files: &[&Path]) -> Output {
    Command::new(binary("rialto"))
        .args(["audit", "verify"])
        .args(files)
        .output()
        .expect("verify runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn expect_whole(files: &[&Path]) -> String {
    let output = verify(files);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn expect_broken(file: &Path, what: &str) {
    let output = verify(&[file]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains(what), "{}", text(&output.stderr));
}

async fn echo(client: &McpClient, marker: &str) -> Result<()> {
    let reply = client.call(1, "echo", json!({"marker": marker})).await?;
    reply.expect_status(200)?;
    Ok(())
}

fn lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_inclusive('\n').map(str::to_owned).collect()
}

async fn wait_for_lines(file: &Path, count: usize) {
    wait_until(&format!("{count} records"), PATIENCE, || {
        (lines(file).len() >= count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_chain_is_whole_over_rotations_and_restarts_and_every_tampering_is_found() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (older, newer) = (directory.path().join("audit.1"), directory.path().join("audit"));
    let launch = || {
        Rialto::launcher()
            .env("RIALTO_AUDIT_CHAIN", "true")
            .args(&["--audit", newer.to_str().expect("a path in UTF-8")])
            .stub(&[])
    };
    {
        let rialto = launch().start().await?;
        let client = rialto.session().await?;
        for call in 0..20 {
            echo(&client, &format!("a{call}")).await?;
        }
        wait_for_lines(&newer, 22).await;
        std::fs::rename(&newer, &older)?;
        rialto.signal(Signal::HUP);
        wait_until("the file is opened anew", PATIENCE, || {
            newer.exists().then_some(())
        })
        .await;
        for call in 0..20 {
            echo(&client, &format!("b{call}")).await?;
        }
        rialto.sigterm();
        rialto.wait(PATIENCE).await;
    }
    {
        // A Rialto that was killed may leave half a record behind.
        let mut file = std::fs::OpenOptions::new().append(true).open(&newer)?;
        std::io::Write::write_all(&mut file, b"{\"ts\":\"2026-")?;
        let rialto = launch().start().await?;
        echo(&rialto.session().await?, "after").await?;
        rialto.sigterm();
        rialto.wait(PATIENCE).await;
    }
    let said = expect_whole(&[&older, &newer]);
    assert!(said.contains("the chain is whole"), "{said}");
    assert!(expect_whole(&[&newer]).contains("together with the file before"));

    let good = lines(&older);
    let tampered = directory.path().join("tampered");
    let tamper = |what: &str, change: &dyn Fn(&mut Vec<String>)| {
        let mut lines = good.clone();
        change(&mut lines);
        std::fs::write(&tampered, lines.concat()).expect("a file can be written");
        expect_broken(&tampered, what);
    };
    tamper("record 5 was changed", &|lines| {
        lines[4] = lines[4].replace("\"ok\"", "\"no\"")
    });
    tamper("records 5 to 5 are missing", &|lines| drop(lines.remove(4)));
    tamper("out of order", &|lines| lines.swap(4, 7));
    tamper("no record of the chain", &|lines| {
        lines[4] = format!("{}\n", &lines[4][..30])
    });
    tamper("records 5 to 5 are missing", &|lines| {
        lines[4] = lines[4][..30].to_owned()
    });
    tamper("no record of the chain", &|lines| {
        lines.insert(4, "{\"outcome\":\"ok\"}\n".to_owned())
    });
    tamper("repeated", &|lines| lines.insert(4, lines[3].clone()));
    tamper("unfinished", &|lines| {
        lines.last_mut().expect("a line").truncate(9)
    });
    let output = verify(&[&newer, &older]);
    assert!(
        !output.status.success(),
        "files in the wrong order are not a chain"
    );
    Ok(())
}

/// F14: all links could be computed anew, and the chain was whole again.
#[tokio::test]
async fn a_chain_with_a_key_cannot_be_computed_anew() -> Result<()> {
    const KEY: &str = "a key that only the operator has";
    let rialto = Rialto::launcher()
        .env("RIALTO_AUDIT_CHAIN_KEY", KEY)
        .args(&["--audit", "{dir}/audit"])
        .stub(&[])
        .start()
        .await?;
    echo(&rialto.session().await?, "kept").await?;
    rialto.sigterm();
    rialto.wait(PATIENCE).await;
    let audit = rialto.dir().join("audit");
    let verify_with = |key: &str| {
        Command::new(binary("rialto"))
            .args(["audit", "verify", "--key-env", "CHAIN_KEY"])
            .env("CHAIN_KEY", key)
            .arg(&audit)
            .output()
            .expect("verify runs")
    };
    let whole = verify_with(KEY);
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    let key_file = rialto.dir().join("key");
    std::fs::write(&key_file, format!("{KEY}\n"))?;
    let by_file = Command::new(binary("rialto"))
        .args(["audit", "verify", "--key-file"])
        .args([&key_file, &audit])
        .output()?;
    assert!(by_file.status.success(), "{}", text(&by_file.stderr));
    assert_eq!(verify_with("another key, not that one").status.code(), Some(1));
    assert_eq!(verify_with("short").status.code(), Some(2));
    expect_broken(&audit, "--key-env");
    assert!(
        !rialto.stderr().join("\n").contains(KEY),
        "no secret is ever written"
    );
    Ok(())
}

/// E6: a full disk is noticed at once, and calls are refused until it has room again.
#[tokio::test]
async fn e06_with_a_full_disk_calls_are_refused_if_every_call_must_have_its_record() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("audit");
    std::os::unix::fs::symlink("/dev/full", &file)?;
    let rialto = Rialto::launcher()
        .env("RIALTO_AUDIT_ON_FAILURE", "refuse")
        .args(&["--audit", file.to_str().expect("a path in UTF-8")])
        .stub(&[])
        .start()
        .await?;
    // What follows the first record may already be refused, so the client introduces itself and no
    // more.
    let client = rialto.client().await?;
    client.initialize("2025-11-25", json!({})).await?;
    let troubled = |line: &Value| line["message"] == "lines cannot be written";
    rialto
        .wait_for_log("the trouble is told", PATIENCE, troubled)
        .await;
    for _ in 0..100 {
        let reply = client.call(1, "echo", json!({"marker": "refused"})).await?;
        reply.expect_error(503, -32603)?;
        assert_eq!(reply.answer()["error"]["data"]["reason"], "audit_unavailable");
        assert!(reply.header("retry-after").is_some());
    }
    assert!(rialto.journal().events("executed").is_empty());
    // Room again: the file is another one, and everything that waited is in it.
    std::fs::remove_file(&file)?;
    rialto.signal(Signal::HUP);
    wait_for_lines(&file, 1).await;
    client
        .notify("notifications/initialized", json!({}))
        .await?
        .expect_status(202)?;
    echo(&client, "again").await?;
    rialto.sigterm();
    rialto.wait(PATIENCE).await;
    let records = lines(&file);
    let found = |method: &str| records.iter().filter(|line| line.contains(method)).count();
    assert_eq!(
        (found("\"initialize\""), found("tools/call")),
        (1, 1),
        "{records:?}"
    );
    Ok(())
}

/// E6, the other choice: no call notices, and the losses are counted.
#[tokio::test]
async fn e06_with_a_full_disk_calls_go_on_if_losses_are_only_counted() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("audit");
    std::os::unix::fs::symlink("/dev/full", &file)?;
    let rialto = Rialto::launcher()
        .args(&["--audit", file.to_str().expect("a path in UTF-8")])
        .stub(&[])
        .start()
        .await?;
    let client = rialto.session().await?;
    for call in 0..200 {
        echo(&client, &format!("call {call}")).await?;
    }
    let troubled = |line: &Value| line["message"] == "lines cannot be written";
    rialto
        .wait_for_log("the trouble is told", PATIENCE, troubled)
        .await;
    rialto.sigterm();
    assert!(rialto.wait(PATIENCE).await.success());
    let lost = |line: &Value| line["level"] == "ERROR" && line.to_string().contains("audit records are lost");
    rialto.wait_for_log("the loss is told", PATIENCE, lost).await;
    Ok(())
}

/// G16: every call has one record, however it ends; and the chain over all of them is whole.
#[tokio::test]
async fn g16_ten_thousand_calls_with_crashes_and_kills_leave_one_record_each() -> Result<()> {
    const CALLERS: usize = 20;
    const CALLS: usize = 500;
    let rialto = chained()
        .args(&[
            "--request-timeout",
            "2s",
            "--stream-timeout",
            "2s",
            "--max-sessions",
            "100",
        ])
        .stub(&[])
        .start()
        .await?;
    // Every session is open before the first call ends the server.
    let mut clients = Vec::new();
    for _ in 0..CALLERS {
        clients.push(rialto.session().await?);
    }
    let mut callers = JoinSet::new();
    for (caller, client) in clients.into_iter().enumerate() {
        callers.spawn(async move {
            let mut answered = Vec::new();
            for call in 0..CALLS {
                let id = format!("{caller}-{call}");
                let (tool, arguments) = match call % 10 {
                    0 => ("progress", json!({"n": 2, "marker": id})),
                    1 => ("fail", json!({"marker": id})),
                    // Every caller ends the server twice.
                    5 if call % 250 == 5 => ("exit", json!({"code": 1})),
                    _ => ("echo", json!({"marker": id})),
                };
                let reply = client
                    .open_call(format!("\"{id}\""), tool, arguments, 1)
                    .await?
                    .reply()
                    .await?;
                answered.push((id, reply.status));
            }
            Ok::<_, testkit::Failure>(answered)
        });
    }
    // Children are killed from outside as well, in the middle of their work.
    let mut kills = 0;
    while !callers.is_empty() && kills < 10 {
        for child in rialto
            .children()
            .iter()
            .filter(|child| child.name.contains("testkit"))
        {
            child.signal(Signal::KILL);
            kills += 1;
        }
        let audit = rialto.dir().join("audit");
        let target = lines(&audit).len() + 300;
        // The next kill comes when some hundred calls have passed, or all of them.
        while lines(&audit).len() < target && !callers.is_empty() {
            match tokio::time::timeout(Duration::from_millis(20), callers.join_next()).await {
                Ok(Some(done)) => {
                    note(done.expect("a caller does not panic")?);
                }
                Ok(None) => break,
                Err(_) => {}
            }
        }
    }
    while let Some(done) = callers.join_next().await {
        note(done.expect("a caller does not panic")?);
    }
    rialto.sigterm();
    rialto.wait(PATIENCE).await;
    let audit = rialto.dir().join("audit");
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for line in lines(&audit) {
        let record: Value = serde_json::from_str(&line)?;
        if record["mcp_method"] == "tools/call" {
            *found
                .entry(record["rpc_id"].as_str().unwrap_or_default().to_owned())
                .or_default() += 1;
            *outcomes
                .entry(record["outcome"].as_str().unwrap_or_default().to_owned())
                .or_default() += 1;
        }
    }
    assert_eq!(found.len(), CALLERS * CALLS, "{outcomes:?}");
    assert!(found.values().all(|count| *count == 1), "{outcomes:?}");
    assert!(
        outcomes.contains_key("crashed") && outcomes.contains_key("ok"),
        "{outcomes:?}"
    );
    expect_whole(&[&audit]);
    Ok(())
}

/// Bodies and the chain are worked on after the calls have been answered; an end in between loses
/// nothing.
#[tokio::test]
async fn records_with_large_bodies_are_complete_and_in_order_after_a_clean_end() -> Result<()> {
    const CALLS: usize = 60;
    let rialto = chained()
        .env("RIALTO_AUDIT_BODIES", "true")
        .stub(&[])
        .start()
        .await?;
    let client = rialto.session().await?;
    let large = "x".repeat(100_000);
    for call in 0..CALLS {
        let arguments = json!({"token": "hush", "marker": format!("{call} {large}")});
        client.call(call, "echo", arguments).await?.expect_status(200)?;
    }
    rialto.sigterm();
    rialto.wait(PATIENCE).await;
    let audit = rialto.dir().join("audit");
    let mut ids = Vec::new();
    for line in lines(&audit) {
        assert!(!line.contains("hush"), "{}", &line[..400]);
        let record: Value = serde_json::from_str(&line)?;
        if record["mcp_method"] == "tools/call" {
            for body in ["request_body", "response_body"] {
                let body = record[body].as_str().unwrap_or_default();
                assert!(body.ends_with("…truncated"), "{}", &line[..400]);
            }
            ids.push(record["rpc_id"].as_u64());
        }
    }
    assert!(ids.into_iter().eq((0..CALLS).map(|call| Some(call as u64))));
    expect_whole(&[&audit]);
    Ok(())
}

/// Every call was answered with something that a call can be answered with.
fn note(answered: Vec<(String, u16)>) {
    for (id, status) in answered {
        assert!(matches!(status, 200 | 503 | 504), "{id}: {status}");
    }
}
