//! TLS on the listener: both versions of HTTP, certificates that change, and peers that do not
//! shake hands.

use std::path::Path;
use std::sync::Arc;

use reqwest::{Certificate, Client, Version};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use testkit::rialto::Launcher;
use testkit::{PATIENCE, Result, Rialto};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Writes a new certificate for `localhost` and its key into a directory, and gives the
/// certificate.
fn make_certificate(directory: &Path) -> String {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()])
        .expect("a certificate can be made");
    let certificate = made.cert.pem();
    replace(&directory.join("key.pem"), &made.signing_key.serialize_pem());
    replace(&directory.join("cert.pem"), &certificate);
    certificate
}

/// Puts a file in another's place, as a careful program does.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).expect("a file can be written");
    std::fs::rename(&new, file).expect("a file can be renamed");
}

/// A Rialto with a certificate that only `client_of` trusts.
fn launcher() -> (Launcher, String) {
    let launcher = Rialto::launcher().args(&["--tls-cert", "{dir}/cert.pem", "--tls-key", "{dir}/key.pem"]);
    let certificate = make_certificate(launcher.dir());
    (launcher, certificate)
}

fn client_of(certificate: &str) -> reqwest::ClientBuilder {
    let root = Certificate::from_pem(certificate.as_bytes()).expect("a certificate in PEM");
    Client::builder()
        .no_proxy()
        .tls_certs_only([root])
        .timeout(PATIENCE)
}

fn url(rialto: &Rialto, path: &str) -> String {
    let port = rialto.address().rsplit(':').next().expect("a port");
    format!("https://localhost:{port}{path}")
}

async fn post(
    client: &Client,
    url: &str,
    session: Option<&str>,
    body: Value,
) -> reqwest::Result<reqwest::Response> {
    let mut request = client
        .post(url)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .body(body.to_string());
    if let Some(session) = session {
        request = request.header("mcp-session-id", session);
    }
    request.send().await
}

/// Opens a session, and returns its id.
async fn open(client: &Client, url: &str) -> String {
    let introduction = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tls", "version": "1"}}});
    let opened = post(client, url, None, introduction).await.expect("an answer");
    let id = opened.headers()["mcp-session-id"].to_str().expect("an id");
    id.to_owned()
}

async fn echo(client: &Client, url: &str, marker: &str) -> String {
    let session = open(client, url).await;
    call(client, url, &session, ("echo", marker)).await
}

/// Calls a tool with a marker, and returns the text of the answer.
async fn call(client: &Client, url: &str, session: &str, (tool, marker): (&str, &str)) -> String {
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": tool, "arguments": {"marker": marker}}});
    let answer = post(client, url, Some(session), call).await.expect("an answer");
    let answer: Value = answer.json().await.expect("JSON");
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// A connection that has shaken hands and may speak HTTP/2, of which the test writes every byte.
async fn shake_hands(rialto: &Rialto, certificate: &str) -> Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate in PEM");
    roots.add(root).expect("a certificate to trust");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TcpStream::connect(rialto.address()).await?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
}

/// An HTTP/2 connection of which the test writes and reads each frame.
struct Http2(TlsStream<TcpStream>);

/// A frame without its flags, its payload as it came (RFC 9113, section 4.1).
#[derive(Debug)]
struct Frame {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
/// `END_STREAM` and `END_HEADERS`.
const WHOLE: u8 = 1 | 4;
/// The last stream that the first GOAWAY of a graceful end names: every one.
const EVERY_STREAM: u32 = (1 << 31) - 1;

impl Http2 {
    async fn open(rialto: &Rialto, certificate: &str) -> Result<Self> {
        let mut connection = Self(shake_hands(rialto, certificate).await?);
        connection
            .0
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await?;
        connection.write(SETTINGS, 0, 0, &[]).await?;
        Ok(connection)
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<()> {
        let length = u32::try_from(payload.len()).expect("a small payload");
        let mut frame = length.to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.0.write_all(&frame).await?;
        self.0.flush().await?;
        Ok(())
    }

    /// Sends `GET /health`.
    async fn request(&mut self, stream: u32) -> Result<()> {
        // `:method` and `:scheme` from the static table, `:path` and `:authority` literally (RFC 7541).
        let mut head = vec![0x82, 0x87];
        for (name, value) in [(4, "/health"), (1, "localhost")] {
            head.extend([name, u8::try_from(value.len()).expect("a short value")]);
            head.extend(value.as_bytes());
        }
        self.write(HEADERS, WHOLE, stream, &head).await
    }

    /// Returns the next frame; `None` after the last.
    async fn next(&mut self) -> Option<Frame> {
        let read = async {
            let mut head = [0; 9];
            // A connection may end without the last message of TLS.
            self.0.read_exact(&mut head).await.ok()?;
            let mut payload = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
            self.0.read_exact(&mut payload).await.ok()?;
            Some(Frame {
                kind: head[3],
                stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
                payload,
            })
        };
        let read = tokio::time::timeout(PATIENCE, read).await;
        read.expect("a frame, or the end of the connection")
    }

    /// Returns the next frame of this kind.
    async fn next_of(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.next().await.expect("the connection is open");
            // Rialto acknowledges nothing that this test waits for.
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Reads on until a stream is answered, with 200.
    async fn answered(&mut self, stream: u32) {
        let head = self.next_of(HEADERS).await;
        assert_eq!(head.stream, stream);
        // `:status: 200` of the static table.
        assert_eq!(head.payload.first(), Some(&0x88), "{head:?}");
    }
}

/// Returns the last stream that a GOAWAY names. Its error is none.
fn last_stream(goaway: &Frame) -> u32 {
    let (last, error) = goaway.payload.split_at(4);
    assert_eq!(error[..4], [0; 4], "{goaway:?}");
    u32::from_be_bytes(last.try_into().expect("four bytes"))
}

/// With a socket of systemd the next process accepts what comes, so a connection must not be closed
/// under a request that is on its way.
#[tokio::test]
async fn http_2_connection_receives_goaway_at_a_drain_and_what_was_sent_before_is_answered() -> Result<()> {
    let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
    let (launcher, certificate) = launcher();
    let launcher = launcher.socket(socket).env("RIALTO_DRAIN_TIMEOUT", "600s");
    let rialto = launcher.stub(&[]).start().await?;
    let url = url(&rialto, "/mcp");
    // A call keeps the process, on another connection of HTTP/2.
    let caller = client_of(&certificate).build().expect("a client");
    let session = open(&caller, &url).await;
    let releaser = client_of(&certificate).http1_only().build().expect("a client");
    assert_eq!(
        call(&releaser, &url, &session, ("echo", "before")).await,
        "before"
    );
    let mut calls = tokio::task::JoinSet::new();
    calls.spawn({
        let (url, session) = (url.clone(), session.clone());
        async move { call(&caller, &url, &session, ("hold", "held")).await }
    });
    rialto.wait_for_execution("held").await;
    let mut connection = Http2::open(&rialto, &certificate).await?;
    connection.request(1).await?;
    connection.answered(1).await;

    rialto.sigterm();
    let first = connection.next_of(GOAWAY).await;
    assert_eq!(last_stream(&first), EVERY_STREAM);
    let ping = connection.next_of(PING).await;
    // This client has not read the notice yet.
    connection.request(3).await?;
    connection.answered(3).await;
    connection.write(PING, ACK, 0, &ping.payload).await?;
    let last = connection.next_of(GOAWAY).await;
    assert_eq!(last_stream(&last), 3);
    while connection.next().await.is_some() {}

    // The call goes on, and the last request of another connection is answered.
    assert_eq!(
        call(&releaser, &url, &session, ("release", "after")).await,
        "after"
    );
    let held = calls.join_next().await.expect("there is a call");
    assert_eq!(held.expect("the call ends"), "held");
    assert_eq!(rialto.wait(PATIENCE).await.code(), Some(0));
    Ok(())
}

#[tokio::test]
async fn calls_work_over_http_2_and_over_http_1() -> Result<()> {
    let (launcher, certificate) = launcher();
    let rialto = launcher.stub(&[]).start().await?;
    let modern = client_of(&certificate).build().expect("a client");
    let health = modern
        .get(url(&rialto, "/health"))
        .send()
        .await
        .expect("an answer");
    assert_eq!(
        (health.status().as_u16(), health.version()),
        (200, Version::HTTP_2)
    );
    assert_eq!(echo(&modern, &url(&rialto, "/mcp"), "over 2").await, "over 2");
    let plain = client_of(&certificate).http1_only().build().expect("a client");
    let health = plain
        .get(url(&rialto, "/health"))
        .send()
        .await
        .expect("an answer");
    assert_eq!(
        (health.status().as_u16(), health.version()),
        (200, Version::HTTP_11)
    );
    assert_eq!(echo(&plain, &url(&rialto, "/mcp"), "over 1").await, "over 1");
    Ok(())
}

/// The guard sees the same request whichever way it came.
#[tokio::test]
async fn hosts_and_origins_are_checked_over_http_2_too() -> Result<()> {
    let (launcher, certificate) = launcher();
    let rialto = launcher.stub(&[]).start().await?;
    let address = rialto.address().parse().expect("an address");
    // The certificate is for localhost; the name in the request is what the client makes of it.
    let client = client_of(&certificate)
        .resolve("localhost", address)
        .build()
        .expect("a client");
    let reply = client
        .get(url(&rialto, "/health"))
        .header("origin", "https://evil.example")
        .send()
        .await
        .expect("an answer");
    assert_eq!((reply.status().as_u16(), reply.version()), (403, Version::HTTP_2));
    let reply = client
        .get(url(&rialto, "/mcp"))
        .header("host", "evil.example")
        .send()
        .await
        .expect("an answer");
    assert_eq!(reply.status().as_u16(), 403);
    Ok(())
}

#[tokio::test]
async fn a_stream_comes_event_by_event_over_http_2() -> Result<()> {
    let (launcher, certificate) = launcher();
    let rialto = launcher.stub(&[]).start().await?;
    let client = client_of(&certificate).build().expect("a client");
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "progress", "arguments": {"n": 3, "marker": "end", "every_ms": 100}, "_meta": {"progressToken": 1}}});
    let mut reply = post(&client, &url(&rialto, "/mcp"), None, call)
        .await
        .expect("an answer");
    assert_eq!(reply.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    while let Some(chunk) = reply.chunk().await.expect("a chunk") {
        text.push_str(&String::from_utf8_lossy(&chunk));
        if !text.contains("\"progress\":3") {
            assert!(
                !text.contains("\"result\""),
                "the first events do not wait for the last: {text}"
            );
        }
    }
    assert!(text.contains("\"result\""), "{text}");
    Ok(())
}

/// Nothing is ever sent in the clear, and invalid bytes of one peer affect no other.
#[tokio::test]
async fn connection_without_a_tls_handshake_gets_nothing_and_is_counted() -> Result<()> {
    let (launcher, certificate) = launcher();
    let rialto = launcher.stub(&[]).start().await?;
    for _ in 0..4 {
        let mut raw = rialto.raw().await?;
        raw.write("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await?;
        let said = raw.read_to_end().await.unwrap_or_default();
        assert!(!String::from_utf8_lossy(&said).contains("HTTP"), "{said:?}");
    }
    let failed = |line: &Value| line["message"] == "TLS handshake failed" && line["failures"] == 4;
    rialto
        .wait_for_log("the failures are counted", PATIENCE, failed)
        .await;
    // Connections that never send anything delay no other.
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(rialto.raw().await?);
    }
    let client = client_of(&certificate).build().expect("a client");
    assert_eq!(echo(&client, &url(&rialto, "/mcp"), "fine").await, "fine");
    // They do not hold up the end either.
    rialto.sigterm();
    assert!(rialto.wait(PATIENCE).await.success());
    Ok(())
}

#[tokio::test]
async fn a_new_certificate_is_used_when_its_files_have_changed() -> Result<()> {
    let (launcher, old) = launcher();
    let rialto = launcher.stub(&[]).start().await?;
    let before = client_of(&old).build().expect("a client");
    assert_eq!(echo(&before, &url(&rialto, "/mcp"), "before").await, "before");
    let new = make_certificate(rialto.dir());
    let changed = |line: &Value| {
        line["message"]
            .as_str()
            .is_some_and(|text| text.starts_with("the certificate has changed"))
    };
    rialto
        .wait_for_log("the certificate is read", PATIENCE, changed)
        .await;
    let after = client_of(&new).build().expect("a client");
    assert_eq!(echo(&after, &url(&rialto, "/mcp"), "after").await, "after");
    let stale = client_of(&old).build().expect("a client");
    assert!(stale.get(url(&rialto, "/health")).send().await.is_err());
    // A connection that stands is not disturbed.
    assert!(before.get(url(&rialto, "/health")).send().await.is_ok());
    Ok(())
}

/// F7: what cannot be used changes nothing.
#[tokio::test]
async fn files_that_cannot_be_used_leave_the_old_certificate() -> Result<()> {
    let (launcher, certificate) = launcher();
    let rialto = launcher.stub(&[]).start().await?;
    replace(&rialto.dir().join("key.pem"), "no key at all");
    let kept = |line: &Value| line["level"] == "ERROR" && line.to_string().contains("the old one stays");
    rialto
        .wait_for_log("the new key is refused", PATIENCE, kept)
        .await;
    let client = client_of(&certificate).build().expect("a client");
    assert_eq!(echo(&client, &url(&rialto, "/mcp"), "still").await, "still");
    rialto.signal(Signal::HUP);
    let failed = |line: &Value| {
        line["level"] == "ERROR"
            && line["error"]
                .as_str()
                .is_some_and(|error| error.contains("tls.key"))
    };
    rialto.wait_for_log("so is the reload", PATIENCE, failed).await;
    let fresh = client_of(&certificate).build().expect("a client");
    assert_eq!(
        echo(&fresh, &url(&rialto, "/mcp"), "even then").await,
        "even then"
    );
    let new = make_certificate(rialto.dir());
    rialto.signal(Signal::HUP);
    let reloaded = |line: &Value| line["message"] == "reloaded";
    rialto
        .wait_for_log("a good pair is taken", PATIENCE, reloaded)
        .await;
    let client = client_of(&new).build().expect("a client");
    assert_eq!(echo(&client, &url(&rialto, "/mcp"), "mended").await, "mended");
    Ok(())
}

/// F8: what is wrong at the start is named, by `serve` and by `check`.
#[tokio::test]
async fn a_certificate_that_cannot_be_used_is_named_at_the_start() -> Result<()> {
    for (file, text, named) in [
        ("key.pem", "no key", "tls.key"),
        ("cert.pem", "no certificate", "tls.cert"),
        ("cert.pem", "", "tls.cert"),
    ] {
        let (launcher, _) = launcher();
        replace(&launcher.dir().join(file), text);
        let ended = launcher.stub(&[]).run(PATIENCE).await?;
        assert_eq!(ended.code(), Some(2), "{ended:?}");
        assert!(ended.stderr_text().contains(named), "{ended:?}");
    }
    let (launcher, _) = launcher();
    let other = tempfile::tempdir()?;
    make_certificate(other.path());
    std::fs::copy(other.path().join("key.pem"), launcher.dir().join("key.pem"))?;
    let ended = launcher.stub(&[]).run(PATIENCE).await?;
    assert_eq!(ended.code(), Some(2), "{ended:?}");
    assert!(ended.stderr_text().contains("do not go together"), "{ended:?}");

    let launcher = Rialto::launcher()
        .verb(&["check"])
        .config("tls: { cert: cert.pem, key: key.pem }\ndestinations: { a: { command: '{stub}' } }\n");
    make_certificate(launcher.dir());
    replace(&launcher.dir().join("key.pem"), "no key");
    let ended = launcher.run(PATIENCE).await?;
    assert_eq!(ended.code(), Some(2), "{ended:?}");
    Ok(())
}

async fn assert_hit_once(rialto: &Rialto, client: &reqwest::Client, limit: &str) {
    let page = client
        .get(url(rialto, "/metrics"))
        .send()
        .await
        .expect("an answer");
    let page = page.text().await.expect("text");
    let hit = format!("rialto_limit_hits_total{{limit=\"{limit}\"}} 1");
    assert!(page.contains(&hit), "{page}");
}

#[tokio::test]
async fn c08_http_2_connection_without_a_request_is_closed_like_any_other() -> Result<()> {
    let (launcher, certificate) = launcher();
    let rialto = launcher.stub(&[]).start().await?;
    let mut mute = shake_hands(&rialto, &certificate).await?;
    let mut said = Vec::new();
    // However it ends, it ends: a peer that is let go need not receive a notice.
    let ended = tokio::time::timeout(PATIENCE * 2, mute.read_to_end(&mut said)).await;
    assert!(ended.is_ok(), "the connection is still open");
    let client = client_of(&certificate).build().expect("a client");
    assert_hit_once(&rialto, &client, "header_time").await;
    Ok(())
}

#[tokio::test]
async fn limits_of_heads_are_counted_over_tls_too() -> Result<()> {
    let (launcher, certificate) = launcher();
    let rialto = launcher.stub(&[]).start().await?;
    let client = client_of(&certificate).http1_only().build().expect("a client");
    let large = client
        .get(url(&rialto, "/health"))
        .header("x-large", "x".repeat(1 << 20))
        .send()
        .await;
    assert!(large.is_err() || large.is_ok_and(|reply| reply.status() == 431));
    assert_hit_once(&rialto, &client, "header_bytes").await;
    Ok(())
}

#[tokio::test]
async fn connection_over_the_limit_receives_nothing_in_the_clear() -> Result<()> {
    let launcher = Rialto::launcher().config(
        "tls: { cert: cert.pem, key: key.pem }\nlimits: { connections: 1 }\ndestinations: { a: { command: '{stub}' } }\n",
    );
    let certificate = make_certificate(launcher.dir());
    let rialto = launcher.start().await?;
    let client = client_of(&certificate).build().expect("a client");
    let introduction = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tls", "version": "1"}}});
    let opened = post(&client, &url(&rialto, "/a/mcp"), None, introduction).await;
    let opened = opened.expect("an answer");
    // A stream is a request in flight, and keeps its place.
    let held = client
        .get(url(&rialto, "/a/mcp"))
        .header("accept", "text/event-stream")
        .header("mcp-session-id", &opened.headers()["mcp-session-id"])
        .send()
        .await
        .expect("an answer");
    let mut turned_away = rialto.raw().await?;
    let said = turned_away.read_to_end().await.unwrap_or_default();
    assert_eq!(String::from_utf8_lossy(&said), "");
    drop(held);
    Ok(())
}

/// F3: one request on each HTTP/2 connection kept its place for ever.
#[tokio::test]
async fn h07_idle_http2_connections_make_room() -> Result<()> {
    let launcher = Rialto::launcher().config(
        "tls: { cert: cert.pem, key: key.pem }\nlimits: { connections: 4 }\ndestinations: { a: { command: '{stub}' } }\n",
    );
    let certificate = make_certificate(launcher.dir());
    let rialto = launcher.start().await?;
    let mut held = Vec::new();
    for _ in 0..4 {
        let client = client_of(&certificate).build().expect("a client");
        let health = client
            .get(url(&rialto, "/health"))
            .send()
            .await
            .expect("an answer");
        assert_eq!(health.version(), Version::HTTP_2);
        health.bytes().await.expect("a body");
        held.push(client);
    }
    let client = client_of(&certificate).build().expect("a client");
    assert_eq!(echo(&client, &url(&rialto, "/a/mcp"), "let in").await, "let in");
    Ok(())
}
