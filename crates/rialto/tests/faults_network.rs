//! The network between Rialto and a remote server: a connection that is never taken (D8), and names
//! that lead inside (D16).

use std::time::Duration;

use serde_json::json;
use testkit::upstream::{CertificateAuthority, Flaw, Gate, Step};
use testkit::{Host, Result, Rialto, Sandbox, Upstream};
use tokio::net::{TcpSocket, TcpStream};

/// Above the limit for a connection, below every other that could end the wait.
const PATIENCE: Duration = Duration::from_secs(25);

/// A listener whose queue is full: the kernel takes no further connection, and sends nothing. That
/// is what an unreachable address looks like.
struct BlackHole {
    address: std::net::SocketAddr,
    _listener: tokio::net::TcpListener,
    _queue: Vec<TcpStream>,
}

impl BlackHole {
    async fn open() -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind("127.0.0.1:0".parse().expect("an address"))?;
        let listener = socket.listen(1)?;
        let address = listener.local_addr()?;
        let mut queue = Vec::new();
        // The kernel rounds up, so it is filled until one is left standing.
        while let Ok(taken) = tokio::time::timeout(Duration::from_secs(1), TcpStream::connect(address)).await
        {
            queue.push(taken?);
        }
        Ok(Self {
            address,
            _listener: listener,
            _queue: queue,
        })
    }
}

/// The limit for a connection is ten seconds. All other timeouts are longer than this client waits.
#[tokio::test]
async fn d08_a_connection_that_is_never_taken_is_given_up_before_the_calls_own_time() -> Result<()> {
    let hole = BlackHole::open().await?;
    let config = format!(
        "request_timeout: 10m\nstream_timeout: 10m\ndestinations:\n  hole: {{ url: 'http://{}/mcp', type: streamable_http, start_timeout: 10m }}\n  near: {{ command: '{{stub}}' }}\n",
        hole.address
    );
    let rialto = Rialto::with_config(&config).await?;
    let near = rialto.session_of("near").await?;
    let client = rialto.client_of("hole").await?.with_deadline(PATIENCE);
    let calling = client.initialize("2025-11-25", json!({}));
    let (refused, unaffected) = tokio::join!(calling, near.call(1, "echo", json!({"marker": "near"})));
    assert_eq!(unaffected?.text(), "near");
    let refused = refused?;
    refused.expect_failed(503)?;
    let data = &refused.answer()["error"]["data"];
    assert_eq!(data["reason"], "upstream_unavailable", "{refused:?}");
    assert!(data["retryAfterSeconds"].is_u64(), "{refused:?}");
    Ok(())
}

/// Rebinding: the name led to the server when `connect` first asked it, and leads inside when its
/// metadata are looked up. Every look-up is judged, and the address that was judged is the one that
/// is connected to.
#[tokio::test]
async fn d16_a_name_that_leads_inside_when_it_is_looked_up_again_is_not_connected_to() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let authority = CertificateAuthority::new();
    let files = tempfile::tempdir()?;
    let ca_file = files.path().join("ca.pem");
    std::fs::write(&ca_file, authority.pem())?;
    // The name of this certificate, and of nothing else.
    let name = "elsewhere.example";
    for (inside, refusal) in [
        ("127.0.0.1", "loopback"),
        ("10.0.0.1", "private"),
        ("169.254.169.254", "link-local"),
        ("::ffff:10.0.0.1", "private"),
    ] {
        let upstream = Upstream::legacy()
            .with_tls(&authority, Flaw::WrongName)
            .start()
            .await?;
        let url = format!("https://{name}:{}/mcp", upstream.address().port());
        let challenge = "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer\r\ncontent-length: 0\r\n\r\n";
        let gate = Gate::default();
        upstream.always(
            |_| true,
            vec![Step::Wait(gate.clone()), Step::Raw(challenge.into())],
        );
        sandbox.set_names(&[(name, "127.0.0.1")])?;
        let sandbox_env = sandbox.env();
        let mut env = vec![
            ("RIALTO_STATE_DIR", files.path().to_str().unwrap_or_default()),
            ("RIALTO_KEYRING", "off"),
            ("RIALTO_BROWSER", "false"),
        ];
        env.extend(sandbox_env.iter().map(|(name, value)| (*name, value.as_str())));
        let flags = ["connect", &url, "--ca-file", ca_file.to_str().unwrap_or_default()];
        let host = Host::start(&flags, &env)?;
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}});
        host.ask(1, "initialize", params)?;
        upstream.wait_for("the first question", |_| true).await;
        sandbox.set_names(&[(name, inside)])?;
        gate.open();
        let answer = host.answer(1).await;
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        let told = format!("{answer} {:?}", host.stderr());
        assert!(told.contains(refusal), "{inside}: {told}");
        let paths: Vec<String> = upstream
            .exchanges()
            .iter()
            .map(|seen| seen.path.clone())
            .collect();
        assert!(paths.iter().all(|path| path == "/mcp"), "{inside}: {paths:?}");
        let connections = sandbox.connections()?;
        assert!(
            !connections.is_empty() && connections.iter().all(|address| address == "127.0.0.1"),
            "{inside}: {connections:?}"
        );
    }
    Ok(())
}
