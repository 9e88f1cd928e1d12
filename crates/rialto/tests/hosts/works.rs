//! What `rialto adopt` writes, started as a host starts it: the server answers through the local
//! service.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::home::{Home, PROGRAM};

/// A host's child, in the middle of the protocol.
struct Started {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Started {
    /// Starts the words of an entry with its variables, as a host does.
    fn new(home: &Home, words: &[String]) -> Self {
        let (program, args) = words.split_first().expect("a program");
        assert_eq!(program, PROGRAM);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut child = home
            .command(&args)
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
    let mut first = Started::new(&home, &words);
    assert!(first.tools() > 3);
    let mut second = Started::new(&home, &words);
    assert!(second.tools() > 3);
    first.end();
    second.end();
    // The service ends when no host is connected any more, and removes its socket.
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
