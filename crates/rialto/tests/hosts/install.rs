//! `rialto install`, `rialto uninstall` and `rialto config --for`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use crate::home::{Home, PROGRAM, text};

#[test]
fn the_own_command_of_a_host_is_preferred() {
    let home = Home::empty();
    let script = "#!/bin/sh\nprintf '%s\\n' \"$*\" >> \"$HOME/calls\"\n";
    let path = home.put("bin/claude", script.as_bytes());
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    home.put(
        ".config/rialto/destinations.yml",
        b"destinations:\n  files: { command: x }\n",
    );
    home.done(&["install", "claude-code", "files"]);
    home.done(&["install", "claude", "https://mcp.linear.app/mcp"]);
    assert_eq!(
        home.text("calls"),
        format!(
            "mcp add --scope user files -- {PROGRAM} attach files\nmcp add --scope user --transport http linear https://mcp.linear.app/mcp\n"
        )
    );
    assert!(!home.path(".claude.json").exists());
    home.done(&["install", "claude-code", "files", "--edit"]);
    assert!(home.text(".claude.json").contains("\"attach\", \"files\""));
    home.done(&["uninstall", "claude-code", "files"]);
    assert!(home.text("calls").ends_with("mcp remove --scope user files\n"));
}

#[test]
fn an_own_command_that_fails_is_quoted() {
    let home = Home::empty();
    let path = home.put("bin/codex", b"#!/bin/sh\necho 'no such scope' >&2\nexit 3\n");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    let said = home.refused(&["install", "codex", "https://mcp.linear.app/mcp"]);
    assert!(
        said.contains("codex did not take the entry: no such scope"),
        "{said}"
    );
    assert!(said.contains("--edit"), "{said}");
}

#[test]
fn a_file_that_is_not_there_is_made_for_this_user_alone() {
    let home = Home::empty();
    home.done(&["install", "cursor", "https://mcp.linear.app/mcp"]);
    assert_eq!(
        home.text(".cursor/mcp.json"),
        "{\n  \"mcpServers\": {\n    \"linear\": {\n      \"url\": \"https://mcp.linear.app/mcp\"\n    }\n  }\n}\n"
    );
    home.done(&["install", "codex", "https://mcp.linear.app/mcp"]);
    assert_eq!(
        home.text(".codex/config.toml").trim_start(),
        "[mcp_servers.linear]\nurl = \"https://mcp.linear.app/mcp\"\n"
    );
}

#[test]
fn header_in_a_file_that_others_can_read_is_told_with_the_line_that_closes_it() {
    let home = Home::empty();
    let install = |name: &str, more: &[&str]| {
        let named = ["install", "cursor", "https://a.example/mcp", "--name", name];
        let output = home.run(&[&named, more].concat());
        assert!(output.status.success());
        crate::home::text(&output.stderr)
    };
    let header = ["--header", "Authorization: Bearer geheim"];
    let path = home.put(".cursor/mcp.json", b"{}\n");
    for (mode, is_told) in [(0o600, false), (0o644, true)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let said = install(&format!("mode-{mode:o}"), &header);
        assert_eq!(said.contains("chmod 600 ~/.cursor/mcp.json"), is_told, "{said}");
        assert!(!said.contains("geheim"), "{said}");
    }
    assert!(!install("open", &[]).contains("chmod"), "it has no header");
    home.put("project/.cursor/mcp.json", b"{}\n");
    let said = home
        .command(&["install", "cursor", "https://a.example/mcp", "--project"])
        .args(header)
        .current_dir(home.path("project"))
        .output()
        .unwrap();
    let said = crate::home::text(&said.stderr);
    assert!(said.contains("belongs to the project"), "{said}");
}

#[test]
fn of_many_installs_at_once_each_that_succeeds_has_its_entry() {
    const INSTALLS: usize = 12;
    let home = Home::empty();
    home.put(".cursor/mcp.json", b"{\n  \"mcpServers\": {}\n}\n");
    let started: Vec<_> = (0..INSTALLS)
        .map(|number| {
            let name = format!("n{number}");
            let args = ["install", "cursor", "https://mcp.linear.app/mcp", "--name", &name];
            let child = home.command(&args).stderr(Stdio::piped()).spawn().unwrap();
            (name, child)
        })
        .collect();
    let mut succeeded = Vec::new();
    for (name, child) in started {
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stderr);
        match output.status.success() {
            true => succeeded.push(name),
            false => assert!(said.contains("run the command again"), "{said}"),
        }
    }
    let file: serde_json::Value = serde_json::from_str(&home.text(".cursor/mcp.json")).unwrap();
    let mut entries: Vec<_> = file["mcpServers"].as_object().unwrap().keys().cloned().collect();
    entries.sort();
    succeeded.sort();
    assert!(!succeeded.is_empty());
    assert_eq!(entries, succeeded);
    assert_eq!(
        fs::read_dir(home.path(".cursor")).unwrap().count(),
        1,
        "no draft is left"
    );
}

#[test]
fn files_of_a_project_name_the_program_without_its_path() {
    let home = Home::empty();
    home.put(
        ".config/rialto/destinations.yml",
        b"destinations:\n  files: { command: x }\n",
    );
    home.done(&["install", "cursor", "files", "--project"]);
    // The home is the working directory, so that both files would be the same one.
    assert!(home.text(".cursor/mcp.json").contains("\"command\": \"rialto\""));
    let said = home.refused(&["install", "claude-desktop", "files", "--project"]);
    assert!(said.contains("no file for one project"), "{said}");
}

#[test]
fn what_cannot_be_installed_is_answered_with_what_can() {
    let home = Home::empty();
    home.put(
        ".config/rialto/destinations.yml",
        b"destinations:\n  files: { command: x }\n",
    );
    let said = home.refused(&["install", "cursor", "flies"]);
    assert!(said.contains("no destination `flies`; it has files"), "{said}");
    let said = home.refused(&["install", "emacs", "files"]);
    assert!(said.contains("emacs"), "{said}");
    home.done(&["install", "cursor", "files"]);
    home.done(&["install", "cursor", "files"]);
    let said = home.refused(&[
        "install",
        "cursor",
        "https://mcp.linear.app/mcp",
        "--name",
        "files",
    ]);
    assert!(said.contains("another entry `files`"), "{said}");
    let said = home.refused(&["uninstall", "cursor", "nothing"]);
    assert!(said.contains("no `nothing`; it has files"), "{said}");
    let said = home.refused(&["uninstall", "goose", "x"]);
    assert!(said.contains("no servers"), "{said}");
}

#[test]
fn config_for_a_host_reads_the_file_that_serve_reads_or_the_users_own() {
    let home = Home::empty();
    home.put(
        ".config/rialto/destinations.yml",
        b"destinations:\n  mine: { command: x }\n",
    );
    assert!(
        home.done(&["config", "--for", "vscode"])
            .contains("http://127.0.0.1:3000/mine/mcp")
    );
    home.put(
        "destinations.yml",
        b"listen: 8080\ndestinations:\n  here: { command: x }\n",
    );
    let printed = home.done(&["config", "--for", "codex"]);
    assert_eq!(
        printed,
        "[mcp_servers.here]\nurl = \"http://127.0.0.1:8080/here/mcp\"\n"
    );
    let said = home.refused(&["config", "--for", "codex", "there"]);
    assert!(said.contains("no destination `there`; there are here"), "{said}");
}
