//! Callers of an aggregate: what their tokens are good for, and servers that are theirs alone.

use serde_json::{Value, json};
use testkit::token::token;
use testkit::upstream::Step;
use testkit::{Issuer, LEGACY, McpClient, PATIENCE, Reply, Result, Rialto, Upstream, wait_until};

use crate::fixture::{Modern, NEW, OLD, journal, keys, wait_for_tools, wait_until_known, with_config};

const PUBLIC: &str = "https://mcp.example.com";

async fn client(rialto: &Rialto, endpoint: &str, bearer: &str) -> Result<McpClient> {
    let client = rialto.client_of(endpoint).await?;
    Ok(client.with_header("authorization", &format!("Bearer {bearer}")))
}

#[tokio::test]
async fn token_for_a_member_is_none_for_the_aggregate_and_the_reverse() -> Result<()> {
    let (of_member, of_aggregate) = (token("member"), token("aggregate"));
    let text = format!(
        "auth:\n  tokens:\n    - {{ name: member, hash: \"{}\", destinations: [old] }}\n    - {{ name: aggregate, hash: \"{}\", destinations: [all] }}\n{}",
        of_member.hash,
        of_aggregate.hash,
        crate::fixture::config(OLD, "[old]")
    );
    let rialto = with_config(&text).await?;
    for (endpoint, token, other) in [
        ("all", &of_aggregate, &of_member),
        ("old", &of_member, &of_aggregate),
    ] {
        client(&rialto, endpoint, &token.token)
            .await?
            .handshake(LEGACY, json!({}))
            .await?;
        let refused = client(&rialto, endpoint, &other.token).await?;
        assert_eq!(
            refused.initialize(LEGACY, json!({})).await?.status,
            403,
            "{endpoint}"
        );
    }
    // A caller of the aggregate uses its members.
    let alice = client(&rialto, "all", &of_aggregate.token).await?;
    alice.handshake(LEGACY, json!({})).await?;
    wait_for_tools(&alice, |tools| !tools.is_empty()).await;
    assert_eq!(
        alice.call(1, "old__echo", json!({"marker": "x"})).await?.text(),
        "x"
    );
    Ok(())
}

async fn with_issuer(issuer: &Issuer, further: &str) -> Result<Rialto> {
    let text = format!(
        "public_url: {PUBLIC}\nauth:\n  jwt:\n    issuer: {}\n{further}{}",
        issuer.url(),
        crate::fixture::config(OLD, "[old]")
    );
    with_config(&text).await
}

#[tokio::test]
async fn audience_of_a_token_is_the_aggregates_own_url() -> Result<()> {
    let issuer = Issuer::start().await?;
    let rialto = with_issuer(&issuer, "").await?;
    let stranger = rialto.client_of("all").await?;
    let path = "/.well-known/oauth-protected-resource/all/mcp";
    let document = stranger.send("GET", path, &[], "").await?.reply().await?.answer();
    assert_eq!(document["resource"], format!("{PUBLIC}/all/mcp"), "{document}");
    for (audience, status) in [("all", 200), ("old", 401)] {
        let token = issuer.token("alice", &format!("{PUBLIC}/{audience}/mcp"), json!({}));
        let caller = client(&rialto, "all", &token).await?;
        assert_eq!(
            caller.initialize(LEGACY, json!({})).await?.status,
            status,
            "{audience}"
        );
    }
    Ok(())
}

/// A rule about a tool holds under every name that leads to it.
#[tokio::test]
async fn scope_of_a_tool_is_wanted_under_its_shown_name_too() -> Result<()> {
    let issuer = Issuer::start().await?;
    let rules = "    scopes: { \"tool:echo\": [admin] }\n";
    let rialto = with_issuer(&issuer, rules).await?;
    let audience = format!("{PUBLIC}/all/mcp");
    let session = async |url: &str, scope: &str| -> Result<McpClient> {
        let token = issuer.token("alice", &audience, json!({"scope": scope}));
        let client = McpClient::connect(url).await?;
        let client = client.with_header("authorization", &format!("Bearer {token}"));
        client.handshake(LEGACY, json!({})).await?;
        Ok(client)
    };
    let url = rialto.url_of("all");
    let plain = session(&url, "").await?;
    wait_for_tools(&plain, |tools| tools.iter().any(|tool| tool == "old__echo")).await;
    let called = async |client: &McpClient, tool: &str, arguments: Value| -> Result<Reply> {
        client.call(1, tool, arguments).await
    };
    assert_eq!(called(&plain, "old__echo", json!({})).await?.status, 403);
    assert_eq!(called(&plain, "old__pid", json!({})).await?.status, 200);
    let searching = session(&format!("{url}?tools=search"), "").await?;
    let through = json!({"name": "old__echo", "arguments": {}});
    assert_eq!(
        called(&searching, "call_destructive", through.clone())
            .await?
            .status,
        403
    );
    // The rule holds for arguments with numbers beyond every range, with half a surrogate pair, and
    // with the name a second time.
    for raw in [
        r#"{"name":"old__echo","arguments":{"n":1e400}}"#,
        r#"{"name":"old__echo","arguments":{"t":"\ud800"}}"#,
        r#"{"name":"old__pid","arguments":{},"name":"old__echo"}"#,
    ] {
        let refused = searching.call(1, "call_destructive", raw).await?;
        assert_eq!(refused.status, 403, "{raw}");
    }
    // Nothing can be judged of a tool that is not known.
    for (tool, arguments) in [
        ("old__unknown", json!({})),
        ("call_destructive", json!({"name": "old__unknown"})),
    ] {
        let denied = called(&searching, tool, arguments).await?.answer();
        assert_eq!(
            denied["error"]["data"]["reason"], "tool_denied",
            "{tool}: {denied}"
        );
    }
    let admin = session(&format!("{url}?tools=search"), "admin").await?;
    assert_eq!(called(&admin, "call_destructive", through).await?.status, 200);
    assert_eq!(
        called(&admin, "old__echo", json!({"marker": "x"})).await?.text(),
        "x"
    );
    Ok(())
}

#[tokio::test]
async fn member_with_a_server_for_each_caller_shows_each_its_own_list() -> Result<()> {
    let upstream = Upstream::legacy().start().await?;
    for name in ["alice", "bob"] {
        let list = format!(
            r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"tools":[{{"name":"of_{name}","inputSchema":{{"type":"object"}}}}]}}}}"#
        );
        upstream.always(
            move |seen| seen.method() == "tools/list" && seen.header("x-key") == Some(name),
            vec![Step::json(&list)],
        );
    }
    let destinations = format!(
        "{OLD}  mine: {{ url: '{}', process: per_identity, forward_headers: [X-Key] }}\n",
        upstream.url()
    );
    let (alice, bob) = (token("alice"), token("bob"));
    let text = format!(
        "auth:\n{}{}",
        testkit::token::tokens_key(&[("alice", &alice), ("bob", &bob)]),
        crate::fixture::config(&destinations, "[old, mine]")
    );
    let rialto = with_config(&text).await?;
    for (name, token, other) in [("alice", &alice, "bob"), ("bob", &bob, "alice")] {
        let client = client(&rialto, "all", &token.token)
            .await?
            .with_header("x-key", name);
        client.handshake(LEGACY, json!({})).await?;
        let own = format!("mine__of_{name}");
        let both = |tools: &[String]| tools.contains(&own) && tools.contains(&"old__echo".to_owned());
        let shown = wait_for_tools(&client, both).await;
        assert!(!shown.contains(&format!("mine__of_{other}")), "{shown:?}");
        client.call(1, &own, json!({})).await?.expect_status(200)?;
    }
    let seen = upstream.seen(|seen| seen.tool() == "of_alice");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].header("x-key"), Some("alice"));
    assert!(
        seen[0].header("authorization").is_none(),
        "the caller's token stays here"
    );
    // What is a caller's own is not for a cache that others share.
    let bearer = format!("Bearer {}", alice.token);
    let request = Modern {
        path: "/all/mcp",
        capabilities: json!({}),
        headers: &[("authorization", &bearer), ("x-key", "alice")],
    };
    let listed = request
        .open(&rialto, "tools/list", json!({}))
        .await?
        .reply()
        .await?
        .answer();
    assert!(keys(&listed["result"], "tools", "name").contains(&"mine__of_alice".to_owned()));
    assert_eq!(listed["result"]["cacheScope"], "private", "{listed}");
    Ok(())
}

#[tokio::test]
async fn state_of_a_modern_member_is_good_for_its_caller_and_its_aggregate_alone() -> Result<()> {
    let (alice, bob) = (token("alice"), token("bob"));
    let text = format!(
        "auth:\n{}destinations:\n{NEW}aggregates:\n  all: {{ members: [new] }}\n  other: {{ members: [new] }}\n",
        testkit::token::tokens_key(&[("alice", &alice), ("bob", &bob)])
    );
    let rialto = with_config(&text).await?;
    let call = async |path: &str, bearer: &str, further: &Value| -> Result<Value> {
        let bearer = format!("Bearer {bearer}");
        let request = Modern {
            path,
            capabilities: json!({"elicitation": {}}),
            headers: &[("authorization", &bearer)],
        };
        let mut params = json!({"name": "new__ask", "arguments": {"question": "Which?"}});
        for (key, value) in further.as_object().into_iter().flatten() {
            params[key] = value.clone();
        }
        Ok(request
            .open(&rialto, "tools/call", params)
            .await?
            .reply()
            .await?
            .answer())
    };
    let asked = call("/all/mcp", &alice.token, &json!({})).await?;
    let result = &asked["result"];
    assert_eq!(result["resultType"], "input_required", "{asked}");
    let requests = result["inputRequests"].as_object().cloned().unwrap_or_default();
    let key = requests.keys().next().expect("a question").clone();
    let state = result["requestState"].as_str().expect("a state");
    let retry = |state: &str| {
        json!({"requestState": state,
            "inputResponses": {&key: {"action": "accept", "content": {"answer": "12A"}}}})
    };
    let (begin, end) = state.split_at(state.len() / 2);
    let other = if end.starts_with('A') { "B" } else { "A" };
    let forged = format!("{begin}{other}{}", &end[1..]);
    for (path, bearer, state) in [
        ("/all/mcp", &bob.token, state),
        ("/other/mcp", &alice.token, state),
        ("/all/mcp", &alice.token, forged.as_str()),
        ("/all/mcp", &alice.token, "new:state"),
    ] {
        let refused = call(path, bearer, &retry(state)).await?;
        assert_eq!(refused["error"]["code"], -32602, "{path}: {refused}");
    }
    let answered = call("/all/mcp", &alice.token, &retry(state)).await?;
    assert_eq!(answered["result"]["resultType"], "complete", "{answered}");
    assert!(answered["result"].to_string().contains("12A"), "{answered}");
    Ok(())
}

#[tokio::test]
async fn list_starts_no_server_that_is_a_callers_own() -> Result<()> {
    let destinations = format!(
        "{OLD}  mine: {{ command: '{{stub}} --journal {{dir}}/journal-mine', process: per_identity, env_from_headers: {{ KEY: X-Key }} }}\n"
    );
    let rialto = crate::fixture::aggregate(&destinations, "[old, mine]").await?;
    let request = async |method: &str, key: &str| -> Result<Value> {
        let request = Modern {
            path: "/all/mcp",
            capabilities: json!({}),
            headers: &[("x-key", key)],
        };
        Ok(request
            .open(&rialto, method, json!({}))
            .await?
            .reply()
            .await?
            .answer())
    };
    wait_until_known(&rialto).await?;
    let listed = request("tools/list", "lists").await?;
    assert!(!keys(&listed["result"], "tools", "name").is_empty(), "{listed}");
    // Each caller has a server of its own, so the one that comes is that of the discovery.
    request("server/discover", "discovers").await?;
    let journal = journal(&rialto, "mine");
    wait_until("the server has started", PATIENCE, || {
        (!journal.received("tools/list").is_empty()).then_some(())
    })
    .await;
    assert_eq!(journal.starts().len(), 1);
    let called = Modern {
        path: "/all/mcp",
        capabilities: json!({}),
        headers: &[("x-key", "discovers")],
    };
    let params = json!({"name": "mine__env", "arguments": {"name": "KEY"}});
    let answer = called
        .open(&rialto, "tools/call", params)
        .await?
        .reply()
        .await?
        .answer();
    assert_eq!(answer["result"]["content"][0]["text"], "discovers", "{answer}");
    Ok(())
}
