//! Broken servers: how they start and end, and what they list.

use testkit::rialto::binary;

use crate::home::{Home, TOOL};

fn one(home: &Home) {
    home.configure("destinations:\n  a: { command: a-server }\n");
    let _ = home;
}

#[test]
fn server_that_ends_is_named_with_the_line_that_tells_why() {
    let home = Home::new();
    one(&home);
    home.program(
        "bin/a-server",
        "echo 'Error: no database' >&2; echo '  at line 7' >&2; exit 3",
    );
    home.doctor(&["a"])
        .assert_ids(&["does_not_start"])
        .assert_code(11)
        .assert_found(
            "does_not_start",
            "exit status 3); its stderr: `Error: no database`",
            "rialto tools a",
        );
}

#[test]
fn entry_of_a_host_that_ends_is_to_be_started_by_its_command() {
    let home = Home::new();
    home.program("bin/a-server", "echo 'Error: no database' >&2; exit 3");
    home.put(
        ".cursor/mcp.json",
        r#"{"mcpServers": {"a": {"command": "a-server"}}}"#,
    );
    home.doctor(&["a"])
        .assert_ids(&["does_not_start"])
        .assert_code(11)
        .assert_found(
            "does_not_start",
            "its stderr: `Error: no database`",
            "start the command of a in a terminal",
        );
}

#[test]
fn variable_that_is_set_and_not_passed_on_is_named() {
    let home = Home::new();
    one(&home);
    home.program(
        "bin/a-server",
        "echo 'Error: BRAVE_API_KEY is required' >&2; exit 1",
    );
    home.doctor_with(&["a"], &[("BRAVE_API_KEY", "geheim")])
        .assert_ids(&["variable_withheld"])
        .assert_code(11)
        .assert_found(
            "variable_withheld",
            "BRAVE_API_KEY",
            "env: { BRAVE_API_KEY: \"${BRAVE_API_KEY}\" }",
        );
}

#[test]
fn server_that_never_answers_is_to_be_tried_with_more_time() {
    let home = Home::new();
    one(&home);
    home.program("bin/a-server", "while read -r line; do :; done");
    home.doctor(&["a", "--timeout", "300ms"])
        .assert_ids(&["no_answer"])
        .assert_code(10)
        .assert_found("no_answer", "within 300ms", "rialto doctor a --timeout 5m");
}

#[test]
fn line_on_stdout_that_is_no_message_is_shown() {
    let home = Home::new();
    one(&home);
    home.server_with("bin/a-server", TOOL, "echo 'Server started!'", "");
    home.doctor(&["a"])
        .assert_ids(&["noise_on_stdout"])
        .assert_code(11)
        .assert_found("noise_on_stdout", "`Server started!`", "stderr");
}

#[test]
fn server_that_outlives_its_stdin_is_noted() {
    let home = Home::new();
    let stub = binary("testkit-server");
    home.configure(&format!(
        "destinations:\n  a: {{ command: {}, args: [--ignore-eof] }}\n",
        stub.display()
    ));
    let diagnosis = home.doctor(&["a"]);
    diagnosis
        .assert_code(0)
        .assert_found("ignores_end_of_stdin", "still ran 2.0 s", "rialto adopt");
}

#[test]
fn processes_that_outlive_a_killed_server_are_noted_and_ended() {
    let home = Home::new();
    let stub = binary("testkit-server");
    let note = home.path("pid");
    home.configure(&format!(
        "destinations:\n  a: {{ command: {}, args: [--grandchild, {}] }}\n",
        stub.display(),
        note.display()
    ));
    let diagnosis = home.doctor(&["a"]);
    diagnosis
        .assert_code(0)
        .assert_found("orphans", "testkit-server (", "rialto adopt");
    let pid: u32 = std::fs::read_to_string(note).unwrap().trim().parse().unwrap();
    let alive = testkit::processes::Process::read(pid).is_some_and(|process| process.is_alive());
    assert!(!alive, "{pid} lives on");
}

#[test]
fn tools_that_hosts_drop_are_named_with_the_reason() {
    let home = Home::new();
    one(&home);
    let tool = |name: &str, description: &str, schema: &str| {
        format!(r#"{{"name":"{name}","description":"{description}","inputSchema":{schema}}}"#)
    };
    let object = r#"{"type":"object"}"#;
    let tools = [
        tool(&"a".repeat(52), "", object),
        tool(&"b".repeat(65), "", object),
        tool(&"c".repeat(129), "", object),
        tool("described", &"d".repeat(2049), object),
        tool("either", "", r#"{"type":"object","anyOf":[{}]}"#),
        tool("files/read", "", object),
    ];
    home.server("bin/a-server", &tools.join(","));
    home.doctor(&["a"])
        .assert_ids(&[
            "name_over_128",
            "name_over_64",
            "name_over_51",
            "name_with_signs",
            "long_description",
            "schema_dropped",
        ])
        .assert_code(11)
        .assert_found("name_over_64", "65 characters", "rename")
        .assert_found("long_description", "described (2.0 kB)", "shorten")
        .assert_found(
            "schema_dropped",
            "`either`, whose inputSchema has `anyOf` at its top",
            "deny",
        )
        .assert_fact("6 tools");
}

#[test]
fn remote_server_that_is_down_is_to_be_tried_later() {
    let home = Home::new();
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    home.configure(&format!(
        "destinations:\n  a: {{ url: \"http://{closed}/mcp\" }}\n"
    ));
    home.doctor(&["a"])
        .assert_ids(&["unreachable", "discovery_unreachable"])
        .assert_code(10);
}
