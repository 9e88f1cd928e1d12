//! The way of each message to its member and back.

use serde_json::json;
use testkit::upstream::Step;
use testkit::{PATIENCE, Result, Upstream, wait_until};

use crate::fixture::{
    NEW, OLD, TWO, aggregate, journal, keys, legacy, legacy_with, mixed, modern, next, result,
    wait_for_tools, wait_for_two,
};

#[tokio::test]
async fn read_is_answered_by_the_member_that_owns_the_resource_and_by_no_other() -> Result<()> {
    let rialto = aggregate(TWO, "[a, b]").await?;
    let client = legacy(&rialto).await?;
    wait_for_two(&client).await;
    let list = result(&client, "resources/list", json!({})).await?;
    let uris = keys(&list, "resources", "uri");
    assert_eq!(
        uris,
        [
            "a+testkit://one",
            "a+testkit://two",
            "b+testkit://one",
            "b+testkit://two"
        ]
    );
    let read = result(&client, "resources/read", json!({"uri": "b+testkit://one"})).await?;
    assert_eq!(read["contents"][0]["uri"], "b+testkit://one");
    assert_eq!(
        read["contents"][0]["text"], "the text of testkit://one",
        "text stays as it is"
    );
    assert_eq!(journal(&rialto, "a").received("resources/read").len(), 0);
    assert_eq!(journal(&rialto, "b").received("resources/read").len(), 1);
    let bare = client
        .request(3, "resources/read", json!({"uri": "testkit://one"}))
        .await?
        .answer();
    let message = bare["error"]["message"].as_str().unwrap_or_default();
    assert!(
        message.contains('a') && message.contains('b') && bare.get("result").is_none(),
        "{bare}"
    );
    Ok(())
}

#[tokio::test]
async fn resource_that_one_member_lists_is_read_by_its_bare_uri() -> Result<()> {
    let rialto = aggregate(&format!("{OLD}{NEW}"), "[old, new]").await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "old__pid")).await;
    let read = modern(&rialto, "resources/read", json!({"uri": "testkit://two"})).await?;
    assert_eq!(
        read["result"]["contents"][0]["uri"], "old+testkit://two",
        "{read}"
    );
    Ok(())
}

#[tokio::test]
async fn resource_link_inside_a_result_leads_to_its_member() -> Result<()> {
    let rialto = mixed().await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "new__link")).await;
    let linked = client.call(1, "new__link", json!({})).await?.answer();
    let items = linked["result"]["content"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let link = items.iter().find_map(|item| item["uri"].as_str());
    let uri = link.unwrap_or_else(|| panic!("a link was expected in {linked}"));
    assert!(uri.starts_with("new+"), "{uri}");
    let read = result(&client, "resources/read", json!({ "uri": uri })).await?;
    assert_eq!(read["contents"][0]["uri"], uri);
    Ok(())
}

#[tokio::test]
async fn cancellation_reaches_the_member_of_the_call_alone() -> Result<()> {
    let rialto = aggregate(TWO, "[a, b]").await?;
    let client = legacy(&rialto).await?;
    wait_for_two(&client).await;
    let on_a = client
        .open_call(1, "a__hold", json!({"marker": "on-a", "every_ms": 20}), 1)
        .await?;
    let on_b = client
        .open_call(2, "b__hold", json!({"marker": "on-b", "every_ms": 20}), 2)
        .await?;
    client.cancel(1).await?;
    let (a, b) = (journal(&rialto, "a"), journal(&rialto, "b"));
    wait_until("the cancellation has come", PATIENCE, || {
        a.was_cancelled("on-a").then_some(())
    })
    .await;
    client.call(3, "b__release", json!({"marker": "release"})).await?;
    let answered = on_b.reply().await?;
    assert_eq!(answered.text(), "on-b");
    assert!(b.received("notifications/cancelled").is_empty());
    drop(on_a);
    Ok(())
}

#[tokio::test]
async fn question_shows_the_user_which_member_asks() -> Result<()> {
    let members = "{ a: { title: First }, b: { title: Second } }";
    let rialto = aggregate(TWO, members).await?;
    let client = legacy_with(&rialto, json!({"elicitation": {}})).await?;
    wait_for_two(&client).await;
    let mut events = client
        .open_call(1, "b__ask_elicit", json!({"marker": "m"}), 1)
        .await?
        .events();
    let question = events.message().await?;
    assert_eq!(question["method"], "elicitation/create", "{question}");
    let shown = question["params"]["message"].as_str().unwrap_or_default();
    assert!(shown.contains("Second") && !shown.contains("First"), "{question}");
    client
        .respond(
            &question["id"],
            json!({"action": "accept", "content": {"answer": "yes"}}),
        )
        .await?;
    let answer = events.message().await?;
    assert_eq!(answer["id"], 1, "{answer}");
    assert!(answer["result"].to_string().contains("yes"), "{answer}");
    Ok(())
}

#[tokio::test]
async fn modern_client_answers_the_questions_of_servers_of_both_eras() -> Result<()> {
    let rialto = mixed().await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "new__ask")).await;
    wait_for_tools(&client, |tools| {
        tools.iter().any(|tool| tool == "old__ask_elicit")
    })
    .await;
    for (tool, arguments) in [
        ("old__ask_elicit", json!({"marker": "m"})),
        ("new__ask", json!({"question": "Which?"})),
    ] {
        let asked = modern(
            &rialto,
            "tools/call",
            json!({"name": tool, "arguments": arguments}),
        )
        .await?;
        let result = &asked["result"];
        assert_eq!(result["resultType"], "input_required", "{tool}: {asked}");
        let requests = result["inputRequests"].as_object().cloned().unwrap_or_default();
        let key = requests.keys().next().expect("a question").clone();
        let retry = json!({"name": tool, "arguments": arguments, "requestState": result["requestState"],
            "inputResponses": {key: {"action": "accept", "content": {"answer": "12A"}}}});
        let answered = modern(&rialto, "tools/call", retry).await?;
        assert_eq!(answered["result"]["resultType"], "complete", "{tool}: {answered}");
        assert!(
            answered["result"].to_string().contains("12A"),
            "{tool}: {answered}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn prompts_and_completions_reach_their_member() -> Result<()> {
    let rialto = aggregate(TWO, "[a, b]").await?;
    let client = legacy(&rialto).await?;
    wait_for_two(&client).await;
    let list = result(&client, "prompts/list", json!({})).await?;
    assert_eq!(keys(&list, "prompts", "name"), ["a__greet", "b__greet"]);
    let prompt = result(
        &client,
        "prompts/get",
        json!({"name": "b__greet", "arguments": {}}),
    )
    .await?;
    assert_eq!(prompt["messages"][0]["content"]["text"], "Greet world.");
    let reference = json!({"type": "ref/prompt", "name": "b__greet"});
    let params = json!({"ref": reference, "argument": {"name": "name", "value": "x"}});
    let completed = result(&client, "completion/complete", params).await?;
    assert_eq!(completed["completion"]["values"][0], "x-completed");
    assert!(journal(&rialto, "a").received("completion/complete").is_empty());
    Ok(())
}

#[tokio::test]
async fn updates_come_from_the_member_of_the_subscribed_resource() -> Result<()> {
    let rialto = aggregate(TWO, "[a, b]").await?;
    let client = legacy(&rialto).await?;
    wait_for_two(&client).await;
    let mut stream = client.get_stream(None).await?;
    result(&client, "resources/subscribe", json!({"uri": "b+testkit://one"})).await?;
    client
        .call(1, "a__update", json!({"uri": "testkit://one"}))
        .await?;
    client
        .call(2, "b__update", json!({"uri": "testkit://one"}))
        .await?;
    let updated = next(&mut stream, "notifications/resources/updated").await?;
    assert_eq!(updated["params"]["uri"], "b+testkit://one", "{updated}");
    Ok(())
}

#[tokio::test]
async fn uris_with_odd_characters_lead_to_their_resources_and_come_back() -> Result<()> {
    const ODD: [&str; 8] = [
        "file:///with space/ä/日本",
        "FILE:///upper",
        "git+ssh://h/p?q=a+b#c",
        "x:\"quoted\"\\back",
        "no scheme at all",
        "urn:a:b+c://d",
        "ui://panel+x/y",
        "data:text/plain,%7B%7D{x}",
    ];
    let upstream = Upstream::legacy().start().await?;
    let listed: Vec<serde_json::Value> = ODD.iter().map(|uri| json!({"uri": uri, "name": "n"})).collect();
    let list = json!({"jsonrpc": "2.0", "id": "ID", "result": {"resources": listed}});
    let list = list.to_string().replace("\"ID\"", "{id}");
    upstream.always(|seen| seen.method() == "resources/list", vec![Step::json(&list)]);
    let rialto = aggregate(
        &format!("  far_1: {{ url: '{}' }}\n{OLD}", upstream.url()),
        "[far_1, old]",
    )
    .await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| {
        ["far_1__echo", "old__echo"]
            .iter()
            .all(|name| tools.iter().any(|tool| tool == name))
    })
    .await;
    let list = result(&client, "resources/list", json!({})).await?;
    let shown = keys(&list, "resources", "uri");
    for (uri, own) in shown.iter().zip(ODD) {
        let read = result(&client, "resources/read", json!({"uri": uri})).await?;
        assert_eq!(read["contents"][0]["uri"], *uri, "{own}");
        let read = result(&client, "resources/read", json!({"uri": own})).await?;
        assert_eq!(read["contents"][0]["uri"], *uri, "{own}, bare");
        let last = upstream.seen(|seen| seen.method() == "resources/read").pop();
        assert_eq!(
            last.map(|seen| seen.body["params"]["uri"].clone()),
            Some(json!(own))
        );
    }
    Ok(())
}
