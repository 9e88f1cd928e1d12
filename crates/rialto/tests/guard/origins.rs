//! Hosts, origins and CORS headers.

use std::time::Duration;

use testkit::{Result, Rialto};

const APP: &str = "https://app.example.com";
const JSON: [(&str, &str); 2] = [
    ("content-type", "application/json"),
    ("accept", "application/json, text/event-stream"),
];

#[tokio::test]
async fn foreign_host_or_origin_is_refused_on_every_route_in_every_disguise() -> Result<()> {
    let issuer = testkit::Issuer::start().await?;
    let config = format!(
        "allowed_hosts: [mcp.example.com]\nauth: {{ jwt: {{ issuer: '{}' }} }}\ndestinations: {{ a: {{ command: '{{stub}}' }} }}\n",
        issuer.url()
    );
    let rialto = Rialto::with_config(&config).await?;
    let client = rialto.client_of("a").await?;
    let strangers = [
        ("host", "evil.example"),
        ("host", "evil.example:3000"),
        ("host", "localhost.evil.example"),
        ("host", "mcp.example.com."),
        ("host", "mcp.example.com@evil.example"),
        ("host", "[fd00::1]"),
        ("host", "0.0.0.0"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://localhost.evil.example"),
        ("origin", "http://mcp.example.com"),
        ("sec-fetch-site", "cross-site"),
    ];
    let routes = [
        ("POST", "/a/mcp"),
        ("GET", "/a/mcp"),
        ("DELETE", "/a/mcp"),
        ("OPTIONS", "/a/mcp"),
        ("POST", "/mcp/a"),
        ("GET", "/a/sse"),
        ("GET", "/health"),
        ("GET", "/ready"),
        ("GET", "/.well-known/oauth-protected-resource/a/mcp"),
        ("GET", "/nowhere"),
    ];
    for stranger in strangers {
        for (method, path) in routes {
            let reply = client
                .send(method, path, &[JSON[0], JSON[1], stranger], "{}")
                .await?;
            let status = match (stranger.0, path) {
                // Probes name any host. They learn whether all is well, where `auth` lets them.
                ("host", "/health") => 200,
                ("host", "/ready") => 401,
                _ => 403,
            };
            assert_eq!(reply.status, status, "{method} {path} {stranger:?}");
            assert_eq!(reply.header("access-control-allow-origin"), None, "{stranger:?}");
        }
    }
    for host in [
        "localhost",
        "127.0.0.1:1",
        "[::1]:3000",
        "mcp.example.com",
        "MCP.example.com:443",
    ] {
        let reply = client.send("GET", "/health", &[("host", host)], "").await?;
        assert_eq!(reply.status, 200, "{host}");
    }
    Ok(())
}

#[tokio::test]
async fn a_page_of_an_allowed_origin_reads_answers_refusals_and_streams() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--allow-origin", APP])
        .stub(&[])
        .start()
        .await?;
    let client = rialto.client().await?;
    let asked = [
        ("origin", APP),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,mcp-param-city"),
    ];
    let preflight = client.send("OPTIONS", "/mcp", &asked, "").await?;
    assert_eq!(preflight.status, 204);
    assert_eq!(
        preflight.header("access-control-allow-headers"),
        Some("authorization,mcp-param-city")
    );
    assert_eq!(preflight.header("access-control-allow-credentials"), None);
    let opened = client
        .send(
            "POST",
            "/mcp",
            &[JSON[0], JSON[1], ("origin", APP)],
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"p","version":"1"}}}"#,
        )
        .await?;
    let session = opened.header("mcp-session-id").expect("a session").to_owned();
    opened.reply().await?;
    let stream = [
        ("accept", "text/event-stream"),
        ("mcp-session-id", session.as_str()),
        ("origin", APP),
    ];
    for (method, path, headers, body, status) in [
        ("POST", "/mcp", &[JSON[0], JSON[1], ("origin", APP)][..], "{", 400),
        ("POST", "/nowhere", &[("origin", APP)][..], "", 404),
        ("PUT", "/mcp", &[("origin", APP)][..], "", 405),
        ("GET", "/health", &[("origin", APP)][..], "", 200),
        ("GET", "/mcp", &stream[..], "", 200),
    ] {
        let reply = client.send(method, path, headers, body).await?;
        assert_eq!(reply.status, status, "{method} {path}");
        assert_eq!(
            reply.header("access-control-allow-origin"),
            Some(APP),
            "{method} {path}"
        );
        assert_eq!(reply.header("vary"), Some("Origin"), "{method} {path}");
        let exposed = reply.header("access-control-expose-headers").unwrap_or_default();
        for name in ["Mcp-Session-Id", "WWW-Authenticate"] {
            assert!(exposed.contains(name), "{method} {path}: {exposed}");
        }
    }
    let plain = client.send("GET", "/health", &[], "").await?;
    assert_eq!(plain.header("access-control-allow-origin"), None);
    assert_eq!(
        plain.header("vary"),
        Some("Origin"),
        "the answer would differ for a page"
    );
    Ok(())
}

#[tokio::test]
async fn public_listener_without_authentication_needs_a_setting() -> Result<()> {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let bare = ["serve", "--listen", address];
        let ended = Rialto::launcher()
            .verb(&bare)
            .stub(&[])
            .run(Duration::from_secs(30))
            .await?;
        assert_eq!(ended.code(), Some(2), "{address}: {}", ended.stderr_text());
        assert!(
            ended.stderr_text().contains("--allow-unauthenticated"),
            "{}",
            ended.stderr_text()
        );
    }
    let json = ["serve", "--listen", "0.0.0.0:0", "--log-format", "json"];
    let hash = testkit::token::token("ci").hash;
    let said = Rialto::launcher().verb(&json);
    let starts = [
        said.args(&["--allow-unauthenticated"]),
        Rialto::launcher()
            .verb(&json)
            .env("RIALTO_ALLOW_UNAUTHENTICATED", "1"),
        Rialto::launcher().verb(&json).args(&["--token-hash", &hash]),
        Rialto::launcher()
            .verb(&json)
            .env("RIALTO_TOKEN_HASH", &format!("ci={hash}")),
    ];
    for launcher in starts {
        launcher.stub(&[]).start().await?;
    }
    Ok(())
}
