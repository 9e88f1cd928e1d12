//! `rialto import`: the servers of all hosts as one file.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::home::{Home, text};

#[test]
fn equal_servers_of_all_hosts_become_one_destination() {
    let home = Home::with_all_hosts();
    let yaml = home.done(&["import"]);
    assert_eq!(
        yaml.matches("@modelcontextprotocol/server-everything").count(),
        1,
        "{yaml}"
    );
    // Each of the two forms is one: that of Codex has its token in a header, others sign in.
    for part in [
        "  everything:\n",
        "  linear:\n",
        "  older:\n",
        "  git:\n",
        "cwd: \"/code/app\"",
    ] {
        assert!(yaml.contains(part), "{part}: {yaml}");
    }
    assert!(
        yaml.contains("# Cursor: ~/.cursor/mcp.json\n  # VS Code: "),
        "{yaml}"
    );
}

#[test]
fn what_is_not_carried_over_is_named_with_its_place() {
    let home = Home::with_all_hosts();
    let notes = text(&home.run(&["import"]).stderr);
    for part in [
        "~/.config/Code/User/mcp.json:14: `search` is left out: it asks for a value when it starts (`${input:key}`)",
        "`everything`: not carried over, since it is for the host: trust, timeout",
        "`off` is left out: it is switched off there",
        "`developer` is left out: it is built into the host (`builtin`)",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

#[test]
fn no_secret_is_printed_and_a_file_for_them_is_private() {
    let home = Home::empty();
    home.put(
        ".cursor/mcp.json",
        br#"{"mcpServers": {"a": {"command": "x", "args": ["--token=geheim1"], "env": {"API_KEY": "geheim2"}},
            "b": {"url": "https://b.example.com/mcp", "headers": {"Authorization": "Bearer geheim3"}}}}"#,
    );
    let output = home.run(&["import"]);
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(!printed.contains("geheim"), "{printed}");
    assert!(printed.contains("Set the variable API_KEY"), "{printed}");
    let notes = text(&home.run(&["import", "--output", "d/destinations.yml"]).stderr);
    assert!(
        !notes.contains("geheim") && notes.contains("3 secrets"),
        "{notes}"
    );
    for file in ["d/destinations.yml", "d/secrets.yml"] {
        let mode = fs::metadata(home.path(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let written = home.text("d/destinations.yml");
    assert!(
        !written.contains("geheim") && written.contains("${secret:a.API_KEY}"),
        "{written}"
    );
    for secret in ["geheim1", "geheim2", "geheim3"] {
        assert!(home.text("d/secrets.yml").contains(secret));
    }
    assert!(
        home.refused(&["import", "--output", "d/destinations.yml"])
            .contains("exists already")
    );
}

#[test]
fn what_is_written_can_be_served() {
    let home = Home::with_all_hosts();
    home.done(&["import", "cursor", "zed", "--output", "destinations.yml"]);
    // The file is read and nothing is started: this address is the only thing that is wrong.
    let said = home.refused(&["check", "--config", "destinations.yml", "--listen", "nowhere"]);
    assert!(said.contains("--listen") && !said.contains("problems"), "{said}");
}

#[test]
fn a_host_without_a_file_is_named_with_the_place_of_one() {
    let home = Home::empty();
    let said = home.refused(&["import", "cursor", "opencode"]);
    assert!(said.contains("Cursor: there is no ~/.cursor/mcp.json"), "{said}");
    assert!(
        said.contains("opencode.jsonc or ~/.config/opencode/opencode.json"),
        "{said}"
    );
}

#[test]
fn the_wrong_key_and_a_broken_file_are_named_and_others_are_read() {
    let home = Home::empty();
    home.put(
        ".config/Code/User/mcp.json",
        br#"{"mcpServers": {"a": {"command": "x"}}}"#,
    );
    home.put(".cursor/mcp.json", b"{\n  \"mcpServers\": {\n    \"geheim\" 5\n");
    home.put(
        ".kiro/settings/mcp.json",
        br#"{"mcpServers": {"b": {"command": "y"}}}"#,
    );
    let output = home.run(&["import"]);
    let notes = text(&output.stderr);
    assert!(
        notes.contains("has servers under `mcpServers`, but VS Code reads `servers`"),
        "{notes}"
    );
    assert!(
        notes.contains("~/.cursor/mcp.json: line 3: not valid JSON"),
        "{notes}"
    );
    assert!(!notes.contains("geheim"), "{notes}");
    assert!(text(&output.stdout).contains("  b:\n"));
}
