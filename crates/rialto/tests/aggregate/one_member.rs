//! An aggregate of one member without a prefix gives the member's own transcript, but for ids and
//! what an aggregate adds about itself.

use serde_json::{Value, json};
use testkit::{LEGACY, McpClient, PATIENCE, Result, Rialto, poll_until};

use crate::fixture::{Modern, NEW, OLD, ready};

/// What a client asks, whose answers do not depend on time or on the process.
fn requests(tool: &str) -> Vec<(&'static str, Value)> {
    let mut requests = vec![
        ("tools/list", json!({})),
        ("prompts/list", json!({})),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        (
            "prompts/get",
            json!({"name": "greet", "arguments": {"name": "Ada"}}),
        ),
        ("prompts/get", json!({"name": "no_such_prompt"})),
        ("resources/read", json!({"uri": "testkit://one"})),
        ("resources/read", json!({"uri": "demo://readme"})),
        ("resources/read", json!({"uri": "nowhere://at/all"})),
        (
            "tools/call",
            json!({"name": tool, "arguments": {"marker": "x", "text": "x"}}),
        ),
        ("tools/call", json!({"name": "link", "arguments": {}})),
        (
            "tools/call",
            json!({"name": "fail", "arguments": {"code": -32001, "message": "no"}}),
        ),
        ("tools/call", json!({"name": "no_such_tool", "arguments": {}})),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": "A"}}),
        ),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/other"}, "argument": {}}),
        ),
        ("example/unknown", json!({"a": [1.50, "x"]})),
    ];
    let progressing = json!({"name": "progress", "arguments": {"n": 2, "steps": 2, "marker": "p"}, "_meta": {"progressToken": "t"}});
    requests.push(("tools/call", progressing));
    requests
}

/// Takes out what an aggregate adds about itself: its name, its members, and that lists may change.
fn but_for_itself(mut message: Value) -> Value {
    let result = &mut message["result"];
    if let Some(meta) = result["_meta"].as_object_mut() {
        for own in [
            "rialto/members",
            "rialto/via",
            "io.modelcontextprotocol/serverInfo",
        ] {
            meta.remove(own);
        }
    }
    if result["_meta"].as_object().is_none_or(serde_json::Map::is_empty)
        && let Some(members) = result.as_object_mut()
    {
        members.remove("_meta");
    }
    let is_discovery = !result["supportedVersions"].is_null();
    if let Some(members) = result.as_object_mut() {
        members.remove("serverInfo");
        if is_discovery {
            // What an aggregate declares is not kept: members join, leave and change.
            members.remove("ttlMs");
            members.remove("cacheScope");
        }
    }
    // A list is kept no longer than its member announces its changes.
    for kind in ["prompts", "resources", "resourceTemplates"] {
        if !result[kind].is_null()
            && let Some(members) = result.as_object_mut()
        {
            members.remove("ttlMs");
        }
    }
    for kind in ["tools", "prompts", "resources"] {
        if let Some(capability) = result["capabilities"][kind].as_object_mut() {
            capability.remove("listChanged");
        }
    }
    // Looking must not have made what was not there.
    prune(&mut message);
    message
}

fn prune(value: &mut Value) {
    if let Value::Object(members) = value {
        members.values_mut().for_each(prune);
        members.retain(|_, value| !value.is_null());
    }
}

async fn running() -> Result<Rialto> {
    let destinations = format!("{OLD}{NEW}");
    let text = format!(
        "destinations:\n{destinations}aggregates:\n  like-old: {{ members: {{ old: {{ prefix: '' }} }} }}\n  like-new: {{ members: {{ new: {{ prefix: '' }} }} }}\n  all: {{ members: [old] }}\n"
    );
    let rialto = crate::fixture::with_config(&text).await?;
    for name in ["like-old", "like-new"] {
        poll_until("the member is known", PATIENCE, async || {
            let ready = ready(&rialto).await?;
            Result::Ok(
                ready["destinations"][name]["ready"]
                    .as_bool()
                    .filter(|ready| *ready),
            )
        })
        .await?;
    }
    Ok(rialto)
}

async fn of_legacy_client(rialto: &Rialto, endpoint: &str, tool: &str) -> Result<Vec<Value>> {
    let client: McpClient = rialto.client_of(endpoint).await?;
    let mut seen = vec![
        client
            .handshake(LEGACY, json!({"elicitation": {}}))
            .await?
            .answer(),
    ];
    for (at, (method, params)) in requests(tool).into_iter().enumerate() {
        let reply = client.request(at + 1, method, params).await?;
        match reply.messages().as_slice() {
            [] => seen.push(reply.answer()),
            messages => seen.extend(messages.iter().cloned()),
        }
    }
    Ok(seen.into_iter().map(but_for_itself).collect())
}

async fn of_modern_client(rialto: &Rialto, endpoint: &str, tool: &str) -> Result<Vec<Value>> {
    let path = format!("/{endpoint}/mcp");
    let request = Modern {
        path: &path,
        capabilities: json!({"elicitation": {}}),
        headers: &[],
    };
    let mut seen = Vec::new();
    let asked = [("server/discover", json!({}))];
    for (method, params) in asked.into_iter().chain(requests(tool)) {
        let reply = request.open(rialto, method, params).await?.reply().await?;
        match reply.messages().as_slice() {
            [] => seen.push(reply.answer()),
            messages => seen.extend(messages.iter().cloned()),
        }
    }
    Ok(seen.into_iter().map(but_for_itself).collect())
}

fn assert_same(alone: &[Value], through: &[Value]) {
    for (alone, through) in alone.iter().zip(through) {
        assert_eq!(alone, through);
    }
    assert_eq!(alone.len(), through.len());
}

#[tokio::test]
async fn one_legacy_member_without_a_prefix_gives_its_own_transcript() -> Result<()> {
    let rialto = running().await?;
    assert_same(
        &of_legacy_client(&rialto, "old", "echo").await?,
        &of_legacy_client(&rialto, "like-old", "echo").await?,
    );
    assert_same(
        &of_modern_client(&rialto, "old", "echo").await?,
        &of_modern_client(&rialto, "like-old", "echo").await?,
    );
    Ok(())
}

#[tokio::test]
async fn one_modern_member_without_a_prefix_gives_its_own_transcript() -> Result<()> {
    let rialto = running().await?;
    assert_same(
        &of_legacy_client(&rialto, "new", "echo").await?,
        &of_legacy_client(&rialto, "like-new", "echo").await?,
    );
    assert_same(
        &of_modern_client(&rialto, "new", "echo").await?,
        &of_modern_client(&rialto, "like-new", "echo").await?,
    );
    Ok(())
}
