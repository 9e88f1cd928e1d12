//! The page of metrics: that it counts what happened, and that its description lists its metrics.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use testkit::client::raw_http;
use testkit::{PATIENCE, RawHttp, Result, Rialto};

const DESCRIPTION: &str = include_str!("../../../docs/metrics.md");

/// A family: its type and the labels of its samples.
type Families = BTreeMap<String, (String, BTreeSet<String>)>;

struct Page(String);

impl Page {
    async fn of(rialto: &Rialto) -> Result<Self> {
        let mut raw = RawHttp::connect(rialto.address()).await?;
        let response = raw
            .exchange(raw_http::request("GET", "/metrics", &[], ""))
            .await?;
        assert_eq!(response.status, 200);
        assert_eq!(
            response.header("content-type"),
            Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
        );
        let page = response.body_text();
        assert!(page.ends_with("# EOF\n"), "{page}");
        Ok(Self(page))
    }

    /// A sample by its whole name, labels included.
    fn sample(&self, name: &str) -> Option<f64> {
        self.0
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    fn count(&self, name: &str) -> f64 {
        self.sample(name).unwrap_or(0.0)
    }

    fn families(&self) -> Families {
        let mut families = Families::new();
        for line in self.0.lines() {
            if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                let suffix = if kind == "counter" { "_total" } else { "" };
                families.insert(format!("{name}{suffix}"), (kind.to_owned(), BTreeSet::new()));
            } else if let Some((name, rest)) = line.split_once('{')
                && let Some((labels, _)) = rest.split_once('}')
            {
                let family = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|suffix| {
                        name.strip_suffix(suffix)
                            .filter(|name| families.contains_key(*name))
                    })
                    .unwrap_or(name);
                let labels = labels
                    .split(',')
                    .filter_map(|label| label.split_once('='))
                    .map(|(key, _)| key.to_owned());
                let family = families
                    .get_mut(family)
                    .unwrap_or_else(|| panic!("{name} has no type"));
                family.1.extend(labels.filter(|label| label != "le"));
            }
        }
        families
    }
}

/// The metrics of the description.
fn described() -> Families {
    let mut families = Families::new();
    for line in DESCRIPTION
        .lines()
        .filter(|line| line.starts_with("| `rialto_") || line.starts_with("| `process_"))
    {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let labels = cells[2]
            .split(',')
            .map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| label != "–").collect();
        families.insert(
            cells[0].trim_matches('`').to_owned(),
            (cells[1].to_owned(), labels),
        );
    }
    families
}

/// A gateway on which everything has happened that makes samples.
async fn eventful() -> Result<Rialto> {
    let rialto = Rialto::with_config(
        "limits: { sessions: 3 }\nrequest_timeout: 1s\nstream_timeout: 1s\ndestinations:\n  one: { command: '{stub} --journal {dir}/journal' }\n  two: { command: '{stub}', start: lazy }\naggregates: { all: { members: [two] } }\n",
    )
    .await?;
    let client = rialto.session_of("one").await?;
    client
        .call(1, "echo", json!({"marker": "x"}))
        .await?
        .expect_status(200)?;
    client
        .call(2, "never", json!({"marker": "y"}))
        .await?
        .expect_failed(504)?;
    client
        .call(3, "exit", json!({"code": 3}))
        .await?
        .expect_failed(503)?;
    client
        .call(4, "echo", json!({"marker": "z"}))
        .await?
        .expect_status(200)?;
    client
        .send("GET", "/nowhere", &[], "")
        .await?
        .reply()
        .await?
        .expect_status(404)?;
    for _ in 0..2 {
        rialto.session_of("one").await?;
    }
    rialto
        .client_of("one")
        .await?
        .initialize("2025-11-25", json!({}))
        .await?
        .expect_status(503)?;
    Ok(rialto)
}

#[tokio::test]
async fn every_metric_is_described_and_every_described_metric_exists() -> Result<()> {
    let rialto = eventful().await?;
    let (exist, described) = (Page::of(&rialto).await?.families(), described());
    let names = |families: &Families| families.keys().cloned().collect::<BTreeSet<_>>();
    assert!(exist.len() > 40, "{exist:?}");
    assert_eq!(names(&described), names(&exist));
    for (name, (kind, labels)) in &exist {
        assert_eq!(*kind, described[name].0, "the type of {name}");
        assert_eq!(*labels, described[name].1, "the labels of {name}");
    }
    Ok(())
}

#[tokio::test]
async fn events_are_on_the_metrics_page() -> Result<()> {
    let rialto = eventful().await?;
    let page = Page::of(&rialto).await?;
    for (name, expected) in [
        (
            r#"rialto_calls_total{destination="one",method="tools/call",era="legacy",outcome="ok"}"#,
            2.0,
        ),
        (
            r#"rialto_calls_total{destination="one",method="tools/call",era="legacy",outcome="timeout"}"#,
            1.0,
        ),
        (
            r#"rialto_calls_total{destination="one",method="tools/call",era="legacy",outcome="crashed"}"#,
            1.0,
        ),
        (
            r#"rialto_failures_total{destination="one",blame="backend",reason="timeout"}"#,
            1.0,
        ),
        (
            r#"rialto_failures_total{destination="one",blame="backend",reason="upstream_exited"}"#,
            1.0,
        ),
        (
            r#"rialto_call_duration_seconds_count{destination="one",method="tools/call"}"#,
            4.0,
        ),
        (r#"rialto_refusals_total{reason="unknown_path"}"#, 1.0),
        (r#"rialto_limit_hits_total{limit="sessions"}"#, 1.0),
        (r#"rialto_child_starts_total{destination="one"}"#, 2.0),
        (r#"rialto_child_restarts_total{destination="one"}"#, 1.0),
        (
            r#"rialto_child_ends_total{destination="one",how="by_itself"}"#,
            1.0,
        ),
        (r#"rialto_children{destination="one",state="ready"}"#, 1.0),
        (r#"rialto_server_era{destination="one",era="legacy"}"#, 1.0),
        (r#"rialto_sessions{destination="one"}"#, 3.0),
        (r#"rialto_timeouts_total{destination="one"}"#, 1.0),
        ("rialto_audit_records_lost_total", 0.0),
    ] {
        assert_eq!(page.sample(name), Some(expected), "{name}\n{}", page.0);
    }
    for name in [
        r#"rialto_received_bytes_total{destination="one"}"#,
        r#"rialto_sent_bytes_total{destination="one"}"#,
        r#"rialto_server_received_bytes_total{destination="one"}"#,
        r#"rialto_server_sent_bytes_total{destination="one"}"#,
        "process_resident_memory_bytes",
        "process_open_fds",
        "rialto_connections",
    ] {
        assert!(page.count(name) > 0.0, "{name}\n{}", page.0);
    }
    Ok(())
}

#[tokio::test]
async fn streams_and_the_modern_era_are_distinguished() -> Result<()> {
    let rialto = Rialto::serve(&["--demo"]).await?;
    let client = rialto.session().await?;
    let stream = client.get_stream(None).await?;
    let modern = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }}});
    let headers = [
        ("content-type", "application/json"),
        ("accept", testkit::client::ACCEPT),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/list"),
    ];
    client
        .send("POST", "/mcp", &headers, modern.to_string())
        .await?
        .reply()
        .await?
        .expect_status(200)?;
    let page = Page::of(&rialto).await?;
    assert_eq!(
        page.sample(r#"rialto_streams{destination="demo",kind="get"}"#),
        Some(1.0),
        "{}",
        page.0
    );
    let modern = r#"rialto_calls_total{destination="demo",method="tools/list",era="modern",outcome="ok"}"#;
    assert_eq!(page.sample(modern), Some(1.0), "{}", page.0);
    drop(stream);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while Page::of(&rialto)
        .await?
        .sample(r#"rialto_streams{destination="demo",kind="get"}"#)
        != Some(0.0)
    {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the stream is counted for ever"
        );
    }
    Ok(())
}

#[tokio::test]
async fn no_label_holds_what_a_peer_wrote() -> Result<()> {
    let rialto = Rialto::with_stub(&["--stateless"]).await?;
    let client = rialto.session().await?;
    let mut sizes = Vec::new();
    for round in 0..2 {
        for number in 0..50 {
            let method = format!("secret/method-{round}-{number}");
            client.request(1, &method, "{}").await?.expect_status(200)?;
            client
                .call(2, &format!("secret-tool-{round}-{number}"), "{}")
                .await?;
            client
                .send("GET", &format!("/secret-{round}-{number}"), &[], "")
                .await?
                .reply()
                .await?;
        }
        let page = Page::of(&rialto).await?;
        assert!(!page.0.contains("secret"), "{}", page.0);
        sizes.push(page.0.lines().count());
    }
    assert_eq!(sizes[0], sizes[1], "a hundred names more make no line more");
    Ok(())
}

#[tokio::test]
async fn counters_do_not_go_back_when_a_child_is_gone() -> Result<()> {
    let config = "destinations: { one: { command: '{stub}', process: per_session } }\n";
    let rialto = Rialto::with_config(config).await?;
    let noise = r#"rialto_noise_lines_total{destination="one"}"#;
    let client = rialto.session_of("one").await?;
    client
        .call(1, "garbage", json!({"kind": "text", "marker": "x"}))
        .await?
        .expect_status(200)?;
    let before = Page::of(&rialto).await?.count(noise);
    assert!(before >= 1.0);
    client.delete().await?.expect_status(204)?;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let page = Page::of(&rialto).await?;
        assert_eq!(page.count(noise), before, "{}", page.0);
        let states = page.0.lines().filter(|line| line.starts_with("rialto_children{"));
        if states.filter(|line| !line.ends_with(" 0.0")).count() == 0 {
            return Ok(());
        }
        assert!(tokio::time::Instant::now() < deadline, "{}", page.0);
    }
}

#[tokio::test]
async fn the_page_can_be_taken_away_and_answers_only_to_reading() -> Result<()> {
    let rialto = Rialto::launcher()
        .env("RIALTO_METRICS", "false")
        .stub(&[])
        .start()
        .await?;
    let mut raw = rialto.raw().await?;
    assert_eq!(
        raw.exchange(raw_http::request("GET", "/metrics", &[], ""))
            .await?
            .status,
        404
    );
    let rialto = Rialto::with_stub(&[]).await?;
    let mut raw = rialto.raw().await?;
    let refused = raw
        .exchange(raw_http::request("POST", "/metrics", &[], ""))
        .await?;
    assert_eq!(
        (refused.status, refused.header("allow")),
        (405, Some("GET, HEAD"))
    );
    Ok(())
}
