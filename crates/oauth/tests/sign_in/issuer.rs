//! A remote server turns hostile: tokens, codes and client secrets go to the issuer that gave them,
//! and nowhere else.
//!
//! The honest authority is resource and authorization server in one. "The resource turns" means
//! that its document names an authorization server of the thief's.

use std::collections::BTreeMap;

use crate::fixture::{Fixture, server_metadata};
use oauth::{Grant, LogoutOutcome, Secret, Settings, SignIn, SignInError};
use serde_json::{Value, json};
use testkit::authorization_server::{AuthorizationServer, Conduct};

/// An address that ends in no well-known form, so that no issuer can be read from it.
const ODD_PLACE: &str = "/.well-known/about";

/// Publishes metadata that claims the honest issuer and sign-in page, with the thief's own
/// endpoints for the rest.
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

fn names(resource: &AuthorizationServer, authority: &str) {
    let named = json!([authority]);
    resource.change(|conduct| {
        conduct
            .resource_overrides
            .insert("authorization_servers".into(), named);
    });
}

fn change_server_metadata(authority: &AuthorizationServer, member: &str, value: Value) {
    authority.change(|conduct| {
        conduct.server_overrides.insert(member.into(), value);
    });
}

/// No request but for public documents has reached this host.
fn got_nothing(thief: &AuthorizationServer) {
    for path in ["/token", "/revoke", "/register", "/authorize"] {
        assert!(thief.seen(path).is_empty(), "{path}: {:?}", thief.seen(path));
    }
}

fn robot(fixture: &Fixture) -> Settings {
    let mut settings = Settings {
        grant: Grant::ClientCredentials,
        ..fixture.alone()
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
    let fixture = Fixture::new(Conduct::default());
    assert_eq!(fixture.call_as(fixture.attended()).await.unwrap(), 200);
    let thief = impostor(&fixture.authority);
    names(&fixture.authority, &thief.url(ODD_PLACE));
    fixture.authority.revoke(false);
    let error = fixture.call_as(fixture.alone()).await.unwrap_err();
    got_nothing(&thief);
    assert!(matches!(error, SignInError::Metadata { .. }), "{error}");
}

#[tokio::test]
async fn h13_client_secret_is_not_sent_to_an_impostor_of_its_issuer() {
    let fixture = Fixture::new(robot_known());
    assert_eq!(fixture.call_as(robot(&fixture)).await.unwrap(), 200);
    let thief = impostor(&fixture.authority);
    names(&fixture.authority, &thief.url(ODD_PLACE));
    fixture.authority.revoke(true);
    for settings in [robot(&fixture), fixture.alone()] {
        let error = fixture.call_as(settings).await.unwrap_err();
        got_nothing(&thief);
        assert!(matches!(error, SignInError::Metadata { .. }), "{error}");
    }
}

#[tokio::test]
async fn h13_code_and_verifier_are_not_sent_to_an_impostor_of_the_issuer() {
    let fixture = Fixture::new(Conduct::default());
    let thief = impostor(&fixture.authority);
    names(&fixture.authority, &thief.url(ODD_PLACE));
    let error = fixture.call_as(fixture.attended()).await.unwrap_err();
    got_nothing(&thief);
    assert_eq!(fixture.windows(), 0);
    assert!(matches!(error, SignInError::Metadata { .. }), "{error}");
}

#[tokio::test]
async fn h13_logout_revokes_nothing_at_an_impostor_of_the_issuer() {
    let fixture = Fixture::new(Conduct::default());
    assert_eq!(fixture.call_as(fixture.attended()).await.unwrap(), 200);
    let thief = impostor(&fixture.authority);
    names(&fixture.authority, &thief.url(ODD_PLACE));
    let outcome = SignIn::new(fixture.alone()).logout().await.unwrap();
    got_nothing(&thief);
    assert!(matches!(outcome, LogoutOutcome::Forgotten { .. }), "{outcome:?}");
}

#[tokio::test]
async fn h13_moved_token_endpoint_gets_no_refresh_token_without_a_new_sign_in() {
    let fixture = Fixture::new(Conduct::default());
    assert_eq!(fixture.call_as(fixture.attended()).await.unwrap(), 200);
    let thief = AuthorizationServer::start(Conduct::default());
    change_server_metadata(&fixture.authority, "token_endpoint", json!(thief.url("/token")));
    fixture.authority.revoke(false);
    let error = fixture.call_as(fixture.alone()).await.unwrap_err();
    got_nothing(&thief);
    assert!(matches!(error, SignInError::LoginNeeded { .. }), "{error}");
}

#[tokio::test]
async fn h13_moved_token_endpoint_gets_no_client_secret_without_a_new_sign_in() {
    let fixture = Fixture::new(robot_known());
    assert_eq!(fixture.call_as(robot(&fixture)).await.unwrap(), 200);
    let thief = AuthorizationServer::start(Conduct::default());
    change_server_metadata(&fixture.authority, "token_endpoint", json!(thief.url("/token")));
    fixture.authority.revoke(true);
    for settings in [robot(&fixture), fixture.alone()] {
        let error = fixture.call_as(settings).await.unwrap_err();
        got_nothing(&thief);
        assert!(error.to_string().contains("rialto login"), "{error}");
    }
}

#[tokio::test]
async fn h13_moved_revocation_endpoint_gets_no_token() {
    for moved in ["revocation_endpoint", "token_endpoint"] {
        let fixture = Fixture::new(Conduct::default());
        assert_eq!(fixture.call_as(fixture.attended()).await.unwrap(), 200);
        let thief = AuthorizationServer::start(Conduct::default());
        change_server_metadata(&fixture.authority, moved, json!(thief.url("/revoke")));
        let outcome = SignIn::new(fixture.alone()).logout().await.unwrap();
        got_nothing(&thief);
        assert!(fixture.authority.seen("/revoke").is_empty(), "{moved}");
        assert!(matches!(outcome, LogoutOutcome::Forgotten { .. }), "{outcome:?}");
    }
}

#[tokio::test]
async fn h13_revocation_endpoint_at_another_origin_gets_no_token_from_the_start() {
    let fixture = Fixture::new(Conduct::default());
    let thief = AuthorizationServer::start(Conduct::default());
    change_server_metadata(
        &fixture.authority,
        "revocation_endpoint",
        json!(thief.url("/revoke")),
    );
    assert_eq!(fixture.call_as(fixture.attended()).await.unwrap(), 200);
    let outcome = SignIn::new(fixture.alone()).logout().await.unwrap();
    got_nothing(&thief);
    assert!(matches!(outcome, LogoutOutcome::Forgotten { .. }), "{outcome:?}");
}

#[tokio::test]
async fn h13_code_is_not_sent_to_a_named_server_that_claims_another_issuer() {
    let fixture = Fixture::new(Conduct::default());
    let thief = impostor(&fixture.authority);
    names(&fixture.authority, &thief.issuer());
    assert!(fixture.call_as(fixture.attended()).await.is_err());
    got_nothing(&thief);
}

#[tokio::test]
async fn h13_authorization_endpoint_with_oauth_parameters_is_not_opened() {
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
        let fixture = Fixture::new(Conduct::default());
        let endpoint = fixture
            .authority
            .url(&format!("/authorize?tenant=1&{parameter}=x"));
        change_server_metadata(&fixture.authority, "authorization_endpoint", json!(endpoint));
        let error = fixture.call_as(fixture.attended()).await.unwrap_err();
        assert_eq!(fixture.windows(), 0, "{parameter}: {error}");
        assert!(
            matches!(error, SignInError::AuthorizationParameters { .. }),
            "{parameter}: {error}"
        );
    }
    let fixture = Fixture::new(Conduct::default());
    let endpoint = fixture.authority.url("/authorize?tenant=1");
    change_server_metadata(&fixture.authority, "authorization_endpoint", json!(endpoint));
    assert_eq!(fixture.call_as(fixture.attended()).await.unwrap(), 200);
}

#[tokio::test]
async fn h13_client_secret_belongs_to_the_first_issuer_until_the_operator_names_another() {
    let fixture = Fixture::new(robot_known());
    assert_eq!(fixture.call_as(robot(&fixture)).await.unwrap(), 200);
    // This one is honest about itself; it is only another server.
    let other = AuthorizationServer::start(robot_known());
    names(&fixture.authority, &other.issuer());
    fixture.authority.revoke(true);
    let error = fixture.call_as(robot(&fixture)).await.unwrap_err();
    got_nothing(&other);
    let advice = format!("--issuer {}", other.issuer());
    assert!(error.to_string().contains(&advice), "{error}");
    let error = SignIn::new(robot(&fixture)).login().await.unwrap_err();
    got_nothing(&other);
    assert!(matches!(error, SignInError::OtherIssuer { .. }), "{error}");
    let mut allowed = robot(&fixture);
    allowed.identity.issuer = Some(other.issuer());
    SignIn::new(allowed).login().await.unwrap();
    assert_eq!(other.seen("/token").len(), 1);
}

#[tokio::test]
async fn h13_failed_first_use_binds_the_secret_as_well() {
    let fixture = Fixture::new(Conduct::default());
    assert!(
        fixture.call_as(robot(&fixture)).await.is_err(),
        "an unknown client"
    );
    assert!(!fixture.authority.seen("/token").is_empty());
    let other = AuthorizationServer::start(robot_known());
    names(&fixture.authority, &other.issuer());
    let error = fixture.call_as(robot(&fixture)).await.unwrap_err();
    got_nothing(&other);
    assert!(matches!(error, SignInError::OtherIssuer { .. }), "{error}");
}

#[tokio::test]
async fn h13_named_issuer_is_the_only_one() {
    for grant in [Grant::ClientCredentials, Grant::AuthorizationCode] {
        let fixture = Fixture::new(robot_known());
        let mut settings = Settings {
            grant,
            ..fixture.attended()
        };
        settings.identity.client_id = Some("robot".into());
        settings.identity.client_secret = Some(Secret::new("hush"));
        settings.identity.issuer = Some("https://honest.example".into());
        let error = fixture.call_as(settings.clone()).await.unwrap_err();
        assert!(matches!(error, SignInError::NotTheIssuer { .. }), "{error}");
        got_nothing(&fixture.authority);
        settings.identity.issuer = Some(format!("{}/", fixture.authority.issuer()));
        assert_eq!(fixture.call_as(settings).await.unwrap(), 200);
    }
}

#[tokio::test]
async fn h13_code_is_not_sent_to_another_origin_than_it_came_from_without_iss() {
    // Its refusal is enough to see that the page was opened.
    let honest = AuthorizationServer::start(Conduct {
        denies: Some("access_denied".into()),
        ..Conduct::default()
    });
    let page = honest.url("/authorize");
    let fixture = Fixture::new(server_metadata("authorization_endpoint", json!(page)));
    let error = fixture.call_as(fixture.attended()).await.unwrap_err();
    let text = error.to_string();
    assert_eq!(fixture.windows(), 0, "{text}");
    for named in [
        honest.url(""),
        fixture.authority.url(""),
        "--allow-split-authority".into(),
    ] {
        assert!(text.contains(&named), "{named} is missing: {text}");
    }
    let allowed = Settings {
        allow_split_authority: true,
        ..fixture.attended()
    };
    let error = fixture.call_as(allowed).await.unwrap_err();
    assert!(matches!(error, SignInError::Denied { .. }), "{error}");
    change_server_metadata(
        &fixture.authority,
        "authorization_response_iss_parameter_supported",
        json!(true),
    );
    let error = fixture.call_as(fixture.attended()).await.unwrap_err();
    assert!(matches!(error, SignInError::WrongIssuer { .. }), "{error}");
}
