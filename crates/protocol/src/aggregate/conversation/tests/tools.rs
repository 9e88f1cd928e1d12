//! Tools and prompts: names, rules, headers, progress, cancellation, search, tasks.

use super::*;
use crate::aggregate::plan::ToolRules;
use crate::tool_policy::Glob;
use crate::wire::header::{MirroredHeaders, MirroredParams};

#[test]
fn call_goes_to_the_one_member_under_its_own_name() {
    let mut bench = Bench::open(Era::Legacy);
    let (call, out) = bench.call("tools/call", &json!({"name": "gh__issue", "arguments": {"n": 1}}));
    let opened: Vec<&str> = out.asks.iter().map(|(member, _)| member.as_str()).collect();
    assert_eq!(
        opened,
        ["github", "github"],
        "it is opened, then called; no other member is"
    );
    let (_, asked) = sole_call(&out);
    assert_eq!(
        params_of(&asked.message),
        json!({"name": "issue", "arguments": {"n": 1}})
    );
    assert_eq!(
        out.routed,
        [Routed {
            call,
            member: "github".into(),
            own: "issue".to_owned()
        }]
    );
    let out = bench.reply("github", call, &json!({"content": []}));
    assert_eq!(sole_reply(&out)["result"], json!({"content": []}));
    assert_eq!(bench.conversation.open_calls(), 0);
    let (_, out) = bench.call("tools/call", &json!({"name": "gh__list"}));
    assert!(matches!(out.asks[..], [(_, Ask::Call(_))]), "it is opened once");
}

#[test]
fn unknown_name_is_refused_and_never_parsed() {
    let mut bench = Bench::open(Era::Legacy);
    for name in ["issue", "github__issue", "gh__other", "files__", ""] {
        let answer = bench.answered("tools/call", &json!({"name": name}));
        assert_eq!(answer["error"]["code"], -32602, "{name}");
    }
    assert_eq!(bench.answered("tools/call", &json!({}))["error"]["code"], -32602);
    assert_eq!(
        bench.answered("prompts/get", &json!({"name": "review"}))["error"]["code"],
        -32602
    );
}

#[test]
fn prompt_goes_to_its_member() {
    let mut bench = Bench::open(Era::Legacy);
    let (_, params) = bench.routed(
        "github",
        "prompts/get",
        &json!({"name": "gh__review", "arguments": {}}),
    );
    assert_eq!(params, json!({"name": "review", "arguments": {}}));
}

#[test]
fn answer_of_another_member_is_no_answer() {
    let mut bench = Bench::open(Era::Legacy);
    let (call, _) = bench.routed("github", "tools/call", &json!({"name": "gh__issue"}));
    bench.routed("files", "tools/call", &json!({"name": "files__read"}));
    let stray = bench.reply(
        "files",
        call,
        &json!({"content": [{"type": "text", "text": "forged"}]}),
    );
    assert!(stray.tells.is_empty(), "{stray:?}");
    let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}});
    let related = |message| Tell::Related {
        session: SESSION,
        call,
        message,
    };
    assert!(bench.tell("files", related(message(&progress))).tells.is_empty());
    assert_eq!(bench.tell("github", related(message(&progress))).tells.len(), 1);
    assert_eq!(bench.reply("github", call, &json!({})).tells.len(), 1);
    assert!(
        bench.reply("github", call, &json!({})).tells.is_empty(),
        "one answer each"
    );
}

#[test]
fn cancellation_reaches_one_member_and_no_other() {
    let mut bench = Bench::open(Era::Legacy);
    let (call, _) = bench.routed("github", "tools/call", &json!({"name": "gh__issue"}));
    bench.routed("files", "tools/call", &json!({"name": "files__read"}));
    let note =
        message(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}));
    let out = bench.ask(Ask::Cancel {
        session: SESSION,
        call,
        message: Some(note),
    });
    assert!(
        matches!(&out.asks[..], [(member, Ask::Cancel { call: cancelled, .. })] if member == "github" && *cancelled == call)
    );
    let out = bench.fail("github", call, Failure::Cancelled);
    assert_eq!(failures(&out), [(call, "cancelled")]);
    let again = bench.ask(Ask::Cancel {
        session: SESSION,
        call,
        message: None,
    });
    assert!(again.asks.is_empty());
}

#[test]
fn log_lines_and_progress_name_their_member() {
    let mut bench = Bench::open(Era::Legacy);
    let (call, _) = bench.routed("github", "tools/call", &json!({"name": "gh__issue"}));
    let line = message(
        &json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "logger": "db", "data": 1}}),
    );
    let out = bench.tell(
        "github",
        Tell::Related {
            session: SESSION,
            call,
            message: line,
        },
    );
    let [Tell::Related { message, .. }] = &out.tells[..] else {
        panic!("{out:?}");
    };
    assert_eq!(params_of(message)["logger"], "github/db");
}

#[test]
fn hidden_arguments_are_fixed_and_other_rules_hold() {
    let mut github = member("github", Some("gh"));
    github.tools = ToolRules {
        rename: [("issue".to_owned(), "new_issue".to_owned())].into(),
        hide_args: [("issue".to_owned(), [("repo".to_owned(), json!("a/b"))].into())].into(),
        ..ToolRules::default()
    };
    let spec = spec(vec![github, member("files", None)]);
    let mut bench = Bench::opened(spec, offers(), ToolsMode::All, Era::Legacy, "{}");
    let (_, params) = bench.routed(
        "github",
        "tools/call",
        &json!({"name": "gh__new_issue", "arguments": {"repo": "mine", "n": 1}}),
    );
    assert_eq!(
        params,
        json!({"name": "issue", "arguments": {"repo": "a/b", "n": 1}})
    );
}

#[test]
fn mirrored_headers_are_checked_against_the_shown_schema() {
    let tool = json!({"name": "read", "inputSchema": {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}});
    let files = offering(MODERN, &[tool.to_string()], &[], &[], &[]);
    let mut bench = Bench::opened(two(), vec![("files", files)], ToolsMode::All, Era::Modern, "{}");
    let mut call = |value: &str| {
        let headers: [(&[u8], &[u8]); 1] = [(b"Mcp-Param-Region", value.as_bytes())];
        let mirrored: MirroredParams = MirroredHeaders::read(headers).kept_params();
        let text = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "files__read", "arguments": {"region": "eu"}}});
        bench.calls += 1;
        bench.ask(Ask::Call(Call {
            session: SESSION,
            call: CallKey(10 + bench.calls),
            request: Request::Plain,
            message: message(&text),
            era: Era::Modern,
            mirrored: Some(mirrored),
            reads_events: true,
        }))
    };
    let agreeing = call("eu");
    let (_, asked) = sole_call(&agreeing);
    assert!(asked.mirrored.is_none(), "the member gets headers of its own");
    assert_eq!(sole_reply(&call("us"))["error"]["code"], -32020);
}

// Search.

fn searching() -> Bench {
    let annotated = |name: &str, hints: Value| {
        json!({"name": name, "description": format!("Does {name}."), "annotations": hints}).to_string()
    };
    let tools = [
        annotated("list_issues", json!({"readOnlyHint": true})),
        annotated(
            "add_issue",
            json!({"readOnlyHint": false, "destructiveHint": false}),
        ),
        annotated("delete_issue", json!({})),
    ];
    let mut spec = two();
    spec.always = vec![Glob::parse("gh__list_*").unwrap()];
    let github = offering(ALL, &tools, &[], &[], &[]);
    let offers = vec![("github", github), offers().remove(1)];
    Bench::opened(spec, offers, ToolsMode::Search, Era::Legacy, "{}")
}

#[test]
fn tools_are_found_and_called_by_what_their_hints_allow() {
    let mut bench = searching();
    let list = bench.answered("tools/list", &json!({}));
    let shown: Vec<&str> = list["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        shown,
        [
            "find_tools",
            "call_read",
            "call_write",
            "call_destructive",
            "gh__list_issues"
        ]
    );
    let found = bench.answered(
        "tools/call",
        &json!({"name": "find_tools", "arguments": {"query": "delete an issue", "limit": 1}}),
    );
    let tools = &found["result"]["structuredContent"]["tools"];
    assert_eq!(tools[0]["name"], "gh__delete_issue");
    assert_eq!(
        tools[0]["description"], "Does delete_issue.",
        "definitions are whole"
    );
    let mut by = |with: &str, name: &str| {
        let arguments = json!({"name": name, "arguments": {"n": 1}});
        bench
            .call(
                "tools/call",
                &json!({"name": with, "arguments": arguments, "_meta": {"progressToken": 5}}),
            )
            .1
    };
    let out = by("call_read", "gh__list_issues");
    let (member, asked) = sole_call(&out);
    assert_eq!(member, "github");
    assert_eq!(
        params_of(&asked.message),
        json!({"name": "list_issues", "arguments": {"n": 1}, "_meta": {"progressToken": 5}})
    );
    for (with, name) in [
        ("call_read", "gh__add_issue"),
        ("call_read", "gh__delete_issue"),
        ("call_write", "gh__delete_issue"),
    ] {
        let refused = sole_reply(&by(with, name));
        assert_eq!(refused["result"]["isError"], true, "{with} {name}");
        assert!(refused.to_string().contains(if name.contains("add") {
            "call_write"
        } else {
            "call_destructive"
        }));
    }
    for (with, name) in [
        ("call_write", "gh__add_issue"),
        ("call_destructive", "gh__delete_issue"),
        ("call_destructive", "gh__list_issues"),
    ] {
        sole_call(&by(with, name));
    }
    assert_eq!(sole_reply(&by("call_read", "gh__none"))["error"]["code"], -32602);
}

#[test]
fn search_finds_no_tool_that_is_for_user_interfaces_alone() {
    let tools = [
        json!({"name": "show_issue"}).to_string(),
        json!({"name": "fold_issue", "_meta": {"ui": {"visibility": ["app"]}}}).to_string(),
    ];
    let offers = vec![("github", offering(ALL, &tools, &[], &[], &[]))];
    let mut bench = Bench::opened(two(), offers, ToolsMode::Search, Era::Legacy, "{}");
    let query = json!({"name": "find_tools", "arguments": {"query": "issue"}});
    let found = bench.answered("tools/call", &query);
    let tools = &found["result"]["structuredContent"]["tools"];
    assert_eq!(*tools, json!([{"name": "gh__show_issue"}]));
}

#[test]
fn tool_that_is_judged_is_the_one_that_is_called() {
    for arguments in [
        r#"{"name":"gh__list_issues","arguments":{"n":1e400}}"#,
        r#"{"name":"gh__list_issues","arguments":{"t":"\ud800"}}"#,
        r#"{"name":"gh__delete_issue","name":"gh__list_issues"}"#,
        r#"{"n\u0061me":"gh__list_issues"}"#,
    ] {
        let mut bench = searching();
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"call_read","arguments":{arguments}}}}}"#
        );
        let message = Message::scan(Bytes::from(text)).unwrap();
        let judged = tool_within(&message);
        let out = bench.ask(Ask::Call(Call {
            session: SESSION,
            call: CallKey(10),
            request: Request::Plain,
            message,
            era: Era::Legacy,
            mirrored: None,
            reads_events: true,
        }));
        assert_eq!(out.routed[0].own, "list_issues", "{arguments}: {out:?}");
        assert_eq!(judged.as_deref(), Some("gh__list_issues"), "{arguments}");
    }
}

#[test]
fn hidden_tool_stays_callable_by_its_name() {
    let mut bench = searching();
    bench.routed("github", "tools/call", &json!({"name": "gh__delete_issue"}));
}

#[test]
fn search_that_cannot_be_read_fails_with_a_reason_for_the_model() {
    let mut bench = searching();
    for arguments in [
        json!({}),
        json!({"query": "x", "member": "absent"}),
        json!({"query": "x", "limit": "many"}),
    ] {
        let answer = bench.answered(
            "tools/call",
            &json!({"name": "find_tools", "arguments": arguments}),
        );
        assert_eq!(answer["result"]["isError"], true, "{arguments}");
    }
    for arguments in [json!({}), json!({"name": "gh__list_issues", "arguments": [1]})] {
        let answer = bench.answered(
            "tools/call",
            &json!({"name": "call_read", "arguments": arguments}),
        );
        assert_eq!(answer["result"]["isError"], true, "{arguments}");
    }
}

#[test]
fn search_names_are_ordinary_where_nothing_is_searched() {
    let mut bench = Bench::open(Era::Legacy);
    let answer = bench.answered(
        "tools/call",
        &json!({"name": "find_tools", "arguments": {"query": "x"}}),
    );
    assert_eq!(answer["error"]["code"], -32602);
}

// States and tasks.

#[test]
fn state_of_a_modern_member_is_bound_to_it() {
    let mut bench = Bench::open(Era::Modern);
    let (call, _) = bench.routed("files", "tools/call", &json!({"name": "files__read"}));
    let asked = json!({"resultType": "input_required", "inputRequests": {"k": {"method": "elicitation/create", "params": {"message": "Sure?"}}}, "requestState": "s1"});
    let answer = sole_reply(&bench.reply("files", call, &asked));
    assert_eq!(answer["result"]["requestState"], "files:s1");
    assert_eq!(
        answer["result"]["inputRequests"]["k"]["params"]["message"],
        "[files: m] Sure?"
    );
    let retry = |state: &str, name: &str| json!({"name": name, "requestState": state, "inputResponses": {"k": {"action": "accept"}}});
    let (_, params) = bench.routed("files", "tools/call", &retry("files:s1", "files__read"));
    assert_eq!(params["requestState"], "s1");
    assert!(
        params["inputResponses"]["k"].is_object(),
        "keys of questions pass"
    );
    for (state, name) in [
        ("github:s1", "files__read"),
        ("s1", "files__read"),
        ("files:s1", "gh__issue"),
    ] {
        let refused = bench.answered("tools/call", &retry(state, name));
        assert_eq!(refused["error"]["code"], -32602, "{state} {name}");
    }
}

#[test]
fn task_is_known_by_its_member_and_asked_for_there() {
    let mut bench = Bench::open(Era::Legacy);
    let (call, _) = bench.routed("github", "tools/call", &json!({"name": "gh__issue", "task": {}}));
    let created = json!({"task": {"taskId": "t.1:x", "status": "working"}});
    let answer = sole_reply(&bench.reply("github", call, &created));
    assert_eq!(answer["result"]["task"]["taskId"], "github:t.1:x");
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let (_, params) = bench.routed("github", method, &json!({"taskId": "github:t.1:x"}));
        assert_eq!(params["taskId"], "t.1:x");
    }
    for unknown in ["t.1", "absent:t", "files:t"] {
        let answer = bench.answered("tasks/get", &json!({"taskId": unknown}));
        assert!(answer["error"]["code"].is_number(), "{unknown}");
    }
    let status = message(
        &json!({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": {"taskId": "t.1:x", "status": "completed"}}),
    );
    let out = bench.tell(
        "github",
        Tell::Notice {
            session: SESSION,
            message: status,
        },
    );
    assert_eq!(notices(&out)[0]["params"]["taskId"], "github:t.1:x");
}

/// Three members, two of which have tasks.
fn tasking() -> Bench {
    let spec = spec(vec![
        member("github", Some("gh")),
        member("files", None),
        member("jobs", None),
    ]);
    let mut offers = offers();
    offers.push(("jobs", offering(ALL, &named(&["run"]), &[], &[], &[])));
    Bench::opened(spec, offers, ToolsMode::All, Era::Legacy, "{}")
}

#[test]
fn tasks_of_all_members_are_one_list() {
    let mut bench = tasking();
    let (call, out) = bench.call("tasks/list", &json!({}));
    let pages: Vec<(String, CallKey)> = out
        .asks
        .iter()
        .filter_map(|(member, ask)| {
            let Ask::Call(call) = ask else { return None };
            Some((member.clone(), call.call))
        })
        .collect();
    assert_eq!(pages.len(), 2, "the third has no tasks: {out:?}");
    let task = |id: &str| json!({"taskId": id, "status": "working"});
    let out = bench.reply("jobs", pages[1].1, &json!({"tasks": [task("j")]}));
    assert!(out.tells.is_empty());
    let out = bench.reply(
        "github",
        pages[0].1,
        &json!({"tasks": [task("1")], "nextCursor": "c"}),
    );
    let (member, next) = sole_call(&out);
    assert_eq!(
        (member, params_of(&next.message)),
        ("github", json!({"cursor": "c"}))
    );
    let next = next.call;
    let out = bench.reply("github", next, &json!({"tasks": [task("2")]}));
    let Tell::Reply { call: answered, .. } = &out.tells[0] else {
        panic!("{out:?}")
    };
    assert_eq!(*answered, call);
    let answer = sole_reply(&out);
    let ids: Vec<&str> = answer["result"]["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["taskId"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["github:1", "github:2", "jobs:j"]);
}

#[test]
fn list_of_tasks_ends_though_a_reload_removes_a_member_between_its_pages() {
    let mut bench = tasking();
    let (call, out) = bench.call("tasks/list", &json!({}));
    let pages: Vec<CallKey> = out
        .asks
        .iter()
        .filter_map(|(_, ask)| {
            let Ask::Call(call) = ask else { return None };
            Some(call.call)
        })
        .collect();
    let plan = Plan::new(spec(vec![member("github", Some("gh")), member("files", None)])).unwrap();
    bench.catalogue.handle_plan(Arc::new(plan));
    bench.show();
    let task = |id: &str| json!({"taskId": id, "status": "working"});
    let more = json!({"tasks": [task("j")], "nextCursor": "c"});
    assert!(bench.reply("jobs", pages[1], &more).tells.is_empty());
    let out = bench.reply("github", pages[0], &json!({"tasks": [task("1")]}));
    let answer = sole_reply(&out);
    let ids: Vec<&Value> = answer["result"]["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| &task["taskId"])
        .collect();
    assert_eq!(ids, ["github:1", "jobs:j"]);
    assert!(matches!(out.tells[..], [Tell::Reply { call: answered, .. }] if answered == call));
    assert_eq!(bench.conversation.open_calls(), 0);
}

#[test]
fn list_of_tasks_is_never_empty_because_no_member_answers() {
    let mut bench = tasking();
    let (call, out) = bench.call("tasks/list", &json!({}));
    let pages: Vec<(String, CallKey)> = out
        .asks
        .iter()
        .filter_map(|(member, ask)| {
            let Ask::Call(call) = ask else { return None };
            Some((member.clone(), call.call))
        })
        .collect();
    for (member, page) in &pages {
        let out = bench.fail(member, *page, Failure::Retired);
        assert_eq!(failures(&out).len(), usize::from(member == "jobs"));
    }
    let (_, out) = bench.call("tasks/list", &json!({}));
    assert_eq!(out.asks.len(), 2, "both are open by now");
    let last = CallKey(10 + bench.calls);
    let out = bench.ask(Ask::Cancel {
        session: SESSION,
        call: last,
        message: None,
    });
    assert_eq!(failures(&out), [(last, "cancelled")]);
    assert_eq!(
        out.asks
            .iter()
            .filter(|(_, ask)| matches!(ask, Ask::Cancel { .. }))
            .count(),
        2
    );
    assert_ne!(call, last);
}

// Extensions.

#[test]
fn method_of_an_extension_goes_to_the_one_member_that_declares_it() {
    let extended = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"experimental":{"x/y":{}}},"serverInfo":{"name":"s","version":"1"}}"#;
    let github = offering(extended, &named(&["issue"]), &[], &[], &[]);
    let both = vec![("github", Arc::clone(&github)), ("files", Arc::clone(&github))];
    let one = vec![("github", github), offers().remove(1)];
    let declared = r#"{"experimental":{"x/y":{}}}"#;
    let mut bench = Bench::opened(two(), one.clone(), ToolsMode::All, Era::Legacy, declared);
    bench.routed("github", "x/do", &json!({"a": 1}));
    let mut bench = Bench::opened(two(), one, ToolsMode::All, Era::Legacy, "{}");
    assert_eq!(bench.answered("x/do", &json!({}))["error"]["code"], -32601);
    let mut bench = Bench::opened(two(), both, ToolsMode::All, Era::Legacy, declared);
    assert_eq!(
        bench.answered("x/do", &json!({}))["error"]["code"],
        -32601,
        "it is never guessed"
    );
}

#[test]
fn call_through_a_search_tool_needs_no_header_for_the_tool_within() {
    let tool = json!({"name": "read", "inputSchema": {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}});
    let files = offering(MODERN, &[tool.to_string()], &[], &[], &[]);
    let mut bench = Bench::opened(
        two(),
        vec![("files", files)],
        ToolsMode::Search,
        Era::Modern,
        "{}",
    );
    let mut call = |name: &str, arguments: Value| {
        let mirrored = MirroredHeaders::read([] as [(&[u8], &[u8]); 0]).kept_params();
        let text = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}});
        bench.calls += 1;
        bench.ask(Ask::Call(Call {
            session: SESSION,
            call: CallKey(10 + bench.calls),
            request: Request::Plain,
            message: message(&text),
            era: Era::Modern,
            mirrored: Some(mirrored),
            reads_events: true,
        }))
    };
    let arguments = json!({"region": "eu"});
    let out = call(
        "call_destructive",
        json!({"name": "files__read", "arguments": arguments}),
    );
    assert_eq!(params_of(&sole_call(&out).1.message)["arguments"], arguments);
    let refused = sole_reply(&call("files__read", arguments));
    assert_eq!(
        refused["error"]["code"], -32020,
        "by its name it needs the header"
    );
}
