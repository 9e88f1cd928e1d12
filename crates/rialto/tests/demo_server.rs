//! The real binary, over real pipes.
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A running demo server. Every wait here ends when the server speaks or exits, so nothing is
/// timed.
struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
}

impl Server {
    fn start(era: &str) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rialto"))
            .args(["demo-server", "--era", era])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let input = child.stdin.take();
        let output = child.stdout.take().map(BufReader::new);
        Server { child, input, output }
    }

    fn say(&mut self, message: &Value) {
        let input = self.input.as_mut().expect("stdin is open");
        writeln!(input, "{message}").expect("the server reads");
    }

    fn ask(&mut self, id: u64, method: &str, params: Value) {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output
            .as_mut()
            .expect("stdout is open")
            .read_line(&mut line)
            .expect("stdout can be read");
        line
    }

    fn hear(&mut self) -> Value {
        serde_json::from_str(&self.line()).expect("a line is a message")
    }

    fn answer(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.ask(id, method, params);
        let answer = self.hear();
        assert_eq!(answer["id"], id, "{answer}");
        answer["result"].clone()
    }

    /// Closes stdin and expects silence and a clean exit.
    fn end(mut self) {
        drop(self.input.take());
        assert_eq!(self.line(), "");
        assert!(self.child.wait().expect("the server exits").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After a failed assertion the child must not be left behind; after a clean end there is
        // nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn initialize() -> Value {
    json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": {"name": "test", "version": "1"}})
}

#[test]
fn a_legacy_client_lists_calls_watches_cancels_and_answers() {
    let mut server = Server::start("both");
    assert_eq!(
        server.answer(1, "initialize", initialize())["protocolVersion"],
        "2025-11-25"
    );
    server.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    assert!(server.answer(2, "tools/list", json!({}))["tools"].is_array());
    let echoed = server.answer(
        3,
        "tools/call",
        json!({"name": "echo", "arguments": {"text": "hi"}}),
    );
    assert_eq!(echoed["content"][0]["text"], "hi");

    let count =
        json!({"name": "count", "arguments": {"steps": 3, "delay_ms": 1}, "_meta": {"progressToken": "p"}});
    server.ask(4, "tools/call", count);
    for step in 1..=3 {
        let progress = server.hear();
        assert_eq!(
            (
                &progress["params"]["progressToken"],
                &progress["params"]["progress"]
            ),
            (&json!("p"), &json!(step))
        );
    }
    assert_eq!(server.hear()["id"], 4);

    server.ask(
        5,
        "tools/call",
        json!({"name": "sleep", "arguments": {"ms": 600_000}}),
    );
    server.say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}));
    let caller = server.answer(6, "tools/call", json!({"name": "whoami"}));
    assert_eq!(caller["structuredContent"]["cancelledCalls"], 1);
    assert_eq!(caller["structuredContent"]["pid"], server.child.id());

    server.ask(7, "tools/call", json!({"name": "ask"}));
    let question = server.hear();
    assert_eq!(question["method"], "elicitation/create");
    let answer = json!({"action": "accept", "content": {"answer": "Rialto"}});
    server.say(&json!({"jsonrpc": "2.0", "id": question["id"], "result": answer}));
    assert_eq!(
        server.hear()["result"]["content"][0]["text"],
        "The answer was: Rialto"
    );

    // A call in flight does not hold up the exit.
    server.ask(
        8,
        "tools/call",
        json!({"name": "sleep", "arguments": {"ms": 600_000}}),
    );
    server.end();
}

#[test]
fn a_modern_client_probes_and_answers_by_calling_again() {
    let mut server = Server::start("both");
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}});
    assert_eq!(
        server.answer(1, "server/discover", json!({"_meta": meta}))["resultType"],
        "complete"
    );
    let asked = server.answer(2, "tools/call", json!({"name": "ask", "_meta": meta}));
    assert_eq!(asked["resultType"], "input_required");
    let retry = json!({"name": "ask", "_meta": meta, "requestState": asked["requestState"],
        "inputResponses": {"answer": {"action": "decline"}}});
    assert_eq!(
        server.answer(3, "tools/call", retry)["content"][0]["text"],
        "The user declined to answer."
    );
    server.end();
}

#[test]
fn a_server_whose_client_is_gone_ends_by_itself() {
    let mut server = Server::start("legacy");
    server.answer(1, "initialize", initialize());
    // Only stdout breaks; stdin stays open, so it is the failed write that must end the server.
    drop(server.output.take());
    server.ask(2, "ping", json!({}));
    assert!(server.child.wait().expect("the server exits").success());
}
