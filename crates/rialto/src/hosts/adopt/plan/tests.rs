//! Plans for texts.

use super::*;
use crate::config::Environment;
use crate::hosts::location::System;
use crate::hosts::table::{self, Host};
use crate::hosts::{document, servers};

fn file(host: &str, path: &str, text: &str) -> HostFile {
    let host: &'static Host = table::named(host).expect(host);
    let document = document::read(text, host.format).expect(text);
    HostFile {
        host,
        path: path.into(),
        project: None,
        servers: servers::all(host, &document, None),
        text: text.to_owned(),
        document,
    }
}

fn own(destinations: Option<&str>, secrets: Option<&str>) -> OwnFiles {
    OwnFiles {
        destinations: "/home/me/.config/rialto/destinations.yml".into(),
        destinations_text: destinations.map(str::to_owned),
        secrets: "/home/me/.config/rialto/secrets.yml".into(),
        secrets_text: secrets.map(str::to_owned),
        secrets_key: Some("secrets.yml".to_owned()),
        config: None,
    }
}

fn planned(files: &[HostFile], own: &OwnFiles) -> Result<Plan, String> {
    let environment = Environment::from_iter([("HOME", "/home/me"), ("PATH", "")]);
    let surroundings = Surroundings {
        system: System::Linux,
        environment: &environment,
    };
    plan(
        files,
        own,
        &Program::at(Some("/usr/bin/rialto".into()), false),
        &surroundings,
    )
}

const CURSOR: &str = r#"{
  "mcpServers": {
    "files": { "command": "npx", "args": ["-y", "files"], "env": { "API_KEY": "geheim" } },
    "linear": { "url": "https://mcp.linear.app/mcp" },
    "off": { "command": "x", "disabled": true }
  }
}
"#;

#[test]
fn the_same_server_of_two_hosts_is_one_destination() {
    let codex = "[mcp_servers.filesystem]\ncommand = \"npx\"\nargs = [\"-y\", \"files\"]\nenv = { API_KEY = \"other\" }\n";
    let files = [
        file("cursor", "/home/me/.cursor/mcp.json", CURSOR),
        file("codex", "/home/me/.codex/config.toml", codex),
    ];
    let plan = planned(&files, &own(None, None)).expect("a plan");
    let paths: Vec<String> = plan
        .files
        .iter()
        .map(|file| file.path.display().to_string())
        .collect();
    assert_eq!(
        paths,
        [
            "/home/me/.config/rialto/destinations.yml",
            "/home/me/.cursor/mcp.json",
            "/home/me/.codex/config.toml"
        ]
    );
    let destinations = &plan.files[0].after;
    assert!(destinations.contains("API_KEY: \"${API_KEY:-}\"") && !destinations.contains("geheim"));
    assert_eq!(destinations.matches("command:").count(), 1, "{destinations}");
    let codex = &plan.files[2].after;
    assert!(codex.contains("args = [\"attach\", \"files\"]"), "{codex}");
    assert!(
        codex.contains("env = { API_KEY = \"other\" }"),
        "the entry keeps its variables: {codex}"
    );
    assert!(plan.notes[0].contains("`off` stays as it is"), "{:?}", plan.notes);
}

#[test]
fn an_adopted_file_is_not_adopted_again() {
    let files = [file("cursor", "/home/me/.cursor/mcp.json", CURSOR)];
    let first = planned(&files, &own(None, None)).expect("a plan");
    let again = [file("cursor", "/home/me/.cursor/mcp.json", &first.files[1].after)];
    let second = planned(&again, &own(Some(&first.files[0].after), None)).expect("a plan");
    assert!(second.files.is_empty());
    assert_eq!(second.adopted_before, 1);
}

#[test]
fn destinations_of_the_user_stay_and_are_used_again() {
    let mine = "# mine\ndestinations:\n  files:\n    command: [npx, -y, files]\n    env: { API_KEY: \"${API_KEY:-}\" }\n  other: { command: x }\n";
    let files = [file("cursor", "/home/me/.cursor/mcp.json", CURSOR)];
    let plan = planned(&files, &own(Some(mine), None)).expect("a plan");
    assert_eq!(plan.files.len(), 1, "only the host's file changes");
    assert!(plan.files[0].after.contains("[\"attach\", \"files\"]"));
}

#[test]
fn secrets_of_arguments_go_to_the_secrets_file_first_and_are_hidden() {
    let text = r#"{"mcpServers": {"a": {"command": "x", "args": ["--api-key", "geheim"]}}}"#;
    let files = [file("cursor", "/home/me/.cursor/mcp.json", text)];
    let plan = planned(&files, &own(None, None)).expect("a plan");
    assert!(matches!(plan.files[0].kind, Kind::Secrets { count: 1 }));
    assert!(plan.files[0].after.contains("a.API_KEY: \"geheim\""));
    let destinations = &plan.files[1].after;
    assert!(
        destinations.contains("secrets_file: \"secrets.yml\""),
        "{destinations}"
    );
    assert!(destinations.contains("${secret:a.API_KEY}") && !destinations.contains("geheim"));
    assert!(plan.hidden.contains(&"geheim".to_owned()));
}

#[test]
fn a_file_with_equal_keys_is_left_alone_and_others_are_planned() {
    let doubled = r#"{"mcpServers": {"a": {"command": "x", "command": "y"}}}"#;
    let files = [
        file("windsurf", "/home/me/w.json", doubled),
        file("cursor", "/home/me/.cursor/mcp.json", CURSOR),
    ];
    let plan = planned(&files, &own(None, None)).expect("a plan");
    assert!(
        plan.problems[0].contains("~/w.json: line 1: the key `command` stands twice"),
        "{:?}",
        plan.problems
    );
    assert_eq!(plan.files.len(), 2);
    assert!(!plan.files[0].after.contains("w.json"));
}

#[test]
fn a_file_of_destinations_that_no_line_can_be_added_to_is_named_with_the_lines() {
    let files = [file("cursor", "/home/me/.cursor/mcp.json", CURSOR)];
    let error = planned(&files, &own(Some("destinations: { a: { command: x } }\n"), None)).expect_err("flow");
    assert!(error.contains("Add these lines by hand"), "{error}");
    assert!(
        error.contains("  files:\n    command: [\"npx\", \"-y\", \"files\"]"),
        "{error}"
    );
    let error = planned(&files, &own(Some("destinations: [\n"), None)).expect_err("broken");
    assert!(error.contains("nothing was changed"), "{error}");
}

#[test]
fn files_of_yaml_are_not_written_but_their_lines_are_shown() {
    let text = "extensions:\n  files:\n    type: stdio\n    cmd: npx\n    args: [files]\n";
    let files = [file("goose", "/home/me/.config/goose/config.yaml", text)];
    let plan = planned(&files, &own(None, None)).expect("a plan");
    assert_eq!(plan.files.len(), 1, "only the destinations");
    assert!(
        plan.pastes[0].text.contains("args: [\"attach\", \"files\"]"),
        "{}",
        plan.pastes[0].text
    );
}

#[test]
fn projects_of_claude_code_have_their_own_destinations() {
    let text = r#"{"projects": {
        "/code/one": {"mcpServers": {"git": {"command": "uvx", "args": ["mcp-git"]}}},
        "/code/two": {"mcpServers": {"git": {"command": "uvx", "args": ["mcp-git"]}}}}}"#;
    let files = [file("claude-code", "/home/me/.claude.json", text)];
    let plan = planned(&files, &own(None, None)).expect("a plan");
    let destinations = &plan.files[0].after;
    for part in [
        "  git:\n",
        "cwd: \"/code/one\"",
        "  git-two:\n",
        "cwd: \"/code/two\"",
    ] {
        assert!(destinations.contains(part), "{part}: {destinations}");
    }
}
