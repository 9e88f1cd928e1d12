//! Sign-ins that do not work, and tokens that have ended.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use testkit::authorization_server::browser::{NOTES, PERSON};
use testkit::authorization_server::{AuthorizationServer, Conduct, ResourceMetadata};
use testkit::patience::look_until;
use testkit::rialto::binary;

use crate::home::Home;

/// Signs in at a server, with a browser that does so by itself.
fn login(home: &Home, server: &AuthorizationServer) {
    let browser = format!("'{}'", binary("testkit-browser").display());
    let output = home
        .command(&["login", &server.endpoint()])
        .env("RIALTO_BROWSER", browser)
        .env(NOTES, home.path("windows"))
        .env(PERSON, "signs-in")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Waits until the token of a home has ended.
fn wait_for_the_end(home: &Home, words: &str) {
    let ended = look_until(Duration::from_secs(30), || {
        let output = home.command(&["status"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout)
            .contains(words)
            .then_some(())
    });
    assert!(ended.is_some(), "the token has not ended");
}

#[test]
fn token_that_is_good_is_a_fact() {
    let (home, server) = (Home::new(), AuthorizationServer::start(Conduct::default()));
    login(&home, &server);
    home.doctor(&[])
        .assert_ids(&[])
        .assert_code(0)
        .assert_fact("clients are known by registration")
        .assert_fact("signed in for");
}

#[test]
fn destination_that_wants_a_sign_in_is_named_with_the_line_for_its_address() {
    let (home, server) = (Home::new(), AuthorizationServer::start(Conduct::default()));
    home.configure(&format!(
        "destinations:\n  notes: {{ url: \"{}\" }}\n",
        server.endpoint()
    ));
    home.doctor(&["notes"]).assert_code(11).assert_found(
        "sign_in_needed",
        "",
        &format!("rialto login {}", server.endpoint()),
    );
}

#[test]
fn token_that_has_ended_is_named_with_the_line_to_sign_in_again() {
    let server = AuthorizationServer::start(Conduct {
        expires_in: Some(1),
        refresh_tokens: false,
        ..Conduct::default()
    });
    let home = Home::new();
    login(&home, &server);
    wait_for_the_end(&home, "expired");
    home.doctor(&[])
        .assert_ids(&["token_expired"])
        .assert_code(11)
        .assert_found(
            "token_expired",
            "nothing to renew it with",
            &format!("rialto login {}", server.endpoint()),
        );
}

#[test]
fn token_that_is_not_renewed_is_named() {
    let server = AuthorizationServer::start(Conduct {
        expires_in: Some(1),
        ..Conduct::default()
    });
    let home = Home::new();
    login(&home, &server);
    wait_for_the_end(&home, "renewed when next used");
    server.revoke(true);
    home.doctor(&[])
        .assert_ids(&["token_not_renewed"])
        .assert_code(11)
        .assert_found("token_not_renewed", "was not renewed", "rialto login");
}

#[test]
fn sign_in_without_registration_is_named_with_the_way_out() {
    let server = AuthorizationServer::start(Conduct {
        registration: false,
        ..Conduct::default()
    });
    let home = Home::new();
    home.doctor(&[&server.endpoint()])
        .assert_code(11)
        .assert_found("no_registration", "neither registers programs", "--client-id ID")
        .assert_found("signed_out", "none is stored", "rialto login");
}

#[test]
fn metadata_about_another_resource_are_named() {
    let server = AuthorizationServer::start(Conduct {
        resource_metadata: ResourceMetadata::WellKnownPath,
        resource_overrides: [("resource".to_owned(), json!("https://elsewhere.example/mcp"))].into(),
        ..Conduct::default()
    });
    let home = Home::new();
    let diagnosis = home.doctor(&[&server.endpoint()]);
    diagnosis
        .assert_code(11)
        .assert_found("discovery_fails", "https://elsewhere.example/mcp", "operator");
}

#[test]
fn store_that_others_can_open_is_named_and_closed() {
    let (home, server) = (Home::new(), AuthorizationServer::start(Conduct::default()));
    login(&home, &server);
    let store = ".local/state/rialto/sign-in";
    assert!(Path::new(&home.path(store)).is_dir());
    home.set_mode(store, 0o755);
    home.doctor(&[])
        .assert_ids(&["store_readable"])
        .assert_code(11)
        .assert_found("store_readable", "other users", "chmod 700");
    home.doctor(&["--fix"]).assert_code(0);
    assert_eq!(home.mode(store), 0o700);
    home.doctor(&[]).assert_ids(&[]);
}
