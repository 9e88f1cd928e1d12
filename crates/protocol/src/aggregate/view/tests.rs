use super::*;
use crate::aggregate::offer::tests::offer;
use crate::aggregate::plan::tests::{member, spec};
use crate::aggregate::plan::{MemberSpec, ToolsMode};
use crate::exchange::{Client, Principal};
use crate::message::{Member, Message};
use crate::tool_policy::{Glob, ToolPolicy};
use crate::version::Era;
use bytes::Bytes;
use serde_json::{Value, json};

pub(crate) const DECLARED: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{},"prompts":{}},"serverInfo":{"name":"s","version":"1"}}"#;

pub(crate) fn known(offer: Arc<Offer>) -> MemberFacts {
    MemberFacts {
        offer: Some(offer),
        state: MemberState::Ok,
        ..MemberFacts::default()
    }
}

fn tools(names: &[&str]) -> Arc<Offer> {
    let tools: Vec<String> = names
        .iter()
        .map(|name| json!({"name": name}).to_string())
        .collect();
    let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
    offer(Era::Legacy, DECLARED, [&tools, &[], &[], &[]])
}

fn view(members: Vec<MemberSpec>, facts: Vec<MemberFacts>) -> View {
    View::new(Arc::new(Plan::new(spec(members)).unwrap()), facts)
}

fn request(kind: ListKind) -> ListRequest {
    ListRequest {
        kind,
        era: Era::Legacy,
        mode: ToolsMode::All,
        shows_interfaces: true,
    }
}

fn result(message: &Message) -> Value {
    serde_json::from_slice(message.raw(Member::Result).unwrap()).unwrap()
}

fn names(message: &Message) -> Vec<String> {
    let result = result(message);
    let tools = result["tools"].as_array().unwrap().iter();
    tools
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn tools_are_listed_in_the_order_of_members_and_of_their_servers() {
    let view = view(
        vec![member("zoo", None), member("ant", Some("a"))],
        vec![known(tools(&["z", "b"])), known(tools(&["c", "a"]))],
    );
    let list = view.list(request(ListKind::Tools));
    assert_eq!(names(&list), ["zoo__z", "zoo__b", "a__c", "a__a"]);
    assert_eq!(view.tool("a__c"), Some((&MemberName::from("ant"), "c")));
    assert_eq!(view.tool("ant__c"), None, "a name is never parsed back");
    let states = &result(&list)["_meta"]["rialto/members"];
    assert_eq!(states["zoo"], json!({"state": "ok", "since": 0}));
}

#[test]
fn two_members_with_the_same_tool_are_both_withheld() {
    let view = view(
        vec![
            member("one", Some("")),
            member("two", Some("")),
            member("three", None),
        ],
        vec![
            known(tools(&["echo", "only"])),
            known(tools(&["echo", "three__x"])),
            known(tools(&["x", "y"])),
        ],
    );
    assert_eq!(names(&view.list(request(ListKind::Tools))), ["only", "three__y"]);
    let withheld: Vec<(&str, &str)> = view
        .withheld()
        .iter()
        .map(|one| (&*one.member, &*one.name))
        .collect();
    assert_eq!(
        withheld,
        [
            ("one", "echo"),
            ("two", "echo"),
            ("two", "three__x"),
            ("three", "three__x")
        ]
    );
    assert_eq!(
        view.withheld()[0].reason,
        "`echo` of `one`, `echo` of `two` would all be `echo`: set `rename`, or another `prefix`"
    );
    assert_eq!(view.tool("echo"), None, "no member inherits the name");
}

#[test]
fn name_of_a_hidden_member_is_inherited_by_no_other() {
    let shown = |is_hidden| {
        let hidden = MemberFacts {
            is_hidden,
            ..known(tools(&["x", "only"]))
        };
        let members = vec![member("gh", None), member("bare", Some(""))];
        let view = view(members, vec![hidden, known(tools(&["gh__x", "y"]))]);
        (names(&view.list(request(ListKind::Tools))), view.withheld().len())
    };
    assert_eq!(shown(false), (vec!["gh__only".to_owned(), "y".to_owned()], 2));
    assert_eq!(shown(true), (vec!["y".to_owned()], 1));
}

#[test]
fn tool_that_a_server_lists_twice_is_shown_once() {
    let view = view(vec![member("m", None)], vec![known(tools(&["a", "a", "b"]))]);
    assert_eq!(names(&view.list(request(ListKind::Tools))), ["m__a", "m__b"]);
    assert!(view.withheld().is_empty());
}

#[test]
fn only_selected_tools_are_shown_and_policy_is_judged_on_own_names() {
    let glob = |pattern: &str| vec![Glob::parse(pattern).unwrap()];
    let mut github = member("github", Some("gh"));
    github.tools.select = ToolPolicy {
        allow: glob("list_*"),
        deny: vec![],
    };
    github.policy = ToolPolicy {
        allow: vec![],
        deny: glob("*_secrets"),
    };
    github.tools.rename = [("list_issues".to_owned(), "issues".to_owned())].into();
    let view = view(
        vec![github],
        vec![known(tools(&["list_issues", "list_secrets", "create"]))],
    );
    assert_eq!(names(&view.list(request(ListKind::Tools))), ["gh__issues"]);
    assert_eq!(view.tool("gh__issues").unwrap().1, "list_issues");
}

#[test]
fn one_member_without_sign_in_does_not_empty_the_list() {
    let facts = MemberFacts {
        state: MemberState::SignInNeeded,
        ..MemberFacts::default()
    };
    let view = view(
        vec![member("a", None), member("b", None)],
        vec![facts, known(tools(&["x"]))],
    );
    let list = view.list(request(ListKind::Tools));
    assert_eq!(names(&list), ["b__x"]);
    let members = &result(&list)["_meta"]["rialto/members"];
    assert_eq!(members["a"]["state"], "sign_in_needed");
    assert_eq!(
        view.unknown_members().map(|name| &**name).collect::<Vec<_>>(),
        ["a"]
    );
}

fn resources(uris: &[&str], templates: &[&str]) -> Arc<Offer> {
    let raw = |key: &str, texts: &[&str]| -> Vec<String> {
        texts
            .iter()
            .map(|text| json!({ key: text, "name": "n" }).to_string())
            .collect()
    };
    let (uris, templates) = (raw("uri", uris), raw("uriTemplate", templates));
    let texts = |raw: &[String]| {
        raw.iter()
            .map(|text| text.as_str().to_owned())
            .collect::<Vec<_>>()
    };
    let (uris, templates) = (texts(&uris), texts(&templates));
    let uris: Vec<&str> = uris.iter().map(String::as_str).collect();
    let templates: Vec<&str> = templates.iter().map(String::as_str).collect();
    offer(Era::Legacy, DECLARED, [&[], &[], &uris, &templates])
}

#[test]
fn uri_leads_to_its_owner_and_never_to_the_first_that_comes() {
    let view = view(
        vec![member("a", None), member("b", None)],
        vec![
            known(resources(
                &["file:///both", "file:///a"],
                &["log://{day}", "same://{x}"],
            )),
            known(resources(&["file:///both"], &["same://{y}"])),
        ],
    );
    let list = result(&view.list(request(ListKind::Resources)));
    let uris: Vec<&str> = list["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["uri"].as_str().unwrap())
        .collect();
    assert_eq!(uris, ["a+file:///both", "a+file:///a", "b+file:///both"]);
    let owner = |member, own: &str| Owner::Member(member, own.to_owned());
    assert_eq!(view.owner("b+file:///both"), owner(1, "file:///both"));
    assert_eq!(
        view.owner("b+anything:x"),
        owner(1, "anything:x"),
        "no table is needed"
    );
    assert_eq!(
        view.owner("file:///a"),
        owner(0, "file:///a"),
        "a bare URI is accepted"
    );
    assert_eq!(view.owner("log://today"), owner(0, "log://today"));
    let both = Owner::Ambiguous(vec!["a".into(), "b".into()]);
    assert_eq!(view.owner("file:///both"), both);
    assert_eq!(view.owner("same://1"), both);
    assert_eq!(view.owner("http://none"), Owner::Unknown);
    assert_eq!(view.owner_of_template("a+log://{day}"), owner(0, "log://{day}"));
    assert_eq!(view.owner_of_template("log://{day}"), owner(0, "log://{day}"));
}

#[test]
fn uri_that_is_shown_leads_to_the_member_that_shows_it() {
    let offered = || known(resources(&["file:///both"], &["log://{day}"]));
    let view = view(
        vec![member("a", None), member("b", Some("")), member("c", None)],
        vec![offered(), offered(), offered()],
    );
    let owner = |member, own: &str| Owner::Member(member, own.to_owned());
    assert_eq!(view.owner("file:///both"), owner(1, "file:///both"));
    assert_eq!(view.owner("log://today"), owner(1, "log://today"));
    assert_eq!(view.owner_of_template("log://{day}"), owner(1, "log://{day}"));
    assert_eq!(view.owner("a+file:///both"), owner(0, "file:///both"));
}

#[test]
fn read_is_never_inherited_from_a_member_that_is_withheld_or_hidden() {
    let hidden = MemberFacts {
        is_hidden: true,
        ..known(resources(&["file:///hidden"], &["log://{day}"]))
    };
    let view = view(
        vec![
            member("one", Some("")),
            member("two", Some("")),
            member("away", None),
            member("any", None),
        ],
        vec![
            known(resources(&["file:///both"], &["same://{x}"])),
            known(resources(&["file:///both"], &["same://{x}"])),
            hidden,
            known(resources(
                &[],
                &["file:///{path}", "log://{+rest}", "same://{+rest}"],
            )),
        ],
    );
    let owner = |member, own: &str| Owner::Member(member, own.to_owned());
    let both = Owner::Ambiguous(vec!["one".into(), "two".into()]);
    assert_eq!(view.owner("file:///both"), both);
    assert_eq!(view.owner("same://1"), both);
    assert_eq!(view.owner_of_template("same://{x}"), both);
    assert_eq!(view.owner("file:///hidden"), owner(2, "file:///hidden"));
    let either = Owner::Ambiguous(vec!["away".into(), "any".into()]);
    assert_eq!(view.owner("log://1"), either);
    assert_eq!(view.owner("file:///other"), owner(3, "file:///other"));
}

#[test]
fn pages_go_on_after_a_change() {
    let members = || vec![member("m", Some(""))];
    let before = view(members(), vec![known(tools(&["a", "b", "c", "d"]))]);
    let seal = |plain: &str| Some(plain.to_owned());
    let cursor = |message: &Message| result(message)["nextCursor"].as_str().map(str::to_owned);
    let first = before.page(request(ListKind::Tools), None, 2, seal).unwrap();
    assert_eq!(names(&first), ["a", "b"]);
    let next = cursor(&first).unwrap();
    let second = before
        .page(request(ListKind::Tools), Some(&next), 2, seal)
        .unwrap();
    assert_eq!(
        (names(&second), cursor(&second)),
        (vec!["c".to_owned(), "d".to_owned()], None)
    );
    let after = view(members(), vec![known(tools(&["new", "a", "b", "c"]))]);
    let second = after
        .page(request(ListKind::Tools), Some(&next), 2, seal)
        .unwrap();
    assert_eq!(names(&second), ["c"], "it goes on behind `b`");
    let gone = view(members(), vec![known(tools(&["a", "x", "y"]))]);
    let second = gone.page(request(ListKind::Tools), Some(&next), 2, seal).unwrap();
    assert_eq!(names(&second), ["y"]);
    for bad in ["", "{}", &next.replace("tools", "prompts")] {
        assert!(
            after.page(request(ListKind::Tools), Some(bad), 2, seal).is_err(),
            "{bad}"
        );
    }
}

#[test]
fn client_that_reads_only_the_first_page_gets_everything() {
    let many: Vec<String> = (0..2000).map(|number| format!("tool_{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let view = view(vec![member("m", None)], vec![known(tools(&many))]);
    let list = view.list(request(ListKind::Tools));
    assert_eq!(names(&list).len(), 2000);
    assert!(result(&list).get("nextCursor").is_none());
}

fn client(declared: &str) -> Client {
    Client::declaring(
        Principal::anonymous(),
        Some(Bytes::copy_from_slice(declared.as_bytes())),
        None,
    )
}

#[test]
fn capabilities_are_the_union_and_extensions_those_of_both_sides() {
    let declared = |capabilities: &str| {
        format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"serverInfo":{{"name":"s","version":"1"}}}}"#
        )
    };
    let one = offer(
        Era::Legacy,
        &declared(r#"{"tools":{},"completions":{},"experimental":{"x":{"a":1},"y":{}}}"#),
        [&[]; 4],
    );
    let two = offer(
        Era::Modern,
        r#"{"supportedVersions":["2026-07-28"],"capabilities":{"resources":{"subscribe":true},"logging":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#,
        [&[]; 4],
    );
    let view = view(
        vec![member("a", None), member("b", None)],
        vec![known(one), known(two)],
    );
    let shown = |era, declared: &str| {
        let server = view.declarations().for_client(era, &client(declared));
        let result: Value = serde_json::from_slice(server.message.raw(Member::Result).unwrap()).unwrap();
        result["capabilities"].clone()
    };
    let plain = json!({"completions": {}, "logging": {}, "resources": {"listChanged": true, "subscribe": true}, "tools": {"listChanged": true}});
    assert_eq!(shown(Era::Legacy, "{}"), plain);
    assert_eq!(shown(Era::Modern, "{}"), plain);
    let mutual = shown(
        Era::Modern,
        r#"{"experimental":{"x":{}},"extensions":{"io.modelcontextprotocol/tasks":{},"z":{}}}"#,
    );
    assert_eq!(mutual["experimental"], json!({"x": {"a": 1}}));
    assert_eq!(mutual["extensions"], json!({"io.modelcontextprotocol/tasks": {}}));
}

#[test]
fn capability_of_which_policy_leaves_nothing_is_not_shown() {
    let mut closed = member("m", None);
    closed.policy.deny = vec![Glob::parse("*").unwrap()];
    let view = view(vec![closed], vec![known(tools(&["a"]))]);
    let server = view.declarations().for_client(Era::Legacy, &client("{}"));
    assert!(!server.declares(crate::method::Method::ToolsList));
}

#[test]
fn kinds_that_an_unknown_member_may_have_are_declared() {
    let resources = || {
        let declared = r#"{"protocolVersion":"2025-11-25","capabilities":{"resources":{}},"serverInfo":{"name":"s","version":"1"}}"#;
        known(offer(Era::Legacy, declared, [&[]; 4]))
    };
    let shown = |facts: Vec<MemberFacts>| {
        let members = ["a", "b"].map(|name| member(name, None)).into_iter().collect();
        let view = view(members, facts);
        let server = view.declarations().for_client(Era::Legacy, &client("{}"));
        let result: Value = serde_json::from_slice(server.message.raw(Member::Result).unwrap()).unwrap();
        result["capabilities"].clone()
    };
    let changing = json!({"listChanged": true});
    assert_eq!(
        shown(vec![resources(), MemberFacts::default()]),
        json!({"tools": changing, "prompts": changing, "resources": changing})
    );
    assert_eq!(
        shown(vec![resources(), resources()]),
        json!({"resources": changing})
    );
}

#[test]
fn list_is_kept_no_longer_than_each_member_allows() {
    use crate::aggregate::offer::OfferedList;
    let list = |ttl, public| OfferedList {
        ttl,
        public,
        ..OfferedList::default()
    };
    let offering = |ttl, public| {
        let server = tools(&[]).server_info().clone();
        let lists = [list(ttl, public), list(0, false), list(0, false), list(0, false)];
        known(Arc::new(Offer::new(server, lists)))
    };
    let caching = |facts: Vec<MemberFacts>| {
        let members = ["a", "b"].map(|name| member(name, None)).into_iter().collect();
        let caching = view(members, facts).caching(ListKind::Tools);
        (caching.ttl, caching.public)
    };
    assert_eq!(
        caching(vec![offering(500, true), offering(300, true)]),
        (300, true)
    );
    assert_eq!(
        caching(vec![offering(500, true), offering(300, false)]),
        (300, false)
    );
    assert_eq!(
        caching(vec![offering(500, true), MemberFacts::default()]),
        (0, false)
    );
    let silent = offer(
        Era::Legacy,
        &DECLARED.replace(r#"{"listChanged":true}"#, "{}"),
        [&[]; 4],
    );
    assert_eq!(
        caching(vec![offering(500, true), known(silent)]),
        (0, false),
        "it announces no change"
    );
}

#[test]
fn search_lists_its_own_tools_and_those_that_always_are() {
    let mut spec = spec(vec![member("m", Some(""))]);
    spec.always = vec![Glob::parse("a*").unwrap()];
    spec.tools = ToolsMode::Search;
    let view = View::new(
        Arc::new(Plan::new(spec).unwrap()),
        vec![known(tools(&["alpha", "beta", "find_tools"]))],
    );
    let searching = ListRequest {
        mode: ToolsMode::Search,
        ..request(ListKind::Tools)
    };
    assert_eq!(
        names(&view.list(searching)),
        [
            "find_tools",
            "call_read",
            "call_write",
            "call_destructive",
            "alpha"
        ]
    );
    assert!(view.tool("beta").is_some(), "it stays callable by its name");
    assert!(view.withheld()[0].reason.contains("a name of Rialto's own"));
}

#[test]
fn tools_of_user_interfaces_are_for_clients_that_show_them() {
    let only = r#"{"name":"ui","_meta":{"ui":{"visibility":["app"]}}}"#;
    let offer = offer(
        Era::Legacy,
        DECLARED,
        [&[only, r#"{"name":"all"}"#], &[], &[], &[]],
    );
    let view = view(vec![member("m", None)], vec![known(offer)]);
    assert_eq!(names(&view.list(request(ListKind::Tools))).len(), 2);
    let without = ListRequest {
        shows_interfaces: false,
        ..request(ListKind::Tools)
    };
    assert_eq!(names(&view.list(without)), ["m__all"]);
}

#[test]
fn list_names_every_aggregate_that_it_has_come_through() {
    let inner = Offer::clone(&tools(&["x"])).through(["q/inner".to_owned()].into());
    let mut spec = spec(vec![member("m", None)]);
    spec.id = "p/outer".to_owned();
    let view = View::new(Arc::new(Plan::new(spec).unwrap()), vec![known(Arc::new(inner))]);
    let list = result(&view.list(request(ListKind::Tools)));
    assert_eq!(list["_meta"]["rialto/via"], json!(["p/outer", "q/inner"]));
}

#[test]
fn instructions_stand_under_the_names_of_their_members_and_cut_ones_are_known() {
    let instructed = |text: &str| {
        let declared = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "instructions": text,
            "serverInfo": {"name": "s", "version": "1"}});
        known(offer(Era::Legacy, &declared.to_string(), [&[]; 4]))
    };
    let mut spec = spec(vec![member("a", None), member("b", Some("x")), member("c", None)]);
    spec.instructions = Some("Use a.".to_owned());
    spec.limits.instructions_limit = 100;
    let long = "word ".repeat(100);
    let facts = vec![instructed("For a."), instructed(&long), known(tools(&["t"]))];
    let view = View::new(Arc::new(Plan::new(spec).unwrap()), facts);
    for era in Era::ALL {
        let server = view.declarations().for_client(era, &client("{}"));
        let text = server
            .message
            .object(Member::Result)
            .text("instructions")
            .unwrap();
        assert!(
            text.starts_with("Use a.\n\n## a\nFor a.\n\n## b\nword "),
            "{text}"
        );
        assert!(text.len() <= 100 && text.ends_with('…'), "{text}");
    }
    let cut: Vec<&str> = view.cut_instructions().map(|member| &**member).collect();
    assert_eq!(cut, ["b"]);
}

proptest::proptest! {
    #[test]
    fn name_depends_on_no_other_member_and_on_no_state(
        own in proptest::collection::btree_set("[a-c_.-]{1,6}", 1..5),
        others in proptest::collection::vec(proptest::option::of(proptest::collection::btree_set("[a-c_.-]{1,6}", 0..5)), 0..4),
        place in 0_usize..4,
        states in proptest::collection::vec(0_usize..5, 5),
    ) {
        let state = |at: usize| match states.get(at) {
            Some(1) => MemberState::Idle,
            Some(2) => MemberState::Starting,
            Some(3) => MemberState::Down,
            Some(4) => MemberState::SignInNeeded,
            Some(_) | None => MemberState::Ok,
        };
        let offer_of = |names: &std::collections::BTreeSet<String>| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            tools(&names)
        };
        let shown = |view: &View| -> Vec<(String, String)> {
            let items = view.tables.items(ListKind::Tools).iter();
            let of = items.filter(|item| &**view.plan.members()[item.member].name() == "me");
            of.map(|item| (item.own.to_string(), item.shown.to_string())).collect()
        };
        let alone = shown(&view(vec![member("me", None)], vec![known(offer_of(&own))]));
        let mut members = Vec::new();
        let mut facts = Vec::new();
        for (at, offered) in others.iter().enumerate() {
            members.push(member(&format!("m{at}"), None));
            facts.push(MemberFacts {
                offer: offered.as_ref().map(offer_of),
                state: state(at),
                ..MemberFacts::default()
            });
        }
        let place = place.min(members.len());
        members.insert(place, member("me", None));
        facts.insert(place, MemberFacts { state: state(4), ..known(offer_of(&own)) });
        proptest::prop_assert_eq!(shown(&view(members, facts)), alone);
    }
}
