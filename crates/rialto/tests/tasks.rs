//! Tasks of a server that is written with the official SDK (TypeScript 1.x, which has them), used
//! by clients of both eras through the real binary: the official client of that line, and a modern
//! client of our own, since no SDK has the extension yet.

use std::path::Path;

use serde_json::{Value, json};
use testkit::client::raw_http;
use testkit::interop::sdk::{Era, Sdk, player};
use testkit::interop::test_deps;
use testkit::token::token;
use testkit::{PATIENCE, Result, Rialto, poll_until};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

async fn serve() -> Result<Rialto> {
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/servers/ts1_tasks.mjs");
    let file = json!({"destinations": {"server": {"command": "node", "args": [server, test_deps()]}}});
    Rialto::launcher().config(&file.to_string()).start().await
}

/// A modern client.
struct Modern<'a> {
    rialto: &'a Rialto,
    capabilities: Value,
}

impl Modern<'_> {
    /// Sends a request; gives the result.
    async fn request(&self, method: &str, name: &str, mut params: Value) -> Result<Value> {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        });
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let headers = [
            ("content-type", "application/json"),
            ("accept", "application/json"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", method),
            ("mcp-name", name),
        ];
        let request = raw_http::request("POST", "/server/mcp", &headers, body.to_string());
        let response = self.rialto.raw().await?.exchange(request).await?;
        let answer: Value = serde_json::from_str(&response.body_text()).expect("an answer is JSON");
        assert!(answer["error"].is_null(), "{method}: {answer}");
        Ok(answer["result"].clone())
    }

    async fn call(&self, name: &str) -> Result<Value> {
        let params = json!({"name": name, "arguments": {}});
        self.request("tools/call", name, params).await
    }

    /// Looks after a task until it is no longer `working`.
    async fn look_after(&self, created: &Value) -> Result<Value> {
        let id = created["taskId"].as_str().expect("a task has an id");
        poll_until("the task is no longer working", PATIENCE, async || {
            let task = self.request("tasks/get", id, json!({"taskId": id})).await?;
            Result::Ok((task["status"] != "working").then_some(task))
        })
        .await
    }

    async fn runs(&self) -> Result<Value> {
        Ok(self.call("runs").await?["content"][0]["text"].clone())
    }
}

#[tokio::test]
async fn modern_client_follows_a_task_of_a_legacy_server() -> Result<()> {
    let rialto = serve().await?;
    let capabilities = json!({"elicitation": {"form": {}}, "extensions": {EXTENSION: {}}});
    let client = Modern {
        rialto: &rialto,
        capabilities,
    };
    let created = client.call("slow").await?;
    assert_eq!(created["resultType"], "task", "{created}");
    let task = client.look_after(&created).await?;
    assert_eq!(task["status"], "completed", "{task}");
    assert_eq!(task["result"]["content"][0]["text"], "Slowly done.");

    let created = client.call("ask").await?;
    let id = created["taskId"].as_str().expect("a task has an id");
    let task = client.look_after(&created).await?;
    assert_eq!(task["status"], "input_required", "{task}");
    let question = &task["inputRequests"]["k1"];
    assert_eq!(question["params"]["message"], "Which bridge?", "{task}");
    let answer = json!({"k1": {"action": "accept", "content": {"answer": "Rialto"}}});
    let params = json!({"taskId": id, "inputResponses": answer});
    client.request("tasks/update", id, params).await?;
    let task = client.look_after(&created).await?;
    assert_eq!(
        task["result"]["content"][0]["text"], "The answer was: Rialto",
        "{task}"
    );
    assert_eq!(client.runs().await?, "2", "each ran once");
    Ok(())
}

#[tokio::test]
async fn modern_client_without_the_extension_gets_plain_results() -> Result<()> {
    let rialto = serve().await?;
    let client = Modern {
        rialto: &rialto,
        capabilities: json!({"elicitation": {"form": {}}}),
    };
    let result = client.call("must").await?;
    assert_eq!(result["resultType"], "complete", "{result}");
    assert_eq!(result["content"][0]["text"], "Done as a task.");

    let asked = client.call("ask").await?;
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let params = json!({
        "name": "ask", "arguments": {}, "requestState": asked["requestState"],
        "inputResponses": {"k1": {"action": "accept", "content": {"answer": "Rialto"}}},
    });
    let result = client.request("tools/call", "ask", params).await?;
    assert_eq!(result["content"][0]["text"], "The answer was: Rialto", "{result}");
    assert_eq!(client.runs().await?, "2", "each ran once");
    Ok(())
}

#[tokio::test]
async fn official_client_follows_tasks_of_the_official_server() -> Result<()> {
    let rialto = serve().await?;
    let url = rialto.url_of("server");
    let play = move || player("tasks", Sdk::TypeScript1, Era::Legacy)(&url, "all");
    let seen = tokio::task::spawn_blocking(play)
        .await
        .expect("it does not panic");
    let seen = seen.unwrap_or_else(|why| panic!("the client could not play: {why}"));
    assert_eq!(seen["slow"], "Slowly done.", "{seen}");
    assert_eq!(seen["ask"], "The answer was: Rialto", "{seen}");
    assert_eq!(seen["asked"], json!(["Which bridge?"]));
    assert_eq!(seen["listed"], seen["own"]);
    assert_eq!(seen["runs"], "2", "each ran once");
    Ok(())
}

/// Sends a modern request of a caller. Returns any answer.
async fn ask(rialto: &Rialto, token: &str, method: &str, name: &str, mut params: Value) -> Result<String> {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "extensions": {EXTENSION: {}}},
    });
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let bearer = format!("Bearer {token}");
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", method),
        ("mcp-name", name),
        ("authorization", bearer.as_str()),
    ];
    let request = raw_http::request("POST", "/server/mcp", &headers, body.to_string());
    let response = rialto.raw().await?.exchange(request).await?;
    Ok(format!("{} {}", response.status, response.body_text()))
}

/// Two principals at one child: a task that waits for its owner's answer is, to the other, one that
/// never was.
#[tokio::test]
async fn task_and_its_question_are_hidden_from_other_callers() -> Result<()> {
    const UNKNOWN_TASK: &str = "00000000000000000000000000000000";
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/servers/ts1_tasks.mjs");
    let (alice, bob) = (token("alice"), token("bob"));
    let file = json!({
        "auth": {"tokens": [{"name": "alice", "hash": alice.hash}, {"name": "bob", "hash": bob.hash}]},
        "destinations": {"server": {"command": "node", "args": [server, test_deps()]}},
    });
    let rialto = Rialto::launcher().config(&file.to_string()).start().await?;
    let call = json!({"name": "ask", "arguments": {}});
    let created = ask(&rialto, &alice.token, "tools/call", "ask", call).await?;
    let created: Value = serde_json::from_str(created.trim_start_matches("200 "))?;
    let id = created["result"]["taskId"]
        .as_str()
        .unwrap_or_else(|| panic!("a task: {created}"))
        .to_owned();
    let waits = async |caller: &str| ask(&rialto, caller, "tasks/get", &id, json!({"taskId": id})).await;
    poll_until("the task asks", PATIENCE, async || {
        let asks = waits(&alice.token).await?.contains("Which bridge?");
        Result::Ok(asks.then_some(()))
    })
    .await?;
    let forged = json!({"k1": {"action": "accept", "content": {"answer": "forged"}}});
    for method in ["tasks/get", "tasks/update", "tasks/cancel", "tasks/result"] {
        let mut said = Vec::new();
        for task in [id.as_str(), UNKNOWN_TASK] {
            let params = json!({"taskId": task, "inputResponses": forged});
            let answer = ask(&rialto, &bob.token, method, task, params).await?;
            assert!(answer.contains("\"error\""), "{method}: {answer}");
            said.push(answer.replace(task, "TASK"));
        }
        assert_eq!(said[0], said[1], "{method}: byte for byte");
    }
    // The same for a client of the older era, which may also list.
    let legacy = rialto.client_of("server").await?;
    let legacy = legacy.with_header("authorization", &format!("Bearer {}", bob.token));
    legacy
        .handshake(
            "2025-11-25",
            json!({"elicitation": {"form": {}}, "tasks": {"list": {}, "cancel": {}}}),
        )
        .await?;
    let listed = legacy.request(1, "tasks/list", "{}").await?.body_text();
    assert!(!listed.contains(&id), "{listed}");
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let stolen = legacy.request(2, method, json!({"taskId": id})).await?;
        let invented = legacy.request(2, method, json!({"taskId": UNKNOWN_TASK})).await?;
        assert!(stolen.answer()["error"].is_object(), "{method}: {stolen:?}");
        assert_eq!(
            (stolen.status, stolen.body_text().replace(&id, "TASK")),
            (
                invented.status,
                invented.body_text().replace(UNKNOWN_TASK, "TASK")
            ),
            "{method}"
        );
    }
    // Alice has noticed nothing: her task still waits, and takes her answer.
    let answer = json!({"k1": {"action": "accept", "content": {"answer": "Rialto"}}});
    let params = json!({"taskId": id, "inputResponses": answer});
    ask(&rialto, &alice.token, "tasks/update", &id, params).await?;
    poll_until("the task has its answer", PATIENCE, async || {
        let task = waits(&alice.token).await?;
        assert!(!task.contains("forged"), "{task}");
        Result::Ok(task.contains("The answer was: Rialto").then_some(()))
    })
    .await
}
