//! How much clients may ask for: what is refused, with what, and that others are served meanwhile.

use serde_json::json;
use testkit::client::raw_http;
use testkit::{McpClient, PATIENCE, RawHttp, Reply, Result, Rialto, poll_until};
use tokio::task::JoinSet;

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

/// The stub server behind these limits.
async fn limited(limits: &str) -> Result<Rialto> {
    let config = format!(
        "{limits}\ndestinations:\n  one: {{ command: '{{stub}} --journal {{dir}}/journal', max_sessions: 100 }}\n  two: {{ command: '{{stub}}', max_sessions: 100 }}\n"
    );
    Rialto::with_config(&config).await
}

fn reason(reply: &Reply) -> String {
    let answer = reply.answer();
    answer["error"]["data"]["reason"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn assert_refused(reply: &Reply, status: u16, why: &str) {
    assert_eq!(reply.status, status, "{}", reply.body_text());
    assert_eq!(reason(reply), why, "{}", reply.body_text());
    let wait = reply
        .header("retry-after")
        .and_then(|wait| wait.parse::<u64>().ok());
    assert!(wait.is_some_and(|wait| wait >= 1), "Retry-After: {wait:?}");
}

async fn echo(client: &McpClient, marker: &str) -> Result<Reply> {
    client.call(1, "echo", json!({"marker": marker})).await
}

#[tokio::test]
async fn session_over_its_rate_receives_retry_after() -> Result<()> {
    let rialto = limited("limits: { session_requests_per_minute: 5 }").await?;
    let greedy = rialto.session_of("one").await?;
    // One request of the handshake counted: the session had its id by then.
    for number in 0..4 {
        assert_eq!(echo(&greedy, &format!("{number}")).await?.status, 200);
    }
    let refused = echo(&greedy, "one too many").await?;
    assert_refused(&refused, 429, "rate_limited");
    let modest = rialto.session_of("one").await?;
    assert_eq!(echo(&modest, "another session").await?.text(), "another session");
    assert_eq!(rialto.journal().executions("one too many"), 0);
    let page = modest.metrics().await?;
    assert!(
        page.contains(r#"rialto_limit_hits_total{limit="session_requests_per_minute"} 1"#),
        "{page}"
    );
    Ok(())
}

#[tokio::test]
async fn g17_many_sessions_and_a_spoofed_address_do_not_help() -> Result<()> {
    let rialto = limited("limits: { requests_per_minute: 12 }").await?;
    let mut refused = 0;
    for number in 0..10 {
        let client = rialto
            .client_of(if number % 2 == 0 { "one" } else { "two" })
            .await?;
        let client = client.with_header("x-forwarded-for", &format!("203.0.113.{number}"));
        for _ in 0..2 {
            let reply = client.post(LIST).await?.reply().await?;
            match reply.status {
                200 => {}
                _ => {
                    assert_refused(&reply, 429, "rate_limited");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!(refused, 8, "twelve of twenty are allowed");
    Ok(())
}

#[tokio::test]
async fn g17_a_trusted_proxy_speaks_for_its_clients() -> Result<()> {
    let rialto = limited("trusted_proxies: [127.0.0.1]\nlimits: { requests_per_minute: 2 }").await?;
    let client = |address: &'static str| {
        let rialto = &rialto;
        async move {
            Ok::<_, testkit::Failure>(
                rialto
                    .client_of("one")
                    .await?
                    .with_header("x-forwarded-for", address),
            )
        }
    };
    let (one, other) = (client("203.0.113.1").await?, client("203.0.113.2").await?);
    let liar = client("203.0.113.3, 203.0.113.1").await?;
    for _ in 0..2 {
        assert_eq!(one.post(LIST).await?.reply().await?.status, 200);
    }
    assert_refused(&one.post(LIST).await?.reply().await?, 429, "rate_limited");
    assert_refused(&liar.post(LIST).await?.reply().await?, 429, "rate_limited");
    assert_eq!(other.post(LIST).await?.reply().await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn e01_calls_beyond_the_limit_are_refused_before_their_bodies_are_read() -> Result<()> {
    let rialto = limited("limits: { calls: 2 }").await?;
    let client = rialto.session_of("one").await?;
    let mut held = JoinSet::new();
    for marker in ["first", "second"] {
        let client = client.clone();
        held.spawn(async move {
            client
                .call(1, "delay", json!({"ms": 2000, "marker": marker}))
                .await
        });
        rialto.wait_for_execution(marker).await;
    }
    // Only the head is sent: a server that waited for the body would wait for ever.
    let mut raw = RawHttp::connect(rialto.address()).await?;
    let head = format!(
        "POST /two/mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: {}\r\nContent-Length: 100000\r\n\r\n",
        testkit::client::ACCEPT
    );
    let response = raw.exchange(head).await?;
    assert_eq!(response.status, 503);
    assert_eq!(response.header("retry-after"), Some("1"));
    assert!(
        response.body_text().contains("gateway_calls_at_limit"),
        "{}",
        response.body_text()
    );
    while let Some(call) = held.join_next().await {
        assert_eq!(call.expect("the call ends")?.status, 200);
    }
    // Places are given back.
    assert_eq!(echo(&client, "again").await?.text(), "again");
    let page = client.metrics().await?;
    assert!(page.contains("rialto_requests_in_progress 0.0"), "{page}");
    assert!(
        page.contains(r#"rialto_limit_hits_total{limit="calls"} 1"#),
        "{page}"
    );
    Ok(())
}

#[tokio::test]
async fn a_call_whose_client_has_gone_keeps_its_place_to_its_end() -> Result<()> {
    let rialto = limited("limits: { calls: 1 }").await?;
    let client = rialto.session_of("one").await?;
    let session = client.session();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "delay", "arguments": {"ms": 1500, "marker": "gone"}}});
    let mut raw = RawHttp::connect(rialto.address()).await?;
    raw.write(raw_http::post("/one/mcp", session.as_deref(), body.to_string()))
        .await?;
    rialto.wait_for_execution("gone").await;
    raw.reset()?;
    assert_refused(&echo(&client, "meanwhile").await?, 503, "gateway_calls_at_limit");
    poll_until("the place is given back", PATIENCE, async || {
        let reply = echo(&client, "later").await?;
        Ok((reply.status == 200).then_some(()))
    })
    .await
}

#[tokio::test]
async fn e02_a_greedy_caller_leaves_room_for_others() -> Result<()> {
    let rialto = limited(
        "trusted_proxies: [127.0.0.1]\nlimits: { calls_per_principal: 2, sessions_per_principal: 1 }",
    )
    .await?;
    let greedy = rialto
        .client_of("one")
        .await?
        .with_header("x-forwarded-for", "203.0.113.1");
    greedy.handshake("2025-11-25", json!({})).await?;
    let mut held = JoinSet::new();
    for marker in ["a", "b"] {
        let client = greedy.clone();
        held.spawn(async move {
            client
                .call(1, "delay", json!({"ms": 2000, "marker": marker}))
                .await
        });
        rialto.wait_for_execution(marker).await;
    }
    assert_refused(&echo(&greedy, "c").await?, 503, "caller_calls_at_limit");
    let modest = rialto
        .client_of("one")
        .await?
        .with_header("x-forwarded-for", "203.0.113.2");
    modest.handshake("2025-11-25", json!({})).await?;
    assert_eq!(echo(&modest, "served").await?.text(), "served");
    while let Some(call) = held.join_next().await {
        assert_eq!(call.expect("the call ends")?.status, 200);
    }
    let second = rialto
        .client_of("two")
        .await?
        .with_header("x-forwarded-for", "203.0.113.1");
    assert_refused(
        &second.initialize("2025-11-25", json!({})).await?,
        503,
        "caller_sessions_at_limit",
    );
    greedy.delete().await?.expect_status(204)?;
    second
        .initialize("2025-11-25", json!({}))
        .await?
        .expect_status(200)?;
    Ok(())
}

#[tokio::test]
async fn c15_sessions_of_all_destinations_together_are_capped_and_refused_ones_leave_nothing() -> Result<()> {
    let rialto = limited("limits: { sessions: 3 }").await?;
    let mut sessions = Vec::new();
    for destination in ["one", "two", "one"] {
        sessions.push(rialto.session_of(destination).await?);
    }
    for _ in 0..50 {
        let client = rialto.client_of("two").await?;
        assert_refused(
            &client.initialize("2025-11-25", json!({})).await?,
            503,
            "gateway_sessions_at_limit",
        );
    }
    let page = sessions[0].metrics().await?;
    assert!(
        page.contains(r#"rialto_sessions{destination="two"} 1.0"#),
        "{page}"
    );
    assert!(
        page.contains(r#"rialto_limit_hits_total{limit="sessions"} 50"#),
        "{page}"
    );
    sessions[1].delete().await?.expect_status(204)?;
    rialto.session_of("two").await?;
    Ok(())
}

#[tokio::test]
async fn c09_streams_of_all_sessions_together_are_capped() -> Result<()> {
    let rialto = limited("limits: { streams: 3 }").await?;
    let mut streams = Vec::new();
    let mut last = None;
    for _ in 0..3 {
        let client = rialto.session_of("one").await?;
        streams.push(client.get_stream(None).await?);
        last = Some(client);
    }
    let client = last.expect("there is one");
    let refused = client.get(None).await?.reply().await?;
    assert_refused(&refused, 503, "streams_at_limit");
    streams.pop();
    poll_until("the place is given back", PATIENCE, async || {
        let response = client.get(None).await?;
        Ok((response.status == 200).then_some(()))
    })
    .await
}

#[tokio::test]
async fn c08_connections_beyond_the_limit_are_refused_at_once() -> Result<()> {
    let rialto = limited("limits: { connections: 4 }").await?;
    let mut streams = Vec::new();
    for _ in 0..4 {
        let client = rialto.session_of("one").await?;
        streams.push((client.get_stream(None).await?, client));
    }
    let mut turned_away = RawHttp::connect(rialto.address()).await?;
    let response = turned_away.read_response().await?;
    assert_eq!(
        (response.status, response.header("retry-after")),
        (503, Some("1"))
    );
    Ok(())
}

/// F3: a 404 now and then, or one `/health`, kept a place for ever, and other clients were refused.
#[tokio::test]
async fn h07_connections_that_were_never_let_in_make_room_however_often_they_ask() -> Result<()> {
    let rialto = limited("limits: { connections: 8 }").await?;
    let mut held = Vec::new();
    for path in ["/health", "/nowhere"].into_iter().cycle().take(8) {
        let mut raw = RawHttp::connect(rialto.address()).await?;
        raw.exchange(raw_http::request("GET", path, &[], "")).await?;
        held.push(raw);
    }
    let client = rialto.session_of("one").await?;
    let mut stream = client.get_stream(None).await?;
    // They ask again, as those that are left can.
    for raw in &mut held {
        let _ = raw.exchange(raw_http::request("GET", "/nowhere", &[], "")).await;
    }
    for marker in ["first", "second", "third"] {
        let other = rialto.session_of("one").await?;
        assert_eq!(echo(&other, marker).await?.text(), marker);
    }
    // A stream is a request in flight.
    client.call(1, "change_tools", "{}").await?.expect_status(200)?;
    assert_eq!(
        stream.message().await?["method"],
        "notifications/tools/list_changed"
    );
    Ok(())
}

/// A13: keep-alive that ran out was counted as abuse.
#[tokio::test]
async fn idle_keep_alive_outlasts_the_time_for_heads_and_is_no_limit_hit() -> Result<()> {
    let rialto = limited("").await?;
    let mut idle = RawHttp::connect(rialto.address()).await?;
    idle.exchange(raw_http::request("GET", "/health", &[], ""))
        .await?;
    let mut half_open = RawHttp::connect(rialto.address()).await?;
    half_open.write(b"GET /health HT").await?;
    assert_eq!(half_open.read_to_end().await.unwrap_or_default(), b"");
    // By now the idle one, which is older, would have been closed by the clock of its next head.
    let again = idle
        .exchange(raw_http::request("GET", "/health", &[], ""))
        .await?;
    assert_eq!(again.status, 200);
    let page = rialto.session_of("one").await?.metrics().await?;
    assert!(
        page.contains(r#"rialto_limit_hits_total{limit="header_time"} 1"#),
        "{page}"
    );
    Ok(())
}

/// A client that fills every slot with heads that never end keeps no other out, and connections
/// with requests keep their slots.
#[tokio::test]
async fn c08_half_open_connections_at_the_limit_are_evicted_for_real_clients() -> Result<()> {
    let rialto = limited("limits: { connections: 20 }").await?;
    let first = rialto.session_of("one").await?;
    let mut stream = first.get_stream(None).await?;
    let mut in_flight = JoinSet::new();
    in_flight.spawn({
        let client = rialto.session_of("one").await?;
        async move {
            client
                .call(1, "delay", r#"{"ms":1000,"marker":"in flight"}"#)
                .await
        }
    });
    rialto.wait_for_execution("in flight").await;
    let half = raw_http::post("/one/mcp", None, LIST);
    let mut half_open = Vec::new();
    for index in 0..200 {
        let mut raw = RawHttp::connect(rialto.address()).await?;
        // Nothing at all, a part of the head, all of it but the last line end.
        let cut = [0, 40, half.len() - LIST.len() - 2][index % 3];
        // One that was sent home already is as good as one that stays.
        let _ = raw.write(&half[..cut]).await;
        half_open.push(raw);
        if index % 20 == 19 {
            let client = rialto.session_of("two").await?;
            assert_eq!(echo(&client, "at once").await?.text(), "at once");
            client.delete().await?.expect_status(204)?;
        }
    }
    for reply in in_flight.join_all().await {
        assert_eq!(reply?.text(), "in flight");
    }
    first.call(1, "change_tools", "{}").await?.expect_status(200)?;
    assert_eq!(
        stream.message().await?["method"],
        "notifications/tools/list_changed"
    );
    // The oldest went first, without a word, for nothing was asked.
    for mut raw in half_open.drain(..100) {
        assert_eq!(raw.read_to_end().await.unwrap_or_default(), b"");
    }
    let page = first.metrics().await?;
    let evicted: u64 = page
        .lines()
        .find_map(|line| line.strip_prefix("rialto_connections_evicted_total "))
        .and_then(|count| count.parse().ok())
        .expect("they are counted");
    assert!(evicted >= 180, "{evicted}");
    assert!(
        page.contains(&format!(
            r#"rialto_limit_hits_total{{limit="connections"}} {evicted}"#
        )),
        "{page}"
    );
    assert!(
        testkit::processes::open_files(rialto.pid()) < 60,
        "there are not many more than places"
    );
    Ok(())
}

#[tokio::test]
async fn c08_one_address_cannot_take_all_connections() -> Result<()> {
    let rialto = limited("limits: { connections_per_address: 2 }").await?;
    let mut held = Vec::new();
    let mut streams = Vec::new();
    for _ in 0..2 {
        let client = rialto.session_of("one").await?;
        streams.push((client.get_stream(None).await?, client));
    }
    let mut third = RawHttp::connect(rialto.address()).await?;
    assert_eq!(third.read_response().await?.status, 503);
    // From a proxy that is trusted many may come.
    let rialto = limited("trusted_proxies: [127.0.0.0/8]\nlimits: { connections_per_address: 2 }").await?;
    for _ in 0..4 {
        let mut raw = RawHttp::connect(rialto.address()).await?;
        let health = raw.exchange(raw_http::request("GET", "/health", &[], "")).await?;
        assert_eq!(health.status, 200);
        held.push(raw);
    }
    Ok(())
}

#[tokio::test]
async fn idle_sessions_expire_though_servers_send_messages() -> Result<()> {
    let config = "session_idle: 1s\ndestinations: { one: { command: '{stub}' } }\n";
    let rialto = Rialto::with_config(config).await?;
    let (talker, sleeper) = (rialto.session_of("one").await?, rialto.session_of("one").await?);
    let session = sleeper.session().expect("it has one");
    let patience = tokio::time::Instant::now() + PATIENCE;
    loop {
        // A notification for every session, which is no activity of the sleeper's.
        let notify = json!({"n": 1, "method": "notifications/tools/list_changed", "marker": "x"});
        assert_eq!(talker.call(1, "notify", notify).await?.status, 200);
        let page = talker.metrics().await?;
        if page.contains(r#"rialto_sessions_expired_total{destination="one"} 1"#) {
            break;
        }
        assert!(
            tokio::time::Instant::now() < patience,
            "the session never expires"
        );
    }
    sleeper.set_session(Some(&session));
    assert_eq!(echo(&sleeper, "x").await?.status, 404);
    assert_eq!(echo(&talker, "here").await?.text(), "here");
    Ok(())
}

#[tokio::test]
async fn every_limit_has_a_variable_and_a_wrong_one_is_named() -> Result<()> {
    let ended = Rialto::launcher()
        .config("destinations: { a: { command: cat } }")
        .env("RIALTO_LIMIT_CALLS", "many")
        .env("RIALTO_TRUSTED_PROXIES", "10.0.0.0/8, nowhere")
        .run(PATIENCE)
        .await?;
    assert_eq!(ended.code(), Some(2));
    let said = ended.stderr_text();
    assert!(
        said.contains("RIALTO_LIMIT_CALLS") && said.contains("RIALTO_TRUSTED_PROXIES"),
        "{said}"
    );
    let rialto = Rialto::launcher()
        .env("RIALTO_LIMIT_REQUESTS_PER_MINUTE", "1")
        .stub(&[])
        .start()
        .await?;
    let client = rialto.client().await?;
    assert_eq!(client.post(LIST).await?.reply().await?.status, 200);
    assert_refused(&client.post(LIST).await?.reply().await?, 429, "rate_limited");
    Ok(())
}

/// A limit of an instance is no refusal before the call: the call fails, and the operator must
/// learn of it all the same.
#[tokio::test]
async fn a_limit_of_an_instance_shows_in_ready_and_in_the_log() -> Result<()> {
    let rialto = limited("").await?;
    let client = rialto.session_of("one").await?;
    let mut refused = 0;
    for number in 0..258 {
        let uri = json!({"uri": format!("test://{number}")});
        let reply = client.request(number, "resources/subscribe", uri).await?;
        let answer = reply.answer();
        if answer["error"]["data"]["reason"] == "overloaded" {
            refused += 1;
        } else {
            assert!(answer.get("result").is_some(), "{answer}");
        }
    }
    assert_eq!(refused, 2);
    let ready = client
        .send("GET", "/ready", &[], "")
        .await?
        .reply()
        .await?
        .answer();
    let limits = &ready["destinations"]["one"]["limits"];
    assert_eq!(limits["resource_subscriptions"]["hits"], 2, "{ready}");
    assert!(ready["destinations"]["two"].get("limits").is_none(), "{ready}");
    let logged: Vec<_> = rialto
        .logs()
        .into_iter()
        .filter(|line| line["level"] == "WARN" && line["message"] == "limit reached")
        .collect();
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert_eq!(logged[0]["destination"], "one", "{logged:?}");
    assert_eq!(logged[0]["limit"], "resource subscriptions", "{logged:?}");
    Ok(())
}
