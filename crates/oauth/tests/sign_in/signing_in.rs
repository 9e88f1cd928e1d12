//! Signing in where everything is as it should be, in all the forms that are allowed.
//!
//! Named after the official conformance scenarios (`auth/*`) where there is one.

use crate::fixture::{Fixture, call, resource_metadata, server_metadata};
use oauth::{Grant, LoginOutcome, LogoutOutcome, Secret, Settings, SignIn, SignInError, SigningKey};
use serde_json::json;
use testkit::authorization_server::{AuthorizationServerMetadata, Conduct, ResourceMetadata};

async fn signs_in(conduct: Conduct) -> Fixture {
    let fixture = Fixture::new(conduct);
    let sign_in = SignIn::new(fixture.attended());
    assert_eq!(call(&sign_in, &fixture.authority.endpoint()).await.unwrap(), 200);
    assert_eq!(fixture.windows(), 1);
    assert_eq!(fixture.last_page().status, 200);
    fixture
}

#[tokio::test]
async fn server_without_a_challenge_gets_no_token() {
    let fixture = Fixture::new(Conduct::default());
    let sign_in = SignIn::new(fixture.attended());
    assert_eq!(sign_in.authorization().await.unwrap(), None);
    assert!(fixture.authority.paths().is_empty() && fixture.windows() == 0);
    assert!(!fixture.home.path().join("sign-in").exists());
}

#[tokio::test]
async fn metadata_default_is_found_through_the_challenge() {
    let fixture = signs_in(Conduct::default()).await;
    let authorize = &fixture.authority.seen("/authorize")[0].form;
    assert_eq!(authorize["resource"], fixture.authority.endpoint());
    assert_eq!(authorize["code_challenge_method"], "S256");
    assert!(!authorize.contains_key("scope"));
    assert_eq!(
        fixture.authority.seen("/token")[0].form["resource"],
        fixture.authority.endpoint()
    );
    assert!(fixture.announced.lock().unwrap()[0].contains("/authorize?"));
}

#[tokio::test]
async fn metadata_var1_is_found_at_the_well_known_place_with_the_path() {
    let conduct = Conduct {
        resource_metadata: ResourceMetadata::WellKnownPath,
        ..Conduct::default()
    };
    signs_in(Conduct {
        server_metadata: AuthorizationServerMetadata::OpenIdInserted,
        ..conduct
    })
    .await;
}

#[tokio::test]
async fn metadata_var2_is_found_at_the_root() {
    let conduct = Conduct {
        resource_metadata: ResourceMetadata::WellKnownRoot,
        ..Conduct::default()
    };
    let fixture = signs_in(Conduct {
        issuer_path: "/tenant".into(),
        ..conduct
    })
    .await;
    let paths = fixture.authority.paths();
    let position = |wanted: &str| paths.iter().position(|path| path == wanted).unwrap();
    let with_path = position("/.well-known/oauth-protected-resource/mcp");
    assert!(with_path < position("/.well-known/oauth-protected-resource"));
    assert!(paths.contains(&"/.well-known/oauth-authorization-server/tenant".to_owned()));
}

#[tokio::test]
async fn metadata_var3_is_found_after_the_path_of_the_issuer() {
    for form in [
        AuthorizationServerMetadata::OpenIdInserted,
        AuthorizationServerMetadata::OpenIdAppended,
    ] {
        let conduct = Conduct {
            server_metadata: form,
            issuer_path: "/tenant".into(),
            ..Conduct::default()
        };
        signs_in(conduct).await;
    }
}

#[tokio::test]
async fn server_of_2025_03_26_is_its_own_authorization_server() {
    let conduct = Conduct {
        resource_metadata: ResourceMetadata::Absent,
        ..Conduct::default()
    };
    signs_in(conduct.clone()).await;
    // Even without metadata, by the default endpoints.
    signs_in(Conduct {
        server_metadata: AuthorizationServerMetadata::Absent,
        ..conduct
    })
    .await;
}

#[tokio::test]
async fn pre_registration_goes_before_everything_else() {
    let by_hand = ("by-hand".to_owned(), Some("hush hush".to_owned()));
    let fixture = Fixture::new(Conduct {
        client_by_hand: Some(by_hand),
        ..Conduct::default()
    });
    let mut settings = fixture.attended();
    settings.identity.client_id = Some("by-hand".into());
    settings.identity.client_secret = Some(Secret::new("hush hush"));
    settings.identity.metadata_url = Some("https://rialto.example/client.json".parse().unwrap());
    assert_eq!(fixture.call_as(settings).await.unwrap(), 200);
    assert!(fixture.authority.seen("/register").is_empty());
}

#[tokio::test]
async fn basic_cimd_needs_no_registration() {
    let fixture = Fixture::new(server_metadata(
        "client_id_metadata_document_supported",
        json!(true),
    ));
    let mut settings = fixture.attended();
    settings.identity.metadata_url = Some("https://rialto.example/client.json".parse().unwrap());
    assert_eq!(fixture.call_as(settings).await.unwrap(), 200);
    assert!(fixture.authority.seen("/register").is_empty());
    assert_eq!(
        fixture.authority.seen("/authorize")[0].form["client_id"],
        "https://rialto.example/client.json"
    );
}

#[tokio::test]
async fn registration_is_native_and_happens_once() {
    let fixture = signs_in(Conduct::default()).await;
    let body: serde_json::Value = serde_json::from_str(&fixture.authority.seen("/register")[0].body).unwrap();
    assert_eq!(body["application_type"], "native");
    // Everything is revoked, so a new process signs in again, as the same client.
    fixture.authority.revoke(true);
    assert_eq!(fixture.call_as(fixture.attended()).await.unwrap(), 200);
    assert_eq!(
        (fixture.windows(), fixture.authority.seen("/register").len()),
        (2, 1)
    );
}

#[tokio::test]
async fn server_without_registration_yields_an_error_with_advice() {
    let fixture = Fixture::new(Conduct {
        registration: false,
        ..Conduct::default()
    });
    let error = fixture.call_as(fixture.attended()).await.unwrap_err();
    assert!(matches!(error, SignInError::NoRegistration { .. }), "{error}");
    assert!(error.to_string().contains("--client-id"));
    assert_eq!(fixture.windows(), 0);
}

#[tokio::test]
async fn token_endpoint_auth_follows_what_is_offered() {
    for method in ["none", "client_secret_basic", "client_secret_post"] {
        let fixture = signs_in(server_metadata(
            "token_endpoint_auth_methods_supported",
            json!([method]),
        ))
        .await;
        let token = &fixture.authority.seen("/token")[0];
        assert_eq!(
            token.authorization.is_some(),
            method == "client_secret_basic",
            "{method}"
        );
        assert_eq!(
            token.form.contains_key("client_secret"),
            method == "client_secret_post",
            "{method}"
        );
        // A secret from a registration outlives the process.
        fixture.authority.revoke(false);
        assert_eq!(fixture.call_as(fixture.alone()).await.unwrap(), 200);
    }
}

#[tokio::test]
async fn scope_from_www_authenticate_beats_scopes_supported() {
    let conduct = resource_metadata("scopes_supported", json!(["read", "write", "admin"]));
    let fixture = signs_in(Conduct {
        challenge_scope: Some("read".into()),
        ..conduct.clone()
    })
    .await;
    assert_eq!(fixture.authority.seen("/authorize")[0].form["scope"], "read");
    let fixture = signs_in(conduct).await;
    assert_eq!(
        fixture.authority.seen("/authorize")[0].form["scope"],
        "read write admin"
    );
}

#[tokio::test]
async fn offline_access_scope_is_requested_if_it_is_listed() {
    let fixture = signs_in(Conduct {
        challenge_scope: Some("read".into()),
        ..server_metadata("scopes_supported", json!(["read", "offline_access"]))
    })
    .await;
    assert_eq!(
        fixture.authority.seen("/authorize")[0].form["scope"],
        "read offline_access"
    );
}

#[tokio::test]
async fn scope_step_up_requests_the_union() {
    let conduct = Conduct {
        challenge_scope: Some("read".into()),
        ..Conduct::default()
    };
    let fixture = signs_in(conduct).await;
    fixture
        .authority
        .change(|conduct| conduct.needed_scope = Some("write".into()));
    let sign_in = SignIn::new(fixture.attended());
    assert_eq!(call(&sign_in, &fixture.authority.endpoint()).await.unwrap(), 200);
    assert_eq!(
        fixture.authority.seen("/authorize")[1].form["scope"],
        "read write"
    );
}

#[tokio::test]
async fn scope_retry_limit_is_two() {
    let conduct = Conduct {
        needed_scope: Some("write".into()),
        grants_scope: Some("read".into()),
        ..Conduct::default()
    };
    let fixture = Fixture::new(conduct);
    let sign_in = SignIn::new(fixture.attended());
    let endpoint = fixture.authority.endpoint();
    let mut failed = None;
    for _ in 0..5 {
        if let Err(error) = call(&sign_in, &endpoint).await {
            failed = Some(error);
            break;
        }
    }
    assert!(
        matches!(failed, Some(SignInError::ScopesNotGranted { .. })),
        "{failed:?}"
    );
    // One to sign in, two to step up.
    assert_eq!(fixture.windows(), 3);
}

#[tokio::test]
async fn iss_supported_is_compared_and_accepted() {
    let fixture = Fixture::new(server_metadata(
        "authorization_response_iss_parameter_supported",
        json!(true),
    ));
    let issuer = fixture.authority.issuer();
    fixture
        .authority
        .change(|conduct| conduct.answer_issuer = Some(issuer));
    assert_eq!(fixture.call_as(fixture.attended()).await.unwrap(), 200);
}

#[tokio::test]
async fn token_is_stored_for_the_next_process() {
    let fixture = signs_in(Conduct::default()).await;
    assert_eq!(fixture.call_as(fixture.alone()).await.unwrap(), 200);
    assert_eq!(fixture.authority.seen("/token").len(), 1);
}

#[tokio::test]
async fn token_is_refreshed_before_it_expires_and_the_refresh_token_rotates() {
    let fixture = signs_in(Conduct {
        expires_in: Some(0),
        ..Conduct::default()
    })
    .await;
    let before = fixture.authority.seen("/token").len();
    let sign_in = SignIn::new(fixture.alone());
    for _ in 0..3 {
        assert_eq!(call(&sign_in, &fixture.authority.endpoint()).await.unwrap(), 200);
    }
    let refreshes = &fixture.authority.seen("/token")[before..];
    let mut used: Vec<_> = refreshes
        .iter()
        .map(|seen| seen.form["refresh_token"].clone())
        .collect();
    assert!(
        used.len() >= 3
            && refreshes
                .iter()
                .all(|seen| seen.form["resource"] == fixture.authority.endpoint())
    );
    used.dedup();
    assert_eq!(used.len(), refreshes.len(), "each refresh token is used once");
    assert_eq!(fixture.windows(), 1);
}

#[tokio::test]
async fn many_calls_with_a_revoked_token_cause_one_refresh() {
    let fixture = signs_in(Conduct::default()).await;
    fixture.authority.revoke(false);
    let sign_in = SignIn::new(fixture.alone());
    let endpoint = fixture.authority.endpoint();
    let calls = futures_util::future::join_all((0..8).map(|_| call(&sign_in, &endpoint)));
    assert!(calls.await.into_iter().all(|status| status.unwrap() == 200));
    assert_eq!(fixture.authority.seen("/token").len(), 2);
}

#[tokio::test]
async fn process_without_a_browser_names_the_login_command() {
    let fixture = Fixture::new(Conduct {
        challenge_scope: Some("read".into()),
        ..Conduct::default()
    });
    let endpoint = fixture.authority.endpoint();
    let error = call(&SignIn::new(fixture.alone()), &endpoint).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("rialto login {endpoint} --scope 'read'")),
        "{error}"
    );
    assert_eq!(fixture.authority.paths(), ["/mcp"]);
}

#[tokio::test]
async fn running_process_finds_the_login_of_another() {
    let fixture = Fixture::new(Conduct::default());
    let endpoint = fixture.authority.endpoint();
    let serving = SignIn::new(fixture.alone());
    assert!(call(&serving, &endpoint).await.is_err());
    let outcome = SignIn::new(fixture.attended()).login().await.unwrap();
    assert!(matches!(outcome, LoginOutcome::SignedIn { expires: Some(_), .. }));
    assert_eq!(call(&serving, &endpoint).await.unwrap(), 200);
}

#[tokio::test]
async fn logout_removes_and_revokes_the_token() {
    let fixture = signs_in(Conduct::default()).await;
    let endpoint = fixture.authority.endpoint();
    assert_eq!(
        oauth::list(&fixture.home.path().join("sign-in")).unwrap().len(),
        1
    );
    let sign_in = SignIn::new(fixture.alone());
    let had = sign_in.authorization().await.unwrap().unwrap();
    assert_eq!(crate::fixture::post(&endpoint, Some(&had)).await.0, 200);
    assert_eq!(sign_in.logout().await.unwrap(), LogoutOutcome::Revoked);
    assert_eq!(crate::fixture::post(&endpoint, Some(&had)).await.0, 401);
    let form = &fixture.authority.seen("/revoke")[0].form;
    assert_eq!(form["token_type_hint"], "refresh_token");
    assert_eq!(sign_in.logout().await.unwrap(), LogoutOutcome::Nothing);
    assert_eq!(sign_in.authorization().await.unwrap(), None);
    assert!(
        oauth::list(&fixture.home.path().join("sign-in"))
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn logout_reports_a_token_that_stays_valid() {
    let fixture = signs_in(Conduct {
        revocation: false,
        ..Conduct::default()
    })
    .await;
    let sign_in = SignIn::new(fixture.alone());
    let LogoutOutcome::Forgotten { why } = sign_in.logout().await.unwrap() else {
        panic!("nothing was revoked, and it was not reported");
    };
    assert!(why.contains("no place for that"), "{why}");
    assert_eq!(sign_in.authorization().await.unwrap(), None);
}

#[tokio::test]
async fn authorization_server_migration_means_another_client_and_another_token() {
    let fixture = signs_in(Conduct::default()).await;
    let sign_in = SignIn::new(fixture.attended());
    assert_eq!(call(&sign_in, &fixture.authority.endpoint()).await.unwrap(), 200);
    fixture
        .authority
        .change(|conduct| conduct.issuer_path = "/elsewhere".into());
    fixture.authority.revoke(false);
    assert_eq!(call(&sign_in, &fixture.authority.endpoint()).await.unwrap(), 200);
    assert_eq!(
        (fixture.windows(), fixture.authority.seen("/register").len()),
        (2, 2)
    );
    assert!(
        fixture
            .authority
            .seen("/token")
            .iter()
            .all(|seen| !seen.form.contains_key("refresh_token"))
    );
}

#[tokio::test]
async fn client_credentials_need_no_browser() {
    let by_hand = ("robot".to_owned(), Some("beep".to_owned()));
    for method in ["client_secret_basic", "client_secret_post"] {
        let fixture = Fixture::new(Conduct {
            client_by_hand: Some(by_hand.clone()),
            expires_in: Some(0),
            ..server_metadata("token_endpoint_auth_methods_supported", json!([method]))
        });
        let mut settings = Settings {
            grant: Grant::ClientCredentials,
            ..fixture.alone()
        };
        settings.identity.client_id = Some("robot".into());
        settings.identity.client_secret = Some(Secret::new("beep"));
        let sign_in = SignIn::new(settings);
        for _ in 0..2 {
            assert_eq!(call(&sign_in, &fixture.authority.endpoint()).await.unwrap(), 200);
        }
        let tokens = fixture.authority.seen("/token");
        assert!(
            tokens.len() >= 2
                && tokens
                    .iter()
                    .all(|seen| seen.form["grant_type"] == "client_credentials")
        );
        assert_eq!(tokens[0].authorization.is_some(), method == "client_secret_basic");
    }
}

#[tokio::test]
async fn client_with_a_key_signs_and_sends_no_secret() {
    let pair = rcgen::KeyPair::generate().unwrap();
    let stranger = rcgen::KeyPair::generate().unwrap();
    let fixture = Fixture::new(Conduct {
        client_by_hand: Some(("robot".to_owned(), None)),
        client_key: Some(pair.public_key_pem()),
        expires_in: Some(0),
        ..server_metadata(
            "token_endpoint_auth_methods_supported",
            json!(["private_key_jwt"]),
        )
    });
    let mut settings = Settings {
        grant: Grant::ClientCredentials,
        ..fixture.alone()
    };
    settings.identity.client_id = Some("robot".into());
    settings.identity.client_key = SigningKey::from_pem(&pair.serialize_pem());
    let sign_in = SignIn::new(settings.clone());
    for _ in 0..2 {
        assert_eq!(call(&sign_in, &fixture.authority.endpoint()).await.unwrap(), 200);
    }
    let tokens = fixture.authority.seen("/token");
    let quiet = |seen: &testkit::authorization_server::Seen| {
        seen.authorization.is_none() && !seen.form.contains_key("client_secret")
    };
    assert!(tokens.len() >= 2 && tokens.iter().all(quiet));
    // Another process takes the key from the store, as after a restart.
    let later = SignIn::new(fixture.alone());
    assert_eq!(call(&later, &fixture.authority.endpoint()).await.unwrap(), 200);

    let elsewhere = Fixture::new(Conduct {
        client_by_hand: Some(("robot".to_owned(), None)),
        client_key: Some(stranger.public_key_pem()),
        ..Conduct::default()
    });
    let mut unknown = Settings {
        grant: Grant::ClientCredentials,
        ..elsewhere.alone()
    };
    unknown.identity = settings.identity;
    let refused = call(&SignIn::new(unknown), &elsewhere.authority.endpoint()).await;
    assert!(refused.unwrap_err().to_string().contains("invalid_client"));
}

#[tokio::test]
async fn sleeping_process_uses_the_stored_token_and_changes_nothing() {
    let fixture = signs_in(Conduct {
        expires_in: Some(0),
        ..Conduct::default()
    })
    .await;
    let (before, endpoint) = (fixture.authority.paths().len(), fixture.authority.endpoint());
    let settings = Settings {
        asleep: true,
        ..fixture.attended()
    };
    let sign_in = SignIn::new(settings);
    assert_eq!(sign_in.authorization().await.unwrap(), None);
    let refused = sign_in.refused(401, &[]).await;
    assert!(matches!(refused, Err(SignInError::Asleep { .. })));
    assert_eq!((fixture.authority.paths().len(), fixture.windows()), (before, 1));
    sign_in.wake();
    assert_eq!(call(&sign_in, &endpoint).await.unwrap(), 200);
}
