//! The child misbehaves (rows B): which calls fail, how much memory it costs, and that service goes
//! on.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::client::raw_http;
use testkit::processes::Process;
use testkit::{Journal, McpClient, PATIENCE, Reply, Result, Rialto, wait_until};
use tokio::task::JoinSet;

const INTERNAL_ERROR: i64 = -32603;
/// What a flood may cost in memory, in KiB, with limits of 1 MiB a message and 4 MiB a queue.
const BOUNDED: u64 = 48 << 10;

/// An error of Rialto's own, with this reason in its data.
fn expect_failure(reply: &Reply, status: u16, reason: &str) -> Result<()> {
    reply.expect_failed(status)?;
    assert_eq!(reply.error_code(), Some(INTERNAL_ERROR), "{reply:?}");
    assert_eq!(reply.reason().as_deref(), Some(reason), "{reply:?}");
    Ok(())
}

/// Starts a call in the background; its answer comes out of the set.
fn begin(calls: &mut JoinSet<Result<Reply>>, client: &McpClient, tool: &'static str, arguments: Value) {
    let client = client.clone();
    calls.spawn(async move { client.call(1, tool, arguments).await });
}

async fn wait_for_starts(journal: &Journal, count: usize) {
    let what = format!("the child has been started {count} times");
    wait_until(&what, PATIENCE, || {
        (journal.starts().len() >= count).then_some(())
    })
    .await;
}

async fn wait_until_gone(process: &Process, deadline: Duration) {
    wait_until("the child is gone, and no zombie of it", deadline, || {
        let now = Process::read(process.pid);
        now.is_none_or(|now| now.started != process.started).then_some(())
    })
    .await;
}

fn process_of(reply: &Reply) -> Process {
    let pid = reply.text().parse().expect("the tool gives its pid");
    Process::read(pid).expect("the child runs")
}

#[tokio::test]
async fn b01_a_crash_fails_every_call_in_flight_and_the_next_session_is_served() -> Result<()> {
    for pending in [1, 100] {
        let rialto = Rialto::with_stub(&[]).await?;
        let client = rialto.session().await?;
        let mut calls = JoinSet::new();
        for _ in 0..pending {
            begin(&mut calls, &client, "never", json!({"marker": "pending"}));
        }
        let journal = rialto.journal();
        wait_until("all calls are with the child", PATIENCE, || {
            (journal.executions("pending") == pending).then_some(())
        })
        .await;
        let crash = client
            .call(2, "exit", json!({"code": 3, "marker": "crash"}))
            .await?;
        expect_failure(&crash, 503, "upstream_exited")?;
        assert!(
            crash.answer()["error"]["data"]["detail"]
                .as_str()
                .is_some_and(|detail| detail.contains('3')),
            "{crash:?}"
        );
        for reply in calls.join_all().await {
            expect_failure(&reply?, 503, "upstream_exited")?;
        }
        let next = rialto.session().await?;
        next.expect_echo("after").await?;
        // Never a second execution, and the old session goes on as well.
        assert_eq!(journal.executions("pending"), pending);
        assert_eq!(journal.executions("crash"), 1);
        assert_eq!(journal.starts().len(), 2);
        client.expect_echo("same session").await?;
    }
    Ok(())
}

/// A stream under way gets the same error as its last event: it never just stops.
#[tokio::test]
async fn b01_a_crash_ends_a_stream_with_an_error() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (client, killer) = (rialto.session().await?, rialto.session().await?);
    let mut listening = client.get_stream(None).await?;
    let arguments = r#"{"n":100,"every_ms":100,"marker":"cut"}"#;
    let mut stream = client.open_call(7, "progress", arguments, 1).await?.events();
    stream.message().await?;
    expect_failure(&killer.call(1, "exit", "{}").await?, 503, "upstream_exited")?;
    let mut last = Value::Null;
    while let Some(message) = stream.next_message().await? {
        last = message;
    }
    assert_eq!(
        (&last["id"], &last["error"]["code"]),
        (&json!(7), &json!(INTERNAL_ERROR))
    );
    assert_eq!(last["error"]["data"]["reason"], "upstream_exited");
    // The stream that belongs to no call goes on.
    assert_eq!(
        listening.message().await?["method"],
        "notifications/tools/list_changed"
    );
    Ok(())
}

#[tokio::test]
async fn b02_a_neighbour_keeps_its_session_when_the_shared_child_is_killed() -> Result<()> {
    let rialto = Rialto::with_stub(&["--strict"]).await?;
    let (killer, neighbour) = (rialto.session().await?, rialto.session().await?);
    let mut calls = JoinSet::new();
    begin(&mut calls, &neighbour, "never", json!({"marker": "neighbour"}));
    rialto.wait_for_execution("neighbour").await;
    let reply = killer
        .call(1, "signal_self", r#"{"sig":"KILL","marker":"kill"}"#)
        .await?;
    expect_failure(&reply, 503, "upstream_exited")?;
    for reply in calls.join_all().await {
        expect_failure(&reply?, 503, "upstream_exited")?;
    }
    // The strict stub refuses calls before a handshake, so Rialto must have done one.
    neighbour.expect_echo("still there").await?;
    killer.expect_echo("me too").await?;
    assert_eq!(rialto.journal().received("initialize").len(), 2);
    assert_eq!(rialto.journal().received("notifications/initialized").len(), 2);
    assert_eq!(rialto.journal().executions("neighbour"), 1);
    Ok(())
}

#[tokio::test]
async fn b03_a_child_that_cannot_start_is_tried_four_times_and_then_left_alone() -> Result<()> {
    let rialto = Rialto::with_config(
        "destinations:\n  bad:\n    command: '{stub} --journal {dir}/bad --exit-at-once 3'\n  good:\n    command: '{stub} --journal {dir}/good'\n",
    )
    .await?;
    let bad = rialto.client_of("bad").await?;
    let reply = bad.initialize("2025-11-25", json!({})).await?;
    reply.expect_failed(503)?;
    let good = rialto.session_of("good").await?;
    good.expect_echo("meanwhile").await?;

    let journal = Journal::at(rialto.dir().join("bad"));
    wait_for_starts(&journal, 4).await;
    // From here on it is refused at once.
    let reply = wait_for_unavailable(&bad).await?;
    let wait = reply.answer()["error"]["data"]["retryAfterSeconds"].as_u64();
    assert!(wait.is_some_and(|wait| (2..=30).contains(&wait)), "{reply:?}");
    for _ in 0..20 {
        let reply = bad.initialize("2025-11-25", json!({})).await?;
        expect_failure(&reply, 503, "upstream_unavailable")?;
    }
    assert_eq!(journal.starts().len(), 4);
    good.expect_echo("afterwards").await?;
    assert!(rialto.exit_status().is_none());
    wait_until("every ended child was reaped", PATIENCE, || {
        rialto.zombies().is_empty().then_some(())
    })
    .await;
    Ok(())
}

/// Asks until the destination has been given up, which the refusal tells.
async fn wait_for_unavailable(client: &McpClient) -> Result<Reply> {
    testkit::poll_until("the destination is given up", PATIENCE, async || {
        let reply = client.request(1, "tools/list", "{}").await?;
        reply.expect_failed(503)?;
        let data = &reply.answer()["error"]["data"];
        let over = data["reason"] == "upstream_unavailable" && data["retryAfterSeconds"].as_u64() > Some(2);
        Ok(over.then_some(reply))
    })
    .await
}

#[tokio::test]
async fn b04_a_crash_loop_after_success_has_the_same_limit() -> Result<()> {
    let rialto = Rialto::with_stub(&["--crash-after-start", "150"]).await?;
    let client = rialto.client().await?;
    let reply = client.initialize("2025-11-25", json!({})).await?;
    assert!(matches!(reply.outcome_status(), 200 | 503), "{reply:?}");
    let journal = rialto.journal();
    wait_until("the child has been started four times", PATIENCE, || {
        (journal.starts().len() >= 4).then_some(())
    })
    .await;
    let last = wait_until("the last one has ended", PATIENCE, || {
        rialto
            .children()
            .iter()
            .all(|child| child.name != "testkit-server")
            .then_some(())
    });
    last.await;
    // The process is gone a moment before its last words have been waited for; a call in between
    // fails with its end.
    let first = client.request(1, "tools/list", "{}").await?;
    if first.answer()["error"]["data"]["reason"] != "upstream_exited" {
        expect_failure(&first, 503, "upstream_unavailable")?;
    }
    for _ in 0..20 {
        let reply = client.request(1, "tools/list", "{}").await?;
        expect_failure(&reply, 503, "upstream_unavailable")?;
    }
    assert_eq!(journal.starts().len(), 4);
    assert!(rialto.exit_status().is_none());
    Ok(())
}

#[tokio::test]
async fn b05_first_calls_wait_for_a_slow_start_up_to_the_limit() -> Result<()> {
    let rialto = Rialto::with_config(
        "request_timeout: 500ms\nstream_timeout: 500ms\ndestinations:\n  slow:\n    command: '{stub} --journal {dir}/slow --slow-start 1500'\n    start_timeout: 20s\n  stuck:\n    command: '{stub} --journal {dir}/stuck --slow-start 60000'\n    start_timeout: 600ms\n",
    )
    .await?;
    // The start is longer than a call may take, which does not matter: a slow start is not a slow
    // call.
    let slow = rialto.session_of("slow").await?;
    slow.expect_echo("patience").await?;
    assert_eq!(Journal::at(rialto.dir().join("slow")).starts().len(), 1);

    let stuck = rialto.client_of("stuck").await?;
    let reply = stuck.initialize("2025-11-25", json!({})).await?;
    expect_failure(&reply, 504, "start_timeout")?;
    slow.expect_echo("unaffected").await?;
    // It is no crash: the destination has not been given up.
    let reply = stuck.initialize("2025-11-25", json!({})).await?;
    expect_failure(&reply, 504, "start_timeout")?;
    Ok(())
}

#[tokio::test]
async fn b06_a_silent_call_times_out_is_cancelled_and_its_late_answer_is_dropped() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--request-timeout", "400ms", "--stream-timeout", "400ms"])
        .stub(&[])
        .start()
        .await?;
    let (client, other) = (rialto.session().await?, rialto.session().await?);
    let mut silent = JoinSet::new();
    begin(&mut silent, &client, "never", json!({"marker": "silent"}));
    begin(
        &mut silent,
        &client,
        "delay",
        json!({"ms": 700, "marker": "late", "stubborn": true}),
    );
    rialto.wait_for_execution("late").await;
    let quick = other.call(1, "delay", r#"{"ms":50,"marker":"quick"}"#).await?;
    assert_eq!(quick.text(), "quick");
    for reply in silent.join_all().await {
        expect_failure(&reply?, 504, "timeout")?;
    }
    let journal = rialto.journal();
    wait_until("the child is told", PATIENCE, || {
        journal.was_cancelled("silent").then_some(())
    })
    .await;
    // Three calls later the late answer has come; each still has its own, under the same id.
    for marker in ["one", "two", "three"] {
        let reply = client
            .call(1, "delay", json!({"ms": 200, "marker": marker}))
            .await?;
        assert_eq!(reply.text(), marker);
    }
    assert_eq!(journal.starts().len(), 1);
    Ok(())
}

#[tokio::test]
async fn b07_doubled_and_stray_answers_reach_no_session() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (client, other) = (rialto.session().await?, rialto.session().await?);
    let mut waiting = JoinSet::new();
    begin(
        &mut waiting,
        &other,
        "delay",
        json!({"ms": 500, "marker": "other"}),
    );
    rialto.wait_for_execution("other").await;
    for tool in ["twice", "unknown_id", "string_id"] {
        let reply = client.call(1, tool, json!({"marker": tool})).await?;
        assert_eq!(reply.text(), tool);
        client.expect_echo("next").await?;
    }
    for id in [
        "0",
        "-1",
        "null",
        "1.5",
        "\"\"",
        "18446744073709551616",
        "1e99",
        "[1]",
        "{}",
    ] {
        let reply = client
            .call(1, "unknown_id", format!(r#"{{"marker":"own","id":{id}}}"#))
            .await?;
        assert_eq!(reply.text(), "own", "{id}");
    }
    for reply in waiting.join_all().await {
        assert_eq!(reply?.text(), "other");
    }
    assert_eq!(rialto.journal().starts().len(), 1);
    Ok(())
}

#[tokio::test]
async fn b08_garbage_on_stdout_is_skipped_and_the_answer_arrives() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    for kind in [
        "text", "binary", "ansi", "array", "null", "empty", "crlf", "partial", "all",
    ] {
        let reply = client
            .call(1, "garbage", json!({"kind": kind, "marker": kind}))
            .await?;
        reply.expect_status(200)?;
        assert_eq!(reply.text(), kind);
    }
    assert_eq!(rialto.journal().starts().len(), 1);
    let stderr = rialto.stderr();
    assert!(
        stderr
            .iter()
            .all(|line| !line.contains('\x1b') && !line.contains('\0')),
        "{stderr:?}"
    );
    Ok(())
}

#[tokio::test]
async fn b09_a_long_answer_costs_its_own_caller_and_bounded_memory() -> Result<()> {
    // By default a message may have 16 MiB, and about twice that is held while a line is read.
    for (flags, room) in [
        (["--max-message-bytes", "1MiB"].as_slice(), 16 << 10),
        (&[], 64 << 10),
    ] {
        expect_bounded_answers(Rialto::launcher().args(flags).stub(&[]).start().await?, room).await?;
    }
    Ok(())
}

async fn expect_bounded_answers(rialto: Rialto, room: u64) -> Result<()> {
    let client = rialto.session().await?;
    let before = rialto.memory().peak;
    for tool in ["big", "big_id_last"] {
        let reply = client.call(1, tool, r#"{"bytes":33554432}"#).await?;
        expect_failure(&reply, 502, "response_too_large")?;
        assert!(reply.body_text().contains("max_message_bytes"), "{reply:?}");
        client.expect_echo("goes on").await?;
    }
    assert!(
        rialto.memory().peak < before + room,
        "{before} → {:?}",
        rialto.memory()
    );
    assert_eq!(rialto.journal().starts().len(), 1, "the child was not replaced");
    Ok(())
}

/// No time limit of a call passes in these: the request timeout is an hour.
#[tokio::test]
async fn b09_a_line_that_can_name_no_call_fails_all_calls_and_the_child_is_replaced() -> Result<()> {
    for line in [
        json!({"text": true, "forever": true}),
        json!({"forever": true}),
        json!({"text": true, "megabytes": 2}),
    ] {
        let rialto = Rialto::launcher()
            .args(&[
                "--request-timeout",
                "1h",
                "--stream-timeout",
                "1h",
                "--max-message-bytes",
                "1MiB",
            ])
            .stub(&[])
            .start()
            .await?;
        let (client, neighbour) = (rialto.session().await?, rialto.session().await?);
        let before = rialto.memory().peak;
        let mut waiting = JoinSet::new();
        begin(&mut waiting, &neighbour, "never", json!({"marker": "waits"}));
        rialto.wait_for_execution("waits").await;
        let reply = client.call(1, "endless", line.clone()).await?;
        expect_failure(&reply, 503, "upstream_exited")?;
        let detail = reply.answer()["error"]["data"]["detail"].to_string();
        assert!(detail.contains("a line"), "{line}: {detail}");
        for reply in waiting.join_all().await {
            expect_failure(&reply?, 503, "upstream_exited")?;
        }
        client.expect_echo("a new child").await?;
        neighbour.expect_echo("for all").await?;
        assert_eq!(rialto.journal().starts().len(), 2, "{line}");
        assert!(
            rialto.memory().peak < before + (16 << 10),
            "{line}: {before} → {:?}",
            rialto.memory()
        );
    }
    Ok(())
}

#[tokio::test]
async fn b10_many_large_answers_are_delivered_within_a_budget() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let before = rialto.memory().peak;
    let mut calls = JoinSet::new();
    for _ in 0..60 {
        begin(&mut calls, &client, "big", json!({"bytes": 1_000_000}));
    }
    for reply in calls.join_all().await {
        assert_eq!(reply?.text().len(), 1_000_000);
    }
    assert!(
        rialto.memory().peak < before + BOUNDED,
        "{before} → {:?}",
        rialto.memory()
    );
    Ok(())
}

#[tokio::test]
async fn b11_floods_of_unread_notifications_are_bounded() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--request-timeout", "60s", "--stream-timeout", "60s"])
        .stub(&[])
        .start()
        .await?;
    let (flooded, neighbour) = (rialto.session().await?, rialto.session().await?);
    let before = rialto.memory().peak;
    // The log lines of a call go into its answer, which is never read. No other session may have a
    // call in flight meanwhile, or the lines would belong to none; the stub answers in order, so
    // that the echo comes after all of them.
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"flood","arguments":{"n":30000,"bytes":2500,"marker":"flood"}}}"#;
    let mut unread = rialto.raw().await?;
    unread
        .write(raw_http::post("/mcp", flooded.session().as_deref(), body))
        .await?;
    rialto.wait_for_execution("flood").await;
    flooded.expect_echo("behind the flood").await?;
    neighbour.expect_echo("goes on").await?;
    let after_logs = rialto.memory().peak;
    assert!(after_logs < before + BOUNDED, "{before} → {after_logs}");

    // Notifications for all sessions wait for streams that are open and never read.
    let _listeners = (flooded.get(None).await?, neighbour.get(None).await?);
    let marker = "n".repeat(2500);
    let reply = flooded
        .call(2, "notify", json!({"n": 30_000, "marker": marker}))
        .await?;
    assert_eq!(reply.text(), marker);
    neighbour.expect_echo("goes on again").await?;
    let after_notices = rialto.memory().peak;
    assert!(after_notices < before + BOUNDED, "{after_logs} → {after_notices}");

    // A client that reads at last finds an end, not silence.
    let said = String::from_utf8_lossy(&unread.read_response().await?.body).into_owned();
    assert!(said.contains("\"id\":1,"), "no answer in {} bytes", said.len());
    Ok(())
}

#[tokio::test]
async fn b12_a_flood_on_stderr_is_drained_and_does_not_fill_our_log() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let before = rialto.memory().peak;
    for newline in [true, false] {
        let arguments = json!({"bytes": 50_000_000, "newline": newline, "marker": "drained"});
        let reply = client.call(1, "flood_stderr", arguments).await?;
        assert_eq!(reply.text(), "drained");
    }
    assert!(
        rialto.memory().peak < before + BOUNDED,
        "{before} → {:?}",
        rialto.memory()
    );
    let logged: usize = rialto.stderr().iter().map(String::len).sum();
    assert!(logged < 4 << 20, "{logged} bytes were logged");
    // The last of it is in the error of later calls.
    let reply = client.call(1, "exit", r#"{"code":1}"#).await?;
    let stderr = reply.answer()["error"]["data"]["stderr"].to_string();
    assert!(
        stderr.contains("eeee") && stderr.len() < 80 << 10,
        "{} bytes",
        stderr.len()
    );
    Ok(())
}

#[tokio::test]
async fn b13_a_child_that_stops_reading_fills_a_bounded_queue() -> Result<()> {
    let rialto = Rialto::with_config(
        "request_timeout: 3s\nstream_timeout: 3s\nmax_message_bytes: 1MiB\ndestinations:\n  deaf:\n    command: '{stub} --journal {dir}/journal'\n  fine:\n    command: '{stub}'\n",
    )
    .await?;
    let (deaf, fine) = (rialto.session_of("deaf").await?, rialto.session_of("fine").await?);
    assert_eq!(
        deaf.call(1, "stop_reading", r#"{"marker":"deaf"}"#).await?.text(),
        "deaf"
    );
    let before = rialto.memory().peak;
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        begin(&mut calls, &deaf, "echo", json!({"marker": "x".repeat(600_000)}));
    }
    let mut statuses = Vec::new();
    while let Some(reply) = calls.join_next().await {
        let reply = reply.expect("a call does not panic")?;
        assert!(matches!(reply.outcome_status(), 503 | 504), "{reply:?}");
        statuses.push(reply.outcome_status());
        fine.expect_echo("responsive").await?;
    }
    assert!(
        statuses.iter().filter(|status| **status == 503).count() >= 80,
        "{statuses:?}"
    );
    assert!(
        rialto.memory().peak < before + BOUNDED + (32 << 10),
        "{before} → {:?}",
        rialto.memory()
    );
    Ok(())
}

#[tokio::test]
async fn b15_a_child_that_closes_stdin_is_replaced() -> Result<()> {
    is_replaced_after("close_stdin").await
}

/// The neighbour of B15: nothing can be read from this one any more.
#[tokio::test]
async fn b15_a_child_that_closes_stdout_is_replaced() -> Result<()> {
    is_replaced_after("close_stdout").await
}

async fn is_replaced_after(closing: &str) -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let old = process_of(&client.call(1, "pid", "{}").await?);
    let closed = client.call(1, closing, r#"{"marker":"closed"}"#).await?;
    assert_eq!(closed.text(), "closed");
    let reply = client.call(1, "echo", r#"{"marker":"first"}"#).await?;
    assert!(matches!(reply.outcome_status(), 200 | 503), "{reply:?}");
    client.expect_echo("second").await?;
    assert_eq!(rialto.journal().starts().len(), 2);
    wait_until_gone(&old, PATIENCE).await;
    Ok(())
}

#[tokio::test]
async fn b17_a_child_that_ignores_sigterm_is_killed_on_delete_and_on_idle_end() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--process", "per_session"])
        .env("RIALTO_SESSION_IDLE", "500ms")
        .stub(&["--ignore-term"])
        .start()
        .await?;
    let (ended, idle) = (rialto.session().await?, rialto.session().await?);
    let first = process_of(&ended.call(1, "pid", "{}").await?);
    let second = process_of(&idle.call(1, "pid", "{}").await?);
    assert_ne!(first.pid, second.pid);
    ended.delete().await?.expect_status(204)?;
    wait_until_gone(&first, PATIENCE).await;
    wait_until_gone(&second, PATIENCE).await;
    idle.request(1, "tools/list", "{}").await?.expect_status(404)?;
    wait_until("every ended child was reaped", PATIENCE, || {
        rialto.zombies().is_empty().then_some(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn b18_a_stopped_child_times_out_and_can_still_be_killed() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&[
            "--process",
            "per_session",
            "--request-timeout",
            "300ms",
            "--stream-timeout",
            "300ms",
        ])
        .stub(&[])
        .start()
        .await?;
    let (client, other) = (rialto.session().await?, rialto.session().await?);
    let stopped = process_of(&client.call(1, "pid", "{}").await?);
    let reply = client
        .call(1, "signal_self", r#"{"sig":"STOP","marker":"stopped"}"#)
        .await?;
    expect_failure(&reply, 504, "timeout")?;
    other.expect_echo("unaffected").await?;
    client.delete().await?.expect_status(204)?;
    wait_until_gone(&stopped, PATIENCE).await;
    rialto.session().await?.expect_echo("a new child").await?;
    Ok(())
}

#[tokio::test]
async fn b18_a_stopped_shared_child_is_replaced() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--request-timeout", "300ms", "--stream-timeout", "300ms"])
        .stub(&[])
        .start()
        .await?;
    let (client, other) = (rialto.session().await?, rialto.session().await?);
    let stopped = process_of(&client.call(1, "pid", "{}").await?);
    let reply = client
        .call(1, "signal_self", r#"{"sig":"STOP","marker":"stopped"}"#)
        .await?;
    expect_failure(&reply, 504, "timeout")?;
    // It answers no ping either. No call is needed, and no session is lost.
    wait_until_gone(&stopped, PATIENCE).await;
    wait_for_starts(&rialto.journal(), 2).await;
    client.expect_echo("a new child").await?;
    other.expect_echo("for all").await?;
    assert_eq!(rialto.journal().executions("stopped"), 1);
    let is_it = |log: &Value| {
        log["pid"] == stopped.pid
            && log["message"]
                .as_str()
                .is_some_and(|text| text.contains("replaced"))
    };
    let log = rialto.wait_for_log("a log line says why", PATIENCE, is_it).await;
    assert!(log.to_string().contains("ping"), "{log}");
    Ok(())
}

#[tokio::test]
async fn b19_half_a_line_is_never_joined_with_the_next_childs_output() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    for round in 1..=2 {
        let reply = client
            .call(1, "exit_half", json!({"marker": "half", "code": 0}))
            .await?;
        expect_failure(&reply, 503, "upstream_exited")?;
        client.expect_echo("whole").await?;
        assert_eq!(rialto.journal().starts().len(), round + 1);
    }
    Ok(())
}

#[tokio::test]
async fn b20_answer_with_an_id_from_before_the_restart_reaches_no_session() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (client, other) = (rialto.session().await?, rialto.session().await?);
    let mut before = JoinSet::new();
    begin(&mut before, &other, "never", json!({"marker": "before"}));
    let old_id = rialto.wait_for_execution("before").await["id"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    expect_failure(&client.call(1, "exit", "{}").await?, 503, "upstream_exited")?;
    before.join_all().await;

    let mut after = JoinSet::new();
    begin(&mut after, &other, "delay", json!({"ms": 400, "marker": "after"}));
    rialto.wait_for_execution("after").await;
    let reply = client
        .call(1, "unknown_id", format!(r#"{{"marker":"own","id":{old_id}}}"#))
        .await?;
    assert_eq!(reply.text(), "own");
    for reply in after.join_all().await {
        assert_eq!(reply?.text(), "after");
    }
    Ok(())
}

#[tokio::test]
async fn b21_a_question_reaches_only_the_session_whose_call_caused_it() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let everything = json!({"elicitation": {}, "sampling": {}, "roots": {"listChanged": true}});
    let (asked, other) = (rialto.client().await?, rialto.client().await?);
    asked.handshake("2025-11-25", everything.clone()).await?;
    other.handshake("2025-11-25", everything).await?;
    let mut others_stream = other.get_stream(None).await?;
    for (tool, method) in [
        ("ask_elicit", "elicitation/create"),
        ("ask_sample", "sampling/createMessage"),
        ("ask_roots", "roots/list"),
    ] {
        let params = json!({"name": tool, "arguments": {"marker": tool}});
        let mut stream = asked.open(1, "tools/call", params).await?.events();
        let question = stream.message().await?;
        assert_eq!(question["method"], method);
        asked
            .respond(&question["id"], json!({"mine": tool}))
            .await?
            .expect_status(202)?;
        let answer = stream.message().await?;
        let text = answer["result"]["content"][0]["text"]
            .as_str()
            .unwrap_or_default();
        assert!(text.contains(tool) && text.contains("mine"), "{answer}");
    }
    // Outside any call it belongs to no session, and is refused with a reason.
    assert_eq!(
        asked.call(1, "ask_after", r#"{"marker":"stray"}"#).await?.text(),
        "stray"
    );
    let journal = rialto.journal();
    let refusal = wait_until("the question is refused", PATIENCE, || {
        journal
            .events("answered")
            .into_iter()
            .find(|entry| entry["marker"] == "stray")
    });
    let refusal = refusal.await["line"].as_str().unwrap_or_default().to_owned();
    assert!(
        refusal.contains("\"error\"") && refusal.contains("per_session"),
        "{refusal}"
    );

    // The other session receives only the next notification.
    asked
        .call(
            1,
            "notify",
            r#"{"method":"notifications/prompts/list_changed","marker":"end"}"#,
        )
        .await?
        .expect_status(200)?;
    assert_eq!(
        others_stream.message().await?["method"],
        "notifications/prompts/list_changed"
    );
    Ok(())
}

/// A question to a client without the capability is refused, and the client receives nothing.
#[tokio::test]
async fn b21_a_question_to_a_client_that_cannot_answer_is_refused() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    for tool in ["ask_elicit", "ask_sample", "ask_roots"] {
        let reply = client.call(1, tool, json!({"marker": tool})).await?;
        reply.expect_status(200)?;
        assert!(
            reply.text().contains("error") && reply.text().contains("-32601"),
            "{reply:?}"
        );
        assert!(
            reply.messages().iter().all(|message| message["method"].is_null()),
            "{reply:?}"
        );
    }
    let reply = client.call(1, "ask_ping", r#"{"marker":"ping"}"#).await?;
    assert!(reply.text().contains("result"), "{reply:?}");
    Ok(())
}

#[tokio::test]
async fn b22_changed_tools_are_announced_to_each_session_once_and_in_order() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (one, two) = (rialto.session().await?, rialto.session().await?);
    let (mut heard_one, mut heard_two) = (one.get_stream(None).await?, two.get_stream(None).await?);
    assert_eq!(one.call(1, "change_tools", "{}").await?.text(), "added");
    let end = r#"{"method":"notifications/prompts/list_changed","marker":"end"}"#;
    one.call(1, "notify", end).await?.expect_status(200)?;
    for stream in [&mut heard_one, &mut heard_two] {
        assert_eq!(
            stream.message().await?["method"],
            "notifications/tools/list_changed"
        );
        assert_eq!(
            stream.message().await?["method"],
            "notifications/prompts/list_changed"
        );
    }
    let names = |reply: &Reply| reply.answer()["result"]["tools"].to_string();
    assert!(names(&two.request(1, "tools/list", "{}").await?).contains("\"extra\""));

    // After a restart the list is another one, and every session receives a list change.
    expect_failure(&one.call(1, "exit", "{}").await?, 503, "upstream_exited")?;
    for stream in [&mut heard_one, &mut heard_two] {
        assert_eq!(
            stream.message().await?["method"],
            "notifications/tools/list_changed"
        );
    }
    assert!(!names(&two.request(1, "tools/list", "{}").await?).contains("\"extra\""));
    Ok(())
}

#[tokio::test]
async fn b23_huge_and_deep_results_are_bounded() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&[
            "--request-timeout",
            "2s",
            "--stream-timeout",
            "2s",
            "--max-message-bytes",
            "1MiB",
        ])
        .stub(&[])
        .start()
        .await?;
    let client = rialto.session().await?;
    let before = rialto.memory().peak;
    let reply = client.call(1, "big", r#"{"bytes":67108864}"#).await?;
    expect_failure(&reply, 502, "response_too_large")?;
    for levels in [1_000, 100_000, 400_000] {
        let reply = client.call(1, "deep", json!({"levels": levels})).await?;
        // A result that is too deep is no message, but whose answer it was can still be seen.
        expect_failure(&reply, 502, "invalid_response")?;
        client.expect_echo("goes on").await?;
    }
    assert!(
        rialto.memory().peak < before + (16 << 10),
        "{before} → {:?}",
        rialto.memory()
    );
    assert_eq!(rialto.journal().starts().len(), 1);
    Ok(())
}

#[tokio::test]
async fn b24_a_child_inherits_three_files_and_no_secret() -> Result<()> {
    let launcher = Rialto::launcher()
        .env("AWS_SECRET_ACCESS_KEY", "s3cret-of-ours")
        .env("RIALTO_DRAIN", "1s")
        .env("FOR_THE_CHILD", "configured");
    let file = "destinations:
  d:
    command: '{stub} --journal {dir}/journal'
    env: { FOR_THE_CHILD: '${FOR_THE_CHILD}', ALSO: given }
    process: per_session
";
    let rialto = launcher.config(file).start().await?;
    // Other children and connections exist while this one is started.
    let (first, second) = (rialto.session_of("d").await?, rialto.session_of("d").await?);
    first.expect_echo("first").await?;
    let files: Value = serde_json::from_str(&second.call(1, "fds", "{}").await?.text())?;
    let numbers: Vec<&str> = files
        .as_object()
        .map(|files| files.keys().map(String::as_str).collect())
        .unwrap_or_default();
    assert_eq!(numbers, ["0", "1", "2"], "{files}");
    let variables: Value = serde_json::from_str(&second.call(1, "env", "{}").await?.text())?;
    assert_eq!(
        (&variables["FOR_THE_CHILD"], &variables["ALSO"]),
        (&json!("configured"), &json!("given"))
    );
    assert!(!variables.to_string().contains("s3cret-of-ours"), "{variables}");
    let ours = variables
        .as_object()
        .is_some_and(|all| all.keys().any(|name| name.starts_with("RIALTO_")));
    assert!(!ours, "{variables}");
    Ok(())
}

#[tokio::test]
async fn b24_a_command_inherits_the_shell_it_was_typed_in_but_nothing_that_configures_rialto() -> Result<()> {
    let rialto = Rialto::launcher()
        .env("BRAVE_API_KEY", "of-the-shell")
        .env("BEARER_TOKEN", "of-the-shell-too")
        .env("RIALTO_DRAIN", "1s")
        .args(&["--env", "ALSO=given"])
        .stub(&[])
        .start()
        .await?;
    let client = rialto.session().await?;
    let variables: Value = serde_json::from_str(&client.call(1, "env", "{}").await?.text())?;
    assert_eq!(variables["BRAVE_API_KEY"], "of-the-shell", "{variables}");
    assert_eq!(variables["BEARER_TOKEN"], "of-the-shell-too", "{variables}");
    assert_eq!(variables["ALSO"], "given", "{variables}");
    let ours = variables
        .as_object()
        .is_some_and(|all| all.keys().any(|name| name.starts_with("RIALTO_")));
    assert!(!ours, "{variables}");
    Ok(())
}
