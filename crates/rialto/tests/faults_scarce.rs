//! Scarce resources and a world that changes (rows E4, E5, E8 and E9): no processes, no memory,
//! another time of day, no resolver.

use rustix::process::Resource;
use serde_json::{Value, json};
use testkit::issuer::now;
use testkit::processes::{self, processor_ticks};
use testkit::{Issuer, McpClient, PATIENCE, Result, Rialto, Sandbox};
use tokio::task::JoinSet;

const DAY: i64 = 24 * 3600;

async fn expect_echo(client: &McpClient, marker: &str) -> Result<()> {
    let reply = client.call(1, "echo", json!({"marker": marker})).await?;
    reply.expect_status(200)?;
    assert_eq!(reply.text(), marker);
    Ok(())
}

/// The real limit of the kernel: `fork` fails with EAGAIN, for children as for threads.
#[tokio::test]
async fn e04_when_no_process_can_be_made_starts_are_refused_and_later_recover() -> Result<()> {
    let rialto = Rialto::launcher()
        .as_limited_user()
        .args(&["--process", "per_session", "--max-sessions", "20"])
        .stub(&[])
        .start()
        .await?;
    let first = rialto.session().await?;
    expect_echo(&first, "before").await?;
    let (children, starts) = (rialto.children().len(), rialto.journal().starts().len());
    rialto.limit_processes(Some(1))?;
    let ticks = processor_ticks(rialto.pid());
    for _ in 0..2 {
        let client = rialto.client().await?.accepting("application/json");
        let reply = client.initialize("2025-11-25", json!({})).await?;
        reply.expect_error(503, -32603)?;
        assert!(reply.header("retry-after").is_some(), "{reply:?}");
        assert!(
            reply.body_text().contains("temporarily unavailable"),
            "the reason is told: {reply:?}"
        );
        expect_echo(&first, "still there").await?;
    }
    assert!(
        processor_ticks(rialto.pid()) - ticks < 100,
        "between the tries there are pauses"
    );
    assert_eq!(rialto.children().len(), children, "no child is half made");
    assert_eq!(rialto.journal().starts().len(), starts);
    assert!(rialto.zombies().is_empty());

    rialto.limit_processes(None)?;
    expect_echo(&rialto.session().await?, "recovered").await?;
    expect_echo(&first, "all the time").await?;
    let stderr = rialto.stderr().join("\n");
    assert!(!stderr.contains("panic"), "{stderr}");
    Ok(())
}

/// A line without end, large answers and a server that does not read, all at once, under a limit of
/// the kernel that is far below what they are worth together: an allocation beyond it would be the
/// end of the process.
#[tokio::test]
async fn e05_under_a_memory_limit_floods_from_every_side_do_not_end_rialto() -> Result<()> {
    const ALLOWED: u64 = 96 << 20;
    let rialto = Rialto::with_config(
        "request_timeout: 5s\nstream_timeout: 5s\ndestinations:\n  talks: { command: '{stub}' }\n  endless: { command: '{stub}' }\n  deaf: { command: '{stub}' }\n  fine: { command: '{stub}' }\n",
    )
    .await?;
    let talks = rialto.session_of("talks").await?;
    let endless = rialto.session_of("endless").await?;
    let deaf = rialto.session_of("deaf").await?;
    let fine = rialto.session_of("fine").await?;
    for client in [&talks, &endless, &fine] {
        expect_echo(client, "warm").await?;
    }
    deaf.call(1, "stop_reading", "{}").await?.expect_status(200)?;
    let base = rialto.memory().data << 10;
    processes::limit(rialto.pid(), Resource::Data, Some(base + ALLOWED))?;

    // So many callers at once, each with so many calls one after another: half a gigabyte together.
    let mut callers: JoinSet<Result<Vec<u16>>> = JoinSet::new();
    let mut begin =
        |client: &McpClient, callers_of_it: usize, calls: usize, tool: &'static str, arguments: Value| {
            for _ in 0..callers_of_it {
                let (client, arguments) = (client.clone(), arguments.clone());
                callers.spawn(async move {
                    let mut statuses = Vec::new();
                    for _ in 0..calls {
                        statuses.push(client.call(1, tool, &arguments).await?.status);
                    }
                    Ok(statuses)
                });
            }
        };
    begin(
        &endless,
        3,
        1,
        "endless",
        json!({"megabytes": 100, "marker": "behind"}),
    );
    begin(&talks, 20, 10, "big", json!({"bytes": 1_000_000}));
    begin(&deaf, 30, 4, "echo", json!({"marker": "x".repeat(600_000)}));
    let mut answered = 0;
    while let Some(statuses) = callers.join_next().await {
        for status in statuses.expect("a caller does not panic")? {
            assert!(matches!(status, 200 | 503 | 504), "{status}");
            answered += usize::from(status == 200);
        }
    }
    assert!(answered >= 200, "{answered} were served");
    assert!(rialto.exit_status().is_none(), "{:?}", rialto.stderr());
    for client in [&talks, &fine] {
        expect_echo(client, "still here").await?;
    }
    Ok(())
}

/// The time of day of the process goes forth and back by a day, and by a second. Timers do not
/// notice, tokens are validated by it with a minute to spare, and the audit log keeps its order.
#[tokio::test]
async fn e08_when_the_clock_jumps_timers_run_on_and_only_tokens_notice() -> Result<()> {
    const AUDIENCE: &str = "https://mcp.example.com/a/mcp";
    let (sandbox, issuer) = (Sandbox::new()?, Issuer::start().await?);
    let config = format!(
        "public_url: https://mcp.example.com\nrequest_timeout: 4s\nstream_timeout: 4s\nsession_idle: 5m\naudit: {{ sink: '{{dir}}/audit.jsonl', chain: true }}\nauth:\n  jwt: {{ issuer: {} }}\ndestinations:\n  a: {{ command: '{{stub}} --journal {{dir}}/journal' }}\n",
        issuer.url()
    );
    let mut launcher = Rialto::launcher().config(&config);
    for (name, value) in sandbox.env() {
        launcher = launcher.env(name, &value);
    }
    let rialto = launcher.start().await?;
    let bearing = async |from: i64, to: i64| -> Result<McpClient> {
        let at = |offset: i64| now().saturating_add_signed(offset);
        let token = issuer.token("alice", AUDIENCE, json!({"nbf": at(from), "exp": at(to)}));
        let client = rialto.client_of("a").await?;
        Ok(client.with_header("authorization", &format!("Bearer {token}")))
    };
    let first = bearing(-DAY - 3600, DAY + 3600).await?;
    first.handshake("2025-11-25", json!({})).await?;
    let session = first.session();
    let mut stream = first.get_stream(None).await?;
    let in_session = async |from: i64, to: i64| -> Result<McpClient> {
        let client = bearing(from, to).await?;
        client.set_session(session.as_deref());
        client.set_version(Some("2025-11-25"));
        Ok(client)
    };
    for jump in [DAY, -DAY, -1, 0] {
        // Calls are in flight while it happens: one is answered in time, the other never.
        let calls = async {
            let (slow, silent) = tokio::join!(
                first.call(1, "delay", json!({"ms": 1000, "marker": format!("slow {jump}")})),
                first.call(2, "never", json!({"marker": format!("silent {jump}")}))
            );
            Result::Ok((slow?, silent?))
        };
        let jumping = async {
            rialto.wait_for_execution(&format!("slow {jump}")).await;
            rialto.wait_for_execution(&format!("silent {jump}")).await;
            sandbox.set_clock(jump)
        };
        let (called, jumped) = tokio::join!(calls, jumping);
        jumped?;
        let (slow, silent) = called?;
        assert_eq!(slow.text(), format!("slow {jump}"), "{slow:?}");
        silent.expect_failed(504)?;
        // By the clock as it is now, and with a minute for clocks that differ.
        for (what, from, to, status) in [
            ("good", jump - 600, jump + 600, 200),
            ("over, within the minute", jump - 600, jump - 30, 200),
            ("over", jump - 600, jump - 90, 401),
            ("soon, within the minute", jump + 30, jump + 600, 200),
            ("not yet", jump + 90, jump + 600, 401),
        ] {
            let client = in_session(from, to).await?;
            let reply = client.call(3, "echo", json!({"marker": "m"})).await?;
            assert_eq!(reply.status, status, "{what}, after a jump to {jump}");
        }
        // The stream is the same as before, and receives the events.
        let change = json!({"method": "notifications/tools/list_changed", "n": 1, "marker": "m"});
        first.call(4, "notify", change).await?.expect_status(200)?;
        assert_eq!(
            stream.message().await?["method"],
            "notifications/tools/list_changed"
        );
    }
    rialto.sigterm();
    assert_eq!(rialto.wait(PATIENCE).await.code(), Some(0));

    let file = rialto.dir().join("audit.jsonl");
    let records: Vec<Value> = std::fs::read_to_string(&file)?
        .lines()
        .map(|line| serde_json::from_str(line).expect("a record is JSON"))
        .collect();
    let order: Vec<u64> = records
        .iter()
        .filter_map(|record| record["seq"].as_u64())
        .collect();
    assert_eq!(order, (1..=records.len() as u64).collect::<Vec<_>>());
    let stamps: Vec<&str> = records
        .iter()
        .filter_map(|record| record["ts"].as_str())
        .collect();
    assert!(!stamps.is_sorted(), "the clock did jump: {stamps:?}");
    assert!(
        records.iter().all(|record| record["latency_ms"]
            .as_f64()
            .is_some_and(|ms| (0.0..60_000.0).contains(&ms))),
        "{records:?}"
    );
    let verified = std::process::Command::new(testkit::rialto::binary("rialto"))
        .args(["audit", "verify"])
        .arg(&file)
        .output()?;
    assert!(verified.status.success(), "{verified:?}");
    Ok(())
}

/// A name that cannot be looked up fails the calls of its own server, with a reason. It is looked
/// up again.
#[tokio::test]
async fn e09_resolver_that_is_down_is_reported_and_affects_no_other_destination() -> Result<()> {
    let (sandbox, upstream) = (Sandbox::new()?, testkit::Upstream::legacy().start().await?);
    sandbox.set_names(&[("far.example", "-")])?;
    let config = format!(
        "destinations:\n  far: {{ url: 'http://far.example:{}/mcp' }}\n  near: {{ command: '{{stub}}' }}\n",
        upstream.address().port()
    );
    let mut launcher = Rialto::launcher().config(&config);
    for (name, value) in sandbox.env() {
        launcher = launcher.env(name, &value);
    }
    let rialto = launcher.start().await?;
    let near = rialto.session_of("near").await?;
    let far = rialto.client_of("far").await?;
    let reply = far.initialize("2025-11-25", json!({})).await?;
    let error = reply.answer()["error"].clone();
    assert_eq!(error["code"], -32603, "{reply:?}");
    assert!(matches!(reply.outcome_status(), 502 | 503), "{reply:?}");
    assert_eq!(error["data"]["reason"], "upstream_unavailable", "{error}");
    let told = error.to_string();
    assert!(
        told.contains("look up")
            || told.contains("lookup")
            || told.contains("dns")
            || told.contains("resolve"),
        "{told}"
    );
    expect_echo(&near, "unaffected").await?;

    sandbox.set_names(&[("far.example", "127.0.0.1")])?;
    let again = wait_until_welcome(&rialto).await?;
    again
        .call(1, "echo", json!({"marker": "m"}))
        .await?
        .expect_status(200)?;
    Ok(())
}

/// A client whose handshake is taken, however often it has to be asked for.
async fn wait_until_welcome(rialto: &Rialto) -> Result<McpClient> {
    let opened = testkit::poll_until("the server is tried again", PATIENCE, async || {
        let client = rialto.client_of("far").await?;
        let opened = client.initialize("2025-11-25", json!({})).await?;
        Result::Ok((opened.outcome_status() == 200).then_some(client))
    });
    let client = opened.await?;
    client.notify("notifications/initialized", "{}").await?;
    Ok(client)
}
