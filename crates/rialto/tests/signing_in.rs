//! `rialto login`, `logout` and `status`, and a gateway that uses what they keep.
//!
//! The browser is `testkit-browser`.

use std::path::Path;
use std::time::Duration;

use testkit::authorization_server::{AuthorizationServer, Conduct};
use testkit::rialto::Launcher;
use testkit::{Failure, Result, Rialto};

const DEADLINE: Duration = Duration::from_secs(60);

fn browser() -> String {
    format!("'{}'", testkit::rialto::binary("testkit-browser").display())
}

fn rialto(home: &Path, verb: &[&str]) -> Launcher {
    Rialto::launcher()
        .verb(verb)
        .env("RIALTO_BROWSER", &browser())
        .env("RIALTO_STATE_DIR", &home.to_string_lossy())
        .env("RIALTO_KEYRING", "off")
}

async fn says(home: &Path, verb: &[&str]) -> Result<String> {
    let ended = rialto(home, verb).run(DEADLINE).await?;
    match ended.code() {
        Some(0) => Ok(ended.stdout.join("\n")),
        code => Err(Failure::new(format!(
            "{verb:?} ended with {code:?}: {}",
            ended.stderr_text()
        ))),
    }
}

#[tokio::test]
async fn login_status_and_logout_go_together() -> Result<()> {
    let home = tempfile::tempdir()?;
    let authorization_server = AuthorizationServer::start(Conduct {
        challenge_scope: Some("read".into()),
        ..Conduct::default()
    });
    let endpoint = authorization_server.endpoint();
    assert!(
        says(home.path(), &["status"])
            .await?
            .contains("signed in nowhere")
    );
    let said = says(home.path(), &["login", &endpoint]).await?;
    assert!(
        said.contains(&format!("signed in to {endpoint}")) && said.contains("permissions: read"),
        "{said}"
    );
    let said = says(home.path(), &["status"]).await?;
    assert!(
        said.contains(&endpoint) && said.contains("renewed in") && !said.contains("access-"),
        "{said}"
    );
    assert!(
        says(home.path(), &["logout", &endpoint])
            .await?
            .contains("forgot")
    );
    assert!(
        says(home.path(), &["logout", &endpoint])
            .await?
            .contains("there were no tokens")
    );
    assert!(
        says(home.path(), &["status"])
            .await?
            .contains("signed in nowhere")
    );
    Ok(())
}

#[tokio::test]
async fn the_address_to_sign_in_at_is_printed_too() -> Result<()> {
    let home = tempfile::tempdir()?;
    let authorization_server = AuthorizationServer::start(Conduct::default());
    let ended = rialto(home.path(), &["login", &authorization_server.endpoint()])
        .run(DEADLINE)
        .await?;
    assert!(
        ended
            .stderr_text()
            .contains(&authorization_server.url("/authorize?")),
        "{}",
        ended.stderr_text()
    );
    assert!(!ended.stdout.join("\n").contains("/authorize"));
    Ok(())
}

#[tokio::test]
async fn login_that_cannot_work_reports_what_to_do() -> Result<()> {
    let home = tempfile::tempdir()?;
    let authorization_server = AuthorizationServer::start(Conduct {
        registration: false,
        ..Conduct::default()
    });
    let ended = rialto(home.path(), &["login", &authorization_server.endpoint()])
        .run(DEADLINE)
        .await?;
    assert_eq!(ended.code(), Some(1));
    assert!(
        ended.stderr_text().contains("--client-id"),
        "{}",
        ended.stderr_text()
    );
    for line in [
        &["login", "ftp://a"][..],
        &["login", "https://a.example/", "--client-secret-env", "NO_SUCH"],
    ] {
        assert_eq!(
            rialto(home.path(), line).run(DEADLINE).await?.code(),
            Some(2),
            "{line:?}"
        );
    }
    Ok(())
}

fn gateway(home: &Path, authorization_server: &AuthorizationServer) -> Launcher {
    let config = format!(
        "destinations: {{ far: {{ url: '{}', auth: oauth }} }}\n",
        authorization_server.endpoint()
    );
    let serve = ["serve", "--listen", "127.0.0.1:0", "--log-format", "json"];
    rialto(home, &serve).env("RUST_LOG", "trace").config(&config)
}

#[tokio::test]
async fn a_gateway_without_a_login_names_the_command_and_opens_nothing() -> Result<()> {
    let home = tempfile::tempdir()?;
    let authorization_server = AuthorizationServer::start(Conduct::default());
    let gateway = gateway(home.path(), &authorization_server).start().await?;
    let client = gateway.client_of("far").await?;
    let refused = client.initialize("2025-11-25", serde_json::json!({})).await?;
    let said = refused.body_text();
    assert!(
        said.contains(&format!("rialto login {}", authorization_server.endpoint())),
        "{} {said}",
        refused.status
    );
    assert!(authorization_server.seen("/authorize").is_empty());
    // The person reads that and does it; the gateway need not be started again.
    says(home.path(), &["login", &authorization_server.endpoint()]).await?;
    let session = gateway.session_of("far").await?;
    assert!(
        session
            .request(2, "tools/list", "{}")
            .await?
            .body_text()
            .contains("whoami")
    );
    Ok(())
}

#[tokio::test]
async fn a_gateway_signs_its_requests_and_keeps_the_token_fresh_and_to_itself() -> Result<()> {
    let home = tempfile::tempdir()?;
    let authorization_server = AuthorizationServer::start(Conduct::default());
    says(home.path(), &["login", &authorization_server.endpoint()]).await?;
    let gateway = gateway(home.path(), &authorization_server).start().await?;
    let session = gateway.session_of("far").await?;
    session.request(2, "tools/list", "{}").await?.expect_status(200)?;
    // The server forgets every access token in the middle of a session.
    authorization_server.revoke(false);
    session.call(3, "whoami", "{}").await?.expect_status(200)?;
    let calls = authorization_server
        .seen("/mcp")
        .into_iter()
        .filter(|seen| seen.body.contains("tools/call"));
    assert_eq!(calls.count(), 2, "refused once, then taken");
    let tokens = authorization_server.seen("/token");
    assert_eq!(
        tokens.last().map(|seen| seen.form["grant_type"].as_str()),
        Some("refresh_token")
    );
    gateway.sigterm();
    gateway.wait(DEADLINE).await;
    let written = [gateway.stderr(), gateway.stdout()].concat().join("\n");
    for secret in ["access-", "refresh-"] {
        assert!(!written.contains(secret), "{secret} was written");
    }
    Ok(())
}

#[tokio::test]
async fn the_token_of_the_gateway_is_never_the_clients() -> Result<()> {
    let home = tempfile::tempdir()?;
    let authorization_server = AuthorizationServer::start(Conduct::default());
    says(home.path(), &["login", &authorization_server.endpoint()]).await?;
    let gateway = gateway(home.path(), &authorization_server).start().await?;
    let client = gateway
        .client_of("far")
        .await?
        .with_header("authorization", "Bearer of-the-client");
    client.handshake("2025-11-25", serde_json::json!({})).await?;
    client.request(2, "tools/list", "{}").await?.expect_status(200)?;
    let sent = authorization_server
        .seen("/mcp")
        .into_iter()
        .filter_map(|seen| seen.authorization)
        .collect::<Vec<_>>();
    assert!(
        !sent.is_empty() && sent.iter().all(|value| value.starts_with("Bearer access-")),
        "{sent:?}"
    );
    Ok(())
}

/// `rialto connect` with these lines on its stdin; gives what it writes until each of them that is
/// a request is answered.
fn connect(
    home: &Path,
    authorization_server: &AuthorizationServer,
    lines: &[&str],
) -> std::io::Result<Vec<String>> {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_rialto"))
        .args(["connect", &authorization_server.endpoint()])
        .env("RIALTO_BROWSER", browser())
        .env("RIALTO_STATE_DIR", home)
        .env("RIALTO_KEYRING", "off")
        .env("RUST_LOG", "off")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut input = child.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
    let output = BufReader::new(child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?);
    for line in lines {
        writeln!(input, "{line}")?;
    }
    let asked = lines.iter().filter(|line| line.contains("\"id\"")).count();
    let answers = output.lines().take(asked).collect::<std::io::Result<Vec<_>>>()?;
    drop(input);
    child.wait()?;
    Ok(answers)
}

const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
const WELCOMED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const LIST: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
const DISCOVER: &str = r#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}"#;

#[test]
fn ten_connects_at_once_open_one_window_and_all_get_their_answers() -> std::io::Result<()> {
    let home = tempfile::tempdir()?;
    let authorization_server = AuthorizationServer::start(Conduct::default());
    std::thread::scope(|scope| {
        let ten: Vec<_> = (0..10)
            .map(|_| scope.spawn(|| connect(home.path(), &authorization_server, &[HELLO, WELCOMED, LIST])))
            .collect();
        for one in ten {
            let answers = one.join().expect("no panic")?;
            assert!(answers.iter().any(|line| line.contains("whoami")), "{answers:?}");
        }
        Ok::<_, std::io::Error>(())
    })?;
    assert_eq!(authorization_server.seen("/authorize").len(), 1);
    assert_eq!(authorization_server.seen("/token").len(), 1);
    Ok(())
}

#[test]
fn a_connect_that_is_only_probed_opens_no_window_and_leaves_nothing() -> std::io::Result<()> {
    let home = tempfile::tempdir()?;
    let authorization_server = AuthorizationServer::start(Conduct::default());
    let answers = connect(home.path(), &authorization_server, &[DISCOVER])?;
    assert!(answers[0].contains("error"), "{answers:?}");
    assert!(
        authorization_server.paths().iter().all(|path| path == "/mcp"),
        "{:?}",
        authorization_server.paths()
    );
    assert!(!home.path().join("sign-in").exists());
    Ok(())
}
