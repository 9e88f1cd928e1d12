//! What each scenario must have shown, whichever pair played it: the eras differ, what is seen does
//! not.

use serde_json::{Value, json};

use super::Expected;

pub fn call(expected: &Expected, seen: &Value) {
    assert_eq!(seen["text"], "Echo: Grüße, 世界 \u{2028} \"quoted\" \\ \u{1F309}");
    assert_eq!(seen["version"], expected.version);
    assert_eq!(seen["serverEra"], expected.server_era);
}

pub fn progress(_: &Expected, seen: &Value) {
    assert_eq!(seen["text"], "Counted to 5.");
    let steps: Vec<Vec<f64>> = serde_json::from_value(seen["seen"].clone()).expect("pairs of numbers");
    assert_eq!(
        steps,
        [[1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [4.0, 5.0], [5.0, 5.0]]
    );
}

pub fn cancellation(_: &Expected, seen: &Value) {
    let ended = seen["ended"].as_str().expect("a text");
    assert!(!ended.starts_with("answered"), "{ended}");
    assert_eq!(seen["cancelled"], 1);
}

pub fn two_elicitations(_: &Expected, seen: &Value) {
    assert_eq!(
        seen["asked"],
        json!([
            "First question: where does the bridge begin?",
            "Second question: where does it end?"
        ])
    );
    assert_eq!(seen["text"], "From San Polo to San Marco.");
}

pub fn sampling(_: &Expected, seen: &Value) {
    assert_eq!(seen["asked"], json!(["Who goes there?"]));
    assert_eq!(seen["text"], "Sampled: A friend.");
}

pub fn roots_at_start(_: &Expected, seen: &Value) {
    assert_eq!(seen["text"], "file:///srv/one");
}

pub fn roots_in_a_call(_: &Expected, seen: &Value) {
    assert_eq!(seen["text"], "file:///srv/one");
}

pub fn list_changed(_: &Expected, seen: &Value) {
    assert_eq!(seen["added"], json!(["extra"]));
}

pub fn resource_update(_: &Expected, seen: &Value) {
    assert_eq!(seen["uri"], "memo://watched");
    assert_eq!(
        (&seen["before"], &seen["after"]),
        (&json!("Version 0"), &json!("Version 1"))
    );
}

/// At the level `info`: a whisper at `debug` stays unheard.
pub fn logs(_: &Expected, seen: &Value) {
    assert_eq!(seen["logs"], json!([["warning", "a remark"]]));
}

/// The call fails with a reason, and the same client goes on with the new process.
pub fn restart(expected: &Expected, seen: &Value) {
    let steps: Vec<f64> = serde_json::from_value(seen["steps"].clone()).expect("numbers");
    assert_eq!(steps, [1.0, 2.0, 3.0]);
    let ended = seen["ended"].as_str().expect("a text");
    assert!(ended.contains(expected.lost_call), "{ended}");
    assert_eq!(seen["after"], "Echo: after");
    assert_eq!(seen["renewed"], true);
}
