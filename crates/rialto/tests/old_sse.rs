//! The old transport (HTTP with SSE) at the real binary: its answers, and what it withstands. The
//! official SDKs' clients of it are in `interop`.

use serde_json::{Value, json};
use testkit::client::EventStream;
use testkit::token::{Token, token, tokens_key};
use testkit::{McpClient, PATIENCE, Result, Rialto, poll_until, text_of, wait_until};

const CONFIG: &str = "destinations:\n  old:\n    command: '{stub} --journal {dir}/journal'\n    legacy_sse: true\n  new:\n    command: '{stub}'\n";

/// One client of the old transport.
struct OldClient {
    http: McpClient,
    endpoint: String,
    stream: EventStream,
}

impl OldClient {
    async fn connect(rialto: &Rialto) -> Result<Self> {
        let http = McpClient::connect(&old_url(rialto)).await?;
        let mut stream = http.get_stream(None).await?;
        let first = stream.next().await?.expect("the stream begins");
        assert_eq!(first.event.as_deref(), Some("endpoint"));
        assert_eq!(first.id, None);
        assert!(
            first.data.starts_with("/old/message?sessionId="),
            "{}",
            first.data
        );
        Ok(Self {
            http,
            endpoint: first.data,
            stream,
        })
    }

    async fn open(rialto: &Rialto, version: &str, capabilities: Value) -> Result<Self> {
        let mut client = Self::connect(rialto).await?;
        let welcome = client.introduce(version, capabilities).await?;
        assert_eq!(welcome["result"]["protocolVersion"], version, "{welcome}");
        client
            .post(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await?;
        Ok(client)
    }

    async fn introduce(&mut self, version: &str, capabilities: Value) -> Result<Value> {
        self.post(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "old", "version": "1"}
        }}))
        .await?;
        self.stream.message().await
    }

    /// Sends a message, which is accepted without a word.
    async fn post(&self, message: Value) -> Result<()> {
        let reply = self.try_post(&message.to_string()).await?;
        assert_eq!((reply.status, reply.body.len()), (202, 0), "{reply:?}");
        Ok(())
    }

    async fn try_post(&self, body: &str) -> Result<testkit::Reply> {
        post_to(&self.http, &self.endpoint, body).await
    }

    async fn call(&self, id: impl Into<Value>, tool: &str, arguments: Value) -> Result<()> {
        self.post(json!({"jsonrpc": "2.0", "id": id.into(), "method": "tools/call",
            "params": {"name": tool, "arguments": arguments, "_meta": {"progressToken": "p"}}}))
            .await
    }
}

/// What clients of both eras send before `initialize`.
fn discovery(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "server/discover", "params": {"_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {}}}})
}

#[tokio::test]
async fn h05_a_client_that_asks_for_the_modern_era_first_is_welcomed_in_the_legacy_one() -> Result<()> {
    let demo = testkit::rialto::binary("rialto");
    let modern = format!(
        "destinations:\n  old:\n    command: ['{}', demo-server, --era, modern]\n    legacy_sse: true\n",
        demo.display()
    );
    for config in [CONFIG, &modern] {
        let rialto = Rialto::with_config(config).await?;
        let mut client = OldClient::connect(&rialto).await?;
        for id in [1, 2] {
            client.post(discovery(id)).await?;
            let answer = client.stream.message().await?;
            assert_eq!(
                (&answer["id"], &answer["error"]["code"]),
                (&json!(id), &json!(-32601))
            );
        }
        let welcome = client.introduce("2025-11-25", json!({})).await?;
        assert_eq!(welcome["result"]["protocolVersion"], "2025-11-25", "{welcome}");
        // It is the same later in the session.
        client.post(discovery(3)).await?;
        assert_eq!(client.stream.message().await?["error"]["code"], -32601);
        client
            .post(json!({"jsonrpc": "2.0", "id": 4, "method": "tools/list"}))
            .await?;
        let list = client.stream.message().await?;
        assert!(list["result"]["tools"].is_array(), "{list}");
    }
    Ok(())
}

#[tokio::test]
async fn the_path_of_the_public_url_is_in_the_endpoint_event() -> Result<()> {
    let config = format!("public_url: https://mcp.example.com/behind/prefix/\n{CONFIG}");
    let rialto = Rialto::with_config(&config).await?;
    let http = McpClient::connect(&old_url(&rialto)).await?;
    let mut stream = http.get_stream(None).await?;
    let endpoint = stream.next().await?.expect("the stream begins").data;
    assert!(
        endpoint.starts_with("/behind/prefix/old/message?sessionId="),
        "{endpoint}"
    );
    Ok(())
}

#[tokio::test]
async fn a_page_of_another_site_opens_no_stream() -> Result<()> {
    let rialto = Rialto::with_config(CONFIG).await?;
    let client = McpClient::connect(&old_url(&rialto)).await?;
    let accept = ("accept", "*/*");
    for (site, status) in [("cross-site", 403), ("same-origin", 200), ("none", 200)] {
        let headers = [accept, ("sec-fetch-site", site)];
        let response = client.send("GET", "/old/sse", &headers, "").await?;
        assert_eq!(response.status, status, "{site}");
    }
    Ok(())
}

fn old_url(rialto: &Rialto) -> String {
    format!("http://{}/old/sse", rialto.address())
}

async fn post_to(http: &McpClient, endpoint: &str, body: &str) -> Result<testkit::Reply> {
    let headers = [("content-type", "application/json")];
    http.send("POST", endpoint, &headers, body.to_owned())
        .await?
        .reply()
        .await
}

#[tokio::test]
async fn every_word_to_the_client_is_a_message_event_without_an_id() -> Result<()> {
    let rialto = Rialto::with_config(CONFIG).await?;
    let mut client = OldClient::open(&rialto, "2024-11-05", json!({})).await?;
    client
        .call(1, "progress", json!({"n": 3, "marker": "steps"}))
        .await?;
    for step in 1..=3 {
        let event = client.stream.next().await?.expect("progress comes");
        assert_eq!((event.event.as_deref(), &event.id), (Some("message"), &None));
        assert_eq!(event.json()["params"]["progress"], step);
        assert_eq!(event.json()["params"]["progressToken"], "p");
    }
    let answer = client.stream.message().await?;
    assert_eq!((&answer["id"], text_of(&answer)), (&json!(1), "steps"));
    client
        .post(json!({"jsonrpc": "2.0", "id": "p", "method": "ping"}))
        .await?;
    assert_eq!(
        client.stream.message().await?,
        json!({"jsonrpc": "2.0", "id": "p", "result": {}})
    );
    Ok(())
}

#[tokio::test]
async fn the_revision_is_negotiated_as_in_every_legacy_session_and_nothing_is_primed() -> Result<()> {
    let rialto = Rialto::with_config(CONFIG).await?;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut client = OldClient::open(&rialto, version, json!({})).await?;
        client.call(7, "echo", json!({"marker": version})).await?;
        assert_eq!(text_of(&client.stream.message().await?), version);
        assert_eq!(client.stream.last_event_id(), None);
    }
    Ok(())
}

/// C1: real clients use one id for everything.
#[tokio::test]
async fn fifty_calls_with_one_id_are_answered_fifty_times() -> Result<()> {
    let rialto = Rialto::with_config(CONFIG).await?;
    let mut client = OldClient::open(&rialto, "2024-11-05", json!({})).await?;
    for call in 0..50 {
        client
            .call(
                1,
                "delay",
                json!({"ms": 50 - call, "marker": format!("call {call}")}),
            )
            .await?;
    }
    let mut seen = Vec::new();
    for _ in 0..50 {
        let answer = client.stream.message().await?;
        assert_eq!(answer["id"], 1);
        seen.push(text_of(&answer).to_owned());
    }
    seen.sort();
    let mut expected: Vec<String> = (0..50).map(|call| format!("call {call}")).collect();
    expected.sort();
    assert_eq!(seen, expected);
    Ok(())
}

#[tokio::test]
async fn a_question_comes_on_the_stream_and_its_answer_by_post() -> Result<()> {
    let rialto = Rialto::with_config(CONFIG).await?;
    let mut client = OldClient::open(&rialto, "2025-06-18", json!({"elicitation": {}})).await?;
    client.call(1, "ask_elicit", json!({"marker": "asked"})).await?;
    let question = client.stream.message().await?;
    assert_eq!(question["method"], "elicitation/create", "{question}");
    client
        .post(json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}}}))
        .await?;
    let answer = client.stream.message().await?;
    assert_eq!(answer["id"], 1, "{answer}");
    Ok(())
}

/// The stream's end is the session's end: what runs is cancelled, and its place is free.
#[tokio::test]
async fn a_broken_stream_ends_its_session_and_cancels_its_calls() -> Result<()> {
    let rialto = Rialto::with_config(CONFIG).await?;
    let OldClient {
        http,
        endpoint,
        stream,
    } = {
        let client = OldClient::open(&rialto, "2024-11-05", json!({})).await?;
        client.call(1, "never", json!({"marker": "in flight"})).await?;
        rialto.wait_for_execution("in flight").await;
        client
    };
    drop(stream);
    let journal = rialto.journal();
    wait_until("the server hears of it", PATIENCE, || {
        (!journal.events("cancelled").is_empty()).then_some(())
    })
    .await;
    let reply = post_to(&http, &endpoint, r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#).await?;
    reply.expect_error(404, -32600)?;
    let ready = http.send("GET", "/ready", &[], "").await?.reply().await?;
    assert_eq!(ready.answer()["destinations"]["old"]["sessions"], 0);
    Ok(())
}

/// G3, G4: an id is good for its own stream, at its own destination; what is none of ours is simply
/// unknown.
#[tokio::test]
async fn only_the_id_of_an_open_stream_is_known() -> Result<()> {
    let rialto = Rialto::with_config(&CONFIG.replace("'{stub}'", "'{stub}'\n    legacy_sse: true")).await?;
    let client = OldClient::open(&rialto, "2024-11-05", json!({})).await?;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let id = client.endpoint.split_once('=').expect("an id").1;
    let mut refused = Vec::new();
    for path in [
        "/old/message?sessionId=8f7a1c2e-1111-4222-8333-123456789abc".to_owned(),
        "/old/message?sessionId=__proto__".to_owned(),
        "/old/message?sessionId=".to_owned(),
        format!("/new/message?sessionId={id}"),
    ] {
        let reply = post_to(&client.http, &path, ping).await?;
        reply.expect_error(404, -32600)?;
        refused.push(reply.body);
        client_is_fine(&rialto).await?;
    }
    assert!(
        refused.windows(2).all(|pair| pair[0] == pair[1]),
        "byte for byte the same"
    );
    let reply = post_to(&client.http, "/old/message", ping).await?;
    reply.expect_error(400, -32600)?;
    let reply = post_to(
        &client.http,
        &format!("/old/message?sessionId={id}&sessionId={id}"),
        ping,
    )
    .await?;
    reply.expect_error(400, -32600)?;
    Ok(())
}

async fn client_is_fine(rialto: &Rialto) -> Result<()> {
    let mut client = OldClient::open(rialto, "2024-11-05", json!({})).await?;
    client.call(1, "echo", json!({"marker": "fine"})).await?;
    assert_eq!(text_of(&client.stream.message().await?), "fine");
    Ok(())
}

#[tokio::test]
async fn invalid_message_is_refused_on_the_post_and_one_with_an_id_on_the_stream() -> Result<()> {
    let rialto = Rialto::with_config(CONFIG).await?;
    let mut client = OldClient::open(&rialto, "2024-11-05", json!({})).await?;
    for (body, code) in [
        (r#"{"jsonrpc":"#, -32700),
        ("[]", -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"tools/list"}"#, -32600),
    ] {
        client.try_post(body).await?.expect_error(400, code)?;
    }
    // Refused by its content length; 64 MB are not read for that.
    let mut raw = rialto.raw().await?;
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 64000000\r\n\r\n",
        client.endpoint
    );
    assert_eq!(raw.exchange(head).await?.status, 413);
    let plain = [("content-type", "text/plain")];
    let reply = client.http.send("POST", &client.endpoint, &plain, "{}").await?;
    assert_eq!(reply.reply().await?.status, 415);
    // C13: a session is opened once. The SDKs look for the answer on the stream.
    let again = client.introduce("2024-11-05", json!({})).await?;
    assert_eq!(
        (&again["id"], &again["error"]["code"]),
        (&json!(0), &json!(-32600)),
        "{again}"
    );
    client.call(5, "echo", json!({"marker": "all the same"})).await?;
    assert_eq!(text_of(&client.stream.message().await?), "all the same");
    Ok(())
}

/// An EventSource opens a lost stream again by itself, and its client may know nothing of it.
#[tokio::test]
async fn a_client_that_came_back_without_an_introduction_is_answered() -> Result<()> {
    let rialto = Rialto::with_config(CONFIG).await?;
    let mut client = OldClient::connect(&rialto).await?;
    client
        .post(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        .await?;
    client.call("x", "echo", json!({"marker": "implicit"})).await?;
    let answer = client.stream.message().await?;
    assert_eq!((&answer["id"], text_of(&answer)), (&json!("x"), "implicit"));
    Ok(())
}

#[tokio::test]
async fn a_server_that_dies_fails_the_call_and_the_session_goes_on() -> Result<()> {
    let rialto = Rialto::with_config(CONFIG).await?;
    let mut client = OldClient::open(&rialto, "2024-11-05", json!({})).await?;
    client.call(1, "exit", json!({"code": 3})).await?;
    let failed = client.stream.message().await?;
    assert_eq!(
        (&failed["id"], &failed["error"]["code"]),
        (&json!(1), &json!(-32603)),
        "{failed}"
    );
    client.call(2, "echo", json!({"marker": "again"})).await?;
    loop {
        let message = client.stream.message().await?;
        if message["id"] == 2 {
            assert_eq!(text_of(&message), "again");
            return Ok(());
        }
        // The lists may have changed with the new child.
        assert!(
            message["method"]
                .as_str()
                .is_some_and(|method| method.ends_with("list_changed")),
            "{message}"
        );
    }
}

/// G1, and the methods: both paths are guarded like every other.
#[tokio::test]
async fn foreign_hosts_origins_and_methods_are_refused_on_both_paths() -> Result<()> {
    let rialto = Rialto::with_config(CONFIG).await?;
    let client = OldClient::open(&rialto, "2024-11-05", json!({})).await?;
    let http = &client.http;
    let accept = ("accept", "text/event-stream");
    let json_body = ("content-type", "application/json");
    for foreign in [
        ("host", "evil.example"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
    ] {
        let reply = http.send("GET", "/old/sse", &[accept, foreign], "").await?;
        assert_eq!(reply.status, 403, "{foreign:?}");
        let reply = http
            .send("POST", &client.endpoint, &[json_body, foreign], "{}")
            .await?;
        assert_eq!(reply.status, 403, "{foreign:?}");
    }
    for (method, path, allow) in [
        ("POST", "/old/sse", "GET"),
        ("DELETE", "/old/sse", "GET"),
        ("GET", client.endpoint.as_str(), "POST"),
    ] {
        let reply = http.send(method, path, &[json_body, accept], "").await?;
        assert_eq!(
            (reply.status, reply.header("allow")),
            (405, Some(allow)),
            "{method} {path}"
        );
    }
    let reply = http
        .send("GET", "/old/sse", &[("accept", "application/json")], "")
        .await?;
    assert_eq!(reply.status, 406);
    for path in ["/new/sse", "/new/message?sessionId=x"] {
        let reply = http.send("GET", path, &[accept], "").await?.reply().await?;
        assert_eq!(reply.status, 410, "{path}");
        assert!(String::from_utf8_lossy(&reply.body).contains("/new/mcp"));
    }
    Ok(())
}

#[tokio::test]
async fn streams_are_as_many_as_sessions_and_a_refused_one_leaves_nothing() -> Result<()> {
    let rialto =
        Rialto::with_config(&CONFIG.replace("legacy_sse: true", "legacy_sse: true\n    max_sessions: 2"))
            .await?;
    let first = OldClient::open(&rialto, "2024-11-05", json!({})).await?;
    let _second = OldClient::connect(&rialto).await?;
    for _ in 0..10 {
        let reply = first.http.get(None).await?.reply().await?;
        reply.expect_error(503, -32603)?;
        assert!(reply.header("retry-after").is_some());
    }
    drop(first);
    let mut client = wait_for_room(&rialto).await?;
    client.call(1, "echo", json!({"marker": "room"})).await?;
    assert_eq!(text_of(&client.stream.message().await?), "room");
    Ok(())
}

/// The end of a stream is noticed a little later than it happens.
async fn wait_for_room(rialto: &Rialto) -> Result<OldClient> {
    poll_until("there is room for a client", PATIENCE, async || {
        Ok(OldClient::open(rialto, "2024-11-05", json!({})).await.ok())
    })
    .await
}

/// F1: what runs is answered on the stream, and the stream ends properly.
#[tokio::test]
async fn sigterm_answers_what_runs_and_ends_the_stream() -> Result<()> {
    let rialto = Rialto::with_config(CONFIG).await?;
    let mut client = OldClient::open(&rialto, "2024-11-05", json!({})).await?;
    let silent = OldClient::connect(&rialto).await?;
    client
        .call(1, "delay", json!({"ms": 300, "marker": "late"}))
        .await?;
    rialto.wait_for_execution("late").await;
    rialto.sigterm();
    assert_eq!(text_of(&client.stream.message().await?), "late");
    assert!(client.stream.next().await?.is_none());
    let mut stream = silent.stream;
    assert!(stream.next().await?.is_none());
    assert!(rialto.wait(PATIENCE).await.success());
    Ok(())
}

/// A call that never ends is answered before the stream ends.
#[tokio::test]
async fn the_end_of_the_drain_fails_what_still_runs_on_the_stream() -> Result<()> {
    let rialto = Rialto::launcher()
        .env("RIALTO_DRAIN", "100ms")
        .config(CONFIG)
        .start()
        .await?;
    let mut client = OldClient::open(&rialto, "2024-11-05", json!({})).await?;
    client.call(1, "never", json!({"marker": "for ever"})).await?;
    rialto.wait_for_execution("for ever").await;
    rialto.sigterm();
    let failed = client.stream.message().await?;
    assert_eq!(
        (&failed["id"], &failed["error"]["code"]),
        (&json!(1), &json!(-32603)),
        "{failed}"
    );
    assert!(client.stream.next().await?.is_none());
    assert!(rialto.wait(PATIENCE).await.success());
    Ok(())
}

/// An old server behind: its old clients find what they always found, and new ones find `/mcp`.
#[tokio::test]
async fn a_remote_server_of_the_old_transport_is_reached_both_ways() -> Result<()> {
    let behind = Rialto::with_config(CONFIG).await?;
    let config = format!(
        "destinations:\n  old:\n    type: sse\n    url: {}\n",
        old_url(&behind)
    );
    let rialto = Rialto::with_config(&config).await?;
    let mut client = OldClient::open(&rialto, "2024-11-05", json!({})).await?;
    client
        .call(1, "progress", json!({"n": 2, "marker": "far"}))
        .await?;
    for step in 1..=2 {
        assert_eq!(client.stream.message().await?["params"]["progress"], step);
    }
    assert_eq!(text_of(&client.stream.message().await?), "far");
    let client = rialto.session_of("old").await?;
    let reply = client.call(1, "echo", json!({"marker": "new way"})).await?;
    assert_eq!(reply.text(), "new way");
    Ok(())
}

/// A new server behind, and an old client in front of it.
#[tokio::test]
async fn a_remote_server_of_streamable_http_is_reached_by_old_clients() -> Result<()> {
    let behind = Rialto::with_config(CONFIG).await?;
    let config = format!(
        "destinations:\n  old:\n    type: streamable_http\n    url: {}\n    legacy_sse: true\n",
        behind.url_of("new")
    );
    let rialto = Rialto::with_config(&config).await?;
    let mut client = OldClient::open(&rialto, "2025-06-18", json!({"elicitation": {}})).await?;
    client.call(1, "ask_elicit", json!({"marker": "asked"})).await?;
    let question = client.stream.message().await?;
    client
        .post(json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}}}))
        .await?;
    assert_eq!(client.stream.message().await?["id"], 1);
    Ok(())
}

/// G3: the session is its principal's. To every other caller it does not exist, and without a token
/// there is no access.
#[tokio::test]
async fn another_principal_does_not_find_the_session() -> Result<()> {
    let (alice, bob) = (token("alice"), token("bob"));
    let tokens = tokens_key(&[("alice", &alice), ("bob", &bob)]);
    let rialto = Rialto::with_config(&format!("auth:\n{tokens}{CONFIG}")).await?;
    let anonymous = McpClient::connect(&old_url(&rialto)).await?;
    assert_eq!(anonymous.get(None).await?.status, 401);
    let with = |token: &Token| format!("Bearer {}", token.token);
    let http = McpClient::connect(&old_url(&rialto))
        .await?
        .with_header("authorization", &with(&alice));
    let mut stream = http.get_stream(None).await?;
    let endpoint = stream.next().await?.expect("the stream begins").data;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for (authorization, status) in [(Some(&bob), 404), (None, 401), (Some(&alice), 202)] {
        let authorization = authorization.map(with);
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(authorization.as_deref().map(|value| ("authorization", value)));
        let reply = http.send("POST", &endpoint, &headers, ping).await?;
        assert_eq!(reply.status, status);
    }
    assert_eq!(stream.message().await?["result"], json!({}));
    Ok(())
}

#[tokio::test]
async fn g17_a_session_of_the_old_transport_has_its_minute_too() -> Result<()> {
    let rialto =
        Rialto::with_config(&format!("limits: {{ session_requests_per_minute: 5 }}\n{CONFIG}")).await?;
    let mut client = OldClient::open(&rialto, "2024-11-05", json!({})).await?;
    // One request of the handshake counted: the stream had its session by then.
    for call in 1..=4 {
        client
            .call(call, "echo", json!({"marker": format!("{call}")}))
            .await?;
        assert_eq!(text_of(&client.stream.message().await?), format!("{call}"));
    }
    let body = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call",
        "params": {"name": "echo", "arguments": {"marker": "one too many"}}});
    let refused = client.try_post(&body.to_string()).await?;
    assert_eq!(refused.status, 429, "{}", refused.body_text());
    assert_eq!(rialto.journal().executions("one too many"), 0);
    Ok(())
}

/// A server of both eras that a legacy client never got to know is not taken for one of the modern
/// era.
#[tokio::test]
async fn client_that_leaves_before_the_handshake_decides_nothing_about_the_server() -> Result<()> {
    // The server begins when the test creates the file.
    let script = "while [ ! -e \"$0/go\" ]; do sleep 0.02; done; exec \"$1\" demo-server";
    let server = testkit::rialto::binary("rialto");
    let rialto = Rialto::with_config(&format!(
        "destinations:\n  old:\n    command: sh\n    args: [-c, '{script}', '{{dir}}', '{}']\n    start: lazy\n    legacy_sse: true\n",
        server.display(),
    ))
    .await?;
    let client = OldClient::connect(&rialto).await?;
    client
        .post(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}}))
        .await?;
    drop(client);
    let http = McpClient::connect(&format!("http://{}/old/mcp", rialto.address())).await?;
    wait_until_no_session(&http).await?;
    std::fs::write(rialto.dir().join("go"), "")?;
    // A probe of the era, if there was one, has its answer when this one is answered.
    let discovery = json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "modern", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {}}}});
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "server/discover"),
    ];
    let found = http
        .send("POST", "/old/mcp", &headers, discovery.to_string())
        .await?
        .reply()
        .await?;
    assert_eq!(found.status, 200, "{}", found.body_text());
    http.handshake("2025-11-25", json!({})).await?;
    let log = rialto.stderr().join("\n");
    assert!(!log.contains("legacy clients are translated"), "{log}");
    Ok(())
}

/// Waits until the gateway has noticed that all clients have left.
async fn wait_until_no_session(http: &McpClient) -> Result<()> {
    poll_until("no session is open", PATIENCE, async || {
        let ready = http.send("GET", "/ready", &[], "").await?.reply().await?;
        let ready: Value = serde_json::from_slice(&ready.body).expect("JSON");
        Ok((ready["destinations"]["old"]["sessions"] == 0).then_some(()))
    })
    .await
}
