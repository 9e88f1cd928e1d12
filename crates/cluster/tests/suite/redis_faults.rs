//! Engines that cannot serve, and an engine that goes away: each fault has an error that names the
//! fix.

use std::time::Duration;

use cluster::redis::{ConnectError, RedisRegistry, RedisSettings};
use cluster::{Created, Registry as _, RegistryError, Renewed, SlotDemand, TokenDemand, Updated};
use testkit::redis::Redis;
use testkit::upstream::CertificateAuthority;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::cases::{LONG, claim, found, node, record, session_of};

/// Short, because the tests wait for it.
const LIMIT: Duration = Duration::from_millis(300);

pub(crate) fn settings(url: &str) -> RedisSettings {
    RedisSettings {
        command_timeout: Duration::from_secs(5),
        ..RedisSettings::new(url)
    }
}

/// Connects in vain, and returns the error with its text.
pub(crate) async fn refused(url: &str) -> (ConnectError, String) {
    let error = RedisRegistry::connect(&settings(url)).await.unwrap_err();
    let text = error.to_string();
    assert!(!text.contains("secret"), "the error has no password: {text}");
    (error, text)
}

/// Serves one fixed answer to everything that is sent, or closes at once.
pub(crate) async fn other_program(tasks: &mut JoinSet<()>, answer: Option<&'static [u8]>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let Some(answer) = answer else {
                continue;
            };
            let mut bytes = [0; 4096];
            while stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {
                if stream.write_all(answer).await.is_err() {
                    break;
                }
            }
        }
    });
    format!("redis://{address}")
}

#[tokio::test]
async fn url_that_is_none_names_the_forms_that_are() {
    for url in [
        "",
        "valley",
        "http://:secret@localhost",
        "redis+sentinel://:secret@localhost:26379",
        "redis+cluster://:secret@localhost:7000/1",
        "redis-cluster://localhost",
        "redis://",
    ] {
        let (error, text) = refused(url).await;
        assert!(matches!(error, ConnectError::Url { .. }), "{url}: {text}");
        for form in [
            "redis://",
            "rediss://",
            "unix://",
            "redis+sentinel://",
            "redis+cluster://",
        ] {
            assert!(text.contains(form), "{form}: {text}");
        }
    }
}

#[tokio::test]
async fn engine_that_does_not_listen_is_unreachable() {
    let port = Redis::start().unwrap().port();
    let (error, text) = refused(&format!("redis://:secret@127.0.0.1:{port}")).await;
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    let (error, text) = refused("unix:///nowhere/redis.sock?pass=secret").await;
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{text}");
}

#[tokio::test]
async fn other_program_is_no_engine() {
    let mut tasks = JoinSet::new();
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"-ERR what\r\n"] {
        let url = other_program(&mut tasks, Some(answer)).await;
        let (error, text) = refused(&url).await;
        assert!(matches!(error, ConnectError::OtherProgram { .. }), "{text}");
        assert!(text.contains("check the port"), "{text}");
    }
}

#[tokio::test]
async fn old_version_is_named() {
    let mut tasks = JoinSet::new();
    const INFO: &[u8] = b"$34\r\n# Server\r\nredis_version:6.2.14\r\n\r\n\r\n";
    let url = other_program(&mut tasks, Some(INFO)).await;
    let (error, text) = refused(&url).await;
    assert!(matches!(error, ConnectError::TooOld { .. }), "{text}");
    assert!(text.contains("6.2.14") && text.contains("7 or newer"), "{text}");
}

#[tokio::test]
async fn policy_that_evicts_is_named_with_the_setting() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let redis = Redis::start_with(&["--maxmemory-policy", policy]).unwrap();
        let (error, text) = refused(&redis.url()).await;
        assert!(matches!(error, ConnectError::Evicts { .. }), "{text}");
        assert!(text.contains(policy), "{text}");
        assert!(text.contains("maxmemory-policy noeviction"), "{text}");
    }
}

#[tokio::test]
async fn replica_is_sent_to_its_primary() {
    let primary = Redis::start().unwrap();
    let port = primary.port().to_string();
    let replica = Redis::start_with(&["--replicaof", &format!("127.0.0.1 {port}")]).unwrap();
    let (error, text) = refused(&replica.url()).await;
    assert!(matches!(error, ConnectError::Replica { .. }), "{text}");
    assert!(text.contains("primary"), "{text}");
}

#[tokio::test]
async fn password_that_is_missing_or_wrong_is_named() {
    let redis = Redis::start_with(&["--requirepass", "secret"]).unwrap();
    let port = redis.port();
    for url in [redis.url(), format!("redis://:secret-not@127.0.0.1:{port}")] {
        let (error, text) = refused(&url).await;
        assert!(matches!(error, ConnectError::Credentials { .. }), "{text}");
        assert!(text.contains("USER:PASSWORD@HOST"), "{text}");
    }
    let url = format!("redis://:secret@127.0.0.1:{port}");
    RedisRegistry::connect(&settings(&url)).await.unwrap();
}

#[tokio::test]
async fn command_that_the_acl_forbids_is_named_with_the_rules_that_suffice() {
    let redis = Redis::start().unwrap();
    let set_user = |rules: &[&str]| {
        let start = ["ACL", "SETUSER", "rialto", "reset", "on", ">secret"];
        let answer = redis.command(&[&start[..], rules].concat()).unwrap();
        assert_eq!(answer, "+OK");
    };
    let url = format!("redis://rialto:secret@127.0.0.1:{}", redis.port());
    // The rules that the error names are enough.
    set_user(&["~rialto:*"]);
    let (error, text) = refused(&url).await;
    assert!(matches!(error, ConnectError::Forbidden { .. }), "{text}");
    let rules = text.split('`').nth(1).expect("the error names the rules");
    let rules: Vec<&str> = rules.split_whitespace().collect();
    set_user(&rules);
    RedisRegistry::connect(&settings(&url)).await.unwrap();
    // Without any one of them an operation is forbidden, at start already.
    for rule in rules.iter().filter(|rule| rule.starts_with('+')) {
        let rest: Vec<&str> = rules.iter().copied().filter(|other| other != rule).collect();
        redis.command(&["SCRIPT", "FLUSH"]).unwrap();
        set_user(&rest);
        let (error, text) = refused(&url).await;
        assert!(matches!(error, ConnectError::Forbidden { .. }), "{rule}: {text}");
    }
    // Keys of another prefix are forbidden too.
    set_user(&rules);
    let other = RedisSettings {
        prefix: "other".to_owned(),
        ..settings(&url)
    };
    let error = RedisRegistry::connect(&other).await.unwrap_err();
    assert!(error.to_string().contains("~other:*"), "{error}");
}

/// Starts a server that has TLS alone, and returns its port and authority.
fn tls_server() -> (Redis, u16, CertificateAuthority) {
    let authority = CertificateAuthority::new();
    let (certificate, key) = authority.certificate("localhost");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cert.pem"), certificate).unwrap();
    std::fs::write(folder.path().join("key.pem"), key).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .unwrap()
        .port();
    let settings = [
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        "FOLDER/cert.pem",
        "--tls-key-file",
        "FOLDER/key.pem",
        "--tls-auth-clients",
        "no",
        "--tls-ca-cert-file",
        "FOLDER/cert.pem",
    ];
    let redis = Redis::start_in(folder, &settings).unwrap();
    (redis, port, authority)
}

#[tokio::test]
async fn tls_is_needed_on_one_side_or_the_other() {
    let (redis, tls_port, authority) = tls_server();
    let (error, text) = refused(&format!("redis://127.0.0.1:{tls_port}")).await;
    assert!(matches!(error, ConnectError::TlsNeeded { .. }), "{text}");
    assert!(text.contains("rediss://"), "{text}");
    let (error, text) = refused(&format!("rediss://localhost:{}", redis.port())).await;
    assert!(matches!(error, ConnectError::Tls { .. }), "{text}");
    // Its authority is not one of the system's.
    let url = format!("rediss://localhost:{tls_port}");
    let (error, text) = refused(&url).await;
    assert!(matches!(error, ConnectError::Tls { .. }), "{text}");
    assert!(text.contains("authority"), "{text}");
    let trusting = RedisSettings {
        authorities: Some(authority.pem().as_bytes().to_vec()),
        ..settings(&url)
    };
    let registry = RedisRegistry::connect(&trusting).await.unwrap();
    assert!(registry.nodes().await.unwrap().is_empty());
}

#[tokio::test]
async fn unix_socket_is_a_url() {
    let redis = Redis::start_with(&["--unixsocket", "FOLDER/socket"]).unwrap();
    let url = format!("unix://{}", redis.folder().join("socket").display());
    RedisRegistry::connect(&settings(&url)).await.unwrap();
}

#[tokio::test]
async fn slow_engine_is_unreachable_within_the_limit_and_usable_afterwards() {
    let redis = Redis::start().unwrap();
    let limited = RedisSettings {
        command_timeout: LIMIT,
        ..settings(&redis.url())
    };
    let registry = RedisRegistry::connect(&limited).await.unwrap();
    let a = node("a");
    let shared: std::sync::Arc<dyn cluster::Registry> = std::sync::Arc::new(registry.clone());
    let stored = session_of(&shared, &a).await;
    redis.pause();
    // The first waits on the old connection, the next ones for a new one; none waits longer.
    for _ in 0..3 {
        let error = registry.look_up(stored.session).await.unwrap_err();
        assert!(matches!(error, RegistryError::Unreachable(_)), "{error}");
    }
    let error = registry.renew(&a.id).await.unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable(_)), "{error}");
    let error = RedisRegistry::connect(&limited).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    redis.resume();
    let located = testkit::poll_until("the engine answers", testkit::PATIENCE, async || {
        Ok::<_, RegistryError>(registry.look_up(stored.session).await.ok())
    });
    assert_eq!(located.await.unwrap().expect("it is stored").record, stored);
}

#[tokio::test]
async fn delayed_answers_are_unreachable_within_the_limit() {
    let redis = Redis::start().unwrap();
    let mut tasks = JoinSet::new();
    let (url, delay) = delaying_proxy(&mut tasks, redis.port()).await;
    let limited = RedisSettings {
        command_timeout: LIMIT,
        ..settings(&url)
    };
    let registry = RedisRegistry::connect(&limited).await.unwrap();
    let a = node("a");
    registry.join(&a).await.unwrap();
    delay.send_replace(LIMIT * 4);
    let late = record(&a);
    let error = registry.create(&late, LONG).await.unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable(_)), "{error}");
    delay.send_replace(Duration::ZERO);
    // The engine had received the record; its answer alone was late. The repetition does no harm.
    let created = testkit::poll_until("the engine answers", testkit::PATIENCE, async || {
        Ok::<_, RegistryError>(registry.create(&late, LONG).await.ok())
    });
    assert_eq!(created.await.unwrap(), Created::Created);
}

/// Forwards to a port, and holds each answer back for a time that the test changes.
async fn delaying_proxy(tasks: &mut JoinSet<()>, to: u16) -> (String, tokio::sync::watch::Sender<Duration>) {
    let (delay, delayed) = tokio::sync::watch::channel(Duration::ZERO);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let server = tokio::net::TcpStream::connect(("127.0.0.1", to)).await.unwrap();
            let delayed = delayed.clone();
            connections.spawn(async move {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let answers = async {
                    let mut bytes = [0; 4096];
                    while let Ok(read) = from_server.read(&mut bytes).await {
                        let wait = *delayed.borrow();
                        let held = tokio::time::timeout(wait, std::future::pending::<()>());
                        if wait > Duration::ZERO {
                            drop(held.await);
                        }
                        if read == 0 || to_client.write_all(&bytes[..read]).await.is_err() {
                            break;
                        }
                    }
                };
                let requests = tokio::io::copy(&mut from_client, &mut to_server);
                drop(tokio::join!(answers, requests));
            });
        }
    });
    (url, delay)
}

#[tokio::test]
async fn engine_that_was_killed_and_came_back_empty_is_found_again() {
    let mut redis = Redis::start().unwrap();
    let registry = RedisRegistry::connect(&settings(&redis.url())).await.unwrap();
    let shared: std::sync::Arc<dyn cluster::Registry> = std::sync::Arc::new(registry.clone());
    let a = node("a");
    let stored = session_of(&shared, &a).await;
    redis.kill().unwrap();
    for _ in 0..2 {
        let error = registry.renew(&a.id).await.unwrap_err();
        assert!(matches!(error, RegistryError::Unreachable(_)), "{error}");
    }
    redis.restart().unwrap();
    let renewed = testkit::poll_until("the engine answers", testkit::PATIENCE, async || {
        Ok::<_, RegistryError>(registry.renew(&a.id).await.ok())
    });
    assert_eq!(renewed.await.unwrap(), Renewed::Unknown);
    registry.join(&a).await.unwrap();
    assert_eq!(registry.create(&stored, LONG).await.unwrap(), Created::Created);
    assert_eq!(found(&shared, stored.session).await.record, stored);
}

#[tokio::test]
async fn scripts_that_the_engine_forgot_are_loaded_again() {
    let redis = Redis::start().unwrap();
    let registry = RedisRegistry::connect(&settings(&redis.url())).await.unwrap();
    assert_eq!(redis.command(&["SCRIPT", "FLUSH"]).unwrap(), "+OK");
    let shared: std::sync::Arc<dyn cluster::Registry> = std::sync::Arc::new(registry);
    session_of(&shared, &node("a")).await;
}

#[tokio::test]
async fn full_engine_refuses_a_new_session_and_keeps_the_others() {
    let redis = Redis::start().unwrap();
    let registry = RedisRegistry::connect(&settings(&redis.url())).await.unwrap();
    let shared: std::sync::Arc<dyn cluster::Registry> = std::sync::Arc::new(registry.clone());
    let a = node("a");
    let stored = session_of(&shared, &a).await;
    assert_eq!(
        redis.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap(),
        "+OK"
    );
    let error = registry.create(&record(&a), LONG).await.unwrap_err();
    assert!(matches!(error, RegistryError::Full(_)), "{error}");
    assert_eq!(found(&shared, stored.session).await.record, stored);
    assert_eq!(registry.remove(&claim(&stored)).await.unwrap(), Updated::Done);
}

#[tokio::test]
async fn lease_ends_by_the_clock_of_the_engine() {
    let redis = Redis::start().unwrap();
    let short = RedisSettings {
        lease: Duration::from_millis(200),
        ..settings(&redis.url())
    };
    let registry = RedisRegistry::connect(&short).await.unwrap();
    let a = node("a");
    registry.join(&a).await.unwrap();
    testkit::poll_until("the lease ends", testkit::PATIENCE, async || {
        let nodes = registry.nodes().await?;
        Ok::<_, RegistryError>(nodes.is_empty().then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(registry.renew(&a.id).await.unwrap(), Renewed::Unknown);
}

#[tokio::test]
async fn record_of_another_version_is_reported_and_stays() {
    let redis = Redis::start().unwrap();
    let registry = RedisRegistry::connect(&settings(&redis.url())).await.unwrap();
    let shared: std::sync::Arc<dyn cluster::Registry> = std::sync::Arc::new(registry.clone());
    let a = node("a");
    let stored = session_of(&shared, &a).await;
    let key = format!("rialto:session:{{{}}}", stored.session);
    assert_eq!(redis.command(&["HSET", &key, "v", "2"]).unwrap(), ":0");
    let stored_fields = || {
        redis
            .command(&["HMGET", &key, "v", "e", "o", "r", "s", "a"])
            .unwrap()
    };
    let before = stored_fields();
    let other = || RegistryError::OtherVersion { found: 2, known: 1 };
    assert_eq!(registry.look_up(stored.session).await, Err(other()));
    assert_eq!(registry.create(&stored, LONG).await, Err(other()));
    let taken = registry.take_over(stored.session, 1, &a.id, LONG).await;
    assert_eq!(taken, Err(other()));
    assert_eq!(registry.release(&claim(&stored)).await, Err(other()));
    assert_eq!(registry.remove(&claim(&stored)).await, Err(other()));
    assert_eq!(stored_fields(), before);
}

#[tokio::test]
async fn limit_whose_key_holds_something_else_is_refused_and_the_key_stays() {
    let redis = Redis::start().unwrap();
    let registry = RedisRegistry::connect(&settings(&redis.url())).await.unwrap();
    redis.command(&["HSET", "rialto:bucket:ann", "a", "b"]).unwrap();
    redis.command(&["SET", "rialto:places:ann", "text"]).unwrap();
    redis.command(&["SET", "rialto:bucket:bob", "text"]).unwrap();
    let demand = TokenDemand {
        per_minute: 60,
        want: 1,
        spent: 0,
    };
    for bucket in ["ann", "bob"] {
        let error = registry.lease_tokens(bucket, demand).await.unwrap_err();
        assert!(matches!(error, RegistryError::Refused(_)), "{error}");
    }
    let demand = SlotDemand {
        limit: 5,
        held: 0,
        want: 1,
    };
    let error = registry
        .lease_slots("ann", &node("a").id, demand)
        .await
        .unwrap_err();
    assert!(matches!(error, RegistryError::Refused(_)), "{error}");
    assert_eq!(redis.command(&["TYPE", "rialto:bucket:ann"]).unwrap(), "+hash");
    assert_eq!(redis.command(&["TYPE", "rialto:places:ann"]).unwrap(), "+string");
}
