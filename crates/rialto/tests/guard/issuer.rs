//! Tokens of an authorization server: whose they are, where they are good, and what happens when
//! keys change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use testkit::issuer::now;
use testkit::{Issuer, McpClient, Reply, Result, Rialto};

const PUBLIC: &str = "https://mcp.example.com";
const A: &str = "https://mcp.example.com/a/mcp";
const B: &str = "https://mcp.example.com/b/mcp";

async fn serve(issuer: &Issuer, further: &str) -> Result<Rialto> {
    let config = format!(
        "public_url: {PUBLIC}\naudit: {{dir}}/audit.jsonl\nlimits: {{ refused_credentials_per_minute: 100000 }}\nauth:\n  jwt:\n    issuer: {}\n{further}destinations:\n  a: {{ command: ['{{stub}}', --journal, '{{dir}}/journal'] }}\n  b: {{ command: '{{stub}}' }}\n",
        issuer.url()
    );
    Rialto::with_config(&config).await
}

async fn call_tool(client: &McpClient, path: &str, token: &str, tool: &str) -> Result<Reply> {
    let bearer = format!("Bearer {token}");
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("authorization", bearer.as_str()),
    ];
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": tool, "arguments": {"marker": "hello"}}});
    client
        .send("POST", path, &headers, body.to_string())
        .await?
        .reply()
        .await
}

async fn call(client: &McpClient, path: &str, token: &str) -> Result<Reply> {
    call_tool(client, path, token, "echo").await
}

#[tokio::test]
async fn a_token_is_good_at_its_own_destination_by_either_path_and_nowhere_else() -> Result<()> {
    let issuer = Issuer::start().await?;
    let rialto = serve(&issuer, "").await?;
    let client = rialto.client_of("a").await?;
    let token = issuer.token("alice", A, json!({}));
    for path in ["/a/mcp", "/mcp/a"] {
        assert_eq!(
            call(&client, path, &token).await?.expect_status(200)?.text(),
            "hello"
        );
    }
    let refused = call(&client, "/b/mcp", &token).await?;
    assert_eq!(refused.status, 401);
    assert_eq!(
        refused.header("www-authenticate"),
        Some(
            r#"Bearer error="invalid_token", error_description="the token is for another resource", resource_metadata="https://mcp.example.com/.well-known/oauth-protected-resource/b/mcp""#
        )
    );
    let both = issuer.token("alice", "", json!({"aud": [A, B]}));
    for path in ["/a/mcp", "/b/mcp"] {
        call(&client, path, &both).await?.expect_status(200)?;
    }
    rialto.sigterm();
    rialto.wait(std::time::Duration::from_secs(20)).await;
    let audit = std::fs::read_to_string(rialto.dir().join("audit.jsonl"))?;
    assert!(
        audit.contains(&format!("\"principal\":\"{}#alice\"", issuer.url())),
        "{audit}"
    );
    assert!(!audit.contains(&token));
    Ok(())
}

#[tokio::test]
async fn tokens_that_break_a_rule_are_refused_and_never_reach_the_server() -> Result<()> {
    let issuer = Issuer::start().await?;
    let rialto = serve(&issuer, "").await?;
    let client = rialto.client_of("a").await?;
    let with = |further: Value| issuer.token("alice", A, further);
    let stranger = Issuer::start().await?;
    let good = with(json!({}));
    let mut parts = good.split('.');
    let (header, claims, signature) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    let other = with(json!({"sub": "mallory"}));
    let others_claims = other.split('.').nth(1).unwrap_or_default();
    // {"alg":"none"} and {"alg":"HS256","kid":"key-1"}, the latter signed with the public key as
    // its secret.
    let unsigned = format!("eyJhbGciOiJub25lIn0.{claims}.");
    let confused = {
        use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("key-1".to_owned());
        let key = EncodingKey::from_secret(issuer.public_key().as_bytes());
        let claims = json!({"iss": issuer.url(), "sub": "alice", "aud": A, "exp": now() + 60});
        encode(&header, &claims, &key).expect("a token")
    };
    let wrong = [
        ("expired", with(json!({"exp": now() - 120}))),
        ("not yet valid", with(json!({"nbf": now() + 120}))),
        (
            "another audience",
            with(json!({"aud": "https://mcp.example.com"})),
        ),
        ("no audience", with(json!({"aud": null}))),
        (
            "another issuer's name",
            with(json!({"iss": "https://evil.example"})),
        ),
        (
            "another issuer's key",
            stranger.token("alice", A, json!({"iss": issuer.url()})),
        ),
        ("without a subject", with(json!({"sub": ""}))),
        ("without an end", with(json!({"exp": null}))),
        ("alg none", unsigned),
        ("HS256 with the public key", confused),
        (
            "other claims under a good signature",
            format!("{header}.{others_claims}.{signature}"),
        ),
        ("no signature", format!("{header}.{claims}.")),
        ("two parts", format!("{header}.{claims}")),
        (
            "an unknown key",
            issuer.sign(
                &json!({"iss": issuer.url(), "sub": "a", "aud": A, "exp": now() + 60}),
                Some("nobody"),
            ),
        ),
    ];
    for (what, token) in &wrong {
        let reply = call(&client, "/a/mcp", token).await?;
        assert_eq!(reply.status, 401, "{what}");
        let challenge = reply.header("www-authenticate").unwrap_or_default();
        assert!(
            challenge.contains("error=\"invalid_token\""),
            "{what}: {challenge}"
        );
    }
    assert_eq!(rialto.journal().executions("hello"), 0);
    for (what, within) in [
        ("exp", with(json!({"exp": now() - 30}))),
        ("nbf", with(json!({"nbf": now() + 30}))),
        ("good", good),
    ] {
        let reply = call(&client, "/a/mcp", &within).await?;
        assert_eq!(reply.status, 200, "clocks may differ by a minute: {what}");
    }
    Ok(())
}

#[tokio::test]
async fn clients_learn_where_to_sign_in() -> Result<()> {
    let issuer = Issuer::start().await?;
    let rialto = serve(&issuer, "    required_scopes: [mcp]\n").await?;
    let client = rialto.client_of("a").await?;
    for (path, resource) in [("/a/mcp", A), ("/mcp/b", "https://mcp.example.com/mcp/b")] {
        let refused = client.send("GET", path, &[], "").await?;
        let metadata = format!("/.well-known/oauth-protected-resource{path}");
        assert_eq!(
            refused.header("www-authenticate").map(str::to_owned),
            Some(format!(
                "Bearer scope=\"mcp\", resource_metadata=\"{PUBLIC}{metadata}\""
            ))
        );
        let document = client.send("GET", &metadata, &[], "").await?.reply().await?;
        assert_eq!(
            document.expect_status(200)?.answer(),
            json!({
                "resource": resource,
                "authorization_servers": [issuer.url()],
                "scopes_supported": ["mcp"],
                "bearer_methods_supported": ["header"],
                "resource_name": path.replace("/mcp", "").trim_matches('/'),
            })
        );
    }
    for nowhere in ["/x/mcp", "/mcp", "", "/a", "/a/mcp/x"] {
        let path = format!("/.well-known/oauth-protected-resource{nowhere}");
        assert_eq!(client.send("GET", &path, &[], "").await?.status, 404, "{path}");
    }
    let path = "/.well-known/oauth-protected-resource/a/mcp";
    assert_eq!(client.send("POST", path, &[], "").await?.status, 405);
    Ok(())
}

#[tokio::test]
async fn scopes_are_asked_for_by_method_and_tool_of_the_body() -> Result<()> {
    let issuer = Issuer::start().await?;
    let rules =
        "    required_scopes: [mcp]\n    scopes: { tools/call: [mcp:call], 'tool:delay': [mcp:slow] }\n";
    let rialto = serve(&issuer, rules).await?;
    let client = rialto.client_of("a").await?;
    let token = |scope: &str| issuer.token("alice", A, json!({ "scope": scope }));
    for (scope, tool, needed) in [
        ("", "echo", Some("mcp")),
        ("other", "echo", Some("mcp")),
        ("mcp", "echo", Some("mcp mcp:call")),
        ("mcp mcp:call", "echo", None),
        ("mcp mcp:call", "delay", Some("mcp mcp:call mcp:slow")),
        ("mcp mcp:call mcp:slow", "delay", None),
    ] {
        let reply = call_tool(&client, "/a/mcp", &token(scope), tool).await?;
        match needed {
            None => assert_eq!(reply.expect_status(200)?.text(), "hello"),
            Some(needed) => {
                assert_eq!(reply.status, 403, "{scope} {tool}");
                assert_eq!(
                    reply.header("www-authenticate").map(str::to_owned),
                    Some(format!(
                        "Bearer error=\"insufficient_scope\", scope=\"{needed}\", resource_metadata=\"{PUBLIC}/.well-known/oauth-protected-resource/a/mcp\""
                    ))
                );
            }
        }
    }
    // Headers do not count, nor does a session that was opened with more scopes.
    let opened = rialto
        .client_of("a")
        .await?
        .with_header("authorization", &format!("Bearer {}", token("mcp")))
        .with_header("mcp-method", "tools/list");
    opened.handshake("2025-11-25", json!({})).await?;
    opened.request(1, "tools/list", "{}").await?.expect_status(200)?;
    opened.call(2, "echo", "{}").await?.expect_status(403)?;
    Ok(())
}

#[tokio::test]
async fn invented_keys_do_not_make_rialto_fetch_again_and_again() -> Result<()> {
    let issuer = Issuer::start().await?;
    let rialto = serve(&issuer, "").await?;
    let client = rialto.client_of("a").await?;
    call(&client, "/a/mcp", &issuer.token("alice", A, json!({})))
        .await?
        .expect_status(200)?;
    let before = issuer.fetches();
    let claims = json!({"iss": issuer.url(), "sub": "alice", "aud": A, "exp": now() + 600});
    for at in 0..1000 {
        let token = issuer.sign(&claims, Some(&format!("invented-{at}")));
        assert_eq!(call(&client, "/a/mcp", &token).await?.status, 401);
    }
    assert!(
        issuer.fetches() <= before + 1,
        "{} fetches",
        issuer.fetches() - before
    );
    call(&client, "/a/mcp", &issuer.token("bob", A, json!({})))
        .await?
        .expect_status(200)?;
    Ok(())
}

#[tokio::test]
async fn keys_change_under_load_without_a_good_token_refused() -> Result<()> {
    let issuer = Issuer::start().await?;
    let rialto = Arc::new(serve(&issuer, "").await?);
    let stop = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicUsize::new(0));
    let load: Vec<_> = (0..4)
        .map(|worker| {
            let (issuer, rialto) = (issuer.clone(), Arc::clone(&rialto));
            let (stop, calls) = (Arc::clone(&stop), Arc::clone(&calls));
            #[expect(clippy::disallowed_methods, reason = "a test has no tasks of the gateway's")]
            tokio::spawn(async move {
                let client = rialto.client_of("a").await?;
                let mut at = 0;
                while !stop.load(Ordering::Relaxed) {
                    // A fresh token each time: none is remembered, each is signed with the newest
                    // key.
                    let token = issuer.token(&format!("w{worker}-{at}"), A, json!({}));
                    call(&client, "/a/mcp", &token).await?.expect_status(200)?;
                    calls.fetch_add(1, Ordering::Relaxed);
                    at += 1;
                }
                Result::Ok(())
            })
        })
        .collect();
    let reached = |count: usize| {
        let calls = Arc::clone(&calls);
        async move {
            testkit::wait_until("calls are answered", std::time::Duration::from_secs(60), || {
                (calls.load(Ordering::Relaxed) >= count).then_some(())
            })
            .await;
        }
    };
    reached(40).await;
    let old = issuer.token("early", A, json!({}));
    issuer.rotate()?;
    let at_rotation = calls.load(Ordering::Relaxed);
    reached(at_rotation + 40).await;
    let client = rialto.client_of("a").await?;
    call(&client, "/a/mcp", &old).await?.expect_status(200)?;
    stop.store(true, Ordering::Relaxed);
    for worker in load {
        worker.await.expect("a worker does not panic")?;
    }
    assert!(issuer.fetches() <= 2, "{} fetches", issuer.fetches());
    Ok(())
}

#[tokio::test]
async fn an_issuer_that_is_away_is_waited_for_with_what_is_known() -> Result<()> {
    let issuer = Issuer::start().await?;
    let rialto = serve(&issuer, "").await?;
    let client = rialto.client_of("a").await?;
    let token = issuer.token("alice", A, json!({}));
    call(&client, "/a/mcp", &token).await?.expect_status(200)?;
    issuer.set_down(true);
    call(&client, "/a/mcp", &token).await?.expect_status(200)?;
    let fresh = issuer.token("bob", A, json!({}));
    call(&client, "/a/mcp", &fresh).await?.expect_status(200)?;
    issuer.rotate()?;
    let unknown = issuer.token("carol", A, json!({}));
    assert_eq!(call(&client, "/a/mcp", &unknown).await?.status, 401);

    // One that was never there is no reason to make a client sign in again.
    let absent = Issuer::start().await?;
    absent.set_down(true);
    let rialto = serve(&absent, "").await?;
    let client = rialto.client_of("a").await?;
    let token = absent.token("alice", A, json!({}));
    let reply = call(&client, "/a/mcp", &token).await?;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    assert_eq!(reply.answer()["error"]["data"]["reason"], "issuer_unavailable");
    Ok(())
}

#[tokio::test]
async fn a_stream_ends_with_the_token_it_was_opened_with_and_goes_on_with_the_next() -> Result<()> {
    let issuer = Issuer::start().await?;
    let rialto = serve(&issuer, "").await?;
    // Of the minute for clocks that differ, three seconds are left.
    let short = issuer.token("alice", A, json!({"exp": now() - 57}));
    let first = rialto
        .client_of("a")
        .await?
        .with_header("authorization", &format!("Bearer {short}"));
    first.handshake("2025-11-25", json!({})).await?;
    let mut stream = first.get_stream(None).await?;
    while stream.next().await?.is_some() {}
    assert_eq!(first.get(None).await?.status, 401);

    let next = rialto.client_of("a").await?.with_header(
        "authorization",
        &format!("Bearer {}", issuer.token("alice", A, json!({}))),
    );
    next.set_session(first.session().as_deref());
    next.set_version(Some("2025-11-25"));
    assert_eq!(next.call(1, "echo", json!({"marker": "on"})).await?.text(), "on");
    next.get_stream(None).await?;
    Ok(())
}

#[tokio::test]
async fn an_audience_of_ones_own_replaces_the_address() -> Result<()> {
    let issuer = Issuer::start().await?;
    let rialto = serve(&issuer, "    audience: 'api://mcp/{destination}'\n").await?;
    let client = rialto.client_of("a").await?;
    let token = issuer.token("alice", "api://mcp/a", json!({}));
    call(&client, "/a/mcp", &token).await?.expect_status(200)?;
    assert_eq!(call(&client, "/b/mcp", &token).await?.status, 401);
    assert_eq!(
        call(&client, "/a/mcp", &issuer.token("alice", A, json!({})))
            .await?
            .status,
        401
    );
    Ok(())
}

/// F8: each request that waited for a silent issuer asked it anew, 20 s each, one after the other.
#[tokio::test]
async fn h14_a_silent_issuer_is_waited_for_once_by_all() -> Result<()> {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let issuer = Issuer::start().await?;
    let config = format!(
        "public_url: {PUBLIC}\nauth:\n  jwt: {{ issuer: 'http://{}' }}\ndestinations:\n  a: {{ command: '{{stub}}' }}\n",
        silent.local_addr()?
    );
    let asked = Arc::new(AtomicUsize::new(0));
    let mut counting = tokio::task::JoinSet::new();
    counting.spawn({
        let asked = Arc::clone(&asked);
        async move {
            let mut held = Vec::new();
            while let Ok((stream, _)) = silent.accept().await {
                asked.fetch_add(1, Ordering::SeqCst);
                held.push(stream);
            }
        }
    });
    let rialto = Rialto::with_config(&config).await?;
    let token = issuer.token("alice", A, json!({}));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let client = rialto.client_of("a").await?;
        let token = token.clone();
        calls.spawn(async move { call(&client, "/a/mcp", &token).await });
    }
    while let Some(reply) = calls.join_next().await {
        let reply = reply.expect("the call ends")?;
        assert_eq!(reply.status, 503, "{}", reply.body_text());
        assert_eq!(reply.answer()["error"]["data"]["reason"], "issuer_unavailable");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1, "one fetch, one failure for all");
    counting.abort_all();
    Ok(())
}

/// F11: a name that is no plain text passed by the scopes of tools.
#[tokio::test]
async fn g15_odd_names_are_refused_where_a_tool_needs_a_scope() -> Result<()> {
    let issuer = Issuer::start().await?;
    let rialto = serve(&issuer, "    scopes: { 'tool:delay': [mcp:slow] }\n").await?;
    let token = issuer.token("alice", A, json!({"scope": "mcp"}));
    let client = rialto
        .client_of("a")
        .await?
        .with_header("authorization", &format!("Bearer {token}"));
    client.handshake("2025-11-25", json!({})).await?;
    client.expect_echo("plain").await?;
    for name in [
        json!("delay "),
        json!(" delay"),
        json!("delay\u{0}"),
        json!("delay\n"),
        json!(["delay"]),
        json!(1),
        json!({}),
        Value::Null,
    ] {
        let params = json!({"name": name, "arguments": {"ms": 1, "marker": "odd"}});
        let reply = client.request(1, "tools/call", params).await?;
        assert_eq!(
            reply.answer()["error"]["code"],
            -32602,
            "{name}: {}",
            reply.body_text()
        );
    }
    for method in [
        "tools/call ",
        " tools/call",
        "tools/call\\u0000",
        "tools/call\u{a0}",
        "tools/ call",
    ] {
        let params = json!({"name": "delay", "arguments": {"ms": 1, "marker": "odd"}});
        let reply = client.request(1, method, params).await?;
        assert_eq!(reply.status, 400, "{method:?}: {}", reply.body_text());
        assert_eq!(reply.answer()["error"]["code"], -32600, "{method:?}");
    }
    assert_eq!(rialto.journal().executions("odd"), 0);
    Ok(())
}

/// F17: other tokens of the issuer were as good as access tokens.
#[tokio::test]
async fn other_kinds_of_tokens_are_no_access_tokens() -> Result<()> {
    let issuer = Issuer::start().await?;
    let rialto = serve(&issuer, "").await?;
    let client = rialto.client_of("a").await?;
    let access = issuer.token("alice", A, json!({}));
    call(&client, "/a/mcp", &access).await?.expect_status(200)?;
    for other in [
        json!({"at_hash": "x"}),
        json!({"events": {}}),
        json!({"typ": "ID"}),
    ] {
        let refused = call(&client, "/a/mcp", &issuer.token("alice", A, other)).await?;
        assert_eq!(refused.status, 401);
    }
    let strict = serve(&issuer, "    types: [at+jwt]\n").await?;
    let client = strict.client_of("a").await?;
    assert_eq!(
        call(&client, "/a/mcp", &access).await?.status,
        401,
        "its header says JWT"
    );
    Ok(())
}
