//! One call fails, and the client goes on: real clients in front of the stub server, with the real
//! binary in between.
//!
//! Each test is one cell of (client, failure). The client holds a session open, has a call in
//! flight, makes the call that fails, and makes another one after it. The failure must be an error
//! of that call alone, with code and reason; the other calls are answered in the same session. The
//! journal of the stub shows that nothing ran twice.
//!
//! A crash is different: calls in flight were with the process that ended. Each gets an error of
//! its own, and the calls after them are answered by the next process.

use serde_json::{Value, json};
use testkit::Rialto;
use testkit::interop::sdk::{Era, Sdk, player, python_player};
use testkit::rialto::Launcher;

/// The least that the stub's oversized answer exceeds, and more than any other message here.
const LIMIT: [&str; 2] = ["--max-message-bytes", "64KiB"];
const SHORT_TIMEOUT: [&str; 4] = ["--request-timeout", "4s", "--stream-timeout", "4s"];

/// Lets a client play the scenario, and returns what it saw, with the Rialto whose journal has what
/// was executed.
async fn play(
    launcher: Launcher,
    path: &str,
    scenario: &str,
    player: impl FnOnce(&str, &str) -> Result<Value, String>,
) -> (Value, Rialto) {
    let rialto = launcher.start().await.expect("rialto starts");
    let url = format!("http://{}{path}", rialto.address());
    let seen = player(&url, scenario).unwrap_or_else(|why| panic!("the client failed in {scenario}: {why}"));
    (seen, rialto)
}

/// An error of one call, in the words of JSON-RPC.
#[track_caller]
fn assert_failed(failure: &Value, reason: &str) {
    assert_eq!(
        (&failure["code"], &failure["reason"]),
        (&json!(-32603), &json!(reason)),
        "{failure}"
    );
}

#[track_caller]
fn assert_ran_once(rialto: &Rialto, markers: &[&str]) {
    for marker in markers {
        assert_eq!(rialto.journal().executions(marker), 1, "{marker}");
    }
}

/// The scenario `crash`.
async fn goes_on_after_a_crash(player: impl FnOnce(&str, &str) -> Result<Value, String>) {
    let launcher = Rialto::launcher().stub(&[]);
    let (seen, rialto) = play(launcher, "/mcp", "crash", player).await;
    assert_failed(&seen["failure"], "upstream_exited");
    assert_failed(&seen["neighbour"], "upstream_exited");
    assert_eq!(seen["next"], json!(["next", "and the one beside it"]));
    assert_ran_once(
        &rialto,
        &["neighbour", "failing", "next", "and the one beside it"],
    );
}

/// The scenarios in which the neighbour's call is in flight before and after the failure.
async fn goes_on_beside(
    flags: &[&str],
    scenario: &str,
    reason: &str,
    player: impl FnOnce(&str, &str) -> Result<Value, String>,
) {
    let launcher = Rialto::launcher().args(flags).stub(&[]);
    let (seen, rialto) = play(launcher, "/mcp", scenario, player).await;
    assert_failed(&seen["failure"], reason);
    assert_eq!(
        (&seen["neighbour"], &seen["next"]),
        (&json!("neighbour"), &json!("next"))
    );
    assert_ran_once(&rialto, &["neighbour", "failing", "next"]);
}

/// The scenario `unavailable`: four crashes use up all restarts, and later calls are refused one by
/// one.
async fn goes_on_while_the_server_is_unavailable(player: impl FnOnce(&str, &str) -> Result<Value, String>) {
    let launcher = Rialto::launcher().stub(&[]);
    let (seen, rialto) = play(launcher, "/mcp", "unavailable", player).await;
    for number in 0..4 {
        assert_failed(&seen["crashes"][number], "upstream_exited");
        assert_ran_once(&rialto, &[&format!("crash {number}")]);
    }
    for number in 0..2 {
        assert_failed(&seen["refused"][number], "upstream_unavailable");
        assert_eq!(rialto.journal().executions(&format!("refused {number}")), 0);
    }
}

/// The scenario `connect_fails`: the server exits whenever it is started, and the client shows it.
async fn shows_why_it_cannot_connect(player: impl FnOnce(&str, &str) -> Result<Value, String>) {
    let launcher = Rialto::launcher().stub(&["--exit-at-once", "3"]);
    let (seen, _rialto) = play(launcher, "/mcp", "connect_fails", player).await;
    let message = seen["message"].as_str().unwrap_or_default();
    assert!(message.contains("exit status 3"), "{seen}");
}

macro_rules! clients {
    ($($client:ident: $player:expr;)*) => {$(
        mod $client {
            use super::*;

            #[tokio::test]
            async fn goes_on_after_a_crash() {
                super::goes_on_after_a_crash($player).await;
            }

            #[tokio::test]
            async fn goes_on_beside_an_oversized_answer() {
                goes_on_beside(&LIMIT, "oversized", "response_too_large", $player).await;
            }

            #[tokio::test]
            async fn goes_on_beside_a_call_without_an_answer() {
                goes_on_beside(&SHORT_TIMEOUT, "timeout", "timeout", $player).await;
            }

            #[tokio::test]
            async fn goes_on_while_the_server_is_unavailable() {
                super::goes_on_while_the_server_is_unavailable($player).await;
            }

            #[tokio::test]
            async fn shows_why_it_cannot_connect() {
                super::shows_why_it_cannot_connect($player).await;
            }
        }
    )*};
}

clients! {
    python_sdk_1_9: python_player("failures", "python1.9", "sdk1");
    python_sdk_1_12: python_player("failures", "python1.12", "sdk1");
    python_sdk_1_22: python_player("failures", "python1.22", "sdk1");
    python_sdk_1_30: python_player("failures", "python1", "sdk1");
    python_sdk_2_in_the_legacy_era: python_player("failures", "python2", "sdk2-legacy");
    python_sdk_2_in_the_modern_era: python_player("failures", "python2", "sdk2-auto");
    typescript_sdk_1: player("failures", Sdk::TypeScript1, Era::Legacy);
    typescript_sdk_2_in_the_legacy_era: player("failures", Sdk::TypeScript2, Era::Legacy);
    typescript_sdk_2_in_the_modern_era: player("failures", Sdk::TypeScript2, Era::Auto);
    fastmcp_2: python_player("failures", "python1", "fastmcp");
    fastmcp_4: python_player("failures", "python2", "fastmcp");
    langchain_adapters: python_player("failures", "python1", "langchain");
    openai_agents: python_player("failures", "python2", "openai-agents");
}

/// The client looks for the modern era first, which the old transport does not have.
#[tokio::test]
async fn openai_agents_calls_by_the_old_transport() {
    let file = json!({"destinations": {"old": {
        "command": "{stub}",
        "args": ["--journal", "{dir}/journal"],
        "legacy_sse": true,
    }}});
    let launcher = Rialto::launcher().config(&file.to_string());
    let player = python_player("failures", "python2", "openai-agents-sse");
    let (seen, rialto) = play(launcher, "/old/sse", "plain_call", player).await;
    assert_eq!(seen, json!({"next": "next"}));
    assert_ran_once(&rialto, &["next"]);
}
