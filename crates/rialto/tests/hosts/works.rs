//! What `rialto adopt` writes, started as a host starts it: the server answers through the local
//! service.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::adopt::{StdioEntry, entries};
use crate::home::{FILES, Home, PROGRAM};

/// A host's child, in the middle of the protocol.
struct Started {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Started {
    /// Starts the words of an entry with its variables, as a host does.
    fn new(home: &Home, words: &[String], variables: &[(String, String)]) -> Self {
        let (program, args) = words.split_first().expect("a program");
        assert_eq!(program, PROGRAM);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut child = home
            .command(&args)
            .envs(variables.iter().cloned())
            .env("XDG_RUNTIME_DIR", home.path("run"))
            .env("RIALTO_IDLE_EXIT", "1s")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn ask(&mut self, id: u64, method: &str, params: &Value) -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(&request);
        loop {
            let line = self.lines.next().expect("an answer").unwrap();
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                return message;
            }
        }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    fn tools(&mut self) -> usize {
        let client = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "host", "version": "1" } });
        let answer = self.ask(1, "initialize", &client);
        assert!(answer["result"]["serverInfo"].is_object(), "{answer}");
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        let answer = self.ask(2, "tools/list", &json!({}));
        answer["result"]["tools"].as_array().map_or(0, Vec::len)
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

#[test]
fn an_adopted_entry_reaches_its_server_through_the_local_service() {
    let home = Home::empty();
    std::fs::create_dir_all(home.path("run")).unwrap();
    let entry = json!({ "mcpServers": { "demo": { "command": PROGRAM, "args": ["demo-server"] } } });
    for path in [".cursor/mcp.json", ".kiro/settings/mcp.json"] {
        home.put(path, entry.to_string().as_bytes());
    }
    home.done(&["adopt", "--yes"]);
    let file: Value = serde_json::from_str(&home.text(".cursor/mcp.json")).unwrap();
    let entry = &file["mcpServers"]["demo"];
    let mut words = vec![entry["command"].as_str().unwrap().to_owned()];
    words.extend(
        entry["args"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap().to_owned()),
    );
    let mut first = Started::new(&home, &words, &[]);
    assert!(first.tools() > 3);
    let mut second = Started::new(&home, &words, &[]);
    assert!(second.tools() > 3);
    first.end();
    second.end();
    service_ends(&home);
}

#[test]
fn programs_of_the_shell_are_found_where_a_host_with_a_short_path_starts_the_service() {
    let home = Home::empty();
    fs::create_dir_all(home.path("run")).unwrap();
    let script = format!("#!/bin/sh\nexec '{PROGRAM}' demo-server\n");
    let program = home.put("bin/server-of-the-shell", script.as_bytes());
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    let entry = json!({ "mcpServers": { "demo": { "command": "server-of-the-shell" } } });
    for path in [".cursor/mcp.json", ".kiro/settings/mcp.json"] {
        home.put(path, entry.to_string().as_bytes());
    }
    let short = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())];
    let words_of = |path: &str| entries(path, home.text(path).as_bytes()).remove(0).words;
    let tools = |path: &str| {
        let mut host = Started::new(&home, &words_of(path), &short);
        let tools = host.tools();
        host.end();
        service_ends(&home);
        tools
    };
    home.done(&["adopt", "cursor", "--yes"]);
    assert_eq!(tools(".cursor/mcp.json"), 15);
    fs::remove_file(home.path(".local/state/rialto/shell-path")).unwrap();
    home.done(&["uninstall", "kiro", "demo"]);
    home.done(&["install", "kiro", "demo"]);
    assert_eq!(tools(".kiro/settings/mcp.json"), 15);
}

/// Waits for the end of the service: no host is connected any more. It removes its socket.
fn service_ends(home: &Home) {
    let sockets = || {
        let found = std::fs::read_dir(home.path("run/rialto"))
            .into_iter()
            .flatten()
            .flatten();
        let is_socket = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_socket());
        found.filter(is_socket).count()
    };
    let gone = testkit::patience::look_until(testkit::PATIENCE, || (sockets() == 0).then_some(()));
    assert!(gone.is_some(), "the service goes on");
}

/// Returns the words that start each server of the lines to paste into files of YAML.
fn pasted(printed: &str) -> Vec<Vec<String>> {
    let value = |line: &str, key: &str| -> Option<Value> {
        let value = line.trim_start_matches([' ', '-']).strip_prefix(key)?;
        Some(serde_json::from_str(value).unwrap())
    };
    let mut found: Vec<Vec<String>> = Vec::new();
    for line in printed.lines() {
        if let Some(program) = value(line, "cmd: ").or_else(|| value(line, "command: ")) {
            found.push(vec![program.as_str().unwrap().to_owned()]);
        }
        if let Some(args) = value(line, "args: ") {
            let args = args.as_array().unwrap().iter();
            found
                .last_mut()
                .unwrap()
                .extend(args.map(|word| word.as_str().unwrap().to_owned()));
        }
    }
    found
}

#[test]
fn every_adopted_entry_of_every_host_starts_and_lists_the_tools_of_its_server() {
    let home = Home::with_all_hosts();
    for folder in ["run", "project"] {
        fs::create_dir_all(home.path(folder)).unwrap();
    }
    // What the golden files start is the demo server here, and their project is a folder.
    for program in ["npx", "uvx", "search-server", "older-server"] {
        let script = format!("#!/bin/sh\nexec '{PROGRAM}' demo-server\n");
        let path = home.put(&format!("bin/{program}"), script.as_bytes());
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let project = home.path("project").display().to_string();
    for (_, path) in FILES {
        home.put(path, home.text(path).replace("/code/app", &project).as_bytes());
    }
    let printed = home.done(&["adopt", "--yes"]);
    let mut hosts_of_yaml = pasted(&printed).into_iter();
    let mut started = 0;
    for (host, path) in FILES {
        let found = match path.ends_with(".yaml") {
            true => vec![StdioEntry {
                words: hosts_of_yaml.next().expect("lines to paste"),
                variables: Vec::new(),
            }],
            false => entries(path, home.text(path).as_bytes()),
        };
        let is_adopted = |words: &[String]| words.get(1).is_some_and(|verb| verb == "attach");
        let adopted: Vec<_> = found.iter().filter(|entry| is_adopted(&entry.words)).collect();
        assert!(!adopted.is_empty(), "{host}: {printed}");
        for entry in adopted {
            let mut server = Started::new(&home, &entry.words, &entry.variables);
            assert_eq!(server.tools(), 15, "{host}: {:?}", entry.words);
            server.end();
            started += 1;
        }
    }
    assert!(started > FILES.len(), "{started}");
    service_ends(&home);
}
