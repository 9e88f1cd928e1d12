//! What a destination may contain, and the problems that are reported about it.

use super::*;

#[test]
fn roots_are_uris_of_files() {
    let loaded = load("destinations:\n  x:\n    command: x\n    roots: [file:///srv/one, file:///srv/two]\n");
    let loaded = loaded.expect("loads");
    assert_eq!(only(&loaded).roots, ["file:///srv/one", "file:///srv/two"]);
    let error = load("destinations:\n  x:\n    command: x\n    roots: /srv/one\n").expect_err("refused");
    assert!(error.to_string().contains("file:///srv/project"), "{error}");
}

#[test]
fn every_error_in_a_destination_names_file_line_destination_field_and_the_fix() {
    for (line, field, fix) in [
        ("request_timeout: 30", "request_timeout", "write 30s"),
        ("request_timeout: 0s", "request_timeout", "write a duration"),
        ("stream_timeout: 30", "stream_timeout", "write 30s"),
        ("start_timeout: soon", "start_timeout", "30s"),
        ("linger: 5", "linger", "write 5s"),
        ("max_message_bytes: big", "max_message_bytes", "1MiB"),
        ("max_sessions: 0", "max_sessions", "at least 1"),
        ("max_sessions: many", "max_sessions", "whole number"),
        ("max_children: 1.5", "max_children", "whole number"),
        ("process: per-session", "process", "`per_session`"),
        (
            "process: banana",
            "process",
            "write one of shared, per_session, per_identity",
        ),
        ("start: egaer", "start", "`eager`"),
        ("capabilities: all", "capabilities", "per_client, union"),
        ("type: http", "type", "`streamable_http`"),
        ("env: [A]", "env", "must be a map"),
        ("env: { A: [1] }", "env.A", "single value"),
        ("env: { 'A=B': 1 }", "env.A=B", "API_KEY"),
        ("env: { A: \"x\\0y\" }", "env.A", "NUL"),
        (
            "env: { A: \"${NOPE}\" }",
            "env.A",
            "NOPE is not set: set it, or write ${NOPE:-default}",
        ),
        ("env: { A: \"${secret:k}\" }", "env.A", "secrets_file"),
        ("env: { A: \"${file:no/such}\" }", "env.A", "no/such"),
        ("args: -y", "args", "write [one, two]"),
        ("args: [a, \"${NOPE}\"]", "args[1]", "NOPE"),
        ("cwd: ~/x", "cwd", "${HOME}"),
        ("cwd: [a]", "cwd", "single value"),
        (
            "env_from_headers: { A: X-A }",
            "env_from_headers",
            "process: per_identity",
        ),
        ("legacy_sse: old", "legacy_sse", "true or false"),
        ("placement: two", "placement", "replica"),
        ("comand: x", "comand", "did you mean `command`"),
        ("timeout: 5s", "timeout", "did you mean `request_timeout`"),
        ("startTimeout: 5s", "startTimeout", "did you mean `start_timeout`"),
        ("banana: 5", "banana", "known here are type, process, command"),
    ] {
        let found = problems(&destination_file(&["command: cat", line]));
        let [problem] = found.as_slice() else {
            panic!("one problem was expected for `{line}`: {found:?}")
        };
        let start = format!("destinations.yml:4: destination `x`, field `{field}`: ");
        assert!(problem.starts_with(&start), "`{line}`: {problem}");
        assert!(problem.contains(fix), "`{line}`: {problem}");
    }
}

#[test]
fn a_wrong_command_is_named_with_its_fix() {
    for (line, fix) in [
        ("command: a | b", "without a shell"),
        ("command: a && b", "`&&`"),
        ("command: 'a > b'", "in quotes"),
        ("command: \"\"", "empty"),
        ("command: []", "empty"),
        ("command: ['']", "empty"),
        ("command: \"a 'b\"", "not closed"),
        ("command: run ${NOPE}", "NOPE is not set"),
        ("command: { a: b }", "single value"),
    ] {
        let found = problems(&destination_file(&[line]));
        let all = found.join("\n");
        assert!(
            all.starts_with("destinations.yml:3: destination `x`, field `command`: "),
            "`{line}`: {all}"
        );
        assert!(all.contains(fix), "`{line}`: {all}");
    }
}

#[test]
fn a_destination_that_is_none_is_named() {
    for (lines, fix) in [
        (&["cwd: /x"][..], "write `command:"),
        (&["type: stdio"], "write `command:"),
        (&["type: stdio", "url: https://x"], "needs a `command`"),
        (&["command: cat", "url: https://x"], "both `command` and `url`"),
        (&["type: sse", "command: cat"], "`type: stdio`"),
    ] {
        let found = problems(&destination_file(lines));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("destinations.yml:2: destination `x`: "),
            "{found:?}"
        );
        assert!(found[0].contains(fix), "{found:?}");
    }
}

#[test]
fn more_sessions_than_processes_for_them_are_noted() {
    let notes = |lines: &[&str]| load(&destination_file(lines)).expect("loads").notes;
    let found = notes(&["command: cat", "process: per_session", "max_sessions: 50"]);
    assert!(
        found.len() == 1 && found[0].contains("write `max_children: 50`"),
        "{found:?}"
    );
    for lines in [
        ["command: cat", "process: per_session", "max_sessions: 10"].as_slice(),
        &[
            "command: cat",
            "process: per_session",
            "max_sessions: 50",
            "max_children: 20",
        ],
        &["command: cat", "max_sessions: 50"],
        &["url: https://mcp.example.com/mcp", "max_sessions: 50"],
    ] {
        assert_eq!(notes(lines), [""; 0], "{lines:?}");
    }
}

#[test]
fn a_remote_destination_needs_only_its_address() {
    let loaded = load(&destination_file(&["url: https://mcp.example.com/mcp"])).expect("loads");
    let destination = only(&loaded);
    let spec = remote(destination);
    assert_eq!(spec.url.as_str(), "https://mcp.example.com/mcp");
    assert_eq!((spec.transport, spec.retry), (Transport::Auto, Retry::Safe));
    assert!(spec.headers.is_empty() && spec.forward_headers.is_empty() && spec.ca_file.is_none());
    // A session at a remote server costs nothing here, so each client has its own.
    assert_eq!(destination.instances.sharing, Sharing::PerSession);
    assert_eq!(destination.max_sessions, 1000);
}

#[test]
fn every_key_of_a_remote_destination_can_stand_in_a_file() {
    let file = destination_file(&[
        "type: sse",
        "url: https://old.example.com/sse",
        "headers: { Authorization: \"Bearer x\", X-Team: blue }",
        "forward_headers: [X-Request-Id]",
        "ca_file: ca.pem",
        "retry: always",
        "auth: oauth",
        "process: per_identity",
    ]);
    // Tokens are kept in the user's own state.
    let environment = [("HOME", "/home/u")].into_iter().collect();
    let loaded = load_with(&file, &ServeFlags::default(), &environment).expect("loads");
    let spec = remote(only(&loaded));
    assert_eq!((spec.transport, spec.retry), (Transport::Sse, Retry::Always));
    assert!(only(&loaded).legacy_sse, "an old server keeps its old clients");
    let headers: Vec<(&str, &str)> = spec
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    assert_eq!(headers, [("authorization", "Bearer x"), ("x-team", "blue")]);
    assert_eq!(spec.forward_headers[0].as_str(), "x-request-id");
    assert!(spec.ca_file.as_ref().is_some_and(|file| file.ends_with("ca.pem")));
    assert!(matches!(spec.sign_in, SignIn::OAuth(_)));
}

#[test]
fn a_remote_destination_that_cannot_be_reached_safely_is_refused_by_name() {
    for (lines, fix) in [
        (&["type: sse"][..], "write `url: https"),
        (&["url: mcp.example.com"], "write https://host/path"),
        (&["url: ftp://mcp.example.com/mcp"], "only http and https"),
        (
            &["url: https://me:pw@mcp.example.com/mcp"],
            "credentials in an address",
        ),
        (
            &["url: https://x/mcp", "headers: { Mcp-Session-Id: x }"],
            "written by the transport",
        ),
        (
            &["url: https://x/mcp", "headers: { X: \"a\\nb\" }"],
            "no header can carry",
        ),
        (
            &["url: https://x/mcp", "forward_headers: [A B]"],
            "not the name of an HTTP header",
        ),
        (
            &["url: https://x/mcp", "process: shared", "forward_headers: [X-A]"],
            "process: per_identity",
        ),
        (&["url: https://x/mcp", "env: { A: b }"], "is given `headers`"),
        (&["command: cat", "headers: { A: b }"], "is given `env`"),
    ] {
        let found = problems(&destination_file(lines));
        assert_eq!(found.len(), 1, "{lines:?}: {found:?}");
        assert!(found[0].contains("destination `x`"), "{found:?}");
        assert!(found[0].contains(fix), "{lines:?}: {found:?}");
    }
}
