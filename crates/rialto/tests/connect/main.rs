//! `rialto connect` as its hosts use it: the real binary on pipes, clients of both eras in front,
//! servers of both behind.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod stage;

use serde_json::{Value, json};
use stage::{Behind, Era, Stage, able, call};
use testkit::{Host, PATIENCE, text_of};

/// Each scenario with a test for every place and era of the server.
macro_rules! scenarios {
    ($($scenario:ident),* $(,)?) => {$(
        mod $scenario {
            use super::*;

            #[tokio::test]
            async fn legacy_program() {
                super::plays::$scenario(Stage::set(Behind::Program, Era::Legacy).await.unwrap()).await;
            }

            #[tokio::test]
            async fn modern_program() {
                super::plays::$scenario(Stage::set(Behind::Program, Era::Modern).await.unwrap()).await;
            }

            #[tokio::test]
            async fn legacy_remote() {
                super::plays::$scenario(Stage::set(Behind::Remote, Era::Legacy).await.unwrap()).await;
            }

            #[tokio::test]
            async fn modern_remote() {
                super::plays::$scenario(Stage::set(Behind::Remote, Era::Modern).await.unwrap()).await;
            }
        }
    )*};
}

scenarios! {
    legacy_client_lists_and_calls,
    modern_client_discovers_lists_and_calls,
    legacy_client_is_asked,
    modern_client_is_asked,
    legacy_client_hears_progress,
    modern_client_hears_progress,
    legacy_cancellation_overtakes_the_call,
    modern_cancellation_overtakes_the_call,
    legacy_client_is_notified,
    modern_client_is_notified,
    five_megabytes_go_both_ways,
    fifty_calls_with_one_id_are_all_answered,
    after_modern_requests_initialize_is_refused,
}

/// In the frontend of the client, and in the instance that its calls go to.
#[tokio::test]
async fn f05_a_panic_costs_a_client_on_lines_that_call_only() {
    let rialto = testkit::rialto::binary("rialto");
    let rialto = rialto.to_str().unwrap();
    let host = Host::start(
        &["connect", "--", rialto, "demo-server", "--era", "legacy"],
        &[("TEST_PANICS", "1")],
    )
    .unwrap();
    host.shake_hands(json!({})).await.unwrap();
    for (id, words) in [(1, "panic in the frontend"), (3, "panic in the instance")] {
        host.ask(id, "tools/call", call("echo", json!({"text": words})))
            .unwrap();
        assert_eq!(host.answer(id).await["error"]["code"], -32603, "{words}");
        host.ask(id + 1, "tools/call", call("echo", json!({"text": "goes on"})))
            .unwrap();
        assert_eq!(text_of(&host.answer(id + 1).await), "goes on", "{words}");
    }
    let answers = host.lines();
    assert_eq!(
        answers.iter().filter(|line| line["id"] == 3).count(),
        1,
        "{answers:?}"
    );
}

mod plays {
    use super::*;

    pub(super) async fn legacy_client_lists_and_calls(stage: Stage) {
        let host = &stage.host;
        let welcome = host.shake_hands(json!({})).await.unwrap();
        assert_eq!(welcome["protocolVersion"], "2025-11-25");
        host.ask(1, "tools/list", json!({})).unwrap();
        assert!(
            host.answer(1).await["result"]["tools"]
                .as_array()
                .is_some_and(|tools| tools.len() > 10)
        );
        host.ask("two", "tools/call", call("add", json!({"a": 2, "b": 40})))
            .unwrap();
        assert_eq!(host.answer("two").await["result"]["structuredContent"]["sum"], 42);
        host.ask(3, "ping", json!({})).unwrap();
        assert_eq!(host.answer(3).await["result"], json!({}));
        host.ask(4, "no/such", json!({})).unwrap();
        assert_eq!(host.answer(4).await["error"]["code"], -32601);
    }

    pub(super) async fn modern_client_discovers_lists_and_calls(stage: Stage) {
        let host = &stage.host;
        host.ask_modern("d", "server/discover", json!({}), &json!({}))
            .unwrap();
        let discovered = host.answer("d").await;
        assert_eq!(
            discovered["result"]["supportedVersions"][0], "2026-07-28",
            "{discovered}"
        );
        host.ask_modern(1, "tools/list", json!({}), &json!({})).unwrap();
        assert!(host.answer(1).await["result"]["tools"].is_array());
        host.ask_modern(
            2,
            "tools/call",
            call("echo", json!({"text": "hallo"})),
            &json!({}),
        )
        .unwrap();
        let answer = host.answer(2).await;
        assert_eq!(
            (text_of(&answer), &answer["result"]["resultType"]),
            ("hallo", &"complete".into())
        );
    }

    /// The tool, its question, the answer, and its result.
    fn questions() -> [(&'static str, Value, &'static str, Value, &'static str); 3] {
        let answer = json!({"action": "accept", "content": {"answer": "Rialto"}});
        let sample =
            json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "Rialto"}});
        let roots = json!({"roots": [{"uri": "file:///Rialto"}]});
        [
            ("ask", json!({}), "elicitation/create", answer, "Rialto"),
            (
                "sample",
                json!({"prompt": "p"}),
                "sampling/createMessage",
                sample,
                "Rialto",
            ),
            ("roots", json!({}), "roots/list", roots, "Rialto"),
        ]
    }

    pub(super) async fn legacy_client_is_asked(stage: Stage) {
        let host = &stage.host;
        host.shake_hands(able()).await.unwrap();
        for (tool, arguments, method, answer, says) in questions() {
            host.ask(tool, "tools/call", call(tool, arguments)).unwrap();
            let question = host.receive_method(method).await;
            host.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": answer}))
                .unwrap();
            let answer = host.answer(tool).await;
            assert!(text_of(&answer).contains(says), "{answer}");
        }
    }

    pub(super) async fn modern_client_is_asked(stage: Stage) {
        let host = &stage.host;
        for (tool, arguments, method, answer, says) in questions() {
            host.ask_modern(tool, "tools/call", call(tool, arguments.clone()), &able())
                .unwrap();
            let asked = host.answer(tool).await;
            assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
            let requests = asked["result"]["inputRequests"].as_object().unwrap();
            let (key, request) = requests.iter().next().unwrap();
            assert_eq!(request["method"], method);
            let mut again = call(tool, arguments);
            again["requestState"] = asked["result"]["requestState"].clone();
            again["inputResponses"] = json!({ key: answer });
            host.ask_modern("again", "tools/call", again, &able()).unwrap();
            let answer = host.answer("again").await;
            assert!(text_of(&answer).contains(says), "{answer}");
        }
        let requests = host
            .lines()
            .into_iter()
            .filter(|line| line.get("id").is_some() && line.get("method").is_some());
        assert_eq!(requests.count(), 0, "a modern client is sent no requests");
    }

    /// Progress comes in order and before the answer.
    fn assert_progress(host: &Host, id: &Value) {
        let lines = host.lines();
        let at = |wanted: &dyn Fn(&Value) -> bool| lines.iter().position(wanted).unwrap();
        let steps: Vec<usize> = (1..=3)
            .map(|step| {
                at(&|line| line["params"]["progress"] == step && line["params"]["progressToken"] == "p")
            })
            .collect();
        assert!(steps.is_sorted(), "{steps:?}");
        assert!(steps[2] < at(&|line| line["id"] == *id), "{lines:?}");
    }

    pub(super) async fn legacy_client_hears_progress(stage: Stage) {
        let host = &stage.host;
        host.shake_hands(json!({})).await.unwrap();
        let mut counting = call("count", json!({"steps": 3, "delay_ms": 5}));
        counting["_meta"] = json!({"progressToken": "p"});
        host.ask(1, "tools/call", counting).unwrap();
        assert_eq!(text_of(&host.answer(1).await), "Counted to 3.");
        assert_progress(host, &json!(1));
    }

    pub(super) async fn modern_client_hears_progress(stage: Stage) {
        let host = &stage.host;
        let mut counting = call("count", json!({"steps": 3, "delay_ms": 5}));
        counting["_meta"] = json!({"progressToken": "p"});
        host.ask_modern(1, "tools/call", counting, &json!({})).unwrap();
        assert_eq!(text_of(&host.answer(1).await), "Counted to 3.");
        assert_progress(host, &json!(1));
    }

    fn cancellation(id: &str) -> Value {
        json!({"requestId": id, "reason": "changed my mind"})
    }

    /// The call is under way as soon as its first progress arrives.
    fn long_call() -> Value {
        let mut counting = call("count", json!({"steps": 1000, "delay_ms": 60}));
        counting["_meta"] = json!({"progressToken": "p"});
        counting
    }

    pub(super) async fn legacy_cancellation_overtakes_the_call(stage: Stage) {
        let host = &stage.host;
        host.shake_hands(json!({})).await.unwrap();
        host.ask("long", "tools/call", long_call()).unwrap();
        host.receive_method("notifications/progress").await;
        host.notify("notifications/cancelled", cancellation("long"))
            .unwrap();
        let cancelled = |host: &Host, turn: u32| {
            host.ask(turn, "tools/call", call("whoami", json!({}))).unwrap();
        };
        assert_cancelled(host, cancelled).await;
    }

    pub(super) async fn modern_cancellation_overtakes_the_call(stage: Stage) {
        let host = &stage.host;
        host.ask_modern("long", "tools/call", long_call(), &json!({}))
            .unwrap();
        host.receive_method("notifications/progress").await;
        host.notify("notifications/cancelled", cancellation("long"))
            .unwrap();
        let cancelled = |host: &Host, turn: u32| {
            host.ask_modern(turn, "tools/call", call("whoami", json!({})), &json!({}))
                .unwrap();
        };
        assert_cancelled(host, cancelled).await;
    }

    /// The server stops, other calls go on, and the cancelled one is never answered.
    async fn assert_cancelled(host: &Host, ask: impl Fn(&Host, u32)) {
        for turn in 1.. {
            ask(host, turn);
            let answer = host.answer(turn).await;
            if answer["result"]["structuredContent"]["cancelledCalls"] == 1 {
                break;
            }
            assert!(turn < 1000, "the server was never told");
        }
        assert!(host.lines().iter().all(|line| line["id"] != "long"));
    }

    pub(super) async fn legacy_client_is_notified(stage: Stage) {
        let host = &stage.host;
        host.shake_hands(json!({})).await.unwrap();
        host.ask(1, "tools/call", call("toggle_tool", json!({}))).unwrap();
        host.answer(1).await;
        host.receive_method("notifications/tools/list_changed").await;
        host.ask(2, "resources/subscribe", json!({"uri": "demo://counter"}))
            .unwrap();
        assert_eq!(host.answer(2).await["result"], json!({}));
        host.ask(3, "tools/call", call("touch", json!({}))).unwrap();
        host.answer(3).await;
        assert_eq!(
            host.receive_method("notifications/resources/updated").await["params"]["uri"],
            "demo://counter"
        );
    }

    pub(super) async fn modern_client_is_notified(stage: Stage) {
        let host = &stage.host;
        let wanted =
            json!({"notifications": {"toolsListChanged": true, "resourceSubscriptions": ["demo://counter"]}});
        host.ask_modern("ear", "subscriptions/listen", wanted, &json!({}))
            .unwrap();
        let acknowledged = host
            .receive_method("notifications/subscriptions/acknowledged")
            .await;
        let ear = "io.modelcontextprotocol/subscriptionId";
        assert_eq!(acknowledged["params"]["_meta"][ear], "ear");
        for (tool, method) in [
            ("toggle_tool", "notifications/tools/list_changed"),
            ("touch", "notifications/resources/updated"),
        ] {
            host.ask_modern(tool, "tools/call", call(tool, json!({})), &json!({}))
                .unwrap();
            host.answer(tool).await;
            assert_eq!(host.receive_method(method).await["params"]["_meta"][ear], "ear");
        }
        host.notify("notifications/cancelled", json!({"requestId": "ear"}))
            .unwrap();
        host.ask_modern(
            9,
            "tools/call",
            call("echo", json!({"text": "still here"})),
            &json!({}),
        )
        .unwrap();
        assert_eq!(text_of(&host.answer(9).await), "still here");
        assert!(
            host.lines().iter().all(|line| line["id"] != "ear"),
            "a listen that its client ends is not answered"
        );
    }

    pub(super) async fn five_megabytes_go_both_ways(stage: Stage) {
        let host = &stage.host;
        host.shake_hands(json!({})).await.unwrap();
        let large = "x".repeat(5 << 20);
        host.ask(1, "tools/call", call("echo", json!({"text": large})))
            .unwrap();
        let answer = host.answer(1).await;
        assert_eq!(text_of(&answer).len(), large.len());
    }

    pub(super) async fn fifty_calls_with_one_id_are_all_answered(stage: Stage) {
        let host = &stage.host;
        host.shake_hands(json!({})).await.unwrap();
        for number in 0..50 {
            host.ask(1, "tools/call", call("echo", json!({"text": number.to_string()})))
                .unwrap();
        }
        let mut heard = Vec::new();
        for _ in 0..50 {
            heard.push(text_of(&host.answer(1).await).parse::<u32>().unwrap());
        }
        heard.sort_unstable();
        assert_eq!(heard, Vec::from_iter(0..50));
    }

    pub(super) async fn after_modern_requests_initialize_is_refused(stage: Stage) {
        let host = &stage.host;
        host.ask_modern(1, "tools/list", json!({}), &json!({})).unwrap();
        host.answer(1).await;
        host.ask(
            2,
            "initialize",
            json!({"protocolVersion": "2025-11-25", "capabilities": {}}),
        )
        .unwrap();
        let error = &host.answer(2).await["error"];
        assert_eq!(
            (&error["code"], &error["data"]["supported"]),
            (&(-32022).into(), &json!(["2026-07-28"]))
        );
    }
}

/// Life and death of the program itself.
mod life {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustix::process::Signal;
    use testkit::rialto::binary;
    use testkit::{Rialto, wait_until};

    use super::*;

    /// An address without a listener at the moment.
    fn vacant() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    }

    async fn demo_at(address: &str) -> Rialto {
        Rialto::launcher()
            .verb(&["serve", "--listen", address, "--log-format", "json", "--demo"])
            .start()
            .await
            .unwrap()
    }

    async fn remote() -> Stage {
        Stage::set(Behind::Remote, Era::Legacy).await.unwrap()
    }

    #[tokio::test]
    async fn end_of_stdin_with_a_call_pending_ends_the_program_and_the_remote_session() {
        let stage = remote().await;
        let host = &stage.host;
        host.shake_hands(json!({})).await.unwrap();
        host.ask("long", "tools/call", call("sleep", json!({"ms": 600_000})))
            .unwrap();
        host.ask("echo", "tools/call", call("echo", json!({"text": "hallo"})))
            .unwrap();
        host.answer("echo").await;
        host.close_stdin();
        assert_eq!(host.wait(PATIENCE).await.code(), Some(0));
        let client = stage.remote.as_ref().unwrap();
        wait_until("the remote session is gone", PATIENCE, || {
            let ready = sessions(client)?;
            (ready == 0).then_some(())
        })
        .await;
    }

    /// How many sessions the remote Rialto has.
    fn sessions(remote: &Rialto) -> Option<u64> {
        use std::io::Read as _;
        let mut stream = std::net::TcpStream::connect(remote.address()).ok()?;
        let request = format!(
            "GET /ready HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            remote.address()
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let ready: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1)?).ok()?;
        ready["destinations"].as_object()?.values().next()?["sessions"].as_u64()
    }

    #[tokio::test]
    async fn lines_that_were_piped_in_are_answered_before_the_end() {
        let stage = remote().await;
        let host = &stage.host;
        host.ask(1, "tools/call", call("echo", json!({"text": "hallo"})))
            .unwrap();
        host.close_stdin();
        assert_eq!(host.wait(PATIENCE).await.code(), Some(0));
        assert_eq!(text_of(&host.answer(1).await), "hallo");
    }

    #[tokio::test]
    async fn signals_end_the_program() {
        for signal in [Signal::TERM, Signal::INT] {
            let stage = remote().await;
            stage.host.shake_hands(json!({})).await.unwrap();
            stage.host.signal(signal);
            assert_eq!(stage.host.wait(PATIENCE).await.code(), Some(0));
        }
    }

    #[tokio::test]
    async fn closed_stdout_ends_the_program() {
        let mut child = Command::new(binary("rialto"))
            .args(["connect", "http://127.0.0.1:1/mcp"])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut stdin = child.stdin.take().unwrap();
        stdin
            .write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n")
            .unwrap();
        wait_until("it has exited", PATIENCE, || child.try_wait().ok().flatten()).await;
        drop(stdin);
    }

    #[tokio::test]
    async fn remote_that_is_away_at_start_is_waited_for_and_a_probe_is_answered_meanwhile() {
        let address = vacant();
        let host = Host::start(&["connect", &format!("http://{address}/mcp")], &[]).unwrap();
        host.ask_modern("probe", "server/discover", json!({}), &json!({}))
            .unwrap();
        assert_eq!(host.answer("probe").await["error"]["code"], -32601);
        host.ask(
            "hello",
            "initialize",
            json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "testkit", "version": "1"}}),
        )
        .unwrap();
        let _remote = demo_at(&address).await;
        assert_eq!(
            host.answer("hello").await["result"]["serverInfo"]["name"],
            "rialto-demo"
        );
        host.close_stdin();
        host.wait(PATIENCE).await;
    }

    #[tokio::test]
    async fn remote_that_was_restarted_is_used_again() {
        let address = vacant();
        let first = demo_at(&address).await;
        let host = Host::start(&["connect", &format!("http://{address}/mcp")], &[]).unwrap();
        host.shake_hands(json!({})).await.unwrap();
        host.ask(1, "tools/list", json!({})).unwrap();
        host.answer(1).await;
        first.sigterm();
        first.wait(PATIENCE).await;
        host.ask(2, "tools/list", json!({})).unwrap();
        let _second = demo_at(&address).await;
        let answer = host.answer(2).await;
        assert!(answer["result"]["tools"].is_array(), "{answer}");
        host.ask(3, "tools/call", call("echo", json!({"text": "hallo"})))
            .unwrap();
        assert_eq!(text_of(&host.answer(3).await), "hallo");
        host.close_stdin();
        host.wait(PATIENCE).await;
    }

    #[tokio::test]
    async fn variables_alone_start_it() {
        let remote = Rialto::serve(&["--demo"]).await.unwrap();
        let host = Host::start(
            &[],
            &[
                ("URI", &remote.url()),
                ("BEARER_TOKEN", "geheim-geheim"),
                ("MCP_NAME", "my\u{1b}[31mserver"),
                ("MCP_TIMEOUT_MS", "5000"),
                ("MCP_MAX_QUEUE", "16"),
                ("RUST_LOG", "trace"),
            ],
        )
        .unwrap();
        host.shake_hands(json!({})).await.unwrap();
        host.ask(1, "tools/list", json!({})).unwrap();
        host.answer(1).await;
        host.close_stdin();
        host.wait(PATIENCE).await;
        let logs = host.stderr().join("\n");
        assert!(!logs.contains("geheim-geheim"), "the token is never shown");
        assert!(!logs.contains('\u{1b}'), "control characters are escaped");
    }

    #[tokio::test]
    async fn a_url_without_a_verb_is_connected_to() {
        let remote = Rialto::serve(&["--demo"]).await.unwrap();
        let host = Host::start(&[&remote.url(), "--era", "legacy"], &[]).unwrap();
        host.shake_hands(json!({})).await.unwrap();
    }

    #[tokio::test]
    async fn invalid_message_is_answered_and_the_session_goes_on() {
        let stage = Stage::set(Behind::Program, Era::Legacy).await.unwrap();
        let host = &stage.host;
        host.shake_hands(json!({})).await.unwrap();
        host.say_line("nonsense").unwrap();
        host.say_line("").unwrap();
        host.say_line(r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#)
            .unwrap();
        let long = format!(
            r#"{{"jsonrpc":"2.0","id":"long","method":"tools/call","params":{{"x":"{}"}}}}"#,
            "x".repeat(17 << 20)
        );
        host.say_line(&long).unwrap();
        assert_eq!(host.answer("long").await["error"]["code"], -32600);
        assert_eq!(host.answer(Value::Null).await["error"]["code"], -32700);
        assert_eq!(host.answer(Value::Null).await["error"]["code"], -32600);
        host.ask(2, "tools/list", json!({})).unwrap();
        assert!(host.answer(2).await["result"].is_object());
    }

    #[tokio::test]
    async fn config_to_paste_is_json_for_every_host() {
        for (host, servers) in [
            ("claude-desktop", "mcpServers"),
            ("claude-code", "mcpServers"),
            ("cursor", "mcpServers"),
            ("vscode", "servers"),
        ] {
            let output = Command::new(binary("rialto"))
                .args(["connect", "https://mcp.example.com/mcp", "--print-config", host])
                .env_clear()
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(0), "{host}");
            let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
            let entry = &printed[servers]["example"];
            assert_eq!(entry["args"], json!(["connect", "https://mcp.example.com/mcp"]));
            let command = entry["command"].as_str().unwrap();
            assert_eq!(std::path::Path::new(command), binary("rialto"), "{host}");
        }
    }

    #[tokio::test]
    async fn mistakes_of_usage_exit_with_2_and_print_nothing_on_stdout() {
        for args in [
            &["connect"][..],
            &["connect", "ftp://example.com"],
            &["connect", "https://a", "--transport", "pigeon"],
        ] {
            let output = Command::new(binary("rialto"))
                .args(args)
                .env_clear()
                .output()
                .unwrap();
            assert_eq!(
                (output.status.code(), output.stdout.len()),
                (Some(2), 0),
                "{args:?}"
            );
            assert!(output.stderr.starts_with(b"rialto: "), "{args:?}");
        }
    }

    /// Much more than may wait.
    const FLOOD: usize = 60 << 20;

    /// Writes large calls until nothing more is taken, and gives by how many KiB the program grew
    /// meanwhile.
    async fn flood(host: Arc<Host>, tool: &str) -> u64 {
        let before = host.memory().resident;
        let written = Arc::new(AtomicUsize::new(0));
        let line = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": call(tool, json!({"marker": "m", "ballast": "y".repeat(100 << 10)}))})
        .to_string();
        std::thread::spawn({
            let (written, host) = (Arc::clone(&written), Arc::clone(&host));
            move || {
                while written.load(Ordering::Relaxed) < FLOOD && host.say_line(&line).is_ok() {
                    written.fetch_add(line.len(), Ordering::Relaxed);
                }
            }
        });
        // It has stopped reading when nothing more was taken for many looks.
        let mut still = (0, 0);
        wait_until("stdin is not read any more", PATIENCE, || {
            let now = written.load(Ordering::Relaxed);
            still = if now == still.0 {
                (now, still.1 + 1)
            } else {
                (now, 0)
            };
            (still.1 > 100 && now > 0).then_some(())
        })
        .await;
        assert!(still.0 < FLOOD, "everything was read");
        host.memory().peak.saturating_sub(before)
    }

    /// Stdin cannot be closed while a thread waits to write to it.
    async fn end_by_signal(host: &Host) {
        host.signal(Signal::TERM);
        assert_eq!(host.wait(PATIENCE).await.code(), Some(0));
    }

    #[tokio::test]
    async fn stdin_is_not_read_while_too_much_waits_for_a_program() {
        let host = Arc::new(Host::start(&["connect", "--", "sleep", "1000"], &[]).unwrap());
        host.ask(1, "ping", json!({})).unwrap();
        host.answer(1).await;
        let grown = flood(Arc::clone(&host), "never").await;
        assert!(grown <= 32 << 10, "it grew by {grown} KiB");
        end_by_signal(&host).await;
    }

    #[tokio::test]
    async fn stdin_is_not_read_while_too_much_waits_for_a_remote_server() {
        let remote = Rialto::with_stub(&[]).await.unwrap();
        let host = Arc::new(Host::start(&["connect", &remote.url()], &[]).unwrap());
        host.shake_hands(json!({})).await.unwrap();
        let grown = flood(Arc::clone(&host), "never").await;
        assert!(grown <= 32 << 10, "it grew by {grown} KiB");
        end_by_signal(&host).await;
    }
}
