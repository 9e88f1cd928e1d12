//! Broken files of hosts, and copies that run.

use std::process::{Command, Stdio};

use testkit::processes::Process;

use crate::home::{Home, TOOL};

const FILES: &str = r#""files": {"command": "files-server"}"#;

fn home() -> Home {
    let home = Home::new();
    home.server("bin/files-server", TOOL);
    home
}

#[test]
fn wrong_key_in_vs_code_is_named_and_fixed() {
    let home = home();
    let file = ".config/Code/User/mcp.json";
    home.put(
        file,
        &format!("{{ // mine\n  \"mcpServers\": {{ {FILES} }}\n}}\n"),
    );
    home.doctor(&["vscode"])
        .assert_ids(&["wrong_key"])
        .assert_code(11)
        .assert_found(
            "wrong_key",
            "under `mcpServers` in ~/.config/Code/User/mcp.json, and reads `servers`",
            "rialto doctor vscode --fix",
        );
    let fixed = home.doctor(&["vscode", "--fix"]);
    fixed.assert_code(0);
    assert_eq!(fixed.findings()[0]["fix"], "done");
    assert_eq!(
        home.text(file),
        format!("{{ // mine\n  \"servers\": {{ {FILES} }}\n}}\n")
    );
    home.doctor(&["vscode"]).assert_ids(&[]).assert_code(0);
}

#[test]
fn file_that_another_one_shadows_is_named() {
    let home = home();
    let servers = r#"{"mcp": {"files": {"type": "local", "command": ["files-server"]}}}"#;
    home.put(".config/opencode/opencode.json", servers);
    home.put(".config/opencode/opencode.jsonc", "{}");
    home.doctor(&["opencode"])
        .assert_ids(&["file_shadowed"])
        .assert_code(11)
        .assert_found(
            "file_shadowed",
            "does not read ~/.config/opencode/opencode.json with 1 server",
            "move the servers to ~/.config/opencode/opencode.jsonc",
        );
}

#[test]
fn file_that_does_not_parse_is_named_with_its_line() {
    let home = home();
    home.put(".cursor/mcp.json", "{\n  \"mcpServers\": {\n");
    home.doctor(&["cursor"])
        .assert_ids(&["file_unreadable"])
        .assert_code(11)
        .assert_found(
            "file_unreadable",
            "~/.cursor/mcp.json: line 3",
            "correct ~/.cursor/mcp.json",
        );
}

#[test]
fn key_that_stands_twice_is_named_with_its_line() {
    let home = home();
    home.put(
        ".cursor/mcp.json",
        &format!("{{\"mcpServers\": {{ {FILES},\n {FILES} }}}}"),
    );
    let diagnosis = home.doctor(&["cursor", "--no-start"]);
    diagnosis.assert_code(11).assert_found(
        "key_twice",
        "`files` twice, the second time at ~/.cursor/mcp.json:2",
        "keep one",
    );
}

#[test]
fn secrets_that_other_users_can_read_are_named_and_closed() {
    let home = home();
    let file = ".cursor/mcp.json";
    let entry = r#"{"mcpServers": {"files": {"command": "files-server", "env": {"API_KEY": "geheim-9"}}}}"#;
    home.put(file, entry);
    home.doctor(&["cursor"]).assert_ids(&[]).assert_code(0);
    home.set_mode(file, 0o644);
    let found = home.doctor(&["cursor"]);
    found
        .assert_ids(&["secret_readable"])
        .assert_code(11)
        .assert_found(
            "secret_readable",
            "API_KEY of files",
            "chmod 600 ~/.cursor/mcp.json",
        );
    assert!(!found.json.to_string().contains("geheim-9"));
    home.doctor(&["cursor", "--fix"]).assert_code(0);
    assert_eq!(home.mode(file), 0o600);
    assert_eq!(home.text(file), entry);
}

#[test]
fn secrets_and_own_paths_in_the_file_of_a_project_are_named() {
    let home = home();
    let entry = r#"{"mcpServers": {"files": {"command": "files-server", "args": ["/home/me/notes"], "env": {"API_KEY": "geheim"}}}}"#;
    home.put("work/.mcp.json", entry);
    home.doctor(&["claude-code", "--no-start"])
        .assert_ids(&["path_in_shared_file", "secret_in_shared_file"])
        .assert_code(11)
        .assert_found("path_in_shared_file", "/home/me/notes", "${workspaceFolder}")
        .assert_found("secret_in_shared_file", "API_KEY of files", "${NAME}");
}

#[test]
fn server_of_several_hosts_is_a_note_with_the_way_to_share_it() {
    let home = home();
    let file = format!("{{\"mcpServers\": {{ {FILES} }}}}");
    home.put(".cursor/mcp.json", &file);
    home.put(".config/Claude/claude_desktop_config.json", &file);
    home.doctor(&[])
        .assert_ids(&["server_in_several_hosts"])
        .assert_code(0)
        .assert_found(
            "server_in_several_hosts",
            "files is started by each of Claude Desktop, Cursor",
            "rialto adopt",
        );
}

#[test]
fn entry_that_starts_a_rialto_that_is_gone_is_named() {
    let home = home();
    home.put(
        ".cursor/mcp.json",
        r#"{"mcpServers": {"files": {"command": "/no/such/rialto", "args": ["attach", "files"]}}}"#,
    );
    home.doctor(&["cursor"])
        .assert_ids(&["entry_unusable"])
        .assert_code(11)
        .assert_found(
            "entry_unusable",
            "starts Rialto at /no/such/rialto, where nothing is",
            "correct or remove",
        );
}

/// A process that ends with the test.
struct Ended(u32);

impl Drop for Ended {
    fn drop(&mut self) {
        testkit::processes::send_signal(self.0, rustix::process::Signal::KILL);
    }
}

#[test]
fn copies_whose_host_has_gone_are_named_with_the_line_that_ends_them() {
    let home = home();
    let stub = testkit::rialto::binary("testkit-server");
    let mark = home.path("journal");
    let (stub, mark) = (stub.to_str().unwrap(), mark.to_str().unwrap());
    home.put(
        ".cursor/mcp.json",
        &serde_json::json!({"mcpServers": {"files": {"command": stub, "args": ["--ignore-eof", "--journal", mark]}}}).to_string(),
    );
    // The shell that starts it ends at once, as a host that crashes.
    let script = format!("'{stub}' --ignore-eof --journal '{mark}' </dev/null >/dev/null 2>&1 & echo $!");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let pid: u32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let stale = Ended(pid);
    let mut held = Command::new(stub)
        .args(["--ignore-eof", "--journal", mark])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let diagnosis = home.doctor(&["--no-start"]);
    held.kill().unwrap();
    held.wait().unwrap();
    diagnosis
        .assert_ids(&["stale_copies"])
        .assert_code(11)
        .assert_found(
            "stale_copies",
            "files has 1 copy whose host has gone",
            &format!("kill {pid}"),
        )
        .assert_fact("files 1 copy runs now");
    assert!(Process::read(stale.0).is_some_and(|process| process.is_alive()));
}
