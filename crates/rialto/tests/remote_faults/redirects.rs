//! D10: where a redirect may lead.

use serde_json::json;
use testkit::Upstream;
use testkit::upstream::{Step, calls};

use crate::stage::{Stage, assert_failed, echo};

#[tokio::test]
async fn d10_a_redirect_within_the_origin_is_followed_with_the_body() {
    for status in [301, 302, 307, 308] {
        let stage = Stage::legacy().await;
        let client = stage.session().await;
        let moved = |seen: &testkit::upstream::Exchange| seen.tool() == "moved" && seen.path == "/mcp";
        stage
            .upstream
            .once(moved, vec![Step::redirect(status, "/elsewhere/mcp")]);
        let reply = client.call(1, "moved", json!({"text": "there"})).await;
        assert_eq!(reply.expect("an answer").text(), "there", "{status}");
        let seen = stage.upstream.seen(calls("moved"));
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[1].path, "/elsewhere/mcp");
        assert_eq!(seen[1].http_method, "POST");
        assert_eq!(stage.upstream.executions("moved"), 1);
    }
}

#[tokio::test]
async fn d10_another_origin_gets_nothing() {
    for status in [301, 302, 307, 308] {
        let other = Upstream::legacy().start().await.expect("an upstream");
        let upstream = Upstream::legacy().start().await.expect("an upstream");
        let keys = json!({"type": "streamable_http", "headers": {"Authorization": "Bearer hush"}});
        let stage = Stage::configured(upstream, keys).await;
        let client = stage.session().await;
        stage
            .upstream
            .once(calls("moved"), vec![Step::redirect(status, &other.url())]);
        let reply = client.call(1, "moved", json!({})).await.expect("an answer");
        assert_failed(&reply, &[502]);
        assert!(other.exchanges().is_empty(), "{status}: {:?}", other.exchanges());
        assert_eq!(echo(&client, 2, "after").await, "after");
    }
}

#[tokio::test]
async fn d10_another_host_name_or_scheme_is_another_origin() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let port = stage.upstream.address().port();
    let elsewhere = [
        format!("http://localhost:{port}/mcp"),
        format!("https://127.0.0.1:{port}/mcp"),
        format!("//localhost:{port}/mcp"),
        format!("http://user@127.0.0.2:{port}/mcp"),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "file:///etc/passwd".to_owned(),
        "javascript:alert(1)".to_owned(),
        "http://".to_owned(),
    ];
    for (number, location) in elsewhere.iter().enumerate() {
        stage
            .upstream
            .once(calls("moved"), vec![Step::redirect(307, location)]);
        let reply = client.call(number, "moved", json!({})).await.expect("an answer");
        assert_failed(&reply, &[502]);
    }
    assert_eq!(stage.upstream.seen(calls("moved")).len(), elsewhere.len());
    assert_eq!(stage.upstream.executions("moved"), 0);
}

#[tokio::test]
async fn d10_a_loop_is_left_after_three_turns() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    stage
        .upstream
        .always(calls("round"), vec![Step::redirect(307, "/mcp")]);
    let reply = client.call(1, "round", json!({})).await.expect("an answer");
    assert_failed(&reply, &[502]);
    let turns = stage.upstream.seen(calls("round")).len();
    assert!((2..=4).contains(&turns), "{turns}");
}

#[tokio::test]
async fn d10_a_redirect_of_the_handshake_to_another_origin_gets_nothing() {
    let other = Upstream::legacy().start().await.expect("an upstream");
    let upstream = Upstream::legacy().start().await.expect("an upstream");
    upstream.always(|_| true, vec![Step::redirect(308, &other.url())]);
    let keys = json!({"type": "streamable_http", "headers": {"Authorization": "Bearer hush"}});
    let stage = Stage::configured(upstream, keys).await;
    let client = stage.rialto.client_of("remote").await.expect("rialto listens");
    let reply = client.initialize("2025-11-25", json!({})).await;
    assert_failed(&reply.expect("an answer"), &[502, 503]);
    assert!(other.exchanges().is_empty());
}
