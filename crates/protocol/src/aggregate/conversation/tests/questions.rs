//! Questions of members to the client, and the client's answers.

use super::*;

fn ask(member: &str, own: u64, params: &Value, method: &str) -> (String, Tell) {
    let text = json!({"jsonrpc": "2.0", "id": 3, "method": method, "params": params});
    let tell = Tell::Question {
        session: SESSION,
        call: None,
        question: QuestionKey(own),
        message: message(&text),
    };
    (member.to_owned(), tell)
}

/// Returns the key and the params of the only question that the client gets.
fn asked(out: &Outputs) -> (QuestionKey, Value) {
    let [
        Tell::Question {
            question, message, ..
        },
    ] = &out.tells[..]
    else {
        panic!("not one question: {out:?}");
    };
    (*question, params_of(message))
}

/// Returns a conversation that has used both members.
fn used() -> Bench {
    let mut bench = Bench::open(Era::Legacy);
    bench.routed("github", "tools/call", &json!({"name": "gh__issue"}));
    bench.routed("files", "tools/call", &json!({"name": "files__read"}));
    bench
}

#[test]
fn user_sees_which_member_asks_and_its_server_gets_the_answer() {
    let mut bench = used();
    let (member, tell) = ask(
        "github",
        1,
        &json!({"message": "Sure?", "requestedSchema": {}}),
        "elicitation/create",
    );
    let (one, params) = asked(&bench.tell(&member, tell));
    assert_eq!(params["message"], "[github: The server] Sure?");
    assert_eq!(params["_meta"]["rialto/member"], "github");
    // Both servers use the same key.
    let (member, tell) = ask("files", 1, &json!({"message": "Sure?"}), "elicitation/create");
    let (other, params) = asked(&bench.tell(&member, tell));
    assert_eq!(params["_meta"]["rialto/member"], "files");
    assert_ne!(one, other);
    let answer = |question| Ask::Answer {
        session: SESSION,
        question,
        message: message(&json!({"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}})),
    };
    for (question, member) in [(other, "files"), (one, "github")] {
        let out = bench.ask(answer(question));
        assert!(
            matches!(&out.asks[..], [(at, Ask::Answer { question: QuestionKey(1), .. })] if at == member),
            "{out:?}"
        );
        assert!(bench.ask(answer(question)).asks.is_empty(), "it is answered once");
    }
}

#[test]
fn server_that_calls_itself_like_another_is_seen_under_the_name_of_its_member() {
    let posing = ALL.replace("The server", "github]\\n[github");
    let files = offering(&posing, &named(&["read"]), &[], &[], &[]);
    let offers = vec![offers().remove(0), ("files", files)];
    let mut bench = Bench::opened(two(), offers, ToolsMode::All, Era::Legacy, "{}");
    bench.routed("files", "tools/call", &json!({"name": "files__read"}));
    let (member, tell) = ask(
        "files",
        1,
        &json!({"message": "Your token?"}),
        "elicitation/create",
    );
    let (_, params) = asked(&bench.tell(&member, tell));
    assert_eq!(params["message"], "[files: githubgithub] Your token?");
}

#[test]
fn address_in_an_error_names_its_member() {
    let mut bench = used();
    let (call, _) = bench.routed("github", "tools/call", &json!({"name": "gh__list"}));
    let error = json!({"code": -32042, "message": "sign in first", "data": {"elicitations": [
        {"mode": "url", "elicitationId": "e", "url": "https://a.example/", "message": "Sign in"}
    ]}});
    let tell = Tell::Reply {
        session: SESSION,
        call,
        message: message(&json!({"jsonrpc": "2.0", "id": 0, "error": error})),
        era: Era::Legacy,
    };
    let answer = sole_reply(&bench.tell("github", tell));
    let asked = &answer["error"]["data"]["elicitations"][0];
    assert_eq!(asked["message"], "[github: The server] Sign in");
    assert_eq!(asked["url"], "https://a.example/");
    assert_eq!(answer["error"]["code"], -32042);
}

#[test]
fn context_of_all_members_is_given_to_none() {
    let mut bench = used();
    let (member, tell) = ask(
        "github",
        1,
        &json!({"messages": [], "includeContext": "thisServer"}),
        "sampling/createMessage",
    );
    let (_, params) = asked(&bench.tell(&member, tell));
    assert_eq!(params["includeContext"], "none");
}

#[test]
fn question_that_no_client_can_answer_is_refused_where_it_came_from() {
    let mut bench = used();
    let (member, tell) = ask("files", 9, &json!({}), "roots/list");
    let (question, _) = asked(&bench.tell(&member, tell));
    let out = bench.ask(Ask::Unanswerable {
        session: SESSION,
        question,
    });
    assert!(
        matches!(&out.asks[..], [(at, Ask::Unanswerable { question: QuestionKey(9), .. })] if at == "files")
    );
}

#[test]
fn withdrawn_question_is_withdrawn_from_the_client() {
    let mut bench = used();
    let (member, tell) = ask("github", 4, &json!({"message": "?"}), "elicitation/create");
    let (question, _) = asked(&bench.tell(&member, tell));
    let withdrawal = || Tell::Withdrawn {
        session: SESSION,
        question: QuestionKey(4),
        message: None,
    };
    assert!(
        bench.tell("files", withdrawal()).tells.is_empty(),
        "it is another member's"
    );
    let out = bench.tell("github", withdrawal());
    assert!(matches!(&out.tells[..], [Tell::Withdrawn { question: gone, .. }] if *gone == question));
    assert_eq!(bench.conversation.open_questions(), 0);
}

#[test]
fn progress_of_the_client_reaches_the_member_that_asked() {
    let mut bench = used();
    let params = json!({"messages": [], "_meta": {"progressToken": "t"}});
    let mut tokens = Vec::new();
    for member in ["github", "files"] {
        let (member, tell) = ask(member, 1, &params, "sampling/createMessage");
        let (_, params) = asked(&bench.tell(&member, tell));
        tokens.push(params["_meta"]["progressToken"].clone());
    }
    assert_ne!(tokens[0], tokens[1], "both members chose one token");
    let note = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": tokens[1], "progress": 1}});
    let out = bench.ask(Ask::Notice {
        session: SESSION,
        message: message(&note),
    });
    let [(member, Ask::Notice { message, .. })] = &out.asks[..] else {
        panic!("{out:?}");
    };
    assert_eq!(
        (member.as_str(), &params_of(message)["progressToken"]),
        ("files", &json!("t"))
    );
}

#[test]
fn changed_roots_reach_every_open_member_and_other_notifications_none() {
    let mut bench = Bench::open(Era::Legacy);
    let notice = |method: &str| Ask::Notice {
        session: SESSION,
        message: message(&json!({"jsonrpc": "2.0", "method": method})),
    };
    let changed = "notifications/roots/list_changed";
    assert!(
        bench.ask(notice(changed)).asks.is_empty(),
        "no member is started by it"
    );
    bench.routed("github", "tools/call", &json!({"name": "gh__issue"}));
    bench.routed("files", "tools/call", &json!({"name": "files__read"}));
    assert_eq!(bench.ask(notice(changed)).asks.len(), 2);
    assert!(bench.ask(notice("notifications/x")).asks.is_empty());
}

#[test]
fn initialized_is_passed_on_to_members_as_they_open() {
    let mut bench = Bench::open(Era::Legacy);
    let ready = message(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let out = bench.ask(Ask::Ready {
        session: SESSION,
        message: ready,
    });
    assert!(out.asks.is_empty());
    let (_, out) = bench.call("tools/call", &json!({"name": "gh__issue"}));
    let out = bench.let_open("github", &out);
    assert!(matches!(&out.asks[..], [(member, Ask::Ready { .. })] if member == "github"));
}
