//! Arguments that modern clients mirror in headers: judged by what the client was shown, and sent
//! to the member under its own names.

use serde_json::{Value, json};
use testkit::upstream::Step;
use testkit::{Result, Rialto, Upstream};

use crate::fixture::{Modern, aggregate, legacy, wait_for_tools};

const LIST: &str = r#"{"jsonrpc":"2.0","id":{id},"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[{"name":"go","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"zone":{"type":"string","x-mcp-header":"Zone"}}}}]}}"#;

async fn call(rialto: &Rialto, headers: &[(&str, &str)]) -> Result<(u16, Value)> {
    let request = Modern {
        path: "/all/mcp",
        capabilities: json!({}),
        headers,
    };
    let params = json!({"name": "far__travel", "arguments": {"region": "north"}});
    let reply = request.open(rialto, "tools/call", params).await?.reply().await?;
    Ok((reply.status, reply.answer()))
}

#[tokio::test]
async fn headers_are_judged_by_the_shown_tool_and_sent_under_the_members_own_name() -> Result<()> {
    let upstream = Upstream::modern().start().await?;
    upstream.always(|seen| seen.method() == "tools/list", vec![Step::json(LIST)]);
    let destinations = format!("  far: {{ url: '{}' }}\n", upstream.url());
    let members = "{ far: { tools: { rename: { go: travel }, hide_args: { go: { zone: z1 } } } } }";
    let rialto = aggregate(&destinations, members).await?;
    let client = legacy(&rialto).await?;
    let shown = wait_for_tools(&client, |tools| !tools.is_empty()).await;
    assert_eq!(shown, ["far__travel"]);
    for (headers, why) in [
        (&[][..], "Mcp-Param-Region is missing"),
        (&[("mcp-param-region", "south")][..], "Mcp-Param-Region"),
    ] {
        let (status, answer) = call(&rialto, headers).await?;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (400, &json!(-32020)),
            "{answer}"
        );
        assert!(answer["error"]["message"].to_string().contains(why), "{answer}");
    }
    let (status, answer) = call(&rialto, &[("mcp-param-region", "north")]).await?;
    assert_eq!(status, 200, "{answer}");
    let seen = upstream.seen(|seen| seen.tool() == "go");
    let [seen] = seen.as_slice() else {
        panic!("one call was expected, not {seen:?}");
    };
    let header = |name: &str| seen.header(name).unwrap_or_default().to_owned();
    assert_eq!(
        ["mcp-name", "mcp-param-region", "mcp-param-zone"].map(header),
        ["go", "north", "z1"]
    );
    assert_eq!(
        seen.body["params"]["arguments"],
        json!({"region": "north", "zone": "z1"})
    );
    Ok(())
}

#[tokio::test]
async fn annotation_of_a_tool_is_shown_as_it_is() -> Result<()> {
    let upstream = Upstream::modern().start().await?;
    upstream.always(|seen| seen.method() == "tools/list", vec![Step::json(LIST)]);
    let rialto = aggregate(&format!("  far: {{ url: '{}' }}\n", upstream.url()), "[far]").await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| !tools.is_empty()).await;
    let listed = crate::fixture::modern(&rialto, "tools/list", json!({})).await?;
    let region = &listed["result"]["tools"][0]["inputSchema"]["properties"]["region"];
    assert_eq!(
        *region,
        json!({"type": "string", "x-mcp-header": "Region"}),
        "{listed}"
    );
    Ok(())
}

#[tokio::test]
async fn call_through_a_search_tool_sends_the_headers_of_the_tool_within() -> Result<()> {
    let upstream = Upstream::modern().start().await?;
    upstream.always(|seen| seen.method() == "tools/list", vec![Step::json(LIST)]);
    let rialto = aggregate(&format!("  far: {{ url: '{}' }}\n", upstream.url()), "[far]").await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| !tools.is_empty()).await;
    let request = Modern {
        path: "/all/mcp?tools=search",
        capabilities: json!({}),
        headers: &[],
    };
    let within = json!({"name": "far__go", "arguments": {"region": "north"}});
    let params = json!({"name": "call_destructive", "arguments": within});
    let answer = request
        .open(&rialto, "tools/call", params)
        .await?
        .reply()
        .await?
        .answer();
    assert!(answer["result"].is_object(), "{answer}");
    let seen = upstream.seen(|seen| seen.tool() == "go");
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0].header("mcp-param-region"), Some("north"));
    Ok(())
}
