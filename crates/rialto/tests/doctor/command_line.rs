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

/// A server that leaves a mark where it runs.
const MARKING: &str = r#"{"mcpServers": {"files": {"command": "marking"}}}"#;

fn has_run(home: &Home) -> bool {
    home.path("work/mark").exists()
}

#[test]
fn server_of_a_file_in_the_working_directory_is_started_only_if_it_is_trusted() {
    let home = Home::new();
    home.server_with("bin/marking", TOOL, "echo ran > mark", "");
    home.put("work/.mcp.json", MARKING);
    for subject in ["claude-code", "files"] {
        home.doctor(&[subject])
            .assert_ids(&[])
            .assert_code(0)
            .assert_fact("was not tried: ");
        assert!(!has_run(&home), "a clone may bring such a file: {subject}");
    }
    home.doctor(&["claude-code", "--project"])
        .assert_code(0)
        .assert_fact("files 1 tools");
    assert!(has_run(&home));
}

#[test]
fn configuration_that_another_user_put_into_the_working_directory_is_not_used() {
    let home = Home::new();
    home.server_with("bin/marking", TOOL, "echo ran > mark", "");
    let file = home.put(
        "work/destinations.yml",
        "destinations:\n  files: { command: marking }\n",
    );
    let own = rustix::process::getuid().as_raw();
    if std::os::unix::fs::chown(&file, Some(own + 1), None).is_err() {
        // Only root can make such a file.
        assert_ne!(own, 0);
        return;
    }
    home.doctor(&[]).assert_code(11).assert_found(
        "configuration",
        &format!("destinations.yml belongs to user {}", own + 1),
        "--config destinations.yml",
    );
    let output = home.command(&["tools", "files"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("belongs to user"), "{text}");
    assert!(!has_run(&home));
    home.doctor(&["--config", "destinations.yml"])
        .assert_fact("files 1 tools");
    assert!(has_run(&home), "it was named");
}
