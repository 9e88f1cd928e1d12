//! The binary as its user meets it: exit codes, `check`, errors in the configuration, the demo, the
//! audit log, health.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{LEGACY, McpClient, Result, Rialto, marked, wait_until};

const PATIENCE: Duration = Duration::from_secs(30);
const GOOD: &str = "destinations:\n  good: { command: '{stub}' }\n";

async fn session(rialto: &Rialto) -> Result<McpClient> {
    let client = rialto.client().await?;
    client.handshake(LEGACY, json!({})).await?;
    Ok(client)
}

// Exit codes.

#[tokio::test]
async fn bad_usage_ends_with_code_2_and_a_hint() -> Result<()> {
    for verb in [
        &["serve", "--no-such-flag"][..],
        &["nonsense"],
        &["serve", "--request-timeout", "soon", "--demo"],
    ] {
        let ended = Rialto::launcher().verb(verb).run(PATIENCE).await?;
        assert_eq!(ended.code(), Some(2), "{verb:?}: {}", ended.stderr_text());
        assert!(
            !ended.stderr_text().is_empty() && ended.stdout.is_empty(),
            "{verb:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn cluster_key_is_printed_alone_and_is_another_each_time() -> Result<()> {
    let first = Rialto::launcher().verb(&["cluster", "key"]).run(PATIENCE).await?;
    let second = Rialto::launcher().verb(&["cluster", "key"]).run(PATIENCE).await?;
    assert_eq!((first.code(), second.code()), (Some(0), Some(0)));
    assert_eq!(first.stderr_text(), "");
    let keys = [first, second].map(|ended| cluster::ClusterKey::parse(&ended.stdout.join("\n")));
    let [Ok(first), Ok(second)] = keys else {
        panic!("a key is printed: {keys:?}");
    };
    assert_ne!(first.sealing_key(), second.sealing_key());
    Ok(())
}

#[tokio::test]
async fn nothing_to_serve_ends_with_code_2_and_shows_how_to_begin() -> Result<()> {
    let ended = Rialto::launcher().run(PATIENCE).await?;
    assert_eq!(ended.code(), Some(2));
    assert!(
        ended.stderr_text().contains("rialto serve --demo"),
        "{}",
        ended.stderr_text()
    );
    Ok(())
}

#[tokio::test]
async fn an_address_in_use_ends_with_code_3_naming_it() -> Result<()> {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let launcher = Rialto::launcher()
        .verb(&["serve", "--listen", &address])
        .args(&["--", "{stub}"]);
    let ended = launcher.run(PATIENCE).await?;
    assert_eq!(ended.code(), Some(3), "{}", ended.stderr_text());
    assert!(ended.stderr_text().contains(&address), "{}", ended.stderr_text());
    Ok(())
}

#[tokio::test]
async fn no_destination_that_can_start_ends_with_code_4() -> Result<()> {
    let ended = Rialto::launcher()
        .args(&["--", "no-such-program-anywhere"])
        .run(PATIENCE)
        .await?;
    assert_eq!(ended.code(), Some(4), "{}", ended.stderr_text());
    Ok(())
}

#[tokio::test]
async fn sigterm_and_sigint_end_with_code_0() -> Result<()> {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let rialto = Rialto::with_stub(&[]).await?;
        rialto.signal(signal);
        assert_eq!(rialto.wait(PATIENCE).await.code(), Some(0), "{signal:?}");
    }
    Ok(())
}

#[tokio::test]
async fn help_and_version_go_to_stdout_with_code_0() -> Result<()> {
    for (verb, word) in [("--help", "serve"), ("--version", "rialto")] {
        let ended = Rialto::launcher().verb(&[verb]).run(PATIENCE).await?;
        assert_eq!(ended.code(), Some(0), "{verb}");
        assert!(
            ended.stdout.join("\n").contains(word),
            "{verb}: {:?}",
            ended.stdout
        );
    }
    Ok(())
}

// Configuration.

#[tokio::test]
async fn errors_in_the_configuration_name_file_destination_field_and_fix() -> Result<()> {
    let cases = [
        ("destinations:\n  d: { comand: x }\n", &["comand", "command"][..]),
        (
            "destinations:\n  d: { command: x, env: { KEY: '${NOT_SET_ANYWHERE}' } }\n",
            &["env", "NOT_SET_ANYWHERE"],
        ),
        (
            "destinations:\n  d: { command: x, start_timeout: 5 }\n",
            &["start_timeout"],
        ),
        (
            "destinations:\n  d: { command: x, process: alone }\n",
            &["process", "per_session"],
        ),
        (
            "destinations:\n  d: { command: x, env_from_headers: { A: X-A } }\n",
            &["env_from_headers", "per_identity"],
        ),
        (
            "destinations:\n  d: { command: x, process: per_session, env_from_headers: { LD_PRELOAD: X-A } }\n",
            &["env_from_headers", "LD_PRELOAD"],
        ),
        (
            "destinations:\n  d: { command: x, env: { A: '${secret:gone}' } }\n",
            &["env", "gone"],
        ),
    ];
    for (yaml, words) in cases {
        let ended = Rialto::launcher().config(yaml).run(PATIENCE).await?;
        let said = ended.stderr_text();
        assert_eq!(ended.code(), Some(2), "{yaml}: {said}");
        for word in ["destinations.yml", "`d`"].iter().chain(words) {
            assert!(said.contains(word), "no {word} for {yaml}: {said}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_file_that_cannot_be_read_or_parsed_ends_with_code_2_naming_it() -> Result<()> {
    let ended = Rialto::launcher()
        .args(&["--config", "{dir}/nowhere.yml"])
        .run(PATIENCE)
        .await?;
    assert_eq!(ended.code(), Some(2));
    assert!(
        ended.stderr_text().contains("nowhere.yml"),
        "{}",
        ended.stderr_text()
    );
    let ended = Rialto::launcher()
        .config("destinations: [\n")
        .run(PATIENCE)
        .await?;
    assert_eq!(ended.code(), Some(2));
    assert!(
        ended.stderr_text().contains("destinations.yml"),
        "{}",
        ended.stderr_text()
    );
    Ok(())
}

#[tokio::test]
async fn destinations_yml_in_the_working_directory_is_found() -> Result<()> {
    let launcher = Rialto::launcher();
    let yaml = format!(
        "destinations:\n  found: {{ command: '{}' }}\n",
        testkit::rialto::binary("testkit-server").display()
    );
    std::fs::write(launcher.dir().join("destinations.yml"), yaml)?;
    let rialto = launcher.start().await?;
    let reply = rialto
        .client_of("found")
        .await?
        .call(1, "echo", marked("here"))
        .await?;
    assert_eq!(reply.text(), "here");
    Ok(())
}

#[tokio::test]
async fn the_file_of_a_desktop_host_is_read_with_the_same_flag() -> Result<()> {
    let json = r#"{"mcpServers": {"Desk Top": {"command": "{stub}", "args": [], "env": {"A": "b"}}}}"#;
    let rialto = Rialto::launcher().config(json).start().await?;
    let client = rialto.client_of("desk-top").await?;
    assert_eq!(
        client
            .call(1, "env", json!({"name": "A"}))
            .await?
            .expect_status(200)?
            .text(),
        "b"
    );
    Ok(())
}

#[tokio::test]
async fn a_flag_beats_a_variable_and_a_variable_beats_the_file() -> Result<()> {
    let yaml = format!("max_message_bytes: 32KiB\n{GOOD}");
    let refused = async |rialto: Rialto, bytes: usize| {
        let client = rialto.client_of("good").await?;
        Result::Ok(client.call(1, "echo", marked(&"m".repeat(bytes))).await?.status == 413)
    };
    let file = Rialto::launcher().config(&yaml).start().await?;
    assert!(refused(file, 40 << 10).await?);
    let variable = Rialto::launcher()
        .config(&yaml)
        .env("RIALTO_MAX_MESSAGE_BYTES", "64KiB")
        .start()
        .await?;
    assert!(!refused(variable, 40 << 10).await?);
    let launcher = Rialto::launcher()
        .config(&yaml)
        .env("RIALTO_MAX_MESSAGE_BYTES", "64KiB");
    let flag = launcher.args(&["--max-message-bytes", "16KiB"]).start().await?;
    assert!(refused(flag, 20 << 10).await?);
    Ok(())
}

// Start.

#[tokio::test]
async fn serve_prints_each_destination_on_stderr_and_nothing_on_stdout() -> Result<()> {
    let rialto = Rialto::with_config(GOOD).await?;
    let url = rialto.url_of("good");
    wait_until("the URL is said", PATIENCE, || {
        rialto.stderr().join("\n").contains(&url).then_some(())
    })
    .await;
    rialto
        .client_of("good")
        .await?
        .call(1, "echo", marked("m"))
        .await?
        .expect_status(200)?;
    assert!(rialto.stdout().is_empty(), "{:?}", rialto.stdout());
    Ok(())
}

#[tokio::test]
async fn a_command_without_a_verb_is_served() -> Result<()> {
    let launcher = Rialto::launcher().verb(&["--listen", "127.0.0.1:0", "--log-format", "json"]);
    let rialto = launcher.args(&["--", "{stub}"]).start().await?;
    assert_eq!(
        rialto.client().await?.call(1, "echo", marked("m")).await?.text(),
        "m"
    );
    Ok(())
}

#[tokio::test]
async fn the_demo_answers_a_tool_call_at_mcp_and_at_demo_mcp() -> Result<()> {
    let rialto = Rialto::serve(&["--demo"]).await?;
    for client in [rialto.client().await?, rialto.client_of("demo").await?] {
        client.handshake(LEGACY, json!({})).await?;
        let reply = client.call(1, "add", json!({"a": 2, "b": 40})).await?;
        assert_eq!(
            reply.expect_status(200)?.answer()["result"]["structuredContent"]["sum"],
            42
        );
        let implicit = McpClient::connect(&rialto.url()).await?;
        assert_eq!(
            implicit.call(2, "echo", json!({"text": "hello"})).await?.text(),
            "hello"
        );
    }
    Ok(())
}

// Check.

#[tokio::test]
async fn check_prints_a_table_and_ends_with_code_0_when_all_is_well() -> Result<()> {
    let yaml = "destinations:\n  one: { command: '{stub} --strict' }\n  two: { command: '{stub} --version 2025-03-26', process: per_session }\n";
    let ended = Rialto::launcher()
        .verb(&["check"])
        .config(yaml)
        .run(PATIENCE)
        .await?;
    let table = ended.stdout.join("\n");
    assert_eq!(ended.code(), Some(0), "{table}\n{}", ended.stderr_text());
    let row = |name: &str| {
        ended
            .stdout
            .iter()
            .find(|line| line.contains(name))
            .cloned()
            .unwrap_or_default()
    };
    for (name, version) in [("one", "2025-11-25"), ("two", "2025-03-26")] {
        let row = row(name);
        for word in [name, "stdio", "legacy", version] {
            assert!(row.contains(word), "no {word} in {row:?} of\n{table}");
        }
    }
    let header = table.to_lowercase();
    for column in ["transport", "era", "version", "tools", "time"] {
        assert!(header.contains(column), "no column {column} in\n{table}");
    }
    Ok(())
}

#[tokio::test]
async fn check_names_destinations_whose_server_does_not_run_all_the_time() -> Result<()> {
    let yaml = "destinations:
  lazy: { command: '{stub}', start: lazy }
  idle: { command: '{stub}', start: lazy, idle_stop: 10m }
  plain: { command: '{stub}' }
  own: { command: '{stub}', process: per_session }
";
    let ended = Rialto::launcher()
        .verb(&["check"])
        .config(yaml)
        .run(PATIENCE)
        .await?;
    let said = ended.stderr_text();
    assert_eq!(ended.code(), Some(0), "{said}");
    for words in [
        "`lazy` starts at its first call;",
        "`idle` starts at its first call and stops after 10m without a call;",
    ] {
        assert!(said.contains(words), "no {words} in\n{said}");
    }
    assert!(!said.contains("`plain`") && !said.contains("`own`"), "{said}");
    Ok(())
}

#[tokio::test]
async fn check_reports_what_to_fix_and_fails_when_a_destination_fails() -> Result<()> {
    let yaml = "destinations:
  good: { command: '{stub}' }
  lost: { command: no-such-program-anywhere }
  dead: { command: '{stub} --exit-at-once 3' }
  slow: { command: '{stub} --slow-start 60000', start_timeout: 300ms }
";
    let ended = Rialto::launcher()
        .verb(&["check"])
        .config(yaml)
        .run(PATIENCE)
        .await?;
    let said = format!("{}\n{}", ended.stdout.join("\n"), ended.stderr_text());
    assert!(!ended.status.success(), "{said}");
    for word in [
        "good",
        "lost",
        "no-such-program-anywhere",
        "dead",
        "slow",
        "start_timeout",
    ] {
        assert!(said.contains(word), "no {word} in\n{said}");
    }
    Ok(())
}

#[tokio::test]
async fn check_of_a_command_that_cannot_be_run_names_it_and_ends_with_code_4() -> Result<()> {
    let ended = Rialto::launcher()
        .verb(&["check", "--", "no-such-program-anywhere"])
        .env("RIALTO_NAME", "lost")
        .run(PATIENCE)
        .await?;
    let said = format!("{}\n{}", ended.stdout.join("\n"), ended.stderr_text());
    assert_eq!(ended.code(), Some(4), "{said}");
    let row = ended.stdout.iter().find(|line| line.starts_with("lost "));
    assert!(row.is_some_and(|row| row.contains("FAILED")), "{said}");
    for word in ["lost: ", "no-such-program-anywhere", "not found in PATH"] {
        assert!(said.contains(word), "no {word} in\n{said}");
    }
    Ok(())
}

#[tokio::test]
async fn check_ends_with_code_2_on_a_bad_file() -> Result<()> {
    let ended = Rialto::launcher()
        .verb(&["check"])
        .config("destinations: { d: { comand: x } }\n")
        .run(PATIENCE)
        .await?;
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr_text());
    Ok(())
}

#[tokio::test]
async fn an_audit_log_that_cannot_be_opened_is_named_with_the_cause_once() -> Result<()> {
    let launcher = Rialto::launcher().args(&["--audit", "{dir}/missing/audit.jsonl"]);
    let ended = launcher.stub(&[]).run(PATIENCE).await?;
    let said = ended.stderr_text();
    assert_eq!(ended.code(), Some(2), "{said}");
    assert!(said.contains("missing/audit.jsonl"), "{said}");
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
    Ok(())
}

// Log.

#[tokio::test]
async fn the_log_has_every_call_and_refusal_at_the_level_debug() -> Result<()> {
    let launcher = Rialto::launcher().env("RUST_LOG", "debug").args(&["--name", "d"]);
    let rialto = launcher.stub(&[]).start().await?;
    let client = session(&rialto).await?;
    client.call(1, "echo", marked("m")).await?.expect_status(200)?;
    let is_line = |line: &Value, outcome: &str| line["message"] == "call ended" && line["outcome"] == outcome;
    let line = rialto
        .wait_for_log("the call", PATIENCE, |line| {
            is_line(line, "ok") && line["tool"] == "echo"
        })
        .await;
    assert_eq!(
        (&line["destination"], &line["method"]),
        (&json!("d"), &json!("tools/call"))
    );
    assert!(line["latency_ms"].is_u64() && line["status"] == 200, "{line}");
    assert!(line["session"].is_string(), "{line}");
    client.call(2, "exit", "{}").await?.expect_failed(503)?;
    let line = rialto.wait_for_log("the failure", PATIENCE, |line| is_line(line, "crashed"));
    assert_eq!(line.await["reason"], "upstream_exited");
    client.set_session(Some("nonsense"));
    client.call(1, "echo", marked("m")).await?.expect_status(400)?;
    let line = rialto.wait_for_log("the refusal", PATIENCE, |line| is_line(line, "refused"));
    assert_eq!(line.await["reason"], "malformed_session");
    client.send("GET", "/nowhere", &[], "").await?.reply().await?;
    rialto
        .wait_for_log("a refusal that is for no destination", PATIENCE, |line| {
            line["message"] == "request refused" && line["reason"] == "unknown_path"
        })
        .await;
    Ok(())
}

/// Runs `check` on the demo server, with these flags and this in front of its destinations.
async fn check_with(flags: &[&str], head: &str) -> Result<(Option<i32>, String)> {
    let ended = Rialto::launcher()
        .verb(&["check"])
        .args(flags)
        .config(&format!("{head}destinations:\n  d: {{ command: '{{stub}}' }}\n"))
        // Set to nothing, so that the file counts.
        .env("RIALTO_LISTEN", "")
        .run(PATIENCE)
        .await?;
    Ok((ended.code(), ended.stderr_text()))
}

#[tokio::test]
async fn check_refuses_an_open_address_without_auth_as_serve_does() -> Result<()> {
    let open = "listen: 0.0.0.0:0\n";
    let (code, said) = check_with(&[], open).await?;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--allow-unauthenticated"), "{said}");
    let (code, said) = check_with(&["--allow-unauthenticated"], open).await?;
    assert_eq!(code, Some(0), "{said}");
    // Requests from other machines name a host that is not allowed yet.
    assert!(said.contains("--allow-host"), "{said}");
    Ok(())
}

#[tokio::test]
async fn check_refuses_a_port_that_another_program_has() -> Result<()> {
    let other = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = other.local_addr()?;
    // It takes the connection of the check and answers with something else.
    let answering = std::thread::spawn(move || {
        if let Ok((mut connection, _)) = other.accept() {
            use std::io::Write as _;
            let _ = connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
        }
    });
    let (code, said) = check_with(&[], &format!("listen: {address}\n")).await?;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("cannot listen on"), "{said}");
    answering.join().expect("it answers once");
    Ok(())
}

#[tokio::test]
async fn check_notes_a_gateway_that_has_the_port_already() -> Result<()> {
    let running = Rialto::with_stub(&[]).await?;
    let (code, said) = check_with(&["--listen", running.address()], "").await?;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("a gateway runs at"), "{said}");
    Ok(())
}

#[tokio::test]
async fn check_notes_an_issuer_that_cannot_be_found() -> Result<()> {
    // No label of a name is that long, so that nothing outside is asked for it.
    let issuer = format!("https://{}.example", "a".repeat(70));
    let head = format!("listen: 127.0.0.1:0\nauth: {{ jwt: {{ issuer: '{issuer}' }} }}\n");
    let (code, said) = check_with(&[], &head).await?;
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("cannot be found") && said.contains(&issuer),
        "{said}"
    );
    Ok(())
}

// Audit.

const FIELDS: [&str; 14] = [
    "ts",
    "destination",
    "session",
    "principal",
    "http_method",
    "mcp_method",
    "tool",
    "rpc_id",
    "status_code",
    "outcome",
    "reason",
    "latency_ms",
    "request_bytes",
    "response_bytes",
];

fn audited() -> testkit::rialto::Launcher {
    Rialto::launcher().args(&["--audit", "{dir}/audit.jsonl", "--name", "d"])
}

/// The audit records, once there are that many of them.
async fn records(rialto: &Rialto, count: usize) -> Vec<Value> {
    let file = rialto.dir().join("audit.jsonl");
    wait_until(&format!("{count} audit records"), PATIENCE, || {
        let text = std::fs::read_to_string(&file).ok()?;
        let whole = &text[..text.rfind('\n')? + 1];
        let records: Vec<Value> = whole
            .lines()
            .map(|line| serde_json::from_str(line).expect("each line is JSON"))
            .collect();
        (records.len() >= count).then_some(records)
    })
    .await
}

#[tokio::test]
async fn every_call_has_one_audit_record_with_all_fields() -> Result<()> {
    let rialto = audited()
        .args(&["--max-message-bytes", "1MiB"])
        .stub(&[])
        .start()
        .await?;
    let client = session(&rialto).await?;
    client
        .call(r#""id-1""#, "echo", marked("m"))
        .await?
        .expect_status(200)?;
    client
        .call(2, "fail", json!({"code": -1}))
        .await?
        .expect_status(200)?;
    client
        .call(3, "big", json!({"bytes": 2 << 20}))
        .await?
        .expect_failed(502)?;
    client.request(4, "tools/list", "{}").await?.expect_status(200)?;
    let stream = client.get_stream(None).await?;
    drop(stream);
    // The end of the stream is noticed before the session ends, so that it has a record of its own.
    records(&rialto, 7).await;
    client.delete().await?.expect_status(204)?;
    let refused = client.call(5, "echo", marked("late")).await?;
    refused.expect_status(404)?;

    let records = records(&rialto, 9).await;
    let summary: Vec<_> = records
        .iter()
        .map(|record| {
            let text = |key: &str| record[key].as_str().unwrap_or("-");
            let status = record["status_code"].as_u64().unwrap_or(0);
            (
                text("http_method"),
                text("mcp_method"),
                text("tool"),
                record["rpc_id"].clone(),
                status,
                text("outcome"),
            )
        })
        .collect();
    assert_eq!(
        summary,
        [
            ("POST", "initialize", "-", json!(0), 200, "ok"),
            ("POST", "notifications/initialized", "-", json!(null), 202, "ok"),
            ("POST", "tools/call", "echo", json!("id-1"), 200, "ok"),
            ("POST", "tools/call", "fail", json!(2), 200, "error"),
            ("POST", "tools/call", "big", json!(3), 200, "too_large"),
            ("POST", "tools/list", "-", json!(4), 200, "ok"),
            ("GET", "-", "-", json!(null), 200, "closed"),
            ("DELETE", "-", "-", json!(null), 204, "closed"),
            ("POST", "tools/call", "echo", json!(5), 404, "refused"),
        ]
    );
    for record in &records {
        let keys: Vec<&str> = record
            .as_object()
            .expect("an object")
            .keys()
            .map(String::as_str)
            .collect();
        let mut expected = FIELDS;
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(
            (&record["destination"], &record["principal"]),
            (&json!("d"), &json!("anonymous"))
        );
        assert!(
            record["latency_ms"].is_number() && record["request_bytes"].is_u64(),
            "{record}"
        );
    }
    assert_eq!(records[8]["response_bytes"], refused.body_text().len());
    let hashes: Vec<&Value> = records[..8].iter().map(|record| &record["session"]).collect();
    assert!(
        hashes.iter().all(|hash| hash.is_string() && *hash == hashes[0]),
        "{hashes:?}"
    );
    let id = client.session().expect("a session");
    assert!(!format!("{records:?}").contains(&id), "a session id is a secret");
    Ok(())
}

#[tokio::test]
async fn calls_that_are_refused_crash_or_time_out_are_audited_as_such() -> Result<()> {
    let rialto = audited()
        .args(&[
            "--request-timeout",
            "300ms",
            "--stream-timeout",
            "300ms",
            "--max-sessions",
            "1",
        ])
        .stub(&[])
        .start()
        .await?;
    let client = session(&rialto).await?;
    client.call(1, "never", "{}").await?.expect_failed(504)?;
    client.call(2, "exit", "{}").await?.expect_failed(503)?;
    rialto
        .client()
        .await?
        .call(3, "echo", "{}")
        .await?
        .expect_status(503)?;
    let plain = client.clone().accepting("application/json");
    plain.call(4, "never", "{}").await?.expect_status(504)?;
    let body = "not json";
    client.post(body).await?.reply().await?.expect_status(400)?;
    let records = records(&rialto, 7).await;
    let outcomes: Vec<_> = records[2..]
        .iter()
        .map(|record| (record["status_code"].as_u64(), record["outcome"].as_str()))
        .collect();
    assert_eq!(
        outcomes,
        [
            // What was sent, and what happened.
            (Some(200), Some("timeout")),
            (Some(200), Some("crashed")),
            (Some(503), Some("refused")),
            (Some(504), Some("timeout")),
            (Some(400), Some("refused")),
        ]
    );
    assert_eq!(records[6]["request_bytes"], body.len());
    Ok(())
}

#[tokio::test]
async fn bodies_are_audited_only_when_asked_for_and_without_secrets() -> Result<()> {
    let secret = "correct-horse-battery-staple";
    let call = async |rialto: &Rialto| {
        let client = session(rialto)
            .await?
            .with_header("Authorization", &format!("Bearer {secret}"));
        client
            .call(1, "mirror", json!({"password": secret, "marker": "visible"}))
            .await?
            .expect_status(200)?;
        Result::Ok(records(rialto, 3).await)
    };
    let silent = call(&audited().stub(&[]).start().await?).await?;
    assert!(
        !format!("{silent:?}").contains("visible") && silent[2].get("request_body").is_none(),
        "{silent:?}"
    );

    let rialto = audited()
        .env("AUDIT_LOG_BODIES", "true")
        .stub(&[])
        .start()
        .await?;
    let spoken = call(&rialto).await?;
    let (request, response) = (&spoken[2]["request_body"], &spoken[2]["response_body"]);
    for body in [request, response] {
        assert!(
            body.as_str().is_some_and(|text| text.contains("visible")),
            "{spoken:?}"
        );
    }
    assert!(!format!("{spoken:?}").contains(secret), "{spoken:?}");
    assert!(!rialto.stderr().join("\n").contains(secret));
    Ok(())
}

#[tokio::test]
async fn the_audit_log_may_go_to_stdout() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--audit", "stdout"])
        .stub(&[])
        .start()
        .await?;
    session(&rialto)
        .await?
        .call(1, "echo", marked("m"))
        .await?
        .expect_status(200)?;
    let lines = wait_until("three lines", PATIENCE, || {
        let lines = rialto.stdout();
        (lines.len() >= 3).then_some(lines)
    })
    .await;
    let record: Value = serde_json::from_str(&lines[2])?;
    assert_eq!(
        (&record["tool"], &record["outcome"]),
        (&json!("echo"), &json!("ok"))
    );
    Ok(())
}

// Health.

#[tokio::test]
async fn health_reports_alive_and_ready_reports_each_destination() -> Result<()> {
    let yaml =
        "destinations:\n  well: { command: '{stub}' }\n  sick: { command: '{stub} --exit-at-once 1' }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let well = rialto.client_of("well").await?;
    let get = async |path: &str| well.send("GET", path, &[], "").await?.reply().await;
    get("/health").await?.expect_status(200)?;
    well.call(1, "echo", marked("m")).await?.expect_status(200)?;
    rialto
        .client_of("sick")
        .await?
        .call(1, "echo", marked("m"))
        .await?
        .expect_failed(503)?;
    let ready = get("/ready").await?;
    let told: Value = serde_json::from_str(&ready.expect_status(200)?.body_text())?;
    let state = |name: &str| told["destinations"][name]["state"].clone();
    assert_eq!(
        (state("well"), state("sick")),
        (json!("ready"), json!("failed")),
        "{told}"
    );
    get("/health").await?.expect_status(200)?;
    Ok(())
}

#[tokio::test]
async fn ready_is_503_when_no_destination_can_be_used() -> Result<()> {
    let rialto =
        Rialto::with_config("destinations:\n  sick: { command: '{stub} --exit-at-once 1' }\n").await?;
    let client = rialto.client_of("sick").await?;
    client.call(1, "echo", marked("m")).await?.expect_failed(503)?;
    client
        .send("GET", "/ready", &[], "")
        .await?
        .reply()
        .await?
        .expect_status(503)?;
    client
        .send("GET", "/health", &[], "")
        .await?
        .reply()
        .await?
        .expect_status(200)?;
    Ok(())
}

/// F18: neither secrets that others can read nor tokens in the clear were worth a word.
#[tokio::test]
async fn check_warns_of_readable_secrets_and_of_tokens_in_the_clear() -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let token = "auth: { tokens: [{ name: a, hash: 'sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08' }] }";
    let check = async |mode: u32, listen: &str, further: &str| {
        let config = format!(
            "secrets_file: secrets.yml\n{token}\n{further}\ndestinations:\n  d: {{ command: '{{stub}}', env: {{ A: '${{secret:a}}' }} }}\n"
        );
        let launcher = Rialto::launcher().verb(&["check"]).config(&config);
        let launcher = launcher.env("RIALTO_LISTEN", listen);
        let secrets = launcher.dir().join("secrets.yml");
        std::fs::write(&secrets, "a: b\n")?;
        std::fs::set_permissions(&secrets, std::fs::Permissions::from_mode(mode))?;
        let ended = launcher.run(PATIENCE).await?;
        Result::Ok(ended.stderr_text())
    };
    let said = check(0o644, "0.0.0.0:0", "").await?;
    assert!(
        said.contains("chmod 600") && said.contains("plain HTTP"),
        "{said}"
    );
    let said = check(0o600, "0.0.0.0:0", "public_url: https://mcp.example.com").await?;
    assert!(
        !said.contains("chmod 600") && !said.contains("plain HTTP"),
        "{said}"
    );
    let said = check(0o600, "127.0.0.1:0", "").await?;
    assert!(!said.contains("plain HTTP"), "{said}");
    Ok(())
}
