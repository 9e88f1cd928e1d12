//! `rialto cluster status` and `rialto check` in front of a real engine: what they show of a fleet,
//! and the fix that each error names.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use cluster::{
    ClusterKey, Hello, Node, NodeId, RedisRegistry, RedisSettings, Registry as _, SessionRecord, State,
    WallTime,
};
use rustix::process::Signal;
use serde_json::Value;
use testkit::redis::Redis;
use testkit::rialto::{Ended, Launcher};
use testkit::{Failure, PATIENCE, Result, Rialto};
use uuid::Uuid;

/// A configuration for an engine at this URL.
fn config(url: &str) -> String {
    format!(
        "cluster: {{ url: '{url}', key_file: cluster.key, listen: '127.0.0.1:0', name: replica-1 }}\n\
         destinations: {{ one: {{ command: '{{stub}}' }} }}\n"
    )
}

fn status(url: &str) -> Launcher {
    let launcher = Rialto::launcher().verb(&["cluster", "status"]);
    launcher.config(&config(url))
}

fn check(url: &str) -> Launcher {
    Rialto::launcher().verb(&["check"]).config(&config(url))
}

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

fn stdout(ended: &Ended) -> String {
    ended.stdout.join("\n")
}

/// Writes a key where the configuration looks for it.
fn write_key(launcher: &Launcher, mode: u32) -> Result<()> {
    let file = launcher.dir().join("cluster.key");
    std::fs::write(&file, ClusterKey::generate().map_err(failure)?.to_text())?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Registers a replica with one session, as a running one does.
async fn join(url: &str, name: &str) -> Result<RedisRegistry> {
    let registry = RedisRegistry::connect(&RedisSettings::new(url))
        .await
        .map_err(failure)?;
    let node = Node {
        id: NodeId::generate(name).map_err(failure)?,
        address: Some("10.0.0.5:3001".to_owned()),
        program: "9.9.9".to_owned(),
        is_draining: false,
    };
    registry.join(&node).await.map_err(failure)?;
    let now = WallTime::from_unix(1_800_000_000);
    let record = SessionRecord {
        session: Uuid::new_v4(),
        destination: "one".to_owned(),
        principal: "anonymous".to_owned(),
        owner: Some(node.id),
        epoch: 1,
        hello: Hello::Implicit("2025-06-18".to_owned()),
        state: State::default(),
        created: now,
        last_active: now,
    };
    registry
        .create(&record, Duration::from_secs(600))
        .await
        .map_err(failure)?;
    Ok(registry)
}

#[tokio::test]
async fn status_lists_replicas_sessions_and_the_engine() -> Result<()> {
    let redis = Redis::start()?;
    let _first = join(&redis.url(), "replica-1").await?;
    let _second = join(&redis.url(), "replica-2").await?;
    let ended = status(&redis.url()).run(PATIENCE).await?;
    let shown = stdout(&ended);
    assert_eq!(ended.code(), Some(0), "{shown}\n{}", ended.stderr_text());
    for part in [
        "replica-1/",
        "replica-2/",
        "10.0.0.5:3001",
        "9.9.9",
        "sessions  2",
        "eviction  noeviction",
        "engine    redis ",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let ended = status(&redis.url()).args(&["--json"]).run(PATIENCE).await?;
    let json: Value = serde_json::from_str(&stdout(&ended))?;
    assert_eq!(json["sessions"], 2);
    assert_eq!(json["nodes"].as_array().map(Vec::len), Some(2), "{json}");
    assert_eq!(json["nodes"][0]["name"], "replica-1");
    assert!(
        json["nodes"][0]["lease_ms"]
            .as_u64()
            .is_some_and(|lease| lease <= 10_000)
    );
    assert_eq!(json["engine"]["eviction_policy"], "noeviction");
    assert!(json["engine"]["latency_ms"].is_f64(), "{json}");
    Ok(())
}

#[tokio::test]
async fn status_without_a_living_replica_fails() -> Result<()> {
    let redis = Redis::start()?;
    let ended = status(&redis.url()).run(PATIENCE).await?;
    assert_eq!(ended.code(), Some(1));
    assert!(stdout(&ended).contains("sessions  0"), "{}", stdout(&ended));
    let stderr = ended.stderr_text();
    assert!(stderr.contains("no replica has a lease"), "{stderr}");
    Ok(())
}

#[tokio::test]
async fn user_without_scan_gets_all_but_the_number_of_sessions() -> Result<()> {
    let redis = Redis::start()?;
    let rules = "on >geheim resetchannels ~rialto:* +@hash +@set +@string +del +exists +pexpire +pttl +time \
                 +evalsha +script|load +info";
    let mut words = vec!["ACL", "SETUSER", "rialto"];
    words.extend(rules.split_whitespace());
    redis.command(&words)?;
    let _replica = join(&redis.url(), "replica-1").await?;
    let url = format!("redis://rialto:geheim@127.0.0.1:{}", redis.port());
    let ended = status(&url).run(PATIENCE).await?;
    let shown = stdout(&ended);
    assert_eq!(ended.code(), Some(0), "{shown}\n{}", ended.stderr_text());
    assert!(
        shown.contains("sessions  unknown: give the user `+scan`"),
        "{shown}"
    );
    assert!(!shown.contains("geheim"), "{shown}");
    Ok(())
}

#[tokio::test]
async fn engine_that_cannot_be_used_is_an_error_with_the_fix_in_status_and_check() -> Result<()> {
    let evicting = Redis::start_with(&["--maxmemory-policy", "allkeys-lru"])?;
    let limited = Redis::start()?;
    limited.command(&["ACL", "SETUSER", "rialto", "on", ">geheim", "~rialto:*", "+info"])?;
    let limited_url = format!("redis://rialto:geheim@127.0.0.1:{}", limited.port());
    let mut gone = Redis::start()?;
    gone.kill()?;
    for (url, fix) in [
        (evicting.url(), "set `maxmemory-policy noeviction`"),
        (limited_url, "give the user `~rialto:*"),
        (gone.url(), "check the address"),
    ] {
        let checked = check(&url);
        write_key(&checked, 0o600)?;
        let checked = checked.run(PATIENCE).await?;
        let ended = status(&url).args(&["--json"]).run(PATIENCE).await?;
        for ended in [&checked, &ended] {
            let stderr = ended.stderr_text();
            assert_eq!(ended.code(), Some(1), "{stderr}");
            assert!(stderr.contains(fix) && !stderr.contains("geheim"), "{stderr}");
        }
        let json: Value = serde_json::from_str(&stdout(&ended))?;
        assert!(
            json["error"].as_str().is_some_and(|error| error.contains(fix)),
            "{json}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn status_without_a_fleet_names_the_key() -> Result<()> {
    let launcher = Rialto::launcher().verb(&["cluster", "status"]);
    let ended = launcher
        .config("destinations: { one: { command: '{stub}' } }\n")
        .run(PATIENCE)
        .await?;
    assert_eq!(ended.code(), Some(2));
    assert!(
        ended.stderr_text().contains("no `cluster`"),
        "{}",
        ended.stderr_text()
    );
    Ok(())
}

#[tokio::test]
async fn check_accepts_a_fleet_and_joins_none() -> Result<()> {
    let redis = Redis::start()?;
    let launcher = check(&redis.url());
    write_key(&launcher, 0o600)?;
    let ended = launcher.run(PATIENCE).await?;
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr_text());
    let registry = RedisRegistry::connect(&RedisSettings::new(&redis.url()))
        .await
        .map_err(failure)?;
    assert_eq!(registry.nodes().await.map_err(failure)?, []);
    Ok(())
}

#[tokio::test]
async fn check_refuses_a_key_file_with_the_fix() -> Result<()> {
    let redis = Redis::start()?;
    let absent = check(&redis.url());
    let exposed = check(&redis.url());
    write_key(&exposed, 0o644)?;
    let damaged = check(&redis.url());
    write_key(&damaged, 0o600)?;
    let file = damaged.dir().join("cluster.key");
    std::fs::write(&file, "no key")?;
    for (launcher, fix) in [
        (absent, "rialto cluster key > "),
        (exposed, "chmod 600 "),
        (damaged, "make one with `rialto cluster key`"),
    ] {
        let ended = launcher.run(PATIENCE).await?;
        let stderr = ended.stderr_text();
        assert_eq!(ended.code(), Some(2), "{stderr}");
        assert!(
            stderr.contains("cluster.key_file: ") && stderr.contains(fix),
            "{stderr}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn fleet_changed_by_a_reload_is_named_for_the_next_start() -> Result<()> {
    let rialto = Rialto::with_config("destinations: { one: { command: '{stub}' } }\n").await?;
    let file = rialto.dir().join("destinations.yml");
    let text = std::fs::read_to_string(&file)?;
    let cluster = "cluster: { url: 'redis://127.0.0.1', key_file: k, listen: '127.0.0.1:0' }\n";
    std::fs::write(&file, format!("{cluster}{text}"))?;
    rialto.signal(Signal::HUP);
    let named = |line: &Value| line["setting"] == "cluster";
    rialto.wait_for_log("the setting is named", PATIENCE, named).await;
    Ok(())
}
