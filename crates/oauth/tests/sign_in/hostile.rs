//! Hostile servers, pages and connections: refused, with nothing opened and nothing sent where it
//! should not go.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fixture::{Fixture, call, resource_metadata, server_metadata};
use oauth::{Browser, Settings, SignIn, SignInError};
use serde_json::json;
use testkit::authorization_server::browser::{fetch, visit};
use testkit::authorization_server::{Conduct, ResourceMetadata};
use url::Url;

/// Signing in fails, and no window was opened for it.
async fn refused_unopened(conduct: Conduct) -> SignInError {
    let fixture = Fixture::new(conduct);
    let error = fixture.call_as(fixture.attended()).await.unwrap_err();
    assert_eq!(fixture.windows(), 0, "{error}");
    assert!(fixture.announced.lock().unwrap().is_empty());
    assert!(fixture.authority.seen("/token").is_empty());
    error
}

#[tokio::test]
async fn g8_endpoint_that_is_no_web_page_is_not_opened() {
    for url in [
        "javascript:alert(1)",
        "file:///bin/sh",
        "data:text/html,x",
        "-flag",
        "$(reboot)",
        "http://example.com/a",
    ] {
        let error = refused_unopened(server_metadata("authorization_endpoint", json!(url))).await;
        assert!(matches!(error, SignInError::Unreachable { .. }), "{url}: {error}");
    }
}

#[tokio::test]
async fn g8_document_of_ten_megabytes_is_not_read() {
    let error = refused_unopened(Conduct {
        padding: 10_000_000,
        ..Conduct::default()
    })
    .await;
    assert!(matches!(error, SignInError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn g8_metadata_issuer_mismatch_is_refused() {
    for issuer in [json!("https://evil.example"), json!(null)] {
        let error = refused_unopened(server_metadata("issuer", issuer)).await;
        assert!(matches!(error, SignInError::Discovery { .. }), "{error}");
    }
}

#[tokio::test]
async fn g8_server_without_pkce_is_refused() {
    for methods in [json!(null), json!([]), json!(["plain"])] {
        let error = refused_unopened(server_metadata("code_challenge_methods_supported", methods)).await;
        assert!(matches!(error, SignInError::NoPkce { .. }), "{error}");
    }
}

#[tokio::test]
async fn g8_resource_mismatch_is_refused_wherever_the_document_is() {
    for place in [
        ResourceMetadata::Advertised,
        ResourceMetadata::WellKnownPath,
        ResourceMetadata::WellKnownRoot,
    ] {
        let conduct = Conduct {
            resource_metadata: place,
            ..resource_metadata("resource", json!("https://evil.example/mcp"))
        };
        let error = refused_unopened(conduct).await;
        assert!(
            matches!(error, SignInError::OtherResource { .. }),
            "{place:?}: {error}"
        );
    }
}

/// The window is opened, the answer is refused, and no code is sent anywhere.
async fn refused_answer(conduct: Conduct) -> (SignInError, Fixture) {
    let fixture = Fixture::new(conduct);
    let error = fixture.call_as(fixture.attended()).await.unwrap_err();
    assert_eq!(
        (fixture.windows(), fixture.last_page().status),
        (1, 400),
        "{error}"
    );
    assert!(fixture.authority.seen("/token").is_empty());
    (error, fixture)
}

#[tokio::test]
async fn g8_answer_with_a_wrong_state_is_ignored() {
    let fixture = Fixture::new(Conduct {
        answer_state: Some("0123456789abcdef".into()),
        ..Conduct::default()
    });
    let mut settings = fixture.attended();
    // Long enough for the wrong answer to come, and then no right one does.
    settings.browser.as_mut().unwrap().timeout = Duration::from_secs(3);
    let error = fixture.call_as(settings).await.unwrap_err();
    assert_eq!(fixture.last_page().status, 400);
    assert!(fixture.authority.seen("/token").is_empty());
    assert!(matches!(error, SignInError::SignInTimeout { .. }), "{error}");
}

#[tokio::test]
async fn iss_wrong_issuer_is_refused_and_nothing_of_it_shown() {
    let conduct = Conduct {
        answer_issuer: Some("https://evil.example".into()),
        ..Conduct::default()
    };
    let (error, fixture) = refused_answer(Conduct {
        denies: Some("call_555".into()),
        ..conduct
    })
    .await;
    assert!(matches!(error, SignInError::WrongIssuer { .. }), "{error}");
    let page = fixture.last_page().body;
    assert!(
        !page.contains("evil") && !page.contains("555") && !error.to_string().contains("555"),
        "{page}"
    );
}

#[tokio::test]
async fn iss_normalized_is_not_the_same() {
    let fixture = Fixture::new(Conduct::default());
    let issuer = format!("{}/", fixture.authority.issuer());
    fixture
        .authority
        .change(|conduct| conduct.answer_issuer = Some(issuer));
    let error = fixture.call_as(fixture.attended()).await.unwrap_err();
    assert!(matches!(error, SignInError::WrongIssuer { .. }), "{error}");
}

#[tokio::test]
async fn iss_supported_missing_is_refused() {
    let conduct = server_metadata("authorization_response_iss_parameter_supported", json!(true));
    let (error, _play) = refused_answer(conduct).await;
    assert!(matches!(error, SignInError::WrongIssuer { .. }), "{error}");
}

#[tokio::test]
async fn refusal_by_the_person_is_reported() {
    let (error, _play) = refused_answer(Conduct {
        denies: Some("access_denied".into()),
        ..Conduct::default()
    })
    .await;
    assert!(
        matches!(&error, SignInError::Denied { code, .. } if code == "access_denied"),
        "{error}"
    );
}

#[tokio::test]
async fn token_refused_right_away_opens_no_second_window() {
    let fixture = Fixture::new(Conduct {
        refuses_tokens: true,
        ..Conduct::default()
    });
    let sign_in = SignIn::new(fixture.attended());
    assert_eq!(call(&sign_in, &fixture.authority.endpoint()).await.unwrap(), 401);
    let error = call(&sign_in, &fixture.authority.endpoint()).await.unwrap_err();
    assert!(matches!(error, SignInError::StillRefused { .. }), "{error}");
    assert_eq!(fixture.windows(), 1);
}

#[tokio::test]
async fn g9_inner_address_in_a_challenge_is_not_requested() {
    // A listener that must stay untouched stands for the inside of a network. The server is at an
    // address that is kept for documents, so that nothing leaves this machine either.
    let inside = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    inside.set_nonblocking(true).unwrap();
    let port = inside.local_addr().unwrap().port();
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "[::ffff:127.0.0.1]",
        "localhost",
        "a.localhost",
    ] {
        let fixture = Fixture::new(Conduct::default());
        let settings = Settings {
            resource: "https://203.0.113.7/mcp".parse().unwrap(),
            ..fixture.attended()
        };
        let challenge = format!("Bearer resource_metadata=\"http://{host}:{port}/secret\"");
        let error = SignIn::new(settings)
            .refused(401, &[challenge])
            .await
            .unwrap_err();
        assert!(inside.accept().is_err(), "{host} was asked: {error}");
        assert_eq!(fixture.windows(), 0);
    }
}

/// What it asked was not there, or not to be asked.
fn found_nothing(error: &SignInError) -> bool {
    matches!(
        error,
        SignInError::Discovery { .. } | SignInError::Unreachable { .. }
    )
}

#[tokio::test]
async fn g9_metadata_redirect_to_another_origin_is_refused() {
    for elsewhere in [
        "http://169.254.169.254/latest",
        "http://[fd00::1]/",
        "https://10.0.0.1/",
        "file:///etc/passwd",
    ] {
        let error = refused_unopened(Conduct {
            redirect_metadata_to: Some(elsewhere.into()),
            ..Conduct::default()
        })
        .await;
        assert!(found_nothing(&error), "{elsewhere}: {error}");
    }
}

#[tokio::test]
async fn g9_authorization_server_at_an_inner_address_is_not_requested() {
    for authority in [
        "https://10.0.0.1",
        "http://169.254.169.254",
        "https://[fe80::1]",
        "http://0xa9fea9fe",
    ] {
        let error = refused_unopened(resource_metadata("authorization_servers", json!([authority]))).await;
        assert!(found_nothing(&error), "{authority}: {error}");
    }
}

/// Returns the address that the browser is redirected to.
fn callback_address(page: &Url) -> String {
    let (_, redirect_uri) = page
        .query_pairs()
        .find(|(name, _)| name == "redirect_uri")
        .unwrap();
    let address = redirect_uri.strip_prefix("http://").unwrap();
    address.strip_suffix("/callback").unwrap().to_owned()
}

/// Signs in with this browser, among other connections to the listener.
async fn signs_in(fixture: &Fixture, browser: Browser) {
    let mut browser = browser.announcing(|_| ());
    browser.timeout = Duration::from_secs(30);
    let settings = Settings {
        browser: Some(browser),
        ..fixture.alone()
    };
    let status = fixture.call_as(settings).await;
    assert_eq!(status.unwrap(), 200);
}

#[tokio::test]
async fn g10_listener_accepts_only_the_right_answer_and_closes() {
    let fixture = Fixture::new(Conduct::default());
    let statuses = Arc::new(Mutex::new(Vec::new()));
    let callback = Arc::new(Mutex::new(String::new()));
    let (noted, redirected) = (statuses.clone(), callback.clone());
    let browser = Browser::opened_by(move |url| {
        let note = |status| noted.lock().unwrap().push(status);
        let address = callback_address(url);
        assert!(address.starts_with("127.0.0.1:"));
        // A silent connection and one that never finishes its request do not keep others waiting.
        let _silent = TcpStream::connect(&address)?;
        let mut slow = TcpStream::connect(&address)?;
        slow.write_all(b"GET /callback HTTP/1.1\r\nHost: ")?;
        let path = |path: &str| format!("http://{address}{path}");
        note(fetch(&path("/callback?state=x"), "GET", Some("evil.example"))?.status);
        note(fetch(&path("/callback?state=x"), "GET", Some("localhost:1"))?.status);
        note(fetch(&path("/other"), "GET", None)?.status);
        note(fetch(&path("/callback?state=x"), "POST", None)?.status);
        note(fetch(&path("/callback?state=x&code=y"), "GET", None)?.status);
        let page = visit(url.as_str())?;
        assert!(
            page.head.contains("default-src 'none'") && page.head.contains("no-store"),
            "{}",
            page.head
        );
        note(page.status);
        *redirected.lock().unwrap() = page.url;
        Ok(())
    });
    signs_in(&fixture, browser).await;
    assert_eq!(*statuses.lock().unwrap(), [403, 403, 404, 405, 400, 200]);
    let second = callback.lock().unwrap().clone();
    assert!(visit(&second).is_err(), "the port is closed");
}

#[tokio::test]
async fn g10_listener_cuts_off_an_endless_request() {
    let fixture = Fixture::new(Conduct::default());
    let browser = Browser::opened_by(move |url| {
        let address = callback_address(url);
        let mut endless = TcpStream::connect(&address)?;
        let head = format!(
            "GET /callback HTTP/1.1\r\nHost: {address}\r\nX-Long: {}",
            "x".repeat(64 * 1024)
        );
        // Cut off while it still sends, or answered with 431: either way it ends.
        let _ = endless.write_all(head.as_bytes());
        let mut answer = Vec::new();
        let _ = endless.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"));
        visit(url.as_str()).map(drop)
    });
    signs_in(&fixture, browser).await;
}

#[tokio::test]
async fn g12_debug_output_has_no_secret() {
    let fixture = Fixture::new(Conduct::default());
    let sign_in = SignIn::new(fixture.attended());
    assert_eq!(call(&sign_in, &fixture.authority.endpoint()).await.unwrap(), 200);
    let shown = format!("{sign_in:?} {:?}", sign_in.authorization().await.unwrap());
    for secret in ["access-", "refresh-", "secret-", "code-"] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
}
