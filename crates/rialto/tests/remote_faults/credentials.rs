//! What the upstream gets to see of secrets: its own, and no others.

use serde_json::json;
use testkit::upstream::{Exchange, Step, calls};
use testkit::{Rialto, Upstream};

use crate::stage::{self, Stage, assert_failed, echo};

#[tokio::test]
async fn configured_headers_go_with_every_request() {
    let upstream = Upstream::legacy().start().await.expect("an upstream");
    let keys = json!({"type": "streamable_http", "headers": {"Authorization": "Bearer ${UPSTREAM_TOKEN}", "X-Team": "rialto"}});
    let mut destination = keys;
    destination["url"] = upstream.url().into();
    let file = json!({"destinations": {"remote": destination}}).to_string();
    let rialto = Rialto::launcher()
        .config(&file)
        .env("UPSTREAM_TOKEN", "t0ken")
        .start()
        .await
        .expect("rialto starts");
    let client = stage::session(&rialto).await;
    let _notices = client.get_stream(None).await.expect("a stream");
    upstream.wait_for_streams(1).await;
    assert_eq!(echo(&client, 1, "hello").await, "hello");
    client.delete().await.expect("an answer");
    upstream
        .wait_for("the end", |seen| seen.http_method == "DELETE")
        .await;
    for seen in upstream.exchanges() {
        assert_eq!(seen.header("authorization"), Some("Bearer t0ken"), "{seen:?}");
        assert_eq!(seen.header("x-team"), Some("rialto"), "{seen:?}");
    }
    let logged = rialto.stderr().join("\n");
    assert!(!logged.contains("t0ken"), "{logged}");
}

#[tokio::test]
async fn g7_credentials_of_a_client_are_not_forwarded() {
    let stage = Stage::legacy().await;
    let client = stage.rialto.client_of("remote").await.expect("rialto listens");
    let client = client
        .with_header("authorization", "Bearer clients-own")
        .with_header("cookie", "session=clients-own")
        .with_header("proxy-authorization", "Basic clients-own")
        .with_header("x-forwarded-for", "203.0.113.7")
        .with_header("x-api-key", "clients-own");
    client
        .handshake(testkit::LEGACY, json!({}))
        .await
        .expect("a handshake");
    assert_eq!(echo(&client, 1, "hello").await, "hello");
    let front = client.session().expect("a session");
    assert_nothing_of(&stage.upstream, &["clients-own", "203.0.113.7", &front]);
}

#[tokio::test]
async fn g7_credentials_of_a_modern_client_are_not_forwarded() {
    let stage = Stage::modern().await;
    let client = stage.rialto.client_of("remote").await.expect("rialto listens");
    client.set_version(Some(testkit::MODERN));
    let client = client
        .with_header("authorization", "Bearer clients-own")
        .with_header("cookie", "session=clients-own")
        .with_header("mcp-session-id", "clients-own")
        .with_header("last-event-id", "clients-own")
        .with_header("mcp-method", "tools/call")
        .with_header("mcp-name", "echo");
    let meta = json!({"io.modelcontextprotocol/protocolVersion": testkit::MODERN,
                      "io.modelcontextprotocol/clientCapabilities": {}});
    let reply = client
        .request(1, "tools/call", json!({"name": "echo", "_meta": meta}))
        .await
        .expect("an answer");
    assert_eq!(reply.text(), "done");
    assert_nothing_of(&stage.upstream, &["clients-own"]);
}

#[tokio::test]
async fn headers_that_are_to_be_forwarded_are_and_no_others() {
    let upstream = Upstream::legacy().start().await.expect("an upstream");
    let keys = json!({"type": "streamable_http", "forward_headers": ["X-Tenant"]});
    let stage = Stage::configured(upstream, keys).await;
    let open = async |tenant: &str| {
        let client = stage.rialto.client_of("remote").await.expect("rialto listens");
        let client = client
            .with_header("x-tenant", tenant)
            .with_header("x-other", "unnamed");
        client
            .handshake(testkit::LEGACY, json!({}))
            .await
            .expect("a handshake");
        client
    };
    let (one, other) = (open("one").await, open("other").await);
    assert_eq!(echo(&one, 1, "one").await, "one");
    assert_eq!(echo(&other, 1, "other").await, "other");
    for tenant in ["one", "other"] {
        let of_tenant = move |seen: &Exchange| {
            seen.tool() == "echo" && seen.body["params"]["arguments"]["text"] == tenant
        };
        assert_eq!(stage.upstream.seen(of_tenant)[0].header("x-tenant"), Some(tenant));
    }
    assert_nothing_of(&stage.upstream, &["unnamed"]);
}

#[tokio::test]
async fn credentials_that_are_refused_are_an_error_without_the_challenge() {
    for status in [401, 403] {
        let stage = Stage::legacy().await;
        let client = stage.session().await;
        let mut refusal = Step::status(status);
        if let Step::Respond { headers, .. } = &mut refusal {
            let challenge = "Bearer realm=\"inside\", scope=\"everything\"";
            headers.push(("www-authenticate".to_owned(), challenge.to_owned()));
        }
        stage.upstream.once(calls("pay"), vec![refusal]);
        let reply = client.call(1, "pay", json!({})).await.expect("an answer");
        assert_failed(&reply, &[502]);
        assert!(reply.header("www-authenticate").is_none(), "{reply:?}");
        assert!(!reply.answer_text().contains("inside"), "{reply:?}");
        assert_eq!(stage.upstream.seen(calls("pay")).len(), 1);
        assert_eq!(echo(&client, 2, "after").await, "after");
    }
}

#[track_caller]
fn assert_nothing_of(upstream: &Upstream, secrets: &[&str]) {
    for seen in upstream.exchanges() {
        let shown = format!("{seen:?}");
        for secret in secrets {
            assert!(!shown.contains(secret), "{secret} in {shown}");
        }
    }
}
