//! `rialto adopt` in a home with every host, and back.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::home::{FILES, Home, text};

/// Reads a file without any code of Rialto: comments and trailing commas go by rules of text that
/// hold for the golden files.
fn independently(path: &str, bytes: &[u8]) -> Value {
    let text = text(bytes);
    if path.ends_with(".toml") {
        let script = "import json,sys,tomllib; print(json.dumps(tomllib.loads(sys.stdin.read())))";
        return by_python(script, &text);
    }
    let lines: Vec<&str> = text
        .trim_start_matches('\u{feff}')
        .lines()
        .map(|line| line.split(" // ").next().unwrap_or(line))
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    let mut plain = lines.join("\n");
    while let Some(at) = trailing_comma(&plain) {
        plain.remove(at);
    }
    serde_json::from_str(&plain).unwrap_or_else(|error| panic!("{path}: {error}\n{plain}"))
}

fn trailing_comma(text: &str) -> Option<usize> {
    text.match_indices(',')
        .map(|(at, _)| at)
        .find(|at| text[at + 1..].trim_start().starts_with(['}', ']']))
}

fn by_python(script: &str, text: &str) -> Value {
    use std::io::Write as _;
    let mut python = Command::new("python3")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The words that start each stdio server of a file, by name, wherever they stand.
fn commands(value: &Value) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    let mut open = vec![(String::new(), value)];
    while let Some((name, value)) = open.pop() {
        if let Some(words) = words(value) {
            let named = value.get("name").and_then(Value::as_str).unwrap_or(&name);
            found.insert(named.to_owned(), words);
            continue;
        }
        match value {
            Value::Object(entries) => open.extend(entries.iter().map(|(key, value)| (key.clone(), value))),
            Value::Array(items) => open.extend(items.iter().map(|value| (name.clone(), value))),
            _ => {}
        }
    }
    found
}

/// What starts a stdio server.
pub(crate) struct StdioEntry {
    pub(crate) words: Vec<String>,
    pub(crate) variables: Vec<(String, String)>,
}

/// Returns the stdio servers of a file.
pub(crate) fn entries(path: &str, bytes: &[u8]) -> Vec<StdioEntry> {
    let file = independently(path, bytes);
    let mut found = Vec::new();
    let mut open = vec![&file];
    while let Some(value) = open.pop() {
        if let Some(words) = words(value) {
            let variables = value.get("env").or_else(|| value.get("environment"));
            let variables = variables.and_then(Value::as_object).into_iter().flatten();
            let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
            found.push(StdioEntry {
                words,
                variables: variables.filter_map(text).collect(),
            });
            continue;
        }
        match value {
            Value::Object(members) => open.extend(members.values()),
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    found
}

fn words(entry: &Value) -> Option<Vec<String>> {
    let texts = |value: &Value| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    match entry.get("command")? {
        Value::String(program) => {
            let mut words = vec![program.clone()];
            words.extend(entry.get("args").map(texts).unwrap_or_default());
            Some(words)
        }
        Value::Object(inner) => {
            let mut words = vec![inner.get("path")?.as_str()?.to_owned()];
            words.extend(inner.get("args").map(texts).unwrap_or_default());
            Some(words)
        }
        list => Some(texts(list)),
    }
}

#[test]
fn every_stdio_entry_of_every_host_points_at_rialto_and_undo_restores_every_byte() {
    let home = Home::with_all_hosts();
    let before = home.all_files();
    let printed = home.done(&["adopt", "--yes"]);
    assert!(printed.contains("now start"), "{printed}");
    let mut entries = 0;
    for (path, bytes) in home.host_files() {
        if path.ends_with(".yaml") {
            continue;
        }
        for (name, words) in commands(&independently(&path, &bytes)) {
            // What is switched off stays, and so does what its host runs in a sandbox.
            let stays = [("off", "x"), ("boxed", "boxed-server")];
            if let Some((_, word)) = stays.iter().find(|(stays, _)| *stays == name) {
                assert_eq!(words, [*word]);
                continue;
            }
            let [program, verb, destination] = words.as_slice() else {
                panic!("{path}: {name} starts {words:?}");
            };
            assert!(
                program.ends_with("rialto") && verb == "attach",
                "{path}: {words:?}"
            );
            assert_eq!(*destination, name, "equal servers are one destination");
            entries += 1;
        }
    }
    assert!(entries >= 31, "{entries} entries");
    let destinations = home.text(".config/rialto/destinations.yml");
    assert_eq!(destinations.matches("command:").count(), 4, "{destinations}");
    assert_eq!(
        destinations.matches("start: \"lazy\"").count(),
        4,
        "{destinations}"
    );

    let again = home.done(&["adopt", "--yes"]);
    assert!(
        again.contains("servers start through Rialto already") || again.contains("by hand"),
        "{again}"
    );
    home.done(&["adopt", "--undo"]);
    assert_eq!(home.all_files(), before);
    assert!(home.done(&["adopt", "--undo"]).contains("nothing to undo"));
}

#[test]
fn the_destinations_of_an_adoption_can_be_served() {
    let home = Home::with_all_hosts();
    home.done(&["adopt", "--yes"]);
    let file = home.path(".config/rialto/destinations.yml");
    let file = file.to_str().unwrap();
    let said = home.refused(&["check", "--config", file, "--listen", "nowhere"]);
    assert!(said.contains("--listen") && !said.contains("problems"), "{said}");
}

#[test]
fn a_dry_run_shows_each_change_and_writes_nothing() {
    let home = Home::with_all_hosts();
    let before = home.all_files();
    let printed = home.done(&["adopt", "--dry-run"]);
    for part in [
        "~/.cursor/mcp.json  (Cursor: everything)",
        "- \t\t\t\"command\": \"npx\",",
        "~/.config/rialto/destinations.yml",
        "+   everything:",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert_eq!(home.all_files(), before);
    assert!(!home.path(".local/state/rialto").exists());
}

#[test]
fn without_a_terminal_and_without_yes_nothing_is_written() {
    let home = Home::with_all_hosts();
    let before = home.all_files();
    assert!(home.refused(&["adopt"]).contains("add --yes"));
    assert_eq!(home.all_files(), before);
}

#[test]
fn two_adoptions_one_after_the_other_are_taken_back_together() {
    let home = Home::with_all_hosts();
    let before = home.all_files();
    home.done(&["adopt", "cursor", "--yes"]);
    home.done(&["adopt", "claude-code", "codex", "--yes"]);
    let destinations = home.text(".config/rialto/destinations.yml");
    assert_eq!(destinations.matches("  everything:").count(), 1, "{destinations}");
    home.done(&["adopt", "--undo"]);
    assert_eq!(home.all_files(), before);
}

#[test]
fn what_the_user_edited_since_stays_and_the_servers_are_put_back() {
    let home = Home::with_all_hosts();
    let path = ".claude.json";
    let before = home.text(path);
    home.done(&["adopt", "claude-code", "cursor", "--yes"]);
    // Claude Code counts its starts in this file.
    let edited = home
        .text(path)
        .replace("\"numStartups\": 42", "\"numStartups\": 43");
    home.put(path, edited.as_bytes());
    let printed = home.done(&["adopt", "--undo"]);
    assert!(
        printed.contains("~/.claude.json: was edited since; its servers are put back"),
        "{printed}"
    );
    let now = home.text(path);
    let values = |text: &str| independently(path, text.as_bytes());
    assert_eq!(
        values(&now),
        values(&before.replace("\"numStartups\": 42", "\"numStartups\": 43"))
    );
    assert!(home.done(&["adopt", "--undo"]).contains("nothing to undo"));
}

#[test]
fn an_edit_in_the_entry_itself_is_left_alone_until_it_is_forced() {
    let home = Home::with_all_hosts();
    let before = home.all_files();
    home.done(&["adopt", "cursor", "--yes"]);
    let edited = home.text(".cursor/mcp.json").replace("attach", "my-own-edit");
    home.put(".cursor/mcp.json", edited.as_bytes());
    let said = home.refused(&["adopt", "--undo"]);
    assert!(
        said.contains("~/.cursor/mcp.json: was edited since, so it is left alone; --force"),
        "{said}"
    );
    assert_eq!(home.text(".cursor/mcp.json"), edited);
    let printed = home.done(&["adopt", "--undo", "--force"]);
    let kept = printed
        .split("kept in ")
        .nth(1)
        .and_then(|rest| rest.lines().next())
        .expect("a place");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), edited);
    assert_eq!(home.all_files(), before);
}

#[test]
fn an_entry_that_the_user_removed_or_edited_keeps_no_other_from_being_put_back() {
    let home = Home::empty();
    let path = ".cursor/mcp.json";
    let file = |entries: &str| format!("{{\n  // mine\n  \"mcpServers\": {{\n{entries}\n  }}\n}}\n");
    let entry = |name: &str, program: &str| format!("    \"{name}\": {{ \"command\": \"{program}\" }}");
    let entries = |c: &str| format!("{},\n{}", entry("b", "b-server"), entry("c", c));
    home.put(
        path,
        file(&format!("{},\n{}", entry("a", "a-server"), entries("c-server"))).as_bytes(),
    );
    home.done(&["adopt", "--yes"]);
    let value = |text: &str| independently(path, text.as_bytes());
    let mut adopted = value(&home.text(path));
    let servers = adopted["mcpServers"].as_object_mut().unwrap();
    servers.remove("a");
    servers["c"] = serde_json::json!({ "command": "mine" });
    home.put(path, adopted.to_string().as_bytes());
    let said = home.refused(&["adopt", "--undo"]);
    assert!(
        said.contains("its servers are put back, except mcpServers.c, which was edited itself; --force"),
        "{said}"
    );
    assert_eq!(value(&home.text(path)), value(&file(&entries("mine"))));
    let destinations = home.path(".config/rialto/destinations.yml");
    assert!(
        said.contains("destinations.yml: stays, since") && destinations.exists(),
        "{said}"
    );

    // Without the entry that was edited, nothing is left to take back.
    home.put(path, file(&entry("b", "b-server")).as_bytes());
    home.done(&["adopt", "--undo"]);
    assert_eq!(home.text(path), file(&entry("b", "b-server")));
    assert!(!destinations.exists());
    assert!(home.done(&["adopt", "--undo"]).contains("nothing to undo"));
}

#[test]
fn what_a_file_that_is_left_alone_needs_stays() {
    let home = Home::empty();
    let entry = br#"{"mcpServers": {"a": {"command": "x", "args": ["--api-key", "geheim1"]}}}"#;
    for path in [".cursor/mcp.json", ".kiro/settings/mcp.json"] {
        home.put(path, entry);
    }
    home.done(&["adopt", "cursor", "--yes"]);
    // The second adoption adds no destination: the server is the same.
    home.done(&["adopt", "kiro", "--yes"]);
    let edited = home
        .text(".kiro/settings/mcp.json")
        .replace("\"a\"]", "\"a\", \"--edited\"]");
    home.put(".kiro/settings/mcp.json", edited.as_bytes());
    let said = home.refused(&["adopt", "--undo"]);
    assert_eq!(home.text(".kiro/settings/mcp.json"), edited);
    assert_eq!(home.text(".cursor/mcp.json").as_bytes(), entry);
    for path in [".config/rialto/destinations.yml", ".config/rialto/secrets.yml"] {
        assert!(home.path(path).exists(), "{path}: {said}");
        assert!(
            said.contains(&format!(
                "~/{path}: stays, since a file that was left alone may need it"
            )),
            "{said}"
        );
    }
    home.done(&["adopt", "--undo", "--force"]);
    assert!(!home.path(".config/rialto/secrets.yml").exists());
}

#[test]
fn an_edited_file_of_destinations_stays_when_the_hosts_are_taken_back() {
    let home = Home::with_all_hosts();
    let before = home.host_files();
    home.done(&["adopt", "cursor", "--yes"]);
    let path = ".config/rialto/destinations.yml";
    let edited = home.text(path) + "  mine: { command: x }\n";
    home.put(path, edited.as_bytes());
    assert!(home.refused(&["adopt", "--undo"]).contains("left alone"));
    assert_eq!(home.host_files(), before, "the hosts are as they were");
    assert_eq!(home.text(path), edited);
}

#[test]
fn files_of_a_project_are_adopted_on_request_and_name_the_program_only() {
    let home = Home::empty();
    home.put(".mcp.json", br#"{"mcpServers": {"a": {"command": "x"}}}"#);
    assert!(
        home.done(&["adopt", "claude-code", "--yes"])
            .contains("nothing to adopt")
    );
    home.done(&["adopt", "claude-code", "--project", "--yes"]);
    assert_eq!(
        home.text(".mcp.json"),
        "{\"mcpServers\": {\"a\": {\n      \"command\": \"rialto\",\n      \"args\": [\"attach\", \"a\"]\n    }}}"
    );
    let destinations = home.text(".config/rialto/destinations.yml");
    assert!(destinations.contains(&format!(
        "cwd: \"{}\"",
        home.path("").display().to_string().trim_end_matches('/')
    )));
}

#[test]
fn the_golden_files_name_every_host_of_the_program() {
    let home = Home::empty();
    let said = home.refused(&["import", "no-such-host"]);
    let named = said
        .split("[possible values: ")
        .nth(1)
        .and_then(|rest| rest.split(']').next());
    let mut named: Vec<&str> = named.expect("the hosts are listed").split(", ").collect();
    let mut tested: Vec<&str> = FILES.iter().map(|(host, _)| *host).collect();
    named.sort_unstable();
    tested.sort_unstable();
    assert_eq!(tested, named);
}

#[test]
fn entries_name_the_file_of_destinations_where_a_host_does_not_pass_its_variables_on() {
    let home = Home::with_all_hosts();
    let named = home.path("settings/rialto/destinations.yml");
    let run = |args: &[&str]| {
        let output = home
            .command(args)
            .env("XDG_CONFIG_HOME", home.path("settings"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    // Codex hands a server `HOME`, `PATH` and four more variables.
    run(&["adopt", "codex", "--yes"]);
    let entry = |name: &str| {
        let file = independently(".codex/config.toml", home.text(".codex/config.toml").as_bytes());
        file["mcp_servers"][name]["args"].clone()
    };
    let expected = serde_json::json!(["attach", "everything", "--config", named.to_str().unwrap()]);
    assert_eq!(entry("everything"), expected);
    run(&["install", "codex", "everything", "--name", "again"]);
    assert_eq!(entry("again"), expected);
}

#[test]
fn one_adopted_entry_is_told_in_the_singular() {
    let home = Home::empty();
    home.put(".cursor/mcp.json", br#"{"mcpServers": {"a": {"command": "x"}}}"#);
    let said = home.done(&["adopt", "--yes"]);
    assert!(
        said.contains("1 entry of Cursor now starts through Rialto, which shares 1 server."),
        "{said}"
    );
}

#[test]
fn name_in_a_file_cannot_hide_what_is_shown() {
    let home = Home::empty();
    let text = "{\"mcpServers\": {\"a\\u001b[2Jb\": {\"command\": \"npx\", /* \u{1b}[2K\u{202e} */ \"args\": [\"x\"]}}}\n";
    home.put(".cursor/mcp.json", text.as_bytes());
    let shown = home.done(&["adopt", "--dry-run", "cursor"]);
    assert!(shown.contains("a\\u{1b}[2Jb"), "{shown:?}");
    assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown:?}");
}
