//! `aggregates`, `--aggregate`, and the errors about them.

use gateway::settings::{ToolsMode, WhenDown};

use super::*;

const TWO: &str = "destinations:\n  github: { command: cat }\n  files: { command: cat }\n";

fn plan(destination: &Destination) -> &gateway::settings::Plan {
    match &destination.backend {
        BackendSpec::Aggregate(spec) => &spec.plan,
        BackendSpec::Process(_) | BackendSpec::Remote(_) => panic!("an aggregate was expected"),
    }
}

fn problems_of(aggregates: &str) -> Vec<String> {
    problems(&format!("{TWO}aggregates:\n{aggregates}"))
}

#[test]
fn aggregate_of_the_contract_is_read() {
    let text = format!(
        "{TWO}  linear: {{ url: 'https://linear.example.com/mcp' }}\n\
aggregates:
  work:
    title: Work
    members:
      github: {{ prefix: gh, title: GitHub, tools: {{ allow: [create_issue, \"list_*\"], rename: {{ create_issue: new_issue }},
        describe: {{ create_issue: Opens an issue }}, hide_args: {{ create_issue: {{ repo: a/b, draft: true, n: 1.5 }} }},
        annotations: {{ create_issue: {{ destructive: true }} }} }} }}
      files: {{}}
      linear: {{ when_down: hide, grace: 2m }}
    instructions: \"Use gh for code, linear for tickets.\"
    tools: search
    always: [gh__*]
    name_limit: 40
    page_size: 100
    instructions_limit: 1KiB
    ready_timeout: 2s
    max_sessions: 7
"
    );
    let loaded = load(&text).expect("it is right");
    let [.., work] = loaded.settings.destinations.as_slice() else {
        panic!("an aggregate comes last");
    };
    assert_eq!((work.name.as_str(), work.max_sessions), ("work", 7));
    let plan = plan(work);
    let names: Vec<(&str, &str)> = plan
        .members()
        .iter()
        .map(|member| (&**member.name(), member.prefix()))
        .collect();
    assert_eq!(
        names,
        [("github", "gh"), ("files", "files"), ("linear", "linear")]
    );
    assert_eq!(plan.tools_mode(), ToolsMode::Search);
    let limits = plan.limits();
    assert_eq!(
        (limits.name_limit, limits.page_size, limits.instructions_limit),
        (40, Some(100), 1024)
    );
    assert_eq!(limits.ready_timeout, Duration::from_secs(2));
    let linear = plan.member("linear").expect("it is a member");
    assert_eq!(
        linear.when_down(),
        WhenDown::Hide {
            grace: Duration::from_secs(120)
        }
    );
    assert!(!linear.is_per_caller());
}

#[test]
fn members_may_be_a_list_and_those_with_headers_of_callers_are_the_callers_own() {
    let text = "destinations:\n  a: { command: cat, process: per_identity }\n  b: { url: 'https://b.example.com/mcp', forward_headers: [X-Key] }\n  c: { command: cat }\naggregates: { all-three: { members: [a, b, c] } }\n";
    let loaded = load(text).expect("it is right");
    let plan = plan(loaded.settings.destinations.last().expect("the aggregate"));
    let own: Vec<bool> = plan
        .members()
        .iter()
        .map(|member| member.is_per_caller())
        .collect();
    assert_eq!(own, [true, true, false]);
}

#[test]
fn errors_name_file_aggregate_member_and_the_way_out() {
    for (aggregates, wanted) in [
        (
            "  work: { members: { github: { prefix: x }, files: { prefix: x } } }\n",
            "destinations.yml:5: aggregate `work`, field `members.files.prefix`: members `github` and `files` have the same prefix `x`: give one of them another `prefix`",
        ),
        (
            "  work: { members: { gihub: {} } }\n",
            "destinations.yml:5: aggregate `work`, field `members.gihub`: there is no destination `gihub`; did you mean `github`?",
        ),
        (
            "  work: { members: { banana: {} } }\n",
            "there is no destination `banana`: add it to `destinations`, or name one of github, files",
        ),
        (
            "  work: { members: { github: { prefx: x } } }\n",
            "aggregate `work`, field `members.github.prefx`: this key is not known; did you mean `members.github.prefix`?",
        ),
        (
            "  work: { members: { github: { tools: { renam: {} } } } }\n",
            "field `members.github.tools.renam`: this key is not known; did you mean `members.github.tools.rename`?",
        ),
        (
            "  work: { members: { github: { tools: { rename: { a: c, b: c } } } } }\n",
            "aggregate `work`, field `members.github.tools.rename`: member `github`: `rename` gives both `a` and `b` the name `c`",
        ),
        (
            "  work: { members: { github: { tools: { annotations: { a: { read_only: true } } } } } }\n",
            "field `members.github.tools.annotations.a.read_only`: `true` is wrong: a hint can only be made stricter: write `read_only: false`",
        ),
        (
            "  work: { members: { github: { grace: 5s } } }\n",
            "field `members.github.grace`: goes with `when_down: hide`",
        ),
        (
            "  work: { members: [github], always: [x] }\n",
            "field `always`: goes with `tools: search`",
        ),
        (
            "  work: {}\n",
            "aggregate `work`: has no `members`: write `members:",
        ),
        (
            "  work: { members: {} }\n",
            "aggregate `work`, field `members`: it has no member",
        ),
        (
            "  github: { members: [files] }\n",
            "aggregate `github`: a destination has the name `github` too, and both would be served at /github/mcp: rename one of them",
        ),
        (
            "  mcp: { members: [files] }\n",
            "aggregate `mcp`: the name `mcp` is one of Rialto's own paths",
        ),
        (
            "  work: { members: [files], name_limit: 5 }\n",
            "`name_limit` is 5: the least is 24",
        ),
    ] {
        let problems = problems_of(aggregates);
        assert!(
            problems.iter().any(|problem| problem.contains(wanted)),
            "{wanted}\n{problems:#?}"
        );
    }
}

#[test]
fn member_that_is_this_gateway_itself_is_refused() {
    for (destination, globals) in [
        ("self: { url: 'http://127.0.0.1:3000/all/mcp' }", ""),
        ("self: { url: 'http://localhost:3000/files/mcp' }", ""),
        (
            "self: { url: 'https://mcp.example.com/x/mcp' }",
            "public_url: https://mcp.example.com\n",
        ),
        ("self: { command: rialto connect --config destinations.yml }", ""),
    ] {
        let text = format!(
            "{globals}destinations:\n  {destination}\naggregates: {{ work: {{ members: [self] }} }}\n"
        );
        let problems = problems(&text);
        assert!(
            problems
                .iter()
                .any(|problem| problem
                    .contains("aggregate `work`, field `members.self`: is this gateway itself")),
            "{problems:?}"
        );
    }
    for other in ["http://127.0.0.1:3001/mcp", "http://10.0.0.1:3000/mcp"] {
        let text =
            format!("destinations:\n  a: {{ url: '{other}' }}\naggregates: {{ work: {{ members: [a] }} }}\n");
        assert!(load(&text).is_ok(), "{other}");
    }
}

fn flag(name: &str) -> ServeFlags {
    ServeFlags {
        aggregate: Some(name.to_owned()),
        ..ServeFlags::default()
    }
}

#[test]
fn flag_makes_an_aggregate_of_everything_in_a_file() {
    let text = "destinations:\n  my.server: { command: cat }\n  loop: { command: rialto connect --config x }\n  b: { command: cat }\n";
    let loaded = load_with(text, &flag("all"), &Environment::default()).expect("it is right");
    let all = loaded.settings.destinations.last().expect("it is there");
    let prefixes: Vec<&str> = plan(all).members().iter().map(|member| member.prefix()).collect();
    assert_eq!((all.name.as_str(), prefixes), ("all", vec!["my-server", "b"]));
    assert!(
        loaded
            .notes
            .iter()
            .any(|note| note.contains("`loop` is left out of `all`")),
        "{:?}",
        loaded.notes
    );
    let taken = problems_with(text, &flag("b"), &Environment::default());
    assert!(
        taken[0].contains("--aggregate") && taken[0].contains("rename one of them"),
        "{taken:?}"
    );
}

#[test]
fn flag_makes_an_aggregate_of_the_demo_server_alone() {
    let flags = ServeFlags {
        demo: true,
        ..flag("all")
    };
    let loaded = settings(&flags, &Environment::default()).expect("it is right");
    let names: Vec<&str> = loaded
        .settings
        .destinations
        .iter()
        .map(|destination| destination.name.as_str())
        .collect();
    assert_eq!(names, ["demo", "all"]);
    assert_eq!(loaded.settings.root_destination.as_deref(), Some("demo"));
}

#[test]
fn fleet_refuses_a_member_that_runs_on_one_replica() {
    let text = "cluster: { url: 'redis://127.0.0.1', key_file: k, listen: 127.0.0.1:3001 }\ndestinations:\n  a: { command: cat, placement: one }\naggregates: { work: { members: [a] } }\n";
    let problems = problems(text);
    assert!(
        problems
            .iter()
            .any(|problem| problem.contains("field `members.a`: has `placement: one`")),
        "{problems:?}"
    );
}
