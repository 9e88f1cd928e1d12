//! The catalogue: lists without a child, in memory and on disk, and what records have of members.

use serde_json::{Value, json};
use testkit::{PATIENCE, Result, Rialto, wait_until};

use crate::fixture::{
    OLD, aggregate, legacy, modern, next, tools, wait_for_tools, wait_until_known, with_config,
};

fn servers(rialto: &Rialto) -> usize {
    let children = rialto.children().into_iter();
    children.filter(|child| child.name.contains("testkit")).count()
}

#[tokio::test]
async fn lists_are_answered_from_disk_without_a_child_and_a_call_starts_one() -> Result<()> {
    let state = tempfile::tempdir()?;
    let config = |lazy: &str| {
        format!(
            "state_dir: {}/state\ndestinations:\n  a: {{ command: '{{stub}}'{lazy} }}\n  b: {{ command: '{{stub}}'{lazy} }}\naggregates:\n  all: {{ members: [a, b] }}\n",
            state.path().display()
        )
    };
    let shown = {
        let rialto = with_config(&config("")).await?;
        let client = legacy(&rialto).await?;
        let both = |tools: &[String]| {
            ["a__pid", "b__pid"]
                .iter()
                .all(|name| tools.iter().any(|tool| tool == name))
        };
        let shown = wait_for_tools(&client, both).await;
        let offers = state.path().join("state/offers");
        wait_until("both offers are stored", PATIENCE, || {
            ["a.json", "b.json"]
                .iter()
                .all(|name| offers.join(name).exists())
                .then_some(())
        })
        .await;
        shown
    };
    let rialto = with_config(&config(", start: lazy")).await?;
    let client = legacy(&rialto).await?;
    assert_eq!(tools(&client).await?, shown);
    let listed = modern(&rialto, "server/discover", json!({})).await?;
    assert!(listed["result"]["capabilities"]["tools"].is_object(), "{listed}");
    assert_eq!(servers(&rialto), 0, "no list starts a server");
    client
        .call(1, "b__echo", json!({"marker": "x"}))
        .await?
        .expect_status(200)?;
    assert_eq!(servers(&rialto), 1, "the call has started its own member alone");
    Ok(())
}

#[tokio::test]
async fn lazy_member_that_is_not_known_is_started_by_the_first_list() -> Result<()> {
    let lazy = OLD.replace(" }\n", ", start: lazy }\n");
    let rialto = aggregate(&lazy, "[old]").await?;
    assert_eq!(servers(&rialto), 0);
    let client = legacy(&rialto).await?;
    assert!(
        tools(&client).await?.iter().any(|tool| tool == "old__echo"),
        "the first list is whole"
    );
    Ok(())
}

#[tokio::test]
async fn lazy_member_that_is_not_known_is_read_when_a_client_comes_though_others_are_known() -> Result<()> {
    let lazy = "  late: { command: '{stub}', start: lazy }\n";
    let rialto = aggregate(&format!("{OLD}{lazy}"), "[old, late]").await?;
    wait_until_known(&rialto).await?;
    assert_eq!(servers(&rialto), 1, "the lazy one waits for a client");
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| {
        ["old__echo", "late__echo"]
            .iter()
            .all(|name| tools.iter().any(|tool| tool == name))
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn change_of_a_members_list_reaches_the_client_once_under_its_shown_name() -> Result<()> {
    let rialto = aggregate(OLD, "[old]").await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| !tools.is_empty()).await;
    let mut stream = client.get_stream(None).await?;
    client.call(1, "old__change_tools", json!({})).await?;
    next(&mut stream, "notifications/tools/list_changed").await?;
    assert!(
        tools(&client).await?.iter().any(|tool| tool == "old__extra"),
        "the list is new already"
    );
    Ok(())
}

#[tokio::test]
async fn audit_names_the_member_and_both_names_of_the_tool() -> Result<()> {
    let text = format!(
        "audit: '{{dir}}/audit.jsonl'\n{}",
        crate::fixture::config(OLD, "{ old: { tools: { rename: { echo: say } } } }")
    );
    let rialto = with_config(&text).await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| !tools.is_empty()).await;
    client
        .call(1, "old__say", json!({"marker": "x"}))
        .await?
        .expect_status(200)?;
    let record = wait_until("the record", PATIENCE, || {
        let text = std::fs::read_to_string(rialto.dir().join("audit.jsonl")).ok()?;
        let records = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        records
            .into_iter()
            .find(|record| record["mcp_method"] == "tools/call")
    })
    .await;
    let field = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
    let fields = ["destination", "member", "tool", "own_name", "outcome"].map(field);
    assert_eq!(fields, ["all", "old", "old__say", "echo", "ok"], "{record}");
    let page = client.metrics().await?;
    assert!(
        page.contains(r#"rialto_aggregate_members{destination="all",member="old",state="ok"} 1"#),
        "{page}"
    );
    Ok(())
}

#[tokio::test]
async fn lists_of_a_hundred_members_are_answered_from_the_catalogue_without_a_child() -> Result<()> {
    const MEMBERS: usize = 100;
    let state = tempfile::tempdir()?;
    let offers = state.path().join("state/offers");
    let config = |members: usize, lazy: &str| {
        let names: Vec<String> = (0..members).map(|number| format!("m{number}")).collect();
        let destinations: String = names
            .iter()
            .map(|name| format!("  {name}: {{ command: '{{stub}}'{lazy} }}\n"))
            .collect();
        format!(
            "state_dir: {}/state\ndestinations:\n{destinations}aggregates:\n  all: {{ members: [{}] }}\n",
            state.path().display(),
            names.join(", ")
        )
    };
    let first = {
        let rialto = with_config(&config(1, "")).await?;
        let client = legacy(&rialto).await?;
        let shown = wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "m0__pid")).await;
        wait_until("the offer is stored", PATIENCE, || {
            offers.join("m0.json").exists().then_some(())
        })
        .await;
        shown.len()
    };
    // All members run the same command, so that they offer the same.
    for number in 1..MEMBERS {
        std::fs::copy(offers.join("m0.json"), offers.join(format!("m{number}.json")))?;
    }
    let rialto = with_config(&config(MEMBERS, ", start: lazy")).await?;
    let client = legacy(&rialto).await?;
    let shown = tools(&client).await?;
    assert_eq!(shown.len(), first * MEMBERS);
    let listed = modern(&rialto, "tools/list", json!({})).await?;
    let by_modern = listed["result"]["tools"].as_array().map(Vec::len);
    assert_eq!(by_modern, Some(first * MEMBERS));
    for (method, kind) in [("prompts/list", "prompts"), ("resources/list", "resources")] {
        let listed = modern(&rialto, method, json!({})).await?;
        assert!(
            listed["result"][kind]
                .as_array()
                .is_some_and(|items| items.len() >= MEMBERS)
        );
    }
    assert_eq!(servers(&rialto), 0, "no list starts a server");
    Ok(())
}
