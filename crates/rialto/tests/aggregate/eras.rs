//! Members that speak both eras, or that keep a session for each client: each client uses them as it
//! would use their destination.

use serde_json::json;
use testkit::upstream::calls;
use testkit::{Result, Upstream};

use crate::fixture::{aggregate, legacy, mixed, modern, wait_for_tools};

#[tokio::test]
async fn member_of_both_eras_is_used_in_the_era_of_each_client() -> Result<()> {
    let upstream = Upstream::dual().start().await?;
    let rialto = aggregate(&format!("  far: {{ url: '{}' }}\n", upstream.url()), "[far]").await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "far__echo")).await;
    let by_era = [("legacy", false), ("modern", true)];
    for (era, _) in by_era {
        let arguments = json!({ "text": era });
        let answer = match era {
            "legacy" => client.call(1, "far__echo", arguments).await?.answer(),
            _ => {
                modern(
                    &rialto,
                    "tools/call",
                    json!({"name": "far__echo", "arguments": arguments}),
                )
                .await?
            }
        };
        assert_eq!(answer["result"]["content"][0]["text"], era, "{answer}");
    }
    let seen = upstream.seen(calls("echo"));
    let eras: Vec<(&str, bool)> = seen
        .iter()
        .map(|seen| {
            let text = seen.body["params"]["arguments"]["text"].as_str();
            (text.unwrap_or_default(), seen.is_modern())
        })
        .collect();
    assert_eq!(eras, by_era);
    Ok(())
}

#[tokio::test]
async fn question_of_a_member_of_both_eras_reaches_a_modern_client_under_its_own_name() -> Result<()> {
    let upstream = Upstream::dual().start().await?;
    let rialto = aggregate(&format!("  far: {{ url: '{}' }}\n", upstream.url()), "[far]").await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "far__ask")).await;
    let asked = modern(
        &rialto,
        "tools/call",
        json!({"name": "far__ask", "arguments": {}}),
    )
    .await?;
    assert!(
        asked["result"]["inputRequests"]["well"].is_object(),
        "the server has named its question: {asked}"
    );
    Ok(())
}

#[tokio::test]
async fn calls_of_a_modern_client_share_one_session_at_a_legacy_member() -> Result<()> {
    let upstream = Upstream::legacy().start().await?;
    let rialto = aggregate(&format!("  far: {{ url: '{}' }}\n", upstream.url()), "[far]").await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "far__echo")).await;
    for _ in 0..5 {
        let answer = modern(
            &rialto,
            "tools/call",
            json!({"name": "far__echo", "arguments": {"text": "x"}}),
        )
        .await?;
        assert_eq!(answer["result"]["content"][0]["text"], "x", "{answer}");
    }
    let sessions: std::collections::BTreeSet<String> = upstream
        .seen(calls("echo"))
        .iter()
        .filter_map(|seen| seen.session().map(str::to_owned))
        .collect();
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    Ok(())
}

#[tokio::test]
async fn each_client_speaks_its_own_revision_to_members_of_both_eras() -> Result<()> {
    let rialto = mixed().await?;
    let first = legacy(&rialto).await?;
    wait_for_tools(&first, |tools| {
        ["old__echo", "new__echo"]
            .iter()
            .all(|name| tools.iter().any(|tool| tool == name))
    })
    .await;
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = rialto.client_of("all").await?;
        let hello = client.handshake(revision, json!({})).await?.answer();
        assert_eq!(hello["result"]["protocolVersion"], revision, "{hello}");
        assert_eq!(hello["result"]["serverInfo"]["name"], "all", "{hello}");
        let text = json!({"text": revision, "marker": revision});
        for member in ["old", "new"] {
            let answer = client.call(1, &format!("{member}__echo"), text.clone()).await?;
            assert_eq!(answer.text(), revision, "{member}");
        }
    }
    let found = modern(&rialto, "server/discover", json!({})).await?;
    assert_eq!(
        found["result"]["supportedVersions"],
        json!(["2026-07-28"]),
        "{found}"
    );
    Ok(())
}
