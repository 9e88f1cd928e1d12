//! The admin socket itself: its events, its limits, and how it is switched off.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::{PATIENCE, Result, Rialto, wait_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

const SHARED: &str = "destinations:\n  files: { command: [\"{stub}\"] }\n";

async fn started() -> Result<Rialto> {
    Rialto::launcher().config(SHARED).admin_socket().start().await
}

/// Returns the only socket of a gateway.
async fn socket(rialto: &Rialto) -> PathBuf {
    let directory = rialto.dir().join("rialto");
    wait_until("the socket is there", PATIENCE, || {
        let entries = std::fs::read_dir(&directory).ok()?;
        let mut paths = entries.flatten().map(|entry| entry.path());
        paths.find(|path| path.extension().is_some_and(|extension| extension == "sock"))
    })
    .await
}

/// A reader of one response.
struct Reader {
    stream: UnixStream,
    text: String,
}

impl Reader {
    async fn open(rialto: &Rialto, method: &str, path: &str) -> Result<Self> {
        let mut stream = UnixStream::connect(socket(rialto).await).await?;
        let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        Ok(Self {
            stream,
            text: String::new(),
        })
    }

    /// Reads until there is this text.
    async fn until(&mut self, wanted: &str) -> Result<&str> {
        let reading = async {
            while !self.text.contains(wanted) {
                let mut bytes = [0; 4096];
                let read = self.stream.read(&mut bytes).await?;
                if read == 0 {
                    break;
                }
                self.text.push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
            Ok::<_, std::io::Error>(())
        };
        tokio::time::timeout(PATIENCE, reading)
            .await
            .unwrap_or_else(|_| panic!("no {wanted:?} came"))?;
        assert!(self.text.contains(wanted), "{wanted:?} in {}", self.text);
        Ok(&self.text)
    }
}

/// A server has the user and the directory of its gateway, and nothing else that a client needs.
#[tokio::test]
async fn server_is_refused_at_the_socket_of_its_own_gateway() -> Result<()> {
    let program = env!("CARGO_BIN_EXE_rialto");
    // The second look is an orphan's.
    let nosy = format!(
        "destinations:\n  nosy: {{ command: [sh, -c, \"{program} ps > {{dir}}/seen 2>&1; \
         (setsid {program} ps > {{dir}}/orphan 2>&1; touch {{dir}}/done) & exec {{stub}}\"], start: lazy }}\n"
    );
    let rialto = Rialto::launcher().config(&nosy).admin_socket().start().await?;
    socket(&rialto).await;
    rialto.session_of("nosy").await?.expect_echo("x").await?;
    let done = rialto.dir().join("done");
    wait_until("both have looked", PATIENCE, || done.exists().then_some(())).await;
    let mut seen = Vec::new();
    for file in ["seen", "orphan"] {
        seen.push(std::fs::read_to_string(rialto.dir().join(file))?);
    }
    assert!(!seen.concat().contains("nosy"), "{seen:?}");
    wait_until("both were refused", PATIENCE, || {
        let is_refusal = |log: &Value| log["message"] == "refused a connection to the admin socket";
        (rialto.logs().iter().filter(|log| is_refusal(log)).count() >= 2).then_some(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn reader_of_events_sees_ended_calls_and_changes_of_state() -> Result<()> {
    let rialto = started().await?;
    let mut events = Reader::open(&rialto, "GET", "/v1/events").await?;
    let head = events.until("event: state").await?;
    assert!(head.contains("text/event-stream"), "{head}");
    let client = rialto.session_of("files").await?;
    client.call(7, "echo", json!({ "marker": "m" })).await?;
    events.until("\"rpc_id\":7").await?;
    let text = events.until("\"sessions\":1").await?;
    let line = text
        .lines()
        .find(|line| line.starts_with("data: ") && line.contains("\"rpc_id\":7"));
    let call: Value = serde_json::from_str(line.expect("a line").trim_start_matches("data: "))?;
    assert_eq!(call["destination"], "files");
    assert_eq!(call["tool"], "echo");
    assert_eq!(call["outcome"], "ok");
    assert!(
        call["session"].is_string() && call["latency_ms"].is_number(),
        "{call}"
    );
    Ok(())
}

/// Returns the members that the page has under a heading.
fn documented(heading: &str) -> BTreeSet<String> {
    let page = include_str!("../../../../docs/looking.md");
    let section = page
        .split(&format!("\n### {heading}\n"))
        .nth(1)
        .expect("a heading");
    let section = section.split("\n#").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|line| line.split('|').nth(1));
    let codes = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    codes.map(str::to_owned).collect()
}

#[tokio::test]
async fn every_member_of_the_snapshot_is_documented_and_no_other() -> Result<()> {
    let rialto = started().await?;
    let client = rialto.session_of("files").await?;
    client.expect_echo("one").await?;
    let mut reader = Reader::open(&rialto, "GET", "/v1/snapshot").await?;
    let text = reader.until("}\n").await?;
    let body = text.split("\r\n\r\n").nth(1).expect("a body");
    let snapshot: Value = serde_json::from_str(body)?;
    let destination = &snapshot["destinations"][0];
    for (heading, found) in [
        ("Gateway", &snapshot),
        ("Destination", destination),
        ("Instance", &destination["instances"][0]),
        ("Session", &destination["session_list"][0]),
    ] {
        let members = found.as_object().unwrap_or_else(|| panic!("no {heading}"));
        let members: BTreeSet<String> = members.keys().cloned().collect();
        assert_eq!(members, documented(heading), "{heading}");
    }
    assert_eq!(snapshot["snapshot"], 1);
    Ok(())
}

#[tokio::test]
async fn answers_of_the_socket_have_their_statuses() -> Result<()> {
    let rialto = started().await?;
    for (method, path, status) in [
        ("GET", "/v1/snapshot", "200 OK"),
        ("POST", "/v1/snapshot", "405"),
        ("GET", "/v1/tap/other", "404"),
        ("GET", "/v1/attach/other", "404"),
        ("GET", "/v1/nothing", "404"),
        ("GET", "/health", "200 OK"),
        ("GET", "/metrics", "200 OK"),
    ] {
        let mut reader = Reader::open(&rialto, method, path).await?;
        let head = reader.until("\r\n\r\n").await?;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {head}");
    }
    let mut reader = Reader::open(&rialto, "GET", "/v1/tap/other").await?;
    reader.until("[\"files\"]").await?;
    Ok(())
}

#[tokio::test]
async fn readers_have_a_limit() -> Result<()> {
    let rialto = started().await?;
    let mut readers = Vec::new();
    for _ in 0..32 {
        let mut reader = Reader::open(&rialto, "GET", "/v1/events").await?;
        reader.until("event: state").await?;
        readers.push(reader);
    }
    let mut late = Reader::open(&rialto, "GET", "/v1/tap/files").await?;
    late.until("503").await?;
    drop(readers);
    testkit::poll_until("there is room again", PATIENCE, async || {
        let mut next = Reader::open(&rialto, "GET", "/v1/events").await?;
        let head = next.until("\r\n\r\n").await?;
        Ok::<_, testkit::Failure>(head.starts_with("HTTP/1.1 200").then_some(()))
    })
    .await
}

#[tokio::test]
async fn reader_that_does_not_read_is_dropped_and_counted_and_calls_go_on() -> Result<()> {
    let rialto = started().await?;
    let mut stuck = Reader::open(&rialto, "GET", "/v1/tap/files").await?;
    stuck.until("200 OK").await?;
    let client = rialto.session_of("files").await?;
    let dropped = async || {
        let mut reader = Reader::open(&rialto, "GET", "/v1/snapshot").await?;
        let text = reader.until("\"readers\":{").await?;
        let after = text.split("\"readers\":{\"dropped\":").nth(1).unwrap_or_default();
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        Ok::<u64, testkit::Failure>(digits.parse().unwrap_or_default())
    };
    let mut id = 0;
    testkit::poll_until("it is dropped", PATIENCE, async || {
        for _ in 0..20 {
            id += 1;
            client.call(id, "big", json!({ "bytes": 60_000 })).await?;
        }
        Ok::<_, testkit::Failure>((dropped().await? == 1).then_some(()))
    })
    .await?;
    client.expect_echo("still here").await
}

#[tokio::test]
async fn socket_is_for_its_user_and_goes_with_the_gateway() -> Result<()> {
    let rialto = started().await?;
    let socket = socket(&rialto).await;
    let mode =
        |path: &std::path::Path| Ok::<_, std::io::Error>(path.metadata()?.permissions().mode() & 0o777);
    assert_eq!(mode(&socket)?, 0o600);
    assert_eq!(mode(&rialto.dir().join("rialto"))?, 0o700);
    rialto.sigterm();
    wait_until("it has gone", PATIENCE, || (!socket.exists()).then_some(())).await;
    rialto.wait(PATIENCE).await;
    Ok(())
}

#[tokio::test]
async fn socket_can_be_switched_off_by_key_and_flag() -> Result<()> {
    let by_key = Rialto::launcher()
        .config(&format!("admin_socket: false\n{SHARED}"))
        .env("XDG_RUNTIME_DIR", "{dir}")
        .start()
        .await?;
    assert!(!by_key.dir().join("rialto").exists());
    let by_flag = Rialto::launcher()
        .config(SHARED)
        .admin_socket()
        .args(&["--admin-socket", "off"])
        .start()
        .await?;
    assert!(!by_flag.dir().join("rialto").exists());
    let neither = Rialto::launcher()
        .config(SHARED)
        .args(&["--admin-socket", "off", "--port", "off"])
        .run(PATIENCE)
        .await?;
    assert_eq!(neither.code(), Some(2), "{}", neither.stderr_text());
    Ok(())
}
