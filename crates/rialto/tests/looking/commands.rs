//! `ps`, `top`, `tap`, `tools` and `call`, from the command line.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};
use testkit::{McpClient, PATIENCE, Result, Rialto, wait_until};

use crate::fixture::{Home, call, destination, stderr, stdout};

const ONE: &str =
    "destinations:\n  files: { command: [\"{stub}\", --journal, \"{dir}/journal\"], start: lazy }\n";

#[tokio::test]
async fn commands_without_a_gateway_say_how_to_get_one() -> Result<()> {
    let home = Home::new("destinations: { files: { command: cat } }\n")?;
    for command in [&["ps"][..], &["top", "--count", "1"], &["tap", "files"]] {
        let output = home.run(command)?;
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        let said = stderr(&output);
        assert!(
            said.contains("rialto serve") && said.contains("rialto service install"),
            "{said}"
        );
    }
    let output = home.run(&["ps", "--json"])?;
    let read: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(read, json!({ "gateways": [], "silent": [] }));
    Ok(())
}

#[tokio::test]
async fn ps_shows_what_ready_shows_and_more() -> Result<()> {
    let home = Home::new(ONE)?;
    let host = home.attach("files", "one", &[])?;
    host.shake_hands(json!({})).await?;
    let pid = call(&host, 1, "pid", json!({})).await?;
    call(&host, 2, "echo", json!({ "marker": "e" })).await?;
    let files = home.destination("files")?;
    assert_eq!(files["state"], "ready", "{files}");
    assert_eq!(files["process"], "shared");
    assert_eq!(files["start"], "lazy");
    assert_eq!(files["era"], "legacy");
    assert_eq!(files["sessions"], 1);
    assert_eq!(files["calls"]["in_flight"], 0);
    assert_eq!(files["recent"]["calls"], 2);
    assert!(
        files["recent"]["p99_ms"].as_f64().is_some_and(|p99| p99 > 0.0),
        "{files}"
    );
    let instance = &files["instances"][0];
    assert_eq!(instance["pid"].to_string(), pid);
    assert!(
        instance["memory_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes > 100_000),
        "{instance}"
    );
    assert!(
        instance["age_ms"].is_u64() && instance["last_asked_ms"].is_u64(),
        "{instance}"
    );
    assert_eq!(instance["restarts"], 0);
    let session = &files["session_list"][0];
    assert_eq!(session["client"], json!({ "name": "testkit", "version": "1" }));
    assert_eq!(session["caller"], "anonymous");
    assert_eq!(session["server_pid"].to_string(), pid);
    let shown = stdout(&home.run(&["ps", "--sessions"])?);
    for part in [
        "NAME",
        "files",
        "ready",
        "legacy",
        &format!("pid {pid}"),
        "testkit 1",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!stdout(&home.run(&["ps"])?).contains("testkit 1"));
    Ok(())
}

#[tokio::test]
async fn server_that_fails_and_one_that_was_not_started_are_two_words() -> Result<()> {
    let file = "destinations:\n  idle: { command: [\"{stub}\"], start: lazy }\n  \
                broken: { command: [\"{stub}\", --exit-at-once, \"3\"] }\n";
    let rialto = Rialto::launcher().config(file).admin_socket().start().await?;
    let home = Looking(&rialto);
    let snapshot = wait_until("it has failed", PATIENCE, || {
        let snapshot = home.snapshot();
        let broken = destination(&snapshot, "broken");
        broken["error"].is_string().then_some(snapshot)
    })
    .await;
    let idle = destination(&snapshot, "idle");
    assert_eq!(idle["resting"], "not started (starts at first call)");
    assert!(
        idle["era"].is_null() && idle["tools"].is_null(),
        "not asked: {idle}"
    );
    assert!(idle["recent"]["p50_ms"].is_null(), "{idle}");
    let broken = destination(&snapshot, "broken");
    assert!(broken["resting"].is_null(), "{broken}");
    let ready: Value = serde_json::from_str(&ready(&rialto).await?)?;
    for name in ["idle", "broken"] {
        let seen = destination(&home.snapshot(), name);
        assert_eq!(seen["ready"], ready["destinations"][name]["ready"], "{name}");
    }
    Ok(())
}

async fn ready(rialto: &Rialto) -> Result<String> {
    let mut raw = rialto.raw().await?;
    let request = testkit::client::raw_http::request("GET", "/ready", &[], "");
    Ok(raw.exchange(request).await?.body_text())
}

/// Commands of the user that runs this gateway.
struct Looking<'a>(&'a Rialto);

impl Looking<'_> {
    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(testkit::rialto::binary("rialto"));
        command
            .args(arguments)
            .current_dir(self.0.dir())
            .env_clear()
            .env("HOME", self.0.dir())
            .env("XDG_RUNTIME_DIR", self.0.dir());
        command
    }

    fn snapshot(&self) -> Value {
        let output = self.command(&["ps", "--json"]).output().expect("it runs");
        let read: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        read["gateways"][0].clone()
    }
}

#[tokio::test]
async fn top_looks_again_and_ends_when_it_has_looked_often_enough() -> Result<()> {
    let home = Home::new(ONE)?;
    let host = home.attach("files", "one", &[])?;
    host.shake_hands(json!({})).await?;
    let output = home.run(&["top", "--count", "2", "--interval", "50ms"])?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let shown = stdout(&output);
    assert_eq!(shown.matches("gateway ").count(), 2, "{shown}");
    assert_eq!(
        shown.matches("CALLS/S").count(),
        1,
        "the second look knows a rate: {shown}"
    );
    assert!(!shown.contains('\u{1b}'), "no terminal: {shown:?}");
    let output = home.run(&["top", "--interval", "often"])?;
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--interval"));
    Ok(())
}

#[tokio::test]
async fn tools_and_call_work_by_name_and_by_url() -> Result<()> {
    let home = Home::new(ONE)?;
    let host = home.attach("files", "one", &[])?;
    host.shake_hands(json!({})).await?;
    let remote = Rialto::with_stub(&[]).await?;
    for server in ["files", &remote.url()] {
        let output = home.run(&["tools", server])?;
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stdout(&output).contains("echo"), "{}", stdout(&output));
        let output = home.run(&["tools", server, "--json"])?;
        let read: Value = serde_json::from_slice(&output.stdout)?;
        assert!(
            read["tools"].as_array().is_some_and(|tools| tools.len() > 10),
            "{read}"
        );
        let output = home.run(&["call", server, "echo", "marker=hello"])?;
        assert_eq!(
            (output.status.code(), stdout(&output).as_str()),
            (Some(0), "hello\n")
        );
    }
    Ok(())
}

#[tokio::test]
async fn address_that_is_out_of_reach_is_answered_with_the_reason() -> Result<()> {
    let home = Home::new(ONE)?;
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let url = format!("http://{address}/mcp");
    for line in [
        &["tools", &url, "--timeout", "20s"][..],
        &["call", &url, "x", "--timeout", "20s"],
    ] {
        let output = home.run(line)?;
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let said = stderr(&output);
        assert!(
            said.contains("Connection refused") && !said.contains("--timeout"),
            "{said}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn tool_is_called_where_the_hosts_of_this_directory_have_it() -> Result<()> {
    let home = Home::new(ONE)?;
    let host = home.attach("files", "one", &[])?;
    host.shake_hands(json!({})).await?;
    let pid = call(&host, 1, "pid", json!({})).await?;
    let call_in = |directory: &str| {
        let mut command = home.command(&["call", "files", "pid"]);
        command.current_dir(home.path(directory)).output()
    };
    assert_eq!(stdout(&call_in("one")?).trim_end(), pid);
    let elsewhere = stdout(&call_in("two")?);
    assert!(elsewhere.trim_end().parse::<u32>().is_ok(), "{elsewhere}");
    assert_ne!(elsewhere.trim_end(), pid);
    Ok(())
}

#[tokio::test]
async fn name_that_no_gateway_has_is_looked_up_in_the_configuration() -> Result<()> {
    let home = Home::new(ONE)?;
    let output = home.run(&["call", "files", "echo", "--json", "{\"marker\":\"alone\"}"])?;
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(0), "alone\n"),
        "{}",
        stderr(&output)
    );
    assert_eq!(home.gateways()?, Vec::<Value>::new(), "it ran the server itself");
    let starts = home.journal("journal").starts();
    assert_eq!(starts.len(), 1);
    wait_until("its server has ended", PATIENCE, || {
        testkit::processes::Process::read(starts[0])
            .is_none_or(|process| !process.is_alive())
            .then_some(())
    })
    .await;
    let output = home.run(&["tools", "other"])?;
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("it has files"), "{}", stderr(&output));
    Ok(())
}

#[tokio::test]
async fn exit_code_tells_a_wrong_argument_from_an_error_of_the_tool() -> Result<()> {
    let home = Home::new(ONE)?;
    for (arguments, code, words) in [
        (
            &["call", "files", "no_such_tool"][..],
            2,
            "there is no tool `no_such_tool`",
        ),
        (&["call", "files", "echo", "verbose"], 2, "write NAME=VALUE"),
        (&["call", "files", "echo", "--json", "[]"], 2, "write an object"),
        (&["call", "files", "exit", "code=3"], 1, "exit"),
        (
            &["call", "http://127.0.0.1:9/mcp", "echo", "--timeout", "2s"],
            1,
            "",
        ),
        (
            &["call", "files", "never", "--timeout", "300ms"],
            1,
            "no answer within",
        ),
    ] {
        let output = home.run(arguments)?;
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(words),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
    let output = home.run(&["call", "files", "mirror", "n:=[1,2]", "text=x", "--raw"])?;
    let read: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(
        read["structuredContent"],
        json!({ "n": [1, 2], "text": "x" }),
        "{read}"
    );
    Ok(())
}

#[tokio::test]
async fn tap_shows_messages_both_ways_without_their_secrets() -> Result<()> {
    let home = Home::new(ONE)?;
    let host = home.attach("files", "one", &[])?;
    host.shake_hands(json!({})).await?;
    let mut tap = home
        .command(&["tap", "files", "--count", "2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    wait_until("it reads", PATIENCE, || {
        let open = home.gateways().ok()?[0]["readers"]["open"].clone();
        (open == 1).then_some(())
    })
    .await;
    let arguments = json!({ "marker": "seen", "api_key": "geheim", "text": "\u{9b}2J\u{202e}" });
    call(&host, 1, "mirror", arguments).await?;
    let lines: Vec<String> = BufReader::new(tap.stdout.take().expect("a pipe"))
        .lines()
        .collect::<std::io::Result<_>>()?;
    let drives_a_terminal = |line: &String| line.contains(['\u{9b}', '\u{202e}']);
    assert!(!lines.iter().any(drives_a_terminal), "{lines:?}");
    let lines: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(tap.wait()?.code(), Some(0));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0]["direction"], "to_server");
    assert_eq!(lines[0]["message"]["method"], "tools/call");
    let arguments = &lines[0]["message"]["params"]["arguments"];
    assert_eq!(arguments["marker"], "seen");
    assert_eq!(arguments["text"], "\u{9b}2J\u{202e}", "it is the same JSON");
    assert_eq!(lines[1]["direction"], "from_server");
    assert_eq!(lines[0]["message"]["id"], lines[1]["message"]["id"]);
    assert!(lines[0]["pid"].is_u64(), "{lines:?}");
    assert!(!format!("{lines:?}").contains("geheim"), "{lines:?}");
    Ok(())
}

#[tokio::test]
async fn destination_of_two_gateways_has_to_be_chosen() -> Result<()> {
    let home = Home::new(ONE)?;
    let host = home.attach("files", "one", &[])?;
    host.shake_hands(json!({})).await?;
    let config = home.config();
    let mut second = home
        .command(&["serve", "--listen", "127.0.0.1:0", "--config"])
        .arg(&config)
        .stderr(Stdio::null())
        .spawn()?;
    let gateways = wait_until("both run", PATIENCE, || {
        let gateways = home.gateways().ok()?;
        (gateways.len() == 2).then_some(gateways)
    })
    .await;
    let output = home.run(&["tools", "files"])?;
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--gateway"), "{}", stderr(&output));
    let pid = gateways[1]["pid"].to_string();
    let output = home.run(&["tools", "files", "--gateway", &pid])?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let url = gateways
        .iter()
        .find_map(|gateway| gateway["url"].as_str())
        .expect("the second one listens")
        .to_owned();
    let client = McpClient::connect(&format!("{url}/files/mcp")).await?;
    client.handshake("2025-11-25", json!({})).await?;
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&second),
        rustix::process::Signal::TERM,
    )
    .expect("it runs");
    second.wait()?;
    assert_eq!(home.gateways()?.len(), 1);
    Ok(())
}
