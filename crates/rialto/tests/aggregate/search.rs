//! Search in large catalogues, in both eras, by configuration and by URL.

use serde_json::{Value, json};
use testkit::{LEGACY, McpClient, Result, Rialto};

use crate::fixture::{Modern, NEW, OLD, config, keys, legacy, tools, wait_for_tools, with_config};

const SEARCHING: [&str; 4] = ["find_tools", "call_read", "call_write", "call_destructive"];

async fn searching() -> Result<Rialto> {
    let text = config(
        &format!("{OLD}{NEW}"),
        "[old, new], tools: search, always: [old__pid]",
    );
    let rialto = with_config(&text).await?;
    let whole = McpClient::connect(&format!("{}?tools=all", rialto.url_of("all"))).await?;
    whole.handshake(LEGACY, json!({})).await?;
    wait_for_tools(&whole, |tools| {
        ["old__echo", "new__add"]
            .iter()
            .all(|name| tools.iter().any(|tool| tool == name))
    })
    .await;
    Ok(rialto)
}

#[tokio::test]
async fn search_is_the_same_in_both_eras_and_calls_reach_their_member() -> Result<()> {
    let rialto = searching().await?;
    let mut wanted = SEARCHING.map(str::to_owned).to_vec();
    wanted.push("old__pid".to_owned());
    let client = legacy(&rialto).await?;
    assert_eq!(tools(&client).await?, wanted);
    let request = Modern {
        path: "/all/mcp",
        capabilities: json!({}),
        headers: &[],
    };
    let modern = async |method: &str, params: Value| -> Result<Value> {
        Ok(request
            .open(&rialto, method, params)
            .await?
            .reply()
            .await?
            .answer())
    };
    let listed = modern("tools/list", json!({})).await?;
    assert_eq!(keys(&listed["result"], "tools", "name"), wanted);
    let query = json!({"query": "add two numbers", "limit": 3});
    let by_legacy = client.call(1, "find_tools", query.clone()).await?.answer();
    let by_modern = modern("tools/call", json!({"name": "find_tools", "arguments": query})).await?;
    let found = |answer: &Value| keys(&answer["result"]["structuredContent"], "tools", "name");
    assert_eq!(found(&by_legacy), found(&by_modern));
    assert_eq!(
        found(&by_legacy).first().map(String::as_str),
        Some("new__add"),
        "{by_legacy}"
    );
    assert!(found(&by_legacy).len() <= 3, "{by_legacy}");
    let definition = &by_modern["result"]["structuredContent"]["tools"][0];
    assert!(
        definition["inputSchema"].is_object(),
        "a definition is whole: {definition}"
    );
    let called = json!({"name": "old__echo", "arguments": {"marker": "through"}});
    let answer = modern(
        "tools/call",
        json!({"name": "call_destructive", "arguments": called}),
    )
    .await?;
    assert_eq!(answer["result"]["content"][0]["text"], "through", "{answer}");
    let hidden = client.call(2, "old__echo", json!({"marker": "by name"})).await?;
    assert_eq!(
        hidden.text(),
        "by name",
        "a hidden tool stays callable by its name"
    );
    Ok(())
}

#[tokio::test]
async fn session_that_wants_to_search_is_shown_few_tools() -> Result<()> {
    let rialto = crate::fixture::mixed().await?;
    let client = McpClient::connect(&format!("{}?tools=search", rialto.url_of("all"))).await?;
    client.handshake(LEGACY, json!({})).await?;
    wait_for_tools(&client, |tools| *tools == SEARCHING).await;
    Ok(())
}

#[tokio::test]
async fn client_chooses_by_its_url_against_the_configuration() -> Result<()> {
    let rialto = searching().await?;
    let request = |path| Modern {
        path,
        capabilities: json!({}),
        headers: &[],
    };
    for (path, searches) in [
        ("/all/mcp", true),
        ("/all/mcp?tools=search", true),
        ("/all/mcp?tools=all", false),
    ] {
        let listed = request(path)
            .open(&rialto, "tools/list", json!({}))
            .await?
            .reply()
            .await?
            .answer();
        let names = keys(&listed["result"], "tools", "name");
        assert_eq!(names.contains(&"find_tools".to_owned()), searches, "{path}");
        assert_eq!(names.contains(&"old__echo".to_owned()), !searches, "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn tool_is_called_only_by_what_its_annotations_allow() -> Result<()> {
    let rialto = searching().await?;
    let client = legacy(&rialto).await?;
    let found = client
        .call(1, "find_tools", json!({"query": "echo", "member": "new"}))
        .await?
        .answer();
    let tool = found["result"]["structuredContent"]["tools"][0].clone();
    let reads = tool["annotations"]["readOnlyHint"] == true;
    let through = json!({"name": tool["name"], "arguments": {"text": "x"}});
    let by_read = client.call(2, "call_read", through.clone()).await?.answer();
    assert_eq!(by_read["result"]["isError"] == true, !reads, "{tool}: {by_read}");
    // Without hints it may destroy something, so that a host asks its user first.
    for caller in ["call_read", "call_write"] {
        let through = json!({"name": "old__echo", "arguments": {"marker": "x"}});
        let refused = client.call(3, caller, through).await?.answer();
        assert_eq!(refused["result"]["isError"], true, "{refused}");
        assert!(
            refused["result"].to_string().contains("call_destructive"),
            "{refused}"
        );
    }
    Ok(())
}
