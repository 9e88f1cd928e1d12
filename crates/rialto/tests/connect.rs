//! `rialto connect` as its hosts use it: the real binary on pipes, clients of both eras in front, servers of both behind.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "connect/stage.rs"]
mod stage;

use std::time::Duration;

use serde_json::{Value, json};
use stage::{Behind, Era, Stage, able, call, text};
use testkit::Host;

/// Nothing here takes nearly as long; reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(20);

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

mod plays {
    use super::*;

    pub(super) async fn legacy_client_lists_and_calls(Stage { host, .. }: Stage) {
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
        assert_eq!(
            host.answer("two").await["result"]["structuredContent"]["sum"],
            42
        );
        host.ask(3, "ping", json!({})).unwrap();
        assert_eq!(host.answer(3).await["result"], json!({}));
        host.ask(4, "no/such", json!({})).unwrap();
        assert_eq!(host.answer(4).await["error"]["code"], -32601);
    }

    pub(super) async fn modern_client_discovers_lists_and_calls(Stage { host, .. }: Stage) {
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
            (text(&answer), &answer["result"]["resultType"]),
            ("hallo", &"complete".into())
        );
    }

    /// The tool, what it asks, the answer, and what it says then.
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

    pub(super) async fn legacy_client_is_asked(Stage { host, .. }: Stage) {
        host.shake_hands(able()).await.unwrap();
        for (tool, arguments, method, answer, says) in questions() {
            host.ask(tool, "tools/call", call(tool, arguments)).unwrap();
            let question = host.told(method).await;
            host.say(&json!({"jsonrpc": "2.0", "id": question["id"], "result": answer}))
                .unwrap();
            let answer = host.answer(tool).await;
            assert!(text(&answer).contains(says), "{answer}");
        }
    }

    pub(super) async fn modern_client_is_asked(Stage { host, .. }: Stage) {
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
            assert!(text(&answer).contains(says), "{answer}");
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
            .map(|step| at(&|line| line["params"]["progress"] == step && line["params"]["progressToken"] == "p"))
            .collect();
        assert!(steps.is_sorted(), "{steps:?}");
        assert!(steps[2] < at(&|line| line["id"] == *id), "{lines:?}");
    }

    pub(super) async fn legacy_client_hears_progress(Stage { host, .. }: Stage) {
        host.shake_hands(json!({})).await.unwrap();
        let mut counting = call("count", json!({"steps": 3, "delay_ms": 5}));
        counting["_meta"] = json!({"progressToken": "p"});
        host.ask(1, "tools/call", counting).unwrap();
        assert_eq!(text(&host.answer(1).await), "Counted to 3.");
        assert_progress(&host, &json!(1));
    }

    pub(super) async fn modern_client_hears_progress(Stage { host, .. }: Stage) {
        let mut counting = call("count", json!({"steps": 3, "delay_ms": 5}));
        counting["_meta"] = json!({"progressToken": "p"});
        host.ask_modern(1, "tools/call", counting, &json!({})).unwrap();
        assert_eq!(text(&host.answer(1).await), "Counted to 3.");
        assert_progress(&host, &json!(1));
    }

    fn cancellation(id: &str) -> Value {
        json!({"requestId": id, "reason": "changed my mind"})
    }

    /// The call is under way as soon as its first step is heard.
    fn long_call() -> Value {
        let mut counting = call("count", json!({"steps": 1000, "delay_ms": 60}));
        counting["_meta"] = json!({"progressToken": "p"});
        counting
    }

    pub(super) async fn legacy_cancellation_overtakes_the_call(Stage { host, .. }: Stage) {
        host.shake_hands(json!({})).await.unwrap();
        host.ask("long", "tools/call", long_call()).unwrap();
        host.told("notifications/progress").await;
        host.notify("notifications/cancelled", cancellation("long"))
            .unwrap();
        let cancelled = |host: &Host, turn: u32| {
            host.ask(turn, "tools/call", call("whoami", json!({}))).unwrap();
        };
        assert_cancelled(&host, cancelled).await;
    }

    pub(super) async fn modern_cancellation_overtakes_the_call(Stage { host, .. }: Stage) {
        host.ask_modern("long", "tools/call", long_call(), &json!({}))
            .unwrap();
        host.told("notifications/progress").await;
        host.notify("notifications/cancelled", cancellation("long"))
            .unwrap();
        let cancelled = |host: &Host, turn: u32| {
            host.ask_modern(turn, "tools/call", call("whoami", json!({})), &json!({}))
                .unwrap();
        };
        assert_cancelled(&host, cancelled).await;
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

    pub(super) async fn legacy_client_is_notified(Stage { host, .. }: Stage) {
        host.shake_hands(json!({})).await.unwrap();
        host.ask(1, "tools/call", call("toggle_tool", json!({}))).unwrap();
        host.answer(1).await;
        host.told("notifications/tools/list_changed").await;
        host.ask(2, "resources/subscribe", json!({"uri": "demo://counter"}))
            .unwrap();
        assert_eq!(host.answer(2).await["result"], json!({}));
        host.ask(3, "tools/call", call("touch", json!({}))).unwrap();
        host.answer(3).await;
        assert_eq!(
            host.told("notifications/resources/updated").await["params"]["uri"],
            "demo://counter"
        );
    }

    pub(super) async fn modern_client_is_notified(Stage { host, .. }: Stage) {
        let wanted = json!({"notifications": {"toolsListChanged": true, "resourceSubscriptions": ["demo://counter"]}});
        host.ask_modern("ear", "subscriptions/listen", wanted, &json!({}))
            .unwrap();
        let acknowledged = host.told("notifications/subscriptions/acknowledged").await;
        let ear = "io.modelcontextprotocol/subscriptionId";
        assert_eq!(acknowledged["params"]["_meta"][ear], "ear");
        for (tool, method) in [
            ("toggle_tool", "notifications/tools/list_changed"),
            ("touch", "notifications/resources/updated"),
        ] {
            host.ask_modern(tool, "tools/call", call(tool, json!({})), &json!({}))
                .unwrap();
            host.answer(tool).await;
            assert_eq!(host.told(method).await["params"]["_meta"][ear], "ear");
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
        assert_eq!(text(&host.answer(9).await), "still here");
        assert!(
            host.lines().iter().all(|line| line["id"] != "ear"),
            "a listen that its client ends is not answered"
        );
    }

    pub(super) async fn five_megabytes_go_both_ways(Stage { host, .. }: Stage) {
        host.shake_hands(json!({})).await.unwrap();
        let large = "x".repeat(5 << 20);
        host.ask(1, "tools/call", call("echo", json!({"text": large})))
            .unwrap();
        let answer = host.answer(1).await;
        assert_eq!(text(&answer).len(), large.len());
    }

    pub(super) async fn fifty_calls_with_one_id_are_all_answered(Stage { host, .. }: Stage) {
        host.shake_hands(json!({})).await.unwrap();
        for number in 0..50 {
            host.ask(1, "tools/call", call("echo", json!({"text": number.to_string()})))
                .unwrap();
        }
        let mut heard = Vec::new();
        for _ in 0..50 {
            heard.push(text(&host.answer(1).await).parse::<u32>().unwrap());
        }
        heard.sort_unstable();
        assert_eq!(heard, Vec::from_iter(0..50));
    }

    pub(super) async fn after_modern_requests_initialize_is_refused(Stage { host, .. }: Stage) {
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
