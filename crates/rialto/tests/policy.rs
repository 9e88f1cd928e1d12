//! Which tools may be seen and called (row G15): the policy and the server see the same name.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testkit::{McpClient, Reply, Result, Rialto};

const POLICY: &str = "
destinations:
  some:
    command: '{stub} --journal {dir}/journal'
    tools: { allow: [echo, 'm*'], deny: ['*ror'] }
  most:
    command: '{stub} --journal {dir}/journal'
    tools: { deny: [exit, 'stop_*'] }
  demo:
    command: rialto-demo
    tools: { allow: [echo] }
";

async fn with_policy() -> Result<Rialto> {
    let demo = format!(
        "[\"{}\", demo-server, --era, modern]",
        env!("CARGO_BIN_EXE_rialto")
    );
    Rialto::launcher()
        .config(&POLICY.replace("rialto-demo", &demo))
        .args(&["--audit", "stdout"])
        .start()
        .await
}

fn names(list: &Reply) -> BTreeSet<String> {
    let answer = list.answer();
    let tools = answer["result"]["tools"].as_array().cloned().unwrap_or_default();
    let name = |tool: &Value| tool["name"].as_str().map(str::to_owned);
    tools.iter().filter_map(name).collect()
}

/// A request of the modern era.
async fn modern(
    client: &McpClient,
    path: &str,
    method: &str,
    mut params: Value,
    header: Option<&str>,
) -> Result<Reply> {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let mut headers = vec![
        ("content-type", "application/json"),
        ("accept", testkit::client::ACCEPT),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", method),
    ];
    headers.extend(header.map(|name| ("mcp-name", name)));
    client
        .send("POST", path, &headers, body.to_string())
        .await?
        .reply()
        .await
}

/// A call of a tool by any name, written as JSON writes it.
async fn call(client: &McpClient, tool: &str) -> Result<Reply> {
    let params = json!({"name": tool, "arguments": {}});
    client.request(1, "tools/call", params).await
}

fn assert_denied(reply: &Reply, name: &str) {
    let answer = reply.answer();
    assert_eq!(reply.status, 200, "{answer}");
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert_eq!(answer["error"]["data"]["reason"], "tool_denied", "{answer}");
    assert_eq!(answer["error"]["message"], format!("Unknown tool: {name}"));
}

#[tokio::test]
async fn a_list_shows_what_may_be_called_and_nothing_else() -> Result<()> {
    let rialto = with_policy().await?;
    let some = rialto.session_of("some").await?;
    let listed = names(&some.request(1, "tools/list", "{}").await?);
    assert_eq!(listed, BTreeSet::from(["echo".to_owned()]));
    let most = rialto.session_of("most").await?;
    let listed = names(&most.request(1, "tools/list", "{}").await?);
    assert!(listed.contains("echo") && listed.contains("mirror"), "{listed:?}");
    assert!(
        !listed.contains("exit") && !listed.contains("stop_reading"),
        "{listed:?}"
    );
    assert_eq!(
        some.call(2, "echo", json!({"marker": "seen"})).await?.text(),
        "seen"
    );
    // The number of tools is known where a client has read the list.
    let ready = some.send("GET", "/ready", &[], "").await?.reply().await?.answer();
    let tools = |name: &str| ready["destinations"][name]["tools"].as_u64();
    let expected = [Some(1), Some(listed.len() as u64), None];
    assert_eq!(["some", "most", "demo"].map(tools), expected, "{ready}");
    Ok(())
}

#[tokio::test]
async fn a_denied_tool_is_unknown_is_not_run_and_leaves_a_record() -> Result<()> {
    let rialto = with_policy().await?;
    let client = rialto.session_of("some").await?;
    assert_denied(
        &client.call(1, "mirror", json!({"marker": "never"})).await?,
        "mirror",
    );
    assert_denied(&client.call(2, "exit", json!({"code": 3})).await?, "exit");
    assert_eq!(
        client.call(3, "echo", json!({"marker": "fence"})).await?.text(),
        "fence"
    );
    let heard = rialto.journal().received("tools/call");
    assert_eq!(heard.len(), 1, "{heard:?}");
    let refused = testkit::wait_until("two records", std::time::Duration::from_secs(10), || {
        let lines = rialto.stdout();
        let refused: Vec<String> = lines
            .into_iter()
            .filter(|line| line.contains(r#""outcome":"refused""#))
            .collect();
        (refused.len() == 2).then_some(refused)
    })
    .await;
    assert!(refused[0].contains(r#""tool":"mirror""#), "{refused:?}");
    let page = client.metrics().await?;
    assert!(
        page.contains(r#"rialto_refusals_total{reason="tool_denied"} 2"#),
        "{page}"
    );
    Ok(())
}

#[tokio::test]
async fn a_denied_call_opens_no_session_and_starts_no_child() -> Result<()> {
    let config = POLICY.replace(
        "    tools: { allow: [echo, 'm*']",
        "    start: lazy\n    tools: { allow: [echo, 'm*']",
    );
    let rialto = Rialto::with_config(&config.replace("rialto-demo", "cat")).await?;
    let client = rialto.client_of("some").await?;
    let reply = client.call(1, "exit", "{}").await?;
    assert_denied(&reply, "exit");
    assert_eq!(reply.header("mcp-session-id"), None);
    let page = client.metrics().await?;
    assert!(
        page.contains(r#"rialto_sessions_opened_total{destination="some"} 0"#),
        "{page}"
    );
    assert!(
        page.contains(r#"rialto_child_starts_total{destination="some"} 0"#),
        "{page}"
    );
    Ok(())
}

#[tokio::test]
async fn g15_variants_of_a_name_are_checked_as_the_server_reads_them() -> Result<()> {
    let rialto = with_policy().await?;
    // An allowance: nothing but the very name passes.
    let some = rialto.session_of("some").await?;
    for variant in [
        "Echo",
        "ECHO",
        "echo ",
        " echo",
        "echo\0",
        "echo\u{200b}",
        "\u{435}cho",
        "e\u{301}cho",
        "echo\n",
    ] {
        assert_denied(&call(&some, variant).await?, variant);
    }
    // A denial: what any server could read as the denied name is denied; another name is the
    // server's business.
    let most = rialto.session_of("most").await?;
    for variant in ["exit", "exit\0", "exit ", "\texit"] {
        assert_denied(&call(&most, variant).await?, variant);
    }
    let other = most.call(1, "EXIT", "{}").await?.answer();
    assert_ne!(other["error"]["data"]["reason"], "tool_denied", "{other}");
    // The same name with escapes is the same name.
    let body =
        r#"{"jsonrpc":"2.0","id":4,"method":"tools\/call","params":{"name":"\u0065xit","arguments":{}}}"#;
    let reply = most.post(body).await?.reply().await?;
    assert_denied(&reply, "exit");
    let body = r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"echo","name":"exit"}}"#;
    most.post(body).await?.reply().await?.expect_error(400, -32600)?;
    assert_eq!(
        most.call(5, "echo", json!({"marker": "alive"})).await?.text(),
        "alive"
    );
    Ok(())
}

#[tokio::test]
async fn g15_modern_requests_are_checked_by_their_body_and_not_by_their_headers() -> Result<()> {
    let rialto = with_policy().await?;
    for destination in ["some", "demo"] {
        let client = rialto.client_of(destination).await?;
        let path = format!("/{destination}/mcp");
        let listed = names(&modern(&client, &path, "tools/list", json!({}), None).await?);
        assert_eq!(listed, BTreeSet::from(["echo".to_owned()]), "{destination}");
        let denied = json!({"name": "add", "arguments": {"a": 1, "b": 2}});
        for header in ["add", "echo", "=?base64?YWRk?=", "=?base64?ZWNobw==?="] {
            let reply = modern(&client, &path, "tools/call", denied.clone(), Some(header)).await?;
            assert_denied(&reply, "add");
        }
        let allowed = json!({"name": "echo", "arguments": {"text": "x", "marker": "x"}});
        let reply = modern(&client, &path, "tools/call", allowed, Some("echo")).await?;
        assert_eq!(reply.text(), "x", "{}", reply.body_text());
    }
    Ok(())
}

#[tokio::test]
async fn the_old_transport_has_the_same_policy() -> Result<()> {
    let config = "destinations: { old: { command: '{stub} --journal {dir}/journal', legacy_sse: true, tools: { allow: [echo] } } }";
    let rialto = Rialto::with_config(config).await?;
    let client = rialto.client_of("old").await?;
    let opened = client
        .send("GET", "/old/sse", &[("accept", "text/event-stream")], "")
        .await?;
    let mut stream = opened.events();
    let endpoint = stream
        .next()
        .await?
        .expect("the first event says where to post")
        .data;
    let calls = [("exit", json!({"code": 3})), ("echo", json!({"marker": "fine"}))];
    for (id, (tool, arguments)) in calls.into_iter().enumerate() {
        let params = json!({"name": tool, "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let headers = [("content-type", "application/json")];
        client
            .send("POST", &endpoint, &headers, body.to_string())
            .await?
            .reply()
            .await?
            .expect_status(202)?;
        let answer = stream.message().await?;
        let reason = answer["error"]["data"]["reason"].as_str();
        assert_eq!(reason, (tool == "exit").then_some("tool_denied"), "{answer}");
    }
    Ok(())
}

#[tokio::test]
async fn ambiguous_policy_is_refused_at_start() -> Result<()> {
    for (policy, said) in [
        ("tools: [echo]", "must be a map"),
        ("tools: { allow: [] }", "the list is empty"),
        ("tools: { allow: [''] }", "matches no tool"),
        ("tools: { alow: [echo] }", "did you mean `tools.allow`"),
    ] {
        let config = format!("destinations: {{ a: {{ command: cat, {policy} }} }}");
        let ended = Rialto::launcher()
            .config(&config)
            .run(std::time::Duration::from_secs(30))
            .await?;
        assert_eq!(ended.code(), Some(2));
        assert!(
            ended.stderr_text().contains(said),
            "{policy}: {}",
            ended.stderr_text()
        );
    }
    Ok(())
}
