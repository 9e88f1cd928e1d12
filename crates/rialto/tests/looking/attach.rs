//! What hosts share, and what they do not.

use serde_json::json;
use testkit::{PATIENCE, Result, Rialto, text_of, wait_until};

use crate::fixture::{Home, call, directory_of, servers};

/// Six servers, of which each host has every one.
const SIX: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn six() -> String {
    let entry = |name: &str| {
        format!("  {name}: {{ command: [\"{{stub}}\", --journal, \"{{dir}}/{name}\"], start: lazy }}\n")
    };
    let entries: String = SIX.into_iter().map(entry).collect();
    format!("destinations:\n{entries}")
}

const ONE: &str = "destinations:\n  files:\n    command: [\"{stub}\", --journal, \"{dir}/journal\"]\n    start: lazy\n    \
                   env: { KEY: \"of the file\", OTHER: o }\n";

#[tokio::test]
async fn five_sessions_with_six_servers_run_six_processes_and_none_before_they_are_used() -> Result<()> {
    let home = Home::new(&six())?;
    let mut hosts = Vec::new();
    for _ in 0..5 {
        for name in SIX {
            hosts.push((name, home.attach(name, "one", &[])?));
        }
    }
    let service = wait_until("all are attached", PATIENCE, || {
        let attached = hosts.iter().all(|(_, host)| {
            let said = host.stderr();
            said.iter()
                .any(|line| line.contains("attached to the local service"))
        });
        let gateways = home.gateways().ok().filter(|_| attached)?;
        assert_eq!(gateways.len(), 1, "one service for all: {gateways:?}");
        gateways.into_iter().next()
    })
    .await;
    assert_eq!(servers(&service), Vec::<u64>::new(), "no message, no process");
    for (at, (_, host)) in hosts.iter().enumerate() {
        host.shake_hands(json!({})).await?;
        call(host, 1, "echo", json!({ "marker": format!("m{at}") })).await?;
    }
    let gateways = home.gateways()?;
    let mut running = servers(&gateways[0]);
    running.sort_unstable();
    assert_eq!(running.len(), 6, "{running:?}");
    for name in SIX {
        let destination = home.destination(name)?;
        assert_eq!(destination["sessions"], 5, "{destination}");
        assert_eq!(home.journal(name).starts().len(), 1, "{name}");
    }
    // The figures for the documents: a test prints nothing unless it fails.
    let memory = gateways[0]["memory_bytes"].as_u64();
    let attached: u64 = hosts.iter().map(|(_, host)| host.memory().proportional).sum();
    assert!(
        memory.is_some_and(|bytes| bytes > 0) && attached > 0,
        "{memory:?} {attached}"
    );
    Ok(())
}

#[tokio::test]
async fn two_projects_share_nothing_and_two_hosts_of_a_project_do() -> Result<()> {
    let home = Home::new(ONE)?;
    let hosts = [
        home.attach("files", "one", &[])?,
        home.attach("files", "one", &[])?,
        home.attach("files", "two", &[])?,
    ];
    let mut pids = Vec::new();
    for host in &hosts {
        host.shake_hands(json!({})).await?;
        pids.push(call(host, 1, "pid", json!({})).await?);
    }
    assert_eq!(pids[0], pids[1], "one project");
    assert_ne!(pids[0], pids[2], "two projects");
    assert_eq!(directory_of(&pids[0]), home.path("one").canonicalize()?);
    assert_eq!(directory_of(&pids[2]), home.path("two").canonicalize()?);
    let destination = home.destination("files")?;
    let instances = destination["instances"].as_array().expect("a list");
    let mut directories: Vec<&str> = instances
        .iter()
        .filter_map(|instance| instance["directory"].as_str())
        .collect();
    directories.sort_unstable();
    let [one, two] = [home.path("one"), home.path("two")].map(|path| path.canonicalize());
    let expected = [one?, two?].map(|path| path.to_string_lossy().into_owned());
    assert_eq!(directories, expected);
    Ok(())
}

#[tokio::test]
async fn projects_share_a_server_that_is_shared_everywhere() -> Result<()> {
    let home = Home::new(&format!("{ONE}    shared: everywhere\n"))?;
    let hosts = [
        home.attach("files", "one", &[])?,
        home.attach("files", "two", &[])?,
        home.attach("files", "two", &[("KEY", "another")])?,
    ];
    let mut pids = Vec::new();
    for host in &hosts {
        host.shake_hands(json!({})).await?;
        pids.push(call(host, 1, "pid", json!({})).await?);
    }
    assert_eq!(pids[0], pids[1], "two projects");
    assert_ne!(pids[1], pids[2], "other variables");
    Ok(())
}

#[tokio::test]
async fn variables_of_an_entry_reach_its_server_alone() -> Result<()> {
    let home = Home::new(ONE)?;
    let plain = home.attach("files", "one", &[])?;
    let own = home.attach("files", "one", &[("KEY", "geheim"), ("SECRET", "unnamed")])?;
    let value = async |host, name| call(host, 1, "env", json!({ "name": name })).await;
    plain.shake_hands(json!({})).await?;
    own.shake_hands(json!({})).await?;
    assert_eq!(value(&plain, "KEY").await?, "of the file");
    assert_eq!(value(&own, "KEY").await?, "geheim");
    assert_eq!(value(&own, "OTHER").await?, "o");
    let unnamed = call(&own, 2, "env", json!({ "name": "SECRET" })).await?;
    assert!(
        !unnamed.contains("unnamed"),
        "the destination does not name it: {unnamed}"
    );
    let shown = home.gateways()?;
    assert!(!format!("{shown:?}").contains("geheim"), "{shown:?}");
    Ok(())
}

#[tokio::test]
async fn question_and_progress_reach_the_host_that_called() -> Result<()> {
    let home = Home::new(ONE)?;
    let (asked, other) = (
        home.attach("files", "one", &[])?,
        home.attach("files", "one", &[])?,
    );
    asked.shake_hands(json!({ "elicitation": {} })).await?;
    other.shake_hands(json!({ "elicitation": {} })).await?;
    asked.ask(
        1,
        "tools/call",
        json!({ "name": "ask_elicit", "arguments": { "marker": "q" } }),
    )?;
    let question = asked.receive_method("elicitation/create").await;
    asked.send(&json!({
        "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": { "x": "yes" } }
    }))?;
    let answer = asked.answer(1).await;
    assert!(text_of(&answer).contains("accept"), "{answer}");
    asked.ask(
        2,
        "tools/call",
        json!({
            "name": "progress", "arguments": { "n": 2, "marker": "p" }, "_meta": { "progressToken": "t" }
        }),
    )?;
    let progress = asked.receive_method("notifications/progress").await;
    assert_eq!(progress["params"]["progressToken"], "t");
    asked.answer(2).await;
    call(&other, 1, "echo", json!({ "marker": "e" })).await?;
    let lines = other.lines();
    assert!(
        lines.iter().all(|line| line.get("method").is_none()),
        "nothing of the other's: {lines:?}"
    );
    Ok(())
}

#[tokio::test]
async fn modern_client_is_attached_as_well() -> Result<()> {
    let home = Home::new(ONE)?;
    let host = home.attach("files", "one", &[])?;
    host.ask_modern(1, "server/discover", json!({}), &json!({}))?;
    let discovered = host.answer(1).await;
    assert!(
        discovered["result"]["supportedVersions"].is_array(),
        "{discovered}"
    );
    let params = json!({ "name": "pid", "arguments": {} });
    host.ask_modern(2, "tools/call", params, &json!({}))?;
    let answer = host.answer(2).await;
    assert_eq!(directory_of(text_of(&answer)), home.path("one").canonicalize()?);
    let files = home.destination("files")?;
    assert_eq!(files["instances"].as_array().map(Vec::len), Some(1), "{files}");
    Ok(())
}

#[tokio::test]
async fn host_needs_no_token_and_keeps_its_session_when_tokens_change() -> Result<()> {
    let auth = |digit: &str| {
        let hash = digit.repeat(64);
        format!("auth: {{ tokens: [{{ name: ci, hash: \"sha256:{hash}\" }}] }}\n{ONE}")
    };
    let home = Home::new(&auth("a"))?;
    let host = home.attach("files", "one", &[])?;
    host.shake_hands(json!({})).await?;
    call(&host, 1, "counter", json!({})).await?;
    let before = home.destination("files")?["session_list"][0].clone();
    assert_eq!(before["caller"], "rialto (admin socket)");
    home.configure(&auth("b"))?;
    let log = home.path("state/rialto/service.log");
    wait_until("the service has reloaded", PATIENCE, || {
        let text = std::fs::read_to_string(&log).ok()?;
        text.contains("reloaded").then_some(())
    })
    .await;
    assert_eq!(call(&host, 2, "counter", json!({})).await?, "2");
    let after = home.destination("files")?["session_list"][0].clone();
    assert_eq!(after["session"], before["session"]);
    Ok(())
}

#[tokio::test]
async fn caller_over_http_does_not_choose_where_a_server_runs() -> Result<()> {
    let file = "destinations:\n  files: { command: [\"{stub}\"], start: lazy, env: { KEY: of the file } }\n";
    let rialto = Rialto::launcher().config(file).start().await?;
    // {"directory":"/tmp","env":{"KEY":"evil"}}
    let handed_over = "eyJkaXJlY3RvcnkiOiIvdG1wIiwiZW52Ijp7IktFWSI6ImV2aWwifX0";
    let client = rialto
        .client_of("files")
        .await?
        .with_header("rialto-attached", handed_over);
    client.handshake("2025-11-25", json!({})).await?;
    let value = client.call(1, "env", json!({ "name": "KEY" })).await?;
    assert_eq!(value.text(), "of the file");
    let pid = client.call(2, "pid", json!({})).await?.text();
    assert_ne!(directory_of(&pid), std::path::Path::new("/tmp"));
    Ok(())
}
