//! Handshake, discovery, lists, pages, and what changes of them.

use super::*;
use crate::aggregate::offer::OfferedList;
use crate::aggregate::plan::AggregateLimits;

fn names(answer: &Value) -> Vec<String> {
    let tools = answer["result"]["tools"].as_array().unwrap().iter();
    tools
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn handshake_and_lists_are_answered_from_the_catalogue_without_a_member() {
    for era in Era::ALL {
        let mut bench = Bench::open(era);
        let list = bench.answered("tools/list", &json!({}));
        assert_eq!(names(&list), ["gh__issue", "gh__list", "files__read"]);
        assert_eq!(list["result"]["_meta"]["rialto/members"]["github"]["state"], "ok");
        for (method, member, count) in [
            ("prompts/list", "prompts", 1),
            ("resources/list", "resources", 4),
            ("resources/templates/list", "resourceTemplates", 2),
        ] {
            let list = bench.answered(method, &json!({}));
            assert_eq!(
                list["result"][member].as_array().unwrap().len(),
                count,
                "{method}"
            );
        }
        assert_eq!(bench.conversation.open_members().count(), 0);
    }
}

#[test]
fn server_info_is_that_of_the_aggregate() {
    let mut bench = Bench::new(two(), offers(), ToolsMode::All);
    bench.ask_open(Era::Legacy, "{}");
    let out = bench.outputs();
    let [Tell::Opened { server_info, .. }] = &out.tells[..] else {
        panic!("{out:?}");
    };
    assert!(server_info.info.as_deref().unwrap().contains(r#""name":"work""#));
    assert!(server_info.logs && server_info.subscriptions && server_info.tasks);
    assert_eq!(server_info.changing_lists.len(), 3);
}

#[test]
fn client_waits_while_nothing_is_known_and_then_gets_an_error_and_no_empty_list() {
    let mut bench = Bench::new(two(), Vec::new(), ToolsMode::All);
    bench.ask_open(Era::Legacy, "{}");
    let out = bench.outputs();
    assert!(out.tells.is_empty());
    assert_eq!(out.reads, ["github", "files"], "the driver is asked to read them");
    let (call, out) = bench.call("tools/list", &json!({}));
    assert!(out.tells.is_empty() && out.reads.is_empty(), "{out:?}");
    let due = bench.conversation.next_deadline().unwrap();
    assert_eq!(due, bench.now.after(Duration::from_secs(5)));
    bench.conversation.handle_deadline(due);
    let out = bench.outputs();
    let failed = failures(&out);
    assert!(
        failed.contains(&(CallKey(1), "upstream_unavailable")),
        "{failed:?}"
    );
    assert!(failed.iter().any(|(failed, _)| *failed == call), "{failed:?}");
    assert_eq!(bench.conversation.next_deadline(), None);
}

#[test]
fn list_that_no_member_could_give_is_an_error_and_no_empty_list() {
    let unread = |declared: &str| {
        let server = Arc::clone(offering(declared, &[], &[], &[], &[]).server_info());
        let mut lists: [OfferedList; 4] = Default::default();
        lists[0].withheld = Some("out of order".to_owned());
        Arc::new(Offer::new(server, lists))
    };
    let offers = vec![("github", unread(ALL)), ("files", unread(MODERN))];
    let mut bench = Bench::opened(two(), offers, ToolsMode::All, Era::Legacy, "{}");
    let answer = bench.answered("tools/list", &json!({}));
    assert_eq!(answer["error"]["code"], -32603);
    assert_eq!(
        answer["error"]["message"],
        "`github`: out of order; `files`: out of order"
    );
    let empty = bench.answered("prompts/list", &json!({}));
    assert_eq!(empty["result"]["prompts"], json!([]), "no member has prompts");
    // What one member has is shown, though another could not give its list.
    let offers = vec![("github", unread(ALL)), super::offers().remove(1)];
    let mut bench = Bench::opened(two(), offers, ToolsMode::All, Era::Legacy, "{}");
    assert_eq!(names(&bench.answered("tools/list", &json!({}))), ["files__read"]);
}

#[test]
fn call_that_comes_with_a_refused_handshake_gets_the_same_reason() {
    for waits in [true, false] {
        let mut bench = Bench::new(two(), Vec::new(), ToolsMode::All);
        if !waits {
            for member in ["github", "files"] {
                bench
                    .catalogue
                    .handle_state(bench.now, member, MemberState::Down, 1);
            }
            bench.show();
        }
        bench.ask_open(Era::Modern, "{}");
        let (call, out) = bench.call("tools/list", &json!({}));
        let failed = match bench.conversation.next_deadline() {
            Some(due) => {
                bench.conversation.handle_deadline(due);
                failures(&bench.outputs())
            }
            None => failures(&out),
        };
        assert!(
            failed.contains(&(call, "upstream_unavailable")),
            "{waits}: {failed:?}"
        );
    }
}

#[test]
fn client_is_answered_as_soon_as_one_member_is_known() {
    let mut bench = Bench::new(two(), Vec::new(), ToolsMode::All);
    bench.ask_open(Era::Modern, "{}");
    let (_, out) = bench.call("tools/list", &json!({}));
    assert!(out.tells.is_empty());
    bench.outputs();
    bench
        .catalogue
        .handle_offer(bench.now, "files", offers().remove(1).1);
    let out = bench.show();
    let [Tell::Opened { .. }, Tell::Reply { message, .. }] = &out.tells[..] else {
        panic!("{out:?}");
    };
    let list: Value = serde_json::from_slice(message.bytes()).unwrap();
    assert_eq!(names(&list), ["files__read"]);
    assert_eq!(
        list["result"]["_meta"]["rialto/members"]["github"]["state"],
        "starting"
    );
}

#[test]
fn error_comes_at_once_if_every_member_is_down() {
    let mut bench = Bench::new(two(), Vec::new(), ToolsMode::All);
    for member in ["github", "files"] {
        bench
            .catalogue
            .handle_state(bench.now, member, MemberState::Down, 5);
    }
    bench.show();
    bench.ask_open(Era::Legacy, "{}");
    let out = bench.outputs();
    let [Tell::Failed { failure, .. }] = &out.tells[..] else {
        panic!("{out:?}");
    };
    let (text, _) = legacy::describe_failure(failure);
    assert!(text.contains("github: down, files: down"), "{text}");
}

#[test]
fn unknown_name_waits_for_a_member_of_which_nothing_is_known() {
    let github = vec![offers().remove(0)];
    let mut bench = Bench::opened(two(), github, ToolsMode::All, Era::Legacy, "{}");
    let (_, out) = bench.call("tools/call", &json!({"name": "files__read"}));
    assert!(out.tells.is_empty());
    assert_eq!(out.reads, ["files"]);
    bench
        .catalogue
        .handle_offer(bench.now, "files", offers().remove(1).1);
    assert_eq!(sole_call(&bench.show()).0, "files");
    // A name that no member can have is refused after the time is up.
    let github = vec![offers().remove(0)];
    let mut bench = Bench::opened(two(), github, ToolsMode::All, Era::Legacy, "{}");
    let (call, _) = bench.call("tools/call", &json!({"name": "files__read"}));
    let due = bench.conversation.next_deadline().unwrap();
    bench.conversation.handle_deadline(due);
    let out = bench.outputs();
    assert_eq!(sole_reply(&out)["error"]["code"], -32602);
    let (other, _) = bench.call("tools/call", &json!({"name": "files__other"}));
    let out = bench.ask(Ask::Cancel {
        session: SESSION,
        call: other,
        message: None,
    });
    assert_eq!(failures(&out), [(other, "cancelled")]);
    assert_ne!(call, other);
}

#[test]
fn clients_are_notified_only_if_the_shown_list_has_changed() {
    let mut bench = Bench::open(Era::Legacy);
    bench
        .catalogue
        .handle_state(bench.now, "github", MemberState::Down, 5);
    assert!(bench.show().tells.is_empty(), "its tools stay listed");
    let more = offering(
        ALL,
        &named(&["issue", "list", "more"]),
        &["review"],
        &["repo://a", "file:///both"],
        &["repo://{name}"],
    );
    bench.catalogue.handle_offer(bench.now, "github", more);
    let out = bench.show();
    let methods: Vec<Value> = notices(&out).iter().map(|note| note["method"].clone()).collect();
    assert_eq!(methods, ["notifications/tools/list_changed"]);
    let other = offering(
        ALL,
        &named(&["issue", "list", "more"]),
        &["review"],
        &["repo://b"],
        &[],
    );
    bench.catalogue.handle_offer(bench.now, "github", other);
    let out = bench.show();
    let methods: Vec<Value> = notices(&out).iter().map(|note| note["method"].clone()).collect();
    assert_eq!(
        methods,
        ["notifications/resources/list_changed"],
        "both lists have one notification"
    );
}

#[test]
fn changed_list_of_a_member_is_announced_by_the_view_alone() {
    let mut bench = Bench::open(Era::Legacy);
    bench.routed("github", "tools/call", &json!({"name": "gh__issue"}));
    for method in ["tools", "prompts", "resources"] {
        let method = format!("notifications/{method}/list_changed");
        let tell = Tell::Notice {
            session: SESSION,
            message: message(&json!({"jsonrpc": "2.0", "method": method})),
        };
        assert!(bench.tell("github", tell).tells.is_empty());
    }
}

#[test]
fn hidden_tools_of_a_search_change_no_list() {
    let mut bench = Bench::opened(two(), offers(), ToolsMode::Search, Era::Legacy, "{}");
    let more = offering(
        ALL,
        &named(&["other"]),
        &["review"],
        &["repo://a", "file:///both"],
        &["repo://{name}"],
    );
    bench.catalogue.handle_offer(bench.now, "github", more);
    assert!(notices(&bench.show()).is_empty());
}

#[test]
fn pages_have_sealed_cursors_and_no_other_is_taken() {
    let mut spec = two();
    spec.limits = AggregateLimits {
        page_size: Some(2),
        ..AggregateLimits::default()
    };
    let mut bench = Bench::opened(spec, offers(), ToolsMode::All, Era::Legacy, "{}");
    let first = bench.answered("tools/list", &json!({}));
    assert_eq!(names(&first), ["gh__issue", "gh__list"]);
    let cursor = first["result"]["nextCursor"].clone();
    let second = bench.answered("tools/list", &json!({"cursor": cursor}));
    assert_eq!(names(&second), ["files__read"]);
    assert!(second["result"].get("nextCursor").is_none());
    for bad in [json!(""), json!("x"), json!(7), json!(format!("{}!", "}{"))] {
        let answer = bench.answered("tools/list", &json!({"cursor": bad}));
        assert_eq!(answer["error"]["code"], -32602, "{bad}");
    }
    let answer = bench.answered("prompts/list", &json!({"cursor": cursor}));
    assert_eq!(answer["error"]["code"], -32602, "it is that of another list");
    let mut bench = Bench::open(Era::Legacy);
    assert_eq!(
        bench.answered("tools/list", &json!({"cursor": "x"}))["error"]["code"],
        -32602
    );
}
