//! Resources, templates, completion, and subscriptions.

use super::*;

fn read(bench: &mut Bench, uri: &str) -> (CallKey, Outputs) {
    bench.call("resources/read", &json!({"uri": uri}))
}

#[test]
fn qualified_uri_leads_to_its_owner_and_a_bare_one_where_it_is_certain() {
    let mut bench = Bench::open(Era::Legacy);
    for (shown, member, own) in [
        ("github+repo://a", "github", "repo://a"),
        ("repo://a", "github", "repo://a"),
        ("repo://other", "github", "repo://other"),
        ("files+file:///both", "files", "file:///both"),
        ("file:///x", "files", "file:///x"),
        ("github+other:y", "github", "other:y"),
    ] {
        let (_, params) = bench.routed(member, "resources/read", &json!({"uri": shown}));
        assert_eq!(params["uri"], own, "{shown}");
    }
}

#[test]
fn read_is_never_answered_by_the_wrong_member() {
    let mut bench = Bench::open(Era::Legacy);
    let (_, out) = read(&mut bench, "file:///both");
    let answer = sole_reply(&out);
    assert_eq!(answer["error"]["code"], -32002);
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(
        text.contains("github+file:///both") && text.contains("files+file:///both"),
        "{text}"
    );
    assert_eq!(answer["error"]["data"], json!({"uri": "file:///both"}));
    let absent = sole_reply(&read(&mut bench, "absent:x").1);
    assert_eq!(absent["error"]["code"], -32002);
    assert_eq!(absent["error"]["data"], json!({"uri": "absent:x"}));
    assert!(sole_reply(&bench.call("resources/read", &json!({})).1)["error"].is_object());
}

#[test]
fn resource_links_inside_results_can_be_read() {
    let mut bench = Bench::open(Era::Legacy);
    let (call, _) = bench.routed("files", "tools/call", &json!({"name": "files__read"}));
    let link = json!({"content": [{"type": "resource_link", "uri": "file:///deep", "name": "n"}]});
    let answer = sole_reply(&bench.reply("files", call, &link));
    let uri = answer["result"]["content"][0]["uri"].clone();
    let (_, params) = bench.routed("files", "resources/read", &json!({"uri": uri}));
    assert_eq!(params["uri"], "file:///deep");
}

#[test]
fn completion_goes_to_the_member_of_the_prompt_or_template() {
    let mut bench = Bench::open(Era::Legacy);
    let complete = |reference: Value| json!({"ref": reference, "argument": {"name": "a", "value": "v"}});
    let prompt = complete(json!({"type": "ref/prompt", "name": "gh__review"}));
    let (_, params) = bench.routed("github", "completion/complete", &prompt);
    assert_eq!(params["ref"]["name"], "review");
    let template = complete(json!({"type": "ref/resource", "uri": "github+repo://{name}"}));
    let (_, params) = bench.routed("github", "completion/complete", &template);
    assert_eq!(params["ref"]["uri"], "repo://{name}");
    for (reference, code) in [
        (json!({"type": "ref/prompt", "name": "review"}), -32602),
        (json!({"type": "ref/resource", "uri": "absent:{x}"}), -32602),
        (json!({"type": "ref/other"}), -32602),
        (
            json!({"type": "ref/resource", "uri": "files+file:///{path}"}),
            -32601,
        ),
    ] {
        let answer = bench.answered("completion/complete", &complete(reference.clone()));
        assert_eq!(answer["error"]["code"], code, "{reference}");
    }
}

// Subscriptions.

fn subscribe(bench: &mut Bench, uri: &str) -> (CallKey, Outputs) {
    let request = Request::Subscribe { uri: uri.to_owned() };
    bench.request("resources/subscribe", &json!({"uri": uri}), request)
}

fn update(bench: &mut Bench, uri: &str) -> Vec<String> {
    let note = json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}});
    let tell = Tell::Notice {
        session: SESSION,
        message: message(&note),
    };
    let out = bench.tell("github", tell);
    notices(&out)
        .iter()
        .map(|note| note["params"]["uri"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn updates_come_under_the_uri_that_the_client_subscribed_to() {
    let mut bench = Bench::open(Era::Legacy);
    let (call, out) = subscribe(&mut bench, "github+repo://a");
    let (member, asked) = sole_call(&out);
    assert_eq!(
        (member, &asked.request),
        (
            "github",
            &Request::Subscribe {
                uri: "repo://a".to_owned()
            }
        )
    );
    assert_eq!(params_of(&asked.message)["uri"], "repo://a");
    bench.reply("github", call, &json!({}));
    assert_eq!(update(&mut bench, "repo://a"), ["github+repo://a"]);
    assert_eq!(update(&mut bench, "repo://a/part"), ["github+repo://a/part"]);
    assert_eq!(update(&mut bench, "repo://b"), ["github+repo://b"]);
    subscribe(&mut bench, "repo://a");
    assert_eq!(update(&mut bench, "repo://a"), ["github+repo://a", "repo://a"]);
    let unsubscribe = |bench: &mut Bench, uri: &str| {
        let request = Request::Unsubscribe { uri: uri.to_owned() };
        bench
            .request("resources/unsubscribe", &json!({"uri": uri}), request)
            .1
    };
    let out = unsubscribe(&mut bench, "github+repo://a");
    assert!(
        matches!((&out.asks[..], &out.tells[..]), ([], [Tell::Done { .. }])),
        "one is left: {out:?}"
    );
    assert_eq!(update(&mut bench, "repo://a"), ["repo://a"]);
    let out = unsubscribe(&mut bench, "repo://a");
    assert_eq!(
        sole_call(&out).1.request,
        Request::Unsubscribe {
            uri: "repo://a".to_owned()
        }
    );
}

#[test]
fn subscription_that_was_refused_is_forgotten() {
    let mut bench = Bench::open(Era::Legacy);
    let (call, _) = subscribe(&mut bench, "repo://a");
    bench.fail("github", call, Failure::Unsupported { what: "no" });
    assert_eq!(update(&mut bench, "repo://a"), ["github+repo://a"]);
}

#[test]
fn one_resource_that_is_written_in_many_ways_is_no_way_around_the_limit() {
    let mut bench = Bench::open(Era::Legacy);
    // Schemes have no case, so that ten letters can be written in a thousand ways.
    let spelt = |number: u32| -> String {
        let letters = "githubrepo".chars().enumerate();
        let letters = letters.map(|(at, char)| match (number >> at) & 1 {
            0 => char,
            _ => char.to_ascii_uppercase(),
        });
        let letters: String = letters.collect();
        let (tag, rest) = letters.split_at(6);
        format!("{tag}+repo://{rest}")
    };
    let mut refused = 0;
    for number in 0..1024 {
        let (_, out) = subscribe(&mut bench, &spelt(number));
        refused += failures(&out).len();
    }
    assert_eq!(refused, 0);
    let (call, out) = subscribe(&mut bench, "github+repo://a");
    assert_eq!(failures(&out), [(call, "overloaded")]);
    let (_, out) = subscribe(&mut bench, &spelt(7));
    assert!(failures(&out).is_empty(), "it is no further one");
    let request = Request::Unsubscribe { uri: spelt(7) };
    bench.request("resources/unsubscribe", &json!({"uri": spelt(7)}), request);
    let (_, out) = subscribe(&mut bench, "github+repo://a");
    assert!(failures(&out).is_empty(), "there is room again");
}

#[test]
fn nothing_is_acknowledged_that_cannot_be_delivered() {
    let mut bench = Bench::open(Era::Legacy);
    let (_, out) = subscribe(&mut bench, "files+file:///x");
    assert!(out.asks.is_empty());
    let answer = sole_reply(&out);
    assert_eq!(answer["error"]["code"], -32601);
    assert!(
        answer["error"]["message"].as_str().unwrap().contains("`files`"),
        "{answer}"
    );
}

#[test]
fn member_that_was_lost_is_opened_with_what_the_client_has_set() {
    let mut bench = Bench::open(Era::Legacy);
    let level = Request::SetLevel {
        level: LogLevel::Info,
    };
    bench.request("logging/setLevel", &json!({"level": "info"}), level);
    let (call, out) = subscribe(&mut bench, "github+repo://a");
    bench.let_open("github", &out);
    bench.reply("github", call, &json!({}));
    bench.conversation.handle_lost_member("github", &Failure::Retired);
    let out = bench.outputs();
    let [(member, Ask::Restore { state, .. })] = &out.asks[..] else {
        panic!("it is opened at once: {out:?}");
    };
    assert_eq!(member, "github");
    assert_eq!(state.log_level, Some(LogLevel::Info));
    assert_eq!(state.subscriptions, ["repo://a"]);
    // An instance that is lost before it has opened is not opened again by itself.
    bench.conversation.handle_lost_member("github", &Failure::Retired);
    assert!(bench.outputs().asks.is_empty());
}

#[test]
fn subscription_goes_on_when_its_member_is_back_though_it_could_not_be_opened_before() {
    let mut bench = Bench::open(Era::Legacy);
    let (call, out) = subscribe(&mut bench, "github+repo://a");
    bench.let_open("github", &out);
    bench.reply("github", call, &json!({}));
    bench.conversation.handle_lost_member("github", &Failure::Retired);
    let out = bench.outputs();
    let [(_, Ask::Restore { call: opening, .. })] = &out.asks[..] else {
        panic!("{out:?}");
    };
    let down = Failure::StartTimeout {
        limit: Duration::from_secs(1),
        backend_error: None,
    };
    bench.fail("github", *opening, down);
    let state = |bench: &mut Bench, state| {
        let since = bench.now.elapsed().as_secs();
        bench.catalogue.handle_state(bench.now, "github", state, since);
        bench.show()
    };
    assert!(state(&mut bench, MemberState::Down).asks.is_empty());
    assert!(state(&mut bench, MemberState::Starting).asks.is_empty());
    let out = state(&mut bench, MemberState::Ok);
    let [(member, Ask::Restore { state, .. })] = &out.asks[..] else {
        panic!("nothing would be delivered: {out:?}");
    };
    assert_eq!(
        (member.as_str(), &state.subscriptions[..]),
        ("github", &["repo://a".to_owned()][..])
    );
    bench.let_open("github", &out);
    assert_eq!(update(&mut bench, "repo://a"), ["github+repo://a"]);
}

#[test]
fn restored_session_goes_on_with_its_subscriptions() {
    let mut bench = Bench::new(two(), offers(), ToolsMode::All);
    let client = Client::declaring(Principal::anonymous(), None, None);
    let out = bench.ask(Ask::Restore {
        session: SESSION,
        call: CallKey(1),
        client: Arc::new(client),
        initialize: None,
        era: Era::Legacy,
        state: SessionState {
            log_level: Some(LogLevel::Error),
            subscriptions: vec!["github+repo://a".to_owned(), "absent:x".to_owned()],
        },
    });
    assert!(matches!(out.tells[0], Tell::Opened { .. }));
    assert_eq!(notices(&out).len(), 3, "its client looks again at every list");
    let [(member, Ask::Restore { state, .. })] = &out.asks[..] else {
        panic!("{out:?}");
    };
    assert_eq!(
        (member.as_str(), &state.subscriptions[..]),
        ("github", &["repo://a".to_owned()][..])
    );
    assert_eq!(update(&mut bench, "repo://a"), ["github+repo://a"]);
}

#[test]
fn request_that_its_member_does_not_serve_is_refused_in_the_name_of_the_member() {
    let mut bench = Bench::open(Era::Legacy);
    let complete = json!({"ref": {"type": "ref/resource", "uri": "files+file:///{path}"}, "argument": {"name": "a", "value": "v"}});
    let uri = json!({"uri": "files+file:///x"});
    let subscription = Request::Subscribe {
        uri: "files+file:///x".to_owned(),
    };
    for (method, params, request) in [
        ("completion/complete", complete, Request::Plain),
        ("resources/subscribe", uri, subscription),
        ("tasks/get", json!({"taskId": "files:t"}), Request::Plain),
    ] {
        let (_, out) = bench.request(method, &params, request);
        assert!(out.asks.is_empty(), "{method}: {out:?}");
        let answer = sole_reply(&out);
        assert_eq!(answer["error"]["code"], -32601, "{method}: {answer}");
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(text.contains("`files`") && text.contains(method), "{text}");
    }
}
