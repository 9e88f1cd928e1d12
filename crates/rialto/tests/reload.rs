//! Reload (rows F6 and F7): what stays the same is not touched, what is wrong changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{McpClient, PATIENCE, Reply, Result, Rialto, wait_until};
use tokio::task::JoinSet;

fn destination(name: &str, more: &str) -> String {
    format!("  {name}:\n    command: '{{stub}} --journal {{dir}}/journal-{name}'\n{more}")
}

/// A Rialto whose file can be written again.
struct Reloadable {
    rialto: Rialto,
    file: PathBuf,
    stub: String,
}

impl Reloadable {
    async fn start(flags: &[&str], destinations: &str) -> Result<Self> {
        let launcher = Rialto::launcher()
            .args(flags)
            .config(&format!("destinations:\n{destinations}"));
        let rialto = launcher.start().await?;
        let file = config_file(rialto.dir());
        let stub = testkit::rialto::binary("testkit-server")
            .to_string_lossy()
            .into_owned();
        Ok(Self { rialto, file, stub })
    }

    /// Writes the file anew, with the same stand-ins.
    fn write(&self, text: &str) -> Result<()> {
        let dir = self.rialto.dir().to_string_lossy();
        std::fs::write(
            &self.file,
            text.replace("{stub}", &self.stub).replace("{dir}", &dir),
        )?;
        Ok(())
    }

    fn write_destinations(&self, destinations: &str) -> Result<()> {
        self.write(&format!("destinations:\n{destinations}"))
    }

    /// Sends SIGHUP and waits for the result.
    async fn reload(&self, outcome: &str) -> Value {
        let before = self.outcomes(outcome).len();
        self.rialto.signal(Signal::HUP);
        self.wait_for(outcome, before).await
    }

    async fn wait_for(&self, outcome: &str, before: usize) -> Value {
        wait_until(&format!("another `{outcome}`"), PATIENCE, || {
            self.outcomes(outcome).into_iter().nth(before)
        })
        .await
    }

    fn outcomes(&self, outcome: &str) -> Vec<Value> {
        let mut logs = self.rialto.logs();
        logs.retain(|line| {
            line["message"]
                .as_str()
                .is_some_and(|text| text.starts_with(outcome))
        });
        logs
    }

    async fn ready(&self) -> Result<Value> {
        let client = McpClient::connect(&format!("http://{}/x/mcp", self.rialto.address())).await?;
        Ok(client
            .send("GET", "/ready", &[], "")
            .await?
            .reply()
            .await?
            .answer())
    }
}

/// The file that the launcher wrote.
fn config_file(dir: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(dir).expect("the directory is there");
    files
        .find_map(|entry| {
            let path = entry.ok()?.path();
            matches!(path.extension()?.to_str()?, "yml" | "yaml").then_some(path)
        })
        .expect("the launcher has written a configuration")
}

async fn echo(client: &McpClient, marker: &str) -> Result<Reply> {
    client.call(1, "echo", json!({"marker": marker})).await
}

/// F6: unchanged destinations keep their children and their sessions, and no call is lost.
#[tokio::test]
async fn a_thousand_calls_during_reloads_are_all_answered_by_the_same_child() -> Result<()> {
    let stays = destination("stays", "");
    let running = Reloadable::start(&[], &format!("{stays}{}", destination("goes", ""))).await?;
    let client = running.rialto.session_of("stays").await?;
    client.expect_echo("before").await?;
    let children = |running: &Reloadable| {
        let children = running.rialto.children().into_iter();
        let mut pids: Vec<u32> = children
            .filter(|child| child.name.contains("testkit"))
            .map(|child| child.pid)
            .collect();
        pids.sort_unstable();
        pids
    };
    let before = children(&running);
    let done = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for caller in 0..10 {
        let (client, done) = (client.clone(), Arc::clone(&done));
        callers.spawn(async move {
            // At least a hundred each, and on until the last reload is through.
            let mut calls = 0;
            while calls < 100 || !done.load(Ordering::Acquire) {
                let marker = format!("{caller}-{calls}");
                client.expect_echo(&marker).await.expect("every call is answered");
                calls += 1;
            }
            calls
        });
    }
    for round in 0..5 {
        let more = destination("comes", &format!("    max_sessions: {}\n", round + 1));
        running.write_destinations(&format!("{stays}{more}"))?;
        let report = running.reload("reloaded").await;
        assert_eq!(report["kept"], 1, "{report}");
        match round {
            0 => {
                assert_eq!(
                    (&report["added"], &report["removed"]),
                    (&json!("comes"), &json!("goes"))
                );
            }
            _ => assert_eq!(report["replaced"], "comes", "{report}"),
        }
    }
    done.store(true, Ordering::Release);
    let calls: usize = callers.join_all().await.into_iter().sum();
    assert!(calls >= 1000, "{calls}");
    running
        .rialto
        .session_of("comes")
        .await?
        .expect_echo("new")
        .await?;
    let kept = children(&running);
    let stayed = before.iter().filter(|pid| kept.contains(pid)).count();
    assert_eq!(stayed, 1, "the child of `stays` is the same: {before:?} {kept:?}");
    Ok(())
}

/// What is gone is gone, with its child; what runs on it may finish.
#[tokio::test]
async fn a_removed_destination_finishes_its_calls_and_ends() -> Result<()> {
    let running =
        Reloadable::start(&[], &[destination("stays", ""), destination("goes", "")].concat()).await?;
    let client = running.rialto.session_of("goes").await?;
    let mut in_flight = JoinSet::new();
    in_flight.spawn({
        let client = client.clone();
        async move {
            client
                .call(1, "delay", r#"{"ms":700,"marker":"in flight"}"#)
                .await
        }
    });
    let journal = testkit::Journal::at(running.rialto.dir().join("journal-goes"));
    wait_until("the call runs", PATIENCE, || {
        (!journal.events("executed").is_empty()).then_some(())
    })
    .await;
    running.write_destinations(&destination("stays", ""))?;
    running.reload("reloaded").await;
    let reply = echo(&client, "too late").await?;
    assert_eq!(reply.status, 404);
    assert!(running.ready().await?["destinations"].get("goes").is_none());
    for reply in in_flight.join_all().await {
        assert_eq!(reply?.text(), "in flight");
    }
    running.wait_for("destination ended", 0).await;
    wait_until("its child is gone", PATIENCE, || {
        let children = running.rialto.children();
        (children
            .iter()
            .filter(|child| child.name.contains("testkit"))
            .count()
            == 1)
            .then_some(())
    })
    .await;
    Ok(())
}

/// The sessions of what was replaced are unknown, and a client that initializes anew is at home.
#[tokio::test]
async fn a_changed_destination_is_replaced_and_its_sessions_end_with_404() -> Result<()> {
    let running = Reloadable::start(&[], &destination("one", "")).await?;
    let client = running.rialto.session_of("one").await?;
    client.expect_echo("old").await?;
    let stream = client.get_stream(None).await?;
    running.write_destinations(&destination("one", "    env: { NEW: value }\n"))?;
    let report = running.reload("reloaded").await;
    assert_eq!(report["replaced"], "one", "{report}");
    echo(&client, "?").await?.expect_error(404, -32600)?;
    let mut stream = stream;
    assert!(stream.next_message().await?.is_none(), "the stream ends properly");
    running.rialto.session_of("one").await?.expect_echo("new").await?;
    Ok(())
}

/// A call that never ends does not keep what was replaced for ever.
#[tokio::test]
async fn a_call_that_outlasts_the_drain_is_answered_503() -> Result<()> {
    let text = |more: &str| {
        format!(
            "drain_timeout: 100ms\ndestinations:\n{}",
            destination("one", more)
        )
    };
    let running = Reloadable::start(&[], &destination("one", "")).await?;
    running.write(&text(""))?;
    running.reload("reloaded").await;
    let client = running.rialto.session_of("one").await?;
    let mut in_flight = JoinSet::new();
    in_flight.spawn({
        let client = client.clone();
        async move { client.call(1, "never", r#"{"marker":"for ever"}"#).await }
    });
    let journal = testkit::Journal::at(running.rialto.dir().join("journal-one"));
    wait_until("the call runs", PATIENCE, || {
        (!journal.events("executed").is_empty()).then_some(())
    })
    .await;
    running.write(&text("    max_sessions: 3\n"))?;
    running.reload("reloaded").await;
    for reply in in_flight.join_all().await {
        reply?.expect_failed(503)?;
    }
    Ok(())
}

/// F7: with any mistake in the file the old configuration stays, and `/ready` and the metrics show
/// it.
#[tokio::test]
async fn bad_file_changes_nothing_and_is_reported() -> Result<()> {
    let good = destination("one", "");
    let running = Reloadable::start(&[], &good).await?;
    let client = running.rialto.session_of("one").await?;
    client.expect_echo("before").await?;
    for (text, named) in [
        ("destinations: [".to_owned(), "not valid"),
        (format!("destinations:\n{good}    comand: x\n"), "comand"),
        (format!("lisen: :1\ndestinations:\n{good}"), "lisen"),
        (
            "destinations:\n  two:\n    command: /no/such/program\n".to_owned(),
            "/no/such/program",
        ),
        (
            format!("secrets_file: missing.yml\ndestinations:\n{good}"),
            "missing.yml",
        ),
        (String::new(), ""),
    ] {
        running.write(&text)?;
        let failure = running.reload("reload failed").await;
        assert_eq!(failure["level"], "ERROR");
        assert!(
            failure["error"]
                .as_str()
                .is_some_and(|error| error.contains(named)),
            "{failure}"
        );
        client.expect_echo("unmoved").await?;
        let ready = running.ready().await?;
        assert!(
            ready["configuration"]
                .as_str()
                .is_some_and(|text| text.contains("reload")),
            "{ready}"
        );
        // `rialto check` reports the same with its exit status.
        let checked = std::process::Command::new(testkit::rialto::binary("rialto"))
            .args(["check", "--config"])
            .arg(&running.file)
            .output()?;
        assert!(!checked.status.success(), "{checked:?}");
    }
    std::fs::remove_file(&running.file)?;
    running.reload("reload failed").await;
    client.expect_echo("unmoved").await?;
    running.write_destinations(&good)?;
    let report = running.reload("reloaded").await;
    assert_eq!(report["kept"], 1);
    assert!(running.ready().await?.get("configuration").is_none());
    client.expect_echo("the same session").await?;
    Ok(())
}

#[tokio::test]
async fn settings_that_need_a_restart_are_named_and_kept() -> Result<()> {
    let running = Reloadable::start(&[], &destination("one", "")).await?;
    running.write(&format!(
        "audit: audit.jsonl\nallowed_hosts: [gate.example]\ndestinations:\n{}",
        destination("one", "")
    ))?;
    running.reload("reloaded").await;
    let warned = |line: &Value| line["setting"] == "audit" && line["level"] == "WARN";
    running.rialto.wait_for_log("audit waits", PATIENCE, warned).await;
    // Hosts do not have to wait.
    let client = running.rialto.client_of("one").await?;
    let reply = client
        .send("GET", "/health", &[("host", "gate.example")], "")
        .await?;
    assert_eq!(reply.status, 200);
    Ok(())
}

#[tokio::test]
async fn a_watched_file_is_read_when_it_changes() -> Result<()> {
    let running = Reloadable::start(&["--watch"], &destination("one", "")).await?;
    let client = running.rialto.session_of("one").await?;
    running.write_destinations(&[destination("one", ""), destination("two", "")].concat())?;
    let report = running.wait_for("reloaded", 0).await;
    assert_eq!(
        (&report["added"], &report["kept"]),
        (&json!("two"), &json!(1)),
        "{report}"
    );
    running
        .rialto
        .session_of("two")
        .await?
        .expect_echo("watched")
        .await?;
    // Replaced by another file, as editors and deployments do.
    let new = running.file.with_extension("new");
    std::fs::write(&new, "destinations: {}\n")?;
    std::fs::rename(&new, &running.file)?;
    running.wait_for("reload failed", 0).await;
    client.expect_echo("unmoved").await?;
    Ok(())
}

/// Without a file there is nothing to change, and SIGHUP does no harm.
#[tokio::test]
async fn a_single_server_is_kept_over_sighup() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    rialto.signal(Signal::HUP);
    let reloaded = |line: &Value| line["message"] == "reloaded" && line["kept"] == 1;
    rialto.wait_for_log("it is kept", PATIENCE, reloaded).await;
    client.expect_echo("kept").await?;
    Ok(())
}

/// A call in flight may wait for its client, which may answer after a reload.
#[tokio::test]
async fn f06_a_question_is_answered_while_its_destination_is_replaced() -> Result<()> {
    let running = Reloadable::start(&[], &destination("a", "")).await?;
    let client = running.rialto.client_of("a").await?;
    client.handshake("2025-06-18", json!({"elicitation": {}})).await?;
    let call = client
        .open_call(1, "ask_elicit", json!({"marker": "asked"}), 1)
        .await?;
    let mut stream = call.events();
    let question = stream.message().await?;
    running.write_destinations(&destination("a", "    env: { OTHER: value }\n"))?;
    running.reload("reloaded").await;
    // For anything new the session is gone.
    echo(&client, "late").await?.expect_error(404, -32600)?;
    let answer = json!({"action": "accept", "content": {}});
    client
        .respond(&question["id"], answer)
        .await?
        .expect_status(202)?;
    let answer = stream.message().await?;
    assert_eq!(answer["id"], 1, "{answer}");
    assert!(answer.get("result").is_some(), "{answer}");
    running.wait_for("destination ended", 0).await;
    Ok(())
}

/// A client whose connection broke around a reload resumes the stream of its call, before and after
/// the answer came.
#[tokio::test]
async fn h15_the_stream_of_a_call_is_resumed_during_a_reload() -> Result<()> {
    let replaced = destination("a", "    env: { OTHER: value }\n");
    let removed = destination("b", "");
    for (answers_first, after) in [
        (false, &replaced),
        (true, &replaced),
        (false, &removed),
        (true, &removed),
    ] {
        let running = Reloadable::start(&[], &destination("a", "")).await?;
        let client = running.rialto.client_of("a").await?;
        client.handshake("2025-11-25", json!({"elicitation": {}})).await?;
        let call = client
            .open_call(1, "ask_elicit", json!({"marker": "asked"}), 1)
            .await?;
        let mut stream = call.events();
        let question = stream.message().await?;
        let last = stream.last_event_id().expect("an event id").to_owned();
        drop(stream);
        running.write_destinations(after)?;
        running.reload("reloaded").await;
        // A new request is not for what drains.
        client.request(2, "tools/list", "{}").await?.expect_status(404)?;
        let answer = || client.respond(&question["id"], json!({"action": "accept", "content": {}}));
        if answers_first {
            answer().await?.expect_status(202)?;
            let deadline = tokio::time::Instant::now() + PATIENCE;
            while !client
                .metrics()
                .await?
                .contains("rialto_requests_in_progress 0.0")
            {
                assert!(tokio::time::Instant::now() < deadline, "the call has ended");
            }
        }
        let mut resumed = client.get_stream(Some(&last)).await?;
        if !answers_first {
            answer().await?.expect_status(202)?;
        }
        let result = resumed.message().await?;
        assert_eq!(result["id"], 1, "{result}");
        assert!(result.get("result").is_some(), "{result}");
        running.wait_for("destination ended", 0).await;
        client.delete().await?.expect_status(404)?;
    }
    Ok(())
}

#[tokio::test]
async fn h15_delete_ends_a_session_that_drains_after_a_reload() -> Result<()> {
    h15_delete(&destination("a", "    env: { OTHER: value }\n")).await
}

#[tokio::test]
async fn h15_delete_ends_a_session_of_a_destination_that_was_removed() -> Result<()> {
    h15_delete(&destination("b", "")).await
}

async fn h15_delete(after: &str) -> Result<()> {
    let running = Reloadable::start(&[], &destination("a", "")).await?;
    let client = running.rialto.session_of("a").await?;
    let call = client.call(1, "never", json!({"marker": "in flight"}));
    let ending = async {
        let journal = testkit::Journal::at(running.rialto.dir().join("journal-a"));
        wait_until("the call runs", PATIENCE, || {
            (!journal.events("executed").is_empty()).then_some(())
        })
        .await;
        running.write_destinations(after)?;
        running.reload("reloaded").await;
        client.delete().await
    };
    let (answer, deleted) = tokio::join!(call, ending);
    deleted?.expect_status(204)?;
    answer?.expect_failed(404)?;
    client.delete().await?.expect_status(404)?;
    running.wait_for("destination ended", 0).await;
    Ok(())
}

/// A client of the old transport whose destination is replaced before it was welcomed receives an
/// error, and its stream ends.
#[tokio::test]
async fn f06_an_introduction_over_the_old_transport_does_not_outlive_its_destination() -> Result<()> {
    let old = |more: &str| {
        format!("  a: {{ command: '{{stub}} --slow-start 600000', legacy_sse: true, start: lazy{more} }}\n")
    };
    let running = Reloadable::start(&[], &old("")).await?;
    let http = McpClient::connect(&format!("http://{}/a/sse", running.rialto.address())).await?;
    let mut stream = http.get_stream(None).await?;
    let endpoint = stream.next().await?.expect("the stream begins").data;
    let introduction = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}});
    let headers = [("content-type", "application/json")];
    let posted = http
        .send("POST", &endpoint, &headers, introduction.to_string())
        .await?;
    assert_eq!(posted.reply().await?.status, 202);
    let replaced = old(", env: { OTHER: value }");
    running.write(&format!("drain_timeout: 500ms\ndestinations:\n{replaced}"))?;
    running.reload("reloaded").await;
    let answer = stream.message().await?;
    assert!(answer["id"] == 0 && answer.get("error").is_some(), "{answer}");
    // A stream that is left open is kept alive, so that no silence would end the wait for its end.
    let ended = tokio::time::timeout(PATIENCE, stream.next_message()).await;
    assert!(matches!(ended, Ok(Ok(None))), "{ended:?}");
    Ok(())
}

/// A call in the words of the modern era, with these members beside the usual ones.
async fn call_modern(client: &McpClient, path: &str, tool: &str, more: &[(&str, Value)]) -> Result<Reply> {
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", tool),
    ];
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    });
    let mut params = json!({"name": tool, "arguments": {"marker": "modern"}, "_meta": meta});
    for (name, value) in more {
        params[name] = value.clone();
    }
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let sent = client.send("POST", path, &headers, call.to_string()).await?;
    sent.reply().await
}

/// No call waits for a server that is removed: calls that were not begun fail at once, and may be
/// retried elsewhere.
#[tokio::test]
async fn f06_calls_that_wait_for_a_server_are_refused_when_it_is_taken_away() -> Result<()> {
    let text = |goes: &str| {
        format!(
            "drain_timeout: 600s\ndestinations:\n{}{goes}",
            destination("stays", "")
        )
    };
    let goes =
        "  goes: { command: '{stub} --slow-start 600000 --journal {dir}/journal-goes', start: lazy }\n";
    let running = Reloadable::start(&[], "  any: { command: '{stub}' }\n").await?;
    for is_modern in [false, true] {
        running.write(&text(goes))?;
        running.reload("reloaded").await;
        let mut waiting = JoinSet::new();
        for _ in 0..3 {
            let client = running.rialto.client_of("goes").await?;
            waiting.spawn(async move {
                match is_modern {
                    false => client.initialize("2025-06-18", json!({})).await,
                    true => call_modern(&client, "/goes/mcp", "echo", &[]).await,
                }
            });
        }
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let page = running.rialto.client_of("stays").await?;
        while !page.metrics().await?.contains("rialto_requests_in_progress 3.0") {
            assert!(tokio::time::Instant::now() < deadline, "all of them wait");
        }
        let ended = running.outcomes("destination ended").len();
        running.write(&text(""))?;
        running.reload("reloaded").await;
        for reply in waiting.join_all().await {
            let reply = reply?;
            assert_eq!(reply.outcome_status(), 503, "{reply:?}");
            assert_eq!(reply.reason().as_deref(), Some("reloaded"));
        }
        running.wait_for("destination ended", ended).await;
    }
    let journal = testkit::Journal::at(running.rialto.dir().join("journal-goes"));
    assert_eq!(journal.starts().len(), 2, "no call that waited starts it");
    Ok(())
}

/// The same for a modern client, which answers in a request of its own.
#[tokio::test]
async fn f06_a_modern_client_answers_while_its_destination_is_replaced() -> Result<()> {
    let running = Reloadable::start(&[], &destination("a", "")).await?;
    let client = running.rialto.client_of("a").await?;
    let asked = call_modern(&client, "/a/mcp", "ask_elicit", &[]).await?.answer();
    let result = &asked["result"];
    assert_eq!(result["resultType"], "input_required", "{asked}");
    for number in 0..2 {
        running.write_destinations(&destination("a", &format!("    env: {{ OTHER: v{number} }}\n")))?;
        running.reload("reloaded").await;
    }
    // Of the two that were replaced, the later one has nothing to wait for.
    running.wait_for("destination ended", 0).await;
    let questions = result["inputRequests"].as_object().expect("questions");
    let answers: Value = questions
        .keys()
        .map(|key| (key.clone(), json!({"action": "accept", "content": {}})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let more = [
        ("requestState", result["requestState"].clone()),
        ("inputResponses", answers),
    ];
    let answered = call_modern(&client, "/a/mcp", "ask_elicit", &more).await?;
    assert_eq!(answered.status, 200, "{}", answered.body_text());
    assert_eq!(
        answered.answer()["result"]["resultType"],
        "complete",
        "{}",
        answered.body_text()
    );
    running.wait_for("destination ended", 1).await;
    let journal = testkit::Journal::at(running.rialto.dir().join("journal-a"));
    assert_eq!(journal.events("executed").len(), 1, "it was executed once");
    Ok(())
}

/// The file is a pipe, which is open and sends nothing: a disk that does not answer is no
/// different.
#[tokio::test]
async fn clients_are_served_while_the_configuration_cannot_be_read() -> Result<()> {
    let running = Reloadable::start(&[], &destination("d", "")).await?;
    let client = running.rialto.session_of("d").await?;
    let text = std::fs::read_to_string(&running.file)?;
    std::fs::remove_file(&running.file)?;
    let made = std::process::Command::new("mkfifo").arg(&running.file).status()?;
    assert!(made.success());
    running.rialto.signal(Signal::HUP);
    let file = running.file.clone();
    // It opens when Rialto has opened it, which then waits for what is written.
    let opened = tokio::task::spawn_blocking(move || std::fs::OpenOptions::new().write(true).open(file));
    let mut pipe = opened.await.expect("no panic")?;
    client.expect_echo("served").await?;
    std::io::Write::write_all(&mut pipe, text.as_bytes())?;
    drop(pipe);
    running.wait_for("reloaded", 0).await;
    client.expect_echo("and on").await?;
    Ok(())
}

/// The page of metrics, sample by sample.
async fn samples(running: &Reloadable, name: &str) -> Result<Vec<(String, f64)>> {
    let client = McpClient::connect(&format!("http://{}/x/mcp", running.rialto.address())).await?;
    let page = client.metrics().await?;
    let sample = |line: &str| {
        let (labels, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
        // Other names begin with this one.
        let labels = labels.starts_with('{').then_some(labels)?;
        Some((labels.to_owned(), value.parse().ok()?))
    };
    Ok(page.lines().filter_map(sample).collect())
}

/// An operator sees what still drains, and no counter goes back.
#[tokio::test]
async fn metrics_count_destinations_that_drain() -> Result<()> {
    let running = Reloadable::start(
        &[],
        &format!("{}{}", destination("replaced", ""), destination("removed", "")),
    )
    .await?;
    let replaced = running.rialto.session_of("replaced").await?;
    let removed = running.rialto.session_of("removed").await?;
    let mut calls = JoinSet::new();
    for (client, name) in [(replaced.clone(), "replaced"), (removed.clone(), "removed")] {
        echo(&client, "before").await?.expect_status(200)?;
        calls.spawn(async move { client.call(2, "never", json!({"marker": name})).await });
        let journal = testkit::Journal::at(running.rialto.dir().join(format!("journal-{name}")));
        wait_until("the call runs", PATIENCE, || {
            let executed = journal.events("executed");
            executed.iter().any(|event| event["marker"] == name).then_some(())
        })
        .await;
    }
    running.write_destinations(&destination("replaced", "    env: { OTHER: value }\n"))?;
    running.reload("reloaded").await;
    let of = |name: &str| format!("{{destination=\"{name}\"}}");
    assert_eq!(
        samples(&running, "rialto_sessions").await?,
        [(of("removed"), 1.0), (of("replaced"), 1.0)]
    );
    assert_eq!(
        samples(&running, "rialto_calls_in_flight").await?,
        [(of("removed"), 1.0), (of("replaced"), 1.0)]
    );
    let opened = samples(&running, "rialto_sessions_opened_total").await?;
    assert_eq!(opened, [(of("removed"), 1.0), (of("replaced"), 1.0)]);
    calls.abort_all();
    drop((replaced, removed));
    Ok(())
}
