//! A remote server turns hostile: tokens, codes and client secrets go to the issuer that gave them, and nowhere else.
//!
//! The honest authority is resource and authorization server in one. "The resource turns" means that its document
//! names an authorization server of the thief's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "stage/play.rs"]
mod play;

use std::collections::BTreeMap;

use oauth::{Grant, LogoutOutcome, Secret, Settings, SignIn, SignInError};
use play::{Play, authority_says};
use serde_json::{Value, json};
use testkit::authorization_server::{AuthorizationServer, Conduct};

/// An address that ends in no well-known form, so that no issuer can be read from it.
const ODD_PLACE: &str = "/.well-known/about";

/// Publishes metadata that claims the honest issuer and sign-in page, with the thief's own endpoints for the rest.
fn impostor(honest: &AuthorizationServer) -> AuthorizationServer {
    AuthorizationServer::start(Conduct {
        metadata_path: Some(ODD_PLACE.into()),
        server_overrides: BTreeMap::from([
            ("issuer".to_owned(), json!(honest.issuer())),
            (
                "authorization_endpoint".to_owned(),
                json!(honest.url("/authorize")),
            ),
            ("registration_endpoint".to_owned(), json!(honest.url("/register"))),
        ]),
        ..Conduct::default()
    })
}

fn names(resource: &AuthorizationServer, authorization_server: &str) {
    let named = json!([authorization_server]);
    resource.change(|conduct| {
        conduct
            .resource_overrides
            .insert("authorization_servers".into(), named);
    });
}

fn authority_now_says(authorization_server: &AuthorizationServer, member: &str, value: Value) {
    authorization_server.change(|conduct| {
        conduct.server_overrides.insert(member.into(), value);
    });
}

/// No request but for public documents has reached this host.
fn got_nothing(thief: &AuthorizationServer) {
    for path in ["/token", "/revoke", "/register", "/authorize"] {
        assert!(thief.seen(path).is_empty(), "{path}: {:?}", thief.seen(path));
    }
}

fn robot(play: &Play) -> Settings {
    let mut settings = Settings {
        grant: Grant::ClientCredentials,
        ..play.alone()
    };
    settings.identity.client_id = Some("robot".into());
    settings.identity.client_secret = Some(Secret::new("hush"));
    settings
}

fn robot_known() -> Conduct {
    Conduct {
        client_by_hand: Some(("robot".into(), Some("hush".into()))),
        ..Conduct::default()
    }
}

#[tokio::test]
async fn h13_refresh_token_is_not_sent_to_an_impostor_of_its_issuer() {
    let play = Play::new(Conduct::default());
    assert_eq!(play.call_as(play.attended()).await.unwrap(), 200);
    let thief = impostor(&play.authorization_server);
    names(&play.authorization_server, &thief.url(ODD_PLACE));
    play.authorization_server.revoke(false);
    let error = play.call_as(play.alone()).await.unwrap_err();
    got_nothing(&thief);
    assert!(matches!(error, SignInError::Metadata { .. }), "{error}");
}

#[tokio::test]
async fn h13_client_secret_is_not_sent_to_an_impostor_of_its_issuer() {
    let play = Play::new(robot_known());
    assert_eq!(play.call_as(robot(&play)).await.unwrap(), 200);
    let thief = impostor(&play.authorization_server);
    names(&play.authorization_server, &thief.url(ODD_PLACE));
    play.authorization_server.revoke(true);
    for settings in [robot(&play), play.alone()] {
        let error = play.call_as(settings).await.unwrap_err();
        got_nothing(&thief);
        assert!(matches!(error, SignInError::Metadata { .. }), "{error}");
    }
}

#[tokio::test]
async fn h13_code_and_verifier_are_not_sent_to_an_impostor_of_the_issuer() {
    let play = Play::new(Conduct::default());
    let thief = impostor(&play.authorization_server);
    names(&play.authorization_server, &thief.url(ODD_PLACE));
    let error = play.call_as(play.attended()).await.unwrap_err();
    got_nothing(&thief);
    assert_eq!(play.windows(), 0);
    assert!(matches!(error, SignInError::Metadata { .. }), "{error}");
}

#[tokio::test]
async fn h13_logout_revokes_nothing_at_an_impostor_of_the_issuer() {
    let play = Play::new(Conduct::default());
    assert_eq!(play.call_as(play.attended()).await.unwrap(), 200);
    let thief = impostor(&play.authorization_server);
    names(&play.authorization_server, &thief.url(ODD_PLACE));
    let outcome = SignIn::new(play.alone()).logout().await.unwrap();
    got_nothing(&thief);
    assert!(matches!(outcome, LogoutOutcome::Forgotten { .. }), "{outcome:?}");
}

#[tokio::test]
async fn h13_a_moved_token_endpoint_gets_no_refresh_token_without_a_new_sign_in() {
    let play = Play::new(Conduct::default());
    assert_eq!(play.call_as(play.attended()).await.unwrap(), 200);
    let thief = AuthorizationServer::start(Conduct::default());
    authority_now_says(
        &play.authorization_server,
        "token_endpoint",
        json!(thief.url("/token")),
    );
    play.authorization_server.revoke(false);
    let error = play.call_as(play.alone()).await.unwrap_err();
    got_nothing(&thief);
    assert!(matches!(error, SignInError::LoginNeeded { .. }), "{error}");
}

#[tokio::test]
async fn h13_a_moved_token_endpoint_gets_no_client_secret_without_a_new_sign_in() {
    let play = Play::new(robot_known());
    assert_eq!(play.call_as(robot(&play)).await.unwrap(), 200);
    let thief = AuthorizationServer::start(Conduct::default());
    authority_now_says(
        &play.authorization_server,
        "token_endpoint",
        json!(thief.url("/token")),
    );
    play.authorization_server.revoke(true);
    for settings in [robot(&play), play.alone()] {
        let error = play.call_as(settings).await.unwrap_err();
        got_nothing(&thief);
        assert!(error.to_string().contains("rialto login"), "{error}");
    }
}

#[tokio::test]
async fn h13_a_moved_revocation_endpoint_gets_no_token() {
    for moved in ["revocation_endpoint", "token_endpoint"] {
        let play = Play::new(Conduct::default());
        assert_eq!(play.call_as(play.attended()).await.unwrap(), 200);
        let thief = AuthorizationServer::start(Conduct::default());
        authority_now_says(&play.authorization_server, moved, json!(thief.url("/revoke")));
        let outcome = SignIn::new(play.alone()).logout().await.unwrap();
        got_nothing(&thief);
        assert!(play.authorization_server.seen("/revoke").is_empty(), "{moved}");
        assert!(matches!(outcome, LogoutOutcome::Forgotten { .. }), "{outcome:?}");
    }
}

#[tokio::test]
async fn h13_an_authorization_endpoint_with_oauth_parameters_is_not_opened() {
    for parameter in [
        "client_id",
        "redirect_uri",
        "state",
        "response_type",
        "request",
        "request_uri",
        "scope",
        "code_challenge",
        "%73tate",
        "State",
    ] {
        let play = Play::new(Conduct::default());
        let endpoint = play
            .authorization_server
            .url(&format!("/authorize?tenant=1&{parameter}=x"));
        authority_now_says(
            &play.authorization_server,
            "authorization_endpoint",
            json!(endpoint),
        );
        let error = play.call_as(play.attended()).await.unwrap_err();
        assert_eq!(play.windows(), 0, "{parameter}: {error}");
        assert!(
            matches!(error, SignInError::AuthorizationParameters { .. }),
            "{parameter}: {error}"
        );
    }
    let play = Play::new(Conduct::default());
    let endpoint = play.authorization_server.url("/authorize?tenant=1");
    authority_now_says(
        &play.authorization_server,
        "authorization_endpoint",
        json!(endpoint),
    );
    assert_eq!(play.call_as(play.attended()).await.unwrap(), 200);
}

#[tokio::test]
async fn h13_client_secret_belongs_to_the_first_issuer_until_a_person_names_another() {
    let play = Play::new(robot_known());
    assert_eq!(play.call_as(robot(&play)).await.unwrap(), 200);
    // This one is honest about itself; it is only another one.
    let other = AuthorizationServer::start(robot_known());
    names(&play.authorization_server, &other.issuer());
    play.authorization_server.revoke(true);
    let error = play.call_as(robot(&play)).await.unwrap_err();
    got_nothing(&other);
    let advice = format!("--issuer {}", other.issuer());
    assert!(error.to_string().contains(&advice), "{error}");
    let error = SignIn::new(robot(&play)).login().await.unwrap_err();
    got_nothing(&other);
    assert!(matches!(error, SignInError::OtherIssuer { .. }), "{error}");
    let mut allowed = robot(&play);
    allowed.identity.issuer = Some(other.issuer());
    SignIn::new(allowed).login().await.unwrap();
    assert_eq!(other.seen("/token").len(), 1);
}

#[tokio::test]
async fn h13_a_failed_first_use_binds_the_secret_as_well() {
    let play = Play::new(Conduct::default());
    assert!(play.call_as(robot(&play)).await.is_err(), "an unknown client");
    assert!(!play.authorization_server.seen("/token").is_empty());
    let other = AuthorizationServer::start(robot_known());
    names(&play.authorization_server, &other.issuer());
    let error = play.call_as(robot(&play)).await.unwrap_err();
    got_nothing(&other);
    assert!(matches!(error, SignInError::OtherIssuer { .. }), "{error}");
}

#[tokio::test]
async fn h13_a_named_issuer_is_the_only_one() {
    for grant in [Grant::ClientCredentials, Grant::AuthorizationCode] {
        let play = Play::new(robot_known());
        let mut settings = Settings {
            grant,
            ..play.attended()
        };
        settings.identity.client_id = Some("robot".into());
        settings.identity.client_secret = Some(Secret::new("hush"));
        settings.identity.issuer = Some("https://honest.example".into());
        let error = play.call_as(settings.clone()).await.unwrap_err();
        assert!(matches!(error, SignInError::NotTheIssuer { .. }), "{error}");
        got_nothing(&play.authorization_server);
        settings.identity.issuer = Some(format!("{}/", play.authorization_server.issuer()));
        assert_eq!(play.call_as(settings).await.unwrap(), 200);
    }
}

#[tokio::test]
async fn h13_a_code_is_not_sent_to_another_origin_than_it_came_from_without_iss() {
    // Its refusal is enough to see that the page was opened.
    let honest = AuthorizationServer::start(Conduct {
        denies: Some("access_denied".into()),
        ..Conduct::default()
    });
    let page = honest.url("/authorize");
    let play = Play::new(authority_says("authorization_endpoint", json!(page)));
    let error = play.call_as(play.attended()).await.unwrap_err();
    let text = error.to_string();
    assert_eq!(play.windows(), 0, "{text}");
    for named in [
        honest.url(""),
        play.authorization_server.url(""),
        "--allow-split-authority".into(),
    ] {
        assert!(text.contains(&named), "{named} is missing: {text}");
    }
    let allowed = Settings {
        allow_split_authority: true,
        ..play.attended()
    };
    let error = play.call_as(allowed).await.unwrap_err();
    assert!(matches!(error, SignInError::Denied { .. }), "{error}");
    authority_now_says(
        &play.authorization_server,
        "authorization_response_iss_parameter_supported",
        json!(true),
    );
    let error = play.call_as(play.attended()).await.unwrap_err();
    assert!(matches!(error, SignInError::WrongIssuer { .. }), "{error}");
}
