//! Conversations of the legacy era.
use serde_json::{Value, json};

use super::{Talk, names, text_of};
use crate::demo::{DemoEra, MAX_CALLS};

pub(super) fn initialize(version: &str, capabilities: Value) -> Value {
    json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "test", "version": "1"}})
}

fn session_in(version: &str, capabilities: Value) -> Talk {
    let mut talk = Talk::new(DemoEra::Legacy);
    let opened = talk.result("initialize", initialize(version, capabilities));
    assert_eq!(opened["protocolVersion"], version);
    assert!(talk.notify("notifications/initialized", json!({})).is_empty());
    talk
}

fn session(capabilities: Value) -> Talk {
    session_in("2025-11-25", capabilities)
}

fn call(name: &str, arguments: Value) -> Value {
    json!({"name": name, "arguments": arguments})
}

/// Returns the client's answer to the server's question with this id.
fn reply(talk: &mut Talk, question: &Value, result: Value) -> Vec<Value> {
    talk.say(json!({"jsonrpc": "2.0", "id": question["id"], "result": result}))
}

#[test]
fn every_legacy_version_is_echoed_and_any_other_gets_the_newest() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        session_in(version, json!({}));
    }
    for version in ["2026-07-28", "1999-01-01"] {
        let mut talk = Talk::new(DemoEra::Legacy);
        let opened = talk.result("initialize", initialize(version, json!({})));
        assert_eq!(opened["protocolVersion"], "2025-11-25");
        assert_eq!(opened["serverInfo"]["name"], "rialto-demo");
        assert_eq!(opened["capabilities"]["resources"]["subscribe"], true);
    }
}

#[test]
fn before_initialize_only_ping_is_answered() {
    let mut talk = Talk::new(DemoEra::Legacy);
    assert_eq!(talk.result("ping", json!({})), json!({}));
    assert_eq!(talk.code("tools/list", json!({})), -32600);
    assert_eq!(talk.code("server/discover", json!({})), -32601);
    assert_eq!(
        talk.code("initialize", json!({"protocolVersion": "2025-11-25"})),
        -32602
    );
    talk.result("initialize", initialize("2025-11-25", json!({})));
    assert_eq!(
        talk.code("initialize", initialize("2025-11-25", json!({}))),
        -32600
    );
}

#[test]
fn unknown_methods_tools_prompts_and_resources_are_refused_with_their_codes() {
    let mut talk = session(json!({}));
    assert_eq!(talk.code("no/such", json!({})), -32601);
    assert_eq!(talk.code("tools/call", call("none", json!({}))), -32602);
    assert_eq!(talk.code("tools/call", json!({})), -32602);
    assert_eq!(talk.code("tools/call", call("echo", json!([]))), -32602);
    assert_eq!(talk.code("prompts/get", json!({"name": "none"})), -32602);
    assert_eq!(talk.code("prompts/get", json!({"name": "greet"})), -32602);
    assert_eq!(talk.code("resources/read", json!({"uri": "demo://none"})), -32002);
    assert_eq!(
        talk.code("resources/subscribe", json!({"uri": "demo://none"})),
        -32002
    );
    assert_eq!(talk.code("tools/list", json!({"cursor": "x"})), -32602);
    assert_eq!(talk.code("logging/setLevel", json!({"level": "loud"})), -32602);
}

#[test]
fn every_listed_tool_is_described_and_can_be_called() {
    let mut talk = session(json!({}));
    let listed = talk.result("tools/list", json!({}));
    assert_eq!(names(&listed["tools"]).len(), 15);
    for tool in listed["tools"].as_array().unwrap() {
        assert!(
            tool["title"].is_string() && tool["description"].is_string(),
            "{tool}"
        );
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert!(tool["annotations"]["readOnlyHint"].is_boolean(), "{tool}");
        let arguments = json!({"text": "t", "a": 1, "b": 2, "prompt": "p", "message": "m"});
        let received = talk.ask("tools/call", call(tool["name"].as_str().unwrap(), arguments));
        assert!(
            received.iter().all(|message| message.get("error").is_none()),
            "{received:?}"
        );
    }
}

#[test]
fn plain_tools_answer_with_their_kind_of_content() {
    let mut talk = session(json!({}));
    let mut result = |name: &str, arguments: Value| talk.result("tools/call", call(name, arguments));
    assert_eq!(text_of(&result("echo", json!({"text": "Zoë"}))), "Zoë");
    assert_eq!(
        result("add", json!({"a": 2, "b": 40}))["structuredContent"],
        json!({"sum": 42})
    );
    assert_eq!(
        result("add", json!({"a": 0.5, "b": 1}))["structuredContent"],
        json!({"sum": 1.5})
    );
    assert_eq!(result("add", json!({"a": 1e308, "b": 1e308}))["isError"], true);
    assert_eq!(result("fail", json!({}))["isError"], true);
    let link = &result("link", json!({}))["content"][0];
    assert_eq!(
        (&link["type"], &link["uri"]),
        (&json!("resource_link"), &json!("demo://readme"))
    );
    let image = &result("image", json!({}))["content"][0];
    assert_eq!(
        (&image["type"], &image["mimeType"]),
        (&json!("image"), &json!("image/png"))
    );
    assert!(image["data"].as_str().unwrap().starts_with("iVBORw0KGgo"));
    let caller = &result("whoami", json!({}))["structuredContent"];
    assert_eq!(
        (&caller["era"], &caller["pid"]),
        (&json!("legacy"), &json!(std::process::id()))
    );
}

#[test]
fn wrong_arguments_are_a_result_since_2025_11_25_and_an_error_before() {
    for arguments in [json!({}), json!({"text": 7})] {
        let failed = session(json!({})).result("tools/call", call("echo", arguments.clone()));
        assert_eq!(failed["isError"], true);
        assert!(text_of(&failed).contains("\"text\""));
        assert_eq!(
            session_in("2025-06-18", json!({})).code("tools/call", call("echo", arguments)),
            -32602
        );
    }
    let failed = session(json!({})).result("tools/call", call("count", json!({"steps": 0})));
    assert!(text_of(&failed).contains("from 1 to 1000"));
}

#[test]
fn a_client_older_than_links_gets_the_resource_itself() {
    let result = session_in("2025-03-26", json!({})).result("tools/call", call("link", json!({})));
    assert_eq!(result["content"][0]["type"], "resource");
}

#[test]
fn counting_reports_progress_under_the_callers_token_and_then_answers() {
    let mut talk = session(json!({}));
    let mut params = call("count", json!({"steps": 2, "delay_ms": 10}));
    params["_meta"] = json!({"progressToken": "p"});
    assert!(talk.ask("tools/call", params.clone()).is_empty());
    let received = talk.wait();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0]["method"], "notifications/progress");
    assert_eq!(received[0]["params"]["progressToken"], "p");
    assert_eq!(
        (
            &received[0]["params"]["progress"],
            &received[0]["params"]["total"]
        ),
        (&json!(1), &json!(2))
    );
    let received = talk.wait();
    assert_eq!(received[0]["params"]["progress"], 2);
    assert_eq!(text_of(&received[1]["result"]), "Counted to 2.");
    assert_eq!(talk.now.as_millis(), 20);
    params["_meta"] = json!({"progressToken": [1]});
    assert_eq!(talk.code("tools/call", params), -32602);
}

#[test]
fn counting_without_a_token_is_silent_until_the_end() {
    let mut talk = session(json!({}));
    talk.ask("tools/call", call("count", json!({"steps": 2, "delay_ms": 0})));
    assert!(talk.wait().is_empty());
    assert_eq!(talk.wait().len(), 1);
}

#[test]
fn a_cancelled_call_is_never_answered_and_others_go_on() {
    let mut talk = session(json!({}));
    talk.ask("tools/call", call("sleep", json!({"ms": 10})));
    let cancelled = talk.last_id;
    talk.ask("tools/call", call("sleep", json!({"ms": 20})));
    assert!(
        talk.notify("notifications/cancelled", json!({"requestId": cancelled}))
            .is_empty()
    );
    assert!(
        talk.notify("notifications/cancelled", json!({"requestId": "unknown"}))
            .is_empty()
    );
    let received = talk.wait();
    assert_eq!((received.len(), &received[0]["id"]), (1, &json!(talk.last_id)));
    assert_eq!(text_of(&received[0]["result"]), "Slept for 20 ms.");
    let caller = talk.result("tools/call", call("whoami", json!({})));
    assert_eq!(caller["structuredContent"]["cancelledCalls"], 1);
}

#[test]
fn cancelling_a_call_withdraws_the_question_it_asked() {
    let mut talk = session(json!({"elicitation": {}}));
    let question = talk.ask("tools/call", call("ask", json!({}))).remove(0);
    let received = talk.notify("notifications/cancelled", json!({"requestId": talk.last_id}));
    assert_eq!(received[0]["method"], "notifications/cancelled");
    assert_eq!(received[0]["params"]["requestId"], question["id"]);
    assert!(reply(&mut talk, &question, json!({"action": "cancel"})).is_empty());
}

#[test]
fn calls_are_bounded_and_an_id_in_use_is_refused() {
    let mut talk = session(json!({}));
    for _ in 0..MAX_CALLS {
        assert!(talk.ask("tools/call", call("sleep", json!({}))).is_empty());
    }
    assert_eq!(talk.code("tools/call", call("sleep", json!({}))), -32603);
    talk.last_id = 102;
    assert_eq!(talk.code("tools/call", call("sleep", json!({}))), -32600);
    assert_eq!(talk.wait().len(), MAX_CALLS);
}

#[test]
fn an_asked_user_may_accept_decline_or_cancel() {
    let mut talk = session(json!({"elicitation": {"form": {}}}));
    for (answer, told) in [
        (
            json!({"action": "accept", "content": {"answer": "Rialto"}}),
            "The answer was: Rialto",
        ),
        (json!({"action": "decline"}), "The user declined to answer."),
        (json!({"action": "cancel"}), "The user cancelled the question."),
        (
            json!({"action": "shrug"}),
            "elicitation/create: malformed answer to elicitation/create",
        ),
    ] {
        let question = talk
            .ask("tools/call", call("ask", json!({"question": "Which?"})))
            .remove(0);
        assert_eq!(question["method"], "elicitation/create");
        assert_eq!(question["params"]["message"], "Which?");
        assert_eq!(
            question["params"]["requestedSchema"]["required"],
            json!(["answer"])
        );
        let received = reply(&mut talk, &question, answer);
        assert_eq!((received.len(), &received[0]["id"]), (1, &json!(talk.last_id)));
        assert_eq!(text_of(&received[0]["result"]), told);
        assert!(
            reply(&mut talk, &question, json!({"action": "cancel"})).is_empty(),
            "answered once only"
        );
    }
}

#[test]
fn an_error_in_place_of_an_answer_becomes_a_failed_result() {
    let mut talk = session(json!({"roots": {}}));
    let question = talk.ask("tools/call", call("roots", json!({}))).remove(0);
    let error = json!({"code": -1, "message": "no"});
    let received = talk.say(json!({"jsonrpc": "2.0", "id": question["id"], "error": error}));
    assert_eq!(received[0]["result"]["isError"], true);
    assert_eq!(
        text_of(&received[0]["result"]),
        "roots/list: the client refused: no"
    );
}

#[test]
fn two_questions_in_a_row_are_two_requests_of_one_call() {
    let mut talk = session(json!({"elicitation": {}}));
    let first = talk.ask("tools/call", call("ask_twice", json!({}))).remove(0);
    let second = reply(
        &mut talk,
        &first,
        json!({"action": "accept", "content": {"answer": "here"}}),
    )
    .remove(0);
    assert_eq!(second["method"], "elicitation/create");
    assert_ne!(first["id"], second["id"]);
    let received = reply(
        &mut talk,
        &second,
        json!({"action": "accept", "content": {"answer": "there"}}),
    );
    assert_eq!(text_of(&received[0]["result"]), "From here to there.");
}

#[test]
fn two_calls_that_ask_at_once_each_get_their_own_answer() {
    let mut talk = session(json!({"elicitation": {}}));
    let questions: Vec<Value> = (0..2)
        .map(|_| talk.ask("tools/call", call("ask", json!({}))).remove(0))
        .collect();
    for (index, answer) in [(1, "late"), (0, "early")] {
        let received = reply(
            &mut talk,
            &questions[index],
            json!({"action": "accept", "content": {"answer": answer}}),
        );
        assert_eq!(received[0]["id"], json!(talk.last_id - 1 + index as u64));
        assert!(text_of(&received[0]["result"]).ends_with(answer));
    }
}

#[test]
fn sampling_and_roots_go_through_the_client() {
    let mut talk = session(json!({"sampling": {}, "roots": {}}));
    let question = talk
        .ask("tools/call", call("sample", json!({"prompt": "Hi"})))
        .remove(0);
    assert_eq!(question["method"], "sampling/createMessage");
    assert_eq!(question["params"]["messages"][0]["content"]["text"], "Hi");
    let sampled = json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "Ho"}});
    assert_eq!(
        text_of(&reply(&mut talk, &question, sampled)[0]["result"]),
        "m said: Ho"
    );
    let question = talk.ask("tools/call", call("roots", json!({}))).remove(0);
    assert_eq!(question["method"], "roots/list");
    let received = reply(
        &mut talk,
        &question,
        json!({"roots": [{"uri": "file:///a"}, {"uri": "file:///b"}]}),
    );
    assert_eq!(text_of(&received[0]["result"]), "2 roots: file:///a, file:///b");
}

#[test]
fn nothing_is_asked_that_the_client_did_not_declare() {
    let mut talk = session(json!({"elicitation": {"url": {}}}));
    for name in ["ask", "ask_twice", "sample", "roots"] {
        let result = talk.result("tools/call", call(name, json!({"prompt": "p"})));
        assert_eq!(result["isError"], true, "{name}");
        assert!(text_of(&result).contains("did not declare"), "{name}");
    }
}

#[test]
fn log_messages_honour_the_level_that_was_set() {
    let mut talk = session(json!({}));
    let log = |level: &str| call("log", json!({"level": level, "message": "m"}));
    assert_eq!(talk.ask("tools/call", log("debug")).len(), 1);
    let received = talk.ask("tools/call", log("info"));
    assert_eq!(received[0]["method"], "notifications/message");
    assert_eq!(
        (&received[0]["params"]["level"], &received[0]["params"]["data"]),
        (&json!("info"), &json!("m"))
    );
    assert_eq!(
        talk.result("logging/setLevel", json!({"level": "error"})),
        json!({})
    );
    assert_eq!(talk.ask("tools/call", log("warning")).len(), 1);
    assert_eq!(talk.ask("tools/call", log("critical")).len(), 2);
}

#[test]
fn the_extra_tool_comes_and_goes_with_a_notice() {
    let mut talk = session(json!({}));
    assert_eq!(talk.code("tools/call", call("extra", json!({}))), -32602);
    let received = talk.ask("tools/call", call("toggle_tool", json!({})));
    assert_eq!(received[0]["method"], "notifications/tools/list_changed");
    assert!(names(&talk.result("tools/list", json!({}))["tools"]).contains(&"extra"));
    talk.result("tools/call", call("extra", json!({})));
    assert_eq!(talk.ask("tools/call", call("toggle_tool", json!({}))).len(), 2);
    assert!(!names(&talk.result("tools/list", json!({}))["tools"]).contains(&"extra"));
}

#[test]
fn touching_the_counter_tells_subscribers_only() {
    let mut talk = session(json!({}));
    let counter = json!({"uri": "demo://counter"});
    assert_eq!(talk.ask("tools/call", call("touch", json!({}))).len(), 1);
    assert_eq!(talk.result("resources/subscribe", counter.clone()), json!({}));
    let received = talk.ask("tools/call", call("touch", json!({})));
    assert_eq!(received[0]["method"], "notifications/resources/updated");
    assert_eq!(received[0]["params"], counter);
    assert_eq!(
        talk.result("resources/read", counter.clone())["contents"][0]["text"],
        "2"
    );
    talk.result("resources/unsubscribe", counter);
    assert_eq!(talk.ask("tools/call", call("touch", json!({}))).len(), 1);
}

#[test]
fn resources_are_listed_and_read() {
    let mut talk = session(json!({}));
    assert_eq!(
        names(&talk.result("resources/list", json!({}))["resources"]),
        ["readme", "counter", "logo"]
    );
    let templates = talk.result("resources/templates/list", json!({}));
    assert_eq!(
        templates["resourceTemplates"][0]["uriTemplate"],
        "demo://greeting/{name}"
    );
    let mut read = |uri: &str| talk.result("resources/read", json!({"uri": uri}))["contents"][0].clone();
    assert!(read("demo://readme")["text"].as_str().unwrap().contains("Rialto"));
    assert_eq!(read("demo://logo")["mimeType"], "image/png");
    assert_eq!(read("demo://greeting/Zo%C3%AB%20B")["text"], "Hello, Zoë B!");
    for uri in [
        "demo://greeting/",
        "demo://greeting/%",
        "demo://greeting/%FF",
        "demo://greeting/a/b",
    ] {
        assert_eq!(talk.code("resources/read", json!({"uri": uri})), -32002, "{uri}");
    }
}

#[test]
fn prompts_are_listed_filled_in_and_completed() {
    let mut talk = session(json!({}));
    assert_eq!(
        names(&talk.result("prompts/list", json!({}))["prompts"]),
        ["greet", "review"]
    );
    for (name, arguments, word) in [
        ("greet", json!({"name": "Ada"}), "Ada"),
        ("review", json!({"code": "x=1"}), "x=1"),
    ] {
        let prompt = talk.result("prompts/get", json!({"name": name, "arguments": arguments}));
        assert!(
            prompt["messages"][0]["content"]["text"]
                .as_str()
                .unwrap()
                .contains(word)
        );
    }
    let prompt = json!({"type": "ref/prompt", "name": "greet"});
    let template = json!({"type": "ref/resource", "uri": "demo://greeting/{name}"});
    for reference in [prompt.clone(), template] {
        let params = json!({"ref": reference, "argument": {"name": "name", "value": "a"}});
        let completion = talk.result("completion/complete", params)["completion"].clone();
        assert_eq!(
            completion,
            json!({"values": ["Ada", "Alan"], "total": 2, "hasMore": false})
        );
    }
    let wrong = json!({"ref": prompt, "argument": {"name": "none", "value": ""}});
    assert_eq!(talk.code("completion/complete", wrong), -32602);
    assert_eq!(talk.code("completion/complete", json!({})), -32602);
}

#[test]
fn a_batch_is_taken_in_2025_03_26_only() {
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]"#;
    assert_eq!(session_in("2025-03-26", json!({})).say_line(batch).len(), 2);
    let long = format!(
        "[{}1]",
        r#"{"jsonrpc":"2.0","id":1,"method":"ping"},"#.repeat(100)
    );
    assert_eq!(session_in("2025-03-26", json!({})).say_line(&long).len(), 1);
    let received = session(json!({})).say_line(batch);
    assert_eq!(
        (received.len(), &received[0]["error"]["code"]),
        (1, &json!(-32600))
    );
}
