//! What members send by themselves: updates, changed lists, log lines.

use serde_json::json;
use testkit::client::EventStream;
use testkit::{PATIENCE, Result, wait_until};

use crate::fixture::{
    Modern, TWO, aggregate, journal, legacy, next, result, tools, wait_for_tools, wait_for_two,
};

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

#[tokio::test]
async fn one_listen_is_acknowledged_with_what_the_owners_honour_and_all_of_that_is_delivered() -> Result<()> {
    let rialto = aggregate(
        &format!("{TWO}  plain: {{ command: '{{stub}} --no-subscribe' }}\n"),
        "[a, b, plain]",
    )
    .await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "plain__pid")).await;
    wait_for_two(&client).await;
    let request = Modern {
        path: "/all/mcp",
        capabilities: json!({}),
        headers: &[],
    };
    let wanted = json!({"notifications": {
        "toolsListChanged": true,
        "resourceSubscriptions": ["a+testkit://one", "b+testkit://one", "plain+testkit://one", "other+x://y"],
    }});
    let mut stream = request
        .open(&rialto, "subscriptions/listen", wanted)
        .await?
        .events();
    let acknowledged = stream.message().await?;
    assert_eq!(
        acknowledged["method"], "notifications/subscriptions/acknowledged",
        "{acknowledged}"
    );
    let honoured = &acknowledged["params"]["notifications"];
    assert_eq!(honoured["toolsListChanged"], true, "{acknowledged}");
    assert_eq!(
        honoured["resourceSubscriptions"],
        json!(["a+testkit://one", "b+testkit://one"]),
        "a member that cannot subscribe, and a name of none, are not acknowledged"
    );
    for member in ["b", "a"] {
        client
            .call(1, &format!("{member}__update"), json!({"uri": "testkit://one"}))
            .await?;
        let updated = next(&mut stream, "notifications/resources/updated").await?;
        assert_eq!(updated["params"]["uri"], format!("{member}+testkit://one"));
        assert_eq!(updated["params"]["_meta"][SUBSCRIPTION], 7, "{updated}");
    }
    client.call(1, "b__change_tools", json!({})).await?;
    next(&mut stream, "notifications/tools/list_changed").await?;
    Ok(())
}

#[tokio::test]
async fn subscription_goes_on_after_its_member_was_killed() -> Result<()> {
    let rialto = aggregate(TWO, "[a, b]").await?;
    let client = legacy(&rialto).await?;
    wait_for_two(&client).await;
    let mut stream = client.get_stream(None).await?;
    result(&client, "resources/subscribe", json!({"uri": "b+testkit://one"})).await?;
    let pid = client.call(1, "b__pid", json!({})).await?.text();
    testkit::processes::send_signal(pid.parse().expect("a number"), rustix::process::Signal::KILL);
    let journal = journal(&rialto, "b");
    wait_until("its successor has the subscription", PATIENCE, || {
        (journal.received("resources/subscribe").len() > 1).then_some(())
    })
    .await;
    let answer = client
        .call(2, "b__update", json!({"uri": "testkit://one"}))
        .await?;
    assert_eq!(answer.text(), "subscribed");
    let updated = next(&mut stream, "notifications/resources/updated").await?;
    assert_eq!(updated["params"]["uri"], "b+testkit://one", "{updated}");
    Ok(())
}

#[tokio::test]
async fn flapping_member_does_not_storm_its_clients() -> Result<()> {
    let rialto = aggregate(TWO, "[a, b]").await?;
    wait_for_two(&legacy(&rialto).await?).await;
    // A client that has missed nothing.
    let client = legacy(&rialto).await?;
    let mut stream = client.get_stream(None).await?;
    // The member announces changes of its list again and again, and there is none.
    client
        .call(1, "a__notify", json!({"n": 50, "marker": "storm"}))
        .await?;
    client.call(2, "a__change_tools", json!({})).await?;
    next(&mut stream, "notifications/tools/list_changed").await?;
    assert!(tools(&client).await?.iter().any(|tool| tool == "a__extra"));
    // What came of the storm would have come before this.
    result(&client, "resources/subscribe", json!({"uri": "b+testkit://one"})).await?;
    client
        .call(3, "b__update", json!({"uri": "testkit://one"}))
        .await?;
    loop {
        let message = stream.message().await?;
        assert_ne!(message["method"], "notifications/tools/list_changed", "{message}");
        if message["method"] == "notifications/resources/updated" {
            return Ok(());
        }
    }
}

#[tokio::test]
async fn log_lines_name_their_member_and_come_at_the_level_of_the_session() -> Result<()> {
    let rialto = aggregate(TWO, "[a, b]").await?;
    let client = legacy(&rialto).await?;
    wait_for_two(&client).await;
    result(&client, "logging/setLevel", json!({"level": "error"})).await?;
    let below = client
        .call(1, "b__log", json!({"level": "info", "text": "quiet"}))
        .await?;
    assert!(below.messages().len() <= 1, "{:?}", below.messages());
    // On stdio a line names no call, so that it may come on either stream.
    let mut stream = client.get_stream(None).await?;
    let loud = client
        .call(2, "b__log", json!({"level": "error", "text": "loud"}))
        .await?;
    let is_line = |message: &serde_json::Value| message["method"] == "notifications/message";
    let line = match loud.messages().into_iter().find(is_line) {
        Some(line) => line,
        None => next(&mut stream, "notifications/message").await?,
    };
    assert_eq!(line["params"]["logger"], "b/testkit", "{line}");
    assert_eq!(line["params"]["data"], "loud", "{line}");
    // A member that is opened later learns the level too.
    let late = client
        .call(3, "a__log", json!({"level": "info", "text": "quiet"}))
        .await?;
    assert!(late.messages().len() <= 1, "{:?}", late.messages());
    Ok(())
}

#[tokio::test]
async fn modern_client_that_hangs_up_cancels_its_call_at_its_member_alone() -> Result<()> {
    let rialto = aggregate(TWO, "[a, b]").await?;
    let client = legacy(&rialto).await?;
    wait_for_two(&client).await;
    let request = Modern {
        path: "/all/mcp",
        capabilities: json!({}),
        headers: &[],
    };
    let hold = async |member: &str| -> Result<EventStream> {
        let params = json!({"name": format!("{member}__hold"), "arguments": {"marker": member, "every_ms": 20},
            "_meta": {"progressToken": "p"}});
        let mut events = request.open(&rialto, "tools/call", params).await?.events();
        let progress = next(&mut events, "notifications/progress").await?;
        assert_eq!(progress["params"]["progressToken"], "p", "{progress}");
        Ok(events)
    };
    let (on_a, mut on_b) = (hold("a").await?, hold("b").await?);
    drop(on_a);
    let (a, b) = (journal(&rialto, "a"), journal(&rialto, "b"));
    wait_until("the cancellation has come", PATIENCE, || {
        a.was_cancelled("a").then_some(())
    })
    .await;
    client.call(1, "b__release", json!({"marker": "release"})).await?;
    let answer = loop {
        let message = on_b.message().await?;
        if message["id"] == 7 {
            break message;
        }
    };
    assert_eq!(answer["result"]["content"][0]["text"], "b", "{answer}");
    assert!(b.received("notifications/cancelled").is_empty());
    Ok(())
}

/// A legacy server that announces a change of its tools at each list and each call, and means it.
const RESTLESS: &str = r#"
n=0
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  changed='{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
  case "$line" in
    *'"server/discover"'*) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"no"}}' ;;
    *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"s","version":"1"}}}' ;;
    *'"tools/list"'*) n=$((n+1)); echo list >> "$1"
      echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"go","inputSchema":{"type":"object"}},{"name":"t'$n'","inputSchema":{"type":"object"}}]}}'; echo "$changed" ;;
    *'"tools/call"'*) echo "$changed"; echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[]}}' ;;
  esac
done
"#;

#[tokio::test]
async fn member_that_announces_a_change_at_each_list_is_not_read_without_a_pause() -> Result<()> {
    let server = |name: &str, further: &str| {
        let command = json!(["sh", "-c", RESTLESS, "sh", format!("{{dir}}/lists-{name}")]);
        format!("  {name}: {{ command: {command}{further} }}\n")
    };
    // A reader stays with the first, and clients alone are notified by the second.
    let destinations = server("stays", "") + &server("goes", ", idle_stop: 10m");
    for member in ["stays", "goes"] {
        let rialto = aggregate(&destinations, &format!("[{member}]")).await?;
        let client = legacy(&rialto).await?;
        wait_for_tools(&client, |tools| !tools.is_empty()).await;
        let mut stream = client.get_stream(None).await?;
        client.call(1, &format!("{member}__go"), json!({})).await?;
        for _ in 0..4 {
            next(&mut stream, "notifications/tools/list_changed").await?;
        }
        let lists = std::fs::read_to_string(rialto.dir().join(format!("lists-{member}")))?;
        let lists = lists.lines().count();
        assert!(
            lists < 40,
            "`{member}` was read {lists} times for 4 notifications"
        );
    }
    Ok(())
}
