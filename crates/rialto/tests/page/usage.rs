//! The page as people use it.

use serde_json::{Value, json};
use testkit::{Result, Rialto};

use crate::browser::{Script, play};
use crate::fixture::{COMPLAINT, client, echo, gateway, settled};

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn assert_contains(value: &Value, words: &[&str]) {
    for word in words {
        assert!(text(value).contains(word), "`{word}` is missing in:\n{value:#}");
    }
}

#[tokio::test]
async fn every_screen_works_without_a_mouse() -> Result<()> {
    let rialto = gateway().await?;
    let options = json!({ "ready": "files", "failing": "search" });
    let seen = play("keyboard", rialto.address(), &options).await?;
    assert_eq!(seen["unseen"], json!([]), "the focus is seen everywhere");
    assert_eq!(seen["done"]["skip"], "main");
    assert_contains(&seen["done"]["why"], &["search"]);
    assert_contains(&seen["done"]["use"], &["/files/mcp"]);
    assert_contains(&seen["done"]["filtered"], &["Kind"]);
    assert_contains(&seen["done"]["more"], &["Less about"]);
    assert_eq!(seen["done"]["result"], "typed by hand");
    for (screen, hash) in [
        ("Sessions", "#/sessions"),
        ("Limits", "#/limits"),
        ("Set-up", "#/setup"),
    ] {
        assert_eq!(seen["done"][screen], hash);
    }
    Ok(())
}

async fn tries_tools(era: &str) -> Result<Value> {
    let rialto = gateway().await?;
    let options = json!({ "name": "files", "era": era });
    let seen = play("try_it", rialto.address(), &options).await?;
    assert_eq!(seen["echo"], "hello <b>there</b>");
    assert_eq!(seen["missing"], "This is required.");
    assert_contains(&seen["sum"], &["\"sum\": 4.5"]);
    assert_contains(&seen["progress"], &["3 of 3"]);
    assert_contains(&seen["question"], &["elicitation/create", "Decline"]);
    assert_contains(&seen["answered"], &["by hand"]);
    assert_contains(&seen["sampling"], &["sampling/createMessage", "two and two"]);
    assert_contains(&seen["sampled"], &["four, I think"]);
    assert_contains(&seen["cancelled"], &["cancelled"]);
    Ok(seen)
}

#[tokio::test]
async fn tool_is_tried_as_a_legacy_client() -> Result<()> {
    let seen = tries_tools("legacy").await?;
    let raw = &seen["raw"];
    assert_contains(
        raw,
        &[
            "initialize #1",
            "notifications/progress",
            "notifications/cancelled",
        ],
    );
    assert_contains(&seen["first"], &["\"protocolVersion\": \"2025-11-25\""]);
    Ok(())
}

#[tokio::test]
async fn tool_is_tried_as_a_modern_client() -> Result<()> {
    let seen = tries_tools("modern").await?;
    assert_contains(
        &seen["raw"],
        &["tools/list #1", "input required", "notifications/progress"],
    );
    assert!(!text(&seen["raw"]).contains("initialize"), "{seen}");
    assert_contains(
        &seen["first"],
        &["io.modelcontextprotocol/protocolVersion", "2026-07-28"],
    );
    Ok(())
}

#[tokio::test]
async fn calls_are_exported_as_har_and_as_json_lines() -> Result<()> {
    let rialto = gateway().await?;
    let mut script = Script::start("exported", rialto.address(), &json!({}))?;
    assert_eq!(script.next().await?, json!({ "open": true }));
    echo(&client(&rialto, "files", "Cursor").await?, 5).await?;
    let seen = script.end().await?;
    assert_eq!(seen["faults"], json!([]));
    let entries = seen["har"]["log"]["entries"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert_eq!(seen["har"]["log"]["version"], "1.2");
    assert_eq!(entries.len(), seen["jsonl"].as_array().map_or(0, Vec::len));
    assert!(!entries.is_empty(), "{seen}");
    for (entry, line) in entries.iter().zip(seen["jsonl"].as_array().into_iter().flatten()) {
        assert_eq!(entry["time"], line["latency_ms"]);
        assert_eq!(entry["request"]["url"], rialto.url_of("files"));
        assert_eq!(entry["response"]["status"], 200);
        assert_eq!(line["tool"], "echo");
        assert_eq!(line["outcome"], "ok");
        assert_eq!(entry["_call"], *line);
    }
    Ok(())
}

#[tokio::test]
async fn new_user_finds_the_failure_the_busiest_caller_the_slow_call_and_how_to_connect() -> Result<()> {
    let rialto = gateway().await?;
    let options = json!({ "ready": "files", "failing": "search", "slow": "later", "key": "context_servers" });
    let mut script = Script::start("new_user", rialto.address(), &options)?;
    assert_eq!(script.next().await?, json!({ "open": true }));
    echo(&client(&rialto, "files", "Busy Editor").await?, 20).await?;
    echo(&client(&rialto, "files", "Quiet Desktop").await?, 2).await?;
    // A call that waits for its server to start, by a client that needs no handshake.
    let late = json!({ "text": "late" });
    rialto.client_of("later").await?.call(1, "echo", late).await?;
    script.tell(&json!({ "called": true }))?;
    let seen = script.end().await?;
    assert_eq!(seen["faults"], json!([]));
    assert_contains(&seen["headline"], &["search"]);
    assert_contains(&seen["alarms"], &["search is failing", COMPLAINT]);
    assert_contains(&seen["why"], &[COMPLAINT]);
    assert_contains(&seen["most"], &["Busy Editor", "20 calls"]);
    assert_contains(&seen["slowest"], &["later", "waited for the server to start"]);
    assert_contains(&seen["slow"], &["waited for the server to start"]);
    assert_contains(&seen["cursor"], &["~/.cursor/mcp.json", &rialto.url_of("files")]);
    assert_contains(&seen["other"], &[&rialto.url_of("files")]);
    assert_contains(
        &seen["button"],
        &["cursor://anysphere.cursor-deeplink/mcp/install?name=files&config="],
    );
    Ok(())
}

#[tokio::test]
async fn process_is_restarted_and_session_ended_after_a_second_question() -> Result<()> {
    let rialto = gateway().await?;
    let kept = client(&rialto, "files", "Kept").await?;
    let ended = client(&rialto, "files", "Ended").await?;
    let mut script = Script::start(
        "act",
        rialto.address(),
        &json!({ "name": "files", "client": "Ended" }),
    )?;
    assert_eq!(script.next().await?, json!({ "restarted": true }));
    settled(&rialto).await?;
    script.tell(&json!({ "ready": true }))?;
    let seen = script.end().await?;
    assert_eq!(seen["faults"], json!([]));
    assert_eq!((&seen["before"], &seen["after"]), (&json!(2), &json!(1)));
    assert_eq!(
        kept.call(9, "echo", json!({ "text": "still" })).await?.status,
        200
    );
    assert_eq!(
        ended.call(9, "echo", json!({ "text": "gone" })).await?.status,
        404
    );
    Ok(())
}

#[tokio::test]
async fn three_words_tell_three_things_apart() -> Result<()> {
    let rialto = gateway().await?;
    let seen = play("absences", rialto.address(), &json!({})).await?;
    assert_contains(&seen["notes"], &["not started", "starts at first call"]);
    assert_contains(&seen["remote"], &["not asked yet"]);
    assert_contains(&seen["guarded"], &["withheld by policy"]);
    assert!(!text(&seen["files"]).contains("withheld"), "{seen}");
    Ok(())
}

#[tokio::test]
async fn findings_about_hosts_and_limits_that_were_reached_are_shown() -> Result<()> {
    let config =
        "limits: { session_requests_per_minute: 3 }\ndestinations:\n  files: { command: ['{stub}'] }\n";
    let launcher = Rialto::launcher().config(config);
    let home = launcher.dir().join("home");
    std::fs::create_dir_all(home.join(".cursor"))?;
    let server = r#"{ "command": "npx", "args": ["geheim"] }"#;
    std::fs::write(
        home.join(".cursor/mcp.json"),
        format!(r#"{{ "mcpServers": {{ "web": {server}, "web": {server} }} }}"#),
    )?;
    let rialto = launcher.env("HOME", &home.to_string_lossy()).start().await?;
    let client = client(&rialto, "files", "Eager").await?;
    let mut statuses = Vec::new();
    for number in 0..4 {
        let reply = client.call(number, "echo", json!({ "marker": "x" })).await?;
        statuses.push(reply.status);
    }
    assert!(statuses.contains(&429), "{statuses:?}");
    let seen = play("set_up", rialto.address(), &json!({})).await?;
    assert_contains(
        &seen["findings"],
        &["to fix", "Cursor has the key", "keep one of them"],
    );
    assert_contains(&seen["hosts"], &["~/.cursor/mcp.json", "npx"]);
    assert!(!seen.to_string().contains("geheim"), "{seen}");
    assert_contains(
        &seen["limits"],
        &["requests of one session in a minute", "the gateway", "time"],
    );
    assert!(!text(&seen["limits"]).contains("never"), "{seen}");
    Ok(())
}
