//! Tools that ask the client something: elicitation, sampling, roots, ping.

use std::time::Duration;

use serde_json::json;

use super::Invocation;
use crate::stub::server::{MOST_WAITING, Question, Server};
use crate::stub::wire;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stub) enum Ask {
    Elicitation,
    Sampling,
    Roots,
    Ping,
    /// An elicitation after the call has been answered.
    OutsideAnyCall,
}

impl Server {
    /// Asks whether the client can answer or not, unless it shall be `polite`.
    pub(super) fn ask(&mut self, ask: Ask, call: &Invocation<'_>) {
        let (method, capability, params) = match ask {
            Ask::Elicitation | Ask::OutsideAnyCall => {
                let schema = json!({"type": "object", "properties": {"answer": {"type": "string"}}});
                let params = json!({"message": call.marker(), "requestedSchema": schema});
                ("elicitation/create", Some("elicitation"), params)
            }
            Ask::Sampling => {
                let content = json!({"type": "text", "text": call.marker()});
                let messages = json!([{"role": "user", "content": content}]);
                let params = json!({"messages": messages, "maxTokens": 16});
                ("sampling/createMessage", Some("sampling"), params)
            }
            Ask::Roots => ("roots/list", Some("roots"), json!({})),
            Ask::Ping => ("ping", None, json!({})),
        };
        let impossible = capability.is_some_and(|capability| !self.client_can(capability));
        if impossible && call.arguments.flag("polite", false) {
            self.output.line(&call.says("the client cannot do that"));
            return;
        }
        self.questions_asked += 1;
        let id = self.questions_asked.to_string();
        let line = wire::request(&id, method, &params.to_string());
        let outside = ask == Ask::OutsideAnyCall;
        let waiting = (!outside).then(|| call.call());
        assert!(
            self.questions.len() < MOST_WAITING,
            "too many questions without an answer"
        );
        self.questions.insert(
            id,
            Question {
                call: waiting,
                marker: call.marker.clone(),
                again: call
                    .arguments
                    .flag("twice", false)
                    .then(|| (method, params.to_string())),
            },
        );
        if outside {
            self.output.line(&call.echo());
            self.later
                .send(Duration::from_millis(call.arguments.number("ms", 0)), None, line);
        } else {
            self.output.line(&line);
        }
    }
}
