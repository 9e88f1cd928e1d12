//! How a conversation opens: malformed lines, and which era it settles on.
use serde_json::json;

use super::Talk;
use super::legacy::initialize;
use super::modern::enveloped;
use crate::demo::DemoEra;

#[test]
fn a_line_that_is_not_json_is_answered_without_an_id() {
    let mut talk = Talk::new(DemoEra::Both);
    let received = talk.say_line("{nonsense");
    assert_eq!(received[0]["error"]["code"], -32700);
    assert!(received[0].get("id").is_none());
    assert!(talk.say_line("  \r").is_empty());
    talk.machine.handle_overlong_line(7);
    assert_eq!(talk.hear()[0]["error"]["code"], -32700);
}

#[test]
fn invalid_message_is_an_invalid_request_with_its_id() {
    let mut talk = Talk::new(DemoEra::Both);
    let malformed_responses = [r#"{"jsonrpc":"2.0","id":3}"#, r#"{"id":3,"result":{}}"#];
    let no_messages = ["7", "[]", "{}", r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#];
    for line in malformed_responses.into_iter().chain(no_messages) {
        let received = talk.say_line(line);
        assert_eq!(received[0]["error"]["code"], -32600, "{line}");
        assert!(received[0].get("id").is_none(), "{line}");
    }
    for line in [
        r#"{"id":3,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":3,"method":1}"#,
    ] {
        let received = talk.say_line(line);
        assert_eq!(
            (&received[0]["error"]["code"], &received[0]["id"]),
            (&json!(-32600), &json!(3)),
            "{line}"
        );
    }
    let received = talk.say_line(r#"{"jsonrpc":"2.0","id":3,"method":"ping","params":[1]}"#);
    assert_eq!(received[0]["error"]["code"], -32602);
}

#[test]
fn discover_does_not_settle_the_era() {
    let mut talk = Talk::new(DemoEra::Both);
    let found = talk.result("server/discover", enveloped(json!({}), json!({})));
    assert_eq!(found["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(talk.code("server/discover", json!({})), -32602);
    assert_eq!(
        talk.result("initialize", initialize("2025-11-25", json!({})))["protocolVersion"],
        "2025-11-25"
    );
    assert_eq!(
        talk.code("server/discover", enveloped(json!({}), json!({}))),
        -32601
    );
}

#[test]
fn the_first_request_with_an_envelope_settles_on_modern() {
    let mut talk = Talk::new(DemoEra::Both);
    assert!(talk.notify("notifications/initialized", json!({})).is_empty());
    talk.result("tools/list", enveloped(json!({}), json!({})));
    let refused = talk.answer("initialize", initialize("2025-11-25", json!({})));
    assert_eq!(refused["error"]["code"], -32022);
    assert_eq!(
        refused["error"]["data"],
        json!({"supported": ["2026-07-28"], "requested": "2025-11-25"})
    );
}

#[test]
fn a_refused_envelope_leaves_the_way_back_to_initialize_open() {
    let mut talk = Talk::new(DemoEra::Both);
    let mut params = enveloped(json!({}), json!({}));
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2030-01-01");
    assert_eq!(talk.code("tools/list", params), -32022);
    talk.result("initialize", initialize("2025-06-18", json!({})));
}

#[test]
fn a_bare_first_request_settles_on_legacy() {
    let mut talk = Talk::new(DemoEra::Both);
    assert_eq!(talk.code("tools/list", json!({})), -32600);
    talk.result("initialize", initialize("2025-06-18", json!({})));
}
