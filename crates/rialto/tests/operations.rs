//! The page about operations against the world: nginx, as Debian has it, with the configuration
//! that the page shows.
//!
//! nginx comes from `cargo xtask setup`. The configuration is taken from the page itself; only the
//! addresses are replaced. That events are not held back is shown by cause and not by time: each
//! event has to arrive before the next is made.

mod documents {
    #[expect(dead_code, reason = "this test reads blocks only")]
    pub(crate) mod markdown;
}

use std::path::Path;
use std::process::Stdio;

use documents::markdown;
use serde_json::json;
use testkit::interop::test_deps;
use testkit::{Failure, McpClient, PATIENCE, RawHttp, Result, Rialto};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

const PAGE: &str = include_str!("../../../docs/operations.md");

/// nginx in front of a Rialto.
struct Proxy {
    address: String,
    _nginx: Child,
    _files: tempfile::TempDir,
}

impl Proxy {
    async fn before(rialto: &Rialto) -> Result<Self> {
        let site = markdown::blocks(PAGE, "nginx")
            .pop()
            .expect("the page shows a configuration");
        assert_eq!(site.matches("127.0.0.1:3000").count(), 1);
        assert_eq!(site.matches("listen 80;").count(), 1);
        let address = free_address().await?;
        let site = site
            .replace("127.0.0.1:3000", rialto.address())
            .replace("listen 80;", &format!("listen {address};"));
        let files = tempfile::tempdir()?;
        let config = files.path().join("nginx.conf");
        std::fs::write(&config, around(&site, files.path()))?;
        let program = test_deps().join("nginx/usr/sbin/nginx");
        let nginx = Command::new(&program)
            .arg("-c")
            .arg(&config)
            .arg("-p")
            .arg(files.path())
            .args(["-e", "stderr"])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                Failure::new(format!(
                    "{} (cargo xtask setup installs it): {error}",
                    program.display()
                ))
            })?;
        testkit::poll_until("nginx listens", PATIENCE, async || {
            Result::Ok(TcpStream::connect(&address).await.ok())
        })
        .await?;
        Ok(Self {
            address,
            _nginx: nginx,
            _files: files,
        })
    }

    async fn client(&self) -> Result<McpClient> {
        let client = McpClient::connect(&format!("http://{}/demo/mcp", self.address)).await?;
        Ok(client.with_header("host", "mcp.example.com"))
    }
}

/// What a distribution puts around a site: here in the foreground, without a second process, with
/// all files in one folder.
fn around(site: &str, folder: &Path) -> String {
    let folder = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {folder}/{kind};\n"))
        .collect();
    format!(
        "daemon off;\nmaster_process off;\npid {folder}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{site}}}\n"
    )
}

/// A port that is free now. Another process may take it first; then nginx fails.
async fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0").await?.local_addr()?.to_string())
}

/// Rialto as the page sets it up for a proxy, with the stub in place of the demo server.
async fn rialto(more: &str) -> Result<Rialto> {
    let blocks = markdown::blocks(PAGE, "yaml");
    let config = blocks
        .iter()
        .find(|block| block.contains("trusted_proxies"))
        .expect("the page shows it");
    let config = config
        .lines()
        .filter(|line| !line.starts_with("listen:"))
        .collect::<Vec<_>>()
        .join("\n");
    Rialto::with_config(&format!(
        "{more}{}\n",
        config.replace("rialto demo-server", "'{stub} --journal {dir}/journal'")
    ))
    .await
}

#[tokio::test]
async fn events_pass_nginx_one_by_one() -> Result<()> {
    let rialto = rialto("").await?;
    let proxy = Proxy::before(&rialto).await?;
    let client = proxy.client().await?;
    client.handshake("2025-11-25", json!({})).await?;
    let mut stream = client.get_stream(None).await?;
    for number in 0..5 {
        let marker = format!("event-{number}");
        let notify = json!({"n": 1, "method": "notifications/tools/list_changed", "marker": marker});
        client.call(1, "notify", notify).await?.expect_status(200)?;
        // A proxy that buffers events would wait here for ever.
        let event = stream.message().await?;
        assert_eq!(event["method"], "notifications/tools/list_changed", "{event}");
    }
    Ok(())
}

#[tokio::test]
async fn a_question_in_the_middle_of_a_call_passes_nginx_before_the_answer_is_made() -> Result<()> {
    let rialto = rialto("").await?;
    let proxy = Proxy::before(&rialto).await?;
    let client = proxy.client().await?;
    client.handshake("2025-11-25", json!({"elicitation": {}})).await?;
    let mut answer = client
        .open_call(7, "ask_elicit", json!({"marker": "asked"}), 7)
        .await?
        .events();
    let question = answer.message().await?;
    assert_eq!(question["method"], "elicitation/create", "{question}");
    client
        .respond(&question["id"], r#"{"action":"decline"}"#)
        .await?
        .expect_status(202)?;
    let said = answer.message().await?;
    assert_eq!(said["id"], 7, "{said}");
    Ok(())
}

#[tokio::test]
async fn clients_behind_nginx_are_distinguished_and_see_no_metrics() -> Result<()> {
    let rialto = rialto("limits: { requests_per_minute: 3 }\n").await?;
    let proxy = Proxy::before(&rialto).await?;
    let mut raw = RawHttp::connect(&proxy.address).await?;
    let hidden = raw
        .exchange("GET /metrics HTTP/1.1\r\nHost: mcp.example.com\r\n\r\n")
        .await?;
    assert_eq!(hidden.status, 404);
    // What a client claims about itself does not count: nginx adds the address that it sees, which
    // is trusted here, so that the claim is looked at next, as it would be for a proxy in front of
    // nginx.
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let (one, other) = (proxy.client().await?, proxy.client().await?);
    let (one, other) = (
        one.with_header("x-forwarded-for", "203.0.113.1"),
        other.with_header("x-forwarded-for", "203.0.113.2"),
    );
    for _ in 0..3 {
        one.post(list).await?.reply().await?.expect_status(200)?;
    }
    one.post(list).await?.reply().await?.expect_status(429)?;
    other.post(list).await?.reply().await?.expect_status(200)?;
    Ok(())
}

#[tokio::test]
async fn every_configuration_that_the_page_shows_is_accepted() -> Result<()> {
    let ended = Rialto::launcher()
        .verb(&["check"])
        .config(&markdown::blocks(PAGE, "yaml")[0])
        .env("RIALTO_LISTEN", "nowhere")
        .run(PATIENCE)
        .await?;
    // The one problem is the one that was put in, so that nothing is started.
    let said = ended.stderr_text();
    assert!(
        said.starts_with("rialto: environment variable RIALTO_LISTEN") && said.trim().lines().count() == 1,
        "{said}"
    );
    Ok(())
}
