//! Signing in through `rialto connect` against attackers (rows G8 to G11): nothing is opened,
//! nothing is sent, nothing is kept where others could read it. What each refusal is called is
//! shown in `crates/oauth/tests/sign_in/hostile.rs`; here it is the program.
//!
//! The browser is `testkit-browser`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::authorization_server::browser::{NOTES, PERSON, visit};
use testkit::authorization_server::{AuthorizationServer, Conduct};
use testkit::{Host, Sandbox};

const PATIENCE: Duration = Duration::from_secs(60);

/// What the browser wrote down.
fn notes(home: &Path) -> Vec<String> {
    let notes = std::fs::read_to_string(home.join("notes")).unwrap_or_default();
    notes.lines().map(str::to_owned).collect()
}

/// A host that has sent its `initialize`.
fn connect(home: &Path, authorization_server: &AuthorizationServer, person: &str) -> Host {
    connect_in(None, home, authorization_server, person)
}

fn connect_in(
    sandbox: Option<&Sandbox>,
    home: &Path,
    authorization_server: &AuthorizationServer,
    person: &str,
) -> Host {
    let browser = format!("'{}'", testkit::rialto::binary("testkit-browser").display());
    let notes = home.join("notes");
    let mut env = vec![
        ("RIALTO_BROWSER", browser.as_str()),
        ("RIALTO_STATE_DIR", home.to_str().unwrap()),
        ("RIALTO_KEYRING", "off"),
        (NOTES, notes.to_str().unwrap()),
        (PERSON, person),
    ];
    let of_the_sandbox = sandbox.map(Sandbox::env);
    env.extend(
        of_the_sandbox
            .iter()
            .flatten()
            .map(|(name, value)| (*name, value.as_str())),
    );
    let host = Host::start(&["connect", &authorization_server.endpoint()], &env).unwrap();
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}});
    host.ask(1, "initialize", params).unwrap();
    host
}

/// The host receives an error, no page was opened, no code was exchanged, nothing is kept.
async fn assert_refused_unopened(what: &str, conduct: Conduct) {
    let (home, sandbox) = (tempfile::tempdir().unwrap(), Sandbox::new().unwrap());
    let authorization_server = AuthorizationServer::start(conduct);
    let host = connect_in(Some(&sandbox), home.path(), &authorization_server, "signs-in");
    let answer = host.answer(1).await;
    assert_eq!(answer["error"]["code"], -32603, "{what}: {answer}");
    let connections = sandbox.connections().unwrap();
    assert!(
        !connections.is_empty() && connections.iter().all(|address| address == "127.0.0.1"),
        "{what}: {connections:?}"
    );
    assert!(notes(home.path()).is_empty(), "{what}: a page was opened");
    for path in ["/authorize", "/token"] {
        assert!(authorization_server.seen(path).is_empty(), "{what}: {path}");
    }
    host.close_stdin();
    host.wait(PATIENCE).await;
    for line in host.stderr() {
        assert!(!line.contains('\u{1b}'), "{what}: {line:?}");
    }
}

fn overrides(members: &[(&str, Value)]) -> BTreeMap<String, Value> {
    let owned = |(name, value): &(&str, Value)| ((*name).to_owned(), value.clone());
    members.iter().map(owned).collect()
}

fn authority_saying(member: &str, value: Value) -> Conduct {
    Conduct {
        server_overrides: overrides(&[(member, value)]),
        ..Conduct::default()
    }
}

#[tokio::test]
async fn g08_pages_that_are_no_web_pages_are_not_opened_by_connect() {
    for url in [
        "javascript:alert(1)",
        "file:///bin/sh",
        "-flag",
        "$(touch pwned)",
        "http://example.com/; touch pwned",
        "https://\u{1b}]0;title\u{7}/",
    ] {
        assert_refused_unopened(url, authority_saying("authorization_endpoint", json!(url))).await;
    }
}

#[tokio::test]
async fn g08_documents_that_lie_are_refused_by_connect() {
    let padded = Conduct {
        padding: 10_000_000,
        ..Conduct::default()
    };
    let other_resource = Conduct {
        resource_overrides: overrides(&[("resource", json!("https://evil.example/mcp"))]),
        ..Conduct::default()
    };
    for (what, conduct) in [
        ("ten megabytes", padded),
        (
            "another issuer",
            authority_saying("issuer", json!("https://evil.example")),
        ),
        (
            "no PKCE",
            authority_saying("code_challenge_methods_supported", json!(null)),
        ),
        (
            "plain PKCE",
            authority_saying("code_challenge_methods_supported", json!(["plain"])),
        ),
        ("another resource", other_resource),
    ] {
        assert_refused_unopened(what, conduct).await;
    }
}

#[tokio::test]
async fn g08_an_answer_of_another_issuer_is_refused_by_connect_and_no_code_is_sent() {
    let home = tempfile::tempdir().unwrap();
    let authorization_server = AuthorizationServer::start(Conduct {
        answer_issuer: Some("https://evil.example".into()),
        ..Conduct::default()
    });
    let host = connect(home.path(), &authorization_server, "signs-in");
    let answer = host.answer(1).await;
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    assert!(authorization_server.seen("/token").is_empty());
    let notes = notes(home.path());
    assert!(
        notes.last().is_some_and(|note| note.starts_with("400 ")),
        "{notes:?}"
    );
}

#[tokio::test]
async fn g09_connect_asks_no_inner_address_that_a_server_names() {
    for place in [
        "https://169.254.169.254",
        "http://169.254.169.254",
        "https://10.0.0.1",
        "https://2852039166",
        "https://0251.0376.0251.0376",
        "https://[::ffff:169.254.169.254]",
        "https://[fe80::1]",
        "https://192.168.1.1",
    ] {
        let named = Conduct {
            resource_overrides: overrides(&[("authorization_servers", json!([place]))]),
            ..Conduct::default()
        };
        assert_refused_unopened(place, named).await;
        let redirected = Conduct {
            redirect_metadata_to: Some(format!("{place}/.well-known/oauth-authorization-server")),
            ..Conduct::default()
        };
        assert_refused_unopened(&format!("a redirect to {place}"), redirected).await;
    }
}

#[tokio::test]
async fn g10_only_the_right_callback_reaches_connect_and_then_its_listener_closes() {
    let home = tempfile::tempdir().unwrap();
    let authorization_server = AuthorizationServer::start(Conduct::default());
    let host = connect(home.path(), &authorization_server, "meddles");
    let answer = host.answer(1).await;
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
    testkit::wait_until("the browser has seen the end", PATIENCE, || {
        (notes(home.path()).len() == 6).then_some(())
    })
    .await;
    let notes = notes(home.path());
    assert_eq!(notes[..5], ["opened", "403", "404", "405", "400"]);
    let (status, door) = notes[5].split_once(' ').unwrap();
    assert_eq!(status, "200");
    assert!(visit(door).is_err(), "the program runs, and the door is shut");
    assert_eq!(authorization_server.seen("/token").len(), 1);
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

#[tokio::test]
async fn g11_files_of_connect_are_for_their_owner_only_and_links_are_not_followed() {
    let home = tempfile::tempdir().unwrap();
    let authorization_server = AuthorizationServer::start(Conduct::default());
    let host = connect(home.path(), &authorization_server, "signs-in");
    assert!(host.answer(1).await["result"].is_object());
    host.close_stdin();
    host.wait(PATIENCE).await;
    let folder = home.path().join("sign-in");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let kept = files(&folder);
    assert!(!kept.is_empty());
    for file in &kept {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }

    // A link to a file of the attacker's choice, in the place of what is kept.
    let token = kept
        .iter()
        .find(|file| std::fs::read_to_string(file).unwrap().contains("access-"))
        .unwrap();
    let victim = home.path().join("victim");
    std::fs::rename(token, &victim).unwrap();
    let before = std::fs::read_to_string(&victim).unwrap();
    symlink(&victim, token).unwrap();
    let earlier = authorization_server.seen("/mcp").len();
    let host = connect(home.path(), &authorization_server, "signs-in");
    let answer = host.answer(1).await;
    host.close_stdin();
    host.wait(PATIENCE).await;
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), before);
    for seen in &authorization_server.seen("/mcp")[earlier..] {
        let shown = seen.authorization.as_deref().unwrap_or("nothing at all");
        let token = shown.trim_start_matches("Bearer ");
        assert!(
            !before.contains(token),
            "the token behind the link was used: {answer}"
        );
    }
}
