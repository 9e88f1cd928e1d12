//! Names, exit codes and what is printed.

use crate::home::{Home, TOOL};

#[test]
fn unknown_name_is_answered_with_the_names_that_there_are() {
    let home = Home::new();
    home.configure("destinations:\n  files: { command: files-server }\n");
    home.put(
        ".cursor/mcp.json",
        r#"{"mcpServers": {"notes": {"command": "notes"}}}"#,
    );
    let output = home.command(&["doctor", "nothing"]).output().unwrap();
    assert_eq!(output.status.code(), Some(12));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("`nothing`; there is files, notes"), "{text}");
    assert!(output.stdout.is_empty());
}

#[test]
fn entry_of_a_host_is_looked_at_by_its_name() {
    let home = Home::new();
    home.server("bin/notes", TOOL);
    home.put(
        ".cursor/mcp.json",
        r#"{"mcpServers": {"notes": {"command": "notes"}}}"#,
    );
    home.doctor(&["notes"])
        .assert_ids(&[])
        .assert_code(0)
        .assert_fact("notes answers after")
        .assert_fact("notes 1 tools");
}

#[test]
fn configuration_with_a_fault_is_a_finding_and_the_rest_is_looked_at() {
    let home = Home::new();
    home.configure("destinations:\n  files: { comand: x }\n");
    home.put(".cursor/mcp.json", r#"{"mcpServers": {}}"#);
    home.doctor(&[])
        .assert_ids(&["configuration"])
        .assert_code(11)
        .assert_found("configuration", "comand", "rialto check --config")
        .assert_fact("Cursor ~/.cursor/mcp.json");
}

#[test]
fn wrong_flags_are_refused() {
    let home = Home::new();
    for args in [["--hold", "soon"], ["--timeout", "-1"], ["--header", "x"]] {
        let output = home.command(&["doctor", args[0], args[1]]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn page_names_what_why_and_the_line_without_colour_in_a_pipe() {
    let home = Home::new();
    home.put(
        ".config/Code/User/mcp.json",
        r#"{"mcpServers": {"files": {"command": "files"}}}"#,
    );
    let output = home.command(&["doctor", "vscode"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(11));
    assert!(
        text.contains("    the host does not see these servers\n    $ rialto doctor vscode --fix\n"),
        "{text}"
    );
    assert!(text.ends_with("1 to fix; --fix cures 1 of them\n"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
}
