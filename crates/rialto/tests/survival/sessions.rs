//! Sessions that go on after Rialto was restarted or killed, under the same id and without
//! `initialize`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::client::EventStream;
use testkit::journal::Journal;
use testkit::token::{token, tokens_key};
use testkit::{McpClient, PATIENCE, Result, Rialto, poll_until, wait_until};
use tokio::task::JoinSet;

const LEGACY: &str = "2025-11-25";

/// A directory that several runs of Rialto share.
struct Site {
    base: TempDir,
}

/// How a run of Rialto ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Terminated,
    Killed,
}

impl Site {
    fn new() -> Result<Self> {
        Ok(Self {
            base: tempfile::tempdir()?,
        })
    }

    fn journal(&self) -> Journal {
        Journal::at(self.base.path().join("journal"))
    }

    /// Starts Rialto with the destination `one`; `more` are lines before it, `settings` are settings of it.
    async fn start_with(&self, more: &str, settings: &str) -> Result<Rialto> {
        let base = self.base.path().display();
        Rialto::with_config(&format!(
            "state_dir: {base}/state\n{more}\ndestinations:\n  one:\n    command: '{{stub}} --journal {base}/journal'\n    {settings}\n"
        ))
        .await
    }

    async fn start(&self, settings: &str) -> Result<Rialto> {
        self.start_with("", settings).await
    }

    /// Returns what servers received since the first `skipped` entries, by method, in order.
    fn received_since(&self, skipped: usize) -> Vec<String> {
        let entries = self.journal().events("received").into_iter().skip(skipped);
        let method = |entry: Value| entry["method"].as_str().map(str::to_owned);
        entries.filter_map(method).collect()
    }
}

async fn end(rialto: Rialto, how: End) {
    match how {
        End::Terminated => rialto.sigterm(),
        End::Killed => rialto.sigkill(),
    }
    rialto.wait(PATIENCE).await;
    rialto.wait_for_no_children(PATIENCE).await;
}

/// Returns the client of an earlier run, at this one.
async fn again(rialto: &Rialto, earlier: &McpClient) -> Result<McpClient> {
    let client = rialto.client_of("one").await?;
    client.set_session(earlier.session().as_deref());
    client.set_version(Some(LEGACY));
    Ok(client)
}

/// Opens a session, sets a log level and subscribes to two resources, of which one is left again.
async fn settled(rialto: &Rialto) -> Result<McpClient> {
    let client = rialto.client_of("one").await?;
    client.handshake(LEGACY, json!({"roots": {}})).await?;
    let requests = [
        ("logging/setLevel", json!({"level": "warning"})),
        ("resources/subscribe", json!({"uri": "testkit://one"})),
        ("resources/subscribe", json!({"uri": "testkit://two"})),
        ("resources/unsubscribe", json!({"uri": "testkit://two"})),
    ];
    for (id, (method, params)) in requests.into_iter().enumerate() {
        let reply = client.request(id + 1, method, params).await?;
        assert_eq!(reply.answer()["result"], json!({}), "{method}");
    }
    Ok(client)
}

#[tokio::test]
async fn client_goes_on_without_initialize_after_a_restart_and_after_a_kill() -> Result<()> {
    for how in [End::Terminated, End::Killed] {
        let site = Site::new()?;
        let settings = "process: per_session\n    capabilities: per_client";
        let rialto = site.start(settings).await?;
        let client = settled(&rialto).await?;
        client.expect_echo("before").await?;
        let before = site.journal().events("received").len();
        end(rialto, how).await;

        let rialto = site.start(settings).await?;
        let client = again(&rialto, &client).await?;
        client.expect_echo("after").await?;
        let expected = [
            "initialize",
            "notifications/initialized",
            "logging/setLevel",
            "resources/subscribe",
            "tools/call",
        ];
        assert_eq!(site.received_since(before), expected, "{how:?}");
        let greetings = site.journal().received("initialize");
        let words = |line: &String| serde_json::from_str::<Value>(line).map(|line| line["params"].clone());
        assert_eq!(
            words(&greetings[0])?,
            words(&greetings[1])?,
            "the client's own words"
        );
        let level = site.journal().received("logging/setLevel");
        assert!(level[1].contains("warning"), "{level:?}");
        let subscribed = site.journal().received("resources/subscribe");
        assert!(subscribed[2].contains("testkit://one"), "{subscribed:?}");

        // The lists may have changed, which the client is notified of once; then updates follow.
        let mut stream = client.get_stream(None).await?;
        client.call(9, "update", r#"{"uri":"testkit://one"}"#).await?;
        let mut changed = BTreeMap::new();
        loop {
            let message = stream.message().await?;
            let method = message["method"].as_str().unwrap_or_default().to_owned();
            if method == "notifications/resources/updated" {
                break;
            }
            *changed.entry(method).or_insert(0) += 1;
        }
        assert_eq!(
            changed.get("notifications/tools/list_changed"),
            Some(&1),
            "{changed:?}"
        );
        assert!(changed.values().all(|count| *count == 1), "{changed:?}");
        assert_eq!(site.journal().executions("before"), 1);
        assert_eq!(site.journal().executions("after"), 1);
    }
    Ok(())
}

#[tokio::test]
async fn session_goes_on_again_and_again_whether_its_server_is_shared_or_not() -> Result<()> {
    for settings in ["process: shared", "process: per_identity", "process: per_session"] {
        let site = Site::new()?;
        let mut rialto = site.start(settings).await?;
        let mut client = settled(&rialto).await?;
        for life in 0..3 {
            end(rialto, if life == 1 { End::Terminated } else { End::Killed }).await;
            rialto = site.start(settings).await?;
            client = again(&rialto, &client).await?;
            // Requests that come at once are answered by one session.
            let mut calls = JoinSet::new();
            for number in 0..4 {
                let client = client.clone();
                let marker = format!("{life}-{number}");
                calls.spawn(async move { client.expect_echo(&marker).await });
            }
            while let Some(answered) = calls.join_next().await {
                answered.expect("a call ends")?;
            }
            let level = site.journal().received("logging/setLevel").len();
            assert_eq!(level, life + 2, "{settings}: the level is sent once in each life");
        }
    }
    Ok(())
}

#[tokio::test]
async fn stream_by_get_restores_the_session_too() -> Result<()> {
    let site = Site::new()?;
    let rialto = site.start("process: per_session").await?;
    let client = settled(&rialto).await?;
    let mut stream = client.get_stream(None).await?;
    client.call(7, "change_tools", "{}").await?;
    stream.message().await?;
    let last = stream.last_event_id().map(str::to_owned);
    end(rialto, End::Killed).await;
    let rialto = site.start("process: per_session").await?;
    let client = again(&rialto, &client).await?;
    // The stream of an earlier life is opened anew.
    let mut stream = client.get_stream(last.as_deref()).await?;
    let message = stream.message().await?;
    assert!(
        message["method"]
            .as_str()
            .is_some_and(|method| method.ends_with("list_changed")),
        "{message}"
    );
    client.expect_echo("after").await
}

#[tokio::test]
async fn deleted_and_foreign_sessions_stay_unknown() -> Result<()> {
    let site = Site::new()?;
    let tokens = BTreeMap::from(["ann", "bob"].map(|name| (name, token(name))));
    let keys: Vec<_> = tokens.iter().map(|(name, token)| (*name, token)).collect();
    let auth = &format!("auth:\n{}", tokens_key(&keys));
    let rialto = site.start_with(auth, "process: shared").await?;
    let of = |client: McpClient, name: &str| {
        client.with_header("authorization", &format!("Bearer {}", tokens[name].token))
    };
    let ann = of(rialto.client_of("one").await?, "ann");
    ann.handshake(LEGACY, json!({})).await?;
    let gone = of(rialto.client_of("one").await?, "ann");
    gone.handshake(LEGACY, json!({})).await?;
    gone.delete().await?.expect_status(204)?;
    let unused = of(rialto.client_of("one").await?, "ann");
    unused.handshake(LEGACY, json!({})).await?;
    end(rialto, End::Terminated).await;

    let rialto = site.start_with(auth, "process: shared").await?;
    let bob = of(again(&rialto, &ann).await?, "bob");
    bob.call(1, "echo", r#"{"marker":"bob"}"#)
        .await?
        .expect_status(404)?;
    assert_eq!(bob.get(None).await?.reply().await?.status, 404);
    bob.delete().await?.expect_status(404)?;
    let gone = of(again(&rialto, &gone).await?, "ann");
    gone.call(1, "echo", r#"{"marker":"gone"}"#)
        .await?
        .expect_status(404)?;
    // A session that is open nowhere can be ended, and nothing is started for it.
    let unused = of(again(&rialto, &unused).await?, "ann");
    unused.delete().await?.expect_status(204)?;
    unused
        .call(1, "echo", r#"{"marker":"unused"}"#)
        .await?
        .expect_status(404)?;
    let ann = of(again(&rialto, &ann).await?, "ann");
    ann.expect_echo("ann").await?;
    for marker in ["bob", "gone", "unused"] {
        assert_eq!(site.journal().executions(marker), 0, "{marker}");
    }
    Ok(())
}

#[tokio::test]
async fn expired_session_is_not_restored() -> Result<()> {
    let site = Site::new()?;
    let idle = "session_idle: 1s";
    let rialto = site.start_with(idle, "process: shared").await?;
    let client = rialto.client_of("one").await?;
    client.handshake(LEGACY, json!({})).await?;
    let watcher = rialto.client_of("one").await?;
    poll_until("the session has expired", PATIENCE, async || {
        let metrics = watcher.metrics().await?;
        let mut lines = metrics.lines();
        let is_expired = |line: &str| line.starts_with("rialto_sessions_expired") && line.ends_with(" 1");
        Result::Ok(lines.any(is_expired).then_some(()))
    })
    .await?;
    end(rialto, End::Terminated).await;
    let rialto = site.start_with(idle, "process: shared").await?;
    let client = again(&rialto, &client).await?;
    client
        .call(1, "echo", r#"{"marker":"late"}"#)
        .await?
        .expect_status(404)?;
    assert_eq!(site.journal().executions("late"), 0);
    Ok(())
}

#[tokio::test]
async fn session_whose_server_gets_headers_needs_them_again() -> Result<()> {
    for process in ["per_session", "per_identity"] {
        let site = Site::new()?;
        let settings = format!("process: {process}\n    env_from_headers: {{ TOKEN: X-Token }}");
        let rialto = site.start(&settings).await?;
        let client = rialto
            .client_of("one")
            .await?
            .with_header("x-token", "secret-of-ann");
        client.handshake(LEGACY, json!({})).await?;
        end(rialto, End::Killed).await;
        let state = site.base.path().join("state");
        for file in std::fs::read_dir(state)? {
            let bytes = std::fs::read(file?.path())?;
            let held = bytes.windows(13).any(|window| window == b"secret-of-ann");
            assert!(!held, "no header is in a record");
        }

        let rialto = site.start(&settings).await?;
        let bare = again(&rialto, &client).await?;
        bare.call(1, "env", r#"{"name":"TOKEN"}"#)
            .await?
            .expect_status(404)?;
        let client = again(&rialto, &client)
            .await?
            .with_header("x-token", "secret-of-ann");
        let reply = client.call(2, "env", r#"{"name":"TOKEN"}"#).await?;
        assert_eq!(reply.text(), "secret-of-ann", "{process}");
    }
    Ok(())
}

#[tokio::test]
async fn implicit_session_goes_on() -> Result<()> {
    let site = Site::new()?;
    let rialto = site.start("process: per_session").await?;
    let client = rialto.client_of("one").await?;
    let reply = client.call(1, "echo", r#"{"marker":"first"}"#).await?;
    client.set_session(reply.header("mcp-session-id"));
    assert!(client.session().is_some());
    end(rialto, End::Killed).await;
    let rialto = site.start("process: per_session").await?;
    let client = again(&rialto, &client).await?;
    client.expect_echo("second").await?;
    assert_eq!(site.journal().executions("first"), 1);
    Ok(())
}

#[tokio::test]
async fn call_that_was_lost_ends_with_its_reason_and_is_not_run_again() -> Result<()> {
    let site = Site::new()?;
    let rialto = site.start("process: per_session").await?;
    let client = settled(&rialto).await?;
    let mut open = client
        .open_call(r#""lost.1""#, "hold", r#"{"marker":"held","every_ms":50}"#, 1)
        .await?
        .events();
    open.next().await?;
    let last = open
        .last_event_id()
        .map(str::to_owned)
        .expect("the stream is primed");
    end(rialto, End::Killed).await;

    let rialto = site.start("process: per_session").await?;
    let client = again(&rialto, &client).await?;
    let mut resumed = client.get_stream(Some(&last)).await?;
    let message = resumed.message().await?;
    assert_eq!(message["id"], "lost.1", "{message}");
    assert_eq!(message["error"]["data"]["reason"], "owner_lost", "{message}");
    assert_eq!(message["error"]["data"]["outcome"], "unknown", "{message}");
    assert!(resumed.next().await?.is_none(), "the stream ends");
    let forged = last.replace('.', ".A");
    assert_eq!(client.get(Some(&forged)).await?.reply().await?.status, 400);
    client.expect_echo("after").await?;
    assert_eq!(site.journal().executions("held"), 1);
    Ok(())
}

#[tokio::test]
async fn client_of_the_old_transport_has_to_connect_again() -> Result<()> {
    async fn connect(rialto: &Rialto) -> Result<(McpClient, EventStream, String)> {
        let client = McpClient::connect(&format!("http://{}/one/sse", rialto.address())).await?;
        let mut stream = client.get_stream(None).await?;
        let endpoint = stream.next().await?.expect("the stream names its endpoint").data;
        Ok((client, stream, endpoint))
    }
    async fn initialize(client: &McpClient, endpoint: &str) -> Result<u16> {
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}
        }});
        let headers = [("content-type", "application/json")];
        let sent = client.send("POST", endpoint, &headers, body.to_string()).await?;
        Ok(sent.reply().await?.status)
    }
    let site = Site::new()?;
    let rialto = site.start("legacy_sse: true").await?;
    let (client, mut stream, earlier) = connect(&rialto).await?;
    assert_eq!(initialize(&client, &earlier).await?, 202);
    stream.message().await?;
    end(rialto, End::Terminated).await;
    assert!(
        !matches!(stream.next().await, Ok(Some(_))),
        "the stream ends with its process"
    );

    let rialto = site.start("legacy_sse: true").await?;
    let (client, mut stream, endpoint) = connect(&rialto).await?;
    assert_eq!(initialize(&client, &earlier).await?, 404);
    assert_eq!(initialize(&client, &endpoint).await?, 202);
    assert_eq!(stream.message().await?["id"], 0);
    Ok(())
}

#[tokio::test]
async fn directory_of_another_rialto_that_runs_is_refused() -> Result<()> {
    let site = Site::new()?;
    let rialto = site.start("process: shared").await?;
    let base = site.base.path().display();
    let config = format!("state_dir: {base}/state\ndestinations: {{ one: {{ command: '{{stub}}' }} }}\n");
    let refused = Rialto::launcher().config(&config).run(PATIENCE).await?;
    assert_eq!(refused.code(), Some(2));
    let text = refused.stderr_text();
    assert!(text.contains("in use by another process"), "{text}");
    rialto.session_of("one").await?.expect_echo("undisturbed").await
}

#[tokio::test]
async fn restart_under_load_loses_no_session_and_runs_no_tool_twice() -> Result<()> {
    const CLIENTS: usize = 8;
    for how in [End::Terminated, End::Killed] {
        let site = Site::new()?;
        let rialto = site.start("process: shared").await?;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(rialto.session_of("one").await?);
        }
        let mut running = JoinSet::new();
        for (number, client) in clients.iter().enumerate() {
            let client = client.clone();
            running.spawn(async move {
                let mut outcomes = Vec::new();
                for call in 0.. {
                    let marker = format!("{number}-{call}");
                    let arguments = json!({"marker": marker, "ms": 5}).to_string();
                    let outcome = match client.call(call, "delay", arguments).await {
                        Ok(reply) if reply.status == 200 && reply.reason().is_none() => "done".to_owned(),
                        Ok(reply) => reply.reason().unwrap_or_else(|| reply.status.to_string()),
                        // The process has ended, and the connection with it.
                        Err(_) => "connection".to_owned(),
                    };
                    let is_over = outcome != "done";
                    outcomes.push((marker, outcome));
                    if is_over {
                        return outcomes;
                    }
                }
                outcomes
            });
        }
        let journal = site.journal();
        wait_until("calls are running", PATIENCE, || {
            (journal.events("executed").len() > 10 * CLIENTS).then_some(())
        })
        .await;
        end(rialto, how).await;
        let mut outcomes = Vec::new();
        while let Some(ended) = running.join_next().await {
            outcomes.extend(ended.expect("a client ends"));
        }

        let rialto = site.start("process: shared").await?;
        for (number, client) in clients.iter().enumerate() {
            let client = again(&rialto, client).await?;
            client.expect_echo(&format!("{number}-after")).await?;
        }
        let mut executions: BTreeMap<String, usize> = BTreeMap::new();
        for entry in site.journal().events("executed") {
            *executions
                .entry(entry["marker"].as_str().unwrap_or_default().to_owned())
                .or_default() += 1;
        }
        assert!(
            executions.values().all(|count| *count == 1),
            "{how:?}: {executions:?}"
        );
        let known = [
            "done",
            "connection",
            "draining",
            "upstream_exited",
            "upstream_unavailable",
        ];
        for (marker, outcome) in &outcomes {
            assert!(
                known.contains(&outcome.as_str()),
                "{how:?}: {marker} ended with {outcome}"
            );
            if outcome == "done" {
                assert_eq!(executions.get(marker), Some(&1), "{marker}");
            }
        }
        let failed = outcomes.iter().filter(|(_, outcome)| outcome != "done").count();
        assert!(failed <= CLIENTS, "a client loses one call at most");
    }
    Ok(())
}

#[tokio::test]
async fn reload_that_replaces_a_destination_lets_its_sessions_go_on() -> Result<()> {
    let site = Site::new()?;
    let rialto = site.start("process: per_session").await?;
    let client = settled(&rialto).await?;
    let file = rialto.dir().join("destinations.yml");
    let text = std::fs::read_to_string(&file)?;
    std::fs::write(
        &file,
        text.replace(
            "process: per_session",
            "process: per_session\n    max_sessions: 7",
        ),
    )?;
    rialto.signal(rustix::process::Signal::HUP);
    rialto
        .wait_for_log("the old destination has ended", PATIENCE, |line| {
            line["message"] == "destination ended"
        })
        .await;
    client.expect_echo("after").await?;
    assert_eq!(site.journal().starts().len(), 2);
    Ok(())
}
