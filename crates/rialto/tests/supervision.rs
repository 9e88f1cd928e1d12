//! What was asked of the children: how they start, restart and end.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::processes::{Process, send_signal};
use testkit::{LEGACY, McpClient, PATIENCE, Result, Rialto, marked, poll_until, wait_until};

async fn session(rialto: &Rialto, destination: &str) -> Result<McpClient> {
    let client = rialto.client_of(destination).await?;
    client.handshake(LEGACY, json!({})).await?;
    Ok(client)
}

/// The pid of the n-th start, once there was one.
async fn start(rialto: &Rialto, number: usize) -> u32 {
    let journal = rialto.journal();
    wait_until(&format!("start {number}"), PATIENCE, || {
        journal.starts().get(number - 1).copied()
    })
    .await
}

async fn wait_for_end(pid: u32) {
    wait_until("the child has gone", PATIENCE, || {
        Process::read(pid)
            .is_none_or(|process| process.is_zombie())
            .then_some(())
    })
    .await;
}

/// Waits for a log line about this child whose text contains `word`.
async fn wait_for_event(rialto: &Rialto, destination: &str, word: &str) -> Value {
    let what = format!("a log line says `{word}`");
    let is_it = |log: &Value| {
        let names_it = log["destination"] == destination || log["backend"] == destination;
        names_it && log["message"].as_str().is_some_and(|text| text.contains(word))
    };
    rialto.wait_for_log(&what, PATIENCE, is_it).await
}

// Start.

/// The stub server with these flags, named `d`.
async fn serving_d(flags: &[&str]) -> Result<Rialto> {
    Rialto::launcher()
        .args(&["--name", "d"])
        .stub(flags)
        .start()
        .await
}

#[tokio::test]
async fn eager_child_is_started_before_the_first_client() -> Result<()> {
    let yaml = "destinations:\n  d: { command: '{stub} --journal {dir}/journal' }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let pid = start(&rialto, 1).await;
    wait_until("the child was introduced to", PATIENCE, || {
        (rialto.journal().received("initialize").len() == 1).then_some(())
    })
    .await;
    let client = session(&rialto, "d").await?;
    assert_eq!(client.call(1, "pid", "{}").await?.text(), pid.to_string());
    Ok(())
}

#[tokio::test]
async fn a_lazy_child_is_started_by_the_first_client() -> Result<()> {
    let yaml = "destinations:\n  d: { command: '{stub} --journal {dir}/journal', start: lazy }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let client = rialto.client_of("d").await?;
    client.send("GET", "/ready", &[], "").await?.reply().await?;
    assert!(rialto.journal().starts().is_empty());
    client.handshake(LEGACY, json!({})).await?;
    assert_eq!(rialto.journal().starts().len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_client_waits_for_a_child_that_starts_slowly() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--name", "d"])
        .stub(&["--slow-start", "1500"])
        .start()
        .await?;
    let (one, other) = (rialto.client_of("d").await?, rialto.client_of("d").await?);
    let (first, second) = tokio::join!(
        one.call(1, "echo", marked("first")),
        other.call(1, "echo", marked("second")),
    );
    assert_eq!(
        (first?.text().as_str(), second?.text().as_str()),
        ("first", "second")
    );
    assert_eq!(rialto.journal().received("initialize").len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_child_that_is_not_ready_by_its_start_timeout_gets_its_callers_504() -> Result<()> {
    let yaml = "destinations:\n  d: { command: '{stub} --journal {dir}/journal --slow-start 60000', start_timeout: 500ms }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let reply = rialto.client_of("d").await?.call(1, "echo", marked("x")).await?;
    reply.expect_failed(504)?;
    assert!(
        reply.body_text().contains("start_timeout"),
        "{}",
        reply.body_text()
    );
    Ok(())
}

#[tokio::test]
async fn child_that_does_not_answer_the_handshake_is_replaced() -> Result<()> {
    let yaml = "destinations:\n  d: { command: '{stub} --journal {dir}/journal --slow-start 60000 --healthy-after 1', start_timeout: 500ms }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let hung = start(&rialto, 1).await;
    let reply = rialto.client_of("d").await?.call(1, "echo", marked("x")).await?;
    reply.expect_failed(504)?;
    let log = wait_for_event(&rialto, "d", "replaced").await;
    assert!(log.to_string().contains("handshake"), "{log}");
    wait_for_end(hung).await;
    let next = start(&rialto, 2).await;
    let client = session(&rialto, "d").await?;
    assert_eq!(client.call(1, "pid", "{}").await?.text(), next.to_string());
    Ok(())
}

#[tokio::test]
async fn a_missing_command_stops_serve_with_code_4_naming_destination_and_command() -> Result<()> {
    let launcher = Rialto::launcher().args(&["--name", "lost", "--", "no-such-program-anywhere", "--flag"]);
    let ended = launcher.run(PATIENCE).await?;
    assert_eq!(ended.code(), Some(4), "{}", ended.stderr_text());
    let said = ended.stderr_text();
    assert!(
        said.contains("lost") && said.contains("no-such-program-anywhere"),
        "{said}"
    );
    Ok(())
}

#[tokio::test]
async fn a_command_that_is_not_executable_stops_serve_with_code_4_naming_it() -> Result<()> {
    let launcher = Rialto::launcher().args(&["--name", "stiff", "--", "{dir}/script"]);
    let script = launcher.dir().join("script");
    std::fs::write(&script, "#!/bin/sh\n")?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o644))?;
    let ended = launcher.run(PATIENCE).await?;
    assert_eq!(ended.code(), Some(4), "{}", ended.stderr_text());
    let said = ended.stderr_text();
    assert!(
        said.contains("stiff") && said.contains(&*script.to_string_lossy()),
        "{said}"
    );
    Ok(())
}

const ONE_LOST: &str = "destinations:
  good: { command: '{stub} --journal {dir}/journal' }
  lost: { command: no-such-program-anywhere }
";

#[tokio::test]
async fn one_missing_command_of_several_stops_serve_and_leaves_no_child() -> Result<()> {
    let ended = Rialto::launcher().config(ONE_LOST).run(PATIENCE).await?;
    assert_eq!(ended.code(), Some(4), "{}", ended.stderr_text());
    let said = ended.stderr_text();
    assert!(
        said.contains("lost") && said.contains("no-such-program-anywhere"),
        "{said}"
    );
    Ok(())
}

#[tokio::test]
async fn keep_going_serves_the_others_and_shows_the_one_that_failed() -> Result<()> {
    let rialto = Rialto::launcher()
        .config(ONE_LOST)
        .args(&["--keep-going"])
        .start()
        .await?;
    let client = session(&rialto, "good").await?;
    client.call(1, "echo", marked("x")).await?.expect_status(200)?;
    let reply = rialto
        .client_of("lost")
        .await?
        .call(2, "echo", marked("x"))
        .await?;
    reply.expect_status(503)?;
    let ready = client.send("GET", "/ready", &[], "").await?.reply().await?;
    let ready = ready.expect_status(200)?.body_text();
    // What was looked for and where is in the log; clients learn nothing about this machine.
    wait_for_event(&rialto, "lost", "cannot start").await;
    for body in [reply.body_text(), ready.clone()] {
        assert!(body.contains("its command cannot be run"), "{body}");
        for secret in ["no-such-program-anywhere", "PATH", "/bin"] {
            assert!(!body.contains(secret), "{secret} in {body}");
        }
    }
    let ready: Value = serde_json::from_str(&ready)?;
    let state = |name: &str| ready["destinations"][name]["state"].clone();
    assert_eq!(
        (state("good"), state("lost")),
        (json!("ready"), json!("failed")),
        "{ready}"
    );
    Ok(())
}

#[tokio::test]
async fn keep_going_with_nothing_left_stops_with_code_4() -> Result<()> {
    let yaml = "destinations:\n  lost: { command: no-such-program-anywhere }\n";
    let ended = Rialto::launcher()
        .config(yaml)
        .args(&["--keep-going"])
        .run(PATIENCE)
        .await?;
    assert_eq!(ended.code(), Some(4), "{}", ended.stderr_text());
    Ok(())
}

// Environment.

#[tokio::test]
async fn a_child_gets_the_configured_environment_and_none_of_rialtos_secrets() -> Result<()> {
    let yaml = "secrets_file: secrets.yml
destinations:
  d: { command: '{stub}', env: { PLAIN: one, KEY: '${secret:key}', GIVEN: '${FROM_OUTSIDE}', ELSE: '${UNSET:-two}' } }
";
    let launcher = Rialto::launcher()
        .config(yaml)
        .env("FROM_OUTSIDE", "three")
        .env("RIALTO_UNRELATED_TOKEN", "hidden");
    std::fs::write(launcher.dir().join("secrets.yml"), "key: s3cr3t\n")?;
    let rialto = launcher.start().await?;
    let client = session(&rialto, "d").await?;
    let all = client.call(1, "env", "{}").await?.text();
    let all: Value = serde_json::from_str(&all)?;
    for (name, value) in [
        ("PLAIN", "one"),
        ("KEY", "s3cr3t"),
        ("GIVEN", "three"),
        ("ELSE", "two"),
    ] {
        assert_eq!(all[name], value, "{name}");
    }
    assert!(
        all.get("PATH").is_some() && !all.to_string().contains("hidden"),
        "{all}"
    );
    assert!(
        all.get("FROM_OUTSIDE").is_none(),
        "only what is configured or on the allow-list: {all}"
    );
    assert!(
        !rialto.stderr().join("\n").contains("s3cr3t"),
        "no secret is ever written"
    );
    Ok(())
}

#[tokio::test]
async fn a_child_runs_in_its_own_directory_and_inherits_no_open_files() -> Result<()> {
    let launcher =
        Rialto::launcher().config("destinations:\n  d: { command: '{stub}', cwd: '{dir}/home' }\n");
    std::fs::create_dir(launcher.dir().join("home"))?;
    let rialto = launcher.start().await?;
    let client = session(&rialto, "d").await?;
    let files: Value = serde_json::from_str(&client.call(1, "fds", "{}").await?.text())?;
    let numbers: Vec<&String> = files.as_object().expect("an object").keys().collect();
    assert_eq!(numbers, ["0", "1", "2"], "{files}");
    let pid = client.call(2, "pid", "{}").await?.text();
    let cwd = std::fs::read_link(format!("/proc/{pid}/cwd"))?;
    assert_eq!(cwd, rialto.dir().join("home").canonicalize()?);
    Ok(())
}

// Crash and restart.

#[tokio::test]
async fn a_crashed_child_is_restarted_three_times_with_growing_pauses_and_then_given_up() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--name", "d"])
        .stub(&["--exit-at-once", "7"])
        .start()
        .await?;
    start(&rialto, 1).await;
    let began = Instant::now();
    start(&rialto, 4).await;
    let took = began.elapsed();
    assert!(
        took >= Duration::from_millis(3_300),
        "0.5 s, 1 s and 2 s lie between the starts, not {took:?}"
    );

    let client = rialto.client_of("d").await?.accepting("application/json");
    let reply = client.call(1, "echo", marked("x")).await?;
    reply.expect_status(503)?;
    assert!(reply.header("retry-after").is_some(), "{reply:?}");
    assert!(
        reply.answer()["error"]["data"]
            .to_string()
            .contains("exit status 7"),
        "{}",
        reply.body_text()
    );
    assert_eq!(rialto.journal().starts().len(), 4);
    let given_up = rialto
        .wait_for_log("an error is logged", PATIENCE, |log| log["level"] == "ERROR")
        .await;
    assert_eq!(given_up["destination"], "d", "{given_up}");
    Ok(())
}

#[tokio::test]
async fn child_that_recovers_within_three_restarts_serves_waiting_calls() -> Result<()> {
    let flags = ["--exit-at-once", "1", "--healthy-after", "2"];
    let rialto = serving_d(&flags).await?;
    let reply = rialto
        .client_of("d")
        .await?
        .call(1, "echo", marked("patient"))
        .await?;
    assert_eq!(reply.expect_status(200)?.text(), "patient");
    assert_eq!(rialto.journal().starts().len(), 3);
    Ok(())
}

#[tokio::test]
async fn a_child_killed_while_idle_is_restarted_and_the_session_stays_valid() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--name", "d"])
        .stub(&["--strict"])
        .start()
        .await?;
    let client = session(&rialto, "d").await?;
    send_signal(start(&rialto, 1).await, Signal::KILL);
    let second = start(&rialto, 2).await;
    assert_eq!(
        client.call(1, "pid", "{}").await?.expect_status(200)?.text(),
        second.to_string()
    );
    Ok(())
}

#[tokio::test]
async fn trouble_at_one_destination_does_not_touch_another() -> Result<()> {
    let yaml =
        "destinations:\n  sick: { command: '{stub} --exit-at-once 1' }\n  well: { command: '{stub}' }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let client = session(&rialto, "well").await?;
    let sick = rialto.client_of("sick").await?;
    let (refused, counted) = tokio::join!(sick.call(1, "echo", marked("x")), async {
        let mut last = String::new();
        for _ in 0..50 {
            last = client.call(1, "counter", "{}").await?.text();
        }
        Result::Ok(last)
    });
    refused?.expect_failed(503)?;
    assert_eq!(counted?, "50");
    Ok(())
}

#[tokio::test]
async fn start_crash_restart_and_stop_are_structured_log_lines() -> Result<()> {
    let rialto = serving_d(&[]).await?;
    let first = start(&rialto, 1).await;
    let started = wait_for_event(&rialto, "d", "started").await;
    assert_eq!(started["pid"], first);
    send_signal(first, Signal::KILL);
    let crashed = wait_for_event(&rialto, "d", "server exited").await;
    assert_eq!(
        (&crashed["pid"], &crashed["level"]),
        (&json!(first), &json!("WARN")),
        "{crashed}"
    );
    wait_for_event(&rialto, "d", "restart").await;
    let second = start(&rialto, 2).await;
    rialto
        .wait_for_log("the second start", PATIENCE, |log| {
            log["pid"] == second
                && log["message"]
                    .as_str()
                    .is_some_and(|text| text.contains("started"))
        })
        .await;
    rialto.sigterm();
    rialto.wait(PATIENCE).await;
    let stopped = wait_for_event(&rialto, "d", "stopped").await;
    assert_eq!(stopped["pid"], second);
    Ok(())
}

#[tokio::test]
async fn the_end_of_a_child_is_explained_by_status_or_signal_last_words_and_restarts() -> Result<()> {
    let rialto = serving_d(&[]).await?;
    let client = session(&rialto, "d").await?;
    client
        .call(1, "flood_stderr", json!({"bytes": 2000}))
        .await?
        .expect_status(200)?;
    let reply = client.call(2, "signal_self", json!({"sig": "SEGV"})).await?;
    let data = reply.expect_failed(503)?.answer()["error"]["data"].clone();
    let text = data.to_string();
    assert!(text.contains("SIGSEGV") && text.contains("eeeeeeee"), "{text}");
    assert_eq!(data["restarts"], 0, "{text}");
    let reply = client.call(3, "exit", json!({"code": 42})).await?;
    let data = reply.expect_failed(503)?.answer()["error"]["data"].clone();
    assert!(data.to_string().contains("42") && data["restarts"] == 1, "{data}");
    Ok(())
}

// Standard error.

#[tokio::test]
async fn stderr_of_a_child_is_logged_as_a_warning_and_never_sent_to_the_client() -> Result<()> {
    let rialto = serving_d(&[]).await?;
    let client = session(&rialto, "d").await?;
    let mut stream = client.get_stream(None).await?;
    let reply = client
        .call(1, "flood_stderr", json!({"bytes": 3000, "marker": "quiet"}))
        .await?;
    assert_eq!(
        reply.expect_status(200)?.answer()["result"]["content"],
        json!([{"type": "text", "text": "quiet"}])
    );
    let line = rialto
        .wait_for_log("stderr is logged", PATIENCE, |log| {
            log.to_string().contains("eeeeeeee")
        })
        .await;
    assert_eq!(
        (&line["level"], &line["destination"]),
        (&json!("WARN"), &json!("d"))
    );
    client
        .call(2, "notify", marked("fence"))
        .await?
        .expect_status(200)?;
    assert_eq!(
        stream.message().await?["params"]["_meta"]["marker"],
        "fence",
        "nothing came before it"
    );
    Ok(())
}

#[tokio::test]
async fn flood_on_stderr_delays_no_call() -> Result<()> {
    let rialto = serving_d(&[]).await?;
    let client = session(&rialto, "d").await?;
    for newline in [true, false] {
        let arguments = json!({"bytes": 8 << 20, "newline": newline, "marker": "through"});
        assert_eq!(client.call(1, "flood_stderr", arguments).await?.text(), "through");
    }
    Ok(())
}

// End.

#[tokio::test]
async fn shutdown_ends_a_stubborn_child_and_its_own_child_within_five_seconds() -> Result<()> {
    let flags = ["--ignore-term", "--grandchild", "{dir}/grandchild"];
    let rialto = serving_d(&flags).await?;
    let child = start(&rialto, 1).await;
    session(&rialto, "d")
        .await?
        .call(1, "echo", marked("x"))
        .await?
        .expect_status(200)?;
    let grandchild: u32 = std::fs::read_to_string(rialto.dir().join("grandchild"))?
        .parse()
        .expect("a pid");
    let began = Instant::now();
    rialto.sigterm();
    let status = rialto.wait(PATIENCE).await;
    let took = began.elapsed();
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_millis(6_500), "{took:?}");
    for pid in [child, grandchild] {
        // An orphan may stay a zombie where the first process of the machine does not wait for it.
        assert!(
            Process::read(pid).is_none_or(|process| process.is_zombie()),
            "{pid}"
        );
    }
    assert_eq!(
        rialto.journal().events("term").len(),
        1,
        "it was asked before it was killed"
    );
    Ok(())
}

#[tokio::test]
async fn shutdown_lets_a_call_in_flight_finish() -> Result<()> {
    let rialto = serving_d(&[]).await?;
    let client = session(&rialto, "d").await?;
    let (reply, ()) = tokio::join!(
        client.call(1, "delay", json!({"ms": 700, "marker": "last"})),
        async {
            wait_until("the call is in the child", PATIENCE, || {
                (rialto.journal().executions("last") == 1).then_some(())
            })
            .await;
            rialto.sigterm();
        }
    );
    assert_eq!(reply?.expect_status(200)?.text(), "last");
    assert!(rialto.wait(PATIENCE).await.success());
    Ok(())
}

#[tokio::test]
async fn a_quiet_child_is_never_killed_for_being_quiet() -> Result<()> {
    let yaml = "request_timeout: 100ms
stream_timeout: 100ms
session_idle: 300ms
destinations:
  quiet: { command: '{stub} --journal {dir}/journal', linger: 100ms }
  clock: { command: '{stub}', stream_timeout: 30s }
";
    let rialto = Rialto::with_config(yaml).await?;
    let pid = start(&rialto, 1).await;
    let client = session(&rialto, "quiet").await?;
    // Nor for a call that it never answers, as long as it answers a ping.
    client
        .call(1, "never", marked("never"))
        .await?
        .expect_failed(504)?;
    // The passing of time, made visible: another destination takes two seconds for an answer.
    let clock = session(&rialto, "clock").await?;
    assert_eq!(
        clock
            .call(1, "delay", json!({"ms": 2000, "marker": "now"}))
            .await?
            .text(),
        "now"
    );
    let again = session(&rialto, "quiet").await?;
    assert_eq!(again.call(1, "pid", "{}").await?.text(), pid.to_string());
    assert_eq!(rialto.journal().starts(), [pid]);
    Ok(())
}

#[tokio::test]
async fn a_lazy_shared_child_lingers_after_its_last_session_and_then_ends() -> Result<()> {
    let yaml =
        "destinations:\n  d: { command: '{stub} --journal {dir}/journal', start: lazy, linger: 300ms }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let client = session(&rialto, "d").await?;
    let first = start(&rialto, 1).await;
    client.delete().await?.expect_status(204)?;
    wait_for_end(first).await;
    let again = session(&rialto, "d").await?;
    assert_eq!(
        again.call(1, "pid", "{}").await?.text(),
        start(&rialto, 2).await.to_string()
    );
    Ok(())
}

#[tokio::test]
async fn idle_stop_ends_an_unused_child_and_the_next_call_of_the_session_starts_another() -> Result<()> {
    let yaml = "destinations:\n  d: { command: '{stub} --journal {dir}/journal', idle_stop: 1s }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let client = session(&rialto, "d").await?;
    // A call that takes longer than `idle_stop` uses its child all the time: it is answered.
    let delayed = client.call(1, "delay", json!({"ms": 2500, "marker": "slow"}));
    assert_eq!(delayed.await?.text(), "slow");
    let used = *rialto.journal().starts().last().expect("it was started");
    wait_for_end(used).await;
    // The child is gone a moment before Rialto has noted why.
    let rest = r#""server":"stopped after being idle (starts at next call)""#;
    poll_until("the state of an unused server", PATIENCE, async || {
        let ready = client.send("GET", "/ready", &[], "").await?.reply().await?;
        let text = ready.body_text();
        let is_idle = text.contains(rest) && text.contains(r#""state":"idle""#);
        Ok::<_, testkit::Failure>((is_idle && ready.status == 200).then_some(()))
    })
    .await?;
    let again = client.call(2, "pid", "{}").await?;
    let next = *rialto.journal().starts().last().expect("it was started again");
    assert_eq!(again.text(), next.to_string());
    assert_ne!(next, used);
    Ok(())
}

#[tokio::test]
async fn idle_stop_spares_a_child_that_a_client_is_subscribed_at() -> Result<()> {
    let yaml = "destinations:
  d: { command: '{stub} --journal {dir}/journal', idle_stop: 1s }
  clock: { command: '{stub}' }
";
    let rialto = Rialto::with_config(yaml).await?;
    let client = session(&rialto, "d").await?;
    let pid = start(&rialto, 1).await;
    let subscribed = client.request(1, "resources/subscribe", json!({"uri": "stub://a"}));
    subscribed.await?.expect_status(200)?;
    // The passing of time, made visible: another destination takes three seconds for an answer.
    let clock = session(&rialto, "clock").await?;
    let delayed = clock.call(1, "delay", json!({"ms": 3000, "marker": "now"}));
    assert_eq!(delayed.await?.text(), "now");
    assert_eq!(client.call(2, "pid", "{}").await?.text(), pid.to_string());
    Ok(())
}

#[tokio::test]
async fn lazy_child_is_shown_as_not_started_until_its_first_client_comes() -> Result<()> {
    let yaml = "destinations:\n  d: { command: '{stub} --journal {dir}/journal', start: lazy }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let client = rialto.client_of("d").await?;
    let ready = || async { client.send("GET", "/ready", &[], "").await?.reply().await };
    let before = ready().await?.body_text();
    let rest = r#""server":"not started (starts at first call)""#;
    assert!(before.contains(rest), "{before}");
    let used = session(&rialto, "d").await?;
    used.call(1, "pid", "{}").await?.expect_status(200)?;
    let after = ready().await?.body_text();
    assert!(!after.contains("not started"), "{after}");
    Ok(())
}

/// A26: what cannot be run is named in the log; clients do not receive paths of this machine.
#[tokio::test]
async fn clients_learn_no_path_from_a_command_that_cannot_be_run() -> Result<()> {
    let launcher =
        Rialto::launcher().config("destinations: { a: { command: '{dir}/server', start: lazy } }\n");
    let script = launcher.dir().join("server");
    std::fs::write(&script, "#!/no/such/interpreter\n")?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    let rialto = launcher.start().await?;
    let client = rialto.client_of("a").await?;
    let refused = client.initialize("2025-11-25", json!({})).await?;
    assert_eq!(refused.outcome_status(), 503, "{}", refused.body_text());
    let ready = client.send("GET", "/ready", &[], "").await?.reply().await?;
    let place = rialto.dir().display().to_string();
    for said in [refused.body_text(), ready.body_text()] {
        assert!(said.contains("cannot be run") && !said.contains(&place), "{said}");
    }
    let told = |line: &Value| line.to_string().contains("/server");
    rialto
        .wait_for_log("the log names the program", PATIENCE, told)
        .await;
    Ok(())
}

/// The main thread serves. Linux lists children by the thread that forked them.
#[tokio::test]
async fn a_child_is_not_forked_by_the_thread_that_serves() -> Result<()> {
    let yaml = "destinations:\n  d: { command: '{stub} --journal {dir}/journal', start: lazy }\n";
    let rialto = Rialto::with_config(yaml).await?;
    let children = |thread: &std::path::Path| -> Vec<u32> {
        let list = std::fs::read_to_string(thread.join("children")).unwrap_or_default();
        list.split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    };
    let tasks = std::path::PathBuf::from(format!("/proc/{}/task", rialto.pid()));
    let main = tasks.join(rialto.pid().to_string());
    let client = session(&rialto, "d").await?;
    let pid: u32 = client
        .call(1, "pid", "{}")
        .await?
        .text()
        .parse()
        .expect("a number");
    let parent = std::fs::read_dir(&tasks)?
        .flatten()
        .map(|thread| thread.path())
        .find(|thread| children(thread).contains(&pid));
    assert!(parent.is_some_and(|thread| thread != main), "{pid}");
    Ok(())
}
