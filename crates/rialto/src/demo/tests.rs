//! The demo server tested as conversations: what a client sends, and all it receives. Time is a
//! number here.
use std::time::Duration;

use serde_json::{Value, json};

use super::DemoEra;
use super::machine::Machine;

mod legacy;
mod modern;
mod opening;
mod pipes;

struct Talk {
    machine: Machine,
    now: Duration,
    last_id: u64,
}

impl Talk {
    fn new(era: DemoEra) -> Talk {
        fn token() -> String {
            use std::sync::atomic::{AtomicU64, Ordering};
            static NEXT: AtomicU64 = AtomicU64::new(0);
            format!("token-{}", NEXT.fetch_add(1, Ordering::Relaxed))
        }
        Talk {
            machine: Machine::new(era, token),
            now: Duration::ZERO,
            last_id: 100,
        }
    }

    fn hear(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.machine.poll_output()).collect()
    }

    fn say_line(&mut self, line: &str) -> Vec<Value> {
        self.machine.handle_line(self.now, line.as_bytes());
        self.hear()
    }

    fn say(&mut self, message: Value) -> Vec<Value> {
        self.say_line(&message.to_string())
    }

    fn notify(&mut self, method: &str, params: Value) -> Vec<Value> {
        self.say(json!({"jsonrpc": "2.0", "method": method, "params": params}))
    }

    /// Lets time pass up to the next thing that is due.
    fn wait(&mut self) -> Vec<Value> {
        self.now = self.machine.next_deadline().expect("something is waiting");
        self.machine.handle_deadline(self.now);
        self.hear()
    }

    /// Sends a request with a new id, and returns all messages that follow.
    fn ask(&mut self, method: &str, params: Value) -> Vec<Value> {
        self.last_id += 1;
        self.say(json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}))
    }

    /// A request that is answered at once, by one message only.
    fn answer(&mut self, method: &str, params: Value) -> Value {
        let mut received = self.ask(method, params);
        assert_eq!(received.len(), 1, "one answer to {method}, not {received:?}");
        let answer = received.remove(0);
        assert_eq!(answer["id"], self.last_id);
        answer
    }

    fn result(&mut self, method: &str, params: Value) -> Value {
        let answer = self.answer(method, params);
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].clone()
    }

    fn code(&mut self, method: &str, params: Value) -> i64 {
        self.answer(method, params)["error"]["code"]
            .as_i64()
            .expect("an error with a code")
    }
}

fn text_of(result: &Value) -> &str {
    result["content"][0]["text"].as_str().expect("a text")
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array()
        .expect("a list")
        .iter()
        .filter_map(|item| item["name"].as_str())
        .collect()
}
