//! The names that clients see, and whole lists.

use serde_json::{Value, json};
use testkit::Result;

use crate::fixture::{
    NEW, OLD, TWO, aggregate, keys, legacy, mixed, modern, ready, result, tools, wait_for_tools, wait_for_two,
};

#[tokio::test]
async fn names_do_not_change_when_a_second_member_is_added() -> Result<()> {
    let names = async |members: &str| -> Result<Vec<String>> {
        let rialto = aggregate(&format!("{OLD}{NEW}"), members).await?;
        let client = legacy(&rialto).await?;
        let mut names = wait_for_tools(&client, |tools| {
            tools.iter().any(|tool| tool.starts_with("old__"))
        })
        .await;
        names.retain(|name| name.starts_with("old__"));
        Ok(names)
    };
    let alone = names("[old]").await?;
    assert!(alone.contains(&"old__echo".to_owned()), "{alone:?}");
    assert_eq!(names("[new, old]").await?, alone);
    Ok(())
}

#[tokio::test]
async fn clients_of_both_eras_see_the_tools_of_servers_of_both_eras() -> Result<()> {
    let rialto = mixed().await?;
    let client = legacy(&rialto).await?;
    let is_whole = |tools: &[String]| {
        ["old__echo", "new__echo"]
            .iter()
            .all(|name| tools.iter().any(|tool| tool == name))
    };
    let shown = wait_for_tools(&client, is_whole).await;
    let list = modern(&rialto, "tools/list", json!({})).await?;
    assert_eq!(keys(&list["result"], "tools", "name"), shown);
    // Members in the order of the configuration.
    let new = shown.iter().position(|name| name.starts_with("new__"));
    assert!(
        shown.iter().rposition(|name| name.starts_with("old__")) < new,
        "{shown:?}"
    );
    let called = client.call(1, "new__echo", json!({"text": "over"})).await?;
    assert_eq!(called.text(), "over");
    let called = modern(
        &rialto,
        "tools/call",
        json!({"name": "old__echo", "arguments": {"marker": "back"}}),
    )
    .await?;
    assert_eq!(called["result"]["content"][0]["text"], "back", "{called}");
    Ok(())
}

#[tokio::test]
async fn list_is_not_cut_after_the_first_page_of_a_member_and_is_whole_on_one() -> Result<()> {
    // The first page of the member ends with a cursor.
    let upstream = testkit::Upstream::legacy().start().await?;
    upstream.always(
        |exchange| exchange.body["method"] == "tools/list" && exchange.body["params"]["cursor"].is_null(),
        vec![testkit::upstream::Step::json(
            r#"{"jsonrpc":"2.0","id":{id},"result":{"tools":[{"name":"first","inputSchema":{"type":"object"}}],"nextCursor":"more"}}"#,
        )],
    );
    upstream.always(
        |exchange| exchange.body["method"] == "tools/list" && exchange.body["params"]["cursor"] == "more",
        vec![testkit::upstream::Step::json(
            r#"{"jsonrpc":"2.0","id":{id},"result":{"tools":[{"name":"second","inputSchema":{"type":"object"}}]}}"#,
        )],
    );
    let paged = format!("  paged: {{ url: '{}' }}\n", upstream.url());
    let rialto = aggregate(&paged, "[paged]").await?;
    let client = legacy(&rialto).await?;
    let list = result(&client, "tools/list", json!({})).await?;
    assert_eq!(keys(&list, "tools", "name"), ["paged__first", "paged__second"]);
    assert!(
        list.get("nextCursor").is_none(),
        "a client that reads one page alone has read all: {list}"
    );
    Ok(())
}

#[tokio::test]
async fn pages_of_the_aggregate_reach_the_end() -> Result<()> {
    let rialto = aggregate(TWO, "[a, b]").await?;
    let client = legacy(&rialto).await?;
    let both = |tools: &[String]| {
        ["a__pid", "b__pid"]
            .iter()
            .all(|name| tools.iter().any(|tool| tool == name))
    };
    let whole = wait_for_tools(&client, both).await;
    let text = crate::fixture::config(TWO, "[a, b], page_size: 7");
    let rialto = crate::fixture::with_config(&text).await?;
    let client = legacy(&rialto).await?;
    testkit::poll_until("both members", testkit::PATIENCE, async || {
        let ready = ready(&rialto).await?;
        let tools = ready["destinations"]["all"]["tools"].as_u64();
        Ok::<_, testkit::Failure>((tools == Some(whole.len() as u64)).then_some(()))
    })
    .await?;
    let (mut read, mut params) = (Vec::new(), json!({}));
    loop {
        let page = result(&client, "tools/list", params).await?;
        let names = keys(&page, "tools", "name");
        assert!(!names.is_empty() && names.len() <= 7, "{names:?}");
        read.extend(names);
        match page.get("nextCursor") {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => break,
        }
    }
    assert_eq!(read, whole);
    let refused = client
        .request(3, "tools/list", json!({"cursor": "another's"}))
        .await?
        .answer();
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    Ok(())
}

#[tokio::test]
async fn list_of_a_member_without_an_end_is_withheld_with_the_reason() -> Result<()> {
    let upstream = testkit::Upstream::legacy().start().await?;
    upstream.always(
        |exchange| exchange.body["method"] == "tools/list",
        vec![testkit::upstream::Step::json(
            r#"{"jsonrpc":"2.0","id":{id},"result":{"tools":[{"name":"again","inputSchema":{"type":"object"}}],"nextCursor":"more"}}"#,
        )],
    );
    let endless = format!("  endless: {{ url: '{}' }}\n", upstream.url());
    let rialto = aggregate(&format!("{OLD}{endless}"), "[endless, old]").await?;
    let client = legacy(&rialto).await?;
    let withheld = testkit::poll_until("it is withheld", testkit::PATIENCE, async || {
        let ready = ready(&rialto).await?;
        let withheld = ready["destinations"]["all"]["withheld"].clone();
        Ok::<_, testkit::Failure>(withheld.is_array().then_some(withheld))
    })
    .await?
    .to_string();
    assert!(
        withheld.contains("`endless`") && withheld.contains("more than 64 pages"),
        "{withheld}"
    );
    let shown = wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "old__pid")).await;
    assert!(
        !shown.iter().any(|tool| tool.starts_with("endless__")),
        "a list is whole or not shown: {shown:?}"
    );
    Ok(())
}

#[tokio::test]
async fn two_members_with_the_same_tool_are_told_apart() -> Result<()> {
    let rialto = aggregate(TWO, "[a, b]").await?;
    let client = legacy(&rialto).await?;
    wait_for_two(&client).await;
    let pid = async |tool: &str| -> Result<String> { Ok(client.call(1, tool, json!({})).await?.text()) };
    let (a, b) = (pid("a__pid").await?, pid("b__pid").await?);
    assert_ne!(a, b);
    assert_eq!(pid("a__pid").await?, a);
    let unknown = client.call(1, "pid", json!({})).await?.answer();
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    Ok(())
}

#[tokio::test]
async fn name_that_two_members_claim_is_shown_for_none_and_reported() -> Result<()> {
    let members = "{ a: { prefix: '' }, b: { prefix: '' }, old: {} }";
    let rialto = aggregate(&format!("{TWO}{OLD}"), members).await?;
    let client = legacy(&rialto).await?;
    testkit::poll_until("all members", testkit::PATIENCE, async || {
        let ready = ready(&rialto).await?;
        Ok::<_, testkit::Failure>(ready["destinations"]["all"]["withheld"].as_array().map(|_| ()))
    })
    .await?;
    let tools = wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "old__pid")).await;
    assert!(!tools.iter().any(|tool| tool == "pid"), "{tools:?}");
    let ready = ready(&rialto).await?;
    let withheld = ready["destinations"]["all"]["withheld"].to_string();
    assert!(
        withheld.contains("`pid` of `a`") && withheld.contains("`pid` of `b`"),
        "{withheld}"
    );
    let names_it = |line: &Value| {
        let what = line["what"].as_str();
        what.is_some_and(|what| what.contains("`pid` of `a`"))
    };
    let what = "the log line that names it";
    rialto.wait_for_log(what, testkit::PATIENCE, names_it).await;
    Ok(())
}

#[tokio::test]
async fn tool_name_beyond_the_limit_is_cut_and_can_be_called() -> Result<()> {
    let destinations = "  a-long-prefix: { command: '{stub} --journal {dir}/journal-a' }\n";
    let text = crate::fixture::config(destinations, "[a-long-prefix], name_limit: 24");
    let rialto = crate::fixture::with_config(&text).await?;
    let client = legacy(&rialto).await?;
    let tools = wait_for_tools(&client, |tools| !tools.is_empty()).await;
    assert!(tools.iter().all(|name| name.len() <= 24), "{tools:?}");
    let list = result(&client, "tools/list", json!({})).await?;
    let items = list["tools"].as_array().cloned().unwrap_or_default();
    // Its own name is `change_tools`.
    let described = |item: &&Value| {
        item["description"]
            .as_str()
            .is_some_and(|text| text.contains("the tool `extra`"))
    };
    let cut = items.iter().find(described).expect("it is listed")["name"].clone();
    let name = cut.as_str().expect("a name");
    assert_eq!(name.len(), 24, "{name}");
    let called = client.call(1, name, json!({})).await?.answer();
    assert!(called.get("error").is_none(), "{called}");
    Ok(())
}

#[tokio::test]
async fn configuration_selects_renames_describes_and_fixes_arguments() -> Result<()> {
    let members = "{ old: { tools: { allow: [echo, p*], deny: [progress], rename: { echo: say }, describe: { echo: Says it }, hide_args: { echo: { marker: fixed } } } } }";
    let destination = OLD.replace(" }\n", ", tools: { deny: [parent] } }\n");
    let rialto = aggregate(&destination, members).await?;
    let client = legacy(&rialto).await?;
    let shown = wait_for_tools(&client, |tools| !tools.is_empty()).await;
    assert_eq!(
        shown,
        ["old__say", "old__pid"],
        "the policy of the destination holds too"
    );
    let called = client.call(1, "old__say", json!({"marker": "mine"})).await?;
    assert_eq!(called.text(), "fixed");
    for hidden in ["old__echo", "old__progress", "old__parent", "echo"] {
        let answer = client.call(1, hidden, json!({})).await?.answer();
        assert_eq!(answer["error"]["code"], -32602, "{hidden}: {answer}");
    }
    assert_eq!(tools(&client).await?, shown);
    Ok(())
}
