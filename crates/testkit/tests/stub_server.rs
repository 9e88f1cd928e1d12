//! The stub server over pipes: what the other tests rely on is itself tested.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::Journal;
use testkit::patience::look_until;
use testkit::processes::{Process, inheritable_files, send_signal};

struct Stub {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    dir: TempDir,
}

impl Stub {
    fn start(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut process = Command::new(env!("CARGO_BIN_EXE_testkit-server"))
            .arg("--journal")
            .arg(dir.path().join("journal"))
            .args(
                flags
                    .iter()
                    .map(|flag| flag.replace("{dir}", &dir.path().to_string_lossy())),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the stub starts");
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        Self {
            process,
            stdin,
            stdout,
            dir,
        }
    }

    fn started(flags: &[&str]) -> Self {
        let mut stub = Self::start(flags);
        let hello = stub.ask(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"roots":{}}}}"#);
        assert!(hello["result"]["serverInfo"].is_object(), "{hello}");
        stub.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        stub
    }

    fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin
            .write_all(format!("{line}\n").as_bytes())
            .expect("the stub reads");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("UTF-8");
        line.trim_end_matches('\n').to_owned()
    }

    fn receive(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn ask(&mut self, line: &str) -> Value {
        self.send(line);
        self.receive()
    }

    fn say_call(&mut self, id: u32, tool: &str, arguments: Value) {
        let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "tok"}});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        self.send(&call.to_string());
    }

    fn call(&mut self, tool: &str, arguments: Value) -> String {
        self.say_call(1, tool, arguments);
        text(&self.receive())
    }

    fn journal(&self) -> Journal {
        Journal::at(self.dir.path().join("journal"))
    }

    fn exit(&mut self) -> std::process::ExitStatus {
        self.process.wait().expect("the stub can be waited for")
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn text(answer: &Value) -> String {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text in {answer}"))
        .to_owned()
}

#[test]
fn a_strict_server_refuses_calls_before_the_handshake_and_answers_them_after() {
    let mut stub = Stub::start(&["--strict"]);
    let list = r#"{"jsonrpc":"2.0","id":"a","method":"tools/list"}"#;
    let refused = stub.ask(list);
    assert_eq!(
        refused["error"]["message"],
        "method 'tools/list' is invalid during session initialization"
    );
    assert_eq!(refused["id"], "a");
    assert!(stub.ask(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)["result"].is_object());
    let initialize =
        r#"{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}"#;
    assert_eq!(stub.ask(initialize)["result"]["protocolVersion"], "2025-03-26");
    assert!(
        stub.ask(list)["error"].is_object(),
        "initialized is still missing"
    );
    stub.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    assert!(stub.ask(list)["result"]["tools"].is_array());
    assert!(
        stub.ask(initialize)["error"].is_object(),
        "a second initialize is refused"
    );
}

#[test]
fn a_stateless_server_answers_everything_without_a_handshake() {
    let mut stub = Stub::start(&["--stateless"]);
    assert_eq!(stub.call("echo", json!({"marker": "m"})), "m");
    assert_eq!(stub.call("no such tool", json!({"marker": "m"})), "m");
    assert!(stub.ask(r#"{"jsonrpc":"2.0","id":1,"method":"no/such/method"}"#)["result"].is_object());
}

#[test]
fn ids_and_tokens_come_back_byte_for_byte() {
    let mut stub = Stub::start(&[]);
    stub.send(r#"{"jsonrpc":"2.0","id":1000000000000000000000000000001,"method":"ping"}"#);
    assert_eq!(
        stub.line(),
        r#"{"jsonrpc":"2.0","id":1000000000000000000000000000001,"result":{}}"#
    );
    stub.send(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"progress","arguments":{},"_meta":{"progressToken":1.50}}}"#);
    assert!(stub.line().contains(r#""progressToken":1.50"#));
    stub.line();
    stub.send(r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"mirror","arguments":{"b": 1.0,"a":"\u0041"}}}"#);
    assert!(
        stub.line()
            .contains(r#""structuredContent":{"b": 1.0,"a":"\u0041"}"#)
    );
}

#[test]
fn the_journal_shows_starts_messages_and_executions() {
    let mut stub = Stub::started(&[]);
    stub.call("echo", json!({"marker": "once"}));
    let journal = stub.journal();
    assert_eq!(journal.starts(), [stub.process.id()]);
    assert_eq!(journal.executions("once"), 1);
    assert_eq!(
        journal.received("notifications/initialized"),
        [r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#]
    );
}

#[test]
fn a_delayed_call_lets_others_pass_and_is_silent_after_its_cancel() {
    let mut stub = Stub::started(&[]);
    stub.say_call(1, "delay", json!({"ms": 600_000, "marker": "slow"}));
    stub.say_call(2, "never", json!({"marker": "lost"}));
    stub.say_call(3, "delay", json!({"ms": 1, "marker": "quick"}));
    assert_eq!(stub.receive()["id"], 3);
    for id in [1, 2, 3] {
        stub.send(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        ));
    }
    assert_eq!(stub.call("echo", json!({"marker": "after"})), "after");
    let journal = stub.journal();
    assert!(
        journal.was_cancelled("slow") && journal.was_cancelled("lost") && !journal.was_cancelled("quick")
    );
    assert_eq!(journal.events("cancelled").len(), 3);
}

#[test]
fn held_calls_are_answered_when_they_are_released() {
    let mut stub = Stub::started(&[]);
    stub.say_call(1, "wait_held", json!({"held": "first", "marker": "begun"}));
    for (id, marker) in [(2, "first"), (3, "second"), (4, "given up")] {
        stub.say_call(id, "hold", json!({"marker": marker}));
    }
    assert_eq!(stub.receive()["id"], 1, "the first call is held");
    stub.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}"#);
    stub.say_call(5, "release", json!({"marker": "done"}));
    for (id, marker) in [(2, "first"), (3, "second"), (5, "done")] {
        let answer = stub.receive();
        assert_eq!((&answer["id"], text(&answer)), (&json!(id), marker.to_owned()));
    }
    assert!(stub.journal().was_cancelled("given up"));
}

#[test]
fn a_held_call_reports_progress_until_it_is_released() {
    let mut stub = Stub::started(&[]);
    stub.send(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hold","arguments":{"every_ms":1},"_meta":{"progressToken":"t"}}}"#,
    );
    assert_eq!(stub.receive()["params"]["progressToken"], "t");
    stub.say_call(2, "release", json!({}));
    let answers = std::iter::repeat_with(|| stub.receive()).filter(|message| message["method"].is_null());
    let ids: Vec<Value> = answers.take(2).map(|answer| answer["id"].clone()).collect();
    assert_eq!(ids, [json!(1), json!(2)]);
}

#[test]
fn wrong_answers_come_before_the_right_one_or_after() {
    let mut stub = Stub::started(&[]);
    stub.say_call(1, "twice", json!({"marker": "m"}));
    assert_eq!(
        (text(&stub.receive()), text(&stub.receive())),
        ("m".to_owned(), "m again".to_owned())
    );
    stub.say_call(2, "unknown_id", json!({"marker": "m", "id": 77}));
    assert_eq!(
        (stub.receive()["id"].clone(), stub.receive()["id"].clone()),
        (json!(77), json!(2))
    );
    stub.say_call(3, "string_id", json!({"marker": "m"}));
    assert_eq!(
        (stub.receive()["id"].clone(), stub.receive()["id"].clone()),
        (json!("3"), json!(3))
    );
    stub.say_call(4, "fail", json!({"code": -32099, "message": "no"}));
    assert_eq!(stub.receive()["error"], json!({"code": -32099, "message": "no"}));
}

#[test]
fn garbage_of_every_kind_is_followed_by_the_real_answer() {
    let mut stub = Stub::started(&[]);
    for kind in [
        "text", "binary", "ansi", "array", "null", "empty", "crlf", "partial", "all",
    ] {
        stub.say_call(9, "garbage", json!({"kind": kind, "marker": "real"}));
        let answer = std::iter::from_fn(|| {
            let mut line = Vec::new();
            stub.stdout.read_until(b'\n', &mut line).expect("stdout is open");
            Some(line)
        })
        .take(20)
        .find_map(|line| {
            serde_json::from_slice::<Value>(&line)
                .ok()
                .filter(|answer| answer["id"] == 9)
        });
        assert_eq!(
            text(&answer.unwrap_or_else(|| panic!("no answer after {kind}"))),
            "real"
        );
    }
}

#[test]
fn big_results_have_the_size_asked_for_and_the_id_where_it_was_asked_for() {
    let mut stub = Stub::started(&[]);
    for (tool, id_first) in [("big", true), ("big_id_last", false)] {
        stub.say_call(5, tool, json!({"bytes": 200_000}));
        let line = stub.line();
        let id_at = line.find("\"id\":5").expect("an id");
        assert_eq!(id_at < 100, id_first);
        let answer: Value = serde_json::from_str(&line).expect("one JSON object");
        assert_eq!(text(&answer).len(), 200_000);
    }
    stub.say_call(6, "endless", json!({"megabytes": 1, "marker": "m"}));
    assert!(stub.line().len() > 1 << 20);
    assert_eq!(text(&stub.receive()), "m");
    stub.say_call(7, "deep", json!({"levels": 1000}));
    assert!(stub.line().contains(&"[".repeat(1000)));
}

#[test]
fn progress_and_notifications_come_in_order_before_the_answer() {
    let mut stub = Stub::started(&[]);
    for every_ms in [0, 1] {
        stub.say_call(
            1,
            "progress",
            json!({"n": 3, "marker": "m", "every_ms": every_ms}),
        );
        for step in 1..=3 {
            let message = stub.receive();
            assert_eq!(message["params"]["progress"], step);
            assert_eq!(message["params"]["progressToken"], "tok");
        }
        assert_eq!(text(&stub.receive()), "m");
    }
    stub.say_call(2, "notify", json!({"n": 2}));
    assert_eq!(stub.receive()["params"]["_meta"]["n"], 1);
    assert_eq!(stub.receive()["method"], "notifications/tools/list_changed");
    stub.receive();
    stub.say_call(3, "notify", json!({"after_ms": 1, "marker": "first"}));
    assert_eq!(text(&stub.receive()), "first");
    assert_eq!(stub.receive()["method"], "notifications/tools/list_changed");
    stub.say_call(4, "flood", json!({"n": 10, "bytes": 10}));
    assert!((0..10).all(|_| stub.receive()["method"] == "notifications/message"));
    stub.receive();
}

#[test]
fn the_clients_answer_to_a_question_is_in_the_result() {
    let mut stub = Stub::started(&[]);
    for (tool, method) in [
        ("ask_elicit", "elicitation/create"),
        ("ask_sample", "sampling/createMessage"),
        ("ask_roots", "roots/list"),
    ] {
        stub.say_call(1, tool, json!({"marker": "m"}));
        let question = stub.receive();
        assert_eq!(question["method"], method);
        let answer = stub.ask(&format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{{"x":1}}}}"#,
            question["id"]
        ));
        assert_eq!(text(&answer), r#"{"marker":"m","result":{"x":1}}"#);
    }
    stub.say_call(1, "ask_ping", json!({}));
    let question = stub.receive();
    let refusal = format!(
        r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":-1,"message":"no"}}}}"#,
        question["id"]
    );
    assert_eq!(
        text(&stub.ask(&refusal)),
        r#"{"marker":null,"error":{"code":-1,"message":"no"}}"#
    );
}

#[test]
fn a_polite_question_is_not_asked_of_a_client_that_cannot_answer() {
    let mut stub = Stub::started(&[]);
    assert_eq!(
        stub.call("ask_elicit", json!({"polite": true})),
        "the client cannot do that"
    );
    stub.say_call(2, "ask_roots", json!({"polite": true}));
    assert_eq!(stub.receive()["method"], "roots/list");
}

#[test]
fn a_question_outside_any_call_comes_after_the_answer_and_its_answer_is_journalled() {
    let mut stub = Stub::started(&[]);
    assert_eq!(stub.call("ask_after", json!({"ms": 1, "marker": "late"})), "late");
    let question = stub.receive();
    stub.send(&format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#,
        question["id"]
    ));
    stub.send(r#"{"jsonrpc":"2.0","id":4711,"result":{}}"#);
    stub.call("echo", json!({}));
    assert_eq!(stub.journal().events("answered")[0]["marker"], "late");
    assert_eq!(stub.journal().events("stray").len(), 1);
}

#[test]
fn lists_reads_levels_and_subscriptions_are_answered() {
    let mut stub = Stub::started(&[]);
    let mut ask = |method: &str, params: Value| {
        let answer =
            stub.ask(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string());
        assert!(answer["result"].is_object(), "{method}: {answer}");
        answer["result"].clone()
    };
    assert_eq!(
        ask("resources/list", json!({}))["resources"][1]["uri"],
        "testkit://two"
    );
    ask("resources/templates/list", json!({}));
    let read = ask("resources/read", json!({"uri": "testkit://one"}));
    assert_eq!(read["contents"][0]["text"], "the text of testkit://one");
    ask("resources/subscribe", json!({"uri": "testkit://one"}));
    ask("prompts/list", json!({}));
    ask(
        "prompts/get",
        json!({"name": "greet", "arguments": {"who": "Ada"}}),
    );
    ask(
        "completion/complete",
        json!({"argument": {"name": "who", "value": "A"}}),
    );
    ask("logging/setLevel", json!({"level": "error"}));
    assert_eq!(
        stub.call("log", json!({"level": "info", "text": "t"})),
        "below the level"
    );
    stub.say_call(2, "log", json!({"level": "error", "text": "t"}));
    assert_eq!(stub.receive()["params"]["data"], "t");
    stub.receive();
    stub.say_call(3, "update", json!({"uri": "testkit://one"}));
    assert_eq!(stub.receive()["method"], "notifications/resources/updated");
    assert_eq!(text(&stub.receive()), "subscribed");
    stub.say_call(4, "change_tools", json!({}));
    assert_eq!(stub.receive()["method"], "notifications/tools/list_changed");
    assert_eq!(text(&stub.receive()), "added");
    assert_eq!(stub.call("extra", json!({"marker": "x"})), "x");
}

#[test]
fn a_feature_that_was_taken_away_is_neither_offered_nor_served() {
    let mut stub = Stub::start(&["--no-logging", "--version", "2024-11-05"]);
    let hello = stub
        .ask(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#);
    assert_eq!(hello["result"]["protocolVersion"], "2024-11-05");
    assert!(hello["result"]["capabilities"].get("logging").is_none());
    let refused =
        stub.ask(r#"{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"info"}}"#);
    assert_eq!(refused["error"]["code"], -32601);
}

#[test]
fn the_process_tells_about_itself() {
    let mut stub = Stub::started(&[]);
    let pid = stub.process.id().to_string();
    assert_eq!(stub.call("pid", json!({})), pid);
    assert_eq!(stub.call("counter", json!({})), "1");
    assert_eq!(stub.call("counter", json!({})), "2");
    assert!(
        stub.call("whoami", json!({}))
            .contains(r#""protocolVersion":"2025-06-18""#)
    );
    assert_eq!(stub.call("env", json!({"name": "NO_SUCH_VARIABLE"})), "null");
    assert!(stub.call("env", json!({})).contains("PATH"));
    let files: Value = serde_json::from_str(&stub.call("fds", json!({}))).expect("JSON");
    let numbers: BTreeSet<u32> = files
        .as_object()
        .unwrap()
        .keys()
        .map(|number| number.parse().unwrap())
        .collect();
    assert_eq!(numbers, inheritable_files(std::process::id()));
}

#[test]
fn it_exits_crashes_and_dies_as_told() {
    let mut stub = Stub::started(&[]);
    stub.say_call(1, "exit", json!({"code": 7, "marker": "m"}));
    assert_eq!(stub.exit().code(), Some(7));
    assert_eq!(stub.journal().executions("m"), 1);

    let mut stub = Stub::started(&[]);
    stub.say_call(1, "exit_half", json!({"marker": "m"}));
    assert_eq!(stub.exit().code(), Some(0));
    let mut half = String::new();
    stub.stdout.read_to_string(&mut half).expect("UTF-8");
    assert!(half.starts_with('{') && !half.ends_with('\n'), "{half:?}");

    for (name, number) in [("KILL", 9), ("SEGV", 11), ("15", 15), ("ABRT", 6)] {
        let mut stub = Stub::started(&[]);
        stub.say_call(1, "signal_self", json!({"sig": name}));
        assert_eq!(stub.exit().signal(), Some(number), "{name}");
    }
    assert_eq!(Stub::start(&["--exit-at-once", "3"]).exit().code(), Some(3));
    assert_eq!(
        Stub::start(&["--crash-after-start", "1"]).exit().code(),
        Some(101)
    );
    assert_eq!(Stub::start(&["--nonsense"]).exit().code(), Some(2));
}

#[test]
fn a_fault_for_the_first_starts_only_heals() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("shared").to_string_lossy().into_owned();
    let flags = [
        "--journal",
        &journal,
        "--exit-at-once",
        "3",
        "--healthy-after",
        "2",
    ];
    assert_eq!(Stub::start(&flags).exit().code(), Some(3));
    assert_eq!(Stub::start(&flags).exit().code(), Some(3));
    let mut healthy = Stub::start(&flags);
    assert_eq!(healthy.call("echo", json!({"marker": "well"})), "well");
    assert_eq!(Journal::at(&journal).starts().len(), 3);
}

#[test]
fn a_slow_start_delays_the_first_answer() {
    let before = std::time::Instant::now();
    let mut stub = Stub::start(&["--slow-start", "30"]);
    assert_eq!(stub.call("echo", json!({"marker": "m"})), "m");
    assert!(before.elapsed() >= Duration::from_millis(30));
}

#[test]
fn the_end_of_stdin_ends_it_and_is_journalled() {
    let mut stub = Stub::started(&[]);
    stub.stdin = None;
    assert_eq!(stub.exit().code(), Some(0));
    assert_eq!(stub.journal().events("eof").len(), 1);
}

#[test]
fn a_stubborn_server_survives_the_end_of_stdin_and_sigterm() {
    let mut stub = Stub::started(&["--ignore-term"]);
    send_signal(stub.process.id(), rustix::process::Signal::TERM);
    let journal = stub.journal();
    let told = |event| look_until(Duration::from_secs(10), || journal.events(event).first().cloned());
    assert!(told("term").is_some());
    assert_eq!(stub.call("echo", json!({"marker": "still here"})), "still here");
    stub.stdin = None;
    assert!(told("eof").is_some());
    assert!(stub.process.try_wait().unwrap().is_none());
}

#[test]
fn a_server_that_only_ignores_the_end_of_stdin_ends_by_sigterm() {
    let mut stub = Stub::started(&["--ignore-eof"]);
    stub.stdin = None;
    let journal = stub.journal();
    look_until(Duration::from_secs(10), || journal.events("eof").first().cloned()).unwrap();
    assert!(stub.process.try_wait().unwrap().is_none());
    send_signal(stub.process.id(), rustix::process::Signal::TERM);
    assert_eq!(stub.exit().signal(), Some(15));
}

#[test]
fn a_stubborn_grandchild_stays_in_the_group_and_ignores_sigterm() {
    let stub = Stub::started(&["--grandchild", "{dir}/grandchild"]);
    let pid = std::fs::read_to_string(stub.dir.path().join("grandchild")).unwrap();
    let grandchild = Process::read(pid.parse().unwrap()).unwrap();
    let parent = Process::read(stub.process.id()).unwrap();
    assert_eq!(grandchild.group, parent.group);
    grandchild.signal(rustix::process::Signal::TERM);
    drop(stub);
    assert!(grandchild.is_alive());
    grandchild.signal(rustix::process::Signal::KILL);
    assert!(look_until(Duration::from_secs(10), || (!grandchild.is_alive()).then_some(())).is_some());
}

#[test]
fn a_server_that_closed_stdin_lives_on_and_its_writer_is_told() {
    let mut stub = Stub::started(&[]);
    assert_eq!(stub.call("close_stdin", json!({"marker": "closed"})), "closed");
    let written = stub.stdin.as_mut().unwrap().write_all(b"{}\n");
    assert_eq!(written.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    assert!(stub.process.try_wait().unwrap().is_none());
}

#[test]
fn a_server_that_stopped_reading_leaves_the_pipe_to_fill() {
    let mut stub = Stub::started(&[]);
    assert_eq!(stub.call("stop_reading", json!({"marker": "bye"})), "bye");
    // A pipe holds 64 KiB by default; what fits is never read and never journalled.
    stub.say_call(2, "echo", json!({"marker": "unread"}));
    assert_eq!(stub.journal().executions("unread"), 0);
}

#[test]
fn a_server_that_closed_stdout_goes_on_reading() {
    let mut stub = Stub::started(&[]);
    assert_eq!(stub.call("close_stdout", json!({"marker": "last"})), "last");
    assert_eq!(stub.line(), "");
    stub.say_call(2, "echo", json!({"marker": "mute"}));
    let journal = stub.journal();
    assert!(
        look_until(Duration::from_secs(10), || (journal.executions("mute") == 1)
            .then_some(()))
        .is_some()
    );
}

#[test]
fn stderr_is_flooded_with_and_without_newlines() {
    for newline in [true, false] {
        let mut stub = Stub::started(&[]);
        let mut stderr = stub.process.stderr.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            stderr.read_to_end(&mut all).map(|_| all)
        });
        assert_eq!(
            stub.call(
                "flood_stderr",
                json!({"bytes": 150_000, "newline": newline, "marker": "m"})
            ),
            "m"
        );
        drop(stub);
        let all = reader.join().unwrap().unwrap();
        assert_eq!(all.len(), 150_000);
        assert_eq!(all.contains(&b'\n'), newline);
    }
}
