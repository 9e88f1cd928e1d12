//! Hosts that start `rialto connect` several times, and kill it at any moment: one person signs in,
//! once.
//!
//! The browser is `testkit-browser`. It notes that it was opened, and either signs in or leaves the
//! page as it is.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use testkit::authorization_server::browser::{NOTES, PERSON};
use testkit::authorization_server::{
    AuthorizationServer, AuthorizationServerMetadata, Conduct, ResourceMetadata,
};
use testkit::{Host, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

fn connect(home: &Path, authorization_server: &AuthorizationServer, person: &str) -> Host {
    connect_with(home, authorization_server, person, &[], &[])
}

/// The same, with more flags and variables, as they stand in a host's entry.
fn connect_with(
    home: &Path,
    authorization_server: &AuthorizationServer,
    person: &str,
    flags: &[&str],
    variables: &[(&str, &str)],
) -> Host {
    let browser = format!("'{}'", testkit::rialto::binary("testkit-browser").display());
    let notes = home.join("windows");
    let mut env = vec![
        ("RIALTO_BROWSER", browser.as_str()),
        ("RIALTO_STATE_DIR", home.to_str().unwrap()),
        ("RIALTO_KEYRING", "off"),
        (NOTES, notes.to_str().unwrap()),
        (PERSON, person),
    ];
    env.extend_from_slice(variables);
    let endpoint = authorization_server.endpoint();
    let words: Vec<&str> = ["connect", &endpoint]
        .into_iter()
        .chain(flags.iter().copied())
        .collect();
    let host = Host::start(&words, &env).unwrap();
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}});
    host.ask(1, "initialize", params).unwrap();
    host
}

fn windows(home: &Path) -> usize {
    let opened = std::fs::read_to_string(home.join("windows"));
    opened.map_or(0, |text| text.lines().filter(|line| *line == "opened").count())
}

async fn assert_signed_in(host: &Host) {
    let answer = host.answer(1).await;
    assert_eq!(
        answer["result"]["protocolVersion"],
        "2025-11-25",
        "{answer} {:?}",
        host.stderr()
    );
}

#[tokio::test]
async fn ten_at_once_open_one_window_and_all_are_signed_in() {
    let home = tempfile::tempdir().unwrap();
    let authorization_server = AuthorizationServer::start(Conduct::default());
    let hosts: Vec<Host> = (0..10)
        .map(|_| connect(home.path(), &authorization_server, "signs-in"))
        .collect();
    for host in &hosts {
        assert_signed_in(host).await;
    }
    assert_eq!(windows(home.path()), 1);
    assert_eq!(authorization_server.seen("/token").len(), 1);
    assert_eq!(authorization_server.seen("/register").len(), 1);
    for host in &hosts {
        host.close_stdin();
        assert_eq!(host.wait(PATIENCE).await.code(), Some(0));
    }
}

#[tokio::test]
async fn copy_killed_during_sign_in_frees_the_waiting_ones_and_the_next_start_recovers() {
    let home = tempfile::tempdir().unwrap();
    let authorization_server = AuthorizationServer::start(Conduct::default());
    let killed = connect(home.path(), &authorization_server, "leaves");
    let opened = || (windows(home.path()) == 1).then_some(());
    wait_until("a window is open", PATIENCE, opened).await;
    let waiting: Vec<Host> = (0..9)
        .map(|_| connect(home.path(), &authorization_server, "signs-in"))
        .collect();
    killed.signal(Signal::KILL);
    killed.wait(PATIENCE).await;
    for host in &waiting {
        assert_signed_in(host).await;
    }
    assert_eq!(
        windows(home.path()),
        2,
        "one of the waiting copies opened another"
    );
    let next = connect(home.path(), &authorization_server, "leaves");
    assert_signed_in(&next).await;
    assert_eq!(windows(home.path()), 2, "what they have is there for the next");
}

fn by_hand(secret: &str) -> Conduct {
    Conduct {
        client_by_hand: Some(("robot".into(), Some(secret.into()))),
        registration: false,
        ..Conduct::default()
    }
}

#[tokio::test]
async fn client_credentials_work_from_a_hosts_entry_alone() {
    let authorization_server = AuthorizationServer::start(by_hand("hush"));
    let flags = [
        "--client-id",
        "robot",
        "--client-secret-env",
        "ROBOT",
        "--grant",
        "client-credentials",
    ];
    let variables = [
        ("RIALTO_CLIENT_ID", "robot"),
        ("RIALTO_CLIENT_SECRET", "hush"),
        ("RIALTO_GRANT", "client-credentials"),
        ("RIALTO_SCOPE", "read write"),
    ];
    let home = tempfile::tempdir().unwrap();
    let by_flags = connect_with(
        home.path(),
        &authorization_server,
        "leaves",
        &flags,
        &[("ROBOT", "hush")],
    );
    assert_signed_in(&by_flags).await;
    assert_eq!(windows(home.path()), 0);
    let home = tempfile::tempdir().unwrap();
    let by_variables = connect_with(home.path(), &authorization_server, "leaves", &[], &variables);
    assert_signed_in(&by_variables).await;
    assert_eq!(windows(home.path()), 0);
    let scopes: Vec<_> = authorization_server
        .seen("/token")
        .iter()
        .map(|seen| seen.form.get("scope").cloned())
        .collect();
    assert_eq!(scopes, [None, Some("read write".to_owned())]);
}

#[tokio::test]
async fn a_client_registered_by_hand_works_from_a_hosts_entry_alone() {
    let home = tempfile::tempdir().unwrap();
    let authorization_server = AuthorizationServer::start(by_hand("hush"));
    let issuer = authorization_server.issuer();
    let flags = [
        "--client-id",
        "robot",
        "--client-secret-env",
        "ROBOT",
        "--issuer",
        &issuer,
        "--scope",
        "read",
    ];
    let host = connect_with(
        home.path(),
        &authorization_server,
        "signs-in",
        &flags,
        &[("ROBOT", "hush")],
    );
    assert_signed_in(&host).await;
    assert_eq!(windows(home.path()), 1);
    assert!(authorization_server.seen("/register").is_empty());
}

#[tokio::test]
async fn a_401_without_oauth_metadata_names_the_bearer_token() {
    let home = tempfile::tempdir().unwrap();
    let authorization_server = AuthorizationServer::start(Conduct {
        resource_metadata: ResourceMetadata::Absent,
        server_metadata: AuthorizationServerMetadata::Absent,
        registration: false,
        ..Conduct::default()
    });
    let host = connect(home.path(), &authorization_server, "leaves");
    let answer = host.answer(1).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("BEARER_TOKEN") && message.contains("--header"),
        "{message}"
    );
}

/// What `connect` and a gateway do when a server they are signed in at names an impostor of its
/// authorization server.
#[tokio::test]
async fn h13_a_server_that_turns_hostile_gets_no_refresh_token() {
    let home = tempfile::tempdir().unwrap();
    let authorization_server = AuthorizationServer::start(Conduct::default());
    assert_signed_in(&connect(home.path(), &authorization_server, "signs-in")).await;
    let thief = AuthorizationServer::start(Conduct {
        metadata_path: Some("/.well-known/about".into()),
        server_overrides: [("issuer".to_owned(), json!(authorization_server.issuer()))].into(),
        ..Conduct::default()
    });
    let named = json!([thief.url("/.well-known/about")]);
    authorization_server.change(|conduct| {
        conduct
            .resource_overrides
            .insert("authorization_servers".into(), named);
    });
    authorization_server.revoke(false);
    let host = connect(home.path(), &authorization_server, "signs-in");
    let answer = host.answer(1).await;
    assert!(answer["error"]["message"].is_string(), "{answer}");
    let config = format!(
        "destinations: {{ far: {{ url: '{}', auth: oauth }} }}\n",
        authorization_server.endpoint()
    );
    let gateway = testkit::Rialto::launcher()
        .verb(&["serve", "--listen", "127.0.0.1:0", "--log-format", "json"])
        .env("RIALTO_STATE_DIR", home.path().to_str().unwrap())
        .env("RIALTO_KEYRING", "off")
        .config(&config)
        .start()
        .await
        .unwrap();
    let client = gateway.client_of("far").await.unwrap();
    let refused = client.initialize("2025-11-25", json!({})).await.unwrap();
    assert_eq!(refused.outcome_status(), 502, "{refused:?}");
    assert!(thief.seen("/token").is_empty(), "{:?}", thief.seen("/token"));
}
