//! D11: certificates that do not hold, and no way round them.

use serde_json::{Value, json};
use testkit::upstream::{CertificateAuthority, Flaw, Http2Front, Step};
use testkit::{Rialto, Upstream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::stage::{self, assert_failed, echo};

/// Rialto in front of a secure URL, with this authority trusted or none.
async fn in_front_of(url: &str, trusted: Option<&CertificateAuthority>) -> Rialto {
    let launcher = Rialto::launcher();
    let mut destination =
        json!({"type": "streamable_http", "url": url, "headers": {"Authorization": "Bearer hush"}});
    if let Some(authority) = trusted {
        std::fs::write(launcher.dir().join("ca.pem"), authority.pem()).expect("a file");
        destination["ca_file"] = "{dir}/ca.pem".into();
    }
    let file = json!({"destinations": {"remote": destination}}).to_string();
    launcher.config(&file).start().await.expect("rialto starts")
}

async fn assert_refused(rialto: &Rialto) -> Value {
    let client = rialto.client_of("remote").await.expect("rialto listens");
    let reply = client.initialize(testkit::LEGACY, json!({})).await;
    let reply = reply.expect("an answer");
    assert_failed(&reply, &[502, 503]);
    reply.answer()
}

#[tokio::test]
async fn d11_a_certificate_of_a_trusted_authority_is_accepted() {
    let authority = CertificateAuthority::new();
    let upstream = Upstream::legacy()
        .with_tls(&authority, Flaw::Nothing)
        .start()
        .await
        .expect("an upstream");
    let rialto = in_front_of(&upstream.url(), Some(&authority)).await;
    let client = stage::session(&rialto).await;
    assert_eq!(echo(&client, 1, "secret").await, "secret");
}

#[tokio::test]
async fn one_connection_of_http2_carries_all_requests() {
    let authority = CertificateAuthority::new();
    let upstream = Upstream::legacy().start().await.expect("an upstream");
    let door = Http2Front::open(&authority, &upstream).await.expect("a door");
    let rialto = in_front_of(&door.url(), Some(&authority)).await;
    let client = stage::session(&rialto).await;
    let both = tokio::join!(echo(&client, 1, "one"), echo(&client, 2, "other"));
    assert_eq!(both, ("one".to_owned(), "other".to_owned()));
    assert_eq!(door.connections(), 1);
}

#[tokio::test]
async fn d11_a_certificate_that_does_not_hold_is_refused() {
    for flaw in [Flaw::Expired, Flaw::WrongName, Flaw::SelfSigned] {
        let authority = CertificateAuthority::new();
        let upstream = Upstream::legacy()
            .with_tls(&authority, flaw)
            .start()
            .await
            .expect("an upstream");
        let rialto = in_front_of(&upstream.url(), Some(&authority)).await;
        let answer = assert_refused(&rialto).await;
        assert!(
            answer.to_string().to_lowercase().contains("certificate"),
            "{flaw:?}: {answer}"
        );
        assert!(upstream.exchanges().is_empty(), "{flaw:?}");
    }
}

#[tokio::test]
async fn d11_a_certificate_of_an_unknown_authority_is_refused() {
    let (theirs, trusted) = (CertificateAuthority::new(), CertificateAuthority::new());
    for trusted in [None, Some(&trusted)] {
        let upstream = Upstream::legacy()
            .with_tls(&theirs, Flaw::Nothing)
            .start()
            .await
            .expect("an upstream");
        let rialto = in_front_of(&upstream.url(), trusted).await;
        let answer = assert_refused(&rialto).await;
        assert!(
            answer.to_string().to_lowercase().contains("certificate"),
            "{answer}"
        );
        assert!(upstream.exchanges().is_empty());
    }
}

#[tokio::test]
async fn d11_a_server_without_tls_gets_no_request_in_the_clear() {
    let plain = Upstream::legacy().start().await.expect("an upstream");
    let url = format!("https://localhost:{}/mcp", plain.address().port());
    let rialto = in_front_of(&url, None).await;
    assert_refused(&rialto).await;
    assert!(plain.exchanges().is_empty(), "{:?}", plain.exchanges());
}

#[tokio::test]
async fn d11_a_handshake_that_is_cut_or_refused_is_an_error() {
    // An alert: the version is too old for the other side.
    for farewell in [&b""[..], &[0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x46][..]] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let rialto = in_front_of(&format!("https://localhost:{port}/mcp"), None).await;
        let door = async {
            let mut heard = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut piece = [0; 4096];
                let read = stream.read(&mut piece).await.unwrap_or(0);
                heard.extend_from_slice(&piece[..read]);
                let _ = stream.write_all(farewell).await;
                assert!(!heard.windows(4).any(|part| part == b"hush" || part == b"POST"));
            }
        };
        tokio::select! {
            () = door => {}
            _answer = assert_refused(&rialto) => {}
        }
    }
}

#[tokio::test]
async fn d10_a_redirect_from_tls_to_plain_is_refused() {
    let authority = CertificateAuthority::new();
    let plain = Upstream::legacy().start().await.expect("an upstream");
    let secure = Upstream::legacy()
        .with_tls(&authority, Flaw::Nothing)
        .start()
        .await
        .expect("an upstream");
    let target = format!("http://localhost:{}/mcp", plain.address().port());
    secure.always(|_| true, vec![Step::redirect(307, &target)]);
    let rialto = in_front_of(&secure.url(), Some(&authority)).await;
    assert_refused(&rialto).await;
    assert!(plain.exchanges().is_empty());
}
