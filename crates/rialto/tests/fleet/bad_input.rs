//! Settings and surroundings with which a fleet cannot work: each is an error at the start, or a
//! refusal, that names the fix.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::json;
use testkit::fleet::write_key;
use testkit::redis::Redis;
use testkit::{FleetConfig, PATIENCE, Result, Rialto, marked, poll_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::fixture::{id_of, in_background, moved, session_at};

/// Starts a replica that must not start; returns the error that it printed.
async fn refused(url: &str, key: &Path) -> Result<String> {
    let key = key.display();
    let config = format!(
        "cluster: {{ url: '{url}', key_file: '{key}', listen: '127.0.0.1:0' }}\ndestinations: {{ one: {{ command: '{{stub}}' }} }}\n"
    );
    let ended = Rialto::launcher().config(&config).run(PATIENCE).await?;
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr_text());
    Ok(ended.stderr_text())
}

fn assert_names(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part:?} is missing in {error}");
    }
}

#[tokio::test]
async fn key_file_that_is_missing_wrong_or_unreadable_is_refused() -> Result<()> {
    let (engine, folder) = (Redis::start()?, tempfile::tempdir()?);
    let url = engine.url();
    let missing = folder.path().join("missing");
    assert_names(
        &refused(&url, &missing).await?,
        &["missing", "rialto cluster key"],
    );

    let wrong = folder.path().join("wrong");
    std::fs::write(&wrong, "secret\n")?;
    std::fs::set_permissions(&wrong, std::fs::Permissions::from_mode(0o600))?;
    let error = refused(&url, &wrong).await?;
    assert_names(&error, &["no cluster key", "rialto cluster key"]);
    assert!(
        !error.contains("secret"),
        "no content of the file is shown: {error}"
    );

    let cut = folder.path().join("cut");
    write_key(&cut)?;
    let text = std::fs::read_to_string(&cut)?;
    let half = text.lines().take(2).collect::<Vec<_>>().join("\n");
    std::fs::write(&cut, half)?;
    assert_names(&refused(&url, &cut).await?, &["cut off", "copy the whole file"]);

    let open = folder.path().join("open");
    write_key(&open)?;
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644))?;
    assert_names(&refused(&url, &open).await?, &["open", "chmod 600"]);
    Ok(())
}

#[tokio::test]
async fn engine_that_cannot_keep_sessions_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let key = folder.path().join("cluster.key");
    write_key(&key)?;

    // An address without an engine.
    let free = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let error = refused(&format!("redis://{free}"), &key).await?;
    assert_names(&error, &["cannot be reached", "check the address"]);

    // A program that is no Redis.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("redis://{}", listener.local_addr()?);
    let server = in_background(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read_u8().await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    assert_names(
        &refused(&url, &key).await?,
        &["no Redis or Valkey", "check the port"],
    );
    drop(server);

    // A policy that evicts records.
    let engine = Redis::start_with(&["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"])?;
    assert_names(
        &refused(&engine.url(), &key).await?,
        &["allkeys-lru", "noeviction"],
    );

    // A user without the right to run scripts.
    let engine = Redis::start()?;
    let rules = ["on", ">pass", "~*", "+@all", "-eval", "-evalsha", "-script"];
    let command: Vec<&str> = ["ACL", "SETUSER", "limited"].into_iter().chain(rules).collect();
    engine.command(&command)?;
    let url = engine.url().replace("redis://", "redis://limited:pass@");
    let error = refused(&url, &key).await?;
    assert_names(&error, &["forbids a command", "give the user", "+evalsha"]);
    assert!(!error.contains("pass@"), "no password is shown: {error}");
    Ok(())
}

#[tokio::test]
async fn peer_with_a_foreign_certificate_is_refused_and_nothing_is_lost() -> Result<()> {
    let fleet = FleetConfig::of_stub("process: per_session").start().await?;
    let client = session_at(&fleet, 0).await?;
    // A replica with another key joins the same engine.
    let key = fleet.base().join("other.key");
    write_key(&key)?;
    let text = fleet
        .text(1)
        .replace("cluster.key", "other.key")
        .replace("replica-1", "stranger");
    let stranger = Rialto::with_config(&text).await?;
    let there = stranger.client_of("one").await?;
    there.set_session(Some(&id_of(&client)));
    there.set_version(Some(testkit::LEGACY));
    let refused = there.call(1, "echo", marked("refused")).await?;
    refused.expect_status(503)?;
    assert!(refused.reason().is_some(), "{refused:?}");
    let log = stranger
        .wait_for_log("the fault is logged", PATIENCE, |log| {
            log.to_string().contains("certificate") || log.to_string().contains("cluster key")
        })
        .await;
    assert!(log.to_string().contains("key"), "the fix is named: {log}");
    assert_eq!(fleet.journal().executions("refused"), 0);
    assert_eq!(fleet.owner_of(&id_of(&client))?, Some(0));
    moved(&fleet, &client, 1).await?.expect_echo("after").await
}

#[tokio::test]
async fn record_of_another_version_is_refused_and_kept() -> Result<()> {
    let mut fleet = FleetConfig::of_stub("process: per_session").start().await?;
    let client = session_at(&fleet, 0).await?;
    fleet.kill(0).await?;
    fleet.wait_for_end_of_lease(0).await?;
    let key = format!("rialto:session:{{{}}}", id_of(&client));
    fleet.engine().command(&["HSET", &key, "v", "99"])?;
    let there = moved(&fleet, &client, 1).await?;
    let refused = there.call(1, "echo", marked("refused")).await?;
    refused.expect_status(503)?;
    assert!(refused.reason().is_some(), "{refused:?}");
    fleet
        .replica(1)
        .rialto()
        .wait_for_log("the version is named", PATIENCE, |log| {
            log.to_string().contains("version")
        })
        .await;
    assert_eq!(
        fleet.epoch_of(&id_of(&client))?,
        Some(1),
        "the record is as it was"
    );
    fleet.engine().command(&["HSET", &key, "v", "1"])?;
    poll_until("the session goes on", PATIENCE, async || {
        let reply = there.call(1, "echo", json!({"marker": "after"})).await?;
        Result::Ok((reply.status == 200).then_some(()))
    })
    .await?;
    assert_eq!(fleet.journal().executions("refused"), 0);
    Ok(())
}
