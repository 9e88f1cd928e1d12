//! Static tokens and a trusted proxy.

use serde_json::json;
use testkit::token::token;
use testkit::{McpClient, Result, Rialto};

use super::fixture::Fixture;

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"marker":"hello"}}}"#;

async fn call(client: &McpClient, path: &str, further: &[(&str, &str)]) -> Result<testkit::Reply> {
    let mut headers = vec![
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
    ];
    headers.extend(further);
    client.send("POST", path, &headers, CALL).await?.reply().await
}

#[tokio::test]
async fn a_call_is_answered_only_with_a_token_that_is_good_here_and_now() -> Result<()> {
    let (good, old, elsewhere) = (token("good"), token("old"), token("elsewhere"));
    let config = format!(
        r#"auth:
  tokens:
    - {{ name: good, hash: "{}", destinations: [a, b], expires: 2999-01-01T00:00:00Z }}
    - {{ name: old, hash: "{}", expires: 2001-01-01T00:00:00Z }}
    - {{ name: elsewhere, hash: "{}", destinations: [b] }}
destinations:
  a: {{ command: ["{{stub}}", --journal, "{{dir}}/journal"] }}
  b: {{ command: "{{stub}}" }}
"#,
        good.hash, old.hash, elsewhere.hash
    );
    let rialto = Rialto::with_config(&config).await?;
    let client = rialto.client_of("a").await?;
    let bearer = |token: &str| format!("Bearer {token}");

    let answered = call(&client, "/a/mcp", &[("authorization", &bearer(&good.token))]).await?;
    assert_eq!(answered.expect_status(200)?.text(), "hello");
    let at_b = call(&client, "/b/mcp", &[("authorization", &bearer(&elsewhere.token))]).await?;
    assert_eq!(at_b.expect_status(200)?.text(), "hello");

    let refused = [
        (vec![], 401),
        (vec![("authorization", bearer("rialto_nonsense"))], 401),
        (vec![("authorization", bearer(&good.hash))], 401),
        (vec![("authorization", format!("Basic {}", good.token))], 401),
        (vec![("authorization", "Bearer".to_owned())], 401),
        (vec![("authorization", bearer(&old.token))], 401),
        (vec![("authorization", bearer(&elsewhere.token))], 403),
        (
            vec![
                ("authorization", bearer(&good.token)),
                ("authorization", bearer(&good.token)),
            ],
            400,
        ),
    ];
    for (headers, status) in refused {
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let reply = call(&client, "/a/mcp", &headers).await?;
        assert_eq!(reply.status, status, "{headers:?}");
        let challenge = reply.header("www-authenticate");
        assert_eq!(
            challenge.is_some_and(|value| value.starts_with("Bearer")),
            status == 401
        );
    }
    for query in ["access_token", "token"] {
        let path = format!("/a/mcp?{query}={}", good.token);
        assert_eq!(call(&client, &path, &[]).await?.status, 401);
        let beside = [("authorization", bearer(&good.token))];
        let beside = [(beside[0].0, beside[0].1.as_str())];
        assert_eq!(call(&client, &path, &beside).await?.status, 401);
    }
    assert_eq!(
        rialto.journal().executions("hello"),
        1,
        "what was refused never reached the server"
    );
    Ok(())
}

/// Guesses are slowed down by address. Callers at the same address with a valid token, with none,
/// or with an expired one notice nothing of it.
#[tokio::test]
async fn unknown_credentials_are_refused_with_429_after_a_while_and_valid_ones_never() -> Result<()> {
    let (good, old) = (token("good"), token("old"));
    let config = format!(
        "limits: {{ refused_credentials_per_minute: 5 }}\nauth:\n  public: [metrics]\n  tokens:\n    - {{ name: good, hash: \"{}\" }}\n    - {{ name: old, hash: \"{}\", expires: 2001-01-01T00:00:00Z }}\ndestinations: {{ a: {{ command: '{{stub}}' }} }}\n",
        good.hash, old.hash
    );
    let rialto = Rialto::with_config(&config).await?;
    let client = rialto.client_of("a").await?;
    let show = async |credentials: &str| call(&client, "/a/mcp", &[("authorization", credentials)]).await;
    let right = format!("Bearer {}", good.token);
    for at in 0..5 {
        let guess = format!("Bearer rialto_guess{at}");
        assert_eq!(show(&guess).await?.status, 401, "{at}");
    }
    for guess in ["Bearer rialto_another", "Basic dXNlcjpndWVzcw=="] {
        let refused = show(guess).await?;
        assert_eq!(refused.status, 429);
        let wait = refused.header("retry-after").and_then(|wait| wait.parse().ok());
        assert!(
            wait.is_some_and(|seconds: u64| (1..=60).contains(&seconds)),
            "{refused:?}"
        );
        let error = &refused.answer()["error"];
        assert_eq!(error["data"]["reason"], "rate_limited", "{error}");
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| text.contains("refused_credentials_per_minute")),
            "{error}"
        );
        assert_eq!(show(&right).await?.expect_status(200)?.text(), "hello");
    }
    assert_eq!(
        call(&client, "/a/mcp", &[]).await?.status,
        401,
        "nothing was guessed"
    );
    let expired = show(&format!("Bearer {}", old.token)).await?;
    assert_eq!(expired.status, 401, "its client must learn that it needs another");
    let page = client
        .send("GET", "/metrics", &[], "")
        .await?
        .reply()
        .await?
        .body_text();
    assert!(
        page.contains(r#"rialto_limit_hits_total{limit="refused_credentials_per_minute"} 2"#),
        "{page}"
    );
    Ok(())
}

#[tokio::test]
async fn only_health_is_open_by_default() -> Result<()> {
    let fixture = Fixture::with_stub().await?;
    let client = fixture.rialto.client_of("shared").await?;
    let bearer = format!("Bearer {}", fixture.alice.token);
    assert_eq!(client.send("GET", "/health", &[], "").await?.status, 200);
    assert_eq!(client.send("GET", "/ready", &[], "").await?.status, 401);
    // The destination is ready when its server has answered, which the handshake waits for.
    let alice = fixture.client(&fixture.alice).await?;
    alice.handshake("2025-11-25", json!({})).await?;
    let shown = [("authorization", bearer.as_str())];
    assert_eq!(client.send("GET", "/ready", &shown, "").await?.status, 200);
    for (method, path) in [
        ("GET", "/shared/mcp"),
        ("DELETE", "/shared/mcp"),
        ("PUT", "/shared/mcp"),
    ] {
        assert_eq!(client.send(method, path, &[], "").await?.status, 401, "{method}");
    }
    assert_eq!(
        client
            .send("GET", "/.well-known/oauth-protected-resource/shared/mcp", &[], "")
            .await?
            .status,
        404,
        "there is nowhere to sign in"
    );

    let hash = token("x").hash;
    let open = format!(
        "auth: {{ public: [ready], tokens: [{{ name: x, hash: \"{hash}\" }}] }}\ndestinations: {{ a: {{ command: '{{stub}}', start: lazy }} }}\n"
    );
    let rialto = Rialto::with_config(&open).await?;
    let client = rialto.client_of("a").await?;
    assert_eq!(client.send("GET", "/ready", &[], "").await?.status, 200);
    assert_eq!(client.send("GET", "/a/mcp", &[], "").await?.status, 401);
    Ok(())
}

#[tokio::test]
async fn no_token_is_ever_written_anywhere_or_given_to_a_server() -> Result<()> {
    let fixture = Fixture::with_stub().await?;
    let client = fixture.client(&fixture.alice).await?;
    client.handshake("2025-11-25", json!({})).await?;
    client
        .call(1, "echo", json!({"marker": "seen"}))
        .await?
        .expect_status(200)?;
    let environment = client.call(2, "env", "{}").await?.text();
    let wrong = "rialto_WRONGwrongWRONGwrong";
    let raw = fixture.rialto.client_of("shared").await?;
    let mut replies = Vec::new();
    for headers in [
        vec![("authorization", format!("Bearer {wrong}"))],
        vec![("authorization", format!("Basic {wrong}"))],
        vec![
            ("authorization", format!("Bearer {wrong}")),
            ("authorization", wrong.to_owned()),
        ],
        vec![("authorization", format!("Bearer {} {wrong}", fixture.bob.token))],
    ] {
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        replies.push(call(&raw, "/shared/mcp", &headers).await?);
    }
    replies.push(call(&raw, &format!("/shared/mcp?access_token={wrong}"), &[]).await?);
    for reply in &replies {
        assert!(
            !format!("{reply:?}{}", reply.body_text()).contains(wrong),
            "{reply:?}"
        );
    }
    let session = client.session().expect("a session");
    client.delete().await?.expect_status(204)?;
    let (dir, journal) = (fixture.rialto.dir().to_owned(), fixture.rialto.journal());
    let received = format!("{:?}", journal.entries());
    fixture.rialto.sigterm();
    fixture.rialto.wait(std::time::Duration::from_secs(20)).await;
    let audit = std::fs::read_to_string(dir.join("audit.jsonl"))?;
    let logs = fixture.rialto.stderr().join("\n");
    assert!(
        audit.contains("\"principal\":\"alice\"") && audit.contains("\"status_code\":401"),
        "{audit}"
    );
    assert!(
        logs.contains("TRACE") || logs.contains("DEBUG"),
        "the logs are at their most talkative"
    );
    for secret in [fixture.alice.token.as_str(), &fixture.bob.token, wrong, &session] {
        for (what, text) in [
            ("logs", &logs),
            ("audit", &audit),
            ("child", &environment),
            ("wire", &received),
        ] {
            assert!(!text.contains(secret), "{what} has {secret}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn trusted_proxy_names_the_caller_and_a_stranger_cannot() -> Result<()> {
    let config = |from: &str| {
        format!(
            "audit: {{dir}}/audit.jsonl\nauth: {{ proxy: {{ header: X-User, from: ['{from}'] }} }}\ndestinations: {{ a: {{ command: '{{stub}}' }} }}\n"
        )
    };
    let rialto = Rialto::with_config(&config("127.0.0.0/8")).await?;
    let client = rialto.client_of("a").await?;
    let alice = rialto.client_of("a").await?.with_header("x-user", "alice");
    alice.handshake("2025-11-25", json!({})).await?;
    assert_eq!(alice.call(1, "echo", json!({"marker": "m"})).await?.text(), "m");
    let bob = rialto.client_of("a").await?.with_header("x-user", "bob");
    bob.set_session(alice.session().as_deref());
    bob.call(1, "echo", json!({"marker": "m"}))
        .await?
        .expect_status(404)?;
    assert_eq!(call(&client, "/a/mcp", &[]).await?.status, 401);
    assert_eq!(
        call(&client, "/a/mcp", &[("x-user", "alice"), ("x-user", "bob")])
            .await?
            .status,
        400
    );

    let elsewhere = Rialto::with_config(&config("10.0.0.0/8")).await?;
    let client = elsewhere.client_of("a").await?;
    assert_eq!(call(&client, "/a/mcp", &[("x-user", "alice")]).await?.status, 401);
    Ok(())
}

#[tokio::test]
async fn the_token_of_a_caller_is_never_sent_to_a_remote_server() -> Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let upstream = listener.local_addr()?;
    let heads = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let seen = std::sync::Arc::clone(&heads);
    #[expect(clippy::disallowed_methods, reason = "a test has no tasks of the gateway's")]
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut bytes = vec![0; 16 << 10];
            let length = stream.read(&mut bytes).await.unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            seen.lock().expect("not poisoned").push_str(&text);
            let _ = stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                .await;
        }
    });
    let alice = token("alice");
    let config = format!(
        "auth: {{ tokens: [{{ name: alice, hash: \"{}\" }}] }}\ndestinations:\n  a: {{ url: 'http://{upstream}/mcp', headers: {{ Authorization: Bearer of-our-own }} }}\n",
        alice.hash
    );
    let rialto = Rialto::with_config(&config).await?;
    let client = rialto.client_of("a").await?;
    let bearer = format!("Bearer {}", alice.token);
    let cookie = ("cookie", "session=callers-own");
    let proxied = ("proxy-authorization", "Basic callers-own");
    call(&client, "/a/mcp", &[("authorization", &bearer), cookie, proxied]).await?;
    let heads = heads.lock().expect("not poisoned").clone();
    assert!(
        heads.to_lowercase().contains("authorization: bearer of-our-own"),
        "{heads}"
    );
    for secret in [alice.token.as_str(), "callers-own"] {
        assert!(!heads.contains(secret), "{heads}");
    }
    Ok(())
}

/// F12: a token for one destination read the state and the traffic of all.
#[tokio::test]
async fn a_token_for_one_destination_is_shown_nothing_of_the_others() -> Result<()> {
    let (admin, limited) = (token("admin"), token("limited"));
    let config = format!(
        r#"auth:
  tokens:
    - {{ name: admin, hash: "{}" }}
    - {{ name: limited, hash: "{}", destinations: [pub] }}
destinations:
  pub: {{ command: "{{stub}}", start: lazy }}
  priv: {{ command: "{{stub}}", start: lazy }}
"#,
        admin.hash, limited.hash
    );
    let rialto = Rialto::with_config(&config).await?;
    let client = rialto.client_of("pub").await?;
    for path in ["/ready", "/metrics"] {
        for (token, sees_all) in [(&admin, true), (&limited, false)] {
            let bearer = format!("Bearer {}", token.token);
            let reply = client
                .send("GET", path, &[("authorization", &bearer)], "")
                .await?;
            let text = reply.reply().await?.expect_status(200)?.body_text();
            assert!(text.contains("pub"), "{path}: {text}");
            assert_eq!(text.contains("priv"), sees_all, "{path}: {text}");
            if path == "/metrics" {
                assert_eq!(text.contains("rialto_connections"), sees_all, "{text}");
            }
        }
    }
    Ok(())
}
