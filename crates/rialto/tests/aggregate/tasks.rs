//! Tasks of members: one list, ids that name their member.

use serde_json::json;
use testkit::Result;
use testkit::token::{token, tokens_key};

use crate::fixture::{aggregate, config, keys, legacy, result, wait_for_tools, with_config};

/// A legacy server with one task on each of two pages; the argument is its name.
const SERVER: &str = r#"
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"server/discover"'*) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"no"}}' ;;
    *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}},"serverInfo":{"name":"s","version":"1"}}}' ;;
    *'"tools/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"slow","inputSchema":{"type":"object"},"execution":{"taskSupport":"optional"}}]}}' ;;
    *'"tools/call"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"task":{"taskId":"of-'$1'","status":"working","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttl":null}}}' ;;
    *'"tasks/list"'*'"cursor"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tasks":[{"taskId":"second-'$1'","status":"working","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttl":null}]}}' ;;
    *'"tasks/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tasks":[{"taskId":"of-'$1'","status":"working","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttl":null}],"nextCursor":"more"}}' ;;
    *'"tasks/get"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"taskId":"of-'$1'","status":"working","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttl":null}}' ;;
  esac
done
"#;

fn servers() -> String {
    let server = |name: &str| {
        let command = json!(["sh", "-c", SERVER, "sh", name]);
        format!("  {name}: {{ command: {command} }}\n")
    };
    format!("{}{}", server("a"), server("b"))
}

#[tokio::test]
async fn tasks_of_all_members_are_one_list_and_each_is_known_by_its_member() -> Result<()> {
    let rialto = aggregate(&servers(), "[a, b]").await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| tools.len() == 2).await;
    let created = result(
        &client,
        "tools/call",
        json!({"name": "b__slow", "arguments": {}, "task": {}}),
    )
    .await?;
    assert_eq!(created["task"]["taskId"], "b:of-b", "{created}");
    result(
        &client,
        "tools/call",
        json!({"name": "a__slow", "arguments": {}, "task": {}}),
    )
    .await?;
    let got = result(&client, "tasks/get", json!({"taskId": "b:of-b"})).await?;
    assert_eq!(got["taskId"], "b:of-b", "{got}");
    let list = result(&client, "tasks/list", json!({})).await?;
    let ids = keys(&list, "tasks", "taskId");
    for id in ["a:of-a", "b:of-b"] {
        assert!(ids.contains(&id.to_owned()), "{list}");
    }
    assert!(list.get("nextCursor").is_none(), "{list}");
    let unknown = client
        .request(9, "tasks/get", json!({"taskId": "c:of-b"}))
        .await?
        .answer();
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    Ok(())
}

/// A task belongs to the caller that made it: the list of another one does not have it.
#[tokio::test]
async fn list_of_tasks_has_none_that_another_caller_made() -> Result<()> {
    let (alice, bob) = (token("alice"), token("bob"));
    let text = format!(
        "auth:\n{}{}",
        tokens_key(&[("alice", &alice), ("bob", &bob)]),
        config(&servers(), "[a, b]")
    );
    let rialto = with_config(&text).await?;
    let mut lists = Vec::new();
    for (token, tool) in [(&alice, "a__slow"), (&bob, "b__slow")] {
        let client = rialto.client_of("all").await?;
        let client = client.with_header("authorization", &format!("Bearer {}", token.token));
        client.handshake(testkit::LEGACY, json!({})).await?;
        wait_for_tools(&client, |tools| tools.len() == 2).await;
        result(
            &client,
            "tools/call",
            json!({"name": tool, "arguments": {}, "task": {}}),
        )
        .await?;
        let list = result(&client, "tasks/list", json!({})).await?;
        lists.push(keys(&list, "tasks", "taskId"));
    }
    assert!(lists[0].contains(&"a:of-a".to_owned()), "{lists:?}");
    assert!(lists[1].contains(&"b:of-b".to_owned()), "{lists:?}");
    assert!(!lists[1].contains(&"a:of-a".to_owned()), "{lists:?}");
    Ok(())
}
