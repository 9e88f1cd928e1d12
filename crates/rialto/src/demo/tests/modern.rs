//! Conversations of the modern era.
use serde_json::{Value, json};

use super::{Talk, names, text_of};
use crate::demo::{DemoEra, MAX_CALLS};

const META: &str = "io.modelcontextprotocol/";

pub(super) fn enveloped(mut params: Value, capabilities: Value) -> Value {
    params["_meta"][format!("{META}protocolVersion")] = json!("2026-07-28");
    params["_meta"][format!("{META}clientCapabilities")] = capabilities;
    params
}

fn bare(params: Value) -> Value {
    enveloped(params, json!({}))
}

fn talk() -> Talk {
    Talk::new(DemoEra::Modern)
}

fn call(name: &str, arguments: Value) -> Value {
    bare(json!({"name": name, "arguments": arguments}))
}

fn asking(name: &str, arguments: Value) -> Value {
    let able = json!({"elicitation": {"form": {}}, "sampling": {}, "roots": {}});
    enveloped(json!({"name": name, "arguments": arguments}), able)
}

/// The same call again, with an answer to what `asked` wanted to know.
fn retry(mut params: Value, asked: &Value, responses: Value) -> Value {
    params["requestState"] = asked["requestState"].clone();
    params["inputResponses"] = responses;
    params
}

#[test]
fn every_result_has_its_type_and_the_server_info() {
    let mut talk = talk();
    for (method, params, cacheable) in [
        ("server/discover", json!({}), true),
        ("tools/list", json!({}), true),
        ("prompts/list", json!({}), true),
        ("resources/list", json!({}), true),
        ("resources/templates/list", json!({}), true),
        ("resources/read", json!({"uri": "demo://readme"}), true),
        ("resources/read", json!({"uri": "demo://counter"}), true),
        (
            "prompts/get",
            json!({"name": "greet", "arguments": {"name": "Ada"}}),
            false,
        ),
        (
            "tools/call",
            json!({"name": "add", "arguments": {"a": 1, "b": 2}}),
            false,
        ),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": ""}}),
            false,
        ),
    ] {
        let result = talk.result(method, bare(params));
        assert_eq!(result["resultType"], "complete", "{method}");
        assert_eq!(
            result["_meta"][format!("{META}serverInfo")]["name"],
            "rialto-demo",
            "{method}"
        );
        assert_eq!(
            result["ttlMs"].is_u64() && result["cacheScope"].is_string(),
            cacheable,
            "{method}"
        );
    }
}

#[test]
fn an_envelope_that_lacks_something_is_refused() {
    let mut talk = talk();
    let without = |key: &str| {
        let mut params = bare(json!({}));
        params["_meta"]
            .as_object_mut()
            .unwrap()
            .remove(&format!("{META}{key}"));
        params
    };
    let with = |key: &str, value: Value| {
        let mut params = bare(json!({}));
        params["_meta"][key] = value;
        params
    };
    for params in [
        json!({}),
        without("protocolVersion"),
        without("clientCapabilities"),
        with("io.modelcontextprotocol/protocolVersion", json!(7)),
        with("io.modelcontextprotocol/clientCapabilities", json!([])),
        with("io.modelcontextprotocol/logLevel", json!("loud")),
        with("progressToken", json!({})),
    ] {
        assert_eq!(talk.code("tools/list", params.clone()), -32602, "{params}");
        assert_eq!(talk.code("server/discover", params.clone()), -32602, "{params}");
    }
    let future = with("io.modelcontextprotocol/protocolVersion", json!("2030-01-01"));
    let refused = talk.answer("server/discover", future);
    assert_eq!(refused["error"]["code"], -32022);
    assert_eq!(
        refused["error"]["data"],
        json!({"supported": ["2026-07-28"], "requested": "2030-01-01"})
    );
}

#[test]
fn removed_methods_are_unknown_and_missing_names_are_invalid_params() {
    let mut talk = talk();
    for method in [
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "initialize",
        "no/such",
    ] {
        assert_eq!(talk.code(method, bare(json!({}))), -32601, "{method}");
    }
    assert_eq!(
        talk.code("initialize", json!({"protocolVersion": "2025-11-25"})),
        -32022
    );
    assert_eq!(talk.code("tools/call", call("none", json!({}))), -32602);
    let missing = talk.answer("resources/read", bare(json!({"uri": "demo://none"})));
    assert_eq!(missing["error"]["code"], -32602);
    assert_eq!(missing["error"]["data"]["uri"], "demo://none");
}

#[test]
fn tools_do_in_this_era_what_they_do_in_the_other() {
    let mut talk = talk();
    assert_eq!(
        text_of(&talk.result("tools/call", call("echo", json!({"text": "hi"})))),
        "hi"
    );
    assert_eq!(
        talk.result("tools/call", call("add", json!({"a": 1, "b": 2})))["structuredContent"]["sum"],
        3
    );
    assert_eq!(
        talk.result("tools/call", call("add", json!({"a": 1})))["isError"],
        true
    );
    assert_eq!(
        talk.result("tools/call", call("fail", json!({})))["isError"],
        true
    );
    assert_eq!(
        talk.result("tools/call", call("link", json!({})))["content"][0]["type"],
        "resource_link"
    );
    assert_eq!(
        talk.result("tools/call", call("image", json!({})))["content"][0]["type"],
        "image"
    );
    let caller = talk.result("tools/call", asking("whoami", json!({})))["structuredContent"].clone();
    assert_eq!(
        (&caller["era"], &caller["version"]),
        (&json!("modern"), &json!("2026-07-28"))
    );
    assert_eq!(caller["clientCapabilities"]["sampling"], json!({}));
}

#[test]
fn counting_reports_progress_and_ends_in_a_complete_result() {
    let mut talk = talk();
    let mut params = call("count", json!({"steps": 2, "delay_ms": 5}));
    params["_meta"]["progressToken"] = json!(7);
    assert!(talk.ask("tools/call", params).is_empty());
    assert_eq!(talk.wait()[0]["params"]["progressToken"], 7);
    let received = talk.wait();
    assert_eq!(received[0]["params"]["progress"], 2);
    assert_eq!(received[1]["result"]["resultType"], "complete");
}

#[test]
fn a_cancelled_call_is_never_answered() {
    let mut talk = talk();
    talk.ask("tools/call", call("sleep", json!({})));
    assert!(
        talk.notify("notifications/cancelled", json!({"requestId": talk.last_id}))
            .is_empty()
    );
    assert!(talk.machine.next_deadline().is_none());
    let caller = talk.result("tools/call", call("whoami", json!({})));
    assert_eq!(caller["structuredContent"]["cancelledCalls"], 1);
}

#[test]
fn calls_are_bounded_and_an_id_in_use_is_refused() {
    let mut talk = talk();
    for _ in 0..MAX_CALLS {
        assert!(talk.ask("tools/call", call("sleep", json!({}))).is_empty());
    }
    assert_eq!(talk.code("tools/call", call("sleep", json!({}))), -32603);
    talk.last_id = 100;
    assert_eq!(talk.code("tools/call", call("sleep", json!({}))), -32600);
}

#[test]
fn a_question_is_a_result_and_its_answer_a_new_call() {
    let mut talk = talk();
    let params = asking("ask", json!({"question": "Which?"}));
    for (answer, told) in [
        (
            json!({"action": "accept", "content": {"answer": "Rialto"}}),
            "The answer was: Rialto",
        ),
        (json!({"action": "decline"}), "The user declined to answer."),
        (json!({"action": "cancel"}), "The user cancelled the question."),
    ] {
        let asked = talk.result("tools/call", params.clone());
        assert_eq!(asked["resultType"], "input_required");
        assert!(asked.get("ttlMs").is_none());
        let question = &asked["inputRequests"]["answer"];
        assert_eq!(question["method"], "elicitation/create");
        assert_eq!(question["params"]["message"], "Which?");
        let result = talk.result(
            "tools/call",
            retry(params.clone(), &asked, json!({"answer": answer})),
        );
        assert_eq!(
            (text_of(&result), &result["resultType"]),
            (told, &json!("complete"))
        );
    }
}

#[test]
fn two_questions_are_two_rounds_with_states_of_their_own() {
    let mut talk = talk();
    let params = asking("ask_twice", json!({}));
    let accept = |words: &str| json!({"action": "accept", "content": {"answer": words}});
    let first = talk.result("tools/call", params.clone());
    let second = talk.result(
        "tools/call",
        retry(params.clone(), &first, json!({"first": accept("here")})),
    );
    assert_eq!(second["resultType"], "input_required");
    assert_ne!(first["requestState"], second["requestState"]);
    let result = talk.result(
        "tools/call",
        retry(params.clone(), &second, json!({"second": accept("there")})),
    );
    assert_eq!(text_of(&result), "From here to there.");
    assert_eq!(
        talk.code(
            "tools/call",
            retry(params, &first, json!({"first": accept("again")}))
        ),
        -32602
    );
}

#[test]
fn sampling_and_roots_are_asked_for_in_the_same_way() {
    let mut talk = talk();
    let params = asking("sample", json!({"prompt": "Hi"}));
    let asked = talk.result("tools/call", params.clone());
    assert_eq!(
        asked["inputRequests"]["completion"]["method"],
        "sampling/createMessage"
    );
    let sampled = json!({"role": "assistant", "model": "m", "content": [{"type": "text", "text": "Ho"}]});
    let result = talk.result(
        "tools/call",
        retry(params, &asked, json!({"completion": sampled})),
    );
    assert_eq!(text_of(&result), "m said: Ho");
    let params = asking("roots", json!({}));
    let asked = talk.result("tools/call", params.clone());
    assert_eq!(asked["inputRequests"], json!({"roots": {"method": "roots/list"}}));
    let result = talk.result(
        "tools/call",
        retry(params, &asked, json!({"roots": {"roots": []}})),
    );
    assert_eq!(text_of(&result), "0 roots: ");
}

#[test]
fn a_forged_used_or_foreign_state_is_refused() {
    let mut talk = talk();
    let params = asking("ask", json!({}));
    let answer = json!({"answer": {"action": "decline"}});
    let asked = talk.result("tools/call", params.clone());
    let forged = retry(
        params.clone(),
        &json!({"requestState": "token-999999"}),
        answer.clone(),
    );
    assert_eq!(talk.code("tools/call", forged), -32602);
    assert_eq!(
        talk.code(
            "tools/call",
            retry(params.clone(), &json!({"requestState": 7}), answer.clone())
        ),
        -32602
    );
    let foreign = retry(
        asking("ask", json!({"question": "other"})),
        &asked,
        answer.clone(),
    );
    assert_eq!(talk.code("tools/call", foreign), -32602);
    talk.result("tools/call", retry(params.clone(), &asked, answer.clone()));
    assert_eq!(talk.code("tools/call", retry(params, &asked, answer)), -32602);
}

#[test]
fn a_state_expires_and_the_oldest_makes_room() {
    let mut talk = talk();
    let params = asking("ask", json!({}));
    let answer = json!({"answer": {"action": "decline"}});
    let oldest = talk.result("tools/call", params.clone());
    let second = talk.result("tools/call", params.clone());
    for _ in 0..63 {
        talk.result("tools/call", params.clone());
    }
    assert_eq!(
        talk.code("tools/call", retry(params.clone(), &oldest, answer.clone())),
        -32602
    );
    talk.result("tools/call", retry(params.clone(), &second, answer.clone()));
    let last = talk.result("tools/call", params.clone());
    talk.now += std::time::Duration::from_secs(600);
    assert_eq!(talk.code("tools/call", retry(params, &last, answer)), -32602);
}

#[test]
fn a_missing_answer_is_asked_for_again_and_a_malformed_one_refused_without_loss() {
    let mut talk = talk();
    let params = asking("ask", json!({}));
    let asked = talk.result("tools/call", params.clone());
    let again = talk.result(
        "tools/call",
        retry(params.clone(), &asked, json!({"unknown": {}})),
    );
    assert_eq!(again["requestState"], asked["requestState"]);
    assert_eq!(again["_meta"], asked["_meta"]);
    for responses in [
        json!(null),
        json!([]),
        json!({"answer": {"action": "shrug"}}),
        json!({"answer": 7}),
    ] {
        assert_eq!(
            talk.code("tools/call", retry(params.clone(), &asked, responses)),
            -32602
        );
    }
    talk.result(
        "tools/call",
        retry(params, &asked, json!({"answer": {"action": "cancel"}})),
    );
}

#[test]
fn a_call_that_needs_an_undeclared_capability_is_refused() {
    let mut talk = talk();
    for (name, required) in [
        ("ask", json!({"elicitation": {"form": {}}})),
        ("sample", json!({"sampling": {}})),
        ("roots", json!({"roots": {}})),
    ] {
        let refused = talk.answer("tools/call", call(name, json!({"prompt": "p"})));
        assert_eq!(refused["error"]["code"], -32021, "{name}");
        assert_eq!(refused["error"]["data"]["requiredCapabilities"], required);
    }
}

#[test]
fn log_messages_come_only_to_a_request_that_named_a_level() {
    let mut talk = talk();
    let log = |wanted: &str| {
        let mut params = call("log", json!({"level": "warning", "message": "m"}));
        params["_meta"][format!("{META}logLevel")] = json!(wanted);
        params
    };
    assert_eq!(
        talk.ask("tools/call", call("log", json!({"message": "m"}))).len(),
        1
    );
    assert_eq!(talk.ask("tools/call", log("error")).len(), 1);
    assert_eq!(
        talk.ask("tools/call", log("warning"))[0]["params"]["level"],
        "warning"
    );
}

#[test]
fn a_listen_is_acknowledged_tagged_and_ended() {
    let mut talk = talk();
    let tag = format!("{META}subscriptionId");
    let wanted = json!({"toolsListChanged": true, "promptsListChanged": true,
        "resourceSubscriptions": ["demo://counter", "demo://none", "demo://counter"]});
    let listen = json!({"jsonrpc": "2.0", "id": "l1", "method": "subscriptions/listen",
        "params": bare(json!({"notifications": wanted}))});
    let received = talk.say(listen.clone());
    assert_eq!(received.len(), 1);
    assert_eq!(received[0]["method"], "notifications/subscriptions/acknowledged");
    let honoured = json!({"toolsListChanged": true, "resourceSubscriptions": ["demo://counter"]});
    assert_eq!(
        received[0]["params"],
        json!({"notifications": honoured, "_meta": {tag.clone(): "l1"}})
    );
    assert_eq!(talk.say(listen)[0]["error"]["code"], -32600);
    // A second one that wants something else, under an id of another type.
    talk.ask(
        "subscriptions/listen",
        bare(json!({"notifications": {"toolsListChanged": true}})),
    );
    let second = talk.last_id;

    let received = talk.ask("tools/call", call("touch", json!({})));
    assert_eq!(received.len(), 2);
    assert_eq!(
        received[0]["params"],
        json!({"uri": "demo://counter", "_meta": {tag.clone(): "l1"}})
    );
    let received = talk.ask("tools/call", call("toggle_tool", json!({})));
    assert_eq!(received.len(), 3);
    assert_eq!(
        (
            &received[0]["params"]["_meta"][&tag],
            &received[1]["params"]["_meta"][&tag]
        ),
        (&json!("l1"), &json!(second))
    );
    assert!(names(&talk.result("tools/list", bare(json!({})))["tools"]).contains(&"extra"));

    assert!(
        talk.notify("notifications/cancelled", json!({"requestId": "l1"}))
            .is_empty()
    );
    assert_eq!(talk.ask("tools/call", call("touch", json!({}))).len(), 1);
    talk.machine.handle_end();
    let received = talk.hear();
    assert_eq!((received.len(), &received[0]["id"]), (1, &json!(second)));
    assert_eq!(received[0]["result"]["resultType"], "complete");
    assert_eq!(received[0]["result"]["_meta"][&tag], second);
}

#[test]
fn a_malformed_listen_is_refused_and_listens_are_bounded() {
    let mut talk = talk();
    for filter in [
        json!(null),
        json!({"toolsListChanged": 1}),
        json!({"resourceSubscriptions": [1]}),
    ] {
        assert_eq!(
            talk.code("subscriptions/listen", bare(json!({"notifications": filter}))),
            -32602
        );
    }
    for _ in 0..16 {
        talk.ask("subscriptions/listen", bare(json!({"notifications": {}})));
    }
    assert_eq!(
        talk.code("subscriptions/listen", bare(json!({"notifications": {}}))),
        -32603
    );
}

#[test]
fn a_response_from_the_client_is_ignored() {
    assert!(
        talk()
            .say(json!({"jsonrpc": "2.0", "id": 1, "result": {}}))
            .is_empty()
    );
}
