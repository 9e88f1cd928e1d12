//! Members that are down, lost, removed, or want a sign-in; log levels; the end of a conversation.

use super::*;
use crate::exchange::{BackendError, Upstream, UpstreamFault};

fn away() -> Failure {
    let backend_error = BackendError {
        what: "exit status 3".to_owned(),
        ..BackendError::default()
    };
    Failure::Unavailable {
        backend_error: Arc::new(backend_error),
        retry_after: Duration::from_secs(1),
    }
}

#[test]
fn tool_of_a_member_that_is_down_fails_with_a_reason_for_the_model() {
    let mut bench = Bench::open(Era::Legacy);
    let (call, _) = bench.routed("github", "tools/call", &json!({"name": "gh__issue"}));
    let answer = sole_reply(&bench.fail("github", call, away()));
    assert_eq!(answer["result"]["isError"], true);
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(
        text.contains("`github`") && text.contains("exit status 3"),
        "{text}"
    );
    let (call, _) = bench.routed("github", "prompts/get", &json!({"name": "gh__review"}));
    assert_eq!(
        failures(&bench.fail("github", call, away())),
        [(call, "upstream_unavailable")]
    );
    let (call, _) = bench.routed("github", "tools/call", &json!({"name": "gh__issue"}));
    let crashed = Failure::Exited(Arc::default());
    assert_eq!(
        failures(&bench.fail("github", call, crashed)),
        [(call, "upstream_exited")]
    );
}

fn unauthorized() -> Failure {
    Failure::Upstream(Arc::new(Upstream::new(UpstreamFault::Unauthorized, "401")))
}

#[test]
fn member_that_wants_a_sign_in_has_the_user_sent_to_its_page() {
    for (era, declared, code) in [
        (Era::Legacy, r#"{"elicitation":{"url":{}}}"#, Some(-32042)),
        (Era::Legacy, "{}", None),
    ] {
        let mut bench = Bench::opened(two(), offers(), ToolsMode::All, era, declared);
        let page = Some("https://auth.example/in".into());
        bench.catalogue.handle_sign_in(bench.now, "github", page);
        bench
            .catalogue
            .handle_state(bench.now, "github", MemberState::SignInNeeded, 1);
        assert!(notices(&bench.show()).is_empty(), "its tools stay listed");
        let (call, _) = bench.routed("github", "tools/call", &json!({"name": "gh__issue"}));
        let answer = sole_reply(&bench.fail("github", call, unauthorized()));
        match code {
            Some(code) => {
                assert_eq!(answer["error"]["code"], code);
                let page = &answer["error"]["data"]["elicitations"][0];
                assert_eq!(
                    (&page["mode"], &page["url"]),
                    (&json!("url"), &json!("https://auth.example/in"))
                );
            }
            None => assert!(answer.to_string().contains("`rialto login URL`"), "{answer}"),
        }
    }
}

#[test]
fn member_without_a_page_names_the_command_for_signing_in() {
    let mut bench = Bench::opened(
        two(),
        offers(),
        ToolsMode::All,
        Era::Legacy,
        r#"{"elicitation":{"url":{}}}"#,
    );
    for (what, way_out) in [
        ("401", "set `auth: oauth` for it and run `rialto login URL`"),
        (
            "x wants a sign-in; run: rialto login x",
            "needs a sign-in: x wants a sign-in; run: rialto login x",
        ),
    ] {
        let (call, _) = bench.routed("github", "tools/call", &json!({"name": "gh__issue"}));
        let failure = Failure::Upstream(Arc::new(Upstream::new(UpstreamFault::Unauthorized, what)));
        let answer = sole_reply(&bench.fail("github", call, failure));
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("`github`") && text.contains(way_out), "{text}");
    }
    let (call, _) = bench.routed("github", "prompts/get", &json!({"name": "gh__review"}));
    let out = bench.fail("github", call, unauthorized());
    assert_eq!(failures(&out), [(call, "upstream_unauthorized")]);
}

#[test]
fn calls_of_a_lost_member_fail_and_those_of_others_go_on() {
    let mut bench = Bench::open(Era::Legacy);
    let (lost, _) = bench.routed("github", "tools/call", &json!({"name": "gh__issue"}));
    let (kept, _) = bench.routed("files", "tools/call", &json!({"name": "files__read"}));
    let question = Tell::Question {
        session: SESSION,
        call: Some(lost),
        question: QuestionKey(3),
        message: message(&json!({"jsonrpc": "2.0", "id": 3, "method": "roots/list"})),
    };
    let out = bench.tell("github", question);
    assert!(matches!(out.tells[..], [Tell::Question { call: Some(call), .. }] if call == lost));
    bench.conversation.handle_lost_member("github", &Failure::Retired);
    let out = bench.outputs();
    assert_eq!(failures(&out), [(lost, "reloaded")]);
    assert!(
        out.tells
            .iter()
            .any(|tell| matches!(tell, Tell::Withdrawn { .. }))
    );
    assert_eq!(bench.reply("files", kept, &json!({"content": []})).tells.len(), 1);
    let (_, out) = bench.call("tools/call", &json!({"name": "gh__issue"}));
    assert!(
        matches!(out.asks[..], [(_, Ask::Open { .. }), (_, Ask::Call(_))]),
        "{out:?}"
    );
}

#[test]
fn refused_handshake_leaves_each_call_its_own_answer_and_is_made_again() {
    let mut bench = Bench::open(Era::Legacy);
    let (call, out) = bench.call("tools/call", &json!({"name": "gh__issue"}));
    let (_, Ask::Open { call: opening, .. }) = &out.asks[0] else {
        panic!("{out:?}");
    };
    assert!(
        bench
            .fail("github", *opening, Failure::HandshakeRefused)
            .tells
            .is_empty()
    );
    let out = bench.fail("github", call, Failure::HandshakeRefused);
    assert_eq!(failures(&out), [(call, "handshake_refused")]);
    let (_, out) = bench.call("tools/call", &json!({"name": "gh__issue"}));
    assert!(
        matches!(out.asks[..], [(_, Ask::Open { .. }), (_, Ask::Call(_))]),
        "{out:?}"
    );
}

#[test]
fn reload_keeps_sessions_and_ends_removed_members_after_their_calls() {
    let mut bench = Bench::open(Era::Legacy);
    let (call, _) = bench.routed("github", "tools/call", &json!({"name": "gh__issue"}));
    let (other, _) = bench.routed("files", "tools/call", &json!({"name": "files__read"}));
    bench.reply("files", other, &json!({"content": []}));
    let added = offering(ALL, &named(&["run"]), &[], &[], &[]);
    let plan = Plan::new(spec(vec![member("jobs", None), member("files", Some("f"))])).unwrap();
    bench.catalogue.handle_plan(Arc::new(plan));
    bench.catalogue.handle_offer(bench.now, "jobs", added);
    let out = bench.show();
    assert!(out.asks.is_empty(), "its call is not over: {out:?}");
    assert!(!notices(&out).is_empty());
    assert_eq!(
        bench.answered("tools/call", &json!({"name": "gh__issue"}))["error"]["code"],
        -32602
    );
    let link = json!({"content": [{"type": "resource_link", "uri": "repo://a"}]});
    let out = bench.reply("github", call, &link);
    assert_eq!(sole_reply(&out)["result"]["content"][0]["uri"], "github+repo://a");
    assert!(matches!(&out.asks[..], [(member, Ask::Close { .. })] if member == "github"));
    let (_, out) = bench.call("tools/call", &json!({"name": "f__read"}));
    assert!(
        matches!(out.asks[..], [(_, Ask::Call(_))]),
        "the user at a member that stays is kept: {out:?}"
    );
    bench.routed("jobs", "tools/call", &json!({"name": "jobs__run"}));
}

#[test]
fn level_reaches_members_that_log_now_and_later() {
    let mut bench = Bench::open(Era::Legacy);
    let level = |bench: &mut Bench| {
        let request = Request::SetLevel {
            level: LogLevel::Info,
        };
        bench
            .request("logging/setLevel", &json!({"level": "info"}), request)
            .1
    };
    bench.routed("files", "tools/call", &json!({"name": "files__read"}));
    let out = level(&mut bench);
    assert!(
        matches!((&out.tells[..], &out.asks[..]), ([Tell::Done { .. }], [])),
        "it has no logging: {out:?}"
    );
    let (_, out) = bench.call("tools/call", &json!({"name": "gh__issue"}));
    let Some((_, Ask::Restore { state, .. })) = out.asks.first() else {
        panic!("{out:?}");
    };
    assert_eq!(state.log_level, Some(LogLevel::Info));
    let out = level(&mut bench);
    let (member, asked) = sole_call(&out);
    assert_eq!(member, "github");
    let own = asked.call;
    assert!(
        bench.reply("github", own, &json!({})).tells.is_empty(),
        "the client has its answer"
    );
    let files = vec![offers().remove(1)];
    let mut bench = Bench::opened(two(), files, ToolsMode::All, Era::Legacy, "{}");
    assert_eq!(sole_reply(&level(&mut bench))["error"]["code"], -32601);
}

#[test]
fn end_of_a_conversation_closes_every_member_and_answers_every_call() {
    let mut bench = Bench::opened(two(), vec![offers().remove(0)], ToolsMode::All, Era::Legacy, "{}");
    let (call, _) = bench.routed("github", "tools/call", &json!({"name": "gh__issue"}));
    let (waiting, _) = bench.call("tools/call", &json!({"name": "files__read"}));
    let out = bench.ask(Ask::Close { session: SESSION });
    assert!(matches!(&out.asks[..], [(member, Ask::Close { .. })] if member == "github"));
    assert_eq!(
        failures(&out),
        [(waiting, "session_ended"), (call, "session_ended")]
    );
    let out = bench.fail("github", call, Failure::SessionEnded);
    assert!(out.tells.is_empty(), "each call ends once: {out:?}");
    let (late, out) = bench.call("tools/call", &json!({"name": "gh__issue"}));
    assert_eq!(failures(&out), [(late, "session_ended")]);
    assert_eq!(bench.conversation.open_members().count(), 0);
}

#[test]
fn client_that_leaves_before_any_member_is_known_is_answered() {
    let mut bench = Bench::new(two(), vec![], ToolsMode::All);
    bench.ask_open(Era::Legacy, "{}");
    assert!(bench.outputs().tells.is_empty(), "it waits");
    let out = bench.ask(Ask::Close { session: SESSION });
    assert_eq!(failures(&out), [(CallKey(1), "session_ended")]);
}

#[test]
fn member_alone_answers_in_its_own_words() {
    let spec = spec(vec![member("github", Some(""))]);
    let mut bench = Bench::opened(spec, vec![offers().remove(0)], ToolsMode::All, Era::Legacy, "{}");
    for (method, params) in [
        ("tools/call", json!({"name": "issue"})),
        ("tools/call", json!({"name": "new_and_unlisted"})),
        ("prompts/get", json!({"name": "unlisted"})),
        ("resources/read", json!({"uri": "any:thing"})),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "unlisted"}}),
        ),
        ("completion/complete", json!({"ref": {"type": "odd"}})),
        ("x/unknown", json!({"a": 1})),
    ] {
        let (call, asked) = bench.routed("github", method, &params);
        assert_eq!(asked, params, "{method}");
        let result = json!({"content": [{"type": "resource_link", "uri": "repo://a"}]});
        let answer = sole_reply(&bench.reply("github", call, &result));
        assert_eq!(answer["result"], result, "{method}");
    }
}
