//! What each scenario must have shown, whichever client played it.
//!
//! A judge has the name of its scenario and panics with the difference. It knows nothing of
//! processes.

use serde_json::{Value, json};

const DOCUMENT: &str = "demo://resource/dynamic/text/";

pub fn connect(seen: &Value) {
    assert_eq!(seen["server"], "mcp-servers/everything");
    assert_eq!(seen["instructions"], true);
    assert_eq!(seen["protocolVersion"], "2025-11-25");
    assert_is_uuid_v4(text(&seen["sessionId"]));
}

/// FAULTS H3: each of a hundred clients that close without DELETE finds room.
pub fn reconnects(seen: &Value) {
    assert_eq!(seen["tools"], 100);
}

/// The modern era has no sessions.
pub fn discover(seen: &Value) {
    assert_eq!(seen["server"], "mcp-servers/everything");
    assert_eq!(seen["instructions"], true);
    assert_eq!(seen["protocolVersion"], "2026-07-28");
    assert_eq!(seen["sessions"], 0);
}

pub fn listing(seen: &Value) {
    // All clients share one server, which was sent every capability, so its list has the tools that
    // need one as well.
    assert_eq!(
        seen["tools"],
        json!([
            "echo",
            "get-annotated-message",
            "get-env",
            "get-resource-links",
            "get-resource-reference",
            "get-structured-content",
            "get-sum",
            "get-tiny-image",
            "gzip-file-as-resource",
            "toggle-simulated-logging",
            "toggle-subscriber-updates",
            "trigger-long-running-operation",
            "get-roots-list",
            "trigger-elicitation-request",
            "trigger-url-elicitation",
            "trigger-sampling-request",
            "simulate-research-query"
        ])
    );
    assert_eq!(
        seen["prompts"],
        json!([
            "simple-prompt",
            "args-prompt",
            "completable-prompt",
            "resource-prompt"
        ])
    );
    assert!(elements(&seen["resources"]).contains(&json!("demo://resource/static/document/architecture.md")));
    assert_eq!(
        seen["templates"],
        json!([
            "demo://resource/dynamic/text/{resourceId}",
            "demo://resource/dynamic/blob/{resourceId}"
        ])
    );
}

pub fn call(seen: &Value) {
    assert_eq!(seen["text"], "Echo: Grüße, 世界 \u{2028} \"quoted\" \\ \u{1F309}");
}

pub fn large_message(seen: &Value) {
    assert_eq!(seen["length"], 5_000_006);
    assert_eq!(seen["same"], true);
}

pub fn structured(seen: &Value) {
    assert_eq!(seen["sum"], "The sum of 20 and 22 is 42.");
    assert_eq!(
        seen["structured"],
        json!({"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82})
    );
}

pub fn tool_error(seen: &Value) {
    assert_eq!(seen["isError"], true);
    assert_eq!(seen["unknownPrompt"], -32602);
    // The Python clients cannot send a method that they do not know.
    if let Some(code) = seen.get("unknownMethod") {
        assert_eq!(code, -32601);
    }
    assert_eq!(seen["after"], "Echo: still here");
}

pub fn progress(seen: &Value) {
    let steps: Vec<Vec<f64>> = elements(&seen["seen"]).iter().map(numbers).collect();
    assert_eq!(steps, [1.0, 2.0, 3.0, 4.0, 5.0].map(|step| vec![step, 5.0]));
    assert_eq!(
        seen["text"],
        "Long running operation completed. Duration: 1 seconds, Steps: 5."
    );
}

pub fn sampling(seen: &Value) {
    assert_eq!(
        seen["asked"],
        json!(["Resource trigger-sampling-request context: Who goes there?"])
    );
    assert_contains(&seen["text"], "An answer from the witness.");
}

pub fn elicitation(seen: &Value) {
    assert_eq!(seen["asked"], json!([["name"], ["name"], ["name"]]));
    assert_contains(&seen["texts"][0], "- Name: Antonio da Ponte");
    assert_contains(&seen["texts"][0], "- Favorite Integer: 7");
    assert_contains(&seen["texts"][1], "User declined");
    assert_contains(&seen["texts"][2], "User cancelled");
}

pub fn roots(seen: &Value) {
    assert!(
        seen["asked"].as_u64() >= Some(2),
        "the server asked once more after the change"
    );
    assert_contains(&seen["before"], "(1 total)");
    assert_contains(&seen["before"], "file:///srv/one");
    assert_contains(&seen["after"], "(2 total)");
    assert_contains(&seen["after"], "file:///srv/two");
}

pub fn logging(seen: &Value) {
    let [first, third] = elements(&seen["subscriptions"]) else {
        panic!("two of three log messages are at the level asked for");
    };
    for (log, number) in [(first, 1), (third, 3)] {
        assert_eq!(log[0], "info");
        assert_contains(&log[1], &format!("{DOCUMENT}{number}"));
    }
    assert!(seen["simulated"].as_u64() >= Some(1));
}

pub fn subscriptions(seen: &Value) {
    assert_eq!(
        seen["first"],
        json!([format!("{DOCUMENT}1"), format!("{DOCUMENT}2")])
    );
    assert_eq!(
        seen["second"],
        json!([format!("{DOCUMENT}2"), format!("{DOCUMENT}3")])
    );
}

pub fn list_changed(seen: &Value) {
    assert_eq!(seen["added"], 1);
    assert_eq!(seen["uri"], "demo://resource/session/bridge.gz");
    assert_eq!(seen["blob"], true);
}

pub fn cancellation(seen: &Value) {
    assert_ne!(seen["outcome"], "answered");
    assert_eq!(seen["cancelledCalls"], 1);
}

pub fn two_elicitations(seen: &Value) {
    assert_eq!(
        seen["asked"],
        json!([
            "First question: where does the bridge begin?",
            "Second question: where does it end?"
        ])
    );
    assert_eq!(seen["text"], "From San Polo to San Marco.");
}

pub fn tools_changed(seen: &Value) {
    assert_eq!(seen["added"], json!(["extra"]));
    assert_eq!(seen["text"], "You found the extra tool.");
}

pub fn fifty_at_once(seen: &Value) {
    assert_eq!(seen["answered"], 50);
    assert_eq!(seen["wrong"], json!([]));
}

pub fn prompts_and_completion(seen: &Value) {
    assert_eq!(seen["prompt"], "What's weather in Venice, Veneto?");
    assert_eq!(seen["departments"], json!(["Sales", "Support"]));
    assert_eq!(seen["people"], json!(["David", "Eve", "Frank"]));
}

pub fn resources_read(seen: &Value) {
    assert_contains(&seen["text"], "Resource 17: This is a plaintext resource");
    assert_contains(&seen["blob"], "Resource 18: This is a base64 blob");
    assert!(seen["document"].as_u64() > Some(0));
    assert_eq!(seen["unknown"], -32602);
}

pub fn resume_after_the_end(seen: &Value) {
    assert_resumed(seen);
}

pub fn resume_before_the_end(seen: &Value) {
    assert_resumed(seen);
}

pub fn resume_with_token(seen: &Value) {
    assert_eq!(seen["token"], "string");
    // One second is what the first request asked for: the call was resumed, not run again.
    assert_eq!(
        seen["text"],
        "Long running operation completed. Duration: 1 seconds, Steps: 5."
    );
    assert_eq!(seen["after"], "Echo: resumed");
}

pub fn terminate(seen: &Value) {
    // rmcp keeps the status of its DELETE to itself.
    if let Some(status) = seen.get("deleted") {
        assert_eq!(status, 204);
    }
    assert_eq!(seen["refused"], 404);
}

pub fn renewed_session(seen: &Value) {
    assert_eq!(seen["deleted"], 204);
    assert_eq!(seen["after"], "Echo: after");
    assert_eq!(seen["sessions"], 2);
}

pub fn two_clients_sample_at_once(seen: &Value) {
    assert_contains(&seen["texts"][0], "answer of left");
    assert_contains(&seen["texts"][1], "answer of right");
}

/// Every step came once and in order although the connection broke after the first.
fn assert_resumed(seen: &Value) {
    assert_eq!(numbers(&seen["steps"]), [1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_contains(&seen["text"], "Long running operation completed.");
    let resumes = elements(&seen["resumes"]);
    assert!(!resumes.is_empty(), "the client came back");
    assert!(resumes.iter().all(|status| status == 200), "{resumes:?}");
}

#[track_caller]
fn assert_contains(value: &Value, part: &str) {
    assert!(text(value).contains(part), "{value} does not contain {part:?}");
}

#[track_caller]
fn assert_is_uuid_v4(id: &str) {
    let parts: Vec<&str> = id.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let is_hex = parts.concat().chars().all(|digit| digit.is_ascii_hexdigit());
    assert!(
        lengths == [8, 4, 4, 4, 12] && is_hex && parts[2].starts_with('4'),
        "{id} is no UUID v4"
    );
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

#[track_caller]
fn elements(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

/// One client writes 1 where the other writes 1.0.
fn numbers(value: &Value) -> Vec<f64> {
    elements(value)
        .iter()
        .map(|number| number.as_f64().expect("a number"))
        .collect()
}
