//! What lives on one replica alone and is reached through any other: the stream of the old transport,
//! and tasks.

use std::path::Path;

use serde_json::{Value, json};
use testkit::fleet::Fleet;
use testkit::interop::test_deps;
use testkit::{FleetConfig, McpClient, PATIENCE, Result, poll_until};

use super::fixture::{
    assert_none_ran_twice, assert_owner_lost, call_until_served, drain_with_call, executions, modern, moved,
    session_at,
};

#[tokio::test]
async fn client_of_the_old_transport_posts_through_any_replica() -> Result<()> {
    let fleet = FleetConfig::of_stub("legacy_sse: true").start().await?;
    let url = format!("http://{}/one/sse", fleet.address());
    let client = McpClient::connect(&url).await?;
    let mut stream = client.get_stream(None).await?;
    let endpoint = stream.next().await?.expect("the stream names its endpoint").data;
    let post = async |body: Value| {
        let headers = [("content-type", "application/json")];
        let sent = client.send("POST", &endpoint, &headers, body.to_string()).await?;
        Result::Ok(sent.reply().await?.status)
    };
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}
    }});
    assert_eq!(post(hello).await?, 202);
    assert_eq!(stream.message().await?["id"], 0);
    assert_eq!(
        post(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await?,
        202
    );
    for number in 1..7 {
        let params = json!({"name": "echo", "arguments": {"marker": format!("old-{number}")}});
        let call = json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params});
        assert_eq!(post(call).await?, 202);
        let answer = stream.message().await?;
        assert_eq!(answer["id"], number, "{answer}");
    }
    assert_eq!(executions(&fleet.journal()).len(), 6);
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

/// Starts a fleet with an official server that works on calls as tasks.
async fn fleet_with_tasks() -> Result<Fleet> {
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/servers/ts1_tasks.mjs");
    let one = json!({"command": "node", "args": [server, test_deps()]});
    FleetConfig::new(&format!("  one: {one}\n")).start().await
}

/// Sends a modern request to a replica. Returns the result.
async fn result_at(fleet: &Fleet, replica: usize, method: &str, name: &str, params: Value) -> Result<Value> {
    let client = fleet.replica(replica).rialto().client_of("one").await?;
    let answer = modern(&client, method, name, &params).await?.answer();
    assert!(answer["error"].is_null(), "{method} at {replica}: {answer}");
    Ok(answer["result"].clone())
}

/// Begins the task `ask` at a replica. Returns its id.
async fn begun_at(fleet: &Fleet, replica: usize) -> Result<String> {
    let params = json!({"name": "ask", "arguments": {}});
    let created = result_at(fleet, replica, "tools/call", "ask", params).await?;
    assert_eq!(created["resultType"], "task", "{created}");
    let id = created["taskId"].as_str().expect("a task has an id");
    Ok(id.to_owned())
}

/// Reads a task at each replica in turn until it has this status.
async fn wait_for_status(fleet: &Fleet, id: &str, status: &str) -> Result<Value> {
    let mut replicas = (0..fleet.size()).cycle();
    poll_until("the task has the status", PATIENCE, async || {
        let replica = replicas.next().unwrap_or_default();
        let task = result_at(fleet, replica, "tasks/get", id, json!({"taskId": id})).await?;
        Result::Ok((task["status"] == status).then_some(task))
    })
    .await
}

#[tokio::test]
async fn task_is_read_answered_and_cancelled_through_any_replica() -> Result<()> {
    let fleet = fleet_with_tasks().await?;
    for replica in 0..3 {
        let id = begun_at(&fleet, 0).await?;
        let task = wait_for_status(&fleet, &id, "input_required").await?;
        let questions = task["inputRequests"].as_object().expect("the task asks");
        let answer = json!({"action": "accept", "content": {"answer": "Rialto"}});
        let answers = questions.keys().map(|key| (key.clone(), answer.clone()));
        let answers: serde_json::Map<String, Value> = answers.collect();
        let update = json!({"taskId": id, "inputResponses": answers});
        result_at(&fleet, replica, "tasks/update", &id, update).await?;
        let task = wait_for_status(&fleet, &id, "completed").await?;
        assert!(task.to_string().contains("The answer was: Rialto"), "{task}");

        let id = begun_at(&fleet, 0).await?;
        wait_for_status(&fleet, &id, "input_required").await?;
        result_at(&fleet, replica, "tasks/cancel", &id, json!({"taskId": id})).await?;
        wait_for_status(&fleet, &id, "cancelled").await?;
    }
    let runs = result_at(
        &fleet,
        0,
        "tools/call",
        "runs",
        json!({"name": "runs", "arguments": {}}),
    )
    .await?;
    assert_eq!(
        runs["content"][0]["text"], "6",
        "each was begun once, at one replica"
    );
    Ok(())
}

#[tokio::test]
async fn task_of_a_session_is_followed_through_any_replica() -> Result<()> {
    let fleet = fleet_with_tasks().await?;
    let client = session_at(&fleet, 0).await?;
    for replica in 0..3 {
        let begun = async |name: &str| {
            let params = json!({"name": name, "arguments": {}, "task": {"ttl": 60_000}});
            let reply = client.request(1, "tools/call", params).await?;
            let id = reply.answer()["result"]["task"]["taskId"]
                .as_str()
                .map(str::to_owned);
            Result::Ok(id.unwrap_or_else(|| panic!("a task: {}", reply.answer_text())))
        };
        let there = moved(&fleet, &client, replica).await?;
        let about = async |method: &str, id: &str| {
            let reply = there.request(2, method, json!({"taskId": id})).await?;
            let answer = reply.answer();
            assert!(answer["error"].is_null(), "{method} at {replica}: {answer}");
            Result::Ok(answer["result"].clone())
        };
        let id = begun("slow").await?;
        assert_eq!(about("tasks/get", &id).await?["taskId"], *id);
        let result = about("tasks/result", &id).await?;
        assert_eq!(result["content"][0]["text"], "Slowly done.", "{result}");
        let id = begun("ask").await?;
        about("tasks/cancel", &id).await?;
        assert_eq!(about("tasks/get", &id).await?["status"], "cancelled");
    }
    let runs = call_until_served(&client, "runs", "runs", PATIENCE).await?;
    assert_eq!(runs.text(), "6", "each was begun once, at one replica");
    Ok(())
}

#[tokio::test]
async fn task_of_a_replica_that_died_ends_with_owner_lost() -> Result<()> {
    let mut fleet = fleet_with_tasks().await?;
    let id = begun_at(&fleet, 0).await?;
    wait_for_status(&fleet, &id, "input_required").await?;
    fleet.kill(0).await?;
    for replica in [1, 2] {
        let client = fleet.replica(replica).rialto().client_of("one").await?;
        for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
            let params = json!({"taskId": id, "inputResponses": {}});
            // While its lease lasts, the replica may come back.
            let reply = poll_until("the lease has ended", PATIENCE, async || {
                let reply = modern(&client, method, &id, &params).await?;
                if reply.status == 503 {
                    assert_eq!(reply.reason().as_deref(), Some("owner_unreachable"), "{reply:?}");
                    assert!(reply.header("retry-after").is_some(), "{reply:?}");
                    return Result::Ok(None);
                }
                Ok(Some(reply))
            });
            assert_owner_lost(&reply.await?.answer(), &json!(7));
        }
    }
    Ok(())
}

#[tokio::test]
async fn stream_of_the_old_transport_opens_through_a_replica_that_drains() -> Result<()> {
    let config = FleetConfig::of_stub("legacy_sse: true").more("drain_timeout: 30s");
    let fleet = config.start().await?;
    let busy = session_at(&fleet, 0).await?;
    let rialto = fleet.replica(0).rialto();
    let ready = rialto.client_of("one").await?;
    let old = McpClient::connect(&rialto.url_of("one").replace("/mcp", "/sse")).await?;
    let call = drain_with_call(&fleet, &busy, 0).await?;
    testkit::poll_until("the replica drains", PATIENCE, async || {
        let reply = ready
            .send("GET", "/ready", &[], String::new())
            .await?
            .reply()
            .await?;
        Result::Ok((reply.status == 503).then_some(()))
    })
    .await?;
    let mut stream = old.get_stream(None).await?;
    let endpoint = stream.next().await?.expect("the stream names its endpoint").data;
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}
    }});
    let headers = [("content-type", "application/json")];
    let sent = ready.send("POST", &endpoint, &headers, hello.to_string()).await?;
    assert_eq!(sent.reply().await?.status, 202);
    assert_eq!(stream.message().await?["id"], 0);
    call.release().await?;
    Ok(())
}
