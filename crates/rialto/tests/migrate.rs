//! The command lines of other bridges, as `docs/migrate.md` has them: each is run as it stands,
//! with the name of the program replaced.
//!
//! Two things are not as they stand. The programs that the lines start (`npx`, `uvx`, …) are the
//! stub server, so that nothing is downloaded. Ports are 0, so that tests run side by side.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{LEGACY, Rialto, poll_until};

const PAGE: &str = include_str!("../../../docs/migrate.md");
const PATIENCE: Duration = Duration::from_secs(60);
/// How the lines start the other programs.
const PROGRAMS: [&str; 4] = [
    "npx -y supergateway ",
    "npx mcp-proxy ",
    "npx mcp-remote ",
    "mcp-proxy ",
];
/// What the lines start.
const SERVERS: [&str; 7] = [
    "npx",
    "uvx",
    "tsx",
    "deno",
    "python",
    "my-default-command",
    "my-modern-mcp-server",
];

/// One row of a table.
struct Row {
    line: String,
    result: String,
    own: String,
}

/// The rows of all tables.
fn rows() -> Vec<Row> {
    let is_row = |line: &&str| {
        PROGRAMS
            .iter()
            .any(|program| line.starts_with(&format!("| `{program}")))
    };
    let rows = PAGE.lines().filter(is_row).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [line, result, own] = cells.as_slice() else {
            panic!("three cells were expected: {line}");
        };
        Row {
            line: line.trim_matches('`').to_owned(),
            result: (*result).to_owned(),
            own: (*own).to_owned(),
        }
    });
    rows.collect()
}

/// The words of a line, as a shell splits it, after the name of the program.
fn words(line: &str) -> Vec<String> {
    let rest = PROGRAMS
        .iter()
        .find_map(|program| line.strip_prefix(program))
        .unwrap();
    shell_words(rest)
}

fn shell_words(line: &str) -> Vec<String> {
    let output = std::process::Command::new("sh")
        // What stands in double quotes is for the host to fill in, which is Rialto here.
        .args(["-c", &format!("printf '%s\\n' {}", line.replace('$', "\\$"))])
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The same words with a port that is free.
fn on_a_free_port(words: &[String]) -> Vec<String> {
    let is_port = |word: &str| matches!(word, "--port" | "-p" | "--sse-port");
    let mut changed: Vec<String> = Vec::new();
    let mut has_port = false;
    for word in words {
        let previous = changed.last().map(String::as_str).unwrap_or_default();
        let next = match word.split_once('=') {
            _ if is_port(previous) => "0".to_owned(),
            Some((flag, _)) if is_port(flag) => format!("{flag}=0"),
            Some(_) | None => word.clone(),
        };
        has_port |= is_port(word.split('=').next().unwrap_or_default());
        changed.push(next);
    }
    if !has_port {
        changed.splice(0..0, ["--port".to_owned(), "0".to_owned()]);
    }
    changed
}

/// Programs with the names of those that the lines start: each is the stub server.
fn servers(directory: &Path) -> String {
    let stub = testkit::rialto::binary("testkit-server");
    for name in SERVERS {
        let program = directory.join(name);
        std::fs::write(
            &program,
            format!("#!/bin/sh\nexec {} --journal /dev/null\n", stub.display()),
        )
        .unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    }
    format!("{}:/usr/bin:/bin", directory.display())
}

fn launcher(words: &[String]) -> testkit::rialto::Launcher {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let launcher = Rialto::launcher()
        .verb(&words)
        .env("RIALTO_LOG_FORMAT", "json")
        .env("RIALTO_KEYRING", "off")
        .env("AUTH_TOKEN", "token")
        .env("AUTH_HEADER", "Bearer token");
    let state = launcher.dir().join("state");
    let path = servers(launcher.dir());
    std::fs::write(
        launcher.dir().join("servers.json"),
        json!({"mcpServers": {"fetch": {"command": "uvx", "args": ["mcp-server-fetch"], "timeout": 60,
            "transportType": "stdio", "env": {"PATH": path}}}})
        .to_string(),
    )
    .unwrap();
    let authority = rcgen::generate_simple_self_signed(["mcp.example.com".to_owned()]).unwrap();
    std::fs::write(launcher.dir().join("ca.pem"), authority.cert.pem()).unwrap();
    launcher
        .env("PATH", &path)
        .env("RIALTO_STATE_DIR", state.to_str().unwrap())
}

/// Starts Rialto with these words. Where they silence it, it is given a socket.
async fn start(words: &[String], line: &str) -> Rialto {
    let is_silent = words.iter().any(|word| word == "-q" || word == "none");
    let rialto = if is_silent {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        launcher(words).start_on(listener)
    } else {
        launcher(words).start().await
    };
    let rialto = rialto.expect(line);
    let health = reqwest::get(format!("http://{}/health", rialto.address())).await;
    assert_eq!(health.expect(line).status(), 200, "{line}");
    rialto
}

/// The first destination, once it is ready.
async fn first_destination(rialto: &Rialto) -> String {
    let url = format!("http://{}/ready", rialto.address());
    poll_until(
        "a destination is ready",
        PATIENCE,
        async || -> reqwest::Result<_> {
            let status: Value = reqwest::get(&url).await?.json().await?;
            let destinations = status["destinations"].as_object().into_iter().flatten();
            let mut ready = destinations.filter(|(_, destination)| destination["ready"] == true);
            Ok(ready.next().map(|(name, _)| name.clone()))
        },
    )
    .await
    .unwrap()
}

async fn serves(line: &str) {
    let rialto = start(&on_a_free_port(&words(line)), line).await;
    let first = first_destination(&rialto).await;
    let client = rialto.client_of(&first).await.unwrap();
    client.handshake(LEGACY, json!({})).await.expect(line);
    client.expect_echo("x").await.expect(line);
    let old_clients = line.contains("--ssePath") || line.contains("--server sse");
    if old_clients {
        let response = reqwest::get(format!("http://{}/sse", rialto.address()))
            .await
            .unwrap();
        assert_eq!(response.status(), 200, "{line}");
    }
}

async fn connects(line: &str) {
    // stdin has ended, so it ends without having contacted the server.
    let ended = launcher(&words(line)).run(PATIENCE).await.unwrap();
    assert_eq!(ended.code(), Some(0), "{line}: {}", ended.stderr_text());
    assert!(
        line.contains("--silent") || ended.stderr_text().contains("waiting for messages"),
        "{line}: {}",
        ended.stderr_text()
    );
}

async fn is_answered(line: &str, part: &str) {
    let ended = launcher(&words(line)).run(PATIENCE).await.unwrap();
    assert_eq!(ended.code(), Some(2), "{line}: {}", ended.stderr_text());
    assert!(
        ended.stderr_text().contains(part),
        "{line}: {}",
        ended.stderr_text()
    );
    assert!(ended.stdout.is_empty(), "{line}");
}

#[tokio::test]
async fn lines_of_other_bridges_do_what_the_page_tells() {
    let mut counts = [0; 3];
    for row in rows() {
        let part = row
            .result
            .strip_prefix("answered: `")
            .and_then(|rest| rest.strip_suffix('`'));
        match (row.result.as_str(), part) {
            ("serves", None) => {
                serves(&row.line).await;
                counts[0] += 1;
            }
            ("connects", None) => {
                connects(&row.line).await;
                counts[1] += 1;
            }
            (_, Some(part)) => {
                is_answered(&row.line, part).await;
                counts[2] += 1;
            }
            (other, None) => panic!("{other}: {}", row.line),
        }
    }
    let [serves, connects, answered] = counts;
    assert!(serves >= 15 && connects >= 15 && answered >= 10, "{counts:?}");
}

/// Rialto's own lines, beside those of others, are lines that Rialto takes.
#[tokio::test]
async fn lines_with_flags_of_rialto_are_accepted() {
    let mut checked = 0;
    for row in rows() {
        let Some(own) = row.own.strip_prefix('`').and_then(|own| own.strip_suffix('`')) else {
            continue;
        };
        // Variables stand in front; a line with a placeholder is for the reader to fill in.
        let has_placeholder = ["HASH", "PAGE", "NAME", "DIR"]
            .iter()
            .any(|word| own.contains(word));
        let Some((_, rest)) = own.split_once("rialto ").filter(|_| !has_placeholder) else {
            continue;
        };
        let words = shell_words(rest);
        if words.first().is_some_and(|verb| verb == "connect") {
            let ended = launcher(&words).run(PATIENCE).await.unwrap();
            assert_eq!(ended.code(), Some(0), "{own}: {}", ended.stderr_text());
        } else {
            let mut words = words;
            words.remove(0);
            let mut line = vec!["serve".to_owned()];
            line.extend(on_a_free_port(&words));
            drop(start(&line, own).await);
        }
        checked += 1;
    }
    assert!(checked >= 25, "{checked}");
}
