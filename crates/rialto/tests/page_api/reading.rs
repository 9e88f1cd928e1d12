//! What the page shows.

use serde_json::json;
use testkit::{PATIENCE, Result, Rialto, poll_until};

use crate::fixture::{STUB, act, get, json, send, state};

#[tokio::test]
async fn state_is_the_snapshot_and_equals_the_metrics() -> Result<()> {
    let rialto = Rialto::with_config(STUB).await?;
    let client = rialto.session_of("files").await?;
    for number in 0..7 {
        client.expect_echo(&format!("call {number}")).await?;
    }
    let metrics = client.metrics().await?;
    let state = state(&rialto).await?;
    let files = &state["destinations"][0];
    let ended: u64 = metrics
        .lines()
        .filter(|line| line.starts_with("rialto_calls_total{") && line.contains("destination=\"files\""))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum();
    assert_eq!(files["calls"]["ended"], ended, "{metrics}");
    let sessions = metrics.lines().find(|line| line.starts_with("rialto_sessions{"));
    assert!(
        sessions.is_some_and(|line| line.ends_with(" 1.0")),
        "{sessions:?}"
    );
    assert_eq!(files["sessions"], 1);
    assert_eq!(files["session_list"][0]["client"]["name"], "testkit");
    assert_eq!(state["pid"], rialto.pid());
    assert_eq!(state["page"]["signed_in"], serde_json::Value::Null);
    assert_eq!(state["ui"], format!("http://{}/ui/", rialto.address()));
    Ok(())
}

#[tokio::test]
async fn what_was_not_asked_not_started_and_withheld_are_three_words() -> Result<()> {
    let config = "destinations:\n  lazy: { command: ['{stub}'], start: lazy, tools: { allow: ['echo*'], deny: [fail] } }\n";
    let rialto = Rialto::with_config(config).await?;
    let before = state(&rialto).await?["destinations"][0].clone();
    assert_eq!(before["tools_known"], "not asked yet");
    assert_eq!(before["tools"], serde_json::Value::Null);
    assert_eq!(before["resting"], "not started (starts at first call)");
    assert_eq!(before["policy"], json!({ "allow": ["echo*"], "deny": ["fail"] }));
    let unread = json(&get(&rialto, "/ui/api/destination/lazy").await?);
    assert_eq!(unread["read"], serde_json::Value::Null);
    assert!(rialto.children().is_empty(), "to look starts nothing");
    let read = json(&act(&rialto, "/ui/api/destination/lazy/read", "{}").await?);
    let names: Vec<&str> = read["read"]["tools"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    assert_eq!(names, ["echo"], "{read}");
    assert!(read["read"]["tools"][0]["inputSchema"].is_object(), "{read}");
    assert_eq!(read["read"]["era"], "legacy");
    assert!(read["read"]["age_ms"].is_u64(), "{read}");
    let after = state(&rialto).await?["destinations"][0].clone();
    assert_eq!(after["tools_known"], "listed");
    assert_eq!(after["resting"], serde_json::Value::Null);
    assert_eq!(after["sessions"], 0, "the reader has left");
    Ok(())
}

/// Texts of servers and clients come as JSON, and escaped where they stand in HTML.
#[tokio::test]
async fn hostile_texts_come_as_json_and_make_no_tags() -> Result<()> {
    let config = "destinations:\n  \
        bad: { command: [sh, -c, 'echo \"<script>alert(1)</script> api_key=geheim\" >&2; exit 3'], start: lazy }\n  \
        files: { command: ['{stub}'] }\n";
    let rialto = Rialto::with_config(config).await?;
    let client = rialto.client_of("files").await?;
    let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "</td><img src=x onerror=alert(1)>", "version": "\u{202e}1"}});
    client.request(1, "initialize", &hello).await?;
    let failing = rialto.client_of("bad").await?;
    failing.initialize("2025-06-18", json!({})).await?;
    let seen = poll_until("stderr is here", PATIENCE, async || {
        let detail = json(&get(&rialto, "/ui/api/destination/bad").await?);
        let is_here = detail["stderr"][0]["lines"][0].is_string() && detail["why"][0].is_object();
        Ok::<_, testkit::Failure>(is_here.then_some(detail))
    })
    .await?;
    let line = seen["stderr"][0]["lines"][0].as_str().expect("a line");
    assert_eq!(line, "<script>alert(1)</script> api_key=[redacted]");
    assert_eq!(seen["why"][0]["reason"], "upstream_unavailable", "{seen}");
    assert!(seen["why"][0]["means"][0]["text"].is_string(), "{seen}");
    let response = get(&rialto, "/ui/api/state").await?;
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
    let shell = get(&rialto, "/ui/").await?.body_text();
    assert!(!shell.contains("alert(1)"), "{shell}");
    Ok(())
}

#[tokio::test]
async fn question_that_waits_is_shown_with_its_age_and_its_session() -> Result<()> {
    let rialto = Rialto::with_config(STUB).await?;
    let client = rialto.client_of("files").await?;
    client
        .handshake("2025-06-18", json!({ "elicitation": {} }))
        .await?;
    let call = client
        .open_call(7, "ask_elicit", json!({ "marker": "asked" }), 1)
        .await?;
    let question = poll_until("a question waits", PATIENCE, async || {
        let state = state(&rialto).await?;
        let question = state["destinations"][0]["question_list"][0].clone();
        Ok::<_, testkit::Failure>(question.is_object().then_some(question))
    })
    .await?;
    assert_eq!(question["method"], "elicitation/create");
    assert!(question["age_ms"].is_u64(), "{question}");
    let sessions = state(&rialto).await?["destinations"][0]["session_list"].clone();
    assert_eq!(question["session"], sessions[0]["session"]);
    drop(call);
    Ok(())
}

#[tokio::test]
async fn unknown_names_and_wrong_methods_have_their_own_statuses() -> Result<()> {
    let rialto = Rialto::with_config(STUB).await?;
    let missing = get(&rialto, "/ui/api/destination/none").await?;
    assert_eq!(
        (missing.status, json(&missing)["reason"].clone()),
        (404, json!("unknown_name"))
    );
    let wrong = send(&rialto, "DELETE", "/ui/api/state", &[], "").await?;
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("GET, HEAD")));
    let own = [("Sec-Fetch-Site", "same-origin"), ("X-Rialto-Page", "1")];
    let wrong = send(&rialto, "GET", "/ui/api/destination/files/restart", &own, "").await?;
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
    Ok(())
}

#[tokio::test]
async fn set_up_shows_the_hosts_of_this_machine_to_a_local_browser_alone() -> Result<()> {
    let launcher = Rialto::launcher().config(STUB);
    let home = launcher.dir().join("home");
    std::fs::create_dir_all(home.join(".cursor")).expect("made");
    let text = r#"{ "mcpServers": { "web": { "command": "npx", "args": ["geheim"] },
        "web": { "command": "npx", "args": ["geheim"] } } }"#;
    std::fs::write(home.join(".cursor/mcp.json"), text).expect("written");
    let rialto = launcher.env("HOME", &home.to_string_lossy()).start().await?;
    let shown = json(&get(&rialto, "/ui/api/setup").await?);
    assert_eq!(shown["available"], true, "{shown}");
    assert_eq!(shown["hosts"][0]["servers"][0]["points_at"], "npx", "{shown}");
    assert!(!shown.to_string().contains("geheim"), "{shown}");
    // What `rialto doctor` finds in the files of hosts, with its cure.
    let finding = &shown["findings"][0];
    assert_eq!(
        (&finding["id"], &finding["subject"]),
        (&json!("key_twice"), &json!("Cursor"))
    );
    assert_eq!(finding["cure"]["kind"], "do", "{shown}");
    let house = crate::fixture::House::start().await?;
    let cookie = house.cookie().await?;
    let shown = send(&house.rialto, "GET", "/ui/api/setup", &[("Cookie", &cookie)], "").await?;
    let shown = json(&shown);
    assert_eq!(shown["available"], false, "{shown}");
    assert_eq!(shown["hosts"], serde_json::Value::Null);
    assert!(
        shown["snippets"].as_array().is_some_and(|list| list.len() > 20),
        "{shown}"
    );
    Ok(())
}

#[tokio::test]
async fn reserved_word_is_no_name_of_a_destination() -> Result<()> {
    let launcher = Rialto::launcher().config("destinations:\n  ui: { command: ['{stub}'] }\n");
    let ended = launcher.run(PATIENCE).await?;
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr_text().contains("`ui`"), "{}", ended.stderr_text());
    Ok(())
}
